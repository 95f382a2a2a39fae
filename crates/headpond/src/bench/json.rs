//! The figures for programs.

use super::Figures;
use headpond_sim::bench::Row;
use headpond_sim::bench::measure::Reached;
use serde_json::{Map, Value, json as object};

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

/// A row.
pub(super) fn row(row: &Row) -> Value {
    object!({
        "load": row.name,
        "setting": row.setting,
        "ratio": row.ratio,
        "at_least": row.at_least,
        "to_alone": row.alone,
        "by_latency": row.by_latency,
        "bare": reached(&row.bare),
        "cached": reached(&row.cached),
    })
}

/// All of it.
pub fn json(figures: &Figures) -> Value {
    let with_what_it_left = |it: &Row| {
        let mut value = row(it);
        let after = object!({
            "dirty_percent": it.after.dirty_percent,
            "dirty_bytes": it.after.dirty_bytes,
            "write_space_by_region": it.after.write_space,
            "density": it.after.density,
            "drain_s": it.after.drain_s,
            "ssd_write_amplification": it.after.amplification,
            "fates": it.after.fates.iter().map(|(what, n)| (what.to_string(), object!(n))).collect::<Map<_, _>>(),
        });
        if let (Value::Object(value), Value::Object(after)) = (&mut value, after) {
            value.extend(after);
        }
        value
    };
    let rows: Vec<Value> = figures.rows.iter().map(with_what_it_left).collect();
    let failures: Vec<Value> = figures.failures.iter().map(|(load, why)| object!({ "load": load, "why": why })).collect();
    object!({
        "seed": figures.options.seed,
        "quick": figures.options.quick,
        "worst": figures.least().map(|row| object!({ "load": row.name, "ratio": row.ratio })),
        "rows": rows,
        "failures": failures,
    })
}
