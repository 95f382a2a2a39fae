//! What is on a device: a pool's superblock, something of somebody else's, or nothing.

use std::io;
use std::ops::Range;
use std::os::fd::BorrowedFd;

use headpond_engine::create::newest_superblock;
use headpond_format::{DecodeError, Layout, SUPERBLOCK_BYTES, Superblock};

use super::signatures;
use crate::buf::HostBuf;

/// How much of each end of a device is looked at, and cleared when a pool is made of it. All signatures that are
/// known here, and all copies of our superblock, lie within.
pub const ENDS: u64 = 512 << 10;

/// What was found.
#[derive(Debug)]
pub enum Found {
    /// It belongs, or belonged, to a pool.
    Member(Box<Superblock>),
    /// It belongs to a pool of a newer format; the version or the feature bits.
    Newer(u64),
    /// It has a pool's superblocks, none of which is whole.
    Damaged(DecodeError),
    /// It holds something of this kind.
    Signature(&'static str),
    /// Nothing that is known here.
    Nothing,
}

/// Looks at a device of `size` bytes, opened for direct I/O.
pub fn probe(file: BorrowedFd<'_>, size: u64) -> io::Result<Found> {
    // A device of ours is not read any further: at a start clients may be waiting.
    let found = superblocks(file, size)?;
    if !matches!(found, Found::Nothing) {
        return Ok(found);
    }
    let (page, tail) = (size / 4096 * 4096, tail_of(size));
    let head = read(file, 0, ENDS.min(page))?;
    let end = read(file, tail.start, tail.end - tail.start)?;
    Ok(signatures::find(head.as_slice(), end.as_slice(), tail.start, size).map_or(Found::Nothing, Found::Signature))
}

/// What of the end of a device of `size` bytes is looked at, and cleared: to its last sector, where the backup of a partition table is.
pub fn tail_of(size: u64) -> Range<u64> {
    (size / 4096 * 4096).saturating_sub(ENDS)..size
}

/// As [`probe`], but looks for superblocks alone: whatever else there is counts as [`Found::Nothing`].
pub fn superblocks(file: BorrowedFd<'_>, size: u64) -> io::Result<Found> {
    let page = size / 4096 * 4096;
    let two_at = |at: u64| read(file, at, (2 * SUPERBLOCK_BYTES).min(page - at));
    let (head, tail) = (two_at(0)?, two_at(Layout::tail_of(size))?);
    let slots: Vec<&[u8]> = [&head, &tail].iter().flat_map(|two| two.as_slice().chunks(SUPERBLOCK_BYTES as usize)).collect();
    Ok(match newest_superblock(&slots) {
        Ok(superblock) => Found::Member(Box::new(superblock)),
        Err(DecodeError::Newer(version)) => Found::Newer(version),
        // Nothing so short has ever been a cache device.
        Err(DecodeError::Foreign | DecodeError::Short) => Found::Nothing,
        Err(error) => Found::Damaged(error),
    })
}

/// Reads whole blocks of the device by direct I/O.
pub fn read(file: BorrowedFd<'_>, offset: u64, len: u64) -> io::Result<HostBuf> {
    HostBuf::try_filled_by(len as usize, |to| {
        let mut done = 0;
        while done < to.len() {
            match rustix::io::pread(file, &mut to[done..], offset + done as u64) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(more) => done += more,
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    })
}

/// Writes whole blocks of the device by direct I/O.
pub fn write(file: BorrowedFd<'_>, offset: u64, bytes: &HostBuf) -> io::Result<()> {
    let (bytes, mut done) = (bytes.as_slice(), 0);
    while done < bytes.len() {
        match rustix::io::pwrite(file, &bytes[done..], offset + done as u64) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(more) => done += more,
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}
