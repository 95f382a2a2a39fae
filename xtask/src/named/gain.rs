//! What goes to the disk though the cache could take it: mistakes that only scenes tell.

use super::Told;
use crate::mistakes::{Edit, Mistake};

/// The scenes of `crates/sim/tests/named/gain.rs`.
pub const TOLD: &[Told] = &[
    (
        "gain::large_writes_go_past_a_full_cache_where_a_sweep_makes_no_more_of_them",
        "writes absorbed whether or not a sweep makes more of them",
    ),
    ("gain::an_idle_disk_has_a_share_of_a_burst_and_none_where_clients_flush", "a disk that has its share though clients flush"),
    ("gain::small_writes_keep_away_from_a_disk_that_a_stream_uses", "a disk that has small writes beside streams"),
];

/// Mistakes that only they need.
pub const MISTAKES: &[Mistake] = &[
    Mistake {
        name: "writes absorbed whether or not a sweep makes more of them",
        story: "What the sweep costs is lost, and large random writes are slower than on the disk alone.",
        edits: &[Edit {
            file: "write.rs",
            old: "    if !core.settings.route || volume.is_pinned(range) {\n        return false;",
            new: "    if core.settings.route || volume.is_pinned(range) {\n        return false;",
        }],
    },
    Mistake {
        name: "a disk that has its share though clients flush",
        story: "A client that flushes after a burst waits for the disk to put its share down.",
        edits: &[Edit {
            file: "policy/route.rs",
            old: "if bytes > BURST_BYTES || flushes || ",
            new: "if bytes > BURST_BYTES || ",
        }],
    },
    Mistake {
        name: "a disk that has small writes beside streams",
        story: "Small writes that find a line at the SSDs go to the disk, and the stream there loses a quarter.",
        edits: &[Edit {
            file: "policy/route.rs",
            old: "if beside_streams && class(bytes) == 0 {",
            new: "if beside_streams && class(bytes) > 2 {",
        }],
    },
];
