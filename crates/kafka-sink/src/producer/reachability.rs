//! Whether any broker can be reached.
//!
//! librdkafka reports `ALL_BROKERS_DOWN` when its last connection ends. A broker that closes an idle
//! connection (`connections.max.idle.ms`) causes the same report as a broker that stops, and
//! librdkafka connects again only when a request is due, which may take minutes. So after a report
//! the poll thread requests a connection, and the brokers count as down if none is established
//! within [`LIMIT`]. The requests continue until there is a connection.

use std::sync::Mutex;
use std::time::{Duration, Instant};

use crate::sync::lock;

/// The time that connecting may take. Longer than a handshake of TLS and a login over a slow network.
pub(crate) const LIMIT: Duration = Duration::from_secs(2);

/// The connections of one client: none, since when, or at least one.
#[derive(Debug, Default)]
pub(crate) struct Reachability(Mutex<Option<Lost>>);

/// No connection is known.
#[derive(Debug)]
struct Lost {
    since: Instant,
    /// librdkafka's message; `None` after it was returned.
    reason: Option<String>,
}

impl Reachability {
    /// Notes that the last connection has ended.
    pub(crate) fn lost(&self, reason: String, now: Instant) {
        let reason = Some(reason);
        lock(&self.0).get_or_insert(Lost { since: now, reason });
    }

    /// Returns true if no connection was established since the last one ended.
    pub(crate) fn is_lost(&self) -> bool {
        lock(&self.0).is_some()
    }

    /// Notes that a connection is established.
    pub(crate) fn found(&self) {
        *lock(&self.0) = None;
    }

    /// Takes librdkafka's message, once, if the brokers count as down now.
    pub(crate) fn take_reason(&self, now: Instant) -> Option<String> {
        let mut lost = lock(&self.0);
        let lost = lost.as_mut().filter(|lost| now >= lost.since + LIMIT)?;
        lost.reason.take()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn brokers_are_down_once_connecting_has_failed_for_long() {
        let reachability = Reachability::default();
        let start = Instant::now();
        let reason = |now| reachability.take_reason(now);
        assert_eq!(reason(start + LIMIT), None);
        reachability.lost("1/1".to_owned(), start);
        // librdkafka may report it again.
        reachability.lost("2/2".to_owned(), start + LIMIT / 2);
        assert!(reachability.is_lost());
        assert_eq!(reason(start + LIMIT * 9 / 10), None);
        assert_eq!(reason(start + LIMIT).as_deref(), Some("1/1"));
        assert_eq!(reason(start + LIMIT * 2), None);
        assert!(reachability.is_lost());
        reachability.found();
        assert!(!reachability.is_lost());
        assert_eq!(reason(start + LIMIT * 3), None);
    }
}
