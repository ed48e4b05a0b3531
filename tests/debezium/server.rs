//! Debezium Server in a process of its own.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};

use walrelay_lab::servers::{Process, Scratch, Signal};
use walrelay_testkit::SlotWatch;

use crate::rig::{PATIENCE, Rig, eventually_or};

/// The slot and the publication of these tests.
pub(crate) const SLOT: &str = "outbox";

/// One that runs. Dropped, it is killed.
pub(crate) struct Debezium {
    process: Process,
    scratch: Scratch,
}

impl Debezium {
    /// Starts it with these lines of `application.properties`, and waits until it reads the slot.
    pub(crate) fn start(rig: &Rig, properties: &str) -> Self {
        let home = variable("WALRELAY_TEST_DEBEZIUM");
        let java = variable("WALRELAY_TEST_JAVA");
        let scratch = Scratch::new("walrelay-dbz-", None).expect("a directory");
        fs::create_dir(scratch.path().join("config")).expect("config");
        fs::write(config(scratch.path()), properties).expect("the properties are written");
        let runner = fs::read_dir(&home)
            .expect("Debezium Server")
            .map(|entry| entry.expect("an entry").path())
            .find(|path| path.to_string_lossy().ends_with("runner.jar"))
            .expect("debezium-server-dist-…-runner.jar");
        let mut command = Command::new(java);
        command
            .current_dir(scratch.path())
            .args(["-Xmx512m", "-XX:TieredStopAtLevel=1", "-cp"])
            .arg(format!("{}:{}/lib/*", runner.display(), home.display()))
            .arg("io.debezium.server.Main");
        let log = scratch.path().join("log");
        let process = Process::spawn(&mut command, &scratch, &log, Signal::Kill)
            .expect("Debezium Server starts");
        let debezium = Self { process, scratch };
        let slot = SlotWatch::new(&rig.postgres.url(), SLOT);
        let reads = || slot.read().is_some_and(|slot| slot.active_pid.is_some());
        eventually_or(
            PATIENCE,
            || {
                assert!(debezium.process.ended().is_none(), "{}", debezium.log());
                reads()
            },
            || {
                format!(
                    "Debezium Server does not read the slot:\n{}",
                    debezium.log()
                )
            },
        );
        debezium
    }

    /// Its `application.properties`.
    pub(crate) fn config(&self) -> PathBuf {
        config(self.scratch.path())
    }

    pub(crate) fn log(&self) -> String {
        fs::read_to_string(self.process.log()).unwrap_or_default()
    }

    /// Sends a signal and waits for its end.
    pub(crate) fn stop(&self, signal: Signal) -> ExitStatus {
        self.process.signal(signal).expect("it is running");
        let ended = self.process.wait(PATIENCE);
        ended.unwrap_or_else(|| panic!("it does not end:\n{}", self.log()))
    }
}

fn config(scratch: &Path) -> PathBuf {
    scratch.join("config/application.properties")
}

fn variable(name: &str) -> PathBuf {
    let value =
        env::var_os(name).unwrap_or_else(|| panic!("{name} is not set: make test-debezium"));
    value.into()
}

/// The properties that every test needs; what is routed and converted, each adds.
pub(crate) fn properties(rig: &Rig) -> String {
    format!(
        "debezium.source.connector.class=io.debezium.connector.postgresql.PostgresConnector\n\
         debezium.source.plugin.name=pgoutput\n\
         debezium.source.database.hostname=127.0.0.1\n\
         debezium.source.database.port={port}\n\
         debezium.source.database.user=postgres\n\
         debezium.source.database.password={password}\n\
         debezium.source.database.dbname=postgres\n\
         debezium.source.topic.prefix=srv\n\
         debezium.source.slot.name={SLOT}\n\
         debezium.source.publication.name={SLOT}\n\
         debezium.source.publication.autocreate.mode=filtered\n\
         debezium.source.table.include.list=public.outbox\n\
         debezium.source.snapshot.mode=no_data\n\
         debezium.source.poll.interval.ms=10\n\
         debezium.source.offset.storage.file.filename=offsets.dat\n\
         debezium.source.offset.flush.interval.ms=200\n\
         debezium.source.extended.headers.enabled=false\n\
         debezium.sink.type=kafka\n\
         debezium.sink.kafka.producer.bootstrap.servers={brokers}\n\
         debezium.sink.kafka.producer.key.serializer=org.apache.kafka.common.serialization.StringSerializer\n\
         debezium.sink.kafka.producer.value.serializer=org.apache.kafka.common.serialization.StringSerializer\n\
         quarkus.http.port=0\n\
         quarkus.log.console.json=false\n",
        port = rig.postgres.port(),
        password = rig.postgres.superuser_password(),
        brokers = rig.bootstrap,
    )
}
