use self::ErrorClass::{
    AccessDenied, Configuration, Protocol, ServerUnavailable, SlotInUse, Unknown, WalGone,
};
use super::server::ServerError;

/// The class of a failure, which decides what a relay does next.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ErrorClass {
    /// Another connection reads the slot (55006). **Retryable**: a dead connection keeps the slot
    /// for `wal_sender_timeout` at most.
    SlotInUse,
    /// The WAL that the slot needs is gone, or the slot was invalidated. Permanent: the missing
    /// range must be reported.
    WalGone,
    /// The server or the network is down; or the server starts, stops, is out of resources, or is
    /// not (yet) one that `target_session_attrs` asks for. **Retryable**.
    ServerUnavailable,
    /// The server denies access: password, `pg_hba.conf`, a missing privilege. Permanent until that
    /// is changed.
    AccessDenied,
    /// Something named in the configuration of either side is missing or wrong. Permanent until
    /// that is changed.
    Configuration,
    /// The server sent something that the documented protocol does not allow. Permanent: skipping
    /// it could lose data.
    Protocol,
    /// Any other failure. **Retryable**, with back-off and warnings.
    Unknown,
}

impl ErrorClass {
    /// Returns true if a retry with back-off can help without a change by an operator.
    pub const fn is_retryable(self) -> bool {
        matches!(self, SlotInUse | ServerUnavailable | Unknown)
    }
}

/// Classes by prefix of the SQLSTATE. The first match decides, so exceptions are before their rule.
///
/// Source: "PostgreSQL Error Codes" (appendix A), and for 55000 and 58P01 the `ereport` calls of
/// `slot.c`, `logical.c`, `logicalfuncs.c`, `walsender.c` and `xlogreader.c`.
const BY_SQLSTATE: &[(&str, ErrorClass)] = &[
    ("08P01", Protocol), // protocol_violation: the server did not accept our message
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

/// Other meanings of some SQLSTATEs, by words in the message or its detail. Only the text
/// distinguishes them. It may be translated, so the table uses names of settings if possible, which
/// never are. If no words match, the failure counts as [`WalGone`]: a missing range must not go
/// unreported.
const BY_WORDS: &[(&str, &str, ErrorClass)] = &[
    // PgBouncer does not let the parameter pass, such as `replication`.
    ("08P01", "unsupported startup parameter", Configuration),
    // The server is not configured for logical decoding.
    ("55000", "wal_level", Configuration),
    ("55000", "max_replication_slots", Configuration),
    ("55000", "max_wal_senders", Configuration),
    (
        "55000",
        "logical decoding requires a database connection",
        Configuration,
    ),
    ("55000", "not created in this database", Configuration),
    // A slot that a standby synchronizes from its primary (17+) can be used once the standby is
    // promoted.
    ("55000", "being synchronized", ServerUnavailable),
    ("55000", "being synced", ServerUnavailable),
    ("55000", "recovery is", ServerUnavailable),
    // The output plugin is not installed.
    ("58P01", "could not access file", Configuration),
];

impl ServerError {
    /// Returns the class of the error, by SQLSTATE and words.
    pub fn class(&self) -> ErrorClass {
        let code = self.sqlstate.as_str();
        // A warning, not an error, of the server: a missing publication is skipped (18+).
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
        let entry = prefixes.find(|(prefix, _)| code.starts_with(prefix));
        entry.map_or(Unknown, |(_, class)| *class)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn server(sqlstate: &str, message: &str, detail: Option<&str>) -> ServerError {
        ServerError {
            severity: "ERROR".to_owned(),
            sqlstate: sqlstate.to_owned(),
            message: message.to_owned(),
            detail: detail.map(str::to_owned),
            hint: None,
            routine: None,
        }
    }

    #[test]
    fn each_row_of_the_table_has_its_class() {
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

    /// Otherwise a row would have no effect.
    #[test]
    fn no_row_hides_another() {
        for (index, (prefix, _)) in BY_SQLSTATE.iter().enumerate() {
            let first = BY_SQLSTATE
                .iter()
                .position(|(other, _)| prefix.starts_with(other));
            assert_eq!(first, Some(index), "{prefix}");
        }
    }

    /// A text's second line is the detail.
    #[test]
    fn words_distinguish_the_meanings_of_an_sqlstate() {
        let configuration = [
            "logical decoding requires wal_level >= logical",
            "logical decoding requires \"wal_level\" >= \"logical\"",
            "logische Dekodierung erfordert wal_level >= logical",
            "logical decoding on standby requires \"effective_wal_level\" >= \"logical\" on the primary",
            "replication slots can only be used if max_replication_slots > 0",
            "replication slot \"s\" was not created in this database",
        ];
        let gone = [
            "can no longer get changes from replication slot \"s\"\n\
             This slot has been invalidated because it exceeded the maximum reserved size.",
            "cannot read from logical replication slot \"s\"",
            "can no longer access replication slot \"s\"",
        ];
        let synchronized = "cannot use replication slot \"s\" for logical decoding\n\
             This replication slot is being synchronized from the primary server.";
        let removed = "requested WAL segment 000000010000000000000001 has already been removed";
        let plugin = "could not access file \"wal2json\": No such file or directory";
        for (code, texts, class) in [
            ("55000", &configuration[..], Configuration),
            ("55000", &gone, WalGone),
            ("55000", &[synchronized], ServerUnavailable),
            ("58P01", &[removed], WalGone),
            ("58P01", &[plugin], Configuration),
            (
                "08P01",
                &["unsupported startup parameter: replication"],
                Configuration,
            ),
        ] {
            for text in texts {
                let (message, detail) = match text.split_once('\n') {
                    Some((message, detail)) => (message, Some(detail)),
                    None => (*text, None),
                };
                assert_eq!(server(code, message, detail).class(), class, "{text}");
            }
        }
    }
}
