//! What is preloaded is in the cache and nothing else is changed by it; what is pinned stays there.

use headpond_engine::format::Mode;
use headpond_engine::{Command, CommandError, CommandId, Device, DeviceOp, Preload, Settings};
use headpond_sim::models::MILLISECOND;
use headpond_sim::scene::{Scene, Stage};
use headpond_sim::world::Timing;
use std::ops::Range;

const DISK: Device = Device::Backing(0);
/// What these stories are about: 1 MiB from here on.
const FROM: u64 = 8_192;
const SECTORS: u64 = 2_048;

/// A list of one range of sectors.
fn one(from: u64, to: u64) -> Vec<Range<u64>> {
    std::iter::once(from..to).collect()
}

fn preload(s: &mut Scene) -> Preload {
    s.obey(Command::Preload { volume: 0, ranges: one(FROM, FROM + SECTORS) });
    s.check();
    s.status().volumes[0].preload
}

fn pin(s: &mut Scene) {
    s.obey(Command::Pin { volume: 0, ranges: one(FROM, FROM + SECTORS) });
}

/// How many blocks of what these stories are about the cache has whole.
fn cached(s: &Scene) -> u64 {
    let mut live = std::collections::BTreeMap::<u64, u8>::new();
    if let Some(engine) = &s.world.engine {
        engine.each_piece(0, |block, piece| *live.entry(block).or_default() |= piece.live);
    }
    live.range(FROM / 8..(FROM + SECTORS) / 8).filter(|(_, live)| **live == 0xff).count() as u64
}

/// A pool of a few MiB, whose disk is idle as soon as it has not been used for some time.
fn roomy() -> Stage {
    let stage = Stage::default();
    Stage { segments: 60, settings: Settings { idle_ns: 20 * MILLISECOND, ..stage.settings }, ..stage }
}

/// Reads so much else that all that is not pinned is evicted.
fn read_much_else(s: &mut Scene) {
    let evicted = s.status().stats.evicted;
    for round in 0..40 {
        for n in 0..64 {
            s.read(60_000 + (round * 64 + n) * 7919 % 3001 * 64, 16);
        }
        s.pass(50 * MILLISECOND);
    }
    assert!(s.status().stats.evicted > evicted + 20, "only {} were evicted", s.status().stats.evicted - evicted);
}

#[test]
fn what_is_preloaded_is_read_from_the_cache_and_what_is_dirty_there_stays() {
    let mut s = Scene::new("a preload", Stage::default());
    for n in 0..20 {
        s.write(FROM + n * 37 % 20 * 101, 3);
    }
    let dirty = s.dirty();
    assert!(dirty >= 10, "{dirty}");
    let found = preload(&mut s);
    assert_eq!(s.dirty(), dirty);
    assert_eq!((found.running, found.done, found.total, found.left_out), (false, SECTORS / 8, SECTORS / 8, 0));
    assert_eq!(cached(&s), SECTORS / 8);
    let before = s.status().volumes[0].stats.miss.requests;
    for n in 0..SECTORS / 16 {
        s.read(FROM + n * 16, 16);
    }
    assert_eq!(s.status().volumes[0].stats.miss.requests, before);
    // A second one finds nothing to do.
    assert_eq!(preload(&mut s).brought, 0);
    s.lose_power();
    s.read_all();
    s.end();
}

/// It had found what was missing before it waited for its turn: a write that came meanwhile was hidden by what the disk had.
#[test]
fn what_is_written_while_a_preload_waits_is_not_hidden_by_it() {
    for seed in 0..20 {
        let mut s = Scene::new("a write meets a preload", Stage { seed, ..Stage::default() });
        // It is being written when the preload comes by, so that it tries again.
        s.hold_answers(|device, op| matches!((device, op), (Device::Member(_), DeviceOp::Write { .. })));
        let write = s.world.write(0, FROM + 16, 8, false);
        s.until_held();
        let id = s.world.command(Command::Preload { volume: 0, ranges: one(FROM, FROM + 64) });
        s.pass(5 * MILLISECOND);
        s.let_go();
        assert!(s.answer_to(write));
        s.world.write(0, FROM + 32, 3, false);
        s.ends_well(id);
        s.answered();
        s.read(FROM, 64);
        s.check();
        s.end();
    }
}

#[test]
fn what_is_pinned_outlives_whatever_else_is_read() {
    let mut s = Scene::new("pinned", roomy());
    preload(&mut s);
    // What is asked for once goes by. Of what comes again there is more than there is room for.
    for _ in 0..4 {
        read_much_else(&mut s);
    }
    assert!(cached(&s) < SECTORS / 8, "nothing of what is not pinned was evicted: the story tells nothing");
    pin(&mut s);
    s.pass(10_000 * MILLISECOND);
    assert_eq!(cached(&s), SECTORS / 8, "what was missing is not brought back");
    read_much_else(&mut s);
    assert_eq!(cached(&s), SECTORS / 8);
    // Written, it is in other segments than before, with what is not pinned beside it.
    for n in 0..64 {
        s.write(FROM + n * 32, 8);
        s.write(12_000 + n * 640, 8);
    }
    s.destage();
    s.checkpoint();
    read_much_else(&mut s);
    s.pass(10_000 * MILLISECOND);
    assert_eq!(cached(&s), SECTORS / 8);
    assert_eq!(s.status().volumes[0].pinned_blocks, SECTORS / 8);
    s.obey(Command::Unpin { volume: 0, ranges: one(FROM, FROM + SECTORS) });
    read_much_else(&mut s);
    read_much_else(&mut s);
    assert!(cached(&s) < SECTORS / 8);
    s.end();
}

#[test]
fn pinned_data_is_carried_over_without_asking_the_disk() {
    let mut s = Scene::new("carried over", roomy());
    pin(&mut s);
    s.pass(10_000 * MILLISECOND);
    // Scattered among what is not pinned: no segment is mostly pinned.
    for n in 0..16 {
        s.write(FROM + n * 128, 8);
        for m in 0..4 {
            s.write(12_000 + (n * 4 + m) * 640, 8);
        }
    }
    s.destage();
    s.checkpoint();
    // From now on the disk fails reads there.
    s.device(DISK).dead_sectors.extend((FROM..FROM + SECTORS).map(|sector| (sector, ())));
    read_much_else(&mut s);
    assert_eq!(cached(&s), SECTORS / 8);
    s.device(DISK).dead_sectors.clear();
    s.lose_power();
    s.read_all();
    s.end();
}

#[test]
fn a_large_write_to_what_is_pinned_goes_to_the_cache() {
    let mut s = Scene::new("a large write", roomy());
    s.write(FROM, 1024);
    assert_eq!(s.status().volumes[0].stats.absorbed.requests, 0);
    pin(&mut s);
    s.write(FROM, 1024);
    assert_eq!(s.status().volumes[0].stats.absorbed.requests, 1);
    s.end();
}

#[test]
fn what_cannot_be_is_refused_and_changes_nothing() {
    let mut s = Scene::new("refused", Stage::default());
    let sectors = s.status().volumes[0].sectors;
    let beyond = vec![0..8, sectors - 8..sectors + 1];
    for command in [
        Command::Preload { volume: 0, ranges: beyond.clone() },
        Command::Pin { volume: 0, ranges: beyond.clone() },
        Command::Unpin { volume: 0, ranges: beyond },
        Command::Pin { volume: 0, ranges: one(8, 8) },
    ] {
        let id = s.world.command(command);
        assert_eq!(s.end_of(id), Err(CommandError::OutsideVolume { sectors }));
    }
    for command in [Command::Preload { volume: 0, ranges: one(0, sectors) }, Command::Pin { volume: 0, ranges: one(0, sectors) }]
    {
        let id = s.world.command(command);
        assert!(matches!(s.end_of(id), Err(CommandError::TooMuch { .. })));
    }
    assert_eq!(s.status().volumes[0].pinned_blocks, 0);
    s.mode(Mode::PassThrough);
    let id = s.world.command(Command::Preload { volume: 0, ranges: one(0, 8) });
    assert_eq!(s.end_of(id), Err(CommandError::PassThrough));
    s.mode(Mode::WriteBack);
    // One at a time; it can be cancelled, and a failing disk ends it.
    s.hold_answers(|device, op| matches!((device, op), (DISK, DeviceOp::Read { .. })));
    let first = s.world.command(Command::Preload { volume: 0, ranges: one(FROM, FROM + SECTORS) });
    s.until_held();
    let second = s.world.command(Command::Preload { volume: 0, ranges: one(FROM, FROM + SECTORS) });
    assert_eq!(s.end_of(second), Err(CommandError::PreloadBusy));
    s.obey(Command::Cancel(CommandId(first)));
    s.let_go();
    assert_eq!(s.end_of(first), Err(CommandError::Cancelled));
    let elsewhere = 2 * FROM;
    s.device(DISK).dead_sectors.insert(elsewhere + 1500, ());
    let id = s.world.command(Command::Preload { volume: 0, ranges: one(elsewhere, elsewhere + SECTORS) });
    assert_eq!(s.end_of(id), Err(CommandError::Disk));
    s.device(DISK).dead_sectors.clear();
    s.read_all();
    s.end();
}

/// A preload leaves the disk to clients for as long as it has had it, and did not hear in that time that it was cancelled: after a batch that took ten minutes, for
/// ten minutes.
#[test]
fn a_preload_that_rests_hears_that_it_is_cancelled() {
    let stage = Stage { timing: || Timing::Fixed(3_000_000_000), ..Stage::default() };
    let mut s = Scene::new("cancelled while it rests", stage);
    let preload = s.world.command(Command::Preload { volume: 0, ranges: one(0, 64) });
    // Somebody uses the disk all the time.
    let mut theirs = s.world.read(0, 100_000, 8);
    while s.status().volumes[0].preload.done == 0 {
        if !s.world.waits(theirs) {
            theirs = s.world.read(0, 100_000 + s.world.now % 1000 * 64, 8);
        }
        s.step();
    }
    let since = s.world.now;
    s.world.command(Command::Cancel(CommandId(preload)));
    assert_eq!(s.end_of(preload), Err(CommandError::Cancelled), "{}", s.story());
    let took = s.world.now - since;
    assert!(took < 1_000_000_000, "{took} ns; {}", s.story());
}
