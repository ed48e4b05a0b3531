//! The sink, and the state that it shares with its thread.

mod session;
#[cfg(test)]
mod tests;
mod unacked;
mod worker;

use std::collections::HashMap;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use tokio::sync::Notify;
use walrelay_sink::{
    Deliveries, DeliveryError, Disposition, EventPosition, KeyQueues, Obstacle, QueuedRecord,
    Record, SendError, Sink, SinkFactory, SinkStats, StreamStart, Window, in_current_span, lock,
};

use crate::client::Login;
use crate::client::error::NatsError;
use crate::client::message;

/// Bytes of the bookkeeping for each record in flight.
const RECORD_OVERHEAD: u64 = 256;
/// Keys whose event is sent again, before all others wait too.
const MAX_BLOCKED_KEYS: usize = 1_000;
/// A grace that does not end.
const FOREVER: Duration = Duration::from_secs(100 * 365 * 24 * 3_600);

/// The settings of a sink besides the login.
#[derive(Debug, Clone)]
pub(crate) struct Settings {
    pub(crate) max_records: u64,
    pub(crate) max_bytes: u64,
    /// The most bytes of headers and payload.
    pub(crate) max_message: u64,
    /// The longest wait for an acknowledgement, and for a sign of the server.
    pub(crate) ack: Duration,
    /// The first and the longest pause before a connection is tried again, and before a message is
    /// sent again. Pauses double.
    pub(crate) pauses: (Duration, Duration),
    /// The time for which an event that no stream takes is sent again.
    pub(crate) retry_for: Duration,
}

/// Since when no stream takes events. Outlives a sink, as the relay makes another one to send a refused
/// event alone.
pub(crate) type UnroutableSince = Arc<Mutex<HashMap<EventPosition, Instant>>>;

/// Makes sinks that publish to NATS.
#[derive(Debug, Clone)]
pub(crate) struct NatsSinkFactory {
    pub(crate) login: Arc<Login>,
    pub(crate) settings: Arc<Settings>,
    pub(crate) stats: Arc<SinkStats>,
    pub(crate) unroutable_since: UnroutableSince,
}

impl SinkFactory for NatsSinkFactory {
    type Sink = NatsSink;
    type Error = NatsError;

    fn create(
        &mut self,
        _: Option<&StreamStart>,
        deliveries: Arc<dyn Deliveries>,
    ) -> Result<NatsSink, NatsError> {
        let shared = Arc::new(Shared {
            state: Mutex::new(State {
                queues: KeyQueues::new(MAX_BLOCKED_KEYS).of_all_topics(),
                broken: None,
                closing: None,
                obstacle: None,
                refusal: None,
            }),
            wake: Notify::new(),
            window: Window::new(self.settings.max_records, self.settings.max_bytes),
            deliveries,
            stats: Arc::clone(&self.stats),
            settings: Arc::clone(&self.settings),
            unroutable_since: Arc::clone(&self.unroutable_since),
        });
        let login = Arc::clone(&self.login);
        let of_thread = Arc::clone(&shared);
        let run = in_current_span(move || worker::run(&login, &of_thread));
        let thread = thread::Builder::new().name("nats".to_owned()).spawn(run);
        let thread = thread.map_err(|source| NatsError::Io {
            address: "the thread of the connection".to_owned(),
            source,
        })?;
        Ok(NatsSink {
            shared,
            thread: Some(thread),
        })
    }

    fn disposition(error: &NatsError) -> Disposition {
        error.disposition()
    }
}

/// Publishes records on a thread of its own, which has one connection.
///
/// # Ordering
/// At most one record of a key is in flight ([`KeyQueues`]), whatever its subject: a stream has many
/// subjects, and one that is full refuses a record and may take the next. Records without a key have
/// no order.
///
/// # After a failure
/// After a connection that breaks, the records in flight are sent again with the same ids: the server
/// may have them or not. A record that is not acknowledged in time is sent again on the same
/// connection; either copy's acknowledgement counts. A record that is refused for good ends the sink
/// when no other one is in flight.
pub(crate) struct NatsSink {
    shared: Arc<Shared>,
    /// `None` after the thread was joined.
    thread: Option<JoinHandle<()>>,
}

struct Shared {
    state: Mutex<State>,
    /// Wakes the thread: a record came, or the sink closes.
    wake: Notify,
    window: Window,
    deliveries: Arc<dyn Deliveries>,
    stats: Arc<SinkStats>,
    settings: Arc<Settings>,
    unroutable_since: UnroutableSince,
}

struct State {
    queues: KeyQueues,
    /// Why the sink accepts nothing any more.
    broken: Option<Failure>,
    /// When a closing sink gives up.
    closing: Option<Instant>,
    /// Why nothing can be sent at the moment.
    obstacle: Option<Obstacle>,
    /// Why the server has refused records that are sent again.
    refusal: Option<Obstacle>,
}

/// The reason why records failed that are not at fault.
#[derive(Debug, Clone)]
struct Failure {
    class: &'static str,
    reason: String,
    disposition: Disposition,
}

impl Failure {
    fn of(&self, topic: &str) -> DeliveryError {
        DeliveryError {
            topic: topic.into(),
            reason: self.reason.clone(),
            disposition: self.disposition,
            poison: None,
        }
    }
}

impl Shared {
    /// Reports a record that was taken out of the queues.
    fn report(&self, queued: &QueuedRecord, result: Result<(), (&'static str, DeliveryError)>) {
        let (topic, bytes) = queued
            .record
            .with(|record| (self.stats.topic(record.topic), record.payload_bytes()));
        match result {
            Ok(()) => {
                topic.delivered.fetch_add(1, Relaxed);
                topic.delivered_bytes.fetch_add(bytes as u64, Relaxed);
                self.deliveries.delivered(queued.seq);
            }
            Err((class, error)) => {
                topic.failed.fetch_add(1, Relaxed);
                self.stats.failed(class.to_owned());
                self.deliveries.failed(queued.seq, error);
            }
        }
        if self.window.give_back(queued.weight) {
            self.deliveries.capacity();
        }
        self.window.update_stats(&self.stats);
    }

    /// Ends the sink: all its records have failed.
    fn end(&self, failure: &Failure) {
        let all = {
            let mut state = lock(&self.state);
            state.broken = Some(failure.clone());
            state.queues.take_all()
        };
        for queued in all {
            let error = queued.record.with(|record| failure.of(record.topic));
            self.report(&queued, Err((failure.class, error)));
        }
        self.deliveries.capacity();
    }

    fn set_obstacle(&self, obstacle: Option<Obstacle>) {
        lock(&self.state).obstacle = obstacle;
    }
}

impl Sink for NatsSink {
    fn try_send(&mut self, record: &Record<'_>, seq: u64) -> Result<(), SendError> {
        let shared = &self.shared;
        let checked = message::check(record, shared.settings.max_message);
        checked.map_err(|(poison, reason)| DeliveryError {
            topic: record.topic.into(),
            reason,
            disposition: Disposition::Fatal,
            poison: Some(poison),
        })?;
        let mut state = lock(&shared.state);
        if let Some(failure) = &state.broken {
            return Err(failure.of(record.topic).into());
        }
        let weight = record.payload_bytes() as u64 + RECORD_OVERHEAD;
        if !shared.window.try_take(weight) {
            return Err(SendError::Full);
        }
        state.queues.push(record, seq, weight);
        drop(state);
        shared.wake.notify_one();
        Ok(())
    }

    fn waiting_for(&mut self) -> Option<Obstacle> {
        let state = lock(&self.shared.state);
        let is_refused = state.queues.blocked() > 0;
        let refusal = state.refusal.as_ref().filter(|_| is_refused);
        state.obstacle.as_ref().or(refusal).cloned()
    }

    fn close(mut self: Box<Self>, grace: Duration) {
        self.stop(grace);
    }
}

impl NatsSink {
    fn stop(&mut self, grace: Duration) {
        let now = Instant::now();
        lock(&self.shared.state).closing = Some(now + grace.min(FOREVER));
        self.shared.wake.notify_one();
        if let Some(thread) = self.thread.take() {
            let panicked = thread.join().is_err();
            if panicked {
                self.shared.end(&Failure {
                    class: "broken",
                    reason: "the thread of the connection ended".to_owned(),
                    disposition: Disposition::Fatal,
                });
            }
        }
    }
}

impl Drop for NatsSink {
    fn drop(&mut self) {
        self.stop(Duration::ZERO);
    }
}
