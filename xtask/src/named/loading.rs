//! A start whose map is read while requests are answered.

use super::Told;
use crate::mistakes::{Edit, Mistake};

/// The scenes of `crates/sim/tests/named/loading.rs`.
pub const TOLD: &[Told] = &[
    ("loading::a_request_waits_for_the_page_that_tells_of_it", "a request that does not wait for the map"),
    (
        "loading::a_segment_is_not_empty_as_long_as_a_page_may_name_more_of_it",
        "a segment emptied before all that names it is read",
    ),
    ("loading::what_the_log_let_go_of_hides_what_was_there_before", "the log's marks heeded before the image is there"),
    ("loading::nothing_is_destaged_before_it_is_known_what_is_outdated", "a sweep before the map is known"),
    ("loading::nothing_is_brought_over_what_is_not_known", "a neighbourhood brought before the map is known"),
    ("loading::what_left_with_a_member_hides_what_was_there_before", "what left with a member let go before the map is known"),
    ("loading::what_lacks_a_copy_is_told_before_it_is_known", "only what is known told to lack a copy"),
    ("loading::a_flush_says_that_copies_are_gone_of_what_is_not_known", "copies lost of what is not known, and nobody told"),
    ("loading::a_stop_does_not_wait_for_the_map", "a stop that waits for a checkpoint which cannot be"),
    ("loading::what_a_damaged_page_tells_of_fails_until_the_page_is_back", "a damaged page taken for one that says nothing"),
    ("loading::where_no_space_can_be_won_a_write_that_needs_some_fails", "marks that wait for space which never comes"),
    ("loading::what_is_to_be_done_when_all_is_known_is_done_in_turns", "all segments packed at once when the map is read"),
];

/// Mistakes that only they need.
pub const MISTAKES: &[Mistake] = &[
    Mistake {
        name: "a request that does not wait for the map",
        story: "What is dirty and on a page that is not read yet is taken for missing: the disk has older data.",
        edits: &[Edit {
            file: "engine.rs",
            old: "        if !core.is_loaded.get() {\n            loading::known(",
            new: "        if false {\n            loading::known(",
        }],
    },
    Mistake {
        name: "a segment emptied before all that names it is read",
        story: "What is known of a segment is written again, and it is freed; a page that comes later names data in it.",
        edits: &[
            Edit { file: "recovery.rs", old: "                    pins: 1,\n", new: "                    pins: 0,\n" },
            Edit { file: "loading.rs", old: "            segments.unpin(*n);\n", new: "" },
        ],
    },
    Mistake {
        name: "the log's marks heeded before the image is there",
        story: "Zeroes that are clean are let go, and what the image has under them comes to light, as clean.",
        edits: &[Edit {
            file: "loading.rs",
            old: "    // All there is is known.\n    if loading.unread.borrow().is_empty() {\n",
            new: "    {\n",
        }],
    },
    Mistake {
        name: "a sweep before the map is known",
        story: "A dirty block that the log says is outdated is written over what came after it on the disk.",
        edits: &[Edit {
            file: "destage.rs",
            old: "    if loading::wait(&core).await.is_err() {\n        return;\n    }\n",
            new: "",
        }],
    },
    Mistake {
        name: "a neighbourhood brought before the map is known",
        story: "The disk's older data is brought as the newest of what is dirty, and not known yet.",
        edits: &[Edit { file: "around.rs", old: "    if !core.is_loaded.get() || ", new: "    if " }],
    },
    Mistake {
        name: "what left with a member let go before the map is known",
        story: "Clean data whose one copy is gone is let go, and what the image has under it comes to light: it is older.",
        edits: &[Edit {
            file: "membership.rs",
            old: "    if loading::wait(&core).await.is_err() {\n        return;\n    }\n",
            new: "",
        }],
    },
    Mistake {
        name: "only what is known told to lack a copy",
        story: "Before the map is read nothing seems to lack a copy: an operator pulls the next cache device.",
        edits: &[Edit {
            file: "status.rs",
            old: "pool.is_in_sync(m), !core.is_loaded.get())",
            new: "pool.is_in_sync(m), false)",
        }],
    },
    Mistake {
        name: "copies lost of what is not known, and nobody told",
        story: "All copies of acknowledged data go while the map is read, and the next FLUSH says that all is well.",
        edits: &[Edit {
            file: "membership.rs",
            old: "s.dirty > 0 || !core.is_loaded.get() && s.class == Class::Mirrored;",
            new: "s.dirty > 0;",
        }],
    },
    Mistake {
        name: "a stop that waits for a checkpoint which cannot be",
        story: "None is taken before the map is known: the stop waits for as long as that takes, and for ever where it cannot be.",
        edits: &[Edit {
            file: "stop.rs",
            old: "    if !core.is_loaded.get() {\n        // No checkpoint",
            new: "    if false {\n        // No checkpoint",
        }],
    },
    Mistake {
        name: "a damaged page taken for one that says nothing",
        story: "What it had told of is read from the disk, which is older, and written past what nobody knows to be there.",
        edits: &[Edit {
            file: "loading.rs",
            old: "            return Err(RequestError::Io);\n",
            new: "            return Ok(());\n",
        }],
    },
    Mistake {
        name: "marks that wait for space which never comes",
        story: "A page of the image cannot be had, and no space is won: a write waits for ever, and the end of the daemon with it.",
        edits: &[Edit {
            file: "log.rs",
            old: "if core.loading().is_some_and(|loading| loading.lost_page.is_some()) {",
            new: "if false {",
        }],
    },
    Mistake {
        name: "all segments packed at once when the map is read",
        story: "The last page has come, and what is in each segment is packed in one step: nobody has an answer for a second or two.",
        edits: &[Edit {
            file: "loading.rs",
            old: "        if packed >= core.settings.let_go_blocks {",
            new: "        if packed == usize::MAX {",
        }],
    },
];
