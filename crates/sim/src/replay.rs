//! A block trace replayed in virtual time: against a bare modelled disk, and against Headpond over the same disk.
//!
//! The format is the csv that CloudPhysics' traces are published in: version, time in seconds, SCSI operation in hex,
//! bytes, first sector of 512 bytes. Requests that share a second are spread evenly over it.

use crate::modelled::Modelled;
use crate::models::rotating::RotatingParams;
use crate::models::ssd::SsdParams;
use crate::models::{RotatingDisk, SECOND};
use crate::target::{Answer, Ask, Bare, Target};
use crate::world::{Violation, World};
use headpond_engine::format::Mode;
use headpond_engine::stats::{Bypass, VolumeStats};
use headpond_engine::{Device, Settings};
use std::collections::BTreeMap;
use std::fmt;
use std::io::BufRead;

/// A request of a trace.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Traced {
    /// When it came, in nanoseconds from the trace's beginning.
    pub at: u64,
    /// It writes; else it reads.
    pub writes: bool,
    /// First sector.
    pub sector: u64,
    /// Sectors, at least one.
    pub sectors: u64,
}

/// When requests are sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Pace {
    /// As in the trace, whatever has been answered by then; its times are taken as this many percent of what they say.
    Open {
        /// 100 keeps the trace's times, 400 makes it four times as long.
        percent: u64,
    },
    /// As many as this wait for their answer at any time.
    Closed {
        /// How many.
        depth: usize,
    },
}

/// How a trace is replayed.
#[derive(Clone, Debug)]
pub struct Options {
    /// When requests are sent.
    pub pace: Pace,
    /// Bytes of each of the two cache devices.
    pub cache_bytes: u64,
    /// What the cache devices are.
    pub ssd: SsdParams,
    /// What the disk is.
    pub disk: RotatingParams,
    /// The grid's phase, 0 to 7; the most frequent first sector modulo 8 if not given.
    pub phase: Option<u8>,
    /// Only the trace's writes.
    pub writes_only: bool,
    /// Engine settings.
    pub settings: Settings,
    /// What chance there is follows from it.
    pub seed: u64,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            pace: Pace::Open { percent: 100 },
            cache_bytes: 1 << 30,
            ssd: SsdParams::throttled(12_000, 500_000_000),
            disk: RotatingParams::nearline_7200(),
            phase: None,
            writes_only: false,
            settings: Settings::default(),
            seed: 1,
        }
    }
}

/// Why a trace could not be replayed.
#[derive(Debug)]
pub enum ReplayError {
    /// It could not be read.
    Read(std::io::Error),
    /// A line is not what it should be.
    Line(usize, &'static str),
    /// There is no request in it.
    Empty,
    /// The cache cannot be made like that, or something happened that must not.
    Failed(String),
}

impl fmt::Display for ReplayError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ReplayError::Read(e) => write!(f, "The trace could not be read: {e}."),
            ReplayError::Line(n, what) => write!(
                f,
                "Line {n} of the trace is not understood: {what}. A line is version, time in s, operation (28 or 2a), bytes, first sector."
            ),
            ReplayError::Empty => f.write_str("The trace holds no request."),
            ReplayError::Failed(what) => write!(f, "The replay failed: {what}."),
        }
    }
}

impl std::error::Error for ReplayError {}

impl From<Violation> for ReplayError {
    fn from(v: Violation) -> Self {
        ReplayError::Failed(v.0)
    }
}

/// How long requests took.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Times {
    /// How many.
    pub requests: u64,
    /// Sum, in nanoseconds.
    pub total_ns: u64,
    /// The middle one.
    pub median_ns: u64,
    /// One in a hundred took at least as long.
    pub p99_ns: u64,
}

impl Times {
    fn of(mut all: Vec<u64>) -> Self {
        all.sort_unstable();
        let at = |percent: usize| all.get((all.len() * percent / 100).min(all.len().saturating_sub(1))).copied().unwrap_or(0);
        Self { requests: all.len() as u64, total_ns: all.iter().sum(), median_ns: at(50), p99_ns: at(99) }
    }

    /// The mean, in nanoseconds.
    #[must_use]
    pub fn mean_ns(&self) -> u64 {
        self.total_ns / self.requests.max(1)
    }
}

impl fmt::Display for Times {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ms = |ns: u64| ns as f64 / 1e6;
        write!(
            f,
            "{:>7} requests, mean {:>9.3} ms, median {:>9.3} ms, p99 {:>10.3} ms",
            self.requests,
            ms(self.mean_ns()),
            ms(self.median_ns),
            ms(self.p99_ns)
        )
    }
}

/// Reads and writes of one replay.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Side {
    /// Reads.
    pub reads: Times,
    /// Writes.
    pub writes: Times,
    /// Virtual time from the first request to the last answer, in nanoseconds.
    pub took_ns: u64,
}

impl Side {
    fn total_ns(&self) -> u64 {
        self.reads.total_ns + self.writes.total_ns
    }
}

/// What a replay showed.
#[derive(Clone, Debug)]
pub struct ReplayResult {
    /// The disk alone.
    pub bare: Side,
    /// The disk behind Headpond.
    pub cached: Side,
    /// The grid's phase.
    pub phase: u8,
    /// Requests that do not begin and end on a block of phase 0.
    pub unaligned: u64,
    /// What became of the requests.
    pub stats: VolumeStats,
    /// Reads of the disk.
    pub disk_reads: u64,
    /// Reads of the disk that lie in no read that a client was waiting for: what absorbing writes caused. None, ever.
    pub unasked_disk_reads: u64,
    /// Pieces beyond the first of their block, at the end.
    pub fragments: u64,
    /// Blocks dirty at the end.
    pub dirty_blocks: u64,
    /// Bytes written to the cache devices.
    pub member_bytes: u64,
    /// Copies of dirty data.
    pub copies: u64,
}

impl ReplayResult {
    /// The requests' time behind Headpond, by their time on the bare disk.
    #[must_use]
    pub fn ratio(&self) -> f64 {
        self.cached.total_ns() as f64 / self.bare.total_ns().max(1) as f64
    }

    /// Bytes written to the cache devices, by those that were taken in: each copy of what was absorbed, and what was
    /// admitted.
    #[must_use]
    pub fn write_amplification(&self) -> f64 {
        self.member_bytes as f64 / (self.copies * self.stats.absorbed.bytes + self.stats.admitted.bytes).max(1) as f64
    }
}

impl fmt::Display for ReplayResult {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let s = &self.stats;
        writeln!(f, "phase of the grid {}; {} requests are not aligned to 4 KiB from sector 0", self.phase, self.unaligned)?;
        writeln!(f, "bare disk, reads    {}", self.bare.reads)?;
        writeln!(f, "bare disk, writes   {}", self.bare.writes)?;
        writeln!(f, "Headpond, reads     {}", self.cached.reads)?;
        writeln!(f, "Headpond, writes    {}", self.cached.writes)?;
        writeln!(f, "requests' time, Headpond by bare disk  {:.4}", self.ratio())?;
        let seconds = |ns: u64| ns as f64 / 1e9;
        writeln!(
            f,
            "from first to last  {:.1} s bare, {:.1} s cached",
            seconds(self.bare.took_ns),
            seconds(self.cached.took_ns)
        )?;
        writeln!(
            f,
            "reads: {} hits, {} partial hits, {} misses, {} bypassed as streams",
            s.hit.requests, s.partial_hit.requests, s.miss.requests, s.read_bypass.requests
        )?;
        write!(f, "writes: {} absorbed", s.absorbed.requests)?;
        for (bypass, name) in Bypass::ALL {
            write!(f, ", {} bypassed: {name}", s.write_bypass[bypass as usize].requests)?;
        }
        writeln!(f, "; {} ordered overwrites", s.ordered_overwrites)?;
        writeln!(f, "disk reads {}, of these asked for by no client's read {}", self.disk_reads, self.unasked_disk_reads)?;
        writeln!(f, "at the end {} fragments, {} dirty blocks", self.fragments, self.dirty_blocks)?;
        write!(
            f,
            "SSD write amplification {:.3} ({} bytes written; {} absorbed on {} copies, {} admitted)",
            self.write_amplification(),
            self.member_bytes,
            s.absorbed.bytes,
            self.copies,
            s.admitted.bytes
        )
    }
}

/// Reads a trace.
///
/// # Errors
/// The first line that is not understood.
pub fn parse(reader: impl BufRead) -> Result<Vec<Traced>, ReplayError> {
    let mut seconds: Vec<u64> = Vec::new();
    let mut requests = Vec::new();
    for (n, line) in reader.lines().enumerate() {
        let line = line.map_err(ReplayError::Read)?;
        if line.trim().is_empty() || n == 0 && line.starts_with(|c: char| c.is_alphabetic()) {
            continue;
        }
        let wrong = |what| ReplayError::Line(n + 1, what);
        let fields: Vec<&str> = line.trim().split(',').collect();
        let [_, time, operation, bytes, sector] = fields[..] else { return Err(wrong("there are not five fields")) };
        let writes = match operation {
            "28" | "88" | "8" => false,
            "2a" | "8a" | "a" => true,
            _ => return Err(wrong("the operation is neither a read nor a write")),
        };
        let bytes: u64 = bytes.parse().map_err(|_| wrong("the size is no number"))?;
        if bytes == 0 || !bytes.is_multiple_of(512) || bytes > 1 << 30 {
            return Err(wrong("the size is not a number of sectors"));
        }
        let sector: u64 = sector.parse().map_err(|_| wrong("the first sector is no number"))?;
        if sector > 1 << 40 {
            return Err(wrong("the first sector is beyond any disk"));
        }
        seconds.push(time.parse().map_err(|_| wrong("the time is no number"))?);
        requests.push(Traced { at: 0, writes, sector, sectors: bytes / 512 });
    }
    let Some(&first) = seconds.first() else { return Err(ReplayError::Empty) };
    let mut at = 0;
    while at < seconds.len() {
        let together = seconds[at..].iter().take_while(|s| **s == seconds[at]).count();
        for n in 0..together {
            let whole = seconds[at].saturating_sub(first) * SECOND;
            requests[at + n].at = whole + SECOND * n as u64 / together as u64;
        }
        at += together;
    }
    requests.sort_by_key(|r| r.at);
    Ok(requests)
}

/// The most frequent first sector, modulo 8.
fn common_phase(requests: &[Traced]) -> u8 {
    let mut counts = [0u64; 8];
    for r in requests {
        counts[(r.sector % 8) as usize] += 1;
    }
    (0..8u8).max_by_key(|p| (counts[usize::from(*p)], 8 - p)).unwrap_or(0)
}

/// Sends all requests and waits for all answers.
fn drive(target: &mut impl Target, requests: &[Traced], pace: Pace) -> Result<Side, ReplayError> {
    let begun = target.now();
    let mut waiting: BTreeMap<u64, bool> = BTreeMap::new();
    let (mut reads, mut writes) = (Vec::new(), Vec::new());
    let mut collect = |answers: Vec<Answer>, waiting: &mut BTreeMap<u64, bool>| {
        for Answer { id, took_ns, .. } in answers {
            match waiting.remove(&id) {
                Some(true) => writes.push(took_ns),
                Some(false) => reads.push(took_ns),
                None => {}
            }
        }
    };
    for r in requests {
        match pace {
            Pace::Open { percent } => {
                while target.step(begun + r.at / 100 * percent)? {
                    collect(target.answers(), &mut waiting);
                }
            }
            Pace::Closed { depth } => {
                while waiting.len() >= depth.max(1) {
                    target.step(u64::MAX)?;
                    collect(target.answers(), &mut waiting);
                }
            }
        }
        let (sector, sectors) = (r.sector, r.sectors);
        let id = target.send(0, if r.writes { Ask::Write { sector, sectors } } else { Ask::Read { sector, sectors } });
        waiting.insert(id, r.writes);
        collect(target.answers(), &mut waiting);
    }
    while !waiting.is_empty() {
        target.step(u64::MAX)?;
        collect(target.answers(), &mut waiting);
    }
    Ok(Side { reads: Times::of(reads), writes: Times::of(writes), took_ns: target.now() - begun })
}

/// Replays a trace against the disk alone and against Headpond. The same trace and options give the same result.
///
/// # Errors
/// A [`ReplayError`]: the trace is not understood, or something happened that must not.
pub fn replay(reader: impl BufRead, options: &Options) -> Result<ReplayResult, ReplayError> {
    let mut requests = parse(reader)?;
    if options.writes_only {
        requests.retain(|r| r.writes);
    }
    let sectors = requests.iter().map(|r| r.sector + r.sectors).max().ok_or(ReplayError::Empty)?.next_multiple_of(8);
    if sectors * 512 > options.disk.capacity {
        return Err(ReplayError::Failed(format!("the trace reaches to sector {sectors}, beyond the modelled disk")));
    }
    let phase = options.phase.unwrap_or_else(|| common_phase(&requests)) % 8;
    let bare = drive(&mut Bare::new(RotatingDisk::new(options.disk.clone())), &requests, options.pace)?;
    let modelled = Modelled {
        sectors,
        phase,
        mode: Mode::WriteBack,
        cache_bytes: options.cache_bytes,
        ssd: options.ssd.clone(),
        disk: options.disk.clone(),
        witness: false,
        checked: true,
        settings: options.settings.clone(),
        seed: options.seed,
    };
    let mut world = modelled.build()?;
    let before = (world.disk_reads, world.unasked_disk_reads, member_bytes(&world));
    let cached = drive(&mut world, &requests, options.pace)?;
    let status = world.engine.as_ref().map(|e| e.status()).ok_or_else(|| ReplayError::Failed("the daemon has ended".into()))?;
    let volume = status.volumes.first().ok_or_else(|| ReplayError::Failed("the volume has gone".into()))?;
    Ok(ReplayResult {
        bare,
        cached,
        phase,
        unaligned: requests.iter().filter(|r| r.sector % 8 != 0 || r.sectors % 8 != 0).count() as u64,
        stats: volume.stats.clone(),
        disk_reads: world.disk_reads - before.0,
        unasked_disk_reads: world.unasked_disk_reads - before.1,
        fragments: volume.fragments,
        dirty_blocks: volume.dirty_blocks,
        member_bytes: member_bytes(&world) - before.2,
        copies: u64::from(status.copies),
    })
}

fn member_bytes(world: &World) -> u64 {
    let members = world.devices.iter().filter(|(d, _)| matches!(d, Device::Member(_)));
    members.map(|(_, d)| d.written).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::Rng;
    use std::fmt::Write;

    /// Two partitions that begin off the grid, writes smaller and larger than a block, and reads of what was written.
    fn trace() -> String {
        let mut rng = Rng::new(42);
        let mut csv = String::from("version,time,op,size,lbn\n");
        for n in 0..3000 {
            let (partition, blocks) = if rng.one_in(5) { (4_000_004, 64) } else { (63, 2000) };
            let sector = partition + rng.below(blocks) * 8 + if rng.one_in(4) { rng.below(8) } else { 0 };
            let operation = if rng.one_in(3) { "28" } else { "2a" };
            let bytes = *rng.pick(&[512, 512, 4096, 4096, 6656, 16_384]);
            writeln!(csv, "1,{},{operation},{bytes},{sector}", 1000 + n / 30).unwrap();
        }
        csv
    }

    fn options() -> Options {
        Options { cache_bytes: 64 << 20, ..Options::default() }
    }

    #[test]
    fn absorbing_unaligned_writes_reads_nothing_from_the_disk_and_saves_time() {
        // What is read around what reads miss has nothing to do with writes.
        let options = || Options { settings: Settings { read_around: false, ..Settings::default() }, ..options() };
        let r = replay(trace().as_bytes(), &options()).unwrap();
        assert_eq!((r.phase, r.unasked_disk_reads), (7, 0));
        assert!(r.stats.absorbed.requests > 1500 && r.disk_reads > 0 && r.unaligned > 2900, "{r}");
        assert!(r.ratio() < 1.0, "{r}");
        let writes = replay(trace().as_bytes(), &Options { writes_only: true, ..options() }).unwrap();
        assert!(writes.stats.absorbed.requests == r.stats.absorbed.requests, "{writes}");
        assert_eq!(writes.disk_reads, 0, "with no client reading, nothing reads the disk");
    }

    #[test]
    fn a_replay_is_the_same_each_time_and_at_each_pace_ends() {
        for pace in [Pace::Open { percent: 50 }, Pace::Closed { depth: 8 }] {
            let options = Options { pace, ..options() };
            let [a, b] = [0, 1].map(|_| replay(trace().as_bytes(), &options).unwrap().to_string());
            assert_eq!(a, b);
        }
    }

    #[test]
    fn what_is_no_trace_is_named_with_its_line() {
        let line = |csv: &str| match parse(csv.as_bytes()) {
            Err(ReplayError::Line(n, _)) => n,
            other => panic!("{other:?}"),
        };
        assert_eq!(line("version,time,op,size,lbn\n1,1,28,512,0\n1,1,99,512,0\n"), 3);
        assert_eq!(line("1,1,28,100,0\n"), 1);
        assert_eq!(line("1,1,28\n"), 1);
        assert!(matches!(parse(&b"version,time\n"[..]), Err(ReplayError::Empty)));
    }

    #[test]
    fn requests_of_one_second_are_spread_over_it() {
        let r = parse(&b"1,7,28,512,0\n1,7,2a,512,8\n1,9,28,512,16\n"[..]).unwrap();
        assert_eq!(r.iter().map(|r| r.at).collect::<Vec<_>>(), [0, SECOND / 2, 2 * SECOND]);
    }
}
