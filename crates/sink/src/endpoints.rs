//! [`Endpoints`]: the figures of the servers that one sink uses.

use std::collections::VecDeque;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::stats::MAX_ENDPOINTS;
use crate::sync::lock;
use crate::{CertificateFault, ConnectFailure, EndpointStats, SinkStats};

/// The times of answers that figures are made of.
const KEPT: usize = 256;
/// The time without any answer after which the servers count as down.
const DOWN_AFTER: Duration = Duration::from_secs(2);

/// Figures of the servers, as one sink sees them. It reads the clock to know since when none has
/// answered.
#[derive(Debug)]
pub struct Endpoints {
    stats: Arc<SinkStats>,
    shown: Arc<Mutex<Vec<EndpointStats>>>,
    /// The times of recent answers, in seconds, of the servers in `shown`.
    times: Vec<VecDeque<f64>>,
    /// The first attempt since the last answer that got none.
    unanswered_since: Option<Instant>,
}

impl Endpoints {
    /// Creates figures of no server, which `stats` shows as long as they exist.
    pub fn new(stats: Arc<SinkStats>) -> Self {
        Self {
            shown: stats.client(),
            stats,
            times: Vec::new(),
            unanswered_since: None,
        }
    }

    /// Counts an attempt. `round_trip`: the time until the answer; `None` if none came. `again`: the
    /// attempt repeats one.
    pub fn attempt(&mut self, server: &str, round_trip: Option<Duration>, again: bool) {
        let Some(round_trip) = round_trip else {
            let now = Instant::now();
            let since = *self.unanswered_since.get_or_insert(now);
            if now.duration_since(since) >= DOWN_AFTER {
                self.stats.all_down.store(true, Relaxed);
            }
            self.show(server, EndpointStats::DOWN, again);
            return;
        };
        let Some(at) = self.answered(server, again) else {
            return;
        };
        let times = &mut self.times[at];
        if times.len() == KEPT {
            times.pop_front();
        }
        times.push_back(round_trip.as_secs_f64());
        let mut sorted: Vec<f64> = times.iter().copied().collect();
        sorted.sort_unstable_by(f64::total_cmp);
        let endpoint = &mut lock(&self.shown)[at];
        endpoint.rtt_mean = Some(sorted.iter().sum::<f64>() / sorted.len() as f64);
        endpoint.rtt_p99 = sorted.get(sorted.len() * 99 / 100).copied();
    }

    /// Notes why the certificate of a server was refused.
    pub fn certificate_refused(&self, fault: &CertificateFault) {
        self.stats.set_certificate_fault(Some(fault.clone()));
    }

    /// Notes why the servers cannot be connected to. The first answer forgets it.
    pub fn connect_failed(&self, failure: ConnectFailure) {
        *lock(&self.stats.connect_failure) = Some(failure);
    }

    /// Notes that a server accepts requests.
    pub fn connected(&mut self, server: &str) {
        self.answered(server, false);
    }

    /// Removes the figures of all servers but these.
    pub fn keep_only<'s>(&mut self, servers: impl IntoIterator<Item = &'s str>) {
        let servers: Vec<&str> = servers.into_iter().collect();
        let mut shown = lock(&self.shown);
        let mut kept = shown
            .iter()
            .map(|endpoint| servers.contains(&&*endpoint.name));
        self.times.retain(|_| kept.next() == Some(true));
        drop(kept);
        shown.retain(|endpoint| servers.contains(&&*endpoint.name));
    }

    fn answered(&mut self, server: &str, again: bool) -> Option<usize> {
        self.unanswered_since = None;
        self.stats.unanswered.answered(server, Instant::now());
        self.stats.all_down.store(false, Relaxed);
        self.stats.set_certificate_fault(None);
        *lock(&self.stats.connect_failure) = None;
        self.show(server, EndpointStats::UP, again)
    }

    /// Sets the state of a server. Returns its place; `None` if there are too many.
    fn show(&mut self, server: &str, state: &str, again: bool) -> Option<usize> {
        let mut shown = lock(&self.shown);
        let place = shown.iter().position(|endpoint| endpoint.name == server);
        let at = match place {
            Some(at) => at,
            None if shown.len() >= MAX_ENDPOINTS => return None,
            None => {
                shown.push(EndpointStats {
                    name: server.to_owned(),
                    ..EndpointStats::default()
                });
                self.times.push(VecDeque::new());
                shown.len() - 1
            }
        };
        let endpoint = &mut shown[at];
        state.clone_into(&mut endpoint.state);
        endpoint.retries += u64::from(again);
        Some(at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_answers_make_the_figures_and_a_lost_server_keeps_them() {
        let stats = Arc::new(SinkStats::default());
        let mut endpoints = Endpoints::new(Arc::clone(&stats));
        endpoints.connected("a:1");
        endpoints.attempt("b:2", None, false);
        for round_trip in [Duration::from_secs(9); 10]
            .into_iter()
            .chain([Duration::from_secs(1); KEPT])
        {
            endpoints.attempt("a:1", Some(round_trip), false);
        }
        endpoints.attempt("a:1", None, true);
        let shown = stats.endpoints();
        let of = |name: &str| {
            let endpoint = shown.iter().find(|endpoint| endpoint.name == name);
            endpoint.cloned().expect("it is shown")
        };
        let (a, b) = (of("a:1"), of("b:2"));
        assert_eq!(a.state, EndpointStats::DOWN);
        assert_eq!(
            (a.rtt_mean, a.rtt_p99, a.retries),
            (Some(1.0), Some(1.0), 1)
        );
        assert_eq!((b.state.as_str(), b.rtt_mean), (EndpointStats::DOWN, None));
        assert!(!stats.all_down.load(Relaxed), "not for two seconds yet");

        endpoints.keep_only(["b:2"]);
        endpoints.attempt("b:2", Some(Duration::from_secs(2)), false);
        let [b] = &*stats.endpoints() else {
            panic!("{:?}", stats.endpoints());
        };
        assert_eq!((b.name.as_str(), b.rtt_mean), ("b:2", Some(2.0)));
    }
}
