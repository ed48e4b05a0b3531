use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::thread;
use std::time::Duration;

use walrelay_lsn::Lsn;
use walrelay_relay::{PgTimestamp, TopicProgress};
use walrelay_sink::{
    AnySinkFactory, EndpointStats, EventPosition, MAX_TOPICS, OTHER_TOPICS, SinkStats, lock,
};
use walrelay_sink_kind::{KindDescription, SinkKind};

use super::*;
use crate::report::{EndpointReport, History, SlotReport};
use crate::{RecentErrors, millis_now, wall_clock};
use crate::{Setup, SinkSetup};

fn telemetry() -> Arc<Telemetry> {
    telemetry_of("walrelay")
}

fn telemetry_of(slot: &str) -> Arc<Telemetry> {
    let setup = Setup {
        name: slot.to_owned(),
        slot: slot.to_owned(),
        sink: SinkSetup::new(&Shown("kafka")),
        registry: Some(Arc::default()),
        ..Setup::default()
    };
    let telemetry = Arc::new(Telemetry::new(setup, RecentErrors::default()));
    telemetry.commit_to_ack.record(Duration::from_millis(3));
    telemetry
}

/// A sink of a kind, with a server.
struct Shown(&'static str);

impl SinkKind for Shown {
    fn description(&self) -> &'static KindDescription {
        Box::leak(Box::new(KindDescription {
            name: self.0,
            title: self.0,
            settings_item: None,
            items: &[],
            cannot: &[],
        }))
    }

    fn servers(&self) -> Option<String> {
        Some("b:9092".to_owned())
    }

    fn factory(&self, _: Option<Arc<SinkStats>>) -> (AnySinkFactory, Option<Arc<SinkStats>>) {
        unreachable!("nothing is sent")
    }
}

/// Returns the full name of each metric, as in the text format.
fn names() -> BTreeSet<String> {
    let mut names: BTreeSet<String> = full().map(|(name, _)| name).collect();
    for Histogram { name, unit, .. } in HISTOGRAMS {
        for end in ["bucket", "sum", "count"] {
            names.insert(format!("walrelay_{name}_{}_{end}", unit.as_str()));
        }
    }
    names
}

/// Returns all metrics but the histograms, with their full names.
fn full() -> impl Iterator<Item = (String, &'static Metric)> {
    all().map(|(name, metric, _)| {
        let unit = metric
            .unit
            .as_ref()
            .map_or_else(String::new, |unit| format!("_{}", unit.as_str()));
        let total = if metric.kind == Counter { "_total" } else { "" };
        (format!("{name}{unit}{total}"), metric)
    })
}

fn document(path: &str) -> (std::path::PathBuf, String) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../..")
        .join(path);
    let text = std::fs::read_to_string(&path).unwrap_or_default();
    (path, text)
}

/// Asserts that a generated document is up to date; with `UPDATE_DOCS=1`, writes it.
fn is_up_to_date(path: &str, generated: &str) {
    let (file, text) = document(path);
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(file, generated).unwrap();
    } else {
        assert!(
            text == generated,
            "{path} is out of date: UPDATE_DOCS=1 cargo test -p walrelay-observe reference"
        );
    }
}

#[test]
fn the_text_has_every_metric_whose_value_is_known() {
    let telemetry = telemetry();
    telemetry.sink.topic("t\"1").delivered.fetch_add(5, Relaxed);
    telemetry.sink.failed("MsgTimedOut".to_owned());
    telemetry.slot(Ok((
        Some(SlotReport {
            active: true,
            active_pid: Some(1),
            wal_status: Some("reserved".to_owned()),
            retained_bytes: 1,
            safe_wal_bytes: Some(2),
            limit_bytes: Some(3),
            oldest_transaction: None,
            inactive_seconds: None,
            invalidation_reason: None,
            waits_for_standbys: None,
            seen_ms: 1,
        }),
        Some(Lsn::new(7)),
    )));
    let text = text(&Pipelines::from_iter([telemetry])).unwrap();
    for line in [
        "# TYPE walrelay_records counter",
        "walrelay_records_total{topic=\"t\\\"1\",outcome=\"delivered\"} 5.0",
        "walrelay_topic_lag_seconds{topic=\"t\\\"1\"} 0.0",
        "walrelay_delivery_failures_total{code=\"MsgTimedOut\"} 1.0",
        "walrelay_state{state=\"connecting\"} 1.0",
        "walrelay_slot_retained_wal_bytes 1.0",
        "walrelay_slot_wal_status{status=\"lost\"} 0.0",
        "walrelay_server_lsn 7.0",
        "walrelay_commit_to_ack_seconds_count 1",
        "walrelay_commit_to_ack_seconds_bucket{le=\"0.004\"} 1",
        "walrelay_ready 0.0",
        "# EOF",
    ] {
        assert!(
            text.lines().any(|found| found == line),
            "{line} is missing in\n{text}"
        );
    }
    let names = names();
    let shown = text.lines().filter(|line| !line.starts_with('#'));
    for name in shown.filter_map(|line| line.split(['{', ' ']).next()) {
        assert!(names.contains(name), "{name}");
    }
    #[cfg(target_os = "linux")]
    assert!(text.contains("process_resident_memory_bytes "), "{text}");
}

/// Returns the lines without the values of samples, which differ from one scrape to the next.
fn samples(pipelines: &[&Arc<Telemetry>]) -> Vec<String> {
    let pipelines = pipelines.iter().map(|one| Arc::clone(one)).collect();
    let text = text(&pipelines).unwrap();
    let lines = text.lines().map(|line| match line.rsplit_once(' ') {
        Some((sample, _)) if !line.starts_with('#') => sample,
        _ => line,
    });
    lines.map(str::to_owned).collect()
}

/// Removes the label of a pipeline from a line; `None` if the line is about another one.
fn strip_pipeline(line: &str, name: &str) -> Option<String> {
    let label = format!("pipeline=\"{name}\"");
    if !line.contains("pipeline=") {
        return Some(line.to_owned());
    }
    let rest = line.replacen(&format!(",{label}"), "", 1);
    let rest = rest.replacen(&format!("{label},"), "", 1);
    let rest = rest.replacen(&format!("{{{label}}}"), "", 1);
    line.contains(&label).then_some(rest)
}

#[test]
fn several_pipelines_have_a_label_and_one_has_none() {
    let (a, b) = (telemetry_of("a"), telemetry_of("b"));
    a.sink.topic("orders");
    b.sink.topic("bills");
    b.pruned(3);
    let (one, both) = (samples(&[&a]), samples(&[&a, &b]));
    assert!(!one.iter().any(|line| line.contains("pipeline=")));
    for (name, alone) in [("a", &one), ("b", &samples(&[&b]))] {
        let found: Vec<_> = both
            .iter()
            .filter_map(|line| strip_pipeline(line, name))
            .collect();
        assert_eq!(&found, alone, "{name}");
    }
    // Figures of the process are there once.
    let of = |start: &str| both.iter().filter(|line| line.starts_with(start)).count();
    assert_eq!(of("walrelay_build_info{"), 1);
    assert_eq!(of("walrelay_pruned_rows_total{pipeline="), 2);
    assert_eq!(of("walrelay_commit_to_ack_seconds_count{pipeline="), 2);
    #[cfg(target_os = "linux")]
    assert_eq!(of("process_resident_memory_bytes"), 1);
    let text = text(&Pipelines::from_iter([a, b])).unwrap();
    assert!(
        text.contains("\nwalrelay_pruned_rows_total{pipeline=\"b\"} 3.0\n"),
        "{text}"
    );
}

#[test]
fn the_reference_names_every_metric() {
    let mut page = String::from(
        "# Metrics\n\nWhich metrics does `/metrics` of the [HTTP endpoint](../operate/monitoring.md#http-endpoint) report? \
         A metric without a\nknown value has no line, for example `walrelay_slot_wal_limit_bytes` while \
         `max_slot_wal_keep_size` is not set. You need\nnot write alerts: use the [rules for Prometheus and the \
         dashboard](../operate/alerts.md#alerts).\n\n\
         `UPDATE_DOCS=1 cargo test -p walrelay-observe reference` generates this page.\n\n\
         <!-- metrics -->\n| metric | type | meaning |\n|---|---|---|\n",
    );
    for histogram in HISTOGRAMS {
        let Histogram { name, help, .. } = histogram;
        let unit = histogram.unit.as_str();
        let _ = writeln!(page, "| `walrelay_{name}_{unit}` | histogram | {help} |");
    }
    for (name, metric) in full() {
        let (kind, help) = (metric.kind.as_str(), metric.help);
        let _ = writeln!(page, "| `{name}` | {kind} | {help} |");
    }
    page.push_str("<!-- end of metrics -->\n");
    is_up_to_date("docs/reference/metrics.md", &page);
}

/// Every metric that an alert or a dashboard asks for exists.
#[test]
fn alerts_and_dashboards_ask_for_metrics_that_exist() {
    let names = names();
    for path in [
        "deploy/prometheus/alerts.yml",
        "deploy/grafana/walrelay.json",
    ] {
        let (_, text) = document(path);
        assert!(!text.is_empty(), "{path}");
        let mut asked = 0;
        let word = |c: char| !(c.is_ascii_alphanumeric() || c == '_');
        for name in text
            .split(word)
            .filter(|word| word.starts_with("walrelay_") || word.starts_with("process_"))
        {
            assert!(
                names.contains(name),
                "{path} asks for {name}, which does not exist"
            );
            asked += 1;
        }
        assert!(asked > 5, "{path}");
    }
}

#[test]
fn the_schemas_of_the_documents_are_those_of_the_reference() {
    let pretty = |schema: schemars::Schema| serde_json::to_string_pretty(&schema).unwrap() + "\n";
    is_up_to_date(
        "docs/status.schema.json",
        &pretty(schemars::schema_for!(StatusReport)),
    );
    is_up_to_date(
        "docs/history.schema.json",
        &pretty(schemars::schema_for!(History)),
    );
}

#[test]
fn a_broker_without_requests_has_no_round_trip_time() {
    let broker = EndpointReport {
        name: "b:9092/1".to_owned(),
        state: "DOWN".to_owned(),
        rtt_avg_ms: None,
        rtt_p99_ms: None,
        queued: 0,
        retries: 0,
    };
    let mut report = telemetry().report();
    report.kafka.as_mut().unwrap().brokers.push(broker);
    let rows = |name: &str| {
        let metric = METRICS.iter().find(|metric| metric.name == name).unwrap();
        (metric.rows)(&report)
    };
    assert_eq!(
        rows("kafka_broker_up"),
        [(vec![("broker", "b:9092/1".to_owned())], 0.0)]
    );
    assert_eq!(rows("kafka_round_trip_p99"), []);
}

/// The figures of every sink have general names; those of Kafka have the names of Kafka, too.
#[test]
fn only_kafka_is_shown_by_the_names_of_kafka() {
    for (kind, named) in [("kafka", true), ("http", false)] {
        let setup = Setup {
            sink: SinkSetup::new(&Shown(kind)),
            ..Setup::default()
        };
        let telemetry = Arc::new(Telemetry::new(setup, RecentErrors::default()));
        let client = telemetry.sink.client();
        lock(&client).push(EndpointStats {
            name: "b:9092".to_owned(),
            state: EndpointStats::UP.to_owned(),
            ..EndpointStats::default()
        });
        telemetry.sink.all_down.store(true, Relaxed);
        let text = text(&Pipelines::from_iter([Arc::clone(&telemetry)])).unwrap();
        for line in [
            "walrelay_sink_endpoint_up{endpoint=\"b:9092\"} 1.0",
            "walrelay_sink_all_endpoints_down 1.0",
            "walrelay_sink_unavailable_destinations 0.0",
        ] {
            assert!(text.contains(line), "{line}: {text}");
        }
        for line in [
            "walrelay_kafka_broker_up{broker=\"b:9092\"} 1.0",
            "walrelay_kafka_all_brokers_down 1.0",
        ] {
            assert_eq!(text.contains(line), named, "{line}: {text}");
        }
        let report = serde_json::to_value(telemetry.report()).unwrap();
        assert_eq!(report["sink"]["kind"], kind);
        assert_eq!(report.get("kafka").is_some(), named);
    }
}

/// A topic has a lag of its own, also before its first record is delivered.
#[test]
fn the_lag_of_a_topic_is_that_of_its_oldest_record_in_flight() {
    let telemetry = telemetry();
    let lags = || {
        let topics = telemetry.report().delivery.topics.into_iter();
        let lags = topics.map(|topic| (topic.topic, topic.lag_seconds.floor()));
        lags.collect::<Vec<_>>()
    };
    let committed = |age_s: i64| PgTimestamp::new(wall_clock().get() - age_s * 1_000_000);
    let in_flight = |topic, age_s| TopicProgress {
        topic,
        oldest: Some(committed(age_s)),
        last: None,
    };
    telemetry.sink.topic("bills");
    telemetry.topics(&[in_flight("late", 7_200)]);
    let expected = [("bills".to_owned(), 0.0), ("late".to_owned(), 7_200.0)];
    assert_eq!(lags(), expected);
    telemetry.topics(&[]);
    assert_eq!(lags(), [("bills".to_owned(), 0.0)]);
    // A clock ahead of this machine's.
    telemetry.topics(&[in_flight("late", -7_200)]);
    assert_eq!(lags()[1], ("late".to_owned(), 0.0));
    for n in 1..MAX_TOPICS {
        telemetry.sink.topic(&format!("topic-{n}"));
    }
    telemetry.topics(&[in_flight("bills", 60), in_flight("late", 7_200)]);
    let expected = [
        (OTHER_TOPICS.to_owned(), 7_200.0),
        ("bills".to_owned(), 60.0),
    ];
    assert_eq!(lags()[..2], expected);
    assert_eq!(lags().len(), MAX_TOPICS + 1);
}

/// The last record of a topic has event and time, and keeps both when a new sink has acknowledged none.
#[test]
fn a_topic_has_the_event_and_the_time_of_its_last_record() {
    let telemetry = telemetry();
    telemetry.sink.topic("bills");
    let last = || {
        let topic = telemetry.report().delivery.topics.remove(0);
        (topic.last_event, topic.acknowledged_at_ms)
    };
    let acknowledged = |row: Option<u64>| {
        telemetry.topics(&[TopicProgress {
            topic: "bills",
            oldest: None,
            last: row.map(|row| EventPosition::in_first_epoch(16, row)),
        }]);
    };
    acknowledged(None);
    assert_eq!(last(), (None, None));
    let before = millis_now();
    acknowledged(Some(3));
    let (event, at) = last();
    assert_eq!(event.as_deref(), Some("0/10 3"));
    assert!(
        at.is_some_and(|at| (before..=millis_now()).contains(&at)),
        "{at:?}"
    );
    while Some(millis_now()) == at {
        thread::yield_now();
    }
    acknowledged(Some(3));
    acknowledged(None);
    assert_eq!(last(), (event, at));
    acknowledged(Some(4));
    assert_eq!(last().0.as_deref(), Some("0/10 4"));
    assert!(last().1 > at);
}
