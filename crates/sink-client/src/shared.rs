//! The state that a sink and its thread share.

use std::convert::Infallible;
use std::fmt;
use std::future::Future;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use tokio::sync::Notify;
use walrelay_sink::{
    Deliveries, DeliveryError, Disposition, HeldRecord, KeyQueues, Obstacle, Poison, QueuedRecord,
    Record, Refusal, Retrying, SendError, SinkStats, Window, lock,
};

use crate::ClientError;

/// A grace that does not end.
pub const FOREVER: Duration = Duration::from_secs(100 * 365 * 24 * 3_600);

/// The interval at which a full sink looks for records to set aside.
const ASIDE_INTERVAL: Duration = Duration::from_millis(100);

/// The accepted records of a sink that are not reported.
pub trait Queue: Send + 'static {
    /// Appends a record of a lane that has taken `weight` bytes of the window.
    fn push(&mut self, record: &Record<'_>, lane: &str, seq: u64, weight: u64);
    /// Notes that a record that was sent is refused for good. `None` if it was not sent.
    fn refuse(&mut self, seq: u64) -> Option<&QueuedRecord>;
    /// Removes a record that was refused for good; with `behind`, it removes the later records of its key
    /// too.
    fn withdraw(&mut self, seq: u64, behind: bool) -> Vec<QueuedRecord>;
    /// Sets records aside that wait for a destination which refuses them, see [`Window::set_aside`].
    fn set_aside(&mut self, window: &Window);
    /// Returns true if records have begun to wait since the last [`set_aside`](Self::set_aside).
    fn waits_anew(&self) -> bool;
    /// Removes all records, without those that are refused for good.
    fn take_all(&mut self) -> Vec<QueuedRecord>;
}

impl Queue for KeyQueues {
    fn push(&mut self, record: &Record<'_>, lane: &str, seq: u64, weight: u64) {
        self.push(record, lane, seq, weight);
    }

    fn refuse(&mut self, seq: u64) -> Option<&QueuedRecord> {
        self.refuse(seq)
    }

    fn withdraw(&mut self, seq: u64, behind: bool) -> Vec<QueuedRecord> {
        self.withdraw(seq, behind)
    }

    fn set_aside(&mut self, window: &Window) {
        self.set_aside(window);
    }

    fn waits_anew(&self) -> bool {
        self.waits_anew()
    }

    fn take_all(&mut self) -> Vec<QueuedRecord> {
        self.take_all()
    }
}

/// The reason why records failed that are not at fault.
#[derive(Debug, Clone)]
pub struct Failure {
    /// The class, as metrics count it.
    pub class: &'static str,
    /// The reason in words.
    pub reason: String,
    /// The reaction.
    pub disposition: Disposition,
}

impl Failure {
    /// Makes the failure of records that the server may have or not, because the sink was closed.
    pub fn closed() -> Self {
        Self {
            class: "closed",
            reason: "the sink was closed before the server had confirmed the record".to_owned(),
            disposition: Disposition::Retryable,
        }
    }

    /// Makes the failure of records of a sink that ends because of another record.
    pub fn with_another() -> Self {
        Self {
            class: "given up",
            reason: "given up with another record, which was refused".to_owned(),
            disposition: Disposition::Retryable,
        }
    }

    /// Makes the failure of records of a sink whose thread cannot go on.
    pub(crate) fn broken(reason: String, disposition: Disposition) -> Self {
        Self {
            class: "broken",
            reason,
            disposition,
        }
    }

    fn to_error(&self, topic: &str) -> DeliveryError {
        DeliveryError {
            topic: topic.into(),
            reason: self.reason.clone(),
            disposition: self.disposition,
            poison: None,
        }
    }
}

/// The state of a sink. Only the thread removes records.
#[derive(Debug)]
pub struct SinkState<Q> {
    /// Accepted records.
    pub records: Q,
    /// Why nothing can be sent at the moment.
    pub obstacle: Option<Obstacle>,
    /// Why the server has refused records that are sent again alone.
    pub refusal: Option<Obstacle>,
    /// When a closing sink gives up.
    pub closing: Option<Instant>,
    /// When records were set aside.
    made_room: Option<Instant>,
    /// The last record found no room, and the sender was not woken since.
    is_full: bool,
    /// Why the sink accepts nothing any more.
    broken: Option<Failure>,
}

/// The state while it is locked. Its end wakes the sender of a full sink if further records may be set aside.
#[derive(Debug)]
pub struct StateGuard<'a, Q: Queue> {
    state: MutexGuard<'a, SinkState<Q>>,
    room: &'a Notify,
}

impl<Q: Queue> Deref for StateGuard<'_, Q> {
    type Target = SinkState<Q>;

    fn deref(&self) -> &SinkState<Q> {
        &self.state
    }
}

impl<Q: Queue> DerefMut for StateGuard<'_, Q> {
    fn deref_mut(&mut self) -> &mut SinkState<Q> {
        &mut self.state
    }
}

impl<Q: Queue> Drop for StateGuard<'_, Q> {
    fn drop(&mut self) {
        if self.state.is_full && self.state.records.waits_anew() {
            self.room.notify_one();
        }
    }
}

/// The state that a sink and its thread share. `S`: the settings of the kind of sink.
pub struct Shared<Q, S> {
    state: Mutex<SinkState<Q>>,
    /// Wakes the thread: a record came, or the sink closes.
    pub wake: Notify,
    /// Further records may be set aside, and the sink may be full.
    room: Notify,
    /// The bounds of the records in flight.
    pub window: Window,
    /// The settings of the sink.
    pub settings: S,
    /// The figures of the sink.
    pub stats: Arc<SinkStats>,
    deliveries: Arc<dyn Deliveries>,
}

impl<Q: Queue, S> Shared<Q, S> {
    /// Creates the state of a sink without a record.
    pub fn new(
        records: Q,
        window: Window,
        settings: S,
        stats: Arc<SinkStats>,
        deliveries: Arc<dyn Deliveries>,
    ) -> Self {
        Self {
            state: Mutex::new(SinkState {
                records,
                obstacle: None,
                refusal: None,
                closing: None,
                made_room: None,
                is_full: false,
                broken: None,
            }),
            wake: Notify::new(),
            room: Notify::new(),
            window,
            settings,
            stats,
            deliveries,
        }
    }

    /// Locks the state.
    pub fn state(&self) -> StateGuard<'_, Q> {
        StateGuard {
            state: lock(&self.state),
            room: &self.room,
        }
    }

    /// Accepts a record of a lane that takes `weight` bytes of the window.
    ///
    /// # Errors
    /// If the window has no room, or the sink has ended.
    pub fn accept(
        &self,
        record: &Record<'_>,
        lane: &str,
        seq: u64,
        weight: u64,
    ) -> Result<(), SendError> {
        let mut state = self.state();
        if let Some(failure) = &state.broken {
            return Err(failure.to_error(record.topic).into());
        }
        if !self.window.try_take(weight) && !self.make_room(&mut state, weight) {
            state.is_full = true;
            return Err(SendError::Full);
        }
        state.is_full = false;
        state.records.push(record, lane, seq, weight);
        drop(state);
        self.stats.sizes.accepted(record);
        self.window.update_stats(&self.stats);
        self.wake.notify_one();
        Ok(())
    }

    /// Sets waiting records aside, and takes room again. At intervals: that takes a step for each key. If it is too
    /// early, the sender is woken when it is time.
    fn make_room(&self, state: &mut SinkState<Q>, weight: u64) -> bool {
        let now = Instant::now();
        if state.made_room.is_some_and(|at| now < at + ASIDE_INTERVAL) {
            self.room.notify_one();
            return false;
        }
        state.made_room = Some(now);
        state.records.set_aside(&self.window);
        self.window.try_take(weight)
    }

    /// Wakes the sender of a full sink when further records may be set aside, at intervals.
    pub(crate) async fn wake_for_room(&self) -> Infallible {
        loop {
            self.room.notified().await;
            let made_room = lock(&self.state).made_room;
            if let Some(at) = made_room {
                tokio::time::sleep_until((at + ASIDE_INTERVAL).into()).await;
            }
            let was_full = std::mem::take(&mut lock(&self.state).is_full);
            if was_full {
                self.deliveries.capacity();
            }
        }
    }

    /// Reports a record that was taken out of the queue. An error has its class, as metrics count it.
    pub fn report(&self, queued: &QueuedRecord, result: Result<(), (&'static str, DeliveryError)>) {
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
        self.give_back(queued.weight, queued.is_aside);
    }

    /// Gives back the room of a record that is reported, or taken back.
    fn give_back(&self, weight: u64, is_aside: bool) {
        let sender_waits = if is_aside {
            // The sender may look too early.
            self.room.notify_one();
            self.window.give_back_aside(weight)
        } else {
            self.window.give_back(weight)
        };
        if sender_waits {
            self.deliveries.capacity();
        }
        self.window.update_stats(&self.stats);
    }

    /// Reports that the server refuses a record that was sent for good. Its key waits until the record is
    /// [taken back](Self::withdraw).
    pub fn refuse(&self, seq: u64, poison: Poison, reason: String) {
        self.refuse_for(seq, (poison, Disposition::Fatal), reason);
    }

    /// Reports the same for an event or a destination that is at fault, see
    /// [`Refusal::disposition`](Refusal#structfield.disposition).
    pub fn refuse_for(
        &self,
        seq: u64,
        (poison, disposition): (Poison, Disposition),
        reason: String,
    ) {
        let mut state = self.state();
        let Some(queued) = state.records.refuse(seq) else {
            return;
        };
        let (weight, is_aside) = (queued.weight, queued.is_aside);
        let topic: Arc<str> = queued.record.with(|record| record.topic.into());
        drop(state);
        self.stats.topic(&topic).failed.fetch_add(1, Relaxed);
        self.stats.failed(poison.name().to_owned());
        let refusal = Refusal {
            topic,
            poison,
            reason,
            disposition,
        };
        self.deliveries.refused(seq, refusal);
        self.give_back(weight, is_aside);
    }

    /// Takes a refused record back, and with `behind` those of its key that follow it, see
    /// [`Sink::withdraw`](walrelay_sink::Sink::withdraw).
    pub fn withdraw(&self, seq: u64, behind: bool) -> Vec<(u64, HeldRecord)> {
        let withdrawn = self.state().records.withdraw(seq, behind);
        // The refused one has given its room back when it was reported.
        for queued in withdrawn.iter().skip(1) {
            self.give_back(queued.weight, queued.is_aside);
        }
        self.wake.notify_one();
        let numbered = withdrawn.into_iter();
        numbered.map(|queued| (queued.seq, queued.record)).collect()
    }

    /// Ends the sink: all its records have failed.
    pub(crate) fn end(&self, failure: &Failure) {
        let all = {
            let mut state = self.state();
            state.broken = Some(failure.clone());
            state.records.take_all()
        };
        for queued in all {
            let error = queued.record.with(|record| failure.to_error(record.topic));
            self.report(&queued, Err((failure.class, error)));
        }
        self.deliveries.capacity();
    }

    /// Shows why nothing can be sent, or that it can.
    pub fn set_obstacle(&self, obstacle: Option<Obstacle>) {
        self.state().obstacle = obstacle;
    }

    /// Shows that there is no connection.
    pub fn lost(&self, error: &impl ClientError) {
        let words = error.words();
        let mut state = self.state();
        state.refusal = None;
        state.obstacle = Some(Obstacle {
            what: words.cause(error),
            disposition: error.disposition(),
            remedy: Some(words.remedy),
        });
    }

    /// Returns true if the sink is to end: it is closed, and its grace is over or it has no record.
    pub fn is_over(&self) -> bool {
        let closing = self.state().closing;
        closing.is_some_and(|at| at <= Instant::now() || self.window.in_flight() == 0)
    }

    /// Runs an action until the sink is to end; `None`: it is.
    pub async fn unless_over<T>(&self, action: impl Future<Output = T>) -> Option<T> {
        let mut action = std::pin::pin!(action);
        loop {
            if self.is_over() {
                return None;
            }
            let closing = self.state().closing;
            let end = closing.unwrap_or_else(|| Instant::now() + FOREVER);
            tokio::select! {
                biased;
                done = &mut action => return Some(done),
                () = tokio::time::sleep_until(end.into()) => {}
                () = self.wake.notified() => {}
            }
        }
    }
}

/// Without the records and the settings.
impl<Q, S> fmt::Debug for Shared<Q, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared")
            .field("window", &self.window)
            .finish_non_exhaustive()
    }
}

/// The reason why records in flight are sent again.
const LOST: &str = "the connection was lost";

impl<S> Shared<KeyQueues, S> {
    /// Returns true if a record is to be sent again at `now`.
    pub fn is_due(&self, now: Instant) -> bool {
        let due = self.state().records.next_due();
        due.is_some_and(|due| due <= now)
    }

    /// Makes records in flight be sent again at once, because nothing says any longer what becomes of
    /// them.
    pub fn send_again(&self, in_flight: impl IntoIterator<Item = u64>) {
        let now = Instant::now();
        let mut state = self.state();
        for seq in in_flight {
            state.records.retry_at(seq, LOST, now);
        }
    }

    /// Returns which keys are held back, see [`Sink::retrying`](walrelay_sink::Sink::retrying).
    pub fn retrying(&self) -> Option<Retrying> {
        self.state().records.retrying()
    }

    /// Returns why nothing is sent, or why records are sent again.
    pub fn waiting_for(&self) -> Option<Obstacle> {
        let state = self.state();
        let is_refused = state.records.blocked() > 0;
        let refusal = state.refusal.as_ref().filter(|_| is_refused);
        let obstacle = state.obstacle.as_ref().or(refusal).cloned();
        drop(state);
        obstacle.or_else(|| self.stats.silence())
    }
}
