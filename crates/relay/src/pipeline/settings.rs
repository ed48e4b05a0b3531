use std::sync::Arc;
use std::time::Duration;

use walrelay_event_router::Messages;
use walrelay_lsn::CommitEnd;

use crate::interface::schemas::Schemas;
use crate::interface::table::TableName;
use crate::poison::PoisonPolicy;

/// How a pipeline behaves.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The outbox tables. A publication that carries another one is an error.
    pub tables: Arc<[TableName]>,
    /// Messages that are events, too. `None`: none are asked for.
    pub messages: Option<Messages>,
    /// Records in flight at most; rounded up to a power of two.
    pub max_in_flight_records: usize,
    /// Longest time between two status updates. At most half of the server's `wal_sender_timeout`
    /// and at most a second.
    pub status_interval: Duration,
    /// A connection from which nothing comes for so long, though replies are asked for with every
    /// status update, is given up.
    pub receive_timeout: Duration,
    /// How long a stop may wait for acknowledgements and for the server to take the last status.
    pub drain_timeout: Duration,
    /// The first delay before a new attempt, see [`Backoff`](crate::Backoff).
    pub backoff_initial: Duration,
    /// The longest.
    pub backoff_max: Duration,
    /// What happens to events that cannot be delivered.
    pub poison: PoisonPolicy,
    /// What an UPDATE of an outbox row does, where the publication carries any.
    pub on_update: OnUpdate,
    /// Who is asked for the schemas of values, where the router encodes by some.
    pub schemas: Option<Arc<dyn Schemas>>,
}

/// What an UPDATE of an outbox row does. An event is an inserted row: nothing is sent for it in any
/// case.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum OnUpdate {
    /// It is counted, and warned about now and then.
    #[default]
    Warn,
    /// It is counted, and is an error in the log now and then.
    Error,
    /// It stops the relay.
    Stop,
}

/// How a pipeline that was asked to stop came to its end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// All that was enqueued is acknowledged and confirmed, and the server has taken it: the
    /// next start repeats nothing.
    Drained {
        /// The slot's position.
        confirmed: CommitEnd,
    },
    /// Nothing was enqueued, so nothing is owed.
    Unused,
    /// The drain timeout passed, a record was refused, or there was no connection to confirm over.
    /// Nothing is lost; the next start sends again what was not confirmed.
    Incomplete {
        /// Records that were refused or not acknowledged. 0: all were acknowledged, and the last position
        /// is not known to be in the slot.
        records: u64,
        /// The last position that may have reached the server.
        confirmed: Option<CommitEnd>,
        /// Why, with the causes.
        reason: String,
    },
}
