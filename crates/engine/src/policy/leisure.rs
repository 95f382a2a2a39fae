//! How long clients have to leave a disk alone before a sweep may have all of it: longer than they lately did between two uses.
//!
//! A sweep that begins in a pause fills the disk's own cache and queue, and whoever comes next waits for all of that: who writes and flushes a MiB
//! each half second would wait eighteen times as long as without a cache. What is dirty has time; where it has not, since space runs
//! short, somebody waits for it to be clean, or it is overdue, idleness is not asked for.

/// Pauses of so many idle times and more are swept whatever was before: of so long a time what one request waits is a small part.
const LONGEST: u64 = 20;

/// What is known of the pauses.
#[derive(Clone, Copy, Default, Debug)]
pub struct Leisure {
    /// Pauses up to this length are to be expected; 0 where none is known.
    expected: u64,
}

impl Leisure {
    /// Clients use the disk again after a pause of `pause` nanoseconds. One that is shorter than `idle` is none; twice as long ones as the longest of lately
    /// are to be expected. Each one that is shorter has that forgotten by a sixteenth, and one that is longer than any by half.
    pub fn note(&mut self, pause: u64, idle: u64) {
        let longest = idle.saturating_mul(LONGEST);
        if pause >= longest {
            self.expected /= 2;
        } else if pause >= idle {
            let faded = self.expected - self.expected / 16;
            self.expected = faded.max(pause.saturating_mul(2)).min(longest);
        }
    }

    /// How long the disk has to be left alone until it is at leisure, where `idle` nanoseconds are enough for one of which nothing is known.
    #[must_use]
    pub fn after(&self, idle: u64) -> u64 {
        self.expected.max(idle)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;
    const IDLE: u64 = 200 * MS;

    #[test]
    fn a_pause_such_as_there_were_lately_is_left_to_clients() {
        let mut leisure = Leisure::default();
        assert_eq!(leisure.after(IDLE), IDLE);
        leisure.note(100 * MS, IDLE);
        assert_eq!(leisure.after(IDLE), IDLE, "requests one after the other");
        leisure.note(500 * MS, IDLE);
        assert_eq!(leisure.after(IDLE), 1000 * MS);
        leisure.note(480 * MS, IDLE);
        assert_eq!(leisure.after(IDLE), 960 * MS, "a shorter one");
        leisure.note(3000 * MS, IDLE);
        assert_eq!(leisure.after(IDLE), LONGEST * IDLE);
    }

    #[test]
    fn one_long_pause_among_short_ones_is_forgotten() {
        let mut leisure = Leisure::default();
        leisure.note(1900 * MS, IDLE);
        (0..40).for_each(|_| leisure.note(300 * MS, IDLE));
        assert_eq!(leisure.after(IDLE), 600 * MS);
    }

    #[test]
    fn long_rests_are_used_again_soon_after_who_kept_coming_back_has_gone() {
        let mut leisure = Leisure::default();
        leisure.note(1500 * MS, IDLE);
        (0..4).for_each(|_| leisure.note(60_000 * MS, IDLE));
        assert_eq!(leisure.after(IDLE), IDLE);
    }
}
