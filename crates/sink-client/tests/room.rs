//! A full sink wakes the relay when records have begun to wait that may leave the window. Nothing else would: no
//! record is reported.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test may panic")]

use std::future::pending;
use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, Instant};

use walrelay_sink::{Deliveries, DeliveryError, KeyQueues, Record, SendError, Window, lock};
use walrelay_sink_client::{BatchQueue, Failure, Held, Queue, Shared, SinkThread};

const PATIENCE: Duration = Duration::from_secs(60);
const HOUR: Duration = Duration::from_secs(3_600);

/// Passes on that the relay is woken.
struct Woken(Mutex<mpsc::Sender<()>>);

impl Deliveries for Woken {
    fn delivered(&self, _: u64) {}

    fn failed(&self, _: u64, _: DeliveryError) {}

    fn capacity(&self) {
        // The test may have ended.
        let _ = lock(&self.0).send(());
    }
}

/// A sink whose thread sends nothing, with room for two records.
struct Sink<Q: Queue> {
    thread: SinkThread<Q, ()>,
    woken: mpsc::Receiver<()>,
}

impl<Q: Queue> Sink<Q> {
    fn start(records: Q) -> Self {
        let (wakes, woken) = mpsc::channel();
        let deliveries = Arc::new(Woken(Mutex::new(wakes)));
        let window = Window::new(2, 1_000).with_aside(1_000);
        let shared = Shared::new(records, window, (), Arc::default(), deliveries);
        let run = |shared: Arc<Shared<Q, ()>>| async move {
            shared.unless_over(pending::<()>()).await;
            Failure::closed()
        };
        let thread = SinkThread::start("test", shared, run).expect("a thread");
        Self { thread, woken }
    }

    fn accept(&self, seq: u64, topic: &str, key: &str) -> Result<(), SendError> {
        let record = Record {
            topic,
            key: Some(key.as_bytes()),
            ..Record::default()
        };
        self.thread.shared.accept(&record, topic, seq, 1)
    }

    /// Offers a record again after each wake-up, as the relay does, until it is accepted.
    fn accept_woken(&self, seq: u64, topic: &str, key: &str) {
        while self.accept(seq, topic, key) == Err(SendError::Full) {
            self.woken.recv_timeout(PATIENCE).expect("woken");
        }
    }
}

/// Fills a sink with two records, both in flight, and lets `change` make the first one wait. Then more records than
/// fit in the window follow, behind the first one.
fn is_woken(lanes: [&str; 2], change: impl FnOnce(&mut KeyQueues)) {
    let sink = Sink::start(KeyQueues::new(100));
    let now = Instant::now();
    for (seq, lane) in (0..).zip(lanes) {
        assert_eq!(sink.accept(seq, lane, &format!("k{seq}")), Ok(()));
        let next = sink
            .thread
            .shared
            .state()
            .records
            .next(now)
            .map(|it| it.seq);
        assert_eq!(next, Some(seq));
    }
    assert_eq!(sink.accept(2, lanes[0], "k0"), Err(SendError::Full));
    assert!(sink.woken.try_recv().is_err(), "nothing waits");
    change(&mut sink.thread.shared.state().records);
    for seq in 2..8 {
        sink.accept_woken(seq, lanes[0], "k0");
    }
    assert_eq!(sink.thread.shared.window.in_flight(), 8);
}

#[test]
fn a_key_that_begins_to_wait_makes_room() {
    let later = Instant::now() + HOUR;
    is_woken(["t", "t"], |records| records.retry_at(0, "refused", later));
}

#[test]
fn a_lane_that_begins_to_fail_makes_room() {
    let later = Instant::now() + HOUR;
    is_woken(["bad", "good"], |records| records.fail_lane(0, later));
}

#[test]
fn a_topic_that_is_held_makes_room_once_its_records_leave_the_batch() {
    let sink = Sink::start(BatchQueue::default());
    for seq in 0..2 {
        assert_eq!(sink.accept(seq, "held", "k"), Ok(()));
    }
    let next_batch = |held: &str| {
        let mut state = sink.thread.shared.state();
        let is_held = |record: &Record<'_>| record.topic == held;
        state.records.next_batch(10, 1_000, is_held).len()
    };
    assert_eq!(next_batch(""), 2);
    assert_eq!(sink.accept(2, "held", "k"), Err(SendError::Full));
    let now = Instant::now();
    let held = Held {
        why: "refused".to_owned(),
        since: now,
        next: now + HOUR,
    };
    sink.thread.shared.state().records.hold("held", held);
    // The relay may look at once, and find nothing yet.
    assert_eq!(sink.accept(2, "held", "k"), Err(SendError::Full));
    assert_eq!(next_batch("held"), 0);
    for seq in 2..8 {
        sink.accept_woken(seq, "held", "k");
    }
}

/// Events behind the bound go on when one that was set aside is settled.
#[test]
fn a_record_that_was_set_aside_and_is_taken_back_makes_room_for_another_one() {
    let sink = Sink::start(KeyQueues::new(100));
    let shared = &sink.thread.shared;
    let weight = 400;
    let offer = |seq: u64| {
        let key = seq.to_string();
        let record = Record {
            topic: "t",
            key: Some(key.as_bytes()),
            ..Record::default()
        };
        shared.accept(&record, "t", seq, weight)
    };
    let later = Instant::now() + HOUR;
    for seq in 0..4 {
        while offer(seq) == Err(SendError::Full) {
            sink.woken.recv_timeout(PATIENCE).expect("woken");
        }
        let mut state = shared.state();
        let next = state.records.next(Instant::now()).map(|it| it.seq);
        assert_eq!(next, Some(seq));
        state.records.retry_at(seq, "refused", later);
    }
    // Two are set aside, and two fill the window.
    assert_eq!(offer(4), Err(SendError::Full));
    let mut state = shared.state();
    assert_eq!(state.records.next(later).map(|it| it.seq), Some(0));
    let done = state.records.done(0).expect("it is in flight");
    drop(state);
    assert!(done.is_aside, "it was set aside first");
    shared.report(&done, Ok(()));
    while offer(4) == Err(SendError::Full) {
        sink.woken.recv_timeout(PATIENCE).expect("woken");
    }
}
