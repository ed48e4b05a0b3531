//! What is written: a backlog as fast as it goes, and rows on a schedule.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use tokio::sync::Barrier;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};
use walrelay_relay::TableName;
use walrelay_walsender::{ConnInfo, Error, Session, SessionKind};

use super::super::connect::block_on;
use super::stage::insert;
use crate::cli::Failure;
use crate::failures;

/// Rows that are written by one statement: a fifth of them in transactions of their own, the rest in
/// transactions of [`TOGETHER`].
const PORTION: u64 = 10_000;
const TOGETHER: u64 = 100;

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
        let mut written = 0;
        while written < rows {
            let portion = PORTION.min(rows - written);
            session.query(&block(&insert, written, portion)).await?;
            written += portion;
            progress(written);
        }
        session.close().await;
        Ok::<_, Error>(())
    };
    write
        .await
        .map_err(|error| failures::postgres(error.into()))
}

/// An anonymous block that writes so many rows after the first `from`.
fn block(insert: &str, from: u64, rows: u64) -> String {
    let singles = from + rows / 5;
    let end = from + rows;
    format!(
        "DO $load$ DECLARE at bigint := {from}; BEGIN \
         WHILE at < {singles} LOOP \
           {insert} FROM generate_series(at + 1, at + 1) n; COMMIT; at := at + 1; \
         END LOOP; \
         WHILE at < {end} LOOP \
           {insert} FROM generate_series(at + 1, least(at + {TOGETHER}, {end})) n; \
           COMMIT; at := at + {TOGETHER}; \
         END LOOP; END $load$"
    )
}

/// Single rows on a schedule that does not heed how long a commit takes.
#[derive(Debug, Clone)]
pub(super) struct Schedule {
    pub(super) info: ConnInfo,
    pub(super) table: TableName,
    pub(super) bytes: u32,
    pub(super) rate: u32,
    pub(super) rows: u64,
}

/// Writers at work, on a thread of their own. Dropped, they stop.
#[derive(Debug)]
pub(super) struct Writers {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<Result<Duration, Failure>>>,
}

impl Writers {
    pub(super) fn start(schedule: Schedule) -> Result<Self, Failure> {
        let stop = Arc::new(AtomicBool::new(false));
        let asked = Arc::clone(&stop);
        let thread = thread::Builder::new()
            .name("bench-writers".to_owned())
            .spawn(move || write(&schedule, &asked))
            .map_err(super::no_thread)?;
        Ok(Self {
            stop,
            thread: Some(thread),
        })
    }

    pub(super) fn is_finished(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// How late the latest row was written. Blocks until all are.
    pub(super) fn join(mut self) -> Result<Duration, Failure> {
        match self.thread.take().map(JoinHandle::join) {
            Some(Ok(result)) => result,
            Some(Err(_)) | None => Err(super::panicked()),
        }
    }
}

impl Drop for Writers {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // What it would say is not asked for any more.
            let _ = thread.join();
        }
    }
}

fn write(schedule: &Schedule, stop: &Arc<AtomicBool>) -> Result<Duration, Failure> {
    block_on(async {
        let writers = if schedule.rate > 2_000 { 32 } else { 8 };
        let together = Arc::new(Barrier::new(writers));
        let mut tasks = JoinSet::new();
        for writer in 0..writers as u64 {
            let schedule = schedule.clone();
            let (together, stop) = (Arc::clone(&together), Arc::clone(stop));
            tasks.spawn(async move {
                let session = prepared(&schedule).await;
                // Also by one that could not connect: the others wait for it.
                together.wait().await;
                on_schedule(&schedule, session?, writer, writers, &stop).await
            });
        }
        let mut latest = Duration::ZERO;
        while let Some(ended) = tasks.join_next().await {
            latest = latest.max(ended.map_err(|_| super::panicked())??);
        }
        Ok(latest)
    })?
}

async fn prepared(schedule: &Schedule) -> Result<Session, Failure> {
    let made = async {
        let mut session = Session::connect(&schedule.info, SessionKind::Sql, &[]).await?;
        let insert = insert(&schedule.table, schedule.bytes);
        let prepare = format!("PREPARE put(bigint) AS {insert} FROM (SELECT $1 AS n) one");
        session.query(&prepare).await?;
        Ok::<_, Error>(session)
    };
    made.await.map_err(|error| failures::postgres(error.into()))
}

async fn on_schedule(
    schedule: &Schedule,
    mut session: Session,
    writer: u64,
    writers: usize,
    stop: &AtomicBool,
) -> Result<Duration, Failure> {
    let begun = Instant::now();
    let mut latest = Duration::ZERO;
    for row in (writer..schedule.rows).step_by(writers) {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        let due = begun + Duration::from_secs_f64(row as f64 / f64::from(schedule.rate));
        sleep_until(due).await;
        latest = latest.max(due.elapsed());
        let put = format!("EXECUTE put({row})");
        let put = session.query(&put).await;
        put.map_err(|error| failures::postgres(error.into()))?;
    }
    session.close().await;
    Ok(latest)
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
        Ok::<_, Error>(best)
    };
    let best = ask
        .await
        .map_err(|error| failures::postgres(error.into()))?;
    let differs = best.filter(|(offset, uncertain)| offset.abs() > *uncertain);
    Ok(differs.map_or(0, |(offset, _)| offset))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fifth_of_the_rows_is_alone() {
        let sql = block("INSERT INTO t SELECT n", 20_000, 1_050);
        assert!(sql.contains("at bigint := 20000"), "{sql}");
        assert!(sql.contains("WHILE at < 20210 LOOP"), "{sql}");
        assert!(sql.contains("least(at + 100, 21050)"), "{sql}");
    }
}
