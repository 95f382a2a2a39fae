//! Mistakes, planted one at a time in a copy of the engine: scenes and seeds of the simulator must find each.
//!
//! A checker that has never failed proves nothing. Each mistake is an exact replacement of text in a scratch copy of
//! format, engine and simulator. The scenes that tell its story (`crates/sim/tests/named`) must fail there; and seeds are
//! run until one fails. The unpatched copy must pass those scenes, and that seed.

mod scratch;
mod table;

use crate::mistakes::{self, Mistake};
use crate::{named, root};
use anyhow::{Result, anyhow, bail};
use scratch::Found;
pub use scratch::{copy, manifest};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// The first seed; fixed, so that a mistake that is found today is found tomorrow.
const FROM: u64 = 1;
/// Mistakes that need what few seeds draw: the hunt takes only those that have drawn it, or is in the small geometry, and begins at the
/// seed named here where even that is rare.
const DRAWN: [(&str, &[&str], u64); 46] = [
    ("a read that does not follow what was moved", &["small", "joins"], FROM),
    ("a superblock that is not flushed", &["small"], FROM),
    ("two superblocks at once", &["small"], FROM),
    ("a membership change in the old epoch", &["small"], FROM),
    ("a pool that goes on without a majority", &["small"], FROM),
    ("a witness counted that did not vote", &["small"], FROM),
    ("a checkpoint's page that failed, overlooked", &["small"], FROM),
    ("a checkpoint that does not wait for its pages", &["small"], FROM),
    ("a checkpoint written over the one before", &["small"], FROM),
    ("a checkpoint with the number of another", &["small"], FROM),
    ("a segment freed with a read in flight on it", &["small"], FROM),
    ("an append that FLUSH does not hear of", &["small"], FROM),
    ("a superblock that its flush does not hear of", &["small"], FROM),
    ("a page that the checkpoint's flush does not hear of", &["small"], FROM),
    ("an intent page that its flush does not hear of", &["small"], FROM),
    ("destaged data that the disk's flush does not hear of", &["small"], FROM),
    ("an ordered overwrite that the disk's flush does not hear of", &["small"], FROM),
    ("an older segment in a slot that a newer one has", &["small"], FROM),
    ("a read in flight that does not keep its segment", &[], 8_750),
    ("a start that leaves the newest superblock on one member", &["small"], FROM),
    ("a start that flushes no cache device", &["small"], FROM),
    ("a member that hangs is waited for", &["hang"], FROM),
    ("an intent page found on one member taken for everybody's", &["loss-with-crash"], 527_590),
    ("members that left one after the other not added up", &["second-loss"], FROM),
    ("a volume served though its copies left with their members", &["second-loss"], FROM),
    ("a refused volume forgiven by the next checkpoint", &["second-loss"], 61_500),
    ("dirty data without a copy read from the disk", &["second-loss"], FROM),
    ("a cache device added with what was on it", &["small", "joins"], 28_500),
    ("the pool told of a new member before itself", &["small", "joins"], FROM),
    ("the witness told first of a new member", &["small", "joins"], FROM),
    ("a member in sync while the epoch before it is still being written", &["small", "joins"], 700_000_101_740),
    ("copies made again with the last of the reserve", &["small", "loss", "diskless"], 780_000_129_440),
    ("a cache device removed with what is dirty on it", &["small", "joins"], FROM),
    ("a removed cache device that is still given new data", &["small", "joins"], FROM),
    ("a checkpoint that flushes those alone that hold it", &["small", "joins"], 141_556_600),
    ("a twin taken from a segment that was opened since", &["small", "joins"], 40_014_600),
    ("a full cache device that keeps the others from being used", &["small", "joins"], FROM),
    ("a preload that writes do not spoil", &["small", "preloads"], FROM),
    ("a preload of what is being written", &["small", "preloads"], FROM),
    ("a preload that knew what is missing before it waited", &["small", "preloads"], FROM),
    ("a volume's new end served before it is durable", &["small", "grows"], FROM),
    ("pages that move, written to one place alone", &["small", "grows"], FROM),
    ("pages that have left before the superblock has", &["small", "grows"], FROM),
    ("pages named where they are not yet", &["small", "grows"], FROM),
    ("an earlier volume's pages left under one that grows", &["small", "grows", "scrubs"], FROM),
    ("pages given away that are still being written", &["small", "grows", "two-volumes"], FROM),
];
/// Seeds that a mistake is given.
const SEEDS: u64 = 12_000;
/// The same for one that scenes tell: how soon chance finds it too is for the table to say.
const SEEDS_TOLD: u64 = 500;
/// Time that a mistake is given, on one processor.
const LIMIT: Duration = Duration::from_secs(480);

/// One mistake in so many is planted by `--sample`.
const SAMPLE: usize = 24;

const USAGE: &str = "cargo xtask planted [--list | --told | --sample | --named | --table] [NAME..]
    --list   name all mistakes, with their stories
    --told   only mistakes that scenes tell, and the scenes alone
    --sample one in twenty-four of these, drawn by the commit's tree: what `cargo xtask test` has time for
    --named  run the scenes alone for a mistake that scenes tell
    --table  write what found each into docs/GUARANTEES.md";

/// Which of so many a sample begins with. By what the commit contains: others for each change, and the same for whoever looks at it again.
fn drawn_by(folder: &Path) -> usize {
    let tree = Command::new("git").arg("-C").arg(folder).args(["rev-parse", "HEAD^{tree}"]).output();
    let tree = tree.map(|told| String::from_utf8_lossy(&told.stdout).into_owned()).unwrap_or_default();
    let number = tree.get(..8).and_then(|digits| u32::from_str_radix(digits, 16).ok());
    // Without a repository, as in a tarball, the time has to do.
    let now = || SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u32);
    number.unwrap_or_else(now) as usize % SAMPLE
}

/// A scene that failed on a mistake, and how.
struct Failed {
    scene: &'static str,
    why: String,
}

/// What found a mistake.
struct Caught {
    mistake: &'static Mistake,
    /// Scenes that failed on it, as they must.
    scenes: Vec<Failed>,
    /// The seeds, where they were run.
    seeds: Option<Found>,
    took: Duration,
}

/// `cargo xtask planted`: those whose names contain one of the words; all, where there are none.
pub fn run(args: &[String]) -> Result<()> {
    let (options, words): (Vec<&str>, Vec<&str>) = args.iter().map(String::as_str).partition(|a| a.starts_with('-'));
    let all = mistakes::all();
    let (mut named_alone, mut table, mut told_alone, mut sample) = (false, false, false, false);
    match options.as_slice() {
        [] => {}
        ["--list"] => {
            all.iter().for_each(|m| println!("{}\n    {}", m.name, m.story));
            named::elsewhere().for_each(|(number, why)| println!("{number} is not a scene\n    {why}"));
            return Ok(());
        }
        ["--named"] => named_alone = true,
        ["--told"] => (named_alone, told_alone) = (true, true),
        ["--sample"] => (named_alone, told_alone, sample) = (true, true, true),
        ["--table"] => table = true,
        _ => bail!("{USAGE}"),
    }
    let mut wanted: Vec<&'static Mistake> =
        all.into_iter().filter(|m| words.is_empty() || words.iter().any(|w| m.name.contains(w))).collect();
    wanted.retain(|m| !told_alone || !named::scenes_of(m.name).is_empty());
    if wanted.is_empty() {
        bail!("no mistake has such a name; --list shows them");
    }
    if sample {
        let told = wanted.len();
        let drawn = drawn_by(&root());
        wanted = wanted.into_iter().enumerate().filter(|(n, _)| n % SAMPLE == drawn).map(|(_, m)| m).collect();
        println!("{} of {told} mistakes, every {SAMPLE}th from number {drawn} on", wanted.len());
    }
    // One copy of the source for each processor: a build is one long chain of three crates.
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    let copies = processors.min(wanted.len());
    let benches = (0..copies).map(|n| scratch::Bench::new(n, processors / copies)).collect::<Result<Vec<_>>>()?;
    // A typo in one must not be found after all others have had their time.
    let misfits: Vec<String> = wanted.iter().filter_map(|m| benches[0].patched(m).err()).map(|e| format!("{e:#}")).collect();
    if !misfits.is_empty() {
        bail!("{}", misfits.join("\n"));
    }
    let left = Mutex::new(wanted.iter().enumerate());
    let ends: Mutex<BTreeMap<usize, Result<Caught>>> = Mutex::default();
    let told: BTreeSet<&str> = wanted.iter().flat_map(|m| named::scenes_of(m.name)).collect();
    let hunts = wanted.iter().any(|m| !named_alone || named::scenes_of(m.name).is_empty());
    // A copy that cannot be used ends it for all: a scene that fails without any mistake is to be told at once.
    let has_failed = &AtomicBool::new(false);
    std::thread::scope(|scope| {
        let work = |bench: &scratch::Bench| -> Result<()> {
            prepare(bench, told.iter().filter(|_| bench.number() == 0), hunts)?;
            loop {
                let Some((n, m)) = left.lock().unwrap_or_else(PoisonError::into_inner).next() else { return Ok(()) };
                if has_failed.load(Ordering::Relaxed) {
                    return Ok(());
                }
                let end = try_out(bench, m, named_alone)?;
                ends.lock().unwrap_or_else(PoisonError::into_inner).insert(n, end);
            }
        };
        let workers: Vec<_> = benches
            .iter()
            .map(|bench| scope.spawn(move || work(bench).inspect_err(|_| has_failed.store(true, Ordering::Relaxed))))
            .collect();
        workers.into_iter().try_for_each(|w| w.join().map_err(|_| anyhow!("a worker panicked"))?)
    })?;
    let (mut caught, mut missed) = (Vec::new(), Vec::new());
    for (n, end) in ends.into_inner().unwrap_or_else(PoisonError::into_inner) {
        match end {
            Ok(c) => caught.push(c),
            Err(_) => missed.push(wanted[n].name),
        }
    }
    println!("planted mistakes: {} passed, {} failed", caught.len(), missed.len());
    if table {
        table::write(&caught, &missed)?;
    }
    if !missed.is_empty() {
        bail!("not found: {}", missed.join("; "));
    }
    Ok(())
}

/// Builds a copy without any mistake; these scenes must pass there, and seeds, where some are to be run.
fn prepare<'a>(bench: &scratch::Bench, told: impl Iterator<Item = &'a &'a str>, hunts: bool) -> Result<()> {
    if hunts {
        bench.build()?;
        fs::copy(bench.hunter(), bench.unpatched())?;
    }
    let scenes = bench.scenes()?;
    for name in told {
        if let Some(why) = bench.failure_of(&scenes, name)? {
            bail!("{name} fails without any mistake: {why}\ncargo test --release --package headpond-sim --test named -- {name}");
        }
    }
    Ok(())
}

/// Plants a mistake, and takes it out again; what found it, or an error where nothing did. The outer error: it could not be planted.
fn try_out(bench: &scratch::Bench, m: &'static Mistake, named_alone: bool) -> Result<Result<Caught>> {
    let told = named::scenes_of(m.name);
    let begun = Instant::now();
    let before = bench.plant(m)?;
    let found = find(bench, m, &told, !named_alone || told.is_empty());
    before.iter().try_for_each(|(path, text)| fs::write(path, text))?;
    let end = found.map(|(scenes, seeds)| Caught { mistake: m, scenes, seeds, took: begun.elapsed() });
    match &end {
        Ok(c) => println!("planted: {} ... found ({:.1} s){}", m.name, c.took.as_secs_f64(), c.in_words()),
        Err(e) => println!("planted: {} ... NOT FOUND: {e:#}\n         {}", m.name, m.story),
    }
    Ok(end)
}

/// Runs what should find a mistake that is planted. One that scenes tell may be beyond the seeds.
fn find(bench: &scratch::Bench, m: &Mistake, told: &[&'static str], hunts: bool) -> Result<(Vec<Failed>, Option<Found>)> {
    let mut failures = Vec::new();
    if !told.is_empty() {
        let scenes = bench.scenes()?;
        for name in told {
            let Some(why) = bench.failure_of(&scenes, name)? else { bail!("{name} passes, and tells this very story") };
            failures.push(Failed { scene: name, why });
        }
    }
    if !hunts {
        return Ok((failures, None));
    }
    bench.build()?;
    let found = bench.hunt(m, if told.is_empty() { SEEDS } else { SEEDS_TOLD })?;
    if told.is_empty()
        && let Found::Nothing { seeds, .. } = found
    {
        bail!("{seeds} seeds passed");
    }
    Ok((failures, Some(found)))
}

impl Caught {
    fn in_words(&self) -> String {
        let scenes = self.scenes.iter().map(|f| format!("by {}: {}", f.scene, f.why));
        let seeds = self.seeds.as_ref().map(|found| match found {
            Found::Failure { seeds, seed, what, .. } => format!("by seed {seed}, after {seeds} seeds: {what}"),
            Found::Hang => "by a seed that does not end".into(),
            Found::Nothing { seeds, .. } => format!("not by {seeds} seeds"),
        });
        scenes.chain(seeds).map(|line| format!("\n         {line}")).collect()
    }
}
