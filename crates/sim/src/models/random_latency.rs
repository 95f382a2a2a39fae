//! Random latencies, for runs that look for wrong order and not for speed.

use super::completions::Completions;
use super::prng::SplitMix64;
use super::{Access, TimingModel};

/// One request in this many is slow.
const TAIL_ODDS: u64 = 64;
/// A slow request takes this many times its drawn time.
const TAIL_FACTOR: u64 = 20;

/// A device on which every request takes a random time, whatever it is, and none waits for another.
///
/// Completions therefore come in any order. The time is uniform in `[min, max]`; one request in 64
/// takes 20 times as long, so that a straggler outlives many generations of its neighbours.
#[derive(Debug)]
pub struct RandomLatency {
    min: u64,
    spread: u64,
    random: SplitMix64,
    completions: Completions,
}

impl RandomLatency {
    /// Latencies between `min` and `max` nanoseconds, both included, with `min <= max`; all of them
    /// follow from `seed`.
    pub fn new(min: u64, max: u64, seed: u64) -> Self {
        assert!(min <= max, "the shortest latency is not above the longest");
        RandomLatency { min, spread: max - min, random: SplitMix64::new(seed), completions: Completions::default() }
    }
}

impl TimingModel for RandomLatency {
    fn submit(&mut self, now: u64, id: u64, _op: Access) {
        let drawn = self.min + self.random.below(self.spread.saturating_add(1));
        let slow = self.random.below(TAIL_ODDS) == 0;
        let latency = if slow { drawn.saturating_mul(TAIL_FACTOR) } else { drawn };
        self.completions.push(now.saturating_add(latency), id);
    }

    fn next_completion(&self) -> Option<u64> {
        self.completions.next_time()
    }

    fn advance(&mut self, now: u64, done: &mut Vec<u64>) {
        self.completions.drain_until(now, done);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn order(seed: u64) -> Vec<u64> {
        let mut model = RandomLatency::new(1_000, 50_000, seed);
        for id in 0..1_000 {
            model.submit(id * 10, id, Access::read(0, 4096));
        }
        let mut done = Vec::new();
        model.advance(u64::MAX, &mut done);
        done
    }

    #[test]
    fn a_seed_fixes_the_order_and_another_seed_gives_another() {
        assert_eq!(order(1), order(1));
        assert_ne!(order(1), order(2));
    }

    #[test]
    fn every_request_completes_once_and_not_in_order_of_arrival() {
        let mut done = order(3);
        assert!(!done.is_sorted());
        done.sort_unstable();
        assert!(done.into_iter().eq(0..1_000));
    }

    #[test]
    fn latencies_keep_their_bounds_but_for_one_in_sixty_four() {
        let mut model = RandomLatency::new(1_000, 50_000, 4);
        let mut slow = 0;
        let mut done = Vec::new();
        for id in 0..64_000 {
            model.submit(0, id, Access::flush());
            let end = model.next_completion().unwrap();
            assert!((1_000..=50_000 * TAIL_FACTOR).contains(&end));
            slow += u32::from(end > 50_000);
            model.advance(end, &mut done);
        }
        assert_eq!(done.len(), 64_000);
        // A slow request whose drawn time was short stays below the bound: few are.
        assert!((850..1_050).contains(&slow), "{slow} slow requests of 64,000");
    }
}
