//! Dirty data of which it is known that it was written, and that a start does not find: it cannot tell it from a write that
//! was cut off before it was acknowledged, and goes on with what was there before. Far from the end of its log it was
//! acknowledged, most likely; unless something later covers it, a range reads as older data than it should.
//!
//! Where a record's header is lost nobody knows what it held: anything of the volume that may be dirty.

use std::collections::{BTreeSet, HashMap};

use headpond_engine::io::{BLOCK_SECTORS, SECTOR};
use headpond_engine::map::mask;
use headpond_format::{Class, Entry, EntryKind, GENERATIONS, Place};

use super::copies::{self, Copy};
use super::damaged::suspect;
use super::lost::{Log, gaps};
use super::media::Pool;
use super::records::{Seen, Whole, walk};
use super::rehearsal::Rehearsal;
use super::segments::Found;
use super::slots::{NOBODY, Slots};
use super::{OfflineError, Watch, told};

/// What a start does not find.
pub(super) struct Doubts {
    /// Runs of sectors of each volume's grid: volume, first sector, how many; in order of address.
    pub runs: Vec<(u16, u64, u64)>,
    /// The volumes whose logs have lost records that nobody knows; [`NOBODY`]: it is not known whose.
    lacking: BTreeSet<u16>,
    /// Volumes of which some of that may be had yet; [`NOBODY`]: it is not known whose.
    recoverable: BTreeSet<u16>,
    /// Segments that a start does not know of, and whose headers were written.
    pub headless: Vec<Found>,
    /// Slots of which nothing can be read, and that may hold a segment of any volume.
    pub blind: Vec<Place>,
}

impl Doubts {
    /// Whether the log of a volume has lost records of which nothing is known.
    pub fn is_lacking(&self, volume: u16) -> bool {
        self.lacking.contains(&volume) || self.lacking.contains(&NOBODY)
    }

    /// Whether some of that is in sectors that a device cannot read, and others perhaps can: a start that steps over it writes over it.
    pub fn is_recoverable(&self, volume: u16) -> bool {
        self.recoverable.contains(&volume) || self.recoverable.contains(&NOBODY)
    }
}

/// The header of a segment stands before its records as one of them, as far as it matters what was written after it.
const HEADER: Seen = Seen::Torn(0);

/// Sectors that were dirty, and that a start does not find.
struct Doubt {
    block: u64,
    version: u64,
    sectors: u8,
    /// A device cannot read it, or the header of its segment, and others perhaps can.
    is_recoverable: bool,
}

/// Reads all of the log that a start would replay.
pub(super) fn list(pool: &Pool<'_>, slots: &Slots, rehearsal: &Rehearsal, watch: Watch<'_>) -> Result<Doubts, OfflineError> {
    let may_be_dirty = pool.superblock().volumes.iter().any(|volume| !suspect(pool, volume).is_empty());
    let blind = if may_be_dirty { slots.blind.clone() } else { Vec::new() };
    let replayed = slots.found.iter().filter(|f| f.header.class == Class::Mirrored && f.replay_from != u32::MAX);
    let mut found: Vec<(&Found, bool)> = replayed.map(|f| (f, true)).chain(slots.headless.iter().map(|f| (f, false))).collect();
    found.sort_by_key(|(f, _)| std::cmp::Reverse(f.header.generation));
    let mut search = Search::default();
    if !blind.is_empty() {
        search.lack(NOBODY, true);
    }
    for (n, (f, has_header)) in found.iter().enumerate() {
        told(watch, "looking for doubtful data", n as u64, found.len() as u64)?;
        match has_header {
            true => search.segment(pool, f),
            false => search.headless(pool, f),
        }
    }
    Ok(Doubts { blind, ..search.end(pool, rehearsal) })
}

/// What was found so far, the newest segments first.
#[derive(Default)]
struct Search {
    logs: HashMap<(u16, u64), Log>,
    doubts: HashMap<(u16, u64), Vec<Doubt>>,
    marks: Vec<(u16, Entry)>,
    lacking: BTreeSet<u16>,
    recoverable: BTreeSet<u16>,
    headless: Vec<Found>,
}

impl Search {
    /// A segment that a start replays: what no copy has is in doubt.
    fn segment(&mut self, pool: &Pool<'_>, f: &Found) {
        let (s, volume) = (pool.superblock(), f.header.volume);
        let (seen, copies) = self.read(pool, f);
        let followed = self.log(f).is_followed(f, &seen, s.checkpoint.version);
        for gap in gaps(f, &seen, &followed, &copies, s.unit).iter().filter(|gap| gap.is_lost) {
            self.lack(volume, gap.is_unreadable);
        }
        for (whole, is_followed) in records(&seen, &followed).filter(|(whole, _)| whole.record.place.offset >= f.replay_from) {
            for e in lost(whole) {
                let sectors = e.offset..e.offset + u32::from(e.sectors);
                // No daemon that died leaves what cannot be read.
                if is_followed || copies::is_on_none(&copies, &sectors) {
                    self.doubt(volume, e, copies.iter().any(|copy| copy.cannot_read(&sectors)));
                }
            }
        }
    }

    /// One that a start does not know of: if its header was written, all that it holds is in doubt.
    fn headless(&mut self, pool: &Pool<'_>, f: &Found) {
        let (s, volume) = (pool.superblock(), f.header.volume);
        let (mut seen, copies) = self.read(pool, f);
        seen.insert(0, HEADER);
        let followed = self.log(f).is_followed(f, &seen, s.checkpoint.version);
        let header = 0..s.unit / SECTOR as u32;
        if !followed[0] && !copies::is_on_none(&copies, &header) {
            return;
        }
        self.headless.push(f.clone());
        // One that reads well, and is none, nobody has any more.
        let is_unreadable = copies.iter().any(|copy| copy.cannot_read(&header));
        if volume == NOBODY {
            self.lack(volume, is_unreadable);
        }
        let is_dirty = |e: &&Entry| matches!(e.kind, EntryKind::Dirty | EntryKind::Zeroes);
        for (whole, _) in records(&seen, &followed) {
            whole.record.entries.iter().filter(is_dirty).for_each(|e| self.doubt(volume, e, is_unreadable));
        }
    }

    /// What a segment holds, on which copies. Its marks are noted.
    fn read(&mut self, pool: &Pool<'_>, f: &Found) -> (Vec<Seen>, Vec<Copy>) {
        let s = pool.superblock();
        let copies = copies::of(pool, f);
        let seen = walk(s.key, s.unit, &f.header, &copies::data(&copies));
        for seen in &seen {
            if let Seen::Record(whole) = seen {
                self.marks.extend(whole.record.entries.iter().filter(|e| is_mark(e)).map(|e| (f.header.volume, *e)));
            }
        }
        (seen, copies)
    }

    fn log(&mut self, f: &Found) -> &mut Log {
        self.logs.entry((f.header.volume, f.header.generation / GENERATIONS)).or_default()
    }

    /// Records of a volume are lost.
    fn lack(&mut self, volume: u16, is_recoverable: bool) {
        self.lacking.insert(volume);
        if is_recoverable {
            self.recoverable.insert(volume);
        }
    }

    fn doubt(&mut self, volume: u16, e: &Entry, is_recoverable: bool) {
        let doubt = Doubt { block: e.block, version: e.version, sectors: mask(e.first, e.sectors), is_recoverable };
        self.doubts.entry((volume, e.block)).or_default().push(doubt);
    }

    /// What is left of it when all has been read.
    fn end(self, pool: &Pool<'_>, rehearsal: &Rehearsal) -> Doubts {
        let Search { mut doubts, marks, lacking, mut recoverable, headless, .. } = self;
        for ((volume, _), list) in &mut doubts {
            list.retain(|d| !marks.iter().any(|(of, e)| of == volume && covers(e, d)));
        }
        settle(pool, rehearsal, &mut doubts);
        let mut runs: Vec<(u16, u64, u64)> = Vec::new();
        for ((volume, block), list) in &doubts {
            let sectors = list.iter().fold(0, |sectors, d| sectors | d.sectors);
            if list.iter().any(|d| d.is_recoverable && d.sectors != 0) {
                recoverable.insert(*volume);
            }
            let set = (0..8).filter(|n| sectors >> n & 1 == 1);
            runs.extend(set.map(|n| (*volume, block * BLOCK_SECTORS + n, 1)));
        }
        runs.sort_unstable();
        Doubts { runs, lacking, recoverable, headless, blind: Vec::new() }
    }
}

fn records<'a>(seen: &'a [Seen], followed: &'a [bool]) -> impl Iterator<Item = (&'a Whole, bool)> {
    seen.iter().zip(followed).filter_map(|(seen, followed)| match seen {
        Seen::Record(whole) => Some((whole, *followed)),
        _ => None,
    })
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
