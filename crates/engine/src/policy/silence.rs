//! How long a cache device may be silent: by the time in which others answered. What all of them share, a bus that is reset or a controller that
//! starts again, says nothing of any one.

use alloc::vec::Vec;

/// How many limits an operation waits at most: on a cache device that answers others, and where none answers at all.
const SLOW: u64 = 3;

/// A moment, by two clocks.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Moment {
    /// Time in which answers were listened for, in nanoseconds.
    listened: u64,
    /// Of that, the time in which some cache device answered.
    answered: u64,
}

impl Moment {
    /// How long answers have been listened for since an earlier one, in nanoseconds.
    #[must_use]
    pub fn listened_since(self, earlier: Moment) -> u64 {
        self.listened - earlier.listened
    }
}

/// When cache devices have answered.
#[derive(Clone, Debug)]
pub struct Answers {
    /// Each one's last good answer, by its number.
    heard: Vec<Option<Moment>>,
    /// The last one of any of them.
    last: Moment,
    /// When the last silence that all shared was over: who was silent in it too has his limit from then on.
    anew: Moment,
    limit: u64,
}

impl Answers {
    /// Of devices that were not asked anything yet.
    #[must_use]
    pub fn new(now: u64) -> Self {
        let now = Moment { listened: now, answered: now };
        Self { heard: Vec::new(), last: now, anew: now, limit: u64::MAX }
    }

    /// How long one may be silent, from now on, in nanoseconds.
    pub fn limit(&mut self, limit: u64) {
        self.limit = limit;
    }

    /// How often one that owes nothing is asked while another is silent; what of a pause between two answers counts as time in which they
    /// answered.
    #[must_use]
    pub fn turn(limit: u64) -> u64 {
        limit / 8 + 1
    }

    /// This moment, `listened` nanoseconds after the beginning.
    #[must_use]
    pub fn moment(&self, listened: u64) -> Moment {
        Moment { listened, answered: self.last.answered + (listened - self.last.listened).min(Self::turn(self.limit)) }
    }

    /// A cache device has answered, and well: an error may be the host's own answer, for a device that it cannot reach.
    pub fn hear(&mut self, member: u8, listened: u64) {
        let now = self.moment(listened);
        if listened - self.last.listened > self.limit / 2 {
            self.anew = now;
        }
        self.last = now;
        let member = usize::from(member);
        if self.heard.len() <= member {
            self.heard.resize(member + 1, None);
        }
        self.heard[member] = Some(now);
    }

    /// Whether a cache device has answered lately.
    #[must_use]
    pub fn has_answered_lately(&self, member: u8, listened: u64) -> bool {
        let heard = self.heard.get(usize::from(member)).copied().flatten();
        heard.is_some_and(|heard| listened - heard.listened <= self.limit / 2)
    }

    /// Whether what a cache device has owed an answer for since `since` is waited for no longer, if nothing needs that device. One that answers
    /// others is not silent, it is slow: what is in a long line there is waited for [`SLOW`] times as long, since it may be the only
    /// device that has what is asked for. Where none answers it is no sooner.
    #[must_use]
    pub fn is_in_vain(&self, member: u8, since: Moment, listened: u64) -> bool {
        let most = self.limit.saturating_mul(SLOW);
        if listened - self.last.listened > self.limit / 2 {
            return listened.saturating_sub(since.listened) > most;
        }
        let now = self.moment(listened).answered;
        let heard = self.heard.get(usize::from(member)).copied().flatten().unwrap_or_default();
        let silent = now.saturating_sub(heard.answered.max(since.answered).max(self.anew.answered));
        silent > self.limit || now.saturating_sub(since.answered) > most
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: u64 = 80;

    /// Answers, in order of time: (when, by whom). When what device 1 owes since `since` is in vain, if anything.
    fn given_up(since: u64, heard: &[(u64, u8)], until: u64) -> Option<u64> {
        let mut answers = Answers::new(0);
        answers.limit(LIMIT);
        let mut heard = heard.iter().peekable();
        let mut began = Moment::default();
        for now in 0..until {
            while let Some((_, member)) = heard.next_if(|h| h.0 == now) {
                answers.hear(*member, now);
            }
            if now == since {
                began = answers.moment(now);
            }
            if now >= since && answers.is_in_vain(1, began, now) {
                return Some(now);
            }
        }
        None
    }

    fn every(step: usize, from: u64, to: u64, member: u8) -> Vec<(u64, u8)> {
        (from..to).step_by(step).map(|at| (at, member)).collect()
    }

    #[test]
    fn one_that_is_silent_beside_others_is_waited_for_as_long_as_the_limit() {
        assert_eq!(given_up(100, &every(10, 0, 900, 0), 900), Some(181));
        // It had answered others of those that came after.
        let mut heard = every(10, 0, 900, 0);
        heard.extend(every(10, 0, 150, 1));
        heard.sort_unstable();
        assert_eq!(given_up(100, &heard, 900), Some(221));
    }

    #[test]
    fn one_that_answers_others_is_waited_for_three_times_as_long() {
        assert_eq!(given_up(100, &every(10, 0, 900, 1), 900), Some(341));
    }

    #[test]
    fn where_all_are_silent_each_has_its_limit_from_the_first_answer_on() {
        let mut heard = every(10, 0, 100, 0);
        heard.extend(every(10, 0, 100, 1));
        heard.extend(every(10, 300, 900, 0));
        heard.sort_unstable();
        assert_eq!(given_up(100, &heard, 900), Some(381));
        // However long that was; and where none answers at all, after three limits.
        heard.retain(|h| h.0 < 100 || h.0 >= 330);
        assert_eq!(given_up(100, &heard, 900), Some(411));
        assert_eq!(given_up(100, &every(10, 0, 100, 0), 900), Some(341));
    }

    #[test]
    fn one_that_answers_now_and_then_keeps_nobody_waiting_for_ever() {
        assert!(given_up(100, &every(50, 0, 9000, 0), 9000).is_some_and(|at| at < 2000));
    }
}
