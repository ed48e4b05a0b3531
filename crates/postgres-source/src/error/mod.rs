//! Errors of the database's setup and of the stream, with their remedies.

mod setup;

use std::time::Duration;

use walrelay_lsn::Lsn;
use walrelay_relay::{HolderKind, LogError, SlotHolder, SourceError, TableName};
use walrelay_sink::Disposition;
use walrelay_walsender::ErrorClass;

pub use setup::{
    GO_ON, Gap, GeneratedColumn, PUBLISH, PublicationSetupError, ServerSetupError, SetupError,
    SlotSetupError, TableSetupError,
};

use super::catalog::SlotReader;
use super::moves::MoveState;
use super::state_file::StateFileError;

/// A line that is no row of COPY's text format, or belongs to no requested table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("Postgres sent a row of a snapshot that cannot be read: {0}")]
pub struct RowError(pub(crate) &'static str);

/// The reason why a stream could not be opened, or why it ended.
#[derive(Debug, thiserror::Error)]
pub enum PostgresError {
    /// The connection failed, or the server answered with an error.
    #[error(transparent)]
    Wal(#[from] walrelay_walsender::Error),
    /// The database is not set up as the relay needs it.
    #[error(transparent)]
    Setup(#[from] SetupError),
    /// The slot does not continue the position in the state file.
    #[error(transparent)]
    Log(#[from] LogError),
    /// The state file cannot be used.
    #[error(transparent)]
    StateFile(#[from] StateFileError),
    /// The server has removed the slot's WAL, though its catalogs do not show that.
    #[error("the log that slot {slot} needs is gone: changes committed {gap} cannot be relayed")]
    WalGone {
        /// Name of the slot.
        slot: String,
        /// The range that is not relayed.
        gap: Gap,
        /// The server's error.
        #[source]
        source: walrelay_walsender::Error,
    },
    /// The start of the range to read was published before the outbox was moved away from this server
    /// and back.
    #[error(
        "the outbox was moved to this server at {since} of its log: events committed from {start} on were \
         published with other positions"
    )]
    BeforeMove {
        /// Name of the slot.
        slot: String,
        /// The first position that is to be read.
        start: Lsn,
        /// The position of the slot when the outbox was moved here.
        since: Lsn,
    },
    /// The slot has moved on since it was selected for a replay, so its copy lacks the beginning.
    #[error(
        "slot {slot} has moved on to {position}: changes committed from {start} on can no longer \
         be replayed from it"
    )]
    ReplayGone {
        /// Name of the slot.
        slot: String,
        /// The first position of the replay.
        start: Lsn,
        /// The slot's position now.
        position: Lsn,
    },
    /// The server is about to end the stream, to remove the slot's WAL. A walsender whose client
    /// does not read cannot end, and the server's checkpoints wait for it.
    #[error(
        "slot {0} keeps more WAL than the server allows, and nothing is read: closing the \
         connection, so that the server can remove WAL"
    )]
    MakeWay(String),
    /// The server has ended a session of the relay, and accepts no other.
    #[error("the server shuts down: closing the connection, for it waits for its clients")]
    ShutsDown(#[source] walrelay_walsender::Error),
    /// The system starts no thread for the session that holds the lock of a snapshot.
    #[error("cannot start a thread for the lock of the snapshot")]
    Thread(#[source] std::io::Error),
    /// The server accepted a command and did not answer in time.
    #[error("Postgres did not answer within {after:?}: {doing}")]
    NoAnswer {
        /// The request to the server.
        doing: &'static str,
        /// The time that was waited.
        after: Duration,
    },
    /// The database is one of the two of a move, and this server was not switched to.
    #[error(
        "the outbox of slot {slot} is being moved ({}), and this server was not switched to: the \
         events of its log may have been sent from the old server",
        state.name()
    )]
    AwaitsSwitch {
        /// Name of the slot.
        slot: String,
        /// The recorded state.
        state: MoveState,
    },
    /// The records go to another cluster than those before the noted position.
    #[error(
        "the sink now sends to the cluster {now}: changes committed before {confirmed} were sent \
         to another one, and nothing was confirmed since"
    )]
    OtherCluster {
        /// The id of the cluster that acknowledged records.
        now: String,
        /// The noted position.
        confirmed: Lsn,
    },
    /// The two connections reach different servers.
    #[error(
        "the control connection does not see the stream of slot {0}: the two reached different \
         servers"
    )]
    TwoServers(String),
    /// The SQL of the configured row selection is invalid, or fails when it is evaluated.
    #[error("Postgres cannot read the rows that are asked for")]
    RowsSql(#[source] walrelay_walsender::Error),
    /// A line of `COPY` that cannot be decoded as a row.
    #[error(transparent)]
    Row(#[from] RowError),
    /// All rows of the snapshot are acknowledged, and the stream continues from the slot. Not a
    /// failure: see [`SourceError::is_followed`].
    #[error("the snapshot is read to its end")]
    SnapshotRead,
    /// The session that held the temporary slot and exported the snapshot has ended, or the session
    /// that holds the lock of the setup, so that another relay may read the rows.
    #[error("the server does not keep the snapshot any more: its rows are read again")]
    SnapshotLost,
    /// DDL has changed a table so that the snapshot does not see all its rows.
    #[error(
        "DDL has changed table {0} since the snapshot was taken: its rows are read again, in a new \
         snapshot"
    )]
    SnapshotOutdated(TableName),
    /// Another relay holds the lock of the setup.
    #[error("another relay creates slot {0}, or reads the snapshot before it")]
    SetupBusy(String),
    /// Another process reads the slot. The server allows one reader at a time.
    #[error("slot {slot} is being read by {}", name(reader.as_deref()))]
    SlotBusy {
        /// Name of the slot.
        slot: String,
        /// The reader, if it was still connected when it was queried.
        reader: Option<Box<SlotReader>>,
        /// Whose process the reader is.
        kind: HolderKind,
        /// The server's answer to START_REPLICATION, if that was sent.
        #[source]
        source: Option<walrelay_walsender::Error>,
    },
}

fn name(reader: Option<&SlotReader>) -> String {
    reader.map_or_else(|| "server process ?".to_owned(), SlotReader::to_string)
}

impl PostgresError {
    /// Creates the error of a statement that reads the rows of a snapshot. The statement contains
    /// SQL of the configuration, so syntax errors (class 42, except missing privileges) and data
    /// errors (class 22) are errors of the configuration.
    pub fn from_rows(error: walrelay_walsender::Error) -> Self {
        let state = error.sqlstate().unwrap_or_default();
        if state != "42501" && (state.starts_with("42") || state.starts_with("22")) {
            return Self::RowsSql(error);
        }
        Self::Wal(error)
    }
}

/// Returns true if a row that the server cannot send may be the cause of the error.
fn may_be_of_a_row(error: &walrelay_walsender::Error) -> bool {
    // Classes 57 and 58 are errors of operators and of the system ("PostgreSQL Error Codes").
    let of_row = |state: &str| !state.starts_with("57") && !state.starts_with("58");
    error.class() == ErrorClass::Unknown && error.sqlstate().is_some_and(of_row)
}

fn disposition_of(class: ErrorClass) -> Disposition {
    match class {
        // An unknown SQLSTATE may pass, so it is retried, with warnings.
        ErrorClass::SlotInUse | ErrorClass::ServerUnavailable | ErrorClass::Unknown => {
            Disposition::Retryable
        }
        ErrorClass::AccessDenied | ErrorClass::Configuration => Disposition::Configuration,
        ErrorClass::WalGone | ErrorClass::Protocol => Disposition::Fatal,
    }
}

impl SourceError for PostgresError {
    fn refuses_login(&self) -> bool {
        matches!(self, Self::Wal(error) if error.refuses_login())
    }

    fn may_be_of_a_row(&self) -> bool {
        matches!(self, Self::Wal(error) if may_be_of_a_row(error))
    }

    fn is_slot_taken(&self) -> bool {
        matches!(self, Self::SlotBusy { kind, .. } if *kind != HolderKind::Unknown)
    }

    fn slot_holder(&self) -> SlotHolder {
        match self {
            Self::SlotBusy { reader, kind, .. } => SlotHolder {
                kind: *kind,
                pid: reader.as_ref().map(|reader| reader.pid),
                application_name: reader
                    .as_ref()
                    .and_then(|reader| reader.application_name.clone()),
                since: reader.as_ref().and_then(|reader| reader.since),
            },
            Self::SetupBusy(_) => SlotHolder {
                kind: HolderKind::Relay,
                ..SlotHolder::default()
            },
            _ => SlotHolder::default(),
        }
    }

    fn is_displaced(&self) -> bool {
        self.is_slot_taken() || matches!(self, Self::SnapshotLost)
    }

    fn is_followed(&self) -> bool {
        matches!(self, Self::SnapshotRead)
    }

    fn is_slot_busy(&self) -> bool {
        matches!(self, Self::SlotBusy { .. } | Self::SetupBusy(_))
    }

    fn disposition(&self) -> Disposition {
        match self {
            Self::Wal(error) => disposition_of(error.class()),
            Self::Setup(error) => error.disposition(),
            Self::RowsSql(_) | Self::ReplayGone { .. } | Self::BeforeMove { .. } => {
                Disposition::Configuration
            }
            Self::StateFile(error) => error.disposition(),
            Self::Log(_) | Self::WalGone { .. } | Self::Row(_) | Self::OtherCluster { .. } => {
                Disposition::Fatal
            }
            Self::SlotBusy { .. }
            | Self::SetupBusy(_)
            | Self::AwaitsSwitch { .. }
            | Self::SnapshotRead
            | Self::SnapshotLost
            | Self::SnapshotOutdated(_)
            | Self::MakeWay(_)
            | Self::ShutsDown(_)
            | Self::NoAnswer { .. }
            | Self::Thread(_)
            | Self::TwoServers(_) => Disposition::Retryable,
        }
    }
}
