//! The status document of `/api/status`; the metrics are made from it, too.
//!
//! It contains no row values, keys or secrets. Times are milliseconds since 1970, durations have
//! the unit that their name ends with, `null` means "not known".

mod causes;
mod delivery;
mod history;
mod pipeline;
mod problems;
mod process;
mod sink;
mod source;

use serde::{Deserialize, Serialize};

pub use causes::STANDBY_REMEDY;
pub(crate) use causes::{OPEN_TRANSACTIONS, is_of_sink, remedy_of_cause};
pub(crate) use delivery::{
    DeadLetterReport, DeliveryReport, LatencyReport, Quantiles, RetryingReport, SloReport,
    TopicReport,
};
pub(crate) use history::{History, Sample};
pub use pipeline::{FormerRunReport, LastErrorReport, ProblemReport};
pub(crate) use pipeline::{HolderReport, PipelineReport, STATES};
#[cfg(test)]
pub(crate) use problems::headings;
pub(crate) use problems::{RECONNECTS, problems};
pub use process::ProcessReport;
pub(crate) use process::{ErrorReport, RegistryReport};
pub use sink::{EndpointReport, LossReport, NearLimitReport, SinkReport};
pub(crate) use sink::{KafkaReport, SinkFailureReport, SinkRiskReport};
pub(crate) use source::SourceReport;
pub use source::{
    AuditReport, AuditedTable, BookmarkReport, MoveReport, OutboxReport, ReplayReport, SlotReport,
    SnapshotReport, TableLockReport,
};

/// The document of `/api/status`.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct StatusReport {
    /// Version of walrelay.
    pub version: String,
    /// Time of the report, in milliseconds since 1970.
    pub now_ms: u64,
    /// Start of the run, in milliseconds since 1970.
    pub started_ms: u64,
    /// The pipeline: state, positions, counts.
    pub pipeline: PipelineReport,
    /// Whether the pipeline streams and has reported lately, or stands by for another relay.
    pub ready: bool,
    /// Why it is not ready.
    pub not_ready: Option<String>,
    /// What is wrong, the worst first.
    #[serde(default)]
    pub problems: Vec<ProblemReport>,
    /// What is read, and from where.
    pub source: SourceReport,
    /// `null` where no snapshot is configured.
    #[serde(default)]
    pub snapshot: Option<SnapshotReport>,
    /// The slot as the server reported it last; `null` before the first answer, and while the slot
    /// does not exist.
    pub slot: Option<SlotReport>,
    /// The rolling bookmark of `[retention]`; `null` where this relay keeps none.
    #[serde(default)]
    pub bookmark: Option<BookmarkReport>,
    /// Why the last query of the slot failed.
    pub slot_error: Option<String>,
    /// The error with which the last run ended, until the slot has passed the place where that run ended; `null`
    /// if it ended without one.
    #[serde(default)]
    pub last_error: Option<LastErrorReport>,
    /// The move of the outbox to another server that has not ended here; `null` without one.
    #[serde(default)]
    pub moved: Option<MoveReport>,
    /// The run of a relay of this slot before this one; `null` if none has noted its start.
    #[serde(default)]
    pub former_run: Option<FormerRunReport>,
    /// Why the OpenTelemetry collector does not accept the metrics; `null` if it does, or none is configured.
    #[serde(default)]
    pub otel_problem: Option<String>,
    /// Records in flight and acknowledged.
    pub delivery: DeliveryReport,
    /// Latencies of acknowledged transactions.
    pub latency: LatencyReport,
    /// `null` without `slo.commit_to_ack`.
    pub slo: Option<SloReport>,
    /// Events that were not delivered, and parked keys.
    pub dead_letters: DeadLetterReport,
    /// Where records go.
    #[serde(default)]
    pub sink: SinkReport,
    /// Where records go, by the names of Kafka; absent of other sinks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kafka: Option<KafkaReport>,
    /// `null` where no schema registry is configured.
    pub registry: Option<RegistryReport>,
    /// CPU time and memory of this process.
    pub process: ProcessReport,
    /// Warnings and errors of the log, the newest first.
    pub errors: Vec<ErrorReport>,
    /// The effective configuration without secrets, as key and value; not in events.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub config: Vec<(String, String)>,
    /// The last whole second: a row of `/api/history`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sample: Option<Sample>,
}
