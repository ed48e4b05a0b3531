//! What the relay needs of a Postgres server besides the stream itself.
//!
//! - [`Wanted`]: what the configuration asks for; [`Facts`]: what the catalogs hold ([`inspect`]).
//! - [`plan`]: from both, what has to be created, or what is wrong. Pure: each case has a test.
//! - [`script`]: the SQL that creates things, as `init --dry-run` prints and `migrations/` holds it.
//! - [`PostgresSource`]: the replication connection, with a control connection beside it.
//! - [`SetupError`], [`PostgresError`]: what can be wrong, and what to do about it.

mod catalog;
mod error;
mod plan;
pub mod script;
mod source;

pub use catalog::{Facts, PublicationFacts, ServerFacts, SlotFacts, TableFacts, inspect};
pub use error::{PostgresError, SetupError};
pub use plan::{Action, Plan, Wanted, plan};
pub use source::PostgresSource;
