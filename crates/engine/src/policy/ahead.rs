//! Readers that take a run in small pieces, one after the other: how far the cache devices are read ahead of them, and what is
//! kept in memory for them.
//!
//! A reader is never further behind what is read ahead than it has come by itself: one that ends after a few pieces costs
//! little more than it reads. The next piece is begun when half of the last one is used. Nobody is followed in the place of
//! another who still reads: with more readers than places each would throw away what was read for the others.

use crate::ranges::meet;
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::ops::Range;

/// How many readers are followed at once. With 16, 64 clients who read small pieces side by side had no more than the cache devices answer
/// requests, and less than a disk that reads ahead for all of them: found by `headpond bench --real --only "64 streams"`. A small read
/// looks through all who are followed.
pub const READERS: usize = 64;
/// A read is followed when so many in a row, it among them, began where the one before ended.
const SURE: u32 = 3;
/// A reader that has not read for this long has ended, in nanoseconds.
pub const IDLE_NS: u64 = 100_000_000;

/// A read that goes on, in blocks.
#[derive(Clone, Debug)]
pub struct Step {
    /// The volume.
    pub volume: u16,
    /// The blocks that it touches.
    pub blocks: Range<u64>,
    /// How many in a row, it the last of them, began where the one before ended.
    pub joined: u32,
    /// Blocks that its reader has come so far.
    pub run: u64,
}

#[derive(Debug)]
struct Reader<T> {
    id: u64,
    volume: u16,
    /// The block that it has come to.
    at: u64,
    /// Up to here has been read ahead, or is being.
    end: u64,
    /// Blocks of the last piece.
    length: u64,
    /// The piece that is being read, and since when.
    coming: Option<(Range<u64>, u64)>,
    /// When it was read on last.
    used: u64,
    /// By block, in order; none before the one that it has come to.
    kept: VecDeque<(u64, T)>,
}

/// Who is followed, and what is kept for them.
#[derive(Debug)]
pub struct Readers<T> {
    readers: Vec<Reader<T>>,
    begun: u64,
}

impl<T> Default for Readers<T> {
    fn default() -> Self {
        Self { readers: Vec::new(), begun: 0 }
    }
}

impl<T> Readers<T> {
    /// Nobody is followed.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.readers.is_empty()
    }

    /// A small read that goes on. Whose it is, and the blocks to be read ahead now, if any: `most` at the most, or one. One piece at a
    /// time for each reader, until [`Readers::landed`].
    pub fn step(&mut self, now: u64, step: &Step, most: u64) -> Option<(u64, Range<u64>)> {
        if step.joined == 0 {
            return None;
        }
        let (from, to) = (step.blocks.start, step.blocks.end);
        let known = self.readers.iter().position(|r| r.volume == step.volume && r.at <= from && from <= r.end);
        let n = match known {
            Some(n) => n,
            None if step.joined >= SURE => self.begin(now, step)?,
            None => return None,
        };
        let reader = &mut self.readers[n];
        (reader.used, reader.at) = (now, from);
        while reader.kept.front().is_some_and(|(block, _)| *block < from) {
            reader.kept.pop_front();
        }
        if reader.coming.is_some() || to + reader.length / 2 < reader.end {
            return None;
        }
        reader.length = step.run.min(most).max(1);
        let start = reader.end.max(to);
        reader.end = start + reader.length;
        reader.coming = Some((start..reader.end, now));
        Some((reader.id, start..reader.end))
    }

    /// A place for a new reader: one that is free, or whose reader has ended.
    fn begin(&mut self, now: u64, step: &Step) -> Option<usize> {
        if self.readers.len() == READERS {
            let ended = |r: &Reader<T>| r.coming.is_none() && now - r.used >= IDLE_NS;
            let n = self.readers.iter().position(ended)?;
            self.readers.swap_remove(n);
        }
        self.begun += 1;
        self.readers.push(Reader {
            id: self.begun,
            volume: step.volume,
            at: step.blocks.start,
            end: step.blocks.end,
            length: 0,
            coming: None,
            used: now,
            kept: VecDeque::new(),
        });
        Some(self.readers.len() - 1)
    }

    /// The piece that is being read for a reader ends earlier than it asked for.
    pub fn cut(&mut self, id: u64, end: u64) {
        let Some(reader) = self.readers.iter_mut().find(|r| r.id == id) else { return };
        if let Some((coming, _)) = &mut reader.coming {
            (reader.length, reader.end) = (end - coming.start, end);
            coming.end = end;
        }
    }

    /// What was read ahead for a reader is there, as far as it could be had: in order of address. It is dropped where the
    /// reader is gone by now, or has come past it.
    pub fn landed(&mut self, id: u64, kept: impl IntoIterator<Item = (u64, T)>) {
        let Some(reader) = self.readers.iter_mut().find(|r| r.id == id) else { return };
        reader.coming = None;
        let at = reader.at;
        reader.kept.extend(kept.into_iter().filter(|(block, _)| *block >= at));
    }

    /// Since when any of these blocks is being read ahead, if it is.
    #[must_use]
    pub fn coming(&self, volume: u16, blocks: &Range<u64>) -> Option<u64> {
        let of_volume = self.readers.iter().filter(|r| r.volume == volume).filter_map(|r| r.coming.as_ref());
        of_volume.filter(|(c, _)| meet(c, blocks)).map(|(_, since)| *since).min()
    }

    /// What is kept of a block.
    pub fn of(&self, volume: u16, block: u64) -> impl Iterator<Item = &T> {
        let near = self.readers.iter().filter(move |r| r.volume == volume && r.at <= block && block < r.end);
        near.flat_map(move |r| {
            r.kept.iter().skip_while(move |(b, _)| *b < block).take_while(move |(b, _)| *b == block).map(|(_, kept)| kept)
        })
    }

    /// Lets go of readers that have ended.
    pub fn rest(&mut self, now: u64) {
        self.readers.retain(|r| r.coming.is_some() || now - r.used < IDLE_NS);
    }

    /// Lets go of all that is kept of a volume.
    pub fn forget(&mut self, volume: u16) {
        self.readers.retain(|r| r.volume != volume);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;

    fn read(readers: &mut Readers<()>, now: u64, block: u64, joined: u32, run: u64) -> Option<(u64, Range<u64>)> {
        readers.step(now, &Step { volume: 1, blocks: block..block + 1, joined, run }, 32)
    }

    fn all(blocks: Range<u64>) -> impl Iterator<Item = (u64, ())> {
        blocks.map(|b| (b, ()))
    }

    #[test]
    fn a_run_is_read_ahead_as_far_as_it_has_come_and_again_at_half() {
        let mut r = Readers::default();
        assert_eq!((0..3).find_map(|n| read(&mut r, 0, n, n as u32, n + 1)), None, "it may be chance");
        assert_eq!(read(&mut r, 0, 3, 3, 4), Some((1, 4..8)));
        assert_eq!(read(&mut r, 0, 4, 4, 5), None, "one piece at a time");
        assert_eq!((r.coming(1, &(4..5)), r.coming(1, &(8..9)), r.coming(2, &(4..5))), (Some(0), None, None));
        r.landed(1, all(4..8));
        assert_eq!(read(&mut r, 0, 5, 5, 6), Some((1, 8..14)), "half is used");
        r.landed(1, all(8..14));
        assert_eq!((0..16).map(|b| r.of(1, b).count()).collect::<Vec<_>>(), [vec![0; 5], vec![1; 9], vec![0; 2]].concat());
        assert_eq!((6..10).find_map(|n| read(&mut r, 0, n, n as u32, n + 1)), None);
        assert_eq!(read(&mut r, 0, 10, 10, 1000), Some((1, 14..46)), "no more than the most");
    }

    #[test]
    fn what_its_reader_has_passed_is_let_go_and_so_is_all_when_it_has_ended() {
        let mut r = Readers::default();
        read(&mut r, 0, 100, 3, 8);
        assert_eq!(read(&mut r, 0, 105, 1, 8), None);
        r.landed(1, all(101..109));
        assert_eq!((r.of(1, 104).count(), r.of(1, 105).count(), r.of(2, 105).count()), (0, 1, 0));
        r.rest(IDLE_NS - 1);
        assert!(!r.is_empty());
        r.rest(IDLE_NS);
        assert!(r.is_empty());
        read(&mut r, 0, 100, 3, 8);
        r.forget(2);
        assert!(!r.is_empty());
        r.forget(1);
        r.landed(2, all(101..109));
        assert!(r.is_empty() && r.of(1, 102).next().is_none(), "what comes then is for nobody");
    }

    #[test]
    fn nobody_loses_his_place_to_another_while_he_reads() {
        let mut r = Readers::default();
        let places: Vec<_> = (0..2 * READERS as u64).filter_map(|n| read(&mut r, n, n * 1000, 3, 8)).collect();
        assert_eq!(places.len(), READERS);
        (1..=READERS as u64).for_each(|id| r.landed(id, []));
        assert_eq!(read(&mut r, IDLE_NS - 1, 1 << 20, 3, 8), None);
        assert!(read(&mut r, IDLE_NS, 1 << 20, 3, 8).is_some());
        assert_eq!(read(&mut r, IDLE_NS, 1 << 21, 3, 8), None);
    }

    #[test]
    fn a_piece_that_was_cut_goes_on_where_it_ends() {
        let mut r = Readers::default();
        assert_eq!(read(&mut r, 0, 3, 3, 32), Some((1, 4..36)));
        r.cut(1, 12);
        r.cut(2, 8);
        assert_eq!((r.coming(1, &(11..12)), r.coming(1, &(12..13))), (Some(0), None));
        r.landed(1, all(4..12));
        assert_eq!(read(&mut r, 0, 6, 4, 33), None);
        assert_eq!(read(&mut r, 0, 7, 5, 34), Some((1, 12..44)));
    }

    #[test]
    fn a_reader_that_leaves_gaps_is_not_followed_further() {
        let mut r = Readers::default();
        assert!(read(&mut r, 0, 3, 3, 8).is_some());
        r.landed(1, all(4..12));
        assert_eq!((4..40).step_by(2).find_map(|n| read(&mut r, 0, n, 0, 8)), None);
    }
}
