use self::ErrorClass::{
    AccessDenied, Configuration, Protocol, ServerUnavailable, SlotInUse, Unknown, WalGone,
};
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
        matches!(self, SlotInUse | ServerUnavailable | Unknown)
    }
}

/// SQLSTATEs by prefix; the first that fits decides, so the exceptions stand before the rule.
///
/// Source: "PostgreSQL Error Codes" (appendix A), and for 55000 and 58P01 the `ereport` calls of
/// `slot.c`, `logical.c`, `logicalfuncs.c`, `walsender.c` and `xlogreader.c`.
const BY_SQLSTATE: &[(&str, ErrorClass)] = &[
    ("08P01", Protocol), // protocol_violation: we said something it did not take
    ("08", ServerUnavailable), // connection exceptions
    ("22023", Configuration), // invalid_parameter_value: a setting or plugin option
    ("25006", ServerUnavailable), // read_only_sql_transaction: a standby, for now
    ("28", AccessDenied), // invalid authorization
    ("3D", Configuration), // the database does not exist
    ("3F", Configuration), // the schema does not exist
    ("42501", AccessDenied), // insufficient_privilege
    ("42", Configuration), // no such slot, publication, table; syntax
    ("53", ServerUnavailable), // out of memory, disk, connections, slots
    ("55000", WalGone),  // an invalidated slot; see `BY_WORDS`
    ("55006", SlotInUse), // object_in_use
    ("57P01", ServerUnavailable), // admin_shutdown
    ("57P02", ServerUnavailable), // crash_shutdown
    ("57P03", ServerUnavailable), // cannot_connect_now
    ("57P04", Configuration), // database_dropped
    ("57P05", ServerUnavailable), // idle_session_timeout
    ("58P01", WalGone),  // a WAL segment has been removed; see `BY_WORDS`
];

/// What else these SQLSTATEs are raised for. Only the text tells the cases apart, and it may be in
/// the server's language, so the table names settings, which are never translated. What is left is
/// taken for the worse case: both are permanent, and a gap must not go unreported.
const BY_WORDS: &[(&str, &str, ErrorClass)] = &[
    // A server that is not set up for logical decoding.
    ("55000", "wal_level", Configuration),
    ("55000", "max_replication_slots", Configuration),
    ("55000", "max_wal_senders", Configuration),
    (
        "55000",
        "logical decoding requires a database connection",
        Configuration,
    ),
    ("55000", "not created in this database", Configuration),
    // A slot that a standby keeps in step with its primary (17+) is ours as soon as the standby
    // is promoted.
    ("55000", "being synchronized", ServerUnavailable),
    ("55000", "being synced", ServerUnavailable),
    ("55000", "recovery is", ServerUnavailable),
    // An output plugin that is not installed.
    ("58P01", "could not access file", Configuration),
];

impl ServerError {
    /// What this means for a relay.
    pub fn class(&self) -> ErrorClass {
        let code = self.sqlstate.as_str();
        // Not an error to the server: a publication that is missing is passed over (18+).
        if code == "55000" && self.severity == "WARNING" {
            return Configuration;
        }
        let detail = self.detail.as_deref().unwrap_or_default();
        let says = |words| self.message.contains(words) || detail.contains(words);
        let mut words = BY_WORDS.iter();
        if let Some((.., class)) = words.find(|(known, words, _)| *known == code && says(*words)) {
            return *class;
        }
        let mut prefixes = BY_SQLSTATE.iter();
        let found = prefixes.find(|(prefix, _)| code.starts_with(prefix));
        found.map_or(Unknown, |(_, class)| *class)
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
            let found = server(code, "words", None).class();
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
            assert_eq!(server(code, message, detail).class(), class, "{message}");
        }
    }
}
