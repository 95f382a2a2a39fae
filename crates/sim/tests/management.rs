//! Each device operation of each command fails in turn, or the daemon dies there, or the power goes.
//!
//! A command is given to a pool at rest with dirty, clean and bypassed data. For k = 0, 1, 2 ... its k-th device operation
//! is where it happens, until the command ends before its k-th. Whatever comes of the command: it ends, the pool starts,
//! nothing that was acknowledged is lost, and the volumes can be detached.

use headpond_engine::create::{PoolPlan, plan};
use headpond_engine::format::Mode;
use headpond_engine::{Command, CommandError, Device, NewVolume, Settings};
use headpond_sim::device::SimDevice;
use headpond_sim::oracle::Oracle;
use headpond_sim::rng::Rng;
use headpond_sim::world::{Timing, World};

const BASE: u64 = 1 << 50;
const SECTORS: u64 = (128 << 20) / 512;
const MEMBER_BYTES: u64 = (2 << 20) + 24 * (64 << 10);
/// Virtual time that a command may take whatever fails, in nanoseconds: the ten seconds after which who waits is told, and
/// some to spare.
const BOUND: u64 = 60_000_000_000;

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

fn settings() -> Settings {
    Settings {
        stream_bytes: 32 << 10,
        large_bytes: 32 << 10,
        chunk_blocks: 8,
        destage_percent: 90,
        idle_ns: u64::MAX >> 8,
        ..Settings::default()
    }
}

fn volume(number: u16) -> NewVolume {
    let (name, backing) = (format!("v{number}"), format!("disk{number}"));
    NewVolume { number, id: [9 + number as u8; 16], name, sectors: SECTORS, phase: 0, mode: Mode::WriteBack, backing }
}

struct Trial {
    world: World,
    story: String,
}

impl Trial {
    /// A pool of two cache devices and a witness, with data of every kind on its volume; at rest.
    fn new(story: String, seed: u64) -> Trial {
        let mut rng = Rng::new(seed);
        let mut world = World::new(rng.fork(), Timing::Random(10_000, 400_000));
        for m in 0..2 {
            world.devices.insert(Device::Member(m), SimDevice::new(MEMBER_BYTES, None));
        }
        world.devices.insert(Device::Witness, SimDevice::new(64 << 10, None));
        for n in 0..2u16 {
            let base = BASE + (u64::from(n) << 40);
            world.devices.insert(Device::Backing(n), SimDevice::new(SECTORS * 512, Some(base)));
            world.oracles.insert(n, Oracle::new(base));
        }
        let pool = PoolPlan {
            name: "sim".into(),
            id: [7; 16],
            key: 11,
            copies: 2,
            unit: 512,
            segment_bytes: 64 << 10,
            intent_pages: 4,
            witness: true,
            members: (0..2).map(|m| ([m + 1; 16], MEMBER_BYTES)).collect(),
        };
        let (_, writes) = plan(&pool).expect("a good plan");
        world.put_initial(&writes);
        let mut trial = Trial { world, story };
        let id = trial.start();
        trial.ends_well(id);
        let id = trial.world.command(Command::Attach(volume(0)));
        trial.ends_well(id);
        for n in 0..24 {
            // Small ones, far apart so that they are no stream, some over each other; every sixth is large and goes past the
            // cache, over dirty data.
            let place = n / 2 * 7919 % 101 * 640;
            let (sector, sectors) = if n % 6 == 5 { (place - 8, 64) } else { (place + n % 2 * 3, 1 + n % 9) };
            trial.world.write(0, sector, sectors, n % 7 == 0);
            trial.rest();
            if n == 12 {
                let id = trial.world.command(Command::Destage { volume: 0 });
                trial.ends_well(id);
            }
        }
        trial.world.flush(0);
        for n in 0..4 {
            trial.world.read(0, 4096 + n * 24, 8);
        }
        trial.rest();
        let dirty = trial.world.engine.as_ref().map_or(0, |e| e.status().volumes[0].dirty_blocks);
        assert!(dirty > 4, "there is little to lose: {dirty} dirty blocks");
        trial
    }

    fn start(&mut self) -> u64 {
        let election = self.world.elect(true).unwrap_or_else(|e| panic!("{}: the pool does not start: {e}", self.story));
        self.world.start(settings(), election)
    }

    fn step(&mut self) {
        assert!(self.world.step(), "{}: nothing can happen any more", self.story);
        if let Some(v) = self.world.violation.take() {
            panic!("{}: {}", self.story, v.0);
        }
    }

    /// Until all requests have ended and no device is at work.
    fn rest(&mut self) {
        while self.world.outstanding() > 0 || self.world.busy() {
            self.step();
        }
        self.world.take_ended();
    }

    fn end_of(&mut self, id: u64) -> Result<(), CommandError> {
        let limit = self.world.now + BOUND;
        while self.world.command_result(id).is_none() {
            assert!(self.world.now < limit, "{}: the command does not end", self.story);
            self.step();
        }
        self.world.command_result(id).expect("it has ended")
    }

    fn ends_well(&mut self, id: u64) {
        let end = self.end_of(id);
        assert_eq!(end, Ok(()), "{}", self.story);
    }

    fn read_all(&mut self) {
        let volumes = self.world.engine.as_ref().map(|e| e.status().volumes).unwrap_or_default();
        for v in volumes.iter().filter(|v| v.serving) {
            for sector in self.world.oracles[&v.number].touched() {
                self.world.read(v.number, sector, 1);
            }
        }
        while self.world.outstanding() > 0 {
            self.step();
        }
        self.world.take_ended();
    }
}

/// One blow at the `k`-th operation of a command; whether the command had so many.
fn strike(managed: Managed, blow: Blow, k: u64) -> bool {
    let mut t = Trial::new(format!("{managed:?}, {blow:?} at operation {k}"), k);
    if let Managed::Start = managed {
        t.world.kill();
    }
    let before = t.world.operations;
    let fails = matches!(blow, Blow::Fails | Blow::FailsAndPowerGoes);
    if fails {
        t.world.fail_operation = Some(before + k + 1);
    }
    let id = match managed {
        Managed::Start => t.start(),
        Managed::Attach => t.world.command(Command::Attach(volume(1))),
        Managed::Detach => t.world.command(Command::Detach { volume: 0, give_up_lost: false }),
        Managed::Mode(mode) => t.world.command(Command::SetMode { volume: 0, mode }),
        Managed::Destage => t.world.command(Command::Destage { volume: 0 }),
        Managed::Checkpoint => t.world.command(Command::Checkpoint),
        Managed::Stop => t.world.command(Command::Stop),
    };
    let struck = if fails {
        let end = t.end_of(id);
        let struck = t.world.operations > before + k;
        assert!(end.is_ok() || struck, "{}: {end:?} though nothing failed", t.story);
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
    let id = t.start();
    t.ends_well(id);
    t.read_all();
    let attached = t.world.engine.as_ref().map(|e| e.status().volumes).unwrap_or_default();
    for v in &attached {
        let id = t.world.command(Command::Detach { volume: v.number, give_up_lost: false });
        t.ends_well(id);
    }
    for n in 0..2 {
        t.world.check_disk(n);
    }
    assert!(t.world.violation.is_none(), "{}: {:?}", t.story, t.world.violation);
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
