use walrelay_sink::Poison;

/// A member of a message's content.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum MessageMember {
    /// `id`: the event's id.
    Id,
    /// `topic`: the topic's name as it is.
    Topic,
    /// `aggregate`: the preset makes a topic of it; Debezium's `aggregatetype`.
    Aggregate,
    /// `key`: the record's key.
    Key,
    /// `type`: the type of the event.
    Type,
    /// `payload`: the record's value.
    Payload,
    /// `headers`: more headers.
    Headers,
}

impl MessageMember {
    /// All of them, in the order of their discriminants.
    pub const ALL: [Self; 7] = [
        Self::Id,
        Self::Topic,
        Self::Aggregate,
        Self::Key,
        Self::Type,
        Self::Payload,
        Self::Headers,
    ];

    /// Its name in the content.
    pub const fn name(self) -> &'static str {
        const NAMES: [&str; 7] = [
            "id",
            "topic",
            "aggregate",
            "key",
            "type",
            "payload",
            "headers",
        ];
        NAMES[self as usize]
    }
}

/// Why a message is no event. Errors have the place in the content, never its text.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MessageError {
    /// It is not UTF-8, as JSON must be. `pg_logical_emit_message` sends text in the encoding of the
    /// database.
    #[error("the content is not UTF-8 from byte {at} on")]
    NotUtf8 {
        /// Counted from 0.
        at: usize,
    },
    /// It is not JSON, or something follows it.
    #[error("the content is not one JSON object: line {line}, column {column}")]
    NotJson {
        /// Counted from 1.
        line: usize,
        /// Counted from 1, in bytes; 0 before the first.
        column: usize,
    },
    /// An object has a member without a meaning.
    #[error(
        "the content has a member that is none of \"id\", \"topic\", \"aggregate\", \"key\", \"type\", \
         \"payload\" and \"headers\""
    )]
    UnknownMember,
    /// A member occurs twice.
    #[error("the content has member {member:?} twice", member = member.name())]
    Twice {
        /// Which.
        member: MessageMember,
    },
    /// A member is of another kind.
    #[error("member {member:?} of the content is not {wanted}", member = member.name())]
    Kind {
        /// Which.
        member: MessageMember,
        /// The kind that it must be, with its article.
        wanted: &'static str,
    },
    /// The content names a topic and leaves it to the route.
    #[error("the content has \"topic\" and \"aggregate\": one of them names the topic")]
    TwoTopics,
    /// The topic is the empty string.
    #[error("member \"topic\" of the content is empty")]
    EmptyTopic,
}

impl MessageError {
    /// Which kind of poison such a message is.
    pub const fn poison(&self) -> Poison {
        match self {
            Self::TwoTopics | Self::EmptyTopic => Poison::Unroutable,
            _ => Poison::Undecodable,
        }
    }
}
