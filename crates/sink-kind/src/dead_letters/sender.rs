use std::fmt;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver};
use std::time::{Duration, Instant};

use super::log::{Answer, Unanswered};
use walrelay_failure::ToFailure as _;
use walrelay_sink::{
    AnySinkFactory, Deliveries, DeliveryError, Disposition, Record, SendError, Sink,
    SinkFactory as _,
};

/// Sends records with the relay's own sink, each acknowledged before the next is sent.
pub struct RecordSender {
    factory: AnySinkFactory,
    /// Replaced after a failure: a failed sink accepts no more records.
    sink: Option<(Box<dyn Sink>, Receiver<Report>)>,
    seq: u64,
}

impl RecordSender {
    /// Creates a sender that makes a sink for its first record, and a new one after a failure.
    pub fn new(factory: AnySinkFactory) -> Self {
        Self {
            factory,
            sink: None,
            seq: 0,
        }
    }

    /// Sends a record. **Blocks** until it is acknowledged or refused, for about `patience` at
    /// most. Repeats records that are refused for a reason that may pass.
    ///
    /// # Errors
    /// If the outcome is unknown.
    pub fn send(&mut self, record: &Record<'_>, patience: Duration) -> Answer {
        let deadline = Instant::now() + patience;
        let mut heard = None;
        loop {
            let error = match self.attempt(record, deadline) {
                Ok(Err(error)) => Some(error),
                Err(Unanswered::Late(_)) => None,
                answer @ (Ok(Ok(())) | Err(Unanswered::Sink(_))) => return answer,
            };
            self.sink = None;
            let Some(error) = error else {
                return Err(Unanswered::Late(heard));
            };
            // Retry only what is neither the record's fault nor permanent.
            if error.poison.is_some() || error.disposition != Disposition::Retryable {
                return Ok(Err(error));
            }
            if Instant::now() >= deadline {
                return Err(Unanswered::Late(Some(error)));
            }
            heard = Some(error);
        }
    }

    fn attempt(&mut self, record: &Record<'_>, deadline: Instant) -> Answer {
        let (sink, reports) = match &mut self.sink {
            Some(sink) => sink,
            none => {
                let (sender, reports) = mpsc::channel();
                let sink = self.factory.create(None, Arc::new(Reports(sender)));
                let sink = sink.map_err(|error| Unanswered::Sink(error.to_failure()))?;
                none.insert((sink, reports))
            }
        };
        self.seq += 1;
        let mut accepted = false;
        loop {
            if !accepted {
                match sink.try_send(record, self.seq) {
                    Ok(()) => {
                        accepted = true;
                        sink.poll();
                    }
                    // For example, the topic is being created.
                    Err(SendError::Full) => {}
                    Err(SendError::Refused(error)) => return Ok(Err(error)),
                }
            }
            let left = deadline.saturating_duration_since(Instant::now());
            match reports.recv_timeout(left) {
                Ok(Report::Record(seq, outcome)) if seq == self.seq => return Ok(outcome),
                Ok(Report::Record(..)) => {}
                Ok(Report::Capacity) => sink.poll(),
                Err(_) => return Err(Unanswered::Late(None)),
            }
        }
    }
}

enum Report {
    /// The delivery report of the record with this sequence number.
    Record(u64, Result<(), DeliveryError>),
    Capacity,
}

/// Passes reports to the thread that waits for them. Sending fails if it has stopped waiting.
struct Reports(mpsc::Sender<Report>);

impl Deliveries for Reports {
    fn delivered(&self, seq: u64) {
        let _ = self.0.send(Report::Record(seq, Ok(())));
    }

    fn failed(&self, seq: u64, error: DeliveryError) {
        let _ = self.0.send(Report::Record(seq, Err(error)));
    }

    fn capacity(&self) {
        let _ = self.0.send(Report::Capacity);
    }
}

impl fmt::Debug for RecordSender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RecordSender").finish_non_exhaustive()
    }
}
