//! [`HttpSink`] and its factory.

use std::fmt;
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use tokio::runtime;
use tokio::sync::Notify;
use walrelay_sink::{
    Deliveries, DeliveryError, Disposition, KeyQueues, Obstacle, Poison, Record, SendError, Sink,
    SinkFactory, SinkStats, StreamStart, Window, in_current_span, lock,
};
use walrelay_sink_client::RefusalClocks;

use crate::config::HttpConfig;
use crate::error::HttpError;
use crate::request::check_headers;
use crate::worker::{Shared, SharedState, Worker, target};

/// The memory of a queued record beside its bytes.
const RECORD_OVERHEAD: usize = 512;

/// Makes sinks that send to the servers of a configuration.
#[derive(Clone)]
pub struct HttpSinkFactory {
    config: Arc<HttpConfig>,
    stats: Arc<SinkStats>,
    refused_since: RefusalClocks,
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
            refused_since: RefusalClocks::new(config.options.max_in_flight_records),
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
        let options = &self.config.options;
        let max_retrying = self.config.max_retrying_keys as usize;
        let shared = Arc::new(Shared {
            window: Window::new(options.max_in_flight_records, options.max_in_flight_bytes),
            state: Mutex::new(SharedState {
                queues: KeyQueues::new(max_retrying),
                open: 0,
                deadline: None,
                stopped: None,
                obstacle: None,
            }),
            wake: Notify::new(),
            stats: Arc::clone(&self.stats),
        });
        let runtime = runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let worker = Worker::new(
            Arc::clone(&self.config),
            Arc::clone(&shared),
            deliveries,
            self.refused_since.clone(),
        );
        let thread = thread::Builder::new()
            .name("http-sink".to_owned())
            .spawn(in_current_span(move || {
                runtime.block_on(worker.run());
                // A name that is being resolved must not delay the end.
                runtime.shutdown_background();
            }))?;
        Ok(HttpSink {
            config: Arc::clone(&self.config),
            shared,
            thread: Some(thread),
        })
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
/// its key alone, until [`HttpConfig::max_retrying_keys`] keys are held back or the bounds of records
/// and bytes are reached. Then all keys wait.
pub struct HttpSink {
    config: Arc<HttpConfig>,
    shared: Arc<Shared>,
    /// `None` after it has ended.
    thread: Option<JoinHandle<()>>,
}

// Not derived, because records hold row values.
impl fmt::Debug for HttpSink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HttpSink").finish_non_exhaustive()
    }
}

impl HttpSink {
    fn shut_down(&mut self, grace: Duration) {
        let Some(thread) = self.thread.take() else {
            return;
        };
        let now = Instant::now();
        let longest = Duration::from_secs(365 * 24 * 3_600);
        lock(&self.shared.state).deadline = Some(now + grace.min(longest));
        self.shared.wake.notify_one();
        // The thread reports every record before it ends. It has reported a panic itself.
        let _ = thread.join();
    }
}

fn refuse(record: &Record<'_>, poison: Poison, reason: String) -> SendError {
    SendError::Refused(DeliveryError {
        topic: Arc::from(record.topic),
        reason,
        disposition: Disposition::Fatal,
        poison: Some(poison),
    })
}

impl Sink for HttpSink {
    fn try_send(&mut self, record: &Record<'_>, seq: u64) -> Result<(), SendError> {
        if let Err(reason) = target(&self.config, record) {
            return Err(refuse(record, Poison::Unroutable, reason));
        }
        if let Err((poison, reason)) = check_headers(record) {
            return Err(refuse(record, poison, reason));
        }
        let mut state = lock(&self.shared.state);
        if let Some(stopped) = &state.stopped {
            return Err(SendError::Refused(DeliveryError {
                topic: Arc::from(record.topic),
                reason: stopped.reason.clone(),
                disposition: stopped.disposition,
                poison: None,
            }));
        }
        let weight = (record.payload_bytes() + record.topic.len() + RECORD_OVERHEAD) as u64;
        if !self.shared.window.try_take(weight) {
            return Err(SendError::Full);
        }
        state.queues.push(record, seq, weight);
        state.open += 1;
        drop(state);
        self.shared.window.update_stats(&self.shared.stats);
        self.shared.wake.notify_one();
        Ok(())
    }

    fn waiting_for(&mut self) -> Option<Obstacle> {
        let known = lock(&self.shared.state).obstacle.clone();
        known.or_else(|| self.shared.stats.silence())
    }

    fn close(mut self: Box<Self>, grace: Duration) {
        self.shut_down(grace);
    }
}

impl Drop for HttpSink {
    fn drop(&mut self) {
        self.shut_down(Duration::ZERO);
    }
}
