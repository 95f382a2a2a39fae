//! A budget of drive writes: what holds back for it, and what does not.

use headpond_engine::Settings;
use headpond_engine::stats::{Bypass, VolumeStats};
use headpond_sim::rng::Rng;
use headpond_sim::scene::{DISKLESS, Scene, Stage};

const SECOND: u64 = 1_000_000_000;
const MINUTE: u64 = 60 * SECOND;
/// Drive writes per day, in thousandths: one in an hour.
const EACH_HOUR: u32 = 24_000;
/// What a start finds in a budget, in hours.
const AT_START: u64 = 3;

fn stage(drive_writes_milli: u32) -> Stage {
    let usual = Settings::default();
    let settings = Settings {
        drive_writes_milli,
        // Rarely, as simulated hours are to pass soon.
        idle_ns: 4 * SECOND,
        destage_percent: usual.destage_percent,
        checkpoint_bytes: 1 << 20,
        ..Stage::default().settings
    };
    Stage { settings, ..Stage::default() }
}

fn stats(s: &Scene) -> VolumeStats {
    s.status().volumes[0].stats.clone()
}

fn spared(s: &Scene) -> u64 {
    stats(s).write_bypass[Bypass::Endurance as usize].requests
}

/// For so many minutes a client writes and another one reads, 4 KiB each every so many nanoseconds.
fn work(s: &mut Scene, rng: &mut Rng, minutes: u64, every: u64) {
    let until = s.world.now + minutes * MINUTE;
    while s.world.now < until {
        // Of several times what the cache holds, and apart, so that it is no stream.
        s.world.write(0, rng.below(2048) * 104, 8, false);
        s.world.read(0, rng.below(2048) * 104, 8);
        s.pass(every);
    }
    s.answered();
}

/// Writes and misses come at several times what the cache devices are to bear, for as long as they come.
#[test]
fn cache_devices_are_written_no_more_than_their_budget_says() {
    let mut s = Scene::new("a budget of drive writes", stage(EACH_HOUR));
    let mut rng = Rng::new(7);
    work(&mut s, &mut rng, 90, SECOND);
    let minutes = 90 + 60 * AT_START;
    for m in s.status().members {
        let an_hour = m.budget_per_day / 24;
        assert!(m.written <= minutes * an_hour / 60, "{} KiB of {} KiB an hour", m.written >> 10, an_hour >> 10);
        assert!(
            m.written >= (minutes - 60) * an_hour / 60,
            "the budget is not wasted: {} KiB of {} KiB",
            m.written >> 10,
            an_hour >> 10
        );
        assert!(m.written_lately == m.written && m.budget_left < an_hour as i64);
    }
    let endurance = s.status().endurance;
    assert!(endurance.holds_back_reads && endurance.holds_back_writes && spared(&s) > 1000, "{endurance:?}");
    // The last of it was for writes.
    let before = stats(&s);
    work(&mut s, &mut rng, 15, SECOND);
    let after = stats(&s);
    assert_eq!(after.admitted, before.admitted);
    assert!(after.absorbed.requests > before.absorbed.requests + 100);
    s.lose_power();
    s.end();
}

/// All comes into the cache of what the budget bears; and a quiet time is for the burst after it.
#[test]
fn nothing_is_held_back_that_the_budget_bears() {
    let mut s = Scene::new("less than the budget", stage(EACH_HOUR));
    let mut rng = Rng::new(8);
    work(&mut s, &mut rng, 60, 30 * SECOND);
    let calm = stats(&s);
    assert_eq!((spared(&s), calm.held_back.requests), (0, 0));
    assert!(calm.absorbed.requests >= 120 && calm.admitted.requests > 100);
    // Saved up: as long as it lasts, a burst that goes on at many times the budget.
    work(&mut s, &mut rng, 20, 3 * SECOND);
    assert_eq!((spared(&s), stats(&s).held_back.requests), (0, 0));
    s.end();
}

/// What is dirty is newer than the disk until it is down, so a write over it goes where it is; and what has no disk has nowhere
/// else to go.
#[test]
fn what_is_dirty_is_absorbed_over_though_the_budget_is_spent() {
    let usual = stage(1000);
    let settings = Settings { destage_percent: 100, idle_ns: u64::MAX >> 8, ..usual.settings };
    let mut s = Scene::new("a spent budget", Stage { segments: 60, settings, ..usual }).with_diskless(64);
    let mut at = 0;
    while spared(&s) == 0 {
        s.write(at * 808, 8);
        at += 1;
        assert!(at < 300, "the budget is never spent");
    }
    // What is owed is owed for this alone.
    while s.status().members.iter().all(|m| m.budget_left >= 0) {
        s.write(0, 8);
        at += 1;
        assert!(at < 600, "nothing is ever owed");
    }
    let before = stats(&s);
    s.write(0, 8);
    s.write(3, 2);
    assert_eq!((stats(&s).absorbed.requests, spared(&s)), (before.absorbed.requests + 2, 1));
    // Of one that reaches beyond what is dirty the rest goes to the disk, beside it.
    s.write(4, 8);
    assert_eq!((stats(&s).absorbed.requests, spared(&s)), (before.absorbed.requests + 2, 2));
    s.world.write(DISKLESS, 8, 16, true);
    s.answered();
    assert!(s.world.take_ended().iter().all(|e| e.error.is_none()));
    s.flush();
    s.lose_power();
    s.end();
}

/// An image of the map takes 32 bytes of each cached piece on each device. One was written for each GiB of the log, however much was
/// cached: with a TiB, eight GiB for each that clients wrote. What found it was a benchmark with a map of 6 GiB that was not ready after
/// twenty minutes; the loads whose writes are counted had caches of a GiB or two.
#[test]
fn images_of_the_map_take_little_of_what_cache_devices_are_written() {
    let usual = Stage::default();
    let settings = Settings { checkpoint_bytes: 1 << 20, destage_percent: 100, ..usual.settings.clone() };
    let mut s = Scene::new("a large map", Stage { segments: 2048, settings, ..usual });
    for n in 0..4096u16 {
        // All of 64 MiB, 16 KiB at a time, in an order without runs.
        s.write(u64::from(n.reverse_bits() >> 4) * 32, 32);
    }
    assert_eq!(s.status().volumes[0].cached_blocks, 4 * 4096);
    let written = |s: &Scene| s.status().members.iter().map(|m| m.written).sum::<u64>();
    let (before, images) = (written(&s), s.status().stats.checkpoint_bytes);
    let mut rng = Rng::new(3);
    for _ in 0..2048 {
        s.write(rng.below(4096) * 32, 32);
    }
    let (written, images) = (written(&s) - before, s.status().stats.checkpoint_bytes - images);
    assert!(images > 0 && images * 8 <= written, "{} of {} KiB were images", images >> 10, written >> 10);
    s.lose_power();
    s.end();
}
