//! Encodes JSON in Avro's binary encoding, by a schema.
//!
//! Source: "Apache Avro 1.12.0 Specification". The crate `apache_avro` parses the schema, which is
//! compiled into nodes. A value is encoded while it is walked along the nodes, without a tree of
//! Avro values.
//!
//! | schema | JSON |
//! |---|---|
//! | null, boolean, string | null, a boolean, a string |
//! | int, long | an integer in range; `5.0` is one |
//! | float, double | a number; a float becomes the nearest that its type can represent |
//! | bytes, fixed | a string; each of its characters, at most U+00FF, is a byte |
//! | enum | a string that is one of the symbols |
//! | array, map | an array, an object |
//! | record | an object whose members have the fields' names. A missing member becomes the field's default, else null if the field accepts null. A member that is no field is a mismatch, as it would be lost |
//! | union | null for the null branch; `{"branch": value}` as in Avro's JSON encoding; or the value itself, for the first branch that accepts it, bytes and fixed last |
//! | decimal | a number, or a string that is one; never rounded |
//! | uuid | a string of the 36 characters of a UUID |
//! | date | `2026-01-02`, or days since 1970 |
//! | time-millis, time-micros | `03:04:05.678`, or a number of units since midnight |
//! | timestamp-… | a point in time by RFC 3339 or as Postgres prints a `timestamptz`, truncated to the unit towards the past; or a number of units since 1970 |
//! | local-timestamp-… | the same without an offset |
//! | other logical types | as the underlying type |

mod compile;
mod encode;
mod node;
mod time;

pub use compile::SchemaProblem;
pub(super) use compile::plan;
pub(super) use node::Plan;
