//! A schema, compiled.

/// A schema, compiled. Nodes refer to each other by their places: schemas may be recursive.
pub(in crate::render::registry) struct Plan {
    pub(super) nodes: Vec<Node>,
    pub(super) root: usize,
    /// The full name of a named schema.
    pub(super) name: Option<Box<str>>,
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
    /// The size is of a fixed one.
    Decimal {
        precision: usize,
        scale: usize,
        size: Option<usize>,
    },
    /// As a string, or as 16 bytes, with or without their count.
    Uuid(Uuid),
    Date,
    Time(Unit),
    /// Whether it is local: without an offset.
    Timestamp(Unit, bool),
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Uuid {
    Text,
    Bytes,
    Fixed,
}

/// Units of time by their number in a second.
pub(super) type Unit = i64;
pub(super) const MILLIS: Unit = 1_000;
pub(super) const MICROS: Unit = 1_000_000;
pub(super) const NANOS: Unit = 1_000_000_000;

pub(super) struct Branch {
    /// Its name in Avro's JSON encoding.
    pub(super) tag: Box<str>,
    pub(super) node: usize,
}

pub(super) struct Field {
    pub(super) name: Box<str>,
    pub(super) node: usize,
    /// Replaces a missing member; encoded.
    pub(super) default: Option<Box<[u8]>>,
}

impl Plan {
    pub(in crate::render::registry) fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }
}
