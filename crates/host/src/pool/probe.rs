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
///
/// # Errors
/// The newest one may be where it cannot be read, or all that could be read is something else.
pub fn superblocks(file: BorrowedFd<'_>, size: u64) -> io::Result<Found> {
    let slots = slots(file, size).map(|(_, bytes)| bytes);
    let found = found_in(&slots);
    let may_be_old = may_be_old(slots.each_ref().map(Result::is_err));
    let may_be_one = !matches!(found, Found::Member(_) | Found::Newer(_));
    match slots.into_iter().find_map(Result::err) {
        Some(error) if may_be_old || may_be_one => Err(error),
        _ => Ok(found),
    }
}

/// Whether what can be read of the four slots may be older than what cannot. One superblock is written to slots 0 and 2, the next to 1 and 3: of what
/// one bad sector hides there is another copy, but an older superblock is not to be taken for one that both its sectors hide.
pub fn may_be_old(is_unreadable: [bool; 4]) -> bool {
    let [first, second, third, fourth] = is_unreadable;
    first && third || second && fourth
}

/// The same of a device that is no pool's as far as anybody knows: of that a sector that cannot be read is no sign.
///
/// # Errors
/// Nothing can be read.
pub fn superblocks_that_can_be_read(file: BorrowedFd<'_>, size: u64) -> io::Result<Found> {
    let slots = slots(file, size).map(|(_, bytes)| bytes);
    let found = found_in(&slots);
    let none = slots.iter().all(Result::is_err);
    slots.into_iter().find_map(Result::err).filter(|_| none).map_or(Ok(found), Err)
}

fn found_in(slots: &[io::Result<HostBuf>]) -> Found {
    // Of a device so short that it has no such slot nothing is read.
    let read: Vec<&[u8]> = slots.iter().flatten().map(HostBuf::as_slice).filter(|slot| !slot.is_empty()).collect();
    match newest_superblock(&read) {
        Ok(superblock) => Found::Member(Box::new(superblock)),
        Err(DecodeError::Newer(version)) => Found::Newer(version),
        // Nothing so short has ever been a cache device.
        Err(DecodeError::Foreign | DecodeError::Short) => Found::Nothing,
        Err(error) => Found::Damaged(error),
    }
}

/// The four superblock slots of a device: where each begins, in bytes, and what is there.
pub fn slots(file: BorrowedFd<'_>, size: u64) -> [(u64, io::Result<HostBuf>); 4] {
    let page = size / 4096 * 4096;
    let slot = |at: u64| (at, read(file, at, SUPERBLOCK_BYTES.min(page.saturating_sub(at))));
    let head = [slot(0), slot(SUPERBLOCK_BYTES)];
    // The device may have grown since; where the copies at the end are, those at the start know best.
    let size_then = |(_, bytes): &(u64, io::Result<HostBuf>)| {
        let superblock = Superblock::decode(bytes.as_ref().ok()?.as_slice()).ok()?;
        superblock.members.get(usize::from(superblock.member)).map(|member| member.layout.size)
    };
    let known = head.iter().find_map(size_then).filter(|known| *known <= size);
    let tail = Layout::tail_of(known.unwrap_or(size));
    let [first, second] = head;
    [first, second, slot(tail), slot(tail + SUPERBLOCK_BYTES)]
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
