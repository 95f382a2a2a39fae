//! When sweeps begin and end: a mistake that only a scene tells.

use super::Told;
use crate::mistakes::{Edit, Mistake};

/// The scenes of `crates/sim/tests/named/sweeps.rs`.
pub const TOLD: &[Told] =
    &[("sweeps::a_sweep_does_not_follow_a_log_record_by_record", "a sweep that follows whoever writes on before it")];

/// Mistakes that only they need.
pub const MISTAKES: &[Mistake] = &[Mistake {
    name: "a sweep that follows whoever writes on before it",
    story: "It is never round while a log grows, and each record has a flush of the disk and of each cache device of its own.",
    edits: &[Edit {
        file: "destage.rs",
        old: "        if is_rest && due > core.now() {",
        new: "        if false && is_rest && due > core.now() {",
    }],
}];
