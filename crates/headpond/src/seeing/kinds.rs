//! Histograms of a daemon's requests by kind, since its start or between two moments.

use std::collections::BTreeMap;

use headpond_host::histogram::{Histogram, SIZE, TIME};
use headpond_host::requests::{Histograms, Op};
use serde_json::{Value, json};

use super::rates::Life;

/// Shares of requests whose times are told.
pub const QUANTILES: [(f64, &str); 4] = [(0.5, "p50"), (0.9, "p90"), (0.99, "p99"), (0.999, "p99.9")];

/// Times and sizes of requests.
#[derive(Clone, Debug, PartialEq)]
pub struct Pair {
    /// How long they took, in nanoseconds.
    pub times: Histogram,
    /// Their bytes.
    pub sizes: Histogram,
}

impl Default for Pair {
    fn default() -> Pair {
        Pair { times: Histogram::new(TIME), sizes: Histogram::new(SIZE) }
    }
}

/// Requests by what was asked and what became of it.
#[derive(Clone, Debug, Default)]
pub struct Kinds {
    /// Seconds in which they were.
    pub seconds: f64,
    kinds: BTreeMap<(Op, Option<String>), Pair>,
}

impl Kinds {
    /// Of all volumes, or of the one named. With `None` before, or of a daemon that was restarted since: since its start.
    pub fn between(before: Option<&Histograms>, after: &Histograms, volume: Option<&str>) -> Kinds {
        let life =
            |of: &Histograms| Life { uptime_seconds: of.uptime_seconds, process: of.process, pause_seconds: of.pause_seconds };
        let before = before.filter(|before| !life(after).is_another_than(&life(before)));
        let mut kinds = BTreeMap::<_, Pair>::new();
        for row in after.histograms.iter().filter(|row| volume.is_none_or(|name| row.volume == name)) {
            let same = |old: &&headpond_host::requests::Row| (&old.volume, old.op, &old.fate) == (&row.volume, row.op, &row.fate);
            let old = before.and_then(|before| before.histograms.iter().find(same));
            let pair = kinds.entry((row.op, row.fate.clone())).or_default();
            pair.times.plus(&old.map_or_else(|| row.times.clone(), |old| row.times.since(&old.times)));
            pair.sizes.plus(&old.map_or_else(|| row.sizes.clone(), |old| row.sizes.since(&old.sizes)));
        }
        let seconds = after.uptime_seconds - before.map_or(0.0, |before| before.uptime_seconds);
        Kinds { seconds, kinds }
    }

    /// All requests of a kind, whatever became of them.
    pub fn of(&self, op: Op) -> Pair {
        let mut all = Pair::default();
        for (_, pair) in self.kinds.iter().filter(|((own, _), _)| *own == op) {
            all.times.plus(&pair.times);
            all.sizes.plus(&pair.sizes);
        }
        all
    }

    /// Each kind of which there were some, with what became of it.
    pub fn each(&self) -> impl Iterator<Item = (Op, Option<&str>, &Pair)> {
        let some = self.kinds.iter().filter(|(_, pair)| pair.times.count() > 0);
        some.map(|((op, fate), pair)| (*op, fate.as_deref(), pair))
    }

    /// As JSON: by kind the number of requests, seconds, bytes, quantiles in seconds, and both histograms.
    pub fn json(&self) -> Value {
        let rows: Vec<Value> = self.each().map(|(op, fate, pair)| row(op, fate, pair)).collect();
        let all: Vec<Value> = Op::ALL
            .iter()
            .map(|op| (*op, self.of(*op)))
            .filter(|(_, pair)| pair.times.count() > 0)
            .map(|(op, pair)| row(op, None, &pair))
            .collect();
        json!({ "seconds": self.seconds, "ops": all, "kinds": rows })
    }
}

fn row(op: Op, fate: Option<&str>, pair: &Pair) -> Value {
    let quantiles =
        QUANTILES.iter().map(|(share, name)| ((*name).to_owned(), json!(pair.times.quantile(*share).map(|ns| ns as f64 / 1e9))));
    json!({
        "op": op, "fate": fate, "requests": pair.times.count(), "seconds": pair.times.sum() as f64 / 1e9,
        "bytes": pair.sizes.sum(), "quantiles_seconds": quantiles.collect::<serde_json::Map<_, _>>(),
        "times_ns": pair.times, "sizes_bytes": pair.sizes,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use headpond_host::requests::Row;

    fn histograms(uptime_seconds: f64, reads: &[(&str, &str, u64)]) -> Histograms {
        let row = |(volume, fate, ns): &(&str, &str, u64)| {
            let (mut times, mut sizes) = (Histogram::new(TIME), Histogram::new(SIZE));
            times.add(*ns);
            sizes.add(4096);
            Row { volume: (*volume).into(), op: Op::Read, fate: Some((*fate).into()), times, sizes }
        };
        let histograms = reads.iter().map(row).collect();
        Histograms { uptime_seconds, process: 7, pause_seconds: None, pool: "p".into(), histograms }
    }

    #[test]
    fn fates_and_volumes_add_up_and_what_was_before_is_taken_off() {
        let before = histograms(1.0, &[("v", "hit", 20_000)]);
        let after = histograms(3.0, &[("v", "hit", 20_000), ("v", "miss", 8_000_000), ("w", "miss", 9_000_000)]);
        let all = Kinds::between(None, &after, None);
        assert_eq!((all.of(Op::Read).times.count(), all.of(Op::Read).sizes.sum(), all.each().count()), (3, 3 * 4096, 2));
        let since = Kinds::between(Some(&before), &after, Some("v"));
        assert_eq!(
            since.each().map(|(_, fate, pair)| (fate.unwrap().to_owned(), pair.times.count())).collect::<Vec<_>>(),
            [("miss".to_owned(), 1)]
        );
        assert_eq!(since.seconds, 2.0);
        assert_eq!(since.json()["kinds"][0]["requests"], 1);
        assert_eq!(Kinds::between(Some(&after), &before, None).of(Op::Read).times.count(), 1, "restarted: since its start");
        let another = Histograms { process: 8, ..after.clone() };
        assert_eq!(Kinds::between(Some(&before), &another, None).of(Op::Read).times.count(), 3);
    }
}
