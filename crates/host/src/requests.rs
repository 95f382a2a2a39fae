//! Requests by what was asked and what became of it: how long they took, from the moment the engine gets one, or a queue's thread that
//! begins to serve it, to its answer, and how large they were.

use std::collections::BTreeMap;

use headpond_engine::io::{Buf, Request, SECTOR};
use headpond_engine::stats::Fate;
use serde::{Deserialize, Serialize};

use crate::histogram::{Histogram, SIZE, TIME};

/// What a request asks for.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Op {
    /// A read.
    Read,
    /// A write.
    Write,
    /// A flush.
    Flush,
    /// A discard or zeroing.
    Zero,
}

impl Op {
    /// All of them.
    pub const ALL: [Op; 4] = [Op::Read, Op::Write, Op::Flush, Op::Zero];

    /// Of a request, with its bytes.
    pub fn of<B: Buf>(request: &Request<B>) -> (Op, u64) {
        match request {
            Request::Read { sectors, .. } => (Op::Read, u64::from(*sectors) * SECTOR),
            Request::Write { data, .. } => (Op::Write, data.len() as u64),
            Request::Flush | Request::OwnFlush => (Op::Flush, 0),
            Request::Discard { sectors, .. } | Request::WriteZeroes { sectors, .. } => (Op::Zero, sectors.saturating_mul(SECTOR)),
        }
    }

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Op::Read => "read",
            Op::Write => "write",
            Op::Flush => "flush",
            Op::Zero => "zero",
        }
    }
}

/// Requests of one kind.
#[derive(Clone, Debug)]
pub struct Seen {
    /// How long they took, in nanoseconds.
    pub times: Histogram,
    /// Their bytes; of flushes nothing.
    pub sizes: Histogram,
}

impl Default for Seen {
    fn default() -> Seen {
        Seen { times: Histogram::new(TIME), sizes: Histogram::new(SIZE) }
    }
}

/// All requests, by volume's number, what was asked, and what became of it.
#[derive(Clone, Debug, Default)]
pub struct Table(BTreeMap<(u16, Op, Option<Fate>), Seen>);

impl Table {
    /// One more.
    pub fn add(&mut self, volume: u16, (op, bytes): (Op, u64), fate: Option<Fate>, ns: u64) {
        let seen = self.0.entry((volume, op, fate)).or_default();
        seen.times.add(ns);
        if op != Op::Flush {
            seen.sizes.add(bytes);
        }
    }

    /// Those of another table, too.
    pub fn plus(&mut self, other: &Table) {
        for (kind, seen) in &other.0 {
            let own = self.0.entry(*kind).or_default();
            own.times.plus(&seen.times);
            own.sizes.plus(&seen.sizes);
        }
    }

    /// Forgets a volume that is gone: its number may become another's.
    pub fn forget(&mut self, volume: u16) {
        self.0.retain(|(number, ..), _| *number != volume);
    }

    /// Each kind of which there was one.
    pub fn iter(&self) -> impl Iterator<Item = (u16, Op, Option<Fate>, &Seen)> {
        self.0.iter().map(|((volume, op, fate), seen)| (*volume, *op, *fate, seen))
    }
}

/// The histograms of a daemon, as they go over the control socket.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Histograms {
    /// Seconds since the daemon's start.
    pub uptime_seconds: f64,
    /// Its process.
    #[serde(default)]
    pub process: u32,
    /// Where it took over from another program: for how many seconds nobody answered.
    #[serde(default)]
    pub pause_seconds: Option<f64>,
    /// The pool's name.
    pub pool: String,
    /// By volume, what was asked, and what became of it.
    pub histograms: Vec<Row>,
}

/// Requests of one kind, of one volume.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Row {
    /// The volume's name.
    pub volume: String,
    /// What was asked.
    pub op: Op,
    /// What became of it, by the names that the metrics have; none of flushes, of discards of no whole block, and of
    /// requests that failed.
    pub fate: Option<String>,
    /// How long it took, in nanoseconds.
    pub times: Histogram,
    /// Bytes.
    pub sizes: Histogram,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_counted_by_what_became_of_them() {
        let mut table = Table::default();
        table.add(1, (Op::Read, 4096), Some(Fate::Hit), 20_000);
        table.add(1, (Op::Read, 4096), Some(Fate::Miss), 9_000_000);
        table.add(1, (Op::Flush, 0), None, 500_000);
        let rows: Vec<_> = table.iter().map(|(volume, op, fate, seen)| (volume, op, fate, seen.sizes.sum())).collect();
        let wanted = [(1, Op::Read, Some(Fate::Hit), 4096), (1, Op::Read, Some(Fate::Miss), 4096), (1, Op::Flush, None, 0)];
        assert_eq!(rows, wanted);
        table.add(2, (Op::Read, 512), Some(Fate::Hit), 1000);
        table.forget(1);
        assert_eq!(table.iter().map(|row| row.0).collect::<Vec<_>>(), [2]);
    }
}
