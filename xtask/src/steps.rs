//! Steps, run in order, each with its time.

use anyhow::{Context, Result, bail};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Steps done so far.
pub struct Steps {
    begun: Instant,
    done: Vec<(String, Duration)>,
}

impl Steps {
    pub fn new() -> Self {
        Self { begun: Instant::now(), done: Vec::new() }
    }

    /// Does one step.
    pub fn step(&mut self, name: &str, f: impl FnOnce() -> Result<()>) -> Result<()> {
        println!("\n==> {name}");
        let begun = Instant::now();
        f().with_context(|| format!("failed: {name}"))?;
        let took = begun.elapsed();
        println!("<== {name}: {}", in_words(took));
        self.done.push((name.into(), took));
        Ok(())
    }

    /// Says how long everything took.
    pub fn finish(&self) {
        println!();
        for (name, took) in &self.done {
            println!("{:>9}  {name}", in_words(*took));
        }
        println!("{:>9}  in all", in_words(self.begun.elapsed()));
    }
}

/// A length of time, as people say it.
pub fn in_words(d: Duration) -> String {
    match d.as_secs() {
        0..120 => format!("{:.1} s", d.as_secs_f64()),
        s => format!("{} min {:02} s", s / 60, s % 60),
    }
}

/// A cargo command in the workspace.
pub fn cargo(args: &[&str]) -> Command {
    let mut c = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    c.args(args).current_dir(crate::root());
    c
}

/// Runs a command; its words are what failed if it does.
pub fn run(mut command: Command) -> Result<()> {
    let status = command.status().with_context(|| format!("cannot run {command:?}"))?;
    if !status.success() {
        bail!("{command:?} ended with {status}");
    }
    Ok(())
}

/// Runs a command and returns what it printed.
pub fn output(mut command: Command) -> Result<String> {
    let out = command.stderr(Stdio::inherit()).output().with_context(|| format!("cannot run {command:?}"))?;
    if !out.status.success() {
        bail!("{command:?} ended with {}", out.status);
    }
    String::from_utf8(out.stdout).with_context(|| format!("what {command:?} printed is not text"))
}
