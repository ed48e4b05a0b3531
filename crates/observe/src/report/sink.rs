//! The destination of a report: its servers, and the risks and losses that were seen there.

use serde::{Deserialize, Serialize};
use walrelay_sink::Loss;

/// The servers of a sink, of any kind.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct SinkReport {
    /// `sink.kind`.
    pub kind: String,
    /// The kind as texts name it.
    pub title: String,
    /// The kind's term for one of `endpoints`.
    pub endpoint_term: String,
    /// The kind's term for `unavailable`, in the plural.
    pub unavailable_term: String,
    /// The configured servers; `null` where the sink has none.
    pub servers: Option<String>,
    /// Whether no endpoint could be reached at the last attempts, or none has answered what is in
    /// flight for five seconds.
    pub all_down: bool,
    /// Why the certificate of an endpoint was refused lately; `null` if none was.
    #[serde(default)]
    pub certificate_fault: Option<String>,
    /// What to do about it.
    #[serde(default)]
    pub certificate_remedy: Option<String>,
    /// Why the last attempt to connect failed; `null` if a server has answered since, or if the sink does
    /// not say.
    #[serde(default)]
    pub failure: Option<SinkFailureReport>,
    /// How far the clock of a server is ahead of this machine's, at least; negative if it is behind. Of
    /// several the greatest of about a minute. `null` if none has told its time lately: brokers of Kafka
    /// do, for topics with `message.timestamp.type=LogAppendTime`, and receivers over HTTP, by `Date`.
    #[serde(default)]
    pub clock_offset_seconds: Option<f64>,
    /// The servers that this process has known.
    pub endpoints: Vec<EndpointReport>,
    /// The number of destinations in use that take no record at the moment.
    pub unavailable_count: u64,
    /// The first 20 of them.
    pub unavailable: Vec<String>,
    /// Settings by which the servers may lose what they have acknowledged, as of the last look.
    #[serde(default)]
    pub risks: Vec<SinkRiskReport>,
    /// The number of acknowledged entries that the destination has lost, as far as it was seen since the
    /// start.
    #[serde(default)]
    pub lost_events: u64,
    /// These losses: five, and further ones as one.
    #[serde(default)]
    pub losses: Vec<LossReport>,
    /// The number of events larger than 80 % of the destination's limit; 0 where the relay knows no limit.
    #[serde(default)]
    pub events_near_limit: u64,
    /// The largest of these events in the last quarter of an hour; `null` if there was none.
    #[serde(default)]
    pub near_limit: Option<NearLimitReport>,
}

/// An event that is almost larger than the destination accepts.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct NearLimitReport {
    /// The topic of the event.
    pub topic: String,
    /// The bytes of the event that count for the limit.
    pub bytes: u64,
    /// The limit: `message.max.bytes`, `max_message_size`, or the server's own if it is smaller.
    pub limit_bytes: u64,
}

/// A setting by which a server may lose what it has acknowledged.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct SinkRiskReport {
    /// Whether `walrelay check` fails because of it; otherwise it warns.
    pub fails: bool,
    pub finding: String,
    pub remedy: Option<String>,
}

/// The reason why no server of a sink can be used, in the words of `walrelay check`.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct SinkFailureReport {
    /// The id of the failure, as the table of error ids has it.
    pub id: String,
    /// Whether something must be changed: a login, a port, TLS. `false`: no server can be reached.
    pub needs_change: bool,
    pub what: String,
    /// The error with its causes, and the id.
    pub cause: String,
    pub remedy: String,
}

/// Events that the destination had acknowledged and has lost.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct LossReport {
    /// The stream; `*` for further ones.
    pub stream: String,
    /// The number of lost entries, as far as it is known; 1 at least.
    pub events: u64,
    /// The first event that may be lost: the start of its commit record and the number of its row.
    pub from: String,
    /// The last event that may be lost.
    pub to: String,
    /// When the loss was seen.
    pub seen_ms: u64,
    /// Stream, number and range in words.
    pub text: String,
    /// The command that sends the events of the range again.
    pub remedy: String,
}

impl LossReport {
    /// Makes the report of a loss. `epoch`: that of the server which the relay reads.
    pub fn new(loss: &Loss, epoch: u8) -> Self {
        Self {
            stream: loss.place.clone(),
            events: loss.events,
            from: loss.from.to_string(),
            to: loss.to.to_string(),
            seen_ms: loss.seen_ms,
            text: loss.text(),
            remedy: loss.remedy(epoch),
        }
    }
}

/// The brokers of Kafka: [`SinkReport`] by the names of Kafka.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct KafkaReport {
    pub bootstrap_servers: String,
    /// Whether no broker could be reached at the last attempt, or none has answered what is in
    /// flight for five seconds.
    pub all_down: bool,
    /// The brokers that this process has known: a broker that has left the cluster stays, as
    /// `DOWN`.
    pub brokers: Vec<EndpointReport>,
    /// The number of partitions in use that have no leader.
    #[serde(default)]
    pub leaderless_partitions: u64,
    /// The first 20 of them, as `topic [partition]`.
    #[serde(default)]
    pub leaderless: Vec<String>,
}

/// One server of a sink, as the sink's client sees it.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct EndpointReport {
    /// The name without credentials: `host:port/id` of a broker.
    pub name: String,
    /// The state as the sink's client names it; `UP` if requests can be sent, `NO_ANSWER` if none
    /// was answered for five seconds.
    pub state: String,
    /// Mean round-trip time of requests in milliseconds; `null` without a recent request.
    pub rtt_avg_ms: Option<f64>,
    /// 99th percentile of the round-trip time of requests in milliseconds.
    pub rtt_p99_ms: Option<f64>,
    /// Records that wait for a request, or for its answer.
    pub queued: u64,
    /// Requests that the sink's client sent again.
    pub retries: u64,
}
