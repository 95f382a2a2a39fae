//! The mount of a FUSE file system, and what a dead daemon left of one.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags};

use super::{Error, protocol};

/// What is at a mount point.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Found {
    /// A plain directory, or nothing.
    Free,
    /// The mount of a daemon that is dead: each access to it ends with ENOTCONN.
    Dead,
    /// A file system that answers.
    Live,
}

/// Looks at a mount point without changing anything.
pub fn look(point: &Path) -> Result<Found, Error> {
    let parent = point.join("..");
    match std::fs::symlink_metadata(point) {
        Err(e) if e.raw_os_error() == Some(Errno::NOTCONN.raw_os_error()) => Ok(Found::Dead),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(Found::Free),
        Err(e) => Err(Error::new(format!("cannot look at mount point {}", point.display()), e)),
        Ok(here) => match std::fs::symlink_metadata(&parent) {
            Ok(above) if above.dev() == here.dev() => Ok(Found::Free),
            Ok(_) => Ok(Found::Live),
            Err(e) => Err(Error::new(format!("cannot look at {}", parent.display()), e)),
        },
    }
}

/// Removes the mounts of dead daemons from a mount point; [`look`] found them dead.
pub fn clear_dead(point: &Path) -> Result<(), Error> {
    while look(point)? == Found::Dead {
        // Lazily: whoever still has files open there keeps a file system that only returns errors.
        rustix::mount::unmount(point, UnmountFlags::DETACH)
            .map_err(|e| Error::new(format!("cannot unmount the dead file system at {}", point.display()), e))?;
    }
    Ok(())
}

/// A mounted file system; unmounted when dropped.
#[derive(Debug)]
pub struct Mount {
    point: PathBuf,
    device: OwnedFd,
    mounted: bool,
}

impl Mount {
    /// Mounts at an existing directory. Requests can be read from [`Mount::device`] at once.
    pub fn new(point: &Path) -> Result<Mount, Error> {
        let device = rustix::fs::open("/dev/fuse", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())
            .map_err(|e| Error::new("cannot open /dev/fuse (does the kernel have FUSE, is this root?)", e))?;
        // The kernel checks permissions, against a file that belongs to root.
        let options = format!(
            "fd={},rootmode=40000,user_id=0,group_id=0,default_permissions,max_read={}",
            device.as_raw_fd(),
            protocol::MAX_IO
        );
        let options = CString::new(options).expect("there is no zero byte in it");
        let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC | MountFlags::NOATIME;
        rustix::mount::mount("headpond", point, "fuse.headpond", flags, options.as_c_str())
            .map_err(|e| Error::new(format!("cannot mount at {} (is this root?)", point.display()), e))?;
        Ok(Mount { point: point.to_owned(), device, mounted: true })
    }

    /// One that another life of this process had mounted, and left.
    pub fn adopt(point: &Path, device: OwnedFd) -> Mount {
        Mount { point: point.to_owned(), device, mounted: true }
    }

    /// Leaves it mounted, for whoever has the descriptor.
    pub fn leave(mut self) -> io::Result<OwnedFd> {
        let device = self.device.try_clone()?;
        self.mounted = false;
        Ok(device)
    }

    /// The descriptor from which the kernel's requests are read.
    pub fn device(&self) -> BorrowedFd<'_> {
        self.device.as_fd()
    }

    /// Ends the connection: all I/O fails from now on, and reading from the descriptor ends with ENODEV.
    pub fn abort(&self) {
        // Tried as a side effect, the unmount itself mostly fails, which is all right: a path into the
        // mount is what tells our loop device from others.
        let _ = rustix::mount::unmount(&self.point, UnmountFlags::FORCE | UnmountFlags::NOFOLLOW);
    }

    /// Unmounts, whoever still has files open there: what they do from now on fails.
    pub fn unmount(&mut self) -> Result<(), Error> {
        if self.mounted {
            let flags = UnmountFlags::FORCE | UnmountFlags::DETACH | UnmountFlags::NOFOLLOW;
            match rustix::mount::unmount(&self.point, flags) {
                // INVAL: it is not mounted any more.
                Ok(()) | Err(Errno::INVAL) => self.mounted = false,
                Err(e) => {
                    return Err(Error::new(format!("cannot unmount {}", self.point.display()), e));
                }
            }
        }
        Ok(())
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        if let Err(e) = self.unmount() {
            tracing::warn!("{e}. Look at `lsblk` and `findmnt` for what was left, and unmount it");
        }
    }
}
