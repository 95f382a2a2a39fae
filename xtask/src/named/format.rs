//! What is on the media proves itself: its checksum, its place, its pool.

use super::Told;
use crate::mistakes::{Edit, Mistake};

/// Tests of `crates/format/tests/golden.rs`: what they do to one structure alone, seeds do to all of them, and a checksum
/// left out hides behind the other ones.
pub const TOLD: &[Told] = &[
    ("format::a_flipped_bit_anywhere_is_noticed", "the checksum of a record not verified"),
    ("format::a_flipped_bit_anywhere_is_noticed", "the checksum of a segment's header not verified"),
    ("format::a_flipped_bit_anywhere_is_noticed", "the checksum of a checkpoint's page not verified"),
    ("format::a_flipped_bit_anywhere_is_noticed", "the checksum of an intent page not verified"),
    ("format::a_flipped_bit_anywhere_is_noticed", "the checksum of a superblock not verified"),
    ("format::a_flipped_bit_anywhere_is_noticed", "the checksum of a witness's record not verified"),
    ("format::a_structure_found_in_another_place_or_of_another_pool_is_not_taken", "a record in another place believed"),
    ("format::a_structure_found_in_another_place_or_of_another_pool_is_not_taken", "a checkpoint's page of another try believed"),
    ("format::a_structure_found_in_another_place_or_of_another_pool_is_not_taken", "an intent page in another's place believed"),
];

/// Mistakes that no other list has.
pub const MISTAKES: &[Mistake] = &[
    Mistake {
        name: "the checksum of a record not verified",
        story: "Data is taken for what a torn header says that it is.",
        edits: &[Edit { file: "format/record.rs", old: "        verify(key, bytes, 8)?;\n", new: "" }],
    },
    Mistake {
        name: "the checksum of a segment's header not verified",
        story: "A segment is taken for another volume's, or another generation.",
        edits: &[Edit { file: "format/segment.rs", old: "        verify(key, bytes, 8)?;\n", new: "" }],
    },
    Mistake {
        name: "the checksum of a checkpoint's page not verified",
        story: "The map is what rot made of it.",
        edits: &[Edit { file: "format/checkpoint.rs", old: "        verify(key, bytes, 8)?;\n", new: "" }],
    },
    Mistake {
        name: "the checksum of an intent page not verified",
        story: "A bit that rot has cleared is believed: stale data is served.",
        edits: &[Edit { file: "format/intent.rs", old: "        verify(key, bytes, 8)?;\n", new: "" }],
    },
    Mistake {
        name: "the checksum of a superblock not verified",
        story: "The pool is what rot made of it.",
        edits: &[Edit { file: "format/superblock.rs", old: "        verify(0, bytes, 8)?;\n", new: "" }],
    },
    Mistake {
        name: "the checksum of a witness's record not verified",
        story: "An epoch that nobody raised keeps the pool from starting, or lets an old one start.",
        edits: &[Edit { file: "format/witness.rs", old: "        verify(0, bytes, 8)?;\n", new: "" }],
    },
    Mistake {
        name: "a record in another place believed",
        story: "A misdirected write, or an older record that shows where a newer one was to be, is replayed.",
        edits: &[Edit {
            file: "format/record.rs",
            old: "        if found != place {\n            return Err(DecodeError::Foreign);\n        }\n",
            new: "        let _ = (found, place);\n",
        }],
    },
    Mistake {
        name: "a checkpoint's page of another try believed",
        story: "A page that a cache device kept in place of a newer one is a part of the image.",
        edits: &[Edit {
            file: "format/checkpoint.rs",
            old: "        if r.u64()? != sequence || r.u32()? != index {",
            new: "        if (r.u64()? != sequence) & (r.u32()? != index) & false {",
        }],
    },
    Mistake {
        name: "an intent page in another's place believed",
        story: "A misdirected write puts another page's bits here: regions that are newer on the disk are taken for clean.",
        edits: &[Edit {
            file: "format/intent.rs",
            old: "        if found != page {\n            return Err(DecodeError::Foreign);\n        }\n",
            new: "        let _ = found;\n",
        }],
    },
];
