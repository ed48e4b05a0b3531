//! Dead letters of a sink that can be read back: what `walrelay dlq` and the relay need of them.
//!
//! [`walrelay_sink::dlq_headers`] describes the format of a dead letter. A relay writes dead
//! letters like any other record; a [`DeadLetterStore`] reads and resolves them.
//!
//! # A store of another sink
//! It implements [`DlqLog`] over its own records, which says in four calls how they are read and
//! written. The rest is shared:
//! - [`DlqEntry`] parses a record by its headers, [`RecordSender`] writes one with the sink itself.
//! - [`DlqReplayer`] is the [`DeadLetters`] of [`DeadLetterStore::open`]: which dead letters are
//!   open, in which order they are replayed, and how they are resolved.
//! - [`DlqFollower`] is the value of [`DeadLetterStore::watch`].
//! - [`OpenEvents`] is what [`DeadLetterStore::read_open`] returns the events of.

mod entry;
mod follower;
mod index;
mod interface;
mod log;
mod open;
mod replayer;
mod sender;
#[cfg(test)]
mod tests;

pub use entry::{DlqEntry, Resolution};
pub use follower::DlqFollower;
pub use interface::{
    Action, DeadLetterEvent, DeadLetterEvents, DeadLetterStore, DeadLetters, DlqAddress, DlqRecord,
    DlqRecordId, Epoch, Listed, NotRedriven, OutOfOrder, Outcome, ReadOpen, ReplayOptions,
    ReplaySummary, Step,
};
pub use log::{Answer, DlqLog, Unanswered};
pub use open::OpenEvents;
pub use replayer::DlqReplayer;
pub use sender::RecordSender;
