//! Which blocks of a volume are pinned.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::ops::Range;

/// A set of blocks, as runs that neither meet nor touch.
#[derive(Clone, Default, Debug, PartialEq, Eq)]
pub struct Pins {
    /// Where each run ends, by where it begins.
    runs: BTreeMap<u64, u64>,
    blocks: u64,
}

impl Pins {
    /// Whether none is.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }

    /// How many blocks there are.
    #[must_use]
    pub fn blocks(&self) -> u64 {
        self.blocks
    }

    /// How many runs they make.
    #[must_use]
    pub fn runs(&self) -> usize {
        self.runs.len()
    }

    /// The runs, in order.
    pub fn iter(&self) -> impl Iterator<Item = Range<u64>> + '_ {
        self.runs.iter().map(|(start, end)| *start..*end)
    }

    /// Whether all blocks of a range are in the set.
    #[must_use]
    pub fn contains(&self, blocks: &Range<u64>) -> bool {
        self.runs.range(..=blocks.start).next_back().is_some_and(|(_, end)| *end >= blocks.end)
    }

    /// Up to `most` blocks of the first run that goes beyond `from`, from there on.
    #[must_use]
    pub fn next(&self, from: u64, most: u64) -> Option<Range<u64>> {
        let within = self.runs.range(..=from).next_back().filter(|(_, end)| **end > from);
        let (start, end) = within.or_else(|| self.runs.range(from..).next())?;
        let start = from.max(*start);
        Some(start..(*end).min(start + most))
    }

    /// Takes the blocks of a range in.
    pub fn add(&mut self, blocks: Range<u64>) {
        if blocks.is_empty() {
            return;
        }
        let mut whole = blocks;
        // Runs that meet it or touch it become one with it.
        while let Some((start, end)) =
            self.runs.range(..=whole.end).next_back().map(|(s, e)| (*s, *e)).filter(|r| r.1 >= whole.start)
        {
            self.runs.remove(&start);
            self.blocks -= end - start;
            whole = whole.start.min(start)..whole.end.max(end);
        }
        self.blocks += whole.end - whole.start;
        self.runs.insert(whole.start, whole.end);
    }

    /// Takes the blocks of a range out.
    pub fn remove(&mut self, blocks: &Range<u64>) {
        if blocks.is_empty() {
            return;
        }
        let met: Vec<(u64, u64)> =
            self.runs.range(..blocks.end).rev().map(|(s, e)| (*s, *e)).take_while(|(_, e)| *e > blocks.start).collect();
        for (start, end) in met {
            self.runs.remove(&start);
            self.blocks -= end - start;
            for rest in [start..blocks.start.min(end), blocks.end.max(start)..end] {
                if !rest.is_empty() {
                    self.blocks += rest.end - rest.start;
                    self.runs.insert(rest.start, rest.end);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::collections::BTreeSet;

    #[test]
    fn runs_that_touch_are_one_and_what_is_taken_out_parts_them() {
        let mut pins = Pins::default();
        pins.add(10..20);
        pins.add(30..40);
        pins.add(20..30);
        assert_eq!(pins.iter().collect::<Vec<_>>(), Vec::from_iter([(10, 40)].map(|(a, b)| a..b)));
        pins.remove(&(15..35));
        assert_eq!(pins.iter().collect::<Vec<_>>(), [10..15, 35..40]);
        assert_eq!(pins.blocks(), 10);
        assert_eq!(
            (pins.next(0, 3), pins.next(14, 3), pins.next(15, 3), pins.next(40, 3)),
            (Some(10..13), Some(14..15), Some(35..38), None)
        );
    }

    #[test]
    fn any_sequence_of_adding_and_removing_is_that_of_a_set() {
        let mut seed = 1u64;
        let mut draw = |below: u64| {
            seed = seed.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
            (seed >> 33) % below
        };
        let (mut pins, mut set) = (Pins::default(), BTreeSet::new());
        for _ in 0..4000 {
            let start = draw(64);
            let blocks = start..start + draw(12);
            if draw(2) == 0 {
                pins.add(blocks.clone());
                set.extend(blocks);
            } else {
                pins.remove(&blocks);
                set.retain(|b| !blocks.contains(b));
            }
            assert_eq!(pins.iter().flatten().collect::<Vec<_>>(), set.iter().copied().collect::<Vec<_>>());
            assert_eq!(pins.blocks(), set.len() as u64);
            let parted = pins.iter().zip(pins.iter().skip(1)).all(|(a, b)| a.end < b.start);
            assert!(parted, "{pins:?}");
            let asked = draw(70)..draw(70);
            if !asked.is_empty() {
                assert_eq!(pins.contains(&asked), asked.clone().all(|b| set.contains(&b)));
            }
            let from = draw(80);
            assert_eq!(pins.next(from, 1).map(|r| r.start), set.range(from..).next().copied());
        }
    }
}
