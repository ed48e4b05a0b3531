//! The log does not show that a publication was changed. A relay notes what it carried, and stops with the
//! range in which rows may be left out until somebody accepts it.

use std::path::Path;

use walrelay_lsn::Lsn;
use walrelay_testkit::Db;

use crate::rig::{
    Rig, assert_has, create_slot, done, ends, insert, insert_of, lsn_of, output_with, refused,
};

const CHANGED: &str = "publication-changed";
const FILTER: &str = "ALTER PUBLICATION walrelay SET TABLE outbox WHERE (aggregateid = 'mine')";
/// The number that a former version noted of a publication without row filters.
const FORMER: i64 = 8_203_414_616_412_130_826;
const NO_INSERT: &str = "ALTER PUBLICATION walrelay SET (publish = 'update')";
const INSERT: &str = "ALTER PUBLICATION walrelay SET (publish = 'insert')";
const RECREATED: &str = "DROP PUBLICATION walrelay; CREATE PUBLICATION walrelay FOR TABLE outbox WITH (publish = 'insert')";
const NO_FILTER: &str = "ALTER PUBLICATION walrelay SET TABLE outbox";

/// Returns the range of an error.
#[track_caller]
fn range(log: &str) -> (Lsn, Lsn) {
    let (_, range) = log.split_once("were committed from ").expect("a range");
    let (from, rest) = range.split_once(" to ").expect("its end");
    (lsn_of(from), lsn_of(rest))
}

fn position(db: &Db) -> Lsn {
    lsn_of(&db.value::<String>("SELECT pg_current_wal_insert_lsn()::text"))
}

/// Asserts that a start and `check` name a range with this position, until a start accepts it once.
#[track_caller]
fn stops_until_accepted(rig: &Rig, config: &Path, at: Lsn) {
    for _ in 0..2 {
        let (from, to) = range(&ends(&mut rig.start(config), 78, CHANGED));
        assert!(from <= at && at <= to, "{from} {at} {to}");
    }
    let checked = output_with("check", config, &[]);
    refused(
        &checked,
        78,
        &["publication-rows", "[publication-changed]", "--accept-gap"],
    );
    let relay = rig.start_with(config, &["--accept-gap"]);
    relay.says("accepted by --accept-gap");
    relay.streaming();
    relay.ends_well();
    let relay = rig.streaming(config);
    insert(&rig.db(), 99);
    rig.caught_up();
    relay.ends_well();
}

/// Runs a relay while this statement changes the publication. The relay ends with `id`. Then the
/// publication is repaired.
#[track_caller]
fn changed_under_a_relay(major: u32, change: &str, id: &str, repair: &str) {
    changed_and_undone_under_a_relay(major, change, "", id, repair);
}

/// As [`changed_under_a_relay`], and this statement undoes the change before the relay looks.
#[track_caller]
fn changed_and_undone_under_a_relay(major: u32, change: &str, undo: &str, id: &str, repair: &str) {
    let rig = Rig::with_outbox(major);
    let config = rig.config();
    let mut relay = rig.streaming(&config);
    let db = rig.db();
    insert(&db, 1);
    rig.caught_up();
    db.batch(change);
    let at = position(&db);
    insert(&db, 2);
    db.batch(undo);
    let log = ends(&mut relay, 78, id);
    let (from, to) = match id {
        CHANGED => range(&log),
        _ => (at, at),
    };
    assert!(from <= at && at <= to, "{from} {at} {to}");
    db.batch(repair);
    stops_until_accepted(&rig, &config, at);
}

#[test]
fn a_row_filter_that_is_set_under_a_relay_stops_it() {
    changed_under_a_relay(15, FILTER, CHANGED, NO_FILTER);
}

#[test]
fn a_publication_that_is_made_anew_under_a_relay_stops_it() {
    changed_under_a_relay(18, RECREATED, CHANGED, "");
}

#[test]
fn a_table_that_was_taken_out_and_put_back_is_named() {
    let out = "ALTER PUBLICATION walrelay DROP TABLE outbox";
    let back = "ALTER PUBLICATION walrelay ADD TABLE outbox";
    changed_under_a_relay(17, out, "publication-lacks-table", back);
}

/// The publication keeps the former table, and nothing publishes the new one of the same name.
#[test]
fn a_table_that_is_exchanged_under_a_relay_stops_it() {
    let exchange = "BEGIN; ALTER TABLE outbox RENAME TO outbox_old; CREATE TABLE outbox (LIKE outbox_old INCLUDING ALL); \
                    COMMIT";
    let repair = "ALTER PUBLICATION walrelay SET TABLE outbox";
    changed_under_a_relay(16, exchange, "publication-lacks-table", repair);
}

#[test]
fn inserts_that_were_not_published_for_a_while_are_named() {
    changed_under_a_relay(14, NO_INSERT, "publication-without-insert", INSERT);
}

/// Each look finds the publication as it was.
#[test]
fn a_change_that_is_undone_between_two_looks_is_named() {
    let out = "ALTER PUBLICATION walrelay DROP TABLE outbox";
    let back = "ALTER PUBLICATION walrelay ADD TABLE outbox";
    changed_and_undone_under_a_relay(14, out, back, CHANGED, "");
    changed_and_undone_under_a_relay(18, FILTER, NO_FILTER, CHANGED, "");
    changed_and_undone_under_a_relay(16, NO_INSERT, INSERT, CHANGED, "");
}

/// The filter stays: it is what the user wants, and is accepted once.
#[test]
fn a_row_filter_that_is_set_while_no_relay_runs_stops_the_start() {
    let rig = Rig::with_outbox(18);
    let config = rig.config();
    let relay = rig.streaming(&config);
    let db = rig.db();
    insert(&db, 1);
    rig.caught_up();
    relay.kill();
    db.batch(FILTER);
    let at = position(&db);
    insert(&db, 2);
    let log = ends(&mut rig.start(&config), 78, CHANGED);
    assert_has(
        &log,
        &[
            "and carries only the rows of public.outbox for which",
            "ALTER PUBLICATION",
        ],
    );
    stops_until_accepted(&rig, &config, at);
}

/// Changes a publication while no relay runs, writes a row that it leaves out, and undoes the change. The next start
/// names the row.
#[track_caller]
fn undone_while_no_relay_runs(major: u32, change: &str, undo: &str) {
    let rig = Rig::with_outbox(major);
    let config = rig.config();
    let relay = rig.streaming(&config);
    let db = rig.db();
    insert(&db, 1);
    rig.caught_up();
    relay.ends_well();
    db.batch(change);
    let at = position(&db);
    insert(&db, 2);
    db.batch(undo);
    stops_until_accepted(&rig, &config, at);
}

tests! {
    fn a_row_filter_that_is_removed_again_while_no_relay_runs_is_named() {
        undone_while_no_relay_runs(18, FILTER, NO_FILTER)
    }
    fn a_table_that_is_put_back_while_no_relay_runs_is_named() {
        undone_while_no_relay_runs(
            14,
            "ALTER PUBLICATION walrelay DROP TABLE outbox",
            "ALTER PUBLICATION walrelay ADD TABLE outbox",
        )
    }
    fn inserts_that_are_published_again_while_no_relay_runs_are_named_on_14() { undone_while_no_relay_runs(14, NO_INSERT, INSERT) }
    fn inserts_that_are_published_again_while_no_relay_runs_are_named_on_18() { undone_while_no_relay_runs(18, NO_INSERT, INSERT) }
    /// What `VACUUM` freezes keeps its number.
    fn inserts_that_are_published_again_are_named_after_a_freeze_on_14() { undone_and_frozen(14) }
    fn inserts_that_are_published_again_are_named_after_a_freeze_on_18() { undone_and_frozen(18) }
    fn a_publication_that_is_recreated_at_once_while_no_relay_runs_is_named() {
        undone_while_no_relay_runs(18, RECREATED, "")
    }
    fn a_publication_that_is_recreated_while_no_relay_runs_is_named_on_15() { recreated_after_a_row(15) }
    fn a_publication_that_is_recreated_while_no_relay_runs_is_named_on_18() { recreated_after_a_row(18) }
}

/// A relay passes over a table that the publication carried before the outbox; then it is an outbox, too, and no more.
#[track_caller]
fn another_table_becomes_an_outbox(major: u32) {
    let rig = Rig::with_outbox(major);
    let db = rig.db();
    db.batch(
        "CREATE TABLE earlier (LIKE outbox INCLUDING ALL); \
         CREATE PUBLICATION walrelay FOR TABLE earlier, outbox WITH (publish = 'insert')",
    );
    create_slot(&db, "walrelay");
    let config = rig.config();
    let passed = ["--pass-over", "public.earlier"];
    let both = ["--set=source.tables=[\"public.outbox\", \"public.earlier\"]"];
    for (number, arguments) in (1..).zip([&passed[..], &both, &passed]) {
        let relay = rig.start_with(&config, arguments);
        relay.streaming();
        insert(&db, number);
        rig.caught_up();
        relay.ends_well();
    }
    db.batch("ALTER PUBLICATION walrelay DROP TABLE earlier");
    ends(
        &mut rig.start_with(&config, &["--set=source.tables=[\"public.earlier\"]"]),
        78,
        "publication-lacks-table",
    );
    let relay = rig.streaming(&config);
    rig.caught_up();
    relay.ends_well();
    assert_eq!(rig.records(3).len(), 3);
    db.batch("ALTER PUBLICATION walrelay ADD TABLE earlier");
    let exchanged = [
        "--set=source.tables=[\"public.earlier\"]",
        "--pass-over",
        "public.outbox",
    ];
    ends(&mut rig.start_with(&config, &exchanged), 78, CHANGED);
}

tests! {
    fn a_table_that_was_published_all_along_becomes_an_outbox_on_14() { another_table_becomes_an_outbox(14) }
    fn a_table_that_was_published_all_along_becomes_an_outbox_on_18() { another_table_becomes_an_outbox(18) }
}

/// Creates a partitioned table with one partition, the publication of it, and the slot.
fn partitioned(major: u32, root: &str, partition: &str, options: &str) -> Rig {
    let rig = Rig::new(major);
    let db = rig.db();
    db.batch(&format!(
        "CREATE TABLE {root} (id uuid, aggregatetype text NOT NULL, aggregateid text NOT NULL, type text NOT NULL, \
         payload jsonb) PARTITION BY LIST (aggregatetype); \
         CREATE TABLE {partition} PARTITION OF {root} FOR VALUES IN ('order'); \
         CREATE PUBLICATION walrelay FOR TABLE {root} WITH (publish = 'insert'{options})"
    ));
    create_slot(&db, "walrelay");
    rig
}

/// Partitions are published under their own names for a while, which the relay does not take: no row is left out.
#[track_caller]
fn published_by_partitions(major: u32) {
    let by_root = ", publish_via_partition_root = true";
    let rig = partitioned(major, "outbox", "outbox_order", by_root);
    let db = rig.db();
    let config = rig.config();
    let by_root = |is: bool| {
        db.batch(&format!(
            "ALTER PUBLICATION walrelay SET (publish_via_partition_root = {is})"
        ));
    };
    let relay = rig.streaming(&config);
    insert(&db, 1);
    rig.caught_up();
    relay.ends_well();
    by_root(false);
    insert(&db, 2);
    ends(&mut rig.start(&config), 78, "publication-lacks-table");
    by_root(true);
    insert(&db, 3);
    let mut relay = rig.streaming(&config);
    rig.caught_up();
    // Under a relay.
    by_root(false);
    insert(&db, 4);
    ends(&mut relay, 78, "publication-lacks-table");
    by_root(true);
    insert(&db, 5);
    let relay = rig.streaming(&config);
    rig.caught_up();
    relay.ends_well();
    assert_eq!(rig.records(5).len(), 5);
    // Its entry is another one then.
    db.batch("ALTER PUBLICATION walrelay DROP TABLE outbox");
    by_root(false);
    let at = position(&db);
    insert(&db, 6);
    db.batch("ALTER PUBLICATION walrelay ADD TABLE outbox");
    by_root(true);
    let (from, to) = range(&ends(&mut rig.start(&config), 78, CHANGED));
    assert!(from <= at && at <= to, "{from} {at} {to}");
}

tests! {
    fn rows_that_are_published_by_partitions_for_a_while_are_not_left_out_on_14() { published_by_partitions(14) }
    fn rows_that_are_published_by_partitions_for_a_while_are_not_left_out_on_18() { published_by_partitions(18) }
}

/// A partition is the outbox, and its root is published.
#[track_caller]
fn a_root_is_put_back(major: u32) {
    let rig = partitioned(major, "roots", "outbox", "");
    let db = rig.db();
    let config = rig.config();
    for change in [
        "SELECT",
        // The partition keeps an entry all the time.
        "ALTER PUBLICATION walrelay ADD TABLE outbox",
    ] {
        rig.streaming(&config).ends_well();
        db.batch(change);
    }
    rig.streaming(&config).ends_well();
    db.batch(
        "ALTER PUBLICATION walrelay DROP TABLE roots; ALTER PUBLICATION walrelay ADD TABLE roots",
    );
    rig.streaming(&config).ends_well();
    db.batch("ALTER PUBLICATION walrelay DROP TABLE outbox");
    ends(&mut rig.start(&config), 78, CHANGED);
}

tests! {
    fn the_entry_of_a_root_carries_an_outbox_on_14() { a_root_is_put_back(14) }
    fn the_entry_of_a_root_carries_an_outbox_on_18() { a_root_is_put_back(18) }
}

#[test]
fn a_schema_that_is_put_back_while_no_relay_runs_is_named() {
    let rig = Rig::with_outbox(18);
    let db = rig.db();
    db.batch("DROP TABLE outbox_keys");
    db.batch("CREATE PUBLICATION walrelay FOR TABLES IN SCHEMA public WITH (publish = 'insert')");
    create_slot(&db, "walrelay");
    let config = rig.config();
    rig.streaming(&config).ends_well();
    db.batch("ALTER PUBLICATION walrelay DROP TABLES IN SCHEMA public");
    let at = position(&db);
    insert(&db, 1);
    db.batch("ALTER PUBLICATION walrelay ADD TABLES IN SCHEMA public");
    stops_until_accepted(&rig, &config, at);
    // A relay, or a start, has seen both.
    db.batch("ALTER PUBLICATION walrelay ADD TABLE outbox");
    rig.streaming(&config).ends_well();
    db.batch("ALTER PUBLICATION walrelay DROP TABLES IN SCHEMA public");
    rig.streaming(&config).ends_well();
}

/// The catalogs do not tell `SET TABLE` with another list from a table that was put back with it.
#[test]
fn another_column_list_while_no_relay_runs_is_named() {
    let all = "id, aggregatetype, aggregateid, type, payload";
    undone_while_no_relay_runs(
        18,
        "ALTER PUBLICATION walrelay DROP TABLE outbox",
        &format!("ALTER PUBLICATION walrelay ADD TABLE outbox ({all})"),
    );
}

/// The server does not print the filter of a locked table.
#[test]
fn a_row_filter_of_a_locked_table_stops_the_start() {
    let rig = Rig::with_outbox(18);
    let config = rig.config();
    rig.streaming(&config).ends_well();
    let db = rig.db();
    db.batch(FILTER);
    let locking = rig.db();
    locking.batch("BEGIN; LOCK TABLE outbox");
    let log = ends(&mut rig.start(&config), 78, CHANGED);
    assert_has(&log, &["not shown while the table is locked"]);
    locking.batch("ROLLBACK");
    db.batch(NO_FILTER);
    ends(&mut rig.start(&config), 78, CHANGED);
}

fn undone_and_frozen(major: u32) {
    let freeze = "VACUUM FREEZE pg_publication";
    let rig = Rig::with_outbox(major);
    let config = rig.config();
    let db = rig.db();
    rig.streaming(&config).ends_well();
    // No change.
    for change in [freeze, "VACUUM FULL pg_publication"] {
        db.batch(change);
        rig.streaming(&config).ends_well();
    }
    db.batch(NO_INSERT);
    let at = position(&db);
    insert(&db, 2);
    db.batch(INSERT);
    db.batch(freeze);
    db.batch("VACUUM FULL pg_publication");
    stops_until_accepted(&rig, &config, at);
}

/// A start finds it, and it is repaired before the next one.
#[test]
fn inserts_that_are_not_published_at_a_start_are_named_after_their_repair() {
    let rig = Rig::with_outbox(18);
    let config = rig.config();
    rig.streaming(&config).ends_well();
    let db = rig.db();
    db.batch("ALTER PUBLICATION walrelay SET (publish = 'update')");
    let at = position(&db);
    insert(&db, 1);
    ends(&mut rig.start(&config), 78, "publication-without-insert");
    // Also if more is published than before.
    db.batch("ALTER PUBLICATION walrelay SET (publish = 'insert, truncate')");
    stops_until_accepted(&rig, &config, at);
}

/// A change that is still there explains itself.
#[test]
fn a_change_of_the_row_that_lasts_stops_no_start() {
    let rig = Rig::with_outbox(18);
    let config = rig.config();
    rig.streaming(&config).ends_well();
    let db = rig.db();
    for change in [
        "CREATE ROLE other SUPERUSER; ALTER PUBLICATION walrelay OWNER TO other",
        "ALTER PUBLICATION walrelay SET (publish = 'insert, truncate')",
        "ALTER PUBLICATION walrelay SET (publish = 'insert')",
        "COMMENT ON PUBLICATION walrelay IS 'events'",
    ] {
        db.batch(change);
        rig.streaming(&config).ends_well();
    }
}

/// A row was written while there was no publication: after the gap is accepted, the slot has to pass over the row.
#[track_caller]
fn recreated_after_a_row(major: u32) {
    let rig = Rig::with_outbox(major);
    let config = rig.config();
    rig.streaming(&config).ends_well();
    let db = rig.db();
    db.batch("DROP PUBLICATION walrelay");
    let at = position(&db);
    insert(&db, 1);
    db.batch("CREATE PUBLICATION walrelay FOR TABLE outbox WITH (publish = 'insert')");
    let (from, to) = range(&ends(&mut rig.start(&config), 78, CHANGED));
    assert!(from <= at && at <= to, "{from} {at} {to}");
    let mut accepting = rig.start_with(&config, &["--accept-gap"]);
    ends(&mut accepting, 78, "publication-not-yet");
    done(&output_with(
        "slots advance walrelay --to now",
        &config,
        &["--yes"],
    ));
    let relay = rig.streaming(&config);
    insert(&db, 2);
    rig.caught_up();
    relay.ends_well();
}

/// The former version noted the filters only. Its note is accepted once, and then replaced.
#[test]
fn the_note_of_a_former_version_is_accepted_and_replaced() {
    let rig = Rig::with_outbox(17);
    let config = rig.config();
    rig.streaming(&config).ends_well();
    let db = rig.db();
    let noted = "SELECT last_value FROM walrelay_state.\"publication:walrelay\"";
    let number: i64 = db.value(noted);
    // The number of no filters.
    db.batch(&format!(
        "SELECT setval('walrelay_state.\"publication:walrelay\"', {FORMER})"
    ));
    rig.streaming(&config).ends_well();
    assert_eq!(db.value::<i64>(noted), number);
    assert_ne!(number, FORMER);
}

/// Another publication's filter, and a table beside the outbox, are no matter of the relay's.
#[test]
fn other_changes_stop_no_relay() {
    let rig = Rig::with_outbox(16);
    let config = rig.config();
    let relay = rig.streaming(&config);
    let db = rig.db();
    db.batch(
        "CREATE PUBLICATION other FOR TABLE outbox WHERE (aggregateid = 'mine'); \
         ALTER PUBLICATION walrelay SET (publish = 'insert, truncate'); ALTER PUBLICATION walrelay OWNER TO CURRENT_USER",
    );
    insert(&db, 1);
    rig.caught_up();
    relay.ends_well();
    let relay = rig.streaming(&config);
    relay.ends_well();
}

/// The role may write nothing, so the change cannot be noted: the relay stops all the same. An outbox that
/// is renamed is carried all the time.
#[test]
fn a_change_that_cannot_be_noted_stops_the_relay() {
    let rig = Rig::with_outbox(16);
    let config = rig.config();
    let mut relay = rig.streaming(&config);
    let db = rig.db();
    db.batch("DROP SEQUENCE walrelay_state.\"publication:walrelay\"; CREATE VIEW walrelay_state.\"publication:walrelay\" AS SELECT 1");
    db.batch(FILTER);
    ends(&mut relay, 78, CHANGED);
}

/// Sessions are read-only by default: the note is written all the same.
#[test]
fn a_change_is_noted_in_read_only_sessions() {
    let rig = Rig::with_outbox(15);
    let config = rig.config();
    rig.streaming(&config).ends_well();
    let db = rig.db();
    db.batch("ALTER DATABASE postgres SET default_transaction_read_only = on");
    let mut relay = rig.streaming(&config);
    db.batch(FILTER);
    ends(&mut relay, 78, CHANGED);
    db.batch(NO_FILTER);
    ends(&mut rig.start(&config), 78, CHANGED);
}

#[test]
fn an_outbox_that_is_renamed_under_a_relay_is_no_change_of_the_publication() {
    let rig = Rig::with_outbox(17);
    let config = rig.config();
    let mut relay = rig.streaming(&config);
    let db = rig.db();
    db.batch("ALTER TABLE outbox RENAME TO events");
    ends(&mut relay, 78, "table-missing");
    let relay = rig.start_with(&config, &["--set=source.tables=[\"public.events\"]"]);
    relay.streaming();
    relay.ends_well();
}

/// The position may be moved by the user's word, and what the publication left out is named after it.
#[test]
fn a_slot_that_is_advanced_forgets_no_change_of_the_publication() {
    let rig = Rig::with_outbox(18);
    let config = rig.config();
    rig.streaming(&config).ends_well();
    let db = rig.db();
    db.batch(FILTER);
    done(&output_with(
        "slots advance walrelay --to now",
        &config,
        &["--yes"],
    ));
    ends(&mut rig.start(&config), 78, CHANGED);
}

/// The remedy, to the letter. A row of the meantime lacks the column for ever, and is passed over and sent again.
#[test]
fn a_column_list_that_lacks_a_column_has_a_way_out() {
    for (rows, relayed) in [(0, 2), (1, 3)] {
        let rig = Rig::with_outbox(18);
        let config = rig.config();
        let relay = rig.streaming(&config);
        let db = rig.db();
        insert(&db, 1);
        rig.caught_up();
        relay.ends_well();
        db.batch(
            "ALTER PUBLICATION walrelay SET TABLE outbox (id, aggregatetype, aggregateid, type)",
        );
        for number in 0..rows {
            insert_of(&db, "order", "skipped", 2 + number);
        }
        let log = ends(&mut rig.start(&config), 78, "publication-lacks-column");
        let (_, sql) = log.split_once("run ALTER").expect("SQL");
        let (sql, then) = sql.split_once(" without a column list").expect("its end");
        assert_has(then, &["walrelay run --accept-gap", "column-missing"]);
        db.batch(&format!("ALTER{}", sql.replace("\\\"", "\"")));
        let mut relay = rig.start_with(&config, &["--accept-gap"]);
        if rows > 0 {
            let log = ends(&mut relay, 78, "column-missing");
            assert_has(&log, &["poison.unroutable=skip"]);
            relay = rig.start_with(&config, &["--set=poison.unroutable=skip"]);
        }
        relay.streaming();
        insert(&db, 9);
        rig.caught_up();
        if rows > 0 {
            let id: String = db.value("SELECT id::text FROM outbox WHERE aggregateid = 'skipped'");
            done(&output_with(
                &format!("resend --id {id} --yes"),
                &config,
                &[],
            ));
        }
        rig.finish(relay).assert_counts(relayed, 0);
    }
}

/// A script made the slot before the publication, and a row was written between the two.
fn made_after_the_slot(major: u32) {
    let rig = Rig::new(major).outbox();
    let db = rig.db();
    create_slot(&db, "walrelay");
    insert(&db, 1);
    db.batch("CREATE PUBLICATION walrelay FOR TABLE outbox WITH (publish = 'insert')");
    insert(&db, 2);
    let config = rig.config();
    let log = ends(&mut rig.start(&config), 78, "publication-not-yet");
    assert_has(&log, &["walrelay slots advance walrelay --to now"]);
    let checked = output_with("check", &config, &[]);
    refused(&checked, 78, &["waiting-rows", "[publication-not-yet]"]);
    // The remedy, to the letter.
    done(&output_with(
        "slots advance walrelay --to now",
        &config,
        &["--yes"],
    ));
    let relay = rig.streaming(&config);
    db.batch(
        "WITH again AS (DELETE FROM public.outbox WHERE true RETURNING *) INSERT INTO public.outbox SELECT * FROM again",
    );
    rig.caught_up();
    relay.ends_well();
    assert_eq!(rig.records(2).len(), 2);
}

tests! {
    fn a_publication_that_is_younger_than_the_slot_has_a_way_out_on_15() { made_after_the_slot(15) }
    fn a_publication_that_is_younger_than_the_slot_has_a_way_out_on_18() { made_after_the_slot(18) }
}
