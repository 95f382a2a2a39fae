//! The table of `docs/EXPERIMENTS.md`, between two marks in the page, so that the text around it stays.

use super::json::source;
use super::{Reports, against, mark, quantity};
use headpond_sim::experiments::outcome::{Weight, parameters};
use std::fmt::Write;

const BEGIN: &str = "<!-- begin: made by the command below -->";
const END: &str = "<!-- end -->";

fn cell(text: &str) -> String {
    text.replace('|', "\\|").replace('\n', " ")
}

fn tables(reports: &Reports) -> String {
    let mut out = String::new();
    let _ = writeln!(out, "`{}`\n", reports.command);
    let _ = writeln!(out, "{}.\n", reports.headline());
    out.push_str("| # | experiment | published | must show | Headpond, simulated | |\n|---|---|---|---|---|---|\n");
    for r in &reports.reports {
        let (figures, verdict) = match &r.outcome {
            Err(why) => (format!("could not be run: {why}"), "failed".to_owned()),
            Ok(it) => {
                let lines: Vec<String> = it
                    .verdicts
                    .iter()
                    .filter(|v| v.weight != Weight::Calibration)
                    .map(|v| format!("{}: {} ({})", v.what, against(v), mark(v)))
                    .collect();
                (lines.join("; "), if it.holds() { "shown" } else { "**not all**" }.to_owned())
            }
        };
        let _ = writeln!(
            out,
            "| {} | {} | {} | {} | {} | {verdict} |",
            r.id,
            cell(r.title),
            cell(r.published),
            cell(r.wanted),
            cell(&figures)
        );
    }
    out.push_str("\n### Figures\n\n| # | what | unit | reached |\n|---|---|---|---|\n");
    for r in &reports.reports {
        for f in r.outcome.iter().flat_map(|it| &it.figures) {
            let all: Vec<String> = f.reached.iter().map(|(w, v)| format!("{} {}", w.name(), quantity(*v))).collect();
            let _ = writeln!(out, "| {} | {} | {} | {} |", r.id, cell(&f.what), f.unit, all.join("; "));
        }
    }
    out.push_str("\n### Beside the figures\n\n");
    for r in &reports.reports {
        for note in r.outcome.iter().flat_map(|it| &it.notes) {
            let _ = writeln!(out, "- {}: {note}", r.id);
        }
    }
    out.push_str("\n### Calibration\n\n| # | the bare model | by the published figure | |\n|---|---|---|---|\n");
    for r in &reports.reports {
        for v in r.outcome.iter().flat_map(|it| &it.verdicts).filter(|v| v.weight == Weight::Calibration) {
            let _ = writeln!(out, "| {} | {} | {:.3} | {} |", r.id, cell(&v.what), v.figure, mark(v));
        }
    }
    out.push_str("\n### Parameters\n\n| machine | parameter | value | from | why |\n|---|---|---|---|---|\n");
    for p in parameters() {
        let _ = writeln!(out, "| {} | {} | {} | {} | {} |", p.machine, p.name, p.value, source(p.source), p.why);
    }
    out
}

/// The page with its tables made anew; `None` if it has no place for them.
pub fn markdown(page: &str, reports: &Reports) -> Option<String> {
    let (before, rest) = page.split_once(BEGIN)?;
    let (_, after) = rest.split_once(END)?;
    Some(format!("{before}{BEGIN}\n\n{}\n{END}{after}", tables(reports)))
}
