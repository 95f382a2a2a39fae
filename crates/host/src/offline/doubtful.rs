//! Dirty data of which a start knows that it was written, and of which no copy is whole: it cannot tell it from a write that
//! was cut off before it was acknowledged, and goes on with what was there before. Far from the end of its log it was
//! acknowledged, most likely; unless something later covers it, a range reads as older data than it should.

use std::collections::HashMap;

use headpond_engine::io::BLOCK_SECTORS;
use headpond_engine::map::mask;
use headpond_format::{Class, Entry, EntryKind};

use super::check::{all_segments, table_of};
use super::media::Pool;
use super::records::{Seen, Whole, walk};
use super::rehearsal::Rehearsal;
use super::{OfflineError, Watch, told};

/// A daemon has a few records in flight on each log when it dies; so many at the end of one may be unfinished. What is
/// damaged further back was written whole.
pub(super) const UNFINISHED: u32 = 16;

/// Each life of a daemon opens its segments under generations from a multiple of this on, and leaves ends of its own.
pub(super) const GENERATIONS: u64 = 1 << 24;

/// Sectors that were dirty, and that no copy has.
struct Doubt {
    block: u64,
    version: u64,
    sectors: u8,
}

/// The runs of sectors of each volume's grid that are in doubt: volume, first sector, how many; in order of address.
pub(super) fn list(pool: &Pool<'_>, rehearsal: &Rehearsal, watch: Watch<'_>) -> Result<Vec<(u16, u64, u64)>, OfflineError> {
    let table = table_of(pool, watch)?;
    let mut found = all_segments(pool, &table, watch)?;
    found.retain(|f| f.header.class == Class::Mirrored && f.replay_from != u32::MAX);
    found.sort_by_key(|f| std::cmp::Reverse(f.header.generation));
    let s = pool.superblock();
    let mut whole_behind: HashMap<(u16, u64), u32> = HashMap::new();
    let mut doubts: HashMap<(u16, u64), Vec<Doubt>> = HashMap::new();
    let mut marks: Vec<(u16, Entry)> = Vec::new();
    for (n, f) in found.iter().enumerate() {
        told(watch, "looking for doubtful data", n as u64, found.len() as u64)?;
        let copy =
            |p: headpond_format::Place| pool.layout(p.member).and_then(|l| pool.read(p.member, l.slot(p.slot), l.segment_bytes));
        let copies: Vec<_> = f.copies().map(copy).collect();
        let volume = f.header.volume;
        let behind = whole_behind.entry((volume, f.header.generation / GENERATIONS)).or_default();
        for seen in walk(s.key, s.unit, &f.header, &copies).iter().rev() {
            let Seen::Record(whole) = seen else { continue };
            marks.extend(whole.record.entries.iter().filter(|e| is_mark(e)).map(|e| (volume, *e)));
            if *behind >= UNFINISHED && whole.record.place.offset >= f.replay_from {
                for e in lost(whole) {
                    let doubt = Doubt { block: e.block, version: e.version, sectors: mask(e.first, e.sectors) };
                    doubts.entry((volume, e.block)).or_default().push(doubt);
                }
            }
            *behind += u32::from(lost(whole).next().is_none());
        }
    }
    for ((volume, _), list) in &mut doubts {
        list.retain(|d| !marks.iter().any(|(of, e)| of == volume && covers(e, d)));
    }
    settle(pool, rehearsal, &mut doubts);
    let mut runs: Vec<(u16, u64, u64)> = Vec::new();
    for ((volume, block), list) in &doubts {
        let sectors = list.iter().fold(0, |sectors, d| sectors | d.sectors);
        let set = (0..8).filter(|n| sectors >> n & 1 == 1);
        runs.extend(set.map(|n| (*volume, block * BLOCK_SECTORS + n, 1)));
    }
    runs.sort_unstable();
    Ok(runs)
}

fn is_mark(e: &Entry) -> bool {
    matches!(e.kind, EntryKind::MarkClean | EntryKind::Forget)
}

/// Dirty data of a record that no copy has.
fn lost(whole: &Whole) -> impl Iterator<Item = &Entry> {
    whole.data.iter().filter(|(e, good)| e.kind == EntryKind::Dirty && !good.contains(&true)).map(|(e, _)| e)
}

/// Whether the disk is known to have had it, or something newer.
fn covers(mark: &Entry, d: &Doubt) -> bool {
    let within = (mark.block..mark.block.saturating_add(u64::from(mark.count))).contains(&d.block);
    within
        && mark.version >= d.version
        && (mark.kind == EntryKind::MarkClean || mask(mark.first, mark.sectors) & d.sectors == d.sectors)
}

/// Takes from what is in doubt all that something newer covers.
fn settle(pool: &Pool<'_>, rehearsal: &Rehearsal, doubts: &mut HashMap<(u16, u64), Vec<Doubt>>) {
    if doubts.is_empty() {
        return;
    }
    for volume in &pool.superblock().volumes {
        rehearsal.each(volume.number, |live| {
            for d in doubts.get_mut(&(volume.number, live.block)).into_iter().flatten() {
                if live.piece.version() > d.version {
                    d.sectors &= !live.piece.live;
                }
            }
        });
    }
}
