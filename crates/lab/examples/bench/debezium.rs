//! Debezium Server, tuned, in a process of its own. Where it is: scripts/test-debezium.sh.

use std::env;
use std::fs;
use std::path::PathBuf;
use std::process::Command;

use walrelay_lab::proc;
use walrelay_testkit::{SlotWatch, eventually};

use crate::rig::{OUTBOX, PATIENCE, Rig};
use crate::running::Running;

/// For what it is tuned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Tuned {
    Throughput,
    Latency,
}

impl Tuned {
    fn lines(self) -> &'static str {
        match self {
            Self::Throughput => {
                "debezium.source.poll.interval.ms=5\n\
                 debezium.sink.kafka.producer.linger.ms=5\n\
                 debezium.sink.kafka.producer.batch.size=262144\n\
                 debezium.sink.kafka.producer.buffer.memory=134217728\n"
            }
            Self::Latency => {
                "debezium.source.poll.interval.ms=1\n\
                 debezium.sink.kafka.producer.linger.ms=0\n"
            }
        }
    }
}

/// Starts it on a slot that exists, and returns when it reads that.
pub(crate) fn start(rig: &Rig, slot: &str, prefix: &str, tuned: Tuned) -> Running {
    let home = variable("WALRELAY_TEST_DEBEZIUM");
    let java = variable("WALRELAY_TEST_JAVA");
    let work = rig.file(slot);
    fs::create_dir_all(work.join("config")).expect("a directory");
    fs::write(
        work.join("config/application.properties"),
        properties(rig, slot, prefix, tuned),
    )
    .expect("the properties are written");
    let runner = fs::read_dir(&home)
        .expect("Debezium Server")
        .map(|entry| entry.expect("an entry").path())
        .find(|path| path.to_string_lossy().ends_with("runner.jar"))
        .expect("debezium-server-dist-…-runner.jar");
    let mut command = Command::new(java);
    command
        .current_dir(&work)
        .args(["-Xms2g", "-Xmx2g", "-XX:+UseParallelGC", "-cp"])
        .arg(format!("{}:{}/lib/*", runner.display(), home.display()))
        .arg("io.debezium.server.Main");
    let running = rig.start_program(&mut command);
    let watch = SlotWatch::new(&rig.postgres.url(), slot);
    eventually(PATIENCE, || {
        assert!(!proc::has_ended(running.pid()), "{}", running.log());
        watch.read().is_some_and(|slot| slot.active_pid.is_some())
    });
    running
}

/// Records like walrelay's with its defaults.
fn properties(rig: &Rig, slot: &str, prefix: &str, tuned: Tuned) -> String {
    let router = "debezium.transforms.outbox";
    format!(
        "debezium.source.connector.class=io.debezium.connector.postgresql.PostgresConnector\n\
         debezium.source.plugin.name=pgoutput\n\
         debezium.source.database.hostname=127.0.0.1\n\
         debezium.source.database.port={port}\n\
         debezium.source.database.user=postgres\n\
         debezium.source.database.password={password}\n\
         debezium.source.database.dbname=postgres\n\
         debezium.source.database.sslmode=disable\n\
         debezium.source.topic.prefix=srv\n\
         debezium.source.slot.name={slot}\n\
         debezium.source.publication.name={OUTBOX}\n\
         debezium.source.publication.autocreate.mode=disabled\n\
         debezium.source.table.include.list=public.{OUTBOX}\n\
         debezium.source.snapshot.mode=no_data\n\
         debezium.source.max.batch.size=32768\n\
         debezium.source.max.queue.size=262144\n\
         debezium.source.offset.storage.file.filename=offsets.dat\n\
         debezium.source.offset.flush.interval.ms=1000\n\
         debezium.source.extended.headers.enabled=false\n\
         {}\
         debezium.transforms=outbox\n\
         {router}.type=io.debezium.transforms.outbox.EventRouter\n\
         {router}.route.topic.replacement={prefix}$${{routedByValue}}\n\
         debezium.format.key=simplestring\n\
         debezium.format.value=simplestring\n\
         debezium.format.header.class=org.apache.kafka.connect.storage.SimpleHeaderConverter\n\
         debezium.sink.type=kafka\n\
         debezium.sink.kafka.producer.bootstrap.servers={brokers}\n\
         debezium.sink.kafka.producer.acks=all\n\
         debezium.sink.kafka.producer.enable.idempotence=true\n\
         debezium.sink.kafka.producer.key.serializer=org.apache.kafka.common.serialization.StringSerializer\n\
         debezium.sink.kafka.producer.value.serializer=org.apache.kafka.common.serialization.StringSerializer\n\
         quarkus.http.port=0\n\
         quarkus.log.console.json=false\n",
        tuned.lines(),
        port = rig.postgres.port(),
        password = rig.postgres.superuser_password(),
        brokers = rig.kafka.bootstrap_servers(),
    )
}

fn variable(name: &str) -> PathBuf {
    let value = env::var_os(name);
    value
        .unwrap_or_else(|| panic!("{name} is not set: BENCH_PEERS=1 make bench sets it"))
        .into()
}
