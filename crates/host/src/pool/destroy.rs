//! Ending a pool.

use std::os::fd::AsFd;
use std::path::PathBuf;
use std::time::Duration;

use headpond_engine::election::identity;
use headpond_format::{MemberState, Superblock};

use super::create::{clear_ends, different};
use super::probe::{self, Found};
use super::{DiscardDirty, PoolError, dirty};
use crate::claim::Claim;
use crate::state::{State, hex};

/// Makes cache devices plain devices again. Refused for all of them where one may hold dirty data that was not named.
///
/// A pool of which all members in sync were named is forgotten by the state folder, too. Returns the pool of each device.
pub fn destroy(devices: &[PathBuf], permit: Option<&DiscardDirty>, state: &State) -> Result<Vec<Superblock>, PoolError> {
    different(devices)?;
    let claims = devices.iter().map(|path| Claim::take(path, Duration::ZERO)).collect::<Result<Vec<_>, _>>()?;
    let mut pools = Vec::new();
    for claim in &claims {
        let path = claim.path().to_owned();
        let found = probe::probe(claim.as_fd(), claim.facts().size).map_err(PoolError::unread(&path))?;
        let superblock = match found {
            Found::Member(superblock) => *superblock,
            Found::Newer(version) => return Err(PoolError::Newer { path, version }),
            Found::Damaged(why) => return Err(PoolError::Damaged { path, why: why.to_string() }),
            Found::Signature(what) => return Err(PoolError::NoMember { path, what }),
            Found::Nothing => return Err(PoolError::NoMember { path, what: "nothing known" }),
        };
        dirty::check(&path, claim.as_fd(), &superblock, permit)?;
        pools.push(superblock);
    }
    if let Some(given) = permit.filter(|permit| !pools.iter().any(|pool| permit.names(pool))) {
        return Err(PoolError::NotNamed { given: given.to_string() });
    }

    // From here on the devices are changed.
    for claim in &claims {
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
