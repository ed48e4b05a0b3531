use rdkafka::error::KafkaError as ClientError;

use super::clients::LOWEST_BATCH_SIZE;
use super::rules::{RULES, Rule, SECRETS};
use super::*;

fn properties(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    [("bootstrap.servers", "broker:9092")]
        .iter()
        .chain(pairs)
        .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()))
        .collect()
}

fn with(pairs: &[(&str, &str)]) -> Result<KafkaConfig, KafkaConfigError> {
    KafkaConfig::new(properties(pairs), KafkaOptions::default())
}

#[test]
fn values_that_would_break_a_promise_are_refused_with_reason_and_remedy() {
    for (property, value) in [
        ("acks", "1"),
        ("acks", "0"),
        ("request.required.acks", "1"),
        ("enable.idempotence", "false"),
        ("enable.gapless.guarantee", "false"),
        ("max.in.flight", "2"),
        ("max.in.flight", "5"),
        ("max.in.flight", "0"),
        ("max.in.flight.requests.per.connection", "5"),
        ("max.in.flight.requests.per.connection", "1000000"),
        ("retries", "0"),
        ("message.send.max.retries", "5"),
        ("message.timeout.ms", "1"),
        ("message.timeout.ms", "300000"),
        ("delivery.timeout.ms", "2147483647"),
        ("delivery.timeout.ms", "never"),
        ("partitioner", "consistent"),
        ("partitioner", "consistent_random"),
        ("partitioner", "random"),
        ("partitioner", "fnv1a"),
        ("queuing.strategy", "lifo"),
        ("transactional.id", "t"),
        ("queue.buffering.max.messages", "10"),
        ("queue.buffering.max.kbytes", "10"),
        ("delivery.report.only.error", "true"),
        ("dr_msg_cb", "x"),
        ("test.mock.num.brokers", "3"),
        ("plugin.library.paths", "evil"),
        ("ssl.engine.location", "evil.so"),
        ("ssl.engine.id", "evil"),
        ("ssl.providers", "default,evil"),
        ("topic.blacklist", "orders"),
        ("enabled_events", "0"),
        ("log.queue", "false"),
        ("sasl.mechanism", "GSSAPI"),
        ("sasl.mechanisms", "GSSAPI"),
        ("sasl.mechanism", "AWS_MSK_IAM"),
        ("sasl.oauthbearer.method", "oidc"),
        ("sasl.oauthbearer.config", "principal=admin"),
        ("enable.sasl.oauthbearer.unsecure.jwt", "true"),
    ] {
        match with(&[(property, value)]) {
            Err(KafkaConfigError::Refused {
                property: named,
                reason,
                remedy,
            }) => {
                assert_eq!(named, property);
                assert!(!reason.is_empty() && !remedy.is_empty());
            }
            other => panic!("{property}={value}: {other:?}"),
        }
    }
}

#[test]
fn the_same_properties_pass_with_values_that_keep_the_promises() {
    for (property, value) in [
        ("acks", "all"),
        ("acks", "-1"),
        ("enable.idempotence", "true"),
        ("enable.gapless.guarantee", "true"),
        ("max.in.flight", "1"),
        ("max.in.flight.requests.per.connection", "1"),
        ("retries", "2147483647"),
        ("message.timeout.ms", "0"),
        ("delivery.timeout.ms", "0"),
        ("partitioner", "murmur2"),
        ("partitioner", "murmur2_random"),
        ("queuing.strategy", "fifo"),
        ("delivery.report.only.error", "false"),
        ("linger.ms", "50"),
        ("queue.buffering.max.ms", "0.5"),
        ("compression.type", "zstd"),
        ("compression.codec", "gzip"),
        ("statistics.interval.ms", "1000"),
        ("client.id", "x"),
        ("debug", "broker,topic"),
        ("log_level", "7"),
        ("message.max.bytes", "5000000"),
        ("ssl.endpoint.identification.algorithm", "https"),
    ] {
        let config = with(&[(property, value)]).expect(property);
        config
            .client_config()
            .create_native_config()
            .expect("librdkafka takes the whole");
    }
}

#[test]
fn consumer_properties_and_unknown_ones_are_distinguished() {
    assert_eq!(
        with(&[("group.id", "g")]).expect_err("a consumer's"),
        KafkaConfigError::ConsumerOnly {
            property: "group.id".to_owned()
        }
    );
    for (wrong, meant) in [
        ("lingerms", "linger.ms"),
        ("bootstrap.server", "bootstrap.servers"),
        ("compresion.type", "compression.type"),
        ("brokers", "bootstrap.servers"),
        ("max.request.size", "message.max.bytes"),
        ("ssl.truststore.location", "ssl.ca.location"),
    ] {
        let error = with(&[(wrong, "1")]).expect_err(wrong);
        assert_eq!(
            error,
            KafkaConfigError::Unknown {
                property: wrong.to_owned(),
                nearest: Some(meant.to_owned())
            }
        );
        assert!(error.remedy().ends_with(&format!("did you mean {meant}?")));
    }
    assert_eq!(
        with(&[("key.serializer", "x")]).expect_err("unknown"),
        KafkaConfigError::Unknown {
            property: "key.serializer".to_owned(),
            nearest: None
        }
    );
}

#[test]
fn invalid_values_are_reported_with_librdkafkas_message() {
    let error = with(&[("linger.ms", "soon")]).expect_err("not a number");
    assert!(
        matches!(&error, KafkaConfigError::Invalid { property, .. } if property == "linger.ms"),
        "{error:?}"
    );
    assert!(error.to_string().contains("Invalid value"), "{error}");
    with(&[("client.id", "a\0b")]).expect_err("a NUL");
}

#[test]
fn dependent_properties_are_checked_together() {
    let none = KafkaConfig::new(BTreeMap::new(), KafkaOptions::default());
    assert!(matches!(
        none,
        Err(KafkaConfigError::Missing {
            property: "bootstrap.servers",
            ..
        })
    ));
    let old_name = BTreeMap::from([("metadata.broker.list".to_owned(), "b:1".to_owned())]);
    let config = KafkaConfig::new(old_name, KafkaOptions::default()).expect("the old name");
    assert_eq!(config.bootstrap_servers(), "b:1");

    assert!(matches!(
        with(&[("acks", "all"), ("request.required.acks", "-1")]),
        Err(KafkaConfigError::Twice { .. })
    ));
    assert!(matches!(
        with(&[("security.protocol", "sasl_ssl")]),
        Err(KafkaConfigError::Missing {
            property: "sasl.mechanism",
            ..
        })
    ));
    assert!(matches!(
        with(&[
            ("security.protocol", "SASL_PLAINTEXT"),
            ("sasl.mechanism", "PLAIN"),
            ("sasl.username", "u"),
        ]),
        Err(KafkaConfigError::Missing {
            property: "sasl.password",
            ..
        })
    ));
}

/// A token source that the tests do not call.
#[derive(Debug)]
struct Nothing;

impl TokenSource for Nothing {
    fn token(&self) -> Result<crate::Token, crate::TokenError> {
        Err(Arc::new(std::io::Error::other("nothing")))
    }
}

#[test]
fn tokens_and_oauthbearer_belong_together() {
    let with_tokens = |pairs: &[(&str, &str)]| {
        let source: Arc<dyn TokenSource> = Arc::new(Nothing);
        KafkaConfig::with_tokens(properties(pairs), KafkaOptions::default(), Some(source))
    };
    let bearer = [
        ("security.protocol", "SASL_SSL"),
        ("sasl.mechanisms", "OAUTHBEARER"),
    ];
    let config = with_tokens(&bearer).expect("both");
    assert!(config.uses_tokens());
    assert!(format!("{config:?}").contains("tokens: true"));
    config
        .client_config()
        .create_native_config()
        .expect("librdkafka takes it");
    assert_eq!(with(&bearer).err(), Some(KafkaConfigError::NoTokens));
    for other in [
        &[][..],
        &[("sasl.mechanism", "OAUTHBEARER")],
        &[
            ("security.protocol", "SASL_SSL"),
            ("sasl.mechanism", "PLAIN"),
        ],
    ] {
        let error = with_tokens(other).expect_err("no use for tokens");
        assert_eq!(error, KafkaConfigError::TokensUnused);
        assert!(error.remedy().contains("OAUTHBEARER"));
    }
}

#[test]
fn settings_that_weaken_security_are_allowed_with_a_warning() {
    let warnings = |pairs: &[(&str, &str)]| with(pairs).expect("allowed").warnings();
    let ssl = ("security.protocol", "SSL");
    assert!(
        warnings(&[]).is_empty(),
        "whoever says nothing of TLS has none to weaken"
    );
    assert!(warnings(&[ssl]).is_empty());
    for (property, value) in [
        ("enable.ssl.certificate.verification", "false"),
        ("ssl.endpoint.identification.algorithm", "none"),
    ] {
        let said = warnings(&[ssl, (property, value)]);
        assert!(said.len() == 1 && said[0].starts_with(property), "{said:?}");
    }
    let clear = |mechanism| {
        warnings(&[
            ("security.protocol", "SASL_PLAINTEXT"),
            ("sasl.mechanism", mechanism),
            ("sasl.username", "u"),
            ("sasl.password", "p"),
        ])
    };
    assert!(clear("PLAIN")[0].contains("in clear"));
    assert!(clear("SCRAM-SHA-256")[0].contains("SASL_SSL"));
}

#[test]
fn the_client_that_checks_certificates_has_no_credentials() {
    let config = with(&[
        ("security.protocol", "SASL_SSL"),
        ("sasl.mechanism", "PLAIN"),
        ("sasl.username", "relay"),
        ("sasl.password", "hush-hush"),
        ("ssl.key.pem", "hush-hush"),
        ("ssl.certificate.location", "/c.pem"),
        ("ssl.ca.location", "/ca.pem"),
        ("enable.ssl.certificate.verification", "true"),
    ])
    .expect("valid")
    .without_credentials();
    for absent in [
        "sasl.mechanism",
        "sasl.password",
        "ssl.key.pem",
        "ssl.certificate.location",
    ] {
        assert_eq!(config.get(absent), None, "{absent}");
    }
    assert_eq!(config.get("security.protocol"), Some("ssl"));
    assert_eq!(config.get("ssl.ca.location"), Some("/ca.pem"));
}

#[test]
fn options_have_bounds() {
    let check = |change: fn(&mut KafkaOptions)| {
        let mut options = KafkaOptions::default();
        change(&mut options);
        KafkaConfig::new(properties(&[]), options)
    };
    let creation = |partitions, replication_factor| {
        let options = KafkaOptions {
            topics: Some(TopicCreation {
                partitions,
                replication_factor,
                properties: BTreeMap::new(),
            }),
            ..KafkaOptions::default()
        };
        KafkaConfig::new(properties(&[]), options)
    };
    check(|o| o.max_in_flight_records = 0).expect_err("nothing could ever be sent");
    check(|o| o.max_in_flight_bytes = 0).expect_err("nothing could ever be sent");
    check(|o| o.max_in_flight_records = u64::MAX).expect_err("librdkafka counts in 32 bits");
    creation(0, 1).expect_err("no partition");
    creation(1, 0).expect_err("no replica");
    creation(-1, -1).expect("the broker's defaults");
}

#[test]
fn secrets_are_nowhere() {
    // This build of librdkafka refuses some of the properties.
    let settable = |p: &&str| check_property(p, "hush-hush").is_ok();
    let names = SECRETS.iter().copied().filter(settable);
    let mut secrets: Vec<(&str, &str)> = names.map(|p| (p, "hush-hush")).collect();
    assert!(secrets.len() >= 4, "{secrets:?}");
    // librdkafka parses PEM when the property is set; its error must not contain the value.
    let error = with(&[("ssl.key.pem", "hush-hush\0")]).expect_err("a NUL");
    assert!(!format!("{error:?} {error}").contains("hush"), "{error}");
    secrets.push(("sasl.username", "visible"));
    let config = with(&secrets).expect("strings are taken as they are");
    let shown = format!("{config:?}");
    assert!(!shown.contains("hush"), "{shown}");
    assert!(shown.contains("visible"), "{shown}");
    assert_eq!(
        config.scrub("the password hush-hush is wrong"),
        "the password [redacted] is wrong"
    );
}

#[test]
fn defaults_and_fixed_properties_reach_librdkafka() {
    let native = with(&[("linger.ms", "7"), ("request.required.acks", "-1")])
        .expect("valid")
        .client_config()
        .create_native_config()
        .expect("librdkafka takes it");
    for (property, value) in [
        ("acks", "-1"),
        ("enable.idempotence", "true"),
        ("enable.gapless.guarantee", "true"),
        ("enable.metrics.push", "false"),
        ("linger.ms", "7"),
        ("max.in.flight", "1"),
        ("message.timeout.ms", "0"),
        ("partitioner", "murmur2_random"),
        ("queue.buffering.max.messages", "0"),
        ("reconnect.backoff.max.ms", "1000"),
    ] {
        assert_eq!(native.get(property).expect(property), value, "{property}");
    }
}

/// The tables follow CONFIGURATION.md of one version; this test compares them with the linked
/// library.
#[test]
fn librdkafka_knows_every_name_in_the_tables() {
    use rdkafka::types::RDKafkaConfRes::RD_KAFKA_CONF_UNKNOWN;
    let names = properties::producer().chain(properties::consumer());
    let named_by_rules = RULES
        .iter()
        .flat_map(Rule::names)
        .chain(SECRETS.iter().copied());
    for name in names.chain(named_by_rules) {
        let mut config = ClientConfig::new();
        config.set(name, "");
        if let Err(ClientError::ClientConfig(RD_KAFKA_CONF_UNKNOWN, reason, ..)) =
            config.create_native_config()
        {
            // librdkafka also knows the properties that this build does not support.
            assert!(
                !reason.contains("No such configuration property"),
                "{reason}"
            );
        }
    }
    assert!(
        properties::producer().is_sorted() && properties::consumer().is_sorted(),
        "kept in order so that a missing one is seen"
    );
}

#[test]
fn the_batch_size_is_lowered_to_a_tenth_and_not_below_the_lowest() {
    let config = with(&[]).expect("valid");
    assert_eq!(
        config.for_producer(ClientConfig::new()).get("batch.size"),
        None
    );
    assert_eq!(config.batch_size(), 1_000_000);
    assert_eq!(config.lower_batch_size(1_000_000), Some(100_000));
    // The same for the other records of the batch.
    assert_eq!(config.lower_batch_size(1_000_000), Some(100_000));
    let clone = config.clone();
    assert_eq!(clone.batch_size(), 100_000);
    assert_eq!(config.lower_batch_size(100_000), Some(LOWEST_BATCH_SIZE));
    assert_eq!(config.lower_batch_size(LOWEST_BATCH_SIZE), None);
    let client = clone.for_producer(ClientConfig::new());
    assert_eq!(client.get("batch.size"), Some("16384"));
    let small = with(&[("batch.size", "9000")]).expect("valid");
    assert_eq!(small.lower_batch_size(small.batch_size()), None);
    assert_eq!(small.batch_size(), 9_000);
}
