//! What each volume has of the pool: others leave it what it is sure of, and it stops where it has what it may.

use headpond_engine::policy::shares::Share;
use headpond_engine::stats::Bypass;
use headpond_engine::status::VolumeStatus;
use headpond_engine::{Command, CommandError, Device, DeviceOp, Settings};
use headpond_sim::models::rotating::RotatingParams;
use headpond_sim::models::ssd::SsdParams;
use headpond_sim::models::{RotatingDisk, SECOND, Ssd, TimingModel};
use headpond_sim::scene::{DISKLESS, Scene, Stage};
use headpond_sim::target::{Ask, Bare, Target};
use headpond_sim::world::Timing;
use std::cell::Cell;
use std::collections::BTreeMap;
use std::rc::Rc;

const MILLISECOND: u64 = 1_000_000;
/// Requests, of 16 sectors each, to what is asked for again.
const AGAIN: u64 = 64;
/// The volume that floods the pool.
const NEIGHBOUR: u16 = 1;

/// Two volumes on a pool of a little more than 120 slots; destage begins beside clients when half of the space is taken.
fn scene(story: &str) -> Scene {
    let stage = Stage::default();
    let settings = Settings { stream_bytes: 1 << 30, destage_percent: 50, idle_ns: 20 * MILLISECOND, ..stage.settings };
    Scene::new(story, Stage { segments: 60, volumes: 2, settings, ..stage })
}

fn share(s: &mut Scene, volume: u16, min: u8, max: u8) {
    s.obey(Command::Share { volume, share: Share { min, max } });
}

fn of(s: &Scene, volume: u16) -> VolumeStatus {
    s.status().volumes.into_iter().find(|v| v.number == volume).expect("the volume is attached")
}

/// Slots that a volume is sure of, and may have.
fn least(s: &Scene, volume: u16) -> u64 {
    of(s, volume).segments_least
}

fn most(s: &Scene, volume: u16) -> u64 {
    of(s, volume).segments_most.expect("it has a maximum")
}

/// Writes that found no room in the cache.
fn full(s: &Scene, volume: u16) -> u64 {
    of(s, volume).stats.write_bypass[Bypass::Full as usize].requests
}

/// Here and there, so that it is no stream; nothing twice in 3,001.
fn place(n: u64) -> u64 {
    n * 7919 % 3001 * 64
}

/// One request of the neighbour's flood, answered: every other one a write.
fn flood(s: &mut Scene, n: u64) {
    match n % 2 {
        0 => s.world.write(NEIGHBOUR, place(n), 16, false),
        _ => s.world.read(NEIGHBOUR, place(n), 16),
    };
    s.answered();
}

/// A little that is asked for again and again.
fn read_again(s: &mut Scene) {
    (0..AGAIN).for_each(|n| s.read(n * 7919 % 900 * 64, 16));
    s.pass(50 * MILLISECOND);
}

/// How many of these miss.
fn missed(s: &mut Scene) -> u64 {
    let before = of(s, 0).stats.miss.requests;
    read_again(s);
    of(s, 0).stats.miss.requests - before
}

/// A neighbour floods the pool with writes, and with reads of what it has not. It has what it may, and no more: the rest goes to its
/// disk, and is not admitted. What another one works with stays.
#[test]
fn a_flood_stops_at_its_volumes_maximum() {
    let mut s = scene("a flood stops at its maximum");
    share(&mut s, NEIGHBOUR, 0, 30);
    (0..3).for_each(|_| read_again(&mut s));
    let mut highest = 0;
    for n in 0..1200 {
        flood(&mut s, n);
        highest = highest.max(of(&s, NEIGHBOUR).segments);
    }
    assert!(highest > most(&s, NEIGHBOUR) / 2, "{highest} slots: the story tells nothing");
    // Marks may open a segment where nothing else may, and what is moved one in each of three bands.
    assert!(highest <= most(&s, NEIGHBOUR) + 6, "{highest} slots, and {} it may have", most(&s, NEIGHBOUR));
    assert_eq!(missed(&mut s), 0);
    s.end();
}

/// At its maximum a volume goes on as any cache does: what it reads now comes in, and what it has not read for long is let go.
#[test]
fn at_its_maximum_a_volume_makes_room_of_its_own() {
    let mut s = scene("at its maximum a volume makes room of its own");
    share(&mut s, 0, 0, 20);
    for n in 100..1100 {
        s.read(place(n), 16);
    }
    let before = of(&s, 0).stats.admitted.requests;
    for n in 1100..1600 {
        s.read(place(n), 16);
    }
    let admitted = of(&s, 0).stats.admitted.requests - before;
    assert!(admitted > 100, "{admitted} of 500 were admitted");
    assert!(of(&s, 0).segments <= most(&s, 0) + 2);
    s.end();
}

/// A volume was read once, and its neighbour floods the pool with what it reads twice, and with writes: by its own right the
/// volume would keep nothing. What it is sure of is left to it.
#[test]
fn a_flood_leaves_others_their_minimum() {
    let mut s = scene("a flood leaves others their minimum");
    share(&mut s, 0, 40, 100);
    for n in 0..600 {
        s.read(place(n), 16);
        if n % 32 == 31 {
            s.pass(50 * MILLISECOND);
        }
    }
    assert!(of(&s, 0).segments > least(&s, 0), "{:?}", of(&s, 0));
    for n in 0..1200 {
        flood(&mut s, n);
        if n % 8 == 7 {
            flood(&mut s, n - 6);
        }
        let (has, sure) = (of(&s, 0).segments, least(&s, 0));
        assert!(has >= sure, "request {n}: {has} slots are left, and it is sure of {sure}");
    }
    s.end();
}

/// The neighbour writes until it finds no room: its disk takes nothing.
fn neighbour_fills_all(s: &mut Scene) {
    s.hold_back(|device, op| device == Device::Backing(NEIGHBOUR) && matches!(op, DeviceOp::Write { .. }));
    for n in 0.. {
        assert!(n < 3000, "there is no end to the room for dirty data");
        let request = s.world.write(NEIGHBOUR, place(n), 8, false);
        s.pass(5 * MILLISECOND);
        if s.world.waits(request) {
            // For its turn, or for its disk: it has found no room.
            s.pass(1_000 * MILLISECOND);
            if s.world.waits(request) {
                break;
            }
        }
    }
}

/// The disk of a neighbour that writes takes nothing, so that all of the space for dirty data is taken that may be. What another
/// volume is sure of is not among it.
#[test]
fn a_writer_leaves_room_for_writes_to_who_is_sure_of_it() {
    let mut s = scene("a writer leaves room for writes");
    share(&mut s, 0, 40, 100);
    neighbour_fills_all(&mut s);
    for n in 0..150 {
        let request = s.world.write(0, place(n), 8, false);
        assert!(s.answer_to(request));
    }
    assert_eq!(full(&s, 0), 0, "writes found no room: {:?}", of(&s, 0));
    assert_eq!(of(&s, 0).stats.absorbed.requests, 150);
    s.end();
}

/// All that may be dirty is, and nothing gets clean. One segment is left for a volume that has less than it is sure of: what it
/// reads comes in, though that is first to go without elsewhere.
#[test]
fn a_segment_is_left_for_who_has_less_than_the_minimum() {
    let stage = Stage::default();
    let settings = Settings { stream_bytes: 1 << 30, dirty_percent: 100, ..stage.settings };
    let mut s = Scene::new("a segment is left", Stage { segments: 60, volumes: 2, settings, ..stage });
    share(&mut s, 0, 2, 100);
    assert_eq!(least(&s, 0), 2);
    neighbour_fills_all(&mut s);
    let request = s.world.read(0, place(1), 8);
    assert!(s.answer_to(request));
    s.pass(5 * MILLISECOND);
    assert_eq!(of(&s, 0).stats.admitted.requests, 1, "what was read is not let in");
    s.end();
}

/// A neighbour has filled the pool with writes, and goes on. Then a volume is told to be sure of a part: reading, it gets it,
/// however the neighbour writes.
#[test]
fn who_has_less_than_the_minimum_gets_room_while_another_writes_on() {
    let mut s = scene("who has less than the minimum gets room");
    (0..700).for_each(|n| flood(&mut s, 2 * n));
    share(&mut s, 0, 60, 100);
    assert!(of(&s, 0).segments < least(&s, 0) / 2, "it has enough: the story tells nothing");
    let mut n = 1400;
    let mut reads = 0;
    while of(&s, 0).segments < least(&s, 0) {
        for _ in 0..3 {
            s.world.write(NEIGHBOUR, place(n), 16, false);
            n += 2;
        }
        s.world.read(0, place(reads), 16);
        reads += 1;
        s.answered();
        assert!(reads < 1500, "after {reads} reads it has {} slots of {}", of(&s, 0).segments, least(&s, 0));
    }
    s.end();
}

/// A neighbour's dirty data has all but what it must leave, and its disk takes nothing. What is to be preloaded into that has as much room as what is read: it had
/// less, and the disk was read for it again and again, in vain. Found by reading.
#[test]
fn what_is_preloaded_of_who_has_less_than_the_minimum_has_the_room_that_is_left_to_it() {
    let stage = Stage::default();
    let settings = Settings { stream_bytes: 1 << 30, dirty_percent: 100, ..stage.settings };
    let mut s = Scene::new("a preload of who has less than the minimum", Stage { segments: 60, volumes: 2, settings, ..stage });
    s.hold_back(|device, op| device == Device::Backing(NEIGHBOUR) && matches!(op, DeviceOp::Write { .. }));
    // One pair is left beside the two that are kept in reserve.
    let mut n = 0;
    while s.status().members.iter().any(|member| member.segments_free > 3) {
        s.world.write(NEIGHBOUR, place(n), 16, false);
        s.answered();
        n += 1;
    }
    share(&mut s, 0, 60, 100);
    let read: Rc<Cell<u64>> = Rc::default();
    let count = read.clone();
    s.hold_back(move |device, op| {
        if let (Device::Backing(0), DeviceOp::Read { len, .. }) = (device, op) {
            count.set(count.get() + u64::from(*len) / 4096);
        }
        device == Device::Backing(NEIGHBOUR) && matches!(op, DeviceOp::Write { .. })
    });
    s.obey(Command::Preload { volume: 0, ranges: std::iter::once(0..4096).collect() });
    let (cached, preload) = (of(&s, 0).cached_blocks, of(&s, 0).preload);
    assert!(cached > 0 && preload.left_out > 0, "{}: {cached} blocks, {preload:?}", s.story());
    assert!(read.get() <= cached + 512, "{}: {} blocks were read for {cached}, {preload:?}", s.story(), read.get());
    s.end();
}

/// A volume holds most of the pool, dirty and clean, when it is told to have less. It lets go of what is clean, and destages: nobody
/// has to ask. Nothing is lost by it, whenever the power goes.
#[test]
fn a_smaller_maximum_is_kept_soon_and_loses_nothing() {
    let mut s = scene("a smaller maximum is kept soon");
    for n in 0..900 {
        if n % 2 == 0 { s.write(place(n), 16) } else { s.read(place(n), 16) }
    }
    s.flush();
    let before = of(&s, 0).segments;
    share(&mut s, 0, 0, 20);
    assert!(before > 2 * most(&s, 0), "{before} slots: the story tells nothing");
    s.pass(200 * MILLISECOND);
    s.lose_power();
    s.read_all();
    // The daemon is told again at each start.
    share(&mut s, 0, 0, 20);
    let most = most(&s, 0);
    s.until("it has what it may", |w| {
        let status = w.engine.as_ref().map(headpond_engine::Engine::status);
        status.is_some_and(|status| status.volumes[0].segments <= most)
    });
    s.kill();
    s.read_all();
    s.end();
}

/// What cannot be had is not promised.
#[test]
fn minimums_that_come_to_too_much_are_refused() {
    let mut s = scene("minimums that come to too much").with_diskless(128);
    let ask = |s: &mut Scene, volume, min, max| {
        let id = s.world.command(Command::Share { volume, share: Share { min, max } });
        s.end_of(id)
    };
    assert_eq!(ask(&mut s, 0, 50, 100), Ok(()));
    assert_eq!(ask(&mut s, 1, 41, 100), Err(CommandError::ShareTooMuch { left: 40 }));
    assert_eq!(ask(&mut s, 1, 60, 50), Err(CommandError::ShareOrder));
    assert_eq!(ask(&mut s, DISKLESS, 10, 50), Err(CommandError::NoDisk));
    assert_eq!(of(&s, 1).share, Share::default());
    assert_eq!(ask(&mut s, 0, 45, 45), Ok(()));
    assert_eq!(ask(&mut s, 1, 45, 100), Ok(()));
    s.end();
}

/// One volume's disk answers nothing, and all of the space for dirty data is its own. Another, with nothing dirty, whose disk is well, had
/// its writes held back as if its own sweep could win room: a quarter of a second for each. Found by reading.
#[test]
fn a_neighbour_whose_disk_takes_nothing_holds_back_nobody_elses_writes() {
    let mut s = scene("a neighbour whose disk takes nothing");
    neighbour_fills_all(&mut s);
    let since = s.world.now;
    for n in 0..20 {
        let request = s.world.write(0, place(n), 8, false);
        assert!(s.answer_to(request));
    }
    let took = (s.world.now - since) / MILLISECOND;
    // Alone the disk takes two.
    assert!(took < 100, "twenty writes took {took} ms; {}", s.story());
    s.end();
}

/// A volume may have a hundredth of a pool, and another has a large map. What the first had written over, or had on its disk, was freed by a
/// checkpoint each time that it was an eighth of what it held: an image of all maps for a few hundred KiB. Found by reading.
#[test]
fn images_for_a_small_share_take_little_of_what_cache_devices_are_written() {
    let usual = Stage::default();
    let settings = Settings { destage_percent: 10, idle_ns: 20 * MILLISECOND, ..usual.settings.clone() };
    let stage = Stage { segments: 512, volumes: 2, settings, ..usual };
    let mut s = Scene::new("images for a small share", stage);
    (0..2048u64).for_each(|n| s.write(n * 7919 % 8192 * 32, 8));
    s.destage();
    s.checkpoint();
    share(&mut s, NEIGHBOUR, 0, 1);
    let images = |s: &Scene| s.status().stats.checkpoint_bytes;
    let written = |s: &Scene| s.status().members.iter().map(|m| m.written).sum::<u64>();
    let absorbed = |s: &Scene| of(s, NEIGHBOUR).stats.absorbed.bytes;
    let before = (images(&s), written(&s));
    for n in 0..1200 {
        let request = s.world.write(NEIGHBOUR, place(n), 8, false);
        assert!(s.answer_to(request));
        if n % 8 == 7 {
            s.pass(10 * MILLISECOND);
        }
    }
    let (images, written) = (images(&s) - before.0, written(&s) - before.1);
    assert!(written > 200 << 10 && images * 8 <= written, "{} of {} KiB were images", images >> 10, written >> 10);
    // What has no room meanwhile does not wait for any: each had waited for a quarter of a second. Found by reading.
    s.pass(200 * MILLISECOND);
    let (since, full) = (s.world.now, absorbed(&s));
    for n in 0..20 {
        let request = s.world.write(NEIGHBOUR, place(3000 + n), 8, false);
        assert!(s.answer_to(request));
    }
    let took = (s.world.now - since) / MILLISECOND;
    assert!(absorbed(&s) - full < 20 * 4096 && took < 500, "{took} ms for 20 writes; {}", s.story());
    // It is not kept from the cache for good.
    s.pass(3_700_000 * MILLISECOND);
    let before = absorbed(&s);
    for n in 0..20 {
        let request = s.world.write(NEIGHBOUR, place(2000 + n), 8, false);
        assert!(s.answer_to(request));
    }
    assert!(absorbed(&s) >= before + 8 * 4096, "{} of 20 blocks; {}", (absorbed(&s) - before) / 4096, s.story());
    s.end();
}

/// What a maximum that is made smaller lets go of went all at once: of a large pool that is a hundred thousand segments, and nobody was answered
/// meanwhile, not even who asked how the daemon is. Found by reading.
#[test]
fn what_a_smaller_maximum_lets_go_of_keeps_nobody_waiting() {
    let mut s = scene("a maximum that is made smaller");
    for n in 0..600 {
        s.world.write(NEIGHBOUR, place(n), 16, false);
        s.answered();
    }
    s.obey(Command::Destage { volume: NEIGHBOUR });
    s.checkpoint();
    s.pass(1000 * MILLISECOND);
    let cached = |s: &Scene| of(s, NEIGHBOUR).cached_blocks;
    let (first, mut before, mut most) = (cached(&s), cached(&s), 0);
    s.world.command(Command::Share { volume: NEIGHBOUR, share: Share { min: 0, max: 10 } });
    while cached(&s) * 2 > first {
        s.step();
        most = most.max(before - cached(&s));
        before = cached(&s);
    }
    let of_a_segment = s.stage.segment_bytes / 4096;
    assert!(first > 20 * of_a_segment && most <= 2 * of_a_segment, "{}: {most} blocks at once, of {first}", s.story());
    s.end();
}

fn rotating() -> RotatingDisk {
    RotatingDisk::new(RotatingParams::nearline_7200())
}

/// Two volumes over rotating disks, on two SSDs.
fn modelled(story: &str) -> Scene {
    let timing = || {
        let mut models: BTreeMap<Device, Box<dyn TimingModel>> = BTreeMap::new();
        for n in 0..2 {
            models.insert(Device::Backing(n), Box::new(rotating()));
            models.insert(Device::Member(n as u8), Box::new(Ssd::new(&SsdParams::sata_consumer())));
        }
        Timing::Models(models)
    };
    let (segments, segment_bytes, sectors) = (500, 256 << 10, (8 << 30) / 512);
    let mut s = Scene::new(
        story,
        Stage { segments, segment_bytes, volumes: 2, sectors, timing, settings: Settings::default(), ..Stage::default() },
    );
    s.world.count_copies = false;
    s
}

/// Clients of both volumes: so many of each have a write of a block under way at any time, anywhere in 4 GiB.
#[derive(Default)]
struct Writers {
    under_way: BTreeMap<u64, u16>,
    place: u64,
    answered: [u64; 2],
}

impl Writers {
    fn ask(&mut self, target: &mut impl Target, volume: u16) {
        const PLACES: u64 = 1 << 20;
        self.place = (self.place * 1_664_525 + 1_013_904_223) % PLACES;
        let id = target.send(volume, Ask::Write { sector: self.place * 8, sectors: 8 });
        self.under_way.insert(id, volume);
    }

    /// They write for so long, in nanoseconds, so many of each volume at a time; of the first one has a write more each `pace` nanoseconds,
    /// unless that is zero. How many were answered.
    fn run(&mut self, target: &mut impl Target, depths: [usize; 2], pace: u64, time: u64) -> [u64; 2] {
        let (until, before) = (target.now() + time, self.answered);
        let mut next = target.now();
        loop {
            for volume in 0..2 {
                while self.under_way.values().filter(|v| **v == volume).count() < depths[usize::from(volume)] {
                    self.ask(target, volume);
                }
            }
            if target.now() >= next && pace > 0 {
                next += pace;
                self.ask(target, 0);
            }
            if target.now() >= until {
                return [0, 1].map(|v| self.answered[v] - before[v]);
            }
            target.step(if pace > 0 { next.min(until) } else { until }).expect("nothing happens that must not");
            for answer in target.answers() {
                let volume = self.under_way.remove(&answer.id).expect("it was asked");
                self.answered[usize::from(volume)] += 1;
            }
        }
    }
}

/// Answers that eight writers have from a disk as it is, in so long.
fn bare(time: u64) -> u64 {
    let mut disk = Bare::new(rotating());
    let mut writers = Writers::default();
    writers.run(&mut disk, [8, 0], 0, 10 * SECOND);
    writers.run(&mut disk, [8, 0], 0, time)[0]
}

/// One volume's disk answers nothing, and nearly half of the space for dirty data is its own. That is short for all: another one's writes waited for what its own
/// sweep, which has nothing to do, would win, and were two thirds of what its disk does. Found by reading.
#[test]
fn beside_a_neighbour_that_has_the_space_a_volume_has_its_disk() {
    let mut s = modelled("beside a silent disk");
    s.hold_back(|device, op| device == Device::Backing(NEIGHBOUR) && matches!(op, DeviceOp::Write { .. }));
    let mut writers = Writers::default();
    while of(&s, NEIGHBOUR).dirty_blocks * 4096 < (500 * (256 << 10)) * 80 / 100 * 45 / 100 {
        writers.run(&mut s.world, [0, 32], 0, 10 * MILLISECOND);
    }
    writers.run(&mut s.world, [8, 0], 0, 20 * SECOND);
    let time = 20 * SECOND;
    let reached = writers.run(&mut s.world, [8, 0], 0, time)[0];
    let bare = bare(time);
    // Its own sweep has little to sort, and flushes the disk: a twentieth is gone for that.
    assert!(reached * 100 >= bare * 88, "{}: {reached} writes, and {bare} on the disk alone", s.story());
}

/// One volume writes more than its disk takes, all the time, and another a little; then more. What it reached while it wrote little was taken for what its disk can do. Found by
/// reading.
#[test]
fn a_volume_that_wrote_little_beside_a_neighbour_that_writes_all_the_time_may_write_more() {
    let mut s = modelled("beside a neighbour that writes all the time");
    let mut writers = Writers::default();
    writers.run(&mut s.world, [0, 32], SECOND / 80, 40 * SECOND);
    writers.run(&mut s.world, [8, 32], 0, 10 * SECOND);
    let time = 20 * SECOND;
    let reached = writers.run(&mut s.world, [8, 32], 0, time)[0];
    let bare = bare(time);
    // Its sweep sorts what it has.
    assert!(reached * 10 >= bare * 11, "{}: {reached} writes, and {bare} on the disk alone", s.story());
}
