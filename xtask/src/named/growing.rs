//! A volume is made larger.

use super::Told;
use crate::mistakes::{Edit, Mistake};

/// The scenes of `crates/sim/tests/named/growing.rs`.
pub const TOLD: &[Told] = &[
    ("growing::beyond_its_end_a_volume_takes_nothing_before_that_is_durable", "a volume's new end served before it is durable"),
    ("growing::while_pages_move_a_bit_is_in_both_places", "pages that move, written to one place alone"),
    ("growing::pages_stay_where_they_were_until_the_superblock_has_left_them", "pages that have left before the superblock has"),
    ("growing::pages_that_move_take_their_bits_with_them", "pages named where they are not yet"),
    (
        "growing::of_the_pages_that_a_volume_grows_by_both_slots_are_its_own",
        "an earlier volume's pages left under one that grows",
    ),
    ("growing::a_page_is_given_away_when_nothing_is_written_there_any_more", "pages given away that are still being written"),
    ("growing::a_scrub_does_not_take_pages_that_are_anothers_by_now_for_damaged", "another volume's pages taken for damaged"),
];

/// Mistakes that only they need.
pub const MISTAKES: &[Mistake] = &[Mistake {
    name: "another volume's pages taken for damaged",
    story: "A volume is detached while a scrub reads its pages, and another one grows into them: cache devices are said to have damaged data.",
    edits: &[Edit { file: "scrub.rs", old: " || volume.taken_off.get() {", new: " {" }],
}];
