//! What `headpond bench --hour` shows: an hour of each load over a full cache, minute by minute, and what is promised of it.

mod json;
mod page;
mod table;

pub use json::json;
pub use page::page;
pub use table::terminal;

use super::table::ms;
use crate::demo::number;
use headpond_sim::bench::Hour;
use headpond_sim::bench::hour::{LEAST_SECOND, Minute, least_second, per_s};
use headpond_sim::bench::measure::Reached;

/// All that a run brought.
pub struct Hours {
    /// In the order of the catalogue.
    pub hours: Vec<Hour>,
    /// Loads that could not be measured, with why.
    pub failures: Vec<(String, String)>,
    /// What chance there was followed from it.
    pub seed: u64,
}

/// What is promised, and whether it holds.
pub struct Verdict {
    /// It holds.
    pub holds: bool,
    /// What, with its figures.
    pub text: String,
}

impl Verdict {
    /// In a word.
    pub fn mark(&self) -> &'static str {
        if self.holds { "pass" } else { "MISS" }
    }
}

/// What is promised of an hour over a full cache: no second is poor, and no minute late.
pub fn verdicts(hour: &Hour) -> [Verdict; 2] {
    [seconds(hour), latencies(hour)]
}

/// How full the cache was. Between two checkpoints it falls short of full for a minute or two: one frees all segments at once
/// that were written over meanwhile.
fn full(hour: &Hour) -> String {
    let all: Vec<f64> = hour.cached.iter().map(|minute| minute.held.occupied_percent()).collect();
    let mean = all.iter().sum::<f64>() / all.len().max(1) as f64;
    let least = all.iter().copied().fold(100.0, f64::min);
    let last = hour.cached.last().map_or(hour.at_first, |minute| minute.held);
    let [begun, ended] = [hour.at_first, last].map(|it| {
        let (taken, of) = (number((it.segments - it.free) as f64), number(it.segments as f64));
        format!("{:.1} % ({taken} of {of} segments)", it.occupied_percent())
    });
    format!(
        "occupied, of all but the {} segments that are kept free: {begun} when the hour began, {ended} when it ended; at the ends of its \
         minutes {mean:.1} % in the mean, {least:.1} % at least",
        number(hour.at_first.kept_free as f64)
    )
}

fn seconds(hour: &Hour) -> Verdict {
    let (mean, least, poor) = (per_s(hour.reached()), least_second(hour.reached()), hour.poor_seconds());
    let which = match &poor[..] {
        [] => String::new(),
        [first, ..] => {
            format!("; {} of {} seconds are less, the first in minute {}", poor.len(), seconds_of(hour), first / 60 + 1)
        }
    };
    let text = format!(
        "no second is under {LEAST_SECOND} of the hour's mean: the least has {} answers, {:.2} of {}{which}",
        number(least as f64),
        least as f64 / mean.max(1e-9),
        number(mean)
    );
    Verdict { holds: poor.is_empty(), text }
}

fn latencies(hour: &Hour) -> Verdict {
    let late = hour.late_minutes();
    let by_bare = |n: &usize| hour.cached[*n].reached.p999_ns as f64 / (hour.bare[*n].p999_ns as f64).max(1.0);
    let nearest = (0..hour.cached.len()).max_by(|a, b| by_bare(a).total_cmp(&by_bare(b)));
    let nearest = nearest.map_or_else(String::new, |n| {
        let [cached, bare] = [&hour.cached[n].reached, &hour.bare[n]].map(|it| ms(it.p999_ns as f64));
        format!("; the worst is minute {}, {cached} by {bare}", n + 1)
    });
    let above = match late.len() {
        0 => "none is above".to_owned(),
        n => format!("{n} of {} are above", hour.cached.len()),
    };
    let text = format!("p99.9 of each minute is at most the bare disk's of the same minute: {above}{nearest}");
    Verdict { holds: late.is_empty(), text }
}

fn seconds_of(hour: &Hour) -> usize {
    hour.reached().map(|it| it.per_second.len()).sum()
}

/// Answers of some minutes by what became of them, each with how many.
fn fates(minutes: &[Minute]) -> Vec<(&'static str, u64)> {
    let mut all: Vec<(&'static str, u64)> = Vec::new();
    for (fate, n) in minutes.iter().flat_map(|minute| &minute.fates) {
        match all.iter_mut().find(|(name, _)| name == fate) {
            Some((_, sum)) => *sum += n,
            None => all.push((fate, *n)),
        }
    }
    all
}

/// How many promises of how many hold.
fn headline(hours: &Hours) -> String {
    let all: Vec<Verdict> = hours.hours.iter().flat_map(verdicts).collect();
    let missed = all.iter().filter(|it| !it.holds).count();
    let failed = match hours.failures.len() {
        0 => String::new(),
        n => format!("; {n} loads could not be measured"),
    };
    format!("{} of {} promises hold over an hour with a full cache{failed}", all.len() - missed, all.len())
}

/// The minutes of a side, as what their clients reached.
fn sides(hour: &Hour) -> [(&'static str, Vec<&Reached>); 2] {
    [("bare", hour.bare.iter().collect()), ("cached", hour.reached().collect())]
}
