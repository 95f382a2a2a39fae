//! The front end for kernels with ublk (Linux 6.5 and later): a volume as `/dev/ublkbN`.
//!
//! A request goes from the block layer to whichever thread attends to one of the device's queues, which copies a write's payload
//! and hands it to the volume; the answer goes back to that thread, which copies a read's payload and tells the kernel. That is a
//! thread of the queue's own ([`queue`]), or where there are few processors, the one that serves the volume ([`attendants`]).
//! Flushes, forced unit access, discards and zeroing arrive as what they are.
//!
//! # Stopping
//! A device that nobody has open is removed ([`Device::stop`]). One in use is not, nor one that cannot be flushed in time; at the
//! daemon's end it is left to the kernel ([`Device::freeze`]), which holds back its I/O until a daemon takes it over.
//!
//! # When the daemon is killed
//! The device stays, with what is mounted on it. What was not answered, and what comes, waits in the kernel. The next
//! [`Device::start`] finds the device by a mark that the kernel keeps with it, takes it over, and is asked all that
//! again: a write may so be done twice, which is the same as once. No client sees an error, only a pause.
//!
//! # What the kernel asks of a daemon
//! - Each queue has one thread, which alone may talk to the kernel about it (`attending.rs`).
//! - Each request is answered exactly once ([`tags`]).
//! - A daemon must not wait for its own device: its threads are marked as I/O flushers, its memory is locked, what is mounted on
//!   its devices is not mounted in its namespace (`namespace`), and when it has one of them flushed a child waits (`flushing`).
//! - On Linux 6.12 a request in *every* place of a queue hides the daemon's death until one of them times out. So the
//!   block layer is told to use one place fewer than there are; and, since it may be told otherwise by whoever changes the
//!   I/O scheduler, to time requests out soon, which does nothing to a daemon that lives.

pub mod abi;
pub mod attendants;
mod attending;
pub mod attributes;
mod control;
pub mod device;
mod flushing;
mod kernel_users;
mod lending;
mod namespace;
pub mod queue;
pub mod tags;

use std::fmt;
use std::io;
use std::process::{Command, Stdio};

use rustix::mm::{MlockAllFlags, mlockall};
use rustix::process::{Resource, getrlimit};

pub use attributes::{Shape, mark};
pub use device::{Device, Options, give_up, is_ours, left_over, mark_of, remove, waiting};
pub use queue::{Backend, Queues};
pub use tags::Completion;

use abi::feature;
use control::Control;

/// What went wrong with a device, and what to do next.
#[derive(Debug)]
pub struct Error {
    wrong: String,
    next: String,
    in_use: bool,
}

impl Error {
    fn new(wrong: impl Into<String>, next: impl Into<String>) -> Error {
        Error { wrong: wrong.into(), next: next.into(), in_use: false }
    }

    fn in_use(device: &str, by: &str) -> Error {
        Error {
            wrong: format!("{device} is in use: {by}"),
            next: "Unmount or close it there, then try again".into(),
            in_use: true,
        }
    }

    /// Whether it is only that somebody uses the device.
    pub fn is_in_use(&self) -> bool {
        self.in_use
    }

    /// What to do next.
    pub fn next(&self) -> &str {
        &self.next
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.wrong)
    }
}

impl std::error::Error for Error {}

/// Whether this host has ublk with all that is needed, loading the driver if it is not there; else why not.
pub fn available() -> Result<(), String> {
    let mut control = match Control::open() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            load_driver();
            Control::open()
        }
        result => result,
    }
    .map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => {
            "there is no /dev/ublk-control: the kernel has no ublk, or `modprobe ublk_drv` is to be run".into()
        }
        io::ErrorKind::PermissionDenied => "/dev/ublk-control may not be opened: it takes root".to_owned(),
        _ => format!("/dev/ublk-control cannot be used: {error}"),
    })?;
    let features = control.features().map_err(|error| {
        format!("the kernel does not say what its ublk can do ({error}): Linux 6.5 is the first that is new enough")
    })?;
    let missing = missing(features);
    if missing.is_empty() {
        Ok(())
    } else {
        Err(format!("the kernel's ublk has no {missing}: Linux 6.5 is the first that is new enough"))
    }
}

/// Whether the driver is there and answers this process: else nobody knows whose the devices are that it has.
pub fn can_be_asked() -> bool {
    Control::open().is_ok_and(|mut control| control.features().is_ok())
}

/// What of the needed a driver lacks, in words.
fn missing(features: u64) -> String {
    let needed = [
        (feature::USER_COPY, "copying by the daemon"),
        (feature::USER_RECOVERY, "takeover"),
        (feature::USER_RECOVERY_REISSUE, "repeated requests"),
        (feature::CMD_IOCTL_ENCODE, "encoded commands"),
    ];
    let missing: Vec<&str> = needed.iter().filter(|(bit, _)| features & bit == 0).map(|(_, name)| *name).collect();
    missing.join(", ")
}

/// Distributions ship ublk as a module that nothing loads by itself.
fn load_driver() {
    if rustix::process::geteuid().is_root() {
        let mut modprobe = Command::new("modprobe");
        modprobe.args(["-q", "ublk_drv"]).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        if let Err(error) = modprobe.status() {
            tracing::debug!("modprobe could not be run: {error}");
        }
    }
}

/// Makes this process one that never waits for its own devices: to be called before it has other threads, of which the log has one. What is to be said
/// of that.
pub fn prepare_process() -> Vec<String> {
    let mut said = Vec::new();
    if let Err(error) = namespace::leave() {
        said.push(format!(
            "no mount namespace of our own: {error}; if the daemon is the last process in its namespace and is killed, it may \
             hang unmounting its own volume. Give it CAP_SYS_ADMIN"
        ));
    }
    // Under a limit, what is allocated later would fail, and not only stay unlocked.
    let locked = match may_lock_all() {
        true => mlockall(MlockAllFlags::CURRENT | MlockAllFlags::FUTURE).map_err(io::Error::from),
        false => Err(io::Error::other("there is a limit of locked memory")),
    };
    if let Err(error) = locked {
        said.push(format!(
            "memory is not locked: {error}; when memory is short, the daemon may wait for its own device. Give it CAP_IPC_LOCK, or \
             take its limit of locked memory away"
        ));
    }
    said
}

fn may_lock_all() -> bool {
    getrlimit(Resource::Memlock).current.is_none()
        || std::fs::read_to_string("/proc/self/status").is_ok_and(|status| has_ipc_lock(&status))
}

/// Whether a process with this `/proc/PID/status` may lock memory beyond its limit.
fn has_ipc_lock(status: &str) -> bool {
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    effective.and_then(|bits| u64::from_str_radix(bits.trim(), 16).ok()).is_some_and(|bits| bits & 1 << 14 != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_driver_lacks_is_named() {
        assert_eq!(missing(0x1fe), "", "Linux 6.12");
        assert_eq!(missing(0xfffff), "", "Linux 7.2");
        assert_eq!(missing(0x1fe & !feature::USER_COPY), "copying by the daemon");
        assert_eq!(missing(0x1f), "copying by the daemon, encoded commands");
    }

    #[test]
    fn locking_beyond_the_limit_takes_the_capability() {
        assert!(has_ipc_lock("Name:\tx\nCapEff:\t000001ffffffffff\n"));
        assert!(!has_ipc_lock("CapPrm:\t000001ffffffffff\nCapEff:\t000001ffffffbfff\n"));
        assert!(!has_ipc_lock(""));
    }
}
