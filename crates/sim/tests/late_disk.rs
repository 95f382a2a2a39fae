//! A volume whose disk is not there at the start, and comes later: it is then as if it had been there.

use headpond_engine::{Command, CommandError, Device, Settings};
use headpond_sim::device::SimDevice;
use headpond_sim::scene::{Scene, Stage};

const DISK: Device = Device::Backing(0);
const CAME: Command = Command::BackingCame { volume: 0 };

/// A pool with dirty data, and clean data that the disk is recognised by.
fn pool(story: &str, seed: u64) -> Scene {
    let mut s = Scene::new(story, Stage { seed, ..Stage::default() });
    for n in 0..12 {
        s.write(n * 640, 8);
    }
    s.destage();
    for n in 0..12 {
        s.write(10_000 + n * 640, 8);
    }
    // Over what is clean as well.
    s.write(3, 2);
    s.flush();
    s.checkpoint();
    s.rest();
    s
}

/// The daemon ends, and the next one starts without the disk.
fn start_without(s: &mut Scene, power_goes: bool) {
    s.set_dead(DISK, true);
    if power_goes {
        s.lose_power()
    } else {
        s.kill()
    }
    assert!(!s.status().volumes[0].serving);
}

fn end_of_coming(s: &mut Scene) -> Result<(), CommandError> {
    let id = s.world.command(CAME);
    s.end_of(id)
}

#[test]
fn a_disk_that_comes_late_gets_all_that_is_dirty() {
    for seed in 0..16 {
        let mut s = pool("a late disk", seed);
        let dirty = s.dirty();
        start_without(&mut s, seed % 2 == 0);
        s.world.errors_allowed = true;
        let read = s.world.read(0, 0, 8);
        assert!(!s.answer_to(read), "a read was answered without the disk");
        let write = s.world.write(0, 0, 8, false);
        assert!(!s.answer_to(write), "a write was taken without the disk");
        s.world.errors_allowed = false;
        // Everything goes on that needs no disk.
        s.obey(Command::Scrub { bytes_per_second: 0 });
        s.checkpoint();
        s.pass(1_000_000_000);
        assert_eq!(s.dirty(), dirty);
        s.set_dead(DISK, false);
        s.obey(CAME);
        assert!(s.status().volumes[0].serving);
        s.read_all();
        s.write(20_000, 8);
        s.flush();
        if seed % 4 < 2 {
            s.lose_power();
        }
        s.destage();
        assert_eq!(s.dirty(), 0);
        s.world.check_disk(0);
        s.end();
    }
}

/// A write past the cache has marked its region. The checkpoints of the time without the disk cannot flush that: nobody may be
/// told that a flush failed, and once the disk is there the mark goes as ever.
#[test]
fn a_checkpoint_without_the_disk_is_no_failed_flush_of_it() {
    let mut s = pool("checkpoints without the disk", 1);
    s.write(200_000, 1024);
    start_without(&mut s, false);
    for _ in 0..3 {
        s.checkpoint();
    }
    s.set_dead(DISK, false);
    s.obey(CAME);
    s.flush();
    let flushes = |s: &Scene| s.world.devices[&DISK].flushes;
    s.checkpoint();
    s.checkpoint();
    s.rest();
    let before = flushes(&s);
    s.checkpoint();
    assert_eq!(flushes(&s), before, "the mark is still there");
    s.end();
}

#[test]
fn another_disk_is_refused_and_nothing_is_written_to_it_and_the_right_one_is_served_after_a_restart() {
    for seed in 0..8 {
        let mut s = pool("the wrong disk comes", seed);
        s.checkpoint();
        s.checkpoint();
        s.rest();
        let dirty = s.dirty();
        start_without(&mut s, false);
        let stage = s.stage.clone();
        let right = s.world.devices.insert(DISK, SimDevice::new(stage.sectors * 512, Some(1 << 49))).unwrap();
        assert_eq!(end_of_coming(&mut s), Err(CommandError::Refused));
        let of_volume = |s: &Scene| (s.status().volumes[0].serving, s.status().volumes[0].refused);
        assert_eq!(of_volume(&s), (false, true));
        s.pass(1_000_000_000);
        assert_eq!(s.dirty(), dirty);
        for sector in (0..12).map(|n| n * 640) {
            assert_eq!(s.device(DISK).visible.get(sector).stamp(), Some((1 << 49) + sector), "the wrong disk was written to");
        }
        // The right one is not asked for any more: that is for a start, as where it was refused at one.
        let mut right = right;
        right.dead = false;
        s.world.devices.insert(DISK, right);
        assert_eq!(end_of_coming(&mut s), Err(CommandError::DiskThere));
        assert_eq!(of_volume(&s), (false, true));
        s.kill();
        assert_eq!(of_volume(&s), (true, false));
        s.read_all();
        s.end();
    }
}

/// As at a start.
#[test]
fn another_disk_under_clean_data_alone_is_served_and_what_was_cached_is_let_go() {
    let mut s = Scene::new("another disk, and nothing dirty", Stage::default());
    for n in 0..12 {
        s.write(n * 640, 8);
    }
    s.destage();
    for _ in 0..3 {
        s.checkpoint();
    }
    start_without(&mut s, false);
    assert!(s.status().volumes[0].cached_blocks > 0);
    s.set_dead(DISK, false);
    // Somebody has written to it: not through the cache.
    for n in 0..12 {
        s.rot(DISK, n * 640 * 512..(n * 640 + 8) * 512);
    }
    s.obey(CAME);
    let volume = s.status().volumes[0].clone();
    assert_eq!((volume.serving, volume.refused, volume.cached_blocks), (true, false, 0));
}

#[test]
fn a_disk_comes_once() {
    let mut s = pool("a disk comes twice", 1);
    assert_eq!(end_of_coming(&mut s), Err(CommandError::DiskThere));
    start_without(&mut s, false);
    let detach = s.world.command(Command::Detach { volume: 0, give_up_lost: false });
    assert_eq!(s.end_of(detach), Err(CommandError::NotServed));
    s.set_dead(DISK, false);
    let (first, second) = (s.world.command(CAME), s.world.command(CAME));
    s.ends_well(first);
    assert_eq!(s.end_of(second), Err(CommandError::DiskThere));
    let none = s.world.command(Command::BackingCame { volume: 7 });
    assert_eq!(s.end_of(none), Err(CommandError::NoSuchVolume));
    s.end();
}

/// The disk comes in the moment in which the daemon is told to end: the end is a clean one.
#[test]
fn a_clean_end_while_it_is_compared() {
    let mut s = pool("an end while the disk comes", 1);
    s.checkpoint();
    s.checkpoint();
    start_without(&mut s, false);
    s.set_dead(DISK, false);
    s.hold_back(|device, _| device == DISK);
    let comes = s.world.command(CAME);
    s.until_held();
    let stop = s.world.command(Command::Stop);
    s.pass(1_000_000);
    s.let_go();
    s.ends_well(stop);
    assert_eq!(s.end_of(comes), Err(CommandError::Cancelled));
    s.kill();
    s.read_all();
    s.end();
}

/// The daemon ends while the disk is not there. That it could not be flushed then was taken for a flush that failed, and when the disk was back the first client
/// to flush was told so. Found by the command's test `renumbered`, when what is doubted of a volume had been written down for a day.
#[test]
fn a_disk_that_is_not_there_has_failed_no_flush() {
    let mut s = pool("an end without the disk", 1);
    start_without(&mut s, false);
    s.obey(Command::Stop);
    s.set_dead(DISK, false);
    s.kill();
    s.flush();
    s.end();
}

/// A disk comes late, of which much is cached. To compare it with that, all of the map was gone through without a pause: of a TiB that takes many
/// seconds, in which no request for another volume was answered. Found by reading.
#[test]
fn a_disk_that_comes_late_is_compared_in_turns() {
    const BLOCKS: u64 = 60;
    let settings = Settings { let_go_blocks: 4, ..Stage::default().settings };
    let mut s = Scene::new("a disk is compared in turns", Stage { settings, ..Stage::default() });
    // Each in a part of the map for itself, which is gone through in one go.
    (0..BLOCKS).for_each(|n| s.read(n * 4000, 8));
    s.checkpoint();
    s.rest();
    start_without(&mut s, false);
    s.set_dead(DISK, false);
    s.hold_back(|device, _| device == DISK);
    let came = s.world.command(CAME);
    // Between turns time passes, and whatever else is ready has its own.
    let mut turns = 0;
    while s.world.held_back() == 0 {
        s.step();
        turns += 1;
    }
    assert!(turns >= BLOCKS / 4 - 1, "all was looked at in {turns} turns; {}", s.story());
    s.let_go();
    s.ends_well(came);
    s.read_all();
    s.end();
}
