//! When sweeps begin and end: a mistake that only a scene tells.

use super::Told;
use crate::mistakes::{Edit, Mistake};

/// The scenes of `crates/sim/tests/named/sweeps.rs`.
pub const TOLD: &[Told] = &[
    ("sweeps::a_sweep_does_not_follow_a_log_record_by_record", "a sweep that follows whoever writes on before it"),
    ("sweeps::a_stream_over_a_cache_that_was_just_filled_has_the_disk_for_itself", "space won for nobody beside clients"),
    (
        "sweeps::a_sweep_goes_past_the_disks_cache_while_there_are_random_readers_and_only_then",
        "a sweep into the disk's own cache beside random readers",
    ),
];

/// Mistakes that only they need.
pub const MISTAKES: &[Mistake] = &[
    Mistake {
        name: "a sweep that follows whoever writes on before it",
        story: "It is never round while a log grows, and each record has a flush of the disk and of each cache device of its own.",
        edits: &[Edit {
            file: "destage.rs",
            old: "        if is_rest && due > core.now() {",
            new: "        if false && is_rest && due > core.now() {",
        }],
    },
    Mistake {
        name: "space won for nobody beside clients",
        story: "Those who filled the cache have ended; the sweep takes the disk from a stream until space is half empty again.",
        edits: &[Edit {
            file: "policy/destage.rs",
            old: "if is_wanted { setting } else { setting.max(UNWANTED_PERCENT) }",
            new: "if is_wanted || setting < UNWANTED_PERCENT { setting } else { UNWANTED_PERCENT }",
        }],
    },
    Mistake {
        name: "a sweep into the disk's own cache beside random readers",
        story: "The flush at a chunk's end finds hundreds of writes there, and readers wait for all of them.",
        edits: &[Edit {
            file: "destage.rs",
            old: "    let beside_readers = volume.has_lone_readers(core.now(), core.settings.idle_ns);\n",
            new: "    let beside_readers = false;\n",
        }],
    },
];
