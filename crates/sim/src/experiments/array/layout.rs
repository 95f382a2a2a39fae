//! Where the pieces of a row lie on the disks of an array. A row is what one set of parity covers: so many chunks of data and two
//! of parity, each on another disk.

/// How an array spreads rows over its disks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Layout {
    /// RAID 60: spans of equal width, each a RAID 6 with rotating parity; rows go round the spans.
    Raid60 {
        /// Spans.
        spans: u64,
        /// Disks of a span, two of them for parity.
        width: u64,
        /// Bytes of a chunk; controllers call it segment.
        chunk: u64,
    },
    /// Parity declustering (Holland and Gibson, 1992): rows narrower than the array, laid over all of its disks one after the other, with
    /// the space of some disks spread over all of them as spare.
    Declustered {
        /// Disks.
        disks: u64,
        /// Chunks of a row, two of them for parity.
        width: u64,
        /// How many disks' space is spare.
        spares: u64,
        /// Bytes of a chunk.
        chunk: u64,
    },
}

impl Layout {
    /// Disks.
    #[must_use]
    pub fn disks(&self) -> u64 {
        match *self {
            Layout::Raid60 { spans, width, .. } => spans * width,
            Layout::Declustered { disks, .. } => disks,
        }
    }

    /// Bytes of a chunk.
    #[must_use]
    pub fn chunk(&self) -> u64 {
        match *self {
            Layout::Raid60 { chunk, .. } | Layout::Declustered { chunk, .. } => chunk,
        }
    }

    /// Chunks of data in a row; two of parity come after them.
    #[must_use]
    pub fn data(&self) -> u64 {
        match *self {
            Layout::Raid60 { width, .. } | Layout::Declustered { width, .. } => width - 2,
        }
    }

    /// Bytes of data in a row.
    #[must_use]
    pub fn row_bytes(&self) -> u64 {
        self.data() * self.chunk()
    }

    /// The disk, and the byte on it, at which chunk `n` of a row begins; the last two are parity.
    #[must_use]
    pub fn place(&self, row: u64, n: u64) -> (usize, u64) {
        match *self {
            Layout::Raid60 { spans, width, chunk } => {
                let (span, line) = (row % spans, row / spans);
                ((span * width + (n + width - line % width) % width) as usize, line * chunk)
            }
            Layout::Declustered { disks, width, spares, chunk } => {
                let slot = row * width + n;
                let (line, at) = (slot / (disks - spares), slot % (disks - spares));
                // The spare places move on with each line, so that each disk has its share of them.
                (((at + line * spares) % disks) as usize, line * chunk)
            }
        }
    }
}

/// An access to one disk of an array, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Piece {
    /// The disk.
    pub disk: usize,
    /// First byte.
    pub offset: u64,
    /// Bytes.
    pub len: u64,
}

/// The accesses that bring a row up to date: all of `reads` end before `writes` begin.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct Update {
    /// Old data and parity, or what is not written of the row.
    pub reads: Vec<Piece>,
    /// New data and parity.
    pub writes: Vec<Piece>,
}

impl Layout {
    /// The pieces of a range of the array's bytes, in order.
    pub fn pieces(&self, start: u64, end: u64) -> impl Iterator<Item = Piece> + '_ {
        let mut at = start;
        core::iter::from_fn(move || {
            if at >= end {
                return None;
            }
            let (row, into) = (at / self.row_bytes(), at % self.row_bytes());
            let (n, into) = (into / self.chunk(), into % self.chunk());
            let len = (self.chunk() - into).min(end - at);
            let (disk, offset) = self.place(row, n);
            at += len;
            Some(Piece { disk, offset: offset + into, len })
        })
    }

    /// How a row takes new data in `ranges` of its bytes, which are sorted and apart.
    ///
    /// A whole row is written as it is. Of a part, the cheaper in reads of two ways, as RAID implementations choose: read the old
    /// data and parity and apply the difference, or read the rest of the row and compute the parity anew.
    #[must_use]
    pub fn update(&self, row: u64, ranges: &[(u64, u64)]) -> Update {
        let base = row * self.row_bytes();
        let data: Vec<Piece> = ranges.iter().flat_map(|(s, e)| self.pieces(base + s, base + e)).collect();
        // Parity is touched at the places within a chunk at which any data is.
        let mut touched: Vec<(u64, u64)> = Vec::new();
        let mut within: Vec<(u64, u64)> =
            data.iter().map(|p| (p.offset % self.chunk(), p.offset % self.chunk() + p.len)).collect();
        within.sort_unstable();
        for (s, e) in within {
            match touched.last_mut() {
                Some(last) if s <= last.1 => last.1 = last.1.max(e),
                _ => touched.push((s, e)),
            }
        }
        let parity: Vec<Piece> = (self.data()..self.data() + 2)
            .flat_map(|n| {
                let (disk, offset) = self.place(row, n);
                touched.iter().map(move |(s, e)| Piece { disk, offset: offset + s, len: e - s })
            })
            .collect();
        let covered: u64 = ranges.iter().map(|(s, e)| e - s).sum();
        let reads = if covered == self.row_bytes() {
            Vec::new()
        } else {
            let differs: Vec<Piece> = data.iter().chain(&parity).copied().collect();
            let rest: Vec<Piece> = self.rest(row, ranges, &touched);
            if rest.len() < differs.len() { rest } else { differs }
        };
        Update { reads, writes: data.into_iter().chain(parity).collect() }
    }

    /// What of the row's data is not written, at the places within a chunk that are `touched`.
    fn rest(&self, row: u64, ranges: &[(u64, u64)], touched: &[(u64, u64)]) -> Vec<Piece> {
        let base = row * self.row_bytes();
        let mut rest = Vec::new();
        for n in 0..self.data() {
            for (s, e) in touched {
                let (mut at, end) = (n * self.chunk() + s, n * self.chunk() + e);
                for (from, to) in ranges {
                    if *from >= end || at >= *to {
                        continue;
                    }
                    if at < *from {
                        rest.extend(self.pieces(base + at, base + *from));
                    }
                    at = at.max(*to);
                }
                if at < end {
                    rest.extend(self.pieces(base + at, base + end));
                }
            }
        }
        rest
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    const RAID60: Layout = Layout::Raid60 { spans: 4, width: 12, chunk: 512 << 10 };
    const DECLUSTERED: Layout = Layout::Declustered { disks: 41, width: 10, spares: 2, chunk: 128 << 10 };

    #[test]
    fn no_two_chunks_share_a_place_and_a_row_is_on_disks_of_its_own() {
        for layout in [RAID60, DECLUSTERED] {
            let mut seen = BTreeSet::new();
            for row in 0..2000 {
                let places: Vec<_> = (0..layout.data() + 2).map(|n| layout.place(row, n)).collect();
                assert_eq!(places.iter().map(|p| p.0).collect::<BTreeSet<_>>().len(), places.len());
                assert!(places.iter().all(|p| p.0 < layout.disks() as usize && seen.insert(*p)));
            }
        }
    }

    #[test]
    fn a_whole_row_reads_nothing_and_a_small_write_reads_and_writes_three_places() {
        for layout in [RAID60, DECLUSTERED] {
            let whole = layout.update(7, &[(0, layout.row_bytes())]);
            assert_eq!((whole.reads.len(), whole.writes.len() as u64), (0, layout.data() + 2));
            let small = layout.update(7, &[(4096, 8192)]);
            assert_eq!((small.reads.len(), small.writes.len()), (3, 3));
            assert_eq!(small.reads, small.writes);
            // All but one chunk: that one is read.
            let most = layout.update(7, &[(layout.chunk(), layout.row_bytes())]);
            assert_eq!(most.reads.len(), 1);
        }
    }

    #[test]
    fn the_pieces_of_a_range_are_as_long_as_it() {
        for layout in [RAID60, DECLUSTERED] {
            let bytes: u64 = layout.pieces(3 << 20, 77 << 20).map(|p| p.len).sum();
            assert_eq!(bytes, 74 << 20);
        }
    }
}
