//! `headpond bench`.

use std::fs;
use std::io::{IsTerminal, Write};
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{anyhow, bail};
use clap::Args;
use headpond_host::signals::Signals;
use headpond_sim::bench::hour::Stage;
use headpond_sim::bench::{Load, Options, catalogue, hours as long_loads, run_all, run_hours};

use crate::bench::hours::{self, Hours};
use crate::bench::real::shown::Shown;
use crate::bench::real::{self, Wanted};
use crate::bench::{Figures, json, page, terminal};
use crate::exit::Usage;

/// How nice the real form is to other work on the machine.
const NICE: i32 = -10;

/// Set by Ctrl-C.
static STOP: AtomicBool = AtomicBool::new(false);

/// Loads on a modelled rotating disk and modelled SSDs, in virtual time: the same seed gives the same figures. Or for real, on this machine,
/// with a daemon: a disk in pass-through and cached, by turns.
#[derive(Args)]
pub struct Bench {
    /// Only the loads whose name or setting contains this; several patterns are divided by |
    #[arg(long, value_name = "PATTERN")]
    only: Option<String>,
    /// List the loads and run none
    #[arg(long)]
    list: bool,
    /// Windows of a quarter of the length, and without the loads that take long
    #[arg(long)]
    quick: bool,
    /// Instead, loads of an hour over a full cache, minute by minute: no second under half of the mean, and p99.9 no longer than the
    /// bare disk's. Takes minutes
    #[arg(long, conflicts_with = "quick")]
    hour: bool,
    /// By the clock on the wall, as root, those of the loads that suit any devices: in pass-through and cached, by turns. On modelled devices
    /// unless others are given
    #[arg(long, conflicts_with_all = ["hour", "threads"])]
    real: bool,
    /// Turns of each [default: 3, with --quick 1]
    #[arg(long, value_name = "N", requires = "real", value_parser = clap::value_parser!(u16).range(1..))]
    rounds: Option<u16>,
    /// The folder in which it makes its own, and removes it [default: /var/tmp]
    #[arg(long, value_name = "DIR", requires = "real")]
    dir: Option<PathBuf>,
    /// The disk to do it on, instead of a modelled one; it is OVERWRITTEN. A partition will do
    #[arg(long, value_name = "DEVICE", requires_all = ["real", "ssds"])]
    disk: Option<PathBuf>,
    /// An SSD, instead of a modelled one; it is OVERWRITTEN. Two of them
    #[arg(long = "ssd", value_name = "DEVICE", id = "ssds", requires_all = ["real", "disk"])]
    ssds: Vec<PathBuf>,
    /// Yes, what is on the given devices may be erased
    #[arg(long, requires = "disk")]
    yes_erase: bool,
    /// What chance there is follows from it
    #[arg(long, default_value_t = 1, value_name = "N")]
    seed: u64,
    /// Threads [default: one for each core]
    #[arg(long, value_name = "N")]
    threads: Option<usize>,
    /// A page with the ratios drawn; with --hour, latencies and answers over the hour
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl Bench {
    pub fn run(self) -> anyhow::Result<()> {
        let loads = self.loads()?;
        if self.list && self.json {
            let listed: Vec<_> =
                loads.iter().map(|load| serde_json::json!({ "name": load.name, "setting": load.setting() })).collect();
            return super::print(true, &serde_json::json!(listed), "");
        }
        if self.list {
            let mut out = std::io::stdout().lock();
            for load in &loads {
                writeln!(out, "{:<60}{}", load.name, load.setting())?;
            }
            return Ok(());
        }
        // It fails now rather than in minutes.
        let file = self.report.as_ref().map(|path| {
            fs::File::create(path).map_err(|error| {
                anyhow!("{} cannot be written: {error}. Nothing was run. Name another file with --report", path.display())
            })
        });
        let file = file.transpose()?;
        if self.real {
            return self.for_real(&loads, file);
        }
        let threads = self.threads.unwrap_or_else(|| std::thread::available_parallelism().map_or(1, usize::from));
        if self.hour { self.hours(&loads, threads, file) } else { self.loads_by_ratio(&loads, threads, file) }
    }

    fn loads_by_ratio(&self, loads: &[Load], threads: usize, file: Option<fs::File>) -> anyhow::Result<()> {
        let options = Options { seed: self.seed, quick: self.quick };
        let (begun, done) = (Instant::now(), Mutex::new(0));
        let results = run_all(loads, options, threads, |load, result| {
            let Ok(mut done) = done.lock() else { return };
            *done += 1;
            let figure = match result {
                Ok(rows) => rows.iter().map(|row| format!("{:.3}", row.ratio)).collect::<Vec<_>>().join(", "),
                Err(why) => why.0.clone(),
            };
            let (took, count) = (begun.elapsed().as_secs(), loads.len());
            say(&format!("[{took:>3} s, {done:>3} of {count}]  {}: {figure}", load.name));
        });
        unsay();
        let mut figures = Figures { rows: Vec::new(), failures: Vec::new(), options };
        for (load, result) in loads.iter().zip(results) {
            match result {
                Ok(rows) => figures.rows.extend(rows),
                Err(why) => figures.failures.push((load.name.clone(), why.0)),
            }
        }
        if let Some(mut file) = file {
            file.write_all(page(&figures).as_bytes())?;
        }
        super::print(self.json, &json(&figures), terminal(&figures))?;
        ended(figures.failures.len())
    }

    fn hours(&self, loads: &[Load], threads: usize, file: Option<fs::File>) -> anyhow::Result<()> {
        let begun = Instant::now();
        let results = run_hours(loads, self.seed, threads, |load, stage| {
            let (what, minutes) = match stage {
                Stage::Bare(n) => (format!("minute {n} on the bare disk"), n),
                Stage::Filling => ("the cache is being filled".into(), 0),
                Stage::Cached(n) => (format!("minute {n} behind the engine"), n),
            };
            // A file need not hear of each minute.
            if std::io::stderr().is_terminal() || minutes % 10 == 0 {
                say(&format!("[{:>3} s]  {}: {what}", begun.elapsed().as_secs(), load.name));
            }
        });
        unsay();
        let mut hours = Hours { hours: Vec::new(), failures: Vec::new(), seed: self.seed };
        for (load, result) in loads.iter().zip(results) {
            match result {
                Ok(hour) => hours.hours.push(hour),
                Err(why) => hours.failures.push((load.name.clone(), why.0)),
            }
        }
        if let Some(mut file) = file {
            file.write_all(hours::page(&hours).as_bytes())?;
        }
        super::print(self.json, &hours::json(&hours), hours::terminal(&hours))?;
        ended(hours.failures.len())
    }

    /// One after the other, as they measure in real time. Where it is interrupted, those that have ended are shown.
    fn for_real(&self, loads: &[Load], file: Option<fs::File>) -> anyhow::Result<()> {
        let wanted = self.wanted()?;
        let dir = self.dir.clone().unwrap_or_else(|| "/var/tmp".into());
        let folder = std::path::absolute(dir)?.join(format!("headpond-bench-{}", std::process::id()));
        let signals = Signals::hold()?;
        std::thread::spawn(move || {
            while !signals.wait(Duration::from_secs(3600)) {}
            eprintln!("\nEnding; what was started is cleaned up.");
            STOP.store(true, Ordering::Relaxed);
        });
        // For all that it starts, too: else what is measured is what other work leaves of the cores.
        let _ = rustix::process::setpriority_process(None, NICE);
        let plan = real::Plan { rounds: usize::from(self.rounds.unwrap_or(if self.quick { 1 } else { 3 })), seed: self.seed };
        let begun = Instant::now();
        let mut stand = real::Stand::set_up(&folder, &wanted, &STOP).map_err(|error| {
            anyhow!("{error:#}. Nothing was measured, and what was begun was ended. Run it as root, with the kernel's FUSE and loop devices or ublk")
        })?;
        let on = format!("{}, behind {}", wanted.name(), stand.frontend.name());
        let mut shown = Shown { all: Vec::new(), failures: Vec::new(), rounds: plan.rounds, on };
        for (n, load) in loads.iter().enumerate() {
            let line = |what: &str| {
                say(&format!("[{:>4} s, {:>3} of {}]  {}: {what}", begun.elapsed().as_secs(), n + 1, loads.len(), load.name));
            };
            if std::io::stderr().is_terminal() {
                line("begins");
            }
            let result = real::run(load, plan, &mut stand);
            if STOP.load(Ordering::Relaxed) {
                break;
            }
            match result {
                Ok(rows) => {
                    line(&rows.iter().map(|it| format!("{:.3}", it.ratio.median)).collect::<Vec<_>>().join(", "));
                    shown.all.extend(rows);
                }
                Err(why) => {
                    let why = format!("{why:#}");
                    let why = why.trim_end_matches('.');
                    let why = format!("{why}. Run it again by itself with --only, and report it if it fails again");
                    line(&why);
                    shown.failures.push((load.name.clone(), why));
                }
            }
        }
        drop(stand);
        unsay();
        if let Some(mut file) = file {
            file.write_all(shown.page().as_bytes())?;
        }
        super::print(self.json, &shown.json(), shown.terminal())?;
        if STOP.load(Ordering::Relaxed) {
            bail!(
                "Interrupted. What had been run to its end before is shown; nothing is left running. Run the others again with --only"
            );
        }
        ended(shown.failures.len())
    }

    /// The devices, if what is on them may be erased, and all of them are fit.
    fn wanted(&self) -> Result<Wanted, Usage> {
        let Some(disk) = &self.disk else {
            return match real::Stand::missing() {
                None => Ok(Wanted::Modelled),
                Some(why) => Err(Usage(format!("It cannot be run here: {why}. Nothing was done. Free memory, or give devices"))),
            };
        };
        let [a, b] = self.ssds.as_slice() else {
            return Err(Usage(format!(
                "--ssd is needed twice, and was given {} times. Nothing was done. Give two devices",
                self.ssds.len()
            )));
        };
        let given = Wanted::Given { disk: disk.clone(), ssds: [a.clone(), b.clone()] };
        let on_them =
            given.look().map_err(|why| Usage(format!("{why}. Nothing was done. Give devices that are free and fit")))?;
        if !self.yes_erase {
            let on_them = on_them.join("; ");
            return Err(Usage(format!(
                "What is on the devices would be erased: {on_them}. Nothing was done. Give --yes-erase if it may be"
            )));
        }
        Ok(given)
    }

    fn loads(&self) -> Result<Vec<Load>, Usage> {
        let mut loads = if self.hour { long_loads() } else { catalogue() };
        loads.retain(|load| !(self.quick && load.long || self.real && !real::suits(load)));
        if let Some(only) = &self.only {
            let setting = |load: &Load| format!("{}, {}", load.name, load.setting());
            loads.retain(|load| only.split('|').any(|pattern| setting(load).contains(pattern.trim())));
        }
        match loads.len() {
            0 => {
                let list = match (self.hour, self.real) {
                    (true, _) => "--hour --list",
                    (_, true) => "--real --list",
                    _ => "--list",
                };
                Err(Usage(format!("No load is called that. Nothing was run. `headpond bench {list}` lists them")))
            }
            _ => Ok(loads),
        }
    }
}

/// A line of progress, in place of the last one where that can be.
fn say(line: &str) {
    match std::io::stderr().is_terminal() {
        true => eprint!("\r\x1b[K{line}"),
        false => eprintln!("{line}"),
    }
}

/// Takes the last line of progress away.
fn unsay() {
    if std::io::stderr().is_terminal() {
        eprint!("\r\x1b[K");
    }
}

fn ended(failures: usize) -> anyhow::Result<()> {
    match failures {
        0 => Ok(()),
        n => bail!("{n} loads could not be measured. Look at the table for why, and report it"),
    }
}
