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
//! was lost may still be on their way to the broker. A transaction that was enqueued whole is
//! not enqueued twice: its commit lies before [`Ledger::last_commit`], so it is passed over and
//! its first copy goes on answering for it. One that was cut in the middle is sent again from its
//! first record; what was sent of it belongs to no commit any more ([`Ledger::abandon`]).
//! This rests on the log being the same log, which the pipeline checks: same system identifier,
//! same timeline, and a slot that stands where we left it or before.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use walrelay_checkpoint::{AckRing, Ledger, Seq};
use walrelay_event_router::{
    Event, MessageHeaders, Messages, PartialRow, PlanError, RouteError, Routed, Router, Row,
    TableFacts, ValueSchema,
};
use walrelay_lsn::{CommitEnd, Lsn, RelationId, RelationMap};
use walrelay_pgoutput::{Begin, LogicalMessage, Message, PgTimestamp, Relation, decode};
use walrelay_sink::{EventPosition, Poison, Record};
use walrelay_walsender::Frame;

use crate::dlq_record::{Body, DlqHeaders, DlqRecord};
use crate::event_source::{RowError, Written, messages_table};
use crate::in_flight::{InFlightEvents, SentEvent};
use crate::poison::{Class, Diverted, PoisonAction, PoisonDecisions, Verdict};
use crate::{CoreError, Counts, PendingSchema, TableName};

/// A record to offer to the sink.
pub struct Outgoing<'a> {
    what: What<'a>,
    seq: Seq,
    event: EventPosition,
}

#[expect(
    clippy::large_enum_variant,
    reason = "the largest is by far the most frequent, and a box would be an allocation per row"
)]
enum What<'a> {
    Event(Routed<'a>),
    DlqRecord(DlqRecord<'a>),
}

impl Outgoing<'_> {
    /// The record.
    pub fn record(&self) -> Record<'_> {
        match &self.what {
            What::Event(routed) => routed.record(),
            What::DlqRecord(letter) => letter.record(),
        }
    }

    /// The event's id as it stands in the row; `None` for a letter, or where it is unknown.
    pub fn event_id(&self) -> Option<&[u8]> {
        match &self.what {
            What::Event(routed) => routed.event_id(),
            What::DlqRecord(_) => None,
        }
    }

    /// What it stands for.
    pub fn event(&self) -> SentEvent {
        SentEvent {
            id: self.event,
            dead_letter: matches!(self.what, What::DlqRecord(_)),
        }
    }

    /// The number under which its delivery is to be reported, and for [`Core::sent`].
    pub fn seq(&self) -> Seq {
        self.seq
    }
}

// Row values never reach a log.
impl fmt::Debug for Outgoing<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Outgoing")
            .field("record", &self.record())
            .field("seq", &self.seq)
            .field("event", &self.event)
            .finish()
    }
}

/// What follows from a frame.
#[derive(Debug)]
#[expect(
    clippy::large_enum_variant,
    reason = "the largest is by far the most frequent, and a box would be an allocation per row"
)]
pub enum Step<'a> {
    /// Nothing is left to do with it: consume it.
    Consumed,
    /// As `Consumed`, and the server asks for a status update at once.
    Reply,
    /// Offer this to the sink. Taken: call [`Core::sent`] and consume the frame. Full: leave the
    /// frame and give it to [`Core::frame`] again later; nothing has changed.
    Send(Outgoing<'a>),
    /// As many records are in flight as the ring can hold, or this one is to be sent alone, or it is
    /// not known yet which keys are parked: come back with the same frame.
    Blocked,
    /// A schema is needed that is not known, [`Core::pending_schema`]: come back with the same frame when it was
    /// [learned](Core::learn) or [given up](Core::give_up_schema).
    AwaitsSchema,
}

#[derive(Debug)]
enum Table {
    /// One of the configured tables; the router has its plan.
    Outbox(TableName),
    /// One of the configured tables that cannot be routed, where the policy allows for that.
    Unroutable(TableName, Arc<PlanError>),
    Foreign(TableName),
}

/// The transaction between a Begin and its Commit.
#[derive(Debug, Clone, Copy)]
struct OpenTransaction {
    begin: Begin,
    /// It was enqueued whole on an earlier connection.
    passed_over: bool,
    records: u64,
    /// Rows done with: sent, or diverted.
    rows: u64,
}

/// What was offered last, until the sink takes it.
#[derive(Debug)]
struct Offered {
    event: EventPosition,
    /// It is a letter, for this reason.
    letter: Option<Diverted>,
}

/// The state of one pipeline, from the creation of its sink to that sink's end.
#[derive(Debug)]
pub struct Core {
    router: Router,
    /// Which messages are events, and how they are read.
    messages: Option<Messages>,
    /// See [`OnUpdate::Stop`](crate::OnUpdate::Stop).
    stops_at_updates: bool,
    configured: Arc<[TableName]>,
    tables: RelationMap<Table>,
    ledger: Ledger,
    open: Option<OpenTransaction>,
    /// Transactions that commit before this were enqueued on an earlier connection, or confirmed.
    handed_over: Option<CommitEnd>,
    /// The number after the last record that was enqueued.
    next: u64,
    /// Highest position received on this connection.
    received: Lsn,
    /// The transaction that is followed to its acknowledgement, see `Environment::acknowledged`.
    sample: Option<(CommitEnd, PgTimestamp)>,
    /// The commit's time of the transaction that began last.
    begun: Option<PgTimestamp>,
    counts: Counts,
    decisions: PoisonDecisions,
    /// Of the letter that was offered last.
    texts: DlqHeaders,
    offered: Option<Offered>,
    places: InFlightEvents,
    /// To be told to people; see [`Core::take_diverted`].
    diverted: Vec<Diverted>,
    /// What the last frame waits for.
    pending_schema: Option<PendingSchema>,
    /// The event whose value does not fit the schema that is known, and whether it was asked since
    /// whether there is a later one.
    unfit: Option<(EventPosition, bool)>,
}

impl Core {
    /// A machine for a fresh sink that acknowledges into `ring`, on a slot that stands at
    /// `confirmed`. Events that cannot be delivered stop it.
    pub fn new(
        router: Router,
        configured: Arc<[TableName]>,
        ring: Arc<AckRing>,
        confirmed: CommitEnd,
    ) -> Self {
        Self::with_verdicts(
            router,
            configured,
            ring,
            confirmed,
            PoisonDecisions::default(),
        )
    }

    /// The same with a policy, and with what was decided about events on earlier sinks.
    pub fn with_verdicts(
        router: Router,
        configured: Arc<[TableName]>,
        ring: Arc<AckRing>,
        confirmed: CommitEnd,
        mut decisions: PoisonDecisions,
    ) -> Self {
        decisions.forget_before(confirmed);
        Self {
            router,
            messages: None,
            stops_at_updates: false,
            configured,
            tables: RelationMap::new(),
            ledger: Ledger::new(ring, Some(confirmed)),
            open: None,
            handed_over: None,
            next: 0,
            received: confirmed.lsn(),
            sample: None,
            begun: None,
            counts: Counts::default(),
            decisions,
            texts: DlqHeaders::default(),
            offered: None,
            places: InFlightEvents::default(),
            diverted: Vec::new(),
            pending_schema: None,
            unfit: None,
        }
    }

    /// With such messages as events, too.
    #[must_use]
    pub fn with_messages(mut self, messages: Option<Messages>) -> Self {
        self.messages = messages;
        self
    }

    /// That stops where a row of an outbox is updated.
    #[must_use]
    pub fn stopping_at_updates(mut self, stops: bool) -> Self {
        self.stops_at_updates = stops;
        self
    }

    /// A connection streams from `confirmed`, the slot's position. Call it before its first frame.
    pub fn connected(&mut self, confirmed: CommitEnd) {
        self.disconnected();
        self.received = confirmed.lsn();
        // What is confirmed was enqueued too, if by an earlier sink or process: a server that
        // restarts may find its slot further back than it said.
        self.handed_over = self.ledger.last_commit().max(self.ledger.confirmed());
    }

    /// What the catalogs say of the tables. Call it before the first frame that announces one.
    pub fn describe(&mut self, tables: Vec<TableFacts>) {
        self.router.describe(tables);
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
        self.pending_schema = None;
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
                match message {
                    Message::Insert(insert) => self.event(start, &Written::Row(insert)),
                    Message::Logical(message) if self.is_ours(&message) => {
                        self.emitted(start, message)
                    }
                    message => {
                        self.other(start, &message)?;
                        Ok(Step::Consumed)
                    }
                }
            }
        }
    }

    /// Whether the message is meant for us.
    fn is_ours(&self, message: &LogicalMessage<'_>) -> bool {
        let messages = self.messages.as_ref();
        messages.is_some_and(|messages| messages.prefix() == message.prefix)
    }

    fn emitted<'a>(
        &'a mut self,
        lsn: Lsn,
        message: LogicalMessage<'a>,
    ) -> Result<Step<'a>, CoreError> {
        if !message.transactional {
            self.misused(&message)?;
            return Ok(Step::Consumed);
        }
        // As a server announces a table: before the first row of it on a connection.
        if !self.tables.contains(Messages::TABLES[0])
            && let Some(messages) = &self.messages
        {
            let table = messages_table(messages);
            let announced = messages.announce(&mut self.router);
            for id in Messages::TABLES {
                self.enter(id, table.clone(), announced.clone())?;
            }
        }
        self.event(lsn, &Written::Message(message))
    }

    /// A message that is meant to be an event and belongs to no transaction: no commit stands for it,
    /// so that it could be confirmed before it is acknowledged, and would be lost. It is none.
    fn misused(&mut self, message: &LogicalMessage<'_>) -> Result<(), CoreError> {
        let error = CoreError::NotTransactional {
            prefix: message.prefix.to_owned(),
            lsn: message.lsn,
        };
        let cause = error.to_string();
        let poison = Poison::Unroutable;
        let Some(verdict) = self.decisions.of_unroutable(poison, cause) else {
            return Err(error);
        };
        self.counts.skipped += 1;
        let id = EventPosition {
            lsn: message.lsn.get(),
            row: 0,
        };
        // No letter: it would be lost as easily.
        let action = PoisonAction::Skip;
        self.diverted
            .push(Diverted::new(id, Verdict { action, ..verdict }, None));
        Ok(())
    }

    fn event<'a>(&'a mut self, lsn: Lsn, written: &Written<'a>) -> Result<Step<'a>, CoreError> {
        let Some(open) = &self.open else {
            return Err(CoreError::Sequence {
                what: "an event outside a transaction",
                lsn,
            });
        };
        if open.passed_over {
            return Ok(Step::Consumed);
        }
        let event = EventPosition {
            lsn: open.begin.final_lsn.get(),
            row: open.rows,
        };
        let relation = match written {
            Written::Row(insert) => insert.relation,
            Written::Message(_) => Messages::TABLES[0],
        };
        let (table, unroutable) = match self.tables.get(relation) {
            Some(Table::Outbox(table)) => (table, None),
            Some(Table::Unroutable(table, cause)) => (table, Some(cause)),
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
        if self.decisions.holds_back(event, self.ledger.in_flight())
            || self.decisions.is_waiting_for_parking()
        {
            return Ok(Step::Blocked);
        }
        let Some(seq) = self.ledger.next_seq() else {
            return Ok(Step::Blocked);
        };
        let of = Event {
            commit_lsn: open.begin.final_lsn,
            row: open.rows,
            commit_time: open.begin.commit_time,
        };
        let (insert, more) = match (written, &mut self.messages) {
            (Written::Message(message), Some(messages)) => {
                match messages.read(message.content, open.begin.commit_time) {
                    Ok(row) => (Ok(row.insert), Some(row.headers)),
                    Err(error) => (Err((message.content, error)), None),
                }
            }
            (Written::Message(_), None) => return Ok(Step::Consumed),
            (Written::Row(insert), _) => (Ok(*insert), None),
        };
        // Read into its place, and not handed from one to the next: it is large.
        let mut row = Row::default();
        let read = match (&insert, unroutable) {
            (Err((_, error)), _) => {
                let error = error.clone();
                Err((Some(error.poison()), RowError::Message(error)))
            }
            (_, Some(cause)) => Err((Some(cause.poison()), RowError::Plan(Arc::clone(cause)))),
            (Ok(insert), None) => self
                .router
                .read(insert.relation, &insert.tuple, &of, &mut row)
                .map_err(|error| (error.poison(), RowError::Route(error))),
        };
        let mut decided = None;
        if let Err((_, RowError::Route(error))) = &read {
            self.pending_schema = pending_schema(error, event, &mut self.unfit);
            if let Some(wanted) = &self.pending_schema {
                decided = self
                    .decisions
                    .of_subject(&wanted.subject)
                    .filter(|_| !wanted.again);
                if decided.is_none() {
                    return Ok(Step::AwaitsSchema);
                }
            }
        }
        let (verdict, body) = match read {
            Ok(()) => {
                let mut routed = Routed::default();
                self.router.write(&row, &mut routed);
                if let Some(more) = more {
                    routed.add_headers(more.iter());
                }
                match self.decisions.of(event, routed.topic(), routed.key()) {
                    None => {
                        self.offered = Some(Offered {
                            event,
                            letter: None,
                        });
                        let what = What::Event(routed);
                        return Ok(Step::Send(Outgoing { what, seq, event }));
                    }
                    Some(verdict) => (verdict, Body::Routed(routed)),
                }
            }
            Err((poison, error)) => {
                let verdict = decided.or_else(|| {
                    let cause = error.to_string();
                    self.decisions.of_unroutable(poison?, cause)
                });
                let Some(verdict) = verdict else {
                    let row = insert.as_ref().ok();
                    let partial_row =
                        row.map(|row| self.router.partial_row(row.relation, &row.tuple));
                    let event_id = partial_row.and_then(|partial_row| partial_row.event_id);
                    return Err(error.at(table, &open.begin, event_id));
                };
                let partial_row = match insert {
                    Ok(insert) => self.router.partial_row(insert.relation, &insert.tuple),
                    // Whole, so that somebody can still make an event of it.
                    Err((content, _)) => PartialRow {
                        value: Some(content),
                        ..PartialRow::default()
                    },
                };
                let more = more.iter().flat_map(MessageHeaders::iter);
                (verdict, Body::Partial(partial_row, more.collect()))
            }
        };
        if verdict.action == PoisonAction::Skip {
            self.counts.skipped += 1;
            if let Some(open) = &mut self.open {
                open.rows += 1;
            }
            let diverted = Diverted::new(event, verdict, body.event_id());
            self.diverted.push(diverted);
            return Ok(Step::Consumed);
        }
        let policy = self.decisions.policy();
        self.texts = DlqHeaders::of(policy, &verdict, event, &open.begin, table, &body);
        if let (Some(parking), Some(key)) = (&policy.parking, body.key()) {
            parking.park(event, body.topic(), key);
        }
        let class = verdict.class;
        self.offered = Some(Offered {
            event,
            letter: Some(Diverted::new(event, verdict, body.event_id())),
        });
        let what = What::DlqRecord(DlqRecord::new(&self.texts, class, &body));
        Ok(Step::Send(Outgoing { what, seq, event }))
    }

    /// The schema that the last frame waits for.
    pub fn pending_schema(&self) -> Option<&PendingSchema> {
        self.pending_schema.as_ref()
    }

    /// The schema of a subject is this one from now on.
    pub fn learn(&mut self, subject: &str, schema: ValueSchema) {
        self.router.learn(subject, schema);
        self.asked();
    }

    /// There is no schema of a subject, or no later one: what needs one is poison. False: the pipeline
    /// is to halt.
    pub fn give_up_schema(&mut self, subject: &str, cause: &str) -> bool {
        let again = self
            .pending_schema
            .take()
            .is_some_and(|wanted| wanted.again);
        // Judged by the schema that is known.
        self.asked();
        again || self.decisions.give_up_subject(subject, cause)
    }

    fn asked(&mut self) {
        self.pending_schema = None;
        if let Some((_, asked)) = &mut self.unfit {
            *asked = true;
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
            Message::Update(update) => self.update(update.relation)?,
            Message::Delete(_) => self.counts.deletes += 1,
            Message::Truncate(_) => self.counts.truncates += 1,
            // Somebody else's, and never a commit: a non-transactional one comes from outside any
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

    /// A row of an outbox that is changed is no event. In a transaction that was enqueued, where it
    /// did not stop us, it does not now.
    fn update(&mut self, relation: RelationId) -> Result<(), CoreError> {
        self.counts.updates += 1;
        match (self.tables.get(relation), &self.open) {
            (Some(Table::Outbox(table) | Table::Unroutable(table, _)), Some(open))
                if self.stops_at_updates && !open.passed_over =>
            {
                Err(CoreError::Update {
                    table: table.clone(),
                    xid: open.begin.xid,
                    commit: open.begin.final_lsn,
                })
            }
            _ => Ok(()),
        }
    }

    fn begin(&mut self, lsn: Lsn, begin: Begin) -> Result<(), CoreError> {
        if self.open.is_some() {
            return Err(CoreError::Sequence {
                what: "a begin inside a transaction",
                lsn,
            });
        }
        // `final_lsn` is where the commit record starts. Commit records do not overlap, so one that
        // starts before the end of a commit that was enqueued is that commit or an earlier one.
        let passed_over = self
            .handed_over
            .is_some_and(|end| begin.final_lsn < end.lsn());
        if !passed_over {
            self.ledger
                .begin()
                .map_err(|source| CoreError::Ledger { lsn, source })?;
        }
        self.begun = Some(begin.commit_time);
        self.open = Some(OpenTransaction {
            begin,
            passed_over,
            records: 0,
            rows: 0,
        });
        Ok(())
    }

    fn relation(&mut self, relation: &Relation<'_>) -> Result<(), CoreError> {
        let table = TableName {
            schema: relation.namespace.to_owned(),
            name: relation.name.to_owned(),
        };
        if self.configured.contains(&table) {
            let announced = self.router.relation(relation);
            return self.enter(relation.id, table, announced);
        }
        self.tables.insert(relation.id, Table::Foreign(table));
        Ok(())
    }

    /// Remembers a table of ours, with what the router said to it.
    fn enter(
        &mut self,
        id: RelationId,
        table: TableName,
        announced: Result<(), PlanError>,
    ) -> Result<(), CoreError> {
        let entry = match announced {
            Ok(()) => Table::Outbox(table),
            Err(error) if self.decisions.policy().action(error.poison()) == PoisonAction::Halt => {
                let source = Box::new(error);
                return Err(CoreError::Plan { table, source });
            }
            Err(error) => Table::Unroutable(table, Arc::new(error)),
        };
        self.tables.insert(id, entry);
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
            open.rows += 1;
        }
        if let Some(Offered { event, letter }) = self.offered.take() {
            let sent = SentEvent {
                id: event,
                dead_letter: letter.is_some(),
            };
            self.places.push(seq.get(), sent);
            if let Some(diverted) = letter {
                match diverted.class {
                    Class::Parked => self.counts.parked += 1,
                    Class::Poison(_) => self.counts.dead_letters += 1,
                }
                self.diverted.push(diverted);
            }
        }
        Ok(())
    }

    /// Decides that an event, which the sink refused by itself, is not to be offered again: the same
    /// frame then gives its letter, or nothing. False: the policy is to halt, or a dead letter was
    /// refused.
    pub fn reject(&mut self, event: SentEvent, poison: Poison, cause: &str) -> bool {
        !event.dead_letter && self.decisions.reject(event.id, poison, cause)
    }

    /// What the record of this number stands for, while it is in flight.
    pub fn event_of(&self, seq: Seq) -> Option<SentEvent> {
        self.places.of(seq.get())
    }

    /// How many events of each transaction, by the start of its commit record, were enqueued and are
    /// not acknowledged.
    pub(crate) fn unacknowledged(&self) -> BTreeMap<u64, u64> {
        self.places.events(self.lowest_in_flight(), self.next)
    }

    /// The events that were diverted since the last call.
    pub fn take_diverted(&mut self) -> Vec<Diverted> {
        std::mem::take(&mut self.diverted)
    }

    /// The lowest number that is not acknowledged: it moves with each acknowledgement that counts.
    pub fn lowest_in_flight(&self) -> u64 {
        self.next - self.in_flight()
    }

    /// By how much a message that the server sent at `sent_at`, µs since 2000, was later than the
    /// commit of its transaction: both are times of the server's clock.
    pub(crate) fn lag(&self, sent_at: i64) -> Duration {
        let committed = self.begun.map_or(sent_at, PgTimestamp::get);
        Duration::from_micros(sent_at.saturating_sub(committed).try_into().unwrap_or(0))
    }

    /// Collects acknowledgements. A sampled transaction that is now acknowledged is returned.
    pub fn advance(&mut self) -> Option<(CommitEnd, PgTimestamp)> {
        if self.ledger.advance().is_some() {
            let confirmed = self.confirmed();
            self.decisions.forget_before(confirmed);
        }
        self.places.forget_below(self.lowest_in_flight());
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

    /// Records enqueued and not acknowledged.
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

    /// The figures so far.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// Gives up the router and what was decided, for the machine of the next sink.
    pub fn into_parts(mut self) -> (Router, PoisonDecisions) {
        self.router.clear();
        (self.router, self.decisions)
    }
}

/// What a row that cannot be read waits for, if it does.
fn pending_schema(
    error: &RouteError,
    event: EventPosition,
    unfit: &mut Option<(EventPosition, bool)>,
) -> Option<PendingSchema> {
    match error {
        RouteError::UnknownSchema { subject } => Some(PendingSchema {
            subject: subject.clone(),
            again: false,
        }),
        // Whoever writes registers first: a value that is newer than our schema fits what is there by
        // now. Each such event asks once.
        RouteError::SchemaMismatch {
            subject,
            may_change: true,
            ..
        } if *unfit != Some((event, true)) => {
            *unfit = Some((event, false));
            Some(PendingSchema {
                subject: subject.clone(),
                again: true,
            })
        }
        _ => None,
    }
}
