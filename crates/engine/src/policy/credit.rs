//! How many reads housekeeping keeps in flight on a cache device: as many as the device serves in a moment.
//!
//! A sweep can ask for thousands of small pieces at once. A fast SSD has done with them before anybody notices; one that is held to
//! two hundred requests a second, or worn out, takes half a minute, in which every write and flush of clients waits behind them, and
//! what waits longest looks as if the device did not answer. More in flight than this gains a sweep nothing.

/// What housekeeping puts in a client's way, in nanoseconds.
const MOMENT_NS: u64 = 20_000_000;
/// Reads in flight: the least, so that a slow device still sorts, and the most, which keep any device at its full rate.
const LEAST: u32 = 4;
const MOST: u32 = 64;
/// How many reads deep the average is.
const DEPTH: u64 = 8;

/// What a device needs for a read of housekeeping, by the reads that are served at once.
#[derive(Clone, Copy, Default, Debug)]
pub struct Credit {
    ns: u64,
}

impl Credit {
    /// A read that found `line` others on its way took so many nanoseconds.
    pub fn note(&mut self, took: u64, line: u32) {
        let cost = took / (u64::from(line) + 1);
        self.ns = if self.ns == 0 { cost.max(1) } else { ((self.ns * (DEPTH - 1) + cost) / DEPTH).max(1) };
    }

    /// Reads that may be in flight.
    #[must_use]
    pub fn most(&self) -> u32 {
        MOMENT_NS.checked_div(self.ns).map_or(MOST, |n| n.clamp(u64::from(LEAST), u64::from(MOST)) as u32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is in flight on a device that serves a read in `ns`, one after the other.
    fn beside(ns: u64, clients: u32) -> u32 {
        let mut credit = Credit::default();
        for _ in 0..100 {
            let line = credit.most() + clients;
            credit.note(ns * u64::from(line + 1), line);
        }
        credit.most()
    }

    #[test]
    fn a_device_has_as_many_as_it_serves_in_a_moment() {
        const MS: u64 = 1_000_000;
        // A fast SSD, one of 12,000 requests a second, long reads at 500 MB a second, one of 200 requests, one that is worse.
        assert_eq!([MS / 90, MS / 12, 2 * MS, 5 * MS, 80 * MS].map(|ns| beside(ns, 0)), [64, 64, 10, 4, 4]);
        assert_eq!(Credit::default().most(), 64, "before anything is known");
    }

    #[test]
    fn clients_who_keep_a_device_busy_do_not_starve_a_sweep() {
        assert_eq!(beside(1_000_000 / 12, 256), 64);
    }
}
