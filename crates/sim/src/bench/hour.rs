//! An hour of a load over a full cache, minute by minute: whether a second stands out, and how long answers take.
//!
//! Each minute is a window of its own, so that what is kept of an hour does not grow with its requests.

use super::clients::Clients;
use super::drive::{Driver, Span};
use super::load::Load;
use super::measure::Reached;
use super::run::{disk, fates, seed_of, status, until_dirty, volume, world};
use crate::models::{RotatingDisk, SECOND};
use crate::target::{Bare, Target};
use crate::world::{Violation, World};
use headpond_engine::Settings;
use headpond_engine::status::Status;

/// Length of a minute, in seconds.
const MINUTE_S: u64 = 60;
/// Longest time to wait for a full cache when the load is steady, in seconds.
const FILLING_S: u64 = 900;
/// The least part of the hour's mean that is promised of each second.
pub const LEAST_SECOND: f64 = 0.5;

/// A minute of clients over the cache.
#[derive(Clone, PartialEq, Debug)]
pub struct Minute {
    /// What they reached.
    pub reached: Reached,
    /// What the cache held when it ended.
    pub held: Held,
    /// Requests by what became of them.
    pub fates: Vec<(&'static str, u64)>,
    /// Clean segments that were evicted.
    pub evicted: u64,
    /// Segments that were moved.
    pub moved: u64,
    /// Checkpoints that were taken.
    pub checkpoints: u64,
}

/// What the cache held at a moment.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Held {
    /// Segments of all SSDs.
    pub segments: u64,
    /// Of these, free ones.
    pub free: u64,
    /// As many are kept free ahead of demand: with no more free than this the cache is full.
    pub kept_free: u64,
    /// Percent of the space for dirty data that is taken.
    pub dirty_percent: u32,
    /// Bytes of the volume that are cached.
    pub cached_bytes: u64,
    /// Of these, bytes that the disk does not have yet.
    pub dirty_bytes: u64,
}

impl Held {
    fn of(status: &Status, settings: &Settings) -> Self {
        // As `free_target` in the engine's `space.rs`, which wins segments back up to here.
        let copies = u64::from(status.copies.max(1));
        let ahead = (status.segments / copies * u64::from(settings.free_percent) / 100).max(1);
        let (dirty_blocks, cached_blocks) = (volume(status).0, status.volumes.first().map_or(0, |v| v.cached_blocks));
        Self {
            segments: status.segments,
            free: status.segments_free,
            kept_free: (u64::from(settings.reserve_segments) + 2 * ahead) * copies,
            dirty_percent: status.dirty_percent,
            cached_bytes: cached_blocks * 4096,
            dirty_bytes: dirty_blocks * 4096,
        }
    }

    /// Percent of the segments that are taken.
    #[must_use]
    pub fn taken_percent(&self) -> f64 {
        (self.segments - self.free) as f64 * 100.0 / self.segments.max(1) as f64
    }

    /// Percent of the segments that may be taken, which are all but those that are kept free.
    #[must_use]
    pub fn occupied_percent(&self) -> f64 {
        let may_be = self.segments.saturating_sub(self.kept_free);
        ((self.segments - self.free) as f64 * 100.0 / may_be.max(1) as f64).min(100.0)
    }
}

/// An hour of a load, on both sides.
#[derive(Clone, PartialEq, Debug)]
pub struct Hour {
    /// The load's name.
    pub name: String,
    /// Mode, cache, SSDs.
    pub setting: String,
    /// The bare disk, minute by minute.
    pub bare: Vec<Reached>,
    /// What the cache held when the first minute began.
    pub at_first: Held,
    /// Behind the engine, minute by minute.
    pub cached: Vec<Minute>,
}

/// Which side of a load has come how far.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stage {
    /// So many minutes on the bare disk have been measured.
    Bare(usize),
    /// The cache is being filled, and the load becomes steady.
    Filling,
    /// So many minutes behind the engine have been measured.
    Cached(usize),
}

impl Hour {
    /// What clients of the cache reached, minute by minute.
    pub fn reached(&self) -> impl Iterator<Item = &Reached> {
        self.cached.iter().map(|minute| &minute.reached)
    }

    /// Minutes, counted from 0, in which p99.9 behind the engine was above that of the bare disk.
    #[must_use]
    pub fn late_minutes(&self) -> Vec<usize> {
        let both = self.reached().zip(&self.bare).enumerate();
        both.filter(|(_, (cached, bare))| cached.p999_ns > bare.p999_ns).map(|(n, _)| n).collect()
    }

    /// Seconds, counted from 0, with less than the promised part of the mean of all.
    #[must_use]
    pub fn poor_seconds(&self) -> Vec<usize> {
        let least = per_s(self.reached()) * LEAST_SECOND;
        let all = self.reached().flat_map(|it| &it.per_second).enumerate();
        all.filter(|(_, answers)| (**answers as f64) < least).map(|(n, _)| n).collect()
    }

    /// No second was poor, and no minute late.
    #[must_use]
    pub fn holds(&self) -> bool {
        self.late_minutes().is_empty() && self.poor_seconds().is_empty()
    }
}

/// Answers per second over some minutes.
pub fn per_s<'a>(minutes: impl Iterator<Item = &'a Reached>) -> f64 {
    let (answers, ns) = minutes.fold((0, 0), |(answers, ns), it| (answers + it.answers, ns + it.window_ns));
    answers as f64 * SECOND as f64 / (ns as f64).max(1.0)
}

/// Answers in the whole second that had the fewest, of some minutes.
pub fn least_second<'a>(minutes: impl Iterator<Item = &'a Reached>) -> u64 {
    minutes.flat_map(|it| &it.per_second).copied().min().unwrap_or(0)
}

/// The highest p99.9 of some minutes, in nanoseconds.
pub fn p999_ns<'a>(minutes: impl Iterator<Item = &'a Reached>) -> u64 {
    minutes.map(|it| it.p999_ns).max().unwrap_or(0)
}

/// The longest that anything took in some minutes, in nanoseconds.
pub fn most_ns<'a>(minutes: impl Iterator<Item = &'a Reached>) -> u64 {
    minutes.map(|it| it.most_ns).max().unwrap_or(0)
}

/// Runs a load of one group of clients: the settling time, then as many whole minutes as its window has. `progress` is called
/// when a stage was reached.
///
/// # Errors
/// Something happened that must not.
pub fn hour(load: &Load, seed: u64, progress: impl Fn(Stage)) -> Result<Hour, Violation> {
    let seed = seed_of(load, seed);
    let clients: Vec<Clients> = load.groups.iter().map(|(c, _)| c.clone()).take(1).collect();
    let bare = bare(load, &clients, seed, &progress)?;
    progress(Stage::Filling);
    let mut world = world(load, &clients, seed)?;
    let mut driver = Driver::begin(&clients, seed, &mut world);
    until_dirty(&mut driver, &mut world, load)?;
    driver.run(&mut world, Span { ns: load.settle_s * SECOND, answers: usize::MAX })?;
    until_full(&mut driver, &mut world, load)?;
    let mut before = status(&world)?;
    let at_first = Held::of(&before, &load.settings);
    let mut cached = Vec::new();
    for n in 0..load.window_s / MINUTE_S {
        let reached = one_minute(&mut driver, &mut world)?;
        let after = status(&world)?;
        cached.push(minute(reached, &before, &after, &load.settings));
        before = after;
        progress(Stage::Cached(n as usize + 1));
    }
    Ok(Hour { name: load.name.clone(), setting: load.setting(), bare, at_first, cached })
}

/// Lets clients work until the cache is full, or for some time more: a checkpoint frees many segments at once, and filling them
/// takes a minute or two.
fn until_full(driver: &mut Driver, world: &mut World, load: &Load) -> Result<(), Violation> {
    let until = world.now + FILLING_S * SECOND;
    while world.now < until {
        let held = Held::of(&status(world)?, &load.settings);
        if held.free <= held.kept_free {
            break;
        }
        driver.run(world, Span { ns: SECOND, answers: usize::MAX })?;
    }
    Ok(())
}

fn bare(load: &Load, clients: &[Clients], seed: u64, progress: &impl Fn(Stage)) -> Result<Vec<Reached>, Violation> {
    let mut target = Bare::new(RotatingDisk::new(disk(load)));
    let mut driver = Driver::begin(clients, seed, &mut target);
    driver.run(&mut target, Span { ns: load.settle_s * SECOND, answers: usize::MAX })?;
    let mut minutes = Vec::new();
    for n in 0..load.window_s / MINUTE_S {
        minutes.push(one_minute(&mut driver, &mut target)?);
        progress(Stage::Bare(n as usize + 1));
    }
    Ok(minutes)
}

fn one_minute(driver: &mut Driver, target: &mut impl Target) -> Result<Reached, Violation> {
    let mut groups = driver.run(target, Span { ns: MINUTE_S * SECOND, answers: usize::MAX })?;
    Ok(groups.swap_remove(0))
}

fn minute(reached: Reached, before: &Status, after: &Status, settings: &Settings) -> Minute {
    let (a, b) = (&before.stats, &after.stats);
    Minute {
        reached,
        held: Held::of(after, settings),
        fates: fates(&volume(before).1, &volume(after).1),
        evicted: b.evicted - a.evicted,
        moved: b.relocated - a.relocated,
        checkpoints: b.checkpoints - a.checkpoints,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::catalogue::hours;

    fn reached(per_second: &[u64], p999_ns: u64) -> Reached {
        Reached {
            answers: per_second.iter().sum(),
            window_ns: per_second.len() as u64 * SECOND,
            per_second: per_second.to_vec(),
            p999_ns,
            most_ns: 2 * p999_ns,
            ..Reached::default()
        }
    }

    fn made_up(cached: &[Reached], bare: &[Reached]) -> Hour {
        let minute = |reached: &Reached| Minute {
            reached: reached.clone(),
            held: Held::default(),
            fates: Vec::new(),
            evicted: 0,
            moved: 0,
            checkpoints: 0,
        };
        let cached = cached.iter().map(minute).collect();
        Hour { name: String::new(), setting: String::new(), bare: bare.to_vec(), at_first: Held::default(), cached }
    }

    #[test]
    fn a_second_is_poor_by_the_mean_of_the_hour_and_a_minute_late_by_the_same_minute_of_the_bare_disk() {
        let hour = made_up(
            &[reached(&[100, 100], 5), reached(&[100, 49], 7), reached(&[50, 201], 6)],
            &[reached(&[10, 10], 5), reached(&[10, 10], 6), reached(&[10, 10], 9)],
        );
        assert_eq!(per_s(hour.reached()), 100.0);
        assert_eq!((hour.poor_seconds(), hour.late_minutes()), (vec![3], vec![1]));
        assert_eq!((least_second(hour.reached()), p999_ns(hour.reached()), most_ns(hour.reached())), (49, 7, 14));
        assert!(!hour.holds());
    }

    #[test]
    fn a_cache_is_full_when_no_more_is_free_than_is_kept_free() {
        let held = Held { segments: 1000, free: 300, kept_free: 100, ..Held::default() };
        assert_eq!((held.taken_percent(), held.occupied_percent().round()), (70.0, 78.0));
        assert_eq!(Held { free: 90, ..held }.occupied_percent(), 100.0);
    }

    #[test]
    fn each_minute_of_a_load_is_measured_on_both_sides_over_a_full_cache() {
        for mut load in hours() {
            // Small, so that it is soon full.
            (load.cache_bytes, load.settle_s, load.window_s) = (64 << 20, 20, 120);
            let a = hour(&load, 1, |_| {}).unwrap();
            assert_eq!((a.bare.len(), a.cached.len()), (2, 2));
            assert!(a.reached().chain(&a.bare).all(|it| it.per_second.len() == 60 && it.failed == 0 && it.answers > 0));
            assert!(a.at_first.occupied_percent() >= 99.0 && a.at_first.dirty_bytes > 0, "{}: {:?}", a.name, a.at_first);
            assert!(a.cached.iter().map(|minute| minute.evicted).sum::<u64>() > 0, "{}", a.name);
        }
    }
}
