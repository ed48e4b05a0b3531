//! Words for the operator about [`PostgresError`].

use std::error::Error;

use walrelay_failure::{Exit, Failure};
use walrelay_relay::{Explanation, LogError, SourceError};
use walrelay_sink::Disposition;
use walrelay_walsender::error_words;

use crate::moves::MoveState;
use crate::{GO_ON, OTHER_CLUSTER, PUBLISH, PostgresError, StateFileError};

impl From<PostgresError> for Failure {
    fn from(error: PostgresError) -> Self {
        let failure = words(&error);
        match error {
            PostgresError::Wal(cause)
            | PostgresError::RowsSql(cause)
            | PostgresError::WalGone { source: cause, .. } => failure.caused_by(cause),
            PostgresError::StateFile(error) => Failure {
                source: error.io().map(Into::into),
                ..failure
            },
            PostgresError::Thread(error) => failure.caused_by(error),
            _ => failure,
        }
    }
}

/// Returns the id and the remedy of an error that the relay tries again after. `None`: nobody answers, about
/// which views have words of their own.
pub fn explain(error: &(dyn Error + 'static)) -> Option<Explanation> {
    let Failure { id, remedy, .. } = words(error.downcast_ref()?);
    let remedy = remedy.unwrap_or_default();
    (id != "postgres-unreachable").then_some(Explanation { id, remedy })
}

/// Returns the failure that an error is, without its cause.
fn words(error: &PostgresError) -> Failure {
    let of = |id, exit, remedy: &str| Failure::new(id, exit, error.to_string()).remedy(remedy);
    match error {
        PostgresError::Setup(setup) => {
            let exit = match error.disposition() {
                Disposition::Fatal => Exit::Data,
                Disposition::Retryable => Exit::Unavailable,
                Disposition::Configuration => Exit::Config,
            };
            of(setup.id(), exit, &setup.remedy())
        }
        PostgresError::SlotBusy { .. } | PostgresError::SetupBusy(_) => of(
            "slot-busy",
            Exit::Unavailable,
            "stop the other relay, or give this one a slot of its own",
        ),
        PostgresError::AwaitsSwitch { state, .. } => of(
            "move-pending",
            Exit::Temporary,
            state.remedy(*state == MoveState::Prepared),
        ),
        PostgresError::TwoServers(_) => of(
            "postgres-unreachable",
            Exit::Unavailable,
            "check the hosts in [source] url; with several, add target_session_attrs=read-write so that both \
             connections reach the primary",
        ),
        PostgresError::NoAnswer { .. } => of(
            "postgres-unreachable",
            Exit::Unavailable,
            "see how busy the server and its disk are, and whether the network between drops connections",
        ),
        PostgresError::MakeWay(_) => of(
            "slot-limit-near",
            Exit::Unavailable,
            "see why the relay waits: walrelay status. Raise max_slot_wal_keep_size if the disk of \
             Postgres has room; otherwise the server removes WAL of events that were not sent",
        ),
        PostgresError::ShutsDown(_) => of(
            "postgres-unreachable",
            Exit::Unavailable,
            "start Postgres again: the relay connects by itself",
        ),
        PostgresError::Thread(_) => of(
            "process-limit",
            Exit::Unavailable,
            "raise the limit of threads: TasksMax= in the unit of systemd, pids.max of a container, or ulimit -u",
        ),
        PostgresError::SnapshotRead
        | PostgresError::SnapshotLost
        | PostgresError::SnapshotOutdated(_) => of(
            "snapshot-lost",
            Exit::Unavailable,
            "start again: the rows are read from the first",
        ),
        PostgresError::ReplayGone { .. } => of(
            "replay-gone",
            Exit::Usage,
            "begin again, from a bookmark, which does not move: walrelay bookmark list, or walrelay \
             bookmark create for the next time",
        ),
        PostgresError::BeforeMove { .. } => of(
            "before-move",
            Exit::Usage,
            "begin at a later position or bookmark, or send the rows: walrelay resend",
        ),
        PostgresError::RowsSql(_) => of(
            "snapshot-sql",
            Exit::Config,
            "the cause names the fault of the SQL: snapshot_where or snapshot_order in [source], \
             or --where or --id of resend. Columns are those of the table, as psql shows them",
        ),
        PostgresError::Row(_) => of(
            "snapshot-row",
            Exit::Data,
            "this is a bug of this program, or of a proxy or pooler between it and Postgres: \
             report it",
        ),
        PostgresError::Wal(error) => error_words(error).without_cause(),
        PostgresError::Log(error) => log_failure(error),
        PostgresError::OtherCluster { .. }
        | PostgresError::StateFile(StateFileError::OtherCluster { .. }) => {
            of("other-kafka-cluster", Exit::Data, OTHER_CLUSTER)
        }
        PostgresError::StateFile(file) => {
            let exit = match error.disposition() {
                Disposition::Configuration => Exit::Config,
                Disposition::Retryable | Disposition::Fatal => Exit::Unavailable,
            };
            of("state-file", exit, file.remedy())
        }
        PostgresError::WalGone { .. } => of(
            "wal-gone",
            Exit::Data,
            &format!(
                "drop the slot with pg_drop_replication_slot, {GO_ON} with a new one, and \
                 {PUBLISH}: docs/operate/troubleshooting.md, \"The slot is lost\". So that it does not happen \
                 again, raise max_slot_wal_keep_size"
            ),
        ),
    }
}

/// Returns the failure that a fault of the log is.
pub fn log_failure(error: &LogError) -> Failure {
    let (id, remedy) = match error {
        LogError::SlotMoved { .. } => (
            "slot-moved",
            format!(
                "find out who reads, advances or drops the slot: one slot belongs to one relay. Then \
                 {GO_ON} from where it stands, and if no other client did, {PUBLISH}: \
                 docs/operate/troubleshooting.md, \"The slot is gone or was moved\""
            ),
        ),
        LogError::LogWentBack { .. } => (
            "log-went-back",
            format!(
                "the server was restored from an older state: consumers may have events that the \
                 database has not. Settle that, then {GO_ON} from the slot as it is now"
            ),
        ),
        LogError::OtherServer { .. } => (
            "other-server",
            format!(
                "the address now leads to another cluster. If that is not meant, correct it. If its outbox was drained \
                 (walrelay move plan), run walrelay move switch. If this is the same database after pg_upgrade, follow \
                 docs/operate/troubleshooting.md, \"An upgrade of Postgres\": from 17 on nothing \
                 is missing, and nothing is to be inserted again. Otherwise {GO_ON} with the slot of the new one, \
                 and {PUBLISH}"
            ),
        ),
        _ => (
            "other-timeline",
            format!(
                "a standby was promoted whose slot is not a copy of the old primary's: {GO_ON} with \
                 it, and {PUBLISH}: docs/operate/troubleshooting.md, \"Failover of Postgres\""
            ),
        ),
    };
    Failure::new(id, Exit::Data, error.to_string()).remedy(remedy)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::io;
    use std::sync::Arc;

    use walrelay_walsender::{Error as WalError, ServerError};

    use super::*;

    fn server(sqlstate: &str) -> PostgresError {
        let mut error = ServerError::default();
        sqlstate.clone_into(&mut error.sqlstate);
        WalError::from(error).into()
    }

    fn io_error(code: i32) -> PostgresError {
        PostgresError::Wal(WalError::Io {
            host: "db".into(),
            doing: "connecting",
            source: Arc::new(io::Error::from_raw_os_error(code)),
        })
    }

    /// Whoever sees an error that is tried again needs the remedy of its cause, not that of a server that is
    /// down.
    #[test]
    fn each_cause_of_a_retry_has_its_own_id_and_remedy() {
        const EMFILE: i32 = 24;
        const ECONNREFUSED: i32 = 111;
        let full = io::Error::from(io::ErrorKind::StorageFull);
        let state_file = StateFileError::Write {
            path: "state".into(),
            source: full,
        };
        let mut seen = BTreeMap::new();
        for (id, error) in [
            ("state-file", PostgresError::StateFile(state_file)),
            ("file-limit", io_error(EMFILE)),
            (
                "process-limit",
                PostgresError::Thread(io::ErrorKind::WouldBlock.into()),
            ),
            (
                "slot-limit-near",
                PostgresError::MakeWay("walrelay".to_owned()),
            ),
            ("postgres-full", server("53300")),
            ("postgres-resources", server("53100")),
            ("server-limit", server("53400")),
            ("postgres-busy", server("55P03")),
            ("slot-busy", server("55006")),
            ("password", server("28P01")),
            ("access", server("28000")),
            ("privilege", server("42501")),
        ] {
            let explained = explain(&error).expect(id);
            assert_eq!(explained.id, id);
            assert!(!explained.remedy.contains("host and port"), "{explained:?}");
            let other = seen.insert(explained.remedy, id);
            assert_eq!(other, None, "{id} has the remedy of another cause");
        }
        assert_eq!(explain(&io_error(ECONNREFUSED)), None);
        assert_eq!(explain(&server("57P03")), None);
    }
}
