//! The streams that a sink writes to, and the newest id of each.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use walrelay_sink::{SharedEnd, SinkStats, StreamEnd, lock};
use walrelay_sink_client::pause;

use super::contents::{Contents, Lost};
use super::entry::{EntryId, NewId, Newest};
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
    pub(super) contents: Contents,
    /// What the next sink is to know of it.
    end: SharedEnd,
}

impl Stream {
    /// Creates a stream, with a former sink's notes on it.
    fn new(name: &str, end: SharedEnd) -> Self {
        let known = Some(lock(&end).clone());
        let known = known.filter(|known| *known != StreamEnd::default());
        let id = known.as_ref().and_then(|known| known.id);
        Self {
            name: name.into(),
            place: ServerSlot::default(),
            newest: None,
            delivered: id.map(|(first, second)| EntryId { first, second }),
            repeats: false,
            logged: false,
            contents: known.as_ref().map(Contents::from_end).unwrap_or_default(),
            end,
        }
    }

    /// Keeps the notes on the stream for the next sink.
    pub(super) fn keep_end(&self) {
        *lock(&self.end) = self.contents.end(self.delivered);
    }

    /// Notes where the stream is. Another node may lack what the former one had.
    pub(super) fn place_at(&mut self, place: ServerSlot) {
        if self.place != place {
            self.contents.reconnected();
        }
        self.place = place;
    }

    /// Notes what the server has at `now`. Returns the delivered entries that it has lost.
    pub(super) fn found(&mut self, end: &Newest, now: Instant) -> Option<Lost> {
        self.newest = Some(end.id);
        let is_behind = self.delivered.take_if(|delivered| *delivered > end.id);
        // By this relay, or by one that ended before it had written the last of them.
        self.repeats |= end.is_repeat;
        let lost = self.contents.found(end, is_behind.is_some(), now);
        if lost.is_some() {
            self.keep_end();
        }
        lost
    }

    /// Notes that the stream does not exist any more. Returns the delivered entries that it had.
    pub(super) fn gone(&mut self) -> Option<Lost> {
        self.newest = None;
        self.delivered = None;
        let lost = self.contents.gone();
        self.keep_end();
        lost
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
    /// Has the notes of former sinks.
    stats: Arc<SinkStats>,
    numbers: HashMap<Box<str>, usize>,
    all: Vec<Stream>,
    /// Streams that are refused, and tried again.
    held: HashMap<Box<str>, Hold>,
}

/// The time for which a stream is not tried.
#[derive(Debug, Clone, Copy)]
pub(super) struct Hold {
    /// Since when it is refused.
    pub(super) since: Instant,
    pub(super) until: Instant,
    refusals: u32,
}

impl Streams {
    pub(super) fn new(stats: &Arc<SinkStats>) -> Self {
        Self {
            stats: Arc::clone(stats),
            ..Self::default()
        }
    }

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
        self.all
            .push(Stream::new(name, self.stats.ends.stream(name)));
        number
    }

    /// Notes that a stream is refused at `now`. It is not tried before a pause has passed.
    pub(super) fn hold(
        &mut self,
        number: usize,
        now: Instant,
        pauses: (Duration, Duration),
    ) -> Hold {
        let hold = self.held.entry(self.all[number].name.clone());
        let hold = hold.or_insert(Hold {
            since: now,
            until: now,
            refusals: 0,
        });
        hold.until = now + pause(pauses, hold.refusals);
        hold.refusals = hold.refusals.saturating_add(1);
        *hold
    }

    /// Notes that a stream is not tried again, or was not refused. Returns true if it was the last one
    /// that was held; `None` if it was not held.
    pub(super) fn release(&mut self, number: usize) -> Option<bool> {
        if self.held.is_empty() {
            return None;
        }
        self.held.remove(&self.all[number].name)?;
        Some(self.held.is_empty())
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

    /// Notes that the connections are new ones.
    pub(super) fn reconnected(&mut self) {
        self.forget_newest();
        for stream in &mut self.all {
            stream.contents.reconnected();
        }
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
    use walrelay_sink::Record;

    use super::*;

    #[test]
    fn repeated_streams_are_kept_when_there_are_too_many() {
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
        let is_lost = |stream: &mut Stream, first| {
            let end = Newest {
                id: id(first),
                exists: true,
                ..Newest::default()
            };
            stream.found(&end, Instant::now()).is_some()
        };
        assert!(!is_lost(stream, 7));
        stream.stored(Some(NewId::Explicit(id(8))));
        stream.stored(None);
        stream.contents.stored(&Record::default(), true);
        assert!(!is_lost(stream, 8));
        assert!(!is_lost(stream, 9), "another one writes");
        assert!(is_lost(stream, 7));
        assert!(!is_lost(stream, 7));
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
