//! The map of a volume: which sectors are cached, where, in which version, and whether dirty.
//!
//! Blocks are kept in leaves of 64 consecutive ones, these in groups of 64, and these in spans of 64, ordered by address, so that one
//! lookup serves a run of blocks, a sweep is an iteration, and "is anything dirty here" is a few bits. Nearly every block is one
//! piece, all of it live: it has a row of 20 bytes in its leaf. All other pieces are in a table aside, at about 50 bytes.
//!
//! What a block costs bounds how much can be cached: `docs/PERFORMANCE.md` has the figures.

use crate::blocks::Blocks;
use crate::io::BLOCK_SECTORS;
use crate::segments::Segments;
use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::cell::Cell;
use core::ops::{Deref, DerefMut, Range};

const LEAF: u64 = 64;
/// Blocks of a group of leaves.
const GROUP: u64 = 64 * LEAF;
/// Blocks of a span of groups, a GiB: the tree of spans is small enough for a processor's own memory, also where much is cached.
const SPAN: u64 = 64 * GROUP;

/// Sectors of a block as bits.
pub type Mask = u8;

/// The bits of `count` sectors from `first` on.
#[must_use]
pub fn mask(first: u8, count: u8) -> Mask {
    (((1u16 << count) - 1) << first) as u8
}

/// A run of sectors of one block, as it was written, and those of them that nothing newer covers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Piece {
    version_flags: u64,
    /// Checksum of all its sectors, bound to volume, block and version.
    pub sum: u64,
    /// The segment that holds it.
    pub segment: u32,
    /// Its first sector there; 0 if it stands for zeroes.
    pub offset: u16,
    /// The sectors of the block that are this piece's.
    pub live: Mask,
    span: u8,
}

const DIRTY: u64 = 1 << 63;
const ZEROES: u64 = 1 << 62;
const VERSION: u64 = (1 << 56) - 1;

impl Piece {
    /// A piece of `count` sectors from sector `first` of a block on, all live.
    #[must_use]
    #[allow(clippy::too_many_arguments)] // one for each field
    pub fn new(version: u64, sum: u64, segment: u32, offset: u16, first: u8, count: u8, dirty: bool, zeroes: bool) -> Self {
        let flags = if dirty { DIRTY } else { 0 } | if zeroes { ZEROES } else { 0 };
        Self {
            version_flags: version & VERSION | flags,
            sum,
            segment,
            offset: if zeroes { 0 } else { offset },
            live: mask(first, count),
            span: first | (count - 1) << 3,
        }
    }
    /// The version of the write.
    #[must_use]
    pub fn version(&self) -> u64 {
        self.version_flags & VERSION
    }
    /// The disk does not have it yet.
    #[must_use]
    pub fn dirty(&self) -> bool {
        self.version_flags & DIRTY != 0
    }
    /// It stands for zeroes and has no data.
    #[must_use]
    pub fn zeroes(&self) -> bool {
        self.version_flags & ZEROES != 0
    }
    /// First sector of the block that it was written with.
    #[must_use]
    pub fn first(&self) -> u8 {
        self.span & 7
    }
    /// Sectors that it was written with.
    #[must_use]
    pub fn sectors(&self) -> u8 {
        (self.span >> 3) + 1
    }
    /// Sectors that it takes in the log, if it is dirty.
    fn dirty_sectors(&self) -> Option<u8> {
        self.dirty().then(|| if self.zeroes() { 0 } else { self.sectors() })
    }
    fn set_clean(&mut self) {
        self.version_flags &= !DIRTY;
    }
    /// First sector in bits 0 to 2, sectors less one in bits 3 to 5, bit 6 dirty, bit 7 zeroes: as in a checkpoint.
    #[must_use]
    pub fn packed_span(&self) -> u8 {
        self.span | u8::from(self.dirty()) << 6 | u8::from(self.zeroes()) << 7
    }
}

/// A piece that is a whole block, all live: version (56 bits), checksum (64), segment (24) and offset (16). Whether it is
/// dirty is in the leaf. In words of 32 bits, as those of 64 would make 24 bytes of it.
#[derive(Clone, Copy, Default, Debug)]
struct Row([u32; 5]);

impl Row {
    /// In place of the offset of what stands for zeroes: no whole block of data begins at a segment's last sector.
    const ZEROES: u16 = u16::MAX;

    /// `None` for a piece that takes a place aside. That is also for a segment number that a pool of fewer than 2^24
    /// segments does not have, as that of one that is lost.
    fn of(piece: &Piece) -> Option<Self> {
        let offset = if piece.zeroes() { Self::ZEROES } else { piece.offset };
        let is_whole = piece.live == Mask::MAX && piece.first() == 0 && u64::from(piece.sectors()) == BLOCK_SECTORS;
        if !is_whole || piece.segment >> 24 != 0 || piece.zeroes() != (offset == Self::ZEROES) {
            return None;
        }
        let version = piece.version() | u64::from(offset) << 56;
        let segment = piece.segment | u32::from(offset) >> 8 << 24;
        Some(Self([piece.sum as u32, (piece.sum >> 32) as u32, version as u32, (version >> 32) as u32, segment]))
    }

    #[inline]
    fn piece(&self, dirty: bool) -> Piece {
        let [sum, sum_high, version, version_high, segment] = self.0;
        let version = u64::from(version) | u64::from(version_high) << 32;
        let offset = (version >> 56 | u64::from(segment >> 24) << 8) as u16;
        let sum = u64::from(sum) | u64::from(sum_high) << 32;
        Piece::new(version, sum, segment & 0xff_ffff, offset, 0, BLOCK_SECTORS as u8, dirty, offset == Self::ZEROES)
    }
}

/// Up to 64 things, each with a number below 64: as much memory as there are.
#[derive(Clone, Debug)]
struct Some64<T> {
    /// Numbers that are there.
    there: u64,
    /// The things in order of their numbers, and room behind them: always as much as [`room`] says.
    things: Box<[T]>,
}

/// So many things there is room for where there are `count`: up to an eighth more, so that not each new one takes an
/// allocation.
fn room(count: usize) -> usize {
    count.next_multiple_of((count.next_power_of_two() / 16).max(1))
}

impl<T> Default for Some64<T> {
    fn default() -> Self {
        Self { there: 0, things: Box::default() }
    }
}

impl<T: Clone + Default> Some64<T> {
    #[inline]
    fn rank(&self, bit: u64) -> usize {
        (self.there & ((1 << bit) - 1)).count_ones() as usize
    }

    #[inline]
    fn get(&self, bit: u64) -> Option<&T> {
        (self.there >> bit & 1 == 1).then(|| &self.things[self.rank(bit)])
    }

    /// Those of the numbers in `among`.
    fn iter(&self, among: u64) -> impl Iterator<Item = (u64, &T)> {
        bits(self.there & among).map(|bit| (bit, &self.things[self.rank(bit)]))
    }

    /// The one with this number, which is there from now on.
    fn get_or_new(&mut self, bit: u64) -> &mut T {
        let at = self.rank(bit);
        if self.there >> bit & 1 == 0 {
            let count = self.there.count_ones() as usize;
            self.make_room(count + 1);
            self.things[at..=count].rotate_right(1);
            self.there |= 1 << bit;
        }
        &mut self.things[at]
    }

    fn remove(&mut self, bit: u64) {
        if self.there >> bit & 1 == 1 {
            let (at, count) = (self.rank(bit), self.there.count_ones() as usize);
            self.things[at] = T::default();
            self.things[at..count].rotate_left(1);
            self.make_room(count - 1);
            self.there &= !(1 << bit);
        }
    }

    fn make_room(&mut self, count: usize) {
        let room = room(count);
        if room != self.things.len() {
            let mut things = core::mem::take(&mut self.things).into_vec();
            things.reserve_exact(room.saturating_sub(things.len()));
            things.resize(room, T::default());
            self.things = things.into_boxed_slice();
        }
    }

    /// What there is room for.
    fn room(&self) -> u64 {
        self.things.len() as u64
    }
}

/// The numbers of the bits that are set.
fn bits(mut of: u64) -> impl Iterator<Item = u64> {
    core::iter::from_fn(move || {
        let bit = (of != 0).then(|| u64::from(of.trailing_zeros()));
        of &= of.wrapping_sub(1);
        bit
    })
}

#[derive(Clone, Debug, Default)]
struct Leaf {
    rows: Some64<Row>,
    /// Blocks whose pieces are aside.
    aside: u64,
    /// Blocks with anything dirty.
    dirty: u64,
    /// Blocks that a client asked for, and of these the ones that it asked for twice.
    asked: Cell<[u64; 2]>,
}

impl Leaf {
    /// Some of its blocks were asked for; what is not there does not count.
    fn ask(&self, blocks: u64) {
        let ([once, twice], blocks) = (self.asked.get(), blocks & self.present());
        self.asked.set([once | blocks, twice | once & blocks]);
    }

    /// Blocks with anything cached.
    fn present(&self) -> u64 {
        self.rows.there | self.aside
    }

    /// The piece of a block that has a row.
    #[inline]
    fn piece(&self, bit: u64) -> Option<Piece> {
        self.rows.get(bit).map(|row| row.piece(self.dirty >> bit & 1 == 1))
    }
}

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
    /// Blocks with anything dirty.
    #[must_use]
    pub fn dirty_blocks(&self) -> u64 {
        self.dirty_blocks
    }
    /// Bytes of memory that the map takes, without the allocator's own: 20 to 23 for a block that is one piece, 48 for each
    /// piece of another block, 56 to 63 for each 256 KiB with anything cached, 24 to 27 for each 16 MiB, and 48 for each GiB.
    #[must_use]
    pub fn memory(&self) -> u64 {
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

    /// How often clients asked for a block since it came, or since it was taken off: up to two.
    #[must_use]
    pub fn asked(&self, block: u64) -> u8 {
        let bit = |bits: u64| (bits >> (block % LEAF) & 1) as u8;
        self.leaf(block / LEAF).map_or(0, |leaf| leaf.asked.get().map(bit).into_iter().sum())
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

    /// The same of many pieces in order of address, sooner: a leaf that comes whole is made at once.
    pub fn load(&mut self, segments: &mut Segments, pieces: &[(u64, Piece)]) {
        for of_leaf in pieces.chunk_by(|a, b| a.0 / LEAF == b.0 / LEAF) {
            if self.load_leaf(segments, of_leaf) {
                continue;
            }
            for (block, piece) in of_leaf {
                self.insert(segments, *block, *piece);
            }
        }
    }

    /// Makes a leaf of its pieces, if there is none yet and each is a block with a row; else nothing is done.
    fn load_leaf(&mut self, segments: &mut Segments, pieces: &[(u64, Piece)]) -> bool {
        let n = pieces[0].0 / LEAF;
        if !pieces.is_sorted_by(|a, b| a.0 < b.0) || self.leaf(n).is_some() {
            return false;
        }
        let mut leaf = Leaf::default();
        let mut rows = Vec::with_capacity(room(pieces.len()));
        for (block, piece) in pieces {
            let Some(row) = Row::of(piece) else { return false };
            rows.push(row);
            leaf.rows.there |= 1 << (block % LEAF);
            leaf.dirty |= u64::from(piece.dirty()) << (block % LEAF);
        }
        for (block, piece) in pieces {
            segments.named(piece.segment, *block);
            segments.gain(piece.segment, piece.dirty_sectors());
        }
        rows.resize(room(pieces.len()), Row::default());
        leaf.rows.things = rows.into_boxed_slice();
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

/// The pieces of one block while they change: each has a live sector of eight, and one more comes in.
#[derive(Clone)]
struct Few {
    pieces: [Piece; BLOCK_SECTORS as usize + 1],
    len: usize,
}

impl Default for Few {
    fn default() -> Self {
        Self { pieces: [Piece::new(0, 0, 0, 0, 0, 1, false, false); BLOCK_SECTORS as usize + 1], len: 0 }
    }
}

impl Few {
    fn push(&mut self, piece: Piece) {
        self.pieces[self.len] = piece;
        self.len += 1;
    }

    fn retain(&mut self, keep: impl Fn(&Piece) -> bool) {
        let mut kept = 0;
        for n in 0..self.len {
            if keep(&self.pieces[n]) {
                self.pieces[kept] = self.pieces[n];
                kept += 1;
            }
        }
        self.len = kept;
    }
}

impl Deref for Few {
    type Target = [Piece];
    fn deref(&self) -> &[Piece] {
        &self.pieces[..self.len]
    }
}

impl DerefMut for Few {
    fn deref_mut(&mut self) -> &mut [Piece] {
        &mut self.pieces[..self.len]
    }
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

#[cfg(test)]
mod tests {
    use super::*;
    use headpond_format::Class;

    fn world() -> (Map, Segments, u32) {
        let mut segments = Segments::default();
        segments.add_member(0, 8);
        segments.add_member(1, 8);
        let n = segments.open(1, Class::Mirrored, 0, false, 2).unwrap();
        (Map::default(), segments, n)
    }

    /// Numbers below what is asked for, the same each time.
    fn dice() -> impl FnMut(u64) -> u64 {
        let mut state = 1u64;
        move |n| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % n
        }
    }

    fn piece(version: u64, segment: u32, first: u8, count: u8, dirty: bool) -> Piece {
        Piece::new(version, version * 7, segment, version as u16, first, count, dirty, false)
    }

    #[test]
    fn a_late_older_piece_does_not_hide_a_newer_one() {
        let (mut map, mut segments, n) = world();
        map.insert(&mut segments, 5, piece(9, n, 2, 3, true));
        assert!(map.insert(&mut segments, 5, piece(4, n, 0, 8, true)));
        let mut seen = Vec::new();
        map.each(5, |p| seen.push((p.version(), p.live)));
        seen.sort_unstable();
        assert_eq!(seen, [(4, 0b1110_0011), (9, 0b0001_1100)]);
        assert!(!map.insert(&mut segments, 5, piece(3, n, 2, 3, true)));
        assert_eq!((segments.live, segments.dirty, map.extra_pieces()), (2, 2, 1));
    }

    #[test]
    fn what_is_cached_in_a_row_is_counted_from_either_end() {
        let (mut map, mut segments, n) = world();
        let there = |block: u64| block != 60 && block != 200 && (10..333).contains(&block);
        for block in (0..400).filter(|b| there(*b)) {
            map.insert(&mut segments, block, piece(block + 1, n, 0, 8, block % 3 == 0));
        }
        for from in 0..400 {
            for most in [0, 1, 5, 64, 130, 1000] {
                let behind = (from..from + most).take_while(|b| there(*b)).count() as u64;
                let before = (from.saturating_sub(most)..from).rev().take_while(|b| there(*b)).count() as u64;
                assert_eq!((map.cached_from(from, most), map.cached_before(from, most)), (behind, before), "{from} {most}");
            }
        }
    }

    #[test]
    fn fragments_that_fill_a_block_replace_what_they_cover() {
        let (mut map, mut segments, n) = world();
        map.insert(&mut segments, 63, piece(1, n, 0, 8, false));
        for i in 0..8 {
            map.insert(&mut segments, 63, piece(2 + u64::from(i), n, i, 1, true));
        }
        let mut versions = Vec::new();
        map.each(63, |p| versions.push(p.version()));
        assert_eq!(versions.len(), 8);
        map.insert(&mut segments, 63, piece(20, n, 0, 8, true));
        assert_eq!((map.extra_pieces(), segments.live, map.blocks()), (0, 1, 1));
        map.mark_clean(&mut segments, 63, 19);
        assert!(map.any_dirty(0..64));
        map.mark_clean(&mut segments, 63, 20);
        assert!(!map.any_dirty(0..64) && map.any(63..64) && !map.any(64..128));
        map.forget(&mut segments, 63, 0xff, 21);
        assert_eq!((segments.live, map.blocks()), (0, 0));
    }

    /// What the map has to say, kept as simply as can be: who holds each sector, and whether it is dirty.
    #[derive(Default)]
    struct Model(BTreeMap<u64, Piece>);

    impl Model {
        fn sectors(block: u64, mask: Mask) -> impl Iterator<Item = u64> {
            bits(u64::from(mask)).map(move |s| block * BLOCK_SECTORS + s)
        }

        fn insert(&mut self, block: u64, piece: Piece) {
            for s in Self::sectors(block, piece.live) {
                if self.0.get(&s).is_none_or(|old| old.version() <= piece.version()) {
                    self.0.insert(s, piece);
                }
            }
        }

        fn check(&self, map: &Map, segments: &Segments, range: Range<u64>) {
            let mut found: BTreeMap<u64, Piece> = BTreeMap::new();
            let mut pieces: BTreeMap<u64, u64> = BTreeMap::new();
            let mut dirty = Vec::new();
            map.each_in(range.clone(), |block, p| {
                *pieces.entry(block).or_default() += 1;
                if p.dirty() && dirty.last() != Some(&block) {
                    dirty.push(block);
                }
                for s in Self::sectors(block, p.live) {
                    // All but what is live of it is as it was put in.
                    let live = self.0.get(&s).map_or(0, |m| m.live);
                    assert!(found.insert(s, Piece { live, ..*p }).is_none(), "two pieces live in sector {s}");
                }
            });
            assert_eq!(found, self.0);
            for block in range.clone() {
                let mut count = 0;
                map.each(block, |_| count += 1);
                assert_eq!(count, pieces.get(&block).copied().unwrap_or(0));
                assert_eq!(map.any(block..block + 1), count > 0);
                assert_eq!(map.any_dirty(block..block + 1), dirty.contains(&block));
            }
            let mut out = Vec::new();
            map.dirty_from(range.start, range.end, usize::MAX, &mut out);
            assert_eq!(out, dirty);
            let sum: u64 = pieces.values().sum();
            assert_eq!((map.blocks(), map.extra_pieces()), (pieces.len() as u64, sum - pieces.len() as u64));
            assert_eq!((segments.live, map.dirty_blocks()), (sum, dirty.len() as u64));
            let spans = map.spans.values();
            let groups: Vec<_> = spans.clone().flat_map(|s| s.iter(u64::MAX).map(|(_, group)| group)).collect();
            assert_eq!(map.room_groups, spans.map(Some64::room).sum::<u64>());
            let leaves: Vec<&Leaf> = groups.iter().flat_map(|g| g.iter(u64::MAX).map(|(_, leaf)| leaf)).collect();
            assert!(leaves.iter().all(|l| l.present() != 0 && l.rows.there & l.aside == 0));
            assert_eq!(map.room_leaves, groups.iter().map(|g| g.room()).sum::<u64>());
            assert_eq!(map.room_rows, leaves.iter().map(|l| l.rows.room()).sum::<u64>());
        }
    }

    #[test]
    fn what_is_loaded_in_order_is_as_if_it_had_been_named_piece_by_piece() {
        let mut below = dice();
        for round in 0..200u64 {
            let ((mut loaded, mut segments, n), (mut named, mut of_named, _)) = (world(), world());
            let (range, mut model) = (GROUP - 200..GROUP + 200, Model::default());
            let mut pieces: Vec<(u64, Piece)> = Vec::new();
            let blocks: Vec<u64> = range.clone().filter(|_| below(4) > 0).collect();
            for block in blocks {
                // In every other round all are whole, and none is there twice: what an image says of that is not taken on trust.
                let parts = match below(60) * (round % 2) {
                    1 | 2 => [(0, 3), (3, 5)].to_vec(),
                    3 => [(0, 8), (0, 8)].to_vec(),
                    _ => [(0, 8)].to_vec(),
                };
                for (first, count) in parts {
                    pieces.push((block, piece(block + 1, n, first, count, below(2) == 0)));
                }
            }
            if round % 7 == 6 {
                pieces.reverse();
            }
            let mut rest = &pieces[..];
            while !rest.is_empty() {
                let (some, others) = rest.split_at(1 + below(rest.len() as u64) as usize);
                loaded.load(&mut segments, some);
                rest = others;
            }
            for (block, piece) in &pieces {
                named.insert(&mut of_named, *block, *piece);
                model.insert(*block, *piece);
            }
            model.check(&loaded, &segments, range.clone());
            assert_eq!((loaded.memory(), segments.live, segments.dirty), (named.memory(), of_named.live, of_named.dirty));
            let blocks = |of: &Segments| of.get(n).map(|s| s.blocks.to_vec());
            assert_eq!(blocks(&segments), blocks(&of_named));
        }
    }

    #[test]
    fn any_sequence_of_changes_leaves_who_came_last_in_each_sector() {
        let mut below = dice();
        for _ in 0..60 {
            let (mut map, mut segments, n) = world();
            let mut model = Model::default();
            // About the end of a leaf, or of a group of them.
            let range = [GROUP - 40..GROUP + 40, 30..100][below(2) as usize].clone();
            for turn in 0..300 {
                let block = range.start + below(range.end - range.start);
                let version = if below(8) == 0 { below(turn + 1) + 1 } else { turn + 1 } | below(2) << 55;
                let (first, count) = if below(2) == 0 { (0, 8) } else { (below(4) as u8, below(4) as u8 + 1) };
                match below(8) {
                    0 => {
                        let sectors = mask(first, count);
                        map.forget(&mut segments, block, sectors, version);
                        model.0.retain(|s, p| s / 8 != block || sectors >> (s % 8) & 1 == 0 || p.version() >= version);
                    }
                    1 => {
                        map.mark_clean(&mut segments, block, version);
                        let cleaned = |s: &u64, p: &Piece| s / 8 == block && p.version() <= version && p.dirty();
                        model.0.retain(|s, p| !(cleaned(s, p) && p.zeroes()));
                        model.0.iter_mut().filter(|(s, p)| cleaned(s, p)).for_each(|(_, p)| p.set_clean());
                    }
                    2 => {
                        map.drop_clean(&mut segments, block, |p| p.sum % 2 == 0);
                        model.0.retain(|s, p| s / 8 != block || p.dirty() || p.sum % 2 != 0);
                    }
                    _ => {
                        let segment = [n, n, n, 0xff_ffff, 1 << 24, u32::MAX][below(6) as usize];
                        let offset = [0, 8, 0x1234, u16::MAX - 7, u16::MAX][below(5) as usize];
                        let sum = below(u64::MAX) << 33 | below(u64::MAX);
                        let piece = Piece::new(version, sum, segment, offset, first, count, below(2) == 0, below(4) == 0);
                        map.insert(&mut segments, block, piece);
                        model.insert(block, piece);
                    }
                }
            }
            model.check(&map, &segments, range.clone());
            for block in range.clone() {
                map.forget(&mut segments, block, Mask::MAX, u64::MAX);
            }
            assert_eq!((map.memory(), map.blocks(), segments.live, segments.dirty), (0, 0, 0, 0));
        }
    }

    #[test]
    fn a_row_says_what_the_piece_does() {
        for version in [0, 1, 0x12_3456_789a_bcde, VERSION] {
            for segment in [0, 1, 0x00ab_cdef, 0xff_ffff, 1 << 24, u32::MAX] {
                for offset in [0, 1, 0x1234, u16::MAX - 1, u16::MAX] {
                    for flags in 0..4 {
                        let (dirty, zeroes) = (flags & 1 == 1, flags & 2 == 2);
                        let piece = Piece::new(version, !version << 3, segment, offset, 0, 8, dirty, zeroes);
                        let fits = segment < 1 << 24 && (zeroes || offset != u16::MAX);
                        assert_eq!(Row::of(&piece).map(|row| row.piece(dirty)), fits.then_some(piece));
                    }
                }
            }
        }
        let part = Piece::new(1, 2, 3, 4, 0, 7, false, false);
        let torn = Piece { live: 0x7f, ..Piece::new(1, 2, 3, 4, 0, 8, false, false) };
        assert!(Row::of(&part).is_none() && Row::of(&torn).is_none());
        assert_eq!((size_of::<Row>(), size_of::<Leaf>(), size_of::<Some64<Leaf>>()), (20, 56, 24));
    }

    #[test]
    fn dirty_blocks_come_in_order_of_address() {
        let (mut map, mut segments, n) = world();
        for b in [700, 3, 64, 65, 4096, 12] {
            map.insert(&mut segments, b, piece(b + 1, n, 0, 8, true));
        }
        let mut out = Vec::new();
        map.dirty_from(4, 4096, 10, &mut out);
        assert_eq!(out, [12, 64, 65, 700]);
    }
}
