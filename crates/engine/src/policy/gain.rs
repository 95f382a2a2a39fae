//! Whether the cache gains anything for writes while space is short: whether a sweep gets such data down at a better rate than
//! the disk takes such writes by themselves.
//!
//! Of small writes a sweep makes many times what they are to the disk one by one. Of larger ones, which lie far apart however
//! they are sorted, it makes nothing: what it costs to read them again, to flush and to note what is clean is lost, and with it
//! the promise never to be slower than the disk alone. The disk's own cache sorts as well, and that of an array's controller
//! better than we can. What a device is cannot be asked, so it is tried, and seldom: while space has been short for a while, and
//! the sweep's rate is known, all writes go past the cache, and the sweep rests. If they are served at that rate, it stays so; if not,
//! that is seen after some tenths of a second, and the next trial is twice as far away.

/// For so long a sweep is looked at before a trial, in nanoseconds.
const LOOK_NS: u64 = 4_000_000_000;
/// A look goes on though space does not press, if that lasts no longer than this, in nanoseconds.
const RELIEF_NS: u64 = 1_000_000_000;
/// Length of a sample of what writes past the cache reach, in nanoseconds.
const SAMPLE_NS: u64 = 100_000_000;
/// Writes that make a sample sooner than [`LONGEST_SAMPLE_NS`].
const SAMPLE_WRITES: u64 = 8;
/// Longest sample, in nanoseconds.
const LONGEST_SAMPLE_NS: u64 = 1_000_000_000;
/// Who has asked for nothing for so long has paused, in nanoseconds: that says nothing about the disk.
const PAUSE_NS: u64 = 250_000_000;
/// The sweep is given this time to come to its end before what is reached counts, in nanoseconds.
const QUIET_NS: u64 = 2_000_000_000;
/// A trial that is not lost at once has so long, in nanoseconds.
const TRIAL_NS: u64 = 2_000_000_000;
/// And is won after this, in nanoseconds.
const WON_NS: u64 = 10_000_000_000;
/// Writes go past the cache where they reach this much of what the sweep does, in percent: the same is enough, since it spares
/// the cache devices, and leaves the space to what gains from it.
const ENOUGH: u64 = 95;
/// With less than this lately a trial is lost at once, in percent.
const HOPELESS: u64 = 50;
/// Time from a lost trial to the next look, in nanoseconds: at first, and at last.
const RESTS_NS: (u64, u64) = (8_000_000_000, 1_024_000_000_000);
/// Time after which a won one is made again, in nanoseconds: at first, and at last.
const AGAIN_NS: (u64, u64) = (60_000_000_000, 240_000_000_000);
/// A mean size of writes that is so many times as large, or as small, is another load's.
const OTHER: u64 = 2;
/// Writes of less, on an average, are never tried, in bytes: a sweep makes many times of them what they are one by one.
const SMALL: u64 = 16 << 10;

/// What has become of a volume's writes, in bytes, all counted from the beginning.
#[derive(Clone, Copy, Default, Debug)]
pub struct Levels {
    /// Absorbed, and how many writes.
    pub absorbed: u64,
    /// How many writes those were.
    pub writes: u64,
    /// Called clean.
    pub destaged: u64,
    /// Dirty now.
    pub dirty: u64,
    /// Written to the disk by sweeps.
    pub swept: u64,
}

/// From here on most of the space is taken, in percent of it, where it begins to be short at `begin`.
#[must_use]
pub fn full_percent(begin: u32) -> u32 {
    begin + 100u32.saturating_sub(begin) * 7 / 10
}

/// How things stand when a write comes.
#[derive(Clone, Copy, Default, Debug)]
pub struct Stand {
    /// Writes may not come as fast as they like.
    pub is_short: bool,
    /// Space is so short that a sweep has all of the disk that it can have.
    pub presses: bool,
    /// Most of it is taken: before, what room there is serves writes for nothing.
    pub is_full: bool,
    /// Clients read from the disk here and there: they would be in a trial with the writes.
    pub beside_readers: bool,
}

/// What writes reach, in bytes and in writes per second.
#[derive(Clone, Copy, Default, Debug)]
struct Rate {
    bytes: u64,
    writes: u64,
}

impl Rate {
    fn of(bytes: u64, writes: u64, ns: u64) -> Self {
        let per_second = |n: u64| (u128::from(n) * 1_000_000_000 / u128::from(ns.max(1))) as u64;
        Rate { bytes: per_second(bytes), writes: per_second(writes) }
    }

    /// Whether this is at least `percent` of another in both: of large and small writes together neither are to lose.
    fn is(self, percent: u64, of: Rate) -> bool {
        self.bytes * 100 >= of.bytes * percent && self.writes * 100 >= of.writes * percent
    }

    fn mixed(self, other: Rate, parts: u64) -> Self {
        let mix = |a: u64, b: u64| (a * (parts - 1) + b) / parts;
        Rate { bytes: mix(self.bytes, other.bytes), writes: mix(self.writes, other.writes) }
    }
}

/// A sample of what writes past the cache reach.
#[derive(Clone, Copy, Default, Debug)]
struct Sample {
    since: u64,
    bytes: u64,
    writes: u64,
}

/// Writes go past the cache.
#[derive(Clone, Copy, Debug)]
struct Past {
    since: u64,
    /// When what they reach began to count.
    counts: Option<u64>,
    sample: Sample,
    /// Over about a second and a half, and over two tenths.
    average: Option<Rate>,
    lately: Rate,
    /// When the last write was answered.
    answered: u64,
}

/// Whether writes gain anything from the cache.
#[derive(Clone, Copy, Default, Debug)]
pub struct Gain {
    /// Where the levels stood when looks began, and when: the one before the last, and the last.
    looks: [Option<(u64, Levels)>; 2],
    past: Option<Past>,
    /// What sweeps reach, as it was when the trial began.
    sweep: Rate,
    /// When to look next.
    next: u64,
    rest: u64,
    again: u64,
    /// When space pressed last.
    pressed: u64,
    /// Mean bytes of a write, lately, and when it was looked last.
    size: u64,
    size_then: u64,
}

impl Gain {
    /// Whether a write of `bytes` goes past the cache.
    pub fn goes_past(&mut self, now: u64, bytes: u64, stand: impl Fn() -> Stand, levels: impl Fn() -> Levels) -> bool {
        self.size = if self.size == 0 { bytes } else { (self.size * 63 + bytes).div_ceil(64) };
        if let Some(past) = self.past {
            let is_other = self.size > self.size_then * OTHER || self.size * OTHER < self.size_then;
            if !is_other && now - past.since < self.again.max(AGAIN_NS.0) {
                return stand().is_short;
            }
            (self.past, self.looks, self.next) = (None, [None; 2], now);
            self.again = if is_other { 0 } else { (self.again * 2).clamp(2 * AGAIN_NS.0, AGAIN_NS.1) };
            return false;
        }
        if self.size < SMALL || now < self.next {
            self.looks = [None; 2];
            return false;
        }
        let stand = stand();
        if !stand.presses || stand.beside_readers {
            // A checkpoint may free much at once, and soon it is taken again.
            if stand.beside_readers || now - self.pressed > RELIEF_NS {
                self.looks = [None; 2];
            }
            return false;
        }
        self.pressed = now;
        let is_due = |look: Option<(u64, Levels)>| look.is_some_and(|(since, _)| now - since >= LOOK_NS);
        if self.looks[1].is_none() || is_due(self.looks[1]) {
            self.looks = [self.looks[1], Some((now, levels()))];
        }
        let Some((since, then)) = self.looks[0].filter(|_| stand.is_full) else { return false };
        let levels = levels();
        self.looks = [None; 2];
        let Some(sweep) = sustained(now - since, &then, &levels) else { return false };
        (self.sweep, self.size_then) = (sweep, self.size);
        let sample = Sample::default();
        self.past = Some(Past { since: now, counts: None, sample, average: None, lately: Rate::default(), answered: now });
        true
    }

    /// A write that went past the cache at `came` is answered; `quiet`: no sweep is under way.
    pub fn note(&mut self, now: u64, came: u64, bytes: u64, quiet: bool) {
        let Some(past) = &mut self.past else { return };
        let paused = came > past.answered + PAUSE_NS;
        past.answered = now;
        if past.counts.is_none() && (quiet || now - past.since >= QUIET_NS) {
            past.counts = Some(now);
            past.sample = Sample { since: now, ..Sample::default() };
            return;
        }
        let Some(counts) = past.counts else { return };
        if paused {
            past.sample = Sample { since: came, ..Sample::default() };
        }
        past.sample.bytes += bytes;
        past.sample.writes += 1;
        let took = now - past.sample.since;
        if took < SAMPLE_NS || past.sample.writes < SAMPLE_WRITES && took < LONGEST_SAMPLE_NS {
            return;
        }
        let rate = Rate::of(past.sample.bytes, past.sample.writes, took);
        past.sample = Sample { since: now, ..Sample::default() };
        past.lately = past.average.map_or(rate, |_| past.lately.mixed(rate, 2));
        for _ in 0..took / SAMPLE_NS {
            past.average = Some(past.average.map_or(rate, |average| average.mixed(rate, 16)));
        }
        let (is_trial, average, lately) = (now - past.since < WON_NS, past.average.unwrap_or(rate), past.lately);
        let is_lost = is_trial && !lately.is(HOPELESS, self.sweep) || now - counts >= TRIAL_NS && !average.is(ENOUGH, self.sweep);
        if is_lost {
            self.lost(now, is_trial);
        } else if !is_trial {
            self.rest = 0;
        }
    }

    /// The disk failed a write that went past the cache.
    pub fn failed(&mut self, now: u64) {
        self.lost(now, true);
    }

    fn lost(&mut self, now: u64, is_trial: bool) {
        self.rest = if is_trial { (self.rest * 2).clamp(RESTS_NS.0, RESTS_NS.1) } else { RESTS_NS.0 };
        (self.past, self.looks, self.next, self.again) = (None, [None; 2], now + self.rest, 0);
    }
}

/// What sweeps let be absorbed in the long run: what they write, and what was written over before they came to it. `None` if they wrote
/// nothing.
fn sustained(took: u64, then: &Levels, now: &Levels) -> Option<Rate> {
    let (absorbed, writes, swept) = (now.absorbed - then.absorbed, now.writes - then.writes, now.swept - then.swept);
    if swept == 0 || writes == 0 {
        return None;
    }
    // Of what was absorbed, what is dirty since, or was and is clean.
    let remained = (now.destaged - then.destaged + now.dirty).saturating_sub(then.dirty).max(1);
    let bytes = (u128::from(swept) * u128::from(absorbed.max(remained)) / u128::from(remained)) as u64;
    let count = (u128::from(bytes) * u128::from(writes) / u128::from(absorbed.max(1))) as u64;
    Some(Rate::of(bytes, count, took))
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;

    const MS: u64 = 1_000_000;
    const KIB: u64 = 1 << 10;
    const FULL: Stand = Stand { is_short: true, presses: true, is_full: true, beside_readers: false };

    /// One client after the other writes, and what each reaches is what the cache or the disk gives him.
    struct Load {
        gain: Gain,
        now: u64,
        levels: Levels,
    }

    impl Load {
        fn new() -> Self {
            Self { gain: Gain::default(), now: 1, levels: Levels::default() }
        }

        /// For so many seconds writes of `bytes` come, each as soon as the one before is answered. The sweep gets down one in `sweep` ns,
        /// and the disk takes one in `disk` ns. For how many milliseconds they went past the cache.
        fn runs(&mut self, seconds: u64, bytes: u64, stand: Stand, sweep: u64, disk: u64) -> u64 {
            let end = self.now + seconds * 1_000_000_000;
            let mut past = 0;
            while self.now < end {
                let levels = self.levels;
                if self.gain.goes_past(self.now, bytes, || stand, || levels) {
                    let came = self.now;
                    self.now += disk;
                    self.gain.note(self.now, came, bytes, true);
                    past += disk / 1_000;
                } else {
                    self.now += sweep;
                    self.levels.absorbed += bytes;
                    self.levels.writes += 1;
                    self.levels.swept += bytes;
                    self.levels.destaged += bytes;
                }
            }
            past / 1_000
        }
    }

    #[test]
    fn writes_that_the_disk_takes_as_well_go_past_a_full_cache_and_stay_there() {
        let mut load = Load::new();
        let past = load.runs(60, 256 * KIB, FULL, 5 * MS, 4 * MS);
        assert!(past > 50_000, "{past} ms of 60 s");
        let past = load.runs(600, 256 * KIB, FULL, 5 * MS, 4 * MS);
        assert!(past > 580_000, "{past} ms of 600 s: the trials to absorb them again");
    }

    #[test]
    fn writes_of_which_a_sweep_makes_more_are_tried_seldom_and_not_for_long() {
        let mut load = Load::new();
        let lost: Vec<u64> = (0..4).map(|_| load.runs(60, 64 * KIB, FULL, MS, 5 * MS)).collect();
        assert!(lost[0] > 0 && lost.iter().sum::<u64>() < 2_400, "{lost:?} ms of 60 s each");
        assert!(lost[3] < 700, "{lost:?}");
        let slightly = Load::new().runs(120, 64 * KIB, FULL, 4 * MS, 5 * MS);
        assert!((1..15_000).contains(&slightly), "{slightly} ms of 120 s");
    }

    #[test]
    fn small_writes_are_never_tried_nor_where_there_is_room_nor_beside_readers() {
        let mut load = Load::new();
        assert_eq!(load.runs(60, 4 * KIB, FULL, 5 * MS, MS), 0);
        assert_eq!(load.runs(60, 256 * KIB, Stand { is_full: false, ..FULL }, 5 * MS, MS), 0);
        assert_eq!(load.runs(60, 256 * KIB, Stand { presses: false, ..FULL }, 5 * MS, MS), 0);
        assert_eq!(load.runs(60, 256 * KIB, Stand { beside_readers: true, ..FULL }, 5 * MS, MS), 0);
        assert!(load.runs(60, 256 * KIB, FULL, 5 * MS, MS) > 40_000);
    }

    #[test]
    fn another_load_is_looked_at_anew() {
        let mut load = Load::new();
        load.runs(60, 256 * KIB, FULL, 5 * MS, 4 * MS);
        assert!(load.runs(60, 32 * KIB, FULL, MS / 2, 4 * MS) < 5_000);
        assert_eq!(load.runs(60, 4 * KIB, FULL, MS / 2, 4 * MS), 0);
    }

    #[test]
    fn where_there_is_room_again_they_are_absorbed_and_past_it_goes_on_when_it_is_short() {
        let mut load = Load::new();
        load.runs(30, 256 * KIB, FULL, 5 * MS, 4 * MS);
        assert_eq!(load.runs(5, 256 * KIB, Stand { is_short: false, ..FULL }, 5 * MS, 4 * MS), 0);
        assert!(load.runs(5, 256 * KIB, Stand { is_full: false, presses: false, ..FULL }, 5 * MS, 4 * MS) > 4_500);
    }

    /// What is written over before the sweep comes to it never gets to the disk: it would if it went past the cache.
    #[test]
    fn what_is_written_over_in_the_cache_counts_as_gain() {
        let then = Levels { absorbed: 0, writes: 0, destaged: 0, dirty: 1 << 20, swept: 0 };
        let now = Levels { absorbed: 8 << 20, writes: 128, destaged: 2 << 20, dirty: 1 << 20, swept: 2 << 20 };
        let rate = sustained(1_000_000_000, &then, &now).unwrap();
        assert_eq!((rate.bytes, rate.writes), (8 << 20, 128));
        let filling = Levels { dirty: 7 << 20, ..now };
        assert_eq!(sustained(1_000_000_000, &then, &filling).unwrap().bytes, 2 << 20, "and what is only dirty yet does not");
        assert!(sustained(1_000_000_000, &then, &Levels { swept: 0, ..now }).is_none());
    }

    /// Large writes gain nothing from the cache, and small ones of others do.
    #[test]
    fn large_writes_do_not_take_the_cache_from_small_ones() {
        let both = Rate { bytes: 60 << 20, writes: 900 };
        assert!(
            !Rate { bytes: 70 << 20, writes: 300 }.is(ENOUGH, both) && !Rate { bytes: 20 << 20, writes: 2_000 }.is(ENOUGH, both)
        );
        assert!(Rate { bytes: 58 << 20, writes: 890 }.is(ENOUGH, both));
    }

    #[test]
    fn a_disk_that_fails_is_not_tried_again_at_once() {
        let mut load = Load::new();
        load.runs(30, 256 * KIB, FULL, 5 * MS, 4 * MS);
        load.gain.failed(load.now);
        assert_eq!(load.runs(8, 256 * KIB, FULL, 5 * MS, 4 * MS), 0);
        assert!(load.runs(20, 256 * KIB, FULL, 5 * MS, 4 * MS) > 10_000);
    }
}
