//! Postgres 19: at its default, `wal_level = replica`, the relay's slot switches logical decoding on; and statements and
//! settings that it has brought. These tests run where [`servers::installed_postgres_with`] finds a Postgres 19, and say so where it finds none.

use walrelay_testkit::{Db, History, Standby, eventually, servers};
use walrelay_throwaway::{Postgres, Shutdown, Signal};

use crate::check::Checked;
use crate::docs::block;
use crate::old_rows::{self, PRUNE, UNMARKED, count};
use crate::rig::{
    NOWHERE, PATIENCE, Rig, SLOT, assert_has, assert_lacks, done, edit, ends, insert, output_with,
};

const ITEM: &str = "postgres/wal-level";

fn postgres_19(settings: &[(&str, &str)]) -> Option<Postgres> {
    servers::installed_postgres_with(19, settings)
}

/// Returns the result of the query that the manual shows.
fn effective_level(db: &Db) -> Option<String> {
    db.text(&block("docs/operate/postgres.md", "effective-wal-level"))
}

fn decodes(db: &Db) -> bool {
    effective_level(db).as_deref() == Some("logical")
}

#[test]
fn an_older_server_has_no_effective_level() {
    let rig = Rig::without_broker(18);
    assert_eq!(effective_level(&rig.db()), None);
}

/// From the first `check` over `init`, `run`, SIGKILL and a restart of the server to a dropped slot.
#[test]
fn postgres_19_decodes_while_a_slot_exists() {
    let Some(postgres) = postgres_19(&[("wal_level", "replica")]) else {
        return;
    };
    let rig = Rig::on(postgres).outbox();
    let config = rig.config();
    let first = Checked::run(&config, &[]);
    first.passes(ITEM, &["the first logical slot", "without a restart"]);
    assert_eq!(effective_level(&rig.db()).as_deref(), Some("replica"));

    let created = done(&output_with("init", &config, &[]));
    assert_has(&created, &["created publication", "created slot"]);
    assert!(decodes(&rig.db()));
    let checked = Checked::run(&config, &[]);
    checked.warns(ITEM, &["ALTER SYSTEM SET wal_level = 'logical'"]);
    checked.nothing_fails("postgres");
    checked.ends(0);

    let relay = rig.streaming(&config);
    insert(&rig.db(), 1);
    rig.caught_up();
    relay.kill();
    insert(&rig.db(), 2);
    rig.back_up();
    eventually(PATIENCE, || Db::try_connect(&rig.postgres.url()).is_ok());
    assert!(decodes(&rig.db()), "after a restart of the server");
    let relay = rig.streaming(&config);
    rig.caught_up();
    relay.ends_well();
    rig.verdict().assert_clean();
    let before = rig.records(2).len();

    // The checkpointer switches it off, some time after the drop.
    let db = rig.db();
    db.batch(&format!("SELECT pg_drop_replication_slot('{SLOT}')"));
    eventually(PATIENCE, || !decodes(&db));
    let checked = Checked::run(&config, &[]);
    checked.passes(ITEM, &["without a restart"]);
    checked.fails("postgres/slot", &["[slot-missing]"]);
    let log = ends(&mut rig.start(&config), 78, "slot-missing");
    assert_lacks(&log, &["wal_level"]);
    let relay = rig.start_with(&config, &["--accept-gap"]);
    relay.streaming();
    assert!(decodes(&db));
    insert(&db, 3);
    rig.caught_up();
    relay.ends_well();
    rig.verdict().assert_clean();
    assert_eq!(rig.records(3).len(), before + 1);
}

#[test]
fn check_passes_without_a_warning_if_postgres_19_always_decodes() {
    let Some(postgres) = postgres_19(&[]) else {
        return;
    };
    let rig = Rig::with(postgres, NOWHERE).outbox();
    let checked = || Checked::run(&rig.config(), &["--set", "sink.kind=stdout"]);
    let item = checked().passes(ITEM, &["logical"]).clone();
    rig.create_slot();
    assert_eq!(checked().passes(ITEM, &[]), &item);
}

#[test]
fn the_lowest_wal_level_is_refused() {
    let settings = [("wal_level", "minimal"), ("max_wal_senders", "0")];
    let Some(postgres) = postgres_19(&settings) else {
        return;
    };
    let rig = Rig::with(postgres, NOWHERE).outbox();
    let config = rig.config();
    let words = ["[wal-level]", "needs replica or logical", "ALTER SYSTEM"];
    Checked::run(&config, &[]).fails(ITEM, &words);
    for command in ["init", "run"] {
        let output = output_with(command, &config, &[]);
        assert_has(&crate::rig::refused(&output, 78, &words), &["minimal"]);
    }
}

/// `REPACK (CONCURRENTLY)` has a slot of its own, and gives each row another place while the relay marks it.
#[test]
fn rows_of_an_outbox_that_is_repacked_are_sent_and_marked_once() {
    let Some(postgres) = postgres_19(&[]) else {
        return;
    };
    let rig = Rig::on(postgres).outbox();
    let db = rig.db();
    db.batch(
        "ALTER TABLE outbox ADD sent_at timestamptz, \
         ADD created_at timestamptz DEFAULT now() - interval '2 days'",
    );
    let config = old_rows::config(&rig, "\n[prune]\n");
    let relay = rig.streaming(&config);
    let load = rig.workload().rate(500.0).seed(3).start();
    for round in 1..=5 {
        eventually(PATIENCE, || load.written().rows >= 200 * round);
        db.batch("REPACK (CONCURRENTLY) outbox");
    }
    load.stop();
    rig.caught_up();
    eventually(PATIENCE, || count(&db, UNMARKED) == 0);
    rig.verdict().assert_nothing_repeated();
    relay.ends_well();
    done(&output_with("prune", &config, &PRUNE));
    assert_eq!(count(&db, "outbox"), 0);
}

/// The server does not wait for a relay that confirms nothing.
#[test]
fn a_shutdown_that_gives_the_relay_up_loses_nothing() {
    let Some(postgres) = postgres_19(&[("wal_sender_shutdown_timeout", "1s")]) else {
        return;
    };
    let rig = Rig::on(postgres).outbox();
    let relay = rig.streaming(&rig.config());
    insert(&rig.db(), 1);
    rig.caught_up();
    relay.signal(Signal::Stop);
    insert(&rig.db(), 2);
    rig.postgres.stop(Shutdown::Fast).expect("it stops");
    rig.postgres.start_again().expect("it starts");
    relay.signal(Signal::Cont);
    insert(&rig.db(), 3);
    rig.caught_up();
    relay.ends_well();
    rig.verdict().assert_clean();
    assert_eq!(rig.records(3).len(), 3);
}

/// A publication may also have sequences, and leave tables out: the relay gets the outbox.
#[test]
fn a_publication_of_all_tables_but_one_and_of_sequences_carries_the_outbox() {
    let Some(postgres) = postgres_19(&[]) else {
        return;
    };
    let rig = Rig::on(postgres).outbox();
    let db = rig.db();
    db.batch(
        "CREATE TABLE other (id serial PRIMARY KEY); DROP PUBLICATION IF EXISTS walrelay; \
         CREATE PUBLICATION walrelay FOR ALL TABLES EXCEPT (TABLE other, outbox_keys), ALL SEQUENCES WITH (publish = 'insert')",
    );
    let config = rig.config();
    done(&output_with("init", &config, &[]));
    let relay = rig.streaming(&config);
    for number in 0..3 {
        db.batch("INSERT INTO other DEFAULT VALUES; SELECT nextval('other_id_seq')");
        insert(&db, number);
    }
    rig.caught_up();
    Checked::run(&config, &[]).nothing_fails("postgres");
    rig.verdict().assert_clean();
    assert_eq!(rig.records(3).len(), 3);
    relay.ends_well();
}

/// The primary dies, and the relay continues from the copy of its slot on the promoted standby.
#[test]
fn a_relay_continues_from_a_synchronised_slot_after_a_promotion() {
    let Some(postgres) = postgres_19(&[]) else {
        return;
    };
    let rig = Rig::on(postgres).outbox();
    let set = rig
        .postgres
        .change_setting("synchronized_standby_slots", Standby::NAME);
    set.expect("a setting is written");
    // The primary starts again meanwhile.
    let standby = Standby::start(
        &rig.postgres,
        &[
            ("sync_replication_slots", "on"),
            // The standby has no standby of its own, and would wait for one after its promotion.
            ("synchronized_standby_slots", ""),
        ],
    );
    let config = rig.config_with(&standby.url_of_both(&rig.postgres, "postgres"), "");
    edit(&config, "[source]\n", "[source]\nfailover = true\n");
    let header = "[router]\nposition_header = \"walrelay-position\"\n\n[router.debezium]";
    edit(&config, "[router.debezium]", header);
    done(&output_with("init", &config, &[]));
    let relay = rig.streaming(&config);
    for number in 0..20 {
        insert(&rig.db(), number);
    }
    rig.caught_up();
    standby.wait_slot_synced(SLOT);
    Checked::run(&config, &[]).passes("postgres/standby-copy", &["has a copy of slot walrelay"]);
    for number in 20..40 {
        insert(&rig.db(), number);
    }
    // Delivered, so the standby has them, and its copy of the slot may be behind.
    rig.records(40);
    rig.postgres.kill().expect("it is killed");
    standby.promote();
    let promoted = Db::connect(&standby.server.url());
    for number in 40..60 {
        insert(&promoted, number);
    }
    let url = standby.server.url();
    let history = History::collect(&url, "public.outbox", &rig.bootstrap, &rig.prefix, PATIENCE);
    let verdict = history.check();
    verdict.assert_clean_but_for_ragged();
    assert_eq!(verdict.committed, 60, "{verdict}");
    let position = |number: u32| {
        let of = format!("\"number\": {number}}}");
        let is_it = |payload: &[u8]| String::from_utf8_lossy(payload).contains(&of);
        let mut found = history.records.iter();
        let found = found.find(|record| record.payload.as_deref().is_some_and(is_it));
        let found = found.and_then(|record| record.header("walrelay-position"));
        found.expect("a position").to_owned()
    };
    let positions: Vec<String> = (0..60).map(position).collect();
    assert!(positions.is_sorted(), "{positions:?}");
    relay.ends_well();
}

/// The recipe: a consumer waits until a standby has the row of an event.
#[test]
fn a_consumer_waits_for_the_row_of_an_event_on_a_standby() {
    let Some(postgres) = postgres_19(&[]) else {
        return;
    };
    let rig = Rig::on(postgres).outbox();
    let standby = Standby::start(&rig.postgres, &[]);
    let config = rig.config();
    let header = "[router]\nposition_header = \"walrelay-position\"\n\n[router.debezium]";
    edit(&config, "[router.debezium]", header);
    let relay = rig.streaming(&config);
    let here = Db::connect(&standby.server.url());
    here.batch("SELECT pg_wal_replay_pause()");
    insert(&rig.db(), 0);
    let records = rig.records(1);
    let position = records
        .first()
        .and_then(|record| record.header("walrelay-position"))
        .expect("a position");
    let recipe = block("docs/how-to/recipes.md", "recipe-wait-for-row");
    let recipe = recipe.replace("00000000016B3748/0000000C", position);
    let (convert, wait) = recipe.split_once(";\n").expect("two statements");
    let lsn = here.text(&format!("SELECT ({convert})::text"));
    let lsn = lsn.expect("a position");
    let wait = wait.replace("0/16B3749", &lsn);
    let rows = || here.value::<i64>("SELECT count(*) FROM outbox");
    let unavailable = here.try_batch(&wait.replace("10s", "100ms"));
    let error = unavailable.expect_err("it is not replayed");
    assert_has(&format!("{error:?}"), &["timed out"]);
    assert_eq!(rows(), 0);
    here.batch("SELECT pg_wal_replay_resume()");
    here.batch(&wait);
    assert_eq!(rows(), 1);
    relay.ends_well();
}
