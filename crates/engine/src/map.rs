//! The map of a volume: which sectors are cached, where, in which version, and whether dirty.
//!
//! Blocks are kept in leaves of 64 consecutive ones, ordered by address, so that one lookup serves a run of blocks,
//! a sweep is an iteration, and "is anything dirty here" is a few bits. Nearly every block has one piece; further
//! pieces of a fragmented block are in a side table.

use crate::io::BLOCK_SECTORS;
use crate::segments::Segments;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::ops::{Deref, DerefMut, Range};

const LEAF: u64 = 64;

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
    /// Its first sector there.
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
            offset,
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
    /// The same data elsewhere.
    #[must_use]
    pub fn moved(mut self, segment: u32, offset: u16) -> Self {
        self.segment = segment;
        self.offset = offset;
        self
    }
}

#[derive(Debug, Default)]
struct Leaf {
    present: u64,
    dirty: u64,
    fragmented: u64,
    pieces: Vec<Piece>,
}

impl Leaf {
    fn rank(&self, bit: u64) -> usize {
        (self.present & ((1 << bit) - 1)).count_ones() as usize
    }
}

/// The map of one volume.
#[derive(Debug, Default)]
pub struct Map {
    leaves: BTreeMap<u64, Leaf>,
    more: BTreeMap<u64, Vec<Piece>>,
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
    /// Bytes of memory that the map takes, without the allocator's own.
    #[must_use]
    pub fn memory(&self) -> u64 {
        let leaf = (size_of::<Leaf>() + 8) as u64;
        let pieces: u64 = self.leaves.values().map(|l| (l.pieces.capacity() * size_of::<Piece>()) as u64).sum();
        self.leaves.len() as u64 * leaf * 4 / 3 + pieces + self.more.len() as u64 * 48 + self.extra * size_of::<Piece>() as u64
    }

    /// Calls `f` with each piece of a block.
    pub fn each(&self, block: u64, mut f: impl FnMut(&Piece)) {
        let Some(leaf) = self.leaves.get(&(block / LEAF)) else { return };
        let bit = block % LEAF;
        if leaf.present >> bit & 1 == 0 {
            return;
        }
        f(&leaf.pieces[leaf.rank(bit)]);
        if leaf.fragmented >> bit & 1 == 1 {
            self.more.get(&block).into_iter().flatten().for_each(f);
        }
    }

    /// The leaves of a range of blocks. Most ranges are in one: a look-up costs half of a range's two ends.
    fn leaves_of(&self, blocks: &Range<u64>) -> impl Iterator<Item = (u64, &Leaf)> {
        let leaves = blocks.start / LEAF..blocks.end.div_ceil(LEAF);
        let one = leaves.end <= leaves.start + 1;
        let alone = if one { self.leaves.get(&leaves.start).map(|l| (leaves.start, l)) } else { None };
        let several = (!one).then(|| self.leaves.range(leaves).map(|(n, l)| (*n, l)));
        alone.into_iter().chain(several.into_iter().flatten())
    }

    /// Calls `f` with each piece of the blocks of a range, in order of address.
    pub fn each_in(&self, blocks: Range<u64>, mut f: impl FnMut(u64, &Piece)) {
        for (n, leaf) in self.leaves_of(&blocks) {
            let mut bits = leaf.present & window(&blocks, n);
            while bits != 0 {
                let bit = u64::from(bits.trailing_zeros());
                bits &= bits - 1;
                let block = n * LEAF + bit;
                f(block, &leaf.pieces[leaf.rank(bit)]);
                if leaf.fragmented >> bit & 1 == 1 {
                    self.more.get(&block).into_iter().flatten().for_each(|p| f(block, p));
                }
            }
        }
    }

    /// Whether anything in a range of blocks is dirty.
    #[must_use]
    pub fn any_dirty(&self, blocks: Range<u64>) -> bool {
        self.leaves_of(&blocks).any(|(n, l)| l.dirty & window(&blocks, n) != 0)
    }

    /// Whether anything in a range of blocks is cached.
    #[must_use]
    pub fn any(&self, blocks: Range<u64>) -> bool {
        self.leaves_of(&blocks).any(|(n, l)| l.present & window(&blocks, n) != 0)
    }

    /// Up to `most` dirty blocks from `from` on, below `to`, in order of address.
    pub fn dirty_from(&self, from: u64, to: u64, most: usize, out: &mut Vec<u64>) {
        for (n, leaf) in self.leaves.range(from / LEAF..to.div_ceil(LEAF)) {
            let mut bits = leaf.dirty & window(&(from..to), *n);
            while bits != 0 {
                if out.len() >= most {
                    return;
                }
                out.push(n * LEAF + u64::from(bits.trailing_zeros()));
                bits &= bits - 1;
            }
        }
    }

    /// Up to `most` leaves' worth of pieces from block `from` on; returns where to go on, or `None` at the end.
    /// The walk of a checkpoint: what changes behind it is in the log that is replayed over the image.
    pub fn walk(&self, from: u64, most: usize, mut f: impl FnMut(u64, &Piece)) -> Option<u64> {
        let mut count = 0;
        for (n, _) in self.leaves.range(from / LEAF..) {
            if count >= most {
                return Some(n * LEAF);
            }
            self.each_in(n * LEAF..(n + 1) * LEAF, |b, p| {
                count += 1;
                f(b, p);
            });
        }
        None
    }

    /// Names a piece: it takes its sectors from all older pieces, and keeps of them what nothing newer holds (R3).
    /// Whether anything of it is live.
    pub fn insert(&mut self, segments: &mut Segments, block: u64, mut piece: Piece) -> bool {
        segments.named(piece.segment, block);
        self.edit(segments, block, |pieces| {
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
        self.edit(segments, block, |pieces| {
            for old in pieces.iter_mut().filter(|p| p.version() < version) {
                old.live &= !sectors;
            }
        });
    }

    /// Lets go of clean pieces of a block that satisfy `which`.
    pub fn drop_clean(&mut self, segments: &mut Segments, block: u64, which: impl Fn(&Piece) -> bool) {
        self.edit(segments, block, |pieces| pieces.retain(|p| p.dirty() || !which(p)));
    }

    /// Marks pieces of a block up to `version` clean. Zeroes that are clean are let go: the disk has them.
    pub fn mark_clean(&mut self, segments: &mut Segments, block: u64, version: u64) {
        self.edit(segments, block, |pieces| {
            for p in pieces.iter_mut().filter(|p| p.dirty() && p.version() <= version) {
                p.set_clean();
                if p.zeroes() {
                    p.live = 0;
                }
            }
        });
    }

    /// The data of the piece at one place is now at another; nothing happens if that piece is no longer in the map.
    pub fn relocate(&mut self, segments: &mut Segments, block: u64, from: (u32, u16), to: Piece) -> bool {
        let mut found = false;
        self.edit(segments, block, |pieces| {
            if let Some(p) =
                pieces.iter_mut().find(|p| (p.segment, p.offset) == from && p.version() == to.version() && !p.zeroes())
            {
                *p = p.moved(to.segment, to.offset);
                found = true;
            }
        });
        found
    }

    /// Changes the pieces of one block, and keeps all counts: a piece whose live sectors are gone is dropped.
    fn edit(&mut self, segments: &mut Segments, block: u64, change: impl FnOnce(&mut Few)) {
        let (n, bit) = (block / LEAF, block % LEAF);
        let leaf = self.leaves.entry(n).or_default();
        let at = leaf.rank(bit);
        let mut pieces = Few::default();
        let had = leaf.present >> bit & 1 == 1;
        if had {
            pieces.push(leaf.pieces[at]);
            if leaf.fragmented >> bit & 1 == 1 {
                self.more.remove(&block).into_iter().flatten().for_each(|p| pieces.push(p));
            }
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
        let pieces = &pieces[..];
        self.blocks = self.blocks + u64::from(!pieces.is_empty()) - u64::from(had);
        self.extra = self.extra + pieces.len().saturating_sub(1) as u64 - before.len().saturating_sub(1) as u64;
        let dirty = pieces.iter().any(Piece::dirty);
        self.dirty_blocks = self.dirty_blocks + u64::from(dirty) - (leaf.dirty >> bit & 1);
        let flag = 1u64 << bit;
        leaf.dirty = leaf.dirty & !flag | u64::from(dirty) << bit;
        leaf.fragmented = leaf.fragmented & !flag | u64::from(pieces.len() > 1) << bit;
        match (had, pieces.first()) {
            (true, None) => {
                leaf.pieces.remove(at);
                leaf.present &= !flag;
            }
            (true, Some(first)) => leaf.pieces[at] = *first,
            (false, Some(first)) => {
                leaf.pieces.insert(at, *first);
                leaf.present |= flag;
            }
            (false, None) => {}
        }
        if leaf.present == 0 {
            self.leaves.remove(&n);
        }
        if pieces.len() > 1 {
            self.more.insert(block, pieces[1..].to_vec());
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
