//! Making a pool: what is written to new cache devices.

use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;
use headpond_format::{
    CheckpointPointer, Layout, MAX_MEMBERS, MemberEntry, MemberState, Superblock, WITNESS_BYTES, WitnessRecord,
};

/// What a pool is to be.
#[derive(Clone, Debug)]
pub struct PoolPlan {
    /// Its name, as [`is_a_name`] wants it.
    pub name: String,
    /// Its identity, random.
    pub id: [u8; 16],
    /// Seed of its checksums, random.
    pub key: u64,
    /// Copies of dirty data: 2, or 1 where that was asked for by name.
    pub copies: u8,
    /// The unit of records: 512, or 4096 where a device has logical or physical blocks that are larger.
    pub unit: u32,
    /// Bytes of a segment: 64 KiB to 32 MiB, in whole 4 KiB; 0 chooses by the size of the smallest device.
    pub segment_bytes: u64,
    /// Pages of the intent map, each for about 1 TiB of volumes; 0 chooses.
    pub intent_pages: u32,
    /// Whether a witness votes.
    pub witness: bool,
    /// Identity and size in bytes of each device.
    pub members: Vec<([u8; 16], u64)>,
}

/// Why a pool cannot be made like that.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum PlanError {
    /// The name is empty, too long, or holds other characters.
    Name(String),
    /// No device, or too many.
    Members(usize),
    /// Two copies need two devices.
    Copies,
    /// A device is too small.
    Small {
        /// Its place in the list.
        device: usize,
        /// Its size.
        bytes: u64,
        /// The least that works.
        least: u64,
    },
    /// The segment size is out of bounds.
    Segment(u64),
}

impl fmt::Display for PlanError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PlanError::Name(name) => write!(
                f,
                "\"{name}\" is not a name for a pool. Use 1 to 64 letters, digits, '-', '_' and '.', the first of which is no '.'."
            ),
            PlanError::Members(n) => write!(f, "A pool has 1 to {MAX_MEMBERS} cache devices, not {n}. Name as many."),
            PlanError::Copies => f.write_str(
                "Two copies of dirty data need two cache devices. Name another device, or ask for one copy with --copies 1: then losing the device loses what is dirty on it.",
            ),
            PlanError::Small { device, bytes, least } => write!(
                f,
                "Device number {device} has {bytes} bytes; a cache device of this pool needs {least} or more. Use a larger device, or a smaller --segment."
            ),
            PlanError::Segment(bytes) => {
                write!(f, "A segment has 64 KiB to 32 MiB, in multiples of 4 KiB, not {bytes} bytes. Give --segment such a size, or leave it out.")
            }
        }
    }
}

impl core::error::Error for PlanError {}

/// Bytes to put on a device.
#[derive(Clone, Debug)]
pub struct InitialWrite {
    /// Number of the member; `None` for the witness.
    pub member: Option<u8>,
    /// Where, in bytes.
    pub offset: u64,
    /// What.
    pub bytes: Vec<u8>,
}

fn least(segment_bytes: u64, intent_pages: u32) -> u64 {
    let mut size = 1 << 20;
    while Layout::plan(size, segment_bytes, intent_pages).is_none() && size < 1 << 50 {
        size += size / 4 / 4096 * 4096;
    }
    size
}

/// What can be the name of a new pool, or of a new volume: it is a folder's and a file's name too, and is to stay where that is. What has
/// another one from before goes on with it.
pub fn is_a_name(name: &str) -> bool {
    let good = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    (1..=64).contains(&name.len()) && !name.starts_with('.') && name.chars().all(good)
}

/// The first superblocks of a pool, and the witness's first record. Writing them all, and flushing, makes the pool.
///
/// # Errors
/// A [`PlanError`] names what does not fit; nothing is to be written then.
pub fn plan(plan: &PoolPlan) -> Result<(Superblock, Vec<InitialWrite>), PlanError> {
    if !is_a_name(&plan.name) {
        return Err(PlanError::Name(plan.name.clone()));
    }
    if plan.members.is_empty() || plan.members.len() > MAX_MEMBERS {
        return Err(PlanError::Members(plan.members.len()));
    }
    if plan.copies == 2 && plan.members.len() < 2 {
        return Err(PlanError::Copies);
    }
    let smallest = plan.members.iter().map(|m| m.1).min().unwrap_or(0);
    let segment_bytes = match plan.segment_bytes {
        // At least 64 segments on the smallest device, so that space is had and won back in small steps.
        0 => (smallest / 128).next_power_of_two().clamp(256 << 10, 16 << 20),
        n => n,
    };
    if !(64 << 10..=32 << 20).contains(&segment_bytes) || segment_bytes % 4096 != 0 {
        return Err(PlanError::Segment(segment_bytes));
    }
    let intent_pages = match plan.intent_pages {
        0 => ((smallest >> 10) / 8192).clamp(16, 2048) as u32,
        n => n,
    };
    let mut members = Vec::new();
    for (device, (id, size)) in plan.members.iter().enumerate() {
        let layout = Layout::plan(*size, segment_bytes, intent_pages).ok_or_else(|| PlanError::Small {
            device,
            bytes: *size,
            least: least(segment_bytes, intent_pages),
        })?;
        members.push(MemberEntry { id: *id, state: MemberState::InSync, layout });
    }
    let superblock = Superblock {
        pool: plan.id,
        name: plan.name.clone(),
        key: plan.key,
        member: 0,
        epoch: 1,
        agreed: 1,
        sequence: 1,
        copies: plan.copies,
        unit: plan.unit,
        witness: plan.witness,
        left: 0,
        owner: [0; 16],
        fence: 0,
        members,
        volumes: Vec::new(),
        checkpoint: CheckpointPointer { sequence: 0, area: 1, pages: 0, members: Vec::new(), version: 0, generation: 0 },
    };
    let mut writes = Vec::new();
    for (n, m) in superblock.members.iter().enumerate() {
        let bytes = Superblock { member: n as u8, ..superblock.clone() }.encode();
        // All four slots: an older pool's superblock must not be found in any.
        for slot in 0..4 {
            writes.push(InitialWrite { member: Some(n as u8), offset: m.layout.superblock(slot), bytes: bytes.clone() });
        }
    }
    if plan.witness {
        let bytes = WitnessRecord { pool: plan.id, epoch: 1, in_sync: superblock.in_sync() }.encode();
        writes.push(InitialWrite { member: None, offset: 0, bytes: bytes.clone() });
        writes.push(InitialWrite { member: None, offset: WITNESS_BYTES, bytes });
    }
    Ok((superblock, writes))
}

/// The newest of the superblocks in the four slots of a device; the first error if none is whole.
///
/// # Errors
/// What is wrong with the slot that came closest: a newer format before a damaged one, before none of ours.
pub fn newest_superblock(slots: &[&[u8]]) -> Result<Superblock, headpond_format::DecodeError> {
    use headpond_format::DecodeError;
    let mut best: Option<Superblock> = None;
    let mut worst = DecodeError::Foreign;
    for bytes in slots {
        match Superblock::decode(bytes) {
            Ok(s) if best.as_ref().is_none_or(|b| b.newness() < s.newness()) => best = Some(s),
            Ok(_) => {}
            Err(e @ DecodeError::Newer(_)) => worst = e,
            Err(DecodeError::Foreign) => {}
            Err(e) if !matches!(worst, DecodeError::Newer(_)) => worst = e,
            Err(_) => {}
        }
    }
    match (best, worst) {
        // A newer Headpond has been here: an older slot of its is not the truth any more.
        (_, e @ DecodeError::Newer(_)) => Err(e),
        (Some(s), _) => Ok(s),
        (None, e) => Err(e),
    }
}

/// The newest witness record of `pool` in the witness's slots.
#[must_use]
pub fn newest_witness(slots: &[&[u8]], pool: [u8; 16]) -> Option<WitnessRecord> {
    slots.iter().filter_map(|b| WitnessRecord::decode(b).ok()).filter(|w| w.pool == pool).max_by_key(|w| w.epoch)
}
