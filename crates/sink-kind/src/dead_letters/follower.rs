use std::fmt;
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use super::entry::DlqEntry;
use super::log::DlqLog;
use walrelay_failure::{Chain, Failure};
use walrelay_sink::{Parking, in_current_span};

/// The interval between two reads.
const INTERVAL: Duration = Duration::from_millis(200);

/// Reads a log of dead letters again and again on the thread `dlq-follower`, and keeps a [`Parking`]
/// up to date: keys with open dead letters of one slot are parked, and freed when the last one is
/// resolved.
///
/// Dropping it ends the thread. **Blocks** until a running read has ended.
pub struct DlqFollower {
    /// Dropped to end the thread.
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl DlqFollower {
    /// Starts reading. `open` opens the log; `None` if it does not exist, which counts as a log
    /// without records.
    ///
    /// # Errors
    /// If the thread cannot be started.
    pub fn start<L: DlqLog + Send + 'static>(
        slot: &str,
        parking: Arc<Parking>,
        open: impl FnMut() -> Result<Option<L>, Failure> + Send + 'static,
    ) -> io::Result<Self> {
        let mut follow = Follow {
            slot: slot.to_owned(),
            parking,
            open,
            log: None,
            fails: false,
        };
        let (stop, stopped) = mpsc::channel();
        let work = in_current_span(move || follow.run(&stopped));
        let thread = thread::Builder::new().name("dlq-follower".to_owned());
        Ok(Self {
            stop: Some(stop),
            thread: Some(thread.spawn(work)?),
        })
    }
}

impl Drop for DlqFollower {
    fn drop(&mut self) {
        self.stop = None;
        if self
            .thread
            .take()
            .is_some_and(|thread| thread.join().is_err())
        {
            tracing::error!("the thread that reads dead letters panicked");
        }
    }
}

impl fmt::Debug for DlqFollower {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DlqFollower").finish_non_exhaustive()
    }
}

struct Follow<L, O> {
    slot: String,
    parking: Arc<Parking>,
    open: O,
    log: Option<L>,
    /// The last read failed, which was logged.
    fails: bool,
}

impl<L: DlqLog, O: FnMut() -> Result<Option<L>, Failure>> Follow<L, O> {
    fn run(&mut self, stopped: &Receiver<()>) {
        loop {
            let read = self.read();
            match &read {
                Ok(()) => {}
                Err(error) if self.fails => tracing::debug!(error = %Chain(error), "dead letters"),
                Err(error) => {
                    let waiting = !self.parking.is_ready();
                    tracing::warn!(error = %Chain(error), waiting, "dead letters cannot be read");
                }
            }
            self.fails = read.is_err();
            if stopped.recv_timeout(INTERVAL) == Err(RecvTimeoutError::Disconnected) {
                return;
            }
        }
    }

    /// Reads to the present end.
    fn read(&mut self) -> Result<(), Failure> {
        // The order matters: both are taken before the end of the log, so the dead letters of
        // confirmed transactions, and those of another relay, are before that end.
        let (required, confirmed) = (self.parking.required(), self.parking.confirmed());
        if self.log.is_none() {
            self.log = (self.open)()?;
        }
        if let Some(log) = &mut self.log {
            let (slot, parking) = (&self.slot, &self.parking);
            log.read(&mut |entry| apply(slot, parking, entry))?;
        }
        let was_ready = self.parking.is_ready();
        self.parking.set_read(required);
        if !was_ready {
            let open = self.parking.open();
            tracing::info!(open, "dead letters of earlier runs are known");
        }
        self.parking.forget_resolved_before(confirmed);
        Ok(())
    }
}

fn apply(slot: &str, parking: &Parking, entry: DlqEntry) {
    match entry {
        DlqEntry::DlqRecord(dead_letter) if dead_letter.slot == slot => {
            if let Some(key) = &dead_letter.key {
                let (system, topic) = (dead_letter.system.as_deref(), dead_letter.topic.as_deref());
                parking.park(dead_letter.id, system, topic, key);
            }
        }
        DlqEntry::Resolution(resolution) if resolution.slot == slot => {
            parking.resolve(resolution.id, resolution.system.as_deref());
        }
        // Another slot's, or no dead letter.
        DlqEntry::DlqRecord(_) | DlqEntry::Resolution(_) | DlqEntry::Foreign(_) => {}
    }
}
