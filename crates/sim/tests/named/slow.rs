//! Cache devices that are slow, and answer: worn out, or held to a few requests a second.

use headpond_engine::stats::Bypass;
use headpond_engine::{Device, DeviceOp};
use headpond_sim::models::{MILLISECOND, SECOND};
use headpond_sim::scene::{Scene, Stage};
use std::cell::Cell;
use std::rc::Rc;

/// A sweep read each small record that it took with a request of its own, all of a chunk's at once: thousands. To a device of two
/// hundred requests a second that was half a minute, in which the clients' writes waited, the last of the reads were taken for unanswered, the
/// superblock behind them too, and both cache devices left a pool in which none had failed. Now no more are in flight than a device
/// serves in a moment, and records that lie side by side are one read.
#[test]
fn a_sweep_leaves_cache_devices_to_clients() {
    let mut stage = Stage { segments: 300, ..Stage::default() };
    (stage.settings.record_bytes, stage.settings.chunk_runs, stage.settings.stream_bytes) = (4096, 2048, u64::MAX);
    let mut s = Scene::new("a sweep over small records", stage);
    // Neighbours on the disk are apart in the log.
    for n in 0..2000 {
        s.world.write(0, n * 7 % 2000 * 8, 8, false);
        if n % 100 == 99 {
            s.answered();
        }
    }
    s.flush();
    s.rest();
    let held: Rc<Cell<u32>> = Rc::default();
    let count = held.clone();
    s.hold_back(move |device, op| {
        let read = matches!((device, op), (Device::Member(_), DeviceOp::Read { .. }));
        count.set(count.get() + u32::from(read));
        read
    });
    let command = s.world.command(headpond_engine::Command::Destage { volume: 0 });
    s.pass(SECOND);
    assert!((1..=128).contains(&held.get()), "{} reads at once", held.get());
    s.let_go();
    s.ends_well(command);
    s.end();
}

/// A device that has a long line does not answer the last in it for longer than the limit, and is at work all the while. To leave with
/// all that it has would be the failure that was feared. One request that it never answers is not waited for for ever: it leaves then.
#[test]
fn a_cache_device_that_answers_others_is_slow_and_not_gone() {
    let mut stage = Stage { segments: 100, ..Stage::default() };
    stage.settings.member_timeout_ns = SECOND;
    let mut s = Scene::new("a long line", stage);
    s.write(0, 8);
    s.flush();
    s.rest();
    let first = Cell::new(true);
    s.hold_back(move |device, op| matches!((device, op), (Device::Member(1), DeviceOp::Write { .. })) && first.replace(false));
    s.world.write(0, 8000, 8, false);
    s.until_held();
    for n in 0..20 {
        s.pass(SECOND / 10);
        s.world.write(0, 16_000 + n * 8, 8, false);
        s.world.flush(0);
    }
    assert_eq!(s.status().stats.members_left, 0, "after two seconds, with answers all the while");
    for n in 20..60 {
        s.pass(SECOND / 10);
        s.world.write(0, 16_000 + n * 8, 8, false);
    }
    assert_eq!(s.status().stats.members_left, 1, "after six");
    s.answered();
    s.let_go();
    s.lose_power();
    s.read_all();
    s.end();
}

/// SSDs stand still for some tens of milliseconds now and then, to collect garbage. One such answer made them slower than the disk by an
/// average over eight, and all that a single reader asked for went to the disk, sixty times slower, until the average was halved after
/// four seconds; so did a single writer's. A test of real devices found it, in which compilers kept the processors busy. SSDs that go on
/// being slow leave to the disk what it does sooner, all the same.
#[test]
fn one_slow_answer_of_a_cache_device_sends_nobody_to_the_disk() {
    let mut stage = Stage { segments: 100, ..Stage::default() };
    stage.settings.route = true;
    let mut s = Scene::new("one slow answer", stage);
    let read = |s: &mut Scene| (0..20).for_each(|n| s.read(n * 7 % 20 * 800, 8));
    (0..20).for_each(|n| s.write(n * 7 % 20 * 800, 8));
    s.destage();
    read(&mut s);
    let by_disk = |s: &Scene| {
        let stats = s.status().volumes[0].stats.clone();
        (stats.read_bypass.requests, stats.write_bypass[Bypass::Sooner as usize].requests)
    };
    // One read, and one write, of which a device stands still for 60 ms.
    let stand_still = |s: &mut Scene, ask: &dyn Fn(&mut Scene) -> u64| {
        s.hold_answers(|device, _| matches!(device, Device::Member(_)));
        ask(s);
        s.pass(60 * MILLISECOND);
        let stood = s.world.held_back() > 0;
        s.let_go();
        s.answered();
        stood
    };
    assert!(stand_still(&mut s, &|s| s.world.read(0, 0, 8)));
    read(&mut s);
    assert!(stand_still(&mut s, &|s| s.world.write(0, 8000, 8, false)));
    (0..20).for_each(|n| s.write(16_000 + n * 7 % 20 * 800, 8));
    assert_eq!(by_disk(&s), (0, 0), "the disk served what the cache devices have sooner");
    let slow = (0..30).take_while(|_| stand_still(&mut s, &|s| s.world.read(0, 0, 8))).count();
    assert!((5..20).contains(&slow) && by_disk(&s).0 == 1, "{slow} slow ones until the disk was asked");
    s.flush();
    s.lose_power();
    s.read_all();
    s.end();
}

/// Both cache devices stood still, with something dirty, so that they were waited for. What reads missed came from the disk as ever, was to be
/// let in, and waited in memory for its record: four are written at a time, and of the rest there was as much as the disk brought until they
/// answered, or the daemon had no memory left. Found by reading.
#[test]
fn clean_data_that_waits_for_silent_cache_devices_is_bounded() {
    /// Blocks of 64 records.
    const MOST: u64 = 128;
    let mut stage = Stage { segments: 100, ..Stage::default() };
    stage.settings.record_bytes = 8192;
    let mut s = Scene::new("clean data that waits for silent cache devices is bounded", stage);
    s.write(8, 8);
    s.hold_answers(|device, _| matches!(device, Device::Member(_)));
    (0..5 * MOST).for_each(|n| s.read(80_000 + n * 7919 % 3001 * 48, 8));
    assert!(s.world.held_back() > 0, "{}", s.story());
    s.let_go();
    s.rest();
    let admitted = s.status().volumes[0].stats.admitted.requests;
    assert!((MOST / 2..=MOST + 1).contains(&admitted), "{admitted} blocks waited in memory, of {MOST}; {}", s.story());
    // There is room for more again.
    (0..20).for_each(|n| s.read(40_000 + n * 7919 % 3001 * 8, 8));
    s.rest();
    assert_eq!(s.status().volumes[0].stats.admitted.requests, admitted + 20, "{}", s.story());
    s.end();
}
