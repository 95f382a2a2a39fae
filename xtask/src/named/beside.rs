//! Reads beside the engine.

use super::Told;
use crate::mistakes::{Edit, Mistake};

/// The scenes of `crates/sim/tests/named/beside.rs`.
pub const TOLD: &[Told] = &[
    ("beside::what_was_read_is_found_until_it_is_written", "what others may find of a block left there when it changes"),
    ("beside::a_place_that_became_anothers_is_not_taken_for_the_block", "what is read beside the engine not proved"),
    (
        "beside::nobody_waits_long_for_a_device_that_is_read_beside_the_engine",
        "the engine asked no sooner than the device answers",
    ),
    ("beside::a_device_that_left_is_not_read_beside_the_engine", "others not told that a cache device has left"),
];

/// Mistakes that only they need.
pub const MISTAKES: &[Mistake] = &[
    Mistake {
        name: "what others may find of a block left there when it changes",
        story: "A write is acknowledged, and who reads beside the engine gets what was there before.",
        edits: &[Edit { file: "map.rs", old: "            table.forget(block);\n", new: "" }],
    },
    Mistake {
        name: "what is read beside the engine not proved",
        story: "Between the look and the read the place became another block's.",
        edits: &[Edit {
            file: "lookaside.rs",
            old: "data.len() as u64 == BLOCK && data.checksum(self.seed) == self.sum",
            new: "data.len() as u64 == BLOCK",
        }],
    },
    Mistake {
        name: "the engine asked no sooner than the device answers",
        story: "A cache device hangs, and a client waits for it though the other one has the block.",
        edits: &[Edit { file: "lookaside.rs", old: "PATIENCE_NS: u64 = 250_000_000", new: "PATIENCE_NS: u64 = 600_000_000_000" }],
    },
    Mistake {
        name: "others not told that a cache device has left",
        story: "Reads go to the dead device first, for as long as the block is hot.",
        edits: &[Edit {
            file: "core.rs",
            old: "                table.set_members(members);\n                if one_has_left {\n                    table.clear();\n                }\n",
            new: "                let _ = (table, members, one_has_left);\n",
        }],
    },
];
