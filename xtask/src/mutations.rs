//! Mistakes that take one thing out, or put another in its place: a flush, a wait, a check, a pin, a reserve.
//!
//! Where [`crate::mistakes`] tells what somebody may do wrong, these ask of each line that guards something whether anybody
//! would miss it.

use crate::mistakes::{Edit, Mistake};

/// All of them.
pub const MISTAKES: &[Mistake] = &[
    Mistake {
        name: "a cache device added with what was on it",
        story: "A device that had left comes back as a new one: its old intent pages and headers are taken for today's.",
        edits: &[Edit {
            file: "joining.rs",
            old: "    for (offset, len) in superblocks.chain(pages).chain(headers) {",
            new: "    for (offset, len) in superblocks.chain(pages).chain(headers).take(0) {",
        }],
    },
    Mistake {
        name: "the pool told of a new member before itself",
        story: "A crash leaves members that miss one which never knew that it was one: the pool asks for it, and does not start.",
        edits: &[Edit {
            file: "membership.rs",
            old: "            failed = self.put_superblocks(&[joins]).await;\n",
            new: "            let _ = joins;\n",
        }],
    },
    Mistake {
        name: "the witness told first of a new member",
        story: "A crash leaves a witness that asks for a member of which nobody else has heard: the pool does not start.",
        edits: &[Edit {
            file: "membership.rs",
            old: "let mut voted = votes && may_agree(true) && joins.is_none() && self.put_witness().await;",
            new: "let mut voted = votes && may_agree(true) && self.put_witness().await;",
        }],
    },
    Mistake {
        name: "a member in sync while the epoch before it is still being written",
        story: "A superblock is on its way, and the new member's epoch waits for it. It counts as in sync meanwhile: what is acknowledged should be on it, and cannot.",
        edits: &[Edit { file: "membership.rs", old: "failing == 0 && !core.superblock_busy.get() {", new: "failing == 0 {" }],
    },
    Mistake {
        name: "copies made again with the last of the reserve",
        story: "Each short life moves something to a segment of its own, until none is left: there is no room for the marks that would free any.",
        edits: &[Edit {
            file: "space.rs",
            old: "        if core.free() <= core.bounds().reserve {\n            core.mark(Mark::MendingWaits);",
            new: "        if core.free() == 0 {\n            core.mark(Mark::MendingWaits);",
        }],
    },
    Mistake {
        name: "a cache device removed with what is dirty on it",
        story: "It leaves, as it was told to, before what it holds a copy of was copied: then another one is lost.",
        edits: &[Edit {
            file: "joining.rs",
            old: "    let result = loop {\n        if cancel.wanted() || core",
            new: "    let result = loop {\n        if true {\n            break Ok(());\n        }\n        if cancel.wanted() || core",
        }],
    },
    Mistake {
        name: "a removed cache device that is still given new data",
        story: "What is written while it is emptied goes to it as before, and leaves with it.",
        edits: &[
            Edit { file: "joining.rs", old: "    core.segments.borrow_mut().close_member(member);\n", new: "" },
            Edit { file: "joining.rs", old: "        let dirty = dirty_on(core, member);\n", new: "        let dirty = 0;\n" },
        ],
    },
    Mistake {
        name: "a twin taken from a segment that was opened since",
        story: "The number of one that was closed when the checkpoint began is another's, which loses a copy that a start needs: with the other \
                one's device its newer data goes, and what it superseded is back.",
        edits: &[Edit {
            file: "checkpoint.rs",
            old: "        let s = segments.get(*n).filter(|s| s.generation <= generation)?;\n",
            new: "        let s = segments.get(*n)?;\n",
        }],
    },
    Mistake {
        name: "a checkpoint that flushes those alone that hold it",
        story: "The image names what is on a member that is about to leave, and holds no page of it: the power takes that.",
        edits: &[Edit {
            file: "checkpoint.rs",
            old: "    for m in &in_sync {\n",
            new: "    let _ = in_sync;\n    for m in &members {\n",
        }],
    },
    Mistake {
        name: "a full cache device that keeps the others from being used",
        story: "Room is reckoned by the member that has least: one full, and nothing can be appended though the others are empty.",
        edits: &[Edit {
            file: "segments.rs",
            old: "        sets(self.free_slots.iter().map(|s| s.len() as u64), copies)",
            new: "        let least = self.free_slots.iter().zip(&self.total_slots).filter(|(_, n)| **n > 0).map(|(s, _)| s.len() as u32).min();\n        least.unwrap_or(0).min(copies as u32 * u32::MAX)",
        }],
    },
    Mistake {
        name: "a read that does not follow what was moved",
        story: "What a read was on its way to was copied elsewhere, as it had one copy less; that one is lost, and the read fails.",
        edits: &[Edit {
            file: "read.rs",
            old: "    if bad.iter().any(|(block, p)| p.dirty() && is_there(*block, p)) {\n",
            new: "    if bad.iter().any(|(block, p)| p.dirty() && (is_there(*block, p) || true)) {\n",
        }],
    },
    Mistake {
        name: "a superblock that is not flushed",
        story: "It names a checkpoint, and the power takes it after what the one before needed was given up.",
        edits: &[Edit {
            file: "membership.rs",
            old: "            flushes.push((m, self.member_flusher(m).request()));\n",
            new: "            if m > 200 {\n                flushes.push((m, self.member_flusher(m).request()));\n            }\n",
        }],
    },
    Mistake {
        name: "two superblocks at once",
        story: "One is written while another is: two writes to one slot are in flight, and either may be the last.",
        edits: &[Edit {
            file: "membership.rs",
            old: "            if !self.superblock_busy.get() {\n                break;\n            }\n            self.mark(",
            new: "            if true {\n                break;\n            }\n            self.mark(",
        }],
    },
    Mistake {
        name: "a membership change in the old epoch",
        story: "A member leaves, and what says so has the number of what said otherwise.",
        edits: &[Edit { file: "membership.rs", old: "        self.pool.borrow_mut().epoch += 1;\n", new: "" }],
    },
    Mistake {
        name: "a pool that goes on without a majority",
        story: "No majority stands behind the change, and what needs one is done all the same.",
        edits: &[Edit { file: "membership.rs", old: "        pool.stalled |= !agreed;\n", new: "" }],
    },
    Mistake {
        name: "a witness counted that did not vote",
        story: "It could not be written, and is taken for a vote.",
        edits: &[Edit {
            file: "membership.rs",
            old: "let mut voted = votes && may_agree(true) && joins.is_none() && self.put_witness().await;",
            new: "let mut voted = votes && joins.is_none() && (self.put_witness().await || true);",
        }],
    },
    Mistake {
        name: "a checkpoint's page that failed, overlooked",
        story: "A member did not take a page of the image, and the image is named.",
        edits: &[Edit {
            file: "checkpoint.rs",
            old: "        core.mark(Mark::CheckpointPageFails);\n        core.fail_member_of(epoch, m).await;\n",
            new: "        let _ = (epoch, m);\n",
        }],
    },
    Mistake {
        name: "a checkpoint that does not wait for its pages",
        story: "It is named while pages of it are on their way: a flush covers what has ended before it.",
        edits: &[Edit { file: "checkpoint.rs", old: "    pages.drain(core, 0).await;\n", new: "" }],
    },
    Mistake {
        name: "a checkpoint written over the one before",
        story: "The image that counts is overwritten by the next one, and the power goes in the middle.",
        edits: &[Edit {
            file: "checkpoint.rs",
            old: "(members, 1 - pool.checkpoint.area, sequence",
            new: "(members, pool.checkpoint.area, sequence",
        }],
    },
    Mistake {
        name: "a checkpoint with the number of another",
        story: "A page of an older try, in another life, has the number of this one: where ours was lost it is taken for it.",
        edits: &[Edit {
            file: "checkpoint.rs",
            old: "(core.checkpoint_tried.get() + 1).max(core.life * TRIES)",
            new: "core.checkpoint_tried.get() + 1",
        }],
    },
    Mistake {
        name: "a segment freed with a read in flight on it",
        story: "What nothing names any more is free, though a read is on its way there, or an append.",
        edits: &[Edit { file: "segments.rs", old: "if s.live != 0 || s.pins != 0 || s.state", new: "if s.live != 0 || s.state" }],
    },
    Mistake {
        name: "an append in flight that does not keep its segment",
        story: "A segment whose record is on its way is taken for empty, and freed.",
        edits: &[
            Edit { file: "log.rs", old: "            segments.pin(segment);\n", new: "" },
            Edit {
                file: "log.rs",
                old: "            core.segments.borrow_mut().unpin(place.segment);\n            core.segments",
                new: "            core.segments",
            },
            Edit {
                file: "log.rs",
                old: "            self.seal_band(&core, band);\n            core.segments.borrow_mut().unpin(place.segment);\n",
                new: "            self.seal_band(&core, band);\n",
            },
        ],
    },
    Mistake {
        name: "a record named without a majority",
        story: "What was appended while no majority stood behind the pool is put into the map, and acknowledged.",
        edits: &[Edit { file: "log.rs", old: "have >= want && want > 0 && !pool.stalled", new: "have >= want && want > 0" }],
    },
    Mistake {
        name: "an append that FLUSH does not hear of",
        story: "The member is taken for flushed, with the record in its volatile cache.",
        edits: &[Edit { file: "log.rs", old: "                        core2.member_flusher(place.member).wrote();\n", new: "" }],
    },
    Mistake {
        name: "a superblock that its flush does not hear of",
        story: "The flush after it finds nothing to do.",
        edits: &[Edit {
            file: "membership.rs",
            old: "                Ok(_) => self.member_flusher(m).wrote(),",
            new: "                Ok(_) => {}",
        }],
    },
    Mistake {
        name: "a page that the checkpoint's flush does not hear of",
        story: "The flush after the pages finds nothing to do, and the image is named.",
        edits: &[Edit {
            file: "checkpoint.rs",
            old: "                Ok(_) => core.member_flusher(member).wrote(),",
            new: "                Ok(_) => {}",
        }],
    },
    Mistake {
        name: "an intent page that its flush does not hear of",
        story: "A bit counts as durable, and the flush that should have made it so was not sent.",
        edits: &[Edit {
            file: "intent.rs",
            old: "                Ok(_) => core.member_flusher(m).wrote(),",
            new: "                Ok(_) => {}",
        }],
    },
    Mistake {
        name: "destaged data that the disk's flush does not hear of",
        story: "It is called clean, and is in the disk's volatile cache.",
        edits: &[Edit {
            file: "destage.rs",
            old: "        ok &= write.await.is_ok();\n        volume.disk_flusher.wrote();\n",
            new: "        ok &= write.await.is_ok();\n",
        }],
    },
    Mistake {
        name: "an ordered overwrite that the disk's flush does not hear of",
        story: "The dirty record is called outdated while the write that outdates it is in the disk's volatile cache.",
        edits: &[Edit {
            file: "write.rs",
            old: "    volume.disk_flusher.wrote();\n    core.mark_if(write.is_err()",
            new: "    core.mark_if(write.is_err()",
        }],
    },
    Mistake {
        name: "marks that count before they are flushed",
        story: "Data is clean in the map and evicted, the power takes the marks: the start brings it back as dirty.",
        edits: &[Edit {
            file: "destage.rs",
            old: "    if durable(core).await.is_err() {\n        return End::Nothing(Obstacle::Members);\n    }\n    call_clean",
            new: "    call_clean",
        }],
    },
    Mistake {
        name: "an older segment in a slot that a newer one has",
        story: "A slot was reused, and the start gives it to the segment that had it before, too.",
        edits: &[Edit {
            file: "recovery.rs",
            old: "!is_there || claims.get(&(c.member, c.slot)).is_some_and(|g| *g > generation)",
            new: "!is_there || generation == u64::MAX",
        }],
    },
    Mistake {
        name: "a preload that writes do not spoil",
        story: "A write meets what is being read from the disk for the cache, and is hidden by what the disk had before.",
        edits: &[Edit {
            file: "preload.rs",
            old: "Some(volume.fills.begin(blocks))",
            new: "Some(crate::fills::Fills::default().begin(blocks))",
        }],
    },
    Mistake {
        name: "a preload of what is being written",
        story: "A write past the cache was under way already when the preload read the disk: what it read is older, and stays.",
        edits: &[Edit {
            file: "preload.rs",
            old: "    if volume.is_being_written(&blocks) {\n        return None;\n    }\n",
            new: "",
        }],
    },
    Mistake {
        name: "a preload that knew what is missing before it waited",
        story: "What was written in the wait is in the cache, and the disk's older data comes over it.",
        edits: &[Edit {
            file: "preload.rs",
            old: "    let missing = missing(volume, batch);\n",
            new: "    let missing = missing(volume, batch);\n    core.exec.sleep(1_000_000).await;\n",
        }],
    },
    Mistake {
        name: "a volume's new end served before it is durable",
        story: "A write beyond the old end is acknowledged, and the power goes: the start reads the old size, and drops it.",
        edits: &[Edit {
            file: "grow.rs",
            old: "    core.resize(v, sectors);\n",
            new: "    core.resize(v, sectors);\n    v.open.set(sectors);\n",
        }],
    },
    Mistake {
        name: "pages that move, written to one place alone",
        story: "A volume grows, and its intent pages move. A bit that is set meanwhile is not where the superblock still says.",
        edits: &[Edit {
            file: "intent.rs",
            old: "            [Some(self.named.get()), self.beside.get()].into_iter().flatten().filter_map(",
            new: "            self.beside.get().or(Some(self.named.get())).into_iter().filter_map(",
        }],
    },
    Mistake {
        name: "pages that have left before the superblock has",
        story: "A volume's intent pages are in their new place, and the old one is not written any more: that is the one that the superblock names when the power goes.",
        edits: &[Edit {
            file: "grow.rs",
            old: "        v.intent.name_other();\n    }\n    core.resize",
            new: "        v.intent.name_other();\n        v.intent.leave_other(core, v).await;\n    }\n    core.resize",
        }],
    },
    Mistake {
        name: "pages named where they are not yet",
        story: "The superblock says where a volume's intent pages are to be, and the power goes: its bits were elsewhere.",
        edits: &[Edit {
            file: "grow.rs",
            old: "        if !v.intent.rewrite(core, v).await {",
            new: "        if core.pool.borrow().stalled {",
        }],
    },
    Mistake {
        name: "an earlier volume's pages left under one that grows",
        story: "Of each page that a volume grows by one slot is written: in the other one is what another volume had there.",
        edits: &[Edit {
            file: "intent.rs",
            old: "        self.written(core, volume, 2).await",
            new: "        self.written(core, volume, 1).await",
        }],
    },
    Mistake {
        name: "pages given away that are still being written",
        story: "A bit of a volume is being cleared when it is detached; another one grows into its pages, and both write there.",
        edits: &[Edit { file: "volumes.rs", old: "    v.intent.end().await;\n", new: "" }],
    },
];
