//! A segment's header: the first unit of each slot that holds the segment.

use crate::codec::{DecodeError, Reader, Writer, magic, verify};
use alloc::collections::BTreeMap;
use alloc::vec::Vec;

/// Generations of a life, which is the time of a daemon between a start and its end, begin at its number, times this. A dead instance's are
/// other ones even where nothing of what it opened is to be seen: its headers may be lost on one cache device and its
/// records not, and would be taken for a later one's. No life opens as many segments between two superblocks.
pub const GENERATIONS: u64 = 1 << 24;

const MAGIC: u32 = u32::from_le_bytes(*b"HPsg");

/// The number that stands where a copy has no member.
pub const NO_MEMBER: u8 = u8::MAX;

/// What a segment is for.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash)]
pub enum Class {
    /// Dirty data, and what is said of it: as many copies as the pool asks for.
    Mirrored,
    /// Clean data: one copy.
    Single,
}

impl Class {
    pub(crate) fn code(self) -> u8 {
        match self {
            Class::Mirrored => 0,
            Class::Single => 1,
        }
    }
    pub(crate) fn from_code(v: u8) -> Result<Self, DecodeError> {
        match v {
            0 => Ok(Class::Mirrored),
            1 => Ok(Class::Single),
            _ => Err(DecodeError::Invalid("a segment's class")),
        }
    }
}

/// Where one copy of a segment is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Place {
    /// Number of the cache device, or [`NO_MEMBER`].
    pub member: u8,
    /// Segment slot on it.
    pub slot: u32,
}

impl Place {
    /// No copy.
    pub const NONE: Place = Place { member: NO_MEMBER, slot: 0 };
    pub(crate) fn write(self, w: &mut Writer) {
        w.u8(self.member);
        w.u32(self.slot);
    }
    pub(crate) fn read(r: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Ok(Self { member: r.u8()?, slot: r.u32()? })
    }
}

/// A generation that can still grow, and copies on members that are not the same.
pub(crate) fn sense(generation: u64, copies: &[Place; 2]) -> Result<(), DecodeError> {
    let [a, b] = copies;
    if generation >= 1 << 63 || a.member == b.member && a.member != NO_MEMBER {
        return Err(DecodeError::Invalid("where a segment is"));
    }
    Ok(())
}

/// Says what a slot holds. Written when the segment is opened, before anything in it is acknowledged.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SegmentHeader {
    /// The segment's number in the pool.
    pub segment: u32,
    /// Grows with each segment opened in the pool; tells this use of the slot from earlier ones.
    pub generation: u64,
    /// What it is for.
    pub class: Class,
    /// The volume whose data it holds.
    pub volume: u16,
    /// Where its copies are.
    pub copies: [Place; 2],
}

/// Which segments were durable, each on all its copies, when another one was opened, as that one's header says: closed, all appends ended
/// well, and every cache device with a copy flushed since. Of these nothing but a device's damage can make a record's data other than its
/// header says.
///
/// Headers that are older than this have zeroes here: no segment.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Durable {
    /// No segment of an earlier generation is meant: of those before a start nobody knows more than that start found.
    pub from: u64,
    /// No segment of this generation or a later one is meant.
    pub below: u64,
    /// Generations of segments between these that are not meant.
    pub but: Vec<u64>,
}

impl Durable {
    /// The most generations that there is room for in [`Durable::but`], in a header of `unit` bytes: 53 or more.
    #[must_use]
    pub fn most(unit: usize) -> usize {
        ((unit.max(512) - SegmentHeader::BYTES) / 8).saturating_sub(3).min(128)
    }

    /// Whether the segment of a generation is among them.
    #[must_use]
    pub fn has(&self, generation: u64) -> bool {
        (self.from..self.below).contains(&generation) && !self.but.contains(&generation)
    }

    fn write(&self, w: &mut Writer) {
        w.u64(self.from);
        w.u64(self.below);
        w.u64(self.but.len() as u64);
        self.but.iter().for_each(|generation| w.u64(*generation));
    }

    /// What the header in a unit says, which [`SegmentHeader::decode`] has found to be one. Where that makes no sense it is no segment.
    #[must_use]
    pub fn of_header(bytes: &[u8]) -> Self {
        let read = || -> Result<Self, DecodeError> {
            let mut r = Reader::new(bytes.get(SegmentHeader::BYTES..).unwrap_or_default());
            let (from, below, count) = (r.u64()?, r.u64()?, r.u64()?);
            let count = usize::try_from(count).ok().filter(|n| *n <= Self::most(bytes.len()));
            let count = count.ok_or(DecodeError::Invalid("which segments are durable"))?;
            let but = (0..count).map(|_| r.u64()).collect::<Result<_, _>>()?;
            Ok(Self { from, below, but })
        };
        read().unwrap_or_default()
    }
}

/// Which segments are durable, by the headers in all slots: of each life its newest speaks.
#[derive(Clone, Default, Debug)]
pub struct KnownDurable(BTreeMap<u64, (u64, Durable)>);

impl KnownDurable {
    /// Takes in what a header says. One that a start, or a repair, has put together anew says nothing, and hides nothing.
    pub fn hear(&mut self, header: &SegmentHeader, says: Durable) {
        let (generation, life) = (header.generation, header.generation / GENERATIONS);
        if says != Durable::default() && self.0.get(&life).is_none_or(|(newest, _)| *newest < generation) {
            self.0.insert(life, (generation, says));
        }
    }

    /// Whether the segment of a generation is durable, on all its copies.
    #[must_use]
    pub fn has(&self, generation: u64) -> bool {
        self.0.values().any(|(_, says)| says.has(generation))
    }
}

impl SegmentHeader {
    /// Bytes of the header before [`Durable`], with which it is padded to a unit.
    pub const BYTES: usize = 64;

    /// The header, padded to `unit` bytes, which says of no other segment that it is durable.
    #[must_use]
    pub fn encode(&self, key: u64, unit: usize) -> Vec<u8> {
        self.encode_with(key, unit, &Durable::default())
    }

    /// The header, padded to `unit` bytes. Of `durable` no more than [`Durable::most`] generations are excepted.
    #[must_use]
    pub fn encode_with(&self, key: u64, unit: usize, durable: &Durable) -> Vec<u8> {
        let mut w = Writer::new();
        w.u32(MAGIC);
        w.u32(self.segment);
        w.u64(0);
        w.u64(self.generation);
        w.u8(self.class.code());
        w.u8(0);
        w.u16(self.volume);
        for c in self.copies {
            c.write(&mut w);
        }
        w.pad_to(Self::BYTES);
        durable.write(&mut w);
        w.pad_to(unit.max(512));
        w.seal(key, 8)
    }

    /// Decodes a header from a unit.
    pub fn decode(key: u64, bytes: &[u8]) -> Result<Self, DecodeError> {
        if magic(bytes) != Some(MAGIC) {
            return Err(DecodeError::Foreign);
        }
        verify(key, bytes, 8)?;
        let mut r = Reader::new(bytes);
        r.u32()?;
        let segment = r.u32()?;
        r.u64()?;
        let generation = r.u64()?;
        let class = Class::from_code(r.u8()?)?;
        r.u8()?;
        let volume = r.u16()?;
        let copies = [Place::read(&mut r)?, Place::read(&mut r)?];
        sense(generation, &copies)?;
        Ok(Self { segment, generation, class, volume, copies })
    }
}
