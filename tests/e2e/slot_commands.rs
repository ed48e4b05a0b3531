//! `walrelay slots`: a step that loses events needs consent and leaves a copy, and a slot that is read is left
//! alone.

use std::path::Path;
use std::process::Output;

use serde_json::Value;
use walrelay_testkit::{Db, eventually};
use walrelay_throwaway::Shutdown;

use crate::rig::{
    PATIENCE, Rig, assert_has, command_with, create_slot, done, insert, json_lines, output_unread,
    output_with, refused, said,
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
    let own = |slot: &Value| slot["slot"] == "walrelay";
    let last = || list().into_iter().find(own).expect("the slot");
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
    let kept = "walrelay bookmark drop advanced";
    assert_has(&moved, &[" are skipped", "slot walrelay is at ", kept]);
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
    assert_eq!(list().len(), 3);
    insert(&db, 2);
    assert_has(&done(&drop()), &["a copy of which is bookmark dropped"]);
    assert_eq!(list().len(), 3);
    refused(&drop(), 64, &["[slot-unknown]"]);

    // What was given up is there: in the copies.
    for (bookmark, numbers) in [("advanced", vec![1, 2]), ("dropped", vec![2])] {
        let line = format!("replay --from {bookmark} --sink stdout");
        let replayed = output_with(&line, &config, &[]);
        assert!(replayed.status.success(), "{}", said(&replayed));
        let events = String::from_utf8_lossy(&replayed.stdout);
        for number in [1, 2] {
            let arrives = events.contains(&format!("\\\"number\\\": {number}"));
            assert_eq!(arrives, numbers.contains(&number), "{bookmark}: {events}");
        }
    }
    // Without a copy, if the user says so. A slot that cannot be copied is not dropped.
    done(&slots("create"));
    db.batch("ALTER SYSTEM SET max_replication_slots = 4");
    rig.postgres.stop(Shutdown::Fast).expect("it stops");
    rig.postgres.start_again().expect("it starts");
    refused(&drop(), 75, &["[bookmark-copy]", "--no-bookmark"]);
    assert_eq!(list().len(), 4);
    done(&slots("drop walrelay --yes --no-bookmark"));
    assert_eq!(list().len(), 3);
}

/// A running relay drops the copies that commands have kept, at `max_wal`, and no other bookmark.
#[test]
fn copies_are_kept_up_to_max_wal() {
    let rig = Rig::with_outbox(18);
    let db = rig.db();
    let config = rig.config_and("\n[retention]\nkeep = \"1h\"\nmax_wal = \"16MiB\"\n");
    let relay = rig.streaming(&config);
    insert(&db, 1);
    rig.caught_up();
    relay.ends_well();
    insert(&db, 2);
    done(&output_with("bookmark create own", &config, &[]));
    done(&slots(&config, "advance walrelay --to now --yes"));
    let bookmarks = || -> Vec<String> {
        let listed = json_lines(&output_with("bookmark list --output json", &config, &[]));
        let names = listed.iter().filter_map(|one| one["bookmark"].as_str());
        names.map(str::to_owned).collect()
    };
    assert!(bookmarks().contains(&"advanced".to_owned()));
    let relay = rig.streaming(&config);
    let before = rig.slot().read().expect("the slot").restart;
    db.batch("SELECT pg_logical_emit_message(false, 'more', repeat(md5(random()::text), 1000000))");
    eventually(PATIENCE, || {
        db.batch("CHECKPOINT");
        rig.caught_up();
        let slot = rig.slot().read().expect("the slot");
        slot.restart.bytes_since(before) > 20_000_000
    });
    assert!(bookmarks().contains(&"advanced".to_owned()));
    relay.ends_well();
    let relay = rig.streaming(&config);
    relay.says("dropped bookmarks that a command had kept");
    relay.ends_well();
    let left = bookmarks();
    assert!(left.contains(&"own".to_owned()), "{left:?}");
    assert!(!left.contains(&"advanced".to_owned()), "{left:?}");
    // Its name is taken.
    let create = output_with("bookmark create advanced", &config, &[]);
    refused(&create, 64, &["[bookmark-name]"]);
}

tests! {
    fn slot_commands_work_on_15() { test_commands(15) }
    fn slot_commands_work_on_18() { test_commands(18) }
}

/// A slot of another database cannot be moved from this one.
#[test]
fn a_slot_of_another_database_cannot_be_moved() {
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
