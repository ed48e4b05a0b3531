//! [`Reports`]: receives the reports of one sink.

use std::collections::BTreeMap;
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use walrelay_sink::{Deliveries, DeliveryError, Sink};

use crate::threads::lock;
use crate::wait::PATIENCE;

/// Receives the reports of one sink, and waits for them. A record that is reported twice is noted.
#[derive(Debug, Default)]
pub struct Reports {
    state: Mutex<ReportState>,
    changed: Condvar,
}

/// The reports until now.
#[derive(Debug, Clone, Default)]
pub struct ReportState {
    /// The last report of each record, by its sequence number.
    pub outcomes: BTreeMap<u64, Result<(), DeliveryError>>,
    /// Sequence numbers that were reported before.
    pub repeated: Vec<u64>,
    /// The number of calls of `capacity`.
    pub capacity: u64,
    /// The number of failed records in `outcomes`.
    pub failures: usize,
    /// The number of reports of failed records: it never falls, as `failures` does when a dead letter is
    /// delivered.
    pub refusals: usize,
}

impl ReportState {
    /// Returns true if the last report of the record is that it was delivered.
    pub fn is_delivered(&self, seq: u64) -> bool {
        matches!(self.outcomes.get(&seq), Some(Ok(())))
    }
}

impl Reports {
    /// Returns a copy of the reports.
    pub fn state(&self) -> ReportState {
        lock(&self.state).clone()
    }

    /// Returns the number of calls of `capacity`.
    pub fn capacity_calls(&self) -> u64 {
        lock(&self.state).capacity
    }

    /// Returns the errors of all failed records, by sequence number.
    pub fn failures(&self) -> Vec<DeliveryError> {
        let state = lock(&self.state);
        let outcomes = state.outcomes.values();
        outcomes
            .filter_map(|outcome| outcome.clone().err())
            .collect()
    }

    /// Returns true if the condition holds now.
    pub fn is(&self, condition: impl Fn(&ReportState) -> bool) -> bool {
        condition(&lock(&self.state))
    }

    /// Waits for the condition; returns false if it does not hold within the limit.
    pub fn wait_within(&self, limit: Duration, until: impl Fn(&ReportState) -> bool) -> bool {
        let waiting = |state: &mut ReportState| !until(state);
        let waited = self
            .changed
            .wait_timeout_while(lock(&self.state), limit, waiting);
        let (_state, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
        !timeout.timed_out()
    }

    /// Waits for the condition; panics if it does not hold within [`PATIENCE`].
    #[track_caller]
    pub fn wait(&self, until: impl Fn(&ReportState) -> bool) {
        assert!(
            self.wait_within(PATIENCE, until),
            "the reports do not come: {:?}",
            self.state()
        );
    }

    /// Waits until so many records are reported.
    #[track_caller]
    pub fn wait_for(&self, count: u64) {
        self.wait(|state| state.outcomes.len() as u64 == count);
    }

    /// Waits for the condition, and polls the sink after each wake-up, as the relay does.
    #[track_caller]
    pub fn wait_with(&self, sink: &mut impl Sink, until: impl Fn(&ReportState) -> bool) {
        let start = Instant::now();
        loop {
            assert!(start.elapsed() < PATIENCE, "woken, but never for this");
            let before = self.capacity_calls();
            sink.poll();
            self.wait(|state| until(state) || state.capacity > before);
            if self.is(&until) {
                return;
            }
        }
    }

    /// Waits until so many records are reported, and polls the sink after each wake-up.
    #[track_caller]
    pub fn wait_polling(&self, sink: &mut impl Sink, count: u64) {
        self.wait_with(sink, |state| state.outcomes.len() as u64 == count);
    }

    /// Waits for the report of a record, and returns it.
    #[track_caller]
    pub fn outcome(&self, seq: u64) -> Result<(), DeliveryError> {
        self.wait(|state| state.outcomes.contains_key(&seq));
        lock(&self.state).outcomes[&seq].clone()
    }

    /// Asserts that the records below `accepted` were reported, each once, and no other.
    #[track_caller]
    pub fn assert_complete(&self, accepted: u64) {
        let state = self.state();
        assert_eq!(state.repeated, Vec::<u64>::new(), "reported twice");
        let missing = (0..accepted).filter(|seq| !state.outcomes.contains_key(seq));
        let missing: Vec<u64> = missing.collect();
        assert_eq!(missing, Vec::<u64>::new(), "never reported");
        assert_eq!(state.outcomes.len() as u64, accepted);
    }

    fn report(&self, seq: u64, outcome: Result<(), DeliveryError>) {
        let mut state = lock(&self.state);
        state.failures += usize::from(outcome.is_err());
        state.refusals += usize::from(outcome.is_err());
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
