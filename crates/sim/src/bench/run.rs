//! One load, on the bare disk and behind the engine, with the same seed.

use super::clients::{Clients, Pace, Pattern};
use super::drive::{Driver, Span};
use super::load::{Cache, Load, Mark};
use super::measure::Reached;
use crate::modelled::{Modelled, finish};
use crate::models::rotating::RotatingParams;
use crate::models::{RotatingDisk, SECOND};
use crate::rng::Rng;
use crate::target::{Ask, Bare, Target};
use crate::world::{Violation, World};
use headpond_engine::policy::streams::RUNS;
use headpond_engine::stats::{Bypass, VolumeStats};
use headpond_engine::status::Status;
use headpond_engine::{Command, Device, Settings};
use std::ops::Range;

/// How a run of loads is done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Options {
    /// What chance there is follows from it.
    pub seed: u64,
    /// Windows of a quarter of the length.
    pub quick: bool,
}

/// Answers after which a window that no disk limits is long enough.
const ENOUGH: usize = 150_000;
/// Longest virtual time to wait for a load to fill what may be dirty, in seconds.
const FILLING_S: u64 = 120;
/// Bytes of the reads that warm a cache: short enough to be admitted, and too short to add up to streams.
const WARMING: u64 = 64 << 10;
/// Bytes between two reads that are no stream.
const FORGETTING: u64 = 512 << 10;

/// What one group of a load reached, and what that is by the bare disk.
#[derive(Clone, PartialEq, Debug)]
pub struct Row {
    /// The load's name, and the group's where there are several.
    pub name: String,
    /// Mode, cache, SSDs.
    pub setting: String,
    /// The bare disk.
    pub bare: Reached,
    /// Behind the engine.
    pub cached: Reached,
    /// Answers per second, or for bursts the mean time to an answer the other way about: above 1 the cache is faster.
    pub ratio: f64,
    /// The bare disk's figure is that of this group without those beside it.
    pub alone: bool,
    /// The ratio is that of latencies.
    pub by_latency: bool,
    /// The least ratio that is promised.
    pub at_least: f64,
    /// What the whole load left behind.
    pub after: After,
}

impl Row {
    /// The ratio by what is promised: below 1 the promise is broken.
    #[must_use]
    pub fn by_promise(&self) -> f64 {
        self.ratio / self.at_least
    }
}

/// What a load did to the cache, and left in it.
#[derive(Clone, Default, PartialEq, Debug)]
pub struct After {
    /// Percent of the space for dirty data in use, when the window began and ended.
    pub dirty_percent: [u32; 2],
    /// Dirty bytes, when the window began and ended.
    pub dirty_bytes: [u64; 2],
    /// Bytes that may be dirty, by bytes of the region that the clients write to; zero where they write nothing.
    pub write_space: f64,
    /// Dirty bytes at the end, by bytes of the region.
    pub density: f64,
    /// How long the disk then took to get all that was dirty, in virtual seconds.
    pub drain_s: f64,
    /// Bytes written to the SSDs in the window, by those that were absorbed, times the copies, and admitted.
    pub amplification: Option<f64>,
    /// Requests of the window by what became of them.
    pub fates: Vec<(&'static str, u64)>,
}

pub(super) fn disk(load: &Load) -> RotatingParams {
    let disk = RotatingParams::nearline_7200();
    let disk = if load.sata_disk { disk.on_sata() } else { disk };
    if load.no_disk_cache { disk.without_write_cache() } else { disk }
}

fn span(load: &Load, options: Options, seconds: u64) -> Span {
    let ns = seconds * SECOND;
    let ns = if options.quick && !load.long { (ns / 4).max(SECOND) } else { ns };
    // Bursts are few by intention, and what runs beside others must see them all.
    Span { ns, answers: if matches!(load.cache, Cache::Dirty | Cache::DirtyLast) { usize::MAX } else { ENOUGH } }
}

/// A load's own seed.
pub(super) fn seed_of(load: &Load, seed: u64) -> u64 {
    load.name.bytes().fold(seed, |s, b| (s ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3))
}

/// Runs a load; a row for each of its groups.
///
/// # Errors
/// Something happened that must not.
pub fn run(load: &Load, options: Options) -> Result<Vec<Row>, Violation> {
    let seed = seed_of(load, options.seed);
    let all: Vec<Clients> = load.groups.iter().map(|(c, _)| c.clone()).collect();
    let bare = if load.groups.iter().any(|(_, m)| !m.alone) { bare(load, &all, seed, options)? } else { Vec::new() };
    let (cached, after) = cached(load, &all, seed, options)?;
    let mut rows = Vec::new();
    for (n, ((clients, Mark { alone, at_least }), cached)) in load.groups.iter().zip(cached).enumerate() {
        let bare = if *alone { self::bare(load, &all[n..=n], seed, options)?.swap_remove(0) } else { bare[n].clone() };
        let by_latency = matches!(clients.pace, Pace::Bursts { .. });
        let ratio = if by_latency { bare.mean_ns / cached.mean_ns.max(1e-9) } else { cached.per_s / bare.per_s.max(1e-9) };
        let name = match (clients.name, load.groups.len()) {
            ("", _) | (_, 1) => load.name.clone(),
            (group, _) => format!("{}: {group}", load.name),
        };
        let (setting, after) = (load.setting(), after.clone());
        rows.push(Row { name, setting, bare, cached, ratio, alone: *alone, by_latency, at_least: *at_least, after });
    }
    Ok(rows)
}

fn bare(load: &Load, clients: &[Clients], seed: u64, options: Options) -> Result<Vec<Reached>, Violation> {
    let mut target = Bare::new(RotatingDisk::new(disk(load)));
    if load.cache == Cache::Brimful {
        fill_to_the_brim(&mut target, beyond(load), seed)?;
    }
    let mut driver = Driver::begin(clients, seed, &mut target);
    driver.run(&mut target, span(load, options, load.settle_s))?;
    driver.run(&mut target, span(load, options, load.window_s))
}

/// Where what fills the cache before the clients begin has its room: beyond their regions.
fn beyond(load: &Load) -> u64 {
    load.extent().next_multiple_of(1 << 20)
}

/// The world of a load: its pool and volume, holding what they hold when the clients begin.
///
/// # Errors
/// Something happened that must not.
pub(super) fn world(load: &Load, clients: &[Clients], seed: u64) -> Result<World, Violation> {
    let beyond = beyond(load);
    let bytes = beyond + 2 * load.cache_bytes + (RUNS as u64 + 2) * FORGETTING;
    let modelled = Modelled {
        sectors: bytes / 512,
        phase: 0,
        mode: load.mode,
        cache_bytes: load.cache_bytes,
        ssd: load.ssd.params(),
        disk: disk(load),
        witness: true,
        checked: false,
        settings: load.settings.clone(),
        seed,
    };
    let mut world = modelled.build()?;
    match load.cache {
        Cache::Empty | Cache::Dirty => {}
        Cache::Warm | Cache::WarmLast => {
            let from = if load.cache == Cache::WarmLast { clients.len() - 1 } else { 0 };
            for c in &clients[from..] {
                let end = c.region.end.min(c.region.start + load.cache_bytes * 3 / 2);
                warm(&mut world, beyond, c.region.start, end, seed)?;
            }
        }
        Cache::DirtyLast => {
            let mut driver = Driver::begin(&clients[clients.len() - 1..], seed, &mut world);
            driver.run(&mut world, Span { ns: ALONE_S * SECOND, answers: usize::MAX })?;
            driver.end(&mut world)?;
        }
        Cache::Filled => fill(&mut world, beyond..beyond + RUNS as u64 * FORGETTING, FILLED_PERCENT, seed)?,
        Cache::Below(percent) => fill(&mut world, clients[0].region.clone(), percent, seed)?,
        Cache::Brimful => fill_to_the_brim(&mut world, beyond, seed)?,
        Cache::Full => {
            warm(&mut world, beyond, beyond, beyond + 2 * load.cache_bytes, seed)?;
        }
    }
    if let Some(d) = world.devices.get_mut(&Device::Member(1)).filter(|_| load.one_dead) {
        d.dead = true;
    }
    Ok(world)
}

/// Lets clients work until more is dirty than comes at the SSDs' pace, or for two minutes at most.
pub(super) fn until_dirty(driver: &mut Driver, world: &mut World, load: &Load) -> Result<(), Violation> {
    let begun = world.now;
    while status(world)?.dirty_percent <= load.settings.destage_percent && world.now - begun < FILLING_S * SECOND {
        driver.run(world, Span { ns: SECOND, answers: usize::MAX })?;
    }
    Ok(())
}

fn cached(load: &Load, clients: &[Clients], seed: u64, options: Options) -> Result<(Vec<Reached>, After), Violation> {
    let mut world = world(load, clients, seed)?;
    let mut driver = Driver::begin(clients, seed, &mut world);
    driver.run(&mut world, span(load, options, load.settle_s))?;
    if load.cache == Cache::Dirty {
        until_dirty(&mut driver, &mut world, load)?;
        // Again some time, since that was not yet the steady state.
        driver.run(&mut world, span(load, options, load.settle_s.max(load.window_s)))?;
    }
    let before = status(&world)?;
    let reached = driver.run(&mut world, span(load, options, load.window_s))?;
    let at_end = status(&world)?;
    driver.end(&mut world)?;
    let begun = world.now;
    let command = world.command(Command::Destage { volume: 0 });
    finish(&mut world, command)?;
    let drain_s = (world.now - begun) as f64 / SECOND as f64;
    let region: u64 = {
        let mut all: Vec<_> = clients.iter().filter(|c| c.reads < 100).map(|c| c.region.clone()).collect();
        all.dedup();
        all.iter().map(|r| r.end - r.start).sum::<u64>()
    };
    let (volumes, space) = ([&before, &at_end].map(volume), write_space(&at_end, &load.settings));
    let dirty_bytes = volumes.each_ref().map(|v| v.0 * 4096);
    let after = After {
        dirty_percent: [before.dirty_percent, at_end.dirty_percent],
        dirty_bytes,
        write_space: if region > 0 { space as f64 / region as f64 } else { 0.0 },
        density: if region > 0 { dirty_bytes[1] as f64 / region as f64 } else { 0.0 },
        drain_s,
        amplification: amplification(&before, &at_end),
        fates: fates(&volumes[0].1, &volumes[1].1),
    };
    Ok((reached, after))
}

pub(super) fn status(world: &World) -> Result<Status, Violation> {
    world.engine.as_ref().map(|e| e.status()).ok_or_else(|| Violation("the daemon has ended".into()))
}

pub(super) fn volume(status: &Status) -> (u64, VolumeStats) {
    status.volumes.first().map_or((0, VolumeStats::default()), |v| (v.dirty_blocks, v.stats.clone()))
}

/// Bytes that may be dirty: each is on as many devices as there are copies.
fn write_space(status: &Status, settings: &Settings) -> u64 {
    let slots = status.members.iter().map(|m| u64::from(m.segments)).sum::<u64>() / u64::from(status.copies.max(1));
    slots * status.segment_bytes * u64::from(settings.dirty_percent) / 100
}

/// What the SSDs wrote between, by what was to be kept there; `None` where nothing was.
fn amplification(before: &Status, after: &Status) -> Option<f64> {
    let (a, b) = (&volume(before).1, &volume(after).1);
    let absorbed = (b.absorbed.bytes - a.absorbed.bytes) * u64::from(after.copies);
    let kept = absorbed + b.admitted.bytes - a.admitted.bytes;
    let written = |status: &Status| status.members.iter().map(|m| m.written).sum::<u64>();
    (kept > 0).then(|| (written(after) - written(before)) as f64 / kept as f64)
}

pub(super) fn fates(before: &VolumeStats, after: &VolumeStats) -> Vec<(&'static str, u64)> {
    let mut all = vec![
        ("hit", after.hit.requests - before.hit.requests),
        ("partial hit", after.partial_hit.requests - before.partial_hit.requests),
        ("miss", after.miss.requests - before.miss.requests),
        ("read bypassed", after.read_bypass.requests - before.read_bypass.requests),
        ("absorbed", after.absorbed.requests - before.absorbed.requests),
    ];
    for (reason, name) in Bypass::ALL {
        let n = reason as usize;
        all.push((name, after.write_bypass[n].requests - before.write_bypass[n].requests));
    }
    all.push(("ordered overwrite", after.ordered_overwrites - before.ordered_overwrites));
    all.push(("blocks admitted", (after.admitted.bytes - before.admitted.bytes) / 4096));
    all.push(("blocks destaged", (after.destaged.bytes - before.destaged.bytes) / 4096));
    all.retain(|(_, n)| *n > 0);
    all
}

/// Seconds for which the last clients write alone, where they do first.
const ALONE_S: u64 = 24;
/// Percent of the space for dirty data that others have filled when clients begin.
const FILLED_PERCENT: u32 = 75;
/// Seconds for which others write who fill it to the brim, and bytes of what they write to.
const BRIM_S: u64 = 30;
const BRIM: u64 = 512 << 20;

/// Others, who write at random.
fn others(region: Range<u64>, depth: u32) -> Clients {
    Clients {
        name: "others",
        pattern: Pattern::Random,
        sizes: vec![4096],
        skew: 0,
        reads: 0,
        region,
        pace: Pace::Closed(depth),
        flushed: false,
        commits: false,
    }
}

/// Writes at random for longer than the cache can take it.
fn fill_to_the_brim<T: Target>(target: &mut T, beyond: u64, seed: u64) -> Result<(), Violation> {
    let mut driver = Driver::begin(&[others(beyond..beyond + BRIM, 16)], seed, target);
    driver.run(target, Span { ns: BRIM_S * SECOND, answers: usize::MAX })?;
    driver.end(target)
}

/// Writes at random until so many percent of what may be dirty are.
fn fill(world: &mut World, region: Range<u64>, percent: u32, seed: u64) -> Result<(), Violation> {
    let mut driver = Driver::begin(&[others(region, 32)], seed, world);
    let begun = world.now;
    while status(world)?.dirty_percent < percent && world.now - begun < FILLING_S * SECOND {
        driver.run(world, Span { ns: SECOND / 64, answers: usize::MAX })?;
    }
    driver.end(world)
}

/// Reads a range in an order of chance, twice: what in it happens to continue other reads is taken for a stream and not
/// admitted, so that the runs are made to be forgotten between. Then gives what was admitted time to be appended.
pub(crate) fn warm(world: &mut World, beyond: u64, start: u64, end: u64, seed: u64) -> Result<(), Violation> {
    let mut places: Vec<u64> = (start..end).step_by(WARMING as usize).collect();
    let mut rng = Rng::new(seed);
    for round in 0..2 {
        for n in (1..places.len()).rev() {
            places.swap(n, rng.below(n as u64 + 1) as usize);
        }
        read_all(world, places.iter().map(|at| (*at, WARMING.min(end - at))))?;
        if round == 0 {
            // Each goes on once: what only began pushes out no run that went on.
            read_all(world, (0..RUNS as u64 + 1).map(|n| beyond + n * FORGETTING).flat_map(|at| [(at, 512), (at + 512, 512)]))?;
        }
    }
    let until = world.now + 2 * SECOND;
    while Target::step(world, until)? {}
    Ok(())
}

/// Reads ranges of bytes, 32 at a time.
fn read_all(world: &mut World, ranges: impl Iterator<Item = (u64, u64)>) -> Result<(), Violation> {
    let mut waiting = 0;
    let mut ranges = ranges.fuse();
    loop {
        let next = if waiting < 32 { ranges.next() } else { None };
        match next {
            Some((at, bytes)) => {
                world.send(0, Ask::Read { sector: at / 512, sectors: bytes / 512 });
                waiting += 1;
            }
            None if waiting == 0 => return Ok(()),
            None => {
                Target::step(world, u64::MAX)?;
                waiting -= world.answers().len();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::catalogue;

    #[test]
    fn the_same_seed_gives_the_same_figures_and_another_gives_others() {
        let wanted =
            ["write random 4 KiB x1", "read random 4 KiB x8 of 4 GiB, part warm", "read bursts of 100 x 16 KiB, part warm"];
        let mut loads = catalogue();
        loads.retain(|load| wanted.contains(&load.name.as_str()));
        assert_eq!(loads.len(), wanted.len());
        for load in &mut loads {
            // Small, so that it is soon warm.
            load.cache_bytes = 64 << 20;
            let [a, b, c] = [1, 1, 2].map(|seed| run(load, Options { seed, quick: true }).unwrap());
            assert_eq!(a, b);
            assert_ne!(a, c);
            assert!(a.iter().all(|row| row.cached.answers > 0 && row.cached.failed == 0 && row.ratio > 0.5), "{a:?}");
        }
    }
}
