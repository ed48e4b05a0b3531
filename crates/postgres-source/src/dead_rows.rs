//! Marks the rows of dead letters (`[source] mark_dead`), and marks those as sent whose dead letters were redriven
//! (docs/adr/0067-a-row-says-that-it-is-a-dead-letter.md).
//!
//! The key of such a row comes as that of a sent row does: the destination acknowledged the dead letter. It is
//! stored before the position is confirmed, and stays until the dead letter is resolved. The topic of dead letters
//! tells how it was resolved.

use std::collections::BTreeMap;
use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::time::Duration;

use tokio::time::{Instant, timeout};
use tracing::warn;
use walrelay_lsn::Lsn;
use walrelay_relay::{KeyedTable, TableName};
use walrelay_sink::EventPosition;
use walrelay_sink::dead_letters::Outcome;
use walrelay_walsender::{Error, Session, quote_ident, quote_literal};

use super::catalog::row::{is_true, parsed};
use super::dead_letters::DeadLetters;
use super::mark_error::MarkError;
use super::noted;
use super::sections::{ATTEMPTS, ERROR};
use super::sent_keys::{MarkByKey, RowKey, array, in_progress};
use super::state_version;
use super::unmarked::{STORED_KEY, stored_key};

const TABLE: &str = "walrelay_state.dead";
/// Keys that one statement stores, at most.
const KEYS_OF_STATEMENT: usize = 500;
/// Rows that one round looks at, at most.
const PAGE: usize = 1_000;
/// Memory of the keys of one query.
const PAGE_BYTES: usize = 64 << 20;
/// Interval between two reads of the resolutions.
const RESOLVED_INTERVAL: Duration = Duration::from_secs(3);
/// The time after which a round ends with the row that it is at, and after which it waits for the resolutions no
/// longer.
const PASS: Duration = Duration::from_secs(3);

/// Returns SQL that creates the table. It holds keys of rows, so only its owner may read it, and `role`: the
/// relay's role, if another one creates the table.
pub fn create_sql(role: Option<&str>) -> String {
    let schema = state_version::create_sql();
    let create = format!(
        "{schema}\n\
         GRANT USAGE ON SCHEMA walrelay_state TO PUBLIC;\n\
         CREATE TABLE IF NOT EXISTS {TABLE} (\n    id          bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,\n    \
         slot        name NOT NULL,        -- the relay's slot\n    \
         lsn         pg_lsn NOT NULL,      -- the event's position, as in its dead letter\n    \
         \"row\"       bigint NOT NULL,\n    \
         relation    oid NOT NULL,         -- the table or partition that the log names\n    \
         \"table\"     text[] NOT NULL,      -- schema and name of the outbox table\n    \
         key_columns text[] NOT NULL,\n    row_columns text[] NOT NULL,      -- the columns that the hash covers\n    \
         xid         bigint NOT NULL,      -- the transaction that inserted the row; 0: a snapshot read it\n    \
         key         text[] NOT NULL,\n    hash        text NOT NULL,        -- of the row as it was inserted\n    \
         marked_hash text,                 -- of the row as mark_dead left it\n    \
         marked      boolean NOT NULL DEFAULT false,\n    \
         attempts    integer NOT NULL DEFAULT 1,\n    \
         error       text NOT NULL,        -- the cause of the dead letter\n    \
         run         text NOT NULL,        -- the process that made the last attempt\n    \
         since       timestamptz NOT NULL DEFAULT now(),\n    UNIQUE (slot, lsn, \"row\")\n);"
    );
    let grant = role.map(|role| {
        let role = quote_ident(role);
        format!("\nGRANT SELECT, INSERT, UPDATE, DELETE ON {TABLE} TO {role};")
    });
    create + &grant.unwrap_or_default()
}

/// The key of a row whose event became a dead letter.
pub(super) struct DeadKey {
    pub(super) event: EventPosition,
    pub(super) key: RowKey,
    pub(super) reason: String,
}

/// A stored key.
struct StoredRow {
    id: u64,
    event: EventPosition,
    marked: bool,
    table: KeyedTable,
    key: RowKey,
}

/// The outcome of marking a row.
enum Marked {
    Now,
    /// It is locked, or not visible yet.
    Later,
    /// It is gone, or was changed since: it is another event.
    Gone,
}

/// Marks the rows of dead letters.
#[derive(Debug)]
pub struct DeadMarking {
    /// The SQL assignments of `mark_dead`.
    set: String,
    dead_letters: DeadLetters,
    /// Tells the attempts of this process from those of others.
    run: String,
    /// Keys are stored, as far as is known.
    pub(super) has_rows: bool,
    resolved_at: Option<Instant>,
}

impl DeadMarking {
    /// Creates it from `mark_dead` and the reader of the slot's dead letters.
    pub fn new(set: String, dead_letters: DeadLetters) -> Self {
        Self {
            set,
            dead_letters,
            // Two processes have the same number by chance only.
            run: format!("{:016x}", RandomState::new().build_hasher().finish()),
            has_rows: true,
            resolved_at: None,
        }
    }

    /// Stores keys. That of an event which this slot has stored before counts one attempt more, unless this
    /// process has stored it.
    pub(super) async fn store(
        &mut self,
        session: &mut Session,
        slot: &str,
        create: bool,
        table: &KeyedTable,
        keys: &[DeadKey],
    ) -> Result<(), Error> {
        if create && !exists(session).await? {
            let sql = format!("{} {}", noted::LOCK, create_sql(None));
            session.query(&sql).await?;
        }
        let texts = |values: &[String]| {
            let array = array(values.iter().map(String::as_str));
            format!("{}::text[]", quote_literal(&array))
        };
        let name = [table.table.schema.clone(), table.table.name.clone()];
        for keys in keys.chunks(KEYS_OF_STATEMENT) {
            let values = keys.iter().map(|dead| {
                // PostgreSQL has no text with a zero character.
                let reason = dead.reason.replace('\0', "");
                let values = [
                    quote_literal(slot),
                    quote_literal(&Lsn::new(dead.event.lsn).to_string()),
                    dead.event.row.to_string(),
                    table.relation.get().to_string(),
                    texts(&name),
                    texts(&table.columns),
                    texts(&table.row_columns),
                    dead.key.xid.to_string(),
                    texts(&dead.key.values),
                    quote_literal(&dead.key.hash),
                    quote_literal(&reason),
                    quote_literal(&self.run),
                ];
                let event = (dead.event.lsn, dead.event.row);
                (event, format!("({})", values.join(", ")))
            });
            // A statement may name each event once: the newest key of an event counts.
            let values: BTreeMap<_, String> = values.collect();
            let values: Vec<String> = values.into_values().collect();
            let sql = format!(
                "INSERT INTO {TABLE} AS known (slot, lsn, \"row\", relation, \"table\", key_columns, row_columns, xid, key, \
                 hash, error, run) VALUES {} ON CONFLICT (slot, lsn, \"row\") DO UPDATE SET \
                 attempts = CASE WHEN known.hash <> excluded.hash OR known.key <> excluded.key THEN 1 \
                 ELSE known.attempts + (known.run <> excluded.run)::int END, \
                 marked_hash = CASE WHEN known.hash = excluded.hash AND known.key = excluded.key \
                 THEN known.marked_hash END, \
                 marked = false, relation = excluded.relation, \"table\" = excluded.\"table\", \
                 key_columns = excluded.key_columns, row_columns = excluded.row_columns, xid = excluded.xid, \
                 key = excluded.key, hash = excluded.hash, error = excluded.error, run = excluded.run",
                values.join(", ")
            );
            session.query(&sql).await?;
        }
        self.has_rows = true;
        Ok(())
    }

    /// Marks the stored rows that are not marked yet, and as sent those whose dead letters were redriven. Returns
    /// their number.
    pub(super) async fn work_off(
        &mut self,
        session: &mut Session,
        slot: &str,
        sent: &MarkByKey<'_>,
    ) -> Result<u64, MarkError> {
        if !exists(session).await? {
            self.has_rows = false;
            return Ok(0);
        }
        let is_due = self
            .resolved_at
            .is_none_or(|at| at.elapsed() >= RESOLVED_INTERVAL);
        let (mut rows, mut obstacle) = (0, None);
        let (mut after, mut is_any, mut is_read) = (0, false, false);
        let until = Instant::now() + PASS;
        while Instant::now() < until {
            let page = page(session, slot, after).await?;
            let Some(last) = page.last() else {
                break;
            };
            after = last.id;
            is_any = true;
            if is_due && !is_read {
                is_read = true;
                let read = timeout(PASS, self.dead_letters.read()).await;
                self.resolved_at = Some(Instant::now());
                match read {
                    Ok(read) => read?,
                    // The reading goes on, and the next call waits for it. Rows of a topic that was not read
                    // to its end may be resolved, so none is marked.
                    Err(_) => return Ok(rows),
                }
            }
            for dead in &page {
                if Instant::now() >= until {
                    break;
                }
                let worked = match self.dead_letters.outcome(dead.event) {
                    Some(Outcome::Redriven) => redriven(session, sent, dead).await,
                    // The row stays as mark_dead has left it.
                    Some(Outcome::Dropped) => Ok(Marked::Gone),
                    None if dead.marked => continue,
                    None => mark(session, sent, dead, &self.set).await,
                };
                match worked {
                    Ok(Marked::Now) => rows += 1,
                    Ok(Marked::Later) => {}
                    Ok(Marked::Gone) => delete(session, dead.id).await?,
                    Err(error) => {
                        // If the connection is lost, this fails as well.
                        let _ = session.query("ROLLBACK").await;
                        if error.may_pass() {
                            return Err(error);
                        }
                        obstacle = Some(error);
                    }
                }
            }
        }
        self.has_rows = is_any;
        obstacle.map_or(Ok(rows), Err)
    }
}

/// Marks a row as sent, and deletes its key.
async fn redriven(
    session: &mut Session,
    sent: &MarkByKey<'_>,
    dead: &StoredRow,
) -> Result<Marked, MarkError> {
    let keys = std::slice::from_ref(&dead.key);
    let marked = sent.mark(session, &dead.table, keys).await?;
    if !marked.later.is_empty() {
        return Ok(Marked::Later);
    }
    delete(session, dead.id).await?;
    Ok(if marked.rows > 0 {
        Marked::Now
    } else {
        Marked::Gone
    })
}

/// Marks a row as a dead letter. It counts as not sent after that, too.
async fn mark(
    session: &mut Session,
    by_key: &MarkByKey<'_>,
    dead: &StoredRow,
    set: &str,
) -> Result<Marked, MarkError> {
    let Some(target) = by_key.target(session, &dead.table).await? else {
        warn!(
            table = %dead.table.table,
            event = %Lsn::new(dead.event.lsn),
            "the row of a dead letter is not marked: its table is not among [source] tables, or has no primary key"
        );
        return Ok(Marked::Gone);
    };
    if in_progress(session).await?.contains(dead.key.xid) {
        return Ok(Marked::Later);
    }
    let same = target.same_keys(std::slice::from_ref(&dead.key), &[0]);
    let name = super::script::table(target.table);
    let (condition, from, is_sent) = (target.condition, &target.from, &target.is_sent);
    // The values are read from the stored row, so no text of them is a part of the statement.
    let value = |column: &str| {
        format!(
            "(SELECT walrelay_dead.{column} FROM {TABLE} AS walrelay_dead WHERE walrelay_dead.id = {})",
            dead.id
        )
    };
    let set = set
        .replace(ATTEMPTS, &value("attempts"))
        .replace(ERROR, &value("error"));
    let hash = target.hash.as_deref().unwrap_or("NULL::text");
    // The condition and the assignments are on lines of their own, because they may end in a comment.
    let change = format!(
        "WITH batch AS (SELECT {name}.tableoid AS walrelay_part, {name}.ctid AS walrelay_place \
         FROM {from}, {same} AND (\n{condition}\n) AND {is_sent} FOR UPDATE SKIP LOCKED), \
         changed AS (UPDATE {from} SET {set}\n FROM batch \
         WHERE {name}.ctid = batch.walrelay_place AND {name}.tableoid = batch.walrelay_part \
         RETURNING (\n{condition}\n) AS unsent, {hash} AS hash) \
         SELECT count(*) AS rows, count(*) FILTER (WHERE unsent) AS unsent, min(hash) AS hash FROM changed",
    );
    session.query("BEGIN").await?;
    let changed = session.query(&change).await?;
    let count = |name| {
        let row = changed.first();
        row.and_then(|row| parsed::<u64>(&row, name)).unwrap_or(0)
    };
    if count("rows") > 0 {
        if count("unsent") < count("rows") {
            let table: TableName = target.table.clone();
            return Err(MarkError::DeadCountsAsSent(table));
        }
        let hash = changed
            .first()
            .and_then(|row| row.get("hash").map(quote_literal));
        let noted = format!(
            "UPDATE {TABLE} SET marked = true, marked_hash = {} WHERE id = {}",
            hash.unwrap_or_else(|| "NULL".to_owned()),
            dead.id
        );
        session.query(&noted).await?;
        session.query("COMMIT").await?;
        return Ok(Marked::Now);
    }
    session.query("ROLLBACK").await?;
    let locked = format!("SELECT FROM {from}, {same} AND (\n{condition}\n) AND {is_sent}");
    let is_locked = !session.query(&locked).await?.is_empty();
    Ok(if is_locked {
        Marked::Later
    } else {
        Marked::Gone
    })
}

/// Returns true if the table exists.
async fn exists(session: &mut Session) -> Result<bool, Error> {
    let sql = format!("SELECT pg_catalog.to_regclass('{TABLE}') IS NOT NULL AS found");
    let rows = session.query(&sql).await?;
    Ok(rows.first().is_some_and(|row| is_true(&row, "found")))
}

/// Queries the first keys of a slot behind `after`.
async fn page(session: &mut Session, slot: &str, after: u64) -> Result<Vec<StoredRow>, Error> {
    let sql = format!(
        "SELECT id, lsn, \"row\", marked, {STORED_KEY}, coalesce(marked_hash, hash) AS hash FROM {TABLE} \
         WHERE slot = {} AND id > {after} ORDER BY id LIMIT {PAGE}",
        quote_literal(slot)
    );
    let rows = session.query_within(&sql, PAGE_BYTES).await?;
    let rows = rows.iter().filter_map(|row| {
        let (table, key) = stored_key(&row)?;
        let lsn: Lsn = parsed(&row, "lsn")?;
        Some(StoredRow {
            id: parsed(&row, "id")?,
            event: EventPosition {
                lsn: lsn.get(),
                row: parsed(&row, "row")?,
            },
            marked: is_true(&row, "marked"),
            table,
            key,
        })
    });
    Ok(rows.collect())
}

/// Deletes a key: its row is marked as sent, gone, or stays as it is.
async fn delete(session: &mut Session, id: u64) -> Result<(), Error> {
    session
        .query(&format!("DELETE FROM {TABLE} WHERE id = {id}"))
        .await?;
    Ok(())
}
