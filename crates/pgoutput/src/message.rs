use core::fmt;

use walrelay_lsn::{CommitEnd, Lsn, RelationId, TypeOid, Xid};

use crate::{OldRow, PgTimestamp, Relation, Tuple};

/// One message of protocol version 1.
///
/// The order on a connection: Begin, then Origin where there is one, then any of Relation, Type,
/// Insert, Update, Delete, Truncate and transactional logical messages, then Commit. A logical
/// message that is not transactional may come at any time, also between Begin and Commit of
/// transactions it has nothing to do with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Message<'a> {
    /// The start of a committed transaction.
    Begin(Begin),
    /// The end of a transaction.
    Commit(Commit),
    /// The transaction was replicated to this server from another one.
    Origin(Origin<'a>),
    /// The columns of a table; sent before its first row and again after a change.
    Relation(Relation<'a>),
    /// The name of a type that is not built in.
    Type(Type<'a>),
    /// A row was inserted.
    Insert(Insert<'a>),
    /// A row was updated.
    Update(Update<'a>),
    /// A row was deleted.
    Delete(Delete<'a>),
    /// Tables were emptied.
    Truncate(Truncate<'a>),
    /// `pg_logical_emit_message` was called.
    Logical(LogicalMessage<'a>),
}

macro_rules! kinds {
    ($($name:ident = $tag:literal, $text:literal;)*) => {
        /// The kinds of messages of protocol version 1.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum MessageKind {
            $(#[doc = concat!("The ", $text, " message.")] $name,)*
        }

        impl MessageKind {
            /// All kinds.
            pub const ALL: &[MessageKind] = &[$(Self::$name,)*];

            /// Returns the kind of a body by its first byte; `None` if it is not of protocol
            /// version 1.
            #[inline]
            pub const fn from_tag(tag: u8) -> Option<Self> {
                match tag {
                    $($tag => Some(Self::$name),)*
                    _ => None,
                }
            }

            /// Returns the first byte of such a body.
            pub const fn tag(self) -> u8 {
                match self { $(Self::$name => $tag,)* }
            }
        }

        impl fmt::Display for MessageKind {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(match self { $(Self::$name => $text,)* })
            }
        }

        impl Message<'_> {
            /// Returns the kind of the message.
            pub const fn kind(&self) -> MessageKind {
                match self { $(Self::$name(_) => MessageKind::$name,)* }
            }
        }
    };
}

kinds! {
    Begin = b'B', "Begin";
    Commit = b'C', "Commit";
    Origin = b'O', "Origin";
    Relation = b'R', "Relation";
    Type = b'Y', "Type";
    Insert = b'I', "Insert";
    Update = b'U', "Update";
    Delete = b'D', "Delete";
    Truncate = b'T', "Truncate";
    Logical = b'M', "logical decoding";
}

/// The start of a transaction. The messages up to the next [`Commit`] belong to it, except
/// [`LogicalMessage`]s that are not transactional.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Begin {
    /// The start of the commit record: the [`Commit::commit_lsn`] of the transaction.
    pub final_lsn: Lsn,
    /// The commit time, by the server's clock.
    pub commit_time: PgTimestamp,
    /// The transaction's number.
    pub xid: Xid,
}

/// The end of a transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Commit {
    /// The start of the commit record. **Never** confirm it: Postgres would send the transaction
    /// again.
    pub commit_lsn: Lsn,
    /// The end of the transaction, exactly as the server sent it: the position to confirm.
    pub end: CommitEnd,
    /// The commit time, by the server's clock.
    pub commit_time: PgTimestamp,
}

/// The transaction was replicated to this server from another one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Origin<'a> {
    /// The commit's position in the WAL of the origin server. It cannot be confirmed to this
    /// server.
    pub commit_lsn: Lsn,
    /// The name given to `pg_replication_origin_create`.
    pub name: &'a str,
}

/// A type that is not built into Postgres.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Type<'a> {
    /// The type's OID, as in [`Column::type_oid`](crate::Column::type_oid).
    pub oid: TypeOid,
    /// The type's schema; `pg_catalog` where the server sent the empty string.
    pub namespace: &'a str,
    /// The type's name.
    pub name: &'a str,
}

/// A row was inserted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Insert<'a> {
    /// The table, described by an earlier [`Relation`].
    pub relation: RelationId,
    /// The row.
    pub tuple: Tuple<'a>,
}

/// A row was updated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Update<'a> {
    /// The table, described by an earlier [`Relation`].
    pub relation: RelationId,
    /// The old row; `None` if the update did not change the replica identity.
    pub old: Option<OldRow<Tuple<'a>>>,
    /// The new row.
    pub new: Tuple<'a>,
}

/// A row was deleted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Delete<'a> {
    /// The table, described by an earlier [`Relation`].
    pub relation: RelationId,
    /// The old row.
    pub old: OldRow<Tuple<'a>>,
}

/// Tables were emptied by one TRUNCATE.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Truncate<'a> {
    /// True if the TRUNCATE had the option CASCADE.
    pub cascade: bool,
    /// True if the TRUNCATE had the option RESTART IDENTITY.
    pub restart_identity: bool,
    /// The OIDs of the tables, as on the wire.
    pub(crate) ids: &'a [[u8; 4]],
}

impl<'a> Truncate<'a> {
    /// Returns the tables, described by earlier [`Relation`]s.
    pub fn relations(&self) -> impl ExactSizeIterator<Item = RelationId> + use<'a> {
        let ids = self.ids.iter();
        ids.map(|id| RelationId::new(u32::from_be_bytes(*id)))
    }
}

/// A message written by `pg_logical_emit_message`. Sent by Postgres 14 and later if requested by
/// `messages 'true'`.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct LogicalMessage<'a> {
    /// True if the message belongs to the transaction around it and is sent because that committed.
    /// Otherwise it belongs to no transaction, and its position is no commit.
    pub transactional: bool,
    /// The message's position in the WAL. **Never** confirm it.
    pub lsn: Lsn,
    /// The argument `prefix`.
    pub prefix: &'a str,
    /// The argument `content`, text or bytes.
    pub content: &'a [u8],
}

// Not derived: the content is data, as a row's values are, and must not be logged.
impl fmt::Debug for LogicalMessage<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LogicalMessage")
            .field("transactional", &self.transactional)
            .field("lsn", &self.lsn)
            .field("prefix", &self.prefix)
            .field("content_bytes", &self.content.len())
            .finish()
    }
}
