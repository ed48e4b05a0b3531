//! `walrelay slots`: nothing that loses events is done unasked, and nothing to a slot that is read.

use std::process::Output;

use serde_json::Value;
use walrelay_testkit::Db;

use crate::rig::{Rig, done, insert, output, refused};

/// Runs a command on slots with this configuration.
fn slots(config: &str, args: &[&str]) -> Output {
    output(&[&["slots"], args, &["--config", config]].concat())
}

fn list(config: &str) -> Vec<Value> {
    let listed = slots(config, &["list", "--output", "json"]);
    done(&listed);
    let text = String::from_utf8(listed.stdout).expect("text");
    let lines = text.lines().map(serde_json::from_str);
    lines.collect::<Result<_, _>>().expect("JSON")
}

fn of(major: u32) {
    // Kafka is not asked: nothing listens there.
    let rig = Rig::without_broker(major);
    rig.workload().create_tables();
    let db = Db::connect(&rig.postgres.url());
    db.batch("CREATE PUBLICATION walrelay FOR TABLE outbox WITH (publish = 'insert')");
    let config = rig.config();
    let config = config.to_str().expect("text");
    assert!(list(config).is_empty());

    // Created: the configured one, or one by name; not twice.
    let shown = done(&slots(config, &["create", "--dry-run"]));
    assert!(
        shown.contains("pg_create_logical_replication_slot('walrelay'"),
        "{shown}"
    );
    assert!(list(config).is_empty(), "a dry run created a slot");
    done(&slots(config, &["create"]));
    done(&slots(config, &["create", "second"]));
    refused(&slots(config, &["create"]), 64, &["[slot-exists]"]);
    let listed = list(config);
    let names: Vec<&str> = listed
        .iter()
        .filter_map(|slot| slot["slot"].as_str())
        .collect();
    assert_eq!(names, ["second", "walrelay"]);
    for slot in &listed {
        assert_eq!(slot["plugin"], "pgoutput", "{slot}");
        assert_eq!(slot["active_pid"], Value::Null, "{slot}");
        assert!(slot["retained_bytes"].is_u64(), "{slot}");
        assert_eq!(slot["inactive_since"].is_string(), major >= 17, "{slot}");
        assert_eq!(slot["failover"].is_boolean(), major >= 17, "{slot}");
    }
    let table = done(&slots(config, &["list"]));
    assert!(
        table.starts_with("SLOT") && table.contains("\nwalrelay "),
        "{table}"
    );

    // Advanced: forwards, and only when somebody agreed.
    let begin = listed[1]["confirmed_flush_lsn"]
        .as_str()
        .expect("an LSN")
        .to_owned();
    insert(&db, 1);
    let confirmed = || {
        let slot = list(config).pop().expect("the slot");
        slot["confirmed_flush_lsn"]
            .as_str()
            .expect("an LSN")
            .to_owned()
    };
    let now = ["advance", "walrelay", "--to", "now"];
    let shown = done(&slots(config, &[&now[..], &["--dry-run"]].concat()));
    assert!(
        shown.contains("never relayed") && shown.contains("pg_replication_slot_advance"),
        "{shown}"
    );
    refused(
        &slots(config, &now),
        64,
        &["[slots-not-agreed]", "no terminal"],
    );
    assert_eq!(confirmed(), begin);
    let moved = done(&slots(config, &[&now[..], &["--yes"]].concat()));
    assert!(
        moved.contains(" are skipped") && moved.contains("slot walrelay is at "),
        "{moved}"
    );
    assert_ne!(confirmed(), begin);
    let to = |position: &str| slots(config, &["advance", "walrelay", "--to", position, "--yes"]);
    refused(
        &to(&begin),
        64,
        &["[slot-position]", "does not go backwards"],
    );
    refused(&to("FFFF/0"), 64, &["[slot-position]", "the log ends at"]);
    refused(
        &slots(config, &["advance", "none", "--to", "now"]),
        64,
        &["[slot-unknown]"],
    );

    // Dropped: not while it is read, and only when somebody agreed.
    let relay = rig.streaming(&rig.path("walrelay.toml"));
    let drop = ["drop", "walrelay"];
    refused(
        &slots(config, &[&drop[..], &["--yes"]].concat()),
        69,
        &["[slot-busy]"],
    );
    refused(
        &slots(config, &[&now[..], &["--yes"]].concat()),
        69,
        &["[slot-busy]"],
    );
    let read = list(config).pop().expect("the slot");
    assert!(read["active_pid"].is_u64(), "{read}");
    relay.ends_well();
    let shown = done(&slots(config, &[&drop[..], &["--dry-run"]].concat()));
    assert!(
        shown.contains("is lost") && shown.contains("pg_drop_replication_slot"),
        "{shown}"
    );
    refused(&slots(config, &drop), 64, &["[slots-not-agreed]"]);
    assert_eq!(list(config).len(), 2);
    done(&slots(config, &[&drop[..], &["--yes"]].concat()));
    assert_eq!(list(config).len(), 1);
    refused(
        &slots(config, &[&drop[..], &["--yes"]].concat()),
        64,
        &["[slot-unknown]"],
    );
}

#[test]
fn on_15() {
    of(15);
}

#[test]
fn on_18() {
    of(18);
}

/// A slot of another database cannot be moved from this one.
#[test]
fn of_another_database() {
    let rig = Rig::without_broker(18);
    let db = Db::connect(&rig.postgres.url());
    db.batch("CREATE DATABASE other");
    let elsewhere = Db::connect(&rig.postgres.url_for("postgres", None, "other"));
    elsewhere.batch("SELECT pg_create_logical_replication_slot('theirs', 'pgoutput')");
    let config = rig.config();
    let config = config.to_str().expect("text");
    let moved = slots(config, &["advance", "theirs", "--to", "now", "--yes"]);
    refused(
        &moved,
        78,
        &["[slot-database]", "connect to database other"],
    );
    done(&slots(config, &["drop", "theirs", "--yes"]));
}
