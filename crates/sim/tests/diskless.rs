//! Volumes without a backing device: made, deleted, made larger and kept while cache devices fail and come.

use headpond_engine::{Command, CommandError, Degraded, Device, DeviceOp};
use headpond_sim::device::SimDevice;
use headpond_sim::scene::{DISKLESS, Scene, Stage, diskless};
use headpond_sim::world::Timing;

/// Sectors of a segment.
const SEGMENT: u64 = (64 << 10) / 512;

fn write(s: &mut Scene, sector: u64, sectors: u64, fua: bool) {
    s.world.write(DISKLESS, sector, sectors, fua);
    s.answered();
}

/// What it is told in place of what only a volume with a disk can do; it is served on.
#[test]
fn what_only_a_disk_can_do_is_refused_and_changes_nothing() {
    let mut s = Scene::new("no disk", Stage::default()).with_diskless(2 * SEGMENT);
    write(&mut s, 0, 9, false);
    let (volume, ranges): (_, Vec<_>) = (DISKLESS, std::iter::once(0..8).collect());
    for command in [
        Command::Detach { volume, give_up_lost: true },
        Command::SetMode { volume, mode: headpond_engine::format::Mode::WriteThrough },
        Command::Destage { volume },
        Command::Preload { volume, ranges: ranges.clone() },
        Command::Pin { volume, ranges: ranges.clone() },
        Command::Unpin { volume, ranges },
    ] {
        let id = s.world.command(command.clone());
        assert_eq!(s.end_of(id), Err(CommandError::NoDisk), "{command:?}");
    }
    let id = s.world.command(Command::BackingCame { volume });
    assert_eq!(s.end_of(id), Err(CommandError::DiskThere));
    write(&mut s, 3, 9, true);
    s.lose_power();
    s.read_all();
    s.end();
}

/// At most half of the pool is set aside: what is too large is told how much would do, and so much does.
#[test]
fn what_is_too_large_is_told_what_would_do() {
    let mut s = Scene::new("too large", Stage::default());
    let Err(CommandError::NoRoom { most_bytes }) = s.create_diskless(1 << 20) else { panic!("512 MiB on 5") };
    assert!(most_bytes >= 8 * SEGMENT * 512, "{most_bytes}");
    assert_eq!(s.status().volumes.len(), 1);
    let most = most_bytes / 512;
    assert!(matches!(s.create_diskless(most + 1), Err(CommandError::NoRoom { .. })));
    assert_eq!(s.create_diskless(most - 8), Ok(()));
    let grow = |sectors| Command::Grow { volume: DISKLESS, sectors };
    let id = s.world.command(grow(most + 1));
    assert_eq!(s.end_of(id), Err(CommandError::NoRoom { most_bytes }));
    s.obey(grow(most));
    // All of it, twice over.
    for n in 0..2 * most / 8 {
        write(&mut s, n * 8 % (most - 7), 8, false);
    }
    s.kill();
    assert_eq!(s.status().volumes[1].sectors, most);
    s.read_all();
    s.end();
}

/// With one of two cache devices gone it goes on, on the other: there is no disk that could take its writes. Another one gets
/// the copies.
#[test]
fn it_goes_on_when_a_cache_device_is_gone_and_has_its_copies_again_when_one_comes() {
    for degraded in [Degraded::WriteThrough, Degraded::Continue] {
        let mut stage = Stage::default();
        stage.settings.degraded = degraded;
        let mut s = Scene::new("one is gone", stage).with_diskless(2 * SEGMENT);
        write(&mut s, 0, 20, false);
        s.set_dead(Device::Member(0), true);
        write(&mut s, 10, 20, true);
        s.world.discard(DISKLESS, 8, 8, 0);
        s.answered();
        s.lose_power();
        s.read_all();
        let bytes = s.stage.member_bytes();
        s.world.devices.insert(Device::Member(2), SimDevice::new(bytes, None));
        s.obey(Command::AddMember { member: 2, id: [77; 16], bytes });
        assert_eq!(s.status().lacking_copies, 0);
        s.set_dead(Device::Member(1), true);
        s.lose_power();
        s.read_all();
        s.end();
    }
    let mut stage = Stage::default();
    stage.settings.degraded = Degraded::ReadOnly;
    let mut s = Scene::new("one is gone, read-only", stage).with_diskless(SEGMENT);
    write(&mut s, 0, 20, true);
    s.set_dead(Device::Member(0), true);
    s.world.errors_allowed = true;
    // The first one after the loss finds out; from then on nothing is taken.
    write(&mut s, 0, 8, false);
    let request = s.world.write(DISKLESS, 8, 8, false);
    assert!(!s.answer_to(request));
    s.read_all();
}

/// A cache device without which there would be too little room stays.
#[test]
fn a_cache_device_whose_room_is_needed_stays() {
    let mut s = Scene::new("its room is needed", Stage { members: 3, ..Stage::default() });
    let Err(CommandError::NoRoom { most_bytes }) = s.create_diskless(1 << 20) else { panic!("512 MiB on 7") };
    assert_eq!(s.create_diskless(most_bytes / 512), Ok(()));
    for n in 0..most_bytes / 4096 {
        write(&mut s, n * 8, 8, false);
    }
    let remove = |s: &mut Scene| {
        let id = s.world.command(Command::RemoveMember { member: 0 });
        s.end_of(id)
    };
    assert_eq!(remove(&mut s), Err(CommandError::NoRoomWithout));
    s.read_all();
    s.obey(Command::Abandon { volume: DISKLESS });
    assert_eq!(s.create_diskless(2 * SEGMENT), Ok(()));
    s.world.oracles.insert(DISKLESS, headpond_sim::oracle::Oracle::zeroed());
    write(&mut s, 0, 100, false);
    assert_eq!(remove(&mut s), Ok(()));
    s.set_dead(Device::Member(0), true);
    s.kill();
    s.read_all();
    s.end();
}

/// A copy that rots is mended from the other one, by a read and by a scrub.
#[test]
fn a_copy_that_rots_is_mended() {
    let mut s = Scene::new("rot", Stage::default()).with_diskless(2 * SEGMENT);
    write(&mut s, 0, 64, true);
    for (sector, scrubs) in [(3, false), (17, true)] {
        let copies = s.world.engine.as_ref().unwrap().locate(DISKLESS, sector).unwrap();
        assert_eq!(copies.len(), 2);
        s.rot(Device::Member(copies[0].0), copies[0].1..copies[0].1 + 512);
        s.rot(Device::Member(copies[1].0), copies[1].1 + 4096 - 512..copies[1].1 + 4096 - 512);
        if scrubs {
            s.obey(Command::Scrub { bytes_per_second: 0 });
            let found = s.status().scrub;
            assert_eq!((found.damaged, found.repaired, found.lost), (1, 1, 0), "{found:?}");
        }
        s.read_all();
        s.rest();
    }
    s.world.check_copies(DISKLESS, 0);
    s.check();
    s.end();
}

/// What is done to it, with each device operation failing in turn, or where the daemon dies or the power goes.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Done {
    Create,
    Delete,
    Grow,
}

/// It is there, whole, or not at all.
#[test]
fn whatever_comes_between_it_is_there_whole_or_gone() {
    for done in [Done::Create, Done::Delete, Done::Grow] {
        for blow in 0..3 {
            let mut k = 0;
            while strikes(done, blow, k) {
                k += 1;
            }
            assert!(k > 4, "{done:?}: {k} operations are too few to be true");
        }
    }
}

/// One blow at the `k`-th operation: 0 it fails, 1 the daemon dies, 2 the power goes. Whether there were so many.
fn strikes(done: Done, blow: u8, k: u64) -> bool {
    let story = format!("{done:?}, blow {blow} at operation {k}");
    let stage = Stage { timing: || Timing::Random(10_000, 400_000), seed: k, ..Stage::default() };
    let mut s = Scene::new(&story, stage);
    s.write(0, 20);
    if done != Done::Create {
        s = s.with_diskless(2 * SEGMENT);
        write(&mut s, 5, 40, false);
        write(&mut s, 9, 8, true);
        s.world.discard(DISKLESS, 24, 8, 0);
        s.world.flush(DISKLESS);
        s.rest();
    }
    let before = s.world.operations;
    if blow == 0 {
        s.world.fail_operation = Some(before + k + 1);
    }
    let id = s.world.command(match done {
        Done::Create => Command::Attach(diskless(2 * SEGMENT)),
        Done::Delete => Command::Abandon { volume: DISKLESS },
        Done::Grow => Command::Grow { volume: DISKLESS, sectors: 3 * SEGMENT },
    });
    if done == Done::Create {
        s.world.oracles.insert(DISKLESS, headpond_sim::oracle::Oracle::zeroed());
    }
    while s.world.command_result(id).is_none() && (blow == 0 || s.world.operations <= before + k) {
        s.step();
    }
    let struck = s.world.operations > before + k;
    let ended = s.world.command_result(id);
    s.world.fail_operation = None;
    if blow == 1 {
        s.kill()
    } else {
        s.lose_power()
    }
    let volumes = s.status().volumes;
    let there = volumes.iter().find(|v| v.number == DISKLESS);
    match (done, &ended) {
        (Done::Create, Some(Ok(()))) => assert!(there.is_some(), "{story}: it was made, and is not there"),
        (Done::Delete, Some(Ok(()))) => assert!(there.is_none(), "{story}: it was deleted, and is there"),
        (Done::Grow, Some(Ok(()))) => assert_eq!(there.map(|v| v.sectors), Some(3 * SEGMENT), "{story}"),
        (Done::Grow, _) => assert!(there.is_some(), "{story}: it is gone"),
        _ => {}
    }
    assert!(there.is_none_or(|v| v.serving), "{story}: {there:?}");
    s.read_all();
    if there.is_some() {
        write(&mut s, 0, 16, false);
        s.kill();
        s.read_all();
    } else {
        // Its number, and its room, are another's now.
        assert_eq!(s.create_diskless(2 * SEGMENT), Ok(()), "{story}");
        for sector in 0..2 * SEGMENT / 8 {
            s.world.read(DISKLESS, sector * 8, 8);
        }
        s.answered();
    }
    s.end();
    struck
}

/// A deletion waits for what clients have under way, and takes nothing more.
#[test]
fn a_deletion_waits_for_requests_and_takes_no_more() {
    let mut s = Scene::new("deleted under load", Stage::default()).with_diskless(SEGMENT);
    s.hold_back(|device, op| matches!((device, op), (Device::Member(_), DeviceOp::Write { .. })));
    let first = s.world.write(DISKLESS, 0, 8, false);
    s.until_held();
    let id = s.world.command(Command::Abandon { volume: DISKLESS });
    s.pass(1_000_000);
    s.world.errors_allowed = true;
    let late = s.world.write(DISKLESS, 8, 8, false);
    s.pass(1_000_000);
    assert!(!s.world.waits(late), "it waits");
    assert_eq!(s.world.command_result(id), None, "it is gone, and a write to it is under way");
    s.let_go();
    s.answered();
    let failed: Vec<u64> = s.world.take_ended().iter().filter(|e| e.error.is_some()).map(|e| e.id).collect();
    assert_eq!(failed, [late], "{first} was under way before");
    s.ends_well(id);
    s.end();
}
