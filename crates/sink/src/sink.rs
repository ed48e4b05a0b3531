use std::error::Error;
use std::sync::Arc;
use std::time::{Duration, Instant};

use walrelay_lsn::{CommitEnd, Lsn};

use crate::{Deliveries, DeliveryError, Disposition, EventPosition, HeldRecord, Record};

/// The reason why [`Sink::try_send`] did not accept a record.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SendError {
    /// Back-pressure, not a failure. When [`Deliveries::capacity`] is called, offer **the same
    /// record first**, so that the order per key holds.
    #[error("the sink's queue is full")]
    Full,
    /// The record is refused and would be refused again, or the sink is broken.
    #[error(transparent)]
    Refused(#[from] DeliveryError),
}

/// The need of the next record: low latency or cheap batches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BatchingMode {
    /// Send each record at once.
    Latency,
    /// Fill batches: in a backlog, the cost per record matters and not the delay.
    Throughput,
}

/// A condition that a sink waits for before it can deliver the records it has accepted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Obstacle {
    /// A description that names what is missing, without any key or value.
    pub what: String,
    /// [`Disposition::Retryable`]: the obstacle may pass by itself. [`Disposition::Configuration`]:
    /// something must be changed, so a relay that stops need not wait for it.
    pub disposition: Disposition,
    /// The remedy for the operator, without names of topics and servers; `None` if `what` says
    /// so, or if nothing need be done.
    pub remedy: Option<&'static str>,
}

/// The keys that a sink holds back, because a record of each was refused for the moment and is sent
/// again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Retrying {
    /// The number of these keys.
    pub keys: u64,
    /// Those of the destination that has the most.
    pub most: u64,
    /// The most that a destination may have before its other keys wait too.
    pub limit: u64,
    /// When the record was refused first that has been refused the longest.
    pub since: Instant,
    /// The event id of that record, fit for logs.
    pub event_id: Option<String>,
    /// The topic of that record.
    pub topic: String,
    /// Why it is sent again: what the server answers, without any key or value of the record.
    pub why: String,
    /// When that record is sent again; `None` while it is sent, or waits for another one of its
    /// destination.
    pub next: Option<Instant>,
}

/// The end of a transaction of the source.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TransactionEnd {
    /// The position that may be confirmed when the transaction's records, and all before them, are
    /// delivered.
    pub end: CommitEnd,
    /// The position behind the transaction's last event: it is greater than that of each of its
    /// events, and smaller than that of each event of a later transaction.
    pub position: EventPosition,
}

/// The place where the stream of a sink starts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StreamStart {
    /// The `system_identifier` of the server: positions of two systems cannot be compared.
    pub system_id: String,
    /// The timeline of the server when the sink was created.
    pub timeline: u32,
    /// The slot that is read and confirmed: positions of two slots cannot be compared. `None` if none
    /// is, as in a replay, which sends events again alongside the relay.
    pub slot: Option<String>,
    /// The position that was confirmed before. Every transaction that ends after it is sent.
    pub confirmed: CommitEnd,
    /// True if the stream begins with rows of a snapshot, whose positions are none of the WAL. The
    /// same sink goes on with the WAL of the slot.
    pub snapshot: bool,
}

/// Accepts records and makes them durable.
pub trait Sink: Send {
    /// Offers a record. Does not block. After `Ok`, and only then, `seq` is reported to
    /// [`Deliveries`] exactly once, unless the record is [withdrawn](Self::withdraw) before.
    ///
    /// The caller chooses `seq`, strictly increasing over accepted records. Only a record that was
    /// withdrawn, or its dead letter, is offered with the number that it had.
    fn try_send(&mut self, record: &Record<'_>, seq: u64) -> Result<(), SendError>;

    /// Takes a record back that was [refused](Deliveries::refused). With `behind`, it takes back the
    /// accepted records of its key that follow it too. None of these was sent. Returns them in the
    /// order in which they were accepted, each with its number; empty if no such record is refused.
    /// Does not block.
    ///
    /// A sink that refuses no single record has nothing to give back.
    fn withdraw(&mut self, seq: u64, behind: bool) -> Vec<(u64, HeldRecord)> {
        let _ = (seq, behind);
        Vec::new()
    }

    /// Sends records that the sink holds back to fill a batch, and accepted records that had to
    /// wait until others were delivered. Called when the caller has nothing more to send at the
    /// moment, and after each [`Deliveries::capacity`](crate::Deliveries::capacity). Does not block
    /// and does not wait for delivery.
    fn poll(&mut self) {}

    /// Ends a transaction of the source. Does not block and cannot be refused: a sink that must
    /// finish work first answers the next record with [`SendError::Full`].
    ///
    /// Called once for each transaction that is sent to this sink, in the order of the log, after
    /// all records of the transaction were accepted and before a record of a later transaction is
    /// offered. So:
    /// - A transaction without a record of this sink ends, too. A server sends an end only of
    ///   transactions that it has something to send of, so the positions of the ends have gaps.
    /// - After a lost connection a transaction that was cut in the middle is offered again from its
    ///   first record, and ends once. A transaction that ended is neither offered nor ended again.
    /// - A new sink is told the end of every transaction after [`StreamStart::confirmed`] and after
    ///   its own [`durable_before`](Self::durable_before), also if an earlier sink of the process
    ///   was told of it, and if all of its records were delivered by that sink and are not offered
    ///   again.
    ///
    /// An end says nothing about delivery: its position is confirmed when the records are reported.
    fn commit(&mut self, transaction: &TransactionEnd) {
        let _ = transaction;
    }

    /// Returns the end of the last transaction that is durable in the sink, if the sink stores
    /// that position together with the records: every record of each transaction that ends at or
    /// before it is durable. Asked once, after the sink was created.
    ///
    /// Records of these transactions are not offered, and their ends are confirmed as those of
    /// transactions without records are: when the server has sent them, and all before them is
    /// acknowledged. The answer itself is never confirmed. An answer at or before
    /// [`StreamStart::confirmed`] has no effect. An answer that cannot be a position of the
    /// server's WAL stops the relay: the sink must compare [`StreamStart::system_id`] with what it
    /// stored, because a position of another system may look possible.
    fn durable_before(&self) -> Option<Lsn> {
        None
    }

    /// Returns true if the sink has batching modes. Otherwise [`set_mode`](Self::set_mode) is never
    /// called. Asked once for each connection.
    fn has_modes(&self) -> bool {
        false
    }

    /// Sets the batching mode from the next record on. A hint: the promises about order and
    /// delivery are the same in both modes.
    fn set_mode(&mut self, mode: BatchingMode) {
        let _ = mode;
    }

    /// Returns the obstacle that accepted records wait for, or a record that was refused for lack
    /// of room; `None` if unknown. Called repeatedly while the oldest record in flight is not
    /// acknowledged.
    ///
    /// Does not block: a sink that must query a server returns the result of an earlier query, and
    /// calls [`Deliveries::capacity`](crate::Deliveries::capacity) when it has a new one.
    fn waiting_for(&mut self) -> Option<Obstacle> {
        None
    }

    /// Returns the keys that are held back; `None`: no key is, or the sink sends no record by itself.
    /// Called repeatedly while the oldest record in flight is not acknowledged. Does not block.
    fn retrying(&self) -> Option<Retrying> {
        None
    }

    /// Waits at most `grace` until every accepted record is reported, then closes the sink. The
    /// remaining records are given up and reported as failed before this returns. Blocks: call it
    /// from a thread that may block.
    fn close(self: Box<Self>, grace: Duration);
}

/// Creates sinks: one at the start, and another one after a sink has failed.
pub trait SinkFactory: Send {
    /// The type of the sinks.
    type Sink: Sink + 'static;
    /// The reason why a sink could not be created.
    type Error: Error + Send + Sync + 'static;

    /// Creates a sink that reports to `deliveries`. `start`: the place where the stream starts;
    /// `None` if the records belong to no stream, such as dead letters that are sent again.
    ///
    /// Does not wait for the server to be reachable, unless the sink must ask it for
    /// [`Sink::durable_before`].
    fn create(
        &mut self,
        start: Option<&StreamStart>,
        deliveries: Arc<dyn Deliveries>,
    ) -> Result<Self::Sink, Self::Error>;

    /// Returns the reaction to an error of [`create`](Self::create).
    fn disposition(error: &Self::Error) -> Disposition
    where
        Self: Sized;
}
