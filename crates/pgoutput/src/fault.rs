use core::fmt;

/// A fault of a field.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// The body ends too early.
    #[error("truncated, {needed} bytes needed, {left} left")]
    Truncated {
        /// Bytes that the field needs.
        needed: usize,
        /// Bytes that are left in the body.
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
    /// A byte that is none of the letters allowed in this field.
    #[error("0x{found:02X} is none of {known}")]
    UnknownTag {
        /// The byte found.
        found: u8,
        /// The letters allowed in this field.
        known: &'static str,
    },
    /// A flag without a meaning in protocol version 1 is set.
    #[error("0x{found:02X} has flags beyond 0x{known:02X}")]
    UnknownFlags {
        /// The flags found.
        found: u8,
        /// The flags allowed in this field, as a mask.
        known: u8,
    },
    /// The body has bytes behind the message.
    #[error("{count} bytes too many")]
    TrailingBytes {
        /// The number of bytes behind the message.
        count: usize,
    },
}

macro_rules! fields {
    ($($name:ident: $text:literal,)*) => {
        /// The fields of messages, named as in the Postgres manual.
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
