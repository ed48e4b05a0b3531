//! What a relay shows of itself: the document of `/api/status`, from which the metrics are made, too.
//!
//! No row value, no key and no secret is in it. Times are milliseconds since 1970, durations are in the unit that
//! their name ends with, `null` is "not known".

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// The document of `/api/status`.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct StatusReport {
    pub(crate) version: String,
    pub(crate) now_ms: u64,
    pub(crate) started_ms: u64,
    pub(crate) pipeline: PipelineReport,
    /// The relay streams, and the pipeline has reported lately.
    pub(crate) ready: bool,
    /// Why it is not ready.
    pub(crate) not_ready: Option<String>,
    pub(crate) source: SourceReport,
    /// `null` where no snapshot is configured.
    #[serde(default)]
    pub(crate) snapshot: Option<SnapshotReport>,
    /// As the server said last; `null` before the first answer, and while the slot does not exist.
    pub(crate) slot: Option<SlotReport>,
    /// The rolling bookmark of `[retention]`; `null` where this relay keeps none.
    #[serde(default)]
    pub(crate) bookmark: Option<BookmarkReport>,
    /// Why the server did not say anything of the slot the last time.
    pub(crate) slot_error: Option<String>,
    pub(crate) delivery: DeliveryReport,
    pub(crate) latency: LatencyReport,
    pub(crate) dead_letters: DeadLetterReport,
    /// `null` where the sink is not Kafka.
    pub(crate) kafka: Option<KafkaReport>,
    /// `null` where no schema registry is configured.
    pub(crate) registry: Option<RegistryReport>,
    pub(crate) process: ProcessReport,
    /// Warnings and errors of the log, the newest first.
    pub(crate) errors: Vec<ErrorReport>,
    /// The effective configuration without secrets, as key and value. Not in the events.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) config: Vec<(String, String)>,
    /// The last whole second, in events only: a row of `/api/history`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) sample: Option<Sample>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct PipelineReport {
    pub(crate) slot: String,
    /// One of [`STATES`].
    pub(crate) state: String,
    /// Why, where the state has a reason.
    pub(crate) reason: Option<String>,
    /// Since when it has been in this state.
    pub(crate) since_ms: u64,
}

/// The states of a pipeline.
pub(crate) const STATES: [&str; 9] = [
    "connecting",
    "snapshot",
    "streaming",
    "blocked",
    "waiting-for-schema",
    "waiting-for-slot",
    "retrying",
    "draining",
    "halted",
];

#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct SourceReport {
    /// The connection string without its secrets.
    pub(crate) server: String,
    pub(crate) publication: String,
    pub(crate) tables: Vec<String>,
    /// The highest position received.
    pub(crate) received_lsn: Option<String>,
    /// What may be confirmed in the slot.
    pub(crate) confirmed_lsn: Option<String>,
    /// The end of the server's log, as the server said last.
    pub(crate) server_lsn: Option<String>,
    /// From the confirmed position to the end of the server's log.
    pub(crate) lag_bytes: Option<u64>,
    /// How old the oldest commit is that is not acknowledged; 0 where everything is. It grows as well while the
    /// relay has no connection, and while its pipeline stands still.
    pub(crate) lag_seconds: f64,
    /// Attempts that failed, by cause.
    pub(crate) reconnects: BTreeMap<String, u64>,
    /// Status updates sent to the server.
    pub(crate) feedback_sent: u64,
}

/// The rows that are read before the slot is made.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct SnapshotReport {
    /// They are being read. Without it they were read before, or will be.
    pub(crate) running: bool,
    /// Rows of this attempt.
    pub(crate) rows: u64,
    /// How many rows the server expects in it, by its statistics; `null` before it began.
    pub(crate) expected_rows: Option<u64>,
    /// Rows of all attempts of this process.
    pub(crate) rows_total: u64,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct SlotReport {
    pub(crate) active: bool,
    pub(crate) active_pid: Option<i64>,
    /// `reserved`, `extended`, `unreserved` or `lost`.
    pub(crate) wal_status: Option<String>,
    /// WAL from the slot's `restart_lsn` on, which the server keeps for it.
    pub(crate) retained_bytes: u64,
    /// What may still be written before the slot is in danger; `null` without `max_slot_wal_keep_size`.
    pub(crate) safe_wal_bytes: Option<u64>,
    /// `max_slot_wal_keep_size`; `null` where it is switched off.
    pub(crate) limit_bytes: Option<u64>,
    /// How long the slot has had no reader (Postgres 17 and newer).
    pub(crate) inactive_seconds: Option<f64>,
    pub(crate) invalidation_reason: Option<String>,
    /// When the server said so.
    pub(crate) seen_ms: u64,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct BookmarkReport {
    /// Its slot.
    pub(crate) slot: String,
    pub(crate) position: String,
    /// WAL that the server keeps for the bookmark alone.
    pub(crate) retained_bytes: u64,
    /// `retention.max_wal`.
    pub(crate) max_wal_bytes: u64,
    /// For how long back, at least, events can be replayed from it.
    pub(crate) reachable_seconds: f64,
    /// `retention.keep`.
    pub(crate) keep_seconds: f64,
    /// Why less than that can be replayed: `max_wal`, or the bookmark was `lost` or `dropped`. `null` where it was not
    /// cut short in that time, as far as this process knows.
    pub(crate) cut_short: Option<String>,
    /// When the server was asked.
    pub(crate) seen_ms: u64,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct DeliveryReport {
    pub(crate) in_flight_records: u64,
    pub(crate) in_flight_records_limit: u64,
    pub(crate) in_flight_bytes: u64,
    pub(crate) in_flight_bytes_limit: u64,
    /// How long nothing was read because the sink had no room, or a schema was missing.
    pub(crate) blocked_seconds: f64,
    /// Records enqueued in the sink, repeats included.
    pub(crate) records: u64,
    /// Transactions received, those without events included.
    pub(crate) transactions: u64,
    /// Transactions passed over after a reconnect, as they were enqueued already.
    pub(crate) repeats_avoided: u64,
    /// UPDATE, DELETE and TRUNCATE of outbox tables, which are no events.
    pub(crate) ignored: BTreeMap<String, u64>,
    /// Confirmed rows that this process has deleted (`[prune]`).
    pub(crate) pruned_rows: u64,
    /// `latency` or `throughput`.
    pub(crate) mode: String,
    /// Records that were not delivered, by the client library's error code.
    pub(crate) failed: BTreeMap<String, u64>,
    /// At most 100 topics, and `*` for all others.
    pub(crate) topics: Vec<TopicReport>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct TopicReport {
    pub(crate) topic: String,
    pub(crate) delivered: u64,
    /// Bytes of keys, values and headers of those.
    pub(crate) delivered_bytes: u64,
    pub(crate) failed: u64,
}

/// Of the last minute.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct LatencyReport {
    pub(crate) commit_to_ack: Quantiles,
    pub(crate) commit_to_read: Quantiles,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Quantiles {
    pub(crate) p50_ms: Option<f64>,
    pub(crate) p99_ms: Option<f64>,
    pub(crate) samples: u64,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct DeadLetterReport {
    pub(crate) topic: String,
    /// Events that became dead letters, by class.
    pub(crate) written: BTreeMap<String, u64>,
    /// Events that the policy passed over, by class.
    pub(crate) skipped: BTreeMap<String, u64>,
    /// Keys whose events go to the topic of dead letters.
    pub(crate) parked_keys: u64,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct KafkaReport {
    pub(crate) bootstrap_servers: String,
    /// No broker could be reached when it was last tried.
    pub(crate) all_down: bool,
    pub(crate) brokers: Vec<BrokerReport>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct BrokerReport {
    /// `host:port/id`.
    pub(crate) name: String,
    /// librdkafka's word; `UP` where requests can be sent.
    pub(crate) state: String,
    pub(crate) rtt_avg_ms: Option<f64>,
    pub(crate) rtt_p99_ms: Option<f64>,
    /// Records that wait for a request, or for its answer.
    pub(crate) queued: u64,
    /// Requests that were sent again.
    pub(crate) retries: u64,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct RegistryReport {
    /// Requests by outcome: `found`, `refused`, `unavailable`.
    pub(crate) requests: BTreeMap<String, u64>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct ProcessReport {
    pub(crate) resident_bytes: Option<u64>,
    pub(crate) cpu_seconds: Option<f64>,
    pub(crate) threads: Option<u64>,
    pub(crate) open_files: Option<u64>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct ErrorReport {
    /// When it was logged last.
    pub(crate) at_ms: u64,
    /// `WARN` or `ERROR`.
    pub(crate) level: String,
    pub(crate) message: String,
    pub(crate) remedy: Option<String>,
    /// How often it was logged.
    pub(crate) count: u64,
}

/// One second: its end, records enqueued in it, median and 99th percentile of commit to acknowledgement in
/// milliseconds, lag in seconds.
pub(crate) type Sample = (u64, f64, Option<f64>, Option<f64>, f64);

/// The document of `/api/history`.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct History {
    pub(crate) interval_ms: u64,
    /// The oldest first.
    pub(crate) samples: Vec<Sample>,
}
