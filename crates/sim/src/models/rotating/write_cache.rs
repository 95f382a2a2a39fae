//! Data that a disk has accepted and not yet written.

use super::geometry::{Geometry, Place};

/// Longest run that is written in one go: a read that comes meanwhile waits for half a track at most.
pub(super) const LONGEST_EXTENT: u64 = 1 << 20;
/// How many extents are weighed when the next is chosen, nearest tracks first: real time for accuracy.
const CANDIDATES: usize = 96;

/// A run of cached data, `[offset, end)` in bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Extent {
    pub(super) offset: u64,
    pub(super) end: u64,
    pub(super) place: Place,
    /// The number of the oldest write that has data in it.
    pub(super) first_write: u64,
}

/// Extents in the order of addresses; neighbours are merged, overlaps replaced.
#[derive(Debug)]
pub(super) struct WriteCache {
    extents: Vec<Extent>,
    /// What the heads are writing. It takes up room until it is down.
    in_flight: Option<Extent>,
    bytes: u64,
    most_bytes: u64,
    most_extents: usize,
    writes: u64,
}

impl WriteCache {
    pub(super) fn new(most_bytes: u64, most_extents: usize) -> Self {
        WriteCache { extents: Vec::with_capacity(most_extents), in_flight: None, bytes: 0, most_bytes, most_extents, writes: 0 }
    }

    /// Whether a write of this length is ever cached.
    pub(super) fn takes(&self, len: u64) -> bool {
        len <= self.most_bytes / 2 && len.div_ceil(LONGEST_EXTENT) <= self.most_extents as u64 / 2
    }

    /// Whether there is room for a write of this length now.
    pub(super) fn has_room(&self, len: u64) -> bool {
        let extents = self.extents.len() + usize::from(self.in_flight.is_some());
        let held = self.bytes + self.in_flight.map_or(0, |extent| extent.end - extent.offset);
        extents as u64 + len.div_ceil(LONGEST_EXTENT) <= self.most_extents as u64 && held + len <= self.most_bytes
    }

    /// Takes a write in. The caller has made sure of room.
    pub(super) fn insert(&mut self, geometry: &Geometry, mut offset: u64, end: u64) {
        self.writes += 1;
        while offset < end {
            let piece = end.min(offset + LONGEST_EXTENT);
            self.insert_piece(geometry, offset, piece);
            offset = piece;
        }
    }

    fn insert_piece(&mut self, geometry: &Geometry, offset: u64, end: u64) {
        let mut new = Extent { offset, end, place: Place::default(), first_write: self.writes };
        let from = self.extents.partition_point(|e| e.end <= offset);
        let to = from + self.extents[from..].partition_point(|e| e.offset < end);
        let (mut left, mut right) = (None, None);
        for old in &self.extents[from..to] {
            self.bytes -= old.end.min(end) - old.offset.max(offset);
            // What is replaced no longer needs to reach the media, but a flush that waits for it would
            // be answered before its successor is there.
            new.first_write = new.first_write.min(old.first_write);
            if old.offset < offset {
                left = Some(Extent { end: offset, ..*old });
            }
            if end < old.end {
                right = Some(Extent { offset: end, ..*old });
            }
        }
        self.bytes += end - offset;
        // Neighbours are absorbed while the run stays short enough: remainders first, else whole extents.
        let (mut first, mut last) = (from, to);
        if left.is_none() && from > 0 && self.extents[from - 1].end == offset {
            (left, first) = (Some(self.extents[from - 1]), from - 1);
        }
        if right.is_none() && self.extents.get(to).is_some_and(|e| e.offset == end) {
            (right, last) = (Some(self.extents[to]), to + 1);
        }
        let mut result = [None; 3];
        match left {
            Some(left) if new.end - left.offset <= LONGEST_EXTENT => {
                new = Extent { offset: left.offset, first_write: new.first_write.min(left.first_write), ..new };
            }
            kept => result[0] = kept,
        }
        match right {
            Some(right) if right.end - new.offset <= LONGEST_EXTENT => {
                new = Extent { end: right.end, first_write: new.first_write.min(right.first_write), ..new };
            }
            kept => result[2] = kept,
        }
        result[1] = Some(new);
        let placed = result.into_iter().flatten().map(|e| Extent { place: geometry.place(e.offset), ..e });
        self.extents.splice(first..last, placed);
    }

    /// Whether all of `[offset, end)` is here.
    pub(super) fn holds(&self, mut offset: u64, end: u64) -> bool {
        if self.in_flight.is_some_and(|e| e.offset <= offset && end <= e.end) {
            return true;
        }
        let from = self.extents.partition_point(|e| e.end <= offset);
        for extent in &self.extents[from..] {
            if offset < extent.offset {
                return false;
            }
            offset = extent.end;
            if end <= offset {
                return true;
            }
        }
        false
    }

    /// How many writes were taken in so far: the barrier of a flush that begins now.
    pub(super) fn barrier(&self) -> u64 {
        self.writes
    }

    /// Whether data of the first `barrier` writes is not yet on the media.
    pub(super) fn owes(&self, barrier: u64) -> bool {
        self.in_flight.iter().chain(&self.extents).any(|e| e.first_write <= barrier)
    }

    /// The extent that is cheapest to write, and its cost, if that is below `best`; only those with data
    /// of the first `barrier` writes count.
    ///
    /// Extents are looked at in the order of their distance in tracks from `head` (a byte's offset), up to
    /// a fixed number of them, and none farther than `reach(distance)`, which never falls, allows to be cheaper.
    pub(super) fn cheapest(
        &self,
        head: u64,
        head_track: u64,
        barrier: u64,
        mut best: i64,
        cost: impl Fn(&Extent) -> i64,
        reach: impl Fn(u64) -> i64,
    ) -> Option<(usize, i64)> {
        let mut forward = self.extents.partition_point(|e| e.offset < head);
        let mut backward = forward;
        let distance = |index: usize| self.extents.get(index).map(|e| e.place.track.abs_diff(head_track));
        let mut found = None;
        let mut seen = 0;
        while seen < CANDIDATES {
            let behind = backward.checked_sub(1).and_then(distance);
            let (index, far) = match (distance(forward), behind) {
                (Some(ahead), Some(behind)) if behind < ahead => (backward - 1, behind),
                (Some(ahead), _) => (forward, ahead),
                (None, Some(behind)) => (backward - 1, behind),
                (None, None) => break,
            };
            if reach(far) >= best {
                break;
            }
            if index < forward {
                backward = index;
            } else {
                forward += 1;
            }
            let extent = &self.extents[index];
            if extent.first_write > barrier {
                continue;
            }
            seen += 1;
            let cost = cost(extent);
            if cost < best {
                best = cost;
                found = Some((index, cost));
            }
        }
        found
    }

    /// Takes an extent out to be written.
    pub(super) fn begin(&mut self, index: usize) -> Extent {
        let extent = self.extents.remove(index);
        self.bytes -= extent.end - extent.offset;
        self.in_flight = Some(extent);
        extent
    }

    /// The extent that was begun is on the media.
    pub(super) fn end(&mut self) {
        self.in_flight = None;
    }

    pub(super) fn is_empty(&self) -> bool {
        self.extents.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::models::SplitMix64;
    use crate::models::rotating::RotatingParams;

    #[test]
    fn extents_stay_sorted_apart_bounded_and_counted_whatever_is_written() {
        let geometry = Geometry::new(&RotatingParams::nearline_7200());
        let mut cache = WriteCache::new(u64::MAX, 1 << 20);
        let mut random = SplitMix64::new(5);
        let mut written = vec![false; 4096];
        for _ in 0..20_000 {
            let first = random.below(4096 - 300);
            let longest = if random.below(10) == 0 { 300 } else { 4 };
            let blocks = 1 + random.below(longest);
            cache.insert(&geometry, first * 4096, (first + blocks) * 4096);
            written[first as usize..(first + blocks) as usize].fill(true);
            assert!(cache.holds(first * 4096, (first + blocks) * 4096));
            if random.below(3) == 0 && !cache.is_empty() {
                let extent = cache.begin(random.below(cache.extents.len() as u64) as usize);
                written[(extent.offset / 4096) as usize..(extent.end / 4096) as usize].fill(false);
                cache.end();
            }
            let blocks: u64 = written.iter().map(|w| u64::from(*w)).sum();
            assert_eq!(cache.bytes, blocks * 4096);
            assert!(cache.extents.iter().all(|e| e.offset < e.end && e.end - e.offset <= LONGEST_EXTENT));
            assert!(cache.extents.is_sorted_by(|a, b| a.end <= b.offset));
        }
    }
}
