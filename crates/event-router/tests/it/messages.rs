//! Makes and decodes pgoutput messages for tests.

use walrelay_event_router::{
    CloudEventMode, CloudEvents, Event, Lookups, PlanError, RouteError, Routed, Router, Template,
    TemplateTarget,
};
use walrelay_lsn::{Lsn, RelationId, TypeOid};
use walrelay_pgoutput::{
    Column, Message, PgTimestamp, Relation, ReplicaIdentity, Tuple, Value, decode, encode,
};
use walrelay_sink::Header;

pub(crate) const BOOL: u32 = 16;
pub(crate) const INT8: u32 = 20;
pub(crate) const TEXT: u32 = 25;
pub(crate) const UUID: u32 = 2950;
pub(crate) const JSONB: u32 = 3802;
pub(crate) const TIMESTAMPTZ: u32 = 1184;

/// The table in the messages of [`relation`] and [`insert`].
pub(crate) const TABLE: RelationId = RelationId::new(16385);

pub(crate) fn text(text: &str) -> Value<'_> {
    Value::Text(text.as_bytes())
}

/// Encodes a Relation message of `public.outbox` with these columns.
pub(crate) fn relation<S: AsRef<str>>(columns: &[(S, u32)]) -> Vec<u8> {
    let columns = columns.iter().map(|(name, type_oid)| Column {
        name: name.as_ref(),
        is_key: false,
        type_oid: TypeOid::new(*type_oid),
        type_modifier: -1,
    });
    let identity = ReplicaIdentity::Default;
    encode::relation(TABLE, "public", "outbox", identity, columns)
}

/// The columns of the table in Debezium's documentation.
pub(crate) const DEBEZIUM: [(&str, u32); 5] = [
    ("id", UUID),
    ("aggregatetype", TEXT),
    ("aggregateid", TEXT),
    ("type", TEXT),
    ("payload", JSONB),
];

/// Encodes the Relation message of the table in Debezium's documentation.
pub(crate) fn debezium_outbox() -> Vec<u8> {
    relation(&DEBEZIUM)
}

/// The columns of the preset `outbox`.
pub(crate) const OUTBOX: [(&str, u32); 7] = [
    ("id", UUID),
    ("aggregate_type", TEXT),
    ("aggregate_id", TEXT),
    ("event_type", TEXT),
    ("payload", JSONB),
    ("metadata", JSONB),
    ("created_at", TIMESTAMPTZ),
];

/// Encodes the Relation message of a table that has the columns of every preset: those of
/// [`OUTBOX`], then `type`.
pub(crate) fn presets_outbox() -> Vec<u8> {
    relation(&[&OUTBOX[..], &[("type", TEXT)]].concat())
}

/// A row of [`presets_outbox`].
pub(crate) const PRESETS_ROW: [&str; 8] = [
    "00000000-0000-0000-0000-000000000001",
    "Order",
    "agg \"1\"",
    "order.placed",
    "{\"a\": 1}",
    "{}",
    "2026-01-02 03:04:05.678+00",
    "order.placed",
];

/// Encodes an Insert message.
pub(crate) fn insert(values: &[Value<'_>]) -> Vec<u8> {
    encode::insert(TABLE, values)
}

/// Encodes an Insert message of texts and NULLs.
pub(crate) fn insert_texts(values: &[Option<&str>]) -> Vec<u8> {
    let values = values.iter().map(|value| value.map_or(Value::Null, text));
    insert(&values.collect::<Vec<_>>())
}

/// Decodes a Relation message.
pub(crate) fn as_relation(message: &[u8]) -> Relation<'_> {
    match decode(message) {
        Ok(Message::Relation(relation)) => relation,
        other => panic!("not a Relation message: {other:?}"),
    }
}

/// Decodes the relation and the row of an Insert message.
pub(crate) fn as_row(message: &[u8]) -> (RelationId, Tuple<'_>) {
    match decode(message) {
        Ok(Message::Insert(insert)) => (insert.relation, insert.tuple),
        other => panic!("not an Insert message: {other:?}"),
    }
}

/// Announces a table.
pub(crate) fn announce(router: &mut Router, message: &[u8]) -> Result<(), PlanError> {
    router.relation(&as_relation(message))
}

/// Returns the first row of a transaction that committed at 2026-01-02 03:04:05.678 UTC.
pub(crate) fn event() -> Event {
    Event {
        epoch: 0,
        commit_lsn: Lsn::new(0x100),
        row: 0,
        commit_time: PgTimestamp::new(820_638_245_678_000),
    }
}

/// Routes the row of an Insert message.
pub(crate) fn route<'a>(
    router: &'a mut Router,
    message: &'a [u8],
) -> Result<Routed<'a>, RouteError> {
    let (relation, row) = as_row(message);
    router.route(relation, &row, &event())
}

/// The parts of a record as text.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct TextRecord {
    pub(crate) topic: String,
    pub(crate) key: Option<String>,
    pub(crate) value: Option<String>,
    /// The headers as [`headers`] writes them.
    pub(crate) headers: Vec<String>,
    pub(crate) partition: Option<i32>,
    pub(crate) timestamp_ms: Option<i64>,
}

/// Routes the row of an Insert message, and copies the record.
pub(crate) fn text_record(router: &mut Router, message: &[u8]) -> Result<TextRecord, RouteError> {
    let routed = route(router, message)?;
    let record = routed.record();
    Ok(TextRecord {
        topic: record.topic.to_owned(),
        key: record.key.map(as_text),
        value: record.value.map(as_text),
        headers: headers(&routed),
        partition: record.partition,
        timestamp_ms: record.timestamp_ms,
    })
}

/// Writes each header as `name=value`, where `(null)` stands for no value.
pub(crate) fn headers(routed: &Routed<'_>) -> Vec<String> {
    let header = |header: &Header<'_>| {
        let value = header.value.map_or("(null)".to_owned(), as_text);
        format!("{}={value}", header.name)
    };
    routed.headers().iter().map(header).collect()
}

fn as_text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// Creates a template without lookup tables.
pub(crate) fn template(text: &str) -> Template {
    Template::parse(text, TemplateTarget::Header, &Lookups::new()).unwrap()
}

/// Creates CloudEvents of type `com.example.{type}` without a subject.
pub(crate) fn cloud_events(mode: CloudEventMode) -> CloudEvents {
    CloudEvents {
        mode,
        id: None,
        source: template("/orders"),
        kind: template("com.example.{type}"),
        time: None,
        subject: None,
        content_type: "application/json".to_owned(),
        lookups: Lookups::new(),
    }
}
