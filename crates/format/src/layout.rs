//! Where things are on a cache device.
//!
//! ```text
//! 0        superblock slot 0        64 KiB
//! 64 KiB   superblock slot 1        64 KiB
//! 128 KiB  intent pages             two slots of 4 KiB for each page
//!          checkpoint area 0        a multiple of 64 KiB
//!          checkpoint area 1        the same
//!          segment slots            each of the pool's segment size
//! end      superblock slots 2, 3    128 KiB, copies of slots 0 and 1 at the other end of the device
//! ```

use crate::{INTENT_PAGE_BYTES, PAGE_BYTES};

/// Bytes that a superblock slot takes.
pub const SUPERBLOCK_BYTES: u64 = 64 * 1024;

/// The places on one cache device, all in bytes from its start.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Layout {
    /// Size of the device.
    pub size: u64,
    /// Bytes of a segment.
    pub segment_bytes: u64,
    /// Intent pages that the pool can have.
    pub intent_pages: u32,
    /// Bytes of each of the two checkpoint areas.
    pub checkpoint_bytes: u64,
}

impl Layout {
    /// Lays out a device of `size` bytes: the checkpoint areas are made large enough for twice the blocks that the
    /// device can cache (both members of a pair describe them, and fragments need entries of their own).
    /// `None` if fewer than four segments would fit.
    #[must_use]
    pub fn plan(size: u64, segment_bytes: u64, intent_pages: u32) -> Option<Self> {
        let pieces = size / 4096;
        // 32 bytes an entry, both copies of a page counted; one more page for each kind.
        let image = pieces.checked_mul(2 * 32)?.checked_add(4 * PAGE_BYTES as u64)?;
        let checkpoint_bytes = image.checked_next_multiple_of(PAGE_BYTES as u64)?;
        let layout = Self { size, segment_bytes, intent_pages, checkpoint_bytes };
        (layout.slots() >= 4).then_some(layout)
    }

    /// Whether everything has its place, one behind the other: what was read from the media may be anything.
    pub(crate) fn makes_sense(&self) -> bool {
        (8192..=32 << 20).contains(&self.segment_bytes)
            && self.segment_bytes.is_multiple_of(4096)
            && (4 * SUPERBLOCK_BYTES..=1 << 60).contains(&self.size)
            && self.checkpoint_bytes <= self.size
            && self.checkpoint_bytes.is_multiple_of(PAGE_BYTES as u64)
            // With room for a segment behind them, the areas before it do not reach the superblocks at the end.
            && self.slots() > 0
    }

    /// Where superblock slot `n` of 4 is. Slots 0 and 2 hold one generation, 1 and 3 the other.
    #[must_use]
    pub fn superblock(&self, n: u8) -> u64 {
        match n {
            0 => 0,
            1 => SUPERBLOCK_BYTES,
            2 => self.tail(),
            _ => self.tail().saturating_add(SUPERBLOCK_BYTES),
        }
    }

    fn tail(&self) -> u64 {
        Self::tail_of(self.size)
    }

    /// Where the superblock copies at the end of a device of `size` bytes begin.
    #[must_use]
    pub fn tail_of(size: u64) -> u64 {
        (size / 4096 * 4096).saturating_sub(2 * SUPERBLOCK_BYTES)
    }

    /// Where slot `slot` (0 or 1) of intent page `page` is.
    #[must_use]
    pub fn intent(&self, page: u32, slot: u8) -> u64 {
        2 * SUPERBLOCK_BYTES + (u64::from(page) * 2 + u64::from(slot & 1)) * INTENT_PAGE_BYTES as u64
    }

    /// Where checkpoint area `area` (0 or 1) begins.
    #[must_use]
    pub fn checkpoint(&self, area: u8) -> u64 {
        self.intent(self.intent_pages, 0).next_multiple_of(PAGE_BYTES as u64) + u64::from(area & 1) * self.checkpoint_bytes
    }

    /// Where segment slot `slot` begins.
    #[must_use]
    pub fn slot(&self, slot: u32) -> u64 {
        self.first_slot() + u64::from(slot) * self.segment_bytes
    }

    fn first_slot(&self) -> u64 {
        self.checkpoint(1).saturating_add(self.checkpoint_bytes).next_multiple_of(self.segment_bytes.min(1 << 20))
    }

    /// How many segment slots there are.
    #[must_use]
    pub fn slots(&self) -> u32 {
        let room = self.tail().saturating_sub(self.first_slot());
        u32::try_from(room / self.segment_bytes.max(1)).unwrap_or(u32::MAX)
    }
}

/// How many sectors behind a volume's beginning its grid of blocks of eight begins, turned about: grid sector = sector + shift, where the first
/// whole block begins at sector `phase`, 0 to 7.
#[must_use]
pub fn grid_shift(phase: u8) -> u64 {
    (8 - u64::from(phase % 8)) % 8
}
