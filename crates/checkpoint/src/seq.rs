use std::fmt;

/// The sequence number of a record: from 0, in the order of sending, never used twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Seq(u64);

impl Seq {
    /// Creates the sequence number of the record with this number.
    pub const fn new(number: u64) -> Self {
        Self(number)
    }

    /// Returns the record's number.
    pub const fn get(self) -> u64 {
        self.0
    }
}

impl fmt::Display for Seq {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}
