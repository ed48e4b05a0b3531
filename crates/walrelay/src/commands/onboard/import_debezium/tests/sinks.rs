//! Debezium Server's sinks for RabbitMQ, Redis, NATS and HTTP.

use super::*;

/// Imports [`SERVER`] with another sink, whose options are without `debezium.sink.`.
#[track_caller]
fn sink(kind: &str, options: &[&str], expected: &[Expect]) {
    let server = SERVER.replace("sink.type=kafka", &format!("sink.type={kind}"));
    let mut lines = vec![server];
    let options = options.iter();
    lines.extend(options.map(|option| format!("debezium.sink.{kind}.{option}")));
    let text = lines.join("\n");
    expect(&import(&text, None, &[], false), expected);
}

#[test]
fn rabbitmq() {
    const OTHER: &str = "debezium.sink.kafka.producer.bootstrap.servers";
    const CREATE: &str = "debezium.sink.rabbitmq.autoCreateRoutingKey";
    sink(
        "rabbitmq",
        &[
            "connection.host=mq",
            "connection.port=5671",
            "connection.username=cdc",
            "connection.password=s3cret",
            "connection.virtual.host=app",
            "connection.ssl.enabled=true",
            "exchange=events",
            "routingKey.source=topic",
            "ackTimeout=60000",
            "deliveryMode=2",
        ],
        &[
            Supported,
            Line("kind = \"rabbitmq\""),
            Line("hosts = [\"mq:5671\"]"),
            Line("username = \"cdc\""),
            Line("password = \"${RABBITMQ_PASSWORD}\""),
            Line("vhost = \"app\""),
            Line("tls = true"),
            Line("exchange = \"events\""),
            Line("routing_key = \"app.{aggregatetype}\""),
            Line("confirm_timeout = \"60000ms\""),
            NoEffect(OTHER, "another sink"),
            Urgent(&["sink.rabbitmq.null.value", "sink.rabbitmq.mandatory"]),
        ],
    );
    sink(
        "rabbitmq",
        &[
            "routingKey.source=key",
            "autoCreateRoutingKey=true",
            "null.value=none",
        ],
        &[
            Line("hosts = [\"localhost\"]"),
            Line("username = \"guest\""),
            Line("routing_key = \"{aggregateid}\""),
            Unsupported(CREATE, "declare"),
            Breaks("debezium.sink.rabbitmq.null.value", "empty body"),
        ],
    );
}

#[test]
fn redis() {
    sink(
        "redis",
        &[
            "address=r:6380",
            "user=cdc",
            "password=s3cret",
            "ssl.enabled=true",
            "wait.enabled=true",
            "wait.retry.enabled=true",
            "batch.size=100",
        ],
        &[
            Supported,
            Line("kind = \"redis\""),
            Line("hosts = [\"r:6380\"]"),
            Line("username = \"cdc\""),
            Line("password = \"${REDIS_PASSWORD}\""),
            Line("tls = true"),
            Line("wait_replicas = 1"),
            NoEffect("debezium.sink.redis.wait.retry.enabled", "asks again"),
            NoEffect("debezium.sink.redis.batch.size", "500"),
            Urgent(&["sink.redis.message.format", "sink.redis.null.value"]),
        ],
    );
    sink(
        "redis",
        &[
            "address=r:6379",
            "message.format=extended",
            "null.value=none",
            "cluster.enabled=true",
            "db.index=3",
        ],
        &[
            Line("hosts = [\"r:6379\"]"),
            Breaks("debezium.sink.redis.message.format", "payload"),
            Breaks("debezium.sink.redis.null.value", "absent"),
            Line("cluster = true"),
            Unsupported("debezium.sink.redis.db.index", "database 0"),
        ],
    );
}

#[test]
fn nats() {
    sink(
        "nats-jetstream",
        &[
            "url=nats://n1:4222,nats://n2:4223",
            "create-stream=true",
            "subjects=outbox.>",
            "storage=file",
            "auth.user=cdc",
            "auth.password=s3cret",
            "async.enabled=true",
        ],
        &[
            Line("kind = \"nats\""),
            Line("hosts = [\"n1:4222\", \"n2:4223\"]"),
            Line("username = \"cdc\""),
            Line("password = \"${NATS_PASSWORD}\""),
            Unsupported("debezium.sink.nats-jetstream.create-stream", "yourself"),
            Unsupported("debezium.sink.nats-jetstream.subjects", "in memory"),
            Unsupported("debezium.sink.nats-jetstream.storage", "in files"),
            NoEffect("debezium.sink.nats-jetstream.async.enabled", "many keys"),
            Urgent(&["sink.nats-jetstream.message.id"]),
        ],
    );
    sink(
        "nats-jetstream",
        &[
            "url=tls://n:4222",
            "auth.jwt=s3cret",
            "auth.seed=s3cret",
            "auth.tls.keystore=k",
        ],
        &[
            Line("hosts = [\"n:4222\"]"),
            Line("tls = true"),
            Unsupported("debezium.sink.nats-jetstream.auth.jwt", "credentials_file"),
            Unsupported("debezium.sink.nats-jetstream.auth.tls.keystore", "PEM"),
        ],
    );
}

#[test]
fn http() {
    const WEBHOOK: &str = "debezium.sink.http.authentication.type";
    sink(
        "http",
        &[
            "url=https://hooks.example.com/events",
            "timeout.ms=5000",
            "retries=3",
            "headers.encode.base64=false",
            "headers.prefix=X-",
            "authentication.type=standard-webhooks",
            "authentication.webhook.secret=s3cret",
            "batch.enabled=true",
        ],
        &[
            Line("kind = \"http\""),
            Line("url = \"https://hooks.example.com/events\""),
            Line("timeout = \"5000ms\""),
            NoEffect("debezium.sink.http.retries", "attempts"),
            NoEffect("debezium.sink.http.headers.encode.base64", "as they are"),
            Breaks("debezium.sink.http.headers.prefix", "X-DEBEZIUM"),
            Breaks(WEBHOOK, "webhook-id is the event's id"),
            Line("secrets = \"whsec_${WEBHOOK_SECRET}\""),
            Breaks("debezium.sink.http.batch.enabled", "each event by itself"),
        ],
    );
}
