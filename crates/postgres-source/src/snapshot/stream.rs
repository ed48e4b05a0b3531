//! [`RowStream`]: the rows of a snapshot as a stream of frames.

use std::collections::VecDeque;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep_until};
use tracing::info;
use walrelay_lsn::{Lsn, RelationId, Xid};
use walrelay_pgoutput::{PgTimestamp, encode};
use walrelay_relay::WalStream;
use walrelay_walsender::{CopyItem, CopyOut, Error, Frame, Session, Socket, StatusUpdate};

use super::query::{Group, Table};
use super::{LockWatch, SnapshotProgress, frames};
use crate::error::PostgresError;

/// Interval of empty reads while the server sends no rows, for example because it sorts them. The
/// pipeline takes a stream without reads for dead; here, TCP keepalives detect a dead server.
const EMPTY_READ_INTERVAL: Duration = Duration::from_secs(1);
/// The longest time after the lock was last seen in which a row may be sent.
const LOCK_INTERVAL: Duration = Duration::from_millis(1);
/// Interval of log lines about the progress.
const LOG_INTERVAL: Duration = Duration::from_secs(10);

/// The rows of a snapshot, as one transaction.
///
/// The commit ends at the snapshot's position, so that this position is confirmed. The commit
/// starts one byte before. No WAL record starts there, so no event of the WAL has the position of a
/// row.
pub struct RowStream {
    /// The position at which the snapshot ends.
    point: Lsn,
    /// The time when the snapshot was taken, by the server's clock: the commit time of the rows.
    time: PgTimestamp,
    since: Instant,
    /// The `TimeZone` of the session, on which texts of the rows depend.
    time_zone: String,
    rows: Rows,
    /// The groups to read after the current one.
    groups: VecDeque<Group>,
    /// Messages to return before the next row.
    messages: VecDeque<Vec<u8>>,
    /// The tables of the current group; rows refer to them by index.
    relations: Vec<RelationId>,
    /// The Insert of the row at the front of `rows`; empty if no row was peeked.
    insert: Vec<u8>,
    progress: Arc<SnapshotProgress>,
    /// The lock that the rows are sent under; `None` if any process may send them.
    lock: Option<LockWatch>,
    /// The time when the lock was last seen.
    locked_at: Option<Instant>,
    /// The lock may be lost. No row is sent before the server has answered, and the lock is seen.
    proving: bool,
    /// The stream of a slot follows, so this one ends when all rows are acknowledged.
    followed: bool,
    /// The time when the next read ends without bytes. Not counted from the call: the pipeline
    /// drops a read and calls it again whenever something else is due.
    empty_at: Instant,
    /// The time when the progress is logged next.
    log_at: Instant,
}

type Starting = Pin<Box<dyn Future<Output = Result<CopyOut, Error>> + Send>>;

enum Rows {
    /// The session is free for the next group.
    Session(Session),
    /// COPY is being sent.
    Starting(Starting),
    Reading(CopyOut),
    /// All rows were read, and the commit is queued.
    Read,
}

impl RowStream {
    /// Creates the stream. `session` is in a transaction with the snapshot.
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
            time_zone: session.parameter("TimeZone").unwrap_or_default().to_owned(),
            rows: Rows::Session(session),
            groups: groups.into(),
            messages: [encode::begin(position_before(point), time, Xid::new(0))].into(),
            relations: Vec::new(),
            insert: Vec::new(),
            progress,
            lock: None,
            locked_at: None,
            proving: false,
            followed: true,
            empty_at: now + EMPTY_READ_INTERVAL,
            log_at: now + LOG_INTERVAL,
        }
    }

    /// Declares that no stream follows: this one stays open until the pipeline closes it.
    pub fn without_successor(self) -> Self {
        Self {
            followed: false,
            ..self
        }
    }

    /// Returns the `TimeZone` of the session that reads the rows.
    pub(crate) fn time_zone(&self) -> &str {
        &self.time_zone
    }

    /// Sends rows only while this lock is held.
    pub(crate) fn under(self, lock: LockWatch) -> Self {
        Self {
            lock: Some(lock),
            ..self
        }
    }

    /// Returns whether rows may be sent now. If the session of the lock may have ended,
    /// [`read`](WalStream::read) waits for an answer over it. This process may have been stopped since
    /// it received the rows, so they are no proof.
    fn may_send(&mut self) -> bool {
        let Some(lock) = &mut self.lock else {
            return true;
        };
        let now = Instant::now();
        if self
            .locked_at
            .is_some_and(|at| now.duration_since(at) < LOCK_INTERVAL)
        {
            return true;
        }
        self.proving = !lock.is_quiet();
        self.locked_at = (!self.proving).then_some(now);
        !self.proving
    }

    fn frame<'a>(&self, body: &'a [u8]) -> Frame<'a> {
        let elapsed = i64::try_from(self.since.elapsed().as_micros()).unwrap_or(i64::MAX);
        Frame::XLogData {
            start: position_before(self.point),
            end: position_before(self.point),
            sent_at: self.time.get().saturating_add(elapsed),
            body,
        }
    }

    /// Reads some rows, or starts COPY of the next group.
    async fn advance(&mut self) -> Result<usize, PostgresError> {
        if let Rows::Reading(copy) = &mut self.rows {
            let item = copy.peek().map_err(PostgresError::from_rows)?;
            if item != Some(CopyItem::End) {
                return Ok(copy.read().await?);
            }
        }
        let session = match std::mem::replace(&mut self.rows, Rows::Read) {
            Rows::Reading(copy) => Some(copy.into_session()),
            Rows::Session(session) => Some(session),
            rows => {
                self.rows = rows;
                None
            }
        };
        if let Some(session) = session {
            let Some(group) = self.groups.pop_front() else {
                self.messages.push_back(encode::commit(
                    position_before(self.point),
                    self.point,
                    self.time,
                ));
                return Ok(0);
            };
            self.relations = group.tables.iter().map(Table::id).collect();
            let announced = group.tables.iter().map(Table::relation_message);
            self.messages.extend(announced);
            let sql = format!("COPY ({}) TO STDOUT", group.sql);
            let starting = async move { session.copy_out(&sql).await };
            self.rows = Rows::Starting(Box::pin(starting));
        }
        if let Rows::Starting(starting) = &mut self.rows {
            let started = starting.await;
            self.rows = Rows::Read;
            self.rows = Rows::Reading(started.map_err(PostgresError::from_rows)?);
            return Ok(0);
        }
        // Every row was read: wait for the acknowledgements.
        std::future::pending().await
    }

    fn log(&mut self) {
        if Instant::now() < self.log_at {
            return;
        }
        self.log_at = Instant::now() + LOG_INTERVAL;
        info!(
            rows = self.progress.rows_in_attempt(),
            expected = self.progress.expected(),
            "reading the rows of the snapshot"
        );
    }
}

/// Returns the position before `point`. No WAL record starts there, because records start at
/// multiples of eight.
fn position_before(point: Lsn) -> Lsn {
    Lsn::new(point.get().saturating_sub(1))
}

impl WalStream for RowStream {
    type Error = PostgresError;

    fn is_snapshot(&self) -> bool {
        true
    }

    /// Returns `Unix`, whatever the connection is: rows arrive in large reads, which need no delay
    /// between them.
    fn socket(&self) -> Socket {
        Socket::Unix
    }

    fn peek(&mut self) -> Result<Option<Frame<'_>>, PostgresError> {
        if !self.may_send() {
            return Ok(None);
        }
        if !self.messages.is_empty() {
            return Ok(self.messages.front().map(|message| self.frame(message)));
        }
        if self.insert.is_empty() {
            let Rows::Reading(copy) = &mut self.rows else {
                return Ok(None);
            };
            let Some(CopyItem::Row(line)) = copy.peek().map_err(PostgresError::from_rows)? else {
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
        let empty_at = self.empty_at;
        let proven_or_read = async {
            match &mut self.lock {
                Some(lock) if self.proving => lock.proven().await.map(|()| 0),
                _ => self.advance().await,
            }
        };
        let read = tokio::select! {
            biased;
            read = proven_or_read => read,
            () = sleep_until(empty_at) => Ok(0),
        };
        self.empty_at = Instant::now() + EMPTY_READ_INTERVAL;
        read
    }

    fn queue_status(&mut self, update: StatusUpdate) {
        // An earlier attempt may have sent all rows, which were acknowledged since.
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
