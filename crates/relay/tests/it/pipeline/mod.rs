//! The pipeline's task, with a source that sends one transaction and a sink with a configured
//! answer: which positions are reported to the server, and which records are sent again.

#![allow(
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

mod sink;
mod source;

use std::convert::Infallible;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::time::{sleep, timeout};
use walrelay_event_router::{Options, Router};
use walrelay_lsn::{CommitEnd, Lsn};
use walrelay_pgoutput::PgTimestamp;
use walrelay_relay::{
    CoreError, Observer, OnUpdate, Outcome, Pipeline, PipelineError, PoisonAction, PoisonPolicy,
    Settings, TableName,
};
use walrelay_sink::{Disposition, Parking, Poison};

use self::sink::{Answer, Factory, REFUSED, Sinks};
use self::source::{END, Failure, NEXT, OneTransaction, ROWS, START};

const INTERVAL: Duration = Duration::from_millis(20);
/// The limit of what must happen, also on a busy machine.
const PATIENCE: Duration = Duration::from_secs(120);

struct Clock;

impl Observer for Clock {
    fn wall_clock(&self) -> PgTimestamp {
        PgTimestamp::new(0)
    }
}

type Ended = Result<Outcome, PipelineError<Failure, Infallible>>;

/// Runs a pipeline until the positions that were reported as flushed satisfy `stop`, then stops it.
/// Returns the result and those positions. `drain_timeout`: how long the stop waits for deliveries.
async fn relay(
    answer: Answer,
    drain_timeout: Duration,
    stop: impl Fn(&[CommitEnd]) -> bool,
) -> (Ended, Vec<CommitEnd>) {
    relay_into(
        &Arc::default(),
        OneTransaction::default(),
        answer,
        drain_timeout,
        stop,
    )
    .await
}

/// Relays as [`relay`] does, and records in `sinks` what the sinks did.
async fn relay_into(
    sinks: &Arc<Mutex<Sinks>>,
    source: OneTransaction,
    answer: Answer,
    drain_timeout: Duration,
    stop: impl Fn(&[CommitEnd]) -> bool,
) -> (Ended, Vec<CommitEnd>) {
    let statuses = Arc::clone(&source.statuses);
    let flushed = || -> Vec<CommitEnd> {
        let statuses = statuses.lock().expect("nobody panicked");
        statuses.iter().map(|status| status.flushed).collect()
    };
    let ended = run(source, sinks, answer, drain_timeout, || stop(&flushed())).await;
    (ended, flushed())
}

/// Runs a pipeline until `stop` is true, then stops it.
async fn run(
    source: OneTransaction,
    sinks: &Arc<Mutex<Sinks>>,
    answer: Answer,
    drain_timeout: Duration,
    stop: impl Fn() -> bool,
) -> Ended {
    let parking = sinks.lock().expect("nobody panicked").parking.clone();
    let settings = Settings {
        tables: [TableName::new("public", "outbox")].into(),
        pass_over: [].into(),
        messages: None,
        max_unconfirmed_records: 64,
        status_interval: INTERVAL,
        receive_timeout: 2 * PATIENCE,
        drain_timeout,
        backoff_initial: INTERVAL,
        backoff_max: INTERVAL,
        poison: PoisonPolicy {
            oversize: PoisonAction::DeadLetter,
            parking,
            ..PoisonPolicy::default()
        },
        on_update: OnUpdate::Warn,
        schemas: None,
        sent_rows: None,
        account: None,
        explain: |_| None,
    };
    let router = Router::new(Options::default());
    let sinks = Arc::clone(sinks);
    let factory = Factory { answer, sinks };
    let mut pipeline = Pipeline::new(source, router, factory, Clock, settings);
    let stopped = async {
        while !stop() {
            sleep(INTERVAL / 4).await;
        }
    };
    let ended = timeout(PATIENCE, Box::pin(pipeline.run(stopped))).await;
    ended.expect("the pipeline ends")
}

#[tokio::test]
async fn a_delivered_transaction_is_confirmed() {
    let (ended, flushed) = relay(Answer::Delivered, PATIENCE, |flushed| {
        flushed.last() == Some(&END)
    })
    .await;
    let drained = Outcome::Drained { confirmed: END };
    assert_eq!(ended.expect("no error"), drained);
    assert_eq!(flushed.last(), Some(&END));
}

/// A sink that has the transaction is sent nothing of it, and it is confirmed. A sink that has less,
/// or was created for a snapshot, is sent all of it. A position beyond the WAL stops the relay.
#[tokio::test]
async fn a_sink_is_sent_what_it_does_not_have() {
    let beyond = Lsn::new(END.lsn().get() + 1);
    for (position, snapshot, rows) in [
        (None, false, ROWS),
        (Some(START.lsn()), false, ROWS),
        (Some(Lsn::new(10)), false, ROWS),
        (Some(END.lsn()), false, 0),
        (Some(END.lsn()), true, ROWS),
    ] {
        let sinks = Arc::new(Mutex::new(Sinks {
            durable_before: position,
            ..Sinks::default()
        }));
        let source = OneTransaction {
            snapshot,
            ..OneTransaction::default()
        };
        let until = |flushed: &[CommitEnd]| flushed.last() == Some(&END);
        // Nothing is refused: all is delivered.
        let answer = Answer::Refused {
            sinks: 0,
            disposition: Disposition::Fatal,
            poison: None,
        };
        let (ended, _) = relay_into(&sinks, source, answer, PATIENCE, until).await;
        let drained = Outcome::Drained { confirmed: END };
        assert_eq!(ended.expect("no error"), drained, "{position:?}");
        let sinks = sinks.lock().expect("nobody panicked");
        assert_eq!(sinks.delivered.len(), rows, "{position:?}");
        let ends: Vec<_> = sinks
            .ends
            .iter()
            .map(|told| (told.end, told.position.row))
            .collect();
        let told = (rows > 0).then_some((END, ROWS as u64));
        assert_eq!(ends, told.as_slice(), "{position:?}");
        let start = &sinks.starts[0];
        assert_eq!(
            (&*start.system_id, start.timeline, start.confirmed),
            ("7", 1, START)
        );
        assert_eq!(start.snapshot, snapshot);
    }
    let sinks = Arc::new(Mutex::new(Sinks {
        durable_before: Some(beyond),
        ..Sinks::default()
    }));
    let source = OneTransaction::default();
    let (ended, flushed) = relay_into(&sinks, source, Answer::Delivered, PATIENCE, |_| false).await;
    let error = ended.expect_err("the WAL ends before that");
    assert!(
        matches!(&error, PipelineError::Core(CoreError::SinkPosition { position, cut: false, .. }) if *position == beyond),
        "{error:?}"
    );
    assert!(flushed.iter().all(|at| *at == START));
}

#[tokio::test]
async fn feedback_goes_on_while_the_sink_takes_or_acknowledges_nothing() {
    for answer in [Answer::Full, Answer::Nothing] {
        let (ended, flushed) = relay(answer, INTERVAL, |flushed| flushed.len() >= 5).await;
        let ended = ended.expect("no error");
        assert!(
            matches!(ended, Outcome::Incomplete { .. }),
            "{answer:?}: {ended:?}"
        );
        assert!(flushed.len() >= 5, "{answer:?}: {} updates", flushed.len());
        assert!(flushed.iter().all(|at| *at == START), "{answer:?}");
    }
}

#[tokio::test]
async fn a_failed_delivery_report_ends_the_relay_and_confirms_nothing() {
    let (ended, flushed) = relay(Answer::Failed, PATIENCE, |_| false).await;
    let error = ended.expect_err("a record was refused");
    assert!(matches!(error, PipelineError::Delivery { .. }), "{error:?}");
    assert!(flushed.iter().all(|at| *at == START));
}

/// The second failure at one transaction ends the relay, and names the transaction.
#[tokio::test]
async fn a_row_that_the_server_cannot_send_is_asked_for_twice() {
    let opened = Arc::<AtomicU32>::default();
    let source = OneTransaction {
        opened: Arc::clone(&opened),
        fails: true,
        ..OneTransaction::default()
    };
    let ended = run(source, &Arc::default(), Answer::Delivered, PATIENCE, || {
        false
    })
    .await;
    let error = ended.expect_err("the server fails");
    let PipelineError::Unsendable {
        xid,
        commit,
        rows,
        tables,
        ..
    } = error
    else {
        panic!("{error:?}");
    };
    assert_eq!((xid.get(), commit, rows), (8, NEXT, 1));
    assert_eq!(tables, [TableName::new("public", "outbox")]);
    assert_eq!(opened.load(Relaxed), 2);
}

/// Who passes the transaction over must not pass over one that is not delivered. So the relay names
/// none, and goes on to try.
#[tokio::test]
async fn no_transaction_is_named_while_an_earlier_one_is_in_flight() {
    let opened = Arc::<AtomicU32>::default();
    let source = OneTransaction {
        opened: Arc::clone(&opened),
        fails: true,
        ..OneTransaction::default()
    };
    let often = || opened.load(Relaxed) >= 5;
    let ended = run(source, &Arc::default(), Answer::Nothing, INTERVAL, often).await;
    let ended = ended.expect("no error");
    assert!(matches!(ended, Outcome::Incomplete { .. }), "{ended:?}");
}

/// An event is refused once alone, and its dead letter is written once, however many events of its
/// transaction are refused. No acknowledged record is sent again, and the order is that of the rows.
#[tokio::test]
async fn each_refused_row_of_a_transaction_becomes_one_dead_letter() {
    let sinks = relay_odd_refused(OneTransaction::default()).await;
    assert_eq!(sinks.delivered, with_dead_letters());
}

/// The rows of a snapshot are all sent again, and each decision about one of them still holds.
#[tokio::test]
async fn each_refused_row_of_a_snapshot_ends_one_sink() {
    let source = OneTransaction {
        snapshot: true,
        ..OneTransaction::default()
    };
    let sinks = relay_odd_refused(source).await;
    let last = sinks.delivered.len() - ROWS;
    assert_eq!(sinks.delivered[last..], with_dead_letters());
}

/// Relays into sinks that refuse the odd rows.
async fn relay_odd_refused(source: OneTransaction) -> Sinks {
    let sinks: Arc<Mutex<Sinks>> = Arc::default();
    let (ended, flushed) = relay_into(&sinks, source, Answer::OddRefused, PATIENCE, |flushed| {
        flushed.last() == Some(&END)
    })
    .await;
    assert_eq!(
        ended.expect("no error"),
        Outcome::Drained { confirmed: END }
    );
    assert!(flushed.iter().all(|at| [START, END].contains(at)));
    let sinks = std::mem::take(&mut *sinks.lock().expect("nobody panicked"));
    // The first sink, one after the refused request, and one after each row refused alone.
    assert_eq!(sinks.created, 2 + ROWS / 2);
    sinks
}

/// One sink delivers each record once, and each dead letter once. With parked keys the rows behind the
/// first refused one become dead letters too: all are of one key.
#[tokio::test]
async fn a_refused_row_is_settled_where_it_is() {
    for parks in [false, true] {
        let parking = Arc::new(Parking::new());
        parking.set_ready();
        let sinks = Arc::new(Mutex::new(Sinks {
            parking: parks.then_some(parking),
            ..Sinks::default()
        }));
        let answer = Answer::OddRefusedInPlace;
        let source = OneTransaction::default();
        let until = |flushed: &[CommitEnd]| flushed.last() == Some(&END);
        let (ended, flushed) = relay_into(&sinks, source, answer, PATIENCE, until).await;
        let drained = Outcome::Drained { confirmed: END };
        assert_eq!(ended.expect("no error"), drained);
        assert!(flushed.iter().all(|at| [START, END].contains(at)));
        let mut sinks = sinks.lock().expect("nobody panicked");
        assert_eq!(sinks.created, 1);
        sinks.delivered.sort();
        let mut expected = with_dead_letters();
        if parks {
            let dead_letters = PoisonPolicy::default().topic;
            for (_, topic) in expected.iter_mut().skip(1) {
                *topic = dead_letters.to_string();
            }
        }
        assert_eq!(sinks.delivered, expected);
    }
}

/// Lists row and topic of each record if the odd rows become dead letters.
fn with_dead_letters() -> Vec<(usize, String)> {
    let expected = (0..ROWS).map(|row| {
        let topic = match row % 2 {
            1 => PoisonPolicy::default().topic.to_string(),
            _ => "outbox.event.order".to_owned(),
        };
        (row, topic)
    });
    expected.collect()
}

/// Relays the transaction, whose row [`REFUSED`] the first sinks refuse. Returns the rows that were
/// delivered, all as records, and how many readings of the dead letters were required.
async fn relay_refused(answer: Answer, source: OneTransaction) -> (Vec<usize>, u64) {
    let parking = Arc::new(Parking::new());
    let first = parking.required();
    parking.set_ready();
    let sinks = Arc::new(Mutex::new(Sinks {
        parking: Some(Arc::clone(&parking)),
        ..Sinks::default()
    }));
    let (ended, _) = relay_into(&sinks, source, answer, PATIENCE, |flushed| {
        flushed.last() == Some(&END)
    })
    .await;
    let drained = Outcome::Drained { confirmed: END };
    assert_eq!(ended.expect("no error"), drained);
    let sinks = sinks.lock().expect("nobody panicked");
    let topics = sinks.delivered.iter().map(|(_, topic)| &**topic);
    assert!({ topics }.all(|topic| topic == "outbox.event.order"));
    let rows = sinks.delivered.iter().map(|(row, _)| *row).collect();
    (rows, parking.required() - first)
}

/// During the delay a standby may send some of the events again and die unseen. So all are sent
/// again, or a key could end on an older event, and the dead letters are read again.
#[tokio::test]
async fn nothing_is_passed_over_after_a_delay() {
    let answer = Answer::Refused {
        sinks: 1,
        disposition: Disposition::Retryable,
        poison: None,
    };
    let (rows, readings) = relay_refused(answer, OneTransaction::default()).await;
    let expected = (0..REFUSED).chain(0..ROWS);
    assert_eq!(rows, expected.collect::<Vec<_>>());
    assert_eq!(readings, 2);
}

/// On another timeline another event has the position of the rejected one.
#[tokio::test]
async fn nothing_is_known_of_events_after_another_relay_read_a_new_timeline() {
    let answer = Answer::Refused {
        sinks: 2,
        disposition: Disposition::Fatal,
        poison: Some(Poison::Oversize),
    };
    let source = OneTransaction {
        promoted_at: Some(3),
        ..OneTransaction::default()
    };
    let (rows, readings) = relay_refused(answer, source).await;
    let expected = (0..REFUSED).chain(0..ROWS);
    assert_eq!(rows, expected.collect::<Vec<_>>());
    assert_eq!(readings, 2);
}
