//! What was acknowledged, per sector, kept where the daemon's death cannot reach it: in the client's memory.
//!
//! After the daemon died each sector may hold what was acknowledged last, or what a write had begun to put there; once
//! it was read it holds that and nothing else. Everything else is a loss.

use super::pattern::{self, Content, SECTOR, Wrong};
use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::ops::Range;

/// The most findings that are kept; more are only counted.
const KEPT: usize = 8;

/// What a region held before the first write.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Before {
    /// Zeroes: a file that was just made.
    Zeroes,
    /// Nobody knows: a device that was given.
    Unknown,
}

/// A sector that does not hold what it must.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Finding {
    /// Its number on the volume.
    pub sector: u64,
    /// The last write that was acknowledged there; 0: none.
    pub acknowledged: u32,
    /// What is there.
    pub found: Found,
}

/// What is in place of what must be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Found {
    /// A write that is not the last acknowledged, and was not in flight either.
    Write(u64),
    /// Zeroes.
    Zeroes,
    /// What no write put there.
    Wrong(Wrong),
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sector {}: ", self.sector)?;
        match self.acknowledged {
            0 => f.write_str("never written, ")?,
            n => write!(f, "write {n} was acknowledged, ")?,
        }
        match self.found {
            Found::Write(n) => write!(f, "but it holds write {n}"),
            Found::Zeroes => f.write_str("but it holds zeroes"),
            Found::Wrong(wrong) => write!(f, "but it holds {wrong}"),
        }
    }
}

/// The outcome of a check.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct Verdict {
    /// Sectors looked at.
    pub sectors: u64,
    /// Of these, the ones whose last write was acknowledged.
    pub acknowledged: u64,
    /// Of these, the ones that a write in flight had reached.
    pub from_in_flight: u64,
    /// Sectors that are wrong.
    pub wrong: u64,
    /// The first of them.
    pub findings: Vec<Finding>,
}

impl Verdict {
    /// Adds another part.
    pub fn add(&mut self, other: Verdict) {
        self.sectors += other.sectors;
        self.acknowledged += other.acknowledged;
        self.from_in_flight += other.from_in_flight;
        self.wrong += other.wrong;
        let room = KEPT.saturating_sub(self.findings.len());
        self.findings.extend(other.findings.into_iter().take(room));
    }

    fn note(&mut self, finding: Finding) {
        self.wrong += 1;
        if self.findings.len() < KEPT {
            self.findings.push(finding);
        }
    }
}

/// The record of one region of a volume. Sectors are numbered on the volume.
pub struct Record {
    region: Range<u64>,
    seed: u64,
    before: Before,
    /// By sector of the region: the last acknowledged write; 0: none.
    acknowledged: Vec<u32>,
    in_flight: HashMap<u32, Range<u64>>,
    /// Sectors that writes without an answer may have reached, and which writes.
    perhaps: BTreeMap<u64, Vec<u32>>,
    writes: u32,
}

impl Record {
    /// Nothing written yet.
    pub fn new(region: Range<u64>, seed: u64, before: Before) -> Record {
        let acknowledged = vec![0; (region.end - region.start) as usize];
        Record { region, seed, before, acknowledged, in_flight: HashMap::new(), perhaps: BTreeMap::new(), writes: 0 }
    }

    /// The region, in sectors.
    pub fn region(&self) -> Range<u64> {
        self.region.clone()
    }

    /// A write is about to be sent: fills its data and returns its number. It overlaps no other in flight, or nobody
    /// could say which of them comes last.
    pub fn begin(&mut self, sector: u64, data: &mut [u8]) -> u32 {
        let range = sector..sector + (data.len() / SECTOR) as u64;
        debug_assert!(self.in_flight.values().all(|other| other.end <= range.start || range.end <= other.start));
        self.writes += 1;
        pattern::fill(data, self.seed, sector, u64::from(self.writes));
        self.in_flight.insert(self.writes, range);
        self.writes
    }

    /// A write was acknowledged.
    pub fn acknowledge(&mut self, write: u32) {
        let Some(range) = self.in_flight.remove(&write) else { return };
        let indices = self.index(range.start)..self.index(range.end);
        self.acknowledged[indices].fill(write);
        if !self.perhaps.is_empty() {
            self.perhaps.retain(|sector, _| !range.contains(sector));
        }
    }

    /// The connection is gone: what is in flight may or may not have happened, sector by sector.
    pub fn lost_connection(&mut self) {
        for (write, range) in self.in_flight.drain() {
            for sector in range {
                self.perhaps.entry(sector).or_default().push(write);
            }
        }
    }

    /// Looks at data that was read from `sector` on, and holds the sectors to it from now on.
    pub fn check(&mut self, sector: u64, data: &[u8]) -> Verdict {
        let mut verdict = Verdict::default();
        for (sector, bytes) in (sector..).zip(data.chunks_exact(SECTOR)) {
            verdict.sectors += 1;
            let index = self.index(sector);
            let acknowledged = self.acknowledged[index];
            verdict.acknowledged += u64::from(acknowledged != 0);
            let perhaps = if self.perhaps.is_empty() { None } else { self.perhaps.remove(&sector) };
            let content = pattern::look(bytes, self.seed, sector);
            let found = match content {
                Content::Write(n) if n == u64::from(acknowledged) => continue,
                Content::Write(n) => match perhaps.into_iter().flatten().find(|write| u64::from(*write) == n) {
                    Some(write) => {
                        verdict.from_in_flight += 1;
                        self.acknowledged[index] = write;
                        continue;
                    }
                    None => Found::Write(n),
                },
                _ if acknowledged == 0 && self.before == Before::Unknown => continue,
                Content::Zeroes if acknowledged == 0 => continue,
                Content::Zeroes => Found::Zeroes,
                Content::Wrong(wrong) => Found::Wrong(wrong),
            };
            verdict.note(Finding { sector, acknowledged, found });
        }
        verdict
    }

    fn index(&self, sector: u64) -> usize {
        (sector - self.region.start) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: u64 = 1000;

    /// A region of 64 sectors on a device that does as it is told.
    struct World {
        record: Record,
        device: Vec<u8>,
    }

    impl World {
        fn new(before: Before) -> World {
            World { record: Record::new(START..START + 64, 42, before), device: vec![0; 64 * SECTOR] }
        }

        fn begin(&mut self, sector: u64, sectors: usize) -> (u32, Vec<u8>) {
            let mut data = vec![0; sectors * SECTOR];
            (self.record.begin(START + sector, &mut data), data)
        }

        fn put(&mut self, sector: usize, data: &[u8]) {
            self.device[sector * SECTOR..][..data.len()].copy_from_slice(data);
        }

        fn write(&mut self, sector: u64, sectors: usize) {
            let (write, data) = self.begin(sector, sectors);
            self.put(sector as usize, &data);
            self.record.acknowledge(write);
        }

        fn check(&mut self) -> Verdict {
            self.record.check(START, &self.device)
        }
    }

    #[test]
    fn what_was_acknowledged_and_is_there_passes() {
        let mut world = World::new(Before::Zeroes);
        world.write(0, 8);
        world.write(4, 8);
        let verdict = world.check();
        assert_eq!((verdict.sectors, verdict.acknowledged, verdict.wrong), (64, 12, 0));
    }

    #[test]
    fn a_lost_write_is_noticed() {
        let mut world = World::new(Before::Zeroes);
        world.write(0, 8);
        let (lost, _) = world.begin(3, 1);
        world.record.acknowledge(lost);
        let (lost, _) = world.begin(20, 1);
        world.record.acknowledge(lost);
        let found: Vec<_> = world.check().findings.iter().map(|it| (it.sector - START, it.found)).collect();
        assert_eq!(found, [(3, Found::Write(1)), (20, Found::Zeroes)]);
    }

    #[test]
    fn in_flight_means_old_or_new_in_each_sector_and_then_for_good() {
        let mut world = World::new(Before::Zeroes);
        world.write(0, 8);
        let (_, data) = world.begin(0, 16);
        world.record.lost_connection();
        world.put(2, &data[2 * SECTOR..6 * SECTOR]);
        let verdict = world.check();
        assert_eq!((verdict.wrong, verdict.from_in_flight), (0, 4));
        assert_eq!(world.check().wrong, 0);
        world.put(6, &data[6 * SECTOR..9 * SECTOR]);
        assert_eq!(world.check().wrong, 3, "what was read once does not change any more");
    }

    #[test]
    fn a_write_of_long_ago_does_not_pass_for_one_in_flight() {
        let mut world = World::new(Before::Zeroes);
        let (first, old) = world.begin(0, 8);
        world.put(0, &old);
        world.record.acknowledge(first);
        world.write(0, 8);
        let _in_flight = world.begin(0, 8);
        world.record.lost_connection();
        world.put(0, &old[..SECTOR]);
        let verdict = world.check();
        assert_eq!((verdict.wrong, verdict.findings[0].found), (1, Found::Write(1)));
    }

    #[test]
    fn torn_and_swapped_sectors_are_noticed() {
        let mut world = World::new(Before::Zeroes);
        world.write(0, 8);
        world.write(8, 8);
        let (_, newer) = world.begin(0, 8);
        world.record.lost_connection();
        let mut torn = world.device[..SECTOR].to_vec();
        torn[128..].copy_from_slice(&newer[128..SECTOR]);
        world.put(0, &torn);
        let swapped = world.device[9 * SECTOR..10 * SECTOR].to_vec();
        world.put(8, &swapped);
        let verdict = world.check();
        let found: Vec<_> = verdict.findings.iter().map(|it| it.found).collect();
        assert_eq!(found, [Found::Wrong(Wrong::Torn), Found::Wrong(Wrong::Swapped(START + 9))]);
    }

    #[test]
    fn what_was_there_before_counts_only_where_it_is_known() {
        for (before, wrong) in [(Before::Zeroes, 1), (Before::Unknown, 0)] {
            let mut world = World::new(before);
            world.put(0, &[0xa5; SECTOR]);
            assert_eq!(world.check().wrong, wrong);
        }
    }
}
