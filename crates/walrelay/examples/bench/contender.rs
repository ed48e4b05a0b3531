//! Who takes part.

use walrelay_testkit::{Db, SlotWatch, eventually_some};

use crate::polling::{self, Sent};
use crate::rig::{PATIENCE, Rig};

/// What reads the backlog, and by which way it reaches the database.
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
    /// The same by the binary that `BENCH_BASELINE` names.
    Baseline,
    Polling(Sent),
    /// Debezium Server, tuned.
    Debezium,
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
    pub(crate) const DEBEZIUM: Self = tcp(Kind::Debezium);

    const ALL: [Self; 10] = [
        Self::YARDSTICK,
        tcp(Kind::Null),
        Self::RELAY,
        tcp(Kind::Baseline),
        unix(Kind::Recvlogical),
        unix(Kind::Null),
        unix(Kind::Relay),
        tcp(Kind::Polling(Sent::Update)),
        tcp(Kind::Polling(Sent::Delete)),
        Self::DEBEZIUM,
    ];

    /// All that can take part; Debezium and the baseline only where they are asked for.
    pub(crate) fn all(peers: bool, baseline: bool) -> impl Iterator<Item = Self> {
        let takes_part = move |one: &Self| match one.kind {
            Kind::Debezium => peers,
            Kind::Baseline => baseline,
            _ => true,
        };
        Self::ALL.into_iter().filter(takes_part)
    }

    pub(crate) fn name(self) -> String {
        let by = if self.unix { "unix socket" } else { "TCP" };
        match self.kind {
            Kind::Recvlogical => format!("pg_recvlogical, {by}, to /dev/null"),
            Kind::Null => format!("walrelay, {by}, to nothing"),
            Kind::Relay => format!("walrelay, {by}, to Kafka"),
            Kind::Baseline => format!("walrelay, baseline, {by}, to Kafka"),
            Kind::Polling(Sent::Update) => format!("polling by 1,000, UPDATE, {by}, to Kafka"),
            Kind::Polling(Sent::Delete) => format!("polling by 1,000, DELETE, {by}, to Kafka"),
            Kind::Debezium => format!("Debezium Server, tuned, {by}, to Kafka"),
        }
    }

    /// For `BENCH_ONLY`, and for names of slots and topics.
    pub(crate) fn word(self) -> String {
        let by = if self.unix { "unix" } else { "tcp" };
        let kind = match self.kind {
            Kind::Recvlogical => "recvlogical",
            Kind::Null => "null",
            Kind::Relay => "relay",
            Kind::Baseline => "baseline_relay",
            Kind::Polling(Sent::Update) => "polling_update",
            Kind::Polling(Sent::Delete) => "polling_delete",
            Kind::Debezium => "debezium",
        };
        format!("{kind}_{by}")
    }

    /// Whether it writes to Kafka.
    pub(crate) fn produces(self) -> bool {
        !matches!(self.kind, Kind::Recvlogical | Kind::Null)
    }

    /// Whether it reads the table and not the log.
    pub(crate) fn polls(self) -> bool {
        matches!(self.kind, Kind::Polling(_))
    }

    pub(crate) fn url(self, rig: &Rig) -> String {
        if self.unix {
            rig.postgres.url()
        } else {
            rig.tcp()
        }
    }
}

/// The server's processes that work for a contender.
#[derive(Debug, Default)]
pub(crate) struct Backends {
    /// With the CPU that each was seen to have used.
    seen: Vec<(u32, f64)>,
}

impl Backends {
    /// Of these processes, from now on.
    fn new(pids: impl IntoIterator<Item = u32>) -> Self {
        Self {
            seen: pids.into_iter().map(|pid| (pid, 0.0)).collect(),
        }
    }

    /// Of a contender that needs none.
    pub(crate) fn none() -> Self {
        Self::new([])
    }

    /// The walsender that serves a slot, as soon as there is one.
    pub(crate) fn of_slot(slot: &SlotWatch) -> Self {
        Self::new([slot.wait_active(PATIENCE).unsigned_abs()])
    }

    /// Those of the relay that polls, as soon as all of them are there.
    pub(crate) fn of_polling(db: &Db) -> Self {
        let sql = "SELECT pid FROM pg_stat_activity WHERE application_name = $1";
        let rows = eventually_some(PATIENCE, || {
            let rows = db.query(sql, &[&polling::APPLICATION]);
            (rows.len() == polling::CONNECTIONS).then_some(rows)
        });
        Self::new(rows.iter().map(|row| row.get::<_, i32>(0).unsigned_abs()))
    }

    pub(crate) fn pids(&self) -> impl Iterator<Item = u32> {
        self.seen.iter().map(|(pid, _)| *pid)
    }

    /// Seconds so far. One that has ended counts with what it was seen to have used last.
    pub(crate) fn cpu(&mut self) -> f64 {
        for (pid, cpu) in &mut self.seen {
            *cpu = crate::proc::cpu(*pid).unwrap_or(*cpu);
        }
        self.seen.iter().map(|(_, cpu)| cpu).sum()
    }
}
