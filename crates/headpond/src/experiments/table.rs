//! The reports for a terminal.

use super::{Reports, against, mark, reached};
use headpond_sim::experiments::Report;
use std::fmt::Write;

/// A report in one line, while others still run.
pub fn line(report: &Report) -> String {
    match &report.outcome {
        Err(why) => format!("{} {}", report.id, why.words()),
        Ok(it) => {
            let verdicts: Vec<String> = it.verdicts.iter().map(|v| format!("{} {}", super::ratio(v.figure), mark(v))).collect();
            format!("{}: {}", report.id, verdicts.join(", "))
        }
    }
}

/// All of them, and the headline.
pub fn terminal(reports: &Reports) -> String {
    let mut out = String::new();
    for report in &reports.reports {
        let _ = writeln!(out, "{}  {}", report.id, report.title);
        match &report.outcome {
            Err(why) => {
                let _ = writeln!(out, "    {}", why.words());
            }
            Ok(it) => {
                for f in &it.figures {
                    let all: Vec<String> = f.reached.iter().map(|(w, _)| format!("{} {}", w.name(), reached(f, *w))).collect();
                    let _ = writeln!(out, "    {}, {}: {}", f.what, f.unit, all.join("; "));
                }
                for v in &it.verdicts {
                    let _ = writeln!(out, "    {:<16} {}: {}", mark(v), against(v), v.what);
                }
                for note in &it.notes {
                    let _ = writeln!(out, "    {note}");
                }
            }
        }
        out.push('\n');
    }
    let _ = write!(out, "{}.", reports.headline());
    out
}
