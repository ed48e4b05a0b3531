use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use walrelay_checkpoint::Ledger;
use walrelay_lsn::RelationId;
use walrelay_pgoutput::Begin;
use walrelay_sink::EventPosition;

use super::topics::{TopicNumber, TopicNumbers};
use crate::interface::observer::TopicProgress;
use crate::table::TableName;

/// The table of records in flight and the events that they stand for.
///
/// One entry per run of records of one topic and table whose events follow each other in one
/// transaction, so about one per transaction in flight.
#[derive(Debug, Default)]
pub(super) struct InFlightEvents {
    /// Their first sequence numbers ascend.
    runs: VecDeque<Run>,
    topics: TopicNumbers,
    /// The topic of the record that was offered last.
    offered: TopicNumber,
    /// The last event of each topic in the runs that are forgotten, by the topic's number.
    last: Vec<Option<EventPosition>>,
}

/// Records whose events follow each other.
#[derive(Debug)]
struct Run {
    /// The sequence number of the first record.
    first: u64,
    /// The first event.
    start: EventPosition,
    topic: TopicNumber,
    relation: RelationId,
    table: Option<Arc<TableName>>,
    begin: Begin,
}

impl Run {
    /// Returns the event of one of its records.
    fn event(&self, seq: u64) -> EventPosition {
        EventPosition {
            row: self.start.row + (seq - self.first),
            ..self.start
        }
    }
}

impl InFlightEvents {
    /// Notes the topic of a record that is offered to the sink.
    pub(super) fn offer(&mut self, topic: &str) {
        self.offered = self.topics.number(topic);
    }

    /// Notes that record `seq` stands for this event, a row of `relation` in the transaction `begin`,
    /// and has the topic that was offered last. `seq` must be higher than in earlier calls. `table`:
    /// returns the table's name.
    #[inline]
    pub(super) fn push(
        &mut self,
        seq: u64,
        event: EventPosition,
        begin: Begin,
        relation: RelationId,
        table: impl FnOnce() -> Option<Arc<TableName>>,
    ) {
        let follows = self.runs.back().is_some_and(|run| {
            run.topic == self.offered
                && run.relation == relation
                && (run.start.epoch, run.start.lsn) == (event.epoch, event.lsn)
                && run.start.row.checked_add(seq - run.first) == Some(event.row)
        });
        if !follows {
            self.runs.push_back(Run {
                first: seq,
                start: event,
                topic: self.offered,
                relation,
                table: table(),
                begin,
            });
        }
    }

    /// Forgets runs whose records are all below `tail`, because these records are acknowledged.
    pub(super) fn forget_below(&mut self, tail: u64) {
        while let Some(next) = self.runs.get(1)
            && next.first <= tail
        {
            let end = next.first;
            let Some(run) = self.runs.pop_front() else {
                return;
            };
            let index = run.topic.index();
            if self.last.len() <= index {
                self.last.resize(index + 1, None);
            }
            if let Some(last) = self.last.get_mut(index) {
                *last = Some(run.event(end - 1));
            }
        }
    }

    /// Returns the runs, each with the sequence number after its last record. `next`: the number after
    /// the last record of all.
    fn with_ends(&self, next: u64) -> impl Iterator<Item = (&Run, u64)> {
        let ends = self.runs.iter().skip(1).map(|run| run.first);
        self.runs.iter().zip(ends.chain([next]))
    }

    /// Counts the events that the records `from..next` stand for, by transaction. The key is the
    /// start of the transaction's commit record. An event that was sent twice counts once.
    pub(super) fn events(&self, from: u64, next: u64) -> BTreeMap<u64, u64> {
        let mut counted: BTreeMap<u64, (u64, u64)> = BTreeMap::new();
        for (run, end) in self.with_ends(next) {
            let begin = run.first.max(from).min(end);
            let row = run.start.row + (begin - run.first);
            let end = run.start.row + (end - run.first);
            let (events, reached) = counted.entry(run.start.lsn).or_default();
            *events += end.saturating_sub(row.max(*reached));
            *reached = end.max(*reached);
        }
        let events = counted.into_iter().map(|(lsn, (events, _))| (lsn, events));
        events.filter(|(_, events)| *events > 0).collect()
    }

    /// Returns the first event in the order of the WAL that one of the records `from..next` stands
    /// for.
    pub(super) fn first_event(&self, from: u64, next: u64) -> Option<EventPosition> {
        let events = self.with_ends(next).filter_map(|(run, end)| {
            let seq = run.first.max(from);
            (seq < end).then(|| self.event(seq)).flatten()
        });
        events.min()
    }

    /// Returns the topics of all records so far. In flight are those of the records `from..next` that are not
    /// acknowledged.
    ///
    /// Cost: one step per run.
    pub(super) fn by_topic(&self, ledger: &Ledger, from: u64, next: u64) -> Vec<TopicProgress<'_>> {
        let last = self.last.iter().copied().chain(std::iter::repeat(None));
        let topics = self.topics.names().iter().zip(last);
        let topics = topics.map(|(topic, last)| TopicProgress {
            topic,
            oldest: None,
            last,
        });
        let mut topics: Vec<_> = topics.collect();
        for (run, end) in self.with_ends(next) {
            let Some(progress) = topics.get_mut(run.topic.index()) else {
                continue;
            };
            if run.first < from {
                progress.last = Some(run.event(end.min(from) - 1));
            }
            if progress.oldest.is_none() && ledger.is_in_flight(run.first.max(from)..end) {
                progress.oldest = Some(run.begin.commit_time);
            }
        }
        topics
    }

    fn run(&self, seq: u64) -> Option<&Run> {
        let after = self.runs.partition_point(|run| run.first <= seq);
        self.runs.get(after.checked_sub(1)?)
    }

    /// Returns the event that record `seq` stands for.
    pub(super) fn event(&self, seq: u64) -> Option<EventPosition> {
        Some(self.run(seq)?.event(seq))
    }

    /// Returns that event with its transaction and its table.
    pub(super) fn place(&self, seq: u64) -> Option<(EventPosition, Begin, Arc<TableName>)> {
        let run = self.run(seq)?;
        Some((self.event(seq)?, run.begin, run.table.clone()?))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use walrelay_checkpoint::{AckRing, Seq};

    use walrelay_lsn::{Lsn, Xid};
    use walrelay_pgoutput::PgTimestamp;

    use super::*;

    fn push(in_flight: &mut InFlightEvents, seq: u64, event: EventPosition, committed: i64) {
        let begin = Begin {
            final_lsn: Lsn::new(event.lsn),
            commit_time: PgTimestamp::new(committed),
            xid: Xid::new(7),
        };
        let table = || Some(Arc::new(TableName::new("public", "outbox")));
        in_flight.push(seq, event, begin, RelationId::new(7), table);
    }

    #[test]
    fn a_sequence_number_maps_to_its_event() {
        let of = |lsn, row| EventPosition::in_first_epoch(lsn, row);
        let mut in_flight = InFlightEvents::default();
        // Row 1 of the first transaction was skipped and row 4 is of another topic. Row 0 of the
        // second transaction is sent twice, because its first connection was lost.
        let sent = [
            of(8, 0),
            of(8, 2),
            of(8, 3),
            of(8, 4),
            of(8, 5),
            of(9, 0),
            of(9, 0),
            of(9, 1),
        ];
        for (seq, event) in sent.iter().enumerate() {
            in_flight.offer(if *event == of(8, 4) { "u" } else { "t" });
            push(&mut in_flight, seq as u64, *event, 0);
        }
        assert_eq!(in_flight.runs.len(), 6);
        for (seq, event) in sent.iter().enumerate() {
            assert_eq!(in_flight.event(seq as u64), Some(*event), "{seq}");
        }
        // Row 0 of the second transaction counts once.
        assert_eq!(in_flight.events(0, 8), BTreeMap::from([(8, 5), (9, 2)]));
        assert_eq!(in_flight.events(2, 8), BTreeMap::from([(8, 3), (9, 2)]));
        assert_eq!(in_flight.events(8, 8), BTreeMap::new());
        // The records of the lost connection are in flight, too, and the repeat begins before them.
        assert_eq!(in_flight.first_event(0, 8), Some(of(8, 0)));
        assert_eq!(in_flight.first_event(2, 8), Some(of(8, 3)));
        assert_eq!(in_flight.first_event(7, 8), Some(of(9, 1)));
        assert_eq!(in_flight.first_event(8, 8), None);
        in_flight.forget_below(6);
        assert_eq!(in_flight.events(6, 8), BTreeMap::from([(9, 2)]));
        assert_eq!(in_flight.runs.len(), 1);
        assert_eq!(in_flight.event(5), None);
        assert_eq!(in_flight.event(7), Some(of(9, 1)));
    }

    #[test]
    fn a_topic_has_its_oldest_record_in_flight_and_its_last_acknowledged_one() {
        let ring = Arc::new(AckRing::new(64));
        let mut ledger = Ledger::new(Arc::clone(&ring), None);
        let mut in_flight = InFlightEvents::default();
        // Records 3 and 4 follow each other in one topic, 2 and 3 in one transaction.
        let sent = [("a", 1), ("b", 2), ("a", 2), ("b", 2), ("b", 2), ("c", 3)];
        ledger.begin().unwrap();
        for (seq, (topic, lsn)) in sent.into_iter().enumerate() {
            in_flight.offer(topic);
            let id = EventPosition::in_first_epoch(lsn, seq as u64);
            push(&mut in_flight, seq as u64, id, lsn as i64 * 100);
            ledger.sent(Seq::new(seq as u64)).unwrap();
        }
        assert_eq!(in_flight.runs.len(), 5);
        let acknowledged = |seqs: &[u64], ledger: &mut Ledger, in_flight: &mut InFlightEvents| {
            for seq in seqs {
                ring.ack(Seq::new(*seq));
            }
            ledger.advance();
            let from = 6 - ledger.in_flight();
            in_flight.forget_below(from);
            let topics = in_flight.by_topic(ledger, from, 6);
            let topics = topics.iter().map(|of| {
                let oldest = of.oldest.map_or(0, PgTimestamp::get);
                let last = of.last.map_or("-".to_owned(), |last| last.row.to_string());
                format!("{} {oldest} {last}", of.topic)
            });
            topics.collect::<Vec<_>>()
        };
        for (seqs, expected) in [
            (&[][..], ["a 100 -", "b 200 -", "c 300 -"]),
            (&[1, 3], ["a 100 -", "b 200 -", "c 300 -"]),
            (&[4], ["a 100 -", "b 0 -", "c 300 -"]),
            (&[0], ["a 200 0", "b 0 1", "c 300 -"]),
            (&[5], ["a 200 0", "b 0 1", "c 0 -"]),
            (&[2], ["a 0 2", "b 0 4", "c 0 5"]),
        ] {
            let progress = acknowledged(seqs, &mut ledger, &mut in_flight);
            assert_eq!(progress, expected, "{seqs:?}");
        }
    }
}
