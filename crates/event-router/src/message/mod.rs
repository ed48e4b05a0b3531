//! Events written with `pg_logical_emit_message` instead of into a table.
//!
//! The content of such a logical message is a JSON object. It becomes a row of a virtual table that
//! has a column for each member, under the names that the presets use. The router routes that row
//! like any other. A message with several events is a JSON array of such objects ([`BatchEvent`]).

mod batch;
mod content;
mod error;

use std::borrow::Cow;
use std::fmt::{self, Write as _};

use walrelay_lsn::{RelationId, TypeOid};
use walrelay_pgoutput::{
    Column, Insert, Message, PgTimestamp, ReplicaIdentity, Value, decode, encode,
};
use walrelay_sink::Header;

pub use batch::{BatchEvent, BatchPlace};
pub use error::{MessageError, MessageMember};

use crate::headers::HeaderBuffer;
use crate::{PlanError, Router};
use content::{Content, read_headers};

const TEXT: TypeOid = TypeOid::new(25);
const TIMESTAMPTZ: TypeOid = TypeOid::new(1184);
const JSONB: TypeOid = TypeOid::new(3802);

/// The source of a column of the virtual table: a member, or `None` for the commit time.
type ColumnSource = Option<MessageMember>;

/// The columns for each member: those that presets read, and one of the member's own name.
const COLUMNS: [(ColumnSource, &[&str]); 8] = [
    (Some(MessageMember::Id), &["id", "event_id"]),
    (Some(MessageMember::Topic), &["topic"]),
    (
        Some(MessageMember::Aggregate),
        &["aggregate", "aggregatetype", "aggregate_type"],
    ),
    (
        Some(MessageMember::Key),
        &["key", "aggregateid", "aggregate_id"],
    ),
    (Some(MessageMember::Type), &["type", "event_type"]),
    (Some(MessageMember::Payload), &["payload"]),
    (Some(MessageMember::Headers), &["headers", "metadata"]),
    (None, &["created_at", "occurred_at"]),
];

/// Makes rows of logical messages. The buffers contain the last row.
#[derive(Clone)]
pub struct Messages {
    prefix: String,
    columns: Vec<(String, ColumnSource)>,
    /// Insert message of the last row.
    row: Vec<u8>,
    /// Text of the commit time of the last row.
    time: String,
    headers: HeaderBuffer,
}

/// A logical message as a row.
#[derive(Debug, Clone, Copy)]
pub struct MessageRow<'a> {
    /// Row of one of [`Messages::TABLES`].
    pub insert: Insert<'a>,
    /// Headers in the message, which follow the headers of the route.
    pub headers: MessageHeaders<'a>,
}

/// Headers of a logical message.
#[derive(Clone, Copy)]
pub struct MessageHeaders<'a> {
    buffer: &'a HeaderBuffer,
}

impl Messages {
    /// The table of messages whose topic the route chooses. The OID is `InvalidOid`, which no table
    /// of a database has.
    const ROUTED: RelationId = RelationId::new(0);
    /// The table of messages that name their topic, in the column [`TOPIC`](Self::TOPIC). OIDs
    /// below 16384 belong to catalogs, which cannot be published.
    const NAMED: RelationId = RelationId::new(1);
    const TOPIC: &'static str = MessageMember::Topic.name();
    /// Both tables.
    pub const TABLES: [RelationId; 2] = [Self::ROUTED, Self::NAMED];
    /// Schema of both tables, in errors and dead letters.
    pub const SCHEMA: &'static str = "message";

    /// Reads messages of this prefix. `named` has columns that the route names differently.
    pub fn new<'n>(
        prefix: &str,
        named: impl IntoIterator<Item = (&'n str, MessageMember)>,
    ) -> Self {
        let named = named.into_iter().map(|(name, member)| (name, Some(member)));
        let known = COLUMNS.iter();
        let known = known.flat_map(|(source, names)| names.iter().map(|name| (*name, *source)));
        let mut columns: Vec<(String, ColumnSource)> = Vec::new();
        for (name, source) in named.chain(known) {
            if columns.iter().all(|(known, _)| known != name) {
                columns.push((name.to_owned(), source));
            }
        }
        Self {
            prefix: prefix.to_owned(),
            columns,
            row: Vec::new(),
            time: String::new(),
            headers: HeaderBuffer::default(),
        }
    }

    /// Returns the prefix of the messages.
    pub fn prefix(&self) -> &str {
        &self.prefix
    }

    /// Announces both tables to a router. Must be called for each connection, as a server announces
    /// tables on each.
    ///
    /// # Errors
    /// The route needs a column that messages do not have.
    pub fn announce(&self, router: &mut Router) -> Result<(), PlanError> {
        // Announces both even if the first fails: a message that cannot be routed can still give a
        // partial row.
        let announced = Self::TABLES.map(|id| match decode(&self.relation(id)) {
            Ok(Message::Relation(relation)) => {
                let topic = (id == Self::NAMED).then_some(Self::TOPIC);
                router.message_relation(&relation, topic)
            }
            _ => unreachable!("a Relation message was made"),
        });
        announced.into_iter().collect()
    }

    fn relation(&self, id: RelationId) -> Vec<u8> {
        let columns = self.columns.iter().map(|(name, source)| Column {
            name,
            is_key: false,
            type_oid: match source {
                None => TIMESTAMPTZ,
                Some(MessageMember::Payload | MessageMember::Headers) => JSONB,
                Some(_) => TEXT,
            },
            type_modifier: -1,
        });
        let nothing = ReplicaIdentity::Nothing;
        // In the protocol a zero byte ends a name, so no prefix from a server contains one.
        let name = self.prefix.replace('\0', "");
        encode::relation(id, Self::SCHEMA, &name, nothing, columns)
    }

    /// Turns the content of a message into a row.
    ///
    /// # Errors
    /// The content does not have the documented form.
    pub fn read<'a>(
        &'a mut self,
        content: &[u8],
        commit_time: PgTimestamp,
    ) -> Result<MessageRow<'a>, MessageError> {
        let content = Content::parse(content)?;
        let mut values: [Option<Cow<'_, str>>; MessageMember::ALL.len()] = Default::default();
        for (member, value) in MessageMember::ALL.into_iter().zip(&mut values) {
            *value = content.value(member)?;
        }
        let value = |member: MessageMember| values[member as usize].as_deref();
        read_headers(value(MessageMember::Headers), &mut self.headers)?;
        let aggregate = value(MessageMember::Aggregate);
        let relation = match value(MessageMember::Topic) {
            Some(_) if aggregate.is_some() => return Err(MessageError::TwoTopics),
            Some("") => return Err(MessageError::EmptyTopic),
            Some(_) => Self::NAMED,
            None => Self::ROUTED,
        };
        write_time(commit_time, &mut self.time);
        let texts = self.columns.iter().map(|(_, source)| match source {
            Some(member) => value(*member),
            None => Some(&*self.time),
        });
        let row = texts.map(|text| text.map_or(Value::Null, |text| Value::Text(text.as_bytes())));
        encode::insert_into(&mut self.row, relation, row);
        match decode(&self.row) {
            Ok(Message::Insert(insert)) => Ok(MessageRow {
                insert,
                headers: MessageHeaders {
                    buffer: &self.headers,
                },
            }),
            _ => unreachable!("an Insert message was made"),
        }
    }
}

/// Writes the time as Postgres writes a `timestamptz` in UTC: `2026-01-02 03:04:05.678000+00`.
fn write_time(time: PgTimestamp, text: &mut String) {
    text.clear();
    // Writing to a String does not fail.
    let _ = write!(text, "{time}");
    // `time` is written by RFC 3339, with T between date and time and Z at the end.
    if let Some(separator) = text.find('T') {
        text.replace_range(separator..=separator, " ");
    }
    if text.ends_with('Z') {
        text.pop();
        text.push_str("+00");
    }
}

impl<'a> MessageHeaders<'a> {
    /// Returns the headers in the order of the message.
    pub fn iter(&self) -> impl Iterator<Item = Header<'a>> + use<'a> {
        self.buffer.iter()
    }
}

/// Shows no content of messages.
impl fmt::Debug for Messages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Messages")
            .field("prefix", &self.prefix)
            .finish_non_exhaustive()
    }
}

/// Shows lengths, no values.
impl fmt::Debug for MessageHeaders<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

#[cfg(test)]
mod tests;
