//! Sends the records of a sink, on a thread of its own.

use std::ops::ControlFlow;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime};

use hyper::StatusCode;
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::sleep_until;
use walrelay_sink::{
    CertificateFault, Chain, Deliveries, DeliveryError, Disposition, Endpoints, KeyQueues,
    Obstacle, OpenRequest, Poison, QueuedRecord, Record, RecordKind, SinkStats, Window, lock,
    micros_now,
};
use walrelay_sink_client::{RefusalClocks, RefusedRecord};

use crate::address::Target;
use crate::answer::{Again, Outcome, clock_offset_by, to_outcome};
use crate::client::{Client, SendFailure};
use crate::config::HttpConfig;
use crate::connect::ConnectError;
use crate::request::request;

/// The state that a sink and its thread share.
pub(crate) struct Shared {
    pub(crate) window: Window,
    pub(crate) state: Mutex<SharedState>,
    /// Notified when a record was queued, or the sink closes.
    pub(crate) wake: Notify,
    pub(crate) stats: Arc<SinkStats>,
}

pub(crate) struct SharedState {
    pub(crate) queues: KeyQueues,
    /// Records that are accepted and not reported.
    pub(crate) open: usize,
    /// The time at which the sink gives up; `None` while it is open.
    pub(crate) deadline: Option<Instant>,
    /// Why no further request is sent, and the sink accepts no record.
    pub(crate) stopped: Option<Stopped>,
    /// The reason why records wait, if they do.
    pub(crate) obstacle: Option<Obstacle>,
}

#[derive(Clone)]
pub(crate) struct Stopped {
    pub(crate) reason: String,
    pub(crate) disposition: Disposition,
}

pub(crate) struct Worker {
    pub(crate) config: Arc<HttpConfig>,
    pub(crate) shared: Arc<Shared>,
    pub(crate) deliveries: Arc<dyn Deliveries>,
    pub(crate) refused_since: RefusalClocks,
    endpoints: Endpoints,
    client: Client,
    /// The server of all events; `None` if each event chooses one.
    server: Option<String>,
    /// No request is sent before this time, which the server has asked for.
    paused_until: Option<Instant>,
    /// Refused records, reported when no request is in flight any more.
    failed: Vec<(QueuedRecord, DeliveryError)>,
}

/// The end of an attempt.
struct Attempt {
    seq: u64,
    server: String,
    /// What is wrong with the server's certificate.
    certificate: Option<CertificateFault>,
    /// The time until the answer; `None` if none came.
    taken: Option<Duration>,
    /// How far the server's clock is ahead, in seconds; `None` if it told no time.
    clock_offset: Option<f64>,
    outcome: Outcome,
    /// Ends when the attempt is counted. `None`: nothing was sent.
    open: Option<OpenRequest>,
}

impl Worker {
    pub(crate) fn new(
        config: Arc<HttpConfig>,
        shared: Arc<Shared>,
        deliveries: Arc<dyn Deliveries>,
        refused_since: RefusalClocks,
    ) -> Self {
        Self {
            endpoints: Endpoints::new(Arc::clone(&shared.stats)),
            client: Client::new(Arc::clone(&config)),
            server: config.url.server().map(|server| server.to_string()),
            config,
            shared,
            deliveries,
            refused_since,
            paused_until: None,
            failed: Vec::new(),
        }
    }

    /// Sends records until the sink is closed, and reports each of them.
    pub(crate) async fn run(mut self) {
        let mut attempts = JoinSet::new();
        while let ControlFlow::Continue(next_due) = self.start_attempts(&mut attempts) {
            let due = async {
                match next_due {
                    Some(at) => sleep_until(at.into()).await,
                    None => std::future::pending().await,
                }
            };
            let shared = Arc::clone(&self.shared);
            tokio::select! {
                biased;
                Some(ended) = attempts.join_next() => match ended {
                    Ok(attempt) => self.finish(attempt),
                    Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
                    Err(_) => {}
                },
                () = shared.wake.notified() => {}
                () = due => {}
            }
            if attempts.is_empty() {
                self.report_stop();
            }
        }
        drop(attempts);
        self.report_stop();
        self.give_up();
    }

    /// Starts as many attempts as may be in flight. Returns the time at which there is more to do,
    /// if it is known; breaks if the sink is to end.
    fn start_attempts(
        &mut self,
        attempts: &mut JoinSet<Attempt>,
    ) -> ControlFlow<(), Option<Instant>> {
        let now = Instant::now();
        let mut state = lock(&self.shared.state);
        if let Some(deadline) = state.deadline
            && (state.open == 0 || now >= deadline)
        {
            return ControlFlow::Break(());
        }
        let deadline = state.deadline;
        if state.stopped.is_some() {
            return ControlFlow::Continue(deadline);
        }
        let paused = self.paused_until.filter(|until| *until > now);
        if paused.is_some() {
            return ControlFlow::Continue(paused.into_iter().chain(deadline).min());
        }
        while attempts.len() < self.config.max_in_flight as usize {
            let Some(queued) = state.queues.next(now) else {
                break;
            };
            let seq = queued.seq;
            let made = queued.record.with(|record| {
                let target = target(&self.config, record)?;
                let request = request(record, &target, &self.config, SystemTime::now());
                Ok::<_, String>((target, request))
            });
            let (client, stats) = (self.client.clone(), Arc::clone(&self.shared.stats));
            attempts.spawn(async move {
                // The target was checked when the record was accepted.
                let (target, request) = match made {
                    Ok(made) => made,
                    Err(reason) => {
                        return Attempt {
                            seq,
                            server: String::new(),
                            certificate: None,
                            taken: None,
                            clock_offset: None,
                            outcome: refused(Poison::Unroutable, reason),
                            open: None,
                        };
                    }
                };
                let server = target.to_string();
                let open = Some(OpenRequest::new(&stats, &server));
                let (begun, before) = (Instant::now(), micros_now());
                let answered = client.send(&target, request).await;
                let clock_offset = answered
                    .as_ref()
                    .ok()
                    .and_then(|answer| clock_offset_by(&answer.headers, before, micros_now()));
                let connect = match &answered {
                    Err(SendFailure::Connect(error)) => Some(error),
                    _ => None,
                };
                Attempt {
                    seq,
                    certificate: connect.and_then(ConnectError::certificate_fault),
                    server,
                    taken: answered.is_ok().then(|| begun.elapsed()),
                    clock_offset,
                    outcome: outcome(answered, &target),
                    open,
                }
            });
        }
        let next_due = if attempts.len() < self.config.max_in_flight as usize {
            state.queues.next_due()
        } else {
            None
        };
        ControlFlow::Continue(next_due.into_iter().chain(deadline).min())
    }

    fn finish(&mut self, attempt: Attempt) {
        let Attempt {
            seq,
            server,
            certificate,
            taken,
            clock_offset,
            outcome,
            open,
        } = attempt;
        let now = Instant::now();
        let shared = Arc::clone(&self.shared);
        // Before the lock: the relay waits for it when it offers a record.
        if !server.is_empty() {
            let again = matches!(outcome, Outcome::Again(_));
            self.endpoints.attempt(&server, taken, again);
        }
        drop(open);
        if let Some(offset) = clock_offset {
            shared.stats.clocks.note(offset);
        }
        if let Some(fault) = &certificate {
            self.endpoints.certificate_refused(fault);
        }
        let mut state = lock(&shared.state);
        match outcome {
            Outcome::Delivered => {
                let Some(done) = state.queues.done(seq) else {
                    return;
                };
                state.open -= 1;
                if state.queues.blocked() == 0 {
                    state.obstacle = None;
                }
                drop(state);
                self.delivered(&done);
            }
            Outcome::Again(again) => {
                let after = again
                    .retry_after
                    .map(|after| after.min(self.config.retry_after_max));
                // The server limits the rate of all requests, not those of one key. Another one, of
                // dead letters or of an event's choice, limits only those to itself.
                if let Some(after) = after
                    && self.server.as_deref() == Some(&server)
                {
                    self.paused_until = self.paused_until.max(Some(now + after));
                }
                self.send_again(&mut state, seq, now, after);
                state.obstacle = Some(obstacle(&server, &again));
            }
            Outcome::Refused {
                poison,
                reason,
                certain,
            } => {
                let Some(queued) = state.queues.in_flight(seq) else {
                    return;
                };
                let refused = queued.record.with(RefusedRecord::new);
                let refused_for = self.refused_since.note(refused);
                if !certain && refused_for < self.config.options.retry_for {
                    self.send_again(&mut state, seq, now, None);
                    state.obstacle = Some(Obstacle {
                        what: format!(
                            "{server}: {reason} for an event, which is refused in the end"
                        ),
                        disposition: Disposition::Retryable,
                        remedy: Some(
                            "see the log of the server; [poison] decides what happens then",
                        ),
                    });
                    return;
                }
                state.stopped.get_or_insert_with(|| Stopped {
                    reason: "another event was refused".to_owned(),
                    disposition: Disposition::Retryable,
                });
                self.fail_later(state, seq, reason, Disposition::Fatal, Some(poison));
            }
            Outcome::Stop(reason) => {
                let reason = format!("{server}: {reason}");
                state.stopped = Some(Stopped {
                    reason: reason.clone(),
                    disposition: Disposition::Configuration,
                });
                self.fail_later(state, seq, reason, Disposition::Configuration, None);
            }
        }
    }

    /// Makes a record in flight be sent again after a pause, which grows with its refusals.
    fn send_again(&self, state: &mut SharedState, seq: u64, now: Instant, after: Option<Duration>) {
        let options = &self.config.options;
        let queued = state.queues.in_flight(seq);
        let refusals = queued.map_or(0, |queued| queued.refusals.min(30));
        let longest = options
            .backoff_initial
            .saturating_mul(1 << refusals)
            .min(options.backoff_max);
        // Between half and the whole, so that keys are not sent again all at once.
        let pause = longest.mul_f64(0.5 + fastrand::f64() / 2.0);
        state
            .queues
            .retry_at(seq, now + pause.max(after.unwrap_or_default()));
    }

    fn fail_later(
        &mut self,
        mut state: std::sync::MutexGuard<'_, SharedState>,
        seq: u64,
        reason: String,
        disposition: Disposition,
        poison: Option<Poison>,
    ) {
        if let Some(done) = state.queues.done(seq) {
            drop(state);
            let topic = done.record.with(|record| Arc::from(record.topic));
            let error = DeliveryError {
                topic,
                reason,
                disposition,
                poison,
            };
            self.failed.push((done, error));
        }
    }

    fn delivered(&self, done: &QueuedRecord) {
        done.record.with(|record| {
            let topic = self.shared.stats.topic(record.topic);
            topic.delivered.fetch_add(1, Relaxed);
            let bytes = record.payload_bytes() as u64;
            topic.delivered_bytes.fetch_add(bytes, Relaxed);
            if done.refusals > 0 {
                self.refused_since.forget(RefusedRecord::new(record));
            }
        });
        self.deliveries.delivered(done.seq);
        self.give_back(done.weight);
    }

    fn give_back(&self, weight: u64) {
        let waits = self.shared.window.give_back(weight);
        self.shared.window.update_stats(&self.shared.stats);
        if waits {
            self.deliveries.capacity();
        }
    }

    /// Reports the refused records after a stop, and then the others as given up.
    fn report_stop(&mut self) {
        let mut state = lock(&self.shared.state);
        let Some(stopped) = state.stopped.clone() else {
            return;
        };
        let others = state.queues.take_all();
        state.open -= others.len() + self.failed.len();
        drop(state);
        for (record, error) in std::mem::take(&mut self.failed) {
            self.fail(&record, error);
        }
        self.fail_all(others, &stopped.reason, stopped.disposition);
    }

    /// Reports all records that are left as given up. No record is accepted any more.
    fn give_up(&self) {
        let mut state = lock(&self.shared.state);
        let left = state.queues.take_all();
        state.open -= left.len();
        drop(state);
        let reason = "given up when the sink was closed";
        self.fail_all(left, reason, Disposition::Retryable);
    }

    fn fail_all(&self, records: Vec<QueuedRecord>, reason: &str, disposition: Disposition) {
        for record in records {
            let topic = record.record.with(|record| Arc::from(record.topic));
            let reason = reason.to_owned();
            let error = DeliveryError {
                topic,
                reason,
                disposition,
                poison: None,
            };
            self.fail(&record, error);
        }
    }

    fn fail(&self, record: &QueuedRecord, error: DeliveryError) {
        self.shared
            .stats
            .topic(&error.topic)
            .failed
            .fetch_add(1, Relaxed);
        let class = match (error.poison, error.disposition) {
            (Some(poison), _) => poison.name(),
            (None, Disposition::Configuration) => "configuration",
            (None, _) => "given up",
        };
        self.shared.stats.failed(class.to_owned());
        self.deliveries.failed(record.seq, error);
        self.give_back(record.weight);
    }
}

/// Returns where a record goes.
pub(crate) fn target(config: &HttpConfig, record: &Record<'_>) -> Result<Target, String> {
    match &config.dead_letter_url {
        Some(url) if record.kind == RecordKind::DeadLetter => url.target(record.topic),
        _ => config.url.target_of_row(record.topic, record.routing_key),
    }
}

fn refused(poison: Poison, reason: String) -> Outcome {
    Outcome::Refused {
        poison,
        reason,
        certain: true,
    }
}

fn outcome(
    answered: Result<hyper::http::response::Parts, SendFailure>,
    target: &Target,
) -> Outcome {
    let error = match answered {
        Ok(head) => {
            let after = head.headers.get(hyper::header::RETRY_AFTER);
            let after = after.and_then(|value| value.to_str().ok());
            return to_outcome(head.status, after, SystemTime::now());
        }
        Err(error) => error,
    };
    let connect = match &error {
        // The host belongs to this event.
        SendFailure::Connect(private @ ConnectError::Private) => {
            return refused(Poison::Unroutable, format!("{target}: {private}"));
        }
        // As of a request that goes through a proxy without a tunnel.
        SendFailure::Connect(ConnectError::ProxyRefuses) => {
            return to_outcome(
                StatusCode::PROXY_AUTHENTICATION_REQUIRED,
                None,
                SystemTime::now(),
            );
        }
        SendFailure::Connect(connect) => Some(connect),
        _ => None,
    };
    Outcome::Again(Again {
        what: Chain(&error).to_string(),
        remedy: connect.map_or(
            "check that the server runs, and that it answers within timeout in [sink.http]",
            ConnectError::remedy,
        ),
        disposition: if connect.is_some_and(ConnectError::is_configuration) {
            Disposition::Configuration
        } else {
            Disposition::Retryable
        },
        retry_after: None,
    })
}

fn obstacle(server: &str, again: &Again) -> Obstacle {
    Obstacle {
        what: format!("{server}: {}", again.what),
        disposition: again.disposition,
        remedy: Some(again.remedy),
    }
}

#[cfg(test)]
mod tests {
    use walrelay_sink::{Header, dlq_headers};

    use super::*;
    use crate::address::UrlTemplate;
    use crate::config::test_config;

    fn config() -> HttpConfig {
        let mut config = test_config("https://events/{topic}");
        config.dead_letter_url = Some(UrlTemplate::parse("https://dead-letters/").unwrap());
        config
    }

    #[test]
    fn a_row_does_not_make_its_event_a_dead_letter() {
        let headers = [Header {
            name: dlq_headers::CLASS,
            value: Some(b"parked"),
        }];
        let event = Record {
            topic: "dead",
            headers: &headers,
            ..Record::default()
        };
        let host = |record: &Record<'_>| target(&config(), record).unwrap().host;
        assert_eq!(&*host(&event), "events");
        let dead_letter = Record {
            kind: RecordKind::DeadLetter,
            ..event
        };
        assert_eq!(&*host(&dead_letter), "dead-letters");
    }
}
