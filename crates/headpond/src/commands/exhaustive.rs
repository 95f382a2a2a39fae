//! `headpond sim --exhaustive`: all short sequences of operations in a small world, with every crash.

use headpond_sim::exhaustive::{Case, Narrator, Search, Sequence, Totals, tell};
use std::io::{IsTerminal, Write};
use std::process::ExitCode;
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// What of it is to be searched.
#[derive(clap::Args, Debug)]
#[group(id = "small-world")]
pub struct Args {
    /// Search a small world exhaustively instead: all sequences of a few operations, each crash, each part of unflushed writes
    #[arg(long, conflicts_with_all = ["seed", "seeds", "twice"])]
    exhaustive: bool,
    /// Operations of the longest sequences
    #[arg(long, requires = "exhaustive", default_value_t = 2, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=6))]
    depth: u8,
    /// Begin every sequence with these operations, as in write:120+8
    #[arg(long, requires = "exhaustive", value_name = "SEQUENCE")]
    after: Option<String>,
    /// Begin each operation at every moment of the one before, with what is in flight held up or not
    #[arg(long, requires = "exhaustive")]
    interleave: bool,
    /// Cut each start after a crash by another one, at each of its moments
    #[arg(long, requires = "exhaustive")]
    in_recovery: bool,
    /// Replay one case, as a failure prints it, and tell its story
    #[arg(long, requires = "exhaustive", value_name = "CASE")]
    case: Option<String>,
}

impl Args {
    /// Whether it was asked for.
    #[must_use]
    pub fn wanted(&self) -> bool {
        self.exhaustive
    }

    /// Runs it, from the sequence `from` on; fails if anything in it does.
    #[must_use]
    pub fn run(&self, from: Option<&str>, threads: usize, every: Duration, json: bool) -> ExitCode {
        match self.try_run(from, threads, every, json) {
            Ok(code) => code,
            Err(what) => {
                eprintln!("{what}");
                ExitCode::from(2)
            }
        }
    }

    fn try_run(&self, from: Option<&str>, threads: usize, every: Duration, json: bool) -> Result<ExitCode, String> {
        if let Some(case) = &self.case {
            return Ok(tell_case(&case.parse()?));
        }
        let from: Option<Sequence> = from.map(str::parse).transpose()?;
        let after: Sequence = self.after.as_deref().map(str::parse).transpose()?.unwrap_or_default();
        let begun = Instant::now();
        let shown = Mutex::new(begun);
        let search = Search {
            after,
            depth: usize::from(self.depth),
            interleave: self.interleave,
            in_recovery: self.in_recovery,
            from,
            threads,
        };
        let totals = search.run(|t| {
            let Ok(mut shown) = shown.lock() else { return };
            if shown.elapsed() >= every {
                *shown = Instant::now();
                show_progress(t);
            }
        });
        let seconds = begun.elapsed().as_secs_f64();
        let out = if json {
            as_json(&totals, seconds)
        } else {
            format!("{totals}\n{} failed, in {seconds:.1} s", totals.failures.len())
        };
        // Whoever reads may have gone: that is no failure.
        let _ = writeln!(std::io::stdout(), "{out}");
        for (case, what) in &totals.failures {
            eprintln!("{case}\n    {what}\n    replay: {}", replay(case));
        }
        Ok(if totals.failures.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }
}

/// The command that runs one case again and tells its story.
fn replay(case: &Case) -> String {
    format!("cargo run --release -- sim --exhaustive --case {case}")
}

fn tell_case(case: &Case) -> ExitCode {
    // Whoever reads may stop early.
    fn narrator() -> Narrator {
        Box::new(|line| drop(writeln!(std::io::stdout(), "{line}")))
    }
    match tell(case, narrator) {
        Ok(()) => {
            println!("passed");
            ExitCode::SUCCESS
        }
        Err(what) => {
            println!("FAILED: {what}");
            ExitCode::FAILURE
        }
    }
}

fn show_progress(t: &Totals) {
    let line = format!("{} of {} sequences of {} operations; {t}", t.done, t.of, t.depth);
    if std::io::stderr().is_terminal() {
        eprint!("\r\x1b[K{line}\r");
    } else {
        eprintln!("{line}");
    }
}

fn as_json(t: &Totals, seconds: f64) -> String {
    serde_json::json!({
        "depth": t.depth,
        "seconds": seconds,
        "sequences": t.sequences,
        "moments": t.points,
        "crashes": t.crashes,
        "distinct_states": t.states,
        "recoveries": t.recoveries,
        "starts_refused": t.refused,
        "failures": t.failures.iter().map(|(case, what)| serde_json::json!({
            "case": case.to_string(),
            "what": what,
            "replay": replay(case),
        })).collect::<Vec<_>>(),
    })
    .to_string()
}
