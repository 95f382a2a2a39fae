//! A run of sectors of one block as it was written: what the map says of it.

use crate::io::Buf;
use core::ops::Range;

/// Sectors of a block as bits.
pub type Mask = u8;

/// The bits of `count` sectors from `first` on.
#[must_use]
pub fn mask(first: u8, count: u8) -> Mask {
    (((1u16 << count) - 1) << first) as u8
}

/// The runs of set bits.
pub(crate) fn runs(mask: Mask) -> impl Iterator<Item = Range<u64>> {
    let mut at = 0u32;
    core::iter::from_fn(move || {
        let rest = u32::from(mask) >> at;
        if rest == 0 {
            return None;
        }
        let start = at + rest.trailing_zeros();
        let len = (u32::from(mask) >> start).trailing_ones();
        at = start + len;
        Some(u64::from(start)..u64::from(at))
    })
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
pub(super) const VERSION: u64 = (1 << 56) - 1;

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
    /// Whether it is the same data in the same place, whatever of either is still live.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        (self.version(), self.segment, self.offset) == (other.version(), other.segment, other.offset)
    }
    /// The runs of what is live of it, by sectors of its block, each cut from `data`, which is all that it was written with.
    pub(crate) fn live_parts<B: Buf>(&self, data: &B) -> impl Iterator<Item = (Range<u64>, B)> {
        let first = u64::from(self.first());
        runs(self.live).map(move |r| {
            let part = data.slice((r.start - first) as usize * 512..(r.end - first) as usize * 512);
            (r, part)
        })
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
    pub(super) fn dirty_sectors(&self) -> Option<u8> {
        self.dirty().then(|| if self.zeroes() { 0 } else { self.sectors() })
    }
    pub(super) fn set_clean(&mut self) {
        self.version_flags &= !DIRTY;
    }
    /// First sector in bits 0 to 2, sectors less one in bits 3 to 5, bit 6 dirty, bit 7 zeroes: as in a checkpoint.
    #[must_use]
    pub fn packed_span(&self) -> u8 {
        self.span | u8::from(self.dirty()) << 6 | u8::from(self.zeroes()) << 7
    }
}
