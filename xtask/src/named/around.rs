//! Neighbourhoods that are brought whole: mistakes in what is brought, and when.

use super::Told;
use crate::mistakes::{Edit, Mistake};

/// The scenes of `crates/sim/tests/named/around.rs`.
pub const TOLD: &[Told] = &[
    ("around::where_places_are_missed_here_and_there_all_around_them_is_brought", "neighbourhoods that are forgotten at once"),
    ("around::where_reads_are_scattered_next_to_no_neighbourhood_is_brought", "neighbourhoods brought whether or not that pays"),
    ("around::what_is_written_while_its_neighbourhood_is_brought_stays_written", "a preload that writes do not spoil"),
];

/// Mistakes that only they need.
pub const MISTAKES: &[Mistake] = &[
    Mistake {
        name: "neighbourhoods that are forgotten at once",
        story: "That another place near it was missed before is never known, and a tree of small files is read one by one.",
        edits: &[Edit { file: "policy/around.rs", old: "            self.missed[slot] = tag;\n", new: "" }],
    },
    Mistake {
        name: "neighbourhoods brought whether or not that pays",
        story: "Reads that are scattered over a large disk have a MiB read for each of them.",
        edits: &[Edit {
            file: "policy/around.rs",
            old: "        if self.watched.len() + self.coming >= *may_watch {",
            new: "        if self.coming >= *may_watch {",
        }],
    },
];
