//! A part of a slot's stream: from a position or a time, to a position or a time, at a rate.
//!
//! # Invariants
//! - A transaction is inside the range as a whole, or not at all.
//! - Nothing is read beyond the range: the stream gives no frame more, and says that it has ended.

use std::future::pending;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};
use walrelay_lsn::Lsn;
use walrelay_pgoutput::{Message, PgTimestamp, decode};
use walrelay_relay::{Looked, Opened, Resume, Source, WalStream};
use walrelay_walsender::{Frame, Socket, StatusUpdate};

use super::copy::{CopySource, Original};
use super::stream::Stream;
use crate::postgres::error::PostgresError;

/// Clocks of commits may go back a little from one commit to the next: so long after `before` nothing older is
/// expected any more.
const DISORDER: i64 = 60_000_000;
/// What a rate may catch up with after a pause.
const BURST: Duration = Duration::from_millis(100);

/// Which transactions: those whose commit record starts before `end`, and that were committed in this time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Range {
    pub(crate) end: Lsn,
    pub(crate) after: Option<PgTimestamp>,
    pub(crate) before: Option<PgTimestamp>,
}

impl Range {
    fn is_over(&self, start: Lsn, committed: PgTimestamp) -> bool {
        let late = |before: PgTimestamp| committed.get() >= before.get().saturating_add(DISORDER);
        start >= self.end || self.before.is_some_and(late)
    }

    fn has(&self, committed: PgTimestamp) -> bool {
        self.after.is_none_or(|after| committed >= after)
            && self.before.is_none_or(|before| committed < before)
    }
}

/// How far the stream is, for whoever waits for its end.
#[derive(Debug, Default)]
pub(crate) struct Reading {
    position: AtomicU64,
    ended: AtomicBool,
    end: Notify,
}

impl Reading {
    /// The highest position that was read.
    pub(crate) fn position(&self) -> Lsn {
        Lsn::new(self.position.load(Ordering::Relaxed))
    }

    /// Whether all of the range was read.
    pub(crate) fn has_ended(&self) -> bool {
        self.ended.load(Ordering::Relaxed)
    }

    /// Waits until all of the range was read.
    pub(crate) async fn ended(&self) {
        while !self.has_ended() {
            self.end.notified().await;
        }
    }

    fn reached(&self, position: Lsn) {
        self.position.fetch_max(position.get(), Ordering::Relaxed);
    }

    fn set_ended(&self) {
        self.ended.store(true, Ordering::Relaxed);
        self.end.notify_one();
    }
}

/// Copies of a slot, of whose streams the range is read.
#[derive(Debug)]
pub(crate) struct RangeSource {
    copies: CopySource,
    range: Range,
    /// Events a second.
    rate: Option<u32>,
    reading: Arc<Reading>,
}

impl RangeSource {
    pub(crate) fn new(copies: CopySource, range: Range, rate: Option<u32>) -> Self {
        Self {
            copies,
            range,
            rate,
            reading: Arc::default(),
        }
    }

    pub(crate) fn reading(&self) -> Arc<Reading> {
        Arc::clone(&self.reading)
    }
}

impl Source for RangeSource {
    type Stream = RangeStream;
    type Error = PostgresError;

    async fn open(
        &mut self,
        resume: Option<&Resume>,
    ) -> Result<Opened<RangeStream>, PostgresError> {
        let opened = self.copies.open(resume).await?;
        let stream = RangeStream {
            stream: opened.stream,
            range: self.range,
            reading: Arc::clone(&self.reading),
            inside: Inside::Nothing,
            throttle: self.rate.map(Throttle::new),
            front: None,
        };
        Ok(Opened {
            stream,
            system_id: opened.system_id,
            timeline: opened.timeline,
            server_start: opened.server_start,
            ancestors: opened.ancestors,
            flushed: opened.flushed,
            confirmed: opened.confirmed,
            server_timeout: opened.server_timeout,
            tables: opened.tables,
            predecessor: opened.predecessor,
        })
    }

    fn look(&mut self) {
        self.copies.look();
    }

    async fn looked(&mut self, blocked: bool) -> Result<Looked, PostgresError> {
        self.copies.looked(blocked).await
    }

    async fn confirmed_on_server(&mut self) -> Result<Lsn, PostgresError> {
        self.copies.confirmed_on_server().await
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Inside {
    Nothing,
    /// A transaction of the range.
    Range,
    /// Another one.
    Other,
}

/// What becomes of the frame in the front.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Front {
    /// It is given. `event`: it counts for the rate.
    Given {
        event: bool,
    },
    Dropped,
}

/// The stream of a copy, as far as the range goes.
#[derive(Debug)]
pub(crate) struct RangeStream {
    stream: Stream,
    range: Range,
    reading: Arc<Reading>,
    inside: Inside,
    throttle: Option<Throttle>,
    /// Of the frame that was peeked last, until it is consumed.
    front: Option<Front>,
}

/// Spaces events evenly.
#[derive(Debug)]
struct Throttle {
    interval: Duration,
    /// When the next event may be given.
    next: Instant,
}

impl Throttle {
    fn new(rate: u32) -> Self {
        Self {
            interval: Duration::from_secs(1) / rate.max(1),
            next: Instant::now(),
        }
    }

    fn holds(&self, now: Instant) -> bool {
        self.next > now
    }

    fn given(&mut self, now: Instant) {
        let earliest = now.checked_sub(BURST).unwrap_or(now);
        self.next = self.next.max(earliest) + self.interval;
    }
}

impl RangeStream {
    /// Decides about the next frame; `None`: there is none for now.
    fn decide(&mut self) -> Result<Option<Front>, PostgresError> {
        if let Some(front) = self.front {
            return Ok(Some(front));
        }
        if self.reading.has_ended() {
            return Ok(None);
        }
        let Some(frame) = self.stream.peek()? else {
            return Ok(None);
        };
        let front = match frame {
            Frame::Keepalive { wal_end, .. } => {
                if self.inside == Inside::Nothing && wal_end >= self.range.end {
                    self.reading.set_ended();
                    return Ok(None);
                }
                self.reading.reached(wal_end);
                Front::Given { event: false }
            }
            Frame::XLogData { start, body, .. } => {
                self.reading.reached(start);
                match body.first() {
                    Some(b'B') => {
                        // What cannot be decoded is the core's to report.
                        if let Ok(Message::Begin(begin)) = decode(body) {
                            if self.range.is_over(begin.final_lsn, begin.commit_time) {
                                self.reading.set_ended();
                                return Ok(None);
                            }
                            self.inside = if self.range.has(begin.commit_time) {
                                Inside::Range
                            } else {
                                Inside::Other
                            };
                        }
                        self.of_transaction(false)
                    }
                    Some(b'C') => {
                        let front = self.of_transaction(false);
                        self.inside = Inside::Nothing;
                        front
                    }
                    Some(b'I' | b'M') => self.of_transaction(true),
                    // A table is announced once on a connection, for later transactions too.
                    Some(b'R' | b'Y') => Front::Given { event: false },
                    _ => self.of_transaction(false),
                }
            }
        };
        self.front = Some(front);
        Ok(self.front)
    }

    fn of_transaction(&self, event: bool) -> Front {
        match self.inside {
            Inside::Other => Front::Dropped,
            Inside::Nothing | Inside::Range => Front::Given { event },
        }
    }

    /// When the event in the front may be given, if it may not yet.
    fn held_until(&self) -> Option<Instant> {
        let throttle = self.throttle.as_ref()?;
        let event = self.front == Some(Front::Given { event: true });
        (event && throttle.holds(Instant::now())).then_some(throttle.next)
    }
}

impl WalStream for RangeStream {
    type Error = PostgresError;

    fn socket(&self) -> Socket {
        self.stream.socket()
    }

    fn peek(&mut self) -> Result<Option<Frame<'_>>, PostgresError> {
        while let Some(front) = self.decide()? {
            match front {
                Front::Given { .. } if self.held_until().is_some() => return Ok(None),
                Front::Given { .. } => return self.stream.peek(),
                Front::Dropped => {
                    self.front = None;
                    self.stream.consume();
                }
            }
        }
        Ok(None)
    }

    fn consume(&mut self) {
        if let (Some(Front::Given { event: true }), Some(throttle)) =
            (self.front.take(), &mut self.throttle)
        {
            throttle.given(Instant::now());
        }
        self.stream.consume();
    }

    async fn read(&mut self) -> Result<usize, PostgresError> {
        if self.reading.has_ended() {
            return pending().await;
        }
        // Nothing is read while an event is held back: the server waits.
        if let Some(until) = self.held_until() {
            sleep_until(until).await;
            return Ok(0);
        }
        self.stream.read().await
    }

    fn queue_status(&mut self, update: StatusUpdate) {
        self.stream.queue_status(update);
    }

    async fn flush(&mut self) -> Result<(), PostgresError> {
        self.stream.flush().await
    }

    async fn finish(self) -> Result<(), PostgresError> {
        self.stream.finish().await
    }
}

/// When the first transaction of a slot was committed, read from a copy of it; `None` if nothing was committed
/// before `end`. Takes as long as the server needs to decode so far.
pub(crate) async fn first_commit(
    original: Original,
    name: &str,
    end: Lsn,
) -> Result<Option<PgTimestamp>, PostgresError> {
    let mut opened = CopySource::new(original, name).open(None).await?;
    loop {
        while let Some(frame) = opened.stream.peek()? {
            match frame {
                Frame::Keepalive { wal_end, .. } if wal_end >= end => return Ok(None),
                Frame::Keepalive { .. } => {}
                Frame::XLogData { body, .. } => {
                    if let Ok(Message::Begin(begin)) = decode(body) {
                        return Ok((begin.final_lsn < end).then_some(begin.commit_time));
                    }
                }
            }
            opened.stream.consume();
        }
        opened.stream.read().await?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const T: i64 = 1_000_000_000;

    #[test]
    fn a_range_is_closed_below_and_open_above() {
        let range = Range {
            end: Lsn::new(100),
            after: Some(PgTimestamp::new(T)),
            before: Some(PgTimestamp::new(T + 10)),
        };
        for (committed, has) in [(T - 1, false), (T, true), (T + 9, true), (T + 10, false)] {
            assert_eq!(range.has(PgTimestamp::new(committed)), has, "{committed}");
        }
        let over = |start, committed| range.is_over(Lsn::new(start), PgTimestamp::new(committed));
        assert!(!over(99, T + 10), "an earlier one may follow");
        assert!(over(100, T) && over(99, T + 10 + DISORDER));
    }

    #[tokio::test(start_paused = true)]
    async fn a_rate_spaces_events_and_catches_up_a_little() {
        let mut throttle = Throttle::new(100);
        let begun = Instant::now();
        let mut given = 0;
        while begun.elapsed() < Duration::from_secs(2) {
            let now = Instant::now();
            if throttle.holds(now) {
                sleep_until(throttle.next).await;
            } else {
                throttle.given(now);
                given += 1;
            }
        }
        assert!((195..=205).contains(&given), "{given}");
        tokio::time::sleep(Duration::from_secs(60)).await;
        let now = Instant::now();
        let mut at_once = 0;
        while !throttle.holds(now) {
            throttle.given(now);
            at_once += 1;
        }
        assert!((9..=12).contains(&at_once), "{at_once}");
    }
}
