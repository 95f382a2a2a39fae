//! C1, C2, C3: streams alone, and beside ever more random requests.

use super::Run;
use super::fio::{JobFile, Rates, job};
use super::ior;
use super::modelled;
use super::rig::{Plan, Rig};
use super::rounds::{Samples, must};
use anyhow::Result;
use headpond_sim::experiments::outcome::{Outcome, Scale, Who};

const JOB: JobFile = job!("streams");
const MIB: u64 = 1 << 20;

/// Streams, random processes, and the bytes of a file of each.
#[derive(Clone, Copy)]
pub(super) struct Load {
    pub streams: u64,
    pub stream_bytes: u64,
    pub randoms: u64,
    pub random_bytes: u64,
    /// Seconds that count.
    pub seconds: u64,
}

impl Load {
    fn of(run: &Run<'_>, randoms: u64, random_bytes: u64) -> Load {
        Load { streams: 4, stream_bytes: if run.quick { 64 } else { 128 } * MIB, randoms, random_bytes, seconds: run.window() }
    }

    /// Runs sections; `ramp` seconds pass before anything counts.
    pub fn run(&self, rig: &Rig<'_>, who: Who, sections: &[&str], writes: bool, ramp: u64) -> Result<Rates> {
        let rw = |stream: &str, random: &str| if writes { stream.to_owned() } else { random.to_owned() };
        let values = [
            ("STREAMS", self.streams.to_string()),
            ("STREAM_SIZE", self.stream_bytes.to_string()),
            ("STREAM_RW", rw("write", "read")),
            ("RANDOMS", self.randoms.to_string()),
            ("RANDOM_SIZE", self.random_bytes.to_string()),
            ("RANDOM_RW", rw("randwrite", "randread")),
            ("RAMP", ramp.to_string()),
            ("SECONDS", self.seconds.to_string()),
        ];
        rig.fio(who, 0, JOB, sections, &values)
    }

    /// Writes the files of streams and of random processes once, on all ways.
    pub fn lay_out(&self, rig: &Rig<'_>) -> Result<()> {
        for who in rig.whos() {
            self.run(rig, who, &["lay-out-streams"], true, 0)?;
            if self.randoms > 0 {
                self.run(rig, who, &["lay-out-random"], true, 0)?;
            }
            rig.settle(who)?;
        }
        Ok(())
    }
}

fn stream(rates: &Rates) -> f64 {
    rates.get("streams").map_or(0.0, |it| it.bytes / 1e6)
}

fn random(rates: &Rates) -> f64 {
    rates.get("random").map_or(0.0, |it| it.requests)
}

/// C1: streams.
pub fn c1(run: &Run<'_>) -> Result<Outcome> {
    let mut out = Outcome::default();
    let rig = run.rig(Plan::usual())?;
    let load = Load::of(run, 0, MIB);
    load.lay_out(&rig)?;
    let samples = Samples::take(run.rounds(), &rig.whos(), |who| {
        rig.settle(who)?;
        let written = load.run(&rig, who, &["streams"], true, 1)?;
        let read = load.run(&rig, who, &["streams"], false, 1)?;
        Ok(vec![stream(&written), stream(&read)])
    })?;
    for (n, what) in ["write", "read"].into_iter().enumerate() {
        samples.figure(&mut out, format!("{what}, sum of {} streams", load.streams), "MB/s", n);
        let ratio = samples.ratio((Who::Back, n), (Who::Front, n));
        must(&mut out, format!("{what}, by bare behind the same front end"), ratio, 0.995);
    }
    run.tax(&mut out, &samples, &["write", "read"]);
    ior::streams(run, &rig, &mut out, load.streams, load.stream_bytes)?;
    run.fates(&mut out, &rig)?;
    Ok(out)
}

/// C2: random 4 KiB beside the streams; while the dirty set fits, and when the cache is full.
pub fn c2(run: &Run<'_>) -> Result<Outcome> {
    let mut out = Outcome::default();
    fits(run, &mut out)?;
    full(run, &mut out)?;
    Ok(out)
}

fn fits(run: &Run<'_>, out: &mut Outcome) -> Result<()> {
    let rig = run.rig(Plan::usual())?;
    let load = Load::of(run, 4, if run.quick { 16 } else { 64 } * MIB);
    load.lay_out(&rig)?;
    let mut percent = 0;
    let writes = Samples::take(run.rounds(), &rig.whos(), |who| {
        rig.settle(who)?;
        let alone = load.run(&rig, who, &["streams"], true, 1)?;
        let beside = load.run(&rig, who, &["streams", "random"], true, 1)?;
        if who == Who::Back {
            percent = percent.max(rig.report()?.dirty_percent);
        }
        Ok(vec![stream(&alone), stream(&beside), random(&beside)])
    })?;
    // What is read at random has been written at random before, and read once: all of it is in the cache.
    for section in ["write-each", "read-each"] {
        load.run(&rig, Who::Back, &[section], true, 0)?;
        rig.settle(Who::Back)?;
    }
    let reads = Samples::take(run.rounds(), &rig.whos(), |who| {
        let alone = load.run(&rig, who, &["streams"], false, 1)?;
        let beside = load.run(&rig, who, &["streams", "random"], false, 1)?;
        Ok(vec![stream(&alone), stream(&beside), random(&beside)])
    })?;
    let ssds = 2.0 * modelled::ssd().total_iops.unwrap_or(0) as f64;
    for (what, samples, random_mark) in
        [("write", &writes, 20.0), ("read", &reads, (0.9 * ssds / reads.median(Who::Front, 2)).min(20.0))]
    {
        samples.figure(out, format!("stream {what} alone"), "MB/s", 0);
        samples.figure(out, format!("stream {what} beside random {what}"), "MB/s", 1);
        samples.figure(out, format!("random {what} beside streams"), "1/s", 2);
        must(out, format!("stream {what} beside, by bare ALONE"), samples.ratio((Who::Back, 1), (Who::Front, 0)), 0.97);
        must(
            out,
            format!("random {what}, by bare beside the same load"),
            samples.ratio((Who::Back, 2), (Who::Front, 2)),
            random_mark,
        );
    }
    run.tax(out, &writes, &["stream write alone", "stream write beside", "random write beside"]);
    let bars = [Who::Bare, Who::Front, Who::Back].map(|who| {
        let values = [writes.median(who, 2), reads.median(who, 2)];
        (who, who.name().to_owned(), (0..).map(f64::from).zip(values).collect())
    });
    out.bars("4 KiB at random beside streams", "requests/s", Scale::Powers, &["write".into(), "read".into()], bars.into());
    out.note(format!("While it fits: at most {percent} % of the space for dirty data was taken at the end of a window."));
    run.fates(out, &rig)
}

fn full(run: &Run<'_>, out: &mut Outcome) -> Result<()> {
    // A disk takes a second's worth of the streams into its own cache: shorter windows see one part of that or another. And beside the
    // streams a sweep over the files takes a minute: until it has been round it finds what was written before they came, half as dense.
    let (random_bytes, ramp, seconds) = if run.quick { (64 * MIB, 6, 6) } else { (512 * MIB, 80, 20) };
    let load = Load { seconds, ..Load::of(run, 4, random_bytes) };
    let whos = vec![Who::Front, Who::Back];
    let rig = run.rig(Plan { ssd: small(load.randoms * load.random_bytes), whos: whos.clone(), ..Plan::usual() })?;
    load.lay_out(&rig)?;
    let mut percent = Vec::new();
    let samples = Samples::take(run.rounds().min(3), &whos, |who| {
        // Between the turns it is written down: it fills again before anything counts.
        load.run(&rig, who, &["random"], true, 0)?;
        if who == Who::Back {
            percent.push(rig.report()?.dirty_percent);
        }
        let beside = load.run(&rig, who, &["streams", "random"], true, ramp)?;
        if who == Who::Back {
            percent.push(rig.report()?.dirty_percent);
        }
        Ok(vec![stream(&beside), random(&beside)])
    })?;
    samples.figure(out, "cache full: stream write beside random write", "MB/s", 0);
    samples.figure(out, "cache full: random write beside streams", "1/s", 1);
    must(out, "cache full: stream write, by bare beside the same load", samples.ratio((Who::Back, 0), (Who::Front, 0)), 0.97);
    must(out, "cache full: random write, by bare beside the same load", samples.ratio((Who::Back, 1), (Who::Front, 1)), 5.0);
    let percent: Vec<String> = percent.iter().map(u32::to_string).collect();
    out.note(format!(
        "Cache full: {} % of the space for dirty data was taken when loads began and ended. Bare is behind the same front end here, no more \
         than three rounds are taken, and {seconds} seconds count after {ramp}.",
        percent.join(", ")
    ));
    run.fates(out, &rig)
}

/// Bytes of an SSD whose space for writes is 9 % of a region, as far as there can be one so small.
pub(super) fn small(region: u64) -> u64 {
    // An eighth is kept for reclaim, and superblocks and intent map take some of it.
    (region * 9 / 100 * 10 / 8 * 104 / 100).next_multiple_of(MIB).max(64 * MIB)
}

/// C3: the random share grows.
pub fn c3(run: &Run<'_>) -> Result<Outcome> {
    let mut out = Outcome::default();
    let rig = run.rig(Plan::usual())?;
    // A file system commits its journal every five seconds, with a flush for which the disk stands still for most of one; afterwards its empty
    // cache takes more than its share. A window of three seconds has that or not. One of ten, which begins after a second, would end just
    // where the second standstill does, without what makes up for it.
    let most = Load { seconds: if run.quick { 3 } else { 12 }, ..Load::of(run, 12, 8 * MIB) };
    most.lay_out(&rig)?;
    let points: &[u64] = if run.quick { &[0, 12] } else { &[0, 4, 8, 12] };
    let whos = [Who::Front, Who::Back];
    let samples = Samples::take(run.rounds(), &whos, |who| {
        let mut values = Vec::new();
        for randoms in points {
            rig.settle(who)?;
            let load = Load { randoms: *randoms, ..most };
            let sections: &[&str] = if *randoms == 0 { &["streams"] } else { &["streams", "random"] };
            values.push(stream(&load.run(&rig, who, sections, true, 1)?));
        }
        Ok(values)
    })?;
    for (n, randoms) in points.iter().enumerate() {
        samples.figure(&mut out, format!("stream write, {} streams and {randoms} random writers", most.streams), "MB/s", n);
        must(
            &mut out,
            format!("streams beside {randoms} random writers, by bare ALONE"),
            samples.ratio((Who::Back, n), (Who::Front, 0)),
            0.95,
        );
    }
    let line = |who: Who| {
        let values = (0..points.len()).map(|n| samples.median(who, n));
        let threads = points.iter().map(|randoms| (most.streams + randoms) as f64);
        (who, who.name().to_owned(), threads.zip(values).collect())
    };
    out.lines("Streams beside random writes", "processes", "MB/s", Scale::Linear, whos.map(line).into());
    run.fates(&mut out, &rig)?;
    Ok(out)
}
