//! Sends the records of a sink, on its own thread.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use hyper::StatusCode;
use tokio::task::JoinSet;
use tokio::time::sleep_until;
use walrelay_failure::Chain;
use walrelay_sink::{
    CertificateFault, Disposition, Endpoints, KeyQueues, Obstacle, OpenRequest, Poison, Record,
    RecordKind, micros_now,
};
use walrelay_sink_client::{FOREVER, Failure, Patience, pause};

use crate::address::Target;
use crate::answer::{Again, Fault, Outcome, clock_offset_by, to_outcome};
use crate::client::{Client, SendFailure};
use crate::config::HttpConfig;
use crate::connect::ConnectError;
use crate::request::request;

/// The state that a sink and its thread share.
pub(crate) type Shared = walrelay_sink_client::Shared<KeyQueues, Arc<HttpConfig>>;

pub(crate) struct Worker {
    shared: Arc<Shared>,
    patience: Patience,
    /// The patience with destinations that are unavailable; `None`: it has no end.
    outages: Option<Patience>,
    endpoints: Endpoints,
    client: Client,
    /// Why no further request is sent.
    stopped: Option<Failure>,
}

/// The end of an attempt.
struct Attempt {
    seq: u64,
    /// `None`: there is no such address, and nothing was sent.
    answered: Option<Answered>,
    outcome: Outcome,
}

/// The answer to an attempt that was sent, or its absence.
struct Answered {
    target: Target,
    /// The name of the server, by the target.
    server: String,
    /// What is wrong with the server's certificate.
    certificate: Option<CertificateFault>,
    /// The time until the answer; `None` if none came.
    taken: Option<Duration>,
    /// How far the server's clock is ahead, in seconds; `None` if it reported no time.
    clock_offset: Option<f64>,
    /// Ends when the attempt is counted.
    open: OpenRequest,
}

/// Returns the cause for which a record to this target is refused: the lane, the kind of record, and with
/// another fault than that of the address the key.
fn cause(target: &Target, record: &Record<'_>, fault: Fault) -> Vec<u8> {
    let mut bytes = target.lane().into_bytes();
    // A dead letter is refused for reasons of its own.
    bytes.push(u8::from(record.kind == RecordKind::DeadLetter));
    if fault != Fault::Address {
        bytes.push(0);
        bytes.extend_from_slice(record.key.unwrap_or_default());
    }
    bytes
}

impl Worker {
    pub(crate) fn new(shared: Arc<Shared>, patience: Patience, outages: Option<Patience>) -> Self {
        Self {
            endpoints: Endpoints::new(Arc::clone(&shared.stats)),
            client: Client::new(Arc::clone(&shared.settings)),
            shared,
            patience,
            outages,
            stopped: None,
        }
    }

    /// Sends records until the sink is to end. Returns why the records that are left have failed.
    pub(crate) async fn run(mut self) -> Failure {
        let mut attempts = JoinSet::new();
        let shared = Arc::clone(&self.shared);
        loop {
            if shared.is_over() {
                return Failure::closed();
            }
            // What is in flight may still succeed.
            if attempts.is_empty()
                && let Some(failure) = self.stopped.take()
            {
                return failure;
            }
            let next = self.start_attempts(&mut attempts);
            let closing = shared.state().closing;
            let next = next.into_iter().chain(closing).min();
            let next = next.unwrap_or_else(|| Instant::now() + FOREVER);
            tokio::select! {
                biased;
                Some(ended) = attempts.join_next() => match ended {
                    Ok(attempt) => self.finish(attempt),
                    Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
                    Err(_) => {}
                },
                () = shared.wake.notified() => {}
                () = sleep_until(next.into()) => {}
            }
        }
    }

    /// Starts as many attempts as may be in flight. Returns the time at which there is more to do,
    /// if it is known.
    fn start_attempts(&self, attempts: &mut JoinSet<Attempt>) -> Option<Instant> {
        if self.stopped.is_some() {
            return None;
        }
        let (now, config) = (Instant::now(), &self.shared.settings);
        let mut state = self.shared.state();
        while attempts.len() < config.max_in_flight as usize {
            let Some(queued) = state.records.next(now) else {
                return state.records.next_due();
            };
            let seq = queued.seq;
            let made = queued.record.with(|record| {
                let target = target(config, record)?;
                let request = request(record, &target, config, SystemTime::now());
                Ok::<_, String>((target, request))
            });
            let (client, stats) = (self.client.clone(), Arc::clone(&self.shared.stats));
            let has_proxy = config.proxy.is_some();
            attempts.spawn(async move {
                // The target was checked when the record was accepted.
                let (target, request) = match made {
                    Ok(made) => made,
                    Err(reason) => {
                        return Attempt {
                            seq,
                            answered: None,
                            outcome: unroutable(reason),
                        };
                    }
                };
                let server = target.to_string();
                let open = OpenRequest::new(&stats, &server);
                let (begun, before) = (Instant::now(), micros_now());
                let answer = client.send(&target, request).await;
                let clock_offset = answer
                    .as_ref()
                    .ok()
                    .and_then(|answer| clock_offset_by(&answer.headers, before, micros_now()));
                let connect = match &answer {
                    Err(SendFailure::Connect(error)) => Some(error),
                    _ => None,
                };
                let certificate = connect.and_then(ConnectError::certificate_fault);
                let taken = answer.is_ok().then(|| begun.elapsed());
                let outcome = outcome(answer, &target, has_proxy);
                Attempt {
                    seq,
                    answered: Some(Answered {
                        target,
                        server,
                        certificate,
                        taken,
                        clock_offset,
                        open,
                    }),
                    outcome,
                }
            });
        }
        None
    }

    fn finish(&mut self, attempt: Attempt) {
        let Attempt {
            seq,
            answered,
            outcome,
        } = attempt;
        let Some(answered) = answered else {
            if let Outcome::Refused { poison, reason, .. } = outcome {
                self.shared.refuse(seq, poison, reason);
            }
            return;
        };
        let server = &answered.server;
        // Before the lock: the relay waits for it when it offers a record.
        let again = matches!(outcome, Outcome::Again(_));
        self.endpoints.attempt(server, answered.taken, again);
        drop(answered.open);
        if let Some(offset) = answered.clock_offset {
            self.shared.stats.clocks.note(offset);
        }
        if !again {
            self.available(seq, &answered.target);
        }
        if let Some(fault) = &answered.certificate {
            self.endpoints.certificate_refused(fault);
        }
        match outcome {
            Outcome::Delivered => self.delivered(seq, &answered.target),
            Outcome::Again(again)
                if again.is_outage && self.is_unavailable_too_long(seq, &answered.target) =>
            {
                let refusal = (Poison::Rejected, Disposition::Configuration);
                // Its next event is tried alone, and not before the server wants it.
                let pause = again.retry_after.unwrap_or_default();
                let at = Instant::now() + pause.min(self.shared.settings.retry_after_max);
                self.shared.state().records.fail_lane(seq, at);
                let reason = format!(
                    "{server} has been unavailable for unavailable_for: {}",
                    again.what
                );
                self.shared.refuse_for(seq, refusal, reason);
            }
            Outcome::Again(again) => {
                let server_asks = again
                    .retry_after
                    .map(|after| after.min(self.shared.settings.retry_after_max));
                let obstacle = Obstacle {
                    what: format!("{server}: {}", again.what),
                    disposition: again.disposition,
                    remedy: Some(again.remedy),
                };
                self.send_again(seq, obstacle, server_asks, again.stops_lane);
            }
            Outcome::Refused {
                poison,
                reason,
                because_of,
            } => {
                let reason = format!("{server}: {reason}");
                if self.is_given_up(seq, &answered.target, because_of) {
                    let disposition = match because_of {
                        Fault::Address => Disposition::Configuration,
                        Fault::Event | Fault::Key => Disposition::Fatal,
                    };
                    self.shared.refuse_for(seq, (poison, disposition), reason);
                    return;
                }
                let obstacle = Obstacle {
                    what: format!("{reason} for an event, which is refused in the end"),
                    disposition: Disposition::Retryable,
                    remedy: Some("see the log of the server; then [poison] decides"),
                };
                self.send_again(seq, obstacle, None, because_of == Fault::Address);
            }
            Outcome::Stop(reason) => {
                self.stopped.get_or_insert_with(|| Failure {
                    class: "configuration",
                    reason: format!("{server}: {reason}"),
                    disposition: Disposition::Configuration,
                });
            }
        }
    }

    fn delivered(&self, seq: u64, target: &Target) {
        let done = self.shared.state().records.done(seq);
        if let Some(queued) = done {
            let of = |fault| queued.record.with(|record| cause(target, record, fault));
            if !self.patience.is_unused() {
                self.patience.forget(&of(Fault::Key));
                self.patience.forget(&of(Fault::Address));
            }
            self.shared.report(&queued, Ok(()));
        }
    }

    /// Notes that the destination of a record has answered, whatever it answered.
    fn available(&self, seq: u64, target: &Target) {
        let Some(outages) = self.outages.as_ref().filter(|outages| !outages.is_unused()) else {
            return;
        };
        if let Some((cause, _)) = self.cause_in_flight(seq, target, Fault::Address) {
            outages.forget(&cause);
        }
    }

    /// Notes that the destination of a record is unavailable. Returns true if its records are not sent again: the
    /// rows choose it, and nothing succeeded there for `unavailable_for`.
    fn is_unavailable_too_long(&self, seq: u64, target: &Target) -> bool {
        let Some(outages) = self.outages.as_ref().filter(|_| !target.is_constant) else {
            return false;
        };
        let now = Instant::now();
        // Nothing is kept of a dead letter that is given up.
        self.cause_in_flight(seq, target, Fault::Address)
            .is_some_and(|(cause, kind)| {
                kind != RecordKind::DeadLetter && outages.is_over(&cause, now, now)
            })
    }

    /// Returns the cause for which a record in flight would be refused, and the record's kind.
    fn cause_in_flight(
        &self,
        seq: u64,
        target: &Target,
        fault: Fault,
    ) -> Option<(Vec<u8>, RecordKind)> {
        let state = self.shared.state();
        let queued = state.records.in_flight(seq)?;
        let found = |record: &Record<'_>| (cause(target, record, fault), record.kind);
        Some(queued.record.with(found))
    }

    /// Notes that a record is refused. Returns true if it is not sent again.
    fn is_given_up(&self, seq: u64, target: &Target, fault: Fault) -> bool {
        if fault == Fault::Event {
            return true;
        }
        let now = Instant::now();
        let since = self.shared.state().records.refused_since(seq, now);
        let cause = self.cause_in_flight(seq, target, fault);
        since
            .zip(cause)
            .is_some_and(|(since, (cause, _))| self.patience.is_over(&cause, since, now))
    }

    /// Makes a record in flight be sent again after a pause, which grows with its refusals.
    /// `server_asks`: the pause that the server asks for. `stops_lane`: the destination is at fault.
    fn send_again(
        &self,
        seq: u64,
        obstacle: Obstacle,
        server_asks: Option<Duration>,
        stops_lane: bool,
    ) {
        let options = &self.shared.settings.options;
        let pauses = (options.backoff_initial, options.backoff_max);
        let now = Instant::now();
        let mut state = self.shared.state();
        let refusals = state.records.in_flight(seq).map_or(0, |it| it.refusals);
        let at = now + pause(pauses, refusals).max(server_asks.unwrap_or_default());
        if stops_lane || server_asks.is_some() {
            state.records.fail_lane(seq, at);
        }
        state.records.retry_at(seq, &obstacle.what, at);
        state.refusal = Some(obstacle);
    }
}

/// Returns where a record goes.
pub(crate) fn target(config: &HttpConfig, record: &Record<'_>) -> Result<Target, String> {
    match &config.dead_letter_url {
        Some(url) if record.kind == RecordKind::DeadLetter => url.target(record.topic),
        _ => config.url.target_of_row(record.topic, record.routing_key),
    }
}

fn unroutable(reason: String) -> Outcome {
    Outcome::Refused {
        poison: Poison::Unroutable,
        reason,
        because_of: Fault::Event,
    }
}

fn outcome(
    answered: Result<hyper::http::response::Parts, SendFailure>,
    target: &Target,
    has_proxy: bool,
) -> Outcome {
    let error = match answered {
        Ok(head) => {
            let after = head.headers.get(hyper::header::RETRY_AFTER);
            let after = after.and_then(|value| value.to_str().ok());
            let outcome = to_outcome(head.status, after, SystemTime::now());
            let is_of_proxy = head.status == StatusCode::PROXY_AUTHENTICATION_REQUIRED;
            return if target.is_constant || is_of_proxy {
                outcome
            } else {
                outcome.blaming_address()
            };
        }
        Err(error) => error,
    };
    let is_outage = !(has_proxy && matches!(error, SendFailure::Connect(_)));
    let connect = match &error {
        // As of a request that goes through a proxy without a tunnel.
        SendFailure::Connect(ConnectError::ProxyRefuses) => {
            return to_outcome(
                StatusCode::PROXY_AUTHENTICATION_REQUIRED,
                None,
                SystemTime::now(),
            );
        }
        SendFailure::Connect(private @ ConnectError::Private) => {
            return unroutable(private.to_string());
        }
        SendFailure::Connect(connect) if target.chosen && connect.is_of_host() => {
            return Outcome::Refused {
                poison: Poison::Unroutable,
                reason: connect.to_string(),
                because_of: Fault::Address,
            };
        }
        SendFailure::Connect(connect) => Some(connect),
        SendFailure::Broken(_) | SendFailure::TimedOut(_) => None,
    };
    Outcome::Again(Again {
        what: Chain(&error).to_string(),
        remedy: connect.map_or_else(|| remedy_without_answer(&error), ConnectError::remedy),
        disposition: if connect.is_some_and(ConnectError::is_configuration) {
            Disposition::Configuration
        } else {
            Disposition::Retryable
        },
        retry_after: None,
        stops_lane: !matches!(error, SendFailure::Broken(_)),
        is_outage,
    })
}

/// Returns the remedy for a request on a connection that was made.
fn remedy_without_answer(error: &SendFailure) -> &'static str {
    match error {
        SendFailure::Broken(error) if error.is_parse() => {
            "see which server answers at url in [sink.http]: its answer is not of HTTP, or has more than 100 header fields"
        }
        _ => "check that the server runs, and that it answers within timeout in [sink.http]",
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
