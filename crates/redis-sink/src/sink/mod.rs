//! The sink, and the state that it shares with its thread.

mod batch;
mod entry;
mod plan;
mod streams;
#[cfg(test)]
mod tests;
mod wait;
mod worker;

use std::collections::VecDeque;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use tokio::sync::Notify;
use walrelay_sink::{
    Deliveries, DeliveryError, Disposition, HeldRecord, Obstacle, Record, SendError, Sink,
    SinkFactory, SinkStats, StreamStart, Window, in_current_span, lock,
};

use crate::client::Login;
use crate::client::error::RedisError;
use crate::section::Ids;

pub(crate) use wait::Wait;

/// Bytes of the bookkeeping for each record in flight.
const RECORD_OVERHEAD: u64 = 256;
/// A grace that does not end.
const FOREVER: Duration = Duration::from_secs(100 * 365 * 24 * 3_600);

/// The settings of a sink besides the login.
#[derive(Debug, Clone)]
pub(crate) struct Settings {
    pub(crate) max_records: u64,
    pub(crate) max_bytes: u64,
    /// The most bytes of key, value, headers, id and the stream's name of an event.
    pub(crate) max_message: u64,
    /// The longest wait for the answers to a transaction.
    pub(crate) reply: Duration,
    /// The first and the longest pause before a connection is tried again, and before a transaction
    /// is sent again. Pauses double.
    pub(crate) pauses: (Duration, Duration),
    pub(crate) ids: Ids,
    pub(crate) wait: Wait,
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
        let shared = Arc::new(Shared {
            state: Mutex::default(),
            wake: Notify::new(),
            window: Window::new(self.settings.max_records, self.settings.max_bytes),
            deliveries,
            stats: Arc::clone(&self.stats),
            settings: Arc::clone(&self.settings),
        });
        let login = Arc::clone(&self.login);
        let of_thread = Arc::clone(&shared);
        let run = in_current_span(move || worker::run(&login, &of_thread));
        let thread = thread::Builder::new().name("redis".to_owned()).spawn(run);
        let thread = thread.map_err(|source| RedisError::Io {
            address: "the thread of the connection".to_owned(),
            source,
        })?;
        Ok(RedisSink {
            shared,
            thread: Some(thread),
        })
    }

    fn disposition(error: &RedisError) -> Disposition {
        error.disposition()
    }
}

/// Writes records on a thread of its own, which has one connection.
///
/// # Ordering
/// The first records of the queue are one transaction (`MULTI`, `XADD` for each, `EXEC`). The next
/// one is sent when all replies are read. So a lack of memory refuses all of them, and no later
/// record is stored before one that was refused.
///
/// # After a failure
/// After a connection that breaks, the transaction is sent again: the server has all of it or
/// nothing. With ids that are positions, entries that are there are found, and not written again.
pub(crate) struct RedisSink {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

/// The state that a sink and its thread share.
struct Shared {
    state: Mutex<State>,
    /// Notified when a record was queued, or the sink closes.
    wake: Notify,
    window: Window,
    deliveries: Arc<dyn Deliveries>,
    stats: Arc<SinkStats>,
    settings: Arc<Settings>,
}

#[derive(Default)]
struct State {
    /// Accepted records, in order. Only the thread removes any.
    queue: VecDeque<Queued>,
    /// Why the sink accepts nothing any more.
    broken: Option<Failure>,
    /// When a closing sink gives up.
    closing: Option<Instant>,
    /// Why nothing can be written at the moment.
    obstacle: Option<Obstacle>,
}

/// An accepted record.
struct Queued {
    seq: u64,
    weight: u64,
    record: HeldRecord,
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
    /// Reports a record that was taken out of the queue.
    fn report(&self, queued: &Queued, result: Result<(), (&'static str, DeliveryError)>) {
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
            std::mem::take(&mut state.queue)
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

    /// Returns true if the sink is to end: it is closed, and its grace is over or it has no record.
    fn is_over(&self) -> bool {
        let closing = lock(&self.state).closing;
        closing.is_some_and(|at| at <= Instant::now() || self.window.in_flight() == 0)
    }

    /// Runs an action until the sink is to end; `None`: it is.
    async fn unless_over<T>(&self, action: impl Future<Output = T>) -> Option<T> {
        let mut action = std::pin::pin!(action);
        loop {
            let closing = lock(&self.state).closing;
            let end = closing.unwrap_or_else(|| Instant::now() + FOREVER);
            tokio::select! {
                biased;
                done = &mut action => return Some(done),
                () = tokio::time::sleep_until(end.into()) => {}
                () = self.wake.notified() => {}
            }
            if self.is_over() {
                return None;
            }
        }
    }
}

impl Sink for RedisSink {
    fn try_send(&mut self, record: &Record<'_>, seq: u64) -> Result<(), SendError> {
        let shared = &self.shared;
        entry::check(record, shared.settings.max_message).map_err(|(poison, reason)| {
            DeliveryError {
                topic: record.topic.into(),
                reason,
                disposition: Disposition::Fatal,
                poison: Some(poison),
            }
        })?;
        let mut state = lock(&shared.state);
        if let Some(failure) = &state.broken {
            return Err(failure.of(record.topic).into());
        }
        let weight = entry::size(record) + RECORD_OVERHEAD;
        if !shared.window.try_take(weight) {
            return Err(SendError::Full);
        }
        state.queue.push_back(Queued {
            seq,
            weight,
            record: HeldRecord::new(record),
        });
        drop(state);
        shared.wake.notify_one();
        Ok(())
    }

    fn waiting_for(&mut self) -> Option<Obstacle> {
        lock(&self.shared.state).obstacle.clone()
    }

    fn close(mut self: Box<Self>, grace: Duration) {
        self.stop(grace);
    }
}

impl RedisSink {
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

impl Drop for RedisSink {
    fn drop(&mut self) {
        self.stop(Duration::ZERO);
    }
}
