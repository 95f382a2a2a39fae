//! `cargo xtask peers`: the kernel's own caches and Headpond on the same modelled drives, in the same virtual machine, by turns.

mod plots;
mod rows;
mod table;

use self::rows::{METRICS, Run, Scale};
use self::table::Table;
use super::machine::Clock;
use super::rig::{DISK, Rig, Sizes};
use super::{Context as Vm, machine, prepare};
use crate::hammer::interrupt;
use crate::headpond;
use crate::steps::{in_words, output};
use crate::tools;
use anyhow::{Context, Result, bail};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

const USAGE: &str = "\
cargo xtask peers [--list] [--only ROW,..] [--contenders NAME,..] [--rounds N] [--short] [--markdown FILE] [--json] [..]
  --only ROW,..          these rows alone; --list shows them
  --contenders NAME,..   these contenders alone
  --rounds N             rounds, each contender once in each, in the opposite order in every second (4)
  --short                half the sizes, a third of the time; one round, unless --rounds says otherwise
  --markdown FILE        write the table and all that belongs to it there, and the plots beside it, as .svg
  --json                 the same as JSON, at the end
  --config FILE          serve Headpond with this configuration instead of its defaults, to see what a setting does
  --verbose              show all that the guest says
  --suite SUITE          Debian's suite that the kernel is taken from (the backports of this machine's release)
  --accel ACCEL          QEMU's accelerator (tcg,thread=multi: software alone, which works everywhere)
  --dir DIR              where drives and logs are meanwhile (/dev/shm, if they fit there twice: then nothing waits for a real disk)
  --headpond PATH        measure this program rather than the one that is built now";

/// What scripts in the guest set contenders up with.
const PEERS: &str = include_str!("guest/peers.sh");

/// How far the guest's clock may be from ours, in percent, over a run of many seconds.
const CLOCK_PERCENT: f64 = 1.0;

/// Who takes part.
pub struct Contender {
    /// As functions of the guest's script begin.
    name: &'static str,
    /// As it is called in the table.
    label: &'static str,
    /// What it is, and what is not as it comes.
    what: &'static str,
}

/// In the table's order; Headpond is the last.
const CONTENDERS: [Contender; 5] = [
    Contender { name: "bare", label: "bare disk", what: "the modelled disk itself" },
    Contender {
        name: "bcache",
        label: "bcache",
        what: "write-back, on the RAID 1 of both SSDs, made by `make-bcache --writeback`; all else as it comes: sequential cutoff 4 MB, \
               congestion thresholds 2 and 20 ms, 10 % kept dirty. Told to clean: `writeback_percent` and `writeback_delay` 0",
    },
    Contender {
        name: "dmcache",
        label: "dm-cache",
        what: "write-back, policy smq, blocks of 64 KiB (lvmcache's smallest and default), on the RAID 1 of both SSDs, 8 MiB of which have \
               the metadata; all else as it comes. Told to clean: policy `cleaner`",
    },
    Contender {
        name: "writecache",
        label: "dm-writecache",
        what: "on the RAID 1 of both SSDs, blocks of 4 KiB; all else as it comes. Told to clean: `flush_on_suspend`, suspended, resumed",
    },
    Contender {
        name: "headpond",
        label: "Headpond",
        what: "its defaults: `headpond pool create` with both SSDs, `serve` without a configuration file, ublk, `attach`, which is \
               write-back. Told to clean: `headpond flush`",
    },
];

struct Options {
    only: Vec<String>,
    contenders: Vec<String>,
    rounds: Option<u64>,
    short: bool,
    markdown: Option<PathBuf>,
    json: bool,
    list: bool,
    verbose: bool,
    suite: Option<String>,
    accel: String,
    folder: Option<PathBuf>,
    headpond: Option<PathBuf>,
    config: Option<PathBuf>,
}

impl Options {
    fn of(args: &[String]) -> Result<Options> {
        let mut options = Options {
            only: Vec::new(),
            contenders: Vec::new(),
            rounds: None,
            short: false,
            markdown: None,
            json: false,
            list: false,
            verbose: false,
            suite: None,
            accel: "tcg,thread=multi".into(),
            folder: None,
            headpond: None,
            config: None,
        };
        let mut args = args.iter();
        while let Some(flag) = args.next() {
            let mut value = || args.next().with_context(|| format!("{flag} wants a value\n{USAGE}"));
            let words = |text: &String| text.split(',').map(str::to_owned).collect::<Vec<_>>();
            match flag.as_str() {
                "--only" => options.only.extend(words(value()?)),
                "--contenders" => options.contenders.extend(words(value()?)),
                "--rounds" => options.rounds = Some(value()?.parse().context("--rounds wants a number")?),
                "--short" => options.short = true,
                "--markdown" => options.markdown = Some(value()?.into()),
                "--json" => options.json = true,
                "--list" => options.list = true,
                "--verbose" => options.verbose = true,
                "--suite" => options.suite = Some(value()?.clone()),
                "--accel" => options.accel = value()?.clone(),
                "--dir" => options.folder = Some(value()?.into()),
                "--config" => options.config = Some(value()?.into()),
                "--headpond" => options.headpond = Some(value()?.into()),
                _ => bail!("peers knows no option {flag}\n{USAGE}"),
            }
        }
        if options.rounds == Some(0) {
            bail!("at least one round\n{USAGE}");
        }
        Ok(options)
    }
}

/// What is measured, with what, by whom.
struct Plan {
    vm: Vm,
    scale: Scale,
    rows: Vec<&'static str>,
    config: Option<String>,
    version: String,
    command: String,
    begun: Instant,
}

/// `cargo xtask peers`.
pub fn run(args: &[String]) -> Result<()> {
    let options = Options::of(args)?;
    if options.list {
        METRICS.iter().for_each(|metric| println!("{:<14} {} ({})", metric.row, metric.label, metric.unit));
        CONTENDERS.iter().for_each(|it| println!("{:<14} {}", it.name, it.label));
        return Ok(());
    }
    let rows = chosen(&rows::names(), &options.only, "row")?;
    let all: Vec<&str> = CONTENDERS.iter().map(|it| it.name).collect();
    let names = chosen(&all, &options.contenders, "contender")?;
    let contenders: Vec<&Contender> = CONTENDERS.iter().filter(|it| names.contains(&it.name)).collect();
    interrupt::watch()?;
    let begun = Instant::now();
    tools::install_for_vm()?;
    let (kernel, initramfs, version) = prepare(options.suite.as_deref())?;
    let headpond = match options.headpond {
        Some(path) => path.canonicalize().with_context(|| format!("there is no {}", path.display()))?,
        None => headpond::build()?,
    };
    let scale = if options.short { Scale::SHORT } else { Scale::FULL };
    let rounds = options.rounds.unwrap_or(if options.short { 1 } else { 4 });
    let folder = options.folder.unwrap_or_else(|| folder_for(scale.disk() + 2 * scale.cache));
    let vm = Vm {
        headpond,
        kernel,
        initramfs,
        accel: options.accel,
        clock: Clock::counter()?,
        sizes: Sizes { cache: scale.cache, disk: scale.disk() },
        throttled: true,
        slower: 1,
        folder: folder.canonicalize().with_context(|| format!("there is no folder {}", folder.display()))?,
        rounds,
        length: Duration::ZERO,
        seed: 1,
        instant: false,
        verbose: options.verbose,
        // Gigabytes, perhaps of memory.
        keep: false,
        patient: true,
        lying: false,
        worse: false,
        late: Duration::ZERO,
    };
    let config = match &options.config {
        Some(file) => Some(fs::read_to_string(file).with_context(|| format!("{} cannot be read", file.display()))?),
        None => None,
    };
    let mut plan = Plan { vm, scale, rows, config, version, command: words_of(args), begun };
    let mut table = Table::new(&contenders, &plan.rows);
    for round in 1..=rounds {
        let mut order = contenders.clone();
        if round.is_multiple_of(2) {
            order.reverse();
        }
        for contender in order {
            let since = Instant::now();
            plan.vm.seed = round;
            // An emulated machine may go down by no fault of whoever is measured in it: once more, and the page says so.
            let mut tried = plan.one(contender, round);
            if let Err(error) = &tried {
                interrupt::check()?;
                eprintln!("peers: round {round}, {} FAILED: {error:#}", contender.label);
                table.failed(contender.label, round, error);
                tried = plan.one(contender, round);
            }
            match tried {
                Ok((run, settings)) => {
                    let figures: Vec<String> =
                        run.samples.iter().map(|(key, it)| format!("{key} {}", table::figure(*it))).collect();
                    let took = in_words(since.elapsed());
                    eprintln!("peers: round {round}, {} ({took}): {}", contender.label, figures.join(", "));
                    table.take(contender.name, run, settings);
                }
                Err(error) => bail!("{}, round {round}, twice: {error:#}", contender.label),
            }
            interrupt::check()?;
        }
        // After each round, as the next one may be one too many for whoever waits.
        if let Some(file) = &options.markdown {
            let drawn = file.with_extension("svg");
            let name = drawn.file_name().unwrap_or_default().to_string_lossy();
            let written = |path: &Path, text: String| {
                fs::write(path, text).with_context(|| format!("{} cannot be written", path.display()))
            };
            written(&drawn, table.plots())?;
            written(file, table.document(&plan.about(round), &name)?)?;
        }
    }
    println!("{}", table.figures());
    if options.json {
        println!("{:#}", table.json(&plan.about(rounds))?);
    }
    Ok(())
}

/// What a table says of how it was made.
pub struct About {
    version: String,
    command: String,
    rounds: u64,
    scale: Scale,
    folder: PathBuf,
    accel: String,
    took: Duration,
}

impl About {
    /// What ran, with its version.
    fn versions(&self) -> Result<Vec<(&'static str, String)>> {
        let first = |program: &str, args: &[&str]| -> Result<String> {
            let mut command = Command::new(program);
            command.args(args);
            Ok(output(command)?.lines().next().unwrap_or_default().trim().to_owned())
        };
        let package =
            |name: &str| first("dpkg-query", &["-W", "-f", "${Version}\n", name]).unwrap_or_else(|_| "not known".into());
        let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let model = cpuinfo.lines().find_map(|line| Some(line.strip_prefix("model name")?.trim_start_matches([':', '\t', ' '])));
        let count = cpuinfo.lines().filter(|line| line.starts_with("processor")).count();
        let date = first("date", &["-u", "+%Y-%m-%d"])?;
        let mut git = Command::new("git");
        git.args(["describe", "--always", "--dirty"]).current_dir(crate::root());
        Ok(vec![
            ("guest's kernel", format!("Linux {}", self.version)),
            ("virtual machine", format!("{}; 2 processors, 2 GiB, {}", first(machine::QEMU, &["--version"])?, self.accel)),
            ("load", first("fio", &["--version"])?),
            ("bcache-tools", package("bcache-tools")),
            ("dmsetup", package("dmsetup")),
            ("Headpond", output(git).map_or_else(|_| "not known".into(), |it| it.trim().to_owned())),
            ("host", format!("{count} processors, {}", model.unwrap_or("not known"))),
            (
                "drives' files",
                if self.folder.starts_with("/dev/shm") {
                    "in memory: a flush of an SSD takes no time"
                } else {
                    "on a disk of the host"
                }
                .into(),
            ),
            ("date", date),
        ])
    }
}

/// The command as anybody would give it: without where things are on this computer, and what it prints beside.
fn words_of(args: &[String]) -> String {
    let mut words = vec!["cargo xtask peers"];
    let mut args = args.iter().map(String::as_str);
    while let Some(arg) = args.next() {
        match arg {
            "--dir" | "--headpond" => drop(args.next()),
            "--verbose" | "--json" => {}
            _ => words.push(arg),
        }
    }
    words.join(" ")
}

/// Where drives are: in memory if there is twice as much of it, so that a flush of an SSD takes no time that this computer's disks, and
/// whoever else uses them, decide.
pub(super) fn folder_for(bytes: u64) -> PathBuf {
    let memory = PathBuf::from("/dev/shm");
    let wanted = 2 * bytes;
    let meminfo = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let available =
        meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:")?.split_whitespace().next()?.parse::<u64>().ok());
    let fits = available.is_some_and(|kib| kib << 10 > wanted)
        && rustix::fs::statvfs(&memory).is_ok_and(|it| it.f_bavail * it.f_frsize > wanted);
    if fits { memory } else { std::env::temp_dir() }
}

/// Those of the names that were asked for; all, where none was.
fn chosen(all: &[&'static str], asked: &[String], what: &str) -> Result<Vec<&'static str>> {
    if let Some(unknown) = asked.iter().find(|name| !all.contains(&name.as_str())) {
        bail!("there is no {what} {unknown}; there are {}", all.join(", "));
    }
    Ok(all.iter().copied().filter(|name| asked.is_empty() || asked.iter().any(|it| it == name)).collect())
}

impl Plan {
    fn about(&self, rounds: u64) -> About {
        About {
            version: self.version.clone(),
            command: self.command.clone(),
            rounds,
            scale: self.scale,
            folder: self.vm.folder.clone(),
            accel: self.vm.accel.clone(),
            took: self.begun.elapsed(),
        }
    }

    /// A contender in a machine of its own, on new drives; and its settings, as it told them.
    fn one(&self, contender: &Contender, round: u64) -> Result<(Run, Vec<String>)> {
        let name = contender.name;
        let mut rig = Rig::set_up(&self.vm)?;
        fs::write(rig.share().join("peers.sh"), PEERS)?;
        if let Some(config) = &self.config {
            fs::write(rig.share().join("headpond.toml"), config)?;
        }
        rig.drives[DISK].allocate()?;
        rig.boot()?;
        let before = clock(&mut rig)?;
        let said = rig.run(&format!(". /host/peers.sh\n{name}_modules new\n{name}_up new\n{name}_settings"))?;
        let settings = said.iter().filter_map(|line| line.strip_prefix("setting ")).map(str::to_owned).collect();
        let mut run = rows::measure(&mut rig, name, &self.rows, &self.scale, round)?;
        let after = clock(&mut rig)?;
        believe(before, after)?;
        if self.rows.contains(&"restart") && name != "bare" {
            run.samples.push(rows::restart(&mut rig, name, &self.scale, round)?);
        }
        rig.passed();
        Ok((run, settings))
    }
}

/// What our clock says, and what the guest's, in seconds.
pub(super) fn clock(rig: &mut Rig) -> Result<(Instant, f64)> {
    let said = rig.run("now")?;
    let hundredths: u64 = said.last().and_then(|line| line.parse().ok()).context("the guest does not tell the time")?;
    Ok((Instant::now(), hundredths as f64 / 100.0))
}

/// Refuses what a guest measured whose clock went otherwise than ours.
pub(super) fn believe(before: (Instant, f64), after: (Instant, f64)) -> Result<()> {
    let percent = (after.1 - before.1) / (after.0 - before.0).as_secs_f64() * 100.0;
    if (percent - 100.0).abs() > CLOCK_PERCENT {
        bail!("the guest's clock went at {percent:.1} percent of ours: nothing that it measured can be believed");
    }
    Ok(())
}
