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
/// One request of the SSDs raises what they are taken to need to so many times that at most. They are devices that stand still at times,
/// and what finds one so says nothing of what comes after; once it is the disk that serves all, nobody finds out for a while.
/// Where about three in ten are slow the average rises all the same. SSDs of which fewer are, and which the disk would beat on an average
/// for all that, keep what they have.
const RAISED: u64 = 4;
/// A side unused for this long is taken to need half of what it did, in nanoseconds.
const HALVED_NS: u64 = 4_000_000_000;
/// Of the disk less than this is never taken for granted, in nanoseconds.
const LEAST_NS: u64 = 1_000_000;

/// SSDs that are expected to serve a request within this are not what anybody waits for, in nanoseconds: the disk is kept
/// for what only it can do, though its own cache would take a write sooner still.
const SOON_NS: u64 = 2_000_000;
/// The same of small requests while streams use the disk, in nanoseconds: its own cache takes a small write at once there too, and
/// the stream waits for the heads to put it down.
const SOON_BESIDE_STREAMS_NS: u64 = 20_000_000;

/// Of a burst, what would wait longer than this for its turn at the SSDs may be the disk's, in nanoseconds, if that has nothing to do.
const BURST_NS: u64 = 1_200_000;
/// Largest write that is shared so, in bytes.
const BURST_BYTES: u64 = 16 << 10;
/// So often the disk takes one, in nanoseconds, and so many at once: it puts them down one by one, where a sweep would have them in
/// order. They are to be some tenths of its time at most.
const SHARE_NS: u64 = 25_000_000;
const SHARE_MOST: u64 = 32;
/// Who has flushed within this time may do so again, in nanoseconds, and had better find nothing on the disk.
const FLUSHES_NS: u64 = 60_000_000_000;

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

    /// The same of a device that stands still at times.
    fn note_steady(&mut self, now: u64, cost: u64) {
        let most = if self.ns == 0 { u64::MAX } else { self.ns.saturating_mul(RAISED) };
        self.note(now, cost.min(most));
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
    /// What one takes that finds nobody before it there: no other takes less, though several share a record.
    ssd_alone: [Cost; 3],
    disk: [Cost; 3],
    /// Of flushes that clients ask for.
    ssd_flush: Cost,
    disk_flush: Cost,
    /// Writes since the last one, to SSDs and disk.
    unflushed: [u32; 2],
    /// Writes between two of them on an average, and when the last one was.
    between: u32,
    flushed_at: u64,
    /// What the disk needs for its share of a burst, which it takes into its own cache: it says nothing of what it would need for all.
    /// And the same while a sweep is under way, with a flush at its end that one disk takes writes beside, and another does not.
    share: [Cost; 2],
    /// When it may take another one, if it has taken all that it may at once.
    shares_at: u64,
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
        let (class, cost) = (class(bytes), took / (u64::from(line) + 1));
        match side {
            Side::Ssd => self.ssd[class].note_steady(now, cost),
            Side::Disk => self.disk[class].note(now, cost),
        }
        if side == Side::Ssd && line == 0 {
            self.ssd_alone[class].note_steady(now, took);
        }
        let unflushed = &mut self.unflushed[side as usize];
        *unflushed = unflushed.saturating_add(1);
    }

    /// The disk's share of a burst, which found `line` others before it, took `took`.
    pub fn note_share(&mut self, now: u64, line: u32, took: u64, beside_sweep: bool) {
        self.share[usize::from(beside_sweep)].note(now, took / (u64::from(line) + 1));
        self.unflushed[Side::Disk as usize] = self.unflushed[Side::Disk as usize].saturating_add(1);
    }

    /// A client's flush took so long on each side.
    pub fn flushed(&mut self, now: u64, ssd_took: u64, disk_took: u64) {
        let [ssd, disk] = core::mem::take(&mut self.unflushed);
        if ssd > 0 {
            self.ssd_flush.note_steady(now, ssd_took);
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
        self.share = [self.disk[class(bytes)]; 2];
    }

    /// Whether the disk is expected to serve a request sooner, with so many in line at each side. Beside streams that use the disk, a
    /// small one is left to the SSDs for longer.
    #[must_use]
    pub fn prefers_disk(&self, now: u64, bytes: u64, ssd_line: u32, disk_line: u32, beside_streams: bool) -> bool {
        let soon = if beside_streams && class(bytes) == 0 { SOON_BESIDE_STREAMS_NS } else { SOON_NS };
        let (ssd, disk) = (&self.ssd[class(bytes)], &self.disk[class(bytes)]);
        let disk = if disk.ns == 0 { DISK_UNMEASURED_NS } else { disk.aged(now) };
        let expected = |cost: u64, line: u32| cost.saturating_mul(u64::from(line) + 1);
        let (ssd_flush, disk_flush) = self.of_flushes(now, ssd_line.saturating_add(disk_line));
        let soonest = expected(ssd.aged(now), ssd_line).max(self.ssd_alone[class(bytes)].aged(now)).saturating_add(ssd_flush);
        soonest > soon && expected(disk, disk_line).saturating_add(disk_flush) < soonest
    }

    /// Whether a write is the disk's share of a burst: the line at the SSDs is long, the disk has nothing else to do, and is known to
    /// take it sooner, or was never asked. Not where clients flush: they would wait for the disk, too.
    pub fn shares(&mut self, now: u64, bytes: u64, ssd_line: u32, disk_line: u32, beside_sweep: bool) -> bool {
        let share = &self.share[usize::from(beside_sweep)];
        let disk = if share.ns == 0 { LEAST_NS } else { share.aged(now) };
        let expected = |cost: u64, line: u32| cost.saturating_mul(u64::from(line) + 1);
        let soonest = expected(self.ssd[class(bytes)].aged(now), ssd_line);
        let flushes = self.between > 0 && now.saturating_sub(self.flushed_at) <= FLUSHES_NS;
        if bytes > BURST_BYTES || flushes || soonest <= BURST_NS || expected(disk, disk_line) >= soonest {
            return false;
        }
        let next = self.shares_at.max(now.saturating_sub((SHARE_MOST - 1) * SHARE_NS));
        if next > now {
            return false;
        }
        self.shares_at = next + SHARE_NS;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;

    const MS: u64 = 1_000_000;

    #[test]
    fn a_disk_behind_fast_ssds_is_never_tried() {
        let mut route = Route::default();
        assert!(!route.prefers_disk(0, 4096, 0, 0, false));
        (0..1000).for_each(|n| route.note(Side::Ssd, n * MS, 4096, 31, 200_000));
        assert!((0..100).all(|line| !route.prefers_disk(1000 * MS, 4096, line, 0, false)));
        route.note(Side::Disk, 1000 * MS, 4096, 0, 8 * MS);
        assert!(!route.prefers_disk(3_600_000 * MS, 4096, 31, 0, false), "nor after an hour");
    }

    #[test]
    fn slow_ssds_leave_to_the_disk_what_it_does_sooner_and_the_line_counts() {
        let mut route = Route::default();
        (0..100).for_each(|n| route.note(Side::Ssd, n * MS, 4096, 0, 20 * MS));
        assert!(route.prefers_disk(100 * MS, 4096, 0, 0, false));
        (0..100).for_each(|n| route.note(Side::Disk, n * MS, 4096, 0, 2 * MS));
        assert!(route.prefers_disk(100 * MS, 4096, 0, 8, false) && !route.prefers_disk(100 * MS, 4096, 0, 10, false));
        assert!(!route.prefers_disk(100 * MS, 1 << 20, 0, 0, false), "of other sizes nothing is known");
    }

    #[test]
    fn one_slow_answer_of_an_ssd_says_nothing_and_a_dozen_do() {
        let mut route = Route::default();
        (0..100).for_each(|n| route.note(Side::Ssd, n * MS, 4096, 0, MS / 5));
        (0..100).for_each(|n| route.note(Side::Disk, n * MS, 4096, 0, 6 * MS));
        let mut slow = |n: u64| {
            route.note(Side::Ssd, (100 + 60 * n) * MS, 4096, 0, 60 * MS);
            route.prefers_disk((100 + 60 * n) * MS, 4096, 0, 0, false)
        };
        let first = (1..100).find(|n| slow(*n));
        assert!(first.is_some_and(|n| (8..=12).contains(&n)), "{first:?}");
    }

    #[test]
    fn of_ssds_that_are_slow_one_time_in_two_the_disk_serves_hits_and_one_time_in_five_is_borne() {
        let goes = |every: u64| {
            let mut route = Route::default();
            (0..100).for_each(|n| route.note(Side::Ssd, n * MS, 4096, 0, MS / 5));
            (0..100).for_each(|n| route.note(Side::Disk, n * MS, 4096, 0, 6 * MS));
            (100..400).any(|n| {
                route.note(Side::Ssd, n * MS, 4096, 0, if n % every == 0 { 60 * MS } else { MS / 5 });
                route.prefers_disk(n * MS, 4096, 0, 0, false)
            })
        };
        assert!(goes(2) && !goes(5));
    }

    #[test]
    fn ssds_that_are_soon_enough_keep_what_they_have_though_the_disks_cache_is_sooner() {
        let mut route = Route::default();
        (0..100).for_each(|n| route.note(Side::Ssd, n * MS, 4096, 0, MS / 5));
        (0..100).for_each(|n| route.note(Side::Disk, n * MS, 4096, 0, MS / 20));
        assert!(!route.prefers_disk(100 * MS, 4096, 8, 0, false) && route.prefers_disk(100 * MS, 4096, 31, 0, false));
    }

    #[test]
    fn a_disk_that_answers_at_once_and_owes_each_flush_a_revolution_is_not_sooner() {
        let mut route = Route::default();
        let write = |route: &mut Route, n: u64, side, took| {
            route.note(side, n * MS, 4096, 0, took);
            route.flushed(n * MS, MS, 8 * MS);
        };
        (0..50).for_each(|n| write(&mut route, n, Side::Ssd, 3 * MS));
        assert!(
            !route.prefers_disk(50 * MS, 4096, 0, 0, false),
            "a flush of the disk is taken to be slow before it was measured"
        );
        (50..100).for_each(|n| write(&mut route, n, Side::Disk, MS / 10));
        assert!(!route.prefers_disk(100 * MS, 4096, 0, 0, false));
        // Without flushes, and long after the last, the write alone counts.
        (10_000..10_050).for_each(|n| route.note(Side::Ssd, n * MS, 4096, 0, 3 * MS));
        assert!(route.prefers_disk(10_050 * MS, 4096, 0, 0, false));
        // SSDs that are slow to flush as well leave it to the disk.
        let mut slow = Route::default();
        for n in 0..50 {
            slow.note(Side::Ssd, n * MS, 4096, 0, 20 * MS);
            slow.flushed(n * MS, 5 * MS, 8 * MS);
        }
        assert!(slow.prefers_disk(50 * MS, 4096, 0, 0, false));
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
        assert!(!route.prefers_disk(50 * MS, 4096, 31, 7, false), "{route:?}");
        // One who writes as much before each flush has little of it with each write.
        let mut route = Route::default();
        for n in 0..50 {
            (0..40).for_each(|_| route.note(Side::Ssd, n * MS, 4096, 0, 6 * MS));
            route.note(Side::Disk, n * MS, 4096, 0, MS / 10);
            route.flushed(n * MS, 2 * MS, 16 * MS);
        }
        assert!(route.prefers_disk(50 * MS, 4096, 0, 0, false));
    }

    #[test]
    fn a_disk_that_failed_is_left_alone_for_a_while() {
        let mut route = Route::default();
        (0..100).for_each(|n| route.note(Side::Ssd, n * MS, 4096, 0, 20 * MS));
        (0..100).for_each(|n| route.note(Side::Disk, n * MS, 4096, 0, 2 * MS));
        route.disk_failed(100 * MS, 4096);
        route.note(Side::Ssd, 20_000 * MS, 4096, 0, 20 * MS);
        assert!(!route.prefers_disk(20_000 * MS, 4096, 0, 0, false));
        route.note(Side::Ssd, 60_000 * MS, 4096, 0, 20 * MS);
        assert!(route.prefers_disk(60_000 * MS, 4096, 0, 0, false));
    }

    #[test]
    fn a_side_long_unused_is_tried_again() {
        let mut route = Route::default();
        route.note(Side::Ssd, 0, 4096, 0, 20 * MS);
        (0..8000).for_each(|n| route.note(Side::Disk, n * MS, 4096, 0, 12 * MS));
        assert!(route.prefers_disk(MS, 4096, 0, 0, false) && !route.prefers_disk(8000 * MS, 4096, 0, 0, false));
    }

    /// Two hundred writes at once, as a page cache makes them: how many of them are the disk's share.
    fn burst(route: &mut Route, ms: u64, beside_sweep: bool, disk_took: u64) -> u32 {
        let (mut here, mut there) = (0, 0);
        for _ in 0..200 {
            match route.shares(ms * MS, 4096, here, there, beside_sweep) {
                true => there += 1,
                false => here += 1,
            }
        }
        (0..here).for_each(|n| route.note(Side::Ssd, ms * MS + 1, 4096, n, u64::from(n + 1) * 8_000));
        (0..there).for_each(|n| route.note_share(ms * MS + 1, n, u64::from(n + 1) * disk_took, beside_sweep));
        there
    }

    #[test]
    fn of_a_burst_an_idle_disk_has_as_much_as_it_takes_at_once_and_no_more() {
        let mut route = Route::default();
        let shares: Vec<u32> = (1..=5).map(|n| burst(&mut route, n * 1000, false, 8_000)).collect();
        assert_eq!(shares, [0, 1, 32, 32, 32], "it is asked for one first");
        assert_eq!(burst(&mut route, 5_200, false, 8_000), 8, "and has time to put them down");
        assert!((0..=140).all(|line| !route.shares(9000 * MS, 4096, line, 0, false)), "not where the SSDs are soon enough");
        assert!(!route.shares(9000 * MS, 65_536, 199, 0, false));
    }

    #[test]
    fn a_disk_that_takes_long_has_no_share_nor_one_that_stands_still_beside_a_sweep() {
        let mut route = Route::default();
        let shares: Vec<u32> = (1..=8).map(|n| burst(&mut route, n * 1000, false, 4 * MS)).collect();
        assert!(shares.iter().sum::<u32>() <= 2, "{shares:?}");
        let mut route = Route::default();
        let shares: Vec<u32> = (1..=30).map(|n| burst(&mut route, n * 1000, true, 400 * MS)).collect();
        assert_eq!(shares.iter().sum::<u32>(), 1, "{shares:?}");
        assert_eq!([31, 32].map(|n| burst(&mut route, n * 1000, false, 8_000)), [1, 32], "without one it has");
    }

    #[test]
    fn where_clients_flush_the_disk_has_no_share() {
        let mut route = Route::default();
        assert!((1..=4).map(|n| burst(&mut route, n * 1000, false, 8_000)).sum::<u32>() > 0);
        route.flushed(4_500 * MS, MS, MS);
        assert_eq!([5, 20, 60].map(|n| burst(&mut route, n * 1000, false, 8_000)), [0; 3]);
        assert!(burst(&mut route, 70_000, false, 8_000) > 0, "and has one again a minute after the last");
    }

    /// What the disk's own cache takes of a burst at once it does not take of thousands.
    #[test]
    fn a_share_taken_at_once_does_not_make_the_disk_a_quick_one() {
        let mut route = Route::default();
        assert!((1..=4).map(|n| burst(&mut route, n * 1000, false, 8_000)).sum::<u32>() > 0);
        assert!((0..600).all(|line| !route.prefers_disk(5000 * MS, 4096, line, 0, false)));
    }

    /// A first burst shares few records: by the number in line each write took next to nothing, and the next one waited for the SSDs.
    #[test]
    fn no_write_is_expected_to_take_less_than_one_alone() {
        let mut route = Route::default();
        (0..200).for_each(|n| route.note(Side::Ssd, MS, 4096, n, 10 * MS + u64::from(n) * MS / 5));
        assert!(route.prefers_disk(1000 * MS, 4096, 0, 0, false));
    }

    /// A drive that caches writes took those that found a line at the SSDs, and the stream beside them lost a quarter.
    #[test]
    fn small_requests_keep_away_from_a_disk_that_streams_use() {
        let mut route = Route::default();
        for bytes in [4096, 65_536] {
            (0..100).for_each(|n| route.note(Side::Ssd, n * MS, bytes, 0, MS / 5));
            (0..100).for_each(|n| route.note(Side::Disk, n * MS, bytes, 0, MS / 20));
        }
        assert!(route.prefers_disk(100 * MS, 4096, 31, 0, false) && !route.prefers_disk(100 * MS, 4096, 31, 0, true));
        assert!(route.prefers_disk(100 * MS, 65_536, 31, 0, true), "large ones cost it little more than their transfer");
        assert!(route.prefers_disk(100 * MS, 4096, 120, 0, true), "nor is anybody made to wait for long");
    }
}
