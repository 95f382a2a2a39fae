//! Starts that read of segments the records' headers alone: of those that are known to be durable, and of no others.

use headpond_engine::StartError;
use headpond_engine::{CommandError, Device, DeviceOp};
use headpond_sim::scene::{Scene, Stage};
use std::cell::Cell;
use std::rc::Rc;

/// Blocks that fill a segment, each in a record of its own, with a sector to spare.
const FILL: u64 = 14;

/// The first sector of the `n`th block that a scene writes: no stream of them.
fn block(n: u64) -> u64 {
    n * 37 % 211 * 16
}

/// Writes the blocks of so many segments, from the `first` block on.
fn fill(s: &mut Scene, first: u64, segments: u64) {
    (first..first + segments * FILL).for_each(|n| s.write(block(n), 8));
}

/// Segments of which a start reads all that is in them, on each copy, from now on.
fn read_whole(s: &mut Scene) -> Rc<Cell<u64>> {
    let whole = s.stage.segment_bytes - u64::from(s.stage.unit);
    let seen = Rc::new(Cell::new(0));
    let count = seen.clone();
    s.hold_back(move |device, op| {
        if let (Device::Member(_), DeviceOp::Read { len, .. }) = (device, op) {
            count.set(count.get() + u64::from(u64::from(*len) == whole));
        }
        false
    });
    seen
}

/// The power goes, and of all that was not flushed these sectors alone are lost.
fn lose_alone(s: &mut Scene, lost: Vec<(Device, u64)>) {
    s.world.cut_power_keeping(move |device, sector, _| !lost.contains(&(device, sector)));
    s.start();
}

/// A daemon with a TiB cached was killed. All that had been written since the last checkpoint, an eighth of what was cached, was read back from
/// both copies and checksummed before the first request was answered: minutes, whatever had been flushed meanwhile. Found by reckoning.
#[test]
fn a_start_reads_no_more_than_headers_of_what_was_durable() {
    let mut s = Scene::new("a long log", Stage::default());
    for n in 0..8 {
        fill(&mut s, n * FILL, 1);
        s.flush();
    }
    s.world.kill_landing(|_, _, _| false);
    let whole = read_whole(&mut s);
    s.start();
    assert!(whole.get() <= 4, "{}: {} copies of 8 segments were read whole", s.story(), whole.get());
    s.read_all();
    s.end();
}

/// The same where no client flushes: what a start must read whole is bounded all the same.
#[test]
fn what_nobody_flushes_is_flushed_for_the_next_start() {
    let mut s = Scene::new("a long log that nobody flushes", Stage { segments: 100, ..Stage::default() });
    fill(&mut s, 0, 60);
    s.rest();
    s.world.kill_landing(|_, _, _| false);
    let whole = read_whole(&mut s);
    s.start();
    assert!(whole.get() <= 2 * 36, "{}: {} copies of 60 segments were read whole", s.story(), whole.get());
    s.read_all();
    s.end();
}

/// A power cut left a record's header, and not its data. Its segment was closed, others were opened behind it, and had nobody flushed: were its header
/// believed, what it names would be on no copy, in place of what was there before.
#[test]
fn a_header_is_not_believed_of_what_nobody_has_flushed() {
    let mut s = Scene::new("a header without its data", Stage::default());
    fill(&mut s, 0, 1);
    s.flush();
    fill(&mut s, 0, 4);
    let lost = s.copies(block(3));
    assert_eq!(lost.len(), 2);
    lose_alone(&mut s, lost);
    s.read_all();
    s.end();
}

/// One record's header of a durable segment is damaged on the copy that a start follows: what comes behind it in the segment counts, and so does
/// that record, which the other copy has.
#[test]
fn what_lies_behind_a_damaged_header_counts() {
    for member in 0..2 {
        let mut s = Scene::new("a damaged header in a durable segment", Stage::default());
        for n in 0..4 {
            fill(&mut s, n * FILL, 1);
            s.flush();
        }
        let (device, data) =
            s.copies(block(3)).into_iter().find(|(device, _)| *device == Device::Member(member)).expect("a copy");
        s.rot(device, (data - 1) * 512..data * 512);
        s.kill();
        s.read_all();
        s.end();
    }
}

/// One device comes late, and the other has a sector of a durable segment that it cannot read. The start followed the headers, did not look at the data, and went
/// on: the device that was late, and had all of it, was out of date. Found by reading.
#[test]
fn what_cannot_be_read_of_a_durable_segment_is_waited_for_where_one_that_is_missing_may_have_it() {
    let mut s = Scene::new("one is late, and the other cannot read", Stage::default());
    // So long that who follows headers does not see its end.
    const LONG: u64 = 100_000;
    s.write(LONG, 48);
    for n in 0..4 {
        fill(&mut s, n * FILL, 1);
        s.flush();
    }
    let (late, there) = (Device::Member(0), Device::Member(1));
    let (_, data) = s.copies(LONG + 40).into_iter().find(|copy| copy.0 == there).expect("a copy");
    s.world.kill_landing(|_, _, _| false);
    s.world.hang(late, true);
    s.device(there).bad.insert(data, ());
    let start = s.begin_start();
    let missing = StartError::CopiesMissing { missing: vec![0] };
    assert_eq!(s.end_of(start), Err(CommandError::Start(missing)), "{}", s.story());
    s.world.kill_landing(|_, _, _| false);
    s.world.hang(late, false);
    s.start();
    s.read_all();
    s.end();
}

/// A segment of a volume that is seldom written stays open while many of another one's are filled, flushed and followed by others. What is in it was
/// flushed as well, and then there was one record more.
#[test]
fn an_open_segment_is_not_taken_for_a_durable_one() {
    let mut s = Scene::new("an old segment that is open", Stage { volumes: 2, ..Stage::default() });
    s.world.write(1, 64, 8, false);
    s.answered();
    for n in 0..3 {
        fill(&mut s, n * FILL, 1);
        s.flush();
    }
    s.world.write(1, 64, 8, false);
    s.answered();
    let held = s.world.engine.as_ref().and_then(|e| e.locate(1, 64)).unwrap_or_default();
    let lost: Vec<_> = held.into_iter().map(|(member, byte)| (Device::Member(member), byte / 512)).collect();
    assert_eq!(lost.len(), 2);
    lose_alone(&mut s, lost);
    s.read_all();
    s.end();
}

/// A segment was closed while a record of it was still on its way to the devices. They are flushed, and have it not yet; then its header comes, and
/// the power goes before its data does.
#[test]
fn a_segment_is_not_durable_while_a_record_is_on_its_way() {
    let mut s = Scene::new("a record on its way", Stage::default());
    fill(&mut s, 0, 1);
    // The next segment is open by then.
    s.write(block(2), 8);
    s.flush();
    let layout = s.stage.layout();
    let late = Rc::new(Cell::new(0u8));
    let seen = late.clone();
    let in_log = move |offset: u64| offset >= layout.slot(0);
    // The next write to each member's log.
    s.hold_back(move |device, op| {
        let (Device::Member(m), DeviceOp::Write { offset, .. }) = (device, op) else { return false };
        let is_first = in_log(*offset) && seen.get() & 1 << m == 0;
        seen.set(seen.get() | u8::from(is_first) << m);
        is_first
    });
    s.world.write(0, block(3), 8, false);
    s.until_held();
    for n in 4..4 + 3 * FILL {
        let write = s.world.write(0, block(n), 8, false);
        assert!(s.answer_to(write), "{}", s.story());
        if n % FILL == 3 {
            s.world.flush(0);
            s.pass(10_000_000);
        }
    }
    assert_eq!(late.get(), 3, "{}: both copies are on their way", s.story());
    // Of what is on its way the header lands, and not the data behind it.
    let data: Vec<(Device, u64)> = s.world.in_flight().into_iter().map(|(device, header, _)| (device, header + 1)).collect();
    assert_eq!(data.len(), 2, "{}: {data:?}", s.story());
    s.world.cut_power_keeping(move |device, sector, _| !data.contains(&(device, sector)));
    s.start();
    s.read_all();
    s.end();
}

/// A start finds a record without its data, and shows what was there before. It is killed before its first checkpoint, and what it has opened
/// says that all before it is durable: the next start must not believe that of what an earlier life wrote.
#[test]
fn a_life_says_nothing_of_what_an_earlier_one_wrote() {
    let mut s = Scene::new("a torn record of an earlier life", Stage::default());
    fill(&mut s, 0, 1);
    s.flush();
    fill(&mut s, 0, 2);
    let lost = s.copies(block(3));
    s.world.cut_power_keeping(move |device, sector, _| !lost.contains(&(device, sector)));
    let layout = s.stage.layout();
    s.hold_back(move |device, op| {
        let areas = layout.checkpoint(0)..layout.checkpoint(1) + layout.checkpoint_bytes;
        matches!((device, op), (Device::Member(_), DeviceOp::Write { offset, .. }) if areas.contains(offset))
    });
    let start = s.begin_start();
    s.ends_well(start);
    s.read(block(3), 8);
    for n in 2..5 {
        fill(&mut s, n * FILL, 1);
        s.flush();
    }
    s.kill();
    s.read_all();
    s.end();
}
