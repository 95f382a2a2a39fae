//! Whether writes want space in the cache just now: while they come, and in pauses no longer than those that they made before.
//!
//! Destage wins space at the cost of clients that use the disk. Where nobody writes into the cache that space is for nobody
//! yet: a stream over a cache that was filled a moment ago is not to be slower than on the disk alone. But who writes in
//! bursts, as page caches do every few seconds, wants it between them too.

/// Length of a span that is looked at as a whole, in nanoseconds.
const SPAN_NS: u64 = 250_000_000;
/// In a span that counts at least this part of what destage would win in it is written: less finds room for a long time.
const PART: u64 = 32;
/// A longer pause is the end, in nanoseconds.
const LONGEST_PAUSE_NS: u64 = 6_000_000_000;
/// So long a pause is remembered that does not come again, in nanoseconds.
const REMEMBERED_NS: u64 = 60_000_000_000;

/// What is known of writes into the cache.
#[derive(Clone, Copy, Default, Debug)]
pub struct Demand {
    /// When the span began, and what was written in it.
    since: u64,
    bytes: u64,
    /// Writes that count and are not answered.
    under_way: u32,
    /// When one that counts came or was answered, last.
    last: Option<u64>,
    /// The longest pause lately, and when it ended.
    pause: u64,
    paused_at: u64,
}

impl Demand {
    /// A client writes `bytes` that are for the cache, while destage reaches `destage` bytes per second: whether it counts. Where it
    /// does, [`Self::ended`] is called too.
    #[must_use]
    pub fn note(&mut self, now: u64, bytes: u64, destage: u64) -> bool {
        if now.saturating_sub(self.since) >= SPAN_NS {
            (self.since, self.bytes) = (now, 0);
        }
        self.bytes += bytes;
        if u128::from(self.bytes) * u128::from(PART) * 1_000_000_000 < u128::from(destage) * u128::from(SPAN_NS) {
            return false;
        }
        let pause = self.last.map_or(0, |last| now.saturating_sub(last));
        if now.saturating_sub(self.paused_at) > REMEMBERED_NS || pause >= self.pause && pause <= LONGEST_PAUSE_NS {
            (self.pause, self.paused_at) = (if pause <= LONGEST_PAUSE_NS { pause } else { 0 }, now);
        }
        self.last = Some(now);
        self.under_way += 1;
        true
    }

    /// A write that counts is answered. Who waits for that does not pause.
    pub fn ended(&mut self, now: u64) {
        self.under_way -= 1;
        self.last = Some(now);
    }

    /// Whether writes come, or may be expected to go on: the next one is not much later than the longest pause so far.
    #[must_use]
    pub fn is_there(&self, now: u64) -> bool {
        self.under_way > 0 || self.last.is_some_and(|last| now.saturating_sub(last) <= SPAN_NS + self.pause + self.pause / 4)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;
    const DESTAGE: u64 = 6 << 20;

    /// Writes of 4 KiB, one each `every` milliseconds.
    fn writes(demand: &mut Demand, from_ms: u64, to_ms: u64, every: u64) {
        (from_ms..to_ms).step_by(every as usize).for_each(|ms| write(demand, ms, ms));
    }

    /// One write of 4 KiB, from when until when.
    fn write(demand: &mut Demand, came_ms: u64, answered_ms: u64) {
        if demand.note(came_ms * MS, 4096, DESTAGE) {
            demand.ended(answered_ms * MS);
        }
    }

    #[test]
    fn writes_want_space_while_they_come_and_not_much_longer() {
        let mut demand = Demand::default();
        assert!(!demand.is_there(MS));
        writes(&mut demand, 1000, 9000, 1);
        assert!(demand.is_there(9000 * MS));
        assert!(!demand.is_there(9400 * MS));
    }

    #[test]
    fn a_few_writes_want_nothing() {
        let mut demand = Demand::default();
        writes(&mut demand, 1000, 60_000, 100);
        assert!(!demand.is_there(60_000 * MS));
        // A log of a file system, every five seconds.
        (0..10).for_each(|n| (0..3).for_each(|_| write(&mut demand, 60_000 + n * 5000, 60_000 + n * 5000)));
        assert!(!demand.is_there(110_000 * MS));
    }

    #[test]
    fn bursts_want_it_between_them_too_until_there_are_no_more() {
        let mut demand = Demand::default();
        (0..4).for_each(|n| writes(&mut demand, n * 5000, n * 5000 + 500, 1));
        assert!([15_600, 18_000, 20_000, 21_000].iter().all(|ms| demand.is_there(ms * MS)));
        assert!(!demand.is_there(22_000 * MS));
        // After a minute nobody reckons with pauses of that length any more.
        writes(&mut demand, 100_000, 180_000, 1);
        assert!(!demand.is_there(180_500 * MS));
    }

    /// Writers who all waited for one slow sweep of a small cache were taken for a burst every three seconds.
    #[test]
    fn who_waits_for_an_answer_does_not_pause() {
        let mut demand = Demand::default();
        for n in 0..5 {
            writes(&mut demand, n * 3000, n * 3000 + 300, 1);
            write(&mut demand, n * 3000 + 300, n * 3000 + 2999);
        }
        assert!(demand.is_there(15_000 * MS));
        assert!(!demand.is_there(15_400 * MS));
        assert!(demand.note(16_000 * MS, 1 << 20, DESTAGE) && demand.is_there(60_000 * MS));
    }

    #[test]
    fn what_comes_after_a_long_time_is_no_burst_of_a_row() {
        let mut demand = Demand::default();
        writes(&mut demand, 0, 500, 1);
        writes(&mut demand, 20_000, 20_500, 1);
        assert!(!demand.is_there(21_000 * MS));
    }
}
