//! Sessions that lock an outbox table, so that its rows cannot be read.

use std::fmt;

use walrelay_relay::TableName;
use walrelay_walsender::{Error, Rows, Session, quote_literal};

use super::row::{is_true, parsed, text};

/// The modes of a table's lock that keep services from writing rows, which takes `ROW EXCLUSIVE`. DDL
/// takes one of them, `CREATE INDEX` the first.
/// <https://www.postgresql.org/docs/current/explicit-locking.html#LOCKING-TABLES>
const MODES: &str = "'ShareLock', 'ShareRowExclusiveLock', 'ExclusiveLock', 'AccessExclusiveLock'";

/// A lock of a table that keeps services from writing its rows, held or awaited: those who ask later
/// wait behind one that is awaited, too.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TableLock {
    /// The table or its partition, with its schema.
    pub table: String,
    /// The mode, as SQL names it: `ACCESS EXCLUSIVE`.
    pub mode: String,
    /// The server process; `None`: a prepared transaction holds the lock.
    pub pid: Option<i64>,
    /// Its `application_name`.
    pub application_name: Option<String>,
    /// The lock is held. Otherwise the process waits for it, and others wait behind the process.
    pub held: bool,
    /// The processes that a process waits for; 0 stands for a prepared transaction.
    pub behind: Vec<i64>,
    /// Age of the process' transaction in seconds; `None` if the role may not see it.
    pub seconds: Option<u64>,
}

impl fmt::Display for TableLock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.holder())?;
        for (index, pid) in self.behind.iter().enumerate() {
            f.write_str(if index == 0 { ", behind " } else { ", " })?;
            match pid {
                0 => f.write_str("a prepared transaction")?,
                pid => write!(f, "server process {pid}")?,
            }
        }
        match self.seconds {
            Some(seconds) => write!(f, ", in a transaction of {seconds} s"),
            None => Ok(()),
        }
    }
}

impl TableLock {
    /// Returns session, table and mode, without what changes: the age, and the processes it waits for.
    pub fn holder(&self) -> String {
        let verb = if self.held { "locks" } else { "waits to lock" };
        let session = match self.pid {
            Some(pid) => format!("server process {pid}"),
            None => "a prepared transaction".to_owned(),
        };
        let name = self.application_name.as_deref().unwrap_or_default();
        let name = match name {
            "" => String::new(),
            name => format!(" ({name})"),
        };
        format!(
            "{session}{name} {verb} {} in {} mode",
            self.table, self.mode
        )
    }

    /// Returns the remedy for these locks; `None` if there are none.
    pub fn remedy(locks: &[Self]) -> Option<String> {
        let first = locks.first()?;
        // A process that waits goes on when the one before it ends.
        let holder = locks.iter().find(|lock| lock.held);
        let pid = match holder {
            Some(holder) => holder.pid,
            None => first.behind.first().copied().filter(|pid| *pid != 0),
        };
        Some(match pid {
            Some(pid) => format!(
                "wait until its transaction ends: the relay goes on meanwhile, and services cannot write events. To \
                 end it: SELECT pg_terminate_backend({pid})"
            ),
            None => "COMMIT PREPARED or ROLLBACK PREPARED what pg_prepared_xacts lists".to_owned(),
        })
    }
}

/// Queries the locks that keep services from writing rows of these tables and of their partitions.
pub async fn table_locks(
    session: &mut Session,
    tables: &[TableName],
) -> Result<Vec<TableLock>, Error> {
    Ok(locks(&session.query(&locks_sql(tables)).await?))
}

/// Returns a query of the locks of these tables.
pub(super) fn locks_sql(tables: &[TableName]) -> String {
    let tables = tables.iter().map(|table| {
        let (schema, name) = (quote_literal(&table.schema), quote_literal(&table.name));
        format!("({schema}, {name})")
    });
    // `IN ()` is a syntax error.
    let tables: Vec<String> = tables.chain(["(NULL, NULL)".to_owned()]).collect();
    // The catalogs alone: functions such as `pg_partition_tree` lock the tables themselves.
    format!(
        "WITH RECURSIVE tables(oid) AS (SELECT c.oid FROM pg_catalog.pg_class c \
           JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace WHERE (n.nspname, c.relname) IN ({}) \
          UNION SELECT i.inhrelid FROM pg_catalog.pg_inherits i JOIN tables t ON t.oid = i.inhparent) \
         SELECT n.nspname || '.' || c.relname AS name, l.mode, l.pid, a.application_name, l.granted, \
          CASE WHEN NOT l.granted THEN pg_catalog.array_to_string(pg_catalog.pg_blocking_pids(l.pid), ',') END \
          AS behind, extract(epoch FROM pg_catalog.clock_timestamp() - coalesce(a.xact_start, a.query_start))::int8 \
          AS seconds \
         FROM pg_catalog.pg_locks l JOIN tables t ON t.oid = l.relation JOIN pg_catalog.pg_class c ON c.oid = t.oid \
         JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace \
         LEFT JOIN pg_catalog.pg_stat_activity a ON a.pid = l.pid \
         WHERE l.locktype = 'relation' AND l.mode IN ({MODES}) AND l.database = \
          (SELECT oid FROM pg_catalog.pg_database WHERE datname = pg_catalog.current_database()) \
         ORDER BY l.granted DESC, l.pid, name, l.mode",
        tables.join(", ")
    )
}

/// Returns the answer to [`locks_sql`].
pub(super) fn locks(rows: &Rows) -> Vec<TableLock> {
    let locks = rows.iter().map(|row| TableLock {
        table: text(&row, "name"),
        mode: mode_of_sql(&text(&row, "mode")),
        pid: parsed(&row, "pid"),
        application_name: row.get("application_name").map(str::to_owned),
        held: is_true(&row, "granted"),
        behind: row.get("behind").map_or_else(Vec::new, |pids| {
            let mut pids: Vec<i64> = pids.split(',').filter_map(|pid| pid.parse().ok()).collect();
            pids.sort_unstable();
            pids.dedup();
            pids
        }),
        seconds: parsed(&row, "seconds"),
    });
    let mut locks: Vec<TableLock> = locks.collect();
    // A statement may lock all partitions, in several modes: one lock names its process.
    locks.dedup_by(|next, one| next.pid.is_some() && (next.held, next.pid) == (one.held, one.pid));
    locks
}

/// Returns a mode of `pg_locks`, as `AccessExclusiveLock`, as SQL names it.
fn mode_of_sql(mode: &str) -> String {
    let mut words = String::new();
    for letter in mode.trim_end_matches("Lock").chars() {
        if letter.is_ascii_uppercase() && !words.is_empty() {
            words.push(' ');
        }
        words.push(letter.to_ascii_uppercase());
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_names_mode_and_those_before_it() {
        assert_eq!(mode_of_sql("ShareRowExclusiveLock"), "SHARE ROW EXCLUSIVE");
        assert_eq!(mode_of_sql("ShareLock"), "SHARE");
        let waiting = TableLock {
            table: "public.outbox".to_owned(),
            mode: "ACCESS EXCLUSIVE".to_owned(),
            pid: Some(7),
            application_name: Some("migration".to_owned()),
            behind: vec![0, 9],
            seconds: Some(3),
            held: false,
        };
        assert_eq!(
            waiting.to_string(),
            "server process 7 (migration) waits to lock public.outbox in ACCESS EXCLUSIVE mode, behind a prepared \
             transaction, server process 9, in a transaction of 3 s"
        );
        let remedy = |locks: &[TableLock]| TableLock::remedy(locks).expect("a remedy");
        assert!(remedy(std::slice::from_ref(&waiting)).contains("PREPARED"));
        let behind = TableLock {
            behind: vec![9],
            ..waiting.clone()
        };
        assert!(remedy(std::slice::from_ref(&behind)).contains("backend(9)"));
        let holder = TableLock {
            held: true,
            pid: Some(5),
            behind: Vec::new(),
            ..waiting
        };
        assert!(remedy(&[holder, behind]).contains("backend(5)"));
        assert_eq!(TableLock::remedy(&[]), None);
    }
}
