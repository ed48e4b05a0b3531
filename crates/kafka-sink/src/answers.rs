//! What librdkafka answers to the calls of `ffi`, as data.

use std::sync::Mutex;

use rdkafka::ClientContext;
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::error::KafkaError;
use rdkafka::types::RDKafkaErrorCode;

use crate::sync::lock;

/// The state of a topic, by a broker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TopicState {
    pub(crate) name: String,
    /// Why the broker does not describe it.
    pub(crate) error: Option<RDKafkaErrorCode>,
    /// Partitions without a leader.
    pub(crate) leaderless: Vec<i32>,
}

/// The rights of the client's principal on a topic, by a broker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TopicRights {
    pub(crate) name: String,
    /// Why the broker does not describe it.
    pub(crate) error: Option<RDKafkaErrorCode>,
    /// The principal may write records; `None` where the broker does not say.
    pub(crate) write: Option<bool>,
}

/// What verification found wrong with a certificate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Finding {
    /// The broker, as librdkafka names it.
    pub(crate) broker: String,
    /// OpenSSL's `X509_V_ERR_…`.
    pub(crate) error: i32,
    /// Zero is the broker's own certificate; above are those that it rests on.
    pub(crate) depth: i32,
}

/// The context of a client that only verifies certificates.
#[derive(Debug, Default)]
pub(crate) struct Findings(Mutex<Option<Finding>>);

impl Findings {
    /// The first finding, if there is one yet.
    pub(crate) fn first(&self) -> Option<Finding> {
        lock(&self.0).clone()
    }

    /// Keeps the first one.
    pub(crate) fn add(&self, finding: Finding) {
        lock(&self.0).get_or_insert(finding);
    }
}

impl ClientContext for Findings {
    fn log(&self, _: RDKafkaLogLevel, _: &str, _: &str) {}
    fn stats_raw(&self, _: &[u8]) {}
    fn error(&self, _: KafkaError, _: &str) {}
}
