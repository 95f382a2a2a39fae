//! What the third vote remembers: the newest epoch, and who was in sync in it.

use crate::codec::{DecodeError, Reader, Writer, magic, verify};
use alloc::vec::Vec;

const MAGIC: u32 = u32::from_le_bytes(*b"HPwi");

/// Bytes of a witness record.
pub const WITNESS_BYTES: u64 = 4096;
/// Records on a witness, written in turn.
pub const WITNESS_SLOTS: u64 = 2;

/// One record of the witness.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WitnessRecord {
    /// The pool it votes for.
    pub pool: [u8; 16],
    /// The newest epoch it has heard of.
    pub epoch: u64,
    /// Bit n: member n is in sync in that epoch.
    pub in_sync: u64,
}

impl WitnessRecord {
    /// The record's bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut w = Writer::new();
        w.u32(MAGIC);
        w.u32(1);
        w.u64(0);
        w.bytes(&self.pool);
        w.u64(self.epoch);
        w.u64(self.in_sync);
        w.pad_to(WITNESS_BYTES as usize);
        w.seal(0, 8)
    }

    /// Decodes a record.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        if magic(bytes) != Some(MAGIC) {
            return Err(DecodeError::Foreign);
        }
        verify(0, bytes, 8)?;
        let mut r = Reader::new(bytes);
        r.u32()?;
        let version = r.u32()?;
        if version != 1 {
            return Err(DecodeError::Newer(u64::from(version)));
        }
        r.u64()?;
        Ok(Self { pool: r.id()?, epoch: r.u64()?, in_sync: r.u64()? })
    }
}
