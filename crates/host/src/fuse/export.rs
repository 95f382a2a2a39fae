//! A volume as a loop device: mount, threads and loop device, started and stopped in the right order.

use std::fs;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::loopdev::{self, LoopDevice};
use super::mount::{self, Found, Mount};
use super::server::{Backend, Server};
use super::{Error, protocol};
use crate::names;

/// How a volume is to be served.
#[derive(Debug, Clone)]
pub struct Options {
    /// A directory of this volume's own, made if it is missing.
    pub mount_point: PathBuf,
    /// The name of the file in it.
    pub name: String,
    /// Logical block size of the device: 512 to 4096.
    pub block_size: u32,
    /// Whether writes are refused.
    pub read_only: bool,
    /// How many threads read requests.
    pub threads: usize,
    /// The device's read-ahead in KiB; left as it is if `None`.
    pub read_ahead_kb: Option<u32>,
    /// Whether a rotating disk is behind it.
    pub rotational: bool,
    /// Whether discards are taken. Where they are not, the kernel writes zeroes that may unmap itself: it asks for both in the same way.
    pub discards: bool,
    /// Where its grid of blocks begins, in sectors of 512 bytes.
    pub phase: u8,
}

impl Options {
    /// A writable volume with 512-byte blocks and two threads.
    pub fn new(mount_point: impl Into<PathBuf>, name: impl Into<String>) -> Self {
        Options {
            mount_point: mount_point.into(),
            name: name.into(),
            block_size: 512,
            read_only: false,
            threads: 2,
            read_ahead_kb: None,
            rotational: true,
            discards: true,
            phase: 0,
        }
    }
}

/// A volume being served at a loop device.
///
/// Dropped without [`Export::stop`], it goes away even if it is in use; its users get I/O errors.
#[derive(Debug)]
pub struct Export {
    /// All three, or none if it was left.
    served: Option<(Mount, Server, LoopDevice)>,
    warnings: Vec<Error>,
}

/// A volume that is mounted and bound to a loop device, and served by nobody: its requests wait in the kernel.
#[derive(Debug)]
pub struct Left {
    /// The descriptor of the mount.
    pub mount: OwnedFd,
    /// The number of the loop device.
    pub device: u32,
    /// The file in the mount that the loop device is bound to.
    pub file: PathBuf,
}

impl Left {
    /// Takes it away, in use or not: what waits there, and whatever its users ask from now on, ends with I/O errors.
    pub fn end(self) {
        let Left { mount, device, file } = self;
        let mut mount = Mount::adopt(point_of(&file), mount);
        match LoopDevice::adopt(device, &file) {
            Ok(mut device) => take_away(&mut mount, &mut device),
            // Somebody let go of it, and the number may be another's.
            Err(_) => mount.abort(),
        }
    }
}

impl Export {
    /// Clears up after a dead daemon, mounts, serves, and binds a loop device.
    pub fn start<B: Backend>(options: &Options, backend: Arc<B>) -> Result<Export, Error> {
        let Options { name, block_size, .. } = options;
        names::fits_a_path(name).map_err(|error| Error::invalid(error.to_string()))?;
        let size = backend.size();
        if size == 0 || !size.is_multiple_of(u64::from(*block_size)) {
            let what = format!("volume {name}: {size} bytes are not a number of blocks of {block_size} bytes");
            return Err(Error::invalid(what));
        }
        let mut warnings = Vec::new();
        let point = prepare(&options.mount_point, name, &mut warnings)?;
        let mut mount = Mount::new(&point)?;
        let mut server = Server::start(mount.device(), options, backend)?;
        let device = match LoopDevice::bind(&point.join(name), *block_size, options.read_only) {
            Ok(device) => device,
            Err(e) => {
                mount.unmount()?;
                server.leave();
                return Err(e);
            }
        };
        // No request needs to be cut in two on its way.
        let limits = [("rotational", Some(u32::from(options.rotational))), ("max_sectors_kb", Some(protocol::MAX_IO / 1024))];
        for (limit, value) in limits.into_iter().chain([("read_ahead_kb", options.read_ahead_kb)]) {
            warnings.extend(value.and_then(|value| device.set_limit(limit, value).err()));
        }
        Ok(Export { served: Some((mount, server, device)), warnings })
    }

    /// Goes on with a volume that an earlier life of this process has left.
    pub fn adopt<B: Backend>(options: &Options, left: Left, backend: Arc<B>) -> Result<Export, Error> {
        let mut mount = Mount::adopt(point_of(&left.file), left.mount);
        let mut device = LoopDevice::adopt(left.device, &left.file)?;
        let size = backend.size();
        let server = match Server::start(mount.device(), options, backend) {
            Ok(server) => server,
            Err(error) => {
                // What waits there is to be failed before anything waits for it here.
                take_away(&mut mount, &mut device);
                return Err(error);
            }
        };
        // That life may have ended between the volume's growing and the device's.
        let warnings = if device.size() < size { device.grow(size).err().into_iter().collect() } else { Vec::new() };
        Ok(Export { served: Some((mount, server, device)), warnings })
    }

    /// Takes no more requests, and leaves the mount and the loop device as they are. What was taken is answered as before;
    /// what was not waits for [`Export::adopt`].
    ///
    /// # Errors
    /// There is no descriptor to be had: it is served no more, and its users get errors.
    pub fn leave(mut self) -> std::io::Result<Left> {
        let (mount, mut server, device) = self.served.take().ok_or(std::io::ErrorKind::NotFound)?;
        server.leave();
        let mount = mount.leave()?;
        let (device, file) = device.leave();
        Ok(Left { mount, device, file })
    }

    /// The block device, `/dev/loopN`.
    pub fn device(&self) -> PathBuf {
        self.served.as_ref().map(|(_, _, device)| device.path()).unwrap_or_default()
    }

    /// What did not go as wished at the start, without keeping the volume from being served.
    pub fn warnings(&self) -> &[Error] {
        &self.warnings
    }

    /// The volume has grown to `size` bytes: the loop device shows it, and says so to whoever watches.
    ///
    /// # Errors
    /// The device keeps the size that it had.
    pub fn grow(&mut self, size: u64) -> Result<(), Error> {
        let Some((_, server, device)) = &self.served else { return Err(Error::invalid("the volume has no device".into())) };
        server.grow(size);
        device.grow(size)
    }

    /// Lets go of the loop device, unmounts, and waits for the threads.
    ///
    /// While the device is in use this fails and changes nothing; the volume is still served.
    /// All requests that the kernel sent before are answered first, so the backend must still be at work.
    pub fn stop(&mut self) -> Result<(), Error> {
        let Some((mount, server, device)) = &mut self.served else { return Ok(()) };
        device.detach()?;
        mount.unmount()?;
        server.leave();
        Ok(())
    }
}

impl Drop for Export {
    fn drop(&mut self) {
        let Some((mount, server, device)) = &mut self.served else { return };
        take_away(mount, device);
        server.leave();
    }
}

/// Ends a loop device and its mount, in use or not.
fn take_away(mount: &mut Mount, device: &mut LoopDevice) {
    // Once the connection is gone all I/O fails at once, so that nothing here waits for the backend.
    mount.abort();
    for result in [device.release(), mount.unmount()] {
        result.unwrap_or_else(|e| tracing::warn!("{e}. Look at `lsblk` and `findmnt` for what was left, and unmount it"));
    }
}

/// Where the file system with this file is mounted. It may be that nobody answers there: the file is not looked at.
fn point_of(file: &Path) -> &Path {
    file.parent().unwrap_or(file)
}

/// Removes what a dead daemon left at the mount point, and makes the directory. Returns its full path, as
/// the kernel shows it as the backing file of a loop device.
fn prepare(point: &Path, name: &str, warnings: &mut Vec<Error>) -> Result<PathBuf, Error> {
    let point = real(point)?;
    let failed = |e| Error::new(format!("cannot use {} as a mount point", point.display()), e);
    match mount::look(&point)? {
        Found::Live => {
            let what =
                format!("{} is already mounted; stop the daemon that serves it, or choose another directory", point.display());
            return Err(Error::invalid(what));
        }
        Found::Dead => {
            warnings.extend(loopdev::detach_left_over(&point.join(name)));
            mount::clear_dead(&point)?;
        }
        Found::Free => {}
    }
    match fs::create_dir(&point) {
        Err(e) if e.kind() != std::io::ErrorKind::AlreadyExists => Err(failed(e)),
        _ => Ok(point),
    }
}

/// The full path of a mount point, whose parent is made if it is missing. The mount point itself may be dead, and is not
/// looked at.
fn real(point: &Path) -> Result<PathBuf, Error> {
    let failed = |e| Error::new(format!("cannot use {} as a mount point", point.display()), e);
    let (Some(parent), Some(last)) = (point.parent(), point.file_name()) else {
        return Err(Error::invalid(format!("{} cannot be a mount point; name a directory", point.display())));
    };
    let parent = if parent.as_os_str().is_empty() { Path::new(".") } else { parent };
    fs::create_dir_all(parent).map_err(failed)?;
    Ok(fs::canonicalize(parent).map_err(failed)?.join(last))
}
