use core::fmt;
use core::iter::FusedIterator;

use walrelay_lsn::{CommitEnd, Lsn, RelationId, TypeOid, Xid};

use crate::{OldTuple, PgTimestamp, Relation, Tuple};

/// One message of protocol version 1.
///
/// The order on a connection: Begin, then Origin where there is one, then any of Relation, Type,
/// Insert, Update, Delete, Truncate and transactional logical messages, then Commit. A logical
/// message that is not transactional may come at any time, also between Begin and Commit of
/// transactions it has nothing to do with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Message<'a> {
    /// A transaction that has committed begins.
    Begin(Begin),
    /// It is complete.
    Commit(Commit),
    /// The transaction came here by replication from somewhere else.
    Origin(Origin<'a>),
    /// What a table looks like; comes before the first row of it and again after a change.
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

impl Message<'_> {
    /// Which of the ten it is.
    pub const fn kind(&self) -> MessageKind {
        match self {
            Self::Begin(_) => MessageKind::Begin,
            Self::Commit(_) => MessageKind::Commit,
            Self::Origin(_) => MessageKind::Origin,
            Self::Relation(_) => MessageKind::Relation,
            Self::Type(_) => MessageKind::Type,
            Self::Insert(_) => MessageKind::Insert,
            Self::Update(_) => MessageKind::Update,
            Self::Delete(_) => MessageKind::Delete,
            Self::Truncate(_) => MessageKind::Truncate,
            Self::Logical(_) => MessageKind::Logical,
        }
    }
}

macro_rules! kinds {
    ($($name:ident = $tag:literal, $text:literal;)*) => {
        /// The messages by name.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum MessageKind {
            $(#[doc = concat!("The ", $text, " message.")] $name,)*
        }

        impl MessageKind {
            /// All of them.
            pub const ALL: &[MessageKind] = &[$(Self::$name,)*];

            /// The kind that a body's first byte announces, if it is of protocol version 1.
            #[inline]
            pub const fn from_tag(tag: u8) -> Option<Self> {
                match tag {
                    $($tag => Some(Self::$name),)*
                    _ => None,
                }
            }

            /// The body's first byte.
            pub const fn tag(self) -> u8 {
                match self { $(Self::$name => $tag,)* }
            }
        }

        impl fmt::Display for MessageKind {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(match self { $(Self::$name => $text,)* })
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

/// A transaction begins. Everything up to the next [`Commit`] belongs to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Begin {
    /// Where its commit record starts; the [`Commit::commit_lsn`] to come.
    pub final_lsn: Lsn,
    /// When it committed, by the server's clock.
    pub commit_time: PgTimestamp,
    /// Its number.
    pub xid: Xid,
}

/// A transaction is complete.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Commit {
    /// Where the commit record starts. **Not** to be confirmed: the transaction would come again.
    pub commit_lsn: Lsn,
    /// Where the transaction ends, exactly as the server sent it: what may be confirmed.
    pub end: CommitEnd,
    /// When it committed, by the server's clock.
    pub commit_time: PgTimestamp,
}

/// The transaction was replicated to this server from somewhere else.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Origin<'a> {
    /// Its position in the log of the server it came from; nothing that could be confirmed here.
    pub commit_lsn: Lsn,
    /// The name given to `pg_replication_origin_create`.
    pub name: &'a str,
}

/// A type that is not built into Postgres.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Type<'a> {
    /// Its OID, as [`Column::type_oid`](crate::Column::type_oid) refers to it.
    pub oid: TypeOid,
    /// Its schema. The wire's empty string is given as what it stands for, `pg_catalog`.
    pub namespace: &'a str,
    /// Its name.
    pub name: &'a str,
}

/// A row was inserted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Insert<'a> {
    /// The table, as an earlier [`Relation`] announced it.
    pub relation: RelationId,
    /// The row.
    pub tuple: Tuple<'a>,
}

/// A row was updated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Update<'a> {
    /// The table, as an earlier [`Relation`] announced it.
    pub relation: RelationId,
    /// What it was before; absent where the replica identity did not change.
    pub old: Option<OldTuple<'a>>,
    /// What it is now.
    pub new: Tuple<'a>,
}

/// A row was deleted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Delete<'a> {
    /// The table, as an earlier [`Relation`] announced it.
    pub relation: RelationId,
    /// What it was.
    pub old: OldTuple<'a>,
}

/// Tables were emptied by one TRUNCATE.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Truncate<'a> {
    /// Whether it said CASCADE.
    pub cascade: bool,
    /// Whether it said RESTART IDENTITY.
    pub restart_identity: bool,
    ids: &'a [[u8; 4]],
}

impl<'a> Truncate<'a> {
    pub(crate) fn new(cascade: bool, restart_identity: bool, ids: &'a [u8]) -> Self {
        let (ids, _) = ids.as_chunks();
        Self {
            cascade,
            restart_identity,
            ids,
        }
    }

    /// The tables, as earlier [`Relation`]s announced them.
    pub fn relations(&self) -> Relations<'a> {
        Relations { ids: self.ids }
    }
}

impl fmt::Debug for Truncate<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Truncate")
            .field("cascade", &self.cascade)
            .field("restart_identity", &self.restart_identity)
            .field("relations", &self.relations())
            .finish()
    }
}

/// The tables of a [`Truncate`].
#[derive(Clone)]
pub struct Relations<'a> {
    ids: &'a [[u8; 4]],
}

impl Iterator for Relations<'_> {
    type Item = RelationId;

    fn next(&mut self) -> Option<RelationId> {
        let (first, rest) = self.ids.split_first()?;
        self.ids = rest;
        Some(RelationId::new(u32::from_be_bytes(*first)))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.ids.len(), Some(self.ids.len()))
    }
}

impl ExactSizeIterator for Relations<'_> {}
impl FusedIterator for Relations<'_> {}

impl fmt::Debug for Relations<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.clone()).finish()
    }
}

/// What `pg_logical_emit_message` wrote. Sent by Postgres 14 and later when asked with
/// `messages 'true'`.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct LogicalMessage<'a> {
    /// Whether it belongs to the transaction around it and was sent because that committed. If
    /// not, it stands outside of any, and its position is no commit.
    pub transactional: bool,
    /// Its position in the log; never to be confirmed.
    pub lsn: Lsn,
    /// The first text argument.
    pub prefix: &'a str,
    /// The second one, text or bytes.
    pub content: &'a [u8],
}

// Written by hand: content is data like a row's and never reaches a log.
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
