//! `headpond upgrade`.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::anyhow;
use clap::Args;
use headpond_host::control::Call;
use headpond_host::report::Report;
use serde_json::json;

use super::{Which, print};

/// How long the new program may take to answer.
const PATIENCE: Duration = Duration::from_secs(120);

#[derive(Args)]
pub struct Upgrade {
    /// The program that is to go on [default: the one of this command]
    #[arg(long, value_name = "PATH")]
    program: Option<PathBuf>,
    /// Also where NBD clients are connected: their connections are cut, and they have to connect again
    #[arg(long)]
    cut: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    which: Which,
}

impl Upgrade {
    pub fn run(self) -> anyhow::Result<()> {
        let program = match self.program {
            Some(program) => std::path::absolute(program)?,
            None => std::env::current_exe()?,
        };
        let before = self.which.report(None)?;
        let process = began(before.process);
        let program = program.display().to_string();
        self.which.call(&Call::Upgrade { program: program.clone(), cut: self.cut })?;
        let until = Instant::now() + PATIENCE;
        let after = loop {
            // It tells how long nobody answered. Its clock begins anew, but may be further already than that of a daemon that had
            // just begun.
            let taken_over = |after: &Report| after.pause_seconds.is_some() && after.pause_seconds != before.pause_seconds;
            let after = self.which.report(None).ok().filter(|after| after.process != before.process || taken_over(after));
            match after {
                Some(after) => break after,
                // It stays the same process, with another program in it.
                None if process.is_some() && began(before.process) != process => return Err(died(&before, &program)),
                None if Instant::now() > until => return Err(silent(&before, &program)),
                None => std::thread::sleep(Duration::from_millis(20)),
            }
        };
        let pause = after.pause_seconds.unwrap_or(0.0);
        let words = format!(
            "pool {} is served by Headpond {} now (before: {}); I/O waited for {pause:.2} s",
            after.pool, after.version, before.version
        );
        print(
            self.json,
            &json!({ "program": program, "version": after.version, "before": before.version, "pause_seconds": pause }),
            words,
        )
    }
}

fn silent(before: &Report, program: &str) -> anyhow::Error {
    anyhow!(
        "{program} does not answer for {} s after it took over pool {}. What was acknowledged is on the cache devices. Look at its log, and \
         start the version before with `headpond serve`",
        PATIENCE.as_secs(),
        before.pool
    )
}

fn died(before: &Report, program: &str) -> anyhow::Error {
    anyhow!(
        "{program} ended before it served pool {}, which nobody serves now. What was acknowledged is on the cache devices. Look at its log; \
         unless something starts the daemon again, start the version before with `headpond serve`",
        before.pool
    )
}

/// When a process began, in the kernel's own unit; `None` where there is none that runs, or it cannot be seen from here.
fn began(process: u32) -> Option<u64> {
    let text = std::fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    // Its name, in parentheses, may hold anything.
    let mut words = text.rsplit_once(')')?.1.split_whitespace();
    if matches!(words.next()?, "Z" | "X") {
        return None;
    }
    words.nth(18)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_that_runs_has_a_beginning_and_one_that_ended_has_none() {
        assert!(began(std::process::id()).is_some());
        let mut child = std::process::Command::new("true").spawn().unwrap();
        while began(child.id()).is_some() {
            std::thread::sleep(Duration::from_millis(1));
        }
        child.wait().unwrap();
    }
}
