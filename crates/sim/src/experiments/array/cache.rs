//! The non-volatile write cache of an array controller: what waits in it, by row, and which row goes to the disks next.

use std::collections::{BTreeMap, VecDeque};

/// What a controller's write cache is made from.
#[derive(Clone, Copy, Debug)]
pub struct CacheParams {
    /// Bytes for data that is not on the disks yet.
    pub bytes: u64,
    /// Rows that are brought to the disks at once.
    pub rows: usize,
    /// Partly written rows stay until this many percent of the cache are taken: they may become whole.
    pub percent: u64,
}

/// Data of a row that waits, in ranges of its bytes, sorted and apart.
#[derive(Clone, Default, Debug)]
struct Waiting {
    ranges: Vec<(u64, u64)>,
    bytes: u64,
    /// What of the row is on its way to the disks; it takes space until it is there.
    going: u64,
}

/// The cache.
#[derive(Debug)]
pub(super) struct RowCache {
    params: CacheParams,
    row_bytes: u64,
    rows: BTreeMap<u64, Waiting>,
    whole: VecDeque<u64>,
    used: u64,
    busy: usize,
    sweep: u64,
}

impl RowCache {
    pub(super) fn new(params: CacheParams, row_bytes: u64) -> Self {
        Self { params, row_bytes, rows: BTreeMap::new(), whole: VecDeque::new(), used: 0, busy: 0, sweep: 0 }
    }

    /// Whether a write of `len` bytes fits now. One larger than the whole cache fits where nothing else is.
    pub(super) fn has_room(&self, len: u64) -> bool {
        self.used == 0 || self.used + len <= self.params.bytes
    }

    /// Takes in a range of the array's bytes.
    pub(super) fn insert(&mut self, start: u64, end: u64) {
        let mut at = start;
        while at < end {
            let row = at / self.row_bytes;
            let (from, to) = (at % self.row_bytes, (end - row * self.row_bytes).min(self.row_bytes));
            let waiting = self.rows.entry(row).or_default();
            let before = waiting.bytes;
            add(&mut waiting.ranges, from, to);
            waiting.bytes = waiting.ranges.iter().map(|(s, e)| e - s).sum();
            self.used += waiting.bytes - before;
            if waiting.bytes == self.row_bytes && before < self.row_bytes {
                self.whole.push_back(row);
            }
            at = row * self.row_bytes + to;
        }
    }

    /// Whether all of a range, within one row, is here.
    pub(super) fn holds(&self, start: u64, end: u64) -> bool {
        let row = start / self.row_bytes;
        let (from, to) = (start - row * self.row_bytes, end - row * self.row_bytes);
        self.rows.get(&row).is_some_and(|w| w.ranges.iter().any(|(s, e)| *s <= from && to <= *e))
    }

    /// The next row to go to the disks, with what of it goes: whole ones in the order in which they became whole, then, where
    /// space is wanted, the others in one-way sweeps over the addresses.
    pub(super) fn next(&mut self, wanted: bool) -> Option<(u64, Vec<(u64, u64)>)> {
        if self.busy >= self.params.rows {
            return None;
        }
        let free = |rows: &BTreeMap<u64, Waiting>, row: &u64| rows.get(row).is_some_and(|w| w.going == 0 && w.bytes > 0);
        let whole = self.whole.iter().position(|row| free(&self.rows, row)).and_then(|n| self.whole.remove(n));
        let row = whole.or_else(|| {
            if !wanted && self.used * 100 < self.params.bytes * self.params.percent {
                return None;
            }
            let waits = |(_, w): &(&u64, &Waiting)| w.going == 0 && w.bytes > 0;
            let found = self.rows.range(self.sweep..).find(waits).or_else(|| self.rows.range(..self.sweep).find(waits));
            found.map(|(row, _)| *row)
        })?;
        if whole.is_none() {
            self.sweep = row + 1;
        }
        let waiting = self.rows.get_mut(&row)?;
        let ranges = std::mem::take(&mut waiting.ranges);
        (waiting.going, waiting.bytes) = (waiting.bytes, 0);
        self.busy += 1;
        Some((row, ranges))
    }

    /// What went of a row is on the disks.
    pub(super) fn ended(&mut self, row: u64) {
        self.busy -= 1;
        if let Some(waiting) = self.rows.get_mut(&row) {
            self.used -= waiting.going;
            waiting.going = 0;
            if waiting.bytes == 0 {
                self.rows.remove(&row);
            }
        }
    }
}

/// Adds a range to ranges that are sorted and apart.
fn add(ranges: &mut Vec<(u64, u64)>, mut start: u64, mut end: u64) {
    let from = ranges.partition_point(|(_, e)| *e < start);
    let to = ranges.partition_point(|(s, _)| *s <= end);
    for (s, e) in &ranges[from..to] {
        (start, end) = (start.min(*s), end.max(*e));
    }
    ranges.splice(from..to, [(start, end)]);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_join_where_they_touch() {
        let mut ranges = Vec::new();
        for (s, e) in [(8, 12), (0, 4), (20, 24), (4, 8), (11, 21)] {
            add(&mut ranges, s, e);
        }
        assert_eq!(ranges, [(0, 24)]);
    }

    #[test]
    fn whole_rows_go_first_and_the_others_when_space_is_wanted() {
        let mut cache = RowCache::new(CacheParams { bytes: 1000, rows: 2, percent: 50 }, 100);
        cache.insert(10, 20);
        cache.insert(300, 420);
        assert_eq!(cache.next(false), Some((3, vec![(0, 100)])));
        assert_eq!(cache.next(false), None);
        assert_eq!(cache.next(true), Some((0, vec![(10, 20)])));
        assert_eq!(cache.next(true), None, "two are on their way");
        cache.insert(12, 14);
        cache.ended(0);
        assert!(cache.holds(12, 14) && !cache.holds(10, 14));
        assert_eq!(cache.next(true), Some((4, vec![(0, 20)])));
        cache.ended(3);
        assert_eq!(cache.next(true), Some((0, vec![(12, 14)])));
    }
}
