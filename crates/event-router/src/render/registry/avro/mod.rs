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
mod node;
mod time;

pub use compile::SchemaProblem;
pub(super) use compile::plan;
pub(super) use node::Plan;
