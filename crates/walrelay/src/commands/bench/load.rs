//! What is written: a backlog, and rows on a schedule. The statements and the timing are of
//! [`walrelay_lab::load`]; here are its sessions.

use std::sync::atomic::AtomicBool;
use std::time::Duration;

use tokio::runtime;
use walrelay_lab::load::{self, Due, Step};
use walrelay_relay::TableName;
use walrelay_walsender::{ConnInfo, Error, Session, SessionKind};

use super::stage::insert;
use crate::cli::Failure;
use crate::failures;

/// Writes the backlog, telling how far it is.
pub(super) async fn backlog(
    info: &ConnInfo,
    table: &TableName,
    rows: u64,
    bytes: u32,
    mut progress: impl FnMut(u64),
) -> Result<(), Failure> {
    let insert = insert(table, bytes);
    let write = async {
        let mut session = Session::connect(info, SessionKind::Sql, &[]).await?;
        // What is lost with the server is the benchmark's own, and writing is not measured.
        session.query("SET synchronous_commit = off").await?;
        for (written, sql) in load::backlog(&insert, 0..rows) {
            session.query(&sql).await?;
            progress(written);
        }
        session.close().await;
        Ok(())
    };
    write.await.map_err(failures::postgres)
}

/// Single rows on a schedule.
#[derive(Debug, Clone)]
pub(super) struct Schedule {
    pub(super) info: ConnInfo,
    pub(super) table: TableName,
    pub(super) bytes: u32,
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

    /// How late the latest row was written. Blocks until all are, or it is to `stop`.
    pub(super) fn write(&self, stop: &AtomicBool) -> Result<Duration, Failure> {
        let plan = load::schedule(0, &[self.step()]);
        let writers = if self.rate > 2_000 { 32 } else { 8 };
        let wrote = load::write(&[plan], writers, stop, |_| self.connect())?;
        let behind = wrote.iter().flatten().map(|wrote| wrote.behind);
        Ok(behind.max().unwrap_or_default())
    }

    /// What writes one row after another over a session of its own.
    fn connect(&self) -> Result<impl FnMut(&Due) -> Result<(), Failure>, Failure> {
        let runtime = runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(super::no_thread)?;
        let insert = insert(&self.table, self.bytes);
        let prepare = format!("PREPARE put(bigint) AS {insert} FROM (SELECT $1 AS n) one");
        let failed = |error: Error| failures::postgres(error.into());
        let made = runtime.block_on(async {
            let mut session = Session::connect(&self.info, SessionKind::Sql, &[]).await?;
            session.query(&prepare).await?;
            Ok(session)
        });
        let mut session = made.map_err(failed)?;
        Ok(move |due: &Due| {
            let put = format!("EXECUTE put({})", due.first);
            let put = runtime.block_on(async { session.query(&put).await.map(drop) });
            put.map_err(failed)
        })
    }
}

/// The database's clock less this machine's, in microseconds: 0 where the difference cannot be told
/// from the time that asking takes.
pub(super) async fn clock_offset(info: &ConnInfo) -> Result<i64, Failure> {
    const TIMES: usize = 20;
    let ask = async {
        let mut session = Session::connect(info, SessionKind::Sql, &[]).await?;
        let mut best: Option<(i64, i64)> = None;
        for _ in 0..TIMES {
            let before = super::micros_now();
            let rows = session
                .query("SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint")
                .await?;
            let after = super::micros_now();
            let there = rows.first().and_then(|row| row.get(0)?.parse::<i64>().ok());
            let Some(there) = there else { continue };
            let (offset, uncertain) = (there - i64::midpoint(before, after), (after - before) / 2);
            if best.is_none_or(|(_, least)| uncertain < least) {
                best = Some((offset, uncertain));
            }
        }
        session.close().await;
        Ok(best)
    };
    let best = ask.await.map_err(failures::postgres)?;
    let differs = best.filter(|(offset, uncertain)| offset.abs() > *uncertain);
    Ok(differs.map_or(0, |(offset, _)| offset))
}
