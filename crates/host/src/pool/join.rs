//! A device that is to join a pool which is being served.

use std::os::fd::AsFd;
use std::path::Path;
use std::time::Duration;

use headpond_engine::Status;
use headpond_engine::create::PlanError;
use headpond_engine::election::identity;
use headpond_engine::policy::image::{self, Areas};
use headpond_format::{Layout, PAGE_BYTES, Page, Superblock};

use super::create::{LEAST, clear_ends, may_be_overwritten, unit_for};
use super::probe::{self, Found};
use super::{DiscardDirty, PoolError, lies_beside};
use crate::claim::Claim;
use crate::device::facts::Facts;
use crate::silence;
use crate::state::State;

/// A device that is to join a pool.
pub struct Joining<'a> {
    /// It.
    pub path: &'a Path,
    /// Whether what is on it may be overwritten, but for dirty data.
    pub force: bool,
    /// Whether dirty data may be, too.
    pub discard_dirty: Option<&'a DiscardDirty>,
}

/// The pool, as far as it decides whether a device may join.
pub struct Served<'a> {
    /// How it stands.
    pub status: &'a Status,
    /// Intent pages that it can have.
    pub intent_pages: u32,
    /// The most pieces that its maps may hold, by its settings; 0: no such bound.
    pub max_pieces: u64,
    /// Whether data of a volume may be missing: the only copies may be on devices that have left.
    pub lacks_data: bool,
    /// The state folder.
    pub state: &'a State,
}

/// Claims a device for a pool, and clears both its ends of whatever it was before. What it holds is asked about as by
/// [`super::create()`]; but a cache device that has left this very pool may come back without a word where the pool has gone on since, and
/// lacks nothing: what it holds is out of date then.
///
/// # Errors
/// What is in the way; nothing was changed then, but where the ends could not be cleared.
pub fn ready(new: &Joining<'_>, pool: &Served<'_>, patience: Duration) -> Result<Claim, PoolError> {
    let (path, status) = (new.path, pool.status);
    let claim = Claim::take(path, patience)?;
    let facts = claim.facts();
    let is_out_of_date = |it: &Superblock| has_left(it, status) && it.epoch < status.epoch && !pool.lacks_data;
    let named = match probe::probe(claim.as_fd(), facts.size).map_err(PoolError::unread(path))? {
        Found::Member(it) if is_out_of_date(&it) => new.discard_dirty.is_some_and(|permit| permit.names(&it)),
        Found::Member(it) if has_left(&it, status) && !new.force => return Err(PoolError::left(path, &it, status)),
        _ => may_be_overwritten(&claim, new.force, new.discard_dirty)?,
    };
    if let (false, Some(given)) = (named, new.discard_dirty) {
        return Err(PoolError::NotNamed { given: given.to_string() });
    }
    if facts.logical_block > status.unit {
        let (path, block) = (path.to_owned(), facts.logical_block);
        return Err(PoolError::Blocks { path, block, unit: status.unit, pool: status.pool.clone() });
    }
    lies_beside(pool.state, &[path.to_owned()])?;
    if !is_large_enough(facts.size, pool) {
        let least = status.members.iter().filter(|member| member.in_sync).map(|member| member.bytes).min().unwrap_or(0);
        return Err(PoolError::PlanOf {
            path: path.to_owned(),
            source: PlanError::Small { device: 0, bytes: facts.size, least },
        });
    }
    clear_ends(&claim).map_err(PoolError::unwritten(path))?;
    Ok(claim)
}

/// Whether a device has room for segments, and checkpoints on it for the map that there is: as the engine reckons it, which judges when the
/// device has been cleared.
fn is_large_enough(bytes: u64, pool: &Served<'_>) -> bool {
    let status = pool.status;
    let area_of = |bytes| Layout::plan(bytes, status.segment_bytes, pool.intent_pages).map(|layout| layout.checkpoint_bytes);
    let Some(area) = area_of(bytes).filter(|_| bytes >= LEAST) else { return false };
    let areas: Vec<u64> = status.members.iter().filter(|it| it.in_sync).filter_map(|it| area_of(it.bytes)).collect();
    let Some(least) = areas.iter().copied().min() else { return true };
    let pages = |area: u64, members: u64| area / PAGE_BYTES as u64 * members / members.min(2);
    let members = areas.len() as u64;
    let sure = image::sure(&Areas { pages: pages(least, members), segments: 0, volumes: 0, overflows: 0 });
    let cached: u64 = status.volumes.iter().map(|volume| volume.cached_blocks + volume.fragments).sum();
    let bounds = [Some(sure), Some(cached * 2), (pool.max_pieces > 0).then_some(pool.max_pieces)];
    let needed = bounds.into_iter().flatten().min().unwrap_or(0);
    pages(area.min(least), members + 1) * Page::PIECES as u64 / 2 >= needed
}

/// Makes sure that a device answers, before anybody waits for it.
///
/// # Errors
/// It does not.
pub fn ask(path: &Path) -> Result<(), PoolError> {
    silence::answers(path, silence::LIMIT).map_err(PoolError::silent(path))
}

/// What is to be known of a device that was taken though it does not suit the pool in all.
pub(crate) fn note(facts: &Facts, pool: &Status) -> Option<String> {
    let (physical, unit) = (facts.physical_block, pool.unit);
    (unit_for(facts) > unit).then(|| {
        format!(
            "It has physical blocks of {physical} bytes, and pool {} writes units of {unit}: if the device does not write such a block whole or not \
             at all when power fails, a record that was flushed before can be damaged on it. A pool that is made anew on such devices has \
             units of 4096",
            pool.pool
        )
    })
}

/// Whether a superblock is that of a device which was a member of the pool and is none any more.
fn has_left(superblock: &Superblock, pool: &Status) -> bool {
    let now = |(number, id): (u8, [u8; 16])| pool.members.iter().any(|m| m.number == number && m.id == id && m.in_sync);
    superblock.pool == pool.id && identity(superblock).is_some_and(|it| !now(it))
}
