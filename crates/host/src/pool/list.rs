//! What devices are, without changing them, or having udev look at them anew.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::FileType;

use super::probe::{self, Found};
use crate::claim::{Claim, ClaimError};
use crate::device::facts::{self, Facts};
use crate::silence;

/// A device that was looked at.
#[derive(Debug)]
pub struct Listed {
    /// Its path.
    pub path: PathBuf,
    /// Its size, and what it holds.
    pub found: io::Result<(u64, Found)>,
    /// Whether somebody uses it now.
    pub in_use: bool,
}

impl Listed {
    /// Whether it was asked, and has not answered.
    pub fn is_silent(&self) -> bool {
        // One that the kernel says this of has a number.
        self.found.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::TimedOut && error.raw_os_error().is_none())
    }
}

/// Looks at devices, or at all block devices if none is named.
pub fn list(devices: &[PathBuf]) -> Vec<Listed> {
    let all: Vec<PathBuf>;
    let devices = match devices {
        [] => {
            all = block_devices();
            &all
        }
        named => named,
    };
    let answers = silence::all_answer(devices, silence::LIMIT);
    let listed = devices.iter().zip(answers).map(|(path, answers)| match answers {
        Ok(()) => Listed {
            path: path.clone(),
            found: look(path),
            // Taken and let go at once. What cannot be opened at all is not in use by that.
            in_use: matches!(Claim::take_to_read(path, Duration::ZERO), Err(ClaimError::Held { .. })),
        },
        // Who opened it might wait for ever.
        Err(silent) => Listed { path: path.clone(), found: Err(no_answer(silent)), in_use: false },
    });
    listed.collect()
}

fn no_answer(silent: Duration) -> io::Error {
    let what = format!("it does not answer, a read that was begun {:.1} s ago has not ended", silent.as_secs_f64());
    io::Error::new(io::ErrorKind::TimedOut, what)
}

fn look(path: &Path) -> io::Result<(u64, Found)> {
    let (file, Facts { size, .. }) = open(path)?;
    Ok((size, probe::probe(file.as_fd(), size)?))
}

/// Opens a device to be looked at, whoever uses it.
pub(super) fn open(path: &Path) -> io::Result<(File, Facts)> {
    let kind = facts::kind(&facts::look(path)?);
    if !matches!(kind, FileType::BlockDevice | FileType::RegularFile) {
        // Opening it might already do something: a FIFO blocks, a tape rewinds.
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is neither a block device nor a regular file"));
    }
    let file = OpenOptions::new().read(true).custom_flags(libc::O_DIRECT | libc::O_CLOEXEC).open(path)?;
    let facts = Facts::of(&file)?;
    Ok((file, facts))
}

fn block_devices() -> Vec<PathBuf> {
    let names = fs::read_dir("/sys/class/block").into_iter().flatten().flatten();
    let mut paths: Vec<PathBuf> = names.map(|entry| Path::new("/dev").join(entry.file_name())).collect();
    paths.sort();
    paths
}
