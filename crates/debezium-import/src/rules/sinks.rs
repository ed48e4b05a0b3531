//! `[sink.rabbitmq]`, `[sink.redis]`, `[sink.nats]` and `[sink.http]`: options of Debezium Server's sinks of these names.

use super::Absent::Urgent;
use super::Rule::{Breaks, Call, Copy, Ignore, Set, Unsupported, When};
use super::{Rule, Rules, apply_all, apply_each, literal};
use crate::draft::quoted;
use crate::input::Value;
use crate::translation::Translation;

const RABBITMQ: &str = "sink.rabbitmq";
const REDIS: &str = "sink.redis";
const NATS: &str = "sink.nats";
const HTTP: &str = "sink.http";
const JAVA: &str = "it is of Java's client only";
const DECLARES: Rule = Unsupported(
    "declare queues and bindings yourself, or let declare = true make one quorum queue that is bound to a \
     constant exchange",
);
const HEADERS: Rule = Breaks(
    "walrelay sends headers by their own names and with their own values: consumers that read X-DEBEZIUM-… \
     and decode base64 have to change",
);
const BASIC: Rule = Ignore("it has its default, which changes nothing");
const FIELDS: Rule = Breaks(
    "an entry has the fields id, key, payload, position and header.… in place of Debezium's: consumers have to \
     change",
);
const NULLS: Rule =
    Breaks("a key or a value that is null is a field that is absent here, and no text");
const PAUSES: Rule =
    Ignore("the pauses are those of delivery.backoff_initial and delivery.backoff_max");
const TOKEN: Rule = Unsupported(
    "walrelay sends the bearer token of sink.http.token_file: let another program get tokens and write them there",
);

const STREAMS: Rule = Unsupported(
    "create the stream yourself, with the topics as its subjects and in files: Debezium's default is in memory",
);
const CREDENTIALS: Rule = Unsupported(
    "write JWT and seed into a file of credentials (nsc generate creds), and name it by sink.nats.credentials_file",
);

/// Options whose default matters, for RabbitMQ.
const RABBITMQ_DEFAULTS: Rules = rules! {
    "sink.rabbitmq.routingKey.source" => When(rules! {
        "static" => Ignore("the routing key is a text, as it is in sink.rabbitmq.routing_key");
        "topic" => Call(topic_as_routing_key);
        "key" => Call(key_as_routing_key);
        "*" => Breaks("Debezium accepts static, topic or key; anything else makes an empty routing \
                       key");
    });
    "sink.rabbitmq.routingKeyFromTopicName" => When(rules! {
        "true" => Call(topic_as_routing_key);
        "*" => BASIC;
    });
    "sink.rabbitmq.exchange" => When(rules! {
        "" => Ignore("the exchange is the topic of the event, as it is here without the key");
        "*" => Copy(RABBITMQ, "exchange");
    });
    "sink.rabbitmq.connection.username" => Copy(RABBITMQ, "username"),
        absent super::Absent::Write(RABBITMQ, "username", "guest", "the default of Debezium's client");
    "sink.rabbitmq.null.value" => Breaks("a message without a value has an empty body here, and no text"),
        absent Urgent("a message without a value has the body `default` in Debezium, ",
            "and an empty body here");
    "sink.rabbitmq.mandatory" => Ignore("Debezium has no such option"),
        absent Urgent("Debezium confirms an event for which no queue is bound, and it is lost; ",
            "here it is sent again for poison.retry_for, and then [poison] unroutable decides: halt by default");
};

/// The others, without `sink.rabbitmq.`.
const RABBITMQ_OPTIONS: Rules = rules! {
    "routingKey" => When(rules! {
        "" => Ignore("the routing key is empty without the key, too");
        "*" => Copy(RABBITMQ, "routing_key");
    });
    "autoCreateRoutingKey" => When(rules! {
        "true" => DECLARES;
        "*" => BASIC;
    });
    "routingKeyDurable" => Ignore("it belongs to autoCreateRoutingKey");
    "deliveryMode" => When(rules! {
        "1" => Unsupported("walrelay's messages are persistent: a confirmed event outlives the server");
        "*" => BASIC;
    });
    "ackTimeout" => Call(|translation, number| millis(translation, number, RABBITMQ, "confirm_timeout"));
    "connection.virtual.host" => Copy(RABBITMQ, "vhost");
    "connection.connection.heartbeat" => Call(seconds);
    "connection.connection.timeout" =>
        Call(|translation, number| millis(translation, number, RABBITMQ, "connect_timeout"));
    "connection.ssl.enabled" => When(rules! {
        "true" => Set(RABBITMQ, "tls", "true");
        "*" => BASIC;
    });
    "connection.ssl.*" => Unsupported(
        "walrelay reads PEM: ca_file, certificate_file and key_file in [sink.rabbitmq]; it verifies the \
         server's certificate and its name");
    "connection.uri" => Unsupported("write hosts, vhost, username and password_file by hand");
    "connection.*" => Ignore(JAVA);
    "*" => Unsupported("walrelay's sink for RabbitMQ has no such option");
};

/// Options whose default matters, for Redis.
const REDIS_DEFAULTS: Rules = rules! {
    "sink.redis.message.format" => FIELDS,
        absent Urgent("Debezium's entries have one field, whose name is the key; ",
            "here they have the fields id, key, payload, position and header.…");
    "sink.redis.null.value" => NULLS,
        absent Urgent("a message without a value has the value `default` in Debezium, ",
            "and no field payload here");
};

/// The others, without `sink.redis.`.
const REDIS_OPTIONS: Rules = rules! {
    "address" => Call(redis_host);
    "user" => Copy(REDIS, "username");
    "null.key" => NULLS;
    "ssl.enabled" => When(rules! {
        "true" => Set(REDIS, "tls", "true");
        "*" => BASIC;
    });
    "ssl.*" => Unsupported(
        "walrelay reads PEM: ca_file, certificate_file and key_file in [sink.redis]; it verifies the \
         server's certificate and its name");
    "wait.enabled" => When(rules! {
        "true" => Call(one_replica);
        "*" => BASIC;
    });
    "wait.*" => Ignore("the relay asks again until enough replicas have the events");
    "retry.*" => PAUSES;
    "batch.size" => Ignore("a transaction has up to 500 events");
    "connection.timeout" => Ignore("connect_timeout has its default");
    "socket.timeout" => Ignore("reply_timeout has its default");
    "memory.*" => Ignore("walrelay waits while Redis says that it has no memory");
    "cluster.enabled" => When(rules! {
        "true" => Set(REDIS, "cluster", "true");
        "*" => BASIC;
    });
    "db.index" => When(rules! {
        "0" => BASIC;
        "*" => Unsupported("walrelay writes to the database 0");
    });
    "*" => Unsupported("walrelay's sink for Redis has no such option");
};

/// Options whose default matters, for NATS. Debezium has none of these names but the last.
const NATS_DEFAULTS: Rules = rules! {
    "sink.nats-jetstream.message.id" => Ignore("Debezium has no such option"),
        absent Urgent("Debezium sends no Nats-Msg-Id, and drops events without a value; ",
            "here the stream drops repeats by the event's id, and such an event is a message with walrelay.null");
    "sink.nats-jetstream.create-stream" => When(rules! {
        "true" => STREAMS;
        "*" => BASIC;
    });
};

/// The others, without `sink.nats-jetstream.`.
const NATS_OPTIONS: Rules = rules! {
    "url" => Call(nats_host);
    "subjects" => STREAMS;
    "storage" => STREAMS;
    "auth.user" => Copy(NATS, "username");
    "auth.jwt" => CREDENTIALS;
    "auth.seed" => CREDENTIALS;
    "auth.tls.*" => Unsupported(
        "walrelay reads PEM: set tls, ca_file, certificate_file and key_file in [sink.nats]; it verifies the \
         server's certificate and its name");
    "async.*" => Ignore("walrelay awaits the acknowledgement of each event, of many keys at a time");
    "*" => Unsupported("walrelay's sink for NATS has no such option");
};

/// Options whose default matters, for HTTP.
const HTTP_DEFAULTS: Rules = rules! {
    "sink.http.headers.prefix" => HEADERS,
        absent Urgent("Debezium sends headers as X-DEBEZIUM-…, ", "walrelay by their own names");
    "sink.http.headers.encode.base64" => When(rules! {
        "false" => Ignore("walrelay sends the values of headers as they are");
        "*" => HEADERS;
    }), absent Urgent("Debezium encodes the values of headers in base64, ", "walrelay sends them as they are");
    "sink.http.retries" => Ignore(
        "Debezium stops after so many attempts. walrelay sends an event again for as long as the server is \
         at fault, and refused ones for poison.retry_for"),
        absent Urgent("Debezium stops after five attempts of one event; ",
            "walrelay goes on for as long as the server is at fault, with pauses that grow");
};

/// The others, without `sink.http.`.
const HTTP_OPTIONS: Rules = rules! {
    "url" => Copy(HTTP, "url");
    "timeout.ms" => Call(|translation, number| millis(translation, number, HTTP, "timeout"));
    "retry.interval.ms" => PAUSES;
    "batch.enabled" => When(rules! {
        "true" => Breaks("walrelay posts each event by itself, and not an array of them");
        "*" => BASIC;
    });
    "batch.max-size" => Ignore("it belongs to batches");
    "authentication.type" => When(rules! {
        "standard-webhooks" => Breaks(
            "walrelay's webhook-id is the event's id in every attempt, where Debezium makes another one for \
             each run: consumers that keep ids drop more repeats than before");
        "*" => TOKEN;
    });
    "authentication.webhook.secret" => Call(webhook_secret);
    "authentication.*" => TOKEN;
    "*" => Unsupported("walrelay's sink for HTTP has no such option");
};

/// Translates the options of the sink if it is one of these; returns false otherwise.
pub(super) fn apply(translation: &mut Translation<'_>, kind: &str) -> bool {
    match kind {
        "rabbitmq" => rabbitmq(translation),
        "redis" => redis(translation),
        "nats-jetstream" => nats(translation),
        "http" => http(translation),
        _ => return false,
    }
    for (number, _) in translation.below("producer.") {
        translation.ignored(number, "it belongs to another sink than the one in use");
    }
    true
}

fn rabbitmq(translation: &mut Translation<'_>) {
    hosts(translation);
    apply_each(translation, RABBITMQ_DEFAULTS);
    let password = translation.find("sink.rabbitmq.connection.password");
    let value = password.map_or(Value::variable("RABBITMQ_PASSWORD"), |number| {
        translation.secret(number, "RABBITMQ_PASSWORD")
    });
    let value = translation.configured(&value);
    translation.write(RABBITMQ, "password", value, password.as_slice(), None);
    apply_all(translation, "sink.rabbitmq.", RABBITMQ_OPTIONS);
}

fn redis(translation: &mut Translation<'_>) {
    apply_each(translation, REDIS_DEFAULTS);
    if let Some(number) = translation.find("sink.redis.password") {
        let value = translation.secret(number, "REDIS_PASSWORD");
        let value = translation.configured(&value);
        translation.write(REDIS, "password", value, &[number], None);
    }
    apply_all(translation, "sink.redis.", REDIS_OPTIONS);
}

fn nats(translation: &mut Translation<'_>) {
    apply_each(translation, NATS_DEFAULTS);
    if let Some(number) = translation.find("sink.nats-jetstream.auth.password") {
        let value = translation.secret(number, "NATS_PASSWORD");
        let value = translation.configured(&value);
        translation.write(NATS, "password", value, &[number], None);
    }
    apply_all(translation, "sink.nats-jetstream.", NATS_OPTIONS);
}

/// Writes `hosts`, and `tls`, from the URLs.
fn nats_host(translation: &mut Translation<'_>, number: usize) {
    let url = translation.value(number);
    translation.variables_of(&url);
    let text = url.configured();
    let is_tls = text.trim_start().starts_with("tls://");
    let hosts = text.split(',').map(str::trim).map(|url| {
        let host = url
            .strip_prefix("nats://")
            .or_else(|| url.strip_prefix("tls://"));
        quoted(host.unwrap_or(url))
    });
    let hosts: Vec<String> = hosts.collect();
    translation.write(
        NATS,
        "hosts",
        format!("[{}]", hosts.join(", ")),
        &[number],
        None,
    );
    if is_tls {
        translation.write(NATS, "tls", "true".to_owned(), &[number], None);
    }
}

fn one_replica(translation: &mut Translation<'_>, number: usize) {
    translation.write(REDIS, "wait_replicas", "1".to_owned(), &[number], None);
}

/// Writes `hosts` from the address.
fn redis_host(translation: &mut Translation<'_>, number: usize) {
    let address = translation.value(number);
    translation.variables_of(&address);
    let value = format!("[{}]", quoted(&address.configured()));
    translation.write(REDIS, "hosts", value, &[number], None);
}

fn http(translation: &mut Translation<'_>) {
    apply_each(translation, HTTP_DEFAULTS);
    apply_all(translation, "sink.http.", HTTP_OPTIONS);
}

/// Writes `secrets`. Debezium has one, with or without the prefix of Standard Webhooks.
fn webhook_secret(translation: &mut Translation<'_>, number: usize) {
    let value = translation.secret(number, "WEBHOOK_SECRET");
    translation.variables_of(&value);
    let text = value.configured();
    // Without its text, the secret is taken for one without the prefix.
    let has_prefix = text.starts_with("whsec_");
    let prefix = if has_prefix { "" } else { "whsec_" };
    let value = quoted(&format!("{prefix}{text}"));
    let remark = (!has_prefix)
        .then_some("`whsec_` stands before it: remove it if the secret begins with it already");
    translation.write(HTTP, "secrets", value, &[number], remark);
}

/// Writes `hosts` from host and port, which Debezium has as two settings.
fn hosts(translation: &mut Translation<'_>) {
    let of = |name| translation.find(&format!("sink.rabbitmq.connection.{name}"));
    let (host, port) = (of("host"), of("port"));
    let host_value = host.map_or(Value::literal("localhost"), |it| translation.value(it));
    translation.variables_of(&host_value);
    // Without a port, the default is the one that `tls` asks for, in both programs.
    let mut address = host_value.configured();
    if let Some(port) = port {
        let port = translation.value(port);
        translation.variables_of(&port);
        address = format!("{address}:{}", port.configured());
    }
    let settings: Vec<usize> = [host, port].into_iter().flatten().collect();
    let value = format!("[{}]", quoted(&address));
    let remark = settings
        .is_empty()
        .then_some("the default of Debezium's client");
    translation.write(RABBITMQ, "hosts", value, &settings, remark);
}

/// Writes the topic as the routing key: the template of the router's topic.
fn topic_as_routing_key(translation: &mut Translation<'_>, number: usize) {
    let option = |key, default: &str| {
        let value = translation.draft.value("router.debezium", key);
        value.unwrap_or(default).trim_matches('"').to_owned()
    };
    let field = option("route.by.field", "aggregatetype");
    let topic = option("route.topic.replacement", "outbox.event.${routedByValue}");
    let plain = !topic.contains('\\') && !field.contains('\\');
    let template = topic.replace("${routedByValue}", &format!("{{{field}}}"));
    if plain
        && !template.contains('$')
        && !translation
            .draft
            .has("router.debezium", "route.topic.regex")
    {
        translation.write(RABBITMQ, "routing_key", literal(&template), &[number], None);
    } else {
        let remedy =
            "write sink.rabbitmq.routing_key as a template over the columns that make the topic";
        Breaks(remedy).apply(translation, number);
    }
}

/// Writes the column of the key as the routing key.
fn key_as_routing_key(translation: &mut Translation<'_>, number: usize) {
    let column = translation
        .draft
        .value("router.debezium", "table.field.event.key");
    let column = column.unwrap_or("aggregateid").trim_matches('"');
    let template = format!("{{{column}}}");
    translation.write(RABBITMQ, "routing_key", literal(&template), &[number], None);
}

fn millis(translation: &mut Translation<'_>, number: usize, section: &'static str, key: &str) {
    duration(translation, number, (section, key), "ms");
}

fn seconds(translation: &mut Translation<'_>, number: usize) {
    duration(translation, number, (RABBITMQ, "heartbeat"), "s");
}

fn duration(
    translation: &mut Translation<'_>,
    number: usize,
    (section, key): (&'static str, &str),
    unit: &str,
) {
    match translation.text(number).map(|text| text.parse::<u64>()) {
        Some(Ok(count)) => {
            let value = quoted(&format!("{count}{unit}"));
            translation.write(section, key, value, &[number], None);
        }
        _ => translation.unsupported(number, "it is no number"),
    }
}
