//! Settings of the producer, of topics, and of records that cannot be sent.

use super::*;

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
