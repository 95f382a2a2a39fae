//! What a daemon leaves to its successor: the same process with a newer program in it.
//!
//! The successor is started in place (`execve`): it keeps the process number, so that whoever supervises it sees nothing of it,
//! and the open descriptors of mounts. What there is to know of them is in the environment.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::path::PathBuf;
use std::time::Duration;

use rustix::io::{FdFlags, fcntl_setfd};
use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

use crate::daemon::Choice;
use crate::fuse::Left;
use crate::silence;

/// How an estate is passed on. It is raised when a program that goes by the number before could not take over any more.
const PROTOCOL: u32 = 2;

/// What a program says of itself when it is asked whether it could take over: nothing else says this.
pub fn introduction() -> String {
    format!("{SELF}{} {TAKES_OVER}{PROTOCOL}", env!("CARGO_PKG_VERSION"))
}

const SELF: &str = "headpond ";
const TAKES_OVER: &str = "takes over by protocol ";

/// The version of whoever introduced itself so.
///
/// # Errors
/// What it is instead, in words.
pub fn introduced(text: &str) -> Result<String, String> {
    let parts = text.trim().strip_prefix(SELF).and_then(|rest| rest.split_once(' '));
    let parts = parts.and_then(|(version, rest)| Some((version, rest.strip_prefix(TAKES_OVER)?)));
    let is_version = |version: &str| {
        let numbers = version.split(['-', '+']).next().unwrap_or_default();
        numbers.split('.').count() == 3 && numbers.split('.').all(|number| number.parse::<u32>().is_ok())
    };
    match parts {
        Some((version, protocol)) if is_version(version) && protocol == PROTOCOL.to_string() => Ok(version.to_owned()),
        Some((version, protocol)) if is_version(version) => Err(format!(
            "is Headpond {version}, which takes over by protocol {protocol}, and this one hands over by {PROTOCOL}. The daemon goes on as \
             it was. Stop it and start that one instead"
        )),
        _ => Err("is no Headpond that could take over: asked what it is, it did not say so. The daemon goes on as it was. Name \
             another program"
            .into()),
    }
}

/// What a daemon tells of itself, in the environment, to a program that it asks whether that could take over. One that does not know of
/// it passes it over.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Present {
    /// How clients reach volumes, where they reach any.
    pub frontend: Option<Choice>,
    /// Where its metrics are to be.
    pub metrics: Option<SocketAddr>,
    /// Where it listens beside that.
    pub sockets: Vec<PathBuf>,
    /// Its control socket, if it has one.
    #[serde(default)]
    pub control: Option<PathBuf>,
    /// Its state folder.
    #[serde(default)]
    pub state: Option<PathBuf>,
    /// How the backing device of each volume that has it is named, by the volume's name.
    #[serde(default)]
    pub disks: BTreeMap<String, String>,
}

const PRESENT: &str = "HEADPOND_SERVES";

impl Present {
    /// As it is told to a program that is asked, by this variable.
    pub(crate) fn told(&self) -> (&'static str, String) {
        (PRESENT, serde_json::to_string(self).unwrap_or_default())
    }

    /// What a daemon has told; `None` where none has, or one from before it did.
    pub fn of_who_asks() -> Option<Present> {
        serde_json::from_str(&std::env::var(PRESENT).ok()?).ok()
    }

    /// Whether what is in use at an address may be its own metrics.
    pub(crate) fn has_metrics_at(&self, address: SocketAddr) -> bool {
        let overlaps = |own: SocketAddr| own.ip() == address.ip() || own.ip().is_unspecified() || address.ip().is_unspecified();
        self.metrics.is_some_and(|own| own.port() == address.port() && overlaps(own))
    }
}

/// Where it is in the environment.
pub const VARIABLE: &str = "HEADPOND_SUCCEEDS";
/// The device number of /dev/fuse.
const FUSE: (u32, u32) = (10, 229);

/// What is left to a successor.
#[derive(Debug, Default)]
pub struct Estate {
    /// When no more requests were taken, in nanoseconds of the monotonic clock; 0: nobody was there before.
    since: u64,
    /// Volumes that are loop devices over FUSE, by their ids: a number or a name may be another volume's by the time that they are
    /// taken over.
    pub fuse: BTreeMap<[u8; 16], Left>,
}

#[derive(Serialize, Deserialize)]
struct Text {
    /// The process that it is meant for: its own children are not.
    process: u32,
    since: u64,
    fuse: Vec<LeftText>,
}

/// A [`Left`] in the environment.
#[derive(Serialize, Deserialize)]
struct LeftText {
    volume: [u8; 16],
    mount: i32,
    device: u32,
    file: OsString,
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
        let text = |(volume, left): (&[u8; 16], &Left)| LeftText {
            volume: *volume,
            mount: left.mount.as_raw_fd(),
            device: left.device,
            file: left.file.clone().into_os_string(),
        };
        let fuse = self.fuse.iter().map(text).collect();
        let text = Text { process: std::process::id(), since: self.since, fuse };
        Ok(serde_json::to_string(&text)?)
    }

    /// What this process was left by the program that it ran before, if it was left anything. To be called once, at the start.
    pub fn inherit() -> Estate {
        let text = std::env::var(VARIABLE).ok().and_then(|text| serde_json::from_str::<Text>(&text).ok());
        let Some(text) = text.filter(|text| text.process == std::process::id()) else { return Estate::default() };
        silence::inherit();
        let mut estate = Estate { since: text.since, fuse: BTreeMap::new() };
        for LeftText { volume, mount, device, file } in text.fuse {
            if !is_fuse(mount) {
                continue;
            }
            // SAFETY: it is open, as was just seen, and of the kind that it should be. Nothing of this program has opened
            // it: this is called before anything else is opened, and once. The environment names each descriptor once.
            let mount = unsafe { OwnedFd::from_raw_fd(mount) };
            let _ = fcntl_setfd(&mount, FdFlags::CLOEXEC);
            estate.fuse.insert(volume, Left { mount, device, file: file.into() });
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_is_known_by_what_it_says_of_itself_and_no_other_text_is_taken_for_that() {
        assert_eq!(introduced(&introduction()).as_deref(), Ok(env!("CARGO_PKG_VERSION")));
        assert_eq!(introduced("headpond 1.2.3-rc1 takes over by protocol 2\n").as_deref(), Ok("1.2.3-rc1"));
        for text in [
            "",
            "9.9",
            "headpond",
            "headpond 1.2.3",
            "headpond x takes over by protocol 2",
            "headpond 1.2 takes over by protocol 2",
        ] {
            assert!(introduced(text).is_err_and(|what| what.contains("is no Headpond")), "{text}");
        }
        let newer = introduced("headpond 2.0.0 takes over by protocol 3").unwrap_err();
        assert!(newer.contains("Headpond 2.0.0, which takes over by protocol 3"), "{newer}");
    }
}
