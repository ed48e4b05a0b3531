//! Each mistake has its own word, exit code and remedy. All through the binary.

use std::process::Output;

use walrelay_testkit::{Db, servers};

use crate::rig::{PATIENCE, Rig, output};

struct Refused {
    code: Option<i32>,
    stderr: String,
}

impl Refused {
    fn of(output: &Output) -> Self {
        Self {
            code: output.status.code(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }

    #[track_caller]
    fn is(&self, id: &str, code: i32, words: &[&str]) {
        let error = &self.stderr;
        assert!(error.contains(&format!("[{id}]")), "not {id}: {error}");
        assert_eq!(self.code, Some(code), "{error}");
        assert!(error.contains("\nhelp: "), "no remedy: {error}");
        for word in words {
            assert!(error.contains(word), "{word:?} is missing: {error}");
        }
        for secret in ["hunter2", "wrong-password"] {
            assert!(!error.contains(secret), "{secret} is shown: {error}");
        }
    }
}

/// `run` and `check` refuse alike.
#[track_caller]
fn refused(rig: &Rig, url: &str, more: &str, id: &str, code: i32, words: &[&str]) {
    let config = rig.config_with(url, more);
    let config = config.to_str().expect("text");
    for command in ["run", "check"] {
        Refused::of(&output(&[command, "--config", config])).is(id, code, words);
    }
}

/// A rig whose server has the outbox, and a role for the relay with a password.
fn rig() -> Rig {
    let rig = Rig::new(15);
    rig.workload().create_tables();
    Db::connect(&rig.postgres.url()).batch(
        "CREATE ROLE relay LOGIN REPLICATION PASSWORD 'hunter2'; \
         CREATE ROLE plain LOGIN PASSWORD 'hunter2'; \
         CREATE PUBLICATION walrelay FOR TABLE outbox WITH (publish = 'insert')",
    );
    rig
}

fn tcp(rig: &Rig, user: &str, password: &str, database: &str) -> String {
    rig.postgres
        .url_tcp_for(user, Some(password), database)
        .expect("a TCP port")
}

#[test]
fn of_access() {
    let rig = rig();
    refused(
        &rig,
        &tcp(&rig, "relay", "wrong-password", "postgres"),
        "",
        "password",
        77,
        &["28P01"],
    );
    refused(
        &rig,
        &tcp(&rig, "nobody-here", "hunter2", "postgres"),
        "",
        "password",
        77,
        &["a role that does not exist"],
    );
    refused(
        &rig,
        &tcp(&rig, "relay", "hunter2", "nowhere"),
        "",
        "database-missing",
        78,
        &["nowhere"],
    );
    let words = ["REPLICATION", "rds_replication"];
    refused(
        &rig,
        &tcp(&rig, "plain", "hunter2", "postgres"),
        "",
        "privilege",
        77,
        &words,
    );
}

#[test]
fn of_the_database() {
    let rig = rig();
    let url = rig.postgres.url();
    let db = Db::connect(&url);

    db.batch("SELECT pg_create_logical_replication_slot('walrelay', 'test_decoding')");
    refused(&rig, &url, "", "slot-plugin", 78, &["test_decoding"]);
    db.batch("SELECT pg_drop_replication_slot('walrelay')");

    db.batch(
        "ALTER PUBLICATION walrelay DROP TABLE outbox; CREATE TABLE x (id int); \
              ALTER PUBLICATION walrelay ADD TABLE x",
    );
    refused(
        &rig,
        &url,
        "",
        "publication-lacks-table",
        78,
        &["ADD TABLE \"public\".\"outbox\""],
    );
    db.batch("ALTER PUBLICATION walrelay ADD TABLE outbox");
    refused(
        &rig,
        &url,
        "",
        "publication-foreign-table",
        78,
        &["public.x"],
    );
    db.batch("DROP TABLE x");

    db.batch("ALTER TABLE outbox RENAME payload TO body");
    refused(
        &rig,
        &url,
        "",
        "column-missing",
        78,
        &["payload", "body", "table.field.event.payload"],
    );
    db.batch("ALTER TABLE outbox RENAME TO events");
    refused(&rig, &url, "", "table-missing", 78, &["public.outbox"]);
    assert!(rig.slot().read().is_none(), "a refusal left a slot behind");
}

/// A column that is dropped while the relay runs stops it with the same word.
#[test]
fn of_a_column_dropped_midway() {
    let rig = rig();
    let db = Db::connect(&rig.postgres.url());
    db.batch("SELECT pg_create_logical_replication_slot('walrelay', 'pgoutput')");
    let mut relay = rig.relay();
    db.batch(
        "INSERT INTO outbox VALUES (gen_random_uuid(), 'order', 'key', 'T', '{\"number\": 1}')",
    );
    rig.caught_up();
    db.batch("ALTER TABLE outbox RENAME payload TO body");
    db.batch(
        "INSERT INTO outbox VALUES (gen_random_uuid(), 'order', 'key', 'T', '{\"number\": 2}')",
    );
    assert_eq!(relay.ended().code(), Some(78), "{}", relay.log());
    assert!(relay.log().contains("[column-missing]"), "{}", relay.log());
    db.batch("ALTER TABLE outbox RENAME body TO payload");
}

#[test]
fn of_a_server_without_logical_decoding() {
    let postgres = servers::builder(15)
        .setting("wal_level", "replica")
        .start()
        .expect("Postgres starts");
    let rig = Rig::with(postgres, "127.0.0.1:9".to_owned());
    rig.workload().create_tables();
    refused(
        &rig,
        &rig.postgres.url(),
        "",
        "wal-level",
        78,
        &[
            "wal_level = replica",
            "rds.logical_replication",
            "cloudsql.logical_decoding",
        ],
    );
}

#[test]
fn of_the_configuration() {
    let rig = rig();
    let url = rig.postgres.url();
    refused(
        &rig,
        &url,
        "[delivery]\ngaranty = 1\n",
        "config-unknown-key",
        78,
        &["walrelay.toml:", "garanty", "guarantee"],
    );
    refused(
        &rig,
        &url,
        "\"acks\" = \"1\"\n",
        "kafka-property",
        78,
        &["walrelay.toml:", "acks"],
    );
    refused(
        &rig,
        &url,
        "\"enable.idempotence\" = false\n",
        "kafka-property",
        78,
        &["idempotence"],
    );
    refused(
        &rig,
        "postgres://h/db?sslmode=sometimes",
        "",
        "source-url",
        78,
        &["sslmode"],
    );
    let nothing = output(&["run", "--config", "/nonexistent/walrelay.toml"]);
    Refused::of(&nothing).is("config-file", 78, &["/nonexistent/walrelay.toml"]);
    let usage = output(&["run", "--nonsense"]);
    assert_eq!(usage.status.code(), Some(64));
}

/// `check` says at once that a server cannot be reached; `run` retries, and says so.
#[test]
fn of_servers_that_are_not_there_are_retried() {
    let rig = rig();
    // Nothing listens on the discard port.
    let config = rig.config_with("postgres://relay:hunter2@127.0.0.1:9/postgres", "");
    let config = config.to_str().expect("text").to_owned();
    Refused::of(&output(&["check", "--config", &config])).is(
        "postgres-unreachable",
        69,
        &["127.0.0.1"],
    );
    let relay = rig.start(config.as_ref());
    relay.says("trying again");
    let (code, log) = relay.terminate();
    assert_eq!(code, Some(0), "nothing was sent, so nothing is owed: {log}");
    assert!(!log.contains("hunter2"), "{log}");

    let away = Rig::with(servers::postgres(15), "127.0.0.1:9".to_owned());
    away.workload().create_tables();
    let config = away.config();
    let check = output(&["check", "--config", config.to_str().expect("text")]);
    Refused::of(&check).is("kafka-unreachable", 69, &["bootstrap.servers"]);
    let mut relay = away.relay();
    away.workload().rows(100).run();
    // It holds on to its slot and confirms nothing.
    let slot = away.slot();
    let before = slot.read().expect("the slot").confirmed_flush;
    relay.says("Connection refused");
    assert_eq!(slot.read().expect("the slot").confirmed_flush, before);
    assert!(slot.wait_active(PATIENCE) > 0);
    // Asked to stop it waits for the broker, as long as it may; asked again it does not.
    relay.signal("-TERM");
    relay.says("draining");
    relay.signal("-TERM");
    assert_eq!(relay.ended().code(), Some(75), "{}", relay.log());
}
