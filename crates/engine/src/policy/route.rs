//! Which side is expected to serve a request sooner: the SSDs or the disk.
//!
//! Of each side, kind of request and class of size an average is kept of the time that a request took, divided by how
//! many were in line with it. What a new one will take is that times the line it finds. A side that was not used for a
//! while is taken to have become better, so that it is tried again.
//!
//! A client that flushes after each write, or after a few, waits for the flushes too: a disk that answers a write at once from
//! its own cache owes it a revolution then.

/// How many requests deep the average is.
const DEPTH: u64 = 8;
/// What the disk is taken to need before it was measured, in nanoseconds; SSDs that need less never have it tried.
const DISK_UNMEASURED_NS: u64 = 5_000_000;
/// A side unused for this long is taken to need half of what it did, in nanoseconds.
const HALVED_NS: u64 = 4_000_000_000;
/// Of the disk less than this is never taken for granted, in nanoseconds.
const LEAST_NS: u64 = 1_000_000;

/// SSDs that are expected to serve a request within this are not what anybody waits for, in nanoseconds: the disk is kept
/// for what only it can do, though its own cache would take a write sooner still.
const SOON_NS: u64 = 2_000_000;

/// What a disk that failed a request is taken to need, in nanoseconds: it is left alone for about half a minute.
const FAILED_NS: u64 = 2_000_000_000;

/// An average cost.
#[derive(Clone, Copy, Default, Debug)]
struct Cost {
    ns: u64,
    at: u64,
}

impl Cost {
    fn note(&mut self, now: u64, cost: u64) {
        let stale = self.ns == 0 || now.saturating_sub(self.at) > HALVED_NS;
        self.ns = if stale { cost.max(1) } else { ((self.ns * (DEPTH - 1) + cost) / DEPTH).max(1) };
        self.at = now;
    }

    /// The cost as it is taken to be now; 0 if it was never measured.
    fn aged(&self, now: u64) -> u64 {
        let halvings = now.saturating_sub(self.at) / HALVED_NS;
        let aged = self.ns >> halvings.min(63);
        if halvings > 0 { aged.max(LEAST_NS.min(self.ns)) } else { aged }
    }
}

/// Where a request was served, or may be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Side {
    /// The SSDs.
    Ssd,
    /// The disk.
    Disk,
}

/// What the two sides need for one kind of request. All times are in nanoseconds.
#[derive(Clone, Default, Debug)]
pub struct Route {
    ssd: [Cost; 3],
    disk: [Cost; 3],
    /// Of flushes that clients ask for.
    ssd_flush: Cost,
    disk_flush: Cost,
    /// Writes since the last one, to SSDs and disk.
    unflushed: [u32; 2],
    /// Writes between two of them on an average, and when the last one was.
    between: u32,
    flushed_at: u64,
}

fn class(bytes: u64) -> usize {
    match bytes {
        0..=16_384 => 0,
        16_385..=131_072 => 1,
        _ => 2,
    }
}

impl Route {
    /// A request of `bytes`, which found `line` others before it, took `took`.
    pub fn note(&mut self, side: Side, now: u64, bytes: u64, line: u32, took: u64) {
        let costs = if side == Side::Ssd { &mut self.ssd } else { &mut self.disk };
        costs[class(bytes)].note(now, took / (u64::from(line) + 1));
        let unflushed = &mut self.unflushed[side as usize];
        *unflushed = unflushed.saturating_add(1);
    }

    /// A client's flush took so long on each side.
    pub fn flushed(&mut self, now: u64, ssd_took: u64, disk_took: u64) {
        let [ssd, disk] = core::mem::take(&mut self.unflushed);
        if ssd > 0 {
            self.ssd_flush.note(now, ssd_took);
        }
        if disk > 0 {
            self.disk_flush.note(now, disk_took);
        }
        let writes = ssd.saturating_add(disk);
        if writes > 0 {
            let stale = self.between == 0 || now.saturating_sub(self.flushed_at) > HALVED_NS;
            self.between = if stale { writes } else { writes.min(1 << 20).midpoint(self.between) };
            self.flushed_at = now;
        }
    }

    /// What a write waits for flushes, on the SSDs and on the disk. One client's many writes share the flush that follows the last
    /// of them. Of many clients who flush, each waits for all of it, though it is one for several: it counts in full for as many writes
    /// as are under way at once.
    fn of_flushes(&self, now: u64, line: u32) -> (u64, u64) {
        if self.between == 0 || now.saturating_sub(self.flushed_at) > HALVED_NS {
            return (0, 0);
        }
        let disk = if self.disk_flush.ns == 0 { DISK_UNMEASURED_NS } else { self.disk_flush.aged(now) };
        let writes = u64::from(self.between.max(1));
        let waits = |flush: u64| flush.saturating_mul((u64::from(line) + 1).min(writes)) / writes;
        (waits(self.ssd_flush.aged(now)), waits(disk))
    }

    /// The disk failed a request of `bytes`.
    pub fn disk_failed(&mut self, now: u64, bytes: u64) {
        self.disk[class(bytes)] = Cost { ns: FAILED_NS, at: now };
    }

    /// Whether the disk is expected to serve a request sooner, with so many in line at each side.
    #[must_use]
    pub fn prefers_disk(&self, now: u64, bytes: u64, ssd_line: u32, disk_line: u32) -> bool {
        let (ssd, disk) = (&self.ssd[class(bytes)], &self.disk[class(bytes)]);
        let disk = if disk.ns == 0 { DISK_UNMEASURED_NS } else { disk.aged(now) };
        let expected = |cost: u64, line: u32| cost.saturating_mul(u64::from(line) + 1);
        let (ssd_flush, disk_flush) = self.of_flushes(now, ssd_line.saturating_add(disk_line));
        let soonest = expected(ssd.aged(now), ssd_line).saturating_add(ssd_flush);
        soonest > SOON_NS && expected(disk, disk_line).saturating_add(disk_flush) < soonest
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn a_disk_behind_fast_ssds_is_never_tried() {
        let mut route = Route::default();
        assert!(!route.prefers_disk(0, 4096, 0, 0));
        (0..1000).for_each(|n| route.note(Side::Ssd, n * MS, 4096, 31, 200_000));
        assert!((0..100).all(|line| !route.prefers_disk(1000 * MS, 4096, line, 0)));
        route.note(Side::Disk, 1000 * MS, 4096, 0, 8 * MS);
        assert!(!route.prefers_disk(3_600_000 * MS, 4096, 31, 0), "nor after an hour");
    }

    #[test]
    fn slow_ssds_leave_to_the_disk_what_it_does_sooner_and_the_line_counts() {
        let mut route = Route::default();
        (0..100).for_each(|n| route.note(Side::Ssd, n * MS, 4096, 0, 20 * MS));
        assert!(route.prefers_disk(100 * MS, 4096, 0, 0));
        (0..100).for_each(|n| route.note(Side::Disk, n * MS, 4096, 0, 2 * MS));
        assert!(route.prefers_disk(100 * MS, 4096, 0, 8) && !route.prefers_disk(100 * MS, 4096, 0, 10));
        assert!(!route.prefers_disk(100 * MS, 1 << 20, 0, 0), "of other sizes nothing is known");
    }

    #[test]
    fn ssds_that_are_soon_enough_keep_what_they_have_though_the_disks_cache_is_sooner() {
        let mut route = Route::default();
        (0..100).for_each(|n| route.note(Side::Ssd, n * MS, 4096, 0, MS / 5));
        (0..100).for_each(|n| route.note(Side::Disk, n * MS, 4096, 0, MS / 20));
        assert!(!route.prefers_disk(100 * MS, 4096, 8, 0) && route.prefers_disk(100 * MS, 4096, 31, 0));
    }

    #[test]
    fn a_disk_that_answers_at_once_and_owes_each_flush_a_revolution_is_not_sooner() {
        let mut route = Route::default();
        let write = |route: &mut Route, n: u64, side, took| {
            route.note(side, n * MS, 4096, 0, took);
            route.flushed(n * MS, MS, 8 * MS);
        };
        (0..50).for_each(|n| write(&mut route, n, Side::Ssd, 3 * MS));
        assert!(!route.prefers_disk(50 * MS, 4096, 0, 0), "a flush of the disk is taken to be slow before it was measured");
        (50..100).for_each(|n| write(&mut route, n, Side::Disk, MS / 10));
        assert!(!route.prefers_disk(100 * MS, 4096, 0, 0));
        // Without flushes, and long after the last, the write alone counts.
        (10_000..10_050).for_each(|n| route.note(Side::Ssd, n * MS, 4096, 0, 3 * MS));
        assert!(route.prefers_disk(10_050 * MS, 4096, 0, 0));
        // SSDs that are slow to flush as well leave it to the disk.
        let mut slow = Route::default();
        for n in 0..50 {
            slow.note(Side::Ssd, n * MS, 4096, 0, 20 * MS);
            slow.flushed(n * MS, 5 * MS, 8 * MS);
        }
        assert!(slow.prefers_disk(50 * MS, 4096, 0, 0));
    }

    /// An NFS server: its clients' writes are each to be durable, and a flush is for many of them.
    #[test]
    fn of_many_who_flush_each_waits_for_the_flush() {
        let mut route = Route::default();
        for n in 0..50 {
            (0..32).for_each(|_| route.note(Side::Ssd, n * MS, 4096, 31, 6 * MS));
            (0..8).for_each(|_| route.note(Side::Disk, n * MS, 4096, 7, MS));
            route.flushed(n * MS, 2 * MS, 16 * MS);
        }
        assert!(!route.prefers_disk(50 * MS, 4096, 31, 7), "{route:?}");
        // One who writes as much before each flush has little of it with each write.
        let mut route = Route::default();
        for n in 0..50 {
            (0..40).for_each(|_| route.note(Side::Ssd, n * MS, 4096, 0, 6 * MS));
            route.note(Side::Disk, n * MS, 4096, 0, MS / 10);
            route.flushed(n * MS, 2 * MS, 16 * MS);
        }
        assert!(route.prefers_disk(50 * MS, 4096, 0, 0));
    }

    #[test]
    fn a_disk_that_failed_is_left_alone_for_a_while() {
        let mut route = Route::default();
        (0..100).for_each(|n| route.note(Side::Ssd, n * MS, 4096, 0, 20 * MS));
        (0..100).for_each(|n| route.note(Side::Disk, n * MS, 4096, 0, 2 * MS));
        route.disk_failed(100 * MS, 4096);
        route.note(Side::Ssd, 20_000 * MS, 4096, 0, 20 * MS);
        assert!(!route.prefers_disk(20_000 * MS, 4096, 0, 0));
        route.note(Side::Ssd, 60_000 * MS, 4096, 0, 20 * MS);
        assert!(route.prefers_disk(60_000 * MS, 4096, 0, 0));
    }

    #[test]
    fn a_side_long_unused_is_tried_again() {
        let mut route = Route::default();
        route.note(Side::Ssd, 0, 4096, 0, 20 * MS);
        (0..8000).for_each(|n| route.note(Side::Disk, n * MS, 4096, 0, 12 * MS));
        assert!(route.prefers_disk(MS, 4096, 0, 0) && !route.prefers_disk(8000 * MS, 4096, 0, 0));
    }
}
