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
            old: "let mut voted = witness && joins.is_none() && self.put_witness().await;",
            new: "let mut voted = witness && self.put_witness().await;",
        }],
    },
    Mistake {
        name: "a new member's one superblock written over",
        story: "It gets one superblock with its epoch, and the next one is written into the same slot when the power goes: it has none.",
        edits: &[Edit {
            file: "membership.rs",
            old: "            failed = self.put_superblocks(&members).await;\n",
            new: "            let others: Vec<u8> = members.iter().copied().filter(|m| joins != Some(*m)).collect();\n            failed = self.put_superblocks(&others).await;\n",
        }],
    },
    Mistake {
        name: "a cache device removed with what is dirty on it",
        story: "It leaves, as it was told to, before what it holds a copy of was copied: then another one is lost.",
        edits: &[Edit {
            file: "joining.rs",
            old: "    let result = loop {\n        if cancel.wanted() {",
            new: "    let result = loop {\n        if true {\n            break Ok(());\n        }\n        if cancel.wanted() {",
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
        name: "a checkpoint that flushes those alone that hold it",
        story: "The image names what is on a member that is about to leave, and holds no page of it: the power takes that.",
        edits: &[Edit {
            file: "checkpoint.rs",
            old: "    for m in &in_sync {\n",
            new: "    let _ = in_sync;\n    for m in &members {\n",
        }],
    },
    Mistake {
        name: "a witness's word that nobody else has heard left standing",
        story: "A crash left the witness an epoch ahead; the start goes on in the older one, and when a member is lost the witness asks for what it knows.",
        edits: &[Edit { file: "election.rs", old: "        unheard = Some(w.epoch);\n", new: "        unheard = None;\n" }],
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
];
