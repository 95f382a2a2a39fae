//! The reports for programs.

use super::{Reports, mark};
use headpond_sim::experiments::hardware::Source;
use headpond_sim::experiments::outcome::{Missing, Outcome};
use serde_json::{Value, json as object};

fn outcome(it: &Outcome) -> Value {
    let figures: Vec<Value> = it
        .figures
        .iter()
        .map(|f| {
            let reached: serde_json::Map<_, _> = f.reached.iter().map(|(w, v)| (w.name().to_owned(), object!(v))).collect();
            let spread: serde_json::Map<_, _> = f.spread.iter().map(|(w, s)| (w.name().to_owned(), object!(s))).collect();
            object!({ "what": f.what, "unit": f.unit, "reached": reached, "least_and_most": spread })
        })
        .collect();
    let verdicts: Vec<Value> = it
        .verdicts
        .iter()
        .map(|v| {
            let at_most = v.at_most.is_finite().then_some(v.at_most);
            object!({
                "what": v.what,
                "figure": v.figure,
                "least_and_most": v.spread,
                "at_least": v.at_least,
                "at_most": at_most,
                "holds": v.holds(),
                "mark": mark(v),
            })
        })
        .collect();
    let plots: Vec<Value> = it
        .plots
        .iter()
        .map(|p| {
            let lines: Vec<Value> = p
                .lines
                .iter()
                .map(|(who, name, points)| object!({ "who": who.name(), "name": name, "points": points }))
                .collect();
            object!({ "title": p.title, "across": p.across, "up": p.up, "bars": p.bars, "lines": lines })
        })
        .collect();
    object!({ "figures": figures, "verdicts": verdicts, "plots": plots, "notes": it.notes })
}

/// All of it.
pub fn json(reports: &Reports) -> Value {
    let all: Vec<Value> = reports
        .reports
        .iter()
        .map(|r| {
            let (brought, failed, not_here) = match &r.outcome {
                Ok(it) => (Some(outcome(it)), None, None),
                Err(Missing::Failed(why)) => (None, Some(why), None),
                Err(Missing::NotHere(why)) => (None, None, Some(why)),
            };
            object!({
                "id": r.id,
                "title": r.title,
                "method": r.method,
                "published": r.published,
                "must_show": r.wanted,
                "outcome": brought,
                "failed": failed,
                "not_in_this_form": not_here,
            })
        })
        .collect();
    let parameters: Vec<Value> = reports
        .parameters
        .iter()
        .map(|p| object!({ "machine": p.machine, "name": p.name, "value": p.value, "source": source(p.source), "why": p.why }))
        .collect();
    let count = reports.count();
    object!({
        "command": reports.command,
        "form": reports.form.name(),
        "seed": reports.options.seed,
        "quick": reports.options.quick,
        "must": count.all,
        "missed": count.missed,
        "undecided": count.undecided,
        "experiments": all,
        "parameters": parameters,
    })
}

/// Where a parameter comes from, in a word.
pub fn source(source: Source) -> &'static str {
    match source {
        Source::DataSheet => "source or data sheet",
        Source::Calibrated => "calibrated",
        Source::Assumed => "assumed",
        Source::ThisMachine => "this machine",
    }
}
