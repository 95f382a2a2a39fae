//! How caches before this one lost data: P1 to P39.

use super::Told;
use crate::mistakes::{Edit, Mistake};

/// The scenes of `crates/sim/tests/named/peers.rs`.
pub const TOLD: &[Told] = &[
    ("peers::p14_a_flush_after_all_copies_are_gone", "a flush that says nothing of copies that are gone"),
    ("peers::p21_two_of_four_appear_late", "a start that goes on without both copies"),
    ("peers::p1_named_before_it_is_flushed", "a checkpoint named before its pages are flushed"),
    ("peers::p2_written_past_a_full_cache", "the disk left out of the flush"),
    ("peers::p2_written_past_a_full_cache", "a bypass that FLUSH does not hear of"),
    ("peers::p3_forced_unit_access_absorbed", "a forced-unit-access write acknowledged when it is written"),
    ("peers::p3_forced_unit_access_bypassed", "the disk left out of the forced-unit-access write"),
    ("peers::p5_acknowledged_in_memory_alone", "a write acknowledged before its record is written"),
    ("peers::p6_dirty_loaded_as_clean_from_the_image", "the image's dirty blocks loaded as clean"),
    ("peers::p6_dirty_loaded_as_clean_from_the_log", "dirty records replayed as clean"),
    ("peers::p7_a_volume_beyond_2_tib", "a place on the disk reckoned in 32 bits"),
    ("peers::p7_a_cache_device_beyond_4_gib", "a place on a cache device reckoned in 32 bits"),
    ("peers::p9_a_mode_entered_on_an_old_look", "a mode entered while a write is on its way into the log"),
    ("peers::p11_bypass_fill_race", "a fill begun beside a write under way"),
    ("peers::p11_fill_bypass_race", "a stale fill kept"),
    ("peers::p12_power_cut_after_a_bypass", "a bypass before its intent bit"),
    ("peers::p12_power_cut_after_a_bypass", "a fill of unflushed data called clean"),
    ("peers::p13_clean_before_it_is_durable", "clean marked before the disk's flush"),
    ("peers::p14_the_disk_in_place_of_lost_dirty_data", "dirty data without a copy read from the disk"),
    ("peers::p14_a_reboot_without_the_devices", "a volume served though its copies left with their members"),
    ("peers::p15_power_cut_during_a_detach", "a write past a volume that is detached without its intent bit"),
    ("peers::p16_a_read_error_mended_from_the_older_disk", "a read error on dirty data mended from the disk"),
    ("peers::p17_reused_under_a_read", "a read in flight that does not keep its segment"),
    ("peers::p18_rot_on_its_way_to_the_disk", "a checksum not verified on read"),
    ("peers::p18_rot_called_clean", "a block that could not be read called clean"),
    ("peers::p20_no_room_to_make_room", "no room kept for what makes room"),
    ("peers::p21_the_one_that_was_away_comes_back_alone", "a witness that knows better, and is not heard"),
    ("peers::p22_a_name_without_its_data", "a record replayed by its header alone"),
    ("peers::p23_the_cache_devices_not_flushed", "a flush removed"),
    ("peers::p23_the_cache_devices_not_flushed", "a flush sent to one copy only"),
    ("peers::p24_flushed_behind_a_hole", "replay that stops at a hole"),
    ("peers::p25_a_torn_superblock", "a superblock written over the one before it"),
    ("peers::p27_past_the_cache_beside_its_own", "two writes to one range in flight"),
    ("peers::p30_the_disk_changed_meanwhile", "a disk that is another one taken for its own"),
    ("peers::p31_a_checkpoint_before_the_disk_is_flushed", "an intent bit cleared without a disk flush"),
    ("peers::p32_discards_round_inwards", "discards that round outwards"),
    ("peers::p33_the_second_writer_does_not_wait", "a bit that is wanted taken for one that is durable"),
    ("peers::p34_one_devices_flush_taken_for_the_others", "an ordered overwrite that does not flush the disk"),
    ("peers::p35_replayed_over_what_came_after", "an ordered overwrite that leaves the old record standing"),
    ("peers::p35_replayed_into_another_volume", "an attach over a log that still has the number's old records"),
    ("peers::p36_one_order_before_the_crash_and_another_after", "the order of replay taken for the order of writes"),
    ("peers::p39_the_disk_is_down", "waiting for a disk that does not come back"),
];

/// What is told in another place, or cannot happen here: why.
pub const ELSEWHERE: &[(usize, &str)] = &[
    (
        4,
        "Two instances on the same devices: the host's claims exclude it. `a_second_claim_is_refused_with_the_names_of_device_and_holder` and `a_file_stays_claimed_until_the_last_write_of_a_killed_process_has_landed` in crates/host/tests/devices.rs; `a_device_that_another_process_has_claimed` in crates/headpond/tests/refusals.rs.",
    ),
    (8, "As P4: there is one instance, and one reading of the metadata, which begins when all devices are claimed."),
    (
        10,
        "While a volume is served its disk is claimed, and one that is mounted is refused: `a_mounted_device_is_refused_with_the_place_where_it_is_mounted` in crates/host/tests/devices.rs. Without the daemon nothing keeps anybody from the raw disk: docs/GUARANTEES.md says so, and P30 is what then happens.",
    ),
    (
        19,
        "Nothing is ever discarded on a cache device: the engine sends discards to backing devices alone, so no space that is still needed can be trimmed.",
    ),
    (
        26,
        "A flush has no place and no size here, from the wire on: `valid_requests_come_out_as_they_were_sent` in crates/host/src/nbd/session_tests.rs and `flushes_discards_and_zeroes_arrive_as_what_they_are` in crates/host/tests/fuse_loop.rs.",
    ),
    (28, "`force_where_dirty_data_would_be_lost` in crates/headpond/tests/refusals.rs."),
    (
        29,
        "As P10. What a check of the raw disk changed is found at the start: P30, and `a_disk_that_has_changed_its_size_or_is_another_one` in crates/headpond/tests/refusals.rs.",
    ),
    (37, "Not promised: destage goes by address, so a disk that has lost its cache is no earlier state of the volume."),
    (
        38,
        "`random_bytes_in_any_pieces_never_panic_and_memory_stays_bounded`, `an_oversized_option_closes_the_connection` and `an_invalid_request_is_refused_and_the_next_one_understood` in crates/host/src/nbd/session_tests.rs, and the fuzz target of the NBD session.",
    ),
];

/// Mistakes of peers that no other list has.
pub const MISTAKES: &[Mistake] = &[
    Mistake {
        name: "a flush that says nothing of copies that are gone",
        story: "All cache devices with a copy of acknowledged data left before it was flushed; the flush that should have covered it ends well.",
        edits: &[Edit {
            file: "flush.rs",
            old: "if on_disk.is_err() || lost || gone {",
            new: "if on_disk.is_err() || lost || gone && false {",
        }],
    },
    Mistake {
        name: "a start that goes on without both copies",
        story: "As many cache devices as there are copies are late at a boot; the pool starts without them, and takes them for left.",
        edits: &[Edit { file: "start.rs", old: "        || core.settings.without_missing\n", new: "        || true\n" }],
    },
    Mistake {
        name: "a bypass that FLUSH does not hear of",
        story: "A write went to the disk alone, and is noted as destage's are, which no client waits for: FLUSH leaves the disk out.",
        edits: &[Edit {
            file: "write.rs",
            old: "Ok(_) if alone => volume.disk_flusher.wrote_for_client(),",
            new: "Ok(_) if alone => volume.disk_flusher.wrote(),",
        }],
    },
    Mistake {
        name: "a write acknowledged before its record is written",
        story: "A write is acknowledged as soon as it is accepted; the daemon dies, and the client's data with it.",
        edits: &[Edit {
            file: "write.rs",
            old: "        Fate::Absorb => match absorb(core, volume, &range, &content).await {\n",
            new: "        Fate::Absorb => match {\n            let (core, volume, range, content) = (core.clone(), volume.clone(), range.clone(), content.clone());\n            let exec = core.exec.clone();\n            exec.spawn(async move { drop(absorb(&core, &volume, &range, &content).await) });\n            Ok::<(), AppendError>(())\n        } {\n",
        }],
    },
    Mistake {
        name: "the image's dirty blocks loaded as clean",
        story: "What a checkpoint describes as dirty is clean after a crash: it is never destaged, and gone when it is evicted.",
        edits: &[Edit {
            file: "loading.rs",
            old: "Piece::new(p.version, p.sum, segment, p.offset, first, count, p.span >> 6 & 1 == 1, p.span >> 7 == 1);",
            new: "Piece::new(p.version, p.sum, segment, p.offset, first, count, false, p.span >> 7 == 1);",
        }],
    },
    Mistake {
        name: "dirty records replayed as clean",
        story: "What the log holds as dirty is clean after a crash: it is never destaged, and gone when it is evicted.",
        edits: &[Edit { file: "recovery.rs", old: "let dirty = e.kind != EntryKind::Clean;", new: "let dirty = false;" }],
    },
    Mistake {
        name: "a place on the disk reckoned in 32 bits",
        story: "A sector beyond 2 TiB is taken for the one that its number's lower 32 bits name.",
        edits: &[Edit {
            file: "core.rs",
            old: "        (grid_sector - self.shift) * 512\n",
            new: "        u64::from((grid_sector - self.shift) as u32) * 512\n",
        }],
    },
    Mistake {
        name: "a place on a cache device reckoned in 32 bits",
        story: "A segment beyond 4 GiB is written over one at the device's beginning.",
        edits: &[Edit {
            file: "log.rs",
            old: "        self.pool.borrow().members[usize::from(place.member)].layout.slot(place.slot)\n",
            new: "        u64::from(self.pool.borrow().members[usize::from(place.member)].layout.slot(place.slot) as u32)\n",
        }],
    },
    Mistake {
        name: "a mode entered while a write is on its way into the log",
        story: "The map holds nothing dirty, and the switch is done; a write that was under way becomes dirty after it, and the disk lacks it.",
        edits: &[Edit {
            file: "volumes.rs",
            old: "        if v.map.borrow().dirty_blocks() == 0 && !v.has_pending() {",
            new: "        if v.map.borrow().dirty_blocks() == 0 {",
        }],
    },
    Mistake {
        name: "a write past a volume that is detached without its intent bit",
        story: "A volume that is being detached needs no intent bits, it seems; the detach is not written down when the power goes, and what was cached is served again.",
        edits: &[Edit {
            file: "write.rs",
            old: "    if !ensure(core, volume, range, Bit::Intent, ahead).await {",
            new: "    if volume.mode() != Mode::PassThrough && !ensure(core, volume, range, Bit::Intent, ahead).await {",
        }],
    },
    Mistake {
        name: "a read error on dirty data mended from the disk",
        story: "No copy of a dirty block can be read: it is let go of like a clean one, and the disk's older data is served.",
        edits: &[Edit {
            file: "read.rs",
            old: "    if bad.iter().any(|(block, p)| p.dirty() && is_there(*block, p)) {\n        return Err(RequestError::Io);\n    }\n",
            new: "    for (block, p) in bad.iter().filter(|(_, p)| p.dirty()) {\n        volume.map.borrow_mut().forget(&mut core.segments.borrow_mut(), *block, p.live, p.version() + 1);\n    }\n",
        }],
    },
    Mistake {
        name: "a block that could not be read called clean",
        story: "Destage finds no good copy of a block, and marks it clean with the others of its run: the disk's older data is served.",
        edits: &[Edit {
            file: "destage.rs",
            old: "            if !damaged.contains(&b) && seen.last() != Some(&b) {",
            new: "            if seen.last() != Some(&b) {",
        }],
    },
    Mistake {
        name: "no room kept for what makes room",
        story: "Marks and moves find no segment where clients' writes find none: the log is full, and what is destaged cannot be called clean.",
        edits: &[
            Edit {
                file: "log.rs",
                old: "            Item::MarkClean { .. } | Item::Forget { .. } => Draw::Reserve,",
                new: "            Item::MarkClean { .. } | Item::Forget { .. } => Draw::Demand,",
            },
            Edit {
                file: "log.rs",
                old: "Draw::Move if band + 1 == self.in_use.get() => Draw::Reserve,",
                new: "Draw::Move if band + 1 == self.in_use.get() => Draw::Demand,",
            },
        ],
    },
    Mistake {
        name: "a witness that knows better, and is not heard",
        story: "A cache device that was left behind comes back alone; the witness knows of a later epoch, and it is started all the same.",
        edits: &[Edit {
            file: "election.rs",
            old: "        if !are_known || !all_here && !in_vain {",
            new: "        if false && !are_known && !all_here && !in_vain {",
        }],
    },
    Mistake {
        name: "a record replayed by its header alone",
        story: "A record's header landed and its data did not: replay names it without a look at the checksums, over what was there.",
        edits: &[Edit {
            file: "recovery.rs",
            old: "                    Some(part) if part.checksum(seed) == e.sum => best = Some(part),",
            new: "                    Some(part) if part.checksum(seed) == e.sum || true => best = Some(part),",
        }],
    },
    Mistake {
        name: "a superblock written over the one before it",
        story: "All superblocks go to the same two places: where the power fails under one, none is whole but the very first.",
        edits: &[Edit { file: "membership.rs", old: "let slot = (superblock.sequence % 2) as u8;", new: "let slot = 0;" }],
    },
    Mistake {
        name: "a disk that is another one taken for its own",
        story: "Clean copies and the disk differ, so somebody has written to it; the volume is served, and its dirty data put over that.",
        edits: &[Edit {
            file: "comparison.rs",
            old: "    if v.map.borrow().dirty_blocks() > 0 {\n        v.refused.set(true);",
            new: "    if v.map.borrow().dirty_blocks() > 0 {\n        v.refused.set(false);",
        }],
    },
    Mistake {
        name: "discards that round outwards",
        story: "Blocks of which a discard touches a part are discarded whole.",
        edits: &[Edit {
            file: "engine.rs",
            old: "let inner = range.start.next_multiple_of(BLOCK_SECTORS)..range.end / BLOCK_SECTORS * BLOCK_SECTORS;",
            new: "let inner = range.start / BLOCK_SECTORS * BLOCK_SECTORS..range.end.next_multiple_of(BLOCK_SECTORS);",
        }],
    },
    Mistake {
        name: "a bit that is wanted taken for one that is durable",
        story: "One bypass sets a region's bit in memory and waits for the members; the next one finds it set, and goes to the disk at once.",
        edits: &[Edit {
            file: "intent.rs",
            old: "    if intent.holds(&regions, bit, durable) {\n        return true;\n    }\n    loop {",
            new: "    if regions.clone().all(|r| intent.is_set(r, bit)) {\n        return true;\n    }\n    loop {",
        }],
    },
    Mistake {
        name: "an attach over a log that still has the number's old records",
        story: "A volume is detached, and another one gets its number before a checkpoint: after a crash the first one's records are replayed into it.",
        edits: &[Edit {
            file: "volumes.rs",
            old: "    // Records of a volume that had this number before must not be replayed into this one.\n    checkpoint::now(core).await?;\n",
            new: "",
        }],
    },
    Mistake {
        name: "waiting for a disk that does not come back",
        story: "The disk takes nothing, and whoever asked for the volume to be clean waits until it does.",
        edits: &[Edit {
            file: "volumes.rs",
            old: "filter(|s| s.rounds >= 3 && core.now()",
            new: "filter(|s| false && s.rounds >= 3 && core.now()",
        }],
    },
];
