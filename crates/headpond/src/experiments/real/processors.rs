//! How busy the processors are while something is measured.

use anyhow::Result;
use headpond_sim::experiments::outcome::{Outcome, Who};
use std::collections::BTreeMap;
use std::fs;
use std::hint::black_box;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// How often it is looked.
const LOOK: Duration = Duration::from_millis(200);
/// Percent from which on what was measured says more of the processors than of anything else.
const BUSY: f64 = 90.0;

/// Percent of the processors' time that a virtual machine's host may take for others while they are wanted, before what was measured
/// says more of these than of anything here. On a quiet one it is a third of a percent.
pub(super) const STOLEN: f64 = 3.0;

/// What the processors have done so far: all, of it nothing, and of it what the host took for others.
pub(super) struct Processors {
    all: f64,
    idle: f64,
    stolen: f64,
}

impl Processors {
    pub(super) fn now() -> Result<Processors> {
        Ok(Processors::of(&fs::read_to_string("/proc/stat")?))
    }

    fn of(text: &str) -> Processors {
        let line = text.lines().next().unwrap_or_default();
        let values: Vec<f64> = line.split_whitespace().skip(1).take(8).filter_map(|it| it.parse().ok()).collect();
        // Waiting for a device is idle too.
        let stolen = values.get(7).copied().unwrap_or(0.0);
        Processors { all: values.iter().sum(), idle: values.iter().skip(3).take(2).sum(), stolen }
    }

    /// How much of their time the host took, in percent.
    pub(super) fn stolen_until(&self, later: &Processors) -> f64 {
        (later.stolen - self.stolen) / (later.all - self.all).max(1.0) * 100.0
    }

    fn busy_until(&self, later: &Processors) -> f64 {
        let all = (later.all - self.all).max(1.0);
        (1.0 - (later.idle - self.idle) / all) * 100.0
    }
}

/// Bytes that have one checksum: a block's.
const BLOCK: usize = 4 << 10;
/// How much is checked to see what it takes, in each of so many turns, of which the fastest counts.
const CHECKED: usize = 16 << 20;
const TURNS: usize = 5;

/// Milliseconds of a processor for the checksums of a megabyte, by themselves: what a cached read takes that one past the cache does not.
pub(super) fn checksums_of_a_megabyte() -> f64 {
    let block: Vec<u8> = (0..BLOCK).map(|n| (n % 251) as u8).collect();
    let turn = |turn: usize| {
        let begun = Instant::now();
        for seed in 0..CHECKED / BLOCK {
            black_box(headpond_format::checksum((turn + seed) as u64, black_box(&block)));
        }
        begun.elapsed().as_secs_f64() * 1e3 / (CHECKED as f64 / 1e6)
    };
    (0..TURNS).map(turn).fold(f64::INFINITY, f64::min)
}

/// Runs something, and tells how busy the processors were in the busier half of its time: a tool begins and ends by itself on one.
pub(super) fn watched<T>(run: impl FnOnce() -> Result<T>) -> Result<(T, f64)> {
    let ended = AtomicBool::new(false);
    thread::scope(|scope| {
        let watching = scope.spawn(|| {
            let (mut before, mut all) = (Processors::now()?, Vec::new());
            while !ended.load(Ordering::Relaxed) {
                thread::sleep(LOOK);
                let now = Processors::now()?;
                all.push(before.busy_until(&now));
                before = now;
            }
            Ok(all)
        });
        let result = run();
        ended.store(true, Ordering::Relaxed);
        let busy: Result<Vec<f64>> = watching.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        Ok((result?, busier_half(busy?)))
    })
}

fn busier_half(mut all: Vec<f64>) -> f64 {
    all.sort_by(f64::total_cmp);
    let half = &all[all.len() / 2..];
    half.iter().sum::<f64>() / half.len().max(1) as f64
}

/// How busy they were with whoever did what.
#[derive(Default)]
pub struct Busy {
    percents: Mutex<BTreeMap<(String, Who), Vec<f64>>>,
    /// And of each measurement what the host took.
    stolen: Mutex<Vec<f64>>,
}

impl Busy {
    /// Has `who` do something, and notes how busy the processors were.
    pub fn note<T>(&self, what: &str, who: Who, run: impl FnOnce() -> Result<T>) -> Result<T> {
        let before = Processors::now()?;
        let (done, percent) = watched(run)?;
        let stolen = before.stolen_until(&Processors::now()?);
        let mut all = self.percents.lock().unwrap_or_else(PoisonError::into_inner);
        all.entry((what.to_owned(), who)).or_default().push(percent);
        self.stolen.lock().unwrap_or_else(PoisonError::into_inner).push(stolen);
        Ok(done)
    }

    /// Says of what a cached volume was asked to do how busy they were, where it was much; and with bare beside it.
    pub fn tell(&self, out: &mut Outcome) {
        let all = self.percents.lock().unwrap_or_else(PoisonError::into_inner);
        let mean = |percents: &Vec<f64>| percents.iter().sum::<f64>() / percents.len().max(1) as f64;
        let told = all.iter().filter(|((_, who), percents)| *who == Who::Back && mean(percents) >= BUSY);
        let told = told.map(|((what, _), percents)| {
            let bare = all.get(&(what.clone(), Who::Front)).map_or(String::new(), |it| format!(", bare {:.0} %", mean(it)));
            format!("{what}: Headpond {:.0} %{bare}", mean(percents))
        });
        let told: Vec<String> = told.collect();
        let cores = thread::available_parallelism().map_or(1, usize::from);
        out.note(match told.is_empty() {
            true => format!("The {cores} processors were never busy for {BUSY:.0} % of the busier half of a measurement's time."),
            false => format!(
                "The {cores} processors, on which tools, file system, daemon and modelled devices share, were busy for {BUSY:.0} % and more of the busier \
                 half of the time, so that these figures are theirs rather than the devices': {}.",
                told.join("; ")
            ),
        });
        let stolen = self.stolen.lock().unwrap_or_else(PoisonError::into_inner);
        let much = stolen.iter().filter(|percent| **percent > STOLEN).count();
        if much > 0 {
            let most = stolen.iter().copied().fold(0.0, f64::max);
            out.note(format!(
                "In {much} of {} measurements the host of this virtual machine took more than {STOLEN:.0} % of the processors' time for others, \
                 {most:.0} % at most. A turn that lost so much on the whole is taken again, as many in all as there are rounds.",
                stolen.len()
            ));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processors_that_wait_for_a_device_are_not_busy() {
        let before = Processors::of("cpu  10 0 10 60 20 0 0 0 0 0\ncpu0 1 2 3");
        assert_eq!((before.all, before.idle), (100.0, 80.0));
        assert_eq!(before.stolen_until(&Processors::of("cpu  40 0 25 80 40 0 0 15 0 0")), 15.0);
        assert_eq!(busier_half(vec![90.0, 10.0, 80.0, 20.0]), 85.0);
        assert_eq!(before.busy_until(&Processors::of("cpu  60 0 35 75 30 0 0 0 0 0")), 75.0);
    }

    #[test]
    fn it_is_told_where_the_processors_were_busy_and_nowhere_else() {
        let busy = Busy::default();
        let note = |what: &str, who, percent| {
            busy.percents.lock().unwrap().entry((what.to_owned(), who)).or_default().push(percent);
        };
        for (what, who, percent) in [
            ("small", Who::Front, 30.0),
            ("small", Who::Back, 88.0),
            ("small", Who::Back, 96.0),
            ("large", Who::Back, 50.0),
            ("large", Who::Front, 99.0),
        ] {
            note(what, who, percent);
        }
        let mut out = Outcome::default();
        busy.tell(&mut out);
        assert!(out.notes[0].ends_with("small: Headpond 92 %, bare 30 %."), "{}", out.notes[0]);
        assert_eq!(out.notes.len(), 1);
        busy.stolen.lock().unwrap().extend([0.5, 30.0, 2.0]);
        busy.tell(&mut out);
        assert!(out.notes[2].starts_with("In 1 of 3 measurements") && out.notes[2].contains("30 % at most"), "{}", out.notes[2]);
        let mut out = Outcome::default();
        Busy::default().tell(&mut out);
        assert!(out.notes[0].contains("never busy"), "{}", out.notes[0]);
    }
}
