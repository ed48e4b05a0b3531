//! What was sent, by topic, and how much of it was acknowledged.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::time::Instant;

use walrelay_sink::Record;

use crate::sinks::Count;
use crate::sync::lock;

/// The figures of a replay. Records that were sent again to a new sink count again.
#[derive(Debug, Default)]
pub(in crate::commands) struct Tally {
    acknowledged: AtomicU64,
    last: Mutex<Option<Instant>>,
    topics: Mutex<Topics>,
}

#[derive(Debug, Default)]
struct Topics {
    sent: Vec<(String, u64)>,
    /// The place of the last record's topic: most records have the same.
    last: usize,
}

impl Tally {
    pub(super) fn acknowledged(&self) -> u64 {
        self.acknowledged.load(Ordering::Relaxed)
    }

    /// When the last acknowledgement arrived.
    pub(super) fn last_acknowledged(&self) -> Option<Instant> {
        *lock(&self.last)
    }

    /// Records by topic, by name.
    pub(in crate::commands) fn topics(&self) -> Vec<(String, u64)> {
        let mut topics = self.by_topic().sent.clone();
        topics.sort();
        topics
    }

    fn by_topic(&self) -> MutexGuard<'_, Topics> {
        lock(&self.topics)
    }
}

impl Count for Tally {
    fn sent(&self, record: &Record<'_>) {
        let topic = record.topic;
        let mut topics = self.by_topic();
        let last = topics.last;
        if topics.sent.get(last).is_none_or(|(name, _)| name != topic) {
            let found = topics.sent.iter().position(|(name, _)| name == topic);
            topics.last = found.unwrap_or_else(|| {
                topics.sent.push((topic.to_owned(), 0));
                topics.sent.len() - 1
            });
        }
        let place = topics.last;
        if let Some((_, count)) = topics.sent.get_mut(place) {
            *count += 1;
        }
    }

    fn delivered(&self) {
        self.acknowledged.fetch_add(1, Ordering::Relaxed);
        *lock(&self.last) = Some(Instant::now());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_counted_by_topic() {
        let tally = Tally::default();
        for topic in ["b", "a", "b", "b"] {
            tally.sent(&Record {
                topic,
                partition: None,
                timestamp_ms: None,
                key: None,
                value: None,
                headers: &[],
            });
        }
        assert_eq!(tally.topics(), [("a".to_owned(), 1), ("b".to_owned(), 3)]);
        assert_eq!(tally.last_acknowledged(), None);
        tally.delivered();
        assert!(tally.acknowledged() == 1 && tally.last_acknowledged().is_some());
    }
}
