//! Volumes without a backing device: what they hold is in the log alone, in space that is theirs.

use super::steps::appended;
use headpond_engine::Device;
use headpond_sim::scene::{DISKLESS, Scene, Stage};
use std::cell::Cell;
use std::rc::Rc;

/// Sectors of a segment.
const SEGMENT: u64 = (64 << 10) / 512;

fn scene(story: &str, sectors: u64) -> Scene {
    Scene::new(story, Stage { segments: 12, ..Stage::default() }).with_diskless(sectors)
}

fn write(s: &mut Scene, sector: u64, sectors: u64) {
    s.world.write(DISKLESS, sector, sectors, false);
    s.answered();
}

fn flush(s: &mut Scene) {
    s.world.flush(DISKLESS);
    s.answered();
}

/// The other volume has as much dirty data as it may, none of which its disk takes.
fn others_are_full(s: &mut Scene) {
    s.device(Device::Backing(0)).fail_writes = 1;
    s.world.errors_allowed = true;
    // Far apart, so that they are no stream.
    for n in 0..400 {
        let request = s.world.write(0, n * 7919 % 400 * 640, 8, false);
        if !s.answer_to(request) {
            s.world.errors_allowed = false;
            return;
        }
    }
    panic!("{}: there is no end to the room for dirty data", s.story());
}

/// There is no disk that could be there or not.
#[test]
fn it_is_served_after_a_start() {
    let mut s = scene("a volume without a disk is served after a start", SEGMENT);
    write(&mut s, 3, 20);
    flush(&mut s);
    s.lose_power();
    assert!(s.status().volumes.iter().all(|v| v.serving));
    s.read_all();
    write(&mut s, 9, 2);
    s.kill();
    s.read_all();
    s.end();
}

/// Zeroes are nothing: there is no disk that has them. That there is nothing any more has to be said in the log.
#[test]
fn a_discard_is_in_the_log() {
    let mut s = scene("a discard is in the log", SEGMENT);
    write(&mut s, 0, 24);
    flush(&mut s);
    s.world.discard(DISKLESS, 0, 16, 0);
    s.world.write_zeroes(DISKLESS, 19, 2, false);
    s.answered();
    flush(&mut s);
    s.lose_power();
    s.read_all();
    s.end();
}

/// A write is on its way into the log when its blocks are discarded. If it is named later, it is what is read from then on; a
/// mark in the log with a newer version would take it back at the next start.
#[test]
fn a_discard_waits_for_what_is_being_appended() {
    let mut s = scene("a discard waits for what is being appended", SEGMENT);
    write(&mut s, 0, 8);
    let holds = Rc::new(Cell::new(true));
    let (first, append) = (holds.clone(), appended(&s.stage));
    s.hold_back(move |device, op| first.get() && append(device, op));
    s.world.write(DISKLESS, 0, 8, false);
    s.until_held();
    holds.set(false);
    s.world.discard(DISKLESS, 0, 8, 0);
    s.pass(20_000_000);
    s.let_go();
    s.answered();
    s.read_all();
    flush(&mut s);
    let before = s.world.dirty(DISKLESS);
    s.lose_power();
    assert_eq!(s.world.dirty(DISKLESS), before, "{}", s.story());
    s.read_all();
    s.end();
}

/// What waits for its disk takes no room that is set aside: there is no other place for a journal than the cache devices.
#[test]
fn others_leave_the_room_that_is_set_aside() {
    let mut s = scene("others leave the room that is set aside", 5 * SEGMENT - 8);
    others_are_full(&mut s);
    for block in 0..150 {
        write(&mut s, block % 75 * 8, 8);
    }
    s.device(Device::Backing(0)).fail_writes = 0;
    s.kill();
    s.read_all();
    s.end();
}

/// A few blocks of each segment stay, and the rest is written over again and again: room comes from moving what stays together.
#[test]
fn what_is_out_of_date_makes_room() {
    let mut s = scene("what is out of date makes room", 5 * SEGMENT - 8);
    others_are_full(&mut s);
    for cold in 0..77 {
        write(&mut s, cold * 8, 8);
        if cold % 4 == 3 {
            for _ in 0..10 {
                write(&mut s, 77 * 8, 8);
            }
        }
    }
    s.device(Device::Backing(0)).fail_writes = 0;
    s.kill();
    s.read_all();
    s.end();
}
