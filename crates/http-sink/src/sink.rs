//! [`HttpSink`] and its factory.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use walrelay_sink::{
    Deliveries, DeliveryError, Disposition, HeldRecord, KeyQueues, Obstacle, Poison, Record,
    Retrying, SendError, Sink, SinkFactory, SinkStats, StreamStart, Window,
};
use walrelay_sink_client::{Patience, SinkThread};

use crate::config::HttpConfig;
use crate::error::HttpError;
use crate::request::check_headers;
use crate::worker::{Shared, Worker, target};

/// The memory of a queued record in addition to its bytes.
const RECORD_OVERHEAD: usize = 512;

/// Makes sinks that send to the servers of a configuration.
#[derive(Clone)]
pub struct HttpSinkFactory {
    config: Arc<HttpConfig>,
    stats: Arc<SinkStats>,
    patience: Patience,
    /// The patience with destinations that are unavailable.
    outages: Option<Patience>,
}

impl fmt::Debug for HttpSinkFactory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("HttpSinkFactory")
            .field(&self.config)
            .finish()
    }
}

impl HttpSinkFactory {
    /// Creates a factory of sinks that count in `stats`.
    pub fn new(config: HttpConfig, stats: Arc<SinkStats>) -> Self {
        Self {
            patience: Patience::new(config.options.retry_for),
            outages: config.unavailable_for.map(|limit| {
                // An attempt may come so late: after the longest pause, and behind other destinations that
                // do not answer.
                let pause = config.retry_after_max.max(config.options.backoff_max);
                Patience::new(limit).with_memory(2 * limit + pause + 100 * config.timeout)
            }),
            config: Arc::new(config),
            stats,
        }
    }
}

impl SinkFactory for HttpSinkFactory {
    type Sink = HttpSink;
    type Error = HttpError;

    fn create(
        &mut self,
        _: Option<&StreamStart>,
        deliveries: Arc<dyn Deliveries>,
    ) -> Result<HttpSink, HttpError> {
        let HttpConfig {
            options,
            max_in_flight,
            ..
        } = &*self.config;
        let shared = Shared::new(
            // Half of the requests are left to destinations that answer.
            KeyQueues::new(options.max_retrying_keys as usize)
                .with_probes(*max_in_flight as usize / 2),
            Window::new(options.max_in_flight_records, options.max_in_flight_bytes)
                .with_aside(options.max_retrying_bytes),
            Arc::clone(&self.config),
            Arc::clone(&self.stats),
            deliveries,
        );
        let (patience, outages) = (self.patience.clone(), self.outages.clone());
        let thread = SinkThread::start("http-sink", shared, async move |shared| {
            Worker::new(shared, patience, outages).run().await
        });
        Ok(HttpSink(thread.map_err(HttpError::Thread)?))
    }

    fn disposition(error: &HttpError) -> Disposition {
        match error {
            HttpError::Thread(_) => Disposition::Retryable,
            _ => Disposition::Configuration,
        }
    }
}

/// A sink that sends each record as an HTTP request.
///
/// # Ordering
/// One request of a topic and key is in flight. A record that is refused for the moment holds back
/// only its key, until `max_retrying_keys` keys of its host and path are held back or
/// the bounds of records and bytes are reached. A record that is refused for good holds back its key
/// until the relay has decided about it.
pub struct HttpSink(SinkThread<KeyQueues, Arc<HttpConfig>>);

// Not derived, because records hold row values.
impl fmt::Debug for HttpSink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HttpSink").finish_non_exhaustive()
    }
}

fn refuse(record: &Record<'_>, poison: Poison, reason: String) -> SendError {
    SendError::Refused(DeliveryError::poison(record.topic, poison, reason))
}

impl Sink for HttpSink {
    fn try_send(&mut self, record: &Record<'_>, seq: u64) -> Result<(), SendError> {
        let shared = &self.0.shared;
        let target = target(&shared.settings, record)
            .map_err(|reason| refuse(record, Poison::Unroutable, reason))?;
        if let Err((poison, reason)) = check_headers(record) {
            return Err(refuse(record, poison, reason));
        }
        let weight = (record.payload_bytes() + record.topic.len() + RECORD_OVERHEAD) as u64;
        shared.accept(record, &target.lane(), seq, weight)
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
