use std::fs::File;
use std::process::Stdio;

use walrelay_testkit::{Db, eventually, servers};
use walrelay_throwaway::{ChildGuard, PostgresBinaries};

use crate::rig::{PATIENCE, Rig, output, walrelay};

fn stdout(args: &[&str]) -> String {
    let output = output(args);
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{args:?}: {error}");
    String::from_utf8(output.stdout).expect("text")
}

/// The five minutes of the README: init, check, run, all as a role that may only replicate.
#[test]
fn a_newcomer_needs() {
    let rig = Rig::new(18);
    let config = rig.config();
    let config = config.to_str().expect("text");
    let first = stdout(&["init", "--role", "relay", "--config", config]);
    for created in [
        "created table public.outbox",
        "created publication",
        "created slot",
    ] {
        assert!(first.contains(created), "{first}");
    }
    assert_eq!(
        stdout(&["init", "--config", config]),
        "everything is there already\n"
    );

    let db = Db::connect(&rig.postgres.url());
    db.batch("ALTER ROLE relay PASSWORD 'hunter2'");
    let url = rig
        .postgres
        .url_tcp_for("relay", Some("hunter2"), "postgres")
        .expect("TCP");
    let config = rig.config_with(&url, "");
    let check = stdout(&["check", "--config", config.to_str().expect("text")]);
    for fine in ["configuration: fine", "postgres: fine", "kafka: fine"] {
        assert!(check.contains(fine), "{check}");
    }
    let relay = rig.start(&config);
    relay.streaming();
    db.batch(
        "INSERT INTO outbox (aggregatetype, aggregateid, type, payload) \
         VALUES ('order', 'key', 'OrderPlaced', '{\"number\": 1}')",
    );
    rig.caught_up();
    let verdict = rig.verdict();
    verdict.assert_clean();
    assert_eq!(verdict.delivered, 1);
    let log = relay.ends_well();
    assert!(!log.contains("hunter2"), "{log}");
}

/// `migrations/` do by themselves what `init` does.
#[test]
fn the_migration_prepares() {
    let postgres = servers::postgres(15);
    let script = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../migrations/0001_outbox.sql"
    );
    let db = Db::connect(&postgres.url());
    // A session's slot cannot be made in a transaction that has written; psql sends statements one
    // by one too.
    let text = std::fs::read_to_string(script).expect("the migration");
    let code: String = text
        .lines()
        .map(|line| line.split(" -- ").next().unwrap_or(line))
        .collect::<Vec<_>>()
        .join("\n");
    for statement in code
        .split(";\n")
        .filter(|statement| !statement.trim().is_empty())
    {
        db.batch(statement);
    }
    let rig = Rig::with(postgres, String::from("127.0.0.1:9"));
    let config = rig.config();
    let config = config.to_str().expect("text");
    assert_eq!(
        stdout(&["init", "--config", config]),
        "everything is there already\n"
    );
}

#[test]
fn a_dry_run_connects_to_nothing() {
    let rig = Rig::with(servers::postgres(15), String::from("127.0.0.1:9"));
    let config = rig.config_with("postgres://nobody@127.0.0.1:9/nowhere", "");
    let sql = stdout(&[
        "init",
        "--dry-run",
        "--config",
        config.to_str().expect("text"),
    ]);
    for part in [
        "CREATE TABLE",
        "CREATE PUBLICATION",
        "CREATE ROLE",
        "pg_create_logical_replication_slot",
    ] {
        assert!(sql.contains(part), "{sql}");
    }
}

/// Standard output as a sink: one JSON object a line, confirmed when it is written.
#[test]
fn standard_output_is_a_sink() {
    let rig = Rig::with(servers::postgres(15), String::from("127.0.0.1:9"));
    rig.workload().create_tables();
    let config = rig.config();
    let text = std::fs::read_to_string(&config).expect("the configuration");
    let (source, _) = text.split_once("[sink.kafka]").expect("a sink");
    std::fs::write(&config, format!("{source}[sink]\nkind = \"stdout\"\n")).expect("written");
    let lines = rig.path("lines");
    let relay = ChildGuard::spawn(
        walrelay(&["run", "--config", config.to_str().expect("text")])
            .stdin(Stdio::null())
            .stdout(File::create(&lines).expect("a file"))
            .stderr(Stdio::null()),
    )
    .expect("walrelay runs");
    eventually(PATIENCE, || {
        rig.slot()
            .read()
            .is_some_and(|slot| slot.active_pid.is_some())
    });
    let written = rig.workload().rows(500).run();
    rig.caught_up();
    let text = std::fs::read_to_string(&lines).expect("lines");
    assert_eq!(text.lines().count() as u64, written.rows);
    assert!(
        text.lines()
            .all(|line| line.starts_with('{') && line.ends_with('}')),
        "{text}"
    );
    drop(relay);
}

#[test]
fn completions_and_version_are_printed() {
    assert!(stdout(&["completions", "bash"]).contains("walrelay"));
    assert_eq!(
        stdout(&["--version"]),
        format!("walrelay {}\n", env!("CARGO_PKG_VERSION"))
    );
}

/// The demonstration comes out as it must and leaves no server behind.
#[test]
fn the_demo_shows_what_it_promises() {
    PostgresBinaries::find(None)
        .or_else(|_| PostgresBinaries::at(servers::binaries(15).dir()))
        .expect("a server");
    let shown = walrelay(&["demo", "--seconds", "3", "--rate", "50"])
        .env("WALRELAY_POSTGRES_BIN", servers::binaries(15).dir())
        .output()
        .expect("walrelay runs");
    let text = String::from_utf8_lossy(&shown.stdout);
    assert!(
        shown.status.success(),
        "{text}{}",
        String::from_utf8_lossy(&shown.stderr)
    );
    for part in [
        "lost          0",
        "not committed 0",
        "out of order  0",
        "in the slot: yes",
        "p99",
    ] {
        assert!(text.contains(part), "{part:?} is missing: {text}");
    }
}
