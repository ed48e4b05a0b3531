//! [`RangeSource`]: a range of a slot's stream, from a position or time to a position or time, at a
//! rate.
//!
//! # Invariants
//! - A transaction is inside the range as a whole, or not at all.
//! - After the range the stream returns no more frames, and [`Reading`] reports the end.

use std::future::pending;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};
use walrelay_lsn::{Lsn, RelationId};
use walrelay_pgoutput::{Message, PgTimestamp, decode};
use walrelay_relay::{Opened, Resume, SlotCheck, Source, WalStream};
use walrelay_walsender::{Frame, Socket, StatusUpdate};

use super::copy::{CopySource, Original};
use super::stream::Stream;
use crate::error::PostgresError;

/// Commit times may decrease a little from one commit to the next. The range has ended when a
/// commit time is this many microseconds after `before`.
const CLOCK_TOLERANCE: i64 = 60_000_000;
/// The amount of time that a throttle may catch up with after a pause.
const BURST: Duration = Duration::from_millis(100);

/// The transactions to read: those whose commit record starts before `end` and whose commit time is
/// in `after..before`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Range {
    /// The first position that is not read any more.
    pub end: Lsn,
    /// The first commit time that is read; `None`: any.
    pub after: Option<PgTimestamp>,
    /// The first commit time that is not read any more; `None`: any.
    pub before: Option<PgTimestamp>,
}

impl Range {
    /// Returns whether a transaction whose commit record is at `start` shows that the range has
    /// ended.
    fn is_over(&self, start: Lsn, committed: PgTimestamp) -> bool {
        let late =
            |before: PgTimestamp| committed.get() >= before.get().saturating_add(CLOCK_TOLERANCE);
        start >= self.end || self.before.is_some_and(late)
    }

    /// Returns whether transactions before one with this commit time may belong to the range.
    fn may_begin_before(&self, committed: PgTimestamp) -> bool {
        self.after.is_none_or(|after| committed > after)
    }

    /// Returns whether a transaction with this commit time belongs to the range.
    fn contains(&self, committed: PgTimestamp) -> bool {
        self.after.is_none_or(|after| committed >= after)
            && self.before.is_none_or(|before| committed < before)
    }
}

/// Progress of a `RangeStream`, shared with the command that waits for its end.
#[derive(Debug, Default)]
pub struct Reading {
    position: AtomicU64,
    ended: AtomicBool,
    end: Notify,
}

impl Reading {
    /// Returns the highest position that was read.
    pub fn position(&self) -> Lsn {
        Lsn::new(self.position.load(Ordering::Relaxed))
    }

    /// Returns whether the whole range was read.
    pub fn has_ended(&self) -> bool {
        self.ended.load(Ordering::Relaxed)
    }

    /// Waits until the whole range was read.
    pub async fn ended(&self) {
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

/// Reads a range of a slot through temporary copies.
#[derive(Debug)]
pub struct RangeSource {
    copies: CopySource,
    range: Range,
    /// Events per second, at most; `None` without a limit.
    rate: Option<u32>,
    reading: Arc<Reading>,
}

impl RangeSource {
    /// Creates a source of the range. `rate`: events per second, at most.
    pub fn new(copies: CopySource, range: Range, rate: Option<u32>) -> Self {
        Self {
            copies,
            range,
            rate,
            reading: Arc::default(),
        }
    }

    /// Returns the progress of the reading.
    pub fn reading(&self) -> Arc<Reading> {
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
        let wrap = |stream| RangeStream {
            stream,
            range: self.range,
            reading: Arc::clone(&self.reading),
            transaction: Transaction::None,
            throttle: self.rate.map(Throttle::new),
            decision: None,
            missing: None,
        };
        let mut opened = self.copies.open_as(resume, wrap).await?;
        // Without a time, the copy has checked its position.
        if self.range.after.is_some() {
            opened.stream.missing = self.copies.missing(resume, opened.confirmed.lsn());
        }
        Ok(opened)
    }

    fn check_slot(&mut self, unresolved: Option<RelationId>) {
        self.copies.check_slot(unresolved);
    }

    async fn slot_checked(&mut self, blocked: bool) -> Result<SlotCheck, PostgresError> {
        self.copies.slot_checked(blocked).await
    }

    async fn confirmed_on_server(&mut self) -> Result<Lsn, PostgresError> {
        self.copies.confirmed_on_server().await
    }
}

/// The transaction that the stream is in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Transaction {
    None,
    InRange,
    OutOfRange,
}

/// The decision about the next frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Decision {
    /// Return it. `event`: it counts for the rate.
    Pass {
        event: bool,
    },
    Drop,
}

/// The stream of a copy, limited to the range.
#[derive(Debug)]
pub struct RangeStream {
    stream: Stream,
    range: Range,
    reading: Arc<Reading>,
    transaction: Transaction,
    throttle: Option<Throttle>,
    /// The decision about the peeked frame, until the frame is consumed.
    decision: Option<Decision>,
    /// The slot has moved on since it was chosen: the error, unless the first transaction shows that
    /// the range starts later.
    missing: Option<PostgresError>,
}

/// Spaces events evenly over time.
#[derive(Debug)]
struct Throttle {
    interval: Duration,
    /// The time when the next event may pass.
    next: Instant,
}

impl Throttle {
    fn new(rate: u32) -> Self {
        Self {
            interval: Duration::from_secs(1) / rate.max(1),
            next: Instant::now(),
        }
    }

    fn is_blocked(&self, now: Instant) -> bool {
        self.next > now
    }

    fn passed(&mut self, now: Instant) {
        let earliest = now.checked_sub(BURST).unwrap_or(now);
        self.next = self.next.max(earliest) + self.interval;
    }
}

impl RangeStream {
    /// Returns the decision about the next frame; `None` if no frame is buffered, or the range has
    /// ended.
    fn decide(&mut self) -> Result<Option<Decision>, PostgresError> {
        if let Some(decision) = self.decision {
            return Ok(Some(decision));
        }
        if self.reading.has_ended() {
            return Ok(None);
        }
        let Some(frame) = self.stream.peek()? else {
            return Ok(None);
        };
        let decision = match frame {
            Frame::Keepalive { wal_end, .. } => {
                if self.transaction == Transaction::None && wal_end >= self.range.end {
                    if let Some(missing) = self.missing.take() {
                        return Err(missing);
                    }
                    self.reading.set_ended();
                    return Ok(None);
                }
                self.reading.reached(wal_end);
                Decision::Pass { event: false }
            }
            Frame::XLogData { start, body, .. } => {
                self.reading.reached(start);
                match body.first() {
                    Some(b'B') => {
                        // The core reports a message that cannot be decoded.
                        if let Ok(Message::Begin(begin)) = decode(body) {
                            if let Some(missing) = self.missing.take()
                                && self.range.may_begin_before(begin.commit_time)
                            {
                                return Err(missing);
                            }
                            if self.range.is_over(begin.final_lsn, begin.commit_time) {
                                self.reading.set_ended();
                                return Ok(None);
                            }
                            self.transaction = if self.range.contains(begin.commit_time) {
                                Transaction::InRange
                            } else {
                                Transaction::OutOfRange
                            };
                        }
                        self.decide_by_transaction(false)
                    }
                    Some(b'C') => {
                        let decision = self.decide_by_transaction(false);
                        self.transaction = Transaction::None;
                        decision
                    }
                    Some(b'I' | b'M') => self.decide_by_transaction(true),
                    // A Relation or Type message is sent once per connection and applies to later
                    // transactions.
                    Some(b'R' | b'Y') => Decision::Pass { event: false },
                    _ => self.decide_by_transaction(false),
                }
            }
        };
        self.decision = Some(decision);
        Ok(self.decision)
    }

    fn decide_by_transaction(&self, event: bool) -> Decision {
        match self.transaction {
            Transaction::OutOfRange => Decision::Drop,
            Transaction::None | Transaction::InRange => Decision::Pass { event },
        }
    }

    /// Returns when the peeked event may pass; `None` if it may pass now.
    fn blocked_until(&self) -> Option<Instant> {
        let throttle = self.throttle.as_ref()?;
        let event = self.decision == Some(Decision::Pass { event: true });
        (event && throttle.is_blocked(Instant::now())).then_some(throttle.next)
    }
}

impl WalStream for RangeStream {
    type Error = PostgresError;

    fn socket(&self) -> Socket {
        self.stream.socket()
    }

    fn peek(&mut self) -> Result<Option<Frame<'_>>, PostgresError> {
        while let Some(decision) = self.decide()? {
            match decision {
                Decision::Pass { .. } if self.blocked_until().is_some() => return Ok(None),
                Decision::Pass { .. } => return self.stream.peek(),
                Decision::Drop => {
                    self.decision = None;
                    self.stream.consume();
                }
            }
        }
        Ok(None)
    }

    fn consume(&mut self) {
        if let (Some(Decision::Pass { event: true }), Some(throttle)) =
            (self.decision.take(), &mut self.throttle)
        {
            throttle.passed(Instant::now());
        }
        self.stream.consume();
    }

    async fn read(&mut self) -> Result<usize, PostgresError> {
        if self.reading.has_ended() {
            return pending().await;
        }
        // While the throttle blocks an event nothing is read, so that the server waits as well.
        if let Some(until) = self.blocked_until() {
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

/// Returns the commit time of a slot's first transaction, read from a copy of the slot; `None` if
/// nothing was committed before `end`. Waits until the server has decoded up to there.
pub async fn first_commit(
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
        for (committed, contained) in [(T - 1, false), (T, true), (T + 9, true), (T + 10, false)] {
            assert_eq!(
                range.contains(PgTimestamp::new(committed)),
                contained,
                "{committed}"
            );
        }
        let over = |start, committed| range.is_over(Lsn::new(start), PgTimestamp::new(committed));
        assert!(!over(99, T + 10), "an earlier one may follow");
        assert!(over(100, T) && over(99, T + 10 + CLOCK_TOLERANCE));
    }

    #[tokio::test(start_paused = true)]
    async fn a_rate_spaces_events_and_catches_up_a_little() {
        let mut throttle = Throttle::new(100);
        let begun = Instant::now();
        let mut given = 0;
        while begun.elapsed() < Duration::from_secs(2) {
            let now = Instant::now();
            if throttle.is_blocked(now) {
                sleep_until(throttle.next).await;
            } else {
                throttle.passed(now);
                given += 1;
            }
        }
        assert!((195..=205).contains(&given), "{given}");
        tokio::time::sleep(Duration::from_secs(60)).await;
        let now = Instant::now();
        let mut at_once = 0;
        while !throttle.is_blocked(now) {
            throttle.passed(now);
            at_once += 1;
        }
        assert!((9..=12).contains(&at_once), "{at_once}");
    }
}
