//! [`OpenRequest`]: the records in flight to a server.

use std::sync::Arc;
use std::time::Instant;

use crate::SinkStats;

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

    /// Keeps one request in flight as long as an answer is due, and none otherwise.
    pub fn keep(open: &mut Option<Self>, is_due: bool, stats: &Arc<SinkStats>, server: &str) {
        if !is_due {
            *open = None;
        } else if open.is_none() {
            *open = Some(Self::new(stats, server));
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
    use std::time::Duration;

    use super::*;
    use crate::{ANSWER_LIMIT, EndpointStats, Endpoints};

    const SECOND: Duration = Duration::from_secs(1);

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
