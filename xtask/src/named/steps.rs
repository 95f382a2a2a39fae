//! Steps that must not be left out: a flush, a wait, a pin, a vote, a failure that is taken note of.

use super::Told;
use crate::mistakes::{Edit, Mistake};

/// The scenes of `crates/sim/tests/named/steps.rs`.
pub const TOLD: &[Told] = &[
    ("steps::small_writes_that_come_beside_a_record_share_the_next", "a record for each small write"),
    ("steps::what_has_just_left_is_no_copy_to_a_checkpoint", "what has just left counted as a copy by a checkpoint"),
    ("steps::one_superblock_at_a_time", "an epoch written beside another superblock"),
    ("steps::who_does_not_take_a_superblock_leaves", "a superblock that a cache device did not take, overlooked"),
    (
        "steps::a_checkpoint_is_on_two_of_those_that_are_left",
        "a checkpoint that counts though a cache device has left with its pages",
    ),
    ("steps::an_epoch_without_votes_is_not_written_down", "an epoch written down that has no votes"),
    ("steps::a_copy_under_repair_is_not_given_away", "a copy given away while it is repaired"),
    ("steps::emptied_under_a_checkpoint_is_not_freed_by_it", "a segment freed by the checkpoint under which it was emptied"),
    ("steps::emptied_under_a_checkpoint_is_not_freed_by_it", "a segment freed by whatever checkpoint comes next"),
    ("steps::who_does_not_take_what_a_start_completes_leaves", "a repair at a start that fails, overlooked"),
    ("steps::who_does_not_flush_at_a_start_leaves", "a flush at a start that fails, overlooked"),
    ("steps::who_does_not_take_an_intent_page_leaves", "an intent page that a cache device did not take, overlooked"),
    ("steps::who_does_not_take_an_intent_page_leaves", "an intent page that a cache device did not flush, overlooked"),
    ("steps::who_does_not_take_a_repair_leaves", "a repair that fails, overlooked"),
    (
        "steps::who_does_not_take_the_superblock_that_it_lacks_leaves",
        "a cache device that does not take the superblock that it lacks, overlooked",
    ),
    ("steps::a_superblock_torn_twice_leaves_its_member_the_one_before", "a superblock over the only one that a cache device has"),
    ("steps::a_flush_waits_for_a_membership_that_is_not_decided", "a flush answered while membership is undecided"),
    (
        "steps::a_durable_write_past_the_cache_waits_for_a_membership_that_is_not_decided",
        "a durable write past the cache, answered while membership is undecided",
    ),
    ("steps::a_flush_that_failed_under_a_write_is_told_to_the_next", "a flush that failed under a write, forgotten"),
    ("steps::what_cannot_be_read_hides_no_record_beside_it", "errors read around in steps that are longer than a unit"),
    (
        "steps::an_ordered_overwrite_that_fails_takes_the_block_out_of_the_sweep",
        "a sweep that calls clean what was overwritten under it",
    ),
    (
        "steps::an_ordered_overwrite_that_fails_takes_the_block_out_of_the_sweep",
        "an ordered overwrite that does not wait for what is being called clean",
    ),
    (
        "steps::a_flush_of_destage_that_fails_after_a_write_was_acknowledged_is_told_to_the_next",
        "a flush that fails after a write was acknowledged, forgotten",
    ),
    (
        "steps::no_write_goes_past_the_cache_that_one_who_may_come_back_has_not_heard_of",
        "an intent bit that counts though a leave has no votes",
    ),
    ("steps::a_write_past_the_cache_waits_for_what_is_being_appended", "a bypass that does not wait for what is being appended"),
    ("steps::a_detach_waits_for_what_is_at_the_disk", "a detach that does not wait for requests"),
    ("steps::what_a_read_kept_is_free_when_it_has_ended", "a segment that nobody frees when its last read ends"),
    ("steps::one_of_three_votes_is_not_enough", "a start without the votes"),
    ("steps::a_checkpoint_knows_a_volume_that_came_while_it_waited", "a checkpoint that knows the volumes of a moment before"),
    ("steps::a_scrub_reads_every_copy_and_what_it_repairs_is_flushed", "a scrub that reads one of two copies"),
    ("steps::a_scrub_reads_every_copy_and_what_it_repairs_is_flushed", "a repair called done before it is flushed"),
    ("steps::nothing_of_a_device_that_is_added_is_believed", "a cache device added with what was on it"),
    ("steps::a_number_is_not_an_identity", "a cache device known by its number alone"),
    ("steps::another_disk_takes_what_is_clean_with_it", "clean data kept of a disk that is another one"),
    ("steps::of_two_who_attach_one_disk_at_once_one_is_refused", "who attaches asks only once whether another one does"),
    ("steps::nothing_is_cached_when_the_cache_is_off", "clean data kept when the cache is switched off"),
    ("steps::an_older_intent_page_is_not_believed_for_a_damaged_one", "an older intent page believed for a damaged one"),
    ("steps::a_mark_does_not_outlive_what_hid_a_part", "marks that outlive what hid a part of the block"),
    ("steps::two_that_wait_for_room_let_others_have_their_turn", "marks short of space that wake each other"),
    ("steps::clean_is_clean_after_a_power_cut", "marks that count before they are flushed"),
];

/// Mistakes that no other list has.
pub const MISTAKES: &[Mistake] = &[
    Mistake {
        name: "what has just left counted as a copy by a checkpoint",
        story: "It is noted that all dirty data has its copies while a cache device leaves: when the next one is lost too, nothing is refused.",
        edits: &[Edit {
            file: "checkpoint.rs",
            old: "s.places().filter(|p| pool.is_in_sync(p.member)).count()",
            new: "s.places().count()",
        }],
    },
    Mistake {
        name: "a record for each small write",
        story: "Small writes that come one by one have a request of the cache devices each, though one would hold many of them.",
        edits: &[Edit { file: "log.rs", old: "(self.in_flight < most || ", new: "(self.in_flight < most + 8 || " }],
    },
    Mistake {
        name: "an epoch written beside another superblock",
        story: "A cache device leaves while a checkpoint is named: two superblocks are in flight, and the power leaves none of them whole.",
        edits: &[Edit {
            file: "membership.rs",
            old: "-> Raised {\n        loop {\n            let wait = self.superblock_free.wait();\n            if !self.superblock_busy.get() {",
            new: "-> Raised {\n        loop {\n            let wait = self.superblock_free.wait();\n            if true {",
        }],
    },
    Mistake {
        name: "a superblock that a cache device did not take, overlooked",
        story: "It stays in sync, and does not know what the others know: alone it would be believed.",
        edits: &[Edit {
            file: "membership.rs",
            old: "            self.mark(Mark::SuperblockFails);\n            self.fail_member(m).await;\n",
            new: "            let _ = m;\n",
        }],
    },
    Mistake {
        name: "a checkpoint that counts though a cache device has left with its pages",
        story: "There is one copy of some pages; the next one that rots keeps the pool from starting.",
        edits: &[Edit {
            file: "checkpoint.rs",
            old: "if pages.overflow || core.pool.borrow().epoch != epoch {",
            new: "if pages.overflow {",
        }],
    },
    Mistake {
        name: "an epoch written down that has no votes",
        story: "One that is left alone writes it; the others raise the same one with other members, and its superblock is the newer by number.",
        edits: &[
            Edit {
                file: "membership.rs",
                old: "let hopeless = !may_agree(voted || votes && joins.is_some());",
                new: "let hopeless = false;",
            },
            // What was agreed on would count first.
            Edit {
                file: "format/superblock.rs",
                old: "(self.agreed, self.epoch, self.sequence)",
                new: "(0, self.epoch, self.sequence)",
            },
        ],
    },
    Mistake {
        name: "a copy given away while it is repaired",
        story: "A checkpoint lets go of it; another segment is written there, and then the repair lands on it.",
        edits: &[Edit {
            file: "segments.rs",
            old: "!s.copies.contains(&twin) || s.pins > 0)",
            new: "!s.copies.contains(&twin))",
        }],
    },
    Mistake {
        name: "a segment freed by the checkpoint under which it was emptied",
        story: "That one's image names it, and what replaced it is not durable yet: the power takes both.",
        edits: &[Edit {
            file: "segments.rs",
            old: "s.state == SegmentState::Limbo && s.needed_by < begun",
            new: "s.state == SegmentState::Limbo && s.needed_by <= begun",
        }],
    },
    Mistake {
        name: "a segment freed by whatever checkpoint comes next",
        story: "One that began before it was emptied counts too.",
        edits: &[Edit { file: "segments.rs", old: "s.needed_by = begun;", new: "s.needed_by = begun.min(0);" }],
    },
    Mistake {
        name: "a repair at a start that fails, overlooked",
        story: "A record stays on one copy and is read; alone the other cache device would bring back what was there before.",
        edits: &[Edit {
            file: "recovery.rs",
            old: "    for m in write_all(core, repairs).await {\n        core.fail_member(m).await;\n    }\n",
            new: "    let _ = write_all(core, repairs).await;\n",
        }],
    },
    Mistake {
        name: "a flush at a start that fails, overlooked",
        story: "What a dead daemon left in the cache device's own cache is gone, and FLUSH says that it is durable.",
        edits: &[Edit {
            file: "recovery.rs",
            old: "            core.mark(Mark::MemberFailsAtStart);\n            core.fail_member(m).await;\n",
            new: "            let _ = m;\n",
        }],
    },
    Mistake {
        name: "an intent page that a cache device did not take, overlooked",
        story: "It does not know that the disk is newer: alone it would serve what it had before.",
        edits: &[Edit {
            file: "intent.rs",
            old: "                    core.mark(Mark::IntentFailsOnMember);\n                    core.fail_member_of(epoch, m).await;\n",
            new: "",
        }],
    },
    Mistake {
        name: "an intent page that a cache device did not flush, overlooked",
        story: "The same after a power cut.",
        edits: &[Edit {
            file: "intent.rs",
            old: "                core.fail_member_of(epoch, m).await;\n            }\n        }\n        settle",
            new: "            }\n        }\n        settle",
        }],
    },
    Mistake {
        name: "a repair that fails, overlooked",
        story: "A copy stays bad, and the pool believes in two: the other one's cache device dies.",
        edits: &[Edit {
            file: "fetch.rs",
            old: "                    core.mark(Mark::RepairFails);\n                    core.fail_member(bad.member).await;\n",
            new: "",
        }],
    },
    Mistake {
        name: "a cache device that does not take the superblock that it lacks, overlooked",
        story: "It fails a write, and counts as if it had not: what else it does not take nobody asks.",
        edits: &[Edit {
            file: "start.rs",
            old: "    for m in core.catch_up(elected, behind).await {\n        core.fail_member(m).await;\n    }\n",
            new: "    core.catch_up(elected, behind).await;\n",
        }],
    },
    Mistake {
        name: "a superblock over the only one that a cache device has",
        story: "Its newest was torn by a power cut, and the next one is written to the place of the one before it: another power cut.",
        edits: &[Edit { file: "start.rs", old: "core.catch_up(elected, behind).await", new: "Vec::new()" }],
    },
    Mistake {
        name: "a flush answered while membership is undecided",
        story: "A cache device has died and its leaving is not durable: FLUSH counts the other one alone, and the first comes back.",
        edits: &[Edit {
            file: "flush.rs",
            old: "    core.wait_settled().await;\n    if core.pool.borrow().stalled { Err",
            new: "    if core.pool.borrow().stalled { Err",
        }],
    },
    Mistake {
        name: "a durable write past the cache, answered while membership is undecided",
        story: "The cache devices have flushed, one of them dies while the disk still does: its leaving is not durable when the client is told.",
        edits: &[Edit {
            file: "write.rs",
            old: "end_since(on_disk, failures).await;\n    settled(core).await?;",
            new: "end_since(on_disk, failures).await;",
        }],
    },
    Mistake {
        name: "a scrub that reads one of two copies",
        story: "The other one is damaged, and nobody knows until it is the last.",
        edits: &[Edit {
            file: "scrub.rs",
            old: "        for member in members {\n",
            new: "        for member in members.into_iter().take(1) {\n",
        }],
    },
    Mistake {
        name: "a repair called done before it is flushed",
        story: "A scrub reports what it repaired; the power goes, and it is as damaged as before.",
        edits: &[Edit { file: "scrub.rs", old: "durable(core).await.map_err(|_| CommandError::NoMembers)", new: "Ok(())" }],
    },
    Mistake {
        name: "a flush that failed under a write, forgotten",
        story: "Another client's FLUSH was told of it; the write that was under way is acknowledged, and the next FLUSH calls it durable.",
        edits: &[Edit {
            file: "flusher.rs",
            old: "        if self.failures.get() != failures {\n            self.lose();",
            new: "        if false && self.failures.get() != failures {\n            self.lose();",
        }],
    },
    Mistake {
        name: "a flush that fails after a write was acknowledged, forgotten",
        story: "The write ended under the flush, and went with it; nobody is told, and the next FLUSH calls it durable.",
        edits: &[Edit { file: "flusher.rs", old: "if owed || this.owes.get() {", new: "if owed {" }],
    },
    Mistake {
        name: "a sweep that calls clean what was overwritten under it",
        story: "The overwrite failed half way through: the cache has the old data, and the disk some of both.",
        edits: &[Edit {
            file: "destage.rs",
            old: "        chunk.written.borrow_mut().retain(|b| !blocks.contains(b));\n",
            new: "",
        }],
    },
    Mistake {
        name: "an ordered overwrite that does not wait for what is being called clean",
        story: "It fails half way through, and then the marks are there: the cache has the old data, and the disk some of both.",
        edits: &[Edit {
            file: "destage.rs",
            old: "            if !chunk.marking.borrow().iter().any(|b| blocks.contains(b)) {",
            new: "            if true {",
        }],
    },
    Mistake {
        name: "errors read around in steps that are longer than a unit",
        story: "A record beside an unreadable sector is not seen, and is back when the sector has been written anew.",
        edits: &[Edit {
            file: "recovery.rs",
            old: "let starts: Vec<u32> = (from..capacity).step_by(unit as usize).collect();",
            new: "let unit = 8u32;\n    let starts: Vec<u32> = (from..capacity).step_by(unit as usize).collect();",
        }],
    },
    Mistake {
        name: "a bypass that does not wait for what is being appended",
        story: "The record gets onto the media behind it, with nothing to outdate it: the next start lays it over.",
        edits: &[Edit {
            file: "write.rs",
            old: "disk_ranges.lock(range.clone()).await;\n    wait_for_appends(core, volume, &blocks).await;\n",
            new: "disk_ranges.lock(range.clone()).await;\n",
        }],
    },
    Mistake {
        name: "an intent bit that counts though a leave has no votes",
        story: "The one that is gone does not have the bit, and no epoch says that it is gone: it comes back, is believed, and so is what it holds.",
        edits: &[Edit {
            file: "intent.rs",
            old: "    if core.joined_since(epoch) || core.pool.borrow().stalled {",
            new: "    if core.joined_since(epoch) {",
        }],
    },
    Mistake {
        name: "a detach that does not wait for requests",
        story: "The volume is gone and the disk somebody else's, and a write of ours lands on it.",
        edits: &[Edit { file: "volumes.rs", old: "    cancel.or(core, requests_end(v)).await?;\n", new: "" }],
    },
    Mistake {
        name: "a segment that nobody frees when its last read ends",
        story: "It was emptied while a read was in flight on it, and is forgotten: the pool has less room each time.",
        edits: &[Edit {
            file: "segments.rs",
            old: "if s.pins == 0 && s.live == 0 && s.state == SegmentState::Sealed {",
            new: "if false {",
        }],
    },
    Mistake {
        name: "a start without the votes",
        story: "One of two cache devices starts alone: the other one and the witness may have gone on without it.",
        edits: &[Edit {
            file: "election.rs",
            old: "if unknown > voters / 2 || present.is_empty() {",
            new: "if present.is_empty() {",
        }],
    },
    Mistake {
        name: "a cache device known by its number alone",
        story: "One that had left comes back, and is taken for the one that has its number now.",
        edits: &[Edit { file: "election.rs", old: "s.member == m && known(s, m) == known(&newest, m)", new: "s.member == m" }],
    },
    Mistake {
        name: "who attaches asks only once whether another one does",
        story: "Two attach one disk at the same time, each before the other one is there: what one volume writes the other one's cache does not know.",
        edits: &[Edit {
            file: "volumes.rs",
            old: "    is_alone(core, &new)?;\n    sets_aside()?;\n    core.volumes",
            new: "    sets_aside()?;\n    core.volumes",
        }],
    },
    Mistake {
        name: "clean data kept of a disk that is another one",
        story: "Nothing is dirty, so the volume is served; what was read from the other disk is shown.",
        edits: &[Edit {
            file: "comparison.rs",
            old: "        let _ = intent::ensure(core, v, &v.extent(), Bit::Intent, 0).await;\n        empty(core, v).await;\n",
            new: "",
        }],
    },
    Mistake {
        name: "clean data kept when the cache is switched off",
        story: "It is out of date as soon as somebody takes the cache devices away and writes.",
        edits: &[Edit {
            file: "volumes.rs",
            old: "    if mode == Mode::PassThrough {\n        drop_clean(core, v).await;\n    }\n",
            new: "",
        }],
    },
    Mistake {
        name: "an older intent page believed for a damaged one",
        story: "The newest one rots where no other cache device has it: what the older one does not say is taken for clean.",
        edits: &[Edit { file: "intent.rs", old: "        if !whole {\n", new: "        if newest.sequence == 0 {\n" }],
    },
];
