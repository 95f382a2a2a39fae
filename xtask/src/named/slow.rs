//! Cache devices that are slow, and answer: mistakes that only a scene tells.

use super::Told;
use crate::mistakes::{Edit, Mistake};

/// The scenes of `crates/sim/tests/named/slow.rs`.
pub const TOLD: &[Told] = &[
    ("slow::a_sweep_leaves_cache_devices_to_clients", "a sweep that reads all of a chunk at once"),
    ("slow::a_cache_device_that_answers_others_is_slow_and_not_gone", "a slow cache device taken for a silent one"),
    ("slow::one_slow_answer_of_a_cache_device_sends_nobody_to_the_disk", "one slow answer taken for what is to come"),
    ("slow::clean_data_that_waits_for_silent_cache_devices_is_bounded", "clean data in line for as long as disks bring it"),
];

/// Mistakes that only they need.
pub const MISTAKES: &[Mistake] = &[
    Mistake {
        name: "a sweep that reads all of a chunk at once",
        story: "Thousands of small reads keep a slow cache device from clients for half a minute.",
        edits: &[Edit { file: "fetch.rs", old: "is_none_or(|r| r.aside < r.credit.most())", new: "is_none_or(|_| true)" }],
    },
    Mistake {
        name: "a slow cache device taken for a silent one",
        story: "What waits longest in a long line is given up, and the device leaves, though it is at work.",
        edits: &[Edit {
            file: "policy/silence.rs",
            old: "now.saturating_sub(heard.answered.max(since.answered).max(self.anew.answered))",
            new: "now.saturating_sub(since.answered).max(heard.answered & 0)",
        }],
    },
    Mistake {
        name: "one slow answer taken for what is to come",
        story: "An SSD stands still for a moment, and for seconds all is asked of the disk.",
        edits: &[Edit {
            file: "policy/route.rs",
            old: "self.note(now, cost.min(most));",
            new: "self.note(now, cost.min(most | u64::MAX));",
        }],
    },
    Mistake {
        name: "clean data in line for as long as disks bring it",
        story: "The cache devices stand still for a while, and what reads miss waits for them in memory, without an end.",
        edits: &[Edit {
            file: "fills.rs",
            old: "self.waiting_bytes.get() >= MOST_RECORDS * record_bytes",
            new: "self.waiting_bytes.get() >= u64::MAX - MOST_RECORDS * record_bytes",
        }],
    },
];
