//! What a disk has read, on demand and ahead of it.

use super::geometry::Geometry;

/// A run of data in the buffer, `[start, end)` in bytes.
#[derive(Debug)]
struct Segment {
    start: u64,
    end: u64,
    used: u64,
}

/// Reading ahead into a segment while nobody wants the heads.
#[derive(Debug)]
struct Ahead {
    segment: usize,
    /// Where the heads were at `since`, as a coordinate of the geometry.
    coord: u64,
    /// When it began; it may lie ahead, while the disk turns to the place.
    since: u64,
    /// Where it stops, in bytes.
    limit: u64,
}

/// Segments of what was read, the least recently used replaced first, and the read-ahead in progress.
#[derive(Debug)]
pub(super) struct ReadBuffer {
    segments: Vec<Segment>,
    most: usize,
    segment_bytes: u64,
    capacity: u64,
    uses: u64,
    ahead: Option<Ahead>,
}

/// What the heads are doing while the disk is otherwise idle.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct AheadState {
    /// First byte of the segment that is read into.
    pub(super) start: u64,
    /// How far it has come, in bytes.
    pub(super) end: u64,
    /// Where the heads are, as a coordinate; up to a sector beyond `end`.
    pub(super) coord: u64,
    /// The heads are passing over `end` at this moment.
    pub(super) streaming: bool,
}

impl ReadBuffer {
    /// `segment_bytes` may be 0: then nothing is kept.
    pub(super) fn new(most: usize, segment_bytes: u64, capacity: u64) -> Self {
        ReadBuffer { segments: Vec::new(), most, segment_bytes, capacity, uses: 0, ahead: None }
    }

    /// Whether `[offset, end)` is in the buffer at `now`. If so, a read-ahead into it may go further.
    pub(super) fn hit(&mut self, now: u64, geometry: &Geometry, offset: u64, end: u64) -> bool {
        self.update(now, geometry);
        let Some(index) = self.segments.iter().position(|s| s.start <= offset && end <= s.end) else {
            return false;
        };
        self.uses += 1;
        self.segments[index].used = self.uses;
        if let Some(ahead) = self.ahead.as_mut().filter(|ahead| ahead.segment == index) {
            let have = self.segments[index].end;
            let limit = (end + self.segment_bytes).min(self.capacity);
            if have < ahead.limit {
                ahead.limit = ahead.limit.max(limit);
            } else if have - end < self.segment_bytes / 2 && limit > have {
                // It had stopped; going on before half is used up would cost a revolution for each request.
                let place = geometry.place(have);
                ahead.coord = place.coord;
                ahead.since = now + geometry.rotation(now, geometry.angle(place));
                ahead.limit = limit;
            }
        }
        true
    }

    /// The heads have read `[offset, end)` by `now`; `coord` is where they are.
    /// They read on from there until they are wanted elsewhere.
    pub(super) fn read(&mut self, now: u64, offset: u64, end: u64, coord: u64) {
        self.ahead = None;
        if self.segment_bytes == 0 || self.most == 0 {
            return;
        }
        let known = self.segments.iter().position(|s| s.start <= offset && offset <= s.end);
        let index = known.unwrap_or_else(|| {
            let fresh = Segment { start: offset, end, used: 0 };
            if self.segments.len() < self.most {
                self.segments.push(fresh);
                return self.segments.len() - 1;
            }
            let (oldest, _) = self.segments.iter().enumerate().min_by_key(|(_, s)| s.used).expect("there is one");
            self.segments[oldest] = fresh;
            oldest
        });
        self.uses += 1;
        let segment = &mut self.segments[index];
        segment.used = self.uses;
        segment.end = segment.end.max(end);
        segment.start = segment.start.max(segment.end.saturating_sub(2 * self.segment_bytes));
        if segment.end == end {
            let limit = (end + self.segment_bytes).min(self.capacity);
            self.ahead = Some(Ahead { segment: index, coord, since: now, limit });
        }
    }

    /// How far reading ahead has come at `now`, if it was the last thing the heads did.
    pub(super) fn ahead(&mut self, now: u64, geometry: &Geometry) -> Option<AheadState> {
        self.update(now, geometry);
        let ahead = self.ahead.as_ref()?;
        let segment = &self.segments[ahead.segment];
        let streaming = ahead.since <= now && segment.end < ahead.limit;
        let coord = if streaming { ahead.coord + (now - ahead.since) } else { geometry.place_after(segment.end).coord };
        Some(AheadState { start: segment.start, end: segment.end, coord, streaming })
    }

    /// The heads are wanted elsewhere.
    pub(super) fn stop(&mut self) {
        self.ahead = None;
    }

    /// `[offset, end)` is being written: what was read of it is no longer true.
    pub(super) fn invalidate(&mut self, now: u64, geometry: &Geometry, offset: u64, end: u64) {
        self.update(now, geometry);
        for (index, segment) in self.segments.iter_mut().enumerate() {
            let ahead = self.ahead.as_mut().filter(|ahead| ahead.segment == index);
            if segment.end <= offset {
                // Reading ahead stops before the range: what is there is about to be replaced.
                if let Some(ahead) = ahead {
                    ahead.limit = ahead.limit.min(offset.max(segment.end));
                }
            } else if end < segment.end {
                // The part behind the write is the one that a stream still wants.
                segment.start = segment.start.max(end);
            } else if segment.start < end {
                *segment = Segment { start: 0, end: 0, used: 0 };
                if ahead.is_some() {
                    self.ahead = None;
                }
            }
        }
    }

    fn update(&mut self, now: u64, geometry: &Geometry) {
        if let Some(ahead) = &self.ahead
            && ahead.since < now
        {
            let segment = &mut self.segments[ahead.segment];
            if segment.end < ahead.limit {
                let reached = geometry.offset_at(ahead.coord + (now - ahead.since)).min(ahead.limit);
                segment.end = segment.end.max(reached);
                segment.start = segment.start.max(segment.end.saturating_sub(2 * self.segment_bytes));
            }
        }
    }
}
