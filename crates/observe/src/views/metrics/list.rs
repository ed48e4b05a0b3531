//! The metrics but the histograms, and the rows of the report that each has.

use prometheus_client::metrics::MetricType::{Counter, Gauge};
use prometheus_client::registry::Unit;
use walrelay_lsn::Lsn;
use walrelay_sink::EndpointStats;

use super::{Metric, Row};
use crate::report::{
    AuditedTable, BookmarkReport, EndpointReport, OutboxReport, STATES, SinkReport, StatusReport,
    TopicReport,
};

/// The metrics of a pipeline but its histograms, in the order of `docs/reference/metrics.md`.
#[rustfmt::skip]
pub(super) static METRICS: &[Metric] = &[
    Metric { name: "ready", unit: None, kind: Gauge, help: "1 while the relay streams and its pipeline reports, or stands by for another relay",
        rows: |r| count(u64::from(r.ready)) },
    Metric { name: "not_ready_reason", unit: None, kind: Gauge, help: "1 with the reason why the relay does not stream and the remedy; absent while it is ready",
        rows: not_ready_reason },
    Metric { name: "standby", unit: None, kind: Gauge, help: "1 while another relay of the same configuration reads the slot and this one stands by; its lag is that of the other relay",
        rows: |r| count(u64::from(r.pipeline.holder.as_ref().is_some_and(|holder| holder.standby))) },
    Metric { name: "slot_taken", unit: None, kind: Gauge, help: "1 while another program than a relay of this configuration reads the slot",
        rows: |r| count(u64::from(r.pipeline.holder.as_ref().is_some_and(|holder| holder.taken))) },
    Metric { name: "state", unit: None, kind: Gauge, help: "1 for the state of the pipeline, 0 for the others",
        rows: |r| one_of("state", &STATES, Some(&r.pipeline.state)) },
    Metric { name: "lag", unit: Some(Unit::Seconds), kind: Gauge, help: "Age of the oldest unacknowledged commit; grows also while the relay has no connection or makes no progress; 0 when idle, and of a standby relay",
        rows: |r| one(r.source.lag_seconds) },
    Metric { name: "lag", unit: Some(Unit::Bytes), kind: Gauge, help: "WAL from the confirmed position to the end of the server's log",
        rows: |r| count(r.source.lag_bytes) },
    Metric { name: "received_lsn", unit: None, kind: Gauge, help: "Highest position received, as a number of bytes",
        rows: |r| position(r.source.received_lsn) },
    Metric { name: "confirmed_lsn", unit: None, kind: Gauge, help: "Position that may be confirmed in the slot, as a number of bytes",
        rows: |r| position(r.source.confirmed_lsn) },
    Metric { name: "server_lsn", unit: None, kind: Gauge, help: "End of the server's log, as a number of bytes",
        rows: |r| position(r.source.server_lsn) },
    Metric { name: "records", unit: None, kind: Counter, help: "Records by topic and outcome; beyond 100 topics under the topic *",
        rows: |r| by_topic(r, |t| [("delivered", t.delivered), ("failed", t.failed)]) },
    Metric { name: "delivered", unit: Some(Unit::Bytes), kind: Counter, help: "Bytes of keys, values and headers of delivered records, by topic",
        rows: |r| r.delivery.topics.iter().map(|t| (vec![("topic", t.topic.clone())], t.delivered_bytes as f64)).collect() },
    Metric { name: "topic_lag", unit: Some(Unit::Seconds), kind: Gauge, help: "Age of the topic's oldest enqueued and unacknowledged event; 0 if there is none, and of a standby relay",
        rows: |r| r.delivery.topics.iter().map(|t| (vec![("topic", t.topic.clone())], t.lag_seconds)).collect() },
    Metric { name: "last_error_reason", unit: None, kind: Gauge, help: "1 with the error that ended the run before and the remedy, until the slot has passed that place; absent without one",
        rows: last_error_reason },
    Metric { name: "former_runs", unit: None, kind: Counter, help: "Runs of relays of this slot before this one, as they have noted; absent before the first stream",
        rows: |r| count(r.former_run.as_ref().map(|former| former.starts)) },
    Metric { name: "former_run_killed", unit: None, kind: Gauge, help: "1 if the run before has noted no end: it was killed, for example for lack of memory, its machine failed, or Postgres did not answer then; absent if there is none",
        rows: |r| count(r.former_run.as_ref().map(|former| u64::from(former.ended_ms.is_none()))) },
    Metric { name: "enqueued_records", unit: None, kind: Counter, help: "Records enqueued in the sink, repeats included",
        rows: |r| count(r.delivery.records) },
    Metric { name: "acknowledged_records", unit: None, kind: Counter, help: "Records that the sink has acknowledged, dead letters and repeats included",
        rows: |r| count(r.delivery.acknowledged) },
    Metric { name: "last_event_age", unit: Some(Unit::Seconds), kind: Gauge, help: "Time since a record was acknowledged last; absent before the first",
        rows: |r| one(r.delivery.last_event_seconds) },
    Metric { name: "silent", unit: None, kind: Gauge, help: "1 while no record was acknowledged for longer than http.expect_event_every; absent without it",
        rows: |r| count(r.delivery.expected_event_seconds.map(|_| u64::from(r.delivery.silent))) },
    Metric { name: "table_locked", unit: None, kind: Gauge, help: "1 while a session holds or awaits a lock of an outbox table that keeps services from writing events, for five seconds at least",
        rows: |r| count(u64::from(r.source.table_lock.is_some())) },
    Metric { name: "table_lock_reason", unit: None, kind: Gauge, help: "1 with the session that locks an outbox table and the remedy; absent while there is none",
        rows: table_lock_reason },
    Metric { name: "outbox_rows", unit: None, kind: Gauge, help: "Rows of an outbox table with its partitions, by the server's statistics",
        rows: |r| outbox_figures(r, |o| o.rows.map(|rows| rows as f64)) },
    Metric { name: "outbox", unit: Some(Unit::Bytes), kind: Gauge, help: "Size of an outbox table with its partitions, indexes and TOAST",
        rows: |r| outbox_figures(r, |o| o.bytes.map(|bytes| bytes as f64)) },
    Metric { name: "outbox_dead_rows", unit: None, kind: Gauge, help: "Dead rows of an outbox table, by the server's statistics",
        rows: |r| outbox_figures(r, |o| o.dead_rows.map(|rows| rows as f64)) },
    Metric { name: "outbox_vacuum_age", unit: Some(Unit::Seconds), kind: Gauge, help: "Time since the last vacuum of an outbox table; absent if there was none",
        rows: |r| outbox_figures(r, |o| o.vacuum_seconds) },
    Metric { name: "outbox_oldest", unit: Some(Unit::Seconds), kind: Gauge, help: "Age of the oldest row of an outbox table; absent if no index tells it",
        rows: |r| outbox_figures(r, |o| o.oldest_seconds) },
    Metric { name: "outbox_oldest_unmarked", unit: Some(Unit::Seconds), kind: Gauge, help: "Age of the oldest row without the mark of mark_sent; absent without mark_sent, and if no index tells it",
        rows: |r| outbox_figures(r, |o| o.oldest_unmarked_seconds) },
    Metric { name: "outbox_prune_overdue", unit: Some(Unit::Seconds), kind: Gauge, help: "By how much the oldest row of an outbox table is older than [prune] keep; absent without it, and if no index tells it",
        rows: |r| outbox_figures(r, |o| o.prune_overdue_seconds) },
    Metric { name: "outbox_look_failing", unit: None, kind: Gauge, help: "1 while the sizes and ages of the outbox tables cannot be read",
        rows: |r| one(Some(f64::from(u8::from(r.source.outbox_error.is_some())))) },
    Metric { name: "unseen_rows", unit: None, kind: Gauge, help: "Rows of an outbox table without evidence that they were sent, though the slot is past them; absent without [audit]",
        rows: |r| audited(r, |table| table.rows as f64) },
    Metric { name: "audited_ratio", unit: None, kind: Gauge, help: "Part of an outbox table that the audit has looked at; 1 after the first whole pass",
        rows: |r| audited(r, |table| table.percent as f64 / 100.0) },
    Metric { name: "audit_failing", unit: None, kind: Gauge, help: "1 while the audit cannot look at the rows; absent without [audit]",
        rows: |r| one(r.source.audit.as_ref().map(|audit| f64::from(u8::from(audit.error.is_some())))) },
    Metric { name: "clock_difference", unit: Some(Unit::Seconds), kind: Gauge, help: "Difference between the clocks of this machine and of another one, at least: by the label of, postgres or sink; absent if it is not known",
        rows: clock_differences },
    Metric { name: "slo", unit: Some(Unit::Seconds), kind: Counter, help: "Seconds of this run by slo.commit_to_ack; absent without it, 0 on a standby relay",
        rows: |r| count(r.slo.as_ref().map(|slo| slo.seconds)) },
    Metric { name: "slo_missed", unit: Some(Unit::Seconds), kind: Counter, help: "Those of them in which an event waited longer than slo.commit_to_ack",
        rows: |r| count(r.slo.as_ref().map(|slo| slo.missed_seconds)) },
    Metric { name: "slo_budget_left_ratio", unit: None, kind: Gauge, help: "Rest of the budget of 30 days, as far as this run has seen them; below 0 if more is used",
        rows: |r| one(r.slo.as_ref().map(|slo| slo.budget_left_percent / 100.0)) },
    Metric { name: "transactions", unit: None, kind: Counter, help: "Transactions received, those without events included",
        rows: |r| count(r.delivery.transactions) },
    Metric { name: "repeats_avoided", unit: None, kind: Counter, help: "Transactions passed over after a reconnect, because they were enqueued already",
        rows: |r| count(r.delivery.repeats_avoided) },
    Metric { name: "ignored_changes", unit: None, kind: Counter, help: "UPDATE, DELETE and TRUNCATE of outbox tables, which are ignored",
        rows: |r| by("operation", &r.delivery.ignored) },
    Metric { name: "pruned_rows", unit: None, kind: Counter, help: "Confirmed rows that this process has deleted ([prune])",
        rows: |r| count(r.delivery.pruned_rows) },
    Metric { name: "row_changes_failing", unit: None, kind: Gauge, help: "1 while confirmed rows cannot be marked as sent (mark_sent) or deleted (prune); absent without these",
        rows: |r| r.delivery.row_changes.iter().map(|(work, why)| (vec![("work", work.clone())], f64::from(u8::from(why.is_some())))).collect() },
    Metric { name: "delivery_failures", unit: None, kind: Counter, help: "Records that were not delivered, by the error code of the sink's client; they are sent again, or fall under the poison policy",
        rows: |r| by("code", &r.delivery.failed) },
    Metric { name: "dead_letters", unit: None, kind: Counter, help: "Dead letters that the sink has acknowledged, by class",
        rows: |r| by("class", &r.dead_letters.written) },
    Metric { name: "dead_letter_topic_missing", unit: None, kind: Gauge, help: "1 while no dead letter could be written: the topic is missing, or the relay may not write to it",
        rows: |r| count(u64::from(r.dead_letters.obstacle.is_some())) },
    Metric { name: "skipped_events", unit: None, kind: Counter, help: "Events that the poison policy passed over, by class",
        rows: |r| by("class", &r.dead_letters.skipped) },
    Metric { name: "passed_over_rows", unit: None, kind: Counter, help: "Rows of other tables than outboxes, which were passed over, by table; absent before the first",
        rows: |r| by("table", &r.source.passed_over_rows) },
    Metric { name: "events_near_limit", unit: None, kind: Counter, help: "Events larger than 80 % of the largest message that the sink or its server accepts, repeats included; 0 where there is no limit, for example for HTTP",
        rows: |r| count(r.sink.events_near_limit) },
    Metric { name: "parked_keys", unit: None, kind: Gauge, help: "Keys whose events go to the topic of dead letters",
        rows: |r| count(r.dead_letters.parked_keys) },
    Metric { name: "in_flight_records", unit: None, kind: Gauge, help: "Records enqueued and not acknowledged",
        rows: |r| count(r.delivery.in_flight_records) },
    Metric { name: "in_flight_records_limit", unit: None, kind: Gauge, help: "delivery.max_in_flight_records",
        rows: |r| count(r.delivery.in_flight_records_limit) },
    Metric { name: "in_flight", unit: Some(Unit::Bytes), kind: Gauge, help: "Bytes of records enqueued and not acknowledged, with the client library's own",
        rows: |r| count(r.delivery.in_flight_bytes) },
    Metric { name: "in_flight_limit", unit: Some(Unit::Bytes), kind: Gauge, help: "delivery.max_in_flight_bytes",
        rows: |r| count(r.delivery.in_flight_bytes_limit) },
    Metric { name: "retrying_keys", unit: None, kind: Gauge, help: "Keys that wait while an event of the key is sent again",
        rows: |r| count(r.delivery.retrying.as_ref().map_or(0, |retrying| retrying.keys)) },
    Metric { name: "retrying_keys_most", unit: None, kind: Gauge, help: "Waiting keys of the destination with the most of them",
        rows: |r| count(r.delivery.retrying.as_ref().map_or(0, |retrying| retrying.most)) },
    Metric { name: "retrying_keys_limit", unit: None, kind: Gauge, help: "delivery.max_retrying_keys, while a key waits: with as many, the other keys of the destination wait too",
        rows: |r| count(r.delivery.retrying.as_ref().map(|retrying| retrying.limit)) },
    Metric { name: "blocked", unit: Some(Unit::Seconds), kind: Counter, help: "Time in which nothing was read, because the sink had no room or a schema was missing",
        rows: |r| one(r.delivery.blocked_seconds) },
    Metric { name: "producer_mode", unit: None, kind: Gauge, help: "1 for the mode of the producer, 0 for the other",
        rows: |r| one_of("mode", &["latency", "throughput"], Some(&r.delivery.mode)) },
    Metric { name: "reconnects", unit: None, kind: Counter, help: "Attempts that failed and were followed by another, by cause",
        rows: |r| by("cause", &r.source.reconnects) },
    Metric { name: "feedback_sent", unit: None, kind: Counter, help: "Standby status updates sent to the server",
        rows: |r| count(r.source.feedback_sent) },
    Metric { name: "snapshot_running", unit: None, kind: Gauge, help: "1 while a snapshot reads the rows from before the slot; absent without source.snapshot",
        rows: |r| count(r.snapshot.as_ref().map(|s| u64::from(s.running))) },
    Metric { name: "snapshot_rows", unit: None, kind: Counter, help: "Rows read by snapshots, those of attempts that were not completed included",
        rows: |r| count(r.snapshot.as_ref().map(|s| s.rows_total)) },
    Metric { name: "snapshot_attempt_rows", unit: None, kind: Gauge, help: "Rows read by the last attempt at a snapshot",
        rows: |r| count(r.snapshot.as_ref().map(|s| s.rows)) },
    Metric { name: "snapshot_expected_rows", unit: None, kind: Gauge, help: "Rows that the server expects in it, by its statistics",
        rows: |r| count(r.snapshot.as_ref().and_then(|s| s.expected_rows)) },
    Metric { name: "slot_retained_wal", unit: Some(Unit::Bytes), kind: Gauge, help: "WAL that the server keeps for the slot",
        rows: |r| count(r.slot.as_ref().map(|s| s.retained_bytes)) },
    Metric { name: "slot_safe_wal", unit: Some(Unit::Bytes), kind: Gauge, help: "safe_wal_size: WAL that may still be written before the slot is in danger; absent without max_slot_wal_keep_size",
        rows: |r| count(r.slot.as_ref().and_then(|s| s.safe_wal_bytes)) },
    Metric { name: "slot_wal_limit", unit: Some(Unit::Bytes), kind: Gauge, help: "max_slot_wal_keep_size; absent if it is switched off",
        rows: |r| count(r.slot.as_ref().and_then(|s| s.limit_bytes)) },
    Metric { name: "slot_wal_status", unit: None, kind: Gauge, help: "1 for the slot's wal_status, 0 for the others",
        rows: |r| r.slot.as_ref().map_or_else(Vec::new, |s| one_of("status", &WAL_STATUS, s.wal_status.as_deref())) },
    Metric { name: "slot_active", unit: None, kind: Gauge, help: "1 while a process reads the slot",
        rows: |r| count(r.slot.as_ref().map(|s| u64::from(s.active))) },
    Metric { name: "slot_inactive", unit: Some(Unit::Seconds), kind: Gauge, help: "How long the slot has had no reader (Postgres 17 and newer)",
        rows: |r| one(r.slot.as_ref().and_then(|s| s.inactive_seconds)) },
    Metric { name: "slot_invalidated", unit: None, kind: Gauge, help: "1 if the server has invalidated the slot, with the reason",
        rows: |r| r.slot.iter().filter_map(|s| Some((vec![("reason", s.invalidation_reason.clone()?)], 1.0))).collect() },
    Metric { name: "slot_seen", unit: None, kind: Gauge, help: "1 while the server answers questions about the slot",
        rows: |r| count(u64::from(r.slot_error.is_none() && r.slot.is_some())) },
    Metric { name: "bookmark_retained_wal", unit: Some(Unit::Bytes), kind: Gauge, help: "WAL that the server keeps only for the rolling bookmark; absent if this relay keeps none",
        rows: |r| count(r.bookmark.as_ref().map(|b| b.retained_bytes)) },
    Metric { name: "bookmark_wal_limit", unit: Some(Unit::Bytes), kind: Gauge, help: "retention.max_wal",
        rows: |r| count(r.bookmark.as_ref().map(|b| b.max_wal_bytes)) },
    Metric { name: "bookmark_reachable", unit: Some(Unit::Seconds), kind: Gauge, help: "For how long back, at least, events can be replayed from the rolling bookmark",
        rows: |r| one(r.bookmark.as_ref().map(|b| b.reachable_seconds)) },
    Metric { name: "bookmark_keep", unit: Some(Unit::Seconds), kind: Gauge, help: "retention.keep",
        rows: |r| one(r.bookmark.as_ref().map(|b| b.keep_seconds)) },
    Metric { name: "bookmark_cut_short", unit: None, kind: Gauge, help: "1 for the reason why events younger than retention.keep cannot be replayed from the rolling bookmark, 0 for the others",
        rows: |r| r.bookmark.as_ref().map_or_else(Vec::new, |b| one_of("cause", &BookmarkReport::CUTS, b.cut_short.as_deref())) },
    Metric { name: "sink_endpoint_up", unit: None, kind: Gauge, help: "1 while requests can be sent to the endpoint of the sink, and it answers them within five seconds",
        rows: |r| by_endpoint(r, |e| Some(is_up(e))) },
    Metric { name: "sink_round_trip_mean", unit: Some(Unit::Seconds), kind: Gauge, help: "Round-trip time of requests to the endpoint, mean",
        rows: |r| by_endpoint(r, round_trip_mean) },
    Metric { name: "sink_round_trip_p99", unit: Some(Unit::Seconds), kind: Gauge, help: "Round-trip time of requests to the endpoint, 99th percentile",
        rows: |r| by_endpoint(r, round_trip_p99) },
    Metric { name: "sink_queued_records", unit: None, kind: Gauge, help: "Records that wait for a request to the endpoint, or for its answer",
        rows: |r| by_endpoint(r, |e| Some(queued(e))) },
    Metric { name: "sink_retries", unit: None, kind: Counter, help: "Requests to the endpoint that were sent again",
        rows: |r| by_endpoint(r, |e| Some(retries(e))) },
    Metric { name: "sink_all_endpoints_down", unit: None, kind: Gauge, help: "1 while no endpoint of the sink can be reached, or none has answered a request for five seconds; absent for a sink without servers",
        rows: |r| sink_figure(r, |sink| u64::from(sink.all_down)) },
    Metric { name: "sink_unavailable_destinations", unit: None, kind: Gauge, help: "Destinations in use that accept no record at the moment (partitions without a leader): their records wait",
        rows: |r| sink_figure(r, |sink| sink.unavailable_count) },
    Metric { name: "destination_lost_events", unit: None, kind: Counter, help: "Entries that the destination acknowledged and lost, as far as the relay noticed (Redis, NATS)",
        rows: |r| sink_figure(r, |sink| sink.lost_events) },
    Metric { name: "destination_loss_reason", unit: None, kind: Gauge, help: "1 with stream and range of each such loss and the remedy, also of former runs, until walrelay run --accept-loss; absent while there is none",
        rows: loss_reasons },
    Metric { name: "kafka_broker_up", unit: None, kind: Gauge, help: "1 while librdkafka can send requests to the broker, and it has answered within five seconds; 0 of one that has left the cluster",
        rows: |r| by_broker(r, |e| Some(is_up(e))) },
    Metric { name: "kafka_round_trip_mean", unit: Some(Unit::Seconds), kind: Gauge, help: "Round-trip time of requests to the broker, mean",
        rows: |r| by_broker(r, round_trip_mean) },
    Metric { name: "kafka_round_trip_p99", unit: Some(Unit::Seconds), kind: Gauge, help: "Round-trip time of requests to the broker, 99th percentile",
        rows: |r| by_broker(r, round_trip_p99) },
    Metric { name: "kafka_queued_records", unit: None, kind: Gauge, help: "Records that wait for a request to the broker, or for its answer",
        rows: |r| by_broker(r, |e| Some(queued(e))) },
    Metric { name: "kafka_retries", unit: None, kind: Counter, help: "Requests that librdkafka sent again",
        rows: |r| by_broker(r, |e| Some(retries(e))) },
    Metric { name: "kafka_all_brokers_down", unit: None, kind: Gauge, help: "1 while no broker can be reached, or none has answered a request for five seconds",
        rows: |r| count(r.kafka.as_ref().map(|k| u64::from(k.all_down))) },
    Metric { name: "kafka_leaderless_partitions", unit: None, kind: Gauge, help: "Partitions in use without a leader: their records wait",
        rows: |r| count(r.kafka.as_ref().map(|k| k.leaderless_partitions)) },
    Metric { name: "registry_requests", unit: None, kind: Counter, help: "Requests to the schema registry, by outcome",
        rows: |r| r.registry.as_ref().map_or_else(Vec::new, |registry| by("outcome", &registry.requests)) },
    Metric { name: "start_time", unit: Some(Unit::Seconds), kind: Gauge, help: "When the relay was started, since 1970",
        rows: |r| one(r.started_ms as f64 / 1e3) },
];

/// Metrics of the process, with the prefix.
#[rustfmt::skip]
pub(super) static BUILD: &[Metric] = &[
    Metric { name: "build_info", unit: None, kind: Gauge, help: "1, with the version",
        rows: |r| vec![(vec![("version", r.version.clone())], 1.0)] },
];

/// Metrics of the process without the prefix, by the names that all Prometheus exporters use.
#[rustfmt::skip]
pub(super) static PROCESS: &[Metric] = &[
    Metric { name: "process_cpu", unit: Some(Unit::Seconds), kind: Counter, help: "CPU that the process has used",
        rows: |r| one(r.process.cpu_seconds) },
    Metric { name: "process_resident_memory", unit: Some(Unit::Bytes), kind: Gauge, help: "Resident memory",
        rows: |r| count(r.process.resident_bytes) },
    Metric { name: "process_open_fds", unit: None, kind: Gauge, help: "Open files and sockets",
        rows: |r| count(r.process.open_files) },
    Metric { name: "process_threads", unit: None, kind: Gauge, help: "Threads",
        rows: |r| count(r.process.threads) },
];

fn one(value: impl Into<Option<f64>>) -> Vec<Row> {
    let row = value.into().map(|value| (Vec::new(), value));
    row.into_iter().collect()
}

fn count(value: impl Into<Option<u64>>) -> Vec<Row> {
    one(value.into().map(|value| value as f64))
}

/// Returns one row for each entry, labelled by its key.
fn by<'a>(
    label: &'static str,
    entries: impl IntoIterator<Item = (&'a String, &'a u64)>,
) -> Vec<Row> {
    let entries = entries.into_iter();
    entries
        .map(|(value, count)| (vec![(label, value.clone())], *count as f64))
        .collect()
}

/// Returns one row for each of these values: 1 for the value that holds, 0 for the others.
fn one_of(label: &'static str, values: &[&str], held: Option<&str>) -> Vec<Row> {
    let values = values.iter();
    let row = |value: &&str| {
        (
            vec![(label, (*value).to_owned())],
            f64::from(u8::from(held == Some(*value))),
        )
    };
    values.map(row).collect()
}

fn by_topic(
    report: &StatusReport,
    figures: fn(&TopicReport) -> [(&'static str, u64); 2],
) -> Vec<Row> {
    let topics = report.delivery.topics.iter();
    topics
        .flat_map(|topic| {
            let labels = |outcome: &str| {
                vec![
                    ("topic", topic.topic.clone()),
                    ("outcome", outcome.to_owned()),
                ]
            };
            figures(topic).map(|(outcome, count)| (labels(outcome), count as f64))
        })
        .collect()
}

fn clock_differences(report: &StatusReport) -> Vec<Row> {
    let offsets = [
        ("postgres", report.source.clock_offset_seconds),
        ("sink", report.sink.clock_offset_seconds),
    ];
    let rows = offsets.into_iter().filter_map(|(of, offset)| {
        let offset = offset?.abs();
        Some((vec![("of", of.to_owned())], offset))
    });
    rows.collect()
}

/// Reads a figure of an endpoint; `None` if it is not known.
type Figure = fn(&EndpointReport) -> Option<f64>;

fn by_endpoint(report: &StatusReport, figure: Figure) -> Vec<Row> {
    labelled("endpoint", &report.sink.endpoints, figure)
}

fn by_broker(report: &StatusReport, figure: Figure) -> Vec<Row> {
    let kafka = report.kafka.as_ref();
    kafka.map_or_else(Vec::new, |kafka| labelled("broker", &kafka.brokers, figure))
}

fn labelled(label: &'static str, endpoints: &[EndpointReport], figure: Figure) -> Vec<Row> {
    let row = |one: &EndpointReport| Some((vec![(label, one.name.clone())], figure(one)?));
    endpoints.iter().filter_map(row).collect()
}

fn is_up(endpoint: &EndpointReport) -> f64 {
    f64::from(u8::from(endpoint.state == EndpointStats::UP))
}

fn round_trip_mean(endpoint: &EndpointReport) -> Option<f64> {
    endpoint.rtt_avg_ms.map(|ms| ms / 1e3)
}

fn round_trip_p99(endpoint: &EndpointReport) -> Option<f64> {
    endpoint.rtt_p99_ms.map(|ms| ms / 1e3)
}

fn queued(endpoint: &EndpointReport) -> f64 {
    endpoint.queued as f64
}

fn retries(endpoint: &EndpointReport) -> f64 {
    endpoint.retries as f64
}

/// Returns the figure of a sink that has servers.
fn sink_figure(report: &StatusReport, figure: fn(&SinkReport) -> u64) -> Vec<Row> {
    count(report.sink.servers.as_ref().map(|_| figure(&report.sink)))
}

/// Returns a position in the WAL as a number of bytes.
fn position(lsn: Option<Lsn>) -> Vec<Row> {
    one(lsn.map(|lsn| lsn.get() as f64))
}

/// Returns reason and remedy as labels. `state` is `blocked` and its like; texts of servers lose
/// what a label would have to escape.
fn not_ready_reason(report: &StatusReport) -> Vec<Row> {
    let Some(not_ready) = &report.not_ready else {
        return Vec::new();
    };
    let remedy = report
        .pipeline
        .remedy
        .as_deref()
        .unwrap_or("walrelay check");
    vec![with_reason(not_ready, remedy)]
}

/// Returns the row of a lock of an outbox table, if there is one.
fn table_lock_reason(report: &StatusReport) -> Vec<Row> {
    let source = &report.source;
    let holder = source.table_lock_holder.as_deref();
    let lock = holder.zip(source.table_lock_remedy.as_deref());
    lock.map(|(holder, remedy)| with_reason(holder, remedy))
        .into_iter()
        .collect()
}

/// Returns a figure of each audited table.
fn audited(report: &StatusReport, figure: fn(&AuditedTable) -> f64) -> Vec<Row> {
    let tables = report.source.audit.iter().flat_map(|audit| &audit.tables);
    let rows = tables.map(|one| (vec![("table", one.table.clone())], figure(one)));
    rows.collect()
}

/// Returns a figure of each outbox table for which it is known.
fn outbox_figures(report: &StatusReport, figure: fn(&OutboxReport) -> Option<f64>) -> Vec<Row> {
    let outboxes = report.source.outboxes.iter();
    let rows = outboxes.filter_map(|one| Some((vec![("table", one.table.clone())], figure(one)?)));
    rows.collect()
}

/// Returns a row for each loss of the destination.
fn loss_reasons(report: &StatusReport) -> Vec<Row> {
    let losses = report.sink.losses.iter();
    losses
        .map(|loss| with_reason(&loss.text, &loss.remedy))
        .collect()
}

fn last_error_reason(report: &StatusReport) -> Vec<Row> {
    let error = report.last_error.iter();
    error
        .map(|error| with_reason(&error.text, error.remedy.as_deref().unwrap_or_default()))
        .collect()
}

fn with_reason(reason: &str, remedy: &str) -> Row {
    let plain = |text: &str| {
        let plain = text.chars().map(|c| match c {
            '"' => '\'',
            '\\' => '/',
            c if c.is_control() => ' ',
            c => c,
        });
        plain.take(MOST_OF_LABEL).collect::<String>()
    };
    let labels = vec![("reason", plain(reason)), ("remedy", plain(remedy))];
    (labels, 1.0)
}

/// The longest text of a label in characters; the rest is cut off.
const MOST_OF_LABEL: usize = 300;

const WAL_STATUS: [&str; 4] = ["reserved", "extended", "unreserved", "lost"];
