//! Holds completions back until a model of a slower device says that they are due.
//!
//! So a file on a fast disk behaves, in real time, like the rotating disk that a model describes.

use std::collections::{HashMap, HashSet};

/// What kind of operation a model is told of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PaceKind {
    /// A read.
    Read,
    /// A write.
    Write,
    /// A write past the device's volatile cache.
    WriteThrough,
    /// A write that is durable when it completes.
    WriteDurable,
    /// A cache flush; offset and length are zero.
    Flush,
    /// A discard.
    Discard,
    /// A zeroing.
    WriteZeroes,
}

/// A model of how long a device takes. Times are nanoseconds on one clock that never goes back.
pub trait Pace {
    /// An operation arrives, at `now_ns`. `id` is never used twice; `offset` and `len` are in bytes.
    fn submit(&mut self, now_ns: u64, id: u64, kind: PaceKind, offset: u64, len: u64);
    /// When the next operation will be done, as far as is known now; `None` if there is none.
    fn next(&self) -> Option<u64>;
    /// The operations done by `now_ns` and not named before, in the order in which they were done.
    fn due(&mut self, now_ns: u64) -> Vec<u64>;
}

/// One device's model, and what is ahead of it or behind it.
pub(super) struct Held<R> {
    pace: Box<dyn Pace>,
    /// Done in reality, not yet in the model.
    early: HashMap<u64, R>,
    /// Done in the model, not yet in reality: let through as soon as they are.
    late: HashSet<u64>,
}

impl<R> Held<R> {
    pub(super) fn new(pace: Box<dyn Pace>) -> Held<R> {
        Held { pace, early: HashMap::new(), late: HashSet::new() }
    }

    pub(super) fn submit(&mut self, now_ns: u64, id: u64, kind: PaceKind, offset: u64, len: u64) {
        self.pace.submit(now_ns, id, kind, offset, len);
    }

    /// The real device is done with `id`: gives the result back if the model is, too.
    pub(super) fn arrived(&mut self, id: u64, result: R) -> Option<R> {
        if self.late.remove(&id) {
            return Some(result);
        }
        self.early.insert(id, result);
        None
    }

    /// When to call [`Held::release`] next.
    pub(super) fn next_due(&self) -> Option<u64> {
        self.pace.next()
    }

    /// Hands on what is due, in the model's order.
    pub(super) fn release(&mut self, now_ns: u64, mut deliver: impl FnMut(u64, R)) {
        for id in self.pace.due(now_ns) {
            match self.early.remove(&id) {
                Some(result) => deliver(id, result),
                None => {
                    self.late.insert(id);
                }
            }
        }
    }

    /// How many operations are done but held back.
    pub(super) fn held_back(&self) -> usize {
        self.early.len()
    }
}
