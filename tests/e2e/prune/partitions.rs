//! An outbox that is partitioned by time: confirmed partitions are dropped as a whole, new ones are
//! created.

use std::path::Path;
use std::process::Output;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use walrelay_testkit::{Background, Db, History, Verdict, eventually};
use walrelay_throwaway::Signal;

use super::{MAY, NOTING, rows};
use crate::rig::{PATIENCE, Rig, assert_has, done, edit, output_with, refused};

/// An outbox whose workload goes to the partition `outbox_old`. The table `kept` keeps a copy of
/// every row.
fn rig(major: u32) -> Rig {
    let rig = Rig::with_outbox(major);
    rig.db().batch(
        "CREATE TABLE kept (LIKE outbox); DROP TABLE outbox; \
         CREATE TABLE outbox (LIKE kept, created_at timestamptz NOT NULL DEFAULT '2020-01-15', PRIMARY KEY (id, created_at)) \
         PARTITION BY RANGE (created_at); \
         CREATE TABLE outbox_old PARTITION OF outbox FOR VALUES FROM ('2020-01-01') TO ('2020-02-01'); \
         CREATE FUNCTION keep() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN INSERT INTO kept \
         VALUES (NEW.id, NEW.aggregatetype, NEW.aggregateid, NEW.type, NEW.payload); RETURN NULL; END$$; \
         CREATE TRIGGER keep AFTER INSERT ON outbox FOR EACH ROW EXECUTE FUNCTION keep()",
    );
    rig
}

fn prune(config: &Path, more: &[&str]) -> Output {
    let all = [&[MAY, "--keep=24h", "--set=prune.partition=24h"], more].concat();
    output_with("prune", config, &all)
}

fn partitions(db: &Db) -> Vec<String> {
    let sql = "SELECT inhrelid::regclass::text FROM pg_inherits WHERE inhparent = 'outbox'::regclass ORDER BY 1";
    db.column(sql, &[])
}

/// Asserts that `prune` drops the old partition.
#[track_caller]
fn drops_old(config: &Path) {
    let pruned = done(&prune(config, &["--yes"]));
    assert_has(&pruned, &["dropped partition public.outbox_old\n"]);
}

/// Opens a transaction that has inserted a row with this key into the old partition.
fn open_insert(rig: &Rig, key: &str) -> Db {
    let writer = rig.db();
    writer.batch(&format!(
        "BEGIN; INSERT INTO outbox SELECT gen_random_uuid(), aggregatetype, '{key}', type, \
         '{{\"number\": 1}}' FROM outbox LIMIT 1"
    ));
    writer
}

/// Prunes in a thread, to wait for it later.
fn spawn_prune(config: &Path, more: [&'static str; 2]) -> thread::JoinHandle<Output> {
    let config = config.to_owned();
    thread::spawn(move || prune(&config, &more))
}

/// Measures, until it is ended, by how much a `lock_timeout` of 300 ms comes too late on this
/// machine.
fn late_lock_timeouts(rig: &Rig) -> Background<Duration> {
    const TIMEOUT: Duration = Duration::from_millis(300);
    let (holder, waiter) = (rig.db(), rig.db());
    let sql = "SELECT pg_advisory_lock(1)";
    holder.batch(sql);
    waiter.batch("SET lock_timeout = '300ms'");
    Background::start("locks", move |stop| {
        let mut late = Duration::ZERO;
        while !stop.load(Ordering::Relaxed) {
            let begun = Instant::now();
            let waited = waiter.try_batch(sql);
            waited.expect_err("the lock is held");
            late = begun.elapsed().saturating_sub(TIMEOUT).max(late);
        }
        drop(holder);
        late
    })
}

/// Whether the table `outbox_old` exists, as a partition or detached.
fn there(db: &Db) -> bool {
    db.value("SELECT to_regclass('outbox_old') IS NOT NULL")
}

fn verdict(rig: &Rig, topics: &str) -> Verdict {
    let url = rig.postgres.url();
    History::collect(&url, "kept", &rig.bootstrap, topics, PATIENCE).check()
}

/// The partition stays while one row is not confirmed, then it is dropped. New partitions are
/// created meanwhile.
#[test]
fn a_partition_goes_once_all_of_it_is_confirmed() {
    let rig = rig(15);
    let db = rig.db();
    let config = rig.config_and(NOTING);
    let relay = rig.streaming(&config);
    rig.workload().rows(200).seed(1).run();
    rig.caught_up();
    relay.ends_well();
    // The relay is down: these rows are not confirmed.
    rig.workload().rows(100).seed(2).run();
    let written = rows(&db);

    let dry = done(&prune(&config, &["--dry-run"]));
    let parts = ["partition public.outbox_old stays: not all its rows count as sent"];
    assert_has(&dry, &parts);
    assert_eq!(dry.matches(" is created\n").count(), 4, "{dry}");
    assert_eq!(partitions(&db), ["outbox_old"]);
    refused(&prune(&config, &["--yes"]), 75, &["[prune-not-confirmed]"]);
    assert_eq!(rows(&db), written);
    let parts = partitions(&db);
    // One more if a new day has begun meanwhile.
    assert!((5..=6).contains(&parts.len()), "{parts:?}");
    let midnight = "SELECT 'outbox_p' || to_char(now() AT TIME ZONE 'UTC', 'YYYYMMDD') IN \
                    (SELECT inhrelid::regclass::text FROM pg_inherits)";
    assert!(db.value::<bool>(midnight), "{parts:?}");

    // A partition that is detached already, as by a relay that was killed at that moment, waits
    // too.
    db.batch("ALTER TABLE outbox DETACH PARTITION outbox_old");
    db.batch("COMMENT ON TABLE outbox_old IS 'walrelay has detached this from public.outbox, and drops it once its rows are confirmed'");
    refused(&prune(&config, &["--yes"]), 75, &["[prune-not-confirmed]"]);
    assert!(there(&db));

    let relay = rig.streaming(&config);
    drops_old(&config);
    assert!(!there(&db));
    let again = done(&prune(&config, &["--yes"]));
    let (deleted, took) = again.split_once(" in ").expect("a time");
    assert_eq!(deleted, "deleted 0 rows");
    let seconds = took.strip_suffix(" s\n").map(str::parse::<f64>);
    assert!(matches!(seconds, Some(Ok(_))), "{again:?}");
    // The new partitions take rows, which are relayed.
    db.batch("ALTER TABLE outbox ALTER created_at SET DEFAULT now() + interval '2 days'");
    rig.workload().rows(50).seed(3).run();
    verdict(&rig, &rig.prefix).assert_clean();
    relay.ends_well();
}

/// An open transaction that has written to the old partition keeps it, and no other writer waits
/// for longer than `lock_timeout`.
#[test]
fn an_open_transaction_keeps_its_partition() {
    let rig = rig(18);
    let db = rig.db();
    let config = rig.config_and(NOTING);
    let relay = rig.streaming(&config);
    rig.workload().rows(200).seed(1).run();
    db.batch("CREATE TABLE outbox_far PARTITION OF outbox FOR VALUES FROM ('2090-01-01') TO ('2091-01-01')");
    let writer = open_insert(&rig, "late");
    let late = late_lock_timeouts(&rig);
    rig.caught_up();
    let tried = spawn_prune(&config, ["--yes", "--set=prune.lock_timeout=300ms"]);
    // Another writer comes meanwhile: it waits no longer than the pruning waits for its lock.
    let mut longest = Duration::ZERO;
    while !tried.is_finished() {
        let begun = Instant::now();
        db.batch("INSERT INTO outbox SELECT gen_random_uuid(), aggregatetype, gen_random_uuid()::text, type, '{\"number\": 1}', '2090-01-15' FROM outbox LIMIT 1");
        longest = begun.elapsed().max(longest);
    }
    let limit = Duration::from_secs(2) + late.end();
    assert!(longest < limit, "{longest:?}, not {limit:?}");
    refused(&tried.join().expect("an output"), 75, &["[prune-locked]"]);
    assert!(partitions(&db).contains(&"outbox_old".to_owned()));
    writer.batch("COMMIT");
    drops_old(&config);
    verdict(&rig, &rig.prefix).assert_clean();
    relay.ends_well();
}

/// A relay is suspended while it waits for the lock of a detached partition. The server ends the transaction.
#[test]
fn a_suspended_relay_does_not_keep_a_partition_locked() {
    let rig = rig(17);
    let db = rig.db();
    let config = rig.config_and(NOTING);
    let relay = rig.streaming(&config);
    rig.workload().rows(20).seed(1).run();
    rig.caught_up();
    relay.ends_well();
    db.batch(
        "ALTER TABLE outbox DETACH PARTITION outbox_old; COMMENT ON TABLE outbox_old IS \
         'walrelay has detached this from public.outbox, and drops it once its rows are confirmed'",
    );
    let locker = rig.db();
    locker.batch("BEGIN; LOCK TABLE outbox_old IN ACCESS SHARE MODE");
    let keep = "[prune]\nkeep = \"1s\"\nlock_timeout = \"1h\"\n";
    edit(&config, "[prune]\n", keep);
    let relay = rig.streaming(&config);
    let waits =
        "SELECT FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE 'LOCK TABLE%'";
    eventually(PATIENCE, || !db.query(waits, &[]).is_empty());
    relay.signal(Signal::Stop);
    locker.batch("COMMIT");
    db.batch("SET lock_timeout = '20s'; SELECT count(*) FROM outbox_old; RESET lock_timeout");
    relay.signal(Signal::Cont);
    eventually(PATIENCE, || {
        db.text("SELECT to_regclass('outbox_old')::text").is_none()
    });
    relay.ends_well();
}

/// The relay drops and creates partitions while rows are written. The WAL of a dropped partition
/// can be decoded afterwards.
#[test]
fn a_relay_drops_partitions_whose_log_is_decoded_later() {
    let rig = rig(18);
    let db = rig.db();
    let lines = "\n[prune]\nkeep = \"1s\"\nbefore_slot = true\npartition = \"24h\"\n";
    // Another slot, which nobody reads yet.
    db.batch("CREATE PUBLICATION walrelay FOR TABLE outbox WITH (publish = 'insert', publish_via_partition_root = true)");
    db.query(
        "SELECT pg_create_logical_replication_slot('late', 'pgoutput')",
        &[],
    );
    rig.workload().rows(500).seed(1).run();
    db.batch("ALTER TABLE outbox ALTER created_at SET DEFAULT now()");
    db.query(
        "SELECT pg_copy_logical_replication_slot('late', 'walrelay')",
        &[],
    );
    let config = rig.config_and(lines);
    let relay = rig.streaming(&config);
    eventually(PATIENCE, || partitions(&db).len() >= 4);
    let load = rig.workload().rate(500.0).seed(2).start();
    eventually(PATIENCE, || !there(&db));
    load.stop();
    rig.caught_up();
    verdict(&rig, &rig.prefix).assert_clean();
    relay.ends_well();

    let topics = format!("late-{}", rig.prefix);
    let replacement =
        format!("router.debezium.\"route.topic.replacement\"={topics}${{routedByValue}}");
    let set = ["--set", "source.slot=late", "--set", &replacement];
    let late = rig.start_with(&rig.config(), &set);
    late.streaming();
    verdict(&rig, &topics).assert_clean();
    late.ends_well();
}

/// Concurrent processes create each partition once.
#[test]
fn several_create_partitions_at_once() {
    let rig = rig(15);
    let db = rig.db();
    let config = rig.config_and(NOTING);
    let keep = [
        "--keep=99999h",
        "--set=prune.partition=1h",
        "--set=prune.ahead=20",
        // Each waits for the others, however busy the machine is.
        "--set=prune.lock_timeout=60s",
        MAY,
    ];
    let all: Vec<_> = (0..4)
        .map(|_| {
            let config = config.clone();
            thread::spawn(move || done(&output_with("prune", &config, &keep)))
        })
        .collect();
    let all = all.into_iter().map(|one| one.join().expect("done"));
    let all: Vec<String> = all.collect();
    let created: usize = all
        .iter()
        .map(|said| said.matches("created partition").count())
        .sum();
    assert_eq!(partitions(&db).len() - 1, created, "{all:?}");
    // One more if a new hour has begun meanwhile.
    assert!((21..=22).contains(&created), "{all:?}");
}

/// A partition that cannot be created is named, and hinders no other.
#[test]
fn rows_in_the_default_partition_are_in_the_way_of_theirs_alone() {
    let rig = rig(15);
    let db = rig.db();
    db.batch("CREATE TABLE outbox_rest PARTITION OF outbox DEFAULT");
    let config = rig.config_and(NOTING);
    let relay = rig.streaming(&config);
    rig.workload().rows(100).seed(1).run();
    db.batch("INSERT INTO outbox SELECT gen_random_uuid(), aggregatetype, 'rest', type, payload, now() FROM outbox LIMIT 1");
    let words = [
        "[prune-default-partition]",
        "dropped partition public.outbox_old",
    ];
    refused(&prune(&config, &["--yes"]), 78, &words);
    let parts = partitions(&db);
    assert_eq!(parts.len(), 4, "the default one and three more: {parts:?}");
    // Partitions of other lengths are obstacles too.
    let other = prune(&config, &["--yes", "--set=prune.partition=240h"]);
    refused(&other, 78, &["[prune-partition]"]);
    relay.ends_well();
}

/// A row that is committed while the partition is being detached must be confirmed too.
#[test]
fn the_last_row_of_a_partition_is_waited_for() {
    let rig = rig(15);
    let db = rig.db();
    let config = rig.config_and(NOTING);
    let relay = rig.streaming(&config);
    rig.workload().rows(100).seed(1).run();
    let writer = open_insert(&rig, "last");
    let tried = spawn_prune(&config, ["--yes", "--set=prune.lock_timeout=2m"]);
    eventually(PATIENCE, || {
        let sql = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%DETACH%'";
        db.value::<i64>(sql) == 1
    });
    // Everything else is confirmed by now. The last row is committed before the partition is
    // detached, and nobody confirms it.
    relay.ends_well();
    writer.batch("COMMIT");
    let tried = tried.join().expect("an output");
    refused(&tried, 75, &["[prune-not-confirmed]"]);
    assert!(there(&db) && !partitions(&db).contains(&"outbox_old".to_owned()));
    // No relay would send what is written into it by its name.
    let late = db.try_batch("INSERT INTO outbox_old SELECT * FROM outbox_old LIMIT 1");
    let late = late.expect_err("the constraint forbids it");
    assert_has(&format!("{late:?}"), &["walrelay_detached"]);
    let relay = rig.streaming(&config);
    drops_old(&config);
    verdict(&rig, &rig.prefix).assert_clean();
    relay.ends_well();
}
