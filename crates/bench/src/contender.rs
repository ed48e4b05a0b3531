//! The contenders: the programs that are measured, and the server processes that work for each.

use walrelay_measure::proc;
use walrelay_testkit::{PATIENCE, Program, SlotWatch, eventually_some};

use crate::debezium::{self, Tuned};
use crate::harness::{Harness, RelayConfig};
use crate::polling::{self, AfterSend};

/// A program under measurement, and whether it connects to Postgres by TCP or by the Unix socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Contender {
    pub(crate) kind: Kind,
    pub(crate) unix: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// `pg_recvlogical`, which comes with Postgres: reads the stream and discards it. The other
    /// contenders are compared with it.
    Recvlogical,
    /// `walrelay bench --copy-of`: reads, decodes and routes, and discards the records.
    Null,
    /// `walrelay run` with its defaults.
    Relay,
    /// `Relay` with the HTTP endpoint, which records the figures of metrics and status page.
    Observed,
    /// `Relay` by the binary that `BENCH_BASELINE` names.
    Baseline,
    Polling(AfterSend),
    /// Debezium Server, tuned.
    Debezium,
    /// No relay: the writers send the records.
    Writers,
}

const fn tcp(kind: Kind) -> Contender {
    Contender { kind, unix: false }
}

const fn unix(kind: Kind) -> Contender {
    Contender { kind, unix: true }
}

impl Contender {
    /// The contender that the others are compared with.
    pub(crate) const REFERENCE: Self = tcp(Kind::Recvlogical);
    pub(crate) const RELAY: Self = tcp(Kind::Relay);
    pub(crate) const RELAY_UNIX: Self = unix(Kind::Relay);

    /// Contenders that drain a backlog.
    pub(crate) const DRAINING: [Self; 11] = [
        Self::REFERENCE,
        tcp(Kind::Null),
        Self::RELAY,
        tcp(Kind::Observed),
        tcp(Kind::Baseline),
        unix(Kind::Recvlogical),
        unix(Kind::Null),
        Self::RELAY_UNIX,
        tcp(Kind::Polling(AfterSend::Update)),
        tcp(Kind::Polling(AfterSend::Delete)),
        tcp(Kind::Debezium),
    ];
    /// Contenders whose latency is measured.
    pub(crate) const LATENCY: [Self; 7] = [
        Self::RELAY,
        tcp(Kind::Observed),
        tcp(Kind::Baseline),
        Self::RELAY_UNIX,
        tcp(Kind::Writers),
        tcp(Kind::Polling(AfterSend::Update)),
        tcp(Kind::Debezium),
    ];
    /// Contenders that are measured while the outbox is idle.
    pub(crate) const IDLE: [Self; 4] = [
        Self::RELAY,
        tcp(Kind::Observed),
        tcp(Kind::Baseline),
        tcp(Kind::Debezium),
    ];

    /// Returns whether the contender takes part: Debezium and the baseline take part only on
    /// request.
    pub(crate) fn takes_part(self, harness: &Harness) -> bool {
        match self.kind {
            Kind::Debezium => harness.peers,
            Kind::Baseline => harness.baseline.is_some(),
            _ => true,
        }
    }

    /// Returns those of `contenders` that take part, in the order of a round. Every other round
    /// runs backwards, so that no contender profits from its place in the order.
    pub(crate) fn order(contenders: &[Self], harness: &Harness, round: usize) -> Vec<Self> {
        let mut order = contenders.to_vec();
        order.retain(|contender| contender.takes_part(harness));
        if round.is_multiple_of(2) {
            order.reverse();
        }
        order
    }

    /// Returns the name in the tables of draining.
    pub(crate) fn name(self) -> String {
        let by = if self.unix { "unix socket" } else { "TCP" };
        match self.names() {
            (name, _, Some(to)) => format!("{name}, {by}, to {to}"),
            (name, _, None) => name.to_owned(),
        }
    }

    /// Returns the name in the tables of latency.
    pub(crate) fn latency_name(self) -> String {
        match self.kind {
            Kind::Relay | Kind::Observed | Kind::Baseline => self.name().replace(", to Kafka", ""),
            Kind::Polling(_) => "polling every 50 ms, UPDATE".to_owned(),
            Kind::Debezium => "Debezium Server, tuned for latency".to_owned(),
            Kind::Recvlogical | Kind::Null | Kind::Writers => self.name(),
        }
    }

    /// Returns the short name: for `BENCH_ONLY`, and in the names of slots and topics.
    pub(crate) fn word(self) -> String {
        let (_, word, _) = self.names();
        format!("{word}_{}", if self.unix { "unix" } else { "tcp" })
    }

    /// Returns name in tables, short name, and destination.
    fn names(self) -> (&'static str, &'static str, Option<&'static str>) {
        const KAFKA: Option<&str> = Some("Kafka");
        match self.kind {
            Kind::Recvlogical => ("pg_recvlogical", "recvlogical", Some("/dev/null")),
            Kind::Null => ("walrelay", "null", Some("nothing")),
            Kind::Relay => ("walrelay", "relay", KAFKA),
            Kind::Observed => ("walrelay with [http]", "observed_relay", KAFKA),
            Kind::Baseline => ("walrelay, baseline", "baseline_relay", KAFKA),
            Kind::Polling(AfterSend::Update) => {
                ("polling by 1,000, UPDATE", "polling_update", KAFKA)
            }
            Kind::Polling(AfterSend::Delete) => {
                ("polling by 1,000, DELETE", "polling_delete", KAFKA)
            }
            Kind::Debezium => ("Debezium Server, tuned", "debezium", KAFKA),
            Kind::Writers => ("none, the writers send by themselves", "writers", None),
        }
    }

    /// Returns whether the contender is `walrelay run`.
    pub(crate) fn is_walrelay(self) -> bool {
        matches!(self.kind, Kind::Relay | Kind::Observed | Kind::Baseline)
    }

    /// Returns whether the contender writes to Kafka.
    pub(crate) fn produces(self) -> bool {
        !matches!(self.kind, Kind::Recvlogical | Kind::Null)
    }

    /// Returns whether the contender reads from a slot that is created for it.
    pub(crate) fn has_slot(self) -> bool {
        !matches!(self.kind, Kind::Null | Kind::Polling(_) | Kind::Writers)
    }

    pub(crate) fn url(self, harness: &Harness) -> String {
        if self.unix {
            harness.postgres.url()
        } else {
            harness.tcp()
        }
    }

    /// Starts a contender that writes to Kafka; returns when it reads from Postgres. A polling
    /// relay ends after `rows` rows, or never if `rows` is 0.
    pub(crate) fn start(
        self,
        harness: &Harness,
        config: &RelayConfig<'_>,
        tuned: Tuned,
        rows: u64,
    ) -> Program {
        match self.kind {
            Kind::Relay => harness.relay(&harness.binary, config, &[]),
            Kind::Observed => {
                harness.relay(&harness.binary, config, &["--set=http.listen=127.0.0.1:0"])
            }
            Kind::Baseline => {
                let baseline = harness.baseline.as_deref();
                harness.relay(baseline.expect("BENCH_BASELINE is set"), config, &[])
            }
            Kind::Polling(sent) => {
                let kafka = harness.kafka.bootstrap_servers();
                let arguments = polling::arguments(config.url, &kafka, config.prefix, rows, sent);
                harness.spawn(&harness.bench_program, &arguments, polling::READY_LINE)
            }
            Kind::Debezium => debezium::start(harness, config.slot, config.prefix, tuned),
            Kind::Recvlogical | Kind::Null | Kind::Writers => {
                panic!("{} does not relay to Kafka", self.name())
            }
        }
    }

    /// Ends the contender: walrelay by SIGTERM, which must succeed; any other by SIGKILL.
    pub(crate) fn end(self, running: Program) {
        if self.is_walrelay() {
            running.ends_well();
        }
    }
}

/// The processes of the Postgres server that work for a contender.
#[derive(Debug)]
pub(crate) struct Backends {
    /// Process ids, each with the CPU seconds last read for it.
    seen: Vec<(u32, f64)>,
}

impl Backends {
    /// Waits until all server processes of the contender exist.
    pub(crate) fn wait_for(contender: Contender, harness: &Harness, slot: &str) -> Self {
        let pids = match contender.kind {
            Kind::Null | Kind::Writers => Vec::new(),
            Kind::Polling(_) => {
                let sql = "SELECT pid FROM pg_stat_activity WHERE application_name = $1";
                let rows = eventually_some(PATIENCE, || {
                    let rows = harness.db.query(sql, &[&polling::APPLICATION]);
                    (rows.len() == polling::CONNECTIONS).then_some(rows)
                });
                rows.iter().map(|row| row.get(0)).collect()
            }
            _ => vec![SlotWatch::new(&harness.postgres.url(), slot).wait_active(PATIENCE)],
        };
        let seen = |pid: i32| (pid.unsigned_abs(), 0.0);
        Self {
            seen: pids.into_iter().map(seen).collect(),
        }
    }

    pub(crate) fn pids(&self) -> impl Iterator<Item = u32> {
        self.seen.iter().map(|(pid, _)| *pid)
    }

    /// Returns the CPU seconds of all the processes so far. A process that has ended counts with
    /// its last reading.
    pub(crate) fn cpu(&mut self) -> f64 {
        for (pid, cpu) in &mut self.seen {
            *cpu = proc::cpu(*pid).unwrap_or(*cpu);
        }
        self.seen.iter().map(|(_, cpu)| cpu).sum()
    }
}
