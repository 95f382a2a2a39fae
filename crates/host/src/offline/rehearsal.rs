//! A start of the engine over the media that changes nothing: what it wants written is dropped.
//!
//! So what is dirty, what is where, and what a start would refuse is told by the very lines that a daemon runs, and cannot
//! differ from what it will do. A start never reads what it has written itself; it is ended when it is done, before
//! anything is destaged, evicted or checkpointed.

use headpond_engine::election::Election;
use headpond_engine::io::{Buf, CommandError, CommandId, Device as Name, DeviceError, DeviceOp, DeviceResult, Effect};
use headpond_engine::map::Piece;
use headpond_engine::status::VolumeStatus;
use headpond_engine::{Engine, Settings};
use headpond_format::{MemberState, NO_MEMBER, Place, data_seed};

use super::media::Pool;
use super::{OfflineError, Watch, told};
use crate::buf::HostBuf;

/// Reads of the engine between two looks at whether to go on.
const BETWEEN: u64 = 64;

/// A piece that a start would know of.
#[derive(Clone, Copy, Debug)]
pub struct Live {
    /// The volume's number.
    pub volume: u16,
    /// Block of its grid.
    pub block: u64,
    /// The piece.
    pub piece: Piece,
}

impl Live {
    /// Whether its disk should have the same, so that it tells one disk from another. The checksum is over all that was written: where a
    /// part of that is covered by something newer, the disk has that, or will.
    pub fn can_be_compared(&self) -> bool {
        let p = &self.piece;
        !p.dirty() && p.live.count_ones() == u32::from(p.sectors())
    }

    /// Whether `data`, all its sectors, is what was written.
    pub fn is(&self, key: u64, data: &HostBuf) -> bool {
        let p = &self.piece;
        data.checksum(data_seed(key, self.volume, self.block, p.first(), p.version())) == p.sum
    }
}

/// A pool as a start would bring it up.
pub struct Rehearsal {
    engine: Engine<HostBuf>,
    segments: Vec<Option<[Place; 2]>>,
}

impl Rehearsal {
    /// Starts the engine over a pool at rest. Members that are missing count as having left.
    ///
    /// # Errors
    /// The outer one: it was cancelled. The inner one: the engine refuses to start, and why.
    pub fn start(pool: &Pool<'_>, watch: Watch<'_>) -> Result<Result<Rehearsal, CommandError>, OfflineError> {
        let mut superblock = pool.superblock().clone();
        // Nobody votes in a rehearsal. As many copies gone as there should be make volumes uncertain all the same.
        for missing in &pool.election.missing {
            superblock.members[usize::from(*missing)].state = MemberState::Out;
        }
        superblock.left = superblock.left.saturating_add(pool.election.missing.len() as u8);
        let election =
            Election { superblock, missing: Vec::new(), behind: Vec::new(), witness_votes: true, ..pool.election.clone() };
        let start = CommandId(0);
        // What cannot be read, and may be on one that is missing, makes them uncertain as well.
        let settings =
            Settings { pages_at_start: u32::MAX, without_missing: !pool.election.missing.is_empty(), ..Settings::default() };
        let engine = Engine::start(0, settings, election, &[], start);
        let (mut reads, mut now) = (0u64, 0);
        let total: u64 = pool.present().map(|m| u64::from(pool.slots(m))).sum();
        loop {
            let Some(effect) = engine.poll() else {
                // Nothing is under way, so it waits for the time.
                match engine.next_timer() {
                    Some(at) => now = at.max(now),
                    None => return Ok(Err(CommandError::NoMembers)),
                }
                engine.advance(now);
                continue;
            };
            match effect {
                Effect::Submit { io, device, op } => {
                    if let DeviceOp::Read { .. } = op {
                        reads += 1;
                        if reads % BETWEEN == 1 {
                            told(watch, "rehearsing a start", reads.min(total), total)?;
                        }
                    }
                    engine.complete(io, perform(pool, device, &op));
                }
                Effect::Done { id, result } if id == start => {
                    return Ok(result.map(|()| Rehearsal { segments: places(&engine), engine }));
                }
                Effect::Done { .. } | Effect::Reply { .. } => {}
            }
        }
    }

    /// The volumes, as a start would have them.
    pub fn volumes(&self) -> Vec<VolumeStatus> {
        self.engine.status().volumes
    }

    /// Calls `f` with each piece of a volume, in order of address.
    pub fn each(&self, volume: u16, mut f: impl FnMut(Live)) {
        self.engine.each_piece(volume, |block, piece| f(Live { volume, block, piece: *piece }));
    }

    /// Calls `f` with the number of each segment, and how many pieces are in it.
    pub fn each_segment(&self, mut f: impl FnMut(u32, u32)) {
        self.engine.each_segment(|n, s| f(n, s.live));
    }

    /// Where the copies of a segment are; none for one that is lost.
    pub fn copies(&self, segment: u32) -> impl Iterator<Item = Place> {
        let copies = self.segments.get(segment as usize).copied().flatten().unwrap_or([Place::NONE; 2]);
        copies.into_iter().filter(|place| place.member != NO_MEMBER)
    }
}

fn places(engine: &Engine<HostBuf>) -> Vec<Option<[Place; 2]>> {
    let mut places = Vec::new();
    engine.each_segment(|n, s| {
        places.resize(places.len().max(n as usize + 1), None);
        places[n as usize] = Some(s.copies);
    });
    places
}

fn perform(pool: &Pool<'_>, device: Name, op: &DeviceOp<HostBuf>) -> DeviceResult<HostBuf> {
    match (device, op) {
        (Name::Member(member), DeviceOp::Read { offset, len, .. }) => {
            pool.read(member, *offset, u64::from(*len)).map(Some).ok_or(DeviceError::Failed)
        }
        (_, DeviceOp::Read { .. }) => Err(DeviceError::Gone),
        _ => Ok(None),
    }
}
