//! Two polling relays as people have them, each a process of its own, so that it can be killed in mid-batch.

use std::env;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

use fastrand::Rng;
use rdkafka::ClientConfig;
use rdkafka::message::{Header, OwnedHeaders};
use rdkafka::producer::{BaseRecord, DeliveryResult, ProducerContext, ThreadedProducer};
use walrelay_lab::servers::{ChildGuard, end_with_owner};
use walrelay_testkit::Db;

use crate::rig::{PATIENCE, Rig};

/// Says that this process is a poller, and of which kind; then URL, broker, prefix of the topics and mistakes.
const VARIABLE: &str = "WALRELAY_E2E_POLLER";
/// By which its sessions are known.
pub(super) const APPLICATION: &str = "poller";
/// The header that tells its records from walrelay's.
pub(super) const HEADER: &str = "poller";
const BATCH: u32 = 100;

/// How a polling relay keeps what it has sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// PENDING, PROCESSING, SENT: it claims a batch, publishes outside of a transaction, marks.
    Status,
    /// `dispatched_at`: one transaction locks, publishes and marks.
    Dispatched,
}

impl Kind {
    /// What its column adds to the outbox.
    pub(super) fn columns(self) -> &'static str {
        match self {
            Self::Status => "ADD status text NOT NULL DEFAULT 'PENDING'",
            Self::Dispatched => "ADD dispatched_at timestamptz",
        }
    }

    /// The condition on rows that it has not marked.
    pub(super) fn unsent(self) -> &'static str {
        match self {
            Self::Status => "status <> 'SENT'",
            Self::Dispatched => "dispatched_at IS NULL",
        }
    }

    /// What it does to a row that is sent.
    pub(super) fn mark(self) -> &'static str {
        match self {
            Self::Status => "status = 'SENT'",
            Self::Dispatched => "dispatched_at = now()",
        }
    }

    fn take(self) -> String {
        const COLUMNS: &str = "id::text, aggregatetype, aggregateid, payload::text";
        match self {
            Self::Status => format!(
                "WITH claimed AS (UPDATE outbox SET status = 'PROCESSING' WHERE id IN (SELECT id FROM outbox \
                 WHERE status = 'PENDING' ORDER BY seq LIMIT {BATCH} FOR UPDATE SKIP LOCKED) RETURNING *) \
                 SELECT {COLUMNS} FROM claimed ORDER BY seq"
            ),
            Self::Dispatched => format!(
                "SELECT {COLUMNS} FROM outbox WHERE dispatched_at IS NULL ORDER BY seq LIMIT {BATCH} \
                 FOR UPDATE SKIP LOCKED"
            ),
        }
    }
}

/// Starts one. `mistakes`: one record in fifty is left out, and one has another value.
pub(super) fn start(rig: &Rig, kind: Kind, mistakes: bool) -> ChildGuard {
    let mut command = Command::new(env::current_exe().expect("this program"));
    let mistakes = if mistakes { "mistakes" } else { "none" };
    let (kind, url) = (format!("{kind:?}"), rig.postgres.url());
    let words = [&*kind, &*url, &*rig.bootstrap, &*rig.prefix, mistakes];
    command
        .args(["--exact", "cutover::poller::process"])
        .env(VARIABLE, words.join("\n"))
        .stdout(Stdio::null());
    end_with_owner(&mut command).expect("a shell");
    ChildGuard::spawn(&mut command).expect("this program runs")
}

#[derive(Debug, Default)]
struct Flight(AtomicUsize);

struct Reports;

impl rdkafka::ClientContext for Reports {}

impl ProducerContext for Reports {
    type DeliveryOpaque = Arc<Flight>;

    fn delivery(&self, result: &DeliveryResult<'_>, flight: Arc<Flight>) {
        assert!(result.is_ok(), "the broker refused a record");
        flight.0.fetch_sub(1, Ordering::AcqRel);
    }
}

/// The poller of [`start`]; no test by itself.
#[test]
fn process() {
    let Ok(words) = env::var(VARIABLE) else {
        return;
    };
    let words: Vec<&str> = words.split('\n').collect();
    let [kind, url, bootstrap, prefix, mistakes] = words[..] else {
        panic!("{VARIABLE} has five lines, not {words:?}");
    };
    let kind = [Kind::Status, Kind::Dispatched]
        .into_iter()
        .find(|known| format!("{known:?}") == kind)
        .expect("a kind");
    let producer: ThreadedProducer<Reports> = ClientConfig::new()
        .set("bootstrap.servers", bootstrap)
        .set("enable.idempotence", "true")
        .set("linger.ms", "1")
        .set("partitioner", "murmur2_random")
        .create_with_context(Reports)
        .expect("a producer");
    let db = Db::connect(url);
    db.batch(&format!("SET application_name = '{APPLICATION}'"));
    if kind == Kind::Status {
        // Those that its predecessor had claimed: it is the only one.
        db.batch("UPDATE outbox SET status = 'PENDING' WHERE status = 'PROCESSING'");
    }
    let (mut rng, mut sent) = (Rng::new(), 0_u64);
    loop {
        db.batch("BEGIN");
        let batch = db.query(&kind.take(), &[]);
        if kind == Kind::Status || batch.is_empty() {
            db.batch("COMMIT");
        }
        if batch.is_empty() {
            sleep(Duration::from_millis(20));
            continue;
        }
        let flight = Arc::new(Flight::default());
        let mut ids = Vec::new();
        for row in &batch {
            let (id, topic): (&str, &str) = (row.get(0), row.get(1));
            let (key, payload): (&str, &str) = (row.get(2), row.get(3));
            ids.push(id.to_owned());
            sent += 1;
            let payload = match sent % 50 {
                7 if mistakes == "mistakes" => continue,
                9 if mistakes == "mistakes" => format!("[{payload}]"),
                11 if mistakes == "mistakes" => payload.replace(": ", ":"),
                _ => payload.to_owned(),
            };
            let topic = format!("{prefix}{topic}");
            let headers = OwnedHeaders::new()
                .insert(Header {
                    key: "id",
                    value: Some(id),
                })
                .insert(Header {
                    key: HEADER,
                    value: Some("1"),
                });
            let record = BaseRecord::with_opaque_to(&topic, Arc::clone(&flight));
            flight.0.fetch_add(1, Ordering::AcqRel);
            let given = producer.send(record.key(key).payload(&payload).headers(headers));
            assert!(given.is_ok(), "room for a batch");
        }
        let begun = Instant::now();
        while flight.0.load(Ordering::Acquire) > 0 {
            assert!(begun.elapsed() < PATIENCE, "the broker does not answer");
            producer.poll(Duration::from_millis(1));
        }
        // Published and not marked: a moment that a SIGKILL meets.
        sleep(Duration::from_millis(rng.u64(..40)));
        let mark = format!(
            "UPDATE outbox SET {} WHERE id::text = ANY ($1)",
            kind.mark()
        );
        db.query(&mark, &[&ids]);
        if kind == Kind::Dispatched {
            db.batch("COMMIT");
        }
    }
}
