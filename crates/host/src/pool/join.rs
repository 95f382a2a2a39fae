//! A device that is to join a pool which is being served.

use std::os::fd::AsFd;
use std::path::Path;
use std::time::Duration;

use headpond_engine::Status;
use headpond_engine::election::identity;
use headpond_format::{Layout, Superblock};

use super::PoolError;
use super::create::{clear_ends, may_be_overwritten, unit_for};
use super::probe::{self, Found};
use crate::claim::Claim;
use crate::device::facts::Facts;
use crate::silence;
use crate::state::State;

/// Claims a device for a pool, and clears both its ends of whatever it was before. What it holds is asked about as by
/// [`super::create()`]; but a cache device that has left this very pool may come back without a word: what it holds is out of
/// date, and was copied.
///
/// # Errors
/// What is in the way; nothing was changed then, but where the ends could not be cleared.
pub fn ready(path: &Path, force: bool, pool: &Status, state: &State, patience: Duration) -> Result<Claim, PoolError> {
    let claim = Claim::take(path, patience)?;
    let facts = claim.facts();
    match probe::probe(claim.as_fd(), facts.size).map_err(PoolError::unread(path))? {
        Found::Member(superblock) if has_left(&superblock, pool) => {}
        _ => drop(may_be_overwritten(&claim, force, None)?),
    }
    if facts.logical_block > pool.unit {
        let (path, block) = (path.to_owned(), facts.logical_block);
        return Err(PoolError::Blocks { path, block, unit: pool.unit, pool: pool.pool.clone() });
    }
    if let Some(device) = state.carried_by(&[path.to_owned()]).map_err(PoolError::unread(state.path()))? {
        return Err(PoolError::WitnessOnMember { folder: state.path().to_owned(), device });
    }
    let least = pool.segment_bytes.saturating_mul(4);
    if Layout::plan(facts.size, pool.segment_bytes, 0).is_none() {
        let source = headpond_engine::create::PlanError::Small { device: 0, bytes: facts.size, least };
        return Err(PoolError::PlanOf { path: path.to_owned(), source });
    }
    clear_ends(&claim).map_err(PoolError::unwritten(path))?;
    Ok(claim)
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
