//! The sink.

mod batch;
mod contents;
mod entry;
mod plan;
mod round;
mod streams;
#[cfg(test)]
mod tests;
mod wait;
mod worker;

use std::sync::Arc;
use std::time::Duration;

use walrelay_sink::{
    Deliveries, DeliveryError, Disposition, HeldRecord, Obstacle, Record, Retrying, SendError,
    Sink, SinkFactory, SinkStats, StreamStart, Window,
};
use walrelay_sink_client::{BatchQueue, ClientError as _, Patience, SinkThread};

use crate::client::Login;
use crate::client::error::RedisError;
use crate::section::Ids;

pub(crate) use entry::{EntryId, ReadEntry, extent, newest, read_entries};
pub(crate) use wait::Wait;

/// Bytes of the bookkeeping for each record in flight.
const RECORD_OVERHEAD: u64 = 256;

/// The settings of a sink besides the login.
#[derive(Debug, Clone)]
pub(crate) struct Settings {
    pub(crate) max_records: u64,
    pub(crate) max_bytes: u64,
    /// Bytes of records that wait for a destination which refuses them, beyond those.
    pub(crate) max_retrying_bytes: u64,
    /// The most keys of a stream that may wait, for views: a stream that is refused waits as a whole.
    pub(crate) max_retrying_keys: u32,
    /// The most bytes of key, value, headers, id and the stream's name of an event.
    pub(crate) max_message: u64,
    /// The longest wait for the answers to a transaction.
    pub(crate) reply: Duration,
    /// The first and the longest pause before a connection is tried again, and before a transaction
    /// is sent again. Pauses double.
    pub(crate) pauses: (Duration, Duration),
    pub(crate) ids: Ids,
    /// The time after which it is asked again what a stream has that is written to.
    pub(crate) look_every: Duration,
    pub(crate) wait: Wait,
    /// For how long an event of a stream that is refused is sent again.
    pub(crate) refusals: Patience,
}

/// Makes sinks that write to Redis.
#[derive(Debug, Clone)]
pub(crate) struct RedisSinkFactory {
    pub(crate) login: Arc<Login>,
    pub(crate) settings: Arc<Settings>,
    pub(crate) stats: Arc<SinkStats>,
}

impl SinkFactory for RedisSinkFactory {
    type Sink = RedisSink;
    type Error = RedisError;

    fn create(
        &mut self,
        _: Option<&StreamStart>,
        deliveries: Arc<dyn Deliveries>,
    ) -> Result<RedisSink, RedisError> {
        let settings = Arc::clone(&self.settings);
        let window = Window::new(settings.max_records, settings.max_bytes)
            .with_aside(settings.max_retrying_bytes);
        let stats = Arc::clone(&self.stats);
        let shared = Shared::new(BatchQueue::default(), window, settings, stats, deliveries);
        let login = Arc::clone(&self.login);
        let thread = SinkThread::start("redis", shared, async move |shared| {
            worker::carry(&login, &shared).await
        })?;
        Ok(RedisSink(thread))
    }

    fn disposition(error: &RedisError) -> Disposition {
        error.disposition()
    }
}

/// Writes records on its own thread, which has one connection, or one to each node of a cluster that
/// is needed.
///
/// # Ordering
/// The first records of the queue are one transaction (`MULTI`, `XADD` for each, `EXEC`), in a cluster one
/// for each slot. The next ones are sent when all replies are read. So a lack of memory refuses all of
/// them, and no later record of a stream is stored before one that was refused.
///
/// # After a failure
/// After a connection that breaks, the transaction is sent again: the server has all of it or
/// nothing. With ids that are positions, existing entries are found, and not written again.
///
/// # Refusals
/// A stream that is refused holds back its own records, which are tried again for `retry_for`. A record
/// that is refused for good holds back the later ones of its stream and key until it is withdrawn. All
/// others go on.
pub(crate) struct RedisSink(SinkThread<BatchQueue, Arc<Settings>>);

type Shared = walrelay_sink_client::Shared<BatchQueue, Arc<Settings>>;

/// Checks a record as far as possible without asking a server.
pub(crate) fn check_record(record: &Record<'_>, settings: &Settings) -> Result<u64, DeliveryError> {
    entry::check(record, settings.max_message)
        .map_err(|(poison, reason)| DeliveryError::poison(record.topic, poison, reason))
}

impl Sink for RedisSink {
    fn try_send(&mut self, record: &Record<'_>, seq: u64) -> Result<(), SendError> {
        let shared = &self.0.shared;
        let size = check_record(record, &shared.settings)?;
        let weight = size + RECORD_OVERHEAD;
        shared.accept(record, record.topic, seq, weight)?;
        let limit = shared.settings.max_message;
        shared.stats.sizes.compare(record, size, limit);
        Ok(())
    }

    fn withdraw(&mut self, seq: u64, behind: bool) -> Vec<(u64, HeldRecord)> {
        self.0.shared.withdraw(seq, behind)
    }

    fn waiting_for(&mut self) -> Option<Obstacle> {
        let state = self.0.shared.state();
        let known = state.obstacle.as_ref().or(state.refusal.as_ref()).cloned();
        drop(state);
        known.or_else(|| self.0.shared.stats.silence())
    }

    fn retrying(&self) -> Option<Retrying> {
        let shared = &self.0.shared;
        let limit = shared.settings.max_retrying_keys;
        shared.state().records.retrying(limit)
    }

    fn close(self: Box<Self>, grace: Duration) {
        self.0.close(grace);
    }
}
