//! Devices that answer nothing, and an engine that does not listen: what waits for them, and what must not.

use headpond_engine::format::Mode;
use headpond_engine::{Command, Degraded, Device, DeviceOp};
use headpond_sim::device::SimDevice;
use headpond_sim::models::SECOND;
use headpond_sim::scene::{Scene, Stage};
use std::cell::Cell;
use std::rc::Rc;

/// Sectors of a write that goes past the cache.
const PAST: u64 = 1024;
const DISK: Device = Device::Backing(0);
const SSD: Device = Device::Member(1);

/// How many cache devices are in the pool.
fn in_sync(s: &Scene) -> usize {
    s.status().members.iter().filter(|m| m.in_sync).count()
}

/// A detach of some hundred GiB let go of all of it without a pause. After twenty seconds the thread looked at the clock, found that what it
/// had submitted in that time had been under way since before it, and gave up both cache devices, the superblock's record with them:
/// what was dirty could not be reached, and no start took the pool. A stopped process, or a machine that is paused, is the same. Found by
/// reading: in the simulator the engine had never been late.
#[test]
fn an_engine_that_stood_still_takes_no_cache_device_for_silent() {
    let mut s = Scene::new("an engine that stood still", Stage::default());
    s.write(0, 8);
    s.flush();
    for round in 1..4 {
        s.world.write(0, round * 8000, 8, false);
        s.world.flush(0);
        s.world.read(0, 0, 8);
        // In the middle of it; what is under way has been answered long before the engine looks.
        s.world.stall(100 * SECOND);
        s.answered();
        s.pass(SECOND);
        assert_eq!(in_sync(&s), 2, "in round {round}; {}", s.story());
    }
    // Who has something dirty is waited for anyway, where none answers.
    s.destage();
    for round in 4..7 {
        let checkpoint = s.world.command(Command::Checkpoint);
        s.world.stall(100 * SECOND);
        s.ends_well(checkpoint);
        assert_eq!(in_sync(&s), 2, "in round {round}; {}", s.story());
    }
    // It is listening again: one that is silent from now on leaves.
    s.world.hang(SSD, true);
    s.world.write(0, 80_000, 8, false);
    s.pass(60 * SECOND);
    assert_eq!(in_sync(&s), 1, "{}", s.story());
    s.world.hang(SSD, false);
    s.answered();
    s.read_all();
    s.end();
}

/// A discard over much that is dirty goes to the disk between it, in as many pieces: a GiB may have a hundred thousand, and a few
/// such requests had more operations under way than there were numbers for. Those beyond were submitted, and failed at once for
/// the engine: both cache devices left.
#[test]
fn a_discard_over_much_that_is_dirty_has_few_operations_under_way_at_once() {
    let mut s = Scene::new("a discard in pieces", Stage { segments: 120, ..Stage::default() });
    for n in 0..700 {
        s.world.write(0, n * 263 % 700 * 16, 8, false);
        if n % 50 == 49 {
            s.answered();
        }
    }
    s.rest();
    let held: Rc<Cell<u32>> = Rc::default();
    let count = held.clone();
    s.hold_back(move |device, op| {
        let zeroes = matches!((device, op), (DISK, DeviceOp::Discard { .. } | DeviceOp::WriteZeroes { .. }));
        count.set(count.get() + u32::from(zeroes));
        zeroes
    });
    s.world.discard(0, 0, 700 * 16, 0);
    s.pass(SECOND);
    assert!((1..=256).contains(&held.get()), "{} operations at once; {}", held.get(), s.story());
    s.let_go();
    s.answered();
    s.read_all();
    s.end();
}

/// The disk of one volume hangs, with a bit of its intent map to be cleared: the next checkpoint waited for its flush, and no
/// segment was freed, no copy mended, and no volume detached any more, in the whole pool, until it answered.
#[test]
fn a_disk_that_answers_nothing_holds_up_no_checkpoint() {
    let mut s = Scene::new("a checkpoint without a disk", Stage { volumes: 2, ..Stage::default() });
    s.write(0, PAST);
    s.flush();
    s.world.write(1, 0, 8, false);
    s.answered();
    s.write(8000, PAST);
    s.world.hang(DISK, true);
    s.world.write(0, 16_000, PAST, false);
    let since = s.world.now;
    s.obey(Command::Checkpoint);
    let first = s.world.now - since;
    assert!(first < 30 * SECOND, "the checkpoint took {} s; {}", first / SECOND, s.story());
    let since = s.world.now;
    s.obey(Command::Checkpoint);
    let next = s.world.now - since;
    assert!(next < SECOND, "the next one took {} s; {}", next / SECOND, s.story());
    s.obey(Command::Detach { volume: 1, give_up_lost: false });
    s.world.hang(DISK, false);
    s.answered();
    s.flush();
    s.lose_power();
    s.read_all();
    s.end();
}

/// A cache device falls silent while it is started from: nobody looked at the clock before the start had ended, and it never did.
#[test]
fn a_start_ends_though_a_cache_device_falls_silent_in_it() {
    for operations in [0, 1, 2, 3, 5, 8, 13] {
        let mut s = Scene::new("a start beside a silent device", Stage { segments: 60, ..Stage::default() });
        (0..20).for_each(|n| s.write(n * 6000, 8));
        s.flush();
        s.checkpoint();
        (20..40).for_each(|n| s.write(n * 6000, 8));
        s.flush();
        s.world.kill_landing(|_, _, _| false);
        let start = s.begin_start();
        let until = s.world.operations + operations;
        while s.world.operations < until && s.world.command_result(start).is_none() {
            s.step();
        }
        s.world.hang(SSD, true);
        let since = s.world.now;
        s.ends_well(start);
        let took = s.world.now - since;
        assert!(took < 60 * SECOND, "{} s after {operations} operations; {}", took / SECOND, s.story());
        s.until("all that is cached is known", headpond_sim::world::World::is_loaded);
        s.world.hang(SSD, false);
        s.read_all();
        s.end();
    }
}

/// The disk of the first volume answers nothing when it is compared with what is cached of it: the volumes behind it were not
/// served either. Its own is served when it answers.
#[test]
fn a_start_waits_for_no_disk_that_answers_nothing() {
    let mut s = Scene::new("a start without a disk's answer", Stage { volumes: 2, mode: Mode::WriteBack, ..Stage::default() });
    (0..4).for_each(|n| s.read(n * 8000, 8));
    s.world.write(1, 800, 8, false);
    s.answered();
    s.rest();
    s.checkpoint();
    s.world.kill_landing(|_, _, _| false);
    s.world.hang(DISK, true);
    let start = s.begin_start();
    let since = s.world.now;
    s.ends_well(start);
    let took = s.world.now - since;
    assert!(took < 20 * SECOND, "{} s; {}", took / SECOND, s.story());
    let serving: Vec<bool> = s.status().volumes.iter().map(|v| v.serving).collect();
    assert_eq!(serving, [false, true], "{}", s.story());
    s.world.read(1, 800, 8);
    s.answered();
    s.world.hang(DISK, false);
    s.until("the volume of the late disk is served", |w| {
        w.engine.as_ref().is_some_and(|e| e.status().volumes.iter().all(|v| v.serving))
    });
    s.read(0, 8);
    s.end();
}

/// A bus is reset, or a controller starts again: no cache device answers for a while, and then one after the other. After ten seconds all of them
/// were given up, with all that was dirty; and where they were waited for, the first to answer had the others voted out at once, for what all
/// of them had been silent.
#[test]
fn cache_devices_that_are_silent_together_are_waited_for_and_each_from_the_first_answer_on() {
    for (silence, later) in [(15, 8), (50, 8), (9, 9)] {
        let mut s = Scene::new("a bus that is reset", Stage { members: 3, ..Stage::default() });
        (0..8).for_each(|n| s.write(n * 6000, 8));
        s.flush();
        s.rest();
        let devices = [0, 1, 2].map(Device::Member);
        devices.into_iter().for_each(|m| s.world.hang(m, true));
        for n in 0..8 {
            s.world.write(0, n * 6000 + 8, 8, false);
            s.world.read(0, n * 6000, 8);
        }
        s.world.flush(0);
        s.pass(silence * SECOND);
        for m in devices {
            assert_eq!(in_sync(&s), 3, "{silence} s, before {m} answers; {}", s.story());
            s.world.hang(m, false);
            // The next one has as long from then on, though it owes an answer for longer.
            s.pass(if m == Device::Member(0) { later * SECOND } else { SECOND });
        }
        s.answered();
        assert_eq!(in_sync(&s), 3, "after {silence} s; {}", s.story());
        s.read_all();
        // Together again: one that does not come back leaves.
        devices.into_iter().for_each(|m| s.world.hang(m, true));
        s.world.write(0, 90_000, 8, false);
        s.pass(15 * SECOND);
        [0, 1].into_iter().for_each(|m| s.world.hang(Device::Member(m), false));
        s.world.write(0, 92_000, 8, false);
        s.world.write(0, 94_000, 8, false);
        s.pass(14 * SECOND);
        s.answered();
        assert_eq!(in_sync(&s), 2, "after {silence} s; {}", s.story());
        s.world.hang(Device::Member(2), false);
        s.read_all();
        s.end();
    }
}

/// One cache device has all that is dirty, since the other one has died. It falls silent just as a new one has joined, which answers, and has
/// nothing: after ten seconds the one with the data had to go.
#[test]
fn a_cache_device_that_alone_has_something_dirty_is_waited_for_beside_one_that_answers() {
    let mut stage = Stage { segments: 60, ..Stage::default() };
    stage.settings.degraded = Degraded::Continue;
    let mut s = Scene::new("the only holder", stage);
    (0..20).for_each(|n| s.write(n * 6000, 8));
    s.flush();
    s.world.hang(DISK, true);
    s.set_dead(SSD, true);
    s.write(130_000, 8);
    s.flush();
    assert_eq!(in_sync(&s), 1, "{}", s.story());
    let bytes = s.stage.member_bytes();
    s.world.devices.insert(SSD, SimDevice::new(bytes, None));
    let joins = s.world.command(Command::AddMember { member: 1, id: [99; 16], bytes });
    s.until("it has joined", |w| w.engine.as_ref().is_some_and(|e| e.status().members.iter().all(|m| m.in_sync)));
    assert!(s.status().lacking_copies > 0, "{}", s.story());
    s.world.hang(Device::Member(0), true);
    s.world.read(0, 0, 8);
    s.pass(45 * SECOND);
    assert_eq!(in_sync(&s), 2, "{}", s.story());
    s.world.hang(Device::Member(0), false);
    s.world.hang(DISK, false);
    s.ends_well(joins);
    s.read_all();
    s.until("all has its copies", |w| w.engine.as_ref().is_some_and(|e| e.status().lacking_copies == 0));
    s.end();
}

/// Whoever reads from one cache device asks the other one nothing. Nobody knows then that it would answer, and so not that the silent one is
/// silent alone: what is needed of both would be waited for, for ever.
#[test]
fn a_cache_device_that_owes_nothing_is_asked_whether_it_answers_while_another_is_silent() {
    let mut s = Scene::new("an idle device beside a silent one", Stage::default());
    s.write(0, 8);
    s.flush();
    s.rest();
    s.pass(100 * SECOND);
    let reads_from = s.copies(0)[0].0;
    s.world.hang(reads_from, true);
    let read = s.world.read(0, 0, 8);
    // It is read from the other one, and the silent one leaves for not taking the repair.
    s.pass(30 * SECOND);
    assert!(!s.world.waits(read), "{}", s.story());
    assert_eq!(in_sync(&s), 1, "{}", s.story());
    s.world.hang(reads_from, false);
    s.read_all();
    s.end();
}

/// One volume's disk answers nothing, while what is pinned is brought from it: what was pinned on all other volumes waited behind that.
#[test]
fn a_disk_that_answers_nothing_keeps_no_other_volumes_pins_from_coming() {
    let mut stage = Stage { volumes: 2, segments: 60, ..Stage::default() };
    stage.settings.idle_ns = SECOND / 50;
    let mut s = Scene::new("pins beside a silent disk", stage);
    s.world.hang(DISK, true);
    for volume in [0, 1] {
        s.obey(Command::Pin { volume, ranges: std::iter::once(8000..8512).collect() });
    }
    s.pass(5 * SECOND);
    let cached: Vec<u64> = s.status().volumes.iter().map(|v| v.cached_blocks).collect();
    assert_eq!(cached, [0, 64], "{}", s.story());
    s.world.hang(DISK, false);
    s.pass(5 * SECOND);
    let cached: Vec<u64> = s.status().volumes.iter().map(|v| v.cached_blocks).collect();
    assert_eq!(cached, [64, 64], "{}", s.story());
    s.end();
}
