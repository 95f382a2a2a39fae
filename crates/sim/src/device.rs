//! A simulated device: what reads see, what is durable, and what is in between.
//!
//! A write becomes visible when it completes and durable when a flush that was submitted after that completes. At a
//! power cut each sector of what is in between takes its own chance; so does each sector of a write still in flight.

use crate::buf::{Cell, SimBuf};
use crate::rng::Rng;
use crate::sickness::Sickness;
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::rc::Rc;

/// Sectors of a chunk of an image.
const CHUNK: u64 = 64;

/// A hasher for numbers: fast, and the same in every run.
#[derive(Default)]
pub struct NumberHasher(u64);

impl Hasher for NumberHasher {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, bytes: &[u8]) {
        for b in bytes {
            self.write_u64(u64::from(*b));
        }
    }
    fn write_u64(&mut self, n: u64) {
        self.0 = (self.0 ^ n).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
    }
}

/// A map keyed by numbers.
pub type NumberMap<V> = HashMap<u64, V, BuildHasherDefault<NumberHasher>>;

#[derive(Clone)]
enum Chunk {
    /// Sector i has the stamp `base + i`.
    Run(u64),
    /// Shared between images that were cloned from one, until one of them is written.
    Cells(Rc<[Cell; CHUNK as usize]>),
}

/// The content of a device. What was never written is `base + sector`, or zeroes where there is no base.
#[derive(Clone, Default)]
pub struct Image {
    chunks: NumberMap<Chunk>,
    base: Option<u64>,
}

impl Image {
    /// An image whose sector n holds the stamp `base + n` until it is written.
    #[must_use]
    pub fn based(base: Option<u64>) -> Self {
        Self { chunks: NumberMap::default(), base }
    }

    /// The cell of a sector.
    #[must_use]
    pub fn get(&self, sector: u64) -> Cell {
        match self.chunks.get(&(sector / CHUNK)) {
            Some(Chunk::Run(base)) => Cell::Stamp(base + sector % CHUNK),
            Some(Chunk::Cells(cells)) => cells[(sector % CHUNK) as usize].clone(),
            None => self.base.map_or(Cell::ZERO, |b| Cell::Stamp(b + sector)),
        }
    }

    /// Puts a cell into a sector.
    pub fn set(&mut self, sector: u64, cell: Cell) {
        let n = sector / CHUNK;
        let base = self.base;
        let chunk = self.chunks.entry(n).or_insert_with(|| match base {
            Some(b) => Chunk::Run(b + n * CHUNK),
            None => Chunk::Cells(Rc::new(std::array::from_fn(|_| Cell::ZERO))),
        });
        if let Chunk::Run(base) = chunk {
            let base = *base;
            *chunk = Chunk::Cells(Rc::new(std::array::from_fn(|i| Cell::Stamp(base + i as u64))));
        }
        if let Chunk::Cells(cells) = chunk {
            Rc::make_mut(cells)[(sector % CHUNK) as usize] = cell;
        }
    }

    /// Sectors that are not what was there at first, in no order.
    pub fn changed(&self) -> impl Iterator<Item = u64> {
        let all = self.chunks.keys().flat_map(|n| n * CHUNK..(n + 1) * CHUNK);
        all.filter(|s| self.fingerprint_of(*s, &self.get(*s)) != 0)
    }

    /// Writes a buffer.
    pub fn write(&mut self, sector: u64, buf: &SimBuf) {
        let mut at = 0;
        while at < buf.sectors() {
            let s = sector + at as u64;
            // Whole chunks of one write stay one number: a terabyte of streams fits.
            if s.is_multiple_of(CHUNK)
                && buf.sectors() - at >= CHUNK as usize
                && let Some(run) = buf.run()
            {
                self.chunks.insert(s / CHUNK, Chunk::Run(run + at as u64));
                at += CHUNK as usize;
            } else {
                self.set(s, buf.cell(at));
                at += 1;
            }
        }
    }

    /// A number for all that is on it, the same for equal content however it came about: the sum of all its sectors'.
    #[must_use]
    pub fn fingerprint(&self) -> u64 {
        let cells = |n: u64, c: &Chunk| match c {
            Chunk::Run(base) => (n * CHUNK..)
                .zip(*base..base + CHUNK)
                .map(|(s, c)| self.fingerprint_of(s, &Cell::Stamp(c)))
                .fold(0, u64::wrapping_add),
            Chunk::Cells(cells) => {
                (n * CHUNK..).zip(cells.iter()).map(|(s, c)| self.fingerprint_of(s, c)).fold(0, u64::wrapping_add)
            }
        };
        self.chunks.iter().map(|(n, c)| cells(*n, c)).fold(0, u64::wrapping_add)
    }

    /// What a cell adds to the fingerprint in a sector: nothing, where it is what was there at first.
    #[must_use]
    pub fn fingerprint_of(&self, sector: u64, cell: &Cell) -> u64 {
        let first = self.base.map_or(0, |b| b + sector);
        if cell.stamp() == Some(first) { 0 } else { cell.fingerprint_at(sector) }
    }

    /// Reads a run of sectors.
    #[must_use]
    pub fn read(&self, sector: u64, sectors: usize) -> SimBuf {
        if sector % CHUNK + sectors as u64 <= CHUNK {
            match self.chunks.get(&(sector / CHUNK)) {
                Some(Chunk::Run(base)) => return SimBuf::stamps(base + sector % CHUNK, sectors),
                None if self.base.is_none() => return headpond_engine::Buf::zeroes(sectors * 512),
                _ => {}
            }
        }
        SimBuf::cells((0..sectors as u64).map(|n| self.get(sector + n)).collect())
    }
}

/// A write that is visible and not durable yet.
#[derive(Clone)]
struct Cached {
    sequence: u64,
    sector: u64,
    buf: SimBuf,
}

/// How a device treats what is not flushed at a power cut.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Cut {
    /// All of it is gone.
    LoseAll,
    /// All of it is there.
    KeepAll,
    /// Each write is there or not.
    ByWrite,
    /// Each sector is there or not.
    BySector,
}

impl Cut {
    /// Whether the next sector of a write is kept; `whole` is what was drawn for the write.
    fn keeps(self, whole: bool, rng: &mut Rng) -> bool {
        match self {
            Cut::LoseAll => false,
            Cut::KeepAll => true,
            Cut::ByWrite => whole,
            Cut::BySector => rng.one_in(2),
        }
    }
}

/// A simulated device.
#[derive(Clone)]
pub struct SimDevice {
    /// What reads see.
    pub visible: Image,
    /// What a power cut leaves at the least; tracked only where [`SimDevice::tracked`].
    pub durable: Image,
    cache: Vec<Cached>,
    sequence: u64,
    /// Size in bytes.
    pub size: u64,
    /// Completed writes survive power cuts: power-loss protection.
    pub protected: bool,
    /// All operations fail.
    pub dead: bool,
    /// What is durable is tracked. Off for runs without power cuts, where it would only take memory.
    pub tracked: bool,
    /// Sectors that cannot be read until they are written again.
    pub bad: NumberMap<()>,
    /// Sectors that can neither be read nor written any more.
    pub dead_sectors: NumberMap<()>,
    /// Writes fail once in so many; 0 never. Of a failed write each sector is old or new.
    pub fail_writes: u64,
    /// Reads fail once in so many; 0 never.
    pub fail_reads: u64,
    /// Flushes fail once in so many; 0 never. What they should have covered is not made durable by any later one.
    pub fail_flushes: u64,
    /// A flush of it has failed since the power went last: what it covered may be visible, and is not durable.
    pub failed_a_flush: bool,
    /// Operations never end, until this is over.
    pub hangs: bool,
    /// Each operation takes so many times as long as another device's, where times are random.
    pub slowness: u64,
    /// What else is wrong with it.
    pub sickness: Sickness,
    /// Bytes written.
    pub written: u64,
    /// Bytes read.
    pub read: u64,
    /// Flushes done.
    pub flushes: u64,
}

impl SimDevice {
    /// A device of `size` bytes, with `base` as in [`Image::based`].
    #[must_use]
    pub fn new(size: u64, base: Option<u64>) -> Self {
        Self {
            visible: Image::based(base),
            durable: Image::based(base),
            cache: Vec::new(),
            sequence: 0,
            size,
            protected: false,
            dead: false,
            tracked: true,
            bad: NumberMap::default(),
            dead_sectors: NumberMap::default(),
            fail_writes: 0,
            fail_reads: 0,
            fail_flushes: 0,
            failed_a_flush: false,
            hangs: false,
            slowness: 1,
            sickness: Sickness::default(),
            written: 0,
            read: 0,
            flushes: 0,
        }
    }

    /// The same device, so many times as slow.
    #[must_use]
    pub fn slower(self, slowness: u64) -> Self {
        Self { slowness, ..self }
    }

    /// A write completes.
    pub fn write(&mut self, sector: u64, buf: SimBuf) {
        self.written += buf.sectors() as u64 * 512;
        self.visible.write(sector, &buf);
        if !self.bad.is_empty() {
            for s in sector..sector + buf.sectors() as u64 {
                self.bad.remove(&s);
            }
        }
        if self.tracked {
            self.sequence += 1;
            self.cache.push(Cached { sequence: self.sequence, sector, buf });
            if self.protected {
                self.flushed(self.sequence);
            }
        }
    }

    /// A write completes that is durable then. What is in the cache of the same sectors is older, and goes before it.
    pub fn write_durable(&mut self, sector: u64, buf: SimBuf) {
        let sectors = sector..sector + buf.sectors() as u64;
        let (before, rest) = std::mem::take(&mut self.cache)
            .into_iter()
            .partition(|c: &Cached| c.sector < sectors.end && sectors.start < c.sector + c.buf.sectors() as u64);
        self.cache = rest;
        for c in Vec::from_iter(before) {
            self.durable.write(c.sector, &c.buf);
        }
        self.write(sector, buf);
        if let Some(c) = self.cache.pop() {
            self.durable.write(c.sector, &c.buf);
        }
    }

    /// Sectors of a write in flight get onto the media, each by chance.
    pub fn tear(&mut self, sector: u64, buf: &SimBuf, cut: Cut, rng: &mut Rng) {
        let whole = rng.one_in(2);
        for n in 0..buf.sectors() {
            if cut.keeps(whole, rng) {
                self.visible.set(sector + n as u64, buf.cell(n));
                self.durable.set(sector + n as u64, buf.cell(n));
            }
        }
    }

    /// As [`SimDevice::tear`], without a power cut: what landed is visible, and no more durable than any write.
    pub fn land(&mut self, sector: u64, buf: &SimBuf, cut: Cut, rng: &mut Rng) {
        let whole = rng.one_in(2);
        for n in 0..buf.sectors() {
            if cut.keeps(whole, rng) {
                self.write(sector + n as u64, SimBuf::cells(vec![buf.cell(n)]));
            }
        }
    }

    /// What is visible and not durable yet: the writes in the order in which they completed, each with its first sector.
    pub fn unflushed(&self) -> impl Iterator<Item = (u64, &SimBuf)> {
        self.cache.iter().map(|c| (c.sector, &c.buf))
    }

    /// What a flush that is submitted now will cover.
    #[must_use]
    pub fn flush_mark(&self) -> u64 {
        self.sequence
    }

    /// A flush that was submitted at `mark` has completed.
    pub fn flushed(&mut self, mark: u64) {
        self.flushes += 1;
        let keep = self.cache.iter().position(|c| c.sequence > mark).unwrap_or(self.cache.len());
        for c in self.cache.drain(..keep) {
            self.durable.write(c.sector, &c.buf);
        }
    }

    /// A flush has failed: what is in the cache, also what came after the flush was submitted, may be gone from there, and
    /// stays visible until the power goes. A later flush that ends well says nothing of it.
    pub fn flush_failed(&mut self, rng: &mut Rng) {
        self.failed_a_flush = true;
        for c in std::mem::take(&mut self.cache) {
            if rng.one_in(2) {
                self.durable.write(c.sector, &c.buf);
            }
        }
    }

    /// The power goes: of what was not flushed, each device keeps its own part.
    pub fn cut_power(&mut self, cut: Cut, rng: &mut Rng) {
        for c in std::mem::take(&mut self.cache) {
            let whole = rng.one_in(2);
            for n in 0..c.buf.sectors() {
                if cut.keeps(whole, rng) {
                    self.durable.set(c.sector + n as u64, c.buf.cell(n));
                }
            }
        }
        self.visible = self.durable.clone();
        self.failed_a_flush = false;
    }

    /// Whether every sector of a range can be read.
    #[must_use]
    pub fn readable(&self, sector: u64, sectors: u64) -> bool {
        (self.bad.is_empty() || (sector..sector + sectors).all(|s| !self.bad.contains_key(&s)))
            && !self.touches_dead(sector, sectors)
    }

    /// Whether a range has a sector that can neither be read nor written.
    #[must_use]
    pub fn touches_dead(&self, sector: u64, sectors: u64) -> bool {
        !self.dead_sectors.is_empty() && (sector..sector + sectors).any(|s| self.dead_sectors.contains_key(&s))
    }
}
