//! `[sink.kafka]`: properties of Java's producer as those of librdkafka.

use std::collections::BTreeMap;

use walrelay_kafka_sink::{KafkaConfig, KafkaOptions};

use super::draft::{Refused, Toml};
use super::import::Import;
use super::jaas::{self, Login};
use super::settings::Kind;
use super::value::Value;

const SECTION: &str = "sink.kafka";

/// Where a property of Java's producer goes.
enum To {
    /// The same name and meaning.
    Same,
    /// Another name.
    Named(&'static str),
    /// Nowhere.
    None(&'static str),
    /// walrelay does not do it.
    Unsupported(&'static str),
    /// The same, and records would be on other partitions, or have other bytes.
    Breaks(&'static str),
}

const JAVA: &str = "it is of Java's client only";
const FIXED: &str = "walrelay sets it itself, to the value that loses and reorders nothing";
const TOKENS: &str = "walrelay gets tokens from a file or a command: [sink.oauthbearer] in \
    docs/CONFIGURATION.md";
const STORE: &str = "librdkafka reads PEM, not Java's stores: `keytool -exportcert -rfc -keystore \
    STORE -alias NAME > ca.pem` for each certificate, then \"ssl.ca.location\" = \"ca.pem\"";
const BYTES: &str = "walrelay's converters make the bytes that are sent";

/// Names with a rule that needs no look at the value.
const PROPERTIES: &[(&str, To)] = &[
    ("bootstrap.servers", To::Same),
    ("client.id", To::Same),
    ("client.dns.lookup", To::Same),
    ("compression.type", To::Same),
    ("linger.ms", To::Same),
    ("batch.size", To::Same),
    ("connections.max.idle.ms", To::Same),
    ("metadata.max.age.ms", To::Same),
    ("metadata.recovery.strategy", To::Same),
    ("metadata.recovery.rebootstrap.trigger.ms", To::Same),
    ("reconnect.backoff.ms", To::Same),
    ("reconnect.backoff.max.ms", To::Same),
    ("retry.backoff.ms", To::Same),
    ("retry.backoff.max.ms", To::Same),
    ("security.protocol", To::Same),
    ("sasl.mechanism", To::Same),
    ("socket.connection.setup.timeout.ms", To::Same),
    ("enable.metrics.push", To::Same),
    ("max.request.size", To::Named("message.max.bytes")),
    ("request.timeout.ms", To::Named("socket.timeout.ms")),
    ("ssl.truststore.certificates", To::Named("ssl.ca.pem")),
    (
        "ssl.keystore.certificate.chain",
        To::Named("ssl.certificate.pem"),
    ),
    ("acks", To::None(FIXED)),
    ("enable.idempotence", To::None(FIXED)),
    ("retries", To::None(FIXED)),
    ("max.in.flight.requests.per.connection", To::None(FIXED)),
    ("delivery.timeout.ms", To::None(FIXED)),
    (
        "buffer.memory",
        To::None("delivery.max_in_flight_bytes bounds what is on its way, 12MiB by default"),
    ),
    (
        "max.block.ms",
        To::None("walrelay waits for a broker as long as it takes"),
    ),
    ("metadata.max.idle.ms", To::None(JAVA)),
    ("socket.connection.setup.timeout.max.ms", To::None(JAVA)),
    (
        "partitioner.adaptive.partitioning.enable",
        To::None("it concerns records without a key"),
    ),
    (
        "partitioner.availability.timeout.ms",
        To::None("it concerns records without a key"),
    ),
    ("metric.reporters", To::None(JAVA)),
    ("auto.include.jmx.reporter", To::None(JAVA)),
    ("metrics.num.samples", To::None(JAVA)),
    ("metrics.recording.level", To::None(JAVA)),
    ("metrics.sample.window.ms", To::None(JAVA)),
    ("security.providers", To::None(JAVA)),
    ("config.providers", To::None(JAVA)),
    ("ssl.protocol", To::None("TLS 1.2 and 1.3 are spoken")),
    (
        "ssl.enabled.protocols",
        To::None("TLS 1.2 and 1.3 are spoken"),
    ),
    ("ssl.provider", To::None(JAVA)),
    ("ssl.keymanager.algorithm", To::None(JAVA)),
    ("ssl.trustmanager.algorithm", To::None(JAVA)),
    ("ssl.secure.random.implementation", To::None(JAVA)),
    (
        "interceptor.classes",
        To::Unsupported("it is Java code that sees each record; do what it does elsewhere"),
    ),
    (
        "transactional.id",
        To::Unsupported("walrelay's producer is not transactional under at-least-once delivery"),
    ),
    (
        "transaction.timeout.ms",
        To::None("it belongs to transactions"),
    ),
    (
        "transaction.two.phase.commit.enable",
        To::None("it belongs to transactions"),
    ),
    (
        "ssl.cipher.suites",
        To::Unsupported("OpenSSL has other names for them: write \"ssl.cipher.suites\" by hand"),
    ),
    (
        "ssl.engine.factory.class",
        To::Unsupported("it is Java code; name certificates by ssl.ca.location and its like"),
    ),
    ("sasl.login.class", To::Unsupported(TOKENS)),
    ("sasl.login.callback.handler.class", To::Unsupported(TOKENS)),
    (
        "sasl.client.callback.handler.class",
        To::Unsupported(TOKENS),
    ),
    (
        "partitioner.ignore.keys",
        To::Breaks("walrelay places records by their keys; without that there is no order per key"),
    ),
];

pub(super) fn kafka(import: &mut Import) {
    sink_of_server(import);
    stores(import);
    for (number, property) in import.below("producer.") {
        producer(import, number, &property);
    }
    if !import.draft.has(SECTION, "bootstrap.servers") {
        let variable = match import.kind {
            Kind::Connect => "KAFKA_BOOTSTRAP_SERVERS",
            // What Debezium Server itself looks for in its environment.
            Kind::Server => "DEBEZIUM_SINK_KAFKA_PRODUCER_BOOTSTRAP_SERVERS",
        };
        let value = Value::variable(variable);
        let value = import.configured(&value);
        let comment = "not in the input";
        import.line_of_default(SECTION, "bootstrap.servers", value, comment);
        let of_worker = match import.kind {
            Kind::Connect => "; the worker's file has it, and --worker FILE reads it there",
            Kind::Server => "",
        };
        import.urgent(
            "bootstrap.servers",
            format!(
                "it is not in the input; the configuration wants it from {variable}{of_worker}"
            ),
        );
    }
}

/// `debezium.sink.type` and its like.
fn sink_of_server(import: &mut Import) {
    if import.kind == Kind::Connect {
        return;
    }
    match import.find("sink.type") {
        Some(number) if import.word(number) == "kafka" => {
            let kind = Toml::Text("kafka".to_owned());
            import.line("sink", "kind", kind, &[number], Refused::Breaks);
        }
        Some(number) => {
            import.breaks(number, "walrelay delivers to Kafka");
            import.fatal("debezium.sink.type is not kafka: walrelay delivers to Kafka only");
        }
        None => import.fatal("debezium.sink.type is missing: walrelay delivers to Kafka only"),
    }
    for (number, option) in import.below("sink.") {
        match option.as_str() {
            "kafka.wait.message.delivery.timeout.ms" => import.none(
                number,
                "walrelay waits for acknowledgements as long as it takes and confirms nothing before",
            ),
            _ if option.starts_with("kafka.") => {
                import.unsupported(number, "walrelay's sink for Kafka has no such option");
            }
            _ => import.none(number, "it belongs to another sink than the one in use"),
        }
    }
}

/// Key stores: PKCS#12 as it is, PEM by its two names.
fn stores(import: &mut Import) {
    let of = |import: &Import, name: &str| {
        let number = import.find(&format!("producer.{name}"))?;
        Some((number, import.word(number)))
    };
    let trust = of(import, "ssl.truststore.type").map_or("jks".to_owned(), |(_, kind)| kind);
    if let Some((number, _)) = of(import, "ssl.truststore.location") {
        if trust == "pem" {
            property(import, number, "ssl.ca.location");
        } else {
            import.unsupported(number, STORE);
        }
    }
    if let Some((number, _)) = of(import, "ssl.truststore.type") {
        import.none(number, "librdkafka reads PEM and asks for no type");
    }
    if let Some((number, _)) = of(import, "ssl.truststore.password") {
        import.none(number, "certificates in PEM have no password");
    }
    let kind = of(import, "ssl.keystore.type").map_or("jks".to_owned(), |(_, kind)| kind);
    if let Some((number, _)) = of(import, "ssl.keystore.location") {
        match kind.as_str() {
            "pem" => {
                property(import, number, "ssl.certificate.location");
                property(import, number, "ssl.key.location");
            }
            "pkcs12" => property(import, number, "ssl.keystore.location"),
            _ => import.unsupported(
                number,
                "librdkafka reads PKCS#12 and PEM: `keytool -importkeystore -srckeystore STORE \
                 -destkeystore store.p12 -deststoretype PKCS12`, then \"ssl.keystore.location\" = \
                 \"store.p12\" with \"ssl.keystore.password\"",
            ),
        }
    }
    if let Some((number, _)) = of(import, "ssl.keystore.type") {
        import.none(number, "librdkafka has a property of its own for each kind");
    }
    if let Some((number, _)) = of(import, "ssl.keystore.password") {
        if kind == "pkcs12" {
            secret(
                import,
                number,
                "ssl.keystore.password",
                "KAFKA_KEYSTORE_PASSWORD",
            );
        } else {
            import.none(number, "it opens a store that librdkafka does not read");
        }
    }
    if let Some((number, _)) = of(import, "ssl.keystore.key") {
        secret(import, number, "ssl.key.pem", "KAFKA_KEY_PEM");
    }
    if let Some((number, _)) = of(import, "ssl.key.password") {
        if kind == "jks" && of(import, "ssl.keystore.location").is_some() {
            import.none(number, "it opens a store that librdkafka does not read");
        } else {
            secret(import, number, "ssl.key.password", "KAFKA_KEY_PASSWORD");
        }
    }
}

fn producer(import: &mut Import, number: usize, name: &str) {
    match name {
        "key.serializer" | "value.serializer" => serializer(import, number),
        "partitioner.class" => partitioner(import, number),
        "partitioner.ignore.keys" if import.word(number) == "false" => {
            import.none(number, "walrelay places records by their keys");
        }
        "sasl.jaas.config" => login(import, number),
        "ssl.endpoint.identification.algorithm" => {
            let none = import.text(number).is_some_and(|text| text.is_empty());
            let value = if none { "none" } else { "https" };
            let value = Toml::Text(value.to_owned());
            import.line(SECTION, name, value, &[number], Refused::Soft);
        }
        "receive.buffer.bytes" | "send.buffer.bytes" => {
            let word = import.word(number);
            if word == "-1" {
                import.none(number, "it leaves the size to the operating system, as walrelay does");
            } else {
                property(import, number, &format!("socket.{name}"));
            }
        }
        "compression.gzip.level" | "compression.lz4.level" | "compression.zstd.level" => {
            property(import, number, "compression.level");
        }
        _ if name.starts_with("sasl.oauthbearer.") || name.starts_with("sasl.login.") => {
            import.unsupported(number, TOKENS);
        }
        _ if name.starts_with("sasl.kerberos.") => {
            import.unsupported(number, "walrelay's build of librdkafka has no Kerberos");
        }
        _ => match PROPERTIES.iter().find(|(known, _)| *known == name) {
            Some((_, To::Same)) => property(import, number, name),
            Some((_, To::Named(other))) => property(import, number, other),
            Some((_, To::None(why))) => import.none(number, *why),
            Some((_, To::Unsupported(remedy))) => import.unsupported(number, *remedy),
            Some((_, To::Breaks(remedy))) => import.breaks(number, *remedy),
            None => import.unsupported(
                number,
                "no property of Java's producer that is known here: if librdkafka has one that does \
                 the same, add it to [sink.kafka]",
            ),
        },
    }
}

/// One property, as librdkafka and walrelay's own rules see it.
fn property(import: &mut Import, number: usize, name: &str) {
    let value = import.value(number);
    if let Some(text) = value.text()
        && let Some(why) = refused(name, text.trim())
    {
        import.unsupported(number, why);
        return;
    }
    let value = import.configured(&value);
    import.line(SECTION, name, value, &[number], Refused::Soft);
}

/// Why this value cannot be, for this property alone.
fn refused(name: &str, value: &str) -> Option<String> {
    let mut properties = BTreeMap::from([(name.to_owned(), value.to_owned())]);
    properties
        .entry("bootstrap.servers".to_owned())
        .or_insert_with(|| "localhost:9092".to_owned());
    let error = KafkaConfig::new(properties, KafkaOptions::default()).err()?;
    match error {
        // What belongs together comes one by one.
        walrelay_kafka_sink::KafkaConfigError::Missing { .. }
        | walrelay_kafka_sink::KafkaConfigError::NoTokens
        | walrelay_kafka_sink::KafkaConfigError::TokensUnused => None,
        error => Some(format!("{error}; {}", error.remedy())),
    }
}

fn secret(import: &mut Import, number: usize, name: &str, variable: &str) {
    let value = import.secret(number, variable);
    let value = import.configured(&value);
    import.line(SECTION, name, value, &[number], Refused::Soft);
}

fn serializer(import: &mut Import, number: usize) {
    const PLAIN: &[&str] = &[
        "StringSerializer",
        "ByteArraySerializer",
        "ByteBufferSerializer",
        "BytesSerializer",
    ];
    let class = import.text(number).unwrap_or_default();
    let name = class.strip_prefix("org.apache.kafka.common.serialization.");
    if name.is_some_and(|name| PLAIN.contains(&name)) {
        import.none(number, BYTES);
    } else {
        import.breaks(
            number,
            "it is no serializer that passes bytes through, and walrelay's converters make the \
             bytes that are sent: records would differ",
        );
    }
}

fn partitioner(import: &mut Import, number: usize) {
    let class = import.text(number).unwrap_or_default();
    match class.rsplit('.').next().unwrap_or_default() {
        "DefaultPartitioner" | "BuiltInPartitioner" => {
            import.none(number, "walrelay places keys by murmur2, as Java's default does");
        }
        _ => import.breaks(
            number,
            "walrelay places keys by murmur2, as Java's default partitioner does: with another one \
             keys are on other partitions; a placement `column:partition` of the router can say the \
             partition",
        ),
    }
}

/// `sasl.jaas.config`: who logs in, by which password.
fn login(import: &mut Import, number: usize) {
    let value = import.value(number);
    let Some(login) = jaas::login(&value.configured()) else {
        import.unsupported(
            number,
            "it cannot be read as a login module with user name and password: write \"sasl.username\" \
             and \"sasl.password\" by hand",
        );
        return;
    };
    match login {
        Login::Password { username, password } => {
            let Some(username) = username else {
                import.unsupported(
                    number,
                    "it has no user name: write \"sasl.username\" and \"sasl.password\" by hand",
                );
                return;
            };
            // Both were written for walrelay already: references are in their place. What a
            // provider gave has no name that would say it is a password.
            let own = value
                .references()
                .all(|reference| reference.remark.is_none());
            if own {
                import.variables_of(&value);
            }
            let username = Toml::Text(username);
            import.line(SECTION, "sasl.username", username, &[number], Refused::Soft);
            let password = match password {
                Some(text) if own && (import.with_secrets || is_reference(&text)) => {
                    Toml::Text(text)
                }
                _ => {
                    let variable = Value::variable("KAFKA_PASSWORD");
                    import.configured(&variable)
                }
            };
            import.line(SECTION, "sasl.password", password, &[number], Refused::Soft);
        }
        Login::Tokens => import.unsupported(number, TOKENS),
        Login::Other => import.unsupported(
            number,
            "walrelay logs in by PLAIN, SCRAM-SHA-256, SCRAM-SHA-512 and OAUTHBEARER",
        ),
    }
}

/// `${NAME}` and nothing else.
fn is_reference(text: &str) -> bool {
    text.strip_prefix("${")
        .and_then(|rest| rest.strip_suffix('}'))
        .is_some_and(|name| !name.is_empty() && !name.contains(['$', '{', '}']))
}
