//! The relay makes of a table with columns of many types what Debezium was recorded to make of it:
//! bytes, partition and timestamp in Kafka.

use std::collections::BTreeMap;
use std::fs;

use serde_json::Value;
use walrelay_testkit::Delivered;

use crate::rig::{Rig, SLOT, create_slot};

const SETUP: &str = include_str!("../../crates/event-router/tests/golden/setup.sql");
const ROWS: &str = include_str!("../../crates/event-router/tests/golden/rows.sql");
const CONFIGS: &str = include_str!("../../crates/event-router/tests/golden/configs.json");
const RECORDED: &str = include_str!("../../crates/event-router/tests/golden/recorded.jsonl");

/// The recorded lines of one configuration that are records, by row.
fn recorded(config: &str) -> BTreeMap<String, Value> {
    RECORDED
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).expect("a line of JSON"))
        .filter(|line| line["config"] == config && line["outcome"] == "record")
        .map(|line| (line["row"].as_str().expect("text").to_owned(), line))
        .collect()
}

fn placement(config: &str) -> String {
    let configs: Value = serde_json::from_str(CONFIGS).expect("JSON");
    let placement = &configs[config]["table.fields.additional.placement"];
    placement.as_str().expect("text").to_owned()
}

fn text(bytes: Option<&Vec<u8>>) -> String {
    bytes.map_or_else(
        || "<null>".to_owned(),
        |bytes| format!("utf8:{}", String::from_utf8_lossy(bytes)),
    )
}

#[test]
fn a_row_of_all_types_arrives_as_debezium_writes_it() {
    let rig = Rig::new(15);
    let db = rig.db();
    db.batch(SETUP);
    // A publication of all operations, not only insertions.
    db.batch("CREATE PUBLICATION walrelay FOR TABLE public.outbox");
    create_slot(&db, SLOT);
    let config = rig.path("debezium.toml");
    let written = format!(
        "[source]\nurl = \"{}\"\ntables = [\"public.outbox\"]\n\n\
         [router.debezium]\n\"topic.prefix\" = \"srv\"\n\
         \"route.topic.replacement\" = \"{}${{routedByValue}}\"\n\
         \"table.field.event.timestamp\" = \"tsn3\"\n\
         \"table.fields.additional.placement\" = \"{},{},i4:partition\"\n\n\
         [router.converters]\n\"key.converter\" = \"json\"\n\
         \"value.converter\" = \"org.apache.kafka.connect.json.JsonConverter\"\n\
         \"header.converter\" = \"json\"\n\n\
         [log]\nformat = \"json\"\n\n[sink.topics]\ncreate = true\npartitions = 4\n\n\
         [sink.kafka]\n\"bootstrap.servers\" = \"{}\"\n",
        rig.postgres.url(),
        rig.prefix,
        placement("envelope"),
        placement("headers"),
        rig.bootstrap
    );
    fs::write(&config, written).expect("the configuration is written");

    let relay = rig.streaming(&config);
    // Leave out the row whose topic no broker accepts. The rows end with an UPDATE and a DELETE.
    let rows = ROWS.lines().filter(|row| !row.contains("odd topic"));
    let rows = rows.collect::<Vec<&str>>().join("\n");
    db.batch(&rows.replace("\"nullkey\": true}'),", "\"nullkey\": true}');"));
    rig.caught_up();
    relay.ends_well();

    let delivered = rig.records(0);
    let by_row: BTreeMap<String, &Delivered> = delivered
        .iter()
        .map(|record| {
            let (_, id) = record.headers.first().expect("a header");
            let id = text(id.as_ref());
            let id = id.trim_end_matches("\"}").rsplit('-').next();
            let id = id.expect("an id").trim_start_matches('0');
            (id.to_owned(), record)
        })
        .collect();
    // Thirteen rows: neither the UPDATE nor the DELETE added or removed a record.
    assert_eq!((delivered.len(), by_row.len()), (13, 13));
    let (envelopes, headers) = (recorded("envelope"), recorded("headers"));
    for (row, record) in &by_row {
        let was = &envelopes[row];
        for (is, was) in [(&record.key, &was["key"]), (&record.payload, &was["value"])] {
            assert_eq!(text(is.as_ref()), was["json+schema"], "{row}");
        }
        let was = headers[row]["headers"].as_array().expect("headers");
        assert_eq!(record.headers.len(), was.len(), "{row}");
        for ((name, value), was) in record.headers.iter().zip(was) {
            assert_eq!(name, was["name"].as_str().expect("text"));
            // Columns of the type `name` are null in Debezium.
            if name != "nm" {
                assert_eq!(text(value.as_ref()), was["json+schema"], "{row} {name}");
            }
        }
    }
    let first = by_row["1"];
    assert_eq!(
        (first.partition, first.created),
        (3, Some(1_709_210_096_789))
    );
}

/// `table.op.invalid.behavior`: nothing is ever sent for an UPDATE, and inserted rows are.
#[test]
fn an_update_stops_the_relay_only_where_that_is_asked_for() {
    for (behavior, stops) in [("warn", false), ("error", false), ("fatal", true)] {
        let rig = Rig::new(18);
        let db = rig.db();
        db.batch(
            "CREATE TABLE outbox (id uuid PRIMARY KEY DEFAULT gen_random_uuid(), aggregatetype text, \
             aggregateid text, type text, payload jsonb); \
             CREATE PUBLICATION walrelay FOR TABLE outbox",
        );
        create_slot(&db, SLOT);
        let set = format!("router.debezium.table.op.invalid.behavior={behavior}");
        let mut relay = rig.start_with(&rig.config(), &["--set", &set]);
        relay.streaming();
        let insert = "INSERT INTO outbox (aggregatetype, aggregateid, type, payload) \
                      VALUES ('order', 'k', 'T', '{}')";
        db.batch(insert);
        rig.caught_up();
        db.batch("UPDATE outbox SET type = 'U'");
        let (code, log) = if stops {
            (relay.ended().code(), relay.log())
        } else {
            db.batch(insert);
            rig.caught_up();
            relay.terminate()
        };
        assert_eq!(code, Some(if stops { 65 } else { 0 }), "{behavior}: {log}");
        assert_eq!(log.contains("outbox-updated"), stops, "{behavior}: {log}");
        let sent = rig.records(0);
        assert_eq!(sent.len(), if stops { 1 } else { 2 }, "{behavior}");
    }
}
