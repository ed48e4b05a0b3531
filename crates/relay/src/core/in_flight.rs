use std::collections::{BTreeMap, VecDeque};

use walrelay_sink::EventPosition;

use crate::interface::event::SentEvent;

/// Which event a record in flight stands for.
///
/// One entry per run of records whose events follow each other in one transaction, so about one per
/// transaction in flight.
#[derive(Debug, Default)]
pub(super) struct InFlightEvents {
    /// Ascending in the number.
    runs: VecDeque<(u64, SentEvent)>,
}

impl InFlightEvents {
    /// Record `seq` stands for this event. Numbers ascend.
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

    /// Records below this number are acknowledged.
    pub(super) fn forget_below(&mut self, tail: u64) {
        while self.runs.get(1).is_some_and(|(first, _)| *first <= tail) {
            self.runs.pop_front();
        }
    }

    /// How many events of each transaction, by the start of its commit record, the records from number
    /// `from` up to below `next` stand for. An event that was sent twice counts once.
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

    /// The event of a record.
    pub(super) fn of(&self, seq: u64) -> Option<SentEvent> {
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
    fn a_number_leads_back_to_its_event() {
        let event = |lsn, row, dead_letter| SentEvent {
            id: EventPosition { lsn, row },
            dead_letter,
        };
        let of = |lsn, row| event(lsn, row, false);
        let mut places = InFlightEvents::default();
        // Row 1 of the first transaction was skipped and row 4 is a dead letter; the second is sent
        // twice, for its first connection was lost.
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
            places.push(seq as u64, *event);
        }
        assert_eq!(places.runs.len(), 6);
        for (seq, event) in sent.iter().enumerate() {
            assert_eq!(places.of(seq as u64), Some(*event), "{seq}");
        }
        // Row 0 of the second transaction was sent twice.
        assert_eq!(places.events(0, 8), BTreeMap::from([(8, 5), (9, 2)]));
        assert_eq!(places.events(2, 8), BTreeMap::from([(8, 3), (9, 2)]));
        assert_eq!(places.events(8, 8), BTreeMap::new());
        places.forget_below(6);
        assert_eq!(places.events(6, 8), BTreeMap::from([(9, 2)]));
        assert_eq!(places.runs.len(), 1);
        assert_eq!(places.of(5), None);
        assert_eq!(places.of(7), Some(of(9, 1)));
    }
}
