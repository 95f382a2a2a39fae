//! Where blocks are that were read lately: what another thread than the engine's needs to read them again by itself.
//!
//! One thread owns an engine. Where each queue of a front end has a thread of its own, a hit would go to the engine's thread and back for a
//! look at the map, a checksum and a copy, and all queues together would get no more of them than one processor can do. So the engine
//! leaves here, for each block that was read and is one piece, where its copies are, its version and its checksum. Whoever finds a block
//! reads it from the device himself; if what he gets has not that checksum, which is bound to volume, block and version, he asks the
//! engine.
//!
//! An entry is gone before the map says something else ([`crate::map::Map`] changes blocks in one place), and so before anybody is told
//! of the change. What is found was therefore true at that moment, which lies within the read; and what is read later, from a place that
//! may be another's by then, is proved by the checksum. Nothing has to be held, and nobody waits for anybody.
//!
//! Lines are as in a processor's cache of addresses, each block having one place. One writes, many read: a sequence number tells readers
//! that a line was changed under them (Boehm, *Can seqlocks get along with programming language memory models?*, MSPC 2012).

use crate::io::{BLOCK, BLOCK_SECTORS, Buf};
use alloc::boxed::Box;
use core::ops::Range;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence};

/// Reads that a reader has under way at most; others are left to the engine: it knows how long the line at the cache devices may get before
/// the disk is sooner.
const MOST_READS: u32 = 16;
/// Readers that count without being in each other's way.
const COUNTS: usize = 8;
/// Longer than this nobody waits for a cache device that he reads by himself, in nanoseconds: the engine knows for how long it may be
/// silent, and whether another copy is to be had.
pub const PATIENCE_NS: u64 = 250_000_000;
/// In place of where a copy is.
const NOWHERE: u64 = u64::MAX;
/// Bits of a copy's first sector on its device; above is the device's number.
const SECTOR_BITS: u32 = 56;

/// What is known of one block. In one line of a processor's memory.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Line {
    /// Odd while the rest is being changed.
    sequence: AtomicU64,
    /// The block's number and one; 0: there is none.
    block: AtomicU64,
    version: AtomicU64,
    sum: AtomicU64,
    places: [AtomicU64; 2],
    /// It was found since it came.
    asked: AtomicBool,
}

impl Line {
    /// Changes what is there; the engine's thread alone does.
    fn change(&self, to: impl FnOnce(&Line)) {
        let sequence = self.sequence.load(Ordering::Relaxed);
        self.sequence.store(sequence + 1, Ordering::Relaxed);
        fence(Ordering::Release);
        to(self);
        self.sequence.store(sequence + 2, Ordering::Release);
    }
}

/// The blocks of one volume that other threads may read by themselves.
#[derive(Debug)]
pub struct Lookaside {
    key: u64,
    volume: u16,
    /// Sectors that the volume's grid is shifted by.
    shift: u64,
    lines: Box<[Line]>,
    is_open: AtomicBool,
    /// The cache devices that may be read, as bits.
    members: AtomicU64,
    counts: [Counts; COUNTS],
}

/// What some readers count. A processor takes two lines of memory at a time: what threads write to all the time lies no closer together.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Counts {
    in_flight: AtomicU32,
    hits: AtomicU64,
    bytes: AtomicU64,
}

/// A block that another thread may read by itself: from where, and how it is known to be the block.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Found {
    /// Its copies: the cache device, and the byte on it at which [`BLOCK`] bytes begin.
    pub places: [Option<(u8, u64)>; 2],
    /// The bytes of them that were asked for.
    pub wanted: Range<usize>,
    seed: u64,
    sum: u64,
}

impl Found {
    /// Whether this, which was read from one of the places, is the block as it was when it was found.
    pub fn is<B: Buf>(&self, data: &B) -> bool {
        data.len() as u64 == BLOCK && data.checksum(self.seed) == self.sum
    }
}

impl Lookaside {
    /// Without any block. `lines` is rounded up to a power of two; each takes 64 bytes. `members` are the cache devices that may be read, as
    /// bits.
    pub(crate) fn new(key: u64, volume: u16, shift: u64, members: u64, lines: usize) -> Self {
        Self {
            key,
            volume,
            shift,
            lines: (0..lines.next_power_of_two()).map(|_| Line::default()).collect(),
            is_open: AtomicBool::new(true),
            members: AtomicU64::new(members),
            counts: Default::default(),
        }
    }

    fn line(&self, block: u64) -> &Line {
        // Fibonacci hashing: neighbours, and multiples of a power of two, have lines of their own (Knuth, vol. 3, 6.4).
        let hash = block.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        &self.lines[hash as usize & (self.lines.len() - 1)]
    }

    /// Finds what a client reads, if it lies in one block that is known here: the engine need not be asked for it.
    ///
    /// `sector` is the volume's, as clients count.
    #[must_use]
    pub fn find(&self, sector: u64, sectors: u32) -> Option<Found> {
        let first = sector.checked_add(self.shift)?;
        let (block, from) = (first / BLOCK_SECTORS, first % BLOCK_SECTORS);
        let is_within = sectors > 0 && from + u64::from(sectors) <= BLOCK_SECTORS;
        if !is_within {
            return None;
        }
        let line = self.line(block);
        let sequence = line.sequence.load(Ordering::Acquire);
        let at = line.block.load(Ordering::Relaxed);
        let (version, sum) = (line.version.load(Ordering::Relaxed), line.sum.load(Ordering::Relaxed));
        let places = [0, 1].map(|n| line.places[n].load(Ordering::Relaxed));
        fence(Ordering::Acquire);
        let is_whole = sequence.is_multiple_of(2) && line.sequence.load(Ordering::Relaxed) == sequence;
        if !is_whole || at != block + 1 || !self.is_open.load(Ordering::Acquire) {
            return None;
        }
        let members = self.members.load(Ordering::Acquire);
        let places = places.map(|place| unpacked(place).filter(|(member, _)| members >> member & 1 == 1));
        if places == [None; 2] {
            return None;
        }
        if !line.asked.load(Ordering::Relaxed) {
            line.asked.store(true, Ordering::Relaxed);
        }
        let wanted = from as usize * 512..(from as usize + sectors as usize) * 512;
        let seed = headpond_format::data_seed(self.key, self.volume, block, 0, version);
        Some(Found { places, wanted, seed, sum })
    }

    fn counts(&self, reader: usize) -> &Counts {
        &self.counts[reader % COUNTS]
    }

    /// A read of what was found begins, unless the reader has as many under way as he may: then the engine is to be asked. Until
    /// [`Lookaside::end`] it counts among those that stand in line at the cache devices. Readers have numbers, so that they do not count in
    /// one place.
    #[must_use]
    pub fn begin(&self, reader: usize) -> bool {
        let in_flight = &self.counts(reader).in_flight;
        let may = in_flight.load(Ordering::Relaxed) < MOST_READS;
        if may {
            in_flight.fetch_add(1, Ordering::Relaxed);
        }
        may
    }

    /// It has ended; with so many bytes for the client, or without the block, which is the engine's to read then.
    pub fn end(&self, reader: usize, bytes: Option<u64>) {
        let counts = self.counts(reader);
        counts.in_flight.fetch_sub(1, Ordering::Relaxed);
        if let Some(bytes) = bytes {
            counts.hits.fetch_add(1, Ordering::Relaxed);
            counts.bytes.fetch_add(bytes, Ordering::Relaxed);
        }
    }

    /// Reads under way.
    pub(crate) fn in_flight(&self) -> u32 {
        self.counts.iter().map(|counts| counts.in_flight.load(Ordering::Relaxed)).sum()
    }

    /// Reads that ended with the block, and their bytes.
    pub(crate) fn hits(&self) -> (u64, u64) {
        let sum = |of: fn(&Counts) -> &AtomicU64| self.counts.iter().map(|counts| of(counts).load(Ordering::Relaxed)).sum();
        (sum(|counts| &counts.hits), sum(|counts| &counts.bytes))
    }

    /// Bytes of memory that it takes.
    pub(crate) fn memory(&self) -> u64 {
        size_of_val(&*self.lines) as u64
    }

    /// The volume is served, or is not: then nothing is found.
    pub(crate) fn open(&self, is_open: bool) {
        self.is_open.store(is_open, Ordering::Release);
    }

    /// From now on these cache devices may be read, as bits.
    pub(crate) fn set_members(&self, members: u64) {
        self.members.store(members, Ordering::Release);
    }

    /// Nothing is known any more.
    pub(crate) fn clear(&self) {
        for line in self.lines.iter().filter(|line| line.block.load(Ordering::Relaxed) != 0) {
            line.change(|line| line.block.store(0, Ordering::Relaxed));
        }
    }

    /// A block is a whole piece of this version, with this checksum, and its copies are there. The block that had its line before, if
    /// it was found since it came.
    pub(crate) fn enter(&self, block: u64, version: u64, sum: u64, places: [Option<(u8, u64)>; 2]) -> Option<u64> {
        let (line, places) = (self.line(block), places.map(packed));
        let before = line.block.load(Ordering::Relaxed);
        let is_there = before == block + 1
            && (line.version.load(Ordering::Relaxed), line.sum.load(Ordering::Relaxed)) == (version, sum)
            && (0..2).all(|n| line.places[n].load(Ordering::Relaxed) == places[n]);
        if is_there {
            return None;
        }
        line.change(|line| {
            line.block.store(block + 1, Ordering::Relaxed);
            line.version.store(version, Ordering::Relaxed);
            line.sum.store(sum, Ordering::Relaxed);
            (0..2).for_each(|n| line.places[n].store(places[n], Ordering::Relaxed));
        });
        line.asked.swap(false, Ordering::Relaxed).then(|| before.checked_sub(1)).flatten()
    }

    /// The map is about to say something else of a block.
    pub(crate) fn forget(&self, block: u64) {
        let line = self.line(block);
        if line.block.load(Ordering::Relaxed) == block + 1 {
            line.change(|line| line.block.store(0, Ordering::Relaxed));
        }
    }

    /// Whether a block was found since this was last asked.
    pub(crate) fn was_asked(&self, block: u64) -> bool {
        let line = self.line(block);
        line.block.load(Ordering::Relaxed) == block + 1 && line.asked.swap(false, Ordering::Relaxed)
    }
}

fn packed(place: Option<(u8, u64)>) -> u64 {
    place.map_or(NOWHERE, |(member, byte)| u64::from(member) << SECTOR_BITS | (byte / 512))
}

fn unpacked(place: u64) -> Option<(u8, u64)> {
    (place != NOWHERE).then(|| ((place >> SECTOR_BITS) as u8, (place & ((1 << SECTOR_BITS) - 1)) * 512))
}

#[cfg(test)]
mod tests {
    use super::*;

    const THERE: [Option<(u8, u64)>; 2] = [Some((0, 4096)), Some((3, 1 << 40))];

    fn table(lines: usize) -> Lookaside {
        Lookaside::new(7, 2, 3, 0b1001, lines)
    }

    #[test]
    fn what_is_entered_is_found_where_it_is_until_it_is_forgotten() {
        let table = table(16);
        assert_eq!(table.enter(5, 100, 200, THERE), None);
        // The grid is shifted by three sectors: block 5 has sectors 37 to 44 of the volume.
        let found = table.find(37, 8).expect("it was entered");
        assert_eq!((found.places, found.wanted.clone()), (THERE, 0..4096));
        assert_eq!(table.find(39, 2).map(|found| found.wanted), Some(1024..2048));
        for (sector, sectors) in [(36, 1), (37, 9), (44, 2), (45, 1), (37, 0), (u64::MAX, 1), (u64::MAX - 3, 1)] {
            assert_eq!(table.find(sector, sectors), None, "{sectors} from {sector}");
        }
        table.forget(6);
        assert_eq!(table.find(37, 8), Some(found));
        table.forget(5);
        assert_eq!(table.find(37, 8), None);
    }

    #[test]
    fn a_volume_that_is_not_served_and_a_device_that_left_leave_reads_to_the_engine() {
        let table = table(1);
        table.enter(5, 100, 200, THERE);
        table.open(false);
        assert_eq!(table.find(37, 8), None);
        table.open(true);
        table.set_members(0b1000);
        assert_eq!(table.find(37, 8).map(|found| found.places), Some([None, THERE[1]]));
        table.enter(6, 100, 200, [THERE[0], None]);
        assert_eq!(table.find(45, 8).map(|found| found.places), None, "its one copy is on a device that left");
        table.enter(5, 100, 200, THERE);
        table.set_members(0b110);
        assert_eq!(table.find(37, 8), None);
        table.set_members(u64::MAX);
        assert!(table.find(37, 8).is_some());
        table.clear();
        assert_eq!(table.find(37, 8), None);
    }

    #[test]
    fn a_reader_with_much_under_way_leaves_the_rest_to_the_engine_and_others_do_not() {
        let table = table(1);
        assert!((0..MOST_READS).all(|_| table.begin(3)) && !table.begin(3) && table.begin(4));
        assert_eq!(table.in_flight(), MOST_READS + 1);
        table.end(3, Some(512));
        table.end(3, None);
        table.end(4, Some(4096));
        assert!(table.begin(3) && table.hits() == (2, 4608) && table.in_flight() == MOST_READS - 1);
    }

    #[test]
    fn that_a_block_was_found_is_told_once_also_when_another_takes_its_line() {
        let table = table(1);
        table.enter(5, 100, 200, THERE);
        assert!(!table.was_asked(5));
        let _ = table.find(37, 8);
        assert!(!table.was_asked(6) && table.was_asked(5) && !table.was_asked(5));
        let _ = table.find(37, 8);
        // The same again changes nothing.
        assert_eq!(table.enter(5, 100, 200, THERE), None);
        assert_eq!(table.enter(9, 101, 201, THERE), Some(5));
        assert_eq!(table.enter(5, 100, 200, THERE), None);
    }

    #[test]
    fn the_checksum_is_of_the_block_and_version_that_were_entered() {
        struct Sum(u64, usize);
        impl Clone for Sum {
            fn clone(&self) -> Self {
                Self(self.0, self.1)
            }
        }
        impl Buf for Sum {
            fn from_bytes(_: &[u8]) -> Self {
                Self(0, 0)
            }
            fn zeroes(len: usize) -> Self {
                Self(0, len)
            }
            fn len(&self) -> usize {
                self.1
            }
            fn slice(&self, range: Range<usize>) -> Self {
                Self(self.0, range.len())
            }
            fn checksum(&self, seed: u64) -> u64 {
                self.0 ^ seed
            }
            fn to_bytes(&self) -> alloc::borrow::Cow<'_, [u8]> {
                alloc::borrow::Cow::Borrowed(&[])
            }
            fn join(_: &[Self]) -> Self {
                Self(0, 0)
            }
        }
        let (table, seed) = (table(16), headpond_format::data_seed(7, 2, 5, 0, 100));
        table.enter(5, 100, 9 ^ seed, THERE);
        let found = table.find(37, 8).expect("it was entered");
        assert!(found.is(&Sum(9, 4096)) && !found.is(&Sum(8, 4096)) && !found.is(&Sum(9, 4095)));
        table.enter(5, 101, 9 ^ seed, THERE);
        assert!(table.find(37, 8).is_some_and(|found| !found.is(&Sum(9, 4096))));
    }
}
