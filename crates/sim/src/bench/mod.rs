//! Loads on a modelled rotating disk, bare and behind the engine, in virtual time: what `headpond bench` runs.
//!
//! [`catalogue`] lists the loads, [`run`] runs one on both sides with the same seed, [`drive`] lets its clients work,
//! [`measure`] says what they reached. The same seed gives the same figures, to the digit.

pub mod catalogue;
pub mod clients;
pub mod drive;
pub mod load;
pub mod measure;
pub mod run;

pub use catalogue::catalogue;
pub use load::Load;
pub use run::{Options, Row, run};

use crate::world::Violation;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Runs loads over several threads; each is a world of its own, so their number changes nothing. `progress` is called
/// after each load with what came of it. The results are in the order of the loads.
pub fn run_all(
    loads: &[Load],
    options: Options,
    threads: usize,
    progress: impl Fn(&Load, &Result<Vec<Row>, Violation>) + Sync,
) -> Vec<Result<Vec<Row>, Violation>> {
    let next = AtomicUsize::new(0);
    let results = Mutex::new(vec![None; loads.len()]);
    std::thread::scope(|scope| {
        for _ in 0..threads.clamp(1, loads.len().max(1)) {
            scope.spawn(|| {
                loop {
                    let n = next.fetch_add(1, Ordering::Relaxed);
                    let Some(load) = loads.get(n) else { return };
                    let result = run(load, options);
                    progress(load, &result);
                    results.lock().unwrap_or_else(std::sync::PoisonError::into_inner)[n] = Some(result);
                }
            });
        }
    });
    let results = results.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
    results.into_iter().map(|r| r.unwrap_or_else(|| Err(Violation("the load was not run".into())))).collect()
}
