//! `walrelay slots`: a step that loses events needs consent, and a slot that is read is left alone.

use std::path::Path;
use std::process::Output;

use serde_json::Value;
use walrelay_testkit::Db;

use crate::rig::{
    PATIENCE, Rig, assert_has, command_with, create_slot, done, insert, json_lines, output_unread,
    output_with, refused,
};

/// Runs a command on slots with this configuration.
fn slots(config: &Path, line: &str) -> Output {
    output_with(&format!("slots {line}"), config, &[])
}

fn list(config: &Path) -> Vec<Value> {
    json_lines(&slots(config, "list --output json"))
}

fn confirmed(slot: &Value) -> String {
    let lsn = slot["confirmed_flush_lsn"].as_str();
    lsn.expect("an LSN").to_owned()
}

fn test_commands(major: u32) {
    // The commands need no Kafka: nothing listens at this address.
    let rig = Rig::without_broker(major).outbox();
    let db = rig.db();
    db.batch("CREATE PUBLICATION walrelay FOR TABLE outbox WITH (publish = 'insert')");
    let config = rig.config();
    let slots = |line: &str| slots(&config, line);
    let list = || list(&config);
    let last = || list().pop().expect("the slot");
    assert_eq!(list().len(), 0);

    // Create the configured slot, or a slot by name; not twice.
    let shown = done(&slots("create --dry-run"));
    assert_has(&shown, &["pg_create_logical_replication_slot('walrelay'"]);
    assert_eq!(list().len(), 0, "a dry run created a slot");
    done(&slots("create"));
    done(&slots("create second"));
    // The exit code is that of the command also if nobody reads the list.
    done(&output_unread(command_with("slots list", &config, &[])));
    refused(&slots("create"), 64, &["[slot-exists]"]);
    let listed = list();
    let names = listed.iter().filter_map(|slot| slot["slot"].as_str());
    assert!(names.eq(["second", "walrelay"]), "{listed:?}");
    for slot in &listed {
        assert_eq!(slot["plugin"], "pgoutput", "{slot}");
        assert_eq!(slot["active_pid"], Value::Null, "{slot}");
        assert!(slot["retained_bytes"].is_u64(), "{slot}");
        assert_eq!(slot["inactive_since"].is_string(), major >= 17, "{slot}");
        assert_eq!(slot["failover"].is_boolean(), major >= 17, "{slot}");
    }
    let table = done(&slots("list"));
    assert!(
        table.starts_with("SLOT") && table.contains("\nwalrelay "),
        "{table}"
    );

    // Advance: forwards only, and only with consent.
    let begin = confirmed(&last());
    insert(&db, 1);
    let now = "advance walrelay --to now";
    let shown = done(&slots(&format!("{now} --dry-run")));
    assert_has(&shown, &["never relayed", "pg_replication_slot_advance"]);
    refused(&slots(now), 64, &["[slots-not-agreed]", "no terminal"]);
    assert_eq!(confirmed(&last()), begin);
    let moved = done(&slots(&format!("{now} --yes")));
    assert_has(&moved, &[" are skipped", "slot walrelay is at "]);
    assert_ne!(confirmed(&last()), begin);
    let to = |position: &str| slots(&format!("advance walrelay --to {position} --yes"));
    let words = ["[slot-position]", "does not go backwards"];
    refused(&to(&begin), 64, &words);
    refused(&to("FFFF/0"), 64, &["[slot-position]", "the log ends at"]);
    refused(&slots("advance none --to now"), 64, &["[slot-unknown]"]);

    // Drop: not while the slot is read, and only with consent.
    let relay = rig.streaming(&config);
    let drop = || slots("drop walrelay --yes");
    refused(&drop(), 69, &["[slot-busy]"]);
    refused(&to("now"), 69, &["[slot-busy]"]);
    let read = last();
    assert!(read["active_pid"].is_u64(), "{read}");
    relay.ends_well();
    rig.slot().wait_inactive(PATIENCE);
    let shown = done(&slots("drop walrelay --dry-run"));
    assert_has(&shown, &["is lost", "pg_drop_replication_slot"]);
    refused(&slots("drop walrelay"), 64, &["[slots-not-agreed]"]);
    assert_eq!(list().len(), 2);
    done(&drop());
    assert_eq!(list().len(), 1);
    refused(&drop(), 64, &["[slot-unknown]"]);
}

tests! {
    fn on_15() { test_commands(15) }
    fn on_18() { test_commands(18) }
}

/// A slot of another database cannot be moved from this one.
#[test]
fn of_another_database() {
    let rig = Rig::without_broker(18);
    let db = rig.db();
    db.batch("CREATE DATABASE other");
    let elsewhere = Db::connect(&rig.postgres.url_for("postgres", None, "other"));
    create_slot(&elsewhere, "theirs");
    let config = rig.config();
    let moved = slots(&config, "advance theirs --to now --yes");
    let words = ["[slot-database]", "connect to database other"];
    refused(&moved, 78, &words);
    done(&slots(&config, "drop theirs --yes"));
}
