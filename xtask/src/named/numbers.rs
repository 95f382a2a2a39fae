//! Numbers that no other life of a pool has had.

use super::Told;
use crate::mistakes::{Edit, Mistake};

/// The scenes of `crates/sim/tests/named/numbers.rs`.
pub const TOLD: &[Told] = &[(
    "numbers::no_checkpoint_has_the_number_of_one_that_came_to_nothing",
    "a checkpoint numbered after a superblock on its way",
)];

/// Mistakes that only they need.
pub const MISTAKES: &[Mistake] = &[Mistake {
    name: "a checkpoint numbered after a superblock on its way",
    story: "The power goes, and the next life gives the number again: a page of the older try is taken for one that a cache device lost.",
    edits: &[Edit {
        file: "checkpoint.rs",
        old: "(core.checkpoint_tried.get() + 1).max(core.life * TRIES)",
        new: "(core.checkpoint_tried.get() + 1).max(pool.sequence * TRIES)",
    }],
}];
