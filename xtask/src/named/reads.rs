//! What a read is answered with.

use super::Told;
use crate::mistakes::{Edit, Mistake};

/// The scenes of `crates/sim/tests/named/reads.rs`.
pub const TOLD: &[Told] = &[
    (
        "reads::beside_a_bad_sector_what_is_pinned_comes_and_the_sector_is_left_alone_for_a_while",
        "a bad sector that keeps all beside it from coming",
    ),
    (
        "reads::beside_a_bad_sector_what_is_pinned_comes_and_the_sector_is_left_alone_for_a_while",
        "a bad sector that is asked for again and again",
    ),
    ("reads::what_is_kept_is_served_while_the_map_names_it", "kept data served though a newer write is in the map"),
    ("reads::what_is_read_ahead_proves_itself", "damaged data kept of what is read ahead"),
    ("reads::nobody_waits_long_for_what_is_read_ahead", "a read that waits for what is read ahead however long that takes"),
    ("reads::many_readers_side_by_side_are_all_read_ahead_of", "sixteen readers followed of many"),
    (
        "reads::a_large_read_does_not_fail_for_what_the_disk_has",
        "a read that begins again for each damaged piece until it is given up",
    ),
    (
        "reads::a_large_read_does_not_fail_for_what_the_disk_has",
        "dirty data not laid over what the disk has in the place of something damaged",
    ),
    ("reads::a_stream_over_what_is_cached_in_part_is_read_without_holes", "a stream cut into pieces by what is cached of it"),
    (
        "reads::a_stream_over_what_is_cached_in_part_is_read_without_holes",
        "dirty data not laid over what the disk reads of a stream",
    ),
    (
        "reads::what_is_cached_between_a_streams_misses_comes_from_the_disk_while_that_is_well",
        "what is cached of a stream picked out of what passes under the heads",
    ),
    ("reads::what_the_disk_need_not_have_been_asked_for_fails_no_read", "a read that fails for what the cache has"),
    ("reads::clean_data_next_to_each_other_is_on_all_cache_devices", "clean data in one segment after the other"),
    ("reads::clean_data_that_comes_soon_after_other_shares_its_record", "a record for each small piece of clean data"),
    ("reads::clean_data_that_comes_soon_after_other_shares_its_record", "clean data gathered once and never again"),
    ("reads::clean_data_that_fills_a_record_does_not_wait", "clean data that waits though it fills a record"),
    (
        "reads::clean_data_that_fills_a_record_does_not_take_along_what_waits_elsewhere",
        "what waits taken along by a full record of another segment",
    ),
    ("reads::clean_data_that_waits_for_its_record_is_read_from_memory", "clean data in memory that is not looked at"),
    (
        "reads::clean_data_that_waits_for_its_record_is_read_from_memory",
        "clean data served from memory though a write has spoiled it",
    ),
    ("reads::who_stops_does_not_wait_with_clean_data_for_its_record", "a stop that waits with clean data for its record"),
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
            old: "Some(part) if verify(core, volume, *block, piece, &part) => Ok(part),\n                _ if whom != For::Ahead",
            new: "Some(part) if whom == For::Ahead || verify(core, volume, *block, piece, &part) => Ok(part),\n                _ if whom != For::Ahead",
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
        name: "sixteen readers followed of many",
        story: "Who reads small pieces beside sixteen others asks the cache devices for each of them, and a disk that reads ahead for all is sooner.",
        edits: &[Edit { file: "policy/ahead.rs", old: "pub const READERS: usize = 64;", new: "pub const READERS: usize = 16;" }],
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
            new: "        if (!p.dirty() || ways.damaged) && from_disk(&r) {",
        }],
    },
    Mistake {
        name: "a stream cut into pieces by what is cached of it",
        story: "A stream's requests are read from the disk as far as they miss: behind each hole it finds another request sooner, and goes back for the one it left behind.",
        edits: &[Edit {
            file: "read.rs",
            old: "false if stream && belongs.run_sectors > sectors => beside(core, volume, &range),",
            new: "false if stream && belongs.run_sectors > sectors => Joins::Between,",
        }],
    },
    Mistake {
        name: "dirty data not laid over what the disk reads of a stream",
        story: "Of a stream the disk reads more than what is missing, and what it has of a dirty block there is old.",
        edits: &[Edit {
            file: "read.rs",
            old: "        if !p.dirty() && from_disk(&r) {",
            new: "        if (!p.dirty() || matches!(ways.joins, Joins::Stream { .. })) && from_disk(&r) {",
        }],
    },
    Mistake {
        name: "what is cached of a stream picked out of what passes under the heads",
        story: "Requests that the cache could serve are holes in the stream that the disk sees: behind a long one it serves others first.",
        edits: &[Edit { file: "read.rs", old: "joins.passes(sectors) && !ahead", new: "false && !ahead" }],
    },
    Mistake {
        name: "a read that fails for what the cache has",
        story: "The disk is asked for more than what is missing, and cannot read that: the client is told so, though the cache has it.",
        edits: &[Edit { file: "read.rs", old: "if failed && plan.reads_more {", new: "if failed && plan.by_disk {" }],
    },
    Mistake {
        name: "clean data in one segment after the other",
        story: "Whoever reads what is cached has one cache device at a time, and readers of several files come to wait on the same one.",
        edits: &[Edit { file: "policy/lanes.rs", old: "members.min(MOST)", new: "members.min(1)" }],
    },
    Mistake {
        name: "a record for each small piece of clean data",
        story: "Half of what is written to the cache devices is headers, and each small miss costs one of them a request.",
        edits: &[Edit {
            file: "log.rs",
            old: "if core.settings.gather_ns == 0 {",
            new: "if core.settings.gather_ns < u64::MAX {",
        }],
    },
    Mistake {
        name: "clean data gathered once and never again",
        story: "Whoever looks after a while forgets to say that he has: what comes later waits until something else is appended.",
        edits: &[Edit { file: "log.rs", old: "        self.gathers.set(false);\n", new: "" }],
    },
    Mistake {
        name: "what waits taken along by a full record of another segment",
        story: "Where several segments are open each full record of one makes half empty ones of the others.",
        edits: &[Edit {
            file: "log.rs",
            old: "            Class::Single if self.gathers.get() && !band.hurried => 0,\n",
            new: "",
        }],
    },
    Mistake {
        name: "clean data in memory that is not looked at",
        story: "Who reads again what he has just missed waits for the disk again, for as long as it waits for its record.",
        edits: &[Edit { file: "fills.rs", old: "    volume.fills.waits(&fill, start, data.clone());\n", new: "" }],
    },
    Mistake {
        name: "clean data served from memory though a write has spoiled it",
        story: "What waits for its record is taken for what the disk has, whatever was written there since.",
        edits: &[Edit { file: "fills.rs", old: "                .filter(|f| !f.spoiled.get())\n", new: "" }],
    },
    Mistake {
        name: "a stop that waits with clean data for its record",
        story: "Nobody tells what waits that the cache is being stopped.",
        edits: &[Edit { file: "stop.rs", old: "        volume.clean_log.hurry(core, volume);\n", new: "" }],
    },
    Mistake {
        name: "clean data that waits though it fills a record",
        story: "It is missed for longer than it need be, and all that comes in that time is kept in memory.",
        edits: &[Edit { file: "log.rs", old: "band.is_due(full, 0)", new: "band.is_due(full << 20, 0)" }],
    },
    Mistake {
        name: "a bad sector that keeps all beside it from coming",
        story: "What is pinned or preloaded is read in long runs: where one cannot be read, none of it is cached.",
        edits: &[Edit {
            file: "preload.rs",
            old: "                unreadable_around(core, volume, m).await\n",
            new: "                Vec::new()\n",
        }],
    },
    Mistake {
        name: "a bad sector that is asked for again and again",
        story: "What is pinned and cannot be read is missing, so the disk is asked for it whenever it is idle.",
        edits: &[Edit {
            file: "preload.rs",
            old: "any(|block| !leaves_out(block))",
            new: "any(|block| !leaves_out(block) || true)",
        }],
    },
];
