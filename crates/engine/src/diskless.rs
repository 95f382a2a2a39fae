//! Volumes without a backing device: small mirrored disks on the cache devices alone, for journals and write-intent bitmaps.
//!
//! What they hold is dirty for good: it goes through the log as any other dirty data does, is never destaged and never let
//! go. So room for it is set aside, and won back by moving what is live together.

use crate::core::{Awaiting, Core, Pool, Volume};
use crate::io::{BLOCK_SECTORS, Buf, CommandError, RequestError};
use crate::log::Item;
use crate::marks::Mark;
use crate::policy::compact::{Crowd, Sparse, next_victim};
use crate::policy::reclaim::image_pays;
use crate::segments::SegmentState;
use crate::settings::Degraded;
use crate::space::{checkpoint, is_left_alone, is_movable, relocate};
use crate::stats::Fate;
use crate::write::{Content, absorb, absorbed, by_block, forget, may_come_back, wait_for_appends};
use alloc::rc::Rc;
use alloc::vec::Vec;
use core::ops::Range;
use headpond_format::Class;

/// How often a write that waits for room looks again, in nanoseconds.
const AGAIN_NS: u64 = 5_000_000;
/// How long a write waits for what such volumes take too much to be won back, in nanoseconds.
const CROWDED_NS: u64 = 250_000_000;
/// How long it waits for any room at all before it fails: there is no disk that could take it.
const LONGEST_NS: u64 = 30_000_000_000;
/// Segments set aside beside what data needs: the one that is open, and those that wait for a checkpoint.
const SPARE: u64 = 4;

/// Segments that are set aside for `sectors`: for twice as much, so that half of what is taken is out of date when room has to
/// be won.
pub(crate) fn set_aside_for(sectors: u64, pool: &Pool) -> u64 {
    2 * sectors.div_ceil(u64::from(pool.segment_sectors()).max(1)) + SPARE
}

impl<B: Buf> Core<B> {
    /// Whether a volume without a disk may have `sectors`, beside what others have: together they take no more than half of
    /// what `total` segments hold, each with its copies.
    pub(crate) fn has_room_for(&self, sectors: u64, instead_of: u64, total: u32) -> Result<(), CommandError> {
        let pool = self.pool.borrow();
        let before = self.bounds().set_aside - if instead_of > 0 { set_aside_for(instead_of, &pool) } else { 0 };
        let others: u64 = self.volumes.borrow().values().filter(|v| !v.has_disk()).map(|v| v.sectors.get()).sum();
        let left = (u64::from(total) / 2).saturating_sub(before);
        // All of it is in the map for good, each sector of a block by itself at the worst: half of the map at most.
        let blocks = self.bounds().sure_pieces / (2 * BLOCK_SECTORS);
        let in_map = (blocks * BLOCK_SECTORS).saturating_sub(others - instead_of);
        let most = (left.saturating_sub(SPARE) / 2 * u64::from(pool.segment_sectors())).min(in_map);
        if sectors <= most && set_aside_for(sectors, &pool) <= left {
            return Ok(());
        }
        Err(CommandError::NoRoom { most_bytes: most * 512 })
    }

    /// How much of what is set aside is taken.
    fn crowd(&self) -> Crowd {
        Crowd { taken: self.segments.borrow().taken_set_aside(), set_aside: self.bounds().set_aside }
    }

    /// Of that, the segments that a checkpoint frees.
    fn waiting(&self) -> u64 {
        let segments = self.segments.borrow();
        let theirs = segments.iter().filter(|(_, s)| s.diskless && s.class == Class::Mirrored);
        theirs.filter(|(_, s)| s.state == SegmentState::Limbo || s.state == SegmentState::Sealed && s.dirty == 0).count() as u64
    }
}

/// Changes a range of grid sectors.
pub(crate) async fn write<B: Buf>(
    core: &Rc<Core<B>>,
    volume: &Rc<Volume<B>>,
    range: Range<u64>,
    content: Content<B>,
    fua: bool,
) -> Result<Fate, RequestError> {
    let losses = volume.losses.get();
    // Where a copy is missing the other one takes it: there is no disk that could.
    if core.pool.borrow().degraded() && core.settings.degraded == Degraded::ReadOnly {
        return Err(RequestError::Io);
    }
    let bytes = (range.end - range.start) * 512;
    match content {
        Content::Data(data) => put(core, volume, &range, &data.owned().ok_or(RequestError::Io)?).await?,
        Content::Zeroes | Content::Discarded => zero(core, volume, &range).await?,
    }
    absorbed(core, volume, bytes, fua, losses).await
}

/// An error where no cache device is left, or no majority stands behind them.
fn has_votes<B: Buf>(core: &Core<B>) -> Result<(), RequestError> {
    if core.pool.borrow().has_votes() { Ok(()) } else { Err(RequestError::Io) }
}

/// Takes data into the log, when there is room. Where there is too little for all of it at once, a piece at a time: what is
/// appended in vain takes room itself.
async fn put<B: Buf>(core: &Rc<Core<B>>, volume: &Rc<Volume<B>>, range: &Range<u64>, data: &B) -> Result<(), RequestError> {
    let (mut at, mut most, mut since) = (range.start, range.end - range.start, core.exec.attended());
    while at < range.end {
        let part = at..if at + most < range.end { (at + most) / BLOCK_SECTORS * BLOCK_SECTORS } else { range.end };
        let from = (at - range.start) as usize * 512;
        let bytes = (part.end - part.start) as usize * 512;
        wait_for_room(core, volume, since).await?;
        volume.let_pass(core, &Volume::<B>::blocks(&part), core.ticket()).await;
        if absorb(core, volume, &part, &Content::Data(data.slice(from..from + bytes))).await.is_ok() {
            (at, since) = (part.end, core.exec.attended());
            continue;
        }
        has_votes(core)?;
        // Room that is seen, and not found, again and again: nobody waits for ever.
        if core.exec.attended() - since >= LONGEST_NS {
            core.mark(Mark::DisklessHasNoRoom);
            return Err(RequestError::Io);
        }
        core.mark(Mark::DisklessInPieces);
        most = (core.settings.record_bytes / 512).max(BLOCK_SECTORS);
        core.space_is_short();
        core.exec.sleep(AGAIN_NS).await;
    }
    Ok(())
}

/// Waits until there is room for more; an error where there has been none since `since`, for too long.
async fn wait_for_room<B: Buf>(core: &Rc<Core<B>>, volume: &Rc<Volume<B>>, mut since: u64) -> Result<(), RequestError> {
    let _waits = Awaiting::room(core);
    loop {
        has_votes(core)?;
        // Before all of the map is known none is won.
        if core.loading().is_some_and(|loading| loading.lost_page.is_none()) {
            since = core.exec.attended();
        }
        let waited = core.exec.attended() - since;
        let (crowd, spare) = (core.crowd(), core.has_spare());
        if crowd.is_dense() && !spare {
            core.space.notify();
        }
        // What waits for a checkpoint is in nobody's way while there is more free than is kept.
        if core.has_space(volume) && (spare || crowd.taken <= crowd.set_aside || waited >= CROWDED_NS) {
            return Ok(());
        }
        if waited >= LONGEST_NS {
            core.mark(Mark::DisklessHasNoRoom);
            return Err(RequestError::Io);
        }
        core.mark(Mark::DisklessWaits);
        core.space_is_short();
        core.exec.sleep(AGAIN_NS).await;
    }
}

/// Zeroes are nothing: what is there no longer counts, and a mark in the log says so.
async fn zero<B: Buf>(core: &Rc<Core<B>>, volume: &Rc<Volume<B>>, range: &Range<u64>) -> Result<(), RequestError> {
    let _lock = volume.disk_ranges.lock(range.clone()).await;
    wait_for_appends(core, volume, &Volume::<B>::blocks(range)).await;
    // A record that failed for want of them may be found at the next start, and would lie over what is not there now.
    has_votes(core)?;
    let version = core.next_version();
    let there = may_come_back(volume, range, version);
    let items: Vec<_> =
        there.iter().flat_map(by_block).map(|(block, first, sectors)| Item::Forget { block, first, sectors, version }).collect();
    if items.is_empty() {
        return Ok(());
    }
    core.mark(Mark::DisklessZeroed);
    let Ok(marked) = volume.dirty_log.append_marks(core, volume, items).await else { return Err(RequestError::Io) };
    forget(core, volume, range, version);
    volume.left_behind.outdated(range, version);
    drop(marked);
    Ok(())
}

/// Wins room back while volumes without a disk take most of what is set aside for them.
pub(crate) async fn compact<B: Buf>(core: &Rc<Core<B>>) {
    // No more at once than there may be: others wait for room too.
    for _ in 0..core.crowd().set_aside {
        let crowd = core.crowd();
        if !crowd.is_dense() || core.pool.borrow().stalled {
            return;
        }
        let (capacity, segment_bytes) = (core.pool.borrow().segment_sectors(), core.pool.borrow().segment_bytes);
        // What waits for a checkpoint is won without a move. While nobody lacks it there is none before that pays: these volumes are small,
        // and an image is of all that is cached.
        let (waiting, short, pieces) = (core.waiting(), !core.has_spare(), core.segments.borrow().live);
        let pays = waiting * 8 >= crowd.set_aside && (short || image_pays(waiting * segment_bytes, pieces));
        let crowd = if short { crowd } else { Crowd { taken: crowd.taken - waiting, ..crowd } };
        if !pays && !crowd.is_dense() {
            return;
        }
        let victim = {
            let segments = core.segments.borrow();
            let sealed = segments.iter().filter(|(_, s)| s.diskless && is_movable(s, core.now()));
            let all: Vec<_> =
                sealed.map(|(n, s)| Sparse { segment: n, generation: s.generation, live: s.dirty_sectors }).collect();
            next_victim(&all, capacity, &crowd)
        };
        if pays || short && victim.is_none() && waiting > 0 {
            if !checkpoint(core).await || core.waiting() >= waiting {
                return;
            }
            continue;
        }
        let Some(victim) = victim else { return };
        // One is left for marks: without them nothing gets clean, and nothing is freed.
        if core.free() < 2 || !relocate(core, victim).await && !is_left_alone(core, victim) {
            return;
        }
        core.mark(Mark::DisklessCompacted);
    }
}
