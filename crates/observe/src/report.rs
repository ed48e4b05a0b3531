//! The status document of `/api/status`; the metrics are made from it, too.
//!
//! It contains no row values, keys or secrets. Times are milliseconds since 1970, durations have
//! the unit that their name ends with, `null` means "not known".

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use walrelay_lsn::Lsn;
use walrelay_postgres_source::run_note::RunNote;
use walrelay_sink::Loss;

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

/// The error with which the last run ended.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct LastErrorReport {
    /// The end of that run, in milliseconds since 1970.
    pub at_ms: u64,
    /// The id of the error.
    pub id: String,
    /// When and how the run ended.
    pub text: String,
    /// What an operator can do about it.
    pub remedy: Option<String>,
}

/// A run of a slot's relay, as it has noted itself.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct FormerRunReport {
    /// The number of runs that had noted their start by then, that one included.
    pub starts: u64,
    /// The start of that run, in milliseconds since 1970.
    pub started_ms: u64,
    /// The end that it has noted, in milliseconds since 1970; `null`: it was killed, its machine failed, or Postgres
    /// did not answer then.
    pub ended_ms: Option<u64>,
    /// The id of the error that ended it; `null` if it was asked to stop, or has noted no end.
    pub error_id: Option<String>,
    /// When it started, and how it ended.
    pub text: String,
}

impl FormerRunReport {
    /// Makes the report of a note.
    pub fn new(note: &RunNote) -> Self {
        let ended = note.ended.as_ref();
        Self {
            starts: note.starts,
            started_ms: note.started_ms,
            ended_ms: ended.map(|ended| ended.at_ms),
            error_id: ended.and_then(|ended| ended.error.clone()),
            text: note.text(),
        }
    }
}

/// One problem of a relay.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct ProblemReport {
    /// `bad`: events are not relayed, or will not be. `warn`: somebody should look. `note`: something
    /// happened since the start. `ok`: the relay stands by for another one.
    pub level: String,
    /// What is wrong, without figures that change.
    pub title: String,
    /// The reason, where one is known.
    pub reason: Option<String>,
    /// What an operator can do about it.
    pub remedy: Option<String>,
    /// The alert of `deploy/prometheus/alerts.yml` for it.
    pub alert: Option<String>,
    /// How long the problem lasts before the alert fires, as Prometheus writes it; `null` if it fires
    /// at once.
    pub alert_after: Option<String>,
    /// The anchor of the heading of the runbook, `docs/operate`, about it.
    pub runbook: String,
    /// When it began, in milliseconds since 1970, where that is known.
    pub since_ms: Option<u64>,
    /// Whether the state of the pipeline is the problem.
    pub is_state: bool,
}

impl ProblemReport {
    /// Returns the title with the reason, if there is one.
    pub fn finding(&self) -> String {
        match &self.reason {
            Some(reason) => format!("{}: {reason}", self.title),
            None => self.title.clone(),
        }
    }

    /// Returns the alert with its time, as in `WalrelayLag, after 1m`.
    pub fn alert_text(&self) -> Option<String> {
        let alert = self.alert.as_deref()?;
        Some(match &self.alert_after {
            Some(after) => format!("{alert}, after {after}"),
            None => alert.to_owned(),
        })
    }
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct PipelineReport {
    pub slot: String,
    /// One of [`STATES`].
    pub state: String,
    /// The reason of the state, where it has one.
    pub reason: Option<String>,
    /// What an operator can do about the state; `null` where nothing need be done.
    #[serde(default)]
    pub remedy: Option<String>,
    /// The kind of failure while the state is `retrying`, and in the next attempt until it goes beyond the
    /// last one, as `walrelay_reconnects_total` names it.
    #[serde(default)]
    pub cause: Option<String>,
    /// The id of the error while there is a `cause`, as the table of error ids has it; `null` if the error has
    /// none of its own.
    #[serde(default)]
    pub error_id: Option<String>,
    /// The process that reads the slot, while the state is `waiting-for-slot`.
    #[serde(default)]
    pub holder: Option<HolderReport>,
    /// When the pipeline entered this state.
    pub since_ms: u64,
}

/// The process that reads the slot of a pipeline that waits for it.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct HolderReport {
    /// It is another relay of the same configuration, for which this one stands by.
    pub standby: bool,
    /// It is no relay of this configuration: nobody relays what it confirms.
    pub taken: bool,
    /// Its process id on the server.
    pub pid: Option<i64>,
    /// Its `application_name`.
    pub application_name: Option<String>,
    /// The start of its connection by the server's clock, in milliseconds since 1970; `null` if the
    /// relay's role may not see it.
    pub since_ms: Option<u64>,
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
pub struct SourceReport {
    /// The connection string without its secrets.
    pub server: String,
    pub publication: String,
    pub tables: Vec<String>,
    /// The highest position received.
    #[cfg_attr(test, schemars(with = "Option<String>"))]
    pub received_lsn: Option<Lsn>,
    /// The position that may be confirmed in the slot.
    #[cfg_attr(test, schemars(with = "Option<String>"))]
    pub confirmed_lsn: Option<Lsn>,
    /// The end of the server's WAL, as the server reported it last.
    #[cfg_attr(test, schemars(with = "Option<String>"))]
    pub server_lsn: Option<Lsn>,
    /// WAL from the confirmed position to the end of the server's WAL.
    pub lag_bytes: Option<u64>,
    /// Age of the oldest commit that is not acknowledged; 0 if everything is acknowledged. It also
    /// grows while the relay has no connection, and while its pipeline does not report.
    pub lag_seconds: f64,
    /// Attempts that failed and were followed by another, by cause.
    pub reconnects: BTreeMap<String, u64>,
    /// The number of those within the last ten minutes, at most 11.
    #[serde(default)]
    pub recent_reconnects: u64,
    /// `source.retained_wal_warning`; `null` if it is off.
    #[serde(default)]
    pub retained_wal_warning_bytes: Option<u64>,
    /// Status updates sent to the server.
    pub feedback_sent: u64,
    /// How far the server's clock is ahead of this machine's, at least; negative if it is behind.
    #[serde(default)]
    pub clock_offset_seconds: Option<f64>,
    /// Who keeps services from writing to an outbox table by a lock, for some seconds: process,
    /// application, mode and age; `null` if nobody does.
    #[serde(default)]
    pub table_lock: Option<String>,
    /// Sessions, modes and tables of `table_lock`: without the age and without those they wait for, which change.
    #[serde(default)]
    pub table_lock_holder: Option<String>,
    /// What to do about it.
    #[serde(default)]
    pub table_lock_remedy: Option<String>,
    /// Sizes and ages of the outbox tables, as the server reported them last; empty before the first answer.
    #[serde(default)]
    pub outboxes: Vec<OutboxReport>,
    /// Why the last query of the outbox tables failed.
    #[serde(default)]
    pub outbox_error: Option<String>,
    /// The last round of the audit; `null` without `[audit]`, and before the first round.
    #[serde(default)]
    pub audit: Option<AuditReport>,
    /// Rows of tables that are no outboxes, which were passed over, by table.
    #[serde(default)]
    pub passed_over_rows: BTreeMap<String, u64>,
    /// The replays that run in the database, of whatever slot or bookmark.
    #[serde(default)]
    pub replays: Vec<ReplayReport>,
}

/// A running `walrelay replay`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct ReplayReport {
    /// The process id on the server.
    pub pid: i64,
    /// The temporary slot that it reads.
    pub copy: String,
    /// The position up to which its records are acknowledged.
    #[cfg_attr(test, schemars(with = "Option<String>"))]
    pub position: Option<Lsn>,
    /// WAL from there to the end of the server's WAL. The replay may end before.
    pub behind_bytes: Option<u64>,
}

impl ReplayReport {
    /// Returns who replays, and how far it is.
    pub fn text(&self) -> String {
        let Self { pid, copy, .. } = self;
        self.position.map_or_else(
            || format!("server process {pid} reads {copy}"),
            |position| format!("server process {pid} reads {copy}, acknowledged up to {position}"),
        )
    }
}

/// A round of the audit.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct AuditReport {
    /// Its end, in milliseconds since 1970.
    pub at_ms: u64,
    /// The outbox tables.
    pub tables: Vec<AuditedTable>,
    /// Why the round did not look at everything that it was to look at.
    pub error: Option<String>,
}

/// An outbox table, as the audit has seen it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct AuditedTable {
    /// `schema.table`.
    pub table: String,
    /// Rows without evidence that they were sent, though the slot is past them.
    pub rows: u64,
    /// The part of the table that was looked at, in percent.
    pub percent: u64,
}

/// Sizes and ages of an outbox table with its partitions. Counts are those of the server's statistics.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct OutboxReport {
    /// `schema.table`.
    pub table: String,
    /// Rows, estimated.
    pub rows: Option<u64>,
    /// Bytes of the table with its indexes and TOAST.
    pub bytes: Option<u64>,
    /// Dead rows, estimated.
    pub dead_rows: Option<u64>,
    /// Time since the last vacuum; `null` if there was none since the statistics began.
    pub vacuum_seconds: Option<f64>,
    /// Age of the oldest row by the age column; `null` if there is none, or no index tells it.
    pub oldest_seconds: Option<f64>,
    /// Age of the oldest row without the mark of `mark_sent`; 0 if there is none, `null` if rows are not marked, or no
    /// index tells it.
    pub oldest_unmarked_seconds: Option<f64>,
    /// By how much the oldest row is older than `[prune] keep`; `null` without it.
    pub prune_overdue_seconds: Option<f64>,
    /// Which ages are not known, and the index that would tell them.
    pub unknown: Vec<String>,
}

/// The snapshot: rows that are read before the slot is created.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct SnapshotReport {
    /// Whether the rows are being read now.
    pub running: bool,
    /// Rows read by this attempt.
    pub rows: u64,
    /// Rows in the snapshot by the server's statistics; `null` before the snapshot began.
    pub expected_rows: Option<u64>,
    /// Rows read by all attempts of this process.
    pub rows_total: u64,
}

/// The server's view of the slot.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct SlotReport {
    /// A walsender reads the slot.
    pub active: bool,
    /// The process id of that walsender.
    pub active_pid: Option<i64>,
    /// `reserved`, `extended`, `unreserved` or `lost`.
    pub wal_status: Option<String>,
    /// WAL that the server keeps for the slot: from its `restart_lsn` on.
    pub retained_bytes: u64,
    /// WAL that may still be written before the slot is in danger; `null` without
    /// `max_slot_wal_keep_size`.
    pub safe_wal_bytes: Option<u64>,
    /// `max_slot_wal_keep_size`; `null` if it is off.
    pub limit_bytes: Option<u64>,
    /// The oldest open transaction of the server, which may hold the log: process, application and age.
    #[serde(default)]
    pub oldest_transaction: Option<String>,
    /// Time since the slot had a reader (Postgres 17 and newer).
    pub inactive_seconds: Option<f64>,
    /// Why the slot is lost, in Postgres' own words: `invalidation_reason`, before Postgres 17
    /// `wal_status = lost` or a conflict. `null` while it is valid.
    pub invalidation_reason: Option<String>,
    /// `synchronized_standby_slots`, while Postgres sends nothing because a standby of these slots has not
    /// got the log; `null` otherwise.
    #[serde(default)]
    pub waits_for_standbys: Option<String>,
    /// When the server reported this.
    pub seen_ms: u64,
}

/// The rolling bookmark.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct BookmarkReport {
    /// The name of the bookmark's slot.
    pub slot: String,
    /// The position that replays can begin at.
    #[cfg_attr(test, schemars(with = "String"))]
    pub position: Lsn,
    /// WAL that the server keeps for the bookmark alone.
    pub retained_bytes: u64,
    /// `retention.max_wal`.
    pub max_wal_bytes: u64,
    /// Events of at least the last so many seconds can be replayed from the bookmark.
    pub reachable_seconds: f64,
    /// `retention.keep`.
    pub keep_seconds: f64,
    /// Why less than `keep_seconds` can be replayed: `max_wal`, or the bookmark was `lost` or
    /// `dropped`. `null` if the bookmark was not cut short in that time, as far as this process
    /// knows.
    pub cut_short: Option<String>,
    /// When the server reported this.
    pub seen_ms: u64,
}

impl BookmarkReport {
    /// `[retention] max_wal` moved the bookmark early.
    pub const BY_SIZE: &str = "max_wal";
    /// The server has removed WAL that the bookmark needs.
    pub const LOST: &str = "lost";
    /// Something else dropped the slot of the bookmark.
    pub const DROPPED: &str = "dropped";
    /// The values of `cut_short`.
    pub const CUTS: [&str; 3] = [Self::BY_SIZE, Self::LOST, Self::DROPPED];
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct RetryingReport {
    /// The number of these keys.
    pub keys: u64,
    /// Those of the destination that has the most.
    pub most: u64,
    /// `delivery.max_retrying_keys`: the most that a destination may have before its other keys wait too.
    pub limit: u64,
    /// How long the event has been refused that has been refused the longest.
    pub seconds: f64,
    /// The id of that event; `null` if it has none.
    pub event_id: Option<String>,
    /// The topic of that event.
    #[serde(default)]
    pub topic: String,
    /// Why that event is sent again: what the destination answers.
    #[serde(default)]
    pub why: String,
    /// The time until that event is sent again; `null` while it is sent, or waits for another one of its
    /// destination.
    #[serde(default)]
    pub next_seconds: Option<f64>,
}

impl RetryingReport {
    /// Returns what waits, in words.
    #[must_use]
    pub fn text(&self) -> String {
        let Self {
            keys,
            most,
            limit,
            seconds,
            event_id,
            topic,
            why,
            next_seconds,
        } = self;
        let event = event_id
            .as_ref()
            .map_or_else(|| "an event".to_owned(), |id| format!("the event {id:?}"));
        let next = next_seconds.map_or_else(String::new, |next| {
            format!(", and is sent again in {next:.0} s")
        });
        format!(
            "{keys} keys wait, up to {most} of {limit} of one destination; {event} of topic {topic:?} has been refused for \
             {seconds:.0} s{next} ({why})"
        )
    }
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct DeliveryReport {
    pub in_flight_records: u64,
    pub in_flight_records_limit: u64,
    /// The event of the first record in flight, which holds up the confirmed position: the start of its
    /// commit record and the number of its row, as logs and `walrelay dlq` name events.
    #[serde(default)]
    pub first_in_flight: Option<String>,
    pub in_flight_bytes: u64,
    pub in_flight_bytes_limit: u64,
    /// Keys that wait because an event of theirs is sent again; `null` while none does.
    #[serde(default)]
    pub retrying: Option<RetryingReport>,
    /// Time in which nothing was read, because the sink had no room or a schema was missing.
    pub blocked_seconds: f64,
    /// Records enqueued in the sink, repeats included.
    pub records: u64,
    /// Records that the sink has acknowledged, dead letters and repeats included.
    #[serde(default)]
    pub acknowledged: u64,
    /// When a record was acknowledged last, to a second; `null` before the first.
    #[serde(default)]
    pub acknowledged_at_ms: Option<u64>,
    /// The time since a record was acknowledged last; `null` before the first.
    #[serde(default)]
    pub last_event_seconds: Option<f64>,
    /// `http.expect_event_every`; `null` if it is not set.
    #[serde(default)]
    pub expected_event_seconds: Option<f64>,
    /// Whether no record was acknowledged for longer than that, or since the start. Never of a relay
    /// that stands by.
    #[serde(default)]
    pub silent: bool,
    /// Transactions received, those without events included.
    pub transactions: u64,
    /// Transactions skipped after a reconnect, as they were enqueued already.
    pub repeats_avoided: u64,
    /// UPDATE, DELETE and TRUNCATE of outbox tables, which are no events.
    pub ignored: BTreeMap<String, u64>,
    /// Confirmed rows that this process has deleted (`[prune]`).
    pub pruned_rows: u64,
    /// Why confirmed rows are not marked as sent (`mark_sent`) or not deleted (`prune`) at the
    /// moment; `null` while they are.
    pub row_changes: BTreeMap<String, Option<String>>,
    /// `latency` or `throughput`.
    pub mode: String,
    /// Records that were not delivered, by the error code of the sink's client.
    pub failed: BTreeMap<String, u64>,
    /// At most 100 topics, and `*` for all others.
    pub topics: Vec<TopicReport>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct TopicReport {
    pub topic: String,
    /// Age of the topic's oldest event that is enqueued and not acknowledged, by the commit; 0 if there
    /// is none.
    #[serde(default)]
    pub lag_seconds: f64,
    /// When a record of the topic was acknowledged last, to a second; `null` before the first since the start.
    #[serde(default)]
    pub acknowledged_at_ms: Option<u64>,
    /// The event of that record: the start of its commit record and the number of its row.
    #[serde(default)]
    pub last_event: Option<String>,
    pub delivered: u64,
    /// Bytes of keys, values and headers of the delivered records.
    pub delivered_bytes: u64,
    pub failed: u64,
}

impl TopicReport {
    pub(crate) fn new(topic: &str) -> Self {
        Self {
            topic: topic.to_owned(),
            lag_seconds: 0.0,
            acknowledged_at_ms: None,
            last_event: None,
            delivered: 0,
            delivered_bytes: 0,
            failed: 0,
        }
    }
}

/// Seconds of this run by the objective of `[slo]`. A standby counts none.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct SloReport {
    /// `slo.commit_to_ack`.
    pub commit_to_ack_seconds: f64,
    /// `slo.target`.
    pub target_percent: f64,
    /// Seconds since the start.
    pub seconds: u64,
    /// Those of them in which an event was late.
    pub missed_seconds: u64,
    /// The part of the budget of 30 days that is left, as far as this run has seen them; below 0 if more is used.
    pub budget_left_percent: f64,
}

/// Latencies of the last minute.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct LatencyReport {
    pub commit_to_ack: Quantiles,
    pub commit_to_read: Quantiles,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Quantiles {
    pub p50_ms: Option<f64>,
    pub p99_ms: Option<f64>,
    pub samples: u64,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct DeadLetterReport {
    pub topic: String,
    /// Dead letters that the sink has acknowledged, by class.
    pub written: BTreeMap<String, u64>,
    /// Events that the poison policy skipped, by class.
    pub skipped: BTreeMap<String, u64>,
    /// Why no dead letter can be written: the topic is missing, or the relay may not write to it.
    /// `null` if one can be, or if it is not known.
    #[serde(default)]
    pub obstacle: Option<String>,
    /// Keys whose events go to the topic of dead letters.
    pub parked_keys: u64,
}

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

#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct RegistryReport {
    /// Requests by outcome: `found`, `refused`, `unavailable`.
    pub requests: BTreeMap<String, u64>,
}

/// The process, as the system sees it; `null` where it does not tell.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct ProcessReport {
    /// Memory in use (`VmRSS`).
    pub resident_bytes: Option<u64>,
    /// Processor time so far.
    pub cpu_seconds: Option<f64>,
    /// Number of threads.
    pub threads: Option<u64>,
    /// Number of open file descriptors.
    pub open_files: Option<u64>,
    /// It runs as root.
    #[serde(default)]
    pub is_root: Option<bool>,
    /// The system may write its memory to a file when it crashes (`RLIMIT_CORE`).
    #[serde(default)]
    pub may_dump_core: Option<bool>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct ErrorReport {
    /// When the message was logged last.
    pub at_ms: u64,
    /// When it was logged first.
    #[serde(default)]
    pub first_ms: u64,
    /// `WARN` or `ERROR`.
    pub level: String,
    pub message: String,
    pub remedy: Option<String>,
    /// How often the message was logged.
    pub count: u64,
}

/// One second: its end, records acknowledged in it, median and 99th percentile of commit to
/// acknowledgement in milliseconds, lag in seconds.
pub(crate) type Sample = (u64, f64, Option<f64>, Option<f64>, f64);

/// The document of `/api/history`.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct History {
    pub interval_ms: u64,
    /// Samples, the oldest first.
    pub samples: Vec<Sample>,
    /// The last six hours, one sample for each minute, the oldest first: its end, the mean rate, the
    /// median of the medians, the greatest 99th percentile and the greatest lag. With
    /// `source.state_file` those of before the start, too.
    #[serde(default)]
    pub minutes: Vec<Sample>,
}
