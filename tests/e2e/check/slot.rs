use std::thread;

use walrelay_testkit::{Db, Standby, eventually, eventually_some, servers};

use super::{Case, Checked, WITHOUT_KAFKA, checked, run_remedy, statements};
use crate::rig::{
    NOWHERE, PATIENCE, Rig, SLOT, assert_has, assert_lacks, create_slot, insert, output_with, said,
};

const ADVANCE: &str = "SELECT pg_replication_slot_advance('walrelay', pg_current_wal_flush_lsn())";

/// The slot, the WAL that it retains, and what holds it back.
#[test]
fn check_reports_faults_of_the_slot() {
    let postgres = servers::postgres_with(18, &[("max_prepared_transactions", "2")]);
    let case = Case::new(Rig::with(postgres, NOWHERE));
    case.check()
        .passes("postgres/slot", &["no client reads it"]);
    let much = "source.retained_wal_warning=1MB";
    let broken = |sql: &str, item: &str, words: &[&str]| {
        case.breaks_with(much, sql, item, "warn", words);
    };
    let checked = case.check_with(much);
    checked.passes("postgres/retained-wal", &[]);
    checked.passes("postgres/other-slots", &[]);

    // Write 3 MB of WAL that nobody reads, for the relay's slot and for another.
    let write = "SELECT pg_logical_emit_message(false, 'none', repeat('x', 3000000))";
    let other = format!("SELECT pg_create_physical_replication_slot('other', true); {write}");
    let words = ["other keeps", "pg_drop_replication_slot"];
    broken(&other, "postgres/other-slots", &words);
    let checked = case.check_with(much);
    checked.warns("postgres/retained-wal", &["MiB", "start the relay"]);
    checked.ends(0);

    // An open transaction is named sooner while the slot retains much WAL.
    let writer = case.rig.db();
    writer.batch("BEGIN; SELECT pg_current_xact_id()");
    let item = "postgres/open-transactions";
    let words = ["transaction of server process", "pg_terminate_backend"];
    broken("", item, &words);
    let prepared = "BEGIN; CREATE TABLE made (id int); PREPARE TRANSACTION 'two-phase'";
    let words = ["prepared transaction two-phase", "ROLLBACK PREPARED"];
    broken(prepared, item, &words);
    case.db.batch(ADVANCE);

    // Something else moved the slot; or this role may note no position.
    let item = "postgres/slot-position";
    case.check().passes(item, &[]);
    let noted = "CREATE SCHEMA walrelay_state; CREATE SEQUENCE walrelay_state.\"position:walrelay\"; \
                 SELECT setval('walrelay_state.\"position:walrelay\"', 1)";
    case.db.batch(noted);
    let checked = case.check();
    checked.fails(
        item,
        &["[slot-passed-over]", "from 0/1 to ", "--accept-gap"],
    );
    checked.ends(78);
    case.db.batch("DROP SCHEMA walrelay_state CASCADE");
    case.db
        .batch("CREATE ROLE least LOGIN REPLICATION PASSWORD 'hunter2'");
    let url = case.rig.url_as("least", "hunter2", "postgres");
    let config = case.rig.config_with(&url, "");
    Checked::run(&config, &WITHOUT_KAFKA).warns(item, &["walrelay init --role least"]);

    // The slot is gone although a relay was set up here.
    case.db.batch("SELECT pg_drop_replication_slot('walrelay')");
    let checked = case.check();
    checked.fails("postgres/slot", &["[slot-missing]", "--accept-gap"]);
    assert!(checked.all("postgres/retained-wal").is_empty());
    checked.ends(78);

    // It decodes transactions before they are committed.
    let two_phase =
        "SELECT pg_create_logical_replication_slot('walrelay', 'pgoutput', false, true)";
    case.db.batch(two_phase);
    let words = ["[slot-two-phase]", "pg_copy_logical_replication_slot"];
    case.check().fails("postgres/slot", &words);
}

/// Rows that a relay passes over, and rows that it would stop at; whether or not one runs.
#[test]
fn check_reports_rows_that_wait_in_the_slot() {
    let case = Case::new(Rig::without_broker(18));
    let item = "postgres/waiting-rows";
    case.check().passes(item, &["the log that waits"]);
    let slots = "SELECT count(*) FROM pg_replication_slots";
    assert_eq!(
        case.db.value::<i64>(slots),
        1,
        "the copy is there when check has ended"
    );
    let published = |table: &str, columns: &str, row: &str| {
        case.db.batch(&format!(
            "CREATE TABLE {table} ({columns}); ALTER PUBLICATION walrelay ADD TABLE {table}; \
             INSERT INTO {table} VALUES ({row}); ALTER PUBLICATION walrelay DROP TABLE {table}"
        ));
    };
    published("orders", "id int", "1");
    let checked = case.check();
    checked.warns(item, &["public.orders", "passes them over"]);
    checked.nothing_fails("postgres");
    published(
        "former",
        "LIKE outbox",
        "gen_random_uuid(), 'order', 'k', 'T', '{}'",
    );
    case.db.batch("DROP TABLE former");
    let checked = case.check();
    checked.fails(
        item,
        &[
            "[table-unknown]",
            "public.former",
            "--pass-over public.former",
        ],
    );
    checked.ends(78);
    assert_eq!(checked.all(item).len(), 2);
    case.check_with("source.pass_over=['public.former']")
        .warns(item, &["public."]);

    // A column of then.
    insert(&case.db, 1);
    case.db.batch("ALTER TABLE outbox RENAME payload TO body");
    let set = "source.pass_over=['public.former'] router.debezium.table.field.event.payload=";
    let checked = case.check_with(&format!("{set}body"));
    checked.fails(item, &["[column-missing]", "[\"body\", \"payload\"]"]);
    let both = case.check_with(&format!("{set}['body','payload']"));
    both.nothing_fails("postgres");

    // The copy needs a slot of its own.
    let slots: i64 = case
        .db
        .value("SELECT current_setting('max_replication_slots')::int8");
    for number in 1..slots {
        create_slot(&case.db, &format!("other_{number}"));
    }
    case.check()
        .warns(item, &["is not seen", "max_replication_slots"]);
}

/// Rows that the router or the sink refuses, whether or not a relay has met them.
#[test]
fn check_reports_waiting_events_that_would_be_refused() {
    let case = Case::new(Rig::without_broker(17));
    let item = "postgres/waiting-rows";
    // It warns if a busy server takes longer than check waits.
    let refused = |sets: &[&str]| {
        eventually_some(PATIENCE, || {
            let checked = Checked::run(&case.config, sets);
            (checked.worst(item)["verdict"] != "warn").then_some(checked)
        })
    };
    case.db
        .batch("ALTER TABLE outbox ALTER aggregatetype DROP NOT NULL");
    insert(&case.db, 1);
    refused(&[]).passes(item, &["its first 1 event(s)", "[sink.kafka]"]);
    case.db.batch(
        "INSERT INTO outbox VALUES (gen_random_uuid(), 'order', 'large', 'T', \
         jsonb_build_object('text', repeat('secret-value', 200000)))",
    );
    let words = [
        "[delivery]",
        "message.max.bytes is",
        "row 0 of the transaction",
    ];
    let found = refused(&[]).fails(item, &words).to_string();
    assert_lacks(&found, &["secret-value"]);
    let larger = "--set=sink.kafka.message.max.bytes=10000000";
    refused(&[larger]).passes(item, &["its first 2 event(s)"]);

    case.db.batch(
        "INSERT INTO outbox VALUES (gen_random_uuid(), NULL, 'key', 'T', '\"secret-value\"')",
    );
    let found = refused(&[larger])
        .fails(item, &["[unroutable]"])
        .to_string();
    assert_lacks(&found, &["secret-value"]);
    let skips = "--set=poison.unroutable=skip";
    refused(&[larger, skips]).passes(item, &["its first 2 event(s)"]);
}

/// `check` itself has the only session that the role may have: the remedy is about sessions.
#[test]
fn check_reports_a_limit_of_one_session() {
    let case = Case::new(Rig::without_broker(15));
    let item = "postgres/waiting-rows";
    case.db.batch(
        "CREATE ROLE few LOGIN REPLICATION PASSWORD 'x' CONNECTION LIMIT 1; GRANT SELECT ON outbox TO few",
    );
    let url = case.rig.url_as("few", "x", "postgres");
    let checked = case.check_with(&format!("source.url='{url}'"));
    checked.warns(item, &["is not seen", "CONNECTION LIMIT"]);
}

/// A rolling bookmark that no relay moves retains more than configured.
#[test]
fn check_reports_a_rolling_bookmark_that_stays() {
    let case = Case::new(Rig::without_broker(18));
    let item = "postgres/rolling-bookmark";
    assert!(case.check().all(item).is_empty(), "none is configured");
    let kept = "retention.keep=\"1h\" retention.max_wal=\"16MiB\"";
    let check = || case.check_with(kept);
    check().passes(item, &["the running relay makes it"]);
    let rolling = "walrelay_bookmark_rolling";
    case.db.batch(&format!(
        "SELECT pg_copy_logical_replication_slot('walrelay', '{rolling}', false)"
    ));
    check().passes(item, &["16.0 MiB"]);
    let write = "SELECT pg_logical_emit_message(false, 'none', repeat('x', 3000000))";
    let advance = |slot: &str| {
        let advance = ADVANCE.replace(SLOT, slot);
        statements(&case.db, &format!("{write}; CHECKPOINT; {advance}"));
        check()
    };
    let checked = Checked::until(|| advance(SLOT), item, "warn");
    checked.warns(item, &["bookmark advance rolling", "16.0 MiB"]);
    Checked::until(|| advance(rolling), item, "pass");
}

/// The first relay begins the account, so nothing is missing before it. `accounted` has rows that differ.
#[test]
fn check_reports_the_account_of_sent_rows() {
    let case = Case::new(Rig::without_broker(18));
    let item = "postgres/account";
    assert!(case.check().all(item).is_empty(), "no row is deleted");
    let checked = case.check_with("prune.before_slot=true");
    assert!(checked.all(item).is_empty(), "no relay has run");
    // It recorded nothing.
    let tables = "SELECT count(*) FROM pg_namespace WHERE nspname = 'walrelay_state'";
    assert_eq!(case.db.value::<i64>(tables), 0);
}

/// The slot of a standby is lost when the primary removes catalog rows that the slot needs. The
/// remedy names the setting that prevents that, and a new slot says what its creation waits for.
#[test]
fn check_reports_a_lost_slot_of_a_standby() {
    let rig = Rig::without_broker(18).outbox();
    let standby = Standby::start(&rig.postgres, &[("hot_standby_feedback", "off")]);
    let db = rig.db();
    db.batch("CREATE PUBLICATION walrelay FOR TABLE outbox WITH (publish = 'insert')");
    standby.wait_replayed(db.flush_lsn());
    let config = rig.config_with(&standby.server.url(), "");
    let snapshot = || statements(&db, "SELECT pg_log_standby_snapshot()");

    let making = thread::spawn({
        let config = config.clone();
        move || output_with("slots", &config, &["create"])
    });
    eventually(PATIENCE, || {
        snapshot();
        making.is_finished()
    });
    let made = making.join().expect("an output");
    let parts = ["creating slot walrelay", "pg_log_standby_snapshot()"];
    assert_has(&said(&made), &parts);
    assert!(made.status.success(), "{made:?}");

    let remove =
        "CREATE TABLE made (id int); DROP TABLE made; VACUUM pg_catalog.pg_class; CHECKPOINT";
    let on_standby = Db::connect(&standby.server.url());
    eventually(PATIENCE, || {
        statements(&db, remove);
        let reason = "SELECT invalidation_reason FROM pg_replication_slots";
        on_standby.text(reason).as_deref() == Some("rows_removed")
    });
    let words = ["[slot-lost]", "rows_removed", "hot_standby_feedback = on"];
    checked(&config, &WITHOUT_KAFKA, "").fails("postgres/slot", &words);

    let confirming = ["--accept-gap", "--set", "sink.kind=stdout"];
    let confirming = [&confirming[..], &["--set", "sink.stdout.confirm=true"]].concat();
    let relay = rig.start_with(&config, &confirming);
    relay.says("SELECT pg_log_standby_snapshot() on the primary");
    eventually(PATIENCE, || {
        snapshot();
        relay.streams() == 1
    });
    relay.ends_well();
}

/// A server that has removed WAL of the slot reports that; before the first run there is no
/// failure.
#[test]
fn check_reports_a_lost_slot_and_accepts_none() {
    let rig = Rig::without_broker(18).outbox();
    let db = rig.db();
    let config = rig.config();
    let check = || Checked::run(&config, &WITHOUT_KAFKA);
    let checked = check();
    checked.passes("postgres/publication", &["run creates it"]);
    checked.passes("postgres/slot", &["run creates it"]);
    checked.ends(0);
    // Postgres creates no slot before this transaction ends.
    let writer = rig.db();
    writer.batch("BEGIN; SELECT pg_current_xact_id()");
    let item = "postgres/open-transactions";
    let checked = Checked::until(check, item, "warn");
    run_remedy(&db, checked.warns(item, &["not created before they end"]));
    Checked::until(check, item, "pass");

    rig.create_slot();
    let small = "ALTER SYSTEM SET max_slot_wal_keep_size = '1MB'; SELECT pg_reload_conf()";
    statements(&db, small);
    let write = "SELECT pg_logical_emit_message(false, 'none', repeat('x', 1000000)); \
                 SELECT pg_switch_wal(); CHECKPOINT";
    eventually(PATIENCE, || {
        statements(&db, write);
        let status = "SELECT wal_status FROM pg_replication_slots";
        db.text(status).as_deref() == Some("lost")
    });
    let checked = check();
    checked.fails("postgres/slot", &["[slot-lost]", "--accept-gap"]);
    checked.ends(65);
}
