//! `headpond sim`: the engine in the simulated world, seed by seed, through power cuts and daemon deaths.

use super::{exhaustive, plain, shrink};
use headpond_sim::swarm::{Swarm, catch_panics};
use headpond_sim::torture::tell_plan;
use headpond_sim::{Plan, Summary};
use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::io::{IsTerminal, Write};
use std::process::ExitCode;
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// What to run.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// How many seeds to run
    #[arg(long, default_value_t = 100, value_name = "N")]
    seeds: u64,
    /// Run this seed alone
    #[arg(long, value_name = "N", conflicts_with_all = ["seeds", "from"])]
    seed: Option<u64>,
    /// Tell all that happens in the seed, step by step
    #[arg(long, requires = "seed")]
    trace: bool,
    /// Make the failing seed short, and tell what is left of it as a story
    #[arg(long, requires = "seed")]
    shrink: bool,
    /// Compare with a plain array, by real bytes: a second oracle, which knows nothing of the engine
    #[arg(long, conflicts_with_all = ["shrink", "twice", "exhaustive"])]
    plain: bool,
    /// The first seed; a fresh one is drawn otherwise. With --exhaustive the first sequence
    #[arg(long, visible_alias = "seed-base", value_name = "N|SEQUENCE")]
    from: Option<String>,
    /// In the small geometry: few segments, few hot sectors, many crashes with little between them
    #[arg(long, conflicts_with_all = ["shrink", "plain", "exhaustive"])]
    small: bool,
    /// Run only seeds that have drawn this, one-member, loss, second-loss, hang, two-volumes and others; may be given again
    #[arg(long, value_name = "FEATURE", conflicts_with_all = ["seed", "plain", "exhaustive"])]
    with: Vec<String>,
    /// Threads [default: one for each core]
    #[arg(long, value_name = "N")]
    threads: Option<usize>,
    /// Run each seed twice and compare all that happened
    #[arg(long)]
    twice: bool,
    /// List the marks, rare and important places of the engine, each with how many seeds reached it
    #[arg(long, conflicts_with_all = ["plain", "exhaustive", "trace", "shrink"])]
    marks: bool,
    /// Print the summary as JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    exhaustive: exhaustive::Args,
}

/// How often progress is shown.
const EVERY: Duration = Duration::from_secs(5);

/// Runs the seeds; fails if any of them does.
#[must_use]
pub fn run(args: &Args) -> ExitCode {
    if let (Some(seed), true, true) = (args.seed, args.plain, args.trace) {
        return plain::tell(seed);
    }
    if let (Some(seed), true) = (args.seed, args.shrink) {
        return shrink::run(seed, args.trace);
    }
    if let (Some(seed), true) = (args.seed, args.trace) {
        return tell(&plan_of(seed, args.small));
    }
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let threads = args.threads.unwrap_or(cores).clamp(1, 1024);
    if args.exhaustive.wanted() {
        return args.exhaustive.run(args.from.as_deref(), threads, EVERY, args.json);
    }
    let Ok(first) = args.from.as_deref().map(str::parse).transpose() else {
        eprintln!("--from wants the number of a seed");
        return ExitCode::from(2);
    };
    let from = args.seed.or(first).unwrap_or_else(fresh);
    let count = if args.seed.is_some() { 1 } else { args.seeds };
    if args.plain {
        return plain::run(from, count, threads, args.json);
    }
    let with: Vec<&str> = args.with.iter().map(String::as_str).collect();
    if let Err(unknown) = Plan::of(from).has(&with) {
        eprintln!("--with: {unknown}");
        return ExitCode::from(2);
    }
    match with.as_slice() {
        [] => eprintln!("seeds {from} to {}, on {threads} threads", from.saturating_add(count.saturating_sub(1))),
        with => eprintln!("{count} seeds from {from} on that have drawn {}, on {threads} threads", with.join(" and ")),
    }
    let begun = Instant::now();
    let swarm = Swarm {
        from,
        count,
        small: args.small,
        with: args.with.clone(),
        threads,
        twice: args.twice,
        stop_at_failure: false,
        limit: None,
    };
    let shown = Mutex::new(begun);
    let sum = swarm.run(|sum| {
        let Ok(mut shown) = shown.lock() else { return };
        if shown.elapsed() >= EVERY {
            *shown = Instant::now();
            show_progress(sum, count);
        }
    });
    let took = begun.elapsed();
    let out = if args.json { as_json(&sum, from, args.small, took) } else { in_words(&sum, took) };
    // Whoever reads may have gone: that is no failure of a seed.
    let _ = writeln!(std::io::stdout(), "{out}");
    if args.marks && !args.json {
        let _ = std::io::stdout().write_all(marks_of(&sum).as_bytes());
    }
    for (seed, what) in &sum.failures {
        eprintln!("{}\n    {what}\n    replay: {}", plan_of(*seed, args.small), replay(*seed, args.small));
    }
    if sum.failures.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// One seed, step by step.
fn tell(plan: &Plan) -> ExitCode {
    println!("{plan}");
    // Whoever reads may stop early.
    let narrator = |line: String| drop(writeln!(std::io::stdout(), "{line}"));
    let outcome = catch_panics(|| tell_plan(plan, Some(Box::new(narrator))));
    match outcome.violation {
        Some(what) => {
            println!("FAILED: {what}");
            ExitCode::FAILURE
        }
        None => {
            println!("passed: {} requests, {} device operations", outcome.totals.requests, outcome.totals.operations);
            ExitCode::SUCCESS
        }
    }
}

/// The command that runs one seed again and tells its story.
fn replay(seed: u64, small: bool) -> String {
    format!("cargo run --release -- sim --seed {seed}{} --trace", if small { " --small" } else { "" })
}

fn plan_of(seed: u64, small: bool) -> Plan {
    let plan = Plan::of(seed);
    if small { plan.small() } else { plan }
}

/// A first seed that no run had before, short enough to be said aloud.
fn fresh() -> u64 {
    // The standard library seeds its hashers from the operating system's random numbers.
    RandomState::new().build_hasher().finish() % 1_000_000_000_000
}

fn show_progress(sum: &Summary, count: u64) {
    let line = format!("{} of {count} seeds, {} crashes, {} failures", sum.seeds, sum.totals.crashes(), sum.failures.len());
    if std::io::stderr().is_terminal() {
        eprint!("\r\x1b[K{line}\r");
    } else {
        eprintln!("{line}");
    }
}

fn in_words(sum: &Summary, took: Duration) -> String {
    format!(
        "{sum}\n{} seeds passed, {} failed, in {:.1} s: {} crashes and starts a minute",
        sum.seeds - sum.failures.len() as u64,
        sum.failures.len(),
        took.as_secs_f64(),
        per_minute(sum, took)
    )
}

fn per_minute(sum: &Summary, took: Duration) -> u64 {
    (sum.totals.crashes() as f64 * 60.0 / took.as_secs_f64()) as u64
}

/// A line for each mark, the rarest first.
fn marks_of(sum: &Summary) -> String {
    let mut all: Vec<_> = sum.reached().collect();
    all.sort_by_key(|(_, seeds)| *seeds);
    all.iter().map(|(m, seeds)| format!("{seeds:>8}  {:26}{}\n", m.name(), m.story())).collect()
}

fn as_json(sum: &Summary, from: u64, small: bool, took: Duration) -> String {
    let t = &sum.totals;
    let c = &t.counts;
    serde_json::json!({
        "from": from,
        "seeds": sum.seeds,
        "seconds": took.as_secs_f64(),
        "crashes_per_minute": per_minute(sum, took),
        "requests": t.requests,
        "device_operations": t.operations,
        "power_cuts": t.power_cuts,
        "daemon_deaths": t.deaths,
        "in_recovery": t.in_recovery,
        "members_lost": t.members_lost,
        "absorbed": c.absorbed,
        "bypassed": c.bypassed,
        "ordered_overwrites": c.ordered,
        "read_hits": c.hits,
        "read_ahead_hits": c.hits_ahead,
        "read_beside_hits": c.hits_beside,
        "fills_spoiled": c.spoiled,
        "blocks_destaged": c.destaged,
        "checkpoints": c.checkpoints,
        "segments_relocated": c.relocated,
        "segments_evicted": c.evicted,
        "records_completed_at_starts": c.completed,
        "pieces_repaired": c.repaired,
        "marks": sum.reached().map(|(m, seeds)| (m.name().into(), seeds.into())).collect::<serde_json::Map<_, _>>(),
        "failures": sum.failures.iter().map(|(seed, what)| serde_json::json!({
            "seed": seed,
            "what": what,
            "replay": replay(*seed, small),
        })).collect::<Vec<_>>(),
    })
    .to_string()
}
