//! Words for the operator about a connection to Postgres.

use walrelay_failure::{Exit, Failure, FailureWords};

use crate::{ConnInfoError, Error, ErrorClass};

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        error_words(&error).without_cause().caused_by(error)
    }
}

/// Returns the failure that an unusable `[source] url` is.
pub fn conn_info_failure(error: &ConnInfoError) -> Failure {
    Failure::new("source-url", Exit::Config, "[source] url cannot be used")
        .caused_by(error.to_string())
        .remedy("its form is postgres://user:password@host:5432/database?sslmode=verify-full")
}

/// Returns the remedy for SQLSTATE 42501. Only the server's message says which privilege is
/// missing.
fn privilege_remedy(error: &Error) -> &'static str {
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
    } else if error.is_of_row_security() || mentions(&["for table"]) {
        "to read rows, for example for [source] snapshot, mark_sent or [prune], the role needs SELECT on the outbox \
         tables, and BYPASSRLS where they have row-level security: GRANT SELECT ON … TO …"
    } else {
        "the cause names the missing right. The relay itself needs REPLICATION only; publication, \
         table and slot are made by an administrator: walrelay init, or the SQL of walrelay init \
         --dry-run"
    }
}

/// Returns true if the error is a TLS failure that a retry does not mend.
fn is_tls(error: &Error) -> bool {
    match error {
        Error::Tls(error) => !error.is_transient(),
        Error::TlsNotOffered { .. } => true,
        Error::NoServer { attempts } => attempts.iter().all(is_tls),
        _ => false,
    }
}

/// Returns true if no server offers TLS.
fn is_without_tls(error: &Error) -> bool {
    match error {
        Error::TlsNotOffered { .. } => true,
        Error::NoServer { attempts } => attempts.iter().all(is_without_tls),
        _ => false,
    }
}

/// Returns the remedy for a TLS failure.
fn tls_remedy(error: &Error) -> &'static str {
    if is_without_tls(error) {
        "turn TLS on at the server: ssl = on with a certificate. To connect without encryption, write \
         sslmode=prefer in [source] url, which uses TLS as soon as the server offers it, or sslmode=disable: rows \
         then cross the network as plain text. Nothing was sent: neither password nor query"
    } else {
        "the cause says which certificate, name or file is wrong: correct it, or sslmode \
         and sslrootcert in [source] url. Nothing was sent: neither password nor query"
    }
}

/// Returns true if a connection pooler refuses a startup parameter. A server knows all that are
/// sent.
fn is_pooler(error: &Error) -> bool {
    match error {
        Error::Server(error) => {
            error.sqlstate == "08P01" && error.message.contains("unsupported startup parameter")
        }
        Error::NoServer { attempts } => attempts.iter().all(is_pooler),
        _ => false,
    }
}

/// The fields of [`FailureWords`].
type Words = (&'static str, Exit, &'static str, &'static str);

/// Returns the words about an error, without its cause.
pub fn error_words(error: &Error) -> FailureWords {
    let (id, exit, what, remedy) = connection_words(error)
        .or_else(|| sqlstate_words(error))
        .unwrap_or_else(|| class_words(error.class()));
    FailureWords {
        id,
        exit,
        what,
        remedy,
    }
}

/// Returns the words about a connection that does not reach a server's login. `None`: the error is another one.
fn connection_words(error: &Error) -> Option<Words> {
    Some(match error {
        error if is_pooler(error) => (
            "pooler",
            Exit::Config,
            "a connection pooler refuses the connection",
            "a pooler such as PgBouncer cannot carry a replication connection: name host and port of \
             the Postgres server itself in [source] url",
        ),
        error if is_tls(error) => (
            "postgres-tls",
            Exit::Config,
            "TLS to Postgres fails",
            tls_remedy(error),
        ),
        error if error.lacks_descriptors() => (
            "file-limit",
            Exit::Unavailable,
            "walrelay may open no more files and connections",
            "raise the limit: LimitNOFILE= in the unit of systemd, nofile of a container, or ulimit -n",
        ),
        _ => return None,
    })
}

/// Returns the words about an error that the server has named by these SQLSTATEs. `None`: it is another one.
fn sqlstate_words(error: &Error) -> Option<Words> {
    Some(match error.sqlstate()? {
        "28P01" => (
            "password",
            Exit::Denied,
            "Postgres does not accept the user's password",
            "correct user and password in [source] url (special characters are percent-encoded), \
             or put the password into password_file. Postgres says the same of a role that does not \
             exist, has no password, or whose password has expired (VALID UNTIL): \\du in psql lists roles, \
             \\password sets a password",
        ),
        "28000" => (
            "access",
            Exit::Denied,
            "Postgres does not let this user in",
            "check the role's name and LOGIN, and that pg_hba.conf has a line for its connections \
             to this database (logical replication uses the database's lines)",
        ),
        "3D000" => (
            "database-missing",
            Exit::Config,
            "the database does not exist",
            "correct the database in [source] url: the part after the slash",
        ),
        "42501" => (
            "privilege",
            Exit::Denied,
            "the role lacks a privilege",
            privilege_remedy(error),
        ),
        "53300" => (
            "postgres-full",
            Exit::Unavailable,
            "Postgres lets in no more connections",
            "end sessions that are not needed (pg_stat_activity), or raise the limit that the cause names: \
             max_connections, max_wal_senders, or CONNECTION LIMIT of role or database",
        ),
        "53400" => (
            "server-limit",
            Exit::Config,
            "a limit of Postgres is used up",
            "the cause names it. For slots: drop an unused one (walrelay slots list), or raise \
             max_replication_slots and restart the server",
        ),
        "53100" | "53200" => (
            "postgres-resources",
            Exit::Unavailable,
            "Postgres lacks space on its disk, or memory",
            "free some on the machine of Postgres. An unused slot keeps WAL on its disk: walrelay slots list",
        ),
        "55P03" | "57014" => (
            "postgres-busy",
            Exit::Unavailable,
            "Postgres has not done it in the time for it",
            "another session may hold a lock: walrelay check names it (table-lock), and pg_stat_activity has its query. \
             Otherwise try again when the server is less busy",
        ),
        "40001" | "40P01" => (
            "postgres-busy",
            Exit::Unavailable,
            "another session was in the way, and Postgres has undone this one's change",
            "try again: nothing is changed",
        ),
        _ => return None,
    })
}

/// Returns the words about all other errors of a class.
fn class_words(class: ErrorClass) -> Words {
    match class {
        ErrorClass::AccessDenied => (
            "access",
            Exit::Denied,
            "Postgres refuses access",
            "check user, password and pg_hba.conf",
        ),
        ErrorClass::SlotInUse => (
            "slot-busy",
            Exit::Unavailable,
            "the slot is being read",
            "stop its reader first, whose server process the cause names: a relay, or a standby",
        ),
        ErrorClass::ServerUnavailable | ErrorClass::Unknown => (
            "postgres-unreachable",
            Exit::Unavailable,
            "Postgres cannot be reached",
            "check host and port in [source] url, and that the server is running",
        ),
        // A read of the slot fails with `PostgresError::WalGone` instead, which names slot and
        // range.
        ErrorClass::WalGone => (
            "wal-gone",
            Exit::Data,
            "the log that the slot needs is gone",
            "see docs/operate/troubleshooting.md, \"The slot is lost\"; raise max_slot_wal_keep_size",
        ),
        ErrorClass::Protocol => (
            "protocol",
            Exit::Internal,
            "the server's answer is not understood",
            "is there a pooler such as PgBouncer in between? Replication needs a direct connection",
        ),
        ErrorClass::Configuration => (
            "postgres-configuration",
            Exit::Config,
            "Postgres refuses what the configuration asks for",
            "the cause above names what to change: a setting of the server (ssl, a publication, a \
             limit), or the configuration that asks for it",
        ),
    }
}
