//! The mistakes that are planted, each with its story.

use std::path::{Path, PathBuf};

/// A replacement of text in a file of the engine, or of the format.
pub struct Edit {
    /// The file, in `crates/engine/src`; with `format/` before it, in `crates/format/src`.
    pub file: &'static str,
    /// What is there, exactly once.
    pub old: &'static str,
    /// What stands there instead.
    pub new: &'static str,
}

impl Edit {
    /// Where the file is, below `crates`.
    pub fn path(&self) -> PathBuf {
        match self.file.strip_prefix("format/") {
            Some(file) => Path::new("format/src").join(file),
            None => Path::new("engine/src").join(self.file),
        }
    }
}

/// A mistake.
pub struct Mistake {
    /// What was done wrong.
    pub name: &'static str,
    /// What comes of it.
    pub story: &'static str,
    /// How to make it.
    pub edits: &'static [Edit],
}

/// All of them.
pub fn all() -> Vec<&'static Mistake> {
    MISTAKES.iter().chain(crate::mutations::MISTAKES).chain(crate::named::mistakes()).collect()
}

const MISTAKES: &[Mistake] = &[
    Mistake {
        name: "a flush removed",
        story: "FLUSH is answered without flushing the cache devices: a power cut takes what it promised.",
        edits: &[Edit { file: "flush.rs", old: "let on_members = durable(core).await;", new: "let on_members = Ok(());" }],
    },
    Mistake {
        name: "a flush sent to one copy only",
        story: "The first cache device is flushed and its twin is not: after a power cut there is one copy of what was flushed.",
        edits: &[Edit {
            file: "flush.rs",
            old: "(core.pool.borrow().epoch, core.pool.borrow().in_sync().collect());\n    let flushes",
            new: "(core.pool.borrow().epoch, core.pool.borrow().in_sync().take(1).collect());\n    let flushes",
        }],
    },
    Mistake {
        name: "the disk left out of the flush",
        story: "FLUSH flushes the cache devices alone: what was bypassed is in the disk's volatile cache when the power goes.",
        edits: &[Edit {
            file: "flush.rs",
            old: "    let on_disk = if let Some(on_disk) = on_disk { on_disk.get().await } else { Ok(()) };\n",
            new: "    drop(on_disk);\n    let on_disk: Result<(), ()> = Ok(());\n",
        }],
    },
    Mistake {
        name: "a forced-unit-access write acknowledged when it is written",
        story: "A write that was to be durable is acknowledged as any other: it is gone after a power cut.",
        edits: &[Edit {
            file: "write.rs",
            old: "        volume.asked_to_flush();\n        durable(core).await?;\n        // The last",
            new: "        // The last",
        }],
    },
    Mistake {
        name: "the disk left out of the forced-unit-access write",
        story: "A write that was to be durable went past the cache, and is acknowledged without a flush of the disk.",
        edits: &[
            Edit { file: "write.rs", old: "    let on_disk = volume.disk_flusher.request();\n    durable", new: "    durable" },
            Edit {
                file: "write.rs",
                old: "    let on_disk = volume.disk_flusher.end_since(on_disk, failures).await;\n",
                new: "    let on_disk: Result<(), RequestError> = Ok(());\n",
            },
        ],
    },
    Mistake {
        name: "a failed flush of the disk forgotten",
        story: "A sweep's flush fails, with clients' writes under it; the next FLUSH ends well, and they are gone after a power cut.",
        edits: &[Edit { file: "flush.rs", old: "if on_disk.is_err() || lost || gone {", new: "if on_disk.is_err() || gone {" }],
    },
    Mistake {
        name: "clean marked by the flush after the one that failed",
        story: "A flush fails under what a sweep has written; the sweep's own ends well, and says nothing of it.",
        edits: &[Edit {
            file: "destage.rs",
            old: "if on_disk.get().await.is_err() || volume.disk_flusher.failures() != failures {",
            new: "if on_disk.get().await.is_err() {",
        }],
    },
    Mistake {
        name: "a start that takes the devices for flushed",
        story: "A killed daemon left acknowledged writes in the disk's cache; the next one knows of none, and its FLUSH skips the disk.",
        edits: &[Edit { file: "flusher.rs", old: "unflushed: Cell::new(true),", new: "unflushed: Cell::new(false)," }],
    },
    Mistake {
        name: "clean marked before the disk's flush",
        story: "Destaged data is called clean while the disk still has it in its volatile cache; the power goes, and neither has it.",
        edits: &[Edit {
            file: "destage.rs",
            old: "if on_disk.get().await.is_err() || volume.disk_flusher.failures() != failures {",
            new: "drop(on_disk);\n    if false {",
        }],
    },
    Mistake {
        name: "marks that outlive what hid a part of the block",
        story: "A flushed write is partly hidden by a newer one, and only the rest of it is destaged; the power cut takes the newer one and leaves the mark: the older one is called clean, and the disk lacks what was hidden.",
        edits: &[Edit {
            file: "destage.rs",
            old: "    if durable(core).await.is_err() {\n        return End::Nothing(Obstacle::Members);\n    }\n    if on_disk",
            new: "    if on_disk",
        }],
    },
    Mistake {
        name: "clean marked beyond what was destaged",
        story: "A newer write came while the older one went down; the mark covers both, and the newer one is never destaged.",
        edits: &[
            Edit { file: "destage.rs", old: "as u32, version: chunk.version })", new: "as u32, version: core.version.get() })" },
            Edit {
                file: "destage.rs",
                old: "map.mark_clean(&mut segments, *b, chunk.version);",
                new: "map.mark_clean(&mut segments, *b, core.version.get());",
            },
        ],
    },
    Mistake {
        name: "a stale fill kept",
        story: "A write overlapped a read's fill, and the older data that the read brought from the disk is named all the same.",
        edits: &[
            Edit { file: "log.rs", old: "Item::Fill { fill, .. } => !fill.spoiled.get(),", new: "Item::Fill { .. } => true," },
            Edit { file: "log.rs", old: "if fill.spoiled.get() {", new: "if false {" },
        ],
    },
    Mistake {
        name: "a fill begun beside a write under way",
        story: "A bypass is on its way to the disk when a read misses: the read's data is older, and is admitted.",
        edits: &[Edit {
            file: "read.rs",
            old: "if volume.is_being_written(&blocks) || volume.fills.contain(&blocks) {",
            new: "if volume.fills.contain(&blocks) {",
        }],
    },
    Mistake {
        name: "a superseded segment reused too early",
        story: "A segment without live records is written over at once: the versions that replaced them were not durable, and the marks in it were needed.",
        edits: &[Edit {
            file: "segments.rs",
            old: "            match s.class {\n                Class::Single => self.release(n),",
            new: "            match s.class {\n                Class::Mirrored if begun < u64::MAX => self.release(n),\n                Class::Single => self.release(n),",
        }],
    },
    Mistake {
        name: "a read in flight that does not keep its segment",
        story: "What a read is to fetch is cleaned, freed and written over before the device gets to it.",
        edits: &[
            Edit {
                file: "fetch.rs",
                old: "    runs.iter().for_each(|run| core.segments.borrow_mut().pin(run.segment));\n",
                new: "",
            },
            Edit { file: "fetch.rs", old: "        segments.unpin(run.segment);\n", new: "" },
            // It would look again for what has been moved.
            Edit {
                file: "read.rs",
                old: "    if bad.iter().any(|(block, p)| p.dirty() && is_there(*block, p)) {\n",
                new: "    if bad.iter().any(|(_, p)| p.dirty()) {\n",
            },
        ],
    },
    Mistake {
        name: "two writes to one range in flight",
        story: "A destage and a bypass write the same sectors at once, and the disk ends up with whichever lands last.",
        edits: &[Edit {
            file: "ranges.rs",
            old: "!self.held.borrow().iter().any(|h| h.ticket < ticket",
            new: "!self.held.borrow().iter().any(|h| false && h.ticket < ticket",
        }],
    },
    Mistake {
        name: "appending to a segment that was open before",
        story: "A power cut left a hole before records that had landed; the next daemon takes it for the log's end, and appends over them.",
        edits: &[
            Edit {
                file: "recovery.rs",
                old: "            at += unit / 512;\n            continue;\n",
                new: "            core.reopen(f.number, f.header.volume, at);\n            at += unit / 512;\n            continue;\n",
            },
            Edit { file: "loading.rs", old: "            segments.seal(*n);\n", new: "" },
            Edit {
                file: "membership.rs",
                old: "        volume.dirty_log.seal(core);\n        volume.clean_log.seal(core);\n        volume.intent",
                new: "        volume.clean_log.seal(core);\n        volume.intent",
            },
            Edit {
                file: "log.rs",
                old: "impl<B: Buf> Core<B> {\n",
                new: "impl<B: Buf> Core<B> {\n    pub(crate) fn reopen(self: &Rc<Self>, segment: u32, volume: u16, at: u32) {\n        let mut segments = self.segments.borrow_mut();\n        let (Some(s), Some(v)) = (segments.get_mut(segment), self.volume(volume)) else { return };\n        if s.class == Class::Mirrored && v.dirty_log.bands.borrow()[0].open.is_none() {\n            (s.state, s.next) = (crate::segments::SegmentState::Open, at);\n            let header = Slot::new(&self.exec);\n            header.set(true);\n            v.dirty_log.bands.borrow_mut()[0].open = Some(Open { segment, header });\n        }\n    }\n\n",
            },
        ],
    },
    Mistake {
        name: "replay that stops at a hole",
        story: "Of two records in flight the first was lost and the second, flushed on its own, is behind the hole.",
        edits: &[Edit {
            file: "recovery.rs",
            old: "            at += unit / 512;\n            continue;\n",
            new: "            break;\n",
        }],
    },
    Mistake {
        name: "a dirty record found on one copy not completed at start",
        story: "The record that a crash left on one copy is served, and is gone with that one device.",
        edits: &[Edit {
            file: "recovery.rs",
            old: "if whole.iter().any(|w| !w) && copies.len() > 1 {",
            new: "if false && whole.iter().any(|w| !w) && copies.len() > 1 {",
        }],
    },
    Mistake {
        name: "a start that flushes no cache device",
        story: "What a start has read and built upon is in volatile caches; the power goes after the older copies were given up.",
        edits: &[
            Edit {
                file: "recovery.rs",
                old: "async fn flush_members<B: Buf>(core: &Rc<Core<B>>) {\n    let members: Vec<u8> = core.pool.borrow().in_sync().collect();",
                new: "async fn flush_members<B: Buf>(core: &Rc<Core<B>>) {\n    let members: Vec<u8> = core.pool.borrow().in_sync().take(0).collect();",
            },
            // The superblocks that a start writes are flushed too.
            Edit {
                file: "start.rs",
                old: "membership::agree_at_start(core).await;\n",
                new: "core.pool.borrow_mut().missing.clear();\n",
            },
            Edit {
                file: "start.rs",
                old: "if !core.write_superblock().await {\n            break;\n        }\n        if core.pool",
                new: "if core.pool",
            },
        ],
    },
    Mistake {
        name: "the order of replay taken for the order of writes",
        story: "Whichever record is replayed last counts, rather than the one with the larger version.",
        edits: &[Edit {
            file: "map.rs",
            old: "if old.version() > piece.version() {",
            new: "if false && old.version() > piece.version() {",
        }],
    },
    Mistake {
        name: "relocation that takes a new version",
        story: "Old data is moved while a newer write is being appended: the move gets the larger version, and hides the newer write.",
        edits: &[
            Edit {
                file: "log.rs",
                old: "                let (kind, sum, offset) = match data {\n                    Some(d) => (EntryKind::Dirty, d.checksum(core.seed(volume.number, *block, *first, from.version())), at),",
                new: "                let moved = core.next_version();\n                let (kind, sum, offset) = match data {\n                    Some(d) => (EntryKind::Dirty, d.checksum(core.seed(volume.number, *block, *first, moved)), at),",
            },
            Edit {
                file: "log.rs",
                old: "                    version: from.version(),\n                    sum,\n                    offset,",
                new: "                    version: moved,\n                    sum,\n                    offset,",
            },
            Edit { file: "log.rs", old: "!volume.is_being_replaced(*block) && still_there", new: "still_there" },
        ],
    },
    Mistake {
        name: "acknowledgement before the epoch",
        story: "A write is acknowledged on the copy that is left before the epoch without the other one is durable: that one comes back alone, and is taken for current.",
        edits: &[
            Edit {
                file: "log.rs",
                old: "        core.wait_settled().await;\n        // Members that left",
                new: "        // Members that left",
            },
            Edit {
                file: "membership.rs",
                old: "            self.exec.spawn(change(self.clone(), before, Why::Fails));\n        }\n        self.wait_settled().await;\n",
                new: "            self.exec.spawn(change(self.clone(), before, Why::Fails));\n        }\n",
            },
        ],
    },
    Mistake {
        name: "a majority taken for granted",
        story: "With the witness away, one of two cache devices goes on alone and acknowledges; the other one starts with the witness, and knows nothing of it.",
        edits: &[
            Edit {
                file: "membership.rs",
                old: "let hopeless = !may_agree(voted || votes && joins.is_some());",
                new: "let hopeless = false;",
            },
            Edit {
                file: "membership.rs",
                old: "{ reaches_all && agrees(&failed, voted) };",
                new: "{ true || agrees(&failed, voted) };",
            },
        ],
    },
    Mistake {
        name: "an epoch that the witness contradicts",
        story: "A cache device wrote down an epoch of its own without the witness, in vain; at the next start it is believed.",
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
        ],
    },
    Mistake {
        name: "a fill of unflushed data called clean",
        story: "A read cached what a bypass had left in the disk's volatile cache; after a power cut the disk has the older data, and the cache what it never got.",
        edits: &[Edit {
            file: "loading.rs",
            old: "        let is_unproved = unproved.is_some_and(",
            new: "        let is_unproved = false && unproved.is_some_and(",
        }],
    },
    Mistake {
        name: "an invalidation skipped on bypass",
        story: "A write went past the cache, and the clean copy that it outdated is still read.",
        edits: &[Edit { file: "write.rs", old: "        forget(core, volume, part, version);\n", new: "" }],
    },
    Mistake {
        name: "a bypass before its intent bit",
        story: "The disk is written before the region's bit is durable: after a crash the clean copy there is taken for current.",
        edits: &[Edit {
            file: "write.rs",
            old: "if !ensure(core, volume, range, Bit::Intent, ahead).await {",
            new: "if false && !ensure(core, volume, range, Bit::Intent, ahead).await {",
        }],
    },
    Mistake {
        name: "an intent page found on one member taken for everybody's",
        story: "A crash left the newest page on one member; the start trusts its bits, and that member is lost: the others never had them.",
        edits: &[Edit {
            file: "intent.rs",
            old: "let on_all = whole && all_read && holders >= members.len();",
            new: "let on_all = holders > 0;",
        }],
    },
    Mistake {
        name: "one of two intent pages with one number",
        story: "Two lives gave a page one number, and a cache device has lost the second one's: what it has of the first hides bits that are needed.",
        edits: &[Edit {
            file: "intent.rs",
            old: "                        b.add(&p);\n",
            new: "                        *b = p;\n",
        }],
    },
    Mistake {
        name: "an intent bit cleared without a disk flush",
        story: "A checkpoint clears a region's bit while the disk still has the bypassed write in its volatile cache.",
        edits: &[Edit {
            file: "checkpoint.rs",
            old: "v.disk_flusher.request()",
            new: "{ let done = crate::exec::Slot::new(&core.exec); done.set(Ok(())); done }",
        }],
    },
    Mistake {
        name: "an ordered overwrite that does not flush the disk",
        story: "The dirty record is called outdated while the write that outdates it is in the disk's volatile cache.",
        edits: &[Edit {
            file: "write.rs",
            old: "    volume.disk_flusher.flush_since(failures).await.map_err(|_| RequestError::Io)?;\n",
            new: "",
        }],
    },
    Mistake {
        name: "an ordered overwrite that leaves the old record standing",
        story: "The disk was written under a dirty record, and no mark says so: after a crash the old record comes back.",
        edits: &[Edit {
            file: "write.rs",
            old: "Item::Forget { block, first, sectors, version })\n        .collect();\n    let marked",
            new: "Item::Forget { block, first, sectors, version: version.min(0) })\n        .collect();\n    let marked",
        }],
    },
    Mistake {
        name: "a checkpoint that does not wait for marks",
        story: "A mark lies before the position from which the log is replayed, and is not in the image: what it called clean is dirty again, and older.",
        edits: &[Edit {
            file: "checkpoint.rs",
            old: "    while core.marks_held.get() > 0 {",
            new: "    while false && core.marks_held.get() > 0 {",
        }],
    },
    Mistake {
        name: "a checkpoint that knows the volumes of a moment before",
        story: "A volume is attached while a checkpoint waits to begin; its first segment is in the table without a position, and is not replayed.",
        edits: &[
            Edit {
                file: "checkpoint.rs",
                old: "    core.checkpoint_begins.set(true);\n",
                new: "    core.checkpoint_begins.set(true);\n    let before = core.all_volumes();\n",
            },
            Edit { file: "checkpoint.rs", old: "    let volumes = core.all_volumes();\n", new: "    let volumes = before;\n" },
        ],
    },
    Mistake {
        name: "a checkpoint named before its pages are flushed",
        story: "The superblock that names the image survives a power cut, and pages of the image do not.",
        edits: &[Edit {
            file: "checkpoint.rs",
            old: "if core.pool.borrow().is_in_sync(*m) && core.member_flusher(*m).flush().await.is_err() {",
            new: "if false && core.pool.borrow().is_in_sync(*m) && core.member_flusher(*m).flush().await.is_err() {",
        }],
    },
    Mistake {
        name: "a tombstone dropped before the disk has the zeroes",
        story: "A discarded range is called clean without being zeroed on the disk: the data that was there comes back.",
        edits: &[Edit {
            file: "destage.rs",
            old: "for (block, p) in zeroes {",
            new: "for (block, p) in zeroes.into_iter().take(0) {",
        }],
    },
    Mistake {
        name: "a checksum not verified on read",
        story: "A flipped sector of one copy is handed to a client, though its twin is good.",
        edits: &[Edit {
            file: "fetch.rs",
            old: "    data.checksum(core.seed(volume.number, block, piece.first(), piece.version())) == piece.sum\n",
            new: "    let _ = (core, volume, block, piece, data);\n    true\n",
        }],
    },
    Mistake {
        name: "destage before the record is durable",
        story: "The disk has a write whose record a power cut then takes: the clean copy that the record had replaced comes back, older than the disk.",
        edits: &[Edit {
            file: "destage.rs",
            old: "    if durable(core).await.is_err() {\n        return Err(End::Nothing(Obstacle::Members));\n    }\n    let runs",
            new: "    let runs",
        }],
    },
    Mistake {
        name: "a bypass that takes its version before it waits",
        story: "A sweep begins while the bypass waits for its range: the sweep's mark covers the bypass's version, and what was absorbed under it is called clean.",
        edits: &[
            Edit {
                file: "write.rs",
                old: "    let _intended = DiskWrite::begin(core, volume, range);\n",
                new: "    let version = core.next_version();\n    let _intended = DiskWrite::begin(core, volume, range);\n",
            },
            Edit {
                file: "write.rs",
                old: "    let version = core.next_version();\n    let dirty = older_dirty(",
                new: "    let dirty = older_dirty(",
            },
        ],
    },
    Mistake {
        name: "a start that leaves the newest superblock on one member",
        story: "A crash left the superblock that names the newest checkpoint on one member; the next checkpoint overwrites the older one, and that member is lost.",
        edits: &[
            Edit {
                file: "start.rs",
                old: "membership::agree_at_start(core).await;\n",
                new: "core.pool.borrow_mut().missing.clear();\n",
            },
            Edit {
                file: "start.rs",
                old: "if !core.write_superblock().await {\n            break;\n        }\n        if core.pool",
                new: "if core.pool",
            },
        ],
    },
    Mistake {
        name: "a member that hangs is waited for",
        story: "A cache device answers nothing more, and everything waits for it for ever.",
        edits: &[Edit {
            file: "silence.rs",
            old: "        core.exec.give_up(limit, |member| is_needed(&core, member));\n",
            new: "",
        }],
    },
    Mistake {
        name: "marks short of space that wake each other",
        story: "Two that wait for space wake each other for ever, in one step of the engine: no completion is taken any more.",
        edits: &[Edit {
            file: "log.rs",
            old: "                    core.exec.sleep(1_000_000).await;\n",
            new: "                    core.space.wait_until(core.now() + 10_000_000).await;\n",
        }],
    },
    Mistake {
        name: "members that left one after the other not added up",
        story: "A cache device leaves, and before what it alone had with another is mended, that other one: after a restart the disk is taken for current there.",
        edits: &[Edit {
            file: "membership.rs",
            old: "    let left_before = core.pool.borrow().left;\n",
            new: "    let left_before = 0u8;\n",
        }],
    },
    Mistake {
        name: "a volume served though its copies left with their members",
        story: "As many cache devices are gone as there are copies: records may be missing that nobody left has heard of, and the volume is served.",
        edits: &[Edit {
            file: "start.rs",
            old: "let all = lacks.of_all || left >= usize::from(copies);",
            new: "let all = lacks.of_all;",
        }],
    },
    Mistake {
        name: "a refused volume forgiven by the next checkpoint",
        story: "Records may be missing, and the volume is refused; a checkpoint of what is left clears the marks that say so, and the next start serves it.",
        edits: &[Edit {
            file: "start.rs",
            old: "            v.uncertain.set(true);\n        }\n    }\n}\n\n/// From now on",
            new: "            v.uncertain.set(true);\n        } else {\n            v.uncertain.set(false);\n        }\n    }\n}\n\n/// From now on",
        }],
    },
    Mistake {
        name: "dirty data without a copy read from the disk",
        story: "Both copies of a dirty block are gone, and its range is served from the disk, which is older (R8).",
        edits: &[Edit {
            file: "read.rs",
            old: "                } else if p.dirty() {\n",
            new: "                } else if false && p.dirty() {\n",
        }],
    },
    Mistake {
        name: "dirty data not laid over what the disk reads",
        story: "The disk reads a whole range, for some of it is missing or for it is expected to be sooner; what is dirty in it is newer.",
        edits: &[Edit { file: "read.rs", old: "if !p.dirty() && from_disk(&r) {", new: "if from_disk(&r) {" }],
    },
];
