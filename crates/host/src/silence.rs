//! Devices that are there and answer nothing, found out before anybody waits for them.
//!
//! Who reads from one waits in the kernel, where nothing interrupts him: a thread that does can be waited for by nobody, nor can its process
//! end. So a child reads a block first, the `dd` that each system has, and where that gets no answer nobody else asks.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::FileType;

use crate::device::facts;

/// How long a device may take to answer: a disk at rest takes seconds to spin up.
pub const LIMIT: Duration = Duration::from_secs(10);
/// How often it is looked whether it has.
const LOOK: Duration = Duration::from_millis(2);

/// Children that have no answer yet. A device has one at most, which is left to the kernel for as long as the device is silent.
static ASKING: Mutex<BTreeMap<PathBuf, Child>> = Mutex::new(BTreeMap::new());

fn asking() -> MutexGuard<'static, BTreeMap<PathBuf, Child>> {
    ASKING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whether a device answers within `limit`, be it with an error: whoever opens it is told that. One that cannot be asked, as it is
/// not there or there is no `dd`, counts as one that does.
pub fn answers(path: &Path, limit: Duration) -> bool {
    // To open anything else might already do something.
    if !facts::look(path).is_ok_and(|it| matches!(facts::kind(&it), FileType::BlockDevice | FileType::RegularFile)) {
        return true;
    }
    let until = Instant::now() + limit;
    // What an earlier one was answered says nothing of now.
    let earlier = asking().remove(path);
    earlier.is_none_or(|child| ends(path, child, until)) && ask(path).is_none_or(|child| ends(path, child, until))
}

fn ask(path: &Path) -> Option<Child> {
    let mut from = OsString::from("if=");
    from.push(path);
    let mut dd = Command::new("dd");
    dd.arg(from).args(["of=/dev/null", "bs=4096", "count=1", "iflag=direct"]);
    dd.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().ok()
}

/// Whether it ends in time; kept if not.
fn ends(path: &Path, mut child: Child, until: Instant) -> bool {
    while let Ok(None) = child.try_wait() {
        if Instant::now() >= until {
            asking().insert(path.to_owned(), child);
            return false;
        }
        thread::sleep(LOOK);
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_can_be_read_what_cannot_and_what_is_not_there_are_not_silent() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        std::fs::write(&file, [0; 512]).unwrap();
        for path in [&file, folder.path(), &folder.path().join("none"), Path::new("/dev/null")] {
            assert!(answers(path, LIMIT), "{}", path.display());
        }
        assert!(asking().is_empty());
    }

    #[test]
    fn a_child_without_an_answer_is_waited_for_again_and_no_second_one_is_begun() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        std::fs::write(&file, [0; 512]).unwrap();
        let stuck = Command::new("sleep").arg("1").spawn().unwrap();
        assert!(!ends(&file, stuck, Instant::now()));
        assert!(!answers(&file, Duration::from_millis(50)));
        assert_eq!(asking().len(), 1);
        assert!(answers(&file, LIMIT));
        assert!(!asking().contains_key(&file));
    }
}
