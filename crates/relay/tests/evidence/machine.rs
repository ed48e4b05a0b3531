//! The real [`Core`] with the real account ([`SentAccount`]) or the real queue of keys ([`SentRows`]), as
//! a machine that repeats inputs. No other file of the search uses their interfaces.
//!
//! Two machines are in one state ([`Machine::snapshot`]) if all of this is equal:
//! - the derived `Debug` of the core and of the account, without fields that decide nothing and without
//!   sums, whose map has no order;
//! - the records in flight, and the results that the model sees ([`View`]);
//! - what a copy does next: it writes all sums, acknowledges one record after the other, settles all keys,
//!   and then reads the whole log again with a new sink. This shows the sums that wait, and which transactions
//!   are counted already.

use std::fmt::Write as _;
use std::sync::Arc;

use walrelay_checkpoint::{AckRing, Seq};
use walrelay_event_router::{Options, Router};
use walrelay_lsn::{CommitEnd, Lsn, RelationId, TypeOid, Xid};
use walrelay_pgoutput::{PgTimestamp, encode};
use walrelay_relay::measurement::{continuing, with_evidence};
use walrelay_relay::{
    AccountColumns, Core, Counted, PoisonAction, PoisonDecisions, PoisonPolicy, RecordSpace,
    SentAccount, SentEvent, SentKey, SentRows, Settled, Step, TableName, TakenKeys,
};
use walrelay_sink::{Poison, Record};
use walrelay_walsender::Frame;

use crate::database::{IN_PLACE, Numbers, Row, Sums};
use crate::fingerprint::fingerprint;

const TEXT: TypeOid = TypeOid::new(25);
/// The number of the bucket that begins at the time of the events.
const FIRST_BUCKET: i64 = 2_993_100;
/// The position of a new slot.
pub(crate) const START: u16 = 50;
/// Fields of the core's `Debug` that decide nothing.
const IGNORED_FIELDS: [&str; 4] = [" counts: ", " sample: ", " received: ", " asked_at: "];

/// Returns the position of the commit record of a transaction, which are numbered from 0 on.
pub(crate) fn commit_of(number: usize) -> u16 {
    100 * (number as u16 + 1)
}

/// Returns the end of a transaction's commit record.
pub(crate) fn end_of(number: usize) -> u16 {
    commit_of(number) + 10
}

/// A transaction as a slot carries it: the rows of its inserts, by their numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Carried {
    pub(crate) number: u8,
    pub(crate) rows: [Option<Row>; 2],
}

impl Carried {
    /// Iterates over the rows with the numbers of their inserts in the whole log.
    fn inserts(&self) -> impl Iterator<Item = (u8, Row)> {
        let first = 2 * self.number;
        let rows = self.rows.into_iter().enumerate();
        rows.filter_map(move |(at, row)| Some((first + at as u8, row?)))
    }
}

/// An input of a relay's process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Input {
    /// A stream begins at the slot's position. The account has counted up to `through`.
    Begin {
        slot: u16,
        through: u16,
    },
    /// A transaction is read, and its records are enqueued.
    Read(Carried),
    /// As `Read`, but the connection is lost after so many rows.
    Cut(Carried, u8),
    Disconnect,
    /// The destination answers the record in flight with this index.
    Ack(u8),
    /// The sink fails with all that it has in flight.
    Fail,
    /// Takes the sums that are to be written, or the same ones again.
    Take,
    Written,
    /// Takes the keys of rows that are to be marked.
    TakeKeys,
    Settle,
}

/// Sums that are to be written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Batch {
    pub(crate) from: u16,
    pub(crate) to: u16,
    pub(crate) sums: Sums,
}

/// A record in flight: the number of its insert, and whether it is a dead letter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct InFlight {
    pub(crate) insert: u8,
    pub(crate) is_dead_letter: bool,
    /// The destination answers that it refuses the record, and takes others.
    pub(crate) is_refused: bool,
    seq: u8,
}

/// A key that was taken: the hash of its row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Key {
    pub(crate) hash: [u8; 16],
    /// The event became a dead letter.
    pub(crate) is_dead: bool,
}

/// What the model sees of a process.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub(crate) struct View {
    /// The position up to which everything is acknowledged.
    pub(crate) acknowledged: u16,
    pub(crate) in_flight: Vec<InFlight>,
    /// The sums that were taken and are not written.
    pub(crate) batch: Option<Batch>,
    /// The position before which all rows are marked or stored. `None`: it is the acknowledged one.
    pub(crate) settled: Option<u16>,
    /// The keys that were taken.
    pub(crate) keys: Option<Vec<Key>>,
}

fn batch(counted: &Counted) -> Batch {
    let mut sums = Sums::default();
    for (bucket, sum) in &counted.sums {
        let at = usize::try_from(bucket.number - FIRST_BUCKET).expect("a bucket of the model");
        sums.0[at].sent += Numbers::from(sum.sent);
        sums.0[at].diverted += Numbers::from(sum.diverted);
    }
    Batch {
        from: position(counted.from),
        to: position(counted.to),
        sums,
    }
}

fn commit_end(at: u16) -> CommitEnd {
    CommitEnd::from_slot(Lsn::new(at.into()))
}

pub(crate) fn position(lsn: Lsn) -> u16 {
    u16::try_from(lsn.get()).expect("positions of the model are small")
}

fn table() -> encode::Table {
    encode::Table::new(RelationId::new(7), "public", "outbox")
        .key("id", TEXT)
        .column("aggregatetype", TEXT)
        .column("aggregateid", TEXT)
        .column("type", TEXT)
        .column("payload", TEXT)
        .column("occurred_at", TEXT)
}

/// A core with the account or the queue, of one process.
pub(crate) struct Machine {
    core: Option<Core>,
    ring: Arc<AckRing>,
    account: Option<Arc<SentAccount>>,
    rows: Option<Arc<SentRows>>,
    /// The sink has failed: the next stream begins with a new one.
    failed: bool,
    in_flight: Vec<InFlight>,
    acked: Vec<u8>,
    counted: Option<Batch>,
    keys: Option<TakenKeys>,
    read: Vec<Carried>,
}

impl Machine {
    /// Creates a process that marks rows, or accounts them. `dead`: it marks those of dead letters, too.
    pub(crate) fn new(marks: bool, dead: bool) -> Self {
        let columns = AccountColumns {
            id: Some("id".to_owned()),
            age: vec!["occurred_at".to_owned()],
        };
        Self {
            core: None,
            ring: Arc::new(AckRing::new(32)),
            account: (!marks).then(|| Arc::new(SentAccount::new(columns, true))),
            rows: marks.then(|| Arc::new(SentRows::with_limit(SentRows::LIMIT).noting_dead(dead))),
            failed: false,
            in_flight: Vec::new(),
            acked: Vec::new(),
            counted: None,
            keys: None,
            read: Vec::new(),
        }
    }

    fn core(&mut self) -> &mut Core {
        self.core.as_mut().expect("a stream has begun")
    }

    pub(crate) fn apply(&mut self, input: Input) {
        match input {
            Input::Begin { slot, through } => self.begin(slot, through),
            Input::Read(carried) => {
                self.transaction(carried, None);
            }
            Input::Cut(carried, rows) => {
                self.transaction(carried, Some(rows));
                self.core().disconnected();
            }
            Input::Disconnect => self.core().disconnected(),
            Input::Ack(nth) if self.in_flight[usize::from(nth)].is_refused => self.refuse(nth),
            Input::Ack(nth) => {
                let record = self.in_flight.remove(nth.into());
                self.ring.ack(Seq::new(record.seq.into()));
                self.acked.push(record.seq);
                self.core().advance();
            }
            Input::Fail => {
                self.in_flight.clear();
                self.core().disconnected();
                self.core().advance();
                self.failed = true;
            }
            Input::Take => {
                let account = self.account.as_ref().expect("rows are accounted");
                self.counted = account.take().as_ref().map(batch);
            }
            Input::Written => {
                self.account.as_ref().expect("rows are accounted").written();
                self.counted = None;
            }
            Input::TakeKeys => {
                self.keys = Some(self.rows.as_ref().expect("rows are marked").take(1 << 20));
            }
            Input::Settle => {
                let rows = self.rows.as_ref().expect("rows are marked");
                rows.settle(&self.keys.take().expect("keys were taken"));
            }
        }
    }

    /// Puts a dead letter in the place of a record in flight.
    fn refuse(&mut self, nth: u8) {
        let seq = Seq::new(self.in_flight[usize::from(nth)].seq.into());
        let core = self.core();
        let event = core.event_of(seq).expect("it is in flight");
        assert!(core.reject(event, Poison::Rejected, "refused"));
        let record = Record {
            topic: "outbox.event.order",
            ..Record::default()
        };
        let settled = core.settle(seq, &record).expect("it is in flight");
        assert!(matches!(settled, Settled::DeadLetter(_)), "{settled:?}");
        drop(settled);
        core.settled(seq);
        let record = &mut self.in_flight[usize::from(nth)];
        (record.is_dead_letter, record.is_refused) = (true, false);
    }

    fn begin(&mut self, slot: u16, through: u16) {
        if let Some(account) = &self.account {
            account.begin(Some(Lsn::new(through.into())));
        }
        if self.core.is_none() || self.failed {
            self.failed = false;
            self.acked.clear();
            self.ring = Arc::new(AckRing::new(32));
            let outbox = [TableName::new("public", "outbox")];
            let router = Router::new(Options::default());
            let ring = Arc::clone(&self.ring);
            let core = Core::new(router, outbox.into(), ring, commit_end(slot));
            self.core = Some(if let Some(mut last) = self.core.take() {
                let core = continuing(core, &mut last);
                core.with_decisions(last.into_parts().1)
            } else {
                let core = core.with_decisions(PoisonDecisions::new(PoisonPolicy {
                    rejected: PoisonAction::DeadLetter,
                    ..PoisonPolicy::default()
                }));
                with_evidence(core, self.account.as_ref(), self.rows.as_ref())
            });
        }
        self.core().connected(commit_end(slot));
    }

    /// Reads a transaction, or some of its rows.
    fn transaction(&mut self, carried: Carried, cut: Option<u8>) {
        if !self.read.contains(&carried) {
            self.read.push(carried);
            self.read.sort_unstable_by_key(|carried| carried.number);
        }
        let (time, table) = (PgTimestamp::new(0), table());
        let number = usize::from(carried.number);
        let [commit, end] = [commit_of(number), end_of(number)].map(|at| Lsn::new(at.into()));
        let at = Lsn::new(u64::from(commit_of(number)) - 5);
        self.message(at, &table.relation());
        self.message(
            commit,
            &encode::begin(commit, time, Xid::new(number as u32 + 1)),
        );
        let limit = cut.map_or(2, usize::from);
        for (insert, row) in carried.inserts().take(limit) {
            let body = table.insert(&row.event.values().each_ref().map(|value| Some(&**value)));
            self.row(at, &body, insert, row.refused_by);
        }
        if cut.is_none() {
            self.message(end, &encode::commit(commit, end, time));
            self.core().advance();
        }
    }

    fn message(&mut self, at: Lsn, body: &[u8]) {
        let mut space = RecordSpace::default();
        let step = self.core().frame(&frame(at, body), &mut space);
        assert!(
            matches!(step, Ok(Step::Consumed | Step::Committed(_))),
            "{step:?}"
        );
    }

    fn row(&mut self, at: Lsn, body: &[u8], insert: u8, refused_by: u8) {
        let mut offered = self.offer(at, body);
        let in_place = refused_by & IN_PLACE != 0;
        if refused_by != 0
            && !in_place
            && let Some((_, event)) = offered.filter(|(_, event)| !event.dead_letter)
        {
            assert!(self.core().reject(event, Poison::Rejected, "refused"));
            offered = self.offer(at, body);
        }
        if let Some((seq, event)) = offered {
            self.core().sent(seq).expect("the core offered it");
            self.in_flight.push(InFlight {
                insert,
                is_dead_letter: event.dead_letter,
                is_refused: in_place && !event.dead_letter,
                seq: seq.get() as u8,
            });
        }
    }

    /// Reads a row. Returns the record that the core offers, unless it passes over the row.
    fn offer(&mut self, at: Lsn, body: &[u8]) -> Option<(Seq, SentEvent)> {
        let mut space = RecordSpace::default();
        match self.core().frame(&frame(at, body), &mut space) {
            Ok(Step::Consumed) => None,
            Ok(Step::Send(outgoing)) => Some((outgoing.seq(), outgoing.event())),
            other => panic!("{other:?}"),
        }
    }

    pub(crate) fn view(&self) -> View {
        let key = |key: SentKey<'_>| Key {
            hash: key.hash().try_into().expect("a whole hash"),
            is_dead: key.dead_reason().is_some(),
        };
        View {
            acknowledged: self
                .core
                .as_ref()
                .map_or(0, |core| position(core.acknowledged_position().lsn())),
            in_flight: self.in_flight.clone(),
            batch: self.counted,
            settled: self
                .rows
                .as_ref()
                .and_then(|rows| rows.settled())
                .map(|end| position(end.lsn())),
            keys: self
                .keys
                .as_ref()
                .map(|taken| taken.keys.iter().map(key).collect()),
        }
    }

    /// Returns all that tells states apart. The machine is used up by it.
    pub(crate) fn snapshot(mut self) -> u128 {
        let view = self.view();
        let mut text = format!("{:?} {:?}", self.core, self.failed);
        for field in IGNORED_FIELDS {
            cut(&mut text, field);
        }
        if let Some(account) = &self.account {
            let mut account = format!("{account:?}");
            while cut(&mut account, " sums: ") {}
            text += &account;
        }
        // The core of the next sink knows them.
        let tail = self.core.as_ref().map_or(0, Core::lowest_in_flight);
        let mut waiting = self.acked.clone();
        waiting.retain(|seq| u64::from(*seq) >= tail);
        waiting.sort_unstable();
        let mut future = String::new();
        if self.core.is_some() {
            self.continue_into(&mut future);
        }
        fingerprint(&(text, view, waiting, future))
    }

    /// Writes what a copy does if nothing goes wrong any more.
    fn continue_into(&mut self, future: &mut String) {
        let mut note = |machine: &mut Self| {
            if let Some(account) = &machine.account {
                while let Some(counted) = account.take() {
                    let _ = write!(future, "{:?}", batch(&counted));
                    account.written();
                }
            }
            if let Some(rows) = &machine.rows {
                loop {
                    let taken = rows.take(1);
                    rows.settle(&taken);
                    let _ = write!(future, "{:?}", rows.settled());
                    if taken.keys.is_empty() {
                        break;
                    }
                    for key in taken.keys.iter() {
                        let _ = write!(future, "{:?}{:?}", key.hash(), key.dead_reason());
                    }
                }
            }
        };
        note(self);
        self.keys = None;
        while !self.failed && !self.in_flight.is_empty() {
            self.apply(Input::Ack(0));
            note(self);
        }
        self.apply(Input::Fail);
        // Not `Begin`, which would forget sums: the account goes on with those of before.
        let account = self.account.take();
        self.begin(0, 0);
        self.account = account;
        for carried in self.read.clone() {
            self.apply(Input::Read(carried));
            while !self.in_flight.is_empty() {
                self.apply(Input::Ack(0));
            }
            note(self);
        }
    }
}

fn frame(at: Lsn, body: &[u8]) -> Frame<'_> {
    Frame::XLogData {
        start: at,
        end: at,
        sent_at: 0,
        body,
    }
}

/// Removes a field from the output of a derived `Debug`. Returns false if there is none.
fn cut(text: &mut String, field: &str) -> bool {
    let Some(from) = text.find(field) else {
        return false;
    };
    let mut depth = 0;
    let after = text[from..].find(|c| {
        match c {
            '(' | '[' | '{' => depth += 1,
            ')' | ']' | '}' => depth -= 1,
            _ => {}
        }
        depth < 0 || (depth == 0 && c == ',')
    });
    let to = after.map_or(text.len(), |after| from + after);
    text.replace_range(from..to, "");
    true
}
