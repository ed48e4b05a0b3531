//! One sink and its reports, used as the relay uses them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use walrelay_sink::{
    BatchingMode, Deliveries, DeliveryError, HeldRecord, Obstacle, Retrying, SendError, Sink,
};

use super::event::Event;
use crate::reports::{ReportState, Reports};

/// Limits of waits. A wait that ends by its limit fails the promise.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limits {
    /// The time to wait for what comes soon.
    pub(super) patience: Duration,
    /// The time to wait for a call that must not wait for the server.
    pub(super) stuck: Duration,
}

/// A sink with the records that it accepted.
pub(super) struct Session {
    sink: Box<dyn Sink>,
    pub(super) reports: Arc<Reports>,
    pub(super) accepted: BTreeSet<u64>,
    /// The number of refusals after which records were taken back.
    refusals: usize,
    /// The dead letters that are offered in the place of refused records, until they are.
    pub(super) dead_letters: BTreeMap<u64, Event>,
    /// The records whose dead letter was accepted in their place, after a report.
    settled: BTreeSet<u64>,
    limits: Limits,
}

impl Session {
    /// Wraps a sink that `create` makes.
    pub(super) fn new(
        limits: Limits,
        create: impl FnOnce(Arc<dyn Deliveries>) -> Box<dyn Sink>,
    ) -> Self {
        let reports = Arc::<Reports>::default();
        Self {
            sink: create(Arc::clone(&reports) as Arc<dyn Deliveries>),
            reports,
            accepted: BTreeSet::new(),
            refusals: 0,
            dead_letters: BTreeMap::new(),
            settled: BTreeSet::new(),
            limits,
        }
    }

    /// Offers a record once.
    pub(super) fn try_offer(&mut self, event: &Event, seq: u64) -> Result<(), SendError> {
        let offered = event.offer(&mut *self.sink, seq);
        if offered.is_ok() {
            self.accepted.insert(seq);
        }
        offered
    }

    /// Takes a refused record back, and with `behind` those of its key that follow it. They count as not accepted.
    pub(super) fn withdraw(&mut self, seq: u64, behind: bool) -> Vec<(u64, HeldRecord)> {
        let withdrawn = self.sink.withdraw(seq, behind);
        for (seq, _) in withdrawn.iter().skip(1) {
            self.accepted.remove(seq);
        }
        withdrawn
    }

    /// Offers a record until it is accepted or refused. While the sink is full, waits for a wake-up
    /// or a failure.
    #[track_caller]
    pub(super) fn offer(&mut self, event: &Event, seq: u64) -> Result<(), DeliveryError> {
        loop {
            let seen = self.reports.capacity_calls();
            match self.try_offer(event, seq) {
                Ok(()) => return Ok(()),
                Err(SendError::Refused(error)) => return Err(error),
                Err(SendError::Full) => {}
            }
            let refused = self.settle_refused();
            let woken = |state: &ReportState| state.capacity > seen || state.refusals > refused;
            assert!(
                self.reports.wait_within(self.limits.patience, woken),
                "the sink was full, and did not call `capacity`"
            );
            self.sink.poll();
        }
    }

    /// Offers the dead letter of a record in its place; it must be accepted.
    #[track_caller]
    pub(super) fn offer_dead_letter(&mut self, seq: u64) {
        let dead_letter = self.dead_letters.remove(&seq);
        let dead_letter = dead_letter.unwrap_or_else(|| panic!("record {seq} is refused"));
        let offered = self.offer(&dead_letter, seq);
        offered.unwrap_or_else(|error| panic!("the dead letter of {seq} is refused: {error}"));
    }

    /// Takes refused records back, so that the later ones of their keys are sent, and offers the dead letters
    /// of those that have one. Returns the number of refusals.
    #[track_caller]
    fn settle_refused(&mut self) -> usize {
        if self.reports.is(|state| state.refusals == self.refusals) {
            return self.refusals;
        }
        let ReportState {
            outcomes, refusals, ..
        } = self.reports.state();
        self.refusals = refusals;
        let refused = outcomes.into_iter().filter(|(_, outcome)| outcome.is_err());
        for (seq, _) in refused {
            self.sink.withdraw(seq, false);
            if self.dead_letters.contains_key(&seq) {
                self.settled.insert(seq);
                self.offer_dead_letter(seq);
            }
        }
        refusals
    }

    /// Polls and waits until the condition holds, and takes refused records back; panics when the limit passes.
    #[track_caller]
    pub(super) fn wait(&mut self, what: &str, until: impl Fn(&ReportState) -> bool) {
        self.wait_by(what, until, Self::settle_refused);
    }

    /// Does the same, but leaves refused records where they are.
    #[track_caller]
    pub(super) fn wait_for_report(&mut self, what: &str, until: impl Fn(&ReportState) -> bool) {
        self.wait_by(what, until, |session| session.reports.state().refusals);
    }

    /// Waits until the reports fulfil `until`. `settle` returns the number of refusals.
    #[track_caller]
    fn wait_by(
        &mut self,
        what: &str,
        until: impl Fn(&ReportState) -> bool,
        mut settle: impl FnMut(&mut Self) -> usize,
    ) {
        let deadline = Instant::now() + self.limits.patience;
        loop {
            let seen = self.reports.capacity_calls();
            let refused = settle(self);
            self.sink.poll();
            let moved = |state: &ReportState| {
                until(state) || state.capacity > seen || state.refusals > refused
            };
            let left = deadline.saturating_duration_since(Instant::now());
            assert!(self.reports.wait_within(left, moved), "{what} did not come");
            if self.reports.is(&until) {
                return;
            }
        }
    }

    /// Waits until every accepted record is reported, or one has failed.
    #[track_caller]
    pub(super) fn settle(&mut self) {
        let accepted = self.accepted.len();
        self.wait("the report of an accepted record", |state| {
            state.outcomes.len() >= accepted || state.failures > 0
        });
    }

    /// Returns the obstacle that accepted records wait for.
    pub(super) fn obstacle(&mut self) -> Option<Obstacle> {
        self.sink.poll();
        self.sink.waiting_for()
    }

    /// Returns the keys that the sink holds back.
    pub(super) fn retrying(&mut self) -> Option<Retrying> {
        self.sink.poll();
        self.sink.retrying()
    }

    /// Sets the batching mode, which must change nothing that the suite sees.
    pub(super) fn set_mode(&mut self, mode: BatchingMode) {
        self.sink.set_mode(mode);
    }

    /// Runs an action on another thread; panics if it does not return.
    #[track_caller]
    pub(super) fn returns<T: Send + 'static>(
        self,
        what: &str,
        act: impl FnOnce(Self) -> T + Send + 'static,
    ) -> T {
        let stuck = self.limits.stuck;
        let (send, done) = mpsc::channel();
        let acting = thread::spawn(move || drop(send.send(act(self))));
        match done.recv_timeout(stuck) {
            Ok(value) => value,
            Err(mpsc::RecvTimeoutError::Timeout) => {
                panic!("{what} did not return within {stuck:?}")
            }
            Err(mpsc::RecvTimeoutError::Disconnected) => {
                let panic = acting.join().expect_err("it ended without a value");
                std::panic::resume_unwind(panic)
            }
        }
    }

    /// Closes the sink. Asserts that each accepted record is reported once.
    #[track_caller]
    pub(super) fn close(self, grace: Duration) -> Closed {
        let what = format!("close({grace:?})");
        self.ended(&what, move |sink| sink.close(grace))
    }

    /// Drops the sink. Asserts the same.
    #[track_caller]
    pub(super) fn drop_sink(self) -> Closed {
        self.ended("the drop of the sink", drop)
    }

    #[track_caller]
    fn ended(self, what: &str, end: impl FnOnce(Box<dyn Sink>) + Send + 'static) -> Closed {
        let closed = self.returns(what, |session| {
            end(session.sink);
            Closed {
                reports: session.reports,
                accepted: session.accepted,
                settled: session.settled,
            }
        });
        closed.assert_reported_once(what);
        closed
    }
}

/// The reports of a sink that has ended.
pub(super) struct Closed {
    reports: Arc<Reports>,
    accepted: BTreeSet<u64>,
    settled: BTreeSet<u64>,
}

impl Closed {
    pub(super) fn state(&self) -> ReportState {
        self.reports.state()
    }

    /// Asserts that exactly the accepted records were reported, each once, and once more where a dead
    /// letter took the place of one. Also holds later: call it again when the server has answered other
    /// sinks.
    #[track_caller]
    pub(super) fn assert_reported_once(&self, when: &str) {
        let state = self.state();
        let mut repeated = state.repeated;
        repeated.sort_unstable();
        let settled: Vec<u64> = self.settled.iter().copied().collect();
        assert_eq!(repeated, settled, "reported twice");
        let reported: BTreeSet<u64> = state.outcomes.keys().copied().collect();
        let missing: Vec<&u64> = self.accepted.difference(&reported).collect();
        assert!(
            missing.is_empty(),
            "accepted, and not reported after {when}: {missing:?}"
        );
        let odd: Vec<&u64> = reported.difference(&self.accepted).collect();
        assert!(odd.is_empty(), "reported, and not accepted: {odd:?}");
    }

    /// Errors of the failed records.
    pub(super) fn failures(&self) -> Vec<DeliveryError> {
        let outcomes = self.state().outcomes.into_values();
        outcomes.filter_map(Result::err).collect()
    }

    /// Numbers of the delivered records.
    pub(super) fn delivered(&self) -> Vec<u64> {
        let outcomes = self.state().outcomes.into_iter();
        let delivered = outcomes.filter(|(_, outcome)| outcome.is_ok());
        delivered.map(|(seq, _)| seq).collect()
    }
}
