//! Requests whose end is known, in the order in which they end.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// A queue of (time, id), earliest first; equal times come out in the order they went in.
#[derive(Debug, Default)]
pub(super) struct Completions {
    heap: BinaryHeap<Reverse<(u64, u64, u64)>>,
    pushed: u64,
}

impl Completions {
    pub(super) fn push(&mut self, time: u64, id: u64) {
        self.heap.push(Reverse((time, self.pushed, id)));
        self.pushed += 1;
    }

    pub(super) fn next_time(&self) -> Option<u64> {
        self.heap.peek().map(|Reverse((time, _, _))| *time)
    }

    /// Moves what ended by `now` to `done`.
    pub(super) fn drain_until(&mut self, now: u64, done: &mut Vec<u64>) {
        while let Some(Reverse((time, _, id))) = self.heap.peek().copied() {
            if time > now {
                break;
            }
            self.heap.pop();
            done.push(id);
        }
    }
}
