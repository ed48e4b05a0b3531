//! [`ClusterNote`]: the note of the sink's cluster, by which another cluster at the same address is noticed.

use std::sync::Arc;

use tracing::warn;
use walrelay_sink::SinkStats;

use crate::position_note::{ClusterStanding, SinkCluster};

/// The note of the sink's cluster.
#[derive(Debug, Default)]
pub(in crate::source) struct ClusterNote {
    sink: Option<Arc<SinkStats>>,
    /// Another cluster than the noted one is accepted, once.
    accepts: bool,
    /// The cluster that is noted.
    pub(super) noted: Option<String>,
    /// The cluster that the running attempt notes.
    checked: Option<SinkCluster>,
    /// It was logged that the cluster cannot be noted.
    is_logged: bool,
}

impl ClusterNote {
    pub(in crate::source) fn new(sink: Arc<SinkStats>, accepts: bool) -> Self {
        Self {
            sink: Some(sink),
            accepts,
            ..Self::default()
        }
    }

    /// Returns the cluster that an attempt has to note, if the sink knows one and it is not noted yet.
    pub(super) fn due(&mut self) -> Option<SinkCluster> {
        let id = self.sink.as_ref().and_then(|sink| sink.cluster_id());
        self.checked = id
            .filter(|id| self.noted.as_ref() != Some(id))
            .map(|id| SinkCluster {
                id,
                is_accepted: self.accepts,
            });
        self.checked.clone()
    }

    /// Takes the result of an attempt. Returns the id of a cluster that is not accepted.
    pub(super) fn ended(&mut self, standing: ClusterStanding) -> Option<String> {
        let SinkCluster { id, .. } = self.checked.take()?;
        match standing {
            ClusterStanding::Other => return Some(id),
            ClusterStanding::Accepted => {
                warn!(
                    "accepted by --accept-gap: the sink sends to another cluster than before, {id}"
                );
            }
            ClusterStanding::Unnoted => {
                if !std::mem::replace(&mut self.is_logged, true) {
                    warn!(
                        "this role may not note the sink's cluster in walrelay_state: another cluster at the address \
                         would not be noticed. Run walrelay init --role ROLE of this version"
                    );
                }
                return None;
            }
            ClusterStanding::Same => {}
        }
        self.accepts = false;
        self.noted = Some(id);
        None
    }
}
