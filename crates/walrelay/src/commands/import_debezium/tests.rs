//! What is taken over, by inputs of both kinds. Every input is held against the same invariants.

use std::collections::BTreeSet;

use super::report::{Outcome, Row};
use super::*;

const CONNECT: &str = r#"{"name": "outbox", "config": {
    "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
    "plugin.name": "pgoutput",
    "database.hostname": "db", "database.port": "5433", "database.user": "cdc",
    "database.password": "hunter2@", "database.dbname": "app",
    "topic.prefix": "srv", "slot.name": "orders", "publication.name": "orders_pub",
    "publication.autocreate.mode": "disabled",
    "table.include.list": "public\\.outbox",
    "transforms": "outbox",
    "transforms.outbox.type": "io.debezium.transforms.outbox.EventRouter",
    "transforms.outbox.route.by.field": "aggregate_type",
    "key.converter": "org.apache.kafka.connect.storage.StringConverter",
    "value.converter": "org.apache.kafka.connect.storage.StringConverter",
    "header.converter": "org.apache.kafka.connect.storage.SimpleHeaderConverter",
    "extended.headers.enabled": "false",
    "producer.override.bootstrap.servers": "broker:9092"
}}"#;

const SERVER: &str = r"debezium.source.connector.class=io.debezium.connector.postgresql.PostgresConnector
debezium.source.plugin.name=pgoutput
debezium.source.database.hostname=db
debezium.source.database.user=cdc
debezium.source.database.password=hunter2@
debezium.source.database.dbname=app
debezium.source.topic.prefix=app
debezium.source.slot.name=outbox
debezium.source.publication.name=outbox_pub
debezium.source.publication.autocreate.mode=filtered
debezium.source.table.include.list=public.outbox
debezium.source.extended.headers.enabled=false
debezium.transforms=outbox
debezium.transforms.outbox.type=io.debezium.transforms.outbox.EventRouter
debezium.transforms.outbox.route.topic.replacement=app.$${routedByValue}
debezium.format.key=simplestring
debezium.format.value=simplestring
debezium.format.header.class=org.apache.kafka.connect.storage.SimpleHeaderConverter
debezium.sink.type=kafka
debezium.sink.kafka.producer.bootstrap.servers=broker:9092
";

/// Imports, and holds what came of it against what is always so.
fn outcome_of(text: &str, worker: Option<&str>, tables: &[&str], with_secrets: bool) -> Imported {
    let keys: Vec<String> = {
        let input = settings::read(text, worker).unwrap();
        input.settings.into_iter().map(|s| s.key).collect()
    };
    let tables: Vec<String> = tables.iter().map(|table| (*table).to_owned()).collect();
    let input = settings::read(text, worker).unwrap();
    let imported = translate(input, &tables, with_secrets);

    let rows: Vec<&str> = imported
        .report
        .rows
        .iter()
        .map(|r| r.key.as_str())
        .collect();
    assert_eq!(
        rows, keys,
        "each setting is in the report, once and in its place"
    );
    let report = imported.report.text();
    for row in &imported.report.rows {
        let key = report::printable(&row.key);
        let lines = report.lines().filter(|line| {
            let rest = line.get("NOT SUPPORTED  ".len()..).unwrap_or_default();
            rest.trim_start_matches("worker: ").starts_with(&key)
        });
        assert!(lines.count() >= 1, "{}: {report}", row.key);
    }
    let all = format!("{report}{}", imported.report.json());
    for secret in ["hunter2", "s3cret"] {
        assert!(!all.contains(secret), "{all}");
        assert!(
            with_secrets || !imported.toml.contains(secret),
            "{}",
            imported.toml
        );
    }
    if imported.fatal.is_empty() {
        let env = |name: &str| {
            let known = imported
                .report
                .variables
                .iter()
                .any(|(known, _)| known == name);
            assert!(known, "{name} is not in the report");
            Some("x".to_owned())
        };
        let read = Config::parse(&imported.toml, "walrelay.toml", &[], &env);
        assert!(read.is_ok(), "{}\n{}", read.unwrap_err(), imported.toml);
        claims(&imported);
    }
    imported
}

/// What the report says was taken over stands there.
fn claims(imported: &Imported) {
    let table: toml::Table = imported.toml.parse().unwrap();
    for row in &imported.report.rows {
        let Outcome::Taken { to, .. } = &row.outcome else {
            continue;
        };
        for path in to {
            let sections = [
                "router.debezium",
                "router.converters",
                "sink.kafka",
                "sink.topics",
            ];
            let section = sections
                .into_iter()
                .find(|section| path.starts_with(&format!("{section}.")))
                .unwrap_or_else(|| path.split('.').next().unwrap());
            let key = &path[section.len() + 1..];
            let mut at = &table;
            for part in section.split('.') {
                at = at[part].as_table().unwrap();
            }
            assert!(
                at.contains_key(key),
                "{}: no {path} in\n{}",
                row.key,
                imported.toml
            );
        }
    }
}

fn connect(changes: &[(&str, Option<&str>)]) -> Imported {
    outcome_of(&connector(changes), None, &[], false)
}

/// [`CONNECT`] with other settings; `None` takes one away.
fn connector(changes: &[(&str, Option<&str>)]) -> String {
    let mut json: serde_json::Value = serde_json::from_str(CONNECT).unwrap();
    let config = json["config"].as_object_mut().unwrap();
    for (key, value) in changes {
        match value {
            Some(value) => config.insert((*key).to_owned(), (*value).into()),
            None => config.remove(*key),
        };
    }
    json.to_string()
}

fn server(more: &str) -> Imported {
    outcome_of(&format!("{SERVER}{more}"), None, &[], false)
}

#[track_caller]
fn row<'a>(imported: &'a Imported, key: &str) -> &'a Row {
    let mut rows = imported.report.rows.iter();
    rows.find(|row| row.key == key)
        .unwrap_or_else(|| panic!("no row {key}"))
}

#[track_caller]
fn is_taken(imported: &Imported, key: &str, path: &str) {
    match &row(imported, key).outcome {
        Outcome::Taken { to, .. } => assert!(to.iter().any(|to| to == path), "{key}: {to:?}"),
        other => panic!("{key}: {other:?}"),
    }
}

#[track_caller]
fn is_none(imported: &Imported, key: &str, words: &str) {
    match &row(imported, key).outcome {
        Outcome::NoEffect { why } => assert!(why.contains(words), "{key}: {why}"),
        other => panic!("{key}: {other:?}"),
    }
}

#[track_caller]
fn is_unsupported(imported: &Imported, key: &str, breaking: bool, words: &str) {
    match &row(imported, key).outcome {
        Outcome::Unsupported { remedy, breaks } => {
            assert!(remedy.contains(words), "{key}: {remedy}");
            assert_eq!(*breaks, breaking, "{key}");
            let refused = !imported.failures(false).is_empty();
            assert!(refused || !breaking, "{key} is not refused");
        }
        other => panic!("{key}: {other:?}"),
    }
}

#[track_caller]
fn has(imported: &Imported, line: &str) {
    let found = imported
        .toml
        .lines()
        .any(|l| l.split("  # ").next() == Some(line));
    assert!(found, "no line {line} in\n{}", imported.toml);
}

#[test]
fn a_connector_of_kafka_connect() {
    let imported = connect(&[]);
    assert!(
        imported.failures(false).is_empty(),
        "{:?}",
        imported.failures(false)
    );
    for line in [
        "url = \"postgres://cdc:${PGPASSWORD}@db:5433/app\"",
        "slot = \"orders\"",
        "publication = \"orders_pub\"",
        "tables = [\"public.outbox\"]",
        "create = false",
        "preset = \"debezium\"",
        "\"route.by.field\" = \"aggregate_type\"",
        "\"topic.prefix\" = \"srv\"",
        "\"key.converter\" = \"string\"",
        "\"header.converter\" = \"simple\"",
        "\"bootstrap.servers\" = \"broker:9092\"",
    ] {
        has(&imported, line);
    }
    assert_eq!(imported.report.variables, [("PGPASSWORD".to_owned(), None)]);
    assert_eq!(imported.report.counts().2, 0);
}

#[test]
fn debezium_server() {
    let imported = server("");
    assert!(
        imported.failures(false).is_empty(),
        "{:?}",
        imported.failures(false)
    );
    for line in [
        "url = \"postgres://cdc:${PGPASSWORD}@db/app\"",
        "\"route.topic.replacement\" = \"app.${routedByValue}\"",
        "\"value.converter\" = \"string\"",
        "kind = \"kafka\"",
    ] {
        has(&imported, line);
    }
    let line = |key: &str| row(&imported, key).line;
    assert_eq!(line("debezium.source.connector.class"), Some(1));
    assert_eq!(line("debezium.sink.type"), Some(19));
}

#[test]
fn defaults_of_debezium_are_written_out() {
    let imported = connect(&[("slot.name", None), ("publication.name", None)]);
    has(&imported, "slot = \"debezium\"");
    has(&imported, "publication = \"dbz_publication\"");
}

#[test]
fn passwords_are_asked_for() {
    let imported = outcome_of(CONNECT, None, &[], true);
    has(&imported, "url = \"postgres://cdc:hunter2%40@db:5433/app\"");
    let reference = connect(&[("database.password", Some("${env:DB_PW}"))]);
    has(&reference, "url = \"postgres://cdc:${DB_PW}@db:5433/app\"");
    let file = connect(&[(
        "database.password",
        Some("${file:/run/s3cret.properties:pw}"),
    )]);
    has(&file, "url = \"postgres://cdc:${PGPASSWORD}@db:5433/app\"");
    let server = server("debezium.source.database.password=${PG_PW:hunter2}\n");
    has(&server, "url = \"postgres://cdc:${PGPASSWORD}@db/app\"");
    is_none(
        &server,
        "debezium.source.database.password",
        "set again further down",
    );
}

#[test]
fn encryption_of_postgres() {
    let imported = connect(&[
        ("database.sslmode", Some("verify-full")),
        ("database.sslrootcert", Some("/etc/ca file.pem")),
        ("database.sslcert", Some("/etc/c.pem")),
        ("database.sslkey", Some("/etc/c.pk8")),
        ("database.sslpassword", Some("s3cret")),
        ("database.tcpKeepAlive", Some("true")),
        ("driver.connectTimeout", Some("7")),
        ("driver.loginTimeout", Some("9")),
        ("database.initial.statements", Some("SET x = 1")),
    ]);
    let (_, url) = imported.toml.split_once("url = \"").unwrap();
    let url = url.split('"').next().unwrap();
    for part in [
        "sslmode=verify-full",
        "sslrootcert=%2Fetc%2Fca%20file.pem",
        "connect_timeout=",
    ] {
        assert!(url.contains(part), "{url}");
    }
    is_unsupported(&imported, "database.sslpassword", false, "decrypt it");
    is_none(&imported, "database.tcpKeepAlive", "anyway");
    is_unsupported(
        &imported,
        "database.initial.statements",
        false,
        "ALTER ROLE",
    );
    let allow = connect(&[("database.sslmode", Some("allow"))]);
    assert!(allow.toml.contains("sslmode=prefer"), "{}", allow.toml);
}

#[test]
fn what_the_input_lacks_comes_from_the_environment() {
    let imported = connect(&[
        ("database.hostname", None),
        ("producer.override.bootstrap.servers", None),
    ]);
    has(
        &imported,
        "url = \"postgres://cdc:${PGPASSWORD}@${DATABASE_HOSTNAME}:5433/app\"",
    );
    has(
        &imported,
        "\"bootstrap.servers\" = \"${KAFKA_BOOTSTRAP_SERVERS}\"",
    );
    let urgent = imported.report.notes.iter().filter(|note| note.urgent);
    let about: BTreeSet<&str> = urgent.map(|note| note.about.as_str()).collect();
    assert!(about.contains("database.hostname") && about.contains("bootstrap.servers"));
    // Debezium Server finds it under this name too.
    let text = SERVER.replace("debezium.source.database.hostname=db\n", "");
    let imported = outcome_of(&text, None, &[], false);
    assert!(
        imported
            .toml
            .contains("@${DEBEZIUM_SOURCE_DATABASE_HOSTNAME}/")
    );
}

#[test]
fn tables_are_named_or_asked_for() {
    let text = connector(&[("table.include.list", Some("public\\.outbox, app.Events"))]);
    let imported = outcome_of(&text, None, &[], false);
    has(
        &imported,
        "tables = [\"public.outbox\", \"app.\\\"Events\\\"\"]",
    );
    for list in [Some("public\\.outbox.*"), Some(""), None] {
        let text = connector(&[("table.include.list", list)]);
        let without = outcome_of(&text, None, &[], false);
        assert!(
            without.fatal.iter().any(|why| why.contains("--table")),
            "{:?}",
            without.fatal
        );
        let with = outcome_of(&text, None, &["app.outbox"], false);
        assert!(with.fatal.is_empty(), "{:?}", with.fatal);
        has(&with, "tables = [\"app.outbox\"]");
    }
    let wrong = outcome_of(CONNECT, None, &["a.b.c"], false);
    assert!(
        wrong.fatal[0].contains("source.tables"),
        "{:?}",
        wrong.fatal
    );
}

#[test]
fn slots_and_publications_that_cannot_be_taken_over_are_explained() {
    let imported = connect(&[("plugin.name", None), ("publication.autocreate.mode", None)]);
    let notes: Vec<&str> = imported
        .report
        .notes
        .iter()
        .filter(|n| n.urgent)
        .map(|n| &*n.about)
        .collect();
    assert_eq!(notes, ["plugin.name", "publication.autocreate.mode"]);
    let imported = connect(&[
        ("plugin.name", Some("decoderbufs")),
        ("publication.autocreate.mode", Some("all_tables")),
        ("slot.drop.on.stop", Some("true")),
    ]);
    is_unsupported(&imported, "plugin.name", false, "A slot of another plugin");
    is_unsupported(
        &imported,
        "publication.autocreate.mode",
        false,
        "A publication for all tables",
    );
    is_unsupported(
        &imported,
        "slot.drop.on.stop",
        false,
        "BEFORE the hand-over",
    );
}

#[test]
fn without_a_router_of_its_own_there_is_nothing_to_import() {
    for (changes, words) in [
        (
            &[("transforms", None)][..],
            "no transform is the outbox event router",
        ),
        (
            &[(
                "transforms.outbox.type",
                Some("io.debezium.transforms.ExtractNewRecordState"),
            )],
            "no transform is the outbox event router",
        ),
        (
            &[(
                "connector.class",
                Some("io.debezium.connector.mysql.MySqlConnector"),
            )],
            "connector.class",
        ),
        (&[("connector.class", None)], "connector.class is missing"),
    ] {
        let imported = connect(changes);
        assert!(
            imported.fatal.iter().any(|why| why.contains(words)),
            "{:?}",
            imported.fatal
        );
        assert!(
            !imported.failures(true).is_empty(),
            "--partial does not help"
        );
    }
    let redis = SERVER.replace("sink.type=kafka", "sink.type=redis");
    let imported = outcome_of(&redis, None, &[], false);
    assert!(
        imported.fatal[0].contains("Kafka only"),
        "{:?}",
        imported.fatal
    );
}

#[test]
fn a_router_behind_something_else_is_refused() {
    let imported = connect(&[
        ("transforms.outbox.predicate", Some("isOutbox")),
        ("transforms.outbox.negate", Some("true")),
        ("predicates", Some("isOutbox")),
        (
            "predicates.isOutbox.type",
            Some("org.apache.kafka.connect.transforms.predicates.TopicNameMatches"),
        ),
        ("predicates.isOutbox.pattern", Some(".*outbox")),
    ]);
    is_unsupported(
        &imported,
        "transforms.outbox.predicate",
        true,
        "behind a predicate",
    );
    is_unsupported(
        &imported,
        "predicates.isOutbox.type",
        false,
        "no predicates",
    );
    assert!(
        imported.failures(true).is_empty(),
        "--partial writes the rest"
    );

    let imported = connect(&[
        ("transforms", Some("unwrap, outbox")),
        (
            "transforms.unwrap.type",
            Some("io.debezium.transforms.ExtractNewRecordState"),
        ),
        ("transforms.unwrap.drop.tombstones", Some("false")),
        ("transforms.gone.type", Some("x.Y")),
    ]);
    is_unsupported(&imported, "transforms", true, "not the only transform");
    is_unsupported(
        &imported,
        "transforms.unwrap.type",
        true,
        "ExtractNewRecordState",
    );
    is_unsupported(
        &imported,
        "transforms.unwrap.drop.tombstones",
        false,
        "unwrap",
    );
    is_none(&imported, "transforms.gone.type", "no transform in");
}

#[test]
fn a_value_that_the_router_refuses_is_not_supported() {
    let imported = connect(&[("transforms.outbox.no.such.option", Some("x"))]);
    is_unsupported(
        &imported,
        "transforms.outbox.no.such.option",
        true,
        "no such option",
    );
    let imported = connect(&[("slot.name", Some("Not A Slot"))]);
    is_unsupported(&imported, "slot.name", true, "source.slot");
    assert!(!imported.toml.contains("Not A Slot"), "{}", imported.toml);
    assert!(
        imported.toml.contains("#   slot.name\n"),
        "{}",
        imported.toml
    );
}

#[test]
fn converters_of_the_worker_are_not_guessed_in_silence() {
    let without = [("key.converter", None), ("value.converter", None)];
    let imported = connect(&without);
    let urgent: Vec<&str> = imported
        .report
        .notes
        .iter()
        .filter(|n| n.urgent)
        .map(|n| &*n.about)
        .collect();
    assert_eq!(urgent, ["key.converter", "value.converter"]);
    let worker = "bootstrap.servers=w:9092\n\
        key.converter=org.apache.kafka.connect.storage.StringConverter\n\
        key.converter.schemas.enable=false\n\
        value.converter=org.apache.kafka.connect.storage.StringConverter\n\
        group.id=connect\nproducer.linger.ms=5\nproducer.override.x=1\n";
    let text = connector(&[
        ("key.converter", None),
        ("key.converter.schemas.enable", Some("true")),
        ("producer.override.bootstrap.servers", None),
    ]);
    let imported = outcome_of(&text, Some(worker), &[], false);
    has(&imported, "\"bootstrap.servers\" = \"w:9092\"");
    has(&imported, "\"linger.ms\" = \"5\"");
    is_none(&imported, "group.id", "the worker");
    let of_worker = |key: &str| {
        let mut rows = imported.report.rows.iter();
        rows.find(|row| row.key == key && row.file.is_some())
            .unwrap()
    };
    assert!(matches!(
        of_worker("key.converter").outcome,
        Outcome::Taken { .. }
    ));
    assert!(matches!(
        of_worker("value.converter").outcome,
        Outcome::NoEffect { .. }
    ));
}

#[test]
fn foreign_converters_are_refused_by_name() {
    let imported = connect(&[
        (
            "value.converter",
            Some("io.confluent.connect.avro.AvroConverter"),
        ),
        ("value.converter.schema.registry.url", Some("http://r:8081")),
    ]);
    is_unsupported(&imported, "value.converter", true, "AvroConverter");
    is_unsupported(
        &imported,
        "value.converter.schema.registry.url",
        false,
        "not supported",
    );
    let imported = server("debezium.format.value=avro\n");
    is_unsupported_last(&imported, "debezium.format.value");
}

#[track_caller]
fn is_unsupported_last(imported: &Imported, key: &str) {
    let last = imported
        .report
        .rows
        .iter()
        .rfind(|row| row.key == key)
        .unwrap();
    assert!(
        matches!(last.outcome, Outcome::Unsupported { breaks: true, .. }),
        "{last:?}"
    );
}

#[test]
fn properties_of_the_producer() {
    let of = |name: &str| format!("producer.override.{name}");
    let pairs = [
        ("acks", "1"),
        ("enable.idempotence", "false"),
        ("max.request.size", "2000000"),
        ("request.timeout.ms", "30000"),
        ("linger.ms", "5"),
        ("compression.type", "zstd"),
        ("compression.zstd.level", "3"),
        ("buffer.memory", "33554432"),
        ("security.protocol", "SASL_SSL"),
        ("sasl.mechanism", "SCRAM-SHA-512"),
        (
            "sasl.jaas.config",
            "org.apache.kafka.common.security.scram.ScramLoginModule required username=\"u\" password=\"s3cret\";",
        ),
        ("ssl.truststore.location", "/etc/trust.jks"),
        ("ssl.truststore.password", "s3cret"),
        ("ssl.keystore.location", "/etc/key.p12"),
        ("ssl.keystore.type", "PKCS12"),
        ("ssl.keystore.password", "s3cret"),
        ("ssl.endpoint.identification.algorithm", ""),
        (
            "key.serializer",
            "org.apache.kafka.common.serialization.StringSerializer",
        ),
        (
            "value.serializer",
            "io.confluent.kafka.serializers.KafkaAvroSerializer",
        ),
        (
            "partitioner.class",
            "org.apache.kafka.clients.producer.RoundRobinPartitioner",
        ),
        ("interceptor.classes", "x.Y"),
        ("no.such.property", "x"),
        ("retry.backoff.ms", "not a number"),
        ("send.buffer.bytes", "131072"),
        ("receive.buffer.bytes", "-1"),
    ];
    let keys: Vec<String> = pairs.iter().map(|(name, _)| of(name)).collect();
    let changes: Vec<(&str, Option<&str>)> = keys
        .iter()
        .zip(&pairs)
        .map(|(key, (_, value))| (key.as_str(), Some(*value)))
        .collect();
    let imported = connect(&changes);
    for line in [
        "\"message.max.bytes\" = \"2000000\"",
        "\"socket.timeout.ms\" = \"30000\"",
        "\"linger.ms\" = \"5\"",
        "\"compression.level\" = \"3\"",
        "\"sasl.username\" = \"u\"",
        "\"sasl.password\" = \"${KAFKA_PASSWORD}\"",
        "\"ssl.keystore.location\" = \"/etc/key.p12\"",
        "\"ssl.keystore.password\" = \"${KAFKA_KEYSTORE_PASSWORD}\"",
        "\"ssl.endpoint.identification.algorithm\" = \"none\"",
        "\"socket.send.buffer.bytes\" = \"131072\"",
    ] {
        has(&imported, line);
    }
    is_none(&imported, &of("acks"), "loses and reorders nothing");
    is_none(&imported, &of("buffer.memory"), "max_in_flight_bytes");
    is_none(&imported, &of("key.serializer"), "converters");
    is_unsupported(
        &imported,
        &of("value.serializer"),
        true,
        "records would differ",
    );
    is_unsupported(&imported, &of("partitioner.class"), true, "murmur2");
    is_unsupported(&imported, &of("interceptor.classes"), false, "Java");
    is_unsupported(&imported, &of("no.such.property"), false, "librdkafka");
    is_unsupported(
        &imported,
        &of("retry.backoff.ms"),
        false,
        "retry.backoff.ms",
    );
    is_unsupported(&imported, &of("ssl.truststore.location"), false, "keytool");
    let pem = connect(&[
        ("producer.override.ssl.truststore.type", Some("PEM")),
        (
            "producer.override.ssl.truststore.location",
            Some("/etc/ca.pem"),
        ),
        (
            "producer.override.sasl.jaas.config",
            Some("x.PlainLoginModule required username=u password=\"${env:KPW}\";"),
        ),
    ]);
    has(&pem, "\"ssl.ca.location\" = \"/etc/ca.pem\"");
    has(&pem, "\"sasl.password\" = \"${KPW}\"");
}

#[test]
fn what_needs_no_equivalent_says_why() {
    let imported = connect(&[
        ("heartbeat.interval.ms", Some("10000")),
        ("heartbeat.action.query", Some("UPDATE hb SET at = now()")),
        ("poll.interval.ms", Some("10")),
        ("max.batch.size", Some("4096")),
        ("snapshot.mode", Some("initial")),
        ("tombstones.on.delete", Some("false")),
        ("skipped.operations", Some("t,u")),
        ("offset.flush.interval.ms", Some("1000")),
        ("status.update.interval.ms", Some("5000")),
        ("lsn.flush.mode", Some("connector_and_driver")),
        ("tasks.max", Some("1")),
        ("errors.max.retries", Some("3")),
        ("provide.transaction.metadata", Some("false")),
        ("topic.delimiter", Some(".")),
    ]);
    assert_eq!(imported.report.counts().2, 0, "{}", imported.report.text());
    is_none(&imported, "heartbeat.interval.ms", "idle slot");
    is_none(&imported, "snapshot.mode", "begins where the slot stands");
    let imported = connect(&[
        ("snapshot.mode", Some("always")),
        ("skipped.operations", Some("c")),
        ("lsn.flush.mode", Some("manual")),
        ("column.mask.with.3.chars", Some("a.b")),
        ("message.prefix.include.list", Some("outbox")),
        ("no.option.of.anything", Some("x")),
        ("converters", Some("geo")),
        ("geo.type", Some("x.Y")),
    ]);
    is_unsupported(&imported, "snapshot.mode", false, "no snapshots");
    is_unsupported(&imported, "skipped.operations", true, "INSERT");
    is_unsupported(&imported, "lsn.flush.mode", false, "slot");
    is_unsupported(&imported, "column.mask.with.3.chars", true, "written");
    is_unsupported(
        &imported,
        "message.prefix.include.list",
        false,
        "pg_logical_emit_message",
    );
    is_unsupported(&imported, "no.option.of.anything", false, "known here");
    is_unsupported(&imported, "geo.type", false, "converters");
}

#[test]
fn nothing_is_dropped_where_debezium_would() {
    let imported = connect(&[("errors.tolerance", Some("all"))]);
    for class in ["unroutable", "oversize", "rejected", "undecodable"] {
        is_taken(&imported, "errors.tolerance", &format!("poison.{class}"));
        has(&imported, &format!("{class} = \"dead-letter\""));
    }
    let imported = connect(&[("event.processing.failure.handling.mode", Some("skip"))]);
    has(&imported, "undecodable = \"dead-letter\"");
    let imported = connect(&[("exactly.once.support", Some("requested"))]);
    is_none(&imported, "exactly.once.support", "at-least-once");
}

#[test]
fn two_settings_for_one_key_are_not_written_twice() {
    let imported = connect(&[
        ("producer.override.compression.gzip.level", Some("3")),
        ("producer.override.compression.zstd.level", Some("4")),
        ("database.server.name", Some("old")),
        ("field.name.adjustment.mode", Some("avro")),
    ]);
    is_taken(
        &imported,
        "producer.override.compression.gzip.level",
        "sink.kafka.compression.level",
    );
    let second = "producer.override.compression.zstd.level";
    is_unsupported(&imported, second, false, "written already");
    is_none(&imported, "database.server.name", "since Debezium 2.0");
    is_unsupported(&imported, "field.name.adjustment.mode", true, "renames");
}

#[test]
fn topics_that_kafka_connect_creates() {
    let imported = connect(&[
        ("topic.creation.default.partitions", Some("12")),
        ("topic.creation.default.replication.factor", Some("-1")),
        ("topic.creation.default.cleanup.policy", Some("compact")),
    ]);
    has(&imported, "partitions = 12");
    has(&imported, "create = true");
    is_unsupported(
        &imported,
        "topic.creation.default.cleanup.policy",
        false,
        "beforehand",
    );
}

#[test]
fn debezium_server_has_ways_of_its_own() {
    let imported = server(
        "debezium.transforms.outbox.table.field.event.timestamp=ts\n\
         debezium.transforms.outbox.table.fields.additional.placement=p:partition\n\
         quarkus.log.level=WARN\nquarkus.log.console.json=true\nquarkus.http.port=8080\n\
         debezium.sink.kafka.wait.message.delivery.timeout.ms=1\n\
         debezium.sink.redis.address=x\n%dev.quarkus.log.level=DEBUG\n",
    );
    let timestamp = "debezium.transforms.outbox.table.field.event.timestamp";
    is_none(&imported, timestamp, "sends no timestamps");
    let placement = "debezium.transforms.outbox.table.fields.additional.placement";
    is_none(&imported, placement, "partition");
    has(&imported, "level = \"warn\"");
    has(&imported, "format = \"json\"");
    is_none(&imported, "debezium.sink.redis.address", "another sink");
    is_unsupported(&imported, "%dev.quarkus.log.level", false, "known here");
}

#[test]
fn settings_that_are_there_twice_are_reported_twice() {
    let text = CONNECT.replace("\"slot.name\"", "\"slot.name\": \"first\", \"slot.name\"");
    let imported = outcome_of(&text, None, &[], false);
    let rows: Vec<&Row> = imported
        .report
        .rows
        .iter()
        .filter(|r| r.key == "slot.name")
        .collect();
    assert!(matches!(rows[0].outcome, Outcome::NoEffect { .. }));
    assert!(matches!(rows[1].outcome, Outcome::Taken { .. }));
    has(&imported, "slot = \"orders\"");
    let null = CONNECT.replace("\"orders\"", "null");
    let imported = outcome_of(&null, None, &[], false);
    is_none(&imported, "slot.name", "null");
    has(&imported, "slot = \"debezium\"");
}

/// Inputs that nobody meant: each that can be read keeps the invariants, and none panics.
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
        // A password that is broken up may be anywhere, and is none any more.
        let text = String::from_utf8_lossy(&bytes).replace("hunter2", "other");
        if settings::read(&text, None).is_ok() {
            outcome_of(&text, None, &[], false);
            read += 1;
        }
    }
    assert!(read > 500, "{read}");
}

/// Options of the router, of what shapes values, and of converters go through by their own names.
#[test]
fn all_that_shapes_records_goes_through() {
    let imported = connect(&[
        ("transforms.outbox.table.expand.json.payload", Some("true")),
        ("transforms.outbox.table.op.invalid.behavior", Some("WARN")),
        ("transforms.outbox.route.topic.regex", Some("(?<a>\\w+)")),
        ("transforms.outbox.route.topic.replacement", Some("x.${a}")),
        (
            "transforms.outbox.table.fields.additional.placement",
            Some("type:header:eventType,p:partition"),
        ),
        ("extended.headers.enabled", None),
        ("decimal.handling.mode", Some("string")),
        ("binary.handling.mode", Some("bytes")),
        ("money.fraction.digits", Some("3")),
        (
            "key.converter",
            Some("org.apache.kafka.connect.json.JsonConverter"),
        ),
        ("key.converter.schemas.enable", Some("false")),
        (
            "value.converter",
            Some("io.debezium.converters.BinaryDataConverter"),
        ),
        (
            "value.converter.delegate.converter.type",
            Some("org.apache.kafka.connect.json.JsonConverter"),
        ),
        (
            "value.converter.delegate.converter.type.schemas.enable",
            Some("false"),
        ),
    ]);
    assert_eq!(imported.report.counts().2, 0, "{}", imported.report.text());
    for line in [
        "\"table.expand.json.payload\" = true",
        "\"table.op.invalid.behavior\" = \"warn\"",
        "\"route.topic.regex\" = \"(?<a>\\\\w+)\"",
        "\"table.fields.additional.placement\" = \"type:header:eventType,p:partition\"",
        "\"extended.headers.enabled\" = true",
        "\"decimal.handling.mode\" = \"string\"",
        "\"money.fraction.digits\" = 3",
        "\"key.converter\" = \"json\"",
        "\"key.converter.schemas.enable\" = false",
        "\"value.converter\" = \"binarydata\"",
        "\"value.converter.delegate.converter.type.schemas.enable\" = false",
    ] {
        has(&imported, line);
    }
    let refused = connect(&[("transforms.outbox.route.topic.regex", Some("(a"))]);
    is_unsupported(&refused, "transforms.outbox.route.topic.regex", true, "");

    let text = SERVER
        .replace("debezium.format.key=simplestring\n", "")
        .replace(
            "debezium.format.value=simplestring\n",
            "debezium.format.schemas.enable=false\n",
        )
        .replace(
            "debezium.format.header.class=org.apache.kafka.connect.storage.SimpleHeaderConverter\n",
            "debezium.format.key.schemas.enable=true\n",
        );
    let server = outcome_of(&text, None, &[], false);
    assert!(
        server.failures(false).is_empty(),
        "{:?}",
        server.failures(false)
    );
    for line in [
        "\"key.converter\" = \"json\"",
        "\"key.converter.schemas.enable\" = true",
        "\"value.converter.schemas.enable\" = false",
        "\"header.converter\" = \"json\"",
        "\"header.converter.schemas.enable\" = false",
    ] {
        has(&server, line);
    }
}
