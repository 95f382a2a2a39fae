//! How much may be written to the cache devices, where they are to last: so many times their size in a day.
//!
//! Each device has a budget that fills with time and is spent by whatever is written to it. What it saves up is for bursts. Near
//! its end admission holds back, first what would only be useful, then new writes, which the disk takes; each by a share that falls
//! smoothly to nothing, so that in the long run as much comes as the budget bears. What safety needs is written whatever is
//! left, and is made up for later.

use alloc::vec::Vec;

const HOUR_NS: u64 = 3_600_000_000_000;
const DAY_NS: u64 = 24 * HOUR_NS;
/// What a budget saves up at most, and owes at most, as time in which it fills, in nanoseconds.
const MOST_NS: i64 = DAY_NS as i64;
/// What is left at a start. Nothing on the media remembers more: a start forgives what was owed, and takes what was saved. It is
/// little beside a day, so that restarts, too, wear devices out no faster; and enough for a start not to hold back at once.
const START_NS: i64 = CLEAN_NS;
/// With less left than this, what is clean is let in by a share, down to nothing where the last of the budget begins.
const CLEAN_NS: i64 = 3 * HOUR_NS as i64;
/// The last of the budget is for writes: with less left than this they are absorbed by a share, down to nothing at its end.
const WRITES_NS: i64 = HOUR_NS as i64;
/// Holding back has ended when so much more is left again: else it would begin and end all the time.
const EASED_NS: i64 = HOUR_NS as i64;
/// A share is counted in these parts.
const WHOLE: i64 = 1_000_000;

/// What admission may hold back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Wish {
    /// A copy of what the disk has too.
    Clean,
    /// A client's write that the disk can take; and what is pinned.
    Write,
}

/// Bytes written to cache devices, counted where they are submitted.
#[derive(Clone, Default, Debug)]
pub struct Written {
    members: Vec<Count>,
}

#[derive(Clone, Copy, Default, Debug)]
struct Count {
    total: u64,
    /// Of the last hours, each at its number modulo 24; and the newest of them.
    hours: [u64; 24],
    newest: u64,
}

impl Count {
    /// Forgets the hours that are more than a day ago.
    fn turn(&mut self, now: u64) {
        let hour = now / HOUR_NS;
        for gone in (self.newest + 1..=hour).take(24) {
            self.hours[(gone % 24) as usize] = 0;
        }
        self.newest = self.newest.max(hour);
    }
}

impl Written {
    /// So many bytes are written to a member.
    pub fn note(&mut self, member: u8, now: u64, bytes: u64) {
        let n = usize::from(member);
        if self.members.len() <= n {
            self.members.resize(n + 1, Count::default());
        }
        let count = &mut self.members[n];
        count.turn(now);
        count.hours[(now / HOUR_NS % 24) as usize] += bytes;
        count.total += bytes;
    }

    /// A device takes a number, that may have been another's.
    pub fn begin(&mut self, member: u8) {
        if let Some(count) = self.members.get_mut(usize::from(member)) {
            *count = Count::default();
        }
    }

    /// Bytes since the start, or since the device was added.
    #[must_use]
    pub fn total(&self, member: u8) -> u64 {
        self.members.get(usize::from(member)).map_or(0, |count| count.total)
    }

    /// Bytes of the last day, to the hour: of the 23 to 24 hours before `now`, or of as many as there were.
    #[must_use]
    pub fn of_a_day(&self, member: u8, now: u64) -> u64 {
        let Some(mut count) = self.members.get(usize::from(member)).copied() else { return 0 };
        count.turn(now);
        count.hours.iter().sum()
    }
}

/// A cache device that counts: its number, and its size in bytes.
pub type Sized = (u8, u64);

/// The budget of a pool's devices. The one with least left decides.
#[derive(Clone, Default, Debug)]
pub struct Endurance {
    /// Drive writes per day, in thousandths; zero: there is no budget.
    milli: u32,
    members: Vec<Option<Budget>>,
    /// What is due to clean data and to writes while they have a share: bytes by [`WHOLE`], never more than nothing.
    due: [i64; 2],
    held_back: [bool; 2],
}

/// What is left of a device's budget: bytes by thousandths of a day in nanoseconds, so that nothing is lost in rounding.
#[derive(Clone, Copy, Debug)]
struct Budget {
    left: i128,
    at: u64,
    /// Up to here what was written is paid for.
    paid: u64,
}

impl Endurance {
    /// A budget of so many thousandths of a drive write per day.
    #[must_use]
    pub fn new(milli: u32) -> Self {
        Self { milli, ..Self::default() }
    }

    /// Whether what is wished for may be written, of `bytes`, by what these devices have left. With no budget always.
    pub fn bears(&mut self, now: u64, members: impl Iterator<Item = Sized>, written: &Written, wish: Wish, bytes: u64) -> bool {
        if self.milli == 0 {
            return true;
        }
        let share = share(wish, self.settle(now, members, written));
        let due = &mut self.due[wish as usize];
        if share == WHOLE {
            *due = 0;
            return true;
        }
        let bytes = bytes.clamp(1, 1 << 40) as i64;
        *due += share.saturating_mul(bytes);
        if *due > 0 {
            *due = due.saturating_sub(WHOLE * bytes);
            return true;
        }
        self.held_back[wish as usize] = true;
        false
    }

    /// Brings the budgets up to `now`. What the one has left that has least, in nanoseconds in which it fills.
    pub fn settle(&mut self, now: u64, members: impl Iterator<Item = Sized>, written: &Written) -> i64 {
        let mut least = MOST_NS;
        for (member, size) in members {
            least = least.min(self.settle_one(now, (member, size), written));
        }
        for (held_back, enough) in self.held_back.iter_mut().zip([CLEAN_NS, WRITES_NS]) {
            *held_back &= least < enough + EASED_NS;
        }
        least
    }

    fn settle_one(&mut self, now: u64, (member, size): Sized, written: &Written) -> i64 {
        let n = usize::from(member);
        if self.members.len() <= n {
            self.members.resize(n + 1, None);
        }
        let a_ns = i128::from(size.max(1)) * i128::from(self.milli.max(1));
        let total = written.total(member);
        let budget = self.members[n].get_or_insert(Budget { left: a_ns * i128::from(START_NS), at: now, paid: 0 });
        budget.left += a_ns * i128::from(now.saturating_sub(budget.at));
        budget.left -= i128::from(total.saturating_sub(budget.paid)) * 1000 * i128::from(DAY_NS);
        let most = a_ns * i128::from(MOST_NS);
        budget.left = budget.left.clamp(-most, most);
        (budget.at, budget.paid) = (now, total);
        (budget.left / a_ns) as i64
    }

    /// A device takes a number, that may have been another's.
    pub fn begin(&mut self, member: u8) {
        if let Some(budget) = self.members.get_mut(usize::from(member)) {
            *budget = None;
        }
    }

    /// Thousandths of a drive write per day; zero: there is no budget.
    #[must_use]
    pub fn milli(&self) -> u32 {
        self.milli
    }

    /// Bytes that a device of this size may be written in a day; zero: there is no budget.
    #[must_use]
    pub fn per_day(&self, size: u64) -> u64 {
        (u128::from(size) * u128::from(self.milli) / 1000) as u64
    }

    /// Bytes that a device has left, as of the last [`Self::settle`]; less than nothing where it owes.
    #[must_use]
    pub fn left(&self, member: u8) -> i64 {
        let budget = self.members.get(usize::from(member)).copied().flatten();
        budget.map_or(0, |budget| (budget.left / (1000 * i128::from(DAY_NS))) as i64)
    }

    /// Whether this is held back: since it first was, until enough is left again.
    #[must_use]
    pub fn holds_back(&self, wish: Wish) -> bool {
        self.held_back[wish as usize]
    }
}

/// The share of what is wished for that comes in, with so much left, in parts of [`WHOLE`].
fn share(wish: Wish, left: i64) -> i64 {
    let (none, all) = match wish {
        Wish::Clean => (WRITES_NS, CLEAN_NS),
        Wish::Write => (0, WRITES_NS),
    };
    (left.clamp(none, all) - none) / ((all - none) / WHOLE)
}

#[cfg(test)]
mod tests {
    use super::*;
    use Wish::{Clean, Write};

    const GIB: u64 = 1 << 30;
    const SECOND: u64 = 1_000_000_000;

    /// Two devices of 100 GiB that bear one drive write a day.
    struct Pool {
        endurance: Endurance,
        written: Written,
        now: u64,
    }

    fn pool() -> Pool {
        Pool { endurance: Endurance::new(1000), written: Written::default(), now: 7 * HOUR_NS }
    }

    impl Pool {
        fn sizes() -> impl Iterator<Item = Sized> {
            [(0, 100 * GIB), (1, 100 * GIB)].into_iter()
        }
        fn bears(&mut self, wish: Wish, bytes: u64) -> bool {
            self.endurance.bears(self.now, Self::sizes(), &self.written, wish, bytes)
        }
        fn left(&mut self) -> i64 {
            self.endurance.settle(self.now, Self::sizes(), &self.written)
        }
        fn write(&mut self, members: &[u8], bytes: u64) {
            members.iter().for_each(|m| self.written.note(*m, self.now, bytes));
        }
        /// For so many seconds clients write, and miss, so many MiB in each; what of both came in.
        fn run(&mut self, seconds: u64, writes: u64, misses: u64) -> [u64; 2] {
            let mut came = [0, 0];
            for second in 0..seconds {
                self.now += SECOND;
                for _ in 0..writes {
                    if self.bears(Write, 1 << 20) {
                        self.write(&[0, 1], 1 << 20);
                        came[0] += 1;
                    }
                }
                for n in 0..misses {
                    if self.bears(Clean, 1 << 20) {
                        self.write(&[((second + n) % 2) as u8], 1 << 20);
                        came[1] += 1;
                    }
                }
            }
            came
        }
    }

    #[test]
    fn without_a_budget_everything_comes_in() {
        let mut pool = Pool { endurance: Endurance::new(0), ..pool() };
        pool.write(&[0, 1], 1 << 50);
        assert!(pool.bears(Clean, GIB) && pool.bears(Write, GIB) && !pool.endurance.holds_back(Write));
        assert_eq!((pool.endurance.per_day(GIB), pool.endurance.left(0)), (0, 0));
    }

    #[test]
    fn a_device_is_written_no_more_than_its_budget_in_the_long_run() {
        let mut pool = pool();
        for day in 1..=4 {
            pool.run(24 * 3600, 20, 20);
            let (written, per_day) = (pool.written.total(0), 100 * GIB);
            assert!(written <= day * per_day + per_day / 8, "{written} in {day} days");
            assert!(written >= day * per_day, "nothing of it is wasted: {written} in {day} days");
            assert!(pool.written.of_a_day(0, pool.now) <= per_day * 9 / 8);
        }
        assert!(pool.endurance.holds_back(Write) && pool.endurance.holds_back(Clean));
    }

    #[test]
    fn what_would_only_be_useful_gives_way_to_writes() {
        let mut pool = pool();
        // The budget bears 1.185 MiB each second on each device, so these writes and some of the misses.
        pool.run(48 * 3600, 1, 0);
        assert_eq!([pool.endurance.holds_back(Clean), pool.endurance.holds_back(Write)], [false, false]);
        let came = pool.run(48 * 3600, 1, 20);
        assert_eq!((came[0], pool.endurance.holds_back(Write)), (48 * 3600, false), "all writes");
        assert!(pool.endurance.holds_back(Clean) && came[1] > 48 * 3600 / 5 && came[1] < 48 * 3600, "{came:?}");
        // And none of the misses where writes need it all.
        pool.run(24 * 3600, 20, 20);
        let came = pool.run(24 * 3600, 20, 20);
        assert!(came[1] == 0 && came[0] > 24 * 3600, "{came:?}");
    }

    #[test]
    fn a_share_falls_smoothly_to_nothing_and_that_of_clean_data_first() {
        let hour = HOUR_NS as i64;
        let shares = |wish| [4 * hour, 3 * hour, 2 * hour, hour, hour / 2, hour / 100, 0, -hour].map(|left| share(wish, left));
        assert_eq!(shares(Clean), [WHOLE, WHOLE, WHOLE / 2, 0, 0, 0, 0, 0]);
        assert_eq!(shares(Write), [WHOLE, WHOLE, WHOLE, WHOLE, WHOLE / 2, WHOLE / 100, 0, 0]);
    }

    #[test]
    fn a_quiet_day_is_saved_up_and_no_more() {
        let mut pool = pool();
        assert_eq!(pool.left(), START_NS);
        pool.now += 5 * DAY_NS;
        assert_eq!((pool.left(), pool.endurance.left(1)), (MOST_NS, (100 * GIB) as i64));
        pool.write(&[1], 30 * GIB);
        assert_eq!((pool.left(), pool.endurance.left(0)), (MOST_NS / 10 * 7, (100 * GIB) as i64), "who has least decides");
    }

    #[test]
    fn what_safety_needs_is_owed_and_made_up_for() {
        let mut pool = pool();
        pool.write(&[0], 40 * GIB);
        assert!(pool.left() < 0 && !pool.bears(Write, 4096) && !pool.bears(Clean, 4096));
        pool.now += 6 * HOUR_NS;
        assert!(!pool.bears(Write, 4096));
        pool.now += HOUR_NS;
        assert!(pool.bears(Write, 4096) && !pool.bears(Clean, 4096));
        // No more than a day is owed.
        pool.write(&[0], 900 * GIB);
        assert_eq!(pool.left(), -MOST_NS);
    }

    #[test]
    fn holding_back_does_not_begin_and_end_all_the_time() {
        let mut pool = pool();
        let (mut changes, mut was) = (0, false);
        for n in 0..48 {
            pool.run(3600, if n % 2 == 0 { 3 } else { 0 }, 1);
            changes += u32::from(was != pool.endurance.holds_back(Clean));
            was = pool.endurance.holds_back(Clean);
        }
        assert!(was && changes == 1, "{changes} changes");
        pool.now += 5 * HOUR_NS;
        pool.left();
        assert!(!pool.endurance.holds_back(Clean));
    }

    #[test]
    fn a_device_that_takes_the_number_of_another_begins_anew() {
        let mut pool = pool();
        pool.write(&[0, 1], 200 * GIB);
        assert!(pool.left() < 0);
        for m in [0, 1] {
            pool.written.begin(m);
            pool.endurance.begin(m);
        }
        pool.write(&[1], 4096);
        assert!(pool.left() > START_NS / 100 * 99 && pool.written.total(0) == 0, "{}", pool.left());
    }

    #[test]
    fn what_was_written_a_day_ago_is_not_counted_as_of_a_day() {
        let mut written = Written::default();
        (0..30).for_each(|hour| written.note(0, hour * HOUR_NS, 10));
        assert_eq!((written.total(0), written.of_a_day(0, 29 * HOUR_NS)), (300, 240));
        assert_eq!([written.of_a_day(0, 40 * HOUR_NS), written.of_a_day(0, 400 * HOUR_NS), written.of_a_day(3, 0)], [130, 0, 0]);
    }

    /// Small operations on a large device, one by one: none of what they cost is lost in rounding.
    #[test]
    fn nothing_is_lost_in_rounding() {
        let mut endurance = Endurance::new(300);
        let (mut written, size) = (Written::default(), 15 << 40);
        for n in 0..1_000_000 {
            written.note(0, n * 1000, 512);
            endurance.settle(n * 1000, [(0, size)].into_iter(), &written);
        }
        let start = i128::from(endurance.per_day(size)) * i128::from(START_NS) / i128::from(DAY_NS);
        let filled = i128::from(endurance.per_day(size)) * 999_999_000 / i128::from(DAY_NS);
        let left = i128::from(endurance.left(0));
        assert!((left - (start + filled - 512_000_000)).abs() < 4096, "{left}");
    }
}
