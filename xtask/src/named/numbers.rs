//! Numbers that no other life of a pool has had.

use super::Told;
use crate::mistakes::{Edit, Mistake};

/// The scenes of `crates/sim/tests/named/numbers.rs`.
pub const TOLD: &[Told] = &[(
    "numbers::no_checkpoint_has_the_number_of_one_that_came_to_nothing",
    "a checkpoint numbered after the newest that is named",
)];

/// Mistakes that only they need.
pub const MISTAKES: &[Mistake] = &[Mistake {
    name: "a checkpoint numbered after the newest that is named",
    story: "The power goes under one that nothing names yet, and the next life gives its number again: a page of the older try is taken for one that a cache device lost.",
    edits: &[Edit {
        file: "checkpoint.rs",
        old: "(core.checkpoint_tried.get() + 1).max(core.life * TRIES)",
        new: "(core.checkpoint_tried.get() + 1).max(pool.checkpoint.sequence + 1)",
    }],
}];
