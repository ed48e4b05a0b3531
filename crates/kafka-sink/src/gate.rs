//! Which records of a topic may be on their way together, where several requests may.
//!
//! A broker puts an idempotent producer's requests to a partition in order by their sequence numbers,
//! **if it has state of the producer there**. Where it has none it takes any number as the first
//! (KIP-360), and a request that must be repeated comes after those behind it
//! (docs/adr/0007-one-request-in-flight.md).
//!
//! So a partition is *open* when this producer had a record acknowledged there a short while ago: then
//! the broker has its state. To one that is not open a record goes only **when none is on its way**, so that
//! the first request is alone, whatever comes of it (docs/adr/0015-several-requests.md).
//!
//! # Unplaced records
//! While librdkafka does not know a topic's partitions it keeps records aside and places them later, by
//! itself. Only one record of a topic may be in that state: nobody knows yet which partition it will take.
//!
//! # No lost wake-up
//! Who is held back says so under the lock under which reports are entered. Something of the topic is on its
//! way then, and its report wakes. A failure does not open anything: the sink is broken and says so itself.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// For how long an acknowledgement proves that the broker has state of the producer. It drops what was not
/// used for `producer.id.expiration.ms`, which is a day unless somebody shortened it, and reckons that
/// from the records' timestamps, which may be as old again: see [`Gate::delivered`]. Not shorter: while a
/// partition has no leader, what goes to others passes for so long.
pub(crate) const OPEN: Duration = Duration::from_secs(30 * 60);

/// The gate of one topic of one producer.
#[derive(Debug)]
pub(crate) struct Gate {
    /// How long records without a key go to one partition before another is chosen. `None`: they are
    /// hashed like all others.
    sticks: Option<Duration>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// All that are on their way.
    in_flight: u64,
    /// The one whose partition is not known.
    unplaced: Option<u64>,
    /// Those that were used. Not a list: a row may name any number.
    partitions: BTreeMap<i32, Partition>,
    /// Where records without a key go, and since when.
    keyless: Option<(i32, Instant)>,
    /// Somebody was held back since the last report.
    waiting: bool,
}

#[derive(Debug, Default)]
struct Partition {
    in_flight: u64,
    acknowledged: Option<Instant>,
}

impl State {
    /// Counts a record in if it may go there now.
    fn admit(&mut self, partition: i32, now: Instant) -> bool {
        let there = self.partitions.entry(partition).or_default();
        let open = there
            .acknowledged
            .is_some_and(|at| now.saturating_duration_since(at) < OPEN);
        let admitted = open || there.in_flight == 0;
        if admitted {
            there.in_flight += 1;
        } else {
            self.waiting = true;
        }
        admitted
    }
}

impl Gate {
    /// Nothing is open.
    pub(crate) fn new(sticks: Option<Duration>) -> Self {
        Self {
            sticks,
            state: Mutex::default(),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether records without a key are hashed too, all to one partition.
    pub(crate) fn hashes_all(&self) -> bool {
        self.sticks.is_none()
    }

    /// A record is offered whose partition the partitioner chooses. False: it must wait. True: then comes
    /// [`place`](Self::place), or it stays unplaced, or [`withdraw`](Self::withdraw).
    pub(crate) fn enter(&self, seq: u64) -> bool {
        let mut state = self.state();
        if state.unplaced.is_some() {
            state.waiting = true;
            return false;
        }
        state.unplaced = Some(seq);
        state.in_flight += 1;
        true
    }

    /// The partitioner's choice for the record that has just entered, one of `count`. `None`: it must
    /// wait, and counts as never having entered.
    pub(crate) fn place(&self, choice: i32, keyed: bool, count: i32, now: Instant) -> Option<i32> {
        let mut state = self.state();
        let partition = match (keyed, self.sticks) {
            (false, Some(sticks)) => match state.keyless {
                Some((last, since))
                    if last < count && now.saturating_duration_since(since) < sticks =>
                {
                    last
                }
                _ => {
                    state.keyless = Some((choice, now));
                    choice
                }
            },
            _ => choice,
        };
        state.unplaced = None;
        if state.admit(partition, now) {
            return Some(partition);
        }
        state.in_flight = state.in_flight.saturating_sub(1);
        None
    }

    /// A record is offered that names its partition. False: it must wait.
    pub(crate) fn enter_at(&self, partition: i32, now: Instant) -> bool {
        let mut state = self.state();
        // The one that is unplaced may come to the same partition.
        if state.unplaced.is_some() {
            state.waiting = true;
            return false;
        }
        let admitted = state.admit(partition, now);
        state.in_flight += u64::from(admitted);
        admitted
    }

    /// The record that has entered, and was placed there or not, was not taken after all.
    pub(crate) fn withdraw(&self, partition: Option<i32>) {
        let mut state = self.state();
        state.in_flight = state.in_flight.saturating_sub(1);
        match partition {
            None => state.unplaced = None,
            Some(partition) => {
                if let Some(there) = state.partitions.get_mut(&partition) {
                    there.in_flight = there.in_flight.saturating_sub(1);
                }
            }
        }
    }

    /// A broker has acknowledged the record. `fresh`: its timestamp is less than [`OPEN`] old; by that of the
    /// last record a broker reckons when it forgets a producer, so that an older one opens nothing.
    ///
    /// True: somebody was held back and should look again.
    #[must_use]
    pub(crate) fn delivered(&self, seq: u64, partition: i32, fresh: bool, now: Instant) -> bool {
        let mut state = self.state();
        state.in_flight = state.in_flight.saturating_sub(1);
        let was_unplaced = state.unplaced == Some(seq);
        if was_unplaced {
            state.unplaced = None;
        }
        let there = state.partitions.entry(partition).or_default();
        there.acknowledged = fresh.then_some(now);
        if !was_unplaced {
            // librdkafka moves records when a topic is made anew with fewer partitions: the count of one
            // then stays too high, and that of another would fall too low.
            there.in_flight = there.in_flight.saturating_sub(1);
        }
        if state.in_flight == 0 {
            for there in state.partitions.values_mut() {
                there.in_flight = 0;
            }
        }
        std::mem::take(&mut state.waiting)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gate() -> Gate {
        Gate::new(Some(Duration::from_millis(10)))
    }

    fn enters(gate: &Gate, seq: u64, partition: i32, now: Instant) -> bool {
        gate.enter(seq) && gate.place(partition, true, 8, now).is_some()
    }

    #[test]
    fn the_first_record_of_a_partition_is_alone_until_it_is_acknowledged() {
        let (gate, now) = (gate(), Instant::now());
        assert!(enters(&gate, 0, 3, now));
        assert!(!enters(&gate, 1, 3, now));
        assert!(enters(&gate, 1, 4, now), "another partition");
        assert!(gate.delivered(1, 4, true, now), "somebody waits");
        assert!(!enters(&gate, 2, 3, now), "still");
        assert!(gate.delivered(0, 3, true, now));
        for seq in 2..10 {
            assert!(enters(&gate, seq, 3, now));
            assert!(enters(&gate, seq + 10, 4, now));
        }
        assert!(!gate.delivered(2, 3, true, now), "nobody waits");
    }

    #[test]
    fn it_closes_when_nothing_was_acknowledged_for_long() {
        let (gate, start) = (gate(), Instant::now());
        assert!(enters(&gate, 0, 3, start));
        assert!(!gate.delivered(0, 3, true, start));
        let later = start + OPEN;
        assert!(enters(&gate, 1, 3, later), "nothing is on its way");
        assert!(!enters(&gate, 2, 3, later));
        assert!(gate.delivered(1, 3, true, later));
        assert!(enters(&gate, 2, 3, later));
        assert!(enters(&gate, 3, 3, later));
    }

    #[test]
    fn an_old_timestamp_opens_nothing_and_closes_what_was_open() {
        let (gate, now) = (gate(), Instant::now());
        for fresh in [false, true, false] {
            assert!(enters(&gate, 0, 3, now));
            assert!(!gate.delivered(0, 3, fresh, now));
        }
        assert!(enters(&gate, 1, 3, now));
        assert!(!enters(&gate, 2, 3, now));
        assert!(gate.delivered(1, 3, false, now));
        assert!(enters(&gate, 2, 3, now));
    }

    #[test]
    fn of_records_without_a_place_there_is_one() {
        let (gate, now) = (gate(), Instant::now());
        assert!(gate.enter(0));
        assert!(!gate.enter(1));
        assert!(!gate.enter_at(5, now), "it may come to this very partition");
        assert!(gate.delivered(0, 2, true, now));
        assert!(enters(&gate, 1, 2, now), "its partition is open");
        assert!(enters(&gate, 2, 2, now));
        assert!(enters(&gate, 3, 5, now));
        assert!(!enters(&gate, 4, 5, now), "the others are not");
    }

    #[test]
    fn what_was_not_taken_leaves_no_trace() {
        let (gate, now) = (gate(), Instant::now());
        assert!(gate.enter(0));
        gate.withdraw(None);
        assert!(enters(&gate, 1, 3, now));
        gate.withdraw(Some(3));
        assert!(gate.enter_at(3, now));
        gate.withdraw(Some(3));
        assert!(enters(&gate, 2, 3, now));
        assert!(!enters(&gate, 3, 3, now));
        assert!(gate.delivered(2, 3, false, now));
        assert_eq!(gate.state().in_flight, 0);
    }

    #[test]
    fn records_without_a_key_stay_with_a_partition_for_a_while() {
        let (gate, now) = (gate(), Instant::now());
        let place = |seq, choice, count, at| {
            assert!(gate.enter(seq));
            let placed = gate.place(choice, false, count, at);
            if let Some(partition) = placed {
                assert!(!gate.delivered(seq, partition, true, at));
            }
            placed
        };
        assert_eq!(place(0, 3, 8, now), Some(3));
        assert_eq!(place(1, 5, 8, now), Some(3));
        let later = now + Duration::from_millis(10);
        assert_eq!(place(2, 5, 8, later), Some(5));
        assert_eq!(place(3, 1, 4, later), Some(1), "there is no fifth any more");
        let hashed = Gate::new(None);
        assert!(hashed.enter(0));
        assert_eq!(hashed.place(3, false, 8, now), Some(3));
        assert!(!hashed.delivered(0, 3, true, now));
        assert!(hashed.enter(1));
        assert_eq!(hashed.place(5, false, 8, now), Some(5));
    }

    /// Or nothing would ever be sent there again.
    #[test]
    fn a_record_that_was_moved_holds_nobody_up_for_ever() {
        let (gate, now) = (gate(), Instant::now());
        assert!(enters(&gate, 0, 7, now));
        assert!(!enters(&gate, 1, 7, now));
        assert!(gate.delivered(0, 2, true, now), "reported from elsewhere");
        assert!(enters(&gate, 1, 7, now));
    }
}
