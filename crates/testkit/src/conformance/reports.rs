//! Receives the reports of one sink.

use std::collections::BTreeMap;
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

use walrelay_sink::{Deliveries, DeliveryError};

use crate::threads::lock;

/// The reports of one sink.
#[derive(Debug, Default)]
pub(super) struct Reports {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Clone, Default)]
pub(super) struct State {
    pub(super) outcomes: BTreeMap<u64, Result<(), DeliveryError>>,
    /// Records that were reported before.
    pub(super) repeated: Vec<u64>,
    /// Calls of `capacity`.
    pub(super) capacity: u64,
    pub(super) failures: usize,
}

impl State {
    pub(super) fn is_delivered(&self, seq: u64) -> bool {
        matches!(self.outcomes.get(&seq), Some(Ok(())))
    }
}

impl Reports {
    pub(super) fn state(&self) -> State {
        lock(&self.state).clone()
    }

    /// Number of calls of `capacity`.
    pub(super) fn capacity_calls(&self) -> u64 {
        lock(&self.state).capacity
    }

    /// Returns true if the condition holds now.
    pub(super) fn is(&self, condition: impl Fn(&State) -> bool) -> bool {
        condition(&lock(&self.state))
    }

    /// Waits for the condition; returns false if it does not hold within the limit.
    pub(super) fn wait(&self, limit: Duration, until: impl Fn(&State) -> bool) -> bool {
        let waiting = |state: &mut State| !until(state);
        let waited = self
            .changed
            .wait_timeout_while(lock(&self.state), limit, waiting);
        let (_state, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
        !timeout.timed_out()
    }

    fn report(&self, seq: u64, outcome: Result<(), DeliveryError>) {
        let mut state = lock(&self.state);
        state.failures += usize::from(outcome.is_err());
        if let Some(before) = state.outcomes.insert(seq, outcome) {
            state.failures -= usize::from(before.is_err());
            state.repeated.push(seq);
        }
        self.changed.notify_all();
    }
}

impl Deliveries for Reports {
    fn delivered(&self, seq: u64) {
        self.report(seq, Ok(()));
    }

    fn failed(&self, seq: u64, error: DeliveryError) {
        self.report(seq, Err(error));
    }

    fn capacity(&self) {
        lock(&self.state).capacity += 1;
        self.changed.notify_all();
    }
}
