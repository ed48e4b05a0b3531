//! Reads the events behind the slot's position from a temporary copy of the slot: one of them, or all.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::sleep;
use walrelay_failure::{Exit, Failure};
use walrelay_lsn::Lsn;
use walrelay_postgres_source::{CopySource, Range, RangeSource};
use walrelay_relay::{PoisonAction, Progress};
use walrelay_sink::{EventPosition, Record, any_factory, lock};

use crate::commands::assembly::pipelines::{
    CommandPipeline, OnProgress, router_and_settings, run_until,
};
use crate::commands::assembly::server::Server;
use crate::commands::assembly::{block_on, wanted};
use crate::sinks::{Count, Counting, NullSinkFactory};

/// The events that are looked for.
#[derive(Clone, PartialEq, Eq)]
pub(super) enum Sought {
    /// The events with this id, so many at most.
    Event {
        /// The id.
        id: Vec<u8>,
        /// The number.
        most: usize,
    },
    /// All events, so many at most.
    All {
        /// The number.
        most: usize,
    },
}

/// A record that the router has made of an event.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Sighting {
    /// The event's id.
    pub(super) id: Option<Vec<u8>>,
    pub(super) topic: String,
    pub(super) routing_key: Option<String>,
    pub(super) position: EventPosition,
}

// Not derived: the id is a value of a row.
impl std::fmt::Debug for Sighting {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Sighting")
            .field("topic", &self.topic)
            .field("position", &self.position)
            .finish_non_exhaustive()
    }
}

/// Collects the records of the events that are looked for.
pub(super) struct Sightings {
    sought: Sought,
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
    pub(super) fn new(sought: Sought) -> Self {
        Self {
            sought,
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
        let mut seen = lock(&self.seen);
        let (is_sought, is_enough) = match &self.sought {
            Sought::Event { id, most } => (record.event_id == Some(&**id), seen.len() + 1 >= *most),
            Sought::All { most } => (seen.len() < *most, seen.len() + 1 >= *most),
        };
        if is_sought {
            seen.push(Sighting {
                id: record.event_id.map(<[u8]>::to_vec),
                topic: record.topic.to_owned(),
                routing_key: record.routing_key.map(str::to_owned),
                position: record.position,
            });
        }
        if is_sought && is_enough {
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

/// Reads the log from the slot's position on until enough is found, the log ends, or the time is over.
///
/// # Errors
/// If there is no slot that can be read, or no room for a copy of it.
pub(super) fn read(server: &Server, sought: &Sought, limit: Duration) -> Result<Log, Failure> {
    let config = &server.config;
    let (confirmed, end) = block_on(Box::pin(async {
        let mut session = server.connect().await?;
        let slot = server.find_slot(&mut session).await?;
        session.close().await;
        let confirmed = slot.and_then(|slot| slot.confirmed).ok_or_else(|| {
            let what = format!("there is no slot {}", server.slot());
            Failure::new("where-slot", Exit::Config, what)
                .remedy("correct [source] slot, or make the slot: walrelay init")
        })?;
        Ok::<_, Failure>((confirmed, server.identify().await?.flushed))
    }))??;
    let copies = CopySource::from_kept(
        server.info.clone(),
        wanted(config),
        server.slot(),
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
    let sightings = Arc::new(Sightings::new(sought.clone()));
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
