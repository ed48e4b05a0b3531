//! Helpers for mutexes.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks a mutex, also if it is poisoned: no code in this crate leaves a locked value inconsistent.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
