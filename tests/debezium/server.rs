//! Debezium Server in a process of its own.

use std::path::PathBuf;
use std::process::ExitStatus;

use walrelay_testkit::{Program, SlotWatch, debezium_properties, debezium_server};
use walrelay_throwaway::{Scratch, Signal};

use crate::rig::Rig;

/// Name of the slot and of the publication in these tests.
pub(crate) const SLOT: &str = "outbox";

/// A running Debezium Server. Dropping it kills it.
pub(crate) struct Debezium {
    program: Program,
    scratch: Scratch,
}

impl Debezium {
    /// Starts Debezium Server with this `application.properties`, and waits until it reads the
    /// slot.
    pub(crate) fn start(rig: &Rig, properties: &str) -> Self {
        let scratch = Scratch::new("walrelay-dbz-", None).expect("a directory");
        let options = ["-Xmx512m", "-XX:TieredStopAtLevel=1"];
        let mut command = debezium_server(scratch.path(), properties, &options);
        let log = scratch.path().join("log");
        let program = Program::spawn(&mut command, &log);
        let slot = SlotWatch::new(&rig.postgres.url(), SLOT);
        program.until("reader of the slot", || {
            slot.read().is_some_and(|slot| slot.active_pid.is_some())
        });
        Self { program, scratch }
    }

    /// Path of its `application.properties`.
    pub(crate) fn config(&self) -> PathBuf {
        self.scratch.path().join("config/application.properties")
    }

    pub(crate) fn log(&self) -> String {
        self.program.log()
    }

    /// Sends a signal and waits for the end.
    pub(crate) fn stop(&mut self, signal: Signal) -> ExitStatus {
        assert_eq!(self.program.status(), None, "{}", self.log());
        self.program.signal(signal);
        self.program.ended()
    }
}

/// Properties that every test needs; each test adds those of routing and conversion.
pub(crate) fn properties(rig: &Rig) -> String {
    let others = "debezium.source.publication.autocreate.mode=filtered\n\
        debezium.source.poll.interval.ms=10\n\
        debezium.source.offset.flush.interval.ms=200\n";
    debezium_properties(&rig.postgres, &rig.bootstrap, SLOT, "outbox", others)
}
