//! What a hit costs one core where the map takes 6 GiB: that of a TiB cached.
//!
//! `cargo bench -p headpond-host --bench large_map`. Lines of the form `name value unit` are the figures of `docs/PERFORMANCE.md`. It
//! takes 10 GiB of memory and some minutes, most of which it brings the blocks in. First in the pages that the allocator gets, then in
//! huge ones, as the daemon has its map.

#[path = "../../engine/benches/support/mod.rs"]
mod support;

use headpond_engine::Buf;
use headpond_host::huge_pages::gather;
use std::hint::black_box;
use std::io::{IsTerminal, Write};
use std::thread;
use support::{BLOCK, Bytes, Dice, Host, hits, report, rounds, scattered};

/// Bytes of the map that is wanted.
const MAP: u64 = 6 << 30;
/// Blocks of a write that brings them in.
const EACH: u64 = 64;
/// Writes between two looks at how far it is.
const LOOK: usize = 1 << 14;
/// Members are this large: what is written stays below where destage begins.
const MEMBER: u64 = 8 << 40;
/// Writes that there are on the volume, more than are needed.
const RUNS: u64 = 1 << 23;
const HITS: u64 = 1_000_000;

fn map_bytes(host: &Host) -> u64 {
    host.engine().status().volumes[0].map_bytes
}

fn progress(text: &str) {
    let mut out = std::io::stderr();
    if out.is_terminal() {
        let _ = write!(out, "\r{text}\u{1b}[K").and_then(|()| out.flush());
    }
}

fn main() {
    // The engine has a thread of its own in the daemon, and by that the allocator heaps of its own.
    thread::spawn(measure).join().expect("it comes to its end");
}

fn measure() {
    let mut host = Host::hollow(MEMBER);
    let data = Bytes::zeroes(EACH as usize * BLOCK);
    let mut blocks = 0;
    // Whole regions one after the other, in no order inside: a map that is as dense as the design's bound assumes.
    let region = 1 << 20;
    'filling: for start in (0..RUNS).step_by(region as usize) {
        for (n, run) in scattered(region).enumerate() {
            host.write((start + run) * EACH, 0, data.clone());
            host.run();
            host.replies().for_each(drop);
            if n % LOOK == 0 {
                blocks = (start + n as u64) * EACH;
                progress(&format!("{} of {} MiB of map", map_bytes(&host) >> 20, MAP >> 20));
                if map_bytes(&host) >= MAP {
                    break 'filling;
                }
            }
        }
    }
    progress("");
    let v = &host.engine().status().volumes[0];
    assert_eq!(v.stats.absorbed.requests * EACH, v.cached_blocks, "all was absorbed: {:?}", v.stats);
    println!("large_map_blocks {} blocks", v.cached_blocks);
    println!("large_map {:.2} GiB", v.map_bytes as f64 / (1u64 << 30) as f64);

    // What was written last is a region in part: it is left out.
    let whole = blocks / (region * EACH) * (region * EACH);
    let mut client = vec![0u8; BLOCK];
    let mut dice = Dice(1);
    let mut alone = || {
        for n in 0..HITS {
            let data = host.device_alone(n);
            black_box(data.checksum(1));
            client.copy_from_slice(data.bytes());
            black_box(&mut client);
        }
    };
    report("large_map_checksum_and_copy_alone", rounds(HITS, &mut alone));
    report("large_map_hit_random_small_pages", rounds(HITS, || hits(&mut host, &mut dice, whole, HITS, &mut client)));
    let gathered = gather(|| true).expect("memory can be looked at");
    println!("large_map_huge_pages {} MiB", gathered.huge >> 20);
    println!("large_map_huge_pages_refused {} MiB", gathered.refused >> 20);
    report("large_map_hit_random", rounds(HITS, || hits(&mut host, &mut dice, whole, HITS, &mut client)));
    let v = &host.engine().status().volumes[0];
    assert_eq!(v.stats.hit.requests, 2 * HITS * support::ROUNDS as u64, "each was a hit: {:?}", v.stats);
}
