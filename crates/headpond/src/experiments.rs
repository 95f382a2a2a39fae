//! What `headpond experiments` shows of its reports: as a table, as JSON and CSV, and as Markdown.

mod csv;
mod json;
mod markdown;
mod page;
mod table;
#[cfg(test)]
mod tests;

pub use csv::csv;
pub use json::json;
pub use markdown::markdown;
pub use page::page;
pub use table::{line, terminal};

use crate::demo::number;
use headpond_sim::experiments::outcome::{Verdict, Weight};
use headpond_sim::experiments::{Options, Report};

/// All that a run brought.
pub struct Reports {
    /// In the order of the table.
    pub reports: Vec<Report>,
    /// How they were run.
    pub options: Options,
    /// The command that made them.
    pub command: String,
}

impl Reports {
    /// How many things must be so, and how many of them are not.
    pub fn count(&self) -> (usize, usize) {
        let verdicts = self.reports.iter().filter_map(|r| r.outcome.as_ref().ok()).flat_map(|o| &o.verdicts);
        let musts: Vec<_> = verdicts.filter(|v| v.weight == Weight::Must).collect();
        (musts.len(), musts.iter().filter(|v| !v.holds()).count())
    }

    /// In one sentence.
    pub fn headline(&self) -> String {
        let (all, missed) = self.count();
        let failed = self.reports.iter().filter(|r| r.outcome.is_err()).count();
        let failed = if failed > 0 { format!("; {failed} experiments could not be run") } else { String::new() };
        format!("{} of {all} things that must be shown are shown, {missed} are not{failed}", all - missed)
    }
}

/// A verdict in a word.
pub fn mark(verdict: &Verdict) -> &'static str {
    match (verdict.weight, verdict.holds()) {
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
        _ => format!("{} (at least {}{by})", ratio(verdict.figure), verdict.at_least),
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
