//! `walrelay check` names each thing that is broken, with its remedy. If the remedy is SQL, the
//! test runs it, and the item passes.
//!
//! - [`configuration`], [`postgres`], [`publication`], [`slot`], [`failover`], [`kafka`], [`relay`]: one
//!   test or more for each group. The items of the schema registry are in `registry.rs`.

mod configuration;
mod failover;
mod http;
mod kafka;
mod nats;
mod postgres;
mod publication;
mod rabbitmq;
mod redis;
mod relay;
mod slot;

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;
use walrelay_testkit::{Db, eventually_some};

use crate::rig::{PATIENCE, Rig, assert_has, output_with};

/// Items that another kind of test breaks, and which test.
const ELSEWHERE: &[(&str, &str)] = &[
    ("postgres/clock", "a unit test: clocks"),
    (
        "postgres/snapshot",
        "snapshot.rs: a_snapshot_that_cannot_be_read_stops_the_relay",
    ),
    (
        "postgres/state-version",
        "formats.rs: a_later_schema_is_refused_by_its_version",
    ),
    (
        "postgres/move",
        "moves.rs: a_move_is_given_up_in_each_state",
    ),
    (
        "relay/losses",
        "losses.rs: streams_of_redis_that_were_flushed",
    ),
    (
        "relay/problems",
        "shown.rs: Views::show_problem, for each fault",
    ),
];

/// A sink that prints and confirms, for checks of the database alone.
pub(crate) const WITHOUT_KAFKA: [&str; 4] = [
    "--set",
    "sink.kind=stdout",
    "--set",
    "sink.stdout.confirm=true",
];

/// The result of `walrelay check`.
#[derive(Debug)]
pub(crate) struct Checked {
    pub(crate) code: Option<i32>,
    checks: Vec<Value>,
}

impl Checked {
    /// Runs `check` with this configuration.
    #[track_caller]
    pub(crate) fn run(config: &Path, more: &[&str]) -> Self {
        let arguments = [&["--output", "json"], more].concat();
        let output = output_with("check", config, &arguments);
        let document: Value = serde_json::from_slice(&output.stdout)
            .unwrap_or_else(|error| panic!("{error}: {output:?}"));
        let checks = document["checks"].as_array().expect("checks").clone();
        Self {
            code: output.status.code(),
            checks,
        }
    }

    /// The lines of an item, which is written as group/item.
    pub(crate) fn all(&self, item: &str) -> Vec<&Value> {
        let (group, item) = item.split_once('/').expect("group/item");
        let found = self.checks.iter();
        found
            .filter(|check| check["group"] == group && check["item"] == item)
            .collect()
    }

    /// The worst line of an item.
    #[track_caller]
    pub(crate) fn worst(&self, item: &str) -> &Value {
        let rank = |check: &&&Value| {
            ["pass", "warn", "fail"]
                .iter()
                .position(|verdict| check["verdict"] == *verdict)
        };
        let all = self.all(item);
        let worst = all.iter().max_by_key(rank);
        worst.unwrap_or_else(|| panic!("no {item} in {self:#?}"))
    }

    #[track_caller]
    pub(crate) fn passes(&self, item: &str, words: &[&str]) -> &Value {
        self.is(item, "pass", words)
    }

    #[track_caller]
    pub(crate) fn warns(&self, item: &str, words: &[&str]) -> &Value {
        self.is(item, "warn", words)
    }

    #[track_caller]
    pub(crate) fn fails(&self, item: &str, words: &[&str]) -> &Value {
        self.is(item, "fail", words)
    }

    /// Repeats a check until the worst line of an item has this verdict.
    #[track_caller]
    fn until(check: impl Fn() -> Self, item: &str, verdict: &str) -> Self {
        let is_so = |checked: &Self| checked.worst(item)["verdict"] == verdict;
        eventually_some(PATIENCE, || Some(check()).filter(is_so))
    }

    /// Asserts the exit code.
    #[track_caller]
    pub(crate) fn ends(&self, code: i32) {
        assert_eq!(self.code, Some(code), "{self:#?}");
    }

    /// Asserts that an item has this verdict and these words in its line.
    #[track_caller]
    pub(crate) fn is(&self, item: &str, verdict: &str, words: &[&str]) -> &Value {
        let found = self.worst(item);
        assert_eq!(found["verdict"], verdict, "{item}: {found:#}");
        assert_eq!(found["remedy"].is_null(), verdict == "pass", "{found:#}");
        let text = |member: &str| found[member].as_str().unwrap_or_default();
        let said = format!("{} {} [{}]", text("finding"), text("remedy"), text("id"));
        assert_has(&said, words);
        found
    }

    /// Asserts that no item of the group fails.
    #[track_caller]
    pub(crate) fn nothing_fails(&self, group: &str) {
        let of_group = self.checks.iter().filter(|check| check["group"] == group);
        let of_group: Vec<&Value> = of_group.collect();
        assert!(!of_group.is_empty(), "nothing of {group} in {self:#?}");
        for check in of_group {
            assert_ne!(check["verdict"], "fail", "{check:#}");
        }
    }
}

/// Checks with these arguments and overrides, which are separated by blanks.
#[track_caller]
fn checked(config: &Path, arguments: &[&str], set: &str) -> Checked {
    let set = set.split_whitespace().flat_map(|set| ["--set", set]);
    let more: Vec<&str> = arguments.iter().copied().chain(set).collect();
    Checked::run(config, &more)
}

/// A database in which a check fails nowhere.
struct Case {
    rig: Rig,
    db: Db,
    config: PathBuf,
}

impl Case {
    /// Creates the outbox, its publication and its slot.
    fn new(rig: Rig) -> Self {
        let rig = rig.outbox();
        rig.create_slot();
        let (db, config) = (rig.db(), rig.config());
        Self { rig, db, config }
    }

    #[track_caller]
    fn check(&self) -> Checked {
        self.check_with("")
    }

    /// Checks with these overrides.
    #[track_caller]
    fn check_with(&self, set: &str) -> Checked {
        checked(&self.config, &WITHOUT_KAFKA, set)
    }

    /// Breaks something by SQL: `check` names it, its remedy is run, and the item passes.
    #[track_caller]
    fn breaks(&self, sql: &str, item: &str, verdict: &str, words: &[&str]) {
        self.breaks_with("", sql, item, verdict, words);
    }

    #[track_caller]
    fn breaks_with(&self, set: &str, sql: &str, item: &str, verdict: &str, words: &[&str]) {
        statements(&self.db, sql);
        // Settings are reloaded asynchronously, and transactions must grow old.
        let checked = Checked::until(|| self.check_with(set), item, verdict);
        run_remedy(&self.db, checked.is(item, verdict, words));
        Checked::until(|| self.check_with(set), item, "pass");
    }
}

/// Runs statements one by one: some may not run in a transaction.
fn statements(db: &Db, sql: &str) {
    for statement in sql.split(';').filter(|sql| !sql.trim().is_empty()) {
        db.batch(statement);
    }
}

/// Runs the SQL of an item's remedy.
#[track_caller]
fn run_remedy(db: &Db, item: &Value) {
    for statement in sql_of(item["remedy"].as_str().expect("a remedy")) {
        db.batch(&statement);
    }
}

/// SQL statements of a remedy: from the first keyword on, each up to its semicolon or the end.
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

/// Each item of the page is broken by a test that names it.
#[test]
fn every_item_is_broken_by_a_test() {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
    let page = fs::read_to_string(format!("{root}/docs/operate/check.md")).expect("the page");
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
