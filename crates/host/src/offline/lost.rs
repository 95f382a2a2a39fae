//! Which records of a log are lost: written whole once, most likely, as enough was written after them.
//!
//! A start steps over a place without a record, and over data that no copy has: that is what a daemon leaves that died while it
//! wrote. But it had few records in flight, and what lies behind more whole ones than that had been acknowledged.
//!
//! Acknowledged is not flushed: when the power fails, devices lose what is in their caches in any order, so that of what nobody has flushed an
//! older record may be gone where newer ones are whole. Nothing on the media tells when a client flushed. It is told as lost, and with
//! this said.

use std::ops::Range;

use headpond_format::EntryKind;

use super::copies::{self, Copy};
use super::records::{Seen, Whole};
use super::segments::Found;

/// A daemon has a few records in flight on each log when it dies; so many at the end of one may be unfinished. What is
/// damaged further back was written whole.
const UNFINISHED: usize = 16;

/// While space is short a log has several open segments, and each its end. What waits for one of them may be overtaken by newer
/// writes to the others, though hardly by so many records.
const OVERTAKING: usize = 128;

/// The log of one class of a volume, in one life of a daemon, looked at from its end: the newest segment first.
#[derive(Default)]
pub(super) struct Log {
    /// The versions of whole records in the segments that were looked at.
    newer: Vec<u64>,
}

impl Log {
    /// For each thing that was seen in the next older segment whether enough was written after it. `since` is the version of
    /// the checkpoint: what is no newer has only been moved here, which says nothing of when. Of one that is known to be durable all was written.
    pub fn is_followed(&mut self, found: &Found, seen: &[Seen], since: u64) -> Vec<bool> {
        let mut newest = since;
        let mut versions = Vec::with_capacity(seen.len());
        for s in seen {
            let version = match s {
                Seen::Record(whole) => version(whole).filter(|version| *version > newest),
                _ => None,
            };
            newest = version.unwrap_or(newest);
            versions.push(version);
        }
        let later = self.newer.iter().filter(|version| newest > since && **version > newest).count();
        // In the order of time, or behind a segment that stayed open beside others.
        let is_left = later >= UNFINISHED && (later == self.newer.len() || later >= OVERTAKING);
        let mut whole = 0;
        let mut followed: Vec<bool> = Vec::with_capacity(seen.len());
        for (s, version) in seen.iter().zip(versions).rev() {
            followed.push(is_left || whole >= UNFINISHED || found.is_durable);
            if let Seen::Record(record) = s
                && record.is_whole()
            {
                whole += 1;
                self.newer.extend(version);
            }
        }
        followed.reverse();
        followed
    }
}

/// The newest version of what a record has; of marks it says nothing of when.
fn version(whole: &Whole) -> Option<u64> {
    let is_write = |kind: EntryKind| !matches!(kind, EntryKind::MarkClean);
    whole.record.entries.iter().filter(|e| is_write(e.kind)).map(|e| e.version).max()
}

/// Sectors of a segment in which a start looks for a record, and finds none.
pub(super) struct Gap {
    /// Counted from the first of the segment.
    pub sectors: Range<u32>,
    /// A record's header is there, and not whole.
    pub is_torn: bool,
    /// There was a record that was acknowledged, most likely.
    pub is_lost: bool,
    /// Some of it could not be read, and may be read later, or by others.
    pub is_unreadable: bool,
}

/// The gaps between the records of a segment, in order, and behind the last one what could not be read. What cannot be read on any copy
/// was not left so by a daemon that died.
pub(super) fn gaps(found: &Found, seen: &[Seen], followed: &[bool], copies: &[Copy], unit: u32) -> Vec<Gap> {
    let step = unit / 512;
    let from = found.replay_from;
    let gap = |sectors: Range<u32>, is_torn: bool, is_followed: bool| {
        let sectors = sectors.start.max(from)..sectors.end;
        let is_lost = is_followed || copies::is_on_none(copies, &sectors);
        let is_unreadable = copies.iter().any(|copy| copy.cannot_read(&sectors));
        (!sectors.is_empty()).then_some(Gap { sectors, is_torn, is_lost, is_unreadable })
    };
    let mut end = from.max(step);
    let mut gaps = Vec::new();
    for (seen, is_followed) in seen.iter().zip(followed) {
        let (sectors, is_torn) = match seen {
            Seen::Record(whole) => {
                end = end.max(whole.record.place.offset + whole.record.sectors);
                continue;
            }
            Seen::Torn(at) => (*at..at + step, true),
            Seen::Hole(from, to) => (*from..*to, false),
        };
        end = end.max(sectors.end);
        gaps.extend(gap(sectors, is_torn, *is_followed));
    }
    // The next record, if there was one.
    gaps.extend(end.checked_add(step).and_then(|to| gap(end..to, false, false)).filter(|gap| gap.is_lost));
    gaps
}

#[cfg(test)]
mod tests {
    use headpond_format::{Class, Entry, Place, Record, RecordPlace, SegmentHeader};

    use super::*;

    /// A segment with records of these versions; `None`: a place without one.
    fn segment(versions: impl IntoIterator<Item = Option<u64>>) -> Vec<Seen> {
        let seen = |(n, version): (usize, Option<u64>)| {
            let Some(version) = version else { return Seen::Torn(n as u32) };
            let place = RecordPlace { segment: 0, generation: 0, offset: n as u32 };
            let (kind, block, sum, offset) = (EntryKind::Dirty, n as u64, 0, 0);
            let entry = Entry { kind, first: 0, sectors: 1, block, count: 1, version, sum, offset };
            let record = Record { place, sectors: 2, entries: vec![entry] };
            Seen::Record(Whole { record, header: vec![true], data: vec![(entry, vec![true])] })
        };
        versions.into_iter().enumerate().map(seen).collect()
    }

    fn found(is_durable: bool) -> Found {
        let header = SegmentHeader { segment: 0, generation: 0, class: Class::Mirrored, volume: 0, copies: [Place::NONE; 2] };
        Found { header, replay_from: 1, lacking: Vec::new(), written: true, is_durable }
    }

    fn last(log: &mut Log, versions: impl IntoIterator<Item = u64>) -> bool {
        let seen = segment(versions.into_iter().map(Some).chain([None]));
        log.is_followed(&found(false), &seen, 100).pop().unwrap()
    }

    #[test]
    fn what_many_whole_records_follow_was_written() {
        let mut log = Log::default();
        let seen = segment([None].into_iter().chain((101..=117).map(Some)));
        let followed = log.is_followed(&found(false), &seen, 100);
        assert_eq!(followed.iter().filter(|it| **it).count(), 2, "{followed:?}");
        assert!(!last(&mut log, 90..=101), "it may have been open beside that one");
    }

    /// Found by reading: rot near the end of the log was taken for a write that a crash had cut short, also where other headers tell that all of
    /// the segment was durable. No start completes it there.
    #[test]
    fn of_a_durable_segment_all_was_written() {
        let seen = segment([Some(101), None]);
        assert_eq!(Log::default().is_followed(&found(false), &seen, 100), [false, false]);
        assert_eq!(Log::default().is_followed(&found(true), &seen, 100), [true, true]);
    }

    /// Found by reading: the newest segments were taken for what was written last, also where others had been open beside them.
    #[test]
    fn each_segment_that_is_open_beside_others_has_an_end_of_its_own() {
        let mut log = Log::default();
        assert!(!last(&mut log, (1..=100).map(|n| 1000 + 2 * n)));
        assert!(!last(&mut log, (1..=100).map(|n| 1001 + 2 * n)), "they took turns");
        assert!(!last(&mut log, (1..=50).map(|n| 1100 + n)), "these may have been overtaken");
        assert!(last(&mut log, (1..=50).map(|n| 900 + n)), "nothing newer is older than any of it");
        assert!(last(&mut log, (1..=50).map(|n| 950 + n)), "it was left long ago");
        assert!(!last(&mut log, (1..=50).map(|n| 50 + n)), "when it was moved here is not known");
    }
}
