//! C1, C2, C3: large streams on a Lustre server, alone and with random 4 KiB beside them. One of the two arrays is simulated, with half of
//! the processes and half of the SSDs; sums over both are twice that.

use super::drive::Process;
use super::hardware::{Machine, lustre_server};
use super::outcome::{Line, Outcome, Scale, Who};
use super::point::{GIB, MIB, Options, least_ratio, mb, points};
use super::rig::{Store, warm_up};
use super::script::{File, Random, Stream};
use super::theirs::{Published, Theirs};
use crate::bench::measure::Reached;
use crate::world::Violation;
use headpond_engine::format::Mode;

/// Processes that stream, of the 32 of both arrays.
const STREAMS: u64 = 16;
/// Clients.
const CLIENTS: usize = 16;
/// Bytes that each streams through, four times the original's: else the streams come to the end of their files while the
/// windows with a full cache last, and write again what they have, no longer side by side, which no array takes as fast.
const STREAMED: u64 = 128 * GIB;
/// Bytes that each random process uses.
const SMALL: u64 = 280 * MIB;
/// Requests of 1 MiB under way for each stream: written back by the client's cache, or read ahead.
const WRITE_AHEAD: usize = 16;
const READ_AHEAD: usize = 64;
/// Random requests under way for each process.
const RANDOM_DEPTH: usize = 4;
/// NXD's times for a small write and a small read, one after the other; see the models of theirs.
const NXD: Published = Published::Nxd { commit_ns: 790_000, lookup_ns: 370_000 };

/// Where the random processes' files begin: beyond the streams'.
fn beside() -> u64 {
    STREAMS * STREAMED
}

fn streams(writes: bool, number: u64) -> Vec<Process> {
    // Files that are being written grow piece by piece; read ones were written by few writers at a time, in long pieces.
    let files =
        if writes { File::growing(0, 0, MIB, number, STREAMED) } else { File::several(0, 0, 256 * MIB, number, STREAMED) };
    let process = |(n, file): (usize, File)| Process {
        group: 0,
        client: n % CLIENTS,
        lanes: if writes { WRITE_AHEAD } else { READ_AHEAD },
        script: Box::new(Stream::new(file, writes, MIB)),
    };
    files.into_iter().enumerate().map(process).collect()
}

fn randoms(writes: bool, number: u64, seed: u64) -> Vec<Process> {
    let files = File::several(0, beside(), 0, number, SMALL);
    let process = |(n, file): (usize, File)| Process {
        group: 1,
        client: n % CLIENTS,
        lanes: RANDOM_DEPTH,
        script: Box::new(Random::new(file, 4096, if writes { 0 } else { 100 }, seed.wrapping_add(n as u64))),
    };
    files.into_iter().enumerate().map(process).collect()
}

fn both(writes: bool, random: u64, seed: u64) -> Vec<Process> {
    streams(writes, STREAMS).into_iter().chain(randoms(writes, random, seed)).collect()
}

fn cached(machine: &Machine, random: u64, seed: u64) -> Result<Store, Violation> {
    machine.cached(Mode::WriteBack, 1, beside() + random * SMALL, seed)
}

/// C1: streams alone.
///
/// # Errors
/// Something happened that must not.
pub fn c1(options: Options) -> Result<Outcome, Violation> {
    let machine = lustre_server();
    let mut out = Outcome::default();
    let mut lines: Vec<Line> = vec![(Who::Bare, "bare".into(), Vec::new()), (Who::Back, "Headpond".into(), Vec::new())];
    for (n, (writes, what, published)) in [(true, "write", 13_143.0), (false, "read", 11_182.0)].into_iter().enumerate() {
        let bare = options.steady(&machine, machine.bare(1), streams(writes, STREAMS))?[0].clone();
        let back = options.steady(&machine, cached(&machine, 0, options.seed)?, streams(writes, STREAMS))?[0].clone();
        let (bare, back) = (2.0 * mb(&bare), 2.0 * mb(&back));
        out.calibrate(format!("{what}, sum of both arrays, 32 processes, MB/s"), bare, published);
        out.figure(format!("{what}, sum of both arrays"), "MB/s", &[(Who::Bare, bare), (Who::Back, back)]);
        out.must(format!("{what}, by bare"), back / bare, 0.995);
        lines[0].2.push((n as f64, bare));
        lines[1].2.push((n as f64, back));
    }
    out.bars("IOR, 32 processes, 1 MiB", "MB/s", Scale::Linear, &["write".into(), "read".into()], lines);
    Ok(out)
}

/// What streams and random processes reach beside each other.
fn beside_each_other(machine: &Machine, store: Store, writes: bool, random: u64, o: Options) -> Result<[Reached; 2], Violation> {
    let mut reached = o.steady(machine, store, both(writes, random, o.seed))?;
    reached.resize(2, Reached::default());
    let second = reached.pop().unwrap_or_default();
    Ok([reached.pop().unwrap_or_default(), second])
}

/// SSDs so small that write space is 9 % of what `random` processes write to.
fn small(random: u64) -> Machine {
    Machine { ssd_bytes: (random * SMALL * 9 / 100 * 10 / 8 * 106 / 100 / MIB * MIB).max(256 * MIB), ..lustre_server() }
}

/// With the cache full, and some sweeps after it has become so.
fn full(random: u64, o: Options) -> Result<[Reached; 2], Violation> {
    let machine = small(random);
    let store = cached(&machine, random, o.seed)?;
    let mut driver = machine.drive(store, o.seed, both(true, random, o.seed));
    driver.seconds(180)?;
    let mut reached = o.run(&mut driver)?;
    let second = reached.pop().unwrap_or_default();
    Ok([reached.pop().unwrap_or_default(), second])
}

/// C2: streams with random 4 KiB beside them.
///
/// # Errors
/// Something happened that must not.
pub fn c2(options: Options) -> Result<Outcome, Violation> {
    let machine = lustre_server();
    let mut out = Outcome::default();
    let mut bars: Vec<Line> = [Who::Bare, Who::Back, Who::Theirs].map(|w| (w, w.name().to_owned(), Vec::new())).to_vec();
    for (n, (writes, what)) in [(true, "write"), (false, "read")].into_iter().enumerate() {
        let alone = options.steady(&machine, machine.bare(1), streams(writes, STREAMS))?[0].clone();
        let bare = beside_each_other(&machine, machine.bare(1), writes, STREAMS, options)?;
        let mut store = cached(&machine, STREAMS, options.seed)?;
        let extent = beside() + STREAMS * SMALL;
        if !writes {
            warm_up(&mut store, extent, beside()..extent, options.seed)?;
        }
        let back = beside_each_other(&machine, store, writes, STREAMS, options)?;
        let theirs = Store::models(vec![Box::new(Theirs::new(NXD, &machine.array, &machine.ssd, true))]);
        let theirs = beside_each_other(&machine, theirs, writes, STREAMS, options)?;
        let streamed = [(Who::Bare, mb(&bare[0])), (Who::Back, mb(&back[0])), (Who::Theirs, mb(&theirs[0]))];
        let small = [(Who::Bare, bare[1].per_s), (Who::Back, back[1].per_s), (Who::Theirs, theirs[1].per_s)];
        out.figure(format!("stream {what} beside, one array (alone, bare: {:.0})", mb(&alone)), "MB/s", &streamed);
        out.figure(format!("random {what} beside, one array"), "1/s", &small);
        out.must(format!("stream {what}, by bare ALONE"), back[0].per_s / alone.per_s, 0.97);
        if writes {
            let fits = machine.ssd_bytes as f64 * 0.8 * 0.5 / (back[1].per_s * 4096.0);
            out.must("random write while the dirty set fits, by bare", back[1].per_s / bare[1].per_s, 20.0);
            out.note(format!("The dirty set of this load fits for {fits:.0} s, if every write were to another place; the files together are 4.4 GiB."));
        } else {
            let ssds = options.steady(&machine, machine.ssds(), only(randoms(false, STREAMS, options.seed)))?[0].clone();
            let lesser = (20.0 * bare[1].per_s).min(0.9 * ssds.per_s);
            out.must("random read, by the lesser of 20 x bare and 0.9 of SSDs and network", back[1].per_s / lesser, 1.0);
            out.note(format!("SSDs and network alone: {:.0} random reads per second.", ssds.per_s));
        }
        out.note(format!(
            "Random {what} by bare: Headpond {:.1}, model of theirs {:.1}.",
            back[1].per_s / bare[1].per_s,
            theirs[1].per_s / bare[1].per_s
        ));
        for (line, value) in bars.iter_mut().zip(small) {
            line.2.push((n as f64, value.1));
        }
    }
    let machine = small(STREAMS);
    let bare = beside_each_other(&machine, machine.bare(1), true, STREAMS, options)?;
    let then = full(STREAMS, options)?;
    out.figure("stream write beside, cache full, one array", "MB/s", &[(Who::Bare, mb(&bare[0])), (Who::Back, mb(&then[0]))]);
    out.figure("random write beside, cache full, one array", "1/s", &[(Who::Bare, bare[1].per_s), (Who::Back, then[1].per_s)]);
    out.must("cache full: stream write, by bare beside the same load", then[0].per_s / bare[0].per_s, 0.97);
    out.must("cache full: random write, by bare", then[1].per_s / bare[1].per_s, 5.0);
    let names = ["random write beside streams".to_owned(), "random read beside streams".to_owned()];
    out.bars("Random 4 KiB beside streams", "1/s, one array", Scale::Powers, &names, bars);
    Ok(out)
}

/// Processes as the only group.
fn only(mut processes: Vec<Process>) -> Vec<Process> {
    processes.iter_mut().for_each(|p| p.group = 0);
    processes
}

/// C3: the same with ever more random processes.
///
/// # Errors
/// Something happened that must not.
pub fn c3(options: Options) -> Result<Outcome, Violation> {
    let machine = lustre_server();
    let mut out = Outcome::default();
    let threads = options.counts(&[32, 96, 160, 224]);
    let alone = options.steady(&machine, machine.bare(1), streams(true, STREAMS))?[0].clone();
    let (mut fits, mut bare_line, mut full_line) = (Vec::new(), Vec::new(), Vec::new());
    for all in &threads {
        let random = all / 2 - STREAMS;
        let bare = beside_each_other(&machine, machine.bare(1), true, random, options)?;
        let back = beside_each_other(&machine, cached(&machine, random, options.seed)?, true, random, options)?;
        let then = if random > 0 { full(random, options)? } else { back.clone() };
        let reached = [(Who::Bare, mb(&bare[0])), (Who::Back, mb(&back[0]))];
        out.figure(format!("{all} threads: stream write beside {random} random writers, dirty set fits"), "MB/s", &reached);
        out.figure(format!("{all} threads: random writes"), "1/s", &[(Who::Bare, bare[1].per_s), (Who::Back, back[1].per_s)]);
        out.figure(
            format!("{all} threads: stream write, cache full"),
            "MB/s",
            &[(Who::Bare, mb(&bare[0])), (Who::Back, mb(&then[0]))],
        );
        fits.push(mb(&back[0]));
        bare_line.push(mb(&bare[0]));
        full_line.push(mb(&then[0]));
    }
    let alone_line = vec![mb(&alone); threads.len()];
    out.must("the streams while the dirty set fits, by bare ALONE, at the worst point", least_ratio(&fits, &alone_line), 0.95);
    out.must(
        "the streams with the cache full, by bare beside the same load, at the worst point",
        least_ratio(&full_line, &bare_line),
        0.95,
    );
    let lines = vec![
        (Who::Ssds, "bare, streams alone".to_owned(), points(&threads, &alone_line)),
        (Who::Bare, "bare".to_owned(), points(&threads, &bare_line)),
        (Who::Back, "Headpond, dirty set fits".to_owned(), points(&threads, &fits)),
        (Who::Through, "Headpond, cache full".to_owned(), points(&threads, &full_line)),
    ];
    out.lines(
        "16 streams of one array beside ever more random writers",
        "threads on both arrays",
        "MB/s of streams",
        Scale::Linear,
        lines,
    );
    Ok(out)
}
