//! Which of several open segments clean data goes to, so that what lies together on the disk is on several cache devices.
//!
//! A segment of clean data is on one device. Were the next one begun only when the last is full, one reader of what is cached would
//! have one device for megabytes, and several, once they meet on the same one, would stay together: all wait there while the others
//! are idle, and whoever gets through comes to wait on the next. Each device has an open segment instead, a lane, and stripes of the
//! disk take them in turn, as in RAID 0.

use crate::io::BLOCK_SECTORS;

/// The most lanes there are.
pub const MOST: usize = 4;
/// Blocks of a stripe: as much as a record has, and as the kernel asks for at once where it reads ahead.
const STRIPE: u64 = 32;
/// Slots of the pool for each lane of each volume, whose open segments, one for each queue, are half empty on an average.
const SLOTS: u64 = 64;

/// How many lanes are worth their open segments, where so many members are in sync, and so many volumes share so many slots.
#[must_use]
pub fn number(members: usize, slots: u64, volumes: usize) -> usize {
    let bear = slots / SLOTS / volumes.max(1) as u64;
    members.min(MOST).min(usize::try_from(bear).unwrap_or(MOST)).max(1)
}

/// The lane, below `lanes`, of what begins at a sector, and how many sectors from there on are of the same stripe. In each turn
/// each lane has one stripe, in an order that differs from turn to turn: or what is asked for at a power of two's distance, as
/// the tables of a file system, would all be on one device. Where there is one lane, all is of one stripe.
#[must_use]
pub fn of(start: u64, lanes: usize) -> (usize, u32) {
    if lanes <= 1 {
        return (0, u32::MAX);
    }
    let (stripe, sectors, lanes) = (start / (STRIPE * BLOCK_SECTORS), STRIPE * BLOCK_SECTORS, lanes as u64);
    // Fibonacci hashing (Knuth, The Art of Computer Programming, vol. 3, 6.4).
    let shift = (stripe / lanes).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
    ((stripe.wrapping_add(shift) % lanes) as usize, (sectors - start % sectors) as u32)
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;

    const SECTORS: u64 = STRIPE * BLOCK_SECTORS;

    #[test]
    fn each_turn_has_a_stripe_for_each_lane() {
        for lanes in 1..=MOST {
            for turn in 0..1000 {
                let mut seen: Vec<usize> = (0..lanes as u64).map(|n| of((turn * lanes as u64 + n) * SECTORS, lanes).0).collect();
                seen.sort_unstable();
                assert_eq!(seen, (0..lanes).collect::<Vec<_>>());
            }
        }
    }

    #[test]
    fn what_is_at_a_power_of_two_from_the_next_is_in_all_lanes_alike() {
        for lanes in 2..=MOST {
            for distance in (0..30).map(|n| SECTORS << n) {
                let mut count = [0_u32; MOST];
                (0..1200).for_each(|n| count[of(n * distance, lanes).0] += 1);
                let (least, most) = (count[..lanes].iter().min().unwrap(), count[..lanes].iter().max().unwrap());
                assert!(least * 3 >= most * 2, "{lanes} lanes, every {distance} sectors: {count:?}");
            }
        }
    }

    #[test]
    fn a_stripe_ends_where_the_next_begins() {
        assert_eq!(of(0, 2).1, 256);
        assert_eq!((of(255, 2).1, of(255, 2).0), (1, of(0, 2).0));
        assert_eq!((of(256, 2).1, of(256, 1)), (256, (0, u32::MAX)));
    }

    #[test]
    fn there_are_as_many_lanes_as_members_where_their_segments_are_few_of_all() {
        assert_eq!(number(2, 256, 1), 2);
        assert_eq!(number(2, 256, 2), 2);
        assert_eq!(number(2, 256, 3), 1);
        assert_eq!(number(8, 1 << 20, 3), MOST);
        assert_eq!((number(1, 1 << 20, 1), number(2, 100, 1), number(0, 0, 0)), (1, 1, 1));
    }
}
