//! Tests of refused values, and of values from the environment and from files.

use super::*;

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
    let topic = |length| {
        format!(
            "router.debezium.route.topic.replacement={}${{routedByValue}}",
            "t".repeat(length)
        )
    };
    let (id, _, what, _) = only(parse_set(LEAST, &[&topic(250)]));
    assert_eq!(id, "config-invalid-value");
    assert!(what.contains("Kafka allows 249"), "{what}");
    parse_set(LEAST, &[&topic(249)]).unwrap();
    parse_set(LEAST, &[&topic(250), "sink.kind=stdout"]).unwrap();
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
fn unsupported_values_are_refused_by_name() {
    refused_overrides(
        "
        delivery.guarantee=exactly-once => config-not-supported => same => not supported by this version of walrelay
        ",
    );
    let (_, _, _, help) = only(parse_set(LEAST, &["delivery.guarantee=exactly-once"]));
    assert!(!help.is_empty());
}

#[test]
fn every_default_only_option_takes_its_default_and_nothing_else() {
    for row in sections::KEYS.rows() {
        let walrelay_settings::Fallback::Only(default) = row.fallback else {
            continue;
        };
        parse_set(LEAST, &[&format!("{}={default}", row.path)]).unwrap();
        let other = only(parse_set(LEAST, &[&format!("{}=other", row.path)]));
        assert_eq!(other.0, "config-not-supported", "{}", row.path);
    }
}

/// A slot that is named twice would be waited for twice, which no slot can satisfy.
#[test]
fn each_slot_of_prune_counts_once() {
    let set = [
        "source.slot=own",
        "prune.before_slot=true",
        "prune.slots=[\"own\", \"other\", \"own\", \"other\"]",
    ];
    let config = parse_set(LEAST, &set).unwrap();
    assert_eq!(config.pipeline.prune.unwrap().slots, ["other"]);
}

#[test]
fn conflicting_keys_are_refused() {
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
    // `parse_set` checks that the value is not shown.
    let text = LEAST.replace("[source]", "[source]\nslot = \"${BAD}\"");
    let error = parse(&text).unwrap_err();
    assert!(error.to_string().contains("slot = \"${BAD}\""), "{error}");
    let (_, at, _, _) = only(parse_set(LEAST, &["source.slot=${BAD}"]));
    assert_eq!(at, "--set source.slot=${BAD}");
}

#[test]
fn secrets_can_come_from_files() {
    let text = LEAST.replace("relay:${PGPASSWORD}@", "relay@");
    for (file, expected) in [
        ("/run/secrets/pw", "hunter2"),
        ("/run/secrets/crlf", "hunter2"),
        // One newline at the end is removed; a second one is part of the secret.
        ("/run/secrets/two", "hunter2\n"),
    ] {
        let config = parse_set(&text, &[&format!("source.password_file={file}")]).unwrap();
        assert_eq!(
            config.pipeline.source.password.unwrap().expose_secret(),
            expected
        );
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
fn debug_hides_what_looks_secret() {
    let properties = walrelay_kafka_sink::section::KafkaProperties(
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
