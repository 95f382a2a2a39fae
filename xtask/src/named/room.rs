//! How much a pool holds.

use super::Told;
use crate::mistakes::{Edit, Mistake};

/// The scenes of `crates/sim/tests/named/room.rs`.
pub const TOLD: &[Told] = &[
    (
        "room::clean_data_has_nearly_all_of_the_cache_devices",
        "half of the checkpoint areas kept for what takes a hundredth of them",
    ),
    ("room::the_map_takes_no_more_memory_than_it_may", "a map without a cap of memory"),
    ("room::a_checkpoint_has_room_again_after_a_cache_device_has_left", "a checkpoint waited for that has no room"),
];

/// Mistakes that only these scenes need.
pub const MISTAKES: &[Mistake] = &[
    Mistake {
        name: "half of the checkpoint areas kept for what takes a hundredth of them",
        story: "Clean data has half of the cache devices, and the rest stays empty.",
        edits: &[Edit {
            file: "policy/image.rs",
            old: "let parts = (PARTS - 1).saturating_sub(areas.overflows);",
            new: "let parts = (PARTS / 2).saturating_sub(areas.overflows);",
        }],
    },
    Mistake {
        name: "a map without a cap of memory",
        story: "A small server with large cache devices has no memory left for anything else.",
        edits: &[Edit { file: "space.rs", old: "most => most.min(pieces),", new: "_ => pieces," }],
    },
    Mistake {
        name: "a checkpoint waited for that has no room",
        story: "A cache device leaves, and the image of all that the maps hold does not fit on those who are left: nothing gets free ever again.",
        edits: &[Edit {
            file: "space.rs",
            old: "if core.map_is_overfull() && thin_one(core) {",
            new: "if false && core.map_is_overfull() && thin_one(core) {",
        }],
    },
];
