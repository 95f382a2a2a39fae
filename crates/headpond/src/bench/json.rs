//! The figures for programs.

use super::Figures;
use headpond_sim::bench::measure::Reached;
use serde_json::{Value, json as object};

pub(super) fn reached(it: &Reached) -> Value {
    object!({
        "answers": it.answers,
        "failed": it.failed,
        "per_s": it.per_s,
        "bytes_per_s": it.bytes_per_s,
        "mean_ns": it.mean_ns,
        "median_ns": it.median_ns,
        "p99_ns": it.p99_ns,
        "p999_ns": it.p999_ns,
        "most_ns": it.most_ns,
        "least_second": it.least_second,
        "window_ns": it.window_ns,
        "per_second": it.per_second,
    })
}

/// All of it.
pub fn json(figures: &Figures) -> Value {
    let rows: Vec<Value> = figures
        .rows
        .iter()
        .map(|row| {
            object!({
                "load": row.name,
                "setting": row.setting,
                "ratio": row.ratio,
                "at_least": row.at_least,
                "to_alone": row.alone,
                "by_latency": row.by_latency,
                "bare": reached(&row.bare),
                "cached": reached(&row.cached),
                "dirty_percent": row.after.dirty_percent,
                "dirty_bytes": row.after.dirty_bytes,
                "write_space_by_region": row.after.write_space,
                "density": row.after.density,
                "drain_s": row.after.drain_s,
                "ssd_write_amplification": row.after.amplification,
                "fates": row.after.fates.iter().map(|(what, n)| (what.to_string(), object!(n))).collect::<serde_json::Map<_, _>>(),
            })
        })
        .collect();
    let failures: Vec<Value> = figures.failures.iter().map(|(load, why)| object!({ "load": load, "why": why })).collect();
    object!({
        "seed": figures.options.seed,
        "quick": figures.options.quick,
        "worst": figures.least().map(|row| object!({ "load": row.name, "ratio": row.ratio })),
        "rows": rows,
        "failures": failures,
    })
}
