//! Which clean segment is let go, and what of it is kept: S3-FIFO (Yang et al., "FIFO queues are all you need for cache eviction",
//! SOSP 2023) over whole segments, so that a cache device is written in long runs and little is written twice.
//!
//! What comes in is on probation. Of a segment that leaves, what was asked for meanwhile is written again, to the main queue; the rest
//! is remembered for a while ([`crate::policy::ghost`]), and goes to the main queue at once if it comes back in that time. A scan
//! passes through probation and touches nothing else. In the main queue a segment of which much was asked for stays where it is, and
//! has another round; of others what was asked for is written again. So what is written again is bounded by [`HOT_PERCENT`], and
//! what is asked for alike comes together in the same segments.

/// Percent of the clean segments that probation may take before it is what gives way. The original has ten; more is remembered here.
pub const PROBATION_PERCENT: usize = 5;
/// A segment of the main queue stays if more than so many percent of what it can hold were asked for in its round. The original
/// writes each of these again; here some cold ones stay between them.
pub const HOT_PERCENT: u32 = 50;
/// Segments of the main queue that are looked at for one that is let go.
pub const LOOKS: usize = 8;

/// The same where something is pinned, and it may take a look to see how much of a segment that is: as many as have `blocks` together, where
/// each has `capacity`. Everybody waits meanwhile.
#[must_use]
pub fn looks_for_pins(blocks: usize, capacity: u32) -> usize {
    LOOKS.max(blocks / capacity.max(1) as usize)
}

/// Where a clean segment is.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum Queue {
    /// What has come in, from clients and from the disk.
    #[default]
    Probation,
    /// What was asked for again.
    Main,
}

/// The queue that gives way, by how many segments of each may be let go; `None` if there are none.
#[must_use]
pub fn gives_way(probation: usize, main: usize) -> Option<Queue> {
    match (probation, main) {
        (0, 0) => None,
        (0, _) => Some(Queue::Main),
        (_, 0) => Some(Queue::Probation),
        _ if probation * 100 > (probation + main) * PROBATION_PERCENT => Some(Queue::Probation),
        _ => Some(Queue::Main),
    }
}

/// Whether a block that was `asked` for so often is written to the main queue when its segment leaves this one.
#[must_use]
pub fn is_kept(queue: Queue, asked: u8) -> bool {
    match queue {
        Queue::Probation => asked >= 2,
        Queue::Main => asked >= 1,
    }
}

/// Whether a segment of the main queue stays for another round: `hot` of the `capacity` blocks that it can hold were asked for.
#[must_use]
pub fn stays(hot: u32, capacity: u32) -> bool {
    hot * 100 > capacity * HOT_PERCENT
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn probation_gives_way_when_it_is_more_than_its_share() {
        assert_eq!([(0, 0), (0, 3), (1, 0)].map(|(p, m)| gives_way(p, m)), [None, Some(Queue::Main), Some(Queue::Probation)]);
        assert_eq!([(5, 95), (6, 94)].map(|(p, m)| gives_way(p, m)), [Some(Queue::Main), Some(Queue::Probation)]);
    }

    #[test]
    fn a_step_looks_for_pins_in_as_many_segments_as_others_let_go_of_blocks() {
        assert_eq!([256, 1024, 8192].map(|capacity| looks_for_pins(16 << 10, capacity)), [64, 16, LOOKS]);
        assert_eq!(looks_for_pins(4, 0), LOOKS);
    }

    #[test]
    fn a_segment_stays_while_more_than_half_of_it_is_asked_for() {
        assert_eq!([128, 129].map(|hot| stays(hot, 256)), [false, true]);
        assert!(!stays(0, 0));
    }
}
