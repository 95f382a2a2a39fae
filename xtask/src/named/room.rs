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
    ("room::a_volume_full_of_dirty_fragments_is_destaged_though_its_disk_is_used", "fragments that are no reason to destage"),
    ("room::fragments_that_are_dirty_are_left_to_the_sweep", "what is dirty looked through for what is clean"),
    ("room::volumes_that_rest_do_not_keep_the_room_of_others", "open segments that are never closed"),
    ("room::clean_data_leaves_the_reserve_in_pairs", "a reserve of pairs counted in slots"),
    ("room::volumes_that_rest_do_not_keep_the_room_of_others_reads", "open segments that are closed for writers alone"),
    ("room::fragments_that_are_clean_hold_back_nobodys_writes", "clean fragments taken for what destage wins"),
    ("room::blocks_that_lie_far_apart_take_no_more_memory_than_the_map_may", "memory reckoned by blocks alone"),
    (
        "room::memory_that_dirty_blocks_far_apart_fill_is_a_reason_to_destage",
        "memory full of what is dirty, and no reason to destage",
    ),
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
            old: "    fit_into_an_image(core).await;\n",
            new: "    let _ = fit_into_an_image::<B>;\n",
        }],
    },
    Mistake {
        name: "fragments that nobody lets go",
        story: "A volume has as many pieces of blocks as it may, and takes nothing into the cache any more.",
        edits: &[Edit {
            file: "space.rs",
            old: "            core.all_volumes().iter().for_each(|v| goes_on |= thin_fragments(&core, v));\n",
            new: "            goes_on |= thin_fragments::<B> as usize == 0;\n",
        }],
    },
    Mistake {
        name: "fragments that are no reason to destage",
        story: "A volume has as many fragments as it may, all dirty: each write goes to the disk, over what is dirty there, with a flush of its own.",
        edits: &[Edit {
            file: "shares.rs",
            old: "        room.taken_percent = room.taken_percent.max(self.fragments_percent(volume));\n",
            new: "",
        }],
    },
    Mistake {
        name: "what is dirty looked through for what is clean",
        story: "A thousand blocks at each write, on the thread that serves all volumes, and nothing is won.",
        edits: &[Edit {
            file: "map.rs",
            old: "Some((block, pieces > 1 && clean > 0))",
            new: "Some((block, pieces > 1 && clean + 1 > 0))",
        }],
    },
    Mistake {
        name: "open segments that are never closed",
        story: "Volumes that rest keep a segment open each, and one more volume finds no room, though nothing is dirty.",
        edits: &[
            Edit { file: "space.rs", old: "    close_what_rests(core)\n}", new: "    close_what_rests(core) && false\n}" },
            Edit {
                file: "space.rs",
                old: ".filter(|log| log.rests(core, RESTS_NS))",
                new: ".filter(|log| log.rests(core, RESTS_NS << 20))",
            },
        ],
    },
    Mistake {
        name: "a reserve of pairs counted in slots",
        story: "Reads take one of the two pairs that are for marks, and writes go to the disk.",
        edits: &[
            Edit {
                file: "space.rs",
                old: "(self.bounds().reserve + ahead) * copies",
                new: "self.bounds().reserve + ahead * copies / 2",
            },
            Edit {
                file: "space.rs",
                old: "self.bounds().reserve * copies + self.ahead_of_demand() * copies / 2",
                new: "self.bounds().reserve + self.ahead_of_demand() * copies / 4",
            },
        ],
    },
    Mistake {
        name: "open segments that are closed for writers alone",
        story: "Volumes rest, and more than the reserve is free, but not what is kept ahead of demand: what another one reads is never cached.",
        edits: &[Edit {
            file: "space.rs",
            old: "any(|(n, _)| is_dirty(n)) && !(",
            new: "any(|(n, _)| is_dirty(n) || true) && !(",
        }],
    },
    Mistake {
        name: "clean fragments taken for what destage wins",
        story: "A volume has nearly as many fragments as it may, all clean. Its writes wait for a sweep that has nothing to do, without end.",
        edits: &[
            Edit { file: "shares.rs", old: "saturating_sub(most - most / 32);", new: "saturating_sub(most - most / 16);" },
            Edit { file: "shares.rs", old: "(over * 100 / (most / 32).max(1))", new: "(over * 100 / (most / 16).max(1))" },
        ],
    },
    Mistake {
        name: "memory reckoned by blocks alone",
        story: "Blocks lie far apart, and each takes three times what it was reckoned with: with half of the memory for the map there is too little for all.",
        edits: &[Edit {
            file: "space.rs",
            old: "most > 0 && self.map_memory() >= most",
            new: "most > u64::MAX / 2 && self.map_memory() >= most",
        }],
    },
    Mistake {
        name: "memory full of what is dirty, and no reason to destage",
        story: "How full the map is of dirty blocks is reckoned by their number. They lie far apart: nothing more has room, and no sweep begins.",
        edits: &[Edit { file: "core.rs", old: "of_pieces.max(of_memory)", new: "of_pieces.max(of_memory.min(0))" }],
    },
];
