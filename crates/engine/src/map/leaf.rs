//! What the map knows of 64 consecutive blocks, in as little memory as there are blocks.

use super::piece::{Mask, Piece};
use crate::io::BLOCK_SECTORS;
use alloc::boxed::Box;
use alloc::vec::Vec;
use core::cell::Cell;

/// A piece that is a whole block, all live: version (56 bits), checksum (64), segment (24) and offset (16). Whether it is
/// dirty is in the leaf. In words of 32 bits, as those of 64 would make 24 bytes of it.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Row([u32; 5]);

impl Row {
    /// In place of the offset of what stands for zeroes: no whole block of data begins at a segment's last sector.
    const ZEROES: u16 = u16::MAX;

    /// `None` for a piece that takes a place aside. That is also for a segment number that a pool of fewer than 2^24
    /// segments does not have, as that of one that is lost.
    pub(super) fn of(piece: &Piece) -> Option<Self> {
        let offset = if piece.zeroes() { Self::ZEROES } else { piece.offset };
        let is_whole = piece.live == Mask::MAX && piece.first() == 0 && u64::from(piece.sectors()) == BLOCK_SECTORS;
        if !is_whole || piece.segment >> 24 != 0 || piece.zeroes() != (offset == Self::ZEROES) {
            return None;
        }
        let version = piece.version() | u64::from(offset) << 56;
        let segment = piece.segment | u32::from(offset) >> 8 << 24;
        Some(Self([piece.sum as u32, (piece.sum >> 32) as u32, version as u32, (version >> 32) as u32, segment]))
    }

    #[inline]
    pub(super) fn piece(&self, dirty: bool) -> Piece {
        let [sum, sum_high, version, version_high, segment] = self.0;
        let version = u64::from(version) | u64::from(version_high) << 32;
        let offset = (version >> 56 | u64::from(segment >> 24) << 8) as u16;
        let sum = u64::from(sum) | u64::from(sum_high) << 32;
        Piece::new(version, sum, segment & 0xff_ffff, offset, 0, BLOCK_SECTORS as u8, dirty, offset == Self::ZEROES)
    }
}

/// Up to 64 things, each with a number below 64: as much memory as there are.
#[derive(Clone, Debug)]
pub(super) struct Some64<T> {
    /// Numbers that are there.
    pub(super) there: u64,
    /// The things in order of their numbers, and room behind them: always as much as [`room`] says.
    things: Box<[T]>,
}

/// So many things there is room for where there are `count`: up to an eighth more, so that not each new one takes an
/// allocation.
pub(super) fn room(count: usize) -> usize {
    count.next_multiple_of((count.next_power_of_two() / 16).max(1))
}

impl<T> Default for Some64<T> {
    fn default() -> Self {
        Self { there: 0, things: Box::default() }
    }
}

impl<T: Clone + Default> Some64<T> {
    /// Those with these numbers, in order of them, best with [`room`] behind them.
    pub(super) fn of(there: u64, mut things: Vec<T>) -> Self {
        things.resize(room(things.len()), T::default());
        Self { there, things: things.into_boxed_slice() }
    }

    #[inline]
    fn rank(&self, bit: u64) -> usize {
        (self.there & ((1 << bit) - 1)).count_ones() as usize
    }

    #[inline]
    pub(super) fn get(&self, bit: u64) -> Option<&T> {
        (self.there >> bit & 1 == 1).then(|| &self.things[self.rank(bit)])
    }

    /// Those of the numbers in `among`.
    pub(super) fn iter(&self, among: u64) -> impl Iterator<Item = (u64, &T)> {
        bits(self.there & among).map(|bit| (bit, &self.things[self.rank(bit)]))
    }

    /// The one with this number, which is there from now on.
    pub(super) fn get_or_new(&mut self, bit: u64) -> &mut T {
        let at = self.rank(bit);
        if self.there >> bit & 1 == 0 {
            let count = self.there.count_ones() as usize;
            self.make_room(count + 1);
            self.things[at..=count].rotate_right(1);
            self.there |= 1 << bit;
        }
        &mut self.things[at]
    }

    pub(super) fn remove(&mut self, bit: u64) {
        if self.there >> bit & 1 == 1 {
            let (at, count) = (self.rank(bit), self.there.count_ones() as usize);
            self.things[at] = T::default();
            self.things[at..count].rotate_left(1);
            self.make_room(count - 1);
            self.there &= !(1 << bit);
        }
    }

    fn make_room(&mut self, count: usize) {
        let room = room(count);
        if room != self.things.len() {
            let mut things = core::mem::take(&mut self.things).into_vec();
            things.reserve_exact(room.saturating_sub(things.len()));
            things.resize(room, T::default());
            self.things = things.into_boxed_slice();
        }
    }

    /// What there is room for.
    pub(super) fn room(&self) -> u64 {
        self.things.len() as u64
    }
}

/// The numbers of the bits that are set.
pub(super) fn bits(mut of: u64) -> impl Iterator<Item = u64> {
    core::iter::from_fn(move || {
        let bit = (of != 0).then(|| u64::from(of.trailing_zeros()));
        of &= of.wrapping_sub(1);
        bit
    })
}

#[derive(Clone, Debug, Default)]
pub(super) struct Leaf {
    pub(super) rows: Some64<Row>,
    /// Blocks whose pieces are aside.
    pub(super) aside: u64,
    /// Blocks with anything dirty.
    pub(super) dirty: u64,
    /// Blocks that a client asked for, and of these the ones that it asked for twice.
    pub(super) asked: Cell<[u64; 2]>,
}

impl Leaf {
    /// Some of its blocks were asked for; what is not there does not count.
    pub(super) fn ask(&self, blocks: u64) {
        let ([once, twice], blocks) = (self.asked.get(), blocks & self.present());
        self.asked.set([once | blocks, twice | once & blocks]);
    }

    /// Blocks with anything cached.
    pub(super) fn present(&self) -> u64 {
        self.rows.there | self.aside
    }

    /// The piece of a block that has a row.
    #[inline]
    pub(super) fn piece(&self, bit: u64) -> Option<Piece> {
        self.rows.get(bit).map(|row| row.piece(self.dirty >> bit & 1 == 1))
    }
}

#[cfg(test)]
mod tests {
    use super::super::piece::VERSION;
    use super::*;

    #[test]
    fn a_row_says_what_the_piece_does() {
        for version in [0, 1, 0x12_3456_789a_bcde, VERSION] {
            for segment in [0, 1, 0x00ab_cdef, 0xff_ffff, 1 << 24, u32::MAX] {
                for offset in [0, 1, 0x1234, u16::MAX - 1, u16::MAX] {
                    for flags in 0..4 {
                        let (dirty, zeroes) = (flags & 1 == 1, flags & 2 == 2);
                        let piece = Piece::new(version, !version << 3, segment, offset, 0, 8, dirty, zeroes);
                        let fits = segment < 1 << 24 && (zeroes || offset != u16::MAX);
                        assert_eq!(Row::of(&piece).map(|row| row.piece(dirty)), fits.then_some(piece));
                    }
                }
            }
        }
        let part = Piece::new(1, 2, 3, 4, 0, 7, false, false);
        let mut torn = Piece::new(1, 2, 3, 4, 0, 8, false, false);
        torn.live = 0x7f;
        assert!(Row::of(&part).is_none() && Row::of(&torn).is_none());
        assert_eq!((size_of::<Row>(), size_of::<Leaf>(), size_of::<Some64<Leaf>>()), (20, 56, 24));
    }
}
