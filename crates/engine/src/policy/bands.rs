//! Which of several open segments a write goes to while space is short: what is near on the disk lies together in the log.
//!
//! A sweep goes by address. Where the log is in order of time alone, each segment holds something of everywhere, and is
//! free only when the sweep has gone nearly round: what is taken is twice what is dirty (hazard H9). Where each of several
//! open segments takes a band of addresses, all that one holds goes down while the sweep is in its band, and what is
//! taken is not much more than what is dirty: the same space holds half as much again, and the sweep finds it lying closer.
//! To move what is left in half empty segments would not do that by itself, in the order of time: it would come to lie among
//! what was written just now, and be left there again. Sorted it is worth it where a segment would stay taken for little.

use alloc::vec::Vec;

/// The most bands there are.
pub const MOST: usize = 8;
/// Percent of the space from which on what is left of a burst is in the way.
const DENSE: u32 = 80;
/// How many times as much as goes down comes in a burst.
const BURST: u64 = 4;
/// Writes from which the borders are drawn anew; at first an eighth of these has to do.
const SEEN: usize = 256;

/// How many bands are worth their open segments, each half empty on an average, where so many segments may hold dirty data.
#[must_use]
pub fn number(segments: u64) -> usize {
    (segments.isqrt() as usize * 3 / 4).clamp(1, MOST)
}

/// Bands in use from now on, of `most`, while `now` are and writes may come at `rate`, if that is limited, where destage
/// reaches `destage`, both in bytes per second. Sorted writes share fewer records, and cost the cache devices more
/// operations: a burst had better come in the order of time, and what has to wait for the sweep anyway had better be sorted
/// for it. What is sorted stays so until there is room again, since each change leaves segments behind that are not full.
#[must_use]
pub fn wanted(rate: Option<u64>, destage: u64, now: usize, most: usize) -> usize {
    match rate {
        None => 1,
        Some(rate) if rate <= destage.saturating_mul(BURST) => most,
        Some(_) => now.min(most),
    }
}

/// What is taken by dirty data in so many bands, in percent of that data, where as much is written as goes down: in one,
/// twice as much, in the order of time. In many it would be as much as there is and a band more, but for what waits to be called
/// clean, for the next checkpoint, or for the rest of an open segment. Less is reckoned with than the half as much again that is measured
/// then: this is to slow down a burst, and [`crate::policy::pace`] looks at what is taken as well.
#[must_use]
pub fn taken_by_dirty(bands: usize) -> u64 {
    120 + 80 / bands.max(1) as u64
}

/// Sectors of dirty data up to which a segment of `capacity` is moved while space is short and `taken` percent of it are. What
/// the sweep has gone by in a sorted one is little. Of one that a burst left, which has something of everywhere, two thirds
/// are won: worth it where that is what writes wait for.
#[must_use]
pub fn worth_moving(sorted: bool, taken: u32, capacity: u32) -> u32 {
    match sorted {
        true => capacity / 8,
        false if taken >= DENSE => capacity / 3,
        false => 0,
    }
}

/// The borders between bands, from what was written lately: each band is to get as many writes as any other.
#[derive(Clone, Default, Debug)]
pub struct Bands {
    seen: Vec<u64>,
    /// In order; one less than there are bands.
    borders: Vec<u64>,
}

impl Bands {
    /// The band that a write to `block` goes to, below `bands`, while the sweep is at `sweep`: the first is what comes next.
    pub fn of(&mut self, block: u64, sweep: u64, bands: usize) -> usize {
        if bands <= 1 {
            return 0;
        }
        // What lies behind the sweep comes after all that is before it.
        let block = block.wrapping_sub(sweep);
        self.seen.push(block);
        if self.seen.len() >= if self.borders.is_empty() { SEEN / 8 } else { SEEN } {
            self.seen.sort_unstable();
            self.borders = (1..bands).map(|n| self.seen[n * self.seen.len() / bands]).collect();
            self.seen.clear();
        }
        self.borders.partition_point(|border| *border <= block).min(bands - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_band_gets_its_share_wherever_the_writes_go() {
        let mut bands = Bands::default();
        let mut state = 1u64;
        let mut share = [0u32; 4];
        for n in 0..10_000 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            // All in the first thousandth of a large disk.
            let band = bands.of((state >> 33) % 1_000_000, 0, 4);
            if n >= SEEN {
                share[band] += 1;
            }
        }
        assert!(share.iter().all(|n| *n > 2_000), "{share:?}");
    }

    #[test]
    fn a_band_is_one_run_of_addresses() {
        let mut bands = Bands::default();
        for n in 0..(SEEN + SEEN / 8) as u64 {
            bands.of(n * 37 % 256 * 1000, 0, 8);
        }
        let of: Vec<usize> = (0..256).map(|n| bands.of(n * 1000, 0, 8)).collect();
        assert!(of.is_sorted() && of[0] == 0 && of[255] == 7, "{of:?}");
    }

    #[test]
    fn one_place_written_again_and_again_is_in_some_band() {
        let mut bands = Bands::default();
        assert!((0..1000).all(|_| bands.of(77, 100, 8) < 8));
    }

    #[test]
    fn few_segments_make_few_bands() {
        assert_eq!([0, 8, 9, 64, 120, 121, 1 << 20].map(number), [1, 1, 2, 6, 7, 8, 8]);
        assert_eq!([1, 4, 8].map(taken_by_dirty), [200, 140, 130]);
    }

    #[test]
    fn what_is_left_of_a_burst_is_moved_only_where_it_is_in_the_way() {
        assert_eq!([79, 80].map(|taken| worth_moving(false, taken, 2400)), [0, 800]);
        assert_eq!([79, 80].map(|taken| worth_moving(true, taken, 2400)), [300, 300]);
    }

    #[test]
    fn a_burst_is_not_sorted_and_what_is_sorted_stays_so_until_there_is_room() {
        assert_eq!([None, Some(100), Some(40), Some(1)].map(|rate| wanted(rate, 10, 1, 8)), [1, 1, 8, 8]);
        assert_eq!([None, Some(100), Some(40)].map(|rate| wanted(rate, 10, 8, 8)), [1, 8, 8]);
        assert_eq!(wanted(Some(100), 10, 8, 3), 3, "a cache device has left");
    }
}
