//! The rules for properties, as data: the allowed values, what other values would break, and what
//! to do instead.

/// A property of which some values would break a promise of the relay.
pub(super) struct Rule {
    /// All names of the property, separated by spaces.
    names: &'static str,
    /// Whether a value is allowed.
    pub(super) allows: fn(&str) -> bool,
    /// What other values would break.
    pub(super) reason: &'static str,
    /// What to do instead.
    pub(super) remedy: &'static str,
}

impl Rule {
    pub(super) fn names(&self) -> impl Iterator<Item = &'static str> {
        self.names.split_ascii_whitespace()
    }
}

fn never(_: &str) -> bool {
    false
}

fn is_true(value: &str) -> bool {
    matches!(value.to_ascii_lowercase().as_str(), "true" | "t" | "1")
}

fn is_false(value: &str) -> bool {
    matches!(value.to_ascii_lowercase().as_str(), "false" | "f" | "0")
}

pub(super) const RULES: &[Rule] = &[
    Rule {
        names: "acks request.required.acks",
        allows: |v| v.eq_ignore_ascii_case("all") || v == "-1",
        reason: "a record that not all in-sync replicas have can be lost with a broker, after its \
                 position was confirmed to Postgres",
        remedy: "remove it; the relay sets acks=all",
    },
    Rule {
        names: "enable.idempotence",
        allows: is_true,
        reason: "without idempotence a retry can repeat and reorder records of one key",
        remedy: "remove it; the relay sets it to true",
    },
    Rule {
        names: "enable.gapless.guarantee",
        allows: is_true,
        reason: "without it records of one key would be sent after one of them was refused for good",
        remedy: "remove it; the relay sets it to true",
    },
    Rule {
        names: "max.in.flight max.in.flight.requests.per.connection",
        allows: |v| v == "1",
        reason: "with more requests on their way, one that must be repeated comes after those behind \
                 it where the broker has no state of the producer, and records of one key change \
                 places",
        remedy: "remove it; the relay has several on their way where that is safe",
    },
    Rule {
        names: "retries message.send.max.retries",
        allows: |v| v == "2147483647",
        reason: "a record that ran out of retries is given up while later ones go on",
        remedy: "remove it; the relay retries without end",
    },
    Rule {
        names: "message.timeout.ms delivery.timeout.ms",
        allows: |v| v == "0",
        reason: "a record that waits for a broker to come back would be given up and everything \
                 after it sent again",
        remedy: "remove it; the relay sets 0, which is no limit",
    },
    Rule {
        names: "partitioner",
        allows: |v| matches!(v, "murmur2" | "murmur2_random"),
        reason: "Java's producers place a key by murmur2; another hash would put the same key on \
                 another partition than they do",
        remedy: "use murmur2_random or murmur2, or remove it",
    },
    Rule {
        names: "queuing.strategy",
        allows: |v| v.eq_ignore_ascii_case("fifo"),
        reason: "records of one key would be sent in the wrong order",
        remedy: "remove it",
    },
    Rule {
        names: "transactional.id",
        allows: never,
        reason: "transactions need the relay to begin and commit them, which it does not do yet",
        remedy: "remove it",
    },
    Rule {
        names: "queue.buffering.max.messages queue.buffering.max.kbytes",
        allows: never,
        reason: "the relay bounds the queue itself and must be the one that notices when it is full",
        remedy: "set the relay's own in-flight bounds instead",
    },
    Rule {
        names: "delivery.report.only.error",
        allows: is_false,
        reason: "the relay confirms a position only after it has seen every delivery report",
        remedy: "remove it",
    },
    Rule {
        names: "allow.auto.create.topics",
        allows: never,
        reason: "it has an effect on consumers only; a producer's missing topics are created as the \
                 broker's auto.create.topics.enable says",
        remedy: "remove it, or let the relay create topics",
    },
    Rule {
        names: "dr_cb dr_msg_cb error_cb stats_cb log_cb throttle_cb socket_cb connect_cb \
                closesocket_cb open_cb resolve_cb background_event_cb \
                oauthbearer_token_refresh_cb partitioner_cb ssl.certificate.verify_cb \
                msg_order_cmp opaque default_topic_conf interceptors ssl_key ssl_certificate \
                ssl_ca ssl_engine_callback_data enabled_events log.queue",
        allows: never,
        reason: "a program sets it, and in this one the relay does",
        remedy: "remove it",
    },
    Rule {
        names: "plugin.library.paths",
        allows: never,
        reason: "a plugin is foreign code between the relay and its delivery reports",
        remedy: "remove it",
    },
    Rule {
        names: "ssl.engine.location ssl.engine.id ssl.providers",
        allows: never,
        reason: "it would load a foreign library into the relay",
        remedy: "remove it; certificates and keys are read from files or PEM",
    },
    Rule {
        names: "topic.blacklist",
        allows: never,
        reason: "records to a topic that the client hides from itself would never be delivered",
        remedy: "remove it",
    },
    Rule {
        names: "builtin.features",
        allows: never,
        reason: "it lists the features of this build of librdkafka and cannot be set",
        remedy: "remove it",
    },
    Rule {
        names: "test.mock.num.brokers test.mock.broker.rtt",
        allows: never,
        reason: "it replaces the cluster by one inside this process that forgets everything",
        remedy: "remove it; for a try-out without Kafka there is the demo",
    },
    Rule {
        names: "internal.termination.signal",
        allows: |v| v == "0",
        reason: "it would redefine a signal of the whole process",
        remedy: "remove it",
    },
    Rule {
        names: "sasl.mechanism sasl.mechanisms",
        allows: |v| {
            matches!(
                v,
                "PLAIN" | "SCRAM-SHA-256" | "SCRAM-SHA-512" | "OAUTHBEARER"
            )
        },
        reason: "this build has PLAIN, SCRAM-SHA-256, SCRAM-SHA-512 and OAUTHBEARER; it has no \
                 Kerberos",
        remedy: "use one of the four; in place of AWS_MSK_IAM use OAUTHBEARER, and let token_command in \
                 [sink.oauthbearer] print a token of the AWS MSK IAM signer",
    },
    Rule {
        names: "sasl.oauthbearer.method",
        allows: never,
        reason: "this build of librdkafka has no HTTP client (libcurl) to fetch tokens with",
        remedy: "remove it, and let token_command in [sink.oauthbearer] fetch the token",
    },
    Rule {
        names: "sasl.oauthbearer.config",
        allows: never,
        reason: "it describes unsecured tokens, which anybody can make",
        remedy: "remove it; tokens come from token_file or token_command in [sink.oauthbearer]",
    },
    Rule {
        names: "enable.sasl.oauthbearer.unsecure.jwt",
        allows: is_false,
        reason: "anybody can make an unsecured token",
        remedy: "remove it; tokens come from token_file or token_command in [sink.oauthbearer]",
    },
];

/// Groups of names of the same property.
pub(super) const ALIASES: &[&[&str]] = &[
    &["bootstrap.servers", "metadata.broker.list"],
    &["acks", "request.required.acks"],
    &["message.timeout.ms", "delivery.timeout.ms"],
    &["retries", "message.send.max.retries"],
    &["max.in.flight", "max.in.flight.requests.per.connection"],
    &["linger.ms", "queue.buffering.max.ms"],
    &["compression.type", "compression.codec"],
    &["sasl.mechanism", "sasl.mechanisms"],
];

/// The properties that must never be shown: librdkafka's list (`_RK_SENSITIVE`) without paths of
/// files, and the other properties that contain a password.
pub(super) const SECRETS: &[&str] = &[
    "sasl.password",
    "sasl.oauthbearer.config",
    "sasl.oauthbearer.client.secret",
    "sasl.oauthbearer.client.credentials.client.secret",
    "sasl.oauthbearer.assertion.private.key.passphrase",
    "sasl.oauthbearer.assertion.private.key.pem",
    "ssl.key.password",
    "ssl.key.pem",
    "ssl.keystore.password",
];

/// The properties with the path of a file that librdkafka reads when it creates a client.
pub(super) const FILES: &[&str] = &[
    "ssl.ca.location",
    "ssl.certificate.location",
    "ssl.key.location",
    "ssl.keystore.location",
    "ssl.crl.location",
];

/// Names from other clients, most of them from Java's, and what has the same effect here.
pub(super) const OTHER_NAMES: &[(&str, &str)] = &[
    ("brokers", "bootstrap.servers"),
    ("max.request.size", "message.max.bytes"),
    ("ssl.truststore.location", "ssl.ca.location"),
    ("ssl.truststore.certificates", "ssl.ca.pem"),
    ("ssl.keystore.certificate.chain", "ssl.certificate.pem"),
    ("ssl.keystore.key", "ssl.key.pem"),
    ("sasl.jaas.config", "sasl.username with sasl.password"),
    ("partitioner.class", "partitioner"),
    ("send.buffer.bytes", "socket.send.buffer.bytes"),
    ("receive.buffer.bytes", "socket.receive.buffer.bytes"),
    ("buffer.memory", "the relay's own in-flight bounds"),
];
