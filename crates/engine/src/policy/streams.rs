//! Streams: runs of requests that continue each other in address, however small each is and whoever sends them.
//!
//! A table of the ends of recent runs, found by address. A request that begins within a small window of an end
//! continues that run. What was not continued for longest is forgotten first.
//!
//! Queues reorder, so a stream may leave holes; but it fills them before it is a window further. Random requests to a
//! small set also land near some end again and again, and leave holes for good: their runs begin anew.

use alloc::vec;
use alloc::vec::Vec;

/// How many runs are remembered.
pub const RUNS: usize = 4096;
/// A request this far past the end of a run, or overlapping its end by this much, still continues it: queues reorder.
const WINDOW: u64 = 256;
/// No run.
const NONE: u16 = u16::MAX;
/// Where a run ends that was forgotten: it is in no list but that by age.
const NOWHERE: u64 = u64::MAX;

#[derive(Clone, Copy, Debug)]
struct Run {
    start: u64,
    end: u64,
    /// Sectors that its requests covered; the rest of what it spans are holes.
    covered: u64,
    flushes: u64,
    flushed_steps: u32,
    steps: u32,
    /// Where its last request ended; and of its last requests, how many in a row began where the one before them ended.
    last: u64,
    joined: u32,
    /// Its neighbours in age.
    older: u16,
    newer: u16,
    /// The next run that ends in the same stretch.
    beside: u16,
}

impl Run {
    fn begin(sector: u64, flushes: u64) -> Self {
        Self {
            start: sector,
            end: sector,
            covered: 0,
            flushes,
            flushed_steps: 0,
            steps: 0,
            last: sector,
            joined: 0,
            older: NONE,
            newer: NONE,
            beside: NONE,
        }
    }
}

/// What a request belongs to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Belongs {
    /// Sectors of the run so far, this request included.
    pub run_sectors: u64,
    /// Its writer flushes after nearly every step: a log, not a stream to send past the cache.
    pub synchronous: bool,
    /// How many requests in a row, this one the last of them, began exactly where the one before them ended. Of random requests, which
    /// now and then come near the end of some run, next to none do.
    pub joined: u32,
}

/// The runs of one direction (reads or writes) of one volume.
///
/// A table of fixed size, linked by age, and by the stretch of [`WINDOW`] sectors that a run ends in: what is near a
/// sector ends in its stretch or in one of the two beside it.
#[derive(Debug, Default)]
pub struct Streams {
    runs: Vec<Run>,
    stretches: Vec<u16>,
    oldest: u16,
    newest: u16,
}

/// Stretches of sectors share this many lists.
const LISTS: usize = 8192;

fn list_of(end: u64) -> usize {
    ((end / WINDOW).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 51) as usize
}

impl Streams {
    /// Notes a request; `flushes` is how many flushes the volume has seen so far, and one with `fua` is flushed by itself.
    pub fn note(&mut self, sector: u64, sectors: u64, flushes: u64, fua: bool) -> Belongs {
        if self.stretches.is_empty() {
            self.stretches = vec![NONE; LISTS];
            (self.oldest, self.newest) = (NONE, NONE);
        }
        let near = self.nearest(sector);
        let mut run = match near {
            Some(n) => {
                let run = self.take(n);
                let synced = fua || run.flushes != flushes;
                let joined = if run.last == sector { run.joined + 1 } else { 0 };
                Run { steps: run.steps + 1, flushed_steps: run.flushed_steps + u32::from(synced), joined, ..run }
            }
            None => Run::begin(sector, flushes),
        };
        // One end is enough for a window: random requests to a small set would crowd it.
        while let Some(n) = self.nearest(sector) {
            self.take(n);
            self.retire(n);
        }
        run.end = run.end.max(sector + sectors);
        run.start = run.start.min(sector);
        run.covered = (run.covered + sectors).min(run.end - run.start);
        if run.end - run.start - run.covered > WINDOW {
            run = Run { covered: sectors, end: sector + sectors, ..Run::begin(sector, flushes) };
        }
        (run.flushes, run.last) = (flushes, sector + sectors);
        let place = match near {
            Some(n) => n,
            None if self.runs.len() < RUNS && self.runs.get(usize::from(self.oldest)).is_none_or(|r| r.end != NOWHERE) => {
                self.runs.push(run);
                (self.runs.len() - 1) as u16
            }
            None => {
                let oldest = self.oldest;
                self.take(oldest);
                oldest
            }
        };
        self.put(place, run);
        Belongs {
            run_sectors: run.end - run.start,
            synchronous: run.steps >= 1 && run.flushed_steps * 2 > run.steps && sectors <= 128,
            joined: run.joined,
        }
    }

    /// The run whose end is nearest to a sector, of those near enough; of two the lower.
    fn nearest(&self, sector: u64) -> Option<u16> {
        let stretch = sector / WINDOW;
        let mut best: Option<(u64, u64, u16)> = None;
        for s in stretch.saturating_sub(1)..=stretch + 1 {
            let mut n = self.stretches[list_of(s * WINDOW)];
            while let Some(run) = self.runs.get(usize::from(n)) {
                let distance = run.end.abs_diff(sector);
                if distance <= WINDOW && best.is_none_or(|(d, e, _)| (distance, run.end) < (d, e)) {
                    best = Some((distance, run.end, n));
                }
                n = run.beside;
            }
        }
        best.map(|b| b.2)
    }

    /// Takes a run out of its lists.
    fn take(&mut self, n: u16) -> Run {
        let run = self.runs[usize::from(n)];
        match self.runs.get_mut(usize::from(run.older)) {
            Some(o) => o.newer = run.newer,
            None => self.oldest = run.newer,
        }
        match self.runs.get_mut(usize::from(run.newer)) {
            Some(o) => o.older = run.older,
            None => self.newest = run.older,
        }
        if run.end == NOWHERE {
            return run;
        }
        let list = list_of(run.end);
        if self.stretches[list] == n {
            self.stretches[list] = run.beside;
        } else {
            let mut at = usize::from(self.stretches[list]);
            while self.runs[at].beside != n {
                at = usize::from(self.runs[at].beside);
            }
            self.runs[at].beside = run.beside;
        }
        run
    }

    /// Puts what is forgotten where no request is near, as the oldest: its place is the next to be taken.
    fn retire(&mut self, n: u16) {
        self.runs[usize::from(n)] = Run { end: NOWHERE, newer: self.oldest, ..Run::begin(0, 0) };
        match self.runs.get_mut(usize::from(self.oldest)) {
            Some(o) => o.older = n,
            None => self.newest = n,
        }
        self.oldest = n;
    }

    /// Puts a run into a free place, as the newest.
    fn put(&mut self, n: u16, run: Run) {
        let list = list_of(run.end);
        self.runs[usize::from(n)] = Run { older: self.newest, newer: NONE, beside: self.stretches[list], ..run };
        self.stretches[list] = n;
        match self.runs.get_mut(usize::from(self.newest)) {
            Some(o) => o.newer = n,
            None => self.oldest = n,
        }
        self.newest = n;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interleaved_streams_are_told_from_random_requests() {
        let mut streams = Streams::default();
        let mut random = 12345u64;
        for step in 0..64 {
            for s in 0..1000u64 {
                let b = streams.note(s * 1_000_000 + step * 64, 64, 0, false);
                assert_eq!(b.run_sectors, (step + 1) * 64);
                random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                let b = streams.note(1 << 40 | (random >> 20), 8, 0, false);
                assert!(b.run_sectors < 600, "{b:?}");
            }
        }
    }

    #[test]
    fn random_requests_to_a_small_set_are_no_stream() {
        // With as many runs remembered as this, every place is near the end of one.
        let mut streams = Streams::default();
        let mut random = 12345u64;
        for _ in 0..200_000 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let b = streams.note((random >> 33) % 65_536 * 8, 8, 0, false);
            assert!(b.run_sectors < 1024, "{b:?}");
        }
    }

    #[test]
    fn what_begins_where_the_run_ends_is_told_from_what_only_comes_near() {
        let mut streams = Streams::default();
        let mut joined = |sector| streams.note(sector, 8, 0, false).joined;
        assert_eq!([0, 8, 16, 24, 40, 48, 0, 8].map(&mut joined), [0, 1, 2, 3, 0, 1, 0, 1]);
        // A small set, where every place is near the end of some run.
        let mut random = 12345u64;
        let most = (0..200_000).map(|_| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            joined((random >> 33) % 4096 * 8)
        });
        assert!(most.max() < Some(6));
    }

    #[test]
    fn a_reordered_stream_is_one() {
        // Pieces of 4 KiB, each window of 16 in another order.
        let mut streams = Streams::default();
        let mut longest = 0;
        for n in 0..1024u64 {
            let piece = n / 16 * 16 + n * 7 % 16;
            longest = longest.max(streams.note(1_000_000 + piece * 8, 8, 0, false).run_sectors);
        }
        assert_eq!(longest, 8192);
    }

    #[test]
    fn a_writer_that_flushes_each_step_is_a_log_and_not_a_stream() {
        let mut streams = Streams::default();
        for n in 0..100 {
            let b = streams.note(n * 8, 8, n, false);
            assert_eq!(b.synchronous, n >= 1);
        }
    }

    #[test]
    fn a_writer_whose_writes_are_durable_each_is_a_log_beside_streams_that_are_not() {
        let mut streams = Streams::default();
        for n in 0..100 {
            assert_eq!(streams.note(n * 8, 8, 0, true).synchronous, n >= 1);
            assert!(!streams.note(1_000_000 + n * 8, 8, 0, false).synchronous);
        }
    }
}
