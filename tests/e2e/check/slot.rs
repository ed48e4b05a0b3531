use walrelay_testkit::{Db, eventually, servers};

use super::{Case, sql_of, statements};
use crate::rig::{PATIENCE, Rig};

/// The slot, what it keeps, and what holds it back.
#[test]
fn of_the_slot() {
    let postgres = servers::builder(18)
        .setting("max_prepared_transactions", "2")
        .start()
        .expect("Postgres starts");
    let case = Case::of(Rig::with(postgres, "127.0.0.1:9".to_owned()));
    let warn = "warn";
    case.check()
        .is("postgres/slot", "pass", &["nobody reads it"]);
    let much = ["source.retained_wal_warning=1MB"];
    let checked = case.check_with(&much);
    checked.is("postgres/retained-wal", "pass", &[]);
    checked.is("postgres/other-slots", "pass", &[]);

    // 3 MB of log that nobody reads, for the relay's slot and for another.
    let write = "SELECT pg_logical_emit_message(false, 'none', repeat('x', 3000000))";
    case.breaks_with(
        &much,
        &format!("SELECT pg_create_physical_replication_slot('other', true); {write}"),
        "postgres/other-slots",
        warn,
        &["other keeps", "pg_drop_replication_slot"],
    );
    let checked = case.check_with(&much);
    checked.is("postgres/retained-wal", warn, &["MiB", "start the relay"]);
    assert_eq!(checked.code, Some(0));

    // A transaction is named sooner while the slot keeps much.
    let writer = Db::connect(&case.rig.postgres.url());
    writer.batch("BEGIN; SELECT pg_current_xact_id()");
    case.breaks_with(
        &much,
        "",
        "postgres/open-transactions",
        warn,
        &["transaction of server process", "pg_terminate_backend"],
    );
    case.breaks_with(
        &much,
        "BEGIN; CREATE TABLE made (id int); PREPARE TRANSACTION 'two-phase'",
        "postgres/open-transactions",
        warn,
        &["prepared transaction two-phase", "ROLLBACK PREPARED"],
    );
    case.db
        .batch("SELECT pg_replication_slot_advance('walrelay', pg_current_wal_flush_lsn())");

    // It is gone: a relay was set up here.
    case.db.batch("SELECT pg_drop_replication_slot('walrelay')");
    let checked = case.check();
    checked.is("postgres/slot", "fail", &["[slot-missing]", "--accept-gap"]);
    assert!(checked.all("postgres/retained-wal").is_empty());
    assert_eq!(checked.code, Some(78));
}

/// A rolling bookmark that no relay moves keeps more than agreed.
#[test]
fn of_the_rolling_bookmark() {
    let case = Case::of(Rig::without_broker(18));
    let item = "postgres/rolling-bookmark";
    assert!(case.check().all(item).is_empty(), "none is configured");
    let kept = ["retention.keep=\"1h\"", "retention.max_wal=\"16MiB\""];
    let check = || case.check_with(&kept);
    check().is(item, "pass", &["the running relay makes it"]);
    let rolling = "walrelay_bookmark_rolling";
    case.db.batch(&format!(
        "SELECT pg_copy_logical_replication_slot('walrelay', '{rolling}', false)"
    ));
    check().is(item, "pass", &["16.0 MiB"]);
    let write = "SELECT pg_logical_emit_message(false, 'none', repeat('x', 3000000))";
    let advance = |slot: &str| {
        statements(
            &case.db,
            &format!(
                "{write}; CHECKPOINT; SELECT pg_replication_slot_advance('{slot}', pg_current_wal_flush_lsn())"
            ),
        );
    };
    eventually(PATIENCE, || {
        advance("walrelay");
        check().worst(item)["verdict"] == "warn"
    });
    check().is(item, "warn", &["bookmark advance rolling", "16.0 MiB"]);
    eventually(PATIENCE, || {
        advance(rolling);
        check().worst(item)["verdict"] == "pass"
    });
}

/// A server that has removed what the slot needs says so; the first day does not.
#[test]
fn of_a_lost_slot_and_of_none() {
    let rig = Rig::without_broker(18);
    rig.workload().create_tables();
    let db = Db::connect(&rig.postgres.url());
    let config = rig.config();
    let check = || crate::rig::Checked::of(&config, &super::WITHOUT_KAFKA);
    let checked = check();
    checked.is("postgres/publication", "pass", &["run creates it"]);
    checked.is("postgres/slot", "pass", &["run creates it"]);
    assert_eq!(checked.code, Some(0), "{checked:#?}");
    // Postgres creates no slot before this ends.
    let writer = Db::connect(&rig.postgres.url());
    writer.batch("BEGIN; SELECT pg_current_xact_id()");
    let item = "postgres/open-transactions";
    eventually(PATIENCE, || check().worst(item)["verdict"] == "warn");
    let checked = check();
    let open = checked.is(item, "warn", &["not created before they end"]);
    for statement in sql_of(open["remedy"].as_str().expect("a remedy")) {
        db.batch(&statement);
    }
    eventually(PATIENCE, || check().worst(item)["verdict"] == "pass");

    db.batch("CREATE PUBLICATION walrelay FOR TABLE outbox WITH (publish = 'insert')");
    db.batch("SELECT pg_create_logical_replication_slot('walrelay', 'pgoutput')");
    statements(
        &db,
        "ALTER SYSTEM SET max_slot_wal_keep_size = '1MB'; SELECT pg_reload_conf()",
    );
    eventually(PATIENCE, || {
        statements(
            &db,
            "SELECT pg_logical_emit_message(false, 'none', repeat('x', 1000000)); \
             SELECT pg_switch_wal(); CHECKPOINT",
        );
        let status = "SELECT wal_status FROM pg_replication_slots";
        db.text(status).as_deref() == Some("lost")
    });
    let checked = check();
    checked.is("postgres/slot", "fail", &["[slot-lost]", "--accept-gap"]);
    assert_eq!(checked.code, Some(65));
}
