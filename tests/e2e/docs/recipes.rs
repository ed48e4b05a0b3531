//! docs/how-to/recipes.md: each block is run, or parsed by its program's rules.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;

use serde_json::{Value, json};

use super::{block, text};
use crate::rig::{Rig, assert_has, output_with, psql, stdout};

const DOCUMENT: &str = "docs/how-to/recipes.md";

/// Writes the configuration of a recipe, with what the page leaves out.
fn config(rig: &Rig, name: &str) -> PathBuf {
    let recipe = block(DOCUMENT, name);
    let source = format!("[source]\nurl = \"{}\"\n", rig.postgres.url());
    let with_source = if recipe.contains("[source]") {
        recipe.replace("[source]\n", &source)
    } else {
        format!("{source}tables = [\"public.outbox_events\"]\n\n{recipe}")
    };
    let sink = if recipe.contains("[sink.kafka]") {
        String::new()
    } else {
        format!(
            "\n[sink.kafka]\n\"bootstrap.servers\" = \"{}\"\n",
            rig.bootstrap
        )
    };
    let text = format!("{with_source}\n{sink}\n[log]\nformat = \"json\"\n");
    let path = rig.path(&format!("{name}.toml"));
    fs::write(&path, text).expect("the configuration is written");
    path
}

/// Returns the record that a recipe makes of a row.
fn routed(rig: &Rig, name: &str) -> Value {
    let row = rig.path("row.json");
    let columns = json!({
        "id": "018f5a3e-7c1d-7b1a-9c55-0123456789ab", "aggregate_id": "o-1", "tenant_id": "acme",
        "event_type": "order.placed", "payload": {"total": 12}, "occurred_at": "2026-01-02 03:04:05+00",
    });
    fs::write(&row, columns.to_string()).expect("written");
    let row = row.to_str().expect("text");
    let shown = output_with("route --output json", &config(rig, name), &["--row", row]);
    serde_json::from_str(&stdout(&shown)).expect("a line of JSON")
}

/// Makes the table of the recipes.
fn with_table(rig: Rig, config: impl FnOnce(&Rig) -> PathBuf) -> (Rig, PathBuf) {
    let config = config(&rig);
    stdout(&output_with("init --preset outbox_events", &config, &[]));
    (rig, config)
}

#[test]
fn all_events_keep_one_order() {
    let (rig, config) = with_table(Rig::new(17), |rig| config(rig, "recipe-total-order"));
    let prefix = rig.prefix.trim_end_matches('.').to_owned();
    rig.kafka().create_topic(&prefix, 4, &[]);
    let relay = rig.streaming(&config);
    for number in 0..30 {
        rig.db().batch(&format!(
            "INSERT INTO outbox_events (aggregate_id, event_type, payload) \
             VALUES ('o-{number}', '{prefix}.placed', '{number}')"
        ));
    }
    rig.caught_up();
    relay.ends_well();
    let records = rig.records_in(&prefix, 0);
    let partitions: BTreeSet<i32> = records.iter().map(|record| record.partition).collect();
    assert_eq!(partitions.len(), 1);
    let values: Vec<String> = records
        .iter()
        .map(|record| record.value_text().to_owned())
        .collect();
    let expected: Vec<String> = (0..30).map(|number| number.to_string()).collect();
    assert_eq!(values, expected);
}

#[test]
fn shapes_are_those_of_the_page() {
    let rig = Rig::without_broker(18);
    let tenant = routed(&rig, "recipe-tenant");
    assert_eq!(
        (&tenant["key"], &tenant["topic"]),
        (&json!("acme"), &json!("order"))
    );
    assert_eq!(tenant["headers"].as_array().expect("headers").len(), 2);
    let four = routed(&rig, "recipe-four-members");
    let value: Value =
        serde_json::from_str(four["value"].as_str().expect("a value")).expect("JSON");
    let members: Vec<&String> = value.as_object().expect("an object").keys().collect();
    assert_eq!(members, ["data", "event_id", "event_type", "occurred_at"]);
    assert_eq!(value["data"], json!({"total": 12}));
    let audit = routed(&rig, "recipe-audit");
    assert_eq!(audit["topic"], "audit");
}

#[test]
fn statements_of_the_recipes_do_what_the_page_says() {
    let (rig, _) = with_table(Rig::without_broker(18), |rig| {
        config(rig, "recipe-four-members")
    });
    let db = rig.db();
    let run = |name: &str| psql(&db, &format!("{}\n", block(DOCUMENT, name)));
    let count =
        |rows: &str| db.value::<i64>(&format!("SELECT count(*) FROM outbox_events WHERE {rows}"));
    run("recipe-two-rows");
    assert_eq!(count("event_type IN ('order.placed', 'audit.placed')"), 2);
    run("recipe-audit-publication");
    let check = output_with("check", &config(&rig, "recipe-audit"), &[]);
    let shown = String::from_utf8_lossy(&check.stdout).into_owned();
    assert_has(&shown, &["the rows of public.outbox_events can be routed"]);
    run("recipe-claim-check");
    assert_eq!(count("payload ->> 'url' LIKE 's3://%'"), 1);
    db.batch(
        "CREATE TABLE scheduled (id bigserial PRIMARY KEY, due_at timestamptz NOT NULL, aggregate_id text NOT NULL, \
         event_type text NOT NULL, payload jsonb NOT NULL); \
         INSERT INTO scheduled (due_at, aggregate_id, event_type, payload) \
         VALUES (now() - interval '1 s', 'now', 'due.now', '{}'), (now() + interval '1 h', 'later', 'due.later', '{}')",
    );
    run("recipe-scheduled");
    run("recipe-scheduled");
    assert_eq!(
        (
            count("event_type = 'due.now'"),
            count("event_type = 'due.later'")
        ),
        (1, 0)
    );
    assert_eq!(db.value::<i64>("SELECT count(*) FROM scheduled"), 1);
}

/// The position of the transaction's own event is greater than the token, that of the one before is not.
#[test]
fn a_token_lies_between_the_events_of_a_key() {
    let (rig, path) = with_table(Rig::new(16), |rig| config(rig, "recipe-four-members"));
    let prefix = rig.prefix.trim_end_matches('.').to_owned();
    let edited = fs::read_to_string(&path).expect("the file");
    let edited = edited.replace(
        "[router]\n",
        "[router]\nposition_header = \"walrelay-position\"\n",
    );
    fs::write(&path, edited).expect("written");
    let relay = rig.streaming(&path);
    let db = rig.db();
    db.batch(&format!(
        "CREATE TABLE orders (id int); INSERT INTO orders VALUES (7); \
         INSERT INTO outbox_events (aggregate_id, event_type, payload) VALUES ('7', '{prefix}.changed', '{{}}')"
    ));
    let sql =
        block(DOCUMENT, "recipe-token").replace("'order.changed'", &format!("'{prefix}.changed'"));
    let sql = sql.replace("SELECT upper", "CREATE TABLE tokens AS SELECT upper");
    psql(&db, &format!("{sql}\n"));
    let token = db.text("SELECT token FROM tokens").expect("a token");
    rig.caught_up();
    relay.ends_well();
    let records = rig.records_in(&prefix, 0);
    let positions = records.iter().map(|record| {
        let (_, value) = record
            .headers
            .iter()
            .find(|(name, _)| name == "walrelay-position")
            .expect("a header");
        String::from_utf8(value.clone().expect("a value")).expect("text")
    });
    let positions: Vec<String> = positions.collect();
    assert!(
        positions[0] < token && token < positions[1],
        "{positions:?}, {token}"
    );
}

#[test]
fn supervisor_and_event_hubs_have_the_settings_that_walrelay_needs() {
    let ini = block(DOCUMENT, "recipe-supervisor");
    let value = |name: &str| {
        let mut lines = ini.lines();
        let line = lines.find_map(|line| line.strip_prefix(name)?.strip_prefix('='));
        line.unwrap_or_else(|| panic!("no {name}")).to_owned()
    };
    assert!(ini.starts_with("[program:walrelay]\n"));
    // The same codes as in the unit of systemd, and success.
    let unit = text("deploy/systemd/walrelay.service");
    let stay = format!(
        "RestartPreventExitStatus={}\n",
        value("exitcodes").replacen("0,", "", 1).replace(',', " ")
    );
    assert!(unit.contains(&stay), "{stay}");
    assert_eq!(
        (&*value("autorestart"), &*value("stopsignal")),
        ("unexpected", "TERM")
    );
    assert!(value("stopwaitsecs").parse::<u32>().expect("seconds") > 40);

    let rig = Rig::without_broker(18);
    let path = config(&rig, "recipe-event-hubs");
    let secret = rig.path("event-hubs");
    fs::write(&secret, "Endpoint=sb://shop").expect("written");
    let edited = fs::read_to_string(&path).expect("the file");
    let edited = edited.replace("/run/secrets/event-hubs", secret.to_str().expect("text"));
    fs::write(&path, edited).expect("written");
    stdout(&output_with("check --offline", &path, &[]));
}
