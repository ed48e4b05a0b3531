//! Bookmarks: kept slots that replays read. Each belongs to the slot of one pipeline.

use walrelay_lsn::Lsn;
use walrelay_walsender::{Error, Session, quote_literal};

use super::catalog::{SlotRow, slots};
use super::{position_note, script, state_version};

/// Name of the bookmark that a running relay keeps itself (`[retention]`).
pub const ROLLING: &str = "rolling";
/// Separates the name of the slot and that of the bookmark.
const INFIX: &str = "_bookmark_";
/// Bytes of the longest name of a slot (Postgres: `NAMEDATALEN` - 1).
const MAX_NAME: usize = 63;

/// The command that keeps a bookmark of a slot before it drops or moves the slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeptBy {
    /// `slots drop`.
    Drop,
    /// `slots advance`.
    Advance,
    /// `cutover rollback`.
    Rollback,
}

impl KeptBy {
    const ALL: [Self; 3] = [Self::Drop, Self::Advance, Self::Rollback];

    /// Returns the name of the first such bookmark. Further ones have a number, such as `dropped_2`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Drop => "dropped",
            Self::Advance => "advanced",
            Self::Rollback => "rolled_back",
        }
    }
}

/// A kept slot, with the bookmark's name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bookmark {
    /// The name that the user gave.
    pub name: String,
    /// The slot that keeps its WAL.
    pub slot: SlotRow,
}

impl Bookmark {
    /// Returns where a replay from the bookmark starts; `None` if its slot is lost.
    pub fn position(&self) -> Option<Lsn> {
        self.slot.confirmed.filter(|_| !self.slot.is_lost())
    }
}

/// Returns the name of a bookmark's slot.
///
/// # Errors
/// A text for the user: why this cannot be the name of a slot.
pub fn slot_of(slot: &str, name: &str) -> Result<String, String> {
    let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
    if name.is_empty() || !name.chars().all(plain) {
        return Err(format!(
            "{name:?} is no name of a bookmark: it has lower-case letters, digits and underscores"
        ));
    }
    let whole = format!("{slot}{INFIX}{name}");
    if whole.len() > MAX_NAME {
        return Err(format!(
            "the bookmark's slot would be {whole}, which is {} bytes too long for Postgres",
            whole.len() - MAX_NAME
        ));
    }
    Ok(whole)
}

/// Returns the bookmarks of `slot` among `slots`, ordered by position.
pub fn bookmarks_among(slot: &str, slots: Vec<SlotRow>) -> Vec<Bookmark> {
    let prefix = format!("{slot}{INFIX}");
    let mut found: Vec<Bookmark> = slots
        .into_iter()
        .filter_map(|row| {
            let name = row.name.strip_prefix(&prefix)?.to_owned();
            Some(Bookmark { name, slot: row })
        })
        .collect();
    found.sort_by_key(|bookmark| bookmark.slot.confirmed);
    found
}

/// Queries the bookmarks of `slot`, ordered by position.
pub async fn bookmarks(session: &mut Session, slot: &str) -> Result<Vec<Bookmark>, Error> {
    Ok(bookmarks_among(slot, slots(session).await?))
}

/// Returns whether a command keeps bookmarks of this name, such as `dropped` or `dropped_2`.
pub fn is_kept(name: &str) -> bool {
    let is_number = |rest: &str| !rest.is_empty() && rest.chars().all(|c| c.is_ascii_digit());
    let numbered = |rest: &str| rest.strip_prefix('_').is_some_and(is_number);
    KeptBy::ALL
        .iter()
        .filter_map(|by| name.strip_prefix(by.name()))
        .any(|rest| rest.is_empty() || numbered(rest))
}

/// Drops the bookmarks of a slot that commands [keep](is_kept), if the server keeps more than `max_wal`
/// bytes of WAL for one that the slot does not need. Returns their names.
pub(crate) async fn drop_large_kept(
    session: &mut Session,
    slot: &str,
    max_wal: u64,
) -> Result<Vec<String>, Error> {
    let all = slots(session).await?;
    let restart = all.iter().find(|row| row.name == slot);
    let Some(restart) = restart.and_then(|row| row.restart) else {
        return Ok(Vec::new());
    };
    let mut dropped = Vec::new();
    for bookmark in bookmarks_among(slot, all) {
        let SlotRow {
            name,
            active_pid,
            restart: from,
            ..
        } = &bookmark.slot;
        let large = from.is_some_and(|from| restart.bytes_since(from) > max_wal);
        if is_kept(&bookmark.name) && large && active_pid.is_none() {
            session.query(&script::drop_slot(name)).await?;
            dropped.push(bookmark.name);
        }
    }
    Ok(dropped)
}

/// Returns SQL that copies a slot with its position. A temporary copy ends with its session.
pub fn copy_slot(from: &str, to: &str, temporary: bool) -> String {
    format!(
        "SELECT pg_catalog.pg_copy_logical_replication_slot({}, {}, {temporary})",
        quote_literal(from),
        quote_literal(to)
    )
}

/// Returns SQL that moves a slot without a reader to a later position.
pub fn advance_slot(slot: &str, to: Lsn) -> String {
    format!(
        "SELECT end_lsn FROM pg_catalog.pg_replication_slot_advance({}, {})",
        quote_literal(slot),
        quote_literal(&to.to_string())
    )
}

/// The table of [`read_notes`]. It is in the schema of the notes ([`noted`]).
const NOTES: &str = "walrelay_state.bookmark";
/// SQLSTATEs of a role that may not create or write a table, and of a standby.
pub const NOT_WRITABLE: [&str; 2] = ["42501", "25006"];

/// Reads the note of the rolling bookmark of this slot; `None` if there is none, or this role may
/// not read it.
pub async fn read_notes(session: &mut Session, slot: &str) -> Result<Option<String>, Error> {
    let readable = format!(
        "SELECT FROM pg_catalog.pg_class c WHERE c.oid = pg_catalog.to_regclass('{NOTES}') \
         AND pg_catalog.has_table_privilege(c.oid, 'SELECT')"
    );
    if session.query(&readable).await?.is_empty() {
        return Ok(None);
    }
    let sql = format!(
        "SELECT notes FROM {NOTES} WHERE slot = {}",
        quote_literal(slot)
    );
    let rows = session.query(&sql).await?;
    Ok(rows.first().and_then(|row| row.get(0).map(str::to_owned)))
}

/// Writes the note of the rolling bookmark of this slot. Creates the table if it is
/// missing. Returns false if this role may not, or the server is a standby.
pub async fn write_notes(session: &mut Session, slot: &str, notes: &str) -> Result<bool, Error> {
    let missing = format!("SELECT WHERE pg_catalog.to_regclass('{NOTES}') IS NULL");
    let create = if session.query(&missing).await?.is_empty() {
        String::new()
    } else {
        let schema = state_version::create_sql();
        format!(
            "{} {schema} GRANT USAGE ON SCHEMA walrelay_state TO PUBLIC; \
             CREATE TABLE IF NOT EXISTS {NOTES} (slot name PRIMARY KEY, notes text NOT NULL); ",
            position_note::LOCK
        )
    };
    let (slot, notes) = (quote_literal(slot), quote_literal(notes));
    let sql = format!(
        "SET LOCAL synchronous_commit = off; {create}INSERT INTO {NOTES} AS b VALUES ({slot}, {notes}) \
         ON CONFLICT (slot) DO UPDATE SET notes = {notes}"
    );
    match session.query(&sql).await {
        Ok(_) => Ok(true),
        Err(error)
            if error
                .sqlstate()
                .is_some_and(|state| NOT_WRITABLE.contains(&state)) =>
        {
            Ok(false)
        }
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_becomes_the_name_of_a_slot_and_back() {
        assert_eq!(slot_of("orders", "may_1").unwrap(), "orders_bookmark_may_1");
        for wrong in ["", "May", "a-b", "a b", "ä"] {
            assert!(
                slot_of("orders", wrong).unwrap_err().contains("lower-case"),
                "{wrong}"
            );
        }
        let long = "n".repeat(46);
        assert!(slot_of("orders", &long).is_ok());
        let error = slot_of("orders", &format!("{long}nn")).unwrap_err();
        assert!(
            error.contains("1 bytes too long") || error.contains("2 bytes too long"),
            "{error}"
        );
        let row = |name: &str, at| SlotRow {
            name: name.to_owned(),
            confirmed: Some(Lsn::new(at)),
            ..SlotRow::default()
        };
        let all = vec![
            row("orders", 1),
            row("orders_bookmark_b", 9),
            row("orders_bookmark_a", 10),
            row("other_bookmark_c", 3),
        ];
        let found = bookmarks_among("orders", all);
        let names: Vec<&str> = found.iter().map(|found| found.name.as_str()).collect();
        assert_eq!(names, ["b", "a"]);
    }

    #[test]
    fn bookmarks_that_commands_keep_are_known_by_their_names() {
        for kept in ["dropped", "advanced_2", "rolled_back", "rolled_back_13"] {
            assert!(is_kept(kept), "{kept}");
        }
        for other in [
            "rolling",
            "dropped_",
            "dropped_by_me",
            "back",
            "rolled",
            "2",
        ] {
            assert!(!is_kept(other), "{other}");
        }
    }

    #[test]
    fn a_lost_bookmark_has_no_position() {
        let of = |status: &str| Bookmark {
            name: "a".to_owned(),
            slot: SlotRow {
                confirmed: Some(Lsn::new(8)),
                wal_status: Some(status.to_owned()),
                ..SlotRow::default()
            },
        };
        assert_eq!(of("reserved").position(), Some(Lsn::new(8)));
        assert_eq!(of("lost").position(), None);
    }
}
