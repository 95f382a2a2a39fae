//! Dirty data is moved, in the version that it has, to other cache devices or out of a segment that is wanted.

use super::steps::appended;
use headpond_engine::{Command, Device, DeviceOp};
use headpond_sim::scene::{Scene, Stage};
use std::cell::Cell;
use std::rc::Rc;

const DISK: Device = Device::Backing(0);
/// Sectors of a write that goes past the cache.
const PAST: u64 = 1024;
/// A millisecond: long enough for whatever is not held back to end.
const MOMENT: u64 = 1_000_000;

/// A read is on its way to one of two copies of dirty data when the other one goes with its cache device: the data is
/// copied to a third. Then the first goes too, and the read fails there; it has to look where the data is now.
#[test]
fn a_read_follows_what_was_moved() {
    let mut s = Scene::new("a read follows what was moved", Stage { members: 3, ..Stage::default() });
    s.write(0, 8);
    s.flush();
    let asked = Rc::new(Cell::new(None));
    let first = asked.clone();
    s.hold_back(move |device, op| {
        let holds = matches!((device, op), (Device::Member(_), DeviceOp::Read { .. })) && first.get().is_none();
        first.set(first.get().or(holds.then_some(device)));
        holds
    });
    let read = s.world.read(0, 0, 8);
    s.until_held();
    let asked = asked.get().expect("a cache device is asked");
    let other = s.copies(0).into_iter().map(|c| c.0).find(|d| *d != asked).expect("two have it");
    s.set_dead(other, true);
    s.world.write(0, 8000, 8, false);
    s.until("it is copied", |w| w.engine.as_ref().is_some_and(|e| e.status().stats.relocated > 0));
    s.pass(50 * MOMENT);
    assert_eq!(s.dirty(), 2);
    s.set_dead(asked, true);
    s.world.write(0, 8008, 8, false);
    s.pass(50 * MOMENT);
    s.let_go();
    assert!(s.answer_to(read));
    s.end();
}

/// What is dirty is moved while a zeroing of it is being appended, and a checkpoint begins between the two. The zeroing went down, and out of the map, before the image came
/// to it; so the image had nothing of it, and a start found the move behind the image, marked clean, and served what had been zeroed long ago. Found by reading.
#[test]
fn what_is_replaced_while_it_is_moved_does_not_come_back_after_a_checkpoint() {
    let mut s = Scene::new("a move behind what replaces it", Stage { members: 3, segments: 40, ..Stage::default() });
    // On a device that has nothing of the segment that is open now.
    let on = |s: &Scene, sector| s.copies(sector).into_iter().map(|(device, _)| device).collect::<Vec<_>>();
    let leaving = (0..40).find_map(|n| {
        s.write(n * 6000, 8);
        let open = on(&s, n * 6000);
        on(&s, 0).into_iter().find(|device| !open.contains(device))
    });
    let Some(Device::Member(member)) = leaving else { panic!("all segments are on the same cache devices") };
    s.flush();
    s.rest();
    s.hold_back(appended(&s.stage));
    let zeroing = s.world.write_zeroes(0, 0, 8, false);
    s.until_held();
    s.hold_back(|_, _| false);
    // For this the checkpoint waits; it is appended when all else has happened.
    s.world.write(0, 100_000, 8, false);
    s.pass(MOMENT / 20);
    s.world.hold(400 * MOMENT);
    let checkpoints = s.status().stats.checkpoints;
    s.world.command(Command::Checkpoint);
    s.pass(MOMENT);
    s.world.command(Command::RemoveMember { member });
    s.pass(50 * MOMENT);
    s.let_go();
    assert!(s.answer_to(zeroing), "{}", s.story());
    s.world.command(Command::Destage { volume: 0 });
    s.pass(200 * MOMENT);
    assert!(
        s.copies(0).is_empty() && s.status().stats.checkpoints == checkpoints,
        "{}: it is down, and the image is not taken",
        s.story()
    );
    s.until("the checkpoint is taken", |w| w.engine.as_ref().is_some_and(|e| e.status().stats.checkpoints > checkpoints));
    s.lose_power();
    s.read_all();
    s.end();
}

/// A large write over something dirty waits for a disk that is silent; the log has its part long since. A cache device is lost, and as long as the disk was silent
/// nothing of any volume got its second copy back: what was being replaced could not be moved, and nothing behind it had its turn. Found by reading.
#[test]
fn what_waits_for_a_silent_disk_leaves_others_their_second_copy() {
    let mut s = Scene::new("mended beside a silent disk", Stage { members: 3, volumes: 2, ..Stage::default() });
    s.write(0, 8);
    s.world.write(1, 0, 8, false);
    s.answered();
    s.hold_back(|device, op| device == DISK && matches!(op, DeviceOp::Write { .. }));
    let large = s.world.write(0, 1, PAST, false);
    s.until_held();
    s.pass(MOMENT * 100);
    let places = |s: &Scene, volume| s.world.engine.as_ref().and_then(|e| e.locate(volume, 0)).unwrap_or_default();
    let of_second = places(&s, 1);
    let shared = places(&s, 0).into_iter().find(|(m, _)| of_second.iter().any(|(n, _)| n == m)).expect("two of three share one");
    s.set_dead(Device::Member(shared.0), true);
    s.world.write(0, 100_000, 8, false);
    s.pass(5_000 * MOMENT);
    let alive = |places: Vec<(u8, u64)>| places.into_iter().filter(|(m, _)| *m != shared.0).count();
    assert_eq!(alive(places(&s, 1)), 2, "{}", s.story());
    assert_eq!(alive(places(&s, 0)), 2, "{}", s.story());
    s.let_go();
    assert!(s.answer_to(large), "{}", s.story());
    s.read_all();
    s.end();
}
