//! What a read is answered with: what is read ahead from the cache devices, and what is damaged; and how what it missed is kept.

use headpond_engine::{Command, Device, DeviceOp, Settings};
use headpond_format::Mode;
use headpond_sim::scene::{Scene, Stage};
use std::cell::RefCell;
use std::ops::Range;
use std::rc::Rc;

/// Sectors of a write that goes past the cache.
const PAST: u64 = 1024;
/// A millisecond: long enough for whatever is not held back to end.
const MOMENT: u64 = 1_000_000;

/// A stage on which runs of small requests go through the cache, and are read ahead of.
fn reading_ahead() -> Stage {
    let mut stage = Stage::default();
    (stage.settings.stream_bytes, stage.settings.large_bytes) = (1 << 20, 1 << 20);
    stage
}

/// Reads blocks one after the other.
fn read_on(s: &mut Scene, blocks: Range<u64>) {
    for n in blocks {
        s.read(n * 8, 8);
    }
    s.rest();
}

/// Requests that were answered from memory.
fn from_memory(s: &Scene) -> u64 {
    s.status().volumes[0].stats.hit_ahead.requests
}

/// What is read ahead is kept; then some of it is written, whole, in part, and past the cache. Memory serves what the map
/// names, and nothing else.
#[test]
fn what_is_kept_is_served_while_the_map_names_it() {
    let mut s = Scene::new("what is kept is served while the map names it", reading_ahead());
    (0..16).for_each(|n| s.write(n * 8, 8));
    read_on(&mut s, 0..9);
    let served = from_memory(&s);
    assert!(served > 0, "{}", s.story());
    s.write(9 * 8, 8);
    s.write(10 * 8 + 2, 3);
    read_on(&mut s, 9..12);
    assert!(from_memory(&s) > served, "{}", s.story());
    s.write(12 * 8, PAST * 4);
    read_on(&mut s, 12..16);
    s.end();
}

/// Clean data rots where it is read ahead: it is not kept, and who wants it gets it from the disk.
#[test]
fn what_is_read_ahead_proves_itself() {
    let mut s = Scene::new("what is read ahead proves itself", reading_ahead());
    // Out of order: nothing is read ahead yet.
    for n in [6, 2, 4, 0, 7, 3, 5, 1] {
        s.read(n * 8, 8);
    }
    s.rest();
    for (device, sector) in s.copies(6 * 8) {
        s.rot(device, sector * 512..sector * 512 + 512);
    }
    read_on(&mut s, 0..8);
    assert!(from_memory(&s) > 0, "{}", s.story());
    s.end();
}

/// The cache device is slow with what is read ahead: who wants it does not wait for that for long, and reads it alone.
#[test]
fn nobody_waits_long_for_what_is_read_ahead() {
    let mut s = Scene::new("nobody waits long for what is read ahead", reading_ahead());
    s.world.write(0, 0, 128, false);
    s.answered();
    s.hold_back(|device, op| matches!(device, Device::Member(_)) && matches!(op, DeviceOp::Read { len, .. } if *len > 4096));
    (0..4).for_each(|n| s.read(n * 8, 8));
    s.until_held();
    let begun = s.world.now;
    s.read(4 * 8, 8);
    assert!(s.world.now - begun < 1000 * MOMENT, "{}", s.story());
    s.let_go();
    s.end();
}

/// Sixty-four clients read small pieces side by side, as an NFS server's do: each is read ahead of. Sixteen were, and the others had no
/// more than the cache devices answer requests, less than a disk that reads ahead for all of them: found by
/// `headpond bench --real --only "64 streams"`.
#[test]
fn many_readers_side_by_side_are_all_read_ahead_of() {
    const READERS: u64 = 64;
    const BLOCKS: u64 = 24;
    let mut stage = reading_ahead();
    (stage.segments, stage.segment_bytes) = (128, 256 << 10);
    let apart = stage.sectors / READERS;
    let mut s = Scene::new("many readers side by side are all read ahead of", stage);
    for reader in 0..READERS {
        s.write(reader * apart, BLOCKS * 8);
    }
    let before = from_memory(&s);
    for n in 0..BLOCKS {
        let asked: Vec<_> = (0..READERS).map(|reader| s.world.read(0, reader * apart + n * 8, 8)).collect();
        s.until("all are answered", |w| !asked.iter().any(|request| w.waits(*request)));
    }
    let served = from_memory(&s) - before;
    // All but the first few of each.
    assert!(served > READERS * BLOCKS * 3 / 4, "{served} of {}: {}", READERS * BLOCKS, s.story());
    s.end();
}

/// A cache device reads badly: each time that the read of many clean pieces begins again, another of them is damaged. All of it is
/// on the disk, but for the one block that is dirty.
#[test]
fn a_large_read_does_not_fail_for_what_the_disk_has() {
    // More than one of them is damaged in a round.
    const BLOCKS: u64 = 40;
    let mut s = Scene::new("a large read does not fail for what the disk has", reading_ahead());
    (0..BLOCKS).for_each(|n| s.write(n * 8, 8));
    s.destage();
    s.write(6 * 8, 8);
    s.rest();
    let request = s.world.read(0, 0, BLOCKS as u32 * 8);
    for damaged in (0..BLOCKS).filter(|n| *n != 6) {
        s.hold_back(|device, op| matches!(device, Device::Member(_)) && matches!(op, DeviceOp::Read { .. }));
        s.until("a cache device is asked, or there is an answer", |w| w.held_back() > 0 || !w.waits(request));
        for (device, sector) in s.copies(damaged * 8) {
            s.rot(device, sector * 512..sector * 512 + 512);
        }
        s.let_go();
    }
    assert!(s.answer_to(request), "{}", s.story());
    s.end();
}

/// A stream goes over places of which some are cached: at the beginning of one request, at the end of the next, clean and dirty. The
/// disk reads each whole, as the heads pass over all of it; what is dirty is laid over, and what is cached whole is not asked of it.
#[test]
fn a_stream_over_what_is_cached_in_part_is_read_without_holes() {
    let mut s = Scene::new("a stream over what is cached in part is read without holes", Stage::default());
    let clean = [8, 14, 20, 21, 22, 23];
    clean.iter().for_each(|n| s.write(n * 8, 8));
    s.destage();
    // The disk has something else there.
    [8, 15, 16].iter().for_each(|n| s.write(n * 8 + 2, 5));
    s.rest();
    let asked: Rc<RefCell<Vec<(u64, u32)>>> = Rc::default();
    let note = asked.clone();
    s.hold_back(move |device, op| {
        if let (Device::Backing(0), DeviceOp::Read { offset, len, .. }) = (device, op) {
            note.borrow_mut().push((*offset / 4096, *len / 4096));
        }
        false
    });
    (0..7).for_each(|n| s.read(n * 32, 32));
    assert_eq!(*asked.borrow(), [(0, 4), (4, 4), (8, 4), (12, 4), (16, 4), (24, 4)], "{}", s.story());
    s.end();
}

/// The same where reads may go to the disk that the cache could serve: of a stream what is cached between misses passes under the heads.
/// The disk then fails what it has there, and the cache serves it after all.
#[test]
fn what_is_cached_between_a_streams_misses_comes_from_the_disk_while_that_is_well() {
    let mut stage = Stage::default();
    // No read is small.
    (stage.settings.route, stage.settings.ahead_bytes) = (true, 0);
    let mut s = Scene::new("what is cached between a stream's misses comes from the disk while that is well", stage);
    (8..12).chain(16..20).chain(24..28).for_each(|n| s.write(n * 8, 8));
    s.destage();
    s.write(25 * 8 + 2, 5);
    s.rest();
    s.device(Device::Backing(0)).bad.insert(17 * 8, ());
    let by_disk = |s: &Scene| s.status().volumes[0].stats.read_bypass.requests;
    (0..3).for_each(|n| s.read(n * 32, 32));
    assert_eq!(by_disk(&s), 2, "{}", s.story());
    for n in 3..8 {
        let request = s.world.read(0, n * 32, 32);
        assert!(s.answer_to(request), "{}", s.story());
    }
    // The third and the fifth it missed; the fourth the disk could not read, and of the sixth a part is dirty.
    assert_eq!(by_disk(&s), 5, "{}", s.story());
    s.end();
}

/// What is cached between misses is read from the disk with them. There it cannot be read: the cache has it.
#[test]
fn what_the_disk_need_not_have_been_asked_for_fails_no_read() {
    let mut s = Scene::new("what the disk need not have been asked for fails no read", Stage::default());
    [2, 9, 10].iter().for_each(|n| s.write(n * 8, 8));
    s.destage();
    [2, 9].iter().for_each(|n| {
        s.device(Device::Backing(0)).bad.insert(n * 8 + 3, ());
    });
    // Alone, and as a part of a stream.
    (0..3).for_each(|n| {
        let request = s.world.read(0, n * 32, 32);
        assert!(s.answer_to(request), "{}", s.story());
    });
    s.end();
}

/// A segment of clean data is on one cache device, and one was filled after the other: whoever read what is cached had one device at a
/// time for megabytes, and several readers met on the same one (`tests/striped.rs` has what that took).
#[test]
fn clean_data_next_to_each_other_is_on_all_cache_devices() {
    const STRIPE: usize = 256;
    const STRIPES: usize = 32;
    let mut s =
        Scene::new("clean data is on all cache devices", Stage { segments: 80, segment_bytes: 1 << 20, ..Stage::default() });
    s.obey(Command::Preload { volume: 0, ranges: std::iter::once(0..(STRIPES * STRIPE) as u64).collect() });
    let on: Vec<Device> = (0..STRIPES).map(|n| s.copies((n * STRIPE) as u64)[0].0).collect();
    let apart = on.chunks(2).filter(|pair| pair[0] != pair[1]).count();
    // A lane whose segment could not be opened beside the other's shares its device for a while.
    assert!(apart >= STRIPES / 2 * 3 / 4, "only {apart} pairs of {on:?}; {}", s.story());
    // Where each of the open segments stands is in a checkpoint, and what comes after is found behind it.
    s.checkpoint();
    (0..64).for_each(|n| s.write(n * 101 % 64 * 97, 3));
    s.obey(Command::Preload { volume: 0, ranges: std::iter::once(8192..12288).collect() });
    s.lose_power();
    s.read_all();
    s.end();
}

/// A scene in which clean data waits so long for more of it to share a record with.
fn gathering(name: &'static str, gather_ns: u64) -> Scene {
    gathering_records(name, gather_ns, Settings::default().record_bytes)
}

/// The same, with records of so many bytes.
fn gathering_records(name: &'static str, gather_ns: u64, record_bytes: u64) -> Scene {
    let mut stage = Stage { segments: 80, ..Stage::default() };
    (stage.settings.gather_ns, stage.settings.record_bytes) = (gather_ns, record_bytes);
    Scene::new(name, stage)
}

/// What was read from the disk, or written through the cache, had a record of its own as soon as it was there, though nobody waits for
/// that: in units of 4 KiB half of it was header, and a client who wrote small pieces one after the other through a cache that had them
/// shared the processors with as many writes to a cache device. Seen in `headpond bench --real --rounds 9 --only "through: write stream
/// 4 KiB x1"`: 0.83 of what the disk gave him without a cache.
#[test]
fn clean_data_that_comes_soon_after_other_shares_its_record() {
    const MS: u64 = 1_000_000;
    let mut s = gathering("clean data in company", Settings::default().gather_ns);
    for round in 0..2 {
        let (before, place) = (s.status().stats.records, |n: u64| (round * 12 + n) * 8000);
        (0..12).for_each(|n| s.read(place(n), 8));
        // Over one of them while it waits: what was read is older then, and is not to be found in its place (R5).
        s.world.write(0, place(3), 8, false);
        s.pass(300 * MS);
        let records = s.status().stats.records - before;
        assert!((2..=3).contains(&records), "{records} records, one of them the write's, in round {round}; {}", s.story());
        let disk = s.device(Device::Backing(0)).read;
        (0..12).for_each(|n| s.read(place(n), 8));
        assert_eq!(s.device(Device::Backing(0)).read, disk, "all of it is cached then");
    }
    s.lose_power();
    s.read_all();
    s.end();
}

/// Where there is enough for a record there is nothing to wait for.
#[test]
fn clean_data_that_fills_a_record_does_not_wait() {
    const MS: u64 = 1_000_000;
    let mut s = gathering("clean data in plenty", 1000 * MS);
    // Twice as much as a record has room for, in neighbouring blocks of two stripes, and not in their order.
    (0..64).for_each(|n| s.read(n * 37 % 64 * 8, 8));
    s.pass(20 * MS);
    assert!(s.status().stats.records >= 2, "nothing is written; {}", s.story());
    let disk = s.device(Device::Backing(0)).read;
    (0..64).for_each(|n| s.read(n * 37 % 64 * 8, 8));
    let more = s.device(Device::Backing(0)).read - disk;
    assert_eq!(more, 0, "bytes read from the disk; {}", s.story());
    s.end();
}

/// Where one open segment has enough for a record, what waits for another one goes on waiting: of the two records that have room for
/// each other's data the second would be half empty.
#[test]
fn clean_data_that_fills_a_record_does_not_take_along_what_waits_elsewhere() {
    const MS: u64 = 1_000_000;
    // A stripe is as long as a record: four blocks. The next one is on the other cache device.
    let mut s = gathering_records("clean data left waiting", 1000 * MS, 16 << 10);
    let before = s.status().stats.records;
    s.read(4 * 8, 8);
    (0..4).for_each(|n| s.read(n * 3 % 4 * 8, 8));
    s.pass(20 * MS);
    assert_eq!(s.status().stats.records - before, 1, "records; {}", s.story());
    s.pass(1000 * MS);
    assert_eq!(s.status().stats.records - before, 2, "records after a second; {}", s.story());
    s.end();
}

/// A client reads again what he has just missed, in part, or two such blocks at once: it is in memory, where it waits for a record, and
/// neither the disk nor a cache device need be asked. In write-through he finds what he wrote last (R5).
#[test]
fn clean_data_that_waits_for_its_record_is_read_from_memory() {
    const MS: u64 = 1_000_000;
    let mut s = gathering("clean data in waiting", 10_000 * MS);
    let devices = [Device::Backing(0), Device::Member(0), Device::Member(1)];
    (0..6).for_each(|n| s.read(n * 8000, 8));
    (0..6).for_each(|n| s.read(n * 8000 + 8, 8));
    let before = devices.map(|device| s.device(device).read);
    (0..6).for_each(|n| s.read(n * 8000, 8));
    (0..6).for_each(|n| s.read(n * 8000 + 3, 2));
    (0..6).for_each(|n| s.read(n * 8000 + 3, 10));
    assert_eq!(devices.map(|device| s.device(device).read), before, "bytes read of the devices; {}", s.story());
    s.mode(Mode::WriteThrough);
    (0..4).for_each(|n| s.write(n * 8000, 8));
    (0..4).for_each(|n| s.read(n * 8000, 8));
    s.write(0, 8);
    (0..4).for_each(|n| s.read(n * 8000, 8));
    assert_eq!(devices.map(|device| s.device(device).read), before, "and of what was written through; {}", s.story());
    s.end();
}

/// Clean data that waits for a record holds up nobody who stops the cache or takes a volume off.
#[test]
fn who_stops_does_not_wait_with_clean_data_for_its_record() {
    const MS: u64 = 1_000_000;
    let mut s = gathering("clean data that is late", 60_000 * MS);
    (0..6).for_each(|n| s.read(n * 8000, 8));
    let since = s.world.now;
    s.obey(Command::Stop);
    let took = s.world.now - since;
    assert!(took < 2000 * MS, "the stop took {} ms; {}", took / MS, s.story());
    s.kill();
    s.start();
    let disk = s.device(Device::Backing(0)).read;
    (0..6).for_each(|n| s.read(n * 8000, 8));
    let more = s.device(Device::Backing(0)).read - disk;
    assert_eq!(more, 0, "bytes read of the disk: it was written down before; {}", s.story());
    s.end();
}

/// The disk cannot read one sector of what is pinned. Nothing within 256 KiB of it came into the cache for that, and the disk was asked for it again
/// and again, twenty times a second: a disk that takes seconds to find that out did nothing else when it was idle.
#[test]
fn beside_a_bad_sector_what_is_pinned_comes_and_the_sector_is_left_alone_for_a_while() {
    let mut stage = Stage { segments: 60, ..Stage::default() };
    stage.settings.idle_ns = 20 * MOMENT;
    let mut s = Scene::new("a pin with a bad sector", stage);
    s.device(Device::Backing(0)).bad.insert(8000 + 100, ());
    s.obey(Command::Pin { volume: 0, ranges: std::iter::once(8000..8512).collect() });
    s.pass(5000 * MOMENT);
    assert_eq!(s.status().volumes[0].cached_blocks, 63, "{}", s.story());
    let before = s.world.disk_reads;
    s.pass(30_000 * MOMENT);
    assert_eq!(s.world.disk_reads, before, "{}", s.story());
    // It can be read again, and comes.
    s.device(Device::Backing(0)).bad.clear();
    s.pass(60_000 * MOMENT);
    assert_eq!(s.status().volumes[0].cached_blocks, 64, "{}", s.story());
    s.end();
}
