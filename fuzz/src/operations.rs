//! Sequences of requests, commands, faults and crashes, under the simulator's oracle.
//!
//! What torture draws by chance, libFuzzer looks for by what it reaches.

use crate::input::Input;
use headpond_engine::create::{PoolPlan, plan};
use headpond_engine::format::Mode;
use headpond_engine::{Command, Degraded, Device, NewVolume, Settings};
use headpond_sim::device::SimDevice;
use headpond_sim::oracle::Oracle;
use headpond_sim::rng::Rng;
use headpond_sim::world::{Timing, World};

const MILLISECOND: u64 = 1_000_000;
/// The stamp that sector 0 of the disk has at first.
const BASE: u64 = 1 << 50;
const SECTORS: u64 = (128 << 20) / 512 + 77;
const PHASE: u64 = 3;

struct Run {
    world: World,
    settings: Settings,
    /// One of two members is gone for good.
    lost: bool,
}

/// Makes a pool, does what the input says, and ends by detaching the volume: the disk alone is what was written.
pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let how = input.u8();
    let mut world = World::new(Rng::new(u64::from(input.u8())), Timing::Random(10_000, 400_000));
    let members = 2 + how % 2;
    let bytes = (2 << 20) + (12 << 16);
    for m in 0..members {
        world.devices.insert(Device::Member(m), SimDevice::new(bytes, None));
    }
    world.devices.insert(Device::Witness, SimDevice::new(64 << 10, None));
    world.devices.insert(Device::Backing(0), SimDevice::new(SECTORS * 512, Some(BASE)));
    world.oracles.insert(0, Oracle::new(BASE));
    let pool = PoolPlan {
        name: "fuzz".into(),
        id: [7; 16],
        key: 77,
        copies: 2,
        unit: if how & 2 == 0 { 512 } else { 4096 },
        segment_bytes: 64 << 10,
        intent_pages: 4,
        witness: true,
        members: (0..members).map(|m| ([m + 1; 16], bytes)).collect(),
    };
    let (_, writes) = plan(&pool).expect("this pool can be made");
    world.put_initial(&writes);
    let settings = Settings {
        stream_bytes: 32 << 10,
        large_bytes: 64 << 10,
        admit_bytes: 64 << 10,
        zeroes_bytes: 32 << 10,
        destage_percent: if how & 4 == 0 { 10 } else { 50 },
        idle_ns: if how & 8 == 0 { MILLISECOND } else { 20 * MILLISECOND },
        chunk_runs: 32,
        checkpoint_bytes: if how & 16 == 0 { 128 << 10 } else { 8 << 20 },
        record_bytes: 16 << 10,
        max_fragments: if how & 32 == 0 { 64 } else { 4096 },
        degraded: if how & 64 == 0 { Degraded::WriteThrough } else { Degraded::Continue },
        ..Settings::default()
    };
    let mut run = Run { world, settings, lost: false };
    run.start();
    let mode = if how & 128 == 0 { Mode::WriteBack } else { Mode::WriteThrough };
    let new = NewVolume {
        number: 0,
        id: [9; 16],
        name: "v".into(),
        sectors: SECTORS,
        phase: PHASE as u8,
        mode,
        backing: "disk".into(),
    };
    let id = run.world.command(Command::Attach(new));
    run.finish(id);
    for _ in 0..80 {
        if input.is_empty() {
            break;
        }
        run.one(&mut input);
    }
    run.end();
}

impl Run {
    fn no_violation(&mut self) {
        if let Some(v) = self.world.violation.take() {
            panic!("{}", v.0);
        }
    }

    fn start(&mut self) {
        let election = self.world.elect(true).expect("the pool starts");
        let id = self.world.start(self.settings.clone(), election);
        self.finish(id);
        self.world.check_segments(0);
    }

    fn finish(&mut self, id: u64) {
        let limit = self.world.now + 600_000 * MILLISECOND;
        loop {
            self.no_violation();
            match self.world.command_result(id) {
                Some(Ok(())) => return,
                Some(Err(e)) => panic!("{e}"),
                None => assert!(self.world.step() && self.world.now < limit, "a command does not end"),
            }
        }
    }

    fn steps(&mut self, n: u64) {
        for _ in 0..n {
            self.no_violation();
            if !self.world.step() {
                break;
            }
        }
    }

    fn one(&mut self, input: &mut Input<'_>) {
        let op = input.u8();
        let place = [0, 131_072 - 20, SECTORS - 300][usize::from(op >> 6) % 3];
        let (sector, sectors) = (place + u64::from(input.u8()), u64::from(input.u8() % 44) + 1);
        match op & 31 {
            0..=6 => _ = self.world.write(0, sector, sectors, op & 32 != 0),
            7..=10 => _ = self.world.read(0, sector, sectors as u32),
            11 | 12 => _ = self.world.flush(0),
            13 => _ = self.world.discard(0, sector, sectors, PHASE),
            14 => _ = self.world.write_zeroes(0, sector, sectors, op & 32 != 0),
            // Past the cache.
            15 => _ = self.world.write(0, place, 140, false),
            16..=20 => self.steps(sectors),
            21 => self.steps(400),
            22 => _ = self.world.command(Command::Checkpoint),
            23 => _ = self.world.command(Command::Destage { volume: 0 }),
            24 => {
                let modes = [Mode::WriteBack, Mode::WriteThrough, Mode::WriteAround, Mode::PassThrough];
                _ = self.world.command(Command::SetMode { volume: 0, mode: modes[sectors as usize % 4] });
            }
            25 | 26 => {
                self.world.kill();
                self.start();
            }
            27 | 28 => {
                self.world.cut_power();
                self.start();
            }
            29 => {
                // A start that is cut by a crash itself.
                self.world.kill();
                let election = self.world.elect(true).expect("the pool starts");
                self.world.start(self.settings.clone(), election);
                self.steps(sectors);
                self.world.cut_power();
                self.start();
            }
            30 if !self.lost => {
                self.lost = true;
                if let Some(d) = self.world.devices.get_mut(&Device::Member(op >> 7)) {
                    d.dead = true;
                }
            }
            _ => self.world.hold(sectors * MILLISECOND),
        }
        self.no_violation();
    }

    fn end(&mut self) {
        let limit = self.world.now + 600_000 * MILLISECOND;
        while self.world.outstanding() > 0 {
            self.no_violation();
            assert!(self.world.step() && self.world.now < limit, "requests do not end");
        }
        self.world.check_segments(0);
        let id = self.world.command(Command::Detach { volume: 0, give_up_lost: false });
        self.finish(id);
        self.world.check_disk(0);
        self.no_violation();
    }
}

/// A few lives.
#[must_use]
pub fn seeds() -> Vec<Vec<u8>> {
    vec![
        vec![0, 1],
        vec![0, 1, 0, 3, 8, 11, 0, 0, 21, 0, 0, 25, 0, 0, 7, 3, 8],
        vec![3, 2, 0, 3, 8, 1, 4, 20, 15, 0, 0, 16, 9, 9, 27, 0, 0, 7, 3, 40, 14, 3, 9],
        vec![0x44, 3, 0, 3, 8, 30, 0, 0, 0, 9, 20, 21, 0, 0, 22, 0, 0, 16, 0, 40, 29, 0, 20, 7, 0, 40],
        vec![0x11, 4, 0, 3, 40, 0x40, 3, 40, 23, 0, 0, 0, 9, 30, 31, 0, 9, 16, 0, 40, 13, 0, 40, 24, 0, 1, 21, 0, 0],
    ]
}
