use std::sync::Mutex;
use std::time::{Duration, Instant};

use rdkafka::ClientContext;
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::error::KafkaError as ClientError;
use rdkafka::producer::{BaseProducer, DeliveryResult, Producer, ProducerContext};
use rdkafka::types::RDKafkaErrorCode;

use crate::error::{is_alert, is_refusal, remedy};
use crate::sync::lock;
use crate::{KafkaConfig, KafkaError, tls};

const A_DAY: Duration = Duration::from_secs(24 * 60 * 60);
const LONGEST_PATIENCE: Duration = Duration::from_secs(8);
/// It comes with the metadata, or not at all.
const CLUSTER_ID_TIMEOUT: Duration = Duration::from_secs(1);

/// What a cluster said of itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClusterInfo {
    /// Its id, where the brokers tell one.
    pub cluster_id: Option<String>,
    /// `host:port` of each broker that is up, as the cluster advertises them.
    pub brokers: Vec<String>,
    /// Topics that this principal may see.
    pub topics: usize,
}

/// Asks the cluster for its metadata with the configuration of the producer.
///
/// **Blocks**, for `timeout` at most and a moment to take the client down. Returns as soon as a
/// broker refuses the credentials or TLS fails; while nobody can be reached it tries until the
/// time is over.
pub fn probe(config: &KafkaConfig, timeout: Duration) -> Result<ClusterInfo, KafkaError> {
    // The sum must not overflow.
    let deadline = Instant::now() + timeout.min(A_DAY);
    let producer: BaseProducer<Listener> = config
        .client_config()
        .create_with_context(Listener {
            heard: Mutex::default(),
            config: config.clone(),
        })
        .map_err(|error| KafkaError::of_creation(config, &error))?;
    config
        .authorise(producer.client())
        .map_err(|reason| KafkaError::Token { reason })?;
    // Short at first, to look at complaints early; then longer than any round trip.
    let mut patience = Duration::from_millis(250);
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let answer = producer.client().fetch_metadata(None, left.min(patience));
        patience = (patience * 2).min(LONGEST_PATIENCE);
        match answer {
            Ok(metadata) => {
                let left = deadline.saturating_duration_since(Instant::now());
                return Ok(ClusterInfo {
                    cluster_id: producer
                        .client()
                        .fetch_cluster_id(left.min(CLUSTER_ID_TIMEOUT)),
                    brokers: metadata
                        .brokers()
                        .iter()
                        .map(|b| format!("{}:{}", b.host(), b.port()))
                        .collect(),
                    topics: metadata.topics().len(),
                });
            }
            Err(error) => {
                // Hears the complaints, and waits: with no connection metadata fails at once.
                producer.poll(left.min(Duration::from_millis(100)));
                let heard = producer.context().heard();
                if let Some(certain) = heard.certain {
                    drop(producer);
                    return Err(certain.into_error(config));
                }
                if left.is_zero() {
                    let detail = heard.last.unwrap_or_else(|| error.to_string());
                    return Err(match (heard.handshake, heard.resolve) {
                        (Some(detail), _) => Certain::Tls(detail).into_error(config),
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

/// Keeps what the client complains of, for the error message.
struct Listener {
    heard: Mutex<Heard>,
    config: KafkaConfig,
}

#[derive(Debug, Default, Clone)]
struct Heard {
    certain: Option<Certain>,
    resolve: Option<String>,
    handshake: Option<String>,
    last: Option<String>,
}

/// Complaints that waiting does not cure.
#[derive(Debug, Clone)]
enum Certain {
    Authentication(String),
    Tls(String),
}

impl Certain {
    fn into_error(self, config: &KafkaConfig) -> KafkaError {
        match self {
            Self::Authentication(detail) => KafkaError::Authentication {
                detail: config.scrub(&detail),
                remedy: remedy(Some(RDKafkaErrorCode::Authentication), "", config),
            },
            Self::Tls(detail) => {
                let found = tls::verdict(config).map(|found| format!("; {found}"));
                let general = || remedy(Some(RDKafkaErrorCode::SSL), "", config).to_owned();
                KafkaError::Tls {
                    detail: config.scrub(&detail),
                    remedy: found.unwrap_or_else(general),
                }
            }
        }
    }
}

impl Listener {
    fn heard(&self) -> Heard {
        lock(&self.heard).clone()
    }
}

impl ClientContext for Listener {
    // The error that `probe` returns says it all.
    fn log(&self, _: RDKafkaLogLevel, facility: &str, message: &str) {
        let message = self.config.scrub(message);
        tracing::debug!(target: "librdkafka", facility, "{message}");
    }

    fn stats_raw(&self, _: &[u8]) {}

    fn error(&self, error: ClientError, reason: &str) {
        let mut heard = lock(&self.heard);
        match error.rdkafka_error_code() {
            code if is_refusal(code) => {
                heard.certain = Some(Certain::Authentication(reason.to_owned()));
            }
            Some(RDKafkaErrorCode::SSL) => heard.certain = Some(Certain::Tls(reason.to_owned())),
            _ if is_alert(reason) => heard.certain = Some(Certain::Tls(reason.to_owned())),
            Some(RDKafkaErrorCode::Resolve) => heard.resolve = Some(reason.to_owned()),
            // The other side hung up or answered with something else: most often a port that does
            // not speak TLS. May be a restart, so it is believed only at the end.
            _ if reason.contains("SSL_HANDSHAKE") => heard.handshake = Some(reason.to_owned()),
            // Says nothing that the one before it did not say better.
            Some(RDKafkaErrorCode::AllBrokersDown) => {}
            _ => heard.last = Some(reason.to_owned()),
        }
    }
}

impl ProducerContext for Listener {
    type DeliveryOpaque = ();

    fn delivery(&self, _: &DeliveryResult<'_>, (): ()) {}
}
