use std::future::Future;
use std::time::Duration;

use tracing::{debug, info, warn};
use walrelay_lsn::{CommitEnd, Lsn};
use walrelay_relay::{Ancestor, Opened, Resume, Source, WalStream};
use walrelay_walsender::{
    ConnInfo, Error, ErrorClass, Frame, ReplicationStream, Session, SessionKind, SlotOptions,
    StartReplication, StatusUpdate,
};

use super::catalog::slot;
use super::{Action, Plan, PostgresError, SetupError, Wanted, inspect, plan, script};

/// How long the server may take to answer what costs it nothing. A server that was stopped behind a
/// living TCP stack would otherwise be waited for without end.
const COMMAND_PATIENCE: Duration = Duration::from_secs(30);
/// The same for a look beside the stream, which waits for it.
const LOOK_PATIENCE: Duration = Duration::from_millis(500);
/// SQLSTATE of an object that exists already.
const DUPLICATE_OBJECT: &str = "42710";

/// Opens the replication connection of one slot, with an ordinary control connection beside it.
#[derive(Debug)]
pub struct PostgresSource {
    info: ConnInfo,
    wanted: Wanted,
    /// `wal_sender_timeout` of the replication session. The server's own may be long, or off: a relay
    /// whose machine has vanished would keep the slot for as long, and a connection that is dead would
    /// go unnoticed while the server decodes.
    wal_sender_timeout: Duration,
    /// For catalogs and for the slot's position; opened anew with each stream.
    control: Option<Session>,
}

impl PostgresSource {
    /// A source that has not connected yet.
    pub fn new(info: ConnInfo, wanted: Wanted, wal_sender_timeout: Duration) -> Self {
        Self {
            info,
            wanted,
            wal_sender_timeout,
            control: None,
        }
    }

    async fn create_all(
        &self,
        control: &mut Session,
        replication: &mut Session,
        actions: &[Action],
    ) -> Result<(), Error> {
        let Wanted {
            slot,
            publication,
            tables,
            ..
        } = &self.wanted;
        for action in actions {
            match action {
                Action::CreatePublication => {
                    let sql = script::create_publication(publication, tables);
                    control.query(&sql).await?;
                    info!(
                        publication,
                        "created the publication: inserts of the outbox tables only"
                    );
                }
                Action::CreateSlot => {
                    if !actions.contains(&Action::CreatePublication) {
                        warn!(
                            slot,
                            publication,
                            "there is a publication and no slot: if there was one, what was \
                             committed since it was dropped will not be relayed"
                        );
                    }
                    // Takes as long as the oldest transaction that is open now, so without limit.
                    info!(
                        slot,
                        "creating the slot: Postgres waits for open transactions first"
                    );
                    let options = SlotOptions {
                        failover: false,
                        temporary: false,
                    };
                    let created = replication.create_logical_slot(slot, options).await?;
                    info!(
                        slot,
                        consistent_point = %created.consistent_point,
                        "created the slot: rows committed from here on are relayed, earlier ones \
                         are not"
                    );
                }
            }
        }
        Ok(())
    }

    async fn confirmed(&self, control: &mut Session) -> Result<Lsn, PostgresError> {
        let name = &self.wanted.slot;
        let found = bounded("reading the slot", slot(control, name)).await?;
        found
            .and_then(|slot| slot.confirmed)
            .ok_or_else(|| SetupError::SlotGone { slot: name.clone() }.into())
    }

    /// The server lets one process read a slot: say which one does.
    async fn busy(&self, control: &mut Session, source: Error) -> PostgresError {
        let name = self.wanted.slot.clone();
        // Who reads it is an aside: the error stands without.
        let found = bounded("reading the slot", slot(control, &name)).await;
        let pid = found.ok().flatten().and_then(|slot| slot.active_pid);
        PostgresError::SlotBusy {
            slot: name,
            pid,
            source,
        }
    }
}

impl Source for PostgresSource {
    type Stream = Stream;
    type Error = PostgresError;

    async fn open(&mut self, resume: Option<&Resume>) -> Result<Opened<Stream>, PostgresError> {
        self.control = None;
        let mut control = Session::connect(&self.info, SessionKind::Sql, &[]).await?;
        let mut facts =
            bounded("reading the catalogs", inspect(&mut control, &self.wanted)).await?;
        let millis = self.wal_sender_timeout.as_millis().to_string();
        let settings = [("wal_sender_timeout", millis.as_str())];
        let mut replication =
            Session::connect(&self.info, SessionKind::Replication, &settings).await?;
        let system = bounded("IDENTIFY_SYSTEM", replication.identify_system()).await?;
        let promoted = resume.is_some_and(|resume| resume.timeline != system.timeline);
        let ancestors = if promoted {
            let history = replication.timeline_history(system.timeline);
            bounded("TIMELINE_HISTORY", history).await?
        } else {
            Vec::new()
        };

        let mut again = true;
        loop {
            let Plan { actions, notes } = plan(&self.wanted, &facts, resume.is_some())?;
            for note in notes {
                warn!("{note}");
            }
            match self
                .create_all(&mut control, &mut replication, &actions)
                .await
            {
                Ok(()) => break,
                // Another relay that starts at the same time was quicker.
                Err(error) if again && error.sqlstate() == Some(DUPLICATE_OBJECT) => again = false,
                Err(error) => return Err(error.into()),
            }
            facts = bounded("reading the catalogs", inspect(&mut control, &self.wanted)).await?;
        }

        let command = StartReplication {
            slot: self.wanted.slot.clone(),
            // From where the slot stands. An own position ahead of it would be honoured, and what
            // lies between would be skipped for good.
            start: Lsn::ZERO,
            publications: vec![self.wanted.publication.clone()],
            messages: false,
            proto_version: 1,
        };
        let walsender = replication.backend_pid();
        let started = bounded("START_REPLICATION", replication.start_replication(&command)).await;
        let stream = match started {
            Ok(stream) => stream,
            Err(PostgresError::Wal(error)) if error.class() == ErrorClass::SlotInUse => {
                return Err(self.busy(&mut control, error).await);
            }
            Err(error) => return Err(error),
        };
        // Again, now that nobody else can move it: the stream begins here.
        let slot = bounded("reading the slot", slot(&mut control, &self.wanted.slot))
            .await?
            .ok_or_else(|| SetupError::SlotGone {
                slot: self.wanted.slot.clone(),
            })?;
        // Several hosts, or an address that moves: both connections must see the same slot, or the
        // position of one server would be confirmed to another.
        if slot.active_pid != Some(i64::from(walsender)) {
            return Err(PostgresError::TwoServers {
                slot: self.wanted.slot.clone(),
            });
        }
        let confirmed = slot.confirmed.unwrap_or(Lsn::ZERO);
        debug!(slot = self.wanted.slot, %confirmed, host = %self.info.redacted(), "started");
        self.control = Some(control);
        let ancestors = ancestors.into_iter().map(|ancestor| Ancestor {
            timeline: ancestor.timeline,
            ended: ancestor.ended,
        });
        Ok(Opened {
            stream: Stream(stream),
            system_id: system.system_id,
            timeline: system.timeline,
            ancestors: ancestors.collect(),
            flushed: system.flushed,
            confirmed: CommitEnd::from_slot(confirmed),
            server_timeout: Some(self.wal_sender_timeout),
        })
    }

    async fn still_sound(&mut self) -> Result<(), PostgresError> {
        let look = async {
            let mut control = match self.control.take() {
                Some(control) => control,
                None => Session::connect(&self.info, SessionKind::Sql, &[]).await?,
            };
            let facts = inspect(&mut control, &self.wanted).await?;
            self.control = Some(control);
            Ok::<_, Error>(facts)
        };
        // The stream does not depend on this connection; it is made again the next time.
        match tokio::time::timeout(LOOK_PATIENCE, look).await {
            Ok(Ok(facts)) => {
                plan(&self.wanted, &facts, true)?;
            }
            Ok(Err(error)) => debug!(%error, "the catalogs cannot be looked at"),
            Err(_) => debug!("the catalogs cannot be looked at in time"),
        }
        Ok(())
    }

    async fn confirmed_on_server(&mut self) -> Result<Lsn, PostgresError> {
        // The control connection may have been idle for days, and ended by the server or by
        // something in between: a fresh one answers as well.
        if let Some(mut control) = self.control.take()
            && let Ok(confirmed) = self.confirmed(&mut control).await
        {
            self.control = Some(control);
            return Ok(confirmed);
        }
        let mut control = Session::connect(&self.info, SessionKind::Sql, &[]).await?;
        let confirmed = self.confirmed(&mut control).await?;
        self.control = Some(control);
        Ok(confirmed)
    }
}

/// Waits for a command whose answer takes the server no time of its own.
async fn bounded<T, E>(
    doing: &'static str,
    command: impl Future<Output = Result<T, E>>,
) -> Result<T, PostgresError>
where
    PostgresError: From<E>,
{
    match tokio::time::timeout(COMMAND_PATIENCE, command).await {
        Ok(result) => Ok(result?),
        Err(_) => Err(PostgresError::NoAnswer {
            doing,
            after: COMMAND_PATIENCE,
        }),
    }
}

/// The walsender's stream, with this module's error.
#[derive(Debug)]
pub struct Stream(ReplicationStream);

impl WalStream for Stream {
    type Error = PostgresError;

    fn peek(&mut self) -> Result<Option<Frame<'_>>, PostgresError> {
        Ok(self.0.peek()?)
    }

    fn consume(&mut self) {
        self.0.consume();
    }

    async fn read(&mut self) -> Result<usize, PostgresError> {
        Ok(self.0.read().await?)
    }

    fn queue_status(&mut self, update: StatusUpdate) {
        self.0.queue_status(update);
    }

    async fn flush(&mut self) -> Result<(), PostgresError> {
        Ok(self.0.flush().await?)
    }

    async fn finish(self) -> Result<(), PostgresError> {
        Ok(self.0.finish().await?)
    }
}
