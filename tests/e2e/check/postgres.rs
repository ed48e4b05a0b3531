use std::fs;

use walrelay_testkit::{Db, eventually, servers};

use super::{Case, WITHOUT_KAFKA, sql_of};
use crate::rig::{Checked, PATIENCE, Relay, Rig};

/// The role: who it is, whether it may replicate, what it may see.
#[test]
fn of_the_role() {
    let case = Case::of(Rig::without_broker(18));
    case.db.batch("CREATE ROLE relay LOGIN PASSWORD 'hunter2'");
    let url = case.rig.url_as("relay", "wrong-password", "postgres");
    let config = case.rig.config_with(&url, "");
    let checked = Checked::of(&config, &WITHOUT_KAFKA);
    checked.is(
        "postgres/connection",
        "fail",
        &["[password]", "password_file"],
    );
    assert_eq!(checked.code, Some(77));

    let url = case.rig.url_as("relay", "hunter2", "postgres");
    let config = case.rig.config_with(&url, "");
    let check = || Checked::of(&config, &WITHOUT_KAFKA);
    let checked = check();
    checked.is("postgres/connection", "pass", &["as role relay"]);
    checked.is("postgres/replication-right", "fail", &["[privilege]"]);
    case.db.batch("ALTER ROLE relay REPLICATION");
    check().is("postgres/replication-right", "pass", &[]);

    // What it may not see is a warning that names the right.
    let writer = Db::connect(&case.rig.postgres.url());
    writer.batch("BEGIN; SELECT pg_current_xact_id()");
    let checked = check();
    assert_eq!(checked.code, Some(0), "{checked:#?}");
    let unseen = checked.is(
        "postgres/open-transactions",
        "warn",
        &["may not see", "pg_read_all_stats"],
    );
    for statement in sql_of(unseen["remedy"].as_str().expect("a remedy")) {
        case.db.batch(&statement);
    }
    check().is("postgres/open-transactions", "pass", &[]);
}

/// Tables and routes.
#[test]
fn of_the_tables() {
    let case = Case::of(Rig::without_broker(18));
    case.check().nothing_fails("postgres");
    let missing = ["[column-missing]", "payload"];
    case.db.batch("ALTER TABLE outbox RENAME payload TO body");
    let checked = case.check();
    checked.is("postgres/table", "fail", &missing);
    assert_eq!(checked.code, Some(78));
    assert!(checked.all("postgres/route").is_empty(), "told twice");
    case.db.batch("ALTER TABLE outbox RENAME body TO payload");
    case.check().is("postgres/table", "pass", &[]);
    case.check().is("postgres/route", "pass", &[]);

    // The type of a column, too.
    case.db.batch(
        "CREATE TABLE events (id bigint PRIMARY KEY, kind text, n int); \
                CREATE PUBLICATION events FOR TABLE events WITH (publish = 'insert')",
    );
    let url = case.rig.postgres.url();
    let config = case.rig.path("events.toml");
    let text = format!(
        "[source]\nurl = \"{url}\"\ntables = [\"public.events\"]\npublication = \"events\"\n\
         [router]\npreset = \"custom\"\n[router.route]\ntopic = \"{{kind}}\"\n\
         [router.route.value]\nn = \"{{n | default('none')}}\"\n[sink]\nkind = \"stdout\"\n"
    );
    fs::write(&config, text).expect("written");
    let checked = Checked::of(&config, &[]);
    checked.is("postgres/route", "fail", &["[column-missing]", "\"n\""]);
    let mended = ["--set", "router.route.value={n}"];
    Checked::of(&config, &mended).is("postgres/route", "pass", &[]);

    // Without a key DELETE is refused, if it is published.
    case.breaks(
        "ALTER TABLE outbox DROP CONSTRAINT outbox_pkey; \
         ALTER PUBLICATION walrelay SET (publish = 'insert, delete')",
        "postgres/replica-identity",
        "warn",
        &["the server refuses both"],
    );
    case.breaks(
        "ALTER TABLE outbox REPLICA IDENTITY FULL",
        "postgres/replica-identity",
        "warn",
        &["FULL"],
    );
}

/// `max_wal_senders` and `max_replication_slots`, beside a relay that runs.
#[test]
fn of_limits() {
    let postgres = servers::builder(18)
        .setting("max_wal_senders", "1")
        .setting("max_replication_slots", "2")
        .start()
        .expect("Postgres starts");
    let case = Case::of(Rig::with(postgres, "127.0.0.1:9".to_owned()));
    let checked = case.check();
    checked.is("postgres/walsenders", "pass", &["1 of max_wal_senders = 1"]);
    checked.is(
        "postgres/slot-limit",
        "pass",
        &["1 of max_replication_slots = 2"],
    );

    // Another relay takes the only walsender.
    case.db
        .batch("SELECT pg_create_logical_replication_slot('other', 'pgoutput')");
    let mut relay = Relay::command(&case.config);
    relay
        .args(WITHOUT_KAFKA)
        .args(["--set", "source.slot=other"]);
    let relay = Relay::spawn(&mut relay, &case.rig.path("other.log"));
    relay.streaming();
    let checked = case.check();
    checked.is(
        "postgres/walsenders",
        "fail",
        &["[server-limit]", "ALTER SYSTEM"],
    );
    assert_eq!(checked.code, Some(78));
    let beside = case.check_with(&["source.slot=other"]);
    beside.is("postgres/walsenders", "warn", &["ALTER SYSTEM"]);
    beside.is("postgres/slot", "pass", &["is being read by"]);
    assert_eq!(beside.code, Some(0), "{beside:#?}");

    let third = case.check_with(&["source.slot=third"]);
    third.is(
        "postgres/slot-limit",
        "fail",
        &["[server-limit]", "walrelay slots list"],
    );
    relay.ends_well();
}

/// The settings of the server that decide about WAL and slots.
#[test]
fn of_settings() {
    let case = Case::of(Rig::without_broker(18));
    let warn = "warn";
    case.breaks(
        "ALTER SYSTEM SET max_slot_wal_keep_size = '-1'; SELECT pg_reload_conf()",
        "postgres/max-slot-wal-keep-size",
        warn,
        &["until the disk"],
    );
    case.breaks(
        "ALTER SYSTEM SET max_slot_wal_keep_size = '16MB'; SELECT pg_reload_conf()",
        "postgres/max-slot-wal-keep-size",
        warn,
        &["less than max_wal_size"],
    );
    case.breaks(
        "ALTER SYSTEM SET idle_replication_slot_timeout = '1h'; SELECT pg_reload_conf()",
        "postgres/idle-slot-timeout",
        warn,
        &["loses its slot"],
    );
    let checked = case.check_with(&["source.wal_sender_timeout=10m"]);
    checked.is(
        "postgres/wal-sender-timeout",
        warn,
        &["wal_sender_timeout = \"5s\""],
    );
    let mended = case.check_with(&["source.wal_sender_timeout=5s"]);
    mended.is("postgres/wal-sender-timeout", "pass", &[]);
}

/// An older server that decodes nothing.
#[test]
fn of_a_server_that_cannot() {
    let postgres = servers::builder(15)
        .setting("wal_level", "replica")
        .start()
        .expect("Postgres starts");
    let rig = Rig::with(postgres, "127.0.0.1:9".to_owned());
    rig.workload().create_tables();
    let config = rig.config();
    let set = ["--set", "source.failover=true"];
    let more: Vec<&str> = WITHOUT_KAFKA.into_iter().chain(set).collect();
    let checked = Checked::of(&config, &more);
    checked.is("postgres/version", "fail", &["[failover-too-old]"]);
    checked.is(
        "postgres/wal-level",
        "fail",
        &["[wal-level]", "ALTER SYSTEM"],
    );
    // All that is wrong is said at once.
    assert_eq!(checked.code, Some(78));
    let db = Db::connect(&rig.postgres.url());
    db.batch("ALTER SYSTEM SET wal_level = 'logical'");
    rig.postgres
        .stop(walrelay_lab::servers::Shutdown::Fast)
        .expect("it stops");
    rig.postgres.start_again().expect("it starts");
    eventually(PATIENCE, || Db::try_connect(&rig.postgres.url()).is_ok());
    let checked = Checked::of(&config, &WITHOUT_KAFKA);
    checked.is("postgres/wal-level", "pass", &[]);
    checked.is("postgres/version", "pass", &["no failover slots"]);
}
