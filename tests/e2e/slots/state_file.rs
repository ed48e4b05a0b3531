//! A relay with a state file notices what happened to slot, server or sink while no relay ran, and
//! confirms nothing that is not in the file.

use std::fs;
use std::path::{Path, PathBuf};

use walrelay_kafka_sink::embedded::EmbeddedBroker;
use walrelay_lsn::Lsn;
use walrelay_postgres_source::{with_checksum, without_checksum};
use walrelay_testkit::{Db, eventually};

use super::{
    accepts, advance_slot, config_with, covers, delivered, goes_on, insert_unseen, make_slot_anew,
    noting, numbers, range, relayed_one,
};
use crate::check::{Checked, WITHOUT_KAFKA};
use crate::rig::{PATIENCE, Rig, assert_has, create_slot, edit, ends, insert};

/// The position in a state file; `None` if there is no file.
fn noted_lsn(path: &Path) -> Option<Lsn> {
    let text = fs::read_to_string(path).ok()?;
    let (_, lsn) = text.split_once("confirmed = \"").expect("a position");
    let (lsn, _) = lsn.split_once('"').expect("its end");
    Some(lsn.parse().expect("an LSN"))
}

fn moved_while_no_relay_ran(act: impl Fn(&Db)) {
    let rig = Rig::new(15);
    let config = noting(&rig);
    relayed_one(&rig, &config).ends_well();
    let state = rig.path("state");
    let before = noted_lsn(&state).expect("a position");
    let db = rig.db();
    let unseen = insert_unseen(&db);
    act(&db);
    for _ in 0..2 {
        let checked = Checked::run(&config, &WITHOUT_KAFKA);
        checked.fails("postgres/slot-position", &["[slot-moved]"]);
        let log = ends(&mut rig.start(&config), 65, "slot-moved");
        covers(&log, unseen);
        assert_eq!(range(&log).0, before, "{log}");
        // The next relay would take it for one that has moved the slot on.
        assert_eq!(rig.slot().reader(), None, "a refusal left its walsender");
        let noted = noted_lsn(&state);
        assert_eq!(noted, Some(before), "a refusal changed the file");
    }
    goes_on(&rig, &config, &[1, 9]);
    assert!(noted_lsn(&state) > Some(unseen.1));

    // Without the file the note shows it.
    fs::remove_file(&state).expect("removed");
    insert(&db, 10);
    act(&db);
    ends(&mut rig.start(&config), 78, "slot-passed-over");
    accepts(&rig, &config).ends_well();
    assert!(state.exists(), "it is made anew");
}

#[test]
fn a_slot_moved_while_no_relay_ran_is_noticed_with_a_state_file() {
    moved_while_no_relay_ran(advance_slot);
    moved_while_no_relay_ran(make_slot_anew);
}

/// Another Kafka cluster answers at the address: nothing is confirmed into it, by the file or by the note in
/// the database.
#[test]
fn a_slot_is_not_moved_by_another_kafka_cluster() {
    another_kafka_cluster_is_not_confirmed_into(
        &["the cluster id of the sink changed from "],
        noting,
    );
    another_kafka_cluster_is_not_confirmed_into(
        &["the sink now sends to the cluster "],
        Rig::config,
    );
}

fn another_kafka_cluster_is_not_confirmed_into(words: &[&str], config: fn(&Rig) -> PathBuf) {
    let rig = Rig::new(18);
    let config = config(&rig);
    relayed_one(&rig, &config).ends_well();
    let other = EmbeddedBroker::start(&[]).expect("a broker");
    let db = rig.db();
    insert(&db, 2);
    let end = db.flush_lsn();
    edit(&config, &rig.bootstrap, other.bootstrap_servers());
    for _ in 0..2 {
        let log = ends(&mut rig.start(&config), 65, "other-kafka-cluster");
        assert_has(&log, words);
        assert_has(&log, &["--accept-gap"]);
        let noted = noted_lsn(&rig.path("state"));
        assert!(noted.is_none_or(|noted| noted < end), "{log}");
        assert!(rig.slot().confirmed() < end, "{log}");
    }
    edit(&config, other.bootstrap_servers(), &rig.bootstrap);
    let relay = rig.streaming(&config);
    rig.caught_up();
    relay.ends_well();
    assert_eq!(delivered(&rig), numbers(&[1, 2]));

    edit(&config, &rig.bootstrap, other.bootstrap_servers());
    insert(&db, 3);
    let relay = accepts(&rig, &config);
    rig.caught_up();
    relay.ends_well();
    insert(&db, 4);
    let relay = rig.streaming(&config);
    rig.caught_up();
    relay.ends_well();
    assert_eq!(delivered(&rig), numbers(&[1, 2]));
}

/// `pg_upgrade` keeps the slot, and gives the server another system identifier: here file and note get another one.
#[test]
fn events_of_before_an_upgrade_are_relayed_after_the_gap_is_accepted() {
    let rig = Rig::new(17);
    let config = noting(&rig);
    relayed_one(&rig, &config).ends_well();
    let db = rig.db();
    for number in [2, 3] {
        insert(&db, number);
    }
    let system = db.text("SELECT system_identifier::text FROM pg_control_system()");
    let state = rig.path("state");
    let text = fs::read_to_string(&state).expect("it is read");
    let position = without_checksum(&text).expect("it is whole");
    let of_former = position.replace(&system.expect("an identifier"), "7");
    fs::write(&state, with_checksum(of_former)).expect("it is written");
    db.batch("SELECT setval('walrelay_state.\"system:walrelay\"', 7)");
    let log = ends(&mut rig.start(&config), 65, "other-server");
    let remedy = ["An upgrade of Postgres", "nothing is to be inserted again"];
    assert_has(&log, &remedy);
    // Each once, and in order.
    goes_on(&rig, &config, &[1, 2, 3, 9]);
}

/// The server is restored from an older state while no relay runs.
#[test]
fn a_slot_of_a_server_that_went_back_is_noticed_with_a_state_file() {
    let rig = Rig::new(15);
    let config = noting(&rig);
    relayed_one(&rig, &config).ends_well();
    rig.back_up();
    let relay = rig.streaming(&config);
    rig.workload().rows(2_000).seed(2).run();
    rig.caught_up();
    relay.ends_well();
    let relayed = noted_lsn(&rig.path("state")).expect("a position");
    rig.restore();
    let log = ends(&mut rig.start(&config), 65, "log-went-back");
    let (from, to) = range(&log);
    assert_eq!(to, relayed, "{log}");
    assert!(from < to, "{log}");
    accepts(&rig, &config).ends_well();
}

/// Under load and through SIGKILL. The test reads the slot first, then the file.
#[test]
fn a_slot_is_never_beyond_the_state_file() {
    let rig = Rig::with_outbox(15);
    let config = noting(&rig);
    let state = rig.path("state");
    let slot = rig.slot();
    let mut relay = rig.streaming(&config);
    let load = rig.workload().rate(2_000.0).seed(11).start();
    let mut seen = std::collections::BTreeSet::new();
    let mut look = || {
        let confirmed = slot.confirmed();
        let noted = noted_lsn(&state).expect("a position");
        assert!(
            confirmed <= noted,
            "the slot is at {confirmed}, noted is {noted}"
        );
        seen.insert(confirmed);
        seen.len()
    };
    for _ in 0..4 {
        let next = load.written().rows + 1_500;
        let before = look();
        // The disk decides how often the position moves.
        eventually(PATIENCE, || {
            look() >= before + 5 && load.written().rows >= next
        });
        relay.kill();
        look();
        relay = rig.streaming(&config);
    }
    load.stop();
    rig.caught_up();
    assert!(look() > 20);
    rig.verdict().assert_clean_but_for_ragged();
    relay.ends_well();
    assert!(noted_lsn(&state).is_some());
}

/// The directory of the state file goes away: nothing is confirmed from then on. It comes back:
/// nothing was lost.
#[test]
fn a_slot_is_not_moved_while_the_state_file_cannot_be_written() {
    let rig = Rig::new(18);
    let directory = rig.path("notes");
    fs::create_dir(&directory).expect("a directory");
    let config = config_with(&rig, &rig.postgres.url(), "state_file = \"notes/state\"");
    let mut relay = relayed_one(&rig, &config);
    let away = rig.path("away");
    fs::rename(&directory, &away).expect("it goes away");
    insert(&rig.db(), 2);
    let log = ends(&mut relay, 78, "state-file");
    assert_has(&log, &["No such file or directory"]);
    let slot = rig.slot().confirmed();
    assert!(Some(slot) <= noted_lsn(&away.join("state")), "{log}");
    ends(&mut rig.start(&config), 78, "state-file");
    fs::rename(&away, &directory).expect("it comes back");
    let relay = rig.streaming(&config);
    // The event was delivered while the position could not be noted, so it is repeated; none is
    // missing.
    let verdict = rig.finish(relay);
    verdict.assert_clean();
    assert_eq!(verdict.committed, 2);

    // A file of another slot, and a truncated file.
    let state = directory.join("state");
    let text = fs::read_to_string(&state).expect("the file");
    fs::write(&state, &text[..text.len() / 2]).expect("written");
    let log = ends(&mut rig.start(&config), 78, "state-file");
    assert_has(&log, &["cut off"]);
    fs::write(&state, text).expect("written");
    create_slot(&rig.db(), "other");
    let mut other = rig.start_with(&config, &["--set", "source.slot=other"]);
    let log = ends(&mut other, 78, "state-file");
    assert_has(&log, &["is of slot walrelay, not other"]);
}
