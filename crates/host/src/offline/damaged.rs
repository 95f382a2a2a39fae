//! What of a volume cannot be read any more: dirty data without a good copy, to the byte.

use std::collections::BTreeMap;
use std::ops::Range;

use headpond_engine::io::{BLOCK_SECTORS, Buf, SECTOR};
use headpond_format::{INTENT_PAGE_BYTES, IntentPage, REGION_SECTORS, REGIONS_PER_PAGE, VolumeEntry, grid_shift};
use serde::Serialize;

use super::check::table_of;
use super::doubtful::{self, Doubts};
use super::media::Pool;
use super::rehearsal::{Live, Rehearsal};
use super::{OfflineError, Watch, slots, told};
use crate::backing::HasDisk;
use crate::buf::HostBuf;
use crate::state::hex;

/// Dirty pieces whose reads are sorted and merged together.
const BATCH: usize = 1024;
/// The longest merged read, in sectors: 1 MiB.
const LONGEST: u64 = 2048;

/// What cannot be read of a pool's volumes.
#[derive(Debug, Serialize)]
pub struct Damaged {
    /// The pool's name.
    pub pool: String,
    /// Its identity.
    pub id: String,
    /// Its epoch.
    pub epoch: u64,
    /// Why a start with these devices is refused, if it is.
    pub refused: Option<String>,
    /// The volumes, by number.
    pub volumes: Vec<DamagedVolume>,
}

/// What cannot be read of one volume.
#[derive(Debug, Serialize)]
pub struct DamagedVolume {
    /// Its name.
    pub name: String,
    /// Its size in bytes.
    pub bytes: u64,
    /// It has no backing device: what it holds is on the cache devices alone, and stays there.
    pub without_disk: bool,
    /// Data that its disk does not have yet, or that has no disk, and that a good copy holds, in bytes.
    pub dirty_bytes: u64,
    /// The whole volume is refused: dirty data of it may be missing of which these devices do not know.
    pub refused: bool,
    /// A flush of its disk failed over writes that were acknowledged, or the last copies of something were lost, and no client was told: nobody knows
    /// where.
    pub untold: bool,
    /// Where its data is lost: byte ranges of the volume, in order. Reading them fails; all else can be read.
    pub damaged: Vec<Extent>,
    /// Where a record that was most likely acknowledged has lost its data on all copies, and nothing later covers it: a start
    /// takes it for one that was cut off, and reads older data there.
    pub doubtful: Vec<Extent>,
    /// Whether anything of it is clean in the cache, and can be compared with its disk.
    #[serde(skip)]
    pub is_comparable: bool,
    /// Where there may be dirty data of which nothing is known: of a refused volume, or of one whose log has lost records that tell
    /// what they held. Outside, its disk is right.
    pub suspect: Vec<Extent>,
    /// Some of what is lost, doubtful or suspect may be had yet: it is in sectors that a device cannot read, and others perhaps can.
    pub recoverable: bool,
    /// The same of what is lost alone, of which a start knows.
    #[serde(skip)]
    pub is_lost_recoverable: bool,
    /// The same of what is doubtful or suspect: a start writes over it.
    #[serde(skip)]
    pub would_be_overwritten: bool,
}

/// A run of bytes of a volume.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct Extent {
    /// Where it begins, in bytes.
    pub offset: u64,
    /// How long it is, in bytes.
    pub bytes: u64,
}

impl Damaged {
    fn of(pool: &Pool<'_>, refused: Option<String>, volumes: Vec<DamagedVolume>) -> Damaged {
        let s = pool.superblock();
        Damaged { pool: s.name.clone(), id: hex(&s.pool), epoch: s.epoch, refused, volumes }
    }

    /// Whether all can be read.
    pub fn is_none(&self) -> bool {
        self.refused.is_none() && self.volumes.iter().all(|v| !v.refused && !v.untold && !v.lacks_data())
    }
}

impl DamagedVolume {
    /// Whether some of its dirty data is lost, or is not found, or may not be.
    pub fn lacks_data(&self) -> bool {
        [&self.damaged, &self.doubtful, &self.suspect].iter().any(|list| !list.is_empty())
    }

    /// With what was found to be in doubt of it before.
    pub(super) fn in_doubt_as(self, known: &DamagedVolume) -> DamagedVolume {
        let (doubtful, suspect, would_be_overwritten) =
            (known.doubtful.clone(), known.suspect.clone(), known.would_be_overwritten);
        let recoverable = self.recoverable || would_be_overwritten;
        DamagedVolume { doubtful, suspect, recoverable, would_be_overwritten, ..self }
    }

    /// With what is in doubt of it.
    pub(super) fn with(self, pool: &Pool<'_>, volume: &VolumeEntry, doubts: &Doubts) -> DamagedVolume {
        let suspect = match doubts.is_lacking(volume.number) && !self.refused {
            true => suspect(pool, volume),
            false => self.suspect,
        };
        let doubtful = in_doubt(volume, &doubts.runs);
        let would_be_overwritten = doubts.is_recoverable(volume.number) && !(doubtful.is_empty() && suspect.is_empty());
        let recoverable = self.recoverable || would_be_overwritten;
        DamagedVolume { doubtful, suspect, recoverable, would_be_overwritten, ..self }
    }
}

/// Lists what cannot be read, by reading all that is dirty. Clean data that is damaged does not count: the disk has it.
///
/// # Errors
/// It was cancelled.
pub fn list_damaged(pool: &Pool<'_>, watch: Watch<'_>) -> Result<Damaged, OfflineError> {
    match Rehearsal::start(pool, watch)? {
        Ok(rehearsal) => of_pool(pool, &rehearsal, watch),
        Err(error) => {
            let volumes = pool.superblock().volumes.iter().map(|volume| not_started(pool, volume)).collect();
            Ok(Damaged::of(pool, Some(error.to_string()), volumes))
        }
    }
}

/// The same of a pool that a start was rehearsed of already.
pub(super) fn of_pool(pool: &Pool<'_>, rehearsal: &Rehearsal, watch: Watch<'_>) -> Result<Damaged, OfflineError> {
    let slots = slots::all(pool, &table_of(pool, watch)?, watch)?;
    let doubts = doubtful::list(pool, &slots, rehearsal, watch)?;
    let mut volumes = Vec::new();
    for volume in &pool.superblock().volumes {
        volumes.push(of_volume(pool, rehearsal, volume, &mut |_, _| Ok(()), watch)?.with(pool, volume, &doubts));
    }
    Ok(Damaged::of(pool, pool.unproven.as_ref().map(ToString::to_string), volumes))
}

/// A volume of a pool that does not start: what it has is not known.
fn not_started(pool: &Pool<'_>, volume: &VolumeEntry) -> DamagedVolume {
    DamagedVolume {
        name: volume.name.clone(),
        bytes: volume.sectors * SECTOR,
        without_disk: !volume.has_disk(),
        dirty_bytes: 0,
        refused: true,
        untold: volume.doubts.untold,
        damaged: Vec::new(),
        doubtful: Vec::new(),
        is_comparable: false,
        suspect: suspect(pool, volume),
        recoverable: false,
        is_lost_recoverable: false,
        would_be_overwritten: false,
    }
}

/// What is done with each run of sectors whose data is good: its first sector in the volume, and the data; `None`: zeroes,
/// as many as the range says.
pub(super) type Good<'a> = &'a mut dyn FnMut(Range<u64>, Option<HostBuf>) -> Result<(), OfflineError>;

/// Reads all that is dirty of one volume, in order of address, and hands on what is good.
pub(super) fn of_volume(
    pool: &Pool<'_>,
    rehearsal: &Rehearsal,
    volume: &VolumeEntry,
    good: Good<'_>,
    watch: Watch<'_>,
) -> Result<DamagedVolume, OfflineError> {
    let status = rehearsal.volumes().into_iter().find(|v| v.number == volume.number);
    let refused = status.as_ref().is_some_and(|status| status.refused);
    let total = status.map_or(0, |status| status.dirty_blocks);
    let shift = grid_shift(volume.phase);
    let mut damaged: Vec<Extent> = Vec::new();
    let (mut dirty_bytes, mut done, mut result) = (0, 0, Ok(()));
    let (mut is_comparable, mut is_unreadable) = (false, false);
    let mut batch: Vec<Live> = Vec::new();
    let mut flush = |batch: &mut Vec<Live>| -> Result<(), OfflineError> {
        told(watch, "reading dirty data", done, total)?;
        done += batch.len() as u64;
        for (live, data) in batch.iter().zip(read_all(pool, rehearsal, batch)) {
            let p = &live.piece;
            for run in runs(p.live) {
                let from = live.block * BLOCK_SECTORS + u64::from(run.start) - shift;
                let sectors = from..from + u64::from(run.end - run.start);
                let bytes = (sectors.end - sectors.start) * SECTOR;
                match &data {
                    Data::Lost { cannot_be_read } => {
                        is_unreadable |= *cannot_be_read;
                        add(&mut damaged, sectors.start * SECTOR, bytes);
                    }
                    Data::Zeroes => {
                        dirty_bytes += bytes;
                        good(sectors, None)?;
                    }
                    Data::Good(data) => {
                        dirty_bytes += bytes;
                        let at = usize::from(run.start - p.first()) * SECTOR as usize;
                        good(sectors, Some(data.slice(at..at + bytes as usize)))?;
                    }
                }
            }
        }
        batch.clear();
        Ok(())
    };
    rehearsal.each(volume.number, |live| {
        is_comparable |= live.can_be_compared();
        if result.is_ok() && live.piece.dirty() {
            batch.push(live);
            if batch.len() == BATCH {
                result = flush(&mut batch);
            }
        }
    });
    result?;
    flush(&mut batch)?;
    // Fragments of one block come in the order of their writes.
    let damaged = merged(damaged);
    let suspect = if refused { suspect(pool, volume) } else { Vec::new() };
    let (name, bytes, without_disk) = (volume.name.clone(), volume.sectors * SECTOR, !volume.has_disk());
    let (untold, doubtful) = (volume.doubts.untold, Vec::new());
    Ok(DamagedVolume {
        name,
        bytes,
        without_disk,
        dirty_bytes,
        refused,
        untold,
        damaged,
        doubtful,
        is_comparable,
        suspect,
        recoverable: is_unreadable,
        is_lost_recoverable: is_unreadable,
        would_be_overwritten: false,
    })
}

/// What is in doubt of a volume, in bytes of it.
fn in_doubt(volume: &VolumeEntry, doubts: &[(u16, u64, u64)]) -> Vec<Extent> {
    let shift = grid_shift(volume.phase);
    let mut extents = Vec::new();
    for (_, from, count) in doubts.iter().filter(|(n, ..)| *n == volume.number) {
        let to = (from + count).saturating_sub(shift).min(volume.sectors);
        let from = from.saturating_sub(shift).min(to);
        if from < to {
            add(&mut extents, from * SECTOR, (to - from) * SECTOR);
        }
    }
    extents
}

enum Data {
    Good(HostBuf),
    Zeroes,
    /// On no copy that can be read. Whether there is one that cannot, and others perhaps can.
    Lost {
        cannot_be_read: bool,
    },
}

/// The data of each piece, from whatever copy is good. What lies side by side is read at once.
fn read_all(pool: &Pool<'_>, rehearsal: &Rehearsal, batch: &[Live]) -> Vec<Data> {
    let key = pool.superblock().key;
    let begun = |l: &Live| if l.piece.zeroes() { Data::Zeroes } else { Data::Lost { cannot_be_read: false } };
    let mut data: Vec<Data> = batch.iter().map(begun).collect();
    for copy in 0..2 {
        let mut wanted: BTreeMap<(u8, u64), usize> = BTreeMap::new();
        for (n, live) in batch.iter().enumerate().filter(|(n, _)| matches!(data[*n], Data::Lost { .. })) {
            let place = rehearsal.copies(live.piece.segment).nth(copy);
            if let Some((place, layout)) = place.and_then(|place| Some((place, pool.layout(place.member)?))) {
                let at = layout.slot(place.slot) + u64::from(live.piece.offset) * SECTOR;
                wanted.insert((place.member, at), n);
            }
        }
        let end = |n: usize, at: u64| at + u64::from(batch[n].piece.sectors()) * SECTOR;
        let mut wanted = wanted.into_iter().peekable();
        while let Some(((member, at), n)) = wanted.next() {
            let (mut group, mut until) = (vec![(at, n)], end(n, at));
            while let Some(((_, next), n)) =
                wanted.next_if(|((m, next), n)| *m == member && *next <= until && end(*n, *next) - at <= LONGEST * SECTOR)
            {
                group.push((next, n));
                until = until.max(end(n, next));
            }
            let all = pool.read(member, at, until - at);
            for (from, n) in group {
                let bytes = u64::from(batch[n].piece.sectors()) * SECTOR;
                let own = match &all {
                    Some(all) => Some(all.slice((from - at) as usize..(from - at + bytes) as usize)),
                    // One of them cannot be read, perhaps: the others can.
                    None => pool.read(member, from, bytes),
                };
                if own.is_none() && pool.device(member).is_some() {
                    data[n] = Data::Lost { cannot_be_read: true };
                }
                if let Some(own) = own.filter(|own| batch[n].is(key, own)) {
                    data[n] = Data::Good(own);
                }
            }
        }
    }
    data
}

/// The runs of bits set.
fn runs(live: u8) -> impl Iterator<Item = Range<u8>> {
    let mut at = 0;
    std::iter::from_fn(move || {
        let set = |n: u8| n < 8 && live >> n & 1 == 1;
        while at < 8 && !set(at) {
            at += 1;
        }
        let from = at;
        while set(at) {
            at += 1;
        }
        (from < at).then_some(from..at)
    })
}

fn add(to: &mut Vec<Extent>, offset: u64, bytes: u64) {
    match to.last_mut() {
        Some(last) if last.offset + last.bytes == offset => last.bytes += bytes,
        _ => to.push(Extent { offset, bytes }),
    }
}

fn merged(mut extents: Vec<Extent>) -> Vec<Extent> {
    extents.sort_unstable_by_key(|e| e.offset);
    let mut out = Vec::new();
    extents.into_iter().for_each(|e| add(&mut out, e.offset, e.bytes));
    out
}

/// Where a volume may have dirty data, by the intent map: whole regions, where a page is lost all of them.
pub(super) fn suspect(pool: &Pool<'_>, volume: &VolumeEntry) -> Vec<Extent> {
    let shift = grid_shift(volume.phase);
    let mut extents = Vec::new();
    for n in 0..volume.intent_pages {
        let page = newest_page(pool, volume, volume.intent_first + n);
        for region in 0..REGIONS_PER_PAGE {
            let set = |page: &IntentPage| page.dirty.get(region as usize / 8).is_some_and(|b| b >> (region % 8) & 1 == 1);
            let from = (u64::from(n) * u64::from(REGIONS_PER_PAGE) + u64::from(region)) * REGION_SECTORS;
            let (from, to) = (from.saturating_sub(shift), (from + REGION_SECTORS).saturating_sub(shift).min(volume.sectors));
            if from < to && page.as_ref().is_none_or(set) {
                add(&mut extents, from * SECTOR, (to - from) * SECTOR);
            }
        }
    }
    extents
}

/// The newest whole copy of an intent page on any member.
fn newest_page(pool: &Pool<'_>, volume: &VolumeEntry, page: u32) -> Option<IntentPage> {
    let places = pool.present().flat_map(|m| [(m, 0), (m, 1)]);
    let read = |(m, slot): (u8, u8)| {
        let bytes = pool.read(m, pool.layout(m)?.intent(page, slot), INTENT_PAGE_BYTES as u64)?;
        IntentPage::decode(pool.superblock().key, bytes.as_slice(), page).ok().filter(|p| p.volume == volume.number)
    };
    places.filter_map(read).max_by_key(|p| p.sequence)
}
