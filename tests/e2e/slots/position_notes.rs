//! A relay notes each position in the database before the slot confirms it, without a state file and
//! without marks. So a start notices what happened to the slot while no relay ran.

use std::path::Path;
use std::process::Stdio;

use walrelay_testkit::{Db, SlotWatch, Standby, eventually, servers};

use super::{
    accepting, accepts, advance_slot, config_with, covers, delivered, drop_slot, goes_on,
    insert_unseen, make_slot_anew, numbers, range, relayed_one,
};
use crate::rig::{
    PATIENCE, Rig, SLOT, assert_has, assert_lacks, command_with, create_slot, done, ends, insert,
    output_with, refused, said,
};

const NOTED: &str = "SELECT last_value FROM walrelay_state.\"position:walrelay\" WHERE is_called";
const UNNOTED: &str = "this role may not note the slot's positions";

/// The position that is noted of the slot.
fn noted(db: &Db) -> i64 {
    db.value(NOTED)
}

/// Asserts that starts end with the range until the user accepts it, and change nothing.
#[track_caller]
fn stops(rig: &Rig, config: &Path) -> String {
    let db = rig.db();
    let before = (rig.slot().confirmed(), noted(&db));
    let checked = output_with("check", config, &[]);
    refused(
        &checked,
        78,
        &["slot-position", "[slot-passed-over]", "walrelay resend"],
    );
    let mut log = String::new();
    for _ in 0..2 {
        log = ends(&mut rig.start(config), 78, "slot-passed-over");
        assert_has(&log, &["--accept-gap", "walrelay resend"]);
        assert_eq!(rig.slot().reader(), None, "a refusal left its walsender");
        assert_eq!((rig.slot().confirmed(), noted(&db)), before, "{log}");
    }
    log
}

/// The relay was killed before: its notes survive it.
#[test]
fn a_slot_that_was_moved_or_recreated_while_no_relay_ran_stops_the_start() {
    for (major, act) in [(15, advance_slot as fn(&Db)), (18, make_slot_anew)] {
        let rig = Rig::new(major);
        let config = rig.config();
        relayed_one(&rig, &config).kill();
        rig.slot().wait_inactive(PATIENCE);
        let db = rig.db();
        let before = noted(&db);
        let unseen = insert_unseen(&db);
        act(&db);
        let log = stops(&rig, &config);
        covers(&log, unseen);
        assert_eq!(range(&log).0.get(), before.cast_unsigned(), "{log}");
        goes_on(&rig, &config, &[1, 9]);
        let checked = said(&output_with("check", &config, &[]));
        assert_has(&checked, &["a start stops if something else moved"]);
    }
}

/// `walrelay init` notes where its slot begins; `slots advance` and `slots drop` are the user's word.
#[test]
fn a_slot_that_a_command_created_or_moved_is_known() {
    let rig = Rig::with_outbox(17);
    let db = rig.db();
    let config = rig.config();
    done(&output_with("init", &config, &["--role=postgres"]));
    let unseen = insert_unseen(&db);
    advance_slot(&db);
    covers(&stops(&rig, &config), unseen);
    done(&output_with(
        "slots advance walrelay --to now --yes",
        &config,
        &[],
    ));
    rig.streaming(&config).ends_well();
    done(&output_with("slots drop walrelay --yes", &config, &[]));
    insert(&db, 3);
    done(&output_with("slots create", &config, &[]));
    let relay = rig.streaming(&config);
    insert(&db, 4);
    rig.caught_up();
    relay.ends_well();
    assert_eq!(delivered(&rig), numbers(&[4]));
}

/// A relay starts between the question of `slots drop` and its answer: the slot stays, and so does what is
/// known of it.
#[test]
fn a_slot_that_is_read_again_is_not_dropped_nor_forgotten() {
    let rig = Rig::new(18);
    let config = rig.config();
    relayed_one(&rig, &config).ends_well();
    let holder = rig.db();
    let lock = "hashtextextended('walrelay slot walrelay', 0)";
    holder.batch(&format!("SELECT pg_advisory_lock({lock})"));
    let mut command = command_with("slots drop walrelay --yes", &config, &[]);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let dropping = command.spawn().expect("it starts");
    let tries = "SELECT count(*) FROM pg_stat_activity WHERE query LIKE '%pg_try_advisory_lock%' \
                 AND pid <> pg_backend_pid()";
    eventually(PATIENCE, || holder.value::<i64>(tries) > 0);
    let relay = rig.streaming(&config);
    holder.batch(&format!("SELECT pg_advisory_unlock({lock})"));
    let output = dropping.wait_with_output().expect("it ends");
    let words = [
        "[slot-busy]",
        "is being read by server process",
        "(walrelay)",
        "stop its reader",
    ];
    let said = refused(&output, 69, &words);
    assert_lacks(&said, &["host and port"]);
    let noted = noted(&rig.db());
    assert!(noted > 1, "the note is gone");
    relay.ends_well();
}

/// The relay goes on as before, and says once why it notes nothing. With the remedy of `check` a later start
/// notes positions, and is not stopped by what was noted before.
#[test]
fn a_slot_of_a_role_that_may_not_note_is_read_all_the_same() {
    let rig = Rig::new(18).outbox();
    let db = rig.db();
    done(&output_with("init", &rig.config(), &[]));
    db.batch("CREATE ROLE least LOGIN REPLICATION PASSWORD 'hunter2'");
    let url = rig.url_as("least", "hunter2", "postgres");
    let config = rig.config_with(&url, "");
    for number in [1, 2] {
        let relay = rig.streaming(&config);
        insert(&db, number);
        rig.caught_up();
        let log = relay.ends_well();
        assert_eq!(log.matches(UNNOTED).count(), 1, "{log}");
    }
    let checked = said(&output_with("check", &config, &[]));
    assert_has(&checked, &["slot-position", "walrelay init --role least"]);
    let admin = rig.config();
    done(&output_with("init", &admin, &["--role=least"]));
    let config = rig.config_with(&url, "");
    let relay = rig.streaming(&config);
    insert(&db, 3);
    rig.caught_up();
    assert_lacks(&relay.ends_well(), &[UNNOTED]);
    rig.slot().wait_inactive(PATIENCE);
    let unseen = insert_unseen(&db);
    advance_slot(&db);
    covers(&stops(&rig, &config), unseen);
    assert_eq!(delivered(&rig), numbers(&[1, 2, 3]));
}

/// A promoted standby has a copy of the slot whose position is beyond its copy of the note: the note
/// follows the position in the log. A slot that something else makes after the promotion stops the start.
#[test]
fn a_slot_of_a_promoted_standby_is_told_from_one_that_was_created_there() {
    let rig = Rig::on(servers::postgres(18)).outbox();
    let standby = Standby::start(&rig.postgres, &[("sync_replication_slots", "on")]);
    let url = standby.url_of_both(&rig.postgres, "postgres");
    let config = config_with(&rig, &url, "failover = true");
    let relay = rig.streaming(&config);
    let db = rig.db();
    let copied = Db::connect(&standby.server.url());
    let position = format!(
        "SELECT confirmed_flush_lsn::text FROM pg_replication_slots WHERE slot_name = '{SLOT}' AND NOT temporary"
    );
    let mut last = 0;
    let mut relay_one = || {
        last += 1;
        insert(&db, last);
        rig.caught_up();
    };
    // A copy is complete once the slot has advanced.
    eventually(PATIENCE, || {
        relay_one();
        copied.lsn(&position).is_some()
    });
    let early = noted(&db);
    relay_one();
    relay.ends_well();
    // As if the standby had not got the last note.
    db.batch(&format!(
        "SELECT setval('walrelay_state.\"position:walrelay\"', {early})"
    ));
    let confirmed = rig.slot().confirmed();
    eventually(PATIENCE, || copied.lsn(&position) == Some(confirmed));
    standby.wait_replayed(db.flush_lsn());
    drop((db, copied));
    rig.postgres.kill().expect("the primary is killed");
    standby.promote();
    let db = Db::connect(&standby.server.url());
    assert_eq!(noted(&db), early);
    let relay = rig.streaming(&config);
    relay.says("a standby was promoted that has the slot's position");
    last += 1;
    insert(&db, last);
    let slot = SlotWatch::new(&standby.server.url(), SLOT);
    slot.wait_until(slot.wal_end(), PATIENCE);
    relay.ends_well();
    let checked = output_with("check", &config, &[]);
    assert_lacks(&said(&checked), &["slot-passed-over"]);

    drop_slot(&db);
    let begin = db.flush_lsn();
    insert(&db, 1_000);
    let unseen = (begin, db.flush_lsn());
    create_slot(&db, SLOT);
    let log = ends(&mut rig.start(&config), 78, "slot-passed-over");
    covers(&log, unseen);
    accepts(&rig, &config).ends_well();
    rig.streaming(&config).ends_well();
    let sent: Vec<u32> = (1..=last).collect();
    assert_eq!(delivered(&rig), numbers(&sent));
}

/// After `pg_upgrade`, or in a database that was restored elsewhere, the note is a position of another log.
#[test]
fn a_slot_of_another_cluster_than_the_note_is_read_from_where_it_is() {
    let rig = Rig::new(17);
    let config = rig.config();
    relayed_one(&rig, &config).ends_well();
    let db = rig.db();
    let system = "SELECT last_value = (SELECT system_identifier FROM pg_control_system()) \
                  FROM walrelay_state.\"system:walrelay\"";
    assert!(db.value::<bool>(system));
    db.batch("SELECT setval('walrelay_state.\"system:walrelay\"', 1)");
    insert(&db, 2);
    advance_slot(&db);
    let relay = accepting(&rig, &config, "the noted position is of another cluster");
    relay.ends_well();
    assert!(db.value::<bool>(system));
    insert(&db, 3);
    advance_slot(&db);
    stops(&rig, &config);
}
