//! Runs the commands, SQL and configuration of the documents, and compares their lists with the code.
//!
//! A test finds a block by its mark, `<!-- run: name -->`. [`texts`] checks that every block has a mark,
//! and that a test uses it; [`proof`] generates the tests by promise of docs/PROOF.md.

mod cutting_over;
mod migrating;
mod proof;
mod pruning;
mod replaying;
mod scaling;
mod snapshots;
mod texts;

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use walrelay_lab::servers::{ChildGuard, Signal};
use walrelay_testkit::{Db, History, eventually, eventually_some, servers};

use crate::dlq::{Desk, Draft, draft};
use crate::rig::{PATIENCE, Relay, Rig, ends, output, shared_kafka, walrelay};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn text(name: &str) -> String {
    let path = root().join(name);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The blocks of a document that have names.
fn blocks(document: &str) -> BTreeMap<String, String> {
    let text = text(document);
    let mut found = BTreeMap::new();
    for part in text.split("<!-- run: ").skip(1) {
        let (name, rest) = part.split_once(" -->\n").expect("a mark that is closed");
        let rest = rest
            .strip_prefix("```")
            .unwrap_or_else(|| panic!("{document}: no block follows the mark {name}"));
        let (_, body) = rest.split_once('\n').expect("a block");
        let (body, _) = body.split_once("\n```").expect("a block that ends");
        let before = found.insert(name.to_owned(), body.to_owned());
        assert!(before.is_none(), "{document}: two blocks named {name}");
    }
    found
}

fn block(document: &str, name: &str) -> String {
    blocks(document)
        .remove(name)
        .unwrap_or_else(|| panic!("{document} has no block named {name}"))
}

/// A shell for a block of a document, which finds the binary that is tested.
fn shell(script: &str) -> Command {
    let binary = Path::new(env!("CARGO_BIN_EXE_walrelay"));
    let folder = binary.parent().expect("a folder").display();
    let searched = std::env::var("PATH").unwrap_or_default();
    let mut command = Command::new("sh");
    command
        .args(["-ec", script])
        .env("PATH", format!("{folder}:{searched}"))
        .env_remove("WALRELAY_CONFIG");
    command
}

/// Runs statements one by one, as psql sends them: some are refused in a transaction with others.
fn psql(db: &Db, sql: &str) {
    let code: Vec<&str> = sql
        .lines()
        .map(|line| line.split("--").next().unwrap_or(line).trim_end())
        .collect();
    for statement in code.join("\n").split(";\n") {
        if !statement.trim().is_empty() {
            db.batch(statement);
        }
    }
}

/// The replaced text must be there.
#[track_caller]
fn with(text: &str, placeholder: &str, value: &str) -> String {
    assert!(text.contains(placeholder), "no {placeholder} in: {text}");
    text.replace(placeholder, value)
}

fn succeeded(output: &Output) -> String {
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{error}");
    String::from_utf8(output.stdout.clone()).expect("text")
}

fn insert(db: &Db, key: &str, number: u32) {
    db.batch(&format!(
        "INSERT INTO outbox VALUES (gen_random_uuid(), 'order', '{key}', 'T', '{{\"number\": {number}}}')"
    ));
}

/// A configuration with `create = false`, as OPERATIONS.md wants it.
fn without_create(rig: &Rig) -> PathBuf {
    let path = rig.config();
    let config = fs::read_to_string(&path).expect("the configuration");
    let config = with(&config, "[source]\n", "[source]\ncreate = false\n");
    fs::write(&path, config).expect("written");
    path
}

/// The whole section: the SQL that `init --dry-run` prints for the README's configuration, then
/// `check`, `run` and the event, with nothing but host, port and encryption put in.
#[test]
fn five_minutes_of_the_readme() {
    let kafka = shared_kafka();
    let rig = Rig::with(servers::postgres(18), kafka.bootstrap_servers());
    let admin = Db::connect(&rig.postgres.url());
    admin.batch("CREATE DATABASE app");
    let url = rig.postgres.url_for("postgres", None, "app");
    let owner = Db::connect(&url);

    let dir = rig.path("newcomer");
    fs::create_dir(&dir).expect("a directory");
    let config = block("README.md", "config");
    let config = with(&config, "db.example.com:5432", &host(&rig));
    // walsender's own tests cover certificates.
    let config = with(&config, "sslmode=verify-full", "sslmode=disable");
    let config = with(&config, "broker.example.com:9092", &rig.bootstrap);
    fs::write(dir.join("walrelay.toml"), config).expect("written");
    let commands = block("README.md", "commands");
    let mut lines = commands
        .lines()
        .map(|line| line.split('#').next().unwrap_or(line).trim());
    assert_eq!(lines.next(), Some("export RELAY_PASSWORD=…"));
    let mut command = |expected: &str| {
        let line = lines
            .find(|line| !line.starts_with("psql "))
            .expect("one more command");
        let line = line.split(" > ").next().unwrap_or(line);
        let mut words = line.split_whitespace();
        assert_eq!(words.next(), Some("walrelay"), "{line}");
        let words: Vec<&str> = words.collect();
        assert_eq!(words.join(" "), expected);
        let mut command = walrelay(&words);
        command
            .current_dir(&dir)
            .env("RELAY_PASSWORD", "hunter2")
            .stdin(Stdio::null());
        command
    };

    let sql = succeeded(&command("init --dry-run").output().expect("it runs"));
    for psql in ["-f init.sql", "-c '\\password walrelay'"] {
        let line = format!("psql postgres://postgres@db.example.com:5432/app {psql}");
        let line = line.replace(" -f", " -v ON_ERROR_STOP=1 -f");
        assert!(commands.contains(&line), "{commands}");
    }
    psql(&owner, &sql);
    owner.batch("ALTER ROLE walrelay PASSWORD 'hunter2'");
    let checked = succeeded(&command("check").output().expect("it runs"));
    for part in ["configuration\n", "postgres\n", "kafka\n", " 0 fail\n"] {
        assert!(checked.contains(part), "{checked}");
    }
    let log = rig.path("log");
    let stderr = File::create(&log).expect("a log");
    let relay = ChildGuard::spawn(command("run").stderr(stderr)).expect("it runs");
    let says = |words: &str| {
        eventually(PATIENCE, || {
            fs::read_to_string(&log).is_ok_and(|log| log.contains(words))
        });
    };
    says("streaming");

    owner.batch("CREATE TABLE orders (id int PRIMARY KEY, state text)");
    owner.batch(&block("README.md", "event"));
    let id = owner
        .text("SELECT id::text FROM outbox")
        .expect("the event");
    let record = eventually_some(PATIENCE, || {
        let limit = Duration::from_secs(1);
        History::records(&rig.bootstrap, "outbox.event.Order", usize::MAX, limit)
            .into_iter()
            .find(|record| record.id.as_deref() == Some(&id))
    });
    assert_eq!(record.topic, "outbox.event.Order");
    assert_eq!(record.key.as_deref(), Some(&b"42"[..]));
    assert_eq!(record.payload.as_deref(), Some(&br#"{"total": 12.5}"#[..]));
    // No endpoint is configured: Postgres is asked.
    let status = block("docs/OPERATIONS.md", "status");
    let words: Vec<&str> = status.split_whitespace().skip(1).collect();
    let status = walrelay(&words)
        .current_dir(&dir)
        .env("RELAY_PASSWORD", "hunter2")
        .output();
    let status = succeeded(&status.expect("it runs"));
    assert!(
        status.contains("walrelay: read by server process"),
        "{status}"
    );
    terminate(relay);

    // Without Kafka, from where the relay before it stopped.
    owner.batch(&block("README.md", "event"));
    let stdout = rig.path("stdout");
    let relay = ChildGuard::spawn(
        walrelay(&["run", "--set", "sink.kind=stdout"])
            .current_dir(&dir)
            .env("RELAY_PASSWORD", "hunter2")
            .stdin(Stdio::null())
            .stdout(File::create(&stdout).expect("a file"))
            .stderr(Stdio::null()),
    )
    .expect("it runs");
    eventually(PATIENCE, || {
        fs::read_to_string(&stdout).is_ok_and(|lines| lines.ends_with('\n'))
    });
    let lines = fs::read_to_string(&stdout).expect("a line");
    assert_eq!(lines.lines().count(), 1, "{lines}");
    assert!(
        lines.contains(r#""topic":"outbox.event.Order""#) && lines.contains(r#""key":"42""#),
        "{lines}"
    );
    terminate(relay);
    assert!(
        text("README.md").contains("walrelay run --set sink.kind=stdout"),
        "the README shows another command"
    );

    psql(&owner, &block("README.md", "drop"));
    // The temporary copy goes when the server has noticed the end of its connection.
    eventually(PATIENCE, || {
        let slots = owner.text("SELECT count(*)::text FROM pg_replication_slots");
        slots.as_deref() == Some("0")
    });
}

fn host(rig: &Rig) -> String {
    format!("127.0.0.1:{}", rig.postgres.port())
}

fn terminate(mut relay: ChildGuard) {
    relay.signal(Signal::Term).expect("a signal is sent");
    assert!(relay.wait().expect("a child").success());
}

/// The server removes WAL that a stopped relay needs. The relay stops with `slot-lost`, and the
/// remedy of OPERATIONS.md delivers every row.
#[test]
fn way_out_when_the_slot_is_lost() {
    let postgres = servers::builder(18)
        .setting("max_slot_wal_keep_size", "1MB")
        .setting("min_wal_size", "32MB")
        .setting("max_wal_size", "32MB")
        .start()
        .expect("Postgres starts");
    let kafka = shared_kafka();
    let rig = Rig::with(postgres, kafka.bootstrap_servers());
    rig.workload().create_tables();
    rig.relay().ends_well();
    let db = Db::connect(&rig.postgres.url());
    for number in 1..=3 {
        insert(&db, "key", number);
    }
    eventually(PATIENCE, || {
        db.batch("SELECT pg_logical_emit_message(false, 'p', repeat('x', 1000000)) FROM generate_series(1, 20)");
        db.batch("SELECT pg_switch_wal()");
        db.batch("CHECKPOINT");
        let status = "SELECT wal_status FROM pg_replication_slots WHERE slot_name = 'walrelay'";
        db.text(status).as_deref() == Some("lost")
    });
    let status = db.query(&block("docs/OPERATIONS.md", "watch"), &[]);
    assert_eq!(status[0].get::<_, String>("wal_status"), "lost");

    let config = without_create(&rig);
    let mut log = String::new();
    for _ in 0..2 {
        log = ends(&mut rig.start(&config), 65, "slot-lost");
    }
    let (_, xid) = log.rsplit_once("age('").expect("a transaction");
    let (xid, _) = xid.split_once("'::xid)").expect("a transaction");
    let accept = with(
        &block("docs/OPERATIONS.md", "accept-gap"),
        "/etc/walrelay/walrelay.toml",
        config.to_str().expect("text"),
    );
    let words: Vec<&str> = accept.split_whitespace().skip(1).collect();
    let relay = Relay::spawn(&mut walrelay(&words), &rig.path("accepting.log"));
    relay.streaming();
    relay.says("accepted by --accept-gap");
    let republish = block("docs/OPERATIONS.md", "republish-after");
    db.batch(&with(&republish, "'751'", &format!("'{xid}'")));
    rig.caught_up();
    let verdict = rig.verdict();
    verdict.assert_clean();
    assert_eq!((verdict.committed, verdict.duplicates), (3, 0));
    relay.ends_well();
    psql(&db, &block("docs/OPERATIONS.md", "retire"));
    assert!(rig.slot().read().is_none());
}

/// By the queries of OPERATIONS.md and the numbers of the error.
#[test]
fn way_past_an_event_that_cannot_be_delivered() {
    let rig = Rig::new(15);
    rig.workload().create_tables();
    let db = Db::connect(&rig.postgres.url());
    db.batch("ALTER TABLE outbox ALTER aggregatetype DROP NOT NULL");
    let mut relay = rig.relay();
    insert(&db, "key", 1);
    db.batch(
        "INSERT INTO outbox VALUES (gen_random_uuid(), NULL, 'key', 'Poison', '{\"number\": 2}')",
    );
    insert(&db, "key", 3);
    let log = ends(&mut relay, 65, "unroutable");

    let (_, place) = log.rsplit_once("in transaction ").expect("a place");
    let (xid, rest) = place.split_once(" that commits at ").expect("a position");
    let commit: String = rest
        .chars()
        .take_while(|c| c.is_ascii_hexdigit() || *c == '/')
        .collect();
    let operations = |name: &str| block("docs/OPERATIONS.md", name);
    let first = db.query(&with(&operations("peek"), "xid,", "xid::text,"), &[]);
    assert_eq!(first.len(), 1, "one transaction");
    assert_eq!(first[0].get::<_, String>("xid"), xid);
    let rows = db.query(
        &with(&operations("rows-of"), "'751'", &format!("'{xid}'")),
        &[],
    );
    assert_eq!(rows.len(), 1);
    assert_eq!(rows[0].get::<_, String>("type"), "Poison");
    db.batch(&with(&operations("skip"), "0/16B6A48", &commit));

    let relay = rig.relay();
    rig.caught_up();
    db.batch("DELETE FROM outbox WHERE aggregatetype IS NULL");
    let verdict = rig.verdict();
    verdict.assert_clean();
    assert_eq!((verdict.committed, verdict.duplicates), (2, 0));
    relay.ends_well();
}

/// The role of OPERATIONS.md is enough with `create = false`, and can do no more than it says; so
/// do the lines of `pg_hba.conf`.
#[test]
fn least_role_is_enough() {
    let operations = |name: &str| block("docs/OPERATIONS.md", name);
    let mut builder = servers::builder(18);
    for line in operations("hba").lines() {
        // Without certificates and from this machine.
        let line = line.replace("hostssl", "host   ");
        builder = builder.hba(line.replace("10.0.0.0/8", "127.0.0.1/32"));
    }
    let kafka = shared_kafka();
    let rig = Rig::with(
        builder.start().expect("Postgres starts"),
        kafka.bootstrap_servers(),
    );
    Db::connect(&rig.postgres.url()).batch("CREATE DATABASE app");
    let owner = rig.postgres.url_for("postgres", None, "app");
    let db = Db::connect(&owner);
    psql(&db, &operations("role"));
    db.batch("ALTER ROLE walrelay PASSWORD 'hunter2'");
    let init = rig.config_with(&owner, "");
    succeeded(&output(&["init", "--config", init.to_str().expect("text")]));

    let tcp = |database: &str| {
        rig.postgres
            .url_tcp_for("walrelay", Some("hunter2"), database)
            .expect("TCP")
    };
    let role = Db::connect(&tcp("app"));
    for forbidden in [
        "SELECT * FROM outbox",
        "CREATE TABLE x (id int)",
        "CREATE PUBLICATION x FOR TABLE outbox",
    ] {
        assert!(role.try_batch(forbidden).is_err(), "{forbidden}");
    }
    drop(role);
    let physical = format!("{}?replication=true", tcp("app"));
    assert!(Db::try_connect(&physical).is_err(), "physical replication");

    let config = rig.config_with(&tcp("app"), "");
    let text = fs::read_to_string(&config).expect("the configuration");
    let text = with(&text, "[source]\n", "[source]\ncreate = false\n");
    fs::write(&config, text).expect("written");
    let relay = rig.start(&config);
    relay.streaming();
    insert(&db, "key", 1);
    let connection = operations("connection");
    let sql = with(
        &connection,
        "SELECT pid,",
        "SELECT state AS state_now, pid,",
    );
    // A walsender catches up first.
    eventually(PATIENCE, || {
        let seen = db.query(&sql, &[]);
        seen.len() == 1 && seen[0].get::<_, String>("state_now") == "streaming"
    });
    relay.ends_well();

    db.batch("CREATE TABLE audit_outbox (LIKE outbox INCLUDING ALL)");
    db.batch(&operations("add-table"));
    ends(&mut rig.start(&config), 78, "publication-foreign-table");
    db.batch("SELECT pg_drop_replication_slot('walrelay')");
    db.batch(&operations("failover-slot"));
    let copies = db.query(&operations("failover-copy"), &[]);
    assert_eq!(copies.len(), 1);
    let ready: bool = copies[0].get("ready");
    assert!(!ready, "a slot of a primary is no copy");
    let tables = "source.tables=[\"public.outbox\", \"public.audit_outbox\"]";
    let config = config.to_str().expect("text");
    let checked = succeeded(&output(&["check", "--config", config, "--set", tables]));
    assert!(checked.contains(" 0 fail\n"), "{checked}");
    let offline = with(
        &operations("check-offline"),
        "/etc/walrelay/walrelay.toml",
        config,
    );
    let words: Vec<&str> = offline.split_whitespace().skip(1).collect();
    succeeded(&output(&words));
}

/// Up to 17 Postgres ends the stream when the publication is missing; since 18 it warns, and passes
/// over the rows.
fn way_out_when_the_publication_is_gone(major: u32) {
    let rig = Rig::new(major);
    rig.workload().create_tables();
    let mut relay = rig.relay();
    let db = Db::connect(&rig.postgres.url());
    insert(&db, "key", 1);
    rig.caught_up();
    db.batch("DROP PUBLICATION walrelay");
    insert(&db, "key", 2);
    ends(&mut relay, 78, "postgres-configuration");
    let config = rig.config();
    ends(&mut rig.start(&config), 78, "publication-gone");

    db.batch(&block("docs/OPERATIONS.md", "drop-slot"));
    succeeded(&output(&[
        "init",
        "--config",
        config.to_str().expect("text"),
    ]));
    let relay = rig.start(&config);
    relay.streaming();
    db.batch(&block("docs/OPERATIONS.md", "republish"));
    rig.caught_up();
    let verdict = rig.verdict();
    verdict.assert_clean();
    assert_eq!((verdict.committed, verdict.duplicates), (2, 1));
    relay.ends_well();
}

#[test]
fn way_out_when_the_publication_is_gone_on_15() {
    way_out_when_the_publication_is_gone(15);
}

#[test]
fn way_out_when_the_publication_is_gone_on_18() {
    way_out_when_the_publication_is_gone(18);
}

/// The commands of the section, one after the other, on a letter of each kind.
#[test]
fn dead_letters_of_the_manual() {
    let desk = Desk::new();
    desk.dead_letter(&draft("0/16B3748 0", "a"));
    desk.dead_letter(&Draft {
        class: "unroutable",
        topic: None,
        ..draft("0/16B3748 1", "b")
    });
    desk.dead_letter(&Draft {
        class: "oversize",
        omitted: Some("5000000"),
        ..draft("0/16B3748 2", "c")
    });
    for line in block("docs/OPERATIONS.md", "dead-letters").lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        assert_eq!(words[..2], ["walrelay", "dlq"], "{line}");
        succeeded(&desk.dlq(&words[2..]));
    }
    let left = desk.dlq(&["list"]);
    let note = String::from_utf8_lossy(&left.stderr);
    assert!(note.contains("0 open dead letters"), "{note}");
}
