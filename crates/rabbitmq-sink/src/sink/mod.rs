//! The sink.

mod exchanges;
mod in_flight;
mod publisher;
#[cfg(test)]
mod tests;
mod worker;

use std::sync::Arc;
use std::time::Duration;

use walrelay_sink::{
    Deliveries, DeliveryError, Disposition, HeldRecord, KeyQueues, Obstacle, Record, Retrying,
    SendError, Sink, SinkFactory, SinkStats, StreamStart, Window,
};
use walrelay_sink_client::{ClientError as _, Patience, SinkThread};

use crate::client::Login;
use crate::client::declare::Declare;
use crate::client::error::RabbitmqError;
use crate::client::publish::{self, DeadLetterAddress};

/// Bytes of the bookkeeping for each record in flight.
const RECORD_OVERHEAD: u64 = 256;

/// The settings of a sink besides the login.
#[derive(Debug, Clone)]
pub(crate) struct Settings {
    pub(crate) max_records: u64,
    pub(crate) max_bytes: u64,
    /// Bytes of records that wait for a destination which refuses them, beyond those.
    pub(crate) max_retrying_bytes: u64,
    /// Keys of an exchange that may wait to be sent again before its others wait too.
    pub(crate) max_retrying_keys: usize,
    /// The number of channels.
    pub(crate) channels: u16,
    /// The largest value in bytes.
    pub(crate) max_message: u64,
    /// Whether a queue may be a stream.
    pub(crate) streams: bool,
    /// The longest wait for the next confirm.
    pub(crate) confirm: Duration,
    /// The age of a channel from which on it is replaced when a queue refuses a message.
    pub(crate) renew: Duration,
    /// The first and the longest pause before a connection is tried again, and before a message is
    /// sent again. Pauses double.
    pub(crate) pauses: (Duration, Duration),
    pub(crate) dead_letters: DeadLetterAddress,
    /// For how long events that no queue accepts, and exchanges that accept none, are tried again.
    pub(crate) refusals: Patience,
    /// Declared after each login; `None`: nothing.
    pub(crate) declare: Option<Declare>,
}

/// Makes sinks that publish to RabbitMQ.
#[derive(Debug, Clone)]
pub(crate) struct RabbitmqSinkFactory {
    pub(crate) login: Arc<Login>,
    pub(crate) settings: Arc<Settings>,
    pub(crate) stats: Arc<SinkStats>,
}

impl SinkFactory for RabbitmqSinkFactory {
    type Sink = RabbitmqSink;
    type Error = RabbitmqError;

    fn create(
        &mut self,
        _: Option<&StreamStart>,
        deliveries: Arc<dyn Deliveries>,
    ) -> Result<RabbitmqSink, RabbitmqError> {
        let settings = Arc::clone(&self.settings);
        let window = Window::new(settings.max_records, settings.max_bytes)
            .with_aside(settings.max_retrying_bytes);
        let queues = KeyQueues::new(settings.max_retrying_keys);
        let shared = Shared::new(
            queues,
            window,
            settings,
            Arc::clone(&self.stats),
            deliveries,
        );
        let login = Arc::clone(&self.login);
        let thread = SinkThread::start("rabbitmq", shared, async move |shared| {
            worker::carry(&login, &shared).await
        })?;
        Ok(RabbitmqSink(thread))
    }

    fn disposition(error: &RabbitmqError) -> Disposition {
        error.disposition()
    }
}

/// Publishes records on its own thread, which has one connection.
///
/// # Ordering
/// At most one record of an exchange and key is in flight ([`KeyQueues`]; the topic of an event is its
/// exchange): a queue that is full refuses it, and none that follows is taken before it. The routing
/// key does not count, because a queue may be bound for several. Records without a key have no order.
///
/// # After a failure
/// After a connection that breaks, and a channel that the server closes because of one record, the
/// records in flight on it are sent again: the server may have them or not. A record that is refused for
/// good is reported at once, and no other one is sent again because of it. An exchange that is missing or
/// may not be written to holds back its own records only.
pub(crate) struct RabbitmqSink(SinkThread<KeyQueues, Arc<Settings>>);

type Shared = walrelay_sink_client::Shared<KeyQueues, Arc<Settings>>;

/// Checks a record as far as possible without asking a server.
pub(crate) fn check_record(record: &Record<'_>, settings: &Settings) -> Result<u64, DeliveryError> {
    let checked = publish::check(record, &settings.dead_letters, settings.max_message);
    checked.map_err(|(poison, reason)| DeliveryError::poison(record.topic, poison, reason))
}

impl Sink for RabbitmqSink {
    fn try_send(&mut self, record: &Record<'_>, seq: u64) -> Result<(), SendError> {
        let shared = &self.0.shared;
        let size = check_record(record, &shared.settings)?;
        let lane = publish::address(record, &shared.settings.dead_letters).exchange;
        let weight = record.payload_bytes() as u64 + RECORD_OVERHEAD;
        shared.accept(record, lane, seq, weight)?;
        let limit = shared.settings.max_message;
        shared.stats.sizes.compare(record, size, limit);
        Ok(())
    }

    fn withdraw(&mut self, seq: u64, behind: bool) -> Vec<(u64, HeldRecord)> {
        self.0.shared.withdraw(seq, behind)
    }

    fn waiting_for(&mut self) -> Option<Obstacle> {
        self.0.shared.waiting_for()
    }

    fn retrying(&self) -> Option<Retrying> {
        self.0.shared.retrying()
    }

    fn close(self: Box<Self>, grace: Duration) {
        self.0.close(grace);
    }
}
