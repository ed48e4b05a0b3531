use std::collections::HashMap;
use std::time::Duration;

use super::entry::DlqEntry;
use super::interface::DlqRecord;
use crate::topics::Position;
use walrelay_failure::Failure;
use walrelay_sink::{DeliveryError, Record};

/// The reason why the outcome of a record is unknown.
#[derive(Debug)]
pub enum Unanswered {
    /// No acknowledgement came in time. Contains the last error reported, if any.
    Late(Option<DeliveryError>),
    /// The sink could not be created.
    Sink(Failure),
}

/// The outcome of a record. The inner error is a refusal that does not pass by itself.
pub type Answer = Result<Result<(), DeliveryError>, Unanswered>;

/// The records among which a sink keeps the dead letters of one topic. All calls **block**.
pub trait DlqLog {
    /// Skips the records with an earlier timestamp (milliseconds since 1970-01-01 UTC).
    ///
    /// # Errors
    /// If no server answers, or the records may not be read.
    fn start_at(&mut self, timestamp_ms: i64) -> Result<(), Failure>;

    /// Passes each record to `each`: at first from the beginning, then from the end of the previous
    /// read, to the present end. In order within a partition, and a resolution after its dead
    /// letter or before it. A read after an error continues behind the last record that was passed.
    ///
    /// # Errors
    /// If no server answers, the records may not be read, or those that were read are not there
    /// any more.
    fn read(&mut self, each: &mut dyn FnMut(DlqEntry)) -> Result<(), Failure>;

    /// Returns the dead letters at these positions, without those that are gone since. Does not
    /// change where [`read`](Self::read) continues. All of them are in memory, so a bounded number
    /// is requested.
    ///
    /// # Errors
    /// If no server answers, or the records may not be read.
    fn fetch(&mut self, positions: &[Position]) -> Result<HashMap<Position, DlqRecord>, Failure>;

    /// Writes a record, a dead letter's own or a resolution, and waits for its acknowledgement for
    /// about `patience` at most: see [`RecordSender::send`](super::RecordSender::send). A resolution names the partition of its
    /// dead letter; a sink without partitions ignores it.
    ///
    /// # Errors
    /// If the outcome is unknown.
    fn send(&mut self, record: &Record<'_>, patience: Duration) -> Answer;
}
