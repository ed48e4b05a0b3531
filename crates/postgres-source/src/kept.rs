//! Texts about a slot's relay that outlive it: a row of a table of `walrelay_state`, or a file alongside the
//! state file where that cannot be written.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};
use walrelay_walsender::{Error, Session, quote_ident, quote_literal};

use super::position_note;
use super::state_file::replace_file;
use super::state_version;

/// The largest file that is read, in bytes.
const LARGEST: u64 = 1 << 20;
/// The version of the files that this walrelay reads and writes. The first files have none.
const VERSION: u64 = 1;

/// A kind of text.
#[derive(Debug)]
pub(crate) struct Kept {
    /// The name of the table in `walrelay_state`.
    pub(crate) table: &'static str,
    /// The column of the text, and the member of the file.
    pub(crate) column: &'static str,
    /// What the column has, for the SQL that users read.
    pub(crate) comment: &'static str,
    /// The end of the file's name, behind that of the state file.
    pub(crate) suffix: &'static str,
}

/// The condition under which a text is written over another one.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Guard<'a> {
    /// Nothing.
    Always,
    /// This walsender reads the slot.
    Reader(i32),
    /// The JSON that is there has this member, with one of these numbers.
    Member(&'a str, &'a [u64]),
}

impl Kept {
    /// Returns SQL that creates the table. The texts name tables, topics and ids of events, so only its owner
    /// may read it, and `role`: the relay's role, if another one creates the table.
    pub(crate) fn create_sql(&self, role: Option<&str>) -> String {
        let Self {
            table,
            column,
            comment,
            ..
        } = self;
        let schema = state_version::create_sql();
        let create = format!(
            "{schema}\n\
             GRANT USAGE ON SCHEMA walrelay_state TO PUBLIC;\n\
             CREATE TABLE IF NOT EXISTS walrelay_state.{table} (\n    {:<5} name PRIMARY KEY, -- the relay's slot\n    \
             {column:<5} text NOT NULL     -- {comment}\n);",
            "slot"
        );
        let grant = role.map(|role| {
            let role = quote_ident(role);
            format!("\nGRANT SELECT, INSERT, UPDATE, DELETE ON walrelay_state.{table} TO {role};")
        });
        create + &grant.unwrap_or_default()
    }

    /// Checks whether the table exists, and this role has a privilege for it.
    async fn may(&self, session: &mut Session, privilege: &str) -> Result<bool, Error> {
        let sql = format!(
            "SELECT FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace \
             WHERE n.nspname = 'walrelay_state' AND c.relname = {} AND c.relkind = 'r' \
             AND pg_catalog.has_schema_privilege(n.oid, 'USAGE') AND pg_catalog.has_table_privilege(c.oid, {}) \
             AND ({} OR NOT pg_catalog.pg_is_in_recovery())",
            quote_literal(self.table),
            quote_literal(privilege),
            privilege == "SELECT"
        );
        Ok(!session.query(&sql).await?.is_empty())
    }

    /// Reads the text from the database; `None`: there is none, or this role may not read it.
    pub(crate) async fn read<T: DeserializeOwned>(
        &self,
        session: &mut Session,
        slot: &str,
    ) -> Result<Option<T>, Error> {
        if !self.may(session, "SELECT").await? {
            return Ok(None);
        }
        let sql = format!(
            "SELECT {} FROM walrelay_state.{} WHERE slot = {}",
            self.column,
            self.table,
            quote_literal(slot)
        );
        let rows = session.query(&sql).await?;
        let text = rows.first();
        Ok(text.and_then(|row| serde_json::from_str(row.get(0)?).ok()))
    }

    /// Returns the newer one of the text in the database and of that in the file.
    pub(crate) async fn find<T: DeserializeOwned>(
        &self,
        session: &mut Session,
        slot: &str,
        state_file: Option<&Path>,
        newest_ms: impl Fn(&T) -> u64,
    ) -> Result<Option<T>, Error> {
        let in_database = self.read(session, slot).await?;
        let in_file = state_file.and_then(|state_file| self.read_file(state_file, slot));
        let both = in_database.into_iter().chain(in_file);
        Ok(both.max_by_key(newest_ms))
    }

    /// Writes the text to the database, if the guard allows it. `create`: a missing table may be created.
    /// Returns false if this role may not write it.
    pub(crate) async fn write<T: Serialize>(
        &self,
        session: &mut Session,
        slot: &str,
        create: bool,
        value: &T,
        guard: Guard<'_>,
    ) -> Result<bool, Error> {
        if !self.may(session, "INSERT").await? {
            if !create
                || is_published(session).await?
                || !position_note::may_create(session, self.table).await?
            {
                return Ok(false);
            }
            let sql = format!("{}\n{}", position_note::LOCK, self.create_sql(None));
            session.query(&sql).await?;
        }
        let Self { table, column, .. } = self;
        let text = serde_json::to_string(value).unwrap_or_default();
        let (slot, text) = (quote_literal(slot), quote_literal(&text));
        let (inserted, replaced) = match guard {
            Guard::Always => (String::new(), String::new()),
            Guard::Reader(pid) => (
                format!(
                    " WHERE EXISTS (SELECT FROM pg_catalog.pg_replication_slots WHERE slot_name = {slot} \
                     AND active_pid = {pid})"
                ),
                String::new(),
            ),
            Guard::Member(member, numbers) => {
                let numbers = numbers.iter().map(|number| format!("'{number}'"));
                let numbers: Vec<String> = numbers.collect();
                (
                    String::new(),
                    format!(
                        " WHERE (known.{column}::json ->> {}) IN ({})",
                        quote_literal(member),
                        numbers.join(", ")
                    ),
                )
            }
        };
        let sql = format!(
            "{}INSERT INTO walrelay_state.{table} AS known SELECT {slot}, {text}{inserted} \
             ON CONFLICT (slot) DO UPDATE SET {column} = excluded.{column}{replaced}",
            position_note::WRITE
        );
        session.query(&sql).await?;
        Ok(true)
    }

    /// Removes the text from the database, if this role may.
    pub(crate) async fn clear(&self, session: &mut Session, slot: &str) -> Result<(), Error> {
        if self.may(session, "DELETE").await? {
            let sql = format!(
                "{}DELETE FROM walrelay_state.{} WHERE slot = {}",
                position_note::WRITE,
                self.table,
                quote_literal(slot)
            );
            session.query(&sql).await?;
        }
        Ok(())
    }

    /// Returns the path of the file alongside a state file.
    fn file_of(&self, state_file: &Path) -> PathBuf {
        let mut path = OsString::from(state_file);
        path.push(self.suffix);
        PathBuf::from(path)
    }

    /// Reads the text of a slot from the file. A file that cannot be used counts as none.
    pub(crate) fn read_file<T: DeserializeOwned>(
        &self,
        state_file: &Path,
        slot: &str,
    ) -> Option<T> {
        let path = self.file_of(state_file);
        // Opening a FIFO waits for its other end.
        let metadata = fs::metadata(&path).ok()?;
        if !metadata.is_file() || metadata.len() > LARGEST {
            return None;
        }
        let text = fs::read_to_string(path).ok()?;
        let mut content: Map<String, Value> = serde_json::from_str(&text).ok()?;
        let version = content.get("version").map_or(Some(1), Value::as_u64)?;
        let is_known = version <= VERSION && content.get("slot")?.as_str() == Some(slot);
        let value = content.remove(self.column).filter(|_| is_known)?;
        serde_json::from_value(value).ok()
    }

    /// Writes the text to the file.
    pub(crate) fn write_file<T: Serialize>(
        &self,
        state_file: &Path,
        slot: &str,
        value: &T,
    ) -> io::Result<()> {
        let content = json!({ "version": VERSION, "slot": slot, self.column: value });
        replace_file(&self.file_of(state_file), &content.to_string())
    }

    /// Removes the file, if there is one.
    pub(crate) fn remove_file(&self, state_file: &Path) -> io::Result<()> {
        match fs::remove_file(self.file_of(state_file)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }
}

/// Returns true if the schema `walrelay_state` has this table. `to_regclass` would need USAGE on the schema.
pub(crate) async fn has_table(session: &mut Session, name: &str) -> Result<bool, Error> {
    let sql = format!(
        "SELECT FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace \
         WHERE n.nspname = 'walrelay_state' AND c.relname = {} AND c.relkind = 'r'",
        quote_literal(name)
    );
    Ok(!session.query(&sql).await?.is_empty())
}

/// Returns true if a publication carries each new table: a subscriber would stop at this one.
pub(crate) async fn is_published(session: &mut Session) -> Result<bool, Error> {
    let sql = "SELECT FROM pg_catalog.pg_publication WHERE puballtables";
    Ok(!session.query(sql).await?.is_empty())
}
