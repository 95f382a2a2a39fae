//! A scratch copy of the source in which a mistake is made, and what is run there.

use super::{DRAWN, FROM, LIMIT};
use crate::mistakes::Mistake;
use crate::root;
use crate::steps::{cargo, output, run as run_command};
use anyhow::{Context, Result, bail};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Crates that are copied.
const COPIED: [&str; 3] = ["format", "engine", "sim"];

/// What the seeds found.
pub enum Found {
    /// None failed.
    Nothing { seeds: u64, crashes: u64 },
    /// One failed, after so many crashes and starts.
    Failure { seeds: u64, crashes: u64, seed: u64, what: String },
    /// One does not end.
    Hang,
}

/// The programs that play scenes.
pub struct Scenes {
    /// Those of `crates/sim/tests/named`.
    named: PathBuf,
    /// Tests of the format alone, `crates/format/tests/golden.rs`.
    format: PathBuf,
}

/// A scratch copy of the source, with a target folder of its own.
pub struct Bench {
    number: usize,
    source: PathBuf,
    target: PathBuf,
    threads: usize,
}

impl Bench {
    /// The copy with this number; hunts take so many threads.
    pub fn new(number: usize, threads: usize) -> Result<Self> {
        // Beside what is built, so that it goes with `cargo clean`.
        let exe = std::env::current_exe()?;
        let folder = exe
            .parent()
            .and_then(Path::parent)
            .context("xtask is not in a target folder")?
            .join("planted")
            .join(number.to_string());
        let bench = Self { number, source: folder.join("source"), target: folder.join("target"), threads };
        // What a run that was ended in the middle of a build left behind does not link any more.
        for left in [bench.source.clone(), bench.target.join("release/incremental")] {
            if left.exists() {
                fs::remove_dir_all(&left).with_context(|| format!("cannot remove {}", left.display()))?;
            }
        }
        for name in COPIED {
            copy(&root().join("crates").join(name), &bench.source.join("crates").join(name))?;
        }
        fs::copy(root().join("Cargo.lock"), bench.source.join("Cargo.lock"))?;
        fs::write(bench.source.join("Cargo.toml"), manifest(&COPIED)?)?;
        Ok(bench)
    }

    pub fn number(&self) -> usize {
        self.number
    }

    /// The texts of the files that a mistake changes, changed.
    pub fn patched(&self, m: &Mistake) -> Result<BTreeMap<PathBuf, String>> {
        let mut texts = BTreeMap::new();
        for edit in m.edits {
            let path = self.source.join("crates").join(edit.path());
            let text = match texts.remove(&path) {
                Some(text) => text,
                None => fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?,
            };
            match text.matches(edit.old).count() {
                1 => texts.insert(path, text.replacen(edit.old, edit.new, 1)),
                n => bail!(
                    "\"{}\": its text is {n} times in crates/{}, and must be there once. If the source changed there, change the mistake with it:\n{}",
                    m.name,
                    edit.path().display(),
                    edit.old
                ),
            };
        }
        Ok(texts)
    }

    /// Makes a mistake; what the files were before.
    pub fn plant(&self, m: &Mistake) -> Result<BTreeMap<PathBuf, String>> {
        let mut before = BTreeMap::new();
        for (path, text) in self.patched(m)? {
            before.insert(path.clone(), fs::read_to_string(&path)?);
            fs::write(path, text)?;
        }
        Ok(before)
    }

    pub fn build(&self) -> Result<()> {
        run_command(self.cargo(&[
            "build",
            "--quiet",
            "--release",
            "--package",
            "headpond-sim",
            "--no-default-features",
            "--example",
            "hunt",
        ]))
    }

    /// Builds the programs that play the scenes.
    pub fn scenes(&self) -> Result<Scenes> {
        let built = |args: &[&str], name: &str| {
            let said = output(self.cargo(&[&["test", "--no-run", "--release", "--quiet", "--test", name], args].concat()))?;
            said.lines()
                .filter_map(|l| serde_json::from_str::<Value>(l).ok())
                .filter(|m| m["target"]["name"] == name)
                .find_map(|m| m["executable"].as_str().map(PathBuf::from))
                .with_context(|| format!("cargo names no program for the test \"{name}\""))
        };
        Ok(Scenes {
            named: built(&["--package", "headpond-sim", "--no-default-features", "--message-format", "json"], "named")?,
            format: built(&["--package", "headpond-format", "--message-format", "json"], "golden")?,
        })
    }

    /// How a scene fails, if it does.
    pub fn failure_of(&self, scenes: &Scenes, name: &str) -> Result<Option<String>> {
        let (program, test) = match name.strip_prefix("format::") {
            Some(test) => (&scenes.format, test),
            None => (&scenes.named, name),
        };
        // The longest takes a minute with this profile on two busy cores; a machine that is busier yet has not hung.
        let mut c = Command::new("timeout");
        c.arg("900").arg(program).args(["--exact", test]);
        let out = c.stdin(Stdio::null()).output().with_context(|| format!("cannot run {c:?}"))?;
        let said = String::from_utf8_lossy(&out.stdout);
        if out.status.success() {
            return if said.contains("1 passed") { Ok(None) } else { bail!("there is no scene {name}") };
        }
        // The line after the one that says where.
        let why = said.lines().skip_while(|l| !l.contains("panicked at")).nth(1);
        Ok(Some(why.unwrap_or("it does not end, or takes the program with it").chars().take(200).collect()))
    }

    fn cargo(&self, args: &[&str]) -> Command {
        let mut c = cargo(args);
        // A patched copy may leave something unused.
        c.current_dir(&self.source).env("CARGO_TARGET_DIR", &self.target).env("RUSTFLAGS", "--cap-lints allow");
        c
    }

    pub fn hunter(&self) -> PathBuf {
        self.target.join("release/examples/hunt")
    }

    /// The same without any mistake.
    pub fn unpatched(&self) -> PathBuf {
        self.target.join("hunt-unpatched")
    }

    /// Runs seeds until one fails, which the unpatched copy must pass.
    pub fn hunt(&self, m: &Mistake, most: u64) -> Result<Found> {
        let (with, from) = DRAWN.iter().find(|d| d.0 == m.name).map_or((&[][..], FROM), |d| (d.1, d.2));
        let out = self.seeds(&self.hunter(), from, most, with)?;
        let count = |word| out.lines().find_map(|l| l.strip_prefix(word)).and_then(|n| n.trim().parse().ok());
        let (Some(seeds), Some(crashes)) = (count("seeds "), count("crashes ")) else { return Ok(Found::Hang) };
        let Some((seed, what)) = failure(&out) else { return Ok(Found::Nothing { seeds, crashes }) };
        if let Some((_, what)) = failure(&self.seeds(&self.unpatched(), seed, 1, with)?) {
            bail!("seed {seed} fails without any mistake: {what}");
        }
        Ok(Found::Failure { seeds, crashes, seed, what: what.into() })
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
        } else {
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
    use crate::mistakes;

    #[test]
    fn the_text_of_each_mistake_is_in_the_engine_exactly_once() {
        let bench = Bench { number: 0, source: root(), target: PathBuf::new(), threads: 1 };
        let misfits: Vec<String> =
            mistakes::all().into_iter().filter_map(|m| bench.patched(m).err()).map(|e| format!("{e:#}")).collect();
        assert!(misfits.is_empty(), "{}", misfits.join("\n"));
    }
}
