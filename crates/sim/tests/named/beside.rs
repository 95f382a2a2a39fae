//! Reads that threads beside the engine serve by themselves, by what it left for them to find.

use headpond_engine::{Device, DeviceOp};
use headpond_sim::scene::{Scene, Stage};
use headpond_sim::world::Whose;
use std::cell::Cell;
use std::rc::Rc;

fn scene(story: &str, stage: Stage) -> Scene {
    let mut s = Scene::new(story, stage);
    (s.world.beside.whose, s.world.beside.lines) = (Whose::All, 64);
    s
}

/// Reads that were served beside the engine.
fn beside(s: &Scene) -> u64 {
    s.status().volumes[0].stats.hit_beside.requests
}

/// What was read once is found, whole and in part; what is written after that is read from the engine first, and found again then.
#[test]
fn what_was_read_is_found_until_it_is_written() {
    let mut s = scene("what was read is found until it is written", Stage::default());
    s.write(160, 8);
    s.read(160, 8);
    assert_eq!(beside(&s), 0, "{}", s.story());
    s.read(160, 8);
    s.read(162, 3);
    assert_eq!(beside(&s), 2, "{}", s.story());
    s.write(160, 8);
    s.read(160, 8);
    assert_eq!(beside(&s), 2, "{}", s.story());
    s.read(160, 8);
    assert_eq!(beside(&s), 3, "{}", s.story());
    // A part of it is another piece now, and a write that went past the cache left nothing.
    s.write(162, 2);
    (0..2).for_each(|_| s.read(160, 8));
    s.write(160, 4096);
    (0..2).for_each(|_| s.read(160, 8));
    s.discard(160, 8);
    (0..2).for_each(|_| s.read(160, 8));
    s.end();
}

/// Holds back the next read of a cache device, and no other: it is asked for block 20, by a client. The device that was to be read.
fn ask_and_hold(s: &mut Scene) -> (u64, Device) {
    let held = Rc::new(Cell::new(None));
    let first = Rc::clone(&held);
    s.hold_back(move |device, op| {
        let holds = first.get().is_none() && matches!((device, op), (Device::Member(_), DeviceOp::Read { .. }));
        if holds {
            first.set(Some(device));
        }
        holds
    });
    let request = s.world.read(0, 160, 8);
    s.until_held();
    (request, held.get().expect("something is held"))
}

/// A read beside the engine takes long. Meanwhile its place rots, as one would that has become another record's: it proves to be
/// something else, and the engine is asked.
#[test]
fn a_place_that_became_anothers_is_not_taken_for_the_block() {
    let mut s = scene("a place that became another's is not taken for the block", Stage::default());
    s.write(160, 8);
    s.read(160, 8);
    let (request, device) = ask_and_hold(&mut s);
    let place = s.copies(160).into_iter().find(|copy| copy.0 == device).expect("it is read where it is");
    s.rot(device, place.1 * 512..place.1 * 512 + 4096);
    s.let_go();
    assert!(s.answer_to(request), "{}", s.story());
    assert_eq!((s.world.beside.in_vain, beside(&s)), (1, 0), "{}", s.story());
    s.end();
}

/// The cache device that is read beside the engine does not answer: the engine is asked, and has the other copy.
#[test]
fn nobody_waits_long_for_a_device_that_is_read_beside_the_engine() {
    let mut s = scene("nobody waits long for a device that is read beside the engine", Stage::default());
    s.write(160, 8);
    s.read(160, 8);
    let (request, _) = ask_and_hold(&mut s);
    let begun = s.world.now;
    assert!(s.answer_to(request), "{}", s.story());
    assert!(s.world.now - begun < 500_000_000, "{}", s.story());
    s.let_go();
    s.end();
}

/// A cache device leaves. What others know of it is nothing any more, and what they find they find on the other.
#[test]
fn a_device_that_left_is_not_read_beside_the_engine() {
    let mut s = scene("a device that left is not read beside the engine", Stage::default());
    s.write(160, 8);
    (0..4).for_each(|_| s.read(160, 8));
    let before = beside(&s);
    assert_eq!(before, 3, "{}", s.story());
    s.set_dead(Device::Member(0), true);
    // The engine learns of it by a write.
    s.write(320, 8);
    s.until("it is out", |w| w.engine.as_ref().is_some_and(|e| !e.status().members[0].in_sync));
    let in_vain = s.world.beside.in_vain;
    (0..5).for_each(|_| s.read(160, 8));
    assert_eq!((beside(&s), s.world.beside.in_vain), (before + 4, in_vain), "{}", s.story());
    s.end();
}
