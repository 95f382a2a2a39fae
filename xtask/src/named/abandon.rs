//! A volume that is thrown away: what keeps that from being the wrong one, and what keeps it from being half gone.

use super::Told;
use crate::mistakes::{Edit, Mistake};

/// The scenes of `crates/sim/tests/named/abandon.rs`.
pub const TOLD: &[Told] = &[
    ("abandon::one_that_is_served_is_kept", "a volume thrown away while it is served"),
    ("abandon::one_that_is_being_detached_is_left_to_its_detach", "a volume thrown away under its detach"),
    ("abandon::it_is_whole_until_the_pool_is_told", "dirty data let go of before the pool is told"),
    ("abandon::its_room_is_the_others", "a volume thrown away that keeps its room"),
    ("abandon::nothing_of_it_comes_back_in_the_next_volume", "an attach over a log that still has the number's old records"),
    ("abandon::a_volume_is_detached_by_one_command_at_a_time", "two detaches of one volume at once"),
    ("abandon::a_detach_that_is_cut_off_leaves_the_mode_as_it_was", "a detach that has pass-through written down"),
    ("abandon::nothing_is_brought_into_the_cache_for_a_volume_that_is_gone", "what is brought in for a volume that is gone"),
    ("abandon::what_cannot_be_destaged_without_its_disk_is_refused_at_once", "a destage waited for that nobody does"),
    ("abandon::nothing_works_for_a_volume_that_was_detached", "work that outlives its volume"),
    ("abandon::what_is_clean_of_one_that_is_thrown_away_keeps_nobody_waiting", "all of a volume let go of at once"),
    (
        "abandon::one_of_which_a_silent_device_has_the_only_copies_is_thrown_away",
        "a silent device waited for with what is thrown away",
    ),
    (
        "abandon::one_whose_disk_comes_under_it_is_not_thrown_away_and_nobody_waits_for_its_clients",
        "one who waits for clients of what he cannot throw away",
    ),
    (
        "abandon::one_whose_disk_comes_under_it_is_not_thrown_away_and_nobody_waits_for_its_clients",
        "what is served taken for thrown away",
    ),
    (
        "abandon::one_that_is_refused_is_thrown_away_beside_a_silent_device_though_its_disk_comes",
        "what is refused taken for in use",
    ),
];

/// Mistakes that only they need.
pub const MISTAKES: &[Mistake] = &[
    Mistake {
        name: "what is refused taken for in use",
        story: "Its disk comes under the command, and it stays refused: a silent device is waited for again for what is thrown away.",
        edits: &[Edit {
            file: "volumes.rs",
            old: "    comparison::compare_disk(core, &v).await;\n    if v.refused.get() {\n        return Err(CommandError::Refused);",
            new: "    v.thrown_away.set(false);\n    comparison::compare_disk(core, &v).await;\n    if v.refused.get() {\n        return Err(CommandError::Refused);",
        }],
    },
    Mistake {
        name: "one who waits for clients of what he cannot throw away",
        story: "Its disk has come, and it is served: as long as there is always something under way the command has no end.",
        edits: &[Edit { file: "volumes.rs", old: "while !is_in_use() && is_under_way", new: "while is_under_way" }],
    },
    Mistake {
        name: "what is served taken for thrown away",
        story: "Its disk has come under the command: a silent device that alone has something dirty of it is given up, and its client is told of an error.",
        edits: &[Edit {
            file: "volumes.rs",
            old: "    v.thrown_away.set(false);\n    if core.stopping",
            new: "    if core.stopping",
        }],
    },
    Mistake {
        name: "a volume thrown away while it is served",
        story: "Somebody names the wrong volume, and what was acknowledged and is not on its disk yet is gone.",
        edits: &[Edit { file: "volumes.rs", old: "|| v.has_disk() && v.there.get() && !v.refused.get();", new: "|| false;" }],
    },
    Mistake {
        name: "a volume thrown away under its detach",
        story: "One that is being detached is served no more, and taken for one that never will be: two commands take it off the pool.",
        edits: &[Edit {
            file: "volumes.rs",
            old: "|| v.has_disk() && v.there.get() && !v.refused.get();",
            new: "|| v.has_disk() && v.serving.get() && !v.refused.get();",
        }],
    },
    Mistake {
        name: "dirty data let go of before the pool is told",
        story: "A checkpoint without a volume's dirty data counts before the superblock without the volume does: after a crash between them the disk's older data is served.",
        edits: &[Edit {
            file: "volumes.rs",
            old: "    forget_all(core, v);\n    // Where no superblock",
            new: "    forget_all(core, v);\n    checkpoint::now(core).await?;\n    // Where no superblock",
        }],
    },
    Mistake {
        name: "a volume thrown away that keeps its room",
        story: "What is clean of it is let go of, and what is dirty is forgotten: nobody frees that any more.",
        edits: &[Edit {
            file: "volumes.rs",
            old: "    core.mark(Mark::Abandoned);\n    forget_all(core, v);\n",
            new: "    core.mark(Mark::Abandoned);\n    drop_clean(core, v).await;\n",
        }],
    },
    Mistake {
        name: "two detaches of one volume at once",
        story: "One ends, and what the volume absorbs again the other one gives up.",
        edits: &[Edit { file: "volumes.rs", old: "if v.leaving.replace(true) {", new: "if v.leaving.replace(true) && false {" }],
    },
    Mistake {
        name: "a detach that has pass-through written down",
        story: "The daemon dies under a detach, and the volume is passed for good: all is as slow as the disk, and nobody says why.",
        edits: &[Edit { file: "membership.rs", old: "mode: v.mode.get(),", new: "mode: v.mode()," }],
    },
    Mistake {
        name: "what is brought in for a volume that is gone",
        story: "A preload waits, and its volume is detached. What it brings then lies in the pool for good, and the engine looks for room there for ever.",
        edits: &[
            Edit { file: "preload.rs", old: "if !takes || !core.room_for_clean(volume)", new: "if !core.room_for_clean(volume)" },
            // Nor is a segment opened for it.
            Edit {
                file: "log.rs",
                old: "Draw::Carried => of.as_ref().map_or(u32::MAX,",
                new: "Draw::Carried => of.as_ref().map_or(0,",
            },
        ],
    },
    Mistake {
        name: "a destage waited for that nobody does",
        story: "The volume's disk is not there, and whoever wants it clean waits up to the end of the daemon.",
        edits: &[Edit {
            file: "volumes.rs",
            old: "    v.map.borrow().dirty_blocks() > 0 && v.has_disk() && (",
            new: "    false && v.map.borrow().dirty_blocks() > 0 && v.has_disk() && (",
        }],
    },
    Mistake {
        name: "a silent device waited for with what is thrown away",
        story: "It alone has what is dirty of the volume, and may be away for good: the command that would end the wait waits as well.",
        edits: &[Edit { file: "silence.rs", old: "is_none_or(|v| !v.thrown_away.get())", new: "is_none_or(|_| true)" }],
    },
    Mistake {
        name: "work that outlives its volume",
        story: "Each detach leaves the volume's tasks, and its map, in memory.",
        edits: &[Edit { file: "volumes.rs", old: "    v.taken_off.set(true);\n", new: "" }],
    },
    Mistake {
        name: "all of a volume let go of at once",
        story: "A volume is thrown away, and nobody is answered until the last of its clean blocks is off the map.",
        edits: &[Edit {
            file: "volumes.rs",
            old: "    drop_clean(core, v).await;\n    // Copies of what is",
            new: "    // Copies of what is",
        }],
    },
];
