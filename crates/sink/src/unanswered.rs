//! [`Unanswered`]: the servers that answer nothing of what is in flight to them.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::SinkStats;
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
    fn sent(&self, server: &str, now: Instant) {
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

    fn ended(&self, server: &str) {
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

/// One request, or several, in flight to a server. Dropping it notes that nothing is awaited any more.
///
/// [`Endpoints::attempt`](crate::Endpoints::attempt) with an answer counts for all that is in flight to
/// the server. It decides what is shown of the server, and nothing else.
#[derive(Debug)]
pub struct OpenRequest {
    stats: Arc<SinkStats>,
    server: Box<str>,
}

impl OpenRequest {
    /// Notes that something was sent to a server, or is about to be.
    pub fn new(stats: &Arc<SinkStats>, server: &str) -> Self {
        stats.unanswered.sent(server, Instant::now());
        Self {
            stats: Arc::clone(stats),
            server: server.into(),
        }
    }

    /// Notes an answer, or another sign of the server, that [`Endpoints`](crate::Endpoints) is not told
    /// of.
    pub fn answered(&self) {
        self.stats.unanswered.answered(&self.server, Instant::now());
    }
}

impl Drop for OpenRequest {
    fn drop(&mut self) {
        // What is sent next is not answered more than this was.
        self.stats.keep_down();
        self.stats.unanswered.ended(&self.server);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering::Relaxed;

    use super::*;
    use crate::{EndpointStats, Endpoints};

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

    #[test]
    fn a_silent_server_is_shown_at_once_and_until_one_answers() {
        let stats = Arc::new(SinkStats::default());
        let mut endpoints = Endpoints::new(Arc::clone(&stats));
        endpoints.connected("a:1");
        let past = Instant::now().checked_sub(ANSWER_LIMIT).unwrap();
        let silent = |server: &str| {
            let request = OpenRequest::new(&stats, server);
            stats.unanswered.answered(server, past);
            request
        };
        let states = || {
            let shown = stats.endpoints().into_iter();
            let shown = shown.map(|endpoint| format!("{} {}", endpoint.name, endpoint.state));
            shown.collect::<Vec<_>>()
        };
        // It is not known to the client yet, and another server answers.
        let unknown = silent("b:2");
        assert_eq!(states(), ["a:1 UP", "b:2 NO_ANSWER"]);
        assert!(!stats.is_down());
        drop(unknown);
        assert_eq!(states(), ["a:1 UP"]);
        assert!(!stats.is_down());

        let request = silent("a:1");
        assert_eq!(states(), ["a:1 NO_ANSWER"]);
        assert!(stats.is_down());
        let what = stats.silence().map(|obstacle| obstacle.what);
        assert_eq!(what.as_deref(), Some("a:1: nothing was answered for 5 s"));
        // The client gives up, and tries again.
        endpoints.attempt("a:1", None, false);
        drop(request);
        let request = OpenRequest::new(&stats, "a:1");
        assert_eq!(states(), ["a:1 DOWN"]);
        assert!(stats.is_down());
        endpoints.attempt("a:1", Some(SECOND), true);
        drop(request);
        assert_eq!(states(), ["a:1 UP"]);
        assert!(!stats.is_down() && !stats.all_down.load(Relaxed));

        // An answer that comes late ends it.
        let request = silent("a:1");
        assert!(stats.is_down());
        endpoints.attempt("a:1", Some(ANSWER_LIMIT), false);
        assert!(!stats.is_down());
        drop(request);
        assert_eq!(stats.endpoints()[0].state, EndpointStats::UP);
    }
}
