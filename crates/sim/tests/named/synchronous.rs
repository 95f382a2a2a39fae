//! Writes of clients who flush after each of them.

use headpond_engine::{Device, DeviceOp, Reach};
use headpond_sim::scene::{Scene, Stage};
use std::cell::Cell;
use std::rc::Rc;

/// Flushes of cache devices, and writes to them that are to be durable by themselves.
type Counts = Rc<[Cell<u32>; 2]>;

fn counted(s: &mut Scene) -> Counts {
    let counts = Counts::default();
    let those = counts.clone();
    s.hold_back(move |device, op| {
        let n = match op {
            DeviceOp::Flush => 0,
            DeviceOp::Write { reach: Reach::Durable, .. } => 1,
            _ => return false,
        };
        if let Device::Member(_) = device {
            those[n].set(those[n].get() + 1);
        }
        false
    });
    counts
}

fn stage() -> Stage {
    let mut stage = Stage { segments: 100, ..Stage::default() };
    // Nothing is destaged meanwhile: that has flushes of its own.
    stage.settings.idle_ns = 3_600_000_000_000;
    stage
}

/// A mail queue waits twice for each of its messages: until both cache devices have it, and until both are flushed; a virtual machine
/// with two processors spent more time on the second than on the first. It is known after a few, and the next writes are durable
/// when they are answered: the flush finds nothing to do. What it said is durable is there after the power goes.
#[test]
fn who_flushes_after_each_write_waits_for_the_cache_devices_once() {
    let mut s = Scene::new("a mail queue", stage());
    s.write(0, 8);
    s.flush();
    s.rest();
    let counts = counted(&mut s);
    for n in 1..40 {
        s.write(n * 1000, 8);
        s.flush();
    }
    let [flushes, durable] = [counts[0].get(), counts[1].get()];
    assert!(flushes <= 8 && durable >= 70, "{flushes} flushes, {durable} durable writes for 39 on two devices");
    s.lose_power();
    s.start();
    s.read_all();
    s.end();
}

/// Where several write before one of them flushes, one flush serves them all: to force each write past the devices' caches would
/// be several times as much work for them.
#[test]
fn where_several_writes_share_a_flush_none_is_durable_by_itself() {
    let mut s = Scene::new("several writers", stage());
    let counts = counted(&mut s);
    for n in 0..30 {
        for m in 0..4 {
            s.write((n * 4 + m) * 1000, 8);
        }
        s.flush();
    }
    assert_eq!(counts[1].get(), 0, "durable writes");
    assert!(counts[0].get() >= 60, "{} flushes", counts[0].get());
    s.end();
}

/// The forced access fails on one of the devices, as a flush would: the write is in its cache or not, and nobody may rely on it. It
/// is acknowledged when that device is out of the pool, and what it has is not asked for again.
#[test]
fn a_durable_write_that_fails_on_one_device_is_on_the_other() {
    let mut s = Scene::new("a forced access that fails", stage());
    for n in 0..4 {
        s.write(n * 1000, 8);
        s.flush();
    }
    let forced = |op: &DeviceOp<_>| matches!(op, DeviceOp::Write { reach: Reach::Durable, .. });
    s.hold_back(move |device, op| device == Device::Member(1) && forced(op));
    s.world.write(0, 9000, 8, false);
    s.until_held();
    s.let_go_failing(Device::Member(1));
    s.answered();
    s.flush();
    s.lose_power();
    s.set_dead(Device::Member(1), true);
    s.start();
    s.read(9000, 8);
    s.end();
}

/// A write that is to be durable goes past the cache, while the cache devices have something to flush, too. The disk has flushed it long before they have; by
/// then another client's write had come down, and the disk was flushed once more, and waited for, for that one. Found by reading.
#[test]
fn a_durable_write_past_the_cache_waits_for_one_flush_of_the_disk() {
    let (disk, past) = (Device::Backing(0), 1024);
    let mut s = Scene::new("a durable write beside another", stage());
    s.write(0, past);
    s.flush();
    s.write(80_000, 8);
    // The region's bit is flushed.
    s.rest();
    s.write(90_000, 8);
    let flushes: Rc<Cell<u32>> = Rc::default();
    // Counts those of the disk, and holds back those of cache devices, or lets them go.
    let count = |holds| {
        let count = flushes.clone();
        move |device, op: &DeviceOp<_>| {
            let is_flush = matches!(op, DeviceOp::Flush);
            count.set(count.get() + u32::from(is_flush && device == disk));
            is_flush && device != disk && holds
        }
    };
    s.hold_back(count(true));
    let durable = s.world.write(0, 0, past, true);
    s.until_held();
    let beside = s.world.write(0, 50_000, past, false);
    assert!(s.answer_to(beside) && s.world.waits(durable));
    s.let_go();
    s.hold_back(count(false));
    assert!(s.answer_to(durable));
    assert_eq!(flushes.get(), 1, "{}", s.story());
    s.end();
}

/// The first write past the cache in a region waits until its bit is durable on all cache devices. They were flushed one after the other. Found by reading.
#[test]
fn cache_devices_flush_an_intent_bit_at_the_same_time() {
    let mut s = Scene::new("flushes of an intent bit", Stage { members: 4, ..stage() });
    s.hold_back(|device, op| matches!((device, op), (Device::Member(_), DeviceOp::Flush)));
    s.world.write(0, 0, 1024, false);
    s.until_held();
    s.pass(1_000_000);
    assert_eq!(s.world.held_back(), 4, "{}", s.story());
    s.let_go();
    s.answered();
    s.end();
}
