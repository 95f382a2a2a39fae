//! A volume that will never be served again is thrown away, with all that the cache has of it: nothing else goes with it,
//! and nothing of it stays.

use headpond_engine::format::Mode;
use headpond_engine::{Command, CommandError, CommandId, Device, DeviceOp, Settings};
use headpond_sim::SimBuf;
use headpond_sim::scene::{Scene, Stage};

const DISK: Device = Device::Backing(0);
/// Sectors of a write that goes past the cache.
const PAST: u64 = 1024;
/// A millisecond: long enough for whatever is not held back to end.
const MOMENT: u64 = 1_000_000;

/// The first volume has dirty data on both cache devices, and its disk is gone; the second one is served.
fn without_its_disk(story: &str) -> Scene {
    let mut s = Scene::new(story, Stage { volumes: 2, ..Stage::default() });
    s.world.write(1, 800, 8, false);
    for n in 0..16 {
        s.write(n * 10_000, 8);
    }
    s.flush();
    s.set_dead(DISK, true);
    s.kill();
    s.rest();
    let v = &s.status().volumes[0];
    assert!(!v.serving && !v.refused && v.dirty_blocks == 16, "{story}: {v:?}");
    s
}

/// Its disk is there, and what is dirty is on its way there: who throws it away has taken it for another one.
#[test]
fn one_that_is_served_is_kept() {
    let mut s = Scene::new("thrown away while it is served", Stage::default());
    s.write(0, 8);
    s.flush();
    let id = s.world.command(Command::Abandon { volume: 0 });
    assert_eq!(s.end_of(id), Err(CommandError::Served), "{}", s.story());
    s.read_all();
    s.lose_power();
    s.end();
}

/// One that is being detached is served no more. Whoever takes it for one that never will be ends with two commands that
/// take it off the pool, the second one whatever has its number by then.
#[test]
fn one_that_is_being_detached_is_left_to_its_detach() {
    let mut s = Scene::new("thrown away under its detach", Stage::default());
    s.write(0, PAST);
    s.hold_back(|device, op| device == DISK && matches!(op, DeviceOp::Flush));
    let detach = s.world.command(Command::Detach { volume: 0, give_up_lost: false });
    s.until_held();
    s.pass(MOMENT);
    assert!(!s.status().volumes[0].serving, "{}: the detach has not come that far", s.story());
    let id = s.world.command(Command::Abandon { volume: 0 });
    assert_eq!(s.end_of(id), Err(CommandError::Served), "{}", s.story());
    s.let_go();
    s.ends_well(detach);
    s.world.check_disk(0);
    s.end();
}

/// The power goes at each step of it, and the disk turns up after all: the volume is gone, or all that was dirty is there.
/// If the pool lets go of its data first and is told of it later, the disk's older data is served in its place.
#[test]
fn it_is_whole_until_the_pool_is_told() {
    let (mut there, mut gone) = (0, 0);
    for k in 0.. {
        let mut s = without_its_disk(&format!("thrown away, and the power goes after {k} operations"));
        let before = s.world.operations;
        let id = s.world.command(Command::Abandon { volume: 0 });
        while s.world.command_result(id).is_none() && s.world.operations < before + k {
            s.step();
        }
        let done = s.world.command_result(id).is_some();
        s.set_dead(DISK, false);
        s.lose_power();
        match s.status().volumes.iter().find(|v| v.number == 0) {
            Some(v) => {
                assert!(v.serving && v.dirty_blocks == 16 && !done, "{}: {v:?}", s.story());
                there += 1;
            }
            None => gone += 1,
        }
        s.end();
        if done {
            break;
        }
    }
    assert!(there > 4 && gone > 4, "there after {there} cuts, gone after {gone}");
}

/// What was dirty of it takes no room any more: nobody else could ever free that.
#[test]
fn its_room_is_the_others() {
    let mut s = without_its_disk("the room of one that was thrown away");
    s.obey(Command::Destage { volume: 1 });
    s.obey(Command::Abandon { volume: 0 });
    let (mut left, mut cached) = (0, 0);
    let engine = s.world.engine.as_ref().expect("a daemon lives");
    engine.each_segment(|_, segment| left += segment.live);
    engine.each_piece(1, |_, _| cached += 1);
    assert_eq!(left, cached, "{}: pieces of no volume take room", s.story());
    s.end();
}

/// The daemon dies before the checkpoint that follows, and another volume gets its number: image and log still have what
/// was dirty.
#[test]
fn nothing_of_it_comes_back_in_the_next_volume() {
    let mut s = without_its_disk("what was thrown away comes back");
    let layout = s.stage.layout();
    let images = layout.checkpoint(0)..layout.slot(0);
    let pages = move |device: Device, op: &DeviceOp<SimBuf>| {
        matches!(device, Device::Member(_)) && matches!(op, DeviceOp::Write { offset, .. } if images.contains(offset))
    };
    s.hold_back(pages.clone());
    s.world.command(Command::Abandon { volume: 0 });
    s.until_held();
    s.pass(10 * MOMENT);
    // Nor does the start get to one.
    s.world.kill_landing(|_, _, _| false);
    s.hold_back(pages);
    let start = s.begin_start();
    s.ends_well(start);
    assert_eq!(s.status().volumes.len(), 1, "{}: not thrown away", s.story());
    s.exchange_disk(0);
    // An attach that does not wait for a checkpoint is done before there is one.
    s.world.command(Command::Attach(s.stage.volume(0)));
    s.pass(100 * MOMENT);
    s.kill();
    if s.status().volumes.len() == 1 {
        s.obey(Command::Attach(s.stage.volume(0)));
    }
    assert_eq!(s.dirty(), 0, "{}: the new volume has dirty data", s.story());
    s.read(0, 8);
    s.end();
}

/// A preload finds a write where it wants to read, and looks again after a while. Meanwhile the write ends, and the volume is detached, for
/// which nothing is under way any more. What was brought then was in the map of a volume that is gone: nobody could let go of it, and
/// the engine looked for room there for ever. Found by a fresh seed, 399932329851.
#[test]
fn nothing_is_brought_into_the_cache_for_a_volume_that_is_gone() {
    let mut s = Scene::new("a preload beside a detach", Stage::default());
    s.hold_back(|device, op| matches!((device, op), (Device::Backing(_), DeviceOp::Write { .. })));
    s.world.write(0, 0, 256, false);
    s.until_held();
    let preload = s.world.command(Command::Preload { volume: 0, ranges: std::iter::once(0..256).collect() });
    s.pass(1_000_000);
    s.let_go();
    s.answered();
    let detach = s.world.command(Command::Detach { volume: 0, give_up_lost: false });
    s.ends_well(detach);
    assert!(s.world.command_result(preload).is_none(), "{}: the preload has ended already", s.story());
    let _ = s.end_of(preload);
    s.pass(50_000_000);
    let mut left = 0;
    s.world.engine.as_ref().expect("a daemon lives").each_segment(|_, segment| left += segment.live);
    assert_eq!(left, 0, "{}: pieces of no volume take room", s.story());
    s.check();
}

/// A detach passed the cache from its beginning, and had that written down: the daemon died in the middle, or its owner gave it up, and the
/// volume was in pass-through for good, and nobody said so. Now it is what it was.
#[test]
fn a_detach_that_is_cut_off_leaves_the_mode_as_it_was() {
    let mut s = Scene::new("a detach cut off", Stage::default());
    let mode = |s: &Scene| s.status().volumes[0].mode;
    (0..16).for_each(|n| s.write(n * 10_000, 8));
    s.flush();
    for dies in [true, false] {
        s.hold_back(|device, op| device == DISK && matches!(op, DeviceOp::Write { .. }));
        let detach = s.world.command(Command::Detach { volume: 0, give_up_lost: false });
        s.until_held();
        s.obey(Command::Checkpoint);
        assert_eq!(mode(&s), Mode::PassThrough, "{}", s.story());
        if dies {
            s.kill();
        } else {
            s.world.command(Command::Cancel(CommandId(detach)));
            s.let_go();
            assert_eq!(s.end_of(detach), Err(CommandError::Cancelled), "{}", s.story());
        }
        assert_eq!(mode(&s), Mode::WriteBack, "{}", s.story());
        s.let_go();
        (0..16).for_each(|n| s.write(n * 10_000, 8));
    }
    s.end();
}

/// A second detach of a volume is refused: where it ended, cancelled, while the first one was still to give up what is lost, writes were
/// absorbed again that the first one then gave up as well. Found by reading.
#[test]
fn a_volume_is_detached_by_one_command_at_a_time() {
    let mut s = Scene::new("two detaches", Stage::default());
    (0..16).for_each(|n| s.write(n * 10_000, 8));
    s.flush();
    s.hold_back(|device, op| device == DISK && matches!(op, DeviceOp::Write { .. }));
    let first = s.world.command(Command::Detach { volume: 0, give_up_lost: false });
    s.until_held();
    let second = s.world.command(Command::Detach { volume: 0, give_up_lost: true });
    assert_eq!(s.end_of(second), Err(CommandError::DetachBusy), "{}", s.story());
    assert_eq!(s.status().volumes[0].mode, Mode::PassThrough, "the first one goes on; {}", s.story());
    s.let_go();
    s.ends_well(first);
    s.world.check_disk(0);
    s.end();
}

/// The disk is not there, and something is dirty: who asks for it to be destaged, or for a mode in which nothing is, was waiting for as long as the daemon lived, and nobody
/// could throw the volume away meanwhile. Found by reading.
#[test]
fn what_cannot_be_destaged_without_its_disk_is_refused_at_once() {
    let mut s = without_its_disk("a destage without a disk");
    for command in [Command::Destage { volume: 0 }, Command::SetMode { volume: 0, mode: Mode::WriteThrough }] {
        let (id, since) = (s.world.command(command), s.world.now);
        assert_eq!(s.end_of(id), Err(CommandError::NotServed), "{}", s.story());
        assert!(s.world.now - since < 10_000 * MOMENT, "{}", s.story());
    }
    assert_eq!(s.status().volumes[0].mode, Mode::WriteBack, "{}", s.story());
    s.set_dead(DISK, false);
    s.kill();
    s.read_all();
    s.end();
}

/// A volume that is detached was kept in memory by the tasks that worked for it, with its map, up to the end of the daemon. Found by reading.
#[test]
fn nothing_works_for_a_volume_that_was_detached() {
    let mut s = Scene::new("attached and detached", Stage::default());
    let tasks = |s: &Scene| s.world.engine.as_ref().map_or(0, |e| e.tasks());
    let before = tasks(&s);
    for _ in 0..8 {
        s.obey(Command::Attach(s.stage.volume(1)));
        let write = s.world.write(1, 800, 8, false);
        assert!(s.answer_to(write));
        s.obey(Command::Detach { volume: 1, give_up_lost: false });
    }
    s.pass(1000 * MOMENT);
    assert_eq!(tasks(&s), before, "{}", s.story());
    s.end();
}

/// A volume that is thrown away had all of it let go of at once: of a map of a billion blocks that is minutes in which nobody else is answered. What is clean of it
/// goes in turns before. Found by reading.
#[test]
fn what_is_clean_of_one_that_is_thrown_away_keeps_nobody_waiting() {
    let usual = Stage::default();
    let settings = Settings { let_go_blocks: 16, ..usual.settings };
    let mut s = Scene::new("much that is thrown away", Stage { volumes: 2, segments: 60, settings, ..usual });
    for n in 0..200 {
        s.write(n * 1000, 8);
    }
    s.destage();
    s.write(400, 8);
    s.flush();
    s.set_dead(DISK, true);
    s.kill();
    s.rest();
    let cached = |s: &Scene| s.status().volumes.iter().find(|v| v.number == 0).map_or(0, |v| v.cached_blocks);
    let (first, mut before, mut most) = (cached(&s), cached(&s), 0);
    let id = s.world.command(Command::Abandon { volume: 0 });
    while s.world.command_result(id).is_none() {
        s.step();
        most = most.max(before - cached(&s));
        before = cached(&s);
    }
    assert!(first > 150 && most <= 40, "{}: {most} blocks at once, of {first}", s.story());
    s.end();
}

/// The first volume has dirty data, and its disk is gone; of its two cache devices one has left, and what only the other one has is being copied: reads of that one, which
/// is told, do not end.
fn being_copied(story: &str) -> (Scene, Device) {
    let mut s = Scene::new(story, Stage { volumes: 2, members: 3, ..Stage::default() });
    s.write(0, 8);
    s.flush();
    s.set_dead(DISK, true);
    s.kill();
    s.rest();
    let copies: Vec<Device> = s.copies(0).iter().map(|copy| copy.0).collect();
    let (leaves, stays) = (copies[0], copies[1]);
    s.hold_back(move |device, op| device == stays && matches!(op, DeviceOp::Read { .. }));
    s.set_dead(leaves, true);
    s.obey(Command::Checkpoint);
    s.until_held();
    (s, stays)
}

/// Its disk comes while it is being thrown away: it is served, and is not thrown away. Who asked for it waited until its clients had nothing under way, and
/// meanwhile a device that alone had something dirty of it was no more waited for. Found by reading.
#[test]
fn one_whose_disk_comes_under_it_is_not_thrown_away_and_nobody_waits_for_its_clients() {
    let (mut s, stays) = being_copied("thrown away, and its disk comes");
    let id = s.world.command(Command::Abandon { volume: 0 });
    s.pass(10 * MOMENT);
    s.set_dead(DISK, false);
    s.obey(Command::BackingCame { volume: 0 });
    // It is copied all the time.
    s.pass(10 * MOMENT);
    assert!(s.world.held_back() > 0, "{}", s.story());
    assert_eq!(s.world.command_result(id), Some(Err(CommandError::Served)), "{}", s.story());
    let read = s.world.read(0, 0, 8);
    s.world.hang(stays, true);
    s.pass(50_000 * MOMENT);
    assert!(s.world.waits(read), "{}: not waited for", s.story());
    s.let_go();
    s.world.hang(stays, false);
    assert!(s.answer_to(read), "{}", s.story());
    s.end();
}

/// As many cache devices have gone as there are copies, and the volume is refused, whatever becomes of its disk. That comes while it is being thrown away, and a silent
/// device that alone had something dirty of it was waited for again, as if it were in use, and the command with it. Found by reading.
#[test]
fn one_that_is_refused_is_thrown_away_beside_a_silent_device_though_its_disk_comes() {
    let mut s = Scene::new("thrown away though its disk comes", Stage { volumes: 2, members: 5, ..Stage::default() });
    (0..60).for_each(|n| s.write(n * 1000, 8));
    s.flush();
    let devices = |s: &Scene, sector: u64| s.copies(sector).iter().map(|copy| copy.0).collect::<Vec<Device>>();
    let gone = devices(&s, 0);
    let others = |s: &Scene, n: &u64| devices(s, n * 1000).iter().all(|device| !gone.contains(device));
    let kept = devices(&s, (0..60).find(|n| others(&s, n)).expect("something is on two others") * 1000);
    let (leaves, stays) = (kept[0], kept[1]);
    s.stage.settings.without_missing = true;
    gone.iter().chain([&DISK]).for_each(|device| s.set_dead(*device, true));
    s.kill();
    s.rest();
    assert!(s.status().volumes[0].refused, "{}", s.story());
    s.world.errors_allowed = true;
    s.hold_back(move |device, op| device == stays && matches!(op, DeviceOp::Read { .. }));
    s.set_dead(leaves, true);
    s.obey(Command::Checkpoint);
    s.until_held();
    let id = s.world.command(Command::Abandon { volume: 0 });
    s.pass(10 * MOMENT);
    s.set_dead(DISK, false);
    let comes = s.world.command(Command::BackingCame { volume: 0 });
    assert_eq!(s.end_of(comes), Err(CommandError::Refused), "{}", s.story());
    s.world.hang(stays, true);
    // Each of its segments is given up by itself.
    s.pass(300_000 * MOMENT);
    assert_eq!(s.world.command_result(id), Some(Ok(())), "{}", s.story());
}

/// What only one cache device has is being copied when that falls silent, too. Since it alone has something dirty it is waited for; and who threw the volume away, so that
/// nothing of it is dirty any more, waited with it. Found by reading.
#[test]
fn one_of_which_a_silent_device_has_the_only_copies_is_thrown_away() {
    let (mut s, stays) = being_copied("thrown away beside a silent device");
    s.world.errors_allowed = true;
    s.world.hang(stays, true);
    let id = s.world.command(Command::Abandon { volume: 0 });
    s.pass(50_000 * MOMENT);
    assert_eq!(s.world.command_result(id), Some(Ok(())), "{}", s.story());
}
