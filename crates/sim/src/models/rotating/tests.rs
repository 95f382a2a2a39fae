//! The rotating disk against the figures that disks of its class are measured at.

use super::{RotatingDisk, RotatingParams};
use crate::models::{Access, Kind, MILLISECOND, SECOND, SplitMix64, TimingModel};

const BLOCK: u64 = 4096;
const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

/// A client that keeps `depth` requests outstanding.
struct Client {
    depth: u64,
    next: Box<dyn FnMut() -> Option<Access>>,
}

impl Client {
    fn new(depth: u64, next: impl FnMut() -> Option<Access> + 'static) -> Self {
        Client { depth, next: Box::new(next) }
    }

    /// Random blocks of the first `region` bytes.
    fn random(kind: Kind, region: u64, depth: u64, seed: u64) -> Self {
        let mut random = SplitMix64::new(seed);
        Client::new(depth, move || Some(Access { kind, offset: random.below(region / BLOCK) * BLOCK, len: BLOCK }))
    }

    /// A stream of `len` bytes a request, from `offset` on.
    fn stream(kind: Kind, mut offset: u64, len: u64, depth: u64) -> Self {
        Client::new(depth, move || {
            offset += len;
            Some(Access { kind, offset: offset - len, len })
        })
    }
}

/// What a client saw after the warm-up.
#[derive(Clone, Copy, Default, Debug)]
struct Seen {
    requests: u64,
    bytes: u64,
    longest_ns: u64,
}

impl Seen {
    fn per_second(&self, ns: u64) -> f64 {
        self.requests as f64 * SECOND as f64 / ns as f64
    }

    fn megabytes_per_second(&self, ns: u64) -> f64 {
        self.bytes as f64 * 1e3 / ns as f64
    }
}

/// Lets the clients run until `warm + ns`, or until all are at their end; returns what each saw after
/// `warm`, and when the last request ended.
fn load(disk: &mut RotatingDisk, clients: &mut [Client], warm: u64, ns: u64) -> (Vec<Seen>, u64) {
    let mut seen = vec![Seen::default(); clients.len()];
    let mut submitted: Vec<(usize, u64, u64)> = Vec::new();
    let mut due: Vec<usize> = (0..clients.len()).flat_map(|who| vec![who; clients[who].depth as usize]).collect();
    let (mut now, mut last) = (0, 0);
    let mut done = Vec::new();
    loop {
        for who in due.drain(..) {
            if let Some(op) = (clients[who].next)() {
                disk.submit(now, submitted.len() as u64, op);
                submitted.push((who, now, op.len));
            }
        }
        let Some(next) = disk.next_completion().filter(|next| *next < warm + ns) else {
            return (seen, last);
        };
        now = now.max(next);
        disk.advance(now, &mut done);
        for id in done.drain(..) {
            let (who, since, len) = submitted[id as usize];
            last = now;
            due.push(who);
            if now >= warm {
                seen[who].requests += 1;
                seen[who].bytes += len;
                seen[who].longest_ns = seen[who].longest_ns.max(now - since);
            }
        }
    }
}

/// Requests per second of one client, from 10 s on.
fn rate(params: &RotatingParams, client: Client) -> f64 {
    let mut disk = RotatingDisk::new(params.clone());
    let (seen, _) = load(&mut disk, &mut [client], 10 * SECOND, 60 * SECOND);
    seen[0].per_second(60 * SECOND)
}

/// Measured values against their bands; all are printed before the first that is outside fails the test.
#[derive(Default)]
struct Bands {
    outside: Vec<String>,
}

impl Bands {
    fn check(&mut self, what: &str, value: f64, low: f64, high: f64) {
        let line = format!("{what:58} {value:8.1}   band {low:.1} to {high:.1}");
        println!("{line}");
        if !(low..=high).contains(&value) {
            self.outside.push(line);
        }
    }
}

impl Drop for Bands {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            assert!(self.outside.is_empty(), "outside:\n{}", self.outside.join("\n"));
        }
    }
}

#[test]
fn random_requests_run_at_the_rates_of_a_nearline_disk() {
    let mut bands = Bands::default();
    let disk = RotatingParams::nearline_7200();
    let bare = disk.clone().without_write_cache();
    let (all, part) = (disk.capacity, 4 * GIB);
    let read = |region, depth| rate(&disk, Client::random(Kind::Read, region, depth, 1));
    let write = |params, region, depth| rate(params, Client::random(Kind::Write, region, depth, 2));
    bands.check("random read, depth 1, whole disk, IOPS", read(all, 1), 75.0, 85.0);
    bands.check("random read, depth 32, whole disk, IOPS", read(all, 32), 170.0, 220.0);
    bands.check("random write, cache on, whole disk, IOPS", write(&disk, all, 32), 250.0, 450.0);
    bands.check("random write, cache off, depth 1, whole disk, IOPS", write(&bare, all, 1), 70.0, 82.0);
    bands.check("random write, cache off, depth 32, whole disk, IOPS", write(&bare, all, 32), 160.0, 220.0);
    bands.check("random read, depth 1, 4 GiB, IOPS", read(part, 1), 140.0, 200.0);
    bands.check("random read, depth 32, 4 GiB, IOPS", read(part, 32), 350.0, 650.0);
    bands.check("random write, cache on, 4 GiB, IOPS", write(&disk, part, 32), 400.0, 700.0);
}

#[test]
fn streams_run_at_the_sustained_rate_of_the_zone() {
    let mut bands = Bands::default();
    let params = RotatingParams::nearline_7200();
    let bare = params.clone().without_write_cache();
    let stream = |params: &RotatingParams, kind, offset, len, depth| {
        rate(params, Client::stream(kind, offset, len, depth)) * len as f64 / 1e6
    };
    let inner = params.capacity - 16 * GIB;
    bands.check("stream read 1 MiB, depth 1, MB/s", stream(&params, Kind::Read, 0, MIB, 1), 195.0, 200.5);
    bands.check("stream read 1 MiB, depth 32, MB/s", stream(&params, Kind::Read, 0, MIB, 32), 195.0, 200.5);
    bands.check("stream read 4 KiB, depth 1, MB/s", stream(&params, Kind::Read, 0, BLOCK, 1), 50.0, 100.0);
    bands.check("stream write 1 MiB, depth 1, MB/s", stream(&params, Kind::Write, 0, MIB, 1), 195.0, 200.5);
    bands.check("stream write 1 MiB, depth 32, MB/s", stream(&params, Kind::Write, 0, MIB, 32), 195.0, 200.5);
    bands.check("stream write 1 MiB, no cache, depth 32, MB/s", stream(&bare, Kind::Write, 0, MIB, 32), 195.0, 200.5);
    bands.check("stream write 1 MiB, no cache, depth 1, MB/s", stream(&bare, Kind::Write, 0, MIB, 1), 60.0, 85.0);
    bands.check("stream read 1 MiB, innermost, MB/s", stream(&params, Kind::Read, inner, MIB, 1), 98.0, 101.0);
    bands.check("stream write 1 MiB, innermost, MB/s", stream(&params, Kind::Write, inner, MIB, 1), 98.0, 101.0);
}

/// Writes per second of a one-way sweep over `share` of the blocks of the 4 GiB at `from`, chosen at
/// random, 32 outstanding.
fn sweep(params: &RotatingParams, from: u64, share: f64) -> f64 {
    let mut random = SplitMix64::new(7);
    let mut block = 0;
    let odds = (share * (1u64 << 32) as f64) as u64;
    let client = Client::new(32, move || {
        loop {
            block += 1;
            if random.below(1 << 32) < odds {
                return (block < 4 * GIB / BLOCK).then(|| Access::write(from + block * BLOCK, BLOCK));
            }
        }
    });
    let mut disk = RotatingDisk::new(params.clone());
    let (seen, last) = load(&mut disk, &mut [client], 0, 100_000 * SECOND);
    seen[0].per_second(last)
}

#[test]
fn a_sorted_sweep_gains_what_the_density_of_dirty_blocks_allows() {
    let mut bands = Bands::default();
    let cached = RotatingParams::nearline_7200();
    let bare = cached.clone().without_write_cache();
    // Over the whole disk, the 4 GiB in its middle stand for the rest of the sweep. The reference there
    // is a disk without a write cache, which is slower at random writes and gains more.
    let small = [(0.005, 1.9), (0.0125, 2.5), (0.03, 4.1), (0.06, 6.9), (0.125, 12.0), (0.25, 17.0)];
    let whole = [(0.005, 3.3), (0.0125, 4.0), (0.03, 6.0), (0.06, 10.5), (0.125, 18.0), (0.25, 25.0)];
    let cases = [
        ("cache on, 4 GiB", &cached, 4 * GIB, 0, small),
        ("cache off, 4 GiB", &bare, 4 * GIB, 0, small),
        ("cache off, 8 TiB", &bare, bare.capacity, bare.capacity / 2, whole),
    ];
    for (name, params, region, from, table) in cases {
        let random = rate(params, Client::random(Kind::Write, region, 32, 2));
        println!("{name}: random writes at {random:.0} IOPS");
        for (share, reference) in table {
            let gain = sweep(params, from, share) / random;
            let what = format!("{name}, {:.2} % dirty, gain", share * 100.0);
            bands.check(&what, gain, 0.6 * reference, 1.4 * reference);
        }
    }
}

#[test]
fn a_stream_beside_random_reads_loses_throughput_and_both_go_on() {
    let mut bands = Bands::default();
    // Depth of the stream, depth of the random reads, what each may get.
    let table = [(1, 1, 20.0..60.0, 20.0..50.0), (4, 1, 60.0..120.0, 10.0..30.0), (4, 8, 30.0..80.0, 50.0..120.0)];
    for (stream, random, megabytes, iops) in table {
        let params = RotatingParams::nearline_7200();
        let mut clients = [Client::stream(Kind::Read, 0, MIB, stream), Client::random(Kind::Read, params.capacity, random, 3)];
        let mut disk = RotatingDisk::new(params);
        let (seen, _) = load(&mut disk, &mut clients, 10 * SECOND, 60 * SECOND);
        let what = format!("stream at depth {stream} beside random at {random}");
        bands.check(&format!("{what}, MB/s"), seen[0].megabytes_per_second(60 * SECOND), megabytes.start, megabytes.end);
        bands.check(&format!("{what}, IOPS"), seen[1].per_second(60 * SECOND), iops.start, iops.end);
    }
}

#[test]
fn no_request_starves_beside_nearer_ones() {
    // Writes at the far end compete with a saturating load over a small region at the near end.
    for params in [RotatingParams::nearline_7200(), RotatingParams::nearline_7200().without_write_cache()] {
        let far = params.capacity - GIB;
        let mut random = SplitMix64::new(9);
        let mut clients = [
            Client::random(Kind::Read, GIB, 28, 4),
            Client::new(2, move || Some(Access::read(far + random.below(GIB / BLOCK) * BLOCK, BLOCK))),
            Client::random(Kind::Write, GIB, 1, 5),
            Client::new(1, || Some(Access::flush())),
        ];
        let limit = params.age_limit_ns;
        let mut disk = RotatingDisk::new(params);
        let (seen, _) = load(&mut disk, &mut clients, SECOND, 120 * SECOND);
        for (who, seen) in seen.iter().enumerate() {
            println!("client {who}: {seen:?}");
            assert!(seen.requests > 0 && seen.longest_ns < 2 * limit, "client {who}: {seen:?}");
        }
    }
}

/// Submits one request to a disk and lets it end; returns how long it took.
fn time_of(disk: &mut RotatingDisk, now: u64, op: Access) -> u64 {
    disk.submit(now, u64::MAX, op);
    let mut done = Vec::new();
    loop {
        let next = disk.next_completion().expect("a pending request has an end");
        disk.advance(next, &mut done);
        if done.contains(&u64::MAX) {
            return next - now;
        }
    }
}

#[test]
fn a_flush_takes_as_long_as_the_cached_writes_before_it() {
    let params = RotatingParams::nearline_7200();
    let mut disk = RotatingDisk::new(params.clone());
    assert!(time_of(&mut disk, 0, Access::flush()) <= MILLISECOND, "nothing is cached");
    let mut random = SplitMix64::new(6);
    let mut now = SECOND;
    for _ in 0..100 {
        let took = time_of(&mut disk, now, Access::write(random.below(params.capacity / BLOCK) * BLOCK, BLOCK));
        assert!(took < MILLISECOND, "a cached write took {took} ns");
        now += took;
    }
    let flush = time_of(&mut disk, now, Access::flush());
    assert!((300 * MILLISECOND..700 * MILLISECOND).contains(&flush), "100 random writes flushed in {flush} ns");
    assert!(time_of(&mut disk, now + flush, Access::flush()) <= MILLISECOND, "nothing is cached any more");
}

#[test]
fn a_flush_does_not_wait_for_writes_that_come_after_it() {
    let params = RotatingParams::nearline_7200();
    let mut disk = RotatingDisk::new(params.clone());
    time_of(&mut disk, 0, Access::write(params.capacity / 2, BLOCK));
    disk.submit(MILLISECOND, 0, Access::flush());
    let mut random = SplitMix64::new(8);
    for id in 1..31 {
        disk.submit(MILLISECOND, id, Access::write(random.below(params.capacity / BLOCK) * BLOCK, BLOCK));
    }
    let mut done = Vec::new();
    disk.advance(60 * MILLISECOND, &mut done);
    assert!(done.contains(&0), "the flush waited for one write of 20 ms and not for thirty more");
}

/// In which order a write before a flush, the flush, and a write after it end.
fn order(params: RotatingParams) -> Vec<u64> {
    let mut disk = RotatingDisk::new(params);
    let asked = [Access::write(4 * GIB, BLOCK), Access::flush(), Access::write(8 * GIB, BLOCK)];
    (0..).zip(asked).for_each(|(id, it)| disk.submit(id, id, it));
    let mut done = Vec::new();
    while let Some(next) = disk.next_completion() {
        disk.advance(next, &mut done);
    }
    done
}

#[test]
fn on_sata_nothing_else_is_taken_during_a_flush() {
    assert_eq!(order(RotatingParams::nearline_7200()), [0, 2, 1]);
    assert_eq!(order(RotatingParams::nearline_7200().on_sata()), [0, 1, 2]);
}

#[test]
fn without_a_write_cache_a_flush_is_free_and_a_write_is_not() {
    let mut disk = RotatingDisk::new(RotatingParams::nearline_7200().without_write_cache());
    assert!(time_of(&mut disk, 0, Access::write(GIB, BLOCK)) > MILLISECOND);
    assert!(time_of(&mut disk, SECOND, Access::flush()) < MILLISECOND);
}

#[test]
fn what_is_in_the_disks_buffers_is_read_without_the_heads() {
    let mut disk = RotatingDisk::new(RotatingParams::nearline_7200());
    time_of(&mut disk, 0, Access::write(4 * GIB, BLOCK));
    assert!(time_of(&mut disk, MILLISECOND, Access::read(4 * GIB, BLOCK)) < MILLISECOND, "just written");
    assert!(time_of(&mut disk, SECOND, Access::read(8 * GIB, BLOCK)) > MILLISECOND);
    assert!(time_of(&mut disk, 2 * SECOND, Access::read(8 * GIB + MIB, BLOCK)) < MILLISECOND, "read ahead");
    disk.submit(3 * SECOND, 0, Access::write(8 * GIB + 3 * MIB, BLOCK));
    disk.advance(4 * SECOND, &mut Vec::new());
    let took = time_of(&mut disk, 4 * SECOND, Access::read(8 * GIB + 3 * MIB, BLOCK));
    assert!(took > MILLISECOND, "a write makes what was read ahead stale");
}

#[test]
fn a_slow_reader_of_a_stream_is_served_from_the_buffer() {
    let mut disk = RotatingDisk::new(RotatingParams::nearline_7200());
    let mut slow = 0;
    for index in 0..1_000 {
        // 64 KiB every millisecond is a third of the media rate.
        let took = time_of(&mut disk, index * MILLISECOND, Access::read(index * 65_536, 65_536));
        slow += u64::from(took > MILLISECOND);
    }
    assert!(slow <= 20, "{slow} of 1,000 reads waited for the media");
}

#[test]
fn every_request_ends_once_and_the_same_requests_end_at_the_same_times() {
    let run = |params: &RotatingParams| {
        let mut disk = RotatingDisk::new(params.clone());
        let mut random = SplitMix64::new(10);
        let (mut now, mut ends, mut done) = (0, Vec::new(), Vec::new());
        for id in 0..5_000 {
            now += random.below(8 * MILLISECOND);
            let kinds = [Kind::Read, Kind::Read, Kind::Write, Kind::Write, Kind::Flush, Kind::Discard, Kind::WriteZeroes];
            let kind = kinds[random.below(kinds.len() as u64) as usize];
            let blocks = if random.below(50) == 0 { random.below(20_000) } else { random.below(64) };
            let offset = random.below(params.capacity / BLOCK - blocks) * BLOCK;
            disk.submit(now, id, Access { kind, offset, len: blocks * BLOCK });
            disk.advance(now, &mut done);
            ends.extend(done.drain(..).map(|id| (now, id)));
        }
        while let Some(next) = disk.next_completion() {
            disk.advance(next, &mut done);
            ends.extend(done.drain(..).map(|id| (next, id)));
        }
        ends
    };
    for params in [RotatingParams::nearline_7200(), RotatingParams::nearline_7200().on_sata()] {
        let ends = run(&params);
        assert_eq!(ends, run(&params));
        let mut ids: Vec<u64> = ends.into_iter().map(|(_, id)| id).collect();
        ids.sort_unstable();
        assert!(ids.into_iter().eq(0..5_000));
    }
}

#[test]
#[ignore = "prints a figure that depends on the machine; run it with --release"]
fn speed_of_the_model() {
    let params = RotatingParams::nearline_7200();
    let cases = [
        ("read, whole disk", Kind::Read, params.capacity),
        ("read, 4 GiB", Kind::Read, 4 * GIB),
        ("write, whole disk", Kind::Write, params.capacity),
        ("write, 4 GiB", Kind::Write, 4 * GIB),
    ];
    for (what, kind, region) in cases {
        let mut disk = RotatingDisk::new(params.clone());
        let begin = std::time::Instant::now();
        let (seen, _) = load(&mut disk, &mut [Client::random(kind, region, 32, 1)], 0, 5_000 * SECOND);
        let rate = seen[0].requests as f64 / begin.elapsed().as_secs_f64();
        println!("random {what}, depth 32: {rate:.0} simulated requests per second of real time");
    }
}
