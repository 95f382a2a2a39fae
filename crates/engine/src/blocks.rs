//! Which blocks have been named in a segment, in few bits each.
//!
//! Eviction, relocation and scrubbing ask for them, rarely; each block that is cached is in at least one such list, so
//! it has to be small. New ones are kept as they come. Once nothing is appended any more they are put in order of address,
//! and of each only the distance to the one before is kept, in an exponential Golomb code: a distance below `2^low` takes
//! `low + 1` bits, and each doubling beyond two more. With half of the distances below that, it is 1 bit a block for
//! blocks in a row, 11 where one block in 256 is here, 19 for one in 65,536; and a few long ways cost next to nothing.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::mem::size_of;

/// A set of blocks. What was put in twice may come out twice.
#[derive(Clone, Debug, Default)]
pub struct Blocks {
    /// Blocks in `code`.
    packed: u32,
    /// Bits of a distance that is not long.
    low: u8,
    /// The first block, by address.
    first: u64,
    /// Distances to the others, less one each.
    code: Box<[u64]>,
    recent: Vec<u64>,
}

/// So many new ones at least are worth packing what is there once more.
const FEW: usize = 64;

impl Blocks {
    /// Puts a block in.
    pub fn push(&mut self, block: u64) {
        if self.recent.last() != Some(&block) {
            self.recent.push(block);
        }
    }

    /// Packs what has come in, if that is as much as is packed already: over all, each block is packed about twice.
    pub fn pack_if_many(&mut self) {
        if self.recent.len() >= FEW.max(self.packed as usize) {
            self.pack();
        }
    }

    /// Packs what has come in; how many blocks that took.
    pub fn pack(&mut self) -> usize {
        if self.recent.is_empty() {
            return 0;
        }
        let mut blocks = self.to_vec();
        // The packed ones are in order already, which a stable sort makes use of.
        blocks.sort();
        blocks.dedup();
        *self = Self::of(&blocks);
        blocks.len()
    }

    /// Blocks in order, each once.
    fn of(blocks: &[u64]) -> Self {
        let Some(first) = blocks.first() else { return Self::default() };
        let mut distances: Vec<u64> = blocks.windows(2).map(|w| w[1] - w[0] - 1).collect();
        let half = distances.len() / 2;
        let low = if half == 0 { 0 } else { (*distances.select_nth_unstable(half).1 + 1).ilog2() };
        // With 2^low on top, a distance has at least low + 1 bits. How many more is said by as many zeroes before it.
        let codes = || blocks.windows(2).map(|w| w[1] - w[0] - 1 + (1 << low)).map(|x| (x, x.ilog2()));
        let bits: u32 = codes().map(|(_, below)| below - low + 1 + below).sum();
        let mut code = alloc::vec![0u64; bits.div_ceil(64) as usize].into_boxed_slice();
        let mut at = 0;
        for (x, below) in codes() {
            at += (below - low) as usize;
            code[at / 64] |= 1 << (at % 64);
            at += 1;
            let (x, shift) = (x & ((1 << below) - 1), at % 64);
            at += below as usize;
            if below > 0 {
                code[(at - below as usize) / 64] |= x << shift;
            }
            if shift + below as usize > 64 {
                code[at / 64] |= x >> (64 - shift);
            }
        }
        Self { packed: blocks.len() as u32, low: low as u8, first: *first, code, recent: Vec::new() }
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = u64> + '_ {
        let (mut at, mut last) = (0, self.first);
        let packed = (0..self.packed).map(move |n| {
            if n > 0 {
                last += self.distance(&mut at) + 1;
            }
            last
        });
        packed.chain(self.recent.iter().copied())
    }

    /// The distance whose code begins at bit `at`, which is moved behind it.
    fn distance(&self, at: &mut usize) -> u64 {
        let begun = *at;
        while self.code[*at / 64] >> (*at % 64) == 0 {
            *at = (*at / 64 + 1) * 64;
        }
        *at += (self.code[*at / 64] >> (*at % 64)).trailing_zeros() as usize;
        let more = *at - begun;
        *at += 1;
        let (below, shift) = (more + usize::from(self.low), *at % 64);
        let mut x = if below > 0 { self.code[*at / 64] >> shift } else { 0 };
        *at += below;
        if shift + below > 64 {
            x |= self.code[*at / 64] << (64 - shift);
        }
        (x & ((1 << below) - 1)) + (1 << below) - (1 << self.low)
    }

    /// All of them, to be kept while the segment changes.
    #[must_use]
    pub fn to_vec(&self) -> Vec<u64> {
        let mut all = Vec::with_capacity(self.packed as usize + self.recent.len());
        all.extend(self.iter());
        all
    }

    /// Bytes of memory that it takes beside itself, without the allocator's own.
    #[must_use]
    pub fn memory(&self) -> usize {
        (self.code.len() + self.recent.capacity()) * size_of::<u64>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::collections::BTreeSet;

    /// What goes in comes out, in order once it is packed; the bits of each.
    fn check(blocks: &[u64]) -> f64 {
        let mut set = Blocks::default();
        for b in blocks {
            set.push(*b);
            set.pack_if_many();
        }
        let expected: BTreeSet<u64> = blocks.iter().copied().collect();
        assert_eq!(set.iter().collect::<BTreeSet<u64>>(), expected);
        set.pack();
        assert_eq!(set.to_vec(), expected.iter().copied().collect::<Vec<u64>>());
        set.memory() as f64 * 8.0 / expected.len().max(1) as f64
    }

    #[test]
    fn every_set_of_few_blocks_comes_out_as_it_went_in() {
        for bits in 0..1u64 << 12 {
            let low: Vec<u64> = (0..12).filter(|b| bits >> b & 1 == 1).collect();
            check(&low);
            check(&low.iter().rev().map(|b| (1 << 50) + (b << (b * 2))).collect::<Vec<_>>());
        }
    }

    #[test]
    fn distances_of_all_sizes_come_out_as_they_went_in() {
        let mut dice = 1u64;
        for spread in 0..53 {
            for count in [1, 2, 3, 63, 64, 65, 1000] {
                let mut next = || {
                    dice = dice.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                    dice >> (63 - spread)
                };
                let blocks: Vec<u64> = (0..count).map(|_| next()).collect();
                check(&blocks);
            }
        }
    }

    #[test]
    fn a_block_takes_few_bits() {
        assert!(check(&(7 << 40..(7 << 40) + 4096).collect::<Vec<_>>()) < 1.1);
        let scattered = |region: u64| (0..4096u64).map(|b| b.wrapping_mul(0x9e37_79b9_7f4a_7c15) % region).collect::<Vec<_>>();
        // One block in 256; one of a TiB's in 65,536.
        assert!(check(&scattered(1 << 20)) < 11.5);
        assert!(check(&scattered(1 << 28)) < 19.5);
        // Two clusters far apart.
        let apart: Vec<u64> = (0..2048).chain(1 << 40..(1 << 40) + 2048).collect();
        assert!(check(&apart) < 1.1);
    }
}
