//! A slot that moves on between the choice of the range and the copy of the slot.

use std::fs;
use std::process::{Output, Stdio};

use walrelay_testkit::{Db, eventually};

use crate::rig::{PATIENCE, Rig, command_with, done, insert, kafka_in_turn, refused};

/// The current time by the server's clock.
fn now(db: &Db) -> String {
    db.value(
        "SELECT to_char(clock_timestamp() AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS.US\"Z\"')",
    )
}

/// A replay looks at the slots, asks the broker about the topic, and copies the slot. If the slot has
/// moved beyond the beginning of the range meanwhile, nothing is sent, and the replay says so.
#[test]
fn a_slot_that_moves_beyond_the_start_meanwhile_is_noticed() {
    let kafka = kafka_in_turn();
    let rig = Rig::with_kafka(18, &kafka);
    rig.create_slot();
    let (proxy, url) = rig.proxy();
    let config = rig.config_with(&url, "");
    let state_dir = rig.path("replays");
    fs::create_dir(&state_dir).expect("a directory");
    let (db, slot) = (rig.db(), rig.slot());
    // Moves the slot to `to` after the replay has looked at the slots.
    let replay = |from: &str, topic: &str, to: &str| -> Output {
        let accepted = proxy.accepted();
        kafka.pause();
        let dir = state_dir.to_string_lossy();
        let patient = "--set=delivery.drain_timeout=\"90s\"";
        let arguments = [
            "--from",
            from,
            "--to-topic",
            topic,
            "--state-dir",
            &dir,
            patient,
        ];
        let mut replay = command_with("replay --yes", &config, &arguments);
        replay.stdout(Stdio::piped()).stderr(Stdio::piped());
        let replay = replay.spawn().expect("walrelay runs");
        eventually(PATIENCE, || {
            proxy.accepted() > accepted && proxy.open() == 0
        });
        db.batch(&format!(
            "SELECT pg_replication_slot_advance('walrelay', '{to}')"
        ));
        kafka.resume();
        replay.wait_with_output().expect("it ends")
    };
    let beginning = slot.confirmed().to_string();
    let rows = |numbers: std::ops::RangeInclusive<u32>| {
        numbers.for_each(|number| insert(&db, number));
        db.insert_lsn().to_string()
    };
    let after_20 = rows(1..=20);
    let after_40 = rows(21..=40);
    rows(41..=50);
    let time = now(&db);
    rows(51..=100);

    let topic = |name: &str| format!("{}{name}", rig.prefix);
    let from_position = replay(&beginning, &topic("position"), &after_20);
    let words = ["[replay-gone]", "has moved on to", &beginning];
    refused(&from_position, 64, &words);
    assert!(rig.records_in(&topic("position"), 0).is_empty());

    // The range of a time begins later than the slot's new position.
    let end = rows(101..=101);
    // A broker that was just stopped may take longer to create it than a drain waits.
    kafka.create_topic(&topic("time"), 1, &[]);
    done(&replay(&time, &topic("time"), &after_40));
    assert_eq!(rig.records_in(&topic("time"), 51).len(), 51);
    let from_time = replay(&time, &topic("gone"), &end);
    refused(&from_time, 64, &["[replay-gone]", "has moved on to"]);
    assert!(rig.records_in(&topic("gone"), 0).is_empty());
}
