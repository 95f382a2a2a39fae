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
        // Not `then_some`: what is made for it and not taken is dropped at once, and would ask for the lock that is held here.
        if *taken {
            return None;
        }
        *taken = true;
        Some(Taken(self))
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;
    use std::thread;
    use std::time::Duration;

    /// It waited for ever, and held the lock without which nobody's turn ends.
    #[test]
    fn who_does_not_get_a_turn_in_time_goes_away_and_the_next_one_has_it() {
        let turn: &'static Turn = Box::leak(Box::default());
        let first = turn.take();
        let (tell, told) = mpsc::channel();
        // A thread that nobody waits for: it might not end.
        thread::spawn(move || {
            let came = turn.take_until(Instant::now() + Duration::from_millis(10)).is_some();
            tell.send(came)
        });
        assert_eq!(told.recv_timeout(Duration::from_secs(20)), Ok(false));
        drop(first);
        drop(turn.take());
        assert!(turn.take_until(Instant::now()).is_some());
    }
}
