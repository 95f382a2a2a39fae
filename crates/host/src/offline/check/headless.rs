//! Segments of which a start knows nothing, as their headers are lost: what they hold was written whole.

use headpond_format::Place;

use super::Tell;
use crate::offline::OfflineError;
use crate::offline::finding::{Finding, Level};
use crate::offline::media::Pool;
use crate::offline::segments::Found;

/// Tells each of them, on each of its copies.
pub(super) fn check(pool: &Pool<'_>, headless: &[Found], say: Tell<'_>) -> Result<(), OfflineError> {
    headless.iter().flat_map(|f| f.copies().map(move |place| (f, place))).try_for_each(|(f, place)| one(pool, f, place, say))
}

fn one(pool: &Pool<'_>, f: &Found, place: Place, say: Tell<'_>) -> Result<(), OfflineError> {
    let s = pool.superblock();
    let Some((device, layout)) = pool.device(place.member).zip(pool.layout(place.member)) else { return Ok(()) };
    let segment = f.header.segment;
    let what =
        format!("The header of segment {segment}, in slot {}, is not whole, on any copy, and nothing else names it", place.slot);
    let mut finding = Finding::new(Level::Loss, "segment-lost", what)
        .at(device.path(), Some(place.member), layout.slot(place.slot), u64::from(s.unit))
        .means(
            "It was opened after the last checkpoint, and its records were acknowledged, most likely. A start does not know of it, \
             and reads what was there before",
        )
        .next(
            "`headpond list-damaged` names the ranges. Copy the devices before the pool is started: its slot is written over then. \
             Bring missing cache devices back; else restore these ranges from a backup",
        );
    finding.volume = s.volumes.iter().find(|v| v.number == f.header.volume).map(|v| v.name.clone());
    say(finding)
}
