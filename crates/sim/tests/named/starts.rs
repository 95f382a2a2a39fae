//! Reads that fail at a start: on all cache devices at once, where a controller is reset, or on one, where a path is lost and found later.

use super::steps::superblock_in;
use headpond_engine::format::{Mode, Record};
use headpond_engine::{Buf, Command, CommandError, Device, DeviceOp, StartError};
use headpond_sim::SimBuf;
use headpond_sim::scene::{Scene, Stage};
use std::cell::Cell;
use std::ops::Range;
use std::rc::Rc;

const FIRST: Device = Device::Member(0);
const SECOND: u64 = 1_000_000_000;
const DISK: Device = Device::Backing(0);
const SECOND_ONE: Device = Device::Member(1);

/// Less than a start has patience for: it has for 5 s.
const MOMENT: u64 = 100_000_000;

/// What was acknowledged is on two cache devices. The reads of a start that `which` says yes to fail on both, and all reads after them,
/// for so long; the start, which has not ended then.
fn without_reads(s: &mut Scene, which: impl Fn(u64, u32) -> bool + 'static, time: u64) -> u64 {
    s.checkpoint();
    for n in 0..3 {
        s.write(n * 8000, 8);
    }
    s.flush();
    s.world.cut_power_keeping(|_, _, _| false);
    blind_start(s, which, time)
}

/// A start under which reads of both cache devices fail for so long, from the first of `which` on.
fn blind_start(s: &mut Scene, which: impl Fn(u64, u32) -> bool + 'static, time: u64) -> u64 {
    s.hold_back(move |device, op: &DeviceOp<SimBuf>| {
        matches!((device, op), (Device::Member(_), DeviceOp::Read { offset, len, .. }) if which(*offset, *len))
    });
    let start = s.begin_start();
    s.until_held();
    set_failing(s, true);
    s.let_go();
    s.hold_back(|_, _| false);
    s.pass(time);
    set_failing(s, false);
    start
}

fn set_failing(s: &mut Scene, fail: bool) {
    for member in (0..2).map(Device::Member) {
        s.device(member).fail_reads = u64::from(fail);
    }
}

fn slots(stage: &Stage) -> Range<u64> {
    stage.layout().slot(0)..stage.layout().superblock(2)
}

/// The headers of segments, of which there is no list: who cannot be read would be taken for free.
#[test]
fn headers_that_cannot_be_read_for_a_moment() {
    let mut s = Scene::new("headers for a moment", Stage::default());
    let slots = slots(&s.stage);
    let start = without_reads(&mut s, move |offset, len| slots.contains(&offset) && len == 512, MOMENT);
    s.ends_well(start);
    s.read_all();
    s.end();
}

/// The log, of which the end is not known: what cannot be read would be taken for behind it.
#[test]
fn a_log_that_cannot_be_read_for_a_moment() {
    let mut s = Scene::new("the log for a moment", Stage::default());
    let slots = slots(&s.stage);
    let start = without_reads(&mut s, move |offset, len| slots.contains(&offset) && len > 512, MOMENT);
    s.ends_well(start);
    s.read_all();
    s.end();
}

/// A sector of the log is bad on one cache device. What lies around it is read in ever shorter pieces. It was read unit by unit, of which
/// a segment has thousands: behind a cable that lost a quarter of all reads a start took 50 s (`cargo xtask vm --only flaky-ssds`).
#[test]
fn a_bad_sector_in_the_log_costs_a_start_a_few_dozen_reads() {
    let stage = Stage { segments: 16, segment_bytes: 1 << 20, ..Stage::default() };
    let mut s = Scene::new("a bad sector in the log", stage);
    s.write(0, 8);
    s.write(8000, 8);
    s.flush();
    let (device, sector) = s.copies(0)[0];
    s.kill();
    unreadable(&mut s, device, (sector + 300) * 512..(sector + 301) * 512);
    let before = s.world.operations;
    s.start();
    // Of which fifty ask again for the sector itself.
    let took = s.world.operations - before;
    assert!(took < 400, "{took}: {}", s.story());
    s.read_all();
    s.end();
}

/// It does not get better in 10 s: the start is refused, and the next one has everything.
#[test]
fn a_log_that_cannot_be_read_refuses_the_start() {
    let mut s = Scene::new("the log for long", Stage::default());
    let slots = slots(&s.stage);
    let start = without_reads(&mut s, move |offset, len| slots.contains(&offset) && len > 512, 100 * MOMENT);
    assert_eq!(s.end_of(start), Err(CommandError::Start(StartError::LogUnreadable { members: vec![0, 1] })));
    s.start();
    s.read_all();
    s.end();
}

/// The same of headers: no segment is known that may not be there.
#[test]
fn headers_that_cannot_be_read_refuse_the_start() {
    let mut s = Scene::new("headers for long", Stage::default());
    let slots = slots(&s.stage);
    let start = without_reads(&mut s, move |offset, len| slots.contains(&offset) && len == 512, 100 * MOMENT);
    assert_eq!(s.end_of(start), Err(CommandError::Start(StartError::LogUnreadable { members: vec![0, 1] })));
    s.start();
    s.read_all();
    s.end();
}

/// One copy of everything, and the path to both cache devices is lost for seven seconds. They were asked one after the other: the first was given up, the second one
/// came back, and what the first alone had was written over with zeroes. Found by reading.
#[test]
fn a_path_that_was_lost_to_all_gives_up_nothing_of_one() {
    // So many fill a segment, each time: the next one, on the other device, is opened behind the checkpoint.
    for before in [0, 14, 28] {
        let mut s = Scene::new("a path lost to all, and one copy", Stage { copies: 1, ..Stage::default() });
        (0..before).for_each(|n| s.write(50_000 + n * 37 % 499 * 64, 8));
        let slots = slots(&s.stage);
        let start = without_reads(&mut s, move |offset, len| slots.contains(&offset) && len == 512, 75 * MOMENT);
        match s.end_of(start) {
            Ok(()) => {}
            Err(why) => {
                assert_eq!(why, CommandError::Start(StartError::LogUnreadable { members: vec![0, 1] }), "{}", s.story());
                s.start();
            }
        }
        s.read_all();
        s.end();
    }
}

/// The image of the map: a page of it that is nowhere takes all with it that it speaks of.
#[test]
fn an_image_that_cannot_be_read_for_a_moment() {
    let mut s = Scene::new("the image for a moment", Stage::default());
    let layout = s.stage.layout();
    s.write(0, 8);
    s.checkpoint();
    s.world.kill();
    for member in (0..2).map(Device::Member) {
        unreadable(&mut s, member, layout.checkpoint(0)..layout.slot(0));
    }
    let start = s.begin_start();
    s.pass(30 * MOMENT);
    readable(&mut s);
    s.ends_well(start);
    s.read_all();
    s.end();
}

/// A device's sectors in a range of bytes cannot be read until they are written, or [`readable`] is called.
fn unreadable(s: &mut Scene, device: Device, bytes: Range<u64>) {
    s.device(device).bad.extend(bytes.step_by(512).map(|byte| (byte / 512, ())));
}

fn readable(s: &mut Scene) {
    (0..2).for_each(|member| s.device(Device::Member(member)).bad.clear());
}

/// No checkpoint is written from now on: it would end what a start finds in the log.
fn hold_images_back(s: &mut Scene) {
    let layout = s.stage.layout();
    hold_writes_back(s, layout.checkpoint(0)..layout.slot(0));
}

fn hold_writes_back(s: &mut Scene, bytes: Range<u64>) {
    s.hold_back(move |device, op: &DeviceOp<SimBuf>| {
        matches!((device, op), (Device::Member(_), DeviceOp::Write { offset, .. }) if bytes.contains(offset))
    });
}

/// A write that nobody acknowledges: its record comes to be on the first cache device alone, and the daemon dies.
fn write_on_the_first_alone(s: &mut Scene, sector: u64) {
    let slots = slots(&s.stage);
    hold_writes_back(s, slots);
    s.world.write(0, sector, 8, false);
    s.until("both appends are held back", |w| w.held_back() == 2);
    s.world.kill_landing(|device, _, _| device == Device::Member(0));
}

/// The first cache device cannot be read where that record is at the first start after it, and can at the second. What clients read
/// in between stays as it is.
fn two_starts_agree(mut s: Scene, unread: impl Iterator<Item = Range<u64>>) {
    unread.for_each(|bytes| unreadable(&mut s, Device::Member(0), bytes));
    hold_images_back(&mut s);
    s.start();
    // Nothing takes its place either.
    let layout = s.stage.layout();
    hold_writes_back(&mut s, layout.checkpoint(0)..layout.superblock(2));
    s.read_all();
    s.world.kill_landing(|_, _, _| false);
    readable(&mut s);
    s.start();
    s.read_all();
    s.end();
}

/// Seed 1079 of the small geometry with `flaky`. The header of a segment could not be read, and the other cache device never got its own: the
/// segment was not there, and its slots were given away. The next start read the header.
#[test]
fn a_header_that_could_not_be_read_does_not_come_back() {
    let mut s = Scene::new("a header comes back", Stage::default());
    s.write(64, 8);
    s.world.kill();
    s.start();
    s.rest();
    write_on_the_first_alone(&mut s, 0);
    let layout = s.stage.layout();
    two_starts_agree(s, (0..layout.slots()).map(|n| layout.slot(n)..layout.slot(n) + 512));
}

/// The same of a record in a segment that both have.
#[test]
fn a_record_that_could_not_be_read_does_not_come_back() {
    let mut s = Scene::new("a record comes back", Stage::default());
    s.write(64, 8);
    s.rest();
    let behind = s.copies(64)[0].1 + 8;
    let segment = (behind * 512 - s.stage.layout().slot(0)) / s.stage.segment_bytes;
    let end = s.stage.layout().slot(segment as u32 + 1);
    write_on_the_first_alone(&mut s, 0);
    two_starts_agree(s, std::iter::once(behind * 512..end));
}

/// What cannot be read cannot be written anew either: the cache device leaves, as long as there is another one.
#[test]
fn who_does_not_take_anew_what_it_could_not_read_leaves() {
    for members in 1..=2 {
        let mut s = Scene::new("not anew", Stage { members, copies: members, ..Stage::default() });
        let header = s.stage.layout().slot(9) / 512;
        s.write(0, 8);
        s.world.kill();
        s.device(Device::Member(0)).dead_sectors.insert(header, ());
        s.start();
        let in_sync = s.status().members[0].in_sync;
        assert_eq!(in_sync, members == 1, "of {members}");
        s.device(Device::Member(0)).dead_sectors.clear();
        s.read_all();
        s.end();
    }
}

/// Seed 1220 of the small geometry with `blind-starts`. No copy of an intent page could be read, so that all of its bits counted as set, and
/// what was written then had a smaller number than what could not be read. The next start could read it: a region had no bit, in which the
/// disk had been written since, and a clean copy of older data was believed.
#[test]
fn an_intent_page_that_could_not_be_read_does_not_come_back() {
    let mut s = Scene::new("an intent page comes back", Stage::default());
    let layout = s.stage.layout();
    // Without it there would be nothing in the next image, and no page of it to hold back.
    s.write(8000, 8);
    for n in 0..32 {
        s.read(n * 37 % 64 * 16, 8);
    }
    s.rest();
    assert!(s.status().volumes[0].cached_blocks > 0);
    s.checkpoint();
    s.world.kill();
    for member in (0..2).map(Device::Member) {
        unreadable(&mut s, member, layout.intent(0, 0)..layout.checkpoint(0));
    }
    hold_images_back(&mut s);
    s.start();
    s.write(0, 1024);
    s.flush();
    // The page is not written for a second time, over what could not be read.
    s.world.kill_landing(|_, _, _| false);
    readable(&mut s);
    s.start();
    s.read_all();
    s.end();
}

/// Seed 35946666967 of the small geometry, where clients lend their memory. A daemon died while it cleared a region's bit: one cache device had the page, and
/// could not read it at the next start, which believed the other one, whose page had the bit, and changed nothing, as that was on both. It wrote to the disk without
/// setting the bit. The start after that could read the page: clean data of which the disk had nothing durably was believed.
#[test]
fn an_intent_page_that_one_device_could_not_read_does_not_come_back() {
    let mut s = Scene::new("an intent page of one device comes back", Stage { mode: Mode::WriteAround, ..Stage::default() });
    let layout = s.stage.layout();
    s.write(0, 8);
    s.flush();
    let pages = layout.intent(0, 0)..layout.checkpoint(0);
    let held = pages.clone();
    s.hold_back(move |_, op| matches!(op, DeviceOp::Write { offset, .. } if held.contains(offset)));
    (0..2).for_each(|_| _ = s.world.command(Command::Checkpoint));
    s.until_held();
    let flying = s.world.in_flight().into_iter().filter(|(device, ..)| *device == Device::Member(1));
    let cleared: Vec<u64> = flying.map(|(_, sector, _)| sector * 512).filter(|at| pages.contains(at)).collect();
    assert_eq!(cleared.len(), 1, "{}", s.story());
    s.world.kill_landing(|device, _, _| device == Device::Member(1));
    unreadable(&mut s, Device::Member(1), cleared[0]..cleared[0] + 4096);
    hold_images_back(&mut s);
    s.start();
    s.write(8, 8);
    s.read(8, 8);
    s.rest();
    assert!(s.status().volumes[0].cached_blocks > 0, "{}", s.story());
    s.world.kill_landing(|_, _, _| false);
    readable(&mut s);
    s.start();
    s.lose_power();
    s.read_all();
    s.end();
}

/// A block was written twice, and the second time it went to the disk; then the second record's data rots on the only copy that there is. The mark that says that
/// the disk has it was taken to speak of the first record, which was called clean: it was read in place of what the disk has, and where the disk was compared
/// with it the volume was refused. Found by reading.
#[test]
fn what_the_disk_has_is_not_hidden_by_an_older_record_when_the_newer_one_is_damaged() {
    let mut s = Scene::new("an older record called clean", Stage { members: 1, copies: 1, ..Stage::default() });
    s.write(0, 8);
    s.flush();
    s.write(0, 8);
    s.flush();
    let (device, at) = s.copies(0)[0];
    s.obey(Command::Destage { volume: 0 });
    // Where nothing is dirty what is clean is let go.
    s.write(50_000, 8);
    s.rot(device, at * 512..at * 512 + 512);
    s.world.kill_landing(|_, _, _| true);
    s.start();
    assert!(s.status().volumes[0].serving, "{}", s.story());
    s.read(0, 8);
    s.end();
}

/// Acknowledged writes are in the log, behind the last image; the power goes, and the first cache device answers nothing when the next start asks.
fn first_is_silent(story: &str) -> (Scene, Range<u64>) {
    let mut s = Scene::new(story, Stage::default());
    s.checkpoint();
    (0..3).for_each(|n| s.write(n * 8000, 8));
    s.flush();
    let (_, at) = *s.copies(0).iter().find(|c| c.0 == SECOND_ONE).expect("a copy is on the second");
    let header = header_of(&s, at);
    s.world.cut_power_keeping(|_, _, _| false);
    s.world.hang(FIRST, true);
    (s, header)
}

/// The header of the segment that has a sector in it, in bytes.
fn header_of(s: &Scene, sector: u64) -> Range<u64> {
    let layout = s.stage.layout();
    let start = layout.slot(((sector * 512 - layout.slot(0)) / s.stage.segment_bytes) as u32);
    start..start + 512
}

/// A controller is reset: one cache device answers nothing for long, and the other fails a read. What the one did not answer used up all the
/// patience that a start has; the one read of a header was taken for final, its segment was not there, and the device that had it all was voted out:
/// what was flushed was gone. Found by reading.
#[test]
fn one_that_is_silent_does_not_use_up_the_patience_with_the_other() {
    let (mut s, header) = first_is_silent("patience with each");
    s.hold_back(move |device, op| device == SECOND_ONE && matches!(op, DeviceOp::Read { offset, .. } if *offset == header.start));
    let start = s.begin_start();
    s.until_held();
    s.device(SECOND_ONE).fail_reads = 1;
    s.let_go();
    s.pass(MOMENT / 10);
    s.device(SECOND_ONE).fail_reads = 0;
    s.ends_well(start);
    s.read_all();
    s.world.hang(FIRST, false);
    s.end();
}

/// The same, and the header cannot be read for long. Whoever is missing has it: nobody goes on without him.
#[test]
fn what_cannot_be_read_is_waited_for_where_one_that_is_missing_may_have_it() {
    let (mut s, header) = first_is_silent("one is missing, and the other cannot be read");
    unreadable(&mut s, SECOND_ONE, header);
    let start = s.begin_start();
    let missing = StartError::CopiesMissing { missing: vec![0] };
    assert_eq!(s.end_of(start), Err(CommandError::Start(missing)), "{}", s.story());
    s.world.kill_landing(|_, _, _| false);
    s.world.hang(FIRST, false);
    s.start();
    s.read_all();
    s.end();
}

/// The same of a record, and somebody says that the missing one is gone for good: what may lack data is not served.
#[test]
fn what_one_that_is_gone_for_good_may_have_had_is_refused() {
    let (mut s, header) = first_is_silent("one is gone, and the other cannot be read");
    unreadable(&mut s, SECOND_ONE, header.start + 512..header.start + (64 << 10));
    s.stage.settings.without_missing = true;
    s.start();
    assert!(s.status().volumes[0].refused, "{}", s.story());
}

/// The daemon dies as soon as the start has come through, before its first checkpoint: what could not be read is zeroes by then, and no
/// superblock told of it. The next start served the disk's older data. Found by reading.
#[test]
fn what_one_that_is_gone_may_have_had_is_refused_by_the_next_start_too() {
    let (mut s, header) = first_is_silent("one is gone, and the start is the last that is seen of the daemon");
    unreadable(&mut s, SECOND_ONE, header.start + 512..header.start + (64 << 10));
    s.stage.settings.without_missing = true;
    let start = s.begin_start();
    s.ends_well(start);
    s.world.kill_landing(|_, _, _| false);
    s.stage.settings.without_missing = false;
    s.start();
    assert!(s.status().volumes[0].refused, "{}", s.story());
}

/// What cannot be read is of one volume, as its segment's header says: the other one lacks nothing, and had to be thrown away. Found by reading.
#[test]
fn what_one_that_is_gone_may_have_had_of_one_volume_is_not_held_against_another() {
    let mut s = Scene::new("one is gone, and one volume lacks nothing", Stage { volumes: 2, ..Stage::default() });
    s.checkpoint();
    (0..3).for_each(|n| s.write(n * 8000, 8));
    let other = s.world.write(1, 8000, 8, false);
    assert!(s.answer_to(other), "{}", s.story());
    s.flush();
    let (_, at) = *s.copies(0).iter().find(|c| c.0 == SECOND_ONE).expect("a copy is on the second");
    let header = header_of(&s, at);
    s.world.cut_power_keeping(|_, _, _| false);
    s.world.hang(FIRST, true);
    unreadable(&mut s, SECOND_ONE, header.start + 512..header.start + (64 << 10));
    s.stage.settings.without_missing = true;
    s.start();
    let volumes = s.status().volumes;
    assert!(volumes[0].refused && volumes[1].serving && !volumes[1].refused, "{}: {volumes:?}", s.story());
    let read = s.world.read(1, 8000, 8);
    assert!(s.answer_to(read), "{}", s.story());
}

/// Both are there, and who is not there is to be left behind: nobody. One sector is bad where no segment is, and all volumes were refused for
/// good for it. Found by reading.
#[test]
fn nobody_is_gone_and_nothing_is_refused() {
    let mut s = Scene::new("nobody is gone", Stage::default());
    s.write(0, 8);
    s.flush();
    let layout = s.stage.layout();
    let last = layout.slot(layout.slots() - 1);
    s.world.cut_power_keeping(|_, _, _| false);
    unreadable(&mut s, FIRST, last..last + 512);
    s.stage.settings.without_missing = true;
    s.start();
    assert!(!s.status().volumes[0].refused, "{}", s.story());
    s.read_all();
    s.end();
}

/// A drive that takes seconds to say that it cannot read a sector, as most do: it was asked fifty times. Found by reading.
#[test]
fn a_drive_that_takes_long_to_say_that_it_cannot_is_not_asked_for_minutes() {
    let mut s = Scene::new("a drive that takes long", Stage::default());
    s.checkpoint();
    s.write(0, 8);
    s.flush();
    let header = header_of(&s, s.copies(0)[0].1);
    let device = s.copies(0)[0].0;
    s.world.cut_power_keeping(|_, _, _| false);
    unreadable(&mut s, device, header.clone());
    let began = s.world.now;
    let start = s.begin_start();
    let mut ended = None;
    // What asks for it is held for seven seconds, and then fails.
    for _ in 0..100 {
        let header = header.clone();
        s.hold_back(move |d, op| d == device && matches!(op, DeviceOp::Read { offset, .. } if *offset == header.start));
        for _ in 0..70 {
            s.pass(MOMENT);
            ended = ended.or_else(|| s.world.command_result(start).map(|_| s.world.now));
        }
        s.let_go();
        if ended.is_some() {
            break;
        }
    }
    let took = ended.expect("the start ends") - began;
    assert!(took < 30_000_000_000, "{}: the start took {} s", s.story(), took / 1_000_000_000);
    s.read_all();
}

/// One copy of everything. A sector in the oldest segment of the log is bad, where nothing was ever written; and while the third segment is read the path is lost
/// for a moment. What the bad sector was asked for again used up the patience with the device, and zeroes were written over what was flushed. Found by reading.
#[test]
fn a_bad_sector_does_not_use_up_the_patience_with_the_rest_of_the_log() {
    let mut s = Scene::new("a bad sector, and a path", Stage { members: 1, copies: 1, ..Stage::default() });
    s.checkpoint();
    let mut slots: Vec<Range<u64>> = Vec::new();
    for n in 0.. {
        let sector = n * 37 % 499 * 512;
        s.write(sector, 8);
        let (_, at) = s.copies(sector)[0];
        let header = header_of(&s, at);
        if !slots.contains(&header) {
            slots.push(header);
        }
        if slots.len() == 4 {
            break;
        }
    }
    s.flush();
    s.world.cut_power_keeping(|_, _, _| false);
    let tail = slots[0].start + s.stage.segment_bytes;
    unreadable(&mut s, FIRST, tail - 512..tail);
    let third = slots[2].start..slots[2].start + s.stage.segment_bytes;
    s.hold_back(
        move |_, op: &DeviceOp<SimBuf>| matches!(op, DeviceOp::Read { offset, len, .. } if third.contains(offset) && *len > 512),
    );
    let start = s.begin_start();
    s.until_held();
    s.pass(60 * MOMENT);
    s.device(FIRST).fail_reads = 1;
    s.let_go();
    s.pass(MOMENT);
    s.device(FIRST).fail_reads = 0;
    s.ends_well(start);
    s.read_all();
    s.end();
}

/// One record, and a bad sector under each of its copies, in different places: each sector can be read somewhere, and neither copy is whole. That was
/// taken for a write that a power cut had torn, and zeroes were written over both, though what it says was flushed. Found by reading.
#[test]
fn a_record_that_is_whole_on_neither_device_for_bad_sectors_refuses_the_start() {
    let mut s = Scene::new("bad sectors in different places", Stage::default());
    s.write(0, 8);
    s.flush();
    let copies = s.copies(0);
    s.world.kill_landing(|_, _, _| true);
    for ((device, at), bad) in copies.into_iter().zip([1, 5]) {
        unreadable(&mut s, device, (at + bad) * 512..(at + bad + 1) * 512);
    }
    refused_until_it_can_be_read(s);
}

/// The same of the header of a record that speaks of many writes.
#[test]
fn a_records_header_that_is_whole_on_neither_device_refuses_the_start() {
    let mut s = Scene::new("a header in two parts", Stage::default());
    s.hold_back(|device, op| matches!((device, op), (Device::Member(_), DeviceOp::Write { .. })));
    (0..60).for_each(|n| _ = s.world.write(0, n * 37 % 499 * 512, 8, false));
    s.until_held();
    s.let_go();
    s.answered();
    s.flush();
    let headers = |s: &mut Scene, sector: u64| -> Vec<(Device, u64, usize)> {
        let len = |s: &mut Scene, device: Device, at: u64| Record::peek_len(&s.device(device).visible.read(at, 1).to_bytes());
        let found = |s: &mut Scene, (device, at): (Device, u64)| {
            (at.saturating_sub(120)..at).rev().find_map(|before| Some((device, before, len(s, device, before)?)))
        };
        s.copies(sector).into_iter().filter_map(|copy| found(s, copy)).collect()
    };
    let long = (0..60).map(|n| headers(&mut s, n * 37 % 499 * 512)).find(|found| found.iter().all(|(.., len)| *len > 512));
    let long = long.expect("some record has a long header");
    s.world.kill_landing(|_, _, _| true);
    for ((device, at, _), bad) in long.into_iter().zip([0, 1]) {
        unreadable(&mut s, device, (at + bad) * 512..(at + bad + 1) * 512);
    }
    refused_until_it_can_be_read(s);
}

fn refused_until_it_can_be_read(mut s: Scene) {
    let start = s.begin_start();
    let why = StartError::LogUnreadable { members: vec![0, 1] };
    assert_eq!(s.end_of(start), Err(CommandError::Start(why)), "{}", s.story());
    s.world.kill_landing(|_, _, _| false);
    readable(&mut s);
    s.start();
    s.read_all();
    s.end();
}

/// An intent page is on one cache device of three as it should be, and the others get it at the start. That was begun behind the first membership that the start had
/// raised: a device that failed it was out from then on, and no epoch said so. Found by reading, on the day on which it had been put there.
#[test]
fn intent_pages_are_made_equal_when_a_start_has_come_through() {
    let mut s = Scene::new("pages behind a start", Stage { members: 3, ..Stage::default() });
    let page = s.stage.layout().intent(0, 0)..s.stage.layout().intent(1, 0);
    let is_page = move |device, op: &DeviceOp<SimBuf>| matches!((device, op), (Device::Member(_), DeviceOp::Write { offset, .. }) if page.contains(offset));
    s.hold_back(is_page.clone());
    s.world.write(0, 0, 8, false);
    s.until_held();
    s.world.kill_landing(|device, _, _| device == FIRST);
    let pages = Rc::new(Cell::new(0));
    let counts = |holds: bool| {
        let (count, is_page) = (pages.clone(), is_page.clone());
        move |device, op: &DeviceOp<SimBuf>| {
            count.set(count.get() + u32::from(is_page(device, op)));
            // Those that say that the start's epoch was agreed on.
            holds && superblock_in(op).is_some_and(|it| it.agreed == it.epoch)
        }
    };
    s.hold_back(counts(true));
    let start = s.begin_start();
    s.until_held();
    s.pass(10 * MOMENT);
    assert_eq!(pages.get(), 0, "{}: the start may come to nothing yet", s.story());
    s.let_go();
    s.hold_back(counts(false));
    s.ends_well(start);
    s.rest();
    assert!(pages.get() > 0, "{}: there was no page to be made equal", s.story());
    s.read_all();
    s.end();
}

/// What a checkpoint's image has dirty the log behind it calls clean, and the region's dirty bit went with that checkpoint: a start that could not read the log took
/// it for one in which nothing is dirty, the image for the truth, and gave the disk older data than had been flushed there since. Found by reading.
#[test]
fn what_is_dirty_in_an_image_is_known_to_a_start_that_cannot_read_the_log_behind_it() {
    let mut s = Scene::new("marks behind an image", Stage::default());
    s.write(0, 8);
    s.flush();
    s.world.kill_landing(|_, _, _| false);
    let layout = s.stage.layout();
    let images = layout.checkpoint(0)..layout.slot(0);
    s.hold_back(move |device, op: &DeviceOp<SimBuf>| {
        matches!((device, op), (Device::Member(_), DeviceOp::Write { offset, .. }) if images.contains(offset))
    });
    let start = s.begin_start();
    s.ends_well(start);
    s.until_held();
    s.destage();
    s.let_go();
    s.rest();
    s.pass(MOMENT);
    // Past the cache, and flushed.
    s.write(0, 1024);
    s.flush();
    s.world.cut_power_keeping(|_, _, _| false);
    let slots = slots(&s.stage);
    let start = blind_start(&mut s, move |offset, len| slots.contains(&offset) && len > 512, 100 * MOMENT);
    assert_eq!(s.end_of(start), Err(CommandError::Start(StartError::LogUnreadable { members: vec![0, 1] })), "{}", s.story());
    s.start();
    s.read_all();
    s.end();
}

/// A record was on the cache devices when the power went, and the page that says that its region has something dirty was not, on any. The start served what the record
/// has; and the next one, to which two of four came late, did not know that they have the only copies. Found by reading.
#[test]
fn what_a_start_finds_dirty_is_known_to_one_to_which_its_copies_come_late() {
    let mut s = Scene::new("a page that power took", Stage { members: 4, ..Stage::default() });
    let slots = slots(&s.stage);
    s.write(0, 8);
    s.world.cut_power_keeping(move |device, sector, _| matches!(device, Device::Member(_)) && slots.contains(&(sector * 512)));
    s.start();
    s.read(0, 8);
    s.flush();
    both_copies_come_late(s);
}

/// The daemon ends, and the cache devices that have the first block are not there when the next one starts: it must not go on without them. Then they are.
pub(crate) fn both_copies_come_late(mut s: Scene) {
    let late = s.copies(0);
    s.world.kill_landing(|_, _, _| false);
    late.iter().for_each(|(device, _)| s.set_dead(*device, true));
    let start = s.begin_start();
    let end = s.end_of(start);
    assert!(matches!(end, Err(CommandError::Start(StartError::CopiesMissing { .. }))), "{}: {end:?}", s.story());
    s.world.kill_landing(|_, _, _| false);
    late.iter().for_each(|(device, _)| s.set_dead(*device, false));
    s.start();
    s.read(0, 8);
    s.end();
}

/// These sectors are cached, and a checkpoint has them; then the daemon is killed, and the disk exchanged.
fn cached_of_another_disk(story: &str) -> (Scene, Vec<u64>) {
    let mut s = Scene::new(story, Stage::default());
    // More than a segment: a write gets the place of one.
    let sectors: Vec<u64> = (0..40).map(|n| n * 4000).collect();
    sectors.iter().for_each(|sector| s.read(*sector, 8));
    s.rest();
    s.checkpoint();
    s.world.kill_landing(|_, _, _| false);
    s.exchange_disk(0);
    (s, sectors)
}

/// What was cached of the disk before was let go of in memory alone. The daemon died before the next checkpoint, and the start after that found it in the
/// image again, beside what had been written since: it refused the volume, as it differs from its disk and something is dirty. Where its samples were all of what
/// is of this disk, it would have served the other one's data. Found by reading.
#[test]
fn a_start_soon_after_another_disk_was_taken_does_not_take_it_for_another_one_again() {
    let (mut s, sectors) = cached_of_another_disk("another disk, and a kill soon after");
    let of_before = s.world.elect(true).expect("all is there").superblock.checkpoint.sequence;
    s.hold_back(move |_, op| superblock_in(op).is_some_and(|it| it.checkpoint.sequence > of_before));
    let start = s.begin_start();
    s.ends_well(start);
    s.until_held();
    s.write(200_000, 8);
    s.kill();
    assert!(s.status().volumes[0].serving, "{}", s.story());
    sectors.iter().for_each(|sector| s.read(*sector, 8));
    s.end();
}

/// The same, and a checkpoint was being taken when the other disk came. Its image had what was cached of the one before; when it was durable it cleared the bits
/// that were to tell the next start of it. Found by reading.
#[test]
fn a_checkpoint_under_way_when_another_disk_comes_does_not_bring_back_the_one_before() {
    let (mut s, sectors) = cached_of_another_disk("another disk under a checkpoint");
    s.set_dead(DISK, true);
    s.start();
    s.set_dead(DISK, false);
    let layout = s.stage.layout();
    let holds = layout.intent(0, 0)..layout.slot(0);
    s.hold_back(move |_, op| matches!(op, DeviceOp::Write { offset, .. } if holds.contains(offset)));
    let comes = s.world.command(Command::BackingCame { volume: 0 });
    s.until_held();
    let checkpoint = s.world.command(Command::Checkpoint);
    s.pass(SECOND / 100);
    s.let_go();
    s.ends_well(comes);
    s.ends_well(checkpoint);
    s.pass(SECOND / 100);
    let last = s.world.elect(true).expect("all is there").superblock.checkpoint.sequence;
    s.hold_back(move |_, op| superblock_in(op).is_some_and(|it| it.checkpoint.sequence > last));
    s.write(200_000, 8);
    s.kill();
    assert!(s.status().volumes[0].serving, "{}", s.story());
    sectors.iter().for_each(|sector| s.read(*sector, 8));
    s.end();
}

/// Of what was cached of the disk before, each piece was covered in part by a write that went past the cache. A checksum is over all of a piece: none was
/// compared, nothing was left to judge by, and the other disk's data was served. Found by the swarm, with disks that are exchanged.
#[test]
fn another_disk_is_told_from_the_right_one_by_what_is_cached_in_part() {
    let mut s = Scene::new("another disk, known in part", Stage { mode: Mode::WriteAround, ..Stage::default() });
    let sectors = [8000, 16_000];
    sectors.iter().for_each(|sector| s.read(*sector, 8));
    s.rest();
    sectors.iter().for_each(|sector| s.write(*sector + 2, 3));
    // The first one finds the disk flushed, and lets go of the intent bits.
    (0..2).for_each(|_| s.checkpoint());
    assert_eq!(s.status().volumes[0].cached_blocks, 2);
    s.world.kill_landing(|_, _, _| false);
    s.exchange_disk(0);
    s.start();
    sectors.iter().for_each(|sector| s.read(*sector, 8));
    s.end();
}

/// A disk comes late, and a cache device answers nothing that has the only copy of a piece of which something newer covers a part. Other pieces tell whose the disk is
/// without being read, and its volume waited for the device all the same. Found by reading.
#[test]
fn a_disk_is_compared_without_the_cache_devices_where_checksums_do() {
    let mut s = Scene::new("a disk comes beside a silent device", Stage { mode: Mode::WriteAround, ..Stage::default() });
    [8000, 16_000].iter().for_each(|sector| s.read(*sector, 8));
    s.rest();
    s.write(16_002, 3);
    (0..2).for_each(|_| s.checkpoint());
    s.world.kill_landing(|_, _, _| false);
    s.set_dead(DISK, true);
    s.start();
    s.set_dead(DISK, false);
    s.hold_back(|device, op| matches!(device, Device::Member(_)) && matches!(op, DeviceOp::Read { .. }));
    s.obey(Command::BackingCame { volume: 0 });
    assert_eq!(s.world.held_back(), 0, "{}", s.story());
    s.let_go();
    [8000, 16_000].iter().for_each(|sector| s.read(*sector, 8));
    s.end();
}

/// Disks are compared by what pages of the image say that are read for it, here and there. Where another volume had taken on the page that this one came to
/// it was not waited for: nothing was known yet, and another disk's data was served. Found by the swarm, with disks that are exchanged.
#[test]
fn a_disk_is_compared_by_the_pages_that_another_volume_has_read_too() {
    let mut stage = Stage { volumes: 2, ..Stage::default() };
    // Fewer than there are.
    stage.settings.pages_at_start = 1;
    let mut s = Scene::new("another disk, and one page for two", stage);
    for volume in 0..2 {
        s.world.read(volume, 8000, 8);
    }
    s.answered();
    s.rest();
    s.checkpoint();
    s.world.kill_landing(|_, _, _| false);
    s.exchange_disk(1);
    s.start();
    s.world.read(1, 8000, 8);
    s.end();
}
