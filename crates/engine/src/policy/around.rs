//! Which neighbourhoods are brought into the cache whole: a long read of a disk takes little more time than a short one.
//!
//! Where one place is missed, and then another near it, all that lies around them is read in one go. On a tree of small files, or
//! a cold cache, that saves a positioning of the arm for nearly each of a neighbourhood's blocks; where reads are scattered over
//! a large disk it saves nothing. Which of the two it is shows in what was brought before: each fill is watched until clients
//! have asked for enough of it, and how many may be watched grows with those that paid, and falls with those that did not.

use alloc::collections::VecDeque;
use alloc::vec;
use alloc::vec::Vec;
use core::ops::Range;

/// Blocks of a neighbourhood: a disk passes over so much in about the time that it needs to get to another place.
pub const BLOCKS: u64 = 256;
/// A neighbourhood's blocks, a bit each.
pub type Blocks = [u64; (BLOCKS / 64) as usize];

/// Neighbourhoods in which one place was missed, that are remembered at the most. They take four bytes each.
const REMEMBERED: usize = 1 << 15;
/// Fills that are watched at the most, and how many of them a miss looks at.
const WATCHED: usize = 4096;
const LOOKS_AT: usize = 4;
/// For so long a fill is watched that does not pay, in nanoseconds.
const WATCHED_NS: u64 = 60_000_000_000;
/// A fill has paid when clients have asked for so many blocks of what it brought that the disk would have needed so much more time
/// for them, in percent; for two blocks at the least.
const PAYS_PERCENT: u64 = 125;
const PAYS: u32 = 2;
/// In a full cache what it brings is in the place of something else: one block in so many has to be asked for.
const PAYS_PART: u32 = 4;
/// The cache is full for so long after something was evicted, in nanoseconds.
const FULL_NS: u64 = 60_000_000_000;
/// Fills that may be watched at first where there is room, and by how many that changes with one that paid, and one that did not:
/// where three in four pay they become more.
const AT_FIRST: usize = 4;
const MORE: usize = 1;
const LESS: usize = 3;

/// A fill that is watched.
#[derive(Clone, Debug)]
pub struct Brought {
    /// Which neighbourhood.
    pub neighbourhood: u64,
    /// What of it had not been there.
    pub blocks: Blocks,
    /// When it began, in nanoseconds.
    pub since: u64,
    /// How much of the disk's time it took, in nanoseconds.
    pub took: u64,
    /// The cache was full.
    pub full: bool,
}

/// What is known of the neighbourhoods of a volume.
#[derive(Clone, Debug)]
pub struct Neighbourhoods {
    /// By a hash of it, the neighbourhood missed last, and one added; none is there before the first miss.
    missed: Vec<u32>,
    /// What a missed block takes of the disk's time, in nanoseconds, lately.
    block_ns: u64,
    /// All fills that have neither paid nor failed to yet: no more are begun than may be watched, while there is room in the cache,
    /// and while it is full.
    watched: VecDeque<Brought>,
    may_watch: [usize; 2],
    /// Of the watched, those under way still.
    coming: usize,
    /// Segments that had been evicted when that was looked at, and when they last had become more.
    evicted: u64,
    evicted_at: Option<u64>,
}

impl Default for Neighbourhoods {
    fn default() -> Self {
        Self {
            missed: Vec::new(),
            block_ns: 0,
            watched: VecDeque::new(),
            may_watch: [AT_FIRST, 1],
            coming: 0,
            evicted: 0,
            evicted_at: None,
        }
    }
}

impl Neighbourhoods {
    /// Whether the cache is full, where so many segments have been evicted so far.
    pub fn is_full(&mut self, now: u64, evicted: u64) -> bool {
        if evicted != self.evicted {
            (self.evicted, self.evicted_at) = (evicted, Some(now));
        }
        self.evicted_at.is_some_and(|at| now.saturating_sub(at) < FULL_NS)
    }

    /// A read that stands by itself missed these blocks, and took so much of the disk's time, in nanoseconds: the neighbourhood where it
    /// begins, if another one in it missed not long ago and it may be brought, in a full cache or not. Then [`Self::brought`] is called,
    /// or [`Self::not_brought`]. No more than `most` are ever watched.
    pub fn missed(&mut self, blocks: &Range<u64>, took: u64, full: bool, most: usize) -> Option<u64> {
        if self.missed.is_empty() {
            self.missed = vec![0; REMEMBERED];
        }
        let block_ns = took / (blocks.end - blocks.start).max(1);
        self.block_ns = if self.block_ns == 0 { block_ns } else { (self.block_ns * 15 + block_ns) / 16 };
        let neighbourhood = blocks.start / BLOCKS;
        // Multiplicative hashing (Knuth, The Art of Computer Programming, 6.4): neighbourhoods side by side do not meet.
        let slot = (neighbourhood.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 49) as usize;
        let tag = (neighbourhood as u32).wrapping_add(1);
        if self.missed[slot] != tag {
            self.missed[slot] = tag;
            return None;
        }
        let may_watch = &mut self.may_watch[usize::from(full)];
        *may_watch = (*may_watch).min(most.max(1));
        if self.watched.len() + self.coming >= *may_watch {
            return None;
        }
        self.coming += 1;
        self.missed[slot] = 0;
        Some(neighbourhood)
    }

    /// A neighbourhood was brought.
    pub fn brought(&mut self, brought: Brought) {
        self.coming -= 1;
        self.watched.push_back(brought);
    }

    /// A neighbourhood was not brought after all.
    pub fn not_brought(&mut self) {
        self.coming -= 1;
    }

    /// Looks at some of the fills that are watched, in turn. `asked` says which of a range of blocks clients have asked for.
    pub fn look(&mut self, now: u64, asked: impl Fn(Range<u64>) -> Blocks) {
        for _ in 0..LOOKS_AT.min(self.watched.len()) {
            let Some(it) = self.watched.pop_front() else { return };
            let asked = asked(it.neighbourhood * BLOCKS..(it.neighbourhood + 1) * BLOCKS);
            let brought: u32 = it.blocks.iter().map(|bits| bits.count_ones()).sum();
            let used: u32 = it.blocks.iter().zip(asked).map(|(brought, asked)| (brought & asked).count_ones()).sum();
            let least = if it.full { (brought / PAYS_PART).max(PAYS) } else { PAYS };
            let may_watch = &mut self.may_watch[usize::from(it.full)];
            if used >= least && u64::from(used) * self.block_ns * 100 >= it.took * PAYS_PERCENT {
                *may_watch = (*may_watch + MORE).min(WATCHED);
            } else if now.saturating_sub(it.since) >= WATCHED_NS {
                *may_watch = may_watch.saturating_sub(LESS).max(1);
            } else {
                self.watched.push_back(it);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    const MS: u64 = 1_000_000;

    /// What is asked for of each neighbourhood, at once, what a miss takes, and whether the cache is full.
    struct Asked {
        blocks: Blocks,
        miss: u64,
        full: bool,
    }

    const SOME: Asked = Asked { blocks: [3, 0, 0, 0], miss: 4 * MS, full: false };

    /// Misses two places of each of so many neighbourhoods, and tells how many are brought; that takes 6 ms each.
    fn fills(neighbourhoods: &mut Neighbourhoods, of: Range<u64>, since: u64, asked: &Asked) -> usize {
        let (mut fills, full) = (0, asked.full);
        for neighbourhood in of {
            let at = |n: u64| neighbourhood * BLOCKS + n..neighbourhood * BLOCKS + n + 1;
            assert_eq!(neighbourhoods.missed(&at(0), asked.miss, full, 1000), None, "of one place nothing follows");
            if neighbourhoods.missed(&at(7), asked.miss, full, 1000) == Some(neighbourhood) {
                fills += 1;
                neighbourhoods.brought(Brought { neighbourhood, blocks: [u64::MAX; 4], since, took: 6 * MS, full });
            }
            neighbourhoods.look(since, |_| asked.blocks);
        }
        fills
    }

    #[test]
    fn where_fills_pay_every_neighbourhood_is_brought() {
        let mut neighbourhoods = Neighbourhoods::default();
        assert_eq!(fills(&mut neighbourhoods, 0..400, 0, &SOME), 400);
        assert!(neighbourhoods.may_watch[0] > 100, "{:?}", neighbourhoods.may_watch);
    }

    /// One block is asked for; or many, but the disk, whose head is there anyway, needs next to no time for each.
    #[test]
    fn where_they_do_not_pay_one_is_made_in_a_minute() {
        for asked in [Asked { blocks: [1, 0, 0, 0], ..SOME }, Asked { blocks: [0x7fff, 0, 0, 0], miss: MS / 3, full: false }] {
            let mut neighbourhoods = Neighbourhoods::default();
            let mut round = |n: u64| fills(&mut neighbourhoods, n * 1000..(n + 1) * 1000, n * SECOND, &asked);
            assert_eq!(round(0), 4);
            let later = (1..=600).map(&mut round).sum::<usize>();
            assert_eq!(later, 10);
        }
    }

    #[test]
    fn what_paid_for_long_and_does_so_no_more_is_soon_given_up() {
        let mut neighbourhoods = Neighbourhoods::default();
        fills(&mut neighbourhoods, 0..10_000, 0, &SOME);
        assert_eq!(
            fills(&mut neighbourhoods, 20_000..30_000, SECOND, &Asked { blocks: [0; 4], ..SOME }),
            1000,
            "no more than may be watched"
        );
        let few = fills(&mut neighbourhoods, 30_000..40_000, 100 * SECOND, &Asked { blocks: [0; 4], ..SOME });
        assert!(few < 10, "{few}");
    }

    #[test]
    fn in_a_full_cache_what_is_brought_has_to_be_used_more() {
        let mut neighbourhoods = Neighbourhoods::default();
        let full = Asked { full: true, ..SOME };
        assert_eq!(fills(&mut neighbourhoods, 0..1000, 0, &SOME), 1000);
        let few = (1..10).map(|n| fills(&mut neighbourhoods, n * 1000..(n + 1) * 1000, n * 60 * SECOND, &full)).sum::<usize>();
        assert!(few <= 10, "{few}");
        let used = Asked { blocks: [u64::MAX, 0, 0, 0], ..full };
        assert!(fills(&mut neighbourhoods, 30_000..32_000, 660 * SECOND, &used) > 1990);
    }

    #[test]
    fn the_cache_is_full_for_a_while_after_something_was_evicted() {
        let mut neighbourhoods = Neighbourhoods::default();
        assert!(!neighbourhoods.is_full(0, 0));
        assert!(
            neighbourhoods.is_full(SECOND, 1)
                && neighbourhoods.is_full(60 * SECOND, 1)
                && !neighbourhoods.is_full(61 * SECOND, 1)
        );
        assert!(neighbourhoods.is_full(62 * SECOND, 2));
    }

    #[test]
    fn neighbourhoods_that_are_missed_once_are_forgotten_for_others_and_not_mistaken_for_them() {
        let mut neighbourhoods = Neighbourhoods::default();
        for round in 0..3 {
            for n in 0..200_000 {
                let at = (n * 3 + round) * BLOCKS;
                assert_eq!(neighbourhoods.missed(&(at..at + 1), 5 * MS, false, 1000), None);
            }
        }
    }
}
