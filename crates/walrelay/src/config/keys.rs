//! Every key of the configuration file, once.
//!
//! The checker of unknown keys, the readers of values and defaults, and the reference in
//! `docs/CONFIGURATION.md` (a test compares them) all live off this table.

/// What a value looks like in the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// Any string.
    Text,
    /// A string that no message may show.
    Secret,
    /// `true` or `false`.
    Bool,
    /// A whole number.
    Integer,
    /// A string with a number and a unit of time.
    Duration,
    /// A string with a number and a unit of bytes.
    Size,
    /// A list of strings.
    TextList,
    /// One of `here`; those of `later` are known by name and refused as not in this version.
    Choice {
        here: &'static [&'static str],
        later: &'static [&'static str],
    },
    /// A string, number or truth value, taken as its text.
    Scalar,
    /// A template over columns, or `false` for what there is not to be.
    Template,
}

impl Kind {
    /// With its article, for messages.
    pub(super) fn wanted(self) -> &'static str {
        match self {
            Kind::Text | Kind::Secret | Kind::Choice { .. } => "a string",
            Kind::Bool => "a boolean",
            Kind::Integer => "an integer",
            Kind::Duration => "a duration",
            Kind::Size => "a size",
            Kind::TextList => "a list of strings",
            Kind::Scalar => "a string, number or boolean",
            Kind::Template => "a template",
        }
    }

    /// A value of this kind, for help texts.
    pub(super) fn example(self) -> &'static str {
        match self {
            Kind::Text | Kind::Secret | Kind::Choice { .. } => "\"text\"",
            Kind::Bool => "true",
            Kind::Integer => "1",
            Kind::Duration => "\"1s\" (units: ms, s, m, h)",
            Kind::Size => "\"16MiB\" (units: B, KB, KiB, MB, MiB, GB, GiB)",
            Kind::TextList => "[\"text\"]",
            Kind::Scalar => "\"text\", 1 or true",
            Kind::Template => "\"{column}\"",
        }
    }
}

/// What holds when the file does not mention the key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fallback {
    /// An error; the text is an example of the value, as written in the file.
    Required(&'static str),
    /// Nothing; the key's documentation says what that means.
    Unset,
    /// This, as written in the file but for the quotes of strings.
    Is(&'static str),
}

/// How far this version goes with a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Support {
    /// All the way.
    Full,
    /// It may be written down as long as it says what its default says anyway.
    DefaultOnly,
    /// Known by name and refused.
    Later,
}

/// One row of the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Key {
    /// Section and name, joined by dots.
    pub(super) path: &'static str,
    pub(super) kind: Kind,
    pub(super) default: Fallback,
    pub(super) support: Support,
    /// One line for the reference.
    pub(super) doc: &'static str,
}

const fn key(path: &'static str, kind: Kind, default: Fallback, doc: &'static str) -> Key {
    Key {
        path,
        kind,
        default,
        support: Support::Full,
        doc,
    }
}

/// An option of Debezium that is honoured only as far as its default goes.
const fn debezium(path: &'static str, default: Fallback, doc: &'static str) -> Key {
    Key {
        path,
        kind: Kind::Scalar,
        default,
        support: Support::DefaultOnly,
        doc,
    }
}

/// Section whose keys are passed through: anything may follow the dot.
pub(super) const PASS_THROUGH: &str = "sink.kafka";

/// Sections whose keys are names of one's own: of headers, of the members of a value (a name with a
/// dot or a quote in it is quoted, and a dot leads into an object), and of lookup tables and their
/// values.
pub(super) const HEADERS: &str = "router.route.headers";
pub(super) const MEMBERS: &str = "router.route.value";
pub(super) const LOOKUPS: &str = "router.lookup";
/// Of subjects, with the names of files.
pub(super) const SCHEMAS: &str = "router.registry.schemas";
const OPEN: &[&str] = &[PASS_THROUGH, HEADERS, MEMBERS, LOOKUPS, SCHEMAS];

/// In the order in which the reader takes them, each by its short name and by its class.
const CONVERTERS: &[&str] = &[
    "string",
    "org.apache.kafka.connect.storage.StringConverter",
    "json",
    "org.apache.kafka.connect.json.JsonConverter",
    "bytearray",
    "org.apache.kafka.connect.converters.ByteArrayConverter",
    "binarydata",
    "io.debezium.converters.BinaryDataConverter",
];

/// The same, for what is not bytes.
const DELEGATES: &[&str] = &[
    "string",
    "org.apache.kafka.connect.storage.StringConverter",
    "json",
    "org.apache.kafka.connect.json.JsonConverter",
];

/// The same for headers.
const HEADER_CONVERTERS: &[&str] = &[
    "string",
    "org.apache.kafka.connect.storage.StringConverter",
    "json",
    "org.apache.kafka.connect.json.JsonConverter",
    "simple",
    "org.apache.kafka.connect.storage.SimpleHeaderConverter",
];

const POISON: Kind = Kind::Choice {
    here: &["halt", "dead-letter", "skip"],
    later: &[],
};

use Fallback::{Is, Required, Unset};

/// The table, in the order of the reference.
pub(super) const KEYS: &[Key] = &[
    key(
        "source.url",
        Kind::Secret,
        Unset,
        "Where Postgres is, as a `postgres://` URL; a list of hosts is allowed. This or `url_file` is required.",
    ),
    key(
        "source.url_file",
        Kind::Text,
        Unset,
        "A file that holds the URL, instead of `url`.",
    ),
    key(
        "source.password_file",
        Kind::Text,
        Unset,
        "A file that holds the password, for a URL without one.",
    ),
    key(
        "source.slot",
        Kind::Text,
        Is("walrelay"),
        "The logical replication slot: 1 to 63 of `a-z`, `0-9`, `_`. One slot serves one relay.",
    ),
    key(
        "source.publication",
        Kind::Text,
        Is("walrelay"),
        "The publication that selects the outbox tables.",
    ),
    key(
        "source.tables",
        Kind::TextList,
        Required("[\"public.outbox\"]"),
        "The outbox tables, as `schema.table`; without a schema, `public` is meant. May be left out where `[source.messages]` is set.",
    ),
    key(
        "source.create",
        Kind::Bool,
        Is("true"),
        "Whether slot and publication are created when both are absent.",
    ),
    key(
        "source.failover",
        Kind::Bool,
        Is("false"),
        "Whether the slot is created as a failover slot, of which standbys keep a copy; Postgres 17 and newer.",
    ),
    key(
        "source.state_file",
        Kind::Text,
        Unset,
        "A file in which the relay notes how far it has come, before it tells the slot: so that one that starts notices a slot that was moved or made anew.",
    ),
    key(
        "source.retained_wal_warning",
        Kind::Size,
        Is("10GiB"),
        "Warn when Postgres keeps more WAL than this for the slot; `0B` for never.",
    ),
    key(
        "source.status_interval",
        Kind::Duration,
        Is("1s"),
        "The longest time between two reports of progress to Postgres, 10ms to 1s.",
    ),
    key(
        "source.receive_timeout",
        Kind::Duration,
        Unset,
        "Reconnect when Postgres has been silent for this long although the relay asks for a reply at least once a second; at least 1s. Unset: `wal_sender_timeout`, which is also the least that counts.",
    ),
    key(
        "source.wal_sender_timeout",
        Kind::Duration,
        Is("5s"),
        "`wal_sender_timeout` of the relay's own session, at least 1s: how long a relay whose machine has vanished keeps the slot.",
    ),
    key(
        "source.messages.prefix",
        Kind::Text,
        Unset,
        "Messages of `pg_logical_emit_message(true, prefix, …)` with this prefix are events, beside the rows of the tables or instead of them.",
    ),
    key(
        "router.preset",
        Kind::Choice {
            here: &[
                "debezium",
                "events_outbox",
                "outbox_events",
                "outbox",
                "custom",
            ],
            later: &[],
        },
        Is("debezium"),
        "The shape of the outbox tables and of the records made of them.",
    ),
    key(
        "router.position_header",
        Kind::Text,
        Unset,
        "The name of a header that carries each event's position: commit LSN and row number, which compare as bytes in commit order. Unset: no such header.",
    ),
    key(
        "router.route.id",
        Kind::Text,
        Unset,
        "The column of the event's id, by which dead letters name it.",
    ),
    key(
        "router.route.topic",
        Kind::Template,
        Unset,
        "The topic. NULL, or nothing: the event is unroutable.",
    ),
    key(
        "router.route.key",
        Kind::Template,
        Unset,
        "The key. NULL is the null key; `false` is the null key for all.",
    ),
    key(
        "router.route.value",
        Kind::Template,
        Unset,
        "The value; or a section, `[router.route.value]`, whose keys are the members of a JSON object. NULL is the null value, a tombstone.",
    ),
    key(
        "router.route.headers",
        Kind::Template,
        Unset,
        "A section, `[router.route.headers]`, with a template for each header; or `false` for none. NULL is a header that is present and null.",
    ),
    key(
        "router.route.partition",
        Kind::Template,
        Unset,
        "The partition's number; without it the key decides. NULL: the event is unroutable.",
    ),
    key(
        "router.route.timestamp",
        Kind::Template,
        Unset,
        "The timestamp: a point in time, or milliseconds since 1970. Without it, and for NULL, the time of production.",
    ),
    key(
        "router.debezium.table.field.event.id",
        Kind::Text,
        Is("id"),
        "The column of the event's id, sent as header `id`.",
    ),
    key(
        "router.debezium.table.field.event.key",
        Kind::Text,
        Is("aggregateid"),
        "The column of the record's key.",
    ),
    key(
        "router.debezium.table.field.event.type",
        Kind::Text,
        Is("type"),
        "The column of the event's type. Debezium itself declares this option and never reads it.",
    ),
    key(
        "router.debezium.table.field.event.payload",
        Kind::Text,
        Is("payload"),
        "The column of the record's value.",
    ),
    key(
        "router.debezium.route.by.field",
        Kind::Text,
        Is("aggregatetype"),
        "The column that decides the topic.",
    ),
    key(
        "router.debezium.route.topic.replacement",
        Kind::Text,
        Is("outbox.event.${routedByValue}"),
        "The topic, a Java replacement string: `${routedByValue}`, or `${name}` and `$1` for groups of `route.topic.regex`.",
    ),
    key(
        "router.debezium.topic.prefix",
        Kind::Text,
        Unset,
        "Debezium's name of the server: the schemas of envelopes begin with it, and context headers carry it.",
    ),
    key(
        "router.debezium.table.op.invalid.behavior",
        Kind::Choice {
            here: &["warn", "error", "fatal"],
            later: &[],
        },
        Is("warn"),
        "What an UPDATE of an outbox row does, where the publication carries any: it is never sent, and is a warning, an error in the log, or stops the relay.",
    ),
    key(
        "router.debezium.table.field.event.timestamp",
        Kind::Text,
        Unset,
        "The column of the record's timestamp: timestamp, timestamptz or date. Where it is NULL, or this is not set, the time of production counts.",
    ),
    key(
        "router.debezium.table.field.event.schema.version",
        Kind::Text,
        Unset,
        "The column, an integer, of the version of the envelope's schema.",
    ),
    key(
        "router.debezium.table.fields.additional.placement",
        Kind::Text,
        Unset,
        "More columns, as `column:placement` or `column:placement:alias` between commas; a placement is `header`, `envelope` or `partition`.",
    ),
    key(
        "router.debezium.table.field.additional.missing",
        Kind::Choice {
            here: &["error", "ignore"],
            later: &[],
        },
        Is("error"),
        "What becomes of an additional column that the table does not have: the table is refused, or the column is passed over.",
    ),
    key(
        "router.debezium.table.fields.additional.error.on.missing",
        Kind::Scalar,
        Unset,
        "The former name of the option before: `true` for `error`, `false` for `ignore`.",
    ),
    key(
        "router.debezium.route.topic.regex",
        Kind::Text,
        Is("(?<routedByValue>.*)"),
        "A Java regular expression over the whole value of `route.by.field`, without look-around, back-references and possessive quantifiers. A value that it does not match is the topic.",
    ),
    key(
        "router.debezium.route.tombstone.on.empty.payload",
        Kind::Scalar,
        Is("false"),
        "Whether a payload that is NULL, or a text of blanks, makes a tombstone.",
    ),
    key(
        "router.debezium.table.expand.json.payload",
        Kind::Scalar,
        Is("false"),
        "Whether a payload that is a JSON text becomes a structure, with a schema inferred from it.",
    ),
    key(
        "router.debezium.table.json.payload.null.behavior",
        Kind::Choice {
            here: &["ignore", "optional_bytes"],
            later: &[],
        },
        Is("ignore"),
        "What null members of an expanded payload become: they are left out, or stay null.",
    ),
    key(
        "router.debezium.table.json.payload.empty.array.behavior",
        Kind::Choice {
            here: &["ignore", "optional_string"],
            later: &[],
        },
        Is("ignore"),
        "What empty arrays of an expanded payload become: they are left out, or stay, as arrays of strings.",
    ),
    key(
        "router.debezium.field.name.adjustment.mode",
        Kind::Choice {
            here: &["none", "avro", "avro_unicode"],
            later: &[],
        },
        Is("none"),
        "How names of expanded members are changed.",
    ),
    key(
        "router.debezium.extended.headers.enabled",
        Kind::Scalar,
        Is("false"),
        "Whether records have Debezium's context headers, `__debezium.context.*`. Debezium's own default is `true`.",
    ),
    key(
        "router.debezium.time.precision.mode",
        Kind::Choice {
            here: &[
                "adaptive",
                "adaptive_time_microseconds",
                "connect",
                "isostring",
                "microseconds",
                "nanoseconds",
            ],
            later: &[],
        },
        Is("adaptive"),
        "What dates and times become, as in Debezium's connector.",
    ),
    key(
        "router.debezium.decimal.handling.mode",
        Kind::Choice {
            here: &["precise", "double", "string"],
            later: &[],
        },
        Is("precise"),
        "What numeric and money become.",
    ),
    key(
        "router.debezium.binary.handling.mode",
        Kind::Choice {
            here: &["bytes", "base64", "base64-url-safe", "hex"],
            later: &[],
        },
        Is("bytes"),
        "What bytea becomes.",
    ),
    key(
        "router.debezium.interval.handling.mode",
        Kind::Choice {
            here: &["numeric", "string"],
            later: &[],
        },
        Is("numeric"),
        "What intervals become: microseconds, or ISO 8601.",
    ),
    key(
        "router.debezium.hstore.handling.mode",
        Kind::Choice {
            here: &["json", "map"],
            later: &[],
        },
        Is("json"),
        "What hstores become.",
    ),
    key(
        "router.debezium.money.fraction.digits",
        Kind::Integer,
        Is("2"),
        "Digits of a money value after the point, 0 to 6.",
    ),
    debezium(
        "router.debezium.tracing.span.context.field",
        Is("tracingspancontext"),
        "The column of a tracing context.",
    ),
    debezium(
        "router.debezium.tracing.operation.name",
        Is("debezium-read"),
        "The name of the tracing span.",
    ),
    debezium(
        "router.debezium.tracing.with.context.field.only",
        Is("false"),
        "Whether only rows with a tracing context are traced.",
    ),
    key(
        "router.converters.key.converter",
        Kind::Choice {
            here: CONVERTERS,
            later: &[],
        },
        Is("string"),
        "How keys become bytes, by the names of Kafka Connect.",
    ),
    key(
        "router.converters.value.converter",
        Kind::Choice {
            here: CONVERTERS,
            later: &[],
        },
        Is("string"),
        "How values become bytes.",
    ),
    key(
        "router.converters.header.converter",
        Kind::Choice {
            here: HEADER_CONVERTERS,
            later: &[],
        },
        Is("simple"),
        "How headers become bytes.",
    ),
    key(
        "router.converters.key.converter.schemas.enable",
        Kind::Scalar,
        Is("true"),
        "Of a JSON converter: whether each has its schema with it.",
    ),
    key(
        "router.converters.key.converter.decimal.format",
        Kind::Choice {
            here: &["BASE64", "NUMERIC"],
            later: &[],
        },
        Is("BASE64"),
        "Of a JSON converter: what decimals become.",
    ),
    key(
        "router.converters.key.converter.replace.null.with.default",
        Kind::Scalar,
        Is("true"),
        "Of a JSON converter: whether null is the default of a field that has one.",
    ),
    key(
        "router.converters.value.converter.schemas.enable",
        Kind::Scalar,
        Is("true"),
        "Of a JSON converter: whether each has its schema with it.",
    ),
    key(
        "router.converters.value.converter.decimal.format",
        Kind::Choice {
            here: &["BASE64", "NUMERIC"],
            later: &[],
        },
        Is("BASE64"),
        "Of a JSON converter: what decimals become.",
    ),
    key(
        "router.converters.value.converter.replace.null.with.default",
        Kind::Scalar,
        Is("true"),
        "Of a JSON converter: whether null is the default of a field that has one.",
    ),
    key(
        "router.converters.header.converter.schemas.enable",
        Kind::Scalar,
        Is("true"),
        "Of a JSON converter: whether each has its schema with it.",
    ),
    key(
        "router.converters.header.converter.decimal.format",
        Kind::Choice {
            here: &["BASE64", "NUMERIC"],
            later: &[],
        },
        Is("BASE64"),
        "Of a JSON converter: what decimals become.",
    ),
    key(
        "router.converters.header.converter.replace.null.with.default",
        Kind::Scalar,
        Is("true"),
        "Of a JSON converter: whether null is the default of a field that has one.",
    ),
    key(
        "router.converters.key.converter.delegate.converter.type",
        Kind::Choice {
            here: DELEGATES,
            later: &[],
        },
        Unset,
        "Of `binarydata`: the converter of what is not bytes. Unset: such an event cannot be delivered.",
    ),
    key(
        "router.converters.key.converter.delegate.converter.type.schemas.enable",
        Kind::Scalar,
        Is("true"),
        "Of a JSON converter behind `binarydata`.",
    ),
    key(
        "router.converters.key.converter.delegate.converter.type.decimal.format",
        Kind::Choice {
            here: &["BASE64", "NUMERIC"],
            later: &[],
        },
        Is("BASE64"),
        "Of a JSON converter behind `binarydata`.",
    ),
    key(
        "router.converters.key.converter.delegate.converter.type.replace.null.with.default",
        Kind::Scalar,
        Is("true"),
        "Of a JSON converter behind `binarydata`.",
    ),
    key(
        "router.converters.value.converter.delegate.converter.type",
        Kind::Choice {
            here: DELEGATES,
            later: &[],
        },
        Unset,
        "Of `binarydata`: the converter of what is not bytes. Unset: such an event cannot be delivered.",
    ),
    key(
        "router.converters.value.converter.delegate.converter.type.schemas.enable",
        Kind::Scalar,
        Is("true"),
        "Of a JSON converter behind `binarydata`.",
    ),
    key(
        "router.converters.value.converter.delegate.converter.type.decimal.format",
        Kind::Choice {
            here: &["BASE64", "NUMERIC"],
            later: &[],
        },
        Is("BASE64"),
        "Of a JSON converter behind `binarydata`.",
    ),
    key(
        "router.converters.value.converter.delegate.converter.type.replace.null.with.default",
        Kind::Scalar,
        Is("true"),
        "Of a JSON converter behind `binarydata`.",
    ),
    key(
        "router.cloudevents.mode",
        Kind::Choice {
            here: &["binary", "structured"],
            later: &[],
        },
        Unset,
        "Makes records CloudEvents: attributes in headers `ce_…`, or one JSON object with everything in it.",
    ),
    key(
        "router.cloudevents.source",
        Kind::Text,
        Unset,
        "The attribute `source`, a URI reference; a template over columns. Required with `mode`.",
    ),
    key(
        "router.cloudevents.type",
        Kind::Text,
        Unset,
        "The attribute `type`; a template over columns. Required with `mode`.",
    ),
    key(
        "router.cloudevents.id",
        Kind::Text,
        Unset,
        "The attribute `id`; a template over columns. When unset, the event id of the route.",
    ),
    key(
        "router.cloudevents.time",
        Kind::Text,
        Unset,
        "The attribute `time`; a template that gives a point in time as Postgres prints it, left out where it is NULL. When unset, the time of the commit.",
    ),
    key(
        "router.cloudevents.subject",
        Kind::Text,
        Unset,
        "The attribute `subject`; a template over columns, left out where it is NULL.",
    ),
    key(
        "router.cloudevents.datacontenttype",
        Kind::Text,
        Is("application/json"),
        "The attribute `datacontenttype`: what the route's value is.",
    ),
    key(
        "router.registry.url",
        Kind::Text,
        Unset,
        "Where the registry is, as in `http://registry:8081`; several that hold the same, with commas between them, are asked in turn. Required with any key of this section.",
    ),
    key(
        "router.registry.format",
        Kind::Choice {
            here: &["avro", "json"],
            later: &[],
        },
        Unset,
        "What values are: Avro, or JSON of JSON Schema. Required.",
    ),
    key(
        "router.registry.subject",
        Kind::Choice {
            here: &["topic", "record", "topic-record"],
            later: &[],
        },
        Is("topic"),
        "What the subject of a value's schema is called: `<topic>-value`, `<record>` or `<topic>-<record>`.",
    ),
    key(
        "router.registry.record",
        Kind::Text,
        Unset,
        "The name of the record; a template over columns. Required where subjects are called by it.",
    ),
    key(
        "router.registry.register",
        Kind::Bool,
        Is("false"),
        "Whether the schemas of `[router.registry.schemas]` are registered; otherwise they must be.",
    ),
    key(
        "router.registry.user",
        Kind::Text,
        Unset,
        "The user of HTTP basic authentication.",
    ),
    key(
        "router.registry.password",
        Kind::Secret,
        Unset,
        "The user's password.",
    ),
    key(
        "router.registry.password_file",
        Kind::Text,
        Unset,
        "A file that holds the password, instead of `password`.",
    ),
    key(
        "router.registry.token",
        Kind::Secret,
        Unset,
        "A bearer token, instead of user and password.",
    ),
    key(
        "router.registry.token_file",
        Kind::Text,
        Unset,
        "A file that holds the token, instead of `token`.",
    ),
    key(
        "router.registry.ca_file",
        Kind::Text,
        Unset,
        "A file of PEM certificates that the registry's is checked against. When unset, those of the operating system.",
    ),
    key(
        "router.registry.timeout",
        Kind::Duration,
        Is("10s"),
        "How long an answer may take, 100ms to 1m.",
    ),
    key(
        "sink.kind",
        Kind::Choice {
            here: &["kafka", "stdout"],
            later: &[],
        },
        Is("kafka"),
        "Where records go: to Kafka, or to standard output, one JSON object a line.",
    ),
    key(
        "sink.stdout.confirm",
        Kind::Bool,
        Is("false"),
        "Whether `kind = \"stdout\"` reads the slot itself and confirms what it prints there: Kafka never gets those events.",
    ),
    key(
        "sink.oauthbearer.token_file",
        Kind::Text,
        Unset,
        "A file that holds the token, and that somebody renews. This or `token_command`.",
    ),
    key(
        "sink.oauthbearer.token_command",
        Kind::TextList,
        Unset,
        "A program and its arguments, run without a shell, that prints a token.",
    ),
    key(
        "sink.oauthbearer.token_timeout",
        Kind::Duration,
        Is("10s"),
        "How long the program may take before it is stopped, 100ms to 1m.",
    ),
    key(
        "sink.oauthbearer.token_lifetime",
        Kind::Duration,
        Unset,
        "How long a token is valid after it was got, at least 1s; needed where it is not a JWT with the claim `exp`.",
    ),
    key(
        "sink.topics.create",
        Kind::Bool,
        Is("false"),
        "Whether the relay creates topics itself; otherwise the broker does, if it is set up to.",
    ),
    key(
        "sink.topics.partitions",
        Kind::Integer,
        Unset,
        "Partitions of a topic that is created; unset takes the broker's default.",
    ),
    key(
        "sink.topics.replication_factor",
        Kind::Integer,
        Unset,
        "Replicas of a topic that is created; unset takes the broker's default.",
    ),
    key(
        "delivery.guarantee",
        Kind::Choice {
            here: &["at-least-once"],
            later: &["exactly-once"],
        },
        Is("at-least-once"),
        "What consumers may rely on.",
    ),
    key(
        "delivery.max_in_flight_records",
        Kind::Integer,
        Is("65536"),
        "Records handed to the sink and not yet acknowledged, at most; 1 to 16777216.",
    ),
    key(
        "delivery.max_in_flight_bytes",
        Kind::Size,
        Is("12MiB"),
        "Bytes of such records, at most, with the client library's own for each; 64KiB to 1GiB.",
    ),
    key(
        "delivery.bulk_linger",
        Kind::Duration,
        Is("50ms"),
        "While the relay is behind, how long Kafka's requests are filled; at most 1s. 0ms: never, as \
         when sink.kafka has a linger.ms of its own.",
    ),
    key(
        "delivery.drain_timeout",
        Kind::Duration,
        Is("30s"),
        "How long a stop waits for acknowledgements, at least 1s.",
    ),
    key(
        "delivery.backoff_initial",
        Kind::Duration,
        Is("100ms"),
        "The first pause before a retry, at least 1ms; pauses double, with jitter.",
    ),
    key(
        "delivery.backoff_max",
        Kind::Duration,
        Is("10s"),
        "The longest pause before a retry.",
    ),
    key(
        "poison.unroutable",
        POISON,
        Is("halt"),
        "What happens to an event that has no topic: the routing column is missing, NULL, or gives a name that no topic can have.",
    ),
    key(
        "poison.oversize",
        POISON,
        Is("halt"),
        "What happens to an event that is larger than client, topic or broker take.",
    ),
    key(
        "poison.rejected",
        POISON,
        Is("halt"),
        "What happens to an event that the broker refuses: invalid there, or its topic does not exist or may not be written to for `retry_for`.",
    ),
    key(
        "poison.undecodable",
        POISON,
        Is("halt"),
        "What happens to an event of which a column cannot be read as what it is to be read as.",
    ),
    key(
        "poison.topic",
        Kind::Text,
        Is("walrelay.dead-letters"),
        "The topic of dead letters. It needs `cleanup.policy=delete` and a retention that leaves time to look at them.",
    ),
    key(
        "poison.park_key",
        Kind::Bool,
        Is("false"),
        "Whether later events of a key follow its dead letter into that topic, so that order per key survives, until the letters are resolved.",
    ),
    key(
        "poison.retry_for",
        Kind::Duration,
        Is("5m"),
        "How long an event is offered again whose refusal may pass, as when a topic is missing; at least 1s.",
    ),
    Key {
        path: "http.listen",
        kind: Kind::Text,
        default: Unset,
        support: Support::Later,
        doc: "The address of metrics, health and status pages.",
    },
    key(
        "log.level",
        Kind::Choice {
            here: &["error", "warn", "info", "debug", "trace"],
            later: &[],
        },
        Is("info"),
        "How much is logged.",
    ),
    key(
        "log.format",
        Kind::Choice {
            here: &["text", "json"],
            later: &[],
        },
        Is("text"),
        "Lines for people or JSON objects for machines.",
    ),
];

/// The row of a key.
pub(super) fn find(path: &str) -> Option<&'static Key> {
    KEYS.iter().find(|key| key.path == path)
}

/// Whether `path` is a section, or the beginning of a name with dots.
pub(super) fn is_prefix(path: &str) -> bool {
    let begins = |known: &str| {
        known
            .strip_prefix(path)
            .is_some_and(|rest| rest.starts_with('.'))
    };
    let leads = |section: &&str| path == *section || begins(section);
    OPEN.iter().any(leads) || KEYS.iter().any(|key| begins(key.path))
}

/// Whether `path` is a key of a section in which anything may follow the dot.
pub(super) fn is_free(path: &str) -> bool {
    OPEN.iter().any(|section| below(path, section).is_some())
}

/// Whether `path` is an open section.
pub(super) fn is_open(path: &str) -> bool {
    OPEN.contains(&path)
}

/// What `path` names in `section`.
pub(super) fn below<'p>(path: &'p str, section: &str) -> Option<&'p str> {
    path.strip_prefix(section)?.strip_prefix('.')
}

/// The kind of a key's value.
pub(super) fn kind(path: &str) -> Option<Kind> {
    match find(path) {
        Some(key) => Some(key.kind),
        None if below(path, HEADERS).is_some() || below(path, MEMBERS).is_some() => {
            Some(Kind::Template)
        }
        None => is_free(path).then_some(Kind::Scalar),
    }
}

/// The property that `path` names in the section that is passed through.
pub(super) fn passed_through(path: &str) -> Option<&str> {
    below(path, PASS_THROUGH)
}

/// The sections of the file.
pub(super) const SECTIONS: &[&str] = &[
    "source", "router", "sink", "delivery", "poison", "http", "log",
];

/// The names of the keys in a section, without it.
pub(super) fn of_section(section: &str) -> Vec<&'static str> {
    KEYS.iter()
        .filter_map(|key| key.path.strip_prefix(section)?.strip_prefix('.'))
        .collect()
}

/// The known key or section that an unknown one was probably meant to be.
pub(super) fn nearest(unknown: &str) -> Option<&'static str> {
    let leaf = unknown.rsplit('.').next().unwrap_or(unknown);
    // The right name in the wrong section.
    let misplaced = |name: &str| {
        KEYS.iter().find(|key| {
            key.path
                .strip_suffix(name)
                .is_some_and(|rest| rest.ends_with('.'))
        })
    };
    let within_section = unknown.split_once('.').map_or(unknown, |(_, rest)| rest);
    if let Some(key) = misplaced(unknown)
        .or_else(|| misplaced(within_section))
        .or_else(|| misplaced(leaf))
    {
        return Some(key.path);
    }
    let sections = KEYS.iter().filter_map(|key| {
        let known = key.path;
        let depth = unknown.matches('.').count();
        known
            .match_indices('.')
            .nth(depth)
            .map(|(at, _)| &known[..at])
    });
    KEYS.iter()
        .map(|key| key.path)
        .chain(sections)
        .chain(OPEN.iter().copied())
        .map(|known| (strsim::damerau_levenshtein(unknown, known), known))
        .min()
        .filter(|(distance, _)| *distance <= (leaf.len() / 3).max(2))
        .map(|(_, known)| known)
}

/// Whether a key, or a property of a client library, holds what no message may show.
pub(super) fn is_secret(path: &str) -> bool {
    if find(path).is_some_and(|key| key.kind == Kind::Secret) {
        return true;
    }
    let lower = path.to_ascii_lowercase();
    [
        "password",
        "passwd",
        "secret",
        "token",
        "credential",
        "jaas",
        "key.pem",
        "oauthbearer.config",
    ]
    .iter()
    .any(|word| lower.contains(word))
}
