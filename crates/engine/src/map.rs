//! The map of a volume: which sectors are cached, where, in which version, and whether dirty.
//!
//! Blocks are kept in leaves of 64 consecutive ones, these in groups of 64, and these in spans of 64, ordered by address, so that one
//! lookup serves a run of blocks, a sweep is an iteration, and "is anything dirty here" is a few bits. Nearly every block is one
//! piece, all of it live: it has a row of 20 bytes in its leaf. All other pieces are in a table aside, at about 50 bytes.
//!
//! What a block costs bounds how much can be cached: `docs/PERFORMANCE.md` has the figures.

mod few;
mod leaf;
mod piece;
#[cfg(test)]
mod tests;

pub(crate) use piece::runs;
pub use piece::{Mask, Piece, mask};

use crate::blocks::Blocks;
use crate::io::BLOCK_SECTORS;
use crate::lookaside::Lookaside;
use crate::segments::Segments;
use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::ops::Range;
use few::Few;
use leaf::{Leaf, Row, Some64, bits, room};

const LEAF: u64 = 64;
/// Blocks of a group of leaves.
const GROUP: u64 = 64 * LEAF;
/// Blocks of a span of groups, a GiB: the tree of spans is small enough for a processor's own memory, also where much is cached.
const SPAN: u64 = 64 * GROUP;

/// Where a piece is kept aside: the first of its live sectors, which are no other piece's.
fn key(block: u64, piece: &Piece) -> u64 {
    block * BLOCK_SECTORS + u64::from(piece.live.trailing_zeros())
}

/// The map of one volume.
#[derive(Debug, Default)]
pub struct Map {
    spans: BTreeMap<u64, Some64<Some64<Leaf>>>,
    aside: BTreeMap<u64, Piece>,
    /// Groups that there is room for in all spans.
    room_groups: u64,
    /// Leaves that there is room for in all groups.
    room_leaves: u64,
    /// Rows that there is room for in all leaves.
    room_rows: u64,
    blocks: u64,
    extra: u64,
    dirty_blocks: u64,
    /// What other threads may read by themselves, if there are any.
    lookaside: Option<Arc<Lookaside>>,
}

impl Map {
    /// Blocks with anything cached.
    #[must_use]
    pub fn blocks(&self) -> u64 {
        self.blocks
    }
    /// Pieces beyond the first of their block.
    #[must_use]
    pub fn extra_pieces(&self) -> u64 {
        self.extra
    }

    /// The next block from `from` on that is not one whole piece, and whether it is in several, of which one is clean.
    #[must_use]
    pub fn next_in_pieces(&self, from: u64) -> Option<(u64, bool)> {
        let block = self.aside.range(from * BLOCK_SECTORS..).next()?.0 / BLOCK_SECTORS;
        let (mut pieces, mut clean) = (0, 0);
        for p in self.pieces_aside(block) {
            (pieces, clean) = (pieces + 1, clean + u32::from(!p.dirty()));
        }
        Some((block, pieces > 1 && clean > 0))
    }

    /// Blocks with anything dirty.
    #[must_use]
    pub fn dirty_blocks(&self) -> u64 {
        self.dirty_blocks
    }
    /// Bytes of memory that the map takes, without the allocator's own: 20 to 23 for a block that is one piece, 48 for each
    /// piece of another block, 56 to 63 for each 256 KiB with anything cached, 24 to 27 for each 16 MiB, and 48 for each GiB.
    #[must_use]
    pub fn memory(&self) -> u64 {
        self.memory_of_pieces() + self.lookaside.as_ref().map_or(0, |table| table.memory())
    }

    /// The same of what grows with what is cached.
    pub(crate) fn memory_of_pieces(&self) -> u64 {
        // The nodes of a tree are about two thirds full.
        let entry = |bytes: usize| (bytes + size_of::<u64>()) as u64 * 3 / 2;
        self.spans.len() as u64 * entry(size_of::<Some64<Some64<Leaf>>>())
            + self.room_groups * size_of::<Some64<Leaf>>() as u64
            + self.room_leaves * size_of::<Leaf>() as u64
            + self.room_rows * size_of::<Row>() as u64
            + self.aside.len() as u64 * entry(size_of::<Piece>())
    }

    #[inline]
    fn leaf(&self, n: u64) -> Option<&Leaf> {
        self.spans.get(&(n / 4096))?.get(n / 64 % 64)?.get(n % 64)
    }

    /// The leaves of a range of numbers, in order.
    fn leaves(&self, range: Range<u64>) -> impl Iterator<Item = (u64, &Leaf)> {
        let groups = range.start / 64..range.end.div_ceil(64);
        self.spans
            .range(groups.start / 64..groups.end.div_ceil(64))
            .flat_map(move |(span, of_span)| {
                of_span.iter(window(&groups, *span)).map(move |(bit, group)| (span * 64 + bit, group))
            })
            .flat_map(move |(group, leaves)| leaves.iter(window(&range, group)).map(move |(bit, leaf)| (group * 64 + bit, leaf)))
    }

    /// The pieces of a block that are aside, in order of address.
    fn pieces_aside(&self, block: u64) -> impl Iterator<Item = &Piece> {
        self.aside.range(block * BLOCK_SECTORS..(block + 1) * BLOCK_SECTORS).map(|(_, p)| p)
    }

    /// Calls `f` with each piece of a block.
    pub fn each(&self, block: u64, f: impl FnMut(&Piece)) {
        if let Some(leaf) = self.leaf(block / LEAF) {
            self.each_of(leaf, block, f);
        }
    }

    /// The same on behalf of a client, which is noted: see [`Map::asked`].
    pub fn each_asked(&self, block: u64, f: impl FnMut(&Piece)) {
        if let Some(leaf) = self.leaf(block / LEAF) {
            leaf.ask(1 << (block % LEAF));
            self.each_of(leaf, block, f);
        }
    }

    /// What other threads read by themselves, if there are any; made by `new` where it was not there.
    pub(crate) fn lookaside_or(&mut self, new: impl FnOnce() -> Lookaside) -> &Arc<Lookaside> {
        self.lookaside.get_or_insert_with(|| Arc::new(new()))
    }

    /// The same.
    pub(crate) fn lookaside(&self) -> Option<&Lookaside> {
        self.lookaside.as_deref()
    }

    /// Has other threads find a block, which is a whole piece, at these places. As it was read just now, so will it be again: see
    /// [`crate::lookaside`].
    pub(crate) fn let_others_find(&self, block: u64, piece: &Piece, places: [Option<(u8, u64)>; 2]) {
        let Some(table) = &self.lookaside else { return };
        if let Some(other) = table.enter(block, piece.version(), piece.sum, places) {
            self.ask(&(other..other + 1));
        }
    }

    /// How often clients asked for a block since it came, or since it was taken off: up to two.
    #[must_use]
    pub fn asked(&self, block: u64) -> u8 {
        let bit = |bits: u64| (bits >> (block % LEAF) & 1) as u8;
        let Some(leaf) = self.leaf(block / LEAF) else { return 0 };
        if self.lookaside.as_ref().is_some_and(|table| table.was_asked(block)) {
            leaf.ask(1 << (block % LEAF));
        }
        leaf.asked.get().map(bit).into_iter().sum()
    }

    /// Takes off one of the times that a block was asked for.
    pub fn cool(&self, block: u64) {
        let flag = 1u64 << (block % LEAF);
        if let Some(leaf) = self.leaf(block / LEAF) {
            let [once, twice] = leaf.asked.get();
            leaf.asked.set([if twice & flag == 0 { once & !flag } else { once }, twice & !flag]);
        }
    }

    #[inline]
    fn each_of(&self, leaf: &Leaf, block: u64, mut f: impl FnMut(&Piece)) {
        let bit = block % LEAF;
        if let Some(piece) = leaf.piece(bit) {
            f(&piece);
        } else if leaf.aside >> bit & 1 == 1 {
            self.pieces_aside(block).for_each(f);
        }
    }

    /// Those of some blocks that have a piece in a segment, in the order in which these are there: read so, they are
    /// read together.
    #[must_use]
    pub fn in_segment(&self, segment: u32, blocks: &Blocks) -> Vec<u64> {
        let mut places: Vec<(u16, u64)> = Vec::new();
        for block in blocks.iter() {
            self.each(block, |p| {
                if p.segment == segment {
                    places.push((p.offset, block));
                }
            });
        }
        places.sort_unstable();
        places.dedup();
        places.into_iter().map(|(_, block)| block).collect()
    }

    /// The leaves of a range of blocks. Most ranges are in one: a look-up costs half of a range's two ends.
    fn leaves_of(&self, blocks: &Range<u64>) -> impl Iterator<Item = (u64, &Leaf)> {
        let leaves = blocks.start / LEAF..blocks.end.div_ceil(LEAF);
        let one = leaves.end <= leaves.start + 1;
        let alone = if one { self.leaf(leaves.start).map(|l| (leaves.start, l)) } else { None };
        let several = (!one).then(|| self.leaves(leaves));
        alone.into_iter().chain(several.into_iter().flatten())
    }

    /// Calls `f` with each piece of the blocks of a range, in order of address.
    pub fn each_in(&self, blocks: Range<u64>, mut f: impl FnMut(u64, &Piece)) {
        for (n, leaf) in self.leaves_of(&blocks) {
            for bit in bits(leaf.present() & window(&blocks, n)) {
                let block = n * LEAF + bit;
                self.each_of(leaf, block, |p| f(block, p));
            }
        }
    }

    /// The first blocks from one on of which anything is cached, `most` or a few more, in order of address.
    #[must_use]
    pub fn first_from(&self, block: u64, most: usize) -> Vec<u64> {
        let blocks = block..u64::MAX >> 8;
        let mut first = Vec::with_capacity(most + LEAF as usize);
        for (n, leaf) in self.leaves_of(&blocks) {
            first.extend(bits(leaf.present() & window(&blocks, n)).map(|bit| n * LEAF + bit));
            if first.len() >= most {
                break;
            }
        }
        first
    }

    /// A client asks for a range of blocks, which is noted of all that is cached: see [`Map::asked`].
    pub fn ask(&self, blocks: &Range<u64>) {
        self.leaves_of(blocks).for_each(|(n, leaf)| leaf.ask(window(blocks, n)));
    }

    /// Of 256 blocks from a multiple of 256 on, those that clients have asked for since they came.
    #[must_use]
    pub fn asked_for(&self, blocks: &Range<u64>) -> [u64; 4] {
        self.of_four(blocks, |leaf| leaf.asked.get()[0])
    }

    /// Of 256 blocks from a multiple of 256 on, those of which anything is cached.
    #[must_use]
    pub fn present_in(&self, blocks: &Range<u64>) -> [u64; 4] {
        self.of_four(blocks, Leaf::present)
    }

    /// How many blocks in a row from `from` on have anything cached, up to `most`.
    #[must_use]
    pub fn cached_from(&self, from: u64, most: u64) -> u64 {
        let (mut at, end) = (from, from.saturating_add(most));
        while at < end {
            let present = self.leaf(at / LEAF).map_or(0, Leaf::present) >> (at % LEAF);
            at += u64::from(present.trailing_ones());
            if present.trailing_ones() == 0 || at % LEAF != 0 {
                break;
            }
        }
        at.min(end) - from
    }

    /// How many blocks in a row before `to` have anything cached, up to `most`.
    #[must_use]
    pub fn cached_before(&self, to: u64, most: u64) -> u64 {
        let (mut at, end) = (to, to.saturating_sub(most));
        while at > end {
            let last = at - 1;
            let present = self.leaf(last / LEAF).map_or(0, Leaf::present) << (LEAF - 1 - last % LEAF);
            at -= u64::from(present.leading_ones());
            if present.leading_ones() == 0 || at % LEAF != 0 {
                break;
            }
        }
        to - at.max(end)
    }

    fn of_four(&self, blocks: &Range<u64>, of: impl Fn(&Leaf) -> u64) -> [u64; 4] {
        let mut all = [0; 4];
        for (n, leaf) in self.leaves_of(blocks) {
            if let Some(it) = all.get_mut((n - blocks.start / LEAF) as usize) {
                *it = of(leaf);
            }
        }
        all
    }

    /// Whether anything in a range of blocks is dirty.
    #[must_use]
    pub fn any_dirty(&self, blocks: Range<u64>) -> bool {
        self.leaves_of(&blocks).any(|(n, l)| l.dirty & window(&blocks, n) != 0)
    }

    /// Whether anything in a range of blocks is cached.
    #[must_use]
    pub fn any(&self, blocks: Range<u64>) -> bool {
        self.leaves_of(&blocks).any(|(n, l)| l.present() & window(&blocks, n) != 0)
    }

    /// Up to `most` dirty blocks from `from` on, below `to`, in order of address.
    pub fn dirty_from(&self, from: u64, to: u64, most: usize, out: &mut Vec<u64>) {
        for (n, leaf) in self.leaves(from / LEAF..to.div_ceil(LEAF)) {
            for bit in bits(leaf.dirty & window(&(from..to), n)) {
                if out.len() >= most {
                    return;
                }
                out.push(n * LEAF + bit);
            }
        }
    }

    /// Up to `most` leaves' worth of pieces from block `from` on; returns where to go on, or `None` at the end.
    /// The walk of a checkpoint: what changes behind it is in the log that is replayed over the image.
    pub fn walk(&self, from: u64, most: usize, mut f: impl FnMut(u64, &Piece)) -> Option<u64> {
        let mut count = 0;
        for (n, leaf) in self.leaves(from / LEAF..u64::MAX) {
            if count >= most {
                return Some(n * LEAF);
            }
            for block in bits(leaf.present()).map(|bit| n * LEAF + bit) {
                self.each_of(leaf, block, |p| {
                    count += 1;
                    f(block, p);
                });
            }
        }
        None
    }

    /// Names a piece: it takes its sectors from all older pieces, and keeps of them what nothing newer holds (R3).
    /// Whether anything of it is live.
    pub fn insert(&mut self, segments: &mut Segments, block: u64, piece: Piece) -> bool {
        self.name(segments, block, piece, |_| 0)
    }

    /// The same of many pieces in order of address that were there before what the map has by now, sooner: a leaf that comes whole is made
    /// at once. Of two places of one version the one that is there counts.
    pub fn load(&mut self, segments: &mut Segments, pieces: &[(u64, Piece)]) {
        for of_leaf in pieces.chunk_by(|a, b| a.0 / LEAF == b.0 / LEAF) {
            if self.load_leaf(segments, of_leaf) {
                continue;
            }
            for (block, piece) in of_leaf {
                self.slip_in(segments, *block, *piece);
            }
        }
    }

    fn slip_in(&mut self, segments: &mut Segments, block: u64, mut piece: Piece) {
        segments.named(piece.segment, block);
        self.edit(
            segments,
            block,
            |_| 0,
            |pieces| {
                for there in pieces.iter_mut() {
                    if there.version() >= piece.version() {
                        piece.live &= !there.live;
                    } else {
                        there.live &= !piece.live;
                    }
                }
                if piece.live != 0 {
                    pieces.push(piece);
                }
            },
        );
    }

    /// Makes a leaf of its pieces, if there is none yet and each is a block with a row; else nothing is done.
    fn load_leaf(&mut self, segments: &mut Segments, pieces: &[(u64, Piece)]) -> bool {
        let n = pieces[0].0 / LEAF;
        if !pieces.is_sorted_by(|a, b| a.0 < b.0) || self.leaf(n).is_some() {
            return false;
        }
        let mut leaf = Leaf::default();
        let (mut there, mut rows) = (0_u64, Vec::with_capacity(room(pieces.len())));
        for (block, piece) in pieces {
            let Some(row) = Row::of(piece) else { return false };
            rows.push(row);
            there |= 1 << (block % LEAF);
            leaf.dirty |= u64::from(piece.dirty()) << (block % LEAF);
        }
        for (block, piece) in pieces {
            segments.named(piece.segment, *block);
            segments.gain(piece.segment, piece.dirty_sectors());
        }
        leaf.rows = Some64::of(there, rows);
        self.blocks += pieces.len() as u64;
        self.dirty_blocks += u64::from(leaf.dirty.count_ones());
        self.room_rows += leaf.rows.room();
        let span = self.spans.entry(n * LEAF / SPAN).or_default();
        self.room_groups -= span.room();
        let group = span.get_or_new(n * LEAF / GROUP % 64);
        self.room_leaves -= group.room();
        *group.get_or_new(n % 64) = leaf;
        self.room_leaves += group.room();
        self.room_groups += span.room();
        true
    }

    /// The same of what a client wrote. What it writes over was asked for once more; and what was not there, but `was_there` not
    /// long ago, has proved itself: see [`Map::asked`].
    pub fn write(&mut self, segments: &mut Segments, block: u64, piece: Piece, was_there: impl FnOnce() -> bool) -> bool {
        self.name(segments, block, piece, |is_there| if is_there { 1 } else { 2 * u8::from(was_there()) })
    }

    fn name(&mut self, segments: &mut Segments, block: u64, mut piece: Piece, asked: impl FnOnce(bool) -> u8) -> bool {
        segments.named(piece.segment, block);
        self.edit(segments, block, asked, |pieces| {
            for old in pieces.iter_mut() {
                if old.version() > piece.version() {
                    piece.live &= !old.live;
                } else {
                    // The same version again is a copy that was moved, or found twice: the new place counts.
                    old.live &= !piece.live;
                }
            }
            if piece.live != 0 {
                pieces.push(piece);
            }
        });
        piece.live != 0
    }

    /// Takes the sectors `sectors` of a block from all pieces older than `version`.
    pub fn forget(&mut self, segments: &mut Segments, block: u64, sectors: Mask, version: u64) {
        self.edit(
            segments,
            block,
            |_| 0,
            |pieces| {
                for old in pieces.iter_mut().filter(|p| p.version() < version) {
                    old.live &= !sectors;
                }
            },
        );
    }

    /// Forgets everything, dirty or not, in one pass.
    pub fn forget_all(&mut self, segments: &mut Segments) {
        if let Some(table) = &self.lookaside {
            table.clear();
        }
        let old = core::mem::replace(self, Self { lookaside: self.lookaside.clone(), ..Self::default() });
        old.each_in(0..u64::MAX >> 8, |_, p| segments.lose(p.segment, p.dirty_sectors()));
    }

    /// Lets go of clean pieces of a block that satisfy `which`.
    pub fn drop_clean(&mut self, segments: &mut Segments, block: u64, which: impl Fn(&Piece) -> bool) {
        self.edit(segments, block, |_| 0, |pieces| pieces.retain(|p| p.dirty() || !which(p)));
    }

    /// Marks pieces of a block up to `version` clean. Zeroes that are clean are let go: the disk has them.
    pub fn mark_clean(&mut self, segments: &mut Segments, block: u64, version: u64) {
        self.edit(
            segments,
            block,
            |_| 0,
            |pieces| {
                for p in pieces.iter_mut().filter(|p| p.dirty() && p.version() <= version) {
                    p.set_clean();
                    if p.zeroes() {
                        p.live = 0;
                    }
                }
            },
        );
    }

    /// Changes the pieces of one block, and keeps all counts: a piece whose live sectors are gone is dropped. By whether there were
    /// any, `asked` says how often a client has asked for the block with that.
    fn edit(&mut self, segments: &mut Segments, block: u64, asked: impl FnOnce(bool) -> u8, change: impl FnOnce(&mut Few)) {
        if let Some(table) = &self.lookaside {
            table.forget(block);
        }
        let bit = block % LEAF;
        let span = self.spans.entry(block / SPAN).or_default();
        self.room_groups -= span.room();
        let group = span.get_or_new(block / GROUP % 64);
        self.room_leaves -= group.room();
        let leaf = group.get_or_new(block / LEAF % 64);
        let mut pieces = Few::default();
        let was_aside = leaf.aside >> bit & 1 == 1;
        if was_aside {
            self.aside.range(block * BLOCK_SECTORS..(block + 1) * BLOCK_SECTORS).for_each(|(_, p)| pieces.push(*p));
        } else if let Some(piece) = leaf.piece(bit) {
            pieces.push(piece);
        }
        let before = pieces.clone();
        change(&mut pieces);
        pieces.retain(|p| p.live != 0);
        // What is there now counts before what was there no longer does, so that no segment seems empty in between.
        for p in pieces.iter() {
            segments.gain(p.segment, p.dirty_sectors());
        }
        for p in before.iter() {
            segments.lose(p.segment, p.dirty_sectors());
        }
        let row = match &pieces[..] {
            [one] => Row::of(one),
            _ => None,
        };
        if was_aside {
            for p in before.iter() {
                self.aside.remove(&key(block, p));
            }
        }
        if row.is_none() {
            self.aside.extend(pieces.iter().map(|p| (key(block, p), *p)));
        }
        self.blocks = self.blocks + u64::from(!pieces.is_empty()) - u64::from(!before.is_empty());
        self.extra = self.extra + pieces.len().saturating_sub(1) as u64 - before.len().saturating_sub(1) as u64;
        let dirty = pieces.iter().any(Piece::dirty);
        self.dirty_blocks = self.dirty_blocks + u64::from(dirty) - (leaf.dirty >> bit & 1);
        let flag = 1u64 << bit;
        leaf.dirty = leaf.dirty & !flag | u64::from(dirty) << bit;
        leaf.aside = leaf.aside & !flag | u64::from(row.is_none() && !pieces.is_empty()) << bit;
        if pieces.is_empty() {
            leaf.asked.set(leaf.asked.get().map(|bits| bits & !flag));
        } else {
            (0..asked(!before.is_empty())).for_each(|_| leaf.ask(flag));
        }
        self.room_rows -= leaf.rows.room();
        match row {
            Some(row) => *leaf.rows.get_or_new(bit) = row,
            None => leaf.rows.remove(bit),
        }
        self.room_rows += leaf.rows.room();
        if leaf.present() == 0 {
            group.remove(block / LEAF % 64);
        }
        self.room_leaves += group.room();
        if group.there == 0 {
            span.remove(block / GROUP % 64);
        }
        self.room_groups += span.room();
        if span.there == 0 {
            self.spans.remove(&(block / SPAN));
        }
    }
}

/// Of 256 blocks from a multiple of 256 on, those that are in one of `ranges`.
#[must_use]
pub(crate) fn of_ranges(blocks: &Range<u64>, ranges: &[Range<u64>]) -> [u64; 4] {
    let first = blocks.start / LEAF;
    [0, 1, 2, 3].map(|n| ranges.iter().fold(0, |bits, range| bits | window(range, first + n)))
}

fn window(blocks: &Range<u64>, leaf: u64) -> u64 {
    let low = blocks.start.saturating_sub(leaf * LEAF).min(LEAF);
    let high = blocks.end.saturating_sub(leaf * LEAF).min(LEAF);
    if high <= low {
        return 0;
    }
    let ones = |n: u64| if n >= 64 { u64::MAX } else { (1 << n) - 1 };
    ones(high) & !ones(low)
}
