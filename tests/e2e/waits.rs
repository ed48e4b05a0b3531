//! A relay that waits says for whom: the other relay that it stands by for, the process that has taken
//! its slot, the broker that does not answer. A lock of DDL on the outbox is waited for by nobody.

use std::path::PathBuf;
use std::process::Output;

use serde_json::Value;
use walrelay_testkit::{Db, eventually, eventually_some, servers};
use walrelay_throwaway::Signal;

use crate::endpoint::{address, config, get, metric, status};
use crate::page::first_glance;
use crate::rig::{
    NOWHERE, PATIENCE, Relay, Rig, assert_has, insert, kafka_in_turn, output_with, with_source,
};
use crate::shown::Views;

/// The status of a relay once its state is this one.
#[track_caller]
fn in_state(relay: &Relay, state: &str) -> Value {
    let address = address(relay);
    eventually_some(PATIENCE, || {
        Some(status(address)).filter(|status| status["pipeline"]["state"] == state)
    })
}

/// The standard output of a command that may have failed.
fn printed(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// The usual configuration for a relay of this name.
fn config_of(rig: &Rig, name: &str, more: &str) -> PathBuf {
    let url = format!("{}&application_name={name}", rig.postgres.url());
    config(rig, &url, more)
}

#[test]
fn a_standby_names_its_relay_and_is_ready() {
    let rig = Rig::with_outbox(17);
    let first = rig.streaming(&config(&rig, &rig.postgres.url(), ""));
    let configured = config(&rig, &rig.postgres.url(), "");
    let second = rig.start(&configured);
    let shown = in_state(&second, "waiting-for-slot");
    let walsender = i64::from(rig.slot().wait_active(PATIENCE));
    let holder = &shown["pipeline"]["holder"];
    assert_eq!(
        (&holder["standby"], &holder["taken"]),
        (&Value::Bool(true), &Value::Bool(false)),
        "{shown:#}"
    );
    assert_eq!(holder["pid"], walsender, "{shown:#}");
    assert_eq!(holder["application_name"], "walrelay", "{shown:#}");
    assert!(holder["since_ms"].as_u64() > Some(0), "{shown:#}");
    assert_eq!(shown["ready"], true, "{shown:#}");
    // The state stays while the relay queries the slot again and again.
    let at = address(&second);
    for _ in 0..10 {
        insert(&rig.db(), 1);
        rig.caught_up();
        let shown = status(at);
        assert_eq!(shown["pipeline"]["state"], "waiting-for-slot", "{shown:#}");
        assert_eq!(shown["source"]["lag_seconds"], 0.0, "{shown:#}");
    }
    let (code, text) = get(at, "/readyz").expect("an answer");
    assert_eq!(code, 200, "{text}");
    let pid = format!("server process {walsender} (walrelay), connected since 2");
    assert_has(&text, &["standing by", &pid]);
    let page = first_glance(at);
    assert_has(&page, &["Standing by: another relay reads the slot", &pid]);
    assert_eq!(metric(at, "walrelay_standby"), Some(1.0));
    assert_eq!(metric(at, "walrelay_slot_taken"), Some(0.0));
    let set = format!("--set=http.listen={at}");
    let output = eventually_some(PATIENCE, || {
        let output = output_with("status", &configured, &[&set, "--exit-code"]);
        printed(&output)
            .contains("relay          standing by")
            .then_some(output)
    });
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    first.ends_well();
    in_state(&second, "streaming");
    second.ends_well();
}

#[test]
fn a_slot_that_was_taken_is_a_fault_with_its_remedy() {
    let rig = Rig::with_outbox(16);
    // The server keeps the walsender of a process that is stopped.
    let thief = with_source(config_of(&rig, "thief", ""), "wal_sender_timeout = \"10m\"");
    let thief = rig.streaming(&thief);
    // The process lives, but cannot connect again.
    thief.signal(Signal::Stop);
    let configured = config_of(&rig, "walrelay", "");
    let relay = rig.start(&configured);
    let shown = in_state(&relay, "waiting-for-slot");
    let holder = &shown["pipeline"]["holder"];
    assert_eq!(holder["taken"], true, "{shown:#}");
    assert_eq!(holder["application_name"], "thief", "{shown:#}");
    assert_eq!(shown["ready"], false, "{shown:#}");
    let at = address(&relay);
    eventually(PATIENCE, || {
        // What the process consumes is not relayed: the lag is this relay's.
        metric(at, "walrelay_lag_seconds") > Some(2.0)
    });
    let (code, text) = get(at, "/readyz").expect("an answer");
    assert_eq!(code, 503, "{text}");
    assert_has(&text, &["waiting for the slot", "(thief)"]);
    relay.says("the slot is taken by a process that is no relay of this configuration");
    let set = format!("--set=http.listen={at}");
    let output = eventually_some(PATIENCE, || {
        let output = output_with("status", &configured, &[&set, "--exit-code"]);
        (output.status.code() == Some(75)).then_some(output)
    });
    assert_has(
        &printed(&output),
        &["NOT READY, waiting for the slot", "-> find out"],
    );

    // The remedy that it shows is run as it stands.
    let (_, sql) = text.split_once("SELECT ").expect("a statement");
    let (sql, _) = sql.split_once(')').expect("its end");
    rig.db().batch(&format!("SELECT {sql})"));
    in_state(&relay, "streaming");
    thief.signal(Signal::Kill);
    relay.ends_well();
}

#[test]
fn a_blocked_relay_says_why_and_counts_what_is_acknowledged() {
    let kafka = kafka_in_turn();
    let rig = Rig::with_kafka(18, &kafka).outbox();
    let configured = config(&rig, &rig.postgres.url(), "");
    let relay = rig.streaming(&configured);
    let at = address(&relay);
    insert(&rig.db(), 1);
    rig.caught_up();
    kafka.kill();
    insert(&rig.db(), 2);
    let shown = eventually_some(PATIENCE, || {
        let shown = status(at);
        let reason = shown["pipeline"]["reason"].as_str().unwrap_or_default();
        (shown["pipeline"]["state"] == "blocked" && reason.contains("no broker answers"))
            .then_some(shown)
    });
    let remedy = shown["pipeline"]["remedy"].as_str().expect("a remedy");
    assert_has(remedy, &["start the brokers", "Nothing is lost"]);
    // The record is enqueued, and no broker has it.
    assert_eq!(shown["delivery"]["records"], 2, "{shown:#}");
    assert_eq!(shown["delivery"]["acknowledged"], 1, "{shown:#}");
    let (code, text) = get(at, "/readyz").expect("an answer");
    assert_eq!(code, 503, "{text}");
    assert_has(&text, &["no broker answers", "start the brokers"]);
    let set = format!("--set=http.listen={at}");
    eventually(PATIENCE, || {
        let text = printed(&output_with("status", &configured, &[&set]));
        [
            "NOT READY, blocked by the sink: no broker answers",
            "-> start the brokers",
            "relayed        1 records",
        ]
        .iter()
        .all(|part| text.contains(part))
    });
    kafka.start_again();
    in_state(&relay, "streaming");
    eventually(PATIENCE, || status(at)["delivery"]["acknowledged"] == 2);
    rig.finish(relay).assert_clean();
}

/// Metrics, page and status count dead letters that the brokers have.
#[test]
fn a_dead_letter_counts_once_it_is_acknowledged() {
    let kafka = kafka_in_turn();
    let rig = Rig::with_kafka(18, &kafka);
    let poison = format!(
        "[poison]\nunroutable = \"dead-letter\"\ntopic = \"{}dlq\"\n",
        rig.prefix
    );
    let configured = config(&rig, &rig.postgres.url(), &poison);
    rig.db()
        .batch("ALTER TABLE outbox ALTER aggregatetype DROP NOT NULL");
    let relay = rig.streaming(&configured);
    let at = address(&relay);
    insert(&rig.db(), 1);
    rig.caught_up();
    kafka.kill();
    rig.db().batch(
        "INSERT INTO outbox (id, aggregatetype, aggregateid, type, payload) \
         VALUES (gen_random_uuid(), NULL, 'k', 'T', '{\"number\": 2}')",
    );
    let counted = |records: u64| {
        let shown = eventually_some(PATIENCE, || {
            Some(status(at)).filter(|shown| shown["delivery"]["records"] == records)
        });
        shown["dead_letters"]["written"]["unroutable"].clone()
    };
    assert_eq!(counted(2), 0);
    relay.says("made a dead letter of an event that cannot be delivered");
    kafka.start_again();
    let line = "walrelay_dead_letters_total{class=\"unroutable\"}";
    eventually(PATIENCE, || metric(at, line) == Some(1.0));
    assert_eq!(counted(2), 1);
    relay.ends_well();
}

/// A session that locks the outbox as DDL does, in a transaction that stays open.
fn lock(rig: &Rig) -> Db {
    let locker = rig.db();
    locker.batch(
        "SET application_name = 'migration'; BEGIN; ALTER TABLE outbox ADD COLUMN later int",
    );
    locker
}

/// Events that were written before a migration are relayed while it holds its lock.
#[test]
fn ddl_that_locks_the_outbox_holds_no_start_up() {
    for (major, filter) in [
        (14, ""),
        (15, ""),
        (18, ""),
        (18, " WHERE (type <> 'none')"),
    ] {
        let rig = Rig::with_outbox(major);
        rig.create_slot();
        let set = format!("ALTER PUBLICATION walrelay SET TABLE outbox{filter}");
        rig.db().batch(&set);
        let relay = rig.relay();
        insert(&rig.db(), 1);
        rig.caught_up();
        relay.kill();
        insert(&rig.db(), 2);
        let locker = lock(&rig);
        let relay = rig.relay();
        rig.caught_up();
        locker.batch("ROLLBACK");
        rig.finish(relay).assert_clean();
    }
}

/// Each view names a lock that lasts, and who holds it. The relay goes on.
#[test]
fn ddl_that_locks_the_outbox_is_named_with_its_session() {
    let rig = Rig::with_outbox(18);
    let configured = config(&rig, &rig.postgres.url(), "");
    let relay = rig.streaming(&configured);
    let locker = lock(&rig);
    let words = [
        "An outbox table is locked",
        "(migration) locks public.outbox",
    ];
    let remedy = "SELECT pg_terminate_backend(";
    let alert = "WalrelayTableLocked, after 1m";
    Views::new(&configured, &relay).show_problem(&words, remedy, alert);
    locker.batch("ROLLBACK");
    let at = address(&relay);
    eventually(PATIENCE, || {
        status(at)["problems"] == Value::Array(Vec::new())
    });
    relay.ends_well();
}

/// A slot that no standby reads keeps the log from the relay, and not the application.
#[test]
fn a_standby_that_is_waited_for_is_named() {
    let rig = Rig::with_outbox(18);
    let configured = config(&rig, &rig.postgres.url(), "expect_event_every = \"1s\"");
    let relay = rig.streaming(&with_source(configured.clone(), "failover = true"));
    let db = rig.db();
    db.batch("SELECT pg_create_physical_replication_slot('standby1')");
    let set = |slots: &str| {
        db.batch(&format!(
            "ALTER SYSTEM SET synchronized_standby_slots = '{slots}'"
        ));
        db.batch("SELECT pg_reload_conf()");
    };
    set("standby1");
    insert(&db, 1);
    let at = address(&relay);
    let title = "Postgres sends nothing until a standby has the log";
    let shown = eventually_some(PATIENCE, || {
        let shown = status(at);
        Some(shown).filter(|shown| shown["problems"][0]["title"] == title)
    });
    let problem = &shown["problems"][0];
    assert!(
        problem["reason"].to_string().contains("standby1"),
        "{shown:#}"
    );
    assert!(
        problem["remedy"].to_string().contains("standby-slots"),
        "{shown:#}"
    );
    let others = shown["problems"].to_string();
    assert!(!others.contains("application writes events"), "{shown:#}");
    assert_has(&relay.log(), &[title]);
    set("");
    rig.caught_up();
    eventually(PATIENCE, || {
        !status(at)["problems"].to_string().contains(title)
    });
    relay.ends_well();
}

/// The log names what keeps the WAL: process, application and age.
/// Postgres makes a slot when the transactions have ended that were open before, also those of other
/// databases: the one that is waited for is named, for a slot and for the one of a snapshot.
#[test]
fn a_slot_that_waits_for_a_transaction_names_it() {
    for more in ["", "snapshot = \"initial\"\nsnapshot_unordered = true"] {
        let rig = Rig::with_outbox(15);
        rig.db().batch("CREATE DATABASE elsewhere");
        let password = rig.postgres.superuser_password();
        let other = rig
            .postgres
            .url_for("postgres", Some(password), "elsewhere");
        let open = Db::connect(&format!("{other}&application_name=forgotten"));
        open.batch("BEGIN; SELECT pg_catalog.txid_current()");
        let pid: i32 = open.value("SELECT pg_backend_pid()");
        let configured = config(&rig, &rig.postgres.url(), "");
        let relay = rig.start(&with_source(configured, more));
        let at = address(&relay);
        let shown = eventually_some(PATIENCE, || {
            Some(status(at)).filter(|shown| shown["pipeline"]["cause"] == "open-transactions")
        });
        let holder = format!("server process {pid} (forgotten) in database elsewhere");
        let reason = shown["pipeline"]["reason"].as_str().expect("a reason");
        assert!(reason.contains(&holder), "{shown:#}");
        let problem = &shown["problems"][0];
        assert_eq!(
            problem["title"],
            "The slot is not created yet: Postgres waits"
        );
        let remedy = problem["remedy"].as_str().expect("a remedy");
        assert!(remedy.contains("pg_terminate_backend"), "{remedy}");
        let words = ["waiting for an open transaction before creating", &holder];
        assert_has(&relay.log(), &words);
        open.batch("COMMIT");
        relay.streaming();
        let none = Value::Array(Vec::new());
        eventually(PATIENCE, || status(at)["problems"] == none);
        relay.kill();
    }
}

#[test]
fn a_warning_about_retained_wal_names_the_oldest_transaction() {
    let rig = Rig::with_outbox(17);
    let configured = config(&rig, &rig.postgres.url(), "");
    let configured = with_source(configured, "retained_wal_warning = \"4MiB\"");
    let relay = rig.streaming(&configured);
    let writer = rig.db();
    writer.batch("SET application_name = 'batch'; BEGIN; CREATE TABLE other (id int)");
    rig.db().batch(
        "SELECT pg_logical_emit_message(false, 'other', repeat('x', 1000000)) FROM generate_series(1, 8)",
    );
    relay.says("\"oldest_transaction\":\"server process ");
    relay.says(" (batch), open for ");
    let words = ["server process ", " (batch), open for "];
    let alert = "WalrelaySlotRetainsWal, after 5m";
    Views::new(&configured, &relay).show_problem(&words, "a long transaction keeps the log", alert);
    writer.batch("ROLLBACK");
    relay.ends_well();
}

/// `status` without an endpoint reads a lost slot as lost on each version, and a missing one has a
/// remedy.
#[test]
fn status_of_a_slot_that_is_not_there_has_a_remedy() {
    let postgres = servers::postgres_with(14, &[("max_slot_wal_keep_size", "1MB")]);
    let rig = Rig::with(postgres, NOWHERE).outbox();
    let configured = rig.config();
    let shown = |code: i32, words: &[&str]| {
        let output = output_with("status", &configured, &["--exit-code"]);
        assert_eq!(output.status.code(), Some(code), "{output:?}");
        assert_has(&printed(&output), words);
    };
    shown(
        69,
        &["walrelay does not exist", "-> if a relay has run before"],
    );
    rig.create_slot();
    shown(69, &["walrelay: not read", "-> start walrelay run"]);
    eventually(PATIENCE, || {
        let db = rig.db();
        db.batch("SELECT pg_logical_emit_message(false, 'other', 'x')");
        db.batch("SELECT pg_switch_wal()");
        db.batch("CHECKPOINT");
        db.value("SELECT wal_status = 'lost' FROM pg_replication_slots")
    });
    shown(
        69,
        &[
            "LOST: wal_status = lost",
            "-> docs/operate/troubleshooting.md",
        ],
    );
}
