//! Destage: dirty data goes to the disk in long one-way sweeps, sorted by address.
//!
//! A chunk of a sweep ends with one flush of disk and members, the marks that say that its blocks are clean, and a flush of
//! the members: only then is anything clean (R2).

use crate::core::{Core, Volume};
use crate::exec::Signal;
use crate::fetch::fetch;
use crate::io::{BLOCK_SECTORS, Buf, DeviceOp};
use crate::log::Item;
use crate::map::Piece;
use crate::marks::Mark;
use crate::policy::destage::{Load, depth};
use crate::read::runs;
use crate::write::durable;
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

/// Destages a volume as the policy says, for as long as the engine lives.
pub(crate) async fn run<B: Buf>(core: Rc<Core<B>>, volume: Rc<Volume<B>>) {
    loop {
        let now = core.now();
        if volume.map.borrow().dirty_blocks() == 0 || core.stopping.get() && volume.wanted_clean.get() == 0 {
            volume.destaging.set(false);
            volume.work.wait().await;
            continue;
        }
        let depth = wanted_depth(&core, &volume);
        if depth == 0 {
            volume.destaging.set(false);
            volume.work.wait_until(now + core.settings.idle_ns / 4).await;
            continue;
        }
        if !volume.destaging.replace(true) {
            let mut reached = volume.reached.get();
            reached.begin(now);
            volume.reached.set(reached);
        }
        match chunk(&core, &volume, depth).await {
            End::Won => {
                volume.stuck.set(None);
                volume.destage_failures.set(0);
            }
            // What is written meanwhile, and the devices' answers, must be heard between.
            End::Later => core.exec.sleep(MOMENT_NS).await,
            End::Nothing(Obstacle::Lost) => {
                let rounds = still_stuck(&core, &volume, Obstacle::Lost);
                core.exec.sleep(rounds.min(250) * MOMENT_NS).await;
            }
            end => {
                core.mark(Mark::DestageStuck);
                match end {
                    End::Nothing(why) => drop(still_stuck(&core, &volume, why)),
                    _ => volume.stuck.set(None),
                }
                volume.destage_failures.set(volume.destage_failures.get() + 1);
                core.exec.sleep(AFTER_FAILURE_NS).await;
            }
        }
    }
}

/// How a chunk ended.
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

/// Why dirty data does not get to the disk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Obstacle {
    /// The disk does not take it, or does not keep it.
    Disk,
    /// Too few cache devices are left to note that it is clean.
    Members,
    /// No copy of it is left.
    Lost,
}

/// Chunk after chunk nothing became clean.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stuck {
    /// When the first of them ended.
    pub since: u64,
    /// How many there were.
    pub rounds: u64,
    /// Why the last of them failed.
    pub why: Obstacle,
}

fn still_stuck<B: Buf>(core: &Core<B>, volume: &Volume<B>, why: Obstacle) -> u64 {
    let (since, rounds) = volume.stuck.get().map_or((core.now(), 0), |s| (s.since, s.rounds));
    volume.stuck.set(Some(Stuck { since, rounds: rounds + 1, why }));
    rounds + 1
}

/// Writes to keep in flight now.
fn wanted_depth<B: Buf>(core: &Core<B>, volume: &Volume<B>) -> usize {
    let load = Load {
        dirty_percent: core.dirty_percent(),
        disk_idle: volume.disk_idle(core.now(), core.settings.idle_ns),
        wanted_clean: volume.wanted_clean.get() > 0,
        degraded: core.pool.borrow().degraded(),
        begin_percent: core.settings.destage_percent,
    };
    depth(&load, core.settings.destage_depth)
}

/// What the workers of a chunk share.
struct Chunk<B: Buf> {
    /// Only versions up to this one are written and marked: whatever of them exists is in the map.
    version: u64,
    runs: RefCell<VecDeque<Range<u64>>>,
    written: RefCell<Vec<u64>>,
    /// The disk did not take a write.
    failed: Cell<bool>,
    /// Of a block no copy could be read.
    lost: Cell<bool>,
    workers: Cell<usize>,
    done: Signal<B>,
}

/// One chunk.
async fn chunk<B: Buf>(core: &Rc<Core<B>>, volume: &Rc<Volume<B>>, depth: usize) -> End {
    let mut blocks = Vec::new();
    let most = core.settings.chunk_blocks;
    let from = volume.sweep_at.get();
    volume.map.borrow().dirty_from(from, u64::MAX >> 8, most, &mut blocks);
    if blocks.is_empty() {
        volume.sweep_at.set(0);
        volume.map.borrow().dirty_from(0, u64::MAX >> 8, most, &mut blocks);
    }
    // A record that is being appended may hold an older version than the map: that block's turn comes later.
    let found = blocks.len();
    blocks.retain(|b| !volume.is_pending(&(*b..b + 1)));
    core.mark_if(blocks.len() < found, Mark::DestagePassesOver);
    if blocks.is_empty() {
        return End::Later;
    }
    let version = core.version.get();
    // Nothing reaches the disk before its record is durable: else a power cut could leave the disk newer than a clean
    // copy that the lost record had replaced, in a region that nobody marked.
    if durable(core).await.is_err() {
        return End::Nothing(Obstacle::Members);
    }
    let chunk = Rc::new(Chunk {
        version,
        runs: RefCell::new(merge(&blocks, core.settings.destage_run_bytes)),
        written: RefCell::default(),
        failed: Cell::new(false),
        lost: Cell::new(false),
        workers: Cell::new(depth),
        done: Signal::new(&core.exec),
    });
    let failures = volume.disk_flusher.failures();
    for n in 0..depth {
        core.exec.spawn(worker(core.clone(), volume.clone(), chunk.clone(), n));
    }
    loop {
        let wait = chunk.done.wait();
        if chunk.workers.get() == 0 {
            break;
        }
        wait.await;
    }
    let mut written = core::mem::take(&mut *chunk.written.borrow_mut());
    if written.is_empty() {
        volume.sweep_at.set(blocks.last().map_or(0, |b| b + 1));
        return match (chunk.failed.get(), chunk.lost.get()) {
            (true, _) => End::Nothing(Obstacle::Disk),
            (false, true) => End::Nothing(Obstacle::Lost),
            (false, false) => End::Later,
        };
    }
    written.sort_unstable();
    volume.sweep_at.set(written.last().map_or(0, |b| b + 1));
    let on_disk = volume.disk_flusher.request();
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
    let marks = merge(&written, u64::MAX)
        .into_iter()
        .map(|r| Item::MarkClean { block: r.start, count: (r.end - r.start) as u32, version: chunk.version })
        .collect();
    let Ok(marked) = volume.dirty_log.append_marks(core, volume, marks).await else { return End::Nothing(Obstacle::Members) };
    if durable(core).await.is_err() {
        return End::Nothing(Obstacle::Members);
    }
    {
        let mut map = volume.map.borrow_mut();
        let mut segments = core.segments.borrow_mut();
        for b in &written {
            map.mark_clean(&mut segments, *b, chunk.version);
        }
        segments.settle();
    }
    drop(marked);
    volume.stats.borrow_mut().destaged.add(written.len() as u64 * 4096);
    core.space.notify();
    if chunk.failed.get() { End::Part } else { End::Won }
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

/// Takes runs off the chunk's list until it is empty, or the disk is wanted by clients.
async fn worker<B: Buf>(core: Rc<Core<B>>, volume: Rc<Volume<B>>, chunk: Rc<Chunk<B>>, n: usize) {
    while !chunk.failed.get() && n < wanted_depth(&core, &volume) {
        let Some(run) = chunk.runs.borrow_mut().pop_front() else { break };
        if !write_run(&core, &volume, &chunk, run).await {
            chunk.failed.set(true);
        }
    }
    chunk.workers.set(chunk.workers.get() - 1);
    chunk.done.notify();
}

/// Writes one run of blocks to the disk: what of it is dirty, in versions up to the chunk's.
async fn write_run<B: Buf>(core: &Rc<Core<B>>, volume: &Rc<Volume<B>>, chunk: &Chunk<B>, blocks: Range<u64>) -> bool {
    let extent = volume.extent();
    let sectors = (blocks.start * BLOCK_SECTORS).max(extent.start)..(blocks.end * BLOCK_SECTORS).min(extent.end);
    // One writer per range (R13); and what is written is what the map says once the range is ours.
    let _lock = volume.disk.lock(sectors).await;
    let mut pieces: Vec<(u64, Piece)> = Vec::new();
    volume.map.borrow().each_in(blocks.clone(), |b, p| {
        if p.dirty() && p.version() <= chunk.version {
            pieces.push((b, *p));
        }
    });
    let (zeroes, data): (Vec<_>, Vec<_>) = pieces.iter().copied().partition(|(_, p)| p.zeroes());
    let read = fetch(core, volume, &data).await;
    let mut damaged: Vec<u64> = Vec::new();
    // Sector runs with their data, in order of address, joined where they touch.
    let mut parts: Vec<(Range<u64>, Option<B>)> = Vec::new();
    for ((block, p), result) in data.iter().zip(read) {
        match result {
            Ok(buf) => {
                for r in runs(p.live) {
                    let from = (r.start - u64::from(p.first())) as usize * 512;
                    let part = buf.slice(from..from + (r.end - r.start) as usize * 512);
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
            DeviceOp::Write { offset, bufs: parts[at..end].iter().filter_map(|p| p.1.clone()).collect() }
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
        let bytes = pieces.iter().map(|(_, p)| u64::from(p.live.count_ones()) * 512).sum();
        let mut reached = volume.reached.get();
        reached.note(core.now(), bytes);
        volume.reached.set(reached);
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
