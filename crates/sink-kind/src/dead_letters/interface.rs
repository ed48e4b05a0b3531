use std::any::Any;
use std::collections::HashMap;
use std::error::Error;
use std::fmt;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use crate::topics::Position;
use walrelay_failure::Failure;
use walrelay_sink::{DeliveryError, EventOrigin, EventPosition, Parking, dlq_headers};

/// A dead letter: an event that could not be delivered. Format: [`dlq_headers`].
#[derive(Clone, PartialEq, Eq)]
pub struct DlqRecord {
    /// The event's position in the slot.
    pub id: EventPosition,
    /// The replication slot that the event was read from.
    pub slot: String,
    /// The system identifier of the cluster that the event was read from; `None` if an earlier version wrote the dead
    /// letter.
    pub system: Option<String>,
    /// The name of a [`Poison`](walrelay_sink::Poison), or [`dlq_headers::PARKED`].
    pub class: String,
    /// The cause, for an operator.
    pub cause: Option<String>,
    /// The transaction's number.
    pub xid: Option<u32>,
    /// The transaction's commit time, RFC 3339.
    pub commit_time: Option<String>,
    /// `schema.table`.
    pub table: Option<String>,
    /// The event's id; `None` if it is NULL or unknown.
    pub event_id: Option<Vec<u8>>,
    /// The event's topic; `None` if it has none.
    pub topic: Option<String>,
    /// The event's partition; `None` if the key decides.
    pub partition: Option<i32>,
    /// The record's timestamp in milliseconds; `None` if it has none.
    pub timestamp_ms: Option<i64>,
    /// The value's size in bytes, if it was left out of the dead letter.
    pub omitted_bytes: Option<u64>,
    /// True if key, value and headers are those of the event, byte for byte. A dead letter without that
    /// is open, and cannot be redriven.
    pub is_exact: bool,
    /// Why the event's value cannot be read out of the dead letter's own, whose template was `[poison] value`. `value` is
    /// `None` then. Such a dead letter is open, and cannot be redriven.
    pub unrestored: Option<&'static str>,
    /// The record's key.
    pub key: Option<Vec<u8>>,
    /// The record's value; `None` is null, or left out.
    pub value: Option<Vec<u8>>,
    /// The original record's headers, in their order.
    pub headers: Vec<(String, Option<Vec<u8>>)>,
    /// The position of the dead letter itself.
    pub position: Position,
}

impl DlqRecord {
    /// Bytes of key, value and headers.
    pub fn payload_bytes(&self) -> usize {
        let length = |bytes: &Option<Vec<u8>>| bytes.as_ref().map_or(0, Vec::len);
        let headers: usize = self.headers.iter().map(|(n, v)| n.len() + length(v)).sum();
        length(&self.key) + length(&self.value) + headers
    }
}

// Not derived: key, value and headers are values of rows.
impl fmt::Debug for DlqRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DlqRecord")
            .field("slot", &self.slot)
            .field("id", &self.id)
            .field("class", &self.class)
            .field("table", &self.table)
            .field("topic", &self.topic)
            .field("position", &self.position)
            .field("key_bytes", &self.key.as_ref().map(Vec::len))
            .field("value_bytes", &self.value.as_ref().map(Vec::len))
            .field("headers", &self.headers.len())
            .finish_non_exhaustive()
    }
}

/// The way in which a dead letter was resolved.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// The record was sent to its topic.
    Redriven,
    /// The record is not to be sent.
    Dropped,
}

impl Outcome {
    /// Returns the value of the header [`dlq_headers::RESOLUTION`].
    pub const fn name(self) -> &'static str {
        match self {
            Self::Redriven => dlq_headers::REDRIVEN,
            Self::Dropped => dlq_headers::DROPPED,
        }
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Identifies a dead letter. Ordered by the slot's name, then by the event's position in the WAL. Clusters may have slots
/// of one name, and events at one position.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DlqRecordId {
    /// The replication slot.
    pub slot: Arc<str>,
    /// The event of the slot.
    pub id: EventPosition,
    /// The cluster of the slot; `None` if the dead letter names none.
    pub system: Option<Arc<str>>,
}

/// Slot, LSN and row, separated by spaces.
impl fmt::Display for DlqRecordId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.slot, self.id)
    }
}

/// A selected dead letter whose scope has an earlier open one that is not selected.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OutOfOrder {
    /// The selected dead letter.
    pub dead_letter: DlqRecordId,
    /// The earlier open dead letter.
    pub behind: DlqRecordId,
}

/// A dead letter that was read, without its content.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listed {
    /// The id of the dead letter.
    pub name: DlqRecordId,
    /// The position of its first copy.
    pub position: Position,
    /// How it was resolved; `None`: it is open.
    pub outcome: Option<Outcome>,
}

/// The action on dead letters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Send the records to their topics, or to another one.
    Redrive {
        /// The topic to send to in place of the dead letters' own.
        topic: Option<String>,
        /// Also redrive the dead letters parked behind redriven ones, including those that a
        /// running relay adds meanwhile.
        follow: bool,
    },
    /// Resolve the dead letters without sending them.
    Drop,
}

/// The options of [`DeadLetters::carry_out`].
#[derive(Debug, Clone)]
pub struct ReplayOptions {
    /// The action on the dead letters.
    pub action: Action,
    /// The most dead letters to replay.
    pub limit: Option<usize>,
    /// How long an acknowledgement may take. Should exceed the time after which the
    /// sink reports a missing topic.
    pub patience: Duration,
}

impl ReplayOptions {
    /// Returns true if parked dead letters follow redriven ones.
    pub fn follows(&self) -> bool {
        matches!(self.action, Action::Redrive { follow: true, .. })
    }
}

/// The reason why a dead letter stays open. The replay continues with the others.
#[derive(Debug, thiserror::Error)]
pub enum NotRedriven {
    /// The value was left out of the dead letter.
    #[error("its value of {bytes} bytes was left out of the dead letter")]
    Omitted {
        /// The value's size in bytes.
        bytes: u64,
    },
    /// The dead letter does not have all of its event, so another event would be sent.
    #[error("what it has of its event may differ from the event")]
    Inexact,
    /// The event's value cannot be read out of the dead letter's.
    #[error("the event's value cannot be read out of the dead letter: {0}")]
    Unrestored(&'static str),
    /// The event has no topic.
    #[error("it has no topic to go to")]
    NoTopic,
    /// The server or the client refuses the record.
    #[error(transparent)]
    Refused(DeliveryError),
    /// Retention removed the dead letter after it was indexed.
    #[error("it is not in the topic of dead letters any more")]
    Gone,
    /// The topic refused another record before, for a reason that concerns the whole topic.
    #[error("its topic accepts nothing: {0}")]
    TopicRefuses(Arc<str>),
}

/// The result for one dead letter.
#[derive(Debug)]
pub enum Step<'a> {
    /// The dead letter was replayed, and its resolution is written.
    Done(&'a DlqRecord),
    /// The dead letter stays open.
    Failed(&'a DlqRecordId, Option<&'a DlqRecord>, NotRedriven),
    /// The dead letter was not tried, because an earlier one stays open.
    HeldBack {
        /// The dead letter.
        dead_letter: &'a DlqRecordId,
        /// The earlier one.
        behind: &'a DlqRecordId,
    },
}

/// The numbers of dead letters by result.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ReplaySummary {
    /// Redriven or dropped.
    pub done: usize,
    /// Tried, and still open.
    pub failed: usize,
    /// Not tried, because an earlier one is open.
    pub held_back: usize,
}

/// The event of a dead letter.
#[derive(Clone, PartialEq, Eq)]
pub struct DeadLetterEvent {
    /// The cluster that the event was read from; `None` if the dead letter names none.
    pub system: Option<Arc<str>>,
    /// `schema.table` as the table was named then; `None` if it is unknown.
    pub table: Option<String>,
    /// The value of the row's id column; `None` if it is NULL or unknown.
    pub id: Option<Vec<u8>>,
    /// The number of its transaction.
    pub xid: Option<u32>,
}

// Not derived: the id is a value of a row.
impl fmt::Debug for DeadLetterEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeadLetterEvent")
            .field("table", &self.table)
            .finish_non_exhaustive()
    }
}

/// The events of a slot's dead letters.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DeadLetterEvents {
    /// Of dead letters that were neither redriven nor dropped.
    pub open: Vec<DeadLetterEvent>,
    /// Of the others.
    pub resolved: Vec<DeadLetterEvent>,
    /// How the dead letters of these events were resolved last.
    pub outcomes: HashMap<EventOrigin, Outcome>,
}

/// Reads all dead letters of a slot. **Blocks**.
pub type ReadOpen =
    Box<dyn FnMut() -> Result<DeadLetterEvents, Box<dyn Error + Send + Sync>> + Send>;

/// Returns the process id and the number of dead letters of the walsender that reads the slot;
/// `None` if no relay writes dead letters meanwhile. A dead letter may be new only in a new epoch.
pub type Epoch = Box<dyn Fn() -> Option<(i32, u64)> + Send>;

/// The address of the dead letters of one relay.
#[derive(Debug, Clone, Copy)]
pub struct DlqAddress<'a> {
    /// `[poison] topic`.
    pub topic: &'a str,
    /// The slot whose dead letters count.
    pub slot: &'a str,
}

/// Reads and resolves the dead letters that a sink has written.
pub trait DeadLetterStore {
    /// Opens a topic; `None` if it does not exist. `patience`: how long a server may take for a
    /// response, and how long reading may make no progress.
    ///
    /// **Blocks**.
    ///
    /// # Errors
    /// If no server answers, or the topic may not be read.
    fn open(
        &self,
        topic: &str,
        patience: Duration,
    ) -> Result<Option<Box<dyn DeadLetters>>, Failure>;

    /// Keeps the keys of open dead letters in `parking` until the returned value is dropped.
    ///
    /// # Errors
    /// If the dead letters cannot be watched.
    fn watch(
        &self,
        address: DlqAddress<'_>,
        parking: Arc<Parking>,
    ) -> Result<Box<dyn Any>, Failure>;

    /// Returns a function that reads the open dead letters. `writes`: this configuration writes
    /// dead letters, so the right to read them is needed.
    fn read_open(&self, address: DlqAddress<'_>, writes: bool, epoch: Epoch) -> ReadOpen;
}

/// The dead letters of one topic.
///
/// # Order
/// Dead letters of a slot are replayed one after the other in the order of the WAL. A record is
/// acknowledged before its resolution is written, and the resolution before the next dead letter is
/// begun: a replay that is killed repeats one record at most. Behind a dead letter that stays open,
/// no other one of its key is sent.
pub trait DeadLetters {
    /// Skips the records with an earlier timestamp (milliseconds since 1970-01-01 UTC). For listing
    /// only: it may hide dead letters that must be replayed before others.
    ///
    /// # Errors
    /// If no server answers, or the topic may not be read.
    fn start_at(&mut self, timestamp_ms: i64) -> Result<(), Failure>;

    /// Reads the topic to its end. `select` selects dead letters. **Blocks**.
    ///
    /// # Errors
    /// If no server answers, or the topic may not be read.
    fn read(&mut self, select: &dyn Fn(&DlqRecord) -> bool) -> Result<(), Failure>;

    /// Returns the number of records read that were neither dead letters nor resolutions.
    fn foreign(&self) -> u64;

    /// Returns the selected dead letters in order; the resolved ones only if `resolved`.
    fn selected(&self, resolved: bool) -> Vec<Listed>;

    /// Returns the selected dead letters that would pass an open one of their key if they were
    /// redriven.
    fn out_of_order(&self) -> Vec<OutOfOrder>;

    /// Returns the dead letters that [`carry_out`](Self::carry_out) would replay, without those
    /// that are parked meanwhile.
    fn plan(&self, options: &ReplayOptions) -> Vec<Listed>;

    /// Fetches dead letters and passes them to `show` in this order; `None` for one that is gone.
    /// Stops when `show` breaks. **Blocks**.
    ///
    /// # Errors
    /// If no server answers, or the topic may not be read.
    fn each(
        &mut self,
        listed: &[Listed],
        show: &mut dyn FnMut(&Listed, Option<&DlqRecord>) -> ControlFlow<()>,
    ) -> Result<(), Failure>;

    /// Replays the selected dead letters. If parked ones follow, `select` also selects among the
    /// dead letters that are added meanwhile, of keys that were replayed. **Blocks**.
    ///
    /// # Errors
    /// If the dead letters cannot be read, or a record or resolution was not acknowledged.
    fn carry_out(
        &mut self,
        options: &ReplayOptions,
        select: &dyn Fn(&DlqRecord) -> bool,
        report: &mut dyn FnMut(Step<'_>),
    ) -> Result<ReplaySummary, Failure>;
}
