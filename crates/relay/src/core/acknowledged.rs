use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use walrelay_sink::EventPosition;

/// Events that are remembered at most: the records that may follow an unacknowledged one by default. Further
/// ones are sent again.
const MAX_EVENTS: usize = 1 << 19;

/// The events that earlier sinks acknowledged behind the first one that is open. The core of the next
/// sink passes over them when it reads the slot again.
///
/// # Order
/// An acknowledged event is sent again if an earlier one of its topic and key is: otherwise the key
/// would end on the earlier one.
#[derive(Debug, Clone, Default)]
pub struct AcknowledgedEvents {
    /// The events; true for one that was skipped, or whose dead letter was acknowledged.
    events: BTreeMap<EventPosition, bool>,
    /// The hashes of topic and key of the events that were sent again. Ordered: the search through all
    /// states of a core tells two states apart by their `Debug`.
    sent_again: BTreeSet<u64>,
}

impl AcknowledgedEvents {
    /// Iterates over the events.
    pub fn events(&self) -> impl Iterator<Item = EventPosition> {
        self.events.keys().copied()
    }

    /// Returns true if there is no event.
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.events.is_empty()
    }

    pub(super) fn insert(&mut self, event: EventPosition, is_diverted: bool) {
        self.events.insert(event, is_diverted);
        if self.events.len() > MAX_EVENTS {
            self.events.pop_last();
        }
    }

    /// Returns true if this event was skipped, or its dead letter was acknowledged.
    #[inline]
    pub(super) fn is_diverted(&self, event: EventPosition) -> bool {
        !self.is_empty() && self.events.get(&event) == Some(&true)
    }

    /// Returns true if the record of this event was acknowledged, and need not be sent again.
    /// Otherwise it is sent, and so are the later ones of its key.
    pub(super) fn passes_over(
        &mut self,
        event: EventPosition,
        topic: &str,
        key: Option<&[u8]>,
    ) -> bool {
        let place = key.map(|key| {
            let mut hasher = DefaultHasher::new();
            (topic, key).hash(&mut hasher);
            hasher.finish()
        });
        let follows = place.is_some_and(|place| self.sent_again.contains(&place));
        if !follows && self.events.contains_key(&event) {
            return true;
        }
        self.events.remove(&event);
        self.sent_again.extend(place);
        false
    }

    /// Keeps what the core of the next sink, which begins at `first`, has to know.
    pub(super) fn starting_at(mut self, first: EventPosition) -> Self {
        Self {
            events: self.events.split_off(&first),
            // One of these may be acknowledged now, and a later one of its key not be sent again yet.
            sent_again: self.sent_again,
        }
    }

    /// Forgets the events before `first`, which are not read again.
    pub(super) fn forget_before(&mut self, first: EventPosition) {
        while let Some(event) = self
            .events
            .first_entry()
            .filter(|entry| *entry.key() < first)
        {
            event.remove();
        }
        if self.events.is_empty() {
            self.sent_again.clear();
        }
    }
}

/// Collects events, each with true if it was skipped, or its dead letter was acknowledged.
impl FromIterator<(EventPosition, bool)> for AcknowledgedEvents {
    fn from_iter<I: IntoIterator<Item = (EventPosition, bool)>>(events: I) -> Self {
        Self {
            events: events.into_iter().collect(),
            sent_again: BTreeSet::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn event(row: u64) -> EventPosition {
        EventPosition::in_first_epoch(8, row)
    }

    #[test]
    fn an_event_is_passed_over_unless_an_earlier_one_of_its_key_is_sent_again() {
        let mut events = AcknowledgedEvents::default();
        for row in [1, 2, 4, 5, 6] {
            events.insert(event(row), row == 6);
        }
        let mut passes =
            |row, key: Option<&str>| events.passes_over(event(row), "t", key.map(str::as_bytes));
        assert!(!passes(0, Some("a")) && !passes(1, Some("a")));
        assert!(passes(2, Some("b")));
        assert!(!passes(3, None));
        assert!(passes(4, None), "there is no order without a key");
        assert!(passes(5, Some("b")));
        assert!(events.is_diverted(event(6)) && !events.is_diverted(event(5)));
        assert!(!events.is_diverted(event(0)));
        // Sent again, it is acknowledged no more.
        events.forget_before(event(5));
        let mut next = events.starting_at(event(1));
        assert!(!next.passes_over(event(1), "t", Some(b"c")));
        assert!(next.passes_over(event(5), "t", Some(b"b")));
        assert!(
            !next.passes_over(event(5), "t", Some(b"a")),
            "its key was sent again"
        );
        next.forget_before(event(7));
        assert!(next.is_empty() && next.sent_again.is_empty());
    }
}
