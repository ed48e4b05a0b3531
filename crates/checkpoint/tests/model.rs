//! Property test: the ledger against a naive model, over random sequences of calls.
//!
//! Rings are as small as possible and start at random numbers, so that most runs go around them
//! several times. The model keeps sets of numbers and computes what may be confirmed from scratch
//! after every call.
#![cfg(not(loom))]

use std::collections::BTreeSet;
use std::sync::Arc;

use proptest::prelude::*;
use walrelay_checkpoint::{AckRing, Ledger, Seq};
use walrelay_lsn::{CommitEnd, Lsn};

#[derive(Debug, Clone)]
enum Op {
    Begin,
    Send(u8),
    /// Acknowledges the record before `sent`.
    SendOvertaken,
    Commit(u8),
    /// Many transactions without a record.
    Empties(u8),
    Abandon,
    /// Acknowledges this many of the lowest outstanding records.
    AckLowest(u8),
    /// Acknowledges the outstanding record at this index, modulo their number.
    AckAny(u16),
    /// Acknowledges all outstanding records except the one at this index.
    AckAllBut(u16),
    /// Acknowledges a number counted from 200 below the tail: mostly repeated or out of the window.
    AckStray(u16),
    NackAny(u16),
    NackStray(u16),
    Idle(i8),
    Advance,
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        6 => Just(Op::Begin),
        8 => (0..40u8).prop_map(Op::Send),
        2 => Just(Op::SendOvertaken),
        6 => (0..3u8).prop_map(Op::Commit),
        1 => (0..20u8).prop_map(Op::Empties),
        1 => Just(Op::Abandon),
        5 => (0..70u8).prop_map(Op::AckLowest),
        4 => any::<u16>().prop_map(Op::AckAny),
        2 => any::<u16>().prop_map(Op::AckAllBut),
        2 => (0..400u16).prop_map(Op::AckStray),
        2 => any::<i8>().prop_map(Op::Idle),
        6 => Just(Op::Advance),
    ]
}

fn op_or_nack() -> impl Strategy<Value = Op> {
    prop_oneof![
        // Nacks are rare, because little happens after one.
        200 => op(),
        1 => any::<u16>().prop_map(Op::NackAny),
        1 => (0..400u16).prop_map(Op::NackStray),
    ]
}

#[derive(Debug)]
struct Model {
    capacity: u64,
    /// The end of the acknowledged prefix at the last `advance`.
    tail: u64,
    next: u64,
    acked: BTreeSet<u64>,
    nacked: BTreeSet<u64>,
    open: bool,
    /// Every commit: the number below which all records must be acknowledged, and the end.
    commits: Vec<(u64, Lsn)>,
    idle: Option<Lsn>,
    strays: u64,
}

impl Model {
    fn outstanding(&self) -> Vec<u64> {
        (self.tail..self.next)
            .filter(|seq| !self.acked.contains(seq))
            .collect()
    }

    fn any_outstanding(&self, at: u16) -> Option<u64> {
        let outstanding = self.outstanding();
        let at = usize::from(at).checked_rem(outstanding.len())?;
        Some(outstanding[at])
    }

    fn stray(&self, offset: u16) -> u64 {
        (self.tail + u64::from(offset)).saturating_sub(200)
    }

    fn prefix(&self) -> u64 {
        (self.tail..self.next)
            .find(|seq| !self.acked.contains(seq) || self.nacked.contains(seq))
            .unwrap_or(self.next)
    }

    /// Returns the highest position that is safe to confirm when all records below `prefix` are
    /// acknowledged.
    fn truth(&self, prefix: u64) -> Option<Lsn> {
        let safe = self
            .commits
            .iter()
            .filter(|(upto, _)| *upto <= prefix)
            .map(|(_, end)| *end);
        safe.chain(self.idle).max()
    }

    fn is_in_window(&self, seq: u64) -> bool {
        (self.tail..self.tail.saturating_add(self.capacity)).contains(&seq)
    }
}

struct Run {
    ring: Arc<AckRing>,
    ledger: Ledger,
    model: Model,
    /// The end of the last commit; a new connection starts again from `confirmed`.
    position: u64,
}

impl Run {
    fn new(first: u64, capacity: usize) -> Self {
        let ring = Arc::new(AckRing::starting_at(Seq::new(first), capacity));
        let model = Model {
            capacity: ring.capacity(),
            tail: first,
            next: first,
            acked: BTreeSet::new(),
            nacked: BTreeSet::new(),
            open: false,
            commits: Vec::new(),
            idle: None,
            strays: 0,
        };
        let ledger = Ledger::new(Arc::clone(&ring), None);
        Self {
            ring,
            ledger,
            model,
            position: 1000,
        }
    }

    fn confirmed(&self) -> Option<Lsn> {
        self.ledger.confirmed().map(CommitEnd::lsn)
    }

    fn ack(&mut self, seq: u64) {
        self.ring.ack(Seq::new(seq));
        if !self.model.is_in_window(seq) || !self.model.acked.insert(seq) {
            self.model.strays += 1;
        }
    }

    fn nack(&mut self, seq: u64) {
        self.ring.nack(Seq::new(seq));
        if self.model.is_in_window(seq) {
            self.model.nacked.insert(seq);
        } else {
            self.model.strays += 1;
        }
    }

    fn send(&mut self, overtaken: bool) {
        let next = self.ledger.next_seq();
        let has_room = self.model.next - self.model.tail < self.model.capacity;
        assert_eq!(next, has_room.then_some(Seq::new(self.model.next)));
        let Some(seq) = next else { return };
        if overtaken && self.model.open {
            self.ack(seq.get());
        }
        assert_eq!(self.ledger.sent(seq).is_ok(), self.model.open);
        self.model.next += u64::from(self.model.open);
    }

    fn commit(&mut self, distance: u8) {
        self.position += u64::from(distance);
        let end = Lsn::new(self.position);
        let result = self.ledger.commit(CommitEnd::from_commit_message(end));
        assert_eq!(result.is_ok(), self.model.open);
        if self.model.open {
            self.model.commits.push((self.model.next, end));
        }
        self.model.open = false;
    }

    fn apply(&mut self, op: &Op) {
        match *op {
            Op::Begin => {
                assert_eq!(self.ledger.begin().is_err(), self.model.open);
                self.model.open = true;
            }
            Op::Send(count) => (0..count).for_each(|_| self.send(false)),
            Op::SendOvertaken => self.send(true),
            Op::Commit(distance) => self.commit(distance),
            Op::Empties(count) => {
                let pending = self.ledger.pending();
                for _ in 0..count {
                    self.apply(&Op::Begin);
                    self.commit(1);
                }
                assert!(self.ledger.pending() <= pending + 1);
            }
            Op::Abandon => {
                self.ledger.abandon();
                self.model.open = false;
                // Postgres repeats from the confirmed position.
                self.position = self.confirmed().map_or(self.position, Lsn::get);
            }
            Op::AckLowest(count) => {
                for seq in self.model.outstanding().into_iter().take(count.into()) {
                    self.ack(seq);
                }
            }
            Op::AckAny(at) => {
                if let Some(seq) = self.model.any_outstanding(at) {
                    self.ack(seq);
                }
            }
            Op::AckAllBut(at) => {
                let mut outstanding = self.model.outstanding();
                if !outstanding.is_empty() {
                    outstanding.remove(usize::from(at) % outstanding.len());
                }
                // In reverse order.
                for seq in outstanding.into_iter().rev() {
                    self.ack(seq);
                }
            }
            Op::AckStray(offset) => self.ack(self.model.stray(offset)),
            Op::NackAny(at) => {
                if let Some(seq) = self.model.any_outstanding(at) {
                    self.nack(seq);
                }
            }
            Op::NackStray(offset) => self.nack(self.model.stray(offset)),
            Op::Idle(distance) => {
                let before = self.confirmed();
                let at = Lsn::new(self.position.saturating_add_signed(distance.into()));
                let moved = self.ledger.idle(at);
                if !self.model.open && self.model.tail == self.model.next {
                    self.model.idle = self.model.idle.max(Some(at));
                    assert_eq!(self.confirmed(), self.model.truth(self.model.tail));
                }
                assert_eq!(moved, self.confirmed() != before);
                self.position = self.position.max(self.confirmed().map_or(0, Lsn::get));
            }
            Op::Advance => {
                let before = self.confirmed();
                let prefix = self.model.prefix();
                assert_eq!(
                    self.ledger.has_news(),
                    prefix > self.model.tail || !self.model.nacked.is_empty()
                );
                let moved = self.ledger.advance();
                self.model.tail = prefix;
                assert_eq!(
                    self.confirmed(),
                    self.model.truth(prefix),
                    "exactly what is safe"
                );
                assert_eq!(
                    moved.map(CommitEnd::lsn),
                    self.confirmed().filter(|_| self.confirmed() != before)
                );
            }
        }
    }

    fn check(&self, confirmed_before: Option<Lsn>) {
        let model = &self.model;
        assert!(self.confirmed() >= confirmed_before, "moved backwards");
        assert!(
            self.confirmed() <= model.truth(model.prefix()),
            "more than what is safe"
        );
        assert_eq!(self.ledger.in_flight(), model.next - model.tail);
        assert_eq!(self.ledger.is_open(), model.open);
        assert_eq!(self.ring.strays(), model.strays);
        assert_eq!(
            self.ring.nacked().map(Seq::get),
            model.nacked.first().copied()
        );
        assert!(
            self.ledger.pending() <= self.ledger.in_flight() + 1,
            "grows without records"
        );
    }
}

fn run(first: u64, capacity: usize, ops: &[Op]) -> Run {
    let mut run = Run::new(first, capacity);
    for op in ops {
        let before = run.confirmed();
        run.apply(op);
        run.check(before);
    }
    run
}

/// Generates first numbers: in the first laps, around the overflow of a word's lap at 32 bits
/// (capacities 64 and 128: laps of 128 and 256 records), and near `u64::MAX`.
fn first() -> impl Strategy<Value = u64> {
    prop_oneof![
        Just(0),
        0..1000u64,
        (1u64 << 39) - 500..(1 << 39),
        (1u64 << 40) - 500..(1 << 40),
        u64::MAX - 40_000..u64::MAX - 30_000,
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn nothing_is_confirmed_early_whatever_happens(
        first in first(),
        capacity in prop_oneof![Just(32usize), Just(64), Just(128)],
        ops in prop::collection::vec(op_or_nack(), 1..300),
    ) {
        run(first, capacity, &ops);
    }

    #[test]
    fn all_is_confirmed_when_all_is_acknowledged(
        first in first(),
        capacity in prop_oneof![Just(32usize), Just(64), Just(128)],
        ops in prop::collection::vec(op(), 1..300),
    ) {
        let mut run = run(first, capacity, &ops);
        run.apply(&Op::Begin);
        run.apply(&Op::Send(1));
        run.commit(1);
        run.apply(&Op::AckLowest(u8::MAX));
        run.apply(&Op::Advance);
        prop_assert_eq!(run.ledger.in_flight(), 0);
        prop_assert_eq!((run.ledger.pending(), run.ledger.is_open()), (0, false));
        prop_assert_eq!(run.confirmed(), run.model.commits.iter().map(|(_, end)| *end).chain(run.model.idle).max());
        // The ring has room again.
        prop_assert_eq!(run.ledger.next_seq(), Some(Seq::new(run.model.next)));
    }
}
