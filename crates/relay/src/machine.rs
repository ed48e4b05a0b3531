//! The state machine: what a pipeline knows, and what follows from what happens to it.
//!
//! ```text
//!  connected ──▶ frame ──▶ Step::Send ──▶ (sink takes it) ──▶ sent ──▶ frame …
//!                  │  ▲        │
//!                  │  └────────┘ (sink is full: the same frame again)
//!                  ▼
//!          disconnected ──▶ connected      acknowledgements reach the ring from other threads;
//!                                          `advance` collects them into `confirmed`
//! ```
//!
//! # After a reconnect
//! Postgres sends again from the slot's `confirmed_flush_lsn`, while records of the connection that
//! was lost may still be on their way to the broker. A transaction that was handed over whole is
//! not handed over twice: its commit lies before [`Ledger::last_commit`], so it is passed over and
//! its first copy goes on answering for it. One that was cut in the middle is sent again from its
//! first record; what was sent of it belongs to no commit any more ([`Ledger::abandon`]).
//! This rests on the log being the same log, which the pipeline checks: same system identifier,
//! same timeline, and a slot that stands where we left it or before.

use std::collections::HashMap;
use std::sync::Arc;

use walrelay_checkpoint::{AckRing, Ledger, Seq};
use walrelay_event_router::{Routed, Router};
use walrelay_lsn::{CommitEnd, Lsn, RelationId, Xid};
use walrelay_pgoutput::{Begin, Insert, Message, PgTimestamp, Relation, decode};
use walrelay_sink::Record;
use walrelay_walsender::Frame;

use crate::{CoreError, Counts, TableName};

/// A record to offer to the sink.
#[derive(Debug)]
pub struct Outgoing<'a> {
    routed: Routed<'a>,
    seq: Seq,
}

impl Outgoing<'_> {
    /// The record.
    pub fn record(&self) -> Record<'_> {
        self.routed.record()
    }

    /// The number under which its delivery is to be reported, and for [`Core::sent`].
    pub fn seq(&self) -> Seq {
        self.seq
    }
}

/// What follows from a frame.
#[derive(Debug)]
pub enum Step<'a> {
    /// Nothing is left to do with it: consume it.
    Consumed,
    /// As `Consumed`, and the server asks for a status update at once.
    Reply,
    /// Offer this to the sink. Taken: call [`Core::sent`] and consume the frame. Full: leave the
    /// frame and give it to [`Core::frame`] again later; nothing has changed.
    Send(Outgoing<'a>),
    /// As many records are in flight as the ring can hold: come back with the same frame.
    Blocked,
}

#[derive(Debug)]
enum Table {
    /// One of the configured tables; the router has its plan.
    Outbox(TableName),
    Foreign(TableName),
}

/// The transaction between a Begin and its Commit.
#[derive(Debug, Clone, Copy)]
struct OpenTransaction {
    begin: Begin,
    /// It was handed over whole on an earlier connection.
    passed_over: bool,
    records: u64,
}

/// The state of one pipeline, from the creation of its sink to that sink's end.
#[derive(Debug)]
pub struct Core {
    router: Router,
    configured: Arc<[TableName]>,
    tables: HashMap<RelationId, Table>,
    ledger: Ledger,
    open: Option<OpenTransaction>,
    /// Transactions that commit before this were handed over on an earlier connection, or confirmed.
    handed_over: Option<CommitEnd>,
    /// The number after the last record that was handed over.
    next: u64,
    /// Highest position received on this connection.
    received: Lsn,
    /// The transaction that is followed to its acknowledgement, see `Surroundings::acknowledged`.
    sample: Option<(CommitEnd, PgTimestamp)>,
    counts: Counts,
}

impl Core {
    /// A machine for a fresh sink that acknowledges into `ring`, on a slot that stands at
    /// `confirmed`.
    pub fn new(
        router: Router,
        configured: Arc<[TableName]>,
        ring: Arc<AckRing>,
        confirmed: CommitEnd,
    ) -> Self {
        Self {
            router,
            configured,
            tables: HashMap::new(),
            ledger: Ledger::new(ring, Some(confirmed)),
            open: None,
            handed_over: None,
            next: 0,
            received: confirmed.lsn(),
            sample: None,
            counts: Counts::default(),
        }
    }

    /// A connection streams from `confirmed`, the slot's position. Call it before its first frame.
    pub fn connected(&mut self, confirmed: CommitEnd) {
        self.disconnected();
        self.received = confirmed.lsn();
        // What is confirmed was handed over too, if by an earlier sink or process: a server that
        // restarts may find its slot further back than it said.
        self.handed_over = self.ledger.last_commit().max(self.ledger.confirmed());
    }

    /// The connection is gone, or will be given no more frames.
    pub fn disconnected(&mut self) {
        self.open = None;
        self.ledger.abandon();
        // Relations are announced anew on each connection.
        self.tables.clear();
        self.router.clear();
    }

    /// Takes the next frame. It may be given again if nothing could be done with it, see [`Step`].
    pub fn frame<'a>(&'a mut self, frame: &Frame<'a>) -> Result<Step<'a>, CoreError> {
        match *frame {
            Frame::Keepalive {
                wal_end,
                reply_requested,
                ..
            } => {
                self.received = self.received.max(wal_end);
                self.ledger.advance();
                // The ledger knows of no open transaction while one is passed over.
                if self.open.is_none() {
                    self.ledger.idle(wal_end);
                }
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
                let message =
                    decode(body).map_err(|source| CoreError::Decode { lsn: start, source })?;
                // By far the most frequent first.
                if let Message::Insert(insert) = message {
                    return self.insert(start, &insert);
                }
                self.other(start, &message)?;
                Ok(Step::Consumed)
            }
        }
    }

    fn insert<'a>(&'a mut self, lsn: Lsn, insert: &Insert<'a>) -> Result<Step<'a>, CoreError> {
        let Some(open) = &self.open else {
            return Err(CoreError::Sequence {
                what: "a row outside a transaction",
                lsn,
            });
        };
        if open.passed_over {
            return Ok(Step::Consumed);
        }
        let table = match self.tables.get(&insert.relation) {
            Some(Table::Outbox(table)) => table,
            Some(Table::Foreign(table)) => {
                return Err(CoreError::ForeignTable {
                    table: table.clone(),
                });
            }
            None => {
                return Err(CoreError::Sequence {
                    what: "a row of an unannounced table",
                    lsn,
                });
            }
        };
        let Some(seq) = self.ledger.next_seq() else {
            return Ok(Step::Blocked);
        };
        match self.router.route(insert.relation, &insert.tuple) {
            Ok(routed) => Ok(Step::Send(Outgoing { routed, seq })),
            Err(source) => Err(CoreError::Route {
                table: table.clone(),
                xid: open.begin.xid,
                commit: open.begin.final_lsn,
                source: Box::new(source),
            }),
        }
    }

    fn other(&mut self, lsn: Lsn, message: &Message<'_>) -> Result<(), CoreError> {
        match message {
            Message::Begin(begin) => self.begin(lsn, *begin)?,
            Message::Commit(commit) => {
                let open = self.open.take().ok_or(CoreError::Sequence {
                    what: "a commit without a begin",
                    lsn,
                })?;
                if open.passed_over {
                    self.counts.repeats_avoided += 1;
                } else {
                    self.ledger
                        .commit(commit.end)
                        .map_err(|source| CoreError::Ledger { lsn, source })?;
                    self.counts.transactions += 1;
                    if open.records > 0 && self.sample.is_none() {
                        self.sample = Some((commit.end, commit.commit_time));
                    }
                }
            }
            Message::Relation(relation) => self.relation(relation)?,
            Message::Update(_) => self.counts.updates += 1,
            Message::Delete(_) => self.counts.deletes += 1,
            Message::Truncate(_) => self.counts.truncates += 1,
            // Not asked for, and never a commit: a non-transactional one comes from outside any
            // transaction, and its position must not move anything.
            Message::Logical(_) => self.counts.logical_messages += 1,
            Message::Origin(_) | Message::Type(_) => {}
            Message::Insert(_) => {
                return Err(CoreError::Sequence {
                    what: "a row where none is taken",
                    lsn,
                });
            }
        }
        Ok(())
    }

    fn begin(&mut self, lsn: Lsn, begin: Begin) -> Result<(), CoreError> {
        if self.open.is_some() {
            return Err(CoreError::Sequence {
                what: "a begin inside a transaction",
                lsn,
            });
        }
        // `final_lsn` is where the commit record starts. Commit records do not overlap, so one that
        // starts before the end of a commit that was handed over is that commit or an earlier one.
        let passed_over = self
            .handed_over
            .is_some_and(|end| begin.final_lsn < end.lsn());
        if !passed_over {
            self.ledger
                .begin()
                .map_err(|source| CoreError::Ledger { lsn, source })?;
        }
        self.open = Some(OpenTransaction {
            begin,
            passed_over,
            records: 0,
        });
        Ok(())
    }

    fn relation(&mut self, relation: &Relation<'_>) -> Result<(), CoreError> {
        let table = TableName {
            schema: relation.namespace.to_owned(),
            name: relation.name.to_owned(),
        };
        let entry = if self.configured.contains(&table) {
            self.router
                .relation(relation)
                .map_err(|source| CoreError::Plan {
                    table: table.clone(),
                    source: Box::new(source),
                })?;
            Table::Outbox(table)
        } else {
            Table::Foreign(table)
        };
        self.tables.insert(relation.id, entry);
        Ok(())
    }

    /// The sink took the record that [`Step::Send`] offered under `seq`.
    pub fn sent(&mut self, seq: Seq) -> Result<(), CoreError> {
        let lsn = self.received;
        self.ledger
            .sent(seq)
            .map_err(|source| CoreError::Ledger { lsn, source })?;
        self.next = seq.get() + 1;
        self.counts.records += 1;
        if let Some(open) = &mut self.open {
            open.records += 1;
        }
        Ok(())
    }

    /// Collects acknowledgements. A sampled transaction that is now acknowledged is returned.
    pub fn advance(&mut self) -> Option<(CommitEnd, PgTimestamp)> {
        self.ledger.advance();
        let (end, _) = self.sample?;
        if end <= self.confirmed() {
            self.sample.take()
        } else {
            None
        }
    }

    /// What may be reported to Postgres as flushed. Never moves backwards.
    pub fn confirmed(&self) -> CommitEnd {
        // The ledger was given a position to start from.
        self.ledger
            .confirmed()
            .unwrap_or(CommitEnd::from_slot(Lsn::ZERO))
    }

    /// The highest commit that was received or confirmed.
    pub fn seen(&self) -> CommitEnd {
        let confirmed = self.confirmed();
        self.ledger
            .last_commit()
            .map_or(confirmed, |last| last.max(confirmed))
    }

    /// What may be reported as written: the highest position received, at least what is confirmed.
    pub fn received(&self) -> Lsn {
        self.received.max(self.confirmed().lsn())
    }

    /// Records handed over and not acknowledged.
    pub fn in_flight(&self) -> u64 {
        self.ledger.in_flight()
    }

    /// Whether waiting for acknowledgements cannot move the confirmed position any more: all are
    /// there, or the next one that is missing has failed.
    pub fn is_settled(&self) -> bool {
        let outstanding = self.in_flight();
        let lowest = self.next - outstanding;
        outstanding == 0
            || self
                .ledger
                .ring()
                .nacked()
                .is_some_and(|seq| seq.get() <= lowest)
    }

    /// Whether a transaction was begun and its commit not received yet.
    pub fn is_inside_transaction(&self) -> bool {
        self.open.is_some()
    }

    /// The transaction whose rows are being received, for errors: its number and where its commit
    /// record starts.
    pub fn transaction(&self) -> Option<(Xid, Lsn)> {
        self.open.map(|open| (open.begin.xid, open.begin.final_lsn))
    }

    /// The figures so far.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// Gives up the router, for the machine of the next sink.
    pub fn into_router(mut self) -> Router {
        self.router.clear();
        self.router
    }
}
