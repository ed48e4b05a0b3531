//! [`Setup`]: what is known of a relay when it starts. [`SourceFacts`]: what its source finds later.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use walrelay_lsn::Lsn;
use walrelay_relay::RegistryStats;
use walrelay_sink::Parking;
use walrelay_sink_kind::{SinkKind, SinkTerms};

use crate::report::{FormerRunReport, LastErrorReport, SnapshotReport};
use crate::sections::Slo;
use crate::{DlqAccess, EventJobs};

/// A function that replaces a file: after a failure, the file has the former text or the new one.
pub type ReplaceFile = fn(&Path, &str) -> io::Result<()>;

/// The facts that a source finds while the relay runs.
pub trait SourceFacts: fmt::Debug + Send + Sync {
    /// Returns the progress of the snapshot; `None` if none is configured.
    fn snapshot(&self) -> Option<SnapshotReport>;

    /// Returns what the creation of the slot waits for, and the remedy; `None` while it waits for nothing.
    fn opening_wait(&self) -> Option<(String, &'static str)>;

    /// Returns the error with which the last run ended, unless a later run has confirmed more: up to `confirmed`.
    fn last_error(&self, confirmed: Option<Lsn>) -> Option<LastErrorReport>;

    /// Returns the note of the run before; `None`: there is none, or it is not read yet.
    fn former_run(&self) -> Option<FormerRunReport>;
}

/// The part of the telemetry that does not change while the relay runs.
#[derive(Debug, Default)]
pub struct Setup {
    /// Name of the pipeline, by which several of a process are told apart.
    pub name: String,
    /// Name of the slot.
    pub slot: String,
    /// The connection string without its secrets.
    pub server: String,
    /// Name of the publication.
    pub publication: String,
    /// The outbox tables.
    pub tables: Vec<String>,
    /// Records in flight, at most.
    pub max_in_flight_records: u64,
    /// Bytes in flight, at most.
    pub max_in_flight_bytes: u64,
    /// The longest usual time between two events; `None` if none is configured.
    pub expect_event_every: Option<Duration>,
    /// The objective of `[slo]`.
    pub slo: Option<Slo>,
    /// The state file, beside which the history is noted; `None`: it is kept in memory alone.
    pub state_file: Option<(PathBuf, ReplaceFile)>,
    /// `source.retained_wal_warning` in bytes; `None` if it is off.
    pub retained_wal_warning: Option<u64>,
    /// Where records go.
    pub sink: SinkSetup,
    /// The topic of dead letters.
    pub dead_letter_topic: String,
    /// The dead letters, for the page; `None` if the sink cannot read them back.
    pub dead_letters: Option<Arc<DlqAccess>>,
    /// The commands of the page about one event; `None` if there are none.
    pub events: Option<Arc<EventJobs>>,
    /// The parked keys; `None` if keys are not parked.
    pub parking: Option<Arc<Parking>>,
    /// What the source finds; `None`: nothing is shown of it.
    pub source: Option<Arc<dyn SourceFacts>>,
    /// Requests to the schema registry; `None` if none is configured.
    pub registry: Option<Arc<RegistryStats>>,
    /// Whether spans are collected for OpenTelemetry.
    pub spans: bool,
    /// The effective configuration without secrets.
    pub config: Vec<(String, String)>,
}

/// The facts about a sink that views show.
#[derive(Debug, Default)]
pub struct SinkSetup {
    pub(crate) kind: &'static str,
    pub(crate) title: &'static str,
    pub(crate) terms: SinkTerms,
    pub(crate) servers: Option<String>,
}

impl SinkSetup {
    /// Takes the facts from a sink.
    pub fn new(sink: &dyn SinkKind) -> Self {
        let description = sink.description();
        Self {
            kind: description.name,
            title: description.title,
            terms: sink.terms(),
            servers: sink.servers(),
        }
    }
}
