//! The hammer: the real daemon under real tools, killed with SIGKILL again and again.

mod clients;
pub mod filesystems;
pub mod fio;
pub mod interrupt;
mod kills;
pub mod model;
mod planted;
mod reconnect;
mod rig;
pub mod tool;

use crate::headpond;
use crate::steps::in_words;
use crate::tools;
use anyhow::{Context as _, Result, bail};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

const USAGE: &str = "\
cargo xtask hammer [--list] [--only NAME].. [--rounds N] [--seconds-per-round S] [--seed N] [--short] [--json] [--dir DIR] [--headpond PATH] [--planted]
  --only NAME            the checks whose name contains this; may be given more than once
  --rounds N             SIGKILLs in each check that kills (10)
  --seconds-per-round S  how long the daemon lives under load before each (0.5)
  --seed N               of loads and of the moments of the kills (by the clock)
  --short                what `cargo xtask test` does: 20 rounds over NBD, 3 of the others
  --json                 the figures as JSON, at the end
  --dir DIR              where the devices are made, as files (the folder for temporary files)
  --headpond PATH        hammer this program rather than the one that is built now
  --planted              plant mistakes in a copy of the daemon, one at a time; each must make a check fail (--only names some)";

/// What a check counted, by what it counted.
type Figures = Vec<(&'static str, Value)>;

/// A check.
struct Check {
    name: &'static str,
    /// What holds if it passes.
    claim: &'static str,
    /// Programs that it needs.
    needs: &'static [&'static str],
    /// It needs root, FUSE and loop devices.
    mounts: bool,
    run: fn(&Context) -> Result<Figures>,
}

const CHECKS: [Check; 9] = [
    Check {
        name: "nbdinfo",
        claim: "nbdinfo sees size and flags of the volume",
        needs: &["nbdinfo"],
        mounts: false,
        run: clients::nbdinfo,
    },
    Check {
        name: "qemu-io",
        claim: "what qemu-io writes, zeroes, discards, flushes and writes with FUA reads back, after a SIGKILL too",
        needs: &["qemu-io"],
        mounts: false,
        run: clients::qemu_io,
    },
    Check {
        name: "nbdcopy",
        claim: "an image copied in and out by nbdcopy is the same to the byte, after a SIGKILL too",
        needs: &["nbdcopy"],
        mounts: false,
        run: clients::nbdcopy,
    },
    Check {
        name: "fio-nbd",
        claim: "fio --verify=crc32c, 512 B to 1 MiB, unaligned, overlapping, with trims and flushes, is clean over NBD",
        needs: &["fio"],
        mounts: false,
        run: kills::nbd,
    },
    Check {
        name: "fio-loop",
        claim: "the same is clean over the loop device",
        needs: &["fio"],
        mounts: true,
        run: kills::over_loop,
    },
    Check {
        name: "kills-nbd",
        claim: "the same over NBD is clean while the daemon is killed under it, by a client that reconnects",
        needs: &["fio"],
        mounts: false,
        run: kills::nbd_killed,
    },
    Check {
        name: "kills-loop",
        claim: "what was acknowledged over the loop device until a SIGKILL is there after the restart",
        needs: &["fio"],
        mounts: true,
        run: kills::loop_killed,
    },
    Check {
        name: "ext4",
        claim: "ext4 passes e2fsck -fn after each SIGKILL, and files whose fsync returned are whole",
        needs: &["fio", "mkfs.ext4", "e2fsck"],
        mounts: true,
        run: filesystems::ext4,
    },
    Check {
        name: "xfs",
        claim: "XFS passes xfs_repair -n after each SIGKILL, and files whose fsync returned are whole",
        needs: &["fio", "mkfs.xfs", "xfs_repair"],
        mounts: true,
        run: filesystems::xfs,
    },
];

/// What all checks are given.
struct Context {
    headpond: PathBuf,
    folder: PathBuf,
    rounds: u64,
    length: Duration,
    seed: u64,
    /// What a failed check leaves is worth a look.
    keep: bool,
    /// Bytes that fio writes in its first region where nobody is killed.
    clean_bytes: u64,
    /// The same, in each pass under kills.
    pass_bytes: u64,
}

impl Context {
    fn rig(&self, frontend: rig::Frontend, bytes: u64) -> Result<rig::Rig> {
        rig::Rig::set_up(self, frontend, bytes)
    }

    /// How long the daemon lives in a round: within half of what was asked for around it, so that the kill meets it in different moods.
    fn length_of(&self, round: u64) -> Duration {
        let percent = 50 + model::Dice(self.seed ^ round << 32).below(101);
        self.length * percent as u32 / 100
    }
}

/// How far a check's rounds are.
struct Rounds {
    begun: Instant,
    said: Instant,
    of: u64,
}

impl Rounds {
    fn begin(hammer: &Context) -> Rounds {
        Rounds { begun: Instant::now(), said: Instant::now(), of: hammer.rounds }
    }

    /// Says it, every few seconds; to be called as a round begins.
    fn say(&mut self, round: u64) {
        if self.said.elapsed() < Duration::from_secs(5) || round < 2 {
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
    folder: PathBuf,
    headpond: Option<PathBuf>,
}

impl Options {
    fn of(args: &[String]) -> Result<Options> {
        let mut options = Options {
            only: Vec::new(),
            rounds: 10,
            seconds: 0.5,
            seed: None,
            short: false,
            json: false,
            list: false,
            planted: false,
            folder: std::env::temp_dir(),
            headpond: None,
        };
        let mut args = args.iter();
        while let Some(flag) = args.next() {
            let mut value = || args.next().with_context(|| format!("{flag} wants a value\n{USAGE}"));
            match flag.as_str() {
                "--only" => options.only.push(value()?.clone()),
                "--rounds" => options.rounds = value()?.parse().context("--rounds wants a number")?,
                "--seconds-per-round" => options.seconds = value()?.parse().context("--seconds-per-round wants a number")?,
                "--seed" => options.seed = Some(value()?.parse().context("--seed wants a number")?),
                "--dir" => options.folder = value()?.into(),
                "--headpond" => options.headpond = Some(value()?.into()),
                "--short" => options.short = true,
                "--json" => options.json = true,
                "--list" => options.list = true,
                "--planted" => options.planted = true,
                _ => bail!("hammer knows no option {flag}\n{USAGE}"),
            }
        }
        if options.rounds == 0 || !(0.0..=3600.0).contains(&options.seconds) {
            bail!("at least one round, of at most an hour\n{USAGE}");
        }
        Ok(options)
    }
}

/// `cargo xtask hammer`.
pub fn run(args: &[String]) -> Result<()> {
    let options = Options::of(args)?;
    let wanted: Vec<&Check> = CHECKS
        .iter()
        .filter(|check| options.only.is_empty() || options.only.iter().any(|word| check.name.contains(word.as_str())))
        .collect();
    if options.list {
        wanted.iter().for_each(|check| println!("{:<11} {}", check.name, check.claim));
        return Ok(());
    }
    if wanted.is_empty() && !options.planted {
        bail!("no check has such a name; --list shows them");
    }
    interrupt::watch()?;
    let headpond = match options.headpond {
        Some(path) => path.canonicalize().with_context(|| format!("there is no {}", path.display()))?,
        // Each mistake makes one of its own.
        None if options.planted => PathBuf::new(),
        None => headpond::build()?,
    };
    let clock = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(1, |since| since.as_secs() % 1_000_000);
    let seed = options.seed.unwrap_or(clock);
    let mut context = Context {
        headpond,
        folder: options.folder.canonicalize().with_context(|| format!("there is no folder {}", options.folder.display()))?,
        rounds: options.rounds,
        length: Duration::from_secs_f64(options.seconds),
        seed,
        keep: !options.planted,
        clean_bytes: 1 << 30,
        pass_bytes: 256 << 20,
    };
    if options.planted {
        return planted::run(context, &options.only);
    }
    let begun = Instant::now();
    eprintln!("hammering {}, with seed {seed}", context.headpond.display());
    let mut results = Vec::new();
    for check in wanted {
        if options.short {
            context.rounds = if check.name == "kills-nbd" { 20 } else { 3 };
            context.clean_bytes = 256 << 20;
        }
        results.push(one(check, &context));
        interrupt::check()?;
    }
    let count = |outcome: &str| results.iter().filter(|result| result["outcome"] == outcome).count();
    let (passed, failed, skipped) = (count("passed"), count("failed"), count("skipped"));
    if options.json {
        println!("{:#}", json!({ "seed": seed, "checks": results, "passed": passed, "failed": failed, "skipped": skipped }));
    }
    let names = |outcome: &str| -> Vec<&str> {
        results.iter().filter(|result| result["outcome"] == outcome).filter_map(|result| result["name"].as_str()).collect()
    };
    eprintln!("hammer: {passed} passed, {failed} failed, {skipped} skipped, in {}", in_words(begun.elapsed()));
    if skipped > 0 {
        eprintln!("skipped: {}", names("skipped").join(", "));
    }
    if failed > 0 {
        bail!("failed: {}; repeat with --seed {seed}", names("failed").join(", "));
    }
    // As a step of `cargo xtask test` it is left out like any test whose tools are missing; alone, nothing is not enough.
    if passed == 0 && !options.short {
        bail!("nothing could be checked: be root, on Debian; `cargo xtask test` installs what is missing");
    }
    Ok(())
}

/// Does one check, and says how it ended.
fn one(check: &Check, context: &Context) -> Value {
    let name = check.name;
    if let Some(why) = missing(check) {
        eprintln!("hammer: {name} ... SKIPPED: {why}");
        return json!({ "name": name, "outcome": "skipped", "why": why });
    }
    let begun = Instant::now();
    let result = (check.run)(context);
    let took = begun.elapsed();
    match result {
        Ok(figures) => {
            let said: Vec<String> =
                figures.iter().map(|(what, value)| format!("{} {what}", value.to_string().trim_matches('"'))).collect();
            eprintln!("hammer: {name} ... passed ({}): {}", in_words(took), said.join(", "));
            let figures: serde_json::Map<String, Value> = figures.into_iter().map(|(what, value)| (what.into(), value)).collect();
            json!({ "name": name, "outcome": "passed", "claim": check.claim, "seconds": took.as_secs_f64(), "figures": figures })
        }
        Err(error) => {
            let how = if interrupt::interrupted() { "ended early" } else { "FAILED" };
            eprintln!("hammer: {name} ... {how} ({}): {error:#}", in_words(took));
            json!({ "name": name, "outcome": "failed", "claim": check.claim, "seconds": took.as_secs_f64(), "why": format!("{error:#}") })
        }
    }
}

/// Why a check cannot be done here, if so.
fn missing(check: &Check) -> Option<String> {
    let programs: Vec<&str> = check.needs.iter().copied().filter(|program| !tools::is_there(program)).collect();
    if !programs.is_empty() {
        return Some(format!("{} not installed", programs.join(" and ")));
    }
    if check.mounts {
        if !tools::is_root() {
            return Some("only root can mount".into());
        }
        if let Some(device) = ["/dev/fuse", "/dev/loop-control"].into_iter().find(|device| !Path::new(device).exists()) {
            return Some(format!("there is no {device}"));
        }
    }
    None
}
