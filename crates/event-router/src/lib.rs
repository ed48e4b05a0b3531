//! Outbox rows to broker records, by the rules of Debezium's outbox event router or by templates.
//!
//! # Contents
//! - [`Route`]: by which rules. [`Options`], [`TopicTemplate`]: Debezium's, which columns mean what,
//!   and where records go. [`Templates`]: one's own, and those of the [`Preset`]s, in the language of
//!   [`Template`]; [`Place`], [`Target`]: what a template is for.
//! - [`Router`]: compiles a plan per table as pgoutput announces it, then turns rows into [`Routed`]
//!   records. [`Role`]: what a column is needed for. [`Event`]: what a row's transaction says.
//! - [`WireFormat`]: values in the wire format of a schema registry; [`ValueSchema`], which the router
//!   is told of. [`SchemaMismatch`]: why a value does not fit one.
//! - [`PlanError`], [`TopicTemplateError`], [`TemplateError`], [`RouteError`]: what is wrong with a
//!   table, with a template, with a row.
//!
//! ```text
//!  Route ──▶ Plan (one per table): topic, key, value, headers, partition, timestamp
//!              each a Piece over slots, the columns that are needed
//!  row ──────▶ values by slot ──▶ Parts: bytes of the row, or of the scratch buffer ──▶ Routed
//! ```
//!
//! # Rooms
//! A room uses only rooms above it in this table.
//!
//! | room | what it is |
//! |---|---|
//! | `value` | bytes of a part, values of a row, JSON, decimals, dates and times |
//! | `plan` | the plan of a table: parts, columns, what is wrong with a table or a row |
//! | `render::connect` | Kafka Connect's data and converters, as Debezium makes it of columns |
//! | `render::debezium` | the rules of Debezium's outbox event router |
//! | `render::template` | templates over columns, and presets |
//! | `render::cloudevents`, `render::registry` | CloudEvents; values in a schema registry's wire format |
//! | `route`, `router` | the choice of rules; rows to records |
//! | `message` | events of `pg_logical_emit_message`, as rows |
//!
//! # What a row becomes, by Debezium's defaults
//! | part | made of | Debezium option |
//! |---|---|---|
//! | topic | the template with the routing column's text in it | `route.topic.replacement`, `route.by.field` |
//! | key | the key column's text; NULL is a null key, `''` an empty one | `table.field.event.key` |
//! | header `id` | the id column's text; NULL is a header that is present and null | `table.field.event.id` |
//! | value | the payload's text; NULL is a null value, a tombstone | `table.field.event.payload` |
//!
//! Partition and timestamp are left to the sink unless an option names columns for them. Bytes are those of Kafka Connect's
//! `StringConverter` for key and value and of its `SimpleHeaderConverter` for the header.
//! `tests/golden` holds outcomes recorded from Debezium itself that they are compared with.
//!
//! # What Debezium's columns become
//! A column is a Kafka Connect value with the schema that Debezium gives it, and a [`Converter`]
//! writes that. pgoutput does not say whether a column is NOT NULL, what its default is or what a
//! type made by a user is: [`TableFacts`], given to [`Router::describe`] before the table is
//! announced, do. Differences from Debezium that are meant are listed in
//! `docs/MIGRATING-FROM-DEBEZIUM.md`.
//!
//! # Invariants
//! - No I/O, no clock, no log. Nothing panics, whatever relation and tuple say.
//! - By the defaults, and by the presets, [`Router::route`] allocates nothing for a row that can be
//!   routed, once its buffers have grown. What stands in the row as it is to be sent is not copied.
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

#[doc(hidden)]
pub mod fuzzing;
mod message;
mod plan;
mod render;
mod route;
mod router;
mod value;

pub use message::{MessageError, MessageHeaders, MessageMember, MessageRow, Messages};
pub use plan::{PlanError, Role, RouteError, SchemaMismatch, SchemaMismatchAt, Target};
pub use render::cloudevents::{CloudEventMode, CloudEvents};
pub use render::connect::{
    BinaryHandling, ColumnFacts, Converter, DecimalHandling, Handling, HstoreHandling,
    IntervalHandling, JsonOptions, TableFacts, TimePrecision, TypeFacts, TypeKind,
};
pub use render::debezium::{
    Additional, Expand, JavaRegexError, NameAdjustment, Options, Placement, PlacementError,
    RegexProblem, TopicTemplate, TopicTemplateError,
};
pub use render::registry::{SchemaProblem, SubjectNames, ValueFormat, ValueSchema, WireFormat};
pub use render::template::{
    Lookups, Member, Object, Place, Preset, PresetValue, Scalar, Template, TemplateError,
    TemplateProblem, Templates, ValueTemplate,
};
pub use route::Route;
pub use router::{PartialRow, Routed, Router, Row};
pub use value::{Event, ValueError};
