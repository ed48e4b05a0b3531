use std::collections::{BTreeMap, VecDeque};

use walrelay_checkpoint::Ledger;
use walrelay_pgoutput::PgTimestamp;
use walrelay_sink::EventPosition;

use super::topics::{TopicNumber, TopicNumbers};
use crate::event::SentEvent;

/// The table of records in flight and the events that they stand for.
///
/// One entry per run of records of one topic whose events follow each other in one transaction, so
/// about one per transaction in flight.
#[derive(Debug, Default)]
pub(super) struct InFlightEvents {
    /// The first sequence number of each run and its event; sequence numbers ascend.
    runs: VecDeque<(u64, SentEvent)>,
    /// The topic of each run, and the commit time of its transaction.
    places: VecDeque<(TopicNumber, PgTimestamp)>,
    topics: TopicNumbers,
    /// The topic of the record that was offered last.
    offered: TopicNumber,
}

impl InFlightEvents {
    /// Notes the topic of a record that is offered to the sink.
    pub(super) fn offer(&mut self, topic: &str) {
        self.offered = self.topics.number(topic);
    }

    /// Notes that record `seq` stands for this event and has the topic that was offered last. `seq`
    /// must be higher than in earlier calls.
    pub(super) fn push(&mut self, seq: u64, event: SentEvent, committed: PgTimestamp) {
        let id = event.id;
        let topic = self.places.back().map(|(topic, _)| *topic);
        let follows = self.runs.back().is_some_and(|(first, start)| {
            start.dead_letter == event.dead_letter
                && topic == Some(self.offered)
                && start.id.lsn == id.lsn
                && start.id.row.checked_add(seq - first) == Some(id.row)
        });
        if !follows {
            self.runs.push_back((seq, event));
            self.places.push_back((self.offered, committed));
        }
    }

    /// Forgets runs whose records are all below `tail`, because these records are acknowledged.
    pub(super) fn forget_below(&mut self, tail: u64) {
        while self.runs.get(1).is_some_and(|(first, _)| *first <= tail) {
            self.runs.pop_front();
            self.places.pop_front();
        }
    }

    /// Counts the events that the records `from..next` stand for, by transaction. The key is the
    /// start of the transaction's commit record. An event that was sent twice counts once.
    pub(super) fn events(&self, from: u64, next: u64) -> BTreeMap<u64, u64> {
        let mut counted: BTreeMap<u64, (u64, u64)> = BTreeMap::new();
        let ends = self.runs.iter().skip(1).map(|(first, _)| *first);
        for ((first, start), end) in self.runs.iter().zip(ends.chain([next])) {
            let begin = (*first).max(from).min(end);
            let (row, end) = (start.id.row + (begin - first), start.id.row + (end - first));
            let (events, reached) = counted.entry(start.id.lsn).or_default();
            *events += end.saturating_sub(row.max(*reached));
            *reached = end.max(*reached);
        }
        let events = counted.into_iter().map(|(lsn, (events, _))| (lsn, events));
        events.filter(|(_, events)| *events > 0).collect()
    }

    /// Returns the first event in the order of the WAL that one of the records `from..next` stands
    /// for.
    pub(super) fn first_event(&self, from: u64, next: u64) -> Option<EventPosition> {
        let ends = self.runs.iter().skip(1).map(|(first, _)| *first);
        let runs = self.runs.iter().zip(ends.chain([next]));
        let events = runs.filter_map(|((first, _), end)| {
            let seq = (*first).max(from);
            (seq < end).then(|| self.event(seq)).flatten()
        });
        events.map(|event| event.id).min()
    }

    /// Returns the topics of the records `from..next` that are not acknowledged, each with the
    /// commit time of its first one.
    ///
    /// Cost: one step per run.
    pub(super) fn oldest_by_topic(
        &self,
        ledger: &Ledger,
        from: u64,
        next: u64,
    ) -> Vec<(&str, PgTimestamp)> {
        let names = self.topics.names();
        let mut oldest: Vec<Option<PgTimestamp>> = vec![None; names.len()];
        let ends = self.runs.iter().skip(1).map(|(first, _)| *first);
        let runs = self.runs.iter().zip(ends.chain([next]));
        for (((first, _), end), (topic, committed)) in runs.zip(&self.places) {
            let Some(known) = oldest.get_mut(topic.index()) else {
                continue;
            };
            if known.is_none() && ledger.is_in_flight((*first).max(from)..end) {
                *known = Some(*committed);
            }
        }
        let named = names.iter().zip(oldest);
        named
            .filter_map(|(name, oldest)| Some((&**name, oldest?)))
            .collect()
    }

    /// Returns the event that record `seq` stands for.
    pub(super) fn event(&self, seq: u64) -> Option<SentEvent> {
        let after = self.runs.partition_point(|(first, _)| *first <= seq);
        let (first, start) = self.runs.get(after.checked_sub(1)?)?;
        let id = EventPosition {
            lsn: start.id.lsn,
            row: start.id.row + (seq - first),
        };
        Some(SentEvent { id, ..*start })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use walrelay_checkpoint::{AckRing, Seq};

    use super::*;

    #[test]
    fn a_sequence_number_maps_to_its_event() {
        let event = |lsn, row, dead_letter| SentEvent {
            id: EventPosition { lsn, row },
            dead_letter,
        };
        let of = |lsn, row| event(lsn, row, false);
        let mut in_flight = InFlightEvents::default();
        // Row 1 of the first transaction was skipped and row 4 is a dead letter. Row 0 of the
        // second transaction is sent twice, because its first connection was lost.
        let sent = [
            of(8, 0),
            of(8, 2),
            of(8, 3),
            event(8, 4, true),
            of(8, 5),
            of(9, 0),
            of(9, 0),
            of(9, 1),
        ];
        for (seq, event) in sent.iter().enumerate() {
            in_flight.push(seq as u64, *event, PgTimestamp::new(0));
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
        assert_eq!(in_flight.first_event(0, 8), Some(of(8, 0).id));
        assert_eq!(in_flight.first_event(2, 8), Some(of(8, 3).id));
        assert_eq!(in_flight.first_event(7, 8), Some(of(9, 1).id));
        assert_eq!(in_flight.first_event(8, 8), None);
        in_flight.forget_below(6);
        assert_eq!(in_flight.events(6, 8), BTreeMap::from([(9, 2)]));
        assert_eq!(in_flight.runs.len(), 1);
        assert_eq!(in_flight.event(5), None);
        assert_eq!(in_flight.event(7), Some(of(9, 1)));
    }

    #[test]
    fn a_topic_has_the_commit_time_of_its_first_record_that_is_not_acknowledged() {
        let ring = Arc::new(AckRing::new(64));
        let mut ledger = Ledger::new(Arc::clone(&ring), None);
        let mut in_flight = InFlightEvents::default();
        // Records 3 and 4 follow each other in one topic, 2 and 3 in one transaction.
        let sent = [("a", 1), ("b", 2), ("a", 2), ("b", 2), ("b", 2), ("c", 3)];
        ledger.begin().unwrap();
        for (seq, (topic, lsn)) in sent.into_iter().enumerate() {
            in_flight.offer(topic);
            let id = EventPosition {
                lsn,
                row: seq as u64,
            };
            let dead_letter = false;
            let committed = PgTimestamp::new(lsn as i64 * 100);
            in_flight.push(seq as u64, SentEvent { id, dead_letter }, committed);
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
            let oldest = in_flight.oldest_by_topic(ledger, from, 6);
            let oldest = oldest
                .iter()
                .map(|(topic, at)| format!("{topic} {}", at.get()));
            oldest.collect::<Vec<_>>()
        };
        for (seqs, expected) in [
            (&[][..], &["a 100", "b 200", "c 300"][..]),
            (&[1, 3], &["a 100", "b 200", "c 300"]),
            (&[4], &["a 100", "c 300"]),
            (&[0], &["a 200", "c 300"]),
            (&[5], &["a 200"]),
            (&[2], &[]),
        ] {
            let found = acknowledged(seqs, &mut ledger, &mut in_flight);
            assert_eq!(found, expected, "{seqs:?}");
        }
    }
}
