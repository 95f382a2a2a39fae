//! Cache devices that leave while clients write.

use super::Told;
use crate::mistakes::{Edit, Mistake};

/// The scenes of `crates/sim/tests/named/leaving.rs`.
pub const TOLD: &[Told] = &[
    ("leaving::what_there_was_no_room_to_append_again_does_not_come_back", "a record left behind that is not outdated"),
    (
        "leaving::one_that_has_left_is_forgotten_when_nothing_lacks_a_copy_and_not_believed_when_it_is_back",
        "a cache device that is forgotten while a copy is lacking",
    ),
    (
        "leaving::a_repair_does_not_go_to_the_device_that_has_the_damaged_ones_number_meanwhile",
        "a repair written to whatever has the number meanwhile",
    ),
    (
        "leaving::one_more_may_be_missing_when_what_the_first_took_along_has_its_copies_again",
        "no checkpoint that tells of copies made again",
    ),
    (
        "leaving::what_a_device_owed_when_it_left_does_not_concern_the_one_that_has_its_number_now",
        "a predecessor's failure held against who has its number",
    ),
    ("leaving::what_is_given_up_as_lost_is_lost", "given up as lost for what was met last"),
    ("leaving::what_is_being_moved_is_not_given_up_as_lost", "what is being moved given up with what is lost"),
    ("leaving::nothing_is_written_for_a_volume_that_was_detached", "a detach that waits for no sweep"),
    (
        "leaving::a_device_that_fails_while_it_is_removed_is_not_wiped_with_the_only_copies",
        "one that left by itself taken for one that was emptied",
    ),
    (
        "leaving::a_page_that_a_predecessor_did_not_take_does_not_put_out_the_one_that_has_its_number_now",
        "a predecessor's failure heard late",
    ),
    ("leaving::what_was_given_up_by_a_detach_that_failed_is_not_read_from_the_disk", "what was given up in vain served"),
    ("leaving::one_that_joins_and_leaves_again_has_not_been_added", "one that has left again taken for added"),
    ("leaving::a_removal_gives_way_where_another_device_fails_under_its_epoch", "a removal that gives way to nobody"),
    (
        "leaving::what_sets_out_for_the_log_beside_an_overwrite_that_had_no_room_there_does_not_come_back",
        "an overwrite that had no room in the log and waits for nobody there",
    ),
    ("leaving::without_a_cache_device_no_write_waits_for_room_on_one", "room waited for that nobody wins"),
];

/// Mistakes that only they need.
pub const MISTAKES: &[Mistake] = &[
    Mistake {
        name: "a cache device that is forgotten while a copy is lacking",
        story: "Somebody acknowledges its loss too early: nobody knows any more whom the rest of dirty data waits for.",
        edits: &[Edit { file: "joining.rs", old: "if lacks || pool.in_sync()", new: "if pool.in_sync()" }],
    },
    Mistake {
        name: "a repair written to whatever has the number meanwhile",
        story: "A damaged copy's device is replaced while the other copy is read: the repair is written over what the new one has there.",
        edits: &[Edit { file: "fetch.rs", old: "let is_still = whose", new: "let is_still = true || whose" }],
    },
    Mistake {
        name: "no checkpoint that tells of copies made again",
        story: "All has its copies again after a loss, and no superblock says so: the next one to be missing at a start is one too many.",
        edits: &[Edit { file: "space.rs", old: "        core.tell_of_mending();\n", new: "" }],
    },
    Mistake {
        name: "a predecessor's failure held against who has its number",
        story: "What an old device still owed ends badly when a new one has its number: the new one leaves for it.",
        edits: &[Edit { file: "joining.rs", old: "    core.exec.disown(member);\n", new: "" }],
    },
    Mistake {
        name: "a record left behind that is not outdated",
        story: "A cache device leaves under a write's append, and there is no segment to append it to again: the write goes to the disk as if the log had nothing of it, and the next start lays the record on the other device over what the disk got since.",
        edits: &[Edit {
            file: "write.rs",
            old: "if volume.left_behind.touches(range) {",
            new: "if false && volume.left_behind.touches(range) {",
        }],
    },
    Mistake {
        name: "given up as lost for what was met last",
        story: "Of what is dirty one block has no copy left, and the others only a disk that fails: with the one all are given up.",
        edits: &[Edit { file: "destage.rs", old: "why: before.why.max(why)", new: "why" }],
    },
    Mistake {
        name: "one that left by itself taken for one that was emptied",
        story: "Its superblocks are wiped, and what it alone has with them.",
        edits: &[Edit {
            file: "joining.rs",
            old: "    if core.pool.borrow().members[usize::from(member)].id != [0; 16] {",
            new: "    if false {",
        }],
    },
    Mistake {
        name: "a predecessor's failure heard late",
        story: "Another device has its number by then, and leaves for it.",
        edits: &[Edit {
            file: "membership.rs",
            old: ".is_none_or(|m| m.joined > epoch)",
            new: ".is_none_or(|m| m.joined > epoch && false)",
        }],
    },
    Mistake {
        name: "what was given up in vain served",
        story: "Nothing is known any more of what was lost, and the volume is still there: the disk's older data is read for it.",
        edits: &[Edit { file: "volumes.rs", old: "if lost { refuse(v) } else { v.serve(true) }", new: "v.serve(true)" }],
    },
    Mistake {
        name: "one that has left again taken for added",
        story: "The command says that all that is dirty has its copies, and there is one device.",
        edits: &[Edit {
            file: "joining.rs",
            old: "    if stayed { Ok(()) } else { Err(CommandError::MemberFailed) }",
            new: "    let _ = stayed;\n    Ok(())",
        }],
    },
    Mistake {
        name: "what is being moved given up with what is lost",
        story: "Copies are being made again when a detach gives up what has none: what sweeps pass over for that is forgotten with it, though it can be read.",
        edits: &[Edit {
            file: "volumes.rs",
            old: "        if v.moved.get() == moved {",
            new: "        if v.moved.get() >= moved {",
        }],
    },
    Mistake {
        name: "a detach that waits for no sweep",
        story: "A sweep is in the middle of its reads when what is lost is given up, and writes them to the disk that gets the volume's number.",
        edits: &[Edit {
            file: "volumes.rs",
            old: "let is_swept = || !v.disk_ranges.is_free() || !v.chunks.borrow().is_empty();",
            new: "let is_swept = || false;",
        }],
    },
    Mistake {
        name: "a removal that gives way to nobody",
        story: "Another cache device fails under the epoch that says so: no majority is left, though the one that goes is there with all it had.",
        edits: &[Edit { file: "membership.rs", old: "let stays = failing != 0;", new: "let stays = false;" }],
    },
    Mistake {
        name: "an overwrite that had no room in the log and waits for nobody there",
        story: "What sets out for the log meanwhile is not forgotten on the media, only in memory: after a crash it lies over what was written later.",
        edits: &[Edit {
            file: "write.rs",
            old: "            drop(moving);\n            wait_for_appends(core, volume, &blocks).await;",
            new: "            drop(moving);\n            let _ = &blocks;",
        }],
    },
    Mistake {
        name: "room waited for that nobody wins",
        story: "The last cache device has left, and each small write waits a quarter of a second before it goes to the disk.",
        edits: &[Edit {
            file: "space.rs",
            old: "self.bounds().copies == 0 || self.pool.borrow().stalled || self.loading().is_some()",
            new: "self.bounds().copies > 99",
        }],
    },
];
