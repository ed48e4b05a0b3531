//! Settings of the event router and of converters.

use super::*;

#[test]
fn without_a_router_of_its_own_there_is_nothing_to_import() {
    let no_router = "no transform is the outbox event router";
    for (key, value, words) in [
        ("transforms", REMOVED, no_router),
        (
            "transforms.outbox.type",
            "io.debezium.transforms.ExtractNewRecordState",
            no_router,
        ),
        (
            "connector.class",
            "io.debezium.connector.mysql.MySqlConnector",
            "connector.class",
        ),
        ("connector.class", REMOVED, "connector.class is missing"),
    ] {
        connect(&[(key, value)], &[Fatal(words)]);
    }
    let pulsar = SERVER.replace("sink.type=kafka", "sink.type=pulsar");
    expect(&import(&pulsar, None, &[], false), &[Fatal("no other")]);
}

#[test]
fn a_router_behind_something_else_is_refused() {
    let predicate = [
        ("transforms.outbox.predicate", "isOutbox"),
        ("transforms.outbox.negate", "true"),
        ("predicates", "isOutbox"),
        (
            "predicates.isOutbox.type",
            "org.apache.kafka.connect.transforms.predicates.TopicNameMatches",
        ),
        ("predicates.isOutbox.pattern", ".*outbox"),
    ];
    let expected = [
        Breaks("transforms.outbox.predicate", "behind a predicate"),
        Unsupported("predicates.isOutbox.type", "no predicates"),
    ];
    let imported = connect(&predicate, &expected);
    let partial = failures(&imported, true);
    assert!(partial.is_empty(), "--partial writes the rest");

    let other = [
        ("transforms", "unwrap, outbox"),
        (
            "transforms.unwrap.type",
            "io.debezium.transforms.ExtractNewRecordState",
        ),
        ("transforms.unwrap.drop.tombstones", "false"),
        ("transforms.gone.type", "x.Y"),
    ];
    let expected = [
        Breaks("transforms", "not the only transform"),
        Breaks("transforms.unwrap.type", "ExtractNewRecordState"),
        Unsupported("transforms.unwrap.drop.tombstones", "unwrap"),
        NoEffect("transforms.gone.type", "no transform in"),
    ];
    connect(&other, &expected);
}

#[test]
fn converters_of_the_worker_are_not_guessed_in_silence() {
    const STRING: &str = "org.apache.kafka.connect.storage.StringConverter";
    let without = [("key.converter", REMOVED), ("value.converter", REMOVED)];
    connect(&without, &[Urgent(&["key.converter", "value.converter"])]);
    let worker = format!(
        "bootstrap.servers=w:9092\nkey.converter={STRING}\nkey.converter.schemas.enable=false\n\
         value.converter={STRING}\ngroup.id=connect\nproducer.linger.ms=5\n\
         producer.override.x=1\n"
    );
    let text = connector(&[
        ("key.converter", REMOVED),
        ("key.converter.schemas.enable", "true"),
        ("producer.override.bootstrap.servers", REMOVED),
    ]);
    let imported = import(&text, Some(&worker), &[], false);
    let expected = [
        Line("\"bootstrap.servers\" = \"w:9092\""),
        Line("\"linger.ms\" = \"5\""),
        NoEffect("group.id", "the worker"),
        Taken("key.converter", "router.converters.key.converter"),
    ];
    expect(&imported, &expected);
    let mut rows = imported.report.rows.iter();
    let value = rows.find(|row| row.key == "value.converter" && row.file.is_some());
    let outcome = &value.unwrap().outcome;
    assert!(matches!(outcome, Outcome::NoEffect { .. }), "{outcome:?}");
}

#[test]
fn foreign_converters_are_refused_by_name() {
    let registry = "value.converter.schema.registry.url";
    let settings = [
        ("value.converter", "io.confluent.connect.avro.AvroConverter"),
        (registry, "http://r:8081"),
    ];
    let expected = [
        Breaks("value.converter", "AvroConverter"),
        Unsupported(registry, "not supported"),
    ];
    connect(&settings, &expected);
    let format = "debezium.format.value";
    server("debezium.format.value=avro\n", &[Breaks(format, "avro")]);
}

/// Options of the router, of transforms of values and of converters keep their names.
#[test]
fn settings_that_shape_records_are_taken_over() {
    let json = "org.apache.kafka.connect.json.JsonConverter";
    let settings = [
        ("transforms.outbox.table.expand.json.payload", "true"),
        ("transforms.outbox.table.op.invalid.behavior", "WARN"),
        ("transforms.outbox.route.topic.regex", "(?<a>\\w+)"),
        ("transforms.outbox.route.topic.replacement", "x.${a}"),
        (
            "transforms.outbox.table.fields.additional.placement",
            "type:header:eventType,p:partition",
        ),
        ("extended.headers.enabled", REMOVED),
        ("decimal.handling.mode", "string"),
        ("binary.handling.mode", "bytes"),
        ("money.fraction.digits", "3"),
        ("key.converter", json),
        ("key.converter.schemas.enable", "false"),
        (
            "value.converter",
            "io.debezium.converters.BinaryDataConverter",
        ),
        ("value.converter.delegate.converter.type", json),
        (
            "value.converter.delegate.converter.type.schemas.enable",
            "false",
        ),
    ];
    let expected = [
        Supported,
        Line("\"table.expand.json.payload\" = true"),
        Line("\"table.op.invalid.behavior\" = \"warn\""),
        Line("\"route.topic.regex\" = \"(?<a>\\\\w+)\""),
        Line("\"table.fields.additional.placement\" = \"type:header:eventType,p:partition\""),
        Line("\"extended.headers.enabled\" = true"),
        Line("\"decimal.handling.mode\" = \"string\""),
        Line("\"money.fraction.digits\" = 3"),
        Line("\"key.converter\" = \"json\""),
        Line("\"key.converter.schemas.enable\" = false"),
        Line("\"value.converter\" = \"binarydata\""),
        Line("\"value.converter.delegate.converter.type.schemas.enable\" = false"),
    ];
    connect(&settings, &expected);

    let header =
        "debezium.format.header.class=org.apache.kafka.connect.storage.SimpleHeaderConverter\n";
    let text = SERVER
        .replace("debezium.format.key=simplestring\n", "")
        .replace(
            "debezium.format.value=simplestring\n",
            "debezium.format.schemas.enable=false\n",
        )
        .replace(header, "debezium.format.key.schemas.enable=true\n");
    let expected = [
        Supported,
        Line("\"key.converter\" = \"json\""),
        Line("\"key.converter.schemas.enable\" = true"),
        Line("\"value.converter.schemas.enable\" = false"),
        Line("\"header.converter\" = \"json\""),
        Line("\"header.converter.schemas.enable\" = false"),
    ];
    expect(&import(&text, None, &[], false), &expected);
}
