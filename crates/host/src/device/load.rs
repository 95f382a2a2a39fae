//! What a device was asked to do so far, and how busy that kept it.

use std::collections::BTreeMap;
use std::path::PathBuf;

use headpond_engine::io::Device;

use super::modelled::PaceKind;

/// The loads of all devices in use.
pub type Loads = BTreeMap<Device, Load>;

/// Devices that were removed and owe something still, and for how many nanoseconds: their numbers may be others' by now. One may be there
/// several times.
pub type Owed = Vec<(PathBuf, u64)>;

/// A device's work since it was added. Counted when it is asked for; what is on its way is `in_flight`.
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
pub struct Load {
    /// Reads.
    pub reads: u64,
    /// Their bytes.
    pub read_bytes: u64,
    /// Writes.
    pub writes: u64,
    /// Their bytes.
    pub written_bytes: u64,
    /// Bytes of either that were moved to or from clients' own memory, and not copied.
    pub lent_bytes: u64,
    /// Flushes.
    pub flushes: u64,
    /// Discards and zeroings.
    pub zeroings: u64,
    /// Operations that failed.
    pub failed: u64,
    /// Operations on their way.
    pub in_flight: u64,
    /// Nanoseconds in which there was at least one.
    pub busy_ns: u64,
    /// The nanoseconds of all operations added up: by their number it is what one takes on average.
    pub waited_ns: u64,
    /// For how many nanoseconds the oldest one on its way has been, of those that the engine's thread asked for, and of those
    /// beside it that nobody waits for any more.
    pub oldest_ns: u64,
    /// Up to when that is counted.
    at: u64,
}

impl Load {
    /// An operation is on its way.
    pub(super) fn begin(&mut self, now_ns: u64, kind: PaceKind, bytes: u64) {
        self.advance(now_ns);
        self.in_flight += 1;
        match kind {
            PaceKind::Read => (self.reads, self.read_bytes) = (self.reads + 1, self.read_bytes + bytes),
            PaceKind::Write | PaceKind::WriteThrough | PaceKind::WriteDurable => {
                (self.writes, self.written_bytes) = (self.writes + 1, self.written_bytes + bytes)
            }
            PaceKind::Flush => self.flushes += 1,
            PaceKind::Discard | PaceKind::WriteZeroes => self.zeroings += 1,
        }
    }

    /// So much was moved to or from clients' memory.
    pub(super) fn lent(&mut self, bytes: u64) {
        self.lent_bytes += bytes;
    }

    /// One has ended.
    pub(super) fn end(&mut self, now_ns: u64, failed: bool) {
        self.advance(now_ns);
        self.in_flight = self.in_flight.saturating_sub(1);
        self.failed += u64::from(failed);
    }

    /// Counts the time up to now.
    pub(super) fn advance(&mut self, now_ns: u64) {
        let passed = now_ns.saturating_sub(self.at);
        self.at = now_ns.max(self.at);
        self.waited_ns = self.waited_ns.saturating_add(passed.saturating_mul(self.in_flight));
        if self.in_flight > 0 {
            self.busy_ns += passed;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn overlapping_operations_keep_a_device_busy_once_and_wait_each_for_itself() {
        let mut load = Load::default();
        load.advance(1000);
        load.begin(1000, PaceKind::Read, 4096);
        load.begin(1400, PaceKind::Write, 512);
        load.end(1500, false);
        load.end(2000, true);
        load.advance(9000);
        assert_eq!((load.busy_ns, load.waited_ns), (1000, 500 + 600));
        assert_eq!((load.reads, load.read_bytes, load.writes, load.written_bytes), (1, 4096, 1, 512));
        assert_eq!((load.in_flight, load.failed), (0, 1));
    }
}
