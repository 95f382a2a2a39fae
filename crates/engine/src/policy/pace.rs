//! How fast writes may be absorbed while the space for dirty data runs short: as fast as destage wins it back.
//!
//! A write that goes to the disk by itself costs the disk many times what it costs in a sweep. So a write that finds the
//! space short waits a little for its place in the log rather than take that time from the sweep: all writes together
//! are then served at the sweep's rate. Without it they fill the space at the SSDs' rate, and all that come in the
//! minute after, until the sweep has gone round, compete with it at the disk.

/// How near the space for dirty data is to its end.
#[derive(Clone, Copy, Debug)]
pub struct Room {
    /// Percent of what may be dirty that is taken: by dirty data, and by what lies in segments with it.
    pub taken_percent: u32,
    /// Percent of it that what is dirty now will take when the sweep has gone round and as much was written as went down. Log
    /// and sweep are in different orders, so that a segment is free only when its last record is down, some time after
    /// its first; [`crate::policy::bands`] says how long.
    pub soon_percent: u32,
    /// Up to here writes come as fast as they like.
    pub begin_percent: u32,
}

impl Room {
    /// What is taken, or what will be, in percent.
    #[must_use]
    pub fn pressure(&self) -> u32 {
        self.taken_percent.max(self.soon_percent.min(100))
    }
}

/// Longest time that a write waits for its place, in nanoseconds; one that would wait longer goes to the disk at once.
pub const LONGEST_NS: u64 = 250_000_000;
/// Shortest limit of it, in nanoseconds.
const SHORTEST_NS: u64 = 10_000_000;
/// Bytes that may be absorbed in one go after a time with less than the rate, as time at the rate in nanoseconds.
const CREDIT_NS: u64 = 20_000_000;
/// What destage is taken to reach before it was measured, in bytes per second: about a thousand small writes.
const UNMEASURED: u64 = 4 << 20;
/// Slowest pace, in bytes per second, so that no wait is for ever.
const SLOWEST: u64 = 64 << 10;
/// The pace is what destage reaches where what dirty data will take is two thirds of the way from the beginning to the
/// end: then what is gone of the way is to what is left as this.
const GONE_BY_LEFT: (u64, u64) = (2, 1);
/// And where this many percent of the space are taken.
const SETTLED: u64 = 91;
/// How much the pace changes with a percent more or less of it taken, in percent. Space that is written comes back a sweep
/// later, so that a change of the pace has an echo; the steeper this is the longer waves go on.
const SLOPE: u64 = 4;
/// And at the very end, for each percent that is left, so that the end is not reached: who finds no place at all goes to the disk,
/// and has to put it in order with what is dirty there.
const BRAKE: u64 = 14;

/// Bytes per second that may be absorbed while destage reaches `destage`; `None`: as many as come.
///
/// Two things fall smoothly to nothing at the end, and the lesser counts. What is dirty tells what a sweep will find, so that
/// a burst is slowed down to the sweep's rate before half of the space is taken, and the rest lasts until the first segments
/// are free. What is taken tells what there is now: in the long run as much comes as goes, with nearly all of it in use.
#[must_use]
pub fn rate(room: &Room, destage: u64) -> Option<u64> {
    let over = |percent: u32| percent.checked_sub(room.begin_percent).filter(|over| *over > 0).map(u64::from);
    let left = |percent: u32| u64::from(100u32.saturating_sub(percent));
    let (gone, rest) = GONE_BY_LEFT;
    let of_dirty = over(room.soon_percent).map(|over| destage.saturating_mul(left(room.soon_percent) * gone) / (over * rest));
    let of_taken = over(room.taken_percent).map(|_| {
        let percent = (100 + SETTLED * SLOPE).saturating_sub(u64::from(room.taken_percent) * SLOPE);
        destage.saturating_mul(percent.min(left(room.taken_percent) * BRAKE)) / 100
    });
    of_dirty.into_iter().chain(of_taken).min().map(|rate| rate.max(SLOWEST))
}

/// Whether so little may be absorbed that no more than a few writes of each second are.
#[must_use]
pub fn is_slowest(rate: u64) -> bool {
    rate <= SLOWEST
}

/// Part of the space for dirty data, as one in so many, of which a volume must have that much for its own sweep to win room; or half of an
/// even part, where many volumes have some.
const OWN_PART: u64 = 8;

/// Whether the space that is missing is others', where a volume takes `own` segments of the `taken` ones and may have `most`, and so many
/// `volumes` have some: its own sweep wins next to nothing. Theirs may not either, as where a disk answers nothing.
#[must_use]
pub fn is_others(own: u64, taken: u64, most: Option<u64>, volumes: u64) -> bool {
    own * OWN_PART.max(2 * volumes) < most.map_or(taken, |most| most.min(taken))
}

/// Writes of less than this are small, in bytes.
const SMALL: u64 = 16 << 10;
/// Writes of so many bytes are large: what a disk takes to get to the place of one is little by what it takes to write it.
pub const LARGE: u64 = 128 << 10;

/// What the disk takes for a write that goes there because it found no place: an average of the time by the writes in line.
#[derive(Clone, Copy, Default, Debug)]
pub struct Direct {
    ns: u64,
}

impl Direct {
    /// A write that found `line` others at the disk took `took`.
    pub fn note(&mut self, took: u64, line: u32) {
        let cost = took / (u64::from(line) + 1);
        self.ns = if self.ns == 0 { cost.max(1) } else { ((self.ns * 15 + cost) / 16).max(1) };
    }

    /// How long a write of `bytes` waits for its turn at most, if it would find `line` others at the disk. Of small ones a sweep makes
    /// several times what they are to the disk one by one, though its cache may answer them at once: each that goes there takes from the
    /// sweep, and so makes others wait, and go there. Of larger ones nobody waits longer than the disk would take with all of them there,
    /// and large ones, of which a sweep makes nothing, not at all. Where the space is `others`' small ones wait no longer than larger ones:
    /// the disk has next to nothing to sweep, and time for them.
    #[must_use]
    pub fn longest(&self, bytes: u64, line: u32, is_others: bool) -> u64 {
        if bytes >= LARGE {
            return 0;
        }
        if !is_others && (self.ns == 0 || bytes < SMALL) {
            return LONGEST_NS;
        }
        self.ns.saturating_mul(u64::from(line) + 1).clamp(SHORTEST_NS, LONGEST_NS)
    }
}

/// Turns come in steps, so that several writes have theirs at once and share a record: one by one each would have a header
/// of its own in the log, which with units of 4 KiB is as long as what it holds. A write waits longer for that, but no more
/// than as long again; and a step is shorter than the credit, so that the rate is the same.
/// This is the longest, in nanoseconds. All are powers of two, so that who waits long and who waits less meet.
const LONGEST_STEP_NS: u64 = 1 << 24;
const _: () = assert!(LONGEST_STEP_NS < CREDIT_NS);

/// Turns of those who wait, at a rate that changes.
#[derive(Clone, Copy, Default, Debug)]
pub struct Turns {
    next: u64,
}

impl Turns {
    /// The time at which a write of `bytes` that comes at `now` has its turn, or a step later; `None` if that is too late
    /// for it.
    pub fn take(&mut self, now: u64, bytes: u64, rate: u64, longest: u64) -> Option<u64> {
        let turn = self.next.max(now.saturating_sub(CREDIT_NS));
        if turn > now + longest {
            return None;
        }
        let costs = (u128::from(bytes) * 1_000_000_000 / u128::from(rate.max(1))) as u64;
        // The rate of a bad moment is not held against those who come long after it.
        self.next = turn + costs.min(LONGEST_NS);
        let turn = turn.max(now);
        let step = (turn - now + 1).next_power_of_two() / 2;
        Some(turn.next_multiple_of(step.clamp(1, LONGEST_STEP_NS)).min(now + longest))
    }
}

/// The rate that destage reaches: an average over about four seconds of its own time.
#[derive(Clone, Copy, Default, Debug)]
pub struct Reached {
    since: u64,
    bytes: u64,
    per_second: Option<u64>,
    /// The average over about a second.
    lately: u64,
    /// There was nothing left to write in this sample.
    ran_out: bool,
}

/// The average over four seconds counts up to so many times, as a fraction, that over one, which goes up and down with every pause.
const FASTER: (u64, u64) = (3, 2);

/// Length of one sample, in nanoseconds.
const SAMPLE_NS: u64 = 250_000_000;
/// One that took so many times as long says all that there is to say.
const LONGEST_SAMPLE: u64 = 64;

impl Reached {
    /// Destage begins after it was away.
    pub fn begin(&mut self, now: u64) {
        (self.since, self.bytes, self.ran_out) = (now, 0, false);
    }

    /// A sweep is round, and has nothing left to write just now: what it reaches is no less than what is noted, and may be more.
    pub fn ran_out(&mut self) {
        self.ran_out = true;
    }

    /// So many bytes are down.
    pub fn note(&mut self, now: u64, bytes: u64) {
        self.bytes += bytes;
        let took = now.saturating_sub(self.since);
        if took >= SAMPLE_NS {
            let sample = (u128::from(self.bytes) * 1_000_000_000 / u128::from(took)) as u64;
            if self.ran_out && sample < self.per_second() {
                // So it says nothing of what the disk can do.
                return self.begin(now);
            }
            // As many times as it is long: a disk that takes nothing while it flushes, and much afterwards, is no faster for that.
            for _ in 0..(took / SAMPLE_NS).min(LONGEST_SAMPLE) {
                self.per_second = Some(self.per_second.map_or(sample, |rate| (rate * 15 + sample) / 16));
                self.lately = if self.lately == 0 { sample } else { (self.lately * 3 + sample) / 4 };
            }
            self.begin(now);
        }
    }

    /// Bytes per second. A disk takes the first seconds' worth into a cache of its own: what it reached then is soon not
    /// believed any more, else a burst fills the space before it is slowed down, and has to stand still afterwards.
    #[must_use]
    pub fn per_second(&self) -> u64 {
        self.per_second.map_or(UNMEASURED, |rate| rate.min(self.lately.max(1) / FASTER.1 * FASTER.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;

    #[test]
    fn the_pace_falls_from_no_limit_to_nothing_and_is_the_sweeps_own_near_the_end() {
        let rate = |dirty_percent, taken_percent| {
            let room = Room { taken_percent, soon_percent: dirty_percent * 2, begin_percent: 50 };
            rate(&room, 8_000_000).unwrap_or(u64::MAX)
        };
        assert_eq!([rate(0, 0), rate(25, 50), rate(30, 91), rate(0, 120)], [u64::MAX, u64::MAX, 8_000_000, SLOWEST]);
        assert!((25..60).all(|live| rate(live, live) >= rate(live + 1, live + 1)), "a burst");
        assert!((51..110).all(|taken| rate(40, taken) >= rate(40, taken + 1)));
        assert!(rate(41, 42) > 8_000_000 && rate(42, 43) < 8_000_000, "half of the space is left for the first sweep");
        assert!(rate(26, 26) > 100_000_000);
        let late = super::rate(&Room { taken_percent: 47, soon_percent: 92, begin_percent: 90 }, 8_000_000);
        assert!(late.is_some_and(|rate| rate > 8_000_000), "wherever the beginning is set: {late:?}");
    }

    #[test]
    fn nobody_waits_longer_than_the_disk_would_take() {
        let mut direct = Direct::default();
        assert_eq!(direct.longest(65_536, 63, false), LONGEST_NS);
        (0..100).for_each(|_| direct.note(30_000_000, 29));
        let longest = |line| direct.longest(65_536, line, false);
        assert_eq!([longest(0), longest(31), longest(999)], [SHORTEST_NS, 32_000_000, LONGEST_NS]);
        assert_eq!(
            [direct.longest(4096, 0, false), direct.longest(LARGE, 99, false)],
            [LONGEST_NS, 0],
            "small ones wait, and large ones do not"
        );
    }

    #[test]
    fn nobody_waits_long_for_space_that_others_have() {
        let mut direct = Direct::default();
        assert_eq!([4096, 65_536].map(|bytes| direct.longest(bytes, 99, true)), [SHORTEST_NS; 2], "nothing is known of the disk");
        (0..100).for_each(|_| direct.note(30_000_000, 29));
        assert_eq!([0, 31, 999].map(|line| direct.longest(4096, line, true)), [SHORTEST_NS, 32_000_000, LONGEST_NS]);
        assert_eq!(direct.longest(LARGE, 99, true), 0);
    }

    #[test]
    fn turns_are_as_far_apart_as_the_rate_says_and_never_too_late() {
        let mut turns = Turns::default();
        let now = 1_000_000_000;
        // A credit of 20 ms at 4 MB/s is 80 KB: twenty writes of 4,000 bytes at once, then one each millisecond.
        let all: Vec<_> = (0..400).map(|_| turns.take(now, 4_000, 4_000_000, LONGEST_NS)).collect();
        assert!(all[..21].iter().all(|t| *t == Some(now)));
        assert!(all.iter().flatten().zip(0..).all(|(t, n)| *t >= now + (n * 1_000_000u64).saturating_sub(20_000_000)));
        assert!(all[21..180].iter().flatten().zip(1..).all(|(t, n)| *t <= now + n * 2_000_000), "as long again at most");
        assert_eq!(all[399], None);
        assert!(all.iter().flatten().all(|t| *t <= now + LONGEST_NS));
        assert!(turns.take(now + 200_000_000, 4_000, 4_000_000, LONGEST_NS).is_some());
    }

    #[test]
    fn one_write_in_a_bad_moment_does_not_keep_others_from_their_turns_for_long() {
        let mut turns = Turns::default();
        let now = 1_000_000_000;
        assert_eq!(turns.take(now, 252 << 10, SLOWEST, LONGEST_NS), Some(now));
        assert_eq!(turns.take(now + LONGEST_NS, 4_096, 4_000_000, 0), Some(now + LONGEST_NS));
    }

    #[test]
    fn space_that_others_have_is_not_waited_for() {
        assert_eq!([0, 4, 5].map(|own| is_others(own, 40, None, 2)), [true, true, false]);
        assert!(!is_others(1, 40, Some(8), 2), "it is at its own maximum");
        assert!(!is_others(0, 0, None, 0));
        assert_eq!([0, 1, 2].map(|own| is_others(own, 40, None, 20)), [true, false, false], "twenty that have as much each");
    }

    #[test]
    fn who_waits_has_the_turn_together_with_others() {
        let mut turns = Turns::default();
        let all: Vec<_> = (0..64).filter_map(|_| turns.take(1_000_000_000, 4_096, 4_096_000, LONGEST_NS)).collect();
        let mut at: Vec<_> = all[32..].to_vec();
        at.dedup();
        assert!(at.len() <= 8, "{at:?}");
    }

    #[test]
    fn the_rate_reached_follows_what_was_written_and_forgets_pauses() {
        let mut reached = Reached::default();
        assert_eq!(reached.per_second(), UNMEASURED);
        for round in 0..3 {
            let from = round * 60_000_000_000;
            reached.begin(from);
            (1..=1000).for_each(|ms| reached.note(from + ms * 1_000_000, 10_000));
            assert_eq!(reached.per_second(), 10_000_000);
        }
    }

    #[test]
    fn a_sweep_that_had_nothing_left_to_write_says_nothing_of_what_a_disk_can_do_but_that_it_is_more() {
        let mut reached = Reached::default();
        reached.begin(1);
        let mut samples = |from: u64, bytes: u64, ran_out: bool| {
            for ms in from..from + 2000 {
                if ran_out {
                    reached.ran_out();
                }
                reached.note(1 + ms * 1_000_000, bytes);
            }
            reached.per_second()
        };
        assert_eq!(samples(0, 100, true), UNMEASURED);
        let measured = samples(2000, 8_000, false);
        assert_eq!(samples(4000, 100, true), measured);
        assert!(samples(6000, 16_000, true) > measured);
        assert!(samples(8000, 100, false) < measured);
    }

    /// The cache of an array's controller took 256 MiB at once, and then 8 MB each second.
    #[test]
    fn what_a_disks_own_cache_took_at_once_is_soon_forgotten() {
        let mut reached = Reached::default();
        reached.begin(1);
        (1..=1000).for_each(|ms| reached.note(ms * 1_000_000, 200_000));
        assert!(reached.per_second() > 150_000_000);
        (1001..=3000).for_each(|ms| reached.note(ms * 1_000_000, 8_000));
        assert!(reached.per_second() < 60_000_000, "{reached:?}");
        (3001..=4000).for_each(|ms| reached.note(ms * 1_000_000, 8_000));
        assert!(reached.per_second() < 25_000_000, "{reached:?}");
    }

    /// A disk takes nothing for three quarters of a second while its cache is flushed, and two thousand writes in the half second after.
    #[test]
    fn a_disk_that_stands_still_while_it_flushes_is_not_believed_to_be_faster() {
        let mut reached = Reached::default();
        reached.begin(1);
        for round in 0..40 {
            let at = round * 1_250_000_000 + 750_000_000;
            (1..=2000).for_each(|n| reached.note(at + n * 250_000, 4_096));
        }
        let really = 2000 * 4_096 * 100 / 125;
        assert!((really * 85 / 100..=really * 115 / 100).contains(&reached.per_second()), "{reached:?}");
    }
}
