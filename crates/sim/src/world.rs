//! The world: an engine, its devices, virtual time, and clients' requests checked against the oracle.

mod beside;
mod checks;
mod crash;
mod election;
mod failures;
mod words;

use crate::buf::{Cell, SimBuf};
use crate::device::{Cut, NumberMap, SimDevice};
use crate::models::{Access, Kind, TimingModel};
use crate::oracle::Oracle;
use crate::rng::Rng;
use crate::sickness::{self, Snapshot};
use failures::Failures;
use headpond_engine::create::InitialWrite;
use headpond_engine::election::Election;
use headpond_engine::{
    Buf, Command, CommandError, CommandId, Device, DeviceError, DeviceOp, DeviceResult, Effect, Engine, IoId, Reach, Request,
    RequestError, RequestId, Settings, Status,
};
use std::collections::{BTreeMap, BTreeSet};
use words::in_words;

pub use beside::{Beside, Whose};

/// A device operation under way.
struct Flight {
    io: IoId,
    device: Device,
    op: DeviceOp<SimBuf>,
    mark: u64,
}

/// What is in memory that nothing was read into, or that a read failed to fill.
const NEVER_WRITTEN: u64 = u64::MAX - 1;

/// Which clients lend their memory, for what goes past the cache.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Lend {
    /// None: all of them have it copied.
    None,
    /// Every other one.
    Some,
    /// All.
    All,
}

enum Event {
    Device(u64),
    Model(Device),
    /// Whoever reads beside the engine for this request has waited for long enough.
    Beside(u64),
}

/// How long device operations take.
pub enum Timing {
    /// A random time between two bounds, in nanoseconds; once in 64 times twenty times as
    /// long, and once in 1024 times four hundred times.
    Random(u64, u64),
    /// The same time for each, in nanoseconds: they end in the order in which they were submitted.
    Fixed(u64),
    /// A model for each device.
    Models(BTreeMap<Device, Box<dyn TimingModel>>),
}

/// A client's request under way.
struct Asked {
    volume: u16,
    kind: AskedKind,
    submitted: u64,
    at: u64,
    /// Which members there were when it was submitted.
    members: Members,
    /// Dirty data lacked a copy then.
    lacking: bool,
    /// It reads a single sector, which was dirty in the cache then.
    dirty: bool,
    /// Of what it asks for no copy was left then.
    gone: bool,
    /// The sectors that it is about: the first one, and how many. None of a flush.
    about: (u64, u64),
    /// Some of them were dead on the disk then.
    dead: bool,
    /// It was tried beside the engine.
    beside: bool,
    /// The client's memory, if it is lent.
    lent: Option<SimBuf>,
}

/// The members in sync, as bits, and the epoch that says so; nothing in runs that do not count copies.
#[derive(Clone, Copy, Default)]
struct Members {
    in_sync: u64,
    epoch: u64,
}

impl Members {
    fn of(status: &Status) -> Self {
        let bits = status.members.iter().filter(|m| m.in_sync).fold(0, |bits, m| bits | 1 << m.number);
        Self { in_sync: bits, epoch: status.epoch }
    }

    /// Whether one has joined since, or left. That one leaves is known before an epoch says so: whoever may go by that says
    /// `undecided`. Nothing durable may: it is acknowledged once it is decided who is a member (R7).
    fn have_changed(self, now: Self, undecided: bool) -> bool {
        now.epoch > self.epoch || undecided && self.in_sync & !now.in_sync != 0
    }
}

enum AskedKind {
    Read {
        sector: u64,
        sectors: u32,
    },
    Write {
        write: u64,
        durable: bool,
    },
    Flush,
    /// Of who serves the volume: it promises nothing of what a client is to be told.
    OwnFlush,
}

/// The end of a request.
#[derive(Clone, Debug)]
pub struct Ended {
    /// The request.
    pub id: u64,
    /// How long it took, in nanoseconds.
    pub took: u64,
    /// Whether it failed.
    pub error: Option<RequestError>,
}

/// Which operations are held back, in a scene that decides on the order in which things end.
pub type Holds = Box<dyn Fn(Device, &DeviceOp<SimBuf>) -> bool>;

/// Something that must never happen did.
#[derive(Clone, Debug)]
pub struct Violation(pub String);

/// The world.
pub struct World {
    /// Virtual time in nanoseconds.
    pub now: u64,
    /// The engine, while a daemon lives.
    pub engine: Option<Engine<SimBuf>>,
    /// The devices.
    pub devices: BTreeMap<Device, SimDevice>,
    /// Cache devices that were members once, whose numbers others have now. At every other start they are named with the others.
    pub apart: Vec<SimDevice>,
    /// What each volume may read as.
    pub oracles: BTreeMap<u16, Oracle>,
    /// Chance.
    pub rng: Rng,
    timing: Timing,
    flights: NumberMap<Flight>,
    next_flight: u64,
    events: BTreeMap<(u64, u64), Event>,
    next_event: u64,
    asked: NumberMap<Asked>,
    /// When those of them that read were submitted, by their oracle's clock.
    reads: BTreeSet<(u64, u64)>,
    next_request: u64,
    next_write: u64,
    commands: BTreeMap<u64, Option<Result<(), CommandError>>>,
    next_command: u64,
    ended: Vec<Ended>,
    /// Unit of the pool's records, in bytes: cache devices are read and written in multiples of it.
    pub unit: u64,
    /// Device operations submitted so far: crashes are planned by it.
    pub operations: u64,
    /// Reads of backing devices so far.
    pub disk_reads: u64,
    /// Of these, the ones that lie in no read that a client was waiting for.
    pub unasked_disk_reads: u64,
    /// What must never happen and did; the run ends there.
    pub violation: Option<Violation>,
    /// Copies of what is acknowledged are counted on the media.
    pub count_copies: bool,
    /// A member was lost, and what it had a copy of may not have another one yet.
    pub copies_lacking: bool,
    /// What nobody has acknowledged may have one copy, until the engine has mended it: it was appended while the other cache
    /// device was away, which is back since a crash.
    pub to_be_mended: bool,
    /// The device operation with this number, of those counted in `operations`, fails.
    pub fail_operation: Option<u64>,
    /// The next write or flush of this member fails that is submitted when so many device operations have been, and no other.
    pub fail_member: Option<(u8, u64)>,
    /// The member that has failed so since the daemon's start: it is out soon.
    pub failed_member: Option<u8>,
    holds: Option<Holds>,
    /// What is held back is the answer: the operation itself is done.
    holds_answers: bool,
    /// Flights that end when they are let go, and not before.
    held: Vec<u64>,
    /// The answers of those that are done.
    answers: BTreeMap<u64, DeviceResult<SimBuf>>,
    /// Requests may fail: more was broken than the pool promises to bear.
    pub errors_allowed: bool,
    /// Writes are refused, since a cache device is missing.
    pub refuses_writes: bool,
    /// A second cache device was lost at this time: what the two alone had is gone. One copy of what a FLUSH promises has to be left, and what
    /// is not gone can be read.
    pub two_lost: Option<u64>,
    /// That was in this life of the daemon.
    two_lost_here: bool,
    /// Who was in sync, where two are lost, when the engine last began to do something: in that very moment it may hear of a loss.
    was_in_sync: Vec<u8>,
    /// Volumes whose disk fails, or is not there: their requests may, and nobody else's. Where only some of its sectors are dead, only what is
    /// asked about these may.
    pub failing: BTreeSet<u16>,
    /// The daemon was told to end. Front ends take no request from then on; who read beside the engine and asks it now is not served.
    ends: bool,
    /// Flushes of disks that failed, and who was told.
    failures: Failures,
    /// Which clients lend their memory.
    pub lend: Lend,
    /// Reads that go past the engine.
    pub beside: Beside,
    model_wakes: BTreeMap<Device, u64>,
    snapshots: BTreeMap<Device, Snapshot>,
    /// The command that a start ends with, until it has.
    starting: Option<u64>,
    hash: u64,
    /// Called with each thing that happens, in words.
    pub narrator: Option<Box<dyn FnMut(String)>>,
}

impl World {
    /// A world without devices.
    #[must_use]
    pub fn new(rng: Rng, timing: Timing) -> Self {
        Self {
            now: 0,
            engine: None,
            devices: BTreeMap::new(),
            apart: Vec::new(),
            oracles: BTreeMap::new(),
            rng,
            timing,
            flights: NumberMap::default(),
            next_flight: 0,
            events: BTreeMap::new(),
            next_event: 0,
            asked: NumberMap::default(),
            reads: BTreeSet::new(),
            next_request: 0,
            next_write: 1,
            commands: BTreeMap::new(),
            next_command: 0,
            ended: Vec::new(),
            unit: 512,
            operations: 0,
            disk_reads: 0,
            unasked_disk_reads: 0,
            violation: None,
            count_copies: true,
            copies_lacking: false,
            to_be_mended: false,
            fail_operation: None,
            fail_member: None,
            failed_member: None,
            holds: None,
            holds_answers: false,
            held: Vec::new(),
            answers: BTreeMap::new(),
            errors_allowed: false,
            refuses_writes: false,
            two_lost: None,
            two_lost_here: false,
            was_in_sync: Vec::new(),
            failing: BTreeSet::new(),
            ends: false,
            failures: Failures::default(),
            lend: Lend::None,
            beside: Beside::default(),
            model_wakes: BTreeMap::new(),
            snapshots: BTreeMap::new(),
            starting: None,
            hash: 0,
            narrator: None,
        }
    }

    fn say(&mut self, what: impl FnOnce() -> String) {
        let now = self.now;
        if let Some(n) = &mut self.narrator {
            n(format!("{:>12.3} ms  {}", now as f64 / 1e6, what()));
        }
    }

    /// A number that sums up all that happened: equal runs have equal ones.
    #[must_use]
    pub fn trace_hash(&self) -> u64 {
        self.hash
    }

    fn trace(&mut self, n: u64) {
        self.hash = (self.hash.rotate_left(7) ^ n).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }

    fn fail(&mut self, what: String) {
        if self.violation.is_none() {
            self.violation = Some(Violation(what));
        }
    }

    /// Writes what a new pool begins with, durably.
    pub fn put_initial(&mut self, writes: &[InitialWrite]) {
        for w in writes {
            let device = w.member.map_or(Device::Witness, Device::Member);
            let d = self.devices.get_mut(&device).expect("the plan names devices of this world");
            d.write(w.offset / 512, SimBuf::from_bytes(&w.bytes));
            let mark = d.flush_mark();
            d.flushed(mark);
        }
    }

    /// Starts a daemon; the command to wait for.
    pub fn start(&mut self, settings: Settings, election: Election) -> u64 {
        let backings: Vec<u16> = self
            .devices
            .iter()
            .filter_map(|(d, s)| if let Device::Backing(n) = d { (!s.dead).then_some(*n) } else { None })
            .collect();
        let id = self.next_command;
        self.next_command += 1;
        self.commands.insert(id, None);
        self.starting = Some(id);
        self.ends = false;
        self.engine = Some(Engine::start(self.now, settings, election, &backings, CommandId(id)));
        id
    }

    /// Gives the engine a command; its number.
    pub fn command(&mut self, command: Command) -> u64 {
        let id = self.next_command;
        self.next_command += 1;
        self.commands.insert(id, None);
        self.ends |= matches!(command, Command::Stop);
        if let Some(e) = &self.engine {
            e.command(CommandId(id), command);
        }
        id
    }

    /// Whether all that is cached is known again since the start, or it is known that it will not be.
    #[must_use]
    pub fn is_loaded(&self) -> bool {
        let loading = self.engine.as_ref().and_then(|e| e.status().loading);
        loading.is_none_or(|loading| loading.lost_page.is_some())
    }

    /// Whether a page of the image is to be had from no cache device.
    #[must_use]
    pub fn lacks_a_page(&self) -> bool {
        let loading = self.engine.as_ref().and_then(|e| e.status().loading);
        loading.is_some_and(|loading| loading.lost_page.is_some())
    }

    /// How a command ended, if it has.
    #[must_use]
    pub fn command_result(&self, id: u64) -> Option<Result<(), CommandError>> {
        self.commands.get(&id).cloned().flatten()
    }

    /// Client requests under way.
    #[must_use]
    pub fn outstanding(&self) -> usize {
        self.asked.len()
    }

    /// How long the oldest client request under way has waited, in nanoseconds.
    #[must_use]
    pub fn longest_wait(&self) -> u64 {
        self.asked.values().map(|a| self.now - a.at).max().unwrap_or(0)
    }

    fn members(&self) -> Members {
        self.engine.as_ref().filter(|_| self.count_copies).map_or_else(Default::default, |e| Members::of(&e.status()))
    }

    fn ask(&mut self, volume: u16, kind: AskedKind, request: Request<SimBuf>) -> u64 {
        let id = self.next_request;
        self.next_request += 1;
        let reads = self.reads.first().map(|(submitted, _)| *submitted);
        let submitted = self.oracles.get_mut(&volume).map_or(0, |o| {
            let now = o.tick();
            o.oldest_read = reads.unwrap_or(now);
            now
        });
        self.say(|| format!("request {id}: {}", in_words(&request)));
        let status = self.engine.as_ref().filter(|_| self.count_copies).map(Engine::status);
        let (members, lacking) = status.map_or_else(Default::default, |s| (Members::of(&s), s.lacking_copies > 0));
        let lent = match &request {
            Request::Write { data, .. } => Some(data.clone()).filter(SimBuf::is_lent),
            Request::Read { into, .. } => into.clone(),
            _ => None,
        };
        if matches!(kind, AskedKind::Read { .. }) {
            self.reads.insert((submitted, id));
        }
        let errs = self.failing.contains(&volume) || self.has_dead_sectors(volume);
        let dirty = matches!(kind, AskedKind::Read { sector, sectors: 1 } if errs && self.is_dirty(volume, sector));
        let gone = matches!(kind, AskedKind::Read { sector, sectors } if self.is_gone(volume, sector, sectors));
        let about = match &request {
            Request::Read { sector, sectors, .. } => (*sector, u64::from(*sectors)),
            Request::Write { sector, data, .. } => (*sector, data.sectors() as u64),
            Request::Discard { sector, sectors } | Request::WriteZeroes { sector, sectors, .. } => (*sector, *sectors),
            Request::Flush | Request::OwnFlush => (0, 0),
        };
        let (at, dead) = (self.now, self.is_dead(volume, about));
        let asked = Asked { volume, kind, submitted, at, members, lacking, dirty, gone, about, dead, beside: false, lent };
        self.asked.insert(id, asked);
        if let Request::Read { sector, sectors, .. } = &request
            && self.reads_beside(id, volume, *sector, *sectors)
        {
            return id;
        }
        if let Some(e) = &self.engine {
            e.request(volume, RequestId(id), request);
        }
        id
    }

    /// Whether a volume's disk has sectors that can neither be read nor written.
    fn has_dead_sectors(&self, volume: u16) -> bool {
        self.devices.get(&Device::Backing(volume)).is_some_and(|d| !d.dead_sectors.is_empty())
    }

    /// Whether some of these are among them.
    fn is_dead(&self, volume: u16, (sector, sectors): (u64, u64)) -> bool {
        self.devices.get(&Device::Backing(volume)).is_some_and(|d| d.touches_dead(sector, sectors))
    }

    /// A client reads.
    pub fn read(&mut self, volume: u16, sector: u64, sectors: u32) -> u64 {
        let into = self.lends().then(|| SimBuf::lent(vec![Cell::Stamp(NEVER_WRITTEN); sectors as usize]));
        self.ask(volume, AskedKind::Read { sector, sectors }, Request::Read { sector, sectors, into })
    }

    /// Whether the next client lends its memory: every other one does where they may.
    fn lends(&self) -> bool {
        self.lend == Lend::All || self.lend == Lend::Some && self.next_request.is_multiple_of(2)
    }

    /// A client writes: stamps that no other write has.
    pub fn write(&mut self, volume: u16, sector: u64, sectors: u64, fua: bool) -> u64 {
        let write = self.next_write;
        self.next_write += 1;
        let base = write << 20;
        if let Some(o) = self.oracles.get_mut(&volume) {
            o.submit(write, sector, sectors, base);
        }
        let data = match self.lends() {
            true => SimBuf::lent((base..base + sectors).map(Cell::Stamp).collect()),
            false => SimBuf::stamps(base, sectors as usize),
        };
        self.ask(volume, AskedKind::Write { write, durable: fua }, Request::Write { sector, data, fua })
    }

    /// The memory that a client lends with a request that is under way.
    ///
    /// # Panics
    /// It lends none.
    #[must_use]
    pub fn lent_memory(&self, request: u64) -> &SimBuf {
        self.asked.get(&request).and_then(|asked| asked.lent.as_ref()).expect("a request with lent memory")
    }

    /// A client zeroes a range.
    pub fn write_zeroes(&mut self, volume: u16, sector: u64, sectors: u64, fua: bool) -> u64 {
        let write = self.next_write;
        self.next_write += 1;
        if let Some(o) = self.oracles.get_mut(&volume) {
            o.submit(write, sector, sectors, 0);
        }
        self.ask(volume, AskedKind::Write { write, durable: fua }, Request::WriteZeroes { sector, sectors, fua })
    }

    /// A client discards a range; what of it is whole blocks of the grid reads as zeroes.
    pub fn discard(&mut self, volume: u16, sector: u64, sectors: u64, phase: u64) -> u64 {
        let write = self.next_write;
        self.next_write += 1;
        let shift = (8 - phase) % 8;
        let (start, end) = ((sector + shift).next_multiple_of(8), (sector + sectors + shift) / 8 * 8);
        if let Some(o) = self.oracles.get_mut(&volume)
            && start < end
        {
            o.submit(write, start - shift, end - start, 0);
        }
        self.ask(volume, AskedKind::Write { write, durable: false }, Request::Discard { sector, sectors })
    }

    /// A client flushes.
    pub fn flush(&mut self, volume: u16) -> u64 {
        self.ask(volume, AskedKind::Flush, Request::Flush)
    }

    /// Who serves the volume flushes it.
    pub fn own_flush(&mut self, volume: u16) -> u64 {
        self.ask(volume, AskedKind::OwnFlush, Request::OwnFlush)
    }

    /// Whether any requests have ended since [`World::take_ended`] was last asked.
    #[must_use]
    pub fn any_ended(&self) -> bool {
        !self.ended.is_empty()
    }

    /// Requests that have ended since this was last asked.
    pub fn take_ended(&mut self) -> Vec<Ended> {
        std::mem::take(&mut self.ended)
    }

    /// Takes what the engine wants done, and then lets one thing happen. `false` if nothing can.
    pub fn step(&mut self) -> bool {
        self.pump();
        let timer = self.engine.as_ref().and_then(Engine::next_timer);
        let event = self.events.first_key_value().map(|((t, _), _)| *t);
        match (event, timer) {
            (Some(e), Some(t)) if t < e => self.to(t),
            (Some(_), _) => self.happen(),
            (None, Some(t)) => self.to(t),
            (None, None) => return false,
        }
        self.pump();
        true
    }

    /// When the next thing happens, if anything can.
    pub fn next_time(&mut self) -> Option<u64> {
        self.pump();
        let timer = self.engine.as_ref().and_then(Engine::next_timer);
        let event = self.events.first_key_value().map(|((t, _), _)| *t);
        [timer, event].into_iter().flatten().min()
    }

    /// The engine's thread stands still for so long, in nanoseconds: devices go on meanwhile, and what they answer it hears afterwards.
    pub fn stall(&mut self, time: u64) {
        self.pump();
        self.to(self.now + time);
        self.pump();
    }

    /// Lets time pass until `at` at most, with all that happens before.
    pub fn run_until(&mut self, at: u64) {
        loop {
            match self.next_time() {
                Some(t) if t <= at && self.violation.is_none() => {
                    self.step();
                }
                _ => break,
            }
        }
        self.to(at);
    }

    fn to(&mut self, at: u64) {
        self.now = self.now.max(at);
        if let Some(e) = &self.engine {
            e.advance(self.now);
        }
    }

    fn pump(&mut self) {
        if self.two_lost.is_some() {
            let members = self.engine.as_ref().map(|e| e.status().members).unwrap_or_default();
            self.was_in_sync = members.into_iter().filter(|m| m.in_sync).map(|m| m.number).collect();
        }
        while let Some(effect) = self.engine.as_ref().and_then(Engine::poll) {
            match effect {
                Effect::Submit { io, device, op } => self.submit(io, device, op),
                Effect::Reply { id, result, .. } => self.reply(id.0, result),
                Effect::Done { id, result } => {
                    self.trace(id.0 << 8 | u64::from(result.is_ok()));
                    self.starting = self.starting.filter(|s| *s != id.0);
                    self.commands.insert(id.0, Some(result));
                }
            }
        }
    }

    fn submit(&mut self, io: IoId, device: Device, op: DeviceOp<SimBuf>) {
        self.operations += 1;
        let (kind, offset, len) = match &op {
            DeviceOp::Read { offset, len, .. } => (Kind::Read, *offset, u64::from(*len)),
            DeviceOp::Write { offset, bufs, reach } => {
                let kind = match reach {
                    Reach::Cache => Kind::Write,
                    Reach::PastCache => Kind::WriteThrough,
                    Reach::Durable => Kind::WriteDurable,
                };
                (kind, *offset, bufs.iter().map(|b| b.len() as u64).sum())
            }
            DeviceOp::Flush => (Kind::Flush, 0, 0),
            DeviceOp::Discard { offset, len } => (Kind::Discard, *offset, *len),
            DeviceOp::WriteZeroes { offset, len } => (Kind::WriteZeroes, *offset, *len),
        };
        // A cache device that was lost may have another number by now. Who reads from it, or flushes it, has not heard yet.
        let was_lost = matches!((device, kind), (Device::Member(_), Kind::Read | Kind::Flush));
        if !self.devices.contains_key(&device) && !was_lost {
            self.fail(format!("{kind:?} on {device}, which there is not"));
        }
        let size = self.devices.get(&device).map_or(u64::MAX, |d| d.size);
        // Cache devices have blocks of up to the pool's unit.
        let unit = if matches!(device, Device::Member(_)) { self.unit } else { 512 };
        if offset % unit != 0 || len % unit != 0 || offset + len > size {
            self.fail(format!("{kind:?} of {len} bytes at {offset} on {device}, which has {size} bytes"));
        }
        self.say(|| format!("  {} on {device}: {kind:?} {} +{}", io.0, offset / 512, len / 512));
        self.only_a_disk_has_what_is_lent(device, &op, len);
        self.one_writer_per_range(device, &op);
        if let (Device::Backing(volume), Kind::Read) = (device, kind) {
            self.disk_reads += 1;
            self.unasked_disk_reads += u64::from(!self.asked_for(volume, offset / 512, len / 512));
        }
        self.trace(offset ^ len << 40 ^ kind as u64);
        let mark = self.devices.get(&device).map_or(0, SimDevice::flush_mark);
        let n = self.next_flight;
        self.next_flight += 1;
        let held = self.holds.as_ref().is_some_and(|holds| holds(device, &op));
        let flight = Flight { io, device, op, mark };
        if held && self.holds_answers {
            let answer = self.perform(&flight);
            self.answers.insert(n, answer);
        }
        self.flights.insert(n, flight);
        if held {
            self.held.push(n);
            return;
        }
        match &mut self.timing {
            Timing::Random(low, high) => {
                let (low, high) = (*low, *high);
                let t = self.rng.within(low, high);
                // Rarely a device takes long, and once in a while so long that all else goes round meanwhile.
                let slowness = self.devices.get(&device).map_or(1, |d| d.slowness);
                let t = t
                    * slowness
                    * match self.rng.below(1024) {
                        0 => 400,
                        1..=16 => 20,
                        _ => 1,
                    };
                self.event(self.now + t, Event::Device(n));
            }
            Timing::Fixed(t) => {
                let at = self.now + *t;
                self.event(at, Event::Device(n));
            }
            Timing::Models(models) => match models.get_mut(&device) {
                Some(model) => {
                    model.submit(self.now, n, Access { kind, offset, len });
                    self.wake_model(device);
                }
                None => self.event(self.now + 1000, Event::Device(n)),
            },
        }
    }

    /// A sick device gets on with it: it rots, or remembers a state to go back to.
    pub fn sicken(&mut self, device: Device) {
        let Some(d) = self.devices.get_mut(&device) else { return };
        if d.sickness.rot_anywhere > 0 && self.rng.one_in(d.sickness.rot_anywhere) {
            sickness::rot(d, &mut self.rng);
        }
        if d.sickness.rolls_back {
            self.snapshots.entry(device).or_default().perhaps_take(d, &mut self.rng);
        }
    }

    fn event(&mut self, at: u64, event: Event) {
        let n = self.next_event;
        self.next_event += 1;
        self.events.insert((at, n), event);
    }

    fn wake_model(&mut self, device: Device) {
        let Timing::Models(models) = &self.timing else { return };
        if let Some(at) = models.get(&device).and_then(|m| m.next_completion()) {
            let at = at.max(self.now);
            if self.model_wakes.get(&device).is_none_or(|planned| at < *planned) {
                self.model_wakes.insert(device, at);
                self.event(at, Event::Model(device));
            }
        }
    }

    fn happen(&mut self) {
        let Some(((at, _), event)) = self.events.pop_first() else { return };
        self.to(at);
        match event {
            Event::Device(n) => self.end_flight(n),
            Event::Beside(request) => self.give_up_beside(request),
            // One that an earlier one has overtaken: it would plan another, and they would never grow fewer.
            Event::Model(device) if self.model_wakes.get(&device) != Some(&at) => {}
            Event::Model(device) => {
                self.model_wakes.remove(&device);
                let mut done = Vec::new();
                if let Timing::Models(models) = &mut self.timing
                    && let Some(m) = models.get_mut(&device)
                {
                    m.advance(at, &mut done);
                }
                for n in done {
                    self.end_flight(n);
                }
                self.wake_model(device);
            }
        }
    }

    /// A device answers nothing from now on, or all that it still owes, in an order of chance, and everything again.
    pub fn hang(&mut self, device: Device, hangs: bool) {
        let Some(d) = self.devices.get_mut(&device) else { return };
        if d.hangs == hangs {
            return;
        }
        d.hangs = hangs;
        self.say(|| format!("{device} {}", if hangs { "HANGS" } else { "ANSWERS AGAIN" }));
        if !hangs {
            let mut owed: Vec<u64> = self.flights.iter().filter(|(_, f)| f.device == device).map(|(n, _)| *n).collect();
            owed.sort_unstable();
            for n in owed {
                let at = self.now + self.rng.within(1_000, 1_000_000);
                self.event(at, Event::Device(n));
            }
        }
    }

    /// What a device that has died still owes ends now, badly: another one is to have its name.
    pub fn end_all_of(&mut self, device: Device) {
        let mut owed: Vec<u64> = self.flights.iter().filter(|(_, f)| f.device == device).map(|(n, _)| *n).collect();
        owed.sort_unstable();
        owed.into_iter().for_each(|n| self.end_flight(n));
    }

    fn end_flight(&mut self, n: u64) {
        if self.flights.get(&n).is_some_and(|f| self.devices.get(&f.device).is_some_and(|d| d.hangs)) {
            return;
        }
        let Some(f) = self.flights.remove(&n) else { return };
        // Flights are numbered from 0, operations from 1.
        let result = match self.answers.remove(&n) {
            Some(answer) => answer,
            None if self.fail_operation == Some(n + 1) || self.member_fails(n, &f) => self.refuse(&f),
            None => self.perform(&f),
        };
        self.say(|| format!("  {} ended {}", f.io.0, if result.is_ok() { "well" } else { "badly" }));
        self.trace(f.io.0 << 1 | u64::from(result.is_ok()));
        if let Some(request) = beside::request_of(f.io) {
            self.ended_beside(request, result);
        } else if let Some(e) = &self.engine {
            e.complete(f.io, result);
        }
    }

    /// Whether the operation is the one of a member that is to fail.
    fn member_fails(&mut self, n: u64, f: &Flight) -> bool {
        let fails = self.fail_member.is_some_and(|(m, from)| f.device == Device::Member(m) && n >= from)
            && matches!(f.op, DeviceOp::Write { .. } | DeviceOp::Flush);
        if fails {
            self.failed_member = self.fail_member.take().map(|(m, _)| m);
        }
        fails
    }

    /// An operation fails. Of a write each sector is old or new; what a flush should have covered is not made durable by
    /// any later one.
    fn refuse(&mut self, f: &Flight) -> DeviceResult<SimBuf> {
        let Some(d) = self.devices.get_mut(&f.device) else { return Err(DeviceError::Gone) };
        for (sector, buf) in written(&f.op) {
            d.land(sector, &buf, Cut::BySector, &mut self.rng);
        }
        if let DeviceOp::Flush | DeviceOp::Write { reach: Reach::Durable, .. } = f.op {
            d.flush_failed(&mut self.rng);
        }
        let (device, io) = (f.device, f.io.0);
        self.say(|| format!("  {io} FAILS on {device}"));
        Err(DeviceError::Failed)
    }

    fn perform(&mut self, f: &Flight) -> DeviceResult<SimBuf> {
        let Some(d) = self.devices.get_mut(&f.device) else { return Err(DeviceError::Gone) };
        if d.dead {
            return Err(DeviceError::Gone);
        }
        match &f.op {
            DeviceOp::Read { offset, len, into } => {
                d.read += u64::from(*len);
                let sectors = u64::from(*len) / 512;
                if !d.readable(offset / 512, sectors) || d.fail_reads > 0 && self.rng.one_in(d.fail_reads) {
                    // Some of it is there, and some is not.
                    if let Some(into) = into {
                        into.fill(&SimBuf::cells(vec![Cell::Stamp(NEVER_WRITTEN); sectors as usize]));
                    }
                    return Err(DeviceError::Failed);
                }
                // Not in a start: a record that it did not see for once would be there again at the next.
                let from = match self.starting {
                    Some(_) => offset / 512,
                    None => sickness::read_comes_from(d, offset / 512, sectors, &mut self.rng),
                };
                let data = d.visible.read(from, sectors as usize);
                // Now and then one cannot.
                let Some(into) = into.as_ref().filter(|_| !f.io.0.is_multiple_of(5)) else { return Ok(Some(data)) };
                into.fill(&data);
                Ok(Some(into.clone()))
            }
            DeviceOp::Write { offset, bufs, reach } => {
                let sectors = bufs.iter().map(|b| b.sectors() as u64).sum();
                let fails = d.fail_writes > 0 && self.rng.one_in(d.fail_writes) || d.touches_dead(offset / 512, sectors);
                let Some(mut at) = sickness::write_lands(d, offset / 512, sectors, &mut self.rng) else {
                    bufs.iter().for_each(|b| sickness::lose(d, b));
                    return Ok(None);
                };
                // What makes it durable may be a flush of all, which may fail.
                let flush_fails = *reach == Reach::Durable && d.fail_flushes > 0 && self.rng.one_in(d.fail_flushes);
                for b in bufs.iter().filter_map(SimBuf::owned) {
                    let b = &b;
                    if fails {
                        d.land(at, b, Cut::BySector, &mut self.rng);
                    } else if *reach == Reach::Durable && !flush_fails && !d.sickness.lies {
                        d.write_durable(at, b.clone());
                    } else {
                        d.write(at, b.clone());
                    }
                    at += b.sectors() as u64;
                }
                if flush_fails {
                    d.flush_failed(&mut self.rng);
                }
                if fails || flush_fails { Err(DeviceError::Failed) } else { Ok(None) }
            }
            DeviceOp::Flush if d.fail_flushes > 0 && self.rng.one_in(d.fail_flushes) => {
                d.flush_failed(&mut self.rng);
                if let Device::Backing(volume) = f.device {
                    self.failures.add(volume, self.now);
                    self.oracles.entry(volume).and_modify(Oracle::disk_failed);
                }
                Err(DeviceError::Failed)
            }
            DeviceOp::Flush => {
                if !d.sickness.lies {
                    d.flushed(f.mark);
                }
                Ok(None)
            }
            DeviceOp::Discard { offset, len } | DeviceOp::WriteZeroes { offset, len } => {
                let fails = d.fail_writes > 0 && self.rng.one_in(d.fail_writes);
                if fails || d.touches_dead(offset / 512, len / 512) {
                    d.land(offset / 512, &SimBuf::zeroes(*len as usize), Cut::BySector, &mut self.rng);
                    return Err(DeviceError::Failed);
                }
                d.write(offset / 512, SimBuf::zeroes(*len as usize));
                Ok(None)
            }
        }
    }

    fn reply(&mut self, id: u64, result: Result<Vec<SimBuf>, RequestError>) {
        let Some(a) = self.asked.remove(&id) else {
            self.fail(format!("request {id} was answered twice"));
            return;
        };
        self.reads.remove(&(a.submitted, id));
        self.trace(id << 1 | u64::from(result.is_ok()));
        let error = result.as_ref().err().copied();
        self.say(|| format!("request {id} ended {}", error.map_or("well".into(), |e| format!("with {e:?}"))));
        let is_told = matches!(a.kind, AskedKind::Flush) && error.is_some() && self.failures.tell_by(a.volume, a.at);
        let is_late = self.ends && a.beside && error == Some(RequestError::NotServed);
        let is_write = matches!(a.kind, AskedKind::Write { .. });
        let is_refused = self.refuses_writes && is_write && error == Some(RequestError::Io);
        // What is dirty is in the cache, whatever has become of the disk; unless that is not there at all.
        let is_had = matches!(a.kind, AskedKind::Read { sector, .. } if a.dirty && self.is_dirty(a.volume, sector));
        let meets_dead = error == Some(RequestError::Io) && (a.dead || self.is_dead(a.volume, a.about));
        let may_fail = (self.failing.contains(&a.volume) || meets_dead) && !(is_had && error == Some(RequestError::Io));
        if error.is_some() && !self.errors_allowed && !may_fail && !is_told && !is_late && !is_refused {
            self.fail(format!("request {id} failed with {error:?}, though no more is broken than the pool bears"));
        }
        let fails_after_a_loss = error == Some(RequestError::Io) && self.two_lost.is_some_and(|at| a.at > at);
        if let AskedKind::Read { sector, sectors } = a.kind
            && fails_after_a_loss
            && !a.gone
            && !self.is_gone(a.volume, sector, sectors)
            && !self.lacks_a_page()
        {
            self.fail(format!("request {id} failed, though nothing that it asked for is lost"));
        }
        match (&a.kind, result) {
            (AskedKind::Read { sector, sectors }, Ok(bufs)) => {
                let bufs = self.as_the_client_has_it(&a, bufs);
                self.check_read(&a, *sector, *sectors, &bufs);
            }
            (AskedKind::Write { write, durable }, result) => {
                let ok = result.is_ok();
                let record = self.oracles.get(&a.volume).and_then(|o| o.record(*write)).cloned();
                if let Some(o) = self.oracles.get_mut(&a.volume) {
                    o.end(*write, ok, ok && *durable);
                }
                if let Some(r) = record.filter(|_| ok && self.count_copies) {
                    // One that a member left under, or joined, may rest on the other copy, as what was acknowledged just
                    // before.
                    let rests = a.members.have_changed(self.members(), !*durable);
                    self.copies_of(a.volume, r.sector, r.sectors, *durable, rests);
                }
            }
            (AskedKind::Flush, Ok(_)) => {
                let covered = self.oracles.get_mut(&a.volume).map(|o| o.flushed(a.submitted)).unwrap_or_default();
                // What lacked a copy when it was asked for may have been copied since: that copy is for the next one.
                let rests = a.lacking || a.members.have_changed(self.members(), false) || self.lacks_copies();
                // In the next life that is told, too; but not where this one ended before it had noticed, and written it down.
                if self.count_copies || self.two_lost.is_some() && self.two_lost_here {
                    for (sector, sectors) in covered {
                        self.copies_of(a.volume, sector, sectors, true, rests);
                    }
                }
            }
            (AskedKind::Flush, Err(_)) => {
                if let Some(o) = self.oracles.get_mut(&a.volume) {
                    o.flush_failed(a.submitted);
                }
            }
            _ => {}
        }
        if let Some(lent) = &a.lent {
            lent.give_back();
        }
        self.ended.push(Ended { id, took: self.now - a.at, error });
    }

    /// A second cache device is lost.
    pub fn lose_a_second(&mut self, device: Device) {
        if let Some(d) = self.devices.get_mut(&device) {
            d.dead = true;
        }
        (self.two_lost, self.two_lost_here) = (Some(self.now), true);
        (self.errors_allowed, self.count_copies) = (true, false);
    }

    /// Somebody is told that acknowledged writes to a volume may be lost; whether there is a flush of its disk that failed, of which nobody was told.
    pub fn is_told(&mut self, volume: u16) -> bool {
        self.failures.tell(volume)
    }

    /// The engine says that all it has acknowledged is durable; but for volumes a flush of whose disk has failed, of which the next FLUSH tells.
    pub fn all_is_durable(&mut self) {
        for (_, o) in self.oracles.iter_mut().filter(|(volume, _)| !self.failures.is_news(**volume)) {
            let now = o.tick();
            o.flushed(now);
        }
    }

    /// Volumes a flush of whose disk has failed from `time` on, of which somebody may still have to be told.
    #[must_use]
    pub fn failed_since(&self, time: u64) -> BTreeSet<u16> {
        self.failures.since(time)
    }

    /// Tells a story's narrator.
    pub fn note(&mut self, what: &str) {
        self.say(|| what.to_string());
    }

    /// The changes in flight, in the order of their submission: the device, the first sector, and what is written.
    #[must_use]
    pub fn in_flight(&self) -> Vec<(Device, u64, SimBuf)> {
        let mut flights: Vec<(&u64, &Flight)> = self.flights.iter().collect();
        flights.sort_by_key(|f| f.0);
        flights
            .into_iter()
            .filter(|(_, f)| changes(&f.op).is_some())
            .map(|(_, f)| {
                let parts = written(&f.op);
                let start = parts.first().map_or(0, |p| p.0);
                (f.device, start, SimBuf::join(&parts.into_iter().filter_map(|p| p.1.owned()).collect::<Vec<_>>()))
            })
            .collect()
    }

    /// From now on the operations that `which` says yes to do not end until they are let go.
    pub fn hold_back(&mut self, which: impl Fn(Device, &DeviceOp<SimBuf>) -> bool + 'static) {
        self.holds = Some(Box::new(which));
        self.holds_answers = false;
    }

    /// As [`World::hold_back`], for operations that are done at once: a read returns what was there when it was
    /// submitted, however late its answer comes.
    pub fn hold_answers(&mut self, which: impl Fn(Device, &DeviceOp<SimBuf>) -> bool + 'static) {
        self.holds = Some(Box::new(which));
        self.holds_answers = true;
    }

    /// How many operations are held back.
    #[must_use]
    pub fn held_back(&self) -> usize {
        self.held.len()
    }

    /// Nothing is held back any more; what was ends soon, in the order of its submission.
    pub fn let_go(&mut self) {
        self.holds = None;
        for n in std::mem::take(&mut self.held) {
            self.event(self.now + 1_000, Event::Device(n));
        }
    }

    /// What is in flight takes so much longer: what is submitted from now on overtakes it.
    pub fn hold(&mut self, by: u64) {
        for ((at, n), event) in std::mem::take(&mut self.events) {
            let late = if matches!(event, Event::Device(_)) { by } else { 0 };
            self.events.insert((at + late, n), event);
        }
    }

    /// Device operations under way.
    #[must_use]
    pub fn flying(&self) -> usize {
        self.flights.len()
    }

    /// Whether a client's request has not been answered yet.
    #[must_use]
    pub fn waits(&self, request: u64) -> bool {
        self.asked.contains_key(&request)
    }

    /// Whether a device operation is under way.
    #[must_use]
    pub fn busy(&self) -> bool {
        !self.flights.is_empty()
    }
}

/// The bytes that an operation changes.
fn changes(op: &DeviceOp<SimBuf>) -> Option<(u64, u64)> {
    match op {
        DeviceOp::Write { offset, bufs, .. } => Some((*offset, offset + bufs.iter().map(|b| b.len() as u64).sum::<u64>())),
        DeviceOp::Discard { offset, len } | DeviceOp::WriteZeroes { offset, len } => Some((*offset, offset + len)),
        DeviceOp::Read { .. } | DeviceOp::Flush => None,
    }
}

/// What an operation writes, by sector.
fn written(op: &DeviceOp<SimBuf>) -> Vec<(u64, SimBuf)> {
    match op {
        DeviceOp::Write { offset, bufs, .. } => {
            let mut at = offset / 512;
            bufs.iter()
                .map(|b| {
                    let s = at;
                    at += b.sectors() as u64;
                    (s, b.clone())
                })
                .collect()
        }
        DeviceOp::Discard { offset, len } | DeviceOp::WriteZeroes { offset, len } => {
            vec![(offset / 512, SimBuf::zeroes(*len as usize))]
        }
        DeviceOp::Read { .. } | DeviceOp::Flush => Vec::new(),
    }
}
