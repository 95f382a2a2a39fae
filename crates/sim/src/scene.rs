//! A scene: a small pool at rest, in which a story is told step by step.
//!
//! Swarm runs find stories; a scene tells one that is known, so that it is told every day. What happens when is decided
//! by the teller: requests end before the next line unless they are only asked, operations can be held back, and a crash
//! keeps what it is told to keep. Any line panics, with the story's name, where something happens that must not.

use crate::buf::{Cell, SimBuf};
use crate::device::SimDevice;
use crate::oracle::Oracle;
use crate::rng::Rng;
use crate::world::{Timing, World};
use headpond_engine::create::{PoolPlan, plan};
use headpond_engine::election::Refusal;
use headpond_engine::format::{Layout, Mode, PAGE_BYTES};
use headpond_engine::{Command, CommandError, Device, DeviceOp, Engine, NewVolume, Settings, Status};
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::ops::Range;
use std::rc::Rc;

/// The stamp that sector 0 of the first volume's disk has at first.
const BASE: u64 = 1 << 50;
/// Pages of the intent map.
const INTENT_PAGES: u32 = 4;
/// Virtual time that anything may take, in nanoseconds: the ten seconds after which who waits is told that it is in vain,
/// and some to spare.
const BOUND: u64 = 60_000_000_000;

/// What a scene is set with.
#[derive(Clone)]
pub struct Stage {
    /// Cache devices.
    pub members: u8,
    /// Whether there is a witness.
    pub witness: bool,
    /// Copies of dirty data.
    pub copies: u8,
    /// Segments of each cache device, or some more.
    pub segments: u64,
    /// Bytes of a segment.
    pub segment_bytes: u64,
    /// Bytes of the unit of records.
    pub unit: u32,
    /// Volumes; each is attached in the mode below.
    pub volumes: u16,
    /// Volumes that have a disk, attached or not.
    pub disks: u16,
    /// Sectors of each volume.
    pub sectors: u64,
    /// The grid's phase.
    pub phase: u8,
    /// The volumes' mode.
    pub mode: Mode,
    /// How long device operations take.
    pub timing: fn() -> Timing,
    /// The engine's settings.
    pub settings: Settings,
    /// Chance, where the scene leaves something to it.
    pub seed: u64,
}

/// The number of a volume without a disk.
pub const DISKLESS: u16 = 5;

/// A volume without a disk.
#[must_use]
pub fn diskless(sectors: u64) -> NewVolume {
    let (number, name, backing) = (DISKLESS, "journal".into(), String::new());
    NewVolume { number, id: [8; 16], name, sectors, phase: 0, mode: Mode::WriteBack, backing }
}

impl Default for Stage {
    /// Two cache devices of 24 segments, two copies, one volume of 128 MiB in write-back; nothing is destaged before it is
    /// told to; requests of 32 KiB and more go past the cache, and no others.
    fn default() -> Self {
        Self {
            members: 2,
            witness: true,
            copies: 2,
            segments: 24,
            segment_bytes: 64 << 10,
            unit: 512,
            volumes: 1,
            disks: 2,
            sectors: (128 << 20) / 512,
            phase: 0,
            mode: Mode::WriteBack,
            timing: || Timing::Fixed(100_000),
            settings: Settings {
                stream_bytes: 32 << 10,
                large_bytes: 32 << 10,
                chunk_runs: 8,
                destage_percent: 100,
                route: false,
                read_around: false,
                // Small writes are in flight at once, in records of their own, as large ones always may be: what comes of holes
                // and of their order is told with few bytes.
                unfilled_appends: 4,
                gather_ns: 0,
                idle_ns: u64::MAX >> 8,
                ..Settings::default()
            },
            seed: 1,
        }
    }
}

impl Stage {
    /// Bytes of a cache device.
    #[must_use]
    pub fn member_bytes(&self) -> u64 {
        (2 << 20) + self.segments * self.segment_bytes
    }

    /// Where things are on each cache device.
    ///
    /// # Panics
    /// Where they have no room.
    #[must_use]
    pub fn layout(&self) -> Layout {
        Layout::plan(self.member_bytes(), self.segment_bytes, INTENT_PAGES).expect("a cache device with room")
    }

    /// A volume as this stage's are.
    #[must_use]
    pub fn volume(&self, number: u16) -> NewVolume {
        let (name, backing) = (format!("v{number}"), format!("disk{number}"));
        let id = [9 + number as u8; 16];
        NewVolume { number, id, name, sectors: self.sectors, phase: self.phase, mode: self.mode, backing }
    }
}

/// A scene under way.
pub struct Scene {
    /// The world that it plays in.
    pub world: World,
    /// What it was set with; the settings hold from the next start on.
    pub stage: Stage,
    story: String,
}

impl Scene {
    /// A new pool with its volumes, at rest.
    #[must_use]
    pub fn new(story: &str, stage: Stage) -> Self {
        let mut rng = Rng::new(stage.seed);
        let mut world = World::new(rng.fork(), (stage.timing)());
        world.unit = u64::from(stage.unit);
        for m in 0..stage.members {
            world.devices.insert(Device::Member(m), SimDevice::new(stage.member_bytes(), None));
        }
        world.devices.insert(Device::Witness, SimDevice::new(64 << 10, None));
        for n in 0..stage.disks.max(stage.volumes) {
            let base = BASE + (u64::from(n) << 45);
            world.devices.insert(Device::Backing(n), SimDevice::new(stage.sectors * 512, Some(base)));
            world.oracles.insert(n, Oracle::new(base));
        }
        let pool = PoolPlan {
            name: "scene".into(),
            id: [7; 16],
            key: 11,
            copies: stage.copies,
            unit: stage.unit,
            segment_bytes: stage.segment_bytes,
            intent_pages: INTENT_PAGES,
            witness: stage.witness,
            members: (0..stage.members).map(|m| ([m + 1; 16], stage.member_bytes())).collect(),
        };
        let (_, writes) = plan(&pool).expect("a good plan");
        world.put_initial(&writes);
        let mut scene = Self { world, stage, story: story.into() };
        scene.start();
        for n in 0..scene.stage.volumes {
            scene.obey(Command::Attach(scene.stage.volume(n)));
        }
        scene
    }

    /// One volume more, without a disk, of `sectors`.
    #[must_use]
    pub fn with_diskless(mut self, sectors: u64) -> Self {
        let end = self.create_diskless(sectors);
        assert_eq!(end, Ok(()), "{}", self.story);
        self
    }

    /// Asks for a volume without a disk, and waits for the end.
    pub fn create_diskless(&mut self, sectors: u64) -> Result<(), CommandError> {
        self.world.oracles.insert(DISKLESS, Oracle::zeroed());
        let id = self.world.command(Command::Attach(diskless(sectors)));
        self.end_of(id)
    }

    /// The story, as messages name it.
    #[must_use]
    pub fn story(&self) -> &str {
        &self.story
    }

    /// Lets one thing happen.
    pub fn step(&mut self) {
        assert!(self.world.step(), "{}: nothing can happen any more", self.story);
        self.check();
    }

    /// Panics if something has happened that must not.
    pub fn check(&mut self) {
        if let Some(v) = self.world.violation.take() {
            panic!("{}: {}", self.story, v.0);
        }
    }

    /// Steps until `done`.
    pub fn until(&mut self, what: &str, done: impl Fn(&World) -> bool) {
        let limit = self.world.now + BOUND;
        while !done(&self.world) {
            assert!(self.world.now < limit, "{}: it does not come to this: {what}", self.story);
            self.step();
        }
    }

    /// Until all requests have ended and no device is at work, but on what is held back.
    pub fn rest(&mut self) {
        self.until("all is at rest", |w| w.outstanding() == 0 && w.flying() == w.held_back());
        self.world.take_ended();
    }

    /// Lets so much virtual time pass, in nanoseconds, with all that happens in it.
    pub fn pass(&mut self, time: u64) {
        let at = self.world.now + time;
        self.world.run_until(at);
        self.check();
    }

    /// Steps until a command has ended; how.
    pub fn end_of(&mut self, id: u64) -> Result<(), CommandError> {
        self.until("the command ends", |w| w.command_result(id).is_some());
        self.world.command_result(id).expect("it has ended")
    }

    /// Gives a command, which must end well.
    pub fn obey(&mut self, command: Command) {
        let id = self.world.command(command);
        self.ends_well(id);
    }

    /// Steps until a command has ended, well.
    pub fn ends_well(&mut self, id: u64) {
        let end = self.end_of(id);
        assert_eq!(end, Ok(()), "{}", self.story);
    }

    /// Writes to the first volume, and waits until it is acknowledged.
    pub fn write(&mut self, sector: u64, sectors: u64) {
        self.world.write(0, sector, sectors, false);
        self.answered();
    }

    /// The same with forced unit access.
    pub fn write_fua(&mut self, sector: u64, sectors: u64) {
        self.world.write(0, sector, sectors, true);
        self.answered();
    }

    /// Reads from the first volume; the oracle looks at what comes.
    pub fn read(&mut self, sector: u64, sectors: u32) {
        self.world.read(0, sector, sectors);
        self.answered();
    }

    /// Flushes the first volume.
    pub fn flush(&mut self) {
        self.world.flush(0);
        self.answered();
    }

    /// Discards on the first volume.
    pub fn discard(&mut self, sector: u64, sectors: u64) {
        self.world.discard(0, sector, sectors, u64::from(self.stage.phase));
        self.answered();
    }

    /// Zeroes on the first volume.
    pub fn write_zeroes(&mut self, sector: u64, sectors: u64) {
        self.world.write_zeroes(0, sector, sectors, false);
        self.answered();
    }

    /// Until all requests are answered.
    pub fn answered(&mut self) {
        self.until("all requests are answered", |w| w.outstanding() == 0);
    }

    /// Until a request of those asked without waiting has been answered; whether well.
    pub fn answer_to(&mut self, request: u64) -> bool {
        self.until("the request is answered", |w| !w.waits(request));
        !self.world.take_ended().iter().any(|e| e.id == request && e.error.is_some())
    }

    /// Puts all dirty data of the first volume onto its disk.
    pub fn destage(&mut self) {
        self.obey(Command::Destage { volume: 0 });
    }

    /// Takes a checkpoint.
    pub fn checkpoint(&mut self) {
        self.obey(Command::Checkpoint);
    }

    /// Switches the first volume's mode.
    pub fn mode(&mut self, mode: Mode) {
        self.obey(Command::SetMode { volume: 0, mode });
    }

    /// From now on the operations that `which` says yes to do not end until [`Scene::let_go`], or a crash.
    pub fn hold_back(&mut self, which: impl Fn(Device, &DeviceOp<SimBuf>) -> bool + 'static) {
        self.world.hold_back(which);
    }

    /// Pages of the checkpoint are held back when they are asked for once more: those of which `late` says so, by their number. The first
    /// time it is a start that looks where the segment table ends.
    pub fn hold_back_pages(&mut self, late: impl Fn(u64) -> bool + 'static) {
        let (layout, seen) = (self.stage.layout(), RefCell::new(BTreeSet::new()));
        self.hold_back(move |device, op| {
            let (Device::Member(m), DeviceOp::Read { offset, len, .. }) = (device, op) else { return false };
            let of_area = |n| layout.checkpoint(n)..layout.checkpoint(n) + layout.checkpoint_bytes;
            let area = [0, 1].map(of_area).into_iter().find(|area| area.contains(offset) && *len == PAGE_BYTES as u32);
            let Some(place) = area.map(|area| (offset - area.start) / PAGE_BYTES as u64) else { return false };
            // On two members, by turns: see `page_places` in the format.
            let page = place / 2 * 2 + (u64::from(m) + place) % 2;
            late(page) && !seen.borrow_mut().insert((m, *offset))
        });
    }

    /// As [`Scene::hold_back`], for operations that are done at once, and whose answers come late.
    pub fn hold_answers(&mut self, which: impl Fn(Device, &DeviceOp<SimBuf>) -> bool + 'static) {
        self.world.hold_answers(which);
    }

    /// Steps until something is held back.
    pub fn until_held(&mut self) {
        self.until("something is held back", |w| w.held_back() > 0);
    }

    /// What was held back ends.
    pub fn let_go(&mut self) {
        self.world.let_go();
    }

    /// The engine's state.
    ///
    /// # Panics
    /// Where no daemon lives.
    #[must_use]
    pub fn status(&self) -> Status {
        self.world.engine.as_ref().map(Engine::status).expect("a daemon lives")
    }

    /// Dirty blocks of the first volume.
    #[must_use]
    pub fn dirty(&self) -> u64 {
        self.status().volumes[0].dirty_blocks
    }

    /// Where the cache says that a sector of the first volume is: the cache device, and the sector on it, of each copy.
    #[must_use]
    pub fn copies(&self, sector: u64) -> Vec<(Device, u64)> {
        let places = self.world.engine.as_ref().and_then(|e| e.locate(0, sector)).unwrap_or_default();
        places.into_iter().map(|(member, byte)| (Device::Member(member), byte / 512)).collect()
    }

    /// A device.
    ///
    /// # Panics
    /// Where there is none of that name.
    pub fn device(&mut self, device: Device) -> &mut SimDevice {
        self.world.devices.get_mut(&device).expect("the scene has this device")
    }

    /// A volume's disk is another one from now on: nothing of what was written is on it. The stamp that its first sector has.
    pub fn exchange_disk(&mut self, volume: u16) -> u64 {
        const BASE: u64 = 1 << 55;
        *self.device(Device::Backing(volume)) = SimDevice::new(self.stage.sectors * 512, Some(BASE));
        self.world.oracles.insert(volume, Oracle::new(BASE));
        BASE
    }

    /// A device goes away, or comes back as it was.
    pub fn set_dead(&mut self, device: Device, dead: bool) {
        self.device(device).dead = dead;
    }

    /// Bytes of a device become others, for good: what it returns for them is no longer what was written.
    pub fn rot(&mut self, device: Device, bytes: Range<u64>) {
        let device = self.device(device);
        for sector in bytes.start / 512..bytes.end.div_ceil(512) {
            let rotten = match device.visible.get(sector) {
                Cell::Stamp(s) => Cell::Stamp(s ^ 1),
                Cell::Bytes(b) => Cell::Bytes(Rc::new(b.map(|byte| byte ^ 1))),
            };
            device.visible.set(sector, rotten.clone());
            device.durable.set(sector, rotten);
        }
    }

    /// What a device is asked next fails, and nothing later: in the moment in which what was held back ends.
    pub fn let_go_failing(&mut self, device: Device) {
        self.device(device).fail_writes = 1;
        self.device(device).fail_flushes = 1;
        self.let_go();
        self.pass(2_000);
        self.device(device).fail_writes = 0;
        self.device(device).fail_flushes = 0;
    }

    /// A daemon starts, well, and what its tables say is true.
    pub fn start(&mut self) {
        let id = self.begin_start();
        self.ends_well(id);
        self.until("all that is cached is known", World::is_loaded);
        for v in self.status().volumes {
            self.world.check_segments(v.number);
            self.world.check_clean(v.number, self.stage.phase, true);
        }
        self.check();
    }

    /// A daemon begins to start; the command to wait for.
    pub fn begin_start(&mut self) -> u64 {
        let election =
            self.world.elect(self.stage.witness).unwrap_or_else(|e| panic!("{}: the pool does not start: {e}", self.story));
        self.world.start(self.stage.settings.clone(), election)
    }

    /// The election refuses to start the pool; why.
    pub fn refusal(&mut self) -> Refusal {
        match self.world.elect(self.stage.witness) {
            Err(e) => e,
            Ok(_) => panic!("{}: the pool starts, and must not", self.story),
        }
    }

    /// The power goes, and nothing survives that was not flushed; then the pool starts again.
    pub fn lose_power(&mut self) {
        self.world.cut_power_keeping(|_, _, _| false);
        self.start();
    }

    /// The daemon is killed, and nothing lands of what was in flight; then the pool starts again.
    pub fn kill(&mut self) {
        self.world.kill_landing(|_, _, _| false);
        self.start();
    }

    /// Reads whatever was written on the volumes that serve.
    pub fn read_all(&mut self) {
        for v in self.status().volumes.iter().filter(|v| v.serving) {
            for sector in self.world.oracles[&v.number].touched() {
                self.world.read(v.number, sector, 1);
            }
        }
        self.answered();
        self.world.take_ended();
    }

    /// All is read; all volumes are detached; the disks alone are what was written.
    pub fn end(mut self) {
        self.let_go();
        self.rest();
        self.read_all();
        for v in self.status().volumes {
            if v.backing.is_empty() {
                self.obey(Command::Abandon { volume: v.number });
                continue;
            }
            self.obey(Command::Detach { volume: v.number, give_up_lost: false });
            self.world.check_disk(v.number);
        }
        self.check();
    }
}
