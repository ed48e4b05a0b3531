//! Marks the rows of open dead letters on the user's word (`cutover rollback --mark-dead-letters`).
//!
//! An id of an event need not be the key of its row: a row is marked only if it is the only one of its id, and the slot
//! has confirmed its event. The rows are chosen before the log is read, so that the log has the events of all of them.

use walrelay_relay::TableName;
use walrelay_walsender::{Session, quote_ident};

use super::catalog;
use super::confirmation::{count_changed, count_rows, counted_sql};
use super::dead_letters::{DeadLetters, DeadLettersError};
use super::mark::Marking;
use super::mark_error::MarkError;
use super::rollback::UnconfirmedRows;
use super::script;

/// The unsent rows of open dead letters, in temporary tables of a session.
#[derive(Debug)]
pub struct DeadLetterRows {
    tables: Vec<ChosenRows>,
}

/// The chosen rows of one table.
#[derive(Debug)]
struct ChosenRows {
    table: TableName,
    unsent: String,
    /// `ONLY "schema"."table"`, or without ONLY if it is partitioned.
    from: String,
    /// The temporary table: the place of each row, its transaction, its id, and its key as `walrelay_1` and so on.
    temporary: String,
}

impl Marking {
    /// Checks that each open dead letter that was read names its table, has an id, and is of one of these clusters.
    /// `systems`: the system identifiers of this cluster, and of the one that the outbox was moved from.
    ///
    /// # Errors
    /// If one does not, or is of another one: [`mark_dead_letters`](Self::mark_dead_letters) could not find its row, or
    /// would find another one.
    pub fn check_dead_letters(
        &self,
        dead_letters: &DeadLetters,
        systems: &[String],
    ) -> Result<(), DeadLettersError> {
        dead_letters.check_clusters(systems)?;
        for table in &self.tables {
            dead_letters.named_rows(table)?;
        }
        Ok(())
    }

    /// Chooses the unsent rows of the open dead letters that were read.
    ///
    /// # Errors
    /// Also if several rows have the id of a dead letter.
    pub async fn choose_dead_letter_rows(
        &self,
        session: &mut Session,
        dead_letters: &DeadLetters,
    ) -> Result<DeadLetterRows, MarkError> {
        let mut tables = Vec::new();
        for (number, (table, unsent)) in self.conditions(session).await?.into_iter().enumerate() {
            let rows = dead_letters.named_rows(&table)?;
            let (Some(rows), Some(id)) = (rows, dead_letters.id_column()) else {
                continue;
            };
            let facts = catalog::table(&session.query(&catalog::table_sql(&table)).await?);
            let Some(facts) = facts.filter(|facts| !facts.primary_key.is_empty()) else {
                return Err(MarkError::NoKey(table));
            };
            let key = facts.primary_key.iter().enumerate();
            let key = key.map(|(at, name)| format!("{} AS walrelay_{at}", quote_ident(name)));
            let key: Vec<String> = key.collect();
            let (name, temporary) = (script::table(&table), format!("walrelay_dead_{number}"));
            let from = script::rows_of(&table, facts.kind == "p");
            let choose = [
                format!("DROP TABLE IF EXISTS pg_temp.{temporary}"),
                format!(
                    "CREATE TEMPORARY TABLE {temporary} AS SELECT {name}.tableoid AS walrelay_part, \
                     {name}.ctid AS walrelay_place, {name}.xmin::text AS walrelay_xid, \
                     pg_catalog.format('%s', {id}) AS walrelay_id, (\n{unsent}\n) AS walrelay_unsent, {key} \
                     FROM {from} WHERE {rows}",
                    key = key.join(", "),
                ),
            ];
            session.query_all(&choose).await?;
            let several = format!(
                "SELECT count(*) AS rows FROM (SELECT FROM pg_temp.{temporary} GROUP BY walrelay_id \
                 HAVING count(*) > 1) AS several"
            );
            let ids = count_rows(session, &several).await?;
            if ids > 0 {
                return Err(DeadLettersError::SeveralRows { table, ids }.into());
            }
            let sent = format!("DELETE FROM pg_temp.{temporary} WHERE walrelay_unsent IS NOT TRUE");
            session.query(&sent).await?;
            tables.push(ChosenRows {
                table,
                unsent,
                from,
                temporary,
            });
        }
        Ok(DeadLetterRows { tables })
    }

    /// Marks the chosen rows whose events are confirmed and that were not changed since. Returns the number of marked
    /// rows, and of the others. `unconfirmed`: read after the rows were chosen.
    pub async fn mark_dead_letters(
        &self,
        session: &mut Session,
        chosen: &DeadLetterRows,
        unconfirmed: &UnconfirmedRows,
    ) -> Result<(u64, u64), MarkError> {
        let (mut marked, mut left) = (0, 0);
        for ChosenRows {
            table,
            unsent,
            from,
            temporary,
        } in &chosen.tables
        {
            let Some((keys, key)) = unconfirmed.keys_of(table) else {
                return Err(MarkError::NoKey(table.clone()));
            };
            let count = format!("SELECT count(*) AS rows FROM pg_temp.{temporary}");
            let rows = count_rows(session, &count).await?;
            let same = key.iter().enumerate();
            let same = same.map(|(at, name)| {
                format!("unconfirmed.{} = chosen.walrelay_{at}", quote_ident(name))
            });
            let same: Vec<String> = same.collect();
            let exclude = format!(
                "DELETE FROM pg_temp.{temporary} AS chosen USING pg_temp.{keys} AS unconfirmed WHERE {}",
                same.join(" AND ")
            );
            session.query(&exclude).await?;
            // The condition may name columns of the table, so the other one has no such name.
            let change = format!(
                "WITH changed AS (UPDATE {from} SET {set}\n FROM pg_temp.{temporary} AS chosen \
                 WHERE {name}.ctid = chosen.walrelay_place AND {name}.tableoid = chosen.walrelay_part \
                 AND {name}.xmin::text = chosen.walrelay_xid AND (\n{unsent}\n) RETURNING (\n{unsent}\n) AS unchanged) {counted}",
                name = script::table(table),
                set = self.set,
                counted = counted_sql("unchanged"),
            );
            let changed = count_changed(session, &change, table).await?;
            marked += changed;
            left += rows - changed;
        }
        Ok((marked, left))
    }
}
