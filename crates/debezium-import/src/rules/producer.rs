//! `[sink.kafka]`: properties of Java's producer as properties of librdkafka.

use super::Rule::{Breaks, Call, Copy, Fatal, Ignore, Secret, Set, Unsupported, When};
use super::jaas::{self, Login};
use super::{Absent, Rule, Rules, apply_all, apply_each, rule, sinks};
use crate::draft::quoted;
use crate::input::{Program, Value};
use crate::translation::Translation;

const SECTION: &str = "sink.kafka";
const JAVA: &str = "it is of Java's client only";
const FIXED: &str = "walrelay sets it itself, to the value that loses and reorders nothing";
const TOKENS: &str = "walrelay gets tokens from a file or a command: [sink.oauthbearer] in \
    docs/reference/configuration.md";
const TRUST_STORE: &str = "librdkafka reads PEM, not Java's stores: `keytool -exportcert -rfc -keystore \
    STORE -alias NAME > ca.pem` for each certificate, then \"ssl.ca.location\" = \"ca.pem\"";
const KEY_STORE: &str = "librdkafka reads PKCS#12 and PEM: `keytool -importkeystore -srckeystore STORE \
    -destkeystore store.p12 -deststoretype PKCS12`, then \"ssl.keystore.location\" = \
    \"store.p12\" with \"ssl.keystore.password\"";
const UNREAD: Rule = Ignore("it opens a store that librdkafka does not read");
const SYSTEM_SIZE: Rule = Ignore("it leaves the size to the operating system, as walrelay does");

/// The type of Debezium Server's sink.
const SINK_TYPE: Rules = rules! {
    "sink.type" => When(rules! {
        "kafka" => Set("sink", "kind", "kafka");
        "rabbitmq" => Set("sink", "kind", "rabbitmq");
        "redis" => Set("sink", "kind", "redis");
        "nats-jetstream" => Set("sink", "kind", "nats");
        "http" => Set("sink", "kind", "http");
        "*" => Fatal("walrelay delivers to Kafka, RabbitMQ, Redis, NATS JetStream and HTTP",
            "debezium.sink.type is not kafka, rabbitmq, redis, nats-jetstream or http: walrelay delivers to no other");
    }), absent Absent::Fatal("debezium.sink.type is missing: it says where walrelay delivers to");
};

/// Options of Debezium Server's sink, without `debezium.sink.`.
pub(super) const SINK: Rules = rules! {
    "kafka.wait.message.delivery.timeout.ms" =>
        Ignore("walrelay waits for acknowledgements as long as necessary and confirms nothing \
                before");
    "kafka.*" => Unsupported("walrelay's sink for Kafka has no such option");
    "*" => Ignore("it belongs to another sink than the one in use");
};

/// Properties that have the same name and meaning in librdkafka.
const SAME: &str = "bootstrap.servers|client.id|client.dns.lookup|compression.type|linger.ms|\
    batch.size|connections.max.idle.ms|metadata.max.age.ms|metadata.recovery.strategy|\
    metadata.recovery.rebootstrap.trigger.ms|reconnect.backoff.ms|reconnect.backoff.max.ms|\
    retry.backoff.ms|retry.backoff.max.ms|security.protocol|sasl.mechanism|\
    socket.connection.setup.timeout.ms|enable.metrics.push";

/// All other properties of the producer.
pub(super) const PROPERTIES: Rules = rules! {
    "max.request.size" => Copy(SECTION, "message.max.bytes");
    "request.timeout.ms" => Copy(SECTION, "socket.timeout.ms");
    "ssl.truststore.certificates" => Copy(SECTION, "ssl.ca.pem");
    "ssl.keystore.certificate.chain" => Copy(SECTION, "ssl.certificate.pem");
    "compression.gzip.level|compression.lz4.level|compression.zstd.level" =>
        Copy(SECTION, "compression.level");
    "receive.buffer.bytes" => When(rules! {
        "-1" => SYSTEM_SIZE;
        "*" => Copy(SECTION, "socket.receive.buffer.bytes");
    });
    "send.buffer.bytes" => When(rules! {
        "-1" => SYSTEM_SIZE;
        "*" => Copy(SECTION, "socket.send.buffer.bytes");
    });
    "ssl.endpoint.identification.algorithm" => When(rules! {
        "" => Set(SECTION, "ssl.endpoint.identification.algorithm", "none");
        "*" => Set(SECTION, "ssl.endpoint.identification.algorithm", "https");
    });
    "sasl.jaas.config" => Call(login);
    "sasl.oauthbearer.*|sasl.login.*|sasl.client.callback.handler.class" => Unsupported(TOKENS);
    "sasl.kerberos.*" => Unsupported("walrelay's build of librdkafka has no Kerberos");
    "acks|enable.idempotence|retries|max.in.flight.requests.per.connection|delivery.timeout.ms" =>
        Ignore(FIXED);
    "buffer.memory" =>
        Ignore("delivery.max_in_flight_bytes bounds the events in flight, 12MiB by default");
    "max.block.ms" => Ignore("walrelay waits for a broker as long as necessary");
    "metadata.max.idle.ms|socket.connection.setup.timeout.max.ms|metric.reporters|\
        auto.include.jmx.reporter|metrics.num.samples|metrics.recording.level|\
        metrics.sample.window.ms|security.providers|config.providers|ssl.provider|\
        ssl.keymanager.algorithm|ssl.trustmanager.algorithm|ssl.secure.random.implementation" =>
        Ignore(JAVA);
    "partitioner.adaptive.partitioning.enable|partitioner.availability.timeout.ms" =>
        Ignore("it concerns records without a key");
    "ssl.protocol|ssl.enabled.protocols" => Ignore("TLS 1.2 and 1.3 are spoken");
    "interceptor.classes" =>
        Unsupported("it is Java code that sees each record; do its work elsewhere");
    "transactional.id" =>
        Unsupported("walrelay's producer is not transactional under at-least-once delivery");
    "transaction.timeout.ms|transaction.two.phase.commit.enable" =>
        Ignore("it belongs to transactions");
    "ssl.cipher.suites" =>
        Unsupported("OpenSSL has other names for them: write \"ssl.cipher.suites\" by hand");
    "ssl.engine.factory.class" =>
        Unsupported("it is Java code; name certificates by ssl.ca.location and its like");
    "key.serializer|value.serializer" => When(rules! {
        "org.apache.kafka.common.serialization.stringserializer|\
            org.apache.kafka.common.serialization.bytearrayserializer|\
            org.apache.kafka.common.serialization.bytebufferserializer|\
            org.apache.kafka.common.serialization.bytesserializer" =>
            Ignore("walrelay's converters make the bytes that are sent");
        "*" =>
            Breaks("it is no serializer that passes bytes through, and walrelay's converters make \
                the bytes that are sent: records would differ");
    });
    "partitioner.class" => When(rules! {
        "defaultpartitioner|*.defaultpartitioner|builtinpartitioner|*.builtinpartitioner" =>
            Ignore("walrelay places keys by murmur2, as Java's default does");
        "*" =>
            Breaks("walrelay places keys by murmur2, as Java's default partitioner does: with \
                another one keys are on other partitions; a placement `column:partition` of the \
                router can say the partition");
    });
    "partitioner.ignore.keys" => When(rules! {
        "false" => Ignore("walrelay places records by their keys");
        "*" =>
            Breaks("walrelay places records by their keys; without that there is no order per key");
    });
    "*" =>
        Unsupported("no known property of Java's producer: if librdkafka has one that does the \
                     same, add it to [sink.kafka]");
};

/// Properties of Java's key and trust stores, as `<type of the store>/<property without ssl.>`.
const STORES: Rules = rules! {
    "pem/truststore.location" => Copy(SECTION, "ssl.ca.location");
    "*/truststore.location" => Unsupported(TRUST_STORE);
    "*/truststore.type" => Ignore("librdkafka reads PEM and asks for no type");
    "*/truststore.password" => Ignore("certificates in PEM have no password");
    "pem/keystore.location" => Call(|translation, number| {
        translation.copy(number, SECTION, "ssl.certificate.location");
        translation.copy(number, SECTION, "ssl.key.location");
    });
    "pkcs12/keystore.location" => Copy(SECTION, "ssl.keystore.location");
    "*/keystore.location" => Unsupported(KEY_STORE);
    "*/keystore.type" => Ignore("librdkafka has a property of its own for each kind");
    "pkcs12/keystore.password" => Secret("ssl.keystore.password", "KAFKA_KEYSTORE_PASSWORD");
    "*/keystore.password" => UNREAD;
    "*/keystore.key" => Secret("ssl.key.pem", "KAFKA_KEY_PEM");
    "jks/key.password" => UNREAD;
    "*/key.password" => Secret("ssl.key.password", "KAFKA_KEY_PASSWORD");
};

pub(super) fn apply(translation: &mut Translation<'_>) {
    if translation.program == Program::Server {
        let kind = translation.text_of("sink.type").to_ascii_lowercase();
        apply_each(translation, SINK_TYPE);
        let is_other = sinks::apply(translation, &kind);
        apply_all(translation, "sink.", SINK);
        if is_other {
            return;
        }
    }
    let trust = store_type(translation, "truststore");
    let key = store_type(translation, "keystore");
    for (number, property) in translation.below("producer.") {
        let store = property.strip_prefix("ssl.").map(|name| {
            let trusted = name.starts_with("truststore.");
            format!("{}/{name}", if trusted { &trust } else { &key })
        });
        let of_store = store.and_then(|name| rule(STORES, &name));
        if super::matches(SAME, &property) {
            translation.copy(number, SECTION, &property);
        } else if let Some(rule) = of_store.or_else(|| rule(PROPERTIES, &property)) {
            rule.apply(translation, number);
        }
    }
    if !translation.draft.has(SECTION, "bootstrap.servers") {
        bootstrap_servers(translation);
    }
}

fn bootstrap_servers(translation: &mut Translation<'_>) {
    const KEY: &str = "bootstrap.servers";
    let (variable, of_worker) = match translation.program {
        Program::Connect => (
            "KAFKA_BOOTSTRAP_SERVERS",
            "; the worker's file has it, and --worker FILE reads it there",
        ),
        // Debezium Server itself reads this variable.
        Program::Server => ("DEBEZIUM_SINK_KAFKA_PRODUCER_BOOTSTRAP_SERVERS", ""),
    };
    let value = translation.configured(&Value::variable(variable));
    translation.write(SECTION, KEY, value, &[], Some("not in the input"));
    let text = "it is not in the input; the configuration wants it from";
    translation.note(KEY, format!("{text} {variable}{of_worker}"), true);
}

/// Returns the type of a store, `jks` by default. Empty if the type is `jks` and the store has no
/// location.
fn store_type(translation: &Translation<'_>, store: &str) -> String {
    let find = |option: &str| translation.find(&format!("producer.ssl.{store}.{option}"));
    let word = find("type").map_or("jks".to_owned(), |number| translation.word(number));
    if word == "jks" && find("location").is_none() {
        String::new()
    } else {
        word
    }
}

/// Translates `sasl.jaas.config`: the login module with user name and password.
fn login(translation: &mut Translation<'_>, number: usize) {
    let value = translation.value(number);
    let why = match jaas::login(&value.configured()) {
        Some(Login::Password(Some(username), password)) => {
            return credentials(translation, number, &username, password);
        }
        Some(Login::Password(None, _)) => {
            "it has no user name: write \"sasl.username\" and \"sasl.password\" by hand"
        }
        Some(Login::Tokens) => TOKENS,
        Some(Login::Other) => {
            "walrelay logs in by PLAIN, SCRAM-SHA-256, SCRAM-SHA-512 and OAUTHBEARER"
        }
        None => {
            "it cannot be read as a login module with user name and password: write \
             \"sasl.username\" and \"sasl.password\" by hand"
        }
    };
    translation.unsupported(number, why);
}

fn credentials(
    translation: &mut Translation<'_>,
    number: usize,
    username: &str,
    password: Option<String>,
) {
    // A variable that replaces a provider's reference has the name of the setting, and its value
    // may not be the password.
    let value = translation.value(number);
    let own = value.is_plain();
    if own {
        translation.variables_of(&value);
    }
    translation.write(SECTION, "sasl.username", quoted(username), &[number], None);
    let password = match password {
        Some(text) if own && (translation.with_secrets || is_reference(&text)) => quoted(&text),
        _ => translation.configured(&Value::variable("KAFKA_PASSWORD")),
    };
    translation.write(SECTION, "sasl.password", password, &[number], None);
}

/// Returns true if the text is `${NAME}` and nothing else.
fn is_reference(text: &str) -> bool {
    let name = text.strip_prefix("${");
    let name = name.and_then(|rest| rest.strip_suffix('}'));
    name.is_some_and(|name| !name.is_empty() && !name.contains(['$', '{', '}']))
}
