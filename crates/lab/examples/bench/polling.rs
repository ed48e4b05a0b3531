//! A polling relay, what walrelay replaces, written well.
//!
//! It takes a batch of rows under `FOR UPDATE SKIP LOCKED`, in the order of their number; sends all of
//! them with `acks=all` and idempotence before it waits; marks or deletes the batch by one statement,
//! and commits. Two connections take turns: one reads a batch while the broker has the other's. A batch
//! is enqueued before the next is read, which keeps the order. Statements are prepared once and
//! pipelined. The next batch begins behind the last one; it begins at the first unsent row now and
//! then, and after a batch that was not full. The relay rests only after an empty batch.
//!
//! It is a process of its own, this program with `--polling`, so that its CPU and memory are measured
//! apart from the rig's.

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

/// As the widespread ones have it.
const BATCH: i64 = 1000;
/// How often it looks from the beginning again: a row that was committed after others with higher numbers
/// is behind it.
const AGAIN: u32 = 64;
/// When nothing was there.
const REST: Duration = Duration::from_millis(50);
/// By which the rig finds its backends.
pub(crate) const APPLICATION: &str = "polling";
pub(crate) const CONNECTIONS: usize = 2;
pub(crate) const FLAG: &str = "--polling";
/// What it says when it begins.
pub(crate) const BEGINS: &str = "polling begins";

/// What it does with a row that was sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sent {
    Update,
    Delete,
}

impl Sent {
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Update => "update",
            Self::Delete => "delete",
        }
    }

    /// The condition on `sent_at` is for the index, which has the unsent rows only.
    fn statement(self) -> &'static str {
        match self {
            Self::Update => {
                "UPDATE polled SET sent_at = now() WHERE seq = ANY($1) AND sent_at IS NULL"
            }
            Self::Delete => "DELETE FROM polled WHERE seq = ANY($1) AND sent_at IS NULL",
        }
    }
}

/// The arguments of a child that relays `rows` rows to topics of this prefix, and as long as it is let if
/// there are none.
pub(crate) fn arguments(
    url: &str,
    bootstrap: &str,
    prefix: &str,
    rows: u64,
    sent: Sent,
) -> Vec<String> {
    let rows = rows.to_string();
    let words = [FLAG, url, bootstrap, prefix, &rows, sent.word()];
    words.map(str::to_owned).to_vec()
}

/// Records of a batch that the broker has not answered for.
#[derive(Default)]
struct Flight {
    open: AtomicUsize,
    landed: Notify,
}

struct Reports;

impl ClientContext for Reports {}

impl ProducerContext for Reports {
    type DeliveryOpaque = Arc<Flight>;

    fn delivery(&self, result: &DeliveryResult<'_>, flight: Arc<Flight>) {
        // Rolled back with the process; started again, it would go on from there.
        assert!(result.is_ok(), "the broker refused a record");
        if flight.open.fetch_sub(1, Ordering::AcqRel) == 1 {
            flight.landed.notify_one();
        }
    }
}

/// The child.
pub(crate) fn serve() {
    let arguments: Vec<String> = env::args().skip(2).collect();
    let [url, bootstrap, prefix, rows, sent] = &arguments[..] else {
        panic!("{FLAG} URL BOOTSTRAP PREFIX ROWS update|delete, not {arguments:?}");
    };
    let rows: u64 = rows.parse().expect("a number of rows");
    let sent = match &**sent {
        "update" => Sent::Update,
        "delete" => Sent::Delete,
        other => panic!("{other} is neither update nor delete"),
    };
    // The batch is there as a whole: the linger is what it takes to enqueue it.
    let producer = safe(bootstrap, "2").create_with_context(Reports);
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
            let mut config: tokio_postgres::Config = url.parse().expect("a URL");
            config.application_name(APPLICATION);
            let (client, connection) = config.connect(NoTls).await.expect("Postgres answers");
            tokio::spawn(connection);
            clients.push(client);
        }
        eprintln!("{BEGINS}");
        let start = |client| tokio::spawn(Arc::clone(&relay).work(client));
        let workers: Vec<_> = clients.into_iter().map(start).collect();
        for worker in workers {
            worker.await.expect("it polls to the end");
        }
    });
}

struct Polling {
    producer: ThreadedProducer<Reports>,
    prefix: String,
    sent: Sent,
    rows: u64,
    done: AtomicU64,
    /// Who has it reads and enqueues.
    turn: Mutex<Place>,
}

/// Where the next batch begins: what is locked by the other connection, and what is dead, need not be
/// passed over for each.
#[derive(Default)]
struct Place {
    after: i64,
    batches: u32,
}

impl Place {
    fn move_on(&mut self, last: Option<i64>, full: bool) {
        self.batches += 1;
        self.after = match last {
            Some(last) if full && !self.batches.is_multiple_of(AGAIN) => last,
            _ => 0,
        };
    }
}

impl Polling {
    async fn work(self: Arc<Self>, client: Client) {
        let take = client
            .prepare(&format!(
                "SELECT seq, id::text, aggregatetype, aggregateid, payload::text FROM polled \
                 WHERE sent_at IS NULL AND seq > $1 ORDER BY seq LIMIT {BATCH} FOR UPDATE SKIP LOCKED"
            ))
            .await
            .expect("the batch can be asked for");
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
            turn.move_on(last, batch.len() as i64 == BATCH);
            if batch.is_empty() {
                drop(turn);
                client.batch_execute("COMMIT").await.expect("its end");
                if from_the_beginning {
                    tokio::time::sleep(REST).await;
                }
                continue;
            }
            let flight = Arc::new(Flight::default());
            flight.open.store(batch.len(), Ordering::Release);
            for row in &batch {
                self.send(row, &flight);
            }
            drop(turn);
            flight.landed.notified().await;
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

    fn send(&self, row: &tokio_postgres::Row, flight: &Arc<Flight>) {
        let (id, kind): (&str, &str) = (row.get(1), row.get(2));
        let (key, payload): (&str, &str) = (row.get(3), row.get(4));
        let topic = format!("{}{kind}", self.prefix);
        let record = BaseRecord::with_opaque_to(&topic, Arc::clone(flight));
        let record = record.key(key).payload(payload).headers(id_header(id));
        let sent = self.producer.send(record).map_err(|(error, _)| error);
        sent.expect("room for a batch");
    }
}
