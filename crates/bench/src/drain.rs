//! Draining a backlog.

use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use serde::Serialize;
use serde_json::Value;
use walrelay_lsn::Lsn;
use walrelay_measure::proc;
use walrelay_testkit::{Program, SlotWatch};

use crate::checker::Checker;
use crate::contender::{Backends, Contender, Kind};
use crate::cpu::{Cpu, Usage, is_confirmed, watch};
use crate::debezium::Tuned;
use crate::harness::{Backlog, Harness, RelayConfig};
use crate::load_kind::Form;
use crate::quiet::Quiet;

/// Pause before the records of the topics are counted: the count asks the broker about each partition.
const COUNT_PAUSE: Duration = Duration::from_millis(100);

/// One run of draining. CPU is in seconds per million rows.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Drained {
    pub(crate) contender: String,
    pub(crate) word: String,
    pub(crate) round: usize,
    pub(crate) rows: u64,
    /// Seconds from the start of streaming until the slot is confirmed at the end of the backlog.
    /// For contenders that do not confirm: until they end. For Debezium, which starts slowly: from
    /// its first record to its last.
    pub(crate) seconds: f64,
    pub(crate) rows_per_second: f64,
    pub(crate) second_half_rows_per_second: f64,
    pub(crate) reader_cpu: f64,
    /// CPU of the Postgres processes that serve the reader.
    pub(crate) postgres_cpu: f64,
    pub(crate) broker_cpu: Option<f64>,
    /// Peak resident memory in MB.
    pub(crate) memory: f64,
    /// Records that arrived more than once.
    pub(crate) duplicates: usize,
    /// Processors that anything else on the machine used.
    pub(crate) others: f64,
}

impl Drained {
    fn new(spec: &DrainSpec<'_>, watched: &Watched) -> Self {
        let contender = spec.contender;
        let rows = spec.backlog.load.rows;
        let Watched {
            used,
            half_time,
            usage: Usage { time, memory, .. },
        } = *watched;
        let seconds = time.as_secs_f64();
        let per_million = |cpu: f64| cpu * 1e6 / rows as f64;
        let second_half = |half| (rows - rows / 2) as f64 / time.saturating_sub(half).as_secs_f64();
        Self {
            contender: contender.name(),
            word: contender.word(),
            round: spec.round,
            rows,
            seconds,
            rows_per_second: 0.0,
            second_half_rows_per_second: half_time.map_or(f64::NAN, second_half),
            reader_cpu: per_million(used.relay),
            postgres_cpu: per_million(used.postgres),
            broker_cpu: contender.produces().then(|| per_million(used.broker)),
            memory,
            duplicates: 0,
            others: (used.others() / seconds).max(0.0),
        }
    }

    /// A run counts as disturbed when others use more than this many processors.
    const DISTURBED: f64 = 0.2;

    pub(crate) fn is_disturbed(&self) -> bool {
        self.others > Self::DISTURBED
    }

    /// Returns the CPU seconds of the broker per million rows. Panics for a run that does not write
    /// to Kafka.
    pub(crate) fn cost_to_broker(&self) -> f64 {
        self.broker_cpu.expect("it is into Kafka")
    }
}

/// The load to drain, and the contender that drains it.
pub(crate) struct DrainSpec<'a> {
    pub(crate) harness: &'a Harness,
    pub(crate) backlog: &'a Backlog,
    pub(crate) contender: Contender,
    pub(crate) round: usize,
    /// True if the connections to Postgres and Kafka use TLS. Only for walrelay.
    pub(crate) tls: bool,
}

impl DrainSpec<'_> {
    fn slot(&self) -> String {
        let (table, word) = (&self.backlog.table, self.contender.word());
        let tls = if self.tls { "_tls" } else { "" };
        format!("{table}_{word}{tls}_{}", self.round)
    }

    fn url(&self) -> String {
        if self.tls {
            self.harness.tls()
        } else {
            self.contender.url(self.harness)
        }
    }

    fn start(&self, slot: &str, prefix: &str) -> Program {
        let Self {
            harness, backlog, ..
        } = *self;
        let url = self.url();
        let config = RelayConfig {
            url: &url,
            table: &backlog.table,
            slot,
            prefix,
            tls: self.tls,
            messages: backlog.load.form != Form::Rows,
        };
        match self.contender.kind {
            Kind::Recvlogical => recvlogical(harness, &url, slot, backlog),
            Kind::Null => {
                let path = harness.relay_config(&config);
                let json = harness.file(&format!("{slot}.json"));
                let args = [
                    "bench".to_owned(),
                    format!("--config={}", path.display()),
                    format!("--copy-of={}", backlog.kept),
                    format!("--rows={}", backlog.load.rows),
                    format!("--json={}", json.display()),
                ];
                harness.spawn(&harness.binary, &args, "")
            }
            _ => {
                let rows = backlog.load.rows;
                self.contender
                    .start(harness, &config, Tuned::Throughput, rows)
            }
        }
    }
}

pub(crate) fn run(spec: &DrainSpec<'_>, checker: &mut Checker, quiet: &mut Quiet) -> Drained {
    let &DrainSpec {
        harness,
        backlog,
        contender,
        ..
    } = spec;
    let slot = spec.slot();
    let prefix = format!("{slot}.");
    let topics = backlog.load.topics(&prefix);
    let mut already = 0;
    if contender.produces() {
        already = harness.create_topics(&topics, backlog.load.partitions);
    }
    if contender.has_slot() {
        harness.slot_before(backlog, &slot);
    } else if contender.produces() {
        harness.fill_polled(backlog);
    }
    quiet.wait();

    // Read the CPU before the start: streaming begins while `start` still waits for the log line.
    let mut before = Cpu::so_far(harness, 0.0, 0.0);
    let mut reader = spec.start(&slot, &prefix);
    if contender.kind == Kind::Debezium {
        // The start of a JVM is not part of draining.
        before = Cpu::so_far(harness, proc::cpu(reader.pid()).unwrap_or_default(), 0.0);
    }
    let draining = Draining {
        spec,
        slot: &slot,
        topics: &topics,
        records: already + backlog.load.rows,
        reader: &reader,
    };
    let mut watched = draining.watch();
    watched.used = watched.used.since(before, 1.0);
    if contender.kind == Kind::Debezium {
        // A Debezium Server takes long to stop, so it is killed.
        drop(reader);
    } else if contender.is_walrelay() {
        contender.end(reader);
    } else {
        let status = reader.ended();
        assert!(status.success(), "{status}: {}", reader.log());
    }

    let rows = backlog.load.rows;
    let mut drained = Drained::new(spec, &watched);
    if contender.kind == Kind::Null {
        let json = harness.file(&format!("{slot}.json"));
        take_own_figures(&mut drained, &json, watched.used.machine - watched.used.own);
    }
    if contender.produces() {
        let appended = checker.check_records(harness, &prefix);
        harness.delete_topics(&topics);
        drained.second_half_rows_per_second = appended.second_half(rows);
        drained.duplicates = appended.duplicates;
        if contender.kind == Kind::Debezium {
            drained.seconds = appended.seconds();
        }
    }
    drained.rows_per_second = rows as f64 / drained.seconds;
    if contender.has_slot() {
        harness.drop_slot(&slot);
    }
    drained
}

/// The figures that were read while a backlog was drained.
struct Watched {
    used: Cpu,
    /// Time until half of the rows were sent, if known.
    half_time: Option<Duration>,
    /// Until the backlog was drained.
    usage: Usage,
}

/// A run while its reader works.
struct Draining<'a> {
    spec: &'a DrainSpec<'a>,
    slot: &'a str,
    topics: &'a [String],
    /// Records in the topics when the run is complete.
    records: u64,
    reader: &'a Program,
}

impl Draining<'_> {
    /// Waits until the backlog is drained.
    fn watch(&self) -> Watched {
        let &DrainSpec {
            harness,
            backlog,
            contender,
            ..
        } = self.spec;
        let begun = Instant::now();
        let mut backends = Backends::wait_for(contender, harness, self.slot);
        let slot = SlotWatch::new(&harness.postgres.url(), self.slot);
        let mut half_time = None;
        let usage = watch(self.reader, begun, |time| {
            backends.cpu();
            let wants_half = contender.kind == Kind::Recvlogical && half_time.is_none();
            if wants_half && sent(harness, &backends) >= Some(backlog.half) {
                half_time = Some(time);
            }
            self.is_done(&slot)
        });
        Watched {
            used: Cpu::so_far(harness, usage.cpu, backends.cpu()),
            half_time,
            usage,
        }
    }

    fn is_done(&self, slot: &SlotWatch) -> bool {
        let ended = proc::has_ended(self.reader.pid());
        let harness = self.spec.harness;
        match self.spec.contender.kind {
            _ if self.spec.contender.is_walrelay() => {
                is_confirmed(self.reader, slot, self.spec.backlog)
            }
            Kind::Debezium => {
                assert!(!ended, "{}", self.reader.log());
                thread::sleep(COUNT_PAUSE);
                let found: u64 = self.topics.iter().map(|topic| harness.records(topic)).sum();
                found >= self.records
            }
            _ => ended,
        }
    }
}

/// Takes the figures from the JSON that `walrelay bench` wrote about its own run.
fn take_own_figures(drained: &mut Drained, json: &std::path::Path, machine: f64) {
    let text = fs::read_to_string(json).expect("its figures");
    let figures: Value = serde_json::from_str(&text).expect("JSON");
    let run = &figures["drained"][0];
    let figure = |name: &str| {
        let figure = run[name].as_f64();
        figure.unwrap_or_else(|| panic!("no {name} in {text}"))
    };
    let whole = drained.seconds;
    drained.seconds = figure("seconds");
    drained.second_half_rows_per_second = figure("second_half_rows_per_second");
    drained.reader_cpu = figure("relay_cpu");
    drained.postgres_cpu = figure("walsender_cpu");
    drained.memory = figure("peak_memory_mb");
    let its = (drained.reader_cpu + drained.postgres_cpu) * drained.rows as f64 / 1e6;
    drained.others = ((machine - its) / whole).max(0.0);
}

/// Returns the position up to which the walsender has sent (`sent_lsn`).
fn sent(harness: &Harness, backends: &Backends) -> Option<Lsn> {
    let pid = backends.pids().next()?.cast_signed();
    let sql = "SELECT sent_lsn::text FROM pg_stat_replication WHERE pid = $1";
    let rows = harness.db.query(sql, &[&pid]);
    rows.first()?.get::<_, Option<&str>>(0)?.parse().ok()
}

fn recvlogical(harness: &Harness, url: &str, slot: &str, backlog: &Backlog) -> Program {
    let args = [
        "--start".to_owned(),
        "--verbose".to_owned(),
        "--no-loop".to_owned(),
        "--file=/dev/null".to_owned(),
        "--option=proto_version=1".to_owned(),
        format!("--option=publication_names={}", backlog.table),
        format!("--slot={slot}"),
        format!("--endpos={}", backlog.end),
        format!("--dbname={url}"),
    ];
    harness.spawn(&harness.recvlogical, &args, "streaming initiated")
}
