//! Regions that are brought whole: mistakes in what is brought, and when.

use super::Told;
use crate::mistakes::{Edit, Mistake};

/// The scenes of `crates/sim/tests/named/region.rs`.
pub const TOLD: &[Told] = &[
    ("region::where_places_are_missed_here_and_there_all_around_them_is_brought", "regions that are forgotten at once"),
    ("region::where_reads_are_scattered_next_to_no_region_is_brought", "regions brought whether or not that pays"),
    ("region::what_is_written_while_its_region_is_brought_stays_written", "a preload that writes do not spoil"),
];

/// Mistakes that only they need.
pub const MISTAKES: &[Mistake] = &[
    Mistake {
        name: "regions that are forgotten at once",
        story: "That another place near it was missed before is never known, and a tree of small files is read one by one.",
        edits: &[Edit { file: "policy/region.rs", old: "            self.missed[slot] = tag;\n", new: "" }],
    },
    Mistake {
        name: "regions brought whether or not that pays",
        story: "Reads that are scattered over a large disk have a MiB read for each of them.",
        edits: &[Edit {
            file: "policy/region.rs",
            old: "        if self.watched.len() + self.coming >= *may_watch {",
            new: "        if self.coming >= *may_watch {",
        }],
    },
];
