//! Each device operation of each command fails in turn, or the daemon dies there, or the power goes.
//!
//! A command is given to a pool at rest with dirty, clean and bypassed data. For k = 0, 1, 2 ... its k-th device operation
//! is where it happens, until the command ends before its k-th. Whatever comes of the command: it ends, the pool starts,
//! nothing that was acknowledged is lost, and the volumes can be detached.

use headpond_engine::format::Mode;
use headpond_engine::{Command, Device};
use headpond_sim::device::SimDevice;
use headpond_sim::scene::{Scene, Stage};
use headpond_sim::world::Timing;

/// What is done to the pool.
#[derive(Clone, Copy, Debug)]
enum Managed {
    Start,
    Attach,
    Detach,
    Mode(Mode),
    Destage,
    Checkpoint,
    Stop,
    /// With a copy damaged.
    Scrub,
    /// Of a third cache device.
    Add,
    /// Of one of three.
    Remove,
}

/// What happens at the k-th operation.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Blow {
    /// It fails, and when the command has ended the daemon dies.
    Fails,
    /// It fails, and when the command has ended the power goes.
    FailsAndPowerGoes,
    DaemonDies,
    PowerGoes,
}

/// A pool of cache devices and a witness, with data of every kind on its volume; at rest.
fn scene(story: &str, seed: u64, members: u8) -> Scene {
    let stage = Stage { members, timing: || Timing::Random(10_000, 400_000), seed, ..Stage::default() };
    let mut s = Scene::new(story, stage);
    for n in 0..24 {
        // Small ones, far apart so that they are no stream, some over each other; every sixth is large and goes past the
        // cache, over dirty data.
        let place = n / 2 * 7919 % 101 * 640;
        let (sector, sectors) = if n % 6 == 5 { (place - 8, 64) } else { (place + n % 2 * 3, 1 + n % 9) };
        s.world.write(0, sector, sectors, n % 7 == 0);
        s.rest();
        if n == 12 {
            s.destage();
        }
    }
    s.world.flush(0);
    for n in 0..4 {
        s.world.read(0, 4096 + n * 24, 8);
    }
    s.rest();
    assert!(s.dirty() > 4, "there is little to lose: {} dirty blocks", s.dirty());
    s
}

/// One blow at the `k`-th operation of a command; whether the command had so many.
fn strike(managed: Managed, blow: Blow, k: u64) -> bool {
    let members = if matches!(managed, Managed::Remove) { 3 } else { 2 };
    let mut t = scene(&format!("{managed:?}, {blow:?} at operation {k}"), k, members);
    if let Managed::Add = managed {
        t.world.devices.insert(Device::Member(2), SimDevice::new(t.stage.member_bytes(), None));
    }
    if let Managed::Start = managed {
        t.world.kill();
    }
    if let Managed::Scrub = managed {
        let (device, sector) = t.copies(3)[0];
        t.rot(device, sector * 512..sector * 512 + 512);
    }
    let before = t.world.operations;
    let fails = matches!(blow, Blow::Fails | Blow::FailsAndPowerGoes);
    if fails {
        t.world.fail_operation = Some(before + k + 1);
    }
    let id = match managed {
        Managed::Start => t.begin_start(),
        Managed::Attach => t.world.command(Command::Attach(t.stage.volume(1))),
        Managed::Detach => t.world.command(Command::Detach { volume: 0, give_up_lost: false }),
        Managed::Mode(mode) => t.world.command(Command::SetMode { volume: 0, mode }),
        Managed::Destage => t.world.command(Command::Destage { volume: 0 }),
        Managed::Checkpoint => t.world.command(Command::Checkpoint),
        Managed::Stop => t.world.command(Command::Stop),
        Managed::Scrub => t.world.command(Command::Scrub { bytes_per_second: 0 }),
        Managed::Add => t.world.command(Command::AddMember { member: 2, id: [77; 16], bytes: t.stage.member_bytes() }),
        Managed::Remove => t.world.command(Command::RemoveMember { member: 0 }),
    };
    let struck = if fails {
        let end = t.end_of(id);
        let struck = t.world.operations > before + k;
        assert!(end.is_ok() || struck, "{}: {end:?} though nothing failed", t.story());
        struck
    } else {
        while t.world.command_result(id).is_none() && t.world.operations <= before + k {
            t.step();
        }
        t.world.operations > before + k
    };
    t.world.fail_operation = None;
    if !struck {
        return false;
    }
    if fails && !matches!(managed, Managed::Stop) {
        t.read_all();
    }
    match blow {
        Blow::PowerGoes | Blow::FailsAndPowerGoes => t.world.cut_power(),
        _ => t.world.kill(),
    }
    t.start();
    for n in 0..2 {
        // One that is not attached any more, too.
        if !t.status().volumes.iter().any(|v| v.number == n) {
            t.world.check_disk(n);
        }
    }
    t.end();
    true
}

/// All operations of a command, with every blow.
fn strike_everywhere(managed: Managed) {
    for blow in [Blow::Fails, Blow::FailsAndPowerGoes, Blow::DaemonDies, Blow::PowerGoes] {
        let mut k = 0;
        while strike(managed, blow, k) {
            k += 1;
            assert!(k < 5_000, "{managed:?} goes on without end");
        }
        assert!(k > 0, "{managed:?} asks nothing of any device");
    }
}

#[test]
fn a_start_survives_each_of_its_operations_failing() {
    strike_everywhere(Managed::Start);
}

#[test]
fn an_attach_survives_each_of_its_operations_failing() {
    strike_everywhere(Managed::Attach);
}

#[test]
fn a_detach_survives_each_of_its_operations_failing() {
    strike_everywhere(Managed::Detach);
}

#[test]
fn each_switch_of_mode_survives_each_of_its_operations_failing() {
    for mode in [Mode::WriteThrough, Mode::WriteAround, Mode::PassThrough] {
        strike_everywhere(Managed::Mode(mode));
    }
}

#[test]
fn a_destage_survives_each_of_its_operations_failing() {
    strike_everywhere(Managed::Destage);
}

#[test]
fn a_checkpoint_survives_each_of_its_operations_failing() {
    strike_everywhere(Managed::Checkpoint);
}

#[test]
fn a_clean_end_survives_each_of_its_operations_failing() {
    strike_everywhere(Managed::Stop);
}

#[test]
fn a_scrub_survives_each_of_its_operations_failing() {
    strike_everywhere(Managed::Scrub);
}

#[test]
fn adding_a_cache_device_survives_each_of_its_operations_failing() {
    strike_everywhere(Managed::Add);
}

#[test]
fn removing_a_cache_device_survives_each_of_its_operations_failing() {
    strike_everywhere(Managed::Remove);
}
