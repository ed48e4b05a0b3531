//! What is taken over, by inputs of both kinds. Every input is held against the same invariants.

use walrelay_debezium_import::{Outcome, Row};

use self::Expect::{Breaks, Fatal, Line, NoEffect, Supported, Taken, Unsupported, Urgent};
use super::*;
use crate::config::{Config, expand_for_tests};

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
fn import(text: &str, worker: Option<&str>, tables: &[&str], with_secrets: bool) -> Imported {
    let input = Input::parse(text, worker).unwrap();
    let keys: Vec<String> = input.keys().map(str::to_owned).collect();
    let tables: Vec<String> = tables.iter().map(|table| (*table).to_owned()).collect();
    let options = Options {
        tables: &tables,
        with_secrets,
    };
    let imported = translate(input, options, &Checker);

    let rows: Vec<&str> = imported.report.rows.iter().map(|r| &*r.key).collect();
    assert_eq!(
        rows, keys,
        "each setting is in the report, once and in its place"
    );
    let report = imported.report.text();
    for row in &imported.report.rows {
        let key = row.key.replace(char::is_control, " ");
        let mut lines = report.lines().filter(|line| {
            let rest = line.get("NOT SUPPORTED  ".len()..).unwrap_or_default();
            rest.trim_start_matches("worker: ").starts_with(&key)
        });
        assert!(lines.next().is_some(), "{}: {report}", row.key);
    }
    let all = format!("{report}{}", imported.report.json());
    let toml = &imported.toml;
    for secret in ["hunter2", "s3cret"] {
        assert!(!all.contains(secret), "{all}");
        assert!(with_secrets || !toml.contains(secret), "{toml}");
    }
    if imported.fatal.is_empty() {
        let env = |name: &str| {
            let mut variables = imported.report.variables.iter();
            let known = variables.any(|variable| variable.name == name);
            assert!(known, "{name} is not in the report");
            Some("x".to_owned())
        };
        let read = Config::parse(toml, "walrelay.toml", &[], &env);
        assert!(read.is_ok(), "{}\n{toml}", read.unwrap_err());
        claims(&imported);
    }
    imported
}

/// What the report says was taken over stands there.
fn claims(imported: &Imported) {
    let table: toml::Table = imported.toml.parse().unwrap();
    for row in &imported.report.rows {
        let Outcome::TakenOver { to, .. } = &row.outcome else {
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

/// What a case expects. Texts are parts of what the report says.
enum Expect {
    /// A line of the configuration, without its comment.
    Line(&'static str),
    /// The setting went into this key.
    Taken(&'static str, &'static str),
    NoEffect(&'static str, &'static str),
    Unsupported(&'static str, &'static str),
    /// Not supported, and so nothing is written without `--partial`.
    Breaks(&'static str, &'static str),
    /// Nothing is written at all.
    Fatal(&'static str),
    /// What the urgent notes are about.
    Urgent(&'static [&'static str]),
    /// Everything is supported, and the configuration is written.
    Supported,
}

#[track_caller]
fn expect(imported: &Imported, expected: &[Expect]) {
    let Imported {
        toml,
        report,
        fatal,
    } = imported;
    let outcome = |key: &str, fits: &dyn Fn(&Outcome) -> bool| {
        let rows: Vec<&Row> = report.rows.iter().filter(|row| row.key == key).collect();
        assert!(rows.iter().any(|row| fits(&row.outcome)), "{key}: {rows:?}");
    };
    let refused = !failures(imported, false).is_empty();
    for expected in expected {
        match expected {
            Line(line) => {
                let mut lines = toml.lines().map(|line| line.split("  # ").next());
                assert!(
                    lines.any(|found| found == Some(line)),
                    "no {line} in\n{toml}"
                );
            }
            Taken(key, path) => outcome(
                key,
                &|it| matches!(it, Outcome::TakenOver { to, .. } if to.iter().any(|to| to == path)),
            ),
            NoEffect(key, words) => outcome(
                key,
                &|it| matches!(it, Outcome::NoEffect { why } if why.contains(words)),
            ),
            Unsupported(key, words) => outcome(
                key,
                &|it| matches!(it, Outcome::NotSupported { remedy, breaks: false } if remedy.contains(words)),
            ),
            Breaks(key, words) => {
                outcome(
                    key,
                    &|it| matches!(it, Outcome::NotSupported { remedy, breaks: true } if remedy.contains(words)),
                );
                assert!(refused, "{key} is not refused");
            }
            Fatal(words) => {
                assert!(fatal.iter().any(|why| why.contains(words)), "{fatal:?}");
                let partial = failures(imported, true);
                assert!(!partial.is_empty(), "--partial does not help");
            }
            Urgent(about) => {
                let urgent = report.notes.iter().filter(|note| note.urgent);
                let urgent: Vec<&str> = urgent.map(|note| &*note.about).collect();
                assert_eq!(urgent, *about);
            }
            Supported => {
                let unsupported = |row: &&Row| matches!(row.outcome, Outcome::NotSupported { .. });
                let unsupported = report.rows.iter().filter(unsupported).count();
                assert_eq!(unsupported, 0, "{}", report.text());
                assert!(!refused, "{fatal:?}");
            }
        }
    }
}

/// The value of a setting that [`CONNECT`] has and a case has not.
const GONE: &str = "\0";

/// [`CONNECT`] with other settings.
fn connector(changes: &[(&str, &str)]) -> String {
    let mut json: serde_json::Value = serde_json::from_str(CONNECT).unwrap();
    let config = json["config"].as_object_mut().unwrap();
    for (key, value) in changes {
        match *value {
            GONE => config.remove(*key),
            value => config.insert((*key).to_owned(), value.into()),
        };
    }
    json.to_string()
}

#[track_caller]
fn connect(changes: &[(&str, &str)], expected: &[Expect]) -> Imported {
    let imported = import(&connector(changes), None, &[], false);
    expect(&imported, expected);
    imported
}

#[track_caller]
fn server(more: &str, expected: &[Expect]) -> Imported {
    let imported = import(&format!("{SERVER}{more}"), None, &[], false);
    expect(&imported, expected);
    imported
}

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
        &[("slot.name", GONE), ("publication.name", GONE)],
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
        Unsupported("%dev.quarkus.log.level", "known here"),
    ];
    server(more, &expected);
}

#[test]
fn secrets_come_from_the_environment() {
    let with = import(CONNECT, None, &[], true);
    expect(
        &with,
        &[Line("url = \"postgres://cdc:hunter2%40@db:5433/app\"")],
    );
    for (password, url) in [
        (
            "${env:DB_PW}",
            Line("url = \"postgres://cdc:${DB_PW}@db:5433/app\""),
        ),
        (
            "${file:/run/s3cret.properties:pw}",
            Line("url = \"postgres://cdc:${PGPASSWORD}@db:5433/app\""),
        ),
    ] {
        connect(&[("database.password", password)], &[url]);
    }
    let expected = [
        Line("url = \"postgres://cdc:${PGPASSWORD}@db/app\""),
        NoEffect(
            "debezium.source.database.password",
            "set again further down",
        ),
    ];
    server(
        "debezium.source.database.password=${PG_PW:hunter2}\n",
        &expected,
    );
}

#[test]
fn encryption_of_postgres() {
    let settings = [
        ("database.sslmode", "verify-full"),
        ("database.sslrootcert", "/etc/ca file.pem"),
        ("database.sslcert", "/etc/c.pem"),
        ("database.sslkey", "/etc/c.pk8"),
        ("database.sslpassword", "s3cret"),
        ("database.tcpKeepAlive", "true"),
        ("driver.connectTimeout", "7"),
        ("driver.loginTimeout", "9"),
        ("database.initial.statements", "SET x = 1"),
    ];
    let expected = [
        Unsupported("database.sslpassword", "decrypt it"),
        NoEffect("database.tcpKeepAlive", "anyway"),
        Unsupported("database.initial.statements", "ALTER ROLE"),
    ];
    let imported = connect(&settings, &expected);
    let (_, url) = imported.toml.split_once("url = \"").unwrap();
    let url = url.split('"').next().unwrap();
    for part in [
        "sslmode=verify-full",
        "sslrootcert=%2Fetc%2Fca%20file.pem",
        "connect_timeout=",
    ] {
        assert!(url.contains(part), "{url}");
    }
    let allow = connect(&[("database.sslmode", "allow")], &[]);
    assert!(allow.toml.contains("sslmode=prefer"), "{}", allow.toml);
}

#[test]
fn what_the_input_lacks_comes_from_the_environment() {
    let gone = [
        ("database.hostname", GONE),
        ("producer.override.bootstrap.servers", GONE),
    ];
    let expected = [
        Line("url = \"postgres://cdc:${PGPASSWORD}@${DATABASE_HOSTNAME}:5433/app\""),
        Line("\"bootstrap.servers\" = \"${KAFKA_BOOTSTRAP_SERVERS}\""),
        Urgent(&["database.hostname", "bootstrap.servers"]),
    ];
    connect(&gone, &expected);
    // Debezium Server finds it under this name too.
    let text = SERVER.replace("debezium.source.database.hostname=db\n", "");
    let toml = import(&text, None, &[], false).toml;
    assert!(
        toml.contains("@${DEBEZIUM_SOURCE_DATABASE_HOSTNAME}/"),
        "{toml}"
    );
}

#[test]
fn tables_are_named_or_asked_for() {
    let expected = Line("tables = [\"public.outbox\", \"app.\\\"Events\\\"\"]");
    let list = "public\\.outbox, app.Events";
    connect(&[("table.include.list", list)], &[expected]);
    for list in ["public\\.outbox.*", "", GONE] {
        let text = connector(&[("table.include.list", list)]);
        expect(&import(&text, None, &[], false), &[Fatal("--table")]);
        let with = import(&text, None, &["app.outbox"], false);
        assert!(with.fatal.is_empty(), "{:?}", with.fatal);
        expect(&with, &[Line("tables = [\"app.outbox\"]")]);
    }
    let wrong = import(CONNECT, None, &["a.b.c"], false);
    expect(&wrong, &[Fatal("source.tables")]);
}

#[test]
fn slots_and_publications_that_cannot_be_taken_over_are_explained() {
    const MODE: &str = "publication.autocreate.mode";
    let unset = [("plugin.name", GONE), (MODE, GONE)];
    connect(&unset, &[Urgent(&["plugin.name", MODE])]);
    let settings = [
        ("plugin.name", "decoderbufs"),
        (MODE, "all_tables"),
        ("slot.drop.on.stop", "true"),
    ];
    let expected = [
        Unsupported("plugin.name", "A slot of another plugin"),
        Unsupported(MODE, "A publication for all tables"),
        Unsupported("slot.drop.on.stop", "BEFORE the hand-over"),
    ];
    connect(&settings, &expected);
}

#[test]
fn without_a_router_of_its_own_there_is_nothing_to_import() {
    let no_router = "no transform is the outbox event router";
    for (key, value, words) in [
        ("transforms", GONE, no_router),
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
        ("connector.class", GONE, "connector.class is missing"),
    ] {
        connect(&[(key, value)], &[Fatal(words)]);
    }
    let redis = SERVER.replace("sink.type=kafka", "sink.type=redis");
    expect(&import(&redis, None, &[], false), &[Fatal("Kafka only")]);
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
fn converters_of_the_worker_are_not_guessed_in_silence() {
    const STRING: &str = "org.apache.kafka.connect.storage.StringConverter";
    let without = [("key.converter", GONE), ("value.converter", GONE)];
    connect(&without, &[Urgent(&["key.converter", "value.converter"])]);
    let worker = format!(
        "bootstrap.servers=w:9092\nkey.converter={STRING}\nkey.converter.schemas.enable=false\n\
         value.converter={STRING}\ngroup.id=connect\nproducer.linger.ms=5\n\
         producer.override.x=1\n"
    );
    let text = connector(&[
        ("key.converter", GONE),
        ("key.converter.schemas.enable", "true"),
        ("producer.override.bootstrap.servers", GONE),
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

#[test]
fn properties_of_the_producer() {
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
    let lines = [
        Line("\"message.max.bytes\" = \"2000000\""),
        Line("\"socket.timeout.ms\" = \"30000\""),
        Line("\"linger.ms\" = \"5\""),
        Line("\"compression.level\" = \"3\""),
        Line("\"sasl.username\" = \"u\""),
        Line("\"sasl.password\" = \"${KAFKA_PASSWORD}\""),
        Line("\"ssl.keystore.location\" = \"/etc/key.p12\""),
        Line("\"ssl.keystore.password\" = \"${KAFKA_KEYSTORE_PASSWORD}\""),
        Line("\"ssl.endpoint.identification.algorithm\" = \"none\""),
        Line("\"socket.send.buffer.bytes\" = \"131072\""),
        NoEffect("producer.override.acks", "loses and reorders nothing"),
        NoEffect("producer.override.buffer.memory", "max_in_flight_bytes"),
        NoEffect("producer.override.key.serializer", "converters"),
        Breaks("producer.override.value.serializer", "records would differ"),
        Breaks("producer.override.partitioner.class", "murmur2"),
        Unsupported("producer.override.interceptor.classes", "Java"),
        Unsupported("producer.override.no.such.property", "librdkafka"),
        Unsupported("producer.override.retry.backoff.ms", "retry.backoff.ms"),
        Unsupported("producer.override.ssl.truststore.location", "keytool"),
    ];
    let with_prefix = pairs.map(|(name, value)| (format!("producer.override.{name}"), value));
    let pairs: Vec<(&str, &str)> = with_prefix.iter().map(|(n, v)| (&**n, *v)).collect();
    connect(&pairs, &lines);

    let pem = [
        ("producer.override.ssl.truststore.type", "PEM"),
        ("producer.override.ssl.truststore.location", "/etc/ca.pem"),
        (
            "producer.override.sasl.jaas.config",
            "x.PlainLoginModule required username=u password=\"${env:KPW}\";",
        ),
    ];
    let lines = [
        Line("\"ssl.ca.location\" = \"/etc/ca.pem\""),
        Line("\"sasl.password\" = \"${KPW}\""),
    ];
    connect(&pem, &lines);
    let unread = [
        ("producer.override.ssl.keystore.location", "/etc/key.jks"),
        ("producer.override.ssl.key.password", "s3cret"),
    ];
    let password = "producer.override.ssl.key.password";
    connect(&unread, &[NoEffect(password, "does not read")]);
}

#[test]
fn what_needs_no_equivalent_says_why() {
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
        NoEffect("snapshot.mode", "begins where the slot stands"),
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
        Unsupported("no.option.of.anything", "known here"),
        Unsupported("geo.type", "converters"),
    ];
    connect(&settings, &expected);
}

#[test]
fn snapshots_are_taken_over_where_they_mean_the_same() {
    const MODE: &str = "snapshot.mode";
    for (mode, expected) in [
        ("no_data", Taken(MODE, "source.snapshot")),
        ("never", Taken(MODE, "source.snapshot")),
        ("SCHEMA_ONLY", Line("snapshot = \"never\"")),
        ("initial", NoEffect(MODE, "source.snapshot = \"initial\"")),
        ("exported", NoEffect(MODE, "begins where the slot stands")),
        ("when_needed", Unsupported(MODE, "slot-missing")),
        ("always", Unsupported(MODE, "walrelay resend")),
        ("initial_only", Unsupported(MODE, "walrelay resend")),
        ("configuration_based", Unsupported(MODE, "rules")),
        ("custom", Unsupported(MODE, "rules")),
        ("recovery", Unsupported(MODE, "initial or unsent")),
    ] {
        let imported = connect(&[(MODE, mode)], &[expected]);
        // Whatever Debezium did at its start: a slot that is gone stops the relay.
        expect(&imported, &[Line("create = false")]);
        assert!(!imported.toml.contains("snapshot = \"initial\""), "{mode}");
    }
    let overrides = "snapshot.select.statement.overrides";
    let of_table = "snapshot.select.statement.overrides.public.outbox";
    let settings = [
        (overrides, "public.outbox"),
        (of_table, "SELECT * FROM outbox WHERE sent_at IS NULL"),
        ("snapshot.include.collection.list", "public.outbox"),
        ("snapshot.isolation.mode", "serializable"),
        ("snapshot.locking.mode", "none"),
        ("snapshot.mode.custom.name", "mine"),
        ("snapshot.fetch.size", "1000"),
        ("snapshot.max.threads.multiplier", "2"),
        ("snapshot.of.tomorrow", "x"),
    ];
    let expected = [
        Unsupported(overrides, "source.snapshot_where"),
        Unsupported(of_table, "source.snapshot_where"),
        Unsupported("snapshot.include.collection.list", "source.tables"),
        NoEffect("snapshot.isolation.mode", "one moment"),
        NoEffect("snapshot.locking.mode", "locks nothing"),
        Unsupported("snapshot.mode.custom.name", "initial or unsent"),
        NoEffect("snapshot.fetch.size", "one after the other"),
        NoEffect("snapshot.max.threads.multiplier", "one after the other"),
        Unsupported("snapshot.of.tomorrow", "SNAPSHOTS"),
    ];
    connect(&settings, &expected);
    let read_committed = [("snapshot.isolation.mode", "read_committed")];
    connect(
        &read_committed,
        &[Unsupported("snapshot.isolation.mode", "one moment")],
    );
    let unset = connect(&[], &[Supported]);
    let note = unset.report.notes.iter().find(|note| note.about == MODE);
    assert!(note.is_some_and(|note| !note.urgent && note.text.contains("source.snapshot")));
}

#[test]
fn nothing_is_dropped_where_debezium_would() {
    let expected = [
        Taken("errors.tolerance", "poison.unroutable"),
        Taken("errors.tolerance", "poison.oversize"),
        Taken("errors.tolerance", "poison.rejected"),
        Taken("errors.tolerance", "poison.undecodable"),
        Line("unroutable = \"dead-letter\""),
        Line("oversize = \"dead-letter\""),
        Line("rejected = \"dead-letter\""),
        Line("undecodable = \"dead-letter\""),
    ];
    connect(&[("errors.tolerance", "all")], &expected);
    let skip = [("event.processing.failure.handling.mode", "skip")];
    connect(&skip, &[Line("undecodable = \"dead-letter\"")]);
    let once = [("exactly.once.support", "requested")];
    connect(&once, &[NoEffect("exactly.once.support", "at-least-once")]);
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
fn topics_that_kafka_connect_creates() {
    let policy = "topic.creation.default.cleanup.policy";
    let settings = [
        ("topic.creation.default.partitions", "12"),
        ("topic.creation.default.replication.factor", "-1"),
        (policy, "compact"),
    ];
    let expected = [
        Line("partitions = 12"),
        Line("create = true"),
        Unsupported(policy, "beforehand"),
    ];
    connect(&settings, &expected);
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
fn what_is_written_expands_to_what_was_meant() {
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
        if Input::parse(&text, None).is_ok() {
            import(&text, None, &[], false);
            read += 1;
        }
    }
    assert!(read > 500, "{read}");
}

/// Options of the router, of what shapes values, and of converters go through by their own names.
#[test]
fn all_that_shapes_records_goes_through() {
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
        ("extended.headers.enabled", GONE),
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
