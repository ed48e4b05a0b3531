use core::fmt;

use crate::MessageKind;

/// Why a body is not a message of pgoutput's protocol version 1.
///
/// A relay stops on it: the bytes that were not understood may have been a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// There is not even a tag.
    #[error("empty pgoutput message")]
    Empty,
    /// The first byte names no message of protocol version 1. Later versions have more (`S`, `E`,
    /// `c`, `A` for streamed transactions, `b`, `P`, `K`, `r`, `p` for prepared ones), which a
    /// server sends only when asked for such a version.
    #[error(
        "unknown pgoutput message: tag {:?} (0x{tag:02X}) at byte 0 is not of protocol version 1",
        char::from(*tag)
    )]
    UnknownMessage {
        /// The byte found.
        tag: u8,
    },
    /// The body contradicts its tag.
    #[error("malformed pgoutput {message} message: {field} at byte {offset}: {fault}")]
    Malformed {
        /// What the tag announced.
        message: MessageKind,
        /// What was being read.
        field: Field,
        /// Where it starts, in bytes from the beginning of the body; never beyond its end.
        offset: usize,
        /// What is wrong with it.
        fault: Fault,
    },
}

impl DecodeError {
    /// Where in the body reading stopped; never beyond its end.
    pub const fn offset(&self) -> usize {
        match self {
            Self::Empty | Self::UnknownMessage { .. } => 0,
            Self::Malformed { offset, .. } => *offset,
        }
    }
}

/// What is wrong with a field.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// The body ends too early.
    #[error("truncated, {needed} bytes needed, {left} left")]
    Truncated {
        /// How many bytes the field takes.
        needed: usize,
        /// How many there are.
        left: usize,
    },
    /// A string without its terminating zero byte.
    #[error("the terminating zero byte is missing")]
    Unterminated,
    /// A string that is not UTF-8; the connection's `client_encoding` must be `UTF8`.
    #[error("not UTF-8")]
    NotUtf8,
    /// A count or a length below zero.
    #[error("{found} is below zero")]
    Negative {
        /// The number found.
        found: i32,
    },
    /// A byte that must be one of a few letters and is not.
    #[error("0x{found:02X} is none of {known}")]
    UnknownTag {
        /// The byte found.
        found: u8,
        /// The letters that are known there.
        known: &'static str,
    },
    /// Flags of which some have no meaning in protocol version 1.
    #[error("0x{found:02X} has flags beyond 0x{known:02X}")]
    UnknownFlags {
        /// The flags found.
        found: u8,
        /// The flags that are known there, as a mask.
        known: u8,
    },
    /// The message is over and the body is not.
    #[error("{count} bytes too many")]
    TrailingBytes {
        /// How many bytes too many.
        count: usize,
    },
}

macro_rules! fields {
    ($($name:ident: $text:literal,)*) => {
        /// The parts of messages, in the manual's words.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum Field {
            $(#[doc = concat!("The ", $text, ".")] $name,)*
        }

        impl fmt::Display for Field {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(match self { $(Self::$name => $text,)* })
            }
        }
    };
}

fields! {
    FinalLsn: "final LSN",
    CommitLsn: "commit LSN",
    EndLsn: "end LSN",
    MessageLsn: "LSN of the message",
    CommitTime: "commit timestamp",
    Xid: "transaction's number",
    Flags: "flags",
    OriginName: "name of the origin",
    Namespace: "namespace",
    RelationId: "OID of the relation",
    RelationName: "name of the relation",
    RelationCount: "number of relations",
    ReplicaIdentity: "replica identity",
    TypeOid: "OID of the type",
    TypeName: "name of the type",
    TypeModifier: "type modifier",
    ColumnCount: "number of columns",
    ColumnFlags: "flags of a column",
    ColumnName: "name of a column",
    TupleKind: "kind of a tuple",
    ValueKind: "kind of a value",
    ValueLength: "length of a value",
    Value: "value",
    TruncateOptions: "options of the truncation",
    Prefix: "prefix",
    ContentLength: "length of the content",
    Content: "content",
    End: "end of the message",
}
