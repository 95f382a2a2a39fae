//! How many writes a sweep keeps in flight: as many as the disk makes use of.
//!
//! One disk sorts a few dozen and gains nothing from more; an array of forty serves as many at once as it has arms, and a
//! busy one more than that. What a device is cannot be asked, so it is tried, as a sender finds the capacity of a path in
//! the hill climbing of delay-based congestion control (TCP Vegas, 1994, and the concurrency limits made after it): for a
//! while there are half as many more, or a third fewer, and what that does to the rate decides whether it stays so.
//!
//! The rate moves by much more than that where a disk stands still for a flush, and takes what comes after it into an empty
//! cache: a round with such a pause in it decides nothing, nor does the next, and one round alone does not either.

/// Writes per place in the window that make a round: less says nothing about the rate.
const ROUND: u64 = 4;
/// Shortest round, in nanoseconds.
const ROUND_NS: u64 = 100_000_000;
/// A larger window stays if half as many more bring so much more, in percent.
const WORTH: u64 = 20;
/// A smaller one stays if it costs no more than this, in percent.
const COSTS: u64 = 8;
/// Longest that a write may take on an average before no more are tried, in nanoseconds.
const PATIENCE_NS: u64 = 500_000_000;
/// More than this are not kept in flight.
const MOST: usize = 1024;
/// A round in which for this part of its time nothing came down decides nothing: a disk stood still, and has taken at once what came
/// then, or will in the next round.
const PAUSE: u64 = 4;
/// Rounds between two trials: at first, and at last, when again and again they change nothing.
const RESTS: (u32, u32) = (4, 64);
/// How much of a sweep ends with one flush, as time at the rate reached, in nanoseconds.
const CHUNK_NS: u64 = 2_000_000_000;
/// After this a chunk ends, however much of it is written, in nanoseconds: what was reached before it says nothing of what is when clients
/// come to use the disk, and until it ends nothing is clean.
pub const LONGEST_CHUNK_NS: u64 = 3_000_000_000;
/// Blocks in a run, on an average, that a chunk is made longer for.
const LONG_RUN: u64 = 64;

/// The least in flight beside clients' writes to the disk, as a multiple of the usual least: it decides how a single disk is shared.
/// With three times as much four streams had 0.95 of what they have beside the same random writes on the bare disk, with twice as
/// much these were no more than half as many.
const BESIDE_WRITES: (usize, usize) = (11, 4);
/// And the most, by what clients have in flight: there are writes that wait for the sweep behind it, and none of them is at
/// the disk itself.
const AGAINST_WRITES: (usize, usize) = (39, 32);
/// The least beside reads from it, as a fraction.
const BESIDE_READS: (usize, usize) = (1, 2);

/// What clients ask of the disk just now.
#[derive(Clone, Copy, Default, Debug)]
pub struct Clients {
    /// Reads under way.
    pub reads: u32,
    /// Writes under way.
    pub writes: u32,
    /// Of these, the ones that found no room in the log.
    pub direct: u32,
}

/// What is tried, against what was reached before, on an average of two rounds.
#[derive(Clone, Copy, Debug)]
struct Trial {
    from: usize,
    rate: u64,
    /// One round has been good enough. Two in a row are.
    was_good: bool,
}

/// The window.
#[derive(Clone, Copy, Default, Debug)]
pub struct Window {
    size: usize,
    since: u64,
    runs: u64,
    blocks: u64,
    /// Runs per second in the round before, and blocks per run; zero before it is known.
    rate: u64,
    run_blocks: u64,
    /// Runs per second in the last round that decided something.
    decided: u64,
    /// When a run came down last, the longest time between two of this round, and whether there was a pause in the round before.
    last: u64,
    pause: u64,
    paused: bool,
    trial: Option<Trial>,
    /// Rounds until the next trial, and after a trial that changes nothing.
    rest: u32,
    rests: u32,
    /// The next trial is of a smaller one.
    down: bool,
}

impl Window {
    /// Writes to keep in flight, `least` of them at least.
    #[must_use]
    pub fn size(&self, least: usize) -> usize {
        self.size.clamp(least, MOST.max(least))
    }

    /// The same beside what clients ask of the disk. Of writes that found no room in the log, which wait for the sweep alone,
    /// none is pushed aside. Readers wait for each answer: the sweep has no more in flight than they, and little where they
    /// are few. Writes are answered from the disk's own cache, and what matters is what share of it is whose: a sweep that
    /// has less there than a few writers put in gets next to nothing of the disk.
    #[must_use]
    pub fn beside(&self, least: usize, clients: &Clients) -> usize {
        let size = self.size(least);
        let requests = (clients.reads + clients.writes) as usize;
        // Others write beside those who found none: the sweep that has too little of the disk's cache would keep them waiting.
        let others = clients.writes > clients.direct;
        match clients {
            Clients { reads: 0, writes: 0, .. } => size,
            Clients { direct: 1.., reads, .. } if *reads > 0 || !others => least,
            Clients { reads: 0, .. } => {
                let least = Self::least_beside(least, clients);
                self.size(least).min((requests * AGAINST_WRITES.0 / AGAINST_WRITES.1).max(least))
            }
            _ => size.min(requests.max(least * BESIDE_READS.0 / BESIDE_READS.1)),
        }
    }

    /// The least that more is tried from: what is in flight anyway says nothing about it.
    fn least_beside(least: usize, clients: &Clients) -> usize {
        if clients.reads == 0 && clients.writes > clients.direct { least * BESIDE_WRITES.0 / BESIDE_WRITES.1 } else { least }
    }

    /// Blocks of a chunk: those of the `usual` number of runs, and of more where many are in flight; but no more than go down
    /// in about two seconds, so that what is written is soon clean.
    #[must_use]
    pub fn chunk(&self, usual: usize, least: usize) -> usize {
        let runs = usual * self.size(least) / least.max(1);
        let soon = if self.rate > 0 { (self.rate as u128 * u128::from(CHUNK_NS) / 1_000_000_000) as usize } else { runs };
        runs.min(soon.max(usual / 4)).max(1) * self.run_blocks.clamp(1, LONG_RUN) as usize
    }

    /// A run of so many blocks is down, with `in_flight` of them, beside what clients ask of the disk.
    pub fn note(&mut self, now: u64, least: usize, clients: &Clients, blocks: u64, in_flight: usize) {
        let least = Self::least_beside(least, clients);
        self.pause = self.pause.max(now.saturating_sub(self.last));
        self.last = now;
        if in_flight < self.size(least) || self.since == 0 {
            (self.since, self.runs, self.blocks, self.pause) = (now, 0, 0, 0);
            return;
        }
        self.runs += 1;
        self.blocks += blocks;
        let (took, size) = (now.saturating_sub(self.since), self.size(least));
        if self.runs < ROUND * size as u64 || took < ROUND_NS {
            return;
        }
        self.rate = (u128::from(self.runs) * 1_000_000_000 / u128::from(took)) as u64;
        self.run_blocks = self.blocks / self.runs;
        (self.since, self.runs, self.blocks) = (now, 0, 0);
        let paused = core::mem::take(&mut self.pause) > took / PAUSE;
        if core::mem::replace(&mut self.paused, paused) || paused {
            return;
        }
        self.size = self.next(size, least);
        self.decided = self.rate;
    }

    /// The size of the next round.
    fn next(&mut self, size: usize, least: usize) -> usize {
        let rate = self.rate;
        if let Some(trial) = self.trial.take() {
            let good = match size > trial.from {
                true => rate * 100 >= trial.rate * (100 + WORTH),
                false => rate * 100 >= trial.rate * (100 - COSTS),
            };
            if !good {
                self.rests = (self.rests * 2).clamp(RESTS.0, RESTS.1);
                (self.rest, self.down) = (self.rests, !self.down);
                return trial.from;
            }
            if !trial.was_good {
                self.trial = Some(Trial { was_good: true, ..trial });
                return size;
            }
            (self.rest, self.rests) = (0, RESTS.0);
        }
        if self.rest > 0 {
            self.rest -= 1;
            return size;
        }
        let late = size as u64 * 1_000_000_000 / rate.max(1) > PATIENCE_NS;
        let to = if late || self.down { size * 2 / 3 } else { size + size / 2 }.clamp(least, MOST.max(least));
        if to == size {
            (self.rest, self.down) = (RESTS.0, !self.down);
        } else {
            let before = if self.decided > 0 { rate.midpoint(self.decided) } else { rate };
            self.trial = Some(Trial { from: size, rate: before, was_good: false });
        }
        to
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;

    const LEAST: usize = 32;

    /// What the window comes to before a disk that takes `ns(size)` for each write, with as many in flight.
    fn after(seconds: u64, window: &mut Window, ns: impl Fn(u64) -> u64) -> usize {
        let mut now = window.since.max(1);
        let end = now + seconds * 1_000_000_000;
        let mut sizes = Vec::new();
        while now < end {
            let size = window.size(LEAST) as u64;
            now += ns(size) / size;
            window.note(now, LEAST, &Clients::default(), 1, window.size(LEAST));
            sizes.push(window.size(LEAST));
        }
        sizes.sort_unstable();
        sizes[sizes.len() / 2]
    }

    #[test]
    fn an_array_is_given_as_many_as_it_serves_at_once_and_one_disk_no_more_than_it_sorts() {
        const MS: u64 = 1_000_000;
        let array = after(60, &mut Window::default(), |size| 10 * MS * size.max(240) / 240);
        assert!((200..=400).contains(&array), "{array}");
        // A longer queue helps one disk a little.
        let disk = after(60, &mut Window::default(), |size| 2 * MS * size * 30 / (30 + size / 32));
        assert_eq!(disk, LEAST);
    }

    #[test]
    fn what_is_no_use_any_more_is_given_up() {
        const MS: u64 = 1_000_000;
        let mut window = Window::default();
        after(60, &mut window, |size| 10 * MS * size.max(400) / 400);
        assert!(window.size(LEAST) >= 300, "{window:?}");
        let then = after(300, &mut window, |size| 10 * MS * size.max(40) / 40);
        assert!(then <= 80, "{then}");
    }

    #[test]
    fn beside_clients_a_sweep_has_no_more_in_flight_than_they_but_for_the_share_of_the_disks_cache() {
        let window = Window { size: 600, ..Window::default() };
        let beside = |reads, writes, direct| window.beside(LEAST, &Clients { reads, writes, direct });
        assert_eq!([beside(0, 0, 0), beside(256, 0, 0), beside(4, 0, 0), beside(0, 256, 256)], [600, 256, 16, LEAST]);
        assert_eq!([beside(0, 256, 0), beside(0, 4, 0), beside(4, 4, 0)], [312, 88, 16]);
        assert_eq!([beside(0, 256, 8), beside(0, 12, 8), beside(4, 256, 8)], [312, 88, LEAST]);
        assert_eq!(Window::default().beside(LEAST, &Clients { reads: 256, ..Clients::default() }), LEAST);
    }

    /// An array of forty disks was given 96 for ever beside streams, or 255, as luck would have it: from 32 to 48 changes
    /// nothing where 96 are in flight anyway.
    #[test]
    fn beside_writes_more_is_tried_from_what_is_in_flight_there() {
        let (mut window, writers) = (Window::default(), Clients { writes: 256, ..Clients::default() });
        let mut now = 1;
        for _ in 0..200_000 {
            let size = window.beside(LEAST, &writers);
            now += 240_000_000 / size.min(240) as u64;
            window.note(now, LEAST, &writers, 1, size);
        }
        assert!((200..=320).contains(&window.beside(LEAST, &writers)), "{window:?}");
    }

    /// A SATA disk stands still for each chunk's flush, and then takes at once what its empty cache holds: by luck of where rounds began
    /// the window came to 240, with chunks of that size, in which writers waited for seconds. Found by `headpond experiments B1 --real`.
    #[test]
    fn a_disk_that_stands_still_for_flushes_is_given_no_more_for_that() {
        const MS: u64 = 1_000_000;
        let (mut window, mut now, mut most) = (Window::default(), 1, 0);
        for chunk in 0..500u64 {
            // Stands still for 130 to 330 ms; 256 are taken at once; 512 to 1,500 more at 2,000 per second, give or take a tenth.
            now += (130 + chunk * 37 % 200) * MS;
            for run in 0..768 + chunk * 389 % 1000 {
                now += if run < 256 { MS / 50 } else { (450 + (chunk + run / 100) * 17 % 100) * MS / 1000 };
                window.note(now, LEAST, &Clients::default(), 1, window.size(LEAST));
                most = most.max(window.size(LEAST));
            }
        }
        assert!(most <= 2 * LEAST, "{most} at most");
    }

    #[test]
    fn no_more_are_tried_where_each_takes_long() {
        let slow = after(60, &mut Window::default(), |_| 2 * PATIENCE_NS);
        assert_eq!(slow, LEAST);
    }

    #[test]
    fn a_chunk_takes_about_two_seconds_and_holds_enough_to_sort() {
        let mut window = Window::default();
        assert_eq!(window.chunk(2048, LEAST), 2048);
        after(30, &mut window, |size| 1_000_000_000 * size / 400);
        assert_eq!(window.chunk(2048, LEAST) / 10, 80, "400 each second");
        after(30, &mut window, |size| 1_000_000_000 * size / 40);
        assert_eq!(window.chunk(2048, LEAST), 512, "a quarter at least");
        let mut window = Window::default();
        (0..1000u64).for_each(|n| window.note(1 + n * 10_000_000, LEAST, &Clients::default(), 16, LEAST));
        assert_eq!(window.chunk(2048, LEAST), 512 * 16);
    }
}
