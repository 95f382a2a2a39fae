//! Volumes without a backing device: what they hold is in the log alone, in space that is theirs.

use super::steps::appended;
use headpond_engine::{Command, Device, DeviceOp, Mark, Settings};
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

/// A write waited for room that a compaction was about to win when the daemon was told to end. Housekeeping rested from then on, so that the
/// client had an error after half a minute, and the daemon ended as late. Found by `headpond sim`, as soon as it told daemons to end under load.
#[test]
fn a_stop_waits_for_the_room_that_a_write_waits_for() {
    let mut s = scene("a stop, and a write without room", 2 * SEGMENT);
    s.rest();
    // Far more than there is room for at once, and nobody has found that yet.
    s.hold_back(|device, op| matches!((device, op), (Device::Member(_), DeviceOp::Write { .. })));
    (0..1500).for_each(|n| _ = s.world.write(DISKLESS, n * 37 % 249, 8, false));
    s.until_held();
    let (stop, since) = (s.world.command(Command::Stop), s.world.now);
    s.let_go();
    s.ends_well(stop);
    assert!(
        s.world.engine.as_ref().is_some_and(|e| e.marks().has(Mark::DisklessWaits)),
        "{}: no write has waited for room",
        s.story()
    );
    assert_eq!(s.world.outstanding(), 0, "{}", s.story());
    let took = (s.world.now - since) / 1_000_000;
    assert!(took < 20_000, "the stop took {took} ms; {}", s.story());
    s.lose_power();
    s.read_all();
    s.end();
}

fn places(s: &Scene, sector: u64) -> Vec<(Device, u64)> {
    let places = s.world.engine.as_ref().and_then(|e| e.locate(DISKLESS, sector)).unwrap_or_default();
    places.into_iter().map(|(member, byte)| (Device::Member(member), byte)).collect()
}

/// One block can be read on no copy, and its segment is the emptiest as soon as all else has moved out of it. It was the next to be moved at each look, in vain, and no other
/// was: room that was set aside ran out, and each write failed after half a minute. Found by reading.
#[test]
fn a_block_that_cannot_be_read_does_not_keep_the_others_from_room() {
    let mut s = scene("room beside a damaged block", 2 * SEGMENT);
    (0..SEGMENT / 4).for_each(|n| write(&mut s, n * 8, 8));
    flush(&mut s);
    for (device, at) in places(&s, 0) {
        s.rot(device, at..at + 512);
    }
    for n in 0..60 * SEGMENT {
        // Some are written again and again, and some seldom: in each segment something stays.
        let chance = (n + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let block = 1 + (u64::from(chance.trailing_zeros()) * 4 + (chance >> 62)) % (SEGMENT / 4 - 1);
        let request = s.world.write(DISKLESS, block * 8, 8, false);
        assert!(s.answer_to(request), "{}: write {n} finds no room", s.story());
        let took = s.world.now;
        assert!(took < 300 * 1_000_000_000, "{}: {n} writes took {} s", s.story(), took / 1_000_000_000);
    }
    // It is damaged until it is written again.
    write(&mut s, 0, 8);
    flush(&mut s);
    s.read_all();
    s.lose_power();
    s.read_all();
    s.end();
}

/// One of three cache devices dies, and the copy that is left of one block cannot be read. What lacks a copy was copied segment by segment, up to the one with that block, and
/// no further: the next device to die took acknowledged data with it. Found by reading.
#[test]
fn a_block_that_cannot_be_read_does_not_keep_the_others_from_their_copies() {
    let mut s = Scene::new("copies beside a damaged block", Stage { members: 3, ..Stage::default() }).with_diskless(6 * SEGMENT);
    (0..6 * SEGMENT / 8).for_each(|n| write(&mut s, n * 8, 8));
    flush(&mut s);
    let [(first, _), (second, at)] = places(&s, 0)[..] else { panic!("two copies") };
    s.rot(second, at..at + 512);
    s.set_dead(first, true);
    for n in 1..20 {
        write(&mut s, n * 32, 8);
        s.pass(1_000_000_000);
    }
    assert!(s.status().lacking_copies <= 1, "{} lack a copy; {}", s.status().lacking_copies, s.story());
    // It is damaged until it is written again.
    write(&mut s, 0, 8);
    s.pass(20_000_000_000);
    s.checkpoint();
    s.set_dead(second, true);
    s.read_all();
}

/// The same where two segments have such a block, and a device takes seconds to say that it cannot read it. When the second had turned out unreadable the
/// first's ten seconds were over, and so they took turns; those behind them had none. Found by reading.
#[test]
fn blocks_that_take_long_to_turn_out_unreadable_do_not_keep_the_others_from_their_copies() {
    let stage = Stage { members: 3, ..Stage::default() };
    let mut s = Scene::new("copies beside slow damaged blocks", stage).with_diskless(6 * SEGMENT);
    (0..6 * SEGMENT / 8).for_each(|n| write(&mut s, n * 8, 8));
    flush(&mut s);
    let [(first, _), (second, at)] = places(&s, 0)[..] else { panic!("two copies") };
    // Another one with its copies on the same devices, in another segment.
    let is_beside = |s: &Scene, sector: u64| {
        places(s, sector).iter().map(|c| c.0).collect::<Vec<_>>() == [first, second]
            && places(s, sector)[1].1.abs_diff(at) > s.stage.segment_bytes
    };
    let other = (1..6 * SEGMENT / 8).map(|n| n * 8).find(|sector| is_beside(&s, *sector)).expect("a segment beside it");
    let bad = [at, places(&s, other)[1].1];
    bad.iter().for_each(|at| s.rot(second, *at..at + 512));
    s.set_dead(first, true);
    write(&mut s, 8, 8);
    for _ in 0..20 {
        s.hold_answers(move |device, op| {
            let is_bad = |offset: u64, len: u32| bad.iter().any(|at| (offset..offset + u64::from(len)).contains(at));
            device == second && matches!(op, DeviceOp::Read { offset, len, .. } if is_bad(*offset, *len))
        });
        s.pass(6_000_000_000);
        s.let_go();
    }
    assert!(s.status().lacking_copies <= 2, "{} lack a copy; {}", s.status().lacking_copies, s.story());
}

/// A journal is written over and over, beside a large map of what is cached. Each time that an eighth of what is set aside for it waited for a
/// checkpoint there was one, with an image of all that is cached, though nobody lacked that room. Found by reading.
#[test]
fn images_for_a_journal_take_little_of_what_cache_devices_are_written() {
    let usual = Stage::default();
    let settings = Settings { checkpoint_bytes: 1 << 20, ..usual.settings.clone() };
    let mut s = Scene::new("images for a journal", Stage { segments: 512, settings, ..usual }).with_diskless(4 * SEGMENT);
    (0..2048u64).for_each(|n| s.write(n * 7919 % 8192 * 32, 8));
    s.destage();
    s.checkpoint();
    let images = |s: &Scene| s.status().stats.checkpoint_bytes;
    let written = |s: &Scene| s.status().members.iter().map(|m| m.written).sum::<u64>();
    let before = (images(&s), written(&s));
    for n in 0..1500 {
        let request = s.world.write(DISKLESS, n * 7 % 60 * 8, 8, false);
        assert!(s.answer_to(request), "{}", s.story());
        if n % 16 == 15 {
            s.pass(50_000_000);
        }
    }
    let (images, written) = (images(&s) - before.0, written(&s) - before.1);
    assert!(written > 12 << 20 && images * 8 <= written, "{} of {} KiB were images", images >> 10, written >> 10);
    s.world.flush(DISKLESS);
    s.answered();
    s.lose_power();
    s.read_all();
    s.end();
}
