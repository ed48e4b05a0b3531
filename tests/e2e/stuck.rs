//! `walrelay stuck`: planted rows are found by each kind of evidence, and no row that was sent.

use std::path::Path;

use serde_json::{Value, json};
use walrelay_testkit::Db;

use crate::docs::block;
use crate::endpoint::{LISTEN, address, at};
use crate::old_rows::{self, insert, insert_row, rig, set_age, unseen, wait_until_all_are_marked};
use crate::rig::{NOWHERE, Rig, assert_has, edit, output_with, refused, said};

/// Runs the command, and returns its document. The exit code must fit it.
#[track_caller]
fn document(config: &Path, options: &[&str]) -> Value {
    let all = [&["--output", "json"], options].concat();
    let output = output_with("stuck", config, &all);
    let document: Value = serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|_| panic!("no JSON: {}", said(&output)));
    let is_empty = |name: &str| document[name] == json!([]);
    let expected = i32::from(!is_empty("rows") || !is_empty("buckets"));
    assert_eq!(output.status.code(), Some(expected), "{document:#}");
    document
}

/// The reasons of the rows with this key, in the order of the report.
fn reasons(document: &Value, db: &Db, key: &str) -> Vec<String> {
    let ids: Vec<String> = db.column(
        &format!("SELECT id::text FROM outbox WHERE aggregateid = '{key}'"),
        &[],
    );
    let rows = document["rows"].as_array().expect("rows");
    let rows = rows
        .iter()
        .filter(|row| ids.iter().any(|id| row["id"] == json!(id)));
    rows.map(|row| row["why"].as_str().expect("a reason").to_owned())
        .collect()
}

#[test]
fn rows_without_a_mark_are_found_and_the_reason_is_told() {
    let rig = rig(17);
    let db = rig.db();
    let config = old_rows::config(&rig, LISTEN);
    let relay = rig.streaming(&config);
    insert(&db, 10, "sent");
    wait_until_all_are_marked(&db);
    let none = document(&config, &[]);
    assert_eq!(none["evidence"], json!("marks"));
    assert_eq!(none["rows"], json!([]), "{none:#}");
    relay.ends_well();

    unseen(&db, || insert(&db, 2, "unseen"));
    let relay = rig.streaming(&config);
    insert(&db, 1, "sent");
    rig.caught_up();
    insert_row(&db, "'order'", "young", "'1'");
    db.batch("UPDATE outbox SET created_at = now() WHERE aggregateid = 'young'");
    rig.caught_up();
    let found = document(&config, &[]);
    assert_eq!(
        reasons(&found, &db, "unseen"),
        ["never-seen"; 2],
        "{found:#}"
    );
    assert_eq!(found["rows"].as_array().map(Vec::len), Some(2), "{found:#}");
    assert_eq!(found["rows"][0]["type"], json!("T"));
    assert_eq!(found["rows"][0]["table"], json!("public.outbox"));
    let age = found["rows"][0]["age_seconds"].as_u64();
    assert!(age > Some(2 * 86_400 - 60), "{age:?}");
    let one = document(&config, &["--limit", "1"]);
    assert_eq!(one["rows"].as_array().map(Vec::len), Some(1));
    assert_eq!(one["more"], json!(true));
    let recent = document(&config, &["--since", "24h"]);
    assert_eq!(recent["rows"], json!([]));
    let older = document(&config, &["--older-than", "10d"]);
    assert_eq!(older["rows"], json!([]));
    let command = block("docs/how-to/where.md", "stuck");
    let command = command.strip_prefix("walrelay ").expect("walrelay");
    let shown = said(&output_with(command, &config, &[]));
    assert_has(&shown, &["never-seen", "no evidence that these rows"]);
    relay.ends_well();

    // No relay runs, and the slot is before these rows.
    insert(&db, 3, "waiting");
    let found = document(&config, &[]);
    assert_eq!(reasons(&found, &db, "waiting"), ["behind-slot"; 3]);
    assert_eq!(reasons(&found, &db, "unseen"), ["never-seen"; 2]);
    edit(&config, &rig.bootstrap, NOWHERE);
    let relay = rig.streaming(&config);
    let at = at(address(&relay));
    walrelay_testkit::eventually(crate::rig::PATIENCE, || {
        let found = document(&config, &[&at]);
        reasons(&found, &db, "waiting") == ["waits-for-sink"; 3]
    });
    relay.kill();
    db.batch("ALTER PUBLICATION walrelay SET TABLE outbox WHERE (aggregateid <> 'left out')");
    insert(&db, 1, "left out");
    let found = document(&config, &[]);
    assert_eq!(reasons(&found, &db, "left out"), ["not-published"]);
}

#[test]
fn a_row_that_the_account_lacks_is_named_and_two_are_counted() {
    let rig = rig(17);
    let db = rig.db();
    let config = rig.config_and("\n[prune]\nkeep = \"30d\"\nbefore_slot = true\n");
    let relay = rig.streaming(&config);
    insert(&db, 20, "sent");
    rig.caught_up();
    let none = document(&config, &[]);
    assert_eq!(none["evidence"], json!("account"));
    assert_eq!((&none["rows"], &none["buckets"]), (&json!([]), &json!([])));
    relay.ends_well();

    unseen(&db, || insert(&db, 1, "unseen"));
    let relay = rig.streaming(&config);
    insert(&db, 1, "sent");
    rig.caught_up();
    let found = document(&config, &[]);
    assert_eq!(reasons(&found, &db, "unseen"), ["never-seen"], "{found:#}");
    assert_eq!(found["buckets"], json!([]));
    relay.ends_well();

    insert(&db, 4, "waiting");
    let found = document(&config, &[]);
    // What waits is known by its ids, so the other row still is the difference.
    assert_eq!(
        reasons(&found, &db, "waiting"),
        ["behind-slot"; 4],
        "{found:#}"
    );
    assert_eq!(reasons(&found, &db, "unseen"), ["never-seen"], "{found:#}");
    let relay = rig.streaming(&config);
    rig.caught_up();
    relay.ends_well();

    db.batch("DELETE FROM outbox WHERE aggregateid = 'unseen'");
    set_age(&db, 3);
    unseen(&db, || insert(&db, 2, "unseen"));
    let found = document(&config, &[]);
    assert_eq!(found["rows"], json!([]), "{found:#}");
    assert_eq!(found["buckets"][0]["rows"], json!(2), "{found:#}");
    let shown = said(&output_with("stuck", &config, &[]));
    assert_has(
        &shown,
        &["public.outbox has 2 rows more than were accounted as sent"],
    );
}

#[test]
fn without_marks_and_account_only_positions_and_dead_letters_count() {
    let rig = rig(17);
    let db = rig.db();
    let config = rig.config_and(&format!(
        "\n[poison]\nunroutable = \"dead-letter\"\ntopic = \"dead.{}letters\"\n",
        rig.prefix
    ));
    insert(&db, 1, "before");
    let relay = rig.streaming(&config);
    insert(&db, 2, "sent");
    rig.caught_up();
    let none = document(&config, &[]);
    assert_eq!(none["evidence"], json!("position"));
    assert_eq!(none["rows"], json!([]));
    // Nothing is claimed of rows that no evidence is kept of.
    let shown = said(&output_with("stuck", &config, &[]));
    assert_has(&shown, &["Of other rows no evidence is kept"]);
    insert_row(&db, "NULL", "dead", "'1'");
    rig.caught_up();
    relay.ends_well();
    insert(&db, 2, "waiting");
    let found = document(&config, &[]);
    assert_eq!(reasons(&found, &db, "dead"), ["dead-letter"], "{found:#}");
    assert_eq!(reasons(&found, &db, "waiting"), ["behind-slot"; 2]);
}

#[test]
fn a_table_without_an_age_is_refused() {
    let rig = Rig::with_outbox(17);
    rig.create_slot();
    let config = rig.config();
    refused(
        &output_with("stuck", &config, &[]),
        78,
        &["[stuck-age]", "created_at"],
    );
    edit(&config, "public.outbox", "public.no_such_outbox");
    refused(&output_with("stuck", &config, &[]), 78, &["[stuck-table]"]);
}
