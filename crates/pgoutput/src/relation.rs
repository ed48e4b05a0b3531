use core::fmt;
use core::iter::FusedIterator;

use walrelay_lsn::{RelationId, TypeOid};

use crate::cursor::Cursor;

/// What a table looks like from here on.
///
/// Sent before the first row of a table on a connection, and again when the table may have changed.
/// Rows carry values by position only, so the latest of these gives them their names.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Relation<'a> {
    /// How rows refer to it.
    pub id: RelationId,
    /// Its schema. The wire's empty string is given as what it stands for, `pg_catalog`.
    pub namespace: &'a str,
    /// Its name.
    pub name: &'a str,
    /// What UPDATE and DELETE tell of the old row.
    pub replica_identity: ReplicaIdentity,
    count: u16,
    columns: &'a [u8],
}

impl<'a> Relation<'a> {
    /// `columns` are exactly `count` columns that [`Cursor::column`] has read without complaint.
    pub(crate) const fn new(
        id: RelationId,
        namespace: &'a str,
        name: &'a str,
        replica_identity: ReplicaIdentity,
        count: u16,
        columns: &'a [u8],
    ) -> Self {
        Self {
            id,
            namespace,
            name,
            replica_identity,
            count,
            columns,
        }
    }

    /// The published columns in the order in which rows carry their values. Generated columns and
    /// those that the publication's column list leaves out are not among them.
    pub const fn columns(&self) -> Columns<'a> {
        Columns {
            cursor: Cursor::new(self.columns),
            left: self.count,
        }
    }
}

impl fmt::Debug for Relation<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Relation")
            .field("id", &self.id)
            .field("namespace", &self.namespace)
            .field("name", &self.name)
            .field("replica_identity", &self.replica_identity)
            .field("columns", &self.columns())
            .finish()
    }
}

/// A column of a [`Relation`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Column<'a> {
    /// Its name.
    pub name: &'a str,
    /// Whether it belongs to the replica identity. With [`ReplicaIdentity::Full`] all do.
    pub is_key: bool,
    /// Its type.
    pub type_oid: TypeOid,
    /// `pg_attribute.atttypmod`, such as the length of a `varchar(n)` plus 4; -1 where there is
    /// none.
    pub type_modifier: i32,
}

/// The columns of a [`Relation`]; cannot fail, for they were validated by [`decode`](crate::decode).
#[derive(Clone)]
pub struct Columns<'a> {
    cursor: Cursor<'a>,
    left: u16,
}

impl<'a> Iterator for Columns<'a> {
    type Item = Column<'a>;

    fn next(&mut self) -> Option<Column<'a>> {
        self.left = self.left.checked_sub(1)?;
        self.cursor.column().ok()
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.left.into(), Some(self.left.into()))
    }
}

impl ExactSizeIterator for Columns<'_> {}
impl FusedIterator for Columns<'_> {}

impl fmt::Debug for Columns<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.clone()).finish()
    }
}

/// What a table's UPDATE and DELETE write to the log about the old row (`pg_class.relreplident`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ReplicaIdentity {
    /// `d`: the columns of the primary key, if there is one.
    Default,
    /// `n`: nothing.
    Nothing,
    /// `f`: all columns.
    Full,
    /// `i`: the columns of a unique index.
    Index,
}

impl ReplicaIdentity {
    pub(crate) const fn from_tag(tag: u8) -> Option<Self> {
        match tag {
            b'd' => Some(Self::Default),
            b'n' => Some(Self::Nothing),
            b'f' => Some(Self::Full),
            b'i' => Some(Self::Index),
            _ => None,
        }
    }

    pub(crate) const fn tag(self) -> u8 {
        match self {
            Self::Default => b'd',
            Self::Nothing => b'n',
            Self::Full => b'f',
            Self::Index => b'i',
        }
    }
}
