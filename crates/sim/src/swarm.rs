//! Many seeds over several threads: each seed is a world of its own, so threads share nothing but the next number.

use crate::torture::{Outcome, Plan, Summary, run_plan};
use std::any::Any;
use std::cell::RefCell;
use std::panic::{self, AssertUnwindSafe};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, Once};
use std::time::{Duration, Instant};

/// How often it is looked whether seeds end.
const LOOK: Duration = Duration::from_millis(50);
/// A seed takes a fraction of a second. One that is still there after so many looks, five minutes of them, does not end. While a machine stands still
/// nobody looks.
const ENDLESS: u64 = 6000;

/// Which seeds to run, and until when.
#[derive(Clone, Debug)]
pub struct Swarm {
    /// The first seed.
    pub from: u64,
    /// How many, of those that are run.
    pub count: u64,
    /// In the small geometry: [`Plan::small`].
    pub small: bool,
    /// Only seeds that have drawn all of these are run: names of [`crate::torture::FEATURES`].
    pub with: Vec<String>,
    /// Threads.
    pub threads: usize,
    /// Runs each seed twice, and calls it a failure if the two differ.
    pub twice: bool,
    /// Begins no further seed after one has failed.
    pub stop_at_failure: bool,
    /// Begins no further seed after this time.
    pub limit: Option<Duration>,
}

impl Swarm {
    /// Runs the seeds. `progress` is called after each one with all that was done so far. A seed that does not end, for
    /// an engine that runs in a circle, ends the process: nothing else can end it.
    pub fn run(&self, progress: impl Fn(&Summary) + Sync) -> Summary {
        let begun = Instant::now();
        let (next, taken, stop) = (AtomicU64::new(0), AtomicU64::new(0), AtomicBool::new(false));
        let with: Vec<&str> = self.with.iter().map(String::as_str).collect();
        let sum = Mutex::new(Summary::default());
        let threads = self.threads.max(1);
        let looks = AtomicU64::new(1);
        // For each thread at which look its seed began, and which it is; zero once the thread has ended.
        let running: Vec<_> = (0..threads).map(|_| (AtomicU64::new(1), AtomicU64::new(0))).collect();
        std::thread::scope(|scope| {
            for (since, current) in &running {
                scope.spawn(|| {
                    while !stop.load(Ordering::Relaxed) && self.limit.is_none_or(|l| begun.elapsed() < l) {
                        let seed = self.from.wrapping_add(next.fetch_add(1, Ordering::Relaxed));
                        if !with.is_empty() && Plan::of(seed).has(&with) == Ok(false) {
                            continue;
                        }
                        if taken.fetch_add(1, Ordering::Relaxed) >= self.count {
                            break;
                        }
                        current.store(seed, Ordering::Relaxed);
                        since.store(looks.load(Ordering::Relaxed), Ordering::Relaxed);
                        let outcome = if self.twice { self.run_twice(seed) } else { self.run_caught(seed) };
                        if outcome.violation.is_some() && self.stop_at_failure {
                            stop.store(true, Ordering::Relaxed);
                        }
                        let mut sum = sum.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
                        sum.add(seed, &outcome);
                        progress(&sum);
                    }
                    since.store(0, Ordering::Relaxed);
                });
            }
            scope.spawn(|| {
                while running.iter().any(|(since, _)| since.load(Ordering::Relaxed) > 0) {
                    std::thread::sleep(LOOK);
                    let now = 1 + looks.fetch_add(1, Ordering::Relaxed);
                    for (since, seed) in &running {
                        let began = since.load(Ordering::Relaxed);
                        if began > 0 && now.saturating_sub(began) > ENDLESS {
                            eprintln!("seed {} does not end", seed.load(Ordering::Relaxed));
                            std::process::exit(3);
                        }
                    }
                }
            });
        });
        let mut sum = sum.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
        sum.failures.sort();
        sum
    }

    /// Runs a seed; a panic of the engine is what went wrong.
    fn run_caught(&self, seed: u64) -> Outcome {
        let plan = Plan::of(seed);
        catch_panics(|| run_plan(&if self.small { plan.small() } else { plan }))
    }

    /// Runs a seed twice; that the two runs differ is a failure too.
    fn run_twice(&self, seed: u64) -> Outcome {
        let (mut a, b) = (self.run_caught(seed), self.run_caught(seed));
        let same = a.hash == b.hash && a.violation == b.violation;
        if a.violation.is_none() && !same {
            a.violation = Some(format!("two runs differ: {:016x} and {:016x}", a.hash, b.hash));
        }
        a
    }
}

/// Calls `f`, and turns a panic in it into a violation that says where it was.
pub fn catch_panics(f: impl FnOnce() -> Outcome) -> Outcome {
    remember_panics();
    match panic::catch_unwind(AssertUnwindSafe(f)) {
        Ok(outcome) => outcome,
        Err(cause) => Outcome { violation: Some(words_of(&*cause)), ..Outcome::default() },
    }
}

thread_local! {
    static PANIC: RefCell<Option<String>> = const { RefCell::new(None) };
    static QUIET: RefCell<bool> = const { RefCell::new(false) };
}

/// Has the panics of threads that run seeds kept rather than printed: they come with the seed's failure.
fn remember_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let before = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            if QUIET.with_borrow(|q| *q) {
                PANIC.set(Some(info.to_string().replace('\n', " ")));
            } else {
                before(info);
            }
        }));
    });
    QUIET.set(true);
}

fn words_of(cause: &(dyn Any + Send)) -> String {
    let known = PANIC.take();
    let text = cause.downcast_ref::<String>().map(String::as_str).or_else(|| cause.downcast_ref::<&str>().copied());
    known.or_else(|| text.map(Into::into)).unwrap_or_else(|| "a panic without words".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_run_twice_is_the_same_to_the_bit() {
        let swarm = Swarm {
            from: 1,
            count: 6,
            small: false,
            with: Vec::new(),
            threads: 2,
            twice: true,
            stop_at_failure: false,
            limit: None,
        };
        let differ: Vec<_> = swarm.run(|_| ()).failures.into_iter().filter(|(_, w)| w.starts_with("two runs differ")).collect();
        assert_eq!(differ, []);
    }

    #[test]
    fn a_panic_is_a_failure_that_says_where_it_was() {
        let outcome = catch_panics(|| panic!("a counter went below zero"));
        let words = outcome.violation.unwrap_or_default();
        assert!(words.contains("a counter went below zero") && words.contains("swarm.rs"), "{words}");
    }
}
