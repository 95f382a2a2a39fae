//! `headpond sim --plain`: the engine as a plain block device, against a plain array.

use headpond_sim::plain::{Narrator, Summary, run_seed};
use std::io::Write;
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

/// Runs seeds; fails if any of them does.
#[must_use]
pub fn run(from: u64, count: u64, threads: usize, json: bool) -> ExitCode {
    eprintln!("seeds {from} to {}, on {threads} threads", from.saturating_add(count.saturating_sub(1)));
    let begun = Instant::now();
    let (next, sum) = (AtomicU64::new(0), Mutex::new(Summary::default()));
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let n = next.fetch_add(1, Ordering::Relaxed);
                    if n >= count {
                        break;
                    }
                    let seed = from.wrapping_add(n);
                    let outcome = run_seed(seed, None);
                    sum.lock().unwrap_or_else(PoisonError::into_inner).add(seed, &outcome);
                }
            });
        }
    });
    let mut sum = sum.into_inner().unwrap_or_else(PoisonError::into_inner);
    sum.failures.sort();
    let seconds = begun.elapsed().as_secs_f64();
    let out = if json {
        as_json(&sum, from, seconds)
    } else {
        format!("{sum}\n{} seeds passed, {} failed, in {seconds:.1} s", sum.seeds - sum.failures.len() as u64, sum.failures.len())
    };
    // Whoever reads may have gone: that is no failure of a seed.
    let _ = writeln!(std::io::stdout(), "{out}");
    for (seed, what) in &sum.failures {
        eprintln!("seed {seed}\n    {what}\n    replay: {}", replay(*seed));
    }
    if sum.failures.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// One seed, step by step.
#[must_use]
pub fn tell(seed: u64) -> ExitCode {
    let narrator: Narrator = Box::new(|line| drop(writeln!(std::io::stdout(), "{line}")));
    let outcome = run_seed(seed, Some(narrator));
    match outcome.violation {
        Some(what) => {
            println!("FAILED: {what}");
            ExitCode::FAILURE
        }
        None => {
            println!("passed: {} requests", outcome.requests);
            ExitCode::SUCCESS
        }
    }
}

fn replay(seed: u64) -> String {
    format!("cargo run --release -- sim --plain --seed {seed} --trace")
}

fn as_json(sum: &Summary, from: u64, seconds: f64) -> String {
    let t = &sum.total;
    serde_json::json!({
        "from": from,
        "seeds": sum.seeds,
        "seconds": seconds,
        "requests": t.requests,
        "power_cuts": t.power_cuts,
        "daemon_deaths": t.deaths,
        "modes_switched": t.switches,
        "sectors_compared": t.compared,
        "failures": sum.failures.iter().map(|(seed, what)| serde_json::json!({
            "seed": seed,
            "what": what,
            "replay": replay(*seed),
        })).collect::<Vec<_>>(),
    })
    .to_string()
}
