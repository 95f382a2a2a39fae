//! Locks that outlast a panic of whoever had them.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Takes a lock, also where a thread has panicked that had it: what it guards here is whole at every step.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
