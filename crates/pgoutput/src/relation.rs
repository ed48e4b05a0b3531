use core::fmt;
use core::iter::FusedIterator;

use walrelay_lsn::{RelationId, TypeOid};

use crate::cursor::{Cursor, Read};
use crate::fault::Field;

/// The name and the columns of a table.
///
/// Sent before the first row of a table on a connection, and again when the table may have changed.
/// Rows contain values by position only; the latest Relation of the table names the columns.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Relation<'a> {
    /// The id by which rows refer to the table.
    pub id: RelationId,
    /// The table's schema; `pg_catalog` where the server sent the empty string.
    pub namespace: &'a str,
    /// The table's name.
    pub name: &'a str,
    /// The columns of the old row that UPDATE and DELETE contain.
    pub replica_identity: ReplicaIdentity,
    pub(crate) count: u16,
    /// Exactly `count` columns that [`Cursor::column`] has read without a fault.
    pub(crate) columns: &'a [u8],
}

impl<'a> Relation<'a> {
    /// Returns the published columns, in the order of the values in rows. Generated columns and
    /// columns outside the publication's column list are not included.
    pub const fn columns(&self) -> Columns<'a> {
        Columns {
            cursor: Cursor::new(self.columns),
            left: self.count,
        }
    }

    /// Returns the relation under another name.
    #[must_use]
    pub const fn renamed(self, namespace: &'a str, name: &'a str) -> Self {
        Self {
            namespace,
            name,
            ..self
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
    /// The column's name.
    pub name: &'a str,
    /// True if the column belongs to the replica identity. With [`ReplicaIdentity::Full`] all do.
    pub is_key: bool,
    /// The OID of the column's type.
    pub type_oid: TypeOid,
    /// `pg_attribute.atttypmod`, such as the length of a `varchar(n)` plus 4; -1 if there is none.
    pub type_modifier: i32,
}

impl<'a> Cursor<'a> {
    /// Decodes one column of a Relation message.
    pub(crate) fn column(&mut self) -> Read<Column<'a>> {
        Ok(Column {
            is_key: self.flags(Field::ColumnFlags, 1)? != 0,
            name: self.string(Field::ColumnName)?,
            type_oid: TypeOid::new(self.u32(Field::TypeOid)?),
            type_modifier: self.i32(Field::TypeModifier)?,
        })
    }
}

/// The columns of a [`Relation`]. Iterating cannot fail: [`decode`](crate::decode) validated them.
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

/// The columns of the old row that UPDATE and DELETE write to the WAL (`pg_class.relreplident`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ReplicaIdentity {
    /// `d`: the columns of the primary key, if there is one.
    Default,
    /// `n`: none.
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
