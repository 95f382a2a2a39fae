//! Which segment of a volume without a disk is moved next, so that what is out of date in it is won.

/// How much of what is set aside such volumes take, in segments.
#[derive(Clone, Copy, Debug)]
pub struct Crowd {
    /// Taken.
    pub taken: u64,
    /// Set aside.
    pub set_aside: u64,
}

impl Crowd {
    /// So many are taken that room is to be won.
    #[must_use]
    pub fn is_dense(&self) -> bool {
        self.taken * 4 > self.set_aside * 3
    }
}

/// A segment that can be moved.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Sparse {
    /// Its number.
    pub segment: u32,
    /// Tells its age.
    pub generation: u64,
    /// Sectors of the pieces in it that the map names, which may be partly hidden.
    pub live: u32,
}

/// The segment with least in it, where that is at most three quarters of its `capacity`. Where all are fuller, though more is
/// taken than was set aside, the oldest one: then pieces are hidden in part, and only what is live of them moves.
#[must_use]
pub fn next_victim(segments: &[Sparse], capacity: u32, crowd: &Crowd) -> Option<u32> {
    let least = segments.iter().min_by_key(|s| (s.live, s.generation)).filter(|s| s.live <= capacity / 4 * 3);
    let oldest = || segments.iter().min_by_key(|s| s.generation).filter(|_| crowd.taken > crowd.set_aside);
    least.or_else(oldest).map(|s| s.segment)
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;

    #[test]
    fn the_emptiest_segment_moves_and_where_none_is_empty_the_oldest_when_it_must() {
        let of = |lives: &[u32], taken| {
            let of = |(n, live): (usize, &u32)| Sparse { segment: n as u32, generation: n as u64, live: *live };
            next_victim(&lives.iter().enumerate().map(of).collect::<Vec<_>>(), 128, &Crowd { taken, set_aside: 8 })
        };
        assert_eq!([of(&[90, 20, 96], 7), of(&[97, 128], 8), of(&[128, 97], 9), of(&[], 9)], [Some(1), None, Some(0), None]);
        let dense = |taken| Crowd { taken, set_aside: 8 }.is_dense();
        assert_eq!([dense(6), dense(7)], [false, true]);
    }
}
