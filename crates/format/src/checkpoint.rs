//! Checkpoint pages: the segment table and the map as an image.
//!
//! A checkpoint is a run of pages, numbered from 0; the superblock says how many, in which area and on which members.
//! Page `i` of a checkpoint over `k` members is on the members number `i % k` and `(i + 1) % k` of that list,
//! at page `2 * (i / k)` and `2 * (i / k) + 1` of their area; over one member at page `i`.

use crate::codec::{DecodeError, Reader, Writer, magic, verify};
use crate::segment::{Class, Place, sense};
use alloc::vec::Vec;

const MAGIC: u32 = u32::from_le_bytes(*b"HPck");
const HEADER: usize = 64;

/// Bytes of a page.
pub const PAGE_BYTES: usize = 64 * 1024;

/// A segment in a checkpoint.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SegmentEntry {
    /// Its number.
    pub segment: u32,
    /// Its generation.
    pub generation: u64,
    /// What it is for.
    pub class: Class,
    /// The volume it belongs to.
    pub volume: u16,
    /// Where it is.
    pub copies: [Place; 2],
    /// Records from this sector on may be missing in the image and are to be replayed; `u32::MAX` if it was full.
    pub replay_from: u32,
}

/// A cached piece of a block in a checkpoint.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PieceEntry {
    /// Block of the volume.
    pub block: u64,
    /// Version of the write.
    pub version: u64,
    /// Checksum of its data.
    pub sum: u64,
    /// Segment that holds it.
    pub segment: u32,
    /// First sector inside the segment.
    pub offset: u16,
    /// Bit n: sector n of the block is this piece's.
    pub live: u8,
    /// First sector in bits 0 to 2, sectors less one in bits 3 to 5, bit 6 dirty, bit 7 zeroes.
    pub span: u8,
}

/// What a page holds.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum PageBody {
    /// Part of the segment table.
    Segments(Vec<SegmentEntry>),
    /// Part of the map of a volume.
    Pieces(u16, Vec<PieceEntry>),
}

/// One page of a checkpoint.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Page {
    /// The checkpoint's sequence number.
    pub sequence: u64,
    /// Number of the page.
    pub index: u32,
    /// What it holds.
    pub body: PageBody,
}

impl Page {
    /// Pieces that fit in a page.
    pub const PIECES: usize = (PAGE_BYTES - HEADER) / 32;
    /// Segments that fit in a page.
    pub const SEGMENTS: usize = (PAGE_BYTES - HEADER) / 32;

    /// The page's bytes, as many sectors as it needs.
    #[must_use]
    pub fn encode(&self, key: u64) -> Vec<u8> {
        let mut w = Writer::new();
        let (kind, volume, count) = match &self.body {
            PageBody::Segments(s) => (1, 0, s.len()),
            PageBody::Pieces(v, p) => (2, *v, p.len()),
        };
        w.u32(MAGIC);
        w.u32(0);
        w.u64(0);
        w.u64(self.sequence);
        w.u32(self.index);
        w.u16(kind);
        w.u16(volume);
        w.u32(count as u32);
        w.pad_to(HEADER);
        match &self.body {
            PageBody::Segments(segments) => {
                for s in segments {
                    w.u32(s.segment);
                    w.u64(s.generation);
                    w.u8(s.class.code());
                    w.u8(0);
                    w.u16(s.volume);
                    for c in s.copies {
                        c.write(&mut w);
                    }
                    w.u32(s.replay_from);
                    w.u16(0);
                }
            }
            PageBody::Pieces(_, pieces) => {
                for p in pieces {
                    w.u64(p.block);
                    w.u64(p.version);
                    w.u64(p.sum);
                    w.u32(p.segment);
                    w.u16(p.offset);
                    w.u8(p.live);
                    w.u8(p.span);
                }
            }
        }
        w.pad_to(4096);
        let len = w.len() as u32;
        w.put_u32(4, len);
        w.seal(key, 8)
    }

    /// Decodes page `index` of checkpoint `sequence`.
    pub fn decode(key: u64, bytes: &[u8], sequence: u64, index: u32) -> Result<Self, DecodeError> {
        if magic(bytes) != Some(MAGIC) {
            return Err(DecodeError::Foreign);
        }
        let mut r = Reader::new(bytes);
        r.u32()?;
        let len = r.u32()? as usize;
        let bytes = bytes.get(..len).ok_or(DecodeError::Short)?;
        if len < HEADER {
            return Err(DecodeError::Short);
        }
        verify(key, bytes, 8)?;
        let mut r = Reader::new(bytes);
        r.u64()?;
        r.u64()?;
        if r.u64()? != sequence || r.u32()? != index {
            return Err(DecodeError::Foreign);
        }
        let kind = r.u16()?;
        let volume = r.u16()?;
        let count = r.u32()? as usize;
        if count > Self::PIECES {
            return Err(DecodeError::Invalid("the number of entries"));
        }
        r.bytes(HEADER - 36)?;
        let body = match kind {
            1 => {
                let mut list = Vec::with_capacity(count);
                for _ in 0..count {
                    let (segment, generation) = (r.u32()?, r.u64()?);
                    let class = Class::from_code(r.u8()?)?;
                    r.u8()?;
                    let volume = r.u16()?;
                    let copies = [Place::read(&mut r)?, Place::read(&mut r)?];
                    let replay_from = r.u32()?;
                    r.u16()?;
                    sense(generation, &copies)?;
                    list.push(SegmentEntry { segment, generation, class, volume, copies, replay_from });
                }
                PageBody::Segments(list)
            }
            2 => {
                let mut list = Vec::with_capacity(count);
                for _ in 0..count {
                    let p = PieceEntry {
                        block: r.u64()?,
                        version: r.u64()?,
                        sum: r.u64()?,
                        segment: r.u32()?,
                        offset: r.u16()?,
                        live: r.u8()?,
                        span: r.u8()?,
                    };
                    let (first, sectors) = (u32::from(p.span & 7), u32::from(p.span >> 3 & 7) + 1);
                    let written = ((1u32 << sectors) - 1) << first;
                    let beyond = first + sectors > 8 || u32::from(p.live) & !written != 0;
                    if beyond || p.version >= 1 << 56 || p.block > 1 << 56 {
                        return Err(DecodeError::Invalid("a piece"));
                    }
                    list.push(p);
                }
                PageBody::Pieces(volume, list)
            }
            _ => return Err(DecodeError::Invalid("the kind of page")),
        };
        Ok(Self { sequence, index, body })
    }
}
