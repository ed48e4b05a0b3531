//! [`ServerSetupError`]: the server, or the state in its database, does not suit.

use crate::state_version::VERSION;

/// The server, or the state that a walrelay has left in its database, is not as the relay needs it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ServerSetupError {
    /// The log cannot be decoded at this `wal_level`.
    #[error(
        "the server runs with wal_level = {level}; reading an outbox from the log needs {}",
        if *replica_suffices { "replica or logical" } else { "logical" }
    )]
    WalLevel {
        /// The server's `wal_level`.
        level: String,
        /// `replica` would do: Postgres 19 and newer.
        replica_suffices: bool,
    },
    /// A newer walrelay has written data that this one cannot read.
    #[error(
        "schema walrelay_state of the database is of version {0}, this walrelay knows version {VERSION}: a newer \
         walrelay has written it"
    )]
    StateVersion(u32),
    /// The server is older than failover slots.
    #[error("[source] failover needs Postgres 17 or newer; the server is Postgres {0}")]
    FailoverTooOld(u32),
}

impl ServerSetupError {
    pub(super) fn id(&self) -> &'static str {
        match self {
            Self::WalLevel { .. } => "wal-level",
            Self::StateVersion(_) => "state-version",
            Self::FailoverTooOld(_) => "failover-too-old",
        }
    }

    pub(super) fn remedy(&self) -> String {
        match self {
            Self::WalLevel { .. } => {
                "run ALTER SYSTEM SET wal_level = 'logical' and restart the server; managed \
                 services name it rds.logical_replication = 1 (Amazon RDS, Aurora), \
                 cloudsql.logical_decoding = on (Google Cloud SQL) or wal_level in the server \
                 parameters (Azure)"
                    .to_owned()
            }
            Self::StateVersion(_) => {
                "start the newer walrelay again. To go back for good, follow docs/operate/running.md, \"Upgrade and \
                 downgrade\""
                    .to_owned()
            }
            Self::FailoverTooOld(_) => {
                "remove failover from [source]; failover slots came with Postgres 17".to_owned()
            }
        }
    }
}
