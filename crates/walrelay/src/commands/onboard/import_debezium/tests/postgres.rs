//! Settings of the connection to Postgres, of slots, tables and snapshots.

use super::*;

#[test]
fn secrets_come_from_the_environment() {
    let with = import(CONNECT, None, &[], true);
    expect(
        &with,
        &[Line("url = \"postgres://cdc:hunter2%40@db:5433/app\"")],
    );
    for (password, url) in [
        (
            "${env:DB_PW}",
            Line("url = \"postgres://cdc:${DB_PW}@db:5433/app\""),
        ),
        (
            "${file:/run/s3cret.properties:pw}",
            Line("url = \"postgres://cdc:${PGPASSWORD}@db:5433/app\""),
        ),
    ] {
        connect(&[("database.password", password)], &[url]);
    }
    let expected = [
        Line("url = \"postgres://cdc:${PGPASSWORD}@db/app\""),
        NoEffect(
            "debezium.source.database.password",
            "set again further down",
        ),
    ];
    server(
        "debezium.source.database.password=${PG_PW:hunter2}\n",
        &expected,
    );
}

#[test]
fn encryption_of_postgres() {
    let settings = [
        ("database.sslmode", "verify-full"),
        ("database.sslrootcert", "/etc/ca file.pem"),
        ("database.sslcert", "/etc/c.pem"),
        ("database.sslkey", "/etc/c.pk8"),
        ("database.sslpassword", "s3cret"),
        ("database.tcpKeepAlive", "true"),
        ("driver.connectTimeout", "7"),
        ("driver.loginTimeout", "9"),
        ("database.initial.statements", "SET x = 1"),
    ];
    let expected = [
        Unsupported("database.sslpassword", "decrypt it"),
        NoEffect("database.tcpKeepAlive", "anyway"),
        Unsupported("database.initial.statements", "ALTER ROLE"),
    ];
    let imported = connect(&settings, &expected);
    let (_, url) = imported.toml.split_once("url = \"").unwrap();
    let url = url.split('"').next().unwrap();
    for part in [
        "sslmode=verify-full",
        "sslrootcert=%2Fetc%2Fca%20file.pem",
        "connect_timeout=",
    ] {
        assert!(url.contains(part), "{url}");
    }
    let allow = connect(&[("database.sslmode", "allow")], &[]);
    assert!(allow.toml.contains("sslmode=prefer"), "{}", allow.toml);
}

#[test]
fn missing_settings_come_from_the_environment() {
    let without = [
        ("database.hostname", REMOVED),
        ("producer.override.bootstrap.servers", REMOVED),
    ];
    let expected = [
        Line("url = \"postgres://cdc:${PGPASSWORD}@${DATABASE_HOSTNAME}:5433/app\""),
        Line("\"bootstrap.servers\" = \"${KAFKA_BOOTSTRAP_SERVERS}\""),
        Urgent(&["database.hostname", "bootstrap.servers"]),
    ];
    connect(&without, &expected);
    // Debezium Server reads the setting from this variable, too.
    let text = SERVER.replace("debezium.source.database.hostname=db\n", "");
    let toml = import(&text, None, &[], false).toml;
    assert!(
        toml.contains("@${DEBEZIUM_SOURCE_DATABASE_HOSTNAME}/"),
        "{toml}"
    );
}

#[test]
fn tables_are_named_or_asked_for() {
    let expected = Line("tables = [\"public.outbox\", \"app.\\\"Events\\\"\"]");
    let list = "public\\.outbox, app.Events";
    connect(&[("table.include.list", list)], &[expected]);
    for list in ["public\\.outbox.*", "", REMOVED] {
        let text = connector(&[("table.include.list", list)]);
        expect(&import(&text, None, &[], false), &[Fatal("--table")]);
        let with = import(&text, None, &["app.outbox"], false);
        assert!(with.fatal.is_empty(), "{:?}", with.fatal);
        expect(&with, &[Line("tables = [\"app.outbox\"]")]);
    }
    let wrong = import(CONNECT, None, &["a.b.c"], false);
    expect(&wrong, &[Fatal("source.tables")]);
}

#[test]
fn slots_and_publications_that_cannot_be_taken_over_are_explained() {
    const MODE: &str = "publication.autocreate.mode";
    let unset = [("plugin.name", REMOVED), (MODE, REMOVED)];
    connect(&unset, &[Urgent(&["plugin.name", MODE])]);
    let settings = [
        ("plugin.name", "decoderbufs"),
        (MODE, "all_tables"),
        ("slot.drop.on.stop", "true"),
    ];
    let expected = [
        Unsupported("plugin.name", "A slot of another plugin"),
        Unsupported(MODE, "A publication for all tables"),
        Unsupported("slot.drop.on.stop", "BEFORE the hand-over"),
    ];
    connect(&settings, &expected);
}

#[test]
fn snapshots_are_taken_over_where_they_mean_the_same() {
    const MODE: &str = "snapshot.mode";
    for (mode, expected) in [
        ("no_data", Taken(MODE, "source.snapshot")),
        ("never", Taken(MODE, "source.snapshot")),
        ("SCHEMA_ONLY", Line("snapshot = \"never\"")),
        ("initial", NoEffect(MODE, "source.snapshot = \"initial\"")),
        ("exported", NoEffect(MODE, "starts at the slot's position")),
        ("when_needed", Unsupported(MODE, "slot-missing")),
        ("always", Unsupported(MODE, "walrelay resend")),
        ("initial_only", Unsupported(MODE, "walrelay resend")),
        ("configuration_based", Unsupported(MODE, "rules")),
        ("custom", Unsupported(MODE, "rules")),
        ("recovery", Unsupported(MODE, "initial or unsent")),
    ] {
        let imported = connect(&[(MODE, mode)], &[expected]);
        // Whatever the mode, the relay must stop if the slot is missing.
        expect(&imported, &[Line("create = false")]);
        assert!(!imported.toml.contains("snapshot = \"initial\""), "{mode}");
    }
    let overrides = "snapshot.select.statement.overrides";
    let of_table = "snapshot.select.statement.overrides.public.outbox";
    let settings = [
        (overrides, "public.outbox"),
        (of_table, "SELECT * FROM outbox WHERE sent_at IS NULL"),
        ("snapshot.include.collection.list", "public.outbox"),
        ("snapshot.isolation.mode", "serializable"),
        ("snapshot.locking.mode", "none"),
        ("snapshot.mode.custom.name", "mine"),
        ("snapshot.fetch.size", "1000"),
        ("snapshot.max.threads.multiplier", "2"),
        ("snapshot.of.tomorrow", "x"),
    ];
    let expected = [
        Unsupported(overrides, "source.snapshot_where"),
        Unsupported(of_table, "source.snapshot_where"),
        Unsupported("snapshot.include.collection.list", "source.tables"),
        NoEffect("snapshot.isolation.mode", "one moment"),
        NoEffect("snapshot.locking.mode", "locks nothing"),
        Unsupported("snapshot.mode.custom.name", "initial or unsent"),
        NoEffect("snapshot.fetch.size", "one after the other"),
        NoEffect("snapshot.max.threads.multiplier", "one after the other"),
        Unsupported("snapshot.of.tomorrow", "snapshots"),
    ];
    connect(&settings, &expected);
    let read_committed = [("snapshot.isolation.mode", "read_committed")];
    connect(
        &read_committed,
        &[Unsupported("snapshot.isolation.mode", "one moment")],
    );
    let unset = connect(&[], &[Supported]);
    let note = unset.report.notes.iter().find(|note| note.about == MODE);
    assert!(note.is_some_and(|note| !note.urgent && note.text.contains("source.snapshot")));
}
