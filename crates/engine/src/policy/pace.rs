//! How fast writes may be absorbed while the space for dirty data runs short: as fast as destage wins it back.
//!
//! A write that goes to the disk by itself costs the disk many times what it costs in a sweep. So a write that finds the
//! space short waits a little for its place in the log rather than take that time from the sweep: all writes together
//! are then served at the sweep's rate. Without it they fill the space at the SSDs' rate, and all that come in the
//! minute after, until the sweep has gone round, compete with it at the disk.

/// What the decision rests on.
#[derive(Clone, Copy, Debug)]
pub struct Room {
    /// Percent of what may be dirty that is.
    pub dirty_percent: u32,
    /// Up to here writes come as fast as they like: what a sweep needs twice, since a segment is free only when its
    /// last record is down, does not fit any more from about half on.
    pub begin_percent: u32,
    /// What destage reaches, in bytes per second.
    pub destage: u64,
}

/// Longest time that a write waits for its place, in nanoseconds; one that would wait longer goes to the disk at once.
pub const LONGEST_NS: u64 = 250_000_000;
/// Bytes that may be absorbed in one go after a time with less than the rate, as time at the rate in nanoseconds.
const CREDIT_NS: u64 = 20_000_000;
/// What destage is taken to reach before it was measured, in bytes per second: about a thousand small writes.
const UNMEASURED: u64 = 4 << 20;
/// Slowest pace, in bytes per second, so that no wait is for ever.
const SLOWEST: u64 = 64 << 10;

/// Bytes per second that may be absorbed; `None`: as many as come.
///
/// As much as destage reaches where the space is half way from the beginning to full; without limit at the beginning,
/// nothing where it is full, falling smoothly between: the space filled settles where as much comes as goes.
#[must_use]
pub fn rate(room: &Room) -> Option<u64> {
    let over = room.dirty_percent.checked_sub(room.begin_percent).filter(|over| *over > 0)?;
    let left = 100u32.saturating_sub(room.dirty_percent);
    Some((room.destage.saturating_mul(u64::from(left)) / u64::from(over)).max(SLOWEST))
}

/// Turns of those who wait, at a rate that changes.
#[derive(Clone, Copy, Default, Debug)]
pub struct Turns {
    next: u64,
}

impl Turns {
    /// The time at which a write of `bytes` that comes at `now` has its turn; `None` if that is too late for it.
    pub fn take(&mut self, now: u64, bytes: u64, rate: u64) -> Option<u64> {
        let turn = self.next.max(now.saturating_sub(CREDIT_NS));
        if turn > now + LONGEST_NS {
            return None;
        }
        self.next = turn + (u128::from(bytes) * 1_000_000_000 / u128::from(rate.max(1))) as u64;
        Some(turn.max(now))
    }
}

/// The rate that destage reaches: an average over about a second of its own time.
#[derive(Clone, Copy, Default, Debug)]
pub struct Reached {
    since: u64,
    bytes: u64,
    per_second: Option<u64>,
}

/// Length of one sample, in nanoseconds.
const SAMPLE_NS: u64 = 250_000_000;

impl Reached {
    /// Destage begins after it was away.
    pub fn begin(&mut self, now: u64) {
        (self.since, self.bytes) = (now, 0);
    }

    /// So many bytes are down.
    pub fn note(&mut self, now: u64, bytes: u64) {
        self.bytes += bytes;
        let took = now.saturating_sub(self.since);
        if took >= SAMPLE_NS {
            let sample = (u128::from(self.bytes) * 1_000_000_000 / u128::from(took)) as u64;
            self.per_second = Some(self.per_second.map_or(sample, |rate| (rate * 3 + sample) / 4));
            self.begin(now);
        }
    }

    /// Bytes per second.
    #[must_use]
    pub fn per_second(&self) -> u64 {
        self.per_second.unwrap_or(UNMEASURED)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;

    #[test]
    fn the_pace_falls_from_no_limit_to_nothing_and_is_the_sweeps_own_half_way() {
        let rate = |dirty_percent| rate(&Room { dirty_percent, begin_percent: 50, destage: 8_000_000 });
        assert_eq!(
            [rate(0), rate(50), rate(75), rate(100), rate(120)],
            [None, None, Some(8_000_000), Some(SLOWEST), Some(SLOWEST)]
        );
        assert!((51..100).all(|p| rate(p) >= rate(p + 1)));
        assert!(rate(51) > Some(300_000_000));
    }

    #[test]
    fn turns_are_as_far_apart_as_the_rate_says_and_never_too_late() {
        let mut turns = Turns::default();
        let now = 1_000_000_000;
        // A credit of 20 ms at 4 MB/s is 80 KB: twenty writes of 4,000 bytes at once, then one each millisecond.
        let all: Vec<_> = (0..400).map(|_| turns.take(now, 4_000, 4_000_000)).collect();
        assert!(all[..21].iter().all(|t| *t == Some(now)));
        assert_eq!(all[30], Some(now + 10_000_000));
        assert_eq!(all[399], None);
        assert!(all.iter().flatten().all(|t| *t <= now + LONGEST_NS));
        assert!(turns.take(now + 200_000_000, 4_000, 4_000_000).is_some());
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
}
