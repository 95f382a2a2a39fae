//! An SSD: base latencies, parallel channels, caps on requests and bytes per second, a volatile cache.
//!
//! What it leaves out on purpose: what garbage collection costs in speed, and the fall of that when a fast region of
//! flash is used up. The caps are therefore those of a device in steady state. That such a device stands still at times
//! it has, if it is told so.

use super::completions::Completions;
use super::{Access, Kind, MICROSECOND, MILLISECOND, SECOND, TimingModel};

/// The speed of one direction.
#[derive(Clone, Debug)]
pub struct Direction {
    /// Time of one small request on an idle device, in nanoseconds.
    pub latency_ns: u64,
    /// Requests that are worked on at once, at least 1.
    pub channels: u32,
    /// Most requests per second, if anything but `channels` limits them.
    pub iops: Option<u64>,
    /// Most bytes per second, at least 1.
    pub bytes_per_s: u64,
}

/// What a model of an SSD is made from.
#[derive(Clone, Debug)]
pub struct SsdParams {
    /// Reads.
    pub read: Direction,
    /// Writes.
    pub write: Direction,
    /// Most requests per second, reads and writes together.
    pub total_iops: Option<u64>,
    /// Most bytes per second, reads and writes together.
    pub total_bytes_per_s: Option<u64>,
    /// Time of a flush after a write, in nanoseconds; one after none takes a write's latency at most.
    pub flush_ns: u64,
    /// Time of a discard, in nanoseconds, whatever its length.
    pub discard_ns: u64,
    /// What it does at times instead of serving anybody.
    pub pauses: Option<Pauses>,
}

/// Times in which a device begins nothing: it collects garbage. What has begun ends.
#[derive(Clone, Copy, Debug)]
pub struct Pauses {
    /// One begins so often, in nanoseconds, above 0; the first one after as long.
    pub every_ns: u64,
    /// And lasts so long, in nanoseconds, less than that.
    pub for_ns: u64,
}

impl Pauses {
    /// When a request begins that arrives at `now`.
    fn begins(self, now: u64) -> u64 {
        let since = now % self.every_ns;
        if now >= self.every_ns && since < self.for_ns { now - since + self.for_ns } else { now }
    }
}

impl SsdParams {
    /// A consumer SATA SSD: about 95,000 reads and 85,000 writes per second at 4 KiB, 550 MB/s over a
    /// half-duplex link, and a volatile cache that takes a millisecond to flush.
    /// Data sheets of this class give rates; the latencies are those that fit them at depths 1 and 32.
    pub fn sata_consumer() -> Self {
        SsdParams {
            read: Direction { latency_ns: 90 * MICROSECOND, channels: 9, iops: Some(95_000), bytes_per_s: 550_000_000 },
            write: Direction { latency_ns: 40 * MICROSECOND, channels: 4, iops: Some(85_000), bytes_per_s: 520_000_000 },
            total_iops: None,
            total_bytes_per_s: Some(560_000_000),
            flush_ns: MILLISECOND,
            discard_ns: 200 * MICROSECOND,
            pauses: None,
        }
    }

    /// A data-centre NVMe SSD with power-loss protection, mixed-use class: 700,000 reads and 180,000
    /// sustained writes per second at 4 KiB, 3.2 and 2.0 GB/s, a flush that only crosses the bus.
    pub fn nvme_plp() -> Self {
        SsdParams {
            read: Direction { latency_ns: 80 * MICROSECOND, channels: 64, iops: Some(700_000), bytes_per_s: 3_200_000_000 },
            write: Direction { latency_ns: 15 * MICROSECOND, channels: 8, iops: Some(180_000), bytes_per_s: 2_000_000_000 },
            total_iops: None,
            total_bytes_per_s: None,
            flush_ns: 20 * MICROSECOND,
            discard_ns: 50 * MICROSECOND,
            pauses: None,
        }
    }

    /// A fast device behind a limit on requests and bytes per second, reads and writes together, as
    /// hypervisors and cloud providers set them. The limit has no burst: it spaces requests evenly.
    pub fn throttled(iops: u64, bytes_per_s: u64) -> Self {
        let mut params = SsdParams::nvme_plp();
        params.total_iops = Some(iops);
        params.total_bytes_per_s = Some(bytes_per_s);
        params
    }

    /// The same device, but that it stands still every now and then.
    #[must_use]
    pub fn pausing(self, every_ns: u64, for_ns: u64) -> Self {
        SsdParams { pauses: Some(Pauses { every_ns, for_ns }), ..self }
    }
}

/// A limit on a rate: each use takes its turn behind those before it.
#[derive(Debug)]
struct Limit {
    per_second: u64,
    free_at: u64,
}

impl Limit {
    fn new(per_second: u64) -> Self {
        assert!(per_second > 0, "a rate is not zero");
        Limit { per_second, free_at: 0 }
    }

    /// Takes `units` from `now` on; returns when the last of them is through.
    fn take(&mut self, now: u64, units: u64) -> u64 {
        let time = u128::from(units) * u128::from(SECOND) / u128::from(self.per_second);
        self.free_at = self.free_at.max(now).saturating_add(u64::try_from(time).unwrap_or(u64::MAX));
        self.free_at
    }
}

#[derive(Debug)]
struct Path {
    latency_ns: u64,
    channels: Vec<u64>,
    requests: Option<Limit>,
    bytes: Limit,
}

impl Path {
    fn new(direction: &Direction) -> Self {
        assert!(direction.channels > 0, "a device has a channel");
        Path {
            latency_ns: direction.latency_ns,
            channels: vec![0; direction.channels as usize],
            requests: direction.iops.map(Limit::new),
            bytes: Limit::new(direction.bytes_per_s),
        }
    }

    /// The end of a request of `len` bytes that arrives at `now`.
    fn serve(&mut self, now: u64, len: u64) -> u64 {
        // Which of several idle channels does not matter to timing, so the first of the least is taken.
        let channel = self.channels.iter_mut().min().expect("a device has a channel");
        *channel = (*channel).max(now) + self.latency_ns;
        let worked = *channel;
        // The last bytes move when the work is done, so a cap delays only what exceeds it.
        let moved = self.bytes.take(now, len);
        let counted = self.requests.as_mut().map_or(0, |limit| limit.take(now, 1));
        worked.max(moved).max(counted)
    }
}

/// An SSD in virtual time.
#[derive(Debug)]
pub struct Ssd {
    read: Path,
    write: Path,
    total_requests: Option<Limit>,
    total_bytes: Option<Limit>,
    flush_ns: u64,
    discard_ns: u64,
    pauses: Option<Pauses>,
    /// The latest end of a write. A flush covers it only if it is submitted no earlier.
    last_write_end: u64,
    last_flush: Option<u64>,
    flush_free_at: u64,
    completions: Completions,
}

impl Ssd {
    /// A device at rest. Rates and channels are not zero.
    pub fn new(params: &SsdParams) -> Self {
        Ssd {
            read: Path::new(&params.read),
            write: Path::new(&params.write),
            total_requests: params.total_iops.map(Limit::new),
            total_bytes: params.total_bytes_per_s.map(Limit::new),
            flush_ns: params.flush_ns,
            discard_ns: params.discard_ns,
            pauses: params.pauses,
            last_write_end: 0,
            last_flush: None,
            flush_free_at: 0,
            completions: Completions::default(),
        }
    }

    /// When a transfer that is otherwise done at `end` has passed the caps for both directions.
    fn within_totals(&mut self, now: u64, len: u64, end: u64) -> u64 {
        let counted = self.total_requests.as_mut().map_or(0, |limit| limit.take(now, 1));
        let moved = self.total_bytes.as_mut().map_or(0, |limit| limit.take(now, len));
        end.max(counted).max(moved)
    }

    /// A flush from `at` on waits for the one before it, and is nearly free if nothing was written since.
    fn flush(&mut self, at: u64) -> u64 {
        let covered = self.last_flush.is_some_and(|last| self.last_write_end <= last);
        let time = if covered { self.flush_ns.min(self.write.latency_ns) } else { self.flush_ns };
        self.last_flush = Some(at);
        self.flush_free_at = self.flush_free_at.max(at) + time;
        self.flush_free_at
    }
}

impl TimingModel for Ssd {
    fn submit(&mut self, now: u64, id: u64, op: Access) {
        let now = self.pauses.map_or(now, |pauses| pauses.begins(now));
        let end = match op.kind {
            Kind::Read => {
                let end = self.read.serve(now, op.len);
                self.within_totals(now, op.len, end)
            }
            Kind::Write | Kind::WriteThrough | Kind::WriteDurable => {
                let end = self.write.serve(now, op.len);
                let end = self.within_totals(now, op.len, end);
                self.last_write_end = self.last_write_end.max(end);
                // What drives without capacitors do for forced unit access is what they do for a flush, once they have the data.
                if op.kind == Kind::WriteDurable { self.flush(end) } else { end }
            }
            // Zeroes are a note in the device's map: nothing crosses the bus.
            Kind::WriteZeroes => {
                self.last_write_end = self.last_write_end.max(now + self.discard_ns);
                now + self.discard_ns
            }
            Kind::Discard => now + self.discard_ns,
            Kind::Flush => self.flush(now),
        };
        self.completions.push(end, id);
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

    /// Completions per second with `depth` requests outstanding, over one virtual second.
    fn rate(params: &SsdParams, depth: u64, op: Access) -> u64 {
        let mut ssd = Ssd::new(params);
        for id in 0..depth {
            ssd.submit(0, id, op);
        }
        let mut done = Vec::new();
        let mut count = 0;
        while let Some(now) = ssd.next_completion().filter(|now| *now <= SECOND) {
            ssd.advance(now, &mut done);
            for id in done.drain(..) {
                count += 1;
                ssd.submit(now, id, op);
            }
        }
        count
    }

    #[test]
    fn the_presets_reach_their_data_sheets() {
        let (sata, nvme) = (SsdParams::sata_consumer(), SsdParams::nvme_plp());
        let (read, write) = (Access::read(0, 4096), Access::write(0, 4096));
        let table = [
            ("sata read depth 1", rate(&sata, 1, read), 10_000..=12_000),
            ("sata read depth 32", rate(&sata, 32, read), 90_000..=100_000),
            ("sata write depth 32", rate(&sata, 32, write), 80_000..=86_000),
            ("nvme read depth 1", rate(&nvme, 1, read), 12_000..=13_000),
            ("nvme read depth 256", rate(&nvme, 256, read), 690_000..=710_000),
            ("nvme write depth 1", rate(&nvme, 1, write), 60_000..=70_000),
            ("nvme write depth 32", rate(&nvme, 32, write), 175_000..=181_000),
            ("sata read MiB/s", rate(&sata, 32, Access::read(0, 1 << 20)), 510..=530),
            ("nvme write MiB/s", rate(&nvme, 32, Access::write(0, 1 << 20)), 1_890..=1_910),
        ];
        for (what, rate, band) in table {
            println!("{what}: {rate}");
            assert!(band.contains(&rate), "{what}: {rate} is not in {band:?}");
        }
    }

    #[test]
    fn a_throttled_device_keeps_both_of_its_limits() {
        let params = SsdParams::throttled(12_000, 500_000_000);
        assert!((11_990..=12_001).contains(&rate(&params, 32, Access::read(0, 4096))));
        assert!((474..=477).contains(&rate(&params, 32, Access::write(0, 1 << 20))));
    }

    #[test]
    fn a_pausing_device_begins_nothing_in_a_pause_and_ends_what_has_begun() {
        let mut ssd = Ssd::new(&SsdParams::sata_consumer().pausing(SECOND, 60 * MILLISECOND));
        for (id, (at, end)) in
            [(0, 90_000), (SECOND - 1, SECOND + 89_999), (SECOND, SECOND + 60_090_000), (2 * SECOND - 90_000, 2 * SECOND)]
                .into_iter()
                .enumerate()
        {
            ssd.submit(at, id as u64, Access::read(0, 4096));
            assert_eq!(ssd.next_completion(), Some(end));
            ssd.advance(end, &mut Vec::new());
        }
    }

    /// A write of this kind was done when its flush was, whatever the limits said: a device of 200 requests a second took 50,000 of them,
    /// and then answered nothing for minutes.
    #[test]
    fn a_durable_write_keeps_the_limits_and_is_flushed_after_them() {
        let params = SsdParams::throttled(200, 20_000_000);
        assert!((199..=201).contains(&rate(&params, 1, Access { kind: Kind::WriteDurable, ..Access::write(0, 4096) })));
        let mut ssd = Ssd::new(&SsdParams::sata_consumer());
        ssd.submit(0, 0, Access { kind: Kind::WriteDurable, ..Access::write(0, 4096) });
        assert_eq!(ssd.next_completion(), Some(MILLISECOND + 40 * MICROSECOND));
    }

    #[test]
    fn a_flush_is_cheap_only_if_every_write_ended_before_the_last_one() {
        let mut ssd = Ssd::new(&SsdParams::sata_consumer());
        let mut done = Vec::new();
        let mut flush = |ssd: &mut Ssd, now| {
            ssd.submit(now, 0, Access::flush());
            let mut end = now;
            while let Some(next) = ssd.next_completion() {
                end = next;
                ssd.advance(next, &mut done);
            }
            end - now
        };
        assert_eq!(flush(&mut ssd, 0), MILLISECOND, "nothing is known of what went before");
        assert_eq!(flush(&mut ssd, SECOND), 40 * MICROSECOND);
        ssd.submit(2 * SECOND, 1, Access::write(0, 4096));
        assert_eq!(flush(&mut ssd, 2 * SECOND), MILLISECOND);
        assert_eq!(flush(&mut ssd, 3 * SECOND), MILLISECOND, "the write was in flight during the flush before");
        assert_eq!(flush(&mut ssd, 4 * SECOND), 40 * MICROSECOND);
    }
}
