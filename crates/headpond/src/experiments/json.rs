//! The reports for programs.

use super::{Reports, mark};
use headpond_sim::experiments::hardware::Source;
use headpond_sim::experiments::outcome::{Outcome, parameters};
use serde_json::{Value, json as object};

fn outcome(it: &Outcome) -> Value {
    let figures: Vec<Value> = it
        .figures
        .iter()
        .map(|f| {
            let reached: serde_json::Map<_, _> = f.reached.iter().map(|(w, v)| (w.name().to_owned(), object!(v))).collect();
            object!({ "what": f.what, "unit": f.unit, "reached": reached })
        })
        .collect();
    let verdicts: Vec<Value> = it
        .verdicts
        .iter()
        .map(|v| {
            let at_most = v.at_most.is_finite().then_some(v.at_most);
            object!({ "what": v.what, "figure": v.figure, "at_least": v.at_least, "at_most": at_most, "holds": v.holds(), "mark": mark(v) })
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
            let (brought, why) = match &r.outcome {
                Ok(it) => (Some(outcome(it)), None),
                Err(why) => (None, Some(why)),
            };
            object!({
                "id": r.id,
                "title": r.title,
                "method": r.method,
                "published": r.published,
                "must_show": r.wanted,
                "outcome": brought,
                "failed": why,
            })
        })
        .collect();
    let parameters: Vec<Value> = parameters()
        .iter()
        .map(|p| object!({ "machine": p.machine, "name": p.name, "value": p.value, "source": source(p.source), "why": p.why }))
        .collect();
    let (must, missed) = reports.count();
    object!({
        "command": reports.command,
        "form": "simulated",
        "seed": reports.options.seed,
        "quick": reports.options.quick,
        "must": must,
        "missed": missed,
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
    }
}
