//! A drive's volatile write cache: what was written and not flushed yet lies beside the medium, and a power cut decides what becomes of it.

use crate::hammer::model::Dice;
use std::collections::{BTreeMap, VecDeque};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

/// What a drive tears a write at.
const SECTOR: u64 = 512;
/// Changes longer than this are torn into a head and a rest only: zeroes may have gigabytes.
const TORN_BY_SECTORS: u64 = 4 << 20;

/// Where flushed data is.
pub trait Medium {
    /// Fills `buf` from `offset` on.
    fn read(&self, offset: u64, buf: &mut [u8]) -> io::Result<()>;
    /// Puts `data` to `offset`.
    fn write(&mut self, offset: u64, data: &[u8]) -> io::Result<()>;
    /// Makes a range zeroes.
    fn zero(&mut self, offset: u64, len: u64) -> io::Result<()>;
}

impl Medium for File {
    fn read(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.read_exact_at(buf, offset)
    }

    fn write(&mut self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.write_all_at(data, offset)
    }

    fn zero(&mut self, offset: u64, len: u64) -> io::Result<()> {
        use rustix::fs::{FallocateFlags, fallocate};
        Ok(fallocate(&*self, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, offset, len)?)
    }
}

/// What a change puts there.
pub enum Content {
    /// These bytes.
    Data(Vec<u8>),
    /// So many zeroes.
    Zeroes(u64),
}

impl Content {
    fn len(&self) -> u64 {
        match self {
            Content::Data(data) => data.len() as u64,
            Content::Zeroes(len) => *len,
        }
    }

    /// What it takes to keep it.
    fn weight(&self) -> u64 {
        match self {
            Content::Data(data) => data.len() as u64,
            Content::Zeroes(_) => 0,
        }
    }
}

struct Change {
    offset: u64,
    content: Content,
    /// By forced unit access: a cut leaves it alone.
    durable: bool,
}

/// What a power cut did to the changes that were not flushed.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Cut {
    /// On the medium, whole.
    pub kept: u64,
    /// Never happened.
    pub dropped: u64,
    /// On the medium in part.
    pub torn: u64,
}

/// A medium, and what is not on it yet.
pub struct Cache<M> {
    medium: M,
    /// In order of arrival.
    pending: VecDeque<Change>,
    /// The number of the first of them.
    first: u64,
    /// Which change is the newest where: its end and its number, by where it begins. They do not overlap.
    newest: BTreeMap<u64, (u64, u64)>,
    /// Bytes of data kept.
    bytes: u64,
    /// When there are more, the oldest go to the medium, as a drive's cache is not without end.
    limits: (u64, usize),
}

impl<M: Medium> Cache<M> {
    /// Nothing is pending; at most so many bytes and changes will be.
    pub fn new(medium: M, bytes: u64, changes: usize) -> Cache<M> {
        let (pending, newest) = (VecDeque::new(), BTreeMap::new());
        Cache { medium, pending, first: 0, newest, bytes: 0, limits: (bytes, changes) }
    }

    /// Where flushed data is.
    pub fn medium(&self) -> &M {
        &self.medium
    }

    /// What the range reads as while the power is on.
    pub fn read(&self, offset: u64, len: u64) -> io::Result<Vec<u8>> {
        let mut buf = vec![0; len as usize];
        let end = offset + len;
        // A read of what was just written, which is most of them, does without the medium.
        let whole = self.newest.range(..=offset).next_back().is_some_and(|(_, (until, _))| *until >= end);
        if !whole {
            self.medium.read(offset, &mut buf)?;
        }
        let from = self.newest.range(..=offset).next_back().map_or(offset, |(start, _)| *start);
        for (&start, &(until, number)) in self.newest.range(from..end) {
            let (a, b) = (start.max(offset), until.min(end));
            if a >= b {
                continue;
            }
            let into = &mut buf[(a - offset) as usize..(b - offset) as usize];
            let change = &self.pending[(number - self.first) as usize];
            match &change.content {
                Content::Data(data) => into.copy_from_slice(&data[(a - change.offset) as usize..(b - change.offset) as usize]),
                Content::Zeroes(_) => into.fill(0),
            }
        }
        Ok(buf)
    }

    /// Takes a change in.
    pub fn write(&mut self, offset: u64, content: Content, durable: bool) -> io::Result<()> {
        let (len, number) = (content.len(), self.next());
        if len == 0 {
            return Ok(());
        }
        self.uncover(offset, offset + len);
        self.newest.insert(offset, (offset + len, number));
        self.bytes += content.weight();
        self.pending.push_back(Change { offset, content, durable });
        while self.bytes > self.limits.0 || self.pending.len() > self.limits.1 {
            self.settle_oldest()?;
        }
        Ok(())
    }

    /// The number of the next change: a flush that arrives now covers all below it.
    pub fn next(&self) -> u64 {
        self.first + self.pending.len() as u64
    }

    /// Makes all changes below this number durable.
    pub fn flush(&mut self, below: u64) -> io::Result<()> {
        while self.first < below && !self.pending.is_empty() {
            self.settle_oldest()?;
        }
        Ok(())
    }

    /// The power fails: what is pending is kept, dropped or torn, as the dice say.
    pub fn cut(&mut self, dice: &mut Dice) -> io::Result<Cut> {
        // Two drives in five are of one mind: all or nothing. Those are the extremes, which single draws never give.
        let mind = dice.below(5);
        let mut cut = Cut::default();
        self.newest.clear();
        self.bytes = 0;
        self.first = self.next();
        for change in std::mem::take(&mut self.pending) {
            let fate = if change.durable { 0 } else { [0, 3, 6, 6, 6][mind as usize] };
            match if fate == 6 { dice.below(6) } else { fate } {
                0..3 => {
                    cut.kept += 1;
                    self.put(&change)?;
                }
                3..5 => cut.dropped += 1,
                _ => {
                    cut.torn += 1;
                    self.tear(&change, dice)?;
                }
            }
        }
        Ok(cut)
    }

    /// Some sectors of a change reach the medium.
    fn tear(&mut self, change: &Change, dice: &mut Dice) -> io::Result<()> {
        let sectors = change.content.len() / SECTOR;
        if change.content.len() > TORN_BY_SECTORS {
            return self.put_part(change, 0, dice.below(sectors) * SECTOR);
        }
        for sector in 0..sectors {
            if dice.below(2) == 0 {
                self.put_part(change, sector * SECTOR, SECTOR)?;
            }
        }
        Ok(())
    }

    fn put(&mut self, change: &Change) -> io::Result<()> {
        self.put_part(change, 0, change.content.len())
    }

    fn put_part(&mut self, change: &Change, at: u64, len: u64) -> io::Result<()> {
        match &change.content {
            _ if len == 0 => Ok(()),
            Content::Data(data) => self.medium.write(change.offset + at, &data[at as usize..(at + len) as usize]),
            Content::Zeroes(_) => self.medium.zero(change.offset + at, len),
        }
    }

    fn settle_oldest(&mut self) -> io::Result<()> {
        let Some(change) = self.pending.front() else { return Ok(()) };
        let (offset, end) = (change.offset, change.offset + change.content.len());
        // Of a change that fails here nothing is forgotten: it is tried again with the next flush.
        match &change.content {
            Content::Data(data) => self.medium.write(offset, data)?,
            Content::Zeroes(len) => self.medium.zero(offset, *len)?,
        }
        self.bytes -= change.content.weight();
        let number = self.first;
        // Where it is still the newest, the medium has it now. Extents of one change lie within it.
        let covered: Vec<u64> =
            self.newest.range(offset..end).filter(|(_, (_, it))| *it == number).map(|(start, _)| *start).collect();
        for start in covered {
            self.newest.remove(&start);
        }
        self.pending.pop_front();
        self.first += 1;
        Ok(())
    }

    /// Forgets who is the newest in a range.
    fn uncover(&mut self, offset: u64, end: u64) {
        let from = self.newest.range(..=offset).next_back().map_or(offset, |(start, _)| *start);
        let met: Vec<(u64, u64, u64)> =
            self.newest.range(from..end).filter(|(_, (until, _))| *until > offset).map(|(a, (b, n))| (*a, *b, *n)).collect();
        for (start, until, number) in met {
            self.newest.remove(&start);
            if start < offset {
                self.newest.insert(start, (offset, number));
            }
            if until > end {
                self.newest.insert(end, (until, number));
            }
        }
    }
}

#[cfg(test)]
#[path = "cache_tests.rs"]
mod tests;
