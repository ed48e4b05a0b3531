//! One run of a relay.

use std::collections::HashMap;
use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use serde::Serialize;
use walrelay_measure::figures::Spread;
use walrelay_measure::proc;
use walrelay_testkit::{Program, SlotWatch};

use super::polling;
use super::target::{Case, Target};
use crate::checker::Checker;
use crate::cpu::{is_confirmed, megabytes, watch};
use crate::harness::{Backlog, Harness, OUTBOX, RelayConfig};
use crate::latency::WARM_UP;
use crate::polling::READY_LINE;
use crate::quiet::Quiet;
use crate::stream::{Stream, step, step_of, write};

/// The time for which the relay has nothing to do before its memory is read.
const SETTLE: Duration = Duration::from_secs(5);

/// A relay that is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub(super) enum Relay {
    Walrelay,
    Polling,
}

impl Relay {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Walrelay => "walrelay",
            Self::Polling => "polling",
        }
    }

    /// Returns the relays in the order of a round.
    pub(super) fn order(round: usize) -> [Self; 2] {
        if round.is_multiple_of(2) {
            [Self::Polling, Self::Walrelay]
        } else {
            [Self::Walrelay, Self::Polling]
        }
    }
}

/// One run of draining. CPU is in seconds per million rows.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Drained {
    pub(super) case: String,
    pub(super) relay: Relay,
    pub(super) round: usize,
    pub(super) rows: u64,
    pub(super) rows_per_second: f64,
    pub(super) relay_cpu: f64,
    pub(super) server_cpu: Option<f64>,
    /// Peak resident memory in MB.
    pub(super) memory: f64,
    pub(super) duplicates: usize,
}

/// Milliseconds from the commit to a consumer, of one run.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Latency {
    pub(super) relay: Relay,
    pub(super) round: usize,
    pub(super) rate: u64,
    pub(super) rows: usize,
    pub(super) consumer: Spread,
    /// Milliseconds that a writer was late at most.
    pub(super) behind: f64,
}

/// The servers of all runs.
pub(super) struct Runner<'a> {
    pub(super) harness: &'a Harness,
    pub(super) target: &'a Target,
}

impl Runner<'_> {
    /// Starts a relay; returns when it begins. `rows`: after so many a polling relay ends, or never.
    fn start(&self, relay: Relay, table: &str, name: &str, rows: u64) -> Program {
        let Self { harness, target } = *self;
        let url = harness.tcp();
        match relay {
            Relay::Walrelay => {
                let config = RelayConfig {
                    url: &url,
                    table,
                    slot: name,
                    prefix: "",
                    tls: false,
                    messages: false,
                };
                let path = harness.write_config(&config, &target.sections(name));
                let args = ["run".to_owned(), format!("--config={}", path.display())];
                harness.spawn(&harness.binary, &args, "\"streaming\"")
            }
            Relay::Polling => {
                let (kind, address) = (target.kind(), target.address());
                let args = polling::arguments(kind, &url, &address, name, rows);
                harness.spawn(&harness.bench_program, &args, READY_LINE)
            }
        }
    }

    /// Drains a backlog, and checks what has arrived: complete, each byte, in order per key.
    pub(super) fn drain(
        &self,
        backlog: &Backlog,
        case: Case,
        relay: Relay,
        round: usize,
        quiet: &mut Quiet,
    ) -> Drained {
        let Self { harness, target } = *self;
        let rows = backlog.load.rows;
        let name = format!("drain_{}_{}_{round}", case.word(), relay.name());
        target.prepare(&name, case);
        match relay {
            Relay::Walrelay => harness.slot_before(backlog, &name),
            Relay::Polling => harness.fill_polled(backlog),
        }
        quiet.wait();
        let server = target.cpu();
        let mut reader = self.start(relay, &backlog.table, &name, rows);
        let begun = Instant::now();
        let slot = SlotWatch::new(&harness.postgres.url(), &name);
        let usage = watch(&reader, begun, |_| match relay {
            Relay::Walrelay => is_confirmed(&reader, &slot, backlog),
            Relay::Polling => proc::has_ended(reader.pid()),
        });
        let server = target
            .cpu()
            .zip(server)
            .map(|(after, before)| after - before);
        match relay {
            Relay::Walrelay => {
                reader.ends_well();
                harness.drop_slot(&name);
            }
            Relay::Polling => {
                let status = reader.ended();
                assert!(status.success(), "{status}: {}", reader.log());
            }
        }
        let arrived = target.arrivals(&name, rows, || ());
        let mut events: Vec<_> = arrived.into_iter().map(|arrived| arrived.event).collect();
        for event in &mut events {
            "order".clone_into(&mut event.topic);
        }
        let duplicates = Checker::new(harness, backlog).check("", &events);
        let per_million = |cpu: f64| cpu * 1e6 / rows as f64;
        Drained {
            case: case.name(),
            relay,
            round,
            rows,
            rows_per_second: rows as f64 / usage.time.as_secs_f64(),
            relay_cpu: per_million(usage.cpu),
            server_cpu: server.map(per_million),
            memory: usage.memory,
            duplicates,
        }
    }

    /// Measures the time from the commit to a consumer of rows at this rate.
    pub(super) fn latency(
        &self,
        rate: u64,
        seconds: u64,
        relay: Relay,
        round: usize,
        quiet: &mut Quiet,
    ) -> Latency {
        let Self { harness, target } = *self;
        let name = format!("latency_{rate}_{}_{round}", relay.name());
        let table = match relay {
            Relay::Walrelay => OUTBOX,
            Relay::Polling => "polled",
        };
        target.prepare(&name, Case::AtOnce);
        let before = harness.last_seq(table);
        match relay {
            Relay::Walrelay => harness.slot_at_end(&name),
            Relay::Polling => harness.empty_polled(),
        }
        let running = self.start(relay, table, &name, 0);
        quiet.wait();
        let streams = Stream::orders(&[step(rate, WARM_UP), step(rate, seconds)]);
        let rows = streams.iter().flat_map(|stream| &stream.steps);
        let rows = rows.map(walrelay_measure::load::Step::rows).sum();
        let ready = Barrier::new(2);
        let (arrived, wrote) = thread::scope(|scope| {
            let consumer = scope.spawn(|| {
                target.arrivals(&name, rows, || {
                    ready.wait();
                })
            });
            ready.wait();
            let wrote = write(&harness.postgres.url(), table, &streams, None);
            (consumer.join().expect("all rows arrive"), wrote)
        });
        match relay {
            Relay::Walrelay => {
                running.ends_well();
                harness.drop_slot(&name);
            }
            Relay::Polling => running.kill(),
        }
        let mut seen = HashMap::new();
        for one in &arrived {
            // Of an event that is repeated, the first counts.
            seen.entry(one.event.id.as_deref()).or_insert(one.at);
        }
        let committed = harness.commit_times(table, before);
        let counted = committed
            .iter()
            .filter(|(_, number, _)| step_of(&streams, number.unsigned_abs()).1 == 1);
        let times = counted.map(|(id, _, committed)| {
            let at = seen.get(&Some(id.as_str()));
            at.expect("every row arrives") - committed
        });
        let mut times: Vec<i64> = times.collect();
        Latency {
            relay,
            round,
            rate,
            rows: times.len(),
            consumer: Spread::from_micros(&mut times).expect("rows of the step"),
            behind: wrote[0][1].behind.as_secs_f64() * 1e3,
        }
    }

    /// Returns the resident memory in MB of a relay that has nothing to do.
    pub(super) fn idle_memory(&self, quiet: &mut Quiet) -> f64 {
        const NAME: &str = "idle";
        let harness = self.harness;
        self.target.prepare(NAME, Case::AtOnce);
        harness.slot_at_end(NAME);
        let relay = self.start(Relay::Walrelay, OUTBOX, NAME, 0);
        quiet.wait();
        thread::sleep(SETTLE);
        let memory = megabytes(&relay, "VmRSS").expect("it runs");
        relay.ends_well();
        harness.drop_slot(NAME);
        memory
    }
}
