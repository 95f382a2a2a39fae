//! One point of an experiment: processes before a store, some time until it is steady, and a window that counts.

use super::drive::{Driver, Process};
use super::hardware::Machine;
use super::rig::Store;
use crate::bench::measure::Reached;
use crate::world::Violation;

/// How experiments are run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Options {
    /// What chance there is follows from it.
    pub seed: u64,
    /// Fewer points, and windows of a tenth of the length.
    pub quick: bool,
}

/// Bytes of a MiB.
pub const MIB: u64 = 1 << 20;
/// Bytes of a GiB.
pub const GIB: u64 = 1 << 30;

impl Options {
    /// Seconds before anything counts.
    #[must_use]
    pub fn settle(&self) -> u64 {
        if self.quick { 2 } else { 10 }
    }

    /// Seconds that count.
    #[must_use]
    pub fn window(&self) -> u64 {
        if self.quick { 6 } else { 60 }
    }

    /// So many seconds, or a tenth of them.
    #[must_use]
    pub fn seconds(&self, full: u64) -> u64 {
        if self.quick { (full / 10).max(2) } else { full }
    }

    /// Counts of clients: all, or the first and the last.
    #[must_use]
    pub fn counts(&self, all: &[u64]) -> Vec<u64> {
        match (self.quick, all) {
            (true, [first, .., last]) => vec![*first, *last],
            _ => all.to_vec(),
        }
    }

    /// What the processes of each group reach once it is steady.
    ///
    /// # Errors
    /// Something happened that must not.
    pub fn steady(&self, machine: &Machine, store: Store, processes: Vec<Process>) -> Result<Vec<Reached>, Violation> {
        self.run(&mut machine.drive(store, self.seed, processes))
    }

    /// As [`Options::steady`], for a driver that goes on being used.
    ///
    /// # Errors
    /// Something happened that must not.
    pub fn run(&self, driver: &mut Driver<Store>) -> Result<Vec<Reached>, Violation> {
        driver.seconds(self.settle())?;
        driver.seconds(self.window())
    }
}

/// MiB per second.
#[must_use]
pub fn mib(reached: &Reached) -> f64 {
    reached.bytes_per_s / MIB as f64
}

/// MB per second.
#[must_use]
pub fn mb(reached: &Reached) -> f64 {
    reached.bytes_per_s / 1e6
}

/// Number of clients, and what was reached with them, as points of a line.
#[must_use]
pub fn points(counts: &[u64], values: &[f64]) -> Vec<(f64, f64)> {
    counts.iter().map(|n| *n as f64).zip(values.iter().copied()).collect()
}

/// The least of the ratios of two lines.
#[must_use]
pub fn least_ratio(of: &[f64], to: &[f64]) -> f64 {
    of.iter().zip(to).map(|(a, b)| a / b.max(1e-9)).fold(f64::INFINITY, f64::min)
}

/// The last of a line.
#[must_use]
pub fn last(values: &[f64]) -> f64 {
    values.last().copied().unwrap_or(0.0)
}
