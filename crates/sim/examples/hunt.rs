//! Runs seeds until one fails: `hunt FROM COUNT SECONDS THREADS`.
//!
//! For whoever plants mistakes (`cargo xtask planted`) and wants to know whether the simulator sees them: what was done
//! is printed as lines of a word and its values.

use headpond_sim::Swarm;
use std::process::ExitCode;
use std::time::Duration;

fn main() -> ExitCode {
    let numbers: Option<Vec<u64>> = std::env::args().skip(1).map(|a| a.parse().ok()).collect();
    let Some([from, count, seconds, threads]) = numbers.as_deref() else {
        eprintln!("hunt FROM COUNT SECONDS THREADS");
        return ExitCode::from(2);
    };
    let swarm = Swarm {
        from: *from,
        count: *count,
        threads: *threads as usize,
        twice: false,
        stop_at_failure: true,
        limit: Some(Duration::from_secs(*seconds)),
    };
    let sum = swarm.run(|_| ());
    println!("seeds {}", sum.seeds);
    for (seed, what) in &sum.failures {
        println!("failed {seed} {}", what.chars().take(300).collect::<String>());
    }
    ExitCode::from(u8::from(!sum.failures.is_empty()))
}
