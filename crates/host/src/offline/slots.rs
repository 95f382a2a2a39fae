//! What each slot of each member holds: the segments that a start takes up, and those of which it finds no header.

use std::collections::{BTreeMap, BTreeSet};

use headpond_engine::io::{Buf, SECTOR};
use headpond_format::{Class, Durable, EntryKind, KnownDurable, NO_MEMBER, Place, Record, SegmentEntry, SegmentHeader};

use super::media::Pool;
use super::records::{Seen, part, walk};
use super::segments::{Found, Headers, list};
use super::{OfflineError, Watch, copies, told};
use crate::buf::HostBuf;

/// What lies in the slots of a pool.
pub(super) struct Slots {
    /// The segments that a start takes up.
    pub found: Vec<Found>,
    /// Segments with dirty data, or marks, that were opened since the checkpoint, and whose header is whole on no copy: a start does
    /// not know of them. Their records name them. The volume is [`NOBODY`] where nothing tells it.
    pub headless: Vec<Found>,
    /// Slots of which neither the header nor the first record can be read, where a segment with dirty data may be that nothing else names.
    pub blind: Vec<Place>,
}

/// The number of no volume.
pub(super) const NOBODY: u16 = u16::MAX;

/// Segments by number and generation.
type Named = (u32, u64);

/// Reads the beginning of every slot, and lists the segments.
pub(super) fn all(pool: &Pool<'_>, table: &BTreeMap<u32, SegmentEntry>, watch: Watch<'_>) -> Result<Slots, OfflineError> {
    let s = pool.superblock();
    let unit = s.unit as usize;
    let mut headers = Headers::new();
    let mut durable = KnownDurable::default();
    let mut begun: BTreeMap<(u8, u32), Named> = BTreeMap::new();
    let mut blind = Vec::new();
    let total: u64 = pool.present().map(|m| u64::from(pool.slots(m))).sum();
    let mut done = 0;
    for member in pool.present() {
        for slot in 0..pool.slots(member) {
            if done % 64 == 0 {
                told(watch, "reading segment headers", done, total)?;
            }
            done += 1;
            let Some(at) = pool.layout(member).map(|layout| layout.slot(slot)) else { continue };
            let (head, first) = beginning(pool, member, at);
            if head.is_none() && first.is_none() {
                blind.push(Place { member, slot });
            }
            let header = head.as_ref().and_then(|bytes| SegmentHeader::decode(s.key, bytes.as_slice()).ok());
            if let Some((header, bytes)) = header.filter(|h| h.copies.contains(&Place { member, slot })).zip(head) {
                durable.hear(&header, Durable::of_header(bytes.as_slice()));
                headers.insert((member, slot), header);
            }
            if let Some(named) = first.and_then(|bytes| named(bytes.as_slice(), unit)) {
                begun.insert((member, slot), named);
            }
        }
    }
    // As the engine has it: no segment has a larger number than there are slots, twice over.
    let most = s.members.iter().map(|m| 2 * u64::from(m.layout.slots())).sum();
    let found = list(&headers, table, &durable, &|member| pool.slots(member), (s.checkpoint.generation, most, s.unit));
    begun.retain(|_, (segment, generation)| *generation > s.checkpoint.generation && u64::from(*segment) < most);
    // What a start knows of, and what has been let go: its slot was given to a newer one, or only its number.
    let known: BTreeSet<Named> = found.iter().map(|f| (f.header.segment, f.header.generation)).collect();
    let owners: BTreeMap<(u8, u32), u64> =
        found.iter().flat_map(|f| f.copies().map(|copy| ((copy.member, copy.slot), f.header.generation))).collect();
    begun.retain(|slot, named| {
        let is_written = headers.get(slot).is_some_and(|h| (h.segment, h.generation) == *named);
        let is_owned = owners.get(slot).is_some_and(|generation| *generation >= named.1);
        !known.contains(named) && !is_written && !is_owned
    });
    let mut copies: BTreeMap<Named, Vec<Place>> = BTreeMap::new();
    for ((member, slot), named) in begun {
        copies.entry(named).or_default().push(Place { member, slot });
    }
    // As the engine has it: where no segment is known to be that could hold anything dirty, one may be.
    blind.retain(|place| !found.iter().any(|f| f.header.class == Class::Mirrored && f.header.copies.contains(place)));
    if is_told_elsewhere(pool, &blind) {
        blind.clear();
    }
    let headless = copies.into_iter().filter_map(|(named, places)| headless(pool, &durable, named, &places)).collect();
    Ok(Slots { found, headless, blind })
}

/// Whether any segment in these slots would have another copy, with a header, on a member that is there.
fn is_told_elsewhere(pool: &Pool<'_>, blind: &[Place]) -> bool {
    let s = pool.superblock();
    let members: BTreeSet<u8> = blind.iter().map(|place| place.member).collect();
    members.len() < 2 && s.copies > 1 && s.left == 0 && pool.election.missing.is_empty() && pool.present().count() > 1
}

/// The units of a slot's header and of its first record.
fn beginning(pool: &Pool<'_>, member: u8, at: u64) -> (Option<HostBuf>, Option<HostBuf>) {
    let unit = u64::from(pool.superblock().unit);
    match pool.read(member, at, 2 * unit) {
        Some(both) => (Some(both.slice(0..unit as usize)), Some(both.slice(unit as usize..2 * unit as usize))),
        None => (pool.read(member, at, unit), pool.read(member, at + unit, unit)),
    }
}

/// The segment that the first record of a slot says it is of.
fn named(bytes: &[u8], unit: usize) -> Option<Named> {
    Record::peek_len(bytes)?;
    let offset = u32::from_le_bytes(bytes.get(20..24)?.try_into().ok()?);
    let named = (u32::from_le_bytes(bytes[16..20].try_into().ok()?), u64::from_le_bytes(bytes.get(24..32)?.try_into().ok()?));
    (offset as usize * SECTOR as usize == unit).then_some(named)
}

/// A segment as its records tell of it, if they are whole, and of a volume that is there. One with clean data alone is missed by nobody.
fn headless(pool: &Pool<'_>, durable: &KnownDurable, (segment, generation): Named, places: &[Place]) -> Option<Found> {
    let s = pool.superblock();
    let mut copies = [Place::NONE; 2];
    copies.iter_mut().zip(places).for_each(|(copy, place)| *copy = *place);
    let header = SegmentHeader { segment, generation, class: Class::Mirrored, volume: NOBODY, copies };
    let lacking: Vec<Place> = header.copies.into_iter().filter(|copy| copy.member != NO_MEMBER).collect();
    let found =
        Found { header, replay_from: s.unit / SECTOR as u32, lacking, written: false, is_durable: durable.has(generation) };
    let copies = copies::data(&copies::of(pool, &found));
    let seen = walk(s.key, s.unit, &header, &copies);
    let records = seen.iter().filter_map(|seen| if let Seen::Record(whole) = seen { Some(&whole.record) } else { None });
    let entries: Vec<_> = records.flat_map(|record| &record.entries).collect();
    if entries.iter().all(|e| e.kind == EntryKind::Clean) {
        return None;
    }
    let is_of = |volume: u16| {
        entries.iter().filter(|e| e.kind.has_data()).any(|e| {
            let data = copies.iter().filter_map(|copy| part(copy.as_ref(), e.offset, e.sectors));
            data.into_iter().any(|data| data.checksum(e.data_seed(s.key, volume)) == e.sum)
        })
    };
    let volume = s.volumes.iter().map(|v| v.number).find(|number| is_of(*number));
    // With data that is of none of them it is of one that was let go.
    let is_ours = volume.is_some() || !entries.iter().any(|e| e.kind.has_data());
    let header = SegmentHeader { volume: volume.unwrap_or(NOBODY), ..header };
    is_ours.then_some(Found { header, ..found })
}
