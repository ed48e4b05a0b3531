//! Writes the load: a backlog, and rows on a schedule. [`walrelay_measure::load`] has the statements
//! and the timing; this module has the sessions.

use std::sync::atomic::AtomicBool;
use std::time::Duration;

use tokio::runtime;
use walrelay_failure::Failure;
use walrelay_measure::load::{self, Due, Step};
use walrelay_observe::micros_now;
use walrelay_relay::TableName;
use walrelay_walsender::ConnInfo;

use super::objects::insert;
use crate::commands::assembly::sql_session;

/// Writes the backlog. Calls `progress` with the number of rows written so far.
pub(super) async fn backlog(
    info: &ConnInfo,
    table: &TableName,
    rows: u64,
    bytes: u32,
    mut progress: impl FnMut(u64),
) -> Result<(), Failure> {
    let insert = insert(table, bytes);
    let mut session = sql_session(info).await?;
    // A crash of the server loses rows of the benchmark only, and writing is not measured.
    session.query("SET synchronous_commit = off").await?;
    for (written, sql) in load::backlog(&insert, 0..rows) {
        session.query(&sql).await?;
        progress(written);
    }
    session.close().await;
    Ok(())
}

/// A schedule of single rows, each in a transaction of its own.
#[derive(Debug, Clone)]
pub(super) struct Schedule {
    pub(super) info: ConnInfo,
    pub(super) table: TableName,
    /// Bytes of a payload, about.
    pub(super) bytes: u32,
    /// Rows per second.
    pub(super) rate: u32,
    pub(super) seconds: u32,
}

impl Schedule {
    fn step(&self) -> Step {
        Step {
            rate: self.rate.into(),
            seconds: self.seconds.into(),
            together: 1,
        }
    }

    pub(super) fn rows(&self) -> u64 {
        self.step().rows()
    }

    /// Writes all rows, or until `stop` is set. Returns the largest delay of a write. Blocks
    /// meanwhile.
    pub(super) fn write(&self, stop: &AtomicBool) -> Result<Duration, Failure> {
        let plan = load::schedule(0, &[self.step()]);
        let writers = if self.rate > 2_000 { 32 } else { 8 };
        let wrote = load::write(&[plan], writers, stop, |_| self.connect())?;
        let behind = wrote.iter().flatten().map(|wrote| wrote.behind);
        Ok(behind.max().unwrap_or_default())
    }

    /// Opens a session, and returns a function that writes one row over it.
    fn connect(&self) -> Result<impl FnMut(&Due) -> Result<(), Failure>, Failure> {
        let runtime = runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(super::no_thread)?;
        let insert = insert(&self.table, self.bytes);
        let prepare = format!("PREPARE put(bigint) AS {insert} FROM (SELECT $1 AS n) one");
        let mut session = runtime.block_on(sql_session(&self.info))?;
        runtime.block_on(session.query(&prepare))?;
        Ok(move |due: &Due| {
            let put = format!("EXECUTE put({})", due.first);
            let put = runtime.block_on(session.query(&put));
            put.map(drop).map_err(Failure::from)
        })
    }
}

/// Measures the database's clock minus this machine's, in microseconds; 0 if the difference is
/// smaller than the uncertainty of the measurement.
pub(super) async fn clock_offset(info: &ConnInfo) -> Result<i64, Failure> {
    const TIMES: usize = 20;
    let mut session = sql_session(info).await?;
    let mut best: Option<(i64, i64)> = None;
    for _ in 0..TIMES {
        let before = micros_now();
        let rows = session
            .query("SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint")
            .await?;
        let after = micros_now();
        let theirs = rows.first().and_then(|row| row.get(0)?.parse::<i64>().ok());
        let Some(theirs) = theirs else { continue };
        let offset = theirs - i64::midpoint(before, after);
        let uncertainty = (after - before) / 2;
        if best.is_none_or(|(_, least)| uncertainty < least) {
            best = Some((offset, uncertainty));
        }
    }
    session.close().await;
    let differs = best.filter(|(offset, uncertainty)| offset.abs() > *uncertainty);
    Ok(differs.map_or(0, |(offset, _)| offset))
}
