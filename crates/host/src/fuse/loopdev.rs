//! Loop devices: binding a file to one, its limits, and those that a dead daemon left.

use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{AtFlags, FileType, Mode, OFlags, StatxFlags};
use rustix::io::Errno;
use rustix::ioctl;

use super::Error;

const LOOP_CONFIGURE: ioctl::Opcode = 0x4c0a;
const LOOP_CLR_FD: ioctl::Opcode = 0x4c01;
const LOOP_SET_STATUS64: ioctl::Opcode = 0x4c04;
const LOOP_GET_STATUS64: ioctl::Opcode = 0x4c05;
const LOOP_SET_CAPACITY: ioctl::Opcode = 0x4c07;
const LOOP_CTL_GET_FREE: ioctl::Opcode = 0x4c82;
const LO_FLAGS_READ_ONLY: u32 = 1;
const LO_FLAGS_AUTOCLEAR: u32 = 4;
const LO_FLAGS_DIRECT_IO: u32 = 16;

/// How long a device may stay bound after it was told to let go: a probe by udev has it open for moments.
const PATIENCE: Duration = Duration::from_secs(2);

/// `struct loop_config` of `linux/loop.h`.
#[repr(C)]
#[derive(Debug)]
struct LoopConfig {
    fd: u32,
    block_size: u32,
    info: LoopInfo,
    reserved: [u64; 8],
}
const _: () = assert!(size_of::<LoopConfig>() == 304);

/// `struct loop_info64` of `linux/loop.h`.
#[repr(C)]
#[derive(Debug, Default)]
struct LoopInfo {
    /// Device, inode, rdevice, offset, size limit.
    unused: [u64; 5],
    number: u32,
    encrypt_type: u32,
    encrypt_key_size: u32,
    flags: u32,
    /// File name, names and keys of ciphers that are gone, and what is reserved.
    rest: [u64; 22],
}
const _: () = assert!(size_of::<LoopInfo>() == 232);

/// A loop device bound to a file; let go when dropped.
#[derive(Debug)]
pub struct LoopDevice {
    number: u32,
    file: PathBuf,
    bound: bool,
}

impl LoopDevice {
    /// Binds `file` to a free loop device that bypasses the page cache of the file.
    ///
    /// The kernel asks the file system about the file meanwhile: a FUSE server must be answering.
    pub fn bind(file: &Path, block_size: u32, read_only: bool) -> Result<LoopDevice, Error> {
        let control = open("/dev/loop-control".as_ref(), OFlags::RDWR)
            .map_err(|e| Error::new("cannot open /dev/loop-control (does the kernel have loop devices?)", e))?;
        let access = if read_only { OFlags::RDONLY } else { OFlags::RDWR };
        let backing = open(file, access | OFlags::DIRECT)
            .map_err(|e| Error::new(format!("cannot open {} for a loop device", file.display()), e))?;
        let flags = LO_FLAGS_DIRECT_IO | if read_only { LO_FLAGS_READ_ONLY } else { 0 };
        loop {
            // SAFETY: LOOP_CTL_GET_FREE takes no argument and touches no memory of ours.
            let number = unsafe { libc::ioctl(control.as_raw_fd(), LOOP_CTL_GET_FREE as _) };
            let Ok(number) = u32::try_from(number) else {
                return Err(Error::new("cannot get a free loop device", io::Error::last_os_error()));
            };
            let node = node(number)?;
            let device =
                open(&node, OFlags::RDWR).map_err(|e| Error::new(format!("cannot open loop device {}", node.display()), e))?;
            let config = LoopConfig {
                fd: backing.as_raw_fd() as u32,
                block_size,
                info: LoopInfo { flags, ..LoopInfo::default() },
                reserved: [0; 8],
            };
            // SAFETY: LOOP_CONFIGURE reads a `struct loop_config`, of which `LoopConfig` has the layout.
            let configured = unsafe { ioctl::ioctl(&device, ioctl::Setter::<LOOP_CONFIGURE, _>::new(config)) };
            match configured {
                Ok(()) => {}
                // Somebody else was quicker.
                Err(Errno::BUSY) => continue,
                Err(e) => {
                    let what = format!("cannot bind {} to {}", file.display(), node.display());
                    return Err(Error::new(what, e));
                }
            }
            drop(device);
            let bound = LoopDevice { number, file: file.to_owned(), bound: true };
            // The kernel drops the flag without a word if it cannot, and would cache everything twice.
            if read_trimmed(&attribute(number, "loop/dio")).as_deref() != Some("1") {
                let e = io::Error::from(Errno::OPNOTSUPP);
                return Err(Error::new(format!("{} cannot do direct I/O to {}", node.display(), file.display()), e));
            }
            return Ok(bound);
        }
    }

    /// One that is bound to `file` already, by another life of this process.
    pub fn adopt(number: u32, file: &Path) -> Result<LoopDevice, Error> {
        match is_bound_to(number, file) {
            true => Ok(LoopDevice { number, file: file.to_owned(), bound: true }),
            false => {
                let what = format!("/dev/loop{number} is not bound to {} any more; detach and attach the volume", file.display());
                Err(Error::invalid(what))
            }
        }
    }

    /// Leaves it bound: its number, and the file.
    pub fn leave(mut self) -> (u32, PathBuf) {
        self.bound = false;
        (self.number, std::mem::take(&mut self.file))
    }

    /// The device node, `/dev/loopN`.
    pub fn path(&self) -> PathBuf {
        PathBuf::from(format!("/dev/loop{}", self.number))
    }

    /// Sets a limit in `/sys/block/loopN/queue` and reads it back.
    pub fn set_limit(&self, name: &str, value: u32) -> Result<(), Error> {
        let path = attribute(self.number, &format!("queue/{name}"));
        let set = fs::write(&path, value.to_string()).and_then(|()| match read_trimmed(&path) {
            Some(now) if now == value.to_string() => Ok(()),
            now => Err(io::Error::other(format!("it reads {} afterwards", now.unwrap_or_default()))),
        });
        set.map_err(|e| Error::new(format!("cannot set {name} of {} to {value}", self.path().display()), e))
    }

    /// Its size in bytes.
    pub fn size(&self) -> u64 {
        let sectors = read_trimmed(&attribute(self.number, "size")).and_then(|text| text.parse::<u64>().ok());
        sectors.unwrap_or(0) * 512
    }

    /// Takes the size that the file has come to have, which is to be `size` bytes.
    ///
    /// The kernel asks the file system about the file meanwhile: a FUSE server must be answering.
    pub fn grow(&self, size: u64) -> Result<(), Error> {
        let failed = |what: &str| format!("cannot {what} of {}", self.path().display());
        // What the kernel knows of the file may be a second old, and is what the device goes by.
        rustix::fs::statx(rustix::fs::CWD, &self.file, AtFlags::STATX_FORCE_SYNC, StatxFlags::SIZE)
            .map_err(|e| Error::new(failed("look at the file"), e))?;
        let device = open(&node(self.number)?, OFlags::RDWR).map_err(|e| Error::new(failed("open the node"), e))?;
        // SAFETY: LOOP_SET_CAPACITY takes no argument and touches no memory of ours.
        unsafe { ioctl::ioctl(&device, ioctl::NoArg::<LOOP_SET_CAPACITY>::new()) }
            .map_err(|e| Error::new(failed("change the size"), e))?;
        match self.size() {
            now if now == size => Ok(()),
            now => Err(Error::new(failed("change the size"), io::Error::other(format!("it has {now} bytes afterwards")))),
        }
    }

    /// Lets go of the file, unless the device is mounted, or open for longer than moments: then it stays as it is.
    pub fn detach(&mut self) -> Result<(), Error> {
        if !self.bound {
            return Ok(());
        }
        match detach(self.number, &self.file, OFlags::EXCL) {
            Err(e) if e.is_in_use() && keep(self.number, &self.file)? => Err(e),
            Err(e) if !e.is_in_use() => Err(e),
            _ => {
                self.bound = false;
                Ok(())
            }
        }
    }

    /// Lets go of the file, even if the device is in use: then when its last user closes it, and this fails.
    pub fn release(&mut self) -> Result<(), Error> {
        match std::mem::take(&mut self.bound) {
            true => detach(self.number, &self.file, OFlags::empty()),
            false => Ok(()),
        }
    }
}

impl Drop for LoopDevice {
    fn drop(&mut self) {
        if let Err(e) = self.release() {
            tracing::warn!("{e}. Look at `lsblk` and `findmnt` for what was left, and unmount it");
        }
    }
}

/// Lets go of all loop devices bound to `file`, also those in use, whose users get I/O errors anyway.
///
/// Only for a file whose daemon is dead. Returns what could not be done at once: a device that is in use
/// goes when its last user closes it. The file is compared by path, so this comes before the dead mount is
/// removed, which cuts the path short.
pub fn detach_left_over(file: &Path) -> Vec<Error> {
    let devices = fs::read_dir("/sys/block").into_iter().flatten().flatten();
    devices
        .filter_map(|entry| entry.file_name().to_str()?.strip_prefix("loop")?.parse().ok())
        .filter(|number| is_bound_to(*number, file))
        .filter_map(|number| detach(number, file, OFlags::empty()).err())
        .collect()
}

fn detach(number: u32, file: &Path, exclusive: OFlags) -> Result<(), Error> {
    let node = node(number)?;
    let device = open(&node, OFlags::RDONLY | exclusive).map_err(|e| match e {
        Errno::BUSY => Error::in_use(&node),
        e => Error::new(format!("cannot open loop device {}", node.display()), e),
    })?;
    // The device may have been let go, and taken by somebody else for another file.
    if !is_bound_to(number, file) {
        return Ok(());
    }
    // SAFETY: LOOP_CLR_FD takes no argument and touches no memory of ours.
    match unsafe { ioctl::ioctl(device.as_fd(), ioctl::NoArg::<LOOP_CLR_FD>::new()) } {
        Ok(()) | Err(Errno::NXIO) => {}
        Err(e) => return Err(Error::new(format!("cannot detach {}", node.display()), e)),
    }
    // The kernel lets go when the last descriptor is closed, which need not be ours.
    drop(device);
    let since = Instant::now();
    while is_bound_to(number, file) {
        if since.elapsed() > PATIENCE {
            return Err(Error::in_use(&node));
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    Ok(())
}

/// Takes back from the kernel that the device is to let go of the file when its last user closes it, which is what it makes of being told
/// to let go of one that is open. Whether there was something left to keep.
fn keep(number: u32, file: &Path) -> Result<bool, Error> {
    let node = node(number)?;
    let failed = |e| {
        let device = node.display();
        let what = format!(
            "{device} is in use, and the kernel takes it away when its last user closes it, which could not be stopped. \
             What was written is safe; close it, then detach the volume and attach it again"
        );
        Error::new(what, e)
    };
    // Open here, it is taken away from nobody.
    let device = match open(&node, OFlags::RDONLY) {
        Ok(device) => device,
        Err(Errno::NXIO) => return Ok(false),
        Err(e) => return Err(failed(e)),
    };
    if !is_bound_to(number, file) {
        return Ok(false);
    }
    // SAFETY: LOOP_GET_STATUS64 fills a `struct loop_info64`, of which `LoopInfo` has the layout, and any bytes are one.
    let info = unsafe { ioctl::ioctl(&device, ioctl::Getter::<LOOP_GET_STATUS64, LoopInfo>::new()) };
    let mut info = match info {
        Ok(info) => info,
        Err(Errno::NXIO) => return Ok(false),
        Err(e) => return Err(failed(e)),
    };
    if info.flags & LO_FLAGS_AUTOCLEAR != 0 {
        info.flags &= !LO_FLAGS_AUTOCLEAR;
        // SAFETY: LOOP_SET_STATUS64 reads a `struct loop_info64`, which the setter owns meanwhile.
        unsafe { ioctl::ioctl(&device, ioctl::Setter::<LOOP_SET_STATUS64, LoopInfo>::new(info)) }.map_err(failed)?;
    }
    Ok(true)
}

fn is_bound_to(number: u32, file: &Path) -> bool {
    read_trimmed(&attribute(number, "loop/backing_file")).is_some_and(|bound| Path::new(&bound) == file)
}

/// The device node, made if nobody did (in a container, say).
fn node(number: u32) -> Result<PathBuf, Error> {
    let node = PathBuf::from(format!("/dev/loop{number}"));
    if node.exists() {
        return Ok(node);
    }
    // The minor number is a multiple of N if loop devices have partitions.
    let numbers = read_trimmed(&attribute(number, "dev")).unwrap_or_default();
    let minor = numbers.strip_prefix("7:").and_then(|minor| minor.parse().ok()).unwrap_or(number);
    let device = rustix::fs::makedev(7, minor);
    let mode = Mode::RUSR | Mode::WUSR;
    match rustix::fs::mknodat(rustix::fs::CWD, &node, FileType::BlockDevice, mode, device) {
        Ok(()) | Err(Errno::EXIST) => Ok(node),
        Err(e) => Err(Error::new(format!("cannot make the device node {}", node.display()), e)),
    }
}

fn open(path: &Path, flags: OFlags) -> rustix::io::Result<OwnedFd> {
    rustix::fs::open(path, flags | OFlags::CLOEXEC, Mode::empty())
}

fn attribute(number: u32, name: &str) -> PathBuf {
    PathBuf::from(format!("/sys/block/loop{number}/{name}"))
}

fn read_trimmed(path: &Path) -> Option<String> {
    // Only the line's end: a file's name may end with a space.
    fs::read_to_string(path).ok().map(|text| text.trim_end_matches('\n').to_owned())
}
