//! What runs did, one and many, and what the engine counted meanwhile.

use headpond_engine::{Mark, MarkSet, Status};
use std::fmt;

/// What was done, in one run or in many.
#[derive(Clone, Copy, Debug, Default)]
pub struct Totals {
    /// Requests that ended.
    pub requests: u64,
    /// Power cuts.
    pub power_cuts: u64,
    /// Daemon deaths.
    pub deaths: u64,
    /// Of both, those that cut a recovery.
    pub in_recovery: u64,
    /// Members lost.
    pub members_lost: u64,
    /// Members added.
    pub members_added: u64,
    /// Members removed by choice.
    pub members_removed: u64,
    /// Times that a volume was grown.
    pub grown: u64,
    /// Times that a disk was exchanged.
    pub exchanged: u64,
    /// Times that a lost member was there alone at a start, and was taken: nothing had been acknowledged that it lacked.
    pub back_taken: u64,
    /// Times that it was refused.
    pub back_refused: u64,
    /// Device operations.
    pub operations: u64,
    /// What the engine counted, over its lives.
    pub counts: Counts,
}

impl Totals {
    /// Power cuts and daemon deaths.
    #[must_use]
    pub fn crashes(&self) -> u64 {
        self.power_cuts + self.deaths
    }

    fn add(&mut self, o: &Totals) {
        self.requests += o.requests;
        self.power_cuts += o.power_cuts;
        self.deaths += o.deaths;
        self.in_recovery += o.in_recovery;
        self.members_lost += o.members_lost;
        self.members_added += o.members_added;
        self.members_removed += o.members_removed;
        self.grown += o.grown;
        self.exchanged += o.exchanged;
        self.back_taken += o.back_taken;
        self.back_refused += o.back_refused;
        self.operations += o.operations;
        self.counts.merge(&o.counts);
    }
}

/// What a run did.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// What was done.
    pub totals: Totals,
    /// Requests that were drawn, in each life of the daemon.
    pub drawn: Vec<u64>,
    /// Places of the engine that were reached.
    pub marks: MarkSet,
    /// Sums up all that happened.
    pub hash: u64,
    /// What went wrong, if anything did.
    pub violation: Option<String>,
}

/// What the engine counted.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counts {
    /// Writes absorbed.
    pub absorbed: u64,
    /// Writes bypassed.
    pub bypassed: u64,
    /// Ordered overwrites.
    pub ordered: u64,
    /// Read hits, partial ones included.
    pub hits: u64,
    /// Of these, the ones that were answered from memory.
    pub hits_ahead: u64,
    /// Of the hits, those that were read beside the engine.
    pub hits_beside: u64,
    /// Blocks destaged.
    pub destaged: u64,
    /// Checkpoints.
    pub checkpoints: u64,
    /// Segments relocated.
    pub relocated: u64,
    /// Segments evicted.
    pub evicted: u64,
    /// Fills spoiled.
    pub spoiled: u64,
    /// Records completed at starts.
    pub completed: u64,
    /// Pieces repaired.
    pub repaired: u64,
}

impl Counts {
    /// Adds what an engine has counted in its life.
    pub fn add(&mut self, s: &Status) {
        for v in &s.volumes {
            self.absorbed += v.stats.absorbed.requests;
            self.bypassed += v.stats.write_bypass.iter().map(|c| c.requests).sum::<u64>();
            self.ordered += v.stats.ordered_overwrites;
            self.hits += v.stats.hit.requests + v.stats.partial_hit.requests;
            self.hits_ahead += v.stats.hit_ahead.requests;
            self.hits_beside += v.stats.hit_beside.requests;
            self.destaged += v.stats.destaged.bytes / 4096;
            self.spoiled += v.stats.fills_spoiled;
        }
        self.checkpoints += s.stats.checkpoints;
        self.relocated += s.stats.relocated;
        self.evicted += s.stats.evicted;
        self.completed += s.stats.completed_at_start;
        self.repaired += s.stats.repaired;
    }

    fn merge(&mut self, o: &Counts) {
        self.absorbed += o.absorbed;
        self.bypassed += o.bypassed;
        self.ordered += o.ordered;
        self.hits += o.hits;
        self.hits_ahead += o.hits_ahead;
        self.hits_beside += o.hits_beside;
        self.destaged += o.destaged;
        self.checkpoints += o.checkpoints;
        self.relocated += o.relocated;
        self.evicted += o.evicted;
        self.spoiled += o.spoiled;
        self.completed += o.completed;
        self.repaired += o.repaired;
    }
}

/// Many runs.
#[derive(Clone, Debug, Default)]
pub struct Summary {
    /// Runs.
    pub seeds: u64,
    /// What was done in all of them.
    pub totals: Totals,
    /// How many runs reached each place of the engine, in the order of [`Mark::ALL`].
    pub marks: Vec<u64>,
    /// Seeds that failed, with what went wrong.
    pub failures: Vec<(u64, String)>,
}

impl Summary {
    /// Adds a run.
    pub fn add(&mut self, seed: u64, o: &Outcome) {
        self.seeds += 1;
        self.totals.add(&o.totals);
        self.marks.resize(Mark::ALL.len(), 0);
        o.marks.iter().for_each(|m| self.marks[m as usize] += 1);
        self.failures.extend(o.violation.iter().map(|v| (seed, v.clone())));
    }
}

impl Summary {
    /// Each place of the engine, with how many runs reached it.
    pub fn reached(&self) -> impl Iterator<Item = (Mark, u64)> + '_ {
        Mark::ALL.iter().map(|m| (*m, self.marks.get(*m as usize).copied().unwrap_or(0)))
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let t = &self.totals;
        let c = &t.counts;
        writeln!(
            f,
            "{} seeds, {} crashes: {} power cuts and {} daemon deaths, {} of them in recovery; {} members lost, which came back alone {} times and were refused {} times",
            self.seeds,
            t.crashes(),
            t.power_cuts,
            t.deaths,
            t.in_recovery,
            t.members_lost,
            t.back_taken + t.back_refused,
            t.back_refused
        )?;
        writeln!(
            f,
            "{} requests, {} device operations; volumes grown {} times, disks exchanged {} times",
            t.requests, t.operations, t.grown, t.exchanged
        )?;
        writeln!(
            f,
            "writes: {} absorbed, {} bypassed, {} of them ordered overwrites; {} read hits, {} of them read ahead; {} fills spoiled",
            c.absorbed, c.bypassed, c.ordered, c.hits, c.hits_ahead, c.spoiled
        )?;
        writeln!(
            f,
            "{} blocks destaged, {} checkpoints, {} segments relocated, {} evicted, {} records completed at starts, {} pieces repaired",
            c.destaged, c.checkpoints, c.relocated, c.evicted, c.completed, c.repaired
        )?;
        let missing: Vec<&str> = self.reached().filter(|(_, n)| *n == 0).map(|(m, _)| m.name()).collect();
        write!(f, "{} of {} marks reached", Mark::ALL.len() - missing.len(), Mark::ALL.len())?;
        if missing.is_empty() { Ok(()) } else { write!(f, "; not reached: {}", missing.join(", ")) }
    }
}
