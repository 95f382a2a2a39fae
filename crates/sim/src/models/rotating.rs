//! A rotating disk, to the level at which the order of requests decides its speed.
//!
//! The position of the heads and the angle of the platters follow from time, so the disk serves its
//! queue as real firmware does: next comes the request that is under the heads soonest. A write cache
//! takes writes at the speed of the interface and puts them down in that same order; a read buffer
//! reads on while nobody wants the heads.
//!
//! What it leaves out on purpose: errors and retries, thermal recalibration, spin-up, and write
//! positions that depend on the surface. It costs well under two microseconds of real time per request.

mod geometry;
mod read_buffer;
#[cfg(test)]
mod tests;
mod write_cache;

use self::geometry::{Geometry, Place};
use self::read_buffer::ReadBuffer;
use self::write_cache::WriteCache;
use super::completions::Completions;
use super::{Access, Kind, MICROSECOND, MILLISECOND, SECOND, TimingModel};
use std::collections::VecDeque;

/// Longest piece of a request that is served before others get their turn.
const LONGEST_PIECE: u64 = 8 << 20;

/// What a model of a rotating disk is made from.
#[derive(Clone, Debug)]
pub struct RotatingParams {
    /// Size in bytes.
    pub capacity: u64,
    /// Revolutions per minute.
    pub rpm: u64,
    /// Seek to a neighbouring track for a read, settling included, in nanoseconds.
    pub seek_track_ns: u64,
    /// Seek for a read at which the arm leaves track following for a full move with its own settling, in
    /// nanoseconds. At least `seek_track_ns`.
    pub seek_near_ns: u64,
    /// How many tracks that is; at least 1.
    pub seek_near_tracks: u64,
    /// Mean seek for a read between two random places, in nanoseconds.
    pub seek_average_ns: u64,
    /// Seek for a read from the first track to the last, in nanoseconds.
    pub seek_full_ns: u64,
    /// How much longer the heads settle before a write than before a read, in nanoseconds.
    pub write_settle_ns: u64,
    /// The time lost between the end of a track and the start of the next in one transfer, in nanoseconds.
    pub head_switch_ns: u64,
    /// Sustained transfer at the first byte, in bytes per second.
    pub outer_rate: u64,
    /// Sustained transfer at the last byte, in bytes per second.
    pub inner_rate: u64,
    /// Transfer between host and buffer, in bytes per second.
    pub interface_rate: u64,
    /// Time to set up the next access once the heads are free, in nanoseconds; none if it continues the
    /// last. Where it is shorter than a sector's passage a sweep over scattered sectors loses nothing to
    /// it, and where it is longer a second revolution: keep it longer in every zone, or there is a cliff.
    pub command_ns: u64,
    /// Time to decode a request and report its end, in nanoseconds.
    pub overhead_ns: u64,
    /// How many requests the disk looks at; more than these wait in order of arrival. At least 1.
    pub queue_depth: usize,
    /// Volatile write cache in bytes; 0 turns it off.
    pub write_cache_bytes: u64,
    /// How many separate runs of data the write cache keeps track of, at least 2.
    pub write_cache_extents: usize,
    /// A flush is no part of the queue: it waits until that is empty, and nothing else is taken meanwhile. So it is with SATA (FLUSH
    /// CACHE EXT is not a queued command of the ACS standards), and not with SAS.
    pub flushes_alone: bool,
    /// How many streams the read buffer keeps apart.
    pub read_segments: usize,
    /// How far it reads ahead for each, in bytes; 0 turns the read buffer off.
    pub read_ahead_bytes: u64,
    /// Bytes after which a continuous transfer gives way to a request that has waited longer than its next
    /// piece; at least 1.
    pub run_bytes: u64,
    /// A request that waited this long is served next, in nanoseconds.
    pub age_limit_ns: u64,
    /// Waiting for this many nanoseconds counts as much as being one nanosecond nearer. At least 1.
    pub patience: u64,
}

impl RotatingParams {
    /// A nearline disk of 8 TiB at 7200 rpm, its write cache on.
    ///
    /// Sources. Capacity, speed, sustained rates, mean seek, cache size and queue depth: the class of data
    /// sheet that sells such disks (4.16 ms mean rotational latency follows from the speed). Track-to-track
    /// and head-switch times: the order of magnitude of its product manuals. Fitted, because nobody prints
    /// them: short seeks, set-up time, the number of cached runs, run length and patience; they are set so
    /// that the rates asserted by the tests of this module come out, and stand for no particular product.
    pub fn nearline_7200() -> Self {
        RotatingParams {
            capacity: 8 << 40,
            rpm: 7_200,
            seek_track_ns: 800 * MICROSECOND,
            seek_near_ns: 1_900 * MICROSECOND,
            seek_near_tracks: 48,
            seek_average_ns: 8_500 * MICROSECOND,
            seek_full_ns: 17 * MILLISECOND,
            write_settle_ns: 300 * MICROSECOND,
            head_switch_ns: 1_200 * MICROSECOND,
            outer_rate: 200_000_000,
            inner_rate: 100_000_000,
            interface_rate: 550_000_000,
            command_ns: 38 * MICROSECOND,
            overhead_ns: 50 * MICROSECOND,
            queue_depth: 32,
            write_cache_bytes: 128 << 20,
            write_cache_extents: 256,
            flushes_alone: false,
            read_segments: 16,
            read_ahead_bytes: 4 << 20,
            run_bytes: 2 << 20,
            age_limit_ns: SECOND,
            patience: 64,
        }
    }

    /// The same disk with a SATA interface.
    pub fn on_sata(mut self) -> Self {
        self.flushes_alone = true;
        self
    }

    /// The same disk with its write cache turned off.
    pub fn without_write_cache(mut self) -> Self {
        self.write_cache_bytes = 0;
        self
    }
}

/// A request that needs the heads.
#[derive(Clone, Copy, Debug)]
struct Queued {
    id: u64,
    arrived: u64,
    writes: bool,
    offset: u64,
    end: u64,
    place: Place,
}

/// A write that waits for room in the write cache.
#[derive(Clone, Copy, Debug)]
struct Waiting {
    id: u64,
    arrived: u64,
    offset: u64,
    end: u64,
}

/// A flush that waits for the first `barrier` writes of the cache.
#[derive(Clone, Copy, Debug)]
struct Flushing {
    id: u64,
    arrived: u64,
    barrier: u64,
}

/// What the heads are busy with.
#[derive(Clone, Copy, Debug)]
enum Job {
    Request(Queued),
    Destage { end: u64 },
}

/// Where the heads are.
#[derive(Clone, Copy, Debug)]
struct Head {
    place: Place,
    /// The byte after the last one that passed.
    next: u64,
    /// When it had passed.
    at: u64,
    /// How many bytes passed in one go.
    run: u64,
}

/// The access chosen to come next.
#[derive(Clone, Copy, Debug)]
enum Choice {
    /// By index in the queue.
    Request(usize),
    /// By index in the write cache.
    Extent(usize),
}

/// A rotating disk in virtual time.
#[derive(Debug)]
pub struct RotatingDisk {
    params: RotatingParams,
    geometry: Geometry,
    head: Head,
    /// What the heads are busy with, and until when.
    job: Option<(u64, Job)>,
    /// Requests beyond the queue depth.
    backlog: VecDeque<(u64, u64, Access)>,
    queue: Vec<Queued>,
    cache: WriteCache,
    waiting: VecDeque<Waiting>,
    flushes: VecDeque<Flushing>,
    buffer: ReadBuffer,
    interface_free_at: u64,
    completions: Completions,
}

impl RotatingDisk {
    /// A disk at rest with its heads over the first track.
    pub fn new(params: RotatingParams) -> Self {
        assert!(params.queue_depth > 0 && params.patience > 0 && params.write_cache_extents > 1);
        RotatingDisk {
            geometry: Geometry::new(&params),
            head: Head { place: Place::default(), next: 0, at: 0, run: 0 },
            job: None,
            backlog: VecDeque::new(),
            queue: Vec::with_capacity(params.queue_depth),
            cache: WriteCache::new(params.write_cache_bytes, params.write_cache_extents),
            waiting: VecDeque::new(),
            flushes: VecDeque::new(),
            buffer: ReadBuffer::new(params.read_segments, params.read_ahead_bytes, params.capacity),
            interface_free_at: 0,
            completions: Completions::default(),
            params,
        }
    }

    /// Size in bytes.
    pub fn capacity(&self) -> u64 {
        self.params.capacity
    }

    /// Ends every job that is over by `now`, and begins what follows it at the time it ended.
    fn run(&mut self, now: u64) {
        while let Some((end, job)) = self.job.filter(|(end, _)| *end <= now) {
            self.job = None;
            self.finish(end, job);
            self.admit(end);
            self.start(end);
        }
    }

    /// Requests inside the disk that occupy a place in its queue. Those answered from the buffers do not.
    fn occupied(&self) -> usize {
        let serving = matches!(self.job, Some((_, Job::Request(_))));
        self.queue.len() + self.waiting.len() + self.flushes.len() + usize::from(serving)
    }

    /// Whether the next request has to wait for a flush, or is one that has to wait for all others.
    fn has_to_wait(&self) -> bool {
        let is_flush = self.backlog.front().is_some_and(|(_, _, op)| op.kind == Kind::Flush);
        self.params.flushes_alone && (!self.flushes.is_empty() || is_flush && self.occupied() > 0)
    }

    fn admit(&mut self, now: u64) {
        while self.occupied() < self.params.queue_depth
            && !self.has_to_wait()
            && let Some((arrived, id, op)) = self.backlog.pop_front()
        {
            self.accept(now, arrived, id, op);
        }
    }

    /// The disk sees a request for the first time.
    fn accept(&mut self, now: u64, arrived: u64, id: u64, op: Access) {
        let (offset, end) = (op.offset, op.offset + op.len);
        match op.kind {
            Kind::Discard => self.completions.push(now + self.params.overhead_ns, id),
            Kind::Flush => {
                self.flushes.push_back(Flushing { id, arrived, barrier: self.cache.barrier() });
                self.answer_flushes(now);
            }
            _ if op.len == 0 => {
                self.completions.push(now + self.params.overhead_ns, id);
            }
            Kind::Read => {
                if self.cache.holds(offset, end) || self.buffer.hit(now, &self.geometry, offset, end) {
                    self.transfer(now, id, op.len);
                } else {
                    self.enqueue(id, arrived, false, offset, end);
                }
            }
            Kind::Write | Kind::WriteZeroes | Kind::WriteThrough | Kind::WriteDurable => {
                self.buffer.invalidate(now, &self.geometry, offset, end);
                // Zeroes are laid down as such: they are like a write of which nothing crosses the interface.
                if op.kind == Kind::Write && self.cache.takes(op.len) {
                    self.waiting.push_back(Waiting { id, arrived, offset, end });
                    self.cache_waiting(now);
                } else {
                    self.enqueue(id, arrived, true, offset, end);
                }
            }
        }
    }

    fn enqueue(&mut self, id: u64, arrived: u64, writes: bool, offset: u64, end: u64) {
        let place = self.geometry.place(offset);
        self.queue.push(Queued { id, arrived, writes, offset, end, place });
    }

    /// Data crosses the interface, after what crosses it already, and the request is done.
    fn transfer(&mut self, now: u64, id: u64, len: u64) {
        let time = len * SECOND / self.params.interface_rate;
        self.interface_free_at = self.interface_free_at.max(now) + time;
        self.completions.push(self.interface_free_at + self.params.overhead_ns, id);
    }

    /// Moves waiting writes into the cache, in order of arrival, while there is room.
    fn cache_waiting(&mut self, now: u64) {
        while let Some(write) = self.waiting.front().copied()
            && self.cache.has_room(write.end - write.offset)
        {
            self.waiting.pop_front();
            self.cache.insert(&self.geometry, write.offset, write.end);
            self.transfer(now, write.id, write.end - write.offset);
        }
    }

    fn answer_flushes(&mut self, now: u64) {
        while let Some(flush) = self.flushes.front()
            && !self.cache.owes(flush.barrier)
        {
            self.completions.push(now + self.params.overhead_ns, flush.id);
            self.flushes.pop_front();
        }
    }

    fn finish(&mut self, now: u64, job: Job) {
        match job {
            Job::Destage { end } => {
                self.head = Head { place: self.geometry.place_after(end), next: end, at: now, ..self.head };
                self.cache.end();
                self.cache_waiting(now);
                self.answer_flushes(now);
            }
            Job::Request(request) => {
                let end = request.end.min(request.offset + LONGEST_PIECE);
                self.head = Head { place: self.geometry.place_after(end), next: end, at: now, ..self.head };
                if !request.writes {
                    self.buffer.read(now, request.offset, end, self.head.place.coord);
                }
                if end < request.end {
                    self.enqueue(request.id, request.arrived, request.writes, end, request.end);
                } else {
                    self.completions.push(now + self.params.overhead_ns, request.id);
                }
            }
        }
    }

    /// Chooses the next access, if the heads are free and there is something to do.
    fn start(&mut self, now: u64) {
        if self.job.is_some() || (self.queue.is_empty() && self.cache.is_empty()) {
            return;
        }
        self.follow_read_ahead(now);
        let Some(choice) = self.choose(now) else {
            return;
        };
        self.buffer.stop();
        let (offset, end, place, writes, job) = match choice {
            Choice::Request(index) => {
                let request = self.queue.swap_remove(index);
                let end = request.end.min(request.offset + LONGEST_PIECE);
                (request.offset, end, request.place, request.writes, Job::Request(request))
            }
            Choice::Extent(index) => {
                let extent = self.cache.begin(index);
                (extent.offset, extent.end, extent.place, true, Job::Destage { end: extent.end })
            }
        };
        self.head.run = if self.continues(now, offset) { self.head.run } else { 0 } + end - offset;
        let transfer = self.geometry.place_after(end).coord - place.coord;
        let done = now.saturating_add_signed(self.positioning(now, offset, place, writes)) + transfer;
        self.job = Some((done, job));
    }

    /// While the disk reads ahead the heads move on, and queued reads that begin in what has been read
    /// have only their rest to come.
    fn follow_read_ahead(&mut self, now: u64) {
        let Some(ahead) = self.buffer.ahead(now, &self.geometry) else {
            return;
        };
        self.head = Head {
            place: Place { coord: ahead.coord, ..self.geometry.place_after(ahead.end) },
            next: ahead.end,
            at: if ahead.streaming { now } else { self.head.at },
            ..self.head
        };
        for request in self.queue.iter_mut().filter(|r| !r.writes && r.offset >= ahead.start && r.offset < ahead.end) {
            // A request that is all there was answered when it came; its last sector is still to come.
            if ahead.end < request.end {
                request.offset = ahead.end;
                request.place = self.geometry.place(ahead.end);
            }
        }
    }

    /// The time from `now` until an access at `place` can begin. It is below zero, by less than a sector's
    /// time, where reading ahead has begun a sector that the access wants.
    fn positioning(&self, now: u64, offset: u64, place: Place, writes: bool) -> i64 {
        if self.continues(now, offset) {
            return place.coord as i64 - self.head.place.coord as i64;
        }
        let distance = place.track.abs_diff(self.head.place.track);
        let moved = self.reach(distance, writes);
        (moved + self.geometry.rotation(now + moved, self.geometry.angle(place))) as i64
    }

    /// Whether an access goes on at `now` where the last one ends.
    fn continues(&self, now: u64, offset: u64) -> bool {
        offset == self.head.next && now == self.head.at
    }

    /// The least time to an access `distance` tracks away.
    fn reach(&self, distance: u64, writes: bool) -> u64 {
        let settle = if writes && distance > 0 { self.params.write_settle_ns } else { 0 };
        self.params.command_ns + self.geometry.seek(distance) + settle
    }

    /// How much nearer a request appears that waits since `arrived`.
    fn credit(&self, now: u64, arrived: u64) -> i64 {
        ((now - arrived) / self.params.patience) as i64
    }

    fn choose(&self, now: u64) -> Option<Choice> {
        // Cached writes go down when nobody else wants the heads, or when somebody waits for them to.
        let flush = self.flushes.front();
        let waiter = flush.map(|f| f.arrived).into_iter().chain(self.waiting.front().map(|w| w.arrived)).min();
        let oldest = (0..self.queue.len()).min_by_key(|&index| self.queue[index].arrived);
        // Whoever waited longest has its turn when it waited too long, and when a transfer went on for long.
        let due = |arrived: u64| now - arrived >= self.params.age_limit_ns || self.head.run >= self.params.run_bytes;
        if let Some(index) = oldest
            && due(self.queue[index].arrived)
            && waiter.is_none_or(|arrived| self.queue[index].arrived <= arrived)
        {
            return Some(Choice::Request(index));
        }
        let waiter_first = waiter.is_some_and(due);
        let mut best = (i64::MAX, None);
        if !waiter_first {
            for (index, request) in self.queue.iter().enumerate() {
                let time = self.positioning(now, request.offset, request.place, request.writes);
                let cost = time - self.credit(now, request.arrived);
                if cost < best.0 {
                    best = (cost, Some(Choice::Request(index)));
                }
            }
        }
        if self.queue.is_empty() || waiter.is_some() {
            let credit = waiter.map_or(0, |arrived| self.credit(now, arrived));
            let barrier = flush.map_or(u64::MAX, |flush| flush.barrier);
            let cheapest = self.cache.cheapest(
                self.head.next,
                self.head.place.track,
                barrier,
                best.0,
                |extent| self.positioning(now, extent.offset, extent.place, true) - credit,
                // A write that continues the last one needs no set-up: nothing nearer than that may be ruled out.
                |distance| {
                    if distance <= 1 { i64::MIN } else { self.reach(distance, true) as i64 - credit }
                },
            );
            if let Some((index, _)) = cheapest {
                best.1 = Some(Choice::Extent(index));
            }
        }
        best.1
    }
}

impl TimingModel for RotatingDisk {
    fn submit(&mut self, now: u64, id: u64, op: Access) {
        debug_assert!(op.kind == Kind::Flush || op.offset + op.len <= self.params.capacity, "{op:?} is outside");
        self.run(now);
        self.backlog.push_back((now, id, op));
        self.admit(now);
        self.start(now);
    }

    fn next_completion(&self) -> Option<u64> {
        let job = self.job.map(|(end, _)| end);
        job.into_iter().chain(self.completions.next_time()).min()
    }

    fn advance(&mut self, now: u64, done: &mut Vec<u64>) {
        self.run(now);
        self.completions.drain_until(now, done);
    }
}
