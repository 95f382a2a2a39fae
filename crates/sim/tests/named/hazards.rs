//! The sequences that break a design like ours: H1 to H20.
//!
//! A write of 512 KiB goes past the cache here, and one of a block is absorbed. Nothing is destaged before it is told to,
//! unless the stage says so.

use headpond_engine::format::{Layout, Mode, SUPERBLOCK_BYTES};
use headpond_engine::{Command, Device, DeviceOp, Settings};
use headpond_sim::SimBuf;
use headpond_sim::device::SimDevice;
use headpond_sim::scene::{Scene, Stage};
use std::ops::Range;

const DISK: Device = Device::Backing(0);
/// Sectors of a write that goes past the cache, and is so long that one at its beginning does not continue it.
const PAST: u64 = 1024;
/// A block in the second region, after all those of [`crowd`].
const FAR: u64 = 200_000;
/// Another place in that region.
const BESIDE: u64 = 230_000;
/// A millisecond: long enough for whatever is not held back to end.
const MOMENT: u64 = 1_000_000;

fn written(device: Device, op: &DeviceOp<SimBuf>) -> bool {
    device == DISK && !matches!(op, DeviceOp::Read { .. } | DeviceOp::Flush)
}

fn is_member(device: Device) -> bool {
    matches!(device, Device::Member(_))
}

fn appended(device: Device, op: &DeviceOp<SimBuf>) -> bool {
    is_member(device) && matches!(op, DeviceOp::Write { .. })
}

fn number(device: Device) -> u8 {
    let Device::Member(n) = device else { panic!("{device} is not a cache device") };
    n
}

fn with(change: impl FnOnce(&mut Settings)) -> Stage {
    let mut stage = Stage::default();
    change(&mut stage.settings);
    stage
}

/// Admits blocks of the first region. A start compares some of what is clean with the disk, and lets go of all of it where
/// one differs: with 36 others it does not come upon the one at [`FAR`].
fn crowd(s: &mut Scene, blocks: u64) {
    for n in 0..blocks {
        s.read(n * 1000, 8);
    }
    s.rest();
}

/// A stage on which destage begins as soon as clients leave the disk alone.
fn sweeping() -> Stage {
    with(|s| s.idle_ns = MOMENT)
}

/// X v5 is flushed, in a segment; X v6 is acknowledged and not flushed. The segment has no live record, and must not be
/// written again: the power cut takes v6, and v5 is what a client was promised.
#[test]
fn h1_superseded_is_not_dead() {
    let mut s = Scene::new("H1", Stage { segments: 8, ..Stage::default() });
    s.write(0, 8);
    s.flush();
    let v5 = s.copies(0);
    // The rest of its segment, so that v6 goes into another.
    for _ in 0..14 {
        s.write(8000, 8);
    }
    s.write(0, 8);
    // More than all segments hold: each is written again, and nobody flushes.
    for _ in 0..400 {
        s.write(8000, 8);
    }
    // Of what is in the volatile caches only that survives which lies in v5's segment, and not v6.
    s.world.cut_power_keeping(|device, sector, _| v5.iter().any(|(d, at)| *d == device && (at - 2..at + 126).contains(&sector)));
    s.start();
    s.read_all();
    s.end();
}

/// A bypassed write is queued in the disk; a newer one to the same sectors is absorbed, flushed and destaged. If the
/// destage overtakes the bypass, the disk has the older one, and the cache calls the newer one clean.
#[test]
fn h2_bypass_then_destage() {
    let mut s = Scene::new("H2", Stage::default());
    s.hold_back(written);
    s.world.write(0, 0, PAST, false);
    s.until_held();
    s.hold_back(|_, _| false);
    let newer = s.world.write(0, 0, 8, false);
    assert!(s.answer_to(newer));
    s.world.flush(0);
    let sweep = s.world.command(Command::Destage { volume: 0 });
    s.pass(50 * MOMENT);
    s.let_go();
    s.answered();
    s.ends_well(sweep);
    s.end();
}

/// The same with a discard: it is queued in the disk, and what was written after it is destaged.
#[test]
fn h2_discard_then_destage() {
    let mut s = Scene::new("H2", Stage::default());
    s.hold_back(written);
    // 2 MiB: more than is absorbed.
    s.world.discard(0, 0, 4096, 0);
    s.until_held();
    s.hold_back(|_, _| false);
    let newer = s.world.write(0, 1000, 8, false);
    assert!(s.answer_to(newer));
    let sweep = s.world.command(Command::Destage { volume: 0 });
    s.pass(50 * MOMENT);
    s.let_go();
    s.answered();
    s.ends_well(sweep);
    s.end();
}

/// A sweep was planned before a write past the cache, and is issued after it: what it puts down is what the map says
/// then, not what it said before.
#[test]
fn h2_planned_before_written_after() {
    let mut s = Scene::new("H2", Stage::default());
    // The region's intent bit is set: the write below does not wait for it.
    s.write(100_000, PAST);
    s.write(0, 8);
    s.hold_back(written);
    // While somebody waits for the volume to be clean nothing is absorbed: an ordered overwrite, which has the range
    // first. The sweep waits for it.
    let sweep = s.world.command(Command::Destage { volume: 0 });
    s.world.write(0, 0, 8, false);
    s.until_held();
    s.pass(5 * MOMENT);
    s.let_go();
    s.answered();
    s.ends_well(sweep);
    s.read(0, 8);
    s.end();
}

/// A write is absorbed while an older one to the same block is on its way to the disk: the mark that calls the block clean
/// speaks of the older one alone.
#[test]
fn h2_written_under_the_sweep() {
    let mut s = Scene::new("H2", sweeping());
    s.hold_back(written);
    s.write(0, 8);
    s.until_held();
    s.write(0, 8);
    s.let_go();
    s.pass(100 * MOMENT);
    s.end();
}

/// A write is being appended, with its version, and not in the map yet, when a sweep begins: the mark up to that version
/// must not speak of its block, as what goes down is the write before it.
#[test]
fn h2_appended_under_the_sweep() {
    let mut s = Scene::new("H2", Stage::default());
    s.write(0, 8);
    s.hold_back(appended);
    let newer = s.world.write(0, 0, 8, false);
    s.until_held();
    s.hold_back(|_, _| false);
    s.world.command(Command::Destage { volume: 0 });
    s.pass(50 * MOMENT);
    s.let_go();
    assert!(s.answer_to(newer));
    s.kill();
    s.end();
}

/// Of two records of a dead daemon's the first was in flight and did not land, and the second was acknowledged. Where the
/// first was is no end of the log: what is appended there lands on the second.
#[test]
fn h3_hole_taken_for_the_end() {
    let mut s = Scene::new("H3", Stage::default());
    // Its record opens the segment: what follows waits for that one.
    s.write(0, 8);
    s.hold_back(appended);
    s.world.write(0, 8000, 8, false);
    s.until_held();
    s.hold_back(|_, _| false);
    let second = s.world.write(0, 16_000, 8, false);
    assert!(s.answer_to(second));
    s.kill();
    // Longer than the hole.
    s.write(24_000, 24);
    s.read(16_000, 8);
    s.end();
}

/// The new daemon reads from the cache devices what a dead one wrote and never flushed: here an intent bit. It trusts it,
/// writes past the cache, and the power cut takes the bit: an older clean copy comes back.
#[test]
fn h4_read_from_a_volatile_cache() {
    let mut s = Scene::new("H4", Stage::default());
    crowd(&mut s, 36);
    s.read(FAR, 8);
    s.rest();
    s.checkpoint();
    // A bypass elsewhere in the region: its bit is written, and not flushed.
    let flushed = |device, op: &DeviceOp<SimBuf>| is_member(device) && matches!(op, DeviceOp::Flush);
    s.hold_back(flushed);
    s.world.write(0, BESIDE, PAST, false);
    s.pass(5 * MOMENT);
    s.kill();
    // Nothing flushes for the start's sake what the start itself did not.
    s.hold_back(flushed);
    s.write(FAR, PAST);
    s.world.cut_power_keeping(|device, _, _| device == DISK);
    s.start();
    s.read_all();
    s.end();
}

/// The log's last record landed on one cache device alone. It is found and read there; that device dies; and what was
/// read is still there.
#[test]
fn h4_tail_on_one_copy() {
    let mut s = Scene::new("H4", Stage::default());
    s.write(0, 8);
    s.flush();
    // Reads prefer the first of equals.
    let (first, other) = (s.copies(0)[0].0, s.copies(0)[1].0);
    s.hold_back(move |device, op| device == other && appended(device, op));
    s.world.write(0, 0, 8, false);
    s.pass(MOMENT);
    s.kill();
    s.read(0, 8);
    s.set_dead(first, true);
    s.read(0, 8);
    s.end();
}

/// The old daemon acknowledged a write past the cache, and died. The client flushes: the new daemon knows of no such
/// write, and must flush the disk all the same.
#[test]
fn h4_flush_after_a_death() {
    let mut s = Scene::new("H4", Stage::default());
    s.write(0, PAST);
    s.kill();
    s.flush();
    s.lose_power();
    s.read_all();
    s.end();
}

/// Two records in flight: the power cut takes the first, and the second was acknowledged as durable. Replay steps over
/// the hole.
#[test]
fn h5_hole_before_a_durable_record() {
    let mut s = Scene::new("H5", Stage::default());
    s.write(0, 8);
    s.hold_back(appended);
    s.world.write(0, 8000, 8, false);
    s.until_held();
    s.hold_back(|_, _| false);
    let durable = s.world.write(0, 16_000, 8, true);
    assert!(s.answer_to(durable));
    s.lose_power();
    s.read(16_000, 8);
    s.end();
}

/// A write with forced unit access shares its record with a plain one: both are durable before it is acknowledged.
#[test]
fn h5_durable_beside_a_plain_one() {
    let mut s = Scene::new("H5", Stage::default());
    s.world.write(0, 0, 8, false);
    s.world.write(0, 8000, 8, true);
    s.answered();
    s.lose_power();
    s.read(8000, 8);
    s.end();
}

/// A write with forced unit access goes past the cache, but for what overlaps dirty data: that part is in the log, and is
/// durable too.
#[test]
fn h5_durable_past_the_cache() {
    let mut s = Scene::new("H5", Stage::default());
    s.write(0, 8);
    s.write_fua(0, PAST);
    s.lose_power();
    s.read_all();
    s.end();
}

/// A segment's first record carries its header, without which nothing in it counts. It is in flight when the second is
/// done: that one is not acknowledged before it.
#[test]
fn h5_nothing_before_the_header() {
    let mut s = Scene::new("H5", Stage::default());
    // The region is known to hold dirty data, and the next segment is a new one.
    s.write(16_000, 8);
    s.kill();
    s.rest();
    s.hold_back(appended);
    s.world.write(0, 0, 8, false);
    s.until_held();
    s.hold_back(|_, _| false);
    s.world.write(0, 8000, 8, false);
    s.pass(5 * MOMENT);
    s.kill();
    s.read(8000, 8);
    s.end();
}

/// The power cut leaves a record's header, and not its data: the record proves nothing, and what was flushed before it
/// counts.
#[test]
fn h5_torn_record() {
    let mut s = Scene::new("H5", Stage::default());
    s.write(0, 8);
    s.flush();
    s.write(0, 8);
    let torn = s.copies(0);
    s.world.cut_power_keeping(|device, sector, _| torn.iter().any(|(d, at)| *d == device && sector == at - 1));
    s.start();
    s.read(0, 8);
    s.end();
}

/// A checkpoint begins while a record is being appended, which lies before the place from which the log will be replayed:
/// it is in the image, or the checkpoint begins too early.
#[test]
fn h5_append_under_a_checkpoint() {
    let mut s = Scene::new("H5", Stage::default());
    s.write(0, 8);
    s.rest();
    s.hold_back(appended);
    let write = s.world.write(0, 8000, 8, false);
    s.until_held();
    s.hold_back(|_, _| false);
    let checkpoint = s.world.command(Command::Checkpoint);
    s.pass(50 * MOMENT);
    s.let_go();
    assert!(s.answer_to(write));
    s.ends_well(checkpoint);
    s.kill();
    s.read(8000, 8);
    s.end();
}

/// A write past the cache is in the disk's volatile cache; a read admits it, and the record is durable. The power cut
/// leaves a clean copy of what the disk does not have: evicted, the value would change back.
#[test]
fn h6_filled_before_the_platter() {
    let mut s = Scene::new("H6", Stage::default());
    crowd(&mut s, 36);
    s.write(FAR, PAST);
    s.read(FAR, 8);
    s.rest();
    s.world.cut_power_keeping(|device, _, _| is_member(device));
    s.start();
    s.read_all();
    s.end();
}

/// The same with what is written through.
#[test]
fn h6_written_through_before_the_platter() {
    let mut s = Scene::new("H6", Stage { mode: Mode::WriteThrough, ..Stage::default() });
    crowd(&mut s, 36);
    s.write(FAR, 8);
    s.rest();
    assert!(!s.copies(FAR).is_empty());
    s.world.cut_power_keeping(|device, _, _| is_member(device));
    s.start();
    s.read_all();
    s.end();
}

/// A write past the cache outdates a clean copy. Its region's intent bit is durable before the disk is written: else the
/// power cut brings the copy back.
#[test]
fn h7_bit_before_the_write() {
    let mut s = Scene::new("H7", Stage::default());
    crowd(&mut s, 36);
    s.read(FAR, 8);
    s.rest();
    s.checkpoint();
    s.hold_back(|device, op| is_member(device) && matches!(op, DeviceOp::Flush));
    s.world.write(0, FAR, PAST, false);
    s.pass(5 * MOMENT);
    s.world.cut_power_keeping(|device, _, _| device == DISK);
    s.start();
    s.read_all();
    s.end();
}

/// A checkpoint clears the bit of a region that is written no more: not before the disk has been flushed.
#[test]
fn h7_bit_cleared_after_the_flush() {
    let mut s = Scene::new("H7", Stage::default());
    crowd(&mut s, 36);
    s.write(FAR, PAST);
    s.read(FAR, 8);
    s.rest();
    s.checkpoint();
    s.pass(5 * MOMENT);
    s.world.cut_power_keeping(|device, _, _| is_member(device));
    s.start();
    s.read_all();
    s.end();
}

/// A checkpoint is under way when the region is written again: what it found to be clearable when it began is so no more.
#[test]
fn h7_bit_kept_while_it_is_needed() {
    let mut s = Scene::new("H7", Stage::default());
    crowd(&mut s, 36);
    s.write(BESIDE, PAST);
    s.rest();
    s.hold_back(appended);
    let checkpoint = s.world.command(Command::Checkpoint);
    s.until_held();
    s.hold_back(|_, _| false);
    let write = s.world.write(0, FAR, PAST, false);
    assert!(s.answer_to(write));
    let read = s.world.read(0, FAR, 8);
    assert!(s.answer_to(read));
    s.pass(5 * MOMENT);
    s.let_go();
    s.ends_well(checkpoint);
    s.pass(5 * MOMENT);
    s.world.cut_power_keeping(|device, _, _| is_member(device));
    s.start();
    s.read_all();
    s.end();
}

/// A crash leaves the bit on one cache device alone. The start must not trust it: that device is lost, and the other one,
/// which has the clean copy, never had the bit.
#[test]
fn h7_bit_on_one_member() {
    let mut s = Scene::new("H7", Stage::default());
    crowd(&mut s, 64);
    s.read(FAR, 8);
    s.rest();
    s.checkpoint();
    let copy = s.copies(FAR)[0].0;
    s.hold_back(move |device, op| device == copy && appended(device, op));
    s.world.write(0, BESIDE, PAST, false);
    s.pass(5 * MOMENT);
    s.kill();
    s.write(FAR, PAST);
    s.set_dead(Device::Member(1 - number(copy)), true);
    s.world.cut_power_keeping(|device, _, _| device == DISK);
    s.start();
    s.read_all();
    s.end();
}

/// Two lives write a page of the intent map with one number. The first has cleared a bit, on one cache device alone when the power
/// goes, which the second life's start cannot read; the second has the bit set, needs it, and that cache device loses what is written
/// over the page. A third finds both.
#[test]
fn h7_two_pages_with_one_number() {
    for liar in (0..2).map(Device::Member) {
        let mut s = Scene::new("H7", Stage::default());
        let layout = s.stage.layout();
        let (pages, images) = (layout.intent(0, 0)..layout.intent(1, 0), layout.checkpoint(0)..layout.slot(0));
        let writes = |to: Range<u64>| {
            move |device, op: &DeviceOp<SimBuf>| {
                is_member(device) && matches!(op, DeviceOp::Write { offset, .. } if to.contains(offset))
            }
        };
        crowd(&mut s, 36);
        s.write(BESIDE, PAST);
        s.rest();
        s.hold_back(writes(pages.clone()));
        s.world.command(Command::Checkpoint);
        s.until_held();
        s.world.cut_power_keeping(|device, sector, _| device == liar && pages.contains(&(sector * 512)));

        s.device(liar).bad.extend(pages.clone().step_by(512).map(|offset| (offset / 512, ())));
        s.device(liar).sickness.lies = true;
        // It would clear the bit again.
        s.hold_back(writes(images));
        s.start();
        s.read(FAR, 8);
        s.pass(5 * MOMENT);
        s.write(FAR, PAST);
        s.flush();
        s.world.cut_power_keeping(|device, sector, _| device != liar || !pages.contains(&(sector * 512)));

        s.device(liar).sickness.lies = false;
        s.start();
        s.read_all();
        s.end();
    }
}

/// The room for dirty data is full, and a dirty block is written: the disk, its flush, the mark that outdates the old
/// record, and then the acknowledgement. Here the power goes right after it: the old record is outdated, so the disk
/// must have the new one.
#[test]
fn h8_disk_flushed_before_the_mark() {
    let mut s = Scene::new("H8", with(|s| s.max_pieces = 10));
    for n in 0..9 {
        s.write(n * 8000, 8);
    }
    s.flush();
    s.write(0, 8);
    assert_eq!(s.status().volumes[0].stats.ordered_overwrites, 1);
    s.lose_power();
    s.read_all();
    s.end();
}

/// The same, and the daemon dies right after it: the old record must not come back over what was acknowledged.
#[test]
fn h8_mark_before_the_acknowledgement() {
    let mut s = Scene::new("H8", with(|s| s.max_pieces = 10));
    for n in 0..9 {
        s.write(n * 8000, 8);
    }
    s.write(0, 8);
    assert_eq!(s.status().volumes[0].stats.ordered_overwrites, 1);
    s.kill();
    s.read_all();
    s.end();
}

/// The log is full of dirty data, and all of it is written again: there is always room for the marks that outdate it.
#[test]
fn h8_reserve_for_marks() {
    let mut s = Scene::new("H8", Stage { segments: 8, ..with(|s| s.dirty_percent = 200) });
    // Nothing but the reserve ends this.
    let mut blocks = 0;
    while s.dirty() == blocks {
        s.write(blocks * 304, 8);
        blocks += 1;
    }
    for n in 0..blocks {
        s.write(n * 304, 8);
    }
    s.kill();
    s.end();
}

/// Dirty data fills all that it may, and the sweep wins nothing back: the disk is slow where it writes. A write waits its
/// quarter of a second, and goes to the disk by itself.
#[test]
fn h9_full_is_not_for_ever() {
    let mut s = Scene::new("H9", Stage { segments: 8, ..with(|s| s.dirty_percent = 50) });
    let mut n = 0;
    while s.status().dirty_percent < 100 {
        s.write(n * 1000, 8);
        n += 1;
    }
    // From now on a sweep goes on where dirty data takes more than half.
    s.stage.settings.destage_percent = 50;
    s.world.kill_landing(|_, _, _| false);
    s.hold_back(|device, op| device == DISK && matches!(op, DeviceOp::Write { offset, .. } if *offset < 250_000 * 512));
    s.start();
    // Nor is room won by moving together what is left in segments.
    s.hold_back(|device, op| match op {
        DeviceOp::Read { .. } => is_member(device),
        DeviceOp::Write { offset, .. } => device == DISK && *offset < 250_000 * 512,
        _ => false,
    });
    s.write(250_000, 8);
    s.end();
}

/// X v5 moves to a new segment while v6 is being appended: the copy of v5 lies behind v6, and is older all the same.
#[test]
fn h10_moved_behind_a_newer_one() {
    let mut s = Scene::new("H10", Stage { members: 3, ..with(|s| s.unfilled_appends = 4) });
    s.write(0, 8);
    let (lost, _) = s.copies(0)[0];
    // What is left on one copy is copied again: it is read for that.
    s.set_dead(lost, true);
    s.hold_back(|device, op| is_member(device) && matches!(op, DeviceOp::Read { .. }));
    let notices = s.world.write(0, 8000, 8, false);
    assert!(s.answer_to(notices));
    s.until_held();
    // v6 is on its way when the move's record is made.
    s.world.write(0, 0, 8, false);
    s.let_go();
    s.answered();
    // Not long: a checkpoint has what the map says, which is right.
    s.pass(MOMENT / 5);
    s.kill();
    s.read(0, 8);
    s.end();
}

/// The witness is away when one of two cache devices dies: the other one has no majority, and acknowledges nothing. It
/// would be lost when the first comes back with the witness, and not the second.
#[test]
fn h11_no_majority_no_acknowledgement() {
    let mut s = Scene::new("H11", Stage::default());
    s.write(0, 8);
    s.flush();
    s.set_dead(Device::Witness, true);
    s.set_dead(Device::Member(0), true);
    s.world.errors_allowed = true;
    let vain = s.world.write(0, 0, 8, false);
    s.answer_to(vain);
    s.world.kill_landing(|_, _, _| false);
    s.set_dead(Device::Witness, false);
    s.set_dead(Device::Member(0), false);
    s.set_dead(Device::Member(1), true);
    s.world.errors_allowed = false;
    s.start();
    s.read(0, 8);
    s.end();
}

/// One of two cache devices dies, and the other one goes on: not before the epoch without the first is durable. Until then
/// it might be the first that comes back.
#[test]
fn h11_epoch_before_the_acknowledgement() {
    let mut s = Scene::new("H11", Stage::default());
    s.write(0, 8);
    s.flush();
    s.hold_back(|device, _| device == Device::Witness);
    s.set_dead(Device::Member(0), true);
    s.world.write(0, 0, 8, false);
    s.pass(50 * MOMENT);
    s.world.kill_landing(|_, _, _| false);
    s.set_dead(Device::Member(0), false);
    s.set_dead(Device::Member(1), true);
    s.start();
    s.read(0, 8);
    s.end();
}

/// Without the witness cache device 1 raised an epoch alone, in vain, and died. Cache device 0 starts with the witness
/// and raises the same one, and acknowledges. When all are back, it is the witness's word that counts.
#[test]
fn h11_one_epoch_twice() {
    // Which of two of the same number is looked at last hangs on how many operations there were.
    for reads in 0..2 {
        one_epoch_twice(reads);
    }
}

fn one_epoch_twice(reads: u8) {
    let mut s = Scene::new("H11", Stage::default());
    s.write(0, 8);
    s.flush();
    s.rest();
    s.set_dead(Device::Witness, true);
    s.set_dead(Device::Member(0), true);
    s.world.errors_allowed = true;
    let vain = s.world.write(0, 8000, 8, false);
    s.answer_to(vain);
    s.world.kill_landing(|_, _, _| false);
    s.set_dead(Device::Witness, false);
    s.set_dead(Device::Member(0), false);
    s.set_dead(Device::Member(1), true);
    s.world.errors_allowed = false;
    s.start();
    // It writes no superblock after the epoch's: there are as many of the one epoch as of the other.
    let tail = Layout::tail_of(s.stage.member_bytes());
    s.hold_back(move |device, op| {
        let at_the_ends = |offset: u64| offset < 2 * SUPERBLOCK_BYTES || offset >= tail;
        is_member(device) && matches!(op, DeviceOp::Write { offset, .. } if at_the_ends(*offset))
    });
    s.write(0, 8);
    for _ in 0..reads {
        s.read(0, 8);
    }
    s.world.kill_landing(|_, _, _| false);
    s.set_dead(Device::Member(1), false);
    s.start();
    s.read(0, 8);
    s.end();
}

/// One of two cache devices dies, and the witness's word that it has left is durable: after a power cut that one and the
/// witness are all there is, and they must not be taken for the newest.
#[test]
fn h11_witness_keeps_its_word() {
    let mut s = Scene::new("H11", Stage::default());
    // What it has taken so far it keeps, asked or not.
    let witness = s.device(Device::Witness);
    witness.flushed(witness.flush_mark());
    s.set_dead(Device::Member(0), true);
    s.write(0, 8);
    s.flush();
    s.world.cut_power_keeping(|_, _, _| false);
    s.set_dead(Device::Member(0), false);
    s.set_dead(Device::Member(1), true);
    s.refusal();
}

/// A cache device is missing at a start: it leaves, by an epoch, before anything is acknowledged that it lacks.
#[test]
fn h11_missing_at_a_start() {
    let mut s = Scene::new("H11", Stage::default());
    s.set_dead(Device::Member(0), true);
    s.lose_power();
    s.write(0, 8);
    s.flush();
    s.world.cut_power_keeping(|_, _, _| false);
    s.set_dead(Device::Member(0), false);
    s.set_dead(Device::Member(1), true);
    s.refusal();
}

/// A cache device cannot flush what was acknowledged: it leaves before anybody is told that this is durable. Else there
/// is one durable copy, and the pool believes in two.
#[test]
fn h11_failed_flush_is_a_death() {
    let mut s = Scene::new("H11", Stage::default());
    for n in 0..8 {
        s.write(n * 8000, 8);
    }
    s.device(Device::Member(0)).fail_flushes = 1;
    s.flush();
    s.device(Device::Member(0)).fail_flushes = 0;
    s.lose_power();
    s.read_all();
    s.end();
}

/// The same with the witness away: there is no majority for it, and the flush fails rather than promise what one cache
/// device alone keeps. It would be lost when the other one comes back with the witness.
#[test]
fn h11_no_flush_without_a_majority() {
    let mut s = Scene::new("H11", Stage::default());
    for n in 0..8 {
        s.write(n * 8000, 8);
    }
    s.rest();
    s.set_dead(Device::Witness, true);
    s.device(Device::Member(0)).fail_flushes = 1;
    s.world.errors_allowed = true;
    let flush = s.world.flush(0);
    s.answer_to(flush);
    s.world.cut_power_keeping(|_, _, _| false);
    s.device(Device::Member(0)).fail_flushes = 0;
    s.set_dead(Device::Witness, false);
    s.set_dead(Device::Member(1), true);
    s.world.errors_allowed = false;
    s.start();
    s.read_all();
    s.end();
}

/// A cache device does not take a record: it leaves before the write is acknowledged. Else there is one copy, and the
/// pool believes in two.
#[test]
fn h11_failed_append_is_a_death() {
    let mut s = Scene::new("H11", Stage::default());
    s.write(8000, 8);
    s.device(Device::Member(0)).fail_writes = 1;
    s.write(0, 8);
    s.device(Device::Member(0)).fail_writes = 0;
    s.read_all();
    s.end();
}

/// One of three cache devices leaves while a record is on its way to it: the copy that is left was made under the epoch
/// before, and is one too few. It is appended again before it is acknowledged; and then that one leaves too.
#[test]
fn h11_copies_of_the_epoch_that_holds() {
    let mut s = Scene::new("H11", Stage { members: 3, ..Stage::default() });
    s.write(0, 8);
    let copies = s.copies(0);
    s.destage();
    s.set_dead(copies[0].0, true);
    // Nothing is copied again meanwhile.
    s.hold_back(|device, op| is_member(device) && matches!(op, DeviceOp::Read { .. }));
    s.write(8000, 8);
    s.set_dead(copies[1].0, true);
    s.hold_back(|_, _| false);
    let read = s.world.read(0, 8000, 8);
    assert!(s.answer_to(read));
    s.end();
}

/// Without a majority a record that was appended in vain cannot be outdated: a write past the cache would be
/// acknowledged, and the next start finds that record and lays it over.
#[test]
fn h11_no_bypass_without_a_majority() {
    let mut s = Scene::new("H11", Stage::default());
    // The region's bits are set: nothing below waits for them.
    s.write(0, PAST);
    s.write(8000, 8);
    s.flush();
    s.set_dead(Device::Witness, true);
    s.set_dead(Device::Member(0), true);
    s.world.errors_allowed = true;
    for sectors in [8, PAST] {
        let vain = s.world.write(0, 0, sectors, false);
        s.answer_to(vain);
    }
    s.world.kill_landing(|_, _, _| false);
    s.set_dead(Device::Witness, false);
    s.set_dead(Device::Member(0), false);
    s.world.errors_allowed = false;
    s.start();
    s.read(0, 8);
    s.end();
}

/// Of four cache devices the two are lost that had both copies of what was dirty, and all that was known of it but the
/// bits that say where there may be some: the volume is refused rather than served from the disk.
#[test]
fn h12_two_of_four() {
    let mut s = Scene::new("H12", Stage { members: 4, ..Stage::default() });
    s.write(0, 8);
    s.flush();
    for (device, _) in s.copies(0) {
        s.set_dead(device, true);
    }
    // They are gone for good, and somebody has said so.
    s.stage.settings.without_missing = true;
    s.lose_power();
    s.read_all();
    assert!(s.status().volumes[0].refused);
}

/// The same, one after the other, in one life: the second is lost before what the first left on one copy has been copied again. No checkpoint says what was lost.
#[test]
fn h12_one_after_the_other() {
    let mut s = Scene::new("H12", Stage { members: 4, ..Stage::default() });
    s.write(0, 8);
    s.flush();
    // Whoever copies it has to read it.
    s.hold_back(|device, op| is_member(device) && matches!(op, DeviceOp::Read { .. }));
    for (n, (device, _)) in (1..).zip(s.copies(0)) {
        s.set_dead(device, true);
        // All are told that something is dirty in another region.
        s.write(n * 100_000, 8);
    }
    s.kill();
    s.read_all();
    assert!(s.status().volumes[0].refused);
}

/// The same, while the daemon lives: it knows what was dirty, and that range alone fails. What the disk has there is older.
#[test]
fn h12_only_the_dirty_range_fails() {
    let mut s = Scene::new("H12", Stage { members: 4, ..Stage::default() });
    s.write(0, 8);
    s.flush();
    for (device, _) in s.copies(0) {
        s.set_dead(device, true);
    }
    // An append finds out that they are gone.
    s.write(8000, 8);
    s.rest();
    s.read(8000, 8);
    s.read(16_000, 8);
    s.world.errors_allowed = true;
    let lost = s.world.read(0, 0, 8);
    assert!(!s.answer_to(lost));
}

/// A plain power cut over a pool that is in use: dirty data and what was bypassed differ from the disk, as they may. Only
/// what is clean, in regions without a mark, says whether it is the same disk.
#[test]
fn h13_an_honest_pool_starts() {
    let mut s = Scene::new("H13", Stage::default());
    // What a file system's superblock sees: read, written, destaged, written again.
    s.read(8000, 8);
    s.write(0, 8);
    s.destage();
    s.write(0, 8);
    s.flush();
    s.write(100_000, PAST);
    s.read(100_000, 8);
    s.rest();
    s.world.cut_power_keeping(|device, _, _| is_member(device));
    s.start();
    assert!(s.status().volumes[0].serving);
    s.read_all();
    s.end();
}

/// The other side of it: dirty data is not put onto a disk that is another one.
#[test]
fn h13_another_disk_is_refused() {
    let mut s = Scene::new("H13", Stage::default());
    s.read(8000, 8);
    s.rest();
    s.write(0, 8);
    s.flush();
    s.world.kill_landing(|_, _, _| false);
    *s.device(DISK) = SimDevice::new(s.stage.sectors * 512, Some(1 << 49));
    s.start();
    assert!(s.status().volumes[0].refused);
}

/// A long read is at the disk, and its answer comes late. A dirty block in the middle of it is destaged and cleaned
/// meanwhile: what lies over the disk's data was chosen when the read began.
#[test]
fn h14_overlay_chosen_at_issue() {
    let mut s = Scene::new("H14", Stage::default());
    s.write(504, 8);
    s.hold_answers(|device, op| device == DISK && matches!(op, DeviceOp::Read { .. }));
    s.world.read(0, 0, PAST as u32);
    s.until_held();
    s.destage();
    s.let_go();
    s.answered();
    s.end();
}

/// A read of so many sectors is at a cache device; what it is to fetch is replaced meanwhile, and all that is free is
/// written over. The place that is being read is not.
fn replaced_under_a_read(sectors: u64) {
    let mut s = Scene::new("H14", Stage { segments: 8, ..Stage::default() });
    s.write(0, sectors);
    s.hold_back(|device, op| is_member(device) && matches!(op, DeviceOp::Read { .. }));
    let read = s.world.read(0, 0, sectors as u32);
    s.until_held();
    s.hold_back(|_, _| false);
    for n in 0..20 {
        for _ in 0..40 {
            let write = s.world.write(0, n % 2 * 8000, sectors, false);
            assert!(s.answer_to(write));
        }
        s.checkpoint();
    }
    s.let_go();
    assert!(s.answer_to(read));
    s.end();
}

/// A hit in one block, as most are: see [`replaced_under_a_read`].
#[test]
fn h14_place_of_a_hit_kept() {
    replaced_under_a_read(8);
}

/// A read of more than one block, which takes another way to the cache devices.
#[test]
fn h14_places_of_a_read_kept() {
    replaced_under_a_read(16);
}

/// A write past the cache begins and ends between a fill's read of the disk and its answer: the fill is dropped.
#[test]
fn h15_written_within_the_fill() {
    let mut s = Scene::new("H15", Stage::default());
    s.hold_answers(|device, op| device == DISK && matches!(op, DeviceOp::Read { .. }));
    s.world.read(0, 0, 8);
    s.until_held();
    let write = s.world.write(0, 0, PAST, false);
    assert!(s.answer_to(write));
    s.let_go();
    s.answered();
    s.rest();
    s.read(0, 8);
    s.end();
}

/// A write past the cache comes while the fill's record is being appended, and not yet in the map: the record is never
/// named.
#[test]
fn h15_written_under_the_record() {
    let mut s = Scene::new("H15", Stage::default());
    // The region's intent bit is set: the write below needs no cache device.
    s.write(100_000, PAST);
    s.hold_back(appended);
    s.read(0, 8);
    s.until_held();
    s.write(0, PAST);
    s.let_go();
    s.rest();
    s.read(0, 8);
    s.end();
}

/// A read misses while a write past the cache is on its way to the disk: what it reads there may be older, and is not
/// admitted.
#[test]
fn h15_fill_beside_a_write() {
    let mut s = Scene::new("H15", Stage::default());
    s.hold_back(written);
    s.world.write(0, 0, PAST, false);
    s.until_held();
    let read = s.world.read(0, 504, 8);
    assert!(s.answer_to(read));
    s.pass(5 * MOMENT);
    s.let_go();
    s.answered();
    s.read(504, 8);
    s.end();
}

/// A write is written through, and another one to the same sectors waits behind it: the first one's data is outdated
/// before it is admitted.
#[test]
fn h15_written_through_beside_another() {
    let mut s = Scene::new("H15", Stage { mode: Mode::WriteThrough, ..Stage::default() });
    crowd(&mut s, 36);
    s.world.write(0, FAR, 8, false);
    // Too long to be admitted itself, so that the first one's would stay.
    s.world.write(0, FAR, PAST, false);
    s.answered();
    s.rest();
    // The region's bit is cleared: what is clean there counts after a crash.
    s.checkpoint();
    s.kill();
    s.end();
}

/// A discard is absorbed, and its tombstone is cleaned: not before the disk itself has zeroes there.
#[test]
fn h16_tombstone_until_the_disk_has_it() {
    let mut s = Scene::new("H16", Stage::default());
    s.discard(0, 8);
    s.destage();
    assert_eq!(s.dirty(), 0);
    s.read(0, 8);
    s.end();
}

/// A discard too large to be absorbed lies over flushed dirty data. Dropped from the map alone, that would come back.
#[test]
fn h16_discarded_past_the_cache() {
    let mut s = Scene::new("H16", Stage::default());
    s.write(0, 8);
    s.flush();
    s.discard(0, 4096);
    s.kill();
    s.read(0, 8);
    s.end();
}

/// A discard rounds inwards: of a block that it only touches nothing is lost.
#[test]
fn h16_rounded_inwards() {
    let mut s = Scene::new("H16", Stage::default());
    s.write(0, 24);
    s.discard(4, 16);
    s.read(0, 24);
    s.end();
}

/// Zeroes of 2 MiB take no space in the log, but would be 512 dirty blocks, and those of a terabyte more than the map has
/// room for: they go to the disk.
#[test]
fn h16_many_zeroes_are_not_absorbed() {
    let mut s = Scene::new("H16", Stage::default());
    s.write_zeroes(0, 4096);
    s.discard(8192, 4096);
    assert_eq!(s.dirty(), 0);
    s.read(2048, 8);
    s.end();
}

/// A checkpoint lets go of one copy of segments that are wholly clean, and of no other: the other copy's device dies.
#[test]
fn h18_twin_of_dirty_data_stays() {
    let mut s = Scene::new("H18", Stage::default());
    for n in 0..20 {
        s.write(n * 1000, 8);
    }
    s.checkpoint();
    let (device, _) = s.copies(0)[0];
    s.set_dead(device, true);
    s.read(0, 8);
    s.end();
}

/// FLUSH makes durable what went past the cache too.
#[test]
fn h19_flush_reaches_the_disk() {
    let mut s = Scene::new("H19", Stage::default());
    // What a start owes is paid.
    s.flush();
    s.write(0, PAST);
    s.flush();
    s.lose_power();
    s.read_all();
    s.end();
}

/// FLUSH costs one flush of each cache device, and none of a disk that has nothing which was acknowledged.
#[test]
fn h19_one_flush_of_each_cache_device() {
    let mut s = Scene::new("H19", Stage::default());
    s.flush();
    s.rest();
    s.write(0, 8);
    let count = |s: &mut Scene| [Device::Member(0), Device::Member(1), DISK].map(|d| s.device(d).flushes);
    let before = count(&mut s);
    s.flush();
    assert_eq!(count(&mut s), [before[0] + 1, before[1] + 1, before[2]]);
    s.lose_power();
    s.read_all();
    s.end();
}

/// What a sweep has put into the disk's cache is still in the log: a client's FLUSH does not wait for it.
#[test]
fn h19_no_flush_for_the_sweeps_sake() {
    let mut s = Scene::new("H19", Stage::default());
    s.flush();
    s.write(0, 8);
    s.write(8000, 8);
    s.rest();
    // One of the sweep's two writes is done, and its own flush comes after both.
    s.hold_back(|device, op| device == DISK && matches!(op, DeviceOp::Write { offset, .. } if *offset > 0));
    let sweep = s.world.command(Command::Destage { volume: 0 });
    s.until_held();
    s.pass(5 * MOMENT);
    let before = s.device(DISK).flushes;
    s.flush();
    assert_eq!(s.device(DISK).flushes, before);
    s.let_go();
    s.ends_well(sweep);
    s.end();
}

/// One of three cache devices dies: what it had with another is on one copy, and is copied again before that one dies too.
#[test]
fn h20_copied_again() {
    let mut s = Scene::new("H20", Stage { members: 3, ..Stage::default() });
    s.write(0, 8);
    let copies = s.copies(0);
    for (n, (device, _)) in (1..).zip(copies) {
        s.set_dead(device, true);
        // An append finds out that it is gone.
        s.write(n * 8000, 8);
        s.pass(1000 * MOMENT);
    }
    s.read(0, 8);
    s.end();
}

/// One of two dies: nothing can be copied, so what is dirty is destaged at once, before the other one dies too.
#[test]
fn h20_destaged_at_once() {
    let mut s = Scene::new("H20", Stage::default());
    s.write(0, 8);
    s.set_dead(Device::Member(0), true);
    s.write(8000, 8);
    s.pass(1000 * MOMENT);
    s.set_dead(Device::Member(1), true);
    s.write(16_000, 8);
    s.read(0, 8);
}
