//! A flush of a device of ours, which a child waits for.
//!
//! What it writes goes to the volume, and on to its disk, which may answer nothing. Whoever waits for it does so in the kernel, where nothing
//! ends it: were it a thread of this process, the process could not end either, nor would the kernel let go of what it has open. So the `dd`
//! that each system has waits, and this process for `dd`, as long as it likes.

use std::io;
use std::os::fd::OwnedFd;
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

/// A flush that was begun.
pub struct Flushing {
    ended: Receiver<io::Result<Output>>,
    since: Instant,
}

impl Flushing {
    /// Begins to write what the kernel has of a file, and to make it durable. The child has this very description of it: while it waits the
    /// file stays open, and a claim stays held. `then` is done when it has ended, whoever asks.
    pub fn begin(file: OwnedFd, then: impl FnOnce() + Send + 'static) -> io::Result<Flushing> {
        // It reads nothing, writes that, and flushes.
        let mut dd = Command::new("dd");
        dd.args(["if=/dev/null", "conv=fsync,notrunc", "status=none"]).stdin(Stdio::null()).stdout(file).stderr(Stdio::piped());
        let child = dd.spawn()?;
        let (told, ended) = mpsc::channel();
        // Somebody takes in its end, also if nobody asks any more.
        thread::Builder::new().name("flushed".into()).spawn(move || {
            let end = child.wait_with_output();
            then();
            told.send(end)
        })?;
        Ok(Flushing { ended, since: Instant::now() })
    }

    /// How it ended, if it does by then. To be asked no more once it has.
    pub fn ended(&self, until: Instant) -> Option<io::Result<()>> {
        match self.ended.recv_timeout(until.saturating_duration_since(Instant::now())) {
            Ok(Ok(dd)) if dd.status.success() => Some(Ok(())),
            Ok(Ok(dd)) => Some(Err(io::Error::other(format!("{}; {}", dd.status, String::from_utf8_lossy(&dd.stderr).trim())))),
            Ok(Err(error)) => Some(Err(error)),
            Err(RecvTimeoutError::Timeout) => None,
            Err(RecvTimeoutError::Disconnected) => Some(Err(io::Error::other("nobody waited for it"))),
        }
    }

    /// For how long it has been under way.
    pub fn elapsed(&self) -> Duration {
        self.since.elapsed()
    }
}

/// The flushes of a device, as those who attend to its queues see them.
///
/// The daemon's own must not pass for a client's: of a flush of its disk that has failed a volume tells one client, once, and that must not be
/// `dd`.
#[derive(Debug, Default)]
pub struct Flushes {
    came: AtomicU64,
    /// They are the daemon's own until something is written.
    are_tries: AtomicBool,
    /// There may be one of the daemon's own among them.
    may_be_own: AtomicBool,
}

/// For whom a flush is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Whose {
    /// A client's.
    Clients,
    /// The daemon's own, perhaps: of what a client is to be told of nothing is told by it. It is as good as any other one but for that, as
    /// whoever opens the device beside it has his flushes taken for it.
    Own,
    /// The daemon's own, of a device that nobody has written to: to come is all that it has to do.
    Try,
}

impl Flushes {
    /// Those that come are to show only that they do, up to the first write: then there is something to be made durable. To be said before
    /// there is anybody who could write, or to end that.
    pub fn set_tries(&self, are_tries: bool) {
        self.are_tries.store(are_tries, Ordering::Release);
    }

    /// One of the daemon's own is under way from now on; or no longer.
    pub fn set_own(&self, may_be_own: bool) {
        self.may_be_own.store(may_be_own, Ordering::Release);
    }

    /// Something is written. To be said before that is answered.
    pub fn wrote(&self) {
        if self.are_tries.load(Ordering::Relaxed) {
            self.set_tries(false);
        }
    }

    /// One more came: for whom it is.
    pub fn one_more(&self) -> Whose {
        self.came.fetch_add(1, Ordering::Relaxed);
        match (self.are_tries.load(Ordering::Acquire), self.may_be_own.load(Ordering::Acquire)) {
            (true, _) => Whose::Try,
            (false, true) => Whose::Own,
            (false, false) => Whose::Clients,
        }
    }

    /// How many came.
    pub fn came(&self) -> u64 {
        self.came.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::silent;
    use std::fs::File;
    use std::sync::Arc;

    const SOON: Duration = Duration::from_secs(30);

    #[test]
    fn how_a_flush_ends_is_told() {
        let file = tempfile::tempfile().unwrap();
        let flushed = |file: File| Flushing::begin(file.into(), || ()).unwrap().ended(Instant::now() + SOON);
        assert!(matches!(flushed(file), Some(Ok(()))));
        // A pipe has nothing to be flushed, and the kernel says so.
        let (_reader, writer) = io::pipe().unwrap();
        let failed = flushed(File::from(OwnedFd::from(writer)));
        assert!(matches!(&failed, Some(Err(error)) if error.to_string().contains("dd: ")), "{failed:?}");
    }

    /// Children of this process that have ended, and that nobody has taken in.
    fn dead_children() -> usize {
        let ours = std::process::id().to_string();
        let is_dead = |stat: &String| {
            let mut fields = stat.rsplit(')').next().unwrap_or_default().split_whitespace();
            stat.contains("(dd)") && fields.next() == Some("Z") && fields.next() == Some(&ours)
        };
        let stats = std::fs::read_dir("/proc").unwrap().flatten();
        stats.filter_map(|entry| std::fs::read_to_string(entry.path().join("stat")).ok()).filter(is_dead).count()
    }

    /// That of a device that could not be made stayed as a dead process until the daemon ended.
    #[test]
    fn a_child_that_nobody_waits_for_any_more_does_not_stay() {
        drop(Flushing::begin(tempfile::tempfile().unwrap().into(), || ()).unwrap());
        // Not before it has ended.
        thread::sleep(Duration::from_secs(1));
        let until = Instant::now() + SOON;
        while dead_children() > 0 {
            assert!(Instant::now() < until, "it is there yet");
            thread::sleep(Duration::from_millis(10));
        }
    }

    /// The thread that stopped a device waited in the kernel for the device's own flush, and neither a limit nor a kill ended that.
    #[test]
    fn a_flush_that_a_device_does_not_answer_is_waited_for_as_long_as_one_likes_and_ends_when_it_does() {
        let folder = tempfile::tempdir().unwrap();
        let Some(disk) = silent::Disk::new(&folder.path().join("mount"), 16 << 20) else { return };
        disk.fall_silent();
        let ours = File::options().read(true).open(disk.path()).unwrap();
        let begun = Instant::now();
        let has_ended = Arc::new(AtomicBool::new(false));
        let noted = Arc::clone(&has_ended);
        let flushing = Flushing::begin(ours.try_clone().unwrap().into(), move || noted.store(true, Ordering::SeqCst)).unwrap();
        assert!(flushing.ended(Instant::now() + Duration::from_millis(200)).is_none());
        assert!(!has_ended.load(Ordering::SeqCst));
        // Closed here it is not closed for the last time, which would wait as well.
        drop(ours);
        assert!(begun.elapsed() < SOON, "{:?}", begun.elapsed());
        disk.speak();
        assert!(matches!(flushing.ended(Instant::now() + SOON), Some(Ok(()))));
        assert!(has_ended.load(Ordering::SeqCst));
    }
}
