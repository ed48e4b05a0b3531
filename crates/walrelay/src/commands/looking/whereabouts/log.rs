//! Reads the events behind the slot's position from a temporary copy of the slot, and finds one of them.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::sleep;
use walrelay_lsn::Lsn;
use walrelay_postgres_source::{CopySource, Range, RangeSource};
use walrelay_relay::{PoisonAction, Progress};
use walrelay_sink::{EventPosition, Record, any_factory, lock};

use crate::cli::{Exit, Failure};
use crate::commands::assembly::pipelines::{
    CommandPipeline, OnProgress, router_and_settings, run_until,
};
use crate::commands::assembly::server::Server;
use crate::commands::assembly::{block_on, wanted};
use crate::sinks::{Count, Counting, NullSinkFactory};

/// A record that the router has made of the event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Sighting {
    pub(super) topic: String,
    pub(super) routing_key: Option<String>,
    pub(super) position: EventPosition,
}

/// Collects the records of one event.
pub(super) struct Sightings {
    id: Vec<u8>,
    seen: Mutex<Vec<Sighting>>,
    found: Notify,
}

// Not derived: the id is a value of a row.
impl std::fmt::Debug for Sightings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Sightings").finish_non_exhaustive()
    }
}

impl Sightings {
    pub(super) fn new(id: &[u8]) -> Self {
        Self {
            id: id.to_vec(),
            seen: Mutex::default(),
            found: Notify::new(),
        }
    }

    pub(super) fn take(&self) -> Vec<Sighting> {
        std::mem::take(&mut *lock(&self.seen))
    }
}

impl Count for Sightings {
    fn sent(&self, record: &Record<'_>) {
        if record.event_id == Some(&*self.id) {
            lock(&self.seen).push(Sighting {
                topic: record.topic.to_owned(),
                routing_key: record.routing_key.map(str::to_owned),
                position: record.position,
            });
            self.found.notify_one();
        }
    }

    fn delivered(&self) {}
}

/// The events behind the slot's position, as far as they were read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Log {
    /// The slot's position.
    pub(super) confirmed: Lsn,
    /// The end of the WAL when the reading began.
    pub(super) end: Lsn,
    /// The position up to which it was read.
    pub(super) read_to: Lsn,
    /// It was read to its end.
    pub(super) is_whole: bool,
    pub(super) seen: Vec<Sighting>,
}

/// Reads the log from the slot's position on until the event is found, the log ends, or the time is over.
///
/// # Errors
/// If there is no slot that can be read, or no room for a copy of it.
pub(super) fn behind_slot(server: &Server, id: &[u8], limit: Duration) -> Result<Log, Failure> {
    let config = &server.config;
    let (confirmed, end) = block_on(Box::pin(async {
        let mut session = server.connect().await?;
        let slot = server.find_slot(&mut session).await?;
        session.close().await;
        let confirmed = slot.and_then(|slot| slot.confirmed).ok_or_else(|| {
            let what = format!("there is no slot {}", server.slot());
            Failure::new("where-slot", Exit::Config, what)
        })?;
        Ok::<_, Failure>((confirmed, server.identify().await?.flushed))
    }))??;
    let copies = CopySource::from_kept(
        server.info.clone(),
        wanted(config),
        config.source.wal_sender_timeout,
        confirmed,
        false,
    );
    let range = Range {
        end,
        after: None,
        before: None,
    };
    let source = RangeSource::new(copies, range, None);
    let reading = source.reading();
    // An event that stops the relay must not stop this.
    let (router, settings) = router_and_settings(config, false, |_| PoisonAction::Skip)?;
    let sightings = Arc::new(Sightings::new(id));
    let factory = any_factory(Counting::new(NullSinkFactory, Arc::clone(&sightings)));
    let mut observer = OnProgress(|_: &Progress| {});
    let mut pipeline = CommandPipeline::new(source, router, factory, &mut observer, settings);
    let ended = async {
        tokio::select! {
            () = reading.ended() => {}
            () = sightings.found.notified() => {}
            () = sleep(limit) => {}
        }
    };
    run_until(&mut pipeline, ended)??;
    Ok(Log {
        confirmed,
        end,
        read_to: reading.position().max(confirmed),
        is_whole: reading.has_ended(),
        seen: sightings.take(),
    })
}
