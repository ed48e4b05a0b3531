//! The sections of the configuration that are about Postgres.

mod prune;
mod retention;
mod source;

pub use prune::{Prune, prune};
pub use retention::{MAX_WAL, Retention, RetentionKeys, retention};
pub use source::{ATTEMPTS, ERROR, SnapshotMode, SourceSection, source};
