//! What devices are, without claiming or changing them.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::probe::{self, Found};
use crate::claim::{Claim, ClaimError};
use crate::device::facts::Facts;

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
    let listed = devices.iter().map(|path| Listed {
        path: path.clone(),
        found: look(path),
        // Taken and let go at once; nothing is written by it. What cannot be opened at all is not in use by that.
        in_use: matches!(Claim::take(path, Duration::ZERO), Err(ClaimError::Held { .. })),
    });
    listed.collect()
}

fn look(path: &Path) -> io::Result<(u64, Found)> {
    let (file, Facts { size, .. }) = open(path)?;
    Ok((size, probe::probe(file.as_fd(), size)?))
}

/// Opens a device to be looked at, whoever uses it.
pub(super) fn open(path: &Path) -> io::Result<(File, Facts)> {
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
