//! Data that relays stumble over.

use std::collections::HashMap;

use walrelay_testkit::{Committed, Db, eventually};

use crate::context::{Context, Ragged};
use crate::outcome::Outcome;
use crate::rig::PATIENCE;

/// One transaction of so many rows, with a key's numbers in their order.
fn bulk(rows: u32, aggregate: &str) -> String {
    let each = rows / 100;
    format!(
        "INSERT INTO outbox SELECT gen_random_uuid(), '{aggregate}', 'bulk-' || k, 'T', \
         jsonb_build_object('number', n, 'text', repeat('x', 100)) \
         FROM generate_series(1, {each}) n, generate_series(0, 99) k"
    )
}

/// A large transaction amid the others.
pub(crate) fn large_transaction(ctx: &mut Context, rows: u32) -> Outcome {
    ctx.patience = 5 * PATIENCE;
    ctx.outbox();
    let relay = ctx.relay();
    let load = ctx.load();
    ctx.more(&load, 200..400);
    ctx.db().batch(&bulk(rows, "bulk"));
    ctx.struck();
    ctx.over();
    ctx.more(&load, 500..1_000);
    load.stop();
    let outcome = ctx.judge(Ragged::No);
    let memory = relay.peak_memory();
    outcome
        .expect(memory < 128, || format!("{memory} MiB resident"))
        .nothing_repeated()
}

/// Two of them at once.
pub(crate) fn two_large_transactions(ctx: &mut Context, rows: u32) -> Outcome {
    ctx.patience = 5 * PATIENCE;
    ctx.outbox();
    let relay = ctx.relay();
    let load = ctx.load();
    ctx.more(&load, 200..400);
    std::thread::scope(|scope| {
        for aggregate in ["bulk", "other"] {
            let db = ctx.db();
            let sql = bulk(rows, aggregate);
            scope.spawn(move || db.batch(&sql));
        }
    });
    ctx.struck();
    ctx.over();
    ctx.more(&load, 500..1_000);
    load.stop();
    let outcome = ctx.judge(Ragged::No);
    let memory = relay.peak_memory();
    outcome
        .expect(memory < 128, || format!("{memory} MiB resident"))
        .nothing_repeated()
}

/// UPDATE, DELETE and TRUNCATE of the outbox, with a publication that carries them all: no events, and
/// what was inserted arrives though it is gone from the table.
pub(crate) fn changed_and_truncated(ctx: &mut Context) -> Outcome {
    ctx.outbox();
    let relay = ctx.relay();
    let db = ctx.db();
    db.batch(&format!(
        "ALTER PUBLICATION {} SET (publish = 'insert, update, delete, truncate')",
        ctx.name
    ));
    let load = ctx.load();
    for _ in 0..3 {
        ctx.more(&load, 100..500);
        db.batch("UPDATE outbox SET aggregateid = 'another', payload = NULL WHERE id::text < '4'");
        db.batch("DELETE FROM outbox WHERE id::text > 'a'");
        ctx.more(&load, 100..200);
        db.batch("TRUNCATE outbox");
        ctx.struck();
        ctx.over();
    }
    ctx.more(&load, 200..300);
    load.stop();
    ctx.caught_up();
    let committed = ctx.committed_by_the_log();
    let outcome = ctx.judge_rows(&committed, Ragged::No);
    relay.ends_well();
    outcome.nothing_repeated()
}

/// Columns come, go, change names and types under load. A column that the relay needs and that is
/// renamed stops it with a word.
pub(crate) fn columns_changed(ctx: &mut Context) -> Outcome {
    ctx.outbox();
    let mut relay = ctx.relay();
    let db = ctx.db();
    let load = ctx.load();
    for change in [
        "ADD COLUMN extra int",
        "ADD COLUMN more text NOT NULL DEFAULT 'more'",
        "RENAME COLUMN extra TO renamed",
        "ALTER COLUMN renamed TYPE bigint",
        "ALTER COLUMN aggregateid TYPE text",
        "ALTER COLUMN payload TYPE json USING payload::json",
        "DROP COLUMN renamed",
    ] {
        ctx.more(&load, 100..300);
        db.batch(&format!("ALTER TABLE outbox {change}"));
        ctx.struck();
        ctx.over();
    }
    ctx.more(&load, 200..300);
    load.stop();
    let outcome = ctx.judge(Ragged::No);
    db.batch("ALTER TABLE outbox RENAME aggregatetype TO kind");
    db.batch("INSERT INTO outbox VALUES (gen_random_uuid(), 'order', 'k', 'T', '{}')");
    let after = ctx.slot().wal_end();
    let code = relay.ended().code();
    let log = relay.log();
    let confirmed = ctx.slot().read().expect("the slot").confirmed_flush;
    outcome
        .nothing_repeated()
        .expect(code == Some(78), || format!("exit code {code:?}: {log}"))
        .expect(log.contains("[column-missing]"), || log.clone())
        .expect(confirmed < after, || "the row was confirmed".to_owned())
}

/// An outbox in which all may be NULL but the id and the topic.
const LOOSE: &str = "CREATE TABLE outbox (id uuid PRIMARY KEY, aggregatetype text NOT NULL, \
     aggregateid text, type text, payload text)";

/// What the table holds must be what the log has: the judge's own reading is checked too.
fn same_as_table(ctx: &Context, committed: &[Committed], table: &str) {
    let rows = ctx
        .db()
        .query(&format!("SELECT id::text, payload FROM {table}"), &[]);
    let payloads: HashMap<String, Option<&str>> =
        rows.iter().map(|row| (row.get(0), row.get(1))).collect();
    assert_eq!(payloads.len(), committed.len());
    for row in committed {
        let payload = row
            .payload
            .as_deref()
            .map(|bytes| std::str::from_utf8(bytes).expect("text"));
        assert_eq!(payloads[&row.id], payload, "row {}", row.id);
    }
}

/// NULL keys and payloads, payloads that are compressed or stored out of line, empty ones, logical
/// messages inside and outside of transactions, prepared transactions, and savepoints, from four
/// writers at once.
pub(crate) fn odd_rows(ctx: &mut Context) -> Outcome {
    ctx.database();
    let db = ctx.db();
    db.batch(LOOSE);
    db.batch("ALTER TABLE outbox ALTER COLUMN payload SET STORAGE EXTENDED");
    ctx.watch(&["outbox"], false);
    let relay = ctx.relay();
    let insert = "INSERT INTO outbox SELECT gen_random_uuid(),";
    std::thread::scope(|scope| {
        for writer in 0..4 {
            let db = ctx.db();
            let mut rng = ctx.rng.fork();
            scope.spawn(move || {
                for round in 0..60 {
                    let key = format!("'w{writer}-{}'", rng.u32(..5));
                    let topic = ["'order'", "'payment'"][rng.usize(..2)];
                    let size = rng.u32(3_000..200_000);
                    let name = format!("p{writer}_{round}");
                    let sql = match rng.u32(..10) {
                        0 => format!("{insert} {topic}, NULL, 'T', 'no key'"),
                        1 => format!("{insert} {topic}, {key}, NULL, NULL"),
                        2 => format!("{insert} {topic}, {key}, 'T', ''"),
                        // Compressed in line, or out of line.
                        3 => format!("{insert} {topic}, {key}, 'T', repeat('compressible ', {size} / 13)"),
                        // Random: out of line as it is.
                        4 => format!(
                            "{insert} {topic}, {key}, 'T', string_agg(md5(n::text || random()), '') \
                             FROM generate_series(1, {size} / 32) n"
                        ),
                        5 => format!(
                            "BEGIN; {insert} {topic}, {key}, 'T', 'before'; \
                             SELECT pg_logical_emit_message(true, 'walrelay', 'inside'); \
                             SELECT pg_logical_emit_message(false, 'walrelay', 'outside'); \
                             {insert} {topic}, {key}, 'T', 'behind'; COMMIT"
                        ),
                        6 => format!(
                            "BEGIN; {insert} {topic}, {key}, 'T', 'prepared'; \
                             PREPARE TRANSACTION '{name}'; \
                             {insert} {topic}, 'other-{writer}', 'T', 'between'; \
                             COMMIT PREPARED '{name}'"
                        ),
                        7 => format!(
                            "BEGIN; {insert} {topic}, {key}, 'T', 'undone'; \
                             PREPARE TRANSACTION '{name}'; ROLLBACK PREPARED '{name}'"
                        ),
                        8 => format!(
                            "BEGIN; {insert} {topic}, {key}, 'T', 'kept'; SAVEPOINT a; \
                             {insert} {topic}, {key}, 'T', 'undone'; SAVEPOINT b; \
                             {insert} {topic}, {key}, 'T', 'undone'; ROLLBACK TO a; \
                             {insert} {topic}, {key}, 'T', 'kept too'; COMMIT"
                        ),
                        _ => "SELECT pg_logical_emit_message(false, 'walrelay', 'alone')".to_owned(),
                    };
                    // PREPARE and its like may not stand in one message with others.
                    for statement in sql.split("; ") {
                        db.batch(statement);
                    }
                }
            });
        }
    });
    ctx.caught_up();
    let committed = ctx.committed_by_the_log();
    same_as_table(ctx, &committed, "outbox");
    let outcome = ctx.judge_rows(&committed, Ragged::No);
    relay.ends_well();
    let rows = outcome.committed;
    outcome
        .nothing_repeated()
        .expect(rows > 150, || format!("{rows} rows only"))
}

/// Payloads that are no text arrive in base64, which consumers can turn back. (Debezium's `StringConverter` writes the
/// address of an object: docs/MIGRATING-FROM-DEBEZIUM.md, `bytes-as-text`.)
pub(crate) fn bytea_payload(ctx: &mut Context) -> Outcome {
    const ROWS: usize = 40;
    ctx.database();
    let db = ctx.db();
    db.batch(&LOOSE.replace("payload text", "payload bytea"));
    ctx.watch(&["outbox"], false);
    let relay = ctx.relay();
    let every = (0..=255_u8).fold(String::new(), |hex, byte| format!("{hex}{byte:02x}"));
    db.batch(&format!(
        "INSERT INTO outbox SELECT gen_random_uuid(), 'order', 'k' || n % 5, 'T', \
         decode(repeat('{every}', n), 'hex') FROM generate_series(1, {ROWS}) n"
    ));
    ctx.caught_up();
    let mut committed = ctx.committed_by_the_log();
    // By Postgres' own words, which breaks the lines of what is long.
    let rows = db.query(
        "SELECT id::text, replace(encode(payload, 'base64'), E'\\n', '') FROM outbox",
        &[],
    );
    let mut encoded: HashMap<String, String> =
        rows.iter().map(|row| (row.get(0), row.get(1))).collect();
    assert_eq!(encoded.len(), committed.len());
    for row in &mut committed {
        row.payload = encoded.remove(&row.id).map(String::into_bytes);
        assert!(row.payload.is_some(), "row {}", row.id);
    }
    let outcome = ctx.judge_rows(&committed, Ragged::No);
    relay.ends_well();
    let rows = outcome.committed;
    outcome
        .nothing_repeated()
        .expect(rows == ROWS, || format!("{rows} rows"))
}

const PARTITIONED: &str = "CREATE TABLE outbox (id uuid, aggregatetype varchar(255) NOT NULL, \
     aggregateid varchar(255) NOT NULL, type varchar(255) NOT NULL, payload jsonb, \
     PRIMARY KEY (id)) PARTITION BY HASH (id); \
     CREATE TABLE outbox_0 PARTITION OF outbox FOR VALUES WITH (MODULUS 2, REMAINDER 0); \
     CREATE TABLE outbox_1 PARTITION OF outbox FOR VALUES WITH (MODULUS 2, REMAINDER 1)";

/// A partitioned outbox: under its root's name, and under the names of its partitions.
pub(crate) fn partitioned(ctx: &mut Context, via_root: bool) -> Outcome {
    ctx.database();
    let db = ctx.db();
    db.batch(PARTITIONED);
    ctx.workload().create_tables();
    ctx.watch(&["outbox"], via_root);
    let mut config = ctx.config();
    if !via_root {
        db.batch(&format!(
            "CREATE PUBLICATION {} FOR TABLE outbox WITH (publish = 'insert')",
            ctx.name
        ));
        db.batch(&format!(
            "SELECT pg_create_logical_replication_slot('{}', 'pgoutput')",
            ctx.name
        ));
        config.tables = vec!["public.outbox_0".to_owned(), "public.outbox_1".to_owned()];
    }
    let relay = ctx.start(&config);
    relay.streaming();
    let load = ctx.load();
    ctx.more(&load, 2_000..2_500);
    load.stop();
    let outcome = ctx.judge(Ragged::No);
    relay.ends_well();
    outcome.nothing_repeated()
}

/// Two outbox tables in one publication, written to at once.
pub(crate) fn two_tables(ctx: &mut Context) -> Outcome {
    ctx.database();
    let (first, second) = (
        ctx.workload(),
        ctx.workload()
            .table("public.outbox2")
            .aggregate_types(&["invoice", "shipment"])
            .rate(700.0)
            .seed(ctx.rng.u64(..)),
    );
    first.create_tables();
    second.create_tables();
    ctx.watch(&["outbox", "outbox2"], false);
    let mut config = ctx.config();
    config.tables.push("public.outbox2".to_owned());
    let relay = ctx.start(&config);
    relay.streaming();
    let (load, other) = (ctx.load(), second.start());
    ctx.more(&load, 2_000..2_500);
    eventually(PATIENCE, || other.written().rows > 500);
    load.stop();
    other.stop();
    ctx.caught_up();
    let mut committed =
        walrelay_testkit::History::committed(&ctx.url(), "public.outbox", &ctx.prefix);
    committed.extend(walrelay_testkit::History::committed(
        &ctx.url(),
        "public.outbox2",
        &ctx.prefix,
    ));
    let outcome = ctx.judge_rows(&committed, Ragged::No);
    relay.ends_well();
    outcome.nothing_repeated()
}

/// A row of 64 MB between small ones, through a topic and a relay that allow it.
pub(crate) fn row_of_64_mb(ctx: &mut Context) -> Outcome {
    ctx.database();
    let db = ctx.db();
    db.batch(LOOSE);
    ctx.watch(&["outbox"], false);
    let topic = format!("{}order", ctx.prefix);
    ctx.kafka
        .create_topic(&topic, 1, &[("max.message.bytes", "80000000")]);
    let config = ctx.config().kafka("\"message.max.bytes\" = 80000000");
    let relay = ctx.start(&config);
    relay.streaming();
    let small = |db: &Db, n: u32| {
        db.batch(&format!(
            "INSERT INTO outbox VALUES (gen_random_uuid(), 'order', 'k', 'T', 'small {n}')"
        ));
    };
    (0..5).for_each(|n| small(&db, n));
    db.batch(
        "INSERT INTO outbox VALUES (gen_random_uuid(), 'order', 'k', 'T', \
         repeat('64 MB é', 8388608))",
    );
    (5..10).for_each(|n| small(&db, n));
    ctx.caught_up();
    let committed = ctx.committed_by_the_log();
    same_as_table(ctx, &committed, "outbox");
    let largest = committed.iter().filter_map(|row| row.payload.as_ref());
    let largest = largest.map(Vec::len).max();
    let outcome = ctx.judge_rows(&committed, Ragged::No);
    let memory = relay.peak_memory();
    println!("        row-of-64-mb: {largest:?} bytes, {memory} MiB resident at most");
    outcome
        .expect(largest >= Some(64 << 20), || {
            "it is not that large".to_owned()
        })
        .expect(memory < 512, || format!("{memory} MiB resident"))
}
