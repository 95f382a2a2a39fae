//! A start: the segments, and what the log has, on as many copies as there should be, before the first request is answered
//! (R14). The map's image is read then as well, or beside requests ([`crate::loading`]).

use crate::core::{Core, Volume};
use crate::headers::{Copy, Read, Replay};
use crate::image::{Image, Table};
use crate::intent::Bit;
use crate::io::{BLOCK_SECTORS, Buf, Device, DeviceOp, Reach};
use crate::loading::{self, Loading, LogMarks};
use crate::map::Piece;
use crate::marks::Mark;
use crate::patience::Patience;
use crate::policy::evict::Queue;
use crate::segments::{Segment, SegmentState};
use crate::status::Starting;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::rc::Rc;
use alloc::vec;
use alloc::vec::Vec;
use core::fmt;
use core::ops::Range;
use headpond_format::{
    Class, Durable, Entry, EntryKind, GENERATIONS, KnownDurable, NO_MEMBER, PAGE_BYTES, Place, Record, RecordPlace, SegmentHeader,
};

/// Versions jump by this at each start: what a dead instance may have used is never used again.
const GAP: u64 = 1 << 20;

/// Why a pool could not be started.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum StartError {
    /// A page of the checkpoint can be read from no member.
    CheckpointLost {
        /// The page.
        page: u32,
    },
    /// A part of the log can be read on none of two members.
    LogUnreadable {
        /// Their numbers.
        members: Vec<u8>,
    },
    /// Members are missing or failed while starting, and no majority is left.
    NoMajority,
    /// As many members are missing as there are copies, and something may be dirty.
    CopiesMissing {
        /// Their numbers.
        missing: Vec<u8>,
    },
}

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StartError::CheckpointLost { page } => write!(
                f,
                "Page {page} of the checkpoint is damaged on every cache device: where dirty data is cannot be known. Nothing was changed. Keep the devices, and bring back any cache device that is missing before you start again."
            ),
            StartError::LogUnreadable { members } => {
                let numbers: Vec<_> = members.iter().map(|m| alloc::format!("{m}")).collect();
                write!(
                    f,
                    "Cache devices {} both fail to read a part of the log, which may hold data that is not on the disk yet. Nothing that was acknowledged was changed. Look into the system's log for what they have in common, a controller or a cable, and start again. If it stays so: `headpond writeback --without-missing` with one of them alone puts what that one can read onto the disk.",
                    numbers.join(" and ")
                )
            }
            StartError::NoMajority => f.write_str(
                "Cache devices are missing, or failed during the start, and too few votes are left to go on without them. Nothing that was acknowledged was changed. Check the devices and the witness, bring back what is missing, then start again.",
            ),
            StartError::CopiesMissing { missing } => {
                let numbers: Vec<_> = missing.iter().map(|m| alloc::format!("{m}")).collect();
                let (devices, them) = if missing.len() == 1 { ("device", "it") } else { ("devices", "them") };
                let are = if missing.len() == 1 { "is" } else { "are" };
                write!(
                    f,
                    "Cache {devices} {} {are} missing, and may hold all copies of data that is not on the disk yet. Nothing that was acknowledged was changed. Bring {them} back and start again. To go on without {them} for good, start with --without-missing: volumes that may lack data are then refused.",
                    numbers.join(", ")
                )
            }
        }
    }
}

impl core::error::Error for StartError {}

/// What the scan of a segment found.
pub(crate) struct Found {
    pub number: u32,
    pub header: SegmentHeader,
    /// Members on which the segment's header is missing.
    lacking: Vec<Place>,
    /// The first sector that is not in the image.
    pub replay_from: u32,
    /// Whether a later one's header says that it is durable on all its copies.
    pub is_durable: bool,
}

/// What could not be read of copies of segments: from which sector on, and what the start takes it for, which is to be written there.
pub(crate) type Anew<B> = Vec<(Place, u32, Vec<B>)>;

/// Rebuilds all state from the members that are in sync. Volumes have been made, without their maps. Of the map there is what is in the
/// log; the image, if it is large, is read while requests are answered ([`crate::loading`]). What is to be written anew is returned: of a start
/// that comes to nothing after all, nothing is given up.
pub(crate) async fn recover<B: Buf>(core: &Rc<Core<B>>, patience: &Patience) -> Result<Anew<B>, StartError> {
    // What a dead daemon left in the members' caches must not be taken for durable.
    flush_members(core).await;
    let image = Image::open(core);
    let (table, first) = image.table(core).await?;
    patience.anew();
    let (mut found, unreadable) = scan(core, &table, patience).await?;
    let mut generation = core.pool.borrow().checkpoint.generation;
    let mut version = core.pool.borrow().checkpoint.version;
    {
        let mut segments = core.segments.borrow_mut();
        // One whose number or slots another one has is none: whatever is free later must not be somebody's.
        found.retain(|f| {
            generation = generation.max(f.header.generation);
            let header = &f.header;
            let copies = header.copies.map(|c| if core.pool.borrow().is_in_sync(c.member) { c } else { Place::NONE });
            let is_diskless = core.volume(header.volume).is_some_and(|v| !v.has_disk());
            let segment = Segment::new(header.generation, header.class, header.volume, is_diskless, copies, SegmentState::Sealed);
            segments.restore(
                f.number,
                Segment {
                    next: u32::MAX,
                    // The image may name more of it: it is not empty before all of that is read.
                    pins: 1,
                    // What was on probation is not told: it has lasted until now.
                    queue: if header.class == Class::Single { Queue::Main } else { Queue::Probation },
                    ..segment
                },
            )
        });
        segments.restored_all();
    }
    // The log after the image, oldest segment first, so that of two places of one version the newer counts.
    let mut replay: Vec<Rc<Found>> = found.iter().filter(|f| f.replay_from != u32::MAX).cloned().collect();
    replay.sort_unstable_by_key(|f| f.header.generation);
    let waits_for_image = image.pages() - first <= core.settings.pages_at_start;
    let of_image = if waits_for_image { u64::from(image.pages() - first) * PAGE_BYTES as u64 } else { 0 };
    let of = of_image + replay.iter().map(|f| Replay::bytes(core, f)).sum::<u64>();
    core.starting.set(Some(Starting { read: 0, of }));
    let loading = Loading::new(core, image, &table, first);
    if waits_for_image {
        loading::before_the_log(core, &loading).await?;
    }
    let mut marks: BTreeMap<u16, LogMarks> = BTreeMap::new();
    let mut anew = headers_anew(core, &found, &unreadable);
    let mut replay = Replay::new(replay);
    while let Some(read) = replay.take(core).await {
        let bytes = Replay::bytes(core, &read.found);
        patience.anew();
        let of_volume = marks.entry(read.found.header.volume).or_default();
        version = version.max(replay_segment(core, read, of_volume, &mut anew, patience).await?);
        core.has_read(bytes);
    }
    let generation = (core.life * GENERATIONS).max(generation + 1);
    core.generation.set(generation);
    core.durability.borrow_mut().begin(generation + 1);
    core.version.set(version + GAP);
    loading::begin(core, loading, marks);
    if waits_for_image {
        loading::rest(core).await?;
    }
    core.starting.set(None);
    // Completed copies, and what the last instance wrote, are durable before anybody is told of them.
    flush_members(core).await;
    core.wait_settled().await;
    if core.pool.borrow().stalled {
        return Err(StartError::NoMajority);
    }
    Ok(anew)
}

impl<B: Buf> Core<B> {
    /// So many bytes more of what a start reads have come.
    pub(crate) fn has_read(&self, bytes: u64) {
        self.starting.set(self.starting.get().map(|s| Starting { read: s.read + bytes, ..s }));
    }
}

/// Whether sectors of a block are in `extent`, the volume's own: nothing else is ever read from its disk, or written to it.
pub(crate) fn is_inside(extent: &Range<u64>, block: u64, first: u8, sectors: u8) -> bool {
    let start = block * BLOCK_SECTORS + u64::from(first);
    extent.start <= start && start + u64::from(sectors) <= extent.end
}

async fn flush_members<B: Buf>(core: &Rc<Core<B>>) {
    let members: Vec<u8> = core.pool.borrow().in_sync().collect();
    let flushes: Vec<_> = members.iter().map(|m| (*m, core.member_flusher(*m).request())).collect();
    for (m, flush) in flushes {
        if flush.get().await.is_err() {
            core.mark(Mark::MemberFailsAtStart);
            core.fail_member(m).await;
        }
    }
}

/// Whether anything may be dirty that the disk does not have.
fn may_be_dirty<B: Buf>(core: &Core<B>) -> bool {
    core.all_volumes().iter().any(|v| v.intent.any(Bit::Dirty))
}

/// `members` cannot read something that may be dirty, and none of the others that are here has it.
///
/// # Errors
/// Another one was to have it as well: who cannot read it either, or who is missing, as long as nobody has said that this is for good. Where it
/// has been said, now or for a start in which those that are missing count as having left, what may lack it is refused: the volume whose it was,
/// or all.
fn nowhere_else<B: Buf>(core: &Core<B>, members: &BTreeSet<u8>, volume: Option<u16>) -> Result<(), StartError> {
    if members.is_empty() || !may_be_dirty(core) {
        return Ok(());
    }
    if members.len() > 1 {
        return Err(StartError::LogUnreadable { members: members.iter().copied().collect() });
    }
    let (missing, left) = (core.pool.borrow().missing.clone(), core.pool.borrow().left);
    if missing.is_empty() && left == 0 {
        return Ok(());
    }
    if core.settings.without_missing {
        let mut lacks = core.log_lacks.borrow_mut();
        lacks.of_all |= volume.is_none();
        lacks.of.extend(volume);
    } else if !missing.is_empty() {
        core.mark(Mark::MissingMayHaveIt);
        return Err(StartError::CopiesMissing { missing });
    }
    Ok(())
}

/// Reads the header of every slot, and puts together which segments there are. Also the slots whose headers could not be read.
///
/// # Errors
/// A segment with something dirty in it may have none that can be read.
async fn scan<B: Buf>(
    core: &Rc<Core<B>>,
    table: &Table,
    patience: &Patience,
) -> Result<(Vec<Rc<Found>>, Vec<Place>), StartError> {
    let (key, unit, checkpoint) = {
        let pool = core.pool.borrow();
        (pool.key, pool.unit, pool.checkpoint.clone())
    };
    let mut slots: Vec<Place> = Vec::new();
    for m in core.pool.borrow().in_sync() {
        let layout = core.pool.borrow().members[usize::from(m)].layout;
        slots.extend((0..layout.slots()).map(|slot| Place { member: m, slot }));
    }
    let ranges: Vec<_> = slots.iter().map(|p| (p.member, core.slot_offset(*p), unit)).collect();
    let read = patience.read(core, &ranges).await;
    let is_unreadable =
        |(p, bytes): (&Place, &Option<B>)| (bytes.is_none() && core.pool.borrow().is_in_sync(p.member)).then_some(*p);
    let unreadable: Vec<Place> = slots.iter().zip(&read).filter_map(is_unreadable).collect();
    let mut headers: BTreeMap<(u8, u32), SegmentHeader> = BTreeMap::new();
    let mut durable = KnownDurable::default();
    for (place, bytes) in slots.iter().zip(read) {
        let Some(bytes) = bytes else { continue };
        let bytes = bytes.to_bytes();
        if let Some(h) = SegmentHeader::decode(key, &bytes).ok().filter(|h| h.copies.contains(place)) {
            headers.insert((place.member, place.slot), h);
            durable.hear(&h, Durable::of_header(&bytes));
        }
    }
    // Whose each slot is: the newest segment's that claims it, on whatever copy its header survived. An older one that
    // is still written in the slot itself was let go before.
    let mut claims: BTreeMap<(u8, u32), u64> = BTreeMap::new();
    let in_table = table.0.values().map(|e| (e.copies, e.generation));
    for (copies, generation) in headers.values().map(|h| (h.copies, h.generation)).chain(in_table) {
        for c in copies.iter().filter(|c| c.member != NO_MEMBER) {
            let newest = claims.entry((c.member, c.slot)).or_default();
            *newest = generation.max(*newest);
        }
    }
    let slots_of: BTreeMap<u8, u32> =
        core.pool.borrow().in_sync().map(|m| (m, core.pool.borrow().members[usize::from(m)].layout.slots())).collect();
    let claimed_by_later = |c: &Place, generation: u64| {
        let is_there = slots_of.get(&c.member).is_some_and(|slots| c.slot < *slots);
        !is_there || claims.get(&(c.member, c.slot)).is_some_and(|g| *g > generation)
    };
    // Where somebody is missing all data is read: what those that are there cannot read he may have, and he is out of date once they go on.
    let nobody_is_missing = core.pool.borrow().missing.is_empty();
    let is_durable = |generation: u64| nobody_is_missing && durable.has(generation);
    // No segment has a larger number than there are slots; twice as many are enough for whatever may come to be.
    let most: u64 = core.pool.borrow().members.iter().map(|m| 2 * u64::from(m.layout.slots())).sum();
    let mut found: BTreeMap<u32, Found> = BTreeMap::new();
    // Segments of the table, where no later use of the number or the slot has been found.
    for e in table.0.values() {
        let mut copies = e.copies;
        for c in copies.iter_mut().filter(|c| c.member != NO_MEMBER) {
            if claimed_by_later(c, e.generation) || !core.pool.borrow().is_in_sync(c.member) {
                core.mark(Mark::TableSlotGone);
                *c = Place::NONE;
            }
        }
        let header = SegmentHeader { segment: e.segment, generation: e.generation, class: e.class, volume: e.volume, copies };
        if copies.iter().any(|c| c.member != NO_MEMBER) && u64::from(e.segment) < most {
            let is_durable = is_durable(e.generation);
            found.insert(
                e.segment,
                Found { number: e.segment, header, lacking: Vec::new(), replay_from: e.replay_from, is_durable },
            );
        }
    }
    // Segments opened since.
    for h in headers.values().filter(|h| h.generation > checkpoint.generation) {
        if found.get(&h.segment).is_some_and(|f| f.header.generation >= h.generation) {
            continue;
        }
        let mut lacking = Vec::new();
        let mut copies = h.copies;
        for c in copies.iter_mut().filter(|c| c.member != NO_MEMBER) {
            let own = |o: &SegmentHeader| o.segment == h.segment && o.generation == h.generation;
            if claimed_by_later(c, h.generation) || !core.pool.borrow().is_in_sync(c.member) {
                *c = Place::NONE;
            } else if !headers.get(&(c.member, c.slot)).is_some_and(own) {
                core.mark(Mark::HeaderMissing);
                lacking.push(*c);
            }
        }
        if copies.iter().any(|c| c.member != NO_MEMBER) && u64::from(h.segment) < most {
            let header = SegmentHeader { copies, ..*h };
            let is_durable = lacking.is_empty() && is_durable(h.generation);
            found.insert(h.segment, Found { number: h.segment, header, lacking, replay_from: unit / 512, is_durable });
        }
    }
    // Where no segment is known to be that could hold anything dirty, one may be.
    let is_held = |p: &&Place| found.values().any(|f| f.header.class == Class::Mirrored && f.header.copies.contains(p));
    let members: BTreeSet<u8> = unreadable.iter().filter(|p| !is_held(p)).map(|p| p.member).collect();
    nowhere_else(core, &members, None)?;
    Ok((found.into_values().map(Rc::new).collect(), unreadable))
}

/// The headers that could not be read, or none where no segment is: at the next start they might be readable, and speak of what nobody has
/// acknowledged, or of what was let go since.
fn headers_anew<B: Buf>(core: &Core<B>, found: &[Rc<Found>], unreadable: &[Place]) -> Anew<B> {
    let (key, unit) = (core.pool.borrow().key, core.pool.borrow().unit as usize);
    let of = |p: &Place| match found.iter().find(|f| f.header.copies.contains(p)) {
        Some(f) => B::from_bytes(&f.header.encode(key, unit)),
        None => B::zeroes(unit),
    };
    core.mark_if(!unreadable.is_empty(), Mark::HeadersWrittenAnew);
    unreadable.iter().map(|p| (*p, 0, vec![of(p)])).collect()
}

/// Writes to copies of segments, each from a sector on, all at once; the members that fail.
async fn write_all<B: Buf>(core: &Rc<Core<B>>, what: Anew<B>) -> BTreeSet<u8> {
    let mut writes = Vec::new();
    for (place, at, bufs) in what {
        let op = DeviceOp::Write { offset: core.slot_offset(place) + u64::from(at) * 512, bufs, reach: Reach::Cache };
        writes.push((place.member, core.exec.io(Device::Member(place.member), op)));
    }
    let mut failed = BTreeSet::new();
    for (m, write) in writes {
        match write.await {
            Ok(_) => core.member_flusher(m).wrote(),
            Err(_) => {
                failed.insert(m);
            }
        }
    }
    failed
}

/// Writes what could not be read, durably, on those that have not left since. The last member stays even if it fails: who wants what is on it must
/// be able to start.
pub(crate) async fn write_anew<B: Buf>(core: &Rc<Core<B>>, mut what: Anew<B>) {
    what.retain(|(place, ..)| core.pool.borrow().is_in_sync(place.member));
    if what.is_empty() {
        return;
    }
    for m in write_all(core, what).await {
        if core.pool.borrow().in_sync().any(|other| other != m) {
            core.fail_member(m).await;
        }
    }
    flush_members(core).await;
}

/// Replays the records of a segment, stepping over holes (R15), and completes on every copy what only some hold. `anew` gets what is to be
/// written over what could not be read. Returns the largest version seen.
async fn replay_segment<B: Buf>(
    core: &Rc<Core<B>>,
    read: Read<B>,
    marks: &mut LogMarks,
    anew: &mut Anew<B>,
    patience: &Patience,
) -> Result<u64, StartError> {
    let (key, unit, capacity) = {
        let pool = core.pool.borrow();
        (pool.key, pool.unit, pool.segment_sectors())
    };
    let Read { found: f, records, from, copies } = read;
    let volume = core.volume(f.header.volume);
    let mut version = 0;
    for record in records {
        version = version.max(replay_record(core, &f, volume.as_deref(), marks, &record, |_| true));
    }
    if from == capacity {
        return Ok(version);
    }
    let copies = reread_around_errors(core, copies, from, &f.header, patience).await?;
    let is_mirrored = f.header.class == Class::Mirrored;
    // Of two copies that were not read whole each may have what the other lacks, and a record still be whole on neither.
    let on_none = |range: Range<u32>| -> Result<(), StartError> {
        let lacks = |c: &Copy<B>| c.unreadable.iter().any(|s| *s < range.end && s + unit / 512 > range.start);
        let members: BTreeSet<u8> = copies.iter().map(|c| c.place.member).collect();
        if is_mirrored && copies.iter().all(lacks) { nowhere_else(core, &members, Some(f.header.volume)) } else { Ok(()) }
    };
    let mut repairs: Anew<B> = Vec::new();
    if !f.lacking.is_empty() {
        let header = B::from_bytes(&f.header.encode(key, unit as usize));
        repairs.extend(f.lacking.iter().map(|p| (*p, 0, vec![header.clone()])));
    }
    let (mut at, mut behind) = (from, from);
    let mut completed: Vec<Range<u32>> = Vec::new();
    while at < capacity {
        let place = RecordPlace { segment: f.number, generation: f.header.generation, offset: at };
        let records: Vec<Option<Record>> = copies.iter().map(|c| decode_at(key, unit, c, from, at, place)).collect();
        core.mark_if(at > behind && records.iter().any(Option::is_some), Mark::HoleSteppedOver);
        let Some(record) = records.iter().flatten().next().cloned() else {
            on_none(at..at + copies.iter().filter_map(|c| header_at(c, from, at)).max().unwrap_or(0))?;
            at += unit / 512;
            continue;
        };
        // For each piece, which copies hold it.
        let header_sectors = Record::header_sectors(record.entries.len(), unit as usize);
        let mut whole = vec![true; copies.len()];
        let mut good: Vec<Option<B>> = Vec::new();
        for (n, r) in records.iter().enumerate() {
            whole[n] &= r.is_some();
        }
        for e in record.entries.iter().filter(|e| e.kind.has_data()) {
            let mut best = None;
            for (n, c) in copies.iter().enumerate() {
                let part = cut(c, from, e.offset, u32::from(e.sectors));
                let seed = core.seed(f.header.volume, e.block, e.first, e.version);
                match part {
                    Some(part) if part.checksum(seed) == e.sum => best = Some(part),
                    _ => whole[n] = false,
                }
            }
            if best.is_none() && e.kind != EntryKind::Clean {
                on_none(e.offset..e.offset + u32::from(e.sectors))?;
            }
            good.push(best);
        }
        if whole.iter().any(|w| !w) && copies.len() > 1 {
            core.mark(Mark::RecordCompleted);
            let composed = compose::<B>(&record, key, unit, header_sectors, &good);
            for (c, _) in copies.iter().zip(&whole).filter(|(_, whole)| !**whole) {
                repairs.push((c.place, at, composed.clone()));
            }
            completed.push(at..at + record.sectors);
        }
        let mut data = good.iter();
        let has_data = |e: &Entry| !e.kind.has_data() || data.next().is_some_and(Option::is_some);
        version = version.max(replay_record(core, &f, volume.as_deref(), marks, &record, has_data));
        at += record.sectors.max(unit / 512);
        behind = at;
    }
    core.stats.borrow_mut().completed_at_start += repairs.len() as u64;
    // What else could not be read is what the start takes it for from now on: it may be a record that nobody has acknowledged, and be
    // readable at the next start.
    for c in &copies {
        for start in c.unreadable.iter().filter(|start| !completed.iter().any(|range| range.contains(start))) {
            core.mark(Mark::UnitWrittenAnew);
            anew.push((c.place, *start, vec![B::zeroes((capacity - start).min(unit / 512) as usize * 512)]));
        }
    }
    for m in write_all(core, repairs).await {
        core.fail_member(m).await;
    }
    Ok(version)
}

/// What a record says. Of its entries those count for which `is_there` says, asked once for each in their order, that their data is. Returns
/// the largest version.
fn replay_record<B: Buf>(
    core: &Core<B>,
    f: &Found,
    volume: Option<&Volume<B>>,
    marks: &mut LogMarks,
    record: &Record,
    mut is_there: impl FnMut(&Entry) -> bool,
) -> u64 {
    let mut version = 0;
    for e in &record.entries {
        version = version.max(e.version);
        let there = is_there(e);
        match e.kind {
            EntryKind::MarkClean | EntryKind::Forget => {
                core.segments.borrow_mut().marked(f.number);
                marks.push(*e);
            }
            kind if !there => {
                core.mark(Mark::DataOnNoCopy);
                if kind != EntryKind::Clean {
                    marks.unreadable(e);
                }
            }
            _ => {
                let Some(v) = volume.filter(|v| is_inside(&v.extent(), e.block, e.first, e.sectors)) else {
                    continue;
                };
                let dirty = e.kind != EntryKind::Clean;
                let zeroes = e.kind == EntryKind::Zeroes;
                let piece = Piece::new(e.version, e.sum, f.number, e.offset as u16, e.first, e.sectors, dirty, zeroes);
                v.map.borrow_mut().insert(&mut core.segments.borrow_mut(), e.block, piece);
            }
        }
    }
    version
}

/// A copy that could not be read in one piece is read in ever shorter ones, down to units: what is readable counts, the rest reads as zeroes. No
/// record shares a unit with another: one that is readable and was not seen could be there at the next start, when what
/// could not be read beside it has been written anew. An error where what may be dirty can be read on none of two members.
async fn reread_around_errors<B: Buf>(
    core: &Rc<Core<B>>,
    copies: Vec<Copy<B>>,
    from: u32,
    header: &SegmentHeader,
    patience: &Patience,
) -> Result<Vec<Copy<B>>, StartError> {
    if copies.iter().all(|c| c.data.is_some()) {
        return Ok(copies);
    }
    core.mark(Mark::ReadAroundErrors);
    let (unit, capacity) = (core.pool.borrow().unit / 512, core.pool.borrow().segment_sectors());
    let starts: Vec<u32> = (from..capacity).step_by(unit as usize).collect();
    let units = |c: &Copy<B>| {
        let (member, base) = (c.place.member, core.slot_offset(c.place));
        starts.iter().map(move |s| (member, base + u64::from(*s) * 512, (capacity - s).min(unit) * 512))
    };
    // All units of one copy, then all of the next.
    let ranges: Vec<_> = copies.iter().filter(|c| c.data.is_none()).flat_map(units).collect();
    let read = patience.read_narrowing(core, &ranges, starts.len()).await;
    let is_read = |unit: usize| read.iter().skip(unit).step_by(starts.len()).any(Option::is_some);
    let nowhere = copies.iter().all(|c| c.data.is_none()) && !(0..starts.len()).all(is_read);
    if nowhere && header.class == Class::Mirrored {
        nowhere_else(core, &copies.iter().map(|c| c.place.member).collect(), Some(header.volume))?;
    }
    let mut read = read.into_iter().zip(&ranges);
    let whole = |c: Copy<B>| {
        if c.data.is_some() {
            return c;
        }
        let mut unreadable = Vec::new();
        let parts: Vec<B> = starts
            .iter()
            .zip(read.by_ref())
            .map(|(start, (part, (_, _, len)))| {
                part.unwrap_or_else(|| {
                    unreadable.push(*start);
                    B::zeroes(*len as usize)
                })
            })
            .collect();
        Copy { place: c.place, data: Some(B::join(&parts)), unreadable }
    };
    Ok(copies.into_iter().map(whole).collect())
}

/// Sectors of the header of what may be a record at `at`, where one is begun that can be read.
fn header_at<B: Buf>(copy: &Copy<B>, from: u32, at: u32) -> Option<u32> {
    let data = copy.data.as_ref()?;
    let start = (at - from) as usize * 512;
    let len = Record::peek_len(&data.slice(start..(start + 512).min(data.len())).to_bytes())?;
    Some(len.div_ceil(512) as u32)
}

fn decode_at<B: Buf>(key: u64, unit: u32, copy: &Copy<B>, from: u32, at: u32, place: RecordPlace) -> Option<Record> {
    let data = copy.data.as_ref()?;
    let rest = data.slice((at - from) as usize * 512..data.len());
    record_at(key, unit, &rest, place, from + (data.len() / 512) as u32)
}

/// The record whose header is at the beginning of `data`, and that ends before sector `capacity` of its segment.
pub(crate) fn record_at<B: Buf>(key: u64, unit: u32, data: &B, place: RecordPlace, capacity: u32) -> Option<Record> {
    let len = Record::peek_len(&data.slice(0..data.len().min(512)).to_bytes()).filter(|len| *len <= data.len())?;
    let record = Record::decode(key, &data.slice(0..len).to_bytes(), place).ok()?;
    // The data of the entries lies in their order behind the header, and within the record.
    let end = place.offset.checked_add(record.sectors)?;
    let mut next = place.offset + Record::header_sectors(record.entries.len(), unit as usize);
    for e in record.entries.iter().filter(|e| e.kind.has_data()) {
        if e.offset != next {
            return None;
        }
        next += u32::from(e.sectors);
    }
    (next <= end && end <= capacity).then_some(record)
}

fn cut<B: Buf>(copy: &Copy<B>, from: u32, offset: u32, sectors: u32) -> Option<B> {
    let data = copy.data.as_ref()?;
    let start = offset.checked_sub(from)? as usize * 512;
    let end = start + sectors as usize * 512;
    (end <= data.len()).then(|| data.slice(start..end))
}

/// The record as it should be on every copy; pieces that no copy holds are zeroes, and stay invalid.
fn compose<B: Buf>(record: &Record, key: u64, unit: u32, header_sectors: u32, good: &[Option<B>]) -> Vec<B> {
    let mut bufs = vec![B::from_bytes(&record.encode_header(key, unit as usize))];
    let mut sectors = header_sectors;
    for (e, data) in record.entries.iter().filter(|e| e.kind.has_data()).zip(good) {
        sectors += u32::from(e.sectors);
        bufs.push(data.clone().unwrap_or_else(|| B::zeroes(usize::from(e.sectors) * 512)));
    }
    if sectors < record.sectors {
        bufs.push(B::zeroes((record.sectors - sectors) as usize * 512));
    }
    bufs
}
