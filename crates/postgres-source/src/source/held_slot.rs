//! [`HeldSlot`]: a slot that this process reads only so that no other process can.

use std::convert::Infallible;
use std::future::Future;
use std::pin::pin;
use std::time::Duration;

use tokio::time::{sleep, timeout};
use walrelay_lsn::Lsn;
use walrelay_walsender::{
    Error, ReplicationStream, Session, SessionKind, StartReplication, StatusUpdate,
};

use super::Original;

/// The longest interval of status updates.
const STATUS_INTERVAL: Duration = Duration::from_secs(1);
/// The time that the orderly end may take. A walsender first sends a transaction that it has begun.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(5);

/// A slot whose walsender is this process'. Nothing is read or confirmed: the walsender waits when
/// the socket is full, and answers keep it alive.
#[derive(Debug)]
pub struct HeldSlot {
    stream: ReplicationStream,
    interval: Duration,
}

impl HeldSlot {
    /// Takes the slot.
    ///
    /// # Errors
    /// An error of the class [`SlotInUse`](walrelay_walsender::ErrorClass::SlotInUse) if another process
    /// reads it.
    pub async fn take(original: &Original) -> Result<Self, Error> {
        let millis = original.wal_sender_timeout.as_millis().to_string();
        let settings = [("wal_sender_timeout", millis.as_str())];
        let session = Session::connect(&original.info, SessionKind::Replication, &settings).await?;
        let command = StartReplication {
            slot: original.slot.clone(),
            start: Lsn::ZERO,
            publication: original.publication.clone(),
            messages: original.messages,
        };
        Ok(Self {
            stream: session.start_replication(&command).await?,
            interval: STATUS_INTERVAL.min(original.wal_sender_timeout / 4),
        })
    }

    /// Keeps the slot until `work` ends, and returns its result.
    ///
    /// # Errors
    /// If the connection is lost. Then `work` is dropped: another process may read the slot.
    pub async fn during<T>(&mut self, work: impl Future<Output = T>) -> Result<T, Error> {
        let mut work = pin!(work);
        tokio::select! {
            biased;
            result = &mut work => Ok(result),
            lost = self.keep() => match lost? {},
        }
    }

    async fn keep(&mut self) -> Result<Infallible, Error> {
        loop {
            self.stream.queue_status(StatusUpdate::NO_POSITION);
            self.stream.flush().await?;
            sleep(self.interval).await;
        }
    }

    /// Ends the stream. When this returns, the slot is free, or the server ends its walsender soon:
    /// the connection is closed.
    pub async fn release(self) {
        let _ = timeout(RELEASE_TIMEOUT, self.stream.finish()).await;
    }
}
