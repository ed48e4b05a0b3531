//! The range of the WAL that a relay leaves out after an error, and the words that repair it.

use std::fmt;

use walrelay_lsn::Lsn;

/// A range of the WAL whose events are not relayed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Gap {
    /// The last position known to be relayed.
    pub from: Option<Lsn>,
    /// The end of the server's WAL when the gap was found, or the start of the new slot.
    pub to: Option<Lsn>,
}

impl fmt::Display for Gap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.from {
            Some(from) => write!(f, "from {from} "),
            None => f.write_str("from the slot's last position, which is unknown, "),
        }?;
        match self.to {
            Some(to) => write!(f, "to {to}"),
            None => f.write_str("on"),
        }
    }
}

/// The remedy of a gap: how the relay goes on.
pub const GO_ON: &str = "run walrelay run --accept-gap once to go on";

/// The remedy of a gap: how its events are sent.
pub const PUBLISH: &str = "publish the rows of the gap by inserting them again";
