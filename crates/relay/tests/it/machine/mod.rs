//! The state machine against a simulated server and broker, in any order of frames,
//! acknowledgements, failures, lost connections, crashes, and restarts of the server that set the
//! slot back. The WAL is long and random; `model/` searches short ones exhaustively. After each
//! step:
//!
//! - **G1**: every row of a transaction whose commit ends at or before the confirmed position is
//!   durable at the broker.
//! - **G2**: in the broker's log, the first deliveries of each key are in commit order; any other
//!   record belongs to a repetition, which starts at an earlier record and leaves nothing out.
//! - **G3**: with a new producer, no event is sent again that was acknowledged with all before it.
//! - The ends of transactions are told in the order of the log, and before they are confirmed. In
//!   half of the cases the sink stores the last end whose records are durable, and answers with it:
//!   then it is sent nothing of the transactions up to there.
//! - The confirmed position never moves backwards within a process, and the server is never sent a
//!   position before its slot.
//!
//! At the end everything is acknowledged, and then nothing is lost and all is confirmed.
//!
//! Some events are rows, some are messages, some are in messages of several; between them are messages of another prefix. In half of
//! the cases values have schemas, one for each key, which arrive at some time. Some events have no
//! topic: depending on the case they become dead letters, which count like any record; with
//! parking, later events of the key become dead letters, too; or they are skipped.

#![allow(
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

mod server;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use proptest::prelude::*;
use walrelay_checkpoint::{AckRing, Seq};
use walrelay_event_router::{
    Lookups, Messages, Options, Router, SubjectNames, Template, TemplateTarget, ValueFormat,
    ValueSchema, WireFormat,
};
use walrelay_lsn::{CommitEnd, Lsn};
use walrelay_relay::{
    AcknowledgedEvents, Core, PoisonAction, PoisonDecisions, PoisonPolicy, RecordSpace, Step,
    TableName,
};
use walrelay_sink::{EventPosition, Parking};
use walrelay_walsender::Frame;

use self::server::{Mode, Piece, RowId, Server};

/// Small, so that the ring is often full.
const RING: usize = 64;

/// A relay process: core, producer, connection.
struct Process {
    core: Core,
    ring: Arc<AckRing>,
    /// Records in this producer that are neither acknowledged nor failed, by sequence number.
    outstanding: BTreeMap<u64, RowId>,
    /// The lowest failed sequence number of each key. Later records of the key are not delivered by
    /// this producer.
    failed: BTreeMap<u8, u64>,
    /// The script of the connection, and how many pieces of it were read.
    connection: Option<(Vec<Piece>, usize)>,
    confirmed: u64,
    /// The ends that were told and are not stored, each with the sequence number after that of the
    /// last record before it.
    told: VecDeque<(u64, u64)>,
    /// The last end that was told.
    last_told: u64,
    /// The sequence number after that of the last record.
    next: u64,
    /// The position up to which the sink answered that it has everything.
    durable_before: Option<u64>,
    /// The first event that was not acknowledged to the last producer of the process.
    first: Option<EventPosition>,
}

struct System {
    server: Server,
    /// All records at the broker, in the order in which they were appended.
    durable: Vec<RowId>,
    durable_set: BTreeSet<RowId>,
    /// The last end of a transaction that the sink stored.
    stored: u64,
    /// The sink answers with that position when it is created.
    answers: bool,
    process: Process,
}

/// Creates a process that starts now, or gets a new producer and passes over the events before
/// `first`. It reads the parked keys from the topic of dead letters.
fn process(
    server: &Server,
    durable: &BTreeSet<RowId>,
    first: Option<EventPosition>,
    durable_before: Option<u64>,
) -> Process {
    let slot = server.slot;
    let action = match server.mode {
        Mode::Plain => PoisonAction::Halt,
        Mode::DeadLetters | Mode::Parked => PoisonAction::DeadLetter,
        Mode::Skipped => PoisonAction::Skip,
    };
    let parking = (server.mode == Mode::Parked).then(|| {
        let parking = Parking::new();
        for row in durable.iter().filter(|row| server.is_dead_letter(**row)) {
            let transaction = &server.log[row.0];
            let id = EventPosition::in_first_epoch(transaction.commit, row.1 as u64);
            let topic = (!server.is_poisoned(*row)).then_some("outbox.event.Order");
            parking.park(
                id,
                None,
                topic,
                transaction.keys[row.1].to_string().as_bytes(),
            );
        }
        parking.set_ready();
        Arc::new(parking)
    });
    let decisions = PoisonDecisions::new(PoisonPolicy {
        unroutable: action,
        parking,
        ..PoisonPolicy::default()
    });
    let ring = Arc::new(AckRing::new(RING));
    let table = TableName::new("public", "outbox");
    let confirmed = CommitEnd::from_slot(Lsn::new(slot));
    Process {
        core: Core::new(
            Router::new(Options::default()).with_wire_format(server.encoded.then(wire_format)),
            Arc::from([table]),
            Arc::clone(&ring),
            confirmed,
        )
        .with_decisions(decisions)
        .resuming_at(first, AcknowledgedEvents::default())
        .with_durable_before(durable_before.map(Lsn::new))
        .with_messages(Some(Messages::new("outbox", []))),
        ring,
        outstanding: BTreeMap::new(),
        failed: BTreeMap::new(),
        connection: None,
        confirmed: slot,
        told: VecDeque::new(),
        last_told: 0,
        next: 0,
        durable_before,
        first,
    }
}

/// Creates a wire format with a subject for each key.
fn wire_format() -> WireFormat {
    let record = Template::parse("{aggregateid}", TemplateTarget::Topic, &Lookups::new());
    WireFormat {
        format: ValueFormat::Json,
        subjects: SubjectNames::Record,
        record: Some(record.expect("a template")),
        lookups: Lookups::new(),
    }
}

#[derive(Debug, Clone)]
enum Event {
    /// Connects if there is no connection; otherwise reads up to this many frames.
    Read(u8),
    /// A read as in `Read`, with a producer that is full at the first record.
    ReadFull,
    Keepalive,
    /// The schema that the relay waits for arrives.
    Learn,
    /// The broker appends the oldest outstanding record of a key and acknowledges it.
    Ack(prop::sample::Index),
    /// The broker appends such a record, and the acknowledgement is lost with the producer.
    AppendOnly(prop::sample::Index),
    Nack(prop::sample::Index),
    Feedback,
    Disconnect,
    /// The server writes its slots to disk.
    Checkpoint,
    /// The server is killed and restarts with the slot's position from the disk.
    Restart,
    /// The relay creates a new producer and reads again from the slot, as after a failure.
    Rebuild,
    /// The relay is killed and starts again.
    Crash,
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    let event = prop_oneof![
        8 => (1..20_u8).prop_map(Event::Read),
        2 => Just(Event::ReadFull),
        2 => Just(Event::Keepalive),
        4 => Just(Event::Learn),
        12 => any::<prop::sample::Index>().prop_map(Event::Ack),
        1 => any::<prop::sample::Index>().prop_map(Event::AppendOnly),
        1 => any::<prop::sample::Index>().prop_map(Event::Nack),
        4 => Just(Event::Feedback),
        2 => Just(Event::Disconnect),
        1 => Just(Event::Checkpoint),
        1 => Just(Event::Restart),
        1 => Just(Event::Rebuild),
        1 => Just(Event::Crash),
    ];
    prop::collection::vec(event, 0..200)
}

fn transactions() -> impl Strategy<Value = Vec<(Vec<u8>, bool, bool)>> {
    let keys = prop::collection::vec(0..4_u8, 0..12);
    prop::collection::vec((keys, any::<bool>(), any::<bool>()), 1..14)
}

fn modes() -> impl Strategy<Value = Mode> {
    prop_oneof![
        2 => Just(Mode::Plain),
        1 => Just(Mode::DeadLetters),
        1 => Just(Mode::Parked),
        1 => Just(Mode::Skipped),
    ]
}

impl System {
    fn key(&self, row: RowId) -> u8 {
        self.server.log[row.0].keys[row.1]
    }

    /// Returns the oldest outstanding record of some key without a failed record before it. Only
    /// the oldest, because a producer keeps the order within a partition.
    fn deliverable(&self, index: prop::sample::Index) -> Option<(u64, RowId)> {
        let mut seen = BTreeSet::new();
        let heads: Vec<(u64, RowId)> = self
            .process
            .outstanding
            .iter()
            .map(|(seq, row)| (*seq, *row))
            .filter(|(_, row)| seen.insert(self.key(*row)))
            .filter(|(seq, row)| {
                self.process
                    .failed
                    .get(&self.key(*row))
                    .is_none_or(|f| seq < f)
            })
            .collect();
        (!heads.is_empty()).then(|| *index.get(&heads))
    }

    fn append(&mut self, row: RowId) {
        self.durable.push(row);
        self.durable_set.insert(row);
    }

    fn read(&mut self, mut frames: u32, mut full: bool) {
        let Some((script, mut at)) = self.process.connection.take() else {
            self.process.connection = Some((self.server.script(), 0));
            self.process
                .core
                .connected(CommitEnd::from_slot(Lsn::new(self.server.slot)));
            return;
        };
        while frames > 0 && at < script.len() {
            let (lsn, body) = self.server.body(&script[at]);
            let frame = Frame::XLogData {
                start: Lsn::new(lsn),
                end: Lsn::new(lsn),
                sent_at: 0,
                body: &body,
            };
            let accepted = match self
                .process
                .core
                .frame(&frame, &mut RecordSpace::default())
                .expect("a sound stream")
            {
                Step::Consumed | Step::Reply => None,
                Step::Committed(told) => {
                    let Piece::Commit(index) = script[at] else {
                        panic!("an end that is none");
                    };
                    let transaction = &self.server.log[index];
                    let position = EventPosition::in_first_epoch(
                        transaction.commit,
                        transaction.keys.len() as u64,
                    );
                    let end = told.end.lsn().get();
                    assert_eq!((end, told.position), (transaction.end, position));
                    assert!(
                        end > self.process.last_told,
                        "an end is told once, in order"
                    );
                    assert!(Some(end) > self.process.durable_before, "the sink has it");
                    self.process.last_told = end;
                    self.process.told.push_back((self.process.next, end));
                    None
                }
                Step::Blocked => break,
                Step::AwaitsPlace => unreachable!("each table has the configured name"),
                Step::AwaitsSchema => {
                    assert!(self.server.encoded, "no value has a schema");
                    break;
                }
                Step::Send(outgoing) => {
                    let header = outgoing.record().headers[0].value.expect("an id");
                    let number = outgoing.event().id.row as usize;
                    let (transaction, row) = match script[at] {
                        Piece::Row(transaction, row) => (transaction, row),
                        Piece::Batch(transaction, first, end) if (first..end).contains(&number) => {
                            (transaction, number)
                        }
                        _ => panic!("a record that no row asked for"),
                    };
                    assert_eq!(header, format!("{transaction}.{row}").as_bytes());
                    assert_eq!(outgoing.record().event_id, Some(header));
                    let id = (transaction, row);
                    let end = self.server.log[transaction].end;
                    assert!(
                        Some(end) > self.process.durable_before,
                        "the sink has {id:?}"
                    );
                    assert!(!self.server.is_skipped(id), "{id:?} is to be skipped");
                    let event = outgoing.event();
                    assert_eq!(outgoing.record().position, event.id, "{id:?}");
                    assert_eq!(event.dead_letter, self.server.is_dead_letter(id), "{id:?}");
                    assert_eq!(event.id.lsn, self.server.log[transaction].commit);
                    assert_eq!(event.id.row, row as u64, "{id:?} is known by its place");
                    let repeats = Some(event.id) < self.process.first;
                    assert!(
                        !repeats,
                        "G3: {id:?} was acknowledged to an earlier producer"
                    );
                    if std::mem::take(&mut full) {
                        break;
                    }
                    Some((outgoing.seq(), (transaction, row), event))
                }
            };
            if let Some((seq, row, event)) = accepted {
                self.process.core.sent(seq).expect("the number just given");
                self.process.next = seq.get() + 1;
                assert_eq!(self.process.core.event_of(seq), Some(event));
                assert!(
                    self.process.outstanding.insert(seq.get(), row).is_none(),
                    "a number twice"
                );
            }
            frames -= 1;
            if !self.process.core.is_inside_batch() {
                at += 1;
            }
        }
        self.process.connection = Some((script, at));
    }

    fn learn(&mut self) {
        if let Some(pending) = self.process.core.pending_schema().cloned() {
            let schema = ValueSchema::json(1);
            self.process.core.learn(&pending.subject, schema);
        }
    }

    /// Stores the ends of transactions whose records, and all before them, are acknowledged.
    fn store(&mut self) {
        let process = &mut self.process;
        let open = process.outstanding.keys().chain(process.failed.values());
        let lowest = open.min().copied().unwrap_or(process.next);
        while let Some((upto, end)) = process.told.front().copied()
            && upto <= lowest
        {
            self.stored = self.stored.max(end);
            process.told.pop_front();
        }
    }

    fn feedback(&mut self) {
        if self.process.connection.is_some() {
            let confirmed = self.process.core.acknowledged_position().lsn().get();
            assert!(self.process.core.received().get() >= confirmed);
            // The server would ignore a position before its slot, but a relay must not send one.
            assert!(confirmed >= self.server.slot, "feedback went backwards");
            self.server.slot = confirmed;
        }
    }

    fn step(&mut self, event: &Event) {
        match event {
            Event::Read(frames) => self.read(u32::from(*frames), false),
            Event::ReadFull => self.read(20, true),
            Event::Keepalive => {
                // Outside a transaction the position is the end of the last commit that was sent.
                let Some((script, at)) = &self.process.connection else {
                    return;
                };
                let sent = script[..*at].iter().rev().find_map(|piece| match piece {
                    Piece::Commit(index) => Some(self.server.log[*index].end),
                    _ => None,
                });
                // Inside a transaction a keepalive's position may be beyond commits that were not
                // sent yet.
                let inside = matches!(
                    script.get(*at),
                    Some(Piece::Row(..) | Piece::Batch(..) | Piece::Commit(_))
                );
                let wal_end = if inside {
                    u64::MAX / 2
                } else {
                    sent.unwrap_or(0)
                };
                let frame = Frame::Keepalive {
                    wal_end: Lsn::new(wal_end),
                    sent_at: 0,
                    reply_requested: false,
                };
                if !inside || self.process.core.is_inside_transaction() {
                    self.process
                        .core
                        .frame(&frame, &mut RecordSpace::default())
                        .expect("a keepalive");
                }
            }
            Event::Ack(index) => {
                if let Some((seq, row)) = self.deliverable(*index) {
                    self.process.outstanding.remove(&seq);
                    self.append(row);
                    self.process.ring.ack(Seq::new(seq));
                }
            }
            Event::AppendOnly(index) => {
                if let Some((_, row)) = self.deliverable(*index) {
                    self.append(row);
                    // The acknowledgement is lost with the producer.
                    self.rebuild(false);
                }
            }
            Event::Nack(index) => {
                if let Some((seq, row)) = self.deliverable(*index) {
                    let key = self.key(row);
                    self.process.outstanding.remove(&seq);
                    self.process.failed.entry(key).or_insert(seq);
                    self.process.ring.nack(Seq::new(seq));
                }
            }
            Event::Learn => self.learn(),
            Event::Feedback => self.feedback(),
            Event::Disconnect => {
                self.process.connection = None;
                self.process.core.disconnected();
            }
            Event::Checkpoint => self.server.durable = self.server.slot,
            Event::Restart => {
                self.process.connection = None;
                self.process.core.disconnected();
                self.server.slot = self.server.durable;
            }
            Event::Rebuild => self.rebuild(true),
            Event::Crash => self.start(None),
        }
        self.process.core.advance();
    }

    /// Does what the pipeline does after a failed delivery: confirms what is acknowledged, then
    /// starts over from the slot with a new producer, and passes over what is acknowledged.
    fn rebuild(&mut self, confirm: bool) {
        self.process.core.advance();
        if confirm {
            self.feedback();
        }
        let first = self.process.core.first_unacknowledged();
        self.start(first);
    }

    fn start(&mut self, first: Option<EventPosition>) {
        let answer = self.answers.then_some(self.stored);
        self.process = process(&self.server, &self.durable_set, first, answer);
    }

    fn check(&mut self) {
        self.store();
        let confirmed = self.process.core.acknowledged_position().lsn().get();
        assert!(
            confirmed >= self.process.confirmed,
            "confirmed went backwards"
        );
        self.process.confirmed = confirmed;
        assert!(
            confirmed <= self.stored,
            "an end was confirmed and not told"
        );
        let limit = confirmed.max(self.server.slot);
        for (transaction, row) in self.server.rows_to_send() {
            assert!(
                self.server.log[transaction].end > limit
                    || self.durable_set.contains(&(transaction, row)),
                "G1: row {row} of transaction {transaction} was confirmed and is not durable"
            );
        }
    }

    fn check_order(&self) {
        let mut logs: BTreeMap<u8, Vec<RowId>> = BTreeMap::new();
        for row in &self.durable {
            logs.entry(self.key(*row)).or_default().push(*row);
        }
        for (key, log) in logs {
            let rows = self.server.rows_to_send();
            let expected: Vec<RowId> = rows.filter(|row| self.key(*row) == key).collect();
            let index = |row: &RowId| expected.iter().position(|e| e == row).expect("committed");
            let mut reached = 0;
            let mut before = None;
            for row in &log {
                let here = index(row);
                assert!(here <= reached, "G2: key {key} skipped to {row:?}");
                // A repetition continues with the next row, or starts again at an earlier one.
                if let Some(before) = before {
                    assert!(
                        here <= before + 1,
                        "G2: key {key} jumped within a repetition"
                    );
                }
                reached = reached.max(here + 1);
                before = Some(here);
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]

    #[test]
    fn no_order_of_events_confirms_early_or_loses(
        keys in transactions(),
        mode in modes(),
        encoded in any::<bool>(),
        answers in any::<bool>(),
        events in events(),
    ) {
        let server = Server::new(keys, mode, encoded);
        let stored = server.slot;
        let process = process(&server, &BTreeSet::new(), None, None);
        let mut system =
            System { server, durable: Vec::new(), durable_set: BTreeSet::new(), stored, answers, process };
        for event in &events {
            system.step(event);
            system.check();
            system.check_order();
        }

        // From here on no fault happens.
        if !system.process.failed.is_empty() {
            system.rebuild(true);
        }
        let last = system.server.log.last().expect("at least one").end;
        for _ in 0..10_000 {
            system.read(100, false);
            system.learn();
            while let Some((seq, row)) = system.process.outstanding.pop_first() {
                system.append(row);
                system.process.ring.ack(Seq::new(seq));
            }
            system.process.core.advance();
            system.feedback();
            system.check();
            if system.server.slot >= last {
                break;
            }
        }
        prop_assert_eq!(system.server.slot, last, "not everything was confirmed");
        system.check_order();
        prop_assert_eq!(system.durable_set.len(), system.server.rows_to_send().count(), "lost");
    }
}
