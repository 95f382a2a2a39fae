//! Which of several open segments clean data goes to, so that what lies together on the disk is on several cache devices.
//!
//! A segment of clean data is on one device. Were the next one begun only when the last is full, one reader of what is cached would
//! have one device for megabytes, and several, once they meet on the same one, would stay together: all wait there while the others
//! are idle, and whoever gets through comes to wait on the next. Each device has an open segment instead, a lane, and stripes of the
//! disk take them in turn, as in RAID 0.

use crate::io::BLOCK_SECTORS;

/// The most lanes there are.
pub const MOST: usize = 4;

/// How many lanes are worth their open segments, one for each queue, half empty on an average, where so many members are in sync, so
/// many volumes share so many slots, and a lane is to have `each` of these.
#[must_use]
pub fn number(members: usize, slots: u64, volumes: usize, each: u64) -> usize {
    let bear = slots / each.max(1) / volumes.max(1) as u64;
    members.min(MOST).min(usize::try_from(bear).unwrap_or(MOST)).max(1)
}

/// The lane, below `lanes`, of what begins at a sector, and how many sectors from there on are of the same stripe of `stripe` sectors,
/// which are whole blocks: as much as a record has, so that a long fill is in no more records than without lanes. In each turn each lane has one stripe, in an order that differs from turn to turn: or what is asked for at a power of two's distance, as
/// the tables of a file system, would all be on one device. Where there is one lane, all is of one stripe.
#[must_use]
pub fn of(start: u64, lanes: usize, stripe: u32) -> (usize, u32) {
    if lanes <= 1 {
        return (0, u32::MAX);
    }
    let (sectors, lanes) = (u64::from(stripe).max(BLOCK_SECTORS), lanes as u64);
    let stripe = start / sectors;
    // Fibonacci hashing (Knuth, The Art of Computer Programming, vol. 3, 6.4).
    let shift = (stripe / lanes).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
    ((stripe.wrapping_add(shift) % lanes) as usize, (sectors - start % sectors) as u32)
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;

    const STRIPE: u32 = 256;
    const SECTORS: u64 = STRIPE as u64;

    #[test]
    fn each_turn_has_a_stripe_for_each_lane() {
        for lanes in 1..=MOST {
            for turn in 0..1000 {
                let mut seen: Vec<usize> =
                    (0..lanes as u64).map(|n| of((turn * lanes as u64 + n) * SECTORS, lanes, STRIPE).0).collect();
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
                (0..1200).for_each(|n| count[of(n * distance, lanes, STRIPE).0] += 1);
                let (least, most) = (count[..lanes].iter().min().unwrap(), count[..lanes].iter().max().unwrap());
                assert!(least * 3 >= most * 2, "{lanes} lanes, every {distance} sectors: {count:?}");
            }
        }
    }

    #[test]
    fn a_stripe_ends_where_the_next_begins() {
        assert_eq!(of(0, 2, 256).1, 256);
        assert_eq!(of(255, 2, 256), (of(0, 2, 256).0, 1));
        assert_eq!((of(256, 2, 256).1, of(256, 1, 256)), (256, (0, u32::MAX)));
    }

    #[test]
    fn there_are_as_many_lanes_as_members_where_their_segments_are_few_of_all() {
        assert_eq!(number(2, 256, 1, 64), 2);
        assert_eq!(number(2, 256, 2, 64), 2);
        assert_eq!((number(2, 256, 3, 64), number(2, 256, 3, 32)), (1, 2));
        assert_eq!(number(8, 1 << 20, 3, 64), MOST);
        assert_eq!((number(1, 1 << 20, 1, 64), number(2, 100, 1, 64), number(0, 0, 0, 0)), (1, 1, 1));
    }
}
