//! Whether writes want space in the cache just now: while they come, and in pauses no longer than those that they made before.
//!
//! Destage wins space at the cost of clients that use the disk. Where nobody writes into the cache that space is for nobody
//! yet: a stream over a cache that was filled a moment ago is not to be slower than on the disk alone. But who writes in
//! bursts, as page caches do every few seconds, wants it between them too.

/// So long writes that ended are wanted for anyway, in nanoseconds.
const SPAN_NS: u64 = 250_000_000;
/// Writes count whose rate is at least this part of what destage has reached lately: less finds room for a long time. What it reaches
/// beside streams says nothing of that: there the beginnings of these, which are absorbed, would soon be as much.
const PART: u64 = 8;
/// What comes at once counts if it would be that rate for this long, in nanoseconds: a file system's journal has a few dozen blocks
/// written every five seconds, and wants no space for that.
const AT_ONCE_NS: u64 = 2_000_000_000;
/// A longer pause is the end, in nanoseconds.
const LONGEST_PAUSE_NS: u64 = 6_000_000_000;
/// So long a pause is remembered that does not come again, in nanoseconds.
const REMEMBERED_NS: u64 = 60_000_000_000;

/// What is known of writes into the cache.
#[derive(Clone, Copy, Default, Debug)]
pub struct Demand {
    /// Bytes written lately: as much of them as counts is forgotten in each second. And when that was reckoned last.
    lately: u64,
    reckoned: u64,
    /// The most that destage reached, in bytes per second, forgotten over a minute.
    destage: u64,
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
        let past = now.saturating_sub(self.reckoned);
        let forgotten = u128::from(self.destage) * u128::from(past.min(REMEMBERED_NS)) / u128::from(REMEMBERED_NS);
        self.destage = destage.max(self.destage - forgotten as u64);
        let of = |ns: u64| (u128::from(self.destage / PART) * u128::from(ns) / 1_000_000_000) as u64;
        self.lately = self.lately.saturating_sub(of(past)) + bytes;
        self.reckoned = now;
        if self.lately < of(AT_ONCE_NS) {
            return false;
        }
        self.lately = of(AT_ONCE_NS);
        let pause = self.last.map_or(0, |last| now.saturating_sub(last));
        if now.saturating_sub(self.paused_at) > REMEMBERED_NS || pause >= self.pause && pause <= LONGEST_PAUSE_NS {
            (self.pause, self.paused_at) = (if pause <= LONGEST_PAUSE_NS { pause } else { 0 }, now);
        }
        self.last = Some(now);
        self.under_way += 1;
        true
    }

    /// A write waits for its turn. Who is held back wants space, however little comes of him for that: else he would wait for a sweep that
    /// does not begin.
    pub fn held_back(&mut self, now: u64) {
        self.last = Some(now);
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
    const DESTAGE: u64 = 3 << 19;

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
        assert!(!(0..1200).any(|s| demand.is_there(s * 50 * MS)));
    }

    /// Each commit could be taken for a burst, and the next one expected: streams beside it would have a sweep all the while.
    #[test]
    fn a_journal_that_commits_every_five_seconds_wants_nothing() {
        let mut demand = Demand::default();
        writes(&mut demand, 0, 8000, 1);
        assert!(demand.is_there(8000 * MS));
        for n in 2..20 {
            (0..40).for_each(|block| write(&mut demand, n * 5000 + block, n * 5000 + block));
            assert!(!demand.is_there((n * 5000 + 100) * MS), "{n}");
        }
    }

    /// The sweep beside streams reached a twentieth of what it had before, and what of the streams was absorbed wanted space by that.
    #[test]
    fn what_is_little_by_what_destage_reached_before_wants_nothing() {
        let mut demand = Demand::default();
        writes(&mut demand, 0, 8000, 1);
        for ms in (8300..20_000).step_by(40) {
            assert!(!demand.note(ms * MS, 4096, DESTAGE / 20), "{ms}");
        }
        // Who is held back comes seldom for that, and wants it all the more.
        demand.held_back(20_000 * MS);
        assert!(demand.is_there(20_100 * MS));
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
        assert!(!demand.is_there(15_600 * MS));
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
