//! Waits while another process reads the slot, and reports the reader.

use std::time::Duration;

use tokio::time::{Instant, sleep};
use walrelay_relay::HolderKind;
use walrelay_walsender::{Error, Session};

use super::PostgresSource;
use crate::catalog::{SlotReader, slot_reader};
use crate::deadline::bounded;
use crate::error::PostgresError;

/// Interval of the queries for the reader of a busy slot.
pub(super) const BUSY_INTERVAL: Duration = Duration::from_millis(200);

/// The time that a busy slot's reader is queried before START_REPLICATION is tried again.
const BUSY_DEADLINE: Duration = Duration::from_secs(30);

impl PostgresSource {
    /// Queries the reader of the slot. If the slot was busy in the last attempt, waits until it is
    /// free. All queries use this one connection, because two new connections each time would cost
    /// the primary more than the reading relay does. Stops waiting after [`BUSY_DEADLINE`], so that
    /// the server reports the reader itself, and at once if the reader changes, so that the
    /// pipeline learns of it.
    pub(super) async fn wait_until_free(
        &mut self,
        control: &mut Session,
    ) -> Result<(), PostgresError> {
        let until = Instant::now() + BUSY_DEADLINE;
        loop {
            let found =
                bounded("reading the slot", slot_reader(control, &self.wanted.slot)).await?;
            let Some(reader) = found else {
                return Ok(());
            };
            let new = self.readers.record(&reader);
            self.forget_look_of(&reader);
            if !self.found_busy || Instant::now() >= until {
                return Ok(());
            }
            if new {
                return Err(self.slot_busy(Some(reader), None));
            }
            sleep(BUSY_INTERVAL).await;
        }
    }

    /// Forgets the last look at the publication if another process reads the slot: that one has compared
    /// since, and noted what is accepted.
    pub(super) fn forget_look_of(&mut self, reader: &SlotReader) {
        if !self.readers.is_own(reader.pid) {
            self.last_look = None;
        }
    }

    pub(super) fn slot_busy(
        &self,
        reader: Option<SlotReader>,
        source: Option<Error>,
    ) -> PostgresError {
        PostgresError::SlotBusy {
            slot: self.wanted.slot.clone(),
            kind: reader
                .as_ref()
                .map_or(HolderKind::Unknown, |reader| self.readers.kind(reader)),
            reader: reader.map(Box::new),
            source,
        }
    }
}
