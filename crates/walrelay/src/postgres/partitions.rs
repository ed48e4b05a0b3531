//! Whole partitions of an outbox that is partitioned by time: the next are created, old ones are dropped.
//!
//! A partition is detached first, in a short transaction that locks the table before the partition, as writers do. No
//! insert reaches the partition from then on, and each that did has ended: the position of the log that is read then
//! lies behind all of them. Once every slot has confirmed that position, the detached table is dropped, which locks
//! nothing else (docs/adr/0032-a-partition-is-detached-then-confirmed.md).

use std::time::Duration;

use walrelay_relay::TableName;
use walrelay_walsender::{Error, Session, quote_literal};

use super::confirmed::{confirmed, flush, number, position, quoted};
use super::prune::{PruneError, Pruning};

/// Room for the time at the end of a partition's name; Postgres cuts names at 63 bytes.
const LONGEST_STEM: usize = 46;
const DAY: u64 = 24 * 60 * 60;
/// With the table's oid: the advisory lock of those who change its partitions.
const LOCK: u32 = 0x7761_6c72;

/// What is done, or would be done, to a partition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Change {
    Created(TableName),
    Dropped(TableName),
}

/// A partition that has no table yet.
#[derive(Debug, PartialEq, Eq)]
struct Missing {
    name: TableName,
    from: String,
    to: String,
}

/// A partition that is old enough, or was and is detached already.
#[derive(Debug, PartialEq, Eq)]
struct Old {
    name: TableName,
    attached: bool,
}

impl Pruning {
    /// Whether the table is partitioned by RANGE on the column of its rows' age.
    pub(super) async fn is_partitioned(
        &self,
        session: &mut Session,
        table: &TableName,
        column: &str,
    ) -> Result<bool, Error> {
        let sql = format!(
            "SELECT count(*) AS rows FROM pg_catalog.pg_partitioned_table p \
             JOIN pg_catalog.pg_attribute a ON a.attrelid = p.partrelid AND a.attnum = p.partattrs[0] \
             WHERE p.partrelid = {} AND p.partstrat = 'r' AND p.partnatts = 1 AND a.attname = {}",
            oid(table),
            quote_literal(column)
        );
        Ok(number(session, &sql).await? > 0)
    }

    /// What [`change_partitions`](Self::change_partitions) would do, if all rows are confirmed.
    pub(crate) async fn planned(&self, session: &mut Session) -> Result<Vec<Change>, PruneError> {
        let mut planned = Vec::new();
        for table in &self.partitioned(session).await? {
            let missing = self.missing(session, table).await?;
            planned.extend(missing.into_iter().map(|part| Change::Created(part.name)));
            let old = self.old(session, table).await?;
            planned.extend(old.into_iter().map(|part| Change::Dropped(part.name)));
        }
        Ok(planned)
    }

    /// Creates and drops partitions of all tables. What fails is in the way of nothing else; the first error is
    /// returned.
    pub(crate) async fn change_partitions(
        &self,
        session: &mut Session,
        mut changed: impl FnMut(Change),
    ) -> Result<(), PruneError> {
        let tables = self.partitioned(session).await?;
        let mut first = None;
        // A partition that is missing stops the services: those come first.
        for table in &tables {
            for part in self.missing(session, table).await? {
                match self.create(session, table, &part).await {
                    Ok(false) => {}
                    Ok(true) => changed(Change::Created(part.name)),
                    Err(error) => {
                        session.query("ROLLBACK").await?;
                        first.get_or_insert(error);
                    }
                }
            }
        }
        for table in &tables {
            if let Err(error) = self.drop_old(session, table, &mut changed).await {
                session.query("ROLLBACK").await?;
                first.get_or_insert(error);
            }
        }
        first.map_or(Ok(()), Err)
    }

    /// The tables so partitioned. The session speaks of times in UTC from here on.
    async fn partitioned(&self, session: &mut Session) -> Result<Vec<TableName>, PruneError> {
        session.query("SET TimeZone TO 'UTC'").await?;
        let mut tables = Vec::new();
        for table in &self.tables {
            let column = self.column_of(session, table).await?;
            if self.is_partitioned(session, table, &column).await? {
                tables.push(table.clone());
            }
        }
        Ok(tables)
    }

    /// The current partition and the next ones, without those that are there, under whatever name.
    async fn missing(
        &self,
        session: &mut Session,
        table: &TableName,
    ) -> Result<Vec<Missing>, Error> {
        let Some(interval) = self.partition else {
            return Ok(Vec::new());
        };
        let seconds = interval.as_secs().max(1);
        let name = if seconds.is_multiple_of(DAY) {
            "YYYYMMDD"
        } else {
            "YYYYMMDD_HH24MISS"
        };
        let time = "YYYY-MM-DD HH24:MI:SS+00";
        let sql = format!(
            "SELECT pg_catalog.to_char(wanted.since, '{name}') AS name, \
             pg_catalog.to_char(wanted.since, '{time}') AS since, pg_catalog.to_char(wanted.until, '{time}') AS until \
             FROM (SELECT pg_catalog.to_timestamp(n * {seconds}) AS since, \
             pg_catalog.to_timestamp((n + 1) * {seconds}) AS until FROM (SELECT n + \
             pg_catalog.floor(EXTRACT(epoch FROM pg_catalog.now()) / {seconds})::int8 AS n \
             FROM pg_catalog.generate_series(0, {ahead}) AS n) AS numbers) AS wanted \
             WHERE NOT EXISTS (SELECT FROM {parts} WHERE parts.since <= wanted.since AND parts.until >= wanted.until) \
             ORDER BY wanted.since",
            ahead = self.ahead,
            parts = parts(table),
        );
        let rows = session.query(&sql).await?;
        let text = |value: Option<&str>| value.unwrap_or_default().to_owned();
        let missing = rows.iter().map(|row| Missing {
            name: TableName {
                schema: table.schema.clone(),
                name: named(&table.name, row.get("name").unwrap_or_default()),
            },
            from: text(row.get("since")),
            to: text(row.get("until")),
        });
        Ok(missing.collect())
    }

    /// Partitions that are old enough as a whole, and tables that were detached as such.
    async fn old(&self, session: &mut Session, table: &TableName) -> Result<Vec<Old>, Error> {
        let sql = format!(
            "SELECT schema, name, attached FROM (SELECT schema, name, true AS attached, until FROM {parts} \
             WHERE until <= pg_catalog.now() - pg_catalog.make_interval(secs => {keep}) \
             UNION ALL SELECT n.nspname, c.relname, false, NULL FROM pg_catalog.pg_description d \
             JOIN pg_catalog.pg_class c ON c.oid = d.objoid AND NOT c.relispartition \
             JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace \
             WHERE d.classoid = 'pg_catalog.pg_class'::pg_catalog.regclass AND d.objsubid = 0 \
             AND d.description = {mark}) AS old ORDER BY attached, until",
            parts = parts(table),
            keep = self.keep.as_secs_f64(),
            mark = quote_literal(&mark(table)),
        );
        let rows = session.query(&sql).await?;
        let text = |value: Option<&str>| value.unwrap_or_default().to_owned();
        let old = rows.iter().map(|row| Old {
            name: TableName {
                schema: text(row.get("schema")),
                name: text(row.get("name")),
            },
            attached: row.get("attached") == Some("t"),
        });
        Ok(old.collect())
    }

    /// Whether the partition had to be created: another relay may have done so meanwhile.
    async fn create(
        &self,
        session: &mut Session,
        table: &TableName,
        part: &Missing,
    ) -> Result<bool, PruneError> {
        self.begin_change(session, table).await?;
        if !self.missing(session, table).await?.contains(part) {
            session.query("ROLLBACK").await?;
            return Ok(false);
        }
        let (parent, child) = (quoted(table), quoted(&part.name));
        // ATTACH lets writers go on, CREATE TABLE … PARTITION OF does not. Indexes come with it, identities also.
        let statements = [
            format!(
                "CREATE TABLE {child} (LIKE {parent} INCLUDING DEFAULTS INCLUDING CONSTRAINTS INCLUDING GENERATED \
                 INCLUDING STORAGE INCLUDING COMPRESSION)"
            ),
            format!(
                "ALTER TABLE {parent} ATTACH PARTITION {child} FOR VALUES FROM ({}) TO ({})",
                quote_literal(&part.from),
                quote_literal(&part.to)
            ),
            "COMMIT".to_owned(),
        ];
        let created = session.query_all(&statements).await;
        created.map_err(|error| explained(error, table, Some(&part.name)))?;
        Ok(true)
    }

    async fn drop_old(
        &self,
        session: &mut Session,
        table: &TableName,
        changed: &mut impl FnMut(Change),
    ) -> Result<(), PruneError> {
        let old = self.old(session, table).await?;
        if old.is_empty() {
            return Ok(());
        }
        // Before anything changes: where a slot is behind, the partitions stay what they are.
        self.wait(session).await?;
        let mut detached = Ok(());
        for part in old.iter().filter(|part| part.attached) {
            detached = self.detach(session, table, part).await;
            if detached.is_err() {
                session.query("ROLLBACK").await?;
                break;
            }
        }
        let old = self.old(session, table).await?;
        let mut gone = old.iter().filter(|part| !part.attached).peekable();
        if gone.peek().is_some() {
            self.wait(session).await?;
        }
        for part in gone {
            self.begin_change(session, table).await?;
            // Another relay may have dropped it.
            if self.old(session, table).await?.contains(part) {
                let drop = format!("DROP TABLE {}", quoted(&part.name));
                let dropped = session.query(&drop).await;
                dropped.map_err(|error| explained(error, &part.name, None))?;
                changed(Change::Dropped(part.name.clone()));
            }
            session.query("COMMIT").await?;
        }
        detached
    }

    /// Takes the partition from the table, and marks it as one to be dropped.
    async fn detach(
        &self,
        session: &mut Session,
        table: &TableName,
        part: &Old,
    ) -> Result<(), PruneError> {
        self.begin_change(session, table).await?;
        if !self.old(session, table).await?.contains(part) {
            session.query("ROLLBACK").await?;
            return Ok(());
        }
        let (parent, child) = (quoted(table), quoted(&part.name));
        let statements = [
            // Several locks: writers wait for the statement as a whole.
            format!(
                "SET LOCAL statement_timeout = {}",
                millis(self.lock_timeout)
            ),
            format!("ALTER TABLE {parent} DETACH PARTITION {child}"),
            format!(
                "COMMENT ON TABLE {child} IS {}",
                quote_literal(&mark(table))
            ),
            "COMMIT".to_owned(),
        ];
        let detached = session.query_all(&statements).await;
        detached.map_err(|error| explained(error, table, None))?;
        Ok(())
    }

    /// Waits until every slot has confirmed the log as it is now.
    async fn wait(&self, session: &mut Session) -> Result<(), PruneError> {
        let position = position(session).await?;
        flush(session).await?;
        Ok(confirmed(session, &self.slots, position).await?)
    }

    /// Begins a transaction of the table's owner, in which nobody else changes its partitions.
    async fn begin_change(
        &self,
        session: &mut Session,
        table: &TableName,
    ) -> Result<(), PruneError> {
        let statements = [
            "BEGIN".to_owned(),
            format!("SET LOCAL lock_timeout = {}", millis(self.lock_timeout)),
            format!(
                "SELECT pg_catalog.set_config('role', pg_catalog.pg_get_userbyid(relowner), true) \
                 FROM pg_catalog.pg_class WHERE oid = {}",
                oid(table)
            ),
            format!(
                "SELECT pg_catalog.pg_advisory_xact_lock(({LOCK}::int8 << 32) | {}::int8)",
                oid(table)
            ),
        ];
        let begun = session.query_all(&statements).await;
        begun.map_err(|error| explained(error, table, None))?;
        Ok(())
    }
}

/// What an error of a statement that changes partitions means.
fn explained(error: Error, table: &TableName, part: Option<&TableName>) -> PruneError {
    match (error.sqlstate(), part) {
        // The lock, or the statement that waits for it, has taken too long.
        (Some("55P03" | "57014"), _) => PruneError::Locked(table.clone()),
        (Some("42501"), _) => PruneError::Owner(table.clone()),
        (Some("23514"), Some(part)) => PruneError::DefaultPartition(part.clone()),
        (Some("42P17" | "42P07"), Some(part)) => PruneError::Partition(part.clone(), error),
        _ => error.into(),
    }
}

/// The partitions of a table and their bounds, as `parts`. DEFAULT has none.
fn parts(table: &TableName) -> String {
    // A literal has quotes around it; there is one column.
    let bound = |word, open, value| {
        format!(
            "coalesce(pg_catalog.substring(bound, $$ {word} \\('([^']*)'\\)$$), \
             CASE WHEN bound ~ $$ {word} \\({open}\\)$$ THEN '{value}' END)::timestamptz"
        )
    };
    format!(
        "(SELECT schema, name, {since} AS since, {until} AS until FROM (SELECT n.nspname AS schema, c.relname AS name, \
         pg_catalog.pg_get_expr(c.relpartbound, c.oid) AS bound FROM pg_catalog.pg_inherits i \
         JOIN pg_catalog.pg_class c ON c.oid = i.inhrelid JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace \
         WHERE i.inhparent = {}) AS bounds) AS parts",
        oid(table),
        since = bound("FROM", "MINVALUE", "-infinity"),
        until = bound("TO", "MAXVALUE", "infinity"),
    )
}

/// The comment of a table that was a partition, and is to be dropped.
fn mark(table: &TableName) -> String {
    format!("walrelay has detached this from {table}, and drops it once its rows are confirmed")
}

/// A partition's name. The same for everybody who creates it.
fn named(table: &str, time: &str) -> String {
    let mut stem = table;
    while stem.len() > LONGEST_STEM {
        let last = stem.char_indices().next_back();
        stem = last.map_or("", |(at, _)| &stem[..at]);
    }
    format!("{stem}_p{time}")
}

fn oid(table: &TableName) -> String {
    let name = quote_literal(&quoted(table));
    format!("{name}::pg_catalog.regclass::oid")
}

fn millis(timeout: Duration) -> u128 {
    timeout.as_millis().max(1)
}
