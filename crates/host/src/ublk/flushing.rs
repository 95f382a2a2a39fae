//! A flush of a device of ours, which a child waits for.
//!
//! What it writes goes to the volume, and on to its disk, which may answer nothing. Whoever waits for it does so in the kernel, where nothing
//! ends it: were it a thread of this process, the process could not end either, nor would the kernel let go of what it has open. So the `dd`
//! that each system has waits, and this process for `dd`, as long as it likes.

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

/// Reads nothing, writes that, and flushes.
const DD: [&str; 4] = ["dd", "if=/dev/null", "conv=fsync,notrunc", "status=none"];
/// How often it is looked whether the flush of an earlier daemon has ended.
const LOOK: Duration = Duration::from_millis(20);

/// A flush that was begun.
pub struct Flushing {
    ended: Receiver<io::Result<Output>>,
    since: Instant,
}

impl Flushing {
    /// Begins to write what the kernel has of a file, and to make it durable. The child has this very description of it: while it waits the
    /// file stays open, and a claim stays held. `then` is done when it has ended, whoever asks, and told whether it ended well.
    pub fn begin(file: OwnedFd, then: impl FnOnce(bool) + Send + 'static) -> io::Result<Flushing> {
        let mut dd = Command::new(DD[0]);
        dd.args(&DD[1..]).stdin(Stdio::null()).stdout(file).stderr(Stdio::piped());
        let child = dd.spawn()?;
        let (told, ended) = mpsc::channel();
        // Somebody takes in its end, also if nobody asks any more.
        thread::Builder::new().name("flushed".into()).spawn(move || {
            let end = child.wait_with_output();
            then(end.as_ref().is_ok_and(|dd| dd.status.success()));
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

/// Processes that wait for flushes of a device which an earlier daemon has begun, by their folders in one like `/proc`. `is_it` tells whether a
/// path leads to the device.
pub fn left_over(proc: &Path, is_it: impl Fn(&Path) -> bool) -> Vec<PathBuf> {
    let processes = fs::read_dir(proc).into_iter().flatten().flatten().map(|entry| entry.path());
    processes.filter(|process| waits(process, &is_it)).collect()
}

fn waits(process: &Path, is_it: impl Fn(&Path) -> bool) -> bool {
    let is_dd = || fs::read(process.join("comm")).is_ok_and(|name| name.trim_ascii_end() == DD[0].as_bytes());
    // Not asked of others: it takes a lock of theirs.
    let is_ours = || fs::read(process.join("cmdline")).is_ok_and(|line| line == format!("{}\0", DD.join("\0")).into_bytes());
    is_dd() && is_ours() && is_it(&process.join("fd/1"))
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
    /// The one that shows whether they come may be among them.
    trial: AtomicBool,
    /// The last one that failed may have been that one: whoever asks next hears of it as well.
    again: AtomicBool,
    /// So many of the daemon's own may be among them.
    own: AtomicUsize,
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
    /// there is anybody who could write.
    pub fn begin_trial(&self) {
        self.trial.store(true, Ordering::SeqCst);
        self.are_tries.store(true, Ordering::Release);
    }

    /// What comes from now on is no try.
    pub fn end_tries(&self) {
        self.are_tries.store(false, Ordering::Release);
    }

    /// The one that was to show whether they come has ended, and nothing of the kind comes any more. Where it ended well, what failed beside it
    /// was told to a client.
    pub fn end_trial(&self, ended_well: bool) {
        self.trial.store(false, Ordering::SeqCst);
        if ended_well {
            self.again.store(false, Ordering::SeqCst);
        }
    }

    /// What is to be answered to a client's flush where the volume says whether it went well: whether it did.
    ///
    /// Once a client has written, `dd`'s flush of a new device cannot be told from his, nor has the kernel always made two of them. Answered
    /// well without the volume, his writes would be called durable that are not; answered with an error without it, a file system would give
    /// up for nothing. So the volume is asked as by a client; but what it tells once of writes that were lost, `dd` may have heard, and nobody listens
    /// to that. So the next one hears of it too, at worst one who has heard of it already.
    pub fn answer(&self, went_well: bool) -> bool {
        match went_well {
            true => !self.again.swap(false, Ordering::SeqCst),
            false => {
                self.again.store(self.trial.load(Ordering::SeqCst), Ordering::SeqCst);
                false
            }
        }
    }

    /// One of the daemon's own is under way from now on; or no longer.
    pub fn set_own(&self, is_under_way: bool) {
        match is_under_way {
            true => self.own.fetch_add(1, Ordering::AcqRel),
            false => self.own.fetch_sub(1, Ordering::AcqRel),
        };
    }

    /// The kernel asks once more for what an earlier daemon has not answered, its own flushes too: those that come while one of these
    /// processes waits may be one. To be said before any comes.
    pub fn set_own_while(self: &Arc<Flushes>, waiting: Vec<PathBuf>, is_it: impl Fn(&Path) -> bool + Send + 'static) {
        if waiting.is_empty() {
            return;
        }
        self.set_own(true);
        let flushes = Arc::clone(self);
        let wait = move || {
            while waiting.iter().any(|process| waits(process, &is_it)) {
                thread::sleep(LOOK);
            }
            flushes.set_own(false);
        };
        if let Err(error) = thread::Builder::new().name("left-flush".into()).spawn(wait) {
            self.set_own(false);
            tracing::warn!(
                "there is no thread that waits for a flush which an earlier daemon began: {error}. If a flush of the volume's disk has failed, \
                 that may be told to it, and to no client. Look at the limits of threads and memory"
            );
        }
    }

    /// Something is written. To be said before that is answered.
    pub fn wrote(&self) {
        if self.are_tries.load(Ordering::Relaxed) {
            self.end_tries();
        }
    }

    /// One more came: for whom it is.
    pub fn one_more(&self) -> Whose {
        self.came.fetch_add(1, Ordering::Relaxed);
        match (self.are_tries.load(Ordering::Acquire), self.own.load(Ordering::Acquire) > 0) {
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
    use std::os::unix::fs::MetadataExt;

    const SOON: Duration = Duration::from_secs(30);

    #[test]
    fn how_a_flush_ends_is_told() {
        let file = tempfile::tempfile().unwrap();
        let flushed = |file: File| Flushing::begin(file.into(), |_| ()).unwrap().ended(Instant::now() + SOON);
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
        drop(Flushing::begin(tempfile::tempfile().unwrap().into(), |_| ()).unwrap());
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
        let flushing = Flushing::begin(ours.try_clone().unwrap().into(), move |ok| noted.store(ok, Ordering::SeqCst)).unwrap();
        assert!(flushing.ended(Instant::now() + Duration::from_millis(200)).is_none());
        assert!(!has_ended.load(Ordering::SeqCst));
        // Closed here it is not closed for the last time, which would wait as well.
        drop(ours);
        assert!(begun.elapsed() < SOON, "{:?}", begun.elapsed());
        disk.speak();
        assert!(matches!(flushing.ended(Instant::now() + SOON), Some(Ok(()))));
        assert!(has_ended.load(Ordering::SeqCst));
    }

    /// A daemon that was killed while its own flush waited left that to the next one, to which it was a client's: it was told of a failed flush of
    /// the disk, and then no client was.
    #[test]
    fn a_flush_that_an_earlier_daemon_began_is_no_clients_until_it_has_ended() {
        let folder = tempfile::tempdir().unwrap();
        let Some(disk) = silent::Disk::new(&folder.path().join("mount"), 16 << 20) else { return };
        let number = fs::metadata(disk.path()).unwrap().rdev();
        let is_it = move |path: &Path| fs::metadata(path).is_ok_and(|it| it.rdev() == number);
        let left = || left_over("/proc".as_ref(), is_it);
        let ours = File::options().read(true).open(disk.path()).unwrap();
        assert!(left().is_empty(), "others have it open");
        disk.fall_silent();
        let flushing = Flushing::begin(ours.into(), |_| ()).unwrap();
        let until = Instant::now() + SOON;
        // Not before it is `dd`.
        while left().is_empty() {
            assert!(Instant::now() < until, "it is not found");
            thread::sleep(LOOK);
        }
        assert!(left_over("/proc".as_ref(), |_| false).is_empty(), "of another device");
        let flushes = Arc::new(Flushes::default());
        flushes.set_own_while(left(), is_it);
        // One that this daemon begins beside it changes nothing of that.
        flushes.set_own(true);
        flushes.set_own(false);
        assert_eq!(flushes.one_more(), Whose::Own);
        disk.speak();
        assert!(matches!(flushing.ended(Instant::now() + SOON), Some(Ok(()))));
        while flushes.one_more() != Whose::Clients {
            assert!(Instant::now() < until + SOON, "whoever flushes is taken for the daemon");
            thread::sleep(LOOK);
        }
    }
}
