//! Events written with `pg_logical_emit_message` instead of into a table.
//!
//! The content of such a message is a JSON object; here it becomes a row of a virtual table:
//! one column for each member, under the names that the presets know. From there on it is
//! routed as any row is.

mod content;
mod error;

use std::fmt;
use std::io::Write as _;

use walrelay_lsn::{RelationId, TypeOid};
use walrelay_pgoutput::{
    Column, Insert, Message, MessageKind, PgTimestamp, ReplicaIdentity, decode, encode,
};
use walrelay_sink::Header;

pub use error::{MessageError, MessageMember};

use crate::{PlanError, Router};
use content::{Content, HeaderBuffer};

const TEXT: TypeOid = TypeOid::new(25);
const TIMESTAMPTZ: TypeOid = TypeOid::new(1184);
const JSONB: TypeOid = TypeOid::new(3802);

/// What a column of the virtual table is filled with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Source {
    Member(MessageMember),
    /// When the transaction committed.
    CommitTime,
}

/// The columns under which presets look for the members, besides the members' own names.
const ALIASES: [(&str, Source); 16] = [
    ("id", Source::Member(MessageMember::Id)),
    ("event_id", Source::Member(MessageMember::Id)),
    ("topic", Source::Member(MessageMember::Topic)),
    ("aggregate", Source::Member(MessageMember::Aggregate)),
    ("aggregatetype", Source::Member(MessageMember::Aggregate)),
    ("aggregate_type", Source::Member(MessageMember::Aggregate)),
    ("key", Source::Member(MessageMember::Key)),
    ("aggregateid", Source::Member(MessageMember::Key)),
    ("aggregate_id", Source::Member(MessageMember::Key)),
    ("type", Source::Member(MessageMember::Type)),
    ("event_type", Source::Member(MessageMember::Type)),
    ("payload", Source::Member(MessageMember::Payload)),
    ("headers", Source::Member(MessageMember::Headers)),
    ("metadata", Source::Member(MessageMember::Headers)),
    ("created_at", Source::CommitTime),
    ("occurred_at", Source::CommitTime),
];

/// Makes rows of messages, and says how those are to be routed. The row that was made last lies in
/// its buffers.
#[derive(Clone)]
pub struct Messages {
    /// Its name: the prefix.
    name: Box<str>,
    columns: Box<[(Box<str>, Source)]>,
    /// An Insert message: the row that was made last.
    row: Vec<u8>,
    headers: HeaderBuffer,
}

/// A message as a row.
#[derive(Debug, Clone, Copy)]
pub struct MessageRow<'a> {
    /// The row, of one of [`Messages::TABLES`].
    pub insert: Insert<'a>,
    /// What the message brings itself, to stand behind the headers of the route.
    pub headers: MessageHeaders<'a>,
}

/// Headers that a message brings.
#[derive(Clone, Copy)]
pub struct MessageHeaders<'a> {
    buffer: &'a HeaderBuffer,
}

impl Messages {
    /// The table of the messages that leave the topic to the route. `InvalidOid`: no table of a
    /// database has it.
    const ROUTED: RelationId = RelationId::new(0);
    /// The table of those that name their topic, in the column [`TOPIC`](Self::TOPIC). Below 16384
    /// lie catalogs, which cannot be published.
    const NAMED: RelationId = RelationId::new(1);
    const TOPIC: &'static str = MessageMember::Topic.name();
    /// Both.
    pub const TABLES: [RelationId; 2] = [Self::ROUTED, Self::NAMED];
    /// The schema that both are in, in errors and dead letters.
    pub const SCHEMA: &'static str = "message";

    /// For messages of this prefix. A column that the route wants by a name of its own is one of
    /// `named`.
    pub fn new<'n>(
        prefix: &str,
        named: impl IntoIterator<Item = (&'n str, MessageMember)>,
    ) -> Self {
        let mut columns: Vec<(Box<str>, Source)> = Vec::new();
        let named = named.into_iter();
        let named = named.map(|(name, member)| (name, Source::Member(member)));
        for (name, source) in named.chain(ALIASES) {
            if columns.iter().all(|(known, _)| &**known != name) {
                columns.push((name.into(), source));
            }
        }
        Self {
            name: prefix.into(),
            columns: columns.into(),
            row: Vec::new(),
            headers: HeaderBuffer::default(),
        }
    }

    /// The prefix.
    pub fn prefix(&self) -> &str {
        &self.name
    }

    /// Announces both tables to a router. Call it for each connection, as servers announce tables.
    ///
    /// # Errors
    /// The route wants a column that messages have not.
    pub fn announce(&self, router: &mut Router) -> Result<(), PlanError> {
        // Both, whatever comes of the first: a message that cannot be routed can still give a partial row.
        let announced = Self::TABLES.map(|id| match decode(&self.relation(id)) {
            Ok(Message::Relation(relation)) if id == Self::NAMED => {
                router.relation_with_topic(&relation, Self::TOPIC)
            }
            Ok(Message::Relation(relation)) => router.relation(&relation),
            _ => unreachable!("it was put together by the other end of the same crate"),
        });
        announced.into_iter().collect()
    }

    /// The Relation message of one of the two tables.
    fn relation(&self, id: RelationId) -> Vec<u8> {
        let columns = self.columns.iter().map(|(name, source)| Column {
            name,
            is_key: false,
            type_oid: source.type_oid(),
            type_modifier: -1,
        });
        let nothing = ReplicaIdentity::Nothing;
        // A zero byte ends a name in the protocol, so no prefix that a server sends has one.
        let name = self.name.replace('\0', "");
        encode::relation(id, Self::SCHEMA, &name, nothing, columns)
    }

    /// Makes a row of a message's content.
    ///
    /// # Errors
    /// It is not of the form that is documented.
    pub fn read<'a>(
        &'a mut self,
        content: &[u8],
        commit_time: PgTimestamp,
    ) -> Result<MessageRow<'a>, MessageError> {
        let content = Content::parse(content)?;
        let text = |member| content.text(member);
        let id = text(MessageMember::Id)?;
        let topic = text(MessageMember::Topic)?;
        let aggregate = text(MessageMember::Aggregate)?;
        let key = text(MessageMember::Key)?;
        let kind = text(MessageMember::Type)?;
        self.headers.read(&content)?;
        if topic.is_some() && aggregate.is_some() {
            return Err(MessageError::TwoTopics);
        }
        if topic.as_deref() == Some("") {
            return Err(MessageError::EmptyTopic);
        }
        let relation = if topic.is_some() {
            Self::NAMED
        } else {
            Self::ROUTED
        };
        let row = &mut self.row;
        row.clear();
        row.push(MessageKind::Insert.tag());
        row.extend_from_slice(&relation.get().to_be_bytes());
        row.push(b'N');
        let count = u16::try_from(self.columns.len()).unwrap_or(u16::MAX);
        row.extend_from_slice(&count.to_be_bytes());
        for (_, source) in &self.columns {
            match source {
                Source::Member(member) => {
                    let value = match member {
                        MessageMember::Id => id.as_deref(),
                        MessageMember::Topic => topic.as_deref(),
                        MessageMember::Aggregate => aggregate.as_deref(),
                        MessageMember::Key => key.as_deref(),
                        MessageMember::Type => kind.as_deref(),
                        MessageMember::Payload | MessageMember::Headers => content.raw(*member),
                    };
                    push_value(row, value);
                }
                Source::CommitTime => push_time(row, commit_time),
            }
        }
        match decode(&self.row) {
            Ok(Message::Insert(insert)) => Ok(MessageRow {
                insert,
                headers: MessageHeaders {
                    buffer: &self.headers,
                },
            }),
            _ => unreachable!("it was put together above"),
        }
    }
}

impl Source {
    const fn type_oid(self) -> TypeOid {
        match self {
            Self::Member(MessageMember::Payload | MessageMember::Headers) => JSONB,
            Self::Member(_) => TEXT,
            Self::CommitTime => TIMESTAMPTZ,
        }
    }
}

/// A value of a tuple, as a server sends it: `n`, or `t`, its length and its text.
fn push_value(row: &mut Vec<u8>, value: Option<&str>) {
    let Some(value) = value else {
        row.push(b'n');
        return;
    };
    // A message of the server is below a gigabyte, and this is a part of one.
    let len = u32::try_from(value.len()).unwrap_or(u32::MAX);
    row.push(b't');
    row.extend_from_slice(&len.to_be_bytes());
    row.extend_from_slice(value.as_bytes());
}

/// As Postgres writes a `timestamptz` in UTC: `2026-01-02 03:04:05.678000+00`.
fn push_time(row: &mut Vec<u8>, time: PgTimestamp) {
    row.push(b't');
    let at = row.len();
    row.extend_from_slice(&[0; 4]);
    let text = at + 4;
    // Writing to memory does not fail.
    let _ = write!(row, "{time}");
    // RFC 3339 has a T in between and a Z at the end.
    if let Some(separator) = row.iter().skip(text).position(|byte| *byte == b'T') {
        row[text + separator] = b' ';
    }
    if row.last() == Some(&b'Z') {
        row.pop();
        row.extend_from_slice(b"+00");
    }
    let len = u32::try_from(row.len() - text).unwrap_or_default();
    row[at..text].copy_from_slice(&len.to_be_bytes());
}

impl<'a> MessageHeaders<'a> {
    /// In the order of the message.
    pub fn iter(&self) -> impl Iterator<Item = Header<'a>> + use<'a> {
        let HeaderBuffer { texts, places } = self.buffer;
        places.iter().map(|(name, value)| Header {
            name: &texts[name.clone()],
            value: value.clone().map(|value| texts[value].as_bytes()),
        })
    }
}

/// Without what messages say.
impl fmt::Debug for Messages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Messages")
            .field("prefix", &self.name)
            .finish_non_exhaustive()
    }
}

/// Lengths, no values.
impl fmt::Debug for MessageHeaders<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

#[cfg(test)]
mod tests;
