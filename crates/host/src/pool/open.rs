//! Opening a pool: claims first, then the superblocks, then the election.

use std::fmt::Write;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use headpond_engine::create::newest_witness;
use headpond_engine::election::{Election, Refusal, WitnessVote, elect, identity};
use headpond_engine::io::Device;
use headpond_format::{Superblock, WITNESS_BYTES, WITNESS_SLOTS};

use super::create::different;
use super::list;
use super::probe::{self, Found};
use super::{PoolError, lies_beside};
use crate::claim::{Claim, ClaimError};
use crate::device::facts::{self, Facts};
use crate::runtime::Given;
use crate::silence;
use crate::state::{State, hex, is_whole_witness};

/// How often it is looked for a device that is not there yet.
const LOOK: Duration = Duration::from_millis(100);

/// How long a device that is there may fail to be opened or read and count as there still: as long as the engine asks again.
const MOMENT: Duration = Duration::from_secs(5);

/// A pool whose devices are claimed and whose votes suffice.
pub struct OpenPool {
    /// What the election came to.
    pub election: Election,
    /// Members in sync and the witness, for the engine.
    pub devices: Vec<Given>,
    /// Stale members: kept from everybody else, never read.
    pub stale: Vec<Claim>,
}

/// Why a pool was not opened, and which of its members would help.
struct NotOpen {
    why: PoolError,
    pool: [u8; 16],
    missing: Vec<u8>,
}

impl<E: Into<PoolError>> From<E> for NotOpen {
    fn from(why: E) -> NotOpen {
        NotOpen { why: why.into(), pool: [0; 16], missing: Vec::new() }
    }
}

/// As [`open()`]; and where members are missing that were last seen elsewhere than at the devices named, those are taken too:
/// a cache device that was added since the command line was written is one of the pool's, and is waited for as those that are named.
pub fn open_with_remembered(devices: &[PathBuf], state: &State, patience: Duration) -> Result<OpenPool, PoolError> {
    let begun = Instant::now();
    let left = || patience.saturating_sub(begun.elapsed());
    let first = try_open(devices, state, patience);
    let (pool, missing) = match &first {
        Ok(open) => (open.election.superblock.pool, &open.election.missing),
        Err(not) => (not.pool, &not.missing),
    };
    let mut places = if missing.is_empty() { Default::default() } else { state.places(&pool).members };
    let is_other = |path: &PathBuf| devices.iter().all(|named| std::path::absolute(named).ok().as_ref() != Some(path));
    let remembered: Vec<PathBuf> = missing.iter().filter_map(|member| places.remove(member)).filter(is_other).collect();
    let heard = silence::at_once(&remembered, |path| heard(path, left()));
    // One that is not there, is damaged, or another's by now, or silent, is left out. It has been waited for; but one that is there may fail
    // for a moment, whatever time those that are named have taken.
    let is_there = |path: &PathBuf| facts::look(path).is_ok();
    let is_ones = |path: &PathBuf| is_there(path) && different_from(devices, path) && pool_of(path, patience) == Some(pool);
    let answering = remembered.into_iter().zip(heard).filter(|(_, heard)| heard.is_ok()).map(|(path, _)| path);
    let others: Vec<PathBuf> = answering.filter(is_ones).collect();
    if others.is_empty() {
        return first.map_err(|not| not.why);
    }
    drop(first);
    for path in &others {
        tracing::warn!(
            "{} is taken too: a cache device of this pool was last seen there. Name it with the others",
            path.display()
        );
    }
    // Those that were named have been waited for.
    open(&[devices, &others].concat(), state, left().max(patience.min(MOMENT)))
}

/// The pool that a device belongs to.
fn pool_of(path: &Path, patience: Duration) -> Option<[u8; 16]> {
    let patience = patience.min(MOMENT);
    let claim = claim_when_there(patience, |left| Claim::take(path, left)).ok()?;
    patiently(patience, || superblock_of(&claim, None)).ok().map(|superblock| superblock.pool)
}

fn different_from(devices: &[PathBuf], path: &Path) -> bool {
    different(&[devices, &[path.to_owned()]].concat()).is_ok()
}

/// Claims the devices of a pool and its witness, and holds the election. Nothing on the devices is changed; a witness
/// file that is missing, or was never written whole, is made, without a vote in it, once the election has succeeded without it. One that
/// cannot be used or made is as good as missing: it is there for the day on which a cache device is not.
///
/// A device that is not there, cannot be read, or does not answer, is as good as not named if the others have the votes: an SSD that died is
/// no reason not to start. Nor is one that holds nothing of any pool, as it was replaced, or removed, and is named yet: it is let go of, and
/// never written to.
pub fn open(devices: &[PathBuf], state: &State, patience: Duration) -> Result<OpenPool, PoolError> {
    try_open(devices, state, patience).map_err(|not| not.why)
}

fn try_open(devices: &[PathBuf], state: &State, patience: Duration) -> Result<OpenPool, NotOpen> {
    different(devices)?;
    let mut claims: Vec<Claim> = Vec::new();
    let mut found: Vec<Superblock> = Vec::new();
    let mut unread: Vec<PoolError> = Vec::new();
    let mut strange: Vec<(PathBuf, &str)> = Vec::new();
    let heard = silence::at_once(devices, |path| heard(path, patience));
    for (path, heard) in devices.iter().zip(heard) {
        let patience = match heard {
            Ok(left) => left,
            Err(error) => {
                unread.push(error);
                continue;
            }
        };
        let claim = match claim_when_there(patience, |left| leads_somewhere(Claim::take(path, left)?)) {
            Err(ClaimError::Open { path, source }) if is_of_the_device(&source) => {
                unread.push(ClaimError::Open { path, source }.into());
                continue;
            }
            claim => claim?,
        };
        match patiently(patience, || superblock_of(&claim, found.first().zip(claims.first()))) {
            Err(PoolError::Io { path, what, source, meaning }) if is_of_the_device(&source) => {
                unread.push(PoolError::Io { path, what, source, meaning });
            }
            // What it holds does not come later: it is not waited for, and its claim ends here.
            Err(PoolError::NoMember { path, what }) => strange.push((path, what)),
            superblock => {
                found.push(superblock?);
                claims.push(claim);
            }
        }
    }
    if found.is_empty() && !unread.is_empty() {
        pass_over(&strange);
        return Err(unread.remove(0).into());
    }
    if let (true, Some((path, what))) = (found.is_empty(), strange.first()) {
        return Err(PoolError::NoMember { path: path.clone(), what }.into());
    }
    let Some(first) = found.first() else {
        return Err(PoolError::Refused { refusal: Refusal::NoMembers, places: String::new() }.into());
    };
    let pool = first.pool;
    // Witness or not is the same in every epoch.
    let (vote, witness) = match first.witness {
        true => witness(&pool, devices, state, patience)?,
        false => (WitnessVote::None, Witness::Without),
    };
    let election = match elect(&found, vote) {
        Ok(election) => election,
        Err(refusal) => {
            let missing = match &refusal {
                Refusal::TooFewVotes { missing, .. } | Refusal::Stale { needed: missing, .. } => missing.clone(),
                _ => Vec::new(),
            };
            let why = match unread.is_empty() {
                // That is what stands in the way.
                false => {
                    pass_over(&strange);
                    unread.remove(0)
                }
                true => {
                    let mut places = missing_places(&refusal, &pool, state);
                    for (path, what) in &strange {
                        let _ = write!(places, " {} was named too, and holds {what}: it has no vote.", path.display());
                    }
                    PoolError::Refused { refusal, places }
                }
            };
            return Err(NotOpen { why, pool, missing });
        }
    };
    pass_over(&strange);
    for error in &unread {
        tracing::warn!("the pool starts without it: {error}. Put another device in its place with `headpond pool replace`");
    }
    let witness = match witness {
        Witness::There(claim) => Some(claim),
        // The others suffice; from now on it votes again.
        Witness::Missing => made(&pool, state, patience)?,
        Witness::Without => None,
    };
    let witness = witness.map(|claim| Given { device: Device::Witness, claim, pace: None });
    let mut open = OpenPool { election, devices: witness.into_iter().collect(), stale: Vec::new() };
    for (superblock, claim) in found.iter().zip(claims) {
        let known = open.election.superblock.members.get(usize::from(superblock.member)).map(|m| (superblock.member, m.id));
        // Its number may be another device's by now.
        match known == identity(superblock) && open.election.present.contains(&superblock.member) {
            true => open.devices.push(Given { device: Device::Member(superblock.member), claim, pace: None }),
            false => open.stale.push(claim),
        }
    }
    Ok(open)
}

/// Says of devices that they are named and hold nothing of any pool.
fn pass_over(strange: &[(PathBuf, &str)]) {
    for (path, what) in strange {
        tracing::warn!(
            "{} is passed over, as if it were not there: it holds {what}, and is no cache device of a pool. One that was replaced or removed is named no \
             longer: take it out of `devices` in the configuration, or off the command line, and out of the unit's drop-in. If it should be one of \
             the pool's, what was on it is gone: see who has overwritten it, and put it, or another one, back with `headpond pool add`",
            path.display()
        );
    }
}

/// A claim on a device that has a size: one of the network, or a loop device, is there before it leads anywhere, and counts as missing until it
/// does.
fn leads_somewhere(claim: Claim) -> Result<Claim, ClaimError> {
    if claim.facts().size > 0 {
        return Ok(claim);
    }
    let source = io::Error::new(io::ErrorKind::NotFound, "it has no bytes, so what it is to lead to is not there yet");
    Err(ClaimError::Open { path: claim.path().to_owned(), source })
}

/// Waits for a device to be there, up to `patience`, and then to answer; what is left of the patience for whoever holds it. Of one that does
/// not come nothing is left.
fn heard(path: &Path, patience: Duration) -> Result<Duration, PoolError> {
    let begin = Instant::now();
    let is_missing = || facts::look(path).is_err_and(|error| error.kind() == io::ErrorKind::NotFound);
    while is_missing() && begin.elapsed() < patience {
        thread::sleep(LOOK);
    }
    let left = patience.saturating_sub(begin.elapsed());
    silence::answers(path, silence::LIMIT).map_err(PoolError::silent(path))?;
    Ok(left)
}

/// Whether an error says that a device is gone or fails. Whoever goes on without the device takes it for left for good: what
/// only this process lacks, a right or memory, is no reason for that.
fn is_of_the_device(error: &io::Error) -> bool {
    let of_the_block_layer = [
        libc::EIO,
        libc::ENXIO,
        libc::ENODEV,
        libc::ENOMEDIUM,
        libc::ETIMEDOUT,
        libc::EREMOTEIO,
        libc::ENODATA,
        libc::EILSEQ,
        libc::ENOLINK,
    ];
    error.kind() == io::ErrorKind::NotFound || error.raw_os_error().is_some_and(|number| of_the_block_layer.contains(&number))
}

/// Claims a device; one that is not there yet may come within `patience`, as devices do while a host boots. One that is there may fail to
/// be opened for a moment, as it may fail to be read.
fn claim_when_there<T>(patience: Duration, mut take: impl FnMut(Duration) -> Result<T, ClaimError>) -> Result<T, ClaimError> {
    let begin = Instant::now();
    loop {
        let claim = take(patience.saturating_sub(begin.elapsed()));
        let waits = match &claim {
            Err(ClaimError::Open { source, .. }) if source.kind() == io::ErrorKind::NotFound => patience,
            Err(ClaimError::Open { source, .. }) if is_of_the_device(source) => patience.min(MOMENT),
            _ => return claim,
        };
        if begin.elapsed() >= waits {
            return claim;
        }
        thread::sleep(LOOK);
    }
}

/// Reads from a device that is there. It may fail to be read for a moment, while its controller is reset: whoever started without it would
/// take it for left for good.
fn patiently<T>(patience: Duration, mut read: impl FnMut() -> Result<T, PoolError>) -> Result<T, PoolError> {
    let until = Instant::now() + patience.min(MOMENT);
    loop {
        match read() {
            Err(PoolError::Io { source, .. }) if is_of_the_device(&source) && Instant::now() < until => thread::sleep(LOOK),
            end => return end,
        }
    }
}

/// The newest superblock of devices that are looked at alone: nothing is claimed, as they may be served. What is on one of them is refused as
/// [`open()`] refuses it, and one that is not there, or cannot be read, is passed over as there. One that holds nothing of a pool is refused:
/// nobody waits for this, and whoever asks is there to put right what names it. Votes are not counted.
pub fn look(devices: &[PathBuf]) -> Result<Superblock, PoolError> {
    different(devices)?;
    let mut found: Vec<(Superblock, &Path)> = Vec::new();
    let mut unread = None;
    for path in devices {
        let first = found.first().map(|(superblock, path)| (superblock, *path));
        let superblock = match list::open(path) {
            Ok((file, facts)) => superblock_in(path, file.as_fd(), &facts, first),
            Err(source) => Err(ClaimError::Open { path: path.clone(), source }.into()),
        };
        let error = match superblock {
            Ok(superblock) => {
                found.push((superblock, path));
                continue;
            }
            Err(error) => error,
        };
        match &error {
            PoolError::Claim(ClaimError::Open { source, .. }) | PoolError::Io { source, .. } if is_of_the_device(source) => {}
            _ => return Err(error),
        }
        unread = unread.or(Some(error));
    }
    let newest = found.into_iter().map(|(superblock, _)| superblock).max_by_key(Superblock::newness);
    newest.ok_or_else(|| unread.unwrap_or(PoolError::Refused { refusal: Refusal::NoMembers, places: String::new() }))
}

/// The superblock of a claimed device, which fits it, and belongs to the same pool as the first.
fn superblock_of(claim: &Claim, first: Option<(&Superblock, &Claim)>) -> Result<Superblock, PoolError> {
    superblock_in(claim.path(), claim.as_fd(), claim.facts(), first.map(|(superblock, claim)| (superblock, claim.path())))
}

fn superblock_in(
    path: &Path,
    file: BorrowedFd<'_>,
    facts: &Facts,
    first: Option<(&Superblock, &Path)>,
) -> Result<Superblock, PoolError> {
    let path = path.to_owned();
    let superblock = match probe::probe(file, facts.size).map_err(PoolError::unread(&path))? {
        Found::Member(superblock) => *superblock,
        Found::Newer(version) => return Err(PoolError::Newer { path, version }),
        Found::Damaged(why) => return Err(PoolError::Damaged { path, why: why.to_string() }),
        Found::Signature(what) => return Err(PoolError::NoMember { path, what }),
        Found::Nothing => return Err(PoolError::NoMember { path, what: "nothing known" }),
    };
    let pool = superblock.name.clone();
    if let Some((other, other_path)) = first.filter(|(other, _)| other.pool != superblock.pool) {
        let named = |superblock: &Superblock| format!("{} ({})", superblock.name, hex(&superblock.pool));
        return Err(PoolError::OtherPool {
            path,
            pool: named(&superblock),
            other: other_path.to_owned(),
            other_pool: named(other),
        });
    }
    let needed = superblock.members.get(usize::from(superblock.member)).map_or(0, |member| member.layout.size);
    if facts.size < needed {
        return Err(PoolError::Shrunk { path, size: facts.size, needed, pool });
    }
    if facts.logical_block > superblock.unit {
        return Err(PoolError::Blocks { path, block: facts.logical_block, unit: superblock.unit, pool });
    }
    Ok(superblock)
}

/// The witness of a pool that is being opened.
enum Witness {
    There(Claim),
    /// To be made.
    Missing,
    /// The pool has none, or none that could be used.
    Without,
}

/// Claims the witness, if it is there, and reads its vote.
fn witness(pool: &[u8; 16], devices: &[PathBuf], state: &State, patience: Duration) -> Result<(WitnessVote, Witness), PoolError> {
    lies_beside(state, devices)?;
    let path = state.witness(pool);
    if !path.exists() {
        return Ok((WitnessVote::Missing, Witness::Missing));
    }
    let asked = silence::answers(&path, silence::LIMIT).map_err(PoolError::silent(&path));
    let Some(claim) = usable(&path, asked.and_then(|()| Claim::take(&path, patience).map_err(PoolError::from)))? else {
        return Ok((WitnessVote::Missing, Witness::Without));
    };
    let slots: Result<Vec<_>, _> =
        (0..WITNESS_SLOTS).map(|slot| probe::read(claim.as_fd(), slot * WITNESS_BYTES, WITNESS_BYTES)).collect();
    // A witness that cannot be read has no vote; the others may do without.
    let slots = slots.unwrap_or_default();
    let slots: Vec<&[u8]> = slots.iter().map(|slot| slot.as_slice()).collect();
    match newest_witness(&slots, *pool) {
        Some(record) => Ok((WitnessVote::Found(record), Witness::There(claim))),
        // Its file system was full, or power failed, while it was made. What it never had it cannot have forgotten: it is as good as missing.
        None if !is_whole_witness(claim.facts().size) => {
            tracing::warn!(
                "the witness {} was not written whole, and has no vote: it is made again when the cache devices suffice to start. See \
                 that there is room in the state folder",
                path.display()
            );
            Ok((WitnessVote::Missing, Witness::Missing))
        }
        None => Ok((WitnessVote::Missing, Witness::There(claim))),
    }
}

/// Makes the witness anew, and claims it.
fn made(pool: &[u8; 16], state: &State, patience: Duration) -> Result<Option<Claim>, PoolError> {
    let path = state.witness(pool);
    let made = state.make_witness(pool).map_err(|source| PoolError::Witness { path: path.clone(), source });
    usable(&path, made.and_then(|_| Claim::take(&path, patience).map_err(PoolError::from)))
}

/// The witness, or `None`, and a word, where it cannot be used. What somebody else holds is not gone on without: he may serve the pool.
fn usable(path: &Path, witness: Result<Claim, PoolError>) -> Result<Option<Claim>, PoolError> {
    match witness {
        Ok(claim) => Ok(Some(claim)),
        Err(error @ PoolError::Claim(ClaimError::Held { .. })) => Err(error),
        Err(error) => {
            tracing::warn!(
                "the pool goes without its witness, {}: {error}. Its data is as safe as before; but should a cache device fail before the witness can be \
                 written again, the others may be too few to go on. Put the state folder right, then restart the daemon",
                path.display()
            );
            Ok(None)
        }
    }
}

/// Where the devices that an election lacked were last seen.
fn missing_places(refusal: &Refusal, pool: &[u8; 16], state: &State) -> String {
    let (Refusal::TooFewVotes { missing, .. } | Refusal::Stale { needed: missing, .. }) = refusal else {
        return String::new();
    };
    let places = state.places(pool);
    let mut text = String::new();
    for number in missing {
        if let Some(path) = places.members.get(number) {
            let _ = write!(text, " Cache device {number} was last seen at {}.", path.display());
        }
    }
    if let Refusal::TooFewVotes { witness_missing: true, .. } = refusal {
        let _ = write!(text, " The witness would be {}.", state.witness(pool).display());
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_that_fails_for_a_moment_is_read_again_and_one_that_fails_for_ever_is_not() {
        let fails = |number| PoolError::unread(Path::new("/dev/ssd"))(io::Error::from_raw_os_error(number));
        let tries = |number, fail: u32| {
            let mut tried = 0;
            let end = patiently(2 * LOOK, || {
                tried += 1;
                if tried > fail { Ok(()) } else { Err(fails(number)) }
            });
            (end.is_ok(), tried)
        };
        assert_eq!(tries(libc::EIO, 1), (true, 2));
        assert_eq!(tries(libc::EACCES, 1), (false, 1));
        let (ends_well, tried) = tries(libc::EIO, u32::MAX);
        assert!(!ends_well && (2..=4).contains(&tried), "{tried}");
    }

    /// A disk that its controller had offline for two seconds: opening it failed at once with ENXIO, the pool started without it, and a
    /// healthy cache device had to be added and filled again.
    #[test]
    fn a_device_that_cannot_be_opened_for_a_moment_is_opened_again_and_one_that_never_can_is_not() {
        let tries = |number, patience: Duration, fail: u32| {
            let mut tried = 0;
            let end = claim_when_there(patience, |_| {
                tried += 1;
                let source = io::Error::from_raw_os_error(number);
                if tried > fail { Ok(()) } else { Err(ClaimError::Open { path: "/dev/ssd".into(), source }) }
            });
            (
                end.map_err(|error| matches!(error, ClaimError::Open { source, .. } if source.raw_os_error() == Some(number))),
                tried,
            )
        };
        for number in [libc::ENXIO, libc::ENODEV, libc::EIO, libc::ENOENT] {
            assert_eq!(tries(number, 2 * LOOK, 1), (Ok(()), 2), "{number}");
            let (end, tried) = tries(number, 2 * LOOK, u32::MAX);
            assert!(end == Err(true) && (2..=5).contains(&tried), "{number}: {end:?} after {tried}");
            assert_eq!(tries(number, Duration::ZERO, u32::MAX).0, Err(true), "{number}");
        }
        assert_eq!(tries(libc::EACCES, 2 * LOOK, 1), (Err(true), 1));
    }

    #[test]
    fn only_what_is_the_devices_fault_lets_a_pool_start_without_it() {
        let of = |number| is_of_the_device(&io::Error::from_raw_os_error(number));
        for number in [libc::ENOENT, libc::EIO, libc::ENXIO, libc::ENODEV] {
            assert!(of(number), "{number}");
        }
        for number in [libc::EACCES, libc::EPERM, libc::EMFILE, libc::ENOMEM, libc::EINVAL, libc::EROFS, libc::EBUSY] {
            assert!(!of(number), "{number}");
        }
    }
}
