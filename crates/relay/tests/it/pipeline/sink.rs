//! A sink with a scripted answer to each record, and the record of what such sinks did.

use std::convert::Infallible;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use walrelay_lsn::Lsn;
use walrelay_relay::PoisonPolicy;
use walrelay_sink::{
    Deliveries, DeliveryError, Disposition, HeldRecord, KeyQueues, Parking, Poison, Record,
    Refusal, SendError, Sink, SinkFactory, StreamStart, TransactionEnd,
};

/// The sink's answer to a record.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Answer {
    Full,
    Delivered,
    Failed,
    /// Takes the record and reports nothing.
    Nothing,
    /// Sends requests of up to [`REQUEST`] records, and refuses each request with an odd row as too
    /// large. Takes nothing after a refusal.
    OddRefused,
    /// Refuses each odd row where it is, and delivers the others. Has one record of a key in flight.
    OddRefusedInPlace,
    /// The first `sinks` sinks refuse [`REFUSED`] and what comes behind it; all else is delivered.
    Refused {
        sinks: usize,
        disposition: Disposition,
        poison: Option<Poison>,
    },
}

/// The row of [`Answer::Refused`].
pub(crate) const REFUSED: usize = 3;
/// Records in a request of [`Answer::OddRefused`].
pub(crate) const REQUEST: usize = 8;
/// The record of what the sinks of a run did.
#[derive(Default)]
pub(crate) struct Sinks {
    pub(crate) created: usize,
    /// Number of the row and topic of each delivered record.
    pub(crate) delivered: Vec<(usize, String)>,
    /// The places where the sinks' streams began.
    pub(crate) starts: Vec<StreamStart>,
    /// The ends that the sinks were told.
    pub(crate) ends: Vec<TransactionEnd>,
    /// The position up to which the sinks have everything.
    pub(crate) durable_before: Option<Lsn>,
    /// The parked keys of the poison policy.
    pub(crate) parking: Option<Arc<Parking>>,
}

pub(crate) struct ScriptedSink {
    /// The number of the sink, from 1.
    pub(crate) number: usize,
    pub(crate) answer: Answer,
    pub(crate) deliveries: Arc<dyn Deliveries>,
    pub(crate) sinks: Arc<Mutex<Sinks>>,
    /// Sequence number, row and topic of the records of the request.
    pub(crate) request: Vec<(u64, usize, String)>,
    pub(crate) broken: bool,
    /// The records of [`Answer::OddRefusedInPlace`].
    pub(crate) queues: Box<KeyQueues>,
}

impl ScriptedSink {
    fn request(&mut self) {
        let request = std::mem::take(&mut self.request);
        let dead_letters = PoisonPolicy::default().topic;
        let odd = |(_, row, topic): &(u64, usize, String)| row % 2 == 1 && **topic != *dead_letters;
        if request.iter().any(odd) {
            self.broken = true;
            for (seq, _, topic) in request {
                let error = failure(&topic, Some(Poison::Oversize));
                self.deliveries.failed(seq, error);
            }
            return;
        }
        for (seq, row, topic) in request {
            self.deliver(seq, row, topic);
        }
    }

    /// Delivers or refuses what is queued.
    fn answer_queued(&mut self) {
        let dead_letters = PoisonPolicy::default().topic;
        while let Some(queued) = self.queues.next(Instant::now()) {
            let seq = queued.seq;
            let (row, topic) = queued
                .record
                .with(|record| (row_of(record), record.topic.to_owned()));
            if row % 2 == 1 && *topic != *dead_letters {
                self.queues.refuse(seq);
                let refusal = Refusal {
                    topic: topic.into(),
                    poison: Poison::Oversize,
                    reason: "no".to_owned(),
                    disposition: Disposition::Fatal,
                };
                self.deliveries.refused(seq, refusal);
            } else {
                self.queues.done(seq);
                self.deliver(seq, row, topic);
            }
        }
    }

    fn deliver(&self, seq: u64, row: usize, topic: String) {
        let mut sinks = self.sinks.lock().expect("nobody panicked");
        sinks.delivered.push((row, topic));
        self.deliveries.delivered(seq);
    }
}

/// Returns the row that the record stands for.
fn row_of(record: &Record<'_>) -> usize {
    let id = record.headers.iter().find(|header| header.name == "id");
    let id = id.and_then(|header| str::from_utf8(header.value?).ok());
    let row = id.and_then(|id| id[1..].parse().ok());
    row.expect("the id of each row has its number")
}

fn failure(topic: &str, poison: Option<Poison>) -> DeliveryError {
    DeliveryError {
        topic: topic.into(),
        reason: "no".to_owned(),
        disposition: Disposition::Fatal,
        poison,
    }
}

impl Sink for ScriptedSink {
    fn try_send(&mut self, record: &Record<'_>, seq: u64) -> Result<(), SendError> {
        match self.answer {
            Answer::Full => return Err(SendError::Full),
            Answer::Delivered => self.deliveries.delivered(seq),
            Answer::Failed => self.deliveries.failed(seq, failure(record.topic, None)),
            Answer::Nothing => {}
            Answer::OddRefused if self.broken => {
                let mut error = failure(record.topic, None);
                error.disposition = Disposition::Retryable;
                return Err(SendError::Refused(error));
            }
            Answer::OddRefused => {
                let row = row_of(record);
                self.request.push((seq, row, record.topic.to_owned()));
                if self.request.len() == REQUEST {
                    self.request();
                }
            }
            Answer::OddRefusedInPlace => {
                self.queues.push(record, "lane", seq, 0);
                self.answer_queued();
            }
            Answer::Refused {
                sinks,
                disposition,
                poison,
            } => {
                let row = row_of(record);
                if row < REFUSED || self.number > sinks {
                    self.deliver(seq, row, record.topic.to_owned());
                } else if row == REFUSED {
                    let mut error = failure(record.topic, poison);
                    error.disposition = disposition;
                    self.deliveries.failed(seq, error);
                }
            }
        }
        Ok(())
    }

    fn withdraw(&mut self, seq: u64, behind: bool) -> Vec<(u64, HeldRecord)> {
        let withdrawn = self.queues.withdraw(seq, behind).into_iter();
        withdrawn
            .map(|queued| (queued.seq, queued.record))
            .collect()
    }

    fn commit(&mut self, transaction: &TransactionEnd) {
        self.sinks
            .lock()
            .expect("nobody panicked")
            .ends
            .push(*transaction);
    }

    fn durable_before(&self) -> Option<Lsn> {
        self.sinks.lock().expect("nobody panicked").durable_before
    }

    fn poll(&mut self) {
        self.request();
        self.answer_queued();
    }

    fn close(self: Box<Self>, _: Duration) {}
}

pub(crate) struct Factory {
    pub(crate) answer: Answer,
    pub(crate) sinks: Arc<Mutex<Sinks>>,
}

impl SinkFactory for Factory {
    type Sink = ScriptedSink;
    type Error = Infallible;

    fn create(
        &mut self,
        start: Option<&StreamStart>,
        deliveries: Arc<dyn Deliveries>,
    ) -> Result<ScriptedSink, Infallible> {
        let start = start.expect("a pipeline has a stream");
        let mut sinks = self.sinks.lock().expect("nobody panicked");
        sinks.created += 1;
        sinks.starts.push(start.clone());
        Ok(ScriptedSink {
            number: sinks.created,
            answer: self.answer,
            deliveries,
            sinks: Arc::clone(&self.sinks),
            request: Vec::new(),
            broken: false,
            queues: Box::new(KeyQueues::new(1)),
        })
    }

    fn disposition(error: &Infallible) -> Disposition {
        match *error {}
    }
}
