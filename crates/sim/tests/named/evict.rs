//! What is let go when the cache is full, and what stays.

use headpond_engine::Settings;
use headpond_sim::scene::{Scene, Stage};

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
