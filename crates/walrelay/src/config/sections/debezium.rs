//! `[router.debezium]` and `[router.converters]`.

use walrelay_event_router::{
    Additional, BinaryHandling, ColumnNames, Converter, DecimalHandling, Expand, Handling,
    HstoreHandling, IntervalHandling, JsonOptions, NameAdjustment, Options, TimePrecision,
    TopicTemplate,
};
use walrelay_relay::OnUpdate;
use walrelay_settings::{
    AlreadyReported, Entry, Reader, Section, ValueKind, choice, default_only, integer,
    loose_boolean, loose_choice, names, nested, not_empty, section, string, text, why,
};

use walrelay_postgres_source::table_name::owned_identifier as column;

const TOPIC: &str = "router.debezium.route.topic.replacement";

/// `[router.debezium]` and `[router.converters]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Debezium {
    /// The options, without the context headers, which are known when the relay starts.
    pub options: Options,
    /// True if records have context headers: `extended.headers.enabled`.
    pub context_headers: bool,
    /// The reaction to an UPDATE of an outbox row: `table.op.invalid.behavior`.
    pub on_update: OnUpdate,
}

const ON_UPDATE: &[(&str, OnUpdate)] = &[
    ("warn", OnUpdate::Warn),
    ("error", OnUpdate::Error),
    ("fatal", OnUpdate::Stop),
];
const IGNORE_MISSING: &[(&str, bool)] = &[("error", false), ("ignore", true)];
const KEEP_NULLS: &[(&str, bool)] = &[("ignore", false), ("optional_bytes", true)];
const KEEP_EMPTY_ARRAYS: &[(&str, bool)] = &[("ignore", false), ("optional_string", true)];
const NAMES: &[(&str, NameAdjustment)] = &[
    ("none", NameAdjustment::None),
    ("avro", NameAdjustment::Avro),
    ("avro_unicode", NameAdjustment::AvroUnicode),
];
const TIME: &[(&str, TimePrecision)] = &[
    ("adaptive", TimePrecision::Adaptive),
    (
        "adaptive_time_microseconds",
        TimePrecision::AdaptiveTimeMicroseconds,
    ),
    ("connect", TimePrecision::Connect),
    ("isostring", TimePrecision::IsoString),
    ("microseconds", TimePrecision::Microseconds),
    ("nanoseconds", TimePrecision::Nanoseconds),
];
const DECIMAL: &[(&str, DecimalHandling)] = &[
    ("precise", DecimalHandling::Precise),
    ("double", DecimalHandling::Double),
    ("string", DecimalHandling::String),
];
const BINARY: &[(&str, BinaryHandling)] = &[
    ("bytes", BinaryHandling::Bytes),
    ("base64", BinaryHandling::Base64),
    ("base64-url-safe", BinaryHandling::Base64UrlSafe),
    ("hex", BinaryHandling::Hex),
];
const INTERVAL: &[(&str, IntervalHandling)] = &[
    ("numeric", IntervalHandling::Numeric),
    ("string", IntervalHandling::String),
];
const HSTORE: &[(&str, HstoreHandling)] =
    &[("json", HstoreHandling::Json), ("map", HstoreHandling::Map)];

section! {
pub(super) struct Keys at "router.debezium" {
    /// The column of the event's id, sent as header `id`. A list: its present name and [its former ones](#renamed-columns), as for the next columns.
    "table.field.event.id" event_id: Vec<String> = names(column).or("id");
    /// The column of the record's key.
    "table.field.event.key" event_key: Vec<String> = names(column).or("aggregateid");
    /// The column of the event's type, for `walrelay replay --where`.
    "table.field.event.type" event_type: Vec<String> = names(column).or("type");
    /// The column of the record's value.
    "table.field.event.payload" payload: Vec<String> = names(column).or("payload");
    /// The column that decides the topic.
    "route.by.field" route_by: Vec<String> = names(column).or("aggregatetype");
    /// The topic, a Java replacement string: `${routedByValue}`, or `${name}` and `$1` for groups of `route.topic.regex`.
    "route.topic.replacement" replacement: String = string().or("outbox.event.${routedByValue}");
    /// Debezium's name of the server, in schemas of envelopes and context headers.
    "topic.prefix" topic_prefix: Option<String> = text(|text| not_empty(text, "it must not be empty")).optional();
    /// The effect of an UPDATE of an outbox row: a warning, an error in the log, or a stop. It is never sent.
    "table.op.invalid.behavior" on_update: OnUpdate = loose_choice(ON_UPDATE).or("warn");
    /// The column of the record's timestamp, a timestamp or date. Unset, or for NULL: the time of production.
    "table.field.event.timestamp" event_timestamp: Option<Vec<String>> = names(column).optional();
    /// The integer column of the version of the envelope's schema.
    "table.field.event.schema.version" schema_version: Option<Vec<String>> = names(column).optional();
    /// More columns: `column:placement[:alias]` between commas; a placement is `header`, `envelope` or `partition`.
    "table.fields.additional.placement" additional: Option<Vec<Additional>> = text(|text| Additional::parse(text).map_err(why)).optional();
    /// If the table lacks an additional column: the table is rejected, or the column left out.
    "table.field.additional.missing" ignore_missing: bool = loose_choice(IGNORE_MISSING).or("error");
    /// Debezium's former name of that: `true` for `error`, `false` for `ignore`.
    "table.fields.additional.error.on.missing" error_on_missing: Option<bool> = loose_boolean().optional();
    /// A Java expression over all of `route.by.field`, without look-around, back-references, possessive quantifiers. No match: the value is the topic.
    "route.topic.regex" regex: String = text(regex).or("(?<routedByValue>.*)");
    /// Whether a payload of NULL or blanks makes a tombstone.
    "route.tombstone.on.empty.payload" tombstone_on_empty: bool = loose_boolean().or("false");
    /// Whether a payload of JSON becomes a structure, with a schema inferred from it.
    "table.expand.json.payload" expand: bool = loose_boolean().or("false");
    "" expanded: Expand = nested::<ExpandKeys>();
    /// Whether records have the headers `__debezium.context.*`. Debezium's own default is `true`.
    "extended.headers.enabled" context_headers: bool = loose_boolean().or("false");
    "" handling: Handling = nested::<HandlingKeys>();
    /// The column, if there is one, of a W3C trace context (`java.util.Properties`, or a `traceparent`), for headers `traceparent`, `tracestate`.
    "tracing.span.context.field" trace_context: Option<String> = text(column).optional();
    refused {
    /// The name of the tracing span.
    "tracing.operation.name" = default_only("debezium-read");
    /// Whether only rows with a tracing context are traced.
    "tracing.with.context.field.only" = default_only("false");
    }
}
}

/// The keys of [`Expand`].
pub(super) struct ExpandKeys;

section! {
impl Expand by ExpandKeys at "" {
    /// Null members of an expanded payload: left out, or null.
    "table.json.payload.null.behavior" keep_nulls: bool = loose_choice(KEEP_NULLS).or("ignore");
    /// Empty arrays of an expanded payload: left out, or arrays of strings.
    "table.json.payload.empty.array.behavior" keep_empty_arrays: bool = loose_choice(KEEP_EMPTY_ARRAYS).or("ignore");
    /// How names of expanded members are changed.
    "field.name.adjustment.mode" names: NameAdjustment = loose_choice(NAMES).or("none");
}
}

/// The keys of [`Handling`].
pub(super) struct HandlingKeys;

section! {
impl Handling by HandlingKeys at "" {
    /// The form of dates and times, as in Debezium's connector.
    "time.precision.mode" time: TimePrecision = loose_choice(TIME).or("adaptive");
    /// The form of numeric and money.
    "decimal.handling.mode" decimal: DecimalHandling = loose_choice(DECIMAL).or("precise");
    /// The form of bytea.
    "binary.handling.mode" binary: BinaryHandling = loose_choice(BINARY).or("bytes");
    /// The form of intervals: microseconds, or ISO 8601.
    "interval.handling.mode" interval: IntervalHandling = loose_choice(INTERVAL).or("numeric");
    /// The form of hstores.
    "hstore.handling.mode" hstore: HstoreHandling = loose_choice(HSTORE).or("json");
    /// Digits of a money value after the point, 0 to 6.
    "money.fraction.digits" money_fraction_digits: u8 = integer::<u8>(0..=6).or("2");
}
}

#[derive(Clone, Copy, PartialEq)]
pub(super) enum Class {
    String,
    Json,
    ByteArray,
    BinaryData,
    Simple,
}

impl Class {
    fn converter(self, json: JsonOptions, delegate: Option<Converter>) -> Converter {
        match self {
            Class::String => Converter::String,
            Class::Json => Converter::Json(json),
            Class::ByteArray => Converter::ByteArray,
            Class::BinaryData => Converter::BinaryData(delegate.map(Box::new)),
            Class::Simple => Converter::Simple,
        }
    }
}

const STRING: (&str, Class) = ("string", Class::String);
const STRING_CLASS: (&str, Class) = (
    "org.apache.kafka.connect.storage.StringConverter",
    Class::String,
);
const JSON: (&str, Class) = ("json", Class::Json);
const JSON_CLASS: (&str, Class) = ("org.apache.kafka.connect.json.JsonConverter", Class::Json);

const CONVERTERS: &[(&str, Class)] = &[
    STRING,
    STRING_CLASS,
    JSON,
    JSON_CLASS,
    ("bytearray", Class::ByteArray),
    (
        "org.apache.kafka.connect.converters.ByteArrayConverter",
        Class::ByteArray,
    ),
    ("binarydata", Class::BinaryData),
    (
        "io.debezium.converters.BinaryDataConverter",
        Class::BinaryData,
    ),
];
const DELEGATES: &[(&str, Class)] = &[STRING, STRING_CLASS, JSON, JSON_CLASS];
const HEADER_CONVERTERS: &[(&str, Class)] = &[
    STRING,
    STRING_CLASS,
    JSON,
    JSON_CLASS,
    ("simple", Class::Simple),
    (
        "org.apache.kafka.connect.storage.SimpleHeaderConverter",
        Class::Simple,
    ),
];
const DECIMAL_NUMBERS: &[(&str, bool)] = &[("BASE64", false), ("NUMERIC", true)];

section! {
/// `[router.converters]`.
pub(super) struct Converters at "router.converters" {
    "key.converter" key: DataConverter = nested::<DataConverter>();
    "value.converter" value: DataConverter = nested::<DataConverter>();
    "header.converter" header: HeaderConverter = nested::<HeaderConverter>();
}
}

section! {
pub(super) struct DataConverter at "" {
    /// How keys or values become bytes, by the names of Kafka Connect.
    "" class: Class = choice(CONVERTERS).or("string");
    "" json: JsonOptions = nested::<JsonOptionsKeys>();
    "delegate.converter.type" delegate: Delegate = nested::<Delegate>();
}
}

section! {
pub(super) struct Delegate at "" {
    /// The converter of `binarydata` for values that are not bytes. Unset: such an event cannot be delivered.
    "" class: Option<Class> = choice(DELEGATES).optional();
    "" json: JsonOptions = nested::<JsonOptionsKeys>();
}
}

section! {
pub(super) struct HeaderConverter at "" {
    /// How headers become bytes.
    "" class: Class = choice(HEADER_CONVERTERS).or("simple");
    "" json: JsonOptions = nested::<JsonOptionsKeys>();
}
}

/// The keys of [`JsonOptions`].
pub(super) struct JsonOptionsKeys;

section! {
impl JsonOptions by JsonOptionsKeys at "" {
    /// JSON: whether each value contains its schema.
    "schemas.enable" schemas: bool = loose_boolean().or("true");
    /// JSON: the form of decimals.
    "decimal.format" decimal_numbers: bool = choice(DECIMAL_NUMBERS).or("BASE64");
    /// JSON: whether null is the default of a field that has one.
    "replace.null.with.default" replace_null_with_default: bool = loose_boolean().or("true");
}
}

impl DataConverter {
    fn converter(&self) -> Converter {
        let Delegate { class, json } = self.delegate;
        let delegate = class.map(|class| class.converter(json, None));
        self.class.converter(self.json, delegate)
    }
}

pub(super) fn debezium(reader: &mut Reader<'_>) -> Result<Debezium, AlreadyReported> {
    let keys = Keys::read(reader);
    let converters = Converters::read(reader);
    let keys = keys?;
    let converters = converters?;
    let topic = topic(reader, &keys)?;
    let ignore_missing = ignore_missing(reader, &keys)?;
    let mut named = |names: Vec<String>| {
        let mut names = names.into_iter();
        let name = names.next().unwrap_or_default();
        reader.shared::<ColumnNames>().add(&name, names);
        name
    };
    let options = Options {
        topic,
        ignore_missing,
        event_id: named(keys.event_id),
        event_key: named(keys.event_key),
        event_type: named(keys.event_type),
        payload: named(keys.payload),
        event_timestamp: keys.event_timestamp.map(&mut named),
        schema_version: keys.schema_version.map(&mut named),
        route_by: named(keys.route_by),
        additional: keys.additional.unwrap_or_default(),
        tombstone_on_empty: keys.tombstone_on_empty,
        expand: keys.expand.then_some(keys.expanded),
        trace_context: keys.trace_context,
        topic_prefix: keys.topic_prefix.unwrap_or_default(),
        context_headers: Vec::new(),
        handling: keys.handling,
        key_converter: converters.key.converter(),
        value_converter: converters.value.converter(),
        header_converter: converters
            .header
            .class
            .converter(converters.header.json, None),
    };
    let context_headers = keys.context_headers;
    if options.topic_prefix.is_empty() && (options.has_envelope() || context_headers) {
        return Err(reader.missing("router.debezium.topic.prefix", "\"srv\""));
    }
    Ok(Debezium {
        options,
        context_headers,
        on_update: keys.on_update,
    })
}

fn regex(text: &str) -> Result<String, String> {
    let any = TopicTemplate::with_regex(text, "x");
    any.map(|_| text.to_owned()).map_err(why)
}

/// Parses the topic's template. It needs the regular expression as well, whose groups the
/// replacement names.
fn topic(reader: &mut Reader<'_>, keys: &Keys) -> Result<TopicTemplate, AlreadyReported> {
    topic_template(&keys.regex, &keys.replacement).map_err(|why| {
        let default = || Entry::from_default(TOPIC, &ValueKind::Text, "");
        let entry = reader.raw(TOPIC).unwrap_or_else(default);
        reader.invalid(TOPIC, &entry, &why)
    })
}

/// Checks the literal parts of the topic by the sink's rule for the names of topics, such as their
/// length.
pub(super) fn check_topic(
    reader: &mut Reader<'_>,
    debezium: &Debezium,
    topic_problem: impl FnOnce(&str) -> Option<String>,
) -> Result<(), AlreadyReported> {
    let literals: String = debezium.options.topic.literals().collect();
    // A value between the dots makes a name of them.
    if literals.trim_matches('.').is_empty() {
        return Ok(());
    }
    match (reader.raw(TOPIC), topic_problem(&literals)) {
        (Some(entry), Some(why)) => Err(reader.invalid(TOPIC, &entry, &why)),
        _ => Ok(()),
    }
}

fn topic_template(regex: &str, text: &str) -> Result<TopicTemplate, String> {
    not_empty(text, "a topic must not be empty")?;
    let template = TopicTemplate::with_regex(regex, text).map_err(why)?;
    let literals: Vec<&str> = template.literals().collect();
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    if !literals.iter().all(|literal| literal.chars().all(allowed)) {
        return Err("a topic consists of a-z, A-Z, 0-9, '.', '_' and '-'".to_owned());
    }
    if text == "." || text == ".." {
        return Err("'.' and '..' are no topics".to_owned());
    }
    Ok(template)
}

fn ignore_missing(reader: &mut Reader<'_>, keys: &Keys) -> Result<bool, AlreadyReported> {
    let former = "router.debezium.table.fields.additional.error.on.missing";
    let now = "router.debezium.table.field.additional.missing";
    match keys.error_on_missing {
        Some(_) if reader.has(now) => {
            let what = format!("`{former}` is the former name of `{now}`; write one of them");
            Err(reader.conflict(former, what))
        }
        Some(error) => Ok(!error),
        None => Ok(keys.ignore_missing),
    }
}
