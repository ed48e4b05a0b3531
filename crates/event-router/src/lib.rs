//! Turns outbox rows into broker records, by the rules of Debezium's outbox event router or by
//! templates.
//!
//! A [`Router`] compiles a plan for each table that pgoutput announces, then turns rows into
//! [`Routed`] records. A [`Route`] has the rules: Debezium's [`Options`], or [`Templates`]. A
//! [`Preset`] has the templates for a common table. [`CloudEvents`] and a [`WireFormat`] change the
//! record further. A [`PlanError`] concerns a table, a [`RouteError`] one row.
//!
//! ```text
//!  Route ──▶ Plan (one per table): topic, key, value, headers, partition, timestamp
//!              each a Piece over the columns that the plan needs, by index
//!  row ──────▶ values by index ──▶ Parts: bytes of the row, or of the scratch buffer ──▶ Routed
//! ```
//!
//! # Modules
//! A module uses only modules above it in this table.
//!
//! | module | contents |
//! |---|---|
//! | `value` | parts of a record, values of a row, JSON, decimals, dates and times |
//! | `plan` | the plan of a table: parts, columns, errors |
//! | `render::connect` | Kafka Connect's schemas, values and converters, as Debezium uses them |
//! | `render::debezium` | the rules of Debezium's outbox event router |
//! | `render::template` | templates over columns, and presets |
//! | `render::cloudevents`, `render::registry` | CloudEvents; values in a schema registry's wire format |
//! | `headers` | headers whose names are in the row |
//! | `route`, `router` | the choice of rules; turns rows into records |
//! | `message` | events of `pg_logical_emit_message`, as rows |
//!
//! # Records by Debezium's defaults
//! | part | made of | Debezium option |
//! |---|---|---|
//! | topic | the template, with the routing column's text inserted | `route.topic.replacement`, `route.by.field` |
//! | key | the key column's text; NULL is a null key, `''` an empty one | `table.field.event.key` |
//! | header `id` | the id column's text; NULL is a null header | `table.field.event.id` |
//! | value | the payload's text; NULL is a null value, a tombstone | `table.field.event.payload` |
//!
//! Without further options the sink chooses the partition, and the timestamp is the time of
//! production. `tests/golden` compares records with Debezium's.
//!
//! A column becomes a value of Kafka Connect with Debezium's schema, and a [`Converter`] writes the
//! value. pgoutput sends no NOT NULL, no defaults and no definitions of user-defined types:
//! [`Router::describe`] takes them as [`TableFacts`]. `docs/start/debezium.md` lists the
//! intended differences from Debezium.
//!
//! # Invariants
//! - No I/O, no clock, no log. No relation and no tuple makes the crate panic.
//! - By Debezium's defaults and by the presets, [`Router::route`] allocates nothing for a row once
//!   its buffers have grown. Unchanged bytes of the row are not copied.
//! - A value that the row leaves out is an error, not null.
//! - Errors contain names of tables, columns and types, but no values. Neither does any `Debug`.
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
mod headers;
mod message;
mod plan;
mod render;
mod route;
mod router;
mod value;

pub use headers::HeadersFrom;
pub use message::{
    BatchEvent, BatchPlace, MessageError, MessageHeaders, MessageMember, MessageRow, Messages,
};
pub use plan::{
    ColumnNames, PlanError, Role, RouteError, SchemaMismatch, SchemaMismatchAt, Target,
};
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
    Address, AddressPart, Lookups, Member, Object, Preset, PresetValue, Template, TemplateError,
    TemplateProblem, TemplateTarget, Templates, Tokens, ValueTemplate,
};
pub use route::Route;
pub use router::{PartialRow, Routed, Router, Row, Selection, SelectionError, TopicChange};
pub use value::time::epoch_micros;
pub use value::{Event, ValueError};
