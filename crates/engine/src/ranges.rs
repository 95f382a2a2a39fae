//! One writer per range (R13): at most one write, discard or zeroing of overlapping sectors of a disk is in flight.

use crate::exec::{Exec, Signal};
use crate::io::Buf;
use alloc::rc::Rc;
use alloc::vec::Vec;
use core::cell::{Cell, RefCell};
use core::ops::Range;

/// Whether two ranges have anything in common.
pub(crate) fn meet(a: &Range<u64>, b: &Range<u64>) -> bool {
    a.start < b.end && b.start < a.end
}

/// Takes those of some blocks out that are in any of `ranges`; the blocks are in order. Each range is looked at once, however many blocks there are.
pub(crate) fn take_out(blocks: &mut Vec<u64>, mut ranges: Vec<Range<u64>>) {
    ranges.sort_unstable_by_key(|range| range.start);
    let (mut ranges, mut end) = (ranges.into_iter().peekable(), 0);
    blocks.retain(|block| {
        while let Some(range) = ranges.next_if(|range| range.start <= *block) {
            end = end.max(range.end);
        }
        *block >= end
    });
}

struct Held {
    ticket: u64,
    range: Range<u64>,
}

/// Locks on ranges of a disk's sectors, granted in the order they were asked for where they overlap.
pub(crate) struct RangeLocks<B: Buf> {
    held: RefCell<Vec<Held>>,
    next: Cell<u64>,
    signal: Signal<B>,
}

/// A lock on a range; let go when dropped.
pub(crate) struct RangeGuard<B: Buf> {
    locks: Rc<RangeLocks<B>>,
    ticket: u64,
}

impl<B: Buf> RangeLocks<B> {
    pub fn new(exec: &Rc<Exec<B>>) -> Rc<Self> {
        Rc::new(Self { held: RefCell::default(), next: Cell::new(0), signal: Signal::new(exec) })
    }

    /// Waits until nobody who asked before holds an overlapping range.
    pub async fn lock(self: &Rc<Self>, range: Range<u64>) -> RangeGuard<B> {
        let ticket = self.next.get();
        self.next.set(ticket + 1);
        self.held.borrow_mut().push(Held { ticket, range: range.clone() });
        let guard = RangeGuard { locks: self.clone(), ticket };
        loop {
            let wait = self.signal.wait();
            if self.may_have(ticket, &range) {
                return guard;
            }
            wait.await;
        }
    }

    /// Whether nobody who asked before has, or waits for, an overlapping range.
    fn may_have(&self, ticket: u64, range: &Range<u64>) -> bool {
        !self.held.borrow().iter().any(|h| h.ticket < ticket && meet(&h.range, range))
    }

    /// Whether nobody holds anything.
    pub fn is_free(&self) -> bool {
        self.held.borrow().is_empty()
    }
}

impl<B: Buf> Drop for RangeGuard<B> {
    fn drop(&mut self) {
        self.locks.held.borrow_mut().retain(|h| h.ticket != self.ticket);
        self.locks.signal.notify();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_taken_out_of_blocks_is_what_any_range_has() {
        let mut dice = 1u64;
        let mut draw = |below: u64| {
            dice = dice.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (dice >> 33) % below
        };
        for _ in 0..2000 {
            let blocks: Vec<u64> = (0..50).filter(|_| draw(2) == 0).collect();
            let many = draw(8);
            let ranges: Vec<_> = (0..many).map(|_| (draw(50), draw(9))).map(|(start, length)| start..start + length).collect();
            let mut left = blocks.clone();
            take_out(&mut left, ranges.clone());
            let expected: Vec<u64> = blocks.into_iter().filter(|b| !ranges.iter().any(|range| range.contains(b))).collect();
            assert_eq!(left, expected, "{ranges:?}");
        }
    }
}
