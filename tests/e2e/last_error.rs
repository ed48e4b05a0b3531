//! The error with which a relay has ended outlives its process: `status`, `check` and the next run show it, with
//! its remedy, until the slot has passed the place.

use std::path::Path;

use serde_json::Value;
use walrelay_testkit::{Db, eventually, eventually_some};

use crate::check::Checked;
use crate::endpoint::{address, at, config, get, status};
use crate::rig::{
    NOWHERE, PATIENCE, Rig, assert_has, assert_lacks, ends, insert, output_with, said, stdout,
    with_source,
};

const ELSEWHERE: &str = "--set=http.listen=127.0.0.1:9";
const TABLE: &str = "walrelay_state.last_error";

/// Inserts an event that has no topic.
fn poison(db: &Db) {
    db.batch(
        "INSERT INTO outbox VALUES ('018f5a3e-7c1d-7b1a-9c55-0123456789ab', NULL, 'key', 'T', \
         '\"secret-value\"')",
    );
}

/// The text of `status` while no relay runs, and its last error in the document.
fn shown(config: &Path) -> (String, Value) {
    let text = stdout(&output_with("status", config, &[ELSEWHERE]));
    let document = stdout(&output_with(
        "status",
        config,
        &[ELSEWHERE, "--output=json"],
    ));
    let document: Value = serde_json::from_str(&document).expect("JSON");
    (text, document["last_error"].clone())
}

#[test]
fn the_last_error_is_shown_until_the_slot_has_passed_it() {
    let rig = Rig::with_outbox(17);
    let db = rig.db();
    db.batch("ALTER TABLE outbox ALTER aggregatetype DROP NOT NULL");
    let config = config(&rig, &rig.postgres.url(), "");
    let mut relay = rig.streaming(&config);
    let (text, error) = shown(&config);
    assert_lacks(&text, &["last run"]);
    assert_eq!(error, Value::Null);
    insert(&db, 1);
    rig.caught_up();
    poison(&db);
    ends(&mut relay, 65, "unroutable");

    let (text, error) = shown(&config);
    let words = [
        "last run       ended at 20",
        "by [unroutable]: a row of public.outbox",
        "018f5a3e-7c1d-7b1a-9c55-0123456789ab",
        "-> everything before it is confirmed.",
    ];
    assert_has(&text, &words);
    assert_lacks(&text, &["start walrelay run", "secret-value"]);
    assert_eq!(error["id"], "unroutable", "{error:#}");
    assert_eq!(error["exit_code"], 65, "{error:#}");
    let position = rig.slot().confirmed().to_string();
    assert_eq!(error["position"], position, "{error:#}");
    let output = output_with("status", &config, &[ELSEWHERE, "--exit-code"]);
    assert_eq!(output.status.code(), Some(69));
    assert_has(&said(&output), &["the last run ended at", "[unroutable]"]);
    let checked = Checked::run(&config, &[ELSEWHERE]);
    let words = [
        "the last run ended",
        "[unroutable]",
        "--set poison.unroutable",
    ];
    checked.warns("relay/last-run", &words);
    checked.fails("postgres/waiting-rows", &["[unroutable]"]);
    checked.ends(65);
    let kept: String = db.value(&format!("SELECT error FROM {TABLE}"));
    assert_lacks(&kept, &["secret-value"]);

    // The next run is not past that place before the broker has the dead letter.
    let unreachable = format!("--set=sink.kafka.bootstrap.servers={NOWHERE}");
    let dead_letter = "--set=poison.unroutable=dead-letter";
    let relay = rig.start_with(&config, &[dead_letter, &unreachable]);
    relay.says("the last run ended at");
    let seen = eventually_some(PATIENCE, || {
        Some(status(address(&relay))).filter(|seen| seen["last_error"]["id"] == "unroutable")
    });
    let problems = seen["problems"].as_array().expect("problems");
    let named = problems
        .iter()
        .any(|problem| problem["title"] == "The last run ended with an error");
    assert!(named, "{seen:#}");
    let metrics = get(address(&relay), "/metrics").expect("metrics").1;
    let label = metrics
        .lines()
        .find(|line| line.starts_with("walrelay_last_error_reason{"));
    let label = label.expect("the error as a label");
    assert_has(label, &["[unroutable]", "poison.unroutable"]);
    assert_lacks(label, &["secret-value"]);
    let reading = Checked::run(&config, &[ELSEWHERE]);
    reading.passes("relay/last-run", &["is being read again"]);
    relay.kill();
    // The server ends the walsender of a process that is gone when it notices.
    rig.slot().wait_inactive(PATIENCE);

    let relay = rig.start_with(&config, &[dead_letter]);
    relay.streaming();
    rig.caught_up();
    eventually(PATIENCE, || status(address(&relay))["last_error"].is_null());
    let passed = Checked::run(&config, &[&at(address(&relay))]);
    passed.passes("relay/last-run", &["the slot has passed that place"]);
    relay.ends_well();
    let (text, error) = shown(&config);
    assert_lacks(&text, &["last run"]);
    assert_eq!(error, Value::Null);
    let rows: i64 = db.value(&format!("SELECT count(*) FROM {TABLE}"));
    assert_eq!(rows, 0, "a run that has ended well has left the error");
}

/// A role that may create nothing keeps it alongside its state file. Without one the relay ends as it did.
#[test]
fn the_last_error_is_alongside_the_state_file_if_the_role_may_not_write_it() {
    let rig = Rig::with_outbox(15);
    let db = rig.db();
    db.batch(
        "ALTER TABLE outbox ALTER aggregatetype DROP NOT NULL; \
         CREATE ROLE least LOGIN REPLICATION PASSWORD 'hunter2'; \
         REVOKE CREATE ON DATABASE postgres FROM PUBLIC",
    );
    rig.create_slot();
    let url = rig.url_as("least", "hunter2", "postgres");
    let bare = config(&rig, &url, "");
    poison(&db);
    ends(&mut rig.start(&bare), 65, "unroutable");
    let (text, error) = shown(&bare);
    assert_lacks(&text, &["last run"]);
    assert_eq!(error, Value::Null);

    let state_file = rig.path("state");
    let line = format!("state_file = \"{}\"", state_file.display());
    let config = with_source(config(&rig, &url, ""), &line);
    ends(&mut rig.start(&config), 65, "unroutable");
    let (text, error) = shown(&config);
    assert_has(&text, &["by [unroutable]: a row of public.outbox"]);
    assert_eq!(error["id"], "unroutable");
    Checked::run(&config, &[ELSEWHERE]).warns("relay/last-run", &["[unroutable]"]);
    let missing: bool = db.value(&format!("SELECT to_regclass('{TABLE}') IS NULL"));
    assert!(missing, "the role has created the table");
}
