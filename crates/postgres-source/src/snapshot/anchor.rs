//! [`Anchor`]: the session that exports a snapshot.

use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::Deserialize;
use tracing::info;
use walrelay_event_router::TableFacts;
use walrelay_lsn::Lsn;
use walrelay_pgoutput::PgTimestamp;
use walrelay_relay::TableName;
use walrelay_walsender::{ConnInfo, Error, Session, SessionKind, SlotOptions, quote_literal};

use super::hold::{hold, unseen};
use super::query::{self, Group};
use super::{RowStream, SnapshotProgress};
use crate::catalog::Selection;
use crate::catalog::row::{parsed, text};
use crate::catalog::{Filters, PublishedTable, describe, published_tables};
use crate::confirmation::count_rows;
use crate::epoch::find_epoch;
use crate::error::PostgresError;
use crate::sent_keys::keep_time_zone;

/// The database, tables and rows of a snapshot.
#[derive(Debug, Clone)]
pub struct Plan {
    /// The address of the server.
    pub info: ConnInfo,
    /// Name of the slot, whose positions the rows follow.
    pub slot: String,
    /// Name of the publication.
    pub publication: String,
    /// The tables that are read, as far as the publication carries them.
    pub tables: Vec<TableName>,
    /// The rows that are read, and their order.
    pub selection: Selection,
    /// The counters that progress is reported to.
    pub progress: Arc<SnapshotProgress>,
}

/// A session whose transaction exports a snapshot, and the position at which the snapshot ends. The
/// session gets no other command, because that would end the transaction.
#[derive(Debug)]
pub(crate) struct Anchor {
    pub plan: Plan,
    /// Any command on this session ends the export. A temporary slot ends with it.
    pub exporter: Session,
    /// Name of the exported snapshot.
    name: String,
    /// The position at which the snapshot ends.
    pub point: Lsn,
    /// The epoch of the slot's positions, if there is a slot already.
    pub epoch: u8,
    /// The time when the snapshot was taken, by the server's clock.
    time: PgTimestamp,
    /// The time when the snapshot was exported.
    pub begun: Instant,
}

impl Anchor {
    /// Creates a temporary slot and exports the snapshot at its start.
    pub(crate) async fn with_slot(
        plan: Plan,
        mut replication: Session,
        slot: &str,
    ) -> Result<Self, PostgresError> {
        let time = server_time(&mut replication).await?;
        let options = SlotOptions {
            temporary: true,
            export_snapshot: true,
            ..SlotOptions::default()
        };
        // Postgres waits for all transactions that are open now, so there is no deadline.
        let created = replication.create_logical_slot(slot, options).await?;
        Ok(Self {
            plan,
            exporter: replication,
            name: created.snapshot.unwrap_or_default(),
            point: created.consistent_point,
            epoch: 0,
            time,
            begun: Instant::now(),
        })
    }

    /// Exports a snapshot of the current moment, without a slot.
    pub(crate) async fn without_slot(plan: Plan) -> Result<Self, PostgresError> {
        let mut session = Session::connect(&plan.info, SessionKind::Sql, &[]).await?;
        let epoch = find_epoch(&mut session, &plan.slot).await?.number;
        session
            .query("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
            .await?;
        let time = server_time(&mut session).await?;
        let rows = session
            .query(
                "SELECT pg_catalog.pg_export_snapshot() AS name, \
                 CASE WHEN pg_catalog.pg_is_in_recovery() THEN pg_catalog.pg_last_wal_replay_lsn() \
                 ELSE pg_catalog.pg_current_wal_lsn() END AS point",
            )
            .await?;
        let row = rows.first();
        let point = row.as_ref().and_then(|row| parsed(row, "point"));
        Ok(Self {
            plan,
            name: row.map_or_else(String::new, |row| text(&row, "name")),
            exporter: session,
            point: point.unwrap_or(Lsn::ZERO),
            epoch,
            time,
            begun: Instant::now(),
        })
    }

    /// Opens the stream of the rows, from the first row. Returns it with facts about the tables,
    /// for the router.
    pub(crate) async fn open_rows(&self) -> Result<(RowStream, Vec<TableFacts>), PostgresError> {
        let (mut session, groups) = self.open_groups(None).await?;
        let tables = describe(&mut session, &self.plan.tables).await?;
        let expected = estimate(&mut session, &groups).await?;
        keep_time_zone(&mut session).await?;
        self.plan.progress.begin(expected);
        let names = groups.iter().flat_map(|group| &group.tables);
        let names: Vec<String> = names.map(|table| table.name.to_string()).collect();
        info!(
            tables = names.join(", "),
            expected,
            point = %self.point,
            "the snapshot begins: reading the existing rows"
        );
        let progress = Arc::clone(&self.plan.progress);
        let at = (self.point, self.time);
        Ok((RowStream::new(session, groups, at, progress), tables))
    }

    /// Opens a session in the snapshot, which holds the tables. Returns it with the groups of tables to
    /// read over it. `limit`: the longest time of one statement, a wait for a lock included.
    async fn open_groups(
        &self,
        limit: Option<Duration>,
    ) -> Result<(Session, Vec<Group>), PostgresError> {
        let mut session = Session::connect(&self.plan.info, SessionKind::Sql, &[]).await?;
        let mut begin = vec![
            "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY".to_owned(),
            format!("SET TRANSACTION SNAPSHOT {}", quote_literal(&self.name)),
        ];
        let limit = limit.map(|limit| limit.as_millis().max(1));
        begin.extend(limit.map(|limit| format!("SET LOCAL statement_timeout = {limit}")));
        session.query_all(&begin).await?;
        let publication = &self.plan.publication;
        // The publication may carry more, such as all tables of the database.
        for published in published_tables(&mut session, publication, Filters::Hidden).await? {
            if self.plan.tables.contains(&published.table) {
                hold(&mut session, &published.table).await?;
            }
        }
        // The snapshot is the same, and the tables are held, so the filters can be read.
        let mut published = published_tables(&mut session, publication, Filters::Shown).await?;
        published.retain(|published| self.plan.tables.contains(&published.table));
        for table in &self.plan.tables {
            if !published.iter().any(|published| published.table == *table) {
                return Err(unseen(&mut session, &self.plan.publication, table).await?);
            }
        }
        let tables = query::find_tables(&mut session, &published).await?;
        let groups = query::groups(tables, &self.plan.selection)?;
        Ok((session, groups))
    }

    /// Counts the rows of the snapshot. `limit`: the longest time of one statement; `None`: any.
    pub(crate) async fn count(&self, limit: Option<Duration>) -> Result<u64, PostgresError> {
        let (mut session, groups) = self.open_groups(limit).await?;
        let mut counted = 0_u64;
        for group in &groups {
            let sql = format!("SELECT count(*) AS rows FROM ({}) AS counted", group.sql);
            let count = count_rows(&mut session, &sql).await;
            counted = counted.saturating_add(count.map_err(PostgresError::from_rows)?);
        }
        session.close().await;
        Ok(counted)
    }
}

/// Returns the number of rows that the planner expects in a snapshot of these tables. Fails if the
/// rows cannot be read because of an invalid condition or column or a missing privilege.
pub async fn expected_rows(
    session: &mut Session,
    published: &[PublishedTable],
    selection: &Selection,
) -> Result<u64, PostgresError> {
    let tables = query::find_tables(session, published).await?;
    estimate(session, &query::groups(tables, selection)?).await
}

/// Returns the current time by the server's clock.
async fn server_time(session: &mut Session) -> Result<PgTimestamp, Error> {
    let rows = session
        .query("SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::int8 AS micros")
        .await?;
    let micros = rows.first().and_then(|row| parsed(&row, "micros"));
    Ok(micros
        .and_then(PgTimestamp::from_unix_micros)
        .unwrap_or(PgTimestamp::new(0)))
}

/// Returns the number of rows that the planner expects.
async fn estimate(session: &mut Session, groups: &[Group]) -> Result<u64, PostgresError> {
    #[derive(Deserialize)]
    struct Explained {
        #[serde(rename = "Plan")]
        plan: Planned,
    }
    #[derive(Deserialize)]
    struct Planned {
        #[serde(rename = "Plan Rows")]
        rows: f64,
    }
    let mut expected = 0_u64;
    for group in groups {
        let sql = format!("EXPLAIN (FORMAT JSON) {}", group.sql);
        let rows = session
            .query(&sql)
            .await
            .map_err(PostgresError::from_rows)?;
        let json = rows.first().and_then(|row| row.get(0)).unwrap_or_default();
        let explained: Vec<Explained> = serde_json::from_str(json).unwrap_or_default();
        if let Some(explained) = explained.first() {
            expected = expected.saturating_add(explained.plan.rows as u64);
        }
    }
    Ok(expected)
}
