//! What the records of one segment are worth: which copies are whole, whether anything needs what is not, what would mend it.

use std::collections::{BTreeSet, HashMap};
use std::path::Path;

use headpond_engine::io::SECTOR;
use headpond_format::{Class, Entry, EntryKind, Record};

use super::Tell;
use crate::buf::HostBuf;
use crate::offline::OfflineError;
use crate::offline::copies::Copy;
use crate::offline::finding::{Finding, Level, Mend};
use crate::offline::lost::{Gap, gaps};
use crate::offline::media::Pool;
use crate::offline::records::{Seen, Whole, part};
use crate::offline::rehearsal::Live;
use crate::offline::segments::Found;

/// One segment, as it was read.
pub(super) struct Judge<'a> {
    pub pool: &'a Pool<'a>,
    pub found: &'a Found,
    /// Its copies, and their data.
    pub read: &'a [Copy],
    pub copies: &'a [Option<HostBuf>],
    pub live: &'a [Live],
    /// Whether `live` is known at all.
    pub is_rehearsed: bool,
}

/// What is wrong at one place of one copy, or of all.
struct Fault {
    level: Level,
    kind: &'static str,
    /// The copy; `None`: all of them.
    copy: Option<usize>,
    /// First sector inside the segment, and how many.
    sectors: (u32, u32),
    mends: Vec<Mend>,
}

impl Judge<'_> {
    /// Judges all records, and all live pieces; how many records there are. `followed`: whether enough was written after each.
    pub fn all(&self, seen: &[Seen], followed: &[bool], say: Tell<'_>) -> Result<u64, OfflineError> {
        let live: HashMap<u32, &Live> = self.live.iter().map(|l| (u32::from(l.piece.offset), l)).collect();
        let mut records = 0;
        let mut judged = BTreeSet::new();
        let mut faults = Vec::new();
        for (step, is_followed) in seen.iter().zip(followed) {
            let Seen::Record(whole) = step else { continue };
            records += 1;
            let is_tail = self.is_replayed(whole.record.place.offset) && !is_followed;
            self.record(whole, is_tail, &live, &mut faults);
            judged.extend(whole.data.iter().map(|(e, _)| e.offset));
        }
        faults.extend(
            gaps(self.found, seen, followed, self.read, self.pool.superblock().unit).into_iter().map(|gap| self.gap(gap)),
        );
        // Pieces of the image whose record's header nobody needs any more, and that is whole nowhere.
        for (offset, live) in live.iter().filter(|(offset, l)| !judged.contains(*offset) && !l.piece.zeroes()) {
            let key = self.pool.superblock().key;
            let good = self
                .copies
                .iter()
                .map(|copy| part(copy.as_ref(), *offset, live.piece.sectors()).is_some_and(|data| live.is(key, &data)));
            let good: Vec<bool> = good.collect();
            self.piece(*offset, live.piece.sectors(), &good, Some(live), live.piece.dirty(), false, &mut faults);
        }
        faults.sort_by_key(|f| (f.kind, f.copy, f.sectors));
        self.tell(faults, say)?;
        Ok(records)
    }

    fn is_replayed(&self, sector: u32) -> bool {
        sector >= self.found.replay_from
    }

    /// A place where there is no record: a start goes on behind it.
    fn gap(&self, gap: Gap) -> Fault {
        let (level, kind) = match (gap.is_lost, self.found.header.class) {
            (true, Class::Mirrored) => (Level::Loss, "record-lost"),
            // Only what clients read was in it.
            (true, Class::Single) => (Level::Damage, "clean-data-damaged"),
            (false, _) if gap.is_torn => (Level::Note, "record-torn"),
            (false, _) => (Level::Note, "hole"),
        };
        let sectors = (gap.sectors.start, gap.sectors.end - gap.sectors.start);
        Fault { level, kind, copy: None, sectors, mends: Vec::new() }
    }

    /// A record of which at least one copy has the header.
    fn record(&self, whole: &Whole, is_tail: bool, live: &HashMap<u32, &Live>, faults: &mut Vec<Fault>) {
        let s = self.pool.superblock();
        let at = whole.record.place.offset;
        let header_sectors = Record::header_sectors(whole.record.entries.len(), s.unit as usize);
        for copy in (0..self.copies.len()).filter(|copy| !whole.header[*copy]) {
            let bytes = whole.record.encode_header(s.key, s.unit as usize);
            let (level, kind, mends) = match is_tail {
                true => (Level::Note, "record-unfinished", Vec::new()),
                false => (Level::Damage, "record-header-damaged", self.mend(copy, at, bytes)),
            };
            faults.push(Fault { level, kind, copy: Some(copy), sectors: (at, header_sectors), mends });
        }
        for (e, good) in &whole.data {
            let live = live.get(&e.offset).copied().filter(|l| (l.block, l.piece.version()) == (e.block, e.version));
            // A copy without the header as well was told already.
            if is_tail {
                let lacking = (0..self.copies.len()).filter(|copy| !good[*copy] && whole.header[*copy]);
                let sectors = (e.offset, u32::from(e.sectors));
                if !good.contains(&true) {
                    let (level, kind) = match self.found.header.class {
                        Class::Mirrored => (Level::Damage, "record-data-torn"),
                        Class::Single => (Level::Note, "clean-data-damaged"),
                    };
                    faults.push(Fault { level, kind, copy: None, sectors, mends: Vec::new() });
                    continue;
                }
                let fault = |copy| Fault { level: Level::Note, kind: "record-unfinished", copy, sectors, mends: Vec::new() };
                faults.extend(lacking.map(|copy| fault(Some(copy))));
                continue;
            }
            let replayed = self.is_replayed(at);
            self.piece(e.offset, e.sectors, good, live, is_dirty(e), replayed, faults);
        }
    }

    /// The data of a piece, by copy good or not.
    #[expect(clippy::too_many_arguments, reason = "one for each thing that decides")]
    fn piece(
        &self,
        offset: u32,
        count: u8,
        good: &[bool],
        live: Option<&Live>,
        dirty: bool,
        replayed: bool,
        faults: &mut Vec<Fault>,
    ) {
        let sectors = (offset, u32::from(count));
        if let Some(from) = good.iter().position(|good| *good) {
            for copy in (0..good.len()).filter(|copy| !good[*copy]) {
                let data = part(self.copies[from].as_ref(), offset, count);
                let mends = data.map_or(Vec::new(), |data| self.mend(copy, offset, data.as_slice().to_vec()));
                faults.push(Fault { level: Level::Damage, kind: "data-damaged", copy: Some(copy), sectors, mends });
            }
            return;
        }
        let dirty = live.map_or(dirty, |live| live.piece.dirty());
        // What is replayed and has no copy is in no map; whether anything newer covers it is told with the volume.
        let (level, kind) = match (live.is_some() || !self.is_rehearsed, dirty) {
            (true, true) => (Level::Loss, "dirty-data-damaged"),
            (true, false) => (Level::Damage, "clean-data-damaged"),
            (false, _) if replayed => (Level::Damage, "dead-data-damaged"),
            (false, _) => (Level::Note, "dead-data-damaged"),
        };
        faults.push(Fault { level, kind, copy: None, sectors, mends: Vec::new() });
    }

    fn mend(&self, copy: usize, sector: u32, bytes: Vec<u8>) -> Vec<Mend> {
        let place = self.read[copy].place;
        let at = self.pool.index(place.member).zip(self.pool.layout(place.member));
        let mend = at.map(|(device, l)| Mend { device, offset: l.slot(place.slot) + u64::from(sector) * SECTOR, bytes });
        mend.into_iter().collect()
    }

    /// Tells the faults, those of one kind that lie side by side as one.
    fn tell(&self, faults: Vec<Fault>, say: Tell<'_>) -> Result<(), OfflineError> {
        let mut faults = faults.into_iter().peekable();
        while let Some(mut fault) = faults.next() {
            let end = |f: &Fault| f.sectors.0 + f.sectors.1;
            while let Some(next) =
                faults.next_if(|next| (next.kind, next.copy) == (fault.kind, fault.copy) && next.sectors.0 <= end(&fault))
            {
                fault.sectors.1 = end(&next).max(end(&fault)) - fault.sectors.0;
                fault.mends.extend(next.mends);
            }
            say(self.finding(fault))?;
        }
        Ok(())
    }

    fn finding(&self, fault: Fault) -> Finding {
        let Fault { level, kind, copy, sectors: (first, count), mends } = fault;
        let (segment, bytes) = (self.found.header.segment, u64::from(count) * SECTOR);
        let is_unreadable = self.read.iter().any(|read| read.cannot_read(&(first..first + count)));
        let (what, meaning, next) = if is_unreadable && kind == "dirty-data-damaged" { UNREADABLE } else { words(kind) };
        let place = self.read[copy.unwrap_or(0)].place;
        let at = self.pool.layout(place.member).map_or(0, |l| l.slot(place.slot)) + u64::from(first) * SECTOR;
        let path = self.pool.device(place.member).map_or(Path::new(""), |device| device.path());
        let on = match copy {
            Some(_) => "",
            None if self.read.len() == 1 => ", on its only copy",
            None => ", on every copy",
        };
        let what = format!("Segment {segment}: {what}{on}");
        let volume = self.pool.superblock().volumes.iter().find(|v| v.number == self.found.header.volume);
        let class = match self.found.header.class {
            Class::Mirrored => "mirrored",
            Class::Single => "single",
        };
        let mut finding = Finding::new(level, kind, format!("{what} ({class})"))
            .at(path, Some(place.member), at, bytes)
            .means(meaning)
            .next(next)
            .mended_by(mends);
        finding.volume = volume.map(|v| v.name.clone());
        finding
    }
}

fn is_dirty(e: &Entry) -> bool {
    matches!(e.kind, EntryKind::Dirty)
}

/// Dirty data of which a copy cannot be read: others perhaps can.
const UNREADABLE: (&str, &str, &str) = (
    "dirty data cannot be read, or does not match its checksum",
    "It was not on the disk yet. What cannot be read may be had yet",
    "`headpond list-damaged` names what of the volume cannot be read. Bring back any cache device that is missing; else copy the device with \
     ddrescue, and check the copy",
);

/// What each kind is, what it means, and what to do.
fn words(kind: &'static str) -> (&'static str, &'static str, &'static str) {
    match kind {
        "record-unfinished" => (
            "a record at the end of the log is not whole on this copy",
            "It was being written when the daemon ended, or was damaged since. The other copy is whole. No data is lost",
            "Nothing: the next start completes it",
        ),
        "record-data-torn" => (
            "data of a record at the end of the log does not match its checksum",
            "It was being written when the daemon or the power failed, and was never acknowledged, or nobody had flushed it when the power failed: \
             then nothing is lost. If it was, it is lost, and the disk's older data is read in its place",
            "Nothing needs to be done where the daemon or the power had failed; else bring back any cache device that is missing",
        ),
        "record-header-damaged" => (
            "the header of a record is not whole on this copy",
            "The other copy has it. No data is lost",
            "Nothing: the next start of the pool reads the other copy",
        ),
        "record-torn" => (
            "a record's header is not whole",
            "It was being written when a daemon ended, and was never acknowledged, or nobody had flushed it when the power failed: then nothing is \
             lost. If it was, it is lost, and what was there before is read in its place",
            "Nothing needs to be done where the daemon or the power had failed; else bring back any cache device that is missing",
        ),
        "record-lost" => (
            "there is no whole record here, and others were written after it",
            "What it held is not known. It was acknowledged, most likely, and is lost: the disk's older data is read in its place. Only if the power \
             failed before a client had flushed it was it promised to nobody",
            "`headpond list-damaged` names the ranges that it may be in. Bring back any cache device that is missing before the \
             pool is started; else restore what was written last from a backup",
        ),
        "hole" => (
            "between records there is none",
            "Records that were being written when a daemon ended were never acknowledged, and what nobody had flushed when the power failed was \
             promised to nobody. If these were, they are lost",
            "Nothing needs to be done where the daemon or the power had failed",
        ),
        "data-damaged" => (
            "data does not match its checksum on this copy",
            "The other copy is whole, and is read. No data is lost",
            "Nothing: the next read from this copy puts it right",
        ),
        "dirty-data-damaged" => (
            "dirty data does not match its checksum",
            "It was not on the disk yet, and is lost",
            "`headpond list-damaged` names what of the volume cannot be read. Bring back any cache device that is missing",
        ),
        "clean-data-damaged" => (
            "clean data, or the header of its record, does not match its checksum",
            "The disk has it, and is read in its place. No data is lost",
            "Nothing needs to be done; look at the device's SMART data if it happens again",
        ),
        _ => (
            "data that nothing needs any more does not match its checksum",
            "It was superseded, or was never finished and acknowledged. Where that is not so, it is told with the volume",
            "Nothing needs to be done",
        ),
    }
}
