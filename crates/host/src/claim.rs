//! Exclusive claims on devices and files, taken before a byte is read and held by what carries the I/O.
//!
//! A block device is opened `O_EXCL`, which the kernel refuses while it is mounted, part of an array, or
//! claimed. A file carries an OFD write lock. Both belong to the open file description and end with it, and
//! each request in the kernel holds a reference to that description. So a claim is also the barrier behind a
//! daemon that was killed: it is granted when the last write of the dead one has landed, and not before.
//! `tests/devices.rs` shows this with io_uring writes in flight at `SIGKILL`, through plain and through
//! registered files, for both kinds of claim: on Linux 6.18 the claim outlived the process, already reaped,
//! by the seconds that its throttled writes still took. (Writes that the kernel had not begun are cancelled.)
//!
//! A claim keeps out whoever asks for one, not a program that writes to the raw device without asking.
//!
//! `unsafe` because OFD locks have no safe wrapper in the libraries used here.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::FileType;

use crate::device::facts::{self, Facts};

/// How long to wait before asking for a held device again.
const RETRY: Duration = Duration::from_millis(20);

/// A device or file that is ours alone until this value is dropped and all I/O through it has ended.
#[derive(Debug)]
pub struct Claim {
    file: File,
    path: PathBuf,
    facts: Facts,
}

/// Why a device could not be claimed.
#[derive(Debug, thiserror::Error)]
pub enum ClaimError {
    /// Somebody else has it.
    #[error(
        "{path} is in use: {holder}. Nothing was read or written, after {} ms of waiting. \
         Release it there, or name another device",
        waited.as_millis()
    )]
    Held {
        /// The device.
        path: PathBuf,
        /// Who holds it, in words.
        holder: String,
        /// How long the claim was tried.
        waited: Duration,
    },
    /// It cannot be opened for direct reading and writing.
    #[error(
        "{path} cannot be opened for direct reading and writing: {source}. \
         Check that it exists, that you may write to it, and that its file system has direct I/O"
    )]
    Open {
        /// The device.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
    /// It is open, but is no device of use or does not tell its size and limits.
    #[error("{path} cannot be used: {source}. Name a block device, or a file on a local file system")]
    Unfit {
        /// The device.
        path: PathBuf,
        /// What is wrong.
        source: io::Error,
    },
}

impl Claim {
    /// Claims a block device or a file, waiting up to `patience` for whoever holds it to let go.
    ///
    /// Wait for as long as the dead predecessor's requests may take, if there may be one.
    pub fn take(path: &Path, patience: Duration) -> Result<Claim, ClaimError> {
        Claim::take_for(path, Purpose::Write, patience)
    }

    /// Claims it for reading alone: nothing can be written by this description, and who writes is kept out. Of a file several
    /// readers may have such a claim at once.
    pub fn take_to_read(path: &Path, patience: Duration) -> Result<Claim, ClaimError> {
        Claim::take_for(path, Purpose::Read, patience)
    }

    fn take_for(path: &Path, purpose: Purpose, patience: Duration) -> Result<Claim, ClaimError> {
        let open_error = |source| ClaimError::Open { path: path.to_owned(), source };
        let unfit = |source| ClaimError::Unfit { path: path.to_owned(), source };
        let kind = facts::kind(&facts::look(path).map_err(open_error)?);
        if !matches!(kind, FileType::BlockDevice | FileType::RegularFile) {
            // Opening it might already do something: a FIFO blocks, a tape rewinds.
            let what = "neither a block device nor a regular file";
            return Err(unfit(io::Error::new(io::ErrorKind::InvalidInput, what)));
        }
        let start = Instant::now();
        loop {
            match try_once(path, kind == FileType::BlockDevice, purpose) {
                Ok(Some(file)) => {
                    let facts = Facts::of(&file).map_err(unfit)?;
                    return Ok(Claim { file, path: path.to_owned(), facts });
                }
                Ok(None) if start.elapsed() < patience => thread::sleep(RETRY),
                Ok(None) => {
                    return Err(ClaimError::Held { path: path.to_owned(), holder: holder(path), waited: start.elapsed() });
                }
                Err(source) => return Err(open_error(source)),
            }
        }
    }

    /// Facts read when the claim was granted.
    pub fn facts(&self) -> &Facts {
        &self.facts
    }

    /// Its size as it is now, in whole logical blocks.
    pub fn measure(&self) -> io::Result<u64> {
        Ok(Facts::of(&self.file)?.size)
    }

    /// The path by which it was claimed.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl AsFd for Claim {
    /// The description that holds the claim. What does I/O through it, or through duplicates of it, keeps the claim.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

/// What a claim is for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Purpose {
    Read,
    Write,
}

/// Opens and claims, or `None` if somebody holds it.
fn try_once(path: &Path, block: bool, purpose: Purpose) -> io::Result<Option<File>> {
    let exclusive = if block { libc::O_EXCL } else { 0 };
    let mut options = OpenOptions::new();
    options.read(true).write(purpose == Purpose::Write).custom_flags(libc::O_DIRECT | libc::O_CLOEXEC | exclusive);
    match options.open(path) {
        Ok(file) if block || lock(&file, purpose)? => Ok(Some(file)),
        Ok(_) => Ok(None),
        Err(error) if error.raw_os_error() == Some(libc::EBUSY) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Locks the whole file; `false` if another description holds a lock on it that keeps this one out.
fn lock(file: &File, purpose: Purpose) -> io::Result<bool> {
    let kind = if purpose == Purpose::Write { libc::F_WRLCK } else { libc::F_RDLCK };
    let whole =
        libc::flock { l_type: kind as libc::c_short, l_whence: libc::SEEK_SET as libc::c_short, l_start: 0, l_len: 0, l_pid: 0 };
    // SAFETY: the descriptor is open, and the call only reads `whole`, which outlives it.
    if unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLK, &whole) } == 0 {
        return Ok(true);
    }
    let error = io::Error::last_os_error();
    match error.raw_os_error() {
        Some(libc::EAGAIN | libc::EACCES) => Ok(false),
        _ => Err(error),
    }
}

/// Who holds a device, in words. A lock of this kind names no process, so this is what `/proc` can tell.
fn holder(path: &Path) -> String {
    let Ok(it) = facts::look(path) else {
        return "by whom is not known".into();
    };
    let (block, number) = (facts::kind(&it) == FileType::BlockDevice, facts::number(&it));
    if block {
        if let Some(point) = facts::mounted(number) {
            return format!("it, or a partition of it, is mounted at {}", point.display());
        }
        let above = fs::read_dir(facts::sysfs(number).join("holders"));
        if let Some(above) = above.into_iter().flatten().flatten().next() {
            return format!("it is part of {}", above.file_name().display());
        }
    }
    // Whoever else has a file open somewhere is not to be waited for.
    let same = |file: &Path| {
        facts::which(file).is_ok_and(|other| match block {
            true => facts::kind(&other) == FileType::BlockDevice && facts::number(&other) == number,
            false => (facts::number_below(&other), other.stx_ino) == (facts::number_below(&it), it.stx_ino),
        })
    };
    for process in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Ok(number) = process.file_name().display().to_string().parse::<u32>() else {
            continue;
        };
        let Ok(files) = fs::read_dir(process.path().join("fd")) else {
            continue;
        };
        if files.flatten().any(|file| same(&file.path())) {
            let name = fs::read_to_string(process.path().join("comm")).unwrap_or_default();
            return format!("process {number} ({}) has it open", name.trim());
        }
    }
    "no process that can be seen here has it open. Perhaps one that was killed is still finishing its writes; \
     then trying again later helps"
        .into()
}
