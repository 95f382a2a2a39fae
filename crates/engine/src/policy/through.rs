//! What the disk reads, or is written, of a request of which the cache has a part: misses near each other are one read, and what is cached
//! between them is read as well, since it passes under the heads in any case. So it is written where it is dirty, and in the cache as well.
//!
//! A stream is one long read that comes in pieces: what lies beside a request counts as if it were a part of it. Else a disk that serves
//! several of its requests at once would find a hole before each of them, longer than the way to another one, serve that first, and then
//! need a revolution for each that it has left behind.

use alloc::vec::Vec;
use core::ops::Range;

/// Misses this close together (in sectors) are one read of the disk: what lies between passes under the heads in less
/// time than a second request would take to come round again.
const NEAR: u64 = 1024;
/// The same for a stream, whose heads are not wanted back: as much as passes in the time of an average seek.
const NEAR_IN_STREAM: u64 = 2048;
/// How far beside a request of a stream it makes a difference what is cached, in sectors.
pub const BESIDE: u64 = NEAR_IN_STREAM;

/// What the disk reads more than what is missing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Joins {
    /// Nothing: it has failed to read more.
    Nothing,
    /// What lies between misses.
    Between,
    /// The request is a stream's, and so many sectors right before it and behind it are cached, up to the next that are not.
    Stream {
        /// Before it.
        before: u64,
        /// Behind it.
        behind: u64,
    },
}

impl Joins {
    /// Whether all of a request of so many sectors passes under the heads between two misses of its stream: the disk may as well serve it
    /// though it is cached.
    #[must_use]
    pub fn passes(&self, sectors: u64) -> bool {
        match self {
            Joins::Stream { before, behind } => before.saturating_add(sectors).saturating_add(*behind) <= NEAR_IN_STREAM,
            Joins::Nothing | Joins::Between => false,
        }
    }
}

/// What the disk reads of `range`, of which these parts are missing, in order and apart.
#[must_use]
pub fn disk_reads(range: &Range<u64>, missing: &[Range<u64>], joins: Joins) -> Vec<Range<u64>> {
    let near = match joins {
        Joins::Nothing => 0,
        Joins::Between => NEAR,
        Joins::Stream { .. } => NEAR_IN_STREAM,
    };
    let mut reads: Vec<Range<u64>> = Vec::new();
    for m in missing {
        match reads.last_mut() {
            Some(last) if m.start - last.end <= near => last.end = m.end,
            _ => reads.push(m.clone()),
        }
    }
    if let (Joins::Stream { before, behind }, [first, ..]) = (joins, &mut reads[..]) {
        if (first.start - range.start).saturating_add(before) <= near {
            first.start = range.start;
        }
        if let Some(last) = reads.last_mut().filter(|last| (range.end - last.end).saturating_add(behind) <= near) {
            last.end = range.end;
        }
    }
    reads
}

/// What the disk is written of `range`, of which all but these parts is dirty, in order and apart. What it has under dirty data does not
/// matter to anybody; but a disk that leaves a block out needs a revolution to go on behind it, and an array of disks reads what is around.
#[must_use]
pub fn disk_writes(range: &Range<u64>, parts: &[Range<u64>]) -> Vec<Range<u64>> {
    disk_reads(range, parts, Joins::Stream { before: 0, behind: 0 })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is read of a request of so many sectors from 10,000 on. Ranges are given by their ends.
    fn reads(sectors: u64, missing: &[(u64, u64)], joins: Joins) -> Vec<(u64, u64)> {
        let missing: Vec<_> = missing.iter().map(|(start, end)| *start..*end).collect();
        disk_reads(&(10_000..10_000 + sectors), &missing, joins).into_iter().map(|r| (r.start, r.end)).collect()
    }

    #[test]
    fn misses_near_each_other_are_one_read() {
        let between = |missing| reads(4096, missing, Joins::Between);
        assert_eq!(between(&[]), []);
        assert_eq!(between(&[(10_000, 10_008), (10_016, 10_100), (11_124, 11_132)]), [(10_000, 11_132)]);
        assert_eq!(between(&[(10_000, 10_008), (11_033, 11_034)]), [(10_000, 10_008), (11_033, 11_034)]);
    }

    #[test]
    fn what_is_cached_at_the_ends_of_a_lone_request_is_not_read_from_the_disk() {
        assert_eq!(reads(2048, &[(10_128, 11_920)], Joins::Between), [(10_128, 11_920)]);
    }

    #[test]
    fn a_stream_between_misses_is_read_without_holes() {
        let joins = Joins::Stream { before: 0, behind: 128 };
        assert_eq!(reads(2048, &[(10_128, 11_920)], joins), [(10_000, 12_048)]);
        // Most of it is cached, and the heads pass over that on their way to the next miss anyway.
        assert_eq!(reads(2048, &[(11_000, 11_128)], joins), [(10_000, 12_048)]);
        assert_eq!(reads(128, &[(10_064, 10_072)], joins), [(10_000, 10_128)]);
        assert_eq!(reads(2048, &[(10_000, 10_008), (12_040, 12_048)], joins), [(10_000, 12_048)]);
    }

    #[test]
    fn a_stream_that_is_cached_for_long_is_read_from_the_cache_up_to_its_misses() {
        let long = |before, behind| Joins::Stream { before, behind };
        assert_eq!(reads(2048, &[(11_000, 11_128)], long(BESIDE, BESIDE)), [(11_000, 11_128)]);
        assert_eq!(reads(2048, &[(11_000, 11_128)], long(1048, BESIDE)), [(10_000, 11_128)]);
        assert_eq!(reads(2048, &[(11_000, 11_128)], long(BESIDE, 0)), [(11_000, 12_048)]);
        assert_eq!(reads(2048, &[(11_000, 11_128)], long(u64::MAX, u64::MAX)), [(11_000, 11_128)]);
        let apart = [(10_000, 10_008), (13_000, 13_008)];
        assert_eq!(reads(8192, &apart, long(0, BESIDE)), apart);
    }

    #[test]
    fn what_is_cached_between_misses_of_a_stream_passes_under_the_heads_and_longer_stretches_are_passed_over() {
        let passes = |before, sectors, behind| Joins::Stream { before, behind }.passes(sectors);
        assert!(passes(0, 128, 0) && passes(1024, 128, 896) && passes(0, NEAR_IN_STREAM, 0));
        assert!(!passes(1024, 128, 897) && !passes(BESIDE, 8, 0) && !passes(0, 8, u64::MAX));
        assert!(!Joins::Between.passes(8) && !Joins::Nothing.passes(8));
    }

    #[test]
    fn what_is_written_past_dirty_data_has_no_holes_but_long_ones() {
        let all = 10_000..20_000;
        let writes = |parts: &[Range<u64>]| disk_writes(&all, parts);
        assert_eq!(writes(&[]), []);
        assert_eq!(writes(&[10_008..11_000, 11_016..18_000]), core::slice::from_ref(&all));
        assert_eq!(writes(&[13_000..13_008, 17_000..17_008, 17_016..17_024]), [13_000..13_008, 17_000..17_024]);
    }

    #[test]
    fn a_disk_that_failed_is_asked_for_what_is_missing_alone() {
        let missing = [(10_000, 10_008), (10_016, 10_024)];
        assert_eq!(reads(2048, &missing, Joins::Nothing), missing);
    }
}
