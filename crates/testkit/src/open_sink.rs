//! [`OpenSink`]: a sink that a test writes to.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use walrelay_sink::{
    AnySinkFactory, Deliveries, DeliveryError, Disposition, EventPosition, Obstacle, Poison,
    Record, RecordKind, Retrying, SendError, Sink, SinkFactory as _, StreamStart,
};

use crate::reports::Reports;
use crate::wait::eventually_some;

/// A sink that a test writes to, with its reports. The records are numbered from 0.
pub struct OpenSink {
    sink: Box<dyn Sink>,
    /// Its reports.
    pub reports: Arc<Reports>,
    /// The number of records that it has accepted.
    pub sent: u64,
}

impl fmt::Debug for OpenSink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OpenSink")
            .field("reports", &self.reports)
            .field("sent", &self.sent)
            .finish_non_exhaustive()
    }
}

impl OpenSink {
    /// Creates a sink, whose stream starts at `start`.
    #[track_caller]
    pub fn new(factory: &mut AnySinkFactory, start: Option<&StreamStart>) -> Self {
        let reports = Arc::<Reports>::default();
        let deliveries = Arc::clone(&reports) as Arc<dyn Deliveries>;
        Self {
            sink: factory.create(start, deliveries).expect("a sink"),
            reports,
            sent: 0,
        }
    }

    /// Returns the keys that the sink holds back.
    pub fn retrying(&self) -> Option<Retrying> {
        self.sink.retrying()
    }

    /// Sends a record.
    ///
    /// # Errors
    /// If the sink does not accept it.
    pub fn try_send(&mut self, record: &Record<'_>) -> Result<(), SendError> {
        self.sink.try_send(record, self.sent)?;
        self.sent += 1;
        Ok(())
    }

    /// Sends a record, which the sink must accept.
    #[track_caller]
    pub fn send(&mut self, record: &Record<'_>) {
        self.try_send(record).expect("it is accepted");
    }

    /// Sends an event, which the sink must accept. Its id is its row.
    #[track_caller]
    pub fn send_event(&mut self, topic: &str, key: &str, position: EventPosition) {
        let id = position.row.to_string();
        self.send(&Record {
            topic,
            key: Some(key.as_bytes()),
            value: Some(b"value"),
            event_id: Some(id.as_bytes()),
            position,
            ..Record::default()
        });
    }

    /// Waits until all records are reported, and asserts that none has failed.
    #[track_caller]
    pub fn delivered(&self) {
        self.reports.wait_for(self.sent);
        assert_eq!(self.reports.failures(), []);
    }

    /// Sends the dead letter of a refused record to this topic, in its place, as the relay does. Returns why
    /// it was refused; `None` if it is not refused, or has its dead letter.
    #[track_caller]
    pub fn settle(&mut self, seq: u64, topic: &str) -> Option<DeliveryError> {
        let error = self.reports.outcome(seq).err()?;
        let (seq, record) = self.sink.withdraw(seq, false).pop()?;
        record.with(|record| {
            let dead_letter = Record {
                topic,
                value: record
                    .value
                    .filter(|_| error.poison != Some(Poison::Oversize)),
                kind: RecordKind::DeadLetter,
                ..*record
            };
            let sent = self.sink.try_send(&dead_letter, seq);
            sent.expect("it is accepted in the place of its record");
        });
        Some(error)
    }

    /// Waits until so many records are refused, sends their dead letters as they come, and waits until all
    /// is delivered. Returns why each was refused.
    #[track_caller]
    pub fn settle_refused(&mut self, topic: &str, count: usize) -> Vec<(u64, DeliveryError)> {
        let mut settled = Vec::new();
        while settled.len() < count {
            let before = settled.len();
            // A dead letter that is delivered is a second report.
            self.reports
                .wait(|state| state.failures + state.repeated.len() > before);
            let outcomes = self.reports.state().outcomes.into_iter();
            for (seq, _) in outcomes.filter(|(_, outcome)| outcome.is_err()) {
                settled.extend(self.settle(seq, topic).map(|error| (seq, error)));
            }
        }
        let sent = self.sent;
        self.reports
            .wait(|state| (0..sent).all(|seq| state.is_delivered(seq)));
        settled
    }

    /// Returns what the records wait for.
    pub fn waiting_for(&mut self) -> Option<Obstacle> {
        self.sink.waiting_for()
    }

    /// Waits until the records wait for something with these words. Returns its disposition.
    #[track_caller]
    pub fn waits_for(&mut self, words: &str) -> Disposition {
        eventually_some(crate::PATIENCE, || {
            let obstacle = self.waiting_for();
            let found = obstacle.filter(|obstacle| obstacle.what.contains(words));
            found.map(|obstacle| obstacle.disposition)
        })
    }

    /// Closes the sink.
    pub fn close(self, grace: Duration) {
        self.sink.close(grace);
    }
}
