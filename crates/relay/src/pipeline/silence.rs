//! How long a connection may be silent before it is given up.

use std::time::Duration;

/// The limit grows up to this when connections are given up in a row.
const LONGEST: Duration = Duration::from_secs(30);

/// Silent connections since something moved.
///
/// A server may need longer than the limit for one step of its own, the commit of a transaction of a
/// million savepoints for example, and reply to nothing meanwhile. Every connection begins that step
/// anew: with a fixed limit the relay would never get beyond it. So the limit doubles with each silent
/// connection until a position is confirmed.
#[derive(Debug, Default)]
pub(crate) struct Silence {
    in_a_row: u32,
}

impl Silence {
    /// The limit, where `usual` holds as long as connections work.
    pub(crate) fn limit(&self, usual: Duration) -> Duration {
        let grown = usual.saturating_mul(1_u32.checked_shl(self.in_a_row).unwrap_or(u32::MAX));
        grown.min(usual.max(LONGEST))
    }

    /// A connection was given up.
    pub(crate) fn given_up(&mut self) {
        self.in_a_row = self.in_a_row.saturating_add(1);
    }

    /// A position was confirmed.
    pub(crate) fn moved(&mut self) {
        self.in_a_row = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_doubles_until_something_moves() {
        let seconds = Duration::from_secs;
        let mut silence = Silence::default();
        let mut limits = Vec::new();
        for _ in 0..40 {
            limits.push(silence.limit(seconds(5)));
            silence.given_up();
        }
        assert_eq!(limits[..5], [5, 10, 20, 30, 30].map(seconds));
        assert_eq!(limits[39], seconds(30));
        // A limit that is configured above the longest stays as it is.
        assert_eq!(silence.limit(seconds(60)), seconds(60));
        silence.moved();
        assert_eq!(silence.limit(seconds(5)), seconds(5));
    }
}
