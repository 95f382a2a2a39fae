//! A log with several open segments.

use super::Told;
use crate::mistakes::{Edit, Mistake};

/// The scenes of `crates/sim/tests/named/bands.rs`.
pub const TOLD: &[Told] = &[
    (
        "bands::a_checkpoint_notes_where_each_open_segment_stands",
        "a checkpoint that notes where one open segment stands, and not the others",
    ),
    ("bands::what_a_burst_leaves_of_its_segments_is_moved_together", "what a burst leaves of its segments stays where it is"),
];

/// Mistakes that only they need.
pub const MISTAKES: &[Mistake] = &[
    Mistake {
        name: "a checkpoint that notes where one open segment stands, and not the others",
        story: "What was flushed to the others after the checkpoint is not replayed, and is gone after a power cut.",
        edits: &[Edit {
            file: "log.rs",
            old: "        (0..bands::MOST).filter_map(|band| self.position(core, band)).collect()\n",
            new: "        (0..bands::MOST).filter_map(|band| self.position(core, band)).take(1).collect()\n",
        }],
    },
    Mistake {
        name: "what a burst leaves of its segments stays where it is",
        story: "Each segment has something of everywhere, so that none is free before the sweep is round, and writes wait for that.",
        edits: &[Edit {
            file: "policy/bands.rs",
            old: "        false if taken >= DENSE => capacity / 3,\n",
            new: "        false if taken >= DENSE => 0,\n",
        }],
    },
];
