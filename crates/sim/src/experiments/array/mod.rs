//! An array of rotating disks behind a controller or a software RAID, in virtual time: each disk is a model of its own with its own queue,
//! a write of part of a row reads before it writes, and a controller may have a non-volatile write cache.
//!
//! What it leaves out on purpose: failed disks and rebuilds, the bitmap of regions being written (both of the arrays here keep it where it
//! costs nothing), and locks between requests that meet in one row.

mod cache;
mod layout;

pub use cache::CacheParams;
pub use layout::{Layout, Piece, Update};

use crate::models::rotating::RotatingParams;
use crate::models::{Access, Kind, RotatingDisk, SECOND, TimingModel};
use cache::RowCache;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

/// What a model of an array is made from. Rates are in bytes per second, times in nanoseconds.
#[derive(Clone, Debug)]
pub struct ArrayParams {
    /// Its disks. Their own write caches are off, as behind any RAID.
    pub disk: RotatingParams,
    /// Where rows lie.
    pub layout: Layout,
    /// Most bytes per second that controller, or host adapter and software RAID, read.
    pub read_rate: u64,
    /// Most that they write.
    pub write_rate: u64,
    /// Time of a request in controller or driver.
    pub request_ns: u64,
    /// Its non-volatile write cache.
    pub cache: Option<CacheParams>,
}

/// Who waits for accesses to disks.
#[derive(Clone, Copy, Debug)]
enum Owner {
    Request(usize),
    Row(usize),
}

#[derive(Debug)]
struct Request {
    id: u64,
    left: usize,
    /// When its bytes have crossed the controller.
    crossed: u64,
}

#[derive(Debug)]
struct Row {
    left: usize,
    writes: Vec<Piece>,
    /// The request that it belongs to; none: the cache.
    request: Option<usize>,
    number: u64,
}

/// Things by number, whose places are used again.
#[derive(Debug)]
struct Slab<T>(Vec<Option<T>>, Vec<usize>);

impl<T> Slab<T> {
    fn put(&mut self, it: T) -> usize {
        if let Some(n) = self.1.pop() {
            self.0[n] = Some(it);
            return n;
        }
        self.0.push(Some(it));
        self.0.len() - 1
    }
    fn get(&mut self, n: usize) -> &mut T {
        self.0[n].as_mut().expect("what somebody waits for is there")
    }
    fn take(&mut self, n: usize) -> T {
        self.1.push(n);
        self.0[n].take().expect("what somebody waits for is there")
    }
}

impl<T> Default for Slab<T> {
    fn default() -> Self {
        Slab(Vec::new(), Vec::new())
    }
}

/// An array in virtual time.
pub struct Array {
    params: ArrayParams,
    disks: Vec<RotatingDisk>,
    /// When each disk has something to do next.
    next: Vec<u64>,
    cache: Option<RowCache>,
    /// Writes that wait for room in the cache.
    queue: VecDeque<(u64, u64, u64)>,
    requests: Slab<Request>,
    rows: Slab<Row>,
    owners: Slab<Owner>,
    read_free: u64,
    write_free: u64,
    completions: BinaryHeap<Reverse<(u64, u64, u64)>>,
    pushed: u64,
    done: Vec<u64>,
}

impl Array {
    /// An array at rest.
    #[must_use]
    pub fn new(params: &ArrayParams) -> Self {
        let disk = params.disk.clone().without_write_cache();
        let disks: Vec<_> = (0..params.layout.disks()).map(|_| RotatingDisk::new(disk.clone())).collect();
        Self {
            next: vec![u64::MAX; disks.len()],
            disks,
            cache: params.cache.map(|c| RowCache::new(c, params.layout.row_bytes())),
            queue: VecDeque::new(),
            requests: Slab::default(),
            rows: Slab::default(),
            owners: Slab::default(),
            read_free: 0,
            write_free: 0,
            completions: BinaryHeap::new(),
            pushed: 0,
            done: Vec::new(),
            params: params.clone(),
        }
    }

    fn complete(&mut self, at: u64, id: u64) {
        self.completions.push(Reverse((at, self.pushed, id)));
        self.pushed += 1;
    }

    /// Bytes cross the controller, after those that cross it already; when they have.
    fn cross(&mut self, now: u64, len: u64, writes: bool) -> u64 {
        let (free, rate) =
            if writes { (&mut self.write_free, self.params.write_rate) } else { (&mut self.read_free, self.params.read_rate) };
        *free = (*free).max(now) + (u128::from(len) * u128::from(SECOND) / u128::from(rate)) as u64;
        *free + self.params.request_ns
    }

    fn access(&mut self, now: u64, owner: Owner, kind: Kind, piece: Piece) {
        let id = self.owners.put(owner) as u64;
        let disk = &mut self.disks[piece.disk];
        disk.submit(now, id, Access { kind, offset: piece.offset, len: piece.len });
        self.next[piece.disk] = disk.next_completion().unwrap_or(u64::MAX);
    }

    fn read(&mut self, now: u64, id: u64, start: u64, end: u64) {
        let crossed = self.cross(now, end - start, false);
        let here = |c: &RowCache| c.holds(start, end);
        let same_row = start / self.params.layout.row_bytes() == (end - 1) / self.params.layout.row_bytes();
        if same_row && self.cache.as_ref().is_some_and(here) {
            self.complete(crossed, id);
            return;
        }
        let pieces: Vec<Piece> = self.params.layout.pieces(start, end).collect();
        let request = self.requests.put(Request { id, left: pieces.len(), crossed });
        for piece in pieces {
            self.access(now, Owner::Request(request), Kind::Read, piece);
        }
    }

    /// A write past any cache: row by row.
    fn write(&mut self, now: u64, id: u64, start: u64, end: u64) {
        let crossed = self.cross(now, end - start, true);
        let row_bytes = self.params.layout.row_bytes();
        let rows = start / row_bytes..(end - 1) / row_bytes + 1;
        let request = self.requests.put(Request { id, left: (rows.end - rows.start) as usize, crossed });
        for row in rows {
            let base = row * row_bytes;
            let range = (start.max(base) - base, end.min(base + row_bytes) - base);
            self.update(now, row, &[range], Some(request));
        }
    }

    fn update(&mut self, now: u64, number: u64, ranges: &[(u64, u64)], request: Option<usize>) {
        let Update { reads, writes } = self.params.layout.update(number, ranges);
        let row = self.rows.put(Row { left: reads.len(), writes, request, number });
        if reads.is_empty() {
            self.row_read(now, row);
        }
        for piece in reads {
            self.access(now, Owner::Row(row), Kind::Read, piece);
        }
    }

    /// What a row needed to read is read.
    fn row_read(&mut self, now: u64, row: usize) {
        let writes = std::mem::take(&mut self.rows.get(row).writes);
        self.rows.get(row).left = writes.len();
        for piece in writes {
            self.access(now, Owner::Row(row), Kind::Write, piece);
        }
    }

    /// An access of a disk has ended.
    fn ended(&mut self, now: u64, access: usize) {
        match self.owners.take(access) {
            Owner::Request(request) => self.part_ended(now, request),
            Owner::Row(n) => {
                let row = self.rows.get(n);
                row.left -= 1;
                if row.left > 0 {
                    return;
                }
                if !row.writes.is_empty() {
                    return self.row_read(now, n);
                }
                let row = self.rows.take(n);
                match (row.request, &mut self.cache) {
                    (Some(request), _) => self.part_ended(now, request),
                    (None, Some(cache)) => {
                        cache.ended(row.number);
                        self.admit(now);
                    }
                    (None, None) => {}
                }
            }
        }
    }

    fn part_ended(&mut self, now: u64, request: usize) {
        let it = self.requests.get(request);
        it.left -= 1;
        if it.left == 0 {
            let it = self.requests.take(request);
            self.complete(it.crossed.max(now + self.params.request_ns), it.id);
        }
    }

    /// Takes waiting writes into the cache while there is room, and starts what should go to the disks.
    fn admit(&mut self, now: u64) {
        loop {
            let Some(cache) = &mut self.cache else { return };
            let Some((id, start, end)) = self.queue.front().copied().filter(|(_, s, e)| cache.has_room(e - s)) else { break };
            cache.insert(start, end);
            self.queue.pop_front();
            let crossed = self.cross(now, end - start, true);
            self.complete(crossed, id);
        }
        let wanted = !self.queue.is_empty();
        while let Some((row, ranges)) = self.cache.as_mut().and_then(|c| c.next(wanted)) {
            self.update(now, row, &ranges, None);
        }
    }

    /// Lets the disks do what they have done by `now`.
    fn run(&mut self, now: u64) {
        while let Some((at, disk)) = self.next.iter().copied().zip(0..).min().filter(|(at, _)| *at <= now) {
            let mut done = std::mem::take(&mut self.done);
            self.disks[disk].advance(at, &mut done);
            self.next[disk] = self.disks[disk].next_completion().unwrap_or(u64::MAX);
            for access in done.drain(..) {
                self.ended(at, access as usize);
            }
            self.done = done;
        }
    }
}

impl TimingModel for Array {
    fn submit(&mut self, now: u64, id: u64, op: Access) {
        self.run(now);
        match op.kind {
            Kind::Read => self.read(now, id, op.offset, op.offset + op.len),
            Kind::Write | Kind::WriteThrough | Kind::WriteDurable if self.cache.is_some() => {
                self.queue.push_back((id, op.offset, op.offset + op.len));
                self.admit(now);
            }
            Kind::Write | Kind::WriteThrough | Kind::WriteDurable => self.write(now, id, op.offset, op.offset + op.len),
            // What is acknowledged is safe: it is on disks without caches, or in a cache that outlives a power cut.
            Kind::Flush | Kind::Discard | Kind::WriteZeroes => self.complete(now + self.params.request_ns, id),
        }
    }

    fn next_completion(&self) -> Option<u64> {
        let disks = self.next.iter().copied().min().filter(|at| *at < u64::MAX);
        disks.into_iter().chain(self.completions.peek().map(|Reverse((at, _, _))| *at)).min()
    }

    fn advance(&mut self, now: u64, done: &mut Vec<u64>) {
        self.run(now);
        while let Some(Reverse((at, _, id))) = self.completions.peek().copied().filter(|Reverse((at, _, _))| *at <= now) {
            debug_assert!(at <= now);
            self.completions.pop();
            done.push(id);
        }
    }
}
