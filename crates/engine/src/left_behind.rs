//! Records that a start may find, and of which the map knows nothing: a cache device left under their append, and there was no segment to
//! append them to again. What they say is overwritten past the cache in order, with a mark behind it, or it would lie over what the disk gets.

use crate::ranges::meet;
use alloc::vec::Vec;
use core::cell::RefCell;
use core::ops::Range;

/// What one of them says.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct LeftBehind {
    /// Grid sectors that it has.
    pub sectors: Range<u64>,
    pub version: u64,
}

/// Those of a volume.
#[derive(Default)]
pub(crate) struct AllLeftBehind(RefCell<Vec<LeftBehind>>);

impl AllLeftBehind {
    pub fn add(&self, one: Option<LeftBehind>) {
        self.0.borrow_mut().extend(one);
    }

    /// Whether any is about sectors of a range.
    pub fn touches(&self, range: &Range<u64>) -> bool {
        self.0.borrow().iter().any(|l| meet(&l.sectors, range))
    }

    /// The sectors of a range that they are about; some of them more than once.
    pub fn within(&self, range: &Range<u64>) -> Vec<Range<u64>> {
        let cut = |l: &LeftBehind| l.sectors.start.max(range.start)..l.sectors.end.min(range.end);
        self.0.borrow().iter().map(cut).filter(|r| r.start < r.end).collect()
    }

    /// A mark in the log says that nothing in a range that is older than `version` counts. Of one that came meanwhile it says nothing.
    pub fn outdated(&self, range: &Range<u64>, version: u64) {
        let rest = |l: LeftBehind| {
            let (start, end) = (l.sectors.start, l.sectors.end);
            let over = match l.version < version {
                true => range.start.clamp(start, end)..range.end.clamp(start, end),
                false => end..end,
            };
            [start..over.start, over.end..end]
                .into_iter()
                .filter(|r| r.start < r.end)
                .map(move |sectors| LeftBehind { sectors, version: l.version })
        };
        let all = self.0.take();
        self.0.replace(all.into_iter().flat_map(rest).collect());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;

    fn left(ranges: &[(u64, u64, u64)]) -> AllLeftBehind {
        let all = AllLeftBehind::default();
        ranges.iter().for_each(|(start, end, version)| all.add(Some(LeftBehind { sectors: *start..*end, version: *version })));
        all
    }

    fn of(all: &AllLeftBehind) -> Vec<(u64, u64, u64)> {
        all.0.borrow().iter().map(|l| (l.sectors.start, l.sectors.end, l.version)).collect()
    }

    #[test]
    fn what_is_overwritten_of_it_counts_no_more_and_the_rest_does() {
        for (range, rest) in [
            (0..10, vec![(10, 30, 5)]),
            (10..20, vec![(20, 30, 5)]),
            (15..20, vec![(10, 15, 5), (20, 30, 5)]),
            (20..40, vec![(10, 20, 5)]),
            (10..30, vec![]),
            (0..50, vec![]),
            (30..50, vec![(10, 30, 5)]),
        ] {
            let all = left(&[(10, 30, 5)]);
            all.outdated(&range, 6);
            assert_eq!(of(&all), rest, "{range:?}");
        }
    }

    /// A write was absorbed over a range while an ordered overwrite of it was under way, with an older version, and was left behind. The end of
    /// that one took it for overwritten as well: the next write went to the disk without a mark, and what was left behind came back over it.
    #[test]
    fn what_is_newer_than_the_mark_is_left_behind_still() {
        let all = left(&[(0, 8, 13), (0, 8, 11)]);
        all.outdated(&(0..8), 12);
        assert_eq!(of(&all), [(0, 8, 13)]);
        assert!(all.touches(&(7..9)) && !all.touches(&(8..9)));
    }

    #[test]
    fn within_a_range_is_what_both_have() {
        let all = left(&[(0, 8, 1), (4, 20, 2), (30, 40, 3)]);
        assert_eq!(all.within(&(6..30)), [6..8, 6..20]);
    }
}
