//! The streams that a sink writes to, and the newest id of each.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use walrelay_sink_client::pause;

use super::entry::{EntryId, NewId};
use crate::client::link::ServerSlot;

/// The most streams that are remembered.
const MAX_STREAMS: usize = 10_000;

/// The facts that a sink knows of a stream.
#[derive(Debug, Clone)]
pub(super) struct Stream {
    pub(super) name: Box<str>,
    /// Where it is, as of the current round.
    pub(super) place: ServerSlot,
    /// The newest id that the stream has ever had; `None`: the server must be asked.
    pub(super) newest: Option<EntryId>,
    /// The newest id of a record that was delivered; `None`: none is known.
    pub(super) delivered: Option<EntryId>,
    /// An event was not in the stream, though a later one was: it, and those that follow up to the
    /// newest, are written behind the newest.
    pub(super) repeats: bool,
    /// The first of them was logged.
    pub(super) logged: bool,
}

impl Stream {
    /// Notes the newest id that the server has. Returns the newest one that was delivered, if the server
    /// has lost it.
    pub(super) fn found(&mut self, newest: EntryId) -> Option<EntryId> {
        self.newest = Some(newest);
        self.delivered.take_if(|delivered| *delivered > newest)
    }

    /// Notes that a record is stored with this id, and all before it. A newer event ends a repeat.
    pub(super) fn stored(&mut self, id: Option<NewId>) {
        if let Some(NewId::Explicit(id) | NewId::Behind(id)) = id {
            self.delivered = self.delivered.max(Some(id));
        }
        match id {
            Some(NewId::Explicit(_)) => self.repeats = false,
            Some(NewId::Behind(_)) => self.repeats = true,
            Some(NewId::Clock) | None => {}
        }
    }
}

/// The streams that a sink writes to, by number. They outlive a connection.
#[derive(Debug, Default)]
pub(super) struct Streams {
    numbers: HashMap<Box<str>, usize>,
    all: Vec<Stream>,
    /// Streams that are refused, and tried again.
    held: HashMap<Box<str>, Hold>,
}

/// The time for which a stream is not tried.
#[derive(Debug, Clone, Copy)]
struct Hold {
    since: Instant,
    until: Instant,
    refusals: u32,
}

impl Streams {
    /// Forgets streams if there are too many, but none that is being repeated. Numbers change, so it is
    /// called between transactions.
    pub(super) fn bound(&mut self) {
        if self.all.len() <= MAX_STREAMS {
            return;
        }
        self.all.retain(|stream| stream.repeats);
        let numbers = self.all.iter().zip(0..);
        self.numbers = numbers
            .map(|(stream, number)| (stream.name.clone(), number))
            .collect();
    }

    /// Returns the number of a stream.
    pub(super) fn number(&mut self, name: &str) -> usize {
        if let Some(number) = self.numbers.get(name) {
            return *number;
        }
        let number = self.all.len();
        self.numbers.insert(name.into(), number);
        self.all.push(Stream {
            name: name.into(),
            place: ServerSlot::default(),
            newest: None,
            delivered: None,
            repeats: false,
            logged: false,
        });
        number
    }

    /// Notes that a stream is refused at `now`. It is not tried before a pause has passed. Returns since
    /// when it is refused.
    pub(super) fn hold(
        &mut self,
        number: usize,
        now: Instant,
        pauses: (Duration, Duration),
    ) -> Instant {
        let hold = self.held.entry(self.all[number].name.clone());
        let hold = hold.or_insert(Hold {
            since: now,
            until: now,
            refusals: 0,
        });
        hold.until = now + pause(pauses, hold.refusals);
        hold.refusals = hold.refusals.saturating_add(1);
        hold.since
    }

    /// Notes that a stream is not tried again, or was not refused. Returns true if it was the last one
    /// that was held.
    pub(super) fn release(&mut self, number: usize) -> bool {
        let held = !self.held.is_empty() && self.held.remove(&self.all[number].name).is_some();
        held && self.held.is_empty()
    }

    /// Returns true if a stream is not tried at `now`.
    pub(super) fn is_held(&self, name: &str, now: Instant) -> bool {
        !self.held.is_empty() && self.held.get(name).is_some_and(|hold| now < hold.until)
    }

    /// Returns when the next stream after `now` is tried again.
    pub(super) fn next_due(&self, now: Instant) -> Option<Instant> {
        let until = self.held.values().map(|hold| hold.until);
        until.filter(|until| *until > now).min()
    }

    /// Makes the newest ids be asked for again: others may have written meanwhile.
    pub(super) fn forget_newest(&mut self) {
        for stream in &mut self.all {
            stream.newest = None;
        }
    }
}

impl std::ops::Index<usize> for Streams {
    type Output = Stream;

    fn index(&self, number: usize) -> &Stream {
        &self.all[number]
    }
}

impl std::ops::IndexMut<usize> for Streams {
    fn index_mut(&mut self, number: usize) -> &mut Stream {
        &mut self.all[number]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_too_many_streams_those_that_are_repeated_are_kept() {
        let mut streams = Streams::default();
        for number in 0..=MAX_STREAMS {
            streams.number(&number.to_string());
        }
        streams[7].repeats = true;
        streams.bound();
        assert_eq!(streams.all.len(), 1);
        assert_eq!(streams.number("7"), 0);
        assert!(streams[0].repeats);
        assert_eq!(streams.number("6"), 1);
        streams.bound();
        assert_eq!(streams.number("6"), 1, "there are few");
    }

    #[test]
    fn a_server_that_has_lost_what_was_delivered_is_noticed_once() {
        let mut streams = Streams::default();
        let number = streams.number("a");
        let stream = &mut streams[number];
        let id = |first| EntryId { first, second: 0 };
        assert_eq!(stream.found(id(7)), None);
        stream.stored(Some(NewId::Explicit(id(8))));
        stream.stored(None);
        assert_eq!(stream.found(id(8)), None);
        assert_eq!(stream.found(id(9)), None, "another one writes");
        assert_eq!(stream.found(id(7)), Some(id(8)));
        assert_eq!(stream.found(id(7)), None);
        assert_eq!(stream.newest, Some(id(7)));
    }

    #[test]
    fn a_repeat_ends_when_a_newer_event_is_stored() {
        let mut streams = Streams::default();
        let number = streams.number("a");
        let id = EntryId {
            first: 5,
            second: 5,
        };
        for (stored, repeats) in [
            (Some(NewId::Behind(id)), true),
            (None, true),
            (Some(NewId::Explicit(id)), false),
            (None, false),
        ] {
            streams[number].stored(stored);
            assert_eq!(streams[number].repeats, repeats, "{stored:?}");
        }
    }
}
