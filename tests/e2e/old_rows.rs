//! Outboxes whose rows are old enough to be deleted, with a column for the mark, for tests of the rows
//! that are marked, deleted or kept.

use std::path::PathBuf;

use walrelay_testkit::{Db, eventually, millis_now};

use crate::rig::{PATIENCE, Relay, Rig, insert_of, unique, with_source};

/// The condition names the table, as a user may write it.
pub(crate) const MARK: &str = "snapshot = \"unsent\"\nsnapshot_where = \"outbox.sent_at IS NULL\"\nsnapshot_order = [\"created_at\"]\n\
                    mark_sent = \"sent_at = now()\"";
pub(crate) const PRUNE: [&str; 2] = ["--keep=24h", "--yes"];
pub(crate) const UNMARKED: &str = "outbox WHERE sent_at IS NULL";
pub(crate) const MARKED: &str = "outbox WHERE sent_at IS NOT NULL";

/// Rows from now on are so many days old, up to ten minutes more. Those of the next nine minutes are of the same ten
/// minutes, which are accounted for together.
pub(crate) fn set_age(db: &Db, days: u32) {
    let within = (millis_now() / 1000 - 60) % 600;
    db.batch(&format!(
        "ALTER TABLE outbox ALTER created_at SET DEFAULT now() - interval '{days} days {within} s'"
    ));
}

/// Creates an outbox whose rows are two days old. A row without `aggregatetype` becomes a dead letter.
pub(crate) fn rig(major: u32) -> Rig {
    let rig = Rig::with_outbox(major);
    rig.db().batch(
        "ALTER TABLE outbox ALTER aggregatetype DROP NOT NULL, ADD sent_at timestamptz, \
         ADD created_at timestamptz",
    );
    set_age(&rig.db(), 2);
    rig
}

/// Creates such an outbox, partitioned by time: its rows are in the partition of January 2020.
pub(crate) fn partitioned(major: u32) -> Rig {
    let rig = Rig::with_outbox(major);
    rig.db().batch(
        "DROP TABLE outbox; CREATE TABLE outbox (id uuid, aggregatetype text, aggregateid text NOT NULL, \
         type text NOT NULL, payload jsonb, created_at timestamptz NOT NULL DEFAULT '2020-01-15', sent_at timestamptz, \
         PRIMARY KEY (id, created_at)) PARTITION BY RANGE (created_at); \
         CREATE TABLE outbox_1 PARTITION OF outbox FOR VALUES FROM ('2020-01-01') TO ('2020-02-01')",
    );
    rig
}

/// Writes the configuration of a relay that marks rows.
pub(crate) fn config(rig: &Rig, more: &str) -> PathBuf {
    with_source(rig.config_and(more), MARK)
}

pub(crate) fn count(db: &Db, rows: &str) -> i64 {
    db.value(&format!("SELECT count(*) FROM {rows}"))
}

pub(crate) fn insert(db: &Db, rows: u32, key: &str) {
    for number in 1..=rows {
        insert_of(db, "order", key, number);
    }
}

/// Inserts a row. `kind`, `payload`: SQL.
pub(crate) fn insert_row(db: &Db, kind: &str, key: &str, payload: &str) {
    db.batch(&format!(
        "INSERT INTO outbox (id, aggregatetype, aggregateid, type, payload) \
         VALUES (gen_random_uuid(), {kind}, '{key}', 'T', {payload})"
    ));
}

#[track_caller]
pub(crate) fn wait_until_all_are_marked(db: &Db) {
    eventually(PATIENCE, || count(db, UNMARKED) == 0);
}

/// Changes rows in a transaction that the stream does not carry, which nothing shows later. The entry of the table in
/// the publication stays, and its owner is another one: a relay stops that sees another entry, or that something was
/// changed and undone.
pub(crate) fn unseen(db: &Db, change: impl FnOnce()) {
    db.batch("BEGIN; ALTER PUBLICATION walrelay SET (publish = 'truncate')");
    change();
    let owner = format!("owner{}", unique());
    db.batch(&format!(
        "ALTER PUBLICATION walrelay SET (publish = 'insert'); CREATE ROLE {owner} SUPERUSER; \
         ALTER PUBLICATION walrelay OWNER TO {owner}; COMMIT"
    ));
}

/// Starts a relay with a new configuration, and waits until it has marked rows of the key `before`.
pub(crate) fn marking(rig: &Rig, rows: u32) -> (PathBuf, Relay) {
    let config = config(rig, "");
    let relay = rig.streaming(&config);
    insert(&rig.db(), rows, "before");
    wait_until_all_are_marked(&rig.db());
    (config, relay)
}
