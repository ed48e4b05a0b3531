//! The sections of the configuration that are about Postgres.

mod audit;
mod prune;
mod retention;
mod source;

pub use audit::{AuditKeys, AuditSettings, audit};
pub use prune::{Prune, prune};
pub use retention::{MAX_WAL, Retention, RetentionKeys, retention};
pub use source::{ATTEMPTS, ERROR, SnapshotMode, SourceSection, source};
