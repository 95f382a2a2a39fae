//! What processes do: streams over files, random requests within files.

use super::drive::{Script, Turn};
use super::front::Call;
use crate::rng::Rng;
use crate::target::Ask;
use std::cell::RefCell;
use std::rc::Rc;

/// Space of a volume that is given out in the order in which it is asked for, as allocators do for files that are written at one time.
#[derive(Debug, Default)]
pub struct Given {
    /// The pieces of each file, by number in the space.
    pieces: Vec<Vec<u64>>,
    next: u64,
}

/// A file on a volume, in pieces among those of others that were written at the same time.
#[derive(Clone, Debug)]
pub struct File {
    /// The volume.
    pub volume: u16,
    /// Where the files' space begins, in bytes.
    pub start: u64,
    /// Bytes of a piece; zero: the file is one piece.
    pub extent: u64,
    /// Which of the files it is.
    pub number: u64,
    /// How many files there are.
    pub of: u64,
    /// Its length in bytes.
    pub bytes: u64,
    /// Pieces are given out as they are written; none: they went round the files in turn.
    given: Option<Rc<RefCell<Given>>>,
}

impl File {
    /// Where a byte of it is on the volume.
    #[must_use]
    pub fn at(&self, offset: u64) -> u64 {
        let Some(piece) = offset.checked_div(self.extent) else { return self.start + self.number * self.bytes + offset };
        let place = match &self.given {
            None => piece * self.of + self.number,
            Some(given) => {
                let Given { pieces, next } = &mut *given.borrow_mut();
                let mine = &mut pieces[self.number as usize];
                while mine.len() as u64 <= piece {
                    mine.push(*next);
                    *next += 1;
                }
                mine[piece as usize]
            }
        };
        self.start + place * self.extent + offset % self.extent
    }

    /// Equal files of the given number, in a space that begins at `start`, their pieces in turn; with `extent` zero each is one piece.
    #[must_use]
    pub fn several(volume: u16, start: u64, extent: u64, of: u64, bytes: u64) -> Vec<File> {
        (0..of).map(|number| File { volume, start, extent, number, of, bytes, given: None }).collect()
    }

    /// As [`File::several`], for files that are being written: each piece is the next free one when its writer comes to it.
    #[must_use]
    pub fn growing(volume: u16, start: u64, extent: u64, of: u64, bytes: u64) -> Vec<File> {
        let given = Rc::new(RefCell::new(Given { pieces: vec![Vec::new(); of as usize], next: 0 }));
        (0..of).map(|number| File { volume, start, extent, number, of, bytes, given: Some(given.clone()) }).collect()
    }

    /// The first byte after the files' space.
    #[must_use]
    pub fn end(&self) -> u64 {
        self.start + self.of * self.bytes
    }
}

/// Reads or writes a file from the beginning to the end, and again.
#[derive(Clone, Debug)]
pub struct Stream {
    file: File,
    writes: bool,
    size: u64,
    skew: u64,
    at: u64,
}

impl Stream {
    /// Requests of `size` bytes, for ever.
    #[must_use]
    pub fn new(file: File, writes: bool, size: u64) -> Self {
        Self { file, writes, size, skew: 0, at: 0 }
    }

    /// It begins so many bytes into the file.
    #[must_use]
    pub fn from(mut self, at: u64) -> Self {
        self.at = at;
        self
    }

    /// Requests begin so many bytes past multiples of their size.
    #[must_use]
    pub fn skewed(mut self, bytes: u64) -> Self {
        self.skew = bytes;
        self
    }
}

fn ask(writes: bool, at: u64, bytes: u64) -> Ask {
    let (sector, sectors) = (at / 512, bytes / 512);
    if writes { Ask::Write { sector, sectors } } else { Ask::Read { sector, sectors } }
}

impl Script for Stream {
    fn next(&mut self, _lane: usize) -> Option<Turn> {
        if self.at + self.size + self.skew > self.file.bytes {
            self.at = 0;
        }
        let call = Call::Block(self.file.volume, ask(self.writes, self.file.at(self.at) + self.skew, self.size));
        self.at += self.size;
        Some(Turn { think_ns: 0, call, ends: Some(self.size) })
    }
}

/// Requests of one size, anywhere in a file.
#[derive(Clone, Debug)]
pub struct Random {
    file: File,
    size: u64,
    skew: u64,
    /// How many of a hundred read.
    reads: u64,
    /// A write is done when it is durable: stable writes of NFS, or each followed by a flush.
    durable: bool,
    rng: Rng,
}

impl Random {
    /// Requests of `size` bytes of which `reads` of a hundred read.
    #[must_use]
    pub fn new(file: File, size: u64, reads: u64, seed: u64) -> Self {
        Self { file, size, skew: 0, reads, durable: false, rng: Rng::new(seed) }
    }

    /// Each write is followed by a flush, and done after it.
    #[must_use]
    pub fn durable(mut self) -> Self {
        self.durable = true;
        self
    }

    /// Requests begin so many bytes past multiples of their size.
    #[must_use]
    pub fn skewed(mut self, bytes: u64) -> Self {
        self.skew = bytes;
        self
    }
}

impl Script for Random {
    fn next(&mut self, _lane: usize) -> Option<Turn> {
        let places = (self.file.bytes - self.skew) / self.size;
        let at = self.file.at(self.rng.below(places) * self.size) + self.skew;
        let writes = self.rng.below(100) >= self.reads;
        let ask = ask(writes, at, self.size);
        let volume = self.file.volume;
        let call = if writes && self.durable { Call::Stable(volume, ask) } else { Call::Block(volume, ask) };
        Some(Turn { think_ns: 0, call, ends: Some(self.size) })
    }
}
