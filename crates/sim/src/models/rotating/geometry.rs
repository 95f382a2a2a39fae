//! Where data lies on a disk, and how long the heads take to get there.

use super::RotatingParams;
use crate::models::SECOND;

/// Bytes in a physical sector; tracks hold a whole number of them.
const SECTOR: u64 = 4096;
/// How many zones of constant track length a disk has. Real disks have about as many.
const ZONES: u64 = 32;

/// A place on the media.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Place {
    /// Which track, counted in the order of addresses.
    pub(super) track: u64,
    /// The time at which it would pass under the heads if the whole disk were read in one go from
    /// time zero. Its remainder by the time of a revolution is the angle.
    pub(super) coord: u64,
}

#[derive(Debug)]
struct Zone {
    first_byte: u64,
    first_track: u64,
    track_bytes: u64,
}

/// The layout of a disk and the movement of its arm.
///
/// Tracks are numbered in the order of addresses. Neighbours in that order may be on different
/// surfaces; moving between them costs what a seek by one track costs, and the arm's distance between
/// two tracks is taken as proportional to the difference of their numbers, which holds for the
/// serpentine layouts in use. The start of each track is turned against that of the one before by the
/// skew, so that a sequential transfer goes on without losing a revolution.
#[derive(Debug)]
pub(super) struct Geometry {
    zones: Vec<Zone>,
    zone_bytes: u64,
    tracks: f64,
    revolution: u64,
    skew: u64,
    /// Seek time over `n` tracks, a share `d` of the stroke: `first + near * sqrt(n / near_tracks)`, of
    /// which the last factor is at most 1, `+ root * sqrt(d) + linear * d`.
    first: u64,
    near: f64,
    near_tracks: f64,
    root: f64,
    linear: f64,
}

impl Geometry {
    pub(super) fn new(params: &RotatingParams) -> Self {
        let revolution = 60 * SECOND / params.rpm;
        let skew = params.head_switch_ns;
        let zone_bytes = params.capacity.div_ceil(ZONES).next_multiple_of(SECTOR);
        let (outer, inner) = (params.outer_rate as f64, params.inner_rate as f64);
        let mut zones = Vec::new();
        let mut first_track = 0;
        for zone in 0..ZONES {
            // The rate falls linearly with the radius, so its square falls linearly with the bytes passed.
            let share = zone as f64 / (ZONES - 1) as f64;
            let rate = (outer * outer - share * (outer * outer - inner * inner)).sqrt();
            // The sustained rate of a data sheet includes the skew, so a track holds a little more.
            let track_bytes = (rate * (revolution + skew) as f64 / SECOND as f64) as u64 / SECTOR * SECTOR;
            assert!(track_bytes > 0, "a track holds a sector");
            zones.push(Zone { first_byte: zone * zone_bytes, first_track, track_bytes });
            first_track += zone_bytes.div_ceil(track_bytes);
        }
        // Between two random places the mean distance is 1/3 of the stroke and the mean of its root is
        // 8/15; the two figures of a data sheet therefore fix both coefficients.
        let (first, near) = (params.seek_track_ns, params.seek_near_ns as f64 - params.seek_track_ns as f64);
        let average = (params.seek_average_ns - params.seek_near_ns) as f64;
        let full = (params.seek_full_ns - params.seek_near_ns) as f64;
        let root = 5.0 * (average - full / 3.0);
        let linear = full - root;
        assert!(near >= 0.0 && root >= 0.0 && linear >= 0.0, "the seek times lie on a curve that rises and flattens");
        Geometry {
            zones,
            zone_bytes,
            tracks: first_track as f64,
            revolution,
            skew,
            first,
            near,
            near_tracks: params.seek_near_tracks as f64,
            root,
            linear,
        }
    }

    fn zone(&self, offset: u64) -> &Zone {
        &self.zones[(offset / self.zone_bytes).min(ZONES - 1) as usize]
    }

    /// Where the byte at `offset` is.
    pub(super) fn place(&self, offset: u64) -> Place {
        let zone = self.zone(offset);
        let into = offset - zone.first_byte;
        let (track, rest) = (into / zone.track_bytes, into % zone.track_bytes);
        let track = zone.first_track + track;
        Place { track, coord: track * (self.revolution + self.skew) + rest * self.revolution / zone.track_bytes }
    }

    /// Where the heads are when the byte before `offset` has passed; `offset` is not zero.
    pub(super) fn place_after(&self, offset: u64) -> Place {
        let zone = self.zone(offset - 1);
        let into = offset - 1 - zone.first_byte;
        let (track, rest) = (into / zone.track_bytes, into % zone.track_bytes);
        let track = zone.first_track + track;
        Place { track, coord: track * (self.revolution + self.skew) + (rest + 1) * self.revolution / zone.track_bytes }
    }

    /// How far a transfer that began before `coord` has come: the whole sectors that have passed by then.
    pub(super) fn offset_at(&self, coord: u64) -> u64 {
        let track = coord / (self.revolution + self.skew);
        let into = (coord % (self.revolution + self.skew)).min(self.revolution);
        let after = self.zones.partition_point(|zone| zone.first_track <= track);
        let zone = &self.zones[after - 1];
        let bytes = into * zone.track_bytes / self.revolution / SECTOR * SECTOR;
        let offset = zone.first_byte + (track - zone.first_track) * zone.track_bytes + bytes;
        // The last track of a zone is seldom full.
        self.zones.get(after).map_or(offset, |next| offset.min(next.first_byte))
    }

    /// The angle of a place, as the time from the start of a revolution.
    pub(super) fn angle(&self, place: Place) -> u64 {
        place.coord % self.revolution
    }

    /// The time from `now` until `angle` is under the heads.
    pub(super) fn rotation(&self, now: u64, angle: u64) -> u64 {
        let at = now % self.revolution;
        if angle >= at { angle - at } else { angle + self.revolution - at }
    }

    /// The time to move the arm over `distance` tracks; it never falls as the distance grows.
    pub(super) fn seek(&self, distance: u64) -> u64 {
        if distance == 0 {
            return 0;
        }
        let share = distance as f64 / self.tracks;
        let near = (distance as f64 / self.near_tracks).min(1.0);
        self.first + (self.near * near.sqrt() + self.root * share.sqrt() + self.linear * share) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::models::{MILLISECOND, SplitMix64};

    #[test]
    fn seeks_average_to_the_data_sheet() {
        let geometry = Geometry::new(&RotatingParams::nearline_7200());
        let mut random = SplitMix64::new(1);
        let tracks = geometry.tracks as u64;
        let total: u64 = (0..100_000).map(|_| geometry.seek(random.below(tracks).abs_diff(random.below(tracks)))).sum();
        let mean = total / 100_000;
        assert!(mean.abs_diff(8_500_000) < 50_000, "mean seek of {mean} ns");
        assert!(geometry.seek(tracks).abs_diff(17 * MILLISECOND) < 1_000);
    }

    #[test]
    fn an_offset_and_its_place_lead_to_each_other() {
        let params = RotatingParams::nearline_7200();
        let geometry = Geometry::new(&params);
        let mut random = SplitMix64::new(2);
        for _ in 0..10_000 {
            let offset = random.below(params.capacity / SECTOR) * SECTOR;
            let place = geometry.place(offset);
            // Times are rounded down to a nanosecond, so the sector may only just not have passed.
            let back = geometry.offset_at(place.coord + 1);
            assert!(back == offset || back + SECTOR == offset, "{offset} came back as {back}");
            assert!(geometry.place_after(offset + SECTOR).coord > place.coord);
        }
    }
}
