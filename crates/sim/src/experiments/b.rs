//! B1, B2: an object storage server of Lustre, 2008.

use super::array::{CacheParams, Layout};
use super::drive::{Process, Script, Turn};
use super::front::Call;
use super::hardware::{Machine, nfs_server};
use super::outcome::{Outcome, Scale, Who};
use super::point::{GIB, MIB, Options, last, least_ratio, mb, points};
use super::rig::warm_up;
use super::script::{File, Random, Stream};
use crate::bench::measure::Reached;
use crate::models::ssd::SsdParams;
use crate::target::Ask;
use crate::world::Violation;
use headpond_engine::format::Mode;

/// OSTs, each a small RAID 6 with a server of its own, and a pool of two SATA SSDs of the given size.
fn osts(volumes: u16, ssd_bytes: u64) -> Machine {
    let mut machine = Machine { ssd: SsdParams::sata_consumer(), ssd_bytes, ..nfs_server() };
    let n = u64::from(volumes);
    machine.array.layout = Layout::Raid60 { spans: 1, width: 12, chunk: 64 << 10 };
    (machine.array.read_rate, machine.array.write_rate) = (400_000_000, 400_000_000);
    machine.array.cache = Some(CacheParams { bytes: 256 << 20, rows: 2, percent: 25 });
    machine.front.client_rate = CLIENT_RATE;
    machine.front.server_rate = 1_400_000_000 * n;
    machine.front.cores = 8 * usize::from(volumes);
    machine.front.threads = 128 * usize::from(volumes);
    (machine.front.op_ns, machine.front.kib_ns) = (50_000, 300);
    machine
}

/// Bytes per second that a client writes at most.
const CLIENT_RATE: u64 = 1_050_000_000;
/// Its cache, in bytes.
const CLIENT_CACHE: f64 = 12e9;

/// A stream that goes round several OSTs, a stripe of 1 MiB on each.
struct Striped {
    volumes: u16,
    start: u64,
    bytes: u64,
    at: u64,
}

impl Script for Striped {
    fn next(&mut self, _lane: usize) -> Option<Turn> {
        let stripe = self.at;
        self.at += 1;
        let (volume, row) = (stripe % u64::from(self.volumes), stripe / u64::from(self.volumes));
        let sector = (self.start + row * MIB % self.bytes) / 512;
        let call = Call::Block(volume as u16, Ask::Write { sector, sectors: MIB / 512 });
        Some(Turn { think_ns: 0, call, ends: Some(MIB) })
    }
}

fn by_second(reached: &Reached, unit: f64) -> Vec<(f64, f64)> {
    reached.per_second.iter().enumerate().map(|(s, n)| (s as f64, *n as f64 * unit)).collect()
}

/// B1: what happens when the cache fills.
///
/// # Errors
/// Something happened that must not.
pub fn b1(options: Options) -> Result<Outcome, Violation> {
    let mut out = Outcome::default();
    // Two processes of one client write 10 GB each, again and again, over four OSTs; the cache is full of clean data of others.
    const OSTS: u16 = 4;
    let machine = osts(OSTS, GIB);
    let (file, others) = (10 * GIB / u64::from(OSTS), 2 * GIB);
    let extent = 2 * file + others;
    let writers = || {
        (0..2)
            .map(|n| Process {
                group: 0,
                client: 0,
                lanes: 16,
                script: Box::new(Striped { volumes: OSTS, start: n * file, bytes: file, at: n * 2 }),
            })
            .collect()
    };
    let seconds = options.window();
    let bare = machine.drive(machine.bare(OSTS), options.seed, writers()).seconds(seconds)?[0].clone();
    let mut store = machine.cached(Mode::WriteBack, OSTS, extent, options.seed)?;
    warm_up(&mut store, extent, 2 * file..extent, options.seed)?;
    let back = machine.drive(store, options.seed, writers()).seconds(seconds)?[0].clone();
    // Theirs: at the client's rate until its cache is full; then a block is selected and freed for each that is written, which takes half
    // as long again.
    let theirs = |second: usize| {
        let full_at = CLIENT_CACHE / CLIENT_RATE as f64;
        let before = (full_at - second as f64).clamp(0.0, 1.0);
        CLIENT_RATE as f64 / 1e6 * (before + (1.0 - before) / 1.5)
    };
    let theirs: Vec<(f64, f64)> = (0..seconds as usize).map(|s| (s as f64, theirs(s))).collect();
    let end = theirs.last().map_or(0.0, |p| p.1);
    out.figure("stream, cache full", "MB/s", &[(Who::Bare, mb(&bare)), (Who::Back, mb(&back)), (Who::Theirs, end)]);
    out.must("stream over a full cache, by bare", back.per_s / bare.per_s, 0.97);
    let least = back.per_second[1..].iter().min().map_or(0.0, |n| *n as f64) / bare.per_s;
    out.must("the worst second of the stream, by bare's mean", least, 0.97);
    let unit = MIB as f64 / 1e6;
    let lines = vec![
        (Who::Bare, "bare".to_owned(), by_second(&bare, unit)),
        (Who::Back, "Headpond".to_owned(), by_second(&back, unit)),
        (Who::Theirs, "model of theirs: the client's cache".to_owned(), theirs),
    ];
    out.lines("A stream, second by second", "seconds", "MB/s", Scale::Linear, lines);
    random(&mut out, options)?;
    Ok(out)
}

/// The same with random writes, which the cache takes in until it is full: one of 12 GB for two files of 10 GB each, as in the
/// original, scaled; and beside it one whose space for dirty data is 9 % of the files.
fn random(out: &mut Outcome, options: Options) -> Result<(), Violation> {
    let region = 4 * GIB;
    let (filling, steady) = (if options.quick { 60 } else { 120 }, options.window().max(20));
    let machine = osts(1, GIB);
    let mut bare = machine.drive(machine.bare(1), options.seed, random_writers(region, options.seed));
    bare.seconds(filling)?;
    let bare = bare.seconds(steady)?[0].clone();
    let fill = |cache: u64| {
        // What superblocks, intent and images of the map take comes on top.
        let machine = osts(1, cache * 104 / 100 / MIB * MIB);
        let store = machine.cached(Mode::WriteBack, 1, region, options.seed)?;
        let mut driver = machine.drive(store, options.seed, random_writers(region, options.seed));
        let (first, once_full) = (driver.seconds(filling)?[0].clone(), driver.seconds(steady)?[0].clone());
        let seconds = first.per_second.iter().chain(&once_full.per_second).copied().collect();
        Ok::<_, Violation>(Filling { seconds, once_full })
    };
    let back = fill(region * 12 / 20)?;
    let reached = [(Who::Bare, bare.per_s), (Who::Back, back.once_full.per_s)];
    out.figure("random 4 KiB writes, once the cache is full", "writes/s", &reached);
    out.must("random writes: the worst second of all, by bare's mean", back.worst() / bare.per_s, 1.0);
    out.must("random writes: the least second once it is full, by their mean", back.once_full.least_second, 0.5);
    let small = fill(region * 9 / 100 * 10 / 8)?;
    let reached = [(Who::Bare, bare.per_s), (Who::Back, small.once_full.per_s)];
    out.figure("the same, space for dirty data 9 % of the files", "writes/s", &reached);
    out.note(format!(
        "With space for dirty data of 9 % of the files, no larger than the controller's own cache and what it sorts: {:.2} of bare once it is full, the worst second before that {:.2} of bare's mean, the least second by the mean {:.2}.",
        small.once_full.per_s / bare.per_s,
        small.worst() / bare.per_s,
        small.once_full.least_second
    ));
    let line = |r: &Filling| r.seconds.iter().enumerate().map(|(s, n)| (s as f64, *n as f64)).collect();
    let bare_line = (0..back.seconds.len()).map(|s| (s as f64, bare.per_s)).collect();
    let lines = vec![
        (Who::Bare, "bare, once its own cache is full".to_owned(), bare_line),
        (Who::Back, "Headpond".to_owned(), line(&back)),
        (Who::Through, "Headpond, space for dirty data 9 %".to_owned(), line(&small)),
    ];
    out.lines("Random 4 KiB writes, second by second", "seconds", "writes/s", Scale::Powers, lines);
    Ok(())
}

/// What random writes reach while the cache fills, and then.
struct Filling {
    /// Writes in each second.
    seconds: Vec<u64>,
    once_full: Reached,
}

impl Filling {
    /// The worst second but the first.
    fn worst(&self) -> f64 {
        self.seconds[1..].iter().min().map_or(0.0, |n| *n as f64)
    }
}

/// Two processes that write small blocks here and there, each in its half of `region` bytes.
fn random_writers(region: u64, seed: u64) -> Vec<Process> {
    let process = |(n, file): (usize, File)| Process {
        group: 0,
        client: 0,
        lanes: 16,
        script: Box::new(Random::new(file, 4096, 0, seed + n as u64)),
    };
    File::several(0, 0, 0, 2, region / 2).into_iter().enumerate().map(process).collect()
}

/// B2: throughput against the number of clients, each with a volume of its own.
///
/// # Errors
/// Something happened that must not.
pub fn b2(options: Options) -> Result<Outcome, Violation> {
    let counts = options.counts(&[1, 4, 16, 64]);
    let mut out = Outcome::default();
    let bytes = 16 * GIB;
    for (writes, what) in [(true, "write"), (false, "read")] {
        let mut lines = Vec::new();
        let mut all = Vec::new();
        for who in [Who::Bare, Who::Back] {
            let mut values = Vec::new();
            for n in &counts {
                let volumes = *n as u16;
                let machine = osts(volumes, 4 * GIB);
                let store = match who {
                    Who::Bare => machine.bare(volumes),
                    _ => machine.cached(Mode::WriteBack, volumes, bytes, options.seed)?,
                };
                let process = |client: usize| {
                    // What another client wrote is read.
                    let volume = if writes { client } else { (client + 1) % usize::from(volumes) } as u16;
                    let file = File::several(volume, 0, 0, 1, bytes).swap_remove(0);
                    Process { group: 0, client, lanes: 8, script: Box::new(Stream::new(file, writes, MIB)) }
                };
                let processes = (0..usize::from(volumes)).map(process).collect();
                values.push(mb(&options.steady(&machine, store, processes)?[0]));
            }
            lines.push((who, who.name().to_owned(), points(&counts, &values)));
            all.push(values);
        }
        let most = last(&counts.iter().map(|n| *n as f64).collect::<Vec<_>>());
        out.figure(
            format!("{what}, {most} clients and volumes"),
            "MB/s",
            &[(Who::Bare, last(&all[0])), (Who::Back, last(&all[1]))],
        );
        let linear: Vec<f64> = counts.iter().map(|n| all[1][0] * *n as f64).collect();
        out.must(
            format!("{what}, cached, by one volume's times their number, at the worst"),
            least_ratio(&all[1], &linear),
            0.95,
        );
        out.must(format!("{what}, by bare, at the worst number"), least_ratio(&all[1], &all[0]), 0.97);
        out.lines(&format!("{what} against clients"), "clients and volumes", "MB/s", Scale::Linear, lines);
    }
    out.note("All volumes share one pool and one engine; each has an array and a server of its own.");
    Ok(out)
}
