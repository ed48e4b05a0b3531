//! The lanes of [`KeyQueues`](super::KeyQueues): which queue sends next, lane by lane.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::time::Instant;

/// The number of a lane in [`Lanes`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub(super) struct LaneNumber(u64);

/// The lanes that have a record.
pub(super) struct Lanes {
    /// The most keys of a lane that may be held back before its others wait too.
    max_blocked: usize,
    numbers: HashMap<Box<str>, LaneNumber>,
    by_number: HashMap<LaneNumber, Lane>,
    last: u64,
    /// Records of more than one lane have come.
    has_several: bool,
    /// Lanes that may have a record to send, each once, in the order of their turns.
    turns: VecDeque<LaneNumber>,
    /// Lanes that send nothing before a time.
    paused: BTreeSet<(Instant, LaneNumber)>,
    /// Keys that are held back, of all lanes.
    blocked: usize,
    /// Records in flight of lanes that fail, and the most there may be.
    probes: usize,
    max_probes: usize,
    /// Lanes that fail and wait for another one's probe to end.
    waiting: VecDeque<LaneNumber>,
}

#[derive(Default)]
struct Lane {
    name: Box<str>,
    /// Records in the queues, also those in flight.
    records: usize,
    in_flight: usize,
    /// Keys that are held back by a record that is sent again.
    blocked: usize,
    /// Nothing has succeeded since it failed.
    is_failing: bool,
    paused_until: Option<Instant>,
    /// Queues whose first record is sent again now.
    again: VecDeque<u64>,
    /// Queues whose first record was not sent yet.
    ready: VecDeque<u64>,
    has_turn: bool,
}

impl Lane {
    /// Takes the queue that sends next. `None`: the lane sends nothing now.
    fn take_next(&mut self, max_blocked: usize) -> Option<u64> {
        if self.paused_until.is_some() || (self.is_failing && self.in_flight > 0) {
            return None;
        }
        if let Some(number) = self.again.pop_front() {
            return Some(number);
        }
        if self.blocked >= max_blocked {
            return None;
        }
        self.ready.pop_front()
    }
}

impl Lanes {
    pub(super) fn new(max_blocked: usize) -> Self {
        Self {
            max_blocked: max_blocked.max(1),
            numbers: HashMap::new(),
            by_number: HashMap::new(),
            last: 0,
            has_several: false,
            turns: VecDeque::new(),
            paused: BTreeSet::new(),
            blocked: 0,
            probes: 0,
            max_probes: usize::MAX,
            waiting: VecDeque::new(),
        }
    }

    pub(super) fn set_max_probes(&mut self, most: usize) {
        self.max_probes = most.max(1);
    }

    pub(super) fn max_blocked(&self) -> usize {
        self.max_blocked
    }

    pub(super) fn blocked(&self) -> usize {
        self.blocked
    }

    /// Returns the number of keys that are held back in the lane that has the most.
    pub(super) fn most_blocked(&self) -> usize {
        let lanes = self.by_number.values();
        lanes.map(|lane| lane.blocked).max().unwrap_or_default()
    }

    /// Returns the queues whose first record is sent again as soon as their lane allows it, each with the
    /// time before which it does not.
    pub(super) fn again_queues(&self) -> impl Iterator<Item = (Option<Instant>, u64)> {
        let lanes = self.by_number.values();
        lanes.flat_map(|lane| lane.again.iter().map(|queue| (lane.paused_until, *queue)))
    }

    /// Returns the time before which a lane sends nothing.
    pub(super) fn paused_until(&self, number: LaneNumber) -> Option<Instant> {
        self.by_number.get(&number)?.paused_until
    }

    /// Returns true if the records of a lane wait for the lane, and there may be other lanes.
    pub(super) fn waits_for_itself(&self, number: LaneNumber) -> bool {
        let lane = self.by_number.get(&number);
        self.has_several
            && lane.is_some_and(|lane| {
                lane.is_failing || lane.paused_until.is_some() || lane.blocked >= self.max_blocked
            })
    }

    /// Counts a record of the lane of this name. Returns the lane.
    pub(super) fn enter(&mut self, name: &str) -> LaneNumber {
        let number = if let Some(number) = self.numbers.get(name) {
            *number
        } else {
            self.has_several |= !self.numbers.is_empty();
            self.last += 1;
            let number = LaneNumber(self.last);
            self.numbers.insert(name.into(), number);
            let lane = Lane {
                name: name.into(),
                ..Lane::default()
            };
            self.by_number.insert(number, lane);
            number
        };
        self.change(number, |lane| lane.records += 1);
        number
    }

    /// Removes a record that was not in flight.
    pub(super) fn leave(&mut self, number: LaneNumber) {
        self.change(number, |lane| lane.records -= 1);
        self.forget_empty(number);
    }

    /// Adds a queue whose first record was not sent yet.
    pub(super) fn ready(&mut self, number: LaneNumber, queue: u64) {
        self.change(number, |lane| lane.ready.push_back(queue));
    }

    /// Adds a queue whose first record is sent again.
    pub(super) fn again(&mut self, number: LaneNumber, queue: u64) {
        self.change(number, |lane| lane.again.push_back(queue));
    }

    /// Takes the queue that sends next; its first record is in flight from now on.
    pub(super) fn next(&mut self, now: Instant) -> Option<u64> {
        while let Some((until, number)) = self.paused.first().copied()
            && until <= now
        {
            self.paused.pop_first();
            self.change(number, |lane| lane.paused_until = None);
        }
        while let Some(number) = self.turns.pop_front() {
            let Some(lane) = self.by_number.get_mut(&number) else {
                continue;
            };
            if lane.is_failing && self.probes >= self.max_probes {
                // It keeps its turn.
                self.waiting.push_back(number);
                continue;
            }
            if let Some(queue) = lane.take_next(self.max_blocked) {
                lane.in_flight += 1;
                self.probes += usize::from(lane.is_failing);
                self.turns.push_back(number);
                return Some(queue);
            }
            lane.has_turn = false;
        }
        None
    }

    /// Returns the time at which a paused lane goes on.
    pub(super) fn next_due(&self) -> Option<Instant> {
        self.paused.first().map(|(until, _)| *until)
    }

    /// Notes that a record in flight is sent again later. `first`: it was not refused before.
    pub(super) fn held_back(&mut self, number: LaneNumber, first: bool) {
        self.blocked += usize::from(first);
        self.change(number, |lane| {
            lane.in_flight -= 1;
            lane.blocked += usize::from(first);
        });
        self.probe_ended(number);
    }

    /// Removes a record that was in flight. `was_refused`: it has held back its key.
    pub(super) fn ended(&mut self, number: LaneNumber, was_refused: bool) {
        self.blocked -= usize::from(was_refused);
        self.change(number, |lane| {
            lane.in_flight -= 1;
            lane.records -= 1;
            lane.blocked -= usize::from(was_refused);
        });
        self.probe_ended(number);
        self.forget_empty(number);
    }

    /// Counts the end of a record in flight, if its lane fails.
    fn probe_ended(&mut self, number: LaneNumber) {
        if self
            .by_number
            .get(&number)
            .is_some_and(|lane| lane.is_failing)
        {
            self.probes -= 1;
            self.turns.append(&mut self.waiting);
        }
    }

    /// Notes that a record of the lane was delivered.
    pub(super) fn succeeded(&mut self, number: LaneNumber) {
        let mut probes = 0;
        self.change(number, |lane| {
            if std::mem::take(&mut lane.is_failing) {
                probes = lane.in_flight;
            }
        });
        if probes > 0 {
            self.probes -= probes;
            self.turns.append(&mut self.waiting);
        }
    }

    /// Sends one record at a time, and none before `until`.
    pub(super) fn fail(&mut self, number: LaneNumber, until: Instant) {
        let Some(lane) = self.by_number.get_mut(&number) else {
            return;
        };
        if !std::mem::replace(&mut lane.is_failing, true) {
            self.probes += lane.in_flight;
        }
        if lane.paused_until < Some(until) {
            if let Some(before) = lane.paused_until.replace(until) {
                self.paused.remove(&(before, number));
            }
            self.paused.insert((until, number));
        }
    }

    /// Changes a lane, and gives it a turn: it may have something to send now.
    fn change(&mut self, number: LaneNumber, change: impl FnOnce(&mut Lane)) {
        let Some(lane) = self.by_number.get_mut(&number) else {
            return;
        };
        change(lane);
        if !lane.has_turn {
            lane.has_turn = true;
            self.turns.push_back(number);
        }
    }

    /// Forgets a lane without a record: rows choose destinations, and there is no end of them.
    fn forget_empty(&mut self, number: LaneNumber) {
        let empty = self.by_number.get(&number).filter(|lane| lane.records == 0);
        let Some(lane) = empty else {
            return;
        };
        self.numbers.remove(&lane.name);
        if let Some(until) = lane.paused_until {
            self.paused.remove(&(until, number));
        }
        self.by_number.remove(&number);
        if self.turns.len() > 2 * self.by_number.len() + 8 {
            self.turns.retain(|turn| self.by_number.contains_key(turn));
        }
    }
}
