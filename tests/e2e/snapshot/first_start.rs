//! The first start: what is there already, and what a killed first start has left.

use walrelay_testkit::{Db, eventually};

use super::gate::{GATED, Gate};
use super::{INITIAL, config, rig};
use crate::check::Checked;
use crate::rig::{
    PATIENCE, Relay, Rig, SLOT, assert_has, assert_lacks, create_slot, done, edit, insert,
    output_with, with_source,
};

/// How the server process of the killed relay ends that makes the slot.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Walsender {
    /// It makes the slot for nobody, once the open transactions have ended.
    Left,
    /// An administrator ends it, and the slot with it.
    Ended,
}

/// A session with an open transaction that has written: Postgres makes no slot meanwhile.
fn writing(rig: &Rig) -> Db {
    let db = rig.db();
    db.batch("CREATE TABLE other (id int); BEGIN; INSERT INTO other VALUES (1)");
    db
}

/// Starts a relay, and kills it while it waits for the open transaction.
fn killed_in_its_setup(rig: &Rig, config: &std::path::Path, walsender: Walsender) {
    let relay = rig.start(config);
    let creating = "SELECT pid FROM pg_stat_activity WHERE query LIKE 'CREATE_REPLICATION_SLOT%' \
                    AND wait_event_type = 'Lock'";
    let db = rig.db();
    eventually(PATIENCE, || !db.query(creating, &[]).is_empty());
    relay.kill();
    if walsender == Walsender::Ended {
        let pids: Vec<i32> = db.column(creating, &[]);
        db.query(
            "SELECT pg_terminate_backend(pid) FROM unnest($1::int4[]) pid",
            &[&pids],
        );
        eventually(PATIENCE, || db.query(creating, &[]).is_empty());
    }
}

fn goes_on(lines: &str, walsender: Walsender) {
    let rig = rig(15);
    let db = rig.db();
    insert(&db, 1);
    let writing = writing(&rig);
    let config = config(&rig, lines);
    killed_in_its_setup(&rig, &config, walsender);
    let relay = rig.start(&config);
    let words = match (walsender, lines) {
        (Walsender::Left, "") => "standing by",
        (Walsender::Ended, "") => "creating the slot",
        _ => "there is no slot",
    };
    relay.says(words);
    writing.batch("COMMIT");
    relay.streaming();
    insert(&db, 2);
    let events = if lines.is_empty() { 1 } else { 2 };
    rig.records(events);
    assert_eq!(mark(&db), None);
    let log = relay.ends_well();
    assert_lacks(&log, &["slot-missing", "and slot walrelay is not"]);
}

/// The comment on the publication.
fn mark(db: &Db) -> Option<String> {
    db.value("SELECT obj_description(oid, 'pg_publication') FROM pg_publication")
}

tests! {
    fn a_first_start_killed_while_its_slot_is_created_goes_on() { goes_on("", Walsender::Left) }
    fn a_first_start_killed_while_its_slot_is_created_creates_another() { goes_on("", Walsender::Ended) }
    fn a_first_start_killed_before_its_snapshot_reads_it() { goes_on(INITIAL, Walsender::Left) }
}

/// With `mark_sent` a polling relay may be at work where a slot was dropped. Here none was made.
#[test]
fn a_first_start_killed_amid_its_snapshot_starts_it_again_with_mark_sent() {
    let rig = rig(15);
    rig.db()
        .batch("ALTER TABLE outbox ADD sent_at timestamptz; ALTER TABLE outbox ADD UNIQUE (seq)");
    rig.workload().rows(1_000).seed(17).run();
    let gate = Gate::new(&rig);
    let lines = format!("{GATED}\nmark_sent = \"sent_at = now()\"");
    let lines = lines.replace("\"initial\"", "\"unsent\"");
    let config = config(&rig, &lines);
    let relay = rig.start(&config);
    relay.says("the snapshot begins");
    relay.kill();
    gate.open();
    assert!(mark(&rig.db()).is_some());
    let relay = rig.streaming(&config);
    assert_eq!(mark(&rig.db()), None);
    assert_lacks(&relay.log(), &["is not read", "no snapshot is read"]);
    rig.finish(relay).assert_clean_but_for_ragged();
}

/// A slot that something else has made says nothing of the rows from before it.
#[test]
fn a_first_start_with_an_existing_slot_says_which_rows_are_not_read() {
    let rig = rig(15);
    let db = rig.db();
    let written = rig.workload().rows(500).seed(18).run().rows;
    db.batch(
        "CREATE PUBLICATION walrelay FOR TABLE outbox WITH (publish = 'insert'); ANALYZE outbox",
    );
    create_slot(&db, SLOT);
    let config = config(&rig, INITIAL);
    let words = [
        &*format!("about {written} row(s)"),
        "walrelay slots drop walrelay",
        "walrelay resend",
    ];
    Checked::run(&config, &[]).warns("postgres/snapshot", &words);
    let relay = rig.streaming(&config);
    relay.says("no snapshot is read");
    assert_has(&relay.ends_well(), &words);
    // The remedy.
    done(&output_with("slots", &config, &["drop", SLOT, "--yes"]));
    let relay = rig.streaming(&config);
    rig.records(usize::try_from(written).expect("a count"));
    assert!(
        Checked::run(&config, &[])
            .all("postgres/snapshot")
            .is_empty()
    );
    relay.ends_well();
    let relay = rig.streaming(&config);
    assert_lacks(&relay.ends_well(), &["no snapshot is read"]);
    // What is recorded is of this slot.
    done(&output_with("slots", &config, &["drop", SLOT, "--yes"]));
    create_slot(&db, SLOT);
    Checked::run(&config, &[]).warns("postgres/snapshot", &words);
}

/// A role that owns nothing records the end of its snapshot where `init` has prepared that.
#[test]
fn a_first_start_of_a_role_that_owns_nothing_is_recorded() {
    let rig = rig(15);
    rig.workload().rows(300).seed(19).run();
    let admin = config(&rig, INITIAL);
    done(&output_with("init", &admin, &["--role", "relay"]));
    rig.db().batch("ALTER ROLE relay PASSWORD 'x'");
    let url = rig.url_as("relay", "x", "postgres");
    let config = with_source(rig.config_with(&url, ""), INITIAL);
    let start = || -> Relay { rig.streaming(&config) };
    let first = start().ends_well();
    assert_lacks(&first, &["is not recorded", "no snapshot is read"]);
    assert_has(&first, &["the snapshot is complete"]);
    assert_lacks(&start().ends_well(), &["no snapshot is read"]);
}

/// Tables that are passed over, and walrelay's own, are no part of the snapshot, whatever form the
/// publication has.
fn leaves_other_tables_out(publication: &str) {
    let rig = rig(15);
    let db = rig.db();
    let written = rig.workload().rows(200).seed(20).run().rows;
    db.batch(&format!(
        "CREATE SCHEMA walrelay_state; CREATE TABLE walrelay_state.kept (id text); \
         INSERT INTO walrelay_state.kept VALUES ('x'); \
         CREATE TABLE others (id int PRIMARY KEY, created_at int); INSERT INTO others VALUES (1, 1); \
         CREATE PUBLICATION walrelay {publication} WITH (publish = 'insert')"
    ));
    let config = config(&rig, INITIAL);
    edit(
        &config,
        "[source]\n",
        "[source]\npass_over = [\"public.*\"]\n",
    );
    Checked::run(&config, &[]).passes("postgres/snapshot", &["row(s) are read first"]);
    let relay = rig.streaming(&config);
    assert_has(&relay.log(), &[&format!("\"rows\":{written},")]);
    db.batch("INSERT INTO walrelay_state.kept VALUES ('y')");
    rig.workload().rows(100).seed(21).run();
    rig.finish(relay).assert_clean();
}

tests! {
    fn a_publication_of_all_tables_has_only_the_outbox_read() { leaves_other_tables_out("FOR ALL TABLES") }
    fn a_publication_of_schemas_has_only_the_outbox_read() {
        leaves_other_tables_out("FOR TABLES IN SCHEMA public, walrelay_state")
    }
}
