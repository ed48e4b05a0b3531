use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use walrelay_event_router::Messages;
use walrelay_lsn::CommitEnd;

use crate::account::SentAccount;
use crate::interface::observer::Explanation;
use crate::interface::schemas::Schemas;
use crate::poison::PoisonPolicy;
use crate::sent_rows::SentRows;
use crate::table::TableName;

/// The settings of a pipeline.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The outbox tables, by their names in the WAL and in the catalogs. Rows of other tables are
    /// passed over, unless they may be events: see [`Core::place`](crate::Core::place).
    pub tables: Arc<[TableName]>,
    /// Tables whose rows are passed over though they may be events.
    pub pass_over: Arc<[TableName]>,
    /// The logical messages that are events. `None`: none are.
    pub messages: Option<Messages>,
    /// The limit of records from the first unacknowledged one on; rounded up to a power of two. The sink
    /// bounds those that it holds.
    pub max_unconfirmed_records: usize,
    /// Longest time between two status updates. At most half of the server's `wal_sender_timeout`
    /// and at most a second.
    pub status_interval: Duration,
    /// A connection is given up if nothing is received for this time, though status updates ask for
    /// replies. The effective limit is at least the server's `wal_sender_timeout`.
    pub receive_timeout: Duration,
    /// The longest time that a stop may wait for acknowledgements and for the server to take the
    /// last status.
    pub drain_timeout: Duration,
    /// The first delay before a new attempt, see [`Backoff`](crate::Backoff).
    pub backoff_initial: Duration,
    /// The longest delay before a new attempt.
    pub backoff_max: Duration,
    /// The policy for events that cannot be delivered.
    pub poison: PoisonPolicy,
    /// The effect of an UPDATE of an outbox row, if the publication carries updates.
    pub on_update: OnUpdate,
    /// The schema registry, if the router encodes values by schemas.
    pub schemas: Option<Arc<dyn Schemas>>,
    /// Receives the keys of acknowledged rows. `None`: none are noted.
    pub sent_rows: Option<Arc<SentRows>>,
    /// Receives the sums of acknowledged rows. `None`: none are accounted.
    pub account: Option<Arc<SentAccount>>,
    /// Returns the id and the remedy of an error of the source after which the pipeline tries again.
    pub explain: fn(&(dyn Error + 'static)) -> Option<Explanation>,
}

/// The effect of an UPDATE of an outbox row. Only inserted rows are events, so nothing is sent for
/// it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum OnUpdate {
    /// Updates are counted, and logged as a warning at intervals.
    #[default]
    Warn,
    /// Updates are counted, and logged as an error at intervals.
    Error,
    /// The relay stops with an error.
    Stop,
}

/// The outcome of a requested stop.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// All enqueued records are acknowledged and confirmed, and the slot has taken the position:
    /// the next start repeats nothing.
    Drained {
        /// The slot's position.
        confirmed: CommitEnd,
    },
    /// There was no sink, and no event of an earlier sink must be sent again.
    Unused,
    /// The drain timeout passed, a record was refused, or there was no connection to confirm over.
    /// Nothing is lost; the next start sends again what was not confirmed.
    Incomplete {
        /// Records that were refused or not acknowledged. 0: all were acknowledged, but it is not
        /// known whether the slot has taken the last position.
        records: u64,
        /// The last position that may have reached the server.
        confirmed: Option<CommitEnd>,
        /// The reason, with the causes.
        reason: String,
    },
}
