//! Clean data is striped over the cache devices: what readers of it reach.

use headpond_engine::format::Mode;
use headpond_engine::{Command, Settings};
use headpond_sim::modelled::{Modelled, finish};
use headpond_sim::models::rotating::RotatingParams;
use headpond_sim::models::ssd::SsdParams;
use headpond_sim::target::{Ask, Target};
use headpond_sim::world::World;
use std::collections::BTreeMap;

/// Bytes per second that readers reach who read what was preloaded, each a part of it from beginning to end, with two requests of 128 KiB
/// under way, from two cache devices that have 50 MB/s each.
fn read_by(readers: u64) -> f64 {
    const PART: u64 = (8 << 20) / 512;
    const REQUEST: u64 = 256;
    let modelled = Modelled {
        sectors: 16 * PART,
        phase: 0,
        mode: Mode::WriteBack,
        cache_bytes: 512 << 20,
        ssd: SsdParams::throttled(1200, 50_000_000),
        disk: RotatingParams::nearline_7200(),
        witness: true,
        checked: false,
        settings: Settings::default(),
        seed: 1,
    };
    let mut world = modelled.build().unwrap();
    let all = std::iter::once(0..16 * PART).collect();
    let id = world.command(Command::Preload { volume: 0, ranges: all });
    finish(&mut world, id).unwrap();
    let begun = Target::now(&world);
    let mut next: Vec<u64> = (0..readers).map(|n| n * PART).collect();
    let mut of = BTreeMap::new();
    let mut ask = |world: &mut World, of: &mut BTreeMap<u64, u64>, reader: u64| {
        let sector = next[reader as usize];
        if sector < (reader + 1) * PART {
            next[reader as usize] += REQUEST;
            of.insert(Target::send(world, 0, Ask::Read { sector, sectors: REQUEST }), reader);
        }
    };
    (0..readers).chain(0..readers).for_each(|reader| ask(&mut world, &mut of, reader));
    while !of.is_empty() {
        Target::step(&mut world, u64::MAX).unwrap();
        for answer in Target::answers(&mut world) {
            assert!(!answer.failed);
            let reader = of.remove(&answer.id).unwrap();
            ask(&mut world, &mut of, reader);
        }
    }
    (readers * PART * 512) as f64 * 1e9 / (Target::now(&world) - begun) as f64
}

/// Sixteen clients of an NFS server, each with a file of 8 MiB, had 74 MB/s of two SSDs that have 100 together: clean data filled one
/// segment after the other, all files began in segments of the same SSD, and the clients stayed together. One had a single SSD.
#[test]
fn clients_that_read_what_is_cached_have_all_cache_devices() {
    for (readers, least) in [(1, 80e6), (4, 94e6), (16, 97e6)] {
        let reached = read_by(readers);
        assert!(reached >= least, "{readers} clients have {reached} bytes a second of 100,000,000");
    }
}
