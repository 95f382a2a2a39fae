//! `headpond demo`.

use std::fs;
use std::io::{IsTerminal, Write, stderr};
use std::path::PathBuf;
use std::process;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{anyhow, bail};
use clap::Args;
use headpond_host::signals::Signals;
use serde_json::json;

use crate::demo::{self, Devices, Figures, FileSystem, Plan};
use crate::exit::Usage;
use crate::size;

/// Set by Ctrl-C.
static STOP: AtomicBool = AtomicBool::new(false);

#[derive(Args)]
pub struct Demo {
    /// About half a minute: all checks, and speed shown but not judged
    #[arg(long)]
    quick: bool,
    /// Through files on a file system on the volume; as root
    #[arg(long, value_enum, value_name = "ext4|xfs")]
    file_system: Option<FileSystem>,
    /// A disk to do it on, instead of a file at the pace of a modelled one; it is OVERWRITTEN
    #[arg(long, value_name = "DEVICE", requires = "ssds", requires = "yes_erase")]
    disk: Option<PathBuf>,
    /// The SSDs, two of them, instead of files; they are OVERWRITTEN
    #[arg(long = "ssd", value_name = "DEVICE", id = "ssds", requires = "disk")]
    ssds: Vec<PathBuf>,
    /// Yes, what is on the given devices may be erased
    #[arg(long)]
    yes_erase: bool,
    /// The folder in which the demo makes its own [default: /var/tmp]
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Size of the file that is the disk
    #[arg(long, default_value = "4GiB", value_parser = size::parse)]
    size: u64,
    /// How long each measurement counts, in seconds [default: 2; with --quick 0.75]
    #[arg(long, value_parser = seconds)]
    seconds: Option<f64>,
    /// The page with plots
    #[arg(long, value_name = "FILE", default_value = "headpond-demo.html")]
    report: PathBuf,
    /// Keep the folder with all that was made
    #[arg(long)]
    keep: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

fn seconds(text: &str) -> Result<f64, String> {
    text.parse().ok().filter(|seconds| (0.5..=600.0).contains(seconds)).ok_or_else(|| "give 0.5 to 600".into())
}

/// A demo that did not come to its end, in words: what the cause was, and what to do.
fn ended_early(error: anyhow::Error) -> anyhow::Error {
    let told = format!(
        "The demo did not come to its end: {error:#}. What it had started was ended, and what it had made was removed. Run it again \
         with --keep, and look at the daemon's log among its files"
    );
    error.context(told)
}

impl Demo {
    pub fn run(self) -> anyhow::Result<()> {
        let plan = self.plan()?;
        let signals = Signals::hold()?;
        thread::spawn(move || {
            while !signals.wait(Duration::from_secs(3600)) {}
            eprintln!("\nEnding; what was started and mounted is cleaned up. Once more to leave it as it is.");
            STOP.store(true, Ordering::Relaxed);
            // One wish may come as several signals: to the process, and to its group.
            thread::sleep(Duration::from_secs(1));
            while signals.wait(Duration::ZERO) {}
            while !signals.wait(Duration::from_secs(3600)) {}
            process::exit(130);
        });
        // It fails now rather than in two minutes.
        let page = fs::File::create(&self.report).map_err(|error| {
            anyhow!("{} cannot be written: {error}. Nothing was done. Name another file with --report", self.report.display())
        })?;
        let figures = demo::play(&plan, &STOP).map_err(ended_early)?;
        (&page).write_all(demo::page(&figures).as_bytes())?;
        self.show(&figures)?;
        match figures.failures()[..] {
            [] => Ok(()),
            ref failures => {
                bail!(
                    "Not as it must be: {}. Run it again while the machine does nothing else; if it stays so, report it with the page",
                    failures.join("; ")
                )
            }
        }
    }

    fn show(&self, figures: &Figures) -> anyhow::Result<()> {
        if stderr().is_terminal() {
            eprintln!();
        }
        let mut value = json!(figures);
        value["promises"] = json!(figures.promises());
        value["failures"] = json!(figures.failures());
        super::print(self.json, &value, demo::terminal(figures))?;
        if let Some(open) = figures.not_decided() {
            eprintln!("{open}.");
        }
        eprintln!("The page with plots: {}", self.report.display());
        Ok(())
    }

    fn plan(&self) -> Result<Plan, Usage> {
        let given = match (&self.disk, &self.ssds[..]) {
            (None, _) => None,
            (Some(_), [] | [_]) => {
                return Err(Usage("Two SSDs are needed. Nothing was done. Give --ssd twice".into()));
            }
            (Some(_), _) if !self.yes_erase => {
                return Err(Usage(
                    "What is on the devices would be erased. Nothing was done. Give --yes-erase if it may be".into(),
                ));
            }
            (Some(disk), ssds) => Some(Devices { disk: disk.clone(), modelled: false, ssds: ssds.to_vec() }),
        };
        if let Some(why) = self.file_system.and_then(FileSystem::missing) {
            return Err(Usage(format!("No file system can be mounted here: {why}. Nothing was done. Leave --file-system out")));
        }
        let mib = |n: u64| n << 20;
        let regions = if self.quick { [mib(256), mib(128)] } else { [mib(512), mib(256)] };
        if given.is_none() && self.size < mib(1024) {
            return Err(Usage("The disk is too small. Nothing was done. Give --size 1GiB or more".into()));
        }
        let seconds = self.seconds.unwrap_or(if self.quick { 0.75 } else { 2.0 });
        let var_tmp = PathBuf::from("/var/tmp");
        let default = if var_tmp.is_dir() { var_tmp } else { std::env::temp_dir() };
        let dir = std::path::absolute(self.dir.clone().unwrap_or(default));
        let dir =
            dir.map_err(|error| Usage(format!("The folder cannot be used: {error}. Nothing was done. Name another with --dir")))?;
        Ok(Plan {
            folder: dir.join(format!("headpond-demo-{}", process::id())),
            keep: self.keep,
            given,
            size: self.size,
            ssd_bytes: if self.quick { mib(1024) } else { mib(2048) },
            measured: Duration::from_secs_f64(seconds),
            rounds: if self.quick { 1 } else { 2 },
            regions,
            judged: !self.quick,
            file_system: self.file_system,
        })
    }
}
