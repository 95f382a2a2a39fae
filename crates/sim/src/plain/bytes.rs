//! Buffers of real bytes.

use headpond_engine::Buf;
use headpond_engine::format::checksum;
use std::borrow::Cow;
use std::ops::Range;
use std::rc::Rc;

/// A shared run of bytes.
#[derive(Clone, Debug)]
pub struct Bytes {
    all: Rc<[u8]>,
    part: Range<usize>,
}

impl Bytes {
    /// These bytes.
    #[must_use]
    pub fn of(bytes: Vec<u8>) -> Self {
        Self { part: 0..bytes.len(), all: bytes.into() }
    }

    /// To look at.
    #[must_use]
    pub fn get(&self) -> &[u8] {
        &self.all[self.part.clone()]
    }
}

impl Buf for Bytes {
    fn from_bytes(bytes: &[u8]) -> Self {
        Self::of(bytes.to_vec())
    }
    fn zeroes(len: usize) -> Self {
        Self::of(vec![0; len])
    }
    fn len(&self) -> usize {
        self.part.len()
    }
    fn slice(&self, range: Range<usize>) -> Self {
        assert!(range.end <= self.part.len(), "slice {range:?} of {}", self.part.len());
        Self { all: self.all.clone(), part: self.part.start + range.start..self.part.start + range.end }
    }
    fn checksum(&self, seed: u64) -> u64 {
        checksum(seed, self.get())
    }
    fn to_bytes(&self) -> Cow<'_, [u8]> {
        Cow::Borrowed(self.get())
    }
    fn join(parts: &[Self]) -> Self {
        Self::of(parts.iter().flat_map(|p| p.get()).copied().collect())
    }
}
