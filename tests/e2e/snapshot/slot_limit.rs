//! `max_replication_slots` leaves little room: a snapshot takes a slot of its own, of which the relay's is a
//! copy.

use walrelay_testkit::{eventually, servers};

use super::gate::{GATED, Gate};
use super::{INITIAL, config, fill};
use crate::check::Checked;
use crate::rig::{PATIENCE, Relay, Rig, assert_lacks, create_slot};

const CANNOT: &str = "cannot be created: ";

/// An outbox with rows on a server that has so many slots.
fn rig(major: u32, slots: &str) -> Rig {
    let postgres = servers::postgres_with(major, &[("max_replication_slots", slots)]);
    let rig = Rig::on(postgres).outbox();
    rig.db()
        .batch("ALTER TABLE outbox ADD seq bigserial; CREATE INDEX ON outbox (seq)");
    fill(&rig, 3_000);
    rig
}

/// Nothing is sent and no publication made before both slots are free.
#[test]
fn no_row_is_read_with_one_free_slot() {
    let rig = rig(18, "2");
    let db = rig.db();
    create_slot(&db, "other");
    let config = config(&rig, INITIAL);
    let words = ["[server-limit]", "1 of max_replication_slots = 2"];
    Checked::run(&config, &[]).fails("postgres/slot-limit", &words);
    let relay = rig.start(&config);
    relay.says(CANNOT);
    assert_lacks(
        &relay.log(),
        &["the snapshot begins", "created the publication"],
    );
    db.batch("SELECT pg_drop_replication_slot('other')");
    goes_on(&rig, relay);
}

/// Without a snapshot one slot is enough, and the publication is not made and dropped at each attempt.
#[test]
fn no_publication_is_created_without_a_free_slot() {
    let rig = rig(15, "1");
    let db = rig.db();
    create_slot(&db, "other");
    let relay = rig.start(&rig.config());
    relay.says(CANNOT);
    let publications: i64 = db.value("SELECT count(*) FROM pg_publication");
    assert_eq!(publications, 0);
    db.batch("SELECT pg_drop_replication_slot('other')");
    relay.streaming();
    let log = relay.ends_well();
    assert_eq!(log.matches("created the publication").count(), 1, "{log}");
}

/// The second slot is taken while the rows are read: they are not read again.
#[test]
fn a_slot_that_is_taken_meanwhile_is_waited_for() {
    let rig = rig(17, "2");
    let db = rig.db();
    let gate = Gate::new(&rig);
    let relay = rig.start(&config(&rig, GATED));
    relay.says("the snapshot begins");
    create_slot(&db, "other");
    gate.open();
    relay.says("all replication slots are in use");
    db.batch("SELECT pg_drop_replication_slot('other')");
    goes_on(&rig, relay);
}

#[track_caller]
fn goes_on(rig: &Rig, relay: Relay) {
    eventually(PATIENCE, || rig.slot().read().is_some());
    relay.streaming();
    rig.caught_up();
    rig.verdict().assert_nothing_repeated();
    let log = relay.ends_well();
    assert_eq!(log.matches("the snapshot begins").count(), 1, "{log}");
}
