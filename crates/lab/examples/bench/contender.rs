//! The contenders.

use walrelay_lab::proc;
use walrelay_testkit::{SlotWatch, eventually_some};

use crate::debezium::{self, Tuned};
use crate::polling::{self, Sent};
use crate::rig::{RelayConfig, Rig};
use crate::running::{PATIENCE, Running};

/// What carries rows, and by which way it reaches the database.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Contender {
    pub(crate) kind: Kind,
    pub(crate) unix: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// What comes with Postgres: it reads and throws away. The measure for the others.
    Recvlogical,
    /// `walrelay bench --copy-of`: reads, decodes, routes, and throws away.
    Null,
    /// `walrelay run`, with its defaults.
    Relay,
    /// The same with its HTTP endpoint, so that it records what metrics and page show.
    Observed,
    /// The same as `Relay` by the binary that `BENCH_BASELINE` names.
    Baseline,
    Polling(Sent),
    /// Debezium Server, tuned.
    Debezium,
    /// No relay: the writers send.
    Writers,
}

const fn tcp(kind: Kind) -> Contender {
    Contender { kind, unix: false }
}

const fn unix(kind: Kind) -> Contender {
    Contender { kind, unix: true }
}

impl Contender {
    /// The measure.
    pub(crate) const YARDSTICK: Self = tcp(Kind::Recvlogical);
    pub(crate) const RELAY: Self = tcp(Kind::Relay);
    pub(crate) const RELAY_UNIX: Self = unix(Kind::Relay);

    /// Those that drain a backlog.
    pub(crate) const DRAINING: [Self; 11] = [
        Self::YARDSTICK,
        tcp(Kind::Null),
        Self::RELAY,
        tcp(Kind::Observed),
        tcp(Kind::Baseline),
        unix(Kind::Recvlogical),
        unix(Kind::Null),
        Self::RELAY_UNIX,
        tcp(Kind::Polling(Sent::Update)),
        tcp(Kind::Polling(Sent::Delete)),
        tcp(Kind::Debezium),
    ];
    /// Those whose latency is measured.
    pub(crate) const PROMPT: [Self; 7] = [
        Self::RELAY,
        tcp(Kind::Observed),
        tcp(Kind::Baseline),
        Self::RELAY_UNIX,
        tcp(Kind::Writers),
        tcp(Kind::Polling(Sent::Update)),
        tcp(Kind::Debezium),
    ];
    /// Those that are measured with nothing to do.
    pub(crate) const IDLE: [Self; 4] = [
        Self::RELAY,
        tcp(Kind::Observed),
        tcp(Kind::Baseline),
        tcp(Kind::Debezium),
    ];

    /// Debezium and the baseline take part only where they are asked for.
    pub(crate) fn takes_part(self, rig: &Rig) -> bool {
        match self.kind {
            Kind::Debezium => rig.peers,
            Kind::Baseline => rig.baseline.is_some(),
            _ => true,
        }
    }

    /// In the tables of draining.
    pub(crate) fn name(self) -> String {
        let by = if self.unix { "unix socket" } else { "TCP" };
        match self.names() {
            (name, _, Some(to)) => format!("{name}, {by}, to {to}"),
            (name, _, None) => name.to_owned(),
        }
    }

    /// In the tables of latency.
    pub(crate) fn latency_name(self) -> String {
        match self.kind {
            Kind::Relay | Kind::Observed | Kind::Baseline => self.name().replace(", to Kafka", ""),
            Kind::Polling(_) => "polling every 50 ms, UPDATE".to_owned(),
            Kind::Debezium => "Debezium Server, tuned for latency".to_owned(),
            Kind::Recvlogical | Kind::Null | Kind::Writers => self.name(),
        }
    }

    /// For `BENCH_ONLY`, and for names of slots and topics.
    pub(crate) fn word(self) -> String {
        let (_, word, _) = self.names();
        format!("{word}_{}", if self.unix { "unix" } else { "tcp" })
    }

    /// Its name in tables, its word, and where it sends to.
    fn names(self) -> (&'static str, &'static str, Option<&'static str>) {
        const KAFKA: Option<&str> = Some("Kafka");
        match self.kind {
            Kind::Recvlogical => ("pg_recvlogical", "recvlogical", Some("/dev/null")),
            Kind::Null => ("walrelay", "null", Some("nothing")),
            Kind::Relay => ("walrelay", "relay", KAFKA),
            Kind::Observed => ("walrelay with [http]", "observed_relay", KAFKA),
            Kind::Baseline => ("walrelay, baseline", "baseline_relay", KAFKA),
            Kind::Polling(Sent::Update) => ("polling by 1,000, UPDATE", "polling_update", KAFKA),
            Kind::Polling(Sent::Delete) => ("polling by 1,000, DELETE", "polling_delete", KAFKA),
            Kind::Debezium => ("Debezium Server, tuned", "debezium", KAFKA),
            Kind::Writers => ("none, the writers send by themselves", "writers", None),
        }
    }

    /// Whether it is `walrelay run`.
    pub(crate) fn is_walrelay(self) -> bool {
        matches!(self.kind, Kind::Relay | Kind::Observed | Kind::Baseline)
    }

    /// Whether it writes to Kafka.
    pub(crate) fn produces(self) -> bool {
        !matches!(self.kind, Kind::Recvlogical | Kind::Null)
    }

    /// Whether it reads from a slot that is made for it.
    pub(crate) fn has_slot(self) -> bool {
        !matches!(self.kind, Kind::Null | Kind::Polling(_) | Kind::Writers)
    }

    pub(crate) fn url(self, rig: &Rig) -> String {
        if self.unix {
            rig.postgres.url()
        } else {
            rig.tcp()
        }
    }

    /// Starts what writes to Kafka, and returns when it reads. One that polls ends after so many rows, if
    /// there are any.
    pub(crate) fn start(
        self,
        rig: &Rig,
        config: &RelayConfig<'_>,
        tuned: Tuned,
        rows: u64,
    ) -> Running {
        match self.kind {
            Kind::Relay => rig.relay(&rig.binary, config, &[]),
            Kind::Observed => rig.relay(&rig.binary, config, &["--set=http.listen=127.0.0.1:0"]),
            Kind::Baseline => {
                let baseline = rig.baseline.as_deref();
                rig.relay(baseline.expect("BENCH_BASELINE is set"), config, &[])
            }
            Kind::Polling(sent) => {
                let kafka = rig.kafka.bootstrap_servers();
                let arguments = polling::arguments(config.url, &kafka, config.prefix, rows, sent);
                rig.spawn(&rig.own, &arguments, polling::BEGINS)
            }
            Kind::Debezium => debezium::start(rig, config.slot, config.prefix, tuned),
            Kind::Recvlogical | Kind::Null | Kind::Writers => {
                panic!("{} does not relay to Kafka", self.name())
            }
        }
    }

    /// Ends it: walrelay in order. Of the others nothing is asked any more.
    pub(crate) fn end(self, running: Running) {
        if self.is_walrelay() {
            running.terminate();
        }
    }
}

/// The server's processes that work for a contender.
#[derive(Debug)]
pub(crate) struct Backends {
    /// With the CPU that each was seen to have used.
    seen: Vec<(u32, f64)>,
}

impl Backends {
    /// Those of a contender, as soon as all of them are there.
    pub(crate) fn of(contender: Contender, rig: &Rig, slot: &str) -> Self {
        let pids = match contender.kind {
            Kind::Null | Kind::Writers => Vec::new(),
            Kind::Polling(_) => {
                let sql = "SELECT pid FROM pg_stat_activity WHERE application_name = $1";
                let rows = eventually_some(PATIENCE, || {
                    let rows = rig.db.query(sql, &[&polling::APPLICATION]);
                    (rows.len() == polling::CONNECTIONS).then_some(rows)
                });
                rows.iter().map(|row| row.get(0)).collect()
            }
            _ => vec![SlotWatch::new(&rig.postgres.url(), slot).wait_active(PATIENCE)],
        };
        let seen = |pid: i32| (pid.unsigned_abs(), 0.0);
        Self {
            seen: pids.into_iter().map(seen).collect(),
        }
    }

    pub(crate) fn pids(&self) -> impl Iterator<Item = u32> {
        self.seen.iter().map(|(pid, _)| *pid)
    }

    /// Seconds so far. One that has ended counts with what it was seen to have used last.
    pub(crate) fn cpu(&mut self) -> f64 {
        for (pid, cpu) in &mut self.seen {
            *cpu = proc::cpu(*pid).unwrap_or(*cpu);
        }
        self.seen.iter().map(|(_, cpu)| cpu).sum()
    }
}
