//! DDL beside a snapshot: no row of a table that is rewritten or exchanged is left out, and a column
//! that is gone ends no relay.

use walrelay_testkit::{Background, Db, eventually};

use super::{INITIAL, config, rig};
use crate::rig::{PATIENCE, Relay, Rig};

/// Number of sessions that wait for such locks of `pg_locks`.
fn waiting(db: &Db, such: &str) -> i64 {
    db.value(&format!(
        "SELECT count(DISTINCT pid) FROM pg_locks WHERE NOT granted AND {such}"
    ))
}

/// A transaction that has written; the creation of a slot waits for it.
fn writer(db: &Db, table: &str) -> String {
    db.batch(&format!("BEGIN; CREATE TABLE {table} ()"));
    db.value("SELECT 'transactionid = ' || quote_literal(pg_current_xact_id()::xid::text)")
}

/// Runs `ddl` after the position at which the snapshot ends, and before the rows are read. `before`
/// prepares it.
fn between_position_and_rows(before: &str, ddl: &str) {
    let rig = rig(18);
    let written = rig.workload().rows(2_000).run();
    let watch = rig.db();
    watch.batch(before);
    // Postgres waits twice: for the transactions of the beginning, and for those that have begun
    // meanwhile. Later ones are behind the position.
    let [first, second, reader] = [(); 3].map(|()| rig.db());
    let of_first = writer(&first, "a");
    let relay = rig.start(&config(&rig, INITIAL));
    eventually(PATIENCE, || waiting(&watch, &of_first) == 1);
    let of_second = writer(&second, "b");
    first.batch("COMMIT");
    eventually(PATIENCE, || waiting(&watch, &of_second) == 1);
    // The DDL waits for a reader of the table, and the relay's reader waits behind the DDL.
    reader.batch("BEGIN; SELECT FROM outbox LIMIT 1");
    let (url, sql) = (rig.postgres.url(), ddl.to_owned());
    let ddl = Background::start("ddl", move |_| Db::connect(&url).batch(&sql));
    let on_table = "locktype = 'relation'";
    eventually(PATIENCE, || waiting(&watch, on_table) == 1);
    second.batch("COMMIT");
    eventually(PATIENCE, || waiting(&watch, on_table) == 2);
    reader.batch("COMMIT");
    ddl.end();
    relay.streaming();
    assert_complete(&rig, relay, written.rows);
}

#[track_caller]
fn assert_complete(rig: &Rig, relay: Relay, rows: u64) {
    relay.says("in a new snapshot");
    rig.workload().rows(100).seed(2).run();
    let verdict = rig.finish(relay);
    eprintln!("{verdict}");
    verdict.assert_clean_but_for_ragged();
    assert!(verdict.committed as u64 > rows);
}

tests! {
    fn rows_after_a_rewrite_are_read_in_a_new_snapshot() {
        between_position_and_rows("", "ALTER TABLE outbox ADD noise float DEFAULT random()")
    }
    fn rows_without_a_dropped_column_are_read_in_a_new_snapshot() {
        between_position_and_rows("ALTER TABLE outbox ADD note text", "ALTER TABLE outbox DROP note")
    }
    fn rows_with_a_renamed_column_are_read_in_a_new_snapshot() {
        between_position_and_rows(
            "ALTER TABLE outbox ADD note text",
            "ALTER TABLE outbox RENAME note TO remark",
        )
    }
    fn rows_after_an_exchange_are_read_in_a_new_snapshot() {
        between_position_and_rows(
            "CREATE TABLE copied (LIKE outbox INCLUDING ALL); INSERT INTO copied SELECT * FROM outbox",
            "ALTER TABLE outbox RENAME TO former; ALTER TABLE copied RENAME TO outbox; \
             ALTER PUBLICATION walrelay DROP TABLE former; ALTER PUBLICATION walrelay ADD TABLE outbox",
        )
    }
}
