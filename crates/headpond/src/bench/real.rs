//! The loads of the catalogue for real: a block device in pass-through and cached, in turns, by the clock on the wall.
//!
//! [`stand`] is what it runs on, [`device`] what clients' requests go to, [`shown`] what is said of it. This file says which loads can be
//! run so, how large they are then, and how they take turns.

mod device;
pub mod shown;
mod stand;

pub use stand::{Stand, Wanted};

use anyhow::{Result, anyhow, bail};
use device::Device;
use headpond_engine::format::Mode;
use headpond_sim::bench::clients::{Clients, Pace};
use headpond_sim::bench::drive::{Driver, Span};
use headpond_sim::bench::load::{Cache, Load, Mark, SsdKind};
use headpond_sim::bench::measure::Reached;
use headpond_sim::bench::run::{After, Row};
use headpond_sim::models::SECOND;
use stand::Way;
use std::ops::Range;
use std::sync::atomic::AtomicBool;

const GIB: u64 = 1 << 30;
/// Regions as the catalogue has them need a disk of this size; on a smaller one they are smaller, too.
const WHOLE: u64 = 132 * GIB;
/// What reaches beyond this is half of a small disk; what does not is an eighth of itself.
const SMALL: u64 = 8 * GIB;
/// Seconds before anything counts: where all read, and where some write, until what the disk's own cache takes at first is over.
const SETTLE_S: [u64; 2] = [1, 3];
/// Seconds that count.
const WINDOW_S: u64 = 2;
/// Bursts further apart than this are too few in a window.
const RARE_NS: u64 = 2 * SECOND;
/// Answers that are enough: a window is never cut short, as the clock on the wall is noisy.
const ALL: usize = usize::MAX;

/// How it is done.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// Turns of each way.
    pub rounds: usize,
    /// What chance there is follows from it.
    pub seed: u64,
}

/// One quantity of several rounds.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Spread {
    /// The median.
    pub median: f64,
    /// The least.
    pub least: f64,
    /// The most.
    pub most: f64,
}

impl Spread {
    /// Of at least one value; and which of them is the median, or the lower one of two.
    fn of(values: &[f64]) -> (Spread, usize) {
        let mut order: Vec<usize> = (0..values.len()).collect();
        order.sort_by(|a, b| values[*a].total_cmp(&values[*b]));
        let at = |n: usize| order.get(n).map_or(f64::NAN, |n| values[*n]);
        let (low, high) = (values.len().saturating_sub(1) / 2, values.len() / 2);
        let spread = Spread { median: f64::midpoint(at(low), at(high)), least: at(0), most: at(values.len().saturating_sub(1)) };
        (spread, order.get(low).copied().unwrap_or(0))
    }
}

/// What one group of a load reached.
pub struct Measured {
    /// The round with the median ratio; the ratio itself is the median of all.
    pub row: Row,
    /// The ratio, of all rounds.
    pub ratio: Spread,
    /// What the front end takes by itself: pass-through by the disk itself, where that was measured.
    pub tax: Option<Spread>,
}

impl Measured {
    /// The median keeps the promise.
    pub fn holds(&self) -> bool {
        self.ratio.median >= self.row.at_least
    }

    /// The median does not, and a round does: the noise is wider than what is missing.
    pub fn undecided(&self) -> bool {
        !self.holds() && self.ratio.most >= self.row.at_least
    }
}

/// Whether a load can be run on whatever devices there are: without SSDs of another kind, settings of its own, a device that dies, or a
/// cache that has to be filled first.
pub fn suits(load: &Load) -> bool {
    let rare = |(c, _): &(Clients, Mark)| matches!(c.pace, Pace::Bursts { every_ns, .. } if every_ns > RARE_NS);
    load.ssd == SsdKind::Sata
        && !load.one_dead
        && !load.no_disk_cache
        && !load.sata_disk
        && !load.long
        && load.settings.drive_writes_milli == 0
        && matches!(load.cache, Cache::Empty | Cache::Warm | Cache::WarmLast)
        && !load.groups.iter().any(rare)
}

/// A region where it lies on a disk of this size.
fn placed(region: &Range<u64>, disk: u64) -> Range<u64> {
    let half = (disk / 2) >> 20 << 20;
    match region {
        _ if disk >= WHOLE => region.clone(),
        _ if region.end <= SMALL => region.start / 8..region.end / 8,
        _ if region.start == 0 => 0..half,
        _ => half..2 * half,
    }
}

/// The load on a disk of this size.
fn fitted(load: &Load, disk: u64) -> Load {
    let mut load = load.clone();
    for (clients, _) in &mut load.groups {
        clients.region = placed(&clients.region, disk);
    }
    if disk < WHOLE {
        load.cache_bytes /= 8;
    }
    load
}

/// What is brought into the cache before clients begin, in bytes of the volume: of a group no more than `most`.
fn warmed(load: &Load, most: u64) -> Vec<[u64; 2]> {
    let from = match load.cache {
        Cache::Warm => 0,
        Cache::WarmLast => load.groups.len() - 1,
        _ => load.groups.len(),
    };
    let run = |(c, _): &(Clients, Mark)| {
        let most = most.min(load.cache_bytes * 3 / 2);
        [c.region.start, (c.region.end - c.region.start).min(most)]
    };
    let mut runs: Vec<[u64; 2]> = load.groups[from..].iter().map(run).collect();
    runs.dedup();
    runs
}

fn mode_name(mode: Mode) -> &'static str {
    match mode {
        Mode::WriteBack => "write-back",
        Mode::WriteThrough => "write-through",
        Mode::WriteAround => "write-around",
        Mode::PassThrough => "pass-through",
    }
}

/// One turn: the clients work on a way, which has been made ready.
fn turn(place: &std::path::Path, clients: &[Clients], seed: u64, stop: &AtomicBool) -> Result<Vec<Reached>> {
    let writes = clients.iter().any(|c| c.reads < 100);
    let depth = |c: &Clients| match c.pace {
        Pace::Closed(depth) => depth,
        Pace::Bursts { requests, .. } => requests,
    };
    let mut device = Device::open(place, clients.iter().map(depth).sum(), stop)?;
    let told = |violation: headpond_sim::world::Violation| anyhow!("{}", violation.0);
    let mut driver = Driver::begin(clients, seed, &mut device);
    driver.run(&mut device, Span { ns: SETTLE_S[usize::from(writes)] * SECOND, answers: ALL }).map_err(told)?;
    let reached = driver.run(&mut device, Span { ns: WINDOW_S * SECOND, answers: ALL }).map_err(told)?;
    driver.end(&mut device).map_err(told)?;
    if let Some(why) = device.failed() {
        bail!("a request failed: {why}");
    }
    Ok(reached)
}

/// A figure: answers per second, or of bursts the mean time to an answer the other way about.
fn speed(clients: &Clients, reached: &Reached) -> f64 {
    match clients.pace {
        Pace::Closed(_) => reached.per_s,
        Pace::Bursts { .. } => 1e9 / reached.mean_ns.max(1.0),
    }
}

/// Runs a load in rounds; a row for each of its groups.
pub fn run(load: &Load, plan: Plan, stand: &mut Stand<'_>) -> Result<Vec<Measured>> {
    let load = &fitted(load, stand.disk_bytes());
    let stop = stand.stop();
    let all: Vec<Clients> = load.groups.iter().map(|(c, _)| c.clone()).collect();
    let mut ways = vec![Way::Front, Way::Back];
    if is_taxed(load) {
        ways.insert(0, Way::Bare);
    }
    // By way, round, group; and of those that are compared with what they reach alone, that.
    let mut reached: Vec<Vec<Vec<Reached>>> = vec![Vec::new(); ways.len()];
    let mut alone: Vec<Vec<Reached>> = vec![Vec::new(); all.len()];
    for round in 0..plan.rounds {
        let mut order: Vec<usize> = (0..ways.len()).collect();
        if round % 2 == 1 {
            order.reverse();
        }
        let seed = plan.seed.wrapping_add(round as u64);
        for n in order {
            let place = stand.ready(ways[n], mode_name(load.mode), &warmed(load, stand.preloads()))?;
            reached[n].push(turn(&place, &all, seed, stop)?);
            if ways[n] == Way::Front {
                for (group, (clients, _)) in load.groups.iter().enumerate().filter(|(_, (_, mark))| mark.alone) {
                    stand.settle()?;
                    alone[group].extend(turn(&place, std::slice::from_ref(clients), seed, stop)?);
                }
            }
        }
    }
    stand.ready(Way::Front, "", &[])?;
    let of = |way: Way| ways.iter().position(|it| *it == way).map(|n| &reached[n]);
    let (Some(front), Some(back)) = (of(Way::Front), of(Way::Back)) else { bail!("a way was not measured") };
    let rows = load.groups.iter().enumerate().map(|(group, (clients, mark))| {
        let by = |round: usize| if mark.alone { &alone[group][round] } else { &front[round][group] };
        let ratios: Vec<f64> =
            (0..plan.rounds).map(|round| speed(clients, &back[round][group]) / speed(clients, by(round)).max(1e-9)).collect();
        let (ratio, middle) = Spread::of(&ratios);
        let tax = of(Way::Bare).map(|bare| {
            let ratios: Vec<f64> = (0..plan.rounds)
                .map(|round| speed(clients, &front[round][group]) / speed(clients, &bare[round][group]).max(1e-9))
                .collect();
            Spread::of(&ratios).0
        });
        let name = if all.len() == 1 { load.name.clone() } else { format!("{}: {}", load.name, clients.name) };
        let row = Row {
            name,
            setting: format!("{}, {}", mode_name(load.mode), load.cache.name()),
            bare: by(middle).clone(),
            cached: back[middle][group].clone(),
            ratio: ratio.median,
            alone: mark.alone,
            by_latency: matches!(clients.pace, Pace::Bursts { .. }),
            at_least: mark.at_least,
            after: After::default(),
        };
        Measured { row, ratio, tax }
    });
    Ok(rows.collect())
}

/// Whether the front end is measured by itself with this load: requests of several sizes, one at a time and many, both ways.
fn is_taxed(load: &Load) -> bool {
    let plain = load.mode == Mode::WriteBack && load.cache == Cache::Empty && load.groups.len() == 1;
    let simple = |c: &Clients| c.skew == 0 && matches!(c.pace, Pace::Closed(1 | 4 | 32)) && !c.flushed;
    plain && load.groups.iter().all(|(c, _)| simple(c))
}

#[cfg(test)]
mod tests {
    use super::*;
    use headpond_sim::bench::catalogue;

    #[test]
    fn what_can_be_run_for_real_is_as_wide_as_promised() {
        let all: Vec<Load> = catalogue().into_iter().filter(suits).collect();
        assert!(all.len() >= 40, "{}", all.len());
        for mode in Mode::ALL {
            assert!(all.iter().any(|l| l.mode == mode), "{mode:?}");
        }
        assert!(all.iter().filter(|l| is_taxed(l)).count() >= 5);
    }

    #[test]
    fn regions_fit_the_disk_and_have_room_for_requests() {
        for disk in [4 * GIB, 40 * GIB, 200 * GIB] {
            for load in catalogue().iter().filter(|l| suits(l)).map(|l| fitted(l, disk)) {
                for (clients, _) in &load.groups {
                    let most = clients.sizes.iter().max().copied().unwrap_or(0) + clients.skew;
                    assert!(clients.region.end <= disk && clients.region.end - clients.region.start >= 4 * most, "{}", load.name);
                }
                assert!(warmed(&load, GIB / 2).iter().all(|[start, len]| *len > 0 && start + len <= disk), "{}", load.name);
            }
        }
    }

    #[test]
    fn a_median_is_of_the_rounds_and_one_of_them_stands_for_it() {
        assert_eq!(Spread::of(&[3.0, 1.0, 2.0]), (Spread { median: 2.0, least: 1.0, most: 3.0 }, 2));
        assert_eq!(Spread::of(&[4.0, 2.0]), (Spread { median: 3.0, least: 2.0, most: 4.0 }, 1));
        assert_eq!(Spread::of(&[0.5]), (Spread { median: 0.5, least: 0.5, most: 0.5 }, 0));
    }
}
