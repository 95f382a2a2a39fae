//! A flush of a device of ours, which a child waits for.
//!
//! It goes to the volume, and on to its disk, which may answer nothing. Whoever waits for it does so in the kernel, where nothing ends it:
//! were it a thread of this process, the process could not end either, nor would the kernel let go of what it has open. So the `dd` that each
//! system has waits, and this process for `dd`, as long as it likes.

use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// How often it is looked whether it has ended.
const LOOK: Duration = Duration::from_millis(2);

/// A flush that was begun.
pub struct Flushing {
    child: Child,
    since: Instant,
}

impl Flushing {
    /// Begins to write what the kernel has of a file, and to make it durable. The child has this very description of it: while it waits the
    /// file stays open, and a claim stays held.
    pub fn begin(file: OwnedFd) -> io::Result<Flushing> {
        // It reads nothing, writes that, and flushes.
        let mut dd = Command::new("dd");
        dd.args(["if=/dev/null", "conv=fsync,notrunc", "status=none"]).stdin(Stdio::null()).stdout(file).stderr(Stdio::piped());
        Ok(Flushing { child: dd.spawn()?, since: Instant::now() })
    }

    /// How it ended, if it does by then.
    pub fn ended(&mut self, until: Instant) -> Option<io::Result<()>> {
        loop {
            match self.child.try_wait() {
                Ok(None) if Instant::now() < until => thread::sleep(LOOK),
                Ok(None) => return None,
                Ok(Some(status)) if status.success() => return Some(Ok(())),
                Ok(Some(status)) => {
                    let mut said = String::new();
                    let _ = self.child.stderr.take().map(|mut stderr| stderr.read_to_string(&mut said));
                    return Some(Err(io::Error::other(format!("{status}; {}", said.trim()))));
                }
                Err(error) => return Some(Err(error)),
            }
        }
    }

    /// For how long it has been under way.
    pub fn elapsed(&self) -> Duration {
        self.since.elapsed()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::silent;
    use std::fs::File;

    const SOON: Duration = Duration::from_secs(30);

    #[test]
    fn how_a_flush_ends_is_told() {
        let file = tempfile::tempfile().unwrap();
        let flushed = |file: File| Flushing::begin(file.into()).unwrap().ended(Instant::now() + SOON);
        assert!(matches!(flushed(file), Some(Ok(()))));
        // A pipe has nothing to be flushed, and the kernel says so.
        let (_reader, writer) = io::pipe().unwrap();
        let failed = flushed(File::from(OwnedFd::from(writer)));
        assert!(matches!(&failed, Some(Err(error)) if error.to_string().contains("dd: ")), "{failed:?}");
    }

    /// The thread that stopped a device waited in the kernel for the device's own flush, and neither a limit nor a kill ended that.
    #[test]
    fn a_flush_that_a_device_does_not_answer_is_waited_for_as_long_as_one_likes_and_ends_when_it_does() {
        let folder = tempfile::tempdir().unwrap();
        let Some(disk) = silent::Disk::new(&folder.path().join("mount"), 16 << 20) else { return };
        disk.fall_silent();
        let ours = File::options().read(true).open(disk.path()).unwrap();
        let begun = Instant::now();
        let mut flushing = Flushing::begin(ours.try_clone().unwrap().into()).unwrap();
        assert!(flushing.ended(Instant::now() + Duration::from_millis(200)).is_none());
        // Closed here it is not closed for the last time, which would wait as well.
        drop(ours);
        assert!(begun.elapsed() < SOON, "{:?}", begun.elapsed());
        disk.speak();
        assert!(matches!(flushing.ended(Instant::now() + SOON), Some(Ok(()))));
    }
}
