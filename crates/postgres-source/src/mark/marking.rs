//! [`Marking`]: the unsent rows and their mark, and the commands that count and mark them while no relay runs.

use std::collections::HashSet;
use std::time::Duration;

use walrelay_relay::TableName;
use walrelay_walsender::{ConnInfo, Error, Session, SessionKind};

use super::stored::{PAGE, work_off_page};
use crate::catalog::Selection;
use crate::confirmation::{ConfirmedError, begin_snapshot, count_rows, flush_wal, wait_confirmed};
use crate::dead_letters::DeadLetters;
use crate::dead_rows;
use crate::error::PostgresError;
use crate::mark_error::MarkError;
use crate::script;
use crate::sent_keys::MarkByKey;
use crate::snapshot::unsent_condition;
use crate::unmarked::{self, After};

/// Memory of the ids of all rows that are not marked: some millions of them.
const UNMARKED_BYTES: usize = 1 << 30;

/// `lock_timeout` once the relay has stopped. The server works off the last statement of a relay that
/// was killed, and nothing else waits for these rows.
const LOCK_TIMEOUT: Duration = Duration::from_secs(60);

/// The rows that count as not sent, and the way in which they are marked.
#[derive(Debug, Clone)]
pub struct Marking {
    /// The relay's slot.
    pub slot: String,
    /// The outbox tables.
    pub tables: Vec<TableName>,
    /// Selects the rows that are not marked yet.
    pub selection: Selection,
    /// The SQL assignments of `UPDATE … SET` that mark a row.
    pub set: String,
    /// The prefix of logical messages that are events.
    pub messages: Option<String>,
    /// The table of unmarked rows may be created.
    pub create: bool,
}

impl Marking {
    /// Returns the tables, each with the condition for its unsent rows.
    pub(crate) async fn conditions(
        &self,
        session: &mut Session,
    ) -> Result<Vec<(TableName, String)>, PostgresError> {
        let (tables, missing) = self.found_conditions(session).await?;
        match missing.into_iter().next() {
            Some((_, error)) => Err(error),
            None => Ok(tables),
        }
    }

    /// Returns the tables whose unsent rows are known, each with the condition for them, and why those of others are not,
    /// for example because the column of the mark was renamed: their rows wait, and no others.
    pub(super) async fn found_conditions(
        &self,
        session: &mut Session,
    ) -> Result<(Vec<(TableName, String)>, Vec<(TableName, PostgresError)>), PostgresError> {
        let (mut tables, mut missing) = (Vec::new(), Vec::new());
        for table in &self.tables {
            match unsent_condition(session, table, &self.selection).await {
                Ok(unsent) => tables.push((table.clone(), unsent)),
                Err(error @ PostgresError::Setup(_)) => missing.push((table.clone(), error)),
                Err(error) => return Err(error),
            }
        }
        Ok((tables, missing))
    }

    /// Connects a session for the marks of a relay that has stopped.
    pub async fn connect_stopped(&self, info: &ConnInfo) -> Result<Session, Error> {
        let lock_timeout = LOCK_TIMEOUT.as_millis().to_string();
        let settings = [
            ("lock_timeout", lock_timeout.as_str()),
            ("enable_seqscan", "off"),
            // A row that a policy hides may be that of an unsent event: an error says so.
            ("row_security", "off"),
        ];
        Session::connect(info, SessionKind::Sql, &settings).await
    }

    /// Marks the stored rows of a slot that no relay reads, and waits for locked ones. Returns their
    /// number.
    ///
    /// # Errors
    /// Also if not every row that is still unsent is marked.
    pub async fn work_off_stopped(&self, session: &mut Session) -> Result<u64, MarkError> {
        if !unmarked::exists(session).await? {
            return Ok(0);
        }
        let tables = self.conditions(session).await?;
        let by_key = MarkByKey {
            tables: &tables,
            set: &self.set,
            waits: true,
        };
        let (mut rows, mut left, mut failed) = (0, 0, None);
        let mut after = After::default();
        loop {
            let page = unmarked::page(session, &self.slot, &after, PAGE).await?;
            let Some(last) = page.last() else {
                break;
            };
            after.id = last.id;
            let worked = work_off_page(session, &self.slot, &by_key, &page).await?;
            rows += worked.rows;
            left += worked.left;
            failed = failed.or(worked.first_failure());
        }
        match (failed, left) {
            (None, 0) => Ok(rows),
            (Some(error), _) => Err(error),
            (None, left) => Err(MarkError::Left(left)),
        }
    }

    /// Marks as sent the rows of dead letters that were redriven and whose rows the relay could not mark before it
    /// stopped (`mark_dead`). Returns their number.
    ///
    /// # Errors
    /// Also if not every such row is marked.
    pub async fn work_off_redriven(
        &self,
        session: &mut Session,
        dead_letters: &DeadLetters,
    ) -> Result<u64, MarkError> {
        let tables = self.conditions(session).await?;
        let by_key = MarkByKey {
            tables: &tables,
            set: &self.set,
            waits: true,
        };
        dead_rows::work_off_stopped(session, &self.slot, dead_letters, &by_key).await
    }

    /// Counts the unsent rows of the dead letters that were read.
    pub async fn dead_letter_rows(
        &self,
        session: &mut Session,
        dead_letters: &DeadLetters,
    ) -> Result<u64, MarkError> {
        let mut total = 0;
        for (table, unsent) in self.conditions(session).await? {
            if let Some(rows) = dead_letters.rows(&table)? {
                let table = script::table(&table);
                let sql =
                    format!("SELECT count(*) AS rows FROM {table} WHERE (\n{unsent}\n) AND {rows}");
                total += count_rows(session, &sql).await?;
            }
        }
        Ok(total)
    }

    /// Waits until the slot has confirmed everything that is committed now.
    pub async fn wait_confirmed(&self, session: &mut Session) -> Result<(), ConfirmedError> {
        // A new slot has already confirmed the end of an idle WAL, so write to the WAL first.
        flush_wal(session).await?;
        let position = begin_snapshot(session, Duration::from_secs(1)).await?;
        session.query("COMMIT").await?;
        flush_wal(session).await?;
        wait_confirmed(session, std::slice::from_ref(&self.slot), position).await
    }

    /// Queries the values of `column`, quoted SQL, in the rows that are not marked.
    pub async fn unmarked_ids(
        &self,
        session: &mut Session,
        column: &str,
    ) -> Result<HashSet<String>, PostgresError> {
        let column = format!("{column}::text");
        let mut ids = HashSet::new();
        for sql in self.unmarked_rows(session, &column).await? {
            let rows = session.query_within(&sql, UNMARKED_BYTES).await;
            let rows = rows.map_err(PostgresError::from_rows)?;
            ids.extend(rows.iter().filter_map(|row| row.get(0).map(str::to_owned)));
        }
        Ok(ids)
    }

    /// Counts the rows that are not marked.
    pub async fn unmarked(&self, session: &mut Session) -> Result<u64, PostgresError> {
        let mut total = 0;
        for sql in self.unmarked_rows(session, "count(*) AS rows").await? {
            let count = count_rows(session, &sql).await;
            total += count.map_err(PostgresError::from_rows)?;
        }
        Ok(total)
    }

    /// Queries each table: `what` of the rows that are not marked.
    async fn unmarked_rows(
        &self,
        session: &mut Session,
        what: &str,
    ) -> Result<Vec<String>, PostgresError> {
        let conditions = self.conditions(session).await?;
        let queries = conditions.iter().map(|(table, unsent)| {
            let table = script::table(table);
            format!("SELECT {what} FROM {table} WHERE (\n{unsent}\n)")
        });
        Ok(queries.collect())
    }
}
