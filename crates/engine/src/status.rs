//! How a pool and its volumes stand, for whoever shows it.

use crate::core::{Core, Volume};
use crate::io::Buf;
use crate::lookaside::Lookaside;
use crate::map::Map;
use crate::policy::endurance::Wish;
use crate::policy::shares::Share;
use crate::preload::Preload;
use crate::scrub::Scrub;
use crate::stats::{Count, PoolStats, VolumeStats};
use alloc::string::String;
use alloc::vec::Vec;
use headpond_format::{MemberState, Mode};

/// A pool.
#[derive(Clone, Debug)]
pub struct Status {
    /// Its name.
    pub pool: String,
    /// Its identity.
    pub id: [u8; 16],
    /// Its epoch.
    pub epoch: u64,
    /// Copies of dirty data that it promises.
    pub copies: u8,
    /// The unit of its records, in bytes: no cache device may have larger blocks.
    pub unit: u32,
    /// A copy is missing.
    pub degraded: bool,
    /// No majority stands behind it: nothing that needs the cache is acknowledged.
    pub stalled: bool,
    /// The witness could not be told of an epoch that was agreed on. It has no vote at a start before it is, which is tried once a minute.
    pub witness_lags: bool,
    /// Bytes of a segment.
    pub segment_bytes: u64,
    /// Segment slots on all members.
    pub segments: u64,
    /// Free ones.
    pub segments_free: u64,
    /// How full the space for dirty data is, in percent.
    pub dirty_percent: u32,
    /// The map has all the memory that the settings give it, so that part of the cache devices stays unused.
    pub memory_is_short: bool,
    /// Dirty pieces on fewer copies than they could have, and on one at least: they are being copied.
    pub lacking_copies: u64,
    /// Segments, each with its copies, that are set aside for volumes without a backing device.
    pub set_aside: u64,
    /// How many segments these take.
    pub set_aside_taken: u64,
    /// The scrub that is under way, or what the last one of this life found.
    pub scrub: Scrub,
    /// How much may be written to the cache devices, and whether that holds anything back.
    pub endurance: EnduranceStatus,
    /// How far the map is known again after a start; `None` once all of it is. Until then what is cached, dirty, or lacks a copy is at least
    /// what is told.
    pub loading: Option<Loading>,
    /// The cache devices.
    pub members: Vec<MemberStatus>,
    /// The volumes.
    pub volumes: Vec<VolumeStatus>,
    /// What it did.
    pub stats: PoolStats,
}

/// How far a start is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Starting {
    /// Bytes of the checkpoint and of the log behind it that have been read.
    pub read: u64,
    /// Bytes of both.
    pub of: u64,
}

/// How far the checkpoint's image is read while requests are answered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Loading {
    /// Bytes of it that have been read.
    pub read: u64,
    /// All its bytes.
    pub of: u64,
    /// A page that is damaged on every cache device: what it says is not known, and requests that need it fail.
    pub lost_page: Option<u32>,
}

/// The budget of what the cache devices may be written.
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
pub struct EnduranceStatus {
    /// Thousandths of a drive write per day; zero: there is no budget.
    pub drive_writes_milli: u32,
    /// What reads miss is not all let in, for the budget's sake.
    pub holds_back_reads: bool,
    /// New writes go to the disk in part, for the budget's sake.
    pub holds_back_writes: bool,
}

/// A cache device.
#[derive(Clone, Debug)]
pub struct MemberStatus {
    /// Its number in the pool.
    pub number: u8,
    /// Its identity.
    pub id: [u8; 16],
    /// Whether it holds all that it should.
    pub in_sync: bool,
    /// Its size.
    pub bytes: u64,
    /// Its segment slots.
    pub segments: u32,
    /// Free ones.
    pub segments_free: u32,
    /// Dirty pieces of which a copy is on it.
    pub dirty: u64,
    /// Copies that were found damaged on it, or that it could not read, since the start, or since it was added; each as often as it was found.
    pub damaged: u64,
    /// Whether it is being emptied, to be removed.
    pub leaving: bool,
    /// Bytes written to it since the start, or since it was added.
    pub written: u64,
    /// Of these, the ones of the last 23 to 24 hours.
    pub written_lately: u64,
    /// Bytes that it may be written in a day; zero: there is no budget.
    pub budget_per_day: u64,
    /// Bytes that its budget has left; less than nothing where more was written.
    pub budget_left: i64,
}

/// A volume.
#[derive(Clone, Debug)]
pub struct VolumeStatus {
    /// Its number in the pool.
    pub number: u16,
    /// Its identity.
    pub id: [u8; 16],
    /// Its name.
    pub name: String,
    /// What identifies its disk.
    pub backing: String,
    /// Its size in sectors of 512 bytes.
    pub sectors: u64,
    /// Where its grid of blocks begins, in sectors.
    pub phase: u8,
    /// Its mode.
    pub mode: Mode,
    /// Whether requests are answered.
    pub serving: bool,
    /// Whether it may not be served: cache and disk do not belong together, or dirty data is missing.
    pub refused: bool,
    /// Blocks cached.
    pub cached_blocks: u64,
    /// Blocks that the disk does not have yet.
    pub dirty_blocks: u64,
    /// How often in this life cache devices left with all copies of dirty data; `Engine::lost` says of which.
    pub losses: u32,
    /// Fragments beyond the first of their block.
    pub fragments: u64,
    /// Bytes of memory of its map.
    pub map_bytes: u64,
    /// A sweep is under way.
    pub destaging: bool,
    /// How often in a row the disk did not take, or keep, what was destaged.
    pub destage_failures: u32,
    /// Requests being served.
    pub requests: u32,
    /// Blocks that are pinned.
    pub pinned_blocks: u64,
    /// What of the pool it is sure of, and may have at most, in percent.
    pub share: Share,
    /// Segment slots that it takes, those of each copy.
    pub segments: u64,
    /// Segment slots that it is sure of.
    pub segments_least: u64,
    /// Segment slots that it may have at most; `None`: as many as there are.
    pub segments_most: Option<u64>,
    /// The preload that is under way, or the last one of this life.
    pub preload: Preload,
    /// What became of its requests.
    pub stats: VolumeStats,
}

impl Status {
    /// The volume with this name.
    #[must_use]
    pub fn volume(&self, name: &str) -> Option<&VolumeStatus> {
        self.volumes.iter().find(|v| v.name == name)
    }
}

/// How everything stands now.
pub(crate) fn status<B: Buf>(core: &Core<B>) -> Status {
    let pool = core.pool.borrow();
    let (segments, reading) = (core.segments.borrow(), core.reading.borrow());
    let (mut endurance, written) = (core.endurance.borrow_mut(), core.exec.written.borrow());
    endurance.settle(core.now(), pool.in_sync_sizes(), &written);
    Status {
        pool: pool.name.clone(),
        id: pool.id,
        epoch: pool.epoch,
        copies: pool.copies,
        unit: pool.unit,
        degraded: pool.degraded(),
        stalled: pool.stalled,
        witness_lags: pool.witness_lags,
        segment_bytes: pool.segment_bytes,
        segments: segments.total(),
        segments_free: segments.free_total(),
        dirty_percent: core.dirty_percent_of(&segments),
        lacking_copies: segments.lacking(pool.copies_now(), |m| pool.is_in_sync(m), !core.is_loaded.get()),
        loading: core.loading(),
        set_aside: core.bounds().set_aside,
        memory_is_short: core.memory_is_short(),
        set_aside_taken: segments.taken_set_aside(),
        scrub: core.scrub.borrow().clone(),
        endurance: EnduranceStatus {
            drive_writes_milli: endurance.milli(),
            holds_back_reads: endurance.holds_back(Wish::Clean),
            holds_back_writes: endurance.holds_back(Wish::Write),
        },
        members: pool
            .members
            .iter()
            .enumerate()
            .map(|(n, m)| MemberStatus {
                number: n as u8,
                id: m.id,
                in_sync: m.state == MemberState::InSync,
                bytes: m.layout.size,
                segments: if m.state == MemberState::InSync { m.layout.slots() } else { 0 },
                segments_free: segments.free_on(n as u8),
                dirty: segments.dirty_on(n as u8),
                damaged: reading.get(n).map_or(0, |reads| reads.damaged),
                leaving: pool.leaving == Some(n as u8),
                written: written.total(n as u8),
                written_lately: written.of_a_day(n as u8, core.now()),
                budget_per_day: endurance.per_day(m.layout.size),
                budget_left: endurance.left(n as u8),
            })
            .collect(),
        volumes: core
            .all_volumes()
            .iter()
            .map(|v| {
                let (map, stands) = (v.map.borrow(), core.stands(v));
                VolumeStatus {
                    number: v.number,
                    id: v.id,
                    name: v.name.clone(),
                    backing: v.backing.clone(),
                    sectors: v.open.get(),
                    phase: v.phase,
                    mode: v.mode(),
                    serving: v.serving.get(),
                    refused: v.refused.get(),
                    cached_blocks: map.blocks(),
                    dirty_blocks: map.dirty_blocks(),
                    losses: v.losses.get(),
                    fragments: map.extra_pieces(),
                    map_bytes: map.memory(),
                    destaging: v.destaging.get(),
                    destage_failures: v.destage_failures.get(),
                    requests: v.requests.get(),
                    pinned_blocks: v.pins.borrow().blocks(),
                    share: v.share.get(),
                    segments: stands.held,
                    segments_least: stands.least,
                    segments_most: stands.most,
                    preload: v.preload.get(),
                    stats: stats_of(v, &map),
                }
            })
            .collect(),
        stats: core.stats.borrow().clone(),
    }
}

/// What became of a volume's requests, with those that others than the engine have served.
fn stats_of<B: Buf>(v: &Volume<B>, map: &Map) -> VolumeStats {
    let mut stats = v.stats.borrow().clone();
    if let Some((requests, bytes)) = map.lookaside().map(Lookaside::hits) {
        stats.hit_beside = Count { requests, bytes };
        stats.hit.requests += requests;
        stats.hit.bytes += bytes;
    }
    stats
}
