//! A record: one checksummed append to a segment.
//!
//! ```text
//! +--------------------+------------------+-----+---------+---------+
//! | header, 64 bytes   | entries, 40 each | pad | data of the entries, in order, from the next unit on |
//! +--------------------+------------------+-----+---------+---------+
//! ```
//! The header's checksum covers the header, all entries and so the checksum of each piece of data; it is seeded with
//! the pool's key and holds the record's place, so that a record found elsewhere does not pass (R15).

use crate::codec::{DecodeError, Reader, Writer, magic, verify};
use alloc::vec::Vec;

const MAGIC: u32 = u32::from_le_bytes(*b"HPrc");
const HEADER: usize = 64;
const ENTRY: usize = 40;

/// What an entry says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum EntryKind {
    /// Data that the backing device does not have yet.
    Dirty,
    /// Data that the backing device has too.
    Clean,
    /// Zeroes that the backing device does not have yet (a tombstone); no data follows.
    Zeroes,
    /// `count` blocks from `block` on are clean up to and including `version`: the disk was flushed since.
    MarkClean,
    /// What is older than `version` in the sectors `first .. first + sectors` of the range `block`, `count` is no
    /// longer true: the disk holds newer data, durably.
    Forget,
}

impl EntryKind {
    fn code(self) -> u8 {
        match self {
            EntryKind::Dirty => 1,
            EntryKind::Clean => 2,
            EntryKind::Zeroes => 3,
            EntryKind::MarkClean => 4,
            EntryKind::Forget => 5,
        }
    }
    fn from_code(v: u8) -> Result<Self, DecodeError> {
        Ok(match v {
            1 => EntryKind::Dirty,
            2 => EntryKind::Clean,
            3 => EntryKind::Zeroes,
            4 => EntryKind::MarkClean,
            5 => EntryKind::Forget,
            _ => return Err(DecodeError::Invalid("an entry's kind")),
        })
    }
    /// Whether data follows the record's header for it.
    #[must_use]
    pub fn has_data(self) -> bool {
        matches!(self, EntryKind::Dirty | EntryKind::Clean)
    }
}

/// One entry of a record: a run of sectors inside one block, or a mark over a run of blocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Entry {
    /// What it says.
    pub kind: EntryKind,
    /// First sector inside the block, 0 to 7.
    pub first: u8,
    /// Sectors inside the block, 1 to 8; together with `first` at most 8.
    pub sectors: u8,
    /// Block of the volume, counted on its grid.
    pub block: u64,
    /// Blocks that a mark is about; 1 for data.
    pub count: u32,
    /// Version of the write.
    pub version: u64,
    /// Checksum of the data, bound to volume, block and version.
    pub sum: u64,
    /// Where the data begins, in sectors from the start of the segment; for what has none, where the record begins.
    pub offset: u32,
}

impl Entry {
    /// The seed of the checksum of this entry's data, in a segment of `volume`: it binds the data to its pool, its place
    /// and its version.
    #[must_use]
    pub fn data_seed(&self, key: u64, volume: u16) -> u64 {
        data_seed(key, volume, self.block, self.first, self.version)
    }
}

/// The seed of the checksum of data that begins at sector `first` of a block of a volume, in a version.
#[must_use]
pub fn data_seed(key: u64, volume: u16, block: u64, first: u8, version: u64) -> u64 {
    let a = (block << 8 | u64::from(first)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let b = (version ^ u64::from(volume) << 56).wrapping_mul(0xc2b2_ae3d_27d4_eb4f);
    key ^ a.rotate_left(29) ^ b
}

/// Where a record is; part of what it proves.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RecordPlace {
    /// The segment's number.
    pub segment: u32,
    /// The segment's generation.
    pub generation: u64,
    /// First sector of the record inside the segment.
    pub offset: u32,
}

/// A decoded record header.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Record {
    /// Where it says it is.
    pub place: RecordPlace,
    /// Sectors of the whole record, header and data.
    pub sectors: u32,
    /// What it holds.
    pub entries: Vec<Entry>,
}

impl Record {
    /// Sectors that the header of a record with `entries` entries takes, in units of `unit` bytes.
    #[must_use]
    pub fn header_sectors(entries: usize, unit: usize) -> u32 {
        ((HEADER + entries * ENTRY).next_multiple_of(unit) / 512) as u32
    }

    /// The most entries in one record.
    pub const MAX_ENTRIES: usize = 512;

    /// The encoded header, padded to `unit` bytes; the data follows it directly.
    #[must_use]
    pub fn encode_header(&self, key: u64, unit: usize) -> Vec<u8> {
        let unit = unit.max(512);
        let mut w = Writer::with_capacity((HEADER + self.entries.len() * ENTRY).next_multiple_of(unit));
        w.u32(MAGIC);
        w.u32(0);
        w.u64(0);
        w.u32(self.place.segment);
        w.u32(self.place.offset);
        w.u64(self.place.generation);
        w.u32(self.sectors);
        w.u16(self.entries.len() as u16);
        w.pad_to(HEADER);
        for e in &self.entries {
            w.u8(e.kind.code());
            w.u8(e.first);
            w.u8(e.sectors);
            w.u8(0);
            w.u32(e.count);
            w.u64(e.block);
            w.u64(e.version);
            w.u64(e.sum);
            w.u32(e.offset);
            w.u32(0);
        }
        w.pad_to(unit);
        let len = w.len() as u32;
        w.put_u32(4, len);
        w.seal(key, 8)
    }

    /// Bytes of the header that starts at `bytes`, if one seems to. To know how much to read; not yet a proof.
    #[must_use]
    pub fn peek_len(bytes: &[u8]) -> Option<usize> {
        if magic(bytes)? != MAGIC {
            return None;
        }
        let len = u32::from_le_bytes(bytes.get(4..8)?.try_into().ok()?) as usize;
        (len.is_multiple_of(512) && len <= HEADER + Self::MAX_ENTRIES * ENTRY + 4096).then_some(len)
    }

    /// Decodes the record that starts at `bytes`, which must be the one that belongs at `place`.
    pub fn decode(key: u64, bytes: &[u8], place: RecordPlace) -> Result<Self, DecodeError> {
        let len = Self::peek_len(bytes).ok_or(DecodeError::Foreign)?;
        let bytes = bytes.get(..len).ok_or(DecodeError::Short)?;
        verify(key, bytes, 8)?;
        let mut r = Reader::new(bytes);
        r.u64()?;
        r.u64()?;
        let found = RecordPlace { segment: r.u32()?, offset: r.u32()?, generation: r.u64()? };
        if found != place {
            return Err(DecodeError::Foreign);
        }
        let sectors = r.u32()?;
        let count = usize::from(r.u16()?);
        if count > Self::MAX_ENTRIES {
            return Err(DecodeError::Invalid("the number of entries"));
        }
        r.bytes(HEADER - 38)?;
        let mut entries = Vec::with_capacity(count);
        let end = place.offset.checked_add(sectors).ok_or(DecodeError::Invalid("a record's length"))?;
        for _ in 0..count {
            let kind = EntryKind::from_code(r.u8()?)?;
            let (first, run) = (r.u8()?, r.u8()?);
            r.u8()?;
            let count = r.u32()?;
            let (block, version, sum, offset) = (r.u64()?, r.u64()?, r.u64()?, r.u32()?);
            r.u32()?;
            if run == 0 || first > 7 || run > 8 - first || block > (1 << 56) || version >= (1 << 56) || count == 0 {
                return Err(DecodeError::Invalid("an entry"));
            }
            if kind.has_data() && (offset < place.offset || offset.checked_add(u32::from(run)).is_none_or(|e| e > end)) {
                return Err(DecodeError::Invalid("where an entry's data is"));
            }
            entries.push(Entry { kind, first, sectors: run, block, count, version, sum, offset });
        }
        Ok(Self { place, sectors, entries })
    }
}
