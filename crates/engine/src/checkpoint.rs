//! Checkpoints: the segment table and the maps as an image, taken while everything goes on.
//!
//! The image is fuzzy: what changes behind the walk is in the log, which recovery replays from the positions at which
//! the checkpoint began. What a checkpoint makes unnecessary is freed only when the superblock that names it is
//! durable on all members (R12).

use crate::core::{Core, Volume};
use crate::doubts;
use crate::exec::{DISK_PATIENCE_NS, IoWait};
use crate::intent::write_pages;
use crate::io::{Buf, CommandError, Device, DeviceError, DeviceOp, Reach};
use crate::marks::Mark;
use crate::policy::reclaim::checkpoint_is_due;
use crate::segments::SegmentState;
use crate::space::fit_into_an_image;
use alloc::collections::{BTreeMap, VecDeque};
use alloc::rc::Rc;
use alloc::vec;
use alloc::vec::Vec;
use headpond_format::{
    CheckpointPointer, Class, PAGE_BYTES, Page, PageBody, PieceEntry, Place, REGION_SECTORS, SegmentEntry, page_places,
};

/// Pages in flight at once.
const DEPTH: usize = 16;
/// Checkpoints that may be tried between two superblocks.
const TRIES: u64 = 1 << 16;

impl<B: Buf> Core<B> {
    /// Asks for a checkpoint.
    pub(crate) fn want_checkpoint(&self) {
        if !self.checkpoint_wanted.replace(true) {
            self.checkpoint_signal.notify();
        }
    }

    /// Whether all that is dirty has the copies that it should, but for what has none left, which is in an image as lost.
    fn all_has_its_copies(&self) -> bool {
        let pool = self.pool.borrow();
        // One that has just left still has its places, until its leaving is on the others.
        self.segments.borrow().iter().all(|(_, s)| {
            let copies = s.places().filter(|p| pool.is_in_sync(p.member)).count();
            s.dirty == 0 || copies == 0 || copies >= usize::from(pool.copies)
        })
    }

    /// Asks for a checkpoint if members have left, all has its copies again, and the superblock does not say so: to a start it looks as if
    /// the next one to be missing were one too many.
    pub(crate) fn tell_of_mending(&self) {
        let can_be_told = {
            let pool = self.pool.borrow();
            // With too few members it is true for moments alone.
            pool.left > 0 && pool.has_votes() && !pool.degraded()
        };
        if can_be_told && self.all_has_its_copies() {
            self.mark(Mark::MendingTold);
            self.want_checkpoint();
        }
    }

    /// So many bytes more are in the log.
    pub(crate) fn appended(&self, bytes: u64) {
        let appended = self.appended_since_checkpoint.get() + bytes;
        self.appended_since_checkpoint.set(appended);
        let pieces_of = |v: &Rc<Volume<B>>| v.map.borrow().blocks() + v.map.borrow().extra_pieces();
        if appended >= self.settings.checkpoint_bytes
            && checkpoint_is_due(appended, self.settings.checkpoint_bytes, self.volumes.borrow().values().map(pieces_of).sum())
        {
            self.want_checkpoint();
        }
    }
}

/// Takes checkpoints when they are wanted, for as long as the engine lives.
pub(crate) async fn run<B: Buf>(core: Rc<Core<B>>) {
    loop {
        let wait = core.checkpoint_signal.wait();
        if !core.checkpoint_wanted.get() {
            wait.await;
            continue;
        }
        core.wait_settled().await;
        let alive = core.pool.borrow().has_votes();
        if alive && take(&core).await {
            core.checkpoints_done.set(core.checkpoints_done.get() + 1);
        } else {
            // Members left meanwhile: at the next wish, with those that stayed.
            core.exec.sleep(1_000_000).await;
            if alive {
                core.mark(Mark::CheckpointRetried);
                continue;
            }
        }
        core.checkpoint_wanted.set(false);
        core.checkpoint_signal.notify();
        core.space.notify();
    }
}

/// Writes pages as they come, a bounded number in flight.
struct Pages<B: Buf> {
    sequence: u64,
    area: u8,
    members: Vec<u8>,
    next: u32,
    in_flight: VecDeque<(u8, IoWait<B>)>,
    failed: Vec<u8>,
    overflow: bool,
}

impl<B: Buf> Pages<B> {
    async fn put(&mut self, core: &Rc<Core<B>>, body: PageBody) {
        let index = self.next;
        self.next += 1;
        let key = core.pool.borrow().key;
        let bytes = B::from_bytes(&Page { sequence: self.sequence, index, body }.encode(key));
        for (member, at) in page_places(index, &self.members) {
            let layout = core.pool.borrow().members[usize::from(member)].layout;
            if at + PAGE_BYTES as u64 > layout.checkpoint_bytes {
                self.overflow = true;
                return;
            }
            let offset = layout.checkpoint(self.area) + at;
            let op = DeviceOp::Write { offset, bufs: vec![bytes.clone()], reach: Reach::Cache };
            self.in_flight.push_back((member, core.exec.io(Device::Member(member), op)));
            let mut stats = core.stats.borrow_mut();
            stats.member_bytes += bytes.len() as u64;
            stats.checkpoint_bytes += bytes.len() as u64;
        }
        self.drain(core, DEPTH).await;
    }

    async fn drain(&mut self, core: &Core<B>, most: usize) {
        while self.in_flight.len() > most {
            let Some((member, wait)) = self.in_flight.pop_front() else { break };
            match wait.await {
                Ok(_) => core.member_flusher(member).wrote(),
                Err(_) => self.failed.push(member),
            }
        }
    }
}

/// What a checkpoint is of.
struct Begun<B: Buf> {
    volumes: Vec<Rc<Volume<B>>>,
    /// How many checkpoints have begun, with this one.
    number: u64,
    /// Segments that nothing was added to any more.
    closed: Vec<u32>,
    generation: u64,
    /// From where on the log's open segments are replayed after it.
    positions: BTreeMap<u32, u32>,
    /// Regions of the volumes whose intent bits may go.
    clearable: Vec<(Rc<Volume<B>>, Vec<u64>)>,
    /// Those of each volume in which nothing is dirty in its image.
    undirtied: Vec<Vec<u64>>,
}

/// Takes one checkpoint; `false` if a member failed under it.
async fn take<B: Buf>(core: &Rc<Core<B>>) -> bool {
    fit_into_an_image(core).await;
    let Begun { volumes, number: begun, closed, generation, positions, clearable, undirtied } = begin(core).await;
    let cleared = flush_disks(core, clearable).await;
    let (members, area, sequence, epoch) = {
        let pool = core.pool.borrow();
        // One that is about to leave holds no page of it.
        let mut members: Vec<u8> = pool.in_sync().filter(|m| pool.leaving != Some(*m)).collect();
        if members.is_empty() {
            members = pool.in_sync().collect();
        }
        // A number that no try had before, in this life or another: a page of an older try that a cache device kept in
        // place of ours must not look like ours. The newest superblock's number would not do: it may be on its way still, and be
        // another life's.
        let sequence = (core.checkpoint_tried.get() + 1).max(core.life * TRIES);
        core.checkpoint_tried.set(sequence);
        (members, 1 - pool.checkpoint.area, sequence, pool.epoch)
    };
    let mut pages = Pages {
        sequence,
        area,
        members: members.clone(),
        next: 0,
        in_flight: VecDeque::new(),
        failed: Vec::new(),
        overflow: false,
    };
    let mended = core.all_has_its_copies();
    let twins = twins_to_release(core, &closed, generation);
    let table = segment_table(core, generation, begun, &positions, &twins);
    core.mark_if(!twins.is_empty(), Mark::TwinReleased);
    core.mark_if(
        core.segments.borrow().iter().any(|(_, s)| s.state == SegmentState::Limbo && s.needed_by == begun),
        Mark::EmptiedUnderCheckpoint,
    );
    for some in table.chunks(Page::SEGMENTS) {
        pages.put(core, PageBody::Segments(some.to_vec())).await;
    }
    for v in &volumes {
        walk(core, v, &mut pages).await;
    }
    pages.drain(core, 0).await;
    for m in core::mem::take(&mut pages.failed) {
        core.mark(Mark::CheckpointPageFails);
        core.fail_member_of(epoch, m).await;
    }
    // All of them: what the image names may be on one that holds no page of it.
    let in_sync: Vec<u8> = core.pool.borrow().in_sync().collect();
    for m in &in_sync {
        if core.pool.borrow().is_in_sync(*m) && core.member_flusher(*m).flush().await.is_err() {
            core.fail_member(*m).await;
        }
    }
    core.wait_settled().await;
    if pages.overflow {
        core.mark(Mark::CheckpointTooLarge);
        // A device that has left meanwhile took its part of the room with it: that says nothing of what the walk needs.
        if core.pool.borrow().epoch == epoch {
            core.image_overflows.set(core.image_overflows.get() + 1);
        }
    }
    if pages.overflow || core.pool.borrow().epoch != epoch {
        return false;
    }
    let pointer = CheckpointPointer { sequence, area, pages: pages.next, members, version: core.version.get(), generation };
    core.pool.borrow_mut().checkpoint = pointer;
    // What nobody has heard of no checkpoint can mend: a volume that is refused for it says so itself.
    if mended {
        // With fewer members than copies there is nothing dirty now, and what comes lacks a copy.
        let mut pool = core.pool.borrow_mut();
        pool.left = pool.copies.saturating_sub(in_sync.len() as u8);
    }
    if !core.write_superblock().await {
        return false;
    }
    {
        let mut segments = core.segments.borrow_mut();
        segments.checkpoint_done(begun);
        for (n, twin) in twins {
            segments.release_twin(n, twin);
        }
        segments.settle();
    }
    for (v, undirtied) in volumes.iter().zip(&undirtied).filter(|(v, _)| !v.refused.get()) {
        // One may have failed since.
        doubts::heed(v);
        let none = Vec::new();
        let regions = cleared.iter().find(|(w, _)| Rc::ptr_eq(v, w)).map_or(&none, |(_, r)| r);
        v.intent.clear(regions, undirtied, begun, |r| is_dirty(v, r));
        write_pages(core, v);
    }
    core.stats.borrow_mut().checkpoints += 1;
    true
}

/// Begins a checkpoint: all that the log gets from here on is replayed after it, and all that it got before is in the map.
async fn begin<B: Buf>(core: &Rc<Core<B>>) -> Begun<B> {
    // No mark is between the log and the map when it begins.
    core.checkpoint_begins.set(true);
    while core.marks_held.get() > 0 {
        core.mark(Mark::CheckpointWaitsForMarks);
        core.checkpoint_signal.wait().await;
    }
    // It begins: from here on the log is replayed. A volume that comes later opens its segments later.
    let volumes = core.all_volumes();
    let number = {
        let mut segments = core.segments.borrow_mut();
        segments.settle();
        segments.checkpoints_begun += 1;
        segments.checkpoints_begun
    };
    let closed: Vec<u32> =
        core.segments.borrow().iter().filter(|(_, s)| s.state == SegmentState::Sealed && s.pins == 0).map(|(n, _)| n).collect();
    let generation = core.generation.get();
    core.appended_since_checkpoint.set(0);
    let mut positions: BTreeMap<u32, u32> = BTreeMap::new();
    for v in &volumes {
        positions.extend(v.dirty_log.positions(core));
        positions.extend(v.clean_log.positions(core));
    }
    core.checkpoint_begins.set(false);
    core.checkpoint_signal.notify();
    volumes.iter().for_each(|v| doubts::heed(v));
    let clearable: Vec<(Rc<Volume<B>>, Vec<u64>)> = volumes.iter().map(|v| (v.clone(), v.intent.clearable())).collect();
    // What was being appended is named or dropped before the walk: it lies before the positions.
    let last = core.ticket();
    loop {
        let wait = core.checkpoint_signal.wait();
        if core.flights.borrow().first().is_none_or(|t| *t > last) {
            break;
        }
        core.mark(Mark::CheckpointWaitsForAppends);
        wait.await;
    }
    let undirtied = volumes.iter().map(|v| v.intent.undirtied(|r| is_dirty(v, r))).collect();
    Begun { volumes, number, closed, generation, positions, clearable, undirtied }
}

/// Whether anything in a region is dirty, or may be soon.
fn is_dirty<B: Buf>(volume: &Volume<B>, region: u64) -> bool {
    let blocks = region * REGION_SECTORS / 8..(region + 1) * REGION_SECTORS / 8;
    volume.map.borrow().any_dirty(blocks.clone()) || volume.is_pending(&blocks)
}

/// Flushes the disks for which it matters; the regions whose bits may go after that.
async fn flush_disks<B: Buf>(core: &Rc<Core<B>>, clearable: Vec<(Rc<Volume<B>>, Vec<u64>)>) -> Vec<(Rc<Volume<B>>, Vec<u64>)> {
    // An intent bit may go when the disk was flushed after the last write to its region, and no flush has failed while it was set. A disk
    // that is not there is not asked: that it does not answer would be taken for such a failure when it comes.
    let until = core.now() + DISK_PATIENCE_NS;
    let flushes: Vec<_> = clearable
        .iter()
        .map(|(v, regions)| (!regions.is_empty() && v.has_disk() && v.there.get()).then(|| v.disk_flusher.request()))
        .collect();
    let mut cleared = Vec::new();
    for ((v, regions), flush) in clearable.into_iter().zip(flushes) {
        let is_flushed = match flush {
            // One that has answered nothing for so long already, as to the last checkpoint, is not waited for again.
            Some(flush) if is_silent(core, &v) => flush.get_until(core.now()).await,
            Some(flush) => flush.get_until(until).await,
            None => Some(if v.has_disk() { Err(DeviceError::Gone) } else { Ok(()) }),
        };
        core.mark_if(is_flushed.is_none(), Mark::DiskSilentAtCheckpoint);
        if !regions.is_empty() && is_flushed == Some(Ok(())) {
            cleared.push((v, regions));
        } else {
            core.mark_if(!regions.is_empty(), Mark::IntentKept);
        }
    }
    cleared
}

/// Whether a volume's disk has owed an answer, or a flush, for longer than it is waited for.
fn is_silent<B: Buf>(core: &Core<B>, v: &Volume<B>) -> bool {
    let limit = DISK_PATIENCE_NS;
    v.disk_flusher.is_silent_for(limit) || core.exec.is_disk_silent(v.number, limit)
}

/// The copies that this checkpoint lets go: of each segment that was closed when it began and is wholly clean, one of
/// two. In the table the segment is a single one; in memory it becomes one when the table is durable, since until then
/// recovery would replay it from both, over what it superseded (H18, R12).
fn twins_to_release<B: Buf>(core: &Core<B>, closed: &[u32], generation: u64) -> BTreeMap<u32, Place> {
    let segments = core.segments.borrow();
    let twin = |n: &u32| {
        // The number may be another segment's by now, which was opened since: that one is replayed from both.
        let s = segments.get(*n).filter(|s| s.generation <= generation)?;
        let clean = s.class == Class::Mirrored && s.state == SegmentState::Sealed && s.dirty == 0 && s.live > 0;
        let gone = match s.places().count() {
            2 => s.copies[1 - (*n as usize & 1)],
            // Its other copy went with a member: nothing of it goes, but it is a single one, and can be evicted.
            1 => Place::NONE,
            _ => return None,
        };
        clean.then_some((*n, gone))
    };
    closed.iter().filter_map(twin).collect()
}

/// The segments that are there, for a checkpoint that was the `begun`th to begin. Those that were emptied since it began
/// are in it: the marks that emptied others may be in them, after the positions, and the walk may not have seen that.
fn segment_table<B: Buf>(
    core: &Core<B>,
    generation: u64,
    begun: u64,
    positions: &BTreeMap<u32, u32>,
    twins: &BTreeMap<u32, Place>,
) -> Vec<SegmentEntry> {
    core.segments
        .borrow()
        .iter()
        .filter(|(_, s)| (s.state != SegmentState::Limbo || s.needed_by >= begun) && s.generation <= generation)
        .map(|(n, s)| {
            let mut copies = s.copies;
            if let Some(twin) = twins.get(&n) {
                copies = copies.map(|c| if c == *twin { Place::NONE } else { c });
            }
            SegmentEntry {
                segment: n,
                generation: s.generation,
                class: if twins.contains_key(&n) { Class::Single } else { s.class },
                volume: s.volume,
                copies,
                replay_from: positions.get(&n).copied().unwrap_or(u32::MAX),
            }
        })
        .collect()
}

/// Writes the pieces of a volume, a page at a time, giving way to everything else between two.
async fn walk<B: Buf>(core: &Rc<Core<B>>, volume: &Rc<Volume<B>>, pages: &mut Pages<B>) {
    let mut from = Some(0);
    let mut some: Vec<PieceEntry> = Vec::new();
    // What has no room is not used: the rest need not be looked at.
    while let Some(at) = from.filter(|_| !pages.overflow) {
        from = volume.map.borrow().walk(at, Page::PIECES / 2, |block, p| {
            some.push(PieceEntry {
                block,
                version: p.version(),
                sum: p.sum,
                segment: p.segment,
                offset: p.offset,
                live: p.live,
                span: p.packed_span(),
            });
        });
        while some.len() >= Page::PIECES || from.is_none() && !some.is_empty() {
            let rest = some.split_off(some.len().min(Page::PIECES));
            let page = core::mem::replace(&mut some, rest);
            pages.put(core, PageBody::Pieces(volume.number, page)).await;
        }
    }
}

/// Takes a checkpoint that begins after the call.
pub(crate) async fn now<B: Buf>(core: &Rc<Core<B>>) -> Result<(), CommandError> {
    // One that runs now began before: wait for it, then for another.
    for _ in 0..2 {
        let done = core.checkpoints_done.get();
        core.want_checkpoint();
        loop {
            let wait = core.checkpoint_signal.wait();
            if core.checkpoints_done.get() > done {
                break;
            }
            if !core.pool.borrow().has_votes() {
                return Err(CommandError::NoMembers);
            }
            core.want_checkpoint();
            wait.await;
        }
    }
    Ok(())
}
