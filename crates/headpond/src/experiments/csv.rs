//! The reports for spreadsheets: one line for each figure, verdict and point of a plot.

use super::{Reports, mark};
use std::fmt::Write;

fn quoted(text: &str) -> String {
    format!("\"{}\"", text.replace('"', "\"\""))
}

/// Columns: experiment, kind of line, what, who or mark, where on the axis (of a point) or the mark to reach, value, unit.
pub fn csv(reports: &Reports) -> String {
    let mut out = String::from("experiment,kind,what,who,at,value,unit\n");
    for report in &reports.reports {
        let (id, Ok(it)) = (report.id, &report.outcome) else { continue };
        for f in &it.figures {
            for (who, value) in &f.reached {
                let _ = writeln!(out, "{id},figure,{},{},,{value},{}", quoted(&f.what), quoted(who.name()), f.unit);
            }
            for (who, [least, most]) in &f.spread {
                for (kind, value) in [("least", least), ("most", most)] {
                    let _ = writeln!(out, "{id},{kind},{},{},,{value},{}", quoted(&f.what), quoted(who.name()), f.unit);
                }
            }
        }
        for v in &it.verdicts {
            let _ = writeln!(out, "{id},verdict,{},{},{},{},", quoted(&v.what), quoted(mark(v)), v.at_least, v.figure);
        }
        for p in &it.plots {
            for (_, name, points) in &p.lines {
                for (at, value) in points {
                    let _ = writeln!(out, "{id},point,{},{},{at},{value},{}", quoted(&p.title), quoted(name), quoted(p.up));
                }
            }
        }
    }
    out
}
