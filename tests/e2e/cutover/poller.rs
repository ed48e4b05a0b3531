//! Two typical polling relays, each a process of its own, so that it can be killed in the middle of
//! a batch.

use std::env;
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::Duration;

use walrelay_testkit::{Db, Producer, rng_of, seed};
use walrelay_throwaway::ChildGuard;

use crate::rig::{PATIENCE, Rig};

/// Variable that makes this process a poller. Its lines are kind, URL, broker, prefix of the
/// topics, mistakes, and seed.
const VARIABLE: &str = "WALRELAY_E2E_POLLER";
/// `application_name` of its sessions.
pub(super) const APPLICATION: &str = "poller";
/// The header of the poller's records, which walrelay's lack.
pub(super) const HEADER: &str = "poller";
const BATCH: u32 = 100;

/// How a polling relay marks the rows that it has sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// PENDING, PROCESSING, SENT: it claims a batch, publishes outside of a transaction, then
    /// marks.
    Status,
    /// `dispatched_at`: one transaction locks, publishes and marks.
    Dispatched,
}

impl Kind {
    /// The column that it adds to the outbox.
    pub(super) fn columns(self) -> &'static str {
        match self {
            Self::Status => "ADD status text NOT NULL DEFAULT 'PENDING'",
            Self::Dispatched => "ADD dispatched_at timestamptz",
        }
    }

    /// Condition for the rows that it has not marked.
    pub(super) fn unsent(self) -> &'static str {
        match self {
            Self::Status => "status <> 'SENT'",
            Self::Dispatched => "dispatched_at IS NULL",
        }
    }

    /// Assignment that marks a row as sent.
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

/// Starts a poller. With `mistakes`, it omits one record in fifty and changes others.
pub(super) fn start(rig: &Rig, kind: Kind, mistakes: bool) -> ChildGuard {
    let mut command = Command::new(env::current_exe().expect("this program"));
    let mistakes = if mistakes { "mistakes" } else { "none" };
    let (kind, url) = (format!("{kind:?}"), rig.postgres.url());
    let seed = seed().to_string();
    let words = [
        &*kind,
        &*url,
        &*rig.bootstrap,
        &*rig.prefix,
        mistakes,
        &*seed,
    ];
    command
        .args(["--exact", "cutover::poller::process"])
        .env(VARIABLE, words.join("\n"))
        .stdout(Stdio::null());
    ChildGuard::spawn(&mut command).expect("this program runs")
}

/// The process of [`start`]; no test by itself.
#[test]
fn process() {
    let Ok(words) = env::var(VARIABLE) else {
        return;
    };
    let words: Vec<&str> = words.split('\n').collect();
    let [kind, url, bootstrap, prefix, mistakes, seed] = words[..] else {
        panic!("{VARIABLE} has six lines, not {words:?}");
    };
    let seed = seed.parse().expect("a number");
    let mut kinds = [Kind::Status, Kind::Dispatched].into_iter();
    let kind = kinds.find(|known| format!("{known:?}") == kind);
    let kind = kind.expect("a kind");
    let producer = Producer::new(bootstrap);
    let db = Db::connect(url);
    db.batch(&format!("SET application_name = '{APPLICATION}'"));
    if kind == Kind::Status {
        // Reset the claims of its predecessor: this is the only poller.
        db.batch("UPDATE outbox SET status = 'PENDING' WHERE status = 'PROCESSING'");
    }
    let (mut rng, mut sent) = (rng_of(seed, "cutover::poller"), 0_u64);
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
            let headers = [("id", id), (HEADER, "1")];
            let (key, value) = (Some(key.as_bytes()), Some(payload.as_bytes()));
            producer.send(&topic, key, value, &headers);
        }
        assert!(producer.delivers(PATIENCE), "the broker does not take them");
        // Widen the time between publishing and marking, so that SIGKILL meets it.
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
