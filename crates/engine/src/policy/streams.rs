//! Streams: runs of requests that continue each other in address, however small each is and whoever sends them.
//!
//! A table of the fronts of recent runs, found by address: a run that goes forwards has its front where it ends, one that goes
//! backwards where it begins. A request near a front continues that run.
//!
//! Queues reorder, so near is as far as some requests of its size reach; and a bit for each of the last pieces behind the front tells
//! what fills a hole from what is asked for again. A run may skip a third of what it passes, or more if always the same. Random requests
//! to a small set, too, come near some front again and again, but skip more: their runs begin anew.
//!
//! What was not continued for longest is forgotten first, but runs that went on only when too many of them did: random requests,
//! however many, do not push out the streams between them. Of runs that only began some are remembered for much longer than others,
//! so that a slow stream, too, comes again before all its beginnings are forgotten.

use alloc::vec;
use alloc::vec::Vec;

/// How many runs that went on are remembered.
pub const RUNS: usize = 8192;
/// How many runs are remembered, with those that only began.
const PLACES: usize = 12_288;
/// Of those that only began one in two is remembered twice as long as the others, one in four four times, and so on so often.
const LONGER: u32 = 5;
/// A request continues a run whose front is so near, in sectors, however small it is. Other fronts there are forgotten.
const WINDOW: u64 = 256;
/// Queues reorder so many requests: a larger one continues a run from as far as they reach,
const DEPTH: u64 = 32;
/// but no further than this, in sectors.
const FURTHEST: u64 = 8192;
/// A run that always skips the same asks for one sector in so many at least. Of less the disk makes no stream: it is seeks to it.
const SPARSEST: u64 = 4;
/// A run that has taken so many steps goes on, in whatever order. A few large requests may look like one by chance.
const SURE: u32 = 16;
/// After so many steps a run counts its older ones half: what they tell of it is a ratio, and counters have an end.
const FORGETS_AT: u32 = 1 << 16;
/// Runs that a request makes forgotten at most: what crowds a place is not there for long, and a request has no time for all of it.
const AT_ONCE: usize = 16;
/// No run.
const NONE: u16 = u16::MAX;
/// The front of a run that was forgotten: it is in no list but that by age.
const NOWHERE: u64 = u64::MAX;

/// Where a run is, and its neighbours in the lists. A request looks at some of these, and at the rest of one run at most: all of them take
/// 0.4 MB, which stays in a processor's own memory of 2 MB more easily than the 1.4 MB that they and the rest took together.
#[derive(Clone, Copy, Debug)]
struct Place {
    start: u64,
    end: u64,
    /// Its neighbours in age.
    older: u16,
    newer: u16,
    /// The next run that has its front in the same stretch.
    beside: u16,
    /// How often it will be spared when it is the oldest of those that only began.
    chances: u8,
    /// It goes on before its start, and not behind its end.
    descends: bool,
    /// It went on: it is remembered longer than those that only began.
    goes_on: bool,
}

impl Place {
    /// That of no run.
    const NOWHERE: Self = Self {
        start: NOWHERE,
        end: NOWHERE,
        older: NONE,
        newer: NONE,
        beside: NONE,
        chances: 0,
        descends: false,
        goes_on: false,
    };

    /// Where it goes on.
    fn front(&self) -> u64 {
        if self.descends { self.start } else { self.end }
    }

    /// How far a request is from where the run goes on, and whether it goes backwards with it.
    fn distance(&self, sector: u64, end: u64) -> (u64, bool) {
        let (forwards, backwards) = (self.end.abs_diff(sector), self.start.abs_diff(end));
        (forwards.min(backwards), backwards < forwards)
    }
}

#[derive(Clone, Copy, Debug)]
struct Run {
    at: Place,
    /// Sectors that were asked for, once or more.
    covered: u64,
    /// Sectors that it skipped, and not as it always does.
    holes: u64,
    /// Which of the last pieces behind the front were asked for, the one next to it in the lowest bit.
    seen: u64,
    /// Sectors of such a piece.
    piece: u64,
    flushes: u64,
    flushed_steps: u32,
    steps: u32,
    /// Steps that began neither right at the front nor as far from the last as that from the one before.
    strays: u32,
    /// Where its last request began and ended; and of its last requests, how many in a row began where the one before them ended.
    last: (u64, u64),
    joined: u32,
    /// From the beginning of the last request but one to that of the last.
    stride: u64,
}

impl Run {
    fn begin(sector: u64, sectors: u64, flushes: u64) -> Self {
        let piece = sectors.next_power_of_two().clamp(8, WINDOW);
        Self {
            at: Place {
                start: sector,
                end: sector + sectors,
                // By chance. A stream that is slow beside random requests begins again and again, until it is remembered for long enough.
                chances: (1 << list_of(sector).trailing_zeros().min(LONGER)) - 1,
                ..Place::NOWHERE
            },
            covered: sectors,
            holes: 0,
            seen: bits(sectors.div_ceil(piece)),
            piece,
            flushes,
            flushed_steps: 0,
            steps: 0,
            strays: 0,
            last: (sector, sector + sectors),
            joined: 0,
            stride: 0,
        }
    }

    /// The run with a request more.
    fn step(mut self, sector: u64, sectors: u64, synced: bool) -> Self {
        let (end, mut at) = (sector + sectors, self.at);
        let (distance, descends) = at.distance(sector, end);
        if descends != at.descends {
            // Only a run of a few requests has both its ends near one.
            let pieces = (at.end - at.start).div_ceil(self.piece).clamp(1, 64);
            (at.descends, self.seen) = (descends, self.seen.reverse_bits() >> (64 - pieces));
        }
        let stride = sector.wrapping_sub(self.last.0);
        let regular = stride != 0 && stride == self.stride && distance < SPARSEST * sectors;
        let (ahead, behind) = if descends {
            (at.start.saturating_sub(sector), sector.saturating_sub(at.start))
        } else {
            (end.saturating_sub(at.end), at.end.saturating_sub(end))
        };
        let pieces = bits(sectors.div_ceil(self.piece));
        if ahead > 0 {
            let skipped = ahead.saturating_sub(sectors);
            self.covered += ahead - skipped;
            self.holes += if regular { 0 } else { skipped };
            self.seen = self.seen.checked_shl(ahead.div_ceil(self.piece).min(64) as u32).unwrap_or(0) | pieces;
        } else {
            let pieces = pieces.checked_shl((behind / self.piece).min(64) as u32).unwrap_or(0);
            let filled = (u64::from((pieces & !self.seen).count_ones()) * self.piece).min(sectors).min(self.holes);
            self.covered += filled;
            self.holes -= filled;
            self.seen |= pieces;
        }
        let orderly = distance == 0 || regular;
        at.goes_on |= orderly;
        self.strays += u32::from(!orderly);
        (at.start, at.end) = (at.start.min(sector), at.end.max(end));
        self.at = at;
        self.steps += 1;
        self.flushed_steps += u32::from(synced);
        if self.steps >= FORGETS_AT {
            // A run that stays in one place lives for as long as somebody asks there.
            self.steps /= 2;
            self.strays /= 2;
            self.flushed_steps /= 2;
        }
        self.joined = if self.last.1 == sector { self.joined.saturating_add(1) } else { 0 };
        (self.last, self.stride) = ((sector, end), stride);
        self
    }
}

/// So many of the lowest bits.
fn bits(count: u64) -> u64 {
    if count < 64 { (1 << count) - 1 } else { u64::MAX }
}

/// What a request belongs to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Belongs {
    /// Sectors of the request.
    pub sectors: u64,
    /// Sectors that the run has asked for so far, with this request.
    pub run_sectors: u64,
    /// Its writer flushes after nearly every step: a log, not a stream to send past the cache.
    pub synchronous: bool,
    /// How many requests in a row, this one the last of them, began exactly where the one before them ended. Of random requests, which
    /// now and then come near the end of some run, next to none do.
    pub joined: u32,
    /// The run is in order, or so long that it is no chance.
    pub certain: bool,
}

impl Belongs {
    /// Whether the request belongs to a stream, from `stream_bytes` of its run on, and goes past the cache. One as long as that is a
    /// stream by itself, wherever it comes from.
    #[must_use]
    pub fn is_stream(&self, stream_bytes: u64) -> bool {
        let run = if self.certain { self.run_sectors.max(self.sectors) } else { self.sectors };
        run * 512 >= stream_bytes && !self.synchronous
    }
}

/// The runs of one direction (reads or writes) of one volume.
///
/// A table of fixed size, linked by age, those that went on apart from those that only began; and by the stretch of sectors that a
/// run has its front in.
#[derive(Debug, Default)]
pub struct Streams {
    places: Vec<Place>,
    /// The rest of what is in each place: where it is, and who beside it, is as it was when it was put there.
    runs: Vec<Run>,
    stretches: Vec<u16>,
    /// Oldest and newest of those that only began, and of those that went on.
    ages: [(u16, u16); 2],
    /// How many went on.
    going: usize,
}

/// Sectors of a stretch.
const STRETCH: u64 = 2048;
/// Stretches of sectors share this many lists.
const LISTS: usize = 16_384;

fn list_of(stretch: u64) -> usize {
    (stretch.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 50) as usize
}

impl Streams {
    /// Notes a request; `flushes` is how many flushes the volume has seen so far, and one with `fua` is flushed by itself.
    pub fn note(&mut self, sector: u64, sectors: u64, flushes: u64, fua: bool) -> Belongs {
        let window = (DEPTH * sectors).clamp(WINDOW, FURTHEST);
        if self.stretches.is_empty() {
            self.stretches = vec![NONE; LISTS];
            self.ages = [(NONE, NONE); 2];
        }
        let (near, others) = self.nearest(sector, sectors, window);
        let mut run = match near {
            Some(n) => {
                let run = Run { at: self.take(n), ..self.runs[usize::from(n)] };
                run.step(sector, sectors, fua || run.flushes != flushes)
            }
            None => Run::begin(sector, sectors, flushes),
        };
        // One front is enough for a window: random requests to a small set would crowd it. Streams may go on side by side.
        if others > 0 {
            for n in self.crowd(sector, sectors, window).into_iter().take_while(|n| *n != NONE) {
                self.take(n);
                self.retire(n);
            }
        }
        // A queue leaves holes, and fills them before it is a window further; gaps stay, but are a third of it at most.
        if run.holes > window + run.covered / 2 {
            run = Run::begin(sector, sectors, flushes);
        }
        run.flushes = flushes;
        let place = near.unwrap_or_else(|| self.place());
        self.put(place, run);
        Belongs {
            sectors,
            run_sectors: run.covered,
            synchronous: run.steps >= 1 && run.flushed_steps * 2 > run.steps && sectors <= 128,
            joined: run.joined,
            // One step in eight out of order is what a gap now and then makes.
            certain: run.strays * 8 <= run.steps || run.steps >= SURE,
        }
    }

    /// The run whose front is nearest to a request, of those within a window; of two the lower. And how many others there are.
    fn nearest(&self, sector: u64, sectors: u64, window: u64) -> (Option<u16>, u32) {
        let mut best: Option<(u64, u64, u16)> = None;
        let mut others = 0;
        self.each_near(sector, sectors, window, |n, run, distance| {
            others += u32::from(best.is_some());
            if best.is_none_or(|(d, f, _)| (distance, run.front()) < (d, f)) {
                best = Some((distance, run.front(), n));
            }
        });
        (best.map(|b| b.2), others)
    }

    /// Runs that crowd a request: those within its window that only began, and those that are very near. Not all, if they are many.
    fn crowd(&self, sector: u64, sectors: u64, window: u64) -> [u16; AT_ONCE] {
        let mut crowd = [NONE; AT_ONCE];
        let mut count = 0;
        self.each_near(sector, sectors, window, |n, run, distance| {
            // Two stretches may share a list.
            if count < AT_ONCE && (!run.goes_on || distance <= WINDOW) && !crowd.contains(&n) {
                crowd[count] = n;
                count += 1;
            }
        });
        crowd
    }

    /// Shows each run whose front is within a window of a request, with its distance; one or the other twice.
    fn each_near(&self, sector: u64, sectors: u64, window: u64, mut show: impl FnMut(u16, &Place, u64)) {
        let end = sector + sectors;
        // Of a long request what is near it lies near its ends.
        let around = |at: u64| (at.saturating_sub(window) / STRETCH, (at + window) / STRETCH);
        let ((first, last), (from, to)) = (around(sector), around(end));
        for stretch in (first..=last).chain(from.max(last + 1)..=to) {
            let mut n = self.stretches[list_of(stretch)];
            while let Some(run) = self.places.get(usize::from(n)) {
                let (distance, _) = run.distance(sector, end);
                if distance <= window {
                    show(n, run, distance);
                }
                n = run.beside;
            }
        }
    }

    /// A place for a run that begins: a free one, or that of the oldest of those that only began, but who have chances left.
    fn place(&mut self) -> u16 {
        let mut oldest = self.ages[0].0;
        if self.places.len() < PLACES && self.places.get(usize::from(oldest)).is_none_or(|r| r.start != NOWHERE) {
            self.places.push(Place::NOWHERE);
            self.runs.push(Run::begin(NOWHERE, 0, 0));
            return (self.places.len() - 1) as u16;
        }
        while self.places[usize::from(oldest)].chances > 0 {
            self.places[usize::from(oldest)].chances -= 1;
            self.unlink(oldest);
            self.link(oldest);
            oldest = self.ages[0].0;
        }
        self.take(oldest);
        oldest
    }

    /// Takes a run out of the list by age.
    fn unlink(&mut self, n: u16) {
        let run = self.places[usize::from(n)];
        let ages = &mut self.ages[usize::from(run.goes_on)];
        match self.places.get_mut(usize::from(run.older)) {
            Some(o) => o.newer = run.newer,
            None => ages.0 = run.newer,
        }
        match self.places.get_mut(usize::from(run.newer)) {
            Some(o) => o.older = run.older,
            None => ages.1 = run.older,
        }
    }

    /// Puts a run into the list by age, as the newest.
    fn link(&mut self, n: u16) {
        let goes_on = usize::from(self.places[usize::from(n)].goes_on);
        let (oldest, newest) = &mut self.ages[goes_on];
        match self.places.get_mut(usize::from(*newest)) {
            Some(o) => o.newer = n,
            None => *oldest = n,
        }
        let run = &mut self.places[usize::from(n)];
        (run.older, run.newer) = (*newest, NONE);
        *newest = n;
    }

    /// Takes a run out of its lists.
    fn take(&mut self, n: u16) -> Place {
        self.unlink(n);
        let run = self.places[usize::from(n)];
        self.going -= usize::from(run.goes_on);
        if run.start == NOWHERE {
            return run;
        }
        let list = list_of(run.front() / STRETCH);
        if self.stretches[list] == n {
            self.stretches[list] = run.beside;
        } else {
            let mut at = usize::from(self.stretches[list]);
            while self.places[at].beside != n {
                at = usize::from(self.places[at].beside);
            }
            self.places[at].beside = run.beside;
        }
        run
    }

    /// Puts what is forgotten where no request is near, as the oldest: its place is the next to be taken.
    fn retire(&mut self, n: u16) {
        let (oldest, newest) = &mut self.ages[0];
        self.places[usize::from(n)] = Place { newer: *oldest, ..Place::NOWHERE };
        match self.places.get_mut(usize::from(*oldest)) {
            Some(o) => o.older = n,
            None => *newest = n,
        }
        *oldest = n;
    }

    /// Puts a run into a free place, as the newest.
    fn put(&mut self, n: u16, run: Run) {
        if run.at.goes_on && self.going == RUNS {
            let oldest = self.ages[1].0;
            self.take(oldest);
            self.retire(oldest);
        }
        let list = list_of(run.at.front() / STRETCH);
        self.places[usize::from(n)] = Place { beside: self.stretches[list], ..run.at };
        self.runs[usize::from(n)] = run;
        self.stretches[list] = n;
        self.link(n);
        self.going += usize::from(run.at.goes_on);
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

    /// Of the requests in an order, how many belong to a run of 512 KiB or more, that has begun far from others.
    fn known(sectors: u64, places: impl Iterator<Item = u64>) -> usize {
        let mut streams = Streams::default();
        places.filter(|place| streams.note(1_000_000 + place * sectors, sectors, 0, false).is_stream(512 << 10)).count()
    }

    #[test]
    fn a_stream_may_go_backwards_or_by_strides_or_leave_small_gaps() {
        for (sectors, before) in [(8, 127), (32, 31), (128, 7), (256, 3)] {
            let all = 1024 - before;
            assert_eq!(known(sectors, 0..1024), all);
            assert_eq!(known(sectors, (0..1024).rev()), all, "backwards, {sectors}");
            // That it goes by strides is seen at the third request.
            assert!(known(sectors, (0..1024).map(|n| 2 * n)) >= all - 8, "one of two, {sectors}");
            assert!(known(sectors, (0..1024).rev().map(|n| 4 * n)) >= all - 8, "one of four backwards, {sectors}");
            assert_eq!(known(sectors, (0..1024).map(|n| n + n / 8)), all, "with gaps, {sectors}");
        }
    }

    #[test]
    fn of_strides_that_leave_out_most_the_disk_would_make_no_stream() {
        assert_eq!(known(8, (0..4096).map(|n| 16 * n)), 0);
        assert_eq!(known(128, (0..4096).map(|n| 16 * n)), 0);
    }

    #[test]
    fn a_deep_queue_of_large_requests_is_still_a_stream() {
        // Each window of 32 in another order.
        let reordered = (0..1024).map(|n| n / 32 * 32 + n * 13 % 32);
        assert!(known(128, reordered) > 960);
    }

    #[test]
    fn streams_are_known_among_more_random_requests_than_runs_are_remembered() {
        let mut streams = Streams::default();
        let mut random = 12345u64;
        let mut known = 0;
        for step in 0..64 {
            known = 0;
            for s in 0..4096u64 {
                known += u32::from(streams.note(s * 1_000_000 + step * 128, 128, 0, false).is_stream(512 << 10));
                for _ in 0..7 {
                    random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    let b = streams.note(1 << 40 | (random >> 20), 128, 0, false);
                    assert!(!b.is_stream(512 << 10), "{b:?}");
                }
            }
        }
        assert!(known > 3800, "{known}");
    }

    #[test]
    fn few_random_requests_to_a_small_set_are_taken_for_a_stream_however_large() {
        for sectors in [8, 32, 128, 256] {
            let mut random = 12345u64;
            let places = (0..50_000).map(|_| {
                random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                (random >> 33) % (1 << 21) / sectors
            });
            let taken = known(sectors, places);
            assert!(taken < 1000, "{taken} of {sectors}");
        }
    }

    /// Streams side by side that begin again where another one ends, in large requests: some of these were absorbed, a few in a
    /// hundred, and the next time round the stream had to put itself in order with what was dirty.
    #[test]
    fn a_place_that_is_asked_for_without_end_keeps_its_ratios_and_fills_no_counter() {
        let mut streams = Streams::default();
        // A request for the block that the run has just had is always out of order.
        for _ in 0..u64::from(FORGETS_AT) + 100 {
            let flushes = streams.runs.first().map_or(0, |run| run.flushes + 1);
            streams.note(800, 8, flushes, false);
        }
        let run = &streams.runs[0];
        assert!((FORGETS_AT / 2..FORGETS_AT).contains(&run.steps), "{run:?}");
        assert_eq!((run.strays, run.flushed_steps), (run.steps, run.steps));
        // After years of a stream without a break.
        streams.runs[0] = Run { steps: FORGETS_AT - 1, strays: 1000, flushed_steps: 50_000, joined: u32::MAX, ..streams.runs[0] };
        let belongs = streams.note(808, 8, streams.runs[0].flushes + 1, false);
        let run = &streams.runs[0];
        assert_eq!((run.steps, run.strays, run.flushed_steps), (FORGETS_AT / 2, 500, 25_000));
        assert_eq!((belongs.joined, belongs.certain, belongs.synchronous), (u32::MAX, true, true));
    }

    #[test]
    fn a_request_as_long_as_a_stream_is_one() {
        let mut streams = Streams::default();
        for step in 0..600u64 {
            for s in 0..4 {
                let sector = s * 65_536 + (step + s * 7) % 64 * 1024;
                assert!(streams.note(sector, 1024, 0, false).is_stream(512 << 10), "{s} {step}");
            }
        }
    }
}
