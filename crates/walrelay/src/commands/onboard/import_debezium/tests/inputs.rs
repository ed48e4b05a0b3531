//! Both kinds of input, repeated settings, and broken inputs.

use super::*;

#[test]
fn a_connector_of_kafka_connect() {
    let expected = [
        Supported,
        Line("url = \"postgres://cdc:${PGPASSWORD}@db:5433/app\""),
        Line("slot = \"orders\""),
        Line("publication = \"orders_pub\""),
        Line("tables = [\"public.outbox\"]"),
        Line("create = false"),
        Line("preset = \"debezium\""),
        Line("\"route.by.field\" = \"aggregate_type\""),
        Line("\"topic.prefix\" = \"srv\""),
        Line("\"key.converter\" = \"string\""),
        Line("\"header.converter\" = \"simple\""),
        Line("\"bootstrap.servers\" = \"broker:9092\""),
    ];
    let imported = connect(&[], &expected);
    let variables = imported.report.variables.iter();
    let variables: Vec<_> = variables.map(|v| (&*v.name, v.remark)).collect();
    assert_eq!(variables, [("PGPASSWORD", None)]);
    let defaults = [
        Line("slot = \"debezium\""),
        Line("publication = \"dbz_publication\""),
    ];
    connect(
        &[("slot.name", REMOVED), ("publication.name", REMOVED)],
        &defaults,
    );
}

#[test]
fn debezium_server() {
    let expected = [
        Supported,
        Line("url = \"postgres://cdc:${PGPASSWORD}@db/app\""),
        Line("\"route.topic.replacement\" = \"app.${routedByValue}\""),
        Line("\"value.converter\" = \"string\""),
        Line("kind = \"kafka\""),
    ];
    let imported = server("", &expected);
    for (key, line) in [
        ("debezium.source.connector.class", 1),
        ("debezium.sink.type", 19),
    ] {
        let mut rows = imported.report.rows.iter();
        let row = rows.find(|row| row.key == key).unwrap();
        assert_eq!(row.line, Some(line));
    }

    let more = "debezium.transforms.outbox.table.field.event.timestamp=ts\n\
         debezium.transforms.outbox.table.fields.additional.placement=p:partition\n\
         quarkus.log.level=WARN\nquarkus.log.console.json=true\nquarkus.http.port=8080\n\
         debezium.sink.kafka.wait.message.delivery.timeout.ms=1\n\
         debezium.sink.redis.address=x\n%dev.quarkus.log.level=DEBUG\n";
    let timestamp = "debezium.transforms.outbox.table.field.event.timestamp";
    let placement = "debezium.transforms.outbox.table.fields.additional.placement";
    let expected = [
        NoEffect(timestamp, "sends no timestamps"),
        NoEffect(placement, "partition"),
        Line("level = \"warn\""),
        Line("format = \"json\""),
        NoEffect("debezium.sink.redis.address", "another sink"),
        Unsupported("%dev.quarkus.log.level", "no known"),
    ];
    server(more, &expected);
}

#[test]
fn settings_that_are_there_twice_are_reported_twice() {
    let text = CONNECT.replace("\"slot.name\"", "\"slot.name\": \"first\", \"slot.name\"");
    let imported = import(&text, None, &[], false);
    let rows = imported.report.rows.iter();
    let slots: Vec<&Row> = rows.filter(|row| row.key == "slot.name").collect();
    assert!(matches!(slots[0].outcome, Outcome::NoEffect { .. }));
    assert!(matches!(slots[1].outcome, Outcome::TakenOver { .. }));
    expect(&imported, &[Line("slot = \"orders\"")]);
    let null = CONNECT.replace("\"orders\"", "null");
    let expected = [NoEffect("slot.name", "null"), Line("slot = \"debezium\"")];
    expect(&import(&null, None, &[], false), &expected);
}

#[test]
fn two_settings_for_one_key_are_not_written_twice() {
    let gzip = "producer.override.compression.gzip.level";
    let zstd = "producer.override.compression.zstd.level";
    let settings = [
        (gzip, "3"),
        (zstd, "4"),
        ("database.server.name", "old"),
        ("field.name.adjustment.mode", "avro"),
    ];
    let expected = [
        Taken(gzip, "sink.kafka.compression.level"),
        Unsupported(zstd, "written already"),
        NoEffect("database.server.name", "since Debezium 2.0"),
        Breaks("field.name.adjustment.mode", "renames"),
    ];
    connect(&settings, &expected);
}

#[test]
fn a_value_that_walrelay_refuses_is_not_supported() {
    for (key, value, words) in [
        ("transforms.outbox.no.such.option", "x", "no such option"),
        ("transforms.outbox.route.topic.regex", "(a", ""),
        ("slot.name", "Not A Slot", "source.slot"),
    ] {
        let imported = connect(&[(key, value)], &[Breaks(key, words)]);
        let toml = &imported.toml;
        assert!(!toml.contains(&format!("= \"{value}\"")), "{toml}");
        assert!(toml.contains(&format!("#   {key}\n")), "{toml}");
    }
}

#[test]
fn settings_without_effect_are_explained() {
    let settings = [
        ("heartbeat.interval.ms", "10000"),
        ("heartbeat.action.query", "UPDATE hb SET at = now()"),
        ("poll.interval.ms", "10"),
        ("max.batch.size", "4096"),
        ("snapshot.mode", "initial"),
        ("tombstones.on.delete", "false"),
        ("skipped.operations", "t,u"),
        ("offset.flush.interval.ms", "1000"),
        ("status.update.interval.ms", "5000"),
        ("lsn.flush.mode", "connector_and_driver"),
        ("tasks.max", "1"),
        ("errors.max.retries", "3"),
        ("provide.transaction.metadata", "false"),
        ("topic.delimiter", "."),
    ];
    let expected = [
        Supported,
        NoEffect("heartbeat.interval.ms", "idle slot"),
        NoEffect("snapshot.mode", "starts at the slot's position"),
    ];
    connect(&settings, &expected);
    let settings = [
        ("snapshot.mode", "always"),
        ("skipped.operations", "c"),
        ("lsn.flush.mode", "manual"),
        ("column.mask.with.3.chars", "a.b"),
        ("message.prefix.include.list", "outbox"),
        ("no.option.of.anything", "x"),
        ("converters", "geo"),
        ("geo.type", "x.Y"),
    ];
    let expected = [
        Unsupported("snapshot.mode", "at each start"),
        Breaks("skipped.operations", "INSERT"),
        Unsupported("lsn.flush.mode", "slot"),
        Breaks("column.mask.with.3.chars", "written"),
        Unsupported("message.prefix.include.list", "pg_logical_emit_message"),
        Unsupported("no.option.of.anything", "no known"),
        Unsupported("geo.type", "converters"),
    ];
    connect(&settings, &expected);
}

#[test]
fn written_values_expand_to_the_original() {
    for text in [
        "",
        "plain",
        "$",
        "$$",
        "${A}",
        "$${A}",
        "$$${A}",
        "${routedByValue}",
        "$${routedByValue}",
        "${${A}",
        "a$1b",
        "${A",
        "${}",
        "x${A}y${b}z$",
        "$${",
        "${",
    ] {
        let imported = connect(&[("producer.override.client.id", text)], &[]);
        let table: toml::Table = imported.toml.parse().unwrap();
        let written = table["sink"]["kafka"]["client.id"].as_str().unwrap();
        assert_eq!(expand_for_tests(written), text, "{written}");
    }
}

/// Random changes to inputs: none panics, and those that can be parsed keep the invariants.
#[test]
fn broken_inputs_are_imported_or_refused() {
    let mut random = fastrand::Rng::with_seed(6);
    let pieces: [&[u8]; 12] = [
        b"${",
        b"}",
        b"$",
        b"\\",
        b"\n",
        b"\"",
        b":",
        b"=",
        b",",
        b"\\u00",
        b"\xc3\xbc",
        b"database.",
    ];
    let mut read = 0;
    for _ in 0..3_000 {
        let seed = if random.bool() { CONNECT } else { SERVER };
        let mut bytes = seed.as_bytes().to_vec();
        for _ in 0..random.usize(1..6) {
            let at = random.usize(0..bytes.len());
            match random.u8(0..4) {
                0 => drop(bytes.remove(at)),
                1 => bytes[at] = random.u8(..),
                2 => {
                    let to = random.usize(at..bytes.len().min(at + 60));
                    drop(bytes.drain(at..to));
                }
                _ => {
                    let piece = pieces[random.usize(0..pieces.len())];
                    bytes.splice(at..at, piece.iter().copied());
                }
            }
        }
        // A change may split the password, and its parts may appear in the report: remove it.
        let text = String::from_utf8_lossy(&bytes).replace("hunter2", "other");
        if Input::parse(&text, None).is_ok() {
            import(&text, None, &[], false);
            read += 1;
        }
    }
    assert!(read > 500, "{read}");
}
