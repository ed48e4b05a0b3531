//! The drill: injects faults one after the other, and prints what the relay shows of each.

use std::io::{self, IsTerminal as _};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use walrelay_failure::{Exit, Failure};
use walrelay_kafka_sink::embedded::EmbeddedBroker;
use walrelay_observe::StatusReport;
use walrelay_walsender::ConnInfo;

use super::tracker::EventTracker;
use super::{outbox, print};
use crate::commands::assembly::{block_on, sql_session};
use crate::commands::inspect::endpoint::{NoDocument, fetch, fetch_status};
use crate::commands::inspect::status::status_lines;
use crate::config::{Config, Http};

/// Interval of requests to the endpoint, and the time limit of a step.
const INTERVAL: Duration = Duration::from_millis(100);
const STEP_TIMEOUT: Duration = Duration::from_secs(60);
/// Lag in seconds before the broker is started again.
const LAG: f64 = 6.0;

/// Pause after a step on a terminal, for reading its output and the page.
const READING_TIME: Duration = Duration::from_secs(5);

/// One step of the drill.
struct Step {
    heading: &'static str,
    /// The condition that the relay shows the effect of the step.
    expected: fn(&StatusReport) -> bool,
    /// Names of the lines of `walrelay status` that show it.
    lines: &'static [&'static str],
    /// Names of the metrics that show it.
    metrics: &'static [&'static str],
    /// The words of alerts and runbook.
    runbook: &'static str,
}

const HEALTHY: Step = Step {
    heading: "All is well",
    expected: |relay| relay.ready && relay.delivery.records > 20 && relay.slot.is_some(),
    lines: &["relay", "slot", "lag", "commit to ack", "kafka"],
    metrics: &["walrelay_ready", "walrelay_lag_seconds"],
    runbook: "the page's first line is green; no alert",
};
const BROKER_DOWN: Step = Step {
    heading: "Fault 1: the broker stops",
    expected: |relay| {
        let down = relay.sink.all_down;
        down && relay.source.lag_seconds > LAG
    },
    lines: &["relay", "lag", "in flight", "kafka", "warn"],
    metrics: &[
        "walrelay_sink_all_endpoints_down",
        "walrelay_lag_seconds",
        "walrelay_in_flight_records",
    ],
    runbook: "alert WalrelaySinkDown after a minute; remedy: start the broker. The slot keeps every event",
};
const BROKER_UP: Step = Step {
    heading: "Remedy: the broker is started again",
    expected: |relay| {
        let brokers = relay.sink.endpoints.iter();
        let up = brokers
            .map(|broker| &broker.state)
            .any(|state| state == "UP");
        up && relay.ready && relay.source.lag_seconds < 1.0
    },
    lines: &["relay", "lag", "in flight", "kafka"],
    metrics: &["walrelay_sink_all_endpoints_down", "walrelay_lag_seconds"],
    runbook: "nothing else to do: the relay delivered the waiting events",
};
const WALSENDER_KILLED: Step = Step {
    heading: "Fault 2: the walsender is killed (pg_terminate_backend)",
    expected: |relay| {
        let reconnects: u64 = relay.source.reconnects.values().sum();
        relay.ready && reconnects > 0 && relay.source.lag_seconds < 1.0
    },
    lines: &["relay", "slot", "lag", "warn"],
    metrics: &["walrelay_ready", "walrelay_reconnects_total"],
    runbook: "no alert: the relay connected again by itself, and skipped the events that it had \
              sent already",
};
const POISON: Step = Step {
    heading: "Fault 3: an event that cannot be delivered (its topic's name is not valid)",
    expected: |relay| relay.dead_letters.written.values().sum::<u64>() > 0 && relay.ready,
    lines: &["relay", "dead letters", "warn"],
    metrics: &["walrelay_dead_letters_total"],
    runbook: "alert WalrelayDeadLetters; remedy: walrelay dlq list, then dlq redrive or dlq drop",
};

/// Injects faults into a running demonstration.
pub(super) struct Drill<'a> {
    pub(super) config: &'a Config,
    pub(super) broker: &'a EmbeddedBroker,
    pub(super) info: &'a ConnInfo,
    /// True while the writer writes; the drill ends when it does not.
    pub(super) writing: &'a AtomicBool,
    pub(super) tracker: &'a EventTracker,
    /// `--pause`: wait for Enter after each step.
    pub(super) pause: bool,
}

impl Drill<'_> {
    /// Runs all steps, or those before the writer stops or the reader of the output has gone away.
    /// The broker is up when it ends.
    pub(super) fn run(&self) -> Result<(), Failure> {
        let result = self.run_steps();
        self.broker.set_up(true);
        result
    }

    fn run_steps(&self) -> Result<(), Failure> {
        let poison = format!(
            "INSERT INTO {} VALUES (gen_random_uuid(), 'no topic!', 'order-1', 'OrderPlaced', '{{}}')",
            outbox()
        );
        self.run_step(&HEALTHY, || Ok(()))?;
        self.run_step(&BROKER_DOWN, || {
            self.broker.set_up(false);
            Ok(())
        })?;
        self.run_step(&BROKER_UP, || {
            self.broker.set_up(true);
            Ok(())
        })?;
        self.run_step(&WALSENDER_KILLED, || {
            self.execute(
                "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE active",
            )
        })?;
        self.run_step(&POISON, || {
            self.execute(&poison)?;
            self.tracker.dead_letter();
            Ok(())
        })
    }

    fn execute(&self, sql: &str) -> Result<(), Failure> {
        block_on(async {
            let mut session = sql_session(self.info).await?;
            session.query(sql).await?;
            session.close().await;
            Ok(())
        })?
    }

    /// Injects the fault, waits until the relay shows it, and prints what the relay shows.
    fn run_step(
        &self,
        step: &Step,
        inject: impl FnOnce() -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        if !self.is_wanted() || !print(&format!("\n--- {}", step.heading)) {
            return Ok(());
        }
        inject()?;
        let begun = Instant::now();
        let relay = loop {
            let relay = self.request(fetch_status)?;
            if (step.expected)(&relay) {
                break relay;
            }
            if !self.is_wanted() {
                return Ok(());
            }
            if begun.elapsed() > STEP_TIMEOUT {
                let what = format!("the relay does not show this: {}", step.heading);
                return Err(Failure::new("demo", Exit::Data, what)
                    .remedy("this is a bug: please report it with the lines above"));
            }
            thread::sleep(INTERVAL);
        };
        let mut names = step.lines.to_vec();
        for (name, value) in status_lines(&relay) {
            // The first line of each name: there are several warnings, the newest first.
            if let Some(index) = names.iter().position(|shown| *shown == name) {
                names.swap_remove(index);
                print(&format!("  {name:<14} {value}"));
            }
        }
        let metrics = self.request(|http| fetch(http, "/metrics"))?;
        for line in metrics.lines() {
            let name = line.split(['{', ' ']).next().unwrap_or_default();
            if step.metrics.contains(&name) {
                print(&format!("  {line}"));
            }
        }
        print(&format!(
            "  => after {:.1} s; {}",
            begun.elapsed().as_secs_f64(),
            step.runbook
        ));
        if self.pause {
            self.wait_for_enter();
        } else if io::stdout().is_terminal() {
            thread::sleep(READING_TIME);
        }
        Ok(())
    }

    fn is_wanted(&self) -> bool {
        self.writing.load(Ordering::Acquire)
    }

    /// Waits for a line or the end of standard input, or until the writer stops.
    fn wait_for_enter(&self) {
        print("  Look at the page; press Enter to go on.");
        let (pressed, is_pressed) = mpsc::channel();
        // Nothing interrupts a read: at Ctrl-C the thread ends with the process.
        thread::spawn(move || {
            let _ = io::stdin().read_line(&mut String::new());
            let _ = pressed.send(());
        });
        while self.is_wanted() && is_pressed.recv_timeout(INTERVAL).is_err() {}
    }

    /// Makes a request to the HTTP endpoint.
    fn request<T>(
        &self,
        request: impl FnOnce(&Http) -> Result<T, NoDocument>,
    ) -> Result<T, Failure> {
        let http = self.config.process.http.as_ref();
        let answer = http
            .ok_or_else(|| "no endpoint is configured".to_owned().into())
            .and_then(request);
        answer.map_err(|error| {
            Failure::new("demo", Exit::Internal, "the status page does not answer")
                .caused_by(error)
                .remedy("see whether something between keeps 127.0.0.1 from answering, such as a proxy or a firewall")
        })
    }
}
