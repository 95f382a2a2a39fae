//! What is on the media, as it is, for people and programs. `docs/OFFLINE.md` describes every field.

use std::collections::BTreeMap;

use headpond_engine::election::WitnessVote;
use headpond_format::{
    Class, DecodeError, EntryKind, INTENT_PAGE_BYTES, IntentPage, MemberState, Place, Superblock, VolumeEntry,
};
use serde_json::{Value, json};

use super::check::table_of;
use super::media::{Device, Media, Pool, Slot};
use super::records::{Seen, walk};
use super::segments::Found;
use super::{OfflineError, Watch, copies, slots, told};
use crate::state::hex;

/// The version of what is dumped: it grows when a field changes its meaning or goes.
const VERSION: u32 = 1;

/// A part of a dump, in the order in which they come.
#[derive(Debug)]
pub enum Part {
    /// The pool, the devices, the intent map: comes first, once.
    Head(Value),
    /// A segment, with its records if those were wished for.
    Segment(Value),
}

/// Reads what is on the media and hands it on, part by part; `records`: every record and what it names, too.
///
/// # Errors
/// The devices are not of one pool, or it was cancelled, or `take` failed. What is damaged is dumped as such.
pub fn dump(
    media: &Media,
    vote: WitnessVote,
    records: bool,
    take: &mut dyn FnMut(Part) -> Result<(), OfflineError>,
    watch: Watch<'_>,
) -> Result<(), OfflineError> {
    let devices: Vec<Value> = media.devices.iter().map(device).collect();
    let pool = match media.pool(vote) {
        Ok(pool) => pool,
        Err(OfflineError::NoSuperblock | OfflineError::MayBeOlder { .. }) => {
            return take(Part::Head(json!({ "version": VERSION, "pool": null, "devices": devices, "intent": [] })));
        }
        Err(error) => return Err(error),
    };
    let intent: Vec<Value> = pool.superblock().volumes.iter().flat_map(|volume| intent(&pool, volume)).collect();
    take(Part::Head(json!({
        "version": VERSION,
        "pool": of_pool(&pool),
        "devices": devices,
        "intent": intent,
    })))?;
    let table = table_of(&pool, watch)?;
    let mut found = slots::all(&pool, &table, watch)?.found;
    found.sort_by_key(|f| f.header.generation);
    for (n, f) in found.iter().enumerate() {
        if records || n % 1024 == 0 {
            told(watch, "reading segments", n as u64, found.len() as u64)?;
        }
        let mut value = segment(&pool, f, table.contains_key(&f.header.segment));
        if records {
            value["records"] = records_of(&pool, f);
        }
        take(Part::Segment(value))?;
    }
    Ok(())
}

fn device(device: &Device) -> Value {
    let slots: Vec<Value> =
        device.slots.iter().zip(device.slot_at).enumerate().map(|(n, (slot, at))| one_slot(n, slot, at)).collect();
    let member = device.superblock.as_ref().map(|s| s.member);
    json!({ "path": device.path().display().to_string(), "bytes": device.size(), "member": member, "superblocks": slots })
}

fn one_slot(n: usize, slot: &Slot, at: u64) -> Value {
    let (state, why) = match slot {
        Slot::Whole(s) => {
            return json!({
                "slot": n, "offset": at, "state": "whole", "pool": hex(&s.pool), "member": s.member,
                "epoch": s.epoch, "sequence": s.sequence,
            });
        }
        Slot::Bad(DecodeError::Foreign) => ("foreign", DecodeError::Foreign.to_string()),
        Slot::Bad(error @ DecodeError::Newer(_)) => ("newer", error.to_string()),
        Slot::Bad(error) => ("damaged", error.to_string()),
        Slot::Unreadable(error) => ("unreadable", error.to_string()),
    };
    json!({ "slot": n, "offset": at, "state": state, "why": why })
}

fn of_pool(pool: &Pool<'_>) -> Value {
    let s = pool.superblock();
    let c = &s.checkpoint;
    let members: Vec<Value> = s.members.iter().enumerate().map(|(n, _)| member(pool, s, n)).collect();
    let volumes: Vec<Value> = s.volumes.iter().map(volume).collect();
    json!({
        "name": s.name, "id": hex(&s.pool), "epoch": s.epoch, "sequence": s.sequence, "copies": s.copies, "unit": s.unit,
        "witness": s.witness, "left": s.left,
        "proven": pool.unproven.is_none(),
        "checkpoint": {
            "sequence": c.sequence, "version": c.version, "generation": c.generation, "pages": c.pages, "area": c.area,
            "members": c.members,
        },
        "members": members,
        "volumes": volumes,
    })
}

fn member(pool: &Pool<'_>, s: &Superblock, n: usize) -> Value {
    let m = &s.members[n];
    let state = match (m.state, pool.index(n as u8)) {
        (MemberState::Out, _) => "out",
        (MemberState::InSync, Some(_)) => "in sync",
        (MemberState::InSync, None) => "missing",
    };
    json!({
        "number": n, "id": hex(&m.id), "state": state, "bytes": m.layout.size, "segment_bytes": m.layout.segment_bytes,
        "intent_pages": m.layout.intent_pages, "checkpoint_bytes": m.layout.checkpoint_bytes, "slots": m.layout.slots(),
    })
}

fn volume(v: &VolumeEntry) -> Value {
    json!({
        "number": v.number, "id": hex(&v.id), "name": v.name, "sectors": v.sectors, "phase": v.phase, "mode": v.mode.name(),
        "intent_first": v.intent_first, "intent_pages": v.intent_pages, "backing": v.backing,
        "uncertain": v.doubts.uncertain, "flush_untold": v.doubts.untold, "flush_failed": v.doubts.unkept,
    })
}

/// Every copy of each intent page of a volume, with the regions whose bits are set.
fn intent(pool: &Pool<'_>, volume: &VolumeEntry) -> Vec<Value> {
    let pages = volume.intent_first..volume.intent_first.saturating_add(volume.intent_pages);
    let copies = pages.flat_map(|page| pool.present().flat_map(move |m| [(page, m, 0), (page, m, 1)]));
    let copy = |(page, member, slot): (u32, u8, u8)| {
        let at = pool.layout(member)?.intent(page, slot);
        let bytes = pool.read(member, at, INTENT_PAGE_BYTES as u64);
        let decoded = bytes.map(|bytes| IntentPage::decode(pool.superblock().key, bytes.as_slice(), page));
        let mut value = json!({ "volume": volume.name, "page": page, "member": member, "slot": slot, "offset": at });
        match decoded {
            Some(Ok(p)) => {
                value["sequence"] = json!(p.sequence);
                (value["intent"], value["dirty"]) = (set_in(&p.intent), set_in(&p.dirty));
            }
            Some(Err(error)) => value["why"] = json!(error.to_string()),
            None => value["why"] = json!("cannot be read"),
        }
        Some(value)
    };
    copies.filter_map(copy).collect()
}

/// The runs of set bits, as pairs: the first, and the one behind the last.
fn set_in(bits: &[u8]) -> Value {
    let set = |n: usize| bits[n / 8] >> (n % 8) & 1 == 1;
    let mut runs: Vec<[usize; 2]> = Vec::new();
    for n in (0..bits.len() * 8).filter(|n| set(*n)) {
        match runs.last_mut() {
            Some([_, end]) if *end == n => *end += 1,
            _ => runs.push([n, n + 1]),
        }
    }
    json!(runs)
}

fn segment(pool: &Pool<'_>, f: &Found, in_image: bool) -> Value {
    let h = &f.header;
    let copy = |p: Place| {
        let offset = pool.layout(p.member).map(|layout| layout.slot(p.slot));
        json!({ "member": p.member, "slot": p.slot, "offset": offset, "header_whole": !f.lacking.contains(&p) })
    };
    let copies: Vec<Value> = f.copies().map(copy).collect();
    let state = match (in_image, f.replay_from) {
        (true, u32::MAX) => "in the image",
        (true, _) => "in the image up to replay_from",
        (false, _) => "to be replayed",
    };
    json!({
        "number": h.segment, "generation": h.generation, "class": class(h.class), "volume": h.volume, "state": state,
        "replay_from": (f.replay_from != u32::MAX).then_some(f.replay_from), "copies": copies,
    })
}

fn class(class: Class) -> &'static str {
    match class {
        Class::Mirrored => "mirrored",
        Class::Single => "single",
    }
}

/// The records of a segment, as they are found on its copies.
fn records_of(pool: &Pool<'_>, f: &Found) -> Value {
    let s = pool.superblock();
    let copies = copies::data(&copies::of(pool, f));
    let record = |seen: Seen| match seen {
        Seen::Hole(..) => None,
        Seen::Torn(at) => Some(json!({ "sector": at, "state": "torn" })),
        Seen::Record(whole) => {
            let good: BTreeMap<u32, &Vec<bool>> = whole.data.iter().map(|(e, good)| (e.offset, good)).collect();
            let entries: Vec<Value> = whole
                .record
                .entries
                .iter()
                .map(|e| {
                    let mut value = json!({
                        "kind": kind(e.kind), "block": e.block, "first": e.first, "sectors": e.sectors, "blocks": e.count,
                        "version": e.version,
                    });
                    if e.kind.has_data() {
                        value["sector"] = json!(e.offset);
                        value["sum"] = json!(format!("{:016x}", e.sum));
                        value["whole_on"] = json!(good.get(&e.offset));
                    }
                    value
                })
                .collect();
            let (at, sectors) = (whole.record.place.offset, whole.record.sectors);
            Some(json!({ "sector": at, "sectors": sectors, "state": "whole", "header_on": whole.header, "entries": entries }))
        }
    };
    walk(s.key, s.unit, &f.header, &copies).into_iter().filter_map(record).collect()
}

fn kind(kind: EntryKind) -> &'static str {
    match kind {
        EntryKind::Dirty => "dirty",
        EntryKind::Clean => "clean",
        EntryKind::Zeroes => "zeroes",
        EntryKind::MarkClean => "mark clean",
        EntryKind::Forget => "forget",
    }
}
