//! Reading and writing little-endian fields with every bound checked, and the checksum over them.

use alloc::vec::Vec;
use core::fmt;
use twox_hash::xxhash3_64::Hasher;

/// Why bytes from the media were not accepted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DecodeError {
    /// The magic number is not the structure's: nothing of ours was written here.
    Foreign,
    /// The structure is longer than the bytes at hand.
    Short,
    /// The checksum does not match: torn, flipped, misdirected, or of another pool.
    Checksum,
    /// The checksum matches but a field has a value that makes no sense.
    Invalid(&'static str),
    /// Written by a newer Headpond in a way that this one must not touch; the value is the version or feature bits.
    Newer(u64),
}

impl fmt::Display for DecodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DecodeError::Foreign => f.write_str("not written by Headpond"),
            DecodeError::Short => f.write_str("cut short"),
            DecodeError::Checksum => f.write_str("checksum does not match"),
            DecodeError::Invalid(what) => write!(f, "checksum matches but {what} makes no sense"),
            DecodeError::Newer(bits) => write!(f, "written by a newer version of Headpond (features {bits:#x})"),
        }
    }
}

impl core::error::Error for DecodeError {}

/// XXH3-64 of `bytes`, different for each `seed`.
#[must_use]
pub fn checksum(seed: u64, bytes: &[u8]) -> u64 {
    Hasher::oneshot_with_seed(seed, bytes)
}

pub(crate) struct Writer {
    bytes: Vec<u8>,
}

impl Writer {
    pub fn new() -> Self {
        Self::with_capacity(0)
    }
    /// The same with room for so many bytes.
    pub fn with_capacity(bytes: usize) -> Self {
        Self { bytes: Vec::with_capacity(bytes) }
    }
    pub fn u8(&mut self, v: u8) {
        self.bytes.push(v);
    }
    pub fn u16(&mut self, v: u16) {
        self.bytes.extend_from_slice(&v.to_le_bytes());
    }
    pub fn u32(&mut self, v: u32) {
        self.bytes.extend_from_slice(&v.to_le_bytes());
    }
    pub fn u64(&mut self, v: u64) {
        self.bytes.extend_from_slice(&v.to_le_bytes());
    }
    pub fn bytes(&mut self, v: &[u8]) {
        self.bytes.extend_from_slice(v);
    }
    /// A length of two bytes, then the text.
    pub fn text(&mut self, v: &str) {
        let len = v.len().min(usize::from(u16::MAX));
        self.u16(len as u16);
        self.bytes(v.as_bytes().get(..len).unwrap_or_default());
    }
    /// Pads with zeroes to a multiple of `unit`.
    pub fn pad_to(&mut self, unit: usize) {
        let len = self.bytes.len().next_multiple_of(unit);
        self.bytes.resize(len, 0);
    }
    pub fn len(&self) -> usize {
        self.bytes.len()
    }
    /// Puts the checksum of everything else (with the field itself as zeroes) into the eight bytes at `at`.
    pub fn seal(mut self, seed: u64, at: usize) -> Vec<u8> {
        put(&mut self.bytes, at, &[0; 8]);
        let sum = checksum(seed, &self.bytes);
        put(&mut self.bytes, at, &sum.to_le_bytes());
        self.bytes
    }
    pub fn put_u32(&mut self, at: usize, v: u32) {
        put(&mut self.bytes, at, &v.to_le_bytes());
    }
}

fn put(bytes: &mut [u8], at: usize, v: &[u8]) {
    if let Some(place) = bytes.get_mut(at..at.saturating_add(v.len())) {
        place.copy_from_slice(v);
    }
}

/// Checks the checksum that [`Writer::seal`] put at `at` over the whole of `bytes`.
pub(crate) fn verify(seed: u64, bytes: &[u8], at: usize) -> Result<(), DecodeError> {
    let end = at.checked_add(8).ok_or(DecodeError::Short)?;
    let field: [u8; 8] = bytes.get(at..end).ok_or(DecodeError::Short)?.try_into().map_err(|_| DecodeError::Short)?;
    let mut copy = Vec::from(bytes);
    put(&mut copy, at, &[0; 8]);
    if checksum(seed, &copy) == u64::from_le_bytes(field) { Ok(()) } else { Err(DecodeError::Checksum) }
}

pub(crate) struct Reader<'a> {
    bytes: &'a [u8],
}

impl<'a> Reader<'a> {
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { bytes }
    }
    pub fn bytes(&mut self, n: usize) -> Result<&'a [u8], DecodeError> {
        let (head, tail) = self.bytes.split_at_checked(n).ok_or(DecodeError::Short)?;
        self.bytes = tail;
        Ok(head)
    }
    fn array<const N: usize>(&mut self) -> Result<[u8; N], DecodeError> {
        self.bytes(N)?.try_into().map_err(|_| DecodeError::Short)
    }
    pub fn u8(&mut self) -> Result<u8, DecodeError> {
        Ok(u8::from_le_bytes(self.array()?))
    }
    pub fn u16(&mut self) -> Result<u16, DecodeError> {
        Ok(u16::from_le_bytes(self.array()?))
    }
    pub fn u32(&mut self) -> Result<u32, DecodeError> {
        Ok(u32::from_le_bytes(self.array()?))
    }
    pub fn u64(&mut self) -> Result<u64, DecodeError> {
        Ok(u64::from_le_bytes(self.array()?))
    }
    pub fn id(&mut self) -> Result<[u8; 16], DecodeError> {
        self.array()
    }
    pub fn text(&mut self) -> Result<alloc::string::String, DecodeError> {
        let len = self.u16()?;
        let bytes = self.bytes(usize::from(len))?;
        core::str::from_utf8(bytes).map(Into::into).map_err(|_| DecodeError::Invalid("a name"))
    }
}

/// The four bytes at the front, without taking them.
pub(crate) fn magic(bytes: &[u8]) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(..4)?.try_into().ok()?))
}
