//! A well-written polling relay: the kind of relay that walrelay replaces.
//!
//! It reads a batch of rows with `FOR UPDATE SKIP LOCKED`, ordered by `seq`. It sends the whole
//! batch with `acks=all` and idempotence before it waits for the reports, then marks or deletes the
//! batch with one statement, and commits. Two connections take turns: one reads a batch while the
//! other waits for the broker. A batch is enqueued before the next is read, which keeps the order.
//! Statements are prepared once and pipelined. The next batch begins behind the last one; it begins
//! at the first unsent row every [`RESCAN_EVERY`] batches and after a batch that was not full. The
//! relay sleeps only after an empty batch.
//!
//! It runs as a process of its own, this program with `--polling`, so that its CPU and memory are
//! measured apart from the harness.

use std::env;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use rdkafka::ClientContext;
use rdkafka::producer::{BaseRecord, DeliveryResult, ProducerContext, ThreadedProducer};
use tokio::sync::{Mutex, Notify};
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, NoTls};

use crate::writers::{id_header, safe};

/// Rows of a batch; a common value.
pub(crate) const BATCH: i64 = 1000;
/// Takes a batch: number, id, kind, key and payload.
pub(crate) const TAKE: &str = "SELECT seq, id::text, aggregatetype, aggregateid, payload::text FROM polled \
     WHERE sent_at IS NULL AND seq > $1 ORDER BY seq LIMIT 1000 FOR UPDATE SKIP LOCKED";
/// Every so many batches the relay reads from the first unsent row again: a row may be committed
/// after rows with higher numbers.
const RESCAN_EVERY: u32 = 64;
/// Pause after an empty batch.
pub(crate) const POLL_PAUSE: Duration = Duration::from_millis(50);
/// `application_name` by which the harness finds the server processes.
pub(crate) const APPLICATION: &str = "polling";
pub(crate) const CONNECTIONS: usize = 2;
pub(crate) const FLAG: &str = "--polling";
/// Line that the process prints when it begins.
pub(crate) const READY_LINE: &str = "polling begins";

/// The treatment of a row that was sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AfterSend {
    Update,
    Delete,
}

impl AfterSend {
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Update => "update",
            Self::Delete => "delete",
        }
    }

    /// Returns the statement. Its condition on `sent_at` selects the partial index, which contains
    /// only unsent rows.
    pub(crate) fn statement(self) -> &'static str {
        match self {
            Self::Update => {
                "UPDATE polled SET sent_at = now() WHERE seq = ANY($1) AND sent_at IS NULL"
            }
            Self::Delete => "DELETE FROM polled WHERE seq = ANY($1) AND sent_at IS NULL",
        }
    }
}

/// Returns the arguments of the child process: it relays `rows` rows to topics with this prefix, or
/// runs until it is killed if `rows` is 0.
pub(crate) fn arguments(
    url: &str,
    bootstrap: &str,
    prefix: &str,
    rows: u64,
    sent: AfterSend,
) -> Vec<String> {
    let rows = rows.to_string();
    let words = [FLAG, url, bootstrap, prefix, &rows, sent.word()];
    words.map(str::to_owned).to_vec()
}

/// Counts the records of a batch without a delivery report.
#[derive(Default)]
struct BatchReports {
    pending: AtomicUsize,
    all_reported: Notify,
}

struct ReportCounter;

impl ClientContext for ReportCounter {}

impl ProducerContext for ReportCounter {
    type DeliveryOpaque = Arc<BatchReports>;

    fn delivery(&self, result: &DeliveryResult<'_>, reports: Arc<BatchReports>) {
        // The transaction is rolled back when the process ends; a restart would continue from
        // there.
        assert!(result.is_ok(), "the broker refused a record");
        if reports.pending.fetch_sub(1, Ordering::AcqRel) == 1 {
            reports.all_reported.notify_one();
        }
    }
}

/// Runs the main function of the child process.
pub(crate) fn serve() {
    let arguments: Vec<String> = env::args().skip(2).collect();
    let [url, bootstrap, prefix, rows, sent] = &arguments[..] else {
        panic!("{FLAG} URL BOOTSTRAP PREFIX ROWS update|delete, not {arguments:?}");
    };
    let rows: u64 = rows.parse().expect("a number of rows");
    let sent = match &**sent {
        "update" => AfterSend::Update,
        "delete" => AfterSend::Delete,
        other => panic!("{other} is neither update nor delete"),
    };
    // The whole batch is there at once: the linger covers the time to enqueue it.
    let producer = safe(bootstrap, "2").create_with_context(ReportCounter);
    let producer = producer.expect("a producer");
    let relay = Arc::new(Polling {
        producer,
        prefix: prefix.clone(),
        sent,
        rows,
        done: AtomicU64::new(0),
        turn: Mutex::default(),
    });
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    runtime.block_on(async {
        let mut clients = Vec::new();
        for _ in 0..CONNECTIONS {
            clients.push(connect(url).await);
        }
        eprintln!("{READY_LINE}");
        let start = |client| tokio::spawn(Arc::clone(&relay).work(client));
        let workers: Vec<_> = clients.into_iter().map(start).collect();
        for worker in workers {
            worker.await.expect("it polls to the end");
        }
    });
}

/// Connects to Postgres under the name by which the harness finds the connection.
pub(crate) async fn connect(url: &str) -> Client {
    let mut config: tokio_postgres::Config = url.parse().expect("a URL");
    config.application_name(APPLICATION);
    let (client, connection) = config.connect(NoTls).await.expect("Postgres answers");
    tokio::spawn(connection);
    client
}

struct Polling {
    producer: ThreadedProducer<ReportCounter>,
    prefix: String,
    sent: AfterSend,
    rows: u64,
    done: AtomicU64,
    /// The holder of this lock reads and enqueues.
    turn: Mutex<BatchStart>,
}

/// The beginning of the next batch. It skips the rows that the other connection has locked, and
/// dead rows.
#[derive(Default)]
pub(crate) struct BatchStart {
    after: i64,
    batches: u32,
}

impl BatchStart {
    /// Returns the number behind which the next batch begins.
    pub(crate) fn after(&self) -> i64 {
        self.after
    }

    pub(crate) fn advance(&mut self, last: Option<i64>, full: bool) {
        self.batches += 1;
        self.after = match last {
            Some(last) if full && !self.batches.is_multiple_of(RESCAN_EVERY) => last,
            _ => 0,
        };
    }
}

impl Polling {
    async fn work(self: Arc<Self>, client: Client) {
        let take = client.prepare(TAKE).await;
        let take = take.expect("the batch can be asked for");
        let close = client.prepare(self.sent.statement()).await;
        let close = close.expect("and closed");
        loop {
            let mut turn = self.turn.lock().await;
            if self.rows > 0 && self.done.load(Ordering::Relaxed) >= self.rows {
                return;
            }
            let after: [&(dyn ToSql + Sync); 1] = [&turn.after];
            let (begun, batch) =
                tokio::join!(client.batch_execute("BEGIN"), client.query(&take, &after));
            begun.expect("a transaction");
            let batch = batch.expect("a batch");
            let from_the_beginning = turn.after == 0;
            let last = batch.last().map(|row| row.get(0));
            turn.advance(last, batch.len() as i64 == BATCH);
            if batch.is_empty() {
                drop(turn);
                client.batch_execute("COMMIT").await.expect("its end");
                if from_the_beginning {
                    tokio::time::sleep(POLL_PAUSE).await;
                }
                continue;
            }
            let reports = Arc::new(BatchReports::default());
            reports.pending.store(batch.len(), Ordering::Release);
            for row in &batch {
                self.send(row, &reports);
            }
            drop(turn);
            reports.all_reported.notified().await;
            let numbers: Vec<i64> = batch.iter().map(|row| row.get(0)).collect();
            let numbers: [&(dyn ToSql + Sync); 1] = [&numbers];
            let (closed, committed) = tokio::join!(
                client.execute(&close, &numbers),
                client.batch_execute("COMMIT")
            );
            assert_eq!(closed.expect("the batch is closed"), batch.len() as u64);
            committed.expect("and committed");
            self.done.fetch_add(batch.len() as u64, Ordering::Relaxed);
        }
    }

    fn send(&self, row: &tokio_postgres::Row, reports: &Arc<BatchReports>) {
        let (id, kind): (&str, &str) = (row.get(1), row.get(2));
        let (key, payload): (&str, &str) = (row.get(3), row.get(4));
        let topic = format!("{}{kind}", self.prefix);
        let record = BaseRecord::with_opaque_to(&topic, Arc::clone(reports));
        let record = record.key(key).payload(payload).headers(id_header(id));
        let sent = self.producer.send(record).map_err(|(error, _)| error);
        sent.expect("room for a batch");
    }
}
