//! Which segments there are, from the headers in the slots and the table of the checkpoint: rule 6 of `docs/FORMAT.md`.

use std::collections::BTreeMap;

use headpond_format::{KnownDurable, NO_MEMBER, Place, SegmentEntry, SegmentHeader};

/// The headers that count, by member and slot.
pub(super) type Headers = BTreeMap<(u8, u32), SegmentHeader>;

/// A segment that a start would take up.
#[derive(Clone, Debug)]
pub(super) struct Found {
    /// Number, generation, class, volume, and the copies that are left of it.
    pub header: SegmentHeader,
    /// Records from this sector on are replayed; `u32::MAX`: none, the image has them all.
    pub replay_from: u32,
    /// Copies in whose slots its header is not, or not whole.
    pub lacking: Vec<Place>,
    /// Whether a copy has its header.
    pub written: bool,
    /// Whether it was durable on all its copies, by what other headers say. A start looks for no end of it, and completes nothing of it.
    pub is_durable: bool,
}

impl Found {
    /// The copies that are left.
    pub fn copies(&self) -> impl Iterator<Item = Place> + '_ {
        self.header.copies.iter().copied().filter(|place| place.member != NO_MEMBER)
    }
}

/// Puts together which segments there are, and which of them were `durable`. `slots` tells how many slots a member has that is there, and 0 for others;
/// `most` bounds segments' numbers; `unit` is in bytes.
pub(super) fn list(
    headers: &Headers,
    table: &BTreeMap<u32, SegmentEntry>,
    durable: &KnownDurable,
    slots: &dyn Fn(u8) -> u32,
    (newest_in_image, most, unit): (u64, u64, u32),
) -> Vec<Found> {
    // Whose each slot is: the newest segment's that claims it.
    let mut owner: BTreeMap<(u8, u32), u64> = BTreeMap::new();
    let claims = headers.values().map(|h| (h.copies, h.generation)).chain(table.values().map(|e| (e.copies, e.generation)));
    for (copies, generation) in claims {
        for place in copies.iter().filter(|place| place.member != NO_MEMBER) {
            let newest = owner.entry((place.member, place.slot)).or_default();
            *newest = generation.max(*newest);
        }
    }
    let left = |copies: [Place; 2], generation: u64| {
        copies.map(|c| {
            let own = owner.get(&(c.member, c.slot)).is_none_or(|newest| *newest <= generation);
            if c.member != NO_MEMBER && c.slot < slots(c.member) && own { c } else { Place::NONE }
        })
    };
    let own = |h: &SegmentHeader, c: &Place| {
        let same = |o: &&SegmentHeader| (o.segment, o.generation) == (h.segment, h.generation);
        headers.get(&(c.member, c.slot)).filter(same)
    };
    let mut found: BTreeMap<u32, Found> = BTreeMap::new();
    let mut take = |header: SegmentHeader, replay_from: u32| {
        let newer = found.get(&header.segment).is_none_or(|f| f.header.generation < header.generation);
        let left = header.copies.iter().any(|c| c.member != NO_MEMBER) && u64::from(header.segment) < most;
        if newer && left {
            let lacks = |c: &&Place| c.member != NO_MEMBER && own(&header, c).is_none();
            let lacking = header.copies.iter().filter(lacks).copied().collect();
            let written = header.copies.iter().any(|c| own(&header, c).is_some());
            let is_durable = durable.has(header.generation);
            found.insert(header.segment, Found { header, replay_from, lacking, written, is_durable });
        }
    };
    for e in table.values() {
        let copies = left(e.copies, e.generation);
        let header = SegmentHeader { segment: e.segment, generation: e.generation, class: e.class, volume: e.volume, copies };
        take(header, e.replay_from);
    }
    for h in headers.values().filter(|h| h.generation > newest_in_image) {
        take(SegmentHeader { copies: left(h.copies, h.generation), ..*h }, unit / 512);
    }
    found.into_values().collect()
}
