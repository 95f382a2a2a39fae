//! The copies of a segment in memory, read around what a device cannot read.

use std::ops::Range;

use headpond_engine::io::SECTOR;
use headpond_format::Place;

use super::media::{Device, Pool};
use super::segments::Found;
use crate::buf::HostBuf;

/// Bytes that are read at once around an error, at first.
const PAGE: usize = 4096;

/// One copy of a segment.
pub(super) struct Copy {
    /// Where it is.
    pub place: Place,
    /// Its first byte on the device.
    pub at: u64,
    /// What was read, zeroes where nothing could be; `None`: its device is not there.
    pub data: Option<HostBuf>,
    /// The sectors that the device could not read, counted from the first of the segment.
    pub unreadable: Vec<Range<u32>>,
}

/// Reads a segment, on each of its copies.
pub(super) fn of(pool: &Pool<'_>, found: &Found) -> Vec<Copy> {
    found.copies().map(|place| read(pool, place)).collect()
}

/// Their data alone.
pub(super) fn data(copies: &[Copy]) -> Vec<Option<HostBuf>> {
    copies.iter().map(|copy| copy.data.clone()).collect()
}

/// Whether each of the copies has sectors in a range that could not be read.
pub(super) fn is_on_none(copies: &[Copy], sectors: &Range<u32>) -> bool {
    !copies.is_empty() && copies.iter().all(|copy| copy.cannot_read(sectors))
}

impl Copy {
    /// Whether some of these sectors could not be read.
    pub fn cannot_read(&self, sectors: &Range<u32>) -> bool {
        self.unreadable.iter().any(|bad| bad.start < sectors.end && sectors.start < bad.end)
    }
}

fn read(pool: &Pool<'_>, place: Place) -> Copy {
    let mut copy = Copy { place, at: 0, data: None, unreadable: Vec::new() };
    let Some((device, layout)) = pool.device(place.member).zip(pool.layout(place.member)) else { return copy };
    let (at, len) = (layout.slot(place.slot), layout.segment_bytes);
    copy.at = at;
    copy.data = device.read(at, len).ok().or_else(|| {
        let unit = pool.superblock().unit as usize;
        Some(HostBuf::filled_by(len as usize, |to| copy.unreadable = read_around(device, at, to, unit)))
    });
    copy
}

/// Reads what can be read, down to units: no record shares one with another. The rest is zeroes; which sectors it is, from the first one on.
fn read_around(device: &Device, at: u64, to: &mut [u8], unit: usize) -> Vec<Range<u32>> {
    let mut unreadable: Vec<Range<u32>> = Vec::new();
    for (n, page) in to.chunks_mut(PAGE).enumerate() {
        let from = (n * PAGE) as u64;
        if let Ok(bytes) = device.read(at + from, page.len() as u64) {
            page.copy_from_slice(bytes.as_slice());
            continue;
        }
        for (n, to) in page.chunks_mut(unit.clamp(SECTOR as usize, PAGE)).enumerate() {
            let from = from + (n * to.len()) as u64;
            if let Ok(bytes) = device.read(at + from, to.len() as u64) {
                to.copy_from_slice(bytes.as_slice());
                continue;
            }
            to.fill(0);
            let sectors = (from / SECTOR) as u32..((from + to.len() as u64) / SECTOR) as u32;
            match unreadable.last_mut() {
                Some(last) if last.end == sectors.start => last.end = sectors.end,
                _ => unreadable.push(sectors),
            }
        }
    }
    unreadable
}
