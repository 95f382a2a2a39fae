//! Which writes are made durable at once, since their client will ask for that as soon as they are answered.
//!
//! A client that flushes after each of its writes, as a database's log or a mail queue does, waits for two things one after the
//! other: that the cache devices have the write, and that they are flushed. Told at once, a device does both in one request.
//! Where several write at the same time one flush serves them all, and a forced access for each would be more work.

/// So many flushes in a row had one write before them: the next write is taken for one of the same kind.
const SURE: u32 = 3;

/// What is known of a volume's writes and flushes.
#[derive(Clone, Copy, Default, Debug)]
pub struct Synchronous {
    /// Records with clients' writes since the last flush.
    records: u32,
    /// One of them was under way together with another, or had several writes.
    shared: bool,
    /// Flushes in a row with one record before them, and nothing beside it.
    lone: u32,
}

impl Synchronous {
    /// A record with clients' writes is made; `alone`: there is one write in it, and no other record is under way. Whether
    /// it should be durable by itself.
    pub fn record(&mut self, alone: bool) -> bool {
        let first = self.records == 0;
        self.records = self.records.saturating_add(1);
        self.shared |= !alone;
        alone && first && self.lone >= SURE
    }

    /// A client asks for what was written to be durable. A flush after nothing says nothing.
    pub fn flush(&mut self) {
        if self.records > 0 {
            self.lone = if self.records == 1 && !self.shared { self.lone.saturating_add(1) } else { 0 };
            (self.records, self.shared) = (0, false);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flushed_often() -> Synchronous {
        let mut it = Synchronous::default();
        for n in 0..SURE {
            assert!(!it.record(true), "after {n} flushes");
            it.flush();
        }
        it
    }

    #[test]
    fn who_flushes_after_each_write_is_known_after_a_few() {
        let mut it = flushed_often();
        for _ in 0..10 {
            assert!(it.record(true));
            it.flush();
            it.flush();
        }
    }

    #[test]
    fn who_writes_more_before_a_flush_is_taken_for_something_else_at_once() {
        let mut it = flushed_often();
        assert!(it.record(true));
        assert!(!it.record(true));
        it.flush();
        assert!(!it.record(true));
    }

    #[test]
    fn what_several_write_together_shares_a_flush() {
        let mut it = flushed_often();
        assert!(!it.record(false));
        it.flush();
        assert!(!it.record(true));
    }
}
