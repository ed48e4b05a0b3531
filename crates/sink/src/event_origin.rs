use std::collections::HashSet;
use std::sync::Arc;

use crate::EventPosition;

/// The origin of a dead letter of a slot: the event's position, and the system identifier of the cluster whose log has
/// it. `None`: the dead letter names no cluster.
pub type EventOrigin = (EventPosition, Option<Arc<str>>);

/// The system identifiers of clusters, each stored once.
#[derive(Debug, Default)]
pub struct ClusterNames(HashSet<Arc<str>>);

impl ClusterNames {
    /// Makes the origin of a dead letter that names this cluster, or none.
    pub fn origin(&mut self, id: EventPosition, system: Option<&str>) -> EventOrigin {
        (id, system.map(|system| self.stored(system)))
    }

    fn stored(&mut self, system: &str) -> Arc<str> {
        if let Some(known) = self.0.get(system) {
            return Arc::clone(known);
        }
        let new: Arc<str> = Arc::from(system);
        self.0.insert(Arc::clone(&new));
        new
    }
}
