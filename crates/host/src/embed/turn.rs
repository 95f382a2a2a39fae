//! One at a time, with a limit on how long to wait for one's turn.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

#[derive(Default)]
pub(super) struct Turn {
    taken: Mutex<bool>,
    free: Condvar,
}

/// One's turn, until it is dropped.
pub(super) struct Taken<'a>(&'a Turn);

impl Turn {
    /// Waits for one's turn.
    pub fn take(&self) -> Taken<'_> {
        let taken = self.free.wait_while(self.lock(), |taken| *taken);
        *taken.unwrap_or_else(PoisonError::into_inner) = true;
        Taken(self)
    }

    /// The same until a moment; `None`: it did not come.
    pub fn take_until(&self, until: Instant) -> Option<Taken<'_>> {
        let left = until.saturating_duration_since(Instant::now());
        let (mut taken, _) =
            self.free.wait_timeout_while(self.lock(), left, |taken| *taken).unwrap_or_else(PoisonError::into_inner);
        let free = !*taken;
        *taken = true;
        free.then_some(Taken(self))
    }

    fn lock(&self) -> MutexGuard<'_, bool> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        *self.0.lock() = false;
        self.0.free.notify_one();
    }
}
