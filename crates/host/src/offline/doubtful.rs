//! Dirty data of which it is known that it was written, and that a start does not find: it cannot tell it from a write that
//! was cut off before it was acknowledged, and goes on with what was there before. Far from the end of its log it was
//! acknowledged, most likely; unless something later covers it, a range reads as older data than it should.
//!
//! Where a record's header is lost nobody knows what it held: anything of the volume that may be dirty.

use std::collections::{BTreeSet, HashMap};

use headpond_engine::io::BLOCK_SECTORS;
use headpond_engine::map::mask;
use headpond_format::{Class, Entry, EntryKind, Place};

use super::check::table_of;
use super::lost::{GENERATIONS, Log, without_record};
use super::media::Pool;
use super::records::{Seen, Whole, walk};
use super::rehearsal::Rehearsal;
use super::segments::Found;
use super::slots::{self, NOBODY};
use super::{OfflineError, Watch, told};

/// What a start does not find.
#[derive(Default)]
pub(super) struct Doubts {
    /// Runs of sectors of each volume's grid: volume, first sector, how many; in order of address.
    pub runs: Vec<(u16, u64, u64)>,
    /// The volumes whose logs have lost records that nobody knows; [`NOBODY`]: it is not known whose.
    lacking: BTreeSet<u16>,
    /// Segments that a start does not know of, and whose headers were written.
    pub headless: Vec<Found>,
}

impl Doubts {
    /// Whether the log of a volume has lost records of which nothing is known.
    pub fn is_lacking(&self, volume: u16) -> bool {
        self.lacking.contains(&volume) || self.lacking.contains(&NOBODY)
    }
}

/// The header of a segment stands before its records as one of them, as far as it matters what was written after it.
const HEADER: Seen = Seen::Torn(0);

/// Sectors that were dirty, and that a start does not find.
struct Doubt {
    block: u64,
    version: u64,
    sectors: u8,
}

/// Reads all of the log that a start would replay.
pub(super) fn list(pool: &Pool<'_>, rehearsal: &Rehearsal, watch: Watch<'_>) -> Result<Doubts, OfflineError> {
    let table = table_of(pool, watch)?;
    let slots = slots::all(pool, &table, watch)?;
    let replayed = slots.found.iter().filter(|f| f.header.class == Class::Mirrored && f.replay_from != u32::MAX);
    let mut found: Vec<(&Found, bool)> = replayed.map(|f| (f, true)).chain(slots.headless.iter().map(|f| (f, false))).collect();
    found.sort_by_key(|(f, _)| std::cmp::Reverse(f.header.generation));
    let mut search = Search::default();
    for (n, (f, has_header)) in found.iter().enumerate() {
        told(watch, "looking for doubtful data", n as u64, found.len() as u64)?;
        match has_header {
            true => search.segment(pool, f),
            false => search.headless(pool, f),
        }
    }
    Ok(search.end(pool, rehearsal))
}

/// What was found so far, the newest segments first.
#[derive(Default)]
struct Search {
    logs: HashMap<(u16, u64), Log>,
    doubts: HashMap<(u16, u64), Vec<Doubt>>,
    marks: Vec<(u16, Entry)>,
    lacking: BTreeSet<u16>,
    headless: Vec<Found>,
}

impl Search {
    /// A segment that a start replays: what no copy has is in doubt.
    fn segment(&mut self, pool: &Pool<'_>, f: &Found) {
        let volume = f.header.volume;
        let seen = self.read(pool, f);
        let followed = self.log(f).is_followed(&seen, pool.superblock().checkpoint.version);
        for (seen, is_followed) in seen.iter().zip(followed) {
            match seen {
                Seen::Record(whole) if is_followed && whole.record.place.offset >= f.replay_from => {
                    lost(whole).for_each(|e| self.doubt(volume, e));
                }
                Seen::Record(_) => {}
                _ if is_followed && without_record(seen, f, pool.superblock().unit).is_some() => {
                    self.lacking.insert(volume);
                }
                _ => {}
            }
        }
    }

    /// One that a start does not know of: if its header was written, all that it holds is in doubt.
    fn headless(&mut self, pool: &Pool<'_>, f: &Found) {
        let volume = f.header.volume;
        let mut seen = self.read(pool, f);
        seen.insert(0, HEADER);
        if !self.log(f).is_followed(&seen, pool.superblock().checkpoint.version)[0] {
            return;
        }
        self.headless.push(f.clone());
        if volume == NOBODY {
            self.lacking.insert(volume);
        }
        let records = seen.iter().filter_map(|seen| if let Seen::Record(whole) = seen { Some(&whole.record) } else { None });
        let is_dirty = |e: &&Entry| matches!(e.kind, EntryKind::Dirty | EntryKind::Zeroes);
        records.flat_map(|record| &record.entries).filter(is_dirty).for_each(|e| self.doubt(volume, e));
    }

    /// What a segment holds. Its marks are noted.
    fn read(&mut self, pool: &Pool<'_>, f: &Found) -> Vec<Seen> {
        let s = pool.superblock();
        let copy = |p: Place| pool.layout(p.member).and_then(|l| pool.read(p.member, l.slot(p.slot), l.segment_bytes));
        let copies: Vec<_> = f.copies().map(copy).collect();
        let seen = walk(s.key, s.unit, &f.header, &copies);
        let records = seen.iter().filter_map(|seen| if let Seen::Record(whole) = seen { Some(&whole.record) } else { None });
        self.marks.extend(records.flat_map(|record| &record.entries).filter(|e| is_mark(e)).map(|e| (f.header.volume, *e)));
        seen
    }

    fn log(&mut self, f: &Found) -> &mut Log {
        self.logs.entry((f.header.volume, f.header.generation / GENERATIONS)).or_default()
    }

    fn doubt(&mut self, volume: u16, e: &Entry) {
        let doubt = Doubt { block: e.block, version: e.version, sectors: mask(e.first, e.sectors) };
        self.doubts.entry((volume, e.block)).or_default().push(doubt);
    }

    /// What is left of it when all has been read.
    fn end(self, pool: &Pool<'_>, rehearsal: &Rehearsal) -> Doubts {
        let Search { mut doubts, marks, lacking, headless, .. } = self;
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
        Doubts { runs, lacking, headless }
    }
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

/// Takes from what is in doubt all that something newer covers, or that is there itself: what is moved keeps its version.
fn settle(pool: &Pool<'_>, rehearsal: &Rehearsal, doubts: &mut HashMap<(u16, u64), Vec<Doubt>>) {
    if doubts.is_empty() {
        return;
    }
    for volume in &pool.superblock().volumes {
        rehearsal.each(volume.number, |live| {
            for d in doubts.get_mut(&(volume.number, live.block)).into_iter().flatten() {
                if live.piece.version() >= d.version {
                    d.sectors &= !live.piece.live;
                }
            }
        });
    }
}
