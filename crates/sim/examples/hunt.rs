//! Runs seeds until one fails, or all of them: `hunt FROM COUNT SECONDS THREADS [small] [all] [FEATURE..]`.
//!
//! For whoever plants mistakes (`cargo xtask planted`) and wants to know whether the simulator sees them: what was done
//! is printed as lines of a word and its values.

use headpond_sim::Swarm;
use std::process::ExitCode;
use std::time::Duration;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let numbers: Option<Vec<u64>> = args.iter().take(4).map(|a| a.parse().ok()).collect();
    let Some([from, count, seconds, threads]) = numbers.as_deref() else {
        eprintln!("hunt FROM COUNT SECONDS THREADS [small] [all] [FEATURE..]");
        return ExitCode::from(2);
    };
    let swarm = Swarm {
        from: *from,
        count: *count,
        small: args[4..].iter().any(|a| a == "small"),
        with: args[4..].iter().filter(|a| *a != "small" && *a != "all").cloned().collect(),
        threads: *threads as usize,
        twice: false,
        stop_at_failure: !args[4..].iter().any(|a| a == "all"),
        limit: Some(Duration::from_secs(*seconds)),
    };
    let sum = swarm.run(|_| ());
    println!("seeds {}", sum.seeds);
    println!("crashes {}", sum.totals.crashes());
    for (seed, what) in &sum.failures {
        println!("failed {seed} {}", what.chars().take(300).collect::<String>());
    }
    ExitCode::from(u8::from(!sum.failures.is_empty()))
}
