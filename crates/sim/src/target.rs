//! What clients' requests are sent to: a disk as it is, or a world with an engine before the same disk.

use crate::models::{Access, Kind, TimingModel};
use crate::world::{Violation, World};

/// A client's request, in sectors of 512 bytes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Ask {
    /// Read a range.
    Read {
        /// First sector.
        sector: u64,
        /// Sectors, at least one.
        sectors: u64,
    },
    /// Write a range.
    Write {
        /// First sector.
        sector: u64,
        /// Sectors, at least one.
        sectors: u64,
    },
    /// All that was acknowledged before is durable after it.
    Flush,
}

/// The end of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Answer {
    /// The request.
    pub id: u64,
    /// How long it took, in nanoseconds.
    pub took_ns: u64,
    /// It failed.
    pub failed: bool,
}

/// Something that takes requests, in virtual time.
pub trait Target {
    /// The time, in nanoseconds.
    fn now(&self) -> u64;
    /// Sends a request to a volume; its number.
    fn send(&mut self, volume: u16, ask: Ask) -> u64;
    /// Lets the next thing happen, unless that is after `limit`: then time passes to `limit`, and it is `false`. As long as there
    /// are answers that were not taken, nothing else need happen.
    ///
    /// # Errors
    /// Something happened that must never happen.
    fn step(&mut self, limit: u64) -> Result<bool, Violation>;
    /// Requests that have ended since this was last asked.
    fn answers(&mut self) -> Vec<Answer>;
}

/// Disks that requests go to as they are: what pass-through is, at no cost.
pub struct Bare {
    disks: Vec<Box<dyn TimingModel>>,
    now: u64,
    sent: Vec<u64>,
    done: Vec<u64>,
    ended: Vec<Answer>,
}

impl Bare {
    /// One disk at rest.
    #[must_use]
    pub fn new(disk: impl TimingModel + 'static) -> Self {
        Self::over(vec![Box::new(disk)])
    }

    /// Disks at rest, one for each volume.
    #[must_use]
    pub fn over(disks: Vec<Box<dyn TimingModel>>) -> Self {
        Self { disks, now: 0, sent: Vec::new(), done: Vec::new(), ended: Vec::new() }
    }

    fn to(&mut self, at: u64) {
        self.now = self.now.max(at);
        for disk in &mut self.disks {
            disk.advance(self.now, &mut self.done);
        }
        for id in self.done.drain(..) {
            self.ended.push(Answer { id, took_ns: self.now - self.sent[id as usize], failed: false });
        }
    }
}

impl Target for Bare {
    fn now(&self) -> u64 {
        self.now
    }
    fn send(&mut self, volume: u16, ask: Ask) -> u64 {
        let id = self.sent.len() as u64;
        self.sent.push(self.now);
        let access = match ask {
            Ask::Read { sector, sectors } => Access { kind: Kind::Read, offset: sector * 512, len: sectors * 512 },
            Ask::Write { sector, sectors } => Access { kind: Kind::Write, offset: sector * 512, len: sectors * 512 },
            Ask::Flush => Access::flush(),
        };
        self.disks[usize::from(volume)].submit(self.now, id, access);
        id
    }
    fn step(&mut self, limit: u64) -> Result<bool, Violation> {
        match self.disks.iter().filter_map(|d| d.next_completion()).min().filter(|at| *at <= limit) {
            Some(at) => self.to(at),
            None if limit == u64::MAX => return Err(Violation("the disk forgot a request".into())),
            None => {
                self.to(limit);
                return Ok(false);
            }
        }
        Ok(true)
    }
    fn answers(&mut self) -> Vec<Answer> {
        std::mem::take(&mut self.ended)
    }
}

impl Target for World {
    fn now(&self) -> u64 {
        self.now
    }
    fn send(&mut self, volume: u16, ask: Ask) -> u64 {
        match ask {
            Ask::Read { sector, sectors } => self.read(volume, sector, sectors as u32),
            Ask::Write { sector, sectors } => self.write(volume, sector, sectors, false),
            Ask::Flush => self.flush(volume),
        }
    }
    fn step(&mut self, limit: u64) -> Result<bool, Violation> {
        let happened = match self.next_time() {
            // Answered at once, from memory: who asked may ask again before anything else happens.
            _ if self.any_ended() => true,
            Some(at) if at <= limit => World::step(self),
            None if limit == u64::MAX => return Err(Violation("nothing can happen any more".into())),
            _ => {
                self.run_until(limit);
                false
            }
        };
        self.violation.take().map_or(Ok(happened), Err)
    }
    fn answers(&mut self) -> Vec<Answer> {
        self.take_ended().into_iter().map(|e| Answer { id: e.id, took_ns: e.took, failed: e.error.is_some() }).collect()
    }
}
