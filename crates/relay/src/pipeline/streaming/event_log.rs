use std::time::Duration;

use tokio::time::Instant;
use tracing::{debug, error, warn};

use crate::pipeline::settings::OnUpdate;
use crate::poison::{Class, Diverted, PoisonAction};

/// The number of diverted events that are logged one by one in each [`INTERVAL`].
const LOGGED: u64 = 20;
/// The interval of the limit on diverted events, and of the summary of ignored updates.
const INTERVAL: Duration = Duration::from_secs(10);

/// Logs diverted events and ignored updates, a limited number in each interval.
pub(super) struct EventLog {
    /// The time when the next interval begins.
    next_at: Instant,
    /// The number of diverted events in this interval.
    diverted: u64,
    /// The number of updates that were logged.
    updates: u64,
}

impl EventLog {
    /// Creates the log of a connection. `updates`: the number of updates before it.
    pub(super) fn new(updates: u64, now: Instant) -> Self {
        Self {
            next_at: now + INTERVAL,
            diverted: 0,
            updates,
        }
    }

    /// Logs events that were skipped or became dead letters.
    pub(super) fn diverted(&mut self, events: &[Diverted]) {
        for event in events {
            let Diverted {
                id,
                class,
                cause,
                action,
                event_id,
            } = event;
            self.diverted += 1;
            let lsn = id.published_lsn();
            match (action, class) {
                (_, Class::Parked) => {
                    debug!(%lsn, row = id.row, "parked an event behind a dead letter");
                }
                _ if self.diverted > LOGGED => {}
                (PoisonAction::Skip, _) => warn!(
                    %lsn, row = id.row, event_id, %class, %cause,
                    "skipped an event that cannot be delivered"
                ),
                (_, _) => warn!(
                    %lsn, row = id.row, event_id, %class, %cause,
                    "made a dead letter of an event that cannot be delivered"
                ),
            }
            if self.diverted == LOGGED {
                warn!("more such events are counted and not named for some seconds");
            }
        }
    }

    /// Logs how many rows were updated, once in each interval. `updates`: the total so far.
    pub(super) fn updates(&mut self, updates: u64, on_update: OnUpdate, now: Instant) {
        if now < self.next_at {
            return;
        }
        self.next_at = now + INTERVAL;
        self.diverted = 0;
        let updates = updates - std::mem::replace(&mut self.updates, updates);
        let what = "ignored updates of rows: an event is an inserted row";
        match on_update {
            _ if updates == 0 => {}
            OnUpdate::Error => error!(updates, "{what}"),
            OnUpdate::Warn | OnUpdate::Stop => warn!(updates, "{what}"),
        }
    }
}
