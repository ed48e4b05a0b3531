//! Postgres 19: at its default, `wal_level = replica`, the relay's slot switches logical decoding on; and statements and
//! settings that it has brought. These tests run where [`servers::installed_postgres_with`] finds a Postgres 19, and say so where it finds none.

use walrelay_testkit::{Db, eventually, servers};
use walrelay_throwaway::{Postgres, Shutdown, Signal};

use crate::check::Checked;
use crate::docs::block;
use crate::old_rows::{self, PRUNE, UNMARKED, count};
use crate::rig::{
    NOWHERE, PATIENCE, Rig, SLOT, assert_has, assert_lacks, done, ends, insert, output_with,
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
