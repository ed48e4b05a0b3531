//! The fault drill: faults one after the other, and what the relay shows of each, as an operator would see it.

use std::io::IsTerminal as _;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use walrelay_kafka_sink::embedded::EmbeddedBroker;
use walrelay_walsender::{ConnInfo, Session, SessionKind};

use super::{outbox, say};
use crate::cli::{Exit, Failure};
use crate::commands::connect::block_on;
use crate::commands::status::{lines_of, of_endpoint, of_path};
use crate::config::Config;
use crate::failures;
use crate::telemetry::StatusReport;

/// How often the endpoint is asked, and how long what is expected may take.
const INTERVAL: Duration = Duration::from_millis(100);
const PATIENCE: Duration = Duration::from_secs(60);
/// How far the lag grows before the broker is started again.
const LAG: f64 = 6.0;

/// How long a person has for a step and the page before the next one.
const READING_TIME: Duration = Duration::from_secs(5);

/// What is expected of a relay after a step.
type Expected = fn(&StatusReport) -> bool;

/// One step: a heading, what is expected then, and which lines of the status and which metrics show it.
struct Step {
    heading: &'static str,
    expected: Expected,
    lines: &'static [&'static str],
    metrics: &'static [&'static str],
    /// What the operator is told by alerts and runbook.
    runbook: &'static str,
}

const WELL: Step = Step {
    heading: "All is well",
    expected: |relay| relay.ready && relay.delivery.records > 20 && relay.slot.is_some(),
    lines: &["relay", "slot", "lag", "commit to ack", "kafka"],
    metrics: &["walrelay_ready", "walrelay_lag_seconds"],
    runbook: "the page's first line is green; no alert",
};
const BROKER_DOWN: Step = Step {
    heading: "Fault 1: the broker stops",
    expected: |relay| {
        let down = relay.kafka.as_ref().is_some_and(|kafka| kafka.all_down);
        down && relay.source.lag_seconds > LAG
    },
    lines: &["relay", "lag", "in flight", "kafka", "warn"],
    metrics: &[
        "walrelay_kafka_all_brokers_down",
        "walrelay_lag_seconds",
        "walrelay_in_flight_records",
    ],
    runbook: "alert WalrelayBrokersDown after a minute; remedy: start the broker. The slot keeps every event",
};
const BROKER_UP: Step = Step {
    heading: "Remedy: the broker is started again",
    expected: |relay| {
        let brokers = relay.kafka.iter().flat_map(|kafka| &kafka.brokers);
        let up = brokers
            .map(|broker| &broker.state)
            .any(|state| state == "UP");
        up && relay.ready && relay.source.lag_seconds < 1.0
    },
    lines: &["relay", "lag", "in flight", "kafka"],
    metrics: &["walrelay_kafka_all_brokers_down", "walrelay_lag_seconds"],
    runbook: "nothing else to do: the relay delivered what had waited",
};
const WALSENDER_KILLED: Step = Step {
    heading: "Fault 2: the walsender is killed (pg_terminate_backend)",
    expected: |relay| {
        let reconnects: u64 = relay.source.reconnects.values().sum();
        relay.ready && reconnects > 0 && relay.source.lag_seconds < 1.0
    },
    lines: &["relay", "slot", "lag", "warn"],
    metrics: &["walrelay_ready", "walrelay_reconnects_total"],
    runbook: "no alert: the relay connected again by itself, and skipped what it had sent already",
};
const POISON: Step = Step {
    heading: "Fault 3: an event that cannot be delivered (its topic's name is not valid)",
    expected: |relay| relay.dead_letters.written.values().sum::<u64>() > 0 && relay.ready,
    lines: &["relay", "dead letters", "warn"],
    metrics: &["walrelay_dead_letters_total"],
    runbook: "alert WalrelayDeadLetters; remedy: walrelay dlq list, then dlq redrive or dlq drop",
};

/// The faults of a running demonstration.
pub(super) struct Drill<'a> {
    config: &'a Config,
    broker: &'a EmbeddedBroker,
    info: &'a ConnInfo,
    /// The writer writes; the drill ends when it no longer does.
    writes: &'a AtomicBool,
}

impl<'a> Drill<'a> {
    pub(super) fn new(
        config: &'a Config,
        broker: &'a EmbeddedBroker,
        info: &'a ConnInfo,
        writes: &'a AtomicBool,
    ) -> Self {
        Self {
            config,
            broker,
            info,
            writes,
        }
    }

    /// All faults, unless the writer is stopped before.
    pub(super) fn run(&self) -> Result<(), Failure> {
        let poison = format!(
            "INSERT INTO {} VALUES (gen_random_uuid(), 'no topic!', 'order-1', 'OrderPlaced', '{{}}')",
            outbox()
        );
        self.show(&WELL, || Ok(()))?;
        self.show(&BROKER_DOWN, || {
            self.broker.set_up(false);
            Ok(())
        })?;
        self.show(&BROKER_UP, || {
            self.broker.set_up(true);
            Ok(())
        })?;
        self.show(&WALSENDER_KILLED, || {
            self.execute(
                "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE active",
            )
        })?;
        self.show(&POISON, || self.execute(&poison))
    }

    fn execute(&self, sql: &str) -> Result<(), Failure> {
        let executed = block_on(async {
            let mut session = Session::connect(self.info, SessionKind::Sql, &[]).await?;
            session.query(sql).await?;
            session.close().await;
            Ok(())
        })?;
        executed.map_err(failures::postgres)
    }

    /// Injects, waits until the relay shows it, and prints what it shows.
    fn show(
        &self,
        step: &Step,
        inject: impl FnOnce() -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        if !self.writes.load(Ordering::Acquire) {
            return Ok(());
        }
        say(&format!("\n--- {}", step.heading));
        inject()?;
        let begun = Instant::now();
        let relay = loop {
            let relay = self.ask(of_endpoint)?;
            if (step.expected)(&relay) {
                break relay;
            }
            if !self.writes.load(Ordering::Acquire) {
                return Ok(());
            }
            if begun.elapsed() > PATIENCE {
                let what = format!("the relay does not show this: {}", step.heading);
                return Err(Failure::new("demo", Exit::Data, what)
                    .remedy("this is a bug: please report it with the lines above"));
            }
            thread::sleep(INTERVAL);
        };
        let mut names = step.lines.to_vec();
        for (name, value) in lines_of(&relay) {
            // Of warnings the newest.
            if let Some(place) = names.iter().position(|wanted| *wanted == name) {
                names.swap_remove(place);
                say(&format!("  {name:<14} {value}"));
            }
        }
        let metrics = self.ask(|http| of_path(http, "/metrics"))?;
        for line in metrics.lines() {
            let name = line.split(['{', ' ']).next().unwrap_or_default();
            if step.metrics.contains(&name) {
                say(&format!("  {line}"));
            }
        }
        say(&format!(
            "  => after {:.1} s; {}",
            begun.elapsed().as_secs_f64(),
            step.runbook
        ));
        if std::io::stdout().is_terminal() {
            thread::sleep(READING_TIME);
        }
        Ok(())
    }

    /// Asks the endpoint, as a browser and Prometheus do.
    fn ask<T>(
        &self,
        question: impl FnOnce(&crate::config::Http) -> Result<T, String>,
    ) -> Result<T, Failure> {
        let http = self.config.http.as_ref();
        let answer = http
            .ok_or_else(|| "no endpoint is configured".to_owned())
            .and_then(question);
        answer.map_err(|error| {
            Failure::new("demo", Exit::Internal, "the status page does not answer").caused_by(error)
        })
    }
}
