//! Everything that the relay does on a Postgres server: catalogs, setup, replication, changes of
//! rows.
//!
//! A module uses only modules below it in this list:
//!
//! - `source`: the replication connection with a control connection alongside it ([`PostgresSource`]),
//!   and the same over temporary copies of a slot ([`CopySource`]).
//! - `setup`: compares [`Wanted`] with [`Facts`] and plans what to create ([`plan`]; pure, each
//!   case has a test), then carries out the plan.
//! - `snapshot`: the rows of one moment as a stream.
//! - `deadline`: timeouts of the server's answers.
//! - `error`: errors with their remedies. `failure`: their words for the operator. `foreign_tables`: what one of them
//!   says of a publication.
//! - `state_file`: the acknowledged position on disk, written before the position is confirmed to
//!   the slot. `retention`: warnings about the WAL that the server keeps for the slot.
//! - `backlog`: the rows that wait in a slot, and their tables.
//! - `bookmarks`: kept slots that replays read. [`last_error`]: the error with which the last run ended.
//!   [`run_note`]: what a run notes for the next one. `kept`: where both are stored.
//! - `prune` deletes sent rows, and drops and creates partitions, by `sent_rows`: the account of
//!   acknowledged rows, and the policy that decides from it (pure, each case has a test). `mark` marks rows as
//!   sent, with `sent_keys`: those of the relay's acknowledged records, and `unmarked`: the table of those that
//!   could not be marked yet; [`dead_rows`] marks rows of dead letters. `rollback` finds events of a slot that no row
//!   holds. `confirmation` waits until slots have confirmed what a snapshot sees, `dead_letters` are the rows of
//!   events that were not sent. `row_facts`: what the tables show of an event. `unseen`: rows without evidence that
//!   they were sent. `position_note`: the note of a slot's position. `publication_note`: what the publication lets
//!   through, and its note.
//! - [`moves`]: a move to another server: the fence at the outbox, and the record of it.
//! - [`sections`]: `[source]`, `[prune]` and `[retention]` of the configuration.
//! - `assigned`: the columns that `mark_sent` sets.
//! - `outbox_stats`: sizes and ages of the outbox tables, for metrics.
//! - `catalog`: the queries of the catalogs. `outbox_table`: the table that `init` creates, with
//!   `preset_tables`: the columns of each preset's table. `script`:
//!   the other SQL that creates objects, as `init --dry-run` prints it and `migrations/` holds it.
//!   `presets`: the preset that fits a table. [`table_name`]: names as SQL writes them.

mod assigned;
mod audit;
mod backlog;
mod bookmarks;
mod carried;
mod catalog;
mod confirmation;
mod dead_letter_rows;
mod dead_letters;
pub mod dead_rows;
mod deadline;
pub mod epoch;
mod error;
mod failure;
mod foreign_tables;
mod kept;
pub mod last_error;
mod mark;
mod mark_error;
mod mark_rights;
pub mod moves;
mod outbox_stats;
mod outbox_table;
pub mod position_note;
mod preset_tables;
mod presets;
mod prune;
mod publication_note;
mod retention;
mod rollback;
mod row_facts;
pub mod run_note;
pub mod script;
pub mod sections;
mod sent_keys;
mod sent_rows;
mod setup;
mod snapshot;
mod source;
mod state_file;
mod state_version;
pub mod table_name;
pub mod unmarked;
mod unseen;

pub use assigned::assigned_columns;
pub use audit::{Audit, AuditError, AuditWatch, UnseenRows};
pub use backlog::{WAL_LIMIT, Waiting, has_events, waiting};
pub use bookmarks::{
    Bookmark, KeptBy, NOT_WRITABLE, ROLLING, advance_slot, bookmarks, bookmarks_among, copy_slot,
    is_kept, read_notes, slot_of as bookmark_slot, write_notes,
};
pub use catalog::{
    AccountSettings, ColumnFacts, Facts, Generated, LogicalDecoding, Poller, PublicationEntry,
    PublicationFacts, PublishedOperations, PublishedTable, RetainedWal, RunningReplay, Sample,
    Selection, ServerFacts, SlotReader, SlotRow, SlotStanding, Survey, TableFacts, TableLock,
    TableSurvey, Transaction, Wanted, describe, inspect, lacking_to_publish, names_standby, place,
    sample, server_clock, slot_reader, slot_standing, slots, survey, table_locks,
};
pub use confirmation::{ConfirmedError, end_of_commits};
pub use dead_letter_rows::DeadLetterRows;
pub use dead_letters::{DeadLetters, DeadLettersError};
pub use dead_rows::{DeadMarking, KeysElsewhere, LostKeys, keys_elsewhere, lost_keys};
pub use error::{
    GO_ON, Gap, GeneratedColumn, PUBLISH, PostgresError, PublicationSetupError, RowError,
    ServerSetupError, SetupError, SlotSetupError, TableSetupError,
};
pub use failure::{explain, log_failure};
pub use mark::{Marking, SentMarker};
pub use mark_error::MarkError;
pub use mark_rights::{MissingRight, hidden_rows, missing_mark_rights};
pub use outbox_stats::{Oldest, OutboxStats, OutboxWatch, outbox_stats};
pub use outbox_table::OutboxTable;
pub use preset_tables::usual_table;
pub use presets::{OutboxCandidate, candidates as outbox_candidates, remedy as columns_remedy};
pub use prune::{
    Change, Evidence, ExtraRows, PruneError, PrunePlan, Pruning, UnaccountedRows, age_columns,
    recent_rows,
};
pub use publication_note::check_noted;
pub use rollback::{
    EventRows, EventsWithoutRow, RollbackError, UnconfirmedRows, check_events_have_rows,
};
pub use row_facts::{KnownRow, Look, find_rows, is_indexed};
pub use sent_rows::account;
pub use sent_rows::compare::NoAccount;
pub use sent_rows::policy::Difference;
pub use sent_rows::unaccounted::{DifferenceKind, Unaccounted};
pub use setup::{
    Action, Moment, ON_STANDBY, Plan, SlotWait, carries_columns, carries_inserts, carries_tables,
    failover_known, lock_setup, no_publication, plan, sends_columns, slot_fits, slots_needed,
    state_version_known, table_fits, tells_age, unmark, wait_for_lock, wal_level,
};
pub use snapshot::{
    Plan as SnapshotPlan, SnapshotProgress, Unread, expected_rows, record as snapshot_record,
    unread,
};
pub use source::{
    CopySource, HeldSlot, Original, PostgresSource, Range, RangeSource, Reading, ResendSource,
    SourceFindings, SourceOptions, first_commit,
};
pub use state_file::{
    OTHER_CLUSTER, Position, StateFileError, check_writable as check_state_file,
    read as read_state_file, replace_file, with_checksum, without_checksum,
};
pub use unseen::{RowSpan, UnseenError, UnseenRow, UnseenTable};

/// Columns of the presets' tables that hold the time of an event. The first that exists is used.
const TIMES: [&str; 2] = ["occurred_at", "created_at"];
