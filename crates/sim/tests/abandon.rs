//! A volume that is not served is let go of, with all that the cache still has of it: nothing of it is written to its disk,
//! nothing of it comes back in the volume that has its number next, and whatever fails meanwhile, it is there or it is gone.

use headpond_engine::{Command, CommandError, Device, DeviceOp};
use headpond_sim::oracle::Oracle;
use headpond_sim::scene::{Scene, Stage};

const BASE: u64 = 1 << 50;

/// Of four cache devices the two are gone for good that had some of what was dirty: the volume is refused. The other two
/// have dirty data of it too.
fn refused(story: &str) -> Scene {
    let mut s = Scene::new(story, Stage { members: 4, ..Stage::default() });
    for n in 0..200 {
        // One in eight: no stream, which would not be dirty.
        s.write(n * 64, 8);
    }
    s.flush();
    for (device, _) in s.copies(0) {
        s.set_dead(device, true);
    }
    s.stage.settings.without_missing = true;
    s.lose_power();
    let volume = &s.status().volumes[0];
    assert!(volume.refused && !volume.serving && volume.dirty_blocks > 0, "{story}: {volume:?}");
    s
}

/// The volume is attached anew, on the disk as it is; the disk must be as it was before anything was written.
fn attached_anew(s: &mut Scene) {
    s.world.oracles.insert(0, Oracle::new(BASE));
    s.world.check_disk(0);
    s.check();
    s.obey(Command::Attach(s.stage.volume(0)));
    s.read_all();
    s.write(0, 8);
    s.lose_power();
    s.read_all();
}

#[test]
fn it_is_gone_and_nothing_of_it_comes_back() {
    let mut s = refused("abandoned");
    let before = s.device(Device::Backing(0)).written;
    s.obey(Command::Abandon { volume: 0 });
    let status = s.status();
    assert!(status.volumes.is_empty(), "{status:?}");
    assert_eq!(s.device(Device::Backing(0)).written, before, "its disk was written to");
    let mut left = 0;
    s.world.engine.as_ref().unwrap().each_segment(|_, segment| left += segment.live);
    assert_eq!(left, 0, "pieces of it take the others' room");
    s.lose_power();
    assert!(s.status().volumes.is_empty());
    attached_anew(&mut s);
    s.end();
}

#[test]
fn one_that_is_served_is_not_thrown_away() {
    let mut s = Scene::new("served", Stage::default());
    s.write(0, 8);
    let id = s.world.command(Command::Abandon { volume: 0 });
    assert_eq!(s.end_of(id), Err(CommandError::Served));
    // Nor one that is being detached, which is served no more.
    s.hold_back(|device, op| device == Device::Backing(0) && matches!(op, DeviceOp::Write { .. }));
    let detach = s.world.command(Command::Detach { volume: 0, give_up_lost: false });
    s.until_held();
    let id = s.world.command(Command::Abandon { volume: 0 });
    assert_eq!(s.end_of(id), Err(CommandError::Served));
    s.let_go();
    s.ends_well(detach);
    s.world.check_disk(0);
    s.check();
    s.obey(Command::Attach(s.stage.volume(0)));
    let id = s.world.command(Command::Abandon { volume: 7 });
    assert_eq!(s.end_of(id), Err(CommandError::NoSuchVolume));
    s.read_all();
    s.end();
}

/// One whose disk is not there, and never will be: it can be let go of, while another volume is served on.
#[test]
fn one_without_its_disk_can_go() {
    let mut s = Scene::new("its disk is gone for good", Stage { volumes: 2, disks: 2, ..Stage::default() });
    s.write(0, 8);
    s.world.write(1, 800, 8, false);
    s.answered();
    s.set_dead(Device::Backing(1), true);
    s.kill();
    s.obey(Command::Abandon { volume: 1 });
    assert_eq!(s.status().volumes.len(), 1);
    s.read_all();
    s.kill();
    assert_eq!(s.status().volumes.len(), 1);
    s.read_all();
    s.end();
}

/// Each device operation of it fails in turn, or is where the power goes.
#[test]
fn whatever_comes_between_it_is_there_or_gone() {
    for fails in [false, true] {
        let mut k = 0;
        loop {
            let mut s = refused(&format!("abandoned, operation {k} {}", if fails { "fails" } else { "is the last" }));
            let before = s.world.operations;
            if fails {
                s.world.fail_operation = Some(before + k + 1);
            }
            let id = s.world.command(Command::Abandon { volume: 0 });
            while s.world.command_result(id).is_none() && (fails || s.world.operations <= before + k) {
                s.step();
            }
            let struck = s.world.operations > before + k;
            s.world.fail_operation = None;
            s.lose_power();
            let there = s.status().volumes.first().map(|v| v.refused);
            assert_ne!(there, Some(false), "{}: it is served", s.story());
            if there.is_some() {
                s.obey(Command::Abandon { volume: 0 });
            }
            attached_anew(&mut s);
            s.end();
            k += 1;
            if !struck {
                break;
            }
        }
        assert!(k > 10, "{k} operations are too few to be true");
    }
}
