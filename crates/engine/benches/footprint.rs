//! What a cached block costs in memory, and how long a start takes.
//!
//! `cargo bench -p headpond-engine --bench footprint`. Lines of the form `name value unit` are the figures of
//! `docs/PERFORMANCE.md`.

mod support;

use headpond_engine::{Buf, Command};
use peak_alloc::PeakAlloc;
use support::{BLOCK, Bytes, Host, cpu_ns, median, scattered};

#[global_allocator]
static ALLOCATOR: PeakAlloc = PeakAlloc;

/// Blocks of the memory figures: so many that what the engine remembers of requests, a megabyte and a half however much is cached, is little
/// by them.
const BLOCKS: u64 = 1 << 22;
/// Bytes of each member.
const MEMBER: u64 = 64 << 30;
/// Blocks of a start.
const MAP: u64 = 2 << 20;
/// So many are destaged at a time.
const DESTAGED: usize = 1 << 19;
/// Blocks that are in the log when the engine dies: not enough for another checkpoint.
const LOG: usize = 200_000;
const ROUNDS: usize = 5;

/// A host with blocks cached and clean. Their data is all one buffer: what memory grows by is the engine's.
fn cached(member: u64, blocks: impl Iterator<Item = u64>) -> Host {
    let mut host = Host::new(member);
    host.forget_data();
    let data = Bytes::zeroes(BLOCK);
    for (n, b) in blocks.enumerate() {
        host.write(b, 0, data.clone());
        host.until_answered(1);
        // Before writes are held back for want of space, or go to the disk.
        if n % DESTAGED == DESTAGED - 1 {
            host.command(Command::Destage { volume: 0 });
        }
    }
    host.command(Command::Destage { volume: 0 });
    host
}

/// What an engine's memory comes to: what is free when it has ended.
fn engine_bytes(mut host: Host) -> usize {
    let before = ALLOCATOR.current_usage();
    host.end();
    before - ALLOCATOR.current_usage()
}

fn bytes_per_block(name: &str, blocks: impl Iterator<Item = u64>) {
    let empty = engine_bytes(cached(MEMBER, std::iter::empty()));
    let host = cached(MEMBER, blocks);
    let count = host.engine().status().volumes[0].cached_blocks;
    assert_eq!(host.engine().status().volumes[0].stats.write_bypass.iter().map(|c| c.requests).sum::<u64>(), 0, "all are cached");
    let each = (engine_bytes(host) - empty) as f64 / count as f64;
    println!("memory_{name}_blocks {count} blocks");
    println!("memory_{name} {each:.1} B/block");
    println!("memory_{name}_per_TiB_cached {:.2} GiB", each / 4.0);
}

fn main() {
    bytes_per_block("whole_GiBs", scattered(BLOCKS));
    // One block in four of a region four times as large.
    bytes_per_block("random_quarter", scattered(BLOCKS * 4).take(BLOCKS as usize));
    // Alone in its 256 KiB: the worst there is.
    bytes_per_block("random_1TiB", scattered(1 << 28).take(BLOCKS as usize / 4));

    let mut host = cached(MEMBER / 2, scattered(MAP));
    host.command(Command::Stop);
    let (mut beside, mut up, mut first, mut whole) = (0, Vec::new(), Vec::new(), Vec::new());
    for round in 0..ROUNDS as u64 {
        host.end();
        ALLOCATOR.reset_peak_usage();
        let begun = cpu_ns();
        let took = || (cpu_ns() - begun) as f64 / 1e9;
        host.start_until_up();
        up.push(took());
        host.read_one(MAP / ROUNDS as u64 * round + MAP / 7);
        first.push(took());
        host.run();
        whole.push(took());
        beside = beside.max(ALLOCATOR.peak_usage() - ALLOCATOR.current_usage());
        let status = host.engine().status();
        assert!(status.loading.is_none());
        assert_eq!(status.volumes[0].cached_blocks, MAP, "a clean stop leaves the whole cache warm");
        host.command(Command::Stop);
    }
    let took = median(whole);
    println!("start_map_blocks {MAP} blocks");
    println!("start_until_requests_are_served_cpu {:.3} s", median(up));
    println!("start_until_the_first_is_answered_cpu {:.3} s", median(first));
    println!("start_memory_beside_the_map {:.1} MiB", beside as f64 / f64::from(1 << 20));
    println!("start_cpu {took:.2} s");
    println!("start_cpu_per_100GiB_cached {:.2} s", took * (100u64 << 30) as f64 / (MAP * BLOCK as u64) as f64);
    after_a_kill();
}

/// What a start costs after a death, with all that was written since the checkpoint in the log.
fn after_a_kill() {
    let mut host = Host::new(MEMBER / 2);
    host.forget_data();
    let data = Bytes::zeroes(BLOCK);
    let mut blocks = scattered(MAP).take(LOG);
    for _ in 0..LOG / 32 {
        blocks.by_ref().take(32).for_each(|b| host.write(b, 0, data.clone()));
        host.until_answered(32);
    }
    let mut up = Vec::new();
    for _ in 0..ROUNDS {
        host.end();
        let begun = cpu_ns();
        host.start_until_up();
        up.push((cpu_ns() - begun) as f64 / 1e9);
        assert_eq!(host.engine().status().volumes[0].dirty_blocks, LOG as u64, "all that was acknowledged is there");
    }
    println!("start_after_a_kill_log_blocks {LOG} blocks");
    println!("start_after_a_kill_until_requests_are_served_cpu {:.3} s", median(up));
}
