use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks, also after a panic under the lock: nothing in this crate is left half-done under one.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
