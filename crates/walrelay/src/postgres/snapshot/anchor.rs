//! The session that exports a snapshot.

use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::Deserialize;
use tracing::info;
use walrelay_event_router::TableFacts;
use walrelay_lsn::Lsn;
use walrelay_pgoutput::PgTimestamp;
use walrelay_relay::TableName;
use walrelay_walsender::{ConnInfo, Error, Session, SessionKind, SlotOptions, quote_literal};

use super::query::{self, Group};
use super::{RowStream, Selection, SnapshotProgress};
use crate::postgres::catalog::{PublishedTable, describe, published_tables};
use crate::postgres::error::PostgresError;

/// What a snapshot is made of.
#[derive(Debug, Clone)]
pub(crate) struct Plan {
    pub(crate) info: ConnInfo,
    pub(crate) publication: String,
    /// The wanted tables, for what the router is to know of them.
    pub(crate) tables: Vec<TableName>,
    pub(crate) selection: Selection,
    pub(crate) progress: Arc<SnapshotProgress>,
}

/// A session whose transaction exports a snapshot, and the position that the snapshot ends at. It is given no other
/// command: the transaction would end with it.
#[derive(Debug)]
pub(crate) struct Anchor {
    plan: Plan,
    exporter: Session,
    name: String,
    point: Lsn,
    time: PgTimestamp,
    begun: Instant,
}

/// Rows that can be read.
#[derive(Debug)]
pub(crate) struct Opened {
    pub(crate) stream: RowStream,
    pub(crate) tables: Vec<TableFacts>,
}

/// Time limits that a server or a role may set, and that would end a snapshot.
pub(crate) fn settings(major: u32) -> Vec<(&'static str, &'static str)> {
    let mut settings = vec![
        ("statement_timeout", "0"),
        ("lock_timeout", "0"),
        ("idle_in_transaction_session_timeout", "0"),
        ("idle_session_timeout", "0"),
    ];
    if major >= 17 {
        settings.push(("transaction_timeout", "0"));
    }
    settings
}

impl Anchor {
    /// Of the moment at which a temporary slot begins. `replication`: a replication session with [`settings`].
    pub(crate) async fn with_slot(
        plan: Plan,
        mut replication: Session,
        slot: &str,
    ) -> Result<Self, PostgresError> {
        let time = clock(&mut replication).await?;
        let options = SlotOptions {
            temporary: true,
            export_snapshot: true,
            ..SlotOptions::default()
        };
        // As long as the oldest transaction that is open now, so without a deadline.
        let created = replication.create_logical_slot(slot, options).await?;
        Ok(Self {
            plan,
            exporter: replication,
            name: created.snapshot.unwrap_or_default(),
            point: created.consistent_point,
            time,
            begun: Instant::now(),
        })
    }

    /// Of this moment, without a slot.
    pub(crate) async fn of_now(plan: Plan) -> Result<Self, PostgresError> {
        let mut session = Session::connect(&plan.info, SessionKind::Sql, &[]).await?;
        let settings = settings(session.server_version().major);
        let set = settings
            .iter()
            .map(|(name, value)| format!("SET {name} = {value}"));
        let begin = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY".to_owned();
        let statements: Vec<String> = set.chain([begin]).collect();
        session.query_all(&statements).await?;
        let time = clock(&mut session).await?;
        let rows = session
            .query(
                "SELECT pg_catalog.pg_export_snapshot() AS name, \
                 CASE WHEN pg_catalog.pg_is_in_recovery() THEN pg_catalog.pg_last_wal_replay_lsn() \
                 ELSE pg_catalog.pg_current_wal_lsn() END AS point",
            )
            .await?;
        let row = rows.first();
        let name = row.and_then(|row| row.get("name")).unwrap_or_default();
        let point = row.and_then(|row| row.get("point")?.parse().ok());
        Ok(Self {
            plan,
            name: name.to_owned(),
            exporter: session,
            point: point.unwrap_or(Lsn::ZERO),
            time,
            begun: Instant::now(),
        })
    }

    /// Where the snapshot ends.
    pub(crate) fn point(&self) -> Lsn {
        self.point
    }

    /// How long ago the snapshot was made.
    pub(crate) fn age(&self) -> Duration {
        self.begun.elapsed()
    }

    pub(crate) fn progress(&self) -> &SnapshotProgress {
        &self.plan.progress
    }

    /// The session, for a command after which the snapshot is not exported any more.
    pub(crate) fn exporter(&mut self) -> &mut Session {
        &mut self.exporter
    }

    /// Ends the export. A temporary slot goes with the session.
    pub(crate) fn into_session(self) -> Session {
        self.exporter
    }

    /// The rows, from the first.
    pub(crate) async fn read(&self) -> Result<Opened, PostgresError> {
        let (mut session, groups) = self.groups().await?;
        let tables = describe(&mut session, &self.plan.tables).await?;
        let mut expected = 0_u64;
        for group in &groups {
            expected = expected.saturating_add(estimate(&mut session, group).await?);
        }
        self.plan.progress.begin(expected);
        let names = groups.iter().flat_map(|group| &group.tables);
        let names: Vec<String> = names.map(|table| table.name().to_string()).collect();
        info!(
            tables = names.join(", "),
            expected,
            point = %self.point,
            "reading the rows that are there: the snapshot begins"
        );
        let progress = Arc::clone(&self.plan.progress);
        let at = (self.point, self.time);
        let stream = RowStream::new(session, groups, at, progress);
        Ok(Opened { stream, tables })
    }

    /// A session with the snapshot, and what to read with it.
    async fn groups(&self) -> Result<(Session, Vec<Group>), PostgresError> {
        let major = self.exporter.server_version().major;
        let info = &self.plan.info;
        let mut session = Session::connect(info, SessionKind::Sql, &settings(major)).await?;
        let begin = [
            "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY".to_owned(),
            format!("SET TRANSACTION SNAPSHOT {}", quote_literal(&self.name)),
            // The log has all rows. A policy that hides some from this role is an error.
            "SET LOCAL row_security = off".to_owned(),
        ];
        session.query_all(&begin).await?;
        let published = published_tables(&mut session, &self.plan.publication).await?;
        let tables = query::tables(&mut session, &published).await?;
        let groups = query::groups(tables, &self.plan.selection)?;
        Ok((session, groups))
    }

    /// How many rows these are.
    pub(crate) async fn count(&self) -> Result<u64, PostgresError> {
        let (mut session, groups) = self.groups().await?;
        let mut counted = 0_u64;
        for group in &groups {
            let sql = format!("SELECT count(*) AS rows FROM ({}) AS counted", group.sql);
            let rows = session.query(&sql).await.map_err(PostgresError::of_rows)?;
            let count = rows.first().and_then(|row| row.get("rows")?.parse().ok());
            counted = counted.saturating_add(count.unwrap_or(0));
        }
        session.close().await;
        Ok(counted)
    }
}

/// How many rows the server expects in a snapshot of these tables, by its statistics. That these rows can be read is
/// checked as well: conditions, columns and rights.
pub(crate) async fn expected_rows(
    session: &mut Session,
    published: &[PublishedTable],
    selection: &Selection,
) -> Result<u64, PostgresError> {
    let tables = query::tables(session, published).await?;
    let mut expected = 0_u64;
    for group in query::groups(tables, selection)? {
        expected = expected.saturating_add(estimate(session, &group).await?);
    }
    Ok(expected)
}

/// The server's clock.
async fn clock(session: &mut Session) -> Result<PgTimestamp, Error> {
    let rows = session
        .query("SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::int8 AS micros")
        .await?;
    let micros = rows.first().and_then(|row| row.get("micros")?.parse().ok());
    Ok(micros
        .and_then(PgTimestamp::from_unix_micros)
        .unwrap_or(PgTimestamp::new(0)))
}

/// How many rows the planner expects.
async fn estimate(session: &mut Session, group: &Group) -> Result<u64, PostgresError> {
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
    let sql = format!("EXPLAIN (FORMAT JSON) {}", group.sql);
    let rows = session.query(&sql).await.map_err(PostgresError::of_rows)?;
    let json = rows.first().and_then(|row| row.get(0)).unwrap_or_default();
    let explained: Vec<Explained> = serde_json::from_str(json).unwrap_or_default();
    Ok(explained
        .first()
        .map_or(0, |explained| explained.plan.rows as u64))
}
