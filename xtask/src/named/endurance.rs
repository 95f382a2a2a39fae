//! The budget of drive writes: mistakes that lose no data, but cache devices before their time, or what the cache is for.

use super::Told;
use crate::mistakes::{Edit, Mistake};

/// The scenes of `crates/sim/tests/named/endurance.rs`.
pub const TOLD: &[Told] = &[
    ("endurance::cache_devices_are_written_no_more_than_their_budget_says", "writes absorbed whatever the budget has left"),
    ("endurance::cache_devices_are_written_no_more_than_their_budget_says", "misses that take the last of the budget"),
    ("endurance::nothing_is_held_back_that_the_budget_bears", "a budget that does not fill"),
    ("endurance::what_is_dirty_is_absorbed_over_though_the_budget_is_spent", "writes over dirty data held back with the rest"),
    ("endurance::images_of_the_map_take_little_of_what_cache_devices_are_written", "an image for each GiB, however large it is"),
];

/// Mistakes that only they need.
pub const MISTAKES: &[Mistake] = &[
    Mistake {
        name: "writes absorbed whatever the budget has left",
        story: "Only what reads miss is held back. A load of small random writes alone wears the cache devices out in a fraction of their time.",
        edits: &[Edit {
            file: "write.rs",
            old: "    core.settings.drive_writes_milli > 0\n        && older_dirty",
            new: "    core.settings.drive_writes_milli == u32::MAX\n        && older_dirty",
        }],
    },
    Mistake {
        name: "misses that take the last of the budget",
        story: "What reads miss is cached as long as anything is left. A scan takes the budget from the writes, which go to the disk.",
        edits: &[Edit {
            file: "policy/endurance.rs",
            old: "Wish::Clean => (WRITES_NS, CLEAN_NS),",
            new: "Wish::Clean => (0, WRITES_NS),",
        }],
    },
    Mistake {
        name: "a budget that does not fill",
        story: "The budget is spent once, and the cache is of no use from then on.",
        edits: &[Edit {
            file: "policy/endurance.rs",
            old: "        budget.left += a_ns * i128::from(now.saturating_sub(budget.at));\n",
            new: "",
        }],
    },
    Mistake {
        name: "writes over dirty data held back with the rest",
        story: "A write to what is dirty takes the way to the disk, where it must not lie: it waits for the lock, the intent bit and the log, and then is absorbed all the same.",
        edits: &[Edit {
            file: "write.rs",
            old: "        && older_dirty(volume, range, u64::MAX) != core::slice::from_ref(range)\n",
            new: "",
        }],
    },
    Mistake {
        name: "an image for each GiB, however large it is",
        story: "With a TiB cached, eight GiB are written to each cache device for each GiB that clients write.",
        edits: &[Edit {
            file: "policy/reclaim.rs",
            old: "    appended >= usual.max(pieces.saturating_mul(APPENDED_FOR_A_PIECE))",
            new: "    appended >= usual.max(pieces.saturating_mul(0 * APPENDED_FOR_A_PIECE))",
        }],
    },
];
