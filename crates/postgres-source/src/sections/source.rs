//! `[source]` and `[source.messages]`.

use std::path::PathBuf;
use std::time::Duration;
use walrelay_settings::{
    AlreadyReported, Reader, SECOND, Section, boolean, choice, duration, list, not_empty, path,
    secret, secret_file, section, size, text,
};

use secrecy::{ExposeSecret, SecretString};
use walrelay_relay::TableName;

use crate::assigned::is_quoted;
use crate::table_name;

/// `wal_sender_timeout` is milliseconds in a 32-bit integer (`GUC_UNIT_MS`).
const LONGEST_TIMEOUT: Duration = Duration::from_millis(2_147_483_647);

/// The names of values in `mark_dead`.
pub const ATTEMPTS: &str = "{attempts}";
/// The reason of the dead letter.
pub const ERROR: &str = "{error}";

const MESSAGES: &str = "source.messages.prefix";

/// The rows from before the slot that are relayed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SnapshotMode {
    /// No rows.
    Never,
    /// All rows.
    Initial,
    /// The rows that no relay has sent.
    Unsent,
}

const SNAPSHOTS: &[(&str, SnapshotMode)] = &[
    ("never", SnapshotMode::Never),
    ("initial", SnapshotMode::Initial),
    ("unsent", SnapshotMode::Unsent),
];

section! {
/// `[source]`.
#[derive(Debug, Clone)]
pub struct SourceSection at "source" {
    /// [The address of Postgres](#the-url). Set this or `url_file`.
    "url" url: SecretString = secret(postgres_url).required("\"postgres://relay:${PGPASSWORD}@localhost:5432/app\"");
    /// A file of the password, for a URL without one.
    "password_file" password: Option<SecretString> = secret_file().optional();
    /// The logical replication slot: 1 to 63 of `a-z`, `0-9`, `_`.
    "slot" slot: String = text(slot_name).or("walrelay");
    /// The publication that selects the outbox tables.
    "publication" publication: String = text(table_name::owned_identifier).or("walrelay");
    /// The outbox tables; a name without a schema is in `public`. Optional with `[source.messages]`.
    "tables" tables: Vec<TableName> = list(push_table, TABLES_HELP).or_empty()
        .required_if("[\"public.outbox\"]", |reader| !reader.has(MESSAGES));
    /// Tables of the publication that are not outboxes: [their rows are passed over](../operate/troubleshooting.md#rows-of-a-table-that-is-no-outbox). `schema.*` names all of a schema.
    "pass_over" pass_over: Vec<TableName> = list(push_passed_over, None).or_empty();
    /// Former names of outbox tables that no longer exist, while [the log still has their rows](../operate/troubleshooting.md#an-outbox-was-renamed-detached-or-dropped).
    "former_tables" former_tables: Vec<TableName> = list(push_table, None).or_empty();
    /// Whether slot and publication are created when both are missing.
    "create" create: bool = boolean().or("true");
    /// Whether the slot is a failover slot, and becomes one at the start; Postgres 17 and newer.
    "failover" failover: bool = boolean().or("false");
    /// Which rows from before the slot are relayed: none, all, or those that no relay has sent. Creates the slot whatever `create` says.
    "snapshot" snapshot: SnapshotMode = choice(SNAPSHOTS).or("never");
    /// A condition in SQL on those rows. Unset, with `unsent`: `dispatched_at IS NULL`, or `sent_at IS NULL`.
    "snapshot_where" snapshot_where: Option<String> = text(condition).optional();
    /// The columns by which those rows are ordered. Unset: [by number or time](../how-to/snapshots.md#in-which-order).
    "snapshot_order" snapshot_order: Vec<String> = list(push_column, None).or_empty();
    /// Whether to read a table without such columns anyway: the events of a key then arrive in any order.
    "snapshot_unordered" snapshot_unordered: bool = boolean().or("false");
    /// Assignments in SQL, such as `dispatched_at = now()`, with which the running relay marks confirmed rows. Needs `snapshot = "unsent"`.
    "mark_sent" mark_sent: Option<String> = text(condition).optional();
    /// Assignments in SQL with which the running relay marks the row of a [dead letter](../operate/dead-letters.md#dead-letters); `{attempts}` and `{error}` are values. Needs `mark_sent`.
    "mark_dead" mark_dead: Option<String> = text(dead_assignments).optional();
    /// A file of the position: a start notices a slot that was moved or recreated.
    "state_file" state_file: Option<PathBuf> = path().optional();
    /// Warn when Postgres keeps more WAL for the slot; `0B`: never.
    "retained_wal_warning" retained_wal_warning: u64 = size(0..=(1 << 60)).or("10GiB");
    /// The longest time between two reports of progress to Postgres, 10ms to 1s.
    "status_interval" status_interval: Duration = duration(Duration::from_millis(10)..=SECOND).or("1s");
    /// Reconnect after a silence of this length, at least 1s. Unset: `wal_sender_timeout`.
    "receive_timeout" receive_timeout: Option<Duration> = duration(SECOND..).optional();
    /// How long a relay whose machine has vanished keeps the slot, at least 1s.
    "wal_sender_timeout" wal_sender_timeout: Duration = duration(SECOND..=LONGEST_TIMEOUT).or("5s");
    /// Messages of `pg_logical_emit_message(true, prefix, …)` with this prefix are events.
    "messages.prefix" messages: Option<String> = text(table_name::owned_identifier).optional();
}
}

impl SourceSection {
    /// Returns the time without data from the server after which the connection counts as dead.
    pub fn receive_timeout(&self) -> Duration {
        self.receive_timeout.unwrap_or(self.wal_sender_timeout)
    }
}

const TABLES_HELP: Option<&str> =
    Some("for example: tables = ['public.outbox', '\"My Schema\".\"Tab\"']");

/// Reads the section, and checks combinations of its keys.
///
/// # Errors
/// If a problem was reported to `reader`.
pub fn source(reader: &mut Reader<'_>) -> Result<SourceSection, AlreadyReported> {
    let source = SourceSection::read(reader)?;
    if source.password.is_some() && has_password(source.url.expose_secret()) {
        let path = "source.password_file";
        let what = format!("the URL has a password, and `{path}` is set: keep one of them");
        return Err(reader.conflict(path, what));
    }
    for (path, others) in [
        ("source.pass_over", &source.pass_over),
        ("source.former_tables", &source.former_tables),
    ] {
        if others.iter().any(|table| source.tables.contains(table)) {
            let what = format!("`{path}` names a table of `source.tables`: keep it in one of them");
            return Err(reader.conflict(path, what));
        }
    }
    snapshot(reader, &source)?;
    Ok(source)
}

/// Checks the keys of snapshots.
fn snapshot(reader: &mut Reader<'_>, source: &SourceSection) -> Result<(), AlreadyReported> {
    if source.mark_dead.is_some() && source.mark_sent.is_none() {
        let what = "`source.mark_dead` needs `source.mark_sent`: a dead letter that is redriven is marked as sent";
        return Err(reader.conflict("source.mark_dead", what.to_owned()));
    }
    if source.mark_sent.is_some() && source.snapshot != SnapshotMode::Unsent {
        let what = "`source.mark_sent` needs `source.snapshot = \"unsent\"`: unsent rows from \
                    before the slot would be marked";
        return Err(reader.conflict("source.mark_sent", what.to_owned()));
    }
    if source.snapshot == SnapshotMode::Never {
        if source.snapshot_where.is_some() {
            return Err(reader.no_effect("source.snapshot_where", "without `source.snapshot`"));
        }
        if source.snapshot_unordered {
            return Err(reader.no_effect("source.snapshot_unordered", "without `source.snapshot`"));
        }
        return Ok(());
    }
    if source.snapshot_unordered && !source.snapshot_order.is_empty() {
        return Err(reader.no_effect("source.snapshot_unordered", "with `source.snapshot_order`"));
    }
    if source.tables.is_empty() {
        let what = "messages leave no rows to read: `source.snapshot` needs `source.tables`";
        return Err(reader.conflict("source.snapshot", what.to_owned()));
    }
    Ok(())
}

fn condition(text: &str) -> Result<String, String> {
    not_empty(text.trim(), "a condition is not empty")
}

/// Checks the assignments of `mark_dead`: a value in quotes would be a text of its name.
fn dead_assignments(text: &str) -> Result<String, String> {
    match [ATTEMPTS, ERROR]
        .into_iter()
        .find(|name| is_quoted(text, name))
    {
        Some(name) => Err(format!("{name} is a value: write it without quotes")),
        None => condition(text),
    }
}

fn push_column(columns: &mut Vec<String>, text: &str) -> Result<(), String> {
    columns.push(table_name::owned_identifier(text)?);
    Ok(())
}

fn postgres_url(text: &str) -> Result<(), String> {
    if text.starts_with("postgres://") || text.starts_with("postgresql://") {
        Ok(())
    } else {
        Err("it must begin with postgres:// or postgresql://".to_owned())
    }
}

/// Returns whether the userinfo of the URL (RFC 3986, section 3.2.1) has a password.
fn has_password(url: &str) -> bool {
    let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
    let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
    authority
        .rsplit_once('@')
        .and_then(|(user, _)| user.split_once(':'))
        .is_some_and(|(_, password)| !password.is_empty())
}

/// Checks a slot's name as `ReplicationSlotValidateName` does: lower-case letters, digits and
/// underscores, below `NAMEDATALEN`.
fn slot_name(text: &str) -> Result<String, String> {
    let plain = text
        .bytes()
        .all(|byte| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'_'));
    if plain && (1..=table_name::MAX_IDENTIFIER_BYTES).contains(&text.len()) {
        Ok(text.to_owned())
    } else {
        let why = "the name of a slot is 1 to 63 of lower-case letters, digits and underscores";
        Err(why.to_owned())
    }
}

fn push_passed_over(tables: &mut Vec<TableName>, text: &str) -> Result<(), String> {
    tables.push(table_name::parse_or_all(text)?);
    Ok(())
}

fn push_table(tables: &mut Vec<TableName>, text: &str) -> Result<(), String> {
    let table = table_name::parse(text)?;
    if tables.contains(&table) {
        return Err("a table is named twice".to_owned());
    }
    tables.push(table);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::has_password;

    #[test]
    fn passwords_in_urls_are_seen() {
        for (url, expected) in [
            ("postgres://a:b@c/d", true),
            ("postgres://a:b@c,d:1/e?x=y", true),
            ("postgres://a@c:5432/d", false),
            ("postgres://a:@c/d", false),
            ("postgres://c:5432/d?user=a@b:c", false),
            ("postgres:///d", false),
            ("postgres://a:p%40@c", true),
        ] {
            assert_eq!(has_password(url), expected, "{url}");
        }
    }
}
