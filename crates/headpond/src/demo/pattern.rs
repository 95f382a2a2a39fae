//! Sectors that say what they are: where they belong, which write they came with, and that they are whole.
//!
//! All 512 bytes follow from seed, sector number and write number, so a sector that was read is either exactly one
//! that was written, or it is wrong, and can say in which way.

use std::fmt;

/// Bytes in a sector.
pub const SECTOR: usize = 512;
/// 64-bit words in a sector: seed, sector, write, checksum, then the filling.
const WORDS: usize = SECTOR / 8;
const HEADER: usize = 4;

/// What a sector holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Content {
    /// Nothing but zeroes.
    Zeroes,
    /// What the write with this number put there.
    Write(u64),
    /// Something that no write put there.
    Wrong(Wrong),
}

/// In which way a sector is wrong.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Wrong {
    /// It is not of this pattern at all.
    Foreign,
    /// It was made for another run, or another region.
    OtherSeed,
    /// It is whole, but belongs to this sector.
    Swapped(u64),
    /// It begins like one of ours and is damaged.
    Torn,
}

impl fmt::Display for Wrong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Wrong::Foreign => f.write_str("something that was never written"),
            Wrong::OtherSeed => f.write_str("data of another run"),
            Wrong::Swapped(sector) => write!(f, "what belongs to sector {sector}"),
            Wrong::Torn => f.write_str("a damaged sector"),
        }
    }
}

/// Fills whole sectors, the first of which is `sector`, as write number `write`.
pub fn fill(data: &mut [u8], seed: u64, sector: u64, write: u64) {
    for (n, bytes) in (0..).zip(data.chunks_exact_mut(SECTOR)) {
        for (to, word) in bytes.chunks_exact_mut(8).zip(words(seed, sector + n, write)) {
            to.copy_from_slice(&word.to_le_bytes());
        }
    }
}

/// What a sector holds that was read from number `sector`.
pub fn look(bytes: &[u8], seed: u64, sector: u64) -> Content {
    let word = |n: usize| u64::from_le_bytes(bytes[n * 8..n * 8 + 8].try_into().expect("eight bytes"));
    let (found_seed, found_sector, write) = (word(0), word(1), word(2));
    let whole = |seed, sector| (0..).zip(words(seed, sector, write)).all(|(n, expected)| word(n) == expected);
    if found_seed == seed && found_sector == sector && whole(seed, sector) {
        return Content::Write(write);
    }
    if bytes.iter().all(|byte| *byte == 0) {
        return Content::Zeroes;
    }
    Content::Wrong(match (whole(found_seed, found_sector), found_seed == seed) {
        (true, true) => Wrong::Swapped(found_sector),
        (true, false) => Wrong::OtherSeed,
        (false, true) => Wrong::Torn,
        (false, false) => Wrong::Foreign,
    })
}

/// The words of a sector.
fn words(seed: u64, sector: u64, write: u64) -> impl Iterator<Item = u64> {
    let start = mix(mix(mix(seed) ^ sector) ^ write);
    let header = [seed, sector, write, mix(!start)];
    // A walk with an odd step, mixed: as cheap as memory, and no two sectors share a word but by chance.
    let filling = (0..(WORDS - HEADER) as u64).map(move |n| {
        let at = start.wrapping_add(n.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        at ^ (at >> 29)
    });
    header.into_iter().chain(filling)
}

/// Spreads every bit over all (the end of SplitMix64).
pub fn mix(mut x: u64) -> u64 {
    x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sector(seed: u64, sector: u64, write: u64) -> [u8; SECTOR] {
        let mut bytes = [0; SECTOR];
        fill(&mut bytes, seed, sector, write);
        bytes
    }

    #[test]
    fn a_sector_tells_its_write() {
        let mut data = [0; 4 * SECTOR];
        fill(&mut data, 7, 100, 3);
        for (n, bytes) in (0..).zip(data.chunks_exact(SECTOR)) {
            assert_eq!(look(bytes, 7, 100 + n), Content::Write(3));
        }
        assert_eq!(look(&[0; SECTOR], 7, 100), Content::Zeroes);
    }

    #[test]
    fn every_flipped_byte_is_noticed() {
        for n in 0..SECTOR {
            let mut bytes = sector(7, 100, 3);
            bytes[n] ^= 0x10;
            assert!(matches!(look(&bytes, 7, 100), Content::Wrong(_)), "byte {n}");
        }
    }

    #[test]
    fn torn_swapped_and_foreign_sectors_are_told_apart() {
        let mut torn = sector(7, 100, 3);
        torn[256..].copy_from_slice(&sector(7, 100, 4)[256..]);
        let table = [
            (torn, Wrong::Torn),
            (sector(7, 101, 3), Wrong::Swapped(101)),
            (sector(8, 100, 3), Wrong::OtherSeed),
            ([0xa5; SECTOR], Wrong::Foreign),
        ];
        for (bytes, wrong) in table {
            assert_eq!(look(&bytes, 7, 100), Content::Wrong(wrong));
        }
    }
}
