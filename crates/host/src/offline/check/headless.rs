//! Segments of which a start knows nothing, as their headers are lost or cannot be read: what they hold was written whole.
//!
//! Their records tell what such a header was, and it is not put back all the same: a daemon that was here since has gone on without
//! them, and what they hold would come back over what its clients have read and written.

use headpond_format::Place;

use super::Tell;
use crate::offline::OfflineError;
use crate::offline::doubtful::Doubts;
use crate::offline::finding::{Finding, Level};
use crate::offline::media::Pool;
use crate::offline::segments::Found;

/// Tells each of them, on each of its copies.
pub(super) fn check(pool: &Pool<'_>, doubts: &Doubts, say: Tell<'_>) -> Result<(), OfflineError> {
    let copies = doubts.headless.iter().flat_map(|f| f.copies().map(move |place| (f, place)));
    copies.into_iter().try_for_each(|(f, place)| one(pool, f, place, say))?;
    doubts.blind.iter().try_for_each(|place| blind(pool, *place, say))
}

fn blind(pool: &Pool<'_>, place: Place, say: Tell<'_>) -> Result<(), OfflineError> {
    let Some((device, layout)) = pool.device(place.member).zip(pool.layout(place.member)) else { return Ok(()) };
    let bytes = 2 * u64::from(pool.superblock().unit);
    let what =
        format!("{bytes} bytes at the beginning of slot {} cannot be read, and nothing else tells what it holds", place.slot);
    say(Finding::new(Level::Loss, "slot-unreadable", what)
        .at(device.path(), Some(place.member), layout.slot(place.slot), bytes)
        .means(
            "It may be free. If a segment was opened there after the last checkpoint, a start does not know of it, and reads what was \
             there before",
        )
        .next(
            "Bring back any cache device that is missing. Else copy the device with ddrescue before the pool is started, which writes over it, \
             and check the copy",
        ))
}

/// Whether a device that is there cannot read the header of a segment: what can be read is lost.
fn cannot_read_header(pool: &Pool<'_>, place: Place) -> bool {
    let there = pool.device(place.member).zip(pool.layout(place.member));
    there.is_some_and(|(device, layout)| device.read(layout.slot(place.slot), u64::from(pool.superblock().unit)).is_err())
}

fn one(pool: &Pool<'_>, f: &Found, place: Place, say: Tell<'_>) -> Result<(), OfflineError> {
    let s = pool.superblock();
    let Some((device, layout)) = pool.device(place.member).zip(pool.layout(place.member)) else { return Ok(()) };
    let segment = f.header.segment;
    let what =
        format!("The header of segment {segment}, in slot {}, is not whole, on any copy, and nothing else names it", place.slot);
    let is_unreadable = f.copies().any(|copy| cannot_read_header(pool, copy));
    let next = match is_unreadable {
        true => {
            "`headpond list-damaged` names the ranges. Bring missing cache devices back; else copy the device with ddrescue before the pool is \
             started, which writes over its slot, and check the copy; else restore these ranges from a backup"
        }
        false => {
            "`headpond list-damaged` names the ranges. Bring back any cache device that is missing before the pool is started, as that may have \
             the header; without one they are lost: restore these ranges from a backup"
        }
    };
    let mut finding = Finding::new(Level::Loss, "segment-lost", what)
        .at(device.path(), Some(place.member), layout.slot(place.slot), u64::from(s.unit))
        .means(
            "It was opened after the last checkpoint, and its records were acknowledged, most likely. A start does not know of it, \
             and reads what was there before. Only if the power failed before a client had flushed them were they promised to nobody",
        )
        .next(next);
    finding.volume = s.volumes.iter().find(|v| v.number == f.header.volume).map(|v| v.name.clone());
    say(finding)
}
