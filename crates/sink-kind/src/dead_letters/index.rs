use std::collections::btree_map::Entry as Slot;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt;
use std::sync::Arc;

use super::entry::DlqEntry;
use super::interface::{DlqRecord, DlqRecordId, Listed, OutOfOrder, Outcome};
use crate::topics::Position;
use walrelay_sink::{EventPosition, dlq_headers};

/// Indexes all dead letters, with the positions to fetch them again.
///
/// Memory: about 100 bytes for every dead letter that was read, and for an open one another 150
/// bytes and its key. Values and headers are not kept.
#[derive(Debug, Default)]
pub(super) struct DlqIndex {
    known: BTreeMap<DlqRecordId, Known>,
    /// Names of slots, clusters and topics, each stored once.
    names: HashSet<Arc<str>>,
    foreign: u64,
    open: usize,
}

#[derive(Debug, Default)]
struct Known {
    /// The position of the first copy; `None` while only the resolution was read.
    position: Option<Position>,
    selected: bool,
    outcome: Option<Outcome>,
    open: Option<Box<Open>>,
}

/// An open dead letter, as far as it is needed to replay it in order and in bounded batches.
struct Open {
    scope: OrderScope,
    parked: bool,
    bytes: usize,
}

// Not derived: keys are values of rows.
impl fmt::Debug for Open {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Open")
            .field("parked", &self.parked)
            .finish_non_exhaustive()
    }
}

/// The scope of ordering: events of one slot, key and topic. Without a topic the scope is every
/// topic; without a key there is no order.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(super) struct OrderScope {
    pub(super) slot: Arc<str>,
    pub(super) key: Option<Arc<[u8]>>,
    pub(super) topic: Option<Arc<str>>,
}

impl OrderScope {
    pub(super) fn from_dead_letter(dead_letter: &DlqRecord) -> Self {
        Self {
            slot: Arc::from(dead_letter.slot.as_str()),
            key: dead_letter.key.as_deref().map(Arc::from),
            topic: dead_letter.topic.as_deref().map(Arc::from),
        }
    }
}

/// A dead letter to be replayed.
pub(super) struct Due {
    pub(super) name: DlqRecordId,
    pub(super) position: Position,
    pub(super) scope: OrderScope,
    pub(super) bytes: usize,
}

impl DlqIndex {
    /// Adds a record. `select` decides whether a dead letter is selected.
    pub(super) fn add(&mut self, entry: &DlqEntry, select: impl FnOnce(&DlqRecord) -> bool) {
        match entry {
            DlqEntry::Foreign(_) => self.foreign += 1,
            DlqEntry::Resolution(resolution) => {
                let system = resolution.system.as_deref();
                let name = self.name(&resolution.slot, resolution.id, system);
                self.resolve(&name, resolution.outcome);
            }
            DlqEntry::DlqRecord(dead_letter) => self.dead_letter(dead_letter, select),
        }
    }

    fn dead_letter(&mut self, dead_letter: &DlqRecord, select: impl FnOnce(&DlqRecord) -> bool) {
        let system = dead_letter.system.as_deref();
        let name = self.name(&dead_letter.slot, dead_letter.id, system);
        let topic = dead_letter.topic.as_deref().map(|topic| self.intern(topic));
        match self.known.entry(name) {
            // Another copy of a known dead letter.
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

    fn name(&mut self, slot: &str, id: EventPosition, system: Option<&str>) -> DlqRecordId {
        DlqRecordId {
            slot: self.intern(slot),
            id,
            system: system.map(|system| self.intern(system)),
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

    /// Marks a dead letter as resolved.
    pub(super) fn resolve(&mut self, name: &DlqRecordId, outcome: Outcome) {
        let known = self.known.entry(name.clone()).or_default();
        known.outcome = Some(outcome);
        if known.open.take().is_some() {
            self.open -= 1;
        }
    }

    /// Returns the number of open dead letters, selected or not.
    pub(super) fn open(&self) -> usize {
        self.open
    }

    /// Returns the number of records that were neither dead letters nor resolutions.
    pub(super) fn foreign(&self) -> u64 {
        self.foreign
    }

    /// Returns the selected dead letters in order; the resolved ones only if `resolved`.
    pub(super) fn selected(&self, resolved: bool) -> Vec<Listed> {
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

    /// Iterates over the open dead letters in order.
    fn in_order(&self) -> impl Iterator<Item = (&DlqRecordId, &Known, &Open, Position)> {
        self.known.iter().filter_map(|(name, known)| {
            Some((name, known, known.open.as_deref()?, known.position?))
        })
    }

    /// Returns the selected dead letters behind an open one of the same scope that is not selected.
    pub(super) fn out_of_order(&self) -> Vec<OutOfOrder> {
        let mut passed = OrderScopes::default();
        let mut disordered = Vec::new();
        for (name, known, open, _) in self.in_order() {
            if !known.selected {
                passed.add(&open.scope, name);
            } else if let Some(behind) = passed.before(&open.scope) {
                disordered.push(OutOfOrder {
                    dead_letter: name.clone(),
                    behind: behind.clone(),
                });
            }
        }
        disordered
    }

    /// Returns the dead letters to replay, in order: the selected ones, and with `follow` also those parked
    /// behind a replayed one. `follow` contains the scopes replayed before.
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

/// A set of scopes: slot and key, and for each topic one dead letter. The topic `None` comes first.
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

    /// Returns a dead letter of this set that an event of `scope` must not pass.
    pub(super) fn before(&self, scope: &OrderScope) -> Option<&DlqRecordId> {
        let key = (Arc::clone(&scope.slot), Arc::clone(scope.key.as_ref()?));
        let by_topic = self.0.get(&key)?;
        match &scope.topic {
            None => by_topic.values().next(),
            topic => by_topic.get(&None).or_else(|| by_topic.get(topic)),
        }
    }
}
