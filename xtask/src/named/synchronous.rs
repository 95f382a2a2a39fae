//! Writes of clients who flush after each of them: mistakes that only a scene tells.

use super::Told;
use crate::mistakes::{Edit, Mistake};

/// The scenes of `crates/sim/tests/named/synchronous.rs`.
pub const TOLD: &[Told] = &[
    (
        "synchronous::who_flushes_after_each_write_waits_for_the_cache_devices_once",
        "a record taken for durable that is in the devices' caches",
    ),
    ("synchronous::a_durable_write_that_fails_on_one_device_is_on_the_other", "a failed append of a cache device overlooked"),
    ("synchronous::where_several_writes_share_a_flush_none_is_durable_by_itself", "each write past the devices' caches"),
    (
        "synchronous::a_durable_write_past_the_cache_waits_for_one_flush_of_the_disk",
        "two flushes of the disk for one durable write",
    ),
    (
        "synchronous::cache_devices_flush_an_intent_bit_at_the_same_time",
        "an intent bit flushed on one cache device after the other",
    ),
];

/// Mistakes that only they need.
pub const MISTAKES: &[Mistake] = &[
    Mistake {
        name: "a record taken for durable that is in the devices' caches",
        story: "The flush after it finds nothing to do, and the power goes.",
        edits: &[Edit {
            file: "log.rs",
            old: "DeviceOp::Write { offset: at, bufs: bufs.clone(), reach }",
            new: "DeviceOp::Write { offset: at, bufs: bufs.clone(), reach: Reach::Cache }",
        }],
    },
    Mistake {
        name: "each write past the devices' caches",
        story: "Four writes and a flush are four forced accesses on each device instead of one flush.",
        edits: &[Edit {
            file: "policy/synchronous.rs",
            old: "        alone && first && self.lone >= SURE\n",
            new: "        let _ = (alone, first, SURE);\n        true\n",
        }],
    },
    Mistake {
        name: "two flushes of the disk for one durable write",
        story: "The disk has flushed before the cache devices have, and others have written meanwhile: it is flushed again, for them.",
        edits: &[Edit {
            file: "write.rs",
            old: "    let on_disk = volume.disk_flusher.end_since(on_disk, failures).await;\n",
            new: "    drop(on_disk);\n    let on_disk = volume.disk_flusher.flush_since(failures).await;\n",
        }],
    },
    Mistake {
        name: "an intent bit flushed on one cache device after the other",
        story: "Whoever writes first in a region waits for all of their flushes in turn.",
        edits: &[Edit {
            file: "intent.rs",
            old: "        let flushes: Vec<_> = in_sync.map(|m| (*m, core.member_flusher(*m).request())).collect();\n        for (m, flush) in flushes {",
            new: "        for (m, flush) in in_sync.map(|m| (*m, core.member_flusher(*m).request())) {",
        }],
    },
];
