//! Starts from media that somebody has written to, checksums right: each of these once ended a daemon, or worse.
//!
//! All were found by the fuzzing target `image`, or by reading what it would find; its corpus keeps others.

use headpond_engine::create::{PoolPlan, plan};
use headpond_engine::format::{Layout, MemberState, Mode, PAGE_BYTES, Page, PageBody, Place, SegmentHeader, Superblock};
use headpond_engine::{Buf, Command, Device, NewVolume, Settings};
use headpond_sim::SimBuf;
use headpond_sim::device::SimDevice;
use headpond_sim::rng::Rng;
use headpond_sim::world::{Timing, World};

const KEY: u64 = 0x0123_4567_89ab_cdef;
const BYTES: u64 = 1_699_840;
const SECTORS: u64 = 20_000;

/// A pool of two with a volume, clean and dirty data in the last checkpoint and after it; its daemon is dead.
fn pool() -> World {
    let mut world = World::new(Rng::new(1), Timing::Fixed(50_000));
    for m in 0..2 {
        world.devices.insert(Device::Member(m), SimDevice::new(BYTES, None));
    }
    world.devices.insert(Device::Witness, SimDevice::new(64 << 10, None));
    world.devices.insert(Device::Backing(0), SimDevice::new(SECTORS * 512, Some(1 << 50)));
    let pool = PoolPlan {
        name: "spoiled".into(),
        id: [7; 16],
        key: KEY,
        copies: 2,
        unit: 512,
        segment_bytes: 64 << 10,
        intent_pages: 4,
        witness: true,
        members: (0..2).map(|m| ([m + 1; 16], BYTES)).collect(),
    };
    world.put_initial(&plan(&pool).unwrap().1);
    let election = world.elect(true).unwrap();
    let id = world.start(Settings::default(), election);
    done(&mut world, id);
    let new = NewVolume {
        number: 0,
        id: [9; 16],
        name: "v".into(),
        sectors: SECTORS,
        phase: 7,
        mode: Mode::WriteBack,
        backing: "disk".into(),
    };
    command(&mut world, Command::Attach(new));
    for at in 0..12 {
        world.read(0, 5000 + at * 16, 16);
        world.write(0, at * 24, 20, false);
        steps(&mut world, 200);
    }
    command(&mut world, Command::Checkpoint);
    world.write(0, 300, 20, true);
    world.read(0, 6000, 64);
    steps(&mut world, 200);
    world.kill();
    world.errors_allowed = true;
    world.count_copies = false;
    world
}

fn steps(world: &mut World, most: usize) {
    for _ in 0..most {
        if world.outstanding() == 0 || !world.step() {
            break;
        }
    }
}

fn done(world: &mut World, id: u64) {
    for _ in 0..20_000 {
        if world.command_result(id).is_some() || !world.step() {
            break;
        }
    }
    assert_eq!(world.command_result(id), Some(Ok(())), "{:?}", world.violation);
}

fn command(world: &mut World, command: Command) {
    let id = world.command(command);
    done(world, id);
}

/// Starts, uses the volume, writes all that can be written to the disk, and stops.
fn starts_and_goes_on(mut world: World) {
    let election = world.elect(true).unwrap();
    // All space is wanted, always: whatever may be evicted or moved is.
    let id = world.start(Settings { free_percent: 50, ..Settings::default() }, election);
    done(&mut world, id);
    world.check_segments(0);
    for sector in [0, 100, 5000, 5100, SECTORS - 40] {
        world.read(0, sector, 40);
    }
    world.write(0, 10, 100, true);
    steps(&mut world, 4000);
    // What is lost stays dirty: these may not end.
    for c in [Command::Checkpoint, Command::Destage { volume: 0 }, Command::Stop] {
        world.command(c);
        (0..2000).for_each(|_| _ = world.step());
    }
    world.check_segments(0);
    assert!(world.violation.is_none(), "{:?}", world.violation);
}

fn bytes_at(d: &SimDevice, at: u64, len: usize) -> Vec<u8> {
    d.visible.read(at / 512, len / 512).to_bytes().into_owned()
}

fn put(d: &mut SimDevice, at: u64, bytes: &[u8]) {
    d.visible.write(at / 512, &SimBuf::from_bytes(bytes));
    d.durable.write(at / 512, &SimBuf::from_bytes(bytes));
}

fn layout() -> Layout {
    Layout::plan(BYTES, 64 << 10, 4).unwrap()
}

/// Changes every page of the checkpoints; how many there were.
fn change_pages(world: &mut World, change: &dyn Fn(&mut PageBody)) -> usize {
    let mut found = 0;
    for m in 0..2 {
        let d = world.devices.get_mut(&Device::Member(m)).unwrap();
        for area in 0..2 {
            for n in 0..layout().checkpoint_bytes / PAGE_BYTES as u64 {
                let at = layout().checkpoint(area) + n * PAGE_BYTES as u64;
                let bytes = bytes_at(d, at, PAGE_BYTES);
                let sequence = u64::from_le_bytes(bytes[16..24].try_into().unwrap());
                let index = u32::from_le_bytes(bytes[24..28].try_into().unwrap());
                let Ok(mut page) = Page::decode(KEY, &bytes, sequence, index) else { continue };
                change(&mut page.body);
                put(d, at, &page.encode(KEY));
                found += 1;
            }
        }
    }
    found
}

fn change_headers(world: &mut World, change: &dyn Fn(&mut SegmentHeader)) {
    for m in 0..2 {
        let d = world.devices.get_mut(&Device::Member(m)).unwrap();
        for slot in 0..layout().slots() {
            let at = layout().slot(slot);
            if let Ok(mut h) = SegmentHeader::decode(KEY, &bytes_at(d, at, 512)) {
                change(&mut h);
                put(d, at, &h.encode(KEY, 512));
            }
        }
    }
}

#[test]
fn the_media_as_they_are_start() {
    starts_and_goes_on(pool());
}

#[test]
fn pieces_beyond_the_volume_are_never_read_nor_destaged() {
    for block in [0, SECTORS / 8 + 1, 1 << 50] {
        let mut world = pool();
        let found = change_pages(&mut world, &|body| {
            if let PageBody::Pieces(_, pieces) = body {
                pieces.iter_mut().for_each(|p| p.block = block);
            }
        });
        assert!(found > 0);
        starts_and_goes_on(world);
    }
}

#[test]
fn pieces_beyond_their_segment_are_lost() {
    let mut world = pool();
    change_pages(&mut world, &|body| {
        if let PageBody::Pieces(_, pieces) = body {
            pieces.iter_mut().for_each(|p| p.offset = 60_000);
        }
    });
    starts_and_goes_on(world);
}

/// To evict it won no space and was done again, for ever, within one step.
#[test]
fn a_segment_of_one_volume_with_pieces_of_another_is_not_evicted_for_ever() {
    let mut world = pool();
    change_pages(&mut world, &|body| {
        if let PageBody::Segments(segments) = body {
            segments.iter_mut().for_each(|s| s.volume = 1);
        }
    });
    change_headers(&mut world, &|h| h.volume = 1);
    starts_and_goes_on(world);
}

#[test]
fn slots_beyond_a_device_hold_nothing_and_are_never_free() {
    let mut world = pool();
    let beyond = |copies: &mut [Place; 2]| copies.iter_mut().for_each(|c| c.slot += 5000);
    change_pages(&mut world, &|body| {
        if let PageBody::Segments(segments) = body {
            segments.iter_mut().for_each(|s| beyond(&mut s.copies));
        }
    });
    starts_and_goes_on(world);
}

/// The table of segments is as long as the largest number in it.
#[test]
fn a_segment_number_that_no_pool_has_takes_no_memory() {
    let mut world = pool();
    change_headers(&mut world, &|h| (h.segment, h.generation) = ((1 << 28) - 1, h.generation << 8));
    starts_and_goes_on(world);
}

/// Freed once for each of them, it was given to two others.
#[test]
fn a_slot_of_two_segments_is_the_first_ones() {
    let mut world = pool();
    change_pages(&mut world, &|body| {
        if let PageBody::Segments(segments) = body
            && let Some(first) = segments.first().copied()
        {
            segments.iter_mut().for_each(|s| (s.copies, s.generation) = (first.copies, first.generation));
        }
    });
    starts_and_goes_on(world);
}

/// The host has compared with the device what its own superblock says of its size, and not what the other's does.
#[test]
fn a_member_of_which_the_newest_superblock_tells_another_size_is_not_that_member() {
    let mut world = pool();
    let d = world.devices.get_mut(&Device::Member(0)).unwrap();
    for slot in 0..4 {
        let at = layout().superblock(slot);
        let mut s = Superblock::decode(&bytes_at(d, at, 4096)).unwrap();
        s.sequence += 2;
        s.members[1].layout = Layout { size: 1 << 50, ..s.members[1].layout };
        put(d, at, &s.encode());
    }
    let election = world.elect(true).unwrap();
    assert_eq!((election.present.as_slice(), election.missing.as_slice()), (&[0][..], &[1][..]));
    assert_eq!(election.superblock.members[1].state, MemberState::InSync);
}
