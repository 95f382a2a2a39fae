//! What a request costs one core: hits per second, writes absorbed per second.
//!
//! `cargo bench -p headpond-engine --bench requests`. Lines of the form `name value unit` are the figures of
//! `docs/PERFORMANCE.md`: medians of five rounds of processor time.

mod support;

use criterion::{Criterion, SamplingMode};
use headpond_engine::Buf;
use headpond_engine::lookaside::Lookaside;
use std::hint::black_box;
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};
use support::{BLOCK, Bytes, Dice, Host, ROUNDS, cpu_ns, hits, hits_of, median, report, rounds, scattered};

/// Blocks that are cached: 1 GiB, so that data and map are in no processor's cache.
const BLOCKS: u64 = 1 << 18;
/// Members are this large: what is written stays below where destage begins.
const MEMBER: u64 = 6 << 30;

/// A host whose cache holds `BLOCKS` blocks, each different.
fn warm() -> Host {
    let mut host = Host::new(MEMBER);
    let mut data = vec![0u8; BLOCK];
    for b in scattered(BLOCKS) {
        data[..8].copy_from_slice(&b.to_le_bytes());
        host.write(b, 0, Bytes::from_bytes(&data));
        host.run();
        host.replies().for_each(drop);
    }
    let v = &host.engine().status().volumes[0];
    assert_eq!((v.cached_blocks, v.stats.absorbed.requests), (BLOCKS, BLOCKS), "all was absorbed: {:?}", v.stats);
    host.freeze();
    host
}

/// Blocks of a request of a stream.
const LONG: u32 = 32;
/// Blocks that come into the cache with one write: fewer than are a stream, or the disk would have them.
const TOGETHER: u64 = 64;

/// A host whose cache holds `BLOCKS` blocks that lie beside their neighbours.
fn warm_for_streams() -> Host {
    let mut host = Host::new(MEMBER);
    let mut data = vec![0u8; TOGETHER as usize * BLOCK];
    for n in scattered(BLOCKS / TOGETHER) {
        let first = n * TOGETHER;
        (first..).zip(data.chunks_mut(BLOCK)).for_each(|(b, block)| block[..8].copy_from_slice(&b.to_le_bytes()));
        host.write(first, 0, Bytes::from_bytes(&data));
        host.run();
        host.replies().for_each(drop);
    }
    let v = &host.engine().status().volumes[0];
    assert_eq!((v.cached_blocks, v.stats.absorbed.requests), (BLOCKS, BLOCKS / TOGETHER), "all was absorbed: {:?}", v.stats);
    host.freeze();
    host
}

/// A stream of hits over all that is cached, of requests of 128 KiB; and what of each is not the engine's.
fn stream_of_hits() {
    let mut host = warm_for_streams();
    let mut client = vec![0u8; LONG as usize * BLOCK];
    let count = BLOCKS / u64::from(LONG);
    let alone = rounds(count, || {
        for n in 0..count {
            let data = host.run_alone(n, LONG);
            for (from, to) in data.bytes().chunks(BLOCK).zip(client.chunks_mut(BLOCK)) {
                black_box(headpond_engine::format::checksum(1, from));
                to.copy_from_slice(from);
            }
            black_box(&mut client);
        }
    });
    report("stream_checksum_and_copy_alone_128KiB", alone);
    report("stream_hit_128KiB", rounds(count, || hits_of((0..BLOCKS).step_by(LONG as usize), LONG, &mut host, &mut client)));
    let v = &host.engine().status().volumes[0];
    assert_eq!(v.stats.hit.requests, count * ROUNDS as u64, "each was a hit: {:?}", v.stats);
}

/// What of a hit is not the engine's: the device's data, which no processor's cache has, checksummed and copied.
fn without_engine(host: &Host, dice: &mut Dice, count: u64, client: &mut [u8]) {
    for _ in 0..count {
        let data = host.device_alone(dice.below(u64::MAX));
        black_box(data.checksum(1));
        client.copy_from_slice(data.bytes());
        black_box(&mut *client);
    }
}

/// Random writes, `depth` outstanding, so many sectors past the beginning of a block, each copied once from the client's buffer.
fn writes(host: &mut Host, dice: &mut Dice, (depth, skew): (u64, u64), count: u64, client: &[u8]) {
    for _ in 0..count / depth {
        for _ in 0..depth {
            host.write(dice.below(BLOCKS), skew, Bytes::from_bytes(client));
        }
        host.run();
        assert_eq!(host.replies().count() as u64, depth);
    }
}

/// Hits per second of so many engines at once, each with a pool, a volume and a thread of its own, by the clock on the wall.
fn engines_at_once(engines: usize) -> f64 {
    const COUNT: u64 = 2_000_000;
    let start = Barrier::new(engines);
    let one = |seed| {
        let (mut host, mut dice, mut client) = (warm(), Dice(seed), vec![0u8; BLOCK]);
        let round = |host: &mut Host, dice: &mut Dice, client: &mut [u8]| {
            start.wait();
            let begun = Instant::now();
            hits(host, dice, 1000, COUNT, client);
            COUNT as f64 / begun.elapsed().as_secs_f64()
        };
        (0..ROUNDS).map(|_| round(&mut host, &mut dice, &mut client)).collect::<Vec<f64>>()
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..engines as u64).map(|n| scope.spawn(move || one(n + 1))).collect();
        let all: Vec<Vec<f64>> = threads.into_iter().map(|t| t.join().expect("an engine's thread ends")).collect();
        median((0..ROUNDS).map(|round| all.iter().map(|of| of[round]).sum()).collect())
    })
}

/// Blocks of a volume that are hot.
const HOT: u64 = 1000;

/// A reader of one volume beside its engine, on a thread of its own while it reads.
struct Reader {
    number: usize,
    table: Arc<Lookaside>,
    /// What is found, and what the device has there. As a device would leave it in the reader's own memory: a count of references that readers
    /// share would be the bench's, not theirs.
    device: Vec<(u64, (u8, u64), Bytes)>,
    client: Vec<u8>,
    dice: Dice,
}

impl Reader {
    /// A hit: looked up, checksummed and copied.
    fn hit(&mut self) {
        let (block, place, there) = &self.device[self.dice.below(self.device.len() as u64) as usize];
        let it = self.table.find(block * 8, 8).expect("nobody has written it");
        assert!(self.table.begin(self.number));
        assert_eq!(it.places[0], Some(*place));
        let data = there.clone();
        assert!(it.is(&data));
        self.client.copy_from_slice(data.bytes());
        self.table.end(self.number, Some(BLOCK as u64));
        black_box(&mut *self.client);
    }

    /// The same without the look-up.
    fn payload(&mut self) {
        let (_, _, there) = &self.device[self.dice.below(self.device.len() as u64) as usize];
        black_box(there.checksum(1));
        self.client.copy_from_slice(there.bytes());
        black_box(&mut *self.client);
    }
}

/// How many times a second `readers` do something, all together and each on a thread, by the clock on the wall: as long as all of them are at it. To wait
/// for the last of them to have done its share would be to measure how unlike they are.
fn together(readers: &mut [Reader], what: fn(&mut Reader)) -> f64 {
    const EACH: Duration = Duration::from_millis(200);
    let start = &Barrier::new(readers.len());
    let rate = |reader: &mut Reader| {
        start.wait();
        let (begun, mut count) = (Instant::now(), 0);
        while begun.elapsed() < EACH {
            (0..1000).for_each(|_| what(reader));
            count += 1000;
        }
        f64::from(count) / begun.elapsed().as_secs_f64()
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = readers.iter_mut().map(|reader| scope.spawn(|| rate(reader))).collect();
        threads.into_iter().map(|t| t.join().expect("a reader ends")).sum()
    })
}

/// Hits per second of one and of two volumes of one pool, each read by a thread of its own beside the engine: by turns, since a machine's pace changes;
/// and the two by the one, of each turn. The one is either of them, half of the time each: how their data happen to lie in the caches of the processors
/// makes one faster than the other by up to a half. Beside that, what the processors make of checksum and copy alone.
fn volumes_at_once() {
    const TURNS: usize = 25;
    let mut host = Host::new(MEMBER);
    let mut data = vec![0u8; BLOCK];
    let tables = [0, 1].map(|volume| {
        if volume > 0 {
            host.attach(volume);
        }
        let table = host.engine().lookaside(volume, 1 << 18).expect("it is served");
        for b in scattered(HOT) {
            data[..8].copy_from_slice(&b.to_le_bytes());
            host.write(b, 0, Bytes::from_bytes(&data));
            host.run();
            // What is read is found from then on.
            host.read(b, 1);
            host.run();
            host.replies().for_each(drop);
        }
        table
    });
    host.freeze();
    let members = [host.member(0), host.member(1)];
    let mut readers = [0, 1].map(|number| {
        let table = tables[number].clone();
        // Two blocks may want one place of the table: the other of them is the engine's.
        let device: Vec<_> = (0..HOT)
            .filter_map(|b| {
                let place = table.find(b * 8, 8)?.places[0]?;
                let there = members[usize::from(place.0)].read(place.1, BLOCK);
                Some((b, place, Bytes::from_bytes(there.bytes())))
            })
            .collect();
        assert!(device.len() as u64 > HOT * 9 / 10, "{} of {HOT} blocks are found", device.len());
        Reader { number, table, device, client: vec![0u8; BLOCK], dice: Dice(1) }
    });
    let mut turn = |what: fn(&mut Reader)| {
        let first = together(&mut readers[..1], what);
        let both = together(&mut readers, what);
        [(first + together(&mut readers[1..], what)) / 2.0, both]
    };
    let turns: Vec<[[f64; 2]; 2]> = (0..TURNS).map(|_| [turn(Reader::payload), turn(Reader::hit)]).collect();
    let of = |value: fn(&[[f64; 2]; 2]) -> f64| median(turns.iter().map(value).collect());
    println!("hits_of_one_volume_beside_its_engine {:.0} 1/s", of(|[_, [one, _]]| *one));
    println!("hits_of_two_volumes_beside_their_engine {:.0} 1/s", of(|[_, [_, two]]| *two));
    let ratios = |name: &str, of: fn(&[[f64; 2]; 2]) -> [f64; 2]| {
        let mut all: Vec<f64> = turns.iter().map(of).map(|[one, two]| two / one).collect();
        all.sort_by(f64::total_cmp);
        println!("{name} {:.2} ({:.2} to {:.2})", all[TURNS / 2], all[0], all[TURNS - 1]);
    };
    ratios("two_volumes_by_one", |[_, hits]| *hits);
    ratios("two_threads_by_one_of_checksum_and_copy_alone", |[payload, _]| *payload);
}

fn main() {
    let mut criterion =
        Criterion::default().configure_from_args().warm_up_time(Duration::from_secs(1)).measurement_time(Duration::from_secs(3));
    let mut client = vec![0u8; BLOCK];
    let mut dice = Dice(1);
    {
        let mut host = warm();
        let count = 1_000_000;
        report("checksum_and_copy_alone", rounds(count, || without_engine(&host, &mut dice, count, &mut client)));
        report("hit_random_1GiB", rounds(count, || hits(&mut host, &mut dice, BLOCKS, count, &mut client)));
        report("hit_hot_1000_blocks", rounds(count, || hits(&mut host, &mut dice, 1000, count, &mut client)));
        let mut group = criterion.benchmark_group("hit");
        group.sample_size(20);
        group.bench_function("random", |b| b.iter(|| hits(&mut host, &mut dice, BLOCKS, 1, &mut client)));
        group.finish();
    }
    stream_of_hits();
    let [one, two] = [1, 2].map(engines_at_once);
    println!("hits_of_one_engine {one:.0} 1/s");
    println!("hits_of_two_engines {two:.0} 1/s");
    println!("two_engines_by_one {:.2}", two / one);
    volumes_at_once();
    for (depth, skew, name) in [(1, 0, "depth_1"), (32, 0, "depth_32"), (32, 5, "depth_32_unaligned")] {
        let count = 250_000 / depth * depth;
        let mut all = Vec::new();
        for _ in 0..ROUNDS {
            let mut host = Host::new(MEMBER);
            let begun = cpu_ns();
            writes(&mut host, &mut dice, (depth, skew), count, &client);
            all.push((cpu_ns() - begun) as f64 / count as f64);
            let stats = &host.engine().status().volumes[0].stats;
            assert_eq!(stats.absorbed.requests, count, "all was absorbed: {stats:?}");
        }
        report(&format!("absorb_{name}"), median(all));
        let mut group = criterion.benchmark_group("absorb");
        group.sample_size(10).sampling_mode(SamplingMode::Flat);
        group.bench_function(name, |b| {
            b.iter_custom(|n| {
                let mut host = Host::new(MEMBER);
                let n = n.next_multiple_of(depth);
                let begun = std::time::Instant::now();
                writes(&mut host, &mut dice, (depth, skew), n, &client);
                begun.elapsed()
            });
        });
        group.finish();
    }
}
