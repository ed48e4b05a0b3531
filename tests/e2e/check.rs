//! `walrelay check` names each thing that is broken, with its remedy; where that is SQL, it is run, and the
//! item passes.
//!
//! - [`configuration`], [`postgres`], [`publication`], [`slot`], [`failover`], [`kafka`]: one test or more for
//!   each group. The registry's items are in `registry.rs`.

mod configuration;
mod failover;
mod kafka;
mod postgres;
mod publication;
mod slot;

use std::fs;
use std::path::PathBuf;

use walrelay_testkit::{Db, eventually};

use crate::rig::{Checked, PATIENCE, Rig};

/// Items that a test of another kind breaks, and which.
const ELSEWHERE: &[(&str, &str)] = &[
    ("postgres/clock", "a unit test: clocks"),
    (
        "postgres/snapshot",
        "snapshot.rs: that_cannot_be_read_stops_the_relay",
    ),
];

/// Prints in place of Kafka, and confirms: for checks of the database alone.
const WITHOUT_KAFKA: [&str; 4] = [
    "--set",
    "sink.kind=stdout",
    "--set",
    "sink.stdout.confirm=true",
];

/// A database of which a check finds nothing wrong that fails.
struct Case {
    rig: Rig,
    db: Db,
    config: PathBuf,
}

impl Case {
    /// With the outbox, its publication and its slot.
    fn of(rig: Rig) -> Self {
        rig.workload().create_tables();
        let db = Db::connect(&rig.postgres.url());
        db.batch("CREATE PUBLICATION walrelay FOR TABLE outbox WITH (publish = 'insert')");
        db.batch("SELECT pg_create_logical_replication_slot('walrelay', 'pgoutput')");
        let config = rig.config();
        Self { rig, db, config }
    }

    #[track_caller]
    fn check(&self) -> Checked {
        self.check_with(&[])
    }

    /// With more overrides.
    #[track_caller]
    fn check_with(&self, set: &[&str]) -> Checked {
        let set = set.iter().flat_map(|set| ["--set", set]);
        let more: Vec<&str> = WITHOUT_KAFKA.into_iter().chain(set).collect();
        Checked::of(&self.config, &more)
    }

    /// Breaks something by SQL; `check` names it, its remedy is run, and the item passes.
    #[track_caller]
    fn breaks(&self, sql: &str, item: &str, verdict: &str, words: &[&str]) {
        self.breaks_with(&[], sql, item, verdict, words);
    }

    #[track_caller]
    fn breaks_with(&self, set: &[&str], sql: &str, item: &str, verdict: &str, words: &[&str]) {
        statements(&self.db, sql);
        // Settings are reloaded when the server comes to it, and transactions grow older.
        eventually(PATIENCE, || {
            self.check_with(set).worst(item)["verdict"] == verdict
        });
        let checked = self.check_with(set);
        let found = checked.is(item, verdict, words);
        let remedy = found["remedy"].as_str().expect("a remedy");
        for statement in sql_of(remedy) {
            self.db.batch(&statement);
        }
        eventually(PATIENCE, || {
            self.check_with(set).worst(item)["verdict"] == "pass"
        });
    }
}

/// One by one: some statements want no transaction around them.
fn statements(db: &Db, sql: &str) {
    for statement in sql.split(';').filter(|sql| !sql.trim().is_empty()) {
        db.batch(statement);
    }
}

/// The statements of a remedy: from the first word of SQL on, each up to its semicolon or the end.
fn sql_of(remedy: &str) -> Vec<String> {
    const WORDS: [&str; 4] = ["ALTER ", "SELECT ", "GRANT ", "ROLLBACK "];
    let mut found = Vec::new();
    for part in remedy.split(';') {
        let starts = WORDS.iter().filter_map(|word| part.find(word));
        if let Some(start) = starts.min() {
            found.push(part[start..].to_owned());
        }
    }
    assert!(!found.is_empty(), "no SQL in {remedy:?}");
    found
}

/// Each item of the page is broken by a test, which names it.
#[test]
fn every_item_is_broken_by_a_test() {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
    let page = fs::read_to_string(format!("{root}/docs/CHECK.md")).expect("the page");
    let (_, table) = page.split_once("<!-- items -->\n").expect("a table");
    let (table, _) = table.split_once("<!-- end -->").expect("its end");
    let mut tests = fs::read_to_string(format!("{root}/tests/e2e/registry.rs")).expect("tests");
    for entry in fs::read_dir(format!("{root}/tests/e2e/check")).expect("a folder") {
        let path = entry.expect("an entry").path();
        tests += &fs::read_to_string(path).expect("tests");
    }
    for line in table.lines().skip(2) {
        let mut cells = line.split('|').map(str::trim).skip(1);
        let group = cells.next().expect("a group");
        let item = cells.next().expect("an item").trim_matches('`');
        let item = format!("{group}/{item}");
        let elsewhere = ELSEWHERE.iter().any(|(of, _)| *of == item);
        let here = tests.contains(&format!("\"{item}\""));
        assert!(here != elsewhere, "{item} is broken by no test, or by two");
    }
}
