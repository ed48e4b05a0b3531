use super::server::ServerError;

/// What a failure means for a relay, and so what it does next.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ErrorClass {
    /// Another connection holds the slot (55006). **Retryable**: `wal_sender_timeout` bounds how
    /// long a dead one keeps it.
    SlotInUse,
    /// The log the slot needs is gone, or the slot was invalidated. Permanent: the range that
    /// cannot be carried must be reported.
    WalGone,
    /// The server or the way to it is down, starting, stopping, full, or not (yet) the one that
    /// was asked for. **Retryable**.
    ServerUnavailable,
    /// The server knows us and says no: password, `pg_hba.conf`, a missing privilege. Permanent
    /// until somebody changes it.
    AccessDenied,
    /// Something named in the configuration of either side is missing or wrong. Permanent until
    /// somebody changes it.
    Configuration,
    /// The server said something that is not the protocol as documented. Permanent: to skip what
    /// is not understood would lose data.
    Protocol,
    /// None of these. **Retryable**, with back-off, and loudly.
    Unknown,
}

impl ErrorClass {
    /// Whether trying again, with a back-off, can help without anybody changing anything.
    pub const fn is_retryable(self) -> bool {
        match self {
            Self::SlotInUse | Self::ServerUnavailable | Self::Unknown => true,
            Self::WalGone | Self::AccessDenied | Self::Configuration | Self::Protocol => false,
        }
    }
}

/// SQLSTATEs by prefix; the first that fits decides, so the exceptions stand before the rule.
///
/// Source: "PostgreSQL Error Codes" (appendix A), and for 55000 and 58P01 the `ereport` calls of
/// `slot.c`, `logical.c`, `logicalfuncs.c`, `walsender.c` and `xlogreader.c`.
const BY_SQLSTATE: &[(&str, ErrorClass)] = &[
    ("08P01", ErrorClass::Protocol), // protocol_violation: we said something it did not take
    ("08", ErrorClass::ServerUnavailable), // connection exceptions
    ("22023", ErrorClass::Configuration), // invalid_parameter_value: a setting or plugin option
    ("25006", ErrorClass::ServerUnavailable), // read_only_sql_transaction: a standby, for now
    ("28", ErrorClass::AccessDenied), // invalid authorization
    ("3D", ErrorClass::Configuration), // the database does not exist
    ("3F", ErrorClass::Configuration), // the schema does not exist
    ("42501", ErrorClass::AccessDenied), // insufficient_privilege
    ("42", ErrorClass::Configuration), // no such slot, publication, table; syntax
    ("53", ErrorClass::ServerUnavailable), // out of memory, disk, connections, slots
    ("55000", ErrorClass::WalGone),  // see `prerequisite`
    ("55006", ErrorClass::SlotInUse), // object_in_use
    ("57P01", ErrorClass::ServerUnavailable), // admin_shutdown
    ("57P02", ErrorClass::ServerUnavailable), // crash_shutdown
    ("57P03", ErrorClass::ServerUnavailable), // cannot_connect_now
    ("57P04", ErrorClass::Configuration), // database_dropped
    ("57P05", ErrorClass::ServerUnavailable), // idle_session_timeout
    ("58P01", ErrorClass::WalGone),  // a WAL segment has been removed; see `missing_file`
];

impl ServerError {
    /// What this means for a relay.
    pub fn class(&self) -> ErrorClass {
        of_server(self)
    }
}

fn of_server(error: &ServerError) -> ErrorClass {
    match error.sqlstate.as_str() {
        // Not an error to the server: a publication that is missing is passed over (18+).
        "55000" if error.severity == "WARNING" => ErrorClass::Configuration,
        "55000" => prerequisite(error),
        "58P01" => missing_file(error),
        code => BY_SQLSTATE
            .iter()
            .find(|(prefix, _)| code.starts_with(prefix))
            .map_or(ErrorClass::Unknown, |&(_, class)| class),
    }
}

/// `object_not_in_prerequisite_state` is raised for invalidated slots and for servers that are not
/// set up for logical decoding. Only the text tells them apart, and it may be in the server's
/// language, so what is looked for are names of settings, which are never translated. What is left
/// is taken for the worse case: both are permanent, and a gap must not go unreported.
fn prerequisite(error: &ServerError) -> ErrorClass {
    const SETTINGS: &[&str] = &[
        "wal_level",
        "max_replication_slots",
        "max_wal_senders",
        "logical decoding requires a database connection",
        "not created in this database",
    ];
    // A slot that a standby keeps in step with its primary (17+) is ours as soon as the standby
    // is promoted.
    const FOR_NOW: &[&str] = &["being synchronized", "being synced", "recovery is"];
    let says = |words: &&str| {
        error.message.contains(*words)
            || error
                .detail
                .as_deref()
                .is_some_and(|detail| detail.contains(*words))
    };
    if SETTINGS.iter().any(says) {
        ErrorClass::Configuration
    } else if FOR_NOW.iter().any(says) {
        ErrorClass::ServerUnavailable
    } else {
        ErrorClass::WalGone
    }
}

/// `undefined_file` is a removed WAL segment, or an output plugin that is not installed.
fn missing_file(error: &ServerError) -> ErrorClass {
    if error.message.contains("could not access file") {
        ErrorClass::Configuration
    } else {
        ErrorClass::WalGone
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::SqlState;

    fn server(sqlstate: &str, message: &str, detail: Option<&str>) -> ServerError {
        ServerError {
            severity: "ERROR".to_owned(),
            sqlstate: SqlState::from_bytes(sqlstate.as_bytes()),
            message: message.to_owned(),
            detail: detail.map(str::to_owned),
            hint: None,
        }
    }

    #[test]
    fn each_row_of_the_table() {
        use ErrorClass::{
            AccessDenied, Configuration, Protocol, ServerUnavailable, SlotInUse, Unknown, WalGone,
        };
        for (code, class, retryable) in [
            ("55006", SlotInUse, true),
            ("55000", WalGone, false),
            ("58P01", WalGone, false),
            ("57P01", ServerUnavailable, true),
            ("57P02", ServerUnavailable, true),
            ("57P03", ServerUnavailable, true),
            ("57P04", Configuration, false),
            ("57P05", ServerUnavailable, true),
            ("28000", AccessDenied, false),
            ("28P01", AccessDenied, false),
            ("3D000", Configuration, false),
            ("3F000", Configuration, false),
            ("42501", AccessDenied, false),
            ("42601", Configuration, false),
            ("42704", Configuration, false),
            ("42P01", Configuration, false),
            ("22023", Configuration, false),
            ("08000", ServerUnavailable, true),
            ("08006", ServerUnavailable, true),
            ("08P01", Protocol, false),
            ("53000", ServerUnavailable, true),
            ("53100", ServerUnavailable, true),
            ("53300", ServerUnavailable, true),
            ("53400", ServerUnavailable, true),
            ("25006", ServerUnavailable, true),
            ("57014", Unknown, true),
            ("XX000", Unknown, true),
            ("40001", Unknown, true),
            ("?????", Unknown, true),
        ] {
            let found = of_server(&server(code, "words", None));
            assert_eq!(found, class, "{code}");
            assert_eq!(found.is_retryable(), retryable, "{code}");
        }
    }

    /// Every row is reachable: none is shadowed by one before it.
    #[test]
    fn no_row_hides_another() {
        for (index, (prefix, _)) in BY_SQLSTATE.iter().enumerate() {
            let first = BY_SQLSTATE
                .iter()
                .position(|(other, _)| prefix.starts_with(other));
            assert_eq!(first, Some(index), "{prefix}");
        }
    }

    #[test]
    fn what_55000_and_58p01_mean_is_in_the_words() {
        use ErrorClass::{Configuration, ServerUnavailable, WalGone};
        for (code, message, detail, class) in [
            (
                "55000",
                "logical decoding requires wal_level >= logical",
                None,
                Configuration,
            ),
            (
                "55000",
                "logical decoding requires \"wal_level\" >= \"logical\"",
                None,
                Configuration,
            ),
            (
                "55000",
                "logische Dekodierung erfordert wal_level >= logical",
                None,
                Configuration,
            ),
            (
                "55000",
                "replication slots can only be used if max_replication_slots > 0",
                None,
                Configuration,
            ),
            (
                "55000",
                "replication slot \"s\" was not created in this database",
                None,
                Configuration,
            ),
            (
                "55000",
                "can no longer get changes from replication slot \"s\"",
                Some(
                    "This slot has been invalidated because it exceeded the maximum reserved size.",
                ),
                WalGone,
            ),
            (
                "55000",
                "cannot read from logical replication slot \"s\"",
                None,
                WalGone,
            ),
            (
                "55000",
                "can no longer access replication slot \"s\"",
                None,
                WalGone,
            ),
            (
                "55000",
                "cannot use replication slot \"s\" for logical decoding",
                Some("This replication slot is being synchronized from the primary server."),
                ServerUnavailable,
            ),
            (
                "58P01",
                "requested WAL segment 000000010000000000000001 has already been removed",
                None,
                WalGone,
            ),
            (
                "58P01",
                "could not access file \"wal2json\": No such file or directory",
                None,
                Configuration,
            ),
        ] {
            assert_eq!(
                of_server(&server(code, message, detail)),
                class,
                "{message}"
            );
        }
    }
}
