//! Writes past the cache over what is dirty here and there: the disk has them without holes, and what it has under dirty data is nobody's.

use super::steps::appended;
use headpond_engine::{Device, DeviceOp, Settings};
use headpond_sim::models::{MILLISECOND, SECOND};
use headpond_sim::scene::{Scene, Stage};
use std::cell::RefCell;
use std::ops::Range;
use std::rc::Rc;

const DISK: Device = Device::Backing(0);
/// Sectors of a write that goes past the cache.
const PAST: u64 = 1024;

/// What the disk is written from now on, in sectors.
fn written(s: &mut Scene) -> Rc<RefCell<Vec<Range<u64>>>> {
    let all: Rc<RefCell<Vec<Range<u64>>>> = Rc::default();
    let list = all.clone();
    s.hold_back(move |device, op| {
        if let (DISK, DeviceOp::Write { offset, bufs, .. }) = (device, op) {
            let sectors = bufs.iter().map(|b| b.sectors() as u64).sum::<u64>();
            list.borrow_mut().push(offset / 512..offset / 512 + sectors);
        }
        false
    });
    all
}

/// A stream came by blocks that were dirty: these went into the log, and the disk got the pieces between them, each a write of its own. At
/// each hole it missed what came next by a revolution, and an array had to read what was around: one block of a hundred was half of the
/// stream. Found by reading.
#[test]
fn the_disk_has_a_stream_without_holes_where_something_is_dirty() {
    let mut s = Scene::new("a stream over dirty data", Stage::default());
    [64, 480, 488, 1016, 4096].iter().for_each(|at| s.write(*at, 8));
    let (list, dirty) = (written(&mut s), s.dirty());
    s.write(0, PAST);
    assert_eq!(list.take(), std::iter::once(0..PAST).collect::<Vec<_>>(), "{}", s.story());
    assert_eq!(s.dirty(), dirty, "what is dirty is absorbed over, and no more than that");
    // A stream of small requests, one of which is dirty throughout.
    (0..80).for_each(|n| s.write(3840 + n * 8, 8));
    assert!(list.borrow().iter().any(|w| w.contains(&4096)), "{}: a hole of one request: {list:?}", s.story());
    s.flush();
    // The last of one is in the log, all of it: the disk has it by the way, and a client's flush is not for that.
    s.write(8248, 8);
    (0..52).for_each(|n| s.write(7832 + n * 8, 8));
    s.flush();
    let (owed, flushes) = (written(&mut s), s.device(DISK).flushes);
    s.write(8248, 8);
    assert!(owed.borrow().iter().any(|w| w.contains(&8248)), "{}: {owed:?}", s.story());
    s.flush();
    assert_eq!(s.device(DISK).flushes, flushes, "a flush for what the log has");
    s.lose_power();
    s.read_all();
    // The power goes when the disk has taken such a write, and the log its part of it not yet: what was dirty before lies over it.
    s.hold_back(appended(&s.stage));
    s.world.write(0, 0, PAST, false);
    s.until_held();
    s.pass(MILLISECOND);
    s.world.cut_power_keeping(|device, _, _| device == DISK);
    s.start();
    s.read_all();
    s.kill();
    s.read_all();
    s.end();
}

/// The disk does not take a sector, under dirty data. Nobody asked it for that: the write that passes over it goes on with a hole there.
#[test]
fn a_disk_that_fails_under_dirty_data_is_asked_for_the_rest_alone() {
    let mut s = Scene::new("a bad sector under dirty data", Stage::default());
    s.write(512, 8);
    s.device(DISK).dead_sectors.insert(514, ());
    let request = s.world.write(0, 0, PAST, false);
    assert!(s.answer_to(request), "{}: the client is told of what it has in the cache", s.story());
    s.flush();
    s.lose_power();
    s.read_all();
    s.device(DISK).dead_sectors.remove(&514);
    s.end();
}

/// Of these, the second blocks of sixteen sectors.
const HALF: Range<u64> = 50..60;

/// Blocks of which some sectors are dirty and the rest clean, dirty ones beside them, and as many writes behind them as `writes`, or as find room in the log. The disk
/// flushes nothing, so that nothing more gets clean. How many there were.
fn filled(writes: Option<u64>) -> (Scene, u64) {
    let usual = Stage::default();
    let settings = Settings { dirty_percent: 100, idle_ns: SECOND / 10, ..usual.settings.clone() };
    let mut s = Scene::new("a write without holes that fails beside a sweep", Stage { settings, ..usual });
    HALF.for_each(|n| s.write(n * 16 + 8, 8));
    s.destage();
    s.hold_back(|device, op| device == DISK && matches!(op, DeviceOp::Flush));
    HALF.for_each(|n| s.write(n * 16 + 8, 2));
    (0..60).for_each(|n| s.write(n * 37 % 60 * 16, 8));
    let absorbed = |s: &Scene| s.status().volumes[0].stats.absorbed.requests;
    let before = absorbed(&s);
    for n in 0..writes.unwrap_or(1000) {
        s.write(50_000 + n * 7919 % 3001 * 64, 8);
        if absorbed(&s) - before <= n {
            return (s, n);
        }
    }
    (s, writes.expect("there is no end to the room"))
}

/// Sectors are on the disk what they are in the cache, if they are there; how many copies there are.
fn assert_the_same(s: &mut Scene, sectors: Range<u64>) -> usize {
    let mut copies = 0;
    for sector in sectors {
        let there = s.device(DISK).visible.get(sector);
        for (member, at) in s.copies(sector) {
            assert_eq!(s.device(member).visible.get(at), there, "sector {sector} is clean, and not what the disk has");
            copies += 1;
        }
    }
    copies
}

/// A sweep has written what is dirty, and waits for the disk's flush. A large write comes by, finds room in the log, and fails on the disk half way
/// through; the log turns out to have no room for all of its part. What is dirty still must not be called clean by the sweep, nor may what is clean
/// beside it in a block stay in the cache: the disk may have something newer there.
#[test]
fn what_a_failed_write_leaves_under_dirty_data_is_not_called_clean() {
    let (mut s, _) = filled(Some(filled(None).1));
    s.pass(SECOND);
    assert!(s.world.held_back() > 0, "{}: no sweep", s.story());
    s.world.errors_allowed = true;
    s.device(DISK).fail_writes = 1;
    let over = s.world.write(0, 0, PAST, false);
    assert!(!s.answer_to(over), "{}", s.story());
    s.device(DISK).fail_writes = 0;
    assert_eq!(s.status().volumes[0].stats.ordered_overwrites, 0, "{}", s.story());
    for n in HALF {
        assert_the_same(&mut s, n * 16 + 10..n * 16 + 16);
    }
    s.let_go();
    s.destage();
    s.world.errors_allowed = false;
    s.rest();
    assert!(assert_the_same(&mut s, 0..PAST) > 0, "{}: nothing is left to compare", s.story());
    s.read_all();
    s.end();
}
