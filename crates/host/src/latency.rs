//! How long requests take, counted in buckets from the moment the engine gets one to its answer.

use std::collections::BTreeMap;

use headpond_engine::io::Request;

/// Upper bounds of the buckets in nanoseconds: powers of two of a microsecond, 16 µs to about 67 s. One more bucket has the rest.
pub const BOUNDS: [u64; 23] = {
    let mut bounds = [0; 23];
    let mut n = 0;
    while n < bounds.len() {
        bounds[n] = 1000 << (n + 4);
        n += 1;
    }
    bounds
};

/// What a request asks for.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
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
    /// Of a request.
    pub fn of<B>(request: &Request<B>) -> Op {
        match request {
            Request::Read { .. } => Op::Read,
            Request::Write { .. } => Op::Write,
            Request::Flush => Op::Flush,
            Request::Discard { .. } | Request::WriteZeroes { .. } => Op::Zero,
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

/// Requests by how long they took.
#[derive(Clone, Debug, Default)]
pub struct Histogram {
    counts: [u64; BOUNDS.len() + 1],
    sum_ns: u64,
}

impl Histogram {
    /// One more, of so many nanoseconds.
    pub fn add(&mut self, ns: u64) {
        self.counts[BOUNDS.partition_point(|bound| *bound < ns)] += 1;
        self.sum_ns = self.sum_ns.saturating_add(ns);
    }

    /// How many there were.
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// Their times added up, in nanoseconds.
    pub fn sum_ns(&self) -> u64 {
        self.sum_ns
    }

    /// Of each of [`BOUNDS`], how many took no longer.
    pub fn cumulative(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        BOUNDS.iter().zip(&self.counts).scan(0, |sum, (bound, count)| {
            *sum += count;
            Some((*bound, *sum))
        })
    }
}

/// Histograms by volume's number and what was asked.
pub type Latencies = BTreeMap<(u16, Op), Histogram>;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_counted_in_the_first_bucket_that_it_does_not_exceed() {
        let mut histogram = Histogram::default();
        for ns in [0, 16_000, 16_001, 1_000_000_000, u64::MAX] {
            histogram.add(ns);
        }
        let buckets: Vec<(u64, u64)> = histogram.cumulative().collect();
        assert_eq!(buckets[..2], [(16_000, 2), (32_000, 3)]);
        assert_eq!((buckets.last().unwrap().1, histogram.count()), (4, 5));
        assert!(BOUNDS.windows(2).all(|pair| pair[1] == 2 * pair[0]));
    }
}
