//! The front end for kernels without ublk: a FUSE file system with one file, bound to a loop device.
//!
//! A request goes from `/dev/loopN` through the loop driver, with direct I/O, to the FUSE file, from there
//! to a thread of ours and to the volume; the answer goes the same way back. Nothing is cached on the way.
//! A loop device's flush arrives as FSYNC, its discard as FALLOCATE with a hole, its zeroes as FALLOCATE
//! of zeroes, or as a hole too, if whoever asked allows that. So a hole must read as zeroes: what of it is whole
//! blocks of the volume's grid is discarded, the rest written as zeroes (see [`protocol::Hole`]). It has no forced
//! unit access: the kernel makes that a write and a flush.
//!
//! # Stopping
//! The loop device lets go of the file, the file system is unmounted, the threads end ([`Export::stop`]).
//! A device in use is not let go, and goes on being served.
//!
//! # When another program goes on
//! The mount and the loop device stay, and what is asked of them waits ([`Export::leave`]) for whoever serves that very volume
//! next ([`Export::adopt`]). They are known by the volume's id: a number, and a name, may be another volume's by then. Left over
//! by a volume that is no more, they end with I/O errors ([`Left::end`]).
//!
//! # When the daemon is killed
//! With the last descriptor of `/dev/fuse` the kernel aborts the connection. Nobody hangs: what is in flight
//! and what comes later on the loop device ends with an I/O error. There remain a mount point that answers
//! ENOTCONN and a loop device bound to the file in it, perhaps with a file system mounted on it, which its
//! owner has to unmount. The next [`Export::start`] with the same mount point first tells such loop devices
//! to let go (one in use does when its last user closes it, and that is a warning), then removes the dead
//! mount, and then makes a fresh mount and a fresh loop device, perhaps with another number.
//!
//! A process that waits for its own file system is not killable, so the daemon has the file open only while
//! the loop device is being bound. Killed in just these moments it may stay for ever; `umount -f` of the
//! mount point ends it. Nor may the daemon use a file system on its own volume.

pub mod export;
pub mod loopdev;
pub mod mount;
pub mod protocol;
pub mod server;

use std::fmt;
use std::io;
use std::path::Path;

pub use export::{Export, Left, Options};
pub use server::{Backend, Completion, mark_io_flusher};

/// What went wrong with a mount or a loop device.
#[derive(Debug)]
pub struct Error {
    what: String,
    source: io::Error,
}

impl Error {
    fn new(what: impl Into<String>, source: impl Into<io::Error>) -> Self {
        Error { what: what.into(), source: source.into() }
    }

    fn invalid(what: String) -> Self {
        Error { what, source: io::ErrorKind::InvalidInput.into() }
    }

    fn in_use(device: &Path) -> Self {
        let device = device.display();
        let what = format!("{device} is in use; unmount what is on it (see `lsblk {device}`), then try again");
        Error::new(what, rustix::io::Errno::BUSY)
    }

    /// Whether it is only that the device is in use.
    pub fn is_in_use(&self) -> bool {
        self.source.kind() == io::ErrorKind::ResourceBusy
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.what, self.source)
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.source)
    }
}
