//! Ending a pool.

use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use headpond_engine::election::identity;
use headpond_format::{MemberState, Superblock};

use super::create::{clear_ends, different};
use super::probe::{self, Found};
use super::{DiscardDirty, PoolError, dirty};
use crate::claim::Claim;
use crate::state::{State, hex};

/// Makes cache devices plain devices again. Refused for all of them where one may hold dirty data that was not named. One that is plain
/// already, at the place where the state folder knows a device of the same pool, was made so by a try that was cut off.
///
/// A pool of which all members in sync were named is forgotten by the state folder, too. Returns the pool of each device.
pub fn destroy(devices: &[PathBuf], permit: Option<&DiscardDirty>, state: &State) -> Result<Vec<Superblock>, PoolError> {
    different(devices)?;
    let claims = devices.iter().map(|path| Claim::take(path, Duration::ZERO)).collect::<Result<Vec<_>, _>>()?;
    let mut found = Vec::new();
    for claim in &claims {
        let path = claim.path().to_owned();
        let superblock = match probe::probe(claim.as_fd(), claim.facts().size).map_err(PoolError::unread(&path))? {
            Found::Member(superblock) => *superblock,
            Found::Newer(version) => return Err(PoolError::Newer { path, version }),
            Found::Damaged(why) => return Err(PoolError::Damaged { path, why: why.to_string() }),
            Found::Signature(what) => return Err(PoolError::NoMember { path, what }),
            Found::Nothing => {
                found.push(None);
                continue;
            }
        };
        dirty::check(&path, claim.as_fd(), &superblock, permit)?;
        found.push(Some(superblock));
    }
    if let Some(given) = permit.filter(|permit| !found.iter().flatten().any(|pool| permit.names(pool))) {
        return Err(PoolError::NotNamed { given: given.to_string() });
    }
    let pools: Vec<Superblock> = found
        .iter()
        .zip(devices)
        .map(|(superblock, path)| superblock.clone().or_else(|| was_at(path, found.iter().flatten(), state)))
        .zip(devices)
        .map(|(pool, path)| pool.ok_or_else(|| PoolError::NoMember { path: path.clone(), what: "nothing known" }))
        .collect::<Result<_, _>>()?;

    // From here on the devices are changed.
    for (claim, _) in claims.iter().zip(&found).filter(|(_, superblock)| superblock.is_some()) {
        clear_ends(claim).map_err(PoolError::unwritten(claim.path()))?;
    }
    for pool in &pools {
        if all_are_named(&pools, &pool.pool) {
            let (folder, id) = (state.path().to_owned(), hex(&pool.pool));
            state.forget(&pool.pool).map_err(|source| PoolError::NotForgotten { folder, id, source })?;
        }
    }
    Ok(pools)
}

/// The superblock that the device at a path had, by those of the others and the state folder.
fn was_at<'a>(path: &Path, mut others: impl Iterator<Item = &'a Superblock>, state: &State) -> Option<Superblock> {
    let real = path.canonicalize().ok()?;
    others.find_map(|other| {
        let places = state.places(&other.pool).members;
        let (number, _) = places.into_iter().find(|(_, place)| place.canonicalize().is_ok_and(|place| place == real))?;
        (number != other.member).then(|| Superblock { member: number, ..other.clone() })
    })
}

/// Whether all members in sync of a pool are among these devices. Numbers of those that left, or were taken out, are nobody's, or are not
/// waited for.
fn all_are_named(devices: &[Superblock], pool: &[u8; 16]) -> bool {
    let of_pool = || devices.iter().filter(|it| it.pool == *pool);
    let named = |number: usize, id: [u8; 16]| of_pool().any(|it| identity(it) == Some((number as u8, id)));
    let in_sync = |newest: &Superblock| {
        let members = newest.members.iter().enumerate().filter(|(_, member)| member.state == MemberState::InSync);
        members.into_iter().all(|(number, member)| named(number, member.id))
    };
    of_pool().max_by_key(|it| it.newness()).is_some_and(in_sync)
}
