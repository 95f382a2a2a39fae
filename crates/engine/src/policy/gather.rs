//! Space for dirty data that is taken by what no longer counts, since the same places were written again and again.
//!
//! A sweep frees such a segment too, but has to write what is left in it to the disk, and that again when it was written once more: a set
//! of hot blocks that has room many times over in the cache would keep the disk busy, at the cost of streams there, and be slowed down to
//! what the sweep reaches. To move the little that is left together costs the cache devices a fraction of what was written. It pays for
//! itself only where what was written again is most of a segment; what a sweep has put down, and is clean there, is not.

use crate::io::BLOCK_SECTORS;

/// Part of a segment up to which what is left is little: moving it costs no more than a third of what is won.
const LITTLE: u32 = 4;

/// Sectors that a piece counts for at least: to read and to write it costs a request as any other.
const PIECE: u32 = 4;

/// Sectors that are left in a segment: of `dirty` dirty pieces, which have `dirty_sectors`, and of `clean` clean ones, whose
/// sectors nobody counts. A write that is not on a multiple of 4 KiB is two pieces, and no more for that.
#[must_use]
pub fn left(dirty: u32, dirty_sectors: u32, clean: u32) -> u32 {
    dirty_sectors.max(dirty * PIECE) + clean * BLOCK_SECTORS as u32
}

/// Whether a segment of `capacity` sectors is sparse with so many of them left.
#[must_use]
pub fn is_sparse(left: u32, capacity: u32) -> bool {
    left.saturating_mul(LITTLE) <= capacity
}

/// Percent of the space that count as taken, where `taken` are, and `won` of these would be won by gathering what is left in sparse
/// segments. That needs room itself, and time: the nearer the end is, the less it is reckoned with.
#[must_use]
pub fn taken(taken: u32, won: u32) -> u32 {
    let near = (2 * taken).saturating_sub(100);
    taken.saturating_sub(won).max(near).min(taken)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_segment_is_sparse_when_three_quarters_of_it_were_written_again() {
        assert_eq!([0, 25, 26, 100].map(|live| is_sparse(live, 100)), [true, true, false, false]);
    }

    #[test]
    fn writes_that_are_not_on_multiples_of_a_block_are_not_more_for_that() {
        assert_eq!(left(100, 800, 0), left(200, 800, 0));
        assert_eq!(left(100, 100, 10), 480);
    }

    #[test]
    fn what_can_be_won_does_not_count_until_the_end_is_near() {
        assert_eq!([0, 30, 50].map(|won| taken(50, won)), [50, 20, 0]);
        assert_eq!([60, 75, 90, 100, 120].map(|all| taken(all, 40)), [20, 50, 80, 100, 120]);
        assert!((0..=200).all(|all| taken(all, 0) == all));
    }
}
