//! What is doubted of a volume, and no start may forget.

use super::Told;
use crate::mistakes::{Edit, Mistake};

/// The scenes of `crates/sim/tests/named/doubts.rs`.
pub const TOLD: &[Told] = &[
    ("doubts::a_flush_that_failed_before_the_daemon_ended_is_told_by_the_next_one", "a failed flush that no start has heard of"),
    (
        "doubts::what_a_failed_flush_took_along_is_not_trusted_by_a_later_life",
        "what a failed flush took along trusted by the next life",
    ),
    ("doubts::what_a_failed_flush_took_along_is_not_trusted_by_a_later_life", "bits that a failed flush does not keep"),
    (
        "doubts::a_detach_tells_of_a_flush_that_failed_and_goes_through_when_it_is_asked_again",
        "a detach that says nothing of a failed flush",
    ),
    ("doubts::the_loss_of_a_last_copy_is_told_to_each_flush_that_was_under_way", "a loss told to one flush of two"),
    (
        "doubts::a_volume_that_is_refused_does_not_keep_the_losses_of_others_counted",
        "losses that count for as long as any volume is refused",
    ),
    (
        "doubts::a_volume_that_may_lack_data_is_refused_until_it_is_given_up_and_no_other_is",
        "losses that count for as long as any volume is refused",
    ),
    (
        "doubts::a_volume_that_may_lack_data_is_refused_until_it_is_given_up_and_no_other_is",
        "a refused volume forgiven by the next checkpoint",
    ),
    ("doubts::a_disk_that_fails_flush_after_flush_does_not_wear_the_cache_devices_out", "superblocks for each flush that fails"),
    (
        "doubts::a_second_flush_that_fails_while_the_first_is_being_told_is_written_down_as_well",
        "what was written down a second ago taken for what the superblocks say",
    ),
    (
        "doubts::what_a_flush_takes_along_is_doubted_at_once_though_a_client_was_just_told_of_another",
        "what a failed flush takes along written down when it suits",
    ),
    ("doubts::a_stop_whose_flush_fails_leaves_word_of_it_and_does_the_rest", "a stop that ends with the first disk that fails"),
    ("doubts::a_failed_flush_is_told_to_each_flush_that_was_under_way", "a failed flush told to one of two"),
    (
        "doubts::a_failed_flush_is_told_to_the_flush_after_a_write_though_one_from_before_it_was_told",
        "what is to be told taken by a flush from before it",
    ),
    (
        "doubts::a_failed_flush_of_the_disk_is_not_told_again_for_what_the_cache_has_taken_meanwhile",
        "a failure of the disk told for what the cache has",
    ),
    (
        "doubts::the_daemons_own_flush_makes_durable_what_was_acknowledged_and_leaves_clients_to_be_told",
        "what is to be told taken by the daemon itself",
    ),
    ("doubts::a_stop_does_not_wait_for_a_disk_that_answers_nothing", "a stop that waits for each disk"),
    (
        "doubts::that_the_last_copies_are_gone_is_told_by_the_next_life_if_this_one_told_nobody",
        "last copies that are gone forgotten by a restart",
    ),
    (
        "doubts::that_the_last_copies_are_gone_is_told_to_the_flush_after_a_write_that_is_partly_in_the_log",
        "a part in the log that is not counted as acknowledged",
    ),
    (
        "doubts::what_was_lost_and_told_is_not_told_again_when_another_device_goes_and_nothing_with_it",
        "what was lost long since lost again",
    ),
    (
        "doubts::that_a_client_of_a_volume_without_a_disk_was_told_is_written_down",
        "what is doubted of volumes without a disk written down by chance",
    ),
    ("doubts::a_stop_does_not_wait_for_a_disk_that_answers_nothing", "disks flushed one after the other at a stop"),
    (
        "doubts::a_flush_that_failed_beside_what_the_log_took_whole_is_told_to_nobody",
        "a write that the log took whole taken for one on the disk",
    ),
];

/// Mistakes that only they need.
pub const MISTAKES: &[Mistake] = &[
    Mistake {
        name: "a failed flush that no start has heard of",
        story: "The disk fails a flush, and the daemon ends before a client was told: the next one's FLUSH calls durable what is gone.",
        edits: &[Edit {
            file: "volumes.rs",
            old: "Device::Backing(e.number), e.doubts.untold)",
            new: "Device::Backing(e.number), false)",
        }],
    },
    Mistake {
        name: "what a failed flush took along trusted by the next life",
        story: "It reads from the disk's cache what the disk will not keep, and calls it clean.",
        edits: &[Edit { file: "volumes.rs", old: "    if e.doubts.unkept {", new: "    if false && e.doubts.unkept {" }],
    },
    Mistake {
        name: "bits that a failed flush does not keep",
        story: "A later flush ends well, and the bits go, and clean copies of what the disk will not keep are trusted after a crash.",
        edits: &[Edit {
            file: "intent.rs",
            old: "        if self.failures.replace(failures) != failures {",
            new: "        if false && self.failures.replace(failures) != failures {",
        }],
    },
    Mistake {
        name: "a detach that says nothing of a failed flush",
        story: "A client's write is gone from the disk, and the last one who could hear of it hears that all is well.",
        edits: &[Edit {
            file: "volumes.rs",
            old: "    if v.disk_flusher.take_lost(v",
            new: "    if false && v.disk_flusher.take_lost(v",
        }],
    },
    Mistake {
        name: "a loss told to one flush of two",
        story: "The last copy of what both may cover is gone, and the second one says that all is durable.",
        edits: &[Edit { file: "flush.rs", old: " || losses != now;", new: ";" }],
    },
    Mistake {
        name: "losses that count for as long as any volume is refused",
        story: "One volume's disk was changed: a pool that has a whole copy of all the others' data does not start.",
        edits: &[Edit {
            file: "checkpoint.rs",
            old: "    if mended {",
            new: "    if mended && !volumes.iter().any(|v| v.refused.get()) {",
        }],
    },
    Mistake {
        name: "superblocks for each flush that fails",
        story: "A client that asks again and again is told each time, and that is written down each time, on all cache devices, for as long as the disk fails.",
        edits: &[Edit {
            file: "doubts.rs",
            old: "            if core.now() < due {",
            new: "            if false && core.now() < due {",
        }],
    },
    Mistake {
        name: "what was written down a second ago taken for what the superblocks say",
        story: "Somebody else has had a superblock written since; a second failed flush is not in any, and the next life's FLUSH calls durable what is gone.",
        edits: &[Edit {
            file: "doubts.rs",
            old: "    volume.doubts_told.set(doubts);",
            new: "    volume.doubts_told.set(Doubts { untold: doubts.untold || volume.doubts_told.get().untold, ..doubts });",
        }],
    },
    Mistake {
        name: "what a failed flush takes along written down when it suits",
        story: "A client was just told of it, and that may wait; what it took along is trusted by the next life.",
        edits: &[Edit {
            file: "doubts.rs",
            old: "volume.disk_flusher.news_until(due).await;",
            new: "core.exec.sleep(due - core.now()).await;",
        }],
    },
    Mistake {
        name: "a stop that ends with the first disk that fails",
        story: "Its failed flush is not in any superblock when the daemon is gone, and the others get no last checkpoint.",
        edits: &[Edit {
            file: "stop.rs",
            old: "        all_kept &= is_answered && is_kept.get() == Some(true);",
            new: "        if !is_answered || is_kept.get() != Some(true) {\n            return Err(CommandError::Disk);\n        }",
        }],
    },
    Mistake {
        name: "a failed flush told to one of two",
        story: "The one that was told had not asked for what the other did, who is told that it is durable.",
        edits: &[Edit {
            file: "flush.rs",
            old: "let lost = lost || lost_meanwhile;",
            new: "let lost = lost || lost_meanwhile && false;",
        }],
    },
    Mistake {
        name: "a stop that waits for each disk",
        story: "One answers nothing, and what the next life needs of the others is not written down.",
        edits: &[Edit {
            file: "stop.rs",
            old: "        if core.exec.is_disk_silent(",
            new: "        if false && core.exec.is_disk_silent(",
        }],
    },
    Mistake {
        name: "what is to be told taken by a flush from before it",
        story: "It does not cover the write that may be lost. The one that does says that all is durable.",
        edits: &[Edit {
            file: "flusher.rs",
            old: "if self.lost_at.get() > acknowledged {",
            new: "if false && self.lost_at.get() > acknowledged {",
        }],
    },
    Mistake {
        name: "what is to be told taken by the daemon itself",
        story: "It flushes a block device before it is removed, and no client hears of what may be lost.",
        edits: &[Edit { file: "engine.rs", old: "own_flush(core, v)", new: "flush(core, v)" }],
    },
    Mistake {
        name: "a failure of the disk told for what the cache has",
        story: "A client that has nothing at the disk is told that it failed, though another was told.",
        edits: &[Edit {
            file: "write.rs",
            old: "    volume.stats.borrow_mut().absorbed.add(bytes);\n",
            new: "    volume.stats.borrow_mut().absorbed.add(bytes);\n    volume.disk_flusher.acknowledging(volume.disk_flusher.failures());\n",
        }],
    },
    Mistake {
        name: "last copies that are gone forgotten by a restart",
        story: "The last copies of acknowledged data go, and the daemon ends before a client has flushed: the first FLUSH of the next one says that all is durable.",
        edits: &[Edit {
            file: "doubts.rs",
            old: "volume.disk_flusher.is_lost() || volume.owes_news()",
            new: "volume.disk_flusher.is_lost()",
        }],
    },
    Mistake {
        name: "a part in the log that is not counted as acknowledged",
        story: "A FLUSH from before a large write takes along what the next one is to say of the part of it that was in the log.",
        edits: &[Edit {
            file: "write.rs",
            old: "            if !rest.is_empty() {\n                volume.acknowledging(losses);\n",
            new: "            if false {\n                volume.acknowledging(losses);\n",
        }],
    },
    Mistake {
        name: "what was lost long since lost again",
        story: "Clients were told that last copies are gone. Each cache device that goes later, with nothing that is nowhere else, has them told again.",
        edits: &[Edit {
            file: "membership.rs",
            old: " && had_none.binary_search(&n).is_err()",
            new: " && had_none.len() <= had_none.len()",
        }],
    },
    Mistake {
        name: "what is doubted of volumes without a disk written down by chance",
        story: "A journal's client is told of a loss, and told again after each crash that comes before the next checkpoint.",
        edits: &[Edit {
            file: "volumes.rs",
            old: "    core.exec.spawn(doubts::keep(core.clone(), v.clone()));\n",
            new: "    if v.has_disk() {\n        core.exec.spawn(doubts::keep(core.clone(), v.clone()));\n    }\n",
        }],
    },
    Mistake {
        name: "disks flushed one after the other at a stop",
        story: "A path to sixty disks is gone: a stop waits ten seconds for each, and is killed before its checkpoint.",
        edits: &[Edit {
            file: "stop.rs",
            old: "            flushes.push((v, is_kept));",
            new: "            ends(core, &v, |_| is_kept.get().is_none()).await;\n            flushes.push((v, is_kept));",
        }],
    },
    Mistake {
        name: "a write that the log took whole taken for one on the disk",
        story: "A flush of the disk fails that no client's write is under. The next FLUSH tells of a loss that is none, and forced access fails.",
        edits: &[Edit { file: "write.rs", old: "    if !alone {", new: "    if !alone && false {" }],
    },
];
