//! Writes past the cache over what is dirty here and there.

use super::Told;
use crate::mistakes::{Edit, Mistake};

/// The scenes of `crates/sim/tests/named/holes.rs`.
pub const TOLD: &[Told] = &[
    (
        "holes::the_disk_has_a_stream_without_holes_where_something_is_dirty",
        "a stream written with holes where something is dirty",
    ),
    ("holes::the_disk_has_a_stream_without_holes_where_something_is_dirty", "a disk flushed for what the log has"),
    ("holes::the_disk_has_a_stream_without_holes_where_something_is_dirty", "a hole where all of a stream's request is dirty"),
    ("holes::a_disk_that_fails_under_dirty_data_is_asked_for_the_rest_alone", "a write that fails for what is dirty on its way"),
    (
        "holes::what_a_failed_write_leaves_under_dirty_data_is_not_called_clean",
        "a sweep that calls clean what a write has passed over",
    ),
    (
        "holes::what_a_failed_write_leaves_under_dirty_data_is_not_called_clean",
        "clean data kept beside what a write has passed over",
    ),
];

/// Mistakes that only they need.
pub const MISTAKES: &[Mistake] = &[
    Mistake {
        name: "a disk flushed for what the log has",
        story: "A stream comes by what is dirty, and the disk gets it by the way. A client's flush waits for the disk, and is told if that fails.",
        edits: &[Edit { file: "write.rs", old: "Ok(_) if alone => volume", new: "Ok(_) if alone || true => volume" }],
    },
    Mistake {
        name: "a stream written with holes where something is dirty",
        story: "The disk misses what comes behind each hole, and needs a revolution for it.",
        edits: &[Edit {
            file: "policy/through.rs",
            old: "    disk_reads(range, parts, Joins::Stream { before: 0, behind: 0 })",
            new: "    let _ = range;\n    parts.to_vec()",
        }],
    },
    Mistake {
        name: "a hole where all of a stream's request is dirty",
        story: "The requests are small, and each is one of the pieces that are absorbed or not.",
        edits: &[Edit {
            file: "write.rs",
            old: "rest.is_empty() && is_stream && ",
            new: "rest.is_empty() && is_stream && false && ",
        }],
    },
    Mistake {
        name: "a write that fails for what is dirty on its way",
        story: "The disk does not take a sector under dirty data, which the log has: the client hears of an error.",
        edits: &[Edit {
            file: "write.rs",
            old: "    if written.is_err() && on_disk != rest {",
            new: "    if written.is_err() && on_disk.is_empty() {",
        }],
    },
    Mistake {
        name: "a sweep that calls clean what a write has passed over",
        story: "A sweep had written the block, a newer write failed there half way through, and found no room in the log: the cache has one thing, and the disk another.",
        edits: &[Edit { file: "write.rs", old: "        withdraw(core, volume, &blocks).await;\n", new: "" }],
    },
    Mistake {
        name: "clean data kept beside what a write has passed over",
        story: "The same of a block of which some sectors are dirty, and the rest clean.",
        edits: &[Edit {
            file: "write.rs",
            old: "        let_go_of_clean(core, volume, range);\n    }\n    // Only",
            new: "    }\n    // Only",
        }],
    },
];
