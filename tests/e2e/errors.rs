//! Each error has its own id, exit code and remedy, tested with the binary.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::process::Output;
use std::thread;

use walrelay_testkit::{Db, servers};
use walrelay_throwaway::Signal;

use crate::rig::{
    self, NOWHERE, PATIENCE, Rig, SLOT, assert_lacks, create_slot, ends, insert, kafka_in_turn,
    output, output_with, psql, said,
};

/// Asserts that a command ended with this error, without a secret in its output.
#[track_caller]
fn is_error(output: &Output, id: &str, code: i32, words: &[&str]) {
    let id = format!("[{id}]");
    let error = rig::refused(output, code, &[&[&*id], words].concat());
    assert_lacks(&error, &["hunter2", "wrong-password"]);
}

/// Asserts that `run` and `check` refuse this URL, and more lines of configuration, in the same
/// way.
#[track_caller]
fn refused(rig: &Rig, url: &str, more: &str, (id, code): (&str, i32), words: &[&str]) {
    let config = rig.config_with(url, more);
    for command in ["run", "check"] {
        is_error(&output_with(command, &config, &[]), id, code, words);
    }
}

/// Servers with the outbox, and roles with passwords.
fn rig() -> Rig {
    let rig = Rig::with_outbox(15);
    rig.db().batch(
        "CREATE ROLE relay LOGIN REPLICATION PASSWORD 'hunter2'; \
         CREATE ROLE plain LOGIN PASSWORD 'hunter2'; \
         CREATE PUBLICATION walrelay FOR TABLE outbox WITH (publish = 'insert')",
    );
    rig
}

#[test]
fn errors_of_access_have_ids() {
    let rig = rig();
    let refused = |user, password, database, error, words: &[&str]| {
        refused(
            &rig,
            &rig.url_as(user, password, database),
            "",
            error,
            words,
        );
    };
    let password = ("password", 77);
    refused("relay", "wrong-password", "postgres", password, &["28P01"]);
    let words = ["a role that does not exist"];
    refused("nobody-here", "hunter2", "postgres", password, &words);
    let missing = ("database-missing", 78);
    refused("relay", "hunter2", "nowhere", missing, &["nowhere"]);
    let words = ["REPLICATION", "rds_replication"];
    refused("plain", "hunter2", "postgres", ("privilege", 77), &words);
}

#[test]
fn errors_of_the_database_have_ids() {
    let rig = rig();
    let url = rig.postgres.url();
    let db = Db::connect(&url);
    let refused = |id, words: &[&str]| refused(&rig, &url, "", (id, 78), words);

    db.batch("SELECT pg_create_logical_replication_slot('walrelay', 'test_decoding')");
    refused("slot-plugin", &["test_decoding"]);
    db.batch("SELECT pg_drop_replication_slot('walrelay')");

    db.batch("SELECT pg_create_logical_replication_slot('walrelay', 'pgoutput', false, true)");
    refused("slot-two-phase", &["pg_copy_logical_replication_slot"]);
    // The remedy of the error works as it is printed.
    let said = said(&output_with("run", &rig.config_with(&url, ""), &[]));
    let (_, remedy) = said.rsplit_once("While no relay runs: ").expect("a remedy");
    psql(&db, &remedy.replace("; ", ";\n"));
    let two_phase = "SELECT two_phase FROM pg_replication_slots WHERE slot_name = 'walrelay'";
    assert!(!db.value::<bool>(two_phase));
    db.batch("SELECT pg_drop_replication_slot('walrelay')");

    db.batch(
        "ALTER PUBLICATION walrelay DROP TABLE outbox; CREATE TABLE x (id int); \
              ALTER PUBLICATION walrelay ADD TABLE x",
    );
    let remedy = "ADD TABLE \"public\".\"outbox\"";
    refused("publication-lacks-table", &[remedy]);
    db.batch("ALTER PUBLICATION walrelay ADD TABLE outbox");
    refused("publication-foreign-table", &["public.x"]);
    db.batch("DROP TABLE x");

    db.batch("ALTER TABLE outbox RENAME payload TO body");
    let words = ["payload", "body", "table.field.event.payload"];
    refused("column-missing", &words);
    db.batch("ALTER TABLE outbox RENAME TO events");
    refused("table-missing", &["public.outbox"]);
    assert!(rig.slot().read().is_none(), "a refusal left a slot behind");
}

/// `run` and `check` say what to do about a port that is no broker's, in their own places.
#[test]
fn a_port_that_is_no_brokers_has_a_remedy() {
    let kafka = kafka_in_turn();
    let closing = TcpListener::bind("127.0.0.1:0").expect("a port");
    let closed = closing.local_addr().expect("an address").to_string();
    thread::spawn(move || {
        for connection in closing.incoming() {
            drop(connection);
        }
    });
    let rig = Rig::without_broker(18).outbox();
    rig.create_slot();
    let postgres = format!("127.0.0.1:{}", rig.postgres.port());
    let (of_controller, of_another) = ("port of a controller (KRaft)", "another service");
    for (servers, remedy, of_run) in [
        // librdkafka tells a producer nothing of such a connection: the log leads to check.
        (closed, "max.connections.per.ip", "walrelay check"),
        (kafka.controller_address(), of_controller, of_controller),
        (postgres, of_another, of_another),
    ] {
        let set = format!("--set=sink.kafka.bootstrap.servers={servers}");
        let check = output_with("check", &rig.config(), &[&set]);
        is_error(&check, "kafka-unreachable", 69, &[remedy]);
        let relay = rig.start_with(&rig.config(), &[&set]);
        insert(&rig.db(), 1);
        relay.says(of_run);
        relay.kill();
        rig.slot().wait_inactive(PATIENCE);
    }
}

/// PgBouncer refuses a startup parameter that it does not know, such as `replication`.
#[test]
fn a_pooler_is_refused() {
    let rig = rig();
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address");
    thread::spawn(move || {
        for socket in listener.incoming() {
            let mut socket = socket.expect("a connection");
            let mut startup = [0; 4096];
            let _ = socket.read(&mut startup);
            let fields = b"SFATAL\0C08P01\0Munsupported startup parameter: replication\0\0";
            let length = u32::try_from(fields.len() + 4).expect("a length");
            let answer = [b"E", &length.to_be_bytes()[..], fields].concat();
            let _ = socket.write_all(&answer);
        }
    });
    let url = format!("postgres://u@{address}/d?sslmode=disable");
    let words = ["PgBouncer", "cannot carry a replication connection"];
    refused(&rig, &url, "", ("pooler", 78), &words);
}

/// A column that is renamed while the relay runs stops it with the same error.
#[test]
fn a_renamed_column_stops_the_relay() {
    let rig = rig();
    let db = rig.db();
    create_slot(&db, SLOT);
    let mut relay = rig.relay();
    insert(&db, 1);
    rig.caught_up();
    db.batch("ALTER TABLE outbox RENAME payload TO body");
    db.batch("INSERT INTO outbox VALUES (gen_random_uuid(), 'order', 'key', 'T', '{}')");
    ends(&mut relay, 78, "column-missing");
    db.batch("ALTER TABLE outbox RENAME body TO payload");
}

#[test]
fn a_server_without_logical_decoding_is_refused() {
    let postgres = servers::postgres_with(15, &[("wal_level", "replica")]);
    let rig = Rig::with(postgres, NOWHERE).outbox();
    let words = [
        "wal_level = replica",
        "rds.logical_replication",
        "cloudsql.logical_decoding",
    ];
    refused(&rig, &rig.postgres.url(), "", ("wal-level", 78), &words);
}

#[test]
fn errors_of_the_configuration_have_ids() {
    let rig = rig();
    let url = rig.postgres.url();
    let property = ("kafka-property", 78);
    let words = ["walrelay.toml:", "garanty", "guarantee"];
    let unknown = "[delivery]\ngaranty = 1\n";
    refused(&rig, &url, unknown, ("config-unknown-key", 78), &words);
    let words = ["walrelay.toml:", "acks"];
    refused(&rig, &url, "\"acks\" = \"1\"\n", property, &words);
    let idempotence = "\"enable.idempotence\" = false\n";
    refused(&rig, &url, idempotence, property, &["idempotence"]);
    let url = "postgres://h/db?sslmode=sometimes";
    refused(&rig, url, "", ("source-url", 78), &["sslmode"]);
    let file = "/nonexistent/walrelay.toml";
    let text = ["run", "--config", file, "--set", "log.format=text"];
    is_error(&output(&text), "config-file", 78, &[file]);
    let usage = output(&["run", "--nonsense"]);
    assert_eq!(usage.status.code(), Some(64));
}

/// Where the log has JSON lines, each error of the configuration of `run` is one, too: with other
/// errors in the file, with a file that is no TOML, and without one.
#[test]
fn errors_of_the_configuration_are_lines_of_the_log() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("walrelay.toml");
    let log = |output: &Output| String::from_utf8(output.stderr.clone()).expect("text");
    let run = |text: &str, more: &[&str]| {
        fs::write(&file, text).expect("written");
        let output = output_with("run", &file, more);
        assert_eq!(output.status.code(), Some(78), "{output:?}");
        log(&output)
    };
    let lines = |said: &str| -> Vec<serde_json::Value> {
        let lines = said.lines().map(serde_json::from_str);
        lines.collect::<Result<_, _>>().expect("JSON")
    };
    let two = "[source]\nurl = \"postgres://h/db\"\ntables = [\"public.outbox\"]\nsloot = \"a\"\n\
               [sink.kafka]\n\"bootstrap.servers\" = \"b:9092\"\n\"acks\" = \"1\"\n";
    let errors = lines(&run(two, &[]));
    let ids: Vec<_> = errors.iter().map(|error| error["id"].as_str()).collect();
    assert_eq!(ids, [Some("config-unknown-key"), Some("kafka-property")]);
    for error in &errors {
        assert_eq!(
            (&error["level"], &error["exit_code"]),
            (&"ERROR".into(), &78.into())
        );
        assert!(
            error["remedy"].is_string() && error["message"].is_string(),
            "{error}"
        );
    }
    let syntax = lines(&run("[source\n", &[]));
    assert_eq!(syntax[0]["id"], "config-syntax");
    // The format that is configured holds, in the file and on the command line.
    let text = run(&format!("{two}[log]\nformat = \"text\"\n"), &[]);
    assert!(text.starts_with("error: "), "{text}");
    let text = run("[source\n", &["--set", "log.format=text"]);
    assert!(text.starts_with("error: "), "{text}");
    let absent = output(&["run", "--config", "/nonexistent/walrelay.toml"]);
    assert_eq!(lines(&log(&absent))[0]["id"], "config-file");
}

/// `check` reports at once that a server cannot be reached; `run` retries, and logs that.
#[test]
fn unreachable_servers_are_retried() {
    let rig = rig();
    // Nothing listens on the discard port.
    let config = rig.config_with("postgres://relay:hunter2@127.0.0.1:9/postgres", "");
    let check = output_with("check", &config, &[]);
    is_error(&check, "postgres-unreachable", 69, &["127.0.0.1"]);
    let relay = rig.start(&config);
    relay.says("trying again");
    let (code, log) = relay.terminate();
    assert_eq!(code, Some(0), "nothing was sent, so nothing is owed: {log}");
    assert_lacks(&log, &["hunter2"]);

    let away = Rig::without_broker(15).outbox();
    let check = output_with("check", &away.config(), &[]);
    is_error(&check, "kafka-unreachable", 69, &["bootstrap.servers"]);
    let mut relay = away.relay();
    insert(&away.db(), 1);
    // The relay keeps its slot and confirms no event, not even the first.
    let slot = away.slot();
    let first_ends = slot.wal_end();
    away.workload().rows(100).run();
    relay.says("Connection refused");
    let confirmed = slot.confirmed();
    assert!(confirmed < first_ends, "{confirmed} >= {first_ends}");
    assert!(slot.wait_active(PATIENCE) > 0);
    // On the first SIGTERM the relay waits for the broker, within its limit; on the second it does
    // not.
    relay.signal(Signal::Term);
    relay.says("draining");
    relay.signal(Signal::Term);
    assert_eq!(relay.ended().code(), Some(75), "{}", relay.log());
}
