//! The error with which the last run of a slot's relay ended. The log of a process that has ended may be out of reach, and the
//! slot only shows that it is not read.
//!
//! Nothing waits for it: a relay that may not write it, or whose server does not answer, ends as it would
//! without.

use std::io;
use std::path::Path;
use std::sync::OnceLock;

use serde::{Deserialize, Serialize};
use walrelay_lsn::Lsn;
use walrelay_pgoutput::PgTimestamp;
use walrelay_walsender::{Error, Session};

use super::catalog::slot;
use super::kept::{Guard, Kept};

const KEPT: Kept = Kept {
    table: "last_error",
    column: "error",
    comment: "the error with which its last run ended, as JSON",
    suffix: ".error",
};
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
    /// The id of the error, as `docs/reference/errors.md` lists it.
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

/// Returns SQL that creates the table. `role`: the relay's role, if another one creates the table.
pub fn create_sql(role: Option<&str>) -> String {
    KEPT.create_sql(role)
}

/// Returns the newer one of the error in the database and that in the file.
pub async fn find(
    session: &mut Session,
    slot: &str,
    state_file: Option<&Path>,
) -> Result<Option<LastError>, Error> {
    let at_ms = |error: &LastError| error.at_ms;
    KEPT.find(session, slot, state_file, at_ms).await
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
    KEPT.write(session, name, create, error, Guard::Always)
        .await
}

/// Removes the error from the database, if this role may.
pub async fn clear(session: &mut Session, slot: &str) -> Result<(), Error> {
    KEPT.clear(session, slot).await
}

/// Writes the error to the file.
pub fn write_file(state_file: &Path, slot: &str, error: &LastError) -> io::Result<()> {
    KEPT.write_file(state_file, slot, error)
}

/// Removes the file, if there is one.
pub fn remove_file(state_file: &Path) -> io::Result<()> {
    KEPT.remove_file(state_file)
}

#[cfg(test)]
mod tests {
    use std::fs;

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
        let read = |path: &Path, slot: &str| KEPT.read_file::<LastError>(path, slot);
        let file = folder.path().join("state.error");
        assert_eq!(read(&state_file, "orders"), None);
        write_file(&state_file, "orders", &error(Some(8))).expect("written");
        assert_eq!(read(&state_file, "orders"), Some(error(Some(8))));
        assert_eq!(read(&state_file, "others"), None);
        for _ in 0..2 {
            remove_file(&state_file).expect("removed");
            assert_eq!(read(&state_file, "orders"), None);
        }
        // As walrelay 0.1 wrote it, and a later version.
        let first = r#"{"slot":"orders","error":{"at_ms":1767323045678,"id":"delivery","exit_code":65,"finding":"a record was not delivered","remedy":null,"position":"0/8"}}"#;
        fs::write(&file, first).expect("written");
        assert_eq!(read(&state_file, "orders"), Some(error(Some(8))));
        let later = first.replacen('{', "{\"version\":2,", 1);
        fs::write(&file, later).expect("written");
        assert_eq!(read(&state_file, "orders"), None);
        fs::write(&file, "{").expect("written");
        assert_eq!(read(&state_file, "orders"), None);
    }
}
