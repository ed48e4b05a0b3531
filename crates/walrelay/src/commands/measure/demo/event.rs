//! Events that have arrived.

use std::time::Duration;

use walrelay_failure::Failure;

/// An event that has arrived.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct ReadEvent {
    pub(super) topic: String,
    pub(super) id: String,
    pub(super) key: Vec<u8>,
    pub(super) value: Vec<u8>,
}

/// A reader of the events that have arrived.
pub(super) trait EventReader {
    /// Waits for the next event, at most `limit`.
    fn next(&mut self, limit: Duration) -> Result<Option<ReadEvent>, Failure>;
}
