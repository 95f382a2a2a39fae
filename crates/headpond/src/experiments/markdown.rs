//! The tables of `docs/EXPERIMENTS.md`, those of each form between two marks in the page, so that the text around them stays.

use super::json::source;
use super::{Form, Reports, against, mark, reached};
use headpond_sim::experiments::outcome::{Missing, Weight};
use std::fmt::Write;

/// Where the tables of a form begin and end.
fn marks(form: Form) -> [&'static str; 2] {
    match form {
        Form::Simulated => ["<!-- begin: made by the command below -->", "<!-- end -->"],
        Form::Real => ["<!-- begin: real form, made by the command below -->", "<!-- end of the real form -->"],
        Form::Devices { slower: 1 } => {
            ["<!-- begin: real form on devices, made by the command below -->", "<!-- end of the real form on devices -->"]
        }
        Form::Devices { .. } => [
            "<!-- begin: real form on slower devices, made by the command below -->",
            "<!-- end of the real form on slower devices -->",
        ],
    }
}

fn cell(text: &str) -> String {
    text.replace('|', "\\|").replace('\n', " ")
}

fn tables(reports: &Reports) -> String {
    let mut out = String::new();
    let _ = writeln!(out, "`{}`\n", reports.command);
    let _ = writeln!(out, "{}.\n", reports.headline());
    let form = reports.form.name();
    let _ = writeln!(out, "| # | experiment | published | must show | Headpond, {form} | |\n|---|---|---|---|---|---|");
    for r in &reports.reports {
        let (figures, verdict) = match &r.outcome {
            Err(why @ Missing::Failed(_)) => (why.words(), "failed".to_owned()),
            Err(why @ Missing::NotHere(_)) => (why.words(), "not run".to_owned()),
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
            let all = f.reached.iter().map(|(w, _)| format!("{} {}", w.name(), reached(f, *w)));
            let _ = writeln!(out, "| {} | {} | {} | {} |", r.id, cell(&f.what), f.unit, all.collect::<Vec<_>>().join("; "));
        }
    }
    out.push_str("\n### Beside the figures\n\n");
    for r in &reports.reports {
        for note in r.outcome.iter().flat_map(|it| &it.notes) {
            let _ = writeln!(out, "- {}: {note}", r.id);
        }
    }
    if reports.form == Form::Simulated {
        out.push_str("\n### Calibration\n\n| # | the bare model | by the published figure | |\n|---|---|---|---|\n");
        for r in &reports.reports {
            for v in r.outcome.iter().flat_map(|it| &it.verdicts).filter(|v| v.weight == Weight::Calibration) {
                let _ = writeln!(out, "| {} | {} | {:.3} | {} |", r.id, cell(&v.what), v.figure, mark(v));
            }
        }
    }
    out.push_str("\n### Parameters\n\n| machine | parameter | value | from | why |\n|---|---|---|---|---|\n");
    for p in &reports.parameters {
        let _ = writeln!(out, "| {} | {} | {} | {} | {} |", p.machine, p.name, p.value, source(p.source), p.why);
    }
    out
}

/// The page with the tables of this form made anew; `None` if it has no place for them.
pub fn markdown(page: &str, reports: &Reports) -> Option<String> {
    let [begin, end] = marks(reports.form);
    let (before, rest) = page.split_once(begin)?;
    let (_, after) = rest.split_once(end)?;
    Some(format!("{before}{begin}\n\n{}\n{end}{after}", tables(reports)))
}
