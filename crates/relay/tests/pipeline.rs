//! The pipeline's task, with a source that sends one transaction and a sink with a configured
//! answer: which positions are reported to the server.

#![allow(
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

use std::convert::Infallible;
use std::future::pending;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::time::{sleep, timeout};
use walrelay_event_router::{Options, Router};
use walrelay_lsn::{CommitEnd, Lsn, RelationId, TypeOid, Xid};
use walrelay_pgoutput::{PgTimestamp, encode};
use walrelay_relay::{
    Environment, Looked, OnUpdate, Opened, Outcome, Pipeline, PipelineError, PoisonPolicy, Resume,
    Settings, Source, TableName, WalStream,
};
use walrelay_sink::{Deliveries, DeliveryError, Disposition, Record, SendError, Sink, SinkFactory};
use walrelay_walsender::framing::parse_frame;
use walrelay_walsender::{Error, Frame, Socket, StatusUpdate};

const START: CommitEnd = CommitEnd::from_slot(Lsn::new(1_000));
const COMMIT: Lsn = Lsn::new(2_000);
const END: CommitEnd = CommitEnd::from_slot(Lsn::new(2_048));
const INTERVAL: Duration = Duration::from_millis(20);
/// The limit of what must happen, also on a busy machine.
const PATIENCE: Duration = Duration::from_secs(120);

/// What the sink does with a record.
#[derive(Debug, Clone, Copy)]
enum Answer {
    Full,
    Delivered,
    Failed,
    /// Takes the record and reports nothing.
    Nothing,
}

struct ScriptedSink {
    answer: Answer,
    deliveries: Arc<dyn Deliveries>,
}

impl Sink for ScriptedSink {
    fn try_send(&mut self, record: &Record<'_>, seq: u64) -> Result<(), SendError> {
        match self.answer {
            Answer::Full => return Err(SendError::Full),
            Answer::Delivered => self.deliveries.delivered(seq),
            Answer::Failed => self.deliveries.failed(
                seq,
                DeliveryError {
                    topic: record.topic.into(),
                    reason: "no".to_owned(),
                    disposition: Disposition::Fatal,
                    poison: None,
                },
            ),
            Answer::Nothing => {}
        }
        Ok(())
    }

    fn close(self, _: Duration) {}
}

struct Factory(Answer);

impl SinkFactory for Factory {
    type Sink = ScriptedSink;
    type Error = Infallible;

    fn create(&mut self, deliveries: Arc<dyn Deliveries>) -> Result<ScriptedSink, Infallible> {
        Ok(ScriptedSink {
            answer: self.0,
            deliveries,
        })
    }

    fn disposition(error: &Infallible) -> Disposition {
        match *error {}
    }
}

type Statuses = Arc<Mutex<Vec<StatusUpdate>>>;

struct Stream {
    bytes: Vec<u8>,
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
    type Error = Error;

    fn socket(&self) -> Socket {
        Socket::Unix
    }

    fn peek(&mut self) -> Result<Option<Frame<'_>>, Error> {
        let bytes = if self.read {
            &self.bytes[self.at..]
        } else {
            &[]
        };
        let Some((frame, length)) = parse_frame(bytes)? else {
            return Ok(None);
        };
        self.peeked = length;
        Ok(Some(frame))
    }

    fn consume(&mut self) {
        self.at += self.peeked;
    }

    async fn read(&mut self) -> Result<usize, Error> {
        if self.read {
            pending::<()>().await;
        }
        self.read = true;
        Ok(self.bytes.len())
    }

    fn queue_status(&mut self, update: StatusUpdate) {
        self.statuses.lock().expect("nobody panicked").push(update);
    }

    async fn flush(&mut self) -> Result<(), Error> {
        Ok(())
    }

    async fn finish(self) -> Result<(), Error> {
        Ok(())
    }
}

struct OneTransaction(Statuses);

impl Source for OneTransaction {
    type Stream = Stream;
    type Error = Error;

    async fn open(&mut self, _: Option<&Resume>) -> Result<Opened<Stream>, Error> {
        let mut stream = Stream {
            bytes: Vec::new(),
            read: false,
            at: 0,
            peeked: 0,
            statuses: Arc::clone(&self.0),
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
        stream.push(&table.insert(&[Some("r1"), Some("order"), Some("k"), Some("{}")]));
        stream.push(&encode::commit(COMMIT, END.lsn(), time));
        Ok(Opened {
            stream,
            system_id: "7".to_owned(),
            timeline: 1,
            server_start: "1.5".to_owned(),
            ancestors: Vec::new(),
            flushed: END.lsn(),
            confirmed: START,
            server_timeout: None,
            tables: Vec::new(),
            predecessor: None,
        })
    }

    fn look(&mut self) {}

    async fn looked(&mut self, _: bool) -> Result<Looked, Error> {
        pending().await
    }

    async fn confirmed_on_server(&mut self) -> Result<Lsn, Error> {
        let statuses = self.0.lock().expect("nobody panicked");
        Ok(statuses.last().map_or(START, |status| status.flushed).lsn())
    }
}

struct Clock;

impl Environment for Clock {
    fn wall_clock(&self) -> PgTimestamp {
        PgTimestamp::new(0)
    }
}

type Ended = Result<Outcome, PipelineError<Error, Infallible>>;

/// Runs a pipeline until the positions that were reported as flushed satisfy `stop`, then stops it.
/// Returns the result and those positions. `drain_timeout`: how long the stop waits for deliveries.
async fn relay(
    answer: Answer,
    drain_timeout: Duration,
    stop: impl Fn(&[CommitEnd]) -> bool,
) -> (Ended, Vec<CommitEnd>) {
    let statuses = Statuses::default();
    let settings = Settings {
        tables: [TableName::new("public", "outbox")].into(),
        messages: None,
        max_in_flight_records: 64,
        status_interval: INTERVAL,
        receive_timeout: 2 * PATIENCE,
        drain_timeout,
        backoff_initial: INTERVAL,
        backoff_max: INTERVAL,
        poison: PoisonPolicy::default(),
        on_update: OnUpdate::Warn,
        schemas: None,
    };
    let source = OneTransaction(Arc::clone(&statuses));
    let router = Router::new(Options::default());
    let mut pipeline = Pipeline::new(source, router, Factory(answer), Clock, settings);
    let flushed = || -> Vec<CommitEnd> {
        let statuses = statuses.lock().expect("nobody panicked");
        statuses.iter().map(|status| status.flushed).collect()
    };
    let stopped = async {
        while !stop(&flushed()) {
            sleep(INTERVAL / 4).await;
        }
    };
    let ended = timeout(PATIENCE, pipeline.run(stopped)).await;
    (ended.expect("the pipeline ends"), flushed())
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
