//! What is doubted of a volume, and no start may forget: that a flush of its disk failed, that a last copy is gone, that dirty data may be
//! missing.

use headpond_engine::format::Mode;
use headpond_engine::{Command, CommandError, Device, DeviceOp, Settings};
use headpond_sim::device::SimDevice;
use headpond_sim::models::SECOND;
use headpond_sim::scene::{DISKLESS, Scene, Stage};
use std::cell::Cell;
use std::rc::Rc;

/// Sectors of a write that goes past the cache.
const PAST: u64 = 1024;
const DISK: Device = Device::Backing(0);

/// A write past the cache is acknowledged under a flush of destage, which fails, and may have taken it along; the destage goes on.
pub fn failed_under_a_write(story: &str, seed: u64) -> (Scene, u64) {
    let mut s = Scene::new(story, Stage { seed, ..Stage::default() });
    s.write(50_000, 8);
    s.flush();
    s.hold_back(|device, op| device == DISK && matches!(op, DeviceOp::Flush));
    let destage = s.world.command(Command::Destage { volume: 0 });
    s.until_held();
    s.write(0, PAST);
    s.let_go_failing(DISK);
    (s, destage)
}

/// The same, and all is destaged. No client was told yet.
fn untold(story: &str, seed: u64) -> Scene {
    let (mut s, destage) = failed_under_a_write(story, seed);
    assert_eq!(s.end_of(destage), Err(CommandError::Unkept), "{story}");
    s
}

/// The next FLUSH fails, and the one after it does not.
fn told_once(s: &mut Scene) {
    s.world.errors_allowed = true;
    let flush = s.world.flush(0);
    assert!(!s.answer_to(flush), "{}: what a failed flush may have taken along is called durable", s.story());
    s.world.errors_allowed = false;
    s.flush();
}

/// What was written past the cache is read again, here and there, as a stream would not be cached; and what can be called clean is.
fn read_again(s: &mut Scene) {
    for n in 0..PAST / 8 {
        s.read(n * 37 % (PAST / 8) * 8, 8);
    }
    s.rest();
    s.checkpoint();
    s.checkpoint();
    s.write(60_000, 8);
}

/// The daemon ends before any client has flushed: it is killed, or told to. The next one knew of no failure, and its first FLUSH called
/// durable what the disk no longer had.
#[test]
fn a_flush_that_failed_before_the_daemon_ended_is_told_by_the_next_one() {
    for stops in [false, true] {
        for seed in 0..8 {
            let mut s = untold("a flush that failed in an earlier life", seed);
            if stops {
                s.obey(Command::Stop);
            }
            s.kill();
            told_once(&mut s);
            s.pass(2 * SECOND);
            s.lose_power();
            s.read_all();
            // A client was told, and nobody is told again.
            s.write(0, PAST);
            s.flush();
            s.end();
        }
    }
}

/// What was written there is read again, in the same life or the next one, from a disk that has it in its cache and will not keep it. The copy was called clean, its
/// region's bit was cleared after a flush that ended well, and a power cut left the cache newer than the disk: the volume was refused, or read as
/// what nobody had.
#[test]
fn what_a_failed_flush_took_along_is_not_trusted_by_a_later_life() {
    for (seed, dies) in (0..8).flat_map(|seed| [(seed, true), (seed, false)]) {
        let mut s = untold("a region that stays doubted", seed);
        if dies {
            s.kill();
        }
        told_once(&mut s);
        read_again(&mut s);
        s.flush();
        s.lose_power();
        assert!(s.status().volumes[0].serving, "{}", s.story());
        s.read_all();
        s.end();
    }
}

/// A volume is detached of which a flush has failed, and no client has flushed since: nobody is left who could be told but who asks for that.
#[test]
fn a_detach_tells_of_a_flush_that_failed_and_goes_through_when_it_is_asked_again() {
    let mut s = untold("a detach after a failed flush", 3);
    let detach = s.world.command(Command::Detach { volume: 0, give_up_lost: false });
    assert_eq!(s.end_of(detach), Err(CommandError::Unkept), "{}", s.story());
    assert!(s.status().volumes[0].serving, "{}", s.story());
    s.write(0, PAST);
    s.end();
}

/// The last copy of something goes while two FLUSHes are under way. Each may cover it, and the second one that ended was told that all is well.
#[test]
fn the_loss_of_a_last_copy_is_told_to_each_flush_that_was_under_way() {
    let mut s = Scene::new("two flushes and a loss", Stage { members: 4, ..Stage::default() });
    (0..12).for_each(|n| s.write(n * 8000, 8));
    let copies: Vec<Device> = s.copies(0).iter().map(|c| c.0).collect();
    s.hold_back(|device, op| matches!((device, op), (Device::Member(_), DeviceOp::Flush)));
    let flushes = [s.world.flush(0), s.world.flush(0)];
    s.until_held();
    s.world.errors_allowed = true;
    copies.iter().for_each(|device| s.set_dead(*device, true));
    s.let_go();
    s.until("both are answered", |w| flushes.iter().all(|flush| !w.waits(*flush)));
    let told = s.world.take_ended().iter().filter(|e| flushes.contains(&e.id) && e.error.is_some()).count();
    assert_eq!(told, 2, "{}", s.story());
}

/// The disk of one volume was changed, and that one is refused. A cache device dies, all that was dirty is copied again, and another one is missing at the
/// next start. As long as any volume was refused no superblock said that all has its copies: the pool, with a whole copy of everything, did not start.
#[test]
fn a_volume_that_is_refused_does_not_keep_the_losses_of_others_counted() {
    let stage = Stage { members: 3, segments: 60, volumes: 2, ..Stage::default() };
    let mut s = Scene::new("refused beside another", stage);
    let other = Device::Backing(1);
    for n in 0..8 {
        let write = s.world.write(1, n * 6000, 8, false);
        assert!(s.answer_to(write));
    }
    s.obey(Command::Destage { volume: 1 });
    s.checkpoint();
    let write = s.world.write(1, 100_000, 8, false);
    assert!(s.answer_to(write));
    (0..20).for_each(|n| s.write(n * 6000, 8));
    s.flush();
    s.checkpoint();
    s.world.kill_landing(|_, _, _| false);
    let bytes = s.stage.sectors * 512;
    let right = core::mem::replace(s.device(other), SimDevice::new(bytes, Some(1 << 55)));
    s.start();
    assert!(s.status().volumes[1].refused && s.status().volumes[0].serving, "{}", s.story());
    // What is destaged needs no copy.
    s.world.hang(DISK, true);
    let gone = s.copies(0)[0].0;
    s.set_dead(gone, true);
    s.write(130_000, 8);
    s.until("it has left", |w| w.engine.as_ref().is_some_and(|e| e.status().members.iter().filter(|m| m.in_sync).count() == 2));
    s.until("all has its copies", |w| w.engine.as_ref().is_some_and(|e| e.status().lacking_copies == 0));
    s.pass(SECOND);
    let next = s.copies(0)[0].0;
    s.world.cut_power_keeping(|_, _, _| false);
    s.world.hang(DISK, false);
    s.set_dead(next, true);
    s.start();
    assert!(s.status().volumes[0].serving, "{}", s.story());
    s.read_all();
    s.world.kill_landing(|_, _, _| false);
    *s.device(other) = right;
    s.start();
    s.end();
}

/// Of four cache devices two are gone for good, and the volume that may lack data is refused. Another one, attached since, lacks nothing, and is served after
/// each start; the first one stays refused, also when all has its copies again.
#[test]
fn a_volume_that_may_lack_data_is_refused_until_it_is_given_up_and_no_other_is() {
    let mut s = Scene::new("uncertain", Stage { members: 4, ..Stage::default() });
    (0..200).for_each(|n| s.write(n * 64, 8));
    s.flush();
    for (device, _) in s.copies(0) {
        s.set_dead(device, true);
    }
    s.stage.settings.without_missing = true;
    s.lose_power();
    s.stage.settings.without_missing = false;
    s.obey(Command::Attach(s.stage.volume(1)));
    let write = s.world.write(1, 8000, 8, false);
    assert!(s.answer_to(write));
    s.checkpoint();
    let stands = |s: &Scene| s.status().volumes.iter().map(|v| (v.refused, v.serving)).collect::<Vec<_>>();
    for _ in 0..2 {
        s.kill();
        assert_eq!(stands(&s), [(true, false), (false, true)], "{}", s.story());
    }
    s.obey(Command::Abandon { volume: 0 });
    s.kill();
    assert_eq!(stands(&s), [(false, true)], "{}", s.story());
    s.read_all();
    s.end();
}

/// A disk fails each flush for a while, and a client asks again and again. That it was told is written down when it has been true for a second: two superblocks for
/// each flush would wear the cache devices out.
#[test]
fn a_disk_that_fails_flush_after_flush_does_not_wear_the_cache_devices_out() {
    let mut s = untold("flush after flush", 1);
    s.world.errors_allowed = true;
    s.device(DISK).fail_flushes = 1;
    s.pass(SECOND);
    let before = s.device(Device::Member(0)).written;
    for _ in 0..100 {
        s.write(0, PAST);
        let flush = s.world.flush(0);
        assert!(!s.answer_to(flush), "{}", s.story());
        s.pass(SECOND / 100);
    }
    let written = s.device(Device::Member(0)).written - before;
    assert!(written < 128 << 10, "{written} bytes; {}", s.story());
    s.device(DISK).fail_flushes = 0;
    s.world.errors_allowed = false;
    s.end();
}

/// A client was told of one failed flush, which is to be written down a second later. In that second another superblock says so, and then a flush that no
/// client had asked for fails. That one was compared with what had been written down a second before, and seemed to be there. Found by reading.
#[test]
fn a_second_flush_that_fails_while_the_first_is_being_told_is_written_down_as_well() {
    let mut s = untold("a second failure within a second", 1);
    told_once(&mut s);
    s.obey(Command::SetMode { volume: 0, mode: Mode::WriteBack });
    s.write(50_000, 8);
    s.hold_back(|device, op| device == DISK && matches!(op, DeviceOp::Flush));
    let destage = s.world.command(Command::Destage { volume: 0 });
    s.until_held();
    s.write(0, PAST);
    s.let_go_failing(DISK);
    assert_eq!(s.end_of(destage), Err(CommandError::Unkept), "{}", s.story());
    s.pass(2 * SECOND);
    s.world.kill_landing(|_, _, _| false);
    s.start();
    told_once(&mut s);
    s.end();
}

/// The first flush of a life fails, and a client is told; within the second in which that is not written down yet something is written past the cache, and its flush
/// fails as well. That what it took along is doubted has to be written down at once. Found by reading.
#[test]
fn what_a_flush_takes_along_is_doubted_at_once_though_a_client_was_just_told_of_another() {
    for seed in 0..8 {
        let mut s = Scene::new("doubted within a second", Stage { seed, ..Stage::default() });
        s.write(0, 8);
        s.obey(Command::Destage { volume: 0 });
        s.checkpoint();
        s.obey(Command::Stop);
        s.kill();
        s.checkpoint();
        s.rest();
        s.world.errors_allowed = true;
        for written in [0, PAST] {
            if written > 0 {
                s.write(0, written);
            }
            s.device(DISK).fail_flushes = 1;
            let flush = s.world.flush(0);
            assert!(!s.answer_to(flush), "{}", s.story());
            s.device(DISK).fail_flushes = 0;
            s.pass(SECOND / 100);
        }
        s.world.errors_allowed = false;
        s.world.kill_landing(|_, _, _| false);
        s.start();
        read_again(&mut s);
        s.world.errors_allowed = true;
        s.world.flush(0);
        s.answered();
        s.world.errors_allowed = false;
        // That it was told is written down by then.
        s.pass(2 * SECOND);
        s.lose_power();
        assert!(s.status().volumes[0].serving, "{}", s.story());
        s.read_all();
        s.end();
    }
}

/// The disk does not keep what it was given when the daemon is told to end. It ended before that was written down, and the next one's FLUSH called it durable;
/// nor did the other volume's disk get its flush. Found by reading.
#[test]
fn a_stop_whose_flush_fails_leaves_word_of_it_and_does_the_rest() {
    for seed in 0..8 {
        let mut s = Scene::new("a stop that the disk fails", Stage { volumes: 2, seed, ..Stage::default() });
        let other = s.world.write(1, 0, PAST, false);
        assert!(s.answer_to(other));
        s.flush();
        s.write(0, PAST);
        s.device(DISK).fail_flushes = 1;
        s.rest();
        let checkpoints = s.status().stats.checkpoints;
        let stop = s.world.command(Command::Stop);
        assert_eq!(s.end_of(stop), Err(CommandError::Disk), "{}", s.story());
        assert_eq!(s.device(Device::Backing(1)).unflushed().count(), 0, "{}: the other disk is not flushed", s.story());
        assert!(s.status().stats.checkpoints > checkpoints, "{}: there is no last checkpoint", s.story());
        s.device(DISK).fail_flushes = 0;
        s.world.kill_landing(|_, _, _| false);
        s.start();
        told_once(&mut s);
        s.end();
    }
}

/// A FLUSH is under way at the disk, which is held, when a write of so many sectors comes and is acknowledged; and which FLUSH.
fn acknowledged_under_a_flush(story: &str, sectors: u64) -> (Scene, u64) {
    let mut s = Scene::new(story, Stage::default());
    s.write(0, PAST);
    s.hold_back(|device, op| device == DISK && matches!(op, DeviceOp::Flush));
    let flush = s.world.flush(0);
    s.until_held();
    let write = s.world.write(0, 100_000, sectors, false);
    assert!(s.answer_to(write), "{story}");
    (s, flush)
}

/// A flush of the disk is under way when a write past the cache is acknowledged, and two more FLUSHes come. The first flush fails, and may have taken
/// the write along. The client that had asked for it was told; of those who had asked after the write the first took what is to be told, and the other
/// was told that all is durable. Found by reading.
#[test]
fn a_failed_flush_is_told_to_each_flush_that_was_under_way() {
    let (mut s, first) = acknowledged_under_a_flush("three flushes and a failure", PAST);
    let flushes = [first, s.world.flush(0), s.world.flush(0)];
    s.pass(SECOND / 100);
    s.world.errors_allowed = true;
    s.let_go_failing(DISK);
    s.until("all are answered", |w| flushes.iter().all(|flush| !w.waits(*flush)));
    let told = s.world.take_ended().iter().filter(|e| flushes.contains(&e.id) && e.error.is_some()).count();
    assert_eq!(told, 3, "{}", s.story());
    s.world.errors_allowed = false;
    s.write(0, PAST);
    s.write(100_000, PAST);
    s.flush();
    s.end();
}

/// The same, and the second FLUSH comes when the first has been answered: that one began before the write was acknowledged, and was no answer to who
/// wrote. It took along what he was to be told. Found by reading.
#[test]
fn a_failed_flush_is_told_to_the_flush_after_a_write_though_one_from_before_it_was_told() {
    let (mut s, first) = acknowledged_under_a_flush("a flush from before the write", PAST);
    s.world.errors_allowed = true;
    s.let_go_failing(DISK);
    assert!(!s.answer_to(first), "{}", s.story());
    told_once(&mut s);
    s.end();
}

/// The same where the cache has the write: the disk has nothing of it, and nobody else is told of the disk's failure.
#[test]
fn a_failed_flush_of_the_disk_is_not_told_again_for_what_the_cache_has_taken_meanwhile() {
    let (mut s, first) = acknowledged_under_a_flush("absorbed under a flush", 8);
    s.world.errors_allowed = true;
    s.let_go_failing(DISK);
    assert!(!s.answer_to(first), "{}", s.story());
    s.world.errors_allowed = false;
    let next = s.world.flush(0);
    assert!(s.answer_to(next), "{}: told again", s.story());
    s.end();
}

/// The daemon flushes what it serves, by itself, while a client is to be told of a flush that has failed. Its own had been a client's, and he was
/// told nothing; then it was answered with nothing flushed, and so was whoever flushed beside it. Found by reading.
#[test]
fn the_daemons_own_flush_makes_durable_what_was_acknowledged_and_leaves_clients_to_be_told() {
    let mut s = untold("the daemon's own flush", 1);
    s.write(100_000, PAST);
    let own = s.world.own_flush(0);
    assert!(s.answer_to(own), "{}", s.story());
    assert_eq!(s.device(DISK).unflushed().count(), 0, "{}: the disk is not flushed", s.story());
    told_once(&mut s);
    s.end();
}

/// The disk of one volume answers nothing when the daemon is told to end. It waited for its flush for ever, and nothing was written down of the other one's cache.
/// Where several answer nothing it waited for one after the other. Found by reading.
#[test]
fn a_stop_does_not_wait_for_a_disk_that_answers_nothing() {
    for (asked, both) in [(false, false), (true, false), (true, true), (false, true)] {
        let mut s = Scene::new("a stop beside a silent disk", Stage { volumes: 2, ..Stage::default() });
        s.write(0, PAST);
        s.world.write(1, 0, 8, false);
        s.answered();
        for volume in (0..2).filter(|volume| both || *volume == 0) {
            s.world.hang(Device::Backing(volume), true);
            if asked {
                s.world.read(volume, 200_000, 8);
            }
        }
        let (stop, since) = (s.world.command(Command::Stop), s.world.now);
        assert_eq!(s.end_of(stop), Err(CommandError::Disk), "{}", s.story());
        let took = (s.world.now - since) / SECOND;
        assert!(took < 15, "{}: it took {took} s, {asked}, {both}", s.story());
        (0..2).for_each(|volume| s.world.hang(Device::Backing(volume), false));
        s.kill();
        s.end();
    }
}

/// Four cache devices, and what of `sector` is dirty has lost both its copies.
fn without_its_copies(s: &mut Scene, sector: u64) {
    for (device, _) in s.copies(sector) {
        s.set_dead(device, true);
    }
}

/// The last copies of acknowledged data go, the rest of the pool is whole again, and the daemon ends before any client has flushed: killed, or told to. That was in
/// memory alone, so that the next one's first FLUSH called durable what nobody had. Found by reading.
#[test]
fn that_the_last_copies_are_gone_is_told_by_the_next_life_if_this_one_told_nobody() {
    for stops in [false, true] {
        let mut s = Scene::new("copies gone in an earlier life", Stage { members: 4, ..Stage::default() });
        s.write(0, 8);
        without_its_copies(&mut s, 0);
        s.world.errors_allowed = true;
        s.write(8_000, 8);
        s.pass(5 * SECOND);
        if stops {
            s.obey(Command::Stop);
        }
        s.world.kill_landing(|_, _, _| false);
        s.start();
        told_once(&mut s);
    }
}

/// A FLUSH is under way when a large write is acknowledged, of which the log has a part: it overlaps what is dirty. Then both copies of that go. The FLUSH fails, and
/// says nothing of the write: the next one does. Found by reading.
#[test]
fn that_the_last_copies_are_gone_is_told_to_the_flush_after_a_write_that_is_partly_in_the_log() {
    let mut s = Scene::new("partly in the log, and gone", Stage { members: 4, ..Stage::default() });
    s.write(0, PAST);
    s.write(0, 8);
    // The region's bit is flushed.
    s.rest();
    s.write(0, 8);
    s.hold_back(|device, op| matches!((device, op), (Device::Member(_), DeviceOp::Flush)));
    let first = s.world.flush(0);
    s.until_held();
    let write = s.world.write(0, 0, PAST, false);
    assert!(s.answer_to(write), "{}", s.story());
    without_its_copies(&mut s, 0);
    s.world.errors_allowed = true;
    s.let_go();
    assert!(!s.answer_to(first), "{}", s.story());
    told_once(&mut s);
}

/// Both copies of something are gone, and clients were told. Then a third cache device goes, all of whose data the fourth has: what was lost long since was
/// told anew, and the next FLUSH failed. Found by reading.
#[test]
fn what_was_lost_and_told_is_not_told_again_when_another_device_goes_and_nothing_with_it() {
    let mut s = Scene::new("lost once", Stage { members: 4, ..Stage::default() });
    s.write(0, 8);
    without_its_copies(&mut s, 0);
    s.world.errors_allowed = true;
    s.write(8_000, 8);
    s.pass(5 * SECOND);
    told_once(&mut s);
    let third = s.status().members.iter().find(|m| m.in_sync).map(|m| m.number);
    s.set_dead(third.map(Device::Member).expect("two are left"), true);
    s.write(16_000, 8);
    s.flush();
    assert_eq!(s.status().members.iter().filter(|m| m.in_sync).count(), 1, "{}", s.story());
}

/// A volume without a disk has lost something, and its client was told. Nobody wrote that down, so that the next life told it again after a crash, and the one after it:
/// a journal stops each time. Found by reading.
#[test]
fn that_a_client_of_a_volume_without_a_disk_was_told_is_written_down() {
    let mut s = Scene::new("told, without a disk", Stage { members: 4, ..Stage::default() }).with_diskless(512);
    s.world.write(DISKLESS, 0, 8, false);
    s.answered();
    let places = s.world.engine.as_ref().and_then(|e| e.locate(DISKLESS, 0)).unwrap();
    places.iter().for_each(|(member, _)| s.set_dead(Device::Member(*member), true));
    s.world.errors_allowed = true;
    s.write(8_000, 8);
    s.pass(5 * SECOND);
    s.world.kill_landing(|_, _, _| false);
    s.start();
    // Whatever else writes a superblock after a start has done so.
    s.pass(60 * SECOND);
    let tells = |s: &mut Scene| {
        let flush = s.world.flush(DISKLESS);
        !s.answer_to(flush)
    };
    assert!(tells(&mut s), "{}", s.story());
    s.pass(5 * SECOND);
    s.world.kill_landing(|_, _, _| false);
    s.start();
    assert!(!tells(&mut s), "{}: it is told again", s.story());
}

/// A large write came to where all was dirty: the log took it, and the disk was asked for nothing. Beside it a flush of destage failed, that no
/// client's write was under. The next FLUSH told of it, though nothing was lost; and with forced unit access the write itself waited for
/// the disk, and failed. Found by reading.
#[test]
fn a_flush_that_failed_beside_what_the_log_took_whole_is_told_to_nobody() {
    for fua in [false, true] {
        let usual = Stage::default();
        let settings = Settings { dirty_percent: 100, idle_ns: SECOND / 10, ..usual.settings.clone() };
        let mut s = Scene::new("a flush fails beside a write that is in the log", Stage { settings, ..usual });
        (0..8).for_each(|n| s.write(n * 3 % 8 * 8, 8));
        s.flush();
        let late = Rc::new(Cell::new(false));
        let appends = late.clone();
        s.hold_back(move |device, op| match device {
            DISK => matches!(op, DeviceOp::Flush),
            _ => appends.get() && matches!(op, DeviceOp::Write { .. }),
        });
        s.until_held();
        late.set(true);
        let write = s.world.write(0, 0, 64, fua);
        s.until("the log is on its way", |w| w.held_back() > 1);
        s.let_go_failing(DISK);
        assert!(s.answer_to(write), "{}: fua {fua}", s.story());
        let flush = s.world.flush(0);
        assert!(s.answer_to(flush), "{}: told of a loss that is none", s.story());
        s.lose_power();
        s.read_all();
        s.end();
    }
}
