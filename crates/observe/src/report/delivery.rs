//! The records of a report: in flight, acknowledged, late, and refused.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

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
