//! Counts in buckets of which four make a doubling: of times and of sizes, added to with a few instructions.

use serde::{Deserialize, Serialize};

/// Buckets that have an upper bound, the last of 2^26 units; one more has the rest.
const BOUNDED: usize = 100;

/// Times are counted in microseconds, up to about 67 s.
pub const TIME: u64 = 1000;
/// Sizes are counted in sectors.
pub const SIZE: u64 = 512;

/// Values counted by the bucket that each is in; a bucket's upper bound belongs to it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "Sparse", into = "Sparse")]
pub struct Histogram {
    unit: u64,
    counts: Box<[u64]>,
    sum: u64,
}

/// As it goes over the control socket: the buckets that are not empty.
#[derive(Clone, Serialize, Deserialize)]
struct Sparse {
    unit: u64,
    sum: u64,
    /// Upper bound, none of the last; how many.
    buckets: Vec<(Option<u64>, u64)>,
}

impl Histogram {
    /// Nothing yet, of values in multiples of `unit`, [`TIME`] or [`SIZE`].
    pub fn new(unit: u64) -> Histogram {
        Histogram { unit: unit.max(1), counts: vec![0; BOUNDED + 1].into(), sum: 0 }
    }

    fn index(&self, value: u64) -> usize {
        let below = (value.div_ceil(self.unit)).saturating_sub(1);
        let index = match below.checked_ilog2() {
            None | Some(0 | 1) => below,
            Some(log) => u64::from(log - 1) * 4 + (below >> (log - 2) & 3),
        };
        (index as usize).min(BOUNDED)
    }

    /// The upper bound of a bucket; none of the last.
    fn upper(&self, index: usize) -> Option<u64> {
        let (doubling, quarter) = (index as u64 / 4, index as u64 % 4);
        let units = if doubling == 0 { quarter + 1 } else { (quarter + 5) << (doubling - 1) };
        (index < BOUNDED).then_some(units * self.unit)
    }

    /// One more.
    pub fn add(&mut self, value: u64) {
        self.counts[self.index(value)] += 1;
        self.sum = self.sum.saturating_add(value);
    }

    /// How many there were.
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// All values added up.
    pub fn sum(&self) -> u64 {
        self.sum
    }

    /// How many were not above a bound, which is a bucket's.
    pub fn up_to(&self, bound: u64) -> u64 {
        self.counts[..=self.index(bound)].iter().sum()
    }

    /// With all of another's.
    pub fn plus(&mut self, other: &Histogram) {
        self.counts.iter_mut().zip(&other.counts).for_each(|(own, more)| *own += more);
        self.sum = self.sum.saturating_add(other.sum);
    }

    /// Without what an older state of it had.
    pub fn since(&self, older: &Histogram) -> Histogram {
        let counts = self.counts.iter().zip(&older.counts).map(|(new, old)| new.saturating_sub(*old)).collect();
        Histogram { unit: self.unit, counts, sum: self.sum.saturating_sub(older.sum) }
    }

    /// The value that a share of all, 0 to 1, does not exceed, as near as the buckets tell; none of nothing.
    pub fn quantile(&self, share: f64) -> Option<u64> {
        let count = self.count();
        let rank = ((share * count as f64).ceil() as u64).clamp(1, count.max(1));
        let mut below = 0;
        for (index, here) in self.counts.iter().enumerate() {
            if below + here >= rank {
                let lower = index.checked_sub(1).and_then(|index| self.upper(index)).unwrap_or(0);
                let upper = self.upper(index).unwrap_or(lower);
                let within = (rank - below) as f64 / *here as f64;
                return Some(lower + ((upper - lower) as f64 * within) as u64);
            }
            below += here;
        }
        None
    }

    /// Upper bounds that double from `first` on to `last`, and one more for the rest, each with how many are in between.
    pub fn doublings(&self, first: u64, last: u64, times: u64) -> Vec<(Option<u64>, u64)> {
        let (mut rows, mut bound, mut below) = (Vec::new(), first, 0);
        while bound <= last {
            let here = self.up_to(bound);
            rows.push((Some(bound), here - below));
            (below, bound) = (here, bound * times);
        }
        rows.push((None, self.count() - below));
        rows
    }
}

impl From<Histogram> for Sparse {
    fn from(h: Histogram) -> Sparse {
        let filled = h.counts.iter().enumerate().filter(|(_, count)| **count > 0);
        Sparse { unit: h.unit, sum: h.sum, buckets: filled.map(|(index, count)| (h.upper(index), *count)).collect() }
    }
}

impl From<Sparse> for Histogram {
    fn from(sparse: Sparse) -> Histogram {
        let mut histogram = Histogram { sum: sparse.sum, ..Histogram::new(sparse.unit) };
        for (upper, count) in sparse.buckets {
            let index = upper.map_or(BOUNDED, |upper| histogram.index(upper));
            histogram.counts[index] += count;
        }
        histogram
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(values: &[u64]) -> Histogram {
        let mut histogram = Histogram::new(TIME);
        values.iter().for_each(|value| histogram.add(*value));
        histogram
    }

    #[test]
    fn a_value_is_in_the_first_bucket_whose_bound_it_does_not_exceed() {
        let empty = Histogram::new(TIME);
        let bounds: Vec<u64> = (0..BOUNDED).map(|index| empty.upper(index).unwrap()).collect();
        assert!(bounds.windows(2).all(|pair| pair[0] < pair[1] && pair[1] <= pair[0] * 2));
        assert_eq!((bounds[0], bounds[BOUNDED - 1]), (1000, 1000 << 26));
        assert!((0..=26).all(|n| bounds.contains(&(1000 << n))), "every doubling is a bound");
        for (index, bound) in bounds.iter().enumerate() {
            assert_eq!((empty.index(*bound), empty.index(bound + 1)), (index, index + 1));
        }
        assert_eq!((empty.index(0), empty.index(u64::MAX)), (0, BOUNDED));
        let histogram = of(&[0, 16_000, 16_001, u64::MAX]);
        assert_eq!((histogram.up_to(16_000), histogram.up_to(32_000), histogram.count()), (2, 3, 4));
    }

    #[test]
    fn quantiles_are_within_a_quarter_of_what_they_should_be() {
        let values: Vec<u64> = (1..=10_000).map(|n| n * 1000).collect();
        let histogram = of(&values);
        for share in [0.01, 0.5, 0.9, 0.99, 1.0] {
            let (found, wanted) = (histogram.quantile(share).unwrap() as f64, share * 10_000_000.0);
            assert!((found / wanted - 1.0).abs() < 0.13, "{share}: {found} is not {wanted}");
        }
        assert_eq!(Histogram::new(TIME).quantile(0.5), None);
        assert!(of(&[u64::MAX]).quantile(0.5).unwrap() >= 1000 << 26);
    }

    #[test]
    fn differences_sums_and_what_goes_over_the_socket_lose_nothing() {
        let (older, more) = (of(&[5_000, 1_000_000]), of(&[70_000, u64::MAX / 2]));
        let mut both = older.clone();
        both.plus(&more);
        assert_eq!(both.since(&older), more);
        let text = serde_json::to_string(&both).unwrap();
        assert_eq!(serde_json::from_str::<Histogram>(&text).unwrap(), both);
        let rows = both.doublings(4_000, 64_000, 4);
        assert_eq!(rows, [(Some(4_000), 0), (Some(16_000), 1), (Some(64_000), 0), (None, 3)]);
    }
}
