//! [`SnapshotLock`]: the session that holds the lock of the slot's setup while a snapshot is read.

use std::sync::Arc;

use tokio::sync::{Mutex, MutexGuard};
use tracing::info;
use walrelay_relay::Chain;
use walrelay_walsender::Session;

use crate::catalog::slot;
use crate::error::PostgresError;

/// The session that holds the lock of the slot's setup. Clones share it.
///
/// While the session lives, no other relay reads a snapshot or creates the slot. When it has ended,
/// another relay may have done both and may have sent newer events, so no further row may be sent.
#[derive(Debug, Clone)]
pub struct SnapshotLock {
    session: Arc<Mutex<Session>>,
    /// Name of the temporary slot, which keeps the WAL from the snapshot's position on.
    pub temporary: String,
}

impl SnapshotLock {
    /// Creates the lock that `session` holds.
    pub fn new(session: Session, temporary: String) -> Self {
        Self {
            session: Arc::new(Mutex::new(session)),
            temporary,
        }
    }

    /// Returns the session, when no other task uses it.
    pub async fn session(&self) -> MutexGuard<'_, Session> {
        self.session.lock().await
    }

    /// Returns whether the session lives, as far as this machine knows. `false`:
    /// [`prove`](Self::prove) tells. Costs one system call.
    pub(super) fn is_quiet(&self) -> bool {
        let session = self.session.try_lock();
        session.is_ok_and(|session| session.is_quiet())
    }

    /// Asks the server for the temporary slot, over the session: the answer proves that the server
    /// has both.
    ///
    /// # Errors
    /// [`PostgresError::SnapshotLost`] if one of them is gone.
    pub async fn prove(&self) -> Result<(), PostgresError> {
        let mut session = self.session().await;
        match slot(&mut session, &self.temporary).await {
            Ok(Some(slot)) if slot.lost().is_none() => return Ok(()),
            Ok(_) => info!(slot = self.temporary, "the snapshot's slot is gone"),
            Err(error) => {
                info!(error = %Chain(&error), "the session that locks the setup has ended");
            }
        }
        Err(PostgresError::SnapshotLost)
    }

    /// Ends the session, unless another clone is in use.
    pub async fn close(self) {
        if let Some(session) = Arc::into_inner(self.session) {
            session.into_inner().close().await;
        }
    }
}
