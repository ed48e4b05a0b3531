//! Draining the backlog.

use std::process;
use std::thread;
use std::time::{Duration, Instant};

use walrelay_testkit::SlotWatch;

use crate::polling::{self, Sent};
use crate::proc::{self, Quiet};
use crate::rig::{Backlog, PATIENCE, PUBLICATION, Rig, Running};

/// Often enough to lose nothing of a walsender that ends with its reader, seldom enough to cost
/// nothing.
const LOOK: Duration = Duration::from_millis(20);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Contender {
    /// What comes with Postgres: it reads and throws away. The measure for the others.
    RecvlogicalTcp,
    RelayTcp,
    RecvlogicalUnix,
    RelayUnix,
    /// Over TCP, the rows marked as sent.
    PollingUpdate,
    /// The same, the rows deleted.
    PollingDelete,
}

impl Contender {
    pub(crate) const ALL: [Self; 6] = [
        Self::RecvlogicalTcp,
        Self::RelayTcp,
        Self::RecvlogicalUnix,
        Self::RelayUnix,
        Self::PollingUpdate,
        Self::PollingDelete,
    ];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::RecvlogicalTcp => "pg_recvlogical, TCP, to /dev/null",
            Self::RelayTcp => "walrelay, TCP, to Kafka",
            Self::RecvlogicalUnix => "pg_recvlogical, unix socket, to /dev/null",
            Self::RelayUnix => "walrelay, unix socket, to Kafka",
            Self::PollingUpdate => "polling by 1,000, UPDATE, TCP, to Kafka",
            Self::PollingDelete => "polling by 1,000, DELETE, TCP, to Kafka",
        }
    }

    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::RecvlogicalTcp => "recvlogical_tcp",
            Self::RelayTcp => "relay_tcp",
            Self::RecvlogicalUnix => "recvlogical_unix",
            Self::RelayUnix => "relay_unix",
            Self::PollingUpdate => "polling_update",
            Self::PollingDelete => "polling_delete",
        }
    }

    pub(crate) fn is_relay(self) -> bool {
        matches!(self, Self::RelayTcp | Self::RelayUnix)
    }

    /// Whether it writes to Kafka.
    pub(crate) fn produces(self) -> bool {
        !matches!(self, Self::RecvlogicalTcp | Self::RecvlogicalUnix)
    }

    fn polling(self) -> Option<Sent> {
        match self {
            Self::PollingUpdate => Some(Sent::Update),
            Self::PollingDelete => Some(Sent::Delete),
            _ => None,
        }
    }

    fn url(self, rig: &Rig) -> String {
        match self {
            Self::RecvlogicalUnix | Self::RelayUnix => rig.postgres.url(),
            _ => rig
                .postgres
                .url_tcp()
                .unwrap_or_else(|| unreachable!("the server listens at TCP by default")),
        }
    }
}

/// One run. CPU is in seconds per million rows.
#[derive(Debug, Clone)]
pub(crate) struct Drained {
    pub(crate) contender: Contender,
    pub(crate) round: usize,
    /// From the start of streaming until the slot is confirmed at the end; for `pg_recvlogical`
    /// until it ends there.
    pub(crate) seconds: f64,
    pub(crate) rows_per_second: f64,
    pub(crate) reader_cpu: f64,
    /// Of the one process of the server that serves the reader.
    pub(crate) walsender_cpu: f64,
    pub(crate) broker_cpu: f64,
    /// MB, at most.
    pub(crate) memory: f64,
    /// Processors that were busy with anything else.
    pub(crate) others: f64,
}

impl Drained {
    /// Processors that others may use without a run's being disturbed.
    const DISTURBED: f64 = 0.2;

    pub(crate) fn is_disturbed(&self) -> bool {
        self.others > Self::DISTURBED
    }
}

/// CPU seconds used so far.
struct Used {
    reader: f64,
    walsender: f64,
    broker: f64,
    /// Of this program.
    own: f64,
    machine: f64,
}

pub(crate) fn run(
    rig: &Rig,
    backlog: &Backlog,
    contender: Contender,
    round: usize,
    quiet: &mut Quiet,
) -> Drained {
    let slot = format!("{}_{round}", contender.word());
    let prefix = format!("{slot}.");
    let topic = format!("{prefix}order");
    if contender.produces() {
        rig.create_topic(&topic);
    }
    match contender.polling() {
        Some(_) => rig.fill_polled(),
        None => rig.slot_before_backlog(&slot),
    }
    let watch = SlotWatch::new(&rig.postgres.url(), &slot);
    quiet.wait();

    let broker = rig.kafka.pid().expect("the broker runs");
    // Before the start, because streaming begins while we look for its announcement.
    let own = || proc::cpu(process::id()).unwrap_or_default();
    let mut used = Used {
        reader: 0.0,
        walsender: 0.0,
        broker: proc::cpu(broker).expect("the broker runs"),
        own: own(),
        machine: proc::machine_cpu(),
    };
    let reader = match contender.polling() {
        Some(sent) => {
            let kafka = rig.kafka.bootstrap_servers();
            let url = contender.url(rig);
            let arguments = polling::arguments(&url, &kafka, &topic, backlog.rows, sent);
            rig.spawn(&rig.own, &arguments, polling::BEGINS)
        }
        None if contender.is_relay() => rig.relay(&contender.url(rig), &slot, &prefix),
        None => recvlogical(rig, contender, &slot, backlog),
    };
    let begun = Instant::now();
    let walsender = match contender.polling() {
        Some(_) => rig.polling_backend(),
        None => watch.wait_active(PATIENCE).unsigned_abs(),
    };
    let mut memory: f64 = 0.0;
    let seconds = loop {
        // In this order: what is read last of a process that then ends is not read at all.
        used.walsender = proc::cpu(walsender).unwrap_or(used.walsender);
        used.reader = proc::cpu(reader.pid()).unwrap_or(used.reader);
        memory = proc::memory(reader.pid(), "VmHWM:").map_or(memory, |now| now.max(memory));
        let done = if contender.is_relay() {
            let confirmed = watch.read().map(|state| state.confirmed_flush);
            assert!(!proc::is_zombie(reader.pid()), "{}", reader.log());
            confirmed >= Some(backlog.end)
        } else {
            proc::is_zombie(reader.pid())
        };
        let seconds = begun.elapsed();
        if done {
            break seconds.as_secs_f64();
        }
        assert!(seconds < PATIENCE, "not drained: {}", reader.log());
        thread::sleep(LOOK);
    };
    used.walsender = proc::cpu(walsender).unwrap_or(used.walsender);
    used.reader = proc::cpu(reader.pid()).unwrap_or(used.reader);
    used.broker = proc::cpu(broker).expect("the broker runs") - used.broker;
    used.own = own() - used.own;
    used.machine = proc::machine_cpu() - used.machine;

    if contender.is_relay() {
        reader.terminate();
    } else {
        reader.ended();
    }
    if contender.produces() {
        let found = rig.records(&topic);
        assert_eq!(found, backlog.rows, "records in {topic}");
    }
    if contender.polling().is_none() {
        rig.drop_slot(&slot);
    }

    let per_million = |cpu: f64| cpu * 1e6 / backlog.rows as f64;
    let others = used.machine - used.reader - used.walsender - used.broker - used.own;
    Drained {
        contender,
        round,
        seconds,
        rows_per_second: backlog.rows as f64 / seconds,
        reader_cpu: per_million(used.reader),
        walsender_cpu: per_million(used.walsender),
        broker_cpu: per_million(used.broker),
        memory,
        others: (others / seconds).max(0.0),
    }
}

fn recvlogical(rig: &Rig, contender: Contender, slot: &str, backlog: &Backlog) -> Running {
    let args = [
        "--start".to_owned(),
        "--verbose".to_owned(),
        "--no-loop".to_owned(),
        "--file=/dev/null".to_owned(),
        "--option=proto_version=1".to_owned(),
        format!("--option=publication_names={PUBLICATION}"),
        format!("--slot={slot}"),
        format!("--endpos={}", backlog.end),
        format!("--dbname={}", contender.url(rig)),
    ];
    rig.spawn(&rig.recvlogical, &args, "streaming initiated")
}
