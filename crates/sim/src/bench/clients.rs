//! Load generators: clients that send requests by a pattern, at a pace. Each follows from a seed, request by request,
//! whatever it is that answers.

use crate::rng::Rng;
use crate::target::Ask;
use std::ops::Range;

/// Where the next request goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Pattern {
    /// Anywhere in the region, evenly.
    Random,
    /// Some places much more often than others: the place of rank n is asked for in proportion to 1/n, scattered over
    /// the region.
    Zipf,
    /// So many runs through equal parts of the region, interleaved, each where its last request ended.
    Stream(u32),
    /// A run from the region's end to its beginning.
    Backward,
    /// A run that leaves gaps: requests begin this many bytes apart.
    Strided(u64),
}

/// When requests are sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Pace {
    /// So many wait for their answer at any time; whoever has his answer asks again at once.
    Closed(u32),
    /// So many at once, again after each such time, whatever has been answered by then.
    Bursts {
        /// How many.
        requests: u32,
        /// Time between two beginnings, in nanoseconds.
        every_ns: u64,
    },
}

/// Clients that do the same.
#[derive(Clone, Debug)]
pub struct Clients {
    /// What they are called where there are others beside them.
    pub name: &'static str,
    /// Where they go.
    pub pattern: Pattern,
    /// Bytes of a request: one of these, chosen evenly; multiples of 512.
    pub sizes: Vec<u64>,
    /// Requests begin on a multiple of their size (of 4 KiB at most) plus this many bytes, a multiple of 512.
    pub skew: u64,
    /// How many of a hundred read; the others write.
    pub reads: u64,
    /// The part of the volume that they use, in bytes.
    pub region: Range<u64>,
    /// When they ask.
    pub pace: Pace,
    /// Each write is followed by a flush, and is not done before that.
    pub flushed: bool,
    /// While one of their requests is under way nobody else asks anew: as writers to a file system wait for its journal's commit.
    pub commits: bool,
}

/// The requests of some clients, one after the other.
#[derive(Clone, Debug)]
pub struct Generator {
    clients: Clients,
    rng: Rng,
    cursors: Vec<Range<u64>>,
    starts: Vec<u64>,
    turn: usize,
}

impl Generator {
    /// Requests that follow from `seed`.
    #[must_use]
    pub fn new(clients: Clients, seed: u64) -> Self {
        let region = clients.region.clone();
        let parts = if let Pattern::Stream(n) = clients.pattern { u64::from(n.max(1)) } else { 1 };
        let part = (region.end - region.start) / parts / 4096 * 4096;
        let cursors: Vec<_> = (0..parts).map(|n| region.start + n * part..region.start + (n + 1) * part).collect();
        let starts = cursors.iter().map(|c| c.start).collect();
        Self { clients, rng: Rng::new(seed), cursors, starts, turn: 0 }
    }

    /// Whose requests they are.
    #[must_use]
    pub fn clients(&self) -> &Clients {
        &self.clients
    }

    /// The next request.
    pub fn ask(&mut self) -> Ask {
        let bytes = *self.rng.pick(&self.clients.sizes);
        let region = self.clients.region.clone();
        let skew = self.clients.skew;
        let grain = bytes.min(4096);
        let places = (region.end - region.start - skew - bytes) / grain + 1;
        let offset = match self.clients.pattern {
            Pattern::Random => region.start + self.rng.below(places) * grain,
            Pattern::Zipf => region.start + self.zipf(places) * grain,
            Pattern::Stream(_) => {
                let n = self.turn % self.cursors.len();
                self.turn += 1;
                let cursor = &mut self.cursors[n];
                if cursor.start + skew + bytes > cursor.end {
                    cursor.start = self.starts[n];
                }
                let at = cursor.start;
                cursor.start += bytes;
                at
            }
            Pattern::Backward => {
                let cursor = &mut self.cursors[0];
                if cursor.end < region.start + bytes + skew {
                    cursor.end = region.end;
                }
                cursor.end -= bytes;
                cursor.end.saturating_sub(skew).max(region.start)
            }
            Pattern::Strided(stride) => {
                let cursor = &mut self.cursors[0];
                if cursor.start + skew + bytes > cursor.end {
                    cursor.start = region.start;
                }
                let at = cursor.start;
                cursor.start += stride;
                at
            }
        };
        let (sector, sectors) = ((offset + skew) / 512, bytes / 512);
        if self.rng.below(100) < self.clients.reads { Ask::Read { sector, sectors } } else { Ask::Write { sector, sectors } }
    }

    /// A place of `places`: the octave of its rank evenly, then the rank within it evenly, which is 1/n by steps; and
    /// ranks scattered by a multiplication. Whole numbers alone, so that every machine draws the same.
    fn zipf(&mut self, places: u64) -> u64 {
        let octave = self.rng.below(u64::from(places.ilog2()) + 1);
        let rank = (1u64 << octave) + self.rng.below(1 << octave);
        rank.wrapping_mul(0x9e37_79b9_7f4a_7c15) % places
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn clients(pattern: Pattern, skew: u64) -> Clients {
        Clients {
            name: "",
            pattern,
            sizes: vec![512, 4096, 65536],
            skew,
            reads: 50,
            region: 1 << 20..(1 << 20) + (16 << 20),
            pace: Pace::Closed(1),
            flushed: false,
            commits: false,
        }
    }

    #[test]
    fn requests_stay_in_their_region_and_follow_from_the_seed() {
        let all =
            [Pattern::Random, Pattern::Zipf, Pattern::Stream(1), Pattern::Stream(7), Pattern::Backward, Pattern::Strided(40960)];
        for pattern in all {
            for skew in [0, 512, 3584] {
                let [mut a, mut b] = [0, 1].map(|_| Generator::new(clients(pattern, skew), 7));
                for _ in 0..20_000 {
                    let ask = a.ask();
                    assert_eq!(ask, b.ask());
                    let (Ask::Read { sector, sectors } | Ask::Write { sector, sectors }) = ask else { panic!("{ask:?}") };
                    assert!(sectors > 0 && sector >= 2048 && sector + sectors <= 2048 + (16 << 11), "{pattern:?} {ask:?}");
                }
            }
        }
    }

    #[test]
    fn zipf_asks_for_few_places_often() {
        let mut g = Generator::new(Clients { sizes: vec![4096], ..clients(Pattern::Zipf, 0) }, 3);
        let mut counts = std::collections::BTreeMap::new();
        for _ in 0..40_960 {
            *counts.entry(g.ask()).or_insert(0u32) += 1;
        }
        let mut counts: Vec<_> = counts.into_values().collect();
        counts.sort_unstable_by(|a, b| b.cmp(a));
        assert!(counts[0] > 500 && counts.len() > 2000, "{} {}", counts[0], counts.len());
    }
}
