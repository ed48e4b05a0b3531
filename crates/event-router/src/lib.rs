//! Outbox rows to broker records, by the rules of Debezium's outbox event router or by templates.
//!
//! A [`Router`] compiles a plan for each table that pgoutput announces, then turns rows into [`Routed`]
//! records. A [`Route`] has the rules: Debezium's [`Options`], or [`Templates`], which a [`Preset`] has
//! for a common table. [`CloudEvents`] and a [`WireFormat`] change the record further.
//! [`PlanError`] is about a table, [`RouteError`] about a row.
//!
//! ```text
//!  Route ──▶ Plan (one per table): topic, key, value, headers, partition, timestamp
//!              each a Piece over slots, the columns that are needed
//!  row ──────▶ values by slot ──▶ Parts: bytes of the row, or of the scratch buffer ──▶ Routed
//! ```
//!
//! # Modules
//! A module uses only modules above it in this table.
//!
//! | module | contents |
//! |---|---|
//! | `value` | bytes of a part, values of a row, JSON, decimals, dates and times |
//! | `plan` | the plan of a table: parts, columns, errors |
//! | `render::connect` | Kafka Connect's data and converters, as Debezium makes it of columns |
//! | `render::debezium` | the rules of Debezium's outbox event router |
//! | `render::template` | templates over columns, and presets |
//! | `render::cloudevents`, `render::registry` | CloudEvents; values in a schema registry's wire format |
//! | `route`, `router` | the choice of rules; rows to records |
//! | `message` | events of `pg_logical_emit_message`, as rows |
//!
//! # Records by Debezium's defaults
//! | part | made of | Debezium option |
//! |---|---|---|
//! | topic | the template with the routing column's text in it | `route.topic.replacement`, `route.by.field` |
//! | key | the key column's text; NULL is a null key, `''` an empty one | `table.field.event.key` |
//! | header `id` | the id column's text; NULL is a header that is present and null | `table.field.event.id` |
//! | value | the payload's text; NULL is a null value, a tombstone | `table.field.event.payload` |
//!
//! Without further options the sink chooses partition and timestamp. `tests/golden` compares records with
//! those of Debezium.
//!
//! A column is a Kafka Connect value with Debezium's schema, and a [`Converter`] writes the value.
//! pgoutput does not send NOT NULL, defaults and types made by users: [`Router::describe`] takes them as
//! [`TableFacts`]. `docs/MIGRATING-FROM-DEBEZIUM.md` lists the intended differences from Debezium.
//!
//! # Invariants
//! - No I/O, no clock, no log. No relation and no tuple makes the crate panic.
//! - By Debezium's defaults and by the presets, [`Router::route`] allocates nothing for a row, once its
//!   buffers have grown. It does not copy unchanged bytes of the row.
//! - A value that the row leaves out is an error, not null.
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
pub use router::{PartialRow, Routed, Router, Row, Selection, SelectionError, TopicChange};
pub use value::{Event, ValueError};
