//! Decides where the rolling bookmark is to be moved. Pure, so that each case has a test.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use walrelay_lsn::Lsn;

/// Number of samples of the relay's position within the time to keep, at most.
const SAMPLES: u32 = 128;

/// How much is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Keep {
    /// How far back events can be replayed.
    pub(crate) time: Duration,
    /// Bytes of WAL that the server keeps only for the bookmark, at most.
    pub(crate) max_wal: u64,
}

/// Where the bookmark is to be moved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Target {
    pub(super) to: Lsn,
    /// `max_wal` is the reason: the time to keep is not over.
    pub(super) by_size: bool,
}

/// Positions of the relay's slot and the bookmark.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Slots {
    /// `confirmed_flush_lsn` and `restart_lsn` of the relay's slot.
    pub(super) relay: (Lsn, Lsn),
    /// `confirmed_flush_lsn` and `restart_lsn` of the bookmark.
    pub(super) bookmark: (Lsn, Lsn),
}

impl Slots {
    /// Bytes of WAL that the server keeps only for the bookmark.
    pub(super) fn retained(&self) -> u64 {
        self.relay.1.bytes_since(self.bookmark.1)
    }
}

/// Samples of the relay's position over time.
#[derive(Debug)]
pub(super) struct Positions {
    keep: Keep,
    /// Oldest first. All but the first are younger than the time to keep.
    samples: VecDeque<(Instant, Lsn)>,
}

impl Positions {
    /// No samples. So the bookmark is not moved by time until the time to keep has passed since the
    /// start.
    pub(super) fn new(keep: Keep) -> Self {
        Self {
            keep,
            samples: VecDeque::new(),
        }
    }

    /// Adds a sample: the relay is at this position now.
    pub(super) fn record(&mut self, now: Instant, position: Lsn) {
        let spaced = |at: Instant| now.duration_since(at) >= self.keep.time / SAMPLES;
        if self.samples.back().is_none_or(|(at, _)| spaced(*at)) {
            self.samples.push_back((now, position));
        }
        while let Some((at, _)) = self.samples.get(1)
            && now.duration_since(*at) >= self.keep.time
        {
            self.samples.pop_front();
        }
    }

    /// Where the bookmark is to be moved; `None`: it is not moved.
    pub(super) fn target(&self, now: Instant, slots: Slots) -> Option<Target> {
        let by_time = self.samples.front();
        let by_time = by_time.filter(|(at, _)| now.duration_since(*at) >= self.keep.time);
        // Move at 7/8 of the limit, so that it is not exceeded before the next round, and down to
        // 3/4, so that the bookmark is not moved in every round.
        let max = self.keep.max_wal;
        let by_size = (slots.retained() > max - max / 8)
            .then(|| Lsn::new(slots.relay.1.get().saturating_sub(max / 4 * 3)));
        let by_time = by_time.map(|(_, position)| *position);
        let target = Target {
            to: by_time.max(by_size)?.min(slots.relay.0),
            by_size: by_size > by_time,
        };
        (target.to > slots.bookmark.0).then_some(target)
    }

    /// How far back events can be replayed from this position, at least.
    pub(super) fn reachable(&self, now: Instant, position: Lsn) -> Duration {
        let before = self.samples.iter().rfind(|(_, at)| *at <= position);
        let known = before.or_else(|| self.samples.front());
        known.map_or(Duration::ZERO, |(at, _)| now.duration_since(*at))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEEP: Keep = Keep {
        time: Duration::from_secs(100),
        max_wal: 800,
    };

    fn slots(relay: u64, bookmark: u64) -> Slots {
        Slots {
            relay: (Lsn::new(relay), Lsn::new(relay)),
            bookmark: (Lsn::new(bookmark), Lsn::new(bookmark)),
        }
    }

    fn to(positions: &Positions, now: Instant, slots: Slots) -> Option<(u64, bool)> {
        let target = positions.target(now, slots)?;
        Some((target.to.get(), target.by_size))
    }

    #[test]
    fn the_bookmark_follows_so_that_the_time_can_be_replayed() {
        let begin = Instant::now();
        let mut positions = Positions::new(KEEP);
        let at = |second: u64| begin + Duration::from_secs(second);
        for second in 0..100 {
            positions.record(at(second), Lsn::new(1000 + second));
            let target = to(&positions, at(second), slots(1000 + second, 1000));
            assert_eq!(target, None, "nothing is known of so long ago");
        }
        let mut bookmark = 1000;
        for second in 100..400 {
            positions.record(at(second), Lsn::new(1000 + second));
            if let Some((target, by_size)) =
                to(&positions, at(second), slots(1000 + second, bookmark))
            {
                assert!(!by_size, "the time is over");
                bookmark = target;
            }
            let age = 1000 + second - bookmark;
            assert!((100..=101).contains(&age), "{age} at {second}");
            let reachable = positions.reachable(at(second), Lsn::new(bookmark));
            assert_eq!(reachable, Duration::from_secs(age));
        }
        assert!(positions.samples.len() <= SAMPLES as usize + 2);
    }

    #[test]
    fn the_size_wins_also_after_a_start() {
        let now = Instant::now();
        let mut positions = Positions::new(KEEP);
        positions.record(now, Lsn::new(2000));
        assert_eq!(
            to(&positions, now, slots(2000, 1300)),
            None,
            "at the limit of the room"
        );
        assert_eq!(to(&positions, now, slots(2000, 1299)), Some((1400, true)));
        // The server keeps most of this WAL for the relay's slot as well.
        let behind = Slots {
            relay: (Lsn::new(2000), Lsn::new(1000)),
            bookmark: (Lsn::new(1200), Lsn::new(900)),
        };
        assert_eq!(behind.retained(), 100);
        assert_eq!(to(&positions, now, behind), None);
    }

    #[test]
    fn the_bookmark_is_never_beyond_the_relay() {
        let begin = Instant::now();
        let mut positions = Positions::new(KEEP);
        positions.record(begin, Lsn::new(2000));
        let later = begin + KEEP.time;
        // The relay's slot was created again, further back.
        assert_eq!(
            to(&positions, later, slots(1500, 1000)),
            Some((1500, false))
        );
        assert_eq!(to(&positions, later, slots(1500, 1500)), None);
    }

    #[test]
    fn the_reachable_time_is_a_lower_bound() {
        let begin = Instant::now();
        let mut positions = Positions::new(KEEP);
        assert_eq!(positions.reachable(begin, Lsn::new(1)), Duration::ZERO);
        positions.record(begin, Lsn::new(1000));
        let later = begin + Duration::from_secs(50);
        positions.record(later, Lsn::new(1500));
        assert_eq!(
            positions.reachable(later, Lsn::new(10)),
            Duration::from_secs(50)
        );
        assert_eq!(
            positions.reachable(later, Lsn::new(1400)),
            Duration::from_secs(50)
        );
        assert_eq!(positions.reachable(later, Lsn::new(1500)), Duration::ZERO);
    }
}
