//! Volumes without a backing device: what they hold is in the log alone.

use super::Told;
use crate::mistakes::{Edit, Mistake};

/// The scenes of `crates/sim/tests/named/diskless.rs`.
pub const TOLD: &[Told] = &[
    ("diskless::it_is_served_after_a_start", "a volume without a disk that waits for one"),
    ("diskless::a_discard_is_in_the_log", "a discard without a disk that the log does not hear of"),
    ("diskless::a_discard_waits_for_what_is_being_appended", "a discard without a disk that does not wait for appends"),
    ("diskless::others_leave_the_room_that_is_set_aside", "no room set aside for what has no disk"),
    ("diskless::what_is_out_of_date_makes_room", "out of date for good, and never won back"),
    ("diskless::a_stop_waits_for_the_room_that_a_write_waits_for", "a stop that lets nobody win room"),
    (
        "diskless::a_block_that_cannot_be_read_does_not_keep_the_others_from_their_copies",
        "what cannot be read moved first, again and again",
    ),
    (
        "diskless::blocks_that_take_long_to_turn_out_unreadable_do_not_keep_the_others_from_their_copies",
        "segments that cannot be read taking turns",
    ),
    (
        "diskless::images_for_a_journal_take_little_of_what_cache_devices_are_written",
        "an image for each eighth of what is set aside for a journal",
    ),
];

/// Scenes of it that no mistake has, with the reason.
#[cfg(test)]
pub const UNTOLD: &[Told] = &[(
    "diskless::a_block_that_cannot_be_read_does_not_keep_the_others_from_room",
    "what is set aside by now is enough without the segment of that block; that it is not moved first, again and again, is told by the scene of the copies",
)];

/// Mistakes that no other list has.
pub const MISTAKES: &[Mistake] = &[
    Mistake {
        name: "a volume without a disk that waits for one",
        story: "At a start its disk is not among those that are there. It is not served before it comes, which is never.",
        edits: &[Edit { file: "start.rs", old: "v.there.set(!v.has_disk() || backings", new: "v.there.set(backings" }],
    },
    Mistake {
        name: "a discard without a disk that the log does not hear of",
        story: "What was discarded is gone from memory, and comes back out of the log at the next start.",
        edits: &[Edit {
            file: "diskless.rs",
            old: "    if items.is_empty() {\n        return Ok(());\n    }",
            new: "    if items.len() < usize::MAX {\n        forget(core, volume, range, version);\n        return Ok(());\n    }",
        }],
    },
    Mistake {
        name: "a discard without a disk that does not wait for appends",
        story: "A write is named after the discard, with an older version: it is read, until the next start takes it back.",
        edits: &[Edit {
            file: "diskless.rs",
            old: "    wait_for_appends(core, volume, &Volume::<B>::blocks(range)).await;\n",
            new: "    let _ = wait_for_appends::<B>;\n",
        }],
    },
    Mistake {
        name: "no room set aside for what has no disk",
        story: "What waits for its disk takes all the room there is, and a journal finds none: its writes fail.",
        edits: &[Edit {
            file: "core.rs",
            old: "let taken = pinned.div_ceil(copies.max(1) as u64) + set_aside;",
            new: "let taken = pinned.div_ceil(copies.max(1) as u64);",
        }],
    },
    Mistake {
        name: "out of date for good, and never won back",
        story: "In each segment of a journal something stays, so none is ever free: its writes fail, though most of its room is garbage.",
        edits: &[Edit { file: "diskless.rs", old: "if !crowd.is_dense() || core", new: "if crowd.set_aside > 0 || core" }],
    },
    Mistake {
        name: "a stop that lets nobody win room",
        story: "Housekeeping rests as soon as the daemon is told to end, and a write that waits for room fails after half a minute.",
        edits: &[Edit {
            file: "core.rs",
            old: "self.stopping.get() && self.awaiting_room.get() == 0",
            new: "self.stopping.get()",
        }],
    },
    Mistake {
        name: "what cannot be read moved first, again and again",
        story: "Nothing else is moved: room runs out, and what is on one copy stays so.",
        edits: &[Edit {
            file: "space.rs",
            old: "    if !moved && (!is_readable || is_replaced) {",
            new: "    if !moved && is_replaced {",
        }],
    },
    Mistake {
        name: "segments that cannot be read taking turns",
        story: "Each takes seconds to turn out unreadable. When one has, the other's rest is over, and those behind them are never copied.",
        edits: &[Edit { file: "space.rs", old: "is_movable(s, now) && have > 0", new: "is_movable(s, core.now()) && have > 0" }],
    },
    Mistake {
        name: "an image for each eighth of what is set aside for a journal",
        story: "A journal of some MiB is written over all the time, and for each of them the map of all that is cached is written.",
        edits: &[Edit {
            file: "diskless.rs",
            old: "(short || image_pays(waiting * segment_bytes, pieces))",
            new: "(short || image_pays(waiting * segment_bytes, pieces.min(0)))",
        }],
    },
];
