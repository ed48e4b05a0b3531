//! Debezium Server and walrelay read one table, each with a slot and a broker of its own: their
//! records are the same, byte by byte.

use std::collections::BTreeMap;
use std::fs;
use std::time::Duration;

use walrelay_testkit::{Db, Delivered, History, Kafka, SlotWatch};

use crate::hand_over::{import, relay};
use crate::rig::{PATIENCE, Rig};
use crate::server::{Debezium, properties};

/// Number of rows, in transactions of twenty.
const ROWS: usize = 10_000;

/// An outbox with columns of many types: text beyond ASCII and beyond the basic multilingual plane,
/// nulls and empty texts.
fn table(db: &Db, payload_type: &str) {
    db.batch(&format!(
        "CREATE TYPE mood AS ENUM ('calm', 'un calm'); \
         CREATE TABLE outbox (id uuid PRIMARY KEY, aggregatetype varchar(255) NOT NULL, \
         aggregateid varchar(255), type varchar(255), payload {payload_type}, \
         tiny int2, small int4 NOT NULL DEFAULT 7, big int8, exact numeric(12, 3), loose numeric, \
         single float4, double float8, yes boolean, at timestamptz, at3 timestamptz(3), \
         local timestamp, local3 timestamp(3), day date, clock time, bytes bytea, \
         other uuid, tags text[], numbers int4[], mood mood, fixed char(6), doc json)"
    ));
}

/// Writes all rows. Each block of twenty commits, so this must not run inside a transaction.
/// `payload` is the expression of that column over the number `n`.
fn insert(db: &Db, kind: &str, payload: &str) {
    db.batch(&format!(
        "DO $do$ BEGIN FOR t IN 0..{} LOOP \
         INSERT INTO outbox SELECT \
           md5('id' || n)::uuid, \
           {kind}, \
           'key-' || (n % 97) || (ARRAY['', 'ü', '😀', '\"\\'])[1 + n % 4], \
           CASE WHEN n % 11 = 0 THEN NULL ELSE 'Type' || n % 5 END, \
           {payload}, \
           CASE WHEN n % 7 = 0 THEN NULL ELSE (n % 300 - 150)::int2 END, \
           n - 5000, n::int8 * 1234567891, n * 1.5 - 4000, \
           CASE WHEN n % 5 = 0 THEN NULL ELSE n * 0.00001 - 0.02 END, \
           n * 0.25 - 100, n * 1.1e10, n % 2 = 0, \
           timestamptz '2024-02-29 10:34:56.789012+01' + n * interval '1.000001 h', \
           timestamptz '1969-12-31 23:59:59.999+00' + n * interval '1.5 s', \
           timestamp '1999-12-31 23:59:59.999999' + n * interval '1 min', \
           timestamp '2024-01-01 00:00:00.125' + n * interval '1 s', \
           date '1970-01-01' + (n - 5000), time '00:00:00.000001' + n * interval '8 s', \
           decode(md5(n::text), 'hex'), md5('other' || n)::uuid, \
           ARRAY['a', NULL, 'b \"c\" ' || n, 'ü😀'], ARRAY[n, NULL, -n], \
           (ARRAY['calm', 'un calm'])[1 + n % 2]::mood, 'f' || n % 100, \
           ('{{\"n\": ' || n || ', \"b\":  [1, 2]}}')::json \
         FROM generate_series(t * 20, t * 20 + 19) n; \
         COMMIT; END LOOP; END $do$",
        ROWS / 20 - 1
    ));
}

/// JSON of every shape that the router can expand.
const JSON: &str = "jsonb_build_object('n', n, 'text', 'ü😀\"' || n, 'half', n / 2.0, 'big', n::int8 * 5000000000, \
    'none', NULL, 'yes', n % 2 = 0, 'list', jsonb_build_array(n, n + 1), 'empty', '[]'::jsonb, \
    'deep', jsonb_build_object('a', jsonb_build_object('b', 'c' || n)))";

const KINDS: &str = "(ARRAY['order', 'Payment', 'customer-x'])[1 + n % 3]";

const HEADERS: &str = "type:header:eventType,tiny:header,small:header,big:header,exact:header,loose:header,\
    single:header,double:header,yes:header,at:header,at3:header,local:header,local3:header,day:header,\
    clock:header,bytes:header,other:header,tags:header,numbers:header,mood:header,fixed:header,doc:header";

struct Case<'a> {
    kind: &'a str,
    payload_type: &'a str,
    payload: &'a str,
    lines: &'a str,
    placement: &'a str,
}

fn same(case: &Case<'_>) {
    let rig = Rig::new(18);
    let db = Db::connect(&rig.postgres.url());
    table(&db, case.payload_type);
    let router = "debezium.transforms.outbox";
    let lines = format!(
        "{}debezium.transforms=outbox\n\
         {router}.type=io.debezium.transforms.outbox.EventRouter\n\
         {router}.route.topic.replacement={}$${{routedByValue}}\n\
         {router}.table.fields.additional.placement={}\n{}",
        properties(&rig),
        rig.prefix,
        case.placement,
        case.lines
    );
    let debezium = Debezium::start(&rig, &lines);

    // The same settings with another slot and another broker.
    db.batch("SELECT pg_create_logical_replication_slot('beside', 'pgoutput')");
    let broker = Kafka::start();
    let beside = lines
        .replace("slot.name=outbox", "slot.name=beside")
        .replace(&rig.bootstrap, &broker.bootstrap_servers());
    let file = rig.path("beside.properties");
    fs::write(&file, beside).expect("written");
    let config = import(&rig, &file);
    let relay = relay(&rig, &config, "relay.log");
    relay.streaming();

    insert(&db, case.kind, case.payload);
    let slot = SlotWatch::new(&rig.postgres.url(), "beside");
    slot.wait_until(slot.wal_end(), PATIENCE);
    let limit = Duration::from_secs(180);
    let theirs = History::records(&rig.bootstrap, &rig.prefix, ROWS, limit);
    let ours = History::records(&broker.bootstrap_servers(), &rig.prefix, ROWS, limit);
    assert_eq!(
        theirs.len(),
        ROWS,
        "Debezium's records:\n{}",
        debezium.log()
    );
    assert_eq!(ours.len(), ROWS, "{}", relay.log());
    let (theirs, ours) = (places(&theirs), places(&ours));
    let partitions: Vec<_> = theirs.keys().collect();
    assert_eq!(
        partitions,
        ours.keys().collect::<Vec<_>>(),
        "topics and partitions"
    );
    let mut compared = 0;
    for (place, theirs) in &theirs {
        for (theirs, ours) in theirs.iter().zip(&ours[place]) {
            let about = |r: &Delivered| {
                format!(
                    "key {:?}\nvalue {:?}\nheaders {:#?}",
                    r.key.as_deref().map(String::from_utf8_lossy),
                    r.payload.as_deref().map(String::from_utf8_lossy),
                    r.headers
                        .iter()
                        .map(|(name, value)| {
                            (name, value.as_deref().map(String::from_utf8_lossy))
                        })
                        .collect::<Vec<_>>()
                )
            };
            let same = theirs.key == ours.key
                && theirs.payload == ours.payload
                && theirs.headers == ours.headers;
            assert!(
                same,
                "{place:?}\nDebezium's {}\nwalrelay's {}",
                about(theirs),
                about(ours)
            );
            compared += 1;
        }
        assert_eq!(theirs.len(), ours[place].len(), "{place:?}");
    }
    eprintln!(
        "{compared} records are the same, in {} partitions",
        theirs.len()
    );
    relay.ends_well();
}

/// Groups the records by topic and partition, in the order of their offsets.
fn places(records: &[Delivered]) -> BTreeMap<(String, i32), Vec<Delivered>> {
    let mut places: BTreeMap<_, Vec<_>> = BTreeMap::new();
    for record in records {
        let place = (record.topic.clone(), record.partition);
        places.entry(place).or_default().push(record.clone());
    }
    for records in places.values_mut() {
        records.sort_by_key(|record| record.offset);
    }
    places
}

/// Debezium Server's defaults: JSON with schemas, for keys, values and headers.
#[test]
#[ignore = "needs Debezium Server: make test-debezium"]
fn records_equal_those_of_debezium_servers_defaults() {
    same(&Case {
        kind: KINDS,
        payload_type: "jsonb",
        payload: JSON,
        placement: HEADERS,
        lines: "",
    });
}

/// Plain text, and tombstones.
#[test]
#[ignore = "needs Debezium Server: make test-debezium"]
fn texts_with_tombstones_equal_those_of_debezium() {
    same(&Case {
        kind: KINDS,
        payload_type: "text",
        payload: "(ARRAY[NULL, '', '  ', 'ü😀 \"', '{\"a\": 1}', '[1, 2]', 'null'])[1 + n % 7]",
        placement: HEADERS,
        lines: "debezium.transforms.outbox.route.tombstone.on.empty.payload=true\n\
                debezium.format.key=simplestring\n\
                debezium.format.value=simplestring\n\
                debezium.format.header.schemas.enable=false\n",
    });
}

/// Envelopes around expanded JSON payloads.
#[test]
#[ignore = "needs Debezium Server: make test-debezium"]
fn envelopes_of_expanded_json_equal_those_of_debezium() {
    same(&Case {
        // Debezium names the schema of an envelope after the first record of that shape.
        kind: "'order'",
        payload_type: "jsonb",
        payload: JSON,
        placement: "type:envelope:eventType,small:envelope,exact:envelope,at:envelope:when,\
                    local:envelope,tags:envelope,bytes:header",
        lines: "debezium.transforms.outbox.table.expand.json.payload=true\n\
                debezium.format.key.schemas.enable=false\n\
                debezium.format.header.schemas.enable=false\n",
    });
}

/// Payloads of bytes, unchanged.
#[test]
#[ignore = "needs Debezium Server: make test-debezium"]
fn payloads_of_bytes_equal_those_of_debezium() {
    same(&Case {
        kind: KINDS,
        payload_type: "bytea",
        payload: "decode(md5('payload' || n), 'hex')",
        placement: "type:header",
        lines: "debezium.format.key=simplestring\n\
                debezium.format.value=binary\n\
                debezium.format.schemas.enable=false\n\
                debezium.sink.kafka.producer.value.serializer=\
                org.apache.kafka.common.serialization.ByteArraySerializer\n",
    });
}
