//! Who waits for an end of what others do all the time.

use headpond_sim::scene::{DISKLESS, Scene, Stage};

/// Half of what a write takes, so that of two writers one is always under way.
const HALF: u64 = 50_000;
/// Rounds of each.
const ROUNDS: usize = 1000;
/// Places that they write to.
const PLACES: u64 = 499;

/// Two clients write a sector here and there, `apart` from each other: who writes on is a stream, and goes past the cache. They do so again and again, so that there
/// is always one on its way into the log, until `request` is answered.
fn two_write_on(s: &mut Scene, volume: u16, apart: u64, request: u64) {
    let sector = |round: usize| round as u64 * 37 % PLACES * apart;
    let first = s.world.write(volume, sector(498), 1, false);
    s.world.run_until(s.world.now + HALF);
    let mut theirs = [first, s.world.write(volume, sector(497), 1, false)];
    for round in 0..ROUNDS {
        if !s.world.waits(request) {
            return;
        }
        let who = round % 2;
        while s.world.waits(theirs[who]) && s.world.waits(request) {
            s.step();
        }
        theirs[who] = s.world.write(volume, sector(round), 1, false);
    }
    panic!("{}: it waits while {ROUNDS} others are written", s.story());
}

/// A trim waited until nothing was on its way into the log for any of its blocks. Where two clients kept writing anywhere there that was never so, and it waited for as
/// long as they did, with its whole range locked. So did large writes over hot blocks. Found by reading.
#[test]
fn a_trim_has_its_turn_beside_those_who_write_there_all_the_time() {
    let mut s = Scene::new("a trim under writers", Stage::default());
    (0..8).for_each(|n| s.write(n * 5000, 8));
    s.world.write(0, 512, 1, false);
    let trim = s.world.discard(0, 0, PLACES * 512, 0);
    two_write_on(&mut s, 0, 512, trim);
    s.answered();
    s.destage();
}

/// The same of a volume without a disk that is trimmed whole.
#[test]
fn a_trim_of_a_volume_without_a_disk_has_its_turn_as_well() {
    let mut s = Scene::new("a trim under writers, without a disk", Stage::default()).with_diskless(512);
    s.world.write(DISKLESS, 0, 2, false);
    s.answered();
    s.world.write(DISKLESS, 0, 1, false);
    let trim = s.world.discard(DISKLESS, 0, 512, 0);
    two_write_on(&mut s, DISKLESS, 1, trim);
    s.answered();
    s.lose_power();
    s.read_all();
    s.end();
}
