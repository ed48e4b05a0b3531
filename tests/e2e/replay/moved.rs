//! A slot that moves on between the choice of the range and the copy of the slot.

use std::process::Stdio;

use walrelay_testkit::eventually;

use crate::rig::{PATIENCE, Rig, command_with, insert, kafka_in_turn, refused};

/// The replay looks at the slots, asks the broker about the topic, and copies the slot. The slot
/// moves on meanwhile: nothing is sent, and the replay says that the beginning is gone.
#[test]
fn a_slot_that_moves_on_meanwhile_is_noticed() {
    let kafka = kafka_in_turn();
    let rig = Rig::with_kafka(18, &kafka);
    rig.create_slot();
    let (proxy, url) = rig.proxy();
    let config = rig.config_with(&url, "");
    let (db, slot) = (rig.db(), rig.slot());
    let from = slot.confirmed().to_string();
    for number in 1..=100 {
        insert(&db, number);
    }
    let topic = format!("{}replayed", rig.prefix);
    kafka.pause();
    let state_dir = rig.path("replays");
    std::fs::create_dir(&state_dir).expect("a directory");
    let dir = state_dir.to_string_lossy();
    let arguments = [
        "--from",
        &from,
        "--to-topic",
        &topic,
        "--state-dir",
        &dir,
        "--yes",
    ];
    let mut replay = command_with("replay", &config, &arguments);
    replay.stdout(Stdio::piped()).stderr(Stdio::piped());
    let replay = replay.spawn().expect("walrelay runs");
    // The sessions that looked at the slots are closed.
    eventually(PATIENCE, || proxy.accepted() > 0 && proxy.open() == 0);
    db.batch("SELECT pg_replication_slot_advance('walrelay', pg_current_wal_lsn())");
    kafka.resume();
    let output = replay.wait_with_output().expect("it ends");
    refused(&output, 64, &["[replay-gone]", "has moved on to", &from]);
    assert!(rig.records_in(&topic, 0).is_empty(), "records were sent");
    let left = std::fs::read_dir(&state_dir).expect("a directory").count();
    assert_eq!(left, 0, "there is nothing to resume");
}
