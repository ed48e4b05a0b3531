//! The clocks of other machines, compared with this machine's.

use std::sync::Mutex;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::sync::lock;

/// The time for which the greatest offset stands for those of all servers.
const GREATEST_COUNTS_FOR: Duration = Duration::from_secs(60);
/// The time after which an offset is not known any more.
const KNOWN_FOR: Duration = Duration::from_secs(600);

/// Returns the time in seconds by which a server's clock is ahead of this machine's, at least. The
/// server read its clock between `before` and `after` by this machine's clock (microseconds).
pub fn clock_offset(before: i64, server: i64, after: i64) -> f64 {
    // The nearest moment at which the server can have read it.
    let nearest = server.clamp(before.min(after), after.max(before));
    server.saturating_sub(nearest) as f64 / 1e6
}

/// Reads the wall clock in microseconds since 1970.
pub fn micros_now() -> i64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    i64::try_from(now.unwrap_or_default().as_micros()).unwrap_or(i64::MAX)
}

/// The offset of the clocks of a sink's servers: the greatest one of about a minute.
#[derive(Debug, Default)]
pub struct ServerClocks(Mutex<Option<(f64, Instant)>>);

impl ServerClocks {
    /// Notes how far the clock of a server is ahead, in seconds; negative if it is behind.
    pub fn note(&self, offset: f64) {
        let mut greatest_offset = lock(&self.0);
        let stays = greatest_offset.is_some_and(|(greatest, at)| {
            greatest.abs() > offset.abs() && at.elapsed() < GREATEST_COUNTS_FOR
        });
        if !stays {
            *greatest_offset = Some((offset, Instant::now()));
        }
    }

    /// Returns the offset; `None` if no server has reported its time lately.
    pub fn offset(&self) -> Option<f64> {
        let (offset, at) = (*lock(&self.0))?;
        (at.elapsed() < KNOWN_FOR).then_some(offset)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_is_apart_only_beyond_the_time_of_the_query() {
        for (before, server, after, offset) in [
            (0, 500_000, 1_000_000, 0.0),
            (0, 0, 0, 0.0),
            (0, 3_000_000, 1_000_000, 2.0),
            (5_000_000, 3_000_000, 6_000_000, -2.0),
            // This machine's clock was set back meanwhile.
            (2_000_000, 500_000, 1_000_000, -0.5),
        ] {
            let difference: f64 = clock_offset(before, server, after) - offset;
            assert!(difference.abs() < 1e-9, "{before} {server} {after}");
        }
    }

    #[test]
    fn the_server_whose_clock_is_furthest_apart_is_the_one_that_counts() {
        let clocks = ServerClocks::default();
        assert_eq!(clocks.offset(), None);
        for (offset, expected) in [(0.0, 0.0), (-3.0, -3.0), (2.0, -3.0), (4.0, 4.0)] {
            clocks.note(offset);
            assert_eq!(clocks.offset(), Some(expected));
        }
    }
}
