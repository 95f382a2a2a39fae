//! The intent map: for each 64 MiB region of a volume, may the disk be newer than clean copies (intent),
//! and may there be dirty data (dirty).

use crate::codec::{DecodeError, Reader, Writer, magic, verify};
use alloc::vec::Vec;

const MAGIC: u32 = u32::from_le_bytes(*b"HPin");
const HEADER: usize = 64;
const BITMAP: usize = (INTENT_PAGE_BYTES - HEADER) / 2;

/// Bytes of an intent page.
pub const INTENT_PAGE_BYTES: usize = 4096;
/// Regions that a page describes.
pub const REGIONS_PER_PAGE: u32 = (BITMAP * 8) as u32;
/// Sectors of a region (64 MiB).
pub const REGION_SECTORS: u64 = (64 << 20) / 512;

/// Pages that a volume of `sectors` needs.
#[must_use]
pub fn pages_for(sectors: u64) -> u32 {
    // Some sectors more than the volume has: the grid may be shifted.
    sectors.saturating_add(8).div_ceil(REGION_SECTORS).div_ceil(u64::from(REGIONS_PER_PAGE)) as u32
}

/// One page of the intent map. Each has two slots, written in turn.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct IntentPage {
    /// Number of the page in the pool.
    pub page: u32,
    /// The volume it is about.
    pub volume: u16,
    /// Grows with each time that the page is written.
    pub sequence: u64,
    /// Bit n: the disk may be newer than clean copies in region n of the page.
    pub intent: Vec<u8>,
    /// Bit n: there may be dirty data in region n of the page.
    pub dirty: Vec<u8>,
}

impl IntentPage {
    /// A page with no bit set.
    #[must_use]
    pub fn empty(page: u32, volume: u16) -> Self {
        Self { page, volume, sequence: 0, intent: alloc::vec![0; BITMAP], dirty: alloc::vec![0; BITMAP] }
    }

    /// Sets what is set in either.
    pub fn add(&mut self, other: &Self) {
        let add = |to: &mut [u8], from: &[u8]| to.iter_mut().zip(from).for_each(|(to, from)| *to |= from);
        add(&mut self.intent, &other.intent);
        add(&mut self.dirty, &other.dirty);
    }

    /// The page's bytes.
    #[must_use]
    pub fn encode(&self, key: u64) -> Vec<u8> {
        let mut w = Writer::new();
        w.u32(MAGIC);
        w.u32(self.page);
        w.u64(0);
        w.u64(self.sequence);
        w.u16(self.volume);
        w.pad_to(HEADER);
        w.bytes(self.intent.get(..BITMAP).unwrap_or(&self.intent));
        w.bytes(self.dirty.get(..BITMAP).unwrap_or(&self.dirty));
        w.pad_to(INTENT_PAGE_BYTES);
        w.seal(key, 8)
    }

    /// Decodes the page with number `page`.
    pub fn decode(key: u64, bytes: &[u8], page: u32) -> Result<Self, DecodeError> {
        let bytes = bytes.get(..INTENT_PAGE_BYTES).ok_or(DecodeError::Short)?;
        if magic(bytes) != Some(MAGIC) {
            return Err(DecodeError::Foreign);
        }
        verify(key, bytes, 8)?;
        let mut r = Reader::new(bytes);
        r.u32()?;
        let found = r.u32()?;
        r.u64()?;
        let sequence = r.u64()?;
        let volume = r.u16()?;
        if found != page {
            return Err(DecodeError::Foreign);
        }
        if sequence >= 1 << 63 {
            return Err(DecodeError::Invalid("an intent page's sequence"));
        }
        r.bytes(HEADER - 26)?;
        Ok(Self { page, volume, sequence, intent: r.bytes(BITMAP)?.into(), dirty: r.bytes(BITMAP)?.into() })
    }
}
