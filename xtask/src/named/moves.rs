//! Dirty data is moved.

use super::Told;
use crate::mistakes::{Edit, Mistake};

/// The scenes of `crates/sim/tests/named/moves.rs`.
pub const TOLD: &[Told] = &[
    ("moves::a_read_follows_what_was_moved", "a read that does not follow what was moved"),
    ("moves::what_is_replaced_while_it_is_moved_does_not_come_back_after_a_checkpoint", "a move placed behind what replaces it"),
    ("moves::what_waits_for_a_silent_disk_leaves_others_their_second_copy", "a write that replaces until its disk has answered"),
];

/// Mistakes that only they need.
pub const MISTAKES: &[Mistake] = &[
    Mistake {
        name: "a move placed behind what replaces it",
        story: "A checkpoint begins between a write and a move of what it replaces: after a crash the older data is there alone, and counts as clean.",
        edits: &[
            Edit { file: "log.rs", old: "!volume.is_being_replaced(*block) && still_there", new: "still_there" },
            Edit {
                file: "space.rs",
                old: "if volume.is_being_replaced(*b) {",
                new: "if volume.is_being_replaced(*b) && false {",
            },
        ],
    },
    Mistake {
        name: "a write that replaces until its disk has answered",
        story: "What it overlaps cannot be moved meanwhile, and nothing of any volume gets its second copy back behind that.",
        edits: &[Edit { file: "write.rs", old: "        drop(replacing);\n", new: "        core::mem::forget(replacing);\n" }],
    },
];
