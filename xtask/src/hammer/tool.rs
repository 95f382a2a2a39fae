//! Programs of others, run to their end: with a limit against hanging, and with what they said.

use super::interrupt;
use anyhow::{Context, Result, bail};
use std::fs::{self, File};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// Far longer than anything here takes: only what hangs gets there.
const LIMIT: Duration = Duration::from_secs(600);

/// How a program ended.
pub struct Ended {
    /// Its exit.
    pub status: ExitStatus,
    /// What it printed, errors too.
    pub said: String,
}

/// Runs a program; it may fail. What it says is kept in `log` meanwhile.
pub fn try_run(command: &mut Command, log: &Path) -> Result<Ended> {
    let name = command.get_program().to_string_lossy().into_owned();
    let out = File::create(log).with_context(|| format!("{} cannot be written", log.display()))?;
    // A process group of its own: Ctrl-C is for us, who end it.
    command.process_group(0).stdin(Stdio::null()).stdout(out.try_clone()?).stderr(out);
    let mut child = command.spawn().with_context(|| format!("{name} cannot be run"))?;
    let begun = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break status;
        }
        let late = begun.elapsed() > LIMIT;
        if late || interrupt::interrupted() {
            let _ = child.kill();
            let _ = child.wait();
            interrupt::check()?;
            bail!("{name} did not end within {} s, and was killed; it said: {}", LIMIT.as_secs(), last_words(log));
        }
        thread::sleep(Duration::from_millis(5));
    };
    Ok(Ended { status, said: String::from_utf8_lossy(&fs::read(log)?).into_owned() })
}

/// Runs a program that must succeed; returns what it said.
pub fn run(command: &mut Command, log: &Path) -> Result<String> {
    let ended = try_run(command, log)?;
    if !ended.status.success() {
        bail!("{} ended with {}: {}", in_words(command), ended.status, last_words(log));
    }
    Ok(ended.said)
}

/// The end of what a program said.
pub fn last_words(log: &Path) -> String {
    let text = fs::read(log).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default();
    let lines: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
    let last = &lines[lines.len().saturating_sub(12)..];
    if last.is_empty() { "it said nothing".into() } else { last.join("\n    ") }
}

fn in_words(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words.map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
}
