//! What `headpond experiments` shows of its reports: as a table, as JSON and CSV, and as Markdown.

mod csv;
mod json;
mod markdown;
mod page;
pub mod real;
mod table;
#[cfg(test)]
mod tests;

pub use csv::csv;
pub use json::json;
pub use markdown::markdown;
pub use page::page;
pub use table::{line, terminal};

use crate::demo::number;
use headpond_sim::experiments::hardware::Parameter;
use headpond_sim::experiments::outcome::{Figure, Missing, Verdict, Weight, Who};
use headpond_sim::experiments::{Options, Report};

/// On what the experiments ran.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Form {
    /// On models, in virtual time.
    Simulated,
    /// On this machine.
    Real,
    /// On this machine, and on block devices that were given.
    Devices {
        /// How many times slower than what they stand for these are.
        slower: u64,
    },
}

impl Form {
    /// In a word.
    pub fn name(self) -> &'static str {
        match self {
            Form::Simulated => "simulated",
            Form::Real | Form::Devices { .. } => "real",
        }
    }
}

/// How many things must be so.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Count {
    /// All of them.
    pub all: usize,
    /// Those that are not.
    pub missed: usize,
    /// Those that are not by the median, and are in a round.
    pub undecided: usize,
}

/// All that a run brought.
pub struct Reports {
    /// On what they ran.
    pub form: Form,
    /// In the order of the table.
    pub reports: Vec<Report>,
    /// How they were run.
    pub options: Options,
    /// The command that made them.
    pub command: String,
    /// What stands behind all of them.
    pub parameters: Vec<Parameter>,
}

impl Reports {
    /// How many things must be so, and how many of them are not.
    pub fn count(&self) -> Count {
        let verdicts = self.reports.iter().filter_map(|r| r.outcome.as_ref().ok()).flat_map(|o| &o.verdicts);
        let musts: Vec<_> = verdicts.filter(|v| v.weight == Weight::Must).collect();
        let undecided = musts.iter().filter(|v| v.undecided()).count();
        let short = musts.iter().filter(|v| !v.holds()).count();
        Count { all: musts.len(), missed: short - undecided, undecided }
    }

    /// In one sentence.
    pub fn headline(&self) -> String {
        let Count { all, missed, undecided } = self.count();
        let undecided_words = match undecided {
            0 => String::new(),
            n => format!(", {n} are not decided: this machine's noise is wider than what is missing"),
        };
        let experiments = |wanted: fn(&Missing) -> bool, words: &str| match self
            .reports
            .iter()
            .filter(|r| r.outcome.as_ref().is_err_and(wanted))
            .count()
        {
            0 => String::new(),
            n => format!("; {n} experiments {words}"),
        };
        let failed = experiments(|it| matches!(it, Missing::Failed(_)), "could not be run");
        let not_here = experiments(|it| matches!(it, Missing::NotHere(_)), "are not in this form, each with its reason");
        let shown = all - missed - undecided;
        format!("{shown} of {all} things that must be shown are shown, {missed} are not{undecided_words}{failed}{not_here}")
    }
}

/// A verdict in a word.
pub fn mark(verdict: &Verdict) -> &'static str {
    match (verdict.weight, verdict.holds()) {
        (Weight::Must, false) if verdict.undecided() => "not decided",
        (Weight::Must, true) => "pass",
        (Weight::Must, false) => "MISSES",
        (Weight::Aim, true) => "aim reached",
        (Weight::Aim, false) => "aim not reached",
        (Weight::Calibration, true) => "calibrated",
        (Weight::Calibration, false) => "NOT CALIBRATED",
    }
}

/// A verdict's figure, and what it must come to.
pub fn against(verdict: &Verdict) -> String {
    let by =
        if verdict.holds() { String::new() } else { format!(", {:.1} % of the mark", verdict.figure / verdict.at_least * 100.0) };
    match verdict.weight {
        Weight::Calibration => format!("{:.3} (0.85 to 1.15)", verdict.figure),
        _ => {
            let rounds = verdict.spread.map(|[least, most]| format!(", rounds {} to {}", ratio(least), ratio(most)));
            format!("{} (at least {}{by}{})", ratio(verdict.figure), verdict.at_least, rounds.unwrap_or_default())
        }
    }
}

/// A ratio with the digits that count.
pub fn ratio(value: f64) -> String {
    if value < 10.0 { format!("{value:.3}") } else { format!("{value:.1}") }
}

/// A quantity.
pub fn quantity(value: f64) -> String {
    if value < 100.0 { format!("{value:.2}") } else { number(value) }
}

/// What one of them reached, with the least and the most of its rounds.
pub fn reached(figure: &Figure, who: Who) -> String {
    let value = figure.of(who).map_or_else(String::new, quantity);
    match figure.spread_of(who) {
        Some([least, most]) => format!("{value} ({} to {})", quantity(least), quantity(most)),
        None => value,
    }
}
