//! What the relay needs of a Postgres server besides the stream itself.
//!
//! - [`Wanted`]: what the configuration asks for; [`Facts`]: what the catalogs hold ([`inspect`]).
//! - [`plan`]: from both, what has to be created, or what is wrong. Pure: each case has a test.
//! - [`Position`], in a state file: how far a relay has come, noted before the slot is told.
//! - [`Retention`]: how much WAL the server keeps for the slot, looked at while it is read.
//! - [`script`]: the SQL that creates things, as `init --dry-run` prints and `migrations/` holds it.
//! - [`PostgresSource`]: the replication connection, with a control connection beside it.
//! - `CopySource`: the same over temporary copies of a slot, which stays where it is.
//! - [`SetupError`], [`PostgresError`]: what can be wrong, and what to do about it.

mod catalog;
mod columns;
mod copy;
mod error;
mod keeper;
mod looks;
mod plan;
mod prepare;
mod presets;
mod privileges;
mod readers;
mod retention;
pub mod script;
mod source;
mod state_file;

pub use catalog::{
    Facts, PublicationFacts, ServerFacts, SlotFacts, SlotReader, TableFacts, inspect,
};
pub(crate) use columns::describe;
pub(crate) use copy::{CopySource, Original};
pub(crate) use error::{GO_ON, PUBLISH};
pub use error::{Gap, PostgresError, SetupError};
pub use plan::{Action, Moment, Plan, Wanted, plan};
pub use prepare::{turn, turn_over};
pub(crate) use presets::remedy as columns_remedy;
pub(crate) use privileges::lacking_to_publish;
pub use retention::Retention;
pub(crate) use source::Stream;
pub use source::{PostgresSource, SourceOptions};
pub use state_file::{Position, StateFileError, read as read_state_file};
