use std::collections::btree_map::Entry as Slot;
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
    /// In the order of the log.
    known: BTreeMap<DlqRecordId, Known>,
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
    scope: OrderScope,
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
pub(super) struct OrderScope {
    pub(super) slot: Arc<str>,
    pub(super) key: Option<Arc<[u8]>>,
    pub(super) topic: Option<Arc<str>>,
}

impl OrderScope {
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
    pub(super) scope: OrderScope,
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
                let scope = OrderScope {
                    slot: Arc::clone(&vacant.key().slot),
                    key: dead_letter.key.as_deref().map(Arc::from),
                    topic,
                };
                vacant.insert(Known {
                    position: Some(dead_letter.position),
                    selected: select(dead_letter),
                    outcome: None,
                    open: Some(Box::new(Open {
                        scope,
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
        let selected = self.known.iter().filter(|(_, known)| known.selected);
        let wanted = selected.filter(|(_, known)| resolved || known.outcome.is_none());
        let listed = wanted.filter_map(|(name, known)| {
            Some(Listed {
                name: name.clone(),
                position: known.position?,
                outcome: known.outcome,
            })
        });
        listed.collect()
    }

    /// Open dead letters in their order.
    fn in_order(&self) -> impl Iterator<Item = (&DlqRecordId, &Known, &Open, Position)> {
        self.known.iter().filter_map(|(name, known)| {
            Some((name, known, known.open.as_deref()?, known.position?))
        })
    }

    /// Selected dead letters in front of which there is an open one of the same key that is not.
    pub(super) fn out_of_order(&self) -> Vec<OutOfOrder> {
        let mut passed = OrderScopes::default();
        let mut found = Vec::new();
        for (name, known, open, _) in self.in_order() {
            if !known.selected {
                passed.add(&open.scope, name);
            } else if let Some(behind) = passed.before(&open.scope) {
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
    pub(super) fn due(&self, follow: Option<&OrderScopes>) -> Vec<Due> {
        let mut taken = follow.cloned().unwrap_or_default();
        let mut passed = OrderScopes::default();
        let mut due = Vec::new();
        for (name, known, open, position) in self.in_order() {
            let follows = follow.is_some()
                && open.parked
                && taken.before(&open.scope).is_some()
                && passed.before(&open.scope).is_none();
            if !known.selected && !follows {
                passed.add(&open.scope, name);
                continue;
            }
            if follow.is_some() {
                taken.add(&open.scope, name);
            }
            due.push(Due {
                name: name.clone(),
                position,
                scope: open.scope.clone(),
                bytes: open.bytes,
            });
        }
        due
    }
}

/// Keys of slots, each with a dead letter of it by topic; `None` is one without a topic, and comes first.
#[derive(Clone, Default)]
pub(super) struct OrderScopes(HashMap<(Arc<str>, Arc<[u8]>), ByTopic>);

type ByTopic = BTreeMap<Option<Arc<str>>, DlqRecordId>;

impl OrderScopes {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn add(&mut self, scope: &OrderScope, name: &DlqRecordId) {
        let Some(key) = &scope.key else { return };
        let key = (Arc::clone(&scope.slot), Arc::clone(key));
        let by_topic = self.0.entry(key).or_default();
        let first = by_topic.entry(scope.topic.clone());
        first.or_insert_with(|| name.clone());
    }

    /// A dead letter among these that an event of this scope must not pass.
    pub(super) fn before(&self, scope: &OrderScope) -> Option<&DlqRecordId> {
        let key = (Arc::clone(&scope.slot), Arc::clone(scope.key.as_ref()?));
        let by_topic = self.0.get(&key)?;
        match &scope.topic {
            None => by_topic.values().next(),
            topic => by_topic.get(&None).or_else(|| by_topic.get(topic)),
        }
    }
}
