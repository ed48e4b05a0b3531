//! The callbacks of librdkafka: logs, statistics, errors, tokens and delivery reports.

use std::sync::Arc;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::time::{Duration, Instant};

use rdkafka::ClientContext;
use rdkafka::client::OAuthToken;
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::error::KafkaError as ClientError;
use rdkafka::message::{BorrowedMessage, DeliveryResult, Message};
use rdkafka::producer::{NoCustomPartitioner, ProducerContext};
use rdkafka::types::RDKafkaErrorCode;
use walrelay_sink::{DeliveryError, Disposition};

use super::report::{is_acknowledged, is_fresh, payload_of_message, weight_of_message};
use super::{Context, Throttled};
use crate::client_log;
use crate::error::{is_refusal, remedy};
use crate::ffi;
use crate::outcome::delivery_error;
use crate::producer::statistics;
use crate::sync::lock;

/// The time for which a throttle time is remembered after its end: the next response follows, and the next
/// statistics show its throttle time.
const THROTTLE_GRACE: Duration = Duration::from_secs(2);

impl ClientContext for Context {
    const ENABLE_REFRESH_OAUTH_TOKEN: bool = true;

    /// Makes a token, on the poll thread, as all events are handled.
    fn generate_oauth_token(
        &self,
        _: Option<&str>,
    ) -> Result<OAuthToken, Box<dyn std::error::Error>> {
        let token = self.config.oauth_token(self.throttle());
        if self.tokenless.swap(token.is_err(), SeqCst) && token.is_ok() {
            tracing::info!("there is an OAUTHBEARER token again");
        }
        token
    }

    fn log(&self, level: RDKafkaLogLevel, facility: &str, message: &str) {
        let message = self.config.scrub(message);
        if self.shared.closing() || client_log::is_also_an_error(level, facility) {
            tracing::debug!(target: "librdkafka", facility, "{message}");
            return;
        }
        client_log::line(self.throttle(), level, facility, &message);
    }

    /// Reads the statistics; implemented also for sinks without metrics, because rdkafka's default
    /// parses and prints each document.
    fn stats_raw(&self, document: &[u8]) {
        match statistics::figures(document) {
            Ok(figures) => {
                let now = Instant::now();
                if let Some((broker, time)) = figures.throttled {
                    *lock(&self.throttled) = Some(Throttled {
                        broker,
                        time,
                        until: now + time + THROTTLE_GRACE,
                    });
                }
                *lock(&self.leaderless) = figures.leaderless;
                self.note_brokers(figures.brokers, now);
                // Once a second, for connections that carry no record yet.
                self.reset_connections();
            }
            Err(error) => tracing::debug!(%error, "librdkafka's statistics cannot be read"),
        }
    }

    fn error(&self, error: ClientError, reason: &str) {
        if self.shared.closing() {
            return;
        }
        let code = error.rdkafka_error_code();
        // Only if all brokers are down: with one broker down records still flow, and the message
        // "again" would be logged often.
        if code == Some(RDKafkaErrorCode::AllBrokersDown) {
            self.reachability
                .lost(self.config.scrub(reason), Instant::now());
            return;
        }
        // `oauth_token` has logged it; librdkafka repeats it.
        if reason.contains("Failed to acquire SASL OAUTHBEARER token") {
            return;
        }
        if matches!(
            code,
            Some(RDKafkaErrorCode::BrokerTransportFailure | RDKafkaErrorCode::Resolve)
        ) {
            let reason = self.config.scrub(reason);
            let bootstrap = self.config.bootstrap_servers();
            self.advertised.failed(&reason, bootstrap, Instant::now());
        }
        // librdkafka could not start the thread of a broker, and does not try again: this producer
        // would never send to that broker.
        if code == Some(RDKafkaErrorCode::CriticalSystemResource) {
            self.shared.break_off();
        }
        if is_refusal(code) {
            self.refused.store(true, SeqCst);
        }
        let remedy = remedy(code, reason, self.config.uses_tokens());
        if let Some(remedy) = remedy {
            *lock(&self.remedy) = Some((remedy, Instant::now()));
        }
        // rdkafka calls this twice for each error event; the throttle suppresses the second call.
        let kind = code.map_or_else(|| "error".to_owned(), |code| format!("{code:?}"));
        if let Some(suppressed) = self.throttle().pass(&kind) {
            let reason = self.config.scrub(reason);
            tracing::warn!(
                kind,
                suppressed = suppressed.shown(),
                remedy,
                "Kafka: {reason}"
            );
            if code == Some(RDKafkaErrorCode::SSL) {
                crate::tls::note_diagnosis(&self.config, &reason, &self.shared.stats);
            }
        }
    }
}

impl ProducerContext<NoCustomPartitioner> for Context {
    /// The sequence number.
    type DeliveryOpaque = usize;

    fn delivery(&self, result: &DeliveryResult<'_>, seq: usize) {
        let seq = seq as u64;
        let mut retry = false;
        self.reported.store(true, Relaxed);
        let message = match result {
            Ok(message) if is_acknowledged(message) => {
                self.delivered(seq);
                self.count(message, None);
                // Only an acknowledged record may open a partition: none may follow a failed one.
                let now = Instant::now();
                self.clock
                    .acknowledged(message, now, &self.shared.stats.clocks);
                if let Some(topic) = ffi::topic_of(message) {
                    let fresh = is_fresh(message);
                    if !fresh {
                        self.shared.set_stale();
                    }
                    retry = topic.delivered(seq, message.partition(), fresh, now);
                }
                message
            }
            Ok(message) => {
                if !self.shared.broken() {
                    tracing::error!(
                        topic = message.topic(),
                        "librdkafka only infers that a record was delivered; the producer must be \
                         rebuilt"
                    );
                }
                let error = DeliveryError {
                    topic: Arc::from(message.topic()),
                    reason: "acknowledged only by inference: sent again".to_owned(),
                    disposition: Disposition::Retryable,
                    poison: None,
                };
                self.shared.failed(seq, error);
                self.count(message, Some("Inferred".to_owned()));
                message
            }
            Err((error, message)) => {
                let code = error.rdkafka_error_code().unwrap_or(RDKafkaErrorCode::Fail);
                let error = self.batch_refusal(message, code);
                let mut error = error.unwrap_or_else(|| delivery_error(message.topic(), code));
                if matches!(
                    code,
                    RDKafkaErrorCode::PurgeQueue | RDKafkaErrorCode::PurgeInflight
                ) {
                    self.explain(&mut error);
                }
                self.shared.failed(seq, error);
                self.count(message, Some(format!("{code:?}")));
                message
            }
        };
        if self.shared.window.give_back(weight_of_message(message)) || retry {
            self.shared.wake_sender();
        }
    }
}

impl Context {
    /// Counts a report by topic and outcome. `failure`: the class of a failure.
    fn count(&self, message: &BorrowedMessage<'_>, failure: Option<String>) {
        let name = message.topic();
        let mut last = lock(&self.last_topic);
        let topic = match &mut *last {
            Some((last, topic)) if **last == *name => topic,
            other => {
                &mut other
                    .insert((Box::from(name), self.shared.stats.topic(name)))
                    .1
            }
        };
        let Some(class) = failure else {
            topic.delivered.fetch_add(1, Relaxed);
            let bytes = payload_of_message(message) as u64;
            topic.delivered_bytes.fetch_add(bytes, Relaxed);
            return;
        };
        topic.failed.fetch_add(1, Relaxed);
        self.shared.stats.failed(class);
    }

    /// Returns the error of a record whose batch was refused for its size although the record
    /// itself may be small enough: later producers make smaller batches. `None`: another refusal,
    /// or the record was alone in its batch, or `batch.size` is low already; then the relay sends
    /// the records one by one.
    fn batch_refusal(
        &self,
        message: &BorrowedMessage<'_>,
        code: RDKafkaErrorCode,
    ) -> Option<DeliveryError> {
        use RDKafkaErrorCode::{MessageBatchTooLarge, MessageSizeTooLarge};
        // The last record of a batch is the only one in flight, too, but others failed before it. That the
        // sink is broken says less: librdkafka may tell that its series has a gap before it reports the
        // record.
        let only = || !self.shared.has_failed() && self.shared.window.in_flight() == 1;
        if !matches!(code, MessageSizeTooLarge | MessageBatchTooLarge)
            || payload_of_message(message) >= self.batch_size
            || only()
        {
            return None;
        }
        let refused = self.batch_size;
        let lower = self.config.lower_batch_size(refused)?;
        Some(DeliveryError {
            topic: Arc::from(message.topic()),
            reason: format!(
                "{code}; the records are sent again with batch.size = {lower} instead of {refused}: set \
                 batch.size below max.message.bytes and segment.bytes of the topic, or raise those"
            ),
            disposition: Disposition::Retryable,
            poison: None,
        })
    }

    fn delivered(&self, seq: u64) {
        self.shared.delivered(seq);
        if self.all_down.load(SeqCst) && self.all_down.swap(false, SeqCst) {
            self.shared.stats.all_down.store(false, Relaxed);
            self.shared.stats.set_certificate_fault(None);
            tracing::info!("Kafka accepts records again");
            self.throttle().forget();
        }
    }
}
