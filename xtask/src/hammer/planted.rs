//! Mistakes planted in a copy of the daemon: the hammer must find each, as a check that has never failed proves nothing.
//!
//! These are about what only the whole daemon shows, or about what the simulator finds too, so that the two can be compared.

use super::{CHECKS, Context, interrupt, one};
use crate::planted::{copy, manifest};
use crate::root;
use crate::steps::{in_words, run as run_command};
use anyhow::{Context as _, Result, bail};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

/// A mistake, as an exact replacement of text that is there once.
struct Mistake {
    name: &'static str,
    story: &'static str,
    /// The checks that must find it, each.
    checks: &'static [&'static str],
    /// In `crates`.
    file: &'static str,
    old: &'static str,
    new: &'static str,
}

const MISTAKES: [Mistake; 6] = [
    Mistake {
        name: "a start that replays no log",
        story: "What was acknowledged since the last checkpoint is not looked for, and older data is served in its place.",
        checks: &["kills-nbd", "ext4"],
        file: "engine/src/recovery.rs",
        old: "found.iter().filter(|f| f.replay_from != u32::MAX).collect();",
        new: "found.iter().filter(|f| f.replay_from != u32::MAX && f.header.class == headpond_format::Class::Single).collect();",
    },
    Mistake {
        name: "a start that replays all dirty data but the newest segment",
        story: "Of what was acknowledged since the last checkpoint, only the last part is lost: what a file system wrote just before the kill.",
        // Ten rounds of ext4 find it as well, but not every time (two runs of three), so they are asked for a coarser one.
        checks: &["xfs", "kills-loop"],
        file: "engine/src/recovery.rs",
        old: "    let mut marks: Vec<(u16, Entry)> = Vec::new();\n    for f in replay {",
        new: "    let mut marks: Vec<(u16, Entry)> = Vec::new();\n    if let Some(n) = replay.iter().rposition(|f| f.header.class == headpond_format::Class::Mirrored) {\n        replay.remove(n);\n    }\n    for f in replay {",
    },
    Mistake {
        name: "an acknowledgement before the record is on the members",
        story: "A write is acknowledged as soon as it is sent to the cache devices: what a kill cuts off was promised.",
        checks: &["kills-nbd"],
        file: "engine/src/log.rs",
        old: "            for (place, write) in writes {\n                match write.await {\n",
        new: "            for (place, write) in writes {\n                core2.exec.spawn(async move { drop(write.await) });\n                match Ok::<(), ()>(()) {\n",
    },
    Mistake {
        name: "an invalidation skipped on bypass",
        story: "A write went past the cache, and the clean copy that it outdated is still read.",
        checks: &["fio-nbd"],
        file: "engine/src/write.rs",
        old: "        forget(core, volume, part, version);\n",
        new: "",
    },
    Mistake {
        name: "zeroes over the loop device taken for a discard",
        story: "The kernel sends zeroes as a hole; the volume rounds a discard inwards, and the edges keep what was there.",
        checks: &["fio-loop"],
        file: "host/src/fuse/protocol.rs",
        old: "hole: Hole::cut(offset..offset + len, self.phase)",
        new: "hole: Hole { head: 0..0, blocks: offset..offset + len, tail: 0..0 }",
    },
    Mistake {
        name: "holes over the loop device cut where no block of the volume begins",
        story: "Blocks are taken to begin at multiples of 4 KiB of every volume, and in one of another phase the edges of a hole keep what was there.",
        checks: &["fio-loop"],
        file: "host/src/fuse/protocol.rs",
        old: "hole: Hole::cut(offset..offset + len, self.phase)",
        new: "hole: Hole::cut(offset..offset + len, 0)",
    },
];

/// The crates that make the daemon.
const COPIED: [&str; 5] = ["format", "engine", "sim", "host", "headpond"];

/// Plants those whose name, or whose check's name, contains one of the words (all, where there are none), one at a time, and hammers what
/// comes of it.
pub fn run(mut context: Context, only: &[String]) -> Result<()> {
    // Beside what is built, so that it goes with `cargo clean`.
    let exe = std::env::current_exe()?;
    let bench = exe.parent().and_then(Path::parent).context("xtask is not in a target folder")?.join("hammer-planted");
    let (source, target, yard) = (bench.join("source"), bench.join("target"), bench.join("yard"));
    let mut missed = Vec::new();
    // In phase 0 one of them is none.
    context.seed |= 1;
    let is_wanted = |mistake: &&Mistake| {
        only.is_empty()
            || only.iter().any(|word| {
                mistake.name.contains(word.as_str()) || mistake.checks.iter().any(|check| check.contains(word.as_str()))
            })
    };
    let mut found = 0;
    for mistake in MISTAKES.iter().filter(is_wanted) {
        let begun = Instant::now();
        let built = patch(mistake, &source).and_then(|()| build(&source, &target));
        context.headpond = built.with_context(|| format!("planting \"{}\"", mistake.name))?;
        for name in mistake.checks {
            // What the last check left is of no use here.
            let _ = fs::remove_dir_all(&yard);
            fs::create_dir_all(&yard)?;
            context.folder = yard.clone();
            let check = CHECKS.iter().find(|check| check.name == *name).context("a mistake names a check that is not there")?;
            let result = one(check, &context);
            let _ = fs::remove_dir_all(&yard);
            interrupt::check()?;
            let took = in_words(begun.elapsed());
            if result["outcome"] == "failed" {
                found += 1;
                println!("planted: {} ... found by {name} ({took})", mistake.name);
            } else {
                println!("planted: {} ... NOT FOUND by {name} ({took})\n         {}", mistake.name, mistake.story);
                missed.push(mistake.name);
            }
        }
    }
    println!("planted mistakes: {found} found, {} not", missed.len());
    if !missed.is_empty() {
        bail!("not found: {}", missed.join("; "));
    }
    if found == 0 {
        bail!("no mistake has such a name, and no check of a mistake");
    }
    Ok(())
}

/// A fresh copy with one mistake in it.
fn patch(mistake: &Mistake, source: &Path) -> Result<()> {
    for name in COPIED {
        copy(&root().join("crates").join(name), &source.join("crates").join(name))?;
    }
    fs::copy(root().join("Cargo.lock"), source.join("Cargo.lock"))?;
    fs::write(source.join("Cargo.toml"), manifest(&COPIED)?)?;
    let path = source.join("crates").join(mistake.file);
    let text = fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
    match text.matches(mistake.old).count() {
        1 => Ok(fs::write(&path, text.replacen(mistake.old, mistake.new, 1))?),
        n => bail!(
            "its text is {n} times in crates/{}, and must be there once. If the source changed there, change the mistake with it:\n{}",
            mistake.file,
            mistake.old
        ),
    }
}

fn build(source: &Path, target: &Path) -> Result<PathBuf> {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.args(["build", "--quiet", "--release", "--package", "headpond"]).current_dir(source);
    // A patched copy may leave something unused.
    command.env("CARGO_TARGET_DIR", target).env("RUSTFLAGS", "--cap-lints allow");
    run_command(command)?;
    Ok(target.join("release/headpond"))
}
