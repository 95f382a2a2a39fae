//! Opening a pool: claims first, then the superblocks, then the election.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::io;
use std::mem;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use headpond_engine::create::newest_witness;
use headpond_engine::election::{Election, Refusal, WitnessVote, elect, identity};
use headpond_engine::io::Device;
use headpond_format::{MAX_MEMBERS, MemberEntry, MemberState, Superblock, WITNESS_BYTES, WITNESS_SLOTS};

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
    let (mut said, mut others) = (Vec::new(), Remembered::default());
    let first = try_open(devices, state, patience, &mut said, Some(&mut others));
    let (pool, missing) = match &first {
        Ok(open) => (open.election.superblock.pool, &open.election.missing),
        Err(not) => (not.pool, &not.missing),
    };
    let known = [devices, &others.taken].concat();
    let mut remembered = last_seen(&pool, missing, &known, state);
    remembered.retain(|path| !others.silent.contains(path));
    let heard = silence::at_once(&remembered, |path| heard(path, left()));
    let answering = remembered.into_iter().zip(heard).filter(|(_, heard)| heard.is_ok()).map(|(path, _)| path);
    // It has been waited for; but one that is there may fail for a moment, whatever time those that are named have taken.
    let moment = patience.min(MOMENT);
    let late: Vec<PathBuf> =
        answering.filter(|path| claim_of(&pool, path, &known, left().max(moment), moment).is_some()).collect();
    if late.is_empty() {
        tell(&said);
        return first.map_err(|not| not.why);
    }
    drop(first);
    late.iter().for_each(|path| taken_too(path));
    // One that is named may lead to the same by now.
    let mut all = Vec::new();
    for path in known.into_iter().chain(late) {
        if different_from(&all, &path) {
            all.push(path);
        }
    }
    // Those that were named have been waited for.
    open(&all, state, left().max(moment))
}

/// Where members of a pool were last seen, but for those devices that are known already.
fn last_seen(pool: &[u8; 16], members: &[u8], known: &[PathBuf], state: &State) -> Vec<PathBuf> {
    let mut places = if members.is_empty() { Default::default() } else { state.places(pool).members };
    let is_other = |path: &PathBuf| known.iter().all(|known| std::path::absolute(known).ok().as_ref() != Some(path));
    members.iter().filter_map(|member| places.remove(member)).filter(is_other).collect()
}

/// A claim on what is at a place, and what it holds, if that is a pool's, and none of the devices that are known. One that is not there, is
/// damaged, or another's by now, is left out. Whoever holds it is waited for up to `held`, and one that fails is asked again up to `failing`.
fn claim_of(pool: &[u8; 16], path: &Path, known: &[PathBuf], held: Duration, failing: Duration) -> Option<(Claim, Superblock)> {
    if is_missing(path) || !different_from(known, path) {
        return None;
    }
    let claim = claim_when_there(failing, |_| Claim::take(path, held)).ok()?;
    let superblock = patiently(failing, || superblock_of(&claim)).ok()?;
    (superblock.pool == *pool).then_some((claim, superblock))
}

fn taken_too(path: &Path) {
    tracing::warn!("{} is taken too: a cache device of this pool was last seen there. Name it with the others", path.display());
}

fn different_from(devices: &[PathBuf], path: &Path) -> bool {
    different(&[devices, &[path.to_owned()]].concat()).is_ok()
}

/// Claims the devices of a pool and its witness, and holds the election. Nothing on the devices is changed; a witness
/// file that is missing, or was never written whole, is made, without a vote in it, once the election has succeeded without it. One that
/// cannot be used or made is as good as missing: it is there for the day on which a cache device is not.
///
/// A device that is not there, cannot be read, or does not answer, is as good as not named if the others have the votes: an SSD that died is
/// no reason not to start. It is waited for only if one is missing without it, or if it may show that another pool is meant. Nor is one a reason
/// that holds nothing of any pool, as it was replaced, or removed, and is named yet: it is let go of, and never written to; nor, where all that
/// the pool has are there, one that is another pool's by now. The pool is the one that most of those named belong to.
pub fn open(devices: &[PathBuf], state: &State, patience: Duration) -> Result<OpenPool, PoolError> {
    let mut said = Vec::new();
    let open = try_open(devices, state, patience, &mut said, None);
    tell(&said);
    open.map_err(|not| not.why)
}

fn tell(said: &[String]) {
    said.iter().for_each(|what| tracing::warn!("{what}"));
}

/// Places where members that were missing were last seen.
#[derive(Default)]
struct Remembered {
    /// They were there, and taken.
    taken: Vec<PathBuf>,
    /// They are there, and have answered nothing for as long as anybody waits for that.
    silent: Vec<PathBuf>,
}

/// What is to be told of devices that were named in vain is added to `said`. Where members are missing, and it is asked, they are looked for
/// where they were last seen, before anything is waited for; what becomes of that is added to `remembered`.
fn try_open(
    devices: &[PathBuf],
    state: &State,
    patience: Duration,
    said: &mut Vec<String>,
    remembered: Option<&mut Remembered>,
) -> Result<OpenPool, NotOpen> {
    different(devices)?;
    let begun = Instant::now();
    let mut named = Named::default();
    let (mut away, there): (Vec<PathBuf>, Vec<PathBuf>) = devices.iter().cloned().partition(|path| is_missing(path));
    away.extend(named.take(&there, patience, Failing::Later)?);
    // Where those that are away may show that another pool is meant, nothing is waited for yet that only this one's daemon would let go of.
    let mut settled = named.pool().filter(|pool| named.is_settled(pool, devices, &away, state));
    if settled.is_some() {
        away.extend(named.take_held(settled, patience, Failing::Later)?);
        // They may have failed meanwhile.
        settled = settled.filter(|pool| named.pool() == Some(*pool));
    }
    let known = settled.map(|pool| known_of(&named, pool, devices, state, patience)).transpose()?;
    if let (Some(remembered), Some((pool, vote, _))) = (remembered, &known) {
        let mut places = last_seen(pool, &lacking(&elect(&named.of(pool), *vote)), devices, state);
        places.retain(|path| !is_missing(path));
        for (path, answers) in places.iter().zip(silence::all_answer(&places, silence::LIMIT)) {
            let known = [devices, &remembered.taken].concat();
            if answers.is_err() {
                remembered.silent.push(path.clone());
            } else if let Some(it) = claim_of(pool, path, &known, patience.min(MOMENT), Duration::ZERO) {
                taken_too(path);
                named.claimed.push(it);
                remembered.taken.push(path.clone());
            }
        }
    }
    // One that was pulled for good, or whose device node has outlived it, is no reason to wait at each start.
    let is_whole =
        known.as_ref().is_some_and(|(pool, vote, _)| elect(&named.of(pool), *vote).is_ok_and(|it| it.missing.is_empty()));
    named.take(&away, if is_whole { Duration::ZERO } else { patience }, Failing::Waited)?;
    named.take_held(named.pool(), patience.saturating_sub(begun.elapsed()).max(patience.min(MOMENT)), Failing::Waited)?;

    let (Some(pool), false) = (named.first_pool(), named.claimed.is_empty()) else {
        let Named { mut unread, strange, .. } = named;
        if !unread.is_empty() {
            said.extend(strange.iter().map(passed_over));
            return Err(unread.remove(0).into());
        }
        return Err(match strange.into_iter().next() {
            Some((path, what)) => PoolError::NoMember { path, what }.into(),
            None => PoolError::Refused { refusal: Refusal::NoMembers, places: String::new() }.into(),
        });
    };
    let (_, vote, witness) = match known.filter(|(known, ..)| *known == pool) {
        Some(known) => known,
        None => known_of(&named, pool, devices, state, patience)?,
    };
    let is_one = named.pool().is_some();
    let found = named.of(&pool);
    let election = elect(&found, vote);
    // All of it is there, whatever else is named; else that may have been meant.
    let missing = lacking(&election);
    let others = named.others(&pool);
    if let Some((path, other)) = others.first()
        && !(is_one && missing.is_empty() && election.is_ok())
    {
        let why = match named.claimed.iter().find(|(_, superblock)| superblock.pool == pool) {
            Some((claim, superblock)) => other_pool((path, other), (claim.path(), superblock), named.late()),
            None => PoolError::Refused { refusal: Refusal::NoMembers, places: String::new() },
        };
        // Where it is not known which pool is meant, none is made whole by where its devices were last.
        return Err(NotOpen { why, pool, missing: if is_one { missing } else { Vec::new() } });
    }
    let election = match election {
        Ok(election) => election,
        Err(refusal) => {
            let why = match named.unread.is_empty() {
                // That is what stands in the way.
                false => {
                    said.extend(named.strange.iter().map(passed_over));
                    named.unread.remove(0)
                }
                true => {
                    let mut places = missing_places(&refusal, &pool, state);
                    for (path, what) in &named.strange {
                        let _ = write!(places, " {} was named too, and holds {what}: it has no vote.", path.display());
                    }
                    PoolError::Refused { refusal, places }
                }
            };
            return Err(NotOpen { why, pool, missing });
        }
    };
    said.extend(named.strange.iter().map(passed_over));
    said.extend(others.iter().map(|(path, other)| {
        format!(
            "{} is passed over, as if it were not there: it is a cache device of pool {} by now, and this pool has all of its own. {NOT_NAMED}",
            path.display(),
            named_with_identity(other)
        )
    }));
    // It may have left before, and nobody is in its place yet.
    let has_left = |member: &MemberEntry| member.state == MemberState::Out && member.id != [0; 16];
    let lacks_one = !missing.is_empty() || election.superblock.members.iter().any(has_left);
    said.extend(named.unread.iter().map(|error| match lacks_one {
        true => format!("the pool starts without it: {error}. Put another device in its place with `headpond pool replace`"),
        false => format!("named, and not needed: {error}. The pool has all its cache devices. {NOT_NAMED}"),
    }));
    let witness = match witness {
        Witness::There(claim) => Some(claim),
        // The others suffice; from now on it votes again.
        Witness::Missing => made(&pool, state, patience)?,
        Witness::Without => None,
    };
    let witness = witness.map(|claim| Given { device: Device::Witness, claim, pace: None });
    let mut open = OpenPool { election, devices: witness.into_iter().collect(), stale: Vec::new() };
    for (claim, superblock) in named.claimed.into_iter().filter(|(_, superblock)| superblock.pool == pool) {
        let known = open.election.superblock.members.get(usize::from(superblock.member)).map(|m| (superblock.member, m.id));
        // Its number may be another device's by now.
        match known == identity(&superblock) && open.election.present.contains(&superblock.member) {
            true => open.devices.push(Given { device: Device::Member(superblock.member), claim, pace: None }),
            false => open.stale.push(claim),
        }
    }
    Ok(open)
}

/// Members that an election lacked.
fn lacking(election: &Result<Election, Refusal>) -> Vec<u8> {
    match election {
        Ok(election) => election.missing.clone(),
        Err(Refusal::TooFewVotes { missing, .. } | Refusal::Stale { needed: missing, .. }) => missing.clone(),
        Err(_) => Vec::new(),
    }
}

/// The vote of a pool's witness, and the witness.
fn known_of(
    named: &Named,
    pool: [u8; 16],
    devices: &[PathBuf],
    state: &State,
    patience: Duration,
) -> Result<([u8; 16], WitnessVote, Witness), PoolError> {
    // Witness or not is the same in every epoch.
    let (vote, witness) = match named.of(&pool).first().is_some_and(|first| first.witness) {
        true => witness(&pool, devices, state, patience)?,
        false => (WitnessVote::None, Witness::Without),
    };
    Ok((pool, vote, witness))
}

/// What becomes of devices that cannot be opened or read.
#[derive(Clone, Copy, PartialEq)]
enum Failing {
    /// They are asked again when it is known whether they are needed.
    Later,
    /// They are asked until nobody would wait for them any longer, and are unread then.
    Waited,
}

impl Failing {
    /// How long they are asked again.
    fn asks_again(self, patience: Duration) -> Duration {
        match self {
            Failing::Later => Duration::ZERO,
            Failing::Waited => patience,
        }
    }
}

/// What the devices that are named turn out to be.
#[derive(Default)]
struct Named {
    /// Those that are claimed, each with what it holds.
    claimed: Vec<(Claim, Superblock)>,
    /// Those that somebody has, who serves another pool with them or is a predecessor that is being killed, each with what it holds.
    held: Vec<(PathBuf, Superblock)>,
    /// Those that are not there, cannot be read, or do not answer.
    unread: Vec<PoolError>,
    /// Those that hold nothing of any pool, and what they hold. What that is does not come later: they are not waited for, nor claimed.
    strange: Vec<(PathBuf, &'static str)>,
}

impl Named {
    /// Claims these, and looks at them; those that somebody has are left for [`Named::take_held`]. Those that are to be asked later.
    fn take(&mut self, paths: &[PathBuf], patience: Duration, failing: Failing) -> Result<Vec<PathBuf>, PoolError> {
        let heard = silence::at_once(paths, |path| heard(path, patience));
        let mut later = Vec::new();
        for (path, heard) in paths.iter().zip(heard) {
            // It is taken already, by another name: where it was last seen, before the one that is named was there.
            if !different_from(&self.paths(), path) {
                continue;
            }
            let patience = match heard {
                Ok(left) => left,
                Err(error) => {
                    self.unread.push(error);
                    continue;
                }
            };
            let mut holds = None;
            // Whoever holds one of which it cannot be seen what it is, is waited for in any case.
            let begun = Instant::now();
            let claim = claim_when_there(failing.asks_again(patience), |_| match Claim::take(path, Duration::ZERO) {
                Err(error @ ClaimError::Held { .. }) => {
                    holds = held_by_others(path);
                    match holds {
                        Some(_) => Err(error),
                        None => leads_somewhere(Claim::take(path, patience.saturating_sub(begun.elapsed()))?),
                    }
                }
                claim => leads_somewhere(claim?),
            });
            match (claim, holds) {
                // It was removed, and is in use by its owner.
                (Err(ClaimError::Held { .. }), Some(Err(what))) => self.strange.push((path.clone(), what)),
                (Err(ClaimError::Held { .. }), Some(Ok(superblock))) => self.held.push((path.clone(), superblock)),
                (claim, _) => later.extend(self.add(claim, patience, failing)?),
            }
        }
        Ok(later)
    }

    /// Those that are claimed.
    fn paths(&self) -> Vec<PathBuf> {
        self.claimed.iter().map(|(claim, _)| claim.path().to_owned()).collect()
    }

    /// Waits for those that somebody has, where they are of this pool, or it cannot be told which is meant: he may be a predecessor that is
    /// being killed. Those that are to be asked later.
    fn take_held(&mut self, pool: Option<[u8; 16]>, patience: Duration, failing: Failing) -> Result<Vec<PathBuf>, PoolError> {
        let until = Instant::now() + patience;
        let left = || until.saturating_duration_since(Instant::now());
        let is_meant = |superblock: &Superblock| pool.is_none_or(|pool| pool == superblock.pool);
        let (meant, others) = mem::take(&mut self.held).into_iter().partition(|(_, superblock)| is_meant(superblock));
        self.held = others;
        let mut later = Vec::new();
        for (path, _) in meant {
            let claim = claim_when_there(failing.asks_again(patience), |_| leads_somewhere(Claim::take(&path, left())?));
            later.extend(self.add(claim, patience, failing)?);
        }
        Ok(later)
    }

    /// Looks at one that is claimed, or was to be; its path, if it is to be asked later.
    fn add(
        &mut self,
        claim: Result<Claim, ClaimError>,
        patience: Duration,
        failing: Failing,
    ) -> Result<Option<PathBuf>, PoolError> {
        let looked = claim.map_err(PoolError::from).and_then(|claim| {
            let superblock = patiently(failing.asks_again(patience), || superblock_of(&claim))?;
            Ok((claim, superblock))
        });
        match looked {
            Ok(it) => self.claimed.push(it),
            Err(PoolError::NoMember { path, what }) => self.strange.push((path, what)),
            Err(error) => match (which_fails(&error), failing) {
                (Some(path), Failing::Later) => return Ok(Some(path.to_owned())),
                (Some(_), Failing::Waited) => self.unread.push(error),
                (None, _) => return Err(error),
            },
        }
        Ok(None)
    }

    /// How many of them belong to each pool.
    fn counts(&self) -> BTreeMap<[u8; 16], usize> {
        let mut counts = BTreeMap::new();
        let all = self.claimed.iter().map(|(_, superblock)| superblock).chain(self.held.iter().map(|(_, superblock)| superblock));
        all.for_each(|superblock| *counts.entry(superblock.pool).or_default() += 1);
        counts
    }

    /// The pool that most of them belong to; `None` where that is none, or not one alone.
    fn pool(&self) -> Option<[u8; 16]> {
        let counts = self.counts();
        let most = counts.values().copied().max()?;
        let mut pools = counts.iter().filter(|(_, count)| **count == most).map(|(pool, _)| *pool);
        pools.next().filter(|_| pools.next().is_none())
    }

    /// The same, or where several have as many, the one that is named first.
    fn first_pool(&self) -> Option<[u8; 16]> {
        self.pool().or_else(|| self.claimed.first().map(|(_, superblock)| superblock.pool))
    }

    /// Whether those that are away cannot come to say that another pool is meant: they are too few, without those that this host has last seen as this
    /// pool's; or they are with those of this pool that were last seen elsewhere, and this host has seen no other pool where they should be.
    fn is_settled(&self, pool: &[u8; 16], devices: &[PathBuf], away: &[PathBuf], state: &State) -> bool {
        let counts = self.counts();
        let of_others = counts.iter().filter(|(other, _)| *other != pool).map(|(_, count)| *count).max().unwrap_or(0);
        let own = counts.get(pool).copied().unwrap_or(0);
        let are_others = state.has_seen_another(pool, away);
        let seen: Vec<PathBuf> = state.places(pool).members.into_values().collect();
        let was_ours = |path: &&PathBuf| std::path::absolute(path).is_ok_and(|path| seen.contains(&path));
        let ours = if are_others { 0 } else { away.iter().filter(was_ours).count() };
        let added = if are_others { 0 } else { last_seen(pool, &Vec::from_iter(0..MAX_MEMBERS as u8), devices, state).len() };
        own + added > of_others + away.len() - ours
    }

    /// What those of a pool hold that are claimed.
    fn of(&self, pool: &[u8; 16]) -> Vec<Superblock> {
        self.claimed.iter().map(|(_, superblock)| superblock).filter(|superblock| superblock.pool == *pool).cloned().collect()
    }

    /// One that is not there: it may be late.
    fn late(&self) -> Option<PathBuf> {
        let is_not_there = |path: &&Path, error: &PoolError| {
            let is_not_found =
                matches!(error, PoolError::Claim(ClaimError::Open { source, .. }) if source.kind() == io::ErrorKind::NotFound);
            is_not_found || is_missing(path)
        };
        let late = |error| which_fails(error).filter(|path| is_not_there(path, error)).map(Path::to_owned);
        self.unread.iter().find_map(late)
    }

    /// Those of other pools.
    fn others(&self, pool: &[u8; 16]) -> Vec<(PathBuf, Superblock)> {
        let claimed = self.claimed.iter().map(|(claim, superblock)| (claim.path().to_owned(), superblock));
        let all = claimed.chain(self.held.iter().map(|(path, superblock)| (path.clone(), superblock)));
        all.filter(|(_, superblock)| superblock.pool != *pool).map(|(path, superblock)| (path, superblock.clone())).collect()
    }
}

/// What a device holds that somebody else has: a cache device's superblock, or what else it is; `None` if that cannot be seen.
fn held_by_others(path: &Path) -> Option<Result<Superblock, &'static str>> {
    let (file, facts) = list::open(path).ok()?;
    match superblock_in(path, file.as_fd(), &facts, None) {
        Ok(superblock) => Some(Ok(superblock)),
        Err(PoolError::NoMember { what, .. }) => Some(Err(what)),
        Err(_) => None,
    }
}

/// What to do about a device that is named, and is not the pool's any more.
const NOT_NAMED: &str = "One that was replaced or removed is named no longer: take it out of `devices` in the configuration, or off the command \
                         line, and out of the unit's drop-in";

/// That a device is named and holds nothing of any pool.
fn passed_over((path, what): &(PathBuf, &'static str)) -> String {
    format!(
        "{} is passed over, as if it were not there: it holds {what}, and is no cache device of a pool. {NOT_NAMED}. If it should be one of \
         the pool's, what was on it is gone: see who has overwritten it, and put it, or another one, back with `headpond pool add`",
        path.display()
    )
}

fn named_with_identity(superblock: &Superblock) -> String {
    format!("{} ({})", superblock.name, hex(&superblock.pool))
}

fn other_pool(
    (path, superblock): (&Path, &Superblock),
    (other_path, other): (&Path, &Superblock),
    late: Option<PathBuf>,
) -> PoolError {
    PoolError::OtherPool {
        path: path.to_owned(),
        pool: named_with_identity(superblock),
        other: other_path.to_owned(),
        other_pool: named_with_identity(other),
        late,
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
    while is_missing(path) && begin.elapsed() < patience {
        thread::sleep(LOOK);
    }
    let left = patience.saturating_sub(begin.elapsed());
    silence::answers(path, silence::LIMIT).map_err(PoolError::silent(path))?;
    Ok(left)
}

fn is_missing(path: &Path) -> bool {
    facts::look(path).is_err_and(|error| error.kind() == io::ErrorKind::NotFound)
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

/// The device that an error says is gone, or fails.
fn which_fails(error: &PoolError) -> Option<&Path> {
    match error {
        PoolError::Claim(ClaimError::Open { path, source }) | PoolError::Io { path, source, .. } => {
            is_of_the_device(source).then_some(path)
        }
        _ => None,
    }
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

/// The newest superblock of devices that are looked at alone: nothing is claimed, as they may be served. One that is not there, or cannot be
/// read, is passed over as [`open()`] does. One that holds nothing of a pool, or is another pool's than the first, is refused, though a start may
/// pass over it: nobody waits for this, and whoever asks is there to put right what names it. Votes are not counted.
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
        if which_fails(&error).is_none() {
            return Err(error);
        }
        unread = unread.or(Some(error));
    }
    let newest = found.into_iter().map(|(superblock, _)| superblock).max_by_key(Superblock::newness);
    newest.ok_or_else(|| unread.unwrap_or(PoolError::Refused { refusal: Refusal::NoMembers, places: String::new() }))
}

/// The superblock of a claimed device, which fits it.
fn superblock_of(claim: &Claim) -> Result<Superblock, PoolError> {
    superblock_in(claim.path(), claim.as_fd(), claim.facts(), None)
}

/// The superblock of a device, which fits it, and belongs to the same pool as the first.
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
        return Err(other_pool((&path, &superblock), (other_path, other), None));
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
