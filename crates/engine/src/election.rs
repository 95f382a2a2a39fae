//! Which superblock counts, and whether the votes at hand prove that nothing newer exists (R7).

use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;
use headpond_format::{InSync, MemberState, Superblock, WitnessRecord};

/// By so much an epoch is raised without the witness: what was raised in vain and told to none but it is lower.
const BEYOND: u64 = 1 << 20;
/// And not above this: epochs have to be able to grow, one by one, for as long as a pool lives.
const HIGHEST: u64 = 1 << 38;

/// What was found of the third vote.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WitnessVote {
    /// The pool has no witness.
    None,
    /// It has one, which is not there or says nothing of this pool.
    Missing,
    /// Its newest record.
    Found(WitnessRecord),
}

/// The outcome of an election.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Election {
    /// The newest superblock.
    pub superblock: Superblock,
    /// Members that are in sync and present.
    pub present: Vec<u8>,
    /// Members that are in sync and missing: they leave before anything is acknowledged.
    pub missing: Vec<u8>,
    /// Members that are in sync and present, and whose own newest superblock is an older one: of the newest theirs was torn, or
    /// never written.
    pub behind: Vec<u8>,
    /// Members that are present and stale: never read, only rebuilt.
    pub stale: Vec<u8>,
    /// The start raises the next one: no epoch that any of them knows, the witness included, is as high.
    pub highest_epoch: u64,
    /// Whether the witness was heard. Else it is told of the next epoch, but does not vote for it.
    pub witness_votes: bool,
}

/// Why a pool does not start by itself.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Refusal {
    /// No superblock at all.
    NoMembers,
    /// Devices of different pools.
    Foreign {
        /// Number of the device, in the order given, that belongs elsewhere.
        device: usize,
    },
    /// The same member twice.
    Twice {
        /// The member's number.
        member: u8,
    },
    /// Too few votes: a newer epoch may exist on what is missing.
    TooFewVotes {
        /// The pool's name.
        pool: String,
        /// The newest epoch seen.
        epoch: u64,
        /// The members that would help.
        missing: Vec<u8>,
        /// Whether the witness would.
        witness_missing: bool,
        /// The epoch that the witness knows, where it is there and has no vote since it is an older one.
        witness_epoch: Option<u64>,
    },
    /// The witness knows a newer epoch, in which other members are in sync.
    Stale {
        /// The pool's name.
        pool: String,
        /// The newest epoch on the devices at hand.
        epoch: u64,
        /// The epoch that the witness knows.
        newest: u64,
        /// Members in sync in that epoch.
        needed: Vec<u8>,
    },
}

fn list(members: &[u8]) -> String {
    let names: Vec<String> = members.iter().map(|m| alloc::format!("{m}")).collect();
    names.join(", ")
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refusal::NoMembers => f.write_str("No cache device of a pool was found. Name the devices that the pool was made of."),
            Refusal::Foreign { device } => {
                write!(
                    f,
                    "The device number {device} of those named belongs to another pool. Nothing was changed. Name the devices of one pool."
                )
            }
            Refusal::Twice { member } => write!(
                f,
                "Cache device {member} was found twice: one is a copy of the other. Nothing was changed. Take the copy away and start again."
            ),
            Refusal::TooFewVotes { pool, epoch, missing, witness_missing, witness_epoch } => {
                write!(
                    f,
                    "Pool {pool} does not start: its newest state may be on what is missing (epoch {epoch} is the newest found). No data was touched. Bring back "
                )?;
                match (missing.is_empty(), witness_missing) {
                    (false, true) => write!(f, "cache device {} or the witness", list(missing))?,
                    (false, false) => write!(f, "cache device {}", list(missing))?,
                    _ => f.write_str("the witness")?,
                }
                f.write_str(" and start again.")?;
                match witness_epoch {
                    Some(older) => write!(
                        f,
                        " The witness that was found has no vote: it knows no newer epoch than {older}, so it is a copy from before, or was not told since. The state folder that the pool was last served with has the right one."
                    ),
                    None => Ok(()),
                }
            }
            Refusal::Stale { pool, epoch, newest, needed } if needed.is_empty() => write!(
                f,
                "Pool {pool} does not start: the cache devices found are of epoch {epoch}, and the witness knows epoch {newest}, in which the last one had left. What they hold may be out of date. No data was touched. Keep them as they are: `headpond check` says what they hold, without changing it.",
            ),
            Refusal::Stale { pool, epoch, newest, needed } => write!(
                f,
                "Pool {pool} does not start: the cache devices found are of epoch {epoch}, and the witness knows epoch {newest}. What they hold is out of date. No data was touched. Bring back cache device {} and start again.",
                list(needed)
            ),
        }
    }
}

impl core::error::Error for Refusal {}

/// Which member of its pool a superblock says that it is on, by number and identity.
#[must_use]
pub fn identity(s: &Superblock) -> Option<(u8, [u8; 16])> {
    s.members.get(usize::from(s.member)).map(|m| (s.member, m.id))
}

fn members_of(bits: u64) -> Vec<u8> {
    (0..64).filter(|m| bits >> m & 1 == 1).collect()
}

/// Whether one of these members has left by a superblock's word. By all their identities, which it must know: another device may have the number of one
/// that has left, and a witness from before they were written down does not tell them apart.
fn has_one_that_left(in_sync: &InSync, s: &Superblock) -> bool {
    let numbers = members_of(in_sync.numbers);
    let entries = || numbers.iter().filter_map(|m| s.members.get(usize::from(*m)).map(|e| (*m, e)));
    in_sync.devices != 0
        && in_sync.agrees_with(&InSync::of(entries().map(|(m, e)| (m, e.id))))
        && entries().any(|(_, e)| e.state == MemberState::Out)
}

/// Holds the election among the newest superblock of each device found.
///
/// # Errors
/// A [`Refusal`] says what is missing. Nothing has been changed then.
pub fn elect(found: &[Superblock], witness: WitnessVote) -> Result<Election, Refusal> {
    let best = |list: &mut dyn Iterator<Item = &'_ Superblock>| list.max_by_key(|s| s.newness()).cloned();
    let any = best(&mut found.iter()).ok_or(Refusal::NoMembers)?;
    // An epoch that the witness knows with other members was raised without it, and in vain: whoever got the witness's
    // vote for the same number had a majority of the epoch before.
    let heard = |s: &&Superblock| match witness {
        WitnessVote::Found(w) => w.pool != s.pool || w.epoch != s.epoch || w.in_sync.agrees_with(&s.in_sync()),
        _ => true,
    };
    // Nor is one that was not agreed on an ancestor of what the witness knows, if that has a member in sync which it calls out: who has left does not
    // come back under its identity.
    let descends = |s: &&Superblock| match witness {
        WitnessVote::Found(w) if w.pool == s.pool && w.epoch > s.epoch && s.agreed < s.epoch => !has_one_that_left(&w.in_sync, s),
        _ => true,
    };
    let newest = match (best(&mut found.iter().filter(heard).filter(descends)), witness) {
        (Some(newest), _) => newest,
        (None, WitnessVote::Found(w)) => {
            let needed = members_of(w.in_sync.numbers);
            return Err(Refusal::Stale { pool: any.name, epoch: any.epoch, newest: w.epoch, needed });
        }
        (None, _) => any,
    };
    for (device, s) in found.iter().enumerate() {
        if s.pool != newest.pool {
            return Err(Refusal::Foreign { device });
        }
        // A device that has left may come back beside the one that has its number now.
        if found.iter().skip(device + 1).any(|o| identity(o) == identity(s)) {
            return Err(Refusal::Twice { member: s.member });
        }
    }
    let in_sync: Vec<u8> = (0..newest.members.len() as u8)
        .filter(|m| newest.members.get(usize::from(*m)).is_some_and(|m| m.state == MemberState::InSync))
        .collect();
    // A device is the member it says it is only if the newest superblock knows it by the same identity. Where things are
    // on it never changes: the host has compared its own word for its size with the device, and nobody else's.
    let known = |s: &Superblock, m: u8| s.members.get(usize::from(m)).map(|e| (e.id, e.layout));
    let is_present = |m: u8| found.iter().any(|s| s.member == m && known(s, m) == known(&newest, m));
    let (present, missing): (Vec<u8>, Vec<u8>) = in_sync.iter().partition(|m| is_present(**m));
    let stale = found.iter().map(|s| s.member).filter(|m| !present.contains(m)).collect();
    let its_own = match witness {
        WitnessVote::Found(w) if w.pool == newest.pool => Some(w),
        _ => None,
    };
    if let Some(w) = its_own.filter(|w| w.epoch > newest.epoch && !w.in_sync.agrees_with(&newest.in_sync())) {
        let needed = members_of(w.in_sync.numbers);
        // All may have left, which the witness alone has to agree to, and others have their numbers now. It is told of one that joins when all others
        // have been.
        let by_number = |m: &u8| newest.members.get(usize::from(*m)).map(|e| (*m, e.id));
        let are_known = w.in_sync.agrees_with(&InSync::of(needed.iter().filter_map(by_number)));
        // The witness is written first: members in sync in its epoch, all here, have merely not heard of it yet.
        let all_here = !needed.is_empty() && needed.iter().all(|m| present.contains(m));
        // With those that are missing it could not have agreed on anything behind an epoch that was agreed on: it was told in vain.
        let in_vain = newest.agreed == newest.epoch && !needed.is_empty() && (missing.len() + 1) * 2 <= in_sync.len() + 1;
        if !are_known || !all_here && !in_vain {
            return Err(Refusal::Stale { pool: newest.name.clone(), epoch: newest.epoch, newest: w.epoch, needed });
        }
    }
    // One that knows less than a cache device is a copy from before, or was not told: the one that is missing may know who has left.
    let witness_votes = its_own.is_some_and(|w| w.epoch >= newest.epoch);
    let has_witness = witness != WitnessVote::None;
    let witness_missing = has_witness && !witness_votes;
    let voters = in_sync.len() + usize::from(has_witness);
    let unknown = missing.len() + usize::from(witness_missing);
    if unknown > voters / 2 || present.is_empty() {
        let witness_epoch = its_own.filter(|_| witness_missing).map(|w| w.epoch);
        return Err(Refusal::TooFewVotes { pool: newest.name, epoch: newest.epoch, missing, witness_missing, witness_epoch });
    }
    let known_epochs = found.iter().map(|s| s.epoch).chain(its_own.map(|w| w.epoch));
    let known_epoch = known_epochs.max().unwrap_or(0);
    let highest_epoch = if witness_missing { known_epoch + BEYOND.min(HIGHEST.saturating_sub(known_epoch)) } else { known_epoch };
    // One that has left may be there beside the one that has its number now.
    let is_member = |s: &&Superblock| present.contains(&s.member) && known(s, s.member) == known(&newest, s.member);
    let older = |s: &&Superblock| s.newness() < newest.newness();
    let behind = found.iter().filter(is_member).filter(older).map(|s| s.member).collect();
    Ok(Election { superblock: newest, present, missing, behind, stale, highest_epoch, witness_votes })
}
