//! The figures of docs/trust/benchmarks.md, "Pruning": `cargo test -p walrelay --test e2e prune::million
//! -- --ignored --nocapture --test-threads=1`; `PRUNE_ROWS` is a million by default.

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{scope, sleep};
use std::time::{Duration, Instant};

use walrelay_testkit::{Db, millis_now, servers};
use walrelay_throwaway::Postgres;

use super::{MAY, NOTING};
use crate::endpoint::{LISTEN, address, latency_since};
use crate::rig::{Rig, done, output_with};

/// Rows per second that are written beside the pruning.
const RATE: u64 = 5_000;
const WRITERS: u64 = 4;
/// Rows per transaction: beside the pruning, and without other load.
const TOGETHER: u64 = 20;
const FEW: u64 = 5;
/// How long the relay is measured without pruning.
const BEFORE: Duration = Duration::from_secs(20);
const PARTS: u64 = 10;

fn rows() -> u64 {
    std::env::var("PRUNE_ROWS").map_or(1_000_000, |rows| rows.parse().expect("a number"))
}

/// A server that flushes its commits, and an outbox with old rows, partitioned or not.
fn rig(rows: u64, partitioned: bool) -> Rig {
    let mut rig = Rig::new(15);
    let builder = Postgres::builder().binaries(servers::binaries(15));
    rig.postgres = builder.start().expect("a server");
    let db = rig.db();
    let by = if partitioned {
        "PARTITION BY RANGE (created_at)"
    } else {
        ""
    };
    db.batch(&format!(
        "CREATE TABLE outbox (id uuid DEFAULT gen_random_uuid(), aggregatetype text, aggregateid text, type text, \
         payload jsonb, created_at timestamptz DEFAULT now(), PRIMARY KEY (created_at, id)) {by}"
    ));
    for part in 0..if partitioned { PARTS } else { 0 } {
        db.batch(&format!(
            "CREATE TABLE outbox_old_{part} PARTITION OF outbox FOR VALUES FROM ('2020-01-01 {part}:00:00') \
             TO ('2020-01-01 {}:00:00')",
            part + 1
        ));
    }
    if partitioned {
        db.batch("CREATE TABLE outbox_now PARTITION OF outbox FOR VALUES FROM ('2020-01-02') TO (MAXVALUE)");
    }
    let time = format!("'2020-01-01'::timestamptz + i % {PARTS} * interval '1 hour'");
    db.batch(&insert(rows, &time));
    db.batch("VACUUM ANALYZE outbox");
    rig
}

fn insert(rows: u64, time: &str) -> String {
    format!(
        "INSERT INTO outbox SELECT gen_random_uuid(), 'bulk', 'key-' || i % 5000, 'T', \
         jsonb_build_object('number', i, 'text', repeat('x', 200)), {time} FROM generate_series(1, {rows}) AS i"
    )
}

/// Size of table and indexes in MB, and number of dead rows.
fn size(db: &Db) -> String {
    let sql = "SELECT coalesce(sum(pg_table_size(relid)), 0)::float8 / 1e6, \
               coalesce(sum(pg_indexes_size(relid)), 0)::float8 / 1e6, \
               coalesce(sum(pg_stat_get_dead_tuples(relid)), 0)::int8 FROM pg_partition_tree('outbox') WHERE isleaf";
    let plain = "SELECT pg_table_size('outbox')::float8 / 1e6, pg_indexes_size('outbox')::float8 / 1e6, \
                 pg_stat_get_dead_tuples('outbox'::regclass)";
    let parts = "SELECT relkind = 'p' FROM pg_class WHERE oid = 'outbox'::regclass";
    let partitioned: bool = db.value(parts);
    // Other sessions report their statistics when they end, or up to a second later.
    sleep(Duration::from_millis(1500));
    let row = &db.query(if partitioned { sql } else { plain }, &[])[0];
    let (table, indexes, dead): (f64, f64, i64) = (row.get(0), row.get(1), row.get(2));
    format!("table {table:.1} MB, indexes {indexes:.1} MB, {dead} dead rows")
}

/// Prunes everything old; returns what the command said.
fn prune(config: &Path) -> String {
    done(&output_with("prune --keep=24h --yes", config, &[MAY]))
}

/// Prunes everything old while rows are written at [`RATE`].
fn while_streaming(rows: u64, partitioned: bool) {
    let what = if partitioned { "partitions" } else { "rows" };
    let rig = rig(rows, partitioned);
    let db = rig.db();
    let config = rig.config_and(&format!("{LISTEN}{NOTING}"));
    let relay = rig.streaming(&config);
    let address = address(&relay);
    eprintln!("{what}: before: {}", size(&db));
    let (stop, written) = (AtomicBool::new(false), AtomicU64::new(0));
    scope(|scope| {
        for _ in 0..WRITERS {
            scope.spawn(|| {
                let db = rig.db();
                let sql = insert(TOGETHER, "now()");
                let every = Duration::from_secs(1) * (TOGETHER * WRITERS) as u32 / RATE as u32;
                let mut next = Instant::now();
                while !stop.load(Ordering::Relaxed) {
                    db.batch(&sql);
                    written.fetch_add(TOGETHER, Ordering::Relaxed);
                    next += every;
                    sleep(next.saturating_duration_since(Instant::now()));
                }
            });
        }
        sleep(Duration::from_secs(5));
        let (since, begun) = (millis_now().unsigned_abs(), Instant::now());
        let first = written.load(Ordering::Relaxed);
        sleep(BEFORE);
        eprintln!("{what}: without pruning {}", latency_since(address, since));
        let since = millis_now().unsigned_abs();
        let pruned = prune(&config);
        eprintln!("{what}: {}", pruned.lines().last().unwrap_or_default());
        // Include the last second.
        sleep(Duration::from_secs(2));
        eprintln!("{what}: while pruning {}", latency_since(address, since));
        let rate = (written.load(Ordering::Relaxed) - first) as f64 / begun.elapsed().as_secs_f64();
        eprintln!("{what}: {rate:.0} rows/s were written");
        stop.store(true, Ordering::Relaxed);
    });
    rig.caught_up();
    eprintln!("{what}: after: {}", size(&db));
    db.batch("VACUUM outbox");
    eprintln!("{what}: after VACUUM: {}", size(&db));
    relay.ends_well();
}

/// WAL per row in bytes, and what remains of the table, without other load.
#[test]
#[ignore = "a minute: its figures are in docs/trust/benchmarks.md"]
fn wal_and_bloat_of_each_way() {
    let rows = rows() / 10;
    let wal = |rig: &Rig, what: &str, work: &mut dyn FnMut(&Db)| {
        let db = rig.db();
        let begin = db.insert_lsn();
        work(&db);
        let bytes = db.insert_lsn().bytes_since(begin) as f64 / rows as f64;
        eprintln!("{what}: {bytes:.0} bytes of WAL a row; {}", size(&db));
        db.batch("VACUUM outbox");
        eprintln!("{what}: after VACUUM: {}", size(&db));
    };
    let one_by_one = |db: &Db, delete: &str| {
        let body = insert(FEW, "now()");
        // The plan is made while the table is empty, so it would be a sequential scan.
        db.batch("SET enable_seqscan = off");
        db.batch(&format!(
            "DO $$BEGIN FOR n IN 1..{} LOOP {body}; {delete} COMMIT; END LOOP; END$$",
            rows / FEW
        ));
    };
    let empty = rig(0, false);
    wal(&empty, "insert and delete in one transaction", &mut |db| {
        one_by_one(db, "DELETE FROM outbox WHERE created_at = now();");
    });
    wal(&empty, "insert", &mut |db| one_by_one(db, ""));
    for (what, partitioned) in [("delete rows", false), ("drop partitions", true)] {
        let rig = rig(rows, partitioned);
        let config = rig.config_and(NOTING);
        let relay = rig.streaming(&config);
        wal(&rig, what, &mut |_| {
            prune(&config);
        });
        relay.ends_well();
    }
}

/// A million rows are pruned while 5,000 rows/s are written.
#[test]
#[ignore = "a million rows, minutes: its figures are in docs/trust/benchmarks.md"]
fn rows_are_pruned_beside_others() {
    while_streaming(rows(), false);
    while_streaming(rows(), true);
}
