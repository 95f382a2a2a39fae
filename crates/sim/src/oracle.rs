//! What each sector of a volume may read as.
//!
//! A sector has candidates: writes that may be the last to have taken effect. A write that was acknowledged hides those
//! that had ended before it was submitted; once it is flushed, they are gone even for power cuts. After a crash each
//! sector chooses once: the value first read is the only one from then on. Times are ticks: whatever is noted later is
//! later.

use crate::device::NumberMap;

/// Not yet, or never.
const NEVER: u64 = u64::MAX;

#[derive(Clone, Debug)]
struct Candidate {
    stamp: u64,
    write: u64,
    submitted: u64,
    /// When it ended, one way or another.
    ended: u64,
    /// It was acknowledged: it took effect, and hides what had ended before it was submitted.
    acknowledged: bool,
    /// A flush has covered it.
    durable: bool,
    /// A flush that should have covered it failed, and its client knows: no later one does, until it is written again. Or a write failed, and a
    /// flush of the disk as well, of which nobody need be told: a disk drops what it failed to flush, and says yes to the next flush.
    doubtful: bool,
    /// Reads submitted after this may not return it.
    hidden: u64,
    /// Nor may those that were submitted after this, until the next crash: a write failed, and a read has shown whether it took effect.
    settled: u64,
    /// Not even a power cut brings it back; kept for reads that were submitted before it was hidden.
    gone: bool,
    /// It was there at the last crash, and the sector has not chosen since.
    choosing: bool,
}

/// What one write changes.
#[derive(Clone, Debug)]
pub struct WriteRecord {
    /// First sector.
    pub sector: u64,
    /// Sectors.
    pub sectors: u64,
    /// Stamp of the first sector; the next ones follow. 0 where it writes zeroes.
    pub base: u64,
    submitted: u64,
}

/// The oracle of one volume.
#[derive(Clone)]
pub struct Oracle {
    sectors: NumberMap<Vec<Candidate>>,
    writes: NumberMap<WriteRecord>,
    /// `None`: all is zero at first.
    base: Option<u64>,
    clock: u64,
    crashed: u64,
    /// The last crash was a power cut: what is there is there to stay.
    power: bool,
    /// When a flush last failed.
    flush_failed: u64,
    /// When a flush of the disk itself last failed.
    disk_failed: u64,
    /// When the oldest read that is under way was submitted: it may still return what was hidden since.
    pub oldest_read: u64,
    /// Ranges that acknowledged writes changed and no flush has covered yet: first sector, sectors, when.
    unflushed: Vec<(u64, u64, u64)>,
}

impl Oracle {
    /// Sector n holds the stamp `base + n` at first.
    #[must_use]
    pub fn new(base: u64) -> Self {
        Self { base: Some(base), ..Self::zeroed() }
    }

    /// All sectors are zero at first.
    #[must_use]
    pub fn zeroed() -> Self {
        Self {
            sectors: NumberMap::default(),
            writes: NumberMap::default(),
            base: None,
            clock: 1,
            crashed: 0,
            power: false,
            flush_failed: 0,
            disk_failed: 0,
            oldest_read: 0,
            unflushed: Vec::new(),
        }
    }

    fn candidates(&mut self, sector: u64) -> &mut Vec<Candidate> {
        let stamp = self.base.map_or(0, |base| base + sector);
        self.sectors.entry(sector).or_insert_with(|| {
            vec![Candidate {
                stamp,
                write: 0,
                submitted: 0,
                ended: 0,
                acknowledged: true,
                durable: true,
                doubtful: false,
                hidden: NEVER,
                settled: NEVER,
                gone: false,
                choosing: false,
            }]
        })
    }

    /// A tick.
    pub fn tick(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }

    /// A write is submitted; `base` 0 for zeroes.
    pub fn submit(&mut self, write: u64, sector: u64, sectors: u64, base: u64) {
        let now = self.tick();
        for n in 0..sectors {
            let candidate = Candidate {
                stamp: if base == 0 { 0 } else { base + n },
                write,
                submitted: now,
                ended: NEVER,
                acknowledged: false,
                durable: false,
                doubtful: false,
                hidden: NEVER,
                settled: NEVER,
                gone: false,
                choosing: false,
            };
            let oldest = self.oldest_read;
            let list = self.candidates(sector + n);
            while list.len() > 16
                && let Some(n) = list.iter().position(|c| c.gone && c.hidden <= oldest)
            {
                list.remove(n);
            }
            list.push(candidate);
        }
        self.writes.insert(write, WriteRecord { sector, sectors, base, submitted: now });
    }

    /// A write ended: acknowledged (and durable, if it was to be), or failed, which leaves each sector old or new.
    pub fn end(&mut self, write: u64, acknowledged: bool, durable: bool) {
        let now = self.tick();
        let Some(record) = self.writes.remove(&write) else { return };
        let is_lost = !acknowledged && record.submitted < self.disk_failed;
        for s in record.sector..record.sector + record.sectors {
            let list = self.candidates(s);
            for c in list.iter_mut() {
                if c.write == write {
                    c.ended = now;
                    c.acknowledged = acknowledged;
                    c.doubtful |= is_lost;
                } else if acknowledged && c.ended < record.submitted {
                    c.hidden = c.hidden.min(now);
                }
            }
        }
        if acknowledged {
            self.unflushed.push((record.sector, record.sectors, now));
        }
        if durable {
            // Forced unit access makes this write durable, and no other.
            self.make_durable(record.sector, record.sectors, |c| c.write == write);
        }
    }

    /// A write under way.
    #[must_use]
    pub fn record(&self, write: u64) -> Option<&WriteRecord> {
        self.writes.get(&write)
    }

    /// A flush that was submitted at `submitted` has ended well. The ranges that it made durable.
    pub fn flushed(&mut self, submitted: u64) -> Vec<(u64, u64)> {
        let (covered, rest): (Vec<_>, Vec<_>) = std::mem::take(&mut self.unflushed).into_iter().partition(|u| u.2 < submitted);
        self.unflushed = rest;
        for (sector, sectors, _) in &covered {
            self.make_durable(*sector, *sectors, |c| c.ended <= submitted);
        }
        covered.into_iter().map(|(sector, sectors, _)| (sector, sectors)).collect()
    }

    /// A flush that was submitted at `submitted` has failed, and its client knows: of what it should have covered nothing may be assumed until
    /// it is written again, whatever a later flush says. What was acknowledged since is the next one's to promise, or to fail for.
    pub fn flush_failed(&mut self, submitted: u64) {
        self.flush_failed = self.tick();
        for c in self.sectors.values_mut().flatten() {
            c.doubtful |= !c.durable && c.ended < submitted;
        }
        self.unflushed.retain(|u| u.2 >= submitted);
    }

    /// A flush of the disk failed, of which clients are told by their next flush. Of a write that failed itself they know already.
    pub fn disk_failed(&mut self) {
        self.disk_failed = self.tick();
        for c in self.sectors.values_mut().flatten() {
            c.doubtful |= !c.durable && !c.acknowledged && c.ended != NEVER;
        }
    }

    fn make_durable(&mut self, sector: u64, sectors: u64, covered: impl Fn(&Candidate) -> bool) {
        for s in sector..sector + sectors {
            let list = self.candidates(s);
            for c in list.iter_mut().filter(|c| c.acknowledged && covered(c)) {
                c.durable = true;
            }
            let newest = list.iter().filter(|c| c.durable && c.acknowledged).map(|c| c.submitted).max().unwrap_or(0);
            for c in list.iter_mut() {
                c.gone |= c.ended < newest;
            }
        }
    }

    /// A read that was submitted at `submitted` returned `stamp` for a sector. If it may, the sector chooses it.
    ///
    /// # Errors
    /// What would have been allowed.
    pub fn check(&mut self, sector: u64, stamp: u64, submitted: u64) -> Result<(), Vec<u64>> {
        let (crashed, power, now) = (self.crashed, self.power, self.tick());
        let list = self.candidates(sector);
        let may_be = |c: &&Candidate| c.hidden > submitted && c.settled > submitted;
        if !list.iter().filter(may_be).any(|c| c.stamp == stamp) {
            return Err(list.iter().filter(may_be).map(|c| c.stamp).collect());
        }
        // Zeroes of a newer write look like zeroes of an older one: then nothing is chosen yet.
        let newer = list.iter().any(|c| !c.choosing && c.stamp == stamp && c.hidden > submitted);
        let doubtful = list.iter().any(|c| c.stamp == stamp && c.doubtful);
        if !newer && list.iter().any(|c| c.choosing && c.stamp == stamp && c.hidden > submitted) {
            for c in list.iter_mut().filter(|c| c.choosing) {
                c.choosing = false;
                if c.stamp == stamp {
                    // It was there before anything that began after the crash.
                    c.acknowledged = true;
                    (c.submitted, c.ended) = (crashed, crashed);
                } else {
                    c.hidden = 0;
                    // What was read after a daemon's death may be in a volatile cache: a power cut goes back behind it.
                    c.gone |= c.durable && power;
                }
            }
            if self.flush_failed < crashed && !doubtful {
                self.unflushed.push((sector, 1, crashed));
            }
        }
        self.settle(sector, stamp, submitted, now);
        self.order(sector, stamp, submitted, now);
        Ok(())
    }

    /// Of writes that were under way at the same time, and are acknowledged, a read that came after them has shown which was the last: the others do not
    /// come back, but by a power cut before a flush. Who wrote zeroes cannot be told.
    fn order(&mut self, sector: u64, stamp: u64, submitted: u64, now: u64) {
        let list = self.candidates(sector);
        let had_ended = |c: &Candidate| c.acknowledged && c.ended < submitted;
        let is_seen = |c: &&Candidate| c.stamp == stamp && stamp != 0 && had_ended(c) && c.hidden == NEVER;
        let Some(seen) = list.iter().find(is_seen).map(|c| c.write) else { return };
        for c in list.iter_mut().filter(|c| c.write != seen && had_ended(c)) {
            c.hidden = c.hidden.min(now);
        }
    }

    /// A read has shown whether a write that failed before it took effect. That holds for those that come after it: there is the one that was
    /// seen, or what is newer. Who writes zeroes cannot be told from who wrote them before.
    fn settle(&mut self, sector: u64, stamp: u64, submitted: u64, now: u64) {
        let list = self.candidates(sector);
        // One that another read has settled was there before: this read began earlier.
        let is_seen = |c: &&Candidate| c.stamp == stamp && stamp != 0 && c.ended < submitted && c.settled == NEVER;
        let Some(seen) = list.iter().find(is_seen).cloned() else { return };
        for c in list.iter_mut().filter(|c| c.write != seen.write) {
            let older = !seen.acknowledged && c.ended < seen.submitted;
            let failed = !c.acknowledged && c.submitted > seen.ended && c.ended < submitted;
            if older || failed {
                c.settled = c.settled.min(now);
            }
        }
    }

    /// The daemon died: what was under way happened or not; all else stands.
    pub fn killed(&mut self) {
        self.crash(false);
    }

    /// The power went: everything back to what was flushed last may be there, and whatever is there is durable.
    pub fn power_cut(&mut self) {
        self.crash(true);
        self.unflushed.clear();
    }

    fn crash(&mut self, power: bool) {
        let now = self.tick();
        self.crashed = self.tick();
        self.power = power;
        self.writes.clear();
        for list in self.sectors.values_mut() {
            list.retain(|c| !c.gone);
            for c in list.iter_mut() {
                if power {
                    // Which of them is on the media is open; it is there to stay, and none hides another.
                    (c.hidden, c.durable, c.acknowledged, c.doubtful) = (NEVER, true, true, false);
                    (c.submitted, c.ended) = (now, now);
                }
                if c.ended == NEVER {
                    c.ended = now;
                    c.doubtful |= c.submitted < self.disk_failed;
                }
                c.choosing = c.hidden == NEVER;
                c.settled = NEVER;
            }
        }
    }

    /// A number for what may be read from now on, after a crash: equal however late it happened and whatever led to it.
    #[must_use]
    pub fn fingerprint(&self) -> u64 {
        // Ticks count by their order alone.
        let times = |c: &Candidate| [c.submitted, c.ended, c.hidden];
        let mut order: Vec<u64> = self.sectors.values().flatten().filter(|c| !c.gone).flat_map(times).collect();
        order.extend(self.unflushed.iter().map(|u| u.2));
        order.sort_unstable();
        order.dedup();
        let rank = |t: u64| if t == NEVER { NEVER } else { order.partition_point(|o| *o < t) as u64 };
        let mut h = 0_u64;
        let mut add = |n: u64| h = (h.rotate_left(25) ^ n).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        for s in self.touched() {
            add(s);
            for c in self.sectors[&s].iter().filter(|c| !c.gone) {
                let flags =
                    [c.acknowledged, c.durable, c.doubtful, c.choosing].iter().fold(0, |bits, f| bits << 1 | u64::from(*f));
                [c.stamp, flags, rank(c.submitted), rank(c.ended), rank(c.hidden)].into_iter().for_each(&mut add);
            }
        }
        for (sector, sectors, t) in &self.unflushed {
            [*sector, *sectors, rank(*t)].into_iter().for_each(&mut add);
        }
        h
    }

    /// Sectors that were ever written, in order.
    #[must_use]
    pub fn touched(&self) -> Vec<u64> {
        let mut all: Vec<u64> = self.sectors.keys().copied().collect();
        all.sort_unstable();
        all
    }

    /// If exactly one value may be read in a sector, and it was acknowledged (and flushed, if that is asked), it.
    #[must_use]
    pub fn only(&self, sector: u64, flushed: bool) -> Option<u64> {
        let mut visible = self.sectors.get(&sector)?.iter().filter(|c| c.hidden == NEVER);
        let first = visible.next()?;
        (visible.next().is_none() && first.acknowledged && (first.durable || !flushed)).then_some(first.stamp)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_acknowledged_write_hides_what_ended_before_it() {
        let mut o = Oracle::new(1 << 50);
        o.submit(1, 0, 1, 100);
        let early = o.tick();
        o.end(1, true, false);
        let late = o.tick();
        assert!(o.check(0, 1 << 50, early).is_ok());
        assert!(o.check(0, 1 << 50, late).is_err());
        assert!(o.check(0, 100, late).is_ok());
        o.power_cut();
        let t = o.tick();
        assert!(o.check(0, 1 << 50, t).is_ok());
        // It has chosen.
        assert!(o.check(0, 100, t).is_err());
    }

    #[test]
    fn of_two_writes_that_were_under_way_at_once_a_read_shows_which_was_the_last() {
        let mut o = Oracle::new(100);
        o.submit(1, 0, 1, 1000);
        o.submit(2, 0, 1, 2000);
        o.end(2, true, false);
        let before = o.tick();
        o.end(1, true, false);
        let read = o.tick();
        assert_eq!(o.check(0, 1000, read), Ok(()));
        let later = o.tick();
        assert!(o.check(0, 2000, later).is_err(), "the order is known by now");
        assert_eq!(o.check(0, 2000, before), Ok(()), "this one had begun before");
        o.killed();
        let after = o.tick();
        assert!(o.check(0, 2000, after).is_err(), "nor does it come back by a daemon's death");
        o.power_cut();
        let after = o.tick();
        assert_eq!(o.check(0, 2000, after), Ok(()), "nobody had flushed");
    }

    #[test]
    fn a_flushed_write_survives_a_power_cut_and_an_acknowledged_one_a_daemons_death() {
        let mut o = Oracle::new(1 << 50);
        o.submit(1, 0, 1, 100);
        o.end(1, true, false);
        o.killed();
        let t = o.tick();
        assert!(o.check(0, 1 << 50, t).is_err());
        let t = o.tick();
        o.flushed(t);
        o.power_cut();
        let t = o.tick();
        assert!(o.check(0, 1 << 50, t).is_err() && o.check(0, 100, t).is_ok());
    }

    #[test]
    fn what_was_acknowledged_since_a_flush_began_that_failed_is_the_next_ones() {
        let mut o = Oracle::new(1 << 50);
        o.submit(1, 0, 1, 100);
        o.end(1, true, false);
        let failing = o.tick();
        o.submit(2, 1, 1, 200);
        o.end(2, true, false);
        o.flush_failed(failing);
        let next = o.tick();
        assert_eq!(o.flushed(next), [(1, 1)]);
        o.power_cut();
        let t = o.tick();
        assert!(o.check(0, 1 << 50, t).is_ok() && o.check(1, (1 << 50) + 1, t).is_err() && o.check(1, 200, t).is_ok());
    }

    #[test]
    fn a_write_that_failed_beside_a_flush_of_the_disk_is_promised_by_nobody() {
        // Seed 155819645521: no client's flush had anything acknowledged to fail for, and the next daemon's reads saw what the disk had dropped.
        for fails_after in [true, false] {
            let mut o = Oracle::new(1 << 50);
            o.submit(1, 0, 1, 100);
            if fails_after {
                o.end(1, false, false);
            }
            o.disk_failed();
            o.end(1, false, false);
            o.killed();
            let t = o.tick();
            assert!(o.check(0, 100, t).is_ok());
            let t = o.tick();
            o.flushed(t);
            assert_eq!(o.only(0, true), None);
        }
    }

    #[test]
    fn what_was_read_after_a_death_and_never_flushed_may_be_gone_after_a_power_cut() {
        // Seed 457: a bypass was on its way to the disk when the daemon died, landed in the disk's cache, and was read.
        let mut o = Oracle::new(1 << 50);
        o.submit(1, 0, 1, 100);
        o.killed();
        let t = o.tick();
        assert!(o.check(0, 100, t).is_ok());
        o.power_cut();
        let t = o.tick();
        assert!(o.check(0, 1 << 50, t).is_ok());
    }

    #[test]
    fn a_write_that_failed_has_taken_effect_or_not_once_a_read_has_shown_it() {
        for shown in [1 << 50, 100] {
            let mut o = Oracle::new(1 << 50);
            o.submit(1, 0, 1, 100);
            o.end(1, false, false);
            let beside = o.tick();
            let t = o.tick();
            assert!(o.check(0, shown, t).is_ok());
            let other = (1 << 50) + 100 - shown;
            // Who asked before that was shown may still see the other; after a crash it is open again.
            assert!(o.check(0, other, beside).is_ok());
            let t = o.tick();
            assert!(o.check(0, other, t).is_err() && o.check(0, shown, t).is_ok());
            o.killed();
            let t = o.tick();
            assert!(o.check(0, other, t).is_ok());
        }
    }

    #[test]
    fn what_was_read_after_a_death_stays_through_a_flush_and_a_power_cut() {
        let mut o = Oracle::new(1 << 50);
        o.submit(1, 0, 1, 100);
        o.killed();
        let t = o.tick();
        assert!(o.check(0, 100, t).is_ok());
        let t = o.tick();
        o.flushed(t);
        o.power_cut();
        let t = o.tick();
        assert!(o.check(0, 1 << 50, t).is_err());
    }
}
