//! What a search goes through: the transactions of the service, and how much of each fault there is.

use crate::database::{Event, Row};

/// Returns a row of a transaction. `refused_by`: bits of the relays whose destinations refuse its event.
pub(crate) const fn row(key: u8, payload: u8, refused_by: u8) -> Row {
    let age = 0;
    let event = Event { key, payload, age };
    Row { event, refused_by }
}

/// What others do to rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Change {
    /// An UPDATE of the age. As each UPDATE here, it sets `sent_at = NULL`: the new content is unsent.
    Age,
    /// An UPDATE of the key.
    Key,
    /// An UPDATE of the payload, such as by `INSERT … ON CONFLICT DO UPDATE`.
    Payload,
    Delete,
    /// A transaction inserts a key that the table does not have, with another payload and age.
    Insert,
    /// As `Insert`, with the age that the key had at first.
    InsertSame,
    /// A partition with a row is attached: no slot carries the row.
    Attach,
}

/// The extent of a search.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Scenario {
    /// The transactions of the service, in the order of the log.
    pub(crate) work: &'static [&'static [Row]],
    pub(crate) relays: usize,
    /// Rows are marked, not accounted.
    pub(crate) marks: bool,
    /// Rows of dead letters are marked as such.
    pub(crate) marks_dead: bool,
    /// SIGKILLs, lost connections and failed sinks.
    pub(crate) crashes: u8,
    /// Answers of statements that are lost, and servers that set the slot back.
    pub(crate) lost: u8,
    /// The statement of a killed relay may be executed later.
    pub(crate) late: bool,
    /// The changes by others, and how many there are.
    pub(crate) changes: (&'static [Change], u8),
    /// Changes of the row filter, and of the tables of the publication.
    pub(crate) ddl: u8,
    /// Moves of a slot by SQL.
    pub(crate) moves: u8,
    /// Snapshots of pruning. Two processes prune.
    pub(crate) prunes: u8,
}

impl Scenario {
    /// One relay that accounts rows, and nothing goes wrong.
    pub(crate) const fn new(work: &'static [&'static [Row]]) -> Self {
        Self {
            work,
            relays: 1,
            marks: false,
            marks_dead: false,
            crashes: 0,
            lost: 0,
            late: false,
            changes: (&[], 0),
            ddl: 0,
            moves: 0,
            prunes: 0,
        }
    }

    pub(crate) const fn relays(self, relays: usize) -> Self {
        Self { relays, ..self }
    }

    pub(crate) const fn marks(self) -> Self {
        let marks = true;
        Self { marks, ..self }
    }

    /// As [`marks`](Self::marks), and `mark_dead`.
    pub(crate) const fn marks_dead(self) -> Self {
        let (marks, marks_dead) = (true, true);
        Self {
            marks,
            marks_dead,
            ..self
        }
    }

    pub(crate) const fn crashes(self, crashes: u8) -> Self {
        Self { crashes, ..self }
    }

    pub(crate) const fn lost(self, lost: u8) -> Self {
        Self { lost, ..self }
    }

    pub(crate) const fn late(self) -> Self {
        let late = true;
        Self { late, ..self }
    }

    pub(crate) const fn changes(self, changes: &'static [Change], number: u8) -> Self {
        let changes = (changes, number);
        Self { changes, ..self }
    }

    pub(crate) const fn ddl(self, ddl: u8) -> Self {
        Self { ddl, ..self }
    }

    pub(crate) const fn moves(self, moves: u8) -> Self {
        Self { moves, ..self }
    }

    pub(crate) const fn prunes(self, prunes: u8) -> Self {
        Self { prunes, ..self }
    }
}
