//! The moment of an inspection, which decides the meaning of a missing slot.

use walrelay_lsn::Lsn;

/// The moment of an inspection of the database. It decides what a missing or lost slot means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Moment {
    /// `walrelay init`: missing objects are to be created.
    Init,
    /// A process prints the events of a copy of the slot. Only a temporary slot may be created.
    Print,
    /// A relay starts.
    Start {
        /// The last position known to be relayed by an earlier process, from the state file.
        known: Option<Lsn>,
        /// The position that a relay has noted of the slot in this database.
        noted: Option<Lsn>,
        /// A gap is accepted (`--accept-gap`).
        accept_gap: bool,
    },
    /// The process has already streamed from the slot.
    Relayed {
        /// The position up to which it has relayed.
        upto: Lsn,
    },
}

impl Moment {
    /// Returns the last position known to be relayed.
    pub fn known(self) -> Option<Lsn> {
        match self {
            Moment::Init | Moment::Print => None,
            Moment::Start { known, .. } => known,
            Moment::Relayed { upto } => Some(upto),
        }
    }

    /// Returns the last position that a relay is known to have confirmed to the slot at most.
    pub(super) fn confirmed(self) -> Option<Lsn> {
        match self {
            Moment::Start { known, noted, .. } => known.or(noted),
            moment => moment.known(),
        }
    }

    /// Returns whether a gap is accepted.
    pub(super) fn accepts_gap(self) -> bool {
        matches!(self, Moment::Start { accept_gap, .. } if accept_gap)
    }
}
