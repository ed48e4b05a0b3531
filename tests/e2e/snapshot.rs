//! `[source] snapshot`: the rows that are there before the slot are relayed once, and the stream goes on from there.

use std::collections::HashSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::Duration;

use fastrand::Rng;
use walrelay_testkit::{Db, eventually};

use crate::rig::{PATIENCE, Rig, SLOT, ends, insert};

/// A rig whose outbox has a column that orders its rows per key as they were committed.
fn rig(major: u32) -> Rig {
    let rig = Rig::with_outbox(major);
    // Given out while the writer holds the lock of its key.
    db(&rig).batch("ALTER TABLE outbox ADD seq bigserial; CREATE INDEX ON outbox (seq)");
    rig
}

fn db(rig: &Rig) -> Db {
    Db::connect(&rig.postgres.url())
}

/// A configuration with these lines in `[source]`.
fn config(rig: &Rig, lines: &str) -> PathBuf {
    of_source(&rig.config(), lines)
}

fn of_source(path: &Path, lines: &str) -> PathBuf {
    let text = fs::read_to_string(path).expect("it is there");
    let text = text.replace("[source]\n", &format!("[source]\n{lines}\n"));
    fs::write(path, text).expect("it is written");
    path.to_owned()
}

const INITIAL: &str = "snapshot = \"initial\"\nsnapshot_order = [\"seq\"]";

/// Rows of before, of meanwhile and of after arrive, each once and in order, while eight writers write.
fn undisturbed(major: u32) {
    let rig = rig(major);
    rig.workload().rows(5_000).seed(1).run();
    let load = rig.workload().rate(1_500.0).seed(2).start();
    eventually(PATIENCE, || load.written().rows > 500);
    let relay = rig.start(&config(&rig, INITIAL));
    relay.says("the snapshot is complete");
    relay.streaming();
    let next = load.written().rows + 1_000;
    eventually(PATIENCE, || load.written().rows >= next);
    load.stop();
    rig.caught_up();
    let verdict = rig.verdict();
    eprintln!("snapshot on Postgres {major}: {verdict}");
    verdict.assert_clean();
    assert_eq!(verdict.duplicates, 0, "an undisturbed run repeats nothing");
    let log = relay.ends_well();
    assert!(!log.contains("trying again"), "{log}");
    // The next start reads no rows again.
    let relay = rig.streaming(&config(&rig, INITIAL));
    assert!(!relay.log().contains("snapshot"), "{}", relay.log());
    let left = db(&rig).query(
        "SELECT slot_name::text FROM pg_replication_slots WHERE slot_name <> $1",
        &[&SLOT],
    );
    assert!(left.is_empty(), "the temporary slot is left");
}

#[test]
fn is_complete_and_repeats_nothing_on_postgres_15() {
    undisturbed(15);
}

#[test]
fn is_complete_and_repeats_nothing_on_postgres_17() {
    undisturbed(17);
}

#[test]
fn is_complete_and_repeats_nothing_on_postgres_18() {
    undisturbed(18);
}
