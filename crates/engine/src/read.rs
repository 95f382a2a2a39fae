//! The life of a read.

use crate::ahead;
use crate::around;
use crate::core::{Core, Volume};
use crate::disk_use::{DiskWants, UsesDisk};
use crate::fetch::{fetch, fetch_one};
use crate::fills::{Fill, insert_clean};
use crate::io::{BLOCK, BLOCK_SECTORS, Buf, DeviceOp, RequestError};
use crate::map::{Piece, mask, runs};
use crate::marks::Mark;
use crate::policy::endurance::Wish;
use crate::policy::route::Side;
use crate::policy::through::{BESIDE, Joins, disk_reads};
use crate::ranges::meet;
use crate::stats::Fate;
use alloc::boxed::Box;
use alloc::rc::Rc;
use alloc::vec;
use alloc::vec::Vec;
use core::ops::Range;
use headpond_format::Mode;

/// Where a run of sectors of a read comes from.
enum Source {
    /// A cached piece, by its number in the plan.
    Cached(usize),
    /// Zeroes that the disk does not have yet.
    Zeroes,
    /// The disk, by number of the disk read in the plan.
    Disk(usize),
}

struct Part {
    range: Range<u64>,
    source: Source,
}

/// A read taken apart: nothing in it changes any more, whatever happens to the map.
struct Plan {
    pieces: Vec<(u64, Piece)>,
    disk: Vec<Range<u64>>,
    missing: Vec<Range<u64>>,
    parts: Vec<Part>,
    lost: bool,
    /// The disk reads all of it, and what is dirty is laid over: all that is cached of it is clean, and the disk is expected to be
    /// sooner; or some was damaged.
    by_disk: bool,
    /// The disk reads something that is cached.
    reads_more: bool,
}

/// How a read is taken apart.
#[derive(Clone, Copy)]
struct Ways {
    /// The disk is expected to serve all of it sooner.
    sooner: bool,
    /// Some of what is clean was damaged.
    damaged: bool,
    /// What the disk reads more than what is missing.
    joins: Joins,
}

/// Reads a range of grid sectors, into what the client lends where nobody but the client wants what the disk reads.
pub(crate) async fn read<B: Buf>(
    core: &Rc<Core<B>>,
    volume: &Rc<Volume<B>>,
    range: Range<u64>,
    into: Option<&B>,
) -> Result<(Vec<B>, Fate), RequestError> {
    let sectors = range.end - range.start;
    let belongs = volume.reads.borrow_mut().note(range.start, sectors, 0, false);
    let stream = belongs.is_stream(core.settings.stream_bytes);
    let (mut disk_failed, mut damaged) = (false, false);
    // A damaged clean piece is let go, and all that is clean is read from the disk instead.
    for _ in 0..4 {
        ahead::wait(core, volume, &range).await;
        let (ssd_line, disk_line, since) = (volume.ssd_line(), volume.disk_use.under_way.get(), core.now());
        let beside_streams = volume.disk_use.streams.get() > 0 && !stream;
        let joins = match disk_failed {
            true => Joins::Nothing,
            false if stream && belongs.run_sectors > sectors => beside(core, volume, &range),
            false => Joins::Between,
        };
        let sooner = core.settings.route
            && volume.has_disk()
            && !disk_failed
            && (joins.passes(sectors) && !ahead::is_small(core, &range)
                || volume.read_route.borrow().prefers_disk(since, sectors * 512, ssd_line, disk_line, beside_streams));
        let note = |side, line| volume.read_route.borrow_mut().note(side, core.now(), sectors * 512, line, core.now() - since);
        if let Some((block, piece)) = sole(core, volume, &range, stream).filter(|(_, p)| p.dirty() || !sooner) {
            ahead::follow(core, volume, &range, belongs);
            let from = (range.start - block * BLOCK_SECTORS - u64::from(piece.first())) as usize * 512;
            let wanted = from..from + sectors as usize * 512;
            if let Some(kept) = ahead::kept(core, volume, &[(block, piece)]) {
                return Ok((kept.iter().map(|data| data.slice(wanted.clone())).collect(), hit_ahead(volume, sectors * 512)));
            }
            if !stream {
                let_others_find(core, volume, block, &piece);
            }
            volume.hitting.set(volume.hitting.get() + 1);
            let fetched = fetch_one(core, volume, block, &piece).await;
            volume.hitting.set(volume.hitting.get() - 1);
            match fetched {
                Ok(data) => {
                    note(Side::Ssd, ssd_line);
                    volume.stats.borrow_mut().hit.add(sectors * 512);
                    return Ok((vec![data.slice(wanted)], Fate::Hit));
                }
                Err(_) => {
                    let_go(core, volume, &[(block, piece)])?;
                    continue;
                }
            }
        }
        if let Some(waiting) = volume.fills.waiting(&range) {
            core.mark(Mark::ServedWhileItWaits);
            volume.stats.borrow_mut().hit.add(sectors * 512);
            return Ok((waiting, Fate::Hit));
        }
        let plan = plan(core, volume, &range, Ways { sooner, damaged, joins });
        if !stream {
            volume.map.borrow().ask(&Volume::<B>::blocks(&range));
        }
        if plan.lost {
            core.mark(Mark::LostRangeFails);
            return Err(RequestError::Io);
        }
        if plan.disk.is_empty() && !plan.pieces.is_empty() {
            ahead::follow(core, volume, &range, belongs);
            if let Some(kept) = ahead::kept(core, volume, &plan.pieces) {
                let kept: Vec<_> = kept.into_iter().map(Ok).collect();
                return Ok((assemble(&plan, &kept, &[]), hit_ahead(volume, sectors * 512)));
            }
        }
        let let_in = admits(core, volume, &range, stream) && is_borne(core, volume, &range, &plan.missing);
        let fills = if let_in { register(volume, &plan.missing) } else { Vec::new() };
        core.mark_if(fills.iter().any(Option::is_none), Mark::FillKeptOut);
        let version = if fills.is_empty() { 0 } else { core.next_version() };
        let wants = if stream { DiskWants::StreamRead } else { DiskWants::LoneRead };
        let using: Option<UsesDisk<B>> = (!plan.disk.is_empty()).then(|| core.use_disk(volume, wants));
        // What is admitted is looked at when the client has its memory back.
        let into = into.filter(|_| fills.iter().all(Option::is_none));
        let disk: Vec<_> = plan
            .disk
            .iter()
            .map(|r| {
                let (from, to) = ((r.start - range.start) as usize * 512, (r.end - range.start) as usize * 512);
                let into = into.map(|lent| lent.slice(from..to));
                let op = DeviceOp::Read { offset: volume.disk_offset(r.start), len: (r.end - r.start) as u32 * 512, into };
                core.exec.io(volume.device(), op)
            })
            .collect();
        let hits = u32::from(plan.disk.is_empty());
        volume.hitting.set(volume.hitting.get() + hits);
        // In a box: see `Exec::spawn_small`.
        let cached = Box::pin(fetch(core, volume, &plan.pieces)).await;
        volume.hitting.set(volume.hitting.get() - hits);
        let mut from_disk: Vec<B> = Vec::with_capacity(disk.len());
        let mut failed = false;
        for (wait, r) in disk.into_iter().zip(&plan.disk) {
            match wait.await {
                Ok(Some(data)) if data.len() as u64 == (r.end - r.start) * 512 => from_disk.push(data),
                _ => failed = true,
            }
        }
        drop(using);
        if failed && plan.reads_more {
            // What is cached need not have been asked of it.
            volume.fills.end(&fills);
            volume.read_route.borrow_mut().disk_failed(core.now(), sectors * 512);
            (disk_failed, damaged) = (true, false);
            continue;
        }
        if failed {
            volume.fills.end(&fills);
            return Err(RequestError::Io);
        }
        let bad: Vec<(u64, Piece)> = plan.pieces.iter().zip(&cached).filter(|(_, r)| r.is_err()).map(|(p, _)| *p).collect();
        if !bad.is_empty() {
            volume.fills.end(&fills);
            let_go(core, volume, &bad)?;
            // Of many pieces on a device that reads badly each round would find another one.
            damaged = true;
            continue;
        }
        match (plan.disk.is_empty(), plan.pieces.is_empty()) {
            (true, false) => note(Side::Ssd, ssd_line),
            (false, true) => note(Side::Disk, disk_line),
            _ => {}
        }
        count(volume, &plan, sectors * 512, stream);
        let stands_alone = fills.iter().any(Option::is_some) && belongs.run_sectors <= sectors;
        admit(core, volume, &plan, &from_disk, fills, version);
        if stands_alone {
            let took = (core.now() - since) / (u64::from(disk_line) + 1);
            around::missed(core, volume, &Volume::<B>::blocks(&range), took);
        }
        return Ok((assemble(&plan, &cached, &from_disk), fate(&plan, stream)));
    }
    Err(RequestError::Io)
}

/// Counts a hit that was answered from memory. What the cache devices need for one it does not tell.
fn hit_ahead<B: Buf>(volume: &Volume<B>, bytes: u64) -> Fate {
    let stats = &mut *volume.stats.borrow_mut();
    stats.hit.add(bytes);
    stats.hit_ahead.add(bytes);
    Fate::Hit
}

/// The one cached piece that holds all of a range: what most hits are, and nothing needs to be put together.
///
/// That it was asked for is noted, but not of a stream: it will not be soon again.
fn sole<B: Buf>(core: &Core<B>, volume: &Volume<B>, range: &Range<u64>, stream: bool) -> Option<(u64, Piece)> {
    let block = range.start / BLOCK_SECTORS;
    if range.end > (block + 1) * BLOCK_SECTORS {
        return None;
    }
    let wanted = mask((range.start % BLOCK_SECTORS) as u8, (range.end - range.start) as u8);
    let mut found = None;
    let mut look = |p: &Piece| {
        if p.live & wanted == wanted && !p.zeroes() {
            found = Some(*p);
        }
    };
    let map = volume.map.borrow();
    if stream {
        map.each(block, &mut look)
    } else {
        map.each_asked(block, &mut look)
    }
    let segments = core.segments.borrow();
    found.filter(|p| segments.get(p.segment).is_some_and(|s| s.places().next().is_some())).map(|p| (block, p))
}

/// Has other threads find a block that is one piece, and begins where its devices can be read.
fn let_others_find<B: Buf>(core: &Core<B>, volume: &Volume<B>, block: u64, piece: &Piece) {
    let map = volume.map.borrow();
    let (pool, segments) = (core.pool.borrow(), core.segments.borrow());
    let Some(segment) = segments.get(piece.segment).filter(|_| map.lookaside().is_some()) else { return };
    let unit = u64::from(pool.unit);
    let at = u64::from(piece.offset) * 512;
    if piece.live != mask(0, BLOCK_SECTORS as u8) || piece.first() != 0 || !at.is_multiple_of(unit) || !BLOCK.is_multiple_of(unit)
    {
        return;
    }
    let mut there = segment.places().filter(|place| pool.is_in_sync(place.member));
    let places = [(); 2].map(|()| there.next().map(|place| (place.member, core.slot_offset(place) + at)));
    map.let_others_find(block, piece, places);
    core.mark(Mark::OthersMayFind);
}

/// Lets go of pieces that no copy could be read of: the disk has them. What is dirty stays, and its range fails; unless it
/// is elsewhere by now, for it was moved while the read was under way.
pub(crate) fn let_go<B: Buf>(core: &Core<B>, volume: &Volume<B>, bad: &[(u64, Piece)]) -> Result<(), RequestError> {
    let is_there = |block: u64, bad: &Piece| {
        let mut there = false;
        volume.map.borrow().each(block, |p| {
            there |= p.is_same(bad) && p.dirty();
        });
        there
    };
    if bad.iter().any(|(block, p)| p.dirty() && is_there(*block, p)) {
        return Err(RequestError::Io);
    }
    core.mark_if(bad.iter().any(|(_, p)| p.dirty()), Mark::MovedUnderARead);
    core.mark_if(bad.iter().any(|(_, p)| !p.dirty()), Mark::DamagedLetGo);
    let mut map = volume.map.borrow_mut();
    let mut segments = core.segments.borrow_mut();
    for (block, piece) in bad {
        map.drop_clean(&mut segments, *block, |p| (p.segment, p.offset) == (piece.segment, piece.offset));
    }
    segments.settle();
    Ok(())
}

/// What is cached right beside a request of a stream, where the disk serves no others: those who read here and there want its heads for
/// something else than what passes under them.
fn beside<B: Buf>(core: &Core<B>, volume: &Volume<B>, range: &Range<u64>) -> Joins {
    if volume.disk_use.lone_reads.get() > 0 || volume.disk_use.is_idle(core.now(), core.settings.idle_ns) {
        return Joins::Between;
    }
    let (map, extent, blocks) = (volume.map.borrow(), volume.extent(), Volume::<B>::blocks(range));
    let before = map.cached_before(blocks.start, BESIDE / BLOCK_SECTORS) * BLOCK_SECTORS;
    let behind = map.cached_from(blocks.end, BESIDE / BLOCK_SECTORS) * BLOCK_SECTORS;
    // Beyond the volume's ends nothing is missing.
    Joins::Stream {
        before: if range.start.saturating_sub(before) > extent.start { before } else { u64::MAX },
        behind: if range.end + behind < extent.end { behind } else { u64::MAX },
    }
}

/// Takes the range apart by what is cached now. Dirty pieces are laid over whatever the disk returns.
fn plan<B: Buf>(core: &Core<B>, volume: &Volume<B>, range: &Range<u64>, ways: Ways) -> Plan {
    let mut plan = Plan {
        pieces: Vec::new(),
        disk: Vec::new(),
        missing: Vec::new(),
        parts: Vec::new(),
        lost: false,
        by_disk: false,
        reads_more: false,
    };
    let blocks = Volume::<B>::blocks(range);
    let mut cached: Vec<(Range<u64>, u64, Piece)> = Vec::new();
    let segments = core.segments.borrow();
    volume.map.borrow().each_in(blocks.clone(), |block, p| {
        let there = p.zeroes() || segments.get(p.segment).is_some_and(|s| s.places().next().is_some());
        for run in runs(p.live) {
            let r = (block * BLOCK_SECTORS + run.start).max(range.start)..(block * BLOCK_SECTORS + run.end).min(range.end);
            if r.start < r.end {
                if there {
                    cached.reserve(if cached.is_empty() { (blocks.end - block) as usize } else { 1 });
                    cached.push((r, block, *p));
                } else if p.dirty() {
                    plan.lost = true;
                }
            }
        }
    });
    cached.sort_unstable_by_key(|c| c.0.start);
    let mut at = range.start;
    for (r, ..) in &cached {
        if at < r.start {
            plan.missing.push(at..r.start);
        }
        at = r.end;
    }
    if at < range.end {
        plan.missing.push(at..range.end);
    }
    if !volume.has_disk() {
        // What was never written, or is discarded.
        plan.parts.extend(plan.missing.drain(..).map(|range| Part { range, source: Source::Zeroes }));
    }
    // What is clean is the same on the disk, and what it was when the read began it may have been read as.
    let all_clean = cached.iter().all(|(_, _, p)| !p.dirty());
    plan.by_disk = !plan.lost && (ways.sooner && all_clean || ways.damaged && volume.has_disk());
    plan.disk = if plan.by_disk { vec![range.clone()] } else { disk_reads(range, &plan.missing, ways.joins) };
    let sectors = |ranges: &[Range<u64>]| ranges.iter().map(|r| r.end - r.start).sum::<u64>();
    plan.reads_more = sectors(&plan.disk) > sectors(&plan.missing);
    for (n, d) in plan.disk.iter().enumerate() {
        plan.parts.push(Part { range: d.clone(), source: Source::Disk(n) });
    }
    // Clean pieces inside what the disk reads anyway need not be read from the cache.
    plan.pieces.reserve(cached.len());
    let from_disk = |r: &Range<u64>| plan.disk.iter().any(|d| d.start <= r.start && r.end <= d.end);
    let mut index: Option<(u64, u32, u16, usize)> = None;
    let mut over = Vec::with_capacity(cached.len());
    for (r, block, p) in cached {
        if !p.dirty() && from_disk(&r) {
            continue;
        }
        let source = if p.zeroes() {
            Source::Zeroes
        } else {
            let n = match index {
                Some((b, s, o, n)) if (b, s, o) == (block, p.segment, p.offset) => n,
                _ => {
                    plan.pieces.push((block, p));
                    plan.pieces.len() - 1
                }
            };
            index = Some((block, p.segment, p.offset, n));
            Source::Cached(n)
        };
        over.push(Part { range: r, source });
    }
    plan.parts.extend(over);
    plan
}

/// The data in order: the disk's, with the cached pieces laid over.
fn assemble<B: Buf>(plan: &Plan, cached: &[Result<B, crate::fetch::Unreadable>], disk: &[B]) -> Vec<B> {
    // Later parts win: cut the earlier ones to what is left of them.
    let mut whole: Vec<(Range<u64>, usize)> = Vec::with_capacity(plan.parts.len());
    for (n, part) in plan.parts.iter().enumerate() {
        if matches!(part.source, Source::Disk(_)) {
            let mut at = part.range.start;
            let mut covers: Vec<&Range<u64>> = plan
                .parts
                .iter()
                .filter(|o| !matches!(o.source, Source::Disk(_)) && meet(&o.range, &part.range))
                .map(|o| &o.range)
                .collect();
            covers.sort_unstable_by_key(|r| r.start);
            for c in covers {
                if at < c.start {
                    whole.push((at..c.start, n));
                }
                at = at.max(c.end);
            }
            if at < part.range.end {
                whole.push((at..part.range.end, n));
            }
        } else {
            whole.push((part.range.clone(), n));
        }
    }
    whole.sort_unstable_by_key(|w| w.0.start);
    let mut out = Vec::with_capacity(whole.len());
    for (r, n) in whole {
        let len = (r.end - r.start) as usize * 512;
        match &plan.parts[n].source {
            Source::Zeroes => out.push(B::zeroes(len)),
            Source::Disk(d) => {
                let from = (r.start - plan.disk[*d].start) as usize * 512;
                out.push(disk[*d].slice(from..from + len));
            }
            Source::Cached(c) => {
                let (block, piece) = &plan.pieces[*c];
                let from = (r.start - block * BLOCK_SECTORS - u64::from(piece.first())) as usize * 512;
                if let Ok(data) = &cached[*c] {
                    out.push(data.slice(from..from + len));
                }
            }
        }
    }
    out
}

fn fate(plan: &Plan, stream: bool) -> Fate {
    if plan.by_disk && plan.missing.is_empty() {
        Fate::ReadBypass
    } else if plan.missing.is_empty() {
        Fate::Hit
    } else if !plan.pieces.is_empty() {
        Fate::PartialHit
    } else if stream {
        Fate::ReadBypass
    } else {
        Fate::Miss
    }
}

fn count<B: Buf>(volume: &Volume<B>, plan: &Plan, bytes: u64, stream: bool) {
    let stats = &mut *volume.stats.borrow_mut();
    let count = match fate(plan, stream) {
        Fate::Hit => &mut stats.hit,
        Fate::PartialHit => &mut stats.partial_hit,
        Fate::ReadBypass => &mut stats.read_bypass,
        _ => &mut stats.miss,
    };
    count.add(bytes);
}

/// Whether what a read of this range misses is to be admitted: of what is pinned always.
fn admits<B: Buf>(core: &Core<B>, volume: &Volume<B>, range: &Range<u64>, stream: bool) -> bool {
    let wanted = !stream && (range.end - range.start) * 512 <= core.settings.admit_bytes;
    volume.mode() != Mode::PassThrough
        && (wanted || volume.is_pinned(range))
        && !core.stopping.get()
        && core.room_for_clean(volume)
}

/// Whether the cache devices' budget bears it that what is missing is admitted. What is pinned is held back no sooner than writes.
fn is_borne<B: Buf>(core: &Core<B>, volume: &Volume<B>, range: &Range<u64>, missing: &[Range<u64>]) -> bool {
    let bytes = missing.iter().map(|m| (m.end - m.start) * 512).sum();
    let wish = if volume.is_pinned(range) { Wish::Write } else { Wish::Clean };
    let borne = bytes == 0 || core.budget_bears(wish, bytes);
    if !borne {
        volume.stats.borrow_mut().held_back.add(bytes);
    }
    borne
}

/// Registers the misses as fills, before the disk is read: a write that begins from now on spoils them, and one that
/// is under way already keeps them out (R5). What another read brings need not be brought twice.
fn register<B: Buf>(volume: &Volume<B>, missing: &[Range<u64>]) -> Vec<Option<Rc<Fill<B>>>> {
    missing
        .iter()
        .map(|m| {
            let blocks = Volume::<B>::blocks(m);
            if volume.is_being_written(&blocks) || volume.fills.contain(&blocks) {
                return None;
            }
            Some(volume.fills.begin(blocks))
        })
        .collect()
}

/// Puts what was missing into the cache, after the answer.
fn admit<B: Buf>(
    core: &Rc<Core<B>>,
    volume: &Rc<Volume<B>>,
    plan: &Plan,
    disk: &[B],
    fills: Vec<Option<Rc<Fill<B>>>>,
    version: u64,
) {
    for (m, fill) in plan.missing.iter().zip(fills) {
        let Some(fill) = fill else { continue };
        let Some((d, data)) = plan.disk.iter().zip(disk).find(|(d, _)| d.start <= m.start && m.end <= d.end) else {
            volume.fills.end(&[Some(fill)]);
            continue;
        };
        let from = (m.start - d.start) as usize * 512;
        let data = data.slice(from..from + (m.end - m.start) as usize * 512);
        insert_clean(core, volume, m.start, data, version, fill);
    }
}
