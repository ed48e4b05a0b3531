//! What the streams of a destination had when they acknowledged last. It outlives the process, so that a loss
//! shows that happens while no relay runs.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use serde::{Deserialize, Serialize};

use crate::EventPosition;
use crate::sync::lock;

/// The most streams that are remembered. Those beyond are not compared at the next start.
const MAX_STREAMS: usize = 1_000;

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
pub struct StreamEnds(Mutex<BTreeMap<Box<str>, SharedEnd>>);

impl StreamEnds {
    /// Adds what a former process has kept, for streams of which this process knows nothing yet.
    pub fn load(&self, former: BTreeMap<String, StreamEnd>) {
        let mut ends = lock(&self.0);
        for (stream, end) in former.into_iter().take(MAX_STREAMS) {
            let end = || Arc::new(Mutex::new(end));
            ends.entry(stream.into()).or_insert_with(end);
        }
    }

    /// Returns the end of a stream, which is created by the first change; `None` if there are too many.
    pub fn stream(&self, stream: &str) -> Option<SharedEnd> {
        let mut ends = lock(&self.0);
        if let Some(end) = ends.get(stream) {
            return Some(Arc::clone(end));
        }
        if ends.len() == MAX_STREAMS {
            return None;
        }
        let end = SharedEnd::default();
        ends.insert(stream.into(), Arc::clone(&end));
        Some(end)
    }

    /// Forgets a stream: it has lost all, or is not compared any more.
    pub fn forget(&self, stream: &str) {
        lock(&self.0).remove(stream);
    }

    /// Returns the ends of all streams that have acknowledged something.
    pub fn all(&self) -> BTreeMap<String, StreamEnd> {
        let ends = lock(&self.0).clone();
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
        let own = ends.stream("own").expect("an end");
        assert_eq!(ends.all(), BTreeMap::new(), "nothing is acknowledged");
        *lock(&own) = end(7);
        let former = ["own", "former"].map(|name| (name.to_owned(), end(3)));
        ends.load(former.into());
        assert_eq!(ends.all()["own"], end(7));
        assert_eq!(ends.all()["former"], end(3));
        ends.forget("former");
        assert_eq!(ends.all().len(), 1);
        for number in 0..2 * MAX_STREAMS {
            let _ = ends.stream(&number.to_string());
        }
        assert_eq!(ends.stream("one more").map(|_| ()), None);
        assert!(ends.stream("own").is_some());
    }
}
