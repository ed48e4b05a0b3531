//! The contents of a stream, as far as they are known, to see that it has lost entries.

use std::time::{Duration, Instant};

use walrelay_sink::{EventPosition, Loss, Record, RecordKind, StreamEnd};

use super::entry::{EntryId, Newest};

/// The contents of a stream, as far as a sink knows them.
///
/// # Losses
/// `XADD` with `NOMKSTREAM` shows that a stream is gone. The number of entries that were ever added falls
/// if a stream is restored, or made again by another client. Another server, after a failover, may lack
/// entries that no event was acknowledged for; so on a new connection the number alone decides nothing.
/// What a former process has kept is compared as over a new connection.
#[derive(Debug, Clone, Default)]
pub(super) struct Contents {
    /// The stream existed when it was written to, or looked at.
    exists: bool,
    /// When the server was asked.
    looked_at: Option<Instant>,
    /// The number of entries that were ever added, those that were appended since included.
    added: Option<u64>,
    /// The number of entries, those that were appended since included.
    length: u64,
    /// The first event.
    first: Option<EventPosition>,
    /// The highest position of an event that was delivered.
    last: Option<EventPosition>,
    /// The last delivered record was no event.
    is_of_dead_letters: bool,
    /// The connection is the one of the last look.
    is_same_connection: bool,
}

/// Entries that are gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Lost {
    entries: u64,
    from: EventPosition,
    to: EventPosition,
    is_of_dead_letters: bool,
}

impl Lost {
    /// Names the stream.
    pub(super) fn into_loss(self, stream: &str) -> Loss {
        let range = (self.from, self.to);
        let is_of_dead_letters = self.is_of_dead_letters;
        Loss::new(
            stream,
            Some(stream),
            self.entries,
            range,
            is_of_dead_letters,
        )
    }
}

impl Contents {
    /// Accepts a former sink's notes on the stream.
    pub(super) fn from_end(end: &StreamEnd) -> Self {
        Self {
            exists: true,
            looked_at: None,
            added: end.number,
            length: end.length,
            first: Some(end.first),
            last: Some(end.last),
            is_of_dead_letters: end.is_of_dead_letters,
            is_same_connection: false,
        }
    }

    /// Returns the notes for the next sink on the stream; the default if nothing can be lost. `id`: the
    /// highest one that was delivered.
    pub(super) fn end(&self, id: Option<EntryId>) -> StreamEnd {
        let Some(last) = self.last else {
            return StreamEnd::default();
        };
        StreamEnd {
            number: self.added,
            id: id.map(|id| (id.first, id.second)),
            length: self.length,
            first: self.first.unwrap_or(last),
            last,
            is_of_dead_letters: self.is_of_dead_letters,
        }
    }

    /// Returns true if the stream is known to exist.
    pub(super) fn exists(&self) -> bool {
        self.exists
    }

    /// Returns true if something was delivered that can be lost.
    pub(super) fn has_delivered(&self) -> bool {
        self.last.is_some()
    }

    /// Returns true if the last look is too long ago.
    pub(super) fn is_due(&self, now: Instant, interval: Duration) -> bool {
        let looked_at = self.looked_at;
        looked_at.is_none_or(|at| now.saturating_duration_since(at) >= interval)
    }

    /// Notes that the next look is over another connection.
    pub(super) fn reconnected(&mut self) {
        self.is_same_connection = false;
    }

    /// Notes that the server does not say what the stream has.
    pub(super) fn not_told(&mut self, now: Instant) {
        self.looked_at = Some(now);
    }

    /// Notes what the server has. `is_behind`: its newest id is below one that was delivered. Returns the
    /// delivered entries that it lacks.
    pub(super) fn found(&mut self, end: &Newest, is_behind: bool, now: Instant) -> Option<Lost> {
        let fewer = self.added.zip(end.added);
        let fewer = fewer.map_or(0, |(known, added)| known.saturating_sub(added));
        // The last entry is of an earlier event: those behind it are gone, or else any may be.
        let remaining = end.last.filter(|position| Some(*position) < self.last);
        let is_lost = is_behind
            || !end.exists
            || (fewer > 0 && (self.is_same_connection || remaining.is_some()));
        let lost = is_lost.then(|| self.lost(fewer, remaining)).flatten();
        *self = Self {
            exists: end.exists,
            looked_at: Some(now),
            added: end.added,
            length: end.length,
            first: end.first,
            last: self.last,
            is_of_dead_letters: self.is_of_dead_letters,
            is_same_connection: true,
        };
        lost
    }

    /// Notes that the stream does not exist any more. Returns the delivered entries that it had.
    pub(super) fn gone(&mut self) -> Option<Lost> {
        let lost = self.lost(self.length, None);
        *self = Self::default();
        lost
    }

    fn lost(&mut self, entries: u64, remaining: Option<EventPosition>) -> Option<Lost> {
        let to = self.last.take()?;
        Some(Lost {
            entries: entries.min(self.length).max(1),
            from: remaining.or(self.first).unwrap_or(to).min(to),
            to,
            is_of_dead_letters: self.is_of_dead_letters,
        })
    }

    /// Notes that a record is delivered. `is_new`: its entry was appended just now.
    pub(super) fn stored(&mut self, record: &Record<'_>, is_new: bool) {
        let position = record.position;
        self.exists = true;
        if is_new {
            self.added = self.added.map(|added| added.saturating_add(1));
            self.length = self.length.saturating_add(1);
        }
        let is_of_others = self.last.is_none() || self.is_of_dead_letters;
        self.is_of_dead_letters = is_of_others && record.kind != RecordKind::Event;
        self.first = Some(self.first.map_or(position, |first| first.min(position)));
        self.last = self.last.max(Some(position));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn position(row: u64) -> EventPosition {
        EventPosition::in_first_epoch(1, row)
    }

    /// Returns contents after a look and these new entries.
    fn with(end: &Newest, rows: std::ops::Range<u64>) -> Contents {
        let mut contents = Contents::default();
        assert_eq!(contents.found(end, false, Instant::now()), None);
        for row in rows {
            let record = Record {
                position: position(row),
                ..Record::default()
            };
            contents.stored(&record, true);
        }
        contents
    }

    /// Returns the end of a stream that has the entries of these rows, of `added` that it ever had.
    fn end(added: u64, rows: std::ops::RangeInclusive<u64>) -> Newest {
        Newest {
            exists: true,
            added: Some(added),
            length: rows.end() + 1 - rows.start(),
            first: Some(position(*rows.start())),
            last: Some(position(*rows.end())),
            ..Newest::default()
        }
    }

    fn lost(entries: u64, from: u64, to: u64) -> Lost {
        Lost {
            entries,
            from: position(from),
            to: position(to),
            is_of_dead_letters: false,
        }
    }

    #[test]
    fn a_stream_that_is_gone_has_lost_all_that_it_had() {
        let mut contents = with(&end(9, 3..=4), 5..8);
        assert!(contents.exists());
        assert_eq!(contents.gone(), Some(lost(5, 3, 7)));
        assert_eq!(contents.gone(), None, "once");
        assert!(!contents.exists());
        let mut contents = with(&Newest::missing(), 5..8);
        assert_eq!(
            contents.found(&Newest::missing(), false, Instant::now()),
            Some(lost(3, 5, 7))
        );
        // Nothing of it was delivered by this process.
        assert_eq!(with(&end(9, 3..=4), 0..0).gone(), None);
    }

    #[test]
    fn consumers_that_delete_entries_and_others_that_write_lose_nothing() {
        let now = Instant::now();
        let mut contents = with(&end(9, 3..=4), 5..8);
        // Another writer has added two, and a consumer has deleted all but one.
        assert_eq!(contents.found(&end(14, 7..=7), false, now), None);
        let empty = Newest {
            length: 0,
            first: None,
            last: None,
            ..end(14, 0..=0)
        };
        assert_eq!(contents.found(&empty, false, now), None);
        // A server that does not count.
        let uncounted = Newest {
            added: None,
            ..end(0, 7..=7)
        };
        assert_eq!(contents.found(&uncounted, false, now), None);
    }

    #[test]
    fn a_count_that_falls_is_a_loss_though_the_stream_has_the_last_event() {
        let now = Instant::now();
        // Restored from a copy of 6 entries, and written to before it was looked at again.
        let mut contents = with(&end(9, 1..=4), 5..9);
        assert_eq!(
            contents.found(&end(7, 1..=8), false, now),
            Some(lost(6, 1, 8))
        );
        assert_eq!(contents.found(&end(7, 1..=8), false, now), None, "once");
        let mut contents = with(&end(9, 1..=4), 5..9);
        contents.reconnected();
        assert_eq!(
            contents.found(&end(7, 1..=8), false, now),
            None,
            "another server may lack what was not acknowledged"
        );
    }

    #[test]
    fn a_server_without_the_tail_has_lost_what_follows_its_last_event() {
        let now = Instant::now();
        for is_behind in [false, true] {
            let mut contents = with(&end(9, 1..=4), 5..9);
            contents.reconnected();
            let found = contents.found(&end(11, 1..=6), is_behind, now);
            assert_eq!(found, Some(lost(2, 6, 8)), "{is_behind}");
        }
    }

    #[test]
    fn a_look_is_due_after_its_interval() {
        let (now, interval) = (Instant::now(), Duration::from_secs(5));
        let mut contents = Contents::default();
        assert!(contents.is_due(now, interval));
        contents.not_told(now);
        assert!(!contents.is_due(now, interval));
        assert!(contents.is_due(now + interval, interval));
    }
}
