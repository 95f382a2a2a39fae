//! How caches before this one lost data: P1 to P39.

use super::starts::both_copies_come_late;
use headpond_engine::format::{Layout, Mode, SUPERBLOCK_BYTES};
use headpond_engine::stats::Bypass;
use headpond_engine::{Command, CommandError, Device, DeviceOp};
use headpond_sim::SimBuf;
use headpond_sim::buf::Cell;
use headpond_sim::scene::{Scene, Stage};

const DISK: Device = Device::Backing(0);

type Op = DeviceOp<SimBuf>;

fn is_member(device: Device) -> bool {
    matches!(device, Device::Member(_))
}

/// A write of clients' data: a record on a cache device, or what goes to a disk.
fn carries_data(op: &Op) -> bool {
    matches!(op, DeviceOp::Write { bufs, .. } if bufs.iter().any(is_data))
}

fn is_data(buf: &SimBuf) -> bool {
    buf.cell(0).stamp().is_some_and(|s| s != 0)
}

/// A write to a cache device between two places in bytes.
fn writes_between(device: Device, op: &Op, from: u64, to: u64) -> bool {
    is_member(device) && matches!(op, DeviceOp::Write { offset, .. } if (from..to).contains(offset))
}

/// Where a superblock is, in bytes: both ends of a cache device.
fn is_superblock(size: u64, offset: u64) -> bool {
    offset < 2 * SUPERBLOCK_BYTES || offset >= Layout::tail_of(size)
}

/// The cache devices that hold a sector of the first volume, and the sectors of theirs that do.
fn copies(s: &Scene, sector: u64) -> Vec<(Device, u64)> {
    let places = s.world.engine.as_ref().and_then(|e| e.locate(0, sector)).expect("it is cached");
    places.into_iter().map(|(m, byte)| (Device::Member(m), byte / 512)).collect()
}

/// Fills the log with blocks that lie apart, until a write finds no room there; that one went to the disk.
fn fill(s: &mut Scene) -> u64 {
    for n in 0.. {
        let sector = n * 37 % 499 * 512;
        s.write(sector, 8);
        if s.status().volumes[0].stats.write_bypass[Bypass::Full as usize].requests > 0 {
            return sector;
        }
    }
    unreachable!()
}

/// Sectors 0 to 7 are cached clean, durably.
fn cached_clean(s: &mut Scene) {
    s.read(0, 8);
    s.rest();
    s.checkpoint();
    assert!(s.status().volumes[0].cached_blocks > 0, "{}: nothing is cached", s.story());
}

/// A start under which all reads of the disk fail: it is compared with nothing. All that keeps a copy from being believed when it is stale are the rules that
/// the scenes are about.
fn start_without_comparing(s: &mut Scene) {
    s.device(DISK).fail_reads = 1;
    s.start();
    s.device(DISK).fail_reads = 0;
}

/// dm-writecache: a commit flushed the SSD before the data writes had ended, and then named them in its superblock.
/// Here a checkpoint is named by a superblock while its pages are in the cache devices' volatile caches.
#[test]
fn p1_named_before_it_is_flushed() {
    let mut s = Scene::new("P1", Stage::default());
    s.write(0, 8);
    s.flush();
    s.rest();
    s.hold_back(|device, op| is_member(device) && matches!(op, DeviceOp::Flush));
    s.world.command(Command::Checkpoint);
    s.until_held();
    // Of all that is not flushed, the superblocks alone survive, if one has been written by now.
    let size = s.stage.member_bytes();
    s.world.cut_power_keeping(|device, sector, _| is_member(device) && is_superblock(size, sector * 512));
    s.start();
    s.end();
}

/// dm-writecache: where the cache was full writes went to the disk directly, and FLUSH was not passed on to it.
#[test]
fn p2_written_past_a_full_cache() {
    let mut s = Scene::new("P2", Stage::default());
    // A start takes the disk for unflushed, whatever was written; after this flush it does not.
    s.flush();
    let bypassed = fill(&mut s);
    s.flush();
    s.lose_power();
    s.read(bypassed, 8);
    s.end();
}

/// dm-writecache: forced unit access was not honoured: the write was acknowledged without a commit.
#[test]
fn p3_forced_unit_access_absorbed() {
    let mut s = Scene::new("P3, absorbed", Stage::default());
    s.write_fua(0, 8);
    s.lose_power();
    s.read(0, 8);
    s.end();
}

/// The same with a write that goes past the cache.
#[test]
fn p3_forced_unit_access_bypassed() {
    let mut s = Scene::new("P3, bypassed", Stage::default());
    s.write_fua(1024, 128);
    s.lose_power();
    s.read(1024, 128);
    s.end();
}

/// dm-writecache: what was acknowledged was gone after a reset, since only a flush made it safe. A daemon that dies is no
/// reset to the clients above: nothing that was acknowledged may be in its memory alone.
#[test]
fn p5_acknowledged_in_memory_alone() {
    let mut s = Scene::new("P5", Stage::default());
    s.write(0, 8);
    s.kill();
    s.read(0, 8);
    s.end();
}

/// dm-cache: after a crash dirty blocks were loaded as clean ones, and evicted without being written back.
#[test]
fn p6_dirty_loaded_as_clean_from_the_image() {
    let mut s = Scene::new("P6, image", Stage::default());
    s.write(0, 8);
    s.checkpoint();
    s.kill();
    s.read(0, 8);
    s.end();
}

/// The same with what the image does not have yet.
#[test]
fn p6_dirty_loaded_as_clean_from_the_log() {
    let mut s = Scene::new("P6, log", Stage::default());
    s.write(0, 8);
    s.kill();
    s.read(0, 8);
    s.end();
}

/// dm-cache: beyond 2 TiB a shift overflowed 32 bits, and I/O went to another place. Here the volume is that large.
#[test]
fn p7_a_volume_beyond_2_tib() {
    let mut s = Scene::new("P7, volume", Stage { sectors: (3 << 40) / 512, ..Stage::default() });
    s.write(8, 8);
    s.destage();
    // Equal to the first in the lower 32 bits of its sector.
    s.write((1 << 32) + 8, 8);
    s.write((1 << 32) + 1024, 128);
    s.destage();
    s.read((1 << 32) + 8, 8);
    s.end();
}

/// The same where the cache device is large: beyond 4 GiB, bytes have more than 32 bits.
#[test]
fn p7_a_cache_device_beyond_4_gib() {
    let mut s = Scene::new("P7, cache device", Stage { segments: 140, segment_bytes: 32 << 20, ..Stage::default() });
    s.write(0, 8);
    // A volume that comes and goes takes a segment each time, in the next slot: after 128 of them in the one whose place
    // is equal to the first one's in the lower 32 bits.
    for _ in 0..130 {
        s.obey(Command::Attach(s.stage.volume(1)));
        s.world.write(1, 64, 8, false);
        s.answered();
        s.obey(Command::Detach { volume: 1, give_up_lost: false });
    }
    s.write(64, 8);
    s.read(0, 8);
    s.end();
}

/// dm-cache: pass-through was entered with dirty blocks, since that all was clean had been looked up a moment before.
/// Here a write is on its way into the log while the mode is switched.
#[test]
fn p9_a_mode_entered_on_an_old_look() {
    let mut s = Scene::new("P9", Stage::default());
    s.hold_back(|device, op| is_member(device) && carries_data(op));
    s.world.write(0, 0, 8, false);
    s.until_held();
    let switch = s.world.command(Command::SetMode { volume: 0, mode: Mode::PassThrough });
    s.pass(100_000_000);
    s.let_go();
    s.answered();
    s.ends_well(switch);
    // From now on the disk alone is the volume.
    s.world.check_disk(0);
    s.end();
}

/// bcache: a write went past the cache while a read missed; the read's older data was inserted after the invalidation,
/// and stayed, across reboots.
#[test]
fn p11_bypass_fill_race() {
    let mut s = Scene::new("P11", Stage::default());
    // The bypass is on its way to the disk when the read comes.
    s.hold_back(|device, op| device == DISK && matches!(op, DeviceOp::Write { .. }));
    s.world.write(0, 0, 128, false);
    s.until_held();
    s.world.read(0, 64, 8);
    s.pass(10_000_000);
    s.let_go();
    s.answered();
    s.read(64, 8);
    s.flush();
    s.lose_power();
    s.read(64, 8);
    s.end();
}

/// The other way round: the read's data is on its way into the cache when the bypass comes, and is done.
#[test]
fn p11_fill_bypass_race() {
    let mut s = Scene::new("P11, the other way round", Stage::default());
    s.hold_back(|device, op| is_member(device) && carries_data(op));
    s.read(64, 8);
    s.until_held();
    s.write(0, 128);
    s.let_go();
    s.rest();
    s.read(64, 8);
    s.end();
}

/// bcache: the power failed between a bypass and the invalidation of the cached copy, which was found again.
#[test]
fn p12_power_cut_after_a_bypass() {
    let mut s = Scene::new("P12", Stage::default());
    cached_clean(&mut s);
    s.write(4, 128);
    // The disk has it; of the cache devices' volatile caches nothing is left.
    s.world.cut_power_keeping(|device, _, _| device == DISK);
    start_without_comparing(&mut s);
    s.read(4, 4);
    s.end();
}

/// bcache: written back data was called clean while the disk had it in its volatile cache.
#[test]
fn p13_clean_before_it_is_durable() {
    let mut s = Scene::new("P13", Stage::default());
    s.write(0, 8);
    s.flush();
    // Whoever does not wait for the disk's flush goes on to the marks.
    s.hold_back(|device, op| device == DISK && matches!(op, DeviceOp::Flush));
    s.world.command(Command::Destage { volume: 0 });
    s.until_held();
    s.pass(100_000_000);
    s.world.cut_power_keeping(|device, _, _| is_member(device));
    s.start();
    s.read(0, 8);
    s.end();
}

/// bcache: when the cache device failed the disk was served without it, with the dirty data missing.
#[test]
fn p14_the_disk_in_place_of_lost_dirty_data() {
    let mut s = Scene::new("P14", Stage::default());
    s.write(0, 8);
    s.flush();
    s.set_dead(Device::Member(0), true);
    s.set_dead(Device::Member(1), true);
    s.world.errors_allowed = true;
    // This finds out.
    s.write(1024, 8);
    let read = s.world.read(0, 0, 8);
    assert!(!s.answer_to(read), "{}: the disk is read where dirty data is lost", s.story());
    // They come back as they were, and nothing was acknowledged that they lack.
    s.world.kill_landing(|_, _, _| false);
    s.set_dead(Device::Member(0), false);
    s.set_dead(Device::Member(1), false);
    s.world.errors_allowed = false;
    s.start();
    s.read_all();
    s.end();
}

/// The same after a reboot: the devices with the only copies are gone, and nobody left has heard of what they held.
#[test]
fn p14_a_reboot_without_the_devices() {
    let mut s = Scene::new("P14, reboot", Stage { members: 4, ..Stage::default() });
    s.write(0, 8);
    s.flush();
    let gone = copies(&s, 0);
    s.world.kill_landing(|_, _, _| false);
    gone.iter().for_each(|(device, _)| s.set_dead(*device, true));
    // They are gone for good, and somebody has said so.
    s.stage.settings.without_missing = true;
    s.start();
    s.read_all();
    assert!(s.status().volumes[0].refused, "{}", s.story());
}

/// All cache devices with a copy fail under data that is acknowledged and not flushed yet; the flush that should cover it must not
/// end well, as it is nowhere any more. Others are left: where all fail the pool stands still, and no flush ends well in any case.
#[test]
fn p14_a_flush_after_all_copies_are_gone() {
    let mut s = Scene::new("P14, flush", Stage { members: 4, ..Stage::default() });
    s.write(0, 8);
    copies(&s, 0).into_iter().for_each(|(device, _)| s.set_dead(device, true));
    s.world.errors_allowed = true;
    s.world.count_copies = false;
    let flush = s.world.flush(0);
    assert!(!s.answer_to(flush), "{}: it ends well", s.story());
}

/// bcache: during a detach a write went past the cache; the power failed before the detach was written down, and what
/// had been cached there before was served again.
#[test]
fn p15_power_cut_during_a_detach() {
    let mut s = Scene::new("P15", Stage::default());
    cached_clean(&mut s);
    // The detach has begun, the volume is passed, and no superblock says so: something dirty is on its way to the disk.
    s.write(8000, 8);
    s.hold_back(|device, op| device == DISK && matches!(op, DeviceOp::Write { offset, .. } if *offset == 8000 * 512));
    s.world.command(Command::Detach { volume: 0, give_up_lost: false });
    s.until_held();
    s.write(4, 4);
    s.world.cut_power_keeping(|device, _, _| device == DISK);
    start_without_comparing(&mut s);
    s.read(4, 4);
    s.end();
}

/// bcache: a cached block that could not be read was read from the disk, which was older.
#[test]
fn p16_a_read_error_mended_from_the_older_disk() {
    let mut s = Scene::new("P16", Stage::default());
    s.write(0, 8);
    s.flush();
    for (device, sector) in copies(&s, 0) {
        s.device(device).bad.insert(sector, ());
    }
    s.world.errors_allowed = true;
    let read = s.world.read(0, 0, 8);
    assert!(!s.answer_to(read), "{}: read, though no copy can be", s.story());
    // The devices read it again after all.
    for m in 0..2 {
        s.device(Device::Member(m)).bad.clear();
    }
    s.world.errors_allowed = false;
    s.read(0, 8);
    s.end();
}

/// bcache: the place that a read was on its way to was given to other data. Where a part of the read was dirty nothing
/// else had it, and the read failed.
#[test]
fn p17_reused_under_a_read() {
    let mut s = Scene::new("P17", Stage { segments: 8, ..Stage::default() });
    s.write(0, 16);
    let at = copies(&s, 0);
    // The client's read alone, and not destage's after it.
    let first = std::cell::Cell::new(true);
    s.hold_back(move |device, op| {
        let there = |o: u64, len: u32| at.iter().any(|(d, s)| *d == device && (o..o + u64::from(len)).contains(&(s * 512)));
        matches!(op, DeviceOp::Read { offset, len, .. } if there(*offset, *len)) && first.replace(false)
    });
    let read = s.world.read(0, 0, 16);
    s.until_held();
    // What it reads is destaged and replaced, and all places are written over, more than once.
    for _ in 0..40 {
        for n in 0..30 {
            s.world.write(0, n * 512, 16, false);
            s.until("the write is answered", |w| w.outstanding() == 1);
        }
        s.destage();
        s.checkpoint();
    }
    s.let_go();
    assert!(s.answer_to(read));
    s.end();
}

/// bcache: a stray write in memory spoiled what then was written out. What destage writes is what its checksum says.
#[test]
fn p18_rot_on_its_way_to_the_disk() {
    let mut s = Scene::new("P18", Stage::default());
    s.write(0, 8);
    s.flush();
    // The copy that is read when both devices are idle.
    let (device, sector) = copies(&s, 0)[0];
    s.device(device).visible.set(sector, Cell::Stamp(12345));
    s.destage();
    s.read(0, 8);
    s.end();
}

/// The same on all copies: what cannot be read is not called clean, and is there again if it can be read again.
#[test]
fn p18_rot_called_clean() {
    let mut s = Scene::new("P18, all copies", Stage::default());
    s.write(0, 8);
    s.flush();
    let places = copies(&s, 0);
    let good: Vec<Cell> = places.iter().map(|(device, sector)| s.device(*device).visible.get(*sector)).collect();
    places.iter().for_each(|(device, sector)| s.device(*device).visible.set(*sector, Cell::Stamp(12345)));
    let destage = s.world.command(Command::Destage { volume: 0 });
    assert_eq!(s.end_of(destage), Err(CommandError::Lost { blocks: 1 }), "{}", s.story());
    places.iter().zip(good).for_each(|((device, sector), cell)| s.device(*device).visible.set(*sector, cell));
    s.read(0, 8);
    s.end();
}

/// bcache: the journal was full, and what would have freed it needed room in it. Here marks, which say what is clean,
/// need room in a log that is full of dirty data.
#[test]
fn p20_no_room_to_make_room() {
    let mut stage = Stage { unit: 4096, ..Stage::default() };
    // Dirty data may have all but the reserve. No chunk empties a segment with the first mark, for which there is room.
    (stage.settings.dirty_percent, stage.settings.chunk_runs) = (100, 4);
    let mut s = Scene::new("P20", stage);
    fill(&mut s);
    s.destage();
    s.end();
}

/// bcache: the disk was taken into use before its SSD had appeared; when the SSD came it served what it had from before.
/// Here one of two cache devices comes back alone, after the other one has gone on without it.
#[test]
fn p21_the_one_that_was_away_comes_back_alone() {
    let mut s = Scene::new("P21", Stage::default());
    s.write(0, 8);
    s.flush();
    s.set_dead(Device::Member(0), true);
    s.write(0, 8);
    s.flush();
    s.world.kill_landing(|_, _, _| false);
    s.set_dead(Device::Member(0), false);
    s.set_dead(Device::Member(1), true);
    s.refusal();
    s.set_dead(Device::Member(1), false);
    s.start();
    s.read(0, 8);
    s.end();
}

/// bcache: a device that appears late at a start. Here it is two of four, with both copies of flushed data: the pool must
/// not start by itself on the other two, and take the late ones for left.
#[test]
fn p21_two_of_four_appear_late() {
    let mut s = Scene::new("P21, late", Stage { members: 4, ..Stage::default() });
    s.write(0, 8);
    s.flush();
    both_copies_come_late(s);
}

/// Open CAS: a line's metadata said "valid and dirty" before its data was written, and the power failed between. Here of
/// a record in flight the header lands, and not the data behind it.
#[test]
fn p22_a_name_without_its_data() {
    let mut s = Scene::new("P22", Stage::default());
    s.write(0, 8);
    s.flush();
    s.hold_back(|device, op| is_member(device) && carries_data(op));
    s.world.write(0, 0, 8, false);
    s.until_held();
    s.world.cut_power_keeping(|device, _, buf| is_member(device) && !is_data(buf));
    s.start();
    s.read(0, 8);
    s.end();
}

/// Open CAS: after metadata was written the cache device was not flushed.
#[test]
fn p23_the_cache_devices_not_flushed() {
    let mut s = Scene::new("P23", Stage::default());
    // The first write brings flushes of its own, for the mark that something is dirty there.
    s.write(8, 8);
    s.pass(10_000_000);
    s.write(0, 8);
    s.flush();
    s.world.cut_power_keeping(|_, _, _| false);
    // What was flushed was on both.
    s.set_dead(Device::Member(0), true);
    s.start();
    s.read(0, 8);
    s.end();
}

/// Open CAS: after a rework of the crash path writes were lost that had been flushed. Here one that is flushed lies in
/// the log behind one that never landed.
#[test]
fn p24_flushed_behind_a_hole() {
    let mut s = Scene::new("P24", Stage::default());
    // The segment is open: neither of the two brings its header.
    s.write(1024, 8);
    s.hold_back(|device, op| is_member(device) && carries_data(op));
    s.world.write(0, 0, 8, false);
    s.until_held();
    s.hold_back(|_, _| false);
    let second = s.world.write(0, 4096, 8, false);
    assert!(s.answer_to(second));
    let flush = s.world.flush(0);
    assert!(s.answer_to(flush));
    s.lose_power();
    s.read(4096, 8);
    s.end();
}

/// Open CAS: the power failed while several parts of the configuration were being written, and the cache could not be
/// loaded any more. Here of superblocks in flight the first sectors land.
#[test]
fn p25_a_torn_superblock() {
    let mut s = Scene::new("P25", Stage { disks: 3, ..Stage::default() });
    // Superblocks of more than one sector, with what changes in both.
    let mut volume = s.stage.volume(1);
    volume.backing = "disk".repeat(60);
    s.obey(Command::Attach(volume));
    s.obey(Command::Attach(s.stage.volume(2)));
    s.write(0, 8);
    s.flush();
    s.rest();
    let size = s.stage.member_bytes();
    s.hold_back(move |device, op| {
        is_member(device) && matches!(op, DeviceOp::Write { offset, .. } if is_superblock(size, *offset))
    });
    s.world.command(Command::SetMode { volume: 2, mode: Mode::WriteAround });
    s.until_held();
    let torn = s.world.in_flight();
    s.world.cut_power_keeping(|_, _, _| false);
    for (device, sector, buf) in torn {
        assert!(buf.sectors() > 1, "{}: a superblock of one sector", s.story());
        let d = s.device(device);
        d.durable.set(sector, buf.cell(0));
        d.visible.set(sector, buf.cell(0));
    }
    s.start();
    // The volumes are there, as the superblock before says.
    s.read(0, 8);
    s.end();
}

/// OCF: while the mode was switched I/O past the cache and I/O of the cache overlapped.
#[test]
fn p27_past_the_cache_beside_its_own() {
    let mut s = Scene::new("P27", Stage::default());
    s.write(0, 8);
    // The switch destages; while that is on its way to the disk a client writes there under the new mode.
    s.hold_back(|device, op| device == DISK && matches!(op, DeviceOp::Write { .. }));
    let switch = s.world.command(Command::SetMode { volume: 0, mode: Mode::WriteAround });
    s.until_held();
    s.world.write(0, 0, 8, false);
    s.pass(10_000_000);
    s.let_go();
    s.answered();
    s.ends_well(switch);
    s.end();
}

/// flashcache, EnhanceIO: the disk was used without the cache, whose dirty data was written over it later.
#[test]
fn p30_the_disk_changed_meanwhile() {
    let mut s = Scene::new("P30", Stage::default());
    // Of what is clean is known what the disk should have.
    for n in 0..8 {
        s.read(4096 + n * 64, 8);
    }
    s.write(0, 8);
    s.flush();
    s.checkpoint();
    s.rest();
    s.world.kill_landing(|_, _, _| false);
    let disk = s.device(DISK).clone();
    s.device(DISK).write(4096, SimBuf::stamps(1 << 40, 1024));
    s.start();
    assert!(s.status().volumes[0].refused, "{}: the volume is served", s.story());
    // With the disk that it knows it is.
    s.world.kill_landing(|_, _, _| false);
    *s.device(DISK) = disk;
    s.start();
    s.end();
}

/// dm-thin, dm-clone: metadata was committed on a timer, before the data device was flushed. Here a checkpoint takes away
/// the bit which says that the disk may lack what clean copies have.
#[test]
fn p31_a_checkpoint_before_the_disk_is_flushed() {
    let mut s = Scene::new("P31", Stage::default());
    s.write(0, 128);
    // What the disk has in its volatile cache is cached; with a newer fragment in it no start compares it.
    s.read(0, 8);
    s.rest();
    s.write(0, 1);
    s.checkpoint();
    s.rest();
    s.lose_power();
    s.read(1, 7);
    s.end();
}

/// dm-clone: a discard of parts of regions was rounded the wrong way, and live blocks went with it.
#[test]
fn p32_discards_round_inwards() {
    for phase in [0, 5] {
        let mut s = Scene::new("P32", Stage { phase, ..Stage::default() });
        s.write(0, 24);
        s.discard(3, 18);
        s.read(0, 24);
        // Past the cache, too.
        s.mode(Mode::WriteAround);
        s.write(1024, 24);
        s.discard(1025, 21);
        s.read(1024, 24);
        s.end();
    }
}

/// dm-era: a bit was set in memory before it was committed; a second writer found it set, and did not wait.
#[test]
fn p33_the_second_writer_does_not_wait() {
    let mut s = Scene::new("P33", Stage::default());
    cached_clean(&mut s);
    let checkpoints = Layout::plan(s.stage.member_bytes(), s.stage.segment_bytes, 4).unwrap().checkpoint(0);
    s.hold_back(move |device, op| writes_between(device, op, 2 * SUPERBLOCK_BYTES, checkpoints));
    s.world.write(0, 2048, 128, false);
    s.until_held();
    s.world.write(0, 4, 128, false);
    s.pass(10_000_000);
    // What is on the disk by now stays, and the bit is nowhere.
    s.world.cut_power_keeping(|device, _, _| device == DISK);
    start_without_comparing(&mut s);
    s.read(4, 4);
    s.end();
}

/// BlueFS: data was written to one device and not flushed; a flush of the other device made durable what named it. Here
/// the cache says, durably, that its dirty record is outdated by a write which the disk has not flushed.
#[test]
fn p34_one_devices_flush_taken_for_the_others() {
    let mut s = Scene::new("P34", Stage::default());
    s.write(0, 8);
    fill(&mut s);
    s.flush();
    // There is no room to absorb it: the disk is written, and the old record marked.
    s.write(0, 8);
    assert!(s.status().volumes[0].stats.ordered_overwrites > 0, "{}: not overwritten", s.story());
    s.world.cut_power_keeping(|device, _, _| is_member(device));
    s.start();
    s.read(0, 8);
    s.end();
}

/// BlueStore: deferred writes were replayed over space that had been written since, by others.
#[test]
fn p35_replayed_over_what_came_after() {
    let mut s = Scene::new("P35", Stage::default());
    s.write(0, 8);
    fill(&mut s);
    s.write(0, 8);
    assert!(s.status().volumes[0].stats.ordered_overwrites > 0, "{}: not overwritten", s.story());
    s.kill();
    s.read(0, 8);
    s.destage();
    s.end();
}

/// The same where the space is another owner's: a volume is detached, and its number given to one on another disk.
#[test]
fn p35_replayed_into_another_volume() {
    let mut s = Scene::new("P35, volumes", Stage { volumes: 2, ..Stage::default() });
    s.world.write(1, 0, 8, false);
    s.write(0, 8);
    s.destage();
    let layout = Layout::plan(s.stage.member_bytes(), s.stage.segment_bytes, 4).unwrap();
    let pages = move |device, op: &Op| writes_between(device, op, layout.checkpoint(0), layout.slot(0));
    // The daemon dies before the checkpoint that follows a detach: the log still has the old volume's records.
    s.world.command(Command::Detach { volume: 0, give_up_lost: false });
    s.hold_back(pages);
    s.until_held();
    s.pass(10_000_000);
    // Nor does the start get to one.
    s.world.kill_landing(|_, _, _| false);
    s.hold_back(pages);
    let start = s.begin_start();
    s.ends_well(start);
    assert_eq!(s.status().volumes.len(), 1, "{}: not detached", s.story());
    s.exchange_disk(0);
    // An attach that does not wait for a checkpoint is done before there is one.
    s.world.command(Command::Attach(s.stage.volume(0)));
    s.pass(100_000_000);
    s.world.kill_landing(|_, _, _| true);
    start_without_comparing(&mut s);
    if s.status().volumes.len() == 1 {
        s.obey(Command::Attach(s.stage.volume(0)));
    }
    s.read(0, 8);
    s.end();
}

/// LSVD: while it ran, what had completed last counted; after a crash, what was last in the log. Either is right, and to
/// go from one to the other is not.
#[test]
fn p36_one_order_before_the_crash_and_another_after() {
    let mut s = Scene::new("P36", Stage::default());
    s.write(1024, 8);
    // The first one's record lies before the second one's, and completes after it.
    s.hold_back(|device, op| is_member(device) && carries_data(op));
    s.world.write(0, 0, 8, false);
    s.until_held();
    s.hold_back(|_, _| false);
    let second = s.world.write(0, 0, 8, false);
    assert!(s.answer_to(second));
    s.let_go();
    s.answered();
    s.read(0, 8);
    s.destage();
    s.world.kill_landing(|_, _, _| true);
    start_without_comparing(&mut s);
    s.read(0, 8);
    s.end();
}

/// Lustre's cache: when the disk behind it was down, dirty data stayed where it was, without an end in sight. It stays,
/// and is read from there; and who waits for it to be down is told that it will not be.
#[test]
fn p39_the_disk_is_down() {
    let mut s = Scene::new("P39", Stage::default());
    s.write(0, 8);
    s.flush();
    s.set_dead(DISK, true);
    let destage = s.world.command(Command::Destage { volume: 0 });
    assert_eq!(s.end_of(destage), Err(CommandError::Disk), "{}", s.story());
    s.read(0, 8);
    s.set_dead(DISK, false);
    s.destage();
    s.end();
}
