use std::fs;
use std::thread;

use walrelay_testkit::{Db, eventually, servers};
use walrelay_throwaway::Shutdown;

use super::{Case, Checked, WITHOUT_KAFKA, checked, run_remedy, statements};
use crate::rig::{NOWHERE, PATIENCE, Rig, assert_has, create_slot, done, output_with, said};

/// The role: its name, whether it may replicate, what it may see.
#[test]
fn check_reports_faults_of_the_role() {
    let case = Case::new(Rig::without_broker(18));
    case.db.batch("CREATE ROLE relay LOGIN PASSWORD 'hunter2'");
    let check = |password: &str| {
        let url = case.rig.url_as("relay", password, "postgres");
        Checked::run(&case.rig.config_with(&url, ""), &WITHOUT_KAFKA)
    };
    let checked = check("wrong-password");
    checked.fails("postgres/connection", &["[password]", "password_file"]);
    checked.ends(77);

    let check = || check("hunter2");
    let checked = check();
    checked.passes("postgres/connection", &["as role relay"]);
    checked.fails("postgres/replication-right", &["[privilege]"]);
    case.db.batch("ALTER ROLE relay REPLICATION");
    check().passes("postgres/replication-right", &[]);

    // For what the role may not see there is a warning that names the missing privilege.
    let writer = case.rig.db();
    writer.batch("BEGIN; SELECT pg_current_xact_id()");
    let checked = check();
    checked.ends(0);
    let (item, words) = (
        "postgres/open-transactions",
        ["may not see", "pg_read_all_stats"],
    );
    run_remedy(&case.db, checked.warns(item, &words));
    check().passes(item, &[]);
}

/// The rights to mark rows: on the outbox, and on the tables of keys.
#[test]
fn check_reports_missing_rights_to_mark_rows() {
    let case = Case::new(Rig::without_broker(17));
    let db = &case.db;
    db.batch(
        "CREATE ROLE relay LOGIN REPLICATION PASSWORD 'hunter2'; GRANT SELECT ON outbox TO relay; \
         ALTER TABLE outbox ADD sent_at timestamptz, ADD status text",
    );
    let url = case.rig.url_as("relay", "hunter2", "postgres");
    let marks = [
        "source.snapshot=unsent",
        "source.snapshot_where=sent_at IS NULL",
        "source.snapshot_unordered=true",
        "source.mark_sent=sent_at = now()",
        "source.mark_dead=status = {error}",
        "source.create=true",
    ];
    let marks: Vec<&str> = marks.iter().flat_map(|set| ["--set", set]).collect();
    let sets = [&WITHOUT_KAFKA[..], &marks].concat();
    let check = || Checked::run(&case.rig.config_with(&url, ""), &sets);
    let item = "postgres/marks";
    let names = ["walrelay_state.unmarked", "walrelay_state.dead"];
    let checked = check();
    checked.warns(
        item,
        &[names[0], names[1], "rows of public.outbox", "init --role"],
    );
    done(&output_with(
        "init --role relay",
        &case.rig.config(),
        &marks,
    ));
    let checked = check();
    run_remedy(db, checked.warns(item, &["rows of public.outbox"]));
    check().passes(item, &["may mark rows"]);
    for name in names {
        db.batch(&format!("REVOKE INSERT ON {name} FROM relay"));
        let checked = check();
        run_remedy(db, checked.warns(item, &[name]));
        check().passes(item, &[]);
    }
    // A right for the columns is enough.
    db.batch("REVOKE UPDATE ON outbox FROM relay; GRANT UPDATE (sent_at) ON outbox TO relay");
    check().warns(item, &["rows of public.outbox"]);
    db.batch("GRANT UPDATE (status) ON outbox TO relay");
    check().passes(item, &[]);
}

/// A role without USAGE on the outbox's schema relays, and `check` fails nowhere. `init` grants it to a relay
/// that reads rows.
#[test]
fn check_passes_for_an_outbox_in_its_own_schema() {
    for major in [14, 18] {
        let rig = Rig::without_broker(major);
        let db = rig.db();
        db.batch("CREATE SCHEMA app");
        let tables = "source.tables=[\"app.outbox\"]";
        let init = |set: &[&str]| {
            let set: Vec<&str> = set.iter().flat_map(|set| ["--set", set]).collect();
            done(&output_with("init --role least", &rig.config(), &set));
        };
        init(&[tables]);
        db.batch("ALTER ROLE least PASSWORD 'hunter2'");
        let config = rig.config_with(&rig.url_as("least", "hunter2", "postgres"), "");
        let found = checked(&config, &WITHOUT_KAFKA, tables);
        found.nothing_fails("postgres");
        found.ends(0);
        let set = [&WITHOUT_KAFKA[..], &["--set", tables]].concat();
        let relay = rig.start_with(&config, &set);
        relay.says("\"streaming\"");
        relay.ends_well();

        let may = "SELECT has_schema_privilege('least', 'app', 'USAGE')::text";
        assert_eq!(db.column::<String>(may, &[]), ["false"]);
        let rows = ["source.slot=other", "source.snapshot=initial", tables];
        init(&rows);
        assert_eq!(db.column::<String>(may, &[]), ["true"]);
    }
}

/// A migration that holds its lock is named at once, with what ends it. `check` does not wait for it.
#[test]
fn check_reports_a_locked_table() {
    for major in [14, 18] {
        let case = Case::new(Rig::without_broker(major));
        let item = "postgres/table-lock";
        case.check().passes(item, &["no session keeps"]);
        let locker = case.rig.db();
        locker.batch(
            "SET application_name = 'migration'; BEGIN; ALTER TABLE outbox ADD COLUMN later int",
        );
        let checked = case.check();
        checked.ends(0);
        let words = [
            "(migration) locks public.outbox in ACCESS EXCLUSIVE mode",
            "in a transaction of",
        ];
        run_remedy(&case.db, checked.warns(item, &words));
        Checked::until(|| case.check(), item, "pass");

        // Writers of a partition wait as well for a lock that readers do not wait for.
        case.db
            .batch("CREATE TABLE outbox_part () INHERITS (outbox)");
        let locker = case.rig.db();
        locker.batch("BEGIN; LOCK TABLE outbox_part IN SHARE MODE");
        let words = ["locks public.outbox_part in SHARE mode"];
        run_remedy(&case.db, case.check().warns(item, &words));
        Checked::until(|| case.check(), item, "pass");

        // Others wait behind a migration that waits: who holds it up is named, and ended.
        let writer = case.rig.db();
        writer.batch("BEGIN; LOCK TABLE outbox IN ROW EXCLUSIVE MODE");
        let migration = case.rig.db();
        thread::scope(|scope| {
            scope.spawn(move || migration.batch("BEGIN; LOCK TABLE outbox; ROLLBACK"));
            let checked = Checked::until(|| case.check(), item, "warn");
            let words =
                ["waits to lock public.outbox in ACCESS EXCLUSIVE mode, behind server process"];
            run_remedy(&case.db, checked.warns(item, &words));
        });
        Checked::until(|| case.check(), item, "pass");
    }
}

/// A generated column that the route reads is named, with the remedy of the server's version.
#[test]
fn check_reports_generated_columns() {
    let item = "postgres/table";
    for (major, kind, words) in [
        (15, "STORED", "Postgres 15 publishes no generated column"),
        (18, "STORED", "publication walrelay does not carry it"),
        (18, "VIRTUAL", "Postgres publishes no virtual column"),
    ] {
        let case = Case::new(Rig::without_broker(major));
        let generated = format!(
            "ALTER TABLE outbox DROP COLUMN payload; \
             ALTER TABLE outbox ADD COLUMN body jsonb; \
             ALTER TABLE outbox ADD COLUMN payload jsonb GENERATED ALWAYS AS (body) {kind}"
        );
        statements(&case.db, &generated);
        let words = ["[column-generated]", "column payload", kind, words];
        let checked = case.check();
        let found = checked.fails(item, &words);
        checked.passes("postgres/publication-columns", &[]);
        assert!(checked.all("postgres/route").is_empty(), "told twice");
        checked.ends(78);
        let run = output_with("run", &case.config, &[]);
        assert_eq!(run.status.code(), Some(78), "{run:?}");
        assert_has(&said(&run), &words);
        if kind == "STORED" {
            run_remedy(&case.db, found);
            case.check().nothing_fails("postgres");
        }
    }
}

/// Tables and routes.
#[test]
fn check_reports_faults_of_the_tables() {
    let case = Case::new(Rig::without_broker(18));
    case.check().nothing_fails("postgres");
    let missing = ["[column-missing]", "payload"];
    case.db.batch("ALTER TABLE outbox RENAME payload TO body");
    let checked = case.check();
    checked.fails("postgres/table", &missing);
    checked.ends(78);
    assert!(checked.all("postgres/route").is_empty(), "told twice");
    case.db.batch("ALTER TABLE outbox RENAME body TO payload");
    case.check().passes("postgres/table", &[]);
    case.check().passes("postgres/route", &[]);

    // A misspelled table is not to be published.
    let checked = case.check_with("source.tables=[\"public.outbux\"]");
    let words = ["[table-missing]", "did you mean public.outbox?"];
    checked.fails("postgres/table", &words);
    let item = "postgres/publication-tables";
    checked.warns(item, &["table public.outbux does not exist"]);

    // The type of a column is checked too.
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
    let checked = Checked::run(&config, &[]);
    checked.fails("postgres/route", &["[column-missing]", "\"n\""]);
    let mended = ["--set", "router.route.value={n}"];
    Checked::run(&config, &mended).passes("postgres/route", &[]);

    // Without a primary key DELETE is refused if it is published.
    let item = "postgres/replica-identity";
    let without_key = "ALTER TABLE outbox DROP CONSTRAINT outbox_pkey; \
                       ALTER PUBLICATION walrelay SET (publish = 'insert, delete')";
    case.breaks(without_key, item, "warn", &["the server refuses both"]);
    let full = "ALTER TABLE outbox REPLICA IDENTITY FULL";
    case.breaks(full, item, "warn", &["FULL"]);
}

/// `max_wal_senders` and `max_replication_slots`, beside a running relay.
#[test]
fn check_reports_limits_of_the_server() {
    let limits = [("max_wal_senders", "1"), ("max_replication_slots", "2")];
    let case = Case::new(Rig::with(servers::postgres_with(18, &limits), NOWHERE));
    let checked = case.check();
    checked.passes("postgres/walsenders", &["1 of max_wal_senders = 1"]);
    checked.passes("postgres/slot-limit", &["1 of max_replication_slots = 2"]);

    // Another relay takes the only walsender.
    create_slot(&case.db, "other");
    let other = [&WITHOUT_KAFKA[..], &["--set", "source.slot=other"]].concat();
    let relay = case.rig.start_with(&case.config, &other);
    relay.streaming();
    let checked = case.check();
    checked.fails("postgres/walsenders", &["[server-limit]", "ALTER SYSTEM"]);
    checked.ends(78);
    let beside = case.check_with("source.slot=other");
    beside.warns("postgres/walsenders", &["ALTER SYSTEM"]);
    let words = [
        "is being read by server process",
        "(walrelay), connected since",
    ];
    beside.passes("postgres/slot", &words);
    beside.ends(0);

    let third = case.check_with("source.slot=third");
    let words = ["[server-limit]", "walrelay slots list"];
    third.fails("postgres/slot-limit", &words);
    relay.ends_well();
}

/// Settings of the server that are about WAL and slots.
#[test]
fn check_reports_settings_of_the_server() {
    let case = Case::new(Rig::without_broker(18));
    let set = |setting: &str, item: &str, words: &str| {
        let sql = format!("ALTER SYSTEM SET {setting}; SELECT pg_reload_conf()");
        case.breaks(&sql, item, "warn", &[words]);
    };
    let keep = "postgres/max-slot-wal-keep-size";
    set("max_slot_wal_keep_size = '-1'", keep, "until the disk");
    set(
        "max_slot_wal_keep_size = '16MB'",
        keep,
        "less than max_wal_size",
    );
    let idle = "postgres/idle-slot-timeout";
    set(
        "idle_replication_slot_timeout = '1h'",
        idle,
        "loses its slot",
    );
    let timeout = "postgres/wal-sender-timeout";
    let checked = case.check_with("source.wal_sender_timeout=10m");
    checked.warns(timeout, &["wal_sender_timeout = \"5s\""]);
    let mended = case.check_with("source.wal_sender_timeout=5s");
    mended.passes(timeout, &[]);
    // Only the user knows which standbys to name instead.
    let standby = "postgres/synchronous-standby";
    for (names, verdict) in [("*", "warn"), ("other", "pass")] {
        case.db.batch(&format!(
            "ALTER SYSTEM SET synchronous_standby_names = '{names}'"
        ));
        case.db.batch("SELECT pg_reload_conf()");
        let checked = Checked::until(|| case.check(), standby, verdict);
        checked.is(standby, verdict, &["synchronous_standby_names"]);
    }
}

/// An older server without logical decoding.
#[test]
fn check_reports_a_server_without_logical_decoding() {
    let postgres = servers::postgres_with(15, &[("wal_level", "replica")]);
    let rig = Rig::with(postgres, NOWHERE).outbox();
    let config = rig.config();
    let checked = checked(&config, &WITHOUT_KAFKA, "source.failover=true");
    checked.fails("postgres/version", &["[failover-too-old]"]);
    checked.fails("postgres/wal-level", &["[wal-level]", "ALTER SYSTEM"]);
    // All errors are reported at once.
    checked.ends(78);
    rig.db().batch("ALTER SYSTEM SET wal_level = 'logical'");
    rig.postgres.stop(Shutdown::Fast).expect("it stops");
    rig.postgres.start_again().expect("it starts");
    eventually(PATIENCE, || Db::try_connect(&rig.postgres.url()).is_ok());
    let checked = Checked::run(&config, &WITHOUT_KAFKA);
    checked.passes("postgres/wal-level", &[]);
    checked.passes("postgres/version", &["no failover slots"]);
}
