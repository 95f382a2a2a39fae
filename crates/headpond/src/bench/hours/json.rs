//! The hours for programs: each minute of each side, each second of each minute.

use super::super::json::reached;
use super::{Hours, verdicts};
use headpond_sim::bench::Hour;
use headpond_sim::bench::hour::{Held, Minute};
use serde_json::{Map, Value, json as object};

fn held(it: &Held) -> Value {
    object!({
        "segments": it.segments,
        "segments_free": it.free,
        "segments_kept_free": it.kept_free,
        "taken_percent": it.taken_percent(),
        "occupied_percent": it.occupied_percent(),
        "dirty_percent": it.dirty_percent,
        "cached_bytes": it.cached_bytes,
        "dirty_bytes": it.dirty_bytes,
    })
}

fn minute(it: &Minute) -> Value {
    object!({
        "reached": reached(&it.reached),
        "held": held(&it.held),
        "fates": it.fates.iter().map(|(what, n)| (what.to_string(), object!(n))).collect::<Map<_, _>>(),
        "segments_evicted": it.evicted,
        "segments_moved": it.moved,
        "checkpoints": it.checkpoints,
    })
}

fn hour(it: &Hour) -> Value {
    let verdicts = verdicts(it).map(|v| object!({ "holds": v.holds, "text": v.text }));
    object!({
        "load": it.name,
        "setting": it.setting,
        "verdicts": verdicts,
        "poor_seconds": it.poor_seconds(),
        "late_minutes": it.late_minutes(),
        "held_at_first": held(&it.at_first),
        "bare": it.bare.iter().map(reached).collect::<Vec<_>>(),
        "cached": it.cached.iter().map(minute).collect::<Vec<_>>(),
    })
}

/// All of it.
pub fn json(hours: &Hours) -> Value {
    object!({
        "seed": hours.seed,
        "hours": hours.hours.iter().map(hour).collect::<Vec<_>>(),
        "failures": hours.failures.iter().map(|(load, why)| object!({ "load": load, "why": why })).collect::<Vec<_>>(),
    })
}
