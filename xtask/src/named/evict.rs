//! What is let go when the cache is full: mistakes that lose nothing but what the cache is for.

use super::Told;
use crate::mistakes::{Edit, Mistake};

/// The scenes of `crates/sim/tests/named/evict.rs`.
pub const TOLD: &[Told] = &[
    ("evict::a_scan_does_not_take_the_place_of_what_is_asked_for_again", "what is asked for again let go with the rest"),
    ("evict::what_comes_back_soon_after_it_was_let_go_stays", "what was let go not remembered"),
    (
        "evict::what_is_overwritten_while_its_segment_is_let_go_does_not_come_back",
        "what was overwritten meanwhile carried over with the rest",
    ),
    ("evict::a_stream_that_is_written_through_is_kept_only_where_it_was_cached", "streams that are written through kept"),
    (
        "evict::pinned_data_that_is_written_over_leaves_room_for_what_is_read",
        "a segment with little in it kept since that is pinned",
    ),
    ("evict::a_daemon_that_ends_carries_nothing_over_any_more", "an end that waits for what is carried over"),
    ("evict::what_is_let_go_beside_much_that_is_pinned_is_looked_for_in_turns", "all that is cached looked at for pins at once"),
];

/// Mistakes that only they need.
pub const MISTAKES: &[Mistake] = &[
    Mistake {
        name: "what is asked for again let go with the rest",
        story: "Segments go in the order in which they came, whatever clients ask for: who reads a whole disk once takes all of the cache.",
        edits: &[Edit {
            file: "evict.rs",
            old: "let room = core.has_spare() && !with_hot;",
            new: "let room = false && core.has_spare() && !with_hot;",
        }],
    },
    Mistake {
        name: "what was let go not remembered",
        story: "What is asked for once in a long while is on probation each time, and let go each time.",
        edits: &[Edit { file: "evict.rs", old: "            ghost.remember(volume.number, b);\n", new: "" }],
    },
    Mistake {
        name: "what was overwritten meanwhile carried over with the rest",
        story: "Of a segment that is let go the old data of a block is written again as the newest: an acknowledged write is lost.",
        edits: &[Edit {
            file: "evict.rs",
            old: "        let some = &still_there(&volume, number, some);\n",
            new: "        still_there(&volume, number, some);\n",
        }],
    },
    Mistake {
        name: "streams that are written through kept",
        story: "A backup that is written through takes what readers ask for out of the cache, and wears the cache devices out.",
        edits: &[Edit {
            file: "write.rs",
            old: "if is_stream && !is_cached() {",
            new: "if false && is_stream && !is_cached() {",
        }],
    },
    Mistake {
        name: "a segment with little in it kept since that is pinned",
        story: "Pinned data is written over again and again: what is left in each segment is little, all of it pinned, and no such segment is let go.",
        edits: &[
            Edit { file: "preload.rs", old: " && segment.live * BLOCK_SECTORS as u32 * 2 > sectors\n", new: " && sectors > 0\n" },
            Edit { file: "preload.rs", old: "segment) * 2 > sectors;", new: "segment) * 2 > segment.live * 8;" },
        ],
    },
    Mistake {
        name: "an end that waits for what is carried over",
        story: "The daemon is told to end, and first writes again what is asked for often in a segment that nobody needs to be let go any more.",
        edits: &[Edit {
            file: "evict.rs",
            old: "if core.housekeeping_rests() || !pinned && !core.has_spare() {",
            new: "if !pinned && !core.has_spare() {",
        }],
    },
    Mistake {
        name: "all that is cached looked at for pins at once",
        story: "For a segment to let go all there are are looked at for what is pinned in them: nobody has an answer for seconds.",
        edits: &[Edit {
            file: "evict.rs",
            old: "{ looks_for_pins(core.settings.let_go_blocks, capacity) }",
            new: "{ usize::MAX }",
        }],
    },
];
