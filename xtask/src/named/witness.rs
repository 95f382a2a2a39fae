//! Who may start a pool, and who may not.

use super::Told;
use crate::mistakes::{Edit, Mistake};

/// The scenes of `crates/sim/tests/named/witness.rs`.
pub const TOLD: &[Told] = &[
    ("witness::a_witness_from_before_the_last_start_has_no_vote", "a witness heard that knows less"),
    (
        "witness::a_device_whose_number_another_one_has_now_does_not_have_the_vote_for_that_one",
        "a witness that knows cache devices by their numbers",
    ),
    (
        "witness::a_witness_that_alone_has_heard_of_a_start_does_not_ask_for_a_device_that_is_lost",
        "a witness that asks for whom nobody has put out",
    ),
    ("witness::an_epoch_raised_in_vain_is_not_newer_than_one_agreed_on_however_high_it_is", "an epoch known by its number alone"),
    (
        "witness::what_the_witness_alone_was_told_does_not_stop_those_who_went_on_without_it",
        "an epoch that the absent witness may know",
    ),
    ("witness::two_lives_that_raised_the_same_epoch_are_told_apart_by_the_witness", "an epoch that the witness contradicts"),
    ("witness::a_witness_that_could_not_be_told_is_told_later", "a witness that is told once"),
    ("witness::a_witness_that_was_told_later_votes_when_a_device_is_lost", "a witness that is told once"),
    (
        "witness::a_device_that_is_missing_at_a_start_has_a_vote_when_another_fails_in_it",
        "a vote that one who is missing does not have",
    ),
    (
        "witness::a_device_that_fails_in_a_start_in_which_another_is_missing_is_not_voted_out",
        "a device voted out by a start that does not come to anything",
    ),
    ("witness::devices_that_all_fail_in_a_start_are_not_voted_out_even_if_nothing_is_dirty", "all voted out by a start"),
    ("witness::an_epoch_that_the_new_device_alone_was_told_of_is_not_agreed_on", "an epoch agreed on by whoever was not asked"),
    (
        "witness::a_superblock_that_is_torn_when_a_device_joins_is_not_the_newest_that_the_others_had",
        "a number of superblocks left out",
    ),
    ("witness::a_witness_is_never_written_over_the_newest_that_it_knows", "a witness written over its newest record"),
    ("witness::a_device_whose_removal_is_not_agreed_on_keeps_its_superblocks", "a device wiped whatever became of its removal"),
    ("witness::the_witness_is_not_told_of_an_epoch_that_nobody_can_agree_on", "a witness told of what nobody can agree on"),
    ("witness::a_witness_is_not_outvoted_by_an_epoch_that_was_raised_in_vain", "a witness outvoted by an epoch in vain"),
    ("witness::a_witness_is_told_who_was_in_sync_when_it_began_to_be_told", "a witness told of who fails while it is told"),
    (
        "witness::a_device_that_fails_at_the_very_end_of_a_start_is_not_voted_out_with_the_last_copy",
        "a last copy voted out at the end of a start",
    ),
    ("witness::nothing_is_written_to_a_witness_that_a_late_write_could_land_on", "a witness written where a late write may land"),
    ("witness::the_only_cache_device_that_is_left_starts_without_the_witness", "a majority where all are there"),
    ("witness::cache_devices_that_all_fail_for_a_moment_are_not_voted_out", "all cache devices voted out"),
    (
        "witness::cache_devices_that_all_fail_for_a_moment_are_not_voted_out",
        "a bit that nobody has to hold while all may come back",
    ),
    ("witness::a_device_that_is_to_be_removed_stays_where_the_votes_are_too_few_by_then", "votes that are asked for once"),
    (
        "witness::devices_whose_numbers_others_have_now_are_not_those_that_the_witness_asks_for",
        "old members taken for those that have their numbers",
    ),
    ("witness::who_joins_a_pool_that_all_have_left_is_not_asked_for_their_image", "an image that nobody has any more"),
    ("witness::a_removal_asks_the_witness_for_no_less_than_it_will_need", "a witness that is asked whether it flushes"),
    (
        "witness::a_start_in_which_all_fail_does_not_call_damaged_what_it_could_not_ask_for",
        "what could not be asked for called damaged",
    ),
    ("witness::nobody_joins_a_pool_whose_devices_have_all_failed_for_a_moment", "a join into a pool that has stalled"),
    ("witness::a_device_that_nobody_can_agree_on_does_not_join_an_empty_pool", "a join that nobody can vote for"),
    (
        "witness::a_start_waits_for_the_only_copy_though_all_was_clean_when_its_twin_was_missed",
        "nothing dirty taken for all mirrored",
    ),
    (
        "witness::a_device_that_was_given_no_intent_page_yet_does_not_say_that_nothing_is_dirty",
        "a blank page that says that nothing is dirty",
    ),
    ("witness::a_witness_that_was_slow_once_has_its_vote_again", "a witness doubted for ever"),
    (
        "witness::who_joins_a_pool_that_nothing_dirty_has_left_has_all_there_is",
        "one that joins an empty pool counted as lacking copies",
    ),
    (
        "witness::what_a_slow_witness_took_late_is_durable_before_the_other_record_is_written_over",
        "a record in the witness's cache taken for its newest",
    ),
    ("witness::two_epochs_that_nobody_agreed_on_do_not_stop_those_who_are_all_there", "an epoch in vain taken for the newest"),
    ("witness::an_epoch_that_nobody_agreed_on_says_whom_it_was_to_remove", "an epoch that does not say whom it removes"),
];

/// Scenes of it that no mistake has, with the reason.
#[cfg(test)]
pub const UNTOLD: &[Told] = &[(
    "witness::a_device_that_failed_while_it_was_being_removed_is_not_wiped_where_nobody_agreed",
    "four places refuse it by now where the pool has stalled: what is emptied, the checkpoint, the superblock behind the removal, and who forgets it",
)];

/// Mistakes that only they need.
pub const MISTAKES: &[Mistake] = &[
    Mistake {
        name: "a witness heard that knows less",
        story: "A copy of the witness from before cache device 1 left makes two votes of three with that one, and its old data goes over the disk.",
        edits: &[Edit { file: "election.rs", old: "is_some_and(|w| w.epoch >= newest.epoch);", new: "is_some();" }],
    },
    Mistake {
        name: "a witness that knows cache devices by their numbers",
        story: "Another device has the number of one that has left, which comes back alone, and is in sync by its number.",
        edits: &[Edit {
            file: "format/witness.rs",
            old: "self.numbers == other.numbers && (",
            new: "self.numbers == other.numbers && (true || ",
        }],
    },
    Mistake {
        name: "a witness that asks for whom nobody has put out",
        story: "A start had told the witness and died; a cache device is lost then, and the witness asks for all that were in sync.",
        edits: &[Edit {
            file: "election.rs",
            old: "w.epoch > newest.epoch && !w.in_sync.agrees_with(&newest.in_sync())",
            new: "w.epoch > newest.epoch",
        }],
    },
    Mistake {
        name: "an epoch known by its number alone",
        story: "One raised in vain on a cache device that was away since has the higher number, and what the others acknowledged is stale.",
        edits: &[Edit {
            file: "format/superblock.rs",
            old: "(self.agreed, self.epoch, self.sequence)",
            new: "(0, self.epoch, self.sequence)",
        }],
    },
    Mistake {
        name: "an epoch that the absent witness may know",
        story: "The witness alone was told of an epoch, in vain. A start without it raises the same number, and when it is back it contradicts all of them.",
        edits: &[Edit { file: "election.rs", old: "const BEYOND: u64 = 1 << 20;", new: "const BEYOND: u64 = 0;" }],
    },
    Mistake {
        name: "a witness that is told once",
        story: "Its file system was full for a moment: at the next start its vote is missing, months later.",
        edits: &[Edit {
            file: "membership.rs",
            old: "            self.exec.spawn(tell_witness(self.clone()));\n",
            new: "            let _ = tell_witness(self.clone());\n",
        }],
    },
    Mistake {
        name: "a vote that one who is missing does not have",
        story: "Another cache device fails while a pool starts without one: two votes of three, and the two that are away have two of four.",
        edits: &[Edit {
            file: "core.rs",
            old: ".chain(self.missing.iter().copied())",
            new: ".chain(self.missing.iter().copied().take(0))",
        }],
    },
    Mistake {
        name: "a device voted out by a start that does not come to anything",
        story: "It fails for a moment while another is missing, and the start is refused; what both have is never asked for again.",
        edits: &[Edit { file: "membership.rs", old: "        if self.pool.borrow().starting {\n", new: "        if false {\n" }],
    },
    Mistake {
        name: "all voted out by a start",
        story: "A controller fails all writes for a moment in a start, nothing is dirty, and no start takes the pool any more.",
        edits: &[Edit {
            file: "membership.rs",
            old: "(why == Why::Starts || core.may_be_needed());",
            new: "core.may_be_needed();",
        }],
    },
    Mistake {
        name: "an epoch agreed on by whoever was not asked",
        story: "A new device fails the superblock with which it was to join, and nobody else was given it: that counts as all having it.",
        edits: &[Edit {
            file: "membership.rs",
            old: "{ reaches_all && agrees(&failed, voted) };",
            new: "{ !hopeless && agrees(&failed, voted) };",
        }],
    },
    Mistake {
        name: "a number of superblocks left out",
        story: "What all are given when one joins goes where they have their newest one, and is torn there.",
        edits: &[Edit {
            file: "membership.rs",
            old: "        let reaches_all = !hopeless && failed.is_empty();\n",
            new: "        let reaches_all = !hopeless && failed.is_empty();\n        self.pool.borrow_mut().sequence += u64::from(joins.is_some());\n",
        }],
    },
    Mistake {
        name: "a witness written over its newest record",
        story: "It is torn there, and what is left of the witness makes two votes with a device that has left.",
        edits: &[Edit { file: "membership.rs", old: "let slot = (newest + 1) % WITNESS_SLOTS;", new: "let slot = newest;" }],
    },
    Mistake {
        name: "a device wiped whatever became of its removal",
        story: "The witness goes away in the middle of it: the pool stalls, and has no majority any more at the next start.",
        edits: &[
            Edit {
                file: "membership.rs",
                old: "            change(core.clone(), before, Why::Retires(member)).await;\n",
                new: "            change(core.clone(), before, Why::Retires(member)).await;\n            return Ok(());\n",
            },
            Edit {
                file: "joining.rs",
                old: "    if core.pool.borrow().members[usize::from(member)].id != [0; 16] {",
                new: "    if false && core.pool.borrow().members[usize::from(member)].id != [0; 16] {",
            },
        ],
    },
    Mistake {
        name: "a witness told of what nobody can agree on",
        story: "One of four is left and stalls; the other three come back without it, and the witness asks for that one.",
        edits: &[
            Edit { file: "membership.rs", old: "votes && may_agree(true) && joins.is_none()", new: "votes && joins.is_none()" },
            Edit {
                file: "election.rs",
                old: "if !are_known || !all_here && !in_vain {",
                new: "if !all_here && (!in_vain || true) {",
            },
        ],
    },
    Mistake {
        name: "a witness outvoted by an epoch in vain",
        story: "Its word is weighed against the votes of an epoch that a crash left on two devices, and that nobody agreed on.",
        edits: &[Edit {
            file: "election.rs",
            old: "newest.agreed == newest.epoch && !needed.is_empty()",
            new: "!needed.is_empty()",
        }],
    },
    Mistake {
        name: "a witness told of who fails while it is told",
        story: "It is told that a device is out in an epoch in which it is not, and all devices contradict it at the next start.",
        edits: &[Edit {
            file: "membership.rs",
            old: "        let Some(newest) = self.newest_of_witness().await else { return false };\n",
            new: "        let Some(newest) = self.newest_of_witness().await else { return false };\n        let of = |pool: &crate::core::Pool| InSync::of(pool.in_sync().map(|m| (m, pool.members[usize::from(m)].id)));\n        let record = WitnessRecord { in_sync: of(&self.pool.borrow()), ..record };\n",
        }],
    },
    Mistake {
        name: "a last copy voted out at the end of a start",
        story: "One is missing, which is one too few to be refused; another fails the superblock of the start, and both had what is dirty.",
        edits: &[Edit { file: "membership.rs", old: "let too_many = why == Why::Starts &&", new: "let too_many = false &&" }],
    },
    Mistake {
        name: "a witness written where a late write may land",
        story: "A write that was given up lands over the next one, and what the witness knew of who left is gone.",
        edits: &[Edit {
            file: "membership.rs",
            old: "            WitnessSlot::InDoubt if self.exec.witness_owes() => return None,\n",
            new: "            WitnessSlot::InDoubt if false && self.exec.witness_owes() => return None,\n",
        }],
    },
    Mistake {
        name: "a majority where all are there",
        story: "The only cache device of a pool is there, and has one vote of two: it waits for a witness that cannot know better.",
        edits: &[Edit {
            file: "membership.rs",
            old: "            all || votes_without",
            new: "            false && all || votes_without",
        }],
    },
    Mistake {
        name: "all cache devices voted out",
        story: "A controller fails all of them for a moment, and what is dirty on them is never asked for again.",
        edits: &[Edit {
            file: "membership.rs",
            old: "(why == Why::Starts || core.may_be_needed());",
            new: "why == Why::Starts;",
        }],
    },
    Mistake {
        name: "a bit that nobody has to hold while all may come back",
        story: "All cache devices have failed, and a write goes past what they have clean; the next start takes it for the disk's.",
        edits: &[Edit {
            file: "intent.rs",
            old: "        if core.pool.borrow().stalled || intent.ended.get() {\n            return false;\n",
            new: "        if core.pool.borrow().stalled && core.pool.borrow().in_sync().next().is_some() || intent.ended.get() {\n            return false;\n",
        }],
    },
    Mistake {
        name: "votes that are asked for once",
        story: "A cache device is emptied for hours, and the witness goes away meanwhile: its removal stalls the pool.",
        edits: &[Edit {
            file: "membership.rs",
            old: "        if !core.would_have_votes(&rest).await {\n",
            new: "        if false && !core.would_have_votes(&rest).await {\n",
        }],
    },
    Mistake {
        name: "old members taken for those that have their numbers",
        story: "All were replaced; the old ones start with the witness that asks for the new ones, and their old data goes over the disk.",
        edits: &[Edit { file: "election.rs", old: "if !are_known || !all_here", new: "if !all_here" }],
    },
    Mistake {
        name: "an image that nobody has any more",
        story: "The first to join after the last has left is given a superblock that names the others' checkpoint.",
        edits: &[Edit {
            file: "membership.rs",
            old: "            pool.checkpoint.pages = 0;\n            pool.checkpoint.members.clear();\n",
            new: "",
        }],
    },
    Mistake {
        name: "a witness that is asked whether it flushes",
        story: "It does, and takes no write: a removal that it has to vote for stalls the pool.",
        edits: &[Edit {
            file: "membership.rs",
            old: "                false => self.tell_now().await,",
            new: "                false => self.exec.io(Device::Witness, DeviceOp::Flush).await.is_ok(),",
        }],
    },
    Mistake {
        name: "what could not be asked for called damaged",
        story: "All fail for a moment, and an operator is told that the checkpoint is damaged everywhere.",
        edits: &[Edit {
            file: "start.rs",
            old: "Err(_) if core.pool.borrow().stalled => return Err(CommandError::Start",
            new: "Err(_) if false => return Err(CommandError::Start",
        }],
    },
    Mistake {
        name: "a join into a pool that has stalled",
        story: "The new one and the witness agree on a pool without those that have what is dirty, and are newer from then on.",
        edits: &[Edit {
            file: "membership.rs",
            old: "    if core.pool.borrow().stalled {\n        core.mark(Mark::JoinsTooLate);",
            new: "    if false && core.pool.borrow().stalled {\n        core.mark(Mark::JoinsTooLate);",
        }],
    },
    Mistake {
        name: "a join that nobody can vote for",
        story: "All of none are there: it is tried without the witness, and the pool stalls for what was only a wish.",
        edits: &[Edit {
            file: "membership.rs",
            old: "let all = !before.is_empty() && before.iter().all(|m| members.contains(m));",
            new: "let all = before.iter().all(|m| members.contains(m));",
        }],
    },
    Mistake {
        name: "nothing dirty taken for all mirrored",
        story: "With one device of two there is nothing dirty for a moment, and that a copy is missing is forgotten: a start without the next only copy goes on.",
        edits: &[Edit {
            file: "checkpoint.rs",
            old: "pool.left = pool.copies.saturating_sub(in_sync.len() as u8);",
            new: "pool.left = 0;",
        }],
    },
    Mistake {
        name: "a blank page that says that nothing is dirty",
        story: "It was on its way to a device that had just joined; a start with that one alone votes out the one that has what is dirty.",
        edits: &[Edit { file: "intent.rs", old: "whole |= told > 0 && told + blank == 2;", new: "whole |= told + blank == 2;" }],
    },
    Mistake {
        name: "a witness doubted for ever",
        story: "What it owed it has answered, and it is not asked again: the next device to fail stalls the pool.",
        edits: &[Edit {
            file: "membership.rs",
            old: "WitnessSlot::InDoubt if self.exec.witness_owes() =>",
            new: "WitnessSlot::InDoubt if true || self.exec.witness_owes() =>",
        }],
    },
    Mistake {
        name: "one that joins an empty pool counted as lacking copies",
        story: "Those that left had nothing that counts. The next start refuses what the new one has whole.",
        edits: &[Edit { file: "membership.rs", old: "if nothing_is_dirty(core) {", new: "if false && nothing_is_dirty(core) {" }],
    },
    Mistake {
        name: "a record in the witness's cache taken for its newest",
        story: "The durable one is written over. Without power the witness knows neither, and who has left has its old vote.",
        edits: &[Edit {
            file: "membership.rs",
            old: "WitnessSlot::InDoubt if self.exec.io(Device::Witness, DeviceOp::Flush).await.is_err() =>",
            new: "WitnessSlot::InDoubt if false =>",
        }],
    },
    Mistake {
        name: "an epoch in vain taken for the newest",
        story: "Two starts have told some of other epochs, and died before anybody agreed: all devices and the witness are there, and no start goes on.",
        edits: &[Edit { file: "election.rs", old: ".filter(heard).filter(descends)", new: ".filter(heard)" }],
    },
    Mistake {
        name: "an epoch that does not say whom it removes",
        story: "A removal that one device has heard of died with the daemon; another start told the witness of another epoch: no start goes on, with all there.",
        edits: &[Edit {
            file: "membership.rs",
            old: "if stays { MemberState::InSync } else { MemberState::Out };\n",
            new: "if stays { MemberState::InSync } else { MemberState::Out };\n                pool.members[usize::from(goes)].id = [0; 16];\n",
        }],
    },
];
