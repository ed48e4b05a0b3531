//! Where the rolling bookmark is to be: pure, so that each case has a test.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use walrelay_lsn::Lsn;

/// Samples of the relay's position that the time to keep is divided into, at most.
const SAMPLES: u32 = 128;

/// What is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Keep {
    pub(crate) time: Duration,
    /// Bytes of WAL that the server keeps for the bookmark alone, at most.
    pub(crate) max_wal: u64,
}

/// Where the bookmark is to be moved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Target {
    pub(super) to: Lsn,
    /// `max_wal` alone wants so: the time to keep is not over.
    pub(super) by_size: bool,
}

/// The slots as the server shows them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Slots {
    /// Where the relay's slot is confirmed, and from where on the server keeps WAL for it.
    pub(super) relay: (Lsn, Lsn),
    /// The same of the bookmark.
    pub(super) bookmark: (Lsn, Lsn),
}

impl Slots {
    /// WAL that the server keeps for the bookmark alone.
    pub(super) fn retained(&self) -> u64 {
        self.relay.1.bytes_since(self.bookmark.1)
    }
}

/// Where the relay was, and when.
#[derive(Debug)]
pub(super) struct Positions {
    keep: Keep,
    /// The oldest first. The second is younger than the time to keep.
    samples: VecDeque<(Instant, Lsn)>,
}

impl Positions {
    /// None is known: after a start the bookmark stays for as long as it is to keep.
    pub(super) fn new(keep: Keep) -> Self {
        Self {
            keep,
            samples: VecDeque::new(),
        }
    }

    /// The relay is at this position now.
    pub(super) fn see(&mut self, now: Instant, position: Lsn) {
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

    /// Where the bookmark is to be moved; `None`: it stays.
    pub(super) fn target(&self, now: Instant, slots: Slots) -> Option<Target> {
        let by_time = self.samples.front();
        let by_time = by_time.filter(|(at, _)| now.duration_since(*at) >= self.keep.time);
        // Some room, so that the bookmark is not moved with each look, and not beyond the limit between two.
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

    /// For how long back, at least, events can be replayed from this position.
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
            positions.see(at(second), Lsn::new(1000 + second));
            let target = to(&positions, at(second), slots(1000 + second, 1000));
            assert_eq!(target, None, "nothing is known of so long ago");
        }
        let mut bookmark = 1000;
        for second in 100..400 {
            positions.see(at(second), Lsn::new(1000 + second));
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
        positions.see(now, Lsn::new(2000));
        assert_eq!(
            to(&positions, now, slots(2000, 1300)),
            None,
            "at the limit of the room"
        );
        assert_eq!(to(&positions, now, slots(2000, 1299)), Some((1400, true)));
        // The relay's slot needs the same WAL.
        let behind = Slots {
            relay: (Lsn::new(2000), Lsn::new(1000)),
            bookmark: (Lsn::new(1200), Lsn::new(900)),
        };
        assert_eq!(behind.retained(), 100);
        assert_eq!(to(&positions, now, behind), None);
    }

    #[test]
    fn it_is_never_beyond_the_relay() {
        let begin = Instant::now();
        let mut positions = Positions::new(KEEP);
        positions.see(begin, Lsn::new(2000));
        let later = begin + KEEP.time;
        // The slot was made anew, further back.
        assert_eq!(
            to(&positions, later, slots(1500, 1000)),
            Some((1500, false))
        );
        assert_eq!(to(&positions, later, slots(1500, 1500)), None);
    }

    #[test]
    fn what_is_reachable_is_said_too_short_rather_than_too_long() {
        let begin = Instant::now();
        let mut positions = Positions::new(KEEP);
        assert_eq!(positions.reachable(begin, Lsn::new(1)), Duration::ZERO);
        positions.see(begin, Lsn::new(1000));
        let later = begin + Duration::from_secs(50);
        positions.see(later, Lsn::new(1500));
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
