//! Making a pool.

use std::collections::BTreeSet;
use std::fs;
use std::io::{self, Read};
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::time::Duration;

use headpond_engine::create::{InitialWrite, PlanError, PoolPlan, plan};
use headpond_engine::io::Buf;
use headpond_format::Superblock;

use super::probe::{self, ENDS, Found};
use super::waiting::nothing_waits;
use super::{DiscardDirty, PoolError, dirty, lies_beside};
use crate::buf::HostBuf;
use crate::claim::Claim;
use crate::device::facts::Facts;
use crate::state::{Places, State};
use crate::ublk;

/// Least bytes of a device for which a look at both its ends makes sense.
pub(super) const LEAST: u64 = 2 * ENDS;

const RANDOM: &str = "/dev/urandom";

/// What a pool is to be.
#[derive(Clone, Debug)]
pub struct NewPool {
    /// Its name.
    pub name: String,
    /// Its devices.
    pub devices: Vec<PathBuf>,
    /// Copies of dirty data.
    pub copies: u8,
    /// Bytes of a segment; 0 chooses.
    pub segment_bytes: u64,
    /// Unit of records; `None` chooses by the devices' physical blocks.
    pub unit: Option<u32>,
    /// Whether what is on the devices may be overwritten, but for dirty data.
    pub force: bool,
    /// Whether dirty data may be, too.
    pub discard_dirty: Option<DiscardDirty>,
}

/// Makes a pool of claimed devices, and its witness in the state folder.
pub fn create(new: &NewPool, state: &State) -> Result<Superblock, PoolError> {
    different(&new.devices)?;
    are_text(&new.devices)?;
    let claims = new.devices.iter().map(|path| Claim::take(path, Duration::ZERO)).collect::<Result<Vec<_>, _>>()?;
    let mut named = new.discard_dirty.is_none();
    for claim in &claims {
        named |= may_be_overwritten(claim, new.force, new.discard_dirty.as_ref())?;
    }
    if let (false, Some(given)) = (named, &new.discard_dirty) {
        return Err(PoolError::NotNamed { given: given.to_string() });
    }
    lies_beside(state, &new.devices)?;
    let (superblock, writes) = planned(new, &claims)?;

    // Before the devices are changed: the state folder may have no room.
    let made = witness(&superblock, state).and_then(|witness| put(&claims, &witness, &writes));
    // Nobody else would: its pool is none.
    made.inspect_err(|_| drop(state.forget(&superblock.pool)))?;
    let members = new.devices.iter().map(|path| std::path::absolute(path).unwrap_or_else(|_| path.clone()));
    let places = Places { members: (0..).zip(members).collect(), ..Places::default() };
    // Only a hint for messages.
    let _ = state.remember(&superblock.pool, &places);
    Ok(superblock)
}

/// Makes the witness of a pool, and claims it.
fn witness(pool: &Superblock, state: &State) -> Result<Claim, PoolError> {
    let path = state.witness(&pool.pool);
    state.make_witness(&pool.pool).map_err(|source| PoolError::Witness { path: path.clone(), source })?;
    Ok(Claim::take(&path, Duration::ZERO)?)
}

/// Clears the devices, and writes the pool to them and to its witness.
fn put(claims: &[Claim], witness: &Claim, writes: &[InitialWrite]) -> Result<(), PoolError> {
    for claim in claims {
        clear_ends(claim).map_err(PoolError::unwritten(claim.path()))?;
    }
    for write in writes {
        let claim = write.member.map_or(witness, |member| &claims[usize::from(member)]);
        let bytes = HostBuf::from_bytes(&write.bytes);
        probe::write(claim.as_fd(), write.offset, &bytes).map_err(PoolError::unwritten(claim.path()))?;
    }
    for claim in claims.iter().chain([witness]) {
        rustix::fs::fsync(claim.as_fd()).map_err(|e| PoolError::unwritten(claim.path())(e.into()))?;
    }
    Ok(())
}

/// Refuses a device that was named twice, under whatever names.
pub(crate) fn different(devices: &[PathBuf]) -> Result<(), PoolError> {
    let mut seen = BTreeSet::new();
    for path in devices {
        // One that is not there is for the claim to report.
        let Ok(meta) = fs::metadata(path) else { continue };
        if !seen.insert(if meta.rdev() == 0 { (meta.dev(), meta.ino()) } else { (meta.rdev(), 0) }) {
            return Err(PoolError::Twice { path: path.clone() });
        }
    }
    Ok(())
}

/// Refuses devices whose paths the state folder cannot keep. (What looks at them alone, or frees them, takes any.)
pub(crate) fn are_text(devices: &[PathBuf]) -> Result<(), PoolError> {
    // That of a relative one is kept with the folder's.
    let is_text = |path: &&PathBuf| std::path::absolute(path).is_ok_and(|path| path.to_str().is_some());
    match devices.iter().find(|path| !is_text(path)) {
        Some(path) => Err(PoolError::NotText { path: path.clone() }),
        None => Ok(()),
    }
}

/// Refuses a device that holds something, as far as that was not allowed, or whose pool's clients wait for a daemon. Whether it is the pool that may lose dirty data.
pub(super) fn may_be_overwritten(claim: &Claim, force: bool, permit: Option<&DiscardDirty>) -> Result<bool, PoolError> {
    may_be_overwritten_beside(claim, force, permit, ublk::waiting)
}

/// The same; `waiting` tells whether a block device with a mark waits for a daemon.
pub(super) fn may_be_overwritten_beside(
    claim: &Claim,
    force: bool,
    permit: Option<&DiscardDirty>,
    waiting: impl Fn(u64) -> Option<PathBuf>,
) -> Result<bool, PoolError> {
    let path = claim.path();
    match probe::probe(claim.as_fd(), claim.facts().size).map_err(PoolError::unread(path))? {
        Found::Nothing => Ok(false),
        Found::Signature(_) if force => Ok(false),
        Found::Signature(what) => Err(PoolError::Signature { path: path.to_owned(), what }),
        Found::Newer(version) => Err(PoolError::Newer { path: path.to_owned(), version }),
        Found::Damaged(why) => Err(PoolError::Damaged { path: path.to_owned(), why: why.to_string() }),
        Found::Member(superblock) if force => {
            nothing_waits(&superblock, waiting)?;
            dirty::check(path, claim.as_fd(), &superblock, permit)?;
            Ok(permit.is_some_and(|permit| permit.names(&superblock)))
        }
        Found::Member(superblock) => Err(PoolError::taken(path, &superblock)),
    }
}

fn planned(new: &NewPool, claims: &[Claim]) -> Result<(Superblock, Vec<InitialWrite>), PoolError> {
    let unread = |source| PoolError::unread(RANDOM.as_ref())(source);
    let (id, key) = (random().map_err(unread)?, u64::from_le_bytes(random().map_err(unread)?));
    let ids = claims.iter().map(|_| random()).collect::<io::Result<Vec<_>>>().map_err(unread)?;
    let unit = new.unit.or_else(|| claims.iter().map(|claim| unit_for(claim.facts())).max()).unwrap_or(512);
    let coarse = claims.iter().find(|claim| claim.facts().logical_block > unit);
    if let Some(claim) = coarse {
        let (block, pool) = (claim.facts().logical_block, new.name.clone());
        return Err(PoolError::Blocks { path: claim.path().to_owned(), block, unit, pool });
    }
    let of = |device: usize, source: PlanError| match claims.get(device) {
        Some(claim) => PoolError::PlanOf { path: claim.path().to_owned(), source },
        None => PoolError::Plan(source),
    };
    if let Some(device) = claims.iter().position(|claim| claim.facts().size < LEAST) {
        return Err(of(device, PlanError::Small { device, bytes: claims[device].facts().size, least: LEAST }));
    }
    plan(&PoolPlan {
        name: new.name.clone(),
        id,
        key,
        copies: new.copies,
        unit,
        segment_bytes: new.segment_bytes,
        intent_pages: 0,
        witness: true,
        members: ids.into_iter().zip(claims.iter().map(|claim| claim.facts().size)).collect(),
    })
    .map_err(|source| match source {
        PlanError::Small { device, .. } => of(device, source),
        source => PoolError::Plan(source),
    })
}

/// The unit of records for a device: of the two that there are the smallest that no physical block is less than. A record shares no physical
/// block with one that was flushed before: a drive that reads such a block, changes a part and is cut off while it writes it back would damage
/// both, at the same place on both members.
pub(super) fn unit_for(facts: &Facts) -> u32 {
    if facts.logical_block.max(facts.physical_block) > 512 { 4096 } else { 512 }
}

/// Random bytes, for identities.
pub(crate) fn random<const N: usize>() -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    fs::File::open(RANDOM)?.read_exact(&mut bytes)?;
    Ok(bytes)
}

/// Zeroes both ends of a device: no signature, and no superblock of an older pool, is found there afterwards.
pub(super) fn clear_ends(claim: &Claim) -> io::Result<()> {
    let tail = probe::tail_of(claim.facts().size);
    probe::write(claim.as_fd(), 0, &HostBuf::zeroes(ENDS as usize))?;
    probe::write(claim.as_fd(), tail.start, &HostBuf::zeroes((tail.end - tail.start) as usize))?;
    Ok(rustix::fs::fsync(claim.as_fd())?)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Most SATA SSDs have logical blocks of 512 bytes and physical ones of 4096. The former alone were asked, so that records shared
    /// physical blocks with such as had been flushed, at the same places on both devices.
    #[test]
    fn a_record_shares_no_physical_block_with_another_whatever_a_device_says_of_itself() {
        let folder = tempfile::tempdir().unwrap();
        let files = |names: [&str; 2]| {
            names.map(|name| {
                let path = folder.path().join(name);
                fs::File::create(&path).unwrap().set_len(64 << 20).unwrap();
                path
            })
        };
        let devices = files(["a", "b"]);
        let facts = Facts::of(&fs::File::open(&devices[0]).unwrap()).unwrap();
        let of = |logical_block, physical_block| unit_for(&Facts { logical_block, physical_block, ..facts.clone() });
        assert_eq!([of(512, 512), of(512, 4096), of(4096, 4096), of(4096, 512)], [512, 4096, 4096, 4096]);
        assert_eq!([of(512, 0), of(512, 2048), of(512, 1 << 20)], [512, 4096, 4096], "nonsense");
        let new = |devices: [PathBuf; 2], unit| NewPool {
            name: "pool".into(),
            devices: devices.into(),
            copies: 2,
            segment_bytes: 0,
            unit,
            force: true,
            discard_dirty: None,
        };
        let state = State::open(&folder.path().join("state")).unwrap();
        let made = create(&new(devices, None), &state).unwrap();
        assert_eq!(made.unit, of(facts.logical_block, facts.physical_block));
        // Whoever names a unit has it, as far as the devices can write it at all.
        if facts.logical_block == 512 {
            // On others: what another test starts at this moment has copies of the claims on the first, up to its exec.
            assert_eq!(create(&new(files(["c", "d"]), Some(512)), &state).unwrap().unit, 512);
        }
    }
}
