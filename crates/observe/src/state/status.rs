//! Makes the status document of the telemetry.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

use walrelay_failure::Exit;
use walrelay_measure::proc;
use walrelay_relay::{HolderKind, PgTimestamp, PipelineState};
use walrelay_sink::{BatchingMode, MAX_TOPICS, OTHER_TOPICS, lock};
use walrelay_sink_kind::check::{Check, Verdict};

use super::relay_state::{Live, describe, remedy};
use super::setup::SourceFacts;
use super::telemetry::Telemetry;
use crate::millis_now;
use crate::report::{
    DeadLetterReport, DeliveryReport, EndpointReport, HolderReport, KafkaReport, LatencyReport,
    LossReport, NearLimitReport, OPEN_TRANSACTIONS, PipelineReport, ProcessReport, RegistryReport,
    ReplayReport, RetryingReport, SinkFailureReport, SinkReport, SinkRiskReport, SourceReport,
    StatusReport, TopicReport, problems,
};

/// Destinations that are named of those that take no record.
const NAMED_UNAVAILABLE: usize = 20;
/// The kind of sink whose figures are also shown by names of its own, on which users depend:
/// the report's member, and metrics.
const KAFKA: &str = "kafka";

impl Telemetry {
    /// Returns the status document, without the configuration and the sample.
    pub fn report(&self) -> StatusReport {
        let setup = &self.setup;
        let live = lock(&self.live);
        let not_ready = live.not_ready();
        let facts = setup.source.as_deref();
        let sink = self.sink_report(&live);
        let mut report = StatusReport {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            now_ms: millis_now(),
            started_ms: self.started_ms,
            pipeline: self.pipeline_report(&live),
            ready: not_ready.is_none(),
            not_ready,
            problems: Vec::new(),
            source: self.source(&live),
            snapshot: facts.and_then(SourceFacts::snapshot),
            slot: live.slot.clone(),
            bookmark: live.bookmark.clone(),
            slot_error: live.slot_error.clone(),
            last_error: facts.and_then(|facts| {
                let progress = live.progress.as_ref();
                facts.last_error(progress.map(|progress| progress.confirmed.lsn()))
            }),
            moved: live.moved.clone(),
            former_run: facts.and_then(SourceFacts::former_run),
            otel_problem: live.otel_problem.clone(),
            delivery: self.delivery(&live),
            slo: setup
                .slo
                .as_ref()
                .and_then(|slo| lock(&self.slo_seconds).report(slo)),
            latency: LatencyReport {
                commit_to_ack: self.commit_to_ack.last_minute(),
                commit_to_read: self.commit_to_read.last_minute(),
            },
            dead_letters: self.dead_letter_report(&live),
            kafka: KafkaReport::new(&sink),
            sink,
            registry: setup.registry.as_ref().map(|stats| RegistryReport {
                requests: stats
                    .requests()
                    .map(|(outcome, count)| (outcome.to_owned(), count))
                    .into(),
            }),
            process: process(),
            errors: self.errors.list(&setup.name),
            config: Vec::new(),
            sample: None,
        };
        drop(live);
        report.problems = problems(&report);
        report
    }

    fn pipeline_report(&self, live: &Live) -> PipelineReport {
        let (state, reason) = describe(&live.state);
        let facts = self.setup.source.as_deref();
        let waits = facts.and_then(SourceFacts::opening_wait);
        let waits = waits.filter(|_| matches!(live.state, PipelineState::Connecting));
        let explanation = match &live.state {
            PipelineState::Waiting { explanation, .. } => explanation.as_ref(),
            _ if waits.is_some() => None,
            _ => live
                .failure()
                .and_then(|failure| failure.explanation.as_ref()),
        };
        PipelineReport {
            slot: self.setup.slot.clone(),
            state: state.to_owned(),
            reason: match (reason, &waits) {
                (Some(reason), _) => Some(reason.to_owned()),
                (None, Some((what, _))) => Some(what.clone()),
                (None, None) => live
                    .failure()
                    .map(|failure| format!("the last attempt failed: {}", failure.why)),
            },
            remedy: match (&waits, explanation) {
                (Some((_, remedy)), _) => Some((*remedy).to_owned()),
                (None, Some(explanation)) => Some(explanation.remedy.clone()),
                (None, None) => remedy(&live.state),
            },
            error_id: explanation.map(|explanation| explanation.id.to_owned()),
            cause: match live.state {
                PipelineState::Waiting { cause, .. } => Some(cause),
                _ if waits.is_some() => Some(OPEN_TRANSACTIONS),
                _ => live.failure().map(|failure| failure.cause),
            }
            .map(str::to_owned),
            holder: live.holder().map(|holder| HolderReport {
                standby: holder.kind == HolderKind::Relay,
                taken: holder.kind == HolderKind::Stranger,
                pid: holder.pid,
                application_name: holder.application_name.clone(),
                since_ms: holder
                    .since
                    .and_then(PgTimestamp::unix_micros)
                    .and_then(|micros| u64::try_from(micros / 1000).ok()),
            }),
            since_ms: live.state_since_ms,
        }
    }

    fn dead_letter_report(&self, live: &Live) -> DeadLetterReport {
        let setup = &self.setup;
        DeadLetterReport {
            topic: setup.dead_letter_topic.clone(),
            written: live.dead_letters.clone(),
            skipped: live.skipped.clone(),
            obstacle: live.dead_letter_obstacle.clone(),
            parked_keys: setup
                .parking
                .as_ref()
                .map_or(0, |parking| parking.keys() as u64),
        }
    }

    fn source(&self, live: &Live) -> SourceReport {
        // The positions of a relay that stands by are of the time when it read the slot.
        let progress = live.progress.filter(|_| live.standing_by().is_none());
        let confirmed = progress.map(|progress| progress.confirmed.lsn());
        // The server reports the end of its WAL now and then: a received position may be above it.
        let received = progress.map(|progress| progress.received);
        let server_end = live.server_end.max(received);
        let lag_bytes = server_end.zip(confirmed);
        SourceReport {
            server: self.setup.server.clone(),
            publication: self.setup.publication.clone(),
            tables: self.setup.tables.clone(),
            received_lsn: received,
            confirmed_lsn: confirmed,
            server_lsn: server_end,
            lag_bytes: lag_bytes.map(|(end, confirmed)| end.bytes_since(confirmed)),
            lag_seconds: live.lag().as_secs_f64(),
            reconnects: live.reconnects.clone(),
            recent_reconnects: live.recent_reconnects(),
            retained_wal_warning_bytes: self.setup.retained_wal_warning,
            feedback_sent: live.feedback_sent,
            clock_offset_seconds: live.clock_offset,
            table_lock: live.table_lock.as_ref().map(|lock| lock.text.clone()),
            table_lock_holder: live.table_lock.as_ref().map(|lock| lock.holder.clone()),
            table_lock_remedy: live.table_lock.as_ref().map(|lock| lock.remedy.clone()),
            outboxes: live.outboxes.0.clone(),
            outbox_error: live.outboxes.1.clone(),
            audit: live.audit.clone(),
            passed_over_rows: live.passed_over.clone(),
            replays: live
                .replays
                .iter()
                .map(|replay| ReplayReport {
                    behind_bytes: server_end
                        .zip(replay.position)
                        .map(|(end, position)| end.bytes_since(position)),
                    ..replay.clone()
                })
                .collect(),
        }
    }

    fn delivery(&self, live: &Live) -> DeliveryReport {
        let counts = live.counts();
        let expected = self.setup.expect_event_every;
        DeliveryReport {
            in_flight_records: live.progress.map_or(0, |progress| progress.in_flight),
            first_in_flight: live
                .progress
                .and_then(|progress| progress.first)
                .map(|event| event.to_string()),
            in_flight_records_limit: self.setup.max_in_flight_records,
            in_flight_bytes: self.sink.in_flight_bytes.load(Relaxed),
            in_flight_bytes_limit: self.setup.max_in_flight_bytes,
            retrying: live.retrying.as_ref().map(|retrying| RetryingReport {
                keys: retrying.keys,
                most: retrying.most,
                limit: retrying.limit,
                seconds: retrying.since.elapsed().as_secs_f64(),
                event_id: retrying.event_id.clone(),
                topic: retrying.topic.clone(),
                why: retrying.why.clone(),
                next_seconds: retrying
                    .next
                    .map(|next| next.saturating_duration_since(Instant::now()).as_secs_f64()),
            }),
            blocked_seconds: live.blocked.as_secs_f64(),
            records: counts.records,
            acknowledged: live.acknowledged(),
            acknowledged_at_ms: live.acknowledged_at_ms,
            last_event_seconds: live
                .acknowledged_at_ms
                .map(|_| live.event_at.elapsed().as_secs_f64()),
            expected_event_seconds: expected.map(|expected| expected.as_secs_f64()),
            silent: live.standing_by().is_none()
                && expected.is_some_and(|expected| live.event_at.elapsed() > expected),
            transactions: counts.transactions,
            repeats_avoided: counts.repeats_avoided,
            pruned_rows: live.pruned,
            row_changes: live.row_changes.clone(),
            ignored: [
                ("update", counts.updates),
                ("delete", counts.deletes),
                ("truncate", counts.truncates),
            ]
            .map(|(operation, count)| (operation.to_owned(), count))
            .into(),
            mode: match self.sink.mode() {
                BatchingMode::Latency => "latency",
                BatchingMode::Throughput => "throughput",
            }
            .to_owned(),
            failed: self.sink.failures(),
            topics: self.topic_reports(live),
        }
    }

    fn topic_reports(&self, live: &Live) -> Vec<TopicReport> {
        let topics = self.sink.topics().into_iter();
        let reports = topics.map(|(topic, stats)| {
            let report = TopicReport {
                delivered: stats.delivered.load(Relaxed),
                delivered_bytes: stats.delivered_bytes.load(Relaxed),
                failed: stats.failed.load(Relaxed),
                ..TopicReport::new(&topic)
            };
            (topic, report)
        });
        let mut reports: BTreeMap<String, TopicReport> = reports.collect();
        for (topic, lag) in live.lag_by_topic() {
            // A topic of which no record was delivered or has failed is new here.
            let has_room = reports.contains_key(topic) || reports.len() < MAX_TOPICS;
            let topic = if has_room { topic } else { OTHER_TOPICS };
            let report = reports.entry(topic.to_owned());
            let report = report.or_insert_with(|| TopicReport::new(topic));
            report.lag_seconds = report.lag_seconds.max(lag.as_secs_f64());
        }
        for (topic, (event, at_ms)) in &live.last_by_topic {
            if let Some(report) = reports.get_mut(topic) {
                report.acknowledged_at_ms = Some(*at_ms);
                report.last_event = Some(event.to_string());
            }
        }
        reports.into_values().collect()
    }

    fn sink_report(&self, live: &Live) -> SinkReport {
        let setup = &self.setup.sink;
        let millis = |seconds: Option<f64>| seconds.map(|seconds| seconds * 1e3);
        let endpoints = self.sink.endpoints().into_iter();
        let endpoints = endpoints.map(|endpoint| EndpointReport {
            rtt_avg_ms: millis(endpoint.rtt_mean),
            rtt_p99_ms: millis(endpoint.rtt_p99),
            name: endpoint.name,
            state: endpoint.state,
            queued: endpoint.queued,
            retries: endpoint.retries,
        });
        let unavailable = self.sink.unavailable();
        let fault = self.sink.certificate_fault();
        let losses = self.sink.losses();
        SinkReport {
            kind: setup.kind.to_owned(),
            title: setup.title.to_owned(),
            endpoint_term: setup.terms.endpoint.to_owned(),
            unavailable_term: setup.terms.unavailable.to_owned(),
            servers: setup.servers.clone(),
            all_down: self.sink.is_down(),
            certificate_remedy: fault.as_ref().map(|fault| fault.remedy.to_owned()),
            certificate_fault: fault.map(|fault| fault.what),
            failure: self
                .sink
                .connect_failure()
                .map(|failure| SinkFailureReport {
                    id: failure.words.id.to_owned(),
                    needs_change: failure.words.exit != Exit::Unavailable,
                    what: failure.words.what.to_owned(),
                    cause: failure.cause,
                    remedy: failure.words.remedy.to_owned(),
                }),
            clock_offset_seconds: self.sink.clocks.offset(),
            endpoints: endpoints.collect(),
            unavailable_count: unavailable.len() as u64,
            unavailable: unavailable.into_iter().take(NAMED_UNAVAILABLE).collect(),
            lost_events: losses.events,
            losses: losses
                .list
                .iter()
                .map(|loss| LossReport::new(loss, self.sink.epoch()))
                .collect(),
            risks: live.sink_risks.iter().map(SinkRiskReport::new).collect(),
            events_near_limit: self.sink.sizes.near_limit(),
            near_limit: self
                .sink
                .sizes
                .largest_near_limit()
                .map(|near| NearLimitReport {
                    topic: near.topic,
                    bytes: near.size,
                    limit_bytes: near.limit,
                }),
        }
    }
}

impl SinkRiskReport {
    fn new(check: &Check) -> Self {
        Self {
            fails: matches!(check.verdict, Verdict::Fail { .. }),
            finding: check.finding.clone(),
            remedy: check.remedy.clone(),
        }
    }
}

impl KafkaReport {
    /// Makes the report of a sink of Kafka; `None` of another sink.
    fn new(sink: &SinkReport) -> Option<Self> {
        let servers = sink.servers.as_ref().filter(|_| sink.kind == KAFKA)?;
        Some(Self {
            bootstrap_servers: servers.clone(),
            all_down: sink.all_down,
            brokers: sink.endpoints.clone(),
            leaderless_partitions: sink.unavailable_count,
            leaderless: sink.unavailable.clone(),
        })
    }
}

fn process() -> ProcessReport {
    let count = |directory: &str| {
        let entries = std::fs::read_dir(directory).ok()?;
        Some(entries.count() as u64)
    };
    ProcessReport {
        resident_bytes: proc::memory("self", "VmRSS"),
        cpu_seconds: proc::cpu("self"),
        threads: count("/proc/self/task"),
        open_files: count("/proc/self/fd"),
        is_root: proc::is_root(),
        may_dump_core: proc::may_dump_core(),
    }
}
