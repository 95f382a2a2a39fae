//! A disk with sectors that can neither be read nor written any more.

use headpond_engine::stats::Bypass;
use headpond_engine::{Command, CommandError, Device, DeviceOp};
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

/// The same for a write that the cache could take. A disk that fails at once must not be taken for a quick one, either.
#[test]
fn a_write_sent_to_a_failing_disk_is_taken_by_the_cache() {
    let mut stage = Stage::default();
    stage.settings.route = true;
    let mut s = Scene::new("a routed write", stage);
    // The cache devices are taken to be slow from now on.
    s.hold_back(|device, op| matches!((device, op), (Device::Member(_), DeviceOp::Write { .. })));
    s.world.write(0, 0, 8, false);
    s.until_held();
    s.pass(1_000_000_000);
    s.let_go();
    s.answered();
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
