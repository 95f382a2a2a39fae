//! Cache devices that cannot be read at a start.

use super::Told;
use crate::mistakes::{Edit, Mistake};

/// The scenes of `crates/sim/tests/named/starts.rs`.
pub const TOLD: &[Told] = &[
    ("starts::headers_that_cannot_be_read_for_a_moment", "what a start cannot read not asked for again"),
    ("starts::a_log_that_cannot_be_read_for_a_moment", "what a start cannot read not asked for again"),
    ("starts::a_bad_sector_in_the_log_costs_a_start_a_few_dozen_reads", "what could not be read whole read unit by unit"),
    ("starts::a_log_that_cannot_be_read_refuses_the_start", "a log that cannot be read taken for its end"),
    ("starts::headers_that_cannot_be_read_refuse_the_start", "headers that cannot be read taken for none"),
    ("starts::an_image_that_cannot_be_read_for_a_moment", "a page that cannot be read for a moment taken for lost"),
    ("starts::a_header_that_could_not_be_read_does_not_come_back", "a header that could not be read left as it is"),
    ("starts::a_record_that_could_not_be_read_does_not_come_back", "a unit of the log that could not be read left as it is"),
    (
        "starts::who_does_not_take_anew_what_it_could_not_read_leaves",
        "what a cache device does not take anew at a start, overlooked",
    ),
    (
        "starts::an_intent_page_that_could_not_be_read_does_not_come_back",
        "an intent page that nobody could read numbered from the beginning",
    ),
    (
        "starts::what_the_disk_has_is_not_hidden_by_an_older_record_when_the_newer_one_is_damaged",
        "a mark for what cannot be read taken for one of what is older",
    ),
    ("starts::one_that_is_silent_does_not_use_up_the_patience_with_the_other", "nobody waited for where one is missing"),
    (
        "starts::what_cannot_be_read_is_waited_for_where_one_that_is_missing_may_have_it",
        "what one that is missing may have, given up",
    ),
    ("starts::what_one_that_is_gone_for_good_may_have_had_is_refused", "what one that is gone may have had, overlooked"),
    (
        "starts::a_record_that_is_whole_on_neither_device_for_bad_sectors_refuses_the_start",
        "a record in two parts taken for a torn one",
    ),
    ("starts::a_records_header_that_is_whole_on_neither_device_refuses_the_start", "a header in two parts taken for none"),
    ("starts::a_bad_sector_does_not_use_up_the_patience_with_the_rest_of_the_log", "one patience for all of the log"),
    (
        "starts::what_one_that_is_gone_may_have_had_is_refused_by_the_next_start_too",
        "what one that is gone may have had, told too late",
    ),
    (
        "starts::what_one_that_is_gone_may_have_had_of_one_volume_is_not_held_against_another",
        "what one volume lacks held against all",
    ),
    ("starts::nobody_is_gone_and_nothing_is_refused", "what all that are there have, missed"),
    ("starts::a_drive_that_takes_long_to_say_that_it_cannot_is_not_asked_for_minutes", "patience by the number of questions"),
    ("starts::a_path_that_was_lost_to_all_gives_up_nothing_of_one", "cache devices asked one after the other"),
    ("starts::intent_pages_are_made_equal_when_a_start_has_come_through", "intent pages made equal under a start"),
    (
        "starts::what_is_dirty_in_an_image_is_known_to_a_start_that_cannot_read_the_log_behind_it",
        "a dirty bit cleared by what the log has said since",
    ),
    (
        "starts::what_a_start_finds_dirty_is_known_to_one_to_which_its_copies_come_late",
        "dirty bits that power took not set again",
    ),
    (
        "starts::a_start_soon_after_another_disk_was_taken_does_not_take_it_for_another_one_again",
        "what was cached of another disk let go of in memory alone",
    ),
    (
        "starts::a_checkpoint_under_way_when_another_disk_comes_does_not_bring_back_the_one_before",
        "bits of another disk that a checkpoint clears whose image has the one before",
    ),
    (
        "starts::a_disk_is_compared_without_the_cache_devices_where_checksums_do",
        "what is cached in part read to compare a disk, whatever is cached whole",
    ),
    ("starts::another_disk_is_told_from_the_right_one_by_what_is_cached_in_part", "a disk compared by whole pieces alone"),
    (
        "starts::a_disk_is_compared_by_the_pages_that_another_volume_has_read_too",
        "a page that another volume reads not waited for",
    ),
    (
        "starts::an_intent_page_that_one_device_could_not_read_does_not_come_back",
        "an intent page that one device could not read left as it is",
    ),
];

/// Mistakes that only they need.
pub const MISTAKES: &[Mistake] = &[
    Mistake {
        name: "what a start cannot read not asked for again",
        story: "A controller is reset while a start reads headers, or the log: a start that could go on a moment later is refused, or takes for its end what it has not seen.",
        edits: &[Edit {
            file: "patience.rs",
            old: "while !failed.is_empty() && self.may_come(core, m) {",
            new: "while false && !failed.is_empty() && self.may_come(core, m) {",
        }],
    },
    Mistake {
        name: "what could not be read whole read unit by unit",
        story: "A bad sector, or a lost read, costs thousands of reads for each segment of the log, and a start a minute.",
        edits: &[Edit {
            file: "patience.rs",
            old: "(0..units.len()).step_by(run.max(1)).flat_map(|n| parts(n..(n + run).min(units.len()))).collect();",
            new: "{\n            let _ = run;\n            (0..units.len()).map(|n| n..n + 1).collect()\n        };",
        }],
    },
    Mistake {
        name: "headers that cannot be read taken for none",
        story: "The segments that were opened last are not found, and what was acknowledged in them is gone.",
        edits: &[Edit { file: "recovery.rs", old: "    nowhere_else(core, &members, None)?;", new: "    let _ = &members;" }],
    },
    Mistake {
        name: "a log that cannot be read taken for its end",
        story: "The same of the log: what is behind is not looked at, and the next start finds it again, over what was written since.",
        edits: &[Edit {
            file: "recovery.rs",
            old: "if nowhere && header.class == Class::Mirrored {",
            new: "if false && nowhere && header.class == Class::Mirrored {",
        }],
    },
    Mistake {
        name: "a page that cannot be read for a moment taken for lost",
        story: "The same while it reads the image: where dirty data is cannot be known, until the pool is started once more.",
        edits: &[Edit {
            file: "image.rs",
            old: "may_come |= core.exec.attended() < begun + PATIENCE_NS",
            new: "may_come |= false && core.exec.attended() < begun + PATIENCE_NS",
        }],
    },
    Mistake {
        name: "a header that could not be read left as it is",
        story: "The other device has no header of the segment: it is not there. At the next start it is, with what nobody acknowledged, over what was read since.",
        edits: &[Edit {
            file: "recovery.rs",
            old: "    let mut anew = headers_anew(core, &found, &unreadable);\n",
            new: "    let _ = (headers_anew::<B>, unreadable);\n    let mut anew = Vec::new();\n",
        }],
    },
    Mistake {
        name: "a unit of the log that could not be read left as it is",
        story: "The same of a record in a segment that is there.",
        edits: &[Edit {
            file: "recovery.rs",
            old: "            anew.push((c.place, *start,",
            new: "            drop((c.place, *start,",
        }],
    },
    Mistake {
        name: "what a cache device does not take anew at a start, overlooked",
        story: "It can neither be read nor written there, and counts as a copy of what it has given up.",
        edits: &[Edit {
            file: "recovery.rs",
            old: "if core.pool.borrow().in_sync().any(|other| other != m) {",
            new: "if false && core.pool.borrow().in_sync().any(|other| other != m) {",
        }],
    },
    Mistake {
        name: "an intent page that nobody could read numbered from the beginning",
        story: "All its bits count as set, and it is written so. But its number is smaller than that of what could not be read: the next start believes that, and a clean copy of what the disk has had newer since.",
        edits: &[Edit {
            file: "intent.rs",
            old: "newest.sequence = newest.sequence.max(number(core) + newest.sequence % 2);",
            new: "newest.sequence = newest.sequence.max(0 * number(core) + newest.sequence % 2);",
        }],
    },
    Mistake {
        name: "a mark for what cannot be read taken for one of what is older",
        story: "The older record is called clean and read, and the disk has the newer data.",
        edits: &[Edit { file: "loading.rs", old: ".filter(|(_, version)| *version <= e.version)", new: ".filter(|_| false)" }],
    },
    Mistake {
        name: "nobody waited for where one is missing",
        story: "One device is silent, and a read of the other that fails once is final: what it alone could tell of is not there.",
        edits: &[Edit {
            file: "patience.rs",
            old: "let may_come = waited(",
            new: "let may_come = core.pool.borrow().missing.is_empty() && waited(",
        }],
    },
    Mistake {
        name: "what one that is missing may have, given up",
        story: "It could be read there. The one that cannot read it becomes the only one, without.",
        edits: &[Edit {
            file: "recovery.rs",
            old: "} else if !missing.is_empty() {",
            new: "} else if false && !missing.is_empty() {",
        }],
    },
    Mistake {
        name: "what one that is gone may have had, overlooked",
        story: "Nobody knows what it was, and the disk's older data is served for it.",
        edits: &[Edit { file: "recovery.rs", old: "        lacks.of.extend(volume);", new: "        let _ = &mut lacks.of;" }],
    },
    Mistake {
        name: "a record in two parts taken for a torn one",
        story: "Each sector of it can be read somewhere, and zeroes are written over both copies.",
        edits: &[Edit {
            file: "recovery.rs",
            old: "if is_mirrored && copies.iter().all(lacks)",
            new: "if false && is_mirrored && copies.iter().all(lacks)",
        }],
    },
    Mistake {
        name: "a header in two parts taken for none",
        story: "The same of what says what is in a record: it is stepped over.",
        edits: &[Edit {
            file: "recovery.rs",
            old: "header_at(c, from, at)).max()",
            new: "header_at(c, from, at)).max().filter(|_| false)",
        }],
    },
    Mistake {
        name: "one patience for all of the log",
        story: "A bad sector uses it up, and what cannot be read for a moment behind it is written over with zeroes.",
        edits: &[Edit {
            file: "recovery.rs",
            old: "        patience.anew();\n        let of_volume",
            new: "        let of_volume",
        }],
    },
    Mistake {
        name: "what one that is gone may have had, told too late",
        story: "Zeroes are in its place, and a daemon that dies before its first checkpoint has told nobody what that means.",
        edits: &[Edit {
            file: "start.rs",
            old: "        refuse_what_may_lack(core);\n        membership",
            new: "        crate::membership",
        }],
    },
    Mistake {
        name: "what one volume lacks held against all",
        story: "Volumes that have all their data are refused for good.",
        edits: &[Edit { file: "recovery.rs", old: "lacks.of_all |= volume.is_none();", new: "lacks.of_all = true;" }],
    },
    Mistake {
        name: "what all that are there have, missed",
        story: "A bad sector where nothing is, and an option that was given to be on the safe side: all volumes are refused.",
        edits: &[Edit {
            file: "recovery.rs",
            old: "if missing.is_empty() && left == 0 {",
            new: "if false && missing.is_empty() && left == 0 {",
        }],
    },
    Mistake {
        name: "patience by the number of questions",
        story: "A drive that takes seconds for each answer holds up a start for minutes, by one bad sector.",
        edits: &[Edit {
            file: "patience.rs",
            old: "or_default() += core.exec.attended() - since;",
            new: "or_default() += AGAIN_NS + 0 * since;",
        }],
    },
    Mistake {
        name: "cache devices asked one after the other",
        story: "A path to two cache devices is lost for seconds. The first is given up before the second is asked, which answers by then: what the first alone has is written over with zeroes.",
        edits: &[
            Edit {
                file: "patience.rs",
                old: "for (n, part) in all(asked).await.into_iter().flatten() {",
                new: "let (asked, mut found): (Vec<_>, Vec<_>) = (asked, Vec::new());\n        for one in asked {\n            found.push(one.await);\n        }\n        let _ = all(Vec::<core::future::Ready<()>>::new()).await;\n        for (n, part) in found.into_iter().flatten() {",
            },
            Edit {
                file: "patience.rs",
                old: "if given_up.len() < failing.len() && ",
                new: "if given_up.len() > failing.len() && ",
            },
        ],
    },
    Mistake {
        name: "intent pages made equal under a start",
        story: "A device that does not take one while the start raises its epochs is out from then on, and no epoch says so: it may start alone later.",
        edits: &[Edit {
            file: "membership.rs",
            old: "    if !core.pool.borrow().starting {\n        // One",
            new: "    if !core.pool.borrow().starting || true {\n        // One",
        }],
    },
    Mistake {
        name: "a dirty bit cleared by what the log has said since",
        story: "An image has something dirty that the log behind it calls clean. A start that cannot read that log takes the image's word, and the disk gets older data back.",
        edits: &[Edit {
            file: "intent.rs",
            old: "self.is_set(*r, Bit::Dirty) && !dirty(*r)).collect()",
            new: "self.is_set(*r, Bit::Dirty) && (true || !dirty(*r))).collect()",
        }],
    },
    Mistake {
        name: "dirty bits that power took not set again",
        story: "A record outlives a power cut and its region's dirty bit does not. The next start goes on without the two devices that have the only copies of it.",
        edits: &[Edit { file: "volumes.rs", old: "    intent::own_up(core, &v).await;\n", new: "" }],
    },
    Mistake {
        name: "a page that another volume reads not waited for",
        story: "The page that tells what is cached of a disk is being read for another volume: there is nothing to judge by, and another disk's data is served.",
        edits: &[Edit {
            file: "loading.rs",
            old: "what it says is wanted here as well.\n                wait.await;\n",
            new: "what it says is wanted here as well.\n                drop(wait);\n                break;\n",
        }],
    },
    Mistake {
        name: "what is cached in part read to compare a disk, whatever is cached whole",
        story: "A cache device is silent that has the only copy: the volume waits for it, though others tell whose the disk is.",
        edits: &[Edit { file: "comparison.rs", old: "    if verdicts.is_empty() {", new: "    if true {" }],
    },
    Mistake {
        name: "a disk compared by whole pieces alone",
        story: "Of what is cached of another disk each piece is covered in part: there is nothing to judge by, and it is served.",
        edits: &[Edit {
            file: "comparison.rs",
            old: "if piece.dirty() || !is_its ||",
            new: "if piece.dirty() || piece.zeroes() || !is_whole(piece) || !is_its ||",
        }],
    },
    Mistake {
        name: "what was cached of another disk let go of in memory alone",
        story: "Another disk is taken, and the daemon dies before the next checkpoint: the next start finds the old one's data in the image, and takes the right disk for another one.",
        edits: &[Edit {
            file: "comparison.rs",
            old: "        let _ = intent::ensure(core, v, &v.extent(), Bit::Intent, 0).await;\n",
            new: "",
        }],
    },
    Mistake {
        name: "bits of another disk that a checkpoint clears whose image has the one before",
        story: "The checkpoint began while they were being set. Behind it nothing tells the next start that what its image has clean is of another disk.",
        edits: &[Edit {
            file: "comparison.rs",
            old: "        let _changed = DiskWrite::begin(core, v, &v.extent());\n",
            new: "        drop(DiskWrite::begin(core, v, &(0..1)));\n",
        }],
    },
    Mistake {
        name: "an intent page that one device could not read left as it is",
        story: "It was newer, and was not written to all. A later start can read it, and believes clean data in a region that was written since.",
        edits: &[Edit { file: "intent.rs", old: "whole && all_read && holders", new: "whole && (all_read || true) && holders" }],
    },
];
