//! [`SnapshotLock`]: the session that holds the lock of the slot's setup while a snapshot is read.
//!
//! The session belongs to a thread that does nothing else ([`LockThread`]). On the thread of the rows
//! its queries would get no turn while rows arrive, so a slow process would lose its lease again and
//! again.

use std::future::pending;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::thread;
use std::time::Duration;

use tokio::runtime::{Builder, Handle};
use tokio::sync::{Mutex, MutexGuard, Notify, oneshot, watch};
use tokio::task::AbortHandle;
use tokio::time::{Instant, timeout};
use tracing::info;
use walrelay_relay::Chain;
use walrelay_sink::in_current_span;
use walrelay_walsender::{ConnInfo, Error, Session, SessionKind};

use crate::catalog::slot;
use crate::deadline::bounded_by;
use crate::error::PostgresError;

/// The longest time between two proofs.
const LONGEST_INTERVAL: Duration = Duration::from_secs(5);
/// Timeout of one proof.
const DEADLINE: Duration = Duration::from_secs(10);

/// A thread with a runtime, which drives the session of a [`SnapshotLock`]. It ends when this is
/// dropped, and the session with it.
#[derive(Debug)]
pub(crate) struct LockThread {
    runtime: Handle,
    _end: oneshot::Sender<()>,
}

impl LockThread {
    /// Starts the thread.
    pub(crate) fn start() -> io::Result<Self> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let handle = runtime.handle().clone();
        let (end, ended) = oneshot::channel::<()>();
        let run = in_current_span(move || {
            let _ = runtime.block_on(ended);
        });
        let thread = thread::Builder::new().name("snapshot-lock".to_owned());
        thread.spawn(run)?;
        Ok(Self {
            runtime: handle,
            _end: end,
        })
    }

    /// Connects a session that the thread drives. Any thread may use it.
    pub(crate) async fn connect(&self, info: &ConnInfo) -> Result<Session, Error> {
        let info = info.clone();
        let connecting = async move { Session::connect(&info, SessionKind::Sql, &[]).await };
        match self.runtime.spawn(connecting).await {
            Ok(session) => session,
            Err(error) => match error.try_into_panic() {
                Ok(panic) => std::panic::resume_unwind(panic),
                Err(_) => Err(Error::Closed {
                    what: "the thread of the session has ended",
                }),
            },
        }
    }
}

/// The latest answer of the server about the lock.
#[derive(Debug, Clone)]
pub(crate) enum Proof {
    /// The server had both the session and the temporary slot after this time.
    Held(Instant),
    /// The server did not answer, for this reason.
    Unanswered(String),
    /// The session or the temporary slot is gone.
    Lost,
}

/// The lock, as the thread and the stream of the rows see it.
#[derive(Debug)]
struct Held {
    session: Mutex<Session>,
    /// Name of the temporary slot, which keeps the WAL from the snapshot's position on.
    temporary: String,
    /// Asks for a proof before the next one is due.
    asked: Notify,
    /// The longest time, in milliseconds, that one proof had to last until the next.
    longest_gap: AtomicU64,
}

/// The session that holds the lock of the slot's setup.
///
/// While the session lives, no other relay reads a snapshot or creates the slot. When it has ended,
/// another relay may have done both and may have sent newer events, so no further row may be sent.
#[derive(Debug)]
pub(crate) struct SnapshotLock {
    held: Arc<Held>,
    proofs: watch::Receiver<Proof>,
    proving: AbortHandle,
    /// Last, so that the session is dropped before.
    _thread: LockThread,
}

impl SnapshotLock {
    /// Creates the lock that `session` holds, which `thread` drives. The thread proves it four times in
    /// `lease`.
    pub(crate) fn new(
        thread: LockThread,
        session: Session,
        temporary: String,
        lease: Duration,
    ) -> Self {
        let held = Arc::new(Held {
            session: Mutex::new(session),
            temporary,
            asked: Notify::new(),
            longest_gap: AtomicU64::new(0),
        });
        let now = Instant::now();
        let (latest, proofs) = watch::channel(Proof::Held(now));
        let interval = LONGEST_INTERVAL.min(lease / 4);
        let prove = keep_proving(Arc::clone(&held), latest, now, interval);
        Self {
            proving: thread.runtime.spawn(prove).abort_handle(),
            held,
            proofs,
            _thread: thread,
        }
    }

    /// Returns the session, when no proof is under way.
    pub(crate) async fn session(&self) -> MutexGuard<'_, Session> {
        self.held.session.lock().await
    }

    /// Returns the name of the temporary slot.
    pub(crate) fn temporary(&self) -> &str {
        &self.held.temporary
    }

    /// Returns what the stream of the rows needs to know of the lock.
    pub(crate) fn watch(&self) -> LockWatch {
        LockWatch {
            held: Arc::clone(&self.held),
            proofs: self.proofs.clone(),
        }
    }

    /// Asks the server for the temporary slot, over the session: the answer proves that the server
    /// has both.
    ///
    /// # Errors
    /// [`PostgresError::SnapshotLost`] if one of them is gone.
    pub(crate) async fn prove(&self) -> Result<(), PostgresError> {
        self.held.prove().await
    }

    /// Waits for the next proof of the thread, and returns it; pending after [`Proof::Lost`].
    /// Cancel-safe.
    pub(crate) async fn next_proof(&mut self) -> Proof {
        if self.proofs.changed().await.is_err() {
            pending::<()>().await;
        }
        self.proofs.borrow_and_update().clone()
    }

    /// Returns the longest time that one proof had to last until the next, since the last call.
    pub(crate) fn take_longest_gap(&self) -> Duration {
        Duration::from_millis(self.held.longest_gap.swap(0, Relaxed))
    }

    /// Ends the session, after it has released the lock.
    pub(crate) fn close(self) {
        self.proving.abort();
    }
}

impl Held {
    async fn prove(&self) -> Result<(), PostgresError> {
        let mut session = self.session.lock().await;
        match slot(&mut session, &self.temporary).await {
            Ok(Some(slot)) if slot.lost().is_none() => return Ok(()),
            Ok(_) => info!(slot = self.temporary, "the snapshot's slot is gone"),
            Err(error) => {
                info!(error = %Chain(&error), "the session that locks the setup has ended");
            }
        }
        Err(PostgresError::SnapshotLost)
    }
}

/// Proves the lock in this interval, and whenever the stream of the rows asks, until it is lost.
async fn keep_proving(
    held: Arc<Held>,
    latest: watch::Sender<Proof>,
    mut proven_at: Instant,
    interval: Duration,
) {
    loop {
        let asked_at = Instant::now();
        let proof = match bounded_by(DEADLINE, "a look at the snapshot", held.prove()).await {
            Ok(()) => Proof::Held(asked_at),
            Err(error @ PostgresError::NoAnswer { .. }) => {
                Proof::Unanswered(Chain(&error).to_string())
            }
            Err(_) => Proof::Lost,
        };
        let gap = u64::try_from(proven_at.elapsed().as_millis()).unwrap_or(u64::MAX);
        held.longest_gap.fetch_max(gap, Relaxed);
        match proof {
            Proof::Held(at) => proven_at = at,
            Proof::Unanswered(_) => {}
            Proof::Lost => {
                latest.send_replace(proof);
                return;
            }
        }
        latest.send_replace(proof);
        let _ = timeout(interval, held.asked.notified()).await;
    }
}

/// The lock, as the stream of the rows watches it.
#[derive(Debug)]
pub(crate) struct LockWatch {
    held: Arc<Held>,
    proofs: watch::Receiver<Proof>,
}

impl LockWatch {
    /// Returns whether the session lives, as far as this machine knows. `false`:
    /// [`proven`](Self::proven) tells when to look again. Costs one system call.
    pub(super) fn is_quiet(&mut self) -> bool {
        // Before the look: a proof that ends meanwhile ends the wait.
        if matches!(*self.proofs.borrow_and_update(), Proof::Lost) {
            return false;
        }
        // While a proof is under way, its answer may be in the socket.
        let Ok(session) = self.held.session.try_lock() else {
            return false;
        };
        if !session.is_quiet() {
            self.held.asked.notify_one();
            return false;
        }
        true
    }

    /// Waits for the next answer of the server since the last look. Cancel-safe.
    ///
    /// # Errors
    /// [`PostgresError::SnapshotLost`] if the lock is lost.
    pub(super) async fn proven(&mut self) -> Result<(), PostgresError> {
        if !matches!(*self.proofs.borrow(), Proof::Lost) {
            let _ = self.proofs.changed().await;
        }
        match *self.proofs.borrow() {
            Proof::Lost => Err(PostgresError::SnapshotLost),
            Proof::Held(_) | Proof::Unanswered(_) => Ok(()),
        }
    }
}
