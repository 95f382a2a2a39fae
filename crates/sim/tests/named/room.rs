//! How much a pool holds, and that a checkpoint has room for all of it.

use headpond_engine::stats::Bypass;
use headpond_engine::{Command, Device, Mark, Settings};
use headpond_sim::scene::{DISKLESS, Scene, Stage};
use std::ops::Range;

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
/// `cargo xtask vm experiments A2 --slower 10`, where one client waited for the disk though his file had been preloaded.
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

/// The memory of a map was reckoned by its blocks, at what they take where they lie densely. Random reads all over a large disk took three times as
/// much: with half of a server's memory for the map, as it comes, more than there was. Found by reading.
#[test]
fn blocks_that_lie_far_apart_take_no_more_memory_than_the_map_may() {
    const MOST: u64 = 20_000;
    let mut stage = Stage { segments: 64, ..Stage::default() };
    stage.settings.max_map_bytes = MOST;
    let mut s = Scene::new("a cap of memory and blocks far apart", stage);
    // One of each 256 KiB, in no order that is a stream; later ones are cached, too.
    for n in 0..1024 {
        s.read(n * 173 % 512 * 512 + n / 512 * 8, 8);
        let (taken, cached) = (s.status().volumes[0].map_bytes, s.status().volumes[0].cached_blocks);
        // What is on its way when the last of it is taken comes yet.
        assert!(taken <= MOST + MOST / 32, "{taken} bytes are taken after {n} reads; {}", s.story());
        assert!(n < 300 || cached > 100 && s.status().memory_is_short, "{cached} are cached after {n} reads; {}", s.story());
    }
    (0..300).for_each(|n| s.write(n * 7919 % 32_768 * 8, 8));
    assert!(s.status().volumes[0].map_bytes <= MOST + MOST / 32, "{}", s.story());
    s.read_all();
    s.lose_power();
    s.end();
}

/// The memory was full of what is dirty, and no sweep began: how full it is was reckoned by blocks, of which there was room for twice as many. Each
/// write went to the disk, which was never idle for that. Found by reading.
#[test]
fn memory_that_dirty_blocks_far_apart_fill_is_a_reason_to_destage() {
    let usual = Stage::default();
    let settings = Settings { max_map_bytes: 20_000, max_pieces: 625, destage_percent: 50, ..usual.settings.clone() };
    let mut s = Scene::new("memory full of what is dirty", Stage { segments: 96, settings, ..usual });
    for n in 0..2000 {
        s.write(n * 173 % 512 * 512 + n / 512 * 8, 8);
        s.pass(1_000_000);
    }
    let full = s.status().volumes[0].stats.write_bypass[Bypass::Full as usize].requests;
    assert!(full < 100, "{full} writes of 2000 had no room; {}", s.story());
    s.end();
}

/// What a volume without a backing device holds is there for good, and nowhere else: it had room when it was created, and is no cache. A
/// pool that comes to a server with less memory must take writes to it as before.
#[test]
fn a_volume_without_a_disk_has_its_room_whatever_memory_there_is() {
    let mut s = Scene::new("less memory than a volume without a disk takes", large(2, 16)).with_diskless(2_048);
    let write_all = |s: &mut Scene| {
        for n in 0..256 {
            let write = s.world.write(DISKLESS, n * 37 % 256 * 8, 8, false);
            assert!(s.answer_to(write), "write {n} fails; {}", s.story());
        }
    };
    write_all(&mut s);
    s.stage.settings.max_pieces = 100;
    s.kill();
    write_all(&mut s);
    (0..400).for_each(|n| s.read(n * 7919 % 32_768 * 8, 8));
    s.lose_power();
    s.read_all();
    s.end();
}

/// Three cache devices, with more in the maps than an image on two of them has room for. All is clean, and most of it is in mirrored
/// segments, which are freed by a checkpoint alone.
fn too_much_for_two(story: &'static str) -> Scene {
    let mut s = Scene::new(story, large(3, 32));
    pieces(&mut s, 0..3_700);
    s.destage();
    pieces(&mut s, 3_700..7_400);
    s.destage();
    let blocks = s.status().volumes[0].cached_blocks;
    assert!(blocks >= 7_400, "{blocks} blocks; {}", s.story());
    s
}

/// Writes four pieces in each of these blocks, in an order that is no stream: their data takes little, and their entries much.
fn pieces(s: &mut Scene, blocks: Range<u64>) {
    for n in blocks {
        let block = n * 7919 % 32_768;
        (0..4).for_each(|part| _ = s.world.write(0, block * 8 + 2 * part, 1, false));
        s.answered();
    }
}

/// Nobody waits for a checkpoint for ever.
fn ends_soon(s: &mut Scene, command: Command) {
    let id = s.world.command(command);
    s.pass(5_000_000_000);
    assert!(s.world.command_result(id).is_some(), "no checkpoint can be had; {}", s.story());
    s.ends_well(id);
}

/// When one of three leaves the maps hold too much: no checkpoint could be had, so that nothing was free ever again, were not clean pieces
/// let go first. And that is not taken for an image that came out larger than was reckoned with: two have room for all that they hold.
#[test]
fn a_checkpoint_has_room_again_after_a_cache_device_has_left() {
    let mut s = too_much_for_two("an image too large for those who are left");
    s.set_dead(Device::Member(2), true);
    pieces(&mut s, 7_400..8_400);
    ends_soon(&mut s, Command::Checkpoint);
    let is_too_large = s.world.engine.as_ref().is_some_and(|e| e.marks().has(Mark::CheckpointTooLarge));
    assert!(!is_too_large, "an image was begun that had no room; {}", s.story());
    s.kill();
    s.read_all();
    s.end();
}

/// While a daemon ends nothing makes room any more, and it waited for its last checkpoint for ever.
#[test]
fn a_daemon_ends_just_after_a_cache_device_has_left() {
    let mut s = too_much_for_two("a stop with an image too large for those who are left");
    s.set_dead(Device::Member(2), true);
    ends_soon(&mut s, Command::Stop);
    s.kill();
    s.read_all();
    s.end();
}

/// The device is missing at a start: what the image names is in the maps before anything can be let go.
#[test]
fn a_start_without_a_cache_device_takes_a_checkpoint_that_has_room() {
    let mut s = too_much_for_two("a start with an image too large for those who are left");
    s.checkpoint();
    s.world.kill_landing(|_, _, _| false);
    s.set_dead(Device::Member(2), true);
    s.start();
    pieces(&mut s, 7_400..7_800);
    ends_soon(&mut s, Command::Checkpoint);
    s.kill();
    s.read_all();
    s.end();
}

/// One is taken out of the pool as it should be.
#[test]
fn a_cache_device_is_removed_from_a_pool_whose_maps_are_too_large_for_the_others() {
    let mut s = too_much_for_two("a removal with an image too large for those who are left");
    ends_soon(&mut s, Command::RemoveMember { member: 2 });
    pieces(&mut s, 7_400..7_800);
    ends_soon(&mut s, Command::Checkpoint);
    s.kill();
    s.read_all();
    s.end();
}

/// A guest's partition begins off the grid, and each of its blocks lies in two of ours, in pieces. Once the volume had as many pieces as it may it took
/// nothing more into the cache, for good: segments were free, so nothing was evicted, and a start found the same. Found by reading.
#[test]
fn a_volume_with_as_many_fragments_as_it_may_have_goes_on_being_cached() {
    let usual = Stage::default();
    let settings = Settings { max_fragments: 64, ..usual.settings.clone() };
    let mut s = Scene::new("as many fragments as there may be", Stage { settings, segments: 64, ..usual });
    for n in 0..100 {
        s.write(n * 37 % 499 * 512, 4);
        s.write(n * 37 % 499 * 512 + 4, 4);
    }
    s.destage();
    s.pass(1_000_000_000);
    let hits = |s: &Scene| s.status().volumes[0].stats.hit.requests;
    let absorbed = |s: &Scene| s.status().volumes[0].stats.absorbed.requests;
    let before = (hits(&s), absorbed(&s));
    s.read(256_008, 8);
    s.pass(10_000_000);
    s.read(256_008, 8);
    s.write(257_008, 8);
    assert_eq!((hits(&s), absorbed(&s)), (before.0 + 1, before.1 + 1), "{}", s.story());
    s.read_all();
    s.lose_power();
    s.end();
}

/// As many fragments as there may be, all of them dirty, and somebody uses the disk: nothing began a sweep, since segments were free. Each write went to the disk,
/// over what was dirty there, with a flush of its own. Found by reading.
#[test]
fn a_volume_full_of_dirty_fragments_is_destaged_though_its_disk_is_used() {
    let usual = Stage::default();
    let settings = Settings { max_fragments: 64, destage_percent: 20, ..usual.settings.clone() };
    let mut s = Scene::new("dirty fragments", Stage { settings, segments: 64, ..usual });
    for n in 0..400 {
        s.write(n * 37 % 499 * 512, 2);
        s.write(n * 37 % 499 * 512 + 4, 2);
        s.read(200_000 + n * 37 % 499 * 64, 8);
        s.pass(1_000_000);
    }
    let stats = s.status().volumes[0].stats.clone();
    assert!(stats.destaged.bytes > 0, "{}: nothing is destaged", s.story());
    assert!(stats.ordered_overwrites < 200, "{}: {} writes with a flush each", s.story(), stats.ordered_overwrites);
    s.read_all();
    s.end();
}

/// The same before the sweep comes: what is dirty throughout is not looked through for what is clean, piece by piece, at each write. Found by reading.
#[test]
fn fragments_that_are_dirty_are_left_to_the_sweep() {
    let usual = Stage::default();
    let settings = Settings { max_fragments: 64, ..usual.settings.clone() };
    let mut s = Scene::new("fragments that are dirty", Stage { settings, segments: 64, ..usual });
    for n in 0..63 {
        s.write(n * 37 % 499 * 512, 2);
        s.write(n * 37 % 499 * 512 + 4, 2);
    }
    s.pass(1_000_000_000);
    assert_eq!(s.status().volumes[0].fragments, 63, "{}", s.story());
    let is_vain = s.world.engine.as_ref().is_some_and(|e| e.marks().has(Mark::FragmentsThinned));
    assert!(!is_vain, "{}: what is dirty was looked through for what is clean", s.story());
    s.end();
}

/// Nearly as many fragments as there may be, and all of them clean. They counted as room for dirty data that is taken, from where nobody let go of them yet on: each
/// write waited for a sweep that had nothing to do, without end. Found by reading.
#[test]
fn fragments_that_are_clean_hold_back_nobodys_writes() {
    let usual = Stage::default();
    let settings = Settings { max_fragments: 64, destage_percent: 20, ..usual.settings.clone() };
    let mut s = Scene::new("fragments that are clean", Stage { settings, segments: 64, ..usual });
    for n in 0..61 {
        s.write(n * 37 % 499 * 512, 2);
        s.write(n * 37 % 499 * 512 + 4, 2);
    }
    s.destage();
    s.pass(1_000_000_000);
    assert_eq!((s.status().volumes[0].fragments, s.dirty()), (61, 0), "{}", s.story());
    let begun = s.world.now;
    for n in 0..200 {
        s.write(n * 37 % 499 * 512 + 64, 8);
    }
    // As long as the cache devices take, one after the other.
    let took = s.world.now - begun;
    assert!(took <= 200 * 110_000, "{}: {took} ns", s.story());
    s.end();
}

/// Volumes that have written a little, and rest: each keeps a segment open, in which nothing can be let go, and one more volume found no room for its first write, though
/// nothing was dirty. Found by reading.
#[test]
fn volumes_that_rest_do_not_keep_the_room_of_others() {
    // With three open there is no more than the reserve.
    let mut s = with_three_that_rest("volumes that rest", 5);
    for n in 0..20 {
        s.pass(1_000_000_000);
        let write = s.world.write(3, n * 512, 8, false);
        assert!(s.answer_to(write), "{}", s.story());
    }
    let absorbed = s.status().volumes[3].stats.absorbed.requests;
    assert!(absorbed > 5, "{}: {absorbed} of 20 writes had room", s.story());
    s.end();
}

/// The same of reads, where there is more than the reserve, and not what is kept ahead of demand: nothing that is read was ever cached. Found by reading.
#[test]
fn volumes_that_rest_do_not_keep_the_room_of_others_reads() {
    let mut s = with_three_that_rest("volumes that rest, and a reader", 6);
    for n in 0..20 {
        s.pass(1_000_000_000);
        let read = s.world.read(3, n * 512, 8);
        assert!(s.answer_to(read), "{}", s.story());
    }
    let cached = s.status().volumes[3].cached_blocks;
    assert!(cached > 5, "{}: {cached} of 20 blocks are cached", s.story());
    s.end();
}

/// Four volumes on two cache devices of so many slots; all but the last have written a little, which is clean by now.
fn with_three_that_rest(story: &str, slots: u32) -> Scene {
    let stage = |segments| Stage { volumes: 4, disks: 4, segments, segment_bytes: 512 << 10, ..Stage::default() };
    let stage = (3..24).map(stage).find(|stage| stage.layout().slots() == slots).expect("cache devices of as many slots");
    let mut s = Scene::new(story, stage);
    for volume in 0..3 {
        let write = s.world.write(volume, 0, 8, false);
        assert!(s.answer_to(write), "{}", s.story());
    }
    (0..3).for_each(|volume| s.obey(Command::Destage { volume }));
    s.checkpoint();
    s
}

/// Writes have taken all but the two pairs that are for marks, on small cache devices. Reads took one of these, as slots were counted for pairs. Found by reading.
#[test]
fn clean_data_leaves_the_reserve_in_pairs() {
    let settings = Settings { dirty_percent: 100, ..Stage::default().settings };
    let mut s = Scene::new("a reserve in pairs", Stage { segments: 6, settings, ..Stage::default() });
    let full = |s: &Scene| s.status().volumes[0].stats.write_bypass[Bypass::Full as usize].requests;
    let mut n = 0;
    while full(&s) == 0 {
        s.write(n * 37 % 499 * 512, 8);
        n += 1;
    }
    for n in 0..60 {
        let read = s.world.read(0, 200_000 + n * 37 % 499 * 64, 8);
        while s.world.waits(read) || s.world.flying() > 0 {
            s.step();
            let free: Vec<u32> = s.status().members.iter().map(|m| m.segments_free).collect();
            assert!(free.iter().all(|free| *free >= 2), "{}: {free:?}", s.story());
        }
    }
    s.end();
}
