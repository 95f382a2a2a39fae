//! Where files are on the block device below their file system, as the file system tells (FIEMAP).

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::ops::Range;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use rustix::fs::{major, minor};
use rustix::ioctl;

use crate::device::facts::sysfs;

/// `_IOWR('f', 11, struct fiemap)` of linux/fs.h.
const FS_IOC_FIEMAP: ioctl::Opcode = ioctl::opcode::read_write::<Header>(b'f', 11);
/// What is in memory only is given a place first.
const FIEMAP_FLAG_SYNC: u32 = 1;
const FIEMAP_EXTENT_LAST: u32 = 0x1;
/// Its place is not known, not final, or holds the data in another form: UNKNOWN, DELALLOC, ENCODED, DATA_ENCRYPTED (which is
/// readable as it is, and set together with ENCODED), NOT_ALIGNED, DATA_INLINE, DATA_TAIL.
const WITHOUT_PLACE: u32 = 0x2 | 0x4 | 0x8 | 0x100 | 0x200 | 0x400;
/// Reserved, and never written.
const FIEMAP_EXTENT_UNWRITTEN: u32 = 0x800;
/// Extents asked for at once.
const AT_ONCE: usize = 256;

/// `struct fiemap` without its extents.
#[repr(C)]
struct Header {
    start: u64,
    length: u64,
    flags: u32,
    mapped: u32,
    count: u32,
    reserved: u32,
}

/// `struct fiemap_extent`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Extent {
    logical: u64,
    physical: u64,
    length: u64,
    reserved: [u64; 2],
    flags: u32,
    reserved2: [u32; 3],
}

#[repr(C)]
struct Asked {
    header: Header,
    extents: [Extent; AT_ONCE],
}

/// Why it is not known where a file is.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the messages say it")]
pub enum ExtentsError {
    #[error("{path} cannot be read: {source}. Nothing was changed. Name files that are there and may be read")]
    Read { path: PathBuf, source: io::Error },
    #[error(
        "The file system of {path} does not tell where its files are: {source}. Nothing was changed. Name ranges instead, as VOLUME:OFFSET+LENGTH"
    )]
    Untold { path: PathBuf, source: io::Error },
}

/// Files, by the block device that their file system is on.
#[derive(Debug, Default)]
pub struct Files {
    /// Runs of bytes by device number, as the files came.
    pub runs: BTreeMap<u64, Vec<Range<u64>>>,
    /// Files that were looked at.
    pub files: u64,
    /// Bytes of them that have no place of their own on a device: small files kept in their inodes, compressed ones.
    pub without_place: u64,
}

impl Files {
    /// Takes in a file, or all files of a folder that are on the same file system as it. Links are not followed.
    /// `reserved` says whether space that was reserved and never written counts.
    ///
    /// # Errors
    /// A file cannot be opened, or its file system tells nothing.
    pub fn add(&mut self, path: &Path, reserved: bool) -> Result<(), ExtentsError> {
        let failed = |source| ExtentsError::Read { path: path.to_owned(), source };
        let device = fs::symlink_metadata(path).map_err(failed)?.dev();
        let mut left = Vec::new();
        self.take(path, device, reserved, &mut left)?;
        while let Some(path) = left.pop() {
            match self.take(&path, device, reserved, &mut left) {
                // Gone since its folder was read.
                Err(ExtentsError::Read { source, .. }) if source.kind() == io::ErrorKind::NotFound => {}
                taken => taken?,
            }
        }
        Ok(())
    }

    /// Takes in a file, if its file system is on this device; of a folder, what is in it is `left` to be taken.
    fn take(&mut self, path: &Path, device: u64, reserved: bool, left: &mut Vec<PathBuf>) -> Result<(), ExtentsError> {
        let failed = |source| ExtentsError::Read { path: path.to_owned(), source };
        let is = fs::symlink_metadata(path).map_err(failed)?;
        if is.dev() != device {
            return Ok(());
        }
        if is.is_dir() {
            for entry in fs::read_dir(path).map_err(failed)? {
                left.push(entry.map_err(failed)?.path());
            }
        } else if is.is_file() {
            if is.blocks() > 0 {
                let file = File::open(path).map_err(failed)?;
                let runs = self.runs.entry(device).or_default();
                let untold = |source| ExtentsError::Untold { path: path.to_owned(), source };
                self.without_place += extents_of(&file, reserved, runs).map_err(untold)?;
            }
            self.files += 1;
        }
        Ok(())
    }
}

/// Adds where a file is on its device; the bytes that have no place there.
fn extents_of(file: &File, reserved: bool, runs: &mut Vec<Range<u64>>) -> io::Result<u64> {
    let none = Extent { logical: 0, physical: 0, length: 0, reserved: [0; 2], flags: 0, reserved2: [0; 3] };
    let (mut start, mut without_place) = (0, 0);
    loop {
        let mut asked = Box::new(Asked {
            header: Header {
                start,
                length: u64::MAX - start,
                flags: FIEMAP_FLAG_SYNC,
                mapped: 0,
                count: AT_ONCE as u32,
                reserved: 0,
            },
            extents: [none; AT_ONCE],
        });
        // SAFETY: the kernel reads the header and writes it and at most `count` extents behind it, for which there is room.
        unsafe { ioctl::ioctl(file, ioctl::Updater::<FS_IOC_FIEMAP, Asked>::new(&mut asked))? };
        let mapped = &asked.extents[..(asked.header.mapped as usize).min(AT_ONCE)];
        for extent in mapped {
            if extent.flags & WITHOUT_PLACE != 0 {
                without_place += extent.length;
            } else if reserved || extent.flags & FIEMAP_EXTENT_UNWRITTEN == 0 {
                runs.push(extent.physical..extent.physical.saturating_add(extent.length));
            }
            start = extent.logical.saturating_add(extent.length);
        }
        if mapped.last().is_none_or(|last| last.flags & FIEMAP_EXTENT_LAST != 0) {
            return Ok(without_place);
        }
    }
}

/// Runs in order, those that touch or overlap as one.
pub fn merged(mut runs: Vec<Range<u64>>) -> Vec<Range<u64>> {
    runs.retain(|run| !run.is_empty());
    runs.sort_unstable_by_key(|run| run.start);
    let mut whole: Vec<Range<u64>> = Vec::new();
    for run in runs {
        match whole.last_mut() {
            Some(last) if run.start <= last.end => last.end = last.end.max(run.end),
            _ => whole.push(run),
        }
    }
    whole
}

/// The number of the block device that a path is, or that the file system is on that it is in.
///
/// # Errors
/// It is not there.
pub fn device_of(path: &Path) -> io::Result<u64> {
    let is = fs::metadata(path)?;
    Ok(if is.file_type().is_block_device() { is.rdev() } else { is.dev() })
}

/// The whole block device that a block device is, or is a partition of, by number; and where it begins there, in bytes.
pub fn whole_device(device: u64) -> (u64, u64) {
    let folder = sysfs(device);
    let number = |path: &Path| fs::read_to_string(path).ok().and_then(|text| text.trim().parse::<u64>().ok());
    let Some(start) = number(&folder.join("start")).filter(|_| folder.join("partition").exists()) else { return (device, 0) };
    let parent = folder.canonicalize().ok().and_then(|folder| fs::read_to_string(folder.parent()?.join("dev")).ok());
    let parent = parent.and_then(|text| {
        let (major, minor) = text.trim().split_once(':')?;
        Some(rustix::fs::makedev(major.parse().ok()?, minor.parse().ok()?))
    });
    parent.map_or((device, 0), |parent| (parent, start * 512))
}

/// A device's number as the kernel writes it.
pub fn number(device: u64) -> String {
    format!("{}:{}", major(device), minor(device))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::iter;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::thread;
    use std::time::{Duration, Instant};

    #[test]
    fn runs_that_touch_are_one() {
        assert_eq!(merged(vec![40..50, 0..10, 10..20, 5..12, 60..60]), [0..20, 40..50]);
    }

    /// A preload of a folder in use failed when the last file of it, or a folder, went away at the wrong moment.
    #[test]
    fn what_vanishes_while_a_folder_is_looked_at_is_passed_over_and_what_was_named_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let (top, ends) = (folder.path().join("top"), AtomicBool::new(false));
        fs::create_dir(&top).unwrap();
        let gone = thread::scope(|scope| {
            scope.spawn(|| {
                while !ends.load(Ordering::Relaxed) {
                    fs::create_dir_all(top.join("sub/sub")).unwrap();
                    fs::remove_dir_all(top.join("sub")).unwrap();
                }
            });
            let until = Instant::now() + Duration::from_secs(3);
            let add = || Files::default().add(&top, true).err();
            let gone = iter::from_fn(|| (Instant::now() < until).then(add)).flatten().next();
            ends.store(true, Ordering::Relaxed);
            gone
        });
        assert!(gone.is_none(), "{gone:?}");
        let named = Files::default().add(&top.join("none"), true);
        assert!(matches!(named, Err(ExtentsError::Read { .. })), "{named:?}");
    }

    /// On a file system that does not tell (overlays, tmpfs), that is what is said.
    #[test]
    fn a_files_extents_are_as_long_as_it_is_or_its_file_system_says_that_it_does_not_tell() {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("sub")).unwrap();
        for name in ["a", "sub/b"] {
            File::create(folder.path().join(name)).unwrap().write_all(&vec![7; 300_000]).unwrap();
        }
        let mut found = Files::default();
        match found.add(folder.path(), true) {
            Ok(()) => {
                assert_eq!(found.files, 2);
                let bytes: u64 = found.runs.values().flatten().map(|run| run.end - run.start).sum();
                assert!(bytes + found.without_place >= 600_000, "{found:?}");
            }
            Err(error) => assert!(matches!(error, ExtentsError::Untold { .. }), "{error}"),
        }
        assert!(matches!(found.add(&folder.path().join("none"), true), Err(ExtentsError::Read { .. })));
    }
}
