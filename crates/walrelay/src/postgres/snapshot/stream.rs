//! Rows as a stream of frames.

use std::collections::VecDeque;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep};
use tracing::info;
use walrelay_lsn::{Lsn, RelationId, Xid};
use walrelay_pgoutput::{PgTimestamp, encode};
use walrelay_relay::WalStream;
use walrelay_walsender::{CopyItem, CopyOut, Error, Frame, Session, Socket, StatusUpdate};

use super::query::Group;
use super::{SnapshotProgress, frames};
use crate::postgres::error::PostgresError;

/// A server that sorts rows sends none for a while. The pipeline counts a stream that reads nothing as dead, so it
/// is given an empty read so often. That the server is there, TCP's keepalives show.
const SIGN_OF_LIFE: Duration = Duration::from_secs(1);
/// Between two lines of the log.
const LOG_INTERVAL: Duration = Duration::from_secs(10);

/// The rows of a snapshot, as one transaction.
///
/// The commit ends at the snapshot's position, so what is confirmed then is that position. It begins one byte before:
/// no record of the log begins there, so the position of no event of the log is that of a row.
pub(crate) struct RowStream {
    point: Lsn,
    /// When the snapshot was made, by the server's clock: the commit time of its rows.
    time: PgTimestamp,
    since: Instant,
    rows: Rows,
    /// To be read after these.
    groups: VecDeque<Group>,
    /// Messages that come before the next row.
    messages: VecDeque<Vec<u8>>,
    /// The tables of the rows, by the number that they bring.
    relations: Vec<RelationId>,
    /// The Insert of the row that `rows` has peeked; empty: of none.
    insert: Vec<u8>,
    progress: Arc<SnapshotProgress>,
    /// Another stream follows this one.
    followed: bool,
    log_at: Instant,
}

type Starting = Pin<Box<dyn Future<Output = Result<CopyOut, Error>> + Send>>;

enum Rows {
    /// A session for the next group.
    Session(Session),
    /// The statement was sent.
    Starting(Starting),
    Reading(CopyOut),
    /// The commit was queued.
    Read,
}

impl RowStream {
    /// `session`: in a transaction with the snapshot.
    pub(super) fn new(
        session: Session,
        groups: Vec<Group>,
        (point, time): (Lsn, PgTimestamp),
        progress: Arc<SnapshotProgress>,
    ) -> Self {
        let now = Instant::now();
        Self {
            point,
            time,
            since: now,
            rows: Rows::Session(session),
            groups: groups.into(),
            messages: [encode::begin(before(point), time, Xid::new(0))].into(),
            relations: Vec::new(),
            insert: Vec::new(),
            progress,
            followed: true,
            log_at: now + LOG_INTERVAL,
        }
    }

    /// No other stream follows: this one stays until it is asked to end.
    pub(crate) fn without_successor(self) -> Self {
        Self {
            followed: false,
            ..self
        }
    }

    fn frame<'a>(&self, body: &'a [u8]) -> Frame<'a> {
        let elapsed = i64::try_from(self.since.elapsed().as_micros()).unwrap_or(i64::MAX);
        Frame::XLogData {
            start: before(self.point),
            end: before(self.point),
            sent_at: self.time.get().saturating_add(elapsed),
            body,
        }
    }

    /// Reads a part of the rows, or starts reading those of the next tables.
    async fn advance(&mut self) -> Result<usize, PostgresError> {
        if let Rows::Reading(copy) = &mut self.rows {
            if !matches!(
                copy.peek().map_err(PostgresError::of_rows)?,
                Some(CopyItem::End)
            ) {
                return Ok(copy.read().await?);
            }
            let Rows::Reading(copy) = std::mem::replace(&mut self.rows, Rows::Read) else {
                unreachable!("it was so above");
            };
            self.rows = Rows::Session(copy.into_session());
        }
        if let Rows::Session(_) = &self.rows {
            let Rows::Session(session) = std::mem::replace(&mut self.rows, Rows::Read) else {
                unreachable!("it was so above");
            };
            let Some(group) = self.groups.pop_front() else {
                self.messages
                    .push_back(encode::commit(before(self.point), self.point, self.time));
                return Ok(0);
            };
            self.relations = group.tables.iter().map(super::query::Table::id).collect();
            let announced = group.tables.iter().map(super::query::Table::announce);
            self.messages.extend(announced);
            let sql = format!("COPY ({}) TO STDOUT", group.sql);
            let starting = async move { session.copy_out(&sql).await };
            self.rows = Rows::Starting(Box::pin(starting));
        }
        if let Rows::Starting(starting) = &mut self.rows {
            let started = starting.await;
            self.rows = Rows::Read;
            self.rows = Rows::Reading(started.map_err(PostgresError::of_rows)?);
            return Ok(0);
        }
        // Nothing is left but to wait for the acknowledgements.
        std::future::pending().await
    }

    fn log(&mut self) {
        if Instant::now() < self.log_at {
            return;
        }
        self.log_at = Instant::now() + LOG_INTERVAL;
        info!(
            rows = self.progress.of_attempt(),
            expected = self.progress.expected(),
            "reading the rows of the snapshot"
        );
    }
}

/// A position that belongs to no record of the log: records begin at multiples of eight.
fn before(point: Lsn) -> Lsn {
    Lsn::new(point.get().saturating_sub(1))
}

impl WalStream for RowStream {
    type Error = PostgresError;

    fn is_snapshot(&self) -> bool {
        true
    }

    /// Not that of the connection: rows come in large pieces, whose reads need no spacing.
    fn socket(&self) -> Socket {
        Socket::Unix
    }

    fn peek(&mut self) -> Result<Option<Frame<'_>>, PostgresError> {
        if !self.messages.is_empty() {
            return Ok(self.messages.front().map(|message| self.frame(message)));
        }
        if self.insert.is_empty() {
            let Rows::Reading(copy) = &mut self.rows else {
                return Ok(None);
            };
            let Some(CopyItem::Row(line)) = copy.peek().map_err(PostgresError::of_rows)? else {
                return Ok(None);
            };
            frames::insert(line, &self.relations, &mut self.insert)?;
        }
        Ok(Some(self.frame(&self.insert)))
    }

    fn consume(&mut self) {
        if self.messages.pop_front().is_some() {
            return;
        }
        if let Rows::Reading(copy) = &mut self.rows
            && !self.insert.is_empty()
        {
            copy.consume();
            self.insert.clear();
            self.progress.row();
        }
    }

    async fn read(&mut self) -> Result<usize, PostgresError> {
        self.log();
        if self.followed && self.progress.is_acknowledged() {
            return Err(PostgresError::SnapshotRead);
        }
        tokio::select! {
            biased;
            read = self.advance() => read,
            () = sleep(SIGN_OF_LIFE) => Ok(0),
        }
    }

    fn queue_status(&mut self, update: StatusUpdate) {
        // The rows may all have been sent, and be acknowledged since, by an earlier reading.
        if update.flushed.lsn() >= self.point {
            self.progress.acknowledge();
        }
    }

    async fn flush(&mut self) -> Result<(), PostgresError> {
        Ok(())
    }

    async fn finish(self) -> Result<(), PostgresError> {
        Ok(())
    }
}

impl fmt::Debug for RowStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RowStream")
            .field("point", &self.point)
            .field("groups", &self.groups.len())
            .field("insert_bytes", &self.insert.len())
            .finish_non_exhaustive()
    }
}
