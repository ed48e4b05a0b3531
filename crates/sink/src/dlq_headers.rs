//! The headers of dead letters: the contract between the relay that writes dead letters and the
//! programs that read, redrive or drop them.
//!
//! A dead letter has the key, the value and the headers of the original record, followed by the
//! headers below. A **resolution** is a record with the dead letter's key (so that it is in the
//! same partition, behind the dead letter), no value, and the headers [`RESOLVES`] and
//! [`RESOLUTION`].
//!
//! A dead letter is open until a resolution of its slot, its [`EventPosition`](crate::EventPosition) and its
//! [`SYSTEM`], or of none if it has none, follows it. A repeat of a resolved dead letter is resolved, too.

/// The prefix of all these headers. A dead letter's other headers are the original record's.
pub const PREFIX: &str = "walrelay.dlq.";
/// The reason why the event is a dead letter: [`Poison::name`](crate::Poison::name) or [`PARKED`].
pub const CLASS: &str = "walrelay.dlq.class";
/// The cause as text, without any value of a row.
pub const CAUSE: &str = "walrelay.dlq.cause";
/// The replication slot that the event was read from.
pub const SLOT: &str = "walrelay.dlq.slot";
/// The system identifier of the database cluster that the event was read from, in decimal: clusters may have slots of
/// one name. Absent in dead letters of earlier versions. A resolution has that of its dead letter.
pub const SYSTEM: &str = "walrelay.dlq.system";
/// The start of the commit record of the event's transaction in the WAL, as `X/Y`.
pub const LSN: &str = "walrelay.dlq.lsn";
/// The event's row number in its transaction, in decimal from 0: see
/// [`EventPosition`](crate::EventPosition).
pub const ROW: &str = "walrelay.dlq.row";
/// The transaction's number, in decimal.
pub const XID: &str = "walrelay.dlq.xid";
/// The transaction's commit time: RFC 3339 with microseconds, UTC.
pub const COMMIT_TIME: &str = "walrelay.dlq.commit.time";
/// The table, as `schema.table`.
pub const TABLE: &str = "walrelay.dlq.table";
/// The value of the event's id column; null if it is NULL or unknown.
pub const EVENT_ID: &str = "walrelay.dlq.event.id";
/// The event's topic; absent if it has none.
pub const TOPIC: &str = "walrelay.dlq.topic";
/// The record's timestamp in milliseconds, in decimal; absent if it has none.
pub const TIMESTAMP: &str = "walrelay.dlq.timestamp";
/// The record's partition, in decimal; absent if the key decides.
pub const PARTITION: &str = "walrelay.dlq.partition";
/// The value's size in bytes, in decimal. Present only if the value was left out: then the dead
/// letter's value is null, and event id and LSN identify the row that has it.
pub const VALUE_BYTES: &str = "walrelay.dlq.value.bytes";
/// The place of the event's value in the value, if `[poison] value` shapes it: encoding (`json`, `text`, `base64`
/// or `null`), offset and length in bytes, and FNV-1a of the whole value in 16 digits of hex, separated by spaces; or
/// `none`, if it does not contain it. Absent if the value is the event's.
pub const VALUE_AT: &str = "walrelay.dlq.value.at";
/// Header of a resolution: slot and [`EventPosition`](crate::EventPosition), separated by spaces.
pub const RESOLVES: &str = "walrelay.dlq.resolves";
/// Header of a resolution: [`REDRIVEN`] or [`DROPPED`].
pub const RESOLUTION: &str = "walrelay.dlq.resolution";

/// The class of an event that is a dead letter only because an earlier event of its key is.
pub const PARKED: &str = "parked";
/// The dead letter's record was sent to its topic.
pub const REDRIVEN: &str = "redriven";
/// An operator decided that the dead letter's event is not to be sent.
pub const DROPPED: &str = "dropped";
