use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks a mutex also if a thread panicked while it held the lock: the process behind it must still be
/// ended.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
