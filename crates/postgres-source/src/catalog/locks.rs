//! Sessions that lock an outbox table, so that its rows cannot be read.

use std::fmt;

use walrelay_relay::TableName;
use walrelay_walsender::{Error, Rows, Session, quote_literal};

use super::row::{is_true, parsed, text};

/// An `ACCESS EXCLUSIVE` lock of a table, held or awaited: every other access waits for it. DDL takes
/// such a lock.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TableLock {
    /// The table, with its schema.
    pub table: String,
    /// The server process; `None`: a prepared transaction holds the lock.
    pub pid: Option<i64>,
    /// Its `application_name`.
    pub application_name: Option<String>,
    /// The lock is held. Otherwise the process waits for it, and others wait behind the process.
    pub held: bool,
    /// Age of the process' transaction in seconds; `None` if the role may not see it.
    pub seconds: Option<u64>,
}

impl fmt::Display for TableLock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let verb = if self.held { "locks" } else { "waits to lock" };
        match self.pid {
            Some(pid) => write!(f, "server process {pid}")?,
            None => f.write_str("a prepared transaction")?,
        }
        if let Some(name) = self.application_name.as_deref().filter(|n| !n.is_empty()) {
            write!(f, " ({name})")?;
        }
        write!(f, " {verb} {} exclusively", self.table)?;
        match self.seconds {
            Some(seconds) => write!(f, ", in a transaction of {seconds} s"),
            None => Ok(()),
        }
    }
}

impl TableLock {
    /// Returns what to do about these locks; `None` if there are none.
    pub fn remedy(locks: &[Self]) -> Option<String> {
        locks.first()?;
        let pid = locks.iter().find_map(|lock| lock.pid);
        Some(match pid {
            Some(pid) => format!(
                "wait until its transaction ends: the relay goes on meanwhile, and services cannot write events. To \
                 end it: SELECT pg_terminate_backend({pid})"
            ),
            None => "COMMIT PREPARED or ROLLBACK PREPARED what pg_prepared_xacts lists".to_owned(),
        })
    }
}

/// Queries the exclusive locks of these tables.
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
    format!(
        "SELECT n.nspname || '.' || c.relname AS name, l.pid, a.application_name, l.granted, extract(epoch FROM \
          pg_catalog.clock_timestamp() - coalesce(a.xact_start, a.query_start))::int8 AS seconds \
         FROM pg_catalog.pg_locks l JOIN pg_catalog.pg_class c ON c.oid = l.relation \
         JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace \
         LEFT JOIN pg_catalog.pg_stat_activity a ON a.pid = l.pid \
         WHERE l.locktype = 'relation' AND l.mode = 'AccessExclusiveLock' AND l.database = \
          (SELECT oid FROM pg_catalog.pg_database WHERE datname = pg_catalog.current_database()) \
         AND (n.nspname, c.relname) IN ({}) ORDER BY l.granted DESC, l.pid",
        tables.join(", ")
    )
}

/// Returns the answer to [`locks_sql`].
pub(super) fn locks(rows: &Rows) -> Vec<TableLock> {
    let locks = rows.iter().map(|row| TableLock {
        table: text(&row, "name"),
        pid: parsed(&row, "pid"),
        application_name: row.get("application_name").map(str::to_owned),
        held: is_true(&row, "granted"),
        seconds: parsed(&row, "seconds"),
    });
    locks.collect()
}
