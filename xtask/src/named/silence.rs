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
    (
        "silence::cache_devices_that_are_silent_together_are_waited_for_and_each_from_the_first_answer_on",
        "a silence of all held against those that answer later",
    ),
    (
        "silence::cache_devices_that_are_silent_together_are_waited_for_and_each_from_the_first_answer_on",
        "all that are silent together given up",
    ),
    (
        "silence::a_cache_device_that_alone_has_something_dirty_is_waited_for_beside_one_that_answers",
        "one that alone has dirty data given up beside an empty one",
    ),
    (
        "silence::a_cache_device_that_owes_nothing_is_asked_whether_it_answers_while_another_is_silent",
        "an idle cache device taken for a silent one",
    ),
    (
        "silence::a_disk_that_answers_nothing_keeps_no_other_volumes_pins_from_coming",
        "pins that are brought for one volume after the other",
    ),
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
        edits: &[Edit { file: "start.rs", old: "    core.exec.asks_no_silent_ones(true);\n", new: "" }],
    },
    Mistake {
        name: "a start that waits for each disk, however long",
        story: "One disk does not answer, and no volume is served.",
        edits: &[Edit { file: "start.rs", old: "is_open.get_until(until).await", new: "is_open.get_until(until << 10).await" }],
    },
    Mistake {
        name: "a silence of all held against those that answer later",
        story: "A bus is reset. The first cache device to answer has all others voted out at once, though they would have answered next.",
        edits: &[
            Edit { file: "policy/silence.rs", old: "            self.anew = now;\n", new: "" },
            Edit { file: "policy/silence.rs", old: ".min(Self::turn(self.limit)) }", new: " }" },
        ],
    },
    Mistake {
        name: "all that are silent together given up",
        story: "A bus is reset, and after a while the pool has no cache device left, with all that was dirty.",
        edits: &[Edit { file: "silence.rs", old: "|| answering == 0 && on != 0)", new: "&& answering != 0)" }],
    },
    Mistake {
        name: "one that alone has dirty data given up beside an empty one",
        story: "A new cache device answers while the only one with the data is silent: the data is given up for it.",
        edits: &[Edit { file: "silence.rs", old: "on & others == 0 && (on", new: "others == 0 && (on" }],
    },
    Mistake {
        name: "an idle cache device taken for a silent one",
        story: "Nobody asks it anything, so it answers nothing: the one that is silent beside it is waited for, for ever.",
        edits: &[Edit {
            file: "silence.rs",
            old: "            ask_the_others(&core, round);\n",
            new: "            let _ = round;\n",
        }],
    },
    Mistake {
        name: "pins that are brought for one volume after the other",
        story: "One volume's disk answers nothing, and what is pinned on the others does not come back either.",
        edits: &[Edit {
            file: "preload.rs",
            old: "            core.exec.spawn(async move {\n                keep_those_of(&core2, &volume).await;\n                kept2.borrow_mut().remove(&volume.id);\n            });\n",
            new: "            keep_those_of(&core2, &volume).await;\n            kept2.borrow_mut().remove(&volume.id);\n",
        }],
    },
];
