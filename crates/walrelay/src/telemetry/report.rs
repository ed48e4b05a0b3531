//! The status document of `/api/status`; the metrics are made from it, too.
//!
//! It contains no row values, keys or secrets. Times are milliseconds since 1970, durations have
//! the unit that their name ends with, `null` means "not known".

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use walrelay_lsn::Lsn;

/// The document of `/api/status`.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct StatusReport {
    pub(crate) version: String,
    pub(crate) now_ms: u64,
    pub(crate) started_ms: u64,
    pub(crate) pipeline: PipelineReport,
    /// Whether the pipeline streams and has reported lately.
    pub(crate) ready: bool,
    /// Why it is not ready.
    pub(crate) not_ready: Option<String>,
    pub(crate) source: SourceReport,
    /// `null` where no snapshot is configured.
    #[serde(default)]
    pub(crate) snapshot: Option<SnapshotReport>,
    /// The slot as the server reported it last; `null` before the first answer, and while the slot
    /// does not exist.
    pub(crate) slot: Option<SlotReport>,
    /// The rolling bookmark of `[retention]`; `null` where this relay keeps none.
    #[serde(default)]
    pub(crate) bookmark: Option<BookmarkReport>,
    /// Why the last query of the slot failed.
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
    /// The effective configuration without secrets, as key and value; not in events.
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
    /// The reason of the state, where it has one.
    pub(crate) reason: Option<String>,
    /// When the pipeline entered this state.
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
    #[cfg_attr(test, schemars(with = "Option<String>"))]
    pub(crate) received_lsn: Option<Lsn>,
    /// The position that may be confirmed in the slot.
    #[cfg_attr(test, schemars(with = "Option<String>"))]
    pub(crate) confirmed_lsn: Option<Lsn>,
    /// The end of the server's WAL, as the server reported it last.
    #[cfg_attr(test, schemars(with = "Option<String>"))]
    pub(crate) server_lsn: Option<Lsn>,
    /// WAL from the confirmed position to the end of the server's WAL.
    pub(crate) lag_bytes: Option<u64>,
    /// Age of the oldest commit that is not acknowledged; 0 if everything is acknowledged. It also
    /// grows while the relay has no connection, and while its pipeline does not report.
    pub(crate) lag_seconds: f64,
    /// Attempts that failed and were followed by another, by cause.
    pub(crate) reconnects: BTreeMap<String, u64>,
    /// Status updates sent to the server.
    pub(crate) feedback_sent: u64,
    /// Rows of tables that are no outboxes, which were passed over, by table.
    #[serde(default)]
    pub(crate) passed_over_rows: BTreeMap<String, u64>,
}

/// The snapshot: rows that are read before the slot is created.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct SnapshotReport {
    /// Whether the rows are being read now.
    pub(crate) running: bool,
    /// Rows read by this attempt.
    pub(crate) rows: u64,
    /// Rows in the snapshot by the server's statistics; `null` before the snapshot began.
    pub(crate) expected_rows: Option<u64>,
    /// Rows read by all attempts of this process.
    pub(crate) rows_total: u64,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct SlotReport {
    pub(crate) active: bool,
    pub(crate) active_pid: Option<i64>,
    /// `reserved`, `extended`, `unreserved` or `lost`.
    pub(crate) wal_status: Option<String>,
    /// WAL that the server keeps for the slot: from its `restart_lsn` on.
    pub(crate) retained_bytes: u64,
    /// WAL that may still be written before the slot is in danger; `null` without
    /// `max_slot_wal_keep_size`.
    pub(crate) safe_wal_bytes: Option<u64>,
    /// `max_slot_wal_keep_size`; `null` if it is off.
    pub(crate) limit_bytes: Option<u64>,
    /// Time since the slot had a reader (Postgres 17 and newer).
    pub(crate) inactive_seconds: Option<f64>,
    pub(crate) invalidation_reason: Option<String>,
    /// When the server reported this.
    pub(crate) seen_ms: u64,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct BookmarkReport {
    /// The name of the bookmark's slot.
    pub(crate) slot: String,
    #[cfg_attr(test, schemars(with = "String"))]
    pub(crate) position: Lsn,
    /// WAL that the server keeps for the bookmark alone.
    pub(crate) retained_bytes: u64,
    /// `retention.max_wal`.
    pub(crate) max_wal_bytes: u64,
    /// Events of at least the last so many seconds can be replayed from the bookmark.
    pub(crate) reachable_seconds: f64,
    /// `retention.keep`.
    pub(crate) keep_seconds: f64,
    /// Why less than `keep_seconds` can be replayed: `max_wal`, or the bookmark was `lost` or
    /// `dropped`. `null` if the bookmark was not cut short in that time, as far as this process
    /// knows.
    pub(crate) cut_short: Option<String>,
    /// When the server reported this.
    pub(crate) seen_ms: u64,
}

impl BookmarkReport {
    /// `[retention] max_wal` moved the bookmark early.
    pub(crate) const BY_SIZE: &str = "max_wal";
    pub(crate) const LOST: &str = "lost";
    pub(crate) const DROPPED: &str = "dropped";
    /// The values of `cut_short`.
    pub(crate) const CUTS: [&str; 3] = [Self::BY_SIZE, Self::LOST, Self::DROPPED];
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct DeliveryReport {
    pub(crate) in_flight_records: u64,
    pub(crate) in_flight_records_limit: u64,
    pub(crate) in_flight_bytes: u64,
    pub(crate) in_flight_bytes_limit: u64,
    /// Time in which nothing was read, because the sink had no room or a schema was missing.
    pub(crate) blocked_seconds: f64,
    /// Records enqueued in the sink, repeats included.
    pub(crate) records: u64,
    /// Transactions received, those without events included.
    pub(crate) transactions: u64,
    /// Transactions skipped after a reconnect, as they were enqueued already.
    pub(crate) repeats_avoided: u64,
    /// UPDATE, DELETE and TRUNCATE of outbox tables, which are no events.
    pub(crate) ignored: BTreeMap<String, u64>,
    /// Confirmed rows that this process has deleted (`[prune]`).
    pub(crate) pruned_rows: u64,
    /// Why confirmed rows are not marked as sent (`mark_sent`) or not deleted (`prune`) at the
    /// moment; `null` while they are.
    pub(crate) row_changes: BTreeMap<String, Option<String>>,
    /// `latency` or `throughput`.
    pub(crate) mode: String,
    /// Records that were not delivered, by librdkafka's error code.
    pub(crate) failed: BTreeMap<String, u64>,
    /// At most 100 topics, and `*` for all others.
    pub(crate) topics: Vec<TopicReport>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct TopicReport {
    pub(crate) topic: String,
    pub(crate) delivered: u64,
    /// Bytes of keys, values and headers of the delivered records.
    pub(crate) delivered_bytes: u64,
    pub(crate) failed: u64,
}

/// Latencies of the last minute.
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
    /// Events that the poison policy skipped, by class.
    pub(crate) skipped: BTreeMap<String, u64>,
    /// Keys whose events go to the topic of dead letters.
    pub(crate) parked_keys: u64,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct KafkaReport {
    pub(crate) bootstrap_servers: String,
    /// Whether no broker could be reached at the last attempt.
    pub(crate) all_down: bool,
    pub(crate) brokers: Vec<BrokerReport>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct BrokerReport {
    /// `host:port/id`.
    pub(crate) name: String,
    /// The state as librdkafka names it; `UP` if requests can be sent.
    pub(crate) state: String,
    pub(crate) rtt_avg_ms: Option<f64>,
    pub(crate) rtt_p99_ms: Option<f64>,
    /// Records that wait for a request to the broker, or for its answer.
    pub(crate) queued: u64,
    /// Requests that librdkafka sent again.
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
    /// When the message was logged last.
    pub(crate) at_ms: u64,
    /// `WARN` or `ERROR`.
    pub(crate) level: String,
    pub(crate) message: String,
    pub(crate) remedy: Option<String>,
    /// How often the message was logged.
    pub(crate) count: u64,
}

/// One second: its end, records enqueued in it, median and 99th percentile of commit to
/// acknowledgement in milliseconds, lag in seconds.
pub(crate) type Sample = (u64, f64, Option<f64>, Option<f64>, f64);

/// The document of `/api/history`.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct History {
    pub(crate) interval_ms: u64,
    /// Samples, the oldest first.
    pub(crate) samples: Vec<Sample>,
}
