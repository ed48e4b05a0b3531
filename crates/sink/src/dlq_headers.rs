//! What a dead letter looks like in its topic: the contract between the relay that writes dead letters
//! and whoever reads, redrives or drops them.
//!
//! A dead letter has the key and the value of the record it stands for, that record's headers, and after
//! them headers of the names below. A **resolution** is a record with the dead letter's key (so that it
//! lies in the same partition, behind it), no value, and [`RESOLVES`] and [`RESOLUTION`].
//!
//! A dead letter is open until a resolution of its [`EventPosition`](crate::EventPosition) follows it. A repeat of a
//! dead letter that was resolved stays resolved.

/// All names of these headers begin so. The rest of a dead letter's headers are the original record's.
pub const PREFIX: &str = "walrelay.dlq.";
/// Why the event is a dead letter: [`Poison::name`](crate::Poison::name) or [`PARKED`].
pub const CLASS: &str = "walrelay.dlq.class";
/// The cause in words; no value of a row.
pub const CAUSE: &str = "walrelay.dlq.cause";
/// The replication slot the event was read from.
pub const SLOT: &str = "walrelay.dlq.slot";
/// Where the commit record of the event's transaction starts in the log, as `X/Y`.
pub const LSN: &str = "walrelay.dlq.lsn";
/// The event's place in its transaction, in decimal from 0: see [`EventPosition`](crate::EventPosition).
pub const ROW: &str = "walrelay.dlq.row";
/// The transaction's number, in decimal.
pub const XID: &str = "walrelay.dlq.xid";
/// When it was committed: RFC 3339 with microseconds, UTC.
pub const COMMIT_TIME: &str = "walrelay.dlq.commit.time";
/// The table, as `schema.table`.
pub const TABLE: &str = "walrelay.dlq.table";
/// The event's id as its column has it; null where that is NULL or unknown.
pub const EVENT_ID: &str = "walrelay.dlq.event.id";
/// The topic it was bound for; absent where there is none.
pub const TOPIC: &str = "walrelay.dlq.topic";
/// The record's timestamp in milliseconds, in decimal; absent where it has none.
pub const TIMESTAMP: &str = "walrelay.dlq.timestamp";
/// The record's partition, in decimal; absent where the key decides.
pub const PARTITION: &str = "walrelay.dlq.partition";
/// The value's size in bytes, in decimal. Present where the value was left out: then the dead letter's
/// value is null, and event id and LSN say where to find it.
pub const VALUE_BYTES: &str = "walrelay.dlq.value.bytes";
/// Of a resolution: slot and [`EventPosition`](crate::EventPosition), separated by spaces.
pub const RESOLVES: &str = "walrelay.dlq.resolves";
/// Of a resolution: [`REDRIVEN`] or [`DROPPED`].
pub const RESOLUTION: &str = "walrelay.dlq.resolution";

/// The class of an event that is a dead letter only because an earlier one of its key is.
pub const PARKED: &str = "parked";
/// The dead letter's record was sent where it had been bound for.
pub const REDRIVEN: &str = "redriven";
/// Somebody decided that the dead letter's event is not to be sent.
pub const DROPPED: &str = "dropped";
