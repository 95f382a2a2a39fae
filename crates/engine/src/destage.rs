//! Destage: dirty data goes to the disk in long one-way sweeps, sorted by address.
//!
//! A chunk of a sweep ends with one flush of disk and members, the marks that say that its blocks are clean, and a flush of
//! the members: only then is anything clean (R2).

use crate::core::{Core, Volume};
use crate::exec::{Signal, Slot};
use crate::fetch::fetch_aside;
use crate::flush::durable;
use crate::io::{BLOCK_SECTORS, Buf, DeviceOp, Reach};
use crate::loading;
use crate::log::Item;
use crate::map::Piece;
use crate::map::runs;
use crate::marks::Mark;
use crate::policy::destage::{Load, begin_percent, depth, flush_within, next_sweep, overdue_from};
use crate::policy::window::{Clients, LONGEST_CHUNK_NS};
use alloc::collections::VecDeque;
use alloc::rc::Rc;
use alloc::vec;
use alloc::vec::Vec;
use core::cell::{Cell, RefCell};
use core::ops::Range;

/// How long to leave a disk alone that failed to take or to keep what was destaged.
const AFTER_FAILURE_NS: u64 = 1_000_000_000;
/// How long to wait where nothing can be destaged just now.
const MOMENT_NS: u64 = 1_000_000;
/// Bytes that a sweep has in memory at once, unless the least number of writes in flight is more.
const MOST_BYTES: u64 = 64 << 20;

/// Chunks that are on the disk and wait for its flush, and for all else that makes them clean: twice as many as there are between two
/// commits of clients. With three a sweep whose chunks were small stood still until the next commit, and so did writes that wanted
/// space: found by `headpond experiments C2 --real`, where random writes over a full cache had half of what they have without that.
const OUTSTANDING: usize = 6;

/// How soon after destage has looked it is told of more that is written, in nanoseconds: a look takes about a tenth of what a write does.
const TOLD_NS: u64 = 1_000_000;

/// Destages a volume as the policy says, for as long as the pool has it. While the ends of chunks are made clean the next
/// one is written: neither the disk nor its sorted queue runs empty between them.
pub(crate) async fn run<B: Buf>(core: Rc<Core<B>>, volume: Rc<Volume<B>>) {
    // A sweep is about all that is dirty.
    if loading::wait(&core).await.is_err() {
        return;
    }
    let mut ends: VecDeque<Rc<Slot<End, B>>> = VecDeque::new();
    while !volume.taken_off.get() {
        let now = core.now();
        let is_clean = volume.map.borrow().dirty_blocks() == 0;
        let nothing = is_clean || core.housekeeping_rests() && volume.wanted_clean.get() == 0;
        // Where there is nothing it is not looked again until it is told.
        volume.tell_from.set(if nothing { 0 } else { now + TOLD_NS });
        let depth = if nothing { 0 } else { wanted_depth(&core, &volume) };
        volume.trickles.set(depth == 1 && now >= overdue_at(&core, &volume));
        if depth == 0 {
            if let Some(end) = ends.pop_front() {
                heed(&core, &volume, end.get().await).await;
                continue;
            }
            volume.destaging.set(false);
            if nothing {
                volume.work.wait().await;
            } else {
                let (look, overdue) = (now + core.settings.idle_ns / 4, overdue_at(&core, &volume));
                volume.work.wait_until(if overdue > now { look.min(overdue) } else { look }).await;
            }
            if is_clean {
                volume.dirty_since.set(core.now());
            }
            continue;
        }
        if volume.sweep_at.get() == 0 {
            // What is written and not clean yet would be found dirty, and written again.
            if let Some(end) = ends.pop_front() {
                heed(&core, &volume, end.get().await).await;
                continue;
            }
            let due = next_sweep(&load(&core, &volume), volume.sweep_began.get(), core.settings.idle_ns);
            if due > now {
                volume.destaging.set(false);
                volume.work.wait_until(due.min(now + core.settings.idle_ns / 4)).await;
                continue;
            }
            volume.sweep_began.set(now);
        }
        if !volume.destaging.replace(true) {
            let mut reached = volume.reached.get();
            reached.begin(now);
            volume.reached.set(reached);
        }
        let mut blocks = Vec::new();
        let most = volume.window.get().chunk(core.settings.chunk_runs, core.settings.destage_depth);
        volume.map.borrow().dirty_from(volume.sweep_at.get(), u64::MAX >> 8, most, &mut blocks);
        if blocks.is_empty() {
            // The sweep is round.
            end_sweep(&volume);
            continue;
        }
        let mut is_rest = blocks.len() < most;
        let last = blocks.last().copied();
        match chunk(&core, &volume, blocks, depth).await {
            Ok(written) => {
                let failed = written.outstanding.chunk.failed.get();
                is_rest &= written.outstanding.chunk.runs.borrow().is_empty();
                // The next sweep waits for the last chunk of this one.
                let ends_now = failed || is_rest || core.quiet.get() || core.stopping.get();
                let patience = if ends_now { 0 } else { flush_within(&load(&core, &volume), &volume.commits.get(), core.now()) };
                let end = Slot::new(&core.exec);
                ends.push_back(end.clone());
                let (core2, volume2) = (core.clone(), volume.clone());
                core.exec.spawn(async move { end.set(made_clean(&core2, &volume2, written, patience).await) });
                // What the disk does not take it is given some time for, and not the next chunk.
                while ends.len() >= if failed { 1 } else { OUTSTANDING } {
                    let Some(end) = ends.pop_front() else { break };
                    heed(&core, &volume, end.get().await).await;
                }
            }
            Err(end) => {
                // The disk took nothing as far as it was tried, and the sweep goes on behind that.
                is_rest &= !matches!(end, End::Nothing(Obstacle::Disk)) || last < Some(volume.sweep_at.get());
                heed(&core, &volume, end).await;
            }
        }
        // So it is for now after all that there was, though somebody may write on before it all the time, as whoever keeps a log does:
        // to follow him block by block would have flushes of disk and cache devices for each.
        let load = load(&core, &volume);
        let due = next_sweep(&load, volume.sweep_began.get(), core.settings.idle_ns);
        if is_rest && (due > core.now() || load.overdue) {
            end_sweep(&volume);
        }
    }
}

/// The next chunk is the first of another sweep.
fn end_sweep<B: Buf>(volume: &Volume<B>) {
    volume.sweep_at.set(0);
    volume.swept_to.set(0);
    volume.sweeps.set(volume.sweeps.get() + 1);
    volume.dirty_since.set(volume.dirty_since.get().max(volume.sweep_began.get()));
    let mut reached = volume.reached.get();
    reached.ran_out();
    volume.reached.set(reached);
}

/// Somebody waits for what is written to be clean: no chunk waits for a flush of clients any longer.
pub(crate) fn hurry<B: Buf>(volume: &Volume<B>) {
    if volume.has_disk() && !volume.chunks.borrow().is_empty() {
        volume.disk_flusher.request();
    }
}

/// Something is dirty that was not before.
pub(crate) fn tell<B: Buf>(core: &Core<B>, volume: &Volume<B>) {
    if core.now() >= volume.tell_from.get() {
        volume.work.notify();
    }
}

/// Draws the conclusions from how a chunk ended.
async fn heed<B: Buf>(core: &Rc<Core<B>>, volume: &Rc<Volume<B>>, end: End) {
    match end {
        End::Won => {
            volume.stuck.set(None);
            volume.destage_failures.set(0);
        }
        // What is written meanwhile, and the devices' answers, must be heard between.
        End::Later => core.exec.sleep(MOMENT_NS).await,
        // What has no copy left costs no time, and the rest of the sweep need not wait for it.
        End::Nothing(Obstacle::Lost) => {
            let sweeps = still_stuck(core, volume, Obstacle::Lost);
            core.exec.sleep((1 + sweeps * 50).min(250) * MOMENT_NS).await;
        }
        end => {
            core.mark(Mark::DestageStuck);
            match end {
                End::Nothing(why) => drop(still_stuck(core, volume, why)),
                _ => volume.stuck.set(None),
            }
            volume.destage_failures.set(volume.destage_failures.get() + 1);
            core.exec.sleep(AFTER_FAILURE_NS).await;
        }
    }
}

/// How a chunk ended.
#[derive(Clone, Copy)]
enum End {
    /// All that was written is clean.
    Won,
    /// Some is clean, and the disk did not take the rest.
    Part,
    /// Nothing was to be done just now.
    Later,
    /// Nothing became clean.
    Nothing(Obstacle),
}

/// Why dirty data does not get to the disk: the later, the more is to be said of it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Obstacle {
    /// No copy of it is left.
    Lost,
    /// Too few cache devices are left to note that it is clean.
    Members,
    /// The disk does not take it, or does not keep it.
    Disk,
}

/// Chunk after chunk nothing became clean.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stuck {
    /// When the first of them ended.
    pub since: u64,
    /// How many there were.
    pub rounds: u64,
    /// Sweeps that had ended when the first of them did.
    sweeps: u64,
    /// Why they failed: the worst of what any of them met. That something is lost says nothing of the rest, which may be lost to its disk
    /// alone.
    pub why: Obstacle,
}

impl Stuck {
    /// Sweeps over all that is dirty, from its beginning to its end, since the first of them.
    pub fn whole_sweeps<B: Buf>(&self, volume: &Volume<B>) -> u64 {
        (volume.sweeps.get() - self.sweeps).saturating_sub(1)
    }
}

/// Nothing became clean of another chunk; the whole sweeps since the first one.
fn still_stuck<B: Buf>(core: &Core<B>, volume: &Volume<B>, why: Obstacle) -> u64 {
    let first = Stuck { since: core.now(), rounds: 0, sweeps: volume.sweeps.get(), why };
    let before = volume.stuck.get().unwrap_or(first);
    let stuck = Stuck { rounds: before.rounds + 1, why: before.why.max(why), ..before };
    volume.stuck.set(Some(stuck));
    stuck.whole_sweeps(volume)
}

/// From when on something of the volume is overdue, unless it is written before.
fn overdue_at<B: Buf>(core: &Core<B>, volume: &Volume<B>) -> u64 {
    overdue_from(volume.dirty_since.get(), core.settings.dirty_age_ns)
}

fn load<B: Buf>(core: &Core<B>, volume: &Volume<B>) -> Load {
    let (room, is_wanted) = (core.room_of(volume), core.demand.get().is_there(core.now()));
    let (now, idle) = (core.now(), core.settings.idle_ns);
    Load {
        // What writes will take counts where there are any.
        dirty_percent: if is_wanted { room.pressure() } else { room.taken_percent },
        disk_idle: volume.disk_use.is_at_leisure(now, idle),
        wanted_clean: volume.wanted_clean.get() > 0,
        degraded: core.pool.borrow().degraded(),
        beside_readers: volume.disk_use.lone_reads.get() > 0,
        begin_percent: begin_percent(room.begin_percent, is_wanted),
        absorbing: volume.absorbing.get() > 0 || now.saturating_sub(volume.last_absorbed.get()) < idle,
        overdue: now >= overdue_at(core, volume),
    }
}

/// Writes to keep in flight now.
fn wanted_depth<B: Buf>(core: &Core<B>, volume: &Volume<B>) -> usize {
    if core.quiet.get() && core.awaiting_room.get() == 0 {
        return 0;
    }
    depth(&load(core, volume), volume.window.get().beside(core.settings.destage_depth, &clients(volume)))
}

fn clients<B: Buf>(volume: &Volume<B>) -> Clients {
    let reads = volume.disk_use.reads.get();
    Clients { reads, writes: volume.disk_use.under_way.get() - reads, direct: volume.direct_writes.get() }
}

/// A chunk of a sweep: what its workers share, and whoever overwrites what it has written.
pub(crate) struct Chunk<B: Buf> {
    /// Only versions up to this one are written and marked: whatever of them exists is in the map.
    version: u64,
    /// Runs that may be in flight at once.
    most: usize,
    /// When it ends, though runs are left: they are the next one's.
    until: u64,
    runs: RefCell<VecDeque<Range<u64>>>,
    /// Blocks that are on the disk, and that nothing calls clean yet.
    written: RefCell<Vec<u64>>,
    /// Blocks that are being called clean: the marks are on their way.
    marking: RefCell<Vec<u64>>,
    /// The disk did not take a write.
    failed: Cell<bool>,
    /// Of a block no copy could be read.
    lost: Cell<bool>,
    workers: Cell<usize>,
    /// A worker has ended, or the marks are there.
    done: Signal<B>,
}

/// A chunk that is not clean yet, on its volume's list until it is, or is given up.
struct Outstanding<B: Buf> {
    volume: Rc<Volume<B>>,
    chunk: Rc<Chunk<B>>,
}

impl<B: Buf> Outstanding<B> {
    fn new(volume: &Rc<Volume<B>>, chunk: Rc<Chunk<B>>) -> Self {
        volume.chunks.borrow_mut().push(chunk.clone());
        Self { volume: volume.clone(), chunk }
    }
}

impl<B: Buf> Drop for Outstanding<B> {
    fn drop(&mut self) {
        self.volume.chunks.borrow_mut().retain(|c| !Rc::ptr_eq(c, &self.chunk));
        self.chunk.marking.borrow_mut().clear();
        self.chunk.done.notify();
    }
}

/// What the disk has of `blocks` is about to become something else than a sweep has written there, by one who holds their
/// range: the sweep calls none of it clean any more, for its write may fail half done. What is being called clean just now
/// is waited for.
pub(crate) async fn withdraw<B: Buf>(core: &Core<B>, volume: &Volume<B>, blocks: &Range<u64>) {
    let chunks = volume.chunks.borrow().clone();
    for chunk in chunks {
        chunk.written.borrow_mut().retain(|b| !blocks.contains(b));
        loop {
            let wait = chunk.done.wait();
            if !chunk.marking.borrow().iter().any(|b| blocks.contains(b)) {
                break;
            }
            core.mark(Mark::OrderedWaitsForMarks);
            wait.await;
        }
    }
}

/// A chunk that is on the disk, and not clean yet.
struct Written<B: Buf> {
    outstanding: Outstanding<B>,
    /// Flushes of the disk that had failed before it.
    failures: u64,
}

/// Writes one chunk to the disk.
async fn chunk<B: Buf>(
    core: &Rc<Core<B>>,
    volume: &Rc<Volume<B>>,
    mut blocks: Vec<u64>,
    depth: usize,
) -> Result<Written<B>, End> {
    // A record that is being appended may hold an older version than the map: that block's turn comes later.
    let found = blocks.len();
    volume.take_out_pending(&mut blocks);
    if blocks.len() < found {
        core.mark(Mark::DestagePassesOver);
    }
    if blocks.is_empty() {
        return Err(End::Later);
    }
    let version = core.version.get();
    // Nothing reaches the disk before its record is durable: else a power cut could leave the disk newer than a clean
    // copy that the lost record had replaced, in a region that nobody marked.
    if durable(core).await.is_err() {
        return Err(End::Nothing(Obstacle::Members));
    }
    let runs = merge(&blocks, core.settings.destage_run_bytes);
    let run_bytes = blocks.len() as u64 * 4096 / runs.len() as u64;
    let outstanding = Outstanding::new(
        volume,
        Rc::new(Chunk {
            version,
            most: ((MOST_BYTES / run_bytes) as usize).max(core.settings.destage_depth),
            until: core.now().saturating_add(LONGEST_CHUNK_NS),
            runs: RefCell::new(runs),
            written: RefCell::default(),
            marking: RefCell::default(),
            failed: Cell::new(false),
            lost: Cell::new(false),
            workers: Cell::new(0),
            done: Signal::new(&core.exec),
        }),
    );
    let chunk = &outstanding.chunk;
    volume.swept_to.set(blocks.last().map_or(0, |b| b + 1));
    let failures = volume.disk_flusher.failures();
    more_workers(core, volume, chunk, depth);
    loop {
        let wait = chunk.done.wait();
        if chunk.workers.get() == 0 {
            break;
        }
        wait.await;
    }
    let mut written = chunk.written.borrow_mut();
    if written.is_empty() {
        // What was not tried is not passed over: behind what the disk does not take it may take the rest.
        let untried = chunk.runs.borrow().front().map(|run| run.start);
        core.mark_if(untried.is_some() && chunk.failed.get(), Mark::DestageGoesOnBehind);
        volume.swept_to.set(untried.unwrap_or(volume.swept_to.get()));
        volume.sweep_at.set(volume.swept_to.get());
        return Err(match (chunk.failed.get(), chunk.lost.get()) {
            (true, _) => End::Nothing(Obstacle::Disk),
            (false, true) => End::Nothing(Obstacle::Lost),
            (false, false) => End::Later,
        });
    }
    written.sort_unstable();
    volume.sweep_at.set(written.last().map_or(0, |b| b + 1));
    volume.swept_to.set(volume.sweep_at.get());
    drop(written);
    Ok(Written { outstanding, failures })
}

/// Makes a chunk clean that is on the disk: all it takes to say so durably, and then the map.
async fn made_clean<B: Buf>(core: &Rc<Core<B>>, volume: &Rc<Volume<B>>, w: Written<B>, patience: u64) -> End {
    let Written { outstanding, failures } = w;
    let chunk = &outstanding.chunk;
    let on_disk = match patience {
        0 => volume.disk_flusher.request(),
        _ => volume.disk_flusher.request_after(for_a_commit(core.clone(), volume.clone(), patience)),
    };
    // What hid parts of the pieces when they were written was not written with them: it must not be lost while the marks,
    // which speak of whole blocks, are kept. Superseded is not dead (R12).
    if durable(core).await.is_err() {
        return End::Nothing(Obstacle::Members);
    }
    if on_disk.get().await.is_err() || volume.disk_flusher.failures() != failures {
        core.mark(Mark::DestageFlushFails);
        // Nothing may be assumed of what was written since the last good flush (R9): it stays dirty, and is written again.
        return End::Nothing(Obstacle::Disk);
    }
    let written = core::mem::take(&mut *chunk.written.borrow_mut());
    if written.is_empty() {
        return End::Later;
    }
    chunk.marking.borrow_mut().clone_from(&written);
    let marks = merge(&written, u64::MAX)
        .into_iter()
        .map(|r| Item::MarkClean { block: r.start, count: (r.end - r.start) as u32, version: chunk.version })
        .collect();
    let Ok(marked) = volume.dirty_log.append_marks(core, volume, marks).await else { return End::Nothing(Obstacle::Members) };
    if durable(core).await.is_err() {
        return End::Nothing(Obstacle::Members);
    }
    call_clean(core, volume, chunk, &written).await;
    drop(marked);
    volume.stats.borrow_mut().destaged.add(written.len() as u64 * 4096);
    core.space.notify();
    if chunk.failed.get() { End::Part } else { End::Won }
}

/// Has the map say that blocks of a chunk are clean, some of them at a time: a disk that takes much at once has chunks of a quarter of a million.
/// The marks are durable, and until the last block is clean no checkpoint begins, nor is any of them overwritten in order.
async fn call_clean<B: Buf>(core: &Core<B>, volume: &Volume<B>, chunk: &Chunk<B>, blocks: &[u64]) {
    for (n, some) in blocks.chunks(core.settings.let_go_blocks.max(1)).enumerate() {
        if n > 0 {
            core.mark(Mark::CleanInTurns);
            core.exec.sleep(1).await;
        }
        let mut map = volume.map.borrow_mut();
        let mut segments = core.segments.borrow_mut();
        for b in some {
            map.mark_clean(&mut segments, *b, chunk.version);
        }
        segments.settle();
    }
}

/// Waits for a flush of clients, `patience` nanoseconds at most, and no longer than they use the disk: to one that they leave alone a flush
/// is nothing, and writes may want the space that it wins.
async fn for_a_commit<B: Buf>(core: Rc<Core<B>>, volume: Rc<Volume<B>>, patience: u64) {
    let until = core.now().saturating_add(patience);
    let look_every = (core.settings.idle_ns / 4).max(MOMENT_NS);
    while core.now() < until && !volume.disk_use.is_idle(core.now(), core.settings.idle_ns) {
        core.exec.sleep(look_every.min(until - core.now())).await;
    }
}

/// Runs of consecutive blocks, none longer than `most_bytes`.
fn merge(blocks: &[u64], most_bytes: u64) -> VecDeque<Range<u64>> {
    let most = (most_bytes / 4096).clamp(1, u64::from(u32::MAX));
    let mut runs: VecDeque<Range<u64>> = VecDeque::new();
    for b in blocks {
        match runs.back_mut() {
            Some(r) if r.end == *b && r.end - r.start < most => r.end += 1,
            _ => runs.push_back(*b..b + 1),
        }
    }
    runs
}

/// Starts workers until there are `wanted`, or as many as runs are left.
fn more_workers<B: Buf>(core: &Rc<Core<B>>, volume: &Rc<Volume<B>>, chunk: &Rc<Chunk<B>>, wanted: usize) {
    let left = chunk.runs.borrow().len();
    let wanted = wanted.min(chunk.most).saturating_sub(chunk.workers.get()).min(left);
    chunk.workers.set(chunk.workers.get() + wanted);
    for _ in 0..wanted {
        core.exec.spawn(worker(core.clone(), volume.clone(), chunk.clone()));
    }
}

/// Takes runs off the chunk's list until it is empty, or the disk is wanted by clients.
async fn worker<B: Buf>(core: Rc<Core<B>>, volume: Rc<Volume<B>>, chunk: Rc<Chunk<B>>) {
    loop {
        let wanted = wanted_depth(&core, &volume);
        if chunk.failed.get() || chunk.workers.get() > wanted.min(chunk.most) || core.now() >= chunk.until {
            break;
        }
        let Some(run) = chunk.runs.borrow_mut().pop_front() else { break };
        let count = run.end - run.start;
        volume.sweeping.set(volume.sweeping.get() + 1);
        if !write_run(&core, &volume, &chunk, run).await {
            chunk.failed.set(true);
        }
        volume.sweeping.set(volume.sweeping.get() - 1);
        let mut window = volume.window.get();
        window.note(core.now(), core.settings.destage_depth, &clients(&volume), count, chunk.workers.get());
        volume.window.set(window);
        more_workers(&core, &volume, &chunk, wanted);
    }
    chunk.workers.set(chunk.workers.get() - 1);
    chunk.done.notify();
}

/// Writes one run of blocks to the disk: what of it is dirty, in versions up to the chunk's.
async fn write_run<B: Buf>(core: &Rc<Core<B>>, volume: &Rc<Volume<B>>, chunk: &Chunk<B>, blocks: Range<u64>) -> bool {
    let extent = volume.extent();
    let sectors = (blocks.start * BLOCK_SECTORS).max(extent.start)..(blocks.end * BLOCK_SECTORS).min(extent.end);
    // One writer per range (R13); and what is written is what the map says once the range is ours.
    let _lock = volume.disk_ranges.lock(sectors).await;
    let mut pieces: Vec<(u64, Piece)> = Vec::new();
    volume.map.borrow().each_in(blocks.clone(), |b, p| {
        if p.dirty() && p.version() <= chunk.version {
            pieces.push((b, *p));
        }
    });
    let (zeroes, data): (Vec<_>, Vec<_>) = pieces.iter().copied().partition(|(_, p)| p.zeroes());
    let read = fetch_aside(core, volume, &data).await;
    let mut damaged: Vec<u64> = Vec::new();
    // Sector runs with their data, in order of address, joined where they touch.
    let mut parts: Vec<(Range<u64>, Option<B>)> = Vec::new();
    for ((block, p), result) in data.iter().zip(read) {
        match result {
            Ok(buf) => {
                for (r, part) in p.live_parts(&buf) {
                    parts.push((block * BLOCK_SECTORS + r.start..block * BLOCK_SECTORS + r.end, Some(part)));
                }
            }
            // Never destaged and never called clean: it stays, pinned and reported (R9).
            Err(_) => {
                core.mark(Mark::DestageUnreadable);
                damaged.push(*block);
                chunk.lost.set(true);
            }
        }
    }
    for (block, p) in zeroes {
        parts.extend(runs(p.live).map(|r| (block * BLOCK_SECTORS + r.start..block * BLOCK_SECTORS + r.end, None)));
    }
    parts.sort_unstable_by_key(|p| p.0.start);
    // What lies in the disk's own cache when a chunk's flush comes is written before readers have their turn: hundreds of places, and
    // half a second. Beside them it goes past that cache, and has its turn among them.
    let beside_readers = volume.disk_use.has_lone_readers(core.now(), core.settings.idle_ns);
    let reach = if beside_readers { Reach::PastCache } else { Reach::Cache };
    let mut writes = Vec::new();
    let mut at = 0;
    while at < parts.len() {
        let mut end = at + 1;
        while end < parts.len() && parts[end].0.start == parts[end - 1].0.end && parts[end].1.is_some() == parts[at].1.is_some() {
            end += 1;
        }
        let range = parts[at].0.start..parts[end - 1].0.end;
        let offset = volume.disk_offset(range.start);
        let op = if parts[at].1.is_some() {
            DeviceOp::Write { offset, bufs: parts[at..end].iter().filter_map(|p| p.1.clone()).collect(), reach }
        } else {
            DeviceOp::WriteZeroes { offset, len: (range.end - range.start) * 512 }
        };
        writes.push(core.exec.io(volume.device(), op));
        at = end;
    }
    let mut ok = true;
    for write in writes {
        ok &= write.await.is_ok();
        volume.disk_flusher.wrote();
    }
    if ok {
        let bytes: u64 = pieces.iter().map(|(_, p)| u64::from(p.live.count_ones()) * 512).sum();
        let mut reached = volume.reached.get();
        if volume.trickles.get() {
            reached.ran_out();
        }
        reached.note(core.now(), bytes);
        volume.reached.set(reached);
        volume.swept.set(volume.swept.get() + bytes);
        let mut written = chunk.written.borrow_mut();
        let mut seen = vec![];
        for (b, _) in pieces {
            if !damaged.contains(&b) && seen.last() != Some(&b) {
                seen.push(b);
            }
        }
        seen.dedup();
        written.extend(seen);
    }
    ok
}
