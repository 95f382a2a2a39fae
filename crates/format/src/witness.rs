//! What the third vote remembers: the newest epoch, and who was in sync in it.

use crate::codec::{DecodeError, Reader, Writer, checksum, magic, verify};
use alloc::vec::Vec;

const MAGIC: u32 = u32::from_le_bytes(*b"HPwi");

/// Bytes of a witness record.
pub const WITNESS_BYTES: u64 = 4096;
/// Epochs of witnesses are below this, so that superblocks can have higher ones.
const MAX_EPOCH: u64 = (1 << 39) - (1 << 21);
/// Records on a witness, written in turn.
pub const WITNESS_SLOTS: u64 = 2;

/// One record of the witness.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WitnessRecord {
    /// The pool it votes for.
    pub pool: [u8; 16],
    /// The newest epoch it has heard of.
    pub epoch: u64,
    /// Who is in sync in that epoch.
    pub in_sync: InSync,
}

/// The members that are in sync in an epoch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct InSync {
    /// Bit n: member n is.
    pub numbers: u64,
    /// A checksum of their identities, which tells a device from the one that had its number before; zero where it was not written down.
    pub devices: u64,
}

impl InSync {
    /// The members of these numbers and identities, in order of number.
    #[must_use]
    pub fn of(members: impl Iterator<Item = (u8, [u8; 16])>) -> Self {
        let (mut numbers, mut ids) = (0, Vec::new());
        for (number, id) in members {
            numbers |= 1 << number;
            ids.push(number);
            ids.extend_from_slice(&id);
        }
        Self { numbers, devices: checksum(0, &ids).max(1) }
    }

    /// Whether both are the same devices, as far as both tell.
    #[must_use]
    pub fn agrees_with(&self, other: &Self) -> bool {
        self.numbers == other.numbers && (self.devices == other.devices || self.devices == 0 || other.devices == 0)
    }
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
        w.u64(self.in_sync.numbers);
        w.u64(self.in_sync.devices);
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
        let (pool, epoch) = (r.id()?, r.u64()?);
        if epoch >= MAX_EPOCH {
            return Err(DecodeError::Invalid("the witness's epoch"));
        }
        Ok(Self { pool, epoch, in_sync: InSync { numbers: r.u64()?, devices: r.u64()? } })
    }
}
