use std::sync::Arc;
use std::sync::mpsc::{self, Receiver};
use std::time::{Duration, Instant};

use walrelay_sink::{
    Deliveries, DeliveryError, Disposition, Record, SendError, Sink as _, SinkFactory as _,
};

use crate::config::KafkaConfig;
use crate::error::KafkaError;
use crate::producer::{KafkaSink, KafkaSinkFactory};

/// Sends records with the relay's own producer, each acknowledged before the next is sent.
pub(super) struct Sender {
    factory: KafkaSinkFactory,
    /// Replaced after a failure: a failed sink accepts no more records.
    sink: Option<(KafkaSink, Receiver<Report>)>,
    seq: u64,
}

/// Why the outcome of a record is unknown.
pub(super) enum Unanswered {
    /// No acknowledgement came in time. Contains the last error reported, if any.
    Late(Option<DeliveryError>),
    /// The producer could not be created.
    Client(KafkaError),
}

/// The inner error is a refusal that does not pass by itself.
pub(super) type Answer = Result<Result<(), DeliveryError>, Unanswered>;

impl Sender {
    pub(super) fn new(config: &KafkaConfig) -> Self {
        Self {
            factory: KafkaSinkFactory::new(config.clone()).of_one_producer(),
            sink: None,
            seq: 0,
        }
    }

    /// Sends a record. **Blocks** until it is acknowledged or refused, for about `patience` at
    /// most.
    pub(super) fn send(&mut self, record: &Record<'_>, patience: Duration) -> Answer {
        let deadline = Instant::now() + patience;
        let mut heard = None;
        loop {
            let error = match self.attempt(record, deadline) {
                Ok(Err(error)) => Some(error),
                Err(Unanswered::Late(_)) => None,
                answer @ (Ok(Ok(())) | Err(Unanswered::Client(_))) => return answer,
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
                none.insert((sink.map_err(Unanswered::Client)?, reports))
            }
        };
        self.seq += 1;
        let mut accepted = false;
        loop {
            if !accepted {
                match sink.try_send(record, self.seq) {
                    Ok(()) => accepted = true,
                    // The topic is being created.
                    Err(SendError::Full) => {}
                    Err(SendError::Refused(error)) => return Ok(Err(error)),
                }
            }
            let left = deadline.saturating_duration_since(Instant::now());
            match reports.recv_timeout(left) {
                Ok(Report::Record(seq, outcome)) if seq == self.seq => return Ok(outcome),
                Ok(Report::Record(..) | Report::Capacity) => {}
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
