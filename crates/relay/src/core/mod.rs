//! The state machine: frames and acknowledgements in, records to send and the position to confirm
//! out.
//!
//! ```text
//!  connected ──▶ frame ──▶ Step::Send ──▶ (sink takes it) ──▶ sent ──▶ frame …
//!                  │  ▲        │
//!                  │  └────────┘ (sink is full: the same frame again)
//!                  ▼
//!          disconnected ──▶ connected      acknowledgements reach the ring from other threads;
//!                                          `advance` collects them into the acknowledged position
//! ```
//!
//! [`Core::frame`] **reads** an event (`transactions`, `tables`, `read`), **decides** about it
//! (`schemas`, [`PoisonDecisions`](crate::poison::PoisonDecisions)) and **emits** its record, or a dead
//! letter in its place (`diversions`, `step`). `offering` has these three steps, `connection` the start and the end of
//! a connection, `building` the exchange with the cores of earlier and later sinks.
//!
//! # After a reconnect
//! Postgres sends again from the slot's `confirmed_flush_lsn`, while records of the connection that
//! was lost may still be in flight. A transaction that was enqueued whole is not enqueued twice:
//! its commit lies before [`Ledger::last_commit`], so the repetition is ignored, and the
//! acknowledgements of the first copy confirm the transaction. A transaction that was cut in the
//! middle is read again from its first row: the records that this sink took are not offered again, and
//! the commit confirms them with the others. This requires that the WAL is the same, which the pipeline
//! checks: same system identifier, same timeline, and a slot at the position where it was left or
//! before.
//!
//! # With a sink that knows its position
//! A sink may store, together with the records, the end of the last transaction that it has
//! (`Sink::durable_before`). The rows of the transactions up to there are ignored. The ledger gets
//! these transactions without records, when the server sends them: so their ends are confirmed in
//! the order of the log, and the sink's answer itself is never confirmed.
//!
//! # With a new sink
//! The core of a sink that failed knows the first event that is not acknowledged
//! ([`Core::first_unacknowledged`]). The core of the next sink passes over the events before it, and
//! over those behind it that are acknowledged ([`Core::resuming_at`], [`AcknowledgedEvents`]), so an event
//! is refused once, and its dead letter is written once. This
//! requires that no other relay has read the slot meanwhile, which the pipeline checks. It also
//! requires that an event's number depends on the WAL only: rows that are passed over are counted,
//! because the catalogs decide whether they are, and the catalogs change.
//!
//! # Marks by which rows are passed over
//!
//! | mark | set by | trusted because | forgotten |
//! |---|---|---|---|
//! | `Transactions::enqueued_before` | `connected` | this sink took the records, or they are confirmed | with the core |
//! | `Transactions::durable_before` | `with_durable_before` | this sink stored the records | with the core |
//! | `Core::taken_before` | `disconnected` | this sink took the records of a cut transaction | by `forget_taken` |
//! | `Core::acknowledged_behind` | `resuming_at` | earlier sinks acknowledged the events | by `forget_acknowledged` |
//! | `Transactions::processed` | each row | this core has seen all rows before it | with the core |
//! | `Core::acknowledged_before` | `resuming_at` | earlier sinks acknowledged the events | by `forget_acknowledged` |
//!
//! A core ends with its sink (`Sessions::discard`, `Pipeline::recover`): when another process reads the
//! slot or may read it, when the timeline has changed, and after a failed delivery or another error
//! that is not retried. `Sessions::keep` takes `first_unacknowledged`, of which `processed` is a part,
//! for the next core. `Sessions::forget_acknowledged` is called by `discard_if_displaced`, by
//! `forget_events` for another timeline, before a snapshot, after an unfinished one, and after a wait
//! without a sink: the mark outlives a sink only if the slot is read again at once.

mod acknowledged;
mod batch;
mod building;
mod connection;
mod diversions;
mod error;
mod in_flight;
mod offering;
mod progress;
mod read;
mod relations;
mod schemas;
mod settling;
mod step;
mod tables;
mod topics;
mod tracked_rows;
mod transactions;

use walrelay_checkpoint::{Ledger, Seq};
use walrelay_event_router::{Messages, Router, ValueSchema};
use walrelay_lsn::{CommitEnd, Lsn, RelationId};
use walrelay_pgoutput::{Begin, Commit, Message, PgTimestamp, decode};
use walrelay_sink::{EventPosition, Poison, TransactionEnd};
use walrelay_walsender::Frame;

pub use acknowledged::AcknowledgedEvents;
pub use error::CoreError;
pub use settling::{DeadLetter, Settled};
pub use step::{Outgoing, Placement, RecordSpace, Step};

use crate::event::SentEvent;
use crate::interface::observer::Counts;
use crate::interface::schemas::PendingSchema;
use crate::poison::{Class, Diverted};
use batch::OpenBatch;
use diversions::Diversions;
use in_flight::InFlightEvents;
use read::WalEvent;
use schemas::SchemaWait;
use tables::Tables;
use tracked_rows::TrackedRows;
use transactions::{Ignored, Transactions};

/// An event whose record is offered to the sink.
#[derive(Debug, Clone, Copy)]
struct OfferedEvent {
    position: EventPosition,
    relation: RelationId,
}

/// The state machine of a pipeline, for the lifetime of one sink.
#[derive(Debug)]
pub struct Core {
    router: Router,
    /// The logical messages that are events, and the way to read them. `None`: none are events.
    messages: Option<Messages>,
    /// True if an update is an error, see [`OnUpdate::Stop`](crate::OnUpdate::Stop).
    stops_at_updates: bool,
    tables: Tables,
    transactions: Transactions,
    /// The message whose events are processed one by one, until all are.
    batch: Option<OpenBatch>,
    schemas: SchemaWait,
    diversions: Diversions,
    /// The event before which every event was acknowledged, skipped or not selected with an earlier
    /// sink.
    acknowledged_before: Option<EventPosition>,
    /// What earlier sinks acknowledged behind that event. In a box, because the core is part of large
    /// futures.
    acknowledged_behind: Box<AcknowledgedEvents>,
    /// The event before which this sink took every record of a transaction that a lost connection cut.
    taken_before: Option<EventPosition>,
    /// The event whose record was offered last, with its table and the table's name, until the sink
    /// takes it.
    offered: Option<OfferedEvent>,
    ledger: Ledger,
    /// In a box, because the core is part of large futures.
    in_flight: Box<InFlightEvents>,
    tracked_rows: TrackedRows,
    /// The sequence number after that of the last record that was enqueued.
    next: u64,
    /// The highest position received on this connection.
    received: Lsn,
    /// The end of the last transaction with a row.
    end_of_rows: CommitEnd,
    counts: Counts,
}

impl Core {
    /// Processes the next frame. [`Step`] says whether to consume the frame or to pass it again.
    /// A frame with several events is consumed after the last of them, see
    /// [`is_inside_batch`](Self::is_inside_batch).
    /// `space`: the place of the frame's record, an unused one for each call.
    pub fn frame<'r, 'a>(
        &'a mut self,
        frame: &Frame<'a>,
        space: &'r mut RecordSpace<'a>,
    ) -> Result<Step<'r, 'a>, CoreError> {
        self.schemas.pending = None;
        self.tables.awaited = None;
        match *frame {
            Frame::Keepalive {
                wal_end,
                reply_requested,
                ..
            } => {
                self.keepalive(wal_end);
                Ok(if reply_requested {
                    Step::Reply
                } else {
                    Step::Consumed
                })
            }
            Frame::XLogData {
                start, end, body, ..
            } => {
                self.received = self.received.max(start).max(end);
                self.message(start, body, space)
            }
        }
    }

    fn keepalive(&mut self, wal_end: Lsn) {
        self.received = self.received.max(wal_end);
        self.ledger.advance();
        self.release_rows();
        // The ledger does not know of an open transaction that is a repetition.
        if self.transactions.open.is_none() {
            self.ledger.idle(wal_end);
        }
    }

    #[inline]
    fn message<'r, 'a>(
        &'a mut self,
        lsn: Lsn,
        body: &'a [u8],
        space: &'r mut RecordSpace<'a>,
    ) -> Result<Step<'r, 'a>, CoreError> {
        // Inserts come first, because they are by far the most frequent.
        match decode(body).map_err(|source| CoreError::Decode { lsn, source })? {
            Message::Insert(insert) => return self.event(lsn, &WalEvent::Row(insert), space),
            Message::Logical(message) if self.is_event(&message) => {
                if message.transactional {
                    return self.logical_message(lsn, message, space);
                }
                let epoch = self.transactions.epoch;
                self.diversions.skip_non_transactional(&message, epoch)?;
                self.counts.skipped += 1;
            }
            // A message of another prefix. It is no commit: a non-transactional message belongs to
            // no transaction, so its position must not move the confirmed position.
            Message::Logical(_) => self.counts.logical_messages += 1,
            Message::Begin(begin) => self.begin(lsn, begin)?,
            Message::Commit(commit) => return self.commit(lsn, &commit),
            Message::Relation(relation) => self.relation(&relation, body)?,
            Message::Update(update) => {
                self.tables.last_is_next = false;
                return self.update(update.relation, lsn);
            }
            Message::Delete(_) => {
                self.tables.last_is_next = false;
                self.counts.deletes += 1;
            }
            Message::Truncate(_) => self.counts.truncates += 1,
            Message::Origin(_) | Message::Type(_) => {}
        }
        Ok(Step::Consumed)
    }

    fn begin(&mut self, lsn: Lsn, begin: Begin) -> Result<(), CoreError> {
        if self.transactions.begin(lsn, begin)? == Some(Ignored::Repeated) {
            return Ok(());
        }
        self.ledger.begin().map_err(CoreError::from_ledger(lsn))
    }

    fn commit<'r, 'a>(&mut self, lsn: Lsn, commit: &Commit) -> Result<Step<'r, 'a>, CoreError> {
        self.check_batch_is_over(lsn)?;
        let closed = self.transactions.commit(lsn, commit)?;
        // Rows that the sink has already are not counted.
        if closed.rows() > 0 || closed.ignored == Some(Ignored::InSink) {
            self.end_of_rows = self.end_of_rows.max(commit.end);
        }
        if let Some(account) = &mut self.tracked_rows.account
            && closed.ignored != Some(Ignored::Repeated)
        {
            account.committed(closed.begin.final_lsn);
        }
        if closed.ignored.is_some() {
            self.counts.repeats_avoided += 1;
        } else {
            self.counts.transactions += 1;
        }
        if closed.ignored != Some(Ignored::Repeated) {
            let committed = self.ledger.commit(commit.end);
            committed.map_err(CoreError::from_ledger(lsn))?;
        }
        Ok(match closed.ignored {
            None => Step::Committed(TransactionEnd {
                end: commit.end,
                position: closed.next_position(),
            }),
            Some(_) => Step::Consumed,
        })
    }

    /// Returns the schema that the last frame waits for.
    pub fn pending_schema(&self) -> Option<&PendingSchema> {
        self.schemas.pending.as_ref()
    }

    /// Sets the schema of a subject.
    pub fn learn(&mut self, subject: &str, schema: ValueSchema) {
        self.router.learn(subject, schema);
        self.schemas.answered();
    }

    /// Notes that there is no schema of a subject, or no later one. Without any schema the events
    /// of the subject are poison. Returns false if the pipeline must halt.
    pub fn give_up_schema(&mut self, subject: &str, cause: &str) -> bool {
        // If there is no later schema, the event is read by the known one.
        self.schemas.answered() || self.diversions.decisions.give_up_subject(subject, cause)
    }

    /// Rejects an event whose record the sink refused: the same frame then yields a dead letter, or
    /// the event is skipped. Returns false if the policy is to halt, or if the refused record was a
    /// dead letter.
    pub fn reject(&mut self, event: SentEvent, poison: Poison, cause: &str) -> bool {
        !event.dead_letter && self.diversions.decisions.reject(event.id, poison, cause)
    }

    /// Returns true if an open dead letter parks the later events of its key.
    pub(crate) fn parks_keys(&self) -> bool {
        self.diversions.decisions.policy().parking.is_some()
    }

    /// Notes that the sink took the record that [`Step::Send`] offered with number `seq`.
    pub fn sent(&mut self, seq: Seq) -> Result<(), CoreError> {
        let sent = self.ledger.sent(seq);
        sent.map_err(CoreError::from_ledger(self.received))?;
        self.next = seq.get() + 1;
        self.counts.records += 1;
        self.transactions.row_sent();
        let dead_letter = self.diversions.sent(seq.get());
        self.tracked_rows.sent(dead_letter);
        if let (Some(event), Some(open)) = (self.offered.take(), &self.transactions.open) {
            let OfferedEvent { position, relation } = event;
            let table = || self.tables.outbox_name(relation);
            self.in_flight
                .push(seq.get(), position, open.begin, relation, table);
        }
        Ok(())
    }

    /// Collects acknowledgements. Returns the commit end and commit time of the sampled transaction
    /// if it is now acknowledged.
    pub fn advance(&mut self) -> Option<(CommitEnd, PgTimestamp)> {
        let before = self.lowest_in_flight();
        let moved = self.ledger.advance().is_some();
        let confirmed = self.acknowledged_position();
        if moved {
            let epoch = self.transactions.epoch;
            self.diversions.decisions.forget_before(confirmed, epoch);
        }
        let lowest = self.lowest_in_flight();
        self.in_flight.forget_below(lowest);
        self.diversions.acknowledged_below(lowest, &mut self.counts);
        self.release_rows();
        // The first event in flight is looked for in each run, and changes with the lowest record only.
        if !self.acknowledged_behind.is_empty()
            && (lowest > before || self.in_flight() == 0)
            && let Some(first) = self.first_unacknowledged()
        {
            self.acknowledged_behind.forget_before(first);
        }
        let first = self
            .tracked_rows
            .account
            .as_ref()
            .and_then(|_| self.first_in_flight());
        if let Some(account) = &mut self.tracked_rows.account {
            account.release(confirmed.lsn(), first);
        }
        self.transactions.take_sample(confirmed)
    }

    /// Passes on the keys of rows whose events, and all before them, are acknowledged.
    fn release_rows(&mut self) {
        if self.tracked_rows.keys.is_none() {
            return;
        }
        let (first, acknowledged) = (self.first_in_flight(), self.acknowledged_position());
        let first = first.or_else(|| self.first_unread());
        if let Some(keys) = &mut self.tracked_rows.keys {
            keys.release(first, acknowledged);
        }
    }

    /// Takes the commit time of a sampled transaction that was received whole since the last call.
    pub(crate) fn take_received(&mut self) -> Option<PgTimestamp> {
        self.transactions.received.take()
    }

    /// Takes the events that were diverted since the last call.
    pub fn take_diverted(&mut self) -> Vec<Diverted> {
        std::mem::take(&mut self.diversions.diverted)
    }

    /// Takes the classes of the dead letters that were acknowledged since the last call.
    pub fn take_dead_letters(&mut self) -> Vec<Class> {
        std::mem::take(&mut self.diversions.acknowledged)
    }
}
