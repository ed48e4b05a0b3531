//! The nodes of a compiled Avro schema.

/// A compiled Avro schema. Nodes refer to each other by index, as schemas may be recursive.
pub(in crate::render::registry) struct Plan {
    pub(super) nodes: Vec<Node>,
    pub(super) root: usize,
    /// Full name of the schema, if it is a named one.
    pub(in crate::render::registry) name: Option<Box<str>>,
}

pub(super) enum Node {
    Null,
    Boolean,
    Int,
    Long,
    Float,
    Double,
    Bytes,
    String,
    Fixed(usize),
    Enum(Box<[Box<str>]>),
    Array(usize),
    Map(usize),
    Union(Box<[Branch]>),
    Record(Box<[Field]>),
    /// `size` is that of a decimal over fixed, in bytes.
    Decimal {
        precision: usize,
        scale: usize,
        size: Option<usize>,
    },
    /// The underlying type of the UUID.
    Uuid(Uuid),
    Date,
    Time(Unit),
    /// The unit, and whether the timestamp is local, without an offset.
    Timestamp(Unit, bool),
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Uuid {
    Text,
    Bytes,
    Fixed,
}

/// A unit of time, as the number of units in a second.
pub(super) type Unit = i64;
pub(super) const MILLIS: Unit = 1_000;
pub(super) const MICROS: Unit = 1_000_000;
pub(super) const NANOS: Unit = 1_000_000_000;

pub(super) struct Branch {
    /// Name of the branch in Avro's JSON encoding.
    pub(super) tag: Box<str>,
    pub(super) node: usize,
}

pub(super) struct Field {
    pub(super) name: Box<str>,
    pub(super) node: usize,
    /// The encoded default, which replaces a missing member.
    pub(super) default: Option<Box<[u8]>>,
}
