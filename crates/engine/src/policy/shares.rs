//! What of a pool each volume is sure of, and what it may have at most: minimum and maximum shares.
//!
//! A share is a percent of what the pool has beside the segments that are kept free ahead of demand, and those that are set aside
//! for volumes without a disk. What is dirty and what is clean both count, each copy for itself. Of the space for dirty data a
//! minimum keeps the same percent for its volume.

/// The most that the minimums of all volumes may come to, in percent: some is left to who comes first.
pub const MOST_MINIMUM: u32 = 90;
/// The least that a maximum allows, in slots: what open segments take, and as much again.
const LEAST_MAXIMUM: u64 = 8;

/// What a volume is sure of, and what it may have at most, in percent of the pool's segments: 0 to 100 each.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Share {
    /// Others leave it this much.
    pub min: u8,
    /// It takes no more than this.
    pub max: u8,
}

impl Default for Share {
    /// Sure of nothing, and may have all.
    fn default() -> Self {
        Self { min: 0, max: 100 }
    }
}

/// Why a volume may not have a share.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unfit {
    /// The maximum is above 100 percent, or the minimum above the maximum.
    Order,
    /// The minimums of all volumes come to more than [`MOST_MINIMUM`]: there is so much left for this one, in percent.
    TooMuch {
        /// The most that its minimum may be.
        left: u8,
    },
}

impl Share {
    /// Whether a volume may have this share, while the minimums of the others come to `others` percent.
    ///
    /// # Errors
    /// Why it may not.
    pub fn fits(&self, others: u32) -> Result<(), Unfit> {
        if self.max > 100 || self.min > self.max {
            return Err(Unfit::Order);
        }
        let left = MOST_MINIMUM.saturating_sub(others);
        if self.min > 0 && u32::from(self.min) > left {
            return Err(Unfit::TooMuch { left: left as u8 });
        }
        Ok(())
    }

    /// Slots that the volume is sure of, where the volumes share `slots`.
    #[must_use]
    pub fn least(&self, slots: u64) -> u64 {
        slots * u64::from(self.min) / 100
    }

    /// Slots that it may have at most; `None`: as many as there are.
    #[must_use]
    pub fn most(&self, slots: u64) -> Option<u64> {
        (self.max < 100).then(|| (slots * u64::from(self.max) / 100).max(LEAST_MAXIMUM))
    }
}

/// What a segment is to be opened for, as far as it matters to a maximum.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum For {
    /// For clients' writes.
    Writes,
    /// For clean data: what the next write needs is left.
    Reads,
}

/// Whether a volume that holds `held` slots, and may have `most`, may open a segment; one for writes has `copies`.
#[must_use]
pub fn may_open(held: u64, most: u64, copies: u64, wanted: For) -> bool {
    match wanted {
        For::Writes => held + copies <= most,
        For::Reads => held + 1 + copies <= most,
    }
}

/// Slots that a volume holds at most when it has done what it can to keep below its maximum: room ahead of demand, within it.
#[must_use]
pub fn kept_below(most: u64, copies: u64) -> u64 {
    most.saturating_sub((2 * copies).max(most / 16))
}

/// Whether others may have `slots` evicted of a volume that holds `held` and is sure of `least`.
#[must_use]
pub fn may_lose(held: u64, least: u64, slots: u64) -> bool {
    held >= least + slots
}

/// What a volume has of the space for dirty data, and what of it is kept for it, in segments.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Part {
    /// What it takes.
    pub taken: u64,
    /// What it is sure of.
    pub least: u64,
}

/// How full a space of `space` segments is for a volume, in percent, while the other volumes have `others` of it.
///
/// What the others are sure of is not there for it, taken or not. While it has less than it is sure of itself, what others have
/// beyond theirs is not in its way. `most` is what it may have by its maximum.
#[must_use]
pub fn percent(space: u64, own: &Part, most: Option<u64>, others: &[Part]) -> u32 {
    let kept: u64 = others.iter().map(|p| p.least).sum();
    let beyond: u64 = others.iter().map(|p| p.taken.saturating_sub(p.least)).sum();
    let of = |taken: u64, space: u64| taken.saturating_mul(100) / space.max(1);
    let mut percent = of(own.taken + beyond, space.saturating_sub(kept));
    if own.least > 0 {
        percent = percent.min(of(own.taken, own.least));
    }
    if let Some(most) = most {
        percent = percent.max(of(own.taken, most));
    }
    percent.min(200) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn minimums_leave_a_tenth_to_who_comes_first() {
        let fits = |min, max, others| Share { min, max }.fits(others);
        assert_eq!([fits(0, 100, 0), fits(50, 50, 40), fits(0, 0, 90)], [Ok(()); 3]);
        assert_eq!(fits(51, 100, 40), Err(Unfit::TooMuch { left: 50 }));
        assert_eq!([fits(60, 50, 0), fits(0, 101, 0)], [Err(Unfit::Order); 2]);
    }

    #[test]
    fn who_says_nothing_is_sure_of_nothing_and_may_have_all() {
        let share = Share::default();
        assert_eq!((share.least(1000), share.most(1000), share.fits(90)), (0, None, Ok(())));
    }

    #[test]
    fn a_maximum_leaves_room_for_the_segments_that_are_open() {
        let most = |max, slots| Share { min: 0, max }.most(slots);
        assert_eq!([most(60, 100), most(1, 100), most(0, 0)], [Some(60), Some(LEAST_MAXIMUM), Some(LEAST_MAXIMUM)]);
        for most in LEAST_MAXIMUM..200 {
            let kept = kept_below(most, 2);
            assert!(may_open(kept, most, 2, For::Reads) && may_open(kept, most, 2, For::Writes));
            assert!(!may_open(most, most, 1, For::Writes));
        }
    }

    #[test]
    fn what_reads_bring_leaves_room_for_a_write_within_the_maximum() {
        assert_eq!([17, 18].map(|held| may_open(held, 20, 2, For::Reads)), [true, false]);
        assert_eq!([18, 19].map(|held| may_open(held, 20, 2, For::Writes)), [true, false]);
    }

    #[test]
    fn others_take_nothing_below_a_minimum() {
        assert_eq!([20, 21, 22].map(|held| may_lose(held, 20, 2)), [false, false, true]);
        assert!(may_lose(1, 0, 1));
    }

    #[test]
    fn without_shares_the_space_is_as_full_for_each_as_it_is() {
        for taken in 0..=40 {
            let others = [Part { taken: 30, least: 0 }, Part { taken: 10, least: 0 }];
            assert_eq!(percent(80, &Part { taken, least: 0 }, None, &others), ((taken + 40) * 100 / 80) as u32);
        }
    }

    #[test]
    fn a_minimum_that_is_not_taken_is_not_there_for_others() {
        let other = [Part { taken: 0, least: 40 }];
        let mine = |taken| percent(100, &Part { taken, least: 0 }, None, &other);
        assert_eq!([mine(0), mine(30), mine(60)], [0, 50, 100]);
        assert_eq!(percent(100, &Part { taken: 60, least: 0 }, None, &[Part { taken: 40, least: 40 }]), 100);
    }

    #[test]
    fn who_has_less_than_the_minimum_is_not_slowed_down_by_what_others_have() {
        let others = [Part { taken: 60, least: 0 }];
        let mine = |taken| percent(100, &Part { taken, least: 40 }, None, &others);
        assert_eq!([mine(0), mine(10), mine(20), mine(40)], [0, 25, 50, 100]);
    }

    #[test]
    fn what_a_volume_takes_counts_against_its_maximum_too() {
        let mine = |taken| percent(100, &Part { taken, least: 0 }, Some(20), &[]);
        assert_eq!([mine(0), mine(10), mine(20), mine(60)], [0, 50, 100, 200]);
    }

    #[test]
    fn all_minimums_can_be_had_at_once() {
        // Three volumes, each with what it is sure of but one segment; the rest is taken by a fourth.
        let sure = [30, 30, 30].map(|least| Part { taken: least - 1, least });
        let fourth = Part { taken: 10, least: 0 };
        assert!(percent(100, &fourth, None, &sure) >= 100);
        let others = [sure[1], sure[2], fourth];
        assert!(percent(100, &sure[0], None, &others) < 100);
    }
}
