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
