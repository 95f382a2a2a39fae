//! `headpond experiments`.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{anyhow, bail};
use clap::Args;
use headpond_sim::experiments::{ALL, Experiment, Options, run_all};

use crate::exit::Usage;
use crate::experiments::{Reports, csv, json, line, markdown, page, terminal};

/// The field's published experiments, on models of the original hardware, in virtual time: the same seed gives the same figures.
///
/// The engine is the one that is served, with its default settings; disks, SSDs, network and clients are models.
#[derive(Args)]
pub struct Experiments {
    /// Which: A1 to C7, or all
    #[arg(value_name = "EXPERIMENT", default_value = "all")]
    which: Vec<String>,
    /// On models of the original hardware, which is the only form so far
    #[arg(long)]
    simulated: bool,
    /// Fewer points, and windows of a tenth of the length
    #[arg(long)]
    quick: bool,
    /// What chance there is follows from it
    #[arg(long, default_value_t = 1, value_name = "N")]
    seed: u64,
    /// Threads [default: one for each core]
    #[arg(long, value_name = "N")]
    threads: Option<usize>,
    /// Write experiments.html, experiments.json and experiments.csv there
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Make the tables of this Markdown page anew, between its marks
    #[arg(long, value_name = "FILE")]
    markdown: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl Experiments {
    pub fn run(self) -> anyhow::Result<()> {
        let chosen = self.chosen()?;
        // It fails now rather than in minutes.
        if let Some(dir) = &self.out {
            fs::create_dir_all(dir).map_err(|error| {
                anyhow!("{} cannot be made: {error}. Nothing was run. Name another folder with --out", dir.display())
            })?;
        }
        let old = self.markdown.as_deref().map(read).transpose()?;
        let options = Options { seed: self.seed, quick: self.quick };
        let threads = self.threads.unwrap_or_else(|| std::thread::available_parallelism().map_or(1, usize::from));
        let begun = Instant::now();
        let reports = run_all(&chosen, options, threads, |experiment, report| {
            let what = report.map_or_else(|| format!("{} begins: {}", experiment.id, experiment.title), line);
            eprintln!("[{:>4} s]  {what}", begun.elapsed().as_secs());
        });
        let reports = Reports { reports, options, command: self.command() };
        if let Some(dir) = &self.out {
            write(&dir.join("experiments.html"), &page(&reports))?;
            write(&dir.join("experiments.json"), &format!("{:#}\n", json(&reports)))?;
            write(&dir.join("experiments.csv"), &csv(&reports))?;
        }
        if let (Some(path), Some(old)) = (&self.markdown, old) {
            let made = markdown(&old, &reports).ok_or_else(|| {
                anyhow!("{} has no marks between which the tables could be written. Name a file that has them", path.display())
            })?;
            write(path, &made)?;
        }
        super::print(self.json, &json(&reports), terminal(&reports))?;
        match reports.reports.iter().filter(|r| r.outcome.is_err()).count() {
            0 => Ok(()),
            n => bail!("{n} experiments could not be run. Look above for why, and report it"),
        }
    }

    fn chosen(&self) -> Result<Vec<Experiment>, Usage> {
        if self.which.iter().any(|w| w == "all") {
            return Ok(ALL.to_vec());
        }
        let known = |w: &&String| ALL.iter().any(|e| e.id.eq_ignore_ascii_case(w));
        if let Some(unknown) = self.which.iter().find(|w| !known(w)) {
            let all: Vec<&str> = ALL.iter().map(|e| e.id).collect();
            return Err(Usage(format!("No experiment is called {unknown}. Nothing was run. Choose from: {}", all.join(", "))));
        }
        Ok(ALL.iter().filter(|e| self.which.iter().any(|w| e.id.eq_ignore_ascii_case(w))).copied().collect())
    }

    /// The command that brings the same figures.
    fn command(&self) -> String {
        let quick = if self.quick { " --quick" } else { "" };
        format!("headpond experiments {} --simulated{quick} --seed {}", self.which.join(" "), self.seed)
    }
}

fn read(path: &Path) -> anyhow::Result<String> {
    fs::read_to_string(path).map_err(|error| anyhow!("{} cannot be read: {error}. Name another file", path.display()))
}

fn write(path: &Path, text: &str) -> anyhow::Result<()> {
    fs::write(path, text)
        .map_err(|error| anyhow!("{} cannot be written: {error}. Name another file, or make room", path.display()))
}
