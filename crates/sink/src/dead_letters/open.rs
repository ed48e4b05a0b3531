use std::collections::HashMap;
use std::fmt;

use super::entry::DlqEntry;
use super::interface::{DlqRecord, OpenDeadLetter};
use crate::EventPosition;

/// The open dead letters of one slot: dead letters that were neither redriven nor dropped. Their
/// events are in the topic of dead letters alone, and without a value not even there.
///
/// Memory: some 50 bytes for each dead letter that was read, and for an open one another 150 and its
/// event id.
pub struct OpenEvents {
    slot: String,
    /// `None`: resolved. A repeat of a resolved dead letter is resolved, too.
    events: HashMap<EventPosition, Option<OpenDeadLetter>>,
}

impl OpenEvents {
    /// Creates a set without events.
    pub fn new(slot: String) -> Self {
        Self {
            slot,
            events: HashMap::new(),
        }
    }

    /// Adds a dead letter of the slot, or resolves it. Other records change nothing.
    pub fn add(&mut self, entry: DlqEntry) {
        match entry {
            DlqEntry::DlqRecord(dead_letter) if dead_letter.slot == self.slot => {
                let DlqRecord {
                    id,
                    table,
                    event_id,
                    xid,
                    ..
                } = *dead_letter;
                self.events.entry(id).or_insert(Some(OpenDeadLetter {
                    table,
                    id: event_id,
                    xid,
                }));
            }
            DlqEntry::Resolution(resolution) if resolution.slot == self.slot => {
                self.events.insert(resolution.id, None);
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
    pub fn iter(&self) -> impl Iterator<Item = &OpenDeadLetter> {
        self.events.values().flatten()
    }
}

impl fmt::Debug for OpenEvents {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OpenEvents")
            .field("slot", &self.slot)
            .finish_non_exhaustive()
    }
}
