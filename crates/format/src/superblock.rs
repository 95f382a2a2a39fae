//! The superblock: who the pool is, who is in sync, which volumes there are, where the checkpoint is.

use crate::checkpoint::PAGE_BYTES;
use crate::codec::{DecodeError, Reader, Writer, verify};
use crate::intent::pages_for;
use crate::layout::{Layout, SUPERBLOCK_BYTES};
use crate::witness::InSync;
use alloc::string::String;
use alloc::vec::Vec;

const MAGIC: &[u8; 8] = b"HEADPOND";

/// The version of the media format that this code writes.
pub const FORMAT_VERSION: u32 = 1;
/// Incompatible feature bits that this code understands.
pub const INCOMPAT_KNOWN: u64 = 0;
/// The most cache devices in a pool.
pub const MAX_MEMBERS: usize = 32;
/// The most volumes on a pool.
pub const MAX_VOLUMES: usize = 64;
/// The most sectors of a volume.
pub const MAX_SECTORS: u64 = 1 << 52;
/// Epochs and sequence numbers are below this, so that they can still grow, and what is counted from them too.
const MAX_COUNTER: u64 = 1 << 39;

/// Where a cache device stands in its pool.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MemberState {
    /// Holds all that it should.
    InSync,
    /// Has left; what it holds is stale.
    Out,
}

/// How a volume serves its clients.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mode {
    /// Writes are acknowledged by the cache and go to the disk later.
    WriteBack,
    /// Writes go to the disk and to the cache.
    WriteThrough,
    /// Writes go to the disk; reads are cached.
    WriteAround,
    /// Nothing is cached.
    PassThrough,
}

impl Mode {
    fn code(self) -> u8 {
        match self {
            Mode::WriteBack => 0,
            Mode::WriteThrough => 1,
            Mode::WriteAround => 2,
            Mode::PassThrough => 3,
        }
    }
    fn from_code(v: u8) -> Result<Self, DecodeError> {
        Ok(match v {
            0 => Mode::WriteBack,
            1 => Mode::WriteThrough,
            2 => Mode::WriteAround,
            3 => Mode::PassThrough,
            _ => return Err(DecodeError::Invalid("a volume's mode")),
        })
    }
    /// All there are.
    pub const ALL: [Self; 4] = [Self::WriteBack, Self::WriteThrough, Self::WriteAround, Self::PassThrough];

    /// The mode with this name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|mode| mode.name() == name)
    }

    /// The mode's name on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Mode::WriteBack => "write-back",
            Mode::WriteThrough => "write-through",
            Mode::WriteAround => "write-around",
            Mode::PassThrough => "pass-through",
        }
    }
}

/// A cache device of the pool.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MemberEntry {
    /// Identity of the device in the pool; never used again after it has left.
    pub id: [u8; 16],
    /// Where it stands.
    pub state: MemberState,
    /// Its places.
    pub layout: Layout,
}

/// A volume on the pool.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct VolumeEntry {
    /// Number of the volume in the pool.
    pub number: u16,
    /// Its identity.
    pub id: [u8; 16],
    /// Its name, unique in the pool, at most 64 bytes.
    pub name: String,
    /// Its size.
    pub sectors: u64,
    /// Sector of the volume, 0 to 7, at which the grid of blocks begins.
    pub phase: u8,
    /// How it serves its clients.
    pub mode: Mode,
    /// First of its pages in the intent map, and how many.
    pub intent_first: u32,
    /// Pages of the intent map that are its own.
    pub intent_pages: u32,
    /// What identifies the backing device, at most 256 bytes; empty where there is none.
    pub backing: String,
    /// What is doubted of it.
    pub doubts: Doubts,
}

/// What is doubted of a volume, for as long as it is on the pool.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Doubts {
    /// Dirty data may be missing of which nobody left has heard: it is not served.
    pub uncertain: bool,
    /// A flush of its disk failed over acknowledged writes, or the last copy of dirty data is gone, and no client has been told.
    pub untold: bool,
    /// A flush of its disk failed, and some of the regions that were written to before still have their intent bits: the disk may read as
    /// it was written there, and not keep it.
    pub unkept: bool,
}

/// Where the newest checkpoint is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CheckpointPointer {
    /// Its sequence number.
    pub sequence: u64,
    /// The area, 0 or 1.
    pub area: u8,
    /// Its pages.
    pub pages: u32,
    /// The members that hold it.
    pub members: Vec<u8>,
    /// No version in it or before it is larger.
    pub version: u64,
    /// No generation in it or before it is larger.
    pub generation: u64,
}

impl CheckpointPointer {
    /// Where page `index` is: see [`page_places`].
    #[must_use]
    pub fn places(&self, index: u32) -> Vec<(u8, u64)> {
        page_places(index, &self.members)
    }
}

/// Where page `index` of a checkpoint on `members` is: for each copy the member, and the byte inside its checkpoint area. Empty if no
/// member holds the checkpoint. Whether that is within the area is for the caller to see.
#[must_use]
pub fn page_places(index: u32, members: &[u8]) -> Vec<(u8, u64)> {
    let page = PAGE_BYTES as u64;
    let (k, index) = (members.len() as u64, u64::from(index));
    let on = |n: u64| members.get(n as usize).copied();
    match k {
        0 => Vec::new(),
        1 => on(0).map(|m| (m, index * page)).into_iter().collect(),
        _ => (0..2).filter_map(|copy| Some((on((index + copy) % k)?, (2 * (index / k) + copy) * page))).collect(),
    }
}

/// The superblock.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Superblock {
    /// Identity of the pool.
    pub pool: [u8; 16],
    /// The pool's name, at most 64 bytes.
    pub name: String,
    /// Seed of all other checksums, random.
    pub key: u64,
    /// Number of the member this copy is on.
    pub member: u8,
    /// The membership counter.
    pub epoch: u64,
    /// The newest epoch that was known to be agreed on, durable where no later start can miss it, when this was written: an older one
    /// than `epoch` while that was being raised. Who was raised in vain, on a device that nobody else has seen since, keeps
    /// its own, however high its epoch: see [`Superblock::newness`].
    pub agreed: u64,
    /// Grows with each superblock written.
    pub sequence: u64,
    /// Copies of dirty data: 1 or 2.
    pub copies: u8,
    /// The unit of records, 512 or 4096 bytes.
    pub unit: u32,
    /// Whether a witness votes.
    pub witness: bool,
    /// Members that left since a checkpoint last found all dirty data on as many copies as it should have. Where they are
    /// as many as the copies, there may be dirty data that nobody left knows of.
    pub left: u8,
    /// Reserved: the server that owns the pool, and the fence it holds.
    pub owner: [u8; 16],
    /// Reserved: grows each time that another server takes over.
    pub fence: u64,
    /// The cache devices, by number.
    pub members: Vec<MemberEntry>,
    /// The volumes.
    pub volumes: Vec<VolumeEntry>,
    /// The newest checkpoint.
    pub checkpoint: CheckpointPointer,
}

impl Superblock {
    /// The superblock's bytes, padded to 4096, at most [`SUPERBLOCK_BYTES`].
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut w = Writer::new();
        w.bytes(MAGIC);
        w.u64(0);
        w.u32(FORMAT_VERSION);
        w.u32(0);
        w.u64(INCOMPAT_KNOWN);
        w.u64(0);
        w.bytes(&self.pool);
        w.u64(self.key);
        w.u64(self.epoch);
        w.u64(self.sequence);
        w.u8(self.member);
        w.u8(self.copies);
        w.u8(u8::from(self.witness));
        w.u8(self.left);
        w.u32(self.unit);
        w.bytes(&self.owner);
        w.u64(self.fence);
        w.text(&self.name);
        let c = &self.checkpoint;
        w.u64(c.sequence);
        w.u64(c.version);
        w.u64(c.generation);
        w.u32(c.pages);
        w.u8(c.area);
        w.u8(c.members.len() as u8);
        w.bytes(&c.members);
        w.u16(self.members.len() as u16);
        for m in &self.members {
            w.bytes(&m.id);
            w.u8(match m.state {
                MemberState::InSync => 0,
                MemberState::Out => 1,
            });
            w.u64(m.layout.size);
            w.u64(m.layout.segment_bytes);
            w.u32(m.layout.intent_pages);
            w.u64(m.layout.checkpoint_bytes);
        }
        w.u16(self.volumes.len() as u16);
        for v in &self.volumes {
            w.u16(v.number);
            w.bytes(&v.id);
            w.text(&v.name);
            w.u64(v.sectors);
            w.u8(v.phase);
            w.u8(v.mode.code());
            w.u32(v.intent_first);
            w.u32(v.intent_pages);
            w.text(&v.backing);
        }
        // Behind all that was there before it, and zero where there is nothing to tell.
        w.u64(if self.agreed == self.epoch { 0 } else { self.agreed });
        let doubted =
            |is: fn(&Doubts) -> bool| self.volumes.iter().fold(0, |bits, v| bits | u64::from(is(&v.doubts)) << v.number);
        w.u64(doubted(|d| d.uncertain));
        w.u64(doubted(|d| d.untold));
        w.u64(doubted(|d| d.unkept));
        w.pad_to(4096);
        let len = w.len() as u32;
        w.put_u32(20, len);
        w.seal(0, 8)
    }

    /// Decodes a superblock.
    ///
    /// # Errors
    /// [`DecodeError::Newer`] where a newer Headpond wrote it: the pool is whole, but not for this version.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let mut r = Reader::new(bytes);
        if r.bytes(8)? != MAGIC {
            return Err(DecodeError::Foreign);
        }
        r.u64()?;
        let version = r.u32()?;
        let len = r.u32()? as usize;
        if len as u64 > SUPERBLOCK_BYTES {
            return Err(DecodeError::Short);
        }
        let bytes = bytes.get(..len).ok_or(DecodeError::Short)?;
        verify(0, bytes, 8)?;
        if version != FORMAT_VERSION {
            return Err(DecodeError::Newer(u64::from(version)));
        }
        let mut r = Reader::new(bytes);
        r.bytes(24)?;
        let incompatible = r.u64()?;
        if incompatible & !INCOMPAT_KNOWN != 0 {
            return Err(DecodeError::Newer(incompatible));
        }
        r.u64()?;
        let pool = r.id()?;
        let (key, epoch, sequence) = (r.u64()?, r.u64()?, r.u64()?);
        let (member, copies, witness, left) = (r.u8()?, r.u8()?, r.u8()? != 0, r.u8()?);
        let unit = r.u32()?;
        let owner = r.id()?;
        let fence = r.u64()?;
        let name = r.text()?;
        let (csequence, cversion, cgeneration) = (r.u64()?, r.u64()?, r.u64()?);
        let (pages, area) = (r.u32()?, r.u8()?);
        let holders = usize::from(r.u8()?);
        let checkpoint = CheckpointPointer {
            sequence: csequence,
            version: cversion,
            generation: cgeneration,
            pages,
            area,
            members: r.bytes(holders)?.into(),
        };
        let count = usize::from(r.u16()?);
        if count > MAX_MEMBERS || usize::from(member) >= count || !(1..=2).contains(&copies) || !matches!(unit, 512 | 4096) {
            return Err(DecodeError::Invalid("the pool's shape"));
        }
        if epoch >= MAX_COUNTER || sequence >= MAX_COUNTER || area > 1 || cversion >= 1 << 56 || cgeneration >= 1 << 63 {
            return Err(DecodeError::Invalid("a counter"));
        }
        let mut members = Vec::with_capacity(count);
        for _ in 0..count {
            let id = r.id()?;
            let state = if r.u8()? == 0 { MemberState::InSync } else { MemberState::Out };
            let (size, segment_bytes, intent_pages, checkpoint_bytes) = (r.u64()?, r.u64()?, r.u32()?, r.u64()?);
            let layout = Layout { size, segment_bytes, intent_pages, checkpoint_bytes };
            let as_first = members
                .first()
                .is_none_or(|m: &MemberEntry| (m.layout.segment_bytes, m.layout.intent_pages) == (segment_bytes, intent_pages));
            if !layout.makes_sense() || !as_first {
                return Err(DecodeError::Invalid("a cache device's layout"));
            }
            members.push(MemberEntry { id, state, layout });
        }
        if checkpoint.members.iter().any(|m| usize::from(*m) >= count) {
            return Err(DecodeError::Invalid("the checkpoint's members"));
        }
        let count = usize::from(r.u16()?);
        if count > MAX_VOLUMES {
            return Err(DecodeError::Invalid("the number of volumes"));
        }
        let most_pages = members.first().map_or(0, |m| m.layout.intent_pages);
        let mut volumes: Vec<VolumeEntry> = Vec::with_capacity(count);
        for _ in 0..count {
            let number = r.u16()?;
            let id = r.id()?;
            let name = r.text()?;
            let sectors = r.u64()?;
            let phase = r.u8()?;
            let mode = Mode::from_code(r.u8()?)?;
            let (intent_first, intent_pages) = (r.u32()?, r.u32()?);
            let backing = r.text()?;
            if usize::from(number) >= MAX_VOLUMES || phase > 7 || sectors > MAX_SECTORS {
                return Err(DecodeError::Invalid("a volume"));
            }
            let end = intent_first.checked_add(intent_pages).filter(|end| *end <= most_pages);
            let meets = |o: &VolumeEntry| {
                o.number == number || o.intent_first < end.unwrap_or(0) && intent_first < o.intent_first + o.intent_pages
            };
            if end.is_none() || intent_pages < pages_for(sectors) || volumes.iter().any(meets) {
                return Err(DecodeError::Invalid("where a volume's intent pages are"));
            }
            let doubts = Doubts::default();
            volumes.push(VolumeEntry { number, id, name, sectors, phase, mode, intent_first, intent_pages, backing, doubts });
        }
        // Older ones end before it, some of them to the byte.
        let agreed = match r.u64() {
            Ok(0) | Err(_) => epoch,
            Ok(agreed) if agreed < epoch => agreed,
            Ok(_) => return Err(DecodeError::Invalid("the epoch agreed on")),
        };
        let [uncertain, untold, unkept] = core::array::from_fn(|_| r.u64().unwrap_or(0));
        let numbers = volumes.iter().fold(0, |bits, v| bits | 1 << v.number);
        if (uncertain | untold | unkept) & !numbers != 0 {
            return Err(DecodeError::Invalid("the volumes that are doubted"));
        }
        for v in &mut volumes {
            let is_in = |bits: u64| bits >> v.number & 1 == 1;
            v.doubts = Doubts { uncertain: is_in(uncertain), untold: is_in(untold), unkept: is_in(unkept) };
        }
        Ok(Self {
            pool,
            name,
            key,
            member,
            epoch,
            agreed,
            sequence,
            copies,
            unit,
            witness,
            left,
            owner,
            fence,
            members,
            volumes,
            checkpoint,
        })
    }

    /// What orders the superblocks of a pool: the larger, the newer. What was agreed on counts first. An epoch is raised from the newest one
    /// that a majority has; one that was raised before, and reached too few, may have a number as high as its, and is not newer.
    #[must_use]
    pub fn newness(&self) -> (u64, u64, u64) {
        (self.agreed, self.epoch, self.sequence)
    }

    /// The members that it calls in sync.
    #[must_use]
    pub fn in_sync(&self) -> InSync {
        let in_sync = self.members.iter().enumerate().filter(|(_, m)| m.state == MemberState::InSync);
        InSync::of(in_sync.map(|(n, m)| (n as u8, m.id)))
    }
}
