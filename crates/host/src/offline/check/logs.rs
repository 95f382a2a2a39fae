//! Segments and their records: every header, every checksum, on every copy.

use std::collections::HashMap;

use headpond_engine::io::SECTOR;
use headpond_format::{Class, GENERATIONS};

use super::Tell;
use super::records_of::Judge;
use crate::offline::copies::{self, Copy};
use crate::offline::finding::{Finding, Level, Mend};
use crate::offline::lost::Log;
use crate::offline::media::Pool;
use crate::offline::records::walk;
use crate::offline::rehearsal::{Live, Rehearsal};
use crate::offline::segments::Found;
use crate::offline::slots::Slots;
use crate::offline::{OfflineError, Watch, told};

/// Live pieces that are held in memory at a time: the segments are read in bands of so many.
const BAND: u64 = 1 << 20;

/// How much was read.
#[derive(Default)]
pub(super) struct Counts {
    pub segments: u64,
    pub records: u64,
    pub bytes: u64,
}

/// All segments that a start would take up.
pub(super) fn check(
    pool: &Pool<'_>,
    slots: &Slots,
    rehearsal: Option<&Rehearsal>,
    say: Tell<'_>,
    watch: Watch<'_>,
) -> Result<Counts, OfflineError> {
    let mut found: Vec<&Found> = slots.found.iter().collect();
    // The newest first: what a dead daemon left unfinished is at the end of its logs.
    found.sort_by_key(|f| std::cmp::Reverse(f.header.generation));
    let mut pieces: HashMap<u32, u64> = HashMap::new();
    if let Some(rehearsal) = rehearsal {
        rehearsal.each_segment(|n, live| _ = pieces.insert(n, live.into()));
    }
    let total: u64 = found.iter().map(|f| f.copies().count() as u64 * segment_bytes(pool)).sum();
    let mut counts = Counts::default();
    let mut logs: HashMap<(u16, Class, u64), Log> = HashMap::new();
    let mut rest = &found[..];
    while !rest.is_empty() {
        let mut held = 0;
        let fits = |f: &&&Found| {
            held += pieces.get(&f.header.segment).copied().unwrap_or(0);
            held <= BAND
        };
        let band = rest.iter().take_while(fits).count().max(1);
        let mut live = live_in(pool, rehearsal, &rest[..band]);
        for f in &rest[..band] {
            told(watch, "reading segments", counts.bytes, total)?;
            let log = logs.entry((f.header.volume, f.header.class, f.header.generation / GENERATIONS)).or_default();
            let live = live.remove(&f.header.segment).unwrap_or_default();
            one(pool, f, &live, rehearsal.is_some(), log, &mut counts, say)?;
        }
        rest = &rest[band..];
    }
    Ok(counts)
}

fn segment_bytes(pool: &Pool<'_>) -> u64 {
    pool.superblock().members.first().map_or(0, |m| m.layout.segment_bytes)
}

/// The live pieces of some segments.
fn live_in(pool: &Pool<'_>, rehearsal: Option<&Rehearsal>, band: &[&Found]) -> HashMap<u32, Vec<Live>> {
    let mut live: HashMap<u32, Vec<Live>> = band.iter().map(|f| (f.header.segment, Vec::new())).collect();
    for volume in rehearsal.iter().flat_map(|_| &pool.superblock().volumes) {
        if let Some(rehearsal) = rehearsal {
            rehearsal.each(volume.number, |piece| {
                if let Some(list) = live.get_mut(&piece.piece.segment) {
                    list.push(piece);
                }
            });
        }
    }
    live
}

/// A segment's header as a copy has it.
fn as_written(pool: &Pool<'_>, f: &Found) -> Option<Vec<u8>> {
    let place = f.copies().find(|copy| f.written && !f.lacking.contains(copy))?;
    let read = pool.read(place.member, pool.layout(place.member)?.slot(place.slot), u64::from(pool.superblock().unit))?;
    Some(read.as_slice().to_vec())
}

/// One segment, on all its copies.
fn one(
    pool: &Pool<'_>,
    f: &Found,
    live: &[Live],
    is_rehearsed: bool,
    log: &mut Log,
    counts: &mut Counts,
    say: Tell<'_>,
) -> Result<(), OfflineError> {
    let s = pool.superblock();
    let read = copies::of(pool, f);
    for copy in &read {
        unreadable(pool, copy, say)?;
        counts.bytes += segment_bytes(pool);
    }
    counts.segments += 1;
    let copies = copies::data(&read);
    let seen = walk(s.key, s.unit, &f.header, &copies);
    let judge = Judge { pool, found: f, read: &read, copies: &copies, live, is_rehearsed };
    // Clean data is in turn in several segments, and what comes back to the cache is old: only what follows in the same one tells when.
    let since = if f.header.class == Class::Single { u64::MAX } else { s.checkpoint.version };
    let followed = log.is_followed(f, &seen, since);
    counts.records += judge.all(&seen, &followed, say)?;
    headers(pool, f, say)
}

/// Tells on which copies the segment's header is not. A repair puts it there after the records: with it the copy counts as a whole one, of which
/// a start completes nothing where the segment was durable.
fn headers(pool: &Pool<'_>, f: &Found, say: Tell<'_>) -> Result<(), OfflineError> {
    let s = pool.superblock();
    for lacking in &f.lacking {
        let Some((device, at)) = pool.device(lacking.member).zip(pool.layout(lacking.member).map(|l| l.slot(lacking.slot)))
        else {
            continue;
        };
        // As the other copy has it; without one, as the checkpoint tells, which knows the copies only if all members are there.
        let header = as_written(pool, f).or_else(|| {
            let is_known = pool.election.missing.is_empty();
            is_known.then(|| f.header.encode(s.key, s.unit as usize))
        });
        let mend = header.zip(pool.index(lacking.member)).map(|(bytes, device)| Mend { device, offset: at, bytes });
        let what = format!("The header of segment {}, in slot {}, is not whole", f.header.segment, lacking.slot);
        say(Finding::new(Level::Damage, "segment-header-damaged", what)
            .at(device.path(), Some(lacking.member), at, u64::from(s.unit))
            .means("The checkpoint or the other copy names the segment all the same. No data is lost")
            .mended_by(mend.into_iter().collect()))?;
    }
    Ok(())
}

/// Tells what could not be read of a copy.
fn unreadable(pool: &Pool<'_>, copy: &Copy, say: Tell<'_>) -> Result<(), OfflineError> {
    let Some((first, device)) = copy.unreadable.first().zip(pool.device(copy.place.member)) else { return Ok(()) };
    let bad = copy.unreadable.iter().map(|bad| u64::from(bad.end - bad.start)).sum::<u64>() * SECTOR;
    say(Finding::new(Level::Damage, "unreadable", format!("{bad} bytes of segment slot {} cannot be read", copy.place.slot))
        .at(device.path(), Some(copy.place.member), copy.at + u64::from(first.start) * SECTOR, bad)
        .means("The device reports an error. What is lost by it, if anything, is told apart")
        .next("Look at the kernel's log and the device's SMART data; copy the device with ddrescue, then replace it"))
}
