//! Why `writeback` does not start the engine over the devices, though they are there: it would go on without what others may have, or write over what is
//! not found.

use super::check::who_is_gone;
use super::damaged::{Damaged, DamagedVolume};
use super::media::Pool;
use super::writeback::WritebackError;

/// Why the engine is not started over the devices. `is_kept`: what it would not find is not given up.
pub(super) fn refusal(pool: &Pool<'_>, damaged: &Damaged, is_kept: bool) -> Option<WritebackError> {
    let lost = at_risk(pool, damaged);
    let why = match (&damaged.refused, damaged.volumes.iter().any(|v| v.refused)) {
        (Some(why), _) => Some(why.clone()),
        (None, true) if pool.election.missing.is_empty() => {
            Some(format!("{} in pool {}: dirty data may be on them alone.", who_is_gone(pool), damaged.pool))
        }
        (None, true) => Some(format!(
            "Too many cache devices of pool {} are missing, for what can be read on the others: dirty data may be on them alone.",
            damaged.pool
        )),
        (None, false) => may_be_on_missing(pool, damaged).filter(|_| is_kept),
    };
    let not_proven = why.map(|why| WritebackError::NotProven { why, lost });
    not_proven.or_else(|| would_be_overwritten(damaged).filter(|_| is_kept))
}

/// Why no engine is started where one that is missing may have what the others have lost: without it they go on, and it is out of date.
fn may_be_on_missing(pool: &Pool<'_>, damaged: &Damaged) -> Option<String> {
    let named = pool.named_but_unread();
    let missing: Vec<String> = pool.election.missing.iter().filter(|m| !named.contains(m)).map(ToString::to_string).collect();
    let names = names(damaged, DamagedVolume::lacks_data);
    if pool.election.missing.is_empty() || names.is_empty() {
        return None;
    }
    let pool = &damaged.pool;
    let (what, next) = match named.first() {
        Some(member) if missing.is_empty() => (
            format!(
                "The newest superblock of cache device {member} of pool {pool} cannot be read in both copies: it is left out"
            ),
            "Mend it with `headpond repair`, with the state folder of the host that served the pool as --state, or copy the device with ddrescue, and \
             name the copy",
        ),
        _ => (format!("Cache device {} of pool {pool} is missing", missing.join(", ")), "Bring it back, and name it as well"),
    };
    Some(format!(
        "{what}, and may have what these have lost of {names}: written back without it, they leave it out of date. {next}; or give up with \
         --give-up-lost what these do not have."
    ))
}

/// Why no engine is started where dirty data may be had yet that it does not find: it takes it for what nobody has acknowledged.
fn would_be_overwritten(damaged: &Damaged) -> Option<WritebackError> {
    let volumes = names(damaged, |v| v.would_be_overwritten);
    (!volumes.is_empty()).then_some(WritebackError::NotFound { volumes })
}

/// The names of some of the volumes, as they are listed in a sentence.
fn names(damaged: &Damaged, which: fn(&DamagedVolume) -> bool) -> String {
    let names: Vec<&str> = damaged.volumes.iter().filter(|v| which(v)).map(|v| v.name.as_str()).collect();
    names.join(", ")
}

/// What the owner risks, in words.
fn at_risk(pool: &Pool<'_>, damaged: &Damaged) -> String {
    let is_unproven = pool.unproven.is_some();
    let whom = if pool.election.missing.is_empty() { "devices that have left" } else { "the missing devices" };
    let names = names(damaged, if is_unproven { |_| true } else { |v| v.refused || v.lacks_data() });
    let names = if names.is_empty() { "no volume".into() } else { names };
    match is_unproven {
        true => format!(
            "if the pool went on without these devices, all that was written to {names} since; and where the disk got newer data \
             then, older data is written over it."
        ),
        false => format!(
            "dirty data of {names} that was on {whom} alone, or cannot be read; the disk, where there is one, keeps older data there."
        ),
    }
}
