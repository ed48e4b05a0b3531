//! Benchmark of the router by preset and converter: `make bench-router`.
//!
//! All contenders take turns in one process, on rows of the same payload. The fastest round counts,
//! as other load on the machine only adds time. Only the router is measured, from the decoded row
//! to the record: no reading of the socket, no decoding, no broker.

#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "a program for people, which ends where it cannot measure"
)]

use std::fmt::Write as _;
use std::hint::black_box;
use std::time::Instant;

use walrelay_event_router::{
    Additional, Converter, Event, Expand, JsonOptions, Lookups, Member, Object, Options, Preset,
    Route, Router, SubjectNames, Template, TemplateTarget, Templates, ValueFormat, ValueSchema,
    ValueTemplate, WireFormat,
};
use walrelay_lsn::{Lsn, RelationId, TypeOid};
use walrelay_pgoutput::{Message, PgTimestamp, Tuple, decode, encode};

const ROWS: usize = 256;
const ROUNDS: usize = 40;
/// Number of times that a round routes all rows.
const PASSES: usize = 20;

/// The columns that all contenders need together, with the OIDs of their types.
const COLUMNS: &[(&str, u32)] = &[
    ("id", 2950),
    ("aggregatetype", 25),
    ("aggregate_type", 25),
    ("aggregateid", 25),
    ("aggregate_id", 2950),
    ("type", 25),
    ("event_type", 25),
    ("payload", 3802),
    ("metadata", 3802),
    ("created_at", 1184),
    ("payload_bytes", 17),
];

/// Types of the aggregates, used in turn.
const KINDS: [&str; 2] = ["Order", "Customer"];

fn contenders() -> Vec<(&'static str, Router)> {
    let preset = |preset: Preset| Route::from(preset.routes().expect("templates"));
    let mut routes = debezium();
    routes.extend(Preset::ALL.map(|each| (each.name, preset(each))));
    routes.push((
        "custom: lookup, json, replace, five headers",
        Route::from(custom()),
    ));
    let mut contenders: Vec<_> = routes
        .into_iter()
        .map(|(name, route)| (name, Router::new(route)))
        .collect();
    contenders.extend([
        (
            "debezium, JSON by a registry's schema",
            by_schema(ValueFormat::Json),
        ),
        (
            "debezium, Avro by a registry's schema",
            by_schema(ValueFormat::Avro),
        ),
    ]);
    contenders
}

/// Creates a router with Debezium's defaults, with the value in a registry's wire format and known
/// schemas.
fn by_schema(format: ValueFormat) -> Router {
    let mut router = Router::new(Options::default()).with_wire_format(Some(WireFormat {
        format,
        subjects: SubjectNames::Topic,
        record: None,
        lookups: Lookups::new(),
    }));
    for kind in KINDS {
        let schema = match format {
            ValueFormat::Json => ValueSchema::json(7),
            ValueFormat::Avro => ValueSchema::avro(7, AVRO).expect("a schema"),
        };
        router.learn(&format!("outbox.event.{kind}-value"), schema);
    }
    router
}

/// The schema of the payloads of [`rows`].
const AVRO: &str = r#"{"type": "record", "name": "Order", "fields": [
    {"name": "total", "type": "double"},
    {"name": "customer", "type": {"type": "record", "name": "Customer", "fields": [
        {"name": "id", "type": "long"},
        {"name": "name", "type": "string"}]}},
    {"name": "lines", "type": {"type": "array", "items": {"type": "record", "name": "Line", "fields": [
        {"name": "sku", "type": "string"},
        {"name": "qty", "type": "int"},
        {"name": "note", "type": "string"}]}}}]}"#;

/// Routes of Debezium's rules: each converter for each part, the other parts with the defaults, and
/// options that change the record.
fn debezium() -> Vec<(&'static str, Route)> {
    let json = |schemas| {
        Converter::Json(JsonOptions {
            schemas,
            ..JsonOptions::default()
        })
    };
    let with = |change: &dyn Fn(&mut Options)| {
        let mut options = Options {
            topic_prefix: "srv".to_owned(),
            ..Options::default()
        };
        change(&mut options);
        Route::from(options)
    };
    let key = |converter: Converter| with(&|options| options.key_converter = converter.clone());
    let value = |converter: Converter| with(&|options| options.value_converter = converter.clone());
    let header =
        |converter: Converter| with(&|options| options.header_converter = converter.clone());
    let of_bytea = |converter: Converter| {
        with(&|options| {
            "payload_bytes".clone_into(&mut options.payload);
            options.value_converter = converter.clone();
        })
    };
    let expanded = |converter: Converter| {
        with(&|options| {
            options.expand = Some(Expand::default());
            options.value_converter = converter.clone();
        })
    };
    let all = |schemas, additional: &str| {
        with(&|options| {
            options.key_converter = json(schemas);
            options.value_converter = json(schemas);
            options.header_converter = json(schemas);
            if !additional.is_empty() {
                options.additional = Additional::parse(additional).expect("placements");
            }
        })
    };
    let more = "type:header:eventType,created_at:header,event_type:envelope:type,id:envelope:id";
    vec![
        ("debezium: string, string, simple", with(&|_| {})),
        ("… key: json", key(json(false))),
        ("… key: json with schemas", key(json(true))),
        ("… value: json", value(json(false))),
        ("… value: json with schemas", value(json(true))),
        (
            "… value: bytearray, of bytea",
            of_bytea(Converter::ByteArray),
        ),
        (
            "… value: binarydata, of bytea",
            of_bytea(Converter::BinaryData(None)),
        ),
        (
            "… value: binarydata, json for the rest",
            value(Converter::BinaryData(Some(Box::new(json(false))))),
        ),
        ("… value: string, expanded", expanded(Converter::String)),
        ("… value: json, expanded", expanded(json(false))),
        ("… value: json with schemas, expanded", expanded(json(true))),
        ("… header: string", header(Converter::String)),
        ("… header: json", header(json(false))),
        ("… header: json with schemas", header(json(true))),
        ("… all: json", all(false, "")),
        ("… all: json with schemas", all(true, "")),
        (
            "… all: json with schemas, envelope, two headers more",
            all(true, more),
        ),
    ]
}

/// Creates a route of templates that uses most features.
fn custom() -> Templates {
    let rows = [("order.placed", "orders"), ("order.paid", "payments")];
    let rows = rows.map(|(from, to)| (from.to_owned(), to.to_owned()));
    let lookups = Lookups::from([("topics".to_owned(), rows.into())]);
    let template = |text: &str, place| Template::parse(text, place, &lookups).expect("a template");
    let header =
        |(name, text): (&str, &str)| (name.to_owned(), template(text, TemplateTarget::Header));
    let member = |(name, text): (&str, &str)| {
        let member = Member::Template(template(text, TemplateTarget::Member));
        (name.to_owned(), member)
    };
    Templates {
        id: Some("id".to_owned()),
        topic: template(
            "shop.{event_type | lookup('topics')}",
            TemplateTarget::Topic,
        ),
        key: Some(template(
            "{aggregate_id | replace('-', '')}",
            TemplateTarget::Key,
        )),
        value: ValueTemplate::Object(Object {
            members: [
                ("id", "{id}"),
                ("customer", "{payload | json('customer', 'name') | upper}"),
                ("data", "{payload}"),
                ("at", "{created_at}"),
            ]
            .map(member)
            .into(),
        }),
        headers: [
            ("id", "{id}"),
            ("type", "{event_type}"),
            ("kind", "{event_type | after('.')}"),
            ("tenant", "{metadata | json('tenant') | default('none')}"),
            ("source", "shop"),
        ]
        .map(header)
        .into(),
        partition: None,
        timestamp: Some(template("{created_at}", TemplateTarget::Timestamp)),
        lookups: lookups.clone(),
    }
}

/// Encodes Insert messages with a payload of about 300 bytes.
fn rows(table: &encode::Table) -> Vec<Vec<u8>> {
    (0..ROWS)
        .map(|number| {
            let id = format!("018f5a3e-7c1d-7b1a-9c55-{number:012x}");
            let payload = format!(
                "{{\"total\": {number}.50, \"customer\": {{\"id\": {number}, \"name\": \"Zoë \\\"Z\\\"\"}}, \
                 \"lines\": [{{\"sku\": \"A-{number}\", \"qty\": 2, \"note\": \"{}\"}}]}}",
                "n".repeat(190)
            );
            let kind = KINDS[number % 2];
            let event = if number % 3 == 0 { "order.placed" } else { "order.paid" };
            let mut hex = "\\x".to_owned();
            for byte in payload.bytes() {
                write!(hex, "{byte:02x}").expect("a String takes all");
            }
            let metadata = (number % 4 != 0).then_some("{\"tenant\": \"acme\"}");
            table.insert(&[
                Some(&id),
                Some(kind),
                Some(kind),
                Some("aggregate-17"),
                Some(&id),
                Some(event),
                Some(event),
                Some(&payload),
                metadata,
                Some("2026-01-02 03:04:05.678901+00"),
                Some(&hex),
            ])
        })
        .collect()
}

struct Contender {
    name: &'static str,
    router: Router,
    /// Duration of each round in seconds.
    rounds: Vec<f64>,
}

fn pass(router: &mut Router, rows: &[(RelationId, Tuple<'_>)]) -> usize {
    let event = Event {
        epoch: 0,
        commit_lsn: Lsn::new(0x016b_3748),
        row: 0,
        commit_time: PgTimestamp::new(0),
    };
    let mut bytes = 0;
    for (relation, row) in rows {
        let routed = router.route(*relation, row, &event).expect("a record");
        bytes += black_box(routed.record()).payload_bytes();
    }
    bytes
}

fn main() {
    let mut table = encode::Table::new(RelationId::new(16_400), "public", "outbox");
    for (name, type_oid) in COLUMNS {
        table = table.column(name, TypeOid::new(*type_oid));
    }
    let messages = rows(&table);
    let rows: Vec<(RelationId, Tuple<'_>)> = messages
        .iter()
        .map(|message| match decode(message) {
            Ok(Message::Insert(insert)) => (insert.relation, insert.tuple),
            other => panic!("{other:?}"),
        })
        .collect();
    let announced = table.relation();
    let Ok(Message::Relation(relation)) = decode(&announced) else {
        panic!("not a relation")
    };
    let mut contenders: Vec<Contender> = contenders()
        .into_iter()
        .map(|(name, mut router)| {
            router.relation(&relation).expect(name);
            pass(&mut router, &rows);
            Contender {
                name,
                router,
                rounds: Vec::new(),
            }
        })
        .collect();
    for round in 0..ROUNDS {
        // The order rotates, as the first contender of a round has a cooler processor.
        let count = contenders.len();
        for turn in 0..count {
            let contender = &mut contenders[(turn + round) % count];
            let begun = Instant::now();
            for _ in 0..PASSES {
                black_box(pass(&mut contender.router, &rows));
            }
            contender.rounds.push(begun.elapsed().as_secs_f64());
        }
    }
    println!("| route | ns per row, least | median | bytes of the record | allocations per row |");
    println!("|---|---:|---:|---:|---:|");
    for contender in &mut contenders {
        contender.rounds.sort_by(f64::total_cmp);
        let per_row = |seconds: f64| seconds * 1e9 / (PASSES * ROWS) as f64;
        let least = per_row(contender.rounds[0]);
        let median = per_row(contender.rounds[ROUNDS / 2]);
        let mut bytes = 0;
        let allocated = allocation_counter::measure(|| bytes = pass(&mut contender.router, &rows));
        println!(
            "| {} | {least:.0} | {median:.0} | {} | {:.1} |",
            contender.name,
            bytes / ROWS,
            allocated.count_total as f64 / ROWS as f64
        );
    }
}
