//! [`SinkOptions`]: what other sections of the configuration decide about a sink.

use std::time::Duration;

/// The settings of a sink that sections besides its own decide (`[delivery]`, `[poison]`).
#[derive(Debug, Clone)]
pub struct SinkOptions {
    /// Records in flight at most.
    pub max_in_flight_records: u64,
    /// Their bytes at most.
    pub max_in_flight_bytes: u64,
    /// The bytes of records that wait for a destination which refuses them, beyond those in flight.
    pub max_retrying_bytes: u64,
    /// Keys of a destination that may wait to be sent again before its other keys wait too.
    pub max_retrying_keys: u32,
    /// The first pause before a failed connection or record is tried again. Pauses double.
    pub backoff_initial: Duration,
    /// The longest of these pauses.
    pub backoff_max: Duration,
    /// The time for which an event that the destination refuses is sent again.
    pub retry_for: Duration,
    /// The topic of dead letters.
    pub dead_letters: String,
}
