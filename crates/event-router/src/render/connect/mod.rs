//! Kafka Connect's data as Debezium makes it of Postgres' columns, and the converters that make
//! bytes of it.
//!
//! ```text
//!  type oid, modifier, facts ──▶ Column: a schema, and a codec that reads the column's text
//!  text ──▶ codec ──▶ Data ──▶ converter ──▶ bytes
//! ```
//!
//! What each does is that of Debezium 3.6.3 and Kafka Connect 4.3 on Java 17, held against
//! recordings of them.

mod array;
mod catalog;
mod codec;
mod column;
mod converter;
mod defaults;
mod hstore;
mod interval;
pub(crate) mod java;
pub(crate) mod json;
mod options;
pub(crate) mod schema;
pub(crate) mod temporal;
mod text;

pub use catalog::{ColumnFacts, TableFacts, TypeFacts, TypeKind};
pub(crate) use codec::{Clock, Codec};
pub(crate) use column::Column;
pub use converter::Converter;
pub use options::{
    BinaryHandling, DecimalHandling, Handling, HstoreHandling, IntervalHandling, JsonOptions,
    TimePrecision,
};
