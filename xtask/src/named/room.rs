//! How much a pool holds.

use super::Told;
use crate::mistakes::{Edit, Mistake};

/// The scenes of `crates/sim/tests/named/room.rs`.
pub const TOLD: &[Told] = &[
    (
        "room::clean_data_has_nearly_all_of_the_cache_devices",
        "half of the checkpoint areas kept for what takes a hundredth of them",
    ),
    ("room::a_volume_with_as_many_fragments_as_it_may_have_goes_on_being_cached", "fragments that nobody lets go"),
    ("room::the_map_takes_no_more_memory_than_it_may", "a map without a cap of memory"),
    ("room::a_volume_without_a_disk_has_its_room_whatever_memory_there_is", "a cap of memory for what is no cache"),
    ("room::a_daemon_ends_just_after_a_cache_device_has_left", "an image begun that has no room"),
    ("room::a_checkpoint_has_room_again_after_a_cache_device_has_left", "an image begun that has no room"),
    ("room::a_checkpoint_has_room_again_after_a_cache_device_has_left", "room reckoned with cache devices that have left"),
    ("hazards::h11_failed_append_is_a_death", "room reckoned with cache devices that have left"),
];

/// Scenes of it that no mistake has, with the reason.
#[cfg(test)]
pub const UNTOLD: &[Told] = &[
    (
        "room::a_start_without_a_cache_device_takes_a_checkpoint_that_has_room",
        "housekeeping lets go of what is clean there as well, when the map is nearly full",
    ),
    (
        "room::a_cache_device_is_removed_from_a_pool_whose_maps_are_too_large_for_the_others",
        "housekeeping lets go of what is clean there as well, when the map is nearly full",
    ),
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
        edits: &[Edit { file: "bounds.rs", old: "most => most.min(pieces),", new: "_ => pieces," }],
    },
    Mistake {
        name: "room reckoned with cache devices that have left",
        story: "What is left for data is reckoned once and never again: with a cache device gone, writes want two copies that cannot be had.",
        edits: &[Edit {
            file: "watched.rs",
            old: "        self.touch();\n        self.value.borrow_mut()",
            new: "        self.value.borrow_mut()",
        }],
    },
    Mistake {
        name: "a cap of memory for what is no cache",
        story: "A pool comes to a server with less memory, and writes to a volume without a backing device fail there.",
        edits: &[Edit {
            file: "space.rs",
            old: "        if !volume.has_disk() {\n            // What it",
            new: "        if false {\n            // What it",
        }],
    },
    Mistake {
        name: "an image begun that has no room",
        story: "A cache device leaves, and the image of all that the maps hold does not fit on those who are left: nothing gets free ever again.",
        edits: &[Edit {
            file: "checkpoint.rs",
            old: "    fit_into_an_image(core);\n",
            new: "    let _ = fit_into_an_image::<B>;\n",
        }],
    },
    Mistake {
        name: "fragments that nobody lets go",
        story: "A volume has as many pieces of blocks as it may, and takes nothing into the cache any more.",
        edits: &[Edit {
            file: "space.rs",
            old: "        core.all_volumes().iter().for_each(|v| thin_fragments(&core, v));\n",
            new: "        let _ = thin_fragments::<B>;\n",
        }],
    },
];
