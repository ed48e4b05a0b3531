//! Runs the commands, SQL and configurations of the documents, and compares their lists with the
//! code.
//!
//! A test finds a block by its mark, `<!-- run: name -->`. [`texts`] checks that every block has a
//! mark, and that a test uses it; [`proof`] generates the tests by promise of docs/trust/proof.md.

mod cutting_over;
mod event_stores;
mod libraries;
mod migrating;
mod patterns;
mod preset_tables;
mod proof;
mod pruning;
mod recipes;
mod remedies;
mod replaying;
mod scaling;
mod shown;
mod slo;
mod snapshots;
mod texts;

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use walrelay_testkit::{Db, eventually, eventually_some, servers};
use walrelay_throwaway::end_with_owner;

use crate::dlq::{DlqFixture, Draft, draft};
use crate::rig::{
    PATIENCE, Relay, Rig, assert_has, ends, insert, insert_of, json_lines, lsn_of, output,
    output_with, psql, refused, stdout, walrelay, with_source, words,
};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn text(name: &str) -> String {
    let path = root().join(name);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The named blocks of a document.
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

pub(crate) fn block(document: &str, name: &str) -> String {
    blocks(document)
        .remove(name)
        .unwrap_or_else(|| panic!("{document} has no block named {name}"))
}

/// Returns the block with this name of a page in docs/operate.
fn operations(name: &str) -> String {
    let folder = fs::read_dir(root().join("docs/operate")).expect("a folder");
    let pages = folder.map(|entry| entry.expect("an entry").file_name());
    let mut blocks = pages.filter_map(|page| {
        let page = page.into_string().expect("UTF-8");
        blocks(&format!("docs/operate/{page}")).remove(name)
    });
    let block = blocks.next();
    block.unwrap_or_else(|| panic!("no page of docs/operate has a block named {name}"))
}

/// A shell for a block of a document, in which `walrelay` is the binary under test.
pub(crate) fn shell(script: &str) -> Command {
    let binary = Path::new(env!("CARGO_BIN_EXE_walrelay"));
    let folder = binary.parent().expect("a folder").display();
    let searched = std::env::var("PATH").unwrap_or_default();
    let mut command = Command::new("sh");
    command
        .args(["-euc", script])
        .env("PATH", format!("{folder}:{searched}"))
        .env_remove("WALRELAY_CONFIG")
        .env("NO_COLOR", "1");
    end_with_owner(&mut command).expect("a shell");
    command
}

/// Runs a block of a document with this configuration; returns standard output. It must succeed.
#[track_caller]
fn run_block(document: &str, name: &str, config: &Path) -> String {
    let mut command = shell(&block(document, name));
    command.env("WALRELAY_CONFIG", config);
    stdout(&command.output().expect("a shell"))
}

/// The arguments of a document's command.
#[track_caller]
fn arguments(command: &str) -> Vec<&str> {
    let line = command.strip_prefix("walrelay ");
    words(line.expect("a command of walrelay"))
}

/// Replaces a text, which must be there.
#[track_caller]
fn with(text: &str, placeholder: &str, value: &str) -> String {
    assert!(text.contains(placeholder), "no {placeholder} in: {text}");
    text.replace(placeholder, value)
}

/// A configuration with `create = false`, as in docs/operate.
fn without_create(rig: &Rig) -> PathBuf {
    with_source(rig.config(), "create = false")
}

/// The whole section: the SQL that `init --dry-run` prints for the README's configuration, then
/// `check`, `run` and the event. Only host, port and encryption are replaced.
#[test]
fn five_minutes_of_the_readme() {
    let rig = Rig::new(18);
    rig.db().batch("CREATE DATABASE app");
    let owner = Db::connect(&rig.postgres.url_for("postgres", None, "app"));

    let dir = rig.path("newcomer");
    fs::create_dir(&dir).expect("a directory");
    let of_rig = |text: &str| {
        let text = with(text, "db.example.com:5432", &host(&rig));
        // The tests of `walsender` cover certificates.
        let text = with(&text, "sslmode=verify-full", "sslmode=disable");
        with(&text, "broker.example.com:9092", &rig.bootstrap)
    };
    let here = |words: &[&str]| {
        let mut command = walrelay(words);
        command
            .current_dir(&dir)
            .env("RELAY_PASSWORD", "hunter2")
            .stdin(Stdio::null());
        command
    };
    owner.batch("CREATE ROLE admin LOGIN PASSWORD 'hunter3'");
    let new = of_rig(&block("README.md", "new"));
    let new = with(&new, "postgres@", "admin:hunter3@");
    let written = here(&arguments(&new)).output().expect("it runs");
    assert_has(
        &stdout(&written),
        &["names public.outbox", "walrelay init --dry-run"],
    );
    let config = fs::read_to_string(dir.join("walrelay.toml")).expect("written");
    let counts = |line: &&str| !line.is_empty() && !line.starts_with('#');
    let config: Vec<&str> = config.lines().filter(counts).collect();
    let shown = of_rig(&block("README.md", "config"));
    assert_eq!(config, shown.lines().filter(counts).collect::<Vec<_>>());
    // Other tests may have the port.
    let free = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr());
    let free = free.expect("a port").to_string();
    let moved = fs::read_to_string(dir.join("walrelay.toml")).expect("written");
    let moved = with(&moved, "127.0.0.1:9187", &free);
    fs::write(dir.join("walrelay.toml"), moved).expect("written");
    // The file is not replaced.
    refused(
        &here(&arguments(&new)).output().expect("it runs"),
        64,
        &["[new-file]"],
    );
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
        let words = arguments(line);
        assert_eq!(words.join(" "), expected);
        here(&words)
    };

    let sql = stdout(&command("init --dry-run").output().expect("it runs"));
    for psql in ["-f init.sql", "-c '\\password walrelay'"] {
        let line = format!("psql postgres://postgres@db.example.com:5432/app {psql}");
        let line = line.replace(" -f", " -v ON_ERROR_STOP=1 -f");
        assert_has(&commands, &[&line]);
    }
    psql(&owner, &sql);
    owner.batch("ALTER ROLE walrelay PASSWORD 'hunter2'");
    let checked = stdout(&command("check").output().expect("it runs"));
    let parts = ["configuration\n", "postgres\n", "kafka\n", " 0 fail\n"];
    assert_has(&checked, &parts);
    let relay = Relay::spawn(&mut command("run"), &rig.path("log"));
    relay.says("streaming");

    owner.batch(&block("README.md", "event"));
    let arrive = block("README.md", "arrive");
    let arrived = json_lines(&here(&arguments(&arrive)).output().expect("it runs"));
    let [arrived] = arrived.as_slice() else {
        panic!("{arrived:?}");
    };
    assert_eq!(arrived["key"], "42");
    assert_eq!(arrived["value"], r#"{"total": 12.5}"#);
    let id = owner
        .text("SELECT id::text FROM outbox")
        .expect("the event");
    let record = eventually_some(PATIENCE, || {
        let records = rig.records_in("outbox.event.Order", 1);
        records
            .into_iter()
            .find(|record| record.id.as_deref() == Some(&id))
    });
    assert_eq!(record.topic, "outbox.event.Order");
    let event = (record.key_text(), record.value_text());
    assert_eq!(event, ("42", r#"{"total": 12.5}"#));
    let status = block("docs/operate/monitoring.md", "status");
    let status = here(&arguments(&status)).output().expect("it runs");
    assert_has(&stdout(&status), &["relay          streaming"]);
    relay.ends_well();

    // Without Kafka, from the position at which the first relay stopped.
    owner.batch(&block("README.md", "event"));
    let printed = rig.path("stdout");
    let file = File::create(&printed).expect("a file");
    let mut command = here(&["run", "--set", "sink.kind=stdout"]);
    let relay = Relay::spawn_to(&mut command, file, &rig.path("printing.log"));
    let lines = eventually_some(PATIENCE, || {
        let lines = fs::read_to_string(&printed).ok()?;
        lines.ends_with('\n').then_some(lines)
    });
    assert_eq!(lines.lines().count(), 1, "{lines}");
    let parts = [r#""topic":"outbox.event.Order""#, r#""key":"42""#];
    assert_has(&lines, &parts);
    relay.ends_well();
    let shown = text("README.md");
    assert_has(&shown, &["walrelay run --set sink.kind=stdout"]);

    psql(&owner, &block("README.md", "drop"));
    // The temporary copy ends when the server notices the end of its connection.
    eventually(PATIENCE, || {
        let slots = owner.text("SELECT count(*)::text FROM pg_replication_slots");
        slots.as_deref() == Some("0")
    });
}

fn host(rig: &Rig) -> String {
    format!("127.0.0.1:{}", rig.postgres.port())
}

/// The server removes WAL that a stopped relay needs. The relay stops with `slot-lost`, and the
/// remedy of docs/operate delivers every row.
#[test]
fn way_out_when_the_slot_is_lost() {
    let settings = [
        ("max_slot_wal_keep_size", "1MB"),
        ("min_wal_size", "32MB"),
        ("max_wal_size", "32MB"),
    ];
    let rig = Rig::on(servers::postgres_with(18, &settings)).outbox();
    rig.relay().ends_well();
    let db = rig.db();
    for number in 1..=3 {
        insert(&db, number);
    }
    eventually(PATIENCE, || {
        db.batch("SELECT pg_logical_emit_message(false, 'p', repeat('x', 1000000)) FROM generate_series(1, 20)");
        db.batch("SELECT pg_switch_wal()");
        db.batch("CHECKPOINT");
        let status = "SELECT wal_status FROM pg_replication_slots WHERE slot_name = 'walrelay'";
        db.text(status).as_deref() == Some("lost")
    });
    let status = db.query(&block("docs/operate/monitoring.md", "watch"), &[]);
    assert_eq!(status[0].get::<_, String>("wal_status"), "lost");

    let config = without_create(&rig);
    let mut log = String::new();
    for _ in 0..2 {
        log = ends(&mut rig.start(&config), 65, "slot-lost");
    }
    let (_, xid) = log.rsplit_once("age('").expect("a transaction");
    let (xid, _) = xid.split_once("'::xid)").expect("a transaction");
    let accept = with(
        &block("docs/operate/running.md", "accept-gap"),
        "/etc/walrelay/walrelay.toml",
        config.to_str().expect("text"),
    );
    let mut command = walrelay(&arguments(&accept));
    let relay = Relay::spawn(&mut command, &rig.path("accepting.log"));
    relay.streaming();
    relay.says("accepted by --accept-gap");
    let republish = block("docs/operate/troubleshooting.md", "republish-after");
    db.batch(&with(&republish, "'751'", &format!("'{xid}'")));
    rig.finish(relay).assert_counts(3, 0);
    psql(&db, &block("docs/operate/running.md", "retire"));
    assert!(rig.slot().read().is_none());
}

#[test]
fn tables_that_are_no_outboxes_are_taken_out() {
    let rig = Rig::with_outbox(17);
    rig.relay().ends_well();
    let db = rig.db();
    db.batch("CREATE TABLE orders (id int); ALTER PUBLICATION walrelay ADD TABLE orders");
    db.batch("INSERT INTO orders VALUES (1)");
    db.batch(&operations("drop-table"));
    insert(&db, 1);
    db.batch("ALTER PUBLICATION walrelay ADD TABLES IN SCHEMA public");
    db.batch("INSERT INTO orders VALUES (2)");
    insert(&db, 2);
    db.batch(&operations("set-table"));
    insert(&db, 3);
    rig.finish(rig.relay()).assert_counts(3, 0);
}

/// Uses the queries of docs/operate and the numbers of the error.
#[test]
fn way_past_an_event_that_cannot_be_delivered() {
    let rig = Rig::with_outbox(15);
    let db = rig.db();
    db.batch("ALTER TABLE outbox ALTER aggregatetype DROP NOT NULL");
    let mut relay = rig.relay();
    insert(&db, 1);
    db.batch(
        "INSERT INTO outbox VALUES (gen_random_uuid(), NULL, 'key', 'Poison', '{\"number\": 2}')",
    );
    insert(&db, 3);
    let log = ends(&mut relay, 65, "unroutable");

    let (_, place) = log.rsplit_once("in transaction ").expect("a place");
    let (xid, rest) = place.split_once(" that commits at ").expect("a position");
    let commit = lsn_of(rest).to_string();
    let first = db.query(&with(&operations("peek"), "xid,", "xid::text,"), &[]);
    assert_eq!(first.len(), 1, "one transaction");
    assert_eq!(first[0].get::<_, String>("xid"), xid);
    let rows_of = with(&operations("rows-of"), "'751'", &format!("'{xid}'"));
    let rows = db.query(&rows_of, &[]);
    assert_eq!(rows.len(), 1);
    assert_eq!(rows[0].get::<_, String>("type"), "Poison");
    db.batch(&with(&operations("skip"), "0/16B6A48", &commit));

    let relay = rig.start_with(&rig.config(), &["--accept-gap"]);
    relay.streaming();
    rig.caught_up();
    db.batch("DELETE FROM outbox WHERE aggregatetype IS NULL");
    rig.verdict().assert_counts(2, 0);
    relay.ends_well();
}

/// The role of docs/operate is enough with `create = false`, and can do no more than the page
/// says. The lines of `pg_hba.conf` are enough too.
#[test]
fn least_role_is_enough() {
    let mut builder = servers::builder(18);
    for line in operations("hba").lines() {
        // Without certificates, and from this machine.
        let line = line.replace("hostssl", "host   ");
        builder = builder.hba(line.replace("10.0.0.0/8", "127.0.0.1/32"));
    }
    let rig = Rig::on(builder.start().expect("Postgres starts"));
    rig.db().batch("CREATE DATABASE app");
    let owner = rig.postgres.url_for("postgres", None, "app");
    let db = Db::connect(&owner);
    psql(&db, &operations("role"));
    db.batch("ALTER ROLE walrelay PASSWORD 'hunter2'");
    stdout(&output_with("init", &rig.config_with(&owner, ""), &[]));

    let url = rig.url_as("walrelay", "hunter2", "app");
    let role = Db::connect(&url);
    for forbidden in [
        "SELECT * FROM outbox",
        "CREATE TABLE x (id int)",
        "CREATE PUBLICATION x FOR TABLE outbox",
    ] {
        assert!(role.try_batch(forbidden).is_err(), "{forbidden}");
    }
    drop(role);
    let physical = format!("{url}?replication=true");
    assert!(Db::try_connect(&physical).is_err(), "physical replication");

    let config = with_source(rig.config_with(&url, ""), "create = false");
    let relay = rig.streaming(&config);
    insert(&db, 1);
    let connection = operations("connection");
    let sql = with(
        &connection,
        "SELECT pid,",
        "SELECT state AS state_now, pid,",
    );
    // A walsender is in state `catchup` first.
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
    let checked = output_with("check", &config, &["--set", tables]);
    assert_has(&stdout(&checked), &[" 0 fail\n"]);
    let offline = with(
        &operations("check-offline"),
        "/etc/walrelay/walrelay.toml",
        config.to_str().expect("text"),
    );
    stdout(&output(&arguments(&offline)));
}

#[test]
fn the_row_filter_of_the_manual_stops_the_relay() {
    let rig = Rig::with_outbox(17);
    let mut relay = rig.relay();
    rig.db()
        .batch(&block("docs/operate/troubleshooting.md", "row-filter"));
    ends(&mut relay, 78, "publication-changed");
}

/// The rows of the meantime lack a column for ever: they are skipped, others are relayed, and the skipped
/// ones are published again from the table.
#[test]
fn rows_of_a_column_list_are_skipped_and_published_again() {
    let rig = Rig::with_outbox(15);
    let config = rig.config();
    let mut relay = rig.streaming(&config);
    let db = rig.db();
    insert(&db, 1);
    rig.caught_up();
    db.batch("ALTER PUBLICATION walrelay SET TABLE outbox (id, aggregatetype, aggregateid, type)");
    // Of a key of its own: what is published again comes late.
    insert_of(&db, "order", "skipped", 2);
    let advice = [
        "a column list of the publication left it out",
        "poison.unroutable=skip",
    ];
    assert_has(&ends(&mut relay, 78, "column-missing"), &advice);
    db.batch("ALTER PUBLICATION walrelay SET TABLE public.outbox");
    insert(&db, 3);
    // The entry of the table is another one, as after a table that was taken out and put back.
    ends(&mut rig.start(&config), 78, "publication-changed");
    let accepting = rig.start_with(&config, &["--accept-gap"]);
    ends(&mut { accepting }, 78, "column-missing");
    let relay = rig.start_with(&config, &["--set=poison.unroutable=skip"]);
    rig.caught_up();
    let id: String = db.value("SELECT id::text FROM outbox WHERE payload ->> 'number' = '2'");
    assert_has(
        &relay.log(),
        &["skipped an event that cannot be delivered", &id],
    );
    let resend = format!("resend --id {id} --yes");
    stdout(&output_with(&resend, &config, &[]));
    rig.finish(relay).assert_counts(3, 0);
}

/// Up to 17, Postgres ends the stream when the publication is missing. Since 18 it logs a warning,
/// and skips the rows.
fn way_out_when_the_publication_is_gone(major: u32) {
    let rig = Rig::with_outbox(major);
    let mut relay = rig.relay();
    let db = rig.db();
    insert(&db, 1);
    rig.caught_up();
    db.batch("DROP PUBLICATION walrelay");
    insert(&db, 2);
    ends(&mut relay, 78, "publication-not-yet");
    let config = rig.config();
    ends(&mut rig.start(&config), 78, "publication-gone");

    db.batch(&block("docs/operate/troubleshooting.md", "drop-slot"));
    stdout(&output_with("init", &config, &[]));
    let relay = rig.streaming(&config);
    db.batch(&block("docs/operate/troubleshooting.md", "republish"));
    rig.finish(relay).assert_counts(2, 1);
}

tests! {
    fn way_out_when_the_publication_is_gone_on_15() { way_out_when_the_publication_is_gone(15) }
    fn way_out_when_the_publication_is_gone_on_18() { way_out_when_the_publication_is_gone(18) }
}

/// The commands of the section, one after the other, on a dead letter of each kind.
#[test]
fn dead_letters_of_the_manual() {
    let fixture = DlqFixture::new();
    fixture.dead_letter(&draft("0/16B3748 0", "a"));
    fixture.dead_letter(&Draft {
        class: "unroutable",
        topic: None,
        ..draft("0/16B3748 1", "b")
    });
    fixture.dead_letter(&Draft {
        class: "oversize",
        omitted: Some("5000000"),
        ..draft("0/16B3748 2", "c")
    });
    for line in block("docs/operate/dead-letters.md", "dead-letters").lines() {
        let line = line.strip_prefix("walrelay dlq ").expect("a command");
        stdout(&fixture.dlq(line));
    }
    let left = fixture.dlq("list");
    let note = String::from_utf8_lossy(&left.stderr);
    assert_has(&note, &["0 open dead letters"]);
}
