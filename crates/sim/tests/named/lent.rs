//! Memory that clients lend: what goes past the cache is not copied. Such memory may change until the reply, and is gone after it; the
//! simulator panics where it is looked at, handed to a cache device, or used too late ([`headpond_sim::buf`]).

use headpond_engine::format::Mode;
use headpond_engine::{Device, DeviceOp};
use headpond_sim::buf::SimBuf;
use headpond_sim::scene::{Scene, Stage};
use headpond_sim::world::Lend;
use std::cell::Cell;
use std::rc::Rc;

const DISK: Device = Device::Backing(0);
/// Sectors of a request that goes past the cache.
const PAST: u64 = 1024;

/// A scene in which all clients lend their memory.
fn lending(story: &str, stage: Stage) -> Scene {
    let mut s = Scene::new(story, stage);
    s.world.lend = Lend::All;
    s
}

/// Whether a device is given memory that a client lends.
fn is_lent(op: &DeviceOp<SimBuf>) -> bool {
    match op {
        DeviceOp::Read { into, .. } => into.is_some(),
        DeviceOp::Write { bufs, .. } => bufs.iter().all(SimBuf::is_lent),
        _ => false,
    }
}

/// Counts the disk's reads and writes from now on: those with lent memory, and the others.
fn counted(s: &mut Scene) -> Rc<Cell<(u64, u64)>> {
    let counts: Rc<Cell<(u64, u64)>> = Rc::default();
    let noted = counts.clone();
    s.hold_back(move |device, op| {
        if device == DISK && matches!(op, DeviceOp::Read { .. } | DeviceOp::Write { .. }) {
            let (lent, own) = noted.get();
            noted.set(if is_lent(op) { (lent + 1, own) } else { (lent, own + 1) });
        }
        false
    });
    counts
}

/// A stream is written and read past the cache, from and into what its client lends; small writes and what is admitted are copied.
#[test]
fn what_goes_past_the_cache_is_not_copied() {
    let mut s = lending("what goes past the cache is not copied", Stage::default());
    let counts = counted(&mut s);
    s.write(0, PAST);
    s.read(0, PAST as u32);
    assert_eq!(counts.get(), (2, 0), "{}", s.story());
    // Admitted, and absorbed.
    s.read(PAST * 8, 8);
    s.write(PAST * 8, 8);
    assert_eq!(counts.get(), (2, 1), "{}", s.story());
    s.destage();
    s.read_all();
    s.end();
}

/// A stream is written over what is dirty: that part of it is absorbed beside the disk's, and read again it is laid over what the disk
/// reads into the client's memory.
#[test]
fn what_is_dirty_is_absorbed_from_lent_memory_and_laid_over_it() {
    let mut s = lending("what is dirty is absorbed from lent memory and laid over it", Stage::default());
    [8, 9, 40].iter().for_each(|n| s.write(n * 8, 8));
    s.write(0, PAST);
    [8, 50].iter().for_each(|n| s.write(n * 8 + 2, 5));
    let counts = counted(&mut s);
    s.read(0, PAST as u32);
    assert!(counts.get().0 > 0 && counts.get().1 == 0, "{:?}: {}", counts.get(), s.story());
    s.destage();
    s.read(0, PAST as u32);
    s.end();
}

/// The disk fails a read, and has read some of it: what the cache has it serves after all, though the client's memory holds something else.
#[test]
fn what_a_failed_read_left_in_lent_memory_is_not_the_answer() {
    let mut stage = Stage::default();
    (stage.settings.route, stage.settings.ahead_bytes) = (true, 0);
    let mut s = lending("what a failed read left in lent memory is not the answer", stage);
    (8..12).chain(16..20).for_each(|n| s.write(n * 8, 8));
    s.destage();
    s.device(DISK).bad.insert(17 * 8, ());
    (0..8).for_each(|n| s.read(n * 32, 32));
    s.end();
}

/// Write-through: while the disk is being written, the client changes what it lends, as a file system does with pages that are on their
/// way. What the cache then holds for clean must be what the disk has: else a read would be answered with something else when it is
/// evicted, and a start would take the disk for another one.
#[test]
fn what_write_through_admits_is_what_the_disk_got_though_the_client_changes_its_memory() {
    let stage = Stage { mode: Mode::WriteThrough, ..Stage::default() };
    let mut s = lending("what write-through admits is what the disk got though the client changes its memory", stage);
    s.hold_back(|device, op| device == DISK && matches!(op, DeviceOp::Write { .. }));
    let request = s.world.write(0, 64, 8, false);
    s.until_held();
    s.world.lent_memory(request).fill(&SimBuf::stamps(77 << 20, 8));
    s.let_go();
    assert!(s.answer_to(request), "{}", s.story());
    s.rest();
    let on_disk: Vec<_> = (64..72).map(|sector| s.device(DISK).visible.get(sector)).collect();
    let admitted = s.copies(64);
    assert!(!admitted.is_empty(), "{}", s.story());
    for (device, sector) in admitted {
        let copy: Vec<_> = (sector..sector + 8).map(|sector| s.device(device).visible.get(sector)).collect();
        assert_eq!(copy, on_disk, "{}", s.story());
    }
    s.read_all();
    s.end();
}
