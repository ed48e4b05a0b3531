use std::collections::BTreeMap;

use walrelay_lsn::CommitEnd;

/// Events of dropped sinks that were enqueued, or refused, and are not confirmed.
/// As long as there are any, a relay that stops is not drained, whatever it did since.
///
/// One entry for each transaction that was in flight.
#[derive(Debug, Default)]
pub(crate) struct Owed {
    /// The start of each transaction's commit record, and how many events.
    events: BTreeMap<u64, u64>,
}

impl Owed {
    /// Takes in what was in flight. What is sent again is counted once.
    pub(crate) fn add(&mut self, events: impl IntoIterator<Item = (u64, u64)>) {
        for (lsn, count) in events {
            let known = self.events.entry(lsn).or_default();
            *known = count.max(*known);
        }
    }

    /// Everything before this is confirmed.
    pub(crate) fn forget_before(&mut self, confirmed: CommitEnd) {
        self.events = self.events.split_off(&confirmed.lsn().get());
    }

    /// The log is another one from here on, and is read again.
    pub(crate) fn forget(&mut self) {
        self.events.clear();
    }

    /// How many events.
    pub(crate) fn count(&self) -> u64 {
        self.events.values().sum()
    }
}

#[cfg(test)]
mod tests {
    use walrelay_lsn::Lsn;

    use super::*;

    #[test]
    fn events_are_counted_once_and_until_they_are_confirmed() {
        let mut owed = Owed::default();
        owed.add([(8, 3), (10, 2)]);
        // Sent again, one by one.
        owed.add([(8, 1)]);
        assert_eq!(owed.count(), 5);
        // The commit record of a transaction starts before the position that confirms it.
        owed.forget_before(CommitEnd::from_slot(Lsn::new(8)));
        assert_eq!(owed.count(), 5);
        owed.forget_before(CommitEnd::from_slot(Lsn::new(9)));
        assert_eq!(owed.count(), 2);
        owed.forget();
        assert_eq!(owed.count(), 0);
    }
}
