//! What the streams of a destination had when they acknowledged last. It outlives the process, so that a loss
//! shows that happens while no relay runs.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use serde::{Deserialize, Serialize};
use tracing::warn;

use crate::EventPosition;
use crate::sync::lock;

/// The most streams that are remembered. Others are not compared at the next start.
const MAX_STREAMS: usize = 1_000;
/// The number of streams that are forgotten together: the choice looks at all of them.
const FORGOTTEN_AT_ONCE: usize = 100;

/// The end of a stream when it acknowledged a record last.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StreamEnd {
    /// The number of the newest message, or of all entries that were ever added; `None`: not known.
    pub number: Option<u64>,
    /// The highest id of a delivered entry, if the relay chooses the ids.
    pub id: Option<(u64, u64)>,
    /// The number of entries, as far as it is known.
    pub length: u64,
    /// The first event.
    pub first: EventPosition,
    /// The last acknowledged event.
    pub last: EventPosition,
    /// All of them were dead letters.
    pub is_of_dead_letters: bool,
}

/// The end of one stream, which a sink changes with each acknowledgement.
pub type SharedEnd = Arc<Mutex<StreamEnd>>;

/// The ends of all streams by name.
#[derive(Debug, Default)]
pub struct StreamEnds(Mutex<Remembered>);

#[derive(Debug, Default)]
struct Remembered {
    ends: BTreeMap<Box<str>, SharedEnd>,
    /// The warning about forgotten streams is logged.
    is_warned: bool,
}

impl Remembered {
    /// Forgets the streams whose last acknowledged event is the oldest, if there is no room for one more. A sink that
    /// goes on to write to one changes an end that is remembered no more.
    fn make_room(&mut self) {
        if self.ends.len() < MAX_STREAMS {
            return;
        }
        if !self.is_warned {
            self.is_warned = true;
            warn!(
                remembered = MAX_STREAMS,
                "the destination has more streams than are remembered, and those with the oldest events are forgotten: \
                 their losses between two runs are not found"
            );
        }
        // A stream without an acknowledgement is about to get one.
        let age = |end: &SharedEnd| {
            let end = lock(end);
            (*end == StreamEnd::default(), end.last)
        };
        let ends = self.ends.iter();
        let mut names: Vec<_> = ends.map(|(name, end)| (age(end), name.clone())).collect();
        names.sort_unstable();
        for (_, name) in names.iter().take(FORGOTTEN_AT_ONCE) {
            self.ends.remove(name);
        }
    }
}

impl StreamEnds {
    /// Adds the notes of a former process, for streams of which this process knows nothing yet.
    pub fn load(&self, former: BTreeMap<String, StreamEnd>) {
        let mut remembered = lock(&self.0);
        let room = MAX_STREAMS.saturating_sub(remembered.ends.len());
        for (stream, end) in former.into_iter().take(room) {
            let end = || Arc::new(Mutex::new(end));
            remembered.ends.entry(stream.into()).or_insert_with(end);
        }
    }

    /// Returns the end of a stream, which is created by the first change.
    pub fn stream(&self, stream: &str) -> SharedEnd {
        let mut remembered = lock(&self.0);
        if let Some(end) = remembered.ends.get(stream) {
            return Arc::clone(end);
        }
        remembered.make_room();
        let end = SharedEnd::default();
        remembered.ends.insert(stream.into(), Arc::clone(&end));
        end
    }

    /// Forgets a stream: it has lost all, or is not compared any more.
    pub fn forget(&self, stream: &str) {
        lock(&self.0).ends.remove(stream);
    }

    /// Returns the ends of all streams that have acknowledged something.
    pub fn all(&self) -> BTreeMap<String, StreamEnd> {
        let ends = lock(&self.0).ends.clone();
        let ends = ends.iter();
        let ends = ends.map(|(stream, end)| (stream.to_string(), lock(end).clone()));
        ends.filter(|(_, end)| *end != StreamEnd::default())
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_former_process_knew_is_replaced_by_what_this_one_sees() {
        let ends = StreamEnds::default();
        let end = |number| StreamEnd {
            number: Some(number),
            ..StreamEnd::default()
        };
        let stream = ends.stream("own");
        assert_eq!(ends.all(), BTreeMap::new(), "nothing is acknowledged");
        *lock(&stream) = end(7);
        let former = ["own", "former"].map(|name| (name.to_owned(), end(3)));
        ends.load(former.into());
        assert_eq!(ends.all()["own"], end(7));
        assert_eq!(ends.all()["former"], end(3));
        ends.forget("former");
        assert_eq!(ends.all().len(), 1);
    }

    #[test]
    fn streams_with_the_oldest_events_are_forgotten_first() {
        let ends = StreamEnds::default();
        let acknowledge = |name: &str, lsn| {
            let last = EventPosition::in_first_epoch(lsn, 0);
            lock(&ends.stream(name)).last = last;
        };
        acknowledge("of yesterday", 1);
        acknowledge("of today", 2);
        for (name, lsn) in (0..3 * MAX_STREAMS).zip(3..) {
            acknowledge(&name.to_string(), lsn);
            // An old stream that is written to is not old.
            if name % 50 == 0 {
                acknowledge("of today", lsn);
            }
        }
        let all = ends.all();
        assert!(all.len() <= MAX_STREAMS && all.len() >= MAX_STREAMS - FORGOTTEN_AT_ONCE);
        assert!(all.contains_key("of today"), "it has a late event");
        assert!(!all.contains_key("of yesterday"));
        assert!(all.contains_key(&(3 * MAX_STREAMS - 1).to_string()));
        assert!(!all.contains_key("7"));

        // What a former process had adds to it up to the same bound.
        let former =
            (0..2 * MAX_STREAMS).map(|name| (format!("former {name}"), StreamEnd::default()));
        ends.load(former.collect());
        assert_eq!(lock(&ends.0).ends.len(), MAX_STREAMS);
        for name in 0..2 * MAX_STREAMS {
            ends.stream(&format!("next {name}"));
        }
        assert!(lock(&ends.0).ends.len() <= MAX_STREAMS);
    }
}
