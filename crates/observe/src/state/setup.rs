//! [`Setup`]: what is known of a relay when it starts.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use walrelay_postgres_source::last_error::FoundError;
use walrelay_postgres_source::run_note::FormerRun;
use walrelay_postgres_source::{SlotWait, SnapshotProgress};
use walrelay_schema_registry::RegistryStats;
use walrelay_sink::Parking;
use walrelay_sink_kind::{SinkKind, SinkTerms};

use crate::sections::Slo;
use crate::{DlqAccess, EventJobs};

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
    pub state_file: Option<PathBuf>,
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
    /// Progress of the snapshot; `None` if none is configured.
    pub snapshot: Option<Arc<SnapshotProgress>>,
    /// What the creation of the slot waits for.
    pub slot_wait: Arc<SlotWait>,
    /// The error with which the last run ended, once the relay has found it.
    pub last_error: Arc<FoundError>,
    /// The note of the run before, once the relay has found it.
    pub former_run: Arc<FormerRun>,
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
