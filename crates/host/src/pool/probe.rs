//! What is on a device: a pool's superblock, something of somebody else's, or nothing.

use std::io;
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
    let page = size / 4096 * 4096;
    let head = read(file, 0, ENDS.min(page))?;
    let tail_at = page.saturating_sub(ENDS);
    let tail = read(file, tail_at, page - tail_at)?;
    let slot = |bytes: &[u8], at: u64| -> Vec<u8> {
        let at = at as usize;
        bytes.get(at..bytes.len().min(at + SUPERBLOCK_BYTES as usize)).unwrap_or_default().to_vec()
    };
    let copies = Layout::tail_of(size).saturating_sub(tail_at);
    let slots = [
        slot(head.as_slice(), 0),
        slot(head.as_slice(), SUPERBLOCK_BYTES),
        slot(tail.as_slice(), copies),
        slot(tail.as_slice(), copies + SUPERBLOCK_BYTES),
    ];
    let slots: Vec<&[u8]> = slots.iter().map(Vec::as_slice).collect();
    Ok(match newest_superblock(&slots) {
        Ok(superblock) => Found::Member(Box::new(superblock)),
        Err(DecodeError::Newer(version)) => Found::Newer(version),
        // Nothing so short has ever been a cache device.
        Err(DecodeError::Foreign | DecodeError::Short) => {
            match signatures::find(head.as_slice(), tail.as_slice(), tail_at, size) {
                Some(what) => Found::Signature(what),
                None => Found::Nothing,
            }
        }
        Err(error) => Found::Damaged(error),
    })
}

/// Reads whole pages by direct I/O.
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

/// Writes whole pages by direct I/O.
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
