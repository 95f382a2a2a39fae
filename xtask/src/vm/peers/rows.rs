//! The rows of the table: what each contender is asked to do, in one order, and what is counted.

use super::super::rig::Rig;
use anyhow::{Context, Result, bail};
use serde_json::Value;
use std::fmt::Write as _;
use std::fs;
use std::time::Duration;

/// How much of everything.
#[derive(Clone, Copy, Debug)]
pub struct Scale {
    /// Bytes of each SSD, which is the size of a mirrored cache.
    pub cache: u64,
    /// The hot set, from the disk's first byte on.
    pub hot: u64,
    /// What random writes go to that are to pass the cache's size, from the first byte on.
    pub past: u64,
    /// What each of the two streams has to itself, behind that.
    pub stream: u64,
    /// Seconds after which a fill ends that is not through.
    pub fill: u64,
    /// Seconds of random reads before those that count, for whoever caches what is read.
    pub warm: u64,
    /// Seconds at the begin of other loads that do not count.
    pub ramp: u64,
    /// Seconds that count.
    pub seconds: u64,
    /// Seconds of random writes past the cache's size that do not count, and that do.
    pub past_seconds: (u64, u64),
    /// Seconds after which nobody waits any more for a cache to be clean.
    pub clean: u64,
}

impl Scale {
    /// What the table is made of.
    pub const FULL: Scale = Scale {
        cache: 1 << 30,
        hot: 512 << 20,
        past: 4 << 30,
        stream: 2 << 30,
        fill: 60,
        warm: 30,
        ramp: 5,
        seconds: 20,
        past_seconds: (120, 60),
        clean: 240,
    };

    /// Half the size, in a third of the time. A bcache of much less than 512 MiB does not start.
    pub const SHORT: Scale = Scale {
        cache: 512 << 20,
        hot: 256 << 20,
        past: 2 << 30,
        stream: 1 << 30,
        fill: 15,
        warm: 6,
        ramp: 2,
        seconds: 6,
        past_seconds: (32, 10),
        clean: 40,
    };

    /// Bytes of the disk.
    pub fn disk(&self) -> u64 {
        self.past + 2 * self.stream
    }
}

/// A figure of a row; some rows have two.
pub struct Metric {
    /// Its name in JSON.
    pub key: &'static str,
    /// The row that it is of.
    pub row: &'static str,
    /// What it is called in the table.
    pub label: &'static str,
    /// What it is counted in.
    pub unit: &'static str,
    /// Less is better.
    pub less: bool,
    /// The bare disk takes part: it has nothing to clean, and nothing to start.
    pub bare: bool,
}

const fn rate(key: &'static str, row: &'static str, label: &'static str, unit: &'static str) -> Metric {
    Metric { key, row, label, unit, less: false, bare: true }
}

const fn time(key: &'static str, row: &'static str, label: &'static str) -> Metric {
    Metric { key, row, label, unit: "s", less: true, bare: false }
}

/// All of them, in the order in which they are measured.
pub const METRICS: [Metric; 12] = [
    rate("fill", "fill", "fill, random 4 KiB writes", "IOPS"),
    rate("read", "read", "random 4 KiB reads of what was filled", "IOPS"),
    rate("sync", "sync", "synchronous 4 KiB write, flush each", "IOPS"),
    time("clean", "clean", "told to clean, until all is on the disk"),
    rate("stream-write", "stream-write", "stream write", "MB/s"),
    rate("stream-read", "stream-read", "stream read", "MB/s"),
    rate("beside-writes-stream", "beside-writes", "stream write beside random writes: the stream", "MB/s"),
    rate("beside-writes-random", "beside-writes", "stream write beside random writes: these", "IOPS"),
    rate("beside-reads-stream", "beside-reads", "stream read beside random reads: the stream", "MB/s"),
    rate("beside-reads-random", "beside-reads", "stream read beside random reads: these", "IOPS"),
    rate("past", "past", "random 4 KiB writes past the cache's size, steady", "IOPS"),
    time("restart", "restart", "power cut under random writes: until a block is read and written"),
];

/// The rows' names, in their order.
pub fn names() -> Vec<&'static str> {
    let mut names: Vec<&str> = METRICS.iter().map(|metric| metric.row).collect();
    names.dedup();
    names
}

/// A value, and whether it is only known to be at least that.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Sample {
    /// The value.
    pub value: f64,
    /// Nobody waited for the end.
    pub beyond: bool,
}

impl Sample {
    fn of(value: f64) -> Sample {
        Sample { value, beyond: false }
    }
}

/// What a contender did in one round.
#[derive(Default)]
pub struct Run {
    /// By the metric's key.
    pub samples: Vec<(&'static str, Sample)>,
    /// What is worth knowing beside: KiB that were dirty when it was told to clean.
    pub dirty_kib: Option<u64>,
}

impl Run {
    fn note(&mut self, key: &'static str, sample: Sample) {
        self.samples.push((key, sample));
    }
}

/// Has the contender that is up in the rig's guest do the rows that are wanted, in order.
pub fn measure(rig: &mut Rig, contender: &str, wanted: &[&str], scale: &Scale, round: u64) -> Result<Run> {
    let mut run = Run::default();
    let wants = |row: &str| wanted.contains(&row);
    let rest_needs_fill = wanted.iter().any(|row| ["read", "sync", "clean", "beside-writes", "beside-reads"].contains(row));
    let jobs = Jobs { scale, round };
    if wants("fill") || rest_needs_fill {
        let fio = jobs.run(rig, "fill", &jobs.fill())?;
        if wants("fill") {
            run.note("fill", iops(&fio, "random", "write")?);
        }
    }
    if wants("read") {
        let fio = jobs.run(rig, "read", &jobs.read())?;
        run.note("read", iops(&fio, "random", "read")?);
    }
    if wants("sync") {
        let fio = jobs.run(rig, "sync", &jobs.sync())?;
        run.note("sync", iops(&fio, "sync", "write")?);
    }
    if wants("clean") {
        // A contender that cannot be interrupted may take longer than is waited for; it has that time.
        let limit = Duration::from_secs(scale.clean * 3 + 120);
        let said = rig.run_first_within(&format!(". /host/peers.sh\nclean {contender} {}", scale.clean * 100), limit)?;
        let (took, left) = (number(&said, "took")?, number(&said, "left")?);
        run.dirty_kib = Some(number(&said, "dirty")?);
        run.note("clean", Sample { value: took as f64 / 100.0, beyond: left > 0 });
    }
    if wants("stream-write") {
        let fio = jobs.run(rig, "stream-write", &jobs.stream("write"))?;
        run.note("stream-write", rate_of(&fio, "stream", "write")?);
    }
    if wants("stream-read") {
        let fio = jobs.run(rig, "stream-read", &jobs.stream("read"))?;
        run.note("stream-read", rate_of(&fio, "stream", "read")?);
    }
    for (row, kind, stream, random) in [
        ("beside-writes", "write", "beside-writes-stream", "beside-writes-random"),
        ("beside-reads", "read", "beside-reads-stream", "beside-reads-random"),
    ] {
        if wants(row) {
            let fio = jobs.run(rig, row, &(jobs.stream(kind) + &jobs.beside(kind)))?;
            run.note(stream, rate_of(&fio, "stream", kind)?);
            run.note(random, iops(&fio, "random", kind)?);
        }
    }
    if wants("past") {
        let fio = jobs.run(rig, "past", &jobs.past())?;
        run.note("past", iops(&fio, "random", "write")?);
    }
    Ok(run)
}

/// Cuts the power under random writes, boots again, and has the contender set up again.
pub fn restart(rig: &mut Rig, contender: &str, scale: &Scale, round: u64) -> Result<(&'static str, Sample)> {
    let jobs = Jobs { scale, round };
    fs::write(rig.share().join("cut.fio"), jobs.file(&jobs.beside("write")))?;
    rig.run(". /host/peers.sh\nTARGET=$(target) fio /host/cut.fio </dev/null >/tmp/cut.log 2>&1 3<&- &")?;
    rig.sleep(Duration::from_secs(scale.ramp))?;
    rig.power_cut()?;
    rig.boot()?;
    let said = rig.run_first(&format!(". /host/peers.sh\nup_again {contender}"))?;
    Ok(("restart", Sample::of(number(&said, "took")? as f64 / 100.0)))
}

/// fio's jobs.
struct Jobs<'a> {
    scale: &'a Scale,
    round: u64,
}

impl Jobs<'_> {
    /// All write or read past the page cache, at the same places in each round whoever is asked.
    fn file(&self, jobs: &str) -> String {
        let seed = self.round;
        format!(
            "[global]\nfilename=${{TARGET}}\nioengine=libaio\ndirect=1\nthread=1\ngtod_reduce=1\nrandseed={seed}\ndisk_util=0\n{jobs}"
        )
    }

    /// Every block of the hot set once, in a random order, as far as the time goes.
    fn fill(&self) -> String {
        let Scale { hot, fill, .. } = self.scale;
        format!("[random]\nrw=randwrite\nbs=4k\niodepth=32\nsize={hot}\nruntime={fill}\n")
    }

    fn read(&self) -> String {
        let Scale { hot, warm, seconds, .. } = self.scale;
        let time = timed(*warm, *seconds);
        format!("[random]\nrw=randread\nbs=4k\niodepth=32\nsize={hot}\nnorandommap=1\n{time}")
    }

    fn sync(&self) -> String {
        let Scale { hot, ramp, seconds, .. } = self.scale;
        let time = timed(*ramp, *seconds);
        format!("[sync]\nioengine=psync\nrw=randwrite\nbs=4k\nfsync=1\nsize={hot}\nnorandommap=1\n{time}")
    }

    fn stream(&self, kind: &str) -> String {
        let Scale { past, stream, ramp, seconds, .. } = self.scale;
        let offset = past + if kind == "write" { 0 } else { *stream };
        let time = timed(*ramp, *seconds);
        format!("[stream]\nrw={kind}\nbs=1m\niodepth=4\noffset={offset}\nsize={stream}\n{time}")
    }

    /// Random writes or reads of the hot set.
    fn beside(&self, kind: &str) -> String {
        let Scale { hot, ramp, seconds, .. } = self.scale;
        let time = timed(*ramp, *seconds);
        format!("[random]\nrw=rand{kind}\nbs=4k\niodepth=32\nsize={hot}\nnorandommap=1\n{time}")
    }

    fn past(&self) -> String {
        let Scale { past, past_seconds: (ramp, seconds), .. } = self.scale;
        let time = timed(*ramp, *seconds);
        format!("[random]\nrw=randwrite\nbs=4k\niodepth=32\nsize={past}\nnorandommap=1\n{time}")
    }

    /// Runs jobs in the guest; what fio counted.
    fn run(&self, rig: &mut Rig, name: &str, jobs: &str) -> Result<Value> {
        fs::write(rig.share().join(format!("{name}.fio")), self.file(jobs))?;
        // A disk that is far behind makes its load end late.
        rig.run_first_within(&format!(". /host/peers.sh\nmeasure {name}"), Duration::from_secs(900))
            .with_context(|| format!("in the row {name}"))?;
        let text = fs::read_to_string(rig.share().join(format!("{name}.json")))?;
        let from = text.find('{').with_context(|| format!("fio counted nothing in the row {name}"))?;
        Ok(serde_json::from_str(&text[from..])?)
    }
}

fn timed(ramp: u64, seconds: u64) -> String {
    let mut text = String::new();
    let _ = writeln!(text, "time_based=1\nramp_time={ramp}\nruntime={seconds}");
    text
}

fn job<'a>(fio: &'a Value, job: &str, kind: &str) -> Result<&'a Value> {
    let jobs = fio["jobs"].as_array().context("fio tells of no jobs")?;
    let found = jobs.iter().find(|it| it["jobname"] == job).with_context(|| format!("fio tells of no job {job}"))?;
    if found["error"].as_i64() != Some(0) {
        bail!("fio met error {}", found["error"]);
    }
    Ok(&found[kind])
}

fn iops(fio: &Value, name: &str, kind: &str) -> Result<Sample> {
    job(fio, name, kind)?["iops"].as_f64().map(Sample::of).context("fio tells no IOPS")
}

/// In MB/s.
fn rate_of(fio: &Value, name: &str, kind: &str) -> Result<Sample> {
    job(fio, name, kind)?["bw_bytes"].as_f64().map(|bytes| Sample::of(bytes / 1e6)).context("fio tells no rate")
}

/// The number after a word, at the beginning of a line.
fn number(said: &[String], word: &str) -> Result<u64> {
    let found = said.iter().filter_map(|line| line.strip_prefix(word)?.trim().parse().ok()).next_back();
    found.with_context(|| format!("the guest did not tell {word}; it said:\n    {}", said.join("\n    ")))
}
