//! A server in memory, and a sink of it that can break each promise.

use std::collections::{BTreeMap, VecDeque};
use std::convert::Infallible;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use walrelay_sink::{
    AnySinkFactory, Deliveries, DeliveryError, Disposition, HeldRecord, Obstacle, Poison, Record,
    Refusal as Refused, Retrying, SendError, Sink, SinkFactory, StreamStart, any_factory,
};

use crate::conformance::run::ROOMY;
use crate::conformance::{Bounds, Destination, Event, Refusal, Stored};
use crate::threads::lock;

/// The server refuses larger values.
const MAX_VALUE: usize = 8 << 10;

const HOUR: Duration = Duration::from_secs(3_600);

/// The topic of which the server accepts nothing.
const REFUSED: &str = "refused";

/// The fault of a broken sink.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fault {
    AcknowledgesEarly,
    AcknowledgesUnwritten,
    ReordersAfterAnOutage,
    ReportsTwice,
    NeverReports,
    ReportsTheRefused,
    Blocks,
    IsNeverFull,
    NeverCallsForMore,
    CallsOutagesPoison,
    CallsPoisonAnOutage,
    SwallowsRefusals,
    RepeatsAtARefusal,
    StopsForTheRefused,
    IsPatientWithEach,
    NamesNoneThatWaits,
    KeepsThoseBehind,
    RefusesTheLastOfAKey,
    HidesOutages,
    MakesIds,
    ClosesLate,
    GivesUpEarly,
    LogsAValue,
    ShowsAKey,
}

/// A server in memory, with the sinks that write to it.
#[derive(Clone)]
pub(super) struct Model {
    server: Arc<Server>,
    fault: Option<Fault>,
    /// The server drops records whose id it has.
    drops_repeats: bool,
}

#[derive(Default)]
struct Server {
    state: Mutex<ServerState>,
    changed: Condvar,
}

#[derive(Default)]
struct ServerState {
    paused: bool,
    down: bool,
    /// Number of kills.
    kills: u64,
    topics: BTreeMap<String, Vec<Stored>>,
    /// What is acknowledged and lost by a kill, of a server whose acknowledgement the sink misreads.
    unwritten: Vec<(String, Stored)>,
}

impl ServerState {
    fn store(&mut self, topic: String, record: Stored, drops_repeats: bool) {
        let topic = self.topics.entry(topic).or_default();
        if !(drops_repeats && topic.iter().any(|stored| stored.id == record.id)) {
            topic.push(record);
        }
    }
}

impl Model {
    pub(super) fn new(fault: Option<Fault>) -> Self {
        Self {
            server: Arc::default(),
            fault,
            drops_repeats: false,
        }
    }

    pub(super) fn dropping_repeats() -> Self {
        Self {
            drops_repeats: true,
            ..Self::new(None)
        }
    }

    fn change(&self, change: impl FnOnce(&mut ServerState)) {
        change(&mut lock(&self.server.state));
        self.server.changed.notify_all();
    }
}

impl Destination for Model {
    fn factory(&self, bounds: Bounds) -> AnySinkFactory {
        any_factory(Models(self.clone(), bounds, Duration::ZERO))
    }

    fn stored(&self, topic: &str) -> Vec<Stored> {
        let state = lock(&self.server.state);
        state.topics.get(topic).cloned().unwrap_or_default()
    }

    fn pause(&self) {
        self.change(|state| state.paused = true);
    }

    fn resume(&self) {
        self.change(|state| state.paused = false);
    }

    fn kill(&self) {
        self.change(|state| {
            state.down = true;
            state.kills += 1;
            state.unwritten.clear();
        });
    }

    fn start(&self) {
        self.change(|state| state.down = false);
    }

    fn refusals(&self) -> Vec<Refusal> {
        let spoil = |event: &mut Event| event.value = vec![b'x'; MAX_VALUE + 1];
        vec![Refusal {
            poison: Poison::Oversize,
            in_place: true,
            spoil,
        }]
    }

    fn patient(&self, retry_for: Duration) -> Option<(AnySinkFactory, Refusal)> {
        let models = Models(self.clone(), ROOMY, retry_for);
        let refusal = Refusal {
            poison: Poison::Rejected,
            in_place: true,
            spoil: |event| REFUSED.clone_into(&mut event.topic),
        };
        Some((any_factory(models), refusal))
    }

    fn drops_repeats(&self) -> bool {
        self.drops_repeats
    }
}

struct Models(Model, Bounds, Duration);

impl SinkFactory for Models {
    type Sink = ModelSink;
    type Error = Infallible;

    fn create(
        &mut self,
        _: Option<&StreamStart>,
        deliveries: Arc<dyn Deliveries>,
    ) -> Result<ModelSink, Infallible> {
        let shared = Arc::new(Shared {
            model: self.0.clone(),
            bounds: self.1,
            retry_for: self.2,
            deliveries,
            queue: Mutex::default(),
        });
        let worker = Arc::clone(&shared);
        Ok(ModelSink {
            shared,
            worker: Some(thread::spawn(move || worker.send_all())),
        })
    }

    fn disposition(error: &Infallible) -> Disposition {
        match *error {}
    }
}

struct Shared {
    model: Model,
    bounds: Bounds,
    retry_for: Duration,
    deliveries: Arc<dyn Deliveries>,
    /// Changed together with the server's condition variable, which wakes the worker.
    queue: Mutex<Queue>,
}

#[derive(Default)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is set by another thread or moment"
)]
struct Queue {
    /// The first one is being sent.
    records: VecDeque<Owned>,
    /// Records of [`REFUSED`], in their order.
    waiting: VecDeque<Owned>,
    /// When the first of them was refused.
    refused_since: Option<Instant>,
    /// Records that are refused for good, until they are withdrawn.
    refused: BTreeMap<u64, Owned>,
    bytes: u64,
    full: bool,
    closing: bool,
    given_up: bool,
    ended: bool,
}

struct Owned {
    seq: u64,
    topic: String,
    stored: Stored,
    held: HeldRecord,
    bytes: u64,
}

pub(super) struct ModelSink {
    shared: Arc<Shared>,
    worker: Option<JoinHandle<()>>,
}

impl Shared {
    fn is(&self, fault: Fault) -> bool {
        self.model.fault == Some(fault)
    }

    fn wake(&self) {
        // Under the server's lock, so that no waiting worker misses it.
        drop(lock(&self.model.server.state));
        self.model.server.changed.notify_all();
    }

    fn error(&self, topic: &str, reason: &str, poison: Option<Poison>) -> DeliveryError {
        let poison = match poison {
            None if self.is(Fault::CallsOutagesPoison) => Some(Poison::Rejected),
            Some(_) if self.is(Fault::CallsPoisonAnOutage) => None,
            poison => poison,
        };
        DeliveryError {
            topic: Arc::from(topic),
            reason: reason.to_owned(),
            disposition: poison.map_or(Disposition::Retryable, |_| Disposition::Fatal),
            poison,
        }
    }

    fn delivered(&self, seq: u64) {
        if !self.is(Fault::NeverReports) && !self.is(Fault::AcknowledgesEarly) {
            self.deliveries.delivered(seq);
        }
        if self.is(Fault::ReportsTwice) && seq.is_multiple_of(10) {
            self.deliveries.delivered(seq);
        }
    }

    /// Sends, as a worker, the first record until the server has answered, and then the next.
    #[expect(
        clippy::too_many_lines,
        reason = "the model is read beside the sinks that it stands for"
    )]
    fn send_all(&self) {
        let mut kills = lock(&self.model.server.state).kills;
        let mut state = lock(&self.model.server.state);
        loop {
            let mut queue = lock(&self.queue);
            let is_empty = queue.records.is_empty() && queue.waiting.is_empty();
            if queue.given_up || queue.closing && is_empty {
                queue.ended = true;
                drop(queue);
                drop(state);
                self.model.server.changed.notify_all();
                return;
            }
            let now = Instant::now();
            let is_over = |since: Instant| now.duration_since(since) >= self.retry_for;
            if queue.refused_since.is_some_and(is_over)
                && let Some(record) = self.next_refused(&mut queue)
            {
                if queue.waiting.is_empty() {
                    queue.refused_since = None;
                } else if self.is(Fault::IsPatientWithEach) {
                    queue.refused_since = Some(now);
                }
                let refusal = Refused {
                    topic: Arc::from(&*record.topic),
                    poison: Poison::Rejected,
                    reason: "refused".to_owned(),
                    disposition: Disposition::Fatal,
                };
                let seq = record.seq;
                queue.refused.insert(seq, record);
                drop(queue);
                drop(state);
                self.deliveries.refused(seq, refusal);
                state = lock(&self.model.server.state);
                continue;
            }
            if let Some(since) = queue.refused_since
                && (queue.records.is_empty() || self.is(Fault::StopsForTheRefused))
            {
                drop(queue);
                // Behind a refused record, the next one of its key waits until that is withdrawn.
                let left = self.retry_for.saturating_sub(since.elapsed());
                let left = if left.is_zero() { HOUR } else { left };
                let woken = self.model.server.changed.wait_timeout(state, left);
                state = woken.unwrap_or_else(PoisonError::into_inner).0;
                continue;
            }
            if queue.records.is_empty() || state.down || state.paused {
                drop(queue);
                let woken = self.model.server.changed.wait(state);
                state = woken.unwrap_or_else(PoisonError::into_inner);
                continue;
            }
            if kills != state.kills {
                kills = state.kills;
                if self.is(Fault::ReordersAfterAnOutage) {
                    queue.records.make_contiguous().reverse();
                }
            }
            let Some(record) = queue.records.pop_front() else {
                continue;
            };
            queue.bytes -= record.bytes;
            if record.topic == REFUSED {
                queue.refused_since.get_or_insert(now);
                queue.waiting.push_back(record);
                continue;
            }
            let was_full = std::mem::take(&mut queue.full);
            let size = record.stored.value.as_ref().map_or(0, Vec::len);
            let refused = size > MAX_VALUE;
            if !refused {
                let (topic, stored) = (record.topic.clone(), record.stored);
                state.unwritten.push((topic, stored));
                let kept = if self.is(Fault::AcknowledgesUnwritten) {
                    50
                } else {
                    0
                };
                let count = state.unwritten.len().saturating_sub(kept);
                let written: Vec<(String, Stored)> = state.unwritten.drain(..count).collect();
                for (topic, stored) in written {
                    state.store(topic, stored, self.model.drops_repeats);
                }
            }
            let last = state.topics.get(&record.topic).and_then(|all| all.last());
            if let Some(last) = last.filter(|_| refused && self.is(Fault::RepeatsAtARefusal)) {
                let last = last.clone();
                state.store(record.topic.clone(), last, false);
            }
            drop(queue);
            drop(state);
            if refused && !self.is(Fault::SwallowsRefusals) {
                let error = self.error(&record.topic, "too large", Some(Poison::Oversize));
                self.deliveries.failed(record.seq, error);
            } else {
                self.delivered(record.seq);
            }
            if was_full && !self.is(Fault::NeverCallsForMore) {
                self.deliveries.capacity();
            }
            state = lock(&self.model.server.state);
        }
    }

    /// Takes the first waiting record of a key without a refused one.
    fn next_refused(&self, queue: &mut Queue) -> Option<Owned> {
        let is_free = |record: &Owned| {
            let mut refused = queue.refused.values();
            !refused.any(|refused| refused.stored.key == record.stored.key)
        };
        let mut waiting = queue.waiting.iter();
        let at = if self.is(Fault::RefusesTheLastOfAKey) {
            waiting.rposition(is_free)
        } else {
            waiting.position(is_free)
        };
        queue.waiting.remove(at?)
    }

    fn end(&self, grace: Duration) {
        lock(&self.queue).closing = true;
        self.wake();
        let deadline = Instant::now().checked_add(grace);
        let mut state = lock(&self.model.server.state);
        while !lock(&self.queue).ended {
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            let left = if self.is(Fault::GivesUpEarly) {
                Some(Duration::ZERO)
            } else {
                left
            };
            if left == Some(Duration::ZERO) && !self.is(Fault::ClosesLate) {
                break;
            }
            let left = left
                .filter(|left| !left.is_zero())
                .unwrap_or(Duration::from_secs(1));
            let waited = self.model.server.changed.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        lock(&self.queue).given_up = true;
        drop(state);
        self.wake();
    }
}

impl Sink for ModelSink {
    fn try_send(&mut self, record: &Record<'_>, seq: u64) -> Result<(), SendError> {
        let shared = &self.shared;
        let bytes = record.payload_bytes() as u64;
        let text =
            |bytes: Option<&[u8]>| String::from_utf8_lossy(bytes.unwrap_or_default()).into_owned();
        let is_full = |queue: &Queue| {
            queue.records.len() >= shared.bounds.records as usize
                || queue.bytes + bytes > shared.bounds.bytes && !queue.records.is_empty()
        };
        if is_full(&lock(&shared.queue)) && !shared.is(Fault::IsNeverFull) {
            lock(&shared.queue).full = true;
            // The worker may have made room before it could see the flag.
            if is_full(&lock(&shared.queue)) && !shared.is(Fault::Blocks) {
                return Err(SendError::Full);
            }
            while is_full(&lock(&shared.queue)) {
                thread::park_timeout(Duration::from_millis(1));
            }
        }
        if shared.is(Fault::LogsAValue) {
            tracing::debug!(value = text(record.value), "sent");
        }
        if shared.is(Fault::ReportsTheRefused) && record.value.map_or(0, <[u8]>::len) > MAX_VALUE {
            let error = shared.error(record.topic, "too large", Some(Poison::Oversize));
            shared.deliveries.failed(seq, error.clone());
            return Err(SendError::Refused(error));
        }
        let id = text(record.headers.first().and_then(|header| header.value));
        let id = if shared.is(Fault::MakesIds) {
            format!("{id}-{}", fastrand::u64(..))
        } else {
            id
        };
        let owned = Owned {
            seq,
            topic: record.topic.to_owned(),
            stored: Stored {
                key: record.key.map(<[u8]>::to_vec),
                value: record.value.map(<[u8]>::to_vec),
                id,
            },
            held: HeldRecord::new(record),
            bytes,
        };
        let mut queue = lock(&shared.queue);
        queue.bytes += bytes;
        queue.records.push_back(owned);
        drop(queue);
        if shared.is(Fault::AcknowledgesEarly) {
            shared.deliveries.delivered(seq);
        }
        shared.wake();
        Ok(())
    }

    fn withdraw(&mut self, seq: u64, behind: bool) -> Vec<(u64, HeldRecord)> {
        let mut queue = lock(&self.shared.queue);
        let Some(refused) = queue.refused.remove(&seq) else {
            return Vec::new();
        };
        let mut withdrawn = vec![refused];
        if behind && !self.shared.is(Fault::KeepsThoseBehind) {
            let key = withdrawn[0].stored.key.clone();
            let waiting = std::mem::take(&mut queue.waiting).into_iter();
            let (taken, rest): (Vec<Owned>, _) =
                waiting.partition(|record| record.stored.key == key);
            withdrawn.extend(taken);
            queue.waiting = rest.into();
        }
        if queue.waiting.is_empty() {
            queue.refused_since = None;
        }
        drop(queue);
        self.shared.wake();
        let numbered = withdrawn.into_iter();
        numbered.map(|record| (record.seq, record.held)).collect()
    }

    fn waiting_for(&mut self) -> Option<Obstacle> {
        let down = lock(&self.shared.model.server.state).down;
        let queue = lock(&self.shared.queue);
        let first = queue.records.front()?;
        let key = String::from_utf8_lossy(first.stored.key.as_deref().unwrap_or_default());
        let what = if self.shared.is(Fault::ShowsAKey) {
            &*key
        } else {
            "the server is down"
        };
        let obstacle = Obstacle {
            what: what.to_owned(),
            disposition: Disposition::Retryable,
            remedy: None,
        };
        (down && !self.shared.is(Fault::HidesOutages)).then_some(obstacle)
    }

    fn retrying(&self) -> Option<Retrying> {
        if self.shared.is(Fault::NamesNoneThatWaits) {
            return None;
        }
        let queue = lock(&self.shared.queue);
        let first = queue.waiting.front()?;
        let keys = queue.waiting.len() as u64;
        Some(Retrying {
            keys,
            most: keys,
            limit: keys,
            since: queue.refused_since?,
            event_id: Some(first.stored.id.clone()),
            topic: first.topic.clone(),
            why: "refused".to_owned(),
            next: None,
        })
    }

    fn close(mut self: Box<Self>, grace: Duration) {
        self.shut_down(grace);
    }
}

impl ModelSink {
    fn shut_down(&mut self, grace: Duration) {
        let Some(worker) = self.worker.take() else {
            return;
        };
        self.shared.end(grace);
        worker.join().expect("the worker does not panic");
        let mut queue = lock(&self.shared.queue);
        let mut rest = std::mem::take(&mut queue.waiting);
        rest.append(&mut queue.records);
        drop(queue);
        if self.shared.is(Fault::NeverReports) || self.shared.is(Fault::AcknowledgesEarly) {
            return;
        }
        for record in rest {
            let error = self.shared.error(&record.topic, "given up", None);
            self.shared.deliveries.failed(record.seq, error);
        }
    }
}

impl Drop for ModelSink {
    fn drop(&mut self) {
        self.shut_down(Duration::ZERO);
    }
}
