//! `headpond bench`.

use std::fs;
use std::io::{IsTerminal, Write};
use std::path::PathBuf;
use std::sync::Mutex;
use std::time::Instant;

use anyhow::{anyhow, bail};
use clap::Args;
use headpond_sim::bench::hour::Stage;
use headpond_sim::bench::{Load, Options, catalogue, hours as long_loads, run_all, run_hours};

use crate::bench::hours::{self, Hours};
use crate::bench::{Figures, json, page, terminal};
use crate::exit::Usage;

/// Loads on a modelled rotating disk and modelled SSDs, in virtual time: the same seed gives the same figures.
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

    fn loads(&self) -> Result<Vec<Load>, Usage> {
        let mut loads = if self.hour { long_loads() } else { catalogue() };
        loads.retain(|load| !(self.quick && load.long));
        if let Some(only) = &self.only {
            let setting = |load: &Load| format!("{}, {}", load.name, load.setting());
            loads.retain(|load| only.split('|').any(|pattern| setting(load).contains(pattern.trim())));
        }
        match loads.len() {
            0 => {
                let list = if self.hour { "--hour --list" } else { "--list" };
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
