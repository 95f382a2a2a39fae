//! `headpond sim --seed N --shrink`: a failing seed made short, and told as a story.

use headpond_sim::Plan;
use headpond_sim::shrink::{shrink, story, try_plan};
use headpond_sim::swarm::catch_panics;
use headpond_sim::torture::tell_plan;
use std::io::{IsTerminal, Write};
use std::process::ExitCode;

/// Shrinks a seed; with `trace` all that happens in the short run is told, step by step.
#[must_use]
pub fn run(seed: u64, trace: bool) -> ExitCode {
    let plan = Plan::of(seed);
    println!("{plan}");
    let terminal = std::io::stderr().is_terminal();
    let mut progress = |p: &Plan| {
        let requests = p.kept.requests.as_ref().map_or(0, std::collections::BTreeSet::len);
        if terminal {
            eprint!("\r\x1b[K{requests} requests, {} clients\r", p.clients);
        }
    };
    let Some(short) = shrink(&plan, &mut try_plan, &mut progress) else {
        println!("passed: there is nothing to shrink");
        return ExitCode::SUCCESS;
    };
    println!(
        "after {} runs: {} requests and {} crashes, of {} and {}\n{}\n",
        short.runs, short.after.0, short.after.1, short.before.0, short.before.1, short.plan
    );
    if trace {
        // Whoever reads may stop early.
        let narrator = |line: String| drop(writeln!(std::io::stdout(), "{line}"));
        drop(catch_panics(|| tell_plan(&short.plan, Some(Box::new(narrator)))));
        println!();
    }
    println!("{}", story(&short.plan));
    ExitCode::FAILURE
}
