//! Tests each alert of `deploy/prometheus/alerts.yml`: its fault is injected, its expression
//! becomes true over the metrics that the relay serves, its remedy is carried out, and the
//! expression is false again.
//!
//! Expressions are evaluated here, by the rules of
//! <https://prometheus.io/docs/prometheus/latest/querying/basics/>, for the few functions and
//! operators that they use. Ranges are divided by 40, so that a quarter of an hour fits a test;
//! `for` is ignored. The time of a scrape is its number, so that a range has as many scrapes on a
//! busy machine as on any other.

mod expression;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use walrelay_testkit::{Db, HttpReceiver, Reaction, Redis, eventually, servers};
use walrelay_throwaway::Signal;

use crate::endpoint::{address, config, get, metric, status};
use crate::old_rows::MARK;
use crate::replay::drop_rolling_bookmark;
use crate::rig::{
    PATIENCE, Relay, Rig, assert_has, done, insert, kafka_in_turn, output_with, stdout,
    strict_kafka, with_source,
};
use crate::shown::Views;
use expression::{Expression, Scrape};

/// Time between two scrapes: at least this, and exactly this for the expressions.
const INTERVAL: Duration = Duration::from_millis(500);

/// The alerts by name, and what the endpoint has served so far.
struct Watch {
    /// The endpoint; `None` while no relay runs.
    address: Option<SocketAddr>,
    rules: BTreeMap<String, String>,
    scrapes: Vec<Scrape>,
}

impl Watch {
    fn new(relay: Option<&Relay>) -> Self {
        let file = concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../../deploy/prometheus/alerts.yml"
        );
        let text = std::fs::read_to_string(file).expect("the rules");
        let mut rules = BTreeMap::new();
        let mut alert = String::new();
        for line in text.lines().map(str::trim) {
            if let Some(name) = line.strip_prefix("- alert: ") {
                name.clone_into(&mut alert);
            } else if let Some(expression) = line.strip_prefix("expr: ") {
                rules.insert(alert.clone(), expression.to_owned());
            }
        }
        Self {
            address: relay.map(address),
            rules,
            scrapes: Vec::new(),
        }
    }

    fn metrics(&self) -> Option<String> {
        get(self.address?, "/metrics").map(|(_, text)| text)
    }

    fn scrape(&mut self) {
        let at = INTERVAL * self.scrapes.len() as u32;
        let scrape = Scrape::parse(at, self.metrics().as_deref(), "walrelay");
        self.scrapes.push(scrape);
    }

    fn fires(&self, alert: &str, replaced: &[(&str, &str)]) -> bool {
        let text = self.rules.get(alert);
        let text = text.unwrap_or_else(|| panic!("no alert {alert}"));
        let text = replaced.iter().fold(text.clone(), |text, (old, new)| {
            assert!(text.contains(old), "{alert}: {text}");
            text.replace(old, new)
        });
        let expression = Expression::parse(&text);
        let expression = expression.unwrap_or_else(|error| panic!("{alert}: {error}"));
        !expression.evaluate(&self.scrapes).is_empty()
    }

    /// Scrapes until each of these alerts fires, or none does. `replaced` exchanges a threshold
    /// that is too large for a test.
    #[track_caller]
    fn wait(&mut self, alerts: &[&str], fires: bool, replaced: &[(&str, &str)]) {
        self.wait_beside(|| (), alerts, fires, replaced);
    }

    /// The same, with some work before each scrape.
    #[track_caller]
    fn wait_beside(
        &mut self,
        mut work: impl FnMut(),
        alerts: &[&str],
        fires: bool,
        replaced: &[(&str, &str)],
    ) {
        let begun = Instant::now();
        loop {
            work();
            self.scrape();
            let others: Vec<_> = alerts
                .iter()
                .filter(|alert| self.fires(alert, replaced) != fires)
                .collect();
            if others.is_empty() {
                return eprintln!("{alerts:?}: {fires} after {:?}", begun.elapsed());
            }
            assert!(
                begun.elapsed() < PATIENCE,
                "{others:?} should be {fires}; the last scrape: {:#?}",
                self.scrapes.last()
            );
            // The relay's figures change with time.
            thread::sleep(INTERVAL);
        }
    }
}

/// Writes this many messages of a megabyte into the WAL.
fn write_wal(db: &Db, megabytes: u32) {
    db.batch(&format!(
        "SELECT pg_logical_emit_message(false, 'other', repeat('x', 1000000)) \
         FROM generate_series(1, {megabytes})"
    ));
}

#[test]
fn alerts_of_kafka_and_the_slot_come_and_go() {
    let kafka = kafka_in_turn();
    let postgres = servers::postgres_with(18, &[("max_slot_wal_keep_size", "64MB")]);
    let rig = Rig::with(postgres, kafka.bootstrap_servers()).outbox();
    let db = rig.db();
    // A relay that has lost its connection waits long enough for the alert.
    let more = "[delivery]\nbackoff_initial = \"8s\"\n";
    let configured = config(&rig, &rig.postgres.url(), more);
    let relay = rig.streaming(&configured);
    let mut watch = Watch::new(Some(&relay));
    let views = Views::new(&configured, &relay);
    let of_kafka = [
        "WalrelaySinkDown",
        "WalrelayNothingConfirmed",
        "WalrelayLag",
    ];
    let of_wal = ["WalrelaySlotWalNearLimit"];
    let retained = ["WalrelaySlotRetainsWal"];
    let smaller: &[(&str, &str)] = &[("10737418240", "33554432")];
    insert(&db, 0);
    watch.wait(&of_kafka, false, &[]);
    watch.wait(&of_wal, false, &[]);
    watch.wait(&retained, false, smaller);

    // Kafka goes away, and 56 MB of WAL are written.
    kafka.kill();
    insert(&db, 1);
    write_wal(&db, 56);
    watch.wait(&of_wal, true, &[]);
    watch.wait(&retained, true, smaller);
    let remedy = "raise max_slot_wal_keep_size now";
    views.show_problem(&["WAL"], remedy, "WalrelaySlotWalNearLimit");
    watch.wait(&["WalrelaySinkDown"], true, &[]);
    // WAL is written continuously, as on a busy server: the alert looks at a range of time.
    let write = || db.batch("SELECT pg_logical_emit_message(false, 'other', 'x')");
    watch.wait_beside(write, &["WalrelayNothingConfirmed"], true, &[]);
    watch.wait(&["WalrelayLag", "WalrelayNotReady"], true, &[]);
    // First the remedy for the limit, then the one for Kafka.
    rig.postgres
        .change_setting("max_slot_wal_keep_size", "1GB")
        .expect("it is changed");
    db.batch("SELECT pg_reload_conf()");
    watch.wait(&of_wal, false, &[]);
    kafka.start_again();
    let with_kafka = ["WalrelaySinkDown", "WalrelayLag", "WalrelayNotReady"];
    watch.wait(&with_kafka, false, &[]);
    db.batch("SELECT pg_logical_emit_message(false, 'other', 'x'); CHECKPOINT");
    watch.wait(&["WalrelayNothingConfirmed"], false, &[]);
    watch.wait(&retained, false, smaller);

    // The walsender is terminated and the relay waits before it reconnects: nobody reads the slot.
    watch.wait(&["WalrelaySlotInactive"], false, &[]);
    // The wait is random, so terminate walsenders until one wait is long enough.
    let terminate =
        || db.batch("SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots");
    watch.wait_beside(terminate, &["WalrelaySlotInactive"], true, &[]);
    watch.wait(&["WalrelaySlotInactive"], false, &[]);
    rig.finish(relay).assert_clean();
}

#[test]
fn alerts_of_the_process_and_dead_letters_come_and_go() {
    let rig = Rig::with_outbox(18);
    let topic = format!("{}dlq", rig.prefix);
    let more = format!("[poison]\nunroutable = \"dead-letter\"\ntopic = \"{topic}\"\n");
    let config = config(&rig, &rig.postgres.url(), &more);
    let mut relay = rig.streaming(&config);
    let mut watch = Watch::new(Some(&relay));
    let alerts = [
        "WalrelayDown",
        "WalrelayDeadLetters",
        "WalrelayRestarts",
        "WalrelayNotReady",
    ];
    watch.wait(&alerts, false, &[]);
    let db = rig.db();
    // No topic can have this name.
    db.batch("INSERT INTO outbox VALUES (gen_random_uuid(), 'no topic!', 'key', 'T', '{}')");
    watch.wait(&["WalrelayDeadLetters"], true, &[]);
    let redrive = "then walrelay dlq redrive";
    Views::new(&config, &relay).show_problem(&["unroutable 1"], redrive, "WalrelayDeadLetters");
    // The dead letter is in Kafka when its event is confirmed.
    rig.caught_up();
    done(&output_with("dlq drop --all --yes", &config, &[]));
    // The rate is 0 again when the window has passed.
    watch.wait(&["WalrelayDeadLetters"], false, &[]);

    for _ in 0..3 {
        relay.kill();
        // Another process may have the port of the relay by now.
        watch.address = None;
        watch.wait(&["WalrelayDown"], true, &[]);
        relay = rig.streaming(&config);
        watch.address = Some(address(&relay));
        watch.wait(&["WalrelayDown"], false, &[]);
    }
    watch.wait(&["WalrelayRestarts"], true, &[]);
    watch.wait(&["WalrelayRestarts"], false, &[]);
    relay.ends_well();
}

#[test]
fn alerts_of_the_rolling_bookmark_come_and_go() {
    let rig = Rig::with_outbox(18);
    let more = "[retention]\nkeep = \"10s\"\nmax_wal = \"32MiB\"\n";
    let relay = rig.streaming(&config(&rig, &rig.postgres.url(), more));
    let mut watch = Watch::new(Some(&relay));
    let db = rig.db();
    let short = ["WalrelayBookmarkShort"];
    let is_kept = |watch: &Watch| {
        let text = watch.metrics();
        text.is_some_and(|text| text.contains("walrelay_bookmark_cut_short{cause=\"lost\"}"))
    };
    eventually(PATIENCE, || is_kept(&watch));
    watch.wait(&short, false, &[]);

    // More WAL than the limit within the ten seconds, until the relay has noticed it: the size limit
    // wins.
    write_wal(&db, 32);
    let write = || {
        write_wal(&db, 16);
        db.batch("CHECKPOINT");
    };
    watch.wait_beside(write, &short, true, &[]);
    watch.wait(&short, false, &[]);

    drop_rolling_bookmark(&db);
    watch.wait(&short, true, &[]);
    watch.wait(&short, false, &[]);
    relay.ends_well();
}

/// Nothing reads the slot while the relay waits for its next attempt.
#[test]
fn alerts_of_a_lost_slot_come_and_go() {
    let postgres = servers::postgres_with(14, &[("max_slot_wal_keep_size", "1MB")]);
    let rig = Rig::on(postgres).outbox();
    let db = rig.db();
    let more = "[delivery]\nbackoff_initial = \"10m\"\nbackoff_max = \"10m\"\n";
    let configured = config(&rig, &rig.postgres.url(), more);
    // A relay without a connection looks who reads the slot after this time.
    let configured = with_source(configured, "wal_sender_timeout = \"10m\"");
    let relay = rig.streaming(&configured);
    let mut watch = Watch::new(Some(&relay));
    let lost = ["WalrelaySlotLost"];
    insert(&db, 1);
    rig.caught_up();
    watch.wait(&lost, false, &[]);
    db.batch("SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots");
    let write = || {
        write_wal(&db, 1);
        db.batch("SELECT pg_switch_wal()");
        db.batch("CHECKPOINT");
    };
    watch.wait_beside(write, &lost, true, &[]);
    let words = ["The slot is lost", "wal_status = lost"];
    let remedy = "read the runbook before anything is restarted";
    let views = Views::new(&configured, &relay);
    views.show_problem(&words, remedy, "WalrelaySlotLost");
    relay.kill();
    watch.address = None;
    // The remedy: the relay goes on over the gap.
    let relay = rig.start_with(&configured, &["--accept-gap"]);
    relay.streaming();
    watch.address = Some(address(&relay));
    watch.wait(&lost, false, &[]);
    insert(&db, 2);
    rig.caught_up();
    relay.ends_well();
}

/// A clock of the server that is ahead: other sessions of this database see it, too.
const CLOCK_AHEAD: &str = "ALTER FUNCTION pg_catalog.clock_timestamp() RENAME TO true_clock; \
     CREATE FUNCTION pg_catalog.clock_timestamp() RETURNS timestamptz LANGUAGE sql AS \
     $$ SELECT pg_catalog.true_clock() + interval '100 s' $$";
const CLOCK_RIGHT: &str = "DROP FUNCTION pg_catalog.clock_timestamp(); \
     ALTER FUNCTION pg_catalog.true_clock() RENAME TO clock_timestamp";

#[test]
fn alerts_of_skipped_and_large_events_silence_and_clocks_come_and_go() {
    let rig = Rig::with_outbox(18);
    let more = "expect_event_every = \"2s\"\n[poison]\nunroutable = \"skip\"\n";
    let configured = config(&rig, &rig.postgres.url(), more);
    let relay = rig.streaming(&configured);
    let mut watch = Watch::new(Some(&relay));
    let db = rig.db();
    // A busy machine may need longer than the two seconds for an event.
    let write = || insert(&db, 1);
    watch.wait_beside(write, &["WalrelaySilent"], false, &[]);
    let skipped = ["WalrelayEventsSkipped"];
    let clocks = ["WalrelayClocksApart"];
    watch.wait(&skipped, false, &[]);
    watch.wait(&clocks, false, &[]);

    // The silence is that after an event.
    rig.caught_up();
    watch.wait(&["WalrelaySilent"], true, &[]);
    let shown = status(address(&relay));
    let silence = shown["delivery"]["last_event_seconds"].as_f64();
    assert!(silence > Some(2.0), "{shown:#}");
    let views = Views::new(&configured, &relay);
    let remedy = "see whether the application writes events";
    views.show_problem(
        &["an event is expected every 2 s"],
        remedy,
        "WalrelaySilent",
    );
    watch.wait_beside(write, &["WalrelaySilent"], false, &[]);

    // No topic can have this name.
    db.batch("INSERT INTO outbox VALUES (gen_random_uuid(), 'no topic!', 'key', 'T', '{}')");
    watch.wait(&skipped, true, &[]);
    let again = "publish the rows again";
    views.show_problem(&["unroutable 1"], again, "WalrelayEventsSkipped");
    watch.wait(&skipped, false, &[]);

    // 900 of the 1000 kB that librdkafka accepts by default.
    let near = ["WalrelayEventsNearLimit"];
    watch.wait(&near, false, &[]);
    db.batch(
        "INSERT INTO outbox SELECT gen_random_uuid(), 'Order', 'key', 'T', to_json(repeat('x', 900000))",
    );
    watch.wait(&near, true, &[]);
    let words = ["an event has 900", "the limit is 1000000"];
    let remedy = "raise the limit of server and relay";
    views.show_problem(&words, remedy, "WalrelayEventsNearLimit");
    let up_to = |bytes: &str| {
        let line = format!("walrelay_event_value_bytes_bucket{{le=\"{bytes}\",sink=\"kafka\"}}");
        metric(address(&relay), &line).expect("a bucket")
    };
    let larger = up_to("1048576.0") - up_to("262144.0");
    assert!((larger - 1.0).abs() < 0.1, "{larger}");
    watch.wait(&near, false, &[]);

    db.batch(CLOCK_AHEAD);
    watch.wait(&clocks, true, &[]);
    let words = ["Postgres is 100.", "ahead of this machine"];
    let alert = "WalrelayClocksApart, after 5m";
    views.show_problem(&words, "timedatectl", alert);
    db.batch(CLOCK_RIGHT);
    watch.wait(&clocks, false, &[]);
    relay.ends_well();
}

#[test]
fn alerts_of_a_locked_table_come_and_go() {
    let rig = Rig::with_outbox(18);
    let configured = config(&rig, &rig.postgres.url(), "");
    let relay = rig.streaming(&configured);
    let mut watch = Watch::new(Some(&relay));
    let locked = ["WalrelayTableLocked"];
    watch.wait(&locked, false, &[]);
    let migration = rig.db();
    migration.batch("BEGIN; LOCK TABLE outbox IN SHARE MODE");
    watch.wait(&locked, true, &[]);
    let views = Views::new(&configured, &relay);
    let text = watch.metrics().unwrap_or_default();
    let reason = "locks public.outbox in SHARE mode\",remedy=\"wait until";
    assert_has(
        &text,
        &["walrelay_table_lock_reason{reason=\"server process", reason],
    );
    let words = ["locks public.outbox"];
    let alert = "WalrelayTableLocked, after 1m";
    views.show_problem(&words, "pg_terminate_backend", alert);
    migration.batch("ROLLBACK");
    watch.wait(&locked, false, &[]);
    relay.ends_well();
}

/// Between two attempts the relay streams, so that no other alert fires.
#[test]
fn alerts_of_reconnects_come_and_go() {
    let rig = Rig::with_outbox(18);
    let more = "[delivery]\nbackoff_initial = \"10ms\"\nbackoff_max = \"20ms\"\n";
    let configured = config(&rig, &rig.postgres.url(), more);
    let relay = rig.streaming(&configured);
    let mut watch = Watch::new(Some(&relay));
    let db = rig.db();
    let storm = ["WalrelayReconnects"];
    watch.wait(&storm, false, &[]);
    // As often as it reconnects: a busy machine makes few attempts in a fixed time.
    let slot = rig.slot();
    let terminate = || {
        slot.wait_active(PATIENCE);
        db.batch("SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots");
    };
    watch.wait_beside(terminate, &storm, true, &[]);
    watch.wait(&storm, false, &[]);
    let words = ["more than 10 in ten minutes", "connection "];
    let views = Views::new(&configured, &relay);
    views.show_problem(&words, "see the recent errors", "WalrelayReconnects");
    relay.ends_well();
}

/// A broker that is stopped by SIGSTOP keeps its connections, and answers nothing.
#[test]
fn alerts_of_a_silent_broker_come_and_go() {
    let kafka = kafka_in_turn();
    let rig = Rig::with_kafka(18, &kafka).outbox();
    let configured = config(&rig, &rig.postgres.url(), "");
    let relay = rig.streaming(&configured);
    let mut watch = Watch::new(Some(&relay));
    let down = ["WalrelaySinkDown"];
    insert(&rig.db(), 1);
    rig.caught_up();
    watch.wait(&down, false, &[]);
    kafka.pause();
    insert(&rig.db(), 2);
    watch.wait(&down, true, &[]);
    let at = address(&relay);
    eventually(PATIENCE, || {
        let shown = status(at);
        let brokers = shown["kafka"]["brokers"].as_array().expect("brokers");
        !brokers.is_empty() && brokers.iter().all(|broker| broker["state"] != "UP")
    });
    let set = format!("--set=http.listen={at}");
    let output = output_with("status", &configured, &[&set]);
    let screen = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_has(&screen, &["0 of 1 brokers up", "no answer from"]);
    kafka.resume();
    watch.wait(&down, false, &[]);
    rig.finish(relay).assert_clean();
}

/// A slot that somebody else reads pages; a relay that stands by for another one does not.
#[test]
fn alerts_of_a_taken_slot_come_and_go() {
    let rig = Rig::with_outbox(18);
    let thief = format!("{}&application_name=thief", rig.postgres.url());
    let thief = with_source(rig.config_with(&thief, ""), "wal_sender_timeout = \"10m\"");
    let thief = rig.streaming(&thief);
    thief.signal(Signal::Stop);
    let configured = config(&rig, &rig.postgres.url(), "");
    let relay = rig.start(&configured);
    let mut watch = Watch::new(Some(&relay));
    let of_relay = ["WalrelaySlotTaken", "WalrelayNotReady"];
    let (lag, sooner) = (["WalrelayLag"], [("> 30", "> 2")]);
    watch.wait(&of_relay, true, &[]);
    watch.wait(&lag, true, &sooner);
    // The remedy: the process is ended.
    thief.kill();
    rig.db()
        .batch("SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots");
    watch.wait(&of_relay, false, &[]);
    watch.wait(&lag, false, &sooner);

    let standby = rig.start(&configured);
    let mut watch = Watch::new(Some(&standby));
    let stands_by = |watch: &Watch| {
        let text = watch.metrics();
        text.is_some_and(|text| text.contains("walrelay_standby 1"))
    };
    eventually(PATIENCE, || stands_by(&watch));
    // Long enough for a lag, if the time of standing by were one.
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_secs(5) {
        watch.wait(&of_relay, false, &[]);
        watch.wait(&lag, false, &sooner);
        thread::sleep(INTERVAL);
    }
    relay.ends_well();
    standby.ends_well();
}

/// Rows that may not be deleted or marked stay, and the relay goes on.
#[test]
fn alerts_of_rows_that_stay_come_and_go() {
    let prune = "[prune]\nkeep = \"1s\"\nbefore_slot = true\n";
    for (source, more, change, work, done) in [
        ("", prune, "DELETE", "prune", "deleted"),
        (MARK, "", "UPDATE", "mark_sent", "marked"),
    ] {
        let rig = Rig::with_outbox(18);
        let db = rig.db();
        db.batch(
            "ALTER TABLE outbox ADD COLUMN created_at timestamptz NOT NULL DEFAULT now() - interval '1 hour', \
             ADD COLUMN sent_at timestamptz",
        );
        let configured = with_source(config(&rig, &rig.postgres.url(), more), source);
        let relay = rig.streaming(&configured);
        let mut watch = Watch::new(Some(&relay));
        let stay = ["WalrelayRowsStay"];
        watch.wait(&stay, false, &[]);
        db.batch(&format!(
            "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS \
             $$ BEGIN RAISE 'no row may be changed'; END $$; \
             CREATE TRIGGER refuse BEFORE {change} ON outbox FOR EACH ROW EXECUTE FUNCTION refuse()"
        ));
        insert(&db, 1);
        watch.wait(&stay, true, &[]);
        let line = format!("walrelay_row_changes_failing{{work=\"{work}\"}}");
        assert_eq!(metric(address(&relay), &line), Some(1.0));
        let words = [&*format!("Sent rows are not {done}")];
        let alert = "WalrelayRowsStay, after 15m";
        Views::new(&configured, &relay).show_problem(&words, "see walrelay check", alert);
        db.batch("DROP TRIGGER refuse ON outbox");
        watch.wait(&stay, false, &[]);
        relay.ends_well();
    }
}

/// A row that cannot be marked is old, so it is not deleted either. Its age is read once an index tells it.
#[test]
fn alerts_of_old_rows_come_and_go() {
    let rig = Rig::with_outbox(18);
    let db = rig.db();
    db.batch(
        "ALTER TABLE outbox ADD COLUMN created_at timestamptz NOT NULL DEFAULT now() - interval '2 days', \
         ADD COLUMN sent_at timestamptz; CREATE INDEX outbox_age ON outbox (created_at); \
         CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS \
         $$ BEGIN RAISE 'no row may be changed'; END $$; \
         CREATE TRIGGER refuse BEFORE UPDATE ON outbox FOR EACH ROW EXECUTE FUNCTION refuse()",
    );
    let prune = "[prune]\nkeep = \"1h\"\n";
    let configured = with_source(config(&rig, &rig.postgres.url(), prune), MARK);
    insert(&db, 1);
    let relay = rig.streaming(&configured);
    let at = address(&relay);
    let table = "{table=\"public.outbox\"}";
    let figure = |name: &str| metric(at, &format!("walrelay_outbox_{name}{table}"));
    eventually(PATIENCE, || figure("oldest_seconds") > Some(86_400.0));
    assert!(figure("bytes") > Some(0.0));
    assert_eq!(figure("oldest_unmarked_seconds"), None, "no index tells it");
    let unknown = status(at)["source"]["outboxes"][0]["unknown"].to_string();
    let words = ["the oldest unmarked row is not known: no index serves it: CREATE INDEX"];
    assert_has(&unknown, &words);
    let at_address = crate::endpoint::at(at);
    let shown = stdout(&output_with("status", &configured, &[&at_address]));
    assert_has(&shown, &["outbox         public.outbox: "]);
    let mut watch = Watch::new(Some(&relay));
    let (grows, unsent) = (["WalrelayOutboxGrows"], ["WalrelayOldestUnsent"]);
    watch.wait(&grows, true, &[]);
    watch.wait(&unsent, false, &[]);
    db.batch("CREATE INDEX ON outbox (created_at) WHERE sent_at IS NULL");
    watch.wait(&unsent, true, &[]);
    let views = Views::new(&configured, &relay);
    views.show_problem(
        &["public.outbox has old rows without a mark"],
        "walrelay stuck lists these rows",
        "WalrelayOldestUnsent, after 5m",
    );
    views.show_problem(
        &["public.outbox has rows that should be deleted by now"],
        "walrelay stuck, name the rows that stay",
        "WalrelayOutboxGrows, after 15m",
    );
    db.batch("DROP TRIGGER refuse ON outbox");
    watch.wait(&[grows[0], unsent[0]], false, &[]);
    relay.ends_well();
}

/// The topic of dead letters is missing, and nobody creates it.
#[test]
fn alerts_of_a_missing_dead_letter_topic_come_and_go() {
    let rig = Rig::with_kafka(18, strict_kafka());
    let topic = format!("{}dlq", rig.prefix);
    let more = format!("[poison]\nunroutable = \"dead-letter\"\ntopic = \"{topic}\"\n");
    let configured = config(&rig, &rig.postgres.url(), &more);
    let relay = rig.streaming(&configured);
    let mut watch = Watch::new(Some(&relay));
    let missing = ["WalrelayDeadLetterTopic"];
    watch.wait(&missing, true, &[]);
    relay.says("no dead letter can be written");
    let words = [&*topic, "does not exist"];
    let alert = "WalrelayDeadLetterTopic, after 5m";
    Views::new(&configured, &relay).show_problem(&words, "create the topic", alert);
    strict_kafka().create_topic(&topic, 1, &[]);
    watch.wait(&missing, false, &[]);
    relay.ends_well();
}

/// A key of another type takes no dead letter.
#[test]
fn alerts_of_a_dead_letter_stream_that_is_none_come_and_go() {
    if !Redis::is_wanted() {
        return;
    }
    let (rig, server) = (Rig::without_broker(18).outbox(), Redis::shared());
    let (events, dead) = (
        format!("{}events", rig.prefix),
        format!("{}dead", rig.prefix),
    );
    let mut client = server.client();
    client.done(&format!("SET {dead} text"));
    let more = format!(
        "[sink]\nkind = \"redis\"\n[sink.redis]\nhosts = [\"127.0.0.1:{}\"]\nstream = \"{events}\"\n\
         [poison]\noversize = \"dead-letter\"\ntopic = \"{dead}\"\n",
        server.port()
    );
    let configured = config(&rig, &rig.postgres.url(), &more);
    let relay = rig.streaming(&configured);
    let mut watch = Watch::new(Some(&relay));
    let missing = ["WalrelayDeadLetterTopic"];
    watch.wait(&missing, true, &[]);
    let words = [&*dead, "whose key is no stream"];
    let alert = "WalrelayDeadLetterTopic, after 5m";
    Views::new(&configured, &relay).show_problem(&words, "allow the relay to write", alert);
    client.run(&format!("DEL {dead}"));
    watch.wait(&missing, false, &[]);
    relay.ends_well();
}

/// The only key of a destination that may wait does.
#[test]
fn alerts_of_waiting_keys_come_and_go() {
    let rig = Rig::without_broker(18).outbox();
    let is_repaired = Arc::new(AtomicBool::new(false));
    let repaired = Arc::clone(&is_repaired);
    let server = HttpReceiver::start(false, None, move |_, _| {
        if repaired.load(Ordering::SeqCst) {
            Reaction::Store(200)
        } else {
            Reaction::Answer(503, Vec::new())
        }
    });
    let more = format!(
        "[sink]\nkind = \"http\"\n[sink.http]\nurl = \"http://{}/hooks\"\n\
         [delivery]\nmax_retrying_keys = 1\n",
        server.address()
    );
    let configured = config(&rig, &rig.postgres.url(), &more);
    let relay = rig.streaming(&configured);
    let mut watch = Watch::new(Some(&relay));
    let waiting = ["WalrelayKeysRetrying"];
    watch.wait(&waiting, false, &[]);
    insert(&rig.db(), 1);
    watch.wait(&waiting, true, &[]);
    let words = ["1 keys wait, up to 1 of 1 of one destination; the event"];
    let alert = "WalrelayKeysRetrying, after 1m";
    Views::new(&configured, &relay).show_problem(&words, "repair it", alert);
    is_repaired.store(true, Ordering::SeqCst);
    watch.wait(&waiting, false, &[]);
    relay.ends_well();
}

/// A receiver tells its time by the header `Date`.
#[test]
fn the_clock_of_a_receiver_is_shown() {
    let rig = Rig::without_broker(18).outbox();
    let server = HttpReceiver::start(false, None, |_, _| {
        let date = "Sat, 01 Jan 2000 00:00:00 GMT".to_owned();
        Reaction::Answer(200, vec![("date", date)])
    });
    let more = format!(
        "[sink]\nkind = \"http\"\n[sink.http]\nurl = \"http://{}/hooks\"\n",
        server.address()
    );
    let configured = config(&rig, &rig.postgres.url(), &more);
    let relay = rig.streaming(&configured);
    let mut watch = Watch::new(Some(&relay));
    let apart = ["WalrelayClocksApart"];
    watch.wait(&apart, false, &[]);
    insert(&rig.db(), 1);
    watch.wait(&apart, true, &[]);
    let line = "walrelay_clock_difference_seconds{of=\"sink\"}";
    assert!(metric(address(&relay), line) > Some(1.0));
    let words = ["The clocks of HTTP", "behind this machine"];
    let alert = "WalrelayClocksApart, after 5m";
    Views::new(&configured, &relay).show_problem(&words, "timedatectl", alert);
    relay.ends_well();
}

/// Every alert has a heading with its name on the page that it refers to.
#[test]
fn each_alert_is_explained() {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/operate/alerts.md");
    let page = std::fs::read_to_string(page).expect("the page");
    for alert in Watch::new(None).rules.keys() {
        assert!(page.contains(&format!("\n## {alert}\n")), "{alert}");
    }
}
