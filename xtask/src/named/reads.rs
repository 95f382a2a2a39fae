//! What a read is answered with.

use super::Told;
use crate::mistakes::{Edit, Mistake};

/// The scenes of `crates/sim/tests/named/reads.rs`.
pub const TOLD: &[Told] = &[
    ("reads::what_is_kept_is_served_while_the_map_names_it", "kept data served though a newer write is in the map"),
    ("reads::what_is_read_ahead_proves_itself", "damaged data kept of what is read ahead"),
    ("reads::nobody_waits_long_for_what_is_read_ahead", "a read that waits for what is read ahead however long that takes"),
    (
        "reads::a_large_read_does_not_fail_for_what_the_disk_has",
        "a read that begins again for each damaged piece until it is given up",
    ),
    (
        "reads::a_large_read_does_not_fail_for_what_the_disk_has",
        "dirty data not laid over what the disk has in the place of something damaged",
    ),
];

/// Mistakes that only they need.
pub const MISTAKES: &[Mistake] = &[
    Mistake {
        name: "kept data served though a newer write is in the map",
        story: "What was read ahead of a reader is taken for what is there now, by its address: he is shown what was there before.",
        edits: &[Edit {
            file: "ahead.rs",
            old: "(p.version(), p.sum, p.segment, p.offset, p.first(), p.sectors())",
            new: "(p.first(), p.sectors())",
        }],
    },
    Mistake {
        name: "damaged data kept of what is read ahead",
        story: "It is compared with no checksum when it comes, and with none when it is served.",
        edits: &[Edit {
            file: "fetch.rs",
            old: "Some(part) if verify(core, volume, *block, piece, &part) => Ok(part),\n                _ if wanted",
            new: "Some(part) if !wanted || verify(core, volume, *block, piece, &part) => Ok(part),\n                _ if wanted",
        }],
    },
    Mistake {
        name: "a read that waits for what is read ahead however long that takes",
        story: "The cache device hangs, its twin does not: a read waits until the first is given up.",
        edits: &[Edit {
            file: "ahead.rs",
            old: "const PATIENCE_NS: u64 = 5_000_000;",
            new: "const PATIENCE_NS: u64 = u64::MAX / 2;",
        }],
    },
    Mistake {
        name: "a read that begins again for each damaged piece until it is given up",
        story: "Of many clean pieces on a device that reads badly another one is damaged in each round: the read fails, though the disk has all of it.",
        edits: &[Edit {
            file: "read.rs",
            old: "            damaged = true;\n            continue;",
            new: "            damaged = false;\n            continue;",
        }],
    },
    Mistake {
        name: "dirty data not laid over what the disk has in the place of something damaged",
        story: "A clean block beside it is damaged, the disk is read for both, and what it has of the dirty one is old.",
        edits: &[Edit {
            file: "read.rs",
            old: "        if !p.dirty() && from_disk(&r) {",
            new: "        if (!p.dirty() || damaged) && from_disk(&r) {",
        }],
    },
];
