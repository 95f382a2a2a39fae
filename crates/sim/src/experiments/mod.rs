//! The field's published experiments, in virtual time: models of the original hardware, and the engine, unmodified and with its default
//! settings, before them. What `headpond experiments` runs.
//!
//! [`catalogue`] is the table; each experiment builds its stages ([`rig`]) from the parameters in [`hardware`], lets processes ([`script`])
//! work on them ([`drive`]) through links and a server ([`front`]), and returns an [`outcome`]. The same seed gives the same figures, to the digit.

pub mod a_metadata;
pub mod a_random;
pub mod a_streams;
pub mod array;
pub mod b;
pub mod c_apps;
pub mod c_small;
pub mod c_streams;
pub mod catalogue;
pub mod drive;
pub mod front;
pub mod hardware;
pub mod outcome;
pub mod pair;
pub mod parameters;
pub mod point;
pub mod rig;
pub mod script;
#[cfg(test)]
mod tests;
pub mod theirs;

pub use catalogue::{ALL, Experiment};
pub use outcome::Report;
pub use point::Options;

use crate::parallel;

/// Runs experiments over several threads; each builds worlds of its own, so their number changes nothing. `progress` is called when one
/// begins, and with its report when it has ended. The reports are in the order of the experiments.
pub fn run_all(
    experiments: &[Experiment],
    options: Options,
    threads: usize,
    progress: impl Fn(&Experiment, Option<&Report>) + Sync,
) -> Vec<Report> {
    parallel::each(experiments, threads, |experiment| {
        progress(experiment, None);
        let report = experiment.report(options);
        progress(experiment, Some(&report));
        report
    })
}
