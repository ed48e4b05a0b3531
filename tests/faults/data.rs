//! Unusual data and changes of the outbox table.

use std::collections::HashMap;

use walrelay_testkit::{Committed, Db, eventually};

use crate::context::{Context, Ragged};
use crate::outcome::Outcome;
use crate::rig::{PATIENCE, create_slot};

/// A transaction of `rows` rows over a hundred keys, with the numbers of each key in order.
fn bulk(rows: u32, aggregate: &str) -> String {
    let each = rows / 100;
    format!(
        "INSERT INTO outbox SELECT gen_random_uuid(), '{aggregate}', 'bulk-' || k, 'T', \
         jsonb_build_object('number', n, 'text', repeat('x', 100)) \
         FROM generate_series(1, {each}) n, generate_series(0, 99) k"
    )
}

/// One large transaction for each of these aggregate types, concurrently and amid a load.
pub(crate) fn large_transactions(ctx: &mut Context, aggregates: &[&str], rows: u32) -> Outcome {
    ctx.outbox();
    let relay = ctx.relay();
    let load = ctx.load();
    ctx.wait_rows(&load, 200..400);
    std::thread::scope(|scope| {
        for aggregate in aggregates {
            let db = ctx.db();
            let sql = bulk(rows, aggregate);
            scope.spawn(move || db.batch(&sql));
        }
    });
    ctx.fault_now();
    ctx.wait_rows(&load, 500..1_000);
    load.stop();
    let outcome = ctx.judge(Ragged::No);
    let memory = relay.peak_memory();
    outcome
        .expect(memory < 128, || format!("{memory} MiB resident"))
        .nothing_repeated()
}

/// UPDATE, DELETE and TRUNCATE of the outbox, with a publication that contains them all: they are
/// no events, and inserted rows arrive though they are gone from the table.
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
        ctx.wait_rows(&load, 100..500);
        db.batch("UPDATE outbox SET aggregateid = 'another', payload = NULL WHERE id::text < '4'");
        db.batch("DELETE FROM outbox WHERE id::text > 'a'");
        ctx.wait_rows(&load, 100..200);
        db.batch("TRUNCATE outbox");
        ctx.fault_now();
    }
    ctx.wait_rows(&load, 200..300);
    load.stop();
    ctx.caught_up();
    let committed = ctx.committed_by_the_log();
    let outcome = ctx.judge_rows(&committed, Ragged::No);
    relay.ends_well();
    outcome.nothing_repeated()
}

/// Columns are added, dropped, renamed and retyped under load. When a column that the relay needs
/// is renamed, the relay stops with an error.
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
        ctx.wait_rows(&load, 100..300);
        db.batch(&format!("ALTER TABLE outbox {change}"));
        ctx.fault_now();
    }
    ctx.wait_rows(&load, 200..300);
    load.stop();
    let outcome = ctx.judge(Ragged::No);
    db.batch("ALTER TABLE outbox RENAME aggregatetype TO kind");
    db.batch("INSERT INTO outbox VALUES (gen_random_uuid(), 'order', 'k', 'T', '{}')");
    let after = ctx.slot().wal_end();
    let code = relay.ended().code();
    let log = relay.log();
    let confirmed = ctx.slot().confirmed();
    outcome
        .nothing_repeated()
        .expect(code == Some(78), || format!("exit code {code:?}: {log}"))
        .expect(log.contains("\"column-missing\""), || log.clone())
        .expect(confirmed < after, || "the row was confirmed".to_owned())
}

/// An outbox in which only id and topic are NOT NULL.
const LOOSE: &str = "CREATE TABLE outbox (id uuid PRIMARY KEY, aggregatetype text NOT NULL, \
     aggregateid text, type text, payload text)";

/// Compares the rows from the WAL with those of the table, which checks the test's own decoding.
fn same_as_table(ctx: &Context, committed: &[Committed], table: &str) {
    let sql = format!("SELECT id::text, payload FROM {table}");
    let rows = ctx.db().query(&sql, &[]);
    let payloads: HashMap<String, Option<&str>> =
        rows.iter().map(|row| (row.get(0), row.get(1))).collect();
    assert_eq!(payloads.len(), committed.len());
    for row in committed {
        let expected = payloads[&row.id].map(str::as_bytes);
        assert_eq!(expected, row.payload.as_deref(), "row {}", row.id);
    }
}

/// NULL keys and payloads, payloads that are compressed or out of line, empty payloads, logical
/// messages inside and outside of transactions, prepared transactions, and savepoints, from four
/// concurrent writers.
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
                        // Compressed, in line or out of line.
                        3 => format!("{insert} {topic}, {key}, 'T', repeat('compressible ', {size} / 13)"),
                        // Random: out of line, not compressed.
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
                    // PREPARE TRANSACTION and the like must be sent as single statements.
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

/// Payloads that are not text arrive in base64, which consumers can decode. (Debezium's
/// `StringConverter` writes the address of an object: docs/start/debezium.md,
/// `bytes-as-text`.)
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
    // Expected values from Postgres' own `encode`, which wraps long lines.
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

/// A partitioned outbox, under the name of its root or under those of its partitions.
pub(crate) fn partitioned(ctx: &mut Context, via_root: bool) -> Outcome {
    ctx.database();
    let db = ctx.db();
    db.batch(PARTITIONED);
    ctx.workload().create_tables();
    ctx.watch(&["outbox"], via_root);
    let mut config = ctx.config();
    if !via_root {
        ctx.create_publication();
        create_slot(&db, &ctx.name);
        config = config.set("source.tables = [\"public.outbox_0\", \"public.outbox_1\"]");
    }
    let relay = ctx.streaming(&config);
    let load = ctx.load();
    ctx.wait_rows(&load, 2_000..2_500);
    load.stop();
    let outcome = ctx.judge(Ragged::No);
    relay.ends_well();
    outcome.nothing_repeated()
}

/// Two outbox tables in one publication, written concurrently.
pub(crate) fn two_tables(ctx: &mut Context) -> Outcome {
    ctx.database();
    let seed = ctx.rng.u64(..);
    let second = ctx.workload().table("public.outbox2");
    let second = second.aggregate_types(&["invoice", "shipment"]);
    let second = second.rate(700.0).seed(seed);
    ctx.workload().create_tables();
    second.create_tables();
    ctx.watch(&["outbox", "outbox2"], false);
    let tables = "source.tables = [\"public.outbox\", \"public.outbox2\"]";
    let relay = ctx.streaming(&ctx.config().set(tables));
    let (load, other) = (ctx.load(), second.start());
    ctx.wait_rows(&load, 2_000..2_500);
    eventually(PATIENCE, || other.written().rows > 500);
    load.stop();
    other.stop();
    ctx.caught_up();
    let committed = [ctx.committed("outbox"), ctx.committed("outbox2")].concat();
    let outcome = ctx.judge_rows(&committed, Ragged::No);
    relay.ends_well();
    outcome.nothing_repeated()
}

/// A row of 64 MB between small rows, with a topic and a relay that allow it.
pub(crate) fn row_of_64_mb(ctx: &mut Context) -> Outcome {
    ctx.database();
    let db = ctx.db();
    db.batch(LOOSE);
    ctx.watch(&["outbox"], false);
    let topic = format!("{}order", ctx.prefix);
    ctx.kafka()
        .create_topic(&topic, 1, &[("max.message.bytes", "80000000")]);
    let config = ctx
        .config()
        .set("sink.kafka.\"message.max.bytes\" = 80000000");
    let relay = ctx.streaming(&config);
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
