//! Decides where the rolling bookmark is to be moved. Pure, so that each case has a test.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use walrelay_lsn::Lsn;

/// Number of samples of the relay's position within the time to keep, at most.
const SAMPLES: u32 = 128;

/// Below so many bytes to the relay's position, the bookmark is moved all the way: one segment of WAL.
const SHORT_WAY: u64 = 16 << 20;

/// The limits of what is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Keep {
    /// How far back events can be replayed.
    pub(crate) time: Duration,
    /// Bytes of WAL that the server keeps only for the bookmark, at most.
    pub(crate) max_wal: u64,
}

/// The position that the bookmark is to be moved to.
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

    /// Returns the position that the bookmark is to be moved to if its position is not what keeps
    /// the WAL: a transaction was open there, and the server keeps WAL from the transaction's
    /// beginning on. The positions do not show where the transaction ends. Half of the way to the
    /// relay leaves as much to be replayed as possible, and a few rounds reach its end.
    fn past_transaction(&self) -> Lsn {
        let (relay, bookmark) = (self.relay.0, self.bookmark.0);
        let left = relay.bytes_since(bookmark);
        if left < SHORT_WAY {
            return relay.max(bookmark);
        }
        Lsn::new(bookmark.get() + left / 2)
    }
}

/// Samples of the relay's position over time.
#[derive(Debug)]
pub(super) struct Positions {
    keep: Keep,
    /// The bookmark's position when it was last moved to where it is.
    moved_in_place: Option<Lsn>,
    /// Oldest first. All but the first are younger than the time to keep.
    samples: VecDeque<(Instant, Lsn)>,
}

impl Positions {
    /// Creates a policy without samples. Unless there are some of an earlier process, the bookmark
    /// is not moved by time until the time to keep has passed since the start.
    pub(super) fn new(keep: Keep) -> Self {
        Self {
            keep,
            moved_in_place: None,
            samples: VecDeque::new(),
        }
    }

    /// Replaces the samples by those of an earlier process, oldest first, each with its age. A sample
    /// beyond the relay's position is not of this slot's history, and left out.
    pub(super) fn restore(
        &mut self,
        now: Instant,
        relay: Lsn,
        samples: impl IntoIterator<Item = (Duration, Lsn)>,
    ) {
        let samples = samples.into_iter().filter_map(|(age, position)| {
            let at = now.checked_sub(age)?;
            (position <= relay).then_some((at, position))
        });
        self.samples = samples.collect();
    }

    /// Returns the samples, oldest first, each with its age.
    pub(super) fn samples(&self, now: Instant) -> impl Iterator<Item = (Duration, Lsn)> {
        let samples = self.samples.iter();
        samples.map(move |(at, position)| (now.duration_since(*at), *position))
    }

    /// Adds a sample: the relay is at this position now. Returns whether the samples have changed;
    /// there is one in each 128th of the time to keep.
    pub(super) fn record(&mut self, now: Instant, position: Lsn) -> bool {
        let spaced = |at: Instant| now.duration_since(at) >= self.keep.time / SAMPLES;
        let due = self.samples.back().is_none_or(|(at, _)| spaced(*at));
        if due {
            self.samples.push_back((now, position));
        }
        while let Some((at, _)) = self.samples.get(1)
            && now.duration_since(*at) >= self.keep.time
        {
            self.samples.pop_front();
        }
        due
    }

    /// Returns the position that the bookmark is to be moved to; `None`: it is not moved.
    pub(super) fn target(&mut self, now: Instant, slots: Slots) -> Option<Target> {
        let by_time = self.samples.front();
        let by_time = by_time.filter(|(at, _)| now.duration_since(*at) >= self.keep.time);
        let by_time = by_time.map(|(_, position)| *position);
        // Move at 7/8 of the limit, so that it is not exceeded before the next round, and down to
        // 3/4, so that the bookmark is not moved in every round.
        let max = self.keep.max_wal;
        let limit = max - max / 8;
        let full = slots.retained() > limit;
        let bookmark = slots.bookmark.0;
        let by_size = if !full {
            None
        } else if slots.relay.1.bytes_since(bookmark) > limit {
            Some(Lsn::new(slots.relay.1.get().saturating_sub(max / 4 * 3)))
        } else if self.moved_in_place.replace(bookmark) != Some(bookmark) {
            // One move does not always find the latest `restart_lsn` of a position
            // (LogicalIncreaseRestartDecodingForSlot in logical.c); a second one to the same does.
            Some(bookmark)
        } else {
            Some(slots.past_transaction())
        };
        let to = by_time.max(by_size)?.min(slots.relay.0);
        let in_place = by_size == Some(to) && to == bookmark;
        (to > bookmark || in_place).then_some(Target {
            to,
            by_size: by_size > by_time && !in_place,
        })
    }

    /// Returns for how long back, at least, events can be replayed from this position.
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

    fn to(positions: &mut Positions, now: Instant, slots: Slots) -> Option<(u64, bool)> {
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
            let target = to(&mut positions, at(second), slots(1000 + second, 1000));
            assert_eq!(target, None, "nothing is known of so long ago");
        }
        let mut bookmark = 1000;
        for second in 100..400 {
            positions.record(at(second), Lsn::new(1000 + second));
            if let Some((target, by_size)) =
                to(&mut positions, at(second), slots(1000 + second, bookmark))
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

    /// Each process ends before the time to keep is over.
    #[test]
    fn the_bookmark_follows_over_restarts() {
        let begin = Instant::now();
        let at = |second: u64| begin + Duration::from_secs(second);
        let mut noted: Vec<(u64, Lsn)> = Vec::new();
        let mut bookmark = 1000;
        for second in 0..400 {
            // One of a day, as it were: the relay does not run for some seconds.
            if second % 60 < 3 {
                continue;
            }
            let relay = Lsn::new(1000 + second);
            let mut positions = Positions::new(KEEP);
            let ages = noted
                .iter()
                .map(|(noted, position)| (Duration::from_secs(second - noted), *position));
            positions.restore(at(second), relay, ages);
            assert!(positions.record(at(second), relay));
            if let Some((target, by_size)) =
                to(&mut positions, at(second), slots(relay.get(), bookmark))
            {
                assert!(!by_size, "the time is over");
                bookmark = target;
            }
            let samples = positions.samples(at(second));
            noted = samples
                .map(|(age, position)| (second - age.as_secs(), position))
                .collect();
            let age = 1000 + second - bookmark;
            let expected = if second < 103 { 0..=105 } else { 100..=105 };
            assert!(expected.contains(&age), "{age} at {second}");
        }
        // A log that went back has positions that mean nothing now.
        let mut positions = Positions::new(KEEP);
        let later = [(KEEP.time, Lsn::new(900)), (KEEP.time / 2, Lsn::new(1200))];
        positions.restore(at(400), Lsn::new(1000), later);
        let kept: Vec<Lsn> = positions
            .samples(at(400))
            .map(|(_, position)| position)
            .collect();
        assert_eq!(kept, [Lsn::new(900)]);
    }

    #[test]
    fn the_size_wins_also_after_a_start() {
        let now = Instant::now();
        let mut positions = Positions::new(KEEP);
        positions.record(now, Lsn::new(2000));
        assert_eq!(
            to(&mut positions, now, slots(2000, 1300)),
            None,
            "at the limit of the room"
        );
        assert_eq!(
            to(&mut positions, now, slots(2000, 1299)),
            Some((1400, true))
        );
        // The server keeps most of this WAL for the relay's slot as well.
        let behind = Slots {
            relay: (Lsn::new(2000), Lsn::new(1000)),
            bookmark: (Lsn::new(1200), Lsn::new(900)),
        };
        assert_eq!(behind.retained(), 100);
        assert_eq!(to(&mut positions, now, behind), None);
    }

    /// While a transaction is open, the server keeps its WAL for both slots. Once it has ended, the
    /// relay's `restart_lsn` is beyond it; that of a bookmark inside it is not, however close the
    /// bookmark is to the relay.
    #[test]
    fn the_size_wins_over_a_transaction_that_was_open_at_the_bookmark() {
        const MIB: u64 = 1 << 20;
        let keep = Keep {
            max_wal: 64 * MIB,
            ..KEEP
        };
        let now = Instant::now();
        let mut positions = Positions::new(keep);
        let (begun, ended, end) = (100 * MIB, 371 * MIB, 372 * MIB);
        positions.record(now, Lsn::new(end));
        // The server's side of a move: a slot inside the transaction keeps WAL from its beginning on.
        let at = |position: u64| {
            let restart = if position < ended { begun } else { position };
            (Lsn::new(position), Lsn::new(restart))
        };
        for start in [110 * MIB, 330 * MIB, 371 * MIB - 1] {
            let mut slots = Slots {
                relay: at(end),
                bookmark: at(start),
            };
            let mut moves = 0;
            while slots.retained() > keep.max_wal {
                let target = positions.target(now, slots).expect("a move");
                assert!(target.to <= slots.relay.0, "{target:?}");
                assert_eq!(target.by_size, target.to > slots.bookmark.0);
                slots.bookmark = at(target.to.get());
                moves += 1;
                slots.relay = at(end + moves * MIB / 4);
            }
            assert!(moves <= 16, "{moves} moves from {start}");
            assert_eq!(positions.target(now, slots), None, "it stays");
        }
        // Its position is the relay's; only its `restart_lsn` has to be found again.
        let slots = Slots {
            relay: at(end),
            bookmark: (Lsn::new(end), Lsn::new(begun)),
        };
        let target = positions.target(now, slots).expect("a move");
        assert_eq!(target.to, Lsn::new(end));
    }

    #[test]
    fn the_bookmark_is_never_beyond_the_relay() {
        let begin = Instant::now();
        let mut positions = Positions::new(KEEP);
        positions.record(begin, Lsn::new(2000));
        let later = begin + KEEP.time;
        // The relay's slot was created again, further back.
        assert_eq!(
            to(&mut positions, later, slots(1500, 1000)),
            Some((1500, false))
        );
        assert_eq!(to(&mut positions, later, slots(1500, 1500)), None);
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
