//! Preload and pin: what clients will ask for is brought into the cache before they do, and kept there.
//!
//! What is brought comes in as the data of a missed read does: as a fill, which any write that overlaps spoils (R5).
//! What is pinned is never evicted, but carried over; what of it is missing, after a crash say, is brought back while the
//! disk is idle. While the cache is short of room for writes, pinned data is not let in: pins are a wish, no promise.

use crate::cancel::{CANCELLED_WITHIN_NS, Cancel};
use crate::core::{Core, Volume};
use crate::exec::Slot;
use crate::fills::Fill;
use crate::io::{BLOCK, BLOCK_SECTORS, Buf, CommandError, DeviceOp};
use crate::log::{AppendError, Item};
use crate::map::runs;
use crate::marks::Mark;
use crate::policy::endurance::Wish;
use crate::policy::evict::Queue;
use crate::segments::{Looked, Segment};
use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::rc::Rc;
use alloc::vec;
use alloc::vec::Vec;
use core::cell::{Cell, RefCell};
use core::ops::Range;
use headpond_format::Mode;

/// Blocks that are brought at once, and the most pieces of the disk that they may be in.
const BATCH: u64 = 256;
const READS: usize = 32;
/// The longest single read of the disk, in blocks: a client that comes meanwhile waits for no more.
const LONGEST: u64 = 64;
/// How often what could not be let in is tried again, and how long after, in nanoseconds.
const TRIES: u32 = 25;
const AGAIN_NS: u64 = 20_000_000;
/// How often it is looked whether something pinned is missing, in nanoseconds, and how many blocks are looked at.
const KEEP_NS: u64 = 50_000_000;
const LOOKS_AT: u64 = 4096;
/// How long what the disk could not read is left alone, in nanoseconds.
const LATER_NS: u64 = 60_000_000_000;
/// The most runs that the pins of a volume may make.
const MOST_RUNS: usize = 1 << 16;

/// How far a preload is, or how the last one ended.
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
pub struct Preload {
    /// It is under way.
    pub running: bool,
    /// Blocks of 4 KiB looked at, of `total`.
    pub done: u64,
    /// Blocks that were asked for.
    pub total: u64,
    /// Of those looked at, the ones that were not in the cache before.
    pub brought: u64,
    /// Of those looked at, the ones for which there was no room, or which were being written all the time.
    pub left_out: u64,
}

/// The most blocks that may be pinned on all volumes, or preloaded at once: half of what the cache devices hold, or the map.
pub(crate) fn most<B: Buf>(core: &Core<B>) -> u64 {
    let bytes = core.segments.borrow().total() * core.pool.borrow().segment_bytes;
    core.no_more_than_memory(bytes / BLOCK) / 2
}

/// The blocks that ranges of a volume's sectors are in.
fn blocks_of<B: Buf>(volume: &Volume<B>, ranges: &[Range<u64>]) -> Result<Vec<Range<u64>>, CommandError> {
    let inside = |r: &Range<u64>| r.start < r.end && r.end <= volume.open.get();
    match ranges.iter().all(inside) {
        true => Ok(ranges.iter().map(|r| Volume::<B>::blocks(&(r.start + volume.shift..r.end + volume.shift))).collect()),
        false => Err(CommandError::OutsideVolume { sectors: volume.open.get() }),
    }
}

/// Brings what is missing of these sectors into the cache.
pub(crate) async fn preload<B: Buf>(
    core: &Rc<Core<B>>,
    volume: &Rc<Volume<B>>,
    ranges: &[Range<u64>],
    cancel: &Cancel,
) -> Result<(), CommandError> {
    let ranges = blocks_of(volume, ranges)?;
    let total = ranges.iter().map(|r| r.end - r.start).sum();
    if !volume.serving.get() {
        return Err(CommandError::NotServed);
    }
    if volume.mode() == Mode::PassThrough {
        return Err(CommandError::PassThrough);
    }
    if total > most(core) {
        return Err(CommandError::TooMuch { most_bytes: most(core) * BLOCK });
    }
    if volume.preload.get().running {
        return Err(CommandError::PreloadBusy);
    }
    volume.preload.set(Preload { running: true, total, ..Preload::default() });
    let result = bring_all(core, volume, ranges, cancel).await;
    volume.preload.set(Preload { running: false, ..volume.preload.get() });
    result
}

async fn bring_all<B: Buf>(
    core: &Rc<Core<B>>,
    volume: &Rc<Volume<B>>,
    ranges: Vec<Range<u64>>,
    cancel: &Cancel,
) -> Result<(), CommandError> {
    let mut left: VecDeque<Range<u64>> = ranges.into();
    while let Some(batch) = next_batch(&mut left) {
        if volume.mode() == Mode::PassThrough {
            return Err(CommandError::PassThrough);
        }
        let begun = core.now();
        let blocks: u64 = batch.iter().map(|r| r.end - r.start).sum();
        let (brought, left_out) = bring_unless_cancelled(core, volume, batch, cancel).await?;
        let mut preload = volume.preload.get();
        preload.done += blocks;
        preload.brought += brought;
        preload.left_out += left_out;
        volume.preload.set(preload);
        if volume.disk_use.under_way.get() > 0 {
            // Clients have the disk for as long as it had been ours.
            let until = core.now() + (core.now() - begun);
            while core.now() < until {
                if cancel.wanted() {
                    return Err(CommandError::Cancelled);
                }
                core.exec.sleep((until - core.now()).min(CANCELLED_WITHIN_NS)).await;
            }
        }
    }
    Ok(())
}

/// Brings a batch in a task of its own: a disk that answers nothing keeps nobody from giving the rest up. What was asked of it then comes
/// in when it answers.
async fn bring_unless_cancelled<B: Buf>(
    core: &Rc<Core<B>>,
    volume: &Rc<Volume<B>>,
    batch: Vec<Range<u64>>,
    cancel: &Cancel,
) -> Result<(u64, u64), CommandError> {
    let (brought, given_up) = (Slot::new(&core.exec), Rc::new(Cell::new(false)));
    let (core2, volume2, told, to_end) = (core.clone(), volume.clone(), brought.clone(), given_up.clone());
    core.exec.spawn(async move {
        let to_end = || to_end.get() || !volume2.serving.get();
        told.set(bring(&core2, &volume2, &batch, TRIES, to_end).await);
    });
    let ended = cancel.or(core, brought.get()).await;
    given_up.set(true);
    ended?
}

/// Takes the next blocks to bring off the list.
fn next_batch(left: &mut VecDeque<Range<u64>>) -> Option<Vec<Range<u64>>> {
    let (mut batch, mut blocks) = (Vec::new(), 0);
    while blocks < BATCH && batch.len() < READS {
        let Some(r) = left.pop_front() else { break };
        let end = r.end.min(r.start + BATCH - blocks);
        if end < r.end {
            left.push_front(end..r.end);
        }
        blocks += end - r.start;
        batch.push(r.start..end);
    }
    (!batch.is_empty()).then_some(batch)
}

/// Brings what is missing of some blocks; how many of them that was, and how many are missing still.
async fn bring<B: Buf>(
    core: &Rc<Core<B>>,
    volume: &Rc<Volume<B>>,
    batch: &[Range<u64>],
    tries: u32,
    to_end: impl Fn() -> bool,
) -> Result<(u64, u64), CommandError> {
    let blocks = |of: &[Range<u64>]| of.iter().map(|r| Volume::<B>::blocks(r)).map(|b| b.end - b.start).sum::<u64>();
    let at_first = blocks(&missing(volume, batch));
    let mut left = at_first;
    for n in 0..tries {
        if to_end() {
            return Err(CommandError::Cancelled);
        }
        if left == 0 {
            break;
        }
        if n > 0 {
            core.mark(Mark::PreloadWaits);
            core.space_is_short();
            core.exec.sleep(AGAIN_NS).await;
        }
        fill(core, volume, batch, Queue::Main).await?;
        left = blocks(&missing(volume, batch));
    }
    Ok((at_first, left))
}

/// The runs of grid sectors of some blocks that are not cached, none longer than one read of the disk.
pub(crate) fn missing<B: Buf>(volume: &Volume<B>, batch: &[Range<u64>]) -> Vec<Range<u64>> {
    let map = volume.map.borrow();
    let extent = volume.extent();
    let mut missing: Vec<Range<u64>> = Vec::new();
    for block in batch.iter().cloned().flatten() {
        let mut cached = 0;
        map.each(block, |p| cached |= p.live);
        for run in runs(!cached) {
            let at = block * BLOCK_SECTORS;
            let run = (at + run.start).max(extent.start)..(at + run.end).min(extent.end);
            match missing.last_mut() {
                _ if run.is_empty() => {}
                Some(last) if last.end == run.start && run.end - last.start <= LONGEST * BLOCK_SECTORS => last.end = run.end,
                _ => missing.push(run),
            }
        }
    }
    missing
}

/// Reads what is missing of some blocks from the disk, and lets it into the cache, in a queue, as far as no write is there and
/// there is room: how many bytes that were.
pub(crate) async fn fill<B: Buf>(
    core: &Rc<Core<B>>,
    volume: &Rc<Volume<B>>,
    batch: &[Range<u64>],
    queue: Queue,
) -> Result<u64, CommandError> {
    // Looked at, found and registered in one step: what is written between would be hidden by what the disk had before, and what comes for
    // a volume that has been detached meanwhile nobody could let go of.
    let takes = volume.serving.get() && volume.mode() != Mode::PassThrough;
    if !takes || !core.room_for_clean(volume) || !core.has_spare_for(volume) || core.stopping.get() {
        return Ok(0);
    }
    let missing = missing(volume, batch);
    let fills: Vec<_> = missing.iter().map(|m| begin_fill(volume, Volume::<B>::blocks(m))).collect();
    let version = core.next_version();
    let reads: Vec<_> = missing
        .iter()
        .zip(&fills)
        .map(|(m, fill)| {
            let op = DeviceOp::Read { offset: volume.disk_offset(m.start), len: (m.end - m.start) as u32 * 512, into: None };
            fill.as_ref().map(|_| core.exec.io(volume.device(), op))
        })
        .collect();
    let (mut items, mut failed) = (Vec::new(), false);
    for ((m, fill), read) in missing.iter().zip(&fills).zip(reads) {
        let (Some(fill), Some(read)) = (fill, read) else { continue };
        let parts = match read.await {
            Ok(Some(data)) if data.len() as u64 == (m.end - m.start) * 512 => vec![(m.start, data)],
            _ => {
                failed = true;
                unreadable_around(core, volume, m).await
            }
        };
        items.extend(parts.into_iter().map(|(start, data)| Item::Fill { start, data, version, fill: fill.clone(), queue }));
    }
    let bytes: u64 = items.iter().map(Item::bytes).sum();
    let appended = volume.clean_log.append(core, volume, items).get().await;
    volume.fills.end(&fills);
    if appended.is_ok() {
        volume.stats.borrow_mut().admitted.bytes += bytes;
    }
    match appended {
        _ if failed => Err(CommandError::Disk),
        Err(AppendError::NoMembers) => Err(CommandError::NoMembers),
        Ok(()) => Ok(bytes),
        Err(AppendError::Full | AppendError::Gone) => Ok(0),
    }
}

/// What can be read of a run that could not be read in one piece, block by block: what is beside a bad sector is not bad for that. Ends
/// with the second block that cannot be read, as a disk may take seconds to say so.
async fn unreadable_around<B: Buf>(core: &Rc<Core<B>>, volume: &Rc<Volume<B>>, run: &Range<u64>) -> Vec<(u64, B)> {
    let (mut parts, mut bad) = (Vec::new(), 0);
    if run.end - run.start <= BLOCK_SECTORS {
        return parts;
    }
    for block in Volume::<B>::blocks(run) {
        let part = (block * BLOCK_SECTORS).max(run.start)..((block + 1) * BLOCK_SECTORS).min(run.end);
        let len = (part.end - part.start) as u32 * 512;
        let op = DeviceOp::Read { offset: volume.disk_offset(part.start), len, into: None };
        match core.exec.io(volume.device(), op).await {
            Ok(Some(data)) if data.len() == len as usize => parts.push((part.start, data)),
            _ => bad += 1,
        }
        if bad == 2 || !volume.serving.get() || core.stopping.get() {
            break;
        }
    }
    core.mark_if(!parts.is_empty(), Mark::UnreadableAround);
    parts
}

/// Registers data on its way into the cache: a write that begins from now on spoils it, and one that is under way already
/// keeps it out (R5).
pub(crate) fn begin_fill<B: Buf>(volume: &Volume<B>, blocks: Range<u64>) -> Option<Rc<Fill<B>>> {
    if volume.is_being_written(&blocks) {
        return None;
    }
    Some(volume.fills.begin(blocks))
}

/// Pins the blocks of these sectors.
pub(crate) fn pin<B: Buf>(core: &Rc<Core<B>>, volume: &Rc<Volume<B>>, ranges: &[Range<u64>]) -> Result<(), CommandError> {
    let mut pins = volume.pins.borrow().clone();
    let before = pins.blocks();
    blocks_of(volume, ranges)?.into_iter().for_each(|r| pins.add(r));
    let elsewhere = core.pinned_blocks() - before;
    if pins.blocks() + elsewhere > most(core) || pins.runs() > MOST_RUNS {
        return Err(CommandError::TooMuch { most_bytes: most(core) * BLOCK });
    }
    set_pins(core, volume, pins);
    Ok(())
}

/// Lets the blocks of these sectors go when they are not read any more, as others.
pub(crate) fn unpin<B: Buf>(core: &Rc<Core<B>>, volume: &Rc<Volume<B>>, ranges: &[Range<u64>]) -> Result<(), CommandError> {
    let mut pins = volume.pins.borrow().clone();
    blocks_of(volume, ranges)?.iter().for_each(|r| pins.remove(r));
    if pins.runs() > MOST_RUNS {
        return Err(CommandError::TooMuch { most_bytes: most(core) * BLOCK });
    }
    set_pins(core, volume, pins);
    Ok(())
}

fn set_pins<B: Buf>(core: &Core<B>, volume: &Volume<B>, pins: crate::policy::pins::Pins) {
    let count = core.pinned.get() + pins.blocks() - volume.pins.borrow().blocks();
    core.pinned.set(count);
    *volume.pins.borrow_mut() = pins;
    volume.pins_changed.set(volume.pins_changed.get() + 1);
    core.pins_signal.notify();
}

/// What of a segment is pinned: whether that is most of what it can hold, which is `sectors`. Of what was pinned and is written over little
/// stays in many segments, and these could never be let go of if that little counted as most of them. Found by looking once, until the
/// pins change or half of what was there is gone.
pub(crate) fn is_mostly_pinned<B: Buf>(volume: &Volume<B>, number: u32, segment: &mut Segment, sectors: u32) -> bool {
    if !may_be_mostly_pinned(volume, segment, sectors) {
        return false;
    }
    if !is_looked_at(volume, segment) {
        // Each block once.
        segment.blocks.pack();
        let mostly = pinned_sectors(volume, number, segment) * 2 > sectors;
        segment.looked = Looked { changed: volume.pins_changed.get(), live: segment.live, mostly };
    }
    segment.looked.mostly
}

/// The same, as far as it is known without a look.
pub(crate) fn is_known_to_be_pinned<B: Buf>(volume: &Volume<B>, segment: &Segment, sectors: u32) -> bool {
    segment.looked.mostly && may_be_mostly_pinned(volume, segment, sectors) && is_looked_at(volume, segment)
}

fn may_be_mostly_pinned<B: Buf>(volume: &Volume<B>, segment: &Segment, sectors: u32) -> bool {
    !volume.pins.borrow().is_empty() && segment.live * BLOCK_SECTORS as u32 * 2 > sectors
}

/// Whether what was found at the last look still counts.
fn is_looked_at<B: Buf>(volume: &Volume<B>, segment: &Segment) -> bool {
    segment.looked.changed == volume.pins_changed.get() && segment.live >= segment.looked.live / 2
}

/// Sectors of the clean pieces in a segment that are pinned.
fn pinned_sectors<B: Buf>(volume: &Volume<B>, number: u32, segment: &Segment) -> u32 {
    let (pins, map) = (volume.pins.borrow(), volume.map.borrow());
    let mut sectors = 0;
    for block in segment.blocks.iter().filter(|block| pins.contains(&(*block..*block + 1))) {
        map.each(block, |p| {
            if p.segment == number && !p.dirty() {
                sectors += p.live.count_ones();
            }
        });
    }
    sectors
}

/// Sees to it that each volume with pins has somebody who brings back what is missing, for as long as the engine lives.
pub(crate) async fn keep<B: Buf>(core: Rc<Core<B>>) {
    // The volumes' own identities: a number may be given to the next one.
    let kept: Rc<RefCell<BTreeSet<[u8; 16]>>> = Rc::default();
    loop {
        if core.pinned.get() == 0 {
            core.pins_signal.wait().await;
            continue;
        }
        for volume in core.all_volumes() {
            if volume.pins.borrow().is_empty() || !kept.borrow_mut().insert(volume.id) {
                continue;
            }
            let (core2, kept2) = (core.clone(), kept.clone());
            core.exec.spawn(async move {
                keep_those_of(&core2, &volume).await;
                kept2.borrow_mut().remove(&volume.id);
            });
        }
        core.exec.sleep(KEEP_NS).await;
    }
}

/// Brings back what is pinned of a volume and missing, while its disk has nothing else to do, and as long as anything is pinned there. In a task
/// of its own: a disk that answers nothing keeps no other volume's pins from coming.
async fn keep_those_of<B: Buf>(core: &Rc<Core<B>>, volume: &Rc<Volume<B>>) {
    // Blocks that the disk could not read, and when it is asked for them again: it may take seconds to say no.
    let mut unreadable: BTreeMap<u64, u64> = BTreeMap::new();
    let is_there = || core.volume(volume.number).is_some_and(|v| Rc::ptr_eq(&v, volume)) && !volume.pins.borrow().is_empty();
    while is_there() {
        core.exec.sleep(KEEP_NS).await;
        let idle = volume.disk_use.is_idle(core.now(), core.settings.idle_ns);
        if !volume.serving.get() || volume.mode() == Mode::PassThrough || !idle || core.stopping.get() || core.quiet.get() {
            continue;
        }
        unreadable.retain(|_, until| *until > core.now());
        let Some(blocks) = next_missing(volume, |block| unreadable.contains_key(&block)) else { continue };
        if !core.budget_bears(Wish::Write, BATCH * BLOCK) {
            continue;
        }
        // It comes round again to what fails, or for which there is no room.
        match bring(core, volume, core::slice::from_ref(&blocks), 1, || !volume.serving.get()).await {
            Ok((brought, left)) => core.mark_if(brought > left, Mark::PinnedBroughtBack),
            Err(CommandError::Disk) => {
                let until = core.now().saturating_add(LATER_NS);
                for run in missing(volume, &[blocks]) {
                    unreadable.extend(Volume::<B>::blocks(&run).map(|block| (block, until)));
                }
            }
            Err(_) => {}
        }
    }
}

/// The next pinned blocks of which something is missing that is not to be left out, among the next few there are.
fn next_missing<B: Buf>(volume: &Volume<B>, leaves_out: impl Fn(u64) -> bool) -> Option<Range<u64>> {
    let pins = volume.pins.borrow();
    let mut looked = 0;
    while looked < LOOKS_AT {
        let Some(blocks) = pins.next(volume.pins_at.get(), BATCH) else {
            volume.pins_at.set(0);
            return None;
        };
        volume.pins_at.set(blocks.end);
        looked += blocks.end - blocks.start;
        let is_wanted = |run: &Range<u64>| Volume::<B>::blocks(run).any(|block| !leaves_out(block));
        if missing(volume, core::slice::from_ref(&blocks)).iter().any(is_wanted) {
            return Some(blocks);
        }
    }
    None
}
