//! The demonstration: what the cache does for loads on a rotating disk, and that it loses nothing when it is killed.
//!
//! The story is told here from top to bottom. [`stage`] has the devices and the daemon, [`load`] the loads and the check
//! of what they wrote against their [`record`], [`figures`] what follows from it, [`report`] how it is shown.

mod daemon;
mod figures;
mod filesystem;
mod load;
#[cfg(test)]
mod memory;
mod pattern;
mod progress;
mod record;
mod report;
mod stage;
mod target;

pub use daemon::{Daemon, Frontend};
pub use figures::{Figures, number};
pub use filesystem::{FileSystem, Mounted};
pub use report::{escape, open, page, plot, ratios, terminal};
pub use stage::{Devices, Folder};

use anyhow::{Context, Result, bail};
use figures::{Check, Dirty, Loads, Measurement, Reached, Setup, WARM_UP};
use filesystem::Files;
use headpond_engine::Settings;
use headpond_host::report::Report;
use headpond_sim::models::rotating::RotatingParams;
use load::{BUCKET, Load, Series, Shape, Span, check};
use pattern::{SECTOR, mix};
use progress::Progress;
use record::{Before, Record, Verdict};
use rustix::fs::SeekFrom;
use stage::{Front, Stage, make_file, write_once};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant, SystemTime};
use target::Place;

/// Requests outstanding of the stream, and of mixed writes.
const DEPTH: usize = 8;
/// Random writes outstanding.
const RANDOM_DEPTH: usize = 32;
/// Bytes of the stream's requests.
const LONG: usize = 1 << 20;
const SHORT: usize = 128 << 10;
/// For how long the loads run before the daemon is killed.
const BEFORE_KILL: Duration = Duration::from_millis(1700);
/// How often the dirty set is looked at.
const LOOK: Duration = Duration::from_millis(100);
/// How long a front end may take to be there, which may have to wait for a slow machine's disks.
const PATIENCE: Duration = Duration::from_secs(120);
/// How long the first file may take to be durable.
const FIRST_FILE: Duration = Duration::from_secs(60);
/// The longest that each SSD that is made is written over beforehand.
const SSD_PATIENCE: Duration = Duration::from_secs(4);
/// Size of the disk that is made for the file system of the last act.
const FILE_SYSTEM_BYTES: u64 = 1 << 30;

/// What is to be shown.
pub struct Plan {
    /// The folder of all that is made; it does not exist yet.
    pub folder: PathBuf,
    /// Whether it stays.
    pub keep: bool,
    /// Devices that were given, and may be overwritten; otherwise files are made.
    pub given: Option<Devices>,
    /// Bytes of the disk that is made.
    pub size: u64,
    /// Bytes of each SSD that is made.
    pub ssd_bytes: u64,
    /// How long a measurement counts.
    pub measured: Duration,
    /// Rounds of measurements.
    pub rounds: u32,
    /// Bytes of the stream's region and of the random writes'.
    pub regions: [u64; 2],
    /// Whether the promises on speed are judged.
    pub judged: bool,
    /// Do it through files on this file system.
    pub file_system: Option<FileSystem>,
}

/// Plays all of it. `stop` ends it early; what was set up is gone afterwards in any case.
pub fn play(plan: &Plan, stop: &AtomicBool) -> Result<Figures> {
    let rounds = rounds(plan.rounds);
    let mut progress = Progress::new(planned(plan, &rounds));
    let _folder = Folder::make(&plan.folder, plan.keep)?;

    progress.step();
    let devices = devices(plan)?;
    let mut act = Act::begin(plan, devices.clone(), stop)?;
    progress.done(&format!("{} and {} SSDs", devices.disk.display(), devices.ssds.len()));
    let mut figures = Figures::begin(plan.measured, plan.judged);
    act.measure_all(rounds, &mut figures, &mut progress, plan.measured)?;
    // A promise that seems broken may be one bad round of the machine's: one more of what was measured for it tells.
    let last = plan.rounds + 1;
    let more: Vec<Turn> = figures.once_more().into_iter().map(|(setup, loads)| (last, setup, loads)).collect();
    progress.insert(planned_turns(&more, plan.measured));
    act.measure_all(more, &mut figures, &mut progress, plan.measured)?;
    let mut checks = Vec::new();
    let mut checked = |progress: &Progress, check: Check| {
        let word = if check.passed == Some(true) { "passed" } else { "FAILED" };
        progress.done(&format!("{word}, {:.1} s", check.took_s));
        checks.push(check);
    };
    progress.step();
    checked(&progress, act.kill_in_mid_write()?);
    progress.step();
    checked(&progress, act.take_one_ssd_away()?);
    progress.step();
    checked(&progress, act.detach()?);
    let method = method(plan, &act);
    drop(act);

    if plan.file_system.is_none() {
        progress.step();
        match FileSystem::any() {
            Ok(system) => checked(&progress, file_system(plan, &devices, system, stop)?),
            Err(why) => {
                progress.done(&format!("left out: {why}"));
                checks.push(Check { what: "A real file system".into(), found: why, passed: None, took_s: 0.0 });
            }
        }
    }
    Ok(Figures { method, checks, took_s: progress.elapsed().as_secs_f64(), ..figures })
}

/// One measurement: in which round, with what between client and disk, of which loads.
type Turn = (u32, Setup, Loads);

/// The measurements in order. The setups take turns at being first, so that slow changes of the machine touch all alike.
fn rounds(rounds: u32) -> Vec<Turn> {
    let bare = [Loads::Stream, Loads::ShortStream, Loads::Random, Loads::Both].map(|loads| (Setup::Bare, loads));
    let cached = [
        (Setup::WriteThrough, Loads::Both),
        (Setup::WriteBack, Loads::Stream),
        (Setup::WriteBack, Loads::ShortStream),
        (Setup::WriteBack, Loads::Random),
        (Setup::WriteBack, Loads::Both),
    ];
    let mut turns = Vec::new();
    for round in 1..=rounds {
        let order: [&[(Setup, Loads)]; 2] = if round % 2 == 1 { [&bare, &cached] } else { [&cached, &bare] };
        turns.extend(order.into_iter().flatten().map(|(setup, loads)| (round, *setup, *loads)));
    }
    turns
}

/// All steps by name, and how long each is thought to take.
fn planned(plan: &Plan, turns: &[Turn]) -> Vec<(String, Duration)> {
    let region = Duration::from_secs_f64(plan.regions[0] as f64 / 190e6);
    let second = Duration::from_secs(1);
    let mut steps = vec![("setting up".to_owned(), 4 * second)];
    steps.extend(planned_turns(turns, plan.measured));
    steps.push(("killing the daemon in mid-write".into(), BEFORE_KILL + region + second));
    steps.push(("taking one SSD away".into(), BEFORE_KILL + region + second));
    steps.push(("detaching; the disk alone".into(), 5 * second));
    if plan.file_system.is_none() {
        steps.push(("a real file system, killed under load".into(), 12 * second));
    }
    steps
}

/// Measurements by name, and how long each is thought to take.
fn planned_turns(turns: &[Turn], measured: Duration) -> Vec<(String, Duration)> {
    let second = Duration::from_secs(1);
    let planned = turns.iter().map(|(round, setup, loads)| {
        // The dirty set goes down before and after; a bare disk empties its own write cache.
        let settling =
            if *setup == Setup::WriteBack && matches!(loads, Loads::Random | Loads::Both) { 2 * second } else { second / 2 };
        (format!("round {round}, {}, {}", setup.name(), loads.name()), WARM_UP + measured + settling)
    });
    planned.collect()
}

/// The devices that were given, or files.
fn devices(plan: &Plan) -> Result<Devices> {
    if let Some(devices) = &plan.given {
        return Ok(devices.clone());
    }
    let disk = plan.folder.join("disk");
    let [stream, random] = plan.regions;
    let far = random + random / 4 + LONG as u64;
    make_file(&disk, plan.size, &[(0, stream), (plan.size.saturating_sub(far), far)])?;
    let ssds = ["ssd-0", "ssd-1"].map(|name| plan.folder.join(name));
    for ssd in &ssds {
        make_file(ssd, plan.ssd_bytes, &[(0, plan.ssd_bytes)])?;
        write_once(ssd, SSD_PATIENCE)?;
    }
    Ok(Devices { disk, modelled: true, ssds: ssds.into() })
}

/// The loads with their regions on a volume that is served.
struct Act<'a> {
    stage: Stage,
    stop: &'a AtomicBool,
    stream: Load,
    random: Load,
    /// Joins where the daemon is killed.
    mixed: Load,
    /// The mode of the volume, as far as it was set.
    mode: Option<Setup>,
    /// Whether what no load wrote must be zeroes, on the disk as a whole.
    zeroes_elsewhere: bool,
}

impl Act<'_> {
    /// Sets the stage. The stream's region is in front, the others are as far from it as there is room.
    fn begin<'a>(plan: &Plan, devices: Devices, stop: &'a AtomicBool) -> Result<Act<'a>> {
        let [stream, random] = plan.regions;
        let mixed = random / 4;
        let front = plan.file_system.map_or(Front::Nbd, Front::File);
        let stage = Stage::set_up(&plan.folder, devices, front)?;
        let volume = stage.report()?.volumes.first().map_or(0, |volume| volume.bytes);
        let (size, before) = match (front, &plan.given) {
            (Front::File(_), _) => (stream + random + mixed, Before::Zeroes),
            (Front::Nbd, Some(_)) => (volume, Before::Unknown),
            (Front::Nbd, None) => (volume, Before::Zeroes),
        };
        if size < stream + random + mixed {
            bail!("the disk is too small: the demo needs {} MiB of it", (stream + random + mixed) >> 20);
        }
        if front != Front::Nbd {
            fill_with_zeroes(&stage.load_file(), size, stop)?;
        }
        let far = (size - random - mixed) / LONG as u64 * LONG as u64;
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |it| it.as_nanos() as u64);
        let record = |n: u64, from: u64, length: u64| {
            let sectors = from / SECTOR as u64..(from + length) / SECTOR as u64;
            Record::new(sectors, mix(now ^ n), before)
        };
        Ok(Act {
            stage,
            stop,
            stream: Load::new(record(1, 0, stream), Shape::Stream(LONG), DEPTH),
            random: Load::new(record(2, far, random), Shape::Random, RANDOM_DEPTH),
            mixed: Load::new(record(3, far + random, mixed), Shape::Mixed, DEPTH),
            mode: None,
            zeroes_elsewhere: front == Front::Nbd && plan.given.is_none(),
        })
    }

    /// Takes these turns.
    fn measure_all(
        &mut self,
        turns: Vec<Turn>,
        figures: &mut Figures,
        progress: &mut Progress,
        measured: Duration,
    ) -> Result<()> {
        for (round, setup, loads) in turns {
            progress.step();
            let measurement = self.measure(round, setup, loads, measured)?;
            progress.done(&shown(&measurement));
            figures.measurements.push(measurement);
        }
        Ok(())
    }

    /// Runs loads for a while, and watches the dirty set meanwhile.
    fn measure(&mut self, round: u32, setup: Setup, loads: Loads, measured: Duration) -> Result<Measurement> {
        self.enter(setup)?;
        let back = setup == Setup::WriteBack;
        if back {
            self.stage.destage()?;
        }
        let place = self.stage.place();
        let open = |wanted: bool| wanted.then(|| place.open(PATIENCE)).transpose();
        let mut to_stream = open(loads != Loads::Random)?;
        let mut to_random = open(matches!(loads, Loads::Random | Loads::Both))?;
        if to_stream.is_some() {
            self.stream.reshape(Shape::Stream(if loads == Loads::ShortStream { SHORT } else { LONG }), DEPTH);
        }
        let (stage, stream, random) = (&self.stage, &mut self.stream, &mut self.random);
        let span = Span { start: Instant::now(), length: WARM_UP + measured, stop: self.stop };
        let ended = AtomicBool::new(false);
        let (streamed, randomed, dirty) = thread::scope(|scope| {
            let streaming = scope.spawn(|| to_stream.as_mut().map(|to| stream.run(&mut **to, span)).transpose());
            let randoming = scope.spawn(|| to_random.as_mut().map(|to| random.run(&mut **to, span)).transpose());
            let watching = scope.spawn(|| back.then(|| watch(stage, span, &ended)).transpose());
            let ends = (joined(streaming), joined(randoming));
            ended.store(true, Ordering::Relaxed);
            (ends.0, ends.1, joined(watching))
        });
        let (streamed, randomed) = (streamed.map_err(|it| it.0)?, randomed.map_err(|it| it.0)?);
        let dirty = dirty?;
        self.go_on()?;
        let first = WARM_UP.div_duration_f64(BUCKET).ceil() as usize;
        let fitted = dirty.as_ref().map_or(usize::MAX, |dirty| (dirty.fitted_s / BUCKET.as_secs_f64()) as usize);
        // With the dirty set full at once there is nothing to promise, and yet something to show.
        let counted = first..fitted.max(first + 1);
        let reached =
            |series: Option<Series>, load: &Load| series.map(|it| Reached::new(&it, load.request_bytes(), counted.clone()));
        Ok(Measurement {
            setup,
            loads,
            round,
            stream: reached(streamed, &self.stream),
            random: reached(randomed, &self.random),
            dirty,
        })
    }

    /// Switches the mode, if it is another.
    fn enter(&mut self, setup: Setup) -> Result<()> {
        if self.mode != Some(setup) {
            self.stage.mode(setup.mode())?;
            self.mode = Some(setup);
        }
        Ok(())
    }

    /// An error if it is to end.
    fn go_on(&self) -> Result<()> {
        if self.stop.load(Ordering::Relaxed) { Err(Interrupted.into()) } else { Ok(()) }
    }

    /// Runs all loads in write-back and kills the daemon under them.
    fn kill(&mut self) -> Result<()> {
        self.enter(Setup::WriteBack)?;
        self.stream.reshape(Shape::Stream(LONG), DEPTH);
        let place = self.stage.place();
        let mut targets = [place.open(PATIENCE)?, place.open(PATIENCE)?, place.open(PATIENCE)?];
        let span = Span { start: Instant::now(), length: 100 * BEFORE_KILL, stop: self.stop };
        let (stage, loads) = (&mut self.stage, [&mut self.stream, &mut self.random, &mut self.mixed]);
        let survived = thread::scope(|scope| {
            let running: Vec<_> =
                loads.into_iter().zip(&mut targets).map(|(load, target)| scope.spawn(|| load.run(&mut **target, span))).collect();
            thread::sleep(BEFORE_KILL);
            let killed = stage.kill();
            let survived = running.into_iter().map(joined).filter(Result::is_ok).count();
            killed.map(|()| survived)
        })?;
        self.go_on()?;
        if survived > 0 {
            bail!("{survived} loads did not notice that the daemon was killed");
        }
        Ok(())
    }

    /// Reads all that was written from `place`, and holds it against the records.
    fn check(&mut self, place: &Place) -> Result<Verdict> {
        let mut target = place.open(PATIENCE)?;
        let mut verdict = Verdict::default();
        for load in [&mut self.stream, &mut self.random, &mut self.mixed] {
            verdict.add(check(&mut load.record, &mut *target, self.stop)?);
        }
        self.go_on()?;
        Ok(verdict)
    }

    fn kill_in_mid_write(&mut self) -> Result<Check> {
        self.kill()?;
        let begun = Instant::now();
        let ssds = self.stage.devices().ssds.clone();
        let up = self.stage.restart(&ssds)?.as_secs_f64();
        let verdict = self.check(&self.stage.place())?;
        Ok(Check::of(format!("The daemon killed in mid-write and started again, up after {up:.1} s"), &verdict, begun.elapsed()))
    }

    /// Kills it once more, and starts it without the first SSD.
    fn take_one_ssd_away(&mut self) -> Result<Check> {
        self.kill()?;
        let begun = Instant::now();
        let left = self.stage.devices().ssds[1..].to_vec();
        let up = self.stage.restart(&left)?.as_secs_f64();
        let verdict = self.check(&self.stage.place())?;
        Ok(Check::of(format!("Killed again, and started without the first SSD, up after {up:.1} s"), &verdict, begun.elapsed()))
    }

    /// Detaches the volume from what is left of its pool, and reads the disk itself.
    fn detach(&mut self) -> Result<Check> {
        let begun = Instant::now();
        self.stage.detach()?;
        let detached = begun.elapsed().as_secs_f64();
        let (place, mounted) = self.stage.disk_alone()?;
        let verdict = self.check(&place)?;
        if let Some(mounted) = mounted {
            mounted.unmount()?;
        }
        let mut check = Check::of(format!("Detached in {detached:.1} s; the disk alone"), &verdict, begun.elapsed());
        if self.zeroes_elsewhere {
            let regions = [&self.stream, &self.random, &self.mixed].map(|it| it.record.region());
            let touched = sectors_not_zero(&self.stage.devices().disk, &regions)?;
            check.found += &format!(", {} sectors beside them touched", number(touched as f64));
            check.passed = Some(check.passed == Some(true) && touched == 0);
        }
        self.stage.free_ssds()?;
        Ok(check)
    }
}

/// Somebody wants it to end.
#[derive(Debug, thiserror::Error)]
#[error("Interrupted. All that was started was ended")]
struct Interrupted;

/// A thread's result. What it panicked with has been said.
fn joined<T>(thread: thread::ScopedJoinHandle<'_, T>) -> T {
    thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// Looks at the dirty set until the loads have ended, and for how long it fitted: until destage begins beside them.
fn watch(stage: &Stage, span: Span<'_>, ended: &AtomicBool) -> Result<Dirty> {
    let begins = Settings::default().destage_percent;
    let mut dirty = Dirty { fitted_s: span.length.as_secs_f64(), ..Dirty::default() };
    let before = fates(&stage.report()?);
    while !ended.load(Ordering::Relaxed) && span.start.elapsed() < span.length {
        let report = stage.report()?;
        let at = span.start.elapsed().as_secs_f64();
        let (bytes, destaging) = report.volumes.first().map_or((0, false), |volume| (volume.dirty_bytes, volume.destaging));
        dirty.most_bytes = dirty.most_bytes.max(bytes);
        dirty.percent_at_end = report.dirty_percent;
        // It begins by what is taken, or before that by what the dirty set will take of the space.
        if destaging || report.dirty_percent > begins {
            dirty.fitted_s = dirty.fitted_s.min(at);
        }
        let since = fates(&report).into_iter().map(|(fate, bytes)| {
            let earlier = before.get(&fate).copied().unwrap_or(0);
            (fate, bytes - earlier)
        });
        dirty.fates = since.collect();
        thread::sleep(LOOK);
    }
    Ok(dirty)
}

/// What became of writes since the daemon's start, in bytes.
fn fates(report: &Report) -> BTreeMap<String, u64> {
    let mut fates = BTreeMap::new();
    for volume in &report.volumes {
        fates.insert("absorbed".into(), volume.requests.absorbed.bytes);
        fates.insert("destaged".into(), volume.requests.destaged.bytes);
        let bypassed = volume.requests.write_bypass.iter();
        fates.extend(bypassed.map(|(reason, pair)| (format!("past the cache: {reason}"), pair.bytes)));
    }
    fates
}

/// What a measurement brought, in a few words.
fn shown(measurement: &Measurement) -> String {
    let stream = measurement.stream.as_ref().map(|it| format!("stream {:.1} MB/s", it.mean_bytes_per_s / 1e6));
    let random = measurement.random.as_ref().map(|it| format!("random {} writes/s", number(it.mean_requests_per_s)));
    stream.into_iter().chain(random).collect::<Vec<_>>().join(", ")
}

/// Makes a file of zeroes that are really there, so that writing to it later changes nothing in the file system.
fn fill_with_zeroes(path: &Path, size: u64, stop: &AtomicBool) -> Result<()> {
    let file = File::create(path).with_context(|| format!("{} cannot be made", path.display()))?;
    let zeroes = vec![0; LONG];
    let mut at = 0;
    while at < size && !stop.load(Ordering::Relaxed) {
        let length = (size - at).min(LONG as u64) as usize;
        file.write_all_at(&zeroes[..length], at)?;
        at += length as u64;
    }
    Ok(file.sync_all()?)
}

/// How many sectors of a file are not zero, beside some regions of it.
fn sectors_not_zero(path: &Path, but: &[Range<u64>]) -> Result<u64> {
    let file = File::open(path)?;
    let size = file.metadata()?.len();
    let mut but: Vec<Range<u64>> = but.iter().map(|it| it.start * SECTOR as u64..it.end * SECTOR as u64).collect();
    but.sort_unstable_by_key(|region| region.start);
    but.push(size..size);
    let (mut at, mut found, mut room) = (0, 0, vec![0; LONG]);
    for region in but {
        while at < region.start {
            // Holes are zeroes, and need not be read.
            at = match rustix::fs::seek(&file, SeekFrom::Data(at)) {
                Ok(data) if data < region.start => data,
                Ok(_) | Err(rustix::io::Errno::NXIO) => break,
                Err(error) => return Err(error.into()),
            };
            let data = &mut room[..((region.start - at) as usize).min(LONG)];
            file.read_exact_at(data, at)?;
            found += data.chunks(SECTOR).filter(|sector| sector.iter().any(|byte| *byte != 0)).count() as u64;
            at += data.len() as u64;
        }
        at = at.max(region.end);
    }
    Ok(found)
}

/// The last act: a real file system on the volume, files made durable on it, the daemon killed under them.
fn file_system(plan: &Plan, devices: &Devices, system: FileSystem, stop: &AtomicBool) -> Result<Check> {
    let begun = Instant::now();
    let folder = plan.folder.join("fs");
    fs::create_dir(&folder)?;
    let mut devices = devices.clone();
    if plan.given.is_none() {
        devices.disk = folder.join("disk");
        make_file(&devices.disk, FILE_SYSTEM_BYTES, &[])?;
    }
    let mut stage = Stage::set_up(&folder, devices.clone(), Front::File(system))?;
    stage.mode(Setup::WriteBack.mode())?;
    let mut files = Files::default();
    let (point, durable) = (stage.mount_point(), files.count());
    let killed = thread::scope(|scope| {
        let writing = scope.spawn(|| files.write(&point, stop));
        thread::sleep(BEFORE_KILL);
        // Where a flush takes half a second, none is durable yet.
        let until = Instant::now() + FIRST_FILE;
        while durable.load(Ordering::Relaxed) == 0 && !writing.is_finished() && Instant::now() < until {
            thread::sleep(LOOK);
        }
        stage.kill()
    });
    killed?;
    if stop.load(Ordering::Relaxed) {
        return Err(Interrupted.into());
    }
    stage.restart(&devices.ssds)?;
    let mut wrong = files.wrong(&point);
    stage.detach()?;
    let (_, mounted) = stage.disk_alone()?;
    wrong.extend(files.wrong(&point));
    if let Some(mounted) = mounted {
        mounted.unmount()?;
    }
    stage.free_ssds()?;
    let found = match wrong.len() {
        0 => format!("{} files had been made durable, all are whole, before and after the detach", number(files.len() as f64)),
        n => format!("{} files had been made durable, {n} are WRONG, such as number {}", number(files.len() as f64), wrong[0]),
    };
    let what = format!("{} on the volume, mounted; the daemon killed under load, started again, checked, mounted", system.name());
    // A run in which nothing became durable has shown nothing.
    let passed = Some(wrong.is_empty() && files.len() > 0);
    Ok(Check { what, found, passed, took_s: begun.elapsed().as_secs_f64() })
}

/// On what it was measured, and how.
fn method(plan: &Plan, act: &Act<'_>) -> Vec<(String, String)> {
    let uname = rustix::system::uname();
    let cores = thread::available_parallelism().map_or(1, usize::from);
    let mib = |bytes: u64| format!("{} MiB", number((bytes >> 20) as f64));
    let model = RotatingParams::nearline_7200();
    let devices = act.stage.devices();
    let disk = match devices.modelled {
        true => format!(
            "a file of {} at the pace of a model, in real time: {} rpm, {} MB/s outside, {:.1} ms mean seek, a write cache of {}, a              queue of {}",
            mib(plan.size),
            model.rpm,
            model.outer_rate / 1_000_000,
            model.seek_average_ns as f64 / 1e6,
            mib(model.write_cache_bytes),
            model.queue_depth
        ),
        false => devices.disk.display().to_string(),
    };
    let ssds = match &plan.given {
        Some(given) => given.ssds.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(", "),
        None => format!(
            "{} files of {} each, as fast as the storage under {}",
            devices.ssds.len(),
            mib(plan.ssd_bytes),
            plan.folder.display()
        ),
    };
    let way = match plan.file_system {
        Some(system) => format!("direct I/O to one file on {}, on a loop device over FUSE", system.name()),
        None => "NBD on a Unix socket, a connection for each load".into(),
    };
    let [stream, random] = plan.regions;
    let rows = [
        ("Machine", format!("{cores} cores, {} {}", uname.sysname().to_string_lossy(), uname.release().to_string_lossy())),
        ("Disk", disk),
        ("SSDs", ssds),
        ("Way to the volume", format!("{way}; the bare disk is reached the same way, in pass-through")),
        ("Stream", format!("writes of 1 MiB, and of 128 KiB, one after the other, {DEPTH} outstanding, over {}", mib(stream))),
        ("Random", format!("writes of 4 KiB, aligned, {RANDOM_DEPTH} outstanding, over {}", mib(random))),
        (
            "Measurements",
            format!(
                "{} rounds, and one more of what seems to fall short; each measurement {:.2} s, of which {:.2} s count",
                plan.rounds,
                (WARM_UP + plan.measured).as_secs_f64(),
                plan.measured.as_secs_f64()
            ),
        ),
        (
            "Checks",
            "every sector carries its number, its write's number and a checksum; the client keeps which writes were acknowledged, and \
             reads all of it back"
                .into(),
        ),
    ];
    rows.into_iter().map(|(what, how)| (what.to_owned(), how)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_turn_is_planned_and_the_setups_take_turns_at_being_first() {
        let turns = rounds(2);
        assert_eq!(turns.len(), 18);
        assert_eq!((turns[0].1, turns[17].1), (Setup::Bare, Setup::Bare));
        assert_eq!((turns[8].1, turns[9].1), (Setup::WriteBack, Setup::WriteThrough));
    }

    #[test]
    fn what_is_written_beside_the_regions_is_found() {
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len(64 << 20).unwrap();
        let regions = [100_000..120_000, 10..2000];
        assert_eq!(sectors_not_zero(file.path(), &regions).unwrap(), 0);
        for sector in [9, 10, 1999, 2000, 99_999, 100_000, 119_999, 120_000, 131_071] {
            file.as_file().write_all_at(&[1], sector * SECTOR as u64 + 100).unwrap();
        }
        assert_eq!(sectors_not_zero(file.path(), &regions).unwrap(), 5);
    }
}
