//! `headpond bench`.

use std::fs;
use std::io::{IsTerminal, Write};
use std::path::PathBuf;
use std::sync::Mutex;
use std::time::Instant;

use anyhow::{anyhow, bail};
use clap::Args;
use headpond_sim::bench::{Load, Options, catalogue, run_all};

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
    /// What chance there is follows from it
    #[arg(long, default_value_t = 1, value_name = "N")]
    seed: u64,
    /// Threads [default: one for each core]
    #[arg(long, value_name = "N")]
    threads: Option<usize>,
    /// A page with the ratios drawn
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
        let options = Options { seed: self.seed, quick: self.quick };
        let threads = self.threads.unwrap_or_else(|| std::thread::available_parallelism().map_or(1, usize::from));
        let (begun, done) = (Instant::now(), Mutex::new(0));
        let results = run_all(&loads, options, threads, |load, result| {
            let Ok(mut done) = done.lock() else { return };
            *done += 1;
            let figure = match result {
                Ok(rows) => rows.iter().map(|row| format!("{:.3}", row.ratio)).collect::<Vec<_>>().join(", "),
                Err(why) => why.0.clone(),
            };
            let (took, count) = (begun.elapsed().as_secs(), loads.len());
            let line = format!("[{took:>3} s, {done:>3} of {count}]  {}: {figure}", load.name);
            match std::io::stderr().is_terminal() {
                true => eprint!("\r\x1b[K{line}"),
                false => eprintln!("{line}"),
            }
        });
        if std::io::stderr().is_terminal() {
            eprint!("\r\x1b[K");
        }
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
        match figures.failures.len() {
            0 => Ok(()),
            n => bail!("{n} loads could not be measured. Look at the table for why, and report it"),
        }
    }

    fn loads(&self) -> Result<Vec<Load>, Usage> {
        let mut loads = catalogue();
        loads.retain(|load| !(self.quick && load.long));
        if let Some(only) = &self.only {
            let setting = |load: &Load| format!("{}, {}", load.name, load.setting());
            loads.retain(|load| only.split('|').any(|pattern| setting(load).contains(pattern.trim())));
        }
        match loads.len() {
            0 => Err(Usage("No load is called that. Nothing was run. `headpond bench --list` lists them".into())),
            _ => Ok(loads),
        }
    }
}
