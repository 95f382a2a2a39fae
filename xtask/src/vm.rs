//! The virtual machine: Headpond on a stock kernel, on modelled drives whose power is cut, under file systems and load.

mod boot;
mod disk_errors;
mod drive;
mod experiments;
mod flaky;
mod image;
mod kernel;
mod kills;
mod left;
pub mod load;
mod machine;
pub mod peers;
mod planted;
mod power;
mod pull;
mod qmp;
mod rig;
mod streams;
mod upgrade;

use crate::hammer::interrupt;
use crate::headpond;
use crate::steps::in_words;
use crate::tools;
use anyhow::{Context as _, Result, bail};
use serde_json::{Value, json};
use std::path::PathBuf;
use std::time::{Duration, Instant};

const USAGE: &str = "\
cargo xtask vm prepare [--suite SUITE]    fetch the kernel and make the guest, as every run does first
cargo xtask vm experiments [EXPERIMENT..] [--quick] [..]    the experiments of the NFS server: see `cargo xtask vm experiments --help`
cargo xtask vm [--list] [--only NAME].. [--rounds N] [--seconds-per-round S] [--seed N] [--short] [--json] [--planted] [..]
  --only NAME            the checks whose name contains this; may be given more than once
  --rounds N             kills or power cuts in each check that has them (10)
  --seconds-per-round S  how long the load runs before each (3)
  --seed N               of loads, moments and drives (by the clock)
  --short                what continuous integration does: boot, kill and power cut, on ext4
  --planted              plant a fault that a check must find, one at a time; each must make its check fail
  --json                 the figures as JSON, at the end
  --instant              drives as fast as this machine, rather than as modelled
  --verbose              show all that the guest says
  --suite SUITE          Debian's suite that the kernel is taken from (the backports of this machine's release)
  --accel ACCEL          QEMU's accelerator (tcg,thread=multi: software alone, which works everywhere)
  --dir DIR              where drives and logs are, while a check runs (the folder for temporary files)
  --headpond PATH        test this program rather than the one that is built now";

/// What a check counted, by what it counted.
type Figures = Vec<(String, Value)>;

/// A check.
struct Check {
    name: &'static str,
    /// What holds if it passes.
    claim: &'static str,
    /// Programs that it needs in the guest.
    needs: &'static [&'static str],
    run: fn(&Context) -> Result<Figures>,
}

const CHECKS: [Check; 14] = [
    Check {
        name: "boot",
        claim: "the kernel boots, has what front ends and file systems need, and the daemon serves a volume on it",
        needs: &[],
        run: boot::boot,
    },
    Check {
        name: "streams",
        claim: "streams go past the cache, and where the kernel lends clients' memory without a copy: what is read is right, also under kills",
        needs: &["fio"],
        run: streams::streams,
    },
    Check {
        name: "left-over",
        claim: "the pool of a device that waits for a daemon is not taken from under it; where none comes, the device can be ended by hand",
        needs: &[],
        run: left::left,
    },
    Check {
        name: "kill-ext4",
        claim: "ext4 under fio and our own load loses nothing whose fsync returned when the daemon is killed, and waits under two seconds",
        needs: &["fio", "mkfs.ext4", "e2fsck"],
        run: |vm| kills::survive(vm, "ext4"),
    },
    Check {
        name: "kill-xfs",
        claim: "XFS neither",
        needs: &["fio", "mkfs.xfs", "xfs_repair"],
        run: |vm| kills::survive(vm, "xfs"),
    },
    Check {
        name: "kill-btrfs",
        claim: "btrfs neither",
        needs: &["fio", "mkfs.btrfs", "btrfs"],
        run: |vm| kills::survive(vm, "btrfs"),
    },
    Check {
        name: "upgrade",
        claim: "a daemon that is upgraded under ext4 and load fails nothing, and I/O waits for less than a second",
        needs: &["fio", "mkfs.ext4", "e2fsck"],
        run: upgrade::upgrade,
    },
    Check {
        name: "power-ext4",
        claim: "ext4 loses nothing whose fsync returned when the machine's power is cut, and its fsck is clean",
        needs: &["fio", "mkfs.ext4", "e2fsck"],
        run: |vm| power::survive(vm, "ext4"),
    },
    Check {
        name: "power-xfs",
        claim: "XFS neither",
        needs: &["fio", "mkfs.xfs", "xfs_repair"],
        run: |vm| power::survive(vm, "xfs"),
    },
    Check {
        name: "power-btrfs",
        claim: "btrfs neither",
        needs: &["fio", "mkfs.btrfs", "btrfs"],
        run: |vm| power::survive(vm, "btrfs"),
    },
    Check {
        name: "pull-ssd",
        claim: "an SSD pulled and put back under load costs no I/O error and no data, and its stale content is not used",
        needs: &["fio", "mkfs.ext4", "e2fsck"],
        run: |vm| pull::pull(vm, pull::How::Pulled),
    },
    Check {
        name: "sick-ssd",
        claim: "nor does one that fails whatever it is asked, and comes to itself",
        needs: &["fio", "mkfs.ext4", "e2fsck"],
        run: |vm| pull::pull(vm, pull::How::Sick),
    },
    Check {
        name: "flaky-ssds",
        claim: "nor do SSDs whose reads fail now and then: one under load, both while a server starts after its power failed",
        needs: &["fio", "mkfs.ext4", "e2fsck"],
        run: flaky::survive,
    },
    Check {
        name: "disk-errors",
        claim: "while the disk fails, what is cached is read and written; once it heals all is there, and destaged",
        needs: &[],
        run: disk_errors::disk_errors,
    },
];

/// The checks of the short form.
const SHORT: [&str; 3] = ["boot", "kill-ext4", "power-ext4"];

/// What all checks are given.
pub struct Context {
    headpond: PathBuf,
    kernel: PathBuf,
    initramfs: PathBuf,
    accel: String,
    clock: machine::Clock,
    sizes: rig::Sizes,
    /// SSDs are files as fast as they may be, rather than modelled drives, which lose at a power cut what was not flushed.
    throttled: bool,
    /// How many times slower than those they stand for the disks and the SSDs that are files are.
    slower: u64,
    folder: PathBuf,
    rounds: u64,
    length: Duration,
    seed: u64,
    instant: bool,
    verbose: bool,
    /// What a failed check leaves is worth a look.
    keep: bool,
    /// Long pauses are told, and not a failure: on a computer that nobody knows, time proves nothing.
    patient: bool,
    /// Planted: the drives of pool and volume answer flushes, and make nothing durable.
    lying: bool,
    /// Planted: what should hurt one device hurts more than the promise covers.
    worse: bool,
    /// Planted: so much later than at once a daemon that was killed is started again.
    late: Duration,
}

impl Context {
    /// How long the load runs in a round: within half of what was asked for around it.
    fn length_of(&self, round: u64) -> Duration {
        let percent = 50 + crate::hammer::model::Dice(self.seed ^ round << 32).below(101);
        self.length * percent as u32 / 100
    }
}

/// How far a check is, told when it has something new to say and every few seconds.
struct Progress {
    begun: Instant,
    said: Instant,
    of: u64,
}

impl Progress {
    fn begin(of: u64) -> Progress {
        Progress { begun: Instant::now(), said: Instant::now(), of }
    }

    /// To be called as a round begins.
    fn say(&mut self, round: u64) {
        if self.said.elapsed() < Duration::from_secs(15) || round < 2 {
            return;
        }
        self.said = Instant::now();
        let elapsed = self.begun.elapsed();
        let left = elapsed.mul_f64((self.of - round + 1) as f64 / (round - 1) as f64);
        eprintln!("    round {round} of {}, after {}, about {} left", self.of, in_words(elapsed), in_words(left));
    }
}

struct Options {
    only: Vec<String>,
    rounds: u64,
    seconds: f64,
    seed: Option<u64>,
    short: bool,
    json: bool,
    list: bool,
    planted: bool,
    prepare: bool,
    instant: bool,
    verbose: bool,
    suite: Option<String>,
    accel: String,
    folder: PathBuf,
    headpond: Option<PathBuf>,
}

impl Options {
    fn of(args: &[String]) -> Result<Options> {
        let mut options = Options {
            only: Vec::new(),
            rounds: 10,
            seconds: 3.0,
            seed: None,
            short: false,
            json: false,
            list: false,
            planted: false,
            prepare: false,
            instant: false,
            verbose: false,
            suite: None,
            accel: "tcg,thread=multi".into(),
            folder: std::env::temp_dir(),
            headpond: None,
        };
        let mut args = args.iter();
        while let Some(flag) = args.next() {
            let mut value = || args.next().with_context(|| format!("{flag} wants a value\n{USAGE}"));
            match flag.as_str() {
                "prepare" => options.prepare = true,
                "--only" => options.only.push(value()?.clone()),
                "--rounds" => options.rounds = value()?.parse().context("--rounds wants a number")?,
                "--seconds-per-round" => options.seconds = value()?.parse().context("--seconds-per-round wants a number")?,
                "--seed" => options.seed = Some(value()?.parse().context("--seed wants a number")?),
                "--suite" => options.suite = Some(value()?.clone()),
                "--accel" => options.accel = value()?.clone(),
                "--dir" => options.folder = value()?.into(),
                "--headpond" => options.headpond = Some(value()?.into()),
                "--short" => options.short = true,
                "--json" => options.json = true,
                "--list" => options.list = true,
                "--planted" => options.planted = true,
                "--instant" => options.instant = true,
                "--verbose" => options.verbose = true,
                _ => bail!("vm knows no option {flag}\n{USAGE}"),
            }
        }
        if options.rounds == 0 || !(0.0..=3600.0).contains(&options.seconds) {
            bail!("at least one round, of at most an hour\n{USAGE}");
        }
        Ok(options)
    }
}

/// `cargo xtask vm`.
pub fn run(args: &[String]) -> Result<()> {
    if let Some((first, rest)) = args.split_first()
        && first == "experiments"
    {
        return experiments::run(rest);
    }
    let options = Options::of(args)?;
    let is_wanted = |check: &&Check| {
        let by_name = options.only.is_empty() || options.only.iter().any(|word| check.name.contains(word.as_str()));
        by_name && (!options.short || SHORT.contains(&check.name))
    };
    let wanted: Vec<&Check> = CHECKS.iter().filter(is_wanted).collect();
    if options.list {
        wanted.iter().for_each(|check| println!("{:<12} {}", check.name, check.claim));
        return Ok(());
    }
    if wanted.is_empty() && !options.planted {
        bail!("no check has such a name; --list shows them");
    }
    interrupt::watch()?;
    let begun = Instant::now();
    tools::install_for_vm()?;
    if options.short && !tools::is_there(machine::QEMU) {
        // As a step of `cargo xtask test` it is left out like any test whose tools are missing.
        eprintln!("vm: SKIPPED: {} is not installed; be root, on Debian, and it will be", machine::QEMU);
        return Ok(());
    }
    let (kernel, initramfs, version) = prepare(options.suite.as_deref())?;
    eprintln!("a guest with Linux {version} is ready, after {}", in_words(begun.elapsed()));
    if options.prepare {
        return Ok(());
    }
    let headpond = match options.headpond {
        Some(path) => path.canonicalize().with_context(|| format!("there is no {}", path.display()))?,
        None => headpond::build()?,
    };
    let clock = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(1, |since| since.as_secs() % 1_000_000);
    let seed = options.seed.unwrap_or(clock);
    let context = Context {
        headpond,
        kernel,
        initramfs,
        accel: options.accel,
        clock: machine::Clock::Device,
        sizes: rig::SMALL,
        throttled: false,
        slower: 1,
        folder: options.folder.canonicalize().with_context(|| format!("there is no folder {}", options.folder.display()))?,
        rounds: if options.short { options.rounds.min(3) } else { options.rounds },
        patient: options.short,
        length: Duration::from_secs_f64(options.seconds),
        seed,
        instant: options.instant,
        verbose: options.verbose,
        keep: !options.planted,
        lying: false,
        worse: false,
        late: Duration::ZERO,
    };
    if options.planted {
        return planted::run(context, &options.only);
    }
    eprintln!("testing {} in it, with seed {seed}", context.headpond.display());
    let mut results = Vec::new();
    for check in wanted {
        results.push(one(check, &context));
        interrupt::check()?;
    }
    let count = |outcome: &str| results.iter().filter(|result| result["outcome"] == outcome).count();
    let (passed, failed, skipped) = (count("passed"), count("failed"), count("skipped"));
    if options.json {
        println!(
            "{:#}",
            json!({ "kernel": version, "seed": seed, "checks": results, "passed": passed, "failed": failed, "skipped": skipped })
        );
    }
    eprintln!("vm: {passed} passed, {failed} failed, {skipped} skipped, in {}", in_words(begun.elapsed()));
    if failed > 0 {
        let names: Vec<&str> =
            results.iter().filter(|result| result["outcome"] == "failed").filter_map(|result| result["name"].as_str()).collect();
        bail!("failed: {}; repeat with --seed {seed}", names.join(", "));
    }
    if passed == 0 {
        bail!("nothing could be checked; what is missing is said above");
    }
    Ok(())
}

/// Does one check, and says how it ended.
fn one(check: &Check, context: &Context) -> Value {
    let name = check.name;
    let missing: Vec<&str> = check.needs.iter().copied().filter(|program| !tools::is_there(program)).collect();
    if !missing.is_empty() {
        let why = format!("{} not installed", missing.join(" and "));
        eprintln!("vm: {name} ... SKIPPED: {why}");
        return json!({ "name": name, "outcome": "skipped", "why": why });
    }
    let begun = Instant::now();
    let mut result = (check.run)(context);
    if let Some(error) = result.as_ref().err().filter(|error| machine::is_the_emulators(&format!("{error:#}"))) {
        eprintln!("vm: {name} ... the emulator broke the guest's kernel; once more ({}): {error:#}", in_words(begun.elapsed()));
        result = (check.run)(context);
    }
    let took = begun.elapsed();
    match result {
        Ok(figures) => {
            let said: Vec<String> =
                figures.iter().map(|(what, value)| format!("{what}: {}", value.to_string().trim_matches('"'))).collect();
            eprintln!("vm: {name} ... passed ({}): {}", in_words(took), said.join(", "));
            let figures: serde_json::Map<String, Value> = figures.into_iter().collect();
            json!({ "name": name, "outcome": "passed", "claim": check.claim, "seconds": took.as_secs_f64(), "figures": figures })
        }
        Err(error) => {
            let how = if interrupt::interrupted() { "ended early" } else { "FAILED" };
            eprintln!("vm: {name} ... {how} ({}): {error:#}", in_words(took));
            json!({ "name": name, "outcome": "failed", "claim": check.claim, "seconds": took.as_secs_f64(), "why": format!("{error:#}") })
        }
    }
}

/// Fetches the kernel and makes the guest's first file system, unless they are there; where they are, and the kernel's version.
fn prepare(suite: Option<&str>) -> Result<(PathBuf, PathBuf, String)> {
    if !tools::is_there(machine::QEMU) {
        bail!("{} is not installed; be root, on Debian, or install qemu-system-x86", machine::QEMU);
    }
    let suite = suite.map_or_else(kernel::suite, |suite| Ok(suite.to_owned()))?;
    // Beside what is built, so that it goes with `cargo clean`.
    let exe = std::env::current_exe()?;
    let folder = exe.parent().and_then(|it| it.parent()).context("xtask is not in a target folder")?.join("vm").join(&suite);
    std::fs::create_dir_all(&folder)?;
    let kernel = kernel::fetch(&folder, &suite).with_context(|| format!("no kernel of {suite}"))?;
    let initramfs = image::make(&folder, &kernel).context("no first file system for the guest")?;
    Ok((kernel.image, initramfs, kernel.version))
}
