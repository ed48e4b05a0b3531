//! Debezium Server in a process of its own.

use std::fs;
use std::path::PathBuf;
use std::process::ExitStatus;

use walrelay_lab::servers::{Process, Scratch, Signal};
use walrelay_testkit::{SlotWatch, debezium_properties, debezium_server};

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
        let scratch = Scratch::new("walrelay-dbz-", None).expect("a directory");
        let options = ["-Xmx512m", "-XX:TieredStopAtLevel=1"];
        let mut command = debezium_server(scratch.path(), properties, &options);
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
        self.scratch.path().join("config/application.properties")
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

/// The properties that every test needs; what is routed and converted, each adds.
pub(crate) fn properties(rig: &Rig) -> String {
    let others = "debezium.source.publication.autocreate.mode=filtered\n\
        debezium.source.poll.interval.ms=10\n\
        debezium.source.offset.flush.interval.ms=200\n";
    debezium_properties(&rig.postgres, &rig.bootstrap, SLOT, "outbox", others)
}
