//! How long devices take: models of rotating disks and SSDs, in virtual time.
//!
//! A model knows nothing of data. It is told when a request arrives and says when that request is
//! done. Time is in nanoseconds since any start, handed in by whoever owns the clock: the simulator
//! jumps from event to event, a modelled disk over a real file passes the time of day.
//! A model given the same requests at the same times gives the same completions, to the nanosecond.

mod completions;
mod prng;
mod random_latency;
pub mod rotating;
pub mod ssd;

pub use prng::SplitMix64;
pub use random_latency::RandomLatency;
pub use rotating::RotatingDisk;
pub use ssd::Ssd;

/// One second of virtual time, in nanoseconds.
pub const SECOND: u64 = 1_000_000_000;
/// One millisecond of virtual time, in nanoseconds.
pub const MILLISECOND: u64 = 1_000_000;
/// One microsecond of virtual time, in nanoseconds.
pub const MICROSECOND: u64 = 1_000;

/// What kind of work a request is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// Read a range.
    Read,
    /// Write a range.
    Write,
    /// Make every write that completed before durable; offset and length are ignored.
    Flush,
    /// Forget a range.
    Discard,
    /// Make a range read as zeroes.
    WriteZeroes,
    /// Write a range, past a volatile cache: forced unit access.
    WriteThrough,
    /// Write a range, and have it durable before the answer, whatever the device has to do for that.
    WriteDurable,
}

/// What a model needs to know of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Access {
    /// What kind of work.
    pub kind: Kind,
    /// Where it begins, in bytes.
    pub offset: u64,
    /// How long it is, in bytes. The range lies within the device.
    pub len: u64,
}

impl Access {
    /// A read of `len` bytes at `offset`.
    pub fn read(offset: u64, len: u64) -> Self {
        Access { kind: Kind::Read, offset, len }
    }

    /// A write of `len` bytes at `offset`.
    pub fn write(offset: u64, len: u64) -> Self {
        Access { kind: Kind::Write, offset, len }
    }

    /// The same past a volatile cache.
    pub fn write_through(offset: u64, len: u64) -> Self {
        Access { kind: Kind::WriteThrough, offset, len }
    }

    /// A flush.
    pub fn flush() -> Self {
        Access { kind: Kind::Flush, offset: 0, len: 0 }
    }
}

/// The timing of one device.
///
/// Time never runs backwards: each `now` is at least as large as the one before it, in `submit` and
/// `advance` alike.
pub trait TimingModel {
    /// A request arrives at `now`. `id` is handed back when it is done and is not looked at.
    fn submit(&mut self, now: u64, id: u64, op: Access);

    /// The time of the next thing to happen, to which [`advance`](Self::advance) should be called;
    /// nothing may be done at that time yet, since devices also work for themselves. `None` when the
    /// device is at rest. It may lie in the past if nobody asked for a while.
    fn next_completion(&self) -> Option<u64>;

    /// Lets time pass to `now`. The ids of the requests done by then are appended to `done` in the
    /// order in which they ended; those that ended at the same time, in a fixed order.
    fn advance(&mut self, now: u64, done: &mut Vec<u64>);
}
