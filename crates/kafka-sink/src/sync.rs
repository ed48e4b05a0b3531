use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks, also after a panic under the lock: no lock of this crate guards a state that a panic
/// could leave half changed.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
