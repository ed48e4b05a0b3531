//! Draining the backlog.

use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use serde::Serialize;
use serde_json::Value;
use walrelay_lab::proc;
use walrelay_lsn::Lsn;
use walrelay_testkit::SlotWatch;

use crate::contender::{Backends, Contender, Kind};
use crate::cpu::Cpu;
use crate::debezium::Tuned;
use crate::judge::Judge;
use crate::quiet::Quiet;
use crate::rig::{Backlog, RelayConfig, Rig};
use crate::running::{PATIENCE, Running};

/// Often enough to lose nothing of a walsender that ends with its reader, seldom enough to cost
/// nothing.
const LOOK: Duration = Duration::from_millis(20);

/// One run. CPU is in seconds per million rows.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Drained {
    pub(crate) contender: String,
    pub(crate) word: String,
    pub(crate) round: usize,
    pub(crate) rows: u64,
    /// From the start of streaming until the slot is confirmed at the end. For those without
    /// confirmation until they end; for Debezium, whose start takes long, from its first record to its
    /// last.
    pub(crate) seconds: f64,
    pub(crate) rows_per_second: f64,
    pub(crate) second_half_rows_per_second: f64,
    pub(crate) reader_cpu: f64,
    /// Of the server's processes that serve the reader.
    pub(crate) postgres_cpu: f64,
    pub(crate) broker_cpu: Option<f64>,
    /// MB, at most.
    pub(crate) memory: f64,
    /// Records that came more than once.
    pub(crate) duplicates: usize,
    /// Processors that were busy with anything else.
    pub(crate) others: f64,
}

impl Drained {
    /// Processors that others may use without a run's being disturbed.
    const DISTURBED: f64 = 0.2;

    pub(crate) fn is_disturbed(&self) -> bool {
        self.others > Self::DISTURBED
    }

    /// CPU seconds per million rows, of a run into Kafka.
    pub(crate) fn cost_to_broker(&self) -> f64 {
        self.broker_cpu.expect("it is into Kafka")
    }
}

/// What is drained, and how.
pub(crate) struct Course<'a> {
    pub(crate) rig: &'a Rig,
    pub(crate) backlog: &'a Backlog,
    pub(crate) contender: Contender,
    pub(crate) round: usize,
    /// Encrypted to database and broker; for the relay alone.
    pub(crate) tls: bool,
}

impl Course<'_> {
    fn slot(&self) -> String {
        let (table, word) = (&self.backlog.table, self.contender.word());
        let tls = if self.tls { "_tls" } else { "" };
        format!("{table}_{word}{tls}_{}", self.round)
    }

    fn url(&self) -> String {
        if self.tls {
            self.rig.tls()
        } else {
            self.contender.url(self.rig)
        }
    }

    fn start(&self, slot: &str, prefix: &str) -> Running {
        let Self { rig, backlog, .. } = *self;
        let url = self.url();
        let config = RelayConfig {
            url: &url,
            table: &backlog.table,
            slot,
            prefix,
            tls: self.tls,
        };
        match self.contender.kind {
            Kind::Recvlogical => recvlogical(rig, &url, slot, backlog),
            Kind::Null => {
                let path = rig.relay_config(&config);
                let json = rig.file(&format!("{slot}.json"));
                let args = [
                    "bench".to_owned(),
                    format!("--config={}", path.display()),
                    format!("--copy-of={}", backlog.kept),
                    format!("--rows={}", backlog.load.rows),
                    format!("--json={}", json.display()),
                ];
                rig.spawn(&rig.binary, &args, "")
            }
            _ => {
                let rows = backlog.load.rows;
                self.contender.start(rig, &config, Tuned::Throughput, rows)
            }
        }
    }
}

pub(crate) fn run(course: &Course<'_>, judge: &mut Judge, quiet: &mut Quiet) -> Drained {
    let Course {
        rig,
        backlog,
        contender,
        round,
        ..
    } = *course;
    let slot = course.slot();
    let prefix = format!("{slot}.");
    let topics = backlog.load.topics(&prefix);
    let mut already = 0;
    if contender.produces() {
        already = rig.create_topics(&topics, backlog.load.partitions);
    }
    if contender.has_slot() {
        rig.slot_before(backlog, &slot);
    } else if contender.produces() {
        rig.fill_polled(backlog);
    }
    quiet.wait();

    // Before the start, because streaming begins while we look for its announcement.
    let mut before = Cpu::so_far(rig, 0.0, 0.0);
    let reader = course.start(&slot, &prefix);
    if contender.kind == Kind::Debezium {
        // What the start of a Java program costs is not draining.
        before = Cpu::so_far(rig, proc::cpu(reader.pid()).unwrap_or_default(), 0.0);
    }
    let draining = Draining {
        course,
        slot: &slot,
        topics: &topics,
        records: already + backlog.load.rows,
        reader: &reader,
    };
    let (used, seconds, half, memory) = draining.watch();
    let used = used.since(before, 1.0);
    if contender.kind == Kind::Debezium {
        // It takes its time, and nothing is asked of it any more.
        drop(reader);
    } else if contender.is_walrelay() {
        contender.end(reader);
    } else {
        reader.ended();
    }

    let rows = backlog.load.rows;
    let per_million = |cpu: f64| cpu * 1e6 / rows as f64;
    let second_half = |half| (rows - rows / 2) as f64 / seconds.saturating_sub(half).as_secs_f64();
    let mut drained = Drained {
        contender: contender.name(),
        word: contender.word(),
        round,
        rows,
        seconds: seconds.as_secs_f64(),
        rows_per_second: 0.0,
        second_half_rows_per_second: half.map_or(f64::NAN, second_half),
        reader_cpu: per_million(used.relay),
        postgres_cpu: per_million(used.postgres),
        broker_cpu: contender.produces().then(|| per_million(used.broker)),
        memory,
        duplicates: 0,
        others: (used.others() / seconds.as_secs_f64()).max(0.0),
    };
    if contender.kind == Kind::Null {
        let json = rig.file(&format!("{slot}.json"));
        told(&mut drained, &json, used.machine - used.own);
    }
    if contender.produces() {
        let appended = judge.judge(rig, &prefix);
        rig.delete_topics(&topics);
        drained.second_half_rows_per_second = appended.second_half(rows);
        drained.duplicates = appended.duplicates;
        if contender.kind == Kind::Debezium {
            drained.seconds = appended.seconds();
        }
    }
    drained.rows_per_second = rows as f64 / drained.seconds;
    if contender.has_slot() {
        rig.drop_slot(&slot);
    }
    drained
}

/// A reader at work.
struct Draining<'a> {
    course: &'a Course<'a>,
    slot: &'a str,
    topics: &'a [String],
    /// In the topics, when it is done.
    records: u64,
    reader: &'a Running,
}

impl Draining<'_> {
    /// Waits until all is drained. What was used until then, how long it took in all and, where that is
    /// known, until the half, and the most memory in MB.
    fn watch(&self) -> (Cpu, Duration, Option<Duration>, f64) {
        let &Course { rig, backlog, .. } = self.course;
        let contender = self.course.contender;
        let begun = Instant::now();
        let mut backends = Backends::of(contender, rig, self.slot);
        let watch = SlotWatch::new(&rig.postgres.url(), self.slot);
        let (mut reader, mut memory, mut half) = (0.0, 0.0_f64, None);
        let seconds = loop {
            // In this order: what is read last of a process that then ends is not read at all.
            backends.cpu();
            reader = proc::cpu(self.reader.pid()).unwrap_or(reader);
            memory = self.reader.megabytes("VmHWM").unwrap_or(0.0).max(memory);
            let looks = contender.kind == Kind::Recvlogical && half.is_none();
            if looks && sent(rig, &backends) >= Some(backlog.half) {
                half = Some(begun.elapsed());
            }
            let done = self.is_done(&watch);
            let seconds = begun.elapsed();
            if done {
                break seconds;
            }
            assert!(seconds < 5 * PATIENCE, "not drained: {}", self.reader.log());
            thread::sleep(LOOK);
        };
        let reader = proc::cpu(self.reader.pid()).unwrap_or(reader);
        (
            Cpu::so_far(rig, reader, backends.cpu()),
            seconds,
            half,
            memory,
        )
    }

    fn is_done(&self, watch: &SlotWatch) -> bool {
        let ended = proc::has_ended(self.reader.pid());
        let rig = self.course.rig;
        match self.course.contender.kind {
            _ if self.course.contender.is_walrelay() => {
                let confirmed = watch.read().map(|state| state.confirmed_flush);
                assert!(!ended, "{}", self.reader.log());
                confirmed >= Some(self.course.backlog.end)
            }
            Kind::Debezium => {
                assert!(!ended, "{}", self.reader.log());
                // It asks the broker for each partition: not as often.
                thread::sleep(5 * LOOK);
                let found: u64 = self.topics.iter().map(|topic| rig.records(topic)).sum();
                found >= self.records
            }
            _ => ended,
        }
    }
}

/// What `walrelay bench` has measured of itself.
fn told(drained: &mut Drained, json: &std::path::Path, machine: f64) {
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

/// Up to where a walsender has sent.
fn sent(rig: &Rig, backends: &Backends) -> Option<Lsn> {
    let pid = backends.pids().next()?.cast_signed();
    let sql = "SELECT sent_lsn::text FROM pg_stat_replication WHERE pid = $1";
    let rows = rig.db.query(sql, &[&pid]);
    rows.first()?.get::<_, Option<&str>>(0)?.parse().ok()
}

fn recvlogical(rig: &Rig, url: &str, slot: &str, backlog: &Backlog) -> Running {
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
    rig.spawn(&rig.recvlogical, &args, "streaming initiated")
}
