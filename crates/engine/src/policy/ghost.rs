//! What was let go a while ago: which blocks, and nothing of what they held.
//!
//! A block that comes back while it is remembered was let go too early, and is kept with those that have proved themselves
//! (S3-FIFO, Yang et al., "FIFO queues are all you need for cache eviction", SOSP 2023). Seven bits for each: nine in a word, in
//! the order in which they came. One block in fourteen is taken for another that is remembered, which costs nothing but its place.

use alloc::vec;
use alloc::vec::Vec;

/// Remembered blocks in a bucket.
const SLOTS: u64 = 9;
/// Bits of each.
const BITS: u64 = 7;
const MARK: u64 = (1 << BITS) - 1;
/// Blocks remembered, in percent of those that can be cached. The original remembers 90; on traces of block devices 120 find
/// what comes round once in as long as it takes to fill the cache.
const REMEMBERED_PERCENT: u64 = 120;

/// The memory.
#[derive(Clone, Default, Debug)]
pub struct Ghost {
    /// Marks of blocks, not zero; the latest in the lowest bits.
    buckets: Vec<u64>,
}

impl Ghost {
    /// Room for what a cache of `blocks` blocks lets go. It forgets all if that is not what there is room for.
    pub fn fit(&mut self, blocks: u64) {
        let buckets = (blocks * REMEMBERED_PERCENT / 100).div_ceil(SLOTS) as usize;
        if buckets != self.buckets.len() {
            self.buckets = vec![0; buckets];
        }
    }

    /// Bytes of memory that it takes.
    #[must_use]
    pub fn memory(&self) -> u64 {
        (self.buckets.len() * size_of::<u64>()) as u64
    }

    /// A block was let go. Of its bucket the one that went first is forgotten.
    pub fn remember(&mut self, volume: u16, block: u64) {
        let Some((bucket, mark)) = self.find(volume, block) else { return };
        let others = without(self.buckets[bucket], mark).unwrap_or(self.buckets[bucket]);
        self.buckets[bucket] = (others << BITS) & ((1 << (BITS * SLOTS)) - 1) | mark;
    }

    /// Whether a block is remembered. From now on it is not.
    pub fn take(&mut self, volume: u16, block: u64) -> bool {
        let Some((bucket, mark)) = self.find(volume, block) else { return false };
        let rest = without(self.buckets[bucket], mark);
        if let Some(rest) = rest {
            self.buckets[bucket] = rest;
        }
        rest.is_some()
    }

    fn find(&self, volume: u16, block: u64) -> Option<(usize, u64)> {
        // The finalizer of SplitMix64 (Steele, Lea and Flood, 2014).
        let mut h = block ^ u64::from(volume) << 48;
        h = (h ^ h >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        h = (h ^ h >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        h ^= h >> 31;
        let bucket = ((u128::from(h) * self.buckets.len() as u128) >> 64) as usize;
        (!self.buckets.is_empty()).then_some((bucket, (h & MARK).max(1)))
    }
}

/// The bucket without a mark, closed up; `None` if the mark is not there.
fn without(bucket: u64, mark: u64) -> Option<u64> {
    let slot = (0..SLOTS).find(|slot| bucket >> (BITS * slot) & MARK == mark)?;
    let newer = (1 << (BITS * slot)) - 1;
    Some(bucket & newer | bucket >> BITS & !newer)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(blocks: u64, let_go: core::ops::Range<u64>) -> Ghost {
        let mut ghost = Ghost::default();
        ghost.fit(blocks);
        let_go.for_each(|n| ghost.remember(1, n));
        ghost
    }

    #[test]
    fn what_was_let_go_is_remembered_once() {
        let mut ghost = Ghost::default();
        ghost.remember(1, 5);
        assert!(!ghost.take(1, 5), "there is no room at all");
        let mut ghost = of(8000, 5..7);
        assert!(!ghost.take(2, 5) && ghost.take(1, 5) && !ghost.take(1, 5) && ghost.take(1, 6));
    }

    #[test]
    fn the_latest_are_remembered_and_few_taken_for_others() {
        let mut ghost = of(8000, 0..100_000);
        let latest = (95_000..100_000).filter(|n| ghost.take(1, *n)).count();
        assert!(latest > 4800, "{latest}");
        let others = (0..80_000).filter(|n| ghost.take(1, *n)).count();
        assert!(others < 80_000 / 12, "{others}");
    }

    #[test]
    fn a_block_that_is_let_go_again_takes_one_place() {
        let mut ghost = of(6, 5..6);
        let once = ghost.buckets.clone();
        (0..100).for_each(|_| ghost.remember(1, 5));
        assert_eq!((ghost.buckets.len(), &ghost.buckets), (1, &once));
        assert!(ghost.take(1, 5));
        assert_eq!(ghost.buckets, [0]);
    }

    #[test]
    fn a_bucket_is_closed_up_where_one_is_taken_out() {
        let bucket = |marks: &[u64]| marks.iter().rev().fold(0, |bucket, mark| bucket << BITS | mark);
        let full = bucket(&[1, 2, 3, 4, 5, 6, 7, 8, 127]);
        assert_eq!(without(full, 2), Some(bucket(&[1, 3, 4, 5, 6, 7, 8, 127])));
        assert_eq!(without(full, 1), Some(bucket(&[2, 3, 4, 5, 6, 7, 8, 127])));
        assert_eq!(without(full, 127), Some(bucket(&[1, 2, 3, 4, 5, 6, 7, 8])));
        assert_eq!(without(full, 9), None);
    }
}
