//! Who waits for an end of what others do all the time.

use super::Told;
use crate::mistakes::{Edit, Mistake};

/// The scenes of `crates/sim/tests/named/passing.rs`.
pub const TOLD: &[Told] = &[
    (
        "passing::a_trim_has_its_turn_beside_those_who_write_there_all_the_time",
        "who writes all the time goes first, all the time",
    ),
    ("passing::a_trim_of_a_volume_without_a_disk_has_its_turn_as_well", "who writes all the time goes first, all the time"),
];

/// Mistakes that only they need.
pub const MISTAKES: &[Mistake] = &[Mistake {
    name: "who writes all the time goes first, all the time",
    story: "A write past the cache waits until nothing is on its way into the log for its blocks, and more sets out meanwhile.",
    edits: &[Edit {
        file: "core.rs",
        old: "while self.is_awaited(blocks, ticket) {",
        new: "while false && self.is_awaited(blocks, ticket) {",
    }],
}];
