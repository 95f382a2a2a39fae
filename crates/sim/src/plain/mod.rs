//! A second oracle that knows nothing of the engine, nor of the first one: real bytes, a block device as anybody knows it,
//! and a plain array of what it should hold.
//!
//! Several clients, each with its own part of the volume and one request at a time, read, write, flush, discard and zero
//! through power cuts and daemon deaths, in every mode, while modes are switched. Then the volume is detached, and the
//! disk alone is the array; it is attached again, used, and detached once more.

pub mod bytes;
pub mod media;
pub mod model;

use crate::rng::Rng;
use crate::swarm::catch_panics;
use crate::torture;
use bytes::Bytes;
use headpond_engine::create::{PoolPlan, newest_superblock, newest_witness, plan};
use headpond_engine::election::{WitnessVote, elect};
use headpond_engine::format::{Layout, Mode, SUPERBLOCK_BYTES, WITNESS_BYTES};
use headpond_engine::{
    Buf, Command, CommandError, CommandId, Degraded, Device, DeviceOp, Effect, Engine, IoId, NewVolume, Reply, Request,
    RequestId, Settings,
};
use media::Media;
use model::{Change, Model, bytes_of};
use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;

const MILLISECOND: u64 = 1_000_000;
/// Nothing takes so long.
const ENDLESS: u64 = 600_000 * MILLISECOND;

/// What a run did.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// Requests that ended.
    pub requests: u64,
    /// Power cuts.
    pub power_cuts: u64,
    /// Daemon deaths.
    pub deaths: u64,
    /// Modes switched.
    pub switches: u64,
    /// Sectors compared with the array.
    pub compared: u64,
    /// Sums up all that happened.
    pub hash: u64,
    /// What went wrong, if anything did.
    pub violation: Option<String>,
}

/// Many runs.
#[derive(Clone, Debug, Default)]
pub struct Summary {
    /// Runs.
    pub seeds: u64,
    /// Their sum.
    pub total: Outcome,
    /// Seeds that failed, with what went wrong.
    pub failures: Vec<(u64, String)>,
}

impl Summary {
    /// Adds a run.
    pub fn add(&mut self, seed: u64, o: &Outcome) {
        self.seeds += 1;
        let t = &mut self.total;
        t.requests += o.requests;
        t.power_cuts += o.power_cuts;
        t.deaths += o.deaths;
        t.switches += o.switches;
        t.compared += o.compared;
        self.failures.extend(o.violation.iter().map(|v| (seed, v.clone())));
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let t = &self.total;
        write!(
            f,
            "{} seeds against a plain array: {} requests, {} power cuts, {} daemon deaths, {} modes switched, {} sectors compared",
            self.seeds, t.requests, t.power_cuts, t.deaths, t.switches, t.compared
        )
    }
}

/// Tells what happens.
pub type Narrator = Box<dyn FnMut(String)>;

/// Runs a seed. Two runs of one seed are equal.
#[must_use]
pub fn run_seed(seed: u64, narrator: Option<Narrator>) -> Outcome {
    let mut ended = Outcome::default();
    let caught = catch_panics(|| {
        let mut run = Run::of(seed, narrator);
        let result = run.all();
        ended = Outcome { violation: result.err(), ..run.outcome };
        torture::Outcome::default()
    });
    Outcome { violation: caught.violation.or(ended.violation.take()), ..ended }
}

/// A client: its own part of the volume, and what it waits for.
struct Client {
    part: Range<usize>,
    waits: Option<(u64, Doing)>,
    /// Where its stream goes on.
    cursor: usize,
}

enum Doing {
    Read(Range<usize>),
    Change(Change, bool),
    Flush(u64),
}

struct Flight {
    io: IoId,
    device: Device,
    op: DeviceOp<Bytes>,
    mark: u64,
}

struct Run {
    rng: Rng,
    now: u64,
    engine: Option<Engine<Bytes>>,
    media: BTreeMap<Device, Media>,
    flights: BTreeMap<u64, Flight>,
    /// When each flight ends.
    ends: BTreeMap<(u64, u64), ()>,
    next: u64,
    commands: BTreeMap<u64, Result<(), CommandError>>,
    model: Model,
    sectors: usize,
    phase: u8,
    mode: Mode,
    clients: Vec<Client>,
    next_tag: u64,
    settings: Settings,
    pool: PoolPlan,
    outcome: Outcome,
    /// Set by an answer that is wrong.
    wrong: Option<String>,
    narrator: Option<Narrator>,
}

impl Run {
    fn of(seed: u64, narrator: Option<Narrator>) -> Self {
        let mut rng = Rng::new(seed ^ 0x706c_6169_6e00);
        let members = *rng.pick(&[1, 2, 2, 2, 3]);
        let member_bytes = (2 << 20) + rng.within(10, 32) * (64 << 10);
        let pool = PoolPlan {
            name: "plain".into(),
            id: [3; 16],
            key: rng.next(),
            copies: if members == 1 { 1 } else { 2 },
            unit: *rng.pick(&[512, 512, 4096]),
            segment_bytes: 64 << 10,
            intent_pages: 1,
            witness: true,
            members: (0..members).map(|m| ([m + 1; 16], member_bytes)).collect(),
        };
        let settings = Settings {
            stream_bytes: *rng.pick(&[32 << 10, 256 << 10]),
            large_bytes: *rng.pick(&[16 << 10, 64 << 10]),
            admit_bytes: *rng.pick(&[8 << 10, 64 << 10]),
            zeroes_bytes: *rng.pick(&[8 << 10, 64 << 10]),
            destage_percent: *rng.pick(&[10, 50]),
            idle_ns: *rng.pick(&[MILLISECOND, 50 * MILLISECOND, 1 << 50]),
            chunk_runs: *rng.pick(&[8, 128]),
            checkpoint_bytes: *rng.pick(&[256 << 10, 8 << 20]),
            pages_at_start: *rng.pick(&[0, 16]),
            record_bytes: *rng.pick(&[8 << 10, 16 << 10, 32 << 10]),
            max_fragments: *rng.pick(&[32, 4096]),
            route: rng.one_in(3),
            degraded: *rng.pick(&[Degraded::WriteThrough, Degraded::Continue]),
            ..Settings::default()
        };
        let sectors = rng.within(1500, 6000) as usize;
        let clients = *rng.pick(&[1, 3, 6]);
        // Borders between the clients' parts lie anywhere: blocks are shared.
        let mut borders: Vec<usize> = (1..clients).map(|_| rng.within(40, sectors as u64 - 40) as usize).collect();
        borders.extend([0, sectors]);
        borders.sort_unstable();
        let parts = borders.windows(2).filter(|w| w[0] < w[1]).map(|w| w[0]..w[1]);
        Self {
            now: 0,
            engine: None,
            media: BTreeMap::new(),
            flights: BTreeMap::new(),
            ends: BTreeMap::new(),
            next: 0,
            commands: BTreeMap::new(),
            model: Model::new(sectors, first_tag),
            sectors,
            phase: *rng.pick(&[0, 0, 7, 4]),
            mode: *rng.pick(&[Mode::WriteBack, Mode::WriteBack, Mode::WriteThrough, Mode::WriteAround, Mode::PassThrough]),
            clients: parts.map(|part| Client { cursor: part.start, part, waits: None }).collect(),
            next_tag: 1 << 20,
            settings,
            pool,
            outcome: Outcome::default(),
            wrong: None,
            narrator,
            rng,
        }
    }

    fn say(&mut self, what: impl FnOnce() -> String) {
        if let Some(n) = &mut self.narrator {
            n(format!("{:>12.3} ms  {}", self.now as f64 / 1e6, what()));
        }
    }

    fn trace(&mut self, n: u64) {
        self.outcome.hash = (self.outcome.hash.rotate_left(11) ^ n).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }

    fn all(&mut self) -> Result<(), String> {
        self.make()?;
        self.attach(1)?;
        for _ in 0..self.rng.within(1, 5) {
            let requests = self.rng.within(1, 200);
            self.load(requests, false)?;
            let mut again = true;
            while again {
                let power = self.rng.one_in(2);
                self.crash(power);
                again = self.rng.one_in(4);
                let id = self.start()?;
                if again {
                    for _ in 0..self.rng.within(1, 60) {
                        self.step()?;
                    }
                } else {
                    self.finish(id, "start")?;
                }
            }
            // Often clients go on before anybody has looked.
            if self.rng.one_in(2) {
                self.read_all()?;
            }
        }
        self.load(100, true)?;
        self.detach()?;
        self.attach(2)?;
        self.load(60, true)?;
        self.detach()
    }

    fn make(&mut self) -> Result<(), String> {
        let (_, writes) = plan(&self.pool).map_err(|e| e.to_string())?;
        let sizes: Vec<u64> = self.pool.members.iter().map(|m| m.1).collect();
        for (m, size) in sizes.iter().enumerate() {
            let mut content = vec![0; *size as usize];
            for w in writes.iter().filter(|w| w.member == Some(m as u8)) {
                content[w.offset as usize..][..w.bytes.len()].copy_from_slice(&w.bytes);
            }
            self.media.insert(Device::Member(m as u8), Media::new(content));
        }
        let mut content = vec![0; 64 << 10];
        for w in writes.iter().filter(|w| w.member.is_none()) {
            content[w.offset as usize..][..w.bytes.len()].copy_from_slice(&w.bytes);
        }
        self.media.insert(Device::Witness, Media::new(content));
        let disk = (0..self.sectors).flat_map(|s| bytes_of(first_tag(s))).collect();
        self.media.insert(Device::Backing(0), Media::new(disk));
        let id = self.start()?;
        self.finish(id, "start")
    }

    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    /// Starts a daemon, as a host does: reads the superblocks and the witness, and holds the election.
    fn start(&mut self) -> Result<u64, String> {
        let mut found = Vec::new();
        for (device, m) in &self.media {
            if matches!(device, Device::Member(_)) && !m.gone {
                let tail = Layout::tail_of(m.visible.len() as u64);
                let places = [0, SUPERBLOCK_BYTES, tail, tail + SUPERBLOCK_BYTES];
                let slots = places.map(|at| &m.visible[at as usize..(at + SUPERBLOCK_BYTES) as usize]);
                found.push(newest_superblock(&slots).map_err(|e| format!("{device} has no superblock: {e}"))?);
            }
        }
        let w = &self.media[&Device::Witness].visible;
        let slots = [0, WITNESS_BYTES].map(|at| &w[at as usize..(at + WITNESS_BYTES) as usize]);
        let vote = newest_witness(&slots, self.pool.id).map_or(WitnessVote::Missing, WitnessVote::Found);
        let election = elect(&found, vote).map_err(|e| format!("the pool does not start: {e}"))?;
        let id = self.number();
        self.engine = Some(Engine::start(self.now, self.settings.clone(), election, &[0], CommandId(id)));
        Ok(id)
    }

    fn command(&mut self, command: Command) -> u64 {
        let id = self.number();
        self.say(|| format!("command {id}: {command:?}"));
        if let Some(e) = &self.engine {
            e.command(CommandId(id), command);
        }
        id
    }

    fn finish(&mut self, id: u64, what: &str) -> Result<(), String> {
        let since = self.now;
        loop {
            if let Some(result) = self.commands.remove(&id) {
                return result.map_err(|e| format!("{what} failed: {e}"));
            }
            self.step()?;
            if self.now > since + ENDLESS {
                return Err(format!("{what} does not end"));
            }
        }
    }

    fn attach(&mut self, identity: u8) -> Result<(), String> {
        let volume = NewVolume {
            number: 0,
            id: [identity; 16],
            name: "v".into(),
            sectors: self.sectors as u64,
            phase: self.phase,
            mode: self.mode,
            backing: "disk".into(),
        };
        let id = self.command(Command::Attach(volume));
        self.finish(id, "attach")
    }

    /// The volume is let go of; its disk alone, after a power cut even, is the array.
    fn detach(&mut self) -> Result<(), String> {
        self.read_all()?;
        let id = self.command(Command::Detach { volume: 0, give_up_lost: false });
        self.finish(id, "detach")?;
        let disk = &self.media[&Device::Backing(0)];
        for (n, sector) in disk.durable().chunks(512).enumerate() {
            self.model.read(n, sector).map_err(|e| format!("on the detached disk {e}"))?;
            if sector != &disk.visible[n * 512..(n + 1) * 512] {
                return Err(format!("sector {n} of the detached disk is not flushed"));
            }
        }
        self.outcome.compared += self.sectors as u64;
        Ok(())
    }

    /// What the engine wants done; then the next thing happens.
    fn step(&mut self) -> Result<(), String> {
        self.pump();
        let timer = self.engine.as_ref().and_then(Engine::next_timer);
        let end = self.ends.first_key_value().map(|(k, ())| *k);
        match (end, timer) {
            (Some((at, n)), t) if t.is_none_or(|t| at <= t) => {
                self.ends.remove(&(at, n));
                self.pass(at);
                self.land(n);
            }
            (_, Some(t)) => self.pass(t),
            _ => return Err("nothing can happen any more".into()),
        }
        self.pump();
        self.wrong.take().map_or(Ok(()), Err)
    }

    fn pass(&mut self, at: u64) {
        self.now = self.now.max(at);
        if let Some(e) = &self.engine {
            e.advance(self.now);
        }
    }

    /// A device operation ends.
    fn land(&mut self, n: u64) {
        let Some(f) = self.flights.remove(&n) else { return };
        let Some(m) = self.media.get_mut(&f.device) else { return };
        let result = m.complete(&f.op, f.mark);
        self.trace(f.io.0);
        if let Some(e) = &self.engine {
            e.complete(f.io, result);
        }
    }

    fn pump(&mut self) {
        while let Some(effect) = self.engine.as_ref().and_then(Engine::poll) {
            match effect {
                Effect::Submit { io, device, op } => {
                    let n = self.number();
                    let mark = self.media.get(&device).map_or(0, Media::mark);
                    let slow = *self.rng.pick(&[1, 1, 1, 1, 1, 1, 1, 30]);
                    let at = self.now + self.rng.within(5_000, 300_000) * slow;
                    self.flights.insert(n, Flight { io, device, op, mark });
                    self.ends.insert((at, n), ());
                }
                Effect::Reply { id, result, .. } => self.answer(id.0, result),
                Effect::Done { id, result } => drop(self.commands.insert(id.0, result)),
            }
        }
    }

    fn answer(&mut self, id: u64, result: Reply<Bytes>) {
        self.say(|| format!("request {id} is answered {}", if result.is_ok() { "well" } else { "badly" }));
        self.trace(id << 1 | u64::from(result.is_ok()));
        self.outcome.requests += 1;
        let client = self.clients.iter_mut().find(|c| c.waits.as_ref().is_some_and(|w| w.0 == id));
        let Some((_, doing)) = client.and_then(|c| c.waits.take()) else {
            self.wrong = Some(format!("request {id} was answered, and nobody had asked"));
            return;
        };
        match (doing, result) {
            (_, Err(e)) => self.wrong = Some(format!("request {id} failed with {e:?}, and nothing is broken")),
            (Doing::Read(range), Ok(bufs)) => self.compare(range, &Bytes::join(&bufs)),
            (Doing::Change(change, durable), Ok(_)) => {
                self.model.acknowledged(&change);
                if durable {
                    let now = self.model.tick();
                    self.model.flushed(change.range, now);
                }
            }
            (Doing::Flush(submitted), Ok(_)) => self.model.flushed(0..self.sectors, submitted),
        }
    }

    fn compare(&mut self, range: Range<usize>, data: &Bytes) {
        if data.get().len() != range.len() * 512 {
            self.wrong = Some(format!("a read of {} sectors returned {} bytes", range.len(), data.get().len()));
            return;
        }
        self.outcome.compared += range.len() as u64;
        for (s, bytes) in range.zip(data.get().chunks(512)) {
            self.trace(u64::from_le_bytes(bytes[..8].try_into().unwrap_or_default()));
            if let Err(what) = self.model.read(s, bytes) {
                self.wrong.get_or_insert(what);
            }
        }
    }

    /// Clients ask and are answered, so many times; then, if that is wanted, they wait for their last answers.
    fn load(&mut self, requests: u64, to_the_end: bool) -> Result<(), String> {
        let mut asked = 0;
        let since = self.now;
        while asked < requests {
            for c in 0..self.clients.len() {
                if self.clients[c].waits.is_none() && self.rng.one_in(2) {
                    self.ask(c);
                    asked += 1;
                }
            }
            if self.rng.one_in(400) {
                let modes = [Mode::WriteBack, Mode::WriteBack, Mode::WriteThrough, Mode::WriteAround, Mode::PassThrough];
                let mode = *self.rng.pick(&modes);
                self.command(Command::SetMode { volume: 0, mode });
                self.outcome.switches += 1;
            }
            self.step()?;
            if self.now > since + ENDLESS {
                return Err("requests do not end".into());
            }
        }
        while to_the_end && self.clients.iter().any(|c| c.waits.is_some()) {
            self.step()?;
            if self.now > since + ENDLESS {
                return Err("requests do not end".into());
            }
        }
        Ok(())
    }

    /// A client's next request, within its part.
    fn ask(&mut self, client: usize) {
        let part = self.clients[client].part.clone();
        let longest = *self.rng.pick(&[8, 8, 32, 256]);
        let count = if self.rng.one_in(3) { 8 } else { self.rng.within(1, longest) as usize }.min(part.len());
        let mut start = part.start + self.rng.below((part.len() - count) as u64 + 1) as usize;
        // Few places, so that requests meet.
        if self.rng.one_in(2) {
            start = part.start + (start - part.start).min(64).min(part.len() - count);
        }
        if self.rng.one_in(3) {
            let goes_on = self.clients[client].cursor;
            start = if goes_on + count <= part.end { goes_on } else { part.start };
            self.clients[client].cursor = start + count;
        }
        let range = start..start + count;
        let (sector, sectors) = (start as u64, count as u64);
        let durable = self.rng.one_in(8);
        let (doing, request) = match self.rng.below(16) {
            0..=6 => {
                let tag = self.next_tag;
                self.next_tag += count as u64;
                let change = Change { range, tag };
                let data = change.range.clone().flat_map(|s| bytes_of(change.tag_of(s))).collect();
                (Doing::Change(change, durable), Request::Write { sector, data: Bytes::of(data), fua: durable })
            }
            7..=11 => (Doing::Read(range), Request::Read { sector, sectors: sectors as u32, into: None }),
            12 | 13 => (Doing::Flush(self.model.tick()), Request::Flush),
            14 => {
                let change = Change { range, tag: 0 };
                (Doing::Change(change, durable), Request::WriteZeroes { sector, sectors, fua: durable })
            }
            _ => (Doing::Change(Change { range: self.inner(range), tag: 0 }, false), Request::Discard { sector, sectors }),
        };
        let id = self.number();
        self.say(|| match &request {
            Request::Write { sector, data, fua } => format!("request {id}: write {sector} +{}, durable {fua}", data.len() / 512),
            other => format!("request {id}: {other:?}"),
        });
        self.clients[client].waits = Some((id, doing));
        if let Some(e) = &self.engine {
            e.request(0, RequestId(id), request);
        }
    }

    /// What a discard zeroes: whole blocks, of eight sectors from the phase on.
    fn inner(&self, range: Range<usize>) -> Range<usize> {
        let phase = usize::from(self.phase);
        let up = |s: usize| (s + 8 - phase).div_ceil(8) * 8 + phase - 8;
        let down = |s: usize| ((s + 8 - phase) / 8 * 8 + phase).saturating_sub(8);
        let (start, end) = (up(range.start), down(range.end));
        start..end.max(start)
    }

    /// Everything is read and compared.
    fn read_all(&mut self) -> Result<(), String> {
        self.load(0, true)?;
        let whole = self.sectors;
        // Whoever is first asks for all of it, a piece at a time.
        for start in (0..whole).step_by(100) {
            let range = start..(start + 100).min(whole);
            let id = self.number();
            let request = Request::Read { sector: start as u64, sectors: range.len() as u32, into: None };
            self.clients[0].waits = Some((id, Doing::Read(range)));
            if let Some(e) = &self.engine {
                e.request(0, RequestId(id), request);
            }
            self.load(0, true)?;
        }
        Ok(())
    }

    fn crash(&mut self, power: bool) {
        self.say(|| if power { "POWER CUT" } else { "THE DAEMON IS KILLED" }.into());
        self.engine = None;
        self.commands.clear();
        self.ends.clear();
        let flights: Vec<Flight> = std::mem::take(&mut self.flights).into_values().collect();
        for c in &mut self.clients {
            if let Some((_, Doing::Change(change, _))) = c.waits.take() {
                self.model.interrupted(&change);
            }
        }
        if power {
            self.outcome.power_cuts += 1;
            for (device, m) in &mut self.media {
                let own: Vec<_> = flights.iter().filter(|f| f.device == *device).map(|f| f.op.clone()).collect();
                m.cut(&own, &mut self.rng);
            }
            self.model.power_cut();
        } else {
            self.outcome.deaths += 1;
            for f in flights {
                if let Some(m) = self.media.get_mut(&f.device) {
                    m.orphan(&f.op, &mut self.rng);
                }
            }
        }
    }
}

/// What a sector of the disk holds at first.
fn first_tag(sector: usize) -> u64 {
    (1 << 40) + sector as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_volume_is_a_plain_block_device_through_crashes_modes_and_detaches() {
        let mut sum = Summary::default();
        for seed in 0..200 {
            sum.add(seed, &run_seed(seed, None));
        }
        assert_eq!(sum.failures, []);
        assert!(sum.total.power_cuts > 200 && sum.total.deaths > 200 && sum.total.switches > 50, "{sum}");
    }

    #[test]
    fn a_seed_is_the_same_twice() {
        for seed in 1000..1010 {
            assert_eq!(run_seed(seed, None).hash, run_seed(seed, None).hash);
        }
    }

    #[test]
    fn a_discard_rounds_inwards_on_the_grid() {
        let mut run = Run::of(1, None);
        run.phase = 0;
        assert_eq!(run.inner(0..8), 0..8);
        assert_eq!(run.inner(1..24), 8..24);
        assert!(run.inner(3..8).is_empty());
        run.phase = 7;
        assert_eq!(run.inner(0..16), 7..15);
        assert_eq!(run.inner(7..15), 7..15);
        assert!(run.inner(0..14).is_empty());
    }
}
