//! When sweeps begin and end.

use headpond_engine::{Command, CommandError, Device, DeviceOp, Reach, Settings};
use headpond_sim::scene::{Scene, Stage};
use headpond_sim::world::Timing;
use std::cell::Cell;
use std::rc::Rc;

/// A log is written at the end of which each record is flushed, on a disk that is idle but for that. A sweep that went on for as long
/// as there was something dirty before it followed the log record by record, with a flush of the disk and of each cache device for
/// each: a writer of an HDF5 file had a hundred of them a second.
#[test]
fn a_sweep_does_not_follow_a_log_record_by_record() {
    const MS: u64 = 1_000_000;
    let settings = Settings { idle_ns: 20 * MS, chunk_runs: 2048, ..Stage::default().settings };
    let mut s = Scene::new("a sweep and a log", Stage { segments: 100, settings, ..Stage::default() });
    let begun = s.world.now;
    let mut sector = 0;
    while s.world.now < begun + 1200 * MS {
        s.write(sector, 8);
        s.flush();
        sector += 8;
    }
    let flushes = s.device(Device::Backing(0)).flushes;
    assert!((2..=8).contains(&flushes), "{flushes} flushes of the disk for {} records in 1,200 ms", sector / 8);
    s.pass(200 * MS);
    assert_eq!(s.dirty(), 0, "and all of it is down soon after");
    s.end();
}

/// Somebody reads from the disk all the time, here and there or after pauses that he is used to, and little is dirty: it would stay so for ever.
#[test]
fn what_is_dirty_for_long_is_written_though_clients_never_leave_the_disk() {
    const MS: u64 = 1_000_000;
    for (pause, age) in [(100, 60_000), (500, 60_000), (100, 0)] {
        let settings = Settings { idle_ns: 200 * MS, dirty_age_ns: age * MS, ..Stage::default().settings };
        let mut s = Scene::new(&format!("a read each {pause} ms"), Stage { settings, ..Stage::default() });
        let mut place = 0;
        // Nothing twice.
        let mut reads_for = |s: &mut Scene, ms: u64| {
            for _ in 0..ms / pause {
                place = (place + 7919) % 3001;
                s.read(10_000 + place * 64, 8);
                s.pass(pause * MS);
            }
        };
        reads_for(&mut s, 10_000);
        for n in 0..3 {
            s.write(n * 1000, 8);
        }
        reads_for(&mut s, 55_000);
        assert_eq!(s.dirty(), 3, "{}: before its time", s.story());
        reads_for(&mut s, 10_000);
        assert_eq!(s.dirty(), if age == 0 { 3 } else { 0 }, "{}", s.story());
        // From when it is dirty on, whatever has been before.
        s.write(0, 8);
        reads_for(&mut s, 50_000);
        assert_eq!(s.dirty(), if age == 0 { 3 } else { 1 }, "{}: before its time", s.story());
        s.end();
    }
}

/// Dirty data takes most of its space when those who wrote it end, and another one reads the disk in long streams. Until space was
/// half empty again he had a quarter of the disk, and the sweep the rest, which nobody wanted: he would have had all of it without
/// a cache.
#[test]
fn a_stream_over_a_cache_that_was_just_filled_has_the_disk_for_itself() {
    const MS: u64 = 1_000_000;
    let settings = Settings { idle_ns: 200 * MS, dirty_percent: 50, ..Stage::default().settings };
    let mut s = Scene::new("a stream over a filled cache", Stage { segments: 8, settings, ..Stage::default() });
    let mut n = 0;
    while s.status().dirty_percent < 80 {
        s.write(n * 1000, 8);
        n += 1;
    }
    // From now on a sweep goes on where dirty data takes more than a fifth.
    s.stage.settings.destage_percent = 20;
    s.kill();
    let dirty = s.dirty();
    for n in 0..60 {
        s.read(n * 1024, 64);
        s.pass(20 * MS);
    }
    // The disk has been idle until the first read, and what began then ends.
    let chunk = s.stage.settings.chunk_runs as u64;
    assert!(s.dirty() + chunk >= dirty && dirty > 2 * chunk, "{} of {dirty} are left: destaged beside a stream", s.dirty());
    let dirty = s.dirty();
    s.pass(2000 * MS);
    assert!(s.dirty() < dirty, "it goes on when the disk is idle");
    s.end();
}

/// Of streams whose requests come in another order some are absorbed, a few megabytes a second. That was taken for a demand for space; so
/// the sweep went on beside them, which made it worse, and they had four fifths of what they have without a cache. What found it was
/// `headpond experiments B1 --real`.
#[test]
fn large_writes_that_are_absorbed_do_not_have_a_sweep_go_on() {
    const MS: u64 = 1_000_000;
    let usual = Stage::default().settings;
    let settings = Settings { idle_ns: 200 * MS, large_bytes: 1 << 20, stream_bytes: u64::MAX, dirty_percent: 50, ..usual };
    let mut s = Scene::new("large writes and a sweep", Stage { segments: 200, settings, ..Stage::default() });
    let mut n = 0;
    while s.status().dirty_percent < 30 {
        s.write(n * 100, 8);
        n += 1;
    }
    s.stage.settings.destage_percent = 20;
    s.kill();
    let dirty = s.dirty();
    for n in 0..100 {
        s.read(n * 1024, 64);
        if n % 2 == 0 {
            s.write(200_000 + n % 16 * 1000, 256);
        }
        s.pass(20 * MS);
    }
    let chunk = s.stage.settings.chunk_runs as u64;
    assert!(s.dirty() + chunk >= dirty, "{} of {dirty} are left: destaged beside a stream", s.dirty());
    // Small ones do.
    for n in 0..1000 {
        s.write(100_000 + n % 64 * 1000, 8);
        if n % 10 == 0 {
            s.read(n * 100, 64);
        }
        s.pass(2 * MS);
    }
    assert!(s.dirty() + 4 * chunk < dirty, "{} of {dirty} are left", s.dirty());
    s.lose_power();
    s.end();
}

/// Dirty data takes so many percent of its space, and a sweep that goes round would find more of it taken.
fn short_of_space(name: &'static str, percent: u32) -> Scene {
    const MS: u64 = 1_000_000;
    let usual = Stage::default().settings;
    let settings = Settings { idle_ns: 600 * MS, large_bytes: 1 << 20, stream_bytes: u64::MAX, dirty_percent: 50, ..usual };
    let mut s = Scene::new(name, Stage { segments: 200, settings, ..Stage::default() });
    let mut n = 0;
    while s.status().dirty_percent < percent {
        s.write(n * 7919 % 1600 * 100, 8);
        n += 1;
    }
    s.stage.settings.destage_percent = 20;
    s.kill();
    s
}

/// 256 KiB at a time had 54 writes a second of a disk that does many times that, each held back for a sweep that would not have had it down
/// any sooner. What found it was `headpond bench --real`.
#[test]
fn large_writes_are_not_held_back() {
    const MS: u64 = 1_000_000;
    let mut s = short_of_space("large writes while space is short", 32);
    for n in 0..100 {
        s.read(n * 1024, 64);
        let begun = s.world.now;
        s.write(170_000 + n % 80 * 1000, 512);
        let took = s.world.now - begun;
        assert!(took < 10 * MS, "{} ms for the write {n}", took / MS);
    }
    s.lose_power();
    s.end();
}

/// Who waits for his turn at every write writes little for that. It was taken for a sign that nobody wants the space: no sweep began beside
/// readers of the disk, and so he was held back for good.
#[test]
fn who_is_held_back_has_a_sweep_begin() {
    const MS: u64 = 1_000_000;
    let mut s = short_of_space("writes that are held back", 60);
    let (begun, dirty) = (s.world.now, s.dirty());
    let mut n = 0;
    while s.world.now < begun + 20_000 * MS {
        s.read(n * 1024 % 160_000, 64);
        s.write(170_000 + n % 800 * 100, 8);
        n += 1;
    }
    let chunk = s.stage.settings.chunk_runs as u64;
    assert!(s.dirty() + chunk < dirty + n, "{} are dirty, {dirty} before {n} were written: no sweep began", s.dirty());
    s.lose_power();
    s.end();
}

/// A disk's own cache takes a few hundred scattered writes of a sweep at once, and the flush at the chunk's end has them all put down
/// before random readers have their turn: they waited half a second, again and again, for as long as a full cache was destaged. Beside
/// them a sweep goes past the disk's cache. Over a disk that nobody reads it does not: from hundreds it is sorted better.
#[test]
fn a_sweep_goes_past_the_disks_cache_while_there_are_random_readers_and_only_then() {
    const MS: u64 = 1_000_000;
    let settings = Settings { idle_ns: 200 * MS, destage_percent: 0, ..Stage::default().settings };
    let mut s = Scene::new("a sweep and random readers", Stage { segments: 40, settings, ..Stage::default() });
    let (past, into) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(0)));
    let counts = (past.clone(), into.clone());
    s.hold_back(move |device, op| {
        if let (Device::Backing(_), DeviceOp::Write { reach, .. }) = (device, op) {
            let count = if *reach == Reach::PastCache { &counts.0 } else { &counts.1 };
            count.set(count.get() + 1);
        }
        false
    });
    for n in 0..200 {
        s.read(500 + n * 1000, 8);
        // More than destage would win beside that, so that the space is wanted.
        (0..4).for_each(|part| s.write(n * 1000 + part * 100, 8));
        s.pass(10 * MS);
    }
    assert!(past.get() > 50 && into.get() == 0, "beside readers {} past it, and {} into it", past.get(), into.get());
    s.pass(2000 * MS);
    let before = past.get();
    for n in 200..250 {
        (0..4).for_each(|part| s.write(n * 1000 + part * 100, 8));
        s.pass(10 * MS);
    }
    s.pass(2000 * MS);
    assert!(past.get() == before && into.get() > 50, "without them {} past it, and {} into it", past.get() - before, into.get());
    s.end();
}

/// Random writes that fit into the cache, beside a stream past it: destage began at half of the space, and cost the stream a quarter of
/// its speed for a burst that was over before the rest was taken. Seen by `cargo xtask peers`, whose stream had 149 of 200 MB/s. Where
/// they go on space is won beside it after all.
#[test]
fn a_burst_that_fits_costs_a_stream_beside_it_nothing() {
    const MS: u64 = 1_000_000;
    let settings = Settings { idle_ns: 200 * MS, destage_percent: 50, ..Stage::default().settings };
    let mut s = Scene::new("a burst that fits beside a stream", Stage { segments: 100, settings, ..Stage::default() });
    let destaged = |s: &Scene| s.status().volumes[0].stats.destaged.bytes;
    let (mut at, mut written) = (0, 0);
    let mut beside_a_stream = |s: &mut Scene, writes: u64| {
        for _ in 0..writes {
            s.write(at, 64);
            at += 64;
            s.write(100_000 + written * 7919 % 150_000 / 8 * 8, 8);
            written += 1;
            s.pass(MS);
        }
    };
    // They go on until it begins after all: half of the way to the end, where what is dirty counts twice, for the time until its segments
    // are free. At the setting it is 30 %.
    let mut taken = 0;
    while destaged(&s) == 0 {
        taken = s.status().dirty_percent;
        beside_a_stream(&mut s, 1);
    }
    assert!((38..60).contains(&taken), "it began when {taken} % were taken: {}", s.story());
    s.answered();
    s.end();
}

/// ext4 commits its journal every five seconds, and each time the disk is flushed; the sweep flushed it once more every second or two. A
/// SATA disk stands still meanwhile: streams beside it had an eighth less than without a cache. A chunk waits for the next commit now,
/// where commits come in an even step and clients use the disk; what is clean is no less on the disk for that (R2).
#[test]
fn a_sweep_beside_clients_has_its_chunks_flushed_by_their_commits() {
    const MS: u64 = 1_000_000;
    let settings = Settings { idle_ns: 200 * MS, chunk_runs: 16, destage_percent: 10, ..Stage::default().settings };
    let mut s = Scene::new("a sweep and commits", Stage { segments: 100, settings, ..Stage::default() });
    // For twelve seconds: a stream past the cache, small writes into it, and a commit every two and a half.
    let (mut commits, mut before) = (0, 0);
    for n in 0..600 {
        s.world.write(0, n * 64, 64, false);
        if n % 25 == 0 {
            for m in 0..120 {
                s.world.write(0, 100_000 + (n * 120 + m) * 7919 % 150_000 / 8 * 8, 8, false);
            }
        }
        s.pass(20 * MS);
        if n % 125 == 124 {
            s.flush();
            commits += 1;
        }
        if n == 260 {
            (commits, before) = (0, s.device(Device::Backing(0)).flushes);
        }
    }
    let (flushes, clean) = (s.device(Device::Backing(0)).flushes - before, s.status().volumes[0].stats.destaged.bytes / 4096);
    assert!(clean > 0 && flushes <= commits + 2, "{flushes} flushes of the disk for {commits} commits, {clean} blocks destaged");
    // The sweep goes on between two of them: behind three chunks it stood still, with 381, and so did writes over a full cache.
    assert!(clean > 450, "{clean} blocks clean after {commits} commits");
    s.answered();
    // Who waits for the end does not wait for a commit that may not come.
    let since = s.world.now;
    s.destage();
    assert!(s.world.now - since < 1000 * MS, "{} ms", (s.world.now - since) / MS);
    s.lose_power();
    s.read_all();
    s.end();
}

/// As many chunks as may wait for a commit did, and the clients whose commit it would have been had ended: the disk was idle, writes wanted
/// space, and nothing was clean for seconds. Seen by `headpond stat 1` beside `headpond experiments C2 --real`: writes took 100 ms.
#[test]
fn chunks_wait_for_a_commit_no_longer_than_clients_use_the_disk() {
    const MS: u64 = 1_000_000;
    let settings = Settings { idle_ns: 200 * MS, chunk_runs: 16, destage_percent: 10, ..Stage::default().settings };
    let mut s = Scene::new("chunks that wait, and an idle disk", Stage { segments: 100, settings, ..Stage::default() });
    let clean = |s: &Scene| s.status().volumes[0].stats.destaged.bytes / 4096;
    // A stream past the cache with a commit every two and a half seconds, small writes after the last of them, and a second of it more.
    for n in 0..425 {
        s.world.write(0, n * 64, 64, false);
        s.pass(20 * MS);
        if n % 125 == 124 {
            s.flush();
        }
        if n == 375 {
            for m in 0..1200 {
                s.world.write(0, 100_000 + m * 7919 % 150_000 / 8 * 8, 8, false);
            }
        }
    }
    s.answered();
    let before = clean(&s);
    s.pass(600 * MS);
    assert!(before == 0 && clean(&s) >= 16 * 6, "{before} blocks clean beside the stream, {} soon after", clean(&s));
    s.lose_power();
    s.read_all();
    s.end();
}

/// ext4 commits its journal beside two streams, and a SATA disk stands still for the flush. The kernel holds back meanwhile what the
/// streams would write next: the disk was taken for idle after a fifth of a second of that, and a sweep had its writes before theirs. At
/// each commit streams over a cache that was full lost a third of a second. Found by `headpond experiments B1 --real`.
#[test]
fn a_disk_that_clients_have_flushed_is_not_idle_until_it_has() {
    const MS: u64 = 1_000_000;
    let settings = Settings { idle_ns: 200 * MS, ..Stage::default().settings };
    let mut s = Scene::new("a long flush", Stage { segments: 100, settings, ..Stage::default() });
    for n in 0..50 {
        s.world.write(0, n * 64, 64, false);
        s.pass(20 * MS);
    }
    s.answered();
    (0..40).for_each(|n| s.write(100_000 + n * 800, 8));
    let (dirty, writes) = (s.dirty(), Rc::new(Cell::new(0)));
    let counted = writes.clone();
    s.hold_back(move |device, op| {
        counted.set(counted.get() + u32::from(device == Device::Backing(0) && matches!(op, DeviceOp::Write { .. })));
        device == Device::Backing(0) && matches!(op, DeviceOp::Flush)
    });
    let flush = s.world.flush(0);
    s.until_held();
    s.pass(8000 * MS);
    assert!(dirty >= 40 && writes.get() == 0, "{} writes before the clients' next, {dirty} blocks dirty", writes.get());
    s.let_go();
    assert!(s.answer_to(flush));
    s.pass(8000 * MS);
    assert_eq!(s.dirty(), 0, "{} writes since, and nobody uses the disk", writes.get());
    s.end();
}

/// A chunk was as long as two seconds' sweeping had been before four streams came to the same disk; then it took twenty. Until it ended
/// nothing was clean, no segment was free, and for eight seconds every small write went to the disk, which made it longer.
#[test]
fn a_chunk_ends_when_it_has_taken_long_however_much_of_it_is_written() {
    let mut stage = Stage { segments: 300, timing: || Timing::Fixed(200_000_000), ..Stage::default() };
    (stage.settings.chunk_runs, stage.settings.stream_bytes) = (2048, u64::MAX);
    let mut s = Scene::new("a long chunk", stage);
    for n in 0..2000 {
        s.world.write(0, n * 16, 8, false);
    }
    s.answered();
    s.rest();
    let command = s.world.command(Command::Destage { volume: 0 });
    s.pass(5_000_000_000);
    let clean = s.status().volumes[0].stats.destaged.bytes / 4096;
    assert!((100..1900).contains(&clean), "{clean} blocks clean after five seconds");
    s.ends_well(command);
    s.end();
}

/// Some places are written again and again, beside a client who uses the disk: they have room in the cache many times over, but each
/// segment holds a little that is not written again. A sweep won the segments back, at the expense of that client, and wrote the same
/// places to the disk each time. What found it was `headpond experiments C3 --real`: streams beside writers had 0.83 of the disk.
#[test]
fn what_is_written_again_and_again_is_gathered_and_needs_no_sweep() {
    let settings = Settings { destage_percent: 50, ..Stage::default().settings };
    let mut s =
        Scene::new("hot places", Stage { segments: 60, timing: || Timing::Fixed(5_000_000), settings, ..Stage::default() });
    let (mut n, mut most) = (0, 0);
    let writes = 6 * 60 * s.stage.segment_bytes / 4096;
    while n < writes {
        for _ in 0..8 {
            // Of sixty writes one is to a place of its own.
            let place = if n % 60 == 0 { 1000 + n } else { n * 23 % 61 };
            s.world.write(0, place * 8, 8, false);
            n += 1;
        }
        s.answered();
        most = most.max(s.status().dirty_percent);
    }
    let status = s.status();
    let destaged = status.volumes[0].stats.destaged;
    assert!(status.stats.relocated > 0 && destaged.requests == 0, "{destaged:?}, {most} % of the space were taken");
    assert!(most < 80, "{most} % of the space were taken, of which little is dirty");
    s.lose_power();
    s.read_all();
    s.end();
}

/// A stretch of the disk takes no write, and it is longer than what a sweep has in flight. What lay behind it in the same chunk was passed over each time, and stayed dirty for
/// as long as the stretch did. Found by reading.
#[test]
fn what_lies_behind_a_bad_stretch_of_the_disk_gets_to_it() {
    let mut stage = Stage { segments: 60, ..Stage::default() };
    (stage.settings.chunk_runs, stage.settings.destage_depth) = (64, 4);
    let mut s = Scene::new("behind a bad stretch", stage);
    (0..48).for_each(|n| s.write(n * 640, 8));
    s.flush();
    s.world.errors_allowed = true;
    (0..12).for_each(|n| _ = s.device(Device::Backing(0)).dead_sectors.insert(n * 640, ()));
    s.world.command(Command::Destage { volume: 0 });
    s.pass(20_000_000_000);
    assert!(s.dirty() <= 12, "{} blocks are dirty; {}", s.dirty(), s.story());
    s.device(Device::Backing(0)).dead_sectors.clear();
}

/// Much is dirty, and somebody wants all of it on the disk, when the daemon is told to end. It ended when that was done: in hours, or with its service's time, killed, and
/// without its last checkpoint. Found by reading.
#[test]
fn a_stop_leaves_dirty_what_somebody_wants_clean() {
    const SECOND: u64 = 1_000_000_000;
    let stage = Stage { segments: 100, timing: || Timing::Random(90_000, 110_000), ..Stage::default() };
    let mut s = Scene::new("a stop under a flush", stage);
    for n in 0..400 {
        s.write(n * 37 % 499 * 512, 8);
    }
    s.device(Device::Backing(0)).slowness = 5000;
    let flush = s.world.command(Command::Destage { volume: 0 });
    s.pass(SECOND);
    let (stop, since) = (s.world.command(Command::Stop), s.world.now);
    s.ends_well(stop);
    let took = (s.world.now - since) / SECOND;
    assert_eq!(s.end_of(flush), Err(CommandError::Cancelled), "{}: after {took} s", s.story());
    assert!(took < 15 && s.dirty() > 200, "{}: it took {took} s, and {} are dirty", s.story(), s.dirty());
    s.device(Device::Backing(0)).slowness = 1;
    s.kill();
    s.read_all();
    s.end();
}

/// A sweep began in each pause of 200 ms, filled the disk's own cache and queue, and whoever came back waited for all of that: a MiB that was written and flushed each half
/// second took eighteen times as long as without a cache. Found by reading.
#[test]
fn who_comes_back_to_the_disk_each_half_second_meets_no_sweep() {
    let mut stage = Stage::default();
    stage.settings.idle_ns = 200_000_000;
    let mut s = Scene::new("back each half second", stage);
    for n in 0..20 {
        s.write(n * 4000, 8);
        s.read(100_000 + n * 4000, 8);
        s.pass(500_000_000);
    }
    assert!(s.dirty() >= 16, "{}: {} of 20 are dirty", s.story(), s.dirty());
    // Who has gone is not waited for.
    s.pass(10_000_000_000);
    assert_eq!(s.dirty(), 0, "{}", s.story());
    s.end();
}

/// A chunk of a sweep was called clean in one step. Where the disk takes much at once that is a quarter of a million blocks, and everybody waits
/// meanwhile. Found by reading.
#[test]
fn what_a_sweep_has_written_is_called_clean_in_turns() {
    const BLOCKS: u64 = 60;
    let settings = Settings { let_go_blocks: 4, chunk_runs: 64, ..Stage::default().settings };
    let mut s = Scene::new("a chunk is called clean in turns", Stage { settings, ..Stage::default() });
    (0..BLOCKS).for_each(|n| s.write(n * 4000, 8));
    let (first, mut before, mut most) = (s.dirty(), s.dirty(), 0);
    let id = s.world.command(Command::Destage { volume: 0 });
    while s.world.command_result(id).is_none() {
        s.step();
        most = most.max(before - s.dirty());
        before = s.dirty();
    }
    assert!(first == BLOCKS && before == 0 && most <= 4, "{}: {most} blocks at once, of {first}", s.story());
    s.lose_power();
    assert_eq!(s.dirty(), 0, "{}", s.story());
    s.read_all();
    s.world.check_disk(0);
    s.end();
}
