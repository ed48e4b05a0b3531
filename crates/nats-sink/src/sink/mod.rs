//! The sink.

mod chain;
mod ends;
mod sequences;
mod session;
#[cfg(test)]
mod tests;
mod unacked;
mod worker;

use std::sync::Arc;
use std::time::Duration;

use walrelay_sink::{
    Deliveries, DeliveryError, Disposition, HeldRecord, KeyQueues, Obstacle, Record, Retrying,
    SendError, Sink, SinkFactory, SinkStats, StreamStart, Window,
};
use walrelay_sink_client::{BatchQueue, ClientError as _, Patience, SinkThread};

use crate::client::Login;
use crate::client::error::NatsError;
use crate::client::message;

/// Bytes of the bookkeeping for each record in flight.
const RECORD_OVERHEAD: u64 = 256;

/// The settings of a sink besides the login.
#[derive(Debug, Clone)]
pub(crate) struct Settings {
    pub(crate) max_records: u64,
    pub(crate) max_bytes: u64,
    /// Bytes of records that wait for a destination which refuses them, beyond those.
    pub(crate) max_retrying_bytes: u64,
    /// Keys of a subject that may wait to be sent again before its others wait too.
    pub(crate) max_retrying_keys: usize,
    /// The most bytes of headers and payload.
    pub(crate) max_message: u64,
    /// The stream that only the relay writes to.
    pub(crate) exclusive_stream: Option<String>,
    /// The longest wait for an acknowledgement, and for a sign of the server.
    pub(crate) ack: Duration,
    /// The first and the longest pause before a connection is tried again, and before a message is
    /// sent again. Pauses double.
    pub(crate) pauses: (Duration, Duration),
    /// For how long an event that no stream accepts is sent again.
    pub(crate) refusals: Patience,
}

/// Makes sinks that publish to NATS.
#[derive(Debug, Clone)]
pub(crate) struct NatsSinkFactory {
    pub(crate) login: Arc<Login>,
    pub(crate) settings: Arc<Settings>,
    pub(crate) stats: Arc<SinkStats>,
}

impl SinkFactory for NatsSinkFactory {
    type Sink = NatsSink;
    type Error = NatsError;

    fn create(
        &mut self,
        start: Option<&StreamStart>,
        deliveries: Arc<dyn Deliveries>,
    ) -> Result<NatsSink, NatsError> {
        let settings = Arc::clone(&self.settings);
        let window = Window::new(settings.max_records, settings.max_bytes)
            .with_aside(settings.max_retrying_bytes);
        // A replay writes beside the relay that has the slot.
        let start = start.filter(|start| start.slot.is_some());
        let source = start.and_then(source_of);
        if let Some((stream, start)) = settings.exclusive_stream.clone().zip(start) {
            // Other positions of the stream are compared with those of the records: all are of the WAL.
            let source = source.filter(|_| !start.snapshot);
            let stats = Arc::clone(&self.stats);
            let queue = BatchQueue::default();
            let shared = chain::Shared::new(queue, window, settings, stats, deliveries);
            let login = Arc::clone(&self.login);
            let thread = SinkThread::start("nats", shared, async move |shared| {
                chain::carry(&login, &shared, stream, source).await
            })?;
            return Ok(NatsSink::Chained(thread));
        }
        let queues = KeyQueues::new(settings.max_retrying_keys).across_topics();
        let shared = Shared::new(
            queues,
            window,
            settings,
            Arc::clone(&self.stats),
            deliveries,
        );
        let login = Arc::clone(&self.login);
        let thread = SinkThread::start("nats", shared, async move |shared| {
            worker::carry(&login, &shared, source).await
        })?;
        Ok(NatsSink::Keyed(thread))
    }

    fn disposition(error: &NatsError) -> Disposition {
        error.disposition()
    }
}

/// Returns the text by which the positions of two streams can be compared: they are of one log, and
/// counted by one slot. `None` if no slot is read.
fn source_of(start: &StreamStart) -> Option<String> {
    let slot = start.slot.as_ref()?;
    Some(format!("{}/{}/{slot}", start.system_id, start.timeline))
}

/// Publishes records on its own thread, which has one connection.
///
/// # After a failure
/// After a connection that breaks, the records in flight are sent again with the same ids: the server
/// may have them or not. A record that is refused for good is out of the queues, and all others go on.
pub(crate) enum NatsSink {
    /// At most one record of a key is in flight ([`KeyQueues`]), whatever its subject: a stream has
    /// many subjects, and one that is full refuses a record and may accept the next. Records without a
    /// key have no order. A record that is not acknowledged in time is sent again on the same
    /// connection; either copy's acknowledgement counts. A subject is a lane: one that no stream accepts
    /// holds back no other one.
    Keyed(SinkThread<KeyQueues, Arc<Settings>>),
    /// The first records of the queue are a batch, of which each message names the one that it
    /// follows. The next batch is sent when all of it is answered. All records are in order, so a record
    /// that is refused for good holds back all others until it is withdrawn. Its dead letter follows no
    /// message.
    Chained(SinkThread<BatchQueue, Arc<Settings>>),
}

type Shared = walrelay_sink_client::Shared<KeyQueues, Arc<Settings>>;

/// Checks a record as far as possible without asking a server.
pub(crate) fn check_record(record: &Record<'_>, settings: &Settings) -> Result<u64, DeliveryError> {
    let checked = message::check(record, settings.max_message);
    checked.map_err(|(poison, reason)| DeliveryError::poison(record.topic, poison, reason))
}

impl Sink for NatsSink {
    fn try_send(&mut self, record: &Record<'_>, seq: u64) -> Result<(), SendError> {
        let (settings, stats) = match &*self {
            Self::Keyed(thread) => (&thread.shared.settings, &thread.shared.stats),
            Self::Chained(thread) => (&thread.shared.settings, &thread.shared.stats),
        };
        let size = check_record(record, settings)?;
        let weight = record.payload_bytes() as u64 + RECORD_OVERHEAD;
        match &*self {
            Self::Keyed(thread) => thread.shared.accept(record, record.topic, seq, weight),
            Self::Chained(thread) => thread.shared.accept(record, record.topic, seq, weight),
        }?;
        stats.sizes.compare(record, size, settings.max_message);
        Ok(())
    }

    fn withdraw(&mut self, seq: u64, behind: bool) -> Vec<(u64, HeldRecord)> {
        match self {
            Self::Keyed(thread) => thread.shared.withdraw(seq, behind),
            Self::Chained(thread) => thread.shared.withdraw(seq, behind),
        }
    }

    fn waiting_for(&mut self) -> Option<Obstacle> {
        match self {
            Self::Keyed(thread) => thread.shared.waiting_for(),
            Self::Chained(thread) => {
                let known = thread.shared.state().obstacle.clone();
                known.or_else(|| thread.shared.stats.silence())
            }
        }
    }

    fn retrying(&self) -> Option<Retrying> {
        match self {
            Self::Keyed(thread) => thread.shared.retrying(),
            Self::Chained(thread) => {
                let shared = &thread.shared;
                let limit = u32::try_from(shared.settings.max_retrying_keys);
                let records = &shared.state().records;
                records.retrying(limit.unwrap_or(u32::MAX))
            }
        }
    }

    fn close(self: Box<Self>, grace: Duration) {
        match *self {
            Self::Keyed(thread) => thread.close(grace),
            Self::Chained(thread) => thread.close(grace),
        }
    }
}
