//! Errors of the content of logical messages.

use walrelay_sink::Poison;

/// A member of a message's content.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum MessageMember {
    /// `id`: id of the event.
    Id,
    /// `topic`: the topic, used unchanged.
    Topic,
    /// `aggregate`: Debezium's `aggregatetype`, from which the preset makes the topic.
    Aggregate,
    /// `key`: key of the record.
    Key,
    /// `type`: type of the event.
    Type,
    /// `payload`: value of the record.
    Payload,
    /// `headers`: additional headers.
    Headers,
}

impl MessageMember {
    /// All members, in the order of their discriminants.
    pub const ALL: [Self; 7] = [
        Self::Id,
        Self::Topic,
        Self::Aggregate,
        Self::Key,
        Self::Type,
        Self::Payload,
        Self::Headers,
    ];

    /// Returns the name of the member in the content.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Id => "id",
            Self::Topic => "topic",
            Self::Aggregate => "aggregate",
            Self::Key => "key",
            Self::Type => "type",
            Self::Payload => "payload",
            Self::Headers => "headers",
        }
    }
}

/// The reason why a message is not an event. Errors have a position in the content, never its text.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MessageError {
    /// The content is not UTF-8, as JSON must be. `pg_logical_emit_message` sends text in the
    /// encoding of the database.
    #[error("the content is not UTF-8 from byte {at} on")]
    NotUtf8 {
        /// Offset of the first invalid byte, from 0.
        at: usize,
    },
    /// The content is not JSON, or something follows the JSON.
    #[error("the content is not one JSON object: line {line}, column {column}")]
    NotJson {
        /// Line, counted from 1.
        line: usize,
        /// Column in bytes, counted from 1; 0 before the first byte.
        column: usize,
    },
    /// The content has an unknown member.
    #[error(
        "the content has a member that is none of \"id\", \"topic\", \"aggregate\", \"key\", \"type\", \
         \"payload\" and \"headers\""
    )]
    UnknownMember,
    /// A member occurs twice.
    #[error("the content has member {member:?} twice", member = member.name())]
    Twice {
        /// The member.
        member: MessageMember,
    },
    /// A member has a value of another kind.
    #[error("member {member:?} of the content is not {wanted}", member = member.name())]
    Kind {
        /// The member.
        member: MessageMember,
        /// The kind of value that the member must have, with its article.
        wanted: &'static str,
    },
    /// The content has both a topic and an aggregate.
    #[error("the content has \"topic\" and \"aggregate\": one of them names the topic")]
    TwoTopics,
    /// The topic is the empty string.
    #[error("member \"topic\" of the content is empty")]
    EmptyTopic,
    /// A batch is not a JSON array. The events before the byte are events.
    #[error("the batch is not one JSON array of events: from byte {at} on it cannot be read")]
    NoBatch {
        /// Offset in the content, from 0.
        at: usize,
    },
    /// A batch has too many events.
    #[error("the batch has more than {most} events")]
    TooMany {
        /// The most that a batch may have.
        most: u64,
    },
    /// An event of a batch is not an event.
    #[error("event {number} of the batch: {fault}")]
    InBatch {
        /// Number in the batch, from 1.
        number: u64,
        /// The reason.
        fault: Box<MessageError>,
    },
}

impl MessageError {
    /// Returns the kind of poison that such a message is.
    pub fn poison(&self) -> Poison {
        match self {
            Self::TwoTopics | Self::EmptyTopic => Poison::Unroutable,
            Self::InBatch { fault, .. } => fault.poison(),
            _ => Poison::Undecodable,
        }
    }
}
