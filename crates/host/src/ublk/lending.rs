//! Which requests of a queue are handed on with the client's own memory, and which with a copy.
//!
//! What is read goes there where it can, as nobody has copied anything yet. What is written is copied on the thread that attends to the
//! queue; what the engine has to copy is copied on the engine's. So only what goes on from something else is lent, for that is what goes past the
//! cache. A mistake costs nothing but that a copy is made later, or needlessly.

/// Below so many bytes a copy costs less than to tell the kernel where the memory is.
const LEAST: usize = 32 << 10;
/// Sectors in whose table place a request is noted.
const REGION: u64 = 2048;
/// Places of the table: so many streams at once, about.
const PLACES: u64 = 1024;

/// What was written last, by region.
pub struct Lending {
    /// Whether the device can.
    is_possible: bool,
    /// Ends of writes, in sectors.
    ends: Vec<u64>,
}

impl Lending {
    /// Nothing was written yet.
    pub fn new(is_possible: bool) -> Lending {
        Lending { is_possible, ends: vec![u64::MAX; if is_possible { PLACES as usize } else { 0 }] }
    }

    /// Whether what is read of so many bytes may go into the client's memory.
    pub fn read(&self, len: usize) -> bool {
        self.is_possible && len >= LEAST
    }

    /// Whether a write of so many bytes is to come from there.
    pub fn write(&mut self, sector: u64, len: usize) -> bool {
        if !self.is_possible {
            return false;
        }
        let region = sector / REGION;
        let place = |region: u64| (region % PLACES) as usize;
        let goes_on = |end: u64| end <= sector && sector - end < REGION;
        let lends = len >= LEAST && (goes_on(self.ends[place(region)]) || goes_on(self.ends[place(region.wrapping_sub(1))]));
        self.ends[place(region)] = sector + len as u64 / 512;
        lends
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_are_lent_also_side_by_side_and_with_gaps() {
        let mut lending = Lending::new(true);
        let lent = (0..32u64).flat_map(|n| (0..100u64).map(move |stream| (n, (stream << 30) + stream * 4096 + n * 256)));
        let lent = lent.filter(|(n, sector)| lending.write(*sector, 128 << 10) && *n > 0).count();
        assert_eq!(lent, 31 * 100);
        assert!(!lending.write(7, 128 << 10) && lending.write(256 + 7 + 100, 128 << 10) && !lending.write(1 << 40, 1 << 20));
    }

    #[test]
    fn what_is_small_or_stands_alone_is_copied() {
        let mut lending = Lending::new(true);
        assert!((0..100u64).all(|n| !lending.write(n * 8, 4096)));
        assert!((1..100u64).all(|n| !lending.write(n * 1_000_003 * 8, 64 << 10)));
        assert!(!lending.read(4096) && lending.read(64 << 10));
        let mut cannot = Lending::new(false);
        assert!(!cannot.read(1 << 20) && !cannot.write(0, 1 << 20) && !cannot.write(2048, 1 << 20));
    }
}
