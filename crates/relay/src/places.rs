use std::collections::VecDeque;

use walrelay_sink::LetterId;

/// Which event a record in flight stands for: the way from a delivery report back to the log.
///
/// One entry per run of records whose events follow each other in one transaction, so about one per
/// transaction in flight.
#[derive(Debug, Default)]
pub(crate) struct Places {
    /// Ascending in the number.
    runs: VecDeque<(u64, LetterId)>,
}

impl Places {
    /// Record `seq` stands for this event. Numbers ascend.
    pub(crate) fn push(&mut self, seq: u64, id: LetterId) {
        let follows = self.runs.back().is_some_and(|(first, start)| {
            start.lsn == id.lsn && start.row.checked_add(seq - first) == Some(id.row)
        });
        if !follows {
            self.runs.push_back((seq, id));
        }
    }

    /// Records below this number are acknowledged.
    pub(crate) fn forget_below(&mut self, tail: u64) {
        while self.runs.get(1).is_some_and(|(first, _)| *first <= tail) {
            self.runs.pop_front();
        }
    }

    /// The event of a record.
    pub(crate) fn of(&self, seq: u64) -> Option<LetterId> {
        let after = self.runs.partition_point(|(first, _)| *first <= seq);
        let (first, start) = self.runs.get(after.checked_sub(1)?)?;
        Some(LetterId {
            lsn: start.lsn,
            row: start.row + (seq - first),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_leads_back_to_its_event() {
        let id = |lsn, row| LetterId { lsn, row };
        let mut places = Places::default();
        // Row 1 of the first transaction was skipped; the second is sent twice, for its first
        // connection was lost.
        let sent = [id(8, 0), id(8, 2), id(8, 3), id(9, 0), id(9, 0), id(9, 1)];
        for (seq, id) in sent.iter().enumerate() {
            places.push(seq as u64, *id);
        }
        assert_eq!(places.runs.len(), 4);
        for (seq, id) in sent.iter().enumerate() {
            assert_eq!(places.of(seq as u64), Some(*id), "{seq}");
        }
        places.forget_below(4);
        assert_eq!(places.runs.len(), 1);
        assert_eq!(places.of(3), None);
        assert_eq!(places.of(5), Some(id(9, 1)));
    }
}
