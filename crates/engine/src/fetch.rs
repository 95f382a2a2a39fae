//! Reading cached pieces from the members: merged, spread over copies, verified, repaired from the twin.

use crate::core::{Core, Volume};
use crate::exec::IoWait;
use crate::io::{Buf, Device, DeviceOp, Reach};
use crate::map::Piece;
use crate::marks::Mark;
use crate::segments::Segment;
use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::rc::Rc;
use alloc::vec;
use alloc::vec::Vec;
use core::ops::Range;
use headpond_format::Place;

/// A piece whose data could not be had from any copy.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Unreadable;

/// A run of pieces that lie one after the other in a segment.
struct Run {
    segment: u32,
    start: u32,
    sectors: u32,
    /// Which of the pieces, in their order on the members, are in it.
    pieces: Range<usize>,
}

/// Longest stretch between two pieces that is read with them: the header of the record that the second is in. One request that is a
/// little longer costs a device less than two.
const GAP: u32 = 8;
/// Most sectors of one read.
const LONGEST: u32 = 2048;

/// Who wants what is read.
#[derive(Clone, Copy, PartialEq, Eq)]
enum For {
    /// A client, who waits for it.
    Client,
    /// Nobody yet: what fails is left to those who will want it, who also find and repair what is damaged.
    Ahead,
    /// What goes on beside clients' requests, and leaves the members to them.
    Housekeeping,
}

/// Reads the whole span of each piece, verified. The pieces' segments are pinned from the call on, before anything else
/// can run: what was planned is what is read, whatever is cleaned or evicted meanwhile.
pub(crate) async fn fetch<B: Buf>(
    core: &Rc<Core<B>>,
    volume: &Rc<Volume<B>>,
    pieces: &[(u64, Piece)],
) -> Vec<Result<B, Unreadable>> {
    fetch_for(core, volume, pieces, For::Client).await
}

/// The same for nobody yet.
pub(crate) async fn fetch_ahead<B: Buf>(
    core: &Rc<Core<B>>,
    volume: &Rc<Volume<B>>,
    pieces: &[(u64, Piece)],
) -> Vec<Result<B, Unreadable>> {
    fetch_for(core, volume, pieces, For::Ahead).await
}

/// The same for destage, for what moves and for what is carried over: no more at once than a member serves in a moment
/// ([`crate::policy::credit`]).
pub(crate) async fn fetch_aside<B: Buf>(
    core: &Rc<Core<B>>,
    volume: &Rc<Volume<B>>,
    pieces: &[(u64, Piece)],
) -> Vec<Result<B, Unreadable>> {
    fetch_for(core, volume, pieces, For::Housekeeping).await
}

async fn fetch_for<B: Buf>(
    core: &Rc<Core<B>>,
    volume: &Rc<Volume<B>>,
    pieces: &[(u64, Piece)],
    whom: For,
) -> Vec<Result<B, Unreadable>> {
    let (order, runs) = merged(pieces, GAP);
    runs.iter().for_each(|run| core.segments.borrow_mut().pin(run.segment));
    let mut out: Vec<Result<B, Unreadable>> = vec![Err(Unreadable); pieces.len()];
    let mut reads: VecDeque<Option<Reading<B>>> = VecDeque::with_capacity(runs.len());
    let mut begun = 0;
    for run in &runs {
        while begun < runs.len() {
            let next = &runs[begun];
            let ended = core.reads_ended.wait();
            let place = core.segments.borrow().get(next.segment).and_then(|s| pick(core, s.places()));
            if whom == For::Housekeeping && place.is_some_and(|p| !has_credit(core, p.member)) {
                // Who has something under way waits for that, and gives back what it had: nobody waits for another's end while he
                // keeps others waiting.
                if !reads.is_empty() {
                    break;
                }
                ended.await;
                continue;
            }
            reads.push_back(place.map(|p| start_read(core, p, next.start, next.sectors, whom)));
            begun += 1;
        }
        let Some(read) = reads.pop_front() else { break };
        let tried = read.as_ref().map(|r| r.place);
        let data = match read {
            Some(read) => finish_read(core, read).await,
            None => None,
        };
        for i in &order[run.pieces.clone()] {
            let (block, piece) = &pieces[*i];
            let from = (u32::from(piece.offset) - run.start) as usize * 512;
            let part = data.as_ref().map(|d| d.slice(from..from + usize::from(piece.sectors()) * 512));
            out[*i] = match part {
                Some(part) if verify(core, volume, *block, piece, &part) => Ok(part),
                _ if whom != For::Ahead => from_twin(core, volume, *block, piece, tried).await,
                _ => Err(Unreadable),
            };
        }
        let mut segments = core.segments.borrow_mut();
        segments.unpin(run.segment);
        segments.settle();
    }
    out
}

/// Pieces in their order on the members, by number, and as runs of those that lie one after the other, with no more than `gap` sectors
/// between.
fn merged(pieces: &[(u64, Piece)], gap: u32) -> (Vec<usize>, Vec<Run>) {
    let mut runs: Vec<Run> = Vec::with_capacity(pieces.len());
    let mut order: Vec<usize> = (0..pieces.len()).collect();
    order.sort_unstable_by_key(|i| (pieces[*i].1.segment, pieces[*i].1.offset));
    for (n, i) in order.iter().enumerate() {
        let p = pieces[*i].1;
        let (at, end) = (u32::from(p.offset), u32::from(p.offset) + u32::from(p.sectors()));
        match runs.last_mut() {
            Some(r) if r.segment == p.segment && at <= r.start + r.sectors + gap && end <= r.start + LONGEST => {
                r.sectors = r.sectors.max(end - r.start);
                r.pieces.end = n + 1;
            }
            _ => runs.push(Run { segment: p.segment, start: at, sectors: end - at, pieces: n..n + 1 }),
        }
    }
    (order, runs)
}

/// Which of a segment's pieces the copy on one member does not hold as they should be. The segment is pinned by the caller.
pub(crate) async fn damaged_on<B: Buf>(
    core: &Rc<Core<B>>,
    volume: &Rc<Volume<B>>,
    member: u8,
    pieces: &[(u64, Piece)],
) -> Vec<usize> {
    let mut damaged = Vec::new();
    // Nothing but the pieces: what lies between may be damaged, and concerns nobody.
    let (order, runs) = merged(pieces, 0);
    for run in runs {
        let place = core.segments.borrow().get(run.segment).and_then(|s| s.places().find(|p| p.member == member));
        let Some(place) = place else { continue };
        let read = start_read(core, place, run.start, run.sectors, For::Housekeeping);
        let data = finish_read(core, read).await;
        for i in &order[run.pieces] {
            let (block, piece) = &pieces[*i];
            let from = (u32::from(piece.offset) - run.start) as usize * 512;
            let part = data.as_ref().map(|d| d.slice(from..from + usize::from(piece.sectors()) * 512));
            if !part.is_some_and(|part| verify(core, volume, *block, piece, &part)) {
                damaged.push(*i);
            }
        }
    }
    damaged
}

/// As [`fetch`], for one piece: what most reads are.
pub(crate) async fn fetch_one<B: Buf>(
    core: &Rc<Core<B>>,
    volume: &Rc<Volume<B>>,
    block: u64,
    piece: &Piece,
) -> Result<B, Unreadable> {
    let (at, n) = (u32::from(piece.offset), u32::from(piece.sectors()));
    let place = {
        let mut segments = core.segments.borrow_mut();
        segments.pin(piece.segment);
        segments.get(piece.segment).and_then(|s| pick(core, s.places()))
    };
    let data = match place {
        Some(place) => finish_read(core, start_read(core, place, at, n, For::Client)).await,
        None => None,
    };
    let result = match data {
        Some(data) if verify(core, volume, block, piece, &data) => Ok(data),
        // In a box: see `Exec::spawn_small`.
        _ => Box::pin(from_twin(core, volume, block, piece, place)).await,
    };
    let mut segments = core.segments.borrow_mut();
    segments.unpin(piece.segment);
    segments.settle();
    result
}

/// Whether the data is what the map says: the checksum is bound to volume, block and version.
pub(crate) fn verify<B: Buf>(core: &Core<B>, volume: &Volume<B>, block: u64, piece: &Piece, data: &B) -> bool {
    data.checksum(core.seed(volume.number, block, piece.first(), piece.version())) == piece.sum
}

/// The copy on the member with least to do.
fn pick<B: Buf>(core: &Core<B>, places: impl Iterator<Item = Place>) -> Option<Place> {
    let reading = core.reading.borrow();
    let pool = core.pool.borrow();
    places.filter(|p| pool.is_in_sync(p.member)).min_by_key(|p| reading.get(usize::from(p.member)).map_or(0, |r| r.in_flight))
}

/// Whether housekeeping may have one more read under way on a member.
fn has_credit<B: Buf>(core: &Core<B>, member: u8) -> bool {
    core.reading.borrow().get(usize::from(member)).is_none_or(|r| r.aside < r.credit.most())
}

/// A read that is under way.
struct Reading<B: Buf> {
    wait: IoWait<B>,
    place: Place,
    start: u32,
    sectors: u32,
    whom: For,
    /// Reads that it found there, and when.
    line: u32,
    since: u64,
}

/// Begins to read sectors of a segment's copy, widened to the device's unit.
fn start_read<B: Buf>(core: &Rc<Core<B>>, place: Place, start: u32, sectors: u32, whom: For) -> Reading<B> {
    let (from, to) = widened(core, start, sectors);
    let mut line = 0;
    if let Some(reads) = core.reading.borrow_mut().get_mut(usize::from(place.member)) {
        line = reads.in_flight;
        reads.in_flight += 1;
        reads.aside += u32::from(whom == For::Housekeeping);
    }
    let op = DeviceOp::Read { offset: core.slot_offset(place) + u64::from(from) * 512, len: (to - from) * 512, into: None };
    let wait = core.exec.io(Device::Member(place.member), op);
    Reading { wait, place, start, sectors, whom, line, since: core.now() }
}

fn widened<B: Buf>(core: &Core<B>, start: u32, sectors: u32) -> (u32, u32) {
    let unit = core.pool.borrow().unit / 512;
    (start / unit * unit, (start + sectors).next_multiple_of(unit))
}

async fn finish_read<B: Buf>(core: &Rc<Core<B>>, read: Reading<B>) -> Option<B> {
    let Reading { wait, place, start, sectors, whom, line, since } = read;
    let result = wait.await;
    if let Some(reads) = core.reading.borrow_mut().get_mut(usize::from(place.member)) {
        reads.in_flight -= 1;
        if whom == For::Housekeeping {
            reads.aside -= 1;
            reads.credit.note(core.now() - since, line);
        }
    }
    if whom == For::Housekeeping {
        core.reads_ended.notify();
    }
    let (from, to) = widened(core, start, sectors);
    match result {
        Ok(Some(data)) if data.len() == (to - from) as usize * 512 => {
            let skip = (start - from) as usize * 512;
            Some(data.slice(skip..skip + sectors as usize * 512))
        }
        _ => None,
    }
}

/// What makes a place the copy that it was when it was found damaged.
#[derive(PartialEq, Eq)]
struct Whose {
    /// The segment's generation, if it has a copy there, on a device that is in sync.
    generation: Option<u64>,
    /// The device, whatever its number.
    device: Option<[u8; 16]>,
}

impl Whose {
    fn copy<B: Buf>(core: &Core<B>, segment: u32, place: Place) -> Self {
        let (segments, pool) = (core.segments.borrow(), core.pool.borrow());
        let has_it = |s: &&Segment| s.places().any(|p| p == place) && pool.is_in_sync(place.member);
        Self {
            generation: segments.get(segment).filter(has_it).map(|s| s.generation),
            device: pool.members.get(usize::from(place.member)).map(|m| m.id),
        }
    }
}

/// A piece that could not be read, or failed its checksum, on the copy first tried: from the other copy, which then
/// repairs the first.
pub(crate) async fn from_twin<B: Buf>(
    core: &Rc<Core<B>>,
    volume: &Rc<Volume<B>>,
    block: u64,
    piece: &Piece,
    tried: Option<Place>,
) -> Result<B, Unreadable> {
    let places: Vec<Place> = match core.segments.borrow().get(piece.segment) {
        Some(s) => s.places().filter(|p| core.pool.borrow().is_in_sync(p.member)).collect(),
        None => Vec::new(),
    };
    let (at, n) = (u32::from(piece.offset), u32::from(piece.sectors()));
    let whose = tried.map(|t| Whose::copy(core, piece.segment, t));
    // The other copy first; then the same one again, alone: of a merged read only a part may be bad.
    let mut candidates: Vec<Place> = places.iter().copied().filter(|p| Some(*p) != tried).collect();
    candidates.extend(tried.filter(|p| places.contains(p)));
    for place in candidates {
        let Some(data) = finish_read(core, start_read(core, place, at, n, For::Client)).await else { continue };
        if !verify(core, volume, block, piece, &data) {
            continue;
        }
        core.mark_if(Some(place) == tried, Mark::ReadAgainAlone);
        core.mark_if(Some(place) != tried && piece.dirty(), Mark::DirtyFromTwin);
        // Who has left since is damaged no more than whoever has its number.
        let is_bad = |t: &Place| *t != place && places.contains(t) && whose == Some(Whose::copy(core, piece.segment, *t));
        if let Some(bad) = tried.filter(is_bad) {
            core.found_damaged(bad.member);
        }
        let unit_aligned = widened(core, at, n) == (at, at + n);
        // The other copy may have taken its time: a place that is another's by now, or on a device that has come since, is not ours to
        // write to.
        let repair = tried.filter(|t| *t != place && places.contains(t) && unit_aligned).filter(|t| {
            let is_still = whose == Some(Whose::copy(core, piece.segment, *t));
            core.mark_if(!is_still, Mark::RepairTooLate);
            is_still
        });
        // One writer per range (R13): two reads may find the same damage.
        let key = |p: Place| (p.member, p.slot, at);
        if let Some(bad) = repair.filter(|p| core.repairing.borrow_mut().insert(key(*p))) {
            let op = DeviceOp::Write {
                offset: core.slot_offset(bad) + u64::from(at) * 512,
                bufs: vec![data.clone()],
                reach: Reach::Cache,
            };
            match core.exec.io(Device::Member(bad.member), op).await {
                Ok(_) => {
                    core.member_flusher(bad.member).wrote();
                    core.stats.borrow_mut().repaired += 1;
                    core.mark(Mark::CopyRepaired);
                }
                Err(_) => {
                    core.mark(Mark::RepairFails);
                    core.fail_member(bad.member).await;
                }
            }
            core.repairing.borrow_mut().remove(&key(bad));
        }
        return Ok(data);
    }
    for place in places.iter().filter(|p| core.pool.borrow().is_in_sync(p.member)) {
        core.found_damaged(place.member);
    }
    let mut stats = core.stats.borrow_mut();
    core.mark(if piece.dirty() { Mark::DirtyDamaged } else { Mark::CleanDamaged });
    if piece.dirty() {
        stats.damaged_dirty += 1;
    } else {
        stats.damaged_clean += 1;
    }
    Err(Unreadable)
}
