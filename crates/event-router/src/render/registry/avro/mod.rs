//! JSON to Avro's binary encoding, by a schema.
//!
//! Source: "Apache Avro 1.12.0 Specification". The schema is read by the crate `apache_avro` and
//! compiled to nodes; a value is walked along them and written at once, without a tree of Avro's.
//!
//! | schema | JSON |
//! |---|---|
//! | null, boolean, string | null, a boolean, a string |
//! | int, long | a whole number in range, `5.0` included |
//! | float, double | a number; a float takes the nearest that it can hold |
//! | bytes, fixed | a string of which each character, at most U+00FF, is a byte |
//! | enum | a string that is one of the symbols |
//! | array, map | an array, an object |
//! | record | an object with members of the fields' names. One that is missing is the field's default, else null where the field takes null. A member that is no field is a schema_mismatch: it would be lost |
//! | union | null for the null branch; `{"branch": value}` as Avro's JSON encoding has it; or the value itself, for the first branch that takes it, bytes and fixed last |
//! | decimal | a number or a string with one, exactly: nothing is rounded |
//! | uuid | a string of its 36 characters |
//! | date | `2026-01-02`, or days since 1970 |
//! | time-millis, time-micros | `03:04:05.678`, or a count since midnight |
//! | timestamp-… | RFC 3339, or as Postgres prints a `timestamptz`; or a count since 1970. What is finer than the unit is cut off, towards the past |
//! | local-timestamp-… | the same without an offset |
//! | other logical types | as the type beneath |

mod compile;
mod encode;
mod time;

pub use compile::SchemaProblem;
pub(super) use compile::plan;
use encode::Mode;

use crate::plan::SchemaMismatch;

/// A schema, compiled. Nodes refer to each other by their places: schemas may be recursive.
pub(super) struct Plan {
    nodes: Vec<Node>,
    root: usize,
    /// The full name of a named schema.
    name: Option<Box<str>>,
}

enum Node {
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
enum Uuid {
    Text,
    Bytes,
    Fixed,
}

/// Units of time by their number in a second.
type Unit = i64;
const MILLIS: Unit = 1_000;
const MICROS: Unit = 1_000_000;
const NANOS: Unit = 1_000_000_000;

struct Branch {
    /// Its name in Avro's JSON encoding.
    tag: Box<str>,
    node: usize,
}

struct Field {
    name: Box<str>,
    node: usize,
    /// Replaces a missing member; encoded.
    default: Option<Box<[u8]>>,
}

impl Plan {
    pub(super) fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }

    /// Appends the encoded form of a JSON text.
    pub(super) fn encode(&self, json: &str, out: &mut Vec<u8>) -> Result<(), SchemaMismatch> {
        encode::encode(self, self.root, json, Mode::Event, out)
    }
}
