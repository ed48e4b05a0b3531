//! The error with which the last run of a slot's relay ended: a row of the database, or a file alongside the
//! state file where that cannot be written. The log of a process that has ended may be out of reach, and the
//! slot only shows that it is not read.
//!
//! Nothing waits for it: a relay that may not write it, or whose server does not answer, ends as it would
//! without.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use serde::{Deserialize, Serialize};
use walrelay_lsn::Lsn;
use walrelay_pgoutput::PgTimestamp;
use walrelay_walsender::{Error, Session, quote_ident, quote_literal};

use super::catalog::slot;
use super::noted;
use super::state_file::replace_file;
use super::state_version;

const TABLE: &str = "walrelay_state.last_error";
const SUFFIX: &str = ".error";
/// The largest file that is read, in bytes.
const LARGEST: u64 = 64 << 10;
/// Settings of a session that writes the error. A commit waits for no standby, which may be this relay.
pub const SETTINGS: [(&str, &str); 2] = [
    ("synchronous_commit", "local"),
    ("statement_timeout", "1500ms"),
];

/// The error of the last run as this process has found it; unset while none is found.
pub type FoundError = OnceLock<LastError>;

/// The error with which a run ended. The texts are those of the log: they hold no row values and no secrets.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LastError {
    /// The end of the run, in milliseconds since 1970.
    pub at_ms: u64,
    /// The id of the error, as `docs/ERRORS.md` lists it.
    pub id: String,
    /// The exit code.
    pub exit_code: u8,
    /// What was wrong, with its causes.
    pub finding: String,
    /// What an operator can do about it.
    pub remedy: Option<String>,
    /// The position of the slot at the end; `None` if it was not known.
    pub position: Option<Lsn>,
}

impl LastError {
    /// Returns true if a later run has confirmed more, or created the slot: the error is history.
    pub fn is_passed(&self, confirmed: Option<Lsn>) -> bool {
        confirmed > self.position
    }

    /// Returns when and how the run ended, for example
    /// `ended at 2026-01-02T03:04:05.678000Z by [delivery]: a record was not delivered`.
    pub fn text(&self) -> String {
        let micros = i64::try_from(self.at_ms.saturating_mul(1000)).unwrap_or(i64::MAX);
        let at = PgTimestamp::from_unix_micros(micros).unwrap_or(PgTimestamp::new(0));
        format!("ended at {at} by [{}]: {}", self.id, self.finding)
    }
}

/// Returns SQL that creates the table. The texts name tables, topics and ids of events, so only its owner may
/// read it, and `role`: the relay's role, if another one creates the table.
pub fn create_sql(role: Option<&str>) -> String {
    let schema = state_version::create_sql();
    let create = format!(
        "{schema}\n\
         GRANT USAGE ON SCHEMA walrelay_state TO PUBLIC;\n\
         CREATE TABLE IF NOT EXISTS {TABLE} (\n    slot  name PRIMARY KEY, -- the relay's slot\n    \
         error text NOT NULL     -- the error with which its last run ended, as JSON\n);"
    );
    let grant = role.map(|role| {
        let role = quote_ident(role);
        format!("\nGRANT SELECT, INSERT, UPDATE, DELETE ON {TABLE} TO {role};")
    });
    create + &grant.unwrap_or_default()
}

/// Checks whether the table exists, and this role has a privilege for it.
async fn may(session: &mut Session, privilege: &str) -> Result<bool, Error> {
    let sql = format!(
        "SELECT FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace \
         WHERE n.nspname = 'walrelay_state' AND c.relname = 'last_error' AND c.relkind = 'r' \
         AND pg_catalog.has_schema_privilege(n.oid, 'USAGE') AND pg_catalog.has_table_privilege(c.oid, {})",
        quote_literal(privilege)
    );
    Ok(!session.query(&sql).await?.is_empty())
}

/// Returns true if a publication carries each new table: a subscriber would stop at this one.
async fn is_published(session: &mut Session) -> Result<bool, Error> {
    let sql = "SELECT FROM pg_catalog.pg_publication WHERE puballtables";
    Ok(!session.query(sql).await?.is_empty())
}

/// Reads the error from the database; `None`: there is none, or this role may not read it.
pub async fn read(session: &mut Session, slot: &str) -> Result<Option<LastError>, Error> {
    if !may(session, "SELECT").await? {
        return Ok(None);
    }
    let sql = format!(
        "SELECT error FROM {TABLE} WHERE slot = {}",
        quote_literal(slot)
    );
    let rows = session.query(&sql).await?;
    let text = rows.first();
    Ok(text.and_then(|row| serde_json::from_str(row.get(0)?).ok()))
}

/// Returns the newer one of the error in the database and that in the file.
pub async fn find(
    session: &mut Session,
    slot: &str,
    state_file: Option<&Path>,
) -> Result<Option<LastError>, Error> {
    let in_database = read(session, slot).await?;
    let in_file = state_file.and_then(|state_file| read_file(state_file, slot));
    Ok([in_database, in_file]
        .into_iter()
        .flatten()
        .max_by_key(|error| error.at_ms))
}

/// Writes the error to the database, with the position of the slot. `create`: a missing table may be created.
/// Returns false if this role may not write it.
pub async fn write(
    session: &mut Session,
    name: &str,
    create: bool,
    error: &mut LastError,
) -> Result<bool, Error> {
    error.position = slot(session, name).await?.and_then(|slot| slot.confirmed);
    if !may(session, "INSERT").await? {
        if !create
            || is_published(session).await?
            || !noted::may_create(session, "last_error").await?
        {
            return Ok(false);
        }
        let sql = format!("{}\n{}", noted::LOCK, create_sql(None));
        session.query(&sql).await?;
    }
    let text = serde_json::to_string(error).unwrap_or_default();
    let (name, text) = (quote_literal(name), quote_literal(&text));
    let sql = format!(
        "{}INSERT INTO {TABLE} AS known VALUES ({name}, {text}) ON CONFLICT (slot) DO UPDATE SET error = excluded.error",
        noted::WRITE
    );
    session.query(&sql).await?;
    Ok(true)
}

/// Removes the error from the database, if this role may.
pub async fn clear(session: &mut Session, slot: &str) -> Result<(), Error> {
    if may(session, "DELETE").await? {
        let sql = format!(
            "{}DELETE FROM {TABLE} WHERE slot = {}",
            noted::WRITE,
            quote_literal(slot)
        );
        session.query(&sql).await?;
    }
    Ok(())
}

/// The version of the file that this walrelay reads and writes.
const VERSION: u32 = 1;

/// The content of the file.
#[derive(Serialize, Deserialize)]
struct Content {
    /// The first files have none.
    #[serde(default = "first_version")]
    version: u32,
    slot: String,
    error: LastError,
}

const fn first_version() -> u32 {
    1
}

/// Returns the path of the file alongside a state file.
fn file_of(state_file: &Path) -> PathBuf {
    let mut path = OsString::from(state_file);
    path.push(SUFFIX);
    PathBuf::from(path)
}

/// Reads the error of a slot from the file. A file that cannot be used counts as none.
pub fn read_file(state_file: &Path, slot: &str) -> Option<LastError> {
    let path = file_of(state_file);
    // Opening a FIFO waits for its other end.
    let metadata = fs::metadata(&path).ok()?;
    if !metadata.is_file() || metadata.len() > LARGEST {
        return None;
    }
    let content: Content = serde_json::from_str(&fs::read_to_string(path).ok()?).ok()?;
    (content.slot == slot && content.version <= VERSION).then_some(content.error)
}

/// Writes the error to the file.
pub fn write_file(state_file: &Path, slot: &str, error: &LastError) -> io::Result<()> {
    let content = Content {
        version: VERSION,
        slot: slot.to_owned(),
        error: error.clone(),
    };
    replace_file(&file_of(state_file), &serde_json::to_string(&content)?)
}

/// Removes the file, if there is one.
pub fn remove_file(state_file: &Path) -> io::Result<()> {
    match fs::remove_file(file_of(state_file)) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(position: Option<u64>) -> LastError {
        LastError {
            at_ms: 1_767_323_045_678,
            id: "delivery".to_owned(),
            exit_code: 65,
            finding: "a record was not delivered".to_owned(),
            remedy: None,
            position: position.map(Lsn::new),
        }
    }

    #[test]
    fn an_error_is_passed_once_the_slot_has_moved() {
        for (position, confirmed, passed) in [
            (Some(8), Some(8), false),
            (Some(8), Some(9), true),
            (Some(8), None, false),
            (None, Some(9), true),
            (None, None, false),
        ] {
            let found = error(position).is_passed(confirmed.map(Lsn::new));
            assert_eq!(found, passed, "{position:?} {confirmed:?}");
        }
        let text = error(None).text();
        let expected =
            "ended at 2026-01-02T03:04:05.678000Z by [delivery]: a record was not delivered";
        assert_eq!(text, expected);
    }

    #[test]
    fn the_file_has_the_error_of_its_slot_until_it_is_removed() {
        let folder = tempfile::tempdir().expect("a folder");
        let state_file = folder.path().join("state");
        assert_eq!(read_file(&state_file, "orders"), None);
        write_file(&state_file, "orders", &error(Some(8))).expect("written");
        assert_eq!(read_file(&state_file, "orders"), Some(error(Some(8))));
        assert_eq!(read_file(&state_file, "others"), None);
        for _ in 0..2 {
            remove_file(&state_file).expect("removed");
            assert_eq!(read_file(&state_file, "orders"), None);
        }
        // As walrelay 0.1 wrote it, and a later version.
        let first = r#"{"slot":"orders","error":{"at_ms":1767323045678,"id":"delivery","exit_code":65,"finding":"a record was not delivered","remedy":null,"position":"0/8"}}"#;
        fs::write(file_of(&state_file), first).expect("written");
        assert_eq!(read_file(&state_file, "orders"), Some(error(Some(8))));
        let later = first.replacen('{', "{\"version\":2,", 1);
        fs::write(file_of(&state_file), later).expect("written");
        assert_eq!(read_file(&state_file, "orders"), None);
        fs::write(file_of(&state_file), "{").expect("written");
        assert_eq!(read_file(&state_file, "orders"), None);
    }
}
