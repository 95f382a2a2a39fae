//! The sequences that break a design like ours: H1 to H20.

use super::Told;
use crate::mistakes::{Edit, Mistake};

/// The scenes of `crates/sim/tests/named/hazards.rs`.
pub const TOLD: &[Told] = &[
    ("hazards::h1_superseded_is_not_dead", "a superseded segment reused too early"),
    ("hazards::h2_bypass_then_destage", "two writes to one range in flight"),
    ("hazards::h2_discard_then_destage", "two writes to one range in flight"),
    ("hazards::h2_planned_before_written_after", "a sweep planned before it has the range"),
    ("hazards::h2_written_under_the_sweep", "clean marked beyond what was destaged"),
    ("hazards::h2_appended_under_the_sweep", "a sweep over what is being appended"),
    ("hazards::h3_hole_taken_for_the_end", "appending to a segment that was open before"),
    ("hazards::h4_read_from_a_volatile_cache", "a start that flushes no cache device"),
    ("hazards::h4_tail_on_one_copy", "a dirty record found on one copy not completed at start"),
    ("hazards::h4_flush_after_a_death", "a start that takes the devices for flushed"),
    ("hazards::h5_hole_before_a_durable_record", "replay that stops at a hole"),
    ("hazards::h5_durable_beside_a_plain_one", "a forced-unit-access write acknowledged when it is written"),
    ("hazards::h5_durable_past_the_cache", "the cache devices left out of the forced-unit-access write past them"),
    ("hazards::h5_nothing_before_the_header", "records that count before their segment's header"),
    ("hazards::h5_torn_record", "a torn record believed"),
    ("hazards::h5_append_under_a_checkpoint", "a checkpoint that does not wait for appends"),
    ("hazards::h6_filled_before_the_platter", "a fill of unflushed data called clean"),
    ("hazards::h6_written_through_before_the_platter", "a fill of unflushed data called clean"),
    ("hazards::h7_bit_before_the_write", "a bypass before its intent bit"),
    ("hazards::h7_bit_before_the_write", "an intent bit that counts before it is flushed"),
    ("hazards::h7_bit_cleared_after_the_flush", "an intent bit cleared without a disk flush"),
    ("hazards::h7_bit_kept_while_it_is_needed", "an intent bit cleared though the disk was written since"),
    ("hazards::h7_bit_on_one_member", "an intent page found on one member taken for everybody's"),
    ("hazards::h7_two_pages_with_one_number", "one of two intent pages with one number"),
    ("hazards::h8_disk_flushed_before_the_mark", "an ordered overwrite that does not flush the disk"),
    ("hazards::h8_mark_before_the_acknowledgement", "an ordered overwrite that leaves the old record standing"),
    ("hazards::h8_reserve_for_marks", "no reserve for marks"),
    ("hazards::h9_full_is_not_for_ever", "a write that waits for room for ever"),
    ("hazards::h10_moved_behind_a_newer_one", "relocation that takes a new version"),
    ("hazards::h11_no_majority_no_acknowledgement", "a majority taken for granted"),
    ("hazards::h11_epoch_before_the_acknowledgement", "acknowledgement before the epoch"),
    ("hazards::h11_one_epoch_twice", "one epoch twice, and nothing that tells which was agreed on"),
    ("hazards::h11_witness_keeps_its_word", "a witness that is not flushed"),
    ("hazards::h11_missing_at_a_start", "members missing at a start that do not leave"),
    ("hazards::h11_failed_flush_is_a_death", "a failed flush of a cache device overlooked"),
    ("hazards::h11_no_flush_without_a_majority", "a flush without a majority"),
    ("hazards::h11_failed_append_is_a_death", "a failed append of a cache device overlooked"),
    ("hazards::h11_copies_of_the_epoch_that_holds", "copies counted that were made under another epoch"),
    ("hazards::h11_no_bypass_without_a_majority", "a write past the cache without a majority"),
    ("hazards::h12_two_of_four", "a volume served though its copies left with their members"),
    ("hazards::h12_two_of_four", "dirty data without its region's bit"),
    ("hazards::h12_one_after_the_other", "members that left one after the other not added up"),
    ("hazards::h12_only_the_dirty_range_fails", "dirty data without a copy read from the disk"),
    ("hazards::h13_an_honest_pool_starts", "dirty data compared with the disk"),
    ("hazards::h13_an_honest_pool_starts", "a fill of unflushed data called clean"),
    ("hazards::h13_another_disk_is_refused", "another disk overlooked"),
    ("hazards::h14_overlay_chosen_at_issue", "what lies over the disk's data chosen when that comes"),
    ("hazards::h14_place_of_a_hit_kept", "a hit in flight that does not keep its segment"),
    ("hazards::h14_places_of_a_read_kept", "a read in flight that does not keep its segment"),
    ("hazards::h15_written_within_the_fill", "a stale fill kept"),
    ("hazards::h15_written_under_the_record", "a stale fill kept"),
    ("hazards::h15_fill_beside_a_write", "a fill begun beside a write under way"),
    ("hazards::h15_written_through_beside_another", "a write admitted beside another one"),
    ("hazards::h16_tombstone_until_the_disk_has_it", "a tombstone dropped before the disk has the zeroes"),
    ("hazards::h16_discarded_past_the_cache", "dirty data only forgotten by a discard past the cache"),
    ("hazards::h16_rounded_inwards", "a discard rounded outwards"),
    ("hazards::h16_many_zeroes_are_not_absorbed", "zeroes absorbed without a bound"),
    ("hazards::h18_twin_of_dirty_data_stays", "the twin of dirty data let go"),
    ("hazards::h19_flush_reaches_the_disk", "the disk left out of the flush"),
    ("hazards::h19_one_flush_of_each_cache_device", "a flush removed"),
    ("hazards::h19_one_flush_of_each_cache_device", "a flush sent to one copy only"),
    ("hazards::h19_no_flush_for_the_sweeps_sake", "a flush that waits for what a sweep has written"),
    ("hazards::h20_copied_again", "data left on one copy not copied again"),
    ("hazards::h20_destaged_at_once", "a degraded pool that does not destage"),
];

/// What is told in another place, or cannot happen here: why.
pub const ELSEWHERE: &[(usize, &str)] = &[(
    17,
    "There are no instances to keep apart: one engine on one thread serves a pool and all its volumes, each volume has one log, one sweep and one table of streams, and segments, epoch and checkpoints have one owner. What volumes share is told by the mistake \"a checkpoint that knows the volumes of a moment before\", found by seeds with two volumes.",
)];

/// Mistakes that no other list has.
pub const MISTAKES: &[Mistake] = &[
    Mistake {
        name: "a sweep planned before it has the range",
        story: "What a sweep puts down is looked up before its turn at the range comes: a write past the cache that was there first is overwritten with what was before it.",
        edits: &[
            Edit { file: "destage.rs", old: "    let _lock = volume.disk_ranges.lock(sectors).await;\n", new: "" },
            Edit {
                file: "destage.rs",
                old: "    let (zeroes, data): (Vec<_>, Vec<_>) = pieces.iter()",
                new: "    let _lock = volume.disk_ranges.lock(sectors).await;\n    let (zeroes, data): (Vec<_>, Vec<_>) = pieces.iter()",
            },
        ],
    },
    Mistake {
        name: "no reserve for marks",
        story: "Writes take the last segment: the marks that would outdate what is in the log have no room, and nothing gets clean any more.",
        edits: &[
            Edit {
                file: "space.rs",
                old: "let is_free = free > reserve + self.left_to_others(volume) || open && free >= reserve;",
                new: "let is_free = free > reserve.min(0) || open;",
            },
            Edit {
                file: "log.rs",
                old: "            Draw::Demand | Draw::Move => self.bounds().reserve + left,",
                new: "            Draw::Demand | Draw::Move => 0,",
            },
        ],
    },
    Mistake {
        name: "a write that waits for room for ever",
        story: "The room for dirty data is full and destage wins none: a write waits for it, rather than go to the disk by itself.",
        edits: &[Edit {
            file: "write.rs",
            old: "if hopeless || too_long || volume.mode",
            new: "if hopeless && too_long && false || volume.mode",
        }],
    },
    Mistake {
        name: "dirty data compared with the disk",
        story: "What is dirty differs from the disk, as it may; at the start after a power cut it is taken for a sign that the disk is another.",
        edits: &[Edit { file: "comparison.rs", old: "if piece.dirty() || !is_its ||", new: "if !is_its ||" }],
    },
    Mistake {
        name: "what lies over the disk's data chosen when that comes",
        story: "A dirty block is destaged and cleaned while a long read is at the disk: when its data comes nothing lies over it any more, and it is older.",
        edits: &[Edit {
            file: "read.rs",
            old: "        count(volume, &plan, sectors * 512, stream);\n",
            new: "        let mut plan = plan;\n        plan.parts.retain(|part| {\n            let Source::Cached(n) = part.source else { return true };\n            let (block, piece) = plan.pieces[n];\n            let mut there = !plan.disk.iter().any(|d| d.start <= part.range.start && part.range.end <= d.end);\n            volume.map.borrow().each(block, |p| there |= p.dirty() && p.version() == piece.version());\n            there\n        });\n        count(volume, &plan, sectors * 512, stream);\n",
        }],
    },
    Mistake {
        name: "dirty data only forgotten by a discard past the cache",
        story: "A discard goes to the disk, and what is dirty under it is taken out of the map: no record says so, and at the next start it is back.",
        edits: &[Edit {
            file: "write.rs",
            old: "    let dirty = older_dirty(volume, range, version);\n",
            new: "    let mut dirty = older_dirty(volume, range, version);\n    dirty.retain(|_| !matches!(content, Content::Discarded));\n",
        }],
    },
    Mistake {
        name: "a discard rounded outwards",
        story: "A discard that touches a part of a block takes the rest of it too.",
        edits: &[Edit {
            file: "engine.rs",
            old: "let inner = range.start.next_multiple_of(BLOCK_SECTORS)..range.end / BLOCK_SECTORS * BLOCK_SECTORS;",
            new: "let inner = range.start / BLOCK_SECTORS * BLOCK_SECTORS..range.end.next_multiple_of(BLOCK_SECTORS);",
        }],
    },
    Mistake {
        name: "zeroes absorbed without a bound",
        story: "One request makes as many dirty blocks as it names: the map is full of them, and the disk busy for hours.",
        edits: &[Edit { file: "write.rs", old: "if sectors * 512 > core.settings.zeroes_bytes {", new: "if false {" }],
    },
    Mistake {
        name: "the twin of dirty data let go",
        story: "A checkpoint lets one copy go of segments that hold dirty data: the other one's device dies.",
        edits: &[Edit {
            file: "checkpoint.rs",
            old: "s.state == SegmentState::Sealed && s.dirty == 0 && s.live > 0;",
            new: "s.state == SegmentState::Sealed && s.live > 0;",
        }],
    },
    Mistake {
        name: "a flush that waits for what a sweep has written",
        story: "While a sweep is under way each FLUSH of a client flushes the disk, though all that was acknowledged is in the log: it costs what it costs without a cache.",
        edits: &[Edit { file: "flush.rs", old: "volume.disk_flusher.request_owed());", new: "volume.disk_flusher.request());" }],
    },
    Mistake {
        name: "data left on one copy not copied again",
        story: "A cache device dies, and what it had with another stays on that one alone, though there is a third: the second dies too.",
        edits: &[Edit { file: "space.rs", old: "        mend_copies(&core).await;\n", new: "" }],
    },
    Mistake {
        name: "a degraded pool that does not destage",
        story: "One of two cache devices dies, and dirty data stays on the other one alone until that dies too.",
        edits: &[Edit {
            file: "policy/destage.rs",
            old: "if load.wanted_clean || load.degraded || load.disk_idle {",
            new: "if load.wanted_clean || load.disk_idle {",
        }],
    },
    Mistake {
        name: "the cache devices left out of the forced-unit-access write past them",
        story: "A write that was to be durable went past the cache, and what of it overlapped dirty data into the log: only the disk is flushed.",
        edits: &[Edit {
            file: "write.rs",
            old: "    durable(core).await?;\n    let on_disk = volume",
            new: "    let on_disk = volume",
        }],
    },
    Mistake {
        name: "records that count before their segment's header",
        story: "A record is acknowledged while the first write of its segment is in flight: the daemon dies, and nobody finds the segment.",
        edits: &[Edit { file: "log.rs", old: "Some(header) => header.get().await,", new: "Some(_) => true," }],
    },
    Mistake {
        name: "a torn record believed",
        story: "Of a record in flight the power cut left the header alone; it hides the flushed version before it, and its data is not there.",
        edits: &[Edit {
            file: "recovery.rs",
            old: "Some(part) if part.checksum(seed) == e.sum => best = Some(part),",
            new: "Some(part) if seed > 0 => best = Some(part),",
        }],
    },
    Mistake {
        name: "a checkpoint that does not wait for appends",
        story: "A record is in flight when a checkpoint begins: it lies before the position from which the log is replayed, and is not in the image.",
        edits: &[Edit {
            file: "checkpoint.rs",
            old: "if core.flights.borrow().first().is_none_or(|t| *t > last) {",
            new: "if last > 0 {",
        }],
    },
    Mistake {
        name: "an intent bit that counts before it is flushed",
        story: "The page with a region's bit is written and not flushed when the disk is written: the power cut takes the bit, and a clean copy that is older than the disk counts.",
        edits: &[Edit {
            file: "intent.rs",
            old: "members.iter().filter(|m| core.pool.borrow().is_in_sync(**m));",
            new: "members.iter().filter(|_| false);",
        }],
    },
    Mistake {
        name: "one epoch twice, and nothing that tells which was agreed on",
        story: "A cache device wrote one down without votes, and the other one has the same with the witness: neither the witness nor the superblocks are asked which counts.",
        edits: &[
            Edit {
                file: "membership.rs",
                old: "let hopeless = !may_agree(voted || votes && joins.is_some());",
                new: "let hopeless = false;",
            },
            Edit {
                file: "election.rs",
                old: "w.epoch != s.epoch || w.in_sync.agrees_with(&s.in_sync()),",
                new: "w.epoch != s.epoch || w.in_sync.agrees_with(&s.in_sync()) || true,",
            },
            Edit {
                file: "format/superblock.rs",
                old: "(self.agreed, self.epoch, self.sequence)",
                new: "(0, self.epoch, self.sequence)",
            },
            Edit {
                file: "start.rs",
                old: "if !core.write_superblock().await {\n            break;\n        }\n        if core.pool",
                new: "if core.pool",
            },
        ],
    },
    Mistake {
        name: "a witness that is not flushed",
        story: "The witness has the epoch in its volatile cache when the pool goes on without a cache device: after a power cut that device and the witness start, and know nothing of what came after.",
        edits: &[Edit {
            file: "membership.rs",
            old: "let told = written.is_ok() && self.exec.io(Device::Witness, DeviceOp::Flush).await.is_ok();",
            new: "let told = written.is_ok();",
        }],
    },
    Mistake {
        name: "members missing at a start that do not leave",
        story: "A pool starts without a cache device and acknowledges writes, and no epoch says so: that device comes back with the witness, and is taken for current.",
        edits: &[Edit {
            file: "start.rs",
            old: "membership::agree_at_start(core).await;\n",
            new: "core.pool.borrow_mut().missing.clear();\n",
        }],
    },
    Mistake {
        name: "a failed flush of a cache device overlooked",
        story: "A cache device does not keep what it took, and FLUSH is answered as if it did: there is one copy of what was promised.",
        edits: &[Edit {
            file: "flush.rs",
            old: "            core.mark(Mark::MemberFailsAFlush);\n            core.fail_member_of(epoch, m).await;\n",
            new: "            core.mark(Mark::MemberFailsAFlush);\n            let _ = (epoch, m);\n",
        }],
    },
    Mistake {
        name: "a write past the cache without a majority",
        story: "A write's append failed with the majority, and its record may be on a cache device; a later write goes to the disk and is acknowledged, and the next start lays that record over it.",
        edits: &[Edit {
            file: "write.rs",
            old: "    if core.pool.borrow().stalled && Intent",
            new: "    if false && core.pool.borrow().stalled && Intent",
        }],
    },
    Mistake {
        name: "dirty data without its region's bit",
        story: "Where there may be dirty data is known only from its records: they go with the two cache devices that had them, and the disk is served in their place.",
        edits: &[Edit {
            file: "write.rs",
            old: "is_marked &= ensure(core, volume, part, Bit::Dirty, 0).await;",
            new: "is_marked &= true || ensure(core, volume, part, Bit::Dirty, 0).await;",
        }],
    },
    Mistake {
        name: "another disk overlooked",
        story: "Clean data is not what the disk has there: it is another one, and dirty data is put onto it.",
        edits: &[Edit {
            file: "comparison.rs",
            old: "    if v.map.borrow().dirty_blocks() > 0 {\n        v.refused.set(true);",
            new: "    if v.map.borrow().dirty_blocks() > 0 {\n        v.refused.set(false);",
        }],
    },
    Mistake {
        name: "a write admitted beside another one",
        story: "Two writes to the same sectors are written through, one behind the other: the first one's data is admitted after the second one has outdated it.",
        edits: &[Edit { file: "write.rs", old: "    if others > 1 {\n", new: "    if others > 99 {\n" }],
    },
    Mistake {
        name: "a sweep over what is being appended",
        story: "A sweep puts an older write down while a newer one is being appended: its mark covers the newer version, which is called clean at the next start.",
        edits: &[Edit { file: "destage.rs", old: "    volume.take_out_pending(&mut blocks);\n", new: "" }],
    },
    Mistake {
        name: "an intent bit cleared though the disk was written since",
        story: "A region is written while a checkpoint is under way that clears its bit: what was read there is called clean, and the disk may lose it.",
        edits: &[Edit {
            file: "intent.rs",
            old: "            if u.writing == 0 && u.disk_touched <= begun && !u.doubted {\n",
            new: "            if u.writing == 0 && !u.doubted {\n",
        }],
    },
    Mistake {
        name: "a flush without a majority",
        story: "A cache device fails a flush with the witness away, and FLUSH is answered on the word of the other one: it is not the one that comes back.",
        edits: &[Edit {
            file: "flush.rs",
            old: "    if core.pool.borrow().stalled { Err(RequestError::Io) } else { Ok(()) }\n",
            new: "    Ok(())\n",
        }],
    },
    Mistake {
        name: "a failed append of a cache device overlooked",
        story: "A cache device does not take a record, and stays: the write is acknowledged with one copy, and two are believed in.",
        edits: &[Edit {
            file: "log.rs",
            old: "                        core2.mark(Mark::AppendFailsOnMember);\n                        core2.fail_member_of(epoch, place.member).await;\n",
            new: "                        core2.mark(Mark::AppendFailsOnMember);\n",
        }],
    },
    Mistake {
        name: "copies counted that were made under another epoch",
        story: "A cache device leaves under an append, and the write is acknowledged on the copy that is left, though there is a third device: the second leaves too.",
        edits: &[Edit {
            file: "log.rs",
            old: "header_ok && have >= want && want > 0 && !pool.stalled",
            new: "header_ok && have > 0 && want > 0 && !pool.stalled",
        }],
    },
    Mistake {
        name: "a hit in flight that does not keep its segment",
        story: "As \"a read in flight that does not keep its segment\", for the way that hits in one block take.",
        edits: &[
            Edit { file: "fetch.rs", old: "        segments.pin(piece.segment);\n", new: "" },
            Edit { file: "fetch.rs", old: "    segments.unpin(piece.segment);\n", new: "" },
            // It would look again for what has been moved.
            Edit {
                file: "read.rs",
                old: "    if bad.iter().any(|(block, p)| p.dirty() && is_there(*block, p)) {\n",
                new: "    if bad.iter().any(|(_, p)| p.dirty()) {\n",
            },
        ],
    },
];
