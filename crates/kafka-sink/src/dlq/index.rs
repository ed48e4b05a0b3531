use std::collections::hash_map::Entry as Slot;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt;
use std::sync::Arc;

use walrelay_sink::{EventPosition, dlq_headers};

use super::entry::{DlqRecord, Entry, Outcome, Position};

/// Which dead letter: names of slots in order, then the order of the log.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DlqRecordId {
    /// The replication slot.
    pub slot: Arc<str>,
    /// The event of the slot.
    pub id: EventPosition,
}

/// Slot, LSN and row.
impl fmt::Display for DlqRecordId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.slot, self.id)
    }
}

/// What is known of all dead letters, so that each can be fetched again.
///
/// Memory: about 100 bytes for every dead letter that the topic holds, and for an open one another 150
/// and its key. Values and headers are not kept.
#[derive(Debug, Default)]
pub struct DlqIndex {
    known: HashMap<DlqRecordId, Known>,
    /// Slots and topics: few, and each kept once.
    names: HashSet<Arc<str>>,
    foreign: u64,
    open: usize,
}

#[derive(Debug)]
struct Known {
    /// Of its first copy; unknown while only its resolution was read.
    position: Option<Position>,
    selected: bool,
    outcome: Option<Outcome>,
    open: Option<Box<Open>>,
}

/// What an open dead letter needs: to be taken in order, and not too many at once.
struct Open {
    place: Place,
    parked: bool,
    bytes: usize,
}

// By hand: keys are values of rows.
impl fmt::Debug for Open {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Open")
            .field("parked", &self.parked)
            .finish_non_exhaustive()
    }
}

/// Where order must hold: events of one slot and key, to one topic. Without a topic it concerns
/// every topic; without a key there is no order.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(super) struct Place {
    pub(super) slot: Arc<str>,
    pub(super) key: Option<Arc<[u8]>>,
    pub(super) topic: Option<Arc<str>>,
}

impl Place {
    pub(super) fn of(dead_letter: &DlqRecord) -> Self {
        Self {
            slot: Arc::from(dead_letter.slot.as_str()),
            key: dead_letter.key.as_deref().map(Arc::from),
            topic: dead_letter.topic.as_deref().map(Arc::from),
        }
    }
}

/// A dead letter that is to be taken.
pub(super) struct Due {
    pub(super) name: DlqRecordId,
    pub(super) position: Position,
    pub(super) place: Place,
    pub(super) bytes: usize,
}

/// A dead letter that was selected although an earlier one of its key was not.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OutOfOrder {
    /// The dead letter.
    pub dead_letter: DlqRecordId,
    /// The earlier open one.
    pub behind: DlqRecordId,
}

/// A dead letter of the index.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listed {
    /// Which.
    pub name: DlqRecordId,
    /// Where its first copy lies.
    pub position: Position,
    /// What became of it; `None`: it is open.
    pub outcome: Option<Outcome>,
}

impl DlqIndex {
    /// Takes in what was read. `select` is asked for each dead letter.
    pub(super) fn take(&mut self, entry: &Entry, select: impl FnOnce(&DlqRecord) -> bool) {
        match entry {
            Entry::Foreign { .. } => self.foreign += 1,
            Entry::Resolution(resolution) => {
                let name = self.name(&resolution.slot, resolution.id);
                self.resolve(&name, resolution.outcome);
            }
            Entry::DlqRecord(dead_letter) => self.dead_letter(dead_letter, select),
        }
    }

    fn dead_letter(&mut self, dead_letter: &DlqRecord, select: impl FnOnce(&DlqRecord) -> bool) {
        let name = self.name(&dead_letter.slot, dead_letter.id);
        let topic = dead_letter.topic.as_deref().map(|topic| self.intern(topic));
        match self.known.entry(name) {
            // Another copy of it.
            Slot::Occupied(known) if known.get().position.is_some() => {}
            Slot::Occupied(mut known) => {
                let known = known.get_mut();
                known.position = Some(dead_letter.position);
                known.selected = select(dead_letter);
            }
            Slot::Vacant(vacant) => {
                let place = Place {
                    slot: Arc::clone(&vacant.key().slot),
                    key: dead_letter.key.as_deref().map(Arc::from),
                    topic,
                };
                vacant.insert(Known {
                    position: Some(dead_letter.position),
                    selected: select(dead_letter),
                    outcome: None,
                    open: Some(Box::new(Open {
                        place,
                        parked: dead_letter.class == dlq_headers::PARKED,
                        bytes: dead_letter.payload_bytes(),
                    })),
                });
                self.open += 1;
            }
        }
    }

    fn name(&mut self, slot: &str, id: EventPosition) -> DlqRecordId {
        DlqRecordId {
            slot: self.intern(slot),
            id,
        }
    }

    fn intern(&mut self, text: &str) -> Arc<str> {
        if let Some(known) = self.names.get(text) {
            return Arc::clone(known);
        }
        let new: Arc<str> = Arc::from(text);
        self.names.insert(Arc::clone(&new));
        new
    }

    /// A dead letter is open no more.
    pub(super) fn resolve(&mut self, name: &DlqRecordId, outcome: Outcome) {
        let known = self.known.entry(name.clone()).or_insert(Known {
            position: None,
            selected: false,
            outcome: None,
            open: None,
        });
        known.outcome = Some(outcome);
        if known.open.take().is_some() {
            self.open -= 1;
        }
    }

    /// How many dead letters are open, selected or not.
    pub fn open(&self) -> usize {
        self.open
    }

    /// Records that were neither dead letters nor resolutions.
    pub fn foreign(&self) -> u64 {
        self.foreign
    }

    /// Selected dead letters in their order; those that were resolved too if `resolved`.
    pub fn selected(&self, resolved: bool) -> Vec<Listed> {
        let mut listed: Vec<Listed> = self
            .known
            .iter()
            .filter(|(_, known)| known.selected && (resolved || known.outcome.is_none()))
            .filter_map(|(name, known)| {
                Some(Listed {
                    name: name.clone(),
                    position: known.position?,
                    outcome: known.outcome,
                })
            })
            .collect();
        listed.sort_unstable_by(|a, b| a.name.cmp(&b.name));
        listed
    }

    /// Open dead letters in their order.
    fn in_order(&self) -> Vec<(&DlqRecordId, &Known, &Open, Position)> {
        let mut open: Vec<_> = self
            .known
            .iter()
            .filter_map(|(name, known)| {
                Some((name, known, known.open.as_deref()?, known.position?))
            })
            .collect();
        open.sort_unstable_by(|a, b| a.0.cmp(b.0));
        open
    }

    /// Selected dead letters in front of which there is an open one of the same key that is not.
    pub(super) fn out_of_order(&self) -> Vec<OutOfOrder> {
        let mut passed = Places::default();
        let mut found = Vec::new();
        for (name, known, open, _) in self.in_order() {
            if !known.selected {
                passed.add(&open.place, name);
            } else if let Some(behind) = passed.before(&open.place) {
                found.push(OutOfOrder {
                    dead_letter: name.clone(),
                    behind: behind.clone(),
                });
            }
        }
        found
    }

    /// What is to be taken, in order: selected dead letters, and with `follow` those that are parked
    /// behind dead letters that are taken, or were (`taken`).
    pub(super) fn due(&self, follow: Option<&Places>) -> Vec<Due> {
        let mut taken = follow.cloned().unwrap_or_default();
        let mut passed = Places::default();
        let mut due = Vec::new();
        for (name, known, open, position) in self.in_order() {
            let follows = follow.is_some()
                && open.parked
                && taken.before(&open.place).is_some()
                && passed.before(&open.place).is_none();
            if !known.selected && !follows {
                passed.add(&open.place, name);
                continue;
            }
            if follow.is_some() {
                taken.add(&open.place, name);
            }
            due.push(Due {
                name: name.clone(),
                position,
                place: open.place.clone(),
                bytes: open.bytes,
            });
        }
        due
    }
}

/// Keys and topics, each with a dead letter of it.
#[derive(Clone, Default)]
pub(super) struct Places(HashMap<(Arc<str>, Arc<[u8]>), OfKey>);

#[derive(Clone, Default)]
struct OfKey {
    everywhere: Option<DlqRecordId>,
    topics: BTreeMap<Arc<str>, DlqRecordId>,
}

impl Places {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn add(&mut self, place: &Place, name: &DlqRecordId) {
        let Some(key) = &place.key else { return };
        let of_key = self
            .0
            .entry((Arc::clone(&place.slot), Arc::clone(key)))
            .or_default();
        match &place.topic {
            None => {
                of_key.everywhere.get_or_insert_with(|| name.clone());
            }
            Some(topic) => {
                of_key
                    .topics
                    .entry(Arc::clone(topic))
                    .or_insert_with(|| name.clone());
            }
        }
    }

    /// A dead letter among these that an event of this place must not pass.
    pub(super) fn before(&self, place: &Place) -> Option<&DlqRecordId> {
        let key = (Arc::clone(&place.slot), Arc::clone(place.key.as_ref()?));
        let of_key = self.0.get(&key)?;
        of_key.everywhere.as_ref().or_else(|| match &place.topic {
            Some(topic) => of_key.topics.get(topic),
            None => of_key.topics.values().next(),
        })
    }
}
