//! A disk with sectors that can neither be read nor written any more.

use headpond_engine::format::Mode;
use headpond_engine::stats::Bypass;
use headpond_engine::{Command, CommandError, CommandId, Device, DeviceOp};
use headpond_sim::scene::{Scene, Stage};

const DISK: Device = Device::Backing(0);

/// Seed 586903689207, once sectors could die: dirty data that no longer gets onto the disk lay beside a clean block. A
/// write over both was an ordered overwrite; it failed, having changed the clean block's sectors on the disk, and the clean
/// copy stayed. A start then took the disk for another one, and refused the volume.
#[test]
fn a_failed_overwrite_beside_dirty_data_leaves_no_clean_copy_of_what_the_disk_no_longer_has() {
    let mut changed = 0;
    for seed in 0..16 {
        let mut s = Scene::new("a failed ordered overwrite", Stage { seed, ..Stage::default() });
        s.write(0, 8);
        s.destage();
        s.write(8, 8);
        s.device(DISK).dead_sectors.insert(12, ());
        s.world.errors_allowed = true;
        let before = s.device(DISK).visible.get(3).stamp();
        // While the volume is wanted clean nothing is absorbed.
        let detach = s.world.command(Command::Detach { volume: 0, give_up_lost: false });
        let write = s.world.write(0, 0, 16, false);
        assert!(!s.answer_to(write), "a write over a dead sector must fail");
        changed += u32::from(s.device(DISK).visible.get(3).stamp() != before);
        assert_eq!(s.end_of(detach), Err(CommandError::Disk));
        s.read_all();
        // The intent bit is cleared: clean copies are trusted at the start.
        s.flush();
        s.checkpoint();
        s.checkpoint();
        s.kill();
        assert!(s.status().volumes[0].serving);
        s.device(DISK).dead_sectors.clear();
        s.world.errors_allowed = false;
        s.end();
    }
    assert!(changed > 0, "the failed write never changed the clean block");
}

/// A hit is sent to the disk where that is expected to serve it sooner; the disk then fails. The cache has the data.
#[test]
fn a_hit_sent_to_a_failing_disk_is_served_by_the_cache() {
    let mut stage = Stage::default();
    stage.settings.route = true;
    let mut s = Scene::new("a routed hit", stage);
    s.write(0, 8);
    s.destage();
    // The cache devices are taken to be slow from now on.
    s.hold_back(|device, op| matches!((device, op), (Device::Member(_), DeviceOp::Read { .. })));
    s.world.read(0, 0, 8);
    s.until_held();
    s.pass(1_000_000_000);
    s.let_go();
    s.answered();
    let before = s.world.disk_reads;
    s.read(0, 8);
    assert_eq!(s.world.disk_reads, before + 1, "the hit was not sent to the disk");
    s.device(DISK).dead_sectors.insert(3, ());
    s.read(0, 8);
    assert_eq!(s.world.disk_reads, before + 2, "the hit was not sent to the disk");
    s.device(DISK).dead_sectors.clear();
    s.end();
}

/// One block is dirty, and the cache devices are taken to be slow from now on: small writes go to the disk.
fn with_slow_ssds(story: &str) -> Scene {
    let mut stage = Stage::default();
    stage.settings.route = true;
    let mut s = Scene::new(story, stage);
    s.hold_back(|device, op| matches!((device, op), (Device::Member(_), DeviceOp::Write { .. })));
    s.world.write(0, 0, 8, false);
    s.until_held();
    s.pass(1_000_000_000);
    s.let_go();
    s.answered();
    s
}

/// The same for a write that the cache could take. A disk that fails at once must not be taken for a quick one, either.
#[test]
fn a_write_sent_to_a_failing_disk_is_taken_by_the_cache() {
    let mut s = with_slow_ssds("a routed write");
    let sooner = |s: &Scene| s.status().volumes[0].stats.write_bypass[Bypass::Sooner as usize].requests;
    s.write(8000, 8);
    assert_eq!(sooner(&s), 1, "the write was not sent to the disk");
    s.device(DISK).dead_sectors.insert(16_003, ());
    s.write(16_000, 8);
    assert_eq!((sooner(&s), s.dirty()), (1, 2), "the write was not taken by the cache");
    s.write(24_000, 8);
    assert_eq!(sooner(&s), 1, "the disk has just failed, and is asked again");
    s.device(DISK).dead_sectors.clear();
    s.end();
}

/// `headpond flush` waits for a disk that takes nothing. What clients write meanwhile goes to the disk, so that the flush has an end; that the disk fails it is
/// no reason to fail the client, who would have been served without the command.
#[test]
fn a_small_write_is_taken_by_the_cache_where_the_disk_fails_it_while_all_is_wanted_clean() {
    let mut s = Scene::new("a write beside a flush in vain", Stage::default());
    s.write(0, 8);
    s.flush();
    s.device(DISK).dead_sectors.extend((0..64_000).map(|sector| (sector, ())));
    let destage = s.world.command(Command::Destage { volume: 0 });
    s.pass(1_000_000_000);
    let write = s.world.write(0, 8000, 8, false);
    assert!(s.answer_to(write), "{}", s.story());
    assert_eq!(s.end_of(destage), Err(CommandError::Disk));
    s.device(DISK).dead_sectors.clear();
    s.end();
}

/// The mode has become pass-through, and all was clean, when a write that was sent to the disk before fails there: it is told so, and not kept in a cache that was
/// said to have nothing.
#[test]
fn a_write_that_the_disk_fails_is_not_taken_by_a_cache_that_was_said_to_be_empty() {
    let mut s = with_slow_ssds("a routed write, and another mode");
    s.destage();
    s.hold_back(|device, op| device == DISK && matches!(op, DeviceOp::Write { .. }));
    let late = s.world.write(0, 8000, 8, false);
    s.until_held();
    s.mode(Mode::PassThrough);
    s.world.errors_allowed = true;
    s.let_go_failing(DISK);
    assert!(!s.answer_to(late), "{}", s.story());
    s.world.errors_allowed = false;
    assert_eq!(s.dirty(), 0, "{}", s.story());
    s.end();
}

/// Nothing on a cache device can be moved: the others are full, and the disk takes nothing. That was told as if it were lost, with the advice to give it up.
#[test]
fn that_a_cache_device_cannot_be_emptied_does_not_mean_that_anything_is_lost() {
    let mut stage = Stage { members: 3, ..Stage::default() };
    stage.settings.dirty_percent = 95;
    let mut s = Scene::new("a removal in vain", stage);
    s.world.hang(DISK, true);
    // More than two of the three have room for.
    for n in 0.. {
        s.write(n * 37 % 499 * 512 + n / 499 * 64, 8);
        if s.status().segments_free * 4 < s.status().segments {
            break;
        }
    }
    let Device::Member(member) = s.copies(0)[0].0 else { panic!("a copy is on a cache device") };
    let id = s.world.command(Command::RemoveMember { member });
    let end = s.end_of(id);
    assert!(matches!(end, Err(CommandError::CannotEmpty { blocks: 1.. })), "{end:?}");
    assert!(s.status().members.iter().all(|m| m.in_sync), "{}", s.story());
    s.world.hang(DISK, false);
    s.end();
}

/// A disk answers nothing when a volume that uses it is detached, or flushed: who asked for that can take it back, and the volume goes on.
#[test]
fn what_waits_for_a_disk_that_hangs_can_be_cancelled() {
    for detach in [true, false] {
        let mut s = Scene::new("cancelled beside a disk that hangs", Stage::default());
        s.write(0, 1024);
        s.world.hang(DISK, true);
        let command = if detach { Command::Detach { volume: 0, give_up_lost: false } } else { Command::Destage { volume: 0 } };
        let id = s.world.command(command);
        s.pass(5_000_000_000);
        assert_eq!(s.world.command_result(id), None, "{}", s.story());
        s.world.command(Command::Cancel(CommandId(id)));
        assert_eq!(s.end_of(id), Err(CommandError::Cancelled), "{}", s.story());
        assert!(s.status().volumes[0].serving, "{}", s.story());
        s.world.hang(DISK, false);
        s.read(0, 8);
        s.end();
    }
}
