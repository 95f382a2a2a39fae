//! What is brought before it is asked for: a disk that answers nothing, and a cache in which there is no room.

use headpond_engine::{Command, CommandError, CommandId, Device, DeviceOp};
use headpond_sim::scene::{Scene, Stage};
use std::cell::Cell;
use std::rc::Rc;

const DISK: Device = Device::Backing(0);
const MILLISECOND: u64 = 1_000_000;

/// A preload of a disk that answers none of its reads.
fn hanging(story: &str) -> (Scene, u64) {
    let mut s = Scene::new(story, Stage::default());
    s.hold_back(|device, op| device == DISK && matches!(op, DeviceOp::Read { .. }));
    let preload = s.world.command(Command::Preload { volume: 0, ranges: std::iter::once(0..1024).collect() });
    s.until_held();
    s.pass(10 * MILLISECOND);
    (s, preload)
}

/// Ends a command by its owner's wish, within a second.
fn cancel(s: &mut Scene, command: u64) {
    s.world.command(Command::Cancel(CommandId(command)));
    s.pass(1000 * MILLISECOND);
    assert_eq!(s.world.command_result(command), Some(Err(CommandError::Cancelled)), "{}", s.story());
}

/// A disk that is there and answers nothing kept its preload waiting for as long as it did, whoever gave it up, and another was refused since
/// this one was under way. Found by reading.
#[test]
fn a_preload_from_a_disk_that_answers_nothing_can_be_given_up() {
    let (mut s, preload) = hanging("a preload of a disk that answers nothing");
    cancel(&mut s, preload);
    assert!(!s.status().volumes[0].preload.running, "{}", s.story());
    s.write(0, 8);
    s.let_go();
    s.rest();
    // What was asked of the disk has come meanwhile, but what was written.
    assert!(s.status().volumes[0].cached_blocks > 1, "{}", s.story());
    s.obey(Command::Preload { volume: 0, ranges: std::iter::once(0..1024).collect() });
    assert_eq!(s.status().volumes[0].cached_blocks, 128, "{}", s.story());
    s.read_all();
    s.lose_power();
    s.read_all();
    s.end();
}

/// A detach waited for what a preload had asked of the disk after it had ceased to serve the volume, and could not be given up any more: no
/// client had an answer, and there was no way back. Found by reading.
#[test]
fn a_detach_beside_a_read_that_is_never_answered_can_be_given_up() {
    let (mut s, preload) = hanging("a detach beside a read that is never answered");
    cancel(&mut s, preload);
    let detach = s.world.command(Command::Detach { volume: 0, give_up_lost: false });
    s.pass(1000 * MILLISECOND);
    assert_eq!(s.world.command_result(detach), None, "{}", s.story());
    cancel(&mut s, detach);
    assert!(s.status().volumes[0].serving, "{}", s.story());
    s.write(8, 8);
    s.let_go();
    s.read(0, 16);
    s.obey(Command::Detach { volume: 0, give_up_lost: false });
    s.world.check_disk(0);
    s.end();
}

/// All that is in the cache is dirty, and its disk takes nothing. What was to be preloaded was read from the disk, found no room, and was read
/// again, twenty-five times for each batch. Found by reading.
#[test]
fn what_has_no_room_is_not_read_to_be_preloaded() {
    let mut stage = Stage::default();
    stage.settings.dirty_percent = 100;
    let mut s = Scene::new("a preload into a full cache", stage);
    s.hold_back(|device, op| device == DISK && matches!(op, DeviceOp::Write { .. }));
    for n in 0..1000 {
        assert!(n < 999, "there is no end to the room for dirty data; {}", s.story());
        let request = s.world.write(0, 60_000 + n * 7919 % 3001 * 48, 8, false);
        s.pass(500 * MILLISECOND);
        if s.world.waits(request) {
            break;
        }
    }
    let read: Rc<Cell<u64>> = Rc::default();
    let count = read.clone();
    s.let_go();
    s.rest();
    s.hold_back(move |device, op| {
        if let (DISK, DeviceOp::Read { len, .. }) = (device, op) {
            count.set(count.get() + u64::from(*len) / 4096);
        }
        false
    });
    s.obey(Command::Preload { volume: 0, ranges: std::iter::once(0..4096).collect() });
    let preload = s.status().volumes[0].preload;
    assert!(preload.left_out > 256, "there was room: {preload:?}; {}", s.story());
    assert!(read.get() <= 512, "{} blocks were read for 512, {preload:?}; {}", read.get(), s.story());
    s.read_all();
    s.end();
}

/// What a preload brings somebody waits for. Beside a client whose misses are gathered, for a quarter of a second, what did not fill a record was gathered with
/// them, part by part: a preload of a disk that is read came to some megabytes in a second, and what is carried over from a segment to be let go as well. Found by
/// reading.
#[test]
fn what_is_preloaded_does_not_wait_with_what_is_gathered() {
    let mut stage = Stage::default();
    stage.settings.gather_ns = 250 * MILLISECOND;
    let mut s = Scene::new("a preload beside misses", stage);
    let slots = s.stage.layout().slot(0)..s.stage.layout().superblock(2);
    s.hold_back(
        move |device, op| matches!((device, op), (Device::Member(_), DeviceOp::Write { offset, .. }) if slots.contains(offset)),
    );
    // Somewhat more than records that may be in flight.
    let preload = s.world.command(Command::Preload { volume: 0, ranges: std::iter::once(0..1000).collect() });
    s.until_held();
    s.pass(10 * MILLISECOND);
    s.world.read(0, 100_000, 8);
    s.pass(20 * MILLISECOND);
    let since = s.world.now;
    s.let_go();
    s.ends_well(preload);
    let took = (s.world.now - since) / MILLISECOND;
    assert!(took < 50, "{}: it took {took} ms", s.story());
    s.read_all();
    s.end();
}
