//! Kafka Connect's schemas and values, as Debezium makes them from the columns of Postgres, and the
//! converters that turn them into bytes.
//!
//! ```text
//!  type oid, modifier, facts ──▶ Column: a schema, and a codec that reads the column's text
//!  text ──▶ codec ──▶ Data ──▶ converter ──▶ bytes
//! ```
//!
//! The behaviour is that of Debezium 3.6.3 and Kafka Connect 4.3 on Java 17. Tests compare it with
//! recordings of them.

pub(crate) mod array;
mod catalog;
mod codec;
mod column;
mod converter;
mod defaults;
pub(crate) mod hstore;
mod interval;
pub(crate) mod java;
pub(crate) mod json;
mod options;
pub(crate) mod schema;
pub(crate) mod temporal;
mod text;

pub use catalog::{ColumnFacts, TableFacts, TypeFacts, TypeKind};
pub(crate) use codec::{Codec, TimeEncoding};
pub(crate) use column::{Column, FIRST_USER_TYPE};
pub use converter::Converter;
pub use options::{
    BinaryHandling, DecimalHandling, Handling, HstoreHandling, IntervalHandling, JsonOptions,
    TimePrecision,
};
