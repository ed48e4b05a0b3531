use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use walrelay_sink::{EventPosition, lock};

/// The positions that are remembered at most.
const MAX_POSITIONS: usize = 4_096;

/// Since when events have no place to go. Clones share it, so it outlives a sink: the relay makes
/// another one to send a refused event alone.
#[derive(Debug, Clone, Default)]
pub struct Unroutable(Arc<Mutex<HashMap<EventPosition, Instant>>>);

impl Unroutable {
    /// Notes that the event of this position has no place to go. Returns for how long it has had none.
    pub fn note(&self, position: EventPosition) -> Duration {
        let mut since = lock(&self.0);
        if since.len() >= MAX_POSITIONS {
            since.clear();
        }
        since.entry(position).or_insert_with(Instant::now).elapsed()
    }

    /// Notes that the event of this position was taken.
    pub fn forget(&self, position: EventPosition) {
        lock(&self.0).remove(&position);
    }
}
