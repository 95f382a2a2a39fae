//! C4 and C5: a writer with readers, and requests that are not aligned.

use super::Run;
use super::fio::{JobFile, job};
use super::modelled::Model;
use super::rig::{Plan, Rig};
use super::rounds::{Samples, must};
use super::tools::python;
use anyhow::{Context, Result};
use headpond_sim::experiments::outcome::{Line, Outcome, Scale, Who};
use std::fs;
use std::ops::Range;
use std::process::Command;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
/// Readers beside the writer; the original does not say how many.
const READERS: u32 = 2;

/// What the writer and its readers reach in a second each.
fn append(run: &Run<'_>, rig: &Rig<'_>, who: Who) -> Result<Vec<f64>> {
    let script = rig.path().join("swmr.py");
    fs::write(&script, include_str!("jobs/swmr.py"))?;
    let python = python().context("h5py was there, and is no longer")?;
    rig.settle(who)?;
    let file = rig.point(who, 0).join("swmr.h5");
    let (seconds, readers) = (run.window().to_string(), READERS.to_string());
    let said = rig.run(Command::new(python).arg(&script).arg(&file).args([&seconds, &readers]))?;
    let value = |what: &str| {
        let line = said.lines().find_map(|line| line.strip_prefix(what)?.trim().parse::<f64>().ok());
        line.with_context(|| format!("swmr.py did not say how many {what}: {said}"))
    };
    Ok(vec![value("appends")?, value("looks")?])
}

/// C4: HDF5 with a single writer and readers.
pub fn c4(run: &Run<'_>) -> Result<Outcome> {
    let mut out = Outcome::default();
    let plan = Plan { ssds: Model::Protected, ..Plan::usual() };
    let rig = run.rig(plan.clone())?;
    let samples = Samples::take(run.rounds(), &rig.whos(), |who| append(run, &rig, who))?;
    samples.figure(&mut out, "appends, each flushed and durable", "1/s", 0);
    samples.figure(&mut out, format!("looks of {READERS} readers"), "1/s", 1);
    must(&mut out, "appends, by bare behind the same front end", samples.ratio((Who::Back, 0), (Who::Front, 0)), 10.0);
    must(&mut out, "looks, by bare behind the same front end", samples.ratio((Who::Back, 1), (Who::Front, 1)), 0.97);
    let seconds = |who| 2500.0 / samples.median(who, 0);
    out.note(format!(
        "2,500 appends (the original's) take {:.1} s bare, {:.1} s behind the front end, {:.1} s cached.",
        seconds(Who::Bare),
        seconds(Who::Front),
        seconds(Who::Back)
    ));
    run.tax(&mut out, &samples, &["appends", "looks"]);
    let bars = rig.whos().into_iter().map(|who| (who, who.name().to_owned(), vec![(0.0, samples.median(who, 0))])).collect();
    out.bars("One writer with readers", "appends/s", Scale::Powers, &["appends".into()], bars);
    run.fates(&mut out, &rig)?;
    drop(rig);
    unprotected(run, &mut out, &Plan { ssds: Model::Ssd, ..plan })?;
    Ok(out)
}

/// The same with the SSDs of the other experiments: an append waits for two flushes, and theirs take ten times as long.
fn unprotected(run: &Run<'_>, out: &mut Outcome, plan: &Plan) -> Result<()> {
    let whos = vec![Who::Front, Who::Back];
    let rig = run.rig(Plan { whos: whos.clone(), ..plan.clone() })?;
    let samples = Samples::take(run.rounds().min(3), &whos, |who| append(run, &rig, who))?;
    samples.figure(out, "appends, with SSDs that take 1 ms for a flush", "1/s", 0);
    let ratio = samples.ratio((Who::Back, 0), (Who::Front, 0));
    out.note(format!(
        "With the SSDs of the other experiments, without power-loss protection, whose flush takes 1 ms: {:.1} times bare ({:.1} to {:.1}). \
         An append has two flushes on the volume.",
        ratio.median, ratio.spread[0], ratio.spread[1]
    ));
    Ok(())
}

const SKEWED: JobFile = job!("skewed");
/// Bytes of a file, and of its part that small requests fall in.
const FILE: u64 = 96 * MIB;
const SMALL: u64 = 48 * MIB;
/// Bytes past a multiple of their size.
const SKEW: u64 = 2560;

struct Case {
    what: &'static str,
    rw: &'static str,
    bytes: u64,
    region: u64,
    /// "Within 10 % of aligned" is about small requests.
    small: bool,
}

impl Case {
    /// Seconds that count. A file system commits its journal every five, with a flush that the SSDs wait for, too; streams that are
    /// written fill the disk's own cache first.
    fn seconds(&self, run: &Run<'_>) -> u64 {
        match self.small {
            true if run.quick => 2,
            true => 5,
            false => 3 * run.window(),
        }
    }
}

const fn case(what: &'static str, rw: &'static str, bytes: u64, small: bool) -> Case {
    Case { what, rw, bytes, region: if small { SMALL } else { FILE - MIB }, small }
}

/// Written twice, as the first time may find nothing in the cache, and the second finds all of it; and then read.
const CASES: [Case; 8] = [
    case("write 4 KiB", "randwrite", 4 * KIB, true),
    case("re-write 4 KiB", "randwrite", 4 * KIB, true),
    case("read 4 KiB", "randread", 4 * KIB, true),
    case("write 64 KiB", "randwrite", 64 * KIB, true),
    case("re-write 64 KiB", "randwrite", 64 * KIB, true),
    case("read 64 KiB", "randread", 64 * KIB, true),
    case("write streams of 1 MiB", "write", MIB, false),
    case("read streams of 1 MiB", "read", MIB, false),
];

/// What is done one after the other before it is done in the other way: what is read not aligned was written so, too, else it would be
/// in two places.
const TOGETHER: [Range<usize>; 3] = [0..3, 3..6, 6..8];

/// What each case reaches, aligned and not, one after the other.
fn round(run: &Run<'_>, rig: &Rig<'_>, who: Who) -> Result<Vec<f64>> {
    let mut reached = vec![Vec::new(); 2 * CASES.len()];
    for together in TOGETHER {
        // The processors are what limits small requests to the cache, and they are slower for a while and faster for another.
        let by_processors = who == Who::Back && CASES[together.start].small;
        let turns: &[usize] = if by_processors { &[0, 1, 1, 0] } else { &[0, 1] };
        for skewed in turns {
            for n in together.clone() {
                rig.settle(who)?;
                let skew = [0, SKEW][*skewed];
                reached[2 * n + skewed].push(requests(run, rig, who, "requests", &CASES[n], skew)?);
            }
        }
    }
    Ok(reached.iter().map(|it| it.iter().sum::<f64>() / it.len() as f64).collect())
}

fn requests(run: &Run<'_>, rig: &Rig<'_>, who: Who, section: &str, case: &Case, skew: u64) -> Result<f64> {
    let values = [
        ("FILE", FILE.to_string()),
        ("SMALL", SMALL.to_string()),
        ("RW", case.rw.to_owned()),
        ("BYTES", case.bytes.to_string()),
        ("SKEW", skew.to_string()),
        ("REGION", case.region.to_string()),
        ("SECONDS", case.seconds(run).to_string()),
    ];
    Ok(rig.fio(who, 0, SKEWED, &[section], &values)?.get(section).map_or(0.0, |it| it.requests))
}

/// C5: aligned and not; written, written again, read.
pub fn c5(run: &Run<'_>) -> Result<Outcome> {
    let mut out = Outcome::default();
    let rig = run.rig(Plan::usual())?;
    let whos = [Who::Front, Who::Back];
    for who in whos {
        requests(run, &rig, who, "lay-out", &CASES[0], 0)?;
    }
    // Small reads are of what is cached: all of it was written in small pieces before, and read once.
    for section in ["write-each", "read-each"] {
        requests(run, &rig, Who::Back, section, &CASES[0], 0)?;
    }
    let samples = Samples::take(run.rounds().min(3), &whos, |who| round(run, &rig, who))?;
    let mut bars: Vec<Line> = ["bare, aligned", "bare, unaligned", "Headpond, aligned", "Headpond, unaligned"]
        .into_iter()
        .zip([Who::Bare, Who::Ssds, Who::Back, Who::Through])
        .map(|(name, who)| (who, name.to_owned(), Vec::new()))
        .collect();
    for (n, case) in CASES.iter().enumerate() {
        let (aligned, skewed) = (2 * n, 2 * n + 1);
        samples.figure(&mut out, format!("{}, aligned", case.what), "1/s", aligned);
        samples.figure(&mut out, format!("{}, unaligned", case.what), "1/s", skewed);
        if case.small {
            let ratio = samples.ratio((Who::Back, skewed), (Who::Back, aligned));
            must(&mut out, format!("{}: unaligned by aligned", case.what), ratio, 0.9);
        }
        for (name, quantity) in [("aligned", aligned), ("unaligned", skewed)] {
            let ratio = samples.ratio((Who::Back, quantity), (Who::Front, quantity));
            must(&mut out, format!("{}: {name}, by bare {name}", case.what), ratio, 0.97);
        }
        let all = [(Who::Front, aligned), (Who::Front, skewed), (Who::Back, aligned), (Who::Back, skewed)];
        for (line, (who, quantity)) in bars.iter_mut().zip(all) {
            line.2.push((n as f64, samples.median(who, quantity)));
        }
    }
    let names: Vec<String> = CASES.iter().map(|case| case.what.to_owned()).collect();
    out.bars("Aligned and unaligned", "requests/s", Scale::Powers, &names, bars);
    out.note(
        "Bare is behind the same front end here. No more than three rounds are taken, of five seconds each, and nine for streams; small \
         requests to the cached volume twice in each, in the order of aligned, unaligned, unaligned, aligned.",
    );
    run.fates(&mut out, &rig)?;
    Ok(out)
}
