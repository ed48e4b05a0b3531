//! Failures of Postgres: connection string, connection, WAL.

use std::error::Error;

use walrelay_postgres_source::{GO_ON, OTHER_CLUSTER, PUBLISH, PostgresError, StateFileError};
use walrelay_relay::{Explanation, LogError, SourceError};
use walrelay_sink::Disposition;
use walrelay_walsender::{ConnInfoError, ErrorClass};

use crate::cli::{Exit, Failure};

pub(crate) fn conn_info(error: &ConnInfoError) -> Failure {
    Failure::new("source-url", Exit::Config, "[source] url cannot be used")
        .caused_by(error.to_string())
        .remedy("its form is postgres://user:password@host:5432/database?sslmode=verify-full")
}

/// The words about an error, without its cause.
struct Words {
    id: &'static str,
    exit: Exit,
    what: String,
    remedy: String,
}

impl From<Words> for Failure {
    fn from(words: Words) -> Self {
        Self::new(words.id, words.exit, words.what).remedy(words.remedy)
    }
}

pub(crate) fn postgres(error: PostgresError) -> Failure {
    let failure = Failure::from(words(&error));
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

/// Returns the id and the remedy of an error that the relay tries again after. `None`: nobody answers, about
/// which views have words of their own.
pub(crate) fn explain(error: &(dyn Error + 'static)) -> Option<Explanation> {
    let Words { id, remedy, .. } = words(error.downcast_ref()?);
    (id != "postgres-unreachable").then_some(Explanation { id, remedy })
}

fn words(error: &PostgresError) -> Words {
    let of = |id, exit, remedy: &str| Words {
        id,
        exit,
        what: error.to_string(),
        remedy: remedy.to_owned(),
    };
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
        PostgresError::AwaitsSwitch { .. } => of(
            "move-pending",
            Exit::Temporary,
            "run walrelay move switch with this configuration: the relay then starts by itself. walrelay move plan \
             shows the next step",
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
            "see what the relay waits for: walrelay status. Raise max_slot_wal_keep_size if the disk of Postgres has \
             room; otherwise the server removes WAL of events that were not sent",
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
            "the cause says what of the SQL is wrong: snapshot_where or snapshot_order in [source], or \
             --where or --id of resend. Columns are those of the table, as psql shows them",
        ),
        PostgresError::Row(_) => of(
            "snapshot-row",
            Exit::Data,
            "that is a bug, of this program or of what is between it and Postgres: report it",
        ),
        PostgresError::Wal(error) => connection(error),
        PostgresError::Log(error) => log_words(error),
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

impl From<PostgresError> for Failure {
    fn from(error: PostgresError) -> Self {
        postgres(error)
    }
}

impl From<walrelay_walsender::Error> for Failure {
    fn from(error: walrelay_walsender::Error) -> Self {
        postgres(error.into())
    }
}

/// Returns the remedy for SQLSTATE 42501. Only the server's message says which privilege is
/// missing.
fn privilege_remedy(error: &walrelay_walsender::Error) -> &'static str {
    // Servers translate everything but names and keywords, so search for keywords where there are
    // any.
    let message = error.server().map_or_else(String::new, |server| {
        let detail = server.detail.as_deref().unwrap_or_default();
        format!("{} {detail}", server.message)
    });
    let mentions = |words: &[&str]| words.iter().any(|word| message.contains(word));
    if mentions(&["replication", "REPLICATION", "walsender"]) {
        "to replicate, the role needs ALTER ROLE … REPLICATION (Amazon RDS: GRANT rds_replication TO \
         …; Azure: ALTER ROLE … REPLICATION as the admin)"
    } else if mentions(&["for schema"]) {
        "to read or change rows of a table, the role needs USAGE on the table's schema: GRANT USAGE ON SCHEMA … TO …; \
         to create a table, a role needs CREATE on it: run walrelay init, or the SQL of walrelay init --dry-run, as an \
         administrator"
    } else if mentions(&["for database"]) {
        "to create the publication or the table, a role needs CREATE on the database and the schema: \
         run walrelay init, or the SQL of walrelay init --dry-run, as an administrator"
    } else if mentions(&["owner of", "to create role", "CREATEROLE"]) {
        "only the owner of a table may publish it, and only a role with CREATEROLE may create \
         another: run walrelay init, or the SQL of walrelay init --dry-run, as an administrator"
    } else if mentions(&["for table", "row-level security"]) {
        "to read rows, for [source] snapshot and walrelay resend, the role needs SELECT on the outbox tables, and \
         BYPASSRLS where they have row-level security: GRANT SELECT ON … TO …"
    } else {
        "the cause says what it was refused. The relay itself needs REPLICATION only; publication, \
         table and slot are made by an administrator: walrelay init, or the SQL of walrelay init \
         --dry-run"
    }
}

/// Returns true if the error is a TLS failure that a retry does not mend.
fn is_tls(error: &walrelay_walsender::Error) -> bool {
    use walrelay_walsender::Error as E;
    match error {
        E::Tls(error) => !error.is_transient(),
        E::TlsNotOffered { .. } => true,
        E::NoServer { attempts } => attempts.iter().all(is_tls),
        _ => false,
    }
}

/// Returns true if no server offers TLS.
fn is_without_tls(error: &walrelay_walsender::Error) -> bool {
    use walrelay_walsender::Error as E;
    match error {
        E::TlsNotOffered { .. } => true,
        E::NoServer { attempts } => attempts.iter().all(is_without_tls),
        _ => false,
    }
}

/// Returns true if a connection pooler refuses a startup parameter. A server knows all that are
/// sent.
fn is_pooler(error: &walrelay_walsender::Error) -> bool {
    use walrelay_walsender::Error as E;
    match error {
        E::Server(error) => {
            error.sqlstate == "08P01" && error.message.contains("unsupported startup parameter")
        }
        E::NoServer { attempts } => attempts.iter().all(is_pooler),
        _ => false,
    }
}

fn connection(error: &walrelay_walsender::Error) -> Words {
    let of = |id, exit, what: &str, remedy: &str| Words {
        id,
        exit,
        what: what.to_owned(),
        remedy: remedy.to_owned(),
    };
    if is_pooler(error) {
        return of(
            "pooler",
            Exit::Config,
            "a connection pooler refuses the connection",
            "a pooler such as PgBouncer cannot carry a replication connection: name host and port of \
             the Postgres server itself in [source] url",
        );
    }
    if is_tls(error) {
        let remedy = if is_without_tls(error) {
            "turn TLS on at the server: ssl = on with a certificate. To connect without encryption, write \
             sslmode=prefer in [source] url, which uses TLS as soon as the server offers it, or sslmode=disable: rows \
             then cross the network as plain text. Nothing was sent: neither password nor query"
        } else {
            "the cause says which certificate, name or file is wrong: correct it, or sslmode \
             and sslrootcert in [source] url. Nothing was sent: neither password nor query"
        };
        return of(
            "postgres-tls",
            Exit::Config,
            "TLS to Postgres fails",
            remedy,
        );
    }
    if error.lacks_descriptors() {
        return of(
            "file-limit",
            Exit::Unavailable,
            "walrelay may open no more files and connections",
            "raise the limit: LimitNOFILE= in the unit of systemd, nofile of a container, or ulimit -n",
        );
    }
    let sqlstate = error.sqlstate().unwrap_or_default().to_owned();
    let (id, exit, what, remedy) = match (error.class(), sqlstate.as_str()) {
        (_, "28P01") => (
            "password",
            Exit::Denied,
            "Postgres does not accept the user's password",
            "correct user and password in [source] url (special characters are percent-encoded), \
             or put the password into password_file. Postgres says the same of a role that does not \
             exist, has no password, or whose password has expired (VALID UNTIL): \\du in psql lists roles, \
             \\password sets a password",
        ),
        (_, "28000") => (
            "access",
            Exit::Denied,
            "Postgres does not let this user in",
            "check the role's name and LOGIN, and that pg_hba.conf has a line for its connections \
             to this database (logical replication uses the database's lines)",
        ),
        (_, "3D000") => (
            "database-missing",
            Exit::Config,
            "the database does not exist",
            "correct the database in [source] url: the part after the slash",
        ),
        (_, "42501") => (
            "privilege",
            Exit::Denied,
            "the role lacks a privilege",
            privilege_remedy(error),
        ),
        (ErrorClass::AccessDenied, _) => (
            "access",
            Exit::Denied,
            "Postgres refuses access",
            "check user, password and pg_hba.conf",
        ),
        (_, "53300") => (
            "postgres-full",
            Exit::Unavailable,
            "Postgres lets in no more connections",
            "end sessions that are not needed (pg_stat_activity), or raise the limit that the cause names: \
             max_connections, max_wal_senders, or CONNECTION LIMIT of role or database",
        ),
        (_, "53400") => (
            "server-limit",
            Exit::Config,
            "a limit of Postgres is used up",
            "the cause names it. For slots: drop an unused one (walrelay slots list), or raise \
             max_replication_slots and restart the server",
        ),
        (_, "53100" | "53200") => (
            "postgres-resources",
            Exit::Unavailable,
            "Postgres lacks space on its disk, or memory",
            "free some on the machine of Postgres. An unused slot keeps WAL on its disk: walrelay slots list",
        ),
        (_, "55P03" | "57014") => (
            "postgres-busy",
            Exit::Unavailable,
            "Postgres has not done it in the time for it",
            "another session may hold a lock: walrelay check names it (table-lock), and pg_stat_activity has its query. \
             Otherwise try again when the server is less busy",
        ),
        (_, "40001" | "40P01") => (
            "postgres-busy",
            Exit::Unavailable,
            "another session was in the way, and Postgres has undone this one's change",
            "try again: nothing is changed",
        ),
        (ErrorClass::SlotInUse, _) => (
            "slot-busy",
            Exit::Unavailable,
            "the slot is being read",
            "stop its reader first, whose server process the cause names: a relay, or a standby",
        ),
        (ErrorClass::ServerUnavailable | ErrorClass::Unknown, _) => (
            "postgres-unreachable",
            Exit::Unavailable,
            "Postgres cannot be reached",
            "check host and port in [source] url, and that the server is running",
        ),
        // A read of the slot fails with `PostgresError::WalGone` instead, which names slot and
        // range.
        (ErrorClass::WalGone, _) => (
            "wal-gone",
            Exit::Data,
            "the log that the slot needs is gone",
            "see docs/operate/troubleshooting.md, \"The slot is lost\"; raise max_slot_wal_keep_size",
        ),
        (ErrorClass::Protocol, _) => (
            "protocol",
            Exit::Internal,
            "the server's answer is not understood",
            "is there a pooler such as PgBouncer in between? Replication needs a direct connection",
        ),
        (ErrorClass::Configuration, _) => (
            "postgres-configuration",
            Exit::Config,
            "Postgres refuses what the configuration asks for",
            "the cause above names what to change: a setting of the server (ssl, a publication, a \
             limit), or the configuration that asks for it",
        ),
    };
    of(id, exit, what, remedy)
}

pub(super) fn log(error: &LogError) -> Failure {
    log_words(error).into()
}

fn log_words(error: &LogError) -> Words {
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
    Words {
        id,
        exit: Exit::Data,
        what: error.to_string(),
        remedy,
    }
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
