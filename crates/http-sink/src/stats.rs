//! [`Endpoints`]: the figures of the servers that requests go to.

use std::collections::VecDeque;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use walrelay_sink::{EndpointStats, SinkStats, lock};

/// The servers with figures of their own.
const MAX_SERVERS: usize = 100;
/// The times of answers that figures are made of.
const KEPT: usize = 256;
/// The time without any answer after which the servers count as down.
const DOWN_AFTER: Duration = Duration::from_secs(2);

/// Figures of the servers, as one sink sees them.
pub(crate) struct Endpoints {
    stats: Arc<SinkStats>,
    shown: Arc<Mutex<Vec<EndpointStats>>>,
    /// The times of recent answers, in seconds, of the servers in `shown`.
    times: Vec<VecDeque<f64>>,
    /// The first attempt since the last answer that got none.
    unanswered_since: Option<Instant>,
}

impl Endpoints {
    pub(crate) fn new(stats: Arc<SinkStats>) -> Self {
        Self {
            shown: stats.client(),
            stats,
            times: Vec::new(),
            unanswered_since: None,
        }
    }

    /// Counts an attempt. `taken`: the time until the answer; `None` if none came.
    pub(crate) fn attempt(&mut self, server: &str, taken: Option<Duration>, again: bool) {
        if taken.is_some() {
            self.unanswered_since = None;
            self.stats.all_down.store(false, Relaxed);
        } else {
            let now = Instant::now();
            let since = *self.unanswered_since.get_or_insert(now);
            if now.duration_since(since) >= DOWN_AFTER {
                self.stats.all_down.store(true, Relaxed);
            }
        }
        let mut shown = lock(&self.shown);
        let known = shown.iter().position(|endpoint| endpoint.name == server);
        let at = match known {
            Some(at) => at,
            None if shown.len() >= MAX_SERVERS => return,
            None => {
                shown.push(EndpointStats {
                    name: server.to_owned(),
                    ..EndpointStats::default()
                });
                self.times.push(VecDeque::new());
                shown.len() - 1
            }
        };
        let (endpoint, times) = (&mut shown[at], &mut self.times[at]);
        endpoint.retries += u64::from(again);
        let Some(taken) = taken else {
            EndpointStats::DOWN.clone_into(&mut endpoint.state);
            return;
        };
        EndpointStats::UP.clone_into(&mut endpoint.state);
        if times.len() == KEPT {
            times.pop_front();
        }
        times.push_back(taken.as_secs_f64());
        endpoint.rtt_mean = Some(times.iter().sum::<f64>() / times.len() as f64);
        let mut sorted: Vec<f64> = times.iter().copied().collect();
        sorted.sort_unstable_by(f64::total_cmp);
        endpoint.rtt_p99 = sorted.get(sorted.len() * 99 / 100).copied();
    }
}
