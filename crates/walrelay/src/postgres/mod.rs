//! What the relay needs of a Postgres server besides the stream itself.
//!
//! A line uses only lines below it:
//!
//! - `source`: the replication connection with a control connection beside it ([`PostgresSource`]), and the
//!   same over temporary copies of a slot ([`CopySource`]).
//! - `setup`: from [`Wanted`] and [`Facts`], what has to be created or what is wrong ([`plan`]; pure, each
//!   case has a test), and carrying it out.
//! - `snapshot`: the rows of a moment as a stream.
//! - `deadline`: how long the server may take to answer.
//! - `error`: what can be wrong, and what to do about it.
//! - `state_file`: how far a relay has come, noted before the slot is told. `retention`: how much WAL the
//!   server keeps for the slot.
//! - `bookmarks`: kept slots that replays are made from.
//! - `prune`: which rows are deleted; `partitions`: or which partitions are dropped, and created; `mark`: which rows are
//!   marked as sent; `confirmed`: the rule by which a row's commit is confirmed.
//! - `catalog`: the queries of the catalogs. `script`: the SQL that creates things, as `init --dry-run`
//!   prints and `migrations/` holds it. `presets`: which preset fits a table.

mod bookmarks;
mod catalog;
mod confirmed;
mod deadline;
mod error;
mod mark;
mod partitions;
mod presets;
mod prune;
mod retention;
pub(crate) mod script;
mod setup;
mod snapshot;
mod source;
mod state_file;

pub(crate) use bookmarks::{
    Bookmark, ROLLING, advance_slot, bookmarks, bookmarks_among, copy_slot,
    slot_of as bookmark_slot,
};
pub(crate) use catalog::{
    Facts, PublicationFacts, PublishedOperations, PublishedTable, Sample, SlotRow, SlotStanding,
    Survey, TableFacts, TableSurvey, Wanted, describe, inspect, lacking_to_publish, sample,
    slot_standing, slots, survey,
};
#[cfg(test)]
pub(crate) use catalog::{ServerFacts, SlotFacts, Transaction};
pub(crate) use confirmed::ConfirmedError;
pub(crate) use error::{GO_ON, PUBLISH, PostgresError, SetupError};
pub(crate) use mark::{MarkError, Marking};
pub(crate) use partitions::Change;
pub(crate) use presets::remedy as columns_remedy;
pub(crate) use prune::{PruneError, Pruning, recent_rows};
pub(crate) use retention::Retention;
pub(crate) use setup::{
    Action, Moment, Plan, carries_columns, carries_inserts, carries_tables, failover_known,
    lock_setup, no_publication, plan, slot_fits, table_fits, wal_level,
};
pub(crate) use snapshot::{Plan as SnapshotPlan, Selection, SnapshotProgress, expected_rows};
pub(crate) use source::{
    CopySource, Original, PostgresSource, Range, RangeSource, Reading, ResendSource, SourceOptions,
    first_commit,
};
pub(crate) use state_file::read as read_state_file;

/// Columns that hold the time of an event in the presets' tables, the first that is there.
const TIMES: [&str; 2] = ["occurred_at", "created_at"];
