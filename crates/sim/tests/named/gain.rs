//! What goes to the disk though the cache could take it, since there is no gain in absorbing it, or since the disk has nothing to do.

use headpond_engine::stats::Bypass;
use headpond_engine::{Device, DeviceOp, Settings};
use headpond_sim::models::{MILLISECOND, SECOND};
use headpond_sim::scene::{Scene, Stage};
use headpond_sim::world::Timing;

fn past(s: &Scene, reason: Bypass) -> u64 {
    s.status().volumes[0].stats.write_bypass[reason as usize].requests
}

/// Space for dirty data is full, and the disk takes large writes by themselves as well as in a sweep: what the sweep costs was lost, and
/// a load of such writes was slower than on the disk alone. They go past the cache, over dirty data too, and after a power cut all is there.
#[test]
fn large_writes_go_past_a_full_cache_where_a_sweep_makes_no_more_of_them() {
    let (route, idle_ns, destage_percent) = (true, 20 * MILLISECOND, 20);
    let (stream_bytes, large_bytes, chunk_runs) = (1 << 30, 1 << 20, 1);
    let settings =
        Settings { route, idle_ns, destage_percent, stream_bytes, large_bytes, chunk_runs, ..Stage::default().settings };
    let stage =
        Stage { segments: 60, segment_bytes: 256 << 10, timing: || Timing::Fixed(1_000_000), settings, ..Stage::default() };
    let mut s = Scene::new("writes that gain nothing", stage);
    let (begun, all) = (s.world.now, s.stage.sectors / 64);
    let mut place = 1;
    let mut write = |s: &mut Scene| {
        for _ in 0..8 {
            place = (place * 733 + 1) % all;
            s.world.write(0, place * 64, 64, false);
        }
        s.answered();
    };
    while past(&s, Bypass::NoGain) == 0 && s.world.now - begun < 60 * SECOND {
        write(&mut s);
    }
    let first = past(&s, Bypass::NoGain);
    assert!(first > 0, "all of it was absorbed, or waited for the sweep");
    (0..20).for_each(|_| write(&mut s));
    assert!(past(&s, Bypass::NoGain) > first + 50, "the disk takes them at a better rate");
    s.flush();
    s.lose_power();
    s.read_all();
    s.end();
}

/// A page cache writes two hundred blocks at once, each second. The disk's own cache takes them sooner than two SSDs do: behind them
/// such a burst took longer than on the disk alone. So the disk has a share of it, as long as it has nothing else to do, which a flush
/// makes durable like the rest; and none where clients flush.
#[test]
fn an_idle_disk_has_a_share_of_a_burst_and_none_where_clients_flush() {
    let settings = Settings { route: true, idle_ns: 20 * MILLISECOND, ..Stage::default().settings };
    let stage = Stage { segments: 400, timing: || Timing::Fixed(500_000), settings, ..Stage::default() };
    let mut s = Scene::new("a burst", stage);
    let all = s.stage.sectors / 8;
    let mut place = 1;
    let mut burst = |s: &mut Scene| {
        for _ in 0..200 {
            place = (place * 733 + 1) % all;
            s.world.write(0, place * 8, 8, false);
        }
        s.answered();
        s.pass(SECOND);
    };
    (0..6).for_each(|_| burst(&mut s));
    let shared = past(&s, Bypass::Sooner);
    assert!((20..=6 * 32).contains(&shared), "{shared} of 1,200 writes");
    s.flush();
    (0..6).for_each(|_| burst(&mut s));
    assert_eq!(past(&s, Bypass::Sooner), shared, "who flushes would wait for the disk");
    s.flush();
    s.lose_power();
    s.read_all();
    s.end();
}

/// Drives that cache writes take each at once, also the small random ones that found a line at the SSDs; a stream beside them, which
/// waits for the heads each time, lost a quarter. They keep to the SSDs while a stream uses the disk, and what is where survives.
#[test]
fn small_writes_keep_away_from_a_disk_that_a_stream_uses() {
    let settings = Settings { route: true, idle_ns: 20 * MILLISECOND, ..Stage::default().settings };
    let stage = Stage { segments: 400, timing: || Timing::Fixed(15 * MILLISECOND), settings, ..Stage::default() };
    let mut s = Scene::new("small writes beside a stream", stage);
    let mut place = 1;
    let mut write = |s: &mut Scene| {
        for _ in 0..16 {
            place = (place * 733 + 1) % 5000;
            s.world.write(0, place * 8, 8, false);
        }
    };
    for _ in 0..6 {
        write(&mut s);
        s.answered();
    }
    let before = past(&s, Bypass::Sooner);
    assert!(before > 0, "the disk takes what it is known to take sooner");
    // Whatever else has used the disk is over.
    s.pass(20 * SECOND);
    s.hold_back(|device, op| matches!((device, op), (Device::Backing(_), DeviceOp::Write { .. })));
    s.world.write(0, 48_000, 256, false);
    s.until_held();
    write(&mut s);
    s.pass(SECOND);
    s.let_go();
    s.answered();
    assert_eq!(past(&s, Bypass::Sooner), before, "some went to the disk that a stream uses");
    s.flush();
    s.lose_power();
    s.read_all();
    s.end();
}
