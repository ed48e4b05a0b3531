use std::collections::{BTreeMap, VecDeque};

use walrelay_sink::EventPosition;

use crate::event::SentEvent;

/// The table of records in flight and the events that they stand for.
///
/// One entry per run of records whose events follow each other in one transaction, so about one per
/// transaction in flight.
#[derive(Debug, Default)]
pub(super) struct InFlightEvents {
    /// The first sequence number of each run and its event; sequence numbers ascend.
    runs: VecDeque<(u64, SentEvent)>,
}

impl InFlightEvents {
    /// Notes that record `seq` stands for this event. `seq` must be higher than in earlier calls.
    pub(super) fn push(&mut self, seq: u64, event: SentEvent) {
        let id = event.id;
        let follows = self.runs.back().is_some_and(|(first, start)| {
            start.dead_letter == event.dead_letter
                && start.id.lsn == id.lsn
                && start.id.row.checked_add(seq - first) == Some(id.row)
        });
        if !follows {
            self.runs.push_back((seq, event));
        }
    }

    /// Forgets runs whose records are all below `tail`, because these records are acknowledged.
    pub(super) fn forget_below(&mut self, tail: u64) {
        while self.runs.get(1).is_some_and(|(first, _)| *first <= tail) {
            self.runs.pop_front();
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
            in_flight.push(seq as u64, *event);
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
}
