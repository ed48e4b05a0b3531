//! Results of the calls of `ffi`, as plain data.

use std::sync::Mutex;

use rdkafka::ClientContext;
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::error::KafkaError;
use rdkafka::types::RDKafkaErrorCode;

use crate::sync::lock;

/// The state of a topic, as a broker reports it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TopicState {
    pub(crate) name: String,
    /// The reason why the broker does not describe the topic.
    pub(crate) error: Option<RDKafkaErrorCode>,
    /// Partitions without a leader.
    pub(crate) leaderless: Vec<i32>,
}

/// The id of a topic, as the two halves of a UUID. A topic that is deleted and made anew has another
/// one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TopicId(pub(crate) i64, pub(crate) i64);

/// The rights of the client's principal on a topic, as a broker reports them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TopicRights {
    pub(crate) name: String,
    /// The reason why the broker does not describe the topic.
    pub(crate) error: Option<RDKafkaErrorCode>,
    /// The principal's right to write records; `None` if the broker does not report it.
    pub(crate) write: Option<bool>,
}

/// A certificate that failed verification.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Finding {
    /// The broker's name in librdkafka.
    pub(crate) broker: String,
    /// OpenSSL's `X509_V_ERR_…`.
    pub(crate) error: i32,
    /// 0 is the broker's own certificate; greater numbers are its issuers.
    pub(crate) depth: i32,
}

/// The context of a client that only verifies certificates.
#[derive(Debug, Default)]
pub(crate) struct Findings(Mutex<Option<Finding>>);

impl Findings {
    pub(crate) fn first(&self) -> Option<Finding> {
        lock(&self.0).clone()
    }

    /// Keeps the finding if it is the first.
    pub(crate) fn add(&self, finding: Finding) {
        lock(&self.0).get_or_insert(finding);
    }
}

impl ClientContext for Findings {
    fn log(&self, _: RDKafkaLogLevel, _: &str, _: &str) {}
    fn stats_raw(&self, _: &[u8]) {}
    fn error(&self, _: KafkaError, _: &str) {}
}
