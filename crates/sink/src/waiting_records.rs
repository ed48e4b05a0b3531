//! [`Waiting`]: records that wait for a destination which is refused as a whole.

use std::collections::BTreeSet;
use std::time::Instant;

use crate::{HeldRecord, Retrying, id_text};

/// The records that wait for a destination which is refused as a whole, such as a topic or a stream.
#[derive(Debug, Clone)]
pub struct Waiting {
    /// The number of their keys. A record without a key counts as one.
    keys: u64,
    event_id: Option<String>,
    topic: String,
    why: String,
    since: Instant,
    next: Option<Instant>,
}

impl Waiting {
    /// Makes what waits since `since`, the first record first; `None` if nothing does. `why`: the answer of the
    /// server. `next`: when the first record is sent again.
    pub fn new<'a>(
        records: impl IntoIterator<Item = &'a HeldRecord>,
        why: &str,
        since: Instant,
        next: Option<Instant>,
    ) -> Option<Self> {
        let mut records = records.into_iter().peekable();
        let (event_id, topic) = records.peek()?.with(|record| {
            let event_id = record.event_id.map(id_text);
            (event_id, record.topic.to_owned())
        });
        let (mut keys, mut without) = (BTreeSet::<Box<[u8]>>::new(), 0);
        for record in records {
            let is_new = record.with(|record| record.key.map(|key| keys.insert(Box::from(key))));
            without += u64::from(is_new.is_none());
        }
        Some(Self {
            keys: keys.len() as u64 + without,
            event_id,
            topic,
            why: why.to_owned(),
            since,
            next,
        })
    }

    /// Sums up what waits for several destinations; `None` if nothing does. `limit`: the most keys of a destination
    /// that may wait.
    pub fn total(all: impl IntoIterator<Item = Self>, limit: u32) -> Option<Retrying> {
        let all: Vec<Self> = all.into_iter().collect();
        let keys = all.iter().map(|waiting| waiting.keys).sum();
        let most = all.iter().map(|waiting| waiting.keys).max()?;
        let oldest = all.into_iter().min_by_key(|waiting| waiting.since)?;
        Some(Retrying {
            keys,
            most,
            limit: limit.into(),
            since: oldest.since,
            event_id: oldest.event_id,
            topic: oldest.topic,
            why: oldest.why,
            next: oldest.next,
        })
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::Record;

    #[test]
    fn the_oldest_is_named_and_the_keys_of_all_are_counted() {
        let now = Instant::now();
        let record = |topic, key: Option<u8>| {
            let key = key.map(|key| [key]);
            HeldRecord::new(&Record {
                topic,
                key: key.as_ref().map(|key| &key[..]),
                event_id: Some(b"id"),
                ..Record::default()
            })
        };
        let few = [record("a", Some(1)), record("a", Some(1))];
        let many = [
            record("b", Some(1)),
            record("b", Some(2)),
            record("b", None),
            record("b", None),
        ];
        let later = now + Duration::from_secs(1);
        assert!(Waiting::new([], "why", now, None).is_none());
        let waiting = [
            Waiting::new(&many, "new", later, None),
            Waiting::new(&few, "old", now, Some(later)),
        ];
        let total = Waiting::total(waiting.into_iter().flatten(), 7).expect("they wait");
        assert_eq!((total.keys, total.most, total.limit), (5, 4, 7));
        assert_eq!((&*total.topic, &*total.why), ("a", "old"));
        assert_eq!((total.since, total.next), (now, Some(later)));
        assert_eq!(total.event_id.as_deref(), Some("id"));
        assert_eq!(Waiting::total([], 7), None);
    }
}
