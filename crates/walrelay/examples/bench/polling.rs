//! A polling relay, written as one would who knows how: what walrelay replaces, so that it is no
//! straw man.
//!
//! Takes a batch of rows under `FOR UPDATE SKIP LOCKED`, in the order of their number; sends them with
//! `acks=all` and idempotence, all of them before it waits; marks or deletes the whole batch by one
//! statement, and commits. Rests only when there was nothing. Statements are prepared once.
//!
//! It runs as a process of its own, this program again with `--polling`, so that its CPU and memory can
//! be told from the rig's.

use std::env;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use futures_executor::block_on;
use rdkafka::ClientConfig;
use rdkafka::ClientContext;
use rdkafka::message::{Header, OwnedHeaders};
use rdkafka::producer::{
    BaseRecord, DeliveryResult, Producer as _, ProducerContext, ThreadedProducer,
};
use walrelay_testkit::Db;

/// As the widespread ones have it.
const BATCH: i64 = 1000;
/// When nothing was there.
const REST: Duration = Duration::from_millis(50);
const FLUSH: Duration = Duration::from_secs(60);
/// By which the rig finds its backend.
pub(crate) const APPLICATION: &str = "polling";
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

/// The arguments of a child that relays `rows` rows, and as long as it is let if there are none.
pub(crate) fn arguments(
    url: &str,
    bootstrap: &str,
    topic: &str,
    rows: u64,
    sent: Sent,
) -> Vec<String> {
    let rows = rows.to_string();
    let words = [FLAG, url, bootstrap, topic, &rows, sent.word()];
    words.map(str::to_owned).to_vec()
}

#[derive(Default)]
struct Reports {
    failed: AtomicU64,
}

impl ClientContext for Reports {}

impl ProducerContext for Reports {
    type DeliveryOpaque = ();

    fn delivery(&self, result: &DeliveryResult<'_>, (): ()) {
        if result.is_err() {
            self.failed.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// The child.
#[expect(
    clippy::disallowed_methods,
    reason = "it is no sink: a batch is all or nothing, and the reports are looked at"
)]
pub(crate) fn serve() {
    let arguments: Vec<String> = env::args().skip(2).collect();
    let [url, bootstrap, topic, rows, sent] = &arguments[..] else {
        panic!("{FLAG} URL BOOTSTRAP TOPIC ROWS update|delete, not {arguments:?}");
    };
    let rows: u64 = rows.parse().expect("a number of rows");
    let sent = match &**sent {
        "update" => Sent::Update,
        "delete" => Sent::Delete,
        other => panic!("{other} is neither update nor delete"),
    };
    let db = Db::connect(url);
    db.batch(&format!("SET application_name = '{APPLICATION}'"));
    let take = block_on(db.client().prepare(&format!(
        "SELECT seq, id::text, aggregateid, payload::text FROM polled WHERE sent_at IS NULL \
         ORDER BY seq LIMIT {BATCH} FOR UPDATE SKIP LOCKED"
    )))
    .expect("the batch can be asked for");
    let close = block_on(db.client().prepare(sent.statement())).expect("and closed");
    let producer: ThreadedProducer<Reports> = ClientConfig::new()
        .set("bootstrap.servers", bootstrap)
        .set("enable.idempotence", "true")
        .set("acks", "all")
        // The batch is there as a whole: what it costs to fill requests is this, once a batch.
        .set("linger.ms", "5")
        .set("partitioner", "murmur2_random")
        .create_with_context(Reports::default())
        .expect("a producer");
    eprintln!("{BEGINS}");
    let mut done = 0;
    while rows == 0 || done < rows {
        db.batch("BEGIN");
        let batch = block_on(db.client().query(&take, &[])).expect("a batch");
        if batch.is_empty() {
            db.batch("COMMIT");
            thread::sleep(REST);
            continue;
        }
        for row in &batch {
            let (id, key, payload): (&str, &str, &str) = (row.get(1), row.get(2), row.get(3));
            let headers = OwnedHeaders::new().insert(Header {
                key: "id",
                value: Some(id),
            });
            let record = BaseRecord::to(topic)
                .key(key)
                .payload(payload)
                .headers(headers);
            producer
                .send(record)
                .map_err(|(error, _)| error)
                .expect("room for a batch");
        }
        producer.flush(FLUSH).expect("the broker answers");
        assert_eq!(
            producer.context().failed.load(Ordering::Relaxed),
            0,
            "refused records"
        );
        let numbers: Vec<i64> = batch.iter().map(|row| row.get(0)).collect();
        block_on(db.client().execute(&close, &[&numbers])).expect("the batch is closed");
        db.batch("COMMIT");
        done += batch.len() as u64;
    }
}
