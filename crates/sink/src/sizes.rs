//! The sizes of the events that a sink has accepted, and the events that are almost too large for it.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use tracing::warn;

use crate::sync::lock;
use crate::{Record, RecordKind};

/// The upper bounds of the buckets in bytes, each four times the one before. Larger values are counted above them.
pub const SIZE_BOUNDS: [u64; 9] = {
    let mut bounds = [256; 9];
    let mut at = 1;
    while at < bounds.len() {
        bounds[at] = bounds[at - 1] * 4;
        at += 1;
    }
    bounds
};
/// An event of more than this part of the limit, in percent, is near it.
pub const NEAR_LIMIT_PERCENT: u64 = 80;
/// The time for which an event near the limit is remembered, and in which one line of the log is written.
const REMEMBERED: Duration = Duration::from_secs(900);

/// The sizes of the events that a sink has accepted, repeats included.
///
/// An event costs two additions, whatever its size. An event near the limit costs a lock more.
#[derive(Debug, Default)]
pub struct EventSizes {
    /// The number of values by size: one for each of [`SIZE_BOUNDS`], and one for larger values.
    counts: [AtomicU64; SIZE_BOUNDS.len() + 1],
    /// The bytes of all values.
    sum: AtomicU64,
    /// The number of events near the limit.
    near_limit: AtomicU64,
    largest: Mutex<Option<(NearLimit, Instant)>>,
    /// The limit that the server names; 0: it names none.
    server_limit: AtomicU64,
}

/// An event that is near the limit of its destination.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NearLimit {
    /// The topic of the event.
    pub topic: String,
    /// The bytes of the event that count for the limit.
    pub size: u64,
    /// The limit in bytes.
    pub limit: u64,
}

impl EventSizes {
    /// Counts an event that was accepted. Other records are not counted.
    pub fn accepted(&self, record: &Record<'_>) {
        if record.kind != RecordKind::Event {
            return;
        }
        let bytes = record.value.map_or(0, <[u8]>::len);
        self.counts[bucket(bytes)].fetch_add(1, Relaxed);
        self.sum.fetch_add(bytes as u64, Relaxed);
    }

    /// Notes an accepted event of this size if it is near the limit: the smaller one of `limit`, of the configuration,
    /// and of the server's.
    pub fn compare(&self, record: &Record<'_>, size: u64, limit: u64) {
        let limit = match self.server_limit.load(Relaxed) {
            0 => limit,
            of_server => limit.min(of_server),
        };
        let is_near = u128::from(size) * 100 > u128::from(limit) * u128::from(NEAR_LIMIT_PERCENT);
        // A larger one is refused after it was accepted, and told so.
        if is_near && size <= limit && record.kind == RecordKind::Event {
            self.note_near(record.topic, size, limit);
        }
    }

    #[cold]
    fn note_near(&self, topic: &str, size: u64, limit: u64) {
        self.near_limit.fetch_add(1, Relaxed);
        let mut largest = lock(&self.largest);
        let known = largest.as_ref().filter(|(_, at)| at.elapsed() < REMEMBERED);
        if known.is_some_and(|(known, _)| known.size >= size) {
            return;
        }
        // A larger event keeps the time of the first one: the log has one line for each period.
        let at = known.map(|(_, at)| *at);
        if at.is_none() {
            warn!(
                topic,
                bytes = size,
                limit,
                "an event is almost as large as the destination accepts; further ones are counted in metrics only"
            );
        }
        let near = NearLimit {
            topic: topic.to_owned(),
            size,
            limit,
        };
        *largest = Some((near, at.unwrap_or_else(Instant::now)));
    }

    /// Sets the limit that the server names.
    pub fn set_server_limit(&self, bytes: u64) {
        self.server_limit.store(bytes, Relaxed);
    }

    /// Returns the number of values of each bucket, and the sum of their bytes.
    pub fn counts(&self) -> ([u64; SIZE_BOUNDS.len() + 1], u64) {
        let counts = std::array::from_fn(|at| self.counts[at].load(Relaxed));
        (counts, self.sum.load(Relaxed))
    }

    /// Returns the number of events near the limit.
    pub fn near_limit(&self) -> u64 {
        self.near_limit.load(Relaxed)
    }

    /// Returns the largest of the events near the limit in the last quarter of an hour; `None` without one.
    pub fn largest_near_limit(&self) -> Option<NearLimit> {
        let largest = lock(&self.largest);
        let recent = largest.as_ref().filter(|(_, at)| at.elapsed() < REMEMBERED);
        recent.map(|(near, _)| near.clone())
    }
}

/// Returns the bucket of a value with so many bytes.
fn bucket(bytes: usize) -> usize {
    let bits = usize::BITS - bytes.saturating_sub(1).leading_zeros();
    let above_first = bits.saturating_sub(8).div_ceil(2) as usize;
    above_first.min(SIZE_BOUNDS.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_size_is_in_the_bucket_of_the_first_bound_that_is_not_smaller() {
        let sizes = [0, 1, 1 << 20, 100 << 20, usize::MAX];
        let edges = SIZE_BOUNDS.iter().flat_map(|bound| {
            let bound = usize::try_from(*bound).expect("a size");
            [bound - 1, bound, bound + 1]
        });
        for size in sizes.into_iter().chain(edges) {
            let first = SIZE_BOUNDS.iter().position(|bound| *bound >= size as u64);
            assert_eq!(bucket(size), first.unwrap_or(SIZE_BOUNDS.len()), "{size}");
        }
        assert_eq!(SIZE_BOUNDS.last(), Some(&(16 << 20)));
    }

    #[test]
    fn the_largest_event_near_the_limit_is_kept_and_each_is_counted() {
        let sizes = EventSizes::default();
        let event = |topic| Record {
            topic,
            value: Some(b"12345"),
            ..Record::default()
        };
        let near = |topic: &str, size, limit| NearLimit {
            topic: topic.to_owned(),
            size,
            limit,
        };
        sizes.accepted(&event("a"));
        sizes.compare(&event("a"), 800, 1000);
        assert_eq!((sizes.near_limit(), sizes.largest_near_limit()), (0, None));
        sizes.compare(&event("a"), 801, 1000);
        sizes.compare(&event("b"), 900, 1000);
        sizes.compare(&event("a"), 850, 1000);
        assert_eq!(sizes.near_limit(), 3);
        assert_eq!(sizes.largest_near_limit(), Some(near("b", 900, 1000)));
        sizes.set_server_limit(500);
        sizes.compare(&event("a"), 401, 1000);
        assert_eq!(sizes.near_limit(), 4);
        // What is no event of the application says nothing about its events.
        let dead = Record {
            kind: RecordKind::DeadLetter,
            ..event("a")
        };
        sizes.accepted(&dead);
        sizes.compare(&dead, 999, 1000);
        assert_eq!(sizes.near_limit(), 4);
        let (counts, sum) = sizes.counts();
        assert_eq!((counts.iter().sum::<u64>(), counts[0], sum), (1, 1, 5));
    }
}
