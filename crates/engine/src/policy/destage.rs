//! How hard to destage: all of the disk when clients leave it idle, little while they use it, as much as is needed
//! before the space for dirty data runs out.

/// What the decision rests on.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    /// Percent of what may be dirty that is.
    pub dirty_percent: u32,
    /// Clients have not used the disk for the idle time, nor for as long as they lately left it between two uses.
    pub disk_idle: bool,
    /// Somebody waits for the volume to be clean: a mode change, a detach, a stop.
    pub wanted_clean: bool,
    /// A copy is missing: what is dirty is on one device.
    pub degraded: bool,
    /// Clients read from the disk here and there: what is destaged is in its queue with them, and no more of it than of theirs.
    pub beside_readers: bool,
    /// From here on clients' disk I/O no longer keeps destage away: see [`begin_percent`].
    pub begin_percent: u32,
    /// Clients write into the cache just now.
    pub absorbing: bool,
    /// Something is dirty for longer than it may be: see [`overdue_from`].
    pub overdue: bool,
}

/// From when on what is dirty is overdue, if none of it is older than `since`, and it may be `age` old; all in nanoseconds. No age is no bound.
#[must_use]
pub fn overdue_from(since: u64, age: u64) -> u64 {
    if age == 0 { u64::MAX } else { since.saturating_add(age) }
}

/// While no writes want space, only what is more than so many percent is destaged beside clients: room for what little comes.
const UNWANTED_PERCENT: u32 = 96;

/// Percent of what may be dirty from which on clients' disk I/O does not keep destage away: the `setting`, where writes want space.
/// Where they do not, clients who use the disk would be slower for nothing.
#[must_use]
pub fn begin_percent(setting: u32, is_wanted: bool) -> u32 {
    if is_wanted { setting } else { setting.max(UNWANTED_PERCENT) }
}

/// How long it takes until streams are spared no more where space runs short beside them, in nanoseconds.
const SPARED_NS: u64 = 10_000_000_000;

/// When destage begins beside streams: half way from the setting to the end. What is destaged beside a stream it loses several times over, as
/// the heads go away and come back; and a burst that fits is not to cost it anything. Where space has run short in spite of that the
/// beginning goes back to the setting, not at once, since writes are held back from there on: who writes all the time would
/// otherwise have less of it to be sorted, and won back.
#[derive(Clone, Copy, Default, Debug)]
pub struct Onset {
    /// Since when space is short.
    since: Option<u64>,
}

impl Onset {
    /// Percent of what may be dirty from which on destage begins, where so much is taken, or will be.
    pub fn begins_at(&mut self, now: u64, setting: u32, pressure: u32, beside_streams: bool) -> u32 {
        let late = setting.midpoint(100);
        if pressure <= setting {
            self.since = None;
        } else if pressure > late && self.since.is_none() {
            self.since = Some(now);
        }
        if !beside_streams {
            return setting;
        }
        let short_for = self.since.map_or(0, |since| now.saturating_sub(since)).min(SPARED_NS);
        late - (u64::from(late - setting) * short_for / SPARED_NS) as u32
    }
}

/// How soon beside readers the depth is whole, as a part of the way from the beginning to the full set.
const WHOLE_BESIDE_READERS: u32 = 8;

/// Writes to keep in flight out of `depth`; 0 to wait.
///
/// From the beginning on the depth grows linearly, so that a burst that passes is not felt and one that stays meets the disk's full
/// sweep rate before writes have to wait. It is whole half way to the full set; beside readers much sooner, where a sweep has no
/// more places in the disk's queue than they, and with few of them neither is it sorted nor does it get its share. For what is
/// overdue alone there is one at a time.
#[must_use]
pub fn depth(load: &Load, depth: usize) -> usize {
    if load.wanted_clean || load.degraded || load.disk_idle {
        return depth;
    }
    let span = 100u32.saturating_sub(load.begin_percent).max(1);
    let over = load.dirty_percent.saturating_sub(load.begin_percent);
    if over == 0 {
        return usize::from(load.overdue);
    }
    let whole = if load.beside_readers { span / WHOLE_BESIDE_READERS } else { span / 2 + 1 }.max(1);
    ((depth as u64 * u64::from(over.min(whole))) / u64::from(whole)).max(1) as usize
}

/// Idle times between the beginnings of two sweeps over a disk that clients leave idle.
const SWEEPS_EVERY: u64 = 5;
/// The same while they write into the cache.
const BESIDE_WRITES_EVERY: u64 = 25;

/// When a new sweep may begin, in nanoseconds, after one that began at `last`. What is written again and again is written to
/// the disk once in that time, and what is written here and there is sorted; a sweep of its own for each write would keep
/// the disk and the cache devices busy for nothing. Not where somebody waits, or where space runs short.
#[must_use]
pub fn next_sweep(load: &Load, last: u64, idle_ns: u64) -> u64 {
    let presses = load.wanted_clean || load.degraded || load.dirty_percent > load.begin_percent;
    let every = if load.absorbing { BESIDE_WRITES_EVERY } else { SWEEPS_EVERY };
    if presses { 0 } else { last.saturating_add(every.saturating_mul(idle_ns)) }
}

/// Flushes this close together are one commit of a journal, in nanoseconds.
const ONE_COMMIT_NS: u64 = 1_000_000_000;
/// Longest time between two commits that is waited for, in nanoseconds: journals of file systems have one every five seconds.
const LONGEST_GAP_NS: u64 = 6_000_000_000;

/// When clients have the disk flushed: the commits of a file system's journal come in an even step.
#[derive(Clone, Copy, Default, Debug)]
pub struct Commits {
    last: u64,
    gap: u64,
}

impl Commits {
    /// A client's flush is for the disk as well.
    pub fn note(&mut self, now: u64) {
        let gap = now.saturating_sub(self.last);
        if gap >= ONE_COMMIT_NS {
            (self.last, self.gap) = (now, gap);
        }
    }

    /// How long the end of a chunk may wait for the next of them, in nanoseconds; zero where none is to be expected. Each flush takes from
    /// clients who use the disk: one that stands still meanwhile answers nobody, and what was in its cache to be sorted is gone.
    #[must_use]
    pub fn within(&self, now: u64) -> u64 {
        let next = self.last.saturating_add(self.gap + self.gap / 4);
        if (1..=LONGEST_GAP_NS).contains(&self.gap) { next.saturating_sub(now) } else { 0 }
    }
}

/// How long the end of a chunk may wait for a flush of clients, in nanoseconds: not where somebody waits for the end, nor where the disk
/// has time.
#[must_use]
pub fn flush_within(load: &Load, commits: &Commits, now: u64) -> u64 {
    if load.disk_idle || load.wanted_clean || load.degraded { 0 } else { commits.within(now) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Clients use the disk, and nothing presses.
    const BUSY: Load = Load {
        dirty_percent: 1,
        disk_idle: false,
        wanted_clean: false,
        degraded: false,
        beside_readers: false,
        begin_percent: 50,
        absorbing: false,
        overdue: false,
    };
    const IDLE: Load = Load { disk_idle: true, ..BUSY };

    #[test]
    fn what_is_overdue_goes_down_one_by_one_beside_clients_and_presses_nobody() {
        let load = Load { overdue: true, ..BUSY };
        assert_eq!(depth(&load, 32), 1);
        assert_eq!(depth(&Load { disk_idle: true, ..load }, 32), 32);
        assert!(depth(&Load { dirty_percent: 90, ..load }, 32) > 1);
        assert_eq!(next_sweep(&load, 1000, 200), next_sweep(&BUSY, 1000, 200));
        assert_eq!([(100, 50), (100, 0), (u64::MAX, 1)].map(|(since, age)| overdue_from(since, age)), [150, u64::MAX, u64::MAX]);
    }

    #[test]
    fn space_that_nobody_wants_is_not_won_at_the_cost_of_clients() {
        let beside =
            |dirty_percent, is_wanted| depth(&Load { dirty_percent, begin_percent: begin_percent(50, is_wanted), ..BUSY }, 32);
        assert_eq!([70, 96].map(|percent| beside(percent, false)), [0, 0]);
        assert!(beside(99, false) >= 16 && beside(70, true) >= 16);
    }

    #[test]
    fn streams_are_spared_until_space_has_run_short_beside_them() {
        const S: u64 = 1_000_000_000;
        let mut onset = Onset::default();
        assert_eq!([30, 60, 75].map(|pressure| onset.begins_at(S, 50, pressure, true)), [75; 3], "a burst that fits");
        assert_eq!(onset.begins_at(S, 50, 60, false), 50, "no stream");
        // It goes on.
        let begins = [0, 2, 5, 9, 10, 60].map(|s| onset.begins_at((10 + s) * S, 50, 80, true));
        assert_eq!(begins, [75, 70, 63, 53, 50, 50]);
        assert_eq!(onset.begins_at(80 * S, 50, 55, true), 50, "not over yet");
        assert_eq!(onset.begins_at(81 * S, 50, 50, true), 75, "the next burst");
        assert_eq!(Onset::default().begins_at(0, 100, 120, true), 100);
    }

    #[test]
    fn sweeps_over_an_idle_disk_begin_a_while_apart_unless_somebody_waits_or_space_runs_short() {
        assert_eq!(next_sweep(&IDLE, 1000, 200), 2000);
        assert_eq!(next_sweep(&Load { absorbing: true, ..IDLE }, 1000, 200), 6000);
        assert_eq!(next_sweep(&Load { absorbing: true, dirty_percent: 51, ..IDLE }, 1000, 200), 0);
        assert_eq!(next_sweep(&Load { dirty_percent: 51, ..IDLE }, 1000, 200), 0);
        assert_eq!(next_sweep(&Load { wanted_clean: true, ..IDLE }, 1000, 200), 0);
        assert_eq!(next_sweep(&Load { degraded: true, ..IDLE }, 1000, 200), 0);
    }

    #[test]
    fn a_chunk_waits_for_the_next_commit_of_clients_who_use_the_disk() {
        const MS: u64 = 1_000_000;
        let mut commits = Commits::default();
        assert_eq!(flush_within(&BUSY, &commits, 1000 * MS), 0, "none has come");
        for n in 1..5 {
            commits.note(n * 5000 * MS);
            commits.note((n * 5000 + 400) * MS);
        }
        assert_eq!(flush_within(&BUSY, &commits, 21_000 * MS), 5250 * MS, "and a little longer");
        assert_eq!(flush_within(&BUSY, &commits, 27_000 * MS), 0, "it does not come");
        assert_eq!([IDLE, Load { wanted_clean: true, ..BUSY }].map(|load| flush_within(&load, &commits, 21_000 * MS)), [0, 0]);
        commits.note(60_000 * MS);
        assert_eq!(flush_within(&BUSY, &commits, 60_001 * MS), 0, "long after the last");
    }

    #[test]
    fn who_flushes_all_the_time_is_not_waited_for() {
        let mut commits = Commits::default();
        (1..1000).for_each(|n| commits.note(n * 10_000_000));
        assert!(commits.within(10_000_000_000) <= 2 * ONE_COMMIT_NS);
    }

    #[test]
    fn destage_stays_away_from_a_busy_disk_until_space_runs_short() {
        let busy = |dirty_percent| depth(&Load { dirty_percent, ..BUSY }, 32);
        assert_eq!([busy(0), busy(50), busy(76), busy(100)], [0, 0, 32, 32]);
        assert!(busy(51) >= 1 && busy(60) < 32 && busy(60) > busy(52));
        let read = |dirty_percent| depth(&Load { dirty_percent, beside_readers: true, ..BUSY }, 32);
        assert_eq!([read(50), read(53), read(56), read(100)], [0, 16, 32, 32]);
        assert_eq!(depth(&IDLE, 32), 32);
    }
}
