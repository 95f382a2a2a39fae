//! Devices that answer nothing, and an engine that does not listen: mistakes that only a scene tells.

use super::Told;
use crate::mistakes::{Edit, Mistake};

/// The scenes of `crates/sim/tests/named/silence.rs`.
pub const TOLD: &[Told] = &[
    (
        "silence::an_engine_that_stood_still_takes_no_cache_device_for_silent",
        "time in which nobody listened taken for a device's silence",
    ),
    (
        "silence::a_discard_over_much_that_is_dirty_has_few_operations_under_way_at_once",
        "a discard with an operation under way for each gap",
    ),
    ("silence::a_disk_that_answers_nothing_holds_up_no_checkpoint", "a checkpoint that waits for a disk that answers nothing"),
    ("silence::a_start_ends_though_a_cache_device_falls_silent_in_it", "a start that asks a silent device again and again"),
    ("silence::a_start_waits_for_no_disk_that_answers_nothing", "a start that waits for each disk, however long"),
];

/// Mistakes that only they need.
pub const MISTAKES: &[Mistake] = &[
    Mistake {
        name: "time in which nobody listened taken for a device's silence",
        story: "The engine's thread was stopped for a while: what it submitted then looks as old as that, and both cache devices leave.",
        edits: &[Edit { file: "exec.rs", old: ".min(self.longest_turn.get())", new: "" }],
    },
    Mistake {
        name: "a discard with an operation under way for each gap",
        story: "Much is dirty under a large discard: the pieces between are more than there are numbers for.",
        edits: &[Edit { file: "write.rs", old: "parts.chunks(PARTS_AT_ONCE)", new: "parts.chunks(PARTS_AT_ONCE << 20)" }],
    },
    Mistake {
        name: "a checkpoint that waits for a disk that answers nothing",
        story: "One volume's disk hangs, and no space is won in the whole pool any more.",
        edits: &[Edit {
            file: "checkpoint.rs",
            old: "Some(flush) => flush.get_until(until).await,",
            new: "Some(flush) => flush.get_until(until << 10).await,",
        }],
    },
    Mistake {
        name: "a start that asks a silent device again and again",
        story: "Each of thousands of reads waits for ten seconds.",
        edits: &[Edit { file: "engine.rs", old: "    core.exec.asks_no_silent_ones(true);\n", new: "" }],
    },
    Mistake {
        name: "a start that waits for each disk, however long",
        story: "One disk does not answer, and no volume is served.",
        edits: &[Edit { file: "engine.rs", old: "is_open.get_until(until).await", new: "is_open.get_until(until << 10).await" }],
    },
];
