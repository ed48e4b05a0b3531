use std::collections::HashMap;
use std::error::Error;
use std::fmt;

use super::entry::DlqEntry;
use super::interface::{DeadLetterEvent, DeadLetterEvents, DlqRecord, Outcome, ReadOpen};
use walrelay_sink::{ClusterNames, EventOrigin};

/// The open dead letters of one slot: dead letters that were neither redriven nor dropped. Their
/// events are only in the topic of dead letters, and without a value not even there.
///
/// Memory: some 200 bytes for each dead letter that was read, and its event id.
pub struct OpenEvents {
    slot: String,
    events: HashMap<EventOrigin, ReadEvent>,
    clusters: ClusterNames,
}

/// An event that was read.
#[derive(Default)]
struct ReadEvent {
    /// `None`: only its resolution was read.
    event: Option<DeadLetterEvent>,
    /// A repeat of a resolved dead letter is resolved, too.
    resolved: Option<Outcome>,
}

impl OpenEvents {
    /// Creates a set without events.
    pub fn new(slot: String) -> Self {
        Self {
            slot,
            events: HashMap::new(),
            clusters: ClusterNames::default(),
        }
    }

    /// Makes the reader of the open dead letters of a slot, for a sink whose log starts again after an error.
    /// `open`: opens the log; `None`: there is no topic. `read`: as [`DlqLog::read`](super::DlqLog::read).
    /// An error for which `means_none` holds means that there is no dead letter.
    pub fn reader<L, R, E>(
        slot: &str,
        mut open: impl FnMut() -> Result<Option<L>, E> + Send + 'static,
        mut read: R,
        means_none: impl Fn(&E) -> bool + Send + 'static,
    ) -> ReadOpen
    where
        L: Send + 'static,
        R: FnMut(&mut L, &mut dyn FnMut(DlqEntry)) -> Result<(), E> + Send + 'static,
        E: Into<Box<dyn Error + Send + Sync>> + 'static,
    {
        let mut events = Self::new(slot.to_owned());
        let mut log = None;
        Box::new(move || {
            let mut read_on = || {
                if log.is_none() {
                    log = open()?;
                }
                match &mut log {
                    Some(log) => read(log, &mut |entry| events.add(entry)),
                    None => Ok(()),
                }
            };
            match read_on() {
                Ok(()) => Ok(events.all()),
                Err(error) => {
                    log = None;
                    events.clear();
                    if means_none(&error) {
                        return Ok(DeadLetterEvents::default());
                    }
                    Err(error.into())
                }
            }
        })
    }

    /// Adds a dead letter of the slot, or resolves it. Other records change nothing.
    pub fn add(&mut self, entry: DlqEntry) {
        match entry {
            DlqEntry::DlqRecord(dead_letter) if dead_letter.slot == self.slot => {
                let DlqRecord {
                    id,
                    system,
                    table,
                    event_id,
                    xid,
                    ..
                } = *dead_letter;
                let origin = self.clusters.origin(id, system.as_deref());
                let known = self.events.entry(origin.clone()).or_default();
                known.event.get_or_insert(DeadLetterEvent {
                    system: origin.1,
                    table,
                    id: event_id,
                    xid,
                });
            }
            DlqEntry::Resolution(resolution) if resolution.slot == self.slot => {
                let system = resolution.system.as_deref();
                let origin = self.clusters.origin(resolution.id, system);
                let known = self.events.entry(origin).or_default();
                known.resolved = Some(resolution.outcome);
            }
            // Another slot's, or no dead letter.
            DlqEntry::DlqRecord(_) | DlqEntry::Resolution(_) | DlqEntry::Foreign(_) => {}
        }
    }

    /// Removes all events: the records are read again from their beginning.
    pub fn clear(&mut self) {
        self.events.clear();
    }

    /// Iterates over the events of the open dead letters that were read.
    pub fn iter(&self) -> impl Iterator<Item = &DeadLetterEvent> {
        self.with_state(false)
    }

    /// Returns all events that were read.
    pub fn all(&self) -> DeadLetterEvents {
        DeadLetterEvents {
            open: self.with_state(false).cloned().collect(),
            resolved: self.with_state(true).cloned().collect(),
            outcomes: self
                .events
                .iter()
                .filter_map(|(origin, known)| Some((origin.clone(), known.resolved?)))
                .collect(),
        }
    }

    fn with_state(&self, resolved: bool) -> impl Iterator<Item = &DeadLetterEvent> {
        let events = self.events.values();
        events
            .filter(move |known| known.resolved.is_some() == resolved)
            .filter_map(|known| known.event.as_ref())
    }
}

impl fmt::Debug for OpenEvents {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OpenEvents")
            .field("slot", &self.slot)
            .finish_non_exhaustive()
    }
}
