//! Outbox rows to broker records, by the rules of Debezium's outbox event router or by templates.
//!
//! # Contents
//! - [`Route`]: by which rules. [`Options`], [`TopicTemplate`]: Debezium's, which columns mean what,
//!   and where records go. [`Templates`]: one's own, and those of the [`Preset`]s, in the language of
//!   [`Template`]; [`Place`], [`Target`]: what a template is for.
//! - [`Router`]: compiles a plan per table as pgoutput announces it, then turns rows into [`Routed`]
//!   records. [`Role`]: what a column is needed for. [`Event`]: what a row's transaction says.
//! - [`PlanError`], [`TopicTemplateError`], [`TemplateError`], [`RouteError`]: what is wrong with a
//!   table, with a template, with a row.
//!
//! ```text
//!  Route ──▶ Plan (one per table): topic, key, value, headers, partition, timestamp
//!              each a Piece over slots, the columns that are needed
//!  row ──────▶ values by slot ──▶ Parts: bytes of the row, or of the scratch buffer ──▶ Routed
//! ```
//!
//! # What a row becomes
//! | part | made of | Debezium option |
//! |---|---|---|
//! | topic | the template with the routing column's text in it | `route.topic.replacement`, `route.by.field` |
//! | key | the key column's text; NULL is a null key, `''` an empty one | `table.field.event.key` |
//! | header `id` | the id column's text; NULL is a header that is present and null | `table.field.event.id` |
//! | value | the payload's text; NULL is a null value, a tombstone | `table.field.event.payload` |
//!
//! Partition and timestamp are left to the sink. Bytes are those of Kafka Connect's
//! `StringConverter` for key and value and of its `SimpleHeaderConverter` for the header.
//! `tests/golden` holds outcomes recorded from Debezium itself that they are compared with.
//!
//! # Which columns can be used
//! Those whose text in Postgres is what Debezium writes: character types, uuid, json, jsonb, xml,
//! inet, integers, oid, boolean (`true`/`false`) and user-defined types. Others (bytea, date and
//! time types, numeric, floats, arrays, …) are refused when the table is announced, not guessed at
//! row by row. Two differences from Debezium remain: columns of the type `name` are read, where
//! Debezium sees null; and a user-defined type, a domain or a composite too, is its text in
//! Postgres, whatever it is built on.
//!
//! # Invariants
//! - No I/O, no clock, no log. Nothing panics, whatever relation and tuple say.
//! - [`Router::route`] allocates nothing for a row that can be routed, once its scratch buffer has
//!   grown to the longest topic. A column value is looked at once and copied by nobody.
//! - What a row does not carry is never taken for null: a value left out of the message is an
//!   error.
//! - Errors name tables, columns and types, never values; nor does any `Debug`.
//!
//! ```
//! use walrelay_event_router::{Options, TopicTemplate};
//!
//! let options = Options {
//!     event_key: "customer_id".to_owned(),
//!     topic: "shop.${routedByValue}".parse()?,
//!     ..Options::default()
//! };
//! assert_eq!(options.event_id, "id");
//!
//! let error = "shop.${routedByVal}".parse::<TopicTemplate>().unwrap_err();
//! assert_eq!(
//!     error.to_string(),
//!     "topic template, character 6: unknown placeholder ${routedByVal}; there is ${routedByValue}"
//! );
//! # Ok::<(), walrelay_event_router::TopicTemplateError>(())
//! ```

#![forbid(unsafe_code)]

mod column_type;
mod columns;
mod debezium;
#[doc(hidden)]
pub mod fuzzing;
mod message;
mod part;
mod plan;
mod preset;
mod route;
mod route_error;
mod router;
mod template;
mod topic;

pub use debezium::{Options, TopicTemplate, TopicTemplateError};
pub use message::{MessageError, MessageHeaders, MessageMember, MessageRow, Messages};
pub use part::{Event, Unfit};
pub use plan::PlanError;
pub use preset::{Preset, PresetValue};
pub use route::{Role, Route};
pub use route_error::RouteError;
pub use router::{Routed, Router, Row, Salvage};
pub use template::{
    Lookups, Member, Object, Place, Scalar, Target, Template, TemplateError, TemplateProblem,
    Templates, ValueTemplate,
};
