use std::io;
use std::path::Path;
use std::time::Duration;

use secrecy::ExposeSecret;

use walrelay_event_router::{Converter, JsonOptions, Options, TimePrecision};

use super::*;

/// The least that is needed.
const LEAST: &str = r#"
[source]
url = "postgres://relay:${PGPASSWORD}@db:5432/app"
tables = ["public.outbox"]

[sink.kafka]
"bootstrap.servers" = "broker:9092"
"#;

const PASSWORD: &str = "hunter2";

fn env(name: &str) -> Option<String> {
    match name {
        "PGPASSWORD" => Some(PASSWORD.to_owned()),
        "BAD" => Some("Not A Slot".to_owned()),
        "SLOT" => Some("from_env".to_owned()),
        _ => None,
    }
}

fn files(path: &Path) -> io::Result<String> {
    match path.to_str() {
        Some("/run/secrets/pw") => Ok(format!("{PASSWORD}\n")),
        Some("/run/secrets/crlf") => Ok(format!("{PASSWORD}\r\n")),
        Some("/run/secrets/two") => Ok(format!("{PASSWORD}\n\n")),
        Some("/run/secrets/empty") => Ok("\n".to_owned()),
        Some("/etc/walrelay/url") => Ok(format!("postgres://relay:{PASSWORD}@db/app")),
        _ => Err(io::ErrorKind::NotFound.into()),
    }
}

fn parse_set(text: &str, overrides: &[&str]) -> Result<Config, ConfigError> {
    let overrides: Vec<String> = overrides.iter().map(|&text| text.to_owned()).collect();
    let file = "/etc/walrelay/walrelay.toml";
    let result = parse_with(text, file, &overrides, &env, &files);
    // Of no test's business in particular, so of all of them.
    let shown = match &result {
        Ok(config) => format!("{config:?}"),
        Err(error) => format!("{error} {error:?}"),
    };
    assert!(!shown.contains(PASSWORD), "a secret is shown: {shown}");
    assert!(
        !shown.contains("Not A Slot"),
        "the environment is shown: {shown}"
    );
    result
}

fn parse(text: &str) -> Result<Config, ConfigError> {
    parse_set(text, &[])
}

/// The problems, each as id, place, words and help.
fn problems(result: Result<Config, ConfigError>) -> Vec<(String, String, String, String)> {
    let problems = result.expect_err("accepted").into_problems();
    assert!(!problems.is_empty());
    problems
        .into_iter()
        .map(|problem| {
            (
                problem.id.to_owned(),
                problem.place.to_string().replace("/etc/walrelay/", ""),
                problem.what,
                problem.help.unwrap_or_default(),
            )
        })
        .collect()
}

fn only(result: Result<Config, ConfigError>) -> (String, String, String, String) {
    let mut problems = problems(result);
    assert_eq!(problems.len(), 1, "{problems:#?}");
    problems.remove(0)
}

/// The lines of a table of cases, each in columns that `=>` separates.
fn cases<const N: usize>(table: &str) -> Vec<[&str; N]> {
    let lines = table.lines().filter(|line| !line.trim().is_empty());
    let columns = |line| str::split(line, "=>").map(str::trim).collect::<Vec<_>>();
    lines
        .map(|line| columns(line).try_into().expect("another number of columns"))
        .collect()
}

/// Overrides of which each alone is refused, with the id, the place and words of the message.
fn refused_overrides(table: &str) {
    for [set, id, at, words] in cases(table) {
        let (found, place, what, _) = only(parse_set(LEAST, &[set]));
        assert_eq!(found, id, "{set}: {what}");
        let at = if at == "same" { set } else { at };
        assert_eq!(place, format!("--set {at}"));
        assert!(what.contains(words), "{set}: {what}");
    }
}

/// Keys of `section`, on lines that `;` separates, which are refused with these words.
fn refused_lines(section: &str, table: &str) {
    for [lines, words] in cases(table) {
        let lines = lines.replace("; ", "\n");
        let error = parse(&with_section(section, &lines))
            .unwrap_err()
            .to_string();
        assert!(error.contains(words), "{lines}: {error}");
    }
}

fn with_section(section: &str, lines: &str) -> String {
    format!(
        "[source]\nurl = 'postgres://db'\ntables = ['o']\n[sink]\nkind = 'stdout'\n\
         [{section}]\n{lines}\n"
    )
}

#[test]
fn the_least_gets_the_defaults() {
    let config = parse(LEAST).unwrap();
    assert_eq!(
        config.source.url.expose_secret(),
        "postgres://relay:hunter2@db:5432/app"
    );
    assert!(config.source.password.is_none());
    assert_eq!(config.source.slot, "walrelay");
    assert_eq!(config.source.publication, "walrelay");
    assert_eq!(config.source.tables[0].to_string(), "public.outbox");
    assert!(config.source.create);
    assert_eq!(config.source.status_interval, Duration::from_secs(1));
    assert_eq!(config.source.receive_timeout(), Duration::from_secs(5));
    assert_eq!(config.source.wal_sender_timeout, Duration::from_secs(5));
    assert_eq!(
        config.router,
        Router::Debezium(Box::new(Debezium {
            options: Options::default(),
            context_headers: false,
            on_update: walrelay_relay::OnUpdate::Warn,
        }))
    );
    let SinkConfig::Kafka(kafka) = config.sink else {
        panic!("not Kafka")
    };
    assert_eq!(kafka.properties.0["bootstrap.servers"], "broker:9092");
    assert_eq!(
        kafka.topics,
        TopicCreation {
            create: false,
            partitions: None,
            replication_factor: None
        }
    );
    assert_eq!(
        config.delivery,
        Delivery {
            max_in_flight_records: 65_536,
            max_in_flight_bytes: 12 << 20,
            guarantee: Guarantee::AtLeastOnce,
            bulk_linger: Duration::from_millis(50),
            drain_timeout: Duration::from_secs(30),
            backoff: Backoff {
                initial: Duration::from_millis(100),
                max: Duration::from_secs(10)
            },
        }
    );
    assert_eq!(
        config.log,
        Log {
            level: LogLevel::Info,
            format: LogFormat::Auto
        }
    );
}

#[test]
fn everything_can_be_set() {
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
        config.source.url.expose_secret(),
        "postgres://relay:hunter2@db/app"
    );
    assert_eq!(config.source.slot, "from_env");
    assert_eq!(config.source.publication, "Pub");
    assert_eq!(config.source.tables[0].schema, "My Schema");
    assert_eq!(config.source.tables[1].schema, "public");
    assert!(!config.source.create);
    assert_eq!(config.source.status_interval, Duration::from_millis(250));
    assert_eq!(config.source.receive_timeout(), Duration::from_secs(60));
    assert_eq!(config.source.wal_sender_timeout, Duration::from_secs(45));
    assert_eq!(
        config.router,
        Router::Debezium(Box::new(Debezium {
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
    let SinkConfig::Kafka(kafka) = config.sink else {
        panic!("not Kafka")
    };
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
        TopicCreation {
            create: true,
            partitions: Some(12),
            replication_factor: Some(3)
        }
    );
    assert_eq!(config.delivery.max_in_flight_records, 1_000);
    assert_eq!(config.delivery.max_in_flight_bytes, 1 << 20);
    assert_eq!(config.delivery.backoff.max, Duration::from_secs(60));
    assert_eq!(config.log.level, LogLevel::Debug);
    assert_eq!(config.log.format, LogFormat::Json);
}

#[test]
fn an_unknown_key_is_shown_with_place_line_and_nearest() {
    let text = format!("{LEAST}\n[source2]\n\n[log]\nlevle = \"info\"\n");
    let error = parse(&text).unwrap_err();
    let shown: Vec<String> = error.problems().iter().map(ToString::to_string).collect();
    assert_eq!(
        shown,
        [
            "/etc/walrelay/walrelay.toml:9:2: unknown key `source2`\n  9 | [source2]\n    |  ^^^^^^^",
            "/etc/walrelay/walrelay.toml:12:1: unknown key `log.levle`\n  12 | levle = …\n     | ^^^^^",
        ]
    );
    assert_eq!(
        error.problems()[0].help.as_deref(),
        Some("did you mean `source`?")
    );
    assert_eq!(
        error.problems()[1].help.as_deref(),
        Some("did you mean `log.level`?")
    );
}

#[test]
fn the_value_of_an_unknown_key_is_not_shown() {
    // It may be a misspelt secret. parse_set looks for the value.
    for line in [
        "pasword = \"hunter2\"",
        "x = { y = \"hunter2\" }",
        "\"a=b\" = 'hunter2'",
    ] {
        let (id, _, _, _) = only(parse(
            &LEAST.replace("[source]", &format!("[source]\n{line}")),
        ));
        assert_eq!(id, "config-unknown-key");
    }
    let inline = "source = { url = 'postgres://db', tables = ['o'], pasword = 'hunter2' }\n[sink]\nkind = 'stdout'";
    assert_eq!(only(parse(inline)).0, "config-unknown-key");
}

#[test]
fn unknown_keys_find_the_one_that_was_meant() {
    for [section, line, meant] in cases(
        r#"
        sorce           => x = 1                               => `source`
        log             => formatt = "text"                    => `log.format`
        log             => slot = "x"                          => `source.slot`
        sink            => "topic.prefix" = "x"                => `router.debezium.topic.prefix`
        router.debezium => "route.topic.replacment" = "x"      => `router.debezium.route.topic.replacement`
        router          => "route.by.field" = "x"              => `router.debezium.route.by.field`
        delivery        => max_inflight_bytes = "1MiB"         => `delivery.max_in_flight_bytes`
        sink.kafak      => x = 1                               => the section `sink.kafka`
        zzzzzzzz        =>                                     => the sections are source, router, sink, delivery, poison, retention, prune, http, otel, log
        log             => qqqqqqqqqqqqqq = 1                  => the keys of [log] are level, format
        "#,
    ) {
        // Top-level keys must come before the first section.
        let (id, _, what, help) = only(parse(&format!("[{section}]\n{line}\n{LEAST}")));
        assert_eq!(id, "config-unknown-key", "{what}");
        assert!(help.contains(meant), "{what}: {help}");
    }
    let (_, _, _, help) = only(parse(&format!("slot = \"x\"\n{LEAST}")));
    assert_eq!(help, "did you mean `source.slot`?");
}

#[test]
fn wrong_types_say_what_is_wanted() {
    for [section, line, column, words] in cases(
        r#"
        source     => slot = 3                    => 8  => wants a string, found an integer
        source     => create = "yes"              => 10 => wants a boolean, found a string
        source     => status_interval = 1         => 19 => wants a duration, found an integer
        delivery   => max_in_flight_bytes = 1000  => 23 => wants a size, found an integer
        delivery   => max_in_flight_records = "9" => 25 => wants an integer, found a string
        log        => level = ["info"]            => 9  => found a list
        log        => level = {a = 1}             => 9  => found a table
        log        => level = 2020-01-01          => 9  => found a date
        sink.kafka => "linger.ms" = [1]           => 15 => wants a string, number or boolean
        "#,
    ) {
        let least = LEAST.replace(&format!("[{section}]"), &format!("[{section}]\n{line}"));
        let text = if least == LEAST {
            format!("[{section}]\n{line}{LEAST}")
        } else {
            least
        };
        let (id, at, what, help) = only(parse(&text));
        assert_eq!(id, "config-wrong-type", "{what}");
        assert!(at.ends_with(&format!(":{column}")), "{line}: {at}");
        assert!(what.contains(words), "{what}");
        assert!(!help.is_empty());
    }
    let (_, at, what, _) = only(parse(&LEAST.replace("\"public.outbox\"", "\"a.b\",\n  7")));
    assert_eq!(at, "walrelay.toml:5:3");
    assert!(what.contains("something else in its list"), "{what}");
    let (_, _, what, _) = only(parse(&format!("log = 3\n{LEAST}")));
    assert_eq!(what, "`log` is a section, not a value");
}

#[test]
fn missing_keys_are_all_named_with_examples() {
    let found = problems(parse(""));
    let told: Vec<(&str, &str)> = found
        .iter()
        .map(|(_, _, what, help)| (what.as_str(), help.as_str()))
        .collect();
    assert_eq!(
        told,
        [
            (
                "missing key `source.url`",
                "add to [source]: url = \"postgres://relay:${PGPASSWORD}@localhost:5432/app\""
            ),
            (
                "missing key `source.tables`",
                "add to [source]: tables = [\"public.outbox\"]"
            ),
            (
                "missing key `sink.kafka.bootstrap.servers`",
                "add to [sink.kafka]: \"bootstrap.servers\" = \"localhost:9092\""
            ),
        ]
    );
}

#[test]
fn syntax_errors_stand_alone_and_hide_open_strings() {
    let (id, at, what, _) = only(parse("[source\nurl = 3\n"));
    assert_eq!(
        (id.as_str(), at.as_str()),
        ("config-syntax", "walrelay.toml:1:8")
    );
    assert!(what.starts_with("not valid TOML: "), "{what}");
    for text in [
        "[source]\nurl = \"postgres://relay:hunter2@db\n",
        "[source]\nurl = \"\"\"\nhunter2 \\q\n\"\"\"\n",
        "[sink.kafka]\n\"sasl.password\" = hunter2\n",
        "[source]\nurl = \"postgres://relay:hunter2@db\" x\n",
    ] {
        // parse_set looks for the secret.
        assert_eq!(only(parse(text)).0, "config-syntax");
    }
    let twice = format!("{LEAST}\n\"bootstrap.servers\" = \"b\"\n");
    assert_eq!(only(parse(&twice)).0, "config-syntax");
    let twice = format!("{LEAST}\nbootstrap.servers = \"b\"\n");
    assert_eq!(only(parse(&twice)).0, "config-duplicate-key");
}

#[test]
fn an_unset_variable_is_an_error_with_its_place() {
    let text = LEAST.replace("PGPASSWORD", "PGPASSWROD");
    let (id, at, what, help) = only(parse(&text));
    assert_eq!(id, "config-env-unset");
    assert_eq!(at, "walrelay.toml:3:25");
    assert_eq!(what, "the environment variable PGPASSWROD is not set");
    assert!(help.contains("$${PGPASSWROD}"), "{help}");
    let text = LEAST.replace("public.outbox", "${NO_SUCH}");
    assert_eq!(only(parse(&text)).0, "config-env-unset");
}

#[test]
fn values_from_the_environment_are_not_shown() {
    // parse_set looks for the value.
    let text = LEAST.replace("[source]", "[source]\nslot = \"${BAD}\"");
    let error = parse(&text).unwrap_err();
    assert!(error.to_string().contains("slot = \"${BAD}\""), "{error}");
    let (_, at, _, _) = only(parse_set(LEAST, &["source.slot=${BAD}"]));
    assert_eq!(at, "--set source.slot=${BAD}");
}

#[test]
fn invalid_values_say_why() {
    refused_overrides(
        r#"
        source.slot="My-Slot"                => config-invalid-value => same => 1 to 63 of lower-case
        source.slot=""                       => config-invalid-value => same => 1 to 63 of lower-case
        source.publication=""                => config-invalid-value => same => must not be empty
        source.tables=[]                     => config-invalid-value => same => must not be empty
        source.tables=["a.b", 'a."b"']       => config-invalid-value => same => named twice
        source.tables=["a b"]                => config-invalid-value => same => double quotes
        source.status_interval="2s"          => config-invalid-value => same => at most 1s
        source.status_interval="1ms"         => config-invalid-value => same => at least 10ms
        source.status_interval="soon"        => config-invalid-value => same => a duration is
        source.wal_sender_timeout="1000h"    => config-invalid-value => same => at most
        source.url="mysql://db"              => config-invalid-value => source.url=… => must begin with postgres://
        delivery.max_in_flight_bytes="1KiB"  => config-invalid-value => same => within 65536 and
        delivery.max_in_flight_records=0     => config-invalid-value => same => within 1 and
        log.level="loud"                     => config-invalid-value => same => invalid value of `log.level`
        router.debezium.route.by.field=""    => config-invalid-value => same => must not be empty
        router.debezium.route.topic.replacement="out.$2"   => config-invalid-value => same => there is no group $2
        router.debezium.route.topic.replacement="${other}" => config-invalid-value => same => unknown placeholder ${other}
        router.debezium.route.topic.replacement="a b"      => config-invalid-value => same => a topic consists of
        router.debezium.route.topic.replacement=".."       => config-invalid-value => same => no topics
        router.debezium.route.topic.regex=(                => config-invalid-value => same => unclosed group
        router.debezium.route.topic.regex=(?=x)            => config-invalid-value => same => looking ahead
        router.debezium.table.fields.additional.placement=type:foo => config-invalid-value => same => is no placement
        router.debezium.table.fields.additional.placement=type => config-invalid-value => same => is not column:placement
        router.debezium.route.tombstone.on.empty.payload=yes => config-invalid-value => same => true or false
        router.debezium.time.precision.mode=exact => config-invalid-value => same => time.precision.mode
        "#,
    );
    let create = "sink.topics.create=true";
    let (id, at, what, _) = only(parse_set(LEAST, &[create, "sink.topics.partitions=0"]));
    assert_eq!(id, "config-invalid-value");
    assert_eq!(at, "--set sink.topics.partitions=0");
    assert!(what.contains("within 1 and"), "{what}");
    let beyond = LEAST.replace(
        "[source]",
        "[delivery]\nmax_in_flight_records = 99999999999999999999\n[source]",
    );
    let (id, _, what, _) = only(parse(&beyond));
    assert_eq!(id, "config-invalid-value");
    assert!(what.contains("64 bits"), "{what}");
}

#[test]
fn options_and_converters_of_debezium_are_read() {
    let text = format!(
        "{LEAST}\n[router.debezium]\n\"topic.prefix\" = \"srv\"\n\
         \"table.fields.additional.placement\" = \"type:header:eventType, ver:ENVELOPE\"\n\
         \"table.field.additional.missing\" = \"ignore\"\n\
         \"table.field.event.timestamp\" = \"ts\"\n\
         \"route.topic.regex\" = '(.*)-(.*)'\n\"route.topic.replacement\" = \"$2.$1\"\n\
         \"route.tombstone.on.empty.payload\" = \" TRUE\"\n\
         \"table.expand.json.payload\" = true\n\
         \"table.json.payload.null.behavior\" = \"optional_bytes\"\n\
         \"time.precision.mode\" = \"isostring\"\n\"money.fraction.digits\" = 3\n\
         \"extended.headers.enabled\" = true\n\
         [router.converters]\n\"key.converter\" = \"org.apache.kafka.connect.json.JsonConverter\"\n\
         \"key.converter.schemas.enable\" = false\n\"value.converter\" = \"binarydata\"\n\
         \"value.converter.delegate.converter.type\" = \"json\"\n\
         \"value.converter.delegate.converter.type.schemas.enable\" = \"false\"\n\
         \"header.converter\" = \"string\"\n"
    );
    let config = parse(&text).unwrap();
    let Router::Debezium(debezium) = &config.router else {
        panic!("not Debezium's")
    };
    let options = &debezium.options;
    assert!(debezium.context_headers && options.has_envelope() && options.ignore_missing);
    assert!(options.tombstone_on_empty);
    assert_eq!(options.additional.len(), 2);
    assert_eq!(options.event_timestamp.as_deref(), Some("ts"));
    assert_eq!(options.topic.to_string(), "$2.$1");
    assert!(
        options
            .expand
            .is_some_and(|expand| expand.keep_nulls && !expand.keep_empty_arrays)
    );
    assert_eq!(options.handling.time, TimePrecision::IsoString);
    assert_eq!(options.handling.money_fraction_digits, 3);
    let json = Converter::Json(JsonOptions {
        schemas: false,
        ..JsonOptions::default()
    });
    assert_eq!(options.key_converter, json);
    assert_eq!(
        options.value_converter,
        Converter::BinaryData(Some(Box::new(json)))
    );
    assert_eq!(options.header_converter, Converter::String);
}

#[test]
fn an_envelope_needs_the_prefix_of_its_schemas() {
    // Debezium cannot be without it, and nothing else names the schemas.
    let set = "router.debezium.table.fields.additional.placement=type:envelope";
    let (id, _, what, _) = only(parse_set(LEAST, &[set]));
    assert_eq!(id, "config-missing-key");
    assert_eq!(what, "missing key `router.debezium.topic.prefix`");
}

#[test]
fn what_comes_later_is_refused_by_name() {
    refused_overrides(
        "
        delivery.guarantee=exactly-once => config-not-supported => same => not supported by this version of walrelay
        ",
    );
    let (_, _, _, help) = only(parse_set(LEAST, &["delivery.guarantee=exactly-once"]));
    assert!(!help.is_empty());
}

#[test]
fn the_endpoint_is_for_this_machine_unless_somebody_says_otherwise() {
    refused_overrides(
        "
        http.listen=db:9187                  => config-invalid-value => same => it is an IP address and a port
        http.listen=0.0.0.0:9187             => config-conflict => same => it needs `http.token_file`, or `http.allow_anonymous = true`
        http.allow_anonymous=true            => config-conflict => same => has no effect without `http.listen`
        ",
    );
    let listens = |sets: &[&str]| {
        parse_set(LEAST, sets)
            .unwrap()
            .http
            .map(|http| http.listen.to_string())
    };
    assert_eq!(listens(&[]), None);
    assert_eq!(
        listens(&["http.listen=localhost:0"]).as_deref(),
        Some("127.0.0.1:0")
    );
    let everywhere = ["http.listen=[::]:9187", "http.allow_anonymous=true"];
    assert_eq!(listens(&everywhere).as_deref(), Some("[::]:9187"));
    let half = ["http.listen=[::1]:9187", "http.tls.key_file=a.key"];
    let (id, _, what, _) = only(parse_set(LEAST, &half));
    assert_eq!(
        (&*id, what),
        (
            "config-missing-key",
            "missing key `http.tls.certificate_file`".to_owned()
        )
    );
}

#[test]
fn every_default_only_option_takes_its_default_and_nothing_else() {
    let rows = sections::KEYS.0.iter();
    for row in rows.filter(|row| row.support == keys::Support::DefaultOnly) {
        let keys::Fallback::Is(default) = row.fallback else {
            panic!("{row:?}");
        };
        parse_set(LEAST, &[&format!("{}={default}", row.path)]).unwrap();
        let other = only(parse_set(LEAST, &[&format!("{}=other", row.path)]));
        assert_eq!(other.0, "config-not-supported", "{}", row.path);
    }
}

#[test]
fn things_that_do_not_go_together_are_refused() {
    for overrides in [
        &[
            "source.url=postgres://a:b@c/d",
            "source.password_file=/run/secrets/pw",
        ][..],
        &["sink.topics.partitions=3"],
        &["prune.keep=1h"],
        &["otel.endpoint=http://localhost:4318"],
        &["delivery.backoff_max=1ms"],
        &["delivery.backoff_initial=1m"],
    ] {
        let (id, at, _, _) = only(parse_set(LEAST, overrides));
        assert_eq!(id, "config-conflict", "{overrides:?}");
        assert!(at.starts_with("--set "), "{at}");
    }
    let both = LEAST.replace("[source]", "[source]\nurl_file = \"url\"");
    assert_eq!(only(parse(&both)).0, "config-conflict");
    let both = format!("{LEAST}\n\"sasl.password\" = \"a\"\n\"sasl.password_file\" = \"b\"\n");
    assert_eq!(only(parse(&both)).0, "config-conflict");
}

#[test]
fn overrides_win_and_the_last_one_counts() {
    let overrides = [
        "source.slot=first",
        "source.slot=second",
        "source.create=false",
        "source.tables=app.events",
        "delivery.max_in_flight_records=7",
        "sink.kafka.linger.ms=9",
        "sink.kafka.bootstrap.servers=\"x:1\"",
        "router.debezium.route.by.field=kind",
        "source.url=postgres://other/db?options=a=b",
    ];
    // The file's URL asks for a variable that is not set; it is not read any more.
    let text = LEAST.replace("PGPASSWORD", "NOT_SET");
    let config = parse_set(&text, &overrides).unwrap();
    assert_eq!(config.source.slot, "second");
    assert!(!config.source.create);
    assert_eq!(config.source.tables[0].to_string(), "app.events");
    assert_eq!(config.delivery.max_in_flight_records, 7);
    let Router::Debezium(debezium) = &config.router else {
        panic!("{:?}", config.router)
    };
    assert_eq!(debezium.options.route_by, "kind");
    assert_eq!(
        config.source.url.expose_secret(),
        "postgres://other/db?options=a=b"
    );
    let SinkConfig::Kafka(kafka) = config.sink else {
        panic!("not Kafka")
    };
    assert_eq!(kafka.properties.0["linger.ms"], "9");
    assert_eq!(kafka.properties.0["bootstrap.servers"], "x:1");

    let config = parse_set(LEAST, &["source.tables=['a.b', 'c.d']"]).unwrap();
    assert_eq!(config.source.tables.len(), 2);
    // A file instead of the value, and the other way round.
    let config = parse_set(LEAST, &["source.url_file=url"]).unwrap();
    assert_eq!(
        config.source.url.expose_secret(),
        "postgres://relay:hunter2@db/app"
    );
    let filed = LEAST.replace("url = ", "url_file = ");
    assert!(parse_set(&filed, &["source.url=postgres://other/db"]).is_ok());
}

#[test]
fn wrong_overrides_are_told_as_such() {
    refused_overrides(
        r#"
        source.slto=x           => config-unknown-key   => source.slto=… => unknown key `source.slto`
        novalue                 => config-override      => same          => the form key=value
        =x                      => config-override      => same          => the form key=value
        source.create=maybe     => config-wrong-type    => same          => wants a boolean
        source.tables=[         => config-override      => same          => not a TOML value
        source.slot="x          => config-override      => same          => not a TOML value
        source.url=hunter2      => config-invalid-value => source.url=…  => must begin with
        source.urll=hunter2     => config-unknown-key   => source.urll=… => unknown key
        source.slot=${NO_SUCH}  => config-env-unset     => same          => NO_SUCH is not set
        "#,
    );
}

#[test]
fn secrets_come_from_files_too() {
    let text = LEAST.replace("relay:${PGPASSWORD}@", "relay@");
    for (file, expected) in [
        ("/run/secrets/pw", "hunter2"),
        ("/run/secrets/crlf", "hunter2"),
        // One newline is the editor's; a second one is part of the secret.
        ("/run/secrets/two", "hunter2\n"),
    ] {
        let config = parse_set(&text, &[&format!("source.password_file={file}")]).unwrap();
        assert_eq!(config.source.password.unwrap().expose_secret(), expected);
    }
    let (id, _, what, _) = only(parse_set(
        &text,
        &["source.password_file=/run/secrets/empty"],
    ));
    assert_eq!(id, "config-secret-file");
    assert!(what.contains("empty"), "{what}");
    let missing = text.replace("[source]", "[source]\npassword_file = \"nope\"");
    let error = parse(&missing).unwrap_err();
    assert_eq!(error.problems()[0].id, "config-secret-file");
    assert!(error.to_string().contains("walrelay.toml:3:17"), "{error}");
    let cause = std::error::Error::source(&error).expect("no cause");
    assert!(cause.is::<io::Error>());
}

#[test]
fn standard_output_needs_no_broker() {
    let config =
        parse("[source]\nurl='postgres://db'\ntables=['o']\n[sink]\nkind='stdout'").unwrap();
    assert!(matches!(config.sink, SinkConfig::Stdout { confirm: false }));
    let config = parse_set(LEAST, &["sink.kind=stdout"]).unwrap();
    assert!(matches!(config.sink, SinkConfig::Stdout { confirm: false }));
    let confirming = ["sink.kind=stdout", "sink.stdout.confirm=true"];
    let config = parse_set(LEAST, &confirming).unwrap();
    assert!(matches!(config.sink, SinkConfig::Stdout { confirm: true }));
}

#[test]
fn debug_hides_what_looks_secret() {
    let properties = KafkaProperties(
        [
            "sasl.password",
            "ssl.key.password",
            "ssl.key.pem",
            "sasl.oauthbearer.client.secret",
            "sasl.oauthbearer.config",
        ]
        .map(|name| (name.to_owned(), PASSWORD.to_owned()))
        .into_iter()
        .chain([("linger.ms".to_owned(), "5".to_owned())])
        .collect(),
    );
    let shown = format!("{properties:?}");
    assert!(!shown.contains(PASSWORD), "{shown}");
    assert!(shown.contains("\"linger.ms\": \"5\""), "{shown}");
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
        config.source.password.unwrap().expose_secret(),
        "from a file"
    );
}

#[test]
fn no_text_makes_it_panic() {
    let whole = LEAST.replace("outbox", "öutbox");
    for end in (0..whole.len()).filter(|end| whole.is_char_boundary(*end)) {
        let _ = parse(&whole[..end]);
        let _ = parse(&whole[end..]);
    }
}

#[test]
fn messages_stand_in_for_tables() {
    let text = |source: &str| {
        format!("[source]\nurl = 'postgres://db'\n{source}\n[sink]\nkind = 'stdout'\n")
    };
    for (lines, prefix, tables) in [
        ("messages.prefix = 'outbox'", Some("outbox"), 0),
        (
            "tables = ['o']\nmessages.prefix = \"it's\"",
            Some("it's"),
            1,
        ),
        ("tables = ['o']", None, 1),
    ] {
        let source = parse(&text(lines)).unwrap().source;
        assert_eq!(source.messages.as_deref(), prefix);
        assert_eq!(source.tables.len(), tables);
    }
    for [lines, words] in cases(
        "
                                              => missing key `source.tables`
        messages.prefix = ''                  => must not be empty
        messages.prefix = 3                   => wants a string
        messages.prefx = 'a'                  => unknown key `source.messages.prefx`
        tables = []; messages.prefix = 'a'    => must not be empty
        ",
    ) {
        let error = parse(&text(&lines.replace("; ", "\n")))
            .unwrap_err()
            .to_string();
        assert!(error.contains(words), "{lines}: {error}");
    }
}

#[test]
fn cloud_events_want_source_and_type() {
    let text = |lines: &str| with_section("router.cloudevents", lines);
    let least = "mode = 'structured'\nsource = '/orders'\ntype = 'com.example.{type | lower}'";
    let events = parse(&text(least)).unwrap().cloud_events.unwrap();
    assert_eq!(
        events.mode,
        walrelay_event_router::CloudEventMode::Structured
    );
    assert_eq!(events.columns(), ["type"]);
    assert_eq!(events.content_type, "application/json");
    assert!(parse(&text("")).unwrap().cloud_events.is_none());
    refused_lines(
        "router.cloudevents",
        "
        mode = 'both'      => invalid value of `router.cloudevents.mode`
        mode = 'binary'    => missing key `router.cloudevents.source`
        mode = 'binary'    => missing key `router.cloudevents.type`
        source = '/orders' => has no effect while `router.cloudevents.mode` is not set
        mode = 'binary'; source = '{x'; type = 't' => invalid value of `router.cloudevents.source`
        mode = 'binary'; source = ''; type = 't'   => must not be empty
        mode = 'binary'; source = 's'; type = 't'; datacontenttype = 'json' => a media type
        ",
    );
}

#[test]
fn a_position_header_is_none_that_records_have_already() {
    let named = "position_header = 'walrelay-position'\n";
    let of = |lines: &str| {
        parse(&with_section("router", lines))
            .unwrap()
            .position_header
    };
    assert_eq!(of(""), None);
    for more in ["", "preset = 'outbox'"] {
        let name = of(&format!("{named}{more}"));
        assert_eq!(name.as_deref(), Some("walrelay-position"), "{more}");
    }
    refused_lines(
        "router",
        "
        position_header = ''                                  => must not be empty
        position_header = 3                                   => wants a string
        position_header = 'walrelay.dlq.row'                  => those of dead letters
        position_header = 'id'                                => have already
        position_header = 'aggregate-id'; preset = 'outbox'   => have already
        position_header = 'traceparent'; debezium.'tracing.span.context.field' = 'ctx' => have already
        position_header = 'seen'; debezium.table.fields.additional.placement = 'a:header:seen' => have already
        position_header = '__debezium.context.taskId'; [router.debezium]; 'topic.prefix' = 'srv'; 'extended.headers.enabled' = true => have already
        position_header = 'ce_id'; [router.cloudevents]; mode = 'binary'; source = 's'; type = 't' => have already
        position_header = 'content-type'; [router.cloudevents]; mode = 'structured'; source = 's'; type = 't' => have already
        ",
    );
}

#[test]
fn properties_of_kafka_are_refused_where_they_stand() {
    let with = |lines: &str| {
        let text =
            format!("[source]\nurl = 'postgres://db'\ntables = ['o']\n[sink.kafka]\n{lines}\n");
        parse(&text).unwrap_err()
    };
    let servers = "'bootstrap.servers' = 'b:9092'\n";
    for [lines, line, words, help] in cases(
        r#"
        'linger.ms' = 'five'              => 6 => "linger.ms"                => CONFIGURATION.md
        'queue.buffering.max.ms' = 'five' => 6 => "queue.buffering.max.ms"   => CONFIGURATION.md
        'linger.ms' = 5000000             => 6 => linger.ms                  => CONFIGURATION.md
        'acks' = '1'                      => 6 => acks: a record             => the relay sets acks=all
        'lingr.ms' = 5                    => 6 => lingr.ms is not a property => did you mean linger.ms?
        'group.id' = 'x'                  => 6 => a consumer property        => remove it
        'linger.ms' = 1; 'queue.buffering.max.ms' = 2 => 7 => two names of one property => keep one of them
        "#,
    ) {
        let error = with(&format!("{servers}{}", lines.replace("; ", "\n")));
        let [problem] = error.problems() else {
            panic!("{lines}: {error}");
        };
        assert_eq!(problem.id, "kafka-property");
        assert!(problem.what.contains(words), "{lines}: {problem}");
        let said = problem.to_string();
        assert!(said.contains(&format!("walrelay.toml:{line}:")), "{said}");
        assert!(problem.help.as_ref().unwrap().contains(help), "{problem:?}");
    }
    // The brokers are named, if by a name that there is not.
    let error = with("'bootstrap.server' = 'b:9092'");
    let [problem] = error.problems() else {
        panic!("{error}");
    };
    assert_eq!(
        problem.help.as_deref(),
        Some("did you mean bootstrap.servers?")
    );
    // What the environment and files hold is not shown.
    for lines in ["'linger.ms' = '${SECRET}'", "'linger.ms_file' = 'a'"] {
        let text = format!(
            "[source]\nurl = 'postgres://db'\ntables = ['o']\n[sink.kafka]\n{servers}{lines}\n"
        );
        let env = |_: &str| Some("hunter2".to_owned());
        let files = |_: &Path| Ok("hunter2".to_owned());
        let error = parse_with(&text, "walrelay.toml", &[], &env, &files).unwrap_err();
        let said = format!("{error} {error:?}");
        assert!(said.contains("does not accept the value"), "{said}");
        assert!(!said.contains("hunter2"), "{said}");
    }
    // Unread with another sink.
    assert!(parse_set(&format!("{LEAST}\n'lingr.ms' = 5"), &["sink.kind=stdout"]).is_ok());
}

#[test]
fn names_of_overrides_may_be_quoted() {
    let config = parse_set(LEAST, &["sink.kafka.\"compression.type\"=zstd"]).unwrap();
    let SinkConfig::Kafka(sink) = config.sink else {
        panic!("not Kafka");
    };
    assert_eq!(sink.properties.0["compression.type"], "zstd");
}

#[test]
fn snapshots_are_of_rows() {
    let config = parse_set(LEAST, &["source.snapshot=unsent"]).unwrap();
    assert_eq!(config.source.snapshot, SnapshotMode::Unsent);
    assert!(config.source.snapshot_order.is_empty());
    let with = |set: &[&str]| parse_set(LEAST, set).unwrap_err().to_string();
    let messages = "[source]\nurl = 'postgres://db'\nsnapshot = 'initial'\nmessages.prefix = 'x'\n\
                    [sink]\nkind = 'stdout'\n";
    let error = parse(messages).unwrap_err().to_string();
    assert!(error.contains("messages leave no rows"), "{error}");
    for (set, words) in [
        (&["source.snapshot=always"][..], "invalid value"),
        (
            &["source.snapshot_where=sent"],
            "no effect without `source.snapshot`",
        ),
        (
            &["source.snapshot=initial", "source.snapshot_where= "],
            "invalid value",
        ),
    ] {
        let error = with(set);
        assert!(error.contains(words), "{set:?}: {error}");
    }
}
