//! The small world: two cache devices of a few segments, a witness, one volume of 16 blocks. One run of a sequence in it,
//! and one recovery from what a crash left.

use super::cut::{Attendance, Crash, lose_all};
use super::sequence::{Joint, Op, Sequence};
use super::{BLOCKS, MEMBERS, SECTORS};
use crate::device::SimDevice;
use crate::models::MILLISECOND;
use crate::oracle::Oracle;
use crate::rng::Rng;
use crate::world::{Timing, World};
use headpond_engine::create::{PoolPlan, plan};
use headpond_engine::format::Mode;
use headpond_engine::{Command, Device, NewVolume, Settings};
use std::collections::BTreeMap;

/// Bytes of a segment.
const SEGMENT: u64 = 64 << 10;
/// Bytes of a cache device: two superblocks' places, an intent page, checkpoint areas, and eight segments or so.
const MEMBER: u64 = (1 << 20) + 8 * SEGMENT;
/// The stamp that sector 0 of the disk has at first.
const BASE: u64 = 1 << 50;
/// Nothing happens for so long: all is at rest.
const QUIET: u64 = 60 * MILLISECOND;
/// What is held up is held up for so long: anything else has ended by then.
const HELD: u64 = 20 * MILLISECOND;
/// What has not ended by then does not end.
const ENDLESS: u64 = 600_000 * MILLISECOND;

/// Tells what happens.
pub type Narrator = Box<dyn FnMut(String)>;

fn settings() -> Settings {
    Settings {
        large_bytes: 16 << 10,
        admit_bytes: 16 << 10,
        route: false,
        zeroes_bytes: 16 << 10,
        // Nothing goes to the disk before it is told to.
        destage_percent: 100,
        idle_ns: 1 << 60,
        chunk_runs: 4,
        destage_depth: 2,
        destage_run_bytes: 8 << 10,
        appends: 2,
        unfilled_appends: 2,
        gather_ns: 0,
        record_bytes: 16 << 10,
        max_fragments: 64,
        ..Settings::default()
    }
}

/// A run of a sequence.
pub struct Small {
    /// The world that it runs in.
    pub world: World,
    commands: Vec<(u64, Op)>,
    trace: u64,
    quiet_since: u64,
}

/// How long the last operation of a sequence took, in happenings: device operations completed, and moments that came.
#[derive(Clone, Copy, Debug, Default)]
pub struct Took {
    /// Until it ended.
    pub ended: u32,
    /// Until all was at rest.
    pub rest: u32,
}

impl Small {
    /// A new pool with its volume, at rest.
    ///
    /// # Errors
    /// What went wrong.
    pub fn new(narrator: Option<Narrator>) -> Result<Self, String> {
        let mut world = World::new(Rng::new(0), Timing::Fixed(100_000));
        for m in 0..MEMBERS {
            world.devices.insert(Device::Member(m), SimDevice::new(MEMBER, None));
        }
        world.devices.insert(Device::Witness, SimDevice::new(64 << 10, None));
        world.devices.insert(Device::Backing(0), SimDevice::new(SECTORS * 512, Some(BASE)));
        let pool = PoolPlan {
            name: "small".into(),
            id: [7; 16],
            key: 0x1234_5678_9abc_def0,
            copies: MEMBERS,
            unit: 512,
            segment_bytes: SEGMENT,
            intent_pages: 1,
            witness: true,
            members: (0..MEMBERS).map(|m| ([m + 1; 16], MEMBER)).collect(),
        };
        let (_, writes) = plan(&pool).map_err(|e| e.to_string())?;
        world.put_initial(&writes);
        let mut small = Self::over(world);
        small.start()?;
        small.world.oracles.insert(0, Oracle::new(BASE));
        let attach = Command::Attach(NewVolume {
            number: 0,
            id: [9; 16],
            name: "v".into(),
            sectors: SECTORS,
            phase: 0,
            mode: Mode::WriteBack,
            backing: "disk".into(),
        });
        small.obey(attach, "attach")?;
        small.rest()?;
        // The story begins here.
        small.world.narrator = narrator;
        Ok(small)
    }

    fn over(world: World) -> Self {
        Self { world, commands: Vec::new(), trace: 0, quiet_since: 0 }
    }

    /// One step; whether anything happened in it but the passing of time.
    fn step(&mut self) -> Result<bool, String> {
        if !self.world.step() {
            return Err("nothing can happen any more".into());
        }
        if let Some(v) = self.world.violation.take() {
            return Err(v.0);
        }
        let changed = self.world.trace_hash() != self.trace;
        if changed || self.world.busy() {
            (self.trace, self.quiet_since) = (self.world.trace_hash(), self.world.now);
        }
        Ok(changed)
    }

    /// Whether all that was asked has ended; an error if a command failed.
    fn ended(&mut self) -> Result<bool, String> {
        let mut failed = None;
        let world = &self.world;
        self.commands.retain(|(id, op)| match world.command_result(*id) {
            Some(Err(e)) => {
                failed = Some(format!("{op} failed: {e}"));
                false
            }
            Some(Ok(())) => false,
            None => true,
        });
        failed.map_or(Ok(self.commands.is_empty() && self.world.outstanding() == 0), Err)
    }

    fn at_rest(&mut self) -> Result<bool, String> {
        Ok(self.ended()? && !self.world.busy() && self.world.now >= self.quiet_since + QUIET)
    }

    fn check_time(&self, since: u64) -> Result<(), String> {
        if self.world.now > since + ENDLESS {
            let status = self.world.engine.as_ref().map(headpond_engine::Engine::status);
            return Err(format!("it does not end: {} requests outstanding, {status:?}", self.world.outstanding()));
        }
        Ok(())
    }

    /// Steps until nothing is left to do.
    fn rest(&mut self) -> Result<(), String> {
        let since = self.world.now;
        self.quiet_since = since;
        while !self.at_rest()? {
            self.step()?;
            self.check_time(since)?;
        }
        Ok(())
    }

    fn finish(&mut self, id: u64, what: &str) -> Result<(), String> {
        let since = self.world.now;
        loop {
            match self.world.command_result(id) {
                Some(result) => return result.map_err(|e| format!("{what} failed: {e}")),
                None => drop(self.step()?),
            }
            self.check_time(since)?;
        }
    }

    fn obey(&mut self, command: Command, what: &str) -> Result<(), String> {
        let id = self.world.command(command);
        self.finish(id, what)
    }

    fn start(&mut self) -> Result<(), String> {
        let election = self.world.elect(true).map_err(|e| format!("the pool does not start: {e}"))?;
        let id = self.world.start(settings(), election);
        self.finish(id, "start")?;
        self.world.check_segments(0);
        self.world.violation.take().map_or(Ok(()), |v| Err(v.0))
    }

    fn begin(&mut self, op: Op) {
        let w = &mut self.world;
        w.note(&format!("OPERATION {op}"));
        let command = match op {
            Op::Write(at, n) | Op::Bypass(at, n) => {
                w.write(0, at, n, false);
                return;
            }
            Op::Fua(at, n) => {
                w.write(0, at, n, true);
                return;
            }
            Op::Zero(at, n) => {
                w.write_zeroes(0, at, n, false);
                return;
            }
            Op::Discard(at, n) => {
                w.discard(0, at, n, 0);
                return;
            }
            Op::Read(at, n) => {
                w.read(0, at, n as u32);
                return;
            }
            Op::Flush => {
                w.flush(0);
                return;
            }
            Op::Lose(m) => {
                if let Some(d) = w.devices.get_mut(&Device::Member(m)) {
                    d.dead = true;
                }
                return;
            }
            Op::Destage => Command::Destage { volume: 0 },
            Op::Checkpoint => Command::Checkpoint,
            Op::WriteThrough => Command::SetMode { volume: 0, mode: Mode::WriteThrough },
        };
        let id = w.command(command);
        self.commands.push((id, op));
    }

    /// Runs a sequence until all is at rest. `at` is called at every moment since the last operation began, with the number
    /// of happenings since then.
    ///
    /// # Errors
    /// What must not happen and did, or what `at` says.
    pub fn run(&mut self, sequence: &Sequence, mut at: impl FnMut(&World, u32) -> Result<(), String>) -> Result<Took, String> {
        let mut took = Took::default();
        for (n, (_, op)) in sequence.0.iter().enumerate() {
            self.begin(*op);
            let last = n + 1 == sequence.0.len();
            let until = match sequence.0.get(n + 1) {
                Some((Joint::After(k) | Joint::Held(k), _)) => *k,
                _ => u32::MAX,
            };
            took = Took::default();
            let since = self.world.now;
            self.quiet_since = since;
            self.trace = self.world.trace_hash();
            let mut ended = false;
            while took.rest < until && !self.at_rest()? {
                if self.step()? {
                    took.rest += 1;
                    if last {
                        at(&self.world, took.rest)?;
                    }
                }
                if !ended && self.ended()? {
                    (ended, took.ended) = (true, took.rest);
                }
                self.check_time(since)?;
            }
            if let Some((Joint::Held(_), _)) = sequence.0.get(n + 1) {
                self.world.hold(HELD);
            }
        }
        Ok(took)
    }

    /// Reads everything: the first half, where clients were, block by block.
    fn read_all(&mut self) -> Result<(), String> {
        for b in 0..BLOCKS / 2 {
            self.world.read(0, b * 8, 8);
        }
        self.world.read(0, SECTORS / 2, SECTORS as u32 / 2);
        let since = self.world.now;
        while self.world.outstanding() > 0 {
            self.step()?;
            self.check_time(since)?;
        }
        self.world.take_ended();
        self.world.check_segments(0);
        self.world.violation.take().map_or(Ok(()), |v| Err(v.0))
    }

    /// The end without a crash: all is read, the volume is detached, and the disk alone holds what was written.
    ///
    /// # Errors
    /// What must not happen and did.
    pub fn end(&mut self) -> Result<(), String> {
        self.read_all()?;
        self.obey(Command::Detach { volume: 0, give_up_lost: false }, "detach")?;
        self.world.check_disk(0);
        self.world.violation.take().map_or(Ok(()), |v| Err(v.0))
    }
}

/// What came of a recovery.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Recovered {
    /// All was as it may be, twice.
    Twice,
    /// All was as it may be, and what the second power cut left was seen before.
    Once,
    /// The lost cache device was back alone, and was refused.
    Refused,
}

/// Starts from what a crash left. `at` is called at every moment until all is at rest, with the number of happenings.
///
/// # Errors
/// What must not happen and did, or what `at` says.
pub fn watch_start(
    devices: BTreeMap<Device, SimDevice>,
    oracle: Oracle,
    narrator: Option<Narrator>,
    mut at: impl FnMut(&World, u32) -> Result<(), String>,
) -> Result<(), String> {
    let mut small = Small::over(fresh_world(devices, oracle, narrator));
    let election = small.world.elect(true).map_err(|e| format!("the pool does not start: {e}"))?;
    let since = small.world.now;
    let id = small.world.start(settings(), election);
    let mut happened = 0;
    while small.world.command_result(id).is_none() || !small.at_rest()? {
        if small.step()? {
            happened += 1;
            at(&small.world, happened)?;
        }
        small.check_time(since)?;
    }
    Ok(())
}

fn fresh_world(devices: BTreeMap<Device, SimDevice>, oracle: Oracle, narrator: Option<Narrator>) -> World {
    let mut world = World::new(Rng::new(1), Timing::Fixed(100_000));
    world.devices = devices;
    world.oracles.insert(0, oracle);
    world.narrator = narrator;
    world
}

/// Starts from what a crash left, reads everything; cuts the power, starts again, reads again, and detaches. The second
/// part is left out where `known` says that it was done from this very state.
///
/// # Errors
/// What must not happen and did.
pub fn recover(
    devices: BTreeMap<Device, SimDevice>,
    oracle: Oracle,
    crash: &Crash,
    known: impl FnOnce(u64) -> bool,
    narrator: Option<Narrator>,
) -> Result<Recovered, String> {
    let mut world = fresh_world(devices, oracle, narrator);
    world.note(&format!("AFTER THE CRASH {crash}"));
    if crash.attendance == Attendance::BackAlone && world.elect(true).is_err() {
        return Ok(Recovered::Refused);
    }
    let mut small = Small::over(world);
    small.start()?;
    small.read_all()?;
    // Again, at once: nothing that was served may be gone.
    small.world.note("POWER CUT, and nothing unflushed is left");
    let Small { mut world, .. } = small;
    let Some(mut oracle) = world.oracles.remove(&0) else { return Ok(Recovered::Once) };
    oracle.power_cut();
    let mut devices = std::mem::take(&mut world.devices);
    devices.values_mut().for_each(lose_all);
    let mut print = oracle.fingerprint();
    for d in devices.values() {
        let there = if d.dead { 1 } else { d.durable.fingerprint() };
        print = (print.rotate_left(21) ^ there).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }
    if known(print) {
        return Ok(Recovered::Once);
    }
    let narrator = world.narrator.take();
    let world = fresh_world(devices, oracle, narrator);
    let mut small = Small::over(world);
    small.start().map_err(|e| format!("after a second power cut: {e}"))?;
    small.end().map_err(|e| format!("after a second power cut: {e}"))?;
    Ok(Recovered::Twice)
}
