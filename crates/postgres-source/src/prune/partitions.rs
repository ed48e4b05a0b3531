//! Partitions of an outbox that is partitioned by time: creates the next ones, drops old ones.
//!
//! An old partition is detached first, in a short transaction that locks the table before the
//! partition, as writers do. From then on no insert reaches the partition, and every earlier insert
//! has ended. Once all its rows count as sent, the detached table is dropped, which locks nothing else
//! (docs/adr/0032-a-partition-is-detached-then-confirmed.md).

use std::collections::HashSet;
use std::mem::discriminant;
use std::time::Duration;

use walrelay_relay::TableName;
use walrelay_walsender::{Error, Session, quote_literal};

use super::error::prune_error;
use super::marked::MarkedRows;
use super::{Evidence, OldPartition, PruneError, Pruning, limit_idle, roll_back};
use crate::catalog::row::{is_true, parsed, text};
use crate::confirmation::count_rows;
use crate::dead_rows::ResolvedKeys;
use crate::script;

/// Bytes of the table's name in a partition's name: Postgres cuts names at 63 bytes, and the time
/// is appended.
const LONGEST_STEM: usize = 46;
const DAY: u64 = 24 * 60 * 60;
/// The constraint that keeps rows out of a detached partition.
const DETACHED: &str = "walrelay_detached";
/// High half of the key of the advisory lock that is held to change a table's partitions. The low
/// half is the table's OID.
const LOCK_CLASS: u32 = 0x7761_6c72;

/// A change of a partition, done or planned.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// The partition was created.
    Created(TableName),
    /// The partition was dropped.
    Dropped(TableName),
    /// Planned only: the partition is old enough, but not all its rows count as sent.
    Kept(TableName),
}

/// A partition to be created.
#[derive(Debug, PartialEq, Eq)]
struct NewPartition {
    name: TableName,
    /// Bounds of the range, in UTC.
    from: String,
    to: String,
}

impl Pruning {
    /// Returns whether the table is partitioned by RANGE on `column`, that of a row's time.
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
        Ok(count_rows(session, &sql).await? > 0)
    }

    /// Returns the changes of a table's partitions that a run would make if all rows were confirmed.
    pub(super) async fn planned(
        &self,
        session: &mut Session,
        table: &TableName,
        resolved: &ResolvedKeys,
    ) -> Result<Vec<Change>, PruneError> {
        let new = self.new_partitions(session, table).await?.into_iter();
        let mut planned: Vec<Change> = new.map(|part| Change::Created(part.name)).collect();
        let old = self.old_partitions(session, table).await?;
        let marked = match self.marked_rows(session, table, resolved).await {
            Err(error) if error.is_of_rows() => {
                planned.extend(old.into_iter().map(|part| Change::Kept(part.name)));
                return Ok(planned);
            }
            marked => marked?,
        };
        for part in old {
            let checked = self.check_sent(session, table, &part, marked.as_ref());
            planned.push(match checked.await {
                Ok(_) => Change::Dropped(part.name),
                Err(error) if error.is_of_rows() => Change::Kept(part.name),
                Err(error) => return Err(error),
            });
        }
        Ok(planned)
    }

    /// Creates the next partitions of these tables. It comes before anything else: without a partition for the current
    /// time, the services cannot insert.
    pub(super) async fn create_partitions(
        &self,
        session: &mut Session,
        tables: &[(&TableName, String)],
        changed: &mut impl FnMut(Change),
        problems: &mut Vec<PruneError>,
    ) -> Result<(), PruneError> {
        for (table, _) in tables {
            let new = match self.new_partitions(session, table).await {
                Ok(new) => new,
                Err(error) => {
                    problems.push(PruneError::from(error).limit_to(table)?);
                    continue;
                }
            };
            for part in new {
                match self.create(session, table, &part).await {
                    Ok(false) => {}
                    Ok(true) => changed(Change::Created(part.name)),
                    Err(error) => {
                        let error = error.limit_to(table)?;
                        problems.push(roll_back(session, error).await?);
                    }
                }
            }
        }
        Ok(())
    }

    /// Returns the partitions of the current and the next ranges that do not exist, under any name.
    async fn new_partitions(
        &self,
        session: &mut Session,
        table: &TableName,
    ) -> Result<Vec<NewPartition>, Error> {
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
            parts = partition_bounds(table),
        );
        let rows = session.query(&sql).await?;
        let new = rows.iter().map(|row| NewPartition {
            name: TableName {
                schema: table.schema.clone(),
                name: partition_name(&table.name, row.get("name").unwrap_or_default()),
            },
            from: text(&row, "since"),
            to: text(&row, "until"),
        });
        Ok(new.collect())
    }

    /// Returns the partitions whose whole range is older than `keep`, and the tables that were
    /// detached as such. The detached ones come first.
    async fn old_partitions(
        &self,
        session: &mut Session,
        table: &TableName,
    ) -> Result<Vec<OldPartition>, Error> {
        let sql = format!(
            "SELECT oid::int8 AS oid, schema, name, attached FROM (SELECT oid, schema, name, true AS attached, until \
             FROM {parts} \
             WHERE until <= pg_catalog.now() - pg_catalog.make_interval(secs => {keep}) \
             UNION ALL SELECT c.oid, n.nspname, c.relname, false, NULL FROM pg_catalog.pg_description d \
             JOIN pg_catalog.pg_class c ON c.oid = d.objoid AND NOT c.relispartition \
             JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace \
             WHERE d.classoid = 'pg_catalog.pg_class'::pg_catalog.regclass AND d.objsubid = 0 \
             AND d.description = {mark}) AS old ORDER BY attached, until",
            parts = partition_bounds(table),
            keep = self.keep.as_secs_f64(),
            mark = quote_literal(&detached_comment(table)),
        );
        let rows = session.query(&sql).await?;
        let old = rows.iter().map(|row| OldPartition {
            oid: parsed(&row, "oid").unwrap_or(0),
            name: TableName {
                schema: text(&row, "schema"),
                name: text(&row, "name"),
            },
            attached: is_true(&row, "attached"),
        });
        Ok(old.collect())
    }

    /// Creates the partition. Returns `false` if another relay has created it meanwhile.
    async fn create(
        &self,
        session: &mut Session,
        table: &TableName,
        part: &NewPartition,
    ) -> Result<bool, PruneError> {
        self.begin_change(session, table).await?;
        let new = self.new_partitions(session, table).await?;
        if !new.contains(part) {
            session.query("ROLLBACK").await?;
            return Ok(false);
        }
        let (parent, child) = (script::table(table), script::table(&part.name));
        // ATTACH PARTITION does not block writers, CREATE TABLE … PARTITION OF does. ATTACH creates
        // the indexes and identity columns of the parent.
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
        created.map_err(|error| prune_error(error, table, Some(&part.name)))?;
        Ok(true)
    }

    /// Detaches the old partitions whose rows all count as sent, and drops each if they still do. Adds the reasons why
    /// others stay to `problems`.
    pub(super) async fn drop_old(
        &self,
        session: &mut Session,
        table: &TableName,
        resolved: &ResolvedKeys,
        changed: &mut impl FnMut(Change),
        problems: &mut Vec<PruneError>,
    ) -> Result<(), PruneError> {
        let dropped = self.drop_parts(session, table, resolved, changed, problems);
        if let Err(error) = dropped.await {
            let error = error.limit_to(table)?;
            problems.push(roll_back(session, error).await?);
        }
        Ok(())
    }

    async fn drop_parts(
        &self,
        session: &mut Session,
        table: &TableName,
        resolved: &ResolvedKeys,
        changed: &mut impl FnMut(Change),
        problems: &mut Vec<PruneError>,
    ) -> Result<(), PruneError> {
        let old = self.old_partitions(session, table).await?;
        if old.is_empty() {
            return Ok(());
        }
        let marked = self.marked_rows(session, table, resolved).await?;
        let marked = marked.as_ref();
        let mut kept = Vec::new();
        for part in old.iter().filter(|part| part.attached) {
            let detached = match self
                .check_sent_patiently(session, table, part, marked)
                .await
            {
                Ok(_) => self.detach(session, table, part).await,
                Err(error) => Err(error),
            };
            if let Err(error) = detached {
                let error = roll_back(session, error).await?;
                let is_of_this = error.is_of_rows();
                kept.push(error);
                if !is_of_this {
                    break;
                }
            }
        }
        let old = self.old_partitions(session, table).await?;
        for part in old.iter().filter(|part| !part.attached) {
            // The last rows may have been written while the partition was being detached.
            let dropped = match self
                .check_sent_patiently(session, table, part, marked)
                .await
            {
                Ok(_) => self.drop(session, table, part, marked).await,
                Err(error) => Err(error),
            };
            match dropped {
                Ok(false) => {}
                Ok(true) => changed(Change::Dropped(part.name.clone())),
                Err(error) => {
                    kept.push(roll_back(session, error).await?);
                }
            }
        }
        // The first partition of each kind is named.
        let mut kinds = HashSet::new();
        for error in kept {
            if kinds.insert(discriminant(&error)) {
                problems.push(error.limit_to(table)?);
            }
        }
        Ok(())
    }

    /// Drops a detached partition whose rows all count as sent. Returns `false` if another relay has
    /// dropped it.
    async fn drop(
        &self,
        session: &mut Session,
        table: &TableName,
        part: &OldPartition,
        marked: Option<&MarkedRows>,
    ) -> Result<bool, PruneError> {
        self.begin_change(session, table).await?;
        let there = self.old_partitions(session, table).await?.contains(part);
        if there {
            let name = script::table(&part.name);
            let lock = format!("LOCK TABLE {name} IN ACCESS EXCLUSIVE MODE");
            let locked = session.query(&lock).await;
            locked.map_err(|error| prune_error(error, &part.name, None))?;
            // Rows may have been written by the partition's name, if it was detached by hand.
            let owner = leave_role(session).await?;
            let proof = self.check_sent(session, table, part, marked).await?;
            if let Evidence::Account { .. } = self.evidence {
                let accounted = self.accounted(session, table).await?.with_part(part.oid);
                if !accounted.settle_diverted(session, &proof).await? {
                    // The next run compares the rows again.
                    session.query("ROLLBACK").await?;
                    return Ok(false);
                }
                accounted.take_out(session, &proof, &part.name).await?;
                accounted.forget_empty(session, &[]).await?;
            }
            take_role(session, &owner).await?;
            session.query(&format!("DROP TABLE {name}")).await?;
        }
        session.query("COMMIT").await?;
        Ok(there)
    }

    /// Detaches the partition, and marks it as one to be dropped. Does nothing if another relay has
    /// done so.
    async fn detach(
        &self,
        session: &mut Session,
        table: &TableName,
        part: &OldPartition,
    ) -> Result<(), PruneError> {
        self.begin_change(session, table).await?;
        let old = self.old_partitions(session, table).await?;
        if !old.contains(part) {
            session.query("ROLLBACK").await?;
            return Ok(());
        }
        let (parent, child) = (script::table(table), script::table(&part.name));
        let statements = [
            // DETACH takes several locks, and `lock_timeout` applies to each. Writers wait for the
            // whole statement.
            format!(
                "SET LOCAL statement_timeout = {}",
                millis(self.lock_timeout)
            ),
            format!("ALTER TABLE {parent} DETACH PARTITION {child}"),
            // Who writes into the partition by its name gets an error: no relay would send the row.
            format!("ALTER TABLE {child} ADD CONSTRAINT {DETACHED} CHECK (false) NOT VALID"),
            format!(
                "COMMENT ON TABLE {child} IS {}",
                quote_literal(&detached_comment(table))
            ),
            "COMMIT".to_owned(),
        ];
        let detached = session.query_all(&statements).await;
        detached.map_err(|error| prune_error(error, table, None))?;
        Ok(())
    }

    /// Begins a transaction as the table's owner, under the advisory lock of the table's
    /// partitions.
    async fn begin_change(
        &self,
        session: &mut Session,
        table: &TableName,
    ) -> Result<(), PruneError> {
        let statements = [
            // Each statement sees what was committed before it got its locks.
            "BEGIN ISOLATION LEVEL READ COMMITTED".to_owned(),
            format!("SET LOCAL lock_timeout = {}", millis(self.lock_timeout)),
            limit_idle("LOCAL"),
            format!(
                "SELECT pg_catalog.set_config('role', pg_catalog.pg_get_userbyid(relowner), true) \
                 FROM pg_catalog.pg_class WHERE oid = {}",
                oid(table)
            ),
            format!(
                "SELECT pg_catalog.pg_advisory_xact_lock(({LOCK_CLASS}::int8 << 32) | {}::int8)",
                oid(table)
            ),
        ];
        let begun = session.query_all(&statements).await;
        begun.map_err(|error| prune_error(error, table, None))?;
        Ok(())
    }
}

/// Returns to the role that the session has logged in as, which keeps the account. Returns the role
/// before.
async fn leave_role(session: &mut Session) -> Result<String, Error> {
    let statements = [
        "SELECT pg_catalog.current_setting('role') AS role",
        "SELECT pg_catalog.set_config('role', 'none', true)",
    ];
    let roles = session.query_all(&statements).await?;
    let role = roles
        .first()
        .and_then(|rows| Some(text(&rows.first()?, "role")));
    Ok(role.unwrap_or_default())
}

/// Takes a role until the transaction ends.
async fn take_role(session: &mut Session, role: &str) -> Result<(), Error> {
    let role = quote_literal(role);
    let sql = format!("SELECT pg_catalog.set_config('role', {role}, true)");
    session.query(&sql).await.map(drop)
}

/// Returns a subquery of a table's partitions with their bounds, with the alias `parts`. The bounds
/// of DEFAULT are NULL.
fn partition_bounds(table: &TableName) -> String {
    // The bound of the one column is a quoted literal, or a keyword.
    let bound = |word, open, value| {
        format!(
            "coalesce(pg_catalog.substring(bound, $$ {word} \\('([^']*)'\\)$$), \
             CASE WHEN bound ~ $$ {word} \\({open}\\)$$ THEN '{value}' END)::timestamptz"
        )
    };
    format!(
        "(SELECT oid, schema, name, {since} AS since, {until} AS until FROM (SELECT c.oid, n.nspname AS schema, \
         c.relname AS name, pg_catalog.pg_get_expr(c.relpartbound, c.oid) AS bound FROM pg_catalog.pg_inherits i \
         JOIN pg_catalog.pg_class c ON c.oid = i.inhrelid JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace \
         WHERE i.inhparent = {}) AS bounds) AS parts",
        oid(table),
        since = bound("FROM", "MINVALUE", "-infinity"),
        until = bound("TO", "MAXVALUE", "infinity"),
    )
}

/// Returns the comment that marks a detached partition as one to be dropped.
fn detached_comment(table: &TableName) -> String {
    format!("walrelay has detached this from {table}, and drops it once its rows are confirmed")
}

/// Returns a partition's name: the same for every relay that creates it.
fn partition_name(table: &str, time: &str) -> String {
    let mut stem = table;
    while stem.len() > LONGEST_STEM {
        let last = stem.char_indices().next_back();
        stem = last.map_or("", |(at, _)| &stem[..at]);
    }
    format!("{stem}_p{time}")
}

fn oid(table: &TableName) -> String {
    let name = quote_literal(&script::table(table));
    format!("{name}::pg_catalog.regclass::oid")
}

fn millis(timeout: Duration) -> u128 {
    timeout.as_millis().max(1)
}
