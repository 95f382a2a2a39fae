//! Buffers of the simulator: client data is a stamp for each sector (who wrote it), metadata is bytes.

use headpond_engine::Buf;
use headpond_engine::format::checksum;
use std::borrow::Cow;
use std::cell::{Cell as Flag, RefCell};
use std::ops::Range;
use std::rc::Rc;

/// What a sector holds.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Cell {
    /// Client data, named by a number; 0 is zeroes.
    Stamp(u64),
    /// Bytes that the engine wrote for itself.
    Bytes(Rc<[u8; 512]>),
}

impl Cell {
    /// A sector of zeroes.
    pub const ZERO: Cell = Cell::Stamp(0);
    /// The stamp, if it is one.
    #[must_use]
    pub fn stamp(&self) -> Option<u64> {
        match self {
            Cell::Stamp(s) => Some(*s),
            Cell::Bytes(_) => None,
        }
    }
    /// A number for this content in this sector.
    #[must_use]
    pub fn fingerprint_at(&self, sector: u64) -> u64 {
        let h = (self.hash() ^ sector.wrapping_mul(0xd6e8_feb8_6659_fd93)).wrapping_mul(0xff51_afd7_ed55_8ccd);
        (h ^ h >> 32).wrapping_mul(0xc4ce_b9fe_1a85_ec53)
    }
    fn hash(&self) -> u64 {
        match self {
            Cell::Stamp(s) => s.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ s >> 29,
            Cell::Bytes(b) => checksum(1, &b[..]),
        }
    }
}

#[derive(Clone, Debug)]
enum Cells {
    /// Sector i has the stamp `base + i`.
    Run(u64),
    Zeroes,
    List(Rc<[Cell]>),
    /// A client's memory.
    Lent(Rc<Lent>),
}

/// A client's memory, lent with a request. Who uses it otherwise than [`Buf::owned`] allows panics, and so does who uses it when the client
/// has it back.
#[derive(Debug)]
struct Lent {
    cells: RefCell<Vec<Cell>>,
    is_over: Flag<bool>,
}

/// A run of sectors.
#[derive(Clone, Debug)]
pub struct SimBuf {
    cells: Cells,
    start: usize,
    sectors: usize,
}

impl SimBuf {
    /// Sectors with the stamps `base`, `base + 1` and so on.
    #[must_use]
    pub fn stamps(base: u64, sectors: usize) -> Self {
        Self { cells: Cells::Run(base), start: 0, sectors }
    }
    /// Sectors with these cells.
    #[must_use]
    pub fn cells(cells: Vec<Cell>) -> Self {
        Self { sectors: cells.len(), cells: Cells::List(cells.into()), start: 0 }
    }
    /// A client's memory with these cells.
    #[must_use]
    pub fn lent(cells: Vec<Cell>) -> Self {
        let sectors = cells.len();
        let lent = Lent { cells: RefCell::new(cells), is_over: Flag::new(false) };
        Self { cells: Cells::Lent(Rc::new(lent)), start: 0, sectors }
    }
    fn lender(&self) -> Option<&Rc<Lent>> {
        match &self.cells {
            Cells::Lent(lent) => Some(lent),
            _ => None,
        }
    }
    /// Whether it is a client's memory.
    #[must_use]
    pub fn is_lent(&self) -> bool {
        self.lender().is_some()
    }
    /// Whether it is this part of the same client's memory: `from` sectors behind the beginning of `all`.
    #[must_use]
    pub fn is_of(&self, all: &Self, from: usize) -> bool {
        matches!((self.lender(), all.lender()), (Some(a), Some(b)) if Rc::ptr_eq(a, b)) && self.start == all.start + from
    }
    /// Something is read into a client's memory, or the client itself changes it.
    ///
    /// # Panics
    /// It is no client's memory, or the client has it back.
    pub fn fill(&self, data: &Self) {
        let lent = self.lender().expect("a client's memory");
        assert!(!lent.is_over.get(), "the memory of a client is read into who has it back");
        let mut cells = lent.cells.borrow_mut();
        (0..self.sectors).for_each(|n| cells[self.start + n] = data.cell(n));
    }
    /// The client has its memory back.
    pub fn give_back(&self) {
        if let Some(lent) = self.lender() {
            lent.is_over.set(true);
        }
    }
    /// How many sectors.
    #[must_use]
    pub fn sectors(&self) -> usize {
        self.sectors
    }
    /// The cell of a sector.
    #[must_use]
    pub fn cell(&self, n: usize) -> Cell {
        match &self.cells {
            Cells::Run(base) => Cell::Stamp(base + (self.start + n) as u64),
            Cells::Zeroes => Cell::ZERO,
            Cells::List(list) => list[self.start + n].clone(),
            Cells::Lent(lent) => {
                assert!(!lent.is_over.get(), "the memory of a client is used who has it back");
                lent.cells.borrow()[self.start + n].clone()
            }
        }
    }
    fn is_ours(&self, what: &str) {
        assert!(!self.is_lent(), "the memory of a client, which may change, is {what}");
    }
    /// If the sectors have consecutive stamps, the first.
    #[must_use]
    pub fn run(&self) -> Option<u64> {
        match &self.cells {
            Cells::Run(base) => Some(base + self.start as u64),
            _ => None,
        }
    }
}

impl Buf for SimBuf {
    fn from_bytes(bytes: &[u8]) -> Self {
        let cell = |c: &[u8]| {
            if c.iter().all(|b| *b == 0) {
                Cell::ZERO
            } else {
                let mut sector = [0; 512];
                sector[..c.len()].copy_from_slice(c);
                Cell::Bytes(Rc::new(sector))
            }
        };
        Self::cells(bytes.chunks(512).map(cell).collect())
    }
    fn zeroes(len: usize) -> Self {
        Self { cells: Cells::Zeroes, start: 0, sectors: len / 512 }
    }
    fn len(&self) -> usize {
        self.sectors * 512
    }
    fn slice(&self, range: Range<usize>) -> Self {
        assert!(
            range.end <= self.len() && range.start.is_multiple_of(512) && range.end.is_multiple_of(512),
            "slice {range:?} of {}",
            self.len()
        );
        Self { cells: self.cells.clone(), start: self.start + range.start / 512, sectors: (range.end - range.start) / 512 }
    }
    fn checksum(&self, seed: u64) -> u64 {
        self.is_ours("checksummed");
        let mut h = seed ^ 0x2545_f491_4f6c_dd1d;
        for n in 0..self.sectors {
            h = (h.rotate_left(23) ^ self.cell(n).hash()).wrapping_mul(0xff51_afd7_ed55_8ccd);
        }
        h ^ h >> 33
    }
    fn to_bytes(&self) -> Cow<'_, [u8]> {
        self.is_ours("decoded");
        let mut out = vec![0; self.len()];
        for (n, sector) in out.chunks_mut(512).enumerate() {
            match self.cell(n) {
                Cell::Stamp(0) => {}
                // Client data never looks like metadata: nothing of ours begins with this byte.
                Cell::Stamp(s) => {
                    sector[0] = 0xff;
                    sector[8..16].copy_from_slice(&s.to_le_bytes());
                }
                Cell::Bytes(b) => sector.copy_from_slice(&b[..]),
            }
        }
        Cow::Owned(out)
    }
    fn join(parts: &[Self]) -> Self {
        parts.iter().for_each(|p| p.is_ours("joined"));
        Self::cells(parts.iter().flat_map(|p| (0..p.sectors).map(|n| p.cell(n))).collect())
    }
    fn owned(&self) -> Option<Self> {
        Some(if self.is_lent() { Self::cells((0..self.sectors).map(|n| self.cell(n)).collect()) } else { self.clone() })
    }
}
