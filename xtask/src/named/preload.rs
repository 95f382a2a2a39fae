//! What is brought before it is asked for: mistakes that keep an owner waiting, or the disk busy for nothing.

use super::Told;
use crate::mistakes::{Edit, Mistake};

/// The scenes of `crates/sim/tests/named/preload.rs`.
pub const TOLD: &[Told] = &[
    (
        "preload::a_preload_from_a_disk_that_answers_nothing_can_be_given_up",
        "a preload that hears nothing while it waits for the disk",
    ),
    ("preload::a_detach_beside_a_read_that_is_never_answered_can_be_given_up", "a detach that hears nothing near its end"),
    ("preload::what_has_no_room_is_not_read_to_be_preloaded", "a preload that reads what has no room"),
    ("preload::what_is_preloaded_does_not_wait_with_what_is_gathered", "what somebody waits for gathered with what nobody does"),
];

/// Mistakes that only they need.
pub const MISTAKES: &[Mistake] = &[
    Mistake {
        name: "a preload that hears nothing while it waits for the disk",
        story: "A disk answers nothing, and the preload of it can neither go on nor be given up.",
        edits: &[Edit {
            file: "preload.rs",
            old: "    let ended = cancel.or(core, brought.get()).await;\n",
            new: "    let brought = brought.get().await;\n    let ended = cancel.or(core, async { brought }).await;\n",
        }],
    },
    Mistake {
        name: "a detach that hears nothing near its end",
        story: "What the disk never answers keeps a detach from its end when it has ceased to serve the volume: its clients wait for ever, and its owner cannot give it up.",
        edits: &[Edit {
            file: "volumes.rs",
            old: "        cancel.or(core, empty(core, v)).await?;",
            new: "        empty(core, v).await;",
        }],
    },
    Mistake {
        name: "a preload that reads what has no room",
        story: "The cache is full of dirty data. The disk reads what is to be preloaded, again and again, and none of it comes in.",
        edits: &[Edit {
            file: "preload.rs",
            old: " || !core.has_spare_for(volume) || ",
            new: " || !core.has_spare_for(volume) && core.stopping.get() || ",
        }],
    },
    Mistake {
        name: "what somebody waits for gathered with what nobody does",
        story: "A client's miss comes meanwhile, and each part of a preload that fills no record waits a quarter of a second.",
        edits: &[Edit {
            file: "log.rs",
            old: "Class::Single if self.gathers.get() && !band.hurried => 0,",
            new: "Class::Single if self.gathers.get() => 0,",
        }],
    },
];
