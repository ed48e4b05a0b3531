use std::collections::BTreeMap;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use rdkafka::ClientContext;
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::error::KafkaError as ClientError;
use rdkafka::producer::{BaseProducer, DeliveryResult, Producer, ProducerContext};
use rdkafka::types::RDKafkaErrorCode;
use serde::Deserialize;

use crate::error::{CLOSED_AT_ONCE, NO_ANSWER, TLS_REMEDY, is_alert, is_refusal, refusal_remedy};
use crate::sync::lock;
use crate::{KafkaConfig, KafkaError, tls};

const A_DAY: Duration = Duration::from_secs(24 * 60 * 60);
const MAX_REQUEST_TIMEOUT: Duration = Duration::from_secs(8);

/// A cluster's metadata.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClusterInfo {
    /// `host:port` of each broker that is up, as the cluster advertises them.
    pub brokers: Vec<String>,
    /// The number of topics that this principal may see.
    pub topics: usize,
}

/// Requests the cluster's metadata with the configuration of the producer.
///
/// **Blocks** for `timeout` at most, and a moment to close the client. Returns as soon as a broker
/// refuses the credentials or TLS fails; while no broker can be reached, it retries until
/// `timeout`.
pub fn probe(config: &KafkaConfig, timeout: Duration) -> Result<ClusterInfo, KafkaError> {
    // The sum must not overflow.
    let deadline = Instant::now() + timeout.min(A_DAY);
    let producer: BaseProducer<ErrorCollector> = config
        .client_config()
        .set("statistics.interval.ms", "200")
        .create_with_context(ErrorCollector {
            reported: Mutex::default(),
            config: config.clone(),
        })
        .map_err(|error| config.creation_error(&error))?;
    config
        .authorise(producer.client())
        .map_err(|reason| KafkaError::Token { reason })?;
    // Short at first, to check for errors early; then longer than any round trip.
    let mut request_timeout = Duration::from_millis(250);
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let answer = producer
            .client()
            .fetch_metadata(None, left.min(request_timeout));
        request_timeout = (request_timeout * 2).min(MAX_REQUEST_TIMEOUT);
        match answer {
            Ok(metadata) => {
                return Ok(ClusterInfo {
                    brokers: metadata
                        .brokers()
                        .iter()
                        .map(|b| format!("{}:{}", b.host(), b.port()))
                        .collect(),
                    topics: metadata.topics().len(),
                });
            }
            Err(error) => {
                // Serves the error callback, and waits: without a connection the metadata request
                // fails at once.
                producer.poll(left.min(Duration::from_millis(100)));
                let reported = producer.context().reported();
                if let Some(final_error) = reported.final_error {
                    drop(producer);
                    return Err(final_error.into_error(config));
                }
                if left.is_zero() {
                    // librdkafka tells nothing of a connection that is closed after it was made, and nothing
                    // of one on which no answer comes.
                    let no_broker = error.rdkafka_error_code()
                        == Some(RDKafkaErrorCode::BrokerTransportFailure);
                    let detail = reported.last.unwrap_or_else(|| match reported.disconnects {
                        _ if !no_broker => error.to_string(),
                        0 => format!("{NO_ANSWER} {} s", timeout.as_secs()),
                        _ => format!("{CLOSED_AT_ONCE}: {error}"),
                    });
                    return Err(match (reported.handshake, reported.resolve) {
                        (Some(detail), _) => FinalError::Tls(detail).into_error(config),
                        (None, Some(detail)) => KafkaError::Resolve {
                            detail: config.scrub(&detail),
                        },
                        (None, None) => KafkaError::Unreachable {
                            servers: config.bootstrap_servers().to_owned(),
                            detail: config.scrub(&detail),
                        },
                    });
                }
            }
        }
    }
}

/// Collects the errors that the client reports, for the error message.
struct ErrorCollector {
    reported: Mutex<ReportedErrors>,
    config: KafkaConfig,
}

#[derive(Debug, Default, Clone)]
struct ReportedErrors {
    final_error: Option<FinalError>,
    resolve: Option<String>,
    handshake: Option<String>,
    last: Option<String>,
    /// The number of connections that have ended.
    disconnects: u64,
}

/// The part of librdkafka's statistics that tells whether connections end.
#[derive(Deserialize)]
struct Connections {
    brokers: BTreeMap<String, Disconnects>,
}

#[derive(Deserialize)]
struct Disconnects {
    disconnects: u64,
}

/// An error that does not pass by waiting.
#[derive(Debug, Clone)]
enum FinalError {
    Authentication(String),
    Tls(String),
}

impl FinalError {
    fn into_error(self, config: &KafkaConfig) -> KafkaError {
        match self {
            Self::Authentication(detail) => KafkaError::Authentication {
                detail: config.scrub(&detail),
                remedy: refusal_remedy(config.uses_tokens()),
            },
            Self::Tls(detail) => {
                let found = tls::diagnose(config, None);
                KafkaError::Tls {
                    detail: config.scrub(&detail),
                    remedy: found.map_or_else(
                        || TLS_REMEDY.to_owned(),
                        |fault| format!("{fault}: {}", fault.remedy),
                    ),
                }
            }
        }
    }
}

impl ErrorCollector {
    fn reported(&self) -> ReportedErrors {
        lock(&self.reported).clone()
    }
}

impl ClientContext for ErrorCollector {
    // Debug only: `probe` returns the error.
    fn log(&self, _: RDKafkaLogLevel, facility: &str, message: &str) {
        let message = self.config.scrub(message);
        tracing::debug!(target: "librdkafka", facility, "{message}");
    }

    fn stats_raw(&self, document: &[u8]) {
        if let Ok(Connections { brokers }) = serde_json::from_slice(document) {
            let disconnects = brokers.values().map(|broker| broker.disconnects).sum();
            lock(&self.reported).disconnects = disconnects;
        }
    }

    fn error(&self, error: ClientError, reason: &str) {
        let mut reported = lock(&self.reported);
        match error.rdkafka_error_code() {
            code if is_refusal(code) => {
                reported.final_error = Some(FinalError::Authentication(reason.to_owned()));
            }
            code if code == Some(RDKafkaErrorCode::SSL) || is_alert(reason) => {
                reported.final_error = Some(FinalError::Tls(reason.to_owned()));
            }
            Some(RDKafkaErrorCode::Resolve) => reported.resolve = Some(reason.to_owned()),
            // The other side closed the connection or does not speak TLS; most often it is a port
            // without TLS. It may also be a restart, so it is reported only at the end.
            _ if reason.contains("SSL_HANDSHAKE") => reported.handshake = Some(reason.to_owned()),
            // Less specific than the error before it.
            Some(RDKafkaErrorCode::AllBrokersDown) => {}
            _ => reported.last = Some(reason.to_owned()),
        }
    }
}

impl ProducerContext for ErrorCollector {
    type DeliveryOpaque = ();

    fn delivery(&self, _: &DeliveryResult<'_>, (): ()) {}
}
