//! What is let go when the cache is full, and what stays.

use headpond_engine::format::Mode;
use headpond_engine::{Command, Device, DeviceOp, Mark, Settings};
use headpond_sim::scene::{Scene, Stage};
use std::cell::Cell;
use std::rc::Rc;

const MILLISECOND: u64 = 1_000_000;
/// Requests, of 16 sectors each, to what is asked for again.
const AGAIN: u64 = 64;

fn stage() -> Stage {
    let stage = Stage::default();
    // On so small a disk much that is asked for at random is beside something else.
    Stage { segments: 60, settings: Settings { stream_bytes: 1 << 30, ..stage.settings }, ..stage }
}

fn misses(s: &Scene) -> u64 {
    s.status().volumes[0].stats.miss.requests
}

/// Here and there, so that it is no stream.
fn read_again(s: &mut Scene) {
    (0..AGAIN).for_each(|n| s.read(n * 7919 % 900 * 64, 16));
    s.pass(50 * MILLISECOND);
}

/// Reads other things, each once, until so many segments more are evicted; never the same in two rounds.
fn scan(s: &mut Scene, round: u64, segments: u64) {
    let until = s.status().stats.evicted + segments;
    for n in 0..1500 {
        if s.status().stats.evicted >= until {
            return;
        }
        s.read(60_000 + (round * 1500 + n) * 7919 % 3001 * 64, 16);
        if n % 64 == 63 {
            s.pass(50 * MILLISECOND);
        }
    }
    panic!("round {round}: {} segments too few were evicted", until - s.status().stats.evicted);
}

/// A program goes through a disk from one end to the other, as a backup does, and others work with the same little data all
/// the while. That was asked for more than once when its segment's turn comes, and is written to the main queue.
#[test]
fn a_scan_does_not_take_the_place_of_what_is_asked_for_again() {
    let mut s = Scene::new("a scan", stage());
    (0..3).for_each(|_| read_again(&mut s));
    let before = misses(&s);
    scan(&mut s, 0, 40);
    let scanned = misses(&s);
    read_again(&mut s);
    assert!(scanned > before + 500);
    let missed = misses(&s) - scanned;
    assert!(missed < AGAIN / 8, "{missed} of {AGAIN} missed: {:?}", s.status().stats);
    s.end();
}

/// What is asked for once in a long while is let go before it is asked for again. The second time that is known, and it stays.
#[test]
fn what_comes_back_soon_after_it_was_let_go_stays() {
    let mut s = Scene::new("what comes back", stage());
    read_again(&mut s);
    scan(&mut s, 0, 40);
    let before = misses(&s);
    read_again(&mut s);
    assert!(misses(&s) > before + AGAIN / 2, "most of it was there still: the story tells nothing");
    scan(&mut s, 1, 130);
    let before = misses(&s);
    read_again(&mut s);
    assert!(misses(&s) < before + AGAIN / 8, "{} of {AGAIN} missed", misses(&s) - before);
    s.end();
}

/// Segments of several rounds each, and room to go on with the rest of them.
fn in_rounds() -> Stage {
    let usual = stage();
    let settings = Settings { free_percent: 20, ..usual.settings };
    Stage { segment_bytes: 256 << 10, settings, ..usual }
}

/// Much is asked for again, and then other things, until a segment's hot blocks are being read from a cache device: those reads are held back.
fn until_carried_over(s: &mut Scene) {
    (0..3).for_each(|_| read_again(s));
    let is_let_go = Rc::new(Cell::new(false));
    let seen = is_let_go.clone();
    s.hold_back(move |device, op| {
        // What clients read is on the disk.
        let is_carried = matches!((device, op), (Device::Member(_), DeviceOp::Read { .. }));
        seen.set(seen.get() || is_carried);
        is_carried
    });
    for n in 0.. {
        if is_let_go.get() {
            break;
        }
        assert!(n < 1500, "nothing is let go");
        s.read(60_000 + n * 7919 % 3001 * 64, 64);
        s.pass(20 * MILLISECOND);
    }
}

/// A segment that is let go takes a while: what was asked for in it is read and written again, some of it at a time. What was
/// overwritten meanwhile was read from its old place all the same when its turn came, and named as newer than the write: fio had
/// a block back as it was three seconds before. Seeds had not found it: small segments were carried over in one go.
#[test]
fn what_is_overwritten_while_its_segment_is_let_go_does_not_come_back() {
    let mut s = Scene::new("overwritten while it is let go", in_rounds());
    until_carried_over(&mut s);
    let dirty = s.dirty();
    (20..24).for_each(|n| s.write(n * 7919 % 900 * 64, 16));
    assert_eq!(s.dirty(), dirty + 8, "they are absorbed");
    let carried = s.status().stats.carried_bytes;
    s.let_go();
    s.pass(10 * MILLISECOND);
    assert!(s.status().stats.carried_bytes > carried + (32 << 12), "no more than the first two rounds: the story tells nothing");
    s.flush();
    read_again(&mut s);
    s.lose_power();
    s.read_all();
    s.end();
}

/// The same segment, and the daemon is told to end. It waited until all of the segment's hot blocks had been written again, and those of the next one: minutes on
/// slow devices, of what nobody needs any more. Found by reading.
#[test]
fn a_daemon_that_ends_carries_nothing_over_any_more() {
    let mut s = Scene::new("an end while a segment is let go", in_rounds());
    until_carried_over(&mut s);
    let carried = s.status().stats.carried_bytes;
    let stop = s.world.command(Command::Stop);
    s.pass(MILLISECOND);
    s.let_go();
    s.ends_well(stop);
    let rounds = (s.status().stats.carried_bytes - carried) >> 16;
    assert!(rounds <= 1, "{}: {rounds} rounds more", s.story());
}

/// A backup is written through, in requests as small as any. It goes past the cache, as it does where writes are absorbed; what the cache
/// had of it is kept as it is now.
#[test]
fn a_stream_that_is_written_through_is_kept_only_where_it_was_cached() {
    let story = "a stream that is written through is kept only where it was cached";
    let mut s = Scene::new(story, Stage { mode: Mode::WriteThrough, ..Stage::default() });
    let cached = |s: &Scene| s.status().volumes[0].cached_blocks;
    s.write(100 * 8, 8);
    s.rest();
    assert_eq!(cached(&s), 1, "{}", s.story());
    (0..128).for_each(|n| s.write(n * 8, 8));
    s.rest();
    // Until 32 KiB are written it is no stream.
    assert!((2..=9).contains(&cached(&s)), "{} of 128 blocks: {}", cached(&s), s.story());
    let hits = |s: &Scene| s.status().volumes[0].stats.hit.requests;
    let before = hits(&s);
    s.read(100 * 8, 8);
    assert_eq!(hits(&s), before + 1, "{}", s.story());
    s.read(101 * 8, 8);
    assert_eq!(hits(&s), before + 1, "{}", s.story());
    s.end();
}

/// What is pinned is written over, here and there, as a database's files are, and destaged. In each segment a few blocks of it were left that
/// are the newest of their places, all of them pinned: a segment of which most that is live is pinned was never let go, however little that
/// was. The cache filled up with such segments for good: no read was let in, and after them no write. Found by reading.
#[test]
fn pinned_data_that_is_written_over_leaves_room_for_what_is_read() {
    /// Two fifths of what the cache devices hold.
    const PINNED: u64 = 400;
    let mut s = Scene::new("pinned data that is written over leaves room for what is read", Stage { segments: 30, ..stage() });
    s.obey(Command::Pin { volume: 0, ranges: std::iter::once(0..PINNED * 8).collect() });
    let mut chance = 1u64;
    for n in 0..10 * PINNED {
        chance = chance.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        s.write((chance >> 33) % PINNED * 8, 8);
        if n % 14 == 13 {
            s.destage();
            s.checkpoint();
        }
    }
    let hits = |s: &Scene| s.status().volumes[0].stats.hit.requests;
    let before = hits(&s);
    for _ in 0..2 {
        (0..20).for_each(|n| s.read(60_000 + n * 7919 % 3001 * 64, 8));
        s.pass(50 * MILLISECOND);
    }
    assert_eq!(hits(&s) - before, 20, "what is read is not let in: {:?}; {}", s.status().stats, s.story());
    let before = hits(&s);
    (0..PINNED).for_each(|n| s.read(n * 37 % PINNED * 8, 8));
    assert_eq!(hits(&s) - before, PINNED, "what is pinned is not there; {}", s.story());
    s.end();
}

/// Of much that was read half was pinned then, and that half had come first: its segments are the first whose turn it is to be let go. How much of
/// each segment is pinned was looked at for all there were before one was let go, without a pause: with a TiB of them nobody had an answer for
/// many seconds, and again whenever the pins changed. Found by reading.
#[test]
fn what_is_let_go_beside_much_that_is_pinned_is_looked_for_in_turns() {
    /// Twenty segments of them.
    const PINNED: u64 = 300;
    let settings = Settings { let_go_blocks: 16, ..stage().settings };
    let mut s = Scene::new("what is let go beside much that is pinned", Stage { settings, ..stage() });
    let read = |s: &mut Scene| (0..PINNED / 2).for_each(|n| s.read(n * 7919 % 900 * 64, 16));
    read(&mut s);
    s.pass(50 * MILLISECOND);
    let ranges = (0..PINNED / 2).map(|n| n * 7919 % 900 * 64).map(|at| at..at + 16).collect();
    s.obey(Command::Pin { volume: 0, ranges });
    scan(&mut s, 0, 20);
    let looked_on = s.world.engine.as_ref().is_some_and(|e| e.marks().has(Mark::LooksOnPastPins));
    assert!(looked_on, "all was looked at in one step: {:?}; {}", s.status().stats, s.story());
    let before = misses(&s);
    read(&mut s);
    assert_eq!(misses(&s), before, "what is pinned is not there; {}", s.story());
    s.end();
}
