//! What each volume has of the pool: mistakes that lose nothing but what the shares are for.

use super::Told;
use crate::mistakes::{Edit, Mistake};

/// The scenes of `crates/sim/tests/named/shares.rs`.
pub const TOLD: &[Told] = &[
    ("shares::a_flood_stops_at_its_volumes_maximum", "a maximum that no segment is counted against"),
    ("shares::at_its_maximum_a_volume_makes_room_of_its_own", "nothing let go within a maximum"),
    ("shares::a_flood_leaves_others_their_minimum", "evicted whatever its volume is sure of"),
    ("shares::a_writer_leaves_room_for_writes_to_who_is_sure_of_it", "a minimum that keeps no space for writes"),
    ("shares::a_segment_is_left_for_who_has_less_than_the_minimum", "who is sure of more behind others' writes"),
    ("shares::who_has_less_than_the_minimum_gets_room_while_another_writes_on", "evicted whatever its volume is sure of"),
    ("shares::a_smaller_maximum_is_kept_soon_and_loses_nothing", "nothing let go within a maximum"),
    ("shares::minimums_that_come_to_too_much_are_refused", "minimums beyond what there is"),
    ("shares::a_neighbour_whose_disk_takes_nothing_holds_back_nobody_elses_writes", "space that others have waited for"),
    (
        "shares::images_for_a_small_share_take_little_of_what_cache_devices_are_written",
        "an image for each eighth of a small share",
    ),
    ("shares::images_for_a_small_share_take_little_of_what_cache_devices_are_written", "room that nobody wins waited for"),
    (
        "shares::what_is_preloaded_of_who_has_less_than_the_minimum_has_the_room_that_is_left_to_it",
        "a preload behind what others keep ahead of demand",
    ),
    ("shares::what_a_smaller_maximum_lets_go_of_keeps_nobody_waiting", "no pause between segments that are let go of"),
    (
        "shares::beside_a_neighbour_that_has_the_space_a_volume_has_its_disk",
        "a disk measured by a sweep that has nothing left to write",
    ),
    (
        "shares::a_volume_that_wrote_little_beside_a_neighbour_that_writes_all_the_time_may_write_more",
        "a disk measured by a sweep that has nothing left to write",
    ),
];

/// Mistakes that only they need.
pub const MISTAKES: &[Mistake] = &[
    Mistake {
        name: "a maximum that no segment is counted against",
        story: "A volume is told to have less, and floods the pool all the same: what others work with is gone.",
        edits: &[Edit {
            file: "shares.rs",
            old: "        if volume.share.get().max >= 100 {",
            new: "        if volume.share.get().max <= 100 {",
        }],
    },
    Mistake {
        name: "nothing let go within a maximum",
        story: "A volume that has what it may keeps what it read first, whatever it reads from then on; and one that is to have less keeps all.",
        edits: &[Edit {
            file: "space.rs",
            old: "        keep_to_maximums(&core, &mut for_shares).await;\n",
            new: "        if core.stopping.get() {\n            keep_to_maximums(&core, &mut for_shares).await;\n        }\n",
        }],
    },
    Mistake {
        name: "evicted whatever its volume is sure of",
        story: "What is let go is chosen by age and use alone. One volume that floods the pool takes all of it, also what others are sure of.",
        edits: &[Edit {
            file: "evict.rs",
            old: "*number != s.volume || stands.may_lose(s))",
            new: "*number != s.volume || stands.may_lose(s) || s.live > 0)",
        }],
    },
    Mistake {
        name: "a minimum that keeps no space for writes",
        story: "One volume's writes take all of the space for dirty data, also the part that another is sure of: its writes go to its disk.",
        edits: &[Edit {
            file: "policy/shares.rs",
            old: "    let kept: u64 = others.iter().map(|p| p.least).sum();",
            new: "    let kept: u64 = others.iter().map(|p| p.least.min(p.taken)).sum();",
        }],
    },
    Mistake {
        name: "who is sure of more behind others' writes",
        story: "A volume that has nothing yet reads, and another has written all there is: what is free is kept for that one's next write.",
        edits: &[
            Edit {
                file: "space.rs",
                old: "let ahead = if self.is_under_minimum(volume) {",
                new: "let ahead = if self.is_under_minimum(volume) && volume.share.get().min > 100 {",
            },
            Edit {
                file: "shares.rs",
                old: "if !self.bounds().has_shares || !volume.has_disk() || ",
                new: "if self.bounds().has_shares || !volume.has_disk() || ",
            },
        ],
    },
    Mistake {
        name: "minimums beyond what there is",
        story: "Each of three volumes is sure of half of the pool. What is promised cannot be had, and nothing can be let go.",
        edits: &[Edit {
            file: "policy/shares.rs",
            old: "        if self.min > 0 && u32::from(self.min) > left {",
            new: "        if self.min > 0 && left > MOST_MINIMUM {",
        }],
    },
    Mistake {
        name: "space that others have waited for",
        story: "One volume's disk answers nothing, and the space for dirty data is full of what it should have. Each write to another waits for room that does not come.",
        edits: &[Edit {
            file: "policy/pace.rs",
            old: "    own * OWN_PART.max(2 * volumes) < most.map_or(taken, |most| most.min(taken))",
            new: "    own * OWN_PART.max(2 * volumes) < most.map_or(0, |most| most.min(taken))",
        }],
    },
    Mistake {
        name: "a disk measured by a sweep that has nothing left to write",
        story: "One volume has the space, and another writes a little: what its sweep finds is taken for what its disk can do, and it may write no more than that.",
        edits: &[Edit {
            file: "policy/pace.rs",
            old: "            if self.ran_out && sample < self.per_second() {",
            new: "            if self.ran_out && sample > self.per_second() << 10 {",
        }],
    },
    Mistake {
        name: "an image for each eighth of a small share",
        story: "A volume has a hundredth of a pool, and a checkpoint of all that is cached is taken each time that an eighth of that is won by it.",
        edits: &[Edit {
            file: "shares.rs",
            old: "        image_pays(bytes, core.segments.borrow().live) || ",
            new: "        image_pays(bytes, core.segments.borrow().live.min(0)) || ",
        }],
    },
    Mistake {
        name: "room that nobody wins waited for",
        story: "A volume with a small share has written all of it, and nothing of it is dirty any more: each of its writes waits for a quarter of a second, and goes to the disk.",
        edits: &[Edit {
            file: "shares.rs",
            old: "is_clean && self.bounds().has_shares && !self",
            new: "false && is_clean && self.bounds().has_shares && !self",
        }],
    },
    Mistake {
        name: "a preload behind what others keep ahead of demand",
        story: "A volume is sure of more than it has. What is preloaded of it is read again and again, and finds less room than what is read.",
        edits: &[Edit {
            file: "log.rs",
            old: "self.kept_from_carried().min(self.kept_from_clean(v))",
            new: "self.kept_from_carried().max(u32::from(v.number > 100))",
        }],
    },
    Mistake {
        name: "no pause between segments that are let go of",
        story: "A maximum is made smaller, and nobody is answered until all that is beyond it has been let go of.",
        edits: &[Edit {
            file: "space.rs",
            old: "    let is_less = evict(core, victim);\n    core.exec.sleep(1).await;\n",
            new: "    let is_less = evict(core, victim);\n",
        }],
    },
];
