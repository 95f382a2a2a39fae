//! The records of a segment, found on each of its copies in memory, holes stepped over: rule 8 of `docs/FORMAT.md`.

use headpond_engine::io::Buf;
use headpond_format::{Entry, Record, RecordPlace, SegmentHeader};

use crate::buf::HostBuf;

/// Bytes of a sector.
const SECTOR: usize = 512;

/// What lies at a place of a segment.
#[derive(Debug)]
pub(super) enum Seen {
    /// A record that is whole on at least one copy.
    Record(Whole),
    /// A record's header that is whole on no copy, though it says that it belongs here. First sector.
    Torn(u32),
    /// Units without a record, up to one: first sector, and the one behind.
    Hole(u32, u32),
}

/// A record whose header is whole on at least one copy.
#[derive(Debug)]
pub(super) struct Whole {
    /// What it says.
    pub record: Record,
    /// By copy: whether the header is whole there.
    pub header: Vec<bool>,
    /// The entries with data; by copy, whether the data is whole there.
    pub data: Vec<(Entry, Vec<bool>)>,
}

impl Whole {
    /// Whether all of its data is whole on some copy.
    pub fn is_whole(&self) -> bool {
        self.data.iter().all(|(_, good)| good.contains(&true))
    }
}

/// Finds the records. `copies` hold the segment from its first sector on; `unit` is in bytes.
pub(super) fn walk(key: u64, unit: u32, header: &SegmentHeader, copies: &[Option<HostBuf>]) -> Vec<Seen> {
    let step = unit / SECTOR as u32;
    let capacity = copies.iter().flatten().map(Buf::len).max().unwrap_or(0) / SECTOR;
    let (mut at, mut behind, mut seen) = (step, step, Vec::new());
    while (at as usize) < capacity {
        let place = RecordPlace { segment: header.segment, generation: header.generation, offset: at };
        let on: Vec<Option<Record>> = copies.iter().map(|copy| decode(key, unit, copy.as_ref()?.as_slice(), place)).collect();
        let Some(record) = on.iter().flatten().next().cloned() else {
            if copies.iter().flatten().any(|copy| says_it_belongs(copy.as_slice(), place)) {
                if at > behind {
                    seen.push(Seen::Hole(behind, at));
                }
                seen.push(Seen::Torn(at));
                behind = at + step;
            }
            at += step;
            continue;
        };
        if at > behind {
            seen.push(Seen::Hole(behind, at));
        }
        let verified = |e: &Entry| {
            let seed = e.data_seed(key, header.volume);
            let good = |copy: &Option<HostBuf>| {
                part(copy.as_ref(), e.offset, e.sectors).is_some_and(|data| data.checksum(seed) == e.sum)
            };
            (*e, copies.iter().map(good).collect())
        };
        let data = record.entries.iter().filter(|e| e.kind.has_data()).map(verified).collect();
        at += record.sectors.max(step);
        behind = at;
        seen.push(Seen::Record(Whole { header: on.iter().map(Option::is_some).collect(), record, data }));
    }
    seen
}

/// Some sectors of a copy; `None` where it does not have them.
pub(super) fn part(copy: Option<&HostBuf>, offset: u32, sectors: u8) -> Option<HostBuf> {
    let copy = copy?;
    let (from, len) = (offset as usize * SECTOR, usize::from(sectors) * SECTOR);
    (from + len <= copy.len()).then(|| copy.slice(from..from + len))
}

/// The record at its place on one copy, if its header is whole and its data lies where it should.
fn decode(key: u64, unit: u32, copy: &[u8], place: RecordPlace) -> Option<Record> {
    let bytes = copy.get(place.offset as usize * SECTOR..)?;
    Record::peek_len(bytes)?;
    let record = Record::decode(key, bytes, place).ok()?;
    let mut next = place.offset + Record::header_sectors(record.entries.len(), unit as usize);
    for e in record.entries.iter().filter(|e| e.kind.has_data()) {
        if e.offset != next {
            return None;
        }
        next += u32::from(e.sectors);
    }
    let fits = next <= place.offset + record.sectors && record.sectors as usize * SECTOR <= bytes.len();
    fits.then_some(record)
}

/// Whether the bytes begin like a record written for this very place: segment, sector and generation are its own.
fn says_it_belongs(copy: &[u8], place: RecordPlace) -> bool {
    let Some(head) = copy.get(place.offset as usize * SECTOR..).and_then(|bytes| bytes.get(..32)) else { return false };
    Record::peek_len(head).is_some()
        && head[16..20] == place.segment.to_le_bytes()
        && head[20..24] == place.offset.to_le_bytes()
        && head[24..32] == place.generation.to_le_bytes()
}
