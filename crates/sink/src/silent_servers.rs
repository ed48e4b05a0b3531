//! [`Unanswered`]: the servers that answer none of the records in flight to them.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use crate::sync::lock;

/// The time without any answer to what is in flight after which a server counts as one that does not
/// answer.
pub const ANSWER_LIMIT: Duration = Duration::from_secs(5);

/// The servers to which requests are in flight, by name.
#[derive(Debug, Default)]
pub(crate) struct Unanswered(Mutex<BTreeMap<Box<str>, InFlight>>);

#[derive(Debug)]
struct InFlight {
    requests: usize,
    /// The time since which a request is in flight, or of the last answer if that is later.
    since: Instant,
}

impl Unanswered {
    /// Notes that something is in flight to a server.
    pub(crate) fn sent(&self, server: &str, now: Instant) {
        let mut servers = lock(&self.0);
        let new = InFlight {
            requests: 0,
            since: now,
        };
        servers.entry(server.into()).or_insert(new).requests += 1;
    }

    /// Notes an answer of a server.
    pub(crate) fn answered(&self, server: &str, now: Instant) {
        if let Some(in_flight) = lock(&self.0).get_mut(server) {
            in_flight.since = now;
        }
    }

    /// Notes that one of those is not in flight any more.
    pub(crate) fn ended(&self, server: &str) {
        let mut servers = lock(&self.0);
        if let Some(in_flight) = servers.get_mut(server) {
            in_flight.requests -= 1;
            if in_flight.requests == 0 {
                servers.remove(server);
            }
        }
    }

    /// Returns the servers that have answered nothing for [`ANSWER_LIMIT`].
    pub(crate) fn overdue(&self, now: Instant) -> Vec<Box<str>> {
        let servers = lock(&self.0);
        let overdue = servers
            .iter()
            .filter(|(_, in_flight)| now >= in_flight.since + ANSWER_LIMIT);
        overdue.map(|(server, _)| server.clone()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn any_answer_counts_for_all_that_is_in_flight_to_its_server() {
        let (start, unanswered) = (Instant::now(), Unanswered::default());
        let overdue = |seconds| unanswered.overdue(start + SECOND * seconds);
        unanswered.answered("a:1", start);
        assert!(overdue(100).is_empty(), "nothing is in flight");
        unanswered.sent("a:1", start);
        unanswered.sent("a:1", start + SECOND * 3);
        unanswered.sent("b:2", start + SECOND * 3);
        assert!(overdue(4).is_empty());
        assert_eq!(overdue(5), ["a:1".into()]);
        assert_eq!(overdue(8), ["a:1".into(), "b:2".into()]);
        unanswered.answered("a:1", start + SECOND * 7);
        unanswered.ended("a:1");
        assert_eq!(overdue(11), ["b:2".into()]);
        assert_eq!(overdue(12), ["a:1".into(), "b:2".into()]);
        unanswered.ended("a:1");
        unanswered.ended("b:2");
        assert!(overdue(100).is_empty());
        // A later request begins anew.
        unanswered.sent("a:1", start + SECOND * 100);
        assert!(overdue(104).is_empty());
    }
}
