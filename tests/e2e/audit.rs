//! `[audit]`: rows that the stream never carried are found while the relay runs, and no other row.

use serde_json::{Value, json};
use walrelay_testkit::eventually;

use crate::docs::block;
use crate::endpoint::{self, LISTEN, address, at};
use crate::old_rows::{
    self, count, insert, insert_row, rig, set_age, unseen, wait_until_all_are_marked,
};
use crate::rig::{NOWHERE, PATIENCE, Relay, Rig, assert_has, done, edit, output_with, said};
use crate::shown::Views;

const AUDIT: &str = "\n[audit]\nevery = \"1s\"\n";

/// Requests a document of the relay's endpoint.
fn get(relay: &Relay, path: &str) -> String {
    let (status, body) = endpoint::get(address(relay), path).expect("an answer");
    assert_eq!(status, 200, "{body}");
    body
}

/// Reads the audit's last round; `null` before the first.
fn audit(relay: &Relay) -> Value {
    let status: Value = serde_json::from_str(&get(relay, "/api/status")).expect("JSON");
    status["source"]["audit"].clone()
}

/// Waits until this many rows are reported.
#[track_caller]
fn reports(relay: &Relay, rows: u64) {
    eventually(PATIENCE, || {
        let audit = audit(relay);
        let table = &audit["tables"][0];
        table["rows"] == json!(rows) && table["percent"] == json!(100)
    });
}

/// Waits for so many rounds that begin after this.
#[track_caller]
fn passes(relay: &Relay, rounds: usize) {
    let mut last = audit(relay)["at_ms"].clone();
    for _ in 0..=rounds {
        eventually(PATIENCE, || audit(relay)["at_ms"] != last);
        last = audit(relay)["at_ms"].clone();
    }
}

#[test]
fn rows_that_the_stream_never_carried_are_reported_until_they_are_settled() {
    for major in [14, 18] {
        let rig = rig(major);
        let db = rig.db();
        let config = old_rows::config(&rig, &format!("{LISTEN}{AUDIT}"));
        let relay = rig.streaming(&config);
        insert(&db, 10, "sent");
        wait_until_all_are_marked(&db);
        reports(&relay, 0);
        relay.ends_well();
        unseen(&db, || insert(&db, 3, "unseen"));
        let relay = rig.streaming(&config);
        insert(&db, 1, "sent");
        reports(&relay, 3);
        relay.says("rows have no evidence that they were sent");
        let metrics = get(&relay, "/metrics");
        assert_has(
            &metrics,
            &[
                "walrelay_unseen_rows{table=\"public.outbox\"} 3",
                "walrelay_audited_ratio{table=\"public.outbox\"} 1",
                "walrelay_audit_failing 0",
            ],
        );
        let status = said(&output_with("status", &config, &[&at(address(&relay))]));
        assert_has(
            &status,
            &[
                "public.outbox: 3 rows without evidence, 100 % looked at",
                "WalrelayUnseenRows",
            ],
        );
        Views::new(&config, &relay).show_problem(
            &["public.outbox has rows without evidence that they were sent"],
            "walrelay stuck lists these rows",
            "WalrelayUnseenRows, after 5m",
        );
        db.batch("UPDATE outbox SET sent_at = now() WHERE aggregateid = 'unseen'");
        reports(&relay, 0);
        relay.ends_well();
    }
}

/// Rows of dead letters, open, dropped and redriven; young rows; rows that wait for the sink.
#[test]
fn rows_on_their_way_and_rows_of_dead_letters_are_not_reported() {
    let rig = rig(17);
    let db = rig.db();
    let topic = format!("dead.{}letters", rig.prefix);
    let poison = format!("\n[poison]\nunroutable = \"dead-letter\"\ntopic = \"{topic}\"\n");
    let config = old_rows::config(&rig, &format!("{LISTEN}{AUDIT}{poison}"));
    let relay = rig.streaming(&config);
    for key in ["open", "dropped", "redriven"] {
        insert_row(&db, "NULL", key, "'1'");
    }
    insert(&db, 2, "sent");
    rig.caught_up();
    passes(&relay, 1);
    reports(&relay, 0);
    let listed = done(&output_with("dlq list --output json", &config, &[]));
    let ids = listed.lines().map(|line| {
        let letter: Value = serde_json::from_str(line).expect("JSON");
        let lsn = letter["lsn"].as_str().expect("an LSN");
        format!("{lsn} {}", letter["row"])
    });
    let ids: Vec<String> = ids.collect();
    done(&output_with("dlq drop --yes --id", &config, &[&ids[1]]));
    let to = format!("--topic-override={}order", rig.prefix);
    done(&output_with(
        "dlq redrive --yes --id",
        &config,
        &[&ids[2], &to],
    ));
    passes(&relay, 1);
    reports(&relay, 0);
    // `stuck` goes by the same evidence.
    let found = output_with("stuck --output json", &config, &[]);
    let found: Value = serde_json::from_slice(&found.stdout).expect("JSON");
    let why: Vec<&Value> = found["rows"]
        .as_array()
        .expect("rows")
        .iter()
        .map(|row| &row["why"])
        .collect();
    assert_eq!(why, [&json!("dead-letter")], "{found:#}");

    db.batch("ALTER TABLE outbox ALTER created_at SET DEFAULT now()");
    unseen(&db, || insert(&db, 1, "unseen"));
    passes(&relay, 1);
    reports(&relay, 0);
    db.batch("DELETE FROM outbox WHERE aggregateid = 'unseen'");
    relay.ends_well();

    // Nothing is acknowledged, so nothing is known of rows without a mark.
    set_age(&db, 2);
    insert(&db, 4, "waiting");
    edit(&config, &rig.bootstrap, NOWHERE);
    let relay = rig.streaming(&config);
    eventually(PATIENCE, || {
        let audit = audit(&relay);
        audit["error"]
            .as_str()
            .is_some_and(|error| error.contains("have not confirmed"))
    });
    assert_eq!(audit(&relay)["tables"][0]["rows"], json!(0));
    assert_eq!(count(&db, "outbox WHERE aggregateid = 'waiting'"), 4);
    relay.kill();
}

/// More rows of one part of the table have dead letters than one statement returns, and all are older than the unseen
/// ones.
#[test]
fn many_rows_of_dead_letters_hide_no_unseen_row() {
    let rig = rig(18);
    let db = rig.db();
    let topic = format!("dead.{}letters", rig.prefix);
    let poison = format!("\n[poison]\nunroutable = \"dead-letter\"\ntopic = \"{topic}\"\n");
    let config = old_rows::config(&rig, &format!("{LISTEN}{AUDIT}{poison}"));
    let relay = rig.streaming(&config);
    db.batch(
        "INSERT INTO outbox (id, aggregatetype, aggregateid, type, payload) \
         SELECT gen_random_uuid(), NULL, 'dead', 'T', NULL FROM generate_series(1, 11000)",
    );
    rig.caught_up();
    set_age(&db, 1);
    unseen(&db, || insert(&db, 2, "unseen"));
    relay.ends_well();
    for resolve in ["dlq list", "dlq drop --yes --all"] {
        done(&output_with(resolve, &config, &[]));
        let relay = rig.streaming(&config);
        reports(&relay, 2);
        passes(&relay, 1);
        reports(&relay, 2);
        relay.ends_well();
    }
}

#[test]
fn an_audit_needs_marks() {
    let rig = Rig::with_outbox(17);
    let config = rig.config_and(AUDIT);
    let output = output_with("check --offline", &config, &[]);
    assert_eq!(output.status.code(), Some(78), "{output:?}");
    assert_has(&said(&output), &["`audit.every` needs `source.mark_sent`"]);
    let documented = block("docs/how-to/where.md", "audit");
    let text = documented.replace(
        "[source]",
        "[source]\nurl = \"postgres://relay@127.0.0.1:9/app\"\ntables = [\"outbox\"]",
    );
    let text = format!("{text}\n[sink.kafka]\n\"bootstrap.servers\" = \"127.0.0.1:9\"\n");
    std::fs::write(&config, text).expect("the configuration is written");
    done(&output_with("check --offline", &config, &[]));
}
