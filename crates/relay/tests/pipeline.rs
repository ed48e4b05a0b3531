//! The pipeline's task, with a source that sends one transaction and a sink with a configured
//! answer: which positions are reported to the server, and which records are sent again.

#![allow(
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

use std::convert::Infallible;
use std::fmt;
use std::future::pending;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::time::{sleep, timeout};
use walrelay_event_router::{Options, Router};
use walrelay_lsn::{CommitEnd, Lsn, RelationId, TypeOid, Xid};
use walrelay_pgoutput::{PgTimestamp, encode};
use walrelay_relay::{
    Ancestor, CoreError, Observer, OnUpdate, Opened, Outcome, Pipeline, PipelineError,
    PoisonAction, PoisonPolicy, Predecessor, Resume, Settings, SlotCheck, Source, SourceError,
    TableName, WalStream,
};
use walrelay_sink::{
    Deliveries, DeliveryError, Disposition, Parking, Poison, Record, SendError, Sink, SinkFactory,
    StreamStart, TransactionEnd,
};
use walrelay_walsender::framing::parse_frame;
use walrelay_walsender::{Error, Frame, Socket, StatusUpdate};

const START: CommitEnd = CommitEnd::from_slot(Lsn::new(1_000));
const COMMIT: Lsn = Lsn::new(2_000);
/// The start of the commit record of the transaction at which the server fails.
const NEXT: Lsn = Lsn::new(3_000);
const END: CommitEnd = CommitEnd::from_slot(Lsn::new(2_048));
const INTERVAL: Duration = Duration::from_millis(20);
/// The limit of what must happen, also on a busy machine.
const PATIENCE: Duration = Duration::from_secs(120);

/// The sink's answer to a record.
#[derive(Debug, Clone, Copy)]
enum Answer {
    Full,
    Delivered,
    Failed,
    /// Takes the record and reports nothing.
    Nothing,
    /// Sends requests of up to [`REQUEST`] records, and refuses each request with an odd row as too
    /// large. Takes nothing after a refusal.
    OddRefused,
    /// The first `sinks` sinks refuse [`REFUSED`] and what comes behind it; all else is delivered.
    Refused {
        sinks: usize,
        disposition: Disposition,
        poison: Option<Poison>,
    },
}

/// The row of [`Answer::Refused`].
const REFUSED: usize = 3;
/// Records in a request of [`Answer::OddRefused`].
const REQUEST: usize = 8;
/// Rows of the transaction.
const ROWS: usize = 40;

/// The record of what the sinks of a run did.
#[derive(Default)]
struct Sinks {
    created: usize,
    /// Number of the row and topic of each delivered record.
    delivered: Vec<(usize, String)>,
    /// The places where the sinks' streams began.
    starts: Vec<StreamStart>,
    /// The ends that the sinks were told.
    ends: Vec<TransactionEnd>,
    /// The position up to which the sinks have everything.
    durable_before: Option<Lsn>,
    /// The parked keys of the poison policy.
    parking: Option<Arc<Parking>>,
}

struct ScriptedSink {
    /// The number of the sink, from 1.
    number: usize,
    answer: Answer,
    deliveries: Arc<dyn Deliveries>,
    sinks: Arc<Mutex<Sinks>>,
    /// Sequence number, row and topic of the records of the request.
    request: Vec<(u64, usize, String)>,
    broken: bool,
}

impl ScriptedSink {
    fn request(&mut self) {
        let request = std::mem::take(&mut self.request);
        let dead_letters = PoisonPolicy::default().topic;
        let odd = |(_, row, topic): &(u64, usize, String)| row % 2 == 1 && **topic != *dead_letters;
        if request.iter().any(odd) {
            self.broken = true;
            for (seq, _, topic) in request {
                let error = failure(&topic, Some(Poison::Oversize));
                self.deliveries.failed(seq, error);
            }
            return;
        }
        for (seq, row, topic) in request {
            self.deliver(seq, row, topic);
        }
    }

    fn deliver(&self, seq: u64, row: usize, topic: String) {
        let mut sinks = self.sinks.lock().expect("nobody panicked");
        sinks.delivered.push((row, topic));
        self.deliveries.delivered(seq);
    }
}

/// Returns the row that the record stands for.
fn row_of(record: &Record<'_>) -> usize {
    let id = record.headers.iter().find(|header| header.name == "id");
    let id = id.and_then(|header| str::from_utf8(header.value?).ok());
    let row = id.and_then(|id| id[1..].parse().ok());
    row.expect("the id of each row has its number")
}

fn failure(topic: &str, poison: Option<Poison>) -> DeliveryError {
    DeliveryError {
        topic: topic.into(),
        reason: "no".to_owned(),
        disposition: Disposition::Fatal,
        poison,
    }
}

impl Sink for ScriptedSink {
    fn try_send(&mut self, record: &Record<'_>, seq: u64) -> Result<(), SendError> {
        match self.answer {
            Answer::Full => return Err(SendError::Full),
            Answer::Delivered => self.deliveries.delivered(seq),
            Answer::Failed => self.deliveries.failed(seq, failure(record.topic, None)),
            Answer::Nothing => {}
            Answer::OddRefused if self.broken => {
                let mut error = failure(record.topic, None);
                error.disposition = Disposition::Retryable;
                return Err(SendError::Refused(error));
            }
            Answer::OddRefused => {
                let row = row_of(record);
                self.request.push((seq, row, record.topic.to_owned()));
                if self.request.len() == REQUEST {
                    self.request();
                }
            }
            Answer::Refused {
                sinks,
                disposition,
                poison,
            } => {
                let row = row_of(record);
                if row < REFUSED || self.number > sinks {
                    self.deliver(seq, row, record.topic.to_owned());
                } else if row == REFUSED {
                    let mut error = failure(record.topic, poison);
                    error.disposition = disposition;
                    self.deliveries.failed(seq, error);
                }
            }
        }
        Ok(())
    }

    fn commit(&mut self, transaction: &TransactionEnd) {
        self.sinks
            .lock()
            .expect("nobody panicked")
            .ends
            .push(*transaction);
    }

    fn durable_before(&self) -> Option<Lsn> {
        self.sinks.lock().expect("nobody panicked").durable_before
    }

    fn poll(&mut self) {
        self.request();
    }

    fn close(self: Box<Self>, _: Duration) {}
}

struct Factory {
    answer: Answer,
    sinks: Arc<Mutex<Sinks>>,
}

impl SinkFactory for Factory {
    type Sink = ScriptedSink;
    type Error = Infallible;

    fn create(
        &mut self,
        start: Option<&StreamStart>,
        deliveries: Arc<dyn Deliveries>,
    ) -> Result<ScriptedSink, Infallible> {
        let start = start.expect("a pipeline has a stream");
        let mut sinks = self.sinks.lock().expect("nobody panicked");
        sinks.created += 1;
        sinks.starts.push(start.clone());
        Ok(ScriptedSink {
            number: sinks.created,
            answer: self.answer,
            deliveries,
            sinks: Arc::clone(&self.sinks),
            request: Vec::new(),
            broken: false,
        })
    }

    fn disposition(error: &Infallible) -> Disposition {
        match *error {}
    }
}

type Statuses = Arc<Mutex<Vec<StatusUpdate>>>;

#[derive(Debug)]
enum Failure {
    Wal(Error),
    /// The server cannot send a row.
    Row,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::Wal(error) => error.fmt(f),
            Failure::Row => f.write_str("a row cannot be sent"),
        }
    }
}

impl std::error::Error for Failure {}

impl SourceError for Failure {
    fn disposition(&self) -> Disposition {
        match self {
            Failure::Wal(error) => error.disposition(),
            Failure::Row => Disposition::Retryable,
        }
    }

    fn may_be_of_a_row(&self) -> bool {
        matches!(self, Failure::Row)
    }
}

struct Stream {
    bytes: Vec<u8>,
    /// The server fails at the row after these bytes.
    fails: bool,
    snapshot: bool,
    read: bool,
    at: usize,
    peeked: usize,
    statuses: Statuses,
}

impl Stream {
    fn push(&mut self, body: &[u8]) {
        let length = u32::try_from(4 + 25 + body.len()).expect("a small message");
        self.bytes.push(b'd');
        self.bytes.extend(length.to_be_bytes());
        self.bytes.push(b'w');
        for number in [COMMIT.get(), COMMIT.get(), 0] {
            self.bytes.extend(number.to_be_bytes());
        }
        self.bytes.extend(body);
    }
}

impl WalStream for Stream {
    type Error = Failure;

    fn is_snapshot(&self) -> bool {
        self.snapshot
    }

    fn socket(&self) -> Socket {
        Socket::Unix
    }

    fn peek(&mut self) -> Result<Option<Frame<'_>>, Failure> {
        if self.fails && self.at == self.bytes.len() {
            return Err(Failure::Row);
        }
        let bytes = if self.read {
            &self.bytes[self.at..]
        } else {
            &[]
        };
        let Some((frame, length)) = parse_frame(bytes).map_err(Failure::Wal)? else {
            return Ok(None);
        };
        self.peeked = length;
        Ok(Some(frame))
    }

    fn consume(&mut self) {
        self.at += self.peeked;
    }

    async fn read(&mut self) -> Result<usize, Failure> {
        if self.read {
            pending::<()>().await;
        }
        self.read = true;
        Ok(self.bytes.len())
    }

    fn queue_status(&mut self, update: StatusUpdate) {
        self.statuses.lock().expect("nobody panicked").push(update);
    }

    async fn flush(&mut self) -> Result<(), Failure> {
        Ok(())
    }

    async fn finish(self) -> Result<(), Failure> {
        Ok(())
    }
}

#[derive(Default)]
struct OneTransaction {
    statuses: Statuses,
    /// The number of times that a stream was opened.
    opened: Arc<AtomicU32>,
    /// Behind the transaction is another one, at whose second row the server fails.
    fails: bool,
    /// This stream and later ones are of a promoted server, whose slot another relay has read.
    promoted_at: Option<u32>,
    /// The rows are those of a snapshot.
    snapshot: bool,
}

impl Source for OneTransaction {
    type Stream = Stream;
    type Error = Failure;

    async fn open(&mut self, _: Option<&Resume>) -> Result<Opened<Stream>, Failure> {
        let number = self.opened.fetch_add(1, Relaxed) + 1;
        let promoted = self.promoted_at.is_some_and(|at| number >= at);
        let mut stream = Stream {
            bytes: Vec::new(),
            fails: self.fails,
            snapshot: self.snapshot,
            read: false,
            at: 0,
            peeked: 0,
            statuses: Arc::clone(&self.statuses),
        };
        let text = TypeOid::new(25);
        let table = encode::Table::new(RelationId::new(7), "public", "outbox")
            .key("id", text)
            .column("aggregatetype", text)
            .column("aggregateid", text)
            .column("payload", text);
        let time = PgTimestamp::new(0);
        stream.push(&encode::begin(COMMIT, time, Xid::new(7)));
        stream.push(&table.relation());
        for row in 0..ROWS {
            let id = format!("r{row}");
            stream.push(&table.insert(&[Some(&id), Some("order"), Some("k"), Some("{}")]));
        }
        stream.push(&encode::commit(COMMIT, END.lsn(), time));
        if self.fails {
            stream.push(&encode::begin(NEXT, time, Xid::new(8)));
            stream.push(&table.insert(&[Some("r2"), Some("order"), Some("k"), Some("{}")]));
        }
        Ok(Opened {
            stream,
            system_id: "7".to_owned(),
            timeline: if promoted { 2 } else { 1 },
            server_start: if promoted { "2.5" } else { "1.5" }.to_owned(),
            ancestors: vec![Ancestor {
                timeline: 1,
                ended: Lsn::new(500),
            }],
            flushed: END.lsn(),
            confirmed: START,
            server_timeout: None,
            tables: Vec::new(),
            predecessor: promoted.then_some(Predecessor::StateFile),
        })
    }

    fn check_slot(&mut self, _: Option<RelationId>) {}

    async fn slot_checked(&mut self, _: bool) -> Result<SlotCheck, Failure> {
        pending().await
    }

    async fn confirmed_on_server(&mut self) -> Result<Lsn, Failure> {
        let statuses = self.statuses.lock().expect("nobody panicked");
        Ok(statuses.last().map_or(START, |status| status.flushed).lsn())
    }
}

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
        max_in_flight_records: 64,
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
    let ended = timeout(PATIENCE, pipeline.run(stopped)).await;
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
