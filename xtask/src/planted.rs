//! Mistakes, planted one at a time in a copy of the engine: the simulator must find each.
//!
//! A checker that has never failed proves nothing. Each mistake is an exact replacement of text in a scratch copy of
//! format, engine and simulator; then seeds are run until one fails. The unpatched copy must pass that seed.

use crate::mistakes::{MISTAKES, Mistake};
use crate::root;
use crate::steps::run as run_command;
use anyhow::{Context, Result, bail};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// The first seed; fixed, so that a mistake that is found today is found tomorrow.
const FROM: u64 = 1;
/// Mistakes that need what few seeds draw: the hunt takes only those that have drawn it, or is in the small geometry, and begins at the
/// seed named here where even that is rare.
const DRAWN: [(&str, &[&str], u64); 12] = [
    ("a read in flight that does not keep its segment", &[], 8_750),
    ("marks that outlive what hid a part of the block", &["small"], 10_001_280),
    ("a start that leaves the newest superblock on one member", &["small"], FROM),
    ("a start that flushes no cache device", &["small"], FROM),
    ("marks short of space that wake each other", &["small"], 2389),
    ("a member that hangs is waited for", &["hang"], FROM),
    ("an intent page found on one member taken for everybody's", &["loss-with-crash"], 527_590),
    ("a checkpoint that knows the volumes of a moment before", &["two-volumes"], 719_340),
    ("members that left one after the other not added up", &["second-loss"], FROM),
    ("a volume served though its copies left with their members", &["second-loss"], FROM),
    ("a refused volume forgiven by the next checkpoint", &["second-loss"], 61_500),
    ("dirty data without a copy read from the disk", &["second-loss"], FROM),
];
/// Seeds that a mistake is given.
const SEEDS: u64 = 12_000;
/// Time that a mistake is given.
const LIMIT: Duration = Duration::from_secs(240);
/// Crates that are copied.
const COPIED: [&str; 3] = ["format", "engine", "sim"];

/// `cargo xtask planted [--list] [NAME..]`: those whose names contain one of the words; all, where there are none.
pub fn run(args: &[String]) -> Result<()> {
    let (options, words): (Vec<&str>, Vec<&str>) = args.iter().map(String::as_str).partition(|a| a.starts_with('-'));
    match options.as_slice() {
        [] => {}
        ["--list"] => {
            MISTAKES.iter().for_each(|m| println!("{}\n    {}", m.name, m.story));
            return Ok(());
        }
        _ => bail!("cargo xtask planted [--list] [NAME..]"),
    }
    let wanted: Vec<&Mistake> =
        MISTAKES.iter().filter(|m| words.is_empty() || words.iter().any(|w| m.name.contains(w))).collect();
    if wanted.is_empty() {
        bail!("no mistake has such a name; --list shows them");
    }
    let bench = Bench::new()?;
    // A typo in one must not be found after all others have had their time.
    let misfits: Vec<String> = wanted.iter().filter_map(|m| bench.patched(m).err()).map(|e| format!("{e:#}")).collect();
    if !misfits.is_empty() {
        bail!("{}", misfits.join("\n"));
    }
    bench.build()?;
    fs::copy(bench.hunter(), bench.unpatched())?;
    let (mut caught, mut missed) = (0, Vec::new());
    for m in wanted {
        let begun = Instant::now();
        let before = bench.plant(m)?;
        let found = bench.build().and_then(|()| bench.hunt(m));
        before.iter().try_for_each(|(path, text)| fs::write(path, text))?;
        let took = begun.elapsed().as_secs_f64();
        match found {
            Err(e) => {
                println!("planted: {} ... COULD NOT BE PLANTED: {e:#}", m.name);
                missed.push(m.name);
            }
            Ok(Found::Failure { seeds, seed, what }) => {
                caught += 1;
                println!("planted: {} ... found by seed {seed}, after {seeds} seeds ({took:.1} s)\n         {what}", m.name);
            }
            Ok(Found::Hang) => {
                caught += 1;
                println!("planted: {} ... found: a seed does not end ({took:.1} s)", m.name);
            }
            Ok(Found::Nothing { seeds }) => {
                println!("planted: {} ... NOT FOUND in {seeds} seeds ({took:.1} s)\n         {}", m.name, m.story);
                missed.push(m.name);
            }
        }
    }
    println!("planted mistakes: {caught} passed, {} failed", missed.len());
    if !missed.is_empty() {
        bail!("not found: {}", missed.join("; "));
    }
    Ok(())
}

/// What the seeds found.
enum Found {
    Nothing { seeds: u64 },
    Failure { seeds: u64, seed: u64, what: String },
    Hang,
}

/// A scratch copy of the source, with a target folder of its own.
struct Bench {
    source: PathBuf,
    target: PathBuf,
    threads: usize,
}

impl Bench {
    fn new() -> Result<Self> {
        // Beside what is built, so that it goes with `cargo clean`.
        let exe = std::env::current_exe()?;
        let folder = exe.parent().and_then(Path::parent).context("xtask is not in a target folder")?.join("planted");
        let bench = Self {
            source: folder.join("source"),
            target: folder.join("target"),
            threads: std::thread::available_parallelism().map_or(1, usize::from),
        };
        if bench.source.exists() {
            fs::remove_dir_all(&bench.source)?;
        }
        for name in COPIED {
            copy(&root().join("crates").join(name), &bench.source.join("crates").join(name))?;
        }
        fs::copy(root().join("Cargo.lock"), bench.source.join("Cargo.lock"))?;
        fs::write(bench.source.join("Cargo.toml"), manifest(&COPIED)?)?;
        Ok(bench)
    }

    /// The texts of the files that a mistake changes, changed.
    fn patched(&self, m: &Mistake) -> Result<BTreeMap<PathBuf, String>> {
        let mut texts = BTreeMap::new();
        for edit in m.edits {
            let path = self.source.join("crates/engine/src").join(edit.file);
            let text = match texts.remove(&path) {
                Some(text) => text,
                None => fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?,
            };
            match text.matches(edit.old).count() {
                1 => texts.insert(path, text.replacen(edit.old, edit.new, 1)),
                n => bail!(
                    "\"{}\": its text is {n} times in crates/engine/src/{}, and must be there once. If the engine changed there, change the mistake with it:\n{}",
                    m.name,
                    edit.file,
                    edit.old
                ),
            };
        }
        Ok(texts)
    }

    /// Makes a mistake; what the files were before.
    fn plant(&self, m: &Mistake) -> Result<BTreeMap<PathBuf, String>> {
        let mut before = BTreeMap::new();
        for (path, text) in self.patched(m)? {
            before.insert(path.clone(), fs::read_to_string(&path)?);
            fs::write(path, text)?;
        }
        Ok(before)
    }

    fn build(&self) -> Result<()> {
        let mut c = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        c.args(["build", "--quiet", "--release", "--package", "headpond-sim", "--example", "hunt"]);
        // A patched copy may leave something unused.
        c.current_dir(&self.source).env("CARGO_TARGET_DIR", &self.target).env("RUSTFLAGS", "--cap-lints allow");
        run_command(c)
    }

    fn hunter(&self) -> PathBuf {
        self.target.join("release/examples/hunt")
    }

    /// The same without any mistake.
    fn unpatched(&self) -> PathBuf {
        self.target.join("hunt-unpatched")
    }

    /// Runs seeds until one fails, which the unpatched copy must pass.
    fn hunt(&self, m: &Mistake) -> Result<Found> {
        let (with, from) = DRAWN.iter().find(|d| d.0 == m.name).map_or((&[][..], FROM), |d| (d.1, d.2));
        let out = self.seeds(&self.hunter(), from, SEEDS, with)?;
        let Some(seeds) = out.lines().find_map(|l| l.strip_prefix("seeds ")).and_then(|n| n.parse().ok()) else {
            return Ok(Found::Hang);
        };
        let Some((seed, what)) = failure(&out) else { return Ok(Found::Nothing { seeds }) };
        if let Some((_, what)) = failure(&self.seeds(&self.unpatched(), seed, 1, with)?) {
            bail!("seed {seed} fails without any mistake: {what}");
        }
        Ok(Found::Failure { seeds, seed, what: what.into() })
    }

    /// What the hunting program prints; no count of seeds, if it had to be ended.
    fn seeds(&self, hunter: &Path, from: u64, count: u64, with: &[&str]) -> Result<String> {
        let mut c = Command::new("timeout");
        c.arg((LIMIT.as_secs() + 60).to_string()).arg(hunter);
        c.args([from, count, LIMIT.as_secs(), self.threads as u64].map(|n| n.to_string())).args(with);
        let out = c.stdin(Stdio::null()).stderr(Stdio::inherit()).output().with_context(|| format!("cannot run {c:?}"))?;
        Ok(String::from_utf8_lossy(&out.stdout).into_owned())
    }
}

fn failure(out: &str) -> Option<(u64, &str)> {
    let (seed, what) = out.lines().find_map(|l| l.strip_prefix("failed "))?.split_once(' ')?;
    Some((seed.parse().ok()?, what))
}

/// The workspace's manifest with these crates alone, and a profile that builds quickly and checks arithmetic.
pub fn manifest(crates: &[&str]) -> Result<String> {
    let text = fs::read_to_string(root().join("Cargo.toml"))?;
    let members: Vec<String> = crates.iter().map(|c| format!("\"crates/{c}\"")).collect();
    let mut out = String::new();
    for line in text.lines() {
        if line.starts_with("members = ") {
            out.push_str(&format!("members = [{}]\n", members.join(", ")));
        } else if line.starts_with("[profile.") {
            break;
        } else if !line.starts_with("default-members") {
            out.push_str(line);
            out.push('\n');
        }
    }
    out.push_str("[profile.release]\nopt-level = 1\ndebug = false\nincremental = true\noverflow-checks = true\n");
    Ok(out)
}

/// Copies a folder with all that is in it.
pub fn copy(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from).with_context(|| format!("cannot read {}", from.display()))? {
        let entry = entry?;
        let target = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            copy(&entry.path(), &target)?;
        } else {
            fs::write(target, fs::read(entry.path())?)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_of_each_mistake_is_in_the_engine_exactly_once() {
        let bench = Bench { source: root(), target: PathBuf::new(), threads: 1 };
        let misfits: Vec<String> = MISTAKES.iter().filter_map(|m| bench.patched(m).err()).map(|e| format!("{e:#}")).collect();
        assert!(misfits.is_empty(), "{}", misfits.join("\n"));
    }
}
