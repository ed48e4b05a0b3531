//! Tests of whole configurations: the defaults, every key set, files, any text.

use super::*;

#[test]
fn a_minimal_configuration_gets_the_defaults() {
    let config = parse(LEAST).unwrap();
    assert_eq!(
        config.pipeline.source.url.expose_secret(),
        "postgres://relay:hunter2@db:5432/app"
    );
    assert!(config.pipeline.source.password.is_none());
    assert_eq!(config.pipeline.source.slot, "walrelay");
    assert_eq!(config.pipeline.source.publication, "walrelay");
    assert_eq!(
        config.pipeline.source.tables[0].to_string(),
        "public.outbox"
    );
    assert!(config.pipeline.source.create);
    assert_eq!(
        config.pipeline.source.status_interval,
        Duration::from_secs(1)
    );
    assert_eq!(
        config.pipeline.source.receive_timeout(),
        Duration::from_secs(5)
    );
    assert_eq!(
        config.pipeline.source.wal_sender_timeout,
        Duration::from_secs(5)
    );
    assert_eq!(
        config.pipeline.router,
        RouterConfig::Debezium(Box::new(Debezium {
            options: Options::default(),
            context_headers: false,
            on_update: walrelay_relay::OnUpdate::Warn,
        }))
    );
    let kafka = kafka(&config.pipeline.sink);
    assert_eq!(kafka.properties.0["bootstrap.servers"], "broker:9092");
    assert_eq!(
        kafka.topics,
        walrelay_kafka_sink::section::TopicsSection {
            create: false,
            partitions: None,
            replication_factor: None
        }
    );
    assert_eq!(
        config.pipeline.delivery,
        Delivery {
            max_in_flight_records: 65_536,
            max_in_flight_bytes: 12 << 20,
            max_unconfirmed_records: 524_288,
            max_retrying_keys: 1_000,
            max_retrying_bytes: 64 << 20,
            guarantee: Guarantee::AtLeastOnce,
            bulk_linger: Duration::from_millis(50),
            drain_timeout: Duration::from_secs(30),
            backoff: BackoffLimits {
                initial: Duration::from_millis(100),
                max: Duration::from_secs(10)
            },
        }
    );
    assert_eq!(
        config.process.log,
        Log {
            level: Level::INFO,
            format: LogFormat::Auto
        }
    );
}

#[test]
#[expect(clippy::too_many_lines, reason = "a list of all keys")]
fn every_key_can_be_set() {
    let text = r#"
[source]
url_file = "url"
slot = "${SLOT}"
publication = "Pub"
tables = ['"My Schema"."Tab"', "outbox"]
create = false
status_interval = "250ms"
receive_timeout = "1m"
wal_sender_timeout = "45s"

[router]
preset = "debezium"
[router.debezium]
"table.field.event.id" = "event_id"
table.field.event.key = "agg"                 # without quotes TOML nests; it means the same
"table.field.event.type" = "kind"
"table.field.event.payload" = "body"
"route.by.field" = "agg_type"
"route.topic.replacement" = "v1.${routedByValue}.events"
"topic.prefix" = "srv"
"table.op.invalid.behavior" = " Warn "
"table.expand.json.payload" = "false"         # its default: says nothing new
"route.topic.regex" = '(?<routedByValue>.*)'
[router.converters]
"key.converter" = "org.apache.kafka.connect.storage.StringConverter"
"value.converter" = "string"
"header.converter" = "org.apache.kafka.connect.storage.SimpleHeaderConverter"

[sink]
kind = "kafka"
[sink.kafka]
"bootstrap.servers" = "a:1,b:2"
"batch.num.messages" = 5
"socket.keepalive.enable" = true
"queue.buffering.max.ms" = 0.5
"sasl.password_file" = "/run/secrets/crlf"
"client.id" = "$${HOST}"
[sink.topics]
create = true
partitions = 12
replication_factor = 3

[delivery]
guarantee = "at-least-once"
max_in_flight_records = 1_000
max_in_flight_bytes = "1MiB"
drain_timeout = "5s"
backoff_initial = "1s"
backoff_max = "1m"

[log]
level = "debug"
format = "json"
"#;
    let config = parse(text).unwrap();
    assert_eq!(
        config.pipeline.source.url.expose_secret(),
        "postgres://relay:hunter2@db/app"
    );
    assert_eq!(config.pipeline.source.slot, "from_env");
    assert_eq!(config.pipeline.source.publication, "Pub");
    assert_eq!(config.pipeline.source.tables[0].schema, "My Schema");
    assert_eq!(config.pipeline.source.tables[1].schema, "public");
    assert!(!config.pipeline.source.create);
    assert_eq!(
        config.pipeline.source.status_interval,
        Duration::from_millis(250)
    );
    assert_eq!(
        config.pipeline.source.receive_timeout(),
        Duration::from_secs(60)
    );
    assert_eq!(
        config.pipeline.source.wal_sender_timeout,
        Duration::from_secs(45)
    );
    assert_eq!(
        config.pipeline.router,
        RouterConfig::Debezium(Box::new(Debezium {
            options: Options {
                event_id: "event_id".to_owned(),
                event_key: "agg".to_owned(),
                event_type: "kind".to_owned(),
                payload: "body".to_owned(),
                route_by: "agg_type".to_owned(),
                topic: "v1.${routedByValue}.events".parse().unwrap(),
                topic_prefix: "srv".to_owned(),
                ..Options::default()
            },
            context_headers: false,
            on_update: walrelay_relay::OnUpdate::Warn,
        }))
    );
    let kafka = kafka(&config.pipeline.sink);
    let properties: Vec<(&str, &str)> = kafka
        .properties
        .0
        .iter()
        .map(|(name, value)| (name.as_str(), value.as_str()))
        .collect();
    assert_eq!(
        properties,
        [
            ("batch.num.messages", "5"),
            ("bootstrap.servers", "a:1,b:2"),
            ("client.id", "${HOST}"),
            ("queue.buffering.max.ms", "0.5"),
            ("sasl.password", PASSWORD),
            ("socket.keepalive.enable", "true"),
        ]
    );
    assert_eq!(
        kafka.topics,
        walrelay_kafka_sink::section::TopicsSection {
            create: true,
            partitions: Some(12),
            replication_factor: Some(3)
        }
    );
    assert_eq!(config.pipeline.delivery.max_in_flight_records, 1_000);
    assert_eq!(config.pipeline.delivery.max_in_flight_bytes, 1 << 20);
    assert_eq!(
        config.pipeline.delivery.backoff.max,
        Duration::from_secs(60)
    );
    assert_eq!(config.process.log.level, Level::DEBUG);
    assert_eq!(config.process.log.format, LogFormat::Json);
}

#[test]
fn no_text_causes_a_panic() {
    let whole = LEAST.replace("outbox", "öutbox");
    for end in (0..whole.len()).filter(|end| whole.is_char_boundary(*end)) {
        let _ = parse(&whole[..end]);
        let _ = parse(&whole[end..]);
    }
}

#[test]
fn a_file_that_cannot_be_read_is_named() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("walrelay.toml");
    let error = Config::load(&path, &[], &env).unwrap_err();
    assert_eq!(error.problems()[0].id, "config-file");
    assert!(std::error::Error::source(&error).is_some());
    std::fs::write(&path, LEAST).unwrap();
    std::fs::write(directory.path().join("pw"), "from a file\n").unwrap();
    let beside = ["source.password_file=pw", "source.url=postgres://db"].map(str::to_owned);
    let config = Config::load(&path, &beside, &env).unwrap();
    assert_eq!(
        config.pipeline.source.password.unwrap().expose_secret(),
        "from a file"
    );
}
