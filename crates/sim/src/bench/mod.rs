//! Loads on a modelled rotating disk, bare and behind the engine, in virtual time: what `headpond bench` runs.
//!
//! [`catalogue`] lists the loads, [`run`] runs one on both sides with the same seed, [`drive`] lets its clients work,
//! [`measure`] says what they reached; [`mod@hour`] watches a full cache for an hour. The same seed gives the same figures, to the digit.

pub mod catalogue;
pub mod clients;
pub mod drive;
pub mod hour;
pub mod load;
pub mod measure;
pub mod run;

pub use catalogue::{catalogue, hours};
pub use hour::{Hour, hour};
pub use load::Load;
pub use run::{Options, Row, run};

use crate::parallel;
use crate::world::Violation;

/// Runs loads over several threads; each is a world of its own, so their number changes nothing. `progress` is called
/// after each load with what came of it. The results are in the order of the loads.
pub fn run_all(
    loads: &[Load],
    options: Options,
    threads: usize,
    progress: impl Fn(&Load, &Result<Vec<Row>, Violation>) + Sync,
) -> Vec<Result<Vec<Row>, Violation>> {
    parallel::each(loads, threads, |load| {
        let result = run(load, options);
        progress(load, &result);
        result
    })
}

/// Runs [`hours`] over several threads, as [`run_all`]. `progress` is called as a load goes on, with the stage it has reached.
pub fn run_hours(
    loads: &[Load],
    seed: u64,
    threads: usize,
    progress: impl Fn(&Load, hour::Stage) + Sync,
) -> Vec<Result<Hour, Violation>> {
    parallel::each(loads, threads, |load| hour(load, seed, |stage| progress(load, stage)))
}
