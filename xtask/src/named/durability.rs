//! Starts that read of segments the records' headers alone.

use super::Told;
use crate::mistakes::{Edit, Mistake};

/// The scenes of `crates/sim/tests/named/durability.rs`.
pub const TOLD: &[Told] = &[
    ("durability::a_start_reads_no_more_than_headers_of_what_was_durable", "all of the log read whole"),
    ("durability::what_nobody_flushes_is_flushed_for_the_next_start", "a flush for the next start that nobody asks for"),
    ("durability::a_header_is_not_believed_of_what_nobody_has_flushed", "what is closed taken for durable"),
    ("durability::what_lies_behind_a_damaged_header_counts", "the end of the headers taken for the segment's"),
    ("durability::an_open_segment_is_not_taken_for_a_durable_one", "an open segment taken for a durable one"),
    ("durability::a_segment_is_not_durable_while_a_record_is_on_its_way", "a segment durable though a record is on its way"),
    ("durability::a_life_says_nothing_of_what_an_earlier_one_wrote", "a life that speaks for those before it"),
    (
        "durability::what_cannot_be_read_of_a_durable_segment_is_waited_for_where_one_that_is_missing_may_have_it",
        "headers alone beside a missing device",
    ),
];

/// Mistakes that only they need.
pub const MISTAKES: &[Mistake] = &[
    Mistake {
        name: "all of the log read whole",
        story: "A TiB is cached, and the daemon is killed: minutes until the first request is answered.",
        edits: &[Edit {
            file: "headers.rs",
            old: "let reading = if found.is_durable {",
            new: "let reading = if found.is_durable && false {",
        }],
    },
    Mistake {
        name: "a flush for the next start that nobody asks for",
        story: "Clients never flush, and so nothing of the log is known to be durable.",
        edits: &[Edit { file: "durability.rs", old: "unflushed >= UNFLUSHED && ", new: "unflushed >= UNFLUSHED * 4 && " }],
    },
    Mistake {
        name: "what is closed taken for durable",
        story: "The power goes, and of a record the header is there, and its data is not.",
        edits: &[Edit {
            file: "durability.rs",
            old: "let proved = segment.places().all(|p| is_flushed(p.member));",
            new: "let proved = segment.places().all(|p| is_flushed(p.member) || true);",
        }],
    },
    Mistake {
        name: "the end of the headers taken for the segment's",
        story: "One header is damaged on the copy that is followed, and what lies behind it is older data, or the disk's.",
        edits: &[Edit {
            file: "headers.rs",
            old: "    let left = (core.pool.borrow().segment_sectors() - end) * 512;",
            new: "    let end = if records.is_empty() { end } else { core.pool.borrow().segment_sectors() };\n    let left = (core.pool.borrow().segment_sectors() - end) * 512;",
        }],
    },
    Mistake {
        name: "an open segment taken for a durable one",
        story: "It was flushed, and gets one record more, which is not.",
        edits: &[Edit { file: "durability.rs", old: "segment.state == SegmentState::Open || s.in_flight", new: "s.in_flight" }],
    },
    Mistake {
        name: "a segment durable though a record is on its way",
        story: "It is closed, its devices are flushed, and then the record's header comes, and its data does not.",
        edits: &[Edit { file: "durability.rs", old: " || s.in_flight > 0 {", new: " || s.in_flight == u32::MAX {" }],
    },
    Mistake {
        name: "a life that speaks for those before it",
        story: "A start found a record torn, and clients have read what was there before. The next start believes its header.",
        edits: &[Edit { file: "durability.rs", old: "Self { from: generation, ..", new: "Self { from: generation.min(1), .." }],
    },
    Mistake {
        name: "headers alone beside a missing device",
        story: "One device cannot read what was flushed, and nobody looks; the late one, which can, is out of date from then on.",
        edits: &[Edit {
            file: "recovery.rs",
            old: "|generation: u64| nobody_is_missing && durable.has(generation);",
            new: "|generation: u64| (nobody_is_missing || true) && durable.has(generation);",
        }],
    },
];
