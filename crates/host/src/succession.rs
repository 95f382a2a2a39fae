//! What a daemon leaves to its successor: the same process with a newer program in it.
//!
//! The successor is started in place (`execve`): it keeps the process number, so that whoever supervises it sees nothing of it,
//! and the open descriptors of mounts. What there is to know of them is in the environment.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::time::Duration;

use rustix::io::{FdFlags, fcntl_setfd};
use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

use crate::fuse::Left;

/// Where it is in the environment.
pub const VARIABLE: &str = "HEADPOND_SUCCEEDS";
/// The device number of /dev/fuse.
const FUSE: (u32, u32) = (10, 229);

/// What is left to a successor.
#[derive(Debug, Default)]
pub struct Estate {
    /// When no more requests were taken, in nanoseconds of the monotonic clock; 0: nobody was there before.
    since: u64,
    /// Volumes that are loop devices over FUSE, by number.
    pub fuse: BTreeMap<u16, Left>,
}

#[derive(Serialize, Deserialize)]
struct Text {
    /// The process that it is meant for: its own children are not.
    process: u32,
    since: u64,
    fuse: BTreeMap<u16, (i32, u32)>,
}

fn now() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

impl Estate {
    /// Of a daemon that takes no more requests from now on.
    pub fn new() -> Estate {
        Estate { since: now(), fuse: BTreeMap::new() }
    }

    /// For how long nobody has answered; `None` where nobody was there before.
    pub fn pause(&self) -> Option<Duration> {
        (self.since > 0).then(|| Duration::from_nanos(now().saturating_sub(self.since)))
    }

    /// What the environment of a successor is to say; the descriptors are kept open from now on by whatever program this
    /// process comes to run.
    ///
    /// # Errors
    /// A descriptor cannot be passed on.
    pub fn bequeath(&self) -> io::Result<String> {
        for left in self.fuse.values() {
            fcntl_setfd(&left.mount, FdFlags::empty())?;
        }
        let fuse = self.fuse.iter().map(|(number, left)| (*number, (left.mount.as_raw_fd(), left.device))).collect();
        let text = Text { process: std::process::id(), since: self.since, fuse };
        Ok(serde_json::to_string(&text)?)
    }

    /// What this process was left by the program that it ran before, if it was left anything. To be called once, at the start.
    pub fn inherit() -> Estate {
        let text = std::env::var(VARIABLE).ok().and_then(|text| serde_json::from_str::<Text>(&text).ok());
        let Some(text) = text.filter(|text| text.process == std::process::id()) else { return Estate::default() };
        let mut estate = Estate { since: text.since, fuse: BTreeMap::new() };
        for (number, (descriptor, device)) in text.fuse {
            if !is_fuse(descriptor) {
                continue;
            }
            // SAFETY: it is open, as was just seen, and of the kind that it should be. Nothing of this program has opened
            // it: this is called before anything else is opened, and once. The environment names each descriptor once.
            let mount = unsafe { OwnedFd::from_raw_fd(descriptor) };
            let _ = fcntl_setfd(&mount, FdFlags::CLOEXEC);
            estate.fuse.insert(number, Left { mount, device });
        }
        estate
    }
}

/// Whether an open descriptor is of a FUSE mount.
fn is_fuse(descriptor: i32) -> bool {
    if descriptor < 3 {
        return false;
    }
    let path = format!("/proc/self/fd/{descriptor}");
    std::fs::metadata(path).is_ok_and(|is| {
        let number = std::os::unix::fs::MetadataExt::rdev(&is);
        (rustix::fs::major(number), rustix::fs::minor(number)) == FUSE
    })
}
