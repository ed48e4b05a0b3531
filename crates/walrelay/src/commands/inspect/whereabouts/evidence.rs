//! The evidence about an event, and the answer that follows from it. No I/O.
//!
//! Only evidence decides: a position beyond the event, or a row without a mark, says nothing of its delivery.

use walrelay_sink::EventPosition;

use super::store::{DeadLetter, Topic, Topics};
use crate::commands::inspect::behind_slot::Log;

/// A row of the event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Row {
    /// The event's id, as log and records have it.
    pub(super) id: String,
    /// The ten minutes of the account to which it belongs.
    pub(super) bucket: Option<i64>,
    pub(super) at_ms: Option<i64>,
    /// `None`: rows are not marked.
    pub(super) is_marked: Option<bool>,
    pub(super) is_to_be_marked: bool,
}

/// A table that was looked at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Table {
    pub(super) name: String,
    /// The rows; `None`: the table or the column of the id does not exist. Or why it was not read.
    pub(super) look: Result<Option<Vec<Row>>, String>,
}

impl Table {
    pub(super) fn rows(&self) -> impl Iterator<Item = &Row> {
        self.look.iter().flatten().flatten()
    }
}

/// The state of the running relay.
#[derive(Debug, Clone, PartialEq, Default)]
pub(super) struct Relay {
    pub(super) state: String,
    /// The worst problem.
    pub(super) problem: Option<String>,
    /// The position up to which it has read.
    pub(super) received: Option<u64>,
    /// The event that holds up the confirmed position.
    pub(super) first_in_flight: Option<String>,
    /// The destination's answer to the event, and the seconds until the next attempt, while it is sent again.
    pub(super) refused: Option<(String, Option<f64>)>,
    /// Destinations that accept no record.
    pub(super) unavailable: Vec<String>,
}

/// The evidence of all places.
#[derive(Debug)]
pub(super) struct Evidence {
    /// The sink's kind as texts name it.
    pub(super) sink: &'static str,
    pub(super) tables: Vec<Table>,
    /// Why the row cannot be routed.
    pub(super) unroutable: Option<String>,
    pub(super) log: Result<Log, String>,
    pub(super) relay: Result<Relay, String>,
    /// The rows of the ten minutes of the event's row are exactly those that were accounted as sent. `None`: no
    /// account is kept, or there is no row with a time.
    pub(super) accounted: Option<Result<bool, String>>,
    /// `None`: the sink keeps no dead letters.
    pub(super) dead_letters: Result<Option<Vec<DeadLetter>>, String>,
    pub(super) topics: Result<Topics, String>,
}

impl Default for Evidence {
    fn default() -> Self {
        let unknown = || "not looked at".to_owned();
        Self {
            sink: "",
            tables: Vec::new(),
            unroutable: None,
            log: Err(unknown()),
            relay: Err(unknown()),
            accounted: None,
            dead_letters: Err(unknown()),
            topics: Err(unknown()),
        }
    }
}

/// The answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Answer {
    /// A topic has its record.
    Delivered,
    /// It is an open dead letter.
    DeadLetter,
    /// The relay has read it, and the destination has not acknowledged it.
    WaitsForSink,
    /// It is committed, and the slot has not confirmed it.
    BehindSlot,
    /// Its dead letter was sent again.
    Redriven,
    /// Its dead letter was dropped: it is not to be sent.
    Dropped,
    /// Its row has the mark that the relay makes after the acknowledgement.
    Marked,
    /// Its row counts as sent by the account of `[prune]`.
    Accounted,
    /// Nothing shows that it was sent or will be.
    NoEvidence,
}

impl Answer {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Delivered => "delivered",
            Self::DeadLetter => "dead-letter",
            Self::WaitsForSink => "waits-for-sink",
            Self::BehindSlot => "behind-slot",
            Self::Redriven => "redriven",
            Self::Dropped => "dropped",
            Self::Marked => "marked",
            Self::Accounted => "accounted",
            Self::NoEvidence => "no-evidence",
        }
    }
}

impl Evidence {
    pub(super) fn answer(&self) -> Answer {
        let dead_letters = || self.dead_letters.iter().flatten().flatten();
        let has_outcome = |name| dead_letters().any(|one| one.outcome == Some(name));
        if self.record().is_some() {
            Answer::Delivered
        } else if dead_letters().any(|one| one.outcome.is_none()) {
            Answer::DeadLetter
        } else if self.position().is_some() {
            if self.is_read_by_relay() {
                Answer::WaitsForSink
            } else {
                Answer::BehindSlot
            }
        } else if has_outcome(walrelay_sink::dlq_headers::REDRIVEN) {
            Answer::Redriven
        } else if has_outcome(walrelay_sink::dlq_headers::DROPPED) {
            Answer::Dropped
        } else if self.rows().any(Row::is_acknowledged) {
            Answer::Marked
        } else if self.accounted == Some(Ok(true)) {
            Answer::Accounted
        } else {
            Answer::NoEvidence
        }
    }

    pub(super) fn rows(&self) -> impl Iterator<Item = &Row> {
        self.tables.iter().flat_map(Table::rows)
    }

    /// Returns true if each table was read, and none has the event.
    pub(super) fn is_in_no_table(&self) -> bool {
        let has_none = |table: &Table| matches!(&table.look, Ok(Some(rows)) if rows.is_empty());
        !self.tables.is_empty() && self.tables.iter().all(has_none)
    }

    /// Returns a topic that has the event's record.
    pub(super) fn record(&self) -> Option<&Topic> {
        let topics = self.topics.iter().flatten();
        let mut topics = topics.filter_map(|(_, topic)| topic.as_ref().ok());
        topics.find(|topic| topic.record.is_some())
    }

    /// Returns the event's position behind that of the slot.
    pub(super) fn position(&self) -> Option<EventPosition> {
        let log = self.log.as_ref().ok()?;
        Some(log.seen.first()?.position)
    }

    /// Returns true if the running relay has read the event.
    pub(super) fn is_read_by_relay(&self) -> bool {
        let received = self.relay.as_ref().ok().and_then(|relay| relay.received);
        let refused = self
            .relay
            .as_ref()
            .is_ok_and(|relay| relay.refused.is_some());
        let position = self.position().map(|position| position.lsn);
        refused || position.zip(received).is_some_and(|(at, read)| read > at)
    }
}

impl Row {
    fn is_acknowledged(&self) -> bool {
        self.is_marked == Some(true) || self.is_to_be_marked
    }
}
