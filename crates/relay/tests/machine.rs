//! The state machine against a scripted server and a scripted broker, in any order of frames,
//! acknowledgements, failures, lost connections, crashes and restarts of the server that set the slot
//! back. Long logs, at random; `model/` searches short ones exhaustively. After each step:
//!
//! - **G1**: whatever commit lies at or before the confirmed position, each of its rows is durable.
//! - **G2**: in the broker's log, the first deliveries of each key are in commit order, and what
//!   follows them is a repetition of a run that was there before.
//! - the confirmed position never moves backwards within a process, and what the server is told never
//!   lies behind its slot.
//!
//! At the end everything is acknowledged, and then nothing is lost and all is confirmed.
//!
//! Some events are rows, some messages; between them lie messages that are nobody's. Some have no
//! topic. In half of the cases values have schemas, one for each key, which arrive at some time.
//! By the policy of the case they become dead letters, which count as any
//! record does; with parking, what follows of their key does too; or they are skipped.

#![allow(
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use proptest::prelude::*;
use walrelay_checkpoint::AckRing;
use walrelay_event_router::{
    Lookups, Messages, Options, Place, Router, SubjectNames, Template, ValueFormat, ValueSchema,
    WireFormat,
};
use walrelay_lsn::{CommitEnd, Lsn, RelationId, TypeOid, Xid};
use walrelay_pgoutput::{PgTimestamp, encode};
use walrelay_relay::{Core, PoisonAction, PoisonDecisions, PoisonPolicy, Step, TableName};
use walrelay_sink::{Deliveries, EventPosition, Parking};
use walrelay_walsender::Frame;

const TEXT: TypeOid = TypeOid::new(25);
/// Small, so that the ring is often full.
const RING: usize = 64;

/// A committed transaction of the server's log. Its commit record starts at `commit` and ends at
/// `end`; the next transaction's records start right there.
#[derive(Debug, Clone)]
struct Transaction {
    xid: u32,
    commit: u64,
    end: u64,
    /// Keys of its rows; a row is `(transaction, index)`.
    keys: Vec<u8>,
    /// Whether the first of them is written as a message; then each other one is.
    message_first: bool,
    update: bool,
}

type RowId = (usize, usize);

/// What the policy makes of rows without a topic.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mode {
    /// There are none.
    Plain,
    Letters,
    /// And what follows of their key follows them.
    Parked,
    Skipped,
}

/// Of this key every other row has no topic, but in [`Mode::Plain`].
const POISONED: u8 = 3;

#[derive(Debug)]
enum Piece {
    Relation,
    Begin(usize),
    Row(usize, usize),
    Update,
    /// A message of another prefix.
    Foreign(usize),
    Commit(usize),
}

struct Server {
    log: Vec<Transaction>,
    /// The slot's `confirmed_flush_lsn`.
    slot: u64,
    /// What of it a checkpoint has written to disk.
    durable: u64,
    table: encode::Table,
    mode: Mode,
    /// Whether the values of each key have a schema of their own.
    encoded: bool,
}

impl Server {
    fn new(keys: Vec<(Vec<u8>, bool, bool)>, mode: Mode, encoded: bool) -> Self {
        let mut at = 1000;
        let log = keys
            .into_iter()
            .enumerate()
            .map(|(index, (keys, message_first, update))| {
                // Adjacent on purpose: the rows of concurrent transactions lie further back in the
                // log, so a commit record may start exactly where the one before ends.
                let commit = at;
                let end = commit + 8;
                at = end;
                Transaction {
                    xid: index as u32 + 1,
                    commit,
                    end,
                    keys,
                    message_first,
                    update,
                }
            })
            .collect();
        let table = encode::Table::new(RelationId::new(7), "public", "outbox")
            .key("id", TEXT)
            .column("aggregatetype", TEXT)
            .column("aggregateid", TEXT)
            .column("type", TEXT)
            .column("payload", TEXT);
        Self {
            log,
            slot: 1000,
            durable: 1000,
            table,
            mode,
            encoded,
        }
    }

    /// Whether the row has no topic.
    fn is_poisoned(&self, (transaction, row): RowId) -> bool {
        let poisoned = self.log[transaction].keys[row] == POISONED && row.is_multiple_of(2);
        self.mode != Mode::Plain && poisoned
    }

    /// Whether it is written as a message.
    fn is_message(&self, (transaction, row): RowId) -> bool {
        self.log[transaction].message_first == row.is_multiple_of(2)
    }

    /// Whether the row must become a letter.
    fn is_letter(&self, id: RowId) -> bool {
        let key = |(transaction, row): RowId| self.log[transaction].keys[row];
        let before = || {
            (0..=id.0)
                .flat_map(|t| (0..self.log[t].keys.len()).map(move |row| (t, row)))
                .take_while(move |other| *other < id)
        };
        match self.mode {
            Mode::Plain | Mode::Skipped => false,
            Mode::Letters => self.is_poisoned(id),
            Mode::Parked => {
                let parks = |other: RowId| key(other) == key(id) && self.is_poisoned(other);
                self.is_poisoned(id) || before().any(parks)
            }
        }
    }

    /// Whether the row goes nowhere.
    fn is_skipped(&self, id: RowId) -> bool {
        self.mode == Mode::Skipped && self.is_poisoned(id)
    }

    /// What a connection that starts now is sent.
    fn script(&self) -> Vec<Piece> {
        let mut script = vec![Piece::Relation];
        for (index, transaction) in self.log.iter().enumerate() {
            if transaction.end > self.slot {
                script.push(Piece::Begin(index));
                script.extend((0..transaction.keys.len()).map(|row| Piece::Row(index, row)));
                if transaction.update {
                    script.push(Piece::Update);
                    script.push(Piece::Foreign(index));
                }
                script.push(Piece::Commit(index));
            }
        }
        script
    }

    fn body(&self, piece: &Piece) -> (u64, Vec<u8>) {
        let time = PgTimestamp::new(0);
        match *piece {
            Piece::Relation => (0, self.table.relation()),
            Piece::Begin(index) => {
                let t = &self.log[index];
                (
                    t.commit,
                    encode::begin(Lsn::new(t.commit), time, Xid::new(t.xid)),
                )
            }
            Piece::Row(index, row) => {
                let t = &self.log[index];
                let id = format!("{index}.{row}");
                let key = t.keys[row].to_string();
                if self.is_message((index, row)) {
                    let topic = if self.is_poisoned((index, row)) {
                        ""
                    } else {
                        ",\"aggregate\":\"Order\""
                    };
                    let content =
                        format!("{{\"id\":\"{id}\",\"key\":{key},\"payload\":{{}}{topic}}}");
                    let lsn = Lsn::new(t.commit);
                    let message = encode::logical(true, lsn, "outbox", content.as_bytes());
                    return (t.commit, message);
                }
                let fields = [
                    Some(&*id),
                    (!self.is_poisoned((index, row))).then_some("Order"),
                    Some(&*key),
                    Some("T"),
                    Some("{}"),
                ];
                (t.commit, self.table.insert(&fields))
            }
            Piece::Update => {
                let row = [walrelay_pgoutput::Value::Null; 5];
                (0, encode::update(RelationId::new(7), None, &row))
            }
            Piece::Foreign(index) => {
                let t = &self.log[index];
                let message = encode::logical(true, Lsn::new(t.commit), "other", b"{");
                (t.commit, message)
            }
            Piece::Commit(index) => {
                let t = &self.log[index];
                (
                    t.end,
                    encode::commit(Lsn::new(t.commit), Lsn::new(t.end), time),
                )
            }
        }
    }
}

/// A relay process: machine, producer, connection.
struct Process {
    core: Core,
    ring: Arc<AckRing>,
    /// Accepted by this producer and neither acknowledged nor failed.
    outstanding: BTreeMap<u64, RowId>,
    /// Keys of which a record failed in this producer: nothing later of them gets through.
    failed: BTreeMap<u8, u64>,
    /// The script of the connection and how far it was read.
    connection: Option<(Vec<Piece>, usize)>,
    confirmed: u64,
}

struct World {
    server: Server,
    /// In the order in which the broker appended.
    durable: Vec<RowId>,
    durable_set: BTreeSet<RowId>,
    process: Process,
}

struct Acks(Arc<AckRing>);
impl Deliveries for Acks {
    fn delivered(&self, seq: u64) {
        self.0.ack(walrelay_checkpoint::Seq::new(seq));
    }
    fn failed(&self, seq: u64, _: walrelay_sink::DeliveryError) {
        self.0.nack(walrelay_checkpoint::Seq::new(seq));
    }
    fn capacity(&self) {}
}

/// A process that starts now. What it knows of parked keys it has from the topic of dead letters.
fn process(server: &Server, durable: &BTreeSet<RowId>) -> Process {
    let slot = server.slot;
    let action = match server.mode {
        Mode::Plain => PoisonAction::Halt,
        Mode::Letters | Mode::Parked => PoisonAction::DeadLetter,
        Mode::Skipped => PoisonAction::Skip,
    };
    let parking = (server.mode == Mode::Parked).then(|| {
        let parking = Parking::new();
        for row in durable.iter().filter(|row| server.is_letter(**row)) {
            let transaction = &server.log[row.0];
            let id = EventPosition {
                lsn: transaction.commit,
                row: row.1 as u64,
            };
            let topic = (!server.is_poisoned(*row)).then_some("outbox.event.Order");
            parking.park(id, topic, transaction.keys[row.1].to_string().as_bytes());
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
    let table = TableName {
        schema: "public".into(),
        name: "outbox".into(),
    };
    let confirmed = CommitEnd::from_slot(Lsn::new(slot));
    Process {
        core: Core::new(
            Router::new(Options::default()).with_wire_format(server.encoded.then(wire_format)),
            Arc::from([table]),
            Arc::clone(&ring),
            confirmed,
        )
        .with_decisions(decisions)
        .with_messages(Some(Messages::new("outbox", []))),
        ring,
        outstanding: BTreeMap::new(),
        failed: BTreeMap::new(),
        connection: None,
        confirmed: slot,
    }
}

/// A subject for each key.
fn wire_format() -> WireFormat {
    let record = Template::parse("{aggregateid}", Place::Topic, &Lookups::new());
    WireFormat {
        format: ValueFormat::Json,
        subjects: SubjectNames::Record,
        record: Some(record.expect("a template")),
        lookups: Lookups::new(),
    }
}

#[derive(Debug, Clone)]
enum Event {
    /// Connect if there is no connection; else read up to so many frames.
    Read(u8),
    /// As `Read`, with a producer that is full at the first record.
    ReadFull,
    Keepalive,
    /// The schema that the relay waits for arrives.
    Learn,
    /// The broker appends the oldest outstanding record of a key and acknowledges it.
    Ack(prop::sample::Index),
    /// The same, and the acknowledgement is lost with the producer.
    AppendOnly(prop::sample::Index),
    Nack(prop::sample::Index),
    Feedback,
    Disconnect,
    /// The server writes its slots to disk.
    Checkpoint,
    /// It is killed and restarts: the slot stands where it was written.
    Restart,
    /// After a failure: a new producer from the confirmed position.
    Rebuild,
    /// kill -9.
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
        1 => Just(Mode::Letters),
        1 => Just(Mode::Parked),
        1 => Just(Mode::Skipped),
    ]
}

impl World {
    fn key(&self, row: RowId) -> u8 {
        self.server.log[row.0].keys[row.1]
    }

    /// The oldest outstanding record of some key that still gets through: order within a partition
    /// is the producer's promise.
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
            let accepted = match self.process.core.frame(&frame).expect("a sound stream") {
                Step::Consumed | Step::Reply => None,
                Step::Blocked => break,
                Step::AwaitsSchema => {
                    assert!(self.server.encoded, "no value has a schema");
                    break;
                }
                Step::Send(outgoing) => {
                    let header = outgoing.record().headers[0].value.expect("an id");
                    let Piece::Row(transaction, row) = script[at] else {
                        panic!("a record that no row asked for");
                    };
                    assert_eq!(header, format!("{transaction}.{row}").as_bytes());
                    let id = (transaction, row);
                    assert!(!self.server.is_skipped(id), "{id:?} is to be skipped");
                    let event = outgoing.event();
                    assert_eq!(event.dead_letter, self.server.is_letter(id), "{id:?}");
                    assert_eq!(event.id.lsn, self.server.log[transaction].commit);
                    assert_eq!(event.id.row, row as u64, "{id:?} is known by its place");
                    if std::mem::take(&mut full) {
                        break;
                    }
                    Some((outgoing.seq(), (transaction, row), event))
                }
            };
            if let Some((seq, row, event)) = accepted {
                self.process.core.sent(seq).expect("the number just given");
                assert_eq!(self.process.core.event_of(seq), Some(event));
                assert!(
                    self.process.outstanding.insert(seq.get(), row).is_none(),
                    "a number twice"
                );
            }
            at += 1;
            frames -= 1;
        }
        self.process.connection = Some((script, at));
    }

    fn learn(&mut self) {
        if let Some(wanted) = self.process.core.pending_schema().cloned() {
            let schema = ValueSchema::json(1);
            self.process.core.learn(&wanted.subject, schema);
        }
    }

    fn feedback(&mut self) {
        if self.process.connection.is_some() {
            let confirmed = self.process.core.confirmed().lsn().get();
            assert!(self.process.core.received().get() >= confirmed);
            // The server ignores what lies behind it; a relay must not send that all the same.
            assert!(confirmed >= self.server.slot, "feedback went backwards");
            self.server.slot = confirmed;
        }
    }

    fn step(&mut self, event: &Event) {
        match event {
            Event::Read(frames) => self.read(u32::from(*frames), false),
            Event::ReadFull => self.read(20, true),
            Event::Keepalive => {
                // Says that everything up to the end of the script's last piece was sent.
                let Some((script, at)) = &self.process.connection else {
                    return;
                };
                let sent = script[..*at].iter().rev().find_map(|piece| match piece {
                    Piece::Commit(index) => Some(self.server.log[*index].end),
                    _ => None,
                });
                // Inside a transaction a server's keepalive runs ahead of what was committed.
                let inside = matches!(script.get(*at), Some(Piece::Row(..) | Piece::Commit(_)));
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
                    self.process.core.frame(&frame).expect("a keepalive");
                }
            }
            Event::Ack(index) => {
                if let Some((seq, row)) = self.deliverable(*index) {
                    self.process.outstanding.remove(&seq);
                    self.append(row);
                    Acks(Arc::clone(&self.process.ring)).delivered(seq);
                }
            }
            Event::AppendOnly(index) => {
                if let Some((_, row)) = self.deliverable(*index) {
                    self.append(row);
                    // The producer is stuck behind it until it is rebuilt.
                    self.rebuild(false);
                }
            }
            Event::Nack(index) => {
                if let Some((seq, row)) = self.deliverable(*index) {
                    let key = self.key(row);
                    self.process.outstanding.remove(&seq);
                    self.process.failed.entry(key).or_insert(seq);
                    self.process.ring.nack(walrelay_checkpoint::Seq::new(seq));
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
            Event::Crash => self.process = process(&self.server, &self.durable_set),
        }
        self.process.core.advance();
    }

    /// What the pipeline does after a failed delivery: confirm what can be, start over from the
    /// slot with a fresh producer.
    fn rebuild(&mut self, confirm: bool) {
        self.process.core.advance();
        if confirm {
            self.feedback();
        }
        self.process = process(&self.server, &self.durable_set);
    }

    fn check(&mut self) {
        let confirmed = self.process.core.confirmed().lsn().get();
        assert!(
            confirmed >= self.process.confirmed,
            "confirmed went backwards"
        );
        self.process.confirmed = confirmed;
        for (index, transaction) in self.server.log.iter().enumerate() {
            if transaction.end <= confirmed.max(self.server.slot) {
                let carried = |row: &usize| !self.server.is_skipped((index, *row));
                for row in (0..transaction.keys.len()).filter(carried) {
                    assert!(
                        self.durable_set.contains(&(index, row)),
                        "G1: row {row} of transaction {index} was confirmed and is not durable"
                    );
                }
            }
        }
    }

    fn check_order(&self) {
        let mut logs: BTreeMap<u8, Vec<RowId>> = BTreeMap::new();
        for row in &self.durable {
            logs.entry(self.key(*row)).or_default().push(*row);
        }
        for (key, log) in logs {
            let expected: Vec<RowId> = self
                .server
                .log
                .iter()
                .enumerate()
                .flat_map(|(t, transaction)| (0..transaction.keys.len()).map(move |row| (t, row)))
                .filter(|row| self.key(*row) == key && !self.server.is_skipped(*row))
                .collect();
            let place = |row: &RowId| expected.iter().position(|e| e == row).expect("committed");
            let mut reached = 0;
            let mut before = None;
            for row in &log {
                let here = place(row);
                assert!(here <= reached, "G2: key {key} skipped to {row:?}");
                // A repetition goes on where it is, or starts again further back.
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
        events in events(),
    ) {
        let server = Server::new(keys, mode, encoded);
        let process = process(&server, &BTreeSet::new());
        let mut world =
            World { server, durable: Vec::new(), durable_set: BTreeSet::new(), process };
        for event in &events {
            world.step(event);
            world.check();
            world.check_order();
        }

        // From here on nothing goes wrong any more.
        if !world.process.failed.is_empty() {
            world.rebuild(true);
        }
        let last = world.server.log.last().expect("at least one").end;
        for _ in 0..10_000 {
            world.read(100, false);
            world.learn();
            while let Some((seq, row)) = world.process.outstanding.pop_first() {
                world.append(row);
                world.process.ring.ack(walrelay_checkpoint::Seq::new(seq));
            }
            world.process.core.advance();
            world.feedback();
            world.check();
            if world.server.slot >= last {
                break;
            }
        }
        prop_assert_eq!(world.server.slot, last, "not everything was confirmed");
        world.check_order();
        let rows: usize = world
            .server
            .log
            .iter()
            .enumerate()
            .map(|(t, log)| (0..log.keys.len()).filter(|row| !world.server.is_skipped((t, *row))).count())
            .sum();
        prop_assert_eq!(world.durable_set.len(), rows, "lost");
    }
}
