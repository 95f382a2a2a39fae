//! `headpond experiments`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{anyhow, bail};
use clap::Args;
use headpond_host::signals::Signals;
use headpond_sim::experiments::outcome::{self, Missing};
use headpond_sim::experiments::{ALL, Experiment, Options, Report, run_all};

use crate::exit::Usage;
use crate::experiments::real::given::Given;
use crate::experiments::real::{self, Interrupted, Run};
use crate::experiments::{Form, Reports, csv, json, line, markdown, page, terminal};

/// How nice the real form is to other work on the machine.
const NICE: i32 = -10;

/// Set by Ctrl-C.
static STOP: AtomicBool = AtomicBool::new(false);

/// The field's published experiments: on models of the original hardware, in virtual time, where the same seed gives the same figures;
/// or for real, on this machine.
///
/// The engine is the one that is served, with its default settings. Simulated, disks, SSDs, network and clients are models. For real, fio,
/// tar and h5py work on a file system on modelled disks in real time, bare and behind a daemon, as root through FUSE and loop devices.
#[derive(Args)]
pub struct Experiments {
    /// Which: A1 to C7, or all
    #[arg(value_name = "EXPERIMENT", default_value = "all")]
    which: Vec<String>,
    /// On models of the original hardware, in virtual time; so it is done if nothing else is said
    #[arg(long)]
    simulated: bool,
    /// On this machine, as root: with fio, tar and h5py, on a real file system
    #[arg(long, conflicts_with_all = ["simulated", "seed", "threads"])]
    real: bool,
    /// The folder in which the real form makes its own, and removes it [default: /var/tmp]
    #[arg(long, value_name = "DIR", requires = "real")]
    dir: Option<PathBuf>,
    /// A disk to do it on, instead of a modelled one; it is OVERWRITTEN. Four of them, for the experiments of the NFS server (A1 to A4, A6,
    /// A7): one bare, one for each mode. Partitions will do
    #[arg(long = "disk", value_name = "DEVICE", id = "disks", requires_all = ["real", "ssds"])]
    disks: Vec<PathBuf>,
    /// An SSD, instead of a modelled one; it is OVERWRITTEN. Four of them: two for the pool, two that are measured alone
    #[arg(long = "ssd", value_name = "DEVICE", id = "ssds", requires_all = ["real", "disks"])]
    ssds: Vec<PathBuf>,
    /// Yes, what is on the given devices may be erased
    #[arg(long, requires = "disks")]
    yes_erase: bool,
    /// How many times slower than what they stand for all of the given devices are: windows are longer, and it is said
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=1000), requires = "disks", hide = true)]
    slower: u64,
    /// The command that is said to have made the figures, where another one runs this one
    #[arg(long, value_name = "WORDS", hide = true)]
    made_by: Option<String>,
    /// Fewer points, and shorter windows: a tenth of the length where it is simulated
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
        let given = self.given(&chosen)?;
        // It fails now rather than in minutes.
        if let Some(dir) = &self.out {
            fs::create_dir_all(dir).map_err(|error| {
                anyhow!("{} cannot be made: {error}. Nothing was run. Name another folder with --out", dir.display())
            })?;
        }
        let old = self.markdown.as_deref().map(read).transpose()?;
        let (reports, mut interrupted) = if self.real { self.for_real(&chosen, given)? } else { (self.simulate(&chosen), None) };
        if let Some(why) = interrupted.take_if(|_| reports.reports.is_empty()) {
            return Err(why.into());
        }
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
        if let Some(why) = interrupted {
            return Err(why.into());
        }
        match reports.reports.iter().filter(|r| matches!(r.outcome, Err(Missing::Failed(_)))).count() {
            0 => Ok(()),
            n => bail!("{n} experiments could not be run. Look above for why, and report it"),
        }
    }

    fn simulate(&self, chosen: &[Experiment]) -> Reports {
        let options = self.options();
        let threads = self.threads.unwrap_or_else(|| thread::available_parallelism().map_or(1, usize::from));
        let progress = Progress::begin();
        let reports = run_all(chosen, options, threads, |experiment, report| progress.say(experiment, report));
        Reports { form: Form::Simulated, reports, options, command: self.command(), parameters: outcome::parameters().to_vec() }
    }

    /// One after the other: they measure in real time. Where it is interrupted, those that have ended are reported.
    fn for_real(&self, chosen: &[Experiment], given: Option<Given>) -> anyhow::Result<(Reports, Option<Interrupted>)> {
        let system = real::missing(self.quick, given.as_ref()).map_err(|why| {
            Usage(format!("The real form cannot be run here: {why}. Nothing was done. Run it as root on a machine that has it all, or with --simulated"))
        })?;
        let signals = Signals::hold()?;
        thread::spawn(move || {
            while !signals.wait(Duration::from_secs(3600)) {}
            eprintln!("\nEnding; what was started and mounted is cleaned up.");
            STOP.store(true, Ordering::Relaxed);
        });
        let dir = self.dir.clone().unwrap_or_else(|| "/var/tmp".into());
        let folder = std::path::absolute(dir)?.join(format!("headpond-experiments-{}", process::id()));
        // For all that it starts, too: else what is measured is what other work leaves of the cores.
        let _ = rustix::process::setpriority_process(None, NICE);
        let run = Run::new(self.quick, folder.clone(), system, given, &STOP);
        let progress = Progress::begin();
        let (mut reports, mut interrupted) = (Vec::new(), None);
        for experiment in chosen {
            progress.say(experiment, None);
            match run.report(experiment) {
                Ok(report) => {
                    progress.say(experiment, Some(&report));
                    reports.push(report);
                }
                Err(why) => {
                    interrupted = Some(why);
                    break;
                }
            }
        }
        // What is in it has removed itself; nobody made it if nothing was run.
        let _ = fs::remove_dir(&folder);
        let (command, options) = (self.command(), self.options());
        let (form, parameters) = match &run.given {
            Some(given) => (Form::Devices { slower: given.slower }, real::parameters_of_devices(system, given)),
            None => (Form::Real, real::parameters(system)),
        };
        Ok((Reports { form, reports, options, command, parameters }, interrupted))
    }

    /// The devices that were given, if what is on them may be erased, all of them are fit, and all that was chosen takes them.
    fn given(&self, chosen: &[Experiment]) -> Result<Option<Given>, Usage> {
        if self.disks.is_empty() {
            return Ok(None);
        }
        if let Some(other) = chosen.iter().find(|it| !real::takes_devices(it.id)) {
            let takes: Vec<&str> = ALL.iter().map(|it| it.id).filter(|id| real::takes_devices(id)).collect();
            let takes = takes.join(", ");
            return Err(Usage(format!(
                "{} runs on modelled devices alone. Nothing was done. Name those that take devices: {takes}",
                other.id
            )));
        }
        let given = Given { disks: self.disks.clone(), ssds: self.ssds.clone(), slower: self.slower };
        let on_them =
            given.look().map_err(|why| Usage(format!("{why}. Nothing was done. Give devices that are free and fit")))?;
        if !self.yes_erase {
            return Err(Usage(format!(
                "What is on the devices would be erased: {}. Nothing was done. Give --yes-erase if it may be",
                on_them.join("; ")
            )));
        }
        Ok(Some(given))
    }

    fn options(&self) -> Options {
        Options { seed: self.seed, quick: self.quick }
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
        if let Some(words) = &self.made_by {
            return words.clone();
        }
        let quick = if self.quick { " --quick" } else { "" };
        let each = |flag: &str, all: &[PathBuf]| all.iter().map(|it| format!(" {flag} {}", it.display())).collect::<String>();
        let devices = each("--disk", &self.disks) + &each("--ssd", &self.ssds);
        let form = if self.real { format!("--real{quick}{devices}") } else { format!("--simulated{quick} --seed {}", self.seed) };
        format!("headpond experiments {} {form}", self.which.join(" "))
    }
}

/// What is said while experiments run.
struct Progress(Instant);

impl Progress {
    fn begin() -> Progress {
        Progress(Instant::now())
    }

    /// One begins, or has ended.
    fn say(&self, experiment: &Experiment, report: Option<&Report>) {
        let what = report.map_or_else(|| format!("{} begins: {}", experiment.id, experiment.title), line);
        eprintln!("[{:>4} s]  {what}", self.0.elapsed().as_secs());
    }
}

fn read(path: &Path) -> anyhow::Result<String> {
    fs::read_to_string(path).map_err(|error| anyhow!("{} cannot be read: {error}. Name another file", path.display()))
}

fn write(path: &Path, text: &str) -> anyhow::Result<()> {
    fs::write(path, text)
        .map_err(|error| anyhow!("{} cannot be written: {error}. Name another file, or make room", path.display()))
}
