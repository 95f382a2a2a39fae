//! Superblocks: every copy, and whether the devices agree on who the pool is.

use headpond_engine::io::SECTOR;
use headpond_format::{DecodeError, MemberState, SUPERBLOCK_BYTES, Superblock};

use super::Tell;
use crate::offline::OfflineError;
use crate::offline::finding::{Finding, Level, Mend};
use crate::offline::media::{Device, Media, Pool, Slot};

/// Devices of which none has a whole superblock.
pub(super) fn none(media: &Media, say: Tell<'_>) -> Result<(), OfflineError> {
    for device in &media.devices {
        match device.may_be_older {
            Some(_) => hidden(device, None, say)?,
            None => blind(device, say)?,
        }
    }
    Ok(())
}

/// A device of one of whose superblocks no copy can be read. `known`: which member of a pool it is whose newest one is proved to be on others, and what
/// belongs into the slots.
fn hidden(device: &Device, known: Option<(u8, Vec<Mend>)>, say: Tell<'_>) -> Result<(), OfflineError> {
    let is_bad = |slot: &usize| matches!(device.slots[*slot], Slot::Unreadable(_));
    let first = if is_bad(&0) && is_bad(&2) { 0 } else { 1 };
    let what =
        format!("Superblock slots {first} and {}, both copies of one, cannot be read. Those that can be may be older", first + 2);
    let (level, member) = (if known.is_some() { Level::Damage } else { Level::Loss }, known.as_ref().map(|(member, _)| *member));
    let finding =
        Finding::new(level, "superblock-unreadable", what).at(device.path(), member, device.slot_at[first], SUPERBLOCK_BYTES);
    say(match known {
        Some((_, mends)) => finding
            .means(
                "The pool's newest superblock is on another device. A start leaves this one out for good, and so it was not looked at any further",
            )
            .mended_by(mends),
        None => finding
            .means(
                "It is not believed, and not read: what it says may lack volumes, and dirty data, that are on the device. A start is refused, \
                 or leaves it out for good",
            )
            .next(
                "Name the pool's other cache devices, or the state folder with --state. Else try again later, or copy it with ddrescue, which asks \
                 for bad sectors again and again: a copy that lacks them is taken for what is older",
            ),
    })
}

/// What belongs into the slots that cannot be read on a device whose newest superblock may be one of them, where it is proved that another has the
/// pool's newest.
fn proved(pool: &Pool<'_>, n: usize, device: &Device) -> Option<(u8, Vec<Mend>)> {
    let (newest, older) = (pool.superblock(), device.may_be_older.as_ref()?);
    let member = pool.known(device).filter(|_| pool.unproven.is_none() && older.newness() <= newest.newness())?;
    let bytes = whole_slot(&Superblock { member, ..newest.clone() });
    let bad = device.slots.iter().zip(device.slot_at).filter(|(slot, _)| matches!(slot, Slot::Unreadable(_)));
    Some((member, bad.map(|(_, offset)| Mend { device: n, offset, bytes: bytes.clone() }).collect()))
}

/// All of a slot: where a part of it cannot be read, all is written over.
fn whole_slot(superblock: &Superblock) -> Vec<u8> {
    let mut bytes = superblock.encode();
    bytes.resize(SUPERBLOCK_BYTES as usize, 0);
    bytes
}

/// A device without a whole superblock.
fn blind(device: &Device, say: Tell<'_>) -> Result<(), OfflineError> {
    let foreign = device.slots.iter().all(|slot| matches!(slot, Slot::Bad(DecodeError::Foreign)));
    let (kind, what) = match foreign {
        true => ("not-a-member", "It has no superblock of a pool in any of the four places"),
        false => ("superblocks-lost", "None of its four superblocks is whole"),
    };
    let meaning = match foreign {
        true => "It never was a cache device, or both its ends were overwritten. What else is on it was not looked at",
        false => "It cannot be told which member it is, and whether it is in sync: it is not read. What it holds alone is lost",
    };
    say(Finding::new(Level::Loss, kind, what)
        .at(device.path(), None, 0, 0)
        .means(meaning)
        .next("Leave it out: with two copies the pool starts without it. If it is the wrong device, name the right one"))
}

/// All superblocks of a pool.
pub(super) fn check(pool: &Pool<'_>, say: Tell<'_>) -> Result<(), OfflineError> {
    for (n, device) in pool.media.devices.iter().enumerate() {
        let Some(own) = &device.superblock else {
            match device.may_be_older {
                Some(_) => hidden(device, proved(pool, n, device), say)?,
                None => blind(device, say)?,
            }
            continue;
        };
        match pool.election.present.contains(&own.member) {
            true => copies(pool, n, device, own, say)?,
            false => stale(pool, device, own, say)?,
        }
    }
    votes(pool, say)
}

/// The four copies on a device that counts.
fn copies(pool: &Pool<'_>, n: usize, device: &Device, own: &Superblock, say: Tell<'_>) -> Result<(), OfflineError> {
    let newest = pool.superblock();
    let expected = Superblock { member: own.member, ..newest.clone() };
    let path = device.path();
    for (slot, found) in device.slots.iter().enumerate() {
        let (at, bytes) = (device.slot_at[slot], expected.encode());
        let place = |finding: Finding| finding.at(path, Some(own.member), at, bytes.len() as u64);
        let mend = |bytes: &[u8]| vec![Mend { device: n, offset: at, bytes: bytes.to_vec() }];
        let damaged = |why: String| {
            // What is in its twin; both gone, what the pool says now, which all slots held when it was made.
            let twin = match &device.slots[slot ^ 2] {
                Slot::Whole(twin) => &**twin,
                _ => &expected,
            };
            let twin = if matches!(found, Slot::Unreadable(_)) { whole_slot(twin) } else { twin.encode() };
            let what = format!("Superblock slot {slot} is not whole ({why})");
            place(Finding::new(Level::Damage, "superblock-damaged", what))
                .means("Another copy on this device is whole, and serves. No data is lost")
                .mended_by(mend(&twin))
        };
        match found {
            Slot::Bad(error) => say(damaged(error.to_string()))?,
            Slot::Unreadable(error) => say(damaged(error.to_string()))?,
            // (The pool may have had fewer devices when it was written.)
            Slot::Whole(s) if (s.pool, s.member) != (own.pool, own.member) => {
                let what = format!("Superblock slot {slot} is of another device: member {} of pool {}", s.member, s.name);
                say(place(Finding::new(Level::Damage, "superblock-foreign", what))
                    .means(
                        "A write went to the wrong place, or the device was used in another pool before. The newest copy counts",
                    )
                    .next("Copy the device before anything else, and look for what writes to it beside Headpond"))?;
            }
            Slot::Whole(s) if slot < 2 => {
                let twin = match &device.slots[slot + 2] {
                    Slot::Whole(twin) => Some(twin.newness()),
                    _ => None,
                };
                if twin.is_some_and(|twin| twin != s.newness()) {
                    let what = format!("Superblock slots {slot} and {} differ in their sequence", slot + 2);
                    say(place(Finding::new(Level::Note, "superblock-half-written", what))
                        .means("The daemon ended between the two writes. The newer one counts; the next start writes both"))?;
                }
            }
            Slot::Whole(_) => {}
        }
    }
    if own.newness() < newest.newness() {
        let what = format!(
            "Its newest superblock is of epoch {} and sequence {}; the pool's is of {} and {}",
            own.epoch, own.sequence, newest.epoch, newest.sequence
        );
        let level = if own.sequence + 1 < newest.sequence { Level::Damage } else { Level::Note };
        say(Finding::new(level, "superblock-behind", what)
            .at(path, Some(own.member), device.slot_at[(newest.sequence % 2) as usize], SECTOR)
            .means("The newest one, on another device, counts. No data is lost")
            .next("Nothing: the next start writes all of them anew"))?;
    }
    Ok(())
}

/// A device that has left its pool.
fn stale(pool: &Pool<'_>, device: &Device, own: &Superblock, say: Tell<'_>) -> Result<(), OfflineError> {
    let newest = pool.superblock();
    let out = newest.members.get(usize::from(own.member)).is_some_and(|m| m.state == MemberState::Out);
    let what = match out {
        true => {
            format!("Cache device {} has left the pool: it is of epoch {}, the pool of {}", own.member, own.epoch, newest.epoch)
        }
        false => format!("It calls itself cache device {}, and the pool's newest superblock knows that as another", own.member),
    };
    say(Finding::new(Level::Damage, "member-stale", what)
        .at(device.path(), Some(own.member), 0, 0)
        .means("What it holds is out of date, and is never read. The pool does not need it")
        .next("Leave it out; `headpond pool destroy` frees it"))
}

/// Members that are not there, and what that means.
fn votes(pool: &Pool<'_>, say: Tell<'_>) -> Result<(), OfflineError> {
    let known = pool.named_but_unread();
    for member in pool.election.missing.iter().filter(|member| !known.contains(member)) {
        let what = format!("Cache device {member} is in sync and was not named");
        let meaning = match pool.superblock().copies {
            1 => "There is one copy of dirty data: what is on that device alone cannot be had",
            _ => "What was written to it has another copy, on the other devices. It was not checked",
        };
        say(Finding::new(Level::Damage, "member-missing", what)
            .means(meaning)
            .next("Name it as well, if it is there; a start without it takes it out of the pool for good"))?;
    }
    match &pool.unproven {
        None => Ok(()),
        Some(refusal) => {
            say(Finding::new(Level::Loss, "votes-missing", "Too few votes are there to prove that nothing newer exists")
                .means(refusal.to_string())
                .next(
                    "Name the missing devices, or the old host's state folder with --state. If they are gone for good, \
                 `headpond writeback --without-missing` puts on the disk what these hold, and says what may be lost by it",
                ))
        }
    }
}
