//! Ending a pool.

use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use headpond_engine::election::identity;
use headpond_format::{MemberState, Superblock};

use super::create::{clear_ends, different};
use super::probe::{self, Found};
use super::waiting::nothing_waits;
use super::{DiscardDirty, PoolError, dirty};
use crate::claim::Claim;
use crate::state::{State, hex};
use crate::ublk;

/// Makes cache devices plain devices again. Refused for all of them where one may hold dirty data that was not named. One that is plain
/// already, at the place where the state folder knows a device of the same pool, was made so by a try that was cut off.
///
/// Refused as well where a ublk device of one of the pool's volumes waits for a daemon, whatever was named: none could serve it any more.
///
/// A pool of which all members in sync were named is forgotten by the state folder, too. Returns the pool of each device.
pub fn destroy(devices: &[PathBuf], permit: Option<&DiscardDirty>, state: &State) -> Result<Vec<Superblock>, PoolError> {
    destroy_beside(devices, permit, state, ublk::waiting)
}

/// The same; `waiting` tells whether a block device with a mark waits.
fn destroy_beside(
    devices: &[PathBuf],
    permit: Option<&DiscardDirty>,
    state: &State,
    waiting: impl Fn(u64) -> Option<PathBuf>,
) -> Result<Vec<Superblock>, PoolError> {
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
        nothing_waits(&superblock, &waiting)?;
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pool::create::may_be_overwritten_beside;
    use crate::pool::{NewPool, create};
    use headpond_format::{Doubts, Mode, VolumeEntry};
    use std::fs;

    /// A pool of one device with one volume, and what permits to lose what may be dirty of that.
    fn pool_with_a_volume(folder: &Path, state: &State) -> (PathBuf, DiscardDirty) {
        let device = folder.join("a");
        fs::File::create(&device).unwrap().set_len(64 << 20).unwrap();
        let new = NewPool {
            name: "tank".into(),
            devices: vec![device.clone()],
            copies: 1,
            segment_bytes: 0,
            unit: None,
            force: false,
            discard_dirty: None,
        };
        let made = create(&new, state).unwrap();
        let volume = VolumeEntry {
            number: 1,
            id: [7; 16],
            name: "home".into(),
            sectors: 2048,
            phase: 0,
            mode: Mode::WriteBack,
            intent_first: 0,
            intent_pages: 1,
            backing: "a disk".into(),
            doubts: Doubts::default(),
        };
        let mut bytes = fs::read(&device).unwrap();
        for at in (0..bytes.len()).step_by(4096) {
            if let Ok(mut superblock) = Superblock::decode(&bytes[at..]) {
                superblock.volumes = vec![volume.clone()];
                let changed = superblock.encode();
                bytes[at..at + changed.len()].copy_from_slice(&changed);
            }
        }
        fs::write(&device, bytes).unwrap();
        (device, format!("{}:{}", hex(&made.pool), made.epoch).parse().unwrap())
    }

    /// It went well, and then nothing could end that device: the package was not removed, and `umount` of what was on it waited until the machine
    /// was started again. Found by reading.
    #[test]
    fn a_pool_is_not_destroyed_while_a_block_device_of_one_of_its_volumes_waits_for_a_daemon() {
        let folder = tempfile::tempdir().unwrap();
        let state = State::open(&folder.path().join("state")).unwrap();
        let (device, permit) = pool_with_a_volume(folder.path(), &state);
        let before = fs::read(&device).unwrap();
        let destroy = |waiting: Option<&str>| {
            destroy_beside(std::slice::from_ref(&device), Some(&permit), &state, |_| waiting.map(PathBuf::from))
        };
        let refused = destroy(Some("/dev/ublkb3")).unwrap_err();
        assert!(matches!(&refused, PoolError::Waiting { .. }) && refused.protects_data(), "{refused}");
        for part in ["/dev/ublkb3 of volume home", "pool tank", "--give-up home", "Nothing was changed"] {
            assert!(refused.to_string().contains(part), "{part:?} is not in: {refused}");
        }
        assert!(fs::read(&device).unwrap() == before, "it was changed");
        destroy(None).unwrap();
        assert!(fs::read(&device).unwrap() != before);
    }

    /// `pool create --force`, and `pool add --force` of another pool, ended it all the same. Found by reading.
    #[test]
    fn nor_is_it_overwritten_for_another_pool_though_that_is_forced() {
        let folder = tempfile::tempdir().unwrap();
        let state = State::open(&folder.path().join("state")).unwrap();
        let (device, permit) = pool_with_a_volume(folder.path(), &state);
        let claim = Claim::take(&device, Duration::ZERO).unwrap();
        let overwritten =
            |waiting: Option<&str>| may_be_overwritten_beside(&claim, true, Some(&permit), |_| waiting.map(PathBuf::from));
        let refused = overwritten(Some("/dev/ublkb3")).unwrap_err();
        assert!(matches!(&refused, PoolError::Waiting { .. }), "{refused}");
        assert!(overwritten(None).unwrap(), "what may be lost was named");
    }
}
