//! How much a pool holds, and that a checkpoint has room for all of it.

use headpond_engine::{Command, Device};
use headpond_sim::scene::{Scene, Stage};

const MIB: u64 = 1 << 20;

/// Cache devices of so many segments of 1 MiB each, in whose checkpoint areas an image can come to its end.
fn large(members: u8, segments: u64) -> Stage {
    Stage { members, segments, segment_bytes: MIB, ..Stage::default() }
}

/// MiB number `from` to `to` of the disk, as many at once as one command may bring.
fn preload(s: &mut Scene, from: u64, to: u64) {
    for at in (from..to).step_by(8) {
        let range = at * MIB / 512..(at + 8).min(to) * MIB / 512;
        s.obey(Command::Preload { volume: 0, ranges: std::iter::once(range).collect() });
    }
}

fn cached(s: &Scene) -> u64 {
    s.status().volumes[0].cached_blocks * 4096 / MIB
}

/// Half of the checkpoint areas was kept for what is in an image beside blocks, which takes a hundredth. So clean data had half of the
/// cache devices, and the rest stayed empty; what was preloaded beyond that pushed out what had come before. What found it was
/// `cargo xtask vm experiments A2 --slower 10`, where one client read a third of a preloaded file from the disk.
#[test]
fn clean_data_has_nearly_all_of_the_cache_devices() {
    let mut s = Scene::new("room for clean data", large(2, 64));
    preload(&mut s, 0, 104);
    // Of 128 MiB a tenth is kept free for what is written, and records have headers.
    assert!(cached(&s) >= 104, "{} MiB of 104 are cached; {}", cached(&s), s.story());
    s.checkpoint();
    s.kill();
    assert!(cached(&s) >= 104, "{} MiB of 104 after a start; {}", cached(&s), s.story());
    preload(&mut s, 104, 128);
    assert!(cached(&s) >= 104, "{} MiB are cached when there is more than has room; {}", cached(&s), s.story());
    s.read_all();
    s.lose_power();
    s.end();
}

/// A map that grew with the cache devices alone would take the memory of a small server with large ones. Where there is no more of it less
/// is cached, and that is told.
#[test]
fn the_map_takes_no_more_memory_than_it_may() {
    let mut stage = large(2, 64);
    stage.settings.max_pieces = 4096;
    let mut s = Scene::new("a cap of memory", stage);
    preload(&mut s, 0, 8);
    assert!(cached(&s) == 8 && !s.status().memory_is_short, "{}", s.story());
    preload(&mut s, 8, 64);
    let (mib, short) = (cached(&s), s.status().memory_is_short);
    assert!((14..=16).contains(&mib) && short, "{mib} MiB of 16 are cached, short: {short}; {}", s.story());
    (0..200).for_each(|n| s.write(n * 7919 % 32_768 * 8, 8));
    s.read_all();
    s.lose_power();
    s.end();
}

/// Three cache devices have room for an image that two have not. When one leaves the maps hold too much: no checkpoint could be had, so
/// that nothing was free ever again, were not clean pieces let go first.
#[test]
fn a_checkpoint_has_room_again_after_a_cache_device_has_left() {
    let mut s = Scene::new("an image too large for those who are left", large(3, 32));
    // Four pieces in each block, in an order that is no stream: their data takes little, and their entries much.
    let pieces = |s: &mut Scene, blocks: std::ops::Range<u64>| {
        for n in blocks {
            let block = n * 7919 % 32_768;
            (0..4).for_each(|part| _ = s.world.write(0, block * 8 + 2 * part, 1, false));
            s.answered();
        }
    };
    pieces(&mut s, 0..3_700);
    s.destage();
    pieces(&mut s, 3_700..7_400);
    s.destage();
    let both = s.status().volumes[0].cached_blocks;
    assert!(both >= 7_400, "{both} blocks; {}", s.story());
    s.set_dead(Device::Member(2), true);
    pieces(&mut s, 7_400..8_400);
    let checkpoint = s.world.command(Command::Checkpoint);
    s.pass(5_000_000_000);
    assert!(s.world.command_result(checkpoint).is_some(), "no checkpoint can be had; {}", s.story());
    s.ends_well(checkpoint);
    s.kill();
    s.read_all();
    s.end();
}
