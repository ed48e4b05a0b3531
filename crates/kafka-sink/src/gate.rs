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
//! # Lines
//! Who is held back stands in a [`Line`]: for its partition, or for all of the topic while that of an unplaced
//! one is not known. The gate counts them, [`Lines`](crate::lines::Lines) has them. **Nobody passes a line**: what
//! comes for a partition whose line is not empty is held back too, also if the partition is open by now.
//!
//! # No lost wake-up
//! Who is held back is counted in under the lock under which reports are entered. Something of the same
//! partition, or the one that is unplaced, is on its way then, and its report calls. Once a call was
//! made there is none until it was [heard](Gate::heard), after which each line is tried again. A failure does not
//! open anything: the sink is broken and says so itself.

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
    /// The topic's number, whoever numbers them.
    topic: usize,
    /// How long records without a key go to one partition before another is chosen. `None`: they are
    /// hashed like all others.
    sticks: Option<Duration>,
    state: Mutex<State>,
}

/// Where a record stands that is held back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Line {
    /// Its partition is not known, or that of one before it is not.
    Topic,
    /// Its partition's.
    Partition(i32),
}

#[derive(Debug, Default)]
struct State {
    /// All that are on their way.
    in_flight: u64,
    /// The one whose partition is not known.
    unplaced: Option<u64>,
    /// Who stands in [`Line::Topic`].
    standing: u64,
    /// Who stands in any line.
    all_standing: u64,
    /// Those that were used. Not a list: a row may name any number.
    partitions: BTreeMap<i32, Partition>,
    /// Where records without a key go, and since when.
    keyless: Option<(i32, Instant)>,
    /// Who was held back may be so no longer, and nobody has heard of it yet.
    called: bool,
}

#[derive(Debug, Default)]
struct Partition {
    in_flight: u64,
    /// Who stands in its line.
    standing: u64,
    acknowledged: Option<Instant>,
}

impl State {
    /// Counts a record in: on its way to a partition, if it may go there now, or else in the line. `from`: where
    /// it stood until now.
    fn admit(&mut self, partition: i32, from: Option<Line>, now: Instant) -> Result<(), Line> {
        let there = self.partitions.entry(partition).or_default();
        let open = there
            .acknowledged
            .is_some_and(|at| now.saturating_duration_since(at) < OPEN);
        let own = Line::Partition(partition);
        let first = there.standing == 0 || from == Some(own);
        if first && (open || there.in_flight == 0) {
            there.in_flight += 1;
            self.in_flight += 1;
            self.leave(from);
            return Ok(());
        }
        self.stand(own, from);
        Err(own)
    }

    /// Whether a record may go on to its partition: nothing is unplaced, and whoever stands in the line of the
    /// topic came after it. If not it stands there, or where it stood.
    fn passes_topic(&mut self, from: Option<Line>) -> Result<(), Line> {
        if self.unplaced.is_some() || (from.is_none() && self.standing > 0) {
            // One that is first in its partition's line stays there.
            let line = from.unwrap_or(Line::Topic);
            self.stand(line, from);
            return Err(line);
        }
        Ok(())
    }

    fn stand(&mut self, line: Line, from: Option<Line>) {
        if from != Some(line) {
            self.leave(from);
            *self.count(line) += 1;
            self.all_standing += 1;
        }
    }

    fn leave(&mut self, line: Option<Line>) {
        if let Some(line) = line {
            let count = self.count(line);
            *count = count.saturating_sub(1);
            self.all_standing = self.all_standing.saturating_sub(1);
        }
    }

    fn count(&mut self, line: Line) -> &mut u64 {
        match line {
            Line::Topic => &mut self.standing,
            Line::Partition(partition) => {
                &mut self.partitions.entry(partition).or_default().standing
            }
        }
    }
}

impl Gate {
    /// Nothing is open.
    pub(crate) fn new(topic: usize, sticks: Option<Duration>) -> Self {
        Self {
            topic,
            sticks,
            state: Mutex::default(),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The topic's number.
    pub(crate) fn topic(&self) -> usize {
        self.topic
    }

    /// Whether records without a key are hashed too, all to one partition.
    pub(crate) fn hashes_all(&self) -> bool {
        self.sticks.is_none()
    }

    /// A record is offered whose partition the partitioner chooses; `from`: where it stood, of which it must be
    /// the first. `Err`: it stands there now. `Ok`: then comes [`place`](Self::place), or it stays
    /// unplaced, or [`withdraw`](Self::withdraw).
    pub(crate) fn enter(&self, seq: u64, from: Option<Line>) -> Result<(), Line> {
        let mut state = self.state();
        state.passes_topic(from)?;
        state.leave(from);
        state.unplaced = Some(seq);
        state.in_flight += 1;
        Ok(())
    }

    /// The partitioner's choice for the record that has just entered, one of `count`. `Err`: it stands there
    /// now, and counts as never having entered.
    pub(crate) fn place(
        &self,
        choice: i32,
        keyed: bool,
        count: i32,
        now: Instant,
    ) -> Result<i32, Line> {
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
        state.in_flight = state.in_flight.saturating_sub(1);
        state.admit(partition, None, now)?;
        Ok(partition)
    }

    /// A record is offered whose partition is known; as with [`enter`](Self::enter).
    pub(crate) fn enter_at(
        &self,
        partition: i32,
        from: Option<Line>,
        now: Instant,
    ) -> Result<(), Line> {
        let mut state = self.state();
        // The one that is unplaced may come to the same partition.
        state.passes_topic(from)?;
        state.admit(partition, from, now)
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

    /// Who called was heard: whatever changes from now on is worth another call.
    pub(crate) fn heard(&self) {
        self.state().called = false;
    }

    /// A broker has acknowledged the record. `fresh`: its timestamp is less than [`OPEN`] old; by that of the
    /// last record a broker reckons when it forgets a producer, so that an older one opens nothing.
    ///
    /// True: somebody who stands in a line should be tried again, see [`heard`](Self::heard).
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
        let stands_there = there.standing > 0;
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
        let lets_go = stands_there || was_unplaced || state.in_flight == 0;
        let calls = lets_go && state.all_standing > 0 && !state.called;
        state.called |= calls;
        calls
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gate() -> Gate {
        Gate::new(0, Some(Duration::from_millis(10)))
    }

    /// Offers a record with a key, of partition 3 or another. `Err`: where it stands.
    fn offer(
        gate: &Gate,
        seq: u64,
        partition: i32,
        from: Option<Line>,
        now: Instant,
    ) -> Result<(), Line> {
        gate.enter(seq, from)?;
        gate.place(partition, true, 8, now).map(drop)
    }

    fn enters(gate: &Gate, seq: u64, partition: i32, now: Instant) -> bool {
        offer(gate, seq, partition, None, now).is_ok()
    }

    const THREE: Line = Line::Partition(3);

    #[test]
    fn the_first_record_of_a_partition_is_alone_until_it_is_acknowledged() {
        let (gate, now) = (gate(), Instant::now());
        assert!(enters(&gate, 0, 3, now));
        assert_eq!(offer(&gate, 1, 3, None, now), Err(THREE));
        assert!(enters(&gate, 2, 4, now), "another partition");
        assert!(!gate.delivered(2, 4, true, now), "nobody stands there");
        assert_eq!(gate.enter_at(3, Some(THREE), now), Err(THREE), "still");
        assert!(gate.delivered(0, 3, true, now), "somebody stands there");
        assert_eq!(gate.enter_at(3, Some(THREE), now), Ok(()));
        for seq in 3..10 {
            assert!(enters(&gate, seq, 3, now));
            assert!(enters(&gate, seq + 10, 4, now));
        }
        assert!(!gate.delivered(1, 3, true, now), "nobody stands there");
    }

    /// Would reorder a key's records: those that stand there came first.
    #[test]
    fn nobody_passes_a_line() {
        let (gate, now) = (gate(), Instant::now());
        assert!(enters(&gate, 0, 3, now));
        for seq in 1..4 {
            assert_eq!(offer(&gate, seq, 3, None, now), Err(THREE));
        }
        assert!(gate.delivered(0, 3, true, now));
        for stood in 1..4 {
            assert_eq!(offer(&gate, 9, 3, None, now), Err(THREE), "{stood}");
            assert_eq!(gate.enter_at(3, None, now), Err(THREE), "{stood}");
            for _ in 0..3 {
                // As many have come as have left.
                assert_eq!(gate.enter_at(3, Some(THREE), now), Ok(()));
            }
            assert!(gate.state().partitions[&3].standing == 2);
            for _ in 0..2 {
                assert_eq!(gate.enter_at(3, Some(THREE), now), Ok(()));
            }
            assert!(enters(&gate, 9, 3, now), "the line is empty");
            for _ in 0..3 {
                let state = &mut gate.state();
                state.stand(THREE, None);
            }
        }
    }

    #[test]
    fn one_call_is_enough_until_it_is_heard() {
        let (gate, now) = (gate(), Instant::now());
        assert!(enters(&gate, 0, 3, now));
        assert!(enters(&gate, 1, 4, now));
        assert!(!enters(&gate, 2, 3, now));
        assert!(!enters(&gate, 3, 4, now));
        assert!(gate.delivered(0, 3, true, now));
        assert!(!gate.delivered(1, 4, true, now), "called already");
        gate.heard();
        assert!(enters(&gate, 4, 5, now));
        assert!(!enters(&gate, 5, 5, now));
        assert!(gate.delivered(4, 5, true, now), "once more");
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
        assert_eq!(gate.enter_at(3, Some(THREE), later), Ok(()));
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
        assert_eq!(gate.enter_at(3, Some(THREE), now), Ok(()), "it is alone");
        assert!(!enters(&gate, 4, 3, now), "and no other beside it");
    }

    #[test]
    fn of_records_without_a_place_there_is_one() {
        let (gate, now) = (gate(), Instant::now());
        let topic = Some(Line::Topic);
        assert_eq!(gate.enter(0, None), Ok(()));
        assert_eq!(gate.enter(1, None), Err(Line::Topic));
        let at = gate.enter_at(5, None, now);
        assert_eq!(at, Err(Line::Topic), "it may come to this very partition");
        assert!(gate.delivered(0, 2, true, now));
        assert_eq!(gate.enter(9, None), Err(Line::Topic), "behind those two");
        assert_eq!(offer(&gate, 1, 2, topic, now), Ok(()), "it is open");
        assert_eq!(gate.enter_at(5, topic, now), Ok(()));
        let fifth = Line::Partition(5);
        let moved = offer(&gate, 9, 5, topic, now);
        assert_eq!(moved, Err(fifth), "from one line to another");
        assert!(enters(&gate, 10, 2, now), "nobody stands for the topic");
        assert_eq!(gate.state().all_standing, 1);
        gate.heard();
        assert!(gate.delivered(2, 5, true, now));
        assert_eq!(gate.enter_at(5, Some(fifth), now), Ok(()));
        assert_eq!(gate.state().all_standing, 0);
    }

    /// A topic may be unknown again, after it was deleted.
    #[test]
    fn one_without_a_place_holds_the_lines_of_partitions_too() {
        let (gate, now) = (gate(), Instant::now());
        assert!(enters(&gate, 0, 3, now));
        assert!(!enters(&gate, 1, 3, now));
        assert_eq!(gate.enter(2, None), Ok(()));
        assert!(gate.delivered(0, 3, true, now));
        gate.heard();
        assert_eq!(gate.enter_at(3, Some(THREE), now), Err(THREE));
        assert_eq!(gate.state().all_standing, 1);
        assert!(gate.delivered(2, 6, true, now), "or it stood for ever");
        assert_eq!(gate.enter_at(3, Some(THREE), now), Ok(()));
    }

    #[test]
    fn what_was_not_taken_leaves_no_trace() {
        let (gate, now) = (gate(), Instant::now());
        assert_eq!(gate.enter(0, None), Ok(()));
        gate.withdraw(None);
        assert!(enters(&gate, 1, 3, now));
        gate.withdraw(Some(3));
        assert_eq!(gate.enter_at(3, None, now), Ok(()));
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
            assert_eq!(gate.enter(seq, None), Ok(()));
            let placed = gate.place(choice, false, count, at);
            if let Ok(partition) = placed {
                assert!(!gate.delivered(seq, partition, true, at));
            }
            placed
        };
        assert_eq!(place(0, 3, 8, now), Ok(3));
        assert_eq!(place(1, 5, 8, now), Ok(3));
        let later = now + Duration::from_millis(10);
        assert_eq!(place(2, 5, 8, later), Ok(5));
        assert_eq!(place(3, 1, 4, later), Ok(1), "there is no fifth any more");
        let hashed = Gate::new(0, None);
        assert_eq!(hashed.enter(0, None), Ok(()));
        assert_eq!(hashed.place(3, false, 8, now), Ok(3));
        assert!(!hashed.delivered(0, 3, true, now));
        assert_eq!(hashed.enter(1, None), Ok(()));
        assert_eq!(hashed.place(5, false, 8, now), Ok(5));
    }

    /// Or nothing would ever be sent there again.
    #[test]
    fn a_record_that_was_moved_holds_nobody_up_for_ever() {
        let (gate, now) = (gate(), Instant::now());
        let seventh = Line::Partition(7);
        assert!(enters(&gate, 0, 7, now));
        assert!(!enters(&gate, 1, 7, now));
        assert!(gate.delivered(0, 2, true, now), "reported from elsewhere");
        assert_eq!(gate.enter_at(7, Some(seventh), now), Ok(()));
    }
}
