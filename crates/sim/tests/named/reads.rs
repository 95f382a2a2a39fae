//! What a read is answered with: what is read ahead from the cache devices, and what is damaged.

use headpond_engine::{Device, DeviceOp};
use headpond_sim::scene::{Scene, Stage};
use std::ops::Range;

/// Sectors of a write that goes past the cache.
const PAST: u64 = 1024;
/// A millisecond: long enough for whatever is not held back to end.
const MOMENT: u64 = 1_000_000;

/// A stage on which runs of small requests go through the cache, and are read ahead of.
fn reading_ahead() -> Stage {
    let mut stage = Stage::default();
    (stage.settings.stream_bytes, stage.settings.large_bytes) = (1 << 20, 1 << 20);
    stage
}

/// Reads blocks one after the other.
fn read_on(s: &mut Scene, blocks: Range<u64>) {
    for n in blocks {
        s.read(n * 8, 8);
    }
    s.rest();
}

/// Requests that were answered from memory.
fn from_memory(s: &Scene) -> u64 {
    s.status().volumes[0].stats.hit_ahead.requests
}

/// What is read ahead is kept; then some of it is written, whole, in part, and past the cache. Memory serves what the map
/// names, and nothing else.
#[test]
fn what_is_kept_is_served_while_the_map_names_it() {
    let mut s = Scene::new("what is kept is served while the map names it", reading_ahead());
    (0..16).for_each(|n| s.write(n * 8, 8));
    read_on(&mut s, 0..9);
    let served = from_memory(&s);
    assert!(served > 0, "{}", s.story());
    s.write(9 * 8, 8);
    s.write(10 * 8 + 2, 3);
    read_on(&mut s, 9..12);
    assert!(from_memory(&s) > served, "{}", s.story());
    s.write(12 * 8, PAST * 4);
    read_on(&mut s, 12..16);
    s.end();
}

/// Clean data rots where it is read ahead: it is not kept, and who wants it gets it from the disk.
#[test]
fn what_is_read_ahead_proves_itself() {
    let mut s = Scene::new("what is read ahead proves itself", reading_ahead());
    // Out of order: nothing is read ahead yet.
    for n in [6, 2, 4, 0, 7, 3, 5, 1] {
        s.read(n * 8, 8);
    }
    s.rest();
    for (device, sector) in s.copies(6 * 8) {
        s.rot(device, sector * 512..sector * 512 + 512);
    }
    read_on(&mut s, 0..8);
    assert!(from_memory(&s) > 0, "{}", s.story());
    s.end();
}

/// The cache device is slow with what is read ahead: who wants it does not wait for that for long, and reads it alone.
#[test]
fn nobody_waits_long_for_what_is_read_ahead() {
    let mut s = Scene::new("nobody waits long for what is read ahead", reading_ahead());
    s.world.write(0, 0, 128, false);
    s.answered();
    s.hold_back(|device, op| matches!(device, Device::Member(_)) && matches!(op, DeviceOp::Read { len, .. } if *len > 4096));
    (0..4).for_each(|n| s.read(n * 8, 8));
    s.until_held();
    let begun = s.world.now;
    s.read(4 * 8, 8);
    assert!(s.world.now - begun < 1000 * MOMENT, "{}", s.story());
    s.let_go();
    s.end();
}

/// A cache device reads badly: each time that the read of many clean pieces begins again, another of them is damaged. All of it is
/// on the disk, but for the one block that is dirty.
#[test]
fn a_large_read_does_not_fail_for_what_the_disk_has() {
    // More than one of them is damaged in a round.
    const BLOCKS: u64 = 40;
    let mut s = Scene::new("a large read does not fail for what the disk has", reading_ahead());
    (0..BLOCKS).for_each(|n| s.write(n * 8, 8));
    s.destage();
    s.write(6 * 8, 8);
    s.rest();
    let request = s.world.read(0, 0, BLOCKS as u32 * 8);
    for damaged in (0..BLOCKS).filter(|n| *n != 6) {
        s.hold_back(|device, op| matches!(device, Device::Member(_)) && matches!(op, DeviceOp::Read { .. }));
        s.until("a cache device is asked, or there is an answer", |w| w.held_back() > 0 || !w.waits(request));
        for (device, sector) in s.copies(damaged * 8) {
            s.rot(device, sector * 512..sector * 512 + 512);
        }
        s.let_go();
    }
    assert!(s.answer_to(request), "{}", s.story());
    s.end();
}
