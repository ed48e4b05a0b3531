//! Partitions of an outbox that is partitioned by time: confirmed ones go as a whole, the next ones come.

use std::path::Path;
use std::process::Output;
use std::thread;

use walrelay_testkit::{Db, History, Verdict, eventually};

use super::{MAY, rows};
use crate::rig::{PATIENCE, Rig, done, output_with, refused, said};

/// The workload writes into `outbox_old`, and `kept` keeps what it has written.
fn rig(major: u32) -> Rig {
    let rig = Rig::with_outbox(major);
    Db::connect(&rig.postgres.url()).batch(
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
    db.query(sql, &[]).iter().map(|row| row.get(0)).collect()
}

/// Whether the table is there, as a partition or detached.
fn there(db: &Db) -> bool {
    db.query("SELECT to_regclass('outbox_old') IS NOT NULL", &[])[0].get(0)
}

fn verdict(rig: &Rig) -> Verdict {
    let url = rig.postgres.url();
    History::collect(&url, "kept", &rig.bootstrap, &rig.prefix, PATIENCE).check()
}

/// While one row is not confirmed the partition stays; then it goes. The next ones are created meanwhile.
#[test]
fn a_partition_goes_once_all_of_it_is_confirmed() {
    let rig = rig(15);
    let db = Db::connect(&rig.postgres.url());
    let config = rig.config();
    let relay = rig.relay();
    rig.workload().rows(200).seed(1).run();
    rig.caught_up();
    relay.ends_well();
    // The relay is down: these rows are not confirmed.
    rig.workload().rows(100).seed(2).run();
    let written = rows(&db);

    let dry = done(&prune(&config, &["--dry-run"]));
    assert!(
        dry.contains("partition public.outbox_old is dropped, if its rows are confirmed"),
        "{dry}"
    );
    assert_eq!(dry.matches(" is created\n").count(), 4, "{dry}");
    assert_eq!(partitions(&db), ["outbox_old"]);
    refused(&prune(&config, &[]), 64, &["[prune-not-agreed]"]);
    refused(&prune(&config, &["--yes"]), 75, &["[prune-not-confirmed]"]);
    assert_eq!(rows(&db), written);
    let parts = partitions(&db);
    assert_eq!(parts.len(), 5, "{parts:?}");
    let midnight = "SELECT 'outbox_p' || to_char(now() AT TIME ZONE 'UTC', 'YYYYMMDD') IN \
                    (SELECT inhrelid::regclass::text FROM pg_inherits)";
    assert!(db.query(midnight, &[])[0].get::<_, bool>(0), "{parts:?}");

    // Detached, as by a relay that was killed then: it waits as well.
    db.batch("ALTER TABLE outbox DETACH PARTITION outbox_old");
    db.batch("COMMENT ON TABLE outbox_old IS 'walrelay has detached this from public.outbox, and drops it once its rows are confirmed'");
    refused(&prune(&config, &["--yes"]), 75, &["[prune-not-confirmed]"]);
    assert!(there(&db));

    let relay = rig.relay();
    let gone = done(&prune(&config, &["--yes"]));
    assert!(
        gone.contains("dropped partition public.outbox_old\n"),
        "{gone}"
    );
    assert!(!there(&db));
    let again = done(&prune(&config, &["--yes"]));
    assert_eq!(again, "deleted 0 rows in 0.0 s\n");
    // The new ones take rows, and those are relayed.
    db.batch("ALTER TABLE outbox ALTER created_at SET DEFAULT now() + interval '2 days'");
    rig.workload().rows(50).seed(3).run();
    verdict(&rig).assert_clean();
    relay.ends_well();
}

/// Somebody who writes into the old partition keeps it, and no writer waits for longer than the lock may be waited for.
#[test]
fn an_open_transaction_keeps_its_partition() {
    let rig = rig(18);
    let db = Db::connect(&rig.postgres.url());
    let config = rig.config();
    let relay = rig.relay();
    rig.workload().rows(200).seed(1).run();
    let writer = Db::connect(&rig.postgres.url());
    writer.batch(
        "BEGIN; INSERT INTO outbox SELECT gen_random_uuid(), aggregatetype, 'late', type, '{\"number\": 1}' FROM outbox LIMIT 1",
    );
    let short = ["--yes", "--set=prune.lock_timeout=300ms"];
    let config_of = config.clone();
    let tried = thread::spawn(move || prune(&config_of, &short));
    // Another one comes meanwhile: it waits no longer than the lock is waited for.
    db.batch("SET lock_timeout = '2s'");
    while !tried.is_finished() {
        db.batch("INSERT INTO outbox SELECT gen_random_uuid(), aggregatetype, gen_random_uuid()::text, type, '{\"number\": 1}' FROM outbox LIMIT 1");
    }
    refused(&tried.join().expect("an output"), 75, &["[prune-locked]"]);
    assert!(partitions(&db).contains(&"outbox_old".to_owned()));
    writer.batch("COMMIT");
    let gone = done(&prune(&config, &["--yes"]));
    assert!(
        gone.contains("dropped partition public.outbox_old\n"),
        "{gone}"
    );
    verdict(&rig).assert_clean();
    relay.ends_well();
}

/// The relay drops and creates while rows are written, and the log of a dropped partition can be read afterwards.
#[test]
fn a_relay_drops_partitions_whose_log_is_decoded_later() {
    let rig = rig(18);
    let db = Db::connect(&rig.postgres.url());
    let lines = "\n[prune]\nkeep = \"1s\"\nbefore_slot = true\npartition = \"24h\"\n";
    // Another slot, which nothing reads yet.
    db.batch("CREATE PUBLICATION walrelay FOR TABLE outbox WITH (publish = 'insert', publish_via_partition_root = true)");
    db.query(
        "SELECT pg_create_logical_replication_slot('late', 'pgoutput')",
        &[],
    );
    rig.workload().rows(500).seed(1).run();
    db.batch("ALTER TABLE outbox ALTER created_at SET DEFAULT now()");
    let first = done(&prune(&rig.config(), &["--dry-run"]));
    assert!(first.contains("outbox_old"), "{first}");
    db.query(
        "SELECT pg_copy_logical_replication_slot('late', 'walrelay')",
        &[],
    );
    let config = rig.config_with(&rig.postgres.url(), lines);
    let relay = rig.streaming(&config);
    eventually(PATIENCE, || partitions(&db).len() >= 4);
    let load = rig.workload().rate(500.0).seed(2).start();
    eventually(PATIENCE, || !there(&db));
    load.stop();
    rig.caught_up();
    verdict(&rig).assert_clean();
    relay.ends_well();

    let topics = format!("late-{}", rig.prefix);
    let replacement =
        format!("router.debezium.\"route.topic.replacement\"={topics}${{routedByValue}}");
    let set = ["--set", "source.slot=late", "--set", &replacement];
    let late = rig.start_with(&rig.config(), &set);
    late.streaming();
    let url = rig.postgres.url();
    History::collect(&url, "kept", &rig.bootstrap, &topics, PATIENCE)
        .check()
        .assert_clean();
    late.ends_well();
}

/// Each partition is created once, whoever comes first.
#[test]
fn several_create_partitions_at_once() {
    let rig = rig(15);
    let db = Db::connect(&rig.postgres.url());
    let config = rig.config();
    let keep = [
        "--keep=99999h",
        "--set=prune.partition=1h",
        "--set=prune.ahead=20",
        MAY,
    ];
    let all: Vec<_> = (0..4)
        .map(|_| {
            let config = config.clone();
            thread::spawn(move || done(&output_with("prune", &config, &keep)))
        })
        .collect();
    let all: Vec<String> = all
        .into_iter()
        .map(|one| one.join().expect("done"))
        .collect();
    let created: usize = all
        .iter()
        .map(|said| said.matches("created partition").count())
        .sum();
    assert_eq!(partitions(&db).len() - 1, created, "{all:?}");
    // One more, if an hour began meanwhile.
    assert!((21..=22).contains(&created), "{all:?}");
}

/// What cannot be created is named, and is in the way of nothing else.
#[test]
fn rows_in_the_default_partition_are_in_the_way_of_theirs_alone() {
    let rig = rig(15);
    let db = Db::connect(&rig.postgres.url());
    db.batch("CREATE TABLE outbox_rest PARTITION OF outbox DEFAULT");
    let config = rig.config();
    let relay = rig.relay();
    rig.workload().rows(100).seed(1).run();
    db.batch("INSERT INTO outbox SELECT gen_random_uuid(), aggregatetype, 'rest', type, payload, now() FROM outbox LIMIT 1");
    let output = prune(&config, &["--yes"]);
    refused(&output, 78, &["[prune-default-partition]"]);
    assert!(said(&output).contains("dropped partition public.outbox_old"));
    let parts = partitions(&db);
    assert_eq!(parts.len(), 4, "the default one and three more: {parts:?}");
    // Partitions of other lengths are in the way, too.
    let other = prune(&config, &["--yes", "--set=prune.partition=240h"]);
    refused(&other, 78, &["[prune-partition]"]);
    relay.ends_well();
}

/// What is committed while the partition is being detached is waited for, too.
#[test]
fn the_last_row_of_a_partition_is_waited_for() {
    let rig = rig(15);
    let db = Db::connect(&rig.postgres.url());
    let config = rig.config();
    let relay = rig.relay();
    rig.workload().rows(100).seed(1).run();
    let writer = Db::connect(&rig.postgres.url());
    writer.batch(
        "BEGIN; INSERT INTO outbox SELECT gen_random_uuid(), aggregatetype, 'last', type, '{\"number\": 1}' FROM outbox LIMIT 1",
    );
    let config_of = config.clone();
    let tried = thread::spawn(move || prune(&config_of, &["--yes", "--set=prune.lock_timeout=2m"]));
    eventually(PATIENCE, || {
        let sql = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%DETACH%'";
        db.query(sql, &[])[0].get::<_, i64>(0) == 1
    });
    // All else is confirmed by now. Nobody confirms the row that comes before the partition is detached.
    relay.ends_well();
    writer.batch("COMMIT");
    refused(
        &tried.join().expect("an output"),
        75,
        &["[prune-not-confirmed]"],
    );
    assert!(there(&db) && !partitions(&db).contains(&"outbox_old".to_owned()));
    let relay = rig.relay();
    let gone = done(&prune(&config, &["--yes"]));
    assert!(
        gone.contains("dropped partition public.outbox_old\n"),
        "{gone}"
    );
    verdict(&rig).assert_clean();
    relay.ends_well();
}
